/*
 * catalogue.h: the fault catalogue: one small program per verdict, and its healthy twin.
 *
 * A program is a function of (rank, size, sick): with sick it commits exactly one mistake, without it the same calls
 * are right. All programs live in one executable and in one table, together with the verdict that the sick one must
 * provoke, so that the runner knows nothing of its own. They use NCCL and the CUDA runtime only: the same sources run
 * on real NCCL.
 */
#ifndef ROLL_TESTS_CATALOGUE_CATALOGUE_H
#define ROLL_TESTS_CATALOGUE_CATALOGUE_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

#define CAT_ELEMENTS 4096u

struct cat {
    int rank, size;
    bool sick;      /* this program makes its mistake */
    bool culprit;   /* sick, and this is the rank that makes it: the last one */
    int prev, next; /* neighbours in the ring of ranks */
    ncclComm_t world;
    cudaStream_t stream;
    cudaStream_t other; /* a second, independent stream */
    float *send, *recv; /* CAT_ELEMENTS * size elements each */
};

struct cat_program {
    const char *name;
    void (*run)(struct cat *c);
    const char *code;     /* the verdict that the sick program must provoke; a|b: one of them, a+b: both */
    const char *code_two; /* the code at two ranks, where no majority exists; NULL = as `code` */
    /* The certainty of the verdict, or "any". "note": nothing hangs, the job ends well, and the note is made once.
     * "proven@7": a second, wrong finding may come so many seconds after the right one. a+b as the codes. */
    const char *certainty;
    /* "last", "first", "none", "any"; at two ranks a tie names nobody unless it ends in '!'; with '?' that rank or
     * nobody; a+b as the codes. */
    const char *culprits;
    int min_ranks;
    bool no_world; /* the program makes its own communicator */
};

/* Ends the program with a message when a call fails: a broken test must not look like a hang. */
void cat_nccl(ncclResult_t result, const char *what);
void cat_cuda(cudaError_t error, const char *what);
#define NCCL(call) cat_nccl((call), #call)
#define CUDA(call) cat_cuda((call), #call)

/* Waits for the program's stream, as a training loop does when it meets the hang. */
void cat_sync(struct cat *c);
/* One all-reduce of `count` floats on the world: the ordinary traffic between which mistakes are made. */
void cat_step(struct cat *c, size_t count);
/*
 * Checks what the mistake did to the data, only where ROLL_CATALOGUE_CHECK is set. Then rank r sends r + 1 everywhere,
 * each check waits for the stream, and a rank that got other values prints "wrong data" and ends with CAT_WRONG_DATA.
 * Otherwise no check does anything.
 */
#define CAT_WRONG_DATA 8
/* The first `count` elements received are all `value`. */
void cat_check(struct cat *c, size_t count, float value);
/* The first `count` elements received are the sum over all ranks. */
void cat_check_sum(struct cat *c, size_t count);
/* The elements received are `count` of each rank, in the order of the ranks. */
void cat_check_gathered(struct cat *c, size_t count);
/* Gives the unique id that rank 0 makes under `name` in the rendezvous directory to all. */
void cat_share(struct cat *c, const char *name, ncclUniqueId *id);
/* Joins a communicator of all ranks, found by `name` in the rendezvous directory. */
ncclComm_t cat_join(struct cat *c, const char *name);

/* The programs, by family; each table ends with a NULL name. */
extern const struct cat_program cat_sequence[];
extern const struct cat_program cat_alignment[];
extern const struct cat_program cat_p2p[];
extern const struct cat_program cat_order[];
extern const struct cat_program cat_process[];
extern const struct cat_program cat_graphs[];
extern const struct cat_program cat_graphs_healthy[];
extern const struct cat_program cat_refused[];
extern const struct cat_program cat_refused_healthy[];
extern const struct cat_program cat_absent[];
extern const struct cat_program cat_mixed[];
extern const struct cat_program cat_mixed_healthy[];
extern const struct cat_program cat_polls[];
extern const struct cat_program cat_polls_healthy[];
extern const struct cat_program cat_healthy[]; /* correct programs that look odd: must raise nothing, sick or not */

#endif
