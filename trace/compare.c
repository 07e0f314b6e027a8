/*
 * compare.c: the page of compare.h: made like the control page, searched by place.
 *
 * Successive calls of one communicator take successive sets of two lines, so a set comes round after 8,192 calls, and
 * the line that the next call will need can be fetched ahead. A call that finds both lines taken replaces the older
 * one. That loses one comparison and never makes one wrong, because each line names its place.
 */
#include "trace/compare.h"

#include "trace/err.h"
#include "trace/file.h"
#include "trace/ident.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SETS     (ROLL_COMPARE_CELLS / ROLL_COMPARE_WAYS)
#define ATTEMPTS 4 /* how often another rank may take the line before us until we give up */

int roll_compare_path(char *out, size_t size, const char *dir, const char *job, uint32_t restart)
{
    char node[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, node, sizeof(node) - 1);
        node[n > 8 ? 8 : 0] = '\0';
        close(fd);
    }
    int n = snprintf(out, size, "%s/%s.%u.%s.cmp", dir, job, restart, node[0] != '\0' ? node : "node");
    return n < 0 || (size_t)n >= size ? ROLL_E_SIZE : ROLL_OK;
}

static int map_page(int fd, struct roll_compare **out)
{
    void *p = mmap(NULL, ROLL_COMPARE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return roll_err_from_errno(errno);
    }
    *out = p;
    return ROLL_OK;
}

int roll_compare_check(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    if (bytes >= 8 && memcmp(p, ROLL_COMPARE_MAGIC, 8) != 0) {
        return ROLL_E_MAGIC;
    }
    if (bytes < ROLL_COMPARE_BYTES) {
        return ROLL_E_SHORT;
    }
    struct {
        uint16_t version, oldest;
        uint32_t bytes, cells, cell_bytes;
    } head;
    memcpy(&head, p + offsetof(struct roll_compare, version), sizeof(head));
    if (head.version < ROLL_COMPARE_VERSION || head.oldest > ROLL_COMPARE_VERSION) {
        return ROLL_E_VERSION;
    }
    bool fits = head.bytes == ROLL_COMPARE_BYTES && head.cells == ROLL_COMPARE_CELLS &&
                head.cell_bytes == sizeof(struct roll_compare_cell);
    return fits ? ROLL_OK : ROLL_E_SIZE;
}

static int open_existing(const char *path, struct roll_compare **out)
{
    uint64_t bytes = 0;
    int fd = roll_file_open(path, true, &bytes);
    if (fd < 0) {
        return fd;
    }
    struct roll_compare *page = NULL;
    int err = bytes < ROLL_COMPARE_BYTES ? ROLL_E_SHORT : map_page(fd, &page);
    close(fd);
    if (err < 0) {
        return err;
    }
    err = roll_compare_check(page, ROLL_COMPARE_BYTES);
    if (err < 0) {
        roll_compare_close(&page);
        return err;
    }
    *out = page;
    return ROLL_OK;
}

static int make(const char *path)
{
    static struct roll_new_file file; /* off the stack, which may be small; the caller holds the library's lock */
    int err = roll_file_make(path, ROLL_COMPARE_BYTES, &file);
    if (err < 0) {
        return err;
    }
    struct roll_compare *page = NULL;
    err = map_page(file.fd, &page);
    if (err < 0) {
        goto out;
    }
    memcpy(page->magic, ROLL_COMPARE_MAGIC, sizeof(page->magic));
    page->version = ROLL_COMPARE_VERSION;
    page->oldest = ROLL_COMPARE_VERSION;
    page->bytes = ROLL_COMPARE_BYTES;
    page->cells = ROLL_COMPARE_CELLS;
    page->cell_bytes = sizeof(struct roll_compare_cell);
    err = roll_file_publish(&file, path, false);
    err = err == ROLL_E_BUSY ? ROLL_OK : err; /* somebody else was first */
out:
    roll_file_finish(&file);
    roll_compare_close(&page);
    return err;
}

int roll_compare_open(const char *path, struct roll_compare **out)
{
    *out = NULL;
    int err = open_existing(path, out);
    if (err != ROLL_E_NOTFOUND) {
        return err;
    }
    err = make(path);
    return err < 0 ? err : open_existing(path, out);
}

void roll_compare_close(struct roll_compare **page)
{
    if (*page != NULL) {
        munmap(*page, ROLL_COMPARE_BYTES);
        *page = NULL;
    }
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 31;
    h *= 0x94d049bb133111ebu;
    return h ^ h >> 29;
}

uint64_t roll_compare_word(uint64_t key, uint32_t seq, uint64_t signature)
{
    uint64_t place = mix(key + seq * UINT64_C(0x9e3779b97f4a7c15));
    uint64_t word = (place & UINT64_C(0xffffffff00000000)) | mix(signature) >> 32;
    return word != 0 ? word : 1;
}

static uint32_t checksum(uint64_t word, uint32_t moment, const struct roll_compare_call *call)
{
    uint64_t part[sizeof(*call) / sizeof(uint64_t)], h = word ^ (uint64_t)moment << 32;
    memcpy(part, call, sizeof(part));
    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        h = (h ^ part[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    return (uint32_t)h | 1; /* never 0, which a free line has */
}

static uint32_t set_of(uint64_t key, uint32_t seq)
{
    return ((uint32_t)(mix(key) >> 16) + seq) & (SETS - 1);
}

static bool same_place(uint64_t a, uint64_t b)
{
    return (a ^ b) >> 32 == 0;
}

void roll_compare_prefetch(const struct roll_compare *page, uint64_t key, uint32_t seq)
{
    const struct roll_compare_cell *set = &page->cell[set_of(key, seq) * ROLL_COMPARE_WAYS];
    __builtin_prefetch(&set[0], 0);
    __builtin_prefetch(&set[1], 0);
}

/* The line to write to: a free one, else the older one. NULL: both lines are newer than this call. */
static struct roll_compare_cell *victim(struct roll_compare_cell *set, const uint64_t *seen,
                                        const struct roll_compare_call *call)
{
    unsigned best = ROLL_COMPARE_WAYS;
    for (unsigned way = 0; way < ROLL_COMPARE_WAYS; way++) {
        if (seen[way] == 0) {
            return &set[way];
        }
        if (set[way].call.key == call->key && (int32_t)(set[way].call.seq - call->seq) > 0) {
            return NULL; /* the table has come round: this rank is thousands of calls behind */
        }
        if (best == ROLL_COMPARE_WAYS || (int32_t)(set[way].moment - set[best].moment) < 0) {
            best = way;
        }
    }
    return &set[best];
}

static enum roll_compare_answer answer(uint64_t seen, uint64_t word, struct roll_compare_cell *cell,
                                       struct roll_compare_cell **other)
{
    *other = cell;
    return seen == word ? ROLL_COMPARE_SAME : ROLL_COMPARE_OTHER;
}

static void clear(struct roll_compare_cell *cell, uint64_t word)
{
    atomic_compare_exchange_strong_explicit(&cell->word, &word, 0, memory_order_acq_rel, memory_order_relaxed);
}

enum roll_compare_answer roll_compare_call(struct roll_compare *page, const struct roll_compare_call *call,
                                           uint32_t moment, uint64_t word, struct roll_compare_cell **other)
{
    struct roll_compare_cell *set = &page->cell[set_of(call->key, call->seq) * ROLL_COMPARE_WAYS];
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        uint64_t seen[ROLL_COMPARE_WAYS];
        for (unsigned way = 0; way < ROLL_COMPARE_WAYS; way++) {
            seen[way] = atomic_load_explicit(&set[way].word, memory_order_acquire);
            if (same_place(seen[way], word) && seen[way] != 0) {
                return answer(seen[way], word, &set[way], other);
            }
        }
        struct roll_compare_cell *cell = victim(set, seen, call);
        if (cell == NULL) {
            return ROLL_COMPARE_LATE;
        }
        uint64_t old = seen[cell - set];
        if (!atomic_compare_exchange_strong_explicit(&cell->word, &old, word, memory_order_seq_cst,
                                                     memory_order_acquire)) {
            continue;
        }
        atomic_thread_fence(memory_order_release);
        cell->moment = moment;
        cell->call = *call;
        atomic_store_explicit(&cell->check, checksum(word, moment, call), memory_order_release);
        /* Another rank may have come to the same place meanwhile and chosen the other line. Then the first line stands:
         * a call that is refused must not stay published. Both orders are sequential, so one of the two sees the other.
         */
        struct roll_compare_cell *twin = &set[1 - (cell - set)];
        uint64_t theirs = atomic_load_explicit(&twin->word, memory_order_seq_cst);
        if (theirs == 0 || !same_place(theirs, word) || cell == set) {
            return ROLL_COMPARE_FIRST;
        }
        clear(cell, word);
        return answer(theirs, word, twin, other);
    }
    return ROLL_COMPARE_LATE;
}

enum roll_compare_seen roll_compare_read(const struct roll_compare_cell *cell, uint64_t key, uint32_t seq,
                                         struct roll_compare_call *out, uint32_t *moment)
{
    uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
    uint32_t check = atomic_load_explicit(&cell->check, memory_order_acquire);
    *out = cell->call;
    *moment = cell->moment;
    atomic_thread_fence(memory_order_acquire);
    if (word == 0) {
        return ROLL_COMPARE_FOREIGN;
    }
    if (atomic_load_explicit(&cell->word, memory_order_relaxed) != word ||
        atomic_load_explicit(&cell->check, memory_order_relaxed) != check || check != checksum(word, *moment, out)) {
        return ROLL_COMPARE_TORN;
    }
    bool here = out->key == key && out->seq == seq && same_place(word, roll_compare_word(key, seq, 0));
    bool sane = out->members != 0 && out->before < out->members;
    return here && sane ? ROLL_COMPARE_WHOLE : ROLL_COMPARE_FOREIGN;
}

struct roll_compare_cell *roll_compare_find(struct roll_compare *page, uint64_t key, uint32_t seq)
{
    struct roll_compare_cell *set = &page->cell[set_of(key, seq) * ROLL_COMPARE_WAYS];
    uint64_t word = roll_compare_word(key, seq, 0);
    for (unsigned way = 0; way < ROLL_COMPARE_WAYS; way++) {
        uint64_t seen = atomic_load_explicit(&set[way].word, memory_order_acquire);
        if (seen != 0 && same_place(seen, word)) {
            return &set[way];
        }
    }
    return NULL;
}

void roll_compare_withdraw(struct roll_compare *page, uint64_t key, uint32_t seq, uint32_t pid, int32_t rank)
{
    struct roll_compare_cell *cell = roll_compare_find(page, key, seq);
    struct roll_compare_call call;
    uint32_t moment;
    if (cell == NULL) {
        return;
    }
    uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
    if (roll_compare_read(cell, key, seq, &call, &moment) == ROLL_COMPARE_WHOLE && call.pid == pid &&
        call.rank == rank) {
        clear(cell, word);
    }
}

void roll_compare_drop(struct roll_compare_cell *cell, const struct roll_compare_call *seen, uint32_t moment)
{
    uint64_t word = atomic_load_explicit(&cell->word, memory_order_acquire);
    if (atomic_load_explicit(&cell->check, memory_order_acquire) == checksum(word, moment, seen)) {
        clear(cell, word);
    }
}
