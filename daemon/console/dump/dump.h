/*
 * dump.h: raw bytes beside their meaning, for rings, control pages and trace files; as text or NDJSON.
 */
#ifndef ROLL_DAEMON_CONSOLE_DUMP_DUMP_H
#define ROLL_DAEMON_CONSOLE_DUMP_DUMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* How the bytes of a field are to be read. All numbers are little-endian. */
enum roll_dump_kind {
    ROLL_DUMP_UINT,
    ROLL_DUMP_INT,
    ROLL_DUMP_HEX,   /* a number that is a key or an address */
    ROLL_DUMP_TEXT,  /* bytes up to the first 0 */
    ROLL_DUMP_BYTES, /* hex without meaning */
    ROLL_DUMP_SEAL,  /* a record's seal: ticket and state */
    ROLL_DUMP_NAME,  /* a number with a name: see `name` */
    ROLL_DUMP_EXIT,  /* a wait status */
};

struct roll_dump_field {
    const char *name;
    uint16_t offset, bytes;
    enum roll_dump_kind kind;
    const char *(*label)(unsigned value); /* ROLL_DUMP_NAME only */
};

/* A row of a table of fields: a member by its own name. */
#define ROLL_DUMP_FIELD(type, member, kind)                                                                            \
    {                                                                                                                  \
#member, offsetof(type, member), sizeof(((type *)NULL)->member), kind, NULL                                    \
    }
#define ROLL_DUMP_LOSS(type, name, cause)                                                                              \
    {                                                                                                                  \
        name, offsetof(type, losses[cause]), 8, ROLL_DUMP_UINT, NULL                                                   \
    }
/* The rows of `losses`: a ring's header and an agent's STATUS count by the same causes. */
#define ROLL_DUMP_LOSSES(type)                                                                                         \
    ROLL_DUMP_LOSS(type, "lost_overrun", ROLL_LOSS_OVERRUN), ROLL_DUMP_LOSS(type, "lost_lapped", ROLL_LOSS_LAPPED),    \
        ROLL_DUMP_LOSS(type, "lost_defs_full", ROLL_LOSS_DEFS_FULL),                                                   \
        ROLL_DUMP_LOSS(type, "lost_comm_unknown", ROLL_LOSS_COMM_UNKNOWN),                                             \
        ROLL_DUMP_LOSS(type, "lost_callsite", ROLL_LOSS_CALLSITE),                                                     \
        ROLL_DUMP_LOSS(type, "lost_stream", ROLL_LOSS_STREAM), ROLL_DUMP_LOSS(type, "lost_signal", ROLL_LOSS_SIGNAL),  \
        ROLL_DUMP_LOSS(type, "lost_wire", ROLL_LOSS_WIRE), ROLL_DUMP_LOSS(type, "lost_graph", ROLL_LOSS_GRAPH),        \
        ROLL_DUMP_LOSS(type, "lost_moe_kind", ROLL_LOSS_MOE_KIND),                                                     \
        ROLL_DUMP_LOSS(type, "lost_corrupt", ROLL_LOSS_CORRUPT)

/* A dump in progress: where it goes, and how much it shows. */
struct roll_dump {
    FILE *out;
    bool json;
    uint64_t limit;   /* records or frames shown at most; 0 = all */
    uint64_t printed; /* records or frames shown so far */
};

/*
 * Shows one structure: `bytes` bytes at `data`, which begin at `offset` of the file, with `n` fields. `kind` names the
 * structure for scripts ("record"), `title` is its one line for people. Borrows all.
 */
void roll_dump_thing(struct roll_dump *dump, const char *kind, const char *title, uint64_t offset, const void *data,
                     size_t bytes, const struct roll_dump_field *fields, size_t n);
/* One line about the file as a whole. */
void roll_dump_note(struct roll_dump *dump, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The next three functions each show a whole file that is held in memory. 0, ROLL_E_INCOMPLETE for a file cut short, or
 * why it cannot be read. */
int roll_dump_ring(struct roll_dump *dump, const void *data, size_t bytes);
int roll_dump_control(struct roll_dump *dump, const void *data, size_t bytes);
int roll_dump_trace(struct roll_dump *dump, const void *data, size_t bytes);
/* Shows a file of any of the three kinds, which its magic tells. ROLL_E_MAGIC when it is of none. */
int roll_dump_any(struct roll_dump *dump, const void *data, size_t bytes);

/* Shows one record at file offset `offset` (0 = not in a file of its own). */
void roll_dump_record(struct roll_dump *dump, uint64_t offset, const void *record);
/* Shows successive entries of a definitions area, the first at file offset `offset`. 0, or the error of the entry that
 * cannot be read. */
int roll_dump_defs(struct roll_dump *dump, uint64_t offset, const void *data, size_t bytes);
/* Shows the 4096 bytes of a ring's header. */
void roll_dump_ring_header(struct roll_dump *dump, uint64_t offset, const void *data);

#endif
