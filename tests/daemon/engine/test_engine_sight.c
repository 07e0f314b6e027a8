/*
 * test_engine_sight.c: what the engine says when its eyes are late: agents that fall silent, records and ticks that
 * come late, ranks that are starved of CPUs.
 *
 * A healthy job is played on a clock of its own: the ranks go through rounds of collectives on the world and on a group
 * per node, and compute for as long as they are let. Between them and the engine stand agents (one per node of two
 * ranks) that look late, fall silent and come back, and a root that stops the clock for a silence and says after ten
 * seconds who is not heard, as daemon/root/root.c does. Nothing may be found. Each has a sick twin: the last rank does
 * not come, and is told when the eyes are good again.
 */
#include "tests/daemon/engine/sim.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS        1000000ull
#define NODE      2u /* ranks of one */
#define NODES_MAX 32u
#define ROUNDS    40u
#define QUIET     (120 * S_) /* longer than any rank computes, silences and starvation included */
#define FROZEN    (10 * S_)  /* the root waits so long for a silent agent before it lets time pass */

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* What stands between the job and the engine. */
struct eyes {
    uint64_t look_ns;   /* between two looks of an agent */
    uint64_t late_ns;   /* a look may come so much later */
    uint64_t tick_ns;   /* between two ticks, and so much later */
    uint64_t silent_ns; /* now and then the agent of one node is silent for so long */
    uint32_t starved;   /* permille: the ranks of one node are, at a time */
    bool tells;         /* the agents say so */
};

struct playing {
    struct sim *sim;
    const struct eyes *eyes;
    roll_engine_t *e;
    uint32_t *source;
    size_t *made, *fed; /* events of each rank: entered by it, given to the engine */
    size_t *open;       /* the rank's wait that was given as entered, plus one */
    uint64_t *due;      /* when the rank makes its next */
    uint64_t look[NODES_MAX], mute[NODES_MAX];
    bool unheard[NODES_MAX];
    uint64_t now, tick, frozen, random;
};

static uint64_t chance(struct playing *p, uint64_t below)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return below ? (p->random >> 33) % below : 0;
}

static uint32_t nodes(const struct sim *sim)
{
    return (sim->ranks + NODE - 1) / NODE;
}

/* Which node is starved now: they take turns of 90 s. */
static bool is_starved(const struct playing *p, uint32_t node)
{
    return p->eyes->starved > 0 && p->now / (90 * S_) % nodes(p->sim) == node;
}

static bool is_wait(const struct playing *p, uint32_t rank, size_t i)
{
    const struct sim_event *event = &p->sim->rank[rank].event[i];
    return event->kind == SIM_RECORD && event->rec.op == ROLL_OP_STREAM_SYNC;
}

/* Is the wait that is event i over? All ranks make the same calls: when everybody has come as far. */
static bool is_over(const struct playing *p, size_t i)
{
    for (uint32_t r = 0; r < p->sim->ranks; r++) {
        if (p->made[r] < i) {
            return false;
        }
    }
    return true;
}

static void job_goes_on(struct playing *p, uint64_t step)
{
    for (uint32_t r = 0; r < p->sim->ranks; r++) {
        /* What is left of its computing is done slowly where it cannot run. */
        p->due[r] += is_starved(p, r / NODE) ? step * p->eyes->starved / 1000 : 0;
        while (p->made[r] < p->sim->rank[r].events) {
            size_t i = p->made[r];
            if (i > 0 && is_wait(p, r, i - 1)) {
                if (!is_over(p, i - 1)) {
                    p->due[r] = p->now + 200 * MS + chance(p, 3000) * MS; /* when it comes back, it computes */
                    break;
                }
                if (p->due[r] > p->now) {
                    break;
                }
            }
            p->made[r]++;
        }
    }
}

/* Event i of the rank as it is now, given to the engine. */
static void give(struct playing *p, uint32_t r, size_t i)
{
    const struct sim_event *event = &p->sim->rank[r].event[i];
    struct roll_record rec = event->rec;
    if (event->kind == SIM_DEFINE) {
        assert_int_equal(roll_engine_define(p->e, p->source[r], &event->def), 0);
        return;
    }
    bool wait = is_wait(p, r, i), over = !wait || is_over(p, i);
    if (wait && (!over || p->open[r] == i + 1)) {
        rec.seal = roll_seal(roll_seal_ticket(rec.seal), over ? ROLL_STATE_RETURNED : ROLL_STATE_ENTERED);
        p->open[r] = over ? 0 : i + 1;
    }
    assert_int_equal(roll_engine_feed(p->e, p->source[r], &rec, 1), 0);
}

static void look(struct playing *p, uint32_t node)
{
    for (uint32_t r = node * NODE; r < (node + 1) * NODE && r < p->sim->ranks; r++) {
        if (p->open[r] != 0 && is_over(p, p->open[r] - 1)) {
            give(p, r, p->open[r] - 1);
        }
        for (; p->fed[r] < p->made[r]; p->fed[r]++) {
            give(p, r, p->fed[r]);
        }
        if (p->eyes->tells || p->unheard[node]) {
            uint32_t starved = p->eyes->tells && is_starved(p, node) ? p->eyes->starved : 0;
            struct roll_engine_sight sight = {.heard = true, .starved = starved};
            assert_int_equal(roll_engine_sight(p->e, p->source[r], &sight), 0);
        }
    }
    p->unheard[node] = false;
}

static void agents_look(struct playing *p)
{
    for (uint32_t n = 0; n < nodes(p->sim); n++) {
        if (p->now < p->look[n]) {
            continue;
        }
        look(p, n);
        bool mute = p->eyes->silent_ns > 0 && chance(p, 400) == 0;
        p->mute[n] = p->now;
        p->look[n] = p->now + p->eyes->look_ns + chance(p, p->eyes->late_ns + 1) + (mute ? p->eyes->silent_ns : 0);
    }
}

/* As the root does: time stands still for an agent that is not heard, and after FROZEN its ranks are. */
static void root_ticks(struct playing *p)
{
    bool silent = false;
    for (uint32_t n = 0; n < nodes(p->sim); n++) {
        uint64_t age = p->now - p->mute[n];
        silent = silent || (age > 250 * MS && !p->unheard[n]);
        if (age > FROZEN && !p->unheard[n]) {
            p->unheard[n] = true;
            for (uint32_t r = n * NODE; r < (n + 1) * NODE && r < p->sim->ranks; r++) {
                struct roll_engine_sight sight = {.heard = false};
                assert_int_equal(roll_engine_sight(p->e, p->source[r], &sight), 0);
            }
        }
    }
    if (p->now >= p->tick) {
        p->tick = p->now + p->eyes->tick_ns / 2 + chance(p, p->eyes->tick_ns);
        p->frozen += silent ? p->eyes->tick_ns : 0;
        if (!silent) {
            assert_int_equal(roll_engine_tick(p->e, p->now - p->frozen), 0);
        }
    }
}

/* Findings, "code culprits" joined; notes too when asked. Owned. */
static char *findings_of(roll_engine_t *e, bool notes)
{
    char *all = calloc(1, 65536);
    assert_non_null(all);
    const struct roll_verdict *v;
    while ((v = roll_engine_next(e)) != NULL) {
        char ranks[256];
        if (notes || v->certainty != ROLL_NOTE) {
            roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
            size_t used = strlen(all);
            snprintf(all + used, 65536 - used, "%s%s %s %s", used ? "; " : "", roll_certainty_name(v->certainty),
                     roll_verdict_name(v->code), ranks[0] ? ranks : "-");
        }
    }
    return all;
}

static roll_engine_t *engine_of(struct sim *sim, uint32_t *source)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    assert_non_null(e);
    roll_engine_tick(e, 1000 * S_);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        char host[32];
        snprintf(host, sizeof(host), "node%u", r / NODE);
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)sim->ranks,
                                        .pid = 1000 + r,
                                        .host = host,
                                        .exe = "train"};
        assert_int_equal(roll_engine_open(e, &info, &source[r]), 0);
    }
    return e;
}

static char *play(struct sim *sim, const struct eyes *eyes, uint64_t seed, uint64_t after_ns)
{
    struct playing p = {.sim = sim, .eyes = eyes, .random = seed * 7919 + 1, .now = 1000 * S_};
    p.source = calloc(sim->ranks, sizeof(*p.source));
    p.made = calloc(sim->ranks, sizeof(*p.made));
    p.fed = calloc(sim->ranks, sizeof(*p.fed));
    p.due = calloc(sim->ranks, sizeof(*p.due));
    p.open = calloc(sim->ranks, sizeof(*p.open));
    assert_true(p.source && p.made && p.fed && p.due && p.open);
    p.e = engine_of(sim, p.source);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        p.due[r] = p.now;
    }
    for (uint32_t n = 0; n < nodes(sim); n++) {
        p.look[n] = p.mute[n] = p.now;
    }
    uint64_t step = 20 * MS, over = 0;
    for (size_t fed = 0, before = 0; over < after_ns; before = fed) {
        p.now += step;
        job_goes_on(&p, step);
        agents_look(&p);
        root_ticks(&p);
        fed = 0;
        for (uint32_t r = 0; r < sim->ranks; r++) {
            fed += p.fed[r];
        }
        over = fed == before ? over + step : 0;
    }
    char *got = findings_of(p.e, false);
    roll_engine_destroy(&p.e);
    free(p.source);
    free(p.made);
    free(p.fed);
    free(p.due);
    free(p.open);
    return got;
}

/*
 * Rounds of: two collectives on the world, one on the node's own group, a wait for all of them; then up to 3.2 s of
 * computing, longer where the rank is starved.
 */
static struct sim *job_of(uint32_t ranks, uint32_t rounds)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim), group[NODES_MAX];
    for (uint32_t n = 0; n < nodes(sim); n++) {
        uint32_t member[NODE], size = 0;
        for (uint32_t r = n * NODE; r < (n + 1) * NODE && r < ranks; r++) {
            member[size++] = r;
        }
        group[n] = sim_comm(sim, "node", member, size);
    }
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t r = 0; r < ranks; r++) {
            sim_call(sim, r, w, ROLL_OP_ALLREDUCE, 512);
            sim_call(sim, r, w, ROLL_OP_ALLGATHER, 64);
            sim_call(sim, r, group[r / NODE], ROLL_OP_ALLREDUCE, 32);
            sim_sync(sim, r);
        }
    }
    return sim;
}

static const struct eyes mixes[] = {
    {.look_ns = 20 * MS, .tick_ns = 20 * MS},
    {.look_ns = 20 * MS, .late_ns = 200 * MS, .tick_ns = 400 * MS},
    {.look_ns = 20 * MS, .tick_ns = 20 * MS, .silent_ns = 3 * S_},
    {.look_ns = 20 * MS, .late_ns = 100 * MS, .tick_ns = 100 * MS, .silent_ns = 20 * S_},
    {.look_ns = 20 * MS, .tick_ns = 20 * MS, .silent_ns = 60 * S_},
    {.look_ns = 20 * MS, .tick_ns = 20 * MS, .starved = 960, .tells = true},
    {.look_ns = 20 * MS, .late_ns = 200 * MS, .tick_ns = 900 * MS, .silent_ns = 20 * S_, .starved = 900, .tells = true},
    {.look_ns = 200 * MS, .late_ns = 3 * S_, .tick_ns = 20 * MS, .silent_ns = 20 * S_, .starved = 960, .tells = true},
};
#define MIXES (sizeof(mixes) / sizeof(mixes[0]))

static void test_healthy_job_is_never_suspected_through_late_eyes(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t m = 0; m < MIXES; m++) {
            for (uint64_t seed = 0; seed < (sizes[i] > 8 ? 1 : 6); seed++) {
                struct sim *sim = job_of(sizes[i], sizes[i] > 8 ? ROUNDS / 4 : ROUNDS);
                char *got = play(sim, &mixes[m], seed, QUIET);
                if (got[0] != '\0') {
                    printf("%u ranks, mix %zu, seed %u: %s\n", sizes[i], m, (unsigned)seed, got);
                }
                assert_string_equal(got, "");
                free(got);
                sim_destroy(&sim);
            }
        }
    }
}

/* The last rank leaves the rounds two before the others. */
static void test_absent_rank_is_told_when_the_eyes_are_good(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < SIZES; i++) {
        for (size_t m = 0; m + 1 < MIXES; m++) { /* through the last nothing is ever seen at one time */
            struct sim *sim = job_of(sizes[i], ROUNDS);
            sim->rank[sizes[i] - 1].events -= 8;
            char want[64], *got = play(sim, &mixes[m], 1, 4 * QUIET);
            snprintf(want, sizeof(want), "suspected rank-busy %u", sizes[i] - 1);
            if (strcmp(got, want) != 0) {
                printf("%u ranks, mix %zu: %s\n", sizes[i], m, got);
            }
            assert_string_equal(got, want);
            free(got);
            sim_destroy(&sim);
        }
    }
}

/* The engine is given all events of a sim, rank after rank. */
static void give_all(const struct sim *sim, roll_engine_t *e, const uint32_t *source)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            const struct sim_event *event = &sim->rank[r].event[i];
            int err = event->kind == SIM_DEFINE ? roll_engine_define(e, source[r], &event->def)
                      : event->kind == SIM_PROC ? roll_engine_process(e, source[r], event->proc, event->status)
                                                : roll_engine_feed(e, source[r], &event->rec, 1);
            assert_int_equal(err, 0);
        }
    }
}

static void pass(roll_engine_t *e, uint64_t *now, uint64_t ns)
{
    for (uint64_t end = *now + ns; *now < end;) {
        *now += 20 * MS;
        assert_int_equal(roll_engine_tick(e, *now), 0);
    }
}

static void expect(roll_engine_t *e, bool notes, const char *want)
{
    char *got = findings_of(e, notes);
    assert_string_equal(got, want);
    free(got);
}

/* All make a call and wait for it; of the next one, on communicator *w, only the last rank makes none. */
static struct sim *last_does_not_come(uint32_t n, uint32_t *w)
{
    struct sim *sim = sim_new(n);
    *w = sim_world(sim);
    sim_all(sim, *w, ROLL_OP_ALLREDUCE, 512);
    for (uint32_t r = 0; r < n; r++) {
        sim_sync(sim, r);
    }
    for (uint32_t r = 0; r + 1 < n; r++) {
        sim_call(sim, r, *w, ROLL_OP_ALLREDUCE, 512);
        sim_stuck(sim, r);
    }
    return sim;
}

/* Who has stood before the engine saw the records is told of as soon as somebody who was watched: silent for 4 s
 * before, or not at all; and who goes on after all is not told of. */
static void test_silence_before_the_records_came_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (unsigned kind = 0; kind < 3; kind++) { /* it is said; it is not; it is, and the rank goes on */
            uint32_t n = sizes[i], source[64];
            uint32_t w;
            struct sim *sim = last_does_not_come(n, &w);
            roll_engine_t *e = engine_of(sim, source);
            uint64_t now = 1000 * S_;
            pass(e, &now, 10 * S_);
            give_all(sim, e, source);
            for (uint32_t r = 0; r < n && kind != 1; r++) {
                assert_int_equal(roll_engine_quiet(e, source[r], 4 * S_), 0);
            }
            assert_int_equal(roll_engine_quiet(e, 64 + n, S_), ROLL_E_ARG);
            pass(e, &now, 500 * MS);
            expect(e, true, "");
            if (kind == 2) {
                sim_call(sim, n - 1, w, ROLL_OP_ALLREDUCE, 512);
                const struct sim_event *last = &sim->rank[n - 1].event[sim->rank[n - 1].events - 1];
                assert_int_equal(roll_engine_feed(e, source[n - 1], &last->rec, 1), 0);
            }
            pass(e, &now, 1500 * MS);
            char want[64] = "";
            if (kind == 0) {
                snprintf(want, sizeof(want), "suspected rank-busy %u", n - 1);
            }
            expect(e, true, want);
            if (kind == 1) {
                pass(e, &now, 4 * S_);
                snprintf(want, sizeof(want), "suspected rank-busy %u", n - 1);
                expect(e, true, want);
            }
            roll_engine_destroy(&e);
            sim_destroy(&sim);
        }
    }
}

/* The last rank does not come, and its agent is silent: one note; when it is heard again and still does not come, it is
 * suspected. */
static void test_unheard_rank_is_noted_and_not_accused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], source[64];
        uint32_t w;
        struct sim *sim = last_does_not_come(n, &w);
        roll_engine_t *e = engine_of(sim, source);
        uint64_t now = 1000 * S_;
        give_all(sim, e, source);
        struct roll_engine_sight sight = {.heard = false};
        assert_int_equal(roll_engine_sight(e, source[n - 1], &sight), 0);
        pass(e, &now, 60 * S_);
        expect(e, true, "note agent-silent -");
        char why[4096];
        assert_true(roll_engine_why(e, n - 1, why, sizeof(why)) > 0);
        assert_non_null(strstr(why, "is not heard"));
        sight.heard = true;
        assert_int_equal(roll_engine_sight(e, source[n - 1], &sight), 0);
        pass(e, &now, 4 * S_);
        expect(e, true, "");
        pass(e, &now, 2 * S_);
        char want[64];
        snprintf(want, sizeof(want), "suspected rank-busy %u", n - 1);
        expect(e, true, want);
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* What the records prove, they prove of unheard ranks as well: each of two waits in a call that the other has not made.
 */
static void test_circle_of_unheard_ranks_is_proven(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < SIZES; i++) {
        uint32_t n = sizes[i], source[64];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim), pair = sim_comm(sim, "pair", NULL, 2);
        sim_all(sim, w, ROLL_OP_ALLREDUCE, 512);
        for (uint32_t r = 0; r < n; r++) {
            sim_sync(sim, r);
            sim_call(sim, r, r == 0 ? pair : w, ROLL_OP_ALLREDUCE, 512);
            sim_stuck(sim, r);
        }
        roll_engine_t *e = engine_of(sim, source);
        uint64_t now = 1000 * S_;
        give_all(sim, e, source);
        for (uint32_t r = 0; r < n; r += 2) {
            struct roll_engine_sight sight = {.heard = false};
            assert_int_equal(roll_engine_sight(e, source[r], &sight), 0);
        }
        pass(e, &now, 2 * S_);
        char *got = findings_of(e, true);
        assert_ptr_equal(strstr(got, "proven circular-wait"), got);
        free(got);
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* Inside a wait for which nothing incomplete is known: the last rank is blocked; not while somebody is not heard, and
 * never when it is dead. */
static void test_blocked_rank_is_alive_and_everybody_heard(void **state)
{
    (void)state;
    for (int dead = 0; dead < 2; dead++) {
        for (size_t i = 1; i < SIZES; i++) {
            uint32_t n = sizes[i], source[64];
            struct sim *sim = sim_new(n);
            uint32_t w = sim_world(sim);
            sim_all(sim, w, ROLL_OP_ALLREDUCE, 512);
            sim_stuck(sim, n - 1);
            for (uint32_t r = 0; r + 1 < n; r++) {
                sim_sync(sim, r);
                sim_call(sim, r, w, ROLL_OP_ALLREDUCE, 512);
                sim_stuck(sim, r);
            }
            for (uint32_t r = 0; dead && r < n; r++) {
                sim_proc(sim, r, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
            }
            roll_engine_t *e = engine_of(sim, source);
            uint64_t now = 1000 * S_;
            give_all(sim, e, source);
            struct roll_engine_sight sight = {.heard = false};
            assert_int_equal(roll_engine_sight(e, source[0], &sight), 0);
            pass(e, &now, 30 * S_);
            expect(e, false, "");
            sight.heard = true;
            assert_int_equal(roll_engine_sight(e, source[0], &sight), 0);
            pass(e, &now, 30 * S_);
            char want[64];
            snprintf(want, sizeof(want), "suspected rank-blocked %u", n - 1);
            expect(e, false, dead ? "" : want);
            roll_engine_destroy(&e);
            sim_destroy(&sim);
        }
    }
}

/* A creation that a starved rank enters late is not missing. */
static void test_starved_rank_may_join_late(void **state)
{
    (void)state;
    for (int starved = 0; starved < 2; starved++) {
        uint32_t n = 4, source[4];
        struct sim *sim = sim_new(n);
        sim_world(sim);
        for (uint32_t r = 0; r + 1 < n; r++) {
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, 0);
            rec->count = n;
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
        sim->rank[n - 1].events = 0;
        roll_engine_t *e = engine_of(sim, source);
        uint64_t now = 1000 * S_;
        give_all(sim, e, source);
        struct roll_engine_sight sight = {.heard = true, .starved = starved ? 900 : 0};
        assert_int_equal(roll_engine_sight(e, source[n - 1], &sight), 0);
        pass(e, &now, 20 * S_);
        expect(e, false, starved ? "" : "suspected init-missing 3");
        pass(e, &now, 40 * S_);
        expect(e, false, starved ? "suspected init-missing 3" : "");
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_healthy_job_is_never_suspected_through_late_eyes),
        cmocka_unit_test(test_absent_rank_is_told_when_the_eyes_are_good),
        cmocka_unit_test(test_silence_before_the_records_came_counts),
        cmocka_unit_test(test_unheard_rank_is_noted_and_not_accused),
        cmocka_unit_test(test_circle_of_unheard_ranks_is_proven),
        cmocka_unit_test(test_blocked_rank_is_alive_and_everybody_heard),
        cmocka_unit_test(test_starved_rank_may_join_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
