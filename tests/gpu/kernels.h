/*
 * kernels.h: what the parts of gpu_kernels share: two devices, arrays that lie on both, and comparisons.
 *
 * The same struct of arguments (moe/ops.h) is given to the host's and to the GPU's function of the table, over twins of
 * the same random numbers; outputs hold poison before, zones around every array hold a pattern that must survive.
 * Integers and copies must agree in every bit, sums of floats within a tolerance. A part is a file kernels_*.c with one
 * function, and a line in the table of kernels.c.
 */
#ifndef ROLL_TESTS_GPU_KERNELS_H
#define ROLL_TESTS_GPU_KERNELS_H

#include "moe_core/include/moe/device.h"
#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST, GPU, SIDES };

struct check {
    moe_device_t *device[SIDES]; /* in a rehearsal both are the host's */
    bool rehearsal;
    uint64_t random;
    uint64_t sample; /* --sample N: about one case in N of each row, and no timings; 0: all */
    bool digests;    /* --digest: each row says what all bytes are that it compared of the GPU's */
    long breaks;     /* --break N: the N-th comparison gets a wrong byte, to see that it is found; -1: none */
    bool all_there;  /* --all-there: a row whose cases compared nothing is wrong */
    bool wrong;      /* a row has been wrong so far */
    /* the row at hand */
    const char *name;
    int shapes;
    uint64_t cases, pick; /* of taken() */
    uint64_t tried;       /* cases that taken() took */
    uint64_t compared;    /* arrays of the GPU's that were compared */
    double worst;         /* in tolerances */
    uint64_t digest;
    bool row_wrong;
};

/* The parts. */
void check_tensor(struct check *c);
void check_gemm(struct check *c);
void check_fp8(struct check *c);
void check_product8(struct check *c);
void check_product(struct check *c);
void check_move(struct check *c);
void check_router(struct check *c);
void check_rows(struct check *c);
void check_layer(struct check *c);
void check_flex(struct check *c);
void check_graph(struct check *c);

/* rows of the result: one line of JSON each */

void row_begin(struct check *c, const char *name);
/* Ends the row and prints it. `more`: further members of the object, `"ms":1.5,...`, or "". */
void row_end(struct check *c, const char *more);
/* A finding: the row is not right; printed to stderr. */
void row_wrong(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whether the next case of the row is to be run: all are, but with --sample, which takes one in every N, and one of the
 * first four. */
bool taken(struct check *c);

/* arrays on both sides */

struct twin {
    int64_t count;
    size_t size;                /* of an element */
    size_t offset;              /* bytes between the zone and the array */
    unsigned char *zone[SIDES]; /* what was allocated: a zone, the array, a zone */
};

/* What the array is on one side, for a struct of arguments. NULL for an array that was never made. */
void *twin_at(const struct twin *t, int side);
/* Zeroed arrays. `offset` elements more in front take the alignment away. Ends the program without memory. */
struct twin twin_new(struct check *c, int64_t count, size_t size);
struct twin twin_new_at(struct check *c, int64_t count, size_t size, int64_t offset);
void twin_free(struct check *c, struct twin *t);
/* The host's side to the GPU's. */
void twin_push(struct check *c, const struct twin *t);
/* Fills the outputs with poison, a number that no computation gives. */
void twin_poison(struct check *c, const struct twin *t);
/* Random numbers of an element type in [-range, range), the same on both sides. */
struct twin twin_random(struct check *c, int64_t count, enum moe_dtype type, float range);
/* Random multiples of 1/16 in [0, steps/16): ties come, and differences are never a matter of rounding. */
struct twin twin_grid(struct check *c, int64_t count, int steps);

/* The GPU's array in host memory, to be freed. After both devices are idle. */
void *twin_fetch(struct check *c, const struct twin *t);

/* Every bit alike, zones whole. */
void twin_equal(struct check *c, const struct twin *t, const char *what);
/* |difference| <= tolerance * max(1, |wanted|, `size`) for numbers of the type (poison must meet poison), zones whole.
 */
void twin_close(struct check *c, const struct twin *t, enum moe_dtype type, double tolerance, double size,
                const char *what);

/* |difference| <= relative * |wanted| + absolute for the GPU's numbers against double precision; NaNs of `want` are not
 * looked at. Beside twin_close, which judges the rest and the zones. */
void twin_near(struct check *c, const struct twin *t, enum moe_dtype type, const double *want, double relative,
               double absolute, const char *what);
/* The host's side in double, to be freed. After both devices are idle. */
double *twin_wide(struct check *c, const struct twin *t, enum moe_dtype type);
/* Compares both sides with numbers in double (exact.h), within the tolerance as above. NaN in `want`: the number is not
 * computed, and both sides must hold the same bits there. Frees `want`. */
void twin_exact(struct check *c, const struct twin *t, enum moe_dtype type, double *want, double tolerance, double size,
                const char *what);

/* running */

uint64_t next_random(struct check *c);
int64_t random_below(struct check *c, int64_t n);

/* Waits for both devices; false, and wrong, where they found other errors than `wanted`. */
bool both_found(struct check *c, int wanted, const char *what);
void launched(struct check *c, int rc, const char *what);

/* RUN_BOTH(c, op, struct moe_op, .member = value, ...): ON(twin) in a value is the array of the side at hand. */
#define ON(t) twin_at(&(t), side)
#define RUN_BOTH(c, op, type, ...)                                                                                     \
    for (int side = 0; side < SIDES; side++) {                                                                         \
        const type args = {__VA_ARGS__};                                                                               \
        launched(c, moe_device_ops((c)->device[side])->op((c)->device[side], &args), #op);                             \
    }

/* Milliseconds per call of `work` on the GPU's stream: the median of several, after one to warm up. */
double time_ms(struct check *c, void (*work)(struct check *c, const void *args), const void *args);
/* Bytes per second, read and written together, of cudaMemcpyAsync inside the GPU, over `bytes` of each; 0 without that
 * much memory. */
double copy_rate(struct check *c, size_t bytes);

#endif
