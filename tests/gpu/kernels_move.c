/*
 * kernels_move.c: row maps, permute and unpermute and their gradients, host against GPU; rows beyond 2^31 elements; and
 * how much of the copy rate they reach.
 */
#include "tests/gpu/exact.h"
#include "tests/gpu/kernels.h"

#include <math.h>

/* One case of a row map. */
struct shape {
    enum moe_map_kind kind;
    int64_t tokens, experts;
    int32_t k;
    int64_t width, align; /* align > 1: rows of an expert rounded up */
    bool mask;            /* from a routing map */
    int spread;           /* experts that are chosen at all: the others are empty */
};

/* A map on both sides, with what it was made from. */
struct mapped {
    struct twin index, mask, map, chosen, m;
    int64_t rows;
    struct moe_map_view view[SIDES];
};

/* k distinct experts of `spread` for each token; now and then one less (-1). */
static void choose(struct check *c, const struct shape *s, struct mapped *p)
{
    int32_t *index = twin_at(&p->index, HOST);
    uint8_t *mask = twin_at(&p->mask, HOST);
    int64_t *chosen = calloc((size_t)s->experts, sizeof(*chosen));
    for (int64_t t = 0; t < s->tokens; t++) {
        int64_t first = random_below(c, s->spread);
        for (int32_t j = 0; j < s->k; j++) {
            bool none = random_below(c, 29) == 0;
            int64_t e = (first + j) % s->spread;
            index[t * s->k + j] = none ? -1 : (int32_t)e;
            if (!none && chosen != NULL) {
                mask[t * s->experts + e] = 1;
                chosen[e]++;
            }
        }
    }
    p->rows = 0;
    for (int64_t e = 0; chosen != NULL && e < s->experts; e++) {
        int64_t align = s->align > 1 ? s->align : 1;
        p->rows += (chosen[e] + align - 1) / align * align;
    }
    free(chosen);
    twin_push(c, &p->index);
    twin_push(c, &p->mask);
}

static struct mapped mapped_new(struct check *c, const struct shape *s)
{
    struct mapped p = {.index = twin_new(c, s->tokens * s->k, sizeof(int32_t)),
                       .mask = twin_new(c, s->tokens * s->experts, 1)};
    choose(c, s, &p);
    size_t bytes = moe_map_bytes(s->kind, s->tokens, s->experts, s->k, p.rows);
    p.map = twin_new(c, (int64_t)bytes, 1);
    p.chosen = twin_new(c, s->experts, sizeof(int64_t));
    p.m = twin_new(c, s->experts, sizeof(int64_t));
    /* Cells that no builder writes differ from nothing: both sides begin with zeros. */
    RUN_BOTH(c, row_map_build, struct moe_row_map_build, .kind = s->kind, .tokens = s->tokens, .experts = s->experts,
             .k = s->mask && s->kind == MOE_MAP_MASK ? 0 : s->k, .rows = p.rows, .index = s->mask ? NULL : ON(p.index),
             .mask = s->mask ? ON(p.mask) : NULL, .align = s->align, .chosen = ON(p.chosen), .m = ON(p.m),
             .map = ON(p.map));
    for (int side = 0; side < SIDES; side++) {
        p.view[side] = (struct moe_map_view){.kind = s->kind,
                                             .k = s->kind == MOE_MAP_MASK ? 0 : s->k,
                                             .tokens = s->tokens,
                                             .experts = s->experts,
                                             .rows = p.rows,
                                             .map = twin_at(&p.map, side)};
    }
    return p;
}

static void mapped_free(struct check *c, struct mapped *p)
{
    struct twin *all[] = {&p->index, &p->mask, &p->map, &p->chosen, &p->m};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        twin_free(c, all[i]);
    }
}

static const struct shape shapes[] = {
    {MOE_MAP_MASK, 0, 4, 2, 8, 0, false, 4},         {MOE_MAP_MASK, 1, 1, 1, 1, 0, false, 1},
    {MOE_MAP_MASK, 5, 4, 2, 7, 0, false, 3},         {MOE_MAP_MASK, 63, 8, 3, 24, 16, false, 8},
    {MOE_MAP_MASK, 64, 8, 8, 40, 0, true, 8},        {MOE_MAP_MASK, 65, 33, 2, 56, 8, true, 5},
    {MOE_MAP_MASK, 1009, 256, 8, 72, 0, false, 256}, {MOE_MAP_MASK, 130, 300, 200, 16, 0, true, 300},
    {MOE_MAP_INDEX, 0, 4, 2, 8, 0, false, 4},        {MOE_MAP_INDEX, 67, 9, 4, 33, 0, false, 9},
    {MOE_MAP_INDEX, 257, 64, 6, 128, 32, true, 40},  {MOE_MAP_SORTED, 1, 3, 2, 8, 0, false, 3},
    {MOE_MAP_SORTED, 129, 16, 4, 48, 4, false, 11},  {MOE_MAP_SORTED, 200, 12, 3, 5, 0, true, 12},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))
static const enum moe_dtype types[] = {MOE_F32, MOE_BF16, MOE_F16};
static const double step[] = {1e-6, 1.0 / 128, 1.0 / 1024}; /* of a rounding, by type */

static void build(struct check *c)
{
    row_begin(c, "row_map_build");
    for (size_t i = 0; i < SHAPES; i++) {
        if (!taken(c)) {
            continue;
        }
        struct mapped p = mapped_new(c, &shapes[i]);
        both_found(c, 0, "row_map_build");
        twin_equal(c, &p.map, "map");
        twin_equal(c, &p.chosen, "chosen");
        twin_equal(c, &p.m, "m");
        mapped_free(c, &p);
    }
    row_end(c, "");
}

/* A wrong choice, and counts that are too small, must be told by both and leave no map. */
static void build_refuses(struct check *c)
{
    static const struct {
        int32_t index[4];
        int64_t counts[3], rows;
        int found;
    } bad[] = {
        {{0, 1, 2, 3}, {2, 1, 1}, 4, MOE_E_EXPERT},   {{0, 0, 1, 2}, {2, 1, 1}, 4, MOE_E_EXPERT},
        {{0, 1, 1, 2}, {1, -1, 1}, 4, MOE_E_COUNT},   {{0, 1, 1, 2}, {1, 1, 2}, 4, MOE_E_SPLIT},
        {{0, 1, 1, 2}, {1, 2, 2}, 4, MOE_E_CAPACITY}, {{0, 1, 1, 2}, {1, 2, INT64_MAX}, 4, MOE_E_CAPACITY},
    };
    row_begin(c, "row_map_build: errors");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct twin index = twin_new(c, 4, sizeof(int32_t)), counts = twin_new(c, 3, sizeof(int64_t));
        struct twin map = twin_new(c, (int64_t)moe_map_bytes(MOE_MAP_MASK, 2, 3, 2, 4), 1);
        memcpy(twin_at(&index, HOST), bad[i].index, sizeof(bad[i].index));
        memcpy(twin_at(&counts, HOST), bad[i].counts, sizeof(bad[i].counts));
        twin_push(c, &index);
        twin_push(c, &counts);
        RUN_BOTH(c, row_map_build, struct moe_row_map_build, .kind = MOE_MAP_MASK, .tokens = 2, .experts = 3, .k = 2,
                 .rows = bad[i].rows, .index = ON(index), .counts = ON(counts), .map = ON(map));
        both_found(c, bad[i].found, "row_map_build");
        struct twin from = twin_random(c, 16, MOE_F32, 1), to = twin_new(c, 32, sizeof(float));
        twin_poison(c, &to);
        for (int side = 0; side < SIDES; side++) {
            struct moe_map_gather gather = {
                .view = {.kind = MOE_MAP_MASK, .tokens = 2, .experts = 3, .rows = 4, .map = twin_at(&map, side)},
                .width = 8,
                .from = twin_at(&from, side),
                .to = twin_at(&to, side)};
            launched(c, moe_device_ops(c->device[side])->map_gather(c->device[side], &gather), "map_gather");
        }
        both_found(c, MOE_E_MAP, "map_gather over no map");
        twin_equal(c, &to, "untouched");
        struct twin *all[] = {&index, &counts, &map, &from, &to};
        for (size_t j = 0; j < 5; j++) {
            twin_free(c, all[j]);
        }
    }
    row_end(c, "");
}

/*
 * The rows of every token by the rule itself, and not by the map that is under test: experts one after the other, each
 * with its tokens in order. row[t, column], column the expert or the choice: -1 without one.
 */
static int64_t *rows_of_tokens(const struct shape *s, const struct mapped *p, bool by_choice, int64_t columns)
{
    int64_t *row = malloc((size_t)(s->tokens * columns + 1) * sizeof(*row)), next = 0;
    const uint8_t *mask = twin_at(&p->mask, HOST);
    const int32_t *index = twin_at(&p->index, HOST);
    if (row == NULL) {
        perror("gpu check");
        exit(9);
    }
    memset(row, 0xff, (size_t)(s->tokens * columns) * sizeof(*row));
    for (int64_t e = 0; e < s->experts; e++) {
        int64_t used = 0, align = s->align > 1 ? s->align : 1;
        for (int64_t t = 0; t < s->tokens; t++) {
            int64_t column = by_choice && s->mask ? 0 : e;
            for (int64_t i = 0; by_choice && s->mask && i < e; i++) { /* a mask's choices are numbered by expert */
                column += mask[t * s->experts + i] != 0;
            }
            for (int32_t j = 0; by_choice && !s->mask && j < s->k; j++) {
                column = index[t * s->k + j] == e ? j : column;
            }
            if (mask[t * s->experts + e] != 0) {
                row[t * columns + column] = next + used++;
            }
        }
        next += (used + align - 1) / align * align;
    }
    return row;
}

/* The three movements over one map, in one type; odd shapes begin at odd addresses. */
static void move(struct check *c, const struct shape *s, enum moe_dtype type, const char *which)
{
    struct mapped p = mapped_new(c, s);
    enum moe_prob_layout layout = s->kind != MOE_MAP_MASK && s->k % 2 == 0 ? MOE_PROBS_BY_CHOICE : MOE_PROBS_BY_EXPERT;
    int64_t cells = s->tokens * (layout == MOE_PROBS_BY_CHOICE ? s->k : s->experts);
    struct twin x = twin_random(c, s->tokens * s->width, type, 2), rows = twin_random(c, p.rows * s->width, type, 2);
    struct twin probs = twin_grid(c, cells, 9), row_probs = twin_random(c, p.rows, MOE_F32, 1),
                d_probs = twin_new(c, cells, sizeof(float));
    bool zero_by_prob = s->tokens % 2 == 1;
    twin_poison(c, &d_probs);
    both_found(c, 0, "row_map_build");
    struct exact_movement exact = {.tokens = s->tokens,
                                   .columns = layout == MOE_PROBS_BY_CHOICE ? s->k : s->experts,
                                   .width = s->width,
                                   .zero_by_prob = zero_by_prob,
                                   .add = s->experts % 2 != 0};
    int64_t *row = rows_of_tokens(s, &p, layout == MOE_PROBS_BY_CHOICE, exact.columns);
    double *wide[] = {twin_wide(c, &x, type), twin_wide(c, &rows, type), twin_wide(c, &probs, MOE_F32)};
    exact.row = row;
    exact.x = wide[0];
    exact.rows = wide[1];
    exact.probs = wide[2];
    if (strcmp(which, "map_gather") == 0) {
        twin_poison(c, &rows);
        twin_poison(c, &row_probs);
        RUN_BOTH(c, map_gather, struct moe_map_gather, .view = p.view[side], .type = type, .width = s->width,
                 .from = ON(x), .to = ON(rows), .layout = layout, .zero_by_prob = zero_by_prob, .probs = ON(probs),
                 .row_probs = ON(row_probs));
        both_found(c, 0, which);
        twin_equal(c, &rows, "rows");
        twin_equal(c, &row_probs, "row_probs");
    } else if (strcmp(which, "map_scatter") == 0) {
        RUN_BOTH(c, map_scatter, struct moe_map_scatter, .view = p.view[side], .type = type, .width = s->width,
                 .layout = layout, .zero_by_prob = zero_by_prob, .probs = ON(probs), .from = ON(rows), .to = ON(x),
                 .beta = s->experts % 2 == 0 ? 0.0f : 1.0f, .d_row_probs = ON(row_probs), .d_probs = ON(d_probs));
        both_found(c, 0, which);
        twin_exact(c, &x, type, exact_scatter(&exact), s->k > 128 ? 8 * step[type] : step[type], s->k, "x");
        twin_equal(c, &d_probs, "d_probs");
    } else {
        struct twin d_rows = twin_new(c, p.rows * s->width, moe_dtype_bytes(type));
        twin_poison(c, &d_rows);
        RUN_BOTH(c, map_scatter_backward, struct moe_map_scatter_backward, .view = p.view[side], .type = type,
                 .width = s->width, .layout = layout, .probs = ON(probs), .dy = ON(x), .from = ON(rows),
                 .d_from = ON(d_rows), .d_probs = ON(d_probs));
        both_found(c, 0, which);
        twin_equal(c, &d_rows, "d_rows");
        twin_exact(c, &d_probs, MOE_F32, exact_dots(&exact), 1e-5, sqrt((double)s->width), "d_probs");
        twin_free(c, &d_rows);
    }
    free(row);
    for (size_t i = 0; i < 3; i++) {
        free(wide[i]);
    }
    struct twin *all[] = {&x, &rows, &probs, &row_probs, &d_probs};
    for (size_t i = 0; i < 5; i++) {
        twin_free(c, all[i]);
    }
    mapped_free(c, &p);
}

/* timing */

struct timed {
    struct moe_map_gather gather;
    struct moe_map_scatter scatter;
};

static void gather_once(struct check *c, const void *args)
{
    const struct timed *t = args;
    launched(c, moe_device_ops(c->device[GPU])->map_gather(c->device[GPU], &t->gather), "map_gather");
}

static void scatter_once(struct check *c, const void *args)
{
    const struct timed *t = args;
    launched(c, moe_device_ops(c->device[GPU])->map_scatter(c->device[GPU], &t->scatter), "map_scatter");
}

static void rate_members(char *to, size_t room, double bytes, double ms, double copy)
{
    double rate = bytes / (ms * 1e-3);
    snprintf(to, room, "\"large_shape_ms\":%.4f,\"tb_per_s\":%.3f,\"of_copy\":%.3f", ms, rate / 1e12,
             copy > 0 ? rate / copy : 0.0);
}

/* T = 4096, k = 8, H = 7168 in bfloat16: what is moved is T rows in and R out, or the other way round, and is put
 * beside a copy of as many bytes. */
static void speed(struct check *c, char *gather, char *scatter, size_t room)
{
    struct shape s = {MOE_MAP_MASK, 4096, 256, 8, 7168, 0, false, 256};
    if (c->rehearsal) {
        s.tokens = 64;
        s.width = 64;
    }
    struct mapped p = mapped_new(c, &s);
    both_found(c, 0, "row_map_build");
    size_t row = (size_t)s.width * 2;
    double bytes = (double)(p.rows + s.tokens) * (double)row, copy = copy_rate(c, (size_t)(bytes / 2));
    struct timed t = {.gather = {.view = p.view[GPU], .type = MOE_BF16, .width = s.width},
                      .scatter = {.view = p.view[GPU], .type = MOE_BF16, .width = s.width}};
    void *tokens = NULL, *rows = NULL;
    struct twin probs = twin_grid(c, s.tokens * s.experts, 9);
    if (moe_device_alloc(c->device[GPU], (size_t)s.tokens * row, &tokens) == 0 &&
        moe_device_alloc(c->device[GPU], (size_t)p.rows * row, &rows) == 0) {
        t.gather.from = t.scatter.to = tokens;
        t.gather.to = rows;
        t.scatter.from = rows;
        t.scatter.probs = twin_at(&probs, GPU);
        rate_members(gather, room, bytes, time_ms(c, gather_once, &t), copy);
        rate_members(scatter, room, bytes, time_ms(c, scatter_once, &t), copy);
    }
    moe_device_free(c->device[GPU], &tokens);
    moe_device_free(c->device[GPU], &rows);
    twin_free(c, &probs);
    mapped_free(c, &p);
}

/* R x H beyond 2^31: rows are written and read where 32-bit offsets would wrap. Only the GPU's side is that large; its
 * rows are compared with their tokens on the GPU by checksum. */
static void beyond_int32(struct check *c)
{
    struct shape s = {MOE_MAP_MASK, 80000, 8, 4, 7168, 0, false, 8}; /* about 309,000 rows, 2.2e9 elements */
    if (c->rehearsal) {
        s.tokens = 80;
    }
    row_begin(c, "map_gather: beyond 2^31 elements");
    struct mapped p = mapped_new(c, &s);
    both_found(c, 0, "row_map_build");
    size_t row = (size_t)s.width * 2;
    void *tokens = NULL, *rows = NULL, *back = NULL;
    uint64_t *sum = NULL;
    bool room = moe_device_alloc(c->device[GPU], (size_t)s.tokens * row, &tokens) == 0 &&
                moe_device_alloc(c->device[GPU], (size_t)p.rows * row, &rows) == 0 &&
                moe_device_alloc(c->device[GPU], (size_t)s.tokens * row, &back) == 0 &&
                moe_device_alloc(c->device[GPU], 2 * sizeof(*sum), (void **)&sum) == 0;
    if (room) {
        /* All ones: the sum over a token's rows is then its number of rows, whatever rows those are, and none may be
         * missed. */
        uint16_t *ones = malloc((size_t)s.tokens * row), *want = malloc((size_t)s.tokens * row);
        const int32_t *index = twin_at(&p.index, HOST);
        for (int64_t t = 0; ones != NULL && want != NULL && t < s.tokens; t++) {
            float n = 0;
            for (int32_t j = 0; j < s.k; j++) {
                n += index[t * s.k + j] >= 0 ? 1.0f : 0.0f;
            }
            uint32_t bits;
            memcpy(&bits, &n, sizeof(bits));
            for (int64_t i = 0; i < s.width; i++) {
                ones[t * s.width + i] = 0x3f80;
                want[t * s.width + i] = (uint16_t)(bits >> 16);
            }
        }
        uint64_t got[2] = {0, 1};
        const struct moe_ops *ops = moe_device_ops(c->device[GPU]);
        struct moe_map_gather gather = {
            .view = p.view[GPU], .type = MOE_BF16, .width = s.width, .from = tokens, .to = rows};
        struct moe_map_scatter scatter = {
            .view = p.view[GPU], .type = MOE_BF16, .width = s.width, .from = rows, .to = back};
        struct moe_checksum first = {.data = back, .bytes = (size_t)s.tokens * row, .out = sum};
        struct moe_checksum second = {.data = tokens, .bytes = (size_t)s.tokens * row, .out = sum + 1};
        launched(c, moe_device_copy(c->device[GPU], tokens, ones, (size_t)s.tokens * row), "copy");
        launched(c, ops->map_gather(c->device[GPU], &gather), "map_gather");
        launched(c, ops->map_scatter(c->device[GPU], &scatter), "map_scatter");
        launched(c, ops->checksum(c->device[GPU], &first), "checksum");
        launched(c, moe_device_copy(c->device[GPU], tokens, want, (size_t)s.tokens * row), "copy");
        launched(c, ops->checksum(c->device[GPU], &second), "checksum");
        launched(c, moe_device_copy(c->device[GPU], got, sum, sizeof(got)), "copy");
        both_found(c, 0, "beyond 2^31");
        if (got[0] != got[1]) {
            row_wrong(c, "the sums of rows are wrong");
        }
        free(ones);
        free(want);
    }
    moe_device_free(c->device[GPU], &tokens);
    moe_device_free(c->device[GPU], &rows);
    moe_device_free(c->device[GPU], &back);
    moe_device_free(c->device[GPU], &sum);
    mapped_free(c, &p);
    row_end(c, room ? "" : "\"note\":\"not enough memory: left out\"");
}

/* A sound map that is of another kind, or of other sizes, than the caller means: told by all, and nothing written; with
 * no tokens and with rows that no token has, too. */
static void wrong_map(struct check *c)
{
    static const struct shape made[] = {{MOE_MAP_INDEX, 9, 4, 2, 8, 8, false, 4},
                                        {MOE_MAP_MASK, 0, 4, 2, 8, 0, false, 4}};
    row_begin(c, "movements over another map");
    for (size_t i = 0; i < 2; i++) {
        for (int op = 0; op < 3; op++) {
            struct mapped p = mapped_new(c, &made[i]);
            int64_t tokens = made[i].tokens, rows = p.rows + 3;
            struct twin x = twin_random(c, tokens * 8, MOE_F32, 1), y = twin_random(c, rows * 8, MOE_F32, 1);
            struct twin to = twin_new(c, rows * 8, sizeof(float)), probs = twin_random(c, tokens * 4, MOE_F32, 1);
            struct twin d_probs = twin_new(c, tokens * 4, sizeof(float));
            both_found(c, 0, "row_map_build");
            twin_poison(c, &to);
            twin_poison(c, &d_probs);
            for (int side = 0; side < SIDES; side++) {
                const struct moe_ops *ops = moe_device_ops(c->device[side]);
                struct moe_map_view view = p.view[side];
                view.rows = rows;
                struct moe_map_gather gather = {.view = view, .width = 8, .from = ON(x), .to = ON(to)};
                struct moe_map_scatter scatter = {.view = view, .width = 8, .from = ON(y), .to = ON(to)};
                struct moe_map_scatter_backward back = {.view = view,
                                                        .width = 8,
                                                        .probs = ON(probs),
                                                        .dy = ON(x),
                                                        .from = ON(y),
                                                        .d_from = ON(to),
                                                        .d_probs = ON(d_probs)};
                launched(c,
                         op == 0   ? ops->map_gather(c->device[side], &gather)
                         : op == 1 ? ops->map_scatter(c->device[side], &scatter)
                                   : ops->map_scatter_backward(c->device[side], &back),
                         c->name);
            }
            both_found(c, MOE_E_MAP, "another map");
            twin_equal(c, &to, "untouched");
            twin_equal(c, &d_probs, "untouched");
            struct twin *all[] = {&x, &y, &to, &probs, &d_probs};
            for (size_t j = 0; j < 5; j++) {
                twin_free(c, all[j]);
            }
            mapped_free(c, &p);
        }
    }
    row_end(c, "");
}

void check_move(struct check *c)
{
    static const char *const movements[] = {"map_gather", "map_scatter", "map_scatter_backward"};
    char rate[3][128] = {"", "", ""};
    build(c);
    build_refuses(c);
    wrong_map(c);
    if (!c->sample) {
        row_begin(c, "speed of movements");
        speed(c, rate[0], rate[1], sizeof(rate[0]));
    }
    for (int m = 0; m < 3; m++) {
        row_begin(c, movements[m]);
        for (size_t i = 0; i < SHAPES; i++) {
            for (int t = 0; t < 3; t++) {
                if (!taken(c)) {
                    continue;
                }
                struct shape shape = shapes[i]; /* with --sample, large ones lose tokens */
                shape.tokens = c->sample && shape.tokens > 256 ? shape.tokens / 8 : shape.tokens;
                move(c, &shape, types[t], movements[m]);
            }
        }
        row_end(c, rate[m]);
    }
    if (!c->sample) {
        beyond_int32(c);
    }
}
