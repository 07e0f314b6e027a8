/*
 * bench_moe.c: the host back end of moe_core: `roll_bench moe`.
 *
 * Each sub-part is a row of the table below and prints our side and the other in one run. Permute and unpermute move
 * rows and compute next to nothing, so what they are compared with is memcpy: bytes read and written per second, in
 * memory of the same allocator, in pairs, medians. memcpy copies 256 MiB, so much that it streams its stores, which is
 * when it is fastest; it reads as much as it writes. Of ours the bytes of rows count, each row once for each time that
 * it must be read or written (unpermute reads k rows for each one that it writes, permute the other way round); the
 * map and the probabilities, which are read as well, do not count. A core streams its stores while it reads, so what
 * mostly reads cannot have memcpy's sum: the same rows read from one end to the other, with nothing written, stand
 * beside it. memcpy leaves nothing of ours in the caches. What is
 * timed is what a layer waits for, from enqueue to the end of the stream, the check of the map included, in processor
 * time.
 */
#include "tests/bench/bench.h"

#include "moe_core/include/moe/device.h"
#include "moe_core/include/moe/permute.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 4096, EXPERTS = 64, REPEATS = 15, COPY_BYTES = 256 << 20 };

enum side { COPY, READ, PERMUTE, UNPERMUTE, WEIGHTED, BACKWARD, SIDES };

static const char *const side_names[SIDES] = {"memcpy",    "reading the rows",     "permute",
                                              "unpermute", "unpermute with probs", "its backward"};

struct problem {
    moe_device_t *device;
    moe_row_map_t *map;
    struct moe_movement move;
    int32_t k;
    int32_t *index;
    float *probs, *d_probs;
    void *x, *rows, *d_rows;
    unsigned char *from, *to; /* memcpy's */
};

/* Seconds of processor time: both sides are one thread's work, and a neighbour that takes the processor while one side
 * runs must not count for it. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, REPEATS, sizeof(*values), by_value);
    return values[REPEATS / 2];
}

/* The bytes that a side must read and write. */
struct moved {
    double in, out;
};

static struct moved bytes_moved(const struct problem *p, enum side side)
{
    const double row = (double)p->move.hidden * (double)moe_dtype_bytes(p->move.type),
                 tokens = (double)p->move.tokens * row, rows = (double)p->move.rows * row;
    switch (side) {
    case COPY:
        return (struct moved){COPY_BYTES, COPY_BYTES};
    case READ:
        return (struct moved){rows, 0};
    case PERMUTE:
        return (struct moved){tokens, rows};
    case BACKWARD: /* dy and the rows are read, the gradients of rows written */
        return (struct moved){tokens + rows, rows};
    default:
        return (struct moved){rows, tokens};
    }
}

static double bytes(const struct problem *p, enum side side)
{
    struct moved moved = bytes_moved(p, side);
    return moved.in + moved.out;
}

/* Every token to k different experts, at random but the same in every run. */
static void choose(struct problem *p)
{
    uint64_t state = 7;
    for (int64_t t = 0; t < p->move.tokens; t++) {
        for (int32_t j = 0; j < p->k; j++) {
            bool twice = true;
            while (twice) {
                state = state * 6364136223846793005ull + 1442695040888963407ull;
                p->index[t * p->k + j] = (int32_t)((state >> 33) % EXPERTS);
                twice = false;
                for (int32_t i = 0; i < j; i++) {
                    twice = twice || p->index[t * p->k + i] == p->index[t * p->k + j];
                }
            }
        }
    }
    for (int64_t i = 0; i < p->move.tokens * EXPERTS; i++) {
        p->probs[i] = 1.0f / (float)p->k;
    }
}

static void tear_down(struct problem *p)
{
    void *arrays[] = {&p->index, &p->probs, &p->d_probs, &p->x, &p->rows, &p->d_rows, &p->from, &p->to};
    if (p->device != NULL) {
        moe_row_map_destroy(&p->map);
        for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
            moe_device_free(p->device, arrays[i]);
        }
        moe_device_destroy(&p->device);
    }
}

static int set_up(struct problem *p, enum moe_dtype type, int64_t hidden, int32_t k)
{
    memset(p, 0, sizeof(*p));
    p->k = k;
    p->move = (struct moe_movement){
        .kind = MOE_MAP_MASK, .type = type, .tokens = TOKENS, .rows = (int64_t)TOKENS * k, .hidden = hidden};
    size_t row = (size_t)hidden * moe_dtype_bytes(type);
    int rc = moe_device_new_host(&p->device);
    rc = rc ? rc : moe_row_map_new(p->device, TOKENS, EXPERTS, &p->map);
    rc = rc ? rc : moe_device_alloc(p->device, TOKENS * (size_t)k * sizeof(*p->index), (void **)&p->index);
    rc = rc ? rc : moe_device_alloc(p->device, (size_t)TOKENS * EXPERTS * sizeof(*p->probs), (void **)&p->probs);
    rc = rc ? rc : moe_device_alloc(p->device, (size_t)TOKENS * EXPERTS * sizeof(*p->d_probs), (void **)&p->d_probs);
    rc = rc ? rc : moe_device_alloc(p->device, TOKENS * (size_t)k * row, &p->d_rows);
    rc = rc ? rc : moe_device_alloc(p->device, TOKENS * row, &p->x);
    rc = rc ? rc : moe_device_alloc(p->device, TOKENS * (size_t)k * row, &p->rows);
    rc = rc ? rc : moe_device_alloc(p->device, COPY_BYTES, (void **)&p->from);
    rc = rc ? rc : moe_device_alloc(p->device, COPY_BYTES, (void **)&p->to);
    if (rc == 0) {
        const struct moe_map_source source = {.index = p->index};
        choose(p);
        rc = moe_row_map_build_from(p->map, &source, k, TOKENS, p->move.rows);
    }
    return rc ? rc : moe_device_sync(p->device);
}

/* Reads all rows from one end to the other: four sums, so that no addition waits for the one before. */
static void read_rows(const struct problem *p)
{
    const uint64_t *word = p->rows;
    size_t words = (size_t)bytes_moved(p, READ).in / sizeof(*word);
    uint64_t sum[4] = {0};
    for (size_t i = 0; i + 4 <= words; i += 4) {
        sum[0] += word[i];
        sum[1] += word[i + 1];
        sum[2] += word[i + 2];
        sum[3] += word[i + 3];
    }
    __asm__ volatile("" : : "r"(sum[0] + sum[1] + sum[2] + sum[3]));
}

/* Seconds of one run of one side; negative: an error. */
static double run_once(struct problem *p, enum side side)
{
    double begin = seconds();
    int rc = 0;
    switch (side) {
    case COPY:
        memcpy(p->to, p->from, COPY_BYTES);
        __asm__ volatile("" ::: "memory");
        return seconds() - begin;
    case READ:
        read_rows(p);
        return seconds() - begin;
    case PERMUTE:
        rc = moe_map_permute(p->map, &p->move, p->x, NULL, p->rows, NULL);
        break;
    case BACKWARD:
        rc = moe_map_unpermute_backward(p->map, &p->move, p->x, p->rows, p->probs, p->d_rows, p->d_probs);
        break;
    default:
        rc = moe_map_unpermute(p->map, &p->move, p->rows, side == WEIGHTED ? p->probs : NULL, p->x);
    }
    rc = rc ? rc : moe_device_sync(p->device);
    return rc != 0 ? -1.0 : seconds() - begin;
}

/* Bytes per second of every side, and its share of memcpy's. The share is the median of pairs run one after the other:
 * a neighbour on the machine slows both halves of a pair alike. */
static int measure(struct problem *p, double *rate, double *share)
{
    double shares[REPEATS], rates[REPEATS], copies[REPEATS];
    for (int side = READ; side < SIDES; side++) {
        for (int i = -1; i < REPEATS; i++) { /* the first pair warms up */
            double copy = run_once(p, COPY), ours = run_once(p, (enum side)side);
            if (copy <= 0 || ours <= 0) {
                return -1;
            }
            int at = i < 0 ? 0 : i;
            copies[at] = bytes(p, COPY) / copy;
            rates[at] = bytes(p, (enum side)side) / ours;
            shares[at] = rates[at] / copies[at];
        }
        rate[side] = median(rates);
        rate[COPY] = median(copies);
        share[side] = median(shares);
    }
    return 0;
}

static int one_shape(json_t *list, FILE *table, enum moe_dtype type, int64_t hidden, int32_t k, double *least)
{
    struct problem p;
    double rate[SIDES], share[SIDES];
    int rc = set_up(&p, type, hidden, k);
    rc = rc ? rc : measure(&p, rate, share);
    for (int side = READ; rc == 0 && side < SIDES; side++) {
        char what[80], text[64], goal[96];
        least[side] = share[side] < least[side] ? share[side] : least[side];
        snprintf(what, sizeof(what), "%s %s H %lld k %d", side_names[side], moe_dtype_name(type), (long long)hidden, k);
        snprintf(text, sizeof(text), "%.1f GB/s, %.2f", rate[side] / 1e9, share[side]);
        struct moved moved = bytes_moved(&p, (enum side)side);
        snprintf(goal, sizeof(goal), "(memcpy %.1f GB/s; %.0f MB in, %.0f MB out)", rate[COPY] / 1e9, moved.in / 1e6,
                 moved.out / 1e6);
        roll_bench_line(table, what, text, goal);
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f}", "what", side_names[side], "type",
                                        moe_dtype_name(type), "hidden", (json_int_t)hidden, "k", k, "rate", rate[side],
                                        "of_memcpy", share[side], "read_bytes", moved.in, "written_bytes", moved.out));
    }
    tear_down(&p);
    return rc;
}

static int bench_permute(json_t *out, FILE *table)
{
    static const enum moe_dtype types[] = {MOE_F32, MOE_BF16};
    static const int64_t widths[] = {1024, 2048, 4096, 7168};
    static const int32_t topk[] = {2, 8};
    double least[SIDES] = {0, 1e9, 1e9, 1e9, 1e9, 1e9};
    json_t *list = json_array();
    int rc = 0;
    fprintf(table, "  permute: %d tokens, %d experts; share of memcpy's bytes read and written per second\n", TOKENS,
            EXPERTS);
    for (int i = 0; i < 16 && rc == 0; i++) {
        rc = one_shape(list, table, types[i / 8], widths[i / 2 % 4], topk[i % 2], least);
        fflush(table);
    }
    for (int side = PERMUTE; rc == 0 && side < SIDES; side++) {
        char what[80], text[64];
        snprintf(what, sizeof(what), "%s: least share of memcpy's bandwidth", side_names[side]);
        snprintf(text, sizeof(text), "%.2f", least[side]);
        roll_bench_line(table, what, text, ">= 0.70");
        json_object_set_new(out, side_names[side], json_real(least[side]));
    }
    json_object_set_new(out, "shapes", list);
    return rc;
}

static const struct {
    const char *name;
    int (*run)(json_t *out, FILE *table);
} parts[] = {
    {"permute", bench_permute},
    {"gemm", roll_bench_moe_gemm},
    {"remedies", roll_bench_moe_remedies},
};

int roll_bench_moe(json_t *out, FILE *table)
{
    int rc = 0;
    /* The variable is read once, by the first work; only the products are measured with more than one thread. */
    setenv("MOE_HOST_THREADS", "2", 0);
    moe_device_host_threads(1);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        json_t *part = json_object();
        int err = parts[i].run(part, table);
        if (err != 0) {
            fprintf(stderr, "roll_bench: moe: %s could not be measured\n", parts[i].name);
            rc = -1;
        }
        json_object_set_new(out, parts[i].name, part);
    }
    return rc;
}
