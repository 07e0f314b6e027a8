/*
 * host_rows.c: rows copied and zeroed, the portable arithmetic, and the choice among the tables.
 *
 * Copies need no more than 16-byte stores, which the base instruction set streams as well as any. A row that goes to
 * several places is copied in pieces of a page: the piece is read from memory once and comes from the cache for the
 * other places, and each place gets enough of it in a run for the memory to take it in bursts.
 */
#define ROWS_NAME  "plain"
#define ROWS_TABLE moe_host_rows_plain
#include "moe_core/host/host_rows_body.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>

/*
 * STREAM_FROM is a core's share of the last cache on the machines that train. The size that the system reports was
 * rejected: a virtual machine reports that of the whole host.
 */
enum { PIECE = 4096, LINE = 64, COPY_AHEAD = 1024, STREAM_FROM = 4 << 20 };

static const struct moe_host_rows *chosen = &moe_host_rows_plain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

int moe_host_rows_all(const struct moe_host_rows **out, int most)
{
    int n = 0;
    if (n < most) {
        out[n++] = &moe_host_rows_plain;
    }
#if defined(__x86_64__)
    if (n < most && has_avx2()) {
        out[n++] = &moe_host_rows_avx2;
    }
#endif
    return n;
}

static void choose(void)
{
    const struct moe_host_rows *all[2];
    int n = moe_host_rows_all(all, 2);
    chosen = all[n - 1];
}

const struct moe_host_rows *moe_host_rows_table(void)
{
    pthread_once(&once, choose);
    return chosen;
}

bool moe_host_rows_stream(size_t bytes)
{
    return bytes >= STREAM_FROM;
}

void moe_host_rows_done(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* What lies behind a row is asked for as well: it is the next token's row, or nothing that harms. */
static void copy_piece(unsigned char *to, const unsigned char *from, size_t bytes, bool stream)
{
    size_t done = 0;
    if (stream && (uintptr_t)to % 16 == 0) {
        for (; done + LINE <= bytes; done += LINE) {
            __builtin_prefetch(from + done + COPY_AHEAD);
            store32(to + done, from + done, true);
            store32(to + done + 32, from + done + 32, true);
        }
    }
    memcpy(to + done, from + done, bytes - done);
}

void moe_host_rows_copy(void *const *to, int64_t n, const void *from, size_t bytes, bool stream)
{
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t piece = bytes - at < PIECE ? bytes - at : PIECE;
        for (int64_t i = 0; i < n; i++) {
            copy_piece((unsigned char *)to[i] + at, (const unsigned char *)from + at, piece, stream);
        }
    }
}

void moe_host_row_zero(void *to, size_t bytes, bool stream)
{
    static const unsigned char zeros[LINE];
    unsigned char *at = to;
    size_t done = 0;
    if (stream && (uintptr_t)at % 16 == 0) {
        for (; done + LINE <= bytes; done += LINE) {
            store32(at + done, zeros, true);
            store32(at + done + 32, zeros, true);
        }
    }
    memset(at + done, 0, bytes - done);
}
