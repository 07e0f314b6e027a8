/*
 * first_life.c: first faults in the life of communicators and processes: who does not join, is refused, dies, stands or
 * is late; and what the tool itself does not see.
 */
#include "daemon/engine/expected.h"
#include "tests/daemon/engine/firsts.h"

#include <signal.h>

/* the life of a communicator */

static void joined(struct story *t)
{
    uint32_t rank[STORY_RANKS];
    EACH(r, &t->left)
    {
        rank[r] = r;
    }
    t->sim->site = 20;
    scene_creation(t->sim, rank, t->left.size - 1, t->left.size);
}

static void does_not_join(struct story *t, int kind)
{
    (void)kind;
    joined(t);
    story_pass(t, 8 * S_);
}

static void joins_after_all(struct story *t, int kind)
{
    (void)kind;
    struct sim *sim = t->sim;
    struct sim_rank *r = &sim->rank[LAST], *zero = &sim->rank[0];
    uint32_t c = sim->comms - 1;
    r->in_comm[c] = (int32_t)LAST;
    r->comm_id[c] = ++r->comms;
    sim->site = 20;
    struct roll_record *rec = sim_record(sim, LAST, ROLL_OP_COMM_INIT, c);
    rec->count = t->left.size;
    rec->peer = (int32_t)LAST;
    /* the definition comes before the record that uses it */
    struct sim_event record = r->event[r->events - 1], define = {.kind = SIM_DEFINE};
    for (size_t i = 0; i < zero->events; i++) {
        if (zero->event[i].kind == SIM_DEFINE && zero->event[i].def.type == ROLL_DEF_COMM) {
            define = zero->event[i];
        }
    }
    define.def.id = r->comm_id[c];
    define.def.comm.info.rank = (int32_t)LAST;
    r->event[r->events - 1] = define;
    (void)sim_record(sim, LAST, ROLL_OP_COMM_INIT, c);
    r->ticket--;
    r->event[r->events - 1] = record;
    EACH(k, &t->left)
    {
        if (k != LAST) {
            story_return(t, k);
        }
    }
    story_pass(t, S_);
}

/* kind 1: it logs the error and leaves. */
static void is_refused(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        if (r != LAST) {
            first_call(t, r, t->left.dp, AR, 512, 38);
            first_wait(t, r, true);
        }
    }
    t->sim->site = 38;
    scene_refused(t->sim, LAST, t->left.dp, 512, AT_ONCE);
    if (kind == 1) {
        sim_proc(t->sim, LAST, ROLL_PROC_FINISHED, SIM_EXIT(1));
    }
    story_pass(t, 8 * S_);
}

/* The odd rank's peers take the communicator down: their calls are over, and nobody has made the one that was
 * refused. */
static void waiters_abort(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        if (r != LAST) {
            sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.dp);
        }
    }
    story_pass(t, 2 * S_);
}

/* processes */

enum end { KILLED, FINISHED, STOPPED, BUSY, BLOCKED };

static void does_not_come(struct story *t, int kind)
{
    first_others_wait(t);
    if (kind == KILLED) {
        sim_proc(t->sim, LAST, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
    } else if (kind == FINISHED) {
        sim_proc(t->sim, LAST, ROLL_PROC_FINISHED, SIM_EXIT(0));
    } else if (kind == STOPPED) {
        sim_proc(t->sim, LAST, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
    } else if (kind == BLOCKED) {
        t->sim->site = 37;
        sim_stuck(t->sim, LAST)->stream = 9;
    }
    story_pass(t, 8 * S_);
}

static void lets_go(struct story *t, int kind)
{
    if (kind == STOPPED) {
        sim_proc(t->sim, LAST, ROLL_PROC_RUNNING, ROLL_EXIT_UNKNOWN);
    } else if (kind == BLOCKED) {
        story_return(t, LAST);
    }
    first_comes_after_all(t, 0);
}

/* The other ranks' watchdogs abort, and these ranks make new communicators without the odd one. */
static void survivors(struct story *t, int kind)
{
    (void)kind;
    struct crew rest = {.first = 0, .size = t->left.size - 1};
    EACH(r, &rest)
    {
        story_return(t, r);
        t->sim->site = 36;
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.dp);
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.ep);
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->world);
    }
    t->right = story_crew(t, 0, rest.size);
    story_pass(t, S_);
}

static void all_are_killed(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        first_call(t, r, t->left.dp, AR, 512, 20);
        first_wait(t, r, true);
        sim_proc(t->sim, r, ROLL_PROC_DEAD, SIM_SIGNAL(SIGTERM));
    }
    story_pass(t, 15 * S_);
}

/* All are in the call, and nobody comes back. */
static void is_stuck(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        first_call(t, r, t->left.dp, AR, 512, 5);
        t->sim->site = 6;
        sim_stuck(t->sim, r);
    }
    story_pass(t, 25 * S_);
}

/* The last rank is in a wait of its own, and nobody waits for it. */
static void stays_alone(struct story *t, int kind)
{
    (void)kind;
    t->sim->site = 6;
    sim_stuck(t->sim, LAST)->stream = 9;
    story_pass(t, 65 * S_);
}

static void returns_alone(struct story *t, int kind)
{
    (void)kind;
    story_return(t, LAST);
}

/* Steps of 100 ms; the last rank takes 40 ms longer. */
static void lags(struct story *t, int kind)
{
    (void)kind;
    for (uint32_t i = 0; i < 120; i++) {
        uint64_t leave = t->now, arrive = leave + 140 * MS, back = arrive + 2 * MS;
        t->step++;
        EACH(r, &t->left)
        {
            uint64_t own = arrive - (r == LAST ? 0 : 40 * MS);
            t->sim->rank[r].step = t->step;
            story_at(first_call(t, r, t->left.dp, AR, 512, 20), own, 5000);
            t->sim->site = 39;
            story_at(sim_sync(t->sim, r), own + 6000, back - own - 6000);
        }
        t->now = back - 2 * MS;
        story_pass(t, 2 * MS);
        t->now = back;
    }
}

/* the tool itself */

static void loses_records(struct story *t, int kind)
{
    (void)kind;
    sim_lose(t->sim, LAST, 3);
    story_pass(t, 2 * S_);
}

static void is_unseen(struct story *t, int kind)
{
    (void)kind;
    struct roll_engine_note note = {.pid = 77, .world_rank = -1, .host = "node0", .exe = "x", .reason = "its threads"};
    (void)roll_engine_note(t->e, &note);
    story_pass(t, S_);
}

static void is_not_heard(struct story *t, int kind)
{
    (void)kind;
    struct roll_engine_sight sight = {.heard = false};
    first_others_wait(t);
    story_feed(t);
    (void)roll_engine_sight(t->e, t->source[LAST], &sight);
    story_pass(t, 20 * S_);
}

static void is_heard_again(struct story *t, int kind)
{
    struct roll_engine_sight sight = {.heard = true};
    (void)roll_engine_sight(t->e, t->source[LAST], &sight);
    first_comes_after_all(t, kind);
}

/* What was rehearsed had one rank. */
static void is_not_rehearsed(struct story *t, int kind)
{
    static const struct roll_expected rehearsed = {.ranks = 1};
    (void)kind;
    roll_engine_expect(t->e, &rehearsed);
    story_pass(t, S_);
}

static const struct first at[] = {
    {ROW(INIT_MISSING), "joins late", SAME, does_not_join, 0, "suspected init-missing L", joins_after_all,
     "withdrawn init-missing", NULL},
    {ROW(INIT_MISSING), "never joins", APART, does_not_join, 0, "suspected init-missing -", NULL, NULL, NULL},
    {ROW(CALL_REFUSED), "made again late", SAME, is_refused, 0, "suspected call-refused L", first_comes_after_all,
     "withdrawn call-refused", NULL},
    {ROW(CALL_REFUSED), "not made again", APART, is_refused, 0, "suspected call-refused L", NULL, NULL, NULL},
    {ROW(CALL_REFUSED), "given up", APART, is_refused, 0, "suspected call-refused L", waiters_abort, NULL, NULL},
    {ROW(CALL_REFUSED), "it leaves", APART, is_refused, 1, "proven call-refused L", NULL, NULL, NULL},
    {ROW(RANK_DEAD), "others of the job", APART, does_not_come, KILLED, "proven rank-dead L", NULL, NULL, NULL},
    {ROW(RANK_DEAD), "the survivors", REST, does_not_come, KILLED, "proven rank-dead L", survivors, NULL, NULL},
    {ROW(RANK_DEAD), "all", ENDS, all_are_killed, 0, "note rank-dead -", NULL, NULL, "no rank is left"},
    {ROW(RANK_FINISHED), "others of the job", APART, does_not_come, FINISHED, "proven rank-finished L", NULL, NULL,
     NULL},
    {ROW(RANK_FINISHED), "the survivors", REST, does_not_come, FINISHED, "proven rank-finished L", survivors, NULL,
     NULL},
    {ROW(RANK_BUSY), "comes late", SAME, does_not_come, BUSY, "suspected rank-busy L", lets_go, "withdrawn rank-busy",
     NULL},
    {ROW(RANK_BLOCKED), "comes late", SAME, does_not_come, BLOCKED, "suspected rank-blocked L", lets_go,
     "withdrawn rank-blocked", NULL},
    {ROW(RANK_STOPPED), "is continued", SAME, does_not_come, STOPPED, "proven rank-stopped L", lets_go, NULL, NULL},
    {ROW(RANK_STOPPED), "others of the job", APART, does_not_come, STOPPED, "proven rank-stopped L", NULL, NULL, NULL},
    {ROW(COLLECTIVE_STUCK), "comes to its end", SAME, is_stuck, 0, "suspected collective-stuck -", first_all_return,
     "withdrawn collective-stuck", NULL},
    {ROW(RANK_STUCK), "comes back", SAME, stays_alone, 0, "suspected rank-stuck L", returns_alone,
     "withdrawn rank-stuck", NULL},
    {ROW(RANK_STUCK), "others of the job", APART, stays_alone, 0, "suspected rank-stuck L", NULL, NULL, NULL},
    {ROW(STRAGGLER), "slow", SAME, lags, 0, "note straggler L; suspected straggler L", NULL, NULL, NULL},
    {ROW(DATA_INCOMPLETE), "goes on", SAME, loses_records, 0, "note data-incomplete L", NULL, NULL, NULL},
    {ROW(ATTACHED_UNSEEN), "goes on", SAME, is_unseen, 0, "note attached-unseen -", NULL, NULL, NULL},
    {ROW(AGENT_SILENT), "is heard again", SAME, is_not_heard, 0, "note agent-silent -", is_heard_again, NULL, NULL},
    {ROW(REHEARSAL_LEFT), "goes on", SAME, is_not_rehearsed, 0, "note rehearsal-left -", NULL, NULL, NULL},
};
const struct first_table first_life = {at, sizeof(at) / sizeof(at[0])};
