/*
 * dump.h: what another tool has kept of a job, as input of the engine.
 *
 * A reader (flight.c for PyTorch's Flight Recorder) turns one file, which is what one rank has kept, into a struct
 * roll_dump: the rank's groups, its calls on them in their order, and where in the program they stand. It decides
 * nothing. A set (dumps.c) sorts such dumps into jobs and gives each of them to a feed, as frames, from where on
 * everything goes as with a trace of our own: the engine does not know other tools.
 *
 * What such a source says less than a ring of ours, and how that is told to the engine:
 *   a window      a rank has kept its newest calls only. Where a member comes in is told by roll_engine_place, so that
 *                 calls before the window count as made, whatever they were;
 *   no host       nothing says what the host of a rank does, so no call is "inside"; roll_engine_snapshot makes the
 *                 engine say no more than that the rank's calls end there. All that rests on it is suspected;
 *   no times      how long the job has stood is told by the time at which the file was written (`written_ns`): so much
 *                 time passes for the engine behind the last call. A job that runs on has no rank that is silent;
 *   no argument   an argument that the tool does not keep (a root, a reduction, the parts of an all-to-all) is not
 *                 compared: redop and peer are NONE, and ROLL_FLAG_UNSIZED leaves the amount out.
 *
 * To add a tool: a reader that fills in struct roll_dump, and its row in the table of dumps.c.
 * One thread per dump and per set.
 */
#ifndef ROLL_DAEMON_DUMPS_DUMP_H
#define ROLL_DAEMON_DUMPS_DUMP_H

#include "daemon/dumps/ranks.h"
#include "daemon/feed/feed.h"
#include "trace/def.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_DUMP_RANK_UNKNOWN (-1)
#define ROLL_DUMP_NO_NUMBER    UINT32_MAX
#define ROLL_DUMP_RANKS_MAX    (1u << 20)

/* A frame of the program, with its texts in the dump's `text`. */
struct roll_dump_line {
    uint32_t file, function; /* offsets in the text */
    uint32_t line;
    bool library; /* the frame is one of a library */
};

/* A place of the program: frames, innermost first. */
struct roll_dump_site {
    uint32_t lines;
    uint32_t line[ROLL_CALLSITE_LINES];   /* numbers of roll_dump_line */
    uint32_t folded[ROLL_CALLSITE_LINES]; /* frames of libraries that were left out before each */
};

/* A group of ranks: a communicator. */
struct roll_dump_group {
    char name[ROLL_NAME_BYTES];  /* what tells the group from others of the job */
    char label[ROLL_NAME_BYTES]; /* what people call it; "" = its name */
    struct roll_ranks members;   /* by their place, as ranks in the job; borrowed from the reader */
    uint64_t key;                /* of name and members, the same in the dump of each member; never 0 */
    int32_t self;                /* the place of the rank that wrote the dump; -1: it is none of them */
    /* How far the rank has come here by the tool's own count, which goes on behind and before the window. NO_NUMBER:
     * not known. Of the newest call the tool may not say whether it was a collective or a message. */
    uint32_t issued;   /* its newest collective, as far as the window shows it; 0 = none */
    uint32_t enqueued; /* its newest call, collective or message; 0 = none */
    uint32_t over;     /* the newest of those that its device has completed, collective or message; 0 = none */
};

/* A call. Collectives bear the tool's own number on the group, messages their number on the group. */
struct roll_dump_call {
    struct roll_record rec; /* enter_ns: wall clock; seq, count, peer (place in the group), op, dtype, redop, flags */
    uint32_t group;         /* the number of its group in the dump */
    uint32_t site;          /* 1 + the number of its place; 0 = not known */
    uint32_t unit;          /* calls issued as one: the same number, not 0, in a row */
    uint32_t parts;         /* collectives that were issued together, as one call: further ones */
    bool ended;             /* the end of such a call was seen */
    bool complete;          /* on the device */
};

/* A collective under a name that is not known here. */
struct roll_dump_unknown {
    struct roll_dump_call call; /* with its number, and without an operation */
    size_t before;              /* it stands before the call of this number in the dump */
    uint32_t name;              /* offset in the text */
};

struct roll_dump {
    char tool[48];       /* "Flight Recorder 2.10" */
    char path[256];      /* for messages; cut at its front where it is longer */
    uint64_t folder;     /* the same for files of one directory */
    int32_t rank;        /* ROLL_DUMP_RANK_UNKNOWN: the file does not say, and neither does its name */
    uint32_t world;      /* ranks of the job; 0 = not known */
    uint64_t written_ns; /* wall clock at which the file was written; 0 = not known */
    bool whole;          /* the window holds all calls from the first one on */
    struct roll_dump_group *group;
    size_t groups, group_room;
    struct roll_dump_call *call;
    size_t calls, call_room;
    struct roll_dump_site *site;
    size_t sites, site_room;
    struct roll_dump_line *line;
    size_t lines, line_room;
    char *text;
    size_t text_used, text_room;
    struct roll_dump_unknown *unknown;
    size_t unknowns, unknown_room;
    size_t odd; /* entries that could not be used */
};

/* A new dump, or NULL without memory. roll_dump_destroy takes it and clears. */
struct roll_dump *roll_dump_new(void);
void roll_dump_destroy(struct roll_dump **dump);

/*
 * Whether these first bytes of a file may be those of a dump that is read here. A pickle says so by its first bytes;
 * for JSON the first character must do.
 */
bool roll_dump_is_likely(const void *data, size_t bytes);

/* The rank that a file's name ends with, before its ending if it has one ("rank_3", "rank_3.json"); UNKNOWN: none.
 * *begin, *end: where its digits stand in the path. */
int32_t roll_dump_rank_in(const char *path, size_t *begin, size_t *end);

/* What the files that are read one after the other share: memory, and the lists of ranks, which their dumps borrow. */
typedef struct roll_dump_reader roll_dump_reader_t;
roll_dump_reader_t *roll_dump_reader_new(void);
/* Behind all dumps that it has read. */
void roll_dump_reader_destroy(roll_dump_reader_t **reader);
/* Files larger than this are refused: a rank's dump of a million calls is smaller. */
#define ROLL_DUMP_FILE_MOST (256u << 20)
/*
 * Reads the bytes of a file of any kind that is known here; name: the file's, for the rank. `why` says what is wrong in
 * words, where something is. *out: returned owned; its time is for whoever knows the file. NOMEM, SHORT, CORRUPT,
 * UNSUPPORTED (a pickle that would run code), MAGIC (JSON that is no dump), LIMIT. Memory: some 64 bytes for each byte
 * of the file, and at most 1 GiB. Pure.
 */
int roll_dump_parse(roll_dump_reader_t *reader, const char *name, const void *data, size_t bytes,
                    struct roll_dump **out, char *why, size_t size);

/* The dumps of one or several jobs. */
typedef struct roll_dumps roll_dumps_t;
/* What is told about a set as a whole, one line each: ranks of which there is no dump, several jobs, a job that ran on
 * while its dumps were written. */
typedef void roll_dumps_say(void *ctx, const char *line);

roll_dumps_t *roll_dumps_new(void);
void roll_dumps_destroy(roll_dumps_t **dumps);
/* Adds a dump, which is taken. A rank that is there already begins another job. 0, NOMEM, LIMIT. */
int roll_dumps_add(roll_dumps_t *dumps, struct roll_dump *dump);
/* The jobs, from 0; known when all dumps have been added. The name is that of the folder, and borrowed. */
size_t roll_dumps_jobs(const roll_dumps_t *dumps);
const char *roll_dumps_job(const roll_dumps_t *dumps, size_t job);
/* Whether the dumps of a job hold entries, and none that is usable: then nothing of the job can be judged. */
bool roll_dumps_unusable(const roll_dumps_t *dumps, size_t job);
/* Gives a job to a feed of its own: everything but the feed's end. Lines about it go to `say`. 0, NOMEM, LIMIT. */
int roll_dumps_feed(roll_dumps_t *dumps, size_t job, roll_feed_t *feed, roll_dumps_say *say, void *ctx);

#endif
