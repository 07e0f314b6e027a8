/*
 * def.h: definitions, written once per thing and referred to by small ids from the records.
 *
 * The definitions area is a log of entries, each a multiple of 8 bytes: a 16-byte head, then the body. A writer
 * reserves room by fetch-add on defs_used, fills the entry and publishes it by storing `seal` last (release); a reader
 * stops at the first entry whose seal is still 0. Ids count from 1 per type; 0 always means "none". Ids are never
 * reused.
 */
#ifndef ROLL_TRACE_DEF_H
#define ROLL_TRACE_DEF_H

#include "trace/ring.h"

enum roll_def_type {
    ROLL_DEF_COMM = 1,     /* struct roll_def_comm + label */
    ROLL_DEF_CALLSITE = 2, /* struct roll_def_callsite + pcs + lines */
    ROLL_DEF_MODULE = 3,   /* struct roll_def_module + path */
    ROLL_DEF_STREAM = 4,   /* struct roll_def_stream */
    ROLL_DEF_THREAD = 5,   /* struct roll_def_thread + name */
    ROLL_DEF_LAYER = 6,    /* struct roll_def_layer + name */
    ROLL_DEF_GRAPH = 7,    /* struct roll_def_graph + parts */
    ROLL_DEF_SOURCE = 8,   /* struct roll_def_source + path */
    ROLL_DEF_LINE = 9,     /* struct roll_def_line + function */
    ROLL_DEF_STAND = 10,   /* struct roll_def_stand + lines */
    ROLL_DEF_TEXT = 11,    /* struct roll_def_text + text */
    ROLL_DEF_NAME = 12,    /* struct roll_def_name + label + text + file + function */
    ROLL_DEF_SITES = 13,   /* struct roll_def_sites + numbers; in frames alone: no ring holds it */
};

struct roll_def_head {
    uint32_t seal;  /* ROLL_DEF_SEAL | type, stored last; 0 while being written */
    uint32_t bytes; /* of the whole entry, head included; a multiple of 8 */
    uint32_t id;
    uint32_t reserved;
};
#define ROLL_DEF_SEAL      0x52440000u /* 'RD' in the upper half; the type in the lower half */
#define ROLL_DEF_MAX_BYTES 4096u

/* How a communicator came to be. */
enum roll_comm_origin { ROLL_COMM_INIT = 1, ROLL_COMM_SPLIT = 2, ROLL_COMM_SHRINK = 3, ROLL_COMM_GROW = 4 };

#define ROLL_COLOR_NONE INT32_MIN

/* A flag of a communicator: `nranks` is only an upper bound, because nothing told the size (old profiler interfaces).
 */
#define ROLL_DEF_COMM_OPEN 2u

/* Of `flags`: how many ranks the job believes the communicator to have, where `nranks` are those that run and the
 * others are stood in for (a rehearsal of some ranks); ranks and peers are then numbered among those that run, and a
 * peer that is stood in for has a number above them. 0: all ranks run. */
#define ROLL_DEF_COMM_BELIEVED_SHIFT 8u

struct roll_def_comm {
    uint64_t key;        /* the same on every member: see ident.h */
    uint64_t parent_key; /* 0 = none */
    int32_t rank;        /* this process's rank in the communicator */
    int32_t nranks;
    int32_t color;   /* of a split; else ROLL_COLOR_NONE */
    uint32_t child;  /* index of the child on the parent, from 0 */
    uint32_t origin; /* enum roll_comm_origin */
    int32_t device;  /* CUDA device ordinal, -1 unknown */
    uint32_t flags;  /* bit 0: nonblocking; ROLL_DEF_COMM_OPEN; from ROLL_DEF_COMM_BELIEVED_SHIFT on: a number */
    uint32_t label_bytes;
    /* label_bytes bytes: ncclConfig_t.commName, not terminated */
};

struct roll_def_callsite {
    uint32_t depth; /* number of return addresses, innermost first, <= ROLL_CALLSITE_DEPTH */
    uint32_t lines; /* number of frames of an interpreted language, innermost first, <= ROLL_CALLSITE_LINES */
    /* depth x uint64_t: return addresses */
    /* lines x struct roll_callsite_line */
};
#define ROLL_CALLSITE_DEPTH 8u
#define ROLL_CALLSITE_LINES 8u

/* A frame of an interpreted language (Python) at a call site. */
struct roll_callsite_line {
    uint32_t line;   /* id of the line's definition */
    uint32_t folded; /* frames of libraries that were left out between the frame before (further in) and this one */
};

/* A file of source code. */
struct roll_def_source {
    uint32_t path_bytes;
    uint32_t reserved;
    /* path_bytes bytes, not terminated */
};

/* A line of an interpreted language, as frames at call sites name it. */
struct roll_def_line {
    uint32_t source; /* id of the file's definition */
    uint32_t line;   /* from 1; 0 = unknown */
    uint32_t flags;  /* ROLL_DEF_LINE_LIBRARY */
    uint32_t function_bytes;
    /* function_bytes bytes: qualified name of the function, not terminated */
};
#define ROLL_DEF_LINE_LIBRARY 1u /* the line is a library's, by the rule that the user may set */

/*
 * Where the process's main thread stood at a call site of another thread that had no line of the user's itself
 * (autograd's). Its id is that of the call site, which is defined behind it. No part of what the call site is: call
 * sites that differ in nothing else are one place.
 */
struct roll_def_stand {
    uint32_t lines; /* number of frames, innermost first, <= ROLL_CALLSITE_LINES */
    uint32_t reserved;
    /* lines x struct roll_callsite_line */
};

/* What a line says in its file. Its id is that of the line; written by the agent of the rank's node, which reads the
 * file. */
struct roll_def_text {
    uint32_t text_bytes; /* <= ROLL_TEXT_BYTES */
    uint32_t reserved;
    /* text_bytes bytes of UTF-8 without control characters, not terminated */
};
#define ROLL_TEXT_BYTES 240u

/* What a name of the job names. */
enum roll_name_kind {
    ROLL_NAME_GROUP = 1,   /* a process group, by the label and size of its communicators */
    ROLL_NAME_TENSORS = 2, /* what collectives of so many elements on such communicators carry */
};

/* A name that the job itself gives (rollcall.torch), for people. */
struct roll_def_name {
    uint64_t count; /* of TENSORS: elements of the call; of GROUP: 1 where the name is the job's own word, else 0 */
    uint32_t kind;  /* enum roll_name_kind */
    uint32_t size;  /* ranks of the group */
    uint32_t line;  /* of GROUP: the job's line that made it; 0 = unknown */
    uint16_t label_bytes, text_bytes, file_bytes, function_bytes;
    uint32_t reserved;
    /* label_bytes bytes of the communicator's label, text_bytes of the name, file_bytes, function_bytes; not terminated
     */
};

/* Call sites that the rank has, of which an excerpt has no definitions, because none of its records names them. */
struct roll_def_sites {
    uint32_t sites; /* number of entries, <= ROLL_SITES_MOST */
    uint32_t first; /* id of the first of these call sites; the others have the ids that follow */
    /* sites x struct roll_site_number */
};
/* As trace/site.h makes them. Both 0: nothing is said of this call site. */
struct roll_site_number {
    uint64_t whole;
    uint64_t near; /* 0 where the call site has no lines */
};
#define ROLL_SITES_MOST 254u /* as many fit into one definition */

/* A loaded object, so that addresses can be symbolised when the process is gone. */
struct roll_def_module {
    uint64_t start, end;     /* mapped addresses */
    uint64_t bias;           /* load bias: address in the file's own numbering = address - bias */
    uint32_t build_id_bytes; /* <= 20; 0 = none */
    uint8_t build_id[20];
    uint32_t path_bytes;
    uint32_t reserved;
    /* path_bytes bytes, not terminated */
};

struct roll_def_stream {
    uint64_t handle;
};

struct roll_def_thread {
    uint32_t tid;
    uint32_t name_bytes;
    /* name */
};

struct roll_def_layer {
    uint32_t name_bytes;
    uint32_t reserved;
    /* name */
};

/* A captured CUDA graph that holds NCCL calls; written when its capture ends. Its id is the `aux` of the captured
 * calls. */
struct roll_def_graph {
    uint64_t first_ticket, last_ticket; /* first and last captured call; other records may lie between them */
    uint32_t calls;                     /* captured NCCL calls */
    uint32_t parts;
    /* parts x struct roll_graph_part */
};

/* What the graph does on one communicator. */
struct roll_graph_part {
    uint64_t hash; /* hash of the collectives in order, which is the `count` of its launches; 0 = no collectives */
    uint32_t collectives; /* number captured on this communicator */
    uint16_t comm;        /* id of the communicator's definition */
    uint16_t p2p;         /* number of sends and receives, saturating */
};
#define ROLL_GRAPH_PARTS 64u

/* One decoded definition; pointers borrow the buffer it was decoded from. */
struct roll_def {
    enum roll_def_type type;
    uint32_t id;
    union {
        struct {
            struct roll_def_comm info;
            const char *label; /* not terminated; info.label_bytes */
        } comm;
        struct {
            uint32_t depth, lines;
            uint64_t pc[ROLL_CALLSITE_DEPTH];
            struct roll_callsite_line line[ROLL_CALLSITE_LINES];
        } callsite;
        struct {
            struct roll_def_module info;
            const char *path; /* not terminated; info.path_bytes */
        } module;
        struct roll_def_stream stream;
        struct {
            uint32_t tid;
            const char *name;
            uint32_t name_bytes;
        } thread;
        struct {
            const char *name;
            uint32_t name_bytes;
        } layer;
        struct {
            struct roll_def_graph info;
            struct roll_graph_part part[ROLL_GRAPH_PARTS];
        } graph;
        struct {
            const char *path; /* not terminated */
            uint32_t path_bytes;
        } source;
        struct {
            struct roll_def_line info;
            const char *function; /* not terminated; info.function_bytes */
        } line;
        struct {
            uint32_t lines;
            struct roll_callsite_line line[ROLL_CALLSITE_LINES];
        } stand;
        struct {
            const char *text; /* not terminated */
            uint32_t text_bytes;
        } text;
        struct {
            struct roll_def_name info;
            const char *label, *text, *file, *function; /* not terminated; info has their lengths */
        } name;
        struct {
            uint32_t sites, first;
            const uint8_t *number; /* not aligned: roll_def_site_number */
        } sites;
    };
};

/* The i-th number of a definition of type SITES, and the id of its call site, 1 to 65535. False: there is no such. */
bool roll_def_site_number(const struct roll_def *def, uint32_t i, uint32_t *id, struct roll_site_number *out);

/*
 * Appends one definition to the ring's area: `body` of body_bytes, then `tail` of tail_bytes (may be NULL and 0),
 * padded. Any thread; no malloc, no lock. 0, or LIMIT when the area is full (the loss is counted) or the entry too
 * large.
 */
int roll_def_append(struct roll_ring *ring, enum roll_def_type type, uint32_t id, const void *body, size_t body_bytes,
                    const void *tail, size_t tail_bytes);

/* Whether the area has room for what records can do without: call sites. The last quarter is kept for communicators,
 * streams, threads and graphs, because a program that compiles code as it runs never stops making call sites. */
bool roll_def_is_roomy(const struct roll_ring *ring);

/*
 * Decodes the entry at *offset of a definitions area of `bytes` bytes and advances *offset past it. Pure; borrows data.
 * Unknown types decode as an entry with only type and id, so that newer writers can be read.
 * 0; ROLL_E_NOTFOUND at the end of what has been written (or an unfinished entry: *offset stays);
 * SIZE, CORRUPT or SHORT for malformed bytes.
 */
int roll_def_decode(const void *data, size_t bytes, size_t *offset, struct roll_def *out);

#endif
