/*
 * test_permute.c: row maps and the movements over them, the zero rules included.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/permute.h"
#include "moe_core/include/moe/router.h"

enum { T = 4, E = 3, TOPK = 2, H = 5, ROWS = T * TOPK, PAD = 2 };

/* Token 0 to experts 0 and 2, and so on; per expert 2, 3, 3 tokens. */
static const int32_t choice[T * TOPK] = {2, 0, 1, 2, 0, 1, 1, 2};

struct fixture {
    moe_device_t *device;
    moe_row_map_t *map;
    int32_t *index;
    int64_t *counts;
    float *x, *rows, *y, *probs, *d_probs;
    uint64_t state;
};

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->state = 3;
    assert_int_equal(moe_device_new_host(&f->device), 0);
    assert_int_equal(moe_row_map_new(f->device, T, E, &f->map), 0);
    f->index = support_array(f->device, T * TOPK, sizeof(*f->index));
    f->counts = support_array(f->device, E, sizeof(*f->counts));
    memcpy(f->index, choice, sizeof(choice));
    for (int i = 0; i < T * TOPK; i++) {
        f->counts[choice[i]]++;
    }
    f->x = support_floats(f->device, T * H);
    f->rows = support_floats(f->device, (ROWS + PAD) * H);
    f->y = support_floats(f->device, T * H);
    f->probs = support_floats(f->device, T * E);
    f->d_probs = support_floats(f->device, T * E);
    support_fill(f->x, NULL, T * H, 1, &f->state);
    support_fill(f->probs, NULL, T * E, 1, &f->state);
}

static void tear_down(struct fixture *f)
{
    void *arrays[] = {&f->index, &f->counts, &f->x, &f->rows, &f->y, &f->probs, &f->d_probs};
    moe_row_map_destroy(&f->map);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    moe_device_destroy(&f->device);
}

/* Row of (token, expert): expert-major, token order kept; -1 when not routed. `extra`: a padding row at the end of
 * expert 0. */
static int64_t row_of(int64_t token, int32_t expert, int64_t extra)
{
    int64_t row = expert > 0 ? extra : 0;
    bool routed = false;
    for (int32_t e = 0; e <= expert; e++) {
        for (int64_t t = 0; t < T; t++) {
            bool here = choice[t * TOPK] == e || choice[t * TOPK + 1] == e;
            row += here && (e < expert || t < token);
            routed = routed || (here && e == expert && t == token);
        }
    }
    return routed ? row : -1;
}

static void test_permute_is_expert_major_and_keeps_token_order(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS), 0);
    assert_int_equal(moe_permute(f.map, f.x, H, f.rows), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    for (int64_t t = 0; t < T; t++) {
        for (int32_t e = 0; e < E; e++) {
            int64_t row = row_of(t, e, 0);
            if (row >= 0) {
                assert_memory_equal(f.rows + row * H, f.x + t * H, H * sizeof(float));
            }
        }
    }
    tear_down(&f);
}

static void test_padding_rows_are_zero_and_do_not_count(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    f.counts[0] += PAD;
    support_poison(f.rows, (ROWS + PAD) * H);
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS + PAD), 0);
    assert_int_equal(moe_permute(f.map, f.x, H, f.rows), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    static const float zeros[PAD * H];
    assert_memory_equal(f.rows + 2 * H, zeros, sizeof(zeros)); /* expert 0 has 2 tokens, then the padding */
    assert_memory_equal(f.rows + row_of(1, 1, PAD) * H, f.x + H, H * sizeof(float));
    /* Whatever comes back in them is not seen. */
    support_poison(f.rows + 2 * H, PAD * H);
    assert_int_equal(moe_unpermute(f.map, f.rows, NULL, H, f.y), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    for (int64_t i = 0; i < T * H; i++) {
        assert_true(f.y[i] == 2 * f.x[i]);
    }
    tear_down(&f);
}

static void test_unpermute_weighs_and_its_backward_matches(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    float *dy = support_floats(f.device, T * H), *d_rows = support_floats(f.device, ROWS * H);
    support_fill(f.rows, NULL, ROWS * H, 1, &f.state);
    support_fill(dy, NULL, T * H, 1, &f.state);
    support_poison(d_rows, ROWS * H);
    support_poison(f.d_probs, T * E);
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS), 0);
    assert_int_equal(moe_unpermute(f.map, f.rows, f.probs, H, f.y), 0);
    assert_int_equal(moe_unpermute_backward(f.map, dy, f.rows, f.probs, H, d_rows, f.d_probs), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    for (int64_t t = 0; t < T; t++) {
        double y[H] = {0};
        for (int32_t e = 0; e < E; e++) {
            int64_t row = row_of(t, e, 0);
            double want[H] = {0}, d_prob = 0;
            for (int64_t h = 0; row >= 0 && h < H; h++) {
                double p = (double)f.probs[t * E + e];
                y[h] += p * (double)f.rows[row * H + h];
                want[h] = p * (double)dy[t * H + h];
                d_prob += (double)dy[t * H + h] * (double)f.rows[row * H + h];
            }
            if (row >= 0) {
                support_close("d_rows", d_rows + row * H, want, H, 1e-6);
            }
            assert_float_equal(f.d_probs[t * E + e], d_prob, 1e-5);
        }
        support_close("y", f.y + t * H, y, H, 1e-6);
    }
    moe_device_free(f.device, &dy);
    moe_device_free(f.device, &d_rows);
    tear_down(&f);
}

static void test_zero_tokens_give_a_valid_map_and_zeros(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    memset(f.counts, 0, E * sizeof(*f.counts));
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, 0, f.counts, 0), 0);
    assert_int_equal(moe_permute(f.map, f.x, H, f.rows), 0);
    assert_int_equal(moe_unpermute(f.map, f.rows, f.probs, H, f.y), 0);
    assert_int_equal(moe_permute_backward(f.map, f.rows, H, f.y, 0.0f), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    tear_down(&f);
}

static void test_a_map_that_was_not_built_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    assert_int_equal(moe_permute(f.map, f.x, H, f.rows), MOE_E_MAP);
    assert_int_equal(moe_unpermute(f.map, f.rows, NULL, H, f.y), MOE_E_MAP);
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS - 1), MOE_E_CAPACITY);
    assert_int_equal(moe_permute_backward(f.map, f.rows, H, f.y, 0.0f), MOE_E_MAP);
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T + 1, f.counts, 2 * ROWS), MOE_E_SHAPE);
    tear_down(&f);
}

static void test_counts_below_the_tokens_are_an_error(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    f.counts[1]--;
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS), 0);
    assert_int_equal(moe_device_sync(f.device), MOE_E_SPLIT);
    f.counts[1] += 2;
    f.counts[2] += 1;
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS), 0);
    assert_int_equal(moe_device_sync(f.device), MOE_E_CAPACITY);
    f.counts[1]--;
    f.counts[2]--;
    f.index[0] = E;
    assert_int_equal(moe_row_map_build_index(f.map, f.index, TOPK, T, f.counts, ROWS), 0);
    assert_int_equal(moe_device_sync(f.device), MOE_E_EXPERT);
    tear_down(&f);
}

static void test_ties_go_to_the_lowest_expert(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_router_t *router = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_router_config config = {.max_tokens = 2, .hidden = 1, .experts = 6, .topk = 3, .renormalise = true};
    assert_int_equal(moe_router_new(device, &config, &router), 0);
    float *x = support_floats(device, 2), *gate = support_floats(device, 6);
    const float scores[6] = {1, 2, 2, 3, 2, 3};
    memcpy(gate, scores, sizeof(scores));
    x[0] = 1;  /* scores as they are: 3, 5, then 1 of {1, 2, 4} */
    x[1] = -1; /* best is 0, then 1 of {1, 2, 4} twice */
    const struct moe_router_weights weights = {.gate = gate};
    assert_int_equal(moe_router_forward(router, x, &weights, 2), 0);
    assert_int_equal(moe_device_sync(device), 0);
    const int32_t want[6] = {3, 5, 1, 0, 1, 2};
    assert_memory_equal(moe_router_index(router), want, sizeof(want));
    const int64_t counts[6] = {1, 2, 1, 1, 0, 1};
    assert_memory_equal(moe_router_counts(router), counts, sizeof(counts));
    assert_int_equal(moe_router_forward(router, x, &weights, 3), MOE_E_SHAPE);
    moe_router_destroy(&router);
    config.topk = 7;
    assert_int_equal(moe_router_new(device, &config, &router), MOE_E_SHAPE);
    moe_device_free(device, &x);
    moe_device_free(device, &gate);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permute_is_expert_major_and_keeps_token_order),
        cmocka_unit_test(test_padding_rows_are_zero_and_do_not_count),
        cmocka_unit_test(test_unpermute_weighs_and_its_backward_matches),
        cmocka_unit_test(test_zero_tokens_give_a_valid_map_and_zeros),
        cmocka_unit_test(test_a_map_that_was_not_built_is_refused),
        cmocka_unit_test(test_counts_below_the_tokens_are_an_error),
        cmocka_unit_test(test_ties_go_to_the_lowest_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
