/*
 * test_sum.c: what a level keeps of communicators and children that come and go: it forgets those that nobody uses any
 * more, takes out who has moved, refuses what a child tells of others' communicators, and tells where members stand of
 * which it alone is the judge. What is compared: test_digest.c.
 */
#include "daemon/digest/fold.h"
#include "daemon/digest/sum.h"
#include "trace/err.h"
#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <malloc.h>
#include <string.h>

#define MS    1000000ull
#define S     (1000 * MS)
#define STAND (250 * MS)
#define RANKS 4u
#define WORLD 1u /* id of the communicator that lasts */
#define KEY   0x1234567890abcdefull

/* Four ranks on two nodes under one root; all are members of each communicator. */
struct job {
    roll_fold_t *fold[RANKS];
    uint64_t ticket[RANKS];
    roll_sum_t *node[2], *root;
    uint64_t now;
};

static roll_sum_t *sum_new(bool is_root)
{
    roll_sum_t *sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND, .is_root = is_root});
    assert_non_null(sum);
    return sum;
}

static void define(struct job *j, uint32_t r, uint32_t id, uint64_t key)
{
    struct roll_def_comm info = {.key = key, .rank = (int32_t)r, .nranks = (int32_t)RANKS};
    assert_int_equal(roll_fold_comm(j->fold[r], id, &info), 0);
}

static void job_init(struct job *j)
{
    *j = (struct job){.node = {sum_new(false), sum_new(false)}, .root = sum_new(true)};
    for (uint32_t r = 0; r < RANKS; r++) {
        j->fold[r] = roll_fold_new(S);
        assert_non_null(j->fold[r]);
        define(j, r, WORLD, KEY);
    }
}

static void job_fini(struct job *j)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        roll_fold_destroy(&j->fold[r]);
    }
    roll_sum_destroy(&j->node[0]);
    roll_sum_destroy(&j->node[1]);
    roll_sum_destroy(&j->root);
}

static void feed(struct job *j, uint32_t r, enum roll_op op, uint32_t id, uint32_t seq, uint64_t count)
{
    struct roll_record rec = {.seal = roll_seal(j->ticket[r], ROLL_STATE_RETURNED),
                              .op = (uint8_t)op,
                              .comm = (uint16_t)id,
                              .seq = seq,
                              .count = count,
                              .peer = ROLL_PEER_NONE,
                              .enter_ns = j->ticket[r] * 1000,
                              .call_ns = 10,
                              .thread = 1,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .redop = ROLL_RED_SUM};
    j->ticket[r]++;
    assert_int_equal(roll_fold_record(j->fold[r], &rec, j->now), 0);
}

static void all_call(struct job *j, uint32_t id, uint32_t first, uint32_t n)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t i = first; i < first + n; i++) {
            feed(j, r, ROLL_OP_ALLREDUCE, id, i, 100);
        }
    }
}

static void all_destroy(struct job *j, uint32_t id)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        feed(j, r, ROLL_OP_COMM_DESTROY, id, 0, 0);
    }
}

/* The hints of a digest, as bits, but for those of hosts that are quiet, which these ranks are. */
static uint32_t bits_of(const struct roll_digest *d)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < d->hints; i++) {
        bits |= d->hint[i].why == ROLL_HINT_QUIET ? 0 : 1u << d->hint[i].why;
    }
    return bits;
}

/* A node tells the level above what is new on its two ranks. */
static void node_tells(struct job *j, uint32_t n, roll_sum_t *above, uint32_t child)
{
    struct roll_digest d = {0};
    for (uint32_t r = 2 * n; r < 2 * n + 2; r++) {
        roll_digest_clear(&d);
        roll_fold_cut(j->fold[r], j->now, &d);
        assert_int_equal(roll_sum_take(j->node[n], r, &d, j->now), 0);
    }
    roll_digest_clear(&d);
    roll_sum_cut(j->node[n], j->now, &d);
    roll_sum_forget(j->node[n], j->now);
    assert_int_equal(roll_sum_take(above, child, &d, j->now), 0);
    roll_digest_fini(&d);
}

static uint32_t cut(roll_sum_t *sum, uint64_t now)
{
    struct roll_digest d = {0};
    roll_sum_cut(sum, now, &d);
    roll_sum_forget(sum, now);
    uint32_t bits = bits_of(&d);
    roll_digest_fini(&d);
    return bits;
}

/* Time passes, and all levels look; what the root hears of, as bits. */
static uint32_t look(struct job *j, uint64_t later)
{
    j->now += later;
    node_tells(j, 0, j->root, 0);
    node_tells(j, 1, j->root, 1);
    return cut(j->root, j->now);
}

static struct roll_sum_figures figures(const roll_sum_t *sum)
{
    struct roll_sum_figures f;
    roll_sum_figures(sum, &f);
    return f;
}

/* A job of weeks that makes a communicator each second, and destroys it. */
static void communicators_that_are_gone_are_forgotten(void **state)
{
    (void)state;
    enum { MADE = 4000, SETTLED = 200, KEPT = 70 };
    struct job j;
    job_init(&j);
    size_t before = 0;
    for (uint32_t i = 0; i < MADE; i++) {
        uint32_t id = WORLD + 1 + i;
        for (uint32_t r = 0; r < RANKS; r++) {
            define(&j, r, id, KEY + id);
        }
        all_call(&j, id, 0, 70);
        all_call(&j, WORLD, 10 * i, 10);
        assert_int_equal(look(&j, 500 * MS), 0);
        all_destroy(&j, id);
        assert_int_equal(look(&j, 500 * MS), 0);
        for (uint32_t n = 0; n < 2; n++) {
            assert_true(figures(j.node[n]).comms <= KEPT);
            assert_true(figures(j.node[n]).cells <= 2 * KEPT);
        }
        assert_true(figures(j.root).comms <= KEPT);
        before = i == SETTLED ? mallinfo2().uordblks : before;
    }
    /* A rank keeps where it came to on each; its windows are given back. */
    assert_true(mallinfo2().uordblks < before + (MADE - SETTLED) * RANKS * 512u);
    assert_int_equal(figures(j.root).forgotten + figures(j.root).comms, MADE + 1);
    assert_true(figures(j.root).forgotten >= MADE - KEPT);
    assert_int_equal(figures(j.root).refused, 0);
    assert_int_equal(figures(j.root).done, MADE + 10 * MADE / ROLL_DIGEST_WINDOW);
    /* The one that lasts is compared as ever. */
    for (uint32_t i = 0; i < ROLL_DIGEST_WINDOW; i++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            feed(&j, r, ROLL_OP_ALLREDUCE, WORLD, 10 * MADE + i, r == 2 ? 101 : 100);
        }
    }
    assert_int_equal(look(&j, 500 * MS), 1u << ROLL_HINT_DIFFERS);
    job_fini(&j);
}

/* What some members still use is kept, however long the others are done with it. */
static void a_communicator_in_use_is_kept(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    all_call(&j, WORLD, 0, 10);
    feed(&j, 0, ROLL_OP_COMM_DESTROY, WORLD, 0, 0);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(look(&j, S), 0);
    }
    assert_int_equal(figures(j.root).comms, 1);
    for (uint32_t r = 1; r < RANKS; r++) {
        feed(&j, r, ROLL_OP_ALLREDUCE, WORLD, 10, 100); /* it goes on, and one stays behind */
    }
    (void)look(&j, S);
    assert_int_equal(look(&j, S), 1u << ROLL_HINT_STANDS);
    for (uint32_t r = 1; r < RANKS; r++) { /* their processes end */
        roll_fold_ended(j.fold[r]);
    }
    for (uint32_t i = 0; i < 70; i++) {
        (void)look(&j, S);
    }
    assert_int_equal(figures(j.root).comms, 0);
    assert_int_equal(figures(j.root).forgotten, 1);
    job_fini(&j);
}

/* A communicator with a key that was used before: other calls, from the first on. */
static void a_key_that_is_used_again_is_another_communicator(void **state)
{
    (void)state;
    for (uint32_t after_s = 1; after_s < 100; after_s += 80) { /* before the first one is forgotten, and after */
        struct job j;
        job_init(&j);
        all_call(&j, WORLD, 0, 200);
        all_destroy(&j, WORLD);
        for (uint32_t i = 0; i < after_s; i++) {
            assert_int_equal(look(&j, S), 0);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            define(&j, r, WORLD + 1, KEY);
            for (uint32_t i = 0; i < 100; i++) {
                feed(&j, r, ROLL_OP_ALLREDUCE, WORLD + 1, i, 7);
            }
        }
        assert_int_equal(look(&j, S), 0);
        struct roll_sum_place p;
        assert_true(roll_sum_place(j.root, KEY, &p));
        assert_int_equal(p.low, 100);
        assert_int_equal(p.members, RANKS);
        for (uint32_t r = 0; r < RANKS; r++) {
            for (uint32_t i = 100; i < 200; i++) {
                feed(&j, r, ROLL_OP_ALLREDUCE, WORLD + 1, i, r == 3 ? 8 : 7);
            }
        }
        assert_int_equal(look(&j, S), 1u << ROLL_HINT_DIFFERS);
        job_fini(&j);
    }
}

/* An agent that is started anew tells of what was forgotten long ago: nobody waits for the others. */
static void what_is_over_when_it_is_heard_of_stands_nowhere(void **state)
{
    (void)state;
    struct roll_digest d = {0};
    roll_sum_t *root = sum_new(true);
    roll_digest_add_front(
        &d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 2, .low = 9, .high = 9, .gone = true});
    assert_int_equal(roll_sum_take(root, 0, &d, S), 0);
    assert_int_equal(cut(root, S), 0);
    assert_int_equal(cut(root, 3 * S), 0);
    assert_int_equal(cut(root, 62 * S), 0);
    assert_int_equal(figures(root).comms, 0);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

/*
 * The agent of node 1 goes from the first relay to the second. late: the second one is heard before the first has
 * noticed.
 */
static void moves(bool late)
{
    struct job j;
    struct roll_digest d = {0};
    roll_sum_t *relay[2] = {sum_new(false), sum_new(false)};
    job_init(&j);
    for (uint32_t turn = 0; turn < 60; turn++) {
        j.now += 100 * MS;
        all_call(&j, WORLD, 40 * turn, 40);
        if (turn == 20) {
            roll_sum_again(j.node[1]); /* to another level */
        }
        if (turn == (late ? 23u : 20u)) {
            roll_sum_leave(relay[0], 1, j.now);
        }
        node_tells(&j, 0, relay[0], 0);
        node_tells(&j, 1, relay[turn < 20 ? 0 : 1], 1);
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t k = turn % 2 ? i : 1 - i;
            roll_digest_clear(&d);
            roll_sum_cut(relay[k], j.now, &d);
            assert_int_equal(roll_sum_take(j.root, k, &d, j.now), 0);
        }
        assert_int_equal(cut(j.root, j.now), 0);
    }
    struct roll_sum_place p;
    assert_true(roll_sum_place(j.root, KEY, &p));
    assert_int_equal(p.members, RANKS);
    assert_int_equal(p.low, 40 * 60);
    assert_int_equal(p.high, 40 * 60);
    assert_true(roll_sum_place(relay[0], KEY, &p));
    assert_int_equal(p.members, 2);
    assert_true(figures(j.root).done > 0);
    for (uint32_t r = 0; r < RANKS; r++) { /* and what differs between the two is heard of */
        for (uint32_t i = 0; i < ROLL_DIGEST_WINDOW; i++) {
            feed(&j, r, ROLL_OP_ALLREDUCE, WORLD, 40 * 60 + i, r < 2 ? 100 : 101);
        }
    }
    node_tells(&j, 0, relay[0], 0);
    node_tells(&j, 1, relay[1], 1);
    for (uint32_t k = 0; k < 2; k++) {
        roll_digest_clear(&d);
        roll_sum_cut(relay[k], j.now, &d);
        assert_int_equal(roll_sum_take(j.root, k, &d, j.now), 0);
    }
    assert_int_equal(cut(j.root, j.now), 1u << ROLL_HINT_DIFFERS);
    roll_digest_fini(&d);
    roll_sum_destroy(&relay[0]);
    roll_sum_destroy(&relay[1]);
    job_fini(&j);
}

static void an_agent_that_moves_is_counted_once(void **state)
{
    (void)state;
    moves(false);
    moves(true);
}

/* One that stands tells nothing new when there is room for it: what it told waits. */
static void a_front_without_room_waits_for_it(void **state)
{
    (void)state;
    struct roll_digest d = {0};
    struct roll_sum_place p;
    roll_sum_t *root = sum_new(true);
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 4, .low = 9, .high = 9});
    assert_int_equal(roll_sum_take(root, 0, &d, S), 0);
    d.front[0].members = 2;
    assert_int_equal(roll_sum_take(root, 1, &d, S), 0);
    assert_int_equal(roll_sum_take(root, 0, &d, S), 0); /* two of the four are gone from there */
    assert_int_equal(cut(root, 2 * S), 0);
    assert_true(roll_sum_place(root, KEY, &p));
    assert_int_equal(p.members, 4);
    /* But not for ever. */
    assert_int_equal(roll_sum_take(root, 2, &d, 2 * S), 0);
    (void)cut(root, 3 * S);
    assert_int_equal(figures(root).refused, 0);
    (void)cut(root, 13 * S);
    assert_int_equal(figures(root).refused, 1);
    roll_sum_leave(root, 0, 14 * S);
    (void)cut(root, 14 * S);
    assert_true(roll_sum_place(root, KEY, &p));
    assert_int_equal(p.members, 2);
    assert_int_equal(roll_sum_take(root, 2, &d, 15 * S), ROLL_E_ARG); /* told once, and taken: there is room now */
    assert_true(roll_sum_place(root, KEY, &p));
    assert_int_equal(roll_sum_take(root, 2, &d, 15 * S), 0);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

/* A check point lies within its window, and no further than the child's members have come. */
static void a_check_point_that_is_made_up_is_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t high, calls;
        bool may;
    } c[] = {{9, 9, true}, {9, 10, false}, {200, ROLL_DIGEST_WINDOW, false}, {200, ROLL_DIGEST_WINDOW - 1, true}};
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        struct roll_digest d = {0};
        roll_sum_t *root = sum_new(true);
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 2, .low = c[i].high, .high = c[i].high});
        roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 1, .calls = c[i].calls});
        assert_int_equal(roll_sum_take(root, 0, &d, S), c[i].may ? 0 : ROLL_E_ARG);
        assert_int_equal(figures(root).refused, !c[i].may);
        roll_digest_fini(&d);
        roll_sum_destroy(&root);
    }
}

/* Child 0 has all members; child 1 speaks of the communicator all the same, in each way. */
static void who_speaks_of_others_communicators_is_refused(void **state)
{
    (void)state;
    struct roll_digest d = {0}, lie[5] = {{0}};
    roll_sum_t *root = sum_new(true);
    struct roll_digest_messages sums = {.key = KEY, .sum = {1}};
    roll_digest_add_window(&lie[0], &(struct roll_digest_window){.key = KEY, .hash = 1, .window = 0});
    roll_digest_add_messages(&lie[1], &sums);
    roll_digest_add_like(
        &lie[2], &(struct roll_digest_like){.key = KEY, .place = 1, .hash = 1, .why = ROLL_HINT_OBSERVED, .seq = 5});
    roll_digest_add_share(&lie[3],
                          &(struct roll_digest_share){.key = KEY, .place = 1, .part = 5, .members = 4, .seq = 5});
    roll_digest_add_hint(&lie[4], KEY, ROLL_HINT_DIFFERS, 64);
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 2, .window = 0});
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 4, .low = 64, .high = 64});
    roll_digest_add_like(
        &d, &(struct roll_digest_like){.key = KEY, .place = 1, .hash = 2, .why = ROLL_HINT_OBSERVED, .seq = 5});
    assert_int_equal(roll_sum_take(root, 0, &d, S), 0);
    assert_int_equal(cut(root, S), 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(roll_sum_take(root, 1, &lie[i], S), ROLL_E_ARG);
        assert_int_equal(figures(root).refused, i + 1);
        assert_int_equal(cut(root, 2 * S), 0);
        roll_digest_fini(&lie[i]);
    }
    assert_int_equal(figures(root).cells, 1);
    roll_sum_leave(root, 0, 2 * S); /* and so is who has left */
    roll_digest_add_window(&lie[0], &(struct roll_digest_window){.key = KEY, .hash = 3, .window = 0});
    assert_int_equal(roll_sum_take(root, 0, &lie[0], 2 * S), ROLL_E_ARG);
    roll_digest_fini(&lie[0]);
    roll_digest_clear(&d); /* a hint of one that nobody has told of may be of one that is judged below */
    roll_digest_add_hint(&d, KEY + 1, ROLL_HINT_DIFFERS, 64);
    roll_digest_add_hint(&d, 0, ROLL_HINT_REFUSED, 0);
    assert_int_equal(roll_sum_take(root, 1, &d, 2 * S), 0);
    assert_int_equal(cut(root, 2 * S), 1u << ROLL_HINT_DIFFERS | 1u << ROLL_HINT_REFUSED);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

/* A node that judges a communicator alone, below a relay and a root. */
static void who_stands_below_is_known_above(void **state)
{
    (void)state;
    struct roll_digest d = {0};
    struct roll_sum_place p;
    roll_sum_t *level[3] = {sum_new(false), sum_new(false), sum_new(true)};
    struct roll_digest_front f[2] = {{.key = KEY, .size = 2, .members = 1, .low = 9, .high = 9},
                                     {.key = KEY, .size = 2, .members = 1, .low = 12, .high = 12}};
    static const struct {
        uint32_t low[2];     /* of the members */
        bool begins, stands; /* the levels above are told everything again; and know that it stands */
        uint32_t more_ms;    /* behind the last row */
    } row[] = {{{9, 12}, false, false, 0},     {{9, 12}, false, true, 400},   {{9, 13}, false, true, 100},
               {{9, 13}, true, true, 100},     {{10, 13}, false, false, 100}, {{10, 13}, false, true, 400},
               {{10, 13}, false, true, 90000}, {{13, 13}, false, false, 100}, {{13, 13}, false, false, 90000}};
    uint64_t now = S;
    for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++) {
        now += row[i].more_ms * MS;
        for (uint32_t m = 0; m < 2; m++) {
            bool moved = f[m].low != row[i].low[m] || i == 0;
            f[m].low = f[m].high = row[i].low[m];
            roll_digest_clear(&d);
            roll_digest_add_front(&d, &f[m]);
            assert_int_equal(moved ? roll_sum_take(level[0], m, &d, now) : 0, 0);
        }
        if (row[i].begins) {
            roll_sum_again(level[0]);
            roll_sum_destroy(&level[2]);
            level[2] = sum_new(true);
            roll_sum_again(level[1]);
        }
        for (uint32_t k = 0; k < 2; k++) {
            roll_digest_clear(&d);
            roll_sum_cut(level[k], now, &d);
            assert_int_equal(roll_sum_take(level[k + 1], 0, &d, now), 0);
        }
        (void)cut(level[2], now);
        bool known = roll_sum_place(level[2], KEY, &p);
        assert_int_equal(known && p.low < p.high, row[i].stands);
        assert_true(!known || p.members == 0);
        assert_true(!row[i].stands || (p.low == row[i].low[0] && p.size == 2));
    }
    assert_int_equal(figures(level[2]).comms, 0); /* who stands nowhere need not be remembered */
    roll_digest_fini(&d);
    for (uint32_t k = 0; k < 3; k++) {
        roll_sum_destroy(&level[k]);
    }
}

/* Fronts of `count` communicators from `first` on, by one child; gone: it uses them no more. */
static void tell_many(roll_sum_t *sum, uint32_t child, uint64_t first, uint32_t count, bool gone, uint64_t now)
{
    struct roll_digest d = {0};
    for (uint32_t i = 0; i < count; i++) {
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = first + i, .size = 1000, .members = 1, .high = 1, .gone = gone});
    }
    (void)roll_sum_take(sum, child, &d, now);
    roll_digest_clear(&d);
    roll_sum_cut(sum, now, &d);
    roll_digest_fini(&d);
}

/* A child that tells of communicators without end has room for half of them, and its neighbours for theirs. What it
 * gives up it may use again. */
static void a_child_has_room_for_half(void **state)
{
    (void)state;
    enum { MOST = 64 };
    struct roll_sum_figures f;
    roll_sum_t *sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND, .is_root = true, .most = MOST});
    tell_many(sum, 0, 1000, 1000, false, S);
    roll_sum_figures(sum, &f);
    assert_int_equal(f.comms, MOST / 2);
    assert_int_equal(f.cells, MOST / 2);
    assert_int_equal(f.no_room, 1000 - MOST / 2);
    tell_many(sum, 0, 1000, 1000, false, S); /* as with each digest: counted once */
    roll_sum_figures(sum, &f);
    assert_int_equal(f.no_room, 1000 - MOST / 2);
    assert_int_equal(f.refused, f.no_room);
    tell_many(sum, 1, 5000, MOST / 2, false, S);
    roll_sum_figures(sum, &f);
    assert_int_equal(f.comms, MOST);
    assert_int_equal(f.no_room, 1000 - MOST / 2);
    for (uint32_t child = 2; child < 2 * MOST; child++) { /* of communicators that there are already */
        tell_many(sum, child, 1000, MOST / 2, false, S);
    }
    roll_sum_figures(sum, &f);
    assert_int_equal(f.cells, 16 * MOST);
    tell_many(sum, 0, 1000, MOST / 2, true, S);
    for (uint32_t child = 2; child < 2 * MOST; child++) {
        tell_many(sum, child, 1000, MOST / 2, true, S);
    }
    roll_sum_forget(sum, S + 2 * ROLL_DIGEST_KEEP_NS);
    roll_sum_figures(sum, &f);
    assert_int_equal(f.comms, MOST / 2);
    uint64_t before = f.no_room;
    tell_many(sum, 0, 9000, MOST / 2, false, S + 2 * ROLL_DIGEST_KEEP_NS);
    roll_sum_figures(sum, &f);
    assert_int_equal(f.comms, MOST);
    assert_int_equal(f.no_room, before);
    roll_sum_destroy(&sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communicators_that_are_gone_are_forgotten),
        cmocka_unit_test(a_communicator_in_use_is_kept),
        cmocka_unit_test(a_key_that_is_used_again_is_another_communicator),
        cmocka_unit_test(what_is_over_when_it_is_heard_of_stands_nowhere),
        cmocka_unit_test(an_agent_that_moves_is_counted_once),
        cmocka_unit_test(a_front_without_room_waits_for_it),
        cmocka_unit_test(a_check_point_that_is_made_up_is_refused),
        cmocka_unit_test(who_speaks_of_others_communicators_is_refused),
        cmocka_unit_test(who_stands_below_is_known_above),
        cmocka_unit_test(a_child_has_room_for_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
