/*
 * rendezvous.h: how the ranks agree on NCCL's unique id: by a file in a directory that all of them see.
 */
#ifndef MOE_CORE_TRAIN_RENDEZVOUS_H
#define MOE_CORE_TRAIN_RENDEZVOUS_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Writes the path of the meeting file into `path`, which has `bytes` bytes: in MOE_RENDEZVOUS, else HOSTNCCL_DIR,
 * ROLLCALL_DIR, TMPDIR or /tmp, named after the job.
 */
int rendezvous_path(char *path, size_t bytes);

/*
 * Gives all ranks one id: rank 0 makes it and publishes the file; the others wait for the file, up to timeout_s
 * seconds. Returns 0, or -1 with one line on standard error.
 */
int rendezvous_meet(const char *path, int32_t rank, uint32_t timeout_s, ncclUniqueId *id);

/* Removes the file. Rank 0 calls it when all ranks have joined. */
void rendezvous_leave(const char *path, int32_t rank);

#endif
