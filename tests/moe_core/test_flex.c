/*
 * test_flex.c: the Flex dispatchers with equal numbers of tokens: results, sequences of calls, budgets, buffers, legacy
 * behaviours.
 */
#include "tests/moe_core/flex_ranks.h"

#include "moe_core/include/moe/remedy.h"

#include <pthread.h>

static struct flex_result a[FLEX_RANKS], b[FLEX_RANKS];
static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_DEEPEP, MOE_DISPATCH_HYBRIDEP};

static struct flex_case even(enum moe_dispatcher_kind kind, int ranks, int64_t tokens)
{
    struct flex_case c = {.ranks = ranks, .kind = kind, .topk = 2, .travel = true};
    for (int r = 0; r < ranks; r++) {
        c.tokens[r] = tokens;
    }
    return c;
}

/* All went well on all ranks. */
static void expect_good(const struct flex_case *c, const struct flex_result *results)
{
    for (int r = 0; r < c->ranks; r++) {
        if (results[r].rc != 0) {
            fail_msg("rank %d: %d (%s)", r, results[r].rc, results[r].message);
        }
    }
}

static void test_results_equal_the_reference_on_every_layout(void **state)
{
    (void)state;
    static const struct {
        int ranks, etp;
        uint32_t empty;
    } layouts[] = {{1, 1, 0}, {2, 1, 0},    {2, 2, 0}, {4, 1, 0}, {4, 2, 1},
                   {4, 4, 0}, {8, 1, 0x81}, {8, 2, 2}, {4, 1, 7}};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
            for (int variant = 0; variant < 4; variant++) {
                struct flex_case c = even(kinds[k], layouts[i].ranks, 6);
                c.etp = layouts[i].etp;
                c.empty = layouts[i].empty;
                c.travel = variant & 1;
                c.masked = variant >> 1;
                c.topk = variant == 3 && layouts[i].ranks / layouts[i].etp > 1 ? 3 : 2;
                c.row_multiple = variant == 2 ? 4 : 0;
                flex_run(&c, a);
                expect_good(&c, a);
                flex_check(&c, a, 1e-5);
                flex_same_calls(&c, a);
            }
        }
    }
}

static void test_bfloat16_rows(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 4, 9);
        c.type = MOE_BF16;
        flex_run(&c, a);
        expect_good(&c, a);
        flex_check(&c, a, 2e-2);
    }
}

static void test_each_kind_issues_its_table(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 4, 6);
        c.empty = 4;
        flex_run(&c, a);
        expect_good(&c, a);
        for (int r = 0; r < 4; r++) {
            char seen[FLEX_CALLS + 1] = "";
            for (size_t i = 0; i < a[r].calls; i++) {
                seen[i] = a[r].call[i].op;
            }
            /* counts or maps, rows, choices, combine; backward. The buffer's own exchange came before the handle was
             * there. */
            assert_string_equal(seen, "GAAAAAA");
            assert_int_equal(a[r].buffer.made, 1);
            assert_int_equal(a[r].obligations, 3);
            assert_int_equal(a[r].forward_calls, 4);
        }
        /* counts: ranks + E + 1 words; maps: a line of 8 bytes per token and 8 more */
        assert_int_equal(a[0].call[0].bytes, k == 0 ? (4 + 8 + 1) * 8 : 6 * 8 + 8);
    }
}

static void test_the_host_waits_where_the_table_says(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 2, 6);
        flex_run(&c, a);
        expect_good(&c, a);
        assert_int_equal(a[0].forward_waits, 1);
    }
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 2, 6);
    c.row_budget = 40;
    c.forwards = 3;
    flex_run(&c, a);
    expect_good(&c, a);
    flex_check(&c, a, 1e-5);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(a[r].forward_waits, 0);
        assert_false(a[r].exact);
        assert_int_equal(a[r].received, 40);
        assert_int_equal(a[r].dropped, 0);
        assert_false(a[r].replay);
    }
}

static void test_pad_gives_each_rank_without_rows_a_zero_row(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 4, 6);
        c.empty = 5;
        c.forwards = 2;
        flex_run(&c, a);
        for (int r = 0; r < 4; r++) {
            c.proposed[r] = MOE_REMEDY_PAD;
        }
        flex_run(&c, b);
        expect_good(&c, b);
        flex_check(&c, b, 1e-5);
        for (int r = 0; r < 4; r++) {
            bool empty = c.empty >> r & 1;
            assert_int_equal(b[r].agreed[1], MOE_REMEDY_PAD);
            assert_int_equal(a[r].received == 0, empty);
            assert_int_equal(b[r].received, empty ? 1 : a[r].received);
            assert_int_equal(b[r].pad_rows, empty);
            assert_int_equal(b[r].empty_experts, a[r].empty_experts - empty);
            assert_int_equal(b[r].m[0], empty ? 1 : a[r].m[0]);
        }
        flex_equal(&c, a, b);
        c.proposed[2] = 0; /* one rank does not propose it, so it is in force on none */
        flex_run(&c, b);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(b[r].agreed[1], 0);
            assert_int_equal(b[r].pad_rows, 0);
        }
    }
}

/* a row budget */

static void test_overflow_drops_the_same_choices_every_time(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 4, 16);
    c.empty = 2; /* the rank of empty experts never overflows */
    flex_run(&c, a);
    int64_t exact[4];
    for (int r = 0; r < 4; r++) {
        exact[r] = a[r].received;
    }
    c.row_budget = 20;
    flex_run(&c, a);
    flex_run(&c, b);
    expect_good(&c, a);
    flex_equal(&c, a, b);
    int64_t most = 0;
    for (int r = 0; r < 4; r++) {
        assert_int_equal(a[r].m[0] + a[r].m[1], exact[r] < 20 ? exact[r] : 20);
        assert_int_equal(a[r].dropped, exact[r] > 20 ? exact[r] - 20 : 0);
        most = a[r].dropped > most ? a[r].dropped : most;
    }
    assert_true(most > 0);
    for (int r = 0; r < 4; r++) {
        assert_true(a[r].replay); /* the rank without rows too */
        assert_int_equal(a[r].most_dropped, most);
    }
    flex_check(&c, a, 1e-5);
    c.row_budget = 1000;
    flex_run(&c, b);
    flex_check(&c, b, 1e-5);
    for (int r = 0; r < 4; r++) {
        assert_false(b[r].replay);
    }
}

/* One too many, one too few: each row that the budget lacks is counted, on each rank. */
static void test_overflow_is_counted_to_the_row(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 2, 16);
    flex_run(&c, b);
    int64_t exact = b[0].received, others = b[1].received;
    for (c.row_budget = exact - 3; c.row_budget <= exact + 1; c.row_budget++) {
        flex_run(&c, a);
        expect_good(&c, a);
        flex_check(&c, a, 1e-5);
        assert_int_equal(a[0].dropped, exact > c.row_budget ? exact - c.row_budget : 0);
        assert_int_equal(a[1].dropped, others > c.row_budget ? others - c.row_budget : 0);
    }
}

/* The budget of this layer-forward is less than the buffer: what lies between is not written, overflow or not. */
static void test_overflow_writes_nothing_beyond_the_budget(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 4, 16);
    c.empty = 2;
    for (c.budget_factor = 0.1f; c.budget_factor < 5.0f; c.budget_factor *= 6.0f) {
        c.row_budget = 0;
        flex_run(&c, a);
        expect_good(&c, a);
        c.row_budget = moe_flex_budget(16, 2, c.budget_factor, 0); /* for the reference */
        flex_check(&c, a, 1e-5);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(a[r].received, c.row_budget);
            assert_int_equal(a[r].canaries, moe_flex_budget(128, 2, c.budget_factor, 0) - c.row_budget);
            assert_true(a[r].canaries > 0);
        }
    }
}

static void test_overflow_is_summed_over_forwards(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 2, 16);
    c.row_budget = 20;
    flex_run(&c, a);
    c.forwards = 3;
    flex_run(&c, b);
    assert_true(a[0].dropped + a[1].dropped > 0);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(b[r].dropped, 3 * a[r].dropped);
    }
}

/* H26: answered alone, some ranks replay and others do not. */
static void test_replay_answered_alone_differs_between_ranks(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 4, 16);
    c.empty = 2;
    c.row_budget = 20;
    c.alone = true;
    flex_run(&c, a);
    expect_good(&c, a);
    assert_false(a[1].replay);
    assert_true(a[0].replay || a[2].replay || a[3].replay);
}

static void test_budget_is_rounded_up_to_the_row_multiple(void **state)
{
    (void)state;
    assert_int_equal(moe_flex_budget(64, 2, 1.25f, 0), 160);
    assert_int_equal(moe_flex_budget(64, 2, 1.25f, 16), 160);
    assert_int_equal(moe_flex_budget(64, 3, 0.3f, 16), 64);
    assert_int_equal(moe_flex_budget(0, 8, 2.0f, 16), 0);
    struct flex_case c = even(MOE_DISPATCH_HYBRIDEP, 2, 6);
    c.budget_factor = 3.0f;
    c.row_multiple = 8;
    flex_run(&c, a);
    expect_good(&c, a);
    flex_check(&c, a, 1e-5);
    assert_int_equal(a[0].received, 40); /* int(6 x 2 x 3) = 36 */
}

/* the buffer */

static void test_groups_inside_a_node_have_no_rdma_part(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 4, 6);
        flex_run(&c, a);
        c.node_ranks = 2;
        flex_run(&c, b);
        expect_good(&c, b);
        flex_check(&c, b, 1e-5);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(a[r].buffer.node_ranks, 4); /* found by host names */
            assert_int_equal(a[r].buffer.rdma_bytes, 0);
            assert_true(a[r].buffer.nvl_bytes > 0);
            assert_int_equal(b[r].buffer.node_ranks, 2);
            assert_true(b[r].buffer.rdma_bytes > 0);
            assert_int_equal(b[r].buffer.nvl_bytes + b[r].buffer.rdma_bytes, a[r].buffer.nvl_bytes);
        }
        flex_equal(&c, a, b);
    }
}

static void test_a_buffer_is_shared_and_grows(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_ep_buffer_t *one = NULL, *two = NULL;
    struct moe_ep_buffer_info info;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_ep_buffer_acquire(device, NULL, 1000, 300, 0, &one), 0);
    assert_int_equal(moe_ep_buffer_acquire(device, NULL, 500, 200, 0, &two), 0);
    assert_ptr_equal(one, two);
    moe_ep_buffer_describe(one, &info);
    assert_int_equal(info.made, 1);
    assert_int_equal(info.nvl_bytes, 1024 + 512);
    assert_int_equal((uintptr_t)moe_ep_buffer_send(one) - (uintptr_t)moe_ep_buffer_receive(one), 1024);
    moe_ep_buffer_release(&two);
    assert_int_equal(moe_ep_buffer_acquire(device, NULL, 500, 5000, 0, &two), 0);
    moe_ep_buffer_describe(one, &info);
    assert_int_equal(info.made, 2);
    assert_int_equal(info.nvl_bytes, 1024 + 5120); /* the larger of both, each */
    moe_ep_buffer_release(&one);
    moe_ep_buffer_release(&two);
    assert_int_equal(moe_ep_buffer_acquire(device, NULL, 1, 1, 0, &one), 0);
    moe_ep_buffer_describe(one, &info);
    assert_int_equal(info.made, 1); /* the old one was freed */
    moe_ep_buffer_release(&one);
    moe_device_destroy(&device);
}

struct buffer_rank {
    ncclUniqueId id;
    int rank, rc[3];
    struct moe_ep_buffer_info info[3];
};

static void *run_buffer(void *arg)
{
    struct buffer_rank *r = arg;
    static const size_t asked[3] = {4096, 8192, 9000}; /* the last: rank 2 asks for another */
    ncclComm_t comm = NULL;
    moe_device_t *device = NULL;
    moe_ep_buffer_t *buffer[3] = {NULL};
    bool there = cudaSetDevice(r->rank) == cudaSuccess && moe_device_new_host(&device) == 0 &&
                 ncclCommInitRank(&comm, 3, r->id, r->rank) == ncclSuccess;
    for (int i = 0; i < 3; i++) {
        size_t bytes = asked[i] + (i == 2 && r->rank == 2 ? 512 : 0);
        r->rc[i] = there ? moe_ep_buffer_acquire(device, comm, bytes, 256, 0, &buffer[i]) : -99;
        if (r->rc[i] == 0) {
            moe_ep_buffer_describe(buffer[i], &r->info[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        moe_ep_buffer_release(&buffer[i]);
    }
    moe_device_destroy(&device);
    if (comm != NULL) {
        ncclCommDestroy(comm);
    }
    return NULL;
}

static void test_ranks_make_the_same_buffer_or_none(void **state)
{
    (void)state;
    pthread_t thread[3];
    struct buffer_rank rank[3];
    ncclUniqueId id;
    memset(rank, 0, sizeof(rank));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < 3; r++) {
        rank[r].id = id;
        rank[r].rank = r;
        assert_int_equal(pthread_create(&thread[r], NULL, run_buffer, &rank[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rank[r].rc[0], 0);
        assert_int_equal(rank[r].info[0].made, 1);
        assert_int_equal(rank[r].info[0].ranks, 3);
        assert_int_equal(rank[r].info[0].node_ranks, 3);
        assert_int_equal(rank[r].rc[1], 0);
        assert_int_equal(rank[r].info[1].made, 2);
        assert_int_equal(rank[r].info[1].nvl_bytes, 8192 + 256);
        assert_int_equal(rank[r].rc[2], MOE_E_SHAPE); /* on all of them */
    }
}

/* legacy */

/* H6, and its healthy twins. */
static void test_a_rank_that_returns_early_hangs_its_peers(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct flex_case c = even(kinds[k], 4, 6);
        c.empty = 4;
        c.legacy.empty_returns_early = true;
        assert_true(flex_hangs(&c, a, 300));
        assert_int_equal(a[2].rc, 0); /* the culprit has finished its forward; it waits for no rank */
        c.granted = MOE_REMEDY_FILL;
        flex_run(&c, a);
        expect_good(&c, a);
        flex_check(&c, a, 1e-5);
        c.granted = 0;
        c.empty = 0;
        flex_run(&c, a);
        expect_good(&c, a);
        flex_check(&c, a, 1e-5);
    }
}

/* H5: forward is healthy, backward lacks dispatch's obligations. */
static void test_rows_from_elsewhere_have_no_backward_of_dispatch(void **state)
{
    (void)state;
    struct flex_case c = even(MOE_DISPATCH_DEEPEP, 4, 6);
    c.empty = 4;
    c.legacy.empty_from_input = true;
    c.no_backward = true;
    flex_run(&c, a);
    expect_good(&c, a);
    flex_check(&c, a, 1e-5);
    c.no_backward = false;
    assert_true(flex_hangs(&c, a, 300));
    for (int r = 0; r < 4; r++) {
        assert_int_equal(a[r].obligations, r == 2 ? 1 : 3);
    }
    c.granted = MOE_REMEDY_FILL;
    flex_run(&c, a);
    flex_check(&c, a, 1e-5);
    assert_int_equal(a[2].obligations, 3);
}

static void test_what_a_kind_does_not_have_is_refused(void **state)
{
    (void)state;
    struct flex_case cases[6];
    for (size_t i = 0; i < 6; i++) {
        cases[i] = even(i < 2 ? MOE_DISPATCH_DEEPEP : MOE_DISPATCH_HYBRIDEP, 1, 6);
    }
    cases[0].row_budget = 9;
    cases[1].legacy.static_rows = true;
    cases[2].legacy.local_capacity = true;
    cases[3].row_budget = 9;
    cases[3].budget_factor = 2.0f;
    cases[4].row_budget = 9;
    cases[4].legacy.empty_returns_early = true;
    cases[5].row_budget = 9;
    cases[5].legacy.empty_unpermute = true;
    for (size_t i = 0; i < 6; i++) {
        flex_run(&cases[i], a);
        assert_int_equal(a[0].rc, MOE_E_UNSUPPORTED);
        assert_non_null(strstr(a[0].message, "rank 0, layer 3"));
        assert_int_equal(a[0].calls, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_equal_the_reference_on_every_layout),
        cmocka_unit_test(test_bfloat16_rows),
        cmocka_unit_test(test_each_kind_issues_its_table),
        cmocka_unit_test(test_the_host_waits_where_the_table_says),
        cmocka_unit_test(test_pad_gives_each_rank_without_rows_a_zero_row),
        cmocka_unit_test(test_overflow_drops_the_same_choices_every_time),
        cmocka_unit_test(test_overflow_is_counted_to_the_row),
        cmocka_unit_test(test_overflow_writes_nothing_beyond_the_budget),
        cmocka_unit_test(test_overflow_is_summed_over_forwards),
        cmocka_unit_test(test_replay_answered_alone_differs_between_ranks),
        cmocka_unit_test(test_budget_is_rounded_up_to_the_row_multiple),
        cmocka_unit_test(test_groups_inside_a_node_have_no_rdma_part),
        cmocka_unit_test(test_a_buffer_is_shared_and_grows),
        cmocka_unit_test(test_ranks_make_the_same_buffer_or_none),
        cmocka_unit_test(test_a_rank_that_returns_early_hangs_its_peers),
        cmocka_unit_test(test_rows_from_elsewhere_have_no_backward_of_dispatch),
        cmocka_unit_test(test_what_a_kind_does_not_have_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
