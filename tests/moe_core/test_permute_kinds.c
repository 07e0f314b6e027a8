/*
 * test_permute_kinds.c: every kind of map, row type, way to build and use of probabilities against the definition.
 *
 * Each case runs the four movements on poisoned buffers with canaries and compares every element with a reference in
 * double precision. The three kinds must agree in every bit, and the gradients must be adjoint to the movements.
 */
#include "tests/moe_core/permute_ref.h"

enum { T = 13, E = 5, K = 3, H = 37, MOST = 40 };

enum probs { NONE, BY_EXPERT, BY_CHOICE, ZERO_ROWS, PROB_MODES };

static const char *const prob_names[PROB_MODES] = {"no probabilities", "by expert", "by choice", "zero rows"};

/* How the map is built. rows: -1: as many as are routed, else plus `extra`. */
static const struct build {
    const char *name;
    bool from_mask, counts, drop, nobody, no_tokens, no_rows;
    int64_t align, capacity, extra;
} builds[] = {
    {.name = "index and counts", .counts = true},
    {.name = "routing map, rows to spare", .from_mask = true, .extra = 3},
    {.name = "padded", .align = 4, .extra = 0},
    {.name = "padded, routing map", .align = 8, .from_mask = true},
    {.name = "drop and pad", .capacity = 4, .drop = true},
    {.name = "drop and pad, routing map", .capacity = 6, .drop = true, .from_mask = true},
    {.name = "fewer rows than choices", .drop = true, .extra = -4},
    {.name = "nobody chose", .nobody = true},
    {.name = "nobody chose, padding", .nobody = true, .extra = 2},
    {.name = "no rows", .drop = true, .no_rows = true},
    {.name = "no tokens", .no_tokens = true},
    {.name = "no tokens, drop and pad", .no_tokens = true, .capacity = 2},
};

struct fixture {
    moe_device_t *device;
    moe_row_map_t *map;
    struct choices c;
    enum moe_map_kind kind;
    int32_t *index;
    uint8_t *mask;
    int64_t *counts, *m, *chosen, ref_m[E];
    uint64_t random;
};

/*
 * Gives every token its choices: some tokens have fewer than K, token 5 has none, no token takes expert 3. With a
 * routing map the choices of a token are ascending, because a map knows no other order.
 */
static void choose(struct fixture *f, const struct build *b)
{
    static const int32_t orders[4][K] = {{2, 0, 4}, {1, -1, 0}, {4, 1, -1}, {-1, 2, 1}};
    for (int64_t t = 0; t < T; t++) {
        for (int32_t j = 0; j < K; j++) {
            int32_t e = orders[t % 4][j];
            f->index[t * K + j] = t == 5 || b->nobody ? -1 : e;
        }
        if (b->from_mask) {
            int32_t n = 0, *line = f->index + t * K;
            for (int32_t e = 0; e < E; e++) {
                bool taken = false;
                for (int32_t j = 0; t != 5 && !b->nobody && j < K; j++) {
                    taken = taken || orders[t % 4][j] == e;
                }
                f->mask[t * E + e] = taken;
                if (taken) {
                    line[n++] = e;
                }
            }
            while (n < K) {
                line[n++] = -1;
            }
        }
    }
}

static void set_up(struct fixture *f, const struct build *b, enum moe_map_kind kind)
{
    memset(f, 0, sizeof(*f));
    f->random = 5;
    f->kind = kind;
    assert_int_equal(moe_device_new_host(&f->device), 0);
    f->index = support_array(f->device, T * K, sizeof(*f->index));
    f->mask = support_array(f->device, T * E, 1);
    f->counts = support_array(f->device, E, sizeof(*f->counts));
    f->m = support_array(f->device, E, sizeof(*f->m));
    f->chosen = support_array(f->device, E, sizeof(*f->chosen));
    choose(f, b);
    f->c = (struct choices){.tokens = b->no_tokens ? 0 : T, .experts = E, .k = K, .index = f->index, .m = f->ref_m};
    int64_t align = b->align > 1 ? b->align : 1, sum = 0;
    for (int64_t i = 0; i < f->c.tokens * K; i++) {
        if (f->index[i] >= 0) {
            f->counts[f->index[i]]++;
        }
    }
    for (int e = 0; e < E; e++) {
        f->ref_m[e] = b->capacity > 0 ? b->capacity : (f->counts[e] + align - 1) / align * align;
        sum += f->ref_m[e];
    }
    f->c.rows = b->no_rows ? 0 : sum + b->extra;
    assert_in_range(f->c.rows, 0, MOST);
    struct moe_row_map_config config = {
        .kind = kind, .max_tokens = T, .experts = E, .k = kind == MOE_MAP_MASK ? 0 : K, .max_rows = MOST};
    if (kind != MOE_MAP_SORTED) {
        config.max_rows = 0;
    }
    assert_int_equal(moe_row_map_create(f->device, &config, &f->map), 0);
    struct moe_map_source source = {.index = b->from_mask ? NULL : f->index,
                                    .mask = b->from_mask ? f->mask : NULL,
                                    .counts = b->counts ? f->counts : NULL,
                                    .align = b->align,
                                    .capacity = b->capacity,
                                    .drop = b->drop,
                                    .chosen = f->chosen,
                                    .m = f->m};
    assert_int_equal(moe_row_map_build_from(f->map, &source, K, f->c.tokens, f->c.rows), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    assert_memory_equal(f->chosen, f->counts, E * sizeof(*f->counts));
    int64_t left = f->c.rows;
    for (int e = 0; e < E; e++) {
        int64_t want = f->ref_m[e] < left ? f->ref_m[e] : left;
        assert_int_equal(f->m[e], want);
        left -= want;
    }
}

static void tear_down(struct fixture *f)
{
    void *arrays[] = {&f->index, &f->mask, &f->counts, &f->m, &f->chosen};
    moe_row_map_destroy(&f->map);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    moe_device_destroy(&f->device);
}

/* The buffers of one case. */
struct data {
    enum moe_dtype type;
    enum probs mode;
    const struct build *build;
    struct guarded x, rows, y, d_rows, probs, row_probs, d_row_probs, d_probs;
};

static size_t buffers(struct data *d, struct guarded **out)
{
    struct guarded *all[] = {&d->x,     &d->rows,      &d->y,           &d->d_rows,
                             &d->probs, &d->row_probs, &d->d_row_probs, &d->d_probs};
    memcpy(out, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

static void random_typed(struct fixture *f, enum moe_dtype type, void *data, int64_t n, bool whole)
{
    for (int64_t i = 0; i < n; i++) {
        double x = 4 * support_random(&f->random);
        typed_put(type, data, i, whole ? nearbyint(x) : x);
    }
}

static int64_t prob_columns(const struct data *d)
{
    return d->mode == BY_CHOICE ? K : E;
}

static int64_t prob_cell(const struct fixture *f, const struct data *d, int64_t flat)
{
    int64_t t = flat / K;
    return t * prob_columns(d) + (d->mode == BY_CHOICE ? flat % K : f->index[flat]);
}

/* The probability of a flat choice as the case has it. */
static double prob_of(const struct fixture *f, const struct data *d, int64_t flat)
{
    return d->mode == NONE ? 1.0 : (double)((const float *)d->probs.data)[prob_cell(f, d, flat)];
}

static void data_new(struct fixture *f, struct data *d)
{
    size_t row = H * moe_dtype_bytes(d->type), tokens = (size_t)f->c.tokens, rows = (size_t)f->c.rows;
    size_t probs = tokens * (size_t)prob_columns(d) * sizeof(float);
    d->x = guarded_new(f->device, tokens * row);
    d->y = guarded_new(f->device, tokens * row);
    d->rows = guarded_new(f->device, rows * row);
    d->d_rows = guarded_new(f->device, rows * row);
    d->probs = guarded_new(f->device, probs);
    d->d_probs = guarded_new(f->device, probs);
    d->row_probs = guarded_new(f->device, rows * sizeof(float));
    d->d_row_probs = guarded_new(f->device, rows * sizeof(float));
    random_typed(f, d->type, d->x.data, f->c.tokens * H, true);
    random_typed(f, MOE_F32, d->d_row_probs.data, f->c.rows, false);
    float *p = d->probs.data;
    for (int64_t i = 0; i < f->c.tokens * prob_columns(d); i++) {
        p[i] = (float)support_random(&f->random);
        p[i] = d->mode == ZERO_ROWS && i % 3 == 0 ? 0.0f : p[i];
    }
}

static void data_free(struct fixture *f, struct data *d)
{
    struct guarded *all[8];
    size_t n = buffers(d, all);
    for (size_t i = 0; i < n; i++) {
        guarded_free(f->device, all[i]);
    }
}

static struct moe_movement movement(const struct fixture *f, const struct data *d)
{
    return (struct moe_movement){.kind = f->kind,
                                 .type = d->type,
                                 .tokens = f->c.tokens,
                                 .rows = f->c.rows,
                                 .hidden = H,
                                 .layout = d->mode == BY_CHOICE ? MOE_PROBS_BY_CHOICE : MOE_PROBS_BY_EXPERT,
                                 .zero_by_prob = d->mode == ZERO_ROWS};
}

/* got against want, within `tolerance` of its size. */
static void close(const struct fixture *f, const struct data *d, const char *what, int64_t row, int64_t h, double got,
                  double want, double size, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * size)) {
        fail_msg("%s map, %s, %s, %s: %s[%lld,%lld]: got %.9g, want %.9g", moe_map_kind_name(f->kind), d->build->name,
                 moe_dtype_name(d->type), prob_names[d->mode], what, (long long)row, (long long)h, got, want);
    }
}

/* Whether a choice's row is moved at all: not with a probability of zero where zero makes zero rows. */
static bool moved(const struct fixture *f, const struct data *d, int64_t flat)
{
    return d->mode != ZERO_ROWS || prob_of(f, d, flat) != 0.0;
}

static void check_permute(struct fixture *f, struct data *d)
{
    const struct moe_movement move = movement(f, d);
    const bool probs = d->mode != NONE;
    assert_int_equal(moe_map_permute(f->map, &move, d->x.data, probs ? d->probs.data : NULL, d->rows.data,
                                     probs ? d->row_probs.data : NULL),
                     0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int64_t r = 0; r < f->c.rows; r++) {
        int64_t flat = ref_choice(&f->c, r);
        for (int64_t h = 0; h < H; h++) {
            double want = flat >= 0 && moved(f, d, flat) ? typed_get(d->type, d->x.data, flat / K * H + h) : 0.0;
            close(f, d, "permute", r, h, typed_get(d->type, d->rows.data, r * H + h), want, 0, 0);
        }
        if (probs) {
            double want = flat >= 0 ? prob_of(f, d, flat) : 0.0;
            close(f, d, "row_probs", r, 0, (double)((float *)d->row_probs.data)[r], want, 0, 0);
        }
    }
}

/* Backward of permute, twice: overwriting, and added to what is there. Whole numbers: exact in every type. */
static void check_permute_backward(struct fixture *f, struct data *d, float beta)
{
    const struct moe_movement move = movement(f, d);
    const bool probs = d->mode != NONE;
    double left = 0, right = 0;
    random_typed(f, d->type, d->d_rows.data, f->c.rows * H, true);
    double *before = support_doubles(f->c.tokens * H);
    for (int64_t i = 0; beta != 0.0f && i < f->c.tokens * H; i++) {
        before[i] = typed_get(d->type, d->y.data, i);
    }
    assert_int_equal(moe_map_permute_backward(f->map, &move, d->d_rows.data, probs ? d->d_row_probs.data : NULL,
                                              d->mode == ZERO_ROWS ? d->probs.data : NULL, beta, d->y.data,
                                              probs ? d->d_probs.data : NULL),
                     0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int64_t t = 0; t < f->c.tokens; t++) {
        for (int64_t h = 0; h < H; h++) {
            double want = before[t * H + h];
            for (int32_t j = 0; j < K; j++) {
                int64_t row = ref_row(&f->c, t, j);
                want += row >= 0 && moved(f, d, t * K + j) ? typed_get(d->type, d->d_rows.data, row * H + h) : 0.0;
            }
            double got = typed_get(d->type, d->y.data, t * H + h);
            close(f, d, "dx", t, h, got, want, 0, 0);
            right += (got - before[t * H + h]) * typed_get(d->type, d->x.data, t * H + h);
        }
        for (int64_t e = 0; probs && e < prob_columns(d); e++) {
            double want = 0;
            for (int32_t j = 0; j < K; j++) {
                int64_t row = ref_row(&f->c, t, j);
                if (row >= 0 && prob_cell(f, d, t * K + j) == t * prob_columns(d) + e) {
                    want = (double)((float *)d->d_row_probs.data)[row];
                }
            }
            close(f, d, "d_probs", t, e, (double)((float *)d->d_probs.data)[t * prob_columns(d) + e], want, 0, 0);
        }
    }
    for (int64_t i = 0; i < f->c.rows * H; i++) { /* rows: what permute made of x */
        left += typed_get(d->type, d->rows.data, i) * typed_get(d->type, d->d_rows.data, i);
    }
    close(f, d, "<permute(x), y> - <x, backward(y)>", 0, 0, left, right, 0, 0);
    free(before);
}

static void check_unpermute(struct fixture *f, struct data *d)
{
    const struct moe_movement move = movement(f, d);
    const double tolerance = typed_tolerance(d->type);
    random_typed(f, d->type, d->rows.data, f->c.rows * H, false);
    assert_int_equal(moe_map_unpermute(f->map, &move, d->rows.data, d->mode != NONE ? d->probs.data : NULL, d->y.data),
                     0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int64_t t = 0; t < f->c.tokens; t++) {
        for (int64_t h = 0; h < H; h++) {
            double want = 0, size = 0;
            for (int32_t j = 0; j < K; j++) {
                int64_t row = ref_row(&f->c, t, j);
                double term = row < 0 ? 0.0 : prob_of(f, d, t * K + j) * typed_get(d->type, d->rows.data, row * H + h);
                want += term;
                size += fabs(term);
            }
            close(f, d, "unpermute", t, h, typed_get(d->type, d->y.data, t * H + h), want, size, tolerance);
        }
    }
}

static void check_unpermute_backward(struct fixture *f, struct data *d)
{
    const struct moe_movement move = movement(f, d);
    const bool probs = d->mode != NONE;
    memset(d->d_rows.data, CANARY_BYTE, d->d_rows.bytes);
    memset(d->d_probs.data, CANARY_BYTE, d->d_probs.bytes);
    assert_int_equal(moe_map_unpermute_backward(f->map, &move, d->x.data, probs ? d->rows.data : NULL,
                                                probs ? d->probs.data : NULL, d->d_rows.data,
                                                probs ? d->d_probs.data : NULL),
                     0);
    assert_int_equal(moe_device_sync(f->device), 0);
    for (int64_t r = 0; r < f->c.rows; r++) {
        int64_t flat = ref_choice(&f->c, r);
        for (int64_t h = 0; h < H; h++) {
            double want = flat < 0 ? 0.0 : prob_of(f, d, flat) * typed_get(d->type, d->x.data, flat / K * H + h);
            close(f, d, "d_in", r, h, typed_get(d->type, d->d_rows.data, r * H + h), want, fabs(want),
                  typed_tolerance(d->type));
        }
    }
    for (int64_t i = 0; probs && i < f->c.tokens * prob_columns(d); i++) {
        double want = 0, size = 0;
        for (int64_t flat = i / prob_columns(d) * K; flat < (i / prob_columns(d) + 1) * K; flat++) {
            int64_t row = ref_row(&f->c, flat / K, (int32_t)(flat % K));
            for (int64_t h = 0; row >= 0 && prob_cell(f, d, flat) == i && h < H; h++) {
                double term =
                    typed_get(d->type, d->x.data, flat / K * H + h) * typed_get(d->type, d->rows.data, row * H + h);
                want += term;
                size += fabs(term);
            }
        }
        close(f, d, "d_probs of unpermute", i, 0, (double)((float *)d->d_probs.data)[i], want, size, 1e-6);
    }
}

/* All that a case made, for the comparison between kinds. */
static size_t collect(struct data *d, unsigned char *out, size_t size)
{
    struct guarded *all[8];
    size_t n = buffers(d, all), used = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(used + all[i]->bytes <= size);
        memcpy(out + used, all[i]->data, all[i]->bytes);
        used += all[i]->bytes;
    }
    return used;
}

static size_t run_case(const struct build *b, enum moe_map_kind kind, enum moe_dtype type, enum probs mode,
                       unsigned char *out, size_t size)
{
    struct fixture f;
    struct data d = {.type = type, .mode = mode, .build = b};
    set_up(&f, b, kind);
    data_new(&f, &d);
    check_permute(&f, &d);
    check_permute_backward(&f, &d, 0.0f);
    check_permute_backward(&f, &d, 1.0f);
    check_unpermute(&f, &d);
    check_unpermute_backward(&f, &d);
    size_t used = collect(&d, out, size);
    data_free(&f, &d);
    tear_down(&f);
    return used;
}

static void test_every_kind_type_build_and_use_of_probabilities(void **state)
{
    (void)state;
    static unsigned char mask[1 << 16], other[1 << 16];
    for (size_t b = 0; b < sizeof(builds) / sizeof(builds[0]); b++) {
        for (int type = MOE_F32; type <= MOE_F16; type++) {
            for (int mode = NONE; mode < PROB_MODES; mode++) {
                size_t bytes = 0;
                for (int kind = MOE_MAP_MASK; kind <= MOE_MAP_SORTED; kind++) {
                    if (kind == MOE_MAP_MASK && mode == BY_CHOICE) {
                        continue;
                    }
                    bool first = kind == MOE_MAP_MASK || (kind == MOE_MAP_INDEX && mode == BY_CHOICE);
                    size_t n = run_case(&builds[b], (enum moe_map_kind)kind, (enum moe_dtype)type, (enum probs)mode,
                                        first ? mask : other, sizeof(mask));
                    if (first) {
                        bytes = n;
                    } else {
                        assert_int_equal(n, bytes);
                        assert_memory_equal(mask, other, bytes);
                    }
                }
            }
        }
    }
}

/* The example of the specification: a token with rows 0 and 3 stores 3, 0. */
static void test_a_mask_map_stores_descending_rows(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_row_map_t *map = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_row_map_new(device, 3, 2, &map), 0);
    uint8_t *mask = support_array(device, 6, 1);
    const uint8_t routing[6] = {1, 1, 1, 0, 1, 0}; /* rows of expert 0: tokens 0, 1, 2; of expert 1: token 0 */
    memcpy(mask, routing, sizeof(routing));
    const struct moe_map_source source = {.mask = mask};
    assert_int_equal(moe_row_map_build_from(map, &source, 0, 3, 4), 0);
    assert_int_equal(moe_device_sync(device), 0);
    const struct moe_map_header *header = moe_row_map_buffer(map);
    const int32_t *cells = (const int32_t *)(header + 1);
    assert_int_equal(header->routed, 4);
    const int32_t want[5] = {3, 0, 1, 0, 2}; /* rows 3, 0; experts 1, 0; n */
    assert_memory_equal(cells, want, sizeof(want));
    assert_int_equal(cells[5], 1);
    assert_int_equal(cells[9], 1);
    assert_int_equal(cells[10], 2);
    assert_int_equal(cells[14], 1);
    moe_row_map_destroy(&map);
    moe_device_free(device, &mask);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_type_build_and_use_of_probabilities),
        cmocka_unit_test(test_a_mask_map_stores_descending_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
