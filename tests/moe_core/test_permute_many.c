/*
 * test_permute_many.c: the movements over many tokens: looked up ahead of their turn, in ranges that threads take,
 * stored past the caches. Every number against the definition, bit by bit, with one thread and with three.
 *
 * test_permute_kinds.c has few tokens and every way to build a map; here are more tokens than are looked up at once,
 * with any number of rows, none included, and more bytes than one range has.
 */
#include "tests/moe_core/permute_ref.h"

enum { T = 901, E = 24, K = 4, H = 453, MOST = T * K, EXTRA = 3 };

struct fixture {
    moe_device_t *device;
    moe_row_map_t *map;
    struct moe_movement move;
    int32_t *index;
    int64_t row[T][K], n[T]; /* a token's rows, highest first, and their number */
    int32_t choice[T][K];    /* the choice that has the row */
    void *x, *rows, *y, *d_rows, *first;
    float *probs, *row_probs, *d_row_probs, *d_probs;
    uint64_t random;
};

/* A third of the tokens has all choices, the others any number of them. */
static void choose(struct fixture *f)
{
    for (int64_t t = 0; t < T; t++) {
        uint64_t word = (uint64_t)((support_random(&f->random) + 1) * 1e9);
        for (int32_t j = 0; j < K; j++) {
            bool none = t % 3 != 0 && (word >> (20 + j) & 1) != 0;
            f->index[t * K + j] = none ? -1 : (int32_t)((word + (uint64_t)j * 7) % E);
        }
    }
}

/* Rows by definition: expert after expert, in each the tokens in order. */
static void number_rows(struct fixture *f)
{
    int64_t row = 0;
    for (int32_t e = 0; e < E; e++) {
        for (int64_t t = 0; t < T; t++) {
            for (int32_t j = 0; j < K; j++) {
                if (f->index[t * K + j] == e) {
                    for (int64_t i = f->n[t]++; i > 0; i--) {
                        f->row[t][i] = f->row[t][i - 1];
                        f->choice[t][i] = f->choice[t][i - 1];
                    }
                    f->row[t][0] = row++;
                    f->choice[t][0] = j;
                }
            }
        }
    }
    f->move.rows = row + EXTRA;
}

static void set_up(struct fixture *f, enum moe_map_kind kind, enum moe_dtype type)
{
    memset(f, 0, sizeof(*f));
    f->random = 77;
    f->move = (struct moe_movement){.kind = kind, .type = type, .tokens = T, .hidden = H};
    assert_int_equal(moe_device_new_host(&f->device), 0);
    f->index = support_array(f->device, T * K, sizeof(*f->index));
    choose(f);
    number_rows(f);
    const size_t row = H * moe_dtype_bytes(type);
    f->x = support_array(f->device, T, row);
    f->y = support_array(f->device, T, row);
    f->rows = support_array(f->device, MOST, row);
    f->d_rows = support_array(f->device, MOST, row);
    f->first = support_array(f->device, MOST, row);
    f->probs = support_floats(f->device, T * E);
    f->d_probs = support_floats(f->device, T * E);
    f->row_probs = support_floats(f->device, MOST);
    f->d_row_probs = support_floats(f->device, MOST);
    support_fill(f->probs, NULL, T * E, 1, &f->random);
    support_fill(f->d_row_probs, NULL, MOST, 1, &f->random);
    for (int64_t i = 0; i < MOST * H; i++) {
        typed_put(type, f->rows, i, support_random(&f->random));
    }
    for (int64_t i = 0; i < T * H; i++) {
        typed_put(type, f->x, i, support_random(&f->random));
    }
    struct moe_row_map_config config = {
        .kind = kind, .max_tokens = T, .experts = E, .k = kind == MOE_MAP_MASK ? 0 : K, .max_rows = MOST};
    if (kind != MOE_MAP_SORTED) {
        config.max_rows = 0;
    }
    assert_int_equal(moe_row_map_create(f->device, &config, &f->map), 0);
    const struct moe_map_source source = {.index = f->index};
    assert_int_equal(moe_row_map_build_from(f->map, &source, K, T, f->move.rows), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
}

static void tear_down(struct fixture *f)
{
    void *arrays[] = {&f->index, &f->x,     &f->y,       &f->rows,      &f->d_rows,
                      &f->first, &f->probs, &f->d_probs, &f->row_probs, &f->d_row_probs};
    moe_row_map_destroy(&f->map);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    moe_device_destroy(&f->device);
}

static int64_t cell(const struct fixture *f, int64_t t, int64_t i)
{
    return f->move.layout == MOE_PROBS_BY_EXPERT ? t * E + f->index[t * K + f->choice[t][i]] : t * K + f->choice[t][i];
}

static size_t probs_count(const struct fixture *f)
{
    return (size_t)T * (f->move.layout == MOE_PROBS_BY_EXPERT ? E : K);
}

static void poison(struct fixture *f)
{
    const size_t row = H * moe_dtype_bytes(f->move.type);
    memset(f->y, CANARY_BYTE, T * row);
    memset(f->d_rows, CANARY_BYTE, MOST * row);
    memset(f->row_probs, CANARY_BYTE, MOST * sizeof(float));
    memset(f->d_probs, CANARY_BYTE, (size_t)T * E * sizeof(float));
}

/* What lies behind the rows was not written. */
static void check_behind(const struct fixture *f)
{
    const size_t row = H * moe_dtype_bytes(f->move.type);
    for (size_t b = (size_t)f->move.rows * row; b < MOST * row; b++) {
        assert_int_equal(((unsigned char *)f->d_rows)[b], CANARY_BYTE);
    }
}

static void check_permute(struct fixture *f)
{
    const size_t row = H * moe_dtype_bytes(f->move.type);
    static const unsigned char zeros[H * sizeof(float)];
    poison(f);
    assert_int_equal(moe_map_permute(f->map, &f->move, f->x, f->probs, f->d_rows, f->row_probs), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < f->n[t]; i++) {
            assert_memory_equal((unsigned char *)f->d_rows + (size_t)f->row[t][i] * row,
                                (unsigned char *)f->x + (size_t)t * row, row);
            assert_true(f->row_probs[f->row[t][i]] == f->probs[cell(f, t, i)]);
        }
    }
    for (int64_t r = f->move.rows - EXTRA; r < f->move.rows; r++) {
        assert_memory_equal((unsigned char *)f->d_rows + (size_t)r * row, zeros, row);
        assert_true(f->row_probs[r] == 0.0f);
    }
    check_behind(f);
}

/* Element h of token t: the sum of its rows, each product and each sum rounded by itself, cast once. */
static double sum_of(const struct fixture *f, int64_t t, int64_t h, bool weighted)
{
    float one = 0;
    volatile float sum = 0.0f;
    for (int64_t i = 0; i < f->n[t]; i++) {
        float value = (float)typed_get(f->move.type, f->rows, f->row[t][i] * H + h);
        volatile float product = weighted ? f->probs[cell(f, t, i)] * value : value;
        sum = sum + product;
    }
    typed_put(f->move.type, &one, 0, (double)sum);
    return typed_get(f->move.type, &one, 0);
}

static void check_sums(struct fixture *f, bool weighted)
{
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < H; h++) {
            assert_true(typed_get(f->move.type, f->y, t * H + h) == sum_of(f, t, h, weighted));
        }
    }
}

static void check_unpermute(struct fixture *f)
{
    poison(f);
    assert_int_equal(moe_map_unpermute(f->map, &f->move, f->rows, f->probs, f->y), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    check_sums(f, true);
    poison(f);
    assert_int_equal(moe_map_permute_backward(f->map, &f->move, f->rows, f->d_row_probs, NULL, 0, f->y, f->d_probs), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    check_sums(f, false);
    static float want[T * E];
    memset(want, 0, sizeof(want));
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < f->n[t]; i++) {
            want[cell(f, t, i)] = f->d_row_probs[f->row[t][i]];
        }
    }
    assert_memory_equal(want, f->d_probs, probs_count(f) * sizeof(float));
}

/* The gradients of rows bit by bit; those of probabilities against double, and the same bits in every run. */
static void check_backward(struct fixture *f, float *first_d_probs)
{
    poison(f);
    assert_int_equal(moe_map_unpermute_backward(f->map, &f->move, f->x, f->rows, f->probs, f->d_rows, f->d_probs), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    int64_t made = 0;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < f->n[t]; i++) {
            double dot = 0;
            for (int64_t h = 0; h < H; h++) {
                float one = 0, dy = (float)typed_get(f->move.type, f->x, t * H + h);
                typed_put(f->move.type, &one, 0, (double)(f->probs[cell(f, t, i)] * dy));
                assert_true(typed_get(f->move.type, f->d_rows, f->row[t][i] * H + h) ==
                            typed_get(f->move.type, &one, 0));
                dot += (double)dy * typed_get(f->move.type, f->rows, f->row[t][i] * H + h);
            }
            assert_true(fabs((double)f->d_probs[cell(f, t, i)] - dot) < 1e-4);
            made++;
        }
    }
    for (size_t i = 0; i < probs_count(f); i++) {
        made -= f->d_probs[i] != 0.0f;
    }
    assert_int_equal(made, 0); /* what was not chosen is zero */
    check_behind(f);
    if (first_d_probs[0] == 1.0f) {
        memcpy(first_d_probs, f->d_probs, probs_count(f) * sizeof(float));
    }
    assert_memory_equal(first_d_probs, f->d_probs, probs_count(f) * sizeof(float));
}

static void check_kind(enum moe_map_kind kind, enum moe_dtype type, enum moe_prob_layout layout)
{
    static struct fixture f;
    static float first_d_probs[T * E];
    set_up(&f, kind, type);
    f.move.layout = layout;
    first_d_probs[0] = 1.0f;
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_int_equal(moe_device_host_threads(threads), threads);
        check_permute(&f);
        check_unpermute(&f);
        check_backward(&f, first_d_probs);
    }
    tear_down(&f);
}

static void test_masks(void **state)
{
    (void)state;
    check_kind(MOE_MAP_MASK, MOE_F32, MOE_PROBS_BY_EXPERT);
    check_kind(MOE_MAP_MASK, MOE_BF16, MOE_PROBS_BY_EXPERT);
}

static void test_indices(void **state)
{
    (void)state;
    check_kind(MOE_MAP_INDEX, MOE_BF16, MOE_PROBS_BY_CHOICE);
    check_kind(MOE_MAP_INDEX, MOE_F16, MOE_PROBS_BY_EXPERT);
}

static void test_sorted_maps(void **state)
{
    (void)state;
    check_kind(MOE_MAP_SORTED, MOE_F32, MOE_PROBS_BY_CHOICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_indices),
        cmocka_unit_test(test_sorted_maps),
    };
    setenv("MOE_HOST_THREADS", "3", 1); /* read at the first movement */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
