/*
 * kernels_rows.c: functions of rows, host against GPU: activations, scaling, gates, padding, slack, dummy rows, chunks;
 * each in every type it takes.
 */
#include "tests/gpu/exact.h"
#include "tests/gpu/kernels.h"

#include <math.h>

static const enum moe_dtype types[] = {MOE_F32, MOE_BF16, MOE_F16};
static const double step[] = {4e-6, 1.0 / 128, 1.0 / 1024}; /* of a rounding, by type */

static const struct {
    int64_t groups, rows, width;
} shapes[] = {{1, 0, 8}, {1, 1, 1}, {3, 7, 5}, {4, 64, 24}, {9, 131, 100}, {33, 500, 264}, {64, 301, 1031}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* With --sample, large shapes keep their width and lose rows. */
static int64_t rows_of(const struct check *c, size_t s)
{
    return c->sample && shapes[s].rows > 256 ? shapes[s].rows / 8 : shapes[s].rows;
}

/* Rows of groups that leave some slack; one group in three is empty. */
static struct twin splits(struct check *c, int64_t groups, int64_t rows)
{
    struct twin m = twin_new(c, groups, sizeof(int64_t));
    int64_t *count = twin_at(&m, HOST), left = rows * 7 / 8;
    for (int64_t i = 0; i < groups; i++) {
        count[i] = i % 3 == 1 ? 0 : random_below(c, left / 2 + 1);
        left -= count[i];
    }
    twin_push(c, &m);
    return m;
}

/* Counts that do not fit must be told by both, and nothing be written. */
static void bad_splits(struct check *c)
{
    static const struct {
        int64_t m[2];
        int found;
    } bad[] = {{{-1, 2}, MOE_E_COUNT}, {{3, 6}, MOE_E_SPLIT}, {{INT64_MAX, INT64_MAX}, MOE_E_SPLIT}};
    row_begin(c, "rows: counts that do not fit");
    for (size_t i = 0; i < 3; i++) {
        struct twin m = twin_new(c, 2, sizeof(int64_t)), h = twin_random(c, 8 * 16, MOE_F32, 1),
                    act = twin_new(c, 8 * 8, sizeof(float));
        memcpy(twin_at(&m, HOST), bad[i].m, sizeof(bad[i].m));
        twin_push(c, &m);
        twin_poison(c, &act);
        RUN_BOTH(c, act, struct moe_act, .groups = 2, .m = ON(m), .rows = 8, .width = 8, .h = ON(h), .act = ON(act));
        both_found(c, bad[i].found, "act");
        RUN_BOTH(c, zero_slack, struct moe_zero_slack, .groups = 2, .rows = 8, .row_bytes = 32, .m = ON(m),
                 .data = ON(act));
        both_found(c, bad[i].found, "zero_slack");
        twin_equal(c, &act, "untouched");
        twin_free(c, &m);
        twin_free(c, &h);
        twin_free(c, &act);
    }
    row_end(c, "");
}

static int64_t live_rows(const struct twin *m, int64_t rows)
{
    const int64_t *count = twin_at(m, HOST);
    int64_t live = m->count > 0 && count != NULL ? 0 : rows;
    for (int64_t i = 0; i < m->count; i++) {
        live += count[i];
    }
    return live;
}

static void act(struct check *c, bool backward)
{
    row_begin(c, backward ? "act_backward" : "act");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int kind = 0; kind < MOE_ACTIVATIONS; kind++) {
            for (int t = 0; t < 3; t++) {
                if (!taken(c)) {
                    continue;
                }
                int64_t rows = rows_of(c, s), width = shapes[s].width;
                struct twin m = splits(c, shapes[s].groups, rows), h = twin_random(c, rows * 2 * width, types[t], 9);
                struct twin probs = twin_random(c, rows, MOE_F32, 1),
                            out = twin_new(c, rows * width, moe_dtype_bytes(types[t]));
                struct twin d_act = twin_random(c, rows * width, types[t], 1),
                            d_h = twin_new(c, rows * 2 * width, moe_dtype_bytes(types[t]));
                struct twin d_probs = twin_random(c, rows, MOE_F32, 1);
                double *old = twin_wide(c, &d_probs, MOE_F32);
                twin_poison(c, &out);
                twin_poison(c, &d_h);
                for (int side = 0; side < SIDES; side++) {
                    struct moe_act a = {.groups = shapes[s].groups,
                                        .m = kind % 2 == 0 ? ON(m) : NULL,
                                        .rows = rows,
                                        .width = width,
                                        .kind = (enum moe_activation)kind,
                                        .clamp = {1.702f, 7.0f, 1.0f},
                                        .type = types[t],
                                        .h = ON(h),
                                        .probs = t == 1 ? NULL : ON(probs),
                                        .act = ON(out),
                                        .d_act = ON(d_act),
                                        .d_h = ON(d_h),
                                        .d_probs = ON(d_probs)};
                    const struct moe_ops *ops = moe_device_ops(c->device[side]);
                    launched(c, backward ? ops->act_backward(c->device[side], &a) : ops->act(c->device[side], &a),
                             c->name);
                }
                both_found(c, 0, c->name);
                double *inputs[] = {twin_wide(c, &h, types[t]), twin_wide(c, &probs, MOE_F32),
                                    twin_wide(c, &d_act, types[t])};
                struct exact_act want = {.live = kind % 2 == 0 ? live_rows(&m, rows) : rows,
                                         .rows = rows,
                                         .width = width,
                                         .h = inputs[0],
                                         .probs = t == 1 ? NULL : inputs[1],
                                         .d_act = inputs[2],
                                         .out = twin_wide(c, &out, types[t]),
                                         .d_h = twin_wide(c, &d_h, types[t]),
                                         .d_probs = old};
                exact_act((enum moe_activation)kind, (struct moe_clamp){1.702f, 7.0f, 1.0f}, &want);
                twin_exact(c, backward ? &d_h : &out, types[t], backward ? want.d_h : want.out, step[t], 1, "result");
                free(backward ? want.out : want.d_h);
                if (backward) {
                    twin_exact(c, &d_probs, MOE_F32, old, 1e-5, 9 * sqrt((double)width), "d_probs");
                } else {
                    free(old);
                }
                for (size_t i = 0; i < 3; i++) {
                    free(inputs[i]);
                }
                struct twin *all[] = {&m, &h, &probs, &out, &d_act, &d_h, &d_probs};
                for (size_t i = 0; i < 7; i++) {
                    twin_free(c, all[i]);
                }
            }
        }
    }
    row_end(c, "");
}

static void swiglu(struct check *c)
{
    for (int backward = 0; backward < 2; backward++) {
        row_begin(c, backward ? "swiglu_backward" : "swiglu");
        for (size_t s = 0; s < SHAPES; s++) {
            int64_t cells = rows_of(c, s) * shapes[s].width;
            struct twin h = twin_random(c, 2 * cells, MOE_F32, 9), d_act = twin_random(c, cells, MOE_F32, 1);
            struct twin out = twin_new(c, backward ? 2 * cells : cells, sizeof(float));
            twin_poison(c, &out);
            for (int side = 0; side < SIDES; side++) {
                struct moe_swiglu a = {
                    .rows = rows_of(c, s), .width = shapes[s].width, .h = ON(h), .d_act = ON(d_act), .out = ON(out)};
                const struct moe_ops *ops = moe_device_ops(c->device[side]);
                launched(c, backward ? ops->swiglu_backward(c->device[side], &a) : ops->swiglu(c->device[side], &a),
                         c->name);
            }
            both_found(c, 0, c->name);
            double *want = twin_wide(c, &out, MOE_F32), *in = twin_wide(c, &h, MOE_F32);
            for (int64_t i = 0; i < cells; i++) {
                int64_t width = shapes[s].width, gate = i / width * 2 * width + i % width;
                struct exact_pair p = exact_gated(MOE_SWIGLU, (struct moe_clamp){0}, in[gate], in[gate + width]);
                double d = (double)((const float *)twin_at(&d_act, HOST))[i];
                want[backward ? gate : i] = backward ? d * p.by_gate : p.value;
                if (backward) {
                    want[gate + width] = d * p.by_linear;
                }
            }
            free(in);
            twin_exact(c, &out, MOE_F32, want, step[0], 1, "result");
            twin_free(c, &h);
            twin_free(c, &d_act);
            twin_free(c, &out);
        }
        row_end(c, "");
    }
}

static void row_scale(struct check *c)
{
    for (int backward = 0; backward < 2; backward++) {
        row_begin(c, backward ? "row_scale_backward" : "row_scale");
        for (size_t s = 0; s < SHAPES; s++) {
            for (int t = 0; t < 3; t++) {
                if (!taken(c)) {
                    continue;
                }
                int64_t rows = rows_of(c, s), cells = rows * shapes[s].width;
                struct twin m = splits(c, shapes[s].groups, rows), in = twin_random(c, cells, types[t], 2),
                            out = twin_random(c, cells, types[t], 2);
                struct twin probs = twin_random(c, rows, MOE_F32, 1), x = twin_random(c, cells, types[t], 2),
                            d_probs = twin_random(c, rows, MOE_F32, 1);
                bool same = s % 2 != 0, add = s % 3 == 0;
                double *of_in = twin_wide(c, same ? &out : &in, types[t]), *of_x = twin_wide(c, &x, types[t]);
                double *of_out = twin_wide(c, &out, types[t]), *dots = twin_wide(c, &d_probs, MOE_F32);
                for (int64_t i = 0, live = live_rows(&m, rows); i < live * shapes[s].width; i++) {
                    int64_t r = i / shapes[s].width;
                    of_out[i] = (add ? of_out[i] : 0) + (double)((const float *)twin_at(&probs, HOST))[r] * of_in[i];
                    dots[r] += backward ? of_in[i] * of_x[i] : 0;
                }
                free(of_in);
                free(of_x);
                for (int side = 0; side < SIDES; side++) {
                    struct moe_row_scale a = {.groups = shapes[s].groups,
                                              .m = ON(m),
                                              .rows = rows,
                                              .width = shapes[s].width,
                                              .type = types[t],
                                              .probs = ON(probs),
                                              .in = same ? ON(out) : ON(in),
                                              .out = ON(out),
                                              .beta = add ? 1.0f : 0.0f,
                                              .x = ON(x),
                                              .d_probs = ON(d_probs)};
                    const struct moe_ops *ops = moe_device_ops(c->device[side]);
                    launched(c,
                             backward ? ops->row_scale_backward(c->device[side], &a)
                                      : ops->row_scale(c->device[side], &a),
                             c->name);
                }
                both_found(c, 0, c->name);
                twin_exact(c, &out, types[t], of_out, step[t], 2, "out");
                twin_exact(c, &d_probs, MOE_F32, dots, 1e-5, 4 * sqrt((double)shapes[s].width), "d_probs");
                struct twin *all[] = {&m, &in, &out, &probs, &x, &d_probs};
                for (size_t i = 0; i < 6; i++) {
                    twin_free(c, all[i]);
                }
            }
        }
        row_end(c, "");
    }
}

static void token_gate(struct check *c)
{
    for (int backward = 0; backward < 2; backward++) {
        row_begin(c, backward ? "token_gate_backward" : "token_gate");
        for (size_t s = 0; s < SHAPES; s++) {
            for (int t = 0; t < 3; t++) {
                if (!taken(c)) {
                    continue;
                }
                int64_t tokens = rows_of(c, s), width = shapes[s].width;
                struct twin x = twin_random(c, tokens * width, types[t], 1),
                            gate = twin_random(c, width, types[t], 0.5f);
                struct twin score = twin_random(c, tokens, MOE_F32, 1), d_score = twin_random(c, tokens, MOE_F32, 1);
                struct twin dx = twin_random(c, tokens * width, types[t], 1),
                            d_gate = twin_random(c, width, MOE_F32, 1);
                struct exact_tokens want = {.tokens = tokens, .width = width, .beta = s % 2 == 0 ? 1 : 0};
                want.x = twin_wide(c, &x, types[t]);
                want.gate = twin_wide(c, &gate, types[t]);
                want.score = twin_wide(c, &score, MOE_F32);
                want.d_score = twin_wide(c, &d_score, MOE_F32);
                want.dx = twin_wide(c, &dx, types[t]);
                want.d_gate = twin_wide(c, &d_gate, MOE_F32);
                exact_token_gate(&want, backward);
                for (int side = 0; side < SIDES; side++) {
                    struct moe_token_gate a = {.tokens = tokens,
                                               .width = width,
                                               .type = types[t],
                                               .gate_type = types[t],
                                               .x = ON(x),
                                               .gate = ON(gate),
                                               .score = ON(score),
                                               .d_score = ON(d_score),
                                               .dx = ON(dx),
                                               .d_gate = ON(d_gate),
                                               .beta = s % 2 == 0 ? 1.0f : 0.0f};
                    const struct moe_ops *ops = moe_device_ops(c->device[side]);
                    launched(c,
                             backward ? ops->token_gate_backward(c->device[side], &a)
                                      : ops->token_gate(c->device[side], &a),
                             c->name);
                }
                both_found(c, 0, c->name);
                twin_exact(c, &score, MOE_F32, want.score, 1e-5, 1, "score");
                twin_exact(c, &dx, types[t], want.dx, step[t], 1, "dx");
                twin_exact(c, &d_gate, MOE_F32, want.d_gate, 1e-5, sqrt((double)tokens + 1), "d_gate");
                free(want.x);
                free(want.gate);
                free(want.d_score);
                struct twin *all[] = {&x, &gate, &score, &d_score, &dx, &d_gate};
                for (size_t i = 0; i < 6; i++) {
                    twin_free(c, all[i]);
                }
            }
        }
        row_end(c, "");
    }
}

static void pad_rows(struct check *c)
{
    static const enum moe_dtype any[] = {MOE_F32, MOE_BF16, MOE_E4M3};
    row_begin(c, "pad_rows");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int i = 0; i < 12; i++) {
            if (!taken(c)) {
                continue;
            }
            bool trim = i % 2 == 1, grouped = i / 2 % 2 == 1;
            enum moe_dtype type = any[i / 4];
            int64_t rows = rows_of(c, s), align = 8, padded = rows + shapes[s].groups * align, width = shapes[s].width;
            struct twin m = splits(c, shapes[s].groups, rows),
                        padded_m = twin_new(c, shapes[s].groups, sizeof(int64_t));
            struct twin from = twin_random(c, (trim ? padded : rows) * width, type, 2);
            struct twin to = twin_new(c, (trim ? rows : padded) * width, moe_dtype_bytes(type));
            twin_poison(c, &to);
            RUN_BOTH(c, pad_rows, struct moe_pad_rows, .type = type, .trim = trim, .rows = rows, .padded = padded,
                     .width = width, .groups = grouped ? shapes[s].groups : 0, .m = ON(m), .align = align,
                     .padded_m = ON(padded_m), .from = ON(from), .to = ON(to));
            both_found(c, 0, "pad_rows");
            twin_equal(c, &to, "to");
            twin_equal(c, &padded_m, "padded_m");
            struct twin *all[] = {&m, &padded_m, &from, &to};
            for (size_t j = 0; j < 4; j++) {
                twin_free(c, all[j]);
            }
        }
    }
    row_end(c, "");
}

static void dummy_rows(struct check *c)
{
    row_begin(c, "dummy_rows, pick_rows, zero_slack");
    for (size_t s = 0; s < SHAPES; s++) {
        int64_t groups = shapes[s].groups, rows = rows_of(c, s), bytes = shapes[s].width * 4;
        struct twin m = splits(c, groups, rows), padded = twin_new(c, groups, sizeof(int64_t)),
                    map = twin_new(c, rows + groups, sizeof(int64_t));
        struct twin from = twin_random(c, rows * shapes[s].width, MOE_F32, 1),
                    to = twin_new(c, (rows + groups) * shapes[s].width, sizeof(float));
        twin_poison(c, &to);
        twin_poison(c, &map);
        RUN_BOTH(c, dummy_rows, struct moe_dummy_rows, .groups = groups, .rows = rows, .m = ON(m), .padded = ON(padded),
                 .map = ON(map));
        RUN_BOTH(c, pick_rows, struct moe_pick_rows, .rows = rows + groups, .row_bytes = bytes, .map = ON(map),
                 .from = ON(from), .to = ON(to));
        both_found(c, 0, "dummy_rows");
        twin_equal(c, &map, "map");
        twin_equal(c, &padded, "padded");
        twin_equal(c, &to, "picked");
        twin_poison(c, &from);
        RUN_BOTH(c, pick_rows, struct moe_pick_rows, .rows = rows + groups, .row_bytes = bytes, .inverse = true,
                 .map = ON(map), .from = ON(to), .to = ON(from));
        RUN_BOTH(c, zero_slack, struct moe_zero_slack, .groups = groups, .rows = rows, .row_bytes = bytes, .m = ON(m),
                 .data = ON(from));
        both_found(c, 0, "pick_rows");
        twin_equal(c, &from, "picked back");
        struct twin *all[] = {&m, &padded, &map, &from, &to};
        for (size_t j = 0; j < 5; j++) {
            twin_free(c, all[j]);
        }
    }
    row_end(c, "");
}

/* Chunks from counts and from any order, and rows moved over both maps, there and back. */
static void chunks(struct check *c)
{
    row_begin(c, "chunk_map, chunk_order, chunk_sort");
    for (int64_t ranks = 1; ranks <= 9; ranks += 4) {
        for (int64_t local = 1; local <= 20; local *= 4) {
            if (!taken(c)) {
                continue;
            }
            int64_t experts = ranks * local, n = ranks * local, rows = 0, stride = experts + 1, rank = ranks - 1,
                    width = local % 2 == 0 ? 24 : 5;
            struct twin counts = twin_new(c, ranks * stride, sizeof(int64_t)), split = twin_new(c, n, sizeof(int64_t)),
                        order = twin_new(c, n, sizeof(int32_t));
            for (int64_t i = 0; i < n; i++) {
                int64_t count = random_below(c, 3) * random_below(c, 9);
                ((int64_t *)twin_at(&counts, HOST))[i / local * stride + rank * local + i % local] = count;
                ((int64_t *)twin_at(&split, HOST))[i] = count;
                ((int32_t *)twin_at(&order, HOST))[i] = (int32_t)((i * 7 + 3) % n);
                rows += count;
            }
            if (n % 7 == 0) {
                ((int32_t *)twin_at(&order, HOST))[0] = 0; /* then 7 i + 3 is no permutation; nor is this: EXPERT */
            }
            twin_push(c, &counts);
            twin_push(c, &split);
            twin_push(c, &order);
            bool slack = local % 2 == 0;
            int64_t room = slack ? rows + 5 : rows;
            struct twin map = twin_new(c, (int64_t)moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, room), 1),
                        m = twin_new(c, local, sizeof(int64_t));
            struct twin other = twin_new(c, map.count, 1);
            RUN_BOTH(c, chunk_map, struct moe_chunk_map, .ranks = ranks, .experts = experts, .stride = stride,
                     .rank = rank, .rows = room, .slack = slack, .counts = ON(counts), .m = ON(m), .map = ON(map));
            both_found(c, 0, "chunk_map");
            twin_equal(c, &map, "map");
            twin_equal(c, &m, "m");
            RUN_BOTH(c, chunk_order, struct moe_chunk_order, .chunks = n, .rows = room, .slack = slack,
                     .split = ON(split), .order = ON(order), .map = ON(other));
            both_found(c, n % 7 == 0 ? MOE_E_EXPERT : 0, "chunk_order");
            for (int i = 0; i < 4; i++) {
                struct twin from = twin_random(c, room * width, MOE_BF16, 1), to = twin_new(c, room * width, 2);
                struct twin probs = twin_random(c, room, MOE_F32, 1), probs_to = twin_new(c, room, sizeof(float));
                const struct twin *over = i / 2 == 1 && n % 7 != 0 ? &other : &map;
                twin_poison(c, &to);
                RUN_BOTH(c, chunk_sort, struct moe_chunk_sort, .rows = room, .width = width, .type = MOE_BF16,
                         .inverse = i % 2 == 1, .map = ON(*over), .from = ON(from), .to = ON(to),
                         .probs_from = ON(probs), .probs_to = ON(probs_to));
                both_found(c, 0, "chunk_sort");
                twin_equal(c, &to, "to");
                twin_equal(c, &probs_to, "probs");
                struct twin *all[] = {&from, &to, &probs, &probs_to};
                for (size_t j = 0; j < 4; j++) {
                    twin_free(c, all[j]);
                }
            }
            struct twin *all[] = {&counts, &split, &order, &map, &m, &other};
            for (size_t j = 0; j < 6; j++) {
                twin_free(c, all[j]);
            }
        }
    }
    row_end(c, "");
}

void check_rows(struct check *c)
{
    bad_splits(c);
    act(c, false);
    act(c, true);
    swiglu(c);
    row_scale(c);
    token_gate(c);
    pad_rows(c);
    dummy_rows(c);
    chunks(c);
}
