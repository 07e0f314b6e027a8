/*
 * rendezvous.h: how the ranks agree on NCCL's unique id: by a file in a directory that all of them see.
 */
#ifndef MOE_TRAIN_RENDEZVOUS_H
#define MOE_TRAIN_RENDEZVOUS_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

/* Path of the meeting file into path: MOE_RENDEZVOUS, else HOSTNCCL_DIR, ROLLCALL_DIR, TMPDIR, /tmp; named after the
 * job. */
int rendezvous_path(char *path, size_t bytes);

/* Rank 0 makes the id and publishes it; the others wait for it, up to timeout_s. 0, or -1 with one line on standard
 * error. */
int rendezvous_meet(const char *path, int32_t rank, uint32_t timeout_s, ncclUniqueId *id);

/* Rank 0, when all ranks have joined: removes the file. */
void rendezvous_leave(const char *path, int32_t rank);

#endif
