/*
 * say.h: how verdicts are built, the memory of what has been said, and the words.
 */
#ifndef ROLL_DAEMON_ENGINE_SAY_SAY_H
#define ROLL_DAEMON_ENGINE_SAY_SAY_H

#include "daemon/engine/model/engine_state.h"

struct words;

/* say.c: verdicts, and what has been said */

/* Begins a verdict, which say_text ends; NULL: no memory. The engine owns it. */
struct roll_verdict *say(struct roll_engine *e, enum roll_verdict_code code, enum roll_certainty certainty);
/* A key of what identifies a cause: four numbers, hashed. */
uint64_t say_key(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
/* True the first time that it is called with this key. */
bool say_once(struct roll_engine *e, uint64_t key);
/* The key has been used, by say_once or say_remember, and not forgotten. */
bool say_is_said(const struct roll_engine *e, uint64_t key);
/* The verdict is about this communicator and this sequence number. */
void say_comm(struct roll_verdict *v, const struct comm *c, uint64_t seq);
/* Adds one side to the verdict: ranks that have done the same, with the call of one of them, which is source `index`.
 * rec NULL: they have done nothing. */
void say_side(struct roll_verdict *v, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
              const struct roll_record *rec);
/* Adds the ranks in the job that wait in the same call as s does, s included: one side of a verdict. */
void say_beside(const struct roll_engine *e, const struct source *s, const struct entry *at, struct roll_rankset *out);
/* Ends the verdict with its text. */
void say_text(struct roll_engine *e, struct roll_verdict *v, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * The life of a verdict. A detector that says something before all is known remembers its number under a key of its own
 * (say_key with what identifies the case: code or a tag, communicator, place), and later supersedes, confirms or
 * withdraws it.
 *
 *     v = say(e, ...);                       say_remember(e, key, v->number);
 *     v = say(e, ... PROVEN);                say_confirms(e, v, say_recall(e, key));
 *     say_withdraw(e, say_recall(e, key), "the call came after all");   say_forget(e, key);
 *
 * These three take any number and do nothing where it is 0, not that of a finding, or that of a finding that is retired
 * already. A proven verdict is never withdrawn: say_withdraw refuses. Each finding is retired at most once, by the
 * first of these calls.
 */

/* v says better what finding `number` said. */
void say_supersedes(struct roll_engine *e, struct roll_verdict *v, uint64_t number);
/* v says the same as finding `number`, and proves it. */
void say_confirms(struct roll_engine *e, struct roll_verdict *v, uint64_t number);
/* Says one note: "Verdict 3 (call-skipped) is withdrawn: <why>." True: the finding was withdrawn. why: a part of a
 * sentence, without its full stop. */
bool say_withdraw(struct roll_engine *e, uint64_t number, const char *why);
/* The class of mistake is open: the mistake may be of this code as well. The text has to say so as well: words_may_be.
 */
void say_may_be(struct roll_verdict *v, enum roll_verdict_code code);
/* The number is that of a finding that is not retired. */
bool say_stands(const struct roll_engine *e, uint64_t number);
/* What is kept of a finding; NULL: the number is not that of a finding. */
const struct told *say_told(const struct roll_engine *e, uint64_t number);
/* The verdict leaves the queue: keeps what a withdrawal of it would show. */
void say_keep(struct roll_engine *e, const struct roll_verdict *v);
/* Keeps the number of a verdict under a key. */
void say_remember(struct roll_engine *e, uint64_t key, uint64_t number);
/* The number that was kept under a key; 0 = there is none. */
uint64_t say_recall(const struct roll_engine *e, uint64_t key);
/* Forgets what was kept under a key, and say_once is true for it again. */
void say_forget(struct roll_engine *e, uint64_t key);

/* explain.c: words */

/* A text that grows. What has no room any more is left out. */
struct words {
    char text[4096];
    size_t used;
};
void words_add(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void words_call(struct words *w, const struct roll_record *rec);   /* "AllReduce of 1024 float32 (sum)" */
void words_ranks(struct words *w, const struct roll_rankset *set); /* "rank 3", "ranks 0-2,5" */
void words_wait(struct words *w, const struct roll_rankset *set);  /* "rank 3 waits", "ranks 0-2 wait" */
void words_place(struct words *w, uint32_t step, uint32_t microbatch, uint32_t layer); /* "MoE layer 3, step 17" */
void words_exit(struct words *w, int32_t status);                                      /* "by signal 9 (Killed)" */
/* " The calls known so far fit call-skipped and op-mismatch as well." Adds nothing where the class is certain. */
void words_may_be(struct words *w, const struct roll_verdict *v);
/* The command that switches the remedy on, where the policy is to advise; what it does stands beside the text. */
void words_remedy(struct words *w, const struct roll_engine *e, uint32_t remedy, uint32_t layer);

/* name.c: what communicators are called */

/* The one name of a communicator: "communicator ep (8 ranks)", "group mesh_dp (8 ranks)", "the default group (8
 * ranks)"; with " of ranks 0-7" where others have that name; without a name "the communicator of every 8th rank from 3
 * (4 ranks)", "the 2nd communicator of ranks 0-7 made at train.py:91 (8 ranks)". */
void words_comm(struct words *w, const struct comm *c);
/* The same for a cell of a table: "ep", "mesh_dp", "default group"; without a name "every 8th rank from 3". */
void words_comm_short(struct words *w, const struct comm *c, const struct roll_rankset *members);
/* The distance between ranks of a set that follow each other; 0: they have no common one, or there are not two. */
uint32_t members_stride(const struct roll_rankset *set);
/* A number that is the same for communicators that are one thing of the program many times: of one size, with the same
 * distances between their members, the same name where the job gave one, and made at one line. */
uint64_t comm_family(const struct comm *c, const struct roll_rankset *members);
/* The job has given it a name. */
bool comm_is_named(const struct comm *c);
/* "made by CommSplit of communicator world (16 ranks), color 1"; nothing where that is not known. */
void words_comm_made(struct words *w, const struct comm *c);
/* The job's line that made it: "train.py:91 main"; nothing where that is not known. */
void words_comm_place(struct words *w, const struct comm *c);
/* A call with its place, by which it is told from calls like it: ", #16 on communicator world (4 ranks)" behind it.
 * Without, where the communicator is not known. */
void words_call_at(struct words *w, const struct source *s, const struct roll_record *rec);
/* The place alone. */
void words_number(struct words *w, const struct source *s, const struct roll_record *rec);

#endif
