/*
 * expect.h: what a rehearsal expects of a job (daemon/engine/expected.h): made from the calls of a job, kept in a file,
 * read again, compared with that of another rehearsal. One thread; no function keeps what it borrows.
 */
#ifndef ROLL_DAEMON_EXPECT_EXPECT_H
#define ROLL_DAEMON_EXPECT_EXPECT_H

#include "daemon/base/map.h"
#include "daemon/engine/expected.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* building (build.c). Each returns 0, NOMEM or LIMIT. */

struct roll_expect_raw {
    uint64_t check; /* another hash of its calls than that of the map */
    size_t calls;
    uint32_t sequence;
};

/* An expectation under construction; zero-initialised but for x, which roll_expect_begin makes. */
struct roll_expect_build {
    struct roll_expected *x; /* owned */
    size_t call_room, item_room, part_room, sequence_room, comm_room, member_room;
    struct roll_map call_at, sequence_at;
    struct roll_expect_raw *raw; /* sequences as they came, so that what repeats in one is looked for once */
    size_t raws, raw_room;
    struct roll_map raw_at;
};

int roll_expect_begin(struct roll_expect_build *b, uint32_t ranks);
/* The number of a call; equal calls have one. */
int roll_expect_call(struct roll_expect_build *b, const struct roll_expected_call *call, uint32_t *id);
/* The number of the sequence of these calls, in which what repeats has been found; equal sequences have one. */
int roll_expect_sequence(struct roll_expect_build *b, const uint32_t *call, size_t calls, uint32_t *id);
/* The same, of parts that are known; `part` counts its calls from the beginning of `call`. */
int roll_expect_parts(struct roll_expect_build *b, const uint32_t *call, const struct roll_expected_part *part,
                      size_t parts, uint32_t *id);
/* Adds a communicator with comm->size members, by their rank on it. Copies its texts. ARG: no rank of the job, or no
 * sequence. */
int roll_expect_comm(struct roll_expect_build *b, const struct roll_expected_comm *comm,
                     const struct roll_expected_member *member);
/* Ends the building and gives away what was built; after an error it is freed. */
int roll_expect_end(struct roll_expect_build *b, struct roll_expected **out);
/* Frees what was built so far, and everything else of it. */
void roll_expect_drop(struct roll_expect_build *b);
void roll_expected_destroy(struct roll_expected **expected);

/* repeats (repeat.c) */

/*
 * Cuts a sequence into parts that repeat and parts that do not: the longest repetition first, the shortest unit of it,
 * then the same before and behind it. *part: owned by the caller, counted from the beginning. At most 64 repetitions
 * are found, and a bounded effort is made. 0, NOMEM.
 */
int roll_repeats_find(const uint32_t *id, size_t n, struct roll_expected_part **part, size_t *parts);

/*
 * The same of calls, which have their numbers in `call` and stand in the table `calls`. Calls of other communicators
 * are other calls: `comm` (NULL: there is one). Where the amounts follow the data, repetitions that are equal but for
 * them are taken; then the calls of a part are not the same each time round. Where the same calls come again to the
 * letter, they are taken, though less is covered by that. 0, NOMEM, LIMIT.
 */
int roll_repeats_learn(const struct roll_expected_call *calls, const uint32_t *call, const uint16_t *comm, size_t n,
                       struct roll_expected_part **part, size_t *parts);

/* the file (write.c, read.c): docs/REHEARSE.md describes it */

#define ROLL_EXPECTED_SCHEMA "rollcall.expected/1"
#define ROLL_EXPECTED_BYTES  (16u << 20) /* a file is no larger */

/* Writes the file, whole or not at all. 0; NOMEM; SIZE: it would be larger than ROLL_EXPECTED_BYTES; IO, and errno says
 * why. */
int roll_expected_write(const struct roll_expected *expected, const char *path);
/* Reads a file. *out: owned. 0, or an error, and then `why` is the rest of a sentence that begins with the name of the
 * file: ": it is no ..." */
int roll_expected_read(const char *path, struct roll_expected **out, char *why, size_t size);
/* The same of a text, for tests. */
int roll_expected_parse(const char *text, size_t bytes, struct roll_expected **out, char *why, size_t size);

/* comparing (differ.c) */

/*
 * What has changed from `old` to `now`, as an object (owned; NULL: no memory): `count`, and `changes`, an array of
 * objects with `what` ("communicator-new", "communicator-gone", "communicator-resized", "calls", "order", "memory",
 * "ranks"), `ranks`, `communicator` and a line of `text` for people; docs/REHEARSE.md.
 */
json_t *roll_expected_differ(const struct roll_expected *old, const struct roll_expected *now);

/*
 * Whether two sequences are those of one job, with other numbers of steps (rounds.c): the same calls before, between
 * and behind what repeats, and each repetition made any number of times. The last time round may end early: of a job
 * that evaluates each third step, seven steps are two rounds and a third of one. An effort is bounded: false then.
 */
bool roll_expected_same_rounds(const struct roll_expected *old, uint32_t a, const struct roll_expected *now,
                               uint32_t b);

/* How often and with how many bytes a sequence makes an operation: in the parts that do not repeat, and once through
 * those that do. A count that differs from time to time has no bytes. */
struct roll_expected_sum {
    uint64_t once_calls, once_bytes, each_calls, each_bytes;
    bool once_vary, each_vary; /* some of these calls have no bytes */
};
void roll_expected_sums(const struct roll_expected *expected, uint32_t sequence,
                        struct roll_expected_sum sums[ROLL_OP_LIMIT]);

#endif
