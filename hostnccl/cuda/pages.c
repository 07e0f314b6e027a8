/*
 * pages.c: the pages under device memory. An allocation reserves addresses and commits nothing: the kernel gives a
 * page when the first byte of the page is written, and a page that was never written reads as zero. So a model with
 * its real shapes fits on a machine that could not hold the model, as long as nobody computes or moves the bytes.
 *
 * What would commit pages for nothing is kept from doing so: a fill with zero gives whole pages back, and a copy leaves
 * out the pages of its source that were never written. /proc/self/pagemap says which pages those are. mincore was
 * rejected: a page in swap may look to it like a page that was never written.
 */
#include "hostnccl/cuda/memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES_ASKED_AT_ONCE = 512 };

static size_t page_bytes(void)
{
    static _Atomic size_t known;
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (!bytes) {
        bytes = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

void *hostcuda_pages_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void hostcuda_pages_release(void *memory, size_t bytes)
{
    munmap(memory, bytes);
}

/* Whole pages are given back, the rest is written. */
void hostcuda_pages_zero(void *memory, size_t bytes)
{
    char *dst = memory;
    size_t page = page_bytes();
    size_t head = (page - (uintptr_t)dst % page) % page;
    size_t whole = bytes > head ? (bytes - head) / page * page : 0;
    if (!whole || madvise(dst + head, whole, MADV_DONTNEED)) { /* it fails in a process that locks its memory */
        memset(dst, 0, bytes);
        return;
    }
    memset(dst, 0, head);
    memset(dst + head + whole, 0, bytes - head - whole);
}

static int map_file = -1;

static void open_map(void)
{
    map_file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

/* Asks which of the next pages were ever written; returns how many pages the answer is about, 0 where there is none. */
static size_t ask(uintptr_t start, size_t count, uint64_t *words)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_map);
    if (map_file < 0) {
        return 0;
    }
    count = count < PAGES_ASKED_AT_ONCE ? count : PAGES_ASKED_AT_ONCE;
    ssize_t got = pread(map_file, words, count * sizeof(*words), (off_t)(start / page_bytes() * sizeof(*words)));
    return got > 0 ? (size_t)got / sizeof(*words) : 0;
}

/* A page that is in memory or in swap; the numbers of the bits are those of the kernel's documentation. */
static bool was_written(uint64_t word)
{
    return word >> 62 != 0;
}

/* Copies a run of bytes, all of which lie on pages that were written, or all on pages that were not. A fresh target is
 * zero already. */
static void copy_run(char *dst, const char *src, size_t bytes, bool is_written, bool is_fresh)
{
    if (is_written) {
        memcpy(dst, src, bytes);
    } else if (!is_fresh) {
        hostcuda_pages_zero(dst, bytes);
    }
}

/* Copies reserved memory run by run. */
static void copy_runs(char *dst, const char *src, size_t bytes, bool is_fresh)
{
    uintptr_t from = (uintptr_t)src;
    uint64_t words[PAGES_ASKED_AT_ONCE];
    size_t page = page_bytes(), done = 0;
    while (done < bytes) {
        size_t skew = (from + done) % page;
        size_t told = ask(from + done - skew, (bytes - done + skew + page - 1) / page, words);
        if (!told) {
            memcpy(dst + done, src + done, bytes - done);
            return;
        }
        for (size_t first = 0, next; first < told; first = next) {
            for (next = first + 1; next < told && was_written(words[next]) == was_written(words[first]); next++) {
            }
            size_t run = (next - first) * page - skew;
            run = run < bytes - done ? run : bytes - done;
            copy_run(dst + done, src + done, run, was_written(words[first]), is_fresh);
            done += run;
            skew = 0;
        }
    }
}

void hostcuda_pages_copy(void *dst, const void *src, size_t bytes)
{
    copy_runs(dst, src, bytes, false);
}

void hostcuda_pages_carry(void *dst, const void *src, size_t bytes)
{
    copy_runs(dst, src, bytes, true);
}
