/*
 * export.h: recorded traces as dumps of PyTorch's Flight Recorder, one file a rank. Not thread-safe.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_EXPORT_H
#define ROLL_DAEMON_CONSOLE_EXPORT_EXPORT_H

#include "daemon/stack/symbol.h"
#include "trace/op.h"
#include "trace/record.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_EXPORT_ENTRIES 2000u /* calls of a rank that are written, as many as the recorder keeps */

/* A communicator, as all ranks together know it. */
struct roll_export_comm {
    uint64_t key;
    char label[ROLL_NAME_BYTES];
    uint32_t size;
    int32_t *world; /* owned; the rank in the job of each member; -1 = not known */
};

/* A call of one rank. */
struct roll_export_call {
    struct roll_record rec;
    uint64_t real_ns;   /* wall clock of the call */
    uint32_t comm;      /* number among the communicators */
    uint32_t coll, p2p; /* collectives and batches of messages on it, up to and with this one */
    bool ends;          /* the last of a batch of messages */
    bool complete;
    bool waited;   /* a wait of the host covers it */
    size_t before; /* 1 + the number of the call before it on its stream; 0 = none */
};

/* What one rank has recorded. */
struct roll_export_rank {
    uint64_t stream;
    int32_t world_rank;
    int64_t offset;                /* wall clock minus the clock of the records */
    struct roll_export_call *call; /* owned */
    size_t calls, room;
    size_t open;    /* calls before this one are complete */
    size_t *newest; /* owned; by stream: 1 + the number of its newest call */
    size_t streams;
    uint32_t *comm; /* owned; by the rank's own id: 1 + number among the communicators; 0 = none */
    size_t comms;
};

/* export_pickle.c: writes the dump of one rank. 0, NOMEM, and the errors of writing (IO, SPACE, DENIED). */
int roll_export_write(const char *path, const struct roll_export_rank *rank, const struct roll_export_comm *comm,
                      size_t comms, size_t entries, roll_symbols_t *symbols);
/* export.c: reads all traces of these paths, and writes a file for each rank into `folder`, which is made. *ranks: the
 * files written. *cut: a trace ended early, which a line told. 0, NOTFOUND (no trace), and the errors of reading and
 * writing, of which one line tells the place. */
int roll_export(char **path, size_t paths, const char *folder, size_t entries, size_t *ranks, bool *cut);

#endif
