/*
 * test_gemm_team.c: clusters of blocks that share copies, in the grouped products on the device
 * (kernels/gemm/gemm_index.h): who takes which tile, who copies what for whom, and the ring's barriers over all blocks.
 *
 * The ring is played with the parties of the kernels: in each block a producer and the consumers, copies that land at
 * each receiver at a time of their own, and arrivals at other blocks that travel. Which party goes on is drawn, and now
 * and then one block or one kind of message is left behind for long. The play must also find what could be wrong: the
 * mistakes are made on purpose, and each has to show as what it is. Playing only the right protocol was rejected: it
 * says nothing of a play that cannot see.
 */
#include "kernels/gemm/gemm_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

enum { MOST = 4, STAGES = 4, BOXES_A = 2, BOXES_B = 4, BOXES = BOXES_A + BOXES_B };

static uint64_t random_state = 11;

static int random_below(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

/* tiles and places */

static struct moe_gemm_cut cut_with(int team_log)
{
    struct moe_gemm_cut cut = moe_gemm_cut_of(GEMM_HOPPER_ROWS, GEMM_HOPPER_COLS, 128);
    cut.team_log = team_log;
    return cut;
}

static void test_teams_take_every_tile_once(void **state)
{
    (void)state;
    for (int team_log = 0; team_log <= 2; team_log++) {
        for (int64_t high = 1; high < 40; high += high < 20 ? 1 : 6) {
            for (int64_t wide = 1; wide < 12; wide++) {
                int64_t rows = (high - 1) * 128 + 1 + random_below(128),
                        cols = (wide - 1) * 256 + 1 + random_below(256);
                struct moe_gemm_cut cut = cut_with(team_log);
                struct moe_gemm_grid g = moe_gemm_grid_of((struct moe_gemm_shape){rows, cols, 1}, cut);
                int64_t places = moe_gemm_places(MOE_GEMM_FORWARD, rows, cols, 1, cut, 0), inside = 0;
                bool seen[40 * 12] = {false};
                assert_int_equal(g.team.high_log + g.team.wide_log, team_log);
                assert_int_equal(places, g.high * g.wide);
                for (int64_t i = 0; i < places << team_log; i++) {
                    struct moe_gemm_tile t = moe_gemm_team_tile(i >> team_log, g, (int32_t)(i % (1 << team_log)));
                    if (t.row < high && t.col < wide) {
                        assert_false(seen[t.row * wide + t.col]);
                        seen[t.row * wide + t.col] = true;
                        inside++;
                    }
                }
                assert_int_equal(inside, high * wide);
            }
        }
    }
}

static void stands(int64_t m, int64_t cols, int high_log, int wide_log)
{
    struct moe_gemm_grid g = moe_gemm_grid_of((struct moe_gemm_shape){m, cols, 64}, cut_with(2));
    assert_int_equal(g.team.high_log, high_log);
    assert_int_equal(g.team.wide_log, wide_log);
}

static void test_a_team_stands_as_its_group_is(void **state)
{
    (void)state;
    stands(1, 4096, 0, 2);    /* one row of tiles: all of the team in it */
    stands(129, 4096, 1, 1);  /* two rows */
    stands(300, 4096, 0, 2);  /* three: two by two would leave a quarter of the places empty */
    stands(2048, 4096, 1, 1); /* many: two by two reads least */
    stands(2048, 256, 2, 0);  /* one column */
    stands(128, 256, 1, 1);   /* one tile: three blocks have none in any case */
}

/* A group without rows has no places, but for a weight gradient that stores zeros. */
static void test_places_are_counted_without_overflow(void **state)
{
    (void)state;
    for (int team_log = 0; team_log <= 2; team_log++) {
        struct moe_gemm_cut cut = cut_with(team_log);
        assert_int_equal(moe_gemm_places(MOE_GEMM_DGRAD, 0, 768, 2048, cut, 0), 0);
        assert_int_equal(moe_gemm_places(MOE_GEMM_WGRAD, 0, 768, 2048, cut, 0), (6 * 8) >> team_log);
        assert_int_equal(moe_gemm_places(MOE_GEMM_WGRAD, 0, 768, 2048, cut, 1), 0);
        assert_int_equal(moe_gemm_places(MOE_GEMM_FORWARD, (int64_t)1 << 40, 1 << 20, 64, cut, 0),
                         (((int64_t)1 << 33) * 4096) >> team_log);
    }
}

/* who copies what for whom */

static void test_every_box_reaches_every_block_once(void **state)
{
    (void)state;
    for (int high_log = 0; high_log <= 2; high_log++) {
        for (int wide_log = 0; high_log + wide_log <= 2; wide_log++) {
            struct moe_gemm_team team = {high_log, wide_log};
            int blocks = 1 << (high_log + wide_log), got[MOST][BOXES];
            memset(got, 0, sizeof(got));
            for (int rank = 0; rank < blocks; rank++) {
                for (int box = 0; box < BOXES; box++) {
                    bool of_a = box < BOXES_A;
                    struct moe_gemm_share s = of_a ? moe_gemm_share_a(team, rank) : moe_gemm_share_b(team, rank);
                    assert_int_equal(s.to >> blocks, 0);
                    assert_true(s.to >> rank & 1);
                    for (int to = 0; to < blocks; to++) {
                        bool needs = of_a ? to >> wide_log == rank >> wide_log
                                          : (to ^ rank) % (1 << wide_log) == 0; /* same row, same column */
                        assert_int_equal(s.to >> to & 1, needs);
                        got[to][box] += (s.to >> to & 1) && ((of_a ? box : box - BOXES_A) & s.others) == s.mine;
                    }
                }
            }
            for (int i = 0; i < blocks * BOXES; i++) {
                assert_int_equal(got[i / BOXES][i % BOXES], 1);
            }
        }
    }
}

/* the ring of a team */

enum mistake {
    NONE,
    ARRIVES_AT_ITSELF, /* the neighbours are never told that a stage is free */
    COUNTS_ITSELF,     /* a producer waits for its own block's consumers only */
    EXPECTS_ITS_OWN,   /* only the bytes that this block copies itself are expected */
    ENDS_AT_ONCE,      /* no meeting at the end */
    BEGINS_AT_ONCE,    /* none at the beginning, before the barriers are made */
};

enum outcome { RIGHT, HANGS, OVERWRITTEN, UNREADY, GONE };

struct barrier {
    int arrivals, left, phase, bytes;
};

struct block {
    struct barrier full[STAGES], empty[STAGES];
    int content[STAGES][BOXES]; /* the turn whose data it is; -1: nothing yet, or on its way */
    int produced, read[MOST], held[MOST];
    struct moe_gemm_ring in, at[MOST];
    bool begun, ended;
};

/* What travels: a copy to a block (box >= 0), or an arrival at its empty barrier. */
struct message {
    int to, stage, box, turn;
};

struct play {
    enum mistake mistake;
    int team_log, readers, turns;
    struct block block[MOST];
    struct message message[4096];
    int messages;
    enum outcome outcome;
};

/* Tiles are three turns deep; from tile to tile the team stands otherwise, as it may from group to group. */
static struct moe_gemm_team team_at(const struct play *p, int turn)
{
    int high_log = turn / 3 % (p->team_log + 1);
    return (struct moe_gemm_team){high_log, p->team_log - high_log};
}

static void settle(struct barrier *b)
{
    if (b->left == 0 && b->bytes == 0) {
        b->left = b->arrivals;
        b->phase++;
    }
}

static bool over(const struct barrier *b, uint32_t parity)
{
    return (uint32_t)(b->phase & 1) != parity;
}

static void wrong(struct play *p, enum outcome what)
{
    p->outcome = p->outcome == RIGHT ? what : p->outcome;
}

static void send(struct play *p, int to, int stage, int box, int turn)
{
    assert_true(p->messages < (int)(sizeof(p->message) / sizeof(p->message[0])));
    p->message[p->messages++] = (struct message){to, stage, box, turn};
}

static void deliver(struct play *p, int which)
{
    struct message m = p->message[which];
    struct block *b = &p->block[m.to];
    p->message[which] = p->message[--p->messages];
    if (b->ended || !b->begun) {
        wrong(p, b->ended ? GONE : UNREADY);
        return;
    }
    struct barrier *bar = m.box >= 0 ? &b->full[m.stage] : &b->empty[m.stage];
    if (m.box >= 0) {
        b->content[m.stage][m.box] = m.turn;
        bar->bytes--;
    } else if (bar->left-- == 0) {
        wrong(p, OVERWRITTEN); /* more arrivals than a phase has: it was over too early */
        return;
    }
    settle(bar);
}

static void begin(struct play *p, struct block *b)
{
    int everyone = p->readers << (p->mistake == COUNTS_ITSELF || p->mistake == ARRIVES_AT_ITSELF ? 0 : p->team_log);
    everyone = p->mistake == ARRIVES_AT_ITSELF ? p->readers << p->team_log : everyone;
    for (int s = 0; s < STAGES; s++) {
        b->full[s] = (struct barrier){1, 1, 0, 0};
        b->empty[s] = (struct barrier){everyone, everyone, 0, 0};
    }
    b->begun = true;
}

/* Whether all blocks have come as far: the meeting of the cluster, in its two places. */
static bool all_begun(const struct play *p)
{
    for (int i = 0; i < 1 << p->team_log; i++) {
        if (!p->block[i].begun) {
            return p->mistake == BEGINS_AT_ONCE;
        }
    }
    return true;
}

static bool finished(const struct play *p, const struct block *b)
{
    bool done = b->produced == p->turns;
    for (int r = 0; r < p->readers; r++) {
        done = done && b->read[r] == p->turns && b->held[r] < 0;
    }
    return done;
}

static void produce(struct play *p, int rank)
{
    struct block *b = &p->block[rank];
    int turn = b->produced, stage = (int)b->in.stage, mine = 0;
    if (turn == p->turns || !over(&b->empty[stage], b->in.parity)) {
        return;
    }
    for (int box = 0; box < BOXES; box++) {
        bool of_a = box < BOXES_A;
        struct moe_gemm_team team = team_at(p, turn);
        struct moe_gemm_share s = of_a ? moe_gemm_share_a(team, rank) : moe_gemm_share_b(team, rank);
        if (((of_a ? box : box - BOXES_A) & s.others) != s.mine) {
            continue;
        }
        mine++;
        for (int to = 0; to < 1 << p->team_log; to++) {
            if (s.to >> to & 1) {
                p->block[to].content[stage][box] = -1; /* from now on it is not what it was */
                send(p, to, stage, box, turn);
            }
        }
    }
    b->full[stage].left--;
    b->full[stage].bytes += p->mistake == EXPECTS_ITS_OWN ? mine : BOXES;
    settle(&b->full[stage]);
    b->produced++;
    moe_gemm_ring_next(&b->in, STAGES);
}

static void look(struct play *p, const struct block *b, int stage, int turn)
{
    for (int box = 0; box < BOXES; box++) {
        if (b->content[stage][box] != turn) {
            wrong(p, OVERWRITTEN);
        }
    }
}

/* A reader takes a stage, and gives the one before back: its products are over when the next ones are enqueued. */
static void consume(struct play *p, int rank, int reader)
{
    struct block *b = &p->block[rank];
    struct moe_gemm_ring *at = &b->at[reader];
    bool more = b->read[reader] < p->turns;
    if (more && !over(&b->full[at->stage], at->parity)) {
        return;
    }
    if (b->held[reader] >= 0) {
        look(p, b, b->held[reader], b->read[reader] - 1);
        for (int to = 0; to < 1 << p->team_log; to++) {
            if (p->mistake == ARRIVES_AT_ITSELF || p->mistake == COUNTS_ITSELF ? to == rank : true) {
                send(p, to, b->held[reader], -1, 0);
            }
        }
        b->held[reader] = -1;
    }
    if (more) {
        look(p, b, (int)at->stage, b->read[reader]);
        b->held[reader] = (int)at->stage;
        b->read[reader]++;
        moe_gemm_ring_next(at, STAGES);
    }
}

static void step(struct play *p, int rank)
{
    struct block *b = &p->block[rank];
    if (b->ended) {
        return;
    }
    if (!b->begun) {
        begin(p, b);
    } else if (finished(p, b)) {
        bool all = true;
        for (int i = 0; i < 1 << p->team_log; i++) {
            all = all && (p->block[i].ended || (p->block[i].begun && finished(p, &p->block[i])));
        }
        /* Arrivals travel before those of the meeting: they were made earlier, and it is a release. */
        if (p->mistake == ENDS_AT_ONCE || (all && p->messages == 0)) {
            b->ended = true;
        }
    } else if (all_begun(p)) {
        int who = random_below(p->readers + 1);
        who == p->readers ? produce(p, rank) : consume(p, rank, who);
    }
}

static enum outcome play_team(int team_log, int readers, int turns, enum mistake mistake)
{
    static struct play p;
    memset(&p, 0, sizeof(p));
    p.mistake = mistake;
    p.team_log = team_log;
    p.readers = readers;
    p.turns = turns;
    for (int i = 0; i < MOST; i++) {
        p.block[i].in = (struct moe_gemm_ring){0, 1};
        memset(p.block[i].content, 0xff, sizeof(p.block[i].content));
        memset(p.block[i].held, 0xff, sizeof(p.block[i].held));
    }
    int slow = 0, ended = 0, blocks = 1 << team_log;
    bool slow_copies = false;
    for (long i = 0; ended < blocks && p.outcome == RIGHT; i++) {
        if (i == 2000000) {
            return HANGS;
        }
        if (random_below(300) == 0) { /* someone else is left behind */
            slow = random_below(blocks + 1);
            slow_copies = random_below(2) == 0;
        }
        int rank = random_below(blocks);
        if (rank != slow || random_below(50) == 0) {
            step(&p, rank);
        }
        int which = p.messages > 0 ? random_below(p.messages) : 0;
        if (p.messages > 0 && ((p.message[which].box >= 0) != slow_copies || random_below(50) == 0)) {
            deliver(&p, which);
        }
        ended = 0;
        for (int b = 0; b < blocks; b++) {
            ended += p.block[b].ended;
        }
    }
    return p.outcome;
}

static void test_a_teams_ring_neither_overtakes_nor_hangs(void **state)
{
    (void)state;
    for (int team_log = 0; team_log <= 2; team_log++) {
        for (int i = 0; i < 15; i++) {
            assert_int_equal(play_team(team_log, 2, 60, NONE), RIGHT);
        }
        assert_int_equal(play_team(team_log, 2, 1, NONE), RIGHT); /* fewer turns than stages */
        assert_int_equal(play_team(team_log, 2, 0, NONE), RIGHT); /* no tile at all */
    }
}

static void finds(enum mistake mistake, enum outcome as)
{
    for (int team_log = 1; team_log <= 2; team_log++) {
        int found = 0;
        for (int i = 0; i < 15; i++) {
            enum outcome got = play_team(team_log, 2, 60, mistake);
            assert_true(got == as || got == RIGHT);
            found += got == as;
        }
        assert_true(found > 0);
    }
}

static void test_the_play_finds_a_missing_remote_arrival(void **state)
{
    (void)state;
    for (int team_log = 1; team_log <= 2; team_log++) {
        assert_int_equal(play_team(team_log, 2, 60, ARRIVES_AT_ITSELF), HANGS);
    }
}

static void test_the_play_finds_a_stage_refilled_too_early(void **state)
{
    (void)state;
    finds(COUNTS_ITSELF, OVERWRITTEN);
}

static void test_the_play_finds_bytes_that_nobody_expects(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_not_equal(play_team(1 + i % 2, 2, 60, EXPECTS_ITS_OWN), RIGHT);
    }
}

static void test_the_play_finds_a_block_that_ends_before_its_neighbours(void **state)
{
    (void)state;
    finds(ENDS_AT_ONCE, GONE);
}

static void test_the_play_finds_a_copy_to_barriers_that_are_not_made(void **state)
{
    (void)state;
    finds(BEGINS_AT_ONCE, UNREADY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_teams_take_every_tile_once),
        cmocka_unit_test(test_a_team_stands_as_its_group_is),
        cmocka_unit_test(test_places_are_counted_without_overflow),
        cmocka_unit_test(test_every_box_reaches_every_block_once),
        cmocka_unit_test(test_a_teams_ring_neither_overtakes_nor_hangs),
        cmocka_unit_test(test_the_play_finds_a_missing_remote_arrival),
        cmocka_unit_test(test_the_play_finds_a_stage_refilled_too_early),
        cmocka_unit_test(test_the_play_finds_bytes_that_nobody_expects),
        cmocka_unit_test(test_the_play_finds_a_block_that_ends_before_its_neighbours),
        cmocka_unit_test(test_the_play_finds_a_copy_to_barriers_that_are_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
