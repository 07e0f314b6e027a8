/*
 * bounds.c: what one input may cost a decoder: 100 ms of processor time (where it is longer than libFuzzer's 4 KiB, 4
 * us for each further byte as well, so that what is quadratic shows) and 64 MiB of heap. Linked to every fuzz target,
 * around its function.
 *
 * libFuzzer's own limits are for hangs and for the whole process: a second and a gigabyte for 100 bytes would go
 * unseen, and are what an attacker looks for. The sanitizers make all this some times slower than it is in the product,
 * so the bound has that much in hand. Time that the kernel took for something else is no finding: an input that was too
 * slow is run again, and its best time counts.
 */
#include "tests/trace/fuzz/fuzz.h"

#include <inttypes.h>
#include <sanitizer/allocator_interface.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#define MOST_NS    UINT64_C(100000000)
#define MOST_BYTES (UINT64_C(64) << 20)
#define SHORT      4096u /* bytes of an input that the first bound is for */
#define TRIES      5

int __real_LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int __wrap_LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
const char *__asan_default_options(void);

static int64_t held, most; /* bytes of the heap since the input began */

static void on_malloc(const volatile void *at, size_t bytes)
{
    (void)at;
    held += (int64_t)bytes;
    most = held > most ? held : most;
}

static void on_free(const volatile void *at)
{
    if (at != NULL) {
        held -= (int64_t)__sanitizer_get_allocated_size((const void *)(uintptr_t)at);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * What a fuzzer needs of the sanitizer: of memory that was given back, 16 MiB are watched, and not 256: one input has
 * hardly as much, and memory that was used just now need not be made again. Eight frames say who asked for it.
 */
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=16:malloc_context_size=8";
}

int __wrap_LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool hooked;
    uint64_t best = UINT64_MAX, bound = MOST_NS + (bytes > SHORT ? (bytes - SHORT) * 4000u : 0);
    int result = 0;
    if (!hooked) {
        hooked = true;
        PROMISE(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) != 0);
    }
    for (int i = 0; i < TRIES && best > bound; i++) {
        held = most = 0;
        uint64_t begin = now_ns();
        result = __real_LLVMFuzzerTestOneInput(data, bytes);
        uint64_t took = now_ns() - begin;
        best = took < best ? took : best;
        if (most > (int64_t)MOST_BYTES) {
            fprintf(stderr, "an input of %zu bytes took %" PRIi64 " KiB of memory\n", bytes, most / 1024);
            abort();
        }
    }
    if (best > bound) {
        fprintf(stderr, "an input of %zu bytes took %" PRIu64 " ms of processor time\n", bytes, best / 1000000);
        abort();
    }
    return result;
}
