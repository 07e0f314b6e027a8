/*
 * test_engine_soak.c: long healthy traffic of every kind must raise nothing; determinism; bounds; lost records; many
 * ranks.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE

static uint32_t dice(uint64_t *state, uint32_t sides)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % sides;
}

static const enum roll_op ops[] = {
    AR, ROLL_OP_BROADCAST, ROLL_OP_REDUCE, ROLL_OP_ALLGATHER, ROLL_OP_REDUCESCATTER, ROLL_OP_ALLTOALL};

/* One random healthy act of all members of communicator c. */
static void act(struct sim *sim, uint32_t c, uint64_t *rnd)
{
    uint32_t size = sim->comm[c].size, kind = dice(rnd, 10), calls = 1 + dice(rnd, 3);
    uint64_t count = 1 + dice(rnd, 4) * 100;
    enum roll_op op = ops[dice(rnd, 6)];
    uint16_t stream = (uint16_t)(2 + c % 3);
    uint64_t shared = *rnd;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t r = sim->comm[c].member[i];
        uint64_t own = shared + 0; /* what all members must agree on */
        if (kind < 5) {
            sim_call(sim, r, c, op, count)->stream = stream;
        } else if (kind == 5) { /* several collectives in a group */
            sim_group(sim, r);
            for (uint32_t k = 0; k < calls; k++) {
                sim_call(sim, r, c, AR, 64 + k)->stream = stream;
            }
            sim_group_end(sim, r);
        } else if (kind == 6) { /* zero everywhere, or extra on some */
            if (calls > 1 || dice(rnd, 2)) {
                sim_call(sim, r, c, op, 0)->stream = stream;
            }
        } else if (kind == 7) { /* ring exchange */
            sim_group(sim, r);
            sim_send(sim, r, c, (i + 1) % size, count)->stream = stream;
            sim_recv(sim, r, c, (i + size - 1) % size, count)->stream = stream;
            sim_group_end(sim, r);
        } else { /* all-to-all-v, peers in any order, empty messages made or left out by both sides */
            sim_group(sim, r);
            uint32_t turn = dice(rnd, size);
            for (uint32_t k = 0; k < size; k++) {
                uint32_t p = (k + turn) % size;
                uint64_t to = (own + i * 7 + p * 3) % 4 * 32, from = (own + p * 7 + i * 3) % 4 * 32;
                if (to > 0 || (own + i + p) % 2 == 0) {
                    sim_send(sim, r, c, p, to)->stream = stream;
                }
                if (from > 0 || (own + p + i) % 2 == 0) {
                    sim_recv(sim, r, c, p, from)->stream = stream;
                }
            }
            sim_group_end(sim, r);
        }
        if (dice(rnd, 8) == 0) { /* a wait that is seen first entered, then returned */
            sim_stuck(sim, r)->stream = stream;
            sim_return(sim, r);
        }
    }
}

static struct sim *healthy(uint32_t ranks, uint32_t acts, uint64_t seed)
{
    struct sim *sim = sim_new(ranks);
    uint64_t rnd = seed;
    uint32_t half[1024], c[6] = {0};
    c[0] = sim_world(sim);
    for (uint32_t i = 0; i < ranks; i++) {
        half[i] = i;
    }
    c[1] = sim_comm(sim, "low", half, ranks / 2);
    c[2] = sim_comm(sim, "high", half + ranks / 2, ranks - ranks / 2);
    c[3] = sim_comm(sim, "dup", NULL, ranks);
    for (uint32_t i = 0; i < ranks / 2; i++) {
        half[i] = i * 2;
    }
    c[4] = sim_comm(sim, "even", half, ranks / 2);
    for (uint32_t i = 0; i < acts; i++) {
        act(sim, c[dice(&rnd, 5)], &rnd);
        if (dice(&rnd, 50) == 0) {
            sim_proc(sim, dice(&rnd, ranks), ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
            for (uint32_t r = 0; r < ranks; r++) {
                sim_proc(sim, r, ROLL_PROC_RUNNING, ROLL_EXIT_UNKNOWN);
            }
        }
    }
    for (uint32_t r = 0; r < ranks; r++) {
        sim_record(sim, r, ROLL_OP_DEVICE_SYNC, UINT32_MAX);
        for (uint32_t k = 0; k < 5; k++) {
            if (sim->rank[r].in_comm[c[k]] >= 0) {
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, c[k]);
            }
        }
        sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
    }
    sim->finish = true;
    return sim;
}

static void test_healthy_traffic_raises_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        struct sim *sim = healthy(2 + (uint32_t)seed % 7, 400, seed);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
    struct sim *sim = healthy(64, 300, 99);
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_healthy_job_cut_at_any_moment_raises_nothing_while_it_moves(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct sim *sim = healthy(5, 200, seed);
        sim->finish = false;
        for (uint32_t r = 0; r < 5; r++) { /* each rank has got somewhere else */
            sim->rank[r].events = sim->rank[r].events * (70 + r * 5 + seed) / 120;
        }
        sim->patience_ns = S_ / 5;
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

static void test_same_input_gives_the_same_bytes(void **state)
{
    (void)state;
    struct sim *sim = sim_new(8);
    uint32_t w = sim_world(sim);
    for (uint32_t i = 0; i < 20; i++) {
        sim_all(sim, w, AR, 64 * (i % 3 + 1));
    }
    for (uint32_t r = 0; r < 8; r++) {
        sim_call(sim, r, w, r == 3 ? ROLL_OP_BROADCAST : AR, 77);
        sim_stuck(sim, r);
    }
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *one = sim_run(sim, order, true, true), *two = sim_run(sim, order, true, true);
        assert_string_equal(one, two);
        assert_true(strlen(one) > 0);
        free(one);
        free(two);
    }
    sim_destroy(&sim);
}

static void test_lost_records_are_noted_and_accuse_nobody(void **state)
{
    (void)state;
    for (uint32_t lost = 1; lost <= 600; lost += 199) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        for (uint32_t i = 0; i < 1000; i++) {
            for (uint32_t r = 0; r < 4; r++) {
                if (r == 2 && i >= 100 && i < 100 + lost) {
                    sim->rank[r].seq[w]++; /* made, but its record did not come */
                    if (i == 100) {
                        sim_lose(sim, r, lost);
                    }
                } else {
                    sim_call(sim, r, w, AR, 64 * (i % 5 + 1));
                }
            }
        }
        sim_expect(sim, "");
        char *all = sim_run(sim, 0, true, false);
        assert_string_equal(all, "note data-incomplete 2");
        free(all);
        sim_destroy(&sim);
    }
}

static void test_records_lost_at_the_end_accuse_nobody(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    for (uint32_t i = 0; i < 50; i++) {
        for (uint32_t r = 0; r < 3; r++) {
            if (r == 1 && i >= 40) {
                if (i == 40) {
                    sim_lose(sim, r, 10);
                }
            } else {
                sim_call(sim, r, w, AR, 64);
            }
        }
    }
    for (uint32_t r = 0; r < 3; r++) {
        sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
    }
    sim->finish = true;
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_first_records_are_missing_when_the_watcher_comes_late(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 4; r++) {
        sim->rank[r].seq[w] = 100000 + r * 3; /* each ring still holds another number of calls */
        sim->rank[r].ticket = 1000 + r;
    }
    for (uint32_t i = 0; i < 200; i++) {
        for (uint32_t r = 0; r < 4; r++) {
            if (sim->rank[r].seq[w] < 100200) {
                sim_call(sim, r, w, AR, 64 * (sim->rank[r].seq[w] % 5 + 1));
            }
        }
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_memory_is_bounded_when_a_member_is_never_seen(void **state)
{
    (void)state;
    struct roll_engine_config config = {.window = 1024};
    roll_engine_t *e = roll_engine_new(&config);
    struct roll_source_info info = {.stream = 1, .world_rank = 0, .world_size = 2, .pid = 1, .host = "h", .exe = "x"};
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
    uint32_t source;
    def.comm.info = (struct roll_def_comm){.key = 5, .rank = 0, .nranks = 2};
    assert_int_equal(roll_engine_open(e, &info, &source), 0);
    assert_int_equal(roll_engine_define(e, source, &def), 0);
    size_t early = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        struct roll_record rec = {.seal = roll_seal(2ull * i, ROLL_STATE_RETURNED),
                                  .count = 8,
                                  .seq = i,
                                  .peer = -1,
                                  .comm = 1,
                                  .stream = 1,
                                  .thread = 1,
                                  .op = AR,
                                  .dtype = 7,
                                  .layer = ROLL_LAYER_NONE};
        assert_int_equal(roll_engine_feed(e, source, &rec, 1), 0);
        rec.op = ROLL_OP_SEND;
        rec.peer = 1;
        rec.seal = roll_seal(2ull * i + 1, ROLL_STATE_RETURNED);
        assert_int_equal(roll_engine_feed(e, source, &rec, 1), 0);
        roll_engine_tick(e, i * 1000000ull);
        if (i == 20000) {
            early = mallinfo2().uordblks;
        }
    }
    assert_true(mallinfo2().uordblks <= early + 4096);
    const struct roll_verdict *v;
    while ((v = roll_engine_next(e))) {
        assert_int_equal(v->certainty, ROLL_NOTE);
    }
    roll_engine_destroy(&e);
}

static void test_one_wrong_rank_of_a_thousand_is_named(void **state)
{
    (void)state;
    struct sim *sim = sim_new(1024);
    uint32_t w = sim_world(sim);
    sim->site = 1;
    for (uint32_t i = 0; i < 10; i++) {
        sim_all(sim, w, AR, 64 * (i % 3 + 1));
    }
    sim->site = 2;
    for (uint32_t r = 0; r < 1024; r++) {
        sim_call(sim, r, w, AR, r == 700 ? 99 : 100);
        sim_stuck(sim, r);
    }
    for (uint32_t order = 0; order < SIM_ORDERS; order += 4) {
        char *got = sim_run(sim, order, false, false);
        assert_string_equal(got, "proven count-mismatch 700");
        free(got);
    }
    sim_destroy(&sim);
}

static void test_hostile_input_is_refused_or_survived(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    struct roll_source_info info = {.stream = 1, .world_rank = -1, .world_size = -1, .host = NULL, .exe = NULL};
    struct roll_record rec = {.seal = roll_seal(0, ROLL_STATE_RETURNED), .comm = 7, .count = 1, .op = AR, .thread = 1};
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = NULL};
    uint32_t source;
    assert_int_equal(roll_engine_feed(e, 0, &rec, 1), -2);
    assert_int_equal(roll_engine_open(e, &info, &source), 0);
    assert_int_equal(roll_engine_feed(e, source, &rec, 1), 0);
    def.comm.info = (struct roll_def_comm){.key = 1, .rank = 4, .nranks = 4};
    assert_true(roll_engine_define(e, source, &def) < 0);
    def.comm.info.rank = 0;
    assert_int_equal(roll_engine_define(e, source, &def), 0);
    uint64_t rnd = 7;
    for (uint32_t i = 1; i < 100000; i++) {
        memset(&rec, 0, sizeof(rec));
        rec.seal = roll_seal(i + dice(&rnd, 2), (enum roll_state)(1 + dice(&rnd, 3)));
        rec.op = (uint8_t)dice(&rnd, 96);
        rec.comm = (uint16_t)dice(&rnd, 3);
        rec.seq = dice(&rnd, 2) ? i : dice(&rnd, 2) ? UINT32_MAX - dice(&rnd, 3) : dice(&rnd, 100000);
        rec.count = dice(&rnd, 3) ? 1 : UINT64_MAX;
        rec.peer = (int32_t)dice(&rnd, 8) - 2;
        rec.group = dice(&rnd, 3);
        rec.thread = (uint16_t)dice(&rnd, 40);
        rec.stream = (uint16_t)dice(&rnd, 65536);
        rec.layer = (uint16_t)dice(&rnd, 65536);
        rec.dtype = (uint8_t)dice(&rnd, 12);
        rec.redop = (uint8_t)dice(&rnd, 6);
        (void)roll_engine_feed(e, source, &rec, 1);
        if (i % 64 == 0) {
            roll_engine_tick(e, i * 100000ull);
            char text[64];
            (void)roll_engine_why(e, 0, text, sizeof(text));
        }
    }
    roll_engine_finish(e);
    while (roll_engine_next(e)) {
    }
    roll_engine_destroy(&e);
}

static void test_views_say_what_ranks_wait_for(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    for (uint32_t r = 0; r < 3; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = 3, .pid = 9, .host = "n", .exe = "x"};
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = "dp"};
        uint32_t source;
        def.comm.info = (struct roll_def_comm){.key = 5, .rank = (int32_t)r, .nranks = 3, .label_bytes = 2};
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        assert_int_equal(roll_engine_define(e, source, &def), 0);
        struct roll_record rec[2] = {{.seal = roll_seal(0, ROLL_STATE_RETURNED),
                                      .count = 8,
                                      .peer = -1,
                                      .comm = 1,
                                      .stream = 1,
                                      .thread = 1,
                                      .op = AR,
                                      .dtype = 7,
                                      .layer = ROLL_LAYER_NONE,
                                      .step = 4},
                                     {.seal = roll_seal(1, ROLL_STATE_ENTERED),
                                      .peer = -1,
                                      .stream = 1,
                                      .thread = 1,
                                      .op = ROLL_OP_STREAM_SYNC,
                                      .dtype = 255,
                                      .redop = 255,
                                      .step = ROLL_STEP_NONE}};
        assert_int_equal(roll_engine_feed(e, source, rec, r == 2 ? 0 : 2), 0);
    }
    roll_engine_tick(e, 1000);
    struct roll_view_source vs;
    struct roll_view_comm vc;
    assert_true(roll_engine_source(e, 0, &vs));
    assert_true(vs.in_call && vs.pending == 1 && vs.step == 4 && vs.last.op == AR);
    assert_false(roll_engine_source(e, 3, &vs));
    assert_true(roll_engine_comm(e, 0, &vc));
    assert_true(vc.done == 0 && vc.ahead == 1 && vc.size == 3 && vc.seen == 3);
    assert_string_equal(vc.role, "dp");
    assert_true(roll_rankset_has(&vc.behind, 2) && roll_rankset_count(&vc.behind) == 1);
    assert_false(roll_engine_comm(e, 1, &vc));
    char text[1024];
    assert_true(roll_engine_why(e, 1, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "for rank 2: rank 2 is not inside any call"));
    assert_int_equal(roll_engine_why(e, 17, text, sizeof(text)), -12);
    roll_engine_destroy(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_healthy_traffic_raises_nothing),
        cmocka_unit_test(test_healthy_job_cut_at_any_moment_raises_nothing_while_it_moves),
        cmocka_unit_test(test_same_input_gives_the_same_bytes),
        cmocka_unit_test(test_lost_records_are_noted_and_accuse_nobody),
        cmocka_unit_test(test_records_lost_at_the_end_accuse_nobody),
        cmocka_unit_test(test_first_records_are_missing_when_the_watcher_comes_late),
        cmocka_unit_test(test_memory_is_bounded_when_a_member_is_never_seen),
        cmocka_unit_test(test_one_wrong_rank_of_a_thousand_is_named),
        cmocka_unit_test(test_hostile_input_is_refused_or_survived),
        cmocka_unit_test(test_views_say_what_ranks_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
