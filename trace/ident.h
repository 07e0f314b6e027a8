/*
 * ident.h: names and keys of jobs, ranks and communicators, which every rank computes alike without talking to the
 * others.
 */
#ifndef ROLL_TRACE_IDENT_H
#define ROLL_TRACE_IDENT_H

#include <stddef.h>
#include <stdint.h>

#define ROLL_JOB_BYTES 64u

/* What the environment says about this process. */
struct roll_ident {
    char job[ROLL_JOB_BYTES]; /* ROLLCALL_JOB, else SLURM_JOB_ID[.STEP], TORCHELASTIC_RUN_ID, else "local"; cleaned:
                                 [A-Za-z0-9._-] */
    uint32_t restart;         /* ROLLCALL_RESTART, TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT, else 0 */
    int32_t rank;       /* RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK; -1 = order of attachment */
    int32_t size;       /* WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE, PMI_SIZE; -1 = unknown */
    int32_t local_rank; /* LOCAL_RANK, SLURM_LOCALID, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID; -1 = unknown */
};

/* Reads the environment through `get` (getenv's shape, so that tests can feed it). Values that are not numbers in range
 * are ignored. No malloc. Any thread, as far as `get` allows. */
void roll_ident_read(const char *(*get)(const char *name), struct roll_ident *out);

/* Key of a communicator made from a unique id: hash of all `bytes` (128) bytes. Never 0. Pure. */
uint64_t roll_key_unique_id(const void *id, size_t bytes);
/* Key of child number `child` (from 0, counted on the parent by every member, NOCOLOR included) with this colour.
 * For shrink and grow the colour is ROLL_COLOR_NONE. Never 0. Pure. */
uint64_t roll_key_child(uint64_t parent, uint32_t child, int32_t color);
/* A running 64-bit hash of bytes: the one hash of this project (not for hostile keys). Pure. */
uint64_t roll_hash64(uint64_t seed, const void *data, size_t bytes);

/*
 * Names of things in a ring directory; each writes at most size bytes and returns 0 or ROLL_E_SIZE.
 *   ring:    DIR/<job>.<restart>.<rank or p>.<pid>.ring   (rank "p" when unknown)
 *   control: DIR/<job>.<restart>.ctl
 */
int roll_ring_path(char *out, size_t size, const char *dir, const struct roll_ident *ident, uint32_t pid);
int roll_control_path(char *out, size_t size, const char *dir, const char *job, uint32_t restart);
/* The default ring directory of this user: /dev/shm/rollcall-<uid>, or /tmp/rollcall-<uid> where /dev/shm is missing.
 */
int roll_default_dir(char *out, size_t size);

#endif
