/*
 * test_permute_rows.c: chunks of rows in another order, rows padded and trimmed, and the arithmetic under them: the
 * tables of all instruction sets must give the same bits.
 */
#include "tests/moe_core/permute_ref.h"

#include "moe_core/host/host_rows.h"
#include "moe_core/include/moe/rows.h"

enum { H = 19, ROWS = 12, CHUNKS = 5 };

static const enum moe_dtype types[] = {MOE_F32, MOE_BF16, MOE_F16, MOE_E4M3};

struct fixture {
    moe_device_t *device;
    struct moe_map_header *map;
    struct guarded from, to, probs, probs_to;
    int64_t *split, *m;
    int32_t *order;
};

static void set_up(struct fixture *f, enum moe_dtype type)
{
    const size_t row = H * moe_dtype_bytes(type);
    memset(f, 0, sizeof(*f));
    assert_int_equal(moe_device_new_host(&f->device), 0);
    f->map = support_array(f->device, (int64_t)moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, ROWS), 1);
    f->from = guarded_new(f->device, ROWS * row);
    f->to = guarded_new(f->device, ROWS * row);
    f->probs = guarded_new(f->device, ROWS * sizeof(float));
    f->probs_to = guarded_new(f->device, ROWS * sizeof(float));
    f->split = support_array(f->device, 2 * CHUNKS, sizeof(*f->split));
    f->m = support_array(f->device, CHUNKS, sizeof(*f->m));
    f->order = support_array(f->device, CHUNKS, sizeof(*f->order));
    for (size_t i = 0; i < f->from.bytes; i++) {
        ((unsigned char *)f->from.data)[i] = (unsigned char)(i * 7 + i / row);
    }
    for (int i = 0; i < ROWS; i++) {
        ((float *)f->probs.data)[i] = (float)(i + 1);
    }
}

static void tear_down(struct fixture *f)
{
    void *arrays[] = {&f->map, &f->split, &f->m, &f->order};
    guarded_free(f->device, &f->from);
    guarded_free(f->device, &f->to);
    guarded_free(f->device, &f->probs);
    guarded_free(f->device, &f->probs_to);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    moe_device_destroy(&f->device);
}

static int sort(struct fixture *f, enum moe_dtype type, bool inverse)
{
    const struct moe_chunk_sort args = {.rows = ROWS,
                                        .width = H,
                                        .type = type,
                                        .inverse = inverse,
                                        .map = f->map,
                                        .from = f->from.data,
                                        .to = f->to.data,
                                        .probs_from = f->probs.data,
                                        .probs_to = f->probs_to.data};
    memset(f->to.data, CANARY_BYTE, f->to.bytes);
    memset(f->probs_to.data, CANARY_BYTE, f->probs_to.bytes);
    assert_int_equal(moe_device_ops(f->device)->chunk_sort(f->device, &args), 0);
    return moe_device_sync(f->device);
}

/* to[row] is from[want[row]], a zero row where want is -1. */
static void assert_rows(const struct fixture *f, enum moe_dtype type, const int *want)
{
    const size_t row = H * moe_dtype_bytes(type);
    static const unsigned char zeros[H * sizeof(float)];
    for (int r = 0; r < ROWS; r++) {
        const unsigned char *from = want[r] < 0 ? zeros : (unsigned char *)f->from.data + (size_t)want[r] * row;
        assert_memory_equal((unsigned char *)f->to.data + (size_t)r * row, from, row);
        assert_true(((float *)f->probs_to.data)[r] == (float)(want[r] + 1));
    }
}

static int build_order(struct fixture *f, const int64_t *split, const int32_t *order, bool slack)
{
    memcpy(f->split, split, CHUNKS * sizeof(*split));
    memcpy(f->order, order, CHUNKS * sizeof(*order));
    const struct moe_chunk_order args = {
        .chunks = CHUNKS, .rows = ROWS, .slack = slack, .split = f->split, .order = f->order, .map = f->map};
    assert_int_equal(moe_device_ops(f->device)->chunk_order(f->device, &args), 0);
    return moe_device_sync(f->device);
}

static void test_chunks_in_any_order_and_back(void **state)
{
    (void)state;
    static const int64_t split[CHUNKS] = {3, 0, 4, 2, 3}, less[CHUNKS] = {3, 0, 4, 2, 1}, none[CHUNKS] = {0};
    static const int32_t order[CHUNKS] = {3, 0, 4, 1, 2};
    static const int there[ROWS] = {7, 8, 0, 1, 2, 9, 10, 11, 3, 4, 5, 6};
    static const int back[ROWS] = {2, 3, 4, 8, 9, 10, 11, 0, 1, 5, 6, 7};
    static const int there_less[ROWS] = {7, 8, 0, 1, 2, 9, 3, 4, 5, 6, -1, -1};
    static const int back_less[ROWS] = {2, 3, 4, 6, 7, 8, 9, 0, 1, 5, -1, -1};
    static const int nothing[ROWS] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct fixture f;
        set_up(&f, types[i]);
        assert_int_equal(build_order(&f, split, order, false), 0);
        assert_int_equal(sort(&f, types[i], false), 0);
        assert_rows(&f, types[i], there);
        assert_int_equal(sort(&f, types[i], true), 0);
        assert_rows(&f, types[i], back);
        assert_int_equal(build_order(&f, less, order, true), 0);
        assert_int_equal(sort(&f, types[i], false), 0);
        assert_rows(&f, types[i], there_less);
        assert_int_equal(sort(&f, types[i], true), 0);
        assert_rows(&f, types[i], back_less);
        assert_int_equal(build_order(&f, none, order, true), 0);
        assert_int_equal(sort(&f, types[i], false), 0);
        assert_rows(&f, types[i], nothing);
        tear_down(&f);
    }
}

static void test_chunks_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    static const int32_t order[CHUNKS] = {3, 0, 4, 1, 2}, twice[CHUNKS] = {3, 0, 4, 0, 2},
                         wild[CHUNKS] = {3, 0, 5, 1, 2}, negative[CHUNKS] = {-1, 0, 4, 1, 2};
    static const int64_t split[CHUNKS] = {3, 0, 4, 2, 3}, more[CHUNKS] = {3, 1, 4, 2, 3},
                         less[CHUNKS] = {3, 0, 4, 2, 2}, below[CHUNKS] = {3, -1, 4, 3, 3},
                         huge[CHUNKS] = {3, INT64_MAX, INT64_MAX, 2, 0};
    set_up(&f, MOE_F32);
    const struct {
        const int64_t *split;
        const int32_t *order;
        int code;
    } cases[] = {{more, order, MOE_E_SPLIT},     {less, order, MOE_E_SPLIT},   {below, order, MOE_E_SPLIT},
                 {huge, order, MOE_E_SPLIT},     {split, twice, MOE_E_EXPERT}, {split, wild, MOE_E_EXPERT},
                 {split, negative, MOE_E_EXPERT}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(build_order(&f, cases[i].split, cases[i].order, false), cases[i].code);
        assert_int_equal(sort(&f, MOE_F32, false), MOE_E_MAP); /* there is no map */
        memset(f.probs_to.data, CANARY_BYTE, f.probs_to.bytes);
        assert_true(guarded_untouched(&f.to));
    }
    static const int32_t bad[] = {ROWS, -2, INT32_MAX, INT32_MIN, 1 /* twice */};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(build_order(&f, split, order, false), 0);
        ((int32_t *)(f.map + 1))[0] = bad[i];
        assert_int_equal(sort(&f, MOE_F32, i % 2 != 0), MOE_E_MAP);
        assert_true(guarded_untouched(&f.to));
    }
    tear_down(&f);
}

/* Two ranks, two experts each; this is rank 1. Received: from rank 0 its rows of experts 2 and 3, then from rank 1. */
static void test_the_counts_of_all_ranks_make_chunks(void **state)
{
    (void)state;
    struct fixture f;
    static const int64_t counts[10] = {9, 9, 2, 3, -1 /* a word between */, 9, 9, 4, 3, -1};
    static const int there[ROWS] = {0, 1, 5, 6, 7, 8, 2, 3, 4, 9, 10, 11};
    set_up(&f, MOE_F32);
    memcpy(f.split, counts, sizeof(counts));
    struct moe_chunk_map args = {
        .ranks = 2, .experts = 4, .stride = 5, .rank = 1, .rows = ROWS, .counts = f.split, .m = f.m, .map = f.map};
    assert_int_equal(moe_device_ops(f.device)->chunk_map(f.device, &args), 0);
    assert_int_equal(sort(&f, MOE_F32, false), 0);
    assert_rows(&f, MOE_F32, there);
    assert_int_equal(f.m[0], 6);
    assert_int_equal(f.m[1], 6);
    /* A count that leads out of the buffer in a chunk that is not the first: nothing is written beyond it. */
    static const int64_t bad[] = {1000, -1, INT64_MAX, 2, 4};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        f.split[3] = bad[i];
        assert_int_equal(moe_device_ops(f.device)->chunk_map(f.device, &args), 0);
        assert_int_equal(moe_device_sync(f.device), MOE_E_SPLIT);
        assert_int_equal(sort(&f, MOE_F32, false), MOE_E_MAP);
    }
    args.slack = true; /* more rows than there is room for stay an error */
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]) - 2; i++) {
        f.split[3] = bad[i];
        assert_int_equal(moe_device_ops(f.device)->chunk_map(f.device, &args), 0);
        assert_int_equal(moe_device_sync(f.device), MOE_E_SPLIT);
    }
    f.split[3] = 0; /* three rows fewer */
    static const int less[ROWS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1};
    assert_int_equal(moe_device_ops(f.device)->chunk_map(f.device, &args), 0);
    assert_int_equal(sort(&f, MOE_F32, false), 0);
    assert_rows(&f, MOE_F32, less);
    tear_down(&f);
}

static int pad(struct fixture *f, struct moe_pad_rows args)
{
    args.width = H;
    args.from = f->from.data;
    args.to = f->to.data;
    args.m = args.groups > 0 ? f->split : NULL;
    memset(f->to.data, CANARY_BYTE, f->to.bytes);
    assert_int_equal(moe_device_ops(f->device)->pad_rows(f->device, &args), 0);
    return moe_device_sync(f->device);
}

/* The same for rows without probabilities. */
static void assert_padded(struct fixture *f, enum moe_dtype type, const int *want)
{
    for (int r = 0; r < ROWS; r++) {
        ((float *)f->probs_to.data)[r] = (float)(want[r] + 1);
    }
    assert_rows(f, type, want);
}

static void test_rows_are_padded_and_trimmed(void **state)
{
    (void)state;
    static const int seven[ROWS] = {0, 1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1};
    static const int all_zero[ROWS] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    static const int grouped[ROWS] = {0, 1, 2, -1, 3, 4, 5, 6, 7, -1, -1, -1};
    static const int trimmed[ROWS] = {0, 1, 2, 4, 5, 6, 7, 8, -1, -1, -1, -1};
    static const int64_t m[CHUNKS] = {3, 0, 4, 1, 0}, padded_m[CHUNKS] = {4, 0, 4, 4, 0};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct fixture f;
        enum moe_dtype type = types[i];
        set_up(&f, type);
        assert_int_equal(pad(&f, (struct moe_pad_rows){.type = type, .rows = 7, .padded = ROWS}), 0);
        assert_padded(&f, type, seven);
        assert_int_equal(pad(&f, (struct moe_pad_rows){.type = type, .rows = 0, .padded = ROWS}), 0);
        assert_padded(&f, type, all_zero);
        assert_int_equal(pad(&f, (struct moe_pad_rows){.type = type, .rows = 0, .padded = 0}), 0);
        assert_true(guarded_untouched(&f.to));
        assert_int_equal(pad(&f, (struct moe_pad_rows){.type = type, .trim = true, .rows = 7, .padded = ROWS}), 0);
        size_t seven_rows = 7 * H * moe_dtype_bytes(type);
        assert_memory_equal(f.to.data, f.from.data, seven_rows);
        for (size_t b = seven_rows; b < f.to.bytes; b++) {
            assert_int_equal(((unsigned char *)f.to.data)[b], CANARY_BYTE);
        }
        memcpy(f.split, m, sizeof(m));
        struct moe_pad_rows groups = {
            .type = type, .rows = 8, .padded = ROWS, .groups = CHUNKS, .align = 4, .padded_m = f.m};
        assert_int_equal(pad(&f, groups), 0);
        assert_padded(&f, type, grouped);
        assert_memory_equal(f.m, padded_m, sizeof(padded_m));
        groups.trim = true;
        groups.rows = ROWS;
        assert_int_equal(pad(&f, groups), 0);
        assert_padded(&f, type, trimmed);
        tear_down(&f);
    }
}

static void test_groups_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, MOE_F32);
    struct moe_pad_rows groups = {.rows = 8, .padded = ROWS, .groups = CHUNKS, .align = 4};
    const struct {
        int64_t m[CHUNKS];
        int code;
    } cases[] = {{{3, 0, 4, 2, 0}, MOE_E_SPLIT},
                 {{3, -1, 4, 2, 0}, MOE_E_COUNT},
                 {{3, 0, INT64_MAX, 1, 0}, MOE_E_SPLIT},
                 {{3, 1, 2, 1, 0}, MOE_E_CAPACITY}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memcpy(f.split, cases[i].m, sizeof(cases[i].m));
        assert_int_equal(pad(&f, groups), cases[i].code);
        assert_true(guarded_untouched(&f.to));
        groups.trim = !groups.trim;
        assert_int_equal(pad(&f, groups), cases[i].code);
        assert_true(guarded_untouched(&f.to));
    }
    tear_down(&f);
}

/* The public functions: the same rows, and what is wrong is said before the stream runs. */
static void test_the_functions_check_what_they_can(void **state)
{
    (void)state;
    struct fixture f;
    moe_chunks_t *chunks = NULL;
    static const int64_t split[CHUNKS] = {3, 0, 4, 2, 3}, m[CHUNKS] = {3, 0, 4, 1, 0};
    static const int32_t order[CHUNKS] = {3, 0, 4, 1, 2};
    static const int there[ROWS] = {7, 8, 0, 1, 2, 9, 10, 11, 3, 4, 5, 6};
    static const int seven[ROWS] = {0, 1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1};
    static const int grouped[ROWS] = {0, 1, 2, -1, 3, 4, 5, 6, 7, -1, -1, -1};
    set_up(&f, MOE_BF16);
    void *to = f.to.data, *from = f.from.data;
    assert_int_equal(moe_chunks_new(f.device, -1, &chunks), MOE_E_SHAPE);
    assert_int_equal(moe_chunks_new(f.device, (int64_t)INT32_MAX + 1, &chunks), MOE_E_SHAPE);
    assert_int_equal(moe_chunks_sort(NULL, MOE_BF16, ROWS, H, false, from, to, NULL, NULL), MOE_E_MAP);
    assert_int_equal(moe_chunks_order(NULL, f.split, f.order, CHUNKS, ROWS, false), MOE_E_MAP);
    assert_int_equal(moe_chunks_new(f.device, ROWS, &chunks), 0);
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, H, false, from, to, NULL, NULL), MOE_E_MAP);
    memcpy(f.split, split, sizeof(split));
    memcpy(f.order, order, sizeof(order));
    assert_int_equal(moe_chunks_order(chunks, f.split, f.order, CHUNKS, ROWS, false), 0);
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS - 1, H, false, from, to, NULL, NULL), MOE_E_MAP);
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, H, false, from, to, f.probs.data, NULL), MOE_E_ARG);
    assert_int_equal(moe_chunks_sort(chunks, MOE_DTYPES, ROWS, H, false, from, to, NULL, NULL), MOE_E_ARG);
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, -1, false, from, to, NULL, NULL), MOE_E_SHAPE);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_true(guarded_untouched(&f.to));
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, H, false, from, to, f.probs.data, f.probs_to.data), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_rows(&f, MOE_BF16, there);
    struct moe_chunk_counts counts = {.ranks = 2, .experts = 4, .stride = 5, .rank = 1, .counts = f.split, .m = f.m};
    struct moe_chunk_counts bad[] = {counts, counts, counts, counts};
    bad[0].rank = 2;
    bad[1].experts = 3;
    bad[2].stride = 3;
    bad[3].ranks = 0;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(moe_chunks_counts(chunks, &bad[i], ROWS, false), MOE_E_SHAPE);
        assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, H, false, from, to, NULL, NULL), MOE_E_MAP);
    }
    assert_int_equal(moe_chunks_counts(chunks, &counts, ROWS + 1, false), MOE_E_CAPACITY);
    assert_int_equal(moe_chunks_order(chunks, f.split, f.order, -1, ROWS, false), MOE_E_SHAPE);
    static const int64_t of_ranks[10] = {9, 9, 2, 3, -1, 9, 9, 4, 3, -1};
    static const int by_expert[ROWS] = {0, 1, 5, 6, 7, 8, 2, 3, 4, 9, 10, 11};
    memcpy(f.split, of_ranks, sizeof(of_ranks));
    assert_int_equal(moe_chunks_counts(chunks, &counts, ROWS, false), 0);
    assert_int_equal(moe_chunks_sort(chunks, MOE_BF16, ROWS, H, false, from, to, f.probs.data, f.probs_to.data), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_rows(&f, MOE_BF16, by_expert);
    memset(to, CANARY_BYTE, f.to.bytes);
    assert_int_equal(moe_rows_pad(f.device, MOE_BF16, 7, 6, H, from, to), MOE_E_CAPACITY);
    assert_int_equal(moe_rows_trim(f.device, MOE_BF16, -1, 6, H, from, to), MOE_E_SHAPE);
    assert_int_equal(moe_rows_pad(f.device, MOE_DTYPES, 6, 6, H, from, to), MOE_E_ARG);
    struct moe_row_groups groups = {.groups = CHUNKS, .align = -1, .m = f.split, .padded_m = f.m};
    assert_int_equal(moe_rows_pad_groups(f.device, MOE_BF16, &groups, false, 8, ROWS, H, from, to), MOE_E_ARG);
    assert_true(guarded_untouched(&f.to));
    assert_int_equal(moe_rows_pad(f.device, MOE_BF16, 7, ROWS, H, from, to), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_padded(&f, MOE_BF16, seven);
    memcpy(f.split, m, sizeof(m));
    groups.align = 4;
    assert_int_equal(moe_rows_pad_groups(f.device, MOE_BF16, &groups, false, 8, ROWS, H, from, to), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_padded(&f, MOE_BF16, grouped);
    memset(to, CANARY_BYTE, f.to.bytes);
    assert_int_equal(moe_rows_trim(f.device, MOE_BF16, 2, ROWS, H, from, to), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_memory_equal(to, from, 2 * H * 2);
    assert_int_equal(((unsigned char *)to)[2 * H * 2], CANARY_BYTE);
    moe_chunks_destroy(&chunks);
    tear_down(&f);
}

/* Bits that arithmetic finds hard: infinities, NaN, subnormals, halves of the last place. */
static void hard_numbers(enum moe_dtype type, void *row, int64_t n, uint64_t *random)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(support_random(random) * 2147483648.0);
        if (type == MOE_F32) {
            bits = i % 3 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits; /* half way between two of bfloat16 */
            bits = i % 7 == 0 ? 0x3f800000u + (bits & 0xffu) : bits;
            memcpy((uint32_t *)row + i, &bits, sizeof(bits));
        } else {
            ((uint16_t *)row)[i] = (uint16_t)bits;
        }
    }
}

static void test_all_instruction_sets_give_the_same_bits(void **state)
{
    (void)state;
    enum { WIDTH = 32 * 5 + 13, MOST = 5 };
    static float in[MOST][WIDTH + 4], out[2][WIDTH + 4];
    const struct moe_host_rows *table[2];
    const int tables = moe_host_rows_all(table, 2);
    const float p[MOST] = {1.0f, 0.3f, -1.5f, 1e-30f, 3e38f};
    uint64_t random = 9;
    assert_ptr_equal(table[tables - 1], moe_host_rows_table());
    assert_string_equal(table[0]->name, "plain");
    for (int round = 0; round < 200; round++) {
        enum moe_dtype type = types[round % 3];
        const void *from[MOST];
        for (int i = 0; i < MOST; i++) {
            from[i] = (unsigned char *)in[i] + (round / 3 % 2 ? 2 : 0) * moe_dtype_bytes(type);
            hard_numbers(type, in[i], WIDTH + 4, &random);
        }
        int64_t width = round % 2 ? WIDTH : round % WIDTH;
        for (int stream = 0; stream < 2; stream++) {
            float dot[2] = {0, 0};
            memset(out, CANARY_BYTE, sizeof(out));
            for (int i = 0; i < tables; i++) {
                table[i]->sum[type](from, round % 5 ? p : NULL, round % (MOST + 1), round % 4 ? from : NULL, width,
                                    out[i], stream != 0);
                moe_host_rows_done();
            }
            for (int64_t i = 0; tables > 1 && i < width;
                 i++) { /* a NaN's bits may depend on which operand came first */
                double a = typed_get(type, out[0], i), b = typed_get(type, out[1], i);
                assert_true(a == b || (isnan(a) && isnan(b)));
            }
            for (size_t b = (size_t)width * moe_dtype_bytes(type); b < sizeof(out[0]); b++) {
                assert_int_equal(((unsigned char *)out[tables - 1])[b], CANARY_BYTE);
            }
            for (int i = 0; i < tables; i++) {
                dot[i] = table[i]->scale[type](from[0], from[1], round % 4 ? from[2] : NULL, p[1], width, out[i],
                                               stream != 0);
                moe_host_rows_done();
            }
            for (int64_t i = 0; tables > 1 && i < width; i++) {
                double a = typed_get(type, out[0], i), b = typed_get(type, out[1], i);
                assert_true(a == b || (isnan(a) && isnan(b)));
            }
            assert_true(tables < 2 || dot[0] == dot[1] || (isnan(dot[0]) && isnan(dot[1])));
        }
    }
}

/* Sums of every table against the definition, number by number; round to even, NaN, infinity and subnormals included.
 */
static void test_sums_are_rounded_once(void **state)
{
    (void)state;
    enum { WIDTH = 32 * 2 + 5 };
    static float in[2][WIDTH], out[WIDTH];
    const struct moe_host_rows *table[2];
    const int tables = moe_host_rows_all(table, 2);
    const float weights[2] = {0.75f, -1.25f};
    const void *from[2] = {in[0], in[1]};
    uint64_t random = 21;
    for (int round = 0; round < 60; round++) {
        enum moe_dtype type = types[round % 3];
        const float p[2] = {round % 2 ? weights[0] : 1.0f, round % 2 ? weights[1] : 1.0f};
        hard_numbers(type, in[0], WIDTH, &random);
        hard_numbers(type, in[1], WIDTH, &random);
        for (int i = 0; i < tables; i++) {
            table[i]->sum[type](from, round % 2 ? p : NULL, 2, NULL, WIDTH, out, false);
            for (int64_t h = 0; h < WIDTH; h++) {
                float one = p[0] * (float)typed_get(type, in[0], h), two = p[1] * (float)typed_get(type, in[1], h),
                      cell;
                volatile float sum = 0.0f + one;
                sum = sum + two;
                typed_put(type, &cell, 0, (double)sum);
                double want = typed_get(type, &cell, 0), got = typed_get(type, out, h);
                assert_true(got == want || (isnan(got) && isnan(want)));
            }
        }
    }
}

/* A probability that is a NaN of all ones: rounding by its bits would carry it over into a zero. */
static void test_a_nan_stays_one(void **state)
{
    (void)state;
    enum { WIDTH = 32 + 3 };
    static float in[WIDTH], out[WIDTH];
    const struct moe_host_rows *table[2];
    const int tables = moe_host_rows_all(table, 2);
    const uint32_t ones = 0x7fffffffu;
    const void *from[1] = {in};
    float p;
    memcpy(&p, &ones, sizeof(p));
    for (int i = 0; i < tables; i++) {
        for (int t = 0; t < 3; t++) {
            for (int64_t h = 0; h < WIDTH; h++) {
                typed_put(types[t], in, h, 1.0);
            }
            table[i]->sum[types[t]](from, &p, 1, NULL, WIDTH, out, false);
            for (int64_t h = 0; h < WIDTH; h++) {
                assert_true(isnan(typed_get(types[t], out, h)));
            }
            assert_true(isnan(table[i]->scale[types[t]](in, in, NULL, p, WIDTH, out, false)) == 0);
            for (int64_t h = 0; h < WIDTH; h++) {
                assert_true(isnan(typed_get(types[t], out, h)));
            }
        }
    }
}

static void test_rows_are_copied_and_zeroed_whatever_their_place(void **state)
{
    (void)state;
    enum { MOST = 3 * 4096 };
    static unsigned char from[MOST + 64], to[3][MOST + 64];
    for (size_t i = 0; i < sizeof(from); i++) {
        from[i] = (unsigned char)(i * 31 + i / 256);
    }
    static const size_t sizes[] = {0, 1, 15, 16, 63, 64, 65, 4095, 4096, 4097, MOST};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t shift = 0; shift < 34; shift += 11) {
            for (int stream = 0; stream < 2; stream++) {
                void *places[3] = {to[0] + shift, to[1] + 16, to[2] + 3};
                memset(to, CANARY_BYTE, sizeof(to));
                moe_host_rows_copy(places, 3, from + shift / 2, sizes[i], stream != 0);
                moe_host_rows_done();
                for (int j = 0; j < 3; j++) {
                    unsigned char *place = places[j];
                    assert_memory_equal(place, from + shift / 2, sizes[i]);
                    assert_int_equal(place[sizes[i]], CANARY_BYTE);
                    moe_host_row_zero(place, sizes[i], stream != 0);
                    moe_host_rows_done();
                    for (size_t b = 0; b < sizes[i]; b++) {
                        assert_int_equal(place[b], 0);
                    }
                    assert_int_equal(place[sizes[i]], CANARY_BYTE);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_in_any_order_and_back),
        cmocka_unit_test(test_chunks_that_do_not_fit_are_refused),
        cmocka_unit_test(test_the_counts_of_all_ranks_make_chunks),
        cmocka_unit_test(test_rows_are_padded_and_trimmed),
        cmocka_unit_test(test_groups_that_do_not_fit_are_refused),
        cmocka_unit_test(test_the_functions_check_what_they_can),
        cmocka_unit_test(test_all_instruction_sets_give_the_same_bits),
        cmocka_unit_test(test_sums_are_rounded_once),
        cmocka_unit_test(test_a_nan_stays_one),
        cmocka_unit_test(test_rows_are_copied_and_zeroed_whatever_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
