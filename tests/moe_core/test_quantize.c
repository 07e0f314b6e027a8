/*
 * test_quantize.c: rows rounded to FP8 (moe_quantize), against the definition of moe/fp8.h: bytes and scales, in rows
 * and in columns, one scale for a group or one for a block; blocks at the edges of what the types hold; what is of no
 * row stays as it was.
 */
#include "tests/moe_core/fp8_rows.h"

#include "common/fp8.h"
#include "moe_core/include/moe/ops.h"

enum { GROUPS = 6, WIDTH = 272, SLACK = 5, POISON = 0x5a };

static const int64_t counts[GROUPS] = {0, 131, 1, 0, 256, 0};

struct trial {
    struct moe_quantize q;
    moe_device_t *device;
    int64_t *m, bytes, scales;
    uint8_t *to;
};

static void set_up(struct trial *t, enum moe_fp8_rows how, bool down, enum moe_dtype type, enum moe_dtype to_type)
{
    uint64_t state = 5;
    int64_t rows = SLACK;
    assert_int_equal(moe_device_new_host(&t->device), 0);
    t->m = support_array(t->device, GROUPS, sizeof(*t->m));
    for (int g = 0; g < GROUPS; g++) {
        t->m[g] = counts[g];
        rows += counts[g];
    }
    int64_t pitch = moe_fp8_pitch(rows, GROUPS), across = (WIDTH + 127) / 128;
    t->bytes = down ? WIDTH * pitch : rows * WIDTH;
    t->scales = down ? pitch / 128 * WIDTH : rows * across;
    void *from = support_array(t->device, rows * WIDTH, moe_dtype_bytes(type));
    for (int64_t i = 0; i < rows * WIDTH; i++) { /* sizes from 2^-14 to 2^14: many binades in a block */
        double x = support_random(&state);
        typed_put(type, from, i, ldexp(x, (int)(14 * support_random(&state))));
    }
    t->to = support_array(t->device, t->bytes, 1);
    float *scales = support_floats(t->device, t->scales);
    memset(t->to, POISON, (size_t)t->bytes);
    support_poison(scales, t->scales);
    t->q = (struct moe_quantize){how, down, GROUPS, rows, WIDTH, t->m, type, to_type, from, t->to, scales};
}

static void tear_down(struct trial *t)
{
    void *from = (void *)(uintptr_t)t->q.from;
    moe_device_free(t->device, &from);
    moe_device_free(t->device, &t->m);
    moe_device_free(t->device, &t->to);
    moe_device_free(t->device, &t->q.scales);
    moe_device_destroy(&t->device);
}

static int run(struct trial *t)
{
    assert_int_equal(moe_device_ops(t->device)->quantize(t->device, &t->q), 0);
    return moe_device_sync(t->device);
}

/* One number: its byte is the nearest, and its scale is its block's. touched: which bytes and scales are of a row. */
static void check_one(const struct trial *t, int64_t first, int64_t g, int64_t r, int64_t c, double x, double scale,
                      uint8_t *touched)
{
    const struct moe_quantize *q = &t->q;
    int64_t pitch = moe_fp8_pitch(q->rows, GROUPS), row = first + r;
    int64_t column = (first + 127) / 128 * 128 + 128 * g + r; /* moe/ops.h: where group g's columns begin */
    int64_t at = q->down ? c * pitch + column : row * WIDTH + c,
            scale_at = q->down ? column / 128 * WIDTH + c : row * ((WIDTH + 127) / 128) + c / 128;
    double got = typed_get(q->to_type, q->to, at);
    if ((double)q->scales[scale_at] != scale || got != typed_round(q->to_type, x / scale) ||
        fabs(got * scale - x) > fp8_loss(q->to_type, x, scale)) {
        fail_msg("group %d, row %d, column %d: %g became %g times %g, want a scale of %g", (int)g, (int)r, (int)c, x,
                 got, (double)q->scales[scale_at], scale);
    }
    touched[at] |= 1;
    touched[scale_at] |= 2;
}

static void check_all(const struct trial *t)
{
    const struct moe_quantize *q = &t->q;
    uint8_t *touched = calloc((size_t)(t->bytes + t->scales), 1);
    int64_t first = 0;
    assert_non_null(touched);
    for (int g = 0; g < GROUPS; first += t->m[g++]) {
        double *x = support_doubles(t->m[g] * WIDTH);
        for (int64_t i = 0; i < t->m[g] * WIDTH; i++) {
            x[i] = typed_get(q->type, q->from, first * WIDTH + i);
        }
        double *scale = fp8_scales(q->how, q->down, q->to_type, t->m[g], WIDTH, x);
        for (int64_t i = 0; i < t->m[g] * WIDTH; i++) {
            check_one(t, first, g, i / WIDTH, i % WIDTH, x[i], scale[i], touched);
        }
        free(x);
        free(scale);
    }
    for (int64_t i = 0; i < t->bytes; i++) {
        assert_true((touched[i] & 1) != 0 || t->to[i] == POISON);
    }
    for (int64_t i = 0; i < t->scales; i++) {
        assert_true((touched[i] & 2) != 0 || support_is_poison(q->scales + i, 1));
    }
    free(touched);
}

static void test_every_way_type_and_direction(void **state)
{
    (void)state;
    static const enum moe_dtype from[] = {MOE_F32, MOE_BF16, MOE_F16};
    for (unsigned way = 0; way < 24; way++) {
        struct trial t;
        set_up(&t, way % 2 ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS, way / 2 % 2 != 0, from[way / 8],
               way / 4 % 2 ? MOE_E4M3 : MOE_E5M2);
        assert_int_equal(run(&t), 0);
        check_all(&t);
        tear_down(&t);
    }
}

/* Blocks of one number each among zeros: the scale, and the byte that the number becomes. */
static void test_blocks_at_the_edges_of_a_type(void **state)
{
    (void)state;
    static const struct {
        enum moe_dtype type;
        float x, scale;
        uint8_t byte;
    } edge[] = {
        {MOE_E4M3, 0.0f, 1.0f, 0x00},
        {MOE_E4M3, 448.0f, 1.0f, 0x7e},         /* the largest: nothing saturates, nothing is scaled away */
        {MOE_E4M3, 0x1.c00002p+8f, 2.0f, 0x76}, /* the next float: 224 */
        {MOE_E4M3, -512.0f, 2.0f, 0xf8},
        {MOE_E4M3, 1.0f, 0x1p-8f, 0x78},        /* 256 */
        {MOE_E4M3, 0x1p-149f, 0x1p-126f, 0x00}, /* below half the smallest number at the smallest scale */
        {MOE_E4M3, 0x1p-126f, 0x1p-126f, 0x38}, /* there it is 1 */
        {MOE_E4M3, 0x1.fffffep+127f, 0x1p+120f, 0x78},
        {MOE_E5M2, 0.0f, 1.0f, 0x00},
        {MOE_E5M2, 57344.0f, 1.0f, 0x7b},
        {MOE_E5M2, 0x1.c00002p+15f, 2.0f, 0x77},
        {MOE_E5M2, 0x1p-140f, 0x1p-126f, 0x04},
        {MOE_E5M2, 0x1.fffffep+127f, 0x1p+113f, 0x78},
    };
    for (size_t i = 0; i < sizeof(edge) / sizeof(edge[0]); i++) {
        for (int way = 0; way < 4; way++) {
            struct trial t;
            set_up(&t, way % 2 ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS, way / 2 != 0, MOE_F32, edge[i].type);
            float *from = (float *)(uintptr_t)t.q.from;
            memset(from, 0, (size_t)(t.q.rows * WIDTH) * sizeof(*from));
            int64_t row = counts[1], col = 5; /* group 2 has one row */
            from[row * WIDTH + col] = edge[i].x;
            assert_int_equal(run(&t), 0);
            int64_t pitch = moe_fp8_pitch(t.q.rows, GROUPS), column = moe_fp8_column(row, 2);
            int64_t at = t.q.down ? col * pitch + column : row * WIDTH + col,
                    scale_at = t.q.down ? column / 128 * WIDTH + col : row * ((WIDTH + 127) / 128);
            assert_int_equal(t.to[at], edge[i].byte);
            assert_true(t.q.scales[scale_at] == edge[i].scale);
            tear_down(&t);
        }
    }
}

/* They become NaN and do not count: the numbers beside them are rounded as if they were zeros. */
static void test_what_is_not_finite_is_kept_visible(void **state)
{
    (void)state;
    const float wrong[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (unsigned way = 0; way < 8; way++) {
        struct trial t, plain;
        enum moe_fp8_rows how = way % 2 ? MOE_FP8_TENSOR : MOE_FP8_BLOCKS;
        enum moe_dtype type = way / 4 ? MOE_E4M3 : MOE_E5M2;
        set_up(&t, how, way / 2 % 2 != 0, MOE_F32, type);
        set_up(&plain, how, way / 2 % 2 != 0, MOE_F32, type);
        for (int64_t i = 0; i < 4; i++) {
            int64_t at = (3 + 40 * i) % counts[1] * WIDTH + 60 * i;
            ((float *)(uintptr_t)t.q.from)[at] = wrong[i];
            ((float *)(uintptr_t)plain.q.from)[at] = 0;
        }
        assert_int_equal(run(&t), 0);
        assert_int_equal(run(&plain), 0);
        assert_memory_equal(t.q.scales, plain.q.scales, (size_t)t.scales * sizeof(float));
        int64_t differ = 0;
        for (int64_t i = 0; i < t.bytes; i++) {
            if (t.to[i] != plain.to[i]) {
                differ++;
                assert_int_equal(t.to[i], 0x7f);
                assert_int_equal(plain.to[i], 0);
            }
        }
        assert_int_equal(differ, 4);
        tear_down(&t);
        tear_down(&plain);
    }
}

static void test_counts_that_do_not_fit(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        struct trial t;
        set_up(&t, MOE_FP8_BLOCKS, way != 0, MOE_BF16, MOE_E4M3);
        t.m[2] = -1;
        assert_int_equal(run(&t), MOE_E_COUNT);
        t.m[2] = 1 + SLACK + 1;
        assert_int_equal(run(&t), MOE_E_SPLIT);
        for (int64_t i = 0; i < t.bytes; i++) {
            assert_int_equal(t.to[i], POISON);
        }
        t.m[2] = 1 + SLACK; /* the last row there is */
        assert_int_equal(run(&t), 0);
        check_all(&t);
        tear_down(&t);
    }
}

/* Where columns begin is known without the groups before: they never meet, whatever the counts are, and fit. */
static void test_columns_of_groups_never_meet(void **state)
{
    (void)state;
    uint64_t random = 11;
    for (int i = 0; i < 2000; i++) {
        int64_t groups = 1 + i % 9, row = 0, end = 0;
        for (int64_t g = 0; g < groups; g++) {
            double kind = support_random(&random);
            int64_t m = kind < -0.3 ? 0 : kind < 0.3 ? 128 * (int64_t)(4 * fabs(kind) * 10) : (int64_t)(kind * 400);
            assert_int_equal(moe_fp8_column(row, g) % 128, 0);
            assert_true(moe_fp8_column(row, g) >= end);
            end = moe_fp8_column(row, g) + (m + 127) / 128 * 128; /* behind its last block */
            row += m;
        }
        assert_true(moe_fp8_pitch(row, groups) >= end);
        assert_true(moe_fp8_pitch(row, groups) <= row + 128 * groups + 127);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way_type_and_direction),       cmocka_unit_test(test_blocks_at_the_edges_of_a_type),
        cmocka_unit_test(test_what_is_not_finite_is_kept_visible), cmocka_unit_test(test_counts_that_do_not_fit),
        cmocka_unit_test(test_columns_of_groups_never_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
