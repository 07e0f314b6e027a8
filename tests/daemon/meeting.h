/*
 * meeting.h: how the ranks of a small real job meet, and are told what to do: files of one directory.
 *
 * The job itself (check_lone.py, check_silent.py) holds no socket to its ranks and needs none: a file that is there is
 * a word that was said, and it is seen as well by a rank that was stopped meanwhile.
 */
#ifndef ROLL_TESTS_DAEMON_MEETING_H
#define ROLL_TESTS_DAEMON_MEETING_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* What must hold in a rank: else it says what did not, and ends with 9. */
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s: line %d: %s\n", __FILE__, __LINE__, #condition);                                      \
            exit(9);                                                                                                   \
        }                                                                                                              \
    } while (0)

typedef struct meeting {
    const char *directory; /* borrowed, of argv */
    int rank, size;        /* RANK and WORLD_SIZE */
    ncclComm_t comm;       /* of all ranks */
    cudaStream_t stream;   /* on the rank's own device */
} meeting;

/* Meets the other ranks in `directory`, which it borrows, and makes the communicator and the stream. */
meeting meeting_join(const char *directory);

/* True when the file `name` is in the directory. */
bool meeting_there(const meeting *m, const char *name);

/* Returns when the file `name` is `there`, or no longer there. */
void meeting_wait(const meeting *m, const char *name, bool there);

/* Writes the file `name`, whole from the first moment at which it is there. */
void meeting_tell(const meeting *m, const char *name, const void *bytes, size_t size);

#endif
