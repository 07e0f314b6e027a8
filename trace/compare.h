/*
 * compare.h: the page on which the ranks of one node compare what they call, before they call it.
 *
 * One file per (job, restart, node): a table of cache lines, one per (communicator, sequence number). The first rank
 * that comes to a place claims its line with one compare-and-swap that publishes the signature at the same time; the
 * others compare one word. The publisher's call stands behind the word, with a checksum that is written last; it is
 * read only when the words differ. A writer that was killed, or overtaken, leaves a checksum that does not fit: then
 * nothing is known, and nothing is said. The checksum guards against accidents and is no signature: whoever may write
 * the page may publish.
 *
 * Rejected: a claim first and the signature later (a rank that comes in between would have to wait, or to miss the
 * difference); a lock per line (a killed holder would hold it for ever); a line per rank (eight lines to read).
 *
 * The page is never cleared. A line belongs to (communicator's key, sequence number), and keys are hashes of random
 * ids, so lines that an earlier job of the same name has left match nothing. Where ids are not random, a line says when
 * it was written, and a line that is older than the communicator is ignored.
 */
#ifndef ROLL_TRACE_COMPARE_H
#define ROLL_TRACE_COMPARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_COMPARE_MAGIC   "ROLLCOMP"
#define ROLL_COMPARE_VERSION 2u
#define ROLL_COMPARE_CELLS   16384u
#define ROLL_COMPARE_WAYS    2u /* lines that one place may use */
#define ROLL_COMPARE_HEADER  4096u
#define ROLL_COMPARE_BYTES   (ROLL_COMPARE_HEADER + ROLL_COMPARE_CELLS * 64u)

/* What a rank has called, as it is published. */
struct roll_compare_call {
    uint64_t key;      /*  0: of the communicator */
    uint64_t count;    /*  8 */
    uint32_t seq;      /* 16 */
    uint32_t pid;      /* 20 */
    int32_t peer;      /* 24: root */
    int32_t world;     /* 28: world rank; -1 unknown */
    int32_t rank;      /* 32: on the communicator */
    uint8_t op;        /* 36 */
    uint8_t dtype;     /* 37 */
    uint8_t redop;     /* 38 */
    uint8_t flags;     /* 39: enum roll_record_flag */
    uint16_t before;   /* 40: calls of its group on this communicator that come before it in the order of signatures */
    uint16_t members;  /* 42: calls of its group on this communicator; 1 = a call of its own */
    uint16_t callsite; /* 44: in the publisher's ring */
    uint8_t messages;  /* 46: 1: the publisher has sent or received on the communicator */
    uint8_t pad0;      /* 47 */
};

/* The moment of a line: the monotonic clock in units of 2^24 ns. Moments are compared by their difference, because they
 * wrap after more than two years. */
static inline uint32_t roll_compare_moment(uint64_t ns)
{
    return (uint32_t)(ns >> 24);
}

struct roll_compare_cell {
    _Atomic uint64_t word;         /*  0: upper half the place, lower half the signature; 0 = free */
    _Atomic uint32_t check;        /*  8: checksum of all other members, written last */
    uint32_t moment;               /* 12: when the line was published; the older line of a set makes room */
    struct roll_compare_call call; /* 16 */
};

struct roll_compare {
    char magic[8];           /*  0 */
    uint16_t version;        /*  8 */
    uint16_t oldest;         /* 10 */
    uint32_t bytes;          /* 12 */
    uint32_t cells;          /* 16 */
    uint32_t cell_bytes;     /* 20 */
    uint8_t pad0[4096 - 24]; /* 24 */
    struct roll_compare_cell cell[ROLL_COMPARE_CELLS];
};

_Static_assert(sizeof(struct roll_compare_cell) == 64, "a line of the table is a cache line");
_Static_assert(sizeof(struct roll_compare) == ROLL_COMPARE_BYTES, "the page has no padding of its own");

/* The name of the page in a ring directory: DIR/<job>.<restart>.<node>.cmp; node: eight digits of the host's boot id,
 * for directories that several nodes share. Reads the boot id from /proc. 0 or ROLL_E_SIZE. */
int roll_compare_path(char *out, size_t size, const char *dir, const char *job, uint32_t restart);

/*
 * Opens the page, made first (0600, fully allocated, atomically: the first maker wins) where it does not exist. *out is
 * a mapping that roll_compare_close unmaps. No malloc. Any thread. Errors: DENIED, IO, SPACE, LIMIT, SHORT, MAGIC,
 * VERSION, SIZE.
 */
int roll_compare_open(const char *path, struct roll_compare **out);
void roll_compare_close(struct roll_compare **page);

/* Checks bytes that should be a page; pure. Errors: SHORT, MAGIC, VERSION, SIZE. */
int roll_compare_check(const void *data, size_t bytes);

enum roll_compare_answer {
    ROLL_COMPARE_FIRST, /* nobody had been here: the call is published now */
    ROLL_COMPARE_SAME,  /* the same call was published before */
    ROLL_COMPARE_OTHER, /* another call was published: ask roll_compare_read */
    ROLL_COMPARE_LATE,  /* the line belongs to a later call by now: nothing is known */
};

/* The word of a call whose signature is `signature` (trace/signature.h). Never 0. Pure. */
uint64_t roll_compare_word(uint64_t key, uint32_t seq, uint64_t signature);

/*
 * Publishes the call, or compares it with what is published. Borrows all; *other is the line that differs (OTHER only).
 * Lock-free: at most a few attempts, no wait, no system call. Any thread, any process.
 */
enum roll_compare_answer roll_compare_call(struct roll_compare *page, const struct roll_compare_call *call,
                                           uint32_t moment, uint64_t word, struct roll_compare_cell **other);

enum roll_compare_seen {
    ROLL_COMPARE_WHOLE,   /* *out and *moment are what was published at this place */
    ROLL_COMPARE_FOREIGN, /* the line is whole, but belongs to another place, or is free */
    ROLL_COMPARE_TORN,    /* the line is being written, or its writer was killed or overtaken: nothing is known */
};

/* Copies the call that is published in a line. Pure but for the copy; no wait. */
enum roll_compare_seen roll_compare_read(const struct roll_compare_cell *cell, uint64_t key, uint32_t seq,
                                         struct roll_compare_call *out, uint32_t *moment);

/* The line of a place, NULL when there is none. */
struct roll_compare_cell *roll_compare_find(struct roll_compare *page, uint64_t key, uint32_t seq);

/* Frees the line of a place if this process's rank published it: that call was not made after all. */
void roll_compare_withdraw(struct roll_compare *page, uint64_t key, uint32_t seq, uint32_t pid, int32_t rank);

/* Frees a line with which no call can be compared, if it still holds *seen and `moment`. */
void roll_compare_drop(struct roll_compare_cell *cell, const struct roll_compare_call *seen, uint32_t moment);

/* Fetches the lines of a place ahead of its use. */
void roll_compare_prefetch(const struct roll_compare *page, uint64_t key, uint32_t seq);

#endif
