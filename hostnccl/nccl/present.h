/*
 * present.h: what others ask and tell about ranks that are stood in for: the interposer and the package
 * rollcall.rehearse find these functions by their names (dlsym), and declare them for themselves.
 */
#ifndef ROLL_HOSTNCCL_NCCL_PRESENT_H
#define ROLL_HOSTNCCL_NCCL_PRESENT_H

#include <nccl.h>

/*
 * Tells the members of a communicator that will be made: `ranks`, their ranks in the job, by their rank on the
 * communicator. `name`: its ncclConfig_t.commName; NULL: it has none. A name may be told for several communicators.
 * With a count of 0 all that was told is forgotten. Any thread. 0, or -1: no memory, or a negative number.
 */
__attribute__((visibility("default"))) int hostncclTell(const char *name, const int *ranks, int count);

/*
 * Which members of a communicator that is about to be made are present. `place` has room for nranks: the place among
 * those that are present, or -1. Returns how many are present, nranks where HOSTNCCL_PRESENT is not set; 0 where the
 * call will be refused. Any thread.
 */
__attribute__((visibility("default"))) int hostncclPresent(int nranks, int rank, const ncclConfig_t *config,
                                                           int *place);

#endif
