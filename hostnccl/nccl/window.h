/* window.h: memory of every rank that the other ranks of a communicator reach. See window.c. */
#ifndef ROLL_HOSTNCCL_NCCL_WINDOW_H
#define ROLL_HOSTNCCL_NCCL_WINDOW_H

#include "hostnccl/nccl/internal.h"

/*
 * Finds the memory of a rank's window as it is mapped in this process. ncclInvalidArgument: no such rank;
 * ncclInvalidUsage: the window was not registered with NCCL_WIN_COLL_SYMMETRIC, so nothing of it is shared.
 */
ncclResult_t hn_window_of_peer(ncclWindow_t window, int peer, char **base, size_t *size);

/* Whether `window` is a window of this communicator. */
bool hn_window_is_of(ncclComm_t comm, ncclWindow_t window);

/* Whether these bytes lie in a shared window of this communicator. */
bool hn_window_holds(ncclComm_t comm, const void *at, size_t bytes);

void hn_windows_free(ncclComm_t comm);

#endif
