/*
 * test_permute_refused.c: maps that must not be followed, rows that must not be written, and rows far out.
 *
 * Outputs lie between canaries and are poisoned: an error must leave every byte of them alone.
 */
#include "tests/moe_core/permute_ref.h"

#include <sys/mman.h>

enum { T = 6, E = 4, K = 2, H = 8, ROWS = T * K };

struct fixture {
    moe_device_t *device;
    moe_row_map_t *map[MOE_MAP_CHUNK]; /* one of each kind */
    int32_t *index;
    int64_t *counts;
    struct guarded x, rows, y, probs, d_probs;
};

static struct moe_movement movement(enum moe_map_kind kind)
{
    return (struct moe_movement){.kind = kind, .tokens = T, .rows = ROWS, .hidden = H};
}

static void build(struct fixture *f, enum moe_map_kind kind)
{
    const struct moe_map_source source = {.index = f->index, .counts = f->counts};
    assert_int_equal(moe_row_map_build_from(f->map[kind], &source, K, T, ROWS), 0);
}

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    assert_int_equal(moe_device_new_host(&f->device), 0);
    f->index = support_array(f->device, T * K, sizeof(*f->index));
    f->counts = support_array(f->device, E, sizeof(*f->counts));
    for (int i = 0; i < T * K; i++) {
        f->index[i] = i * 3 % E;
        f->counts[f->index[i]]++;
    }
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        const struct moe_row_map_config config = {
            .kind = (enum moe_map_kind)kind, .max_tokens = T, .experts = E, .k = K, .max_rows = ROWS};
        assert_int_equal(moe_row_map_create(f->device, &config, &f->map[kind]), 0);
        build(f, (enum moe_map_kind)kind);
    }
    f->x = guarded_new(f->device, T * H * sizeof(float));
    f->rows = guarded_new(f->device, ROWS * H * sizeof(float));
    f->y = guarded_new(f->device, T * H * sizeof(float));
    f->probs = guarded_new(f->device, T * E * sizeof(float));
    f->d_probs = guarded_new(f->device, T * E * sizeof(float));
    assert_int_equal(moe_device_sync(f->device), 0);
}

static void tear_down(struct fixture *f)
{
    struct guarded *all[] = {&f->x, &f->rows, &f->y, &f->probs, &f->d_probs};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        guarded_free(f->device, all[i]);
    }
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        moe_row_map_destroy(&f->map[kind]);
    }
    moe_device_free(f->device, &f->index);
    moe_device_free(f->device, &f->counts);
    moe_device_destroy(&f->device);
}

/* All four movements give `code`, at the call or in the stream, and write nothing. */
static void refused(struct fixture *f, moe_row_map_t *map, const struct moe_movement *move, bool in_stream, int code)
{
    int at_once = in_stream ? 0 : code;
    assert_int_equal(moe_map_permute(map, move, f->x.data, NULL, f->rows.data, NULL), at_once);
    assert_int_equal(moe_device_sync(f->device), in_stream ? code : 0);
    assert_int_equal(moe_map_permute_backward(map, move, f->x.data, NULL, NULL, 0, f->y.data, NULL), at_once);
    assert_int_equal(moe_device_sync(f->device), in_stream ? code : 0);
    assert_int_equal(moe_map_unpermute(map, move, f->x.data, NULL, f->y.data), at_once);
    assert_int_equal(moe_device_sync(f->device), in_stream ? code : 0);
    assert_int_equal(
        moe_map_unpermute_backward(map, move, f->x.data, f->rows.data, f->probs.data, f->rows.data, f->d_probs.data),
        at_once);
    assert_int_equal(moe_device_sync(f->device), in_stream ? code : 0);
    assert_true(guarded_untouched(&f->rows) && guarded_untouched(&f->y) && guarded_untouched(&f->d_probs));
}

static void test_a_pair_that_does_not_match_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    for (int made = 0; made < MOE_MAP_CHUNK; made++) {
        for (int meant = 0; meant < MOE_MAP_KINDS; meant++) {
            struct moe_movement move = movement((enum moe_map_kind)meant);
            if (made != meant) {
                refused(&f, f.map[made], &move, false, MOE_E_MAP);
            }
        }
        struct moe_movement move = movement((enum moe_map_kind)made);
        move.tokens--;
        refused(&f, f.map[made], &move, false, MOE_E_MAP);
        move.tokens++;
        move.rows++;
        refused(&f, f.map[made], &move, false, MOE_E_MAP);
        move.rows--;
        move.type = MOE_E4M3;
        refused(&f, f.map[made], &move, false, MOE_E_ARG);
        move.type = MOE_F32;
        move.hidden = -1;
        refused(&f, f.map[made], &move, false, MOE_E_SHAPE);
    }
    tear_down(&f);
}

static void test_a_handle_that_is_none_is_refused(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    const struct moe_movement move = movement(MOE_MAP_MASK);
    uint64_t foreign[64] = {0};
    const struct moe_map_source source = {.index = f.index};
    refused(&f, NULL, &move, false, MOE_E_MAP);
    refused(&f, (moe_row_map_t *)foreign, &move, false, MOE_E_MAP);
    assert_int_equal(moe_row_map_build_from(NULL, &source, K, T, ROWS), MOE_E_MAP);
    assert_null(moe_row_map_buffer(NULL));
    moe_row_map_destroy(&f.map[MOE_MAP_MASK]);
    refused(&f, f.map[MOE_MAP_MASK], &move, false, MOE_E_MAP);
    tear_down(&f);
}

/* The device buffer of a map, for the test to damage. */
static struct moe_map_header *open_buffer(struct fixture *f, int kind)
{
    const struct moe_map_header *header = moe_row_map_buffer(f->map[kind]);
    struct moe_map_header *writable = NULL;
    assert_non_null(header);
    memcpy(&writable, &header, sizeof(writable));
    return writable;
}

static void test_the_stream_refuses_a_foreign_header(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        const struct moe_movement move = movement((enum moe_map_kind)kind);
        struct moe_map_header *header = open_buffer(&f, kind), good = *header;
        struct moe_map_header bad[] = {good, good, good, good, good, good, good, good};
        bad[0].magic = 0;
        bad[1].kind = (kind + 1) % MOE_MAP_CHUNK;
        bad[2].k++;
        bad[3].tokens--;
        bad[4].experts++;
        bad[5].rows++;
        bad[6].routed--;
        bad[7].routed = ROWS + 1;
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            *header = bad[i];
            refused(&f, f.map[kind], &move, true, MOE_E_MAP);
        }
        *header = good;
        assert_int_equal(moe_map_permute(f.map[kind], &move, f.x.data, NULL, f.rows.data, NULL), 0);
        assert_int_equal(moe_device_sync(f.device), 0);
        memset(f.rows.data, CANARY_BYTE, f.rows.bytes);
    }
    tear_down(&f);
}

static void test_the_stream_refuses_wild_row_numbers(void **state)
{
    (void)state;
    struct fixture f;
    static const int32_t wild[] = {ROWS, INT32_MAX, INT32_MIN, -2, 1 /* row 1 twice */};
    set_up(&f);
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        const struct moe_movement move = movement((enum moe_map_kind)kind);
        int32_t *cells = (int32_t *)(open_buffer(&f, kind) + 1);
        /* The first row, the first expert and, of a MASK map, the first count. */
        const int64_t row = kind == MOE_MAP_SORTED ? ROWS : 0;
        const int64_t expert = kind == MOE_MAP_MASK ? E : row + T * K;
        for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
            int32_t keep = cells[row];
            assert_int_not_equal(keep, wild[i]);
            cells[row] = wild[i];
            refused(&f, f.map[kind], &move, true, MOE_E_MAP);
            cells[row] = keep;
            keep = cells[expert];
            cells[expert] = i < 4 && wild[i] != ROWS ? wild[i] : E;
            refused(&f, f.map[kind], &move, true, MOE_E_MAP);
            cells[expert] = keep;
        }
        if (kind == MOE_MAP_MASK) {
            for (size_t i = 0; i < 4; i++) {
                cells[2 * E] = wild[i];
                refused(&f, f.map[kind], &move, true, MOE_E_MAP);
            }
        }
        if (kind == MOE_MAP_SORTED) { /* the way there disagrees with the way back */
            int32_t keep = cells[0];
            for (size_t i = 0; i < 4; i++) {
                cells[0] = wild[i];
                refused(&f, f.map[kind], &move, true, MOE_E_MAP);
            }
            cells[0] = keep;
        }
    }
    tear_down(&f);
}

/* A build that fails in the stream: the code, and no map afterwards. */
static void build_fails(struct fixture *f, int kind, const struct moe_map_source *source, int64_t rows, int code)
{
    struct moe_movement move = movement((enum moe_map_kind)kind);
    move.rows = rows;
    assert_int_equal(moe_row_map_build_from(f->map[kind], source, K, T, rows), 0);
    assert_int_equal(moe_map_permute(f->map[kind], &move, f->x.data, NULL, f->rows.data, NULL), 0);
    assert_int_equal(moe_device_sync(f->device), code); /* the first error is the one reported */
    refused(f, f->map[kind], &move, true, MOE_E_MAP);
}

static void test_more_rows_than_the_buffer_are_an_error_and_no_write(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    uint8_t *mask = support_array(f.device, T * E, 1);
    memset(mask, 1, T * E);
    const struct moe_map_source plain = {.index = f.index}, counted = {.index = f.index, .counts = f.counts},
                                all = {.mask = mask}, padded = {.index = f.index, .align = 8};
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        build_fails(&f, kind, &plain, ROWS - 1, MOE_E_CAPACITY);
        build_fails(&f, kind, &plain, 0, MOE_E_CAPACITY);
        build_fails(&f, kind, &counted, ROWS - 1, MOE_E_CAPACITY);
        build_fails(&f, kind, &padded, ROWS, MOE_E_CAPACITY);
        build_fails(&f, kind, &all, ROWS, kind == MOE_MAP_MASK ? MOE_E_CAPACITY : MOE_E_EXPERT); /* E of K choices */
        f.counts[0]++;
        f.counts[1]--;
        build_fails(&f, kind, &counted, ROWS, MOE_E_SPLIT);
        f.counts[1] = -1;
        build_fails(&f, kind, &counted, ROWS, MOE_E_COUNT);
        f.counts[0]--;
        f.counts[1] = INT64_MAX; /* a sum of counts that would overflow */
        build_fails(&f, kind, &counted, ROWS, MOE_E_CAPACITY);
        f.counts[1] = 3;
        static const int32_t bad[] = {E, -2, INT32_MAX, INT32_MIN};
        int32_t keep = f.index[0];
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            f.index[0] = bad[i];
            build_fails(&f, kind, &plain, ROWS, MOE_E_EXPERT);
        }
        f.index[0] = f.index[1]; /* one expert twice */
        build_fails(&f, kind, &plain, ROWS, MOE_E_EXPERT);
        f.index[0] = keep;
    }
    moe_device_free(f.device, &mask);
    tear_down(&f);
}

static void test_what_is_wrong_at_once_is_said_at_once(void **state)
{
    (void)state;
    struct fixture f;
    moe_row_map_t *map = NULL;
    set_up(&f);
    const struct moe_map_source plain = {.index = f.index}, none = {.align = 1},
                                negative = {.index = f.index, .align = -1},
                                large = {.index = f.index, .capacity = ROWS};
    static const struct moe_row_map_config configs[] = {
        {.kind = MOE_MAP_CHUNK, .max_tokens = T, .experts = E, .k = K},
        {.kind = MOE_MAP_INDEX, .max_tokens = T, .experts = E, .k = 0},
        {.kind = MOE_MAP_INDEX, .max_tokens = T, .experts = E, .k = E + 1},
        {.kind = MOE_MAP_SORTED, .max_tokens = INT32_MAX, .experts = E, .k = 2},
        {.kind = MOE_MAP_SORTED, .max_tokens = T, .experts = E, .k = 2, .max_rows = (int64_t)INT32_MAX + 1},
        {.kind = MOE_MAP_MASK, .max_tokens = -1, .experts = E},
        {.kind = MOE_MAP_MASK, .max_tokens = T, .experts = 0},
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        assert_int_equal(moe_row_map_create(f.device, &configs[i], &map), MOE_E_SHAPE);
        assert_null(map);
    }
    for (int kind = 0; kind < MOE_MAP_CHUNK; kind++) {
        const struct moe_movement move = movement((enum moe_map_kind)kind);
        map = f.map[kind];
        assert_int_equal(moe_row_map_build_from(map, &plain, K, T + 1, ROWS), MOE_E_SHAPE);
        assert_int_equal(moe_row_map_build_from(map, &plain, E + 1, T, ROWS), MOE_E_SHAPE);
        assert_int_equal(moe_row_map_build_from(map, &plain, 0, T, ROWS), MOE_E_SHAPE);
        assert_int_equal(moe_row_map_build_from(map, &plain, K, -1, ROWS), MOE_E_SHAPE);
        assert_int_equal(moe_row_map_build_from(map, &none, K, T, ROWS), MOE_E_ARG);
        assert_int_equal(moe_row_map_build_from(map, &negative, K, T, ROWS), MOE_E_ARG);
        assert_int_equal(moe_row_map_build_from(map, &large, K, T, ROWS), MOE_E_CAPACITY);
        assert_int_equal(moe_row_map_build_from(map, &plain, K, T, -1), MOE_E_CAPACITY);
        assert_int_equal(moe_row_map_build_from(map, &plain, K, T, (int64_t)INT32_MAX + 1), MOE_E_CAPACITY);
        refused(&f, map, &move, false, MOE_E_MAP); /* none of these left a map */
        build(&f, (enum moe_map_kind)kind);
        assert_int_equal(moe_map_permute(map, &move, f.x.data, NULL, f.rows.data, f.rows.data), MOE_E_ARG);
        assert_int_equal(moe_map_unpermute_backward(map, &move, f.x.data, NULL, NULL, f.rows.data, f.d_probs.data),
                         MOE_E_ARG);
        assert_int_equal(moe_map_permute_backward(map, &move, f.x.data, f.rows.data, NULL, 0, f.y.data, NULL),
                         MOE_E_ARG);
        assert_int_equal(moe_map_permute_backward(map, &move, f.x.data, NULL, NULL, 0.5f, f.y.data, NULL), MOE_E_ARG);
        assert_true(guarded_untouched(&f.rows) && guarded_untouched(&f.y));
    }
    struct moe_movement choice = movement(MOE_MAP_MASK);
    choice.layout = MOE_PROBS_BY_CHOICE;
    assert_int_equal(moe_map_unpermute(f.map[MOE_MAP_MASK], &choice, f.rows.data, f.probs.data, f.y.data), MOE_E_ARG);
    tear_down(&f);
}

/* R x H just above 2^31 elements: the last row begins where 32 bits do not reach. The memory is mapped but not there:
 * the map has two rows, the first and the last, and no others are read. */
static void test_elements_beyond_two_to_the_31(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    enum { ROW_BYTES = 4096, WIDTH = ROW_BYTES / 2 };
    const int64_t rows = ((int64_t)1 << 31) / WIDTH + 2; /* R x H just above 2^31 elements */
    const size_t bytes = (size_t)rows * ROW_BYTES;
    assert_int_equal(moe_device_new_host(&device), 0);
    uint16_t *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(far, MAP_FAILED);
    struct guarded x = guarded_new(device, 2 * ROW_BYTES), y = guarded_new(device, 2 * ROW_BYTES);
    struct moe_map_header *map = support_array(device, (int64_t)moe_map_bytes(MOE_MAP_INDEX, 2, 2, 1, rows), 1);
    int32_t *cells = (int32_t *)(map + 1);
    for (int i = 0; i < 2 * WIDTH; i++) {
        typed_put(MOE_BF16, x.data, i, i % 251);
    }
    *map = (struct moe_map_header){
        .magic = MOE_MAP_MAGIC, .kind = MOE_MAP_INDEX, .k = 1, .tokens = 2, .experts = 2, .rows = rows, .routed = 2};
    cells[0] = (int32_t)rows - 1; /* token 0 goes to the last row, token 1 to the first */
    cells[1] = 0;
    cells[2] = 1;
    cells[3] = 0;
    const struct moe_map_view view = {
        .kind = MOE_MAP_INDEX, .k = 1, .tokens = 2, .experts = 2, .rows = rows, .map = map};
    struct moe_map_scatter scatter = {.view = view, .type = MOE_BF16, .width = WIDTH, .from = far, .to = y.data};
    memcpy((unsigned char *)far + bytes - ROW_BYTES, x.data, ROW_BYTES);
    memcpy(far, (unsigned char *)x.data + ROW_BYTES, ROW_BYTES);
    assert_int_equal(moe_device_ops(device)->map_scatter(device, &scatter), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(y.data, x.data, 2 * ROW_BYTES);
    cells[0] = (int32_t)rows; /* one beyond the last */
    assert_int_equal(moe_device_ops(device)->map_scatter(device, &scatter), 0);
    assert_int_equal(moe_device_sync(device), MOE_E_MAP);
    munmap(far, bytes);
    guarded_free(device, &x);
    guarded_free(device, &y);
    moe_device_free(device, &map);
    moe_device_destroy(&device);
}

/* Two padded groups, the second of which begins beyond 2^30 and the buffer ends beyond 2^31. */
static void test_padded_groups_beyond_two_to_the_30(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    const int64_t rows = ((int64_t)1 << 31) + 4; /* of one element */
    assert_int_equal(moe_device_new_host(&device), 0);
    struct moe_pad_rows pad = {.type = MOE_E4M3, .trim = true, .rows = 3, .width = 1, .groups = 2};
    uint8_t *far = mmap(NULL, (size_t)rows, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(far, MAP_FAILED);
    far[0] = 1;
    struct guarded out = guarded_new(device, 3);
    int64_t *m = support_array(device, 2, sizeof(*m));
    m[0] = 1;
    m[1] = 2;
    pad.m = m;
    pad.align = ((int64_t)1 << 30) + 1;
    pad.padded = 2 * pad.align;
    pad.from = far;
    pad.to = out.data;
    far[pad.align] = 5;
    far[pad.align + 1] = 6;
    assert_int_equal(moe_device_ops(device)->pad_rows(device, &pad), 0);
    assert_int_equal(moe_device_sync(device), 0);
    const uint8_t want[3] = {1, 5, 6};
    assert_memory_equal(out.data, want, 3);
    munmap(far, (size_t)rows);
    guarded_free(device, &out);
    moe_device_free(device, &m);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pair_that_does_not_match_is_refused),
        cmocka_unit_test(test_a_handle_that_is_none_is_refused),
        cmocka_unit_test(test_the_stream_refuses_a_foreign_header),
        cmocka_unit_test(test_the_stream_refuses_wild_row_numbers),
        cmocka_unit_test(test_more_rows_than_the_buffer_are_an_error_and_no_write),
        cmocka_unit_test(test_what_is_wrong_at_once_is_said_at_once),
        cmocka_unit_test(test_elements_beyond_two_to_the_31),
        cmocka_unit_test(test_padded_groups_beyond_two_to_the_30),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
