/*
 * kernels_gemm_problem.c: a problem for the grouped products: counts, operands with NaNs behind the last row, outputs
 * full of poison, and the table of the groups' pointers, on both sides.
 */
#include "tests/gpu/kernels_gemm.h"

const char *const gemm_positions[POSITIONS] = {"first", "middle", "last", "all", "none", "ragged", "one"};

static int64_t count_at(size_t position, int64_t group)
{
    static const int64_t primes[GROUPS] = {1, 131, 0, 61, 257, 0, 17};
    switch (position) {
    case 0:
        return group == 0 ? 0 : 40 + group;
    case 1:
        return group == GROUPS / 2 ? 0 : 65;
    case 2:
        return group == GROUPS - 1 ? 0 : 129 - group;
    case 3:
        return 0;
    case 4:
        return 64;
    case 5:
        return primes[group];
    default:
        return group == 4 ? 800 : 0;
    }
}

void problem_counts(struct check *c, struct problem *p, size_t position)
{
    int64_t *m = twin_at(&p->m, HOST);
    for (int64_t g = 0; g < GROUPS; g++) {
        m[g] = count_at(position, g);
    }
    twin_push(c, &p->m);
}

static int64_t sum_of(size_t position)
{
    int64_t sum = 0;
    for (int64_t g = 0; g < GROUPS; g++) {
        sum += count_at(position, g);
    }
    return sum;
}

/* Rows with NaNs behind the first `rows`. */
static struct twin rows_new(struct check *c, int64_t rows, int64_t slack, int64_t width, enum moe_dtype type)
{
    struct twin t = twin_random(c, (rows + slack) * width, type, 1);
    memset((char *)twin_at(&t, HOST) + (size_t)(rows * width) * t.size, 0xff, (size_t)(slack * width) * t.size);
    twin_push(c, &t);
    return t;
}

struct twin scales_new(struct check *c, int64_t n)
{
    struct twin t = twin_new(c, n, sizeof(float));
    float *to = twin_at(&t, HOST);
    for (int64_t i = 0; i < n; i++) {
        to[i] = 0.25f + (float)random_below(c, 100) / 64.0f;
    }
    twin_push(c, &t);
    return t;
}

static void *part(const struct twin *t, int side, int64_t element)
{
    return (char *)twin_at(t, side) + (size_t)element * t->size;
}

/* The table of the groups' pointers: another one on each side. */
static void fill_table(struct check *c, struct problem *p)
{
    int64_t cells = p->n * p->k, scales = p->t.block_scales ? (p->n + 127) / 128 * ((p->k + 127) / 128) : 1;
    bool fp8 = p->t.weight == MOE_E4M3 || p->t.weight == MOE_E5M2;
    struct moe_linear_group group[SIDES][GROUPS];
    for (int side = 0; side < SIDES; side++) {
        for (int64_t g = 0; g < GROUPS; g++) {
            group[side][g] = (struct moe_linear_group){.weight = part(&p->weight, side, g * cells),
                                                       .scale = fp8 ? part(&p->scale, side, g * scales) : NULL,
                                                       .bias = p->has_bias ? part(&p->bias, side, g * p->n) : NULL,
                                                       .d_weight = part(&p->d_weight, side, g * cells),
                                                       .d_bias = part(&p->d_bias, side, g * p->n)};
        }
        launched(c, moe_device_copy(c->device[side], twin_at(&p->table, side), group[side], sizeof(group[side])),
                 "copy");
        launched(c, moe_device_sync(c->device[side]), "copy");
    }
}

struct problem problem_new(struct check *c, struct kinds t, struct wanted w)
{
    int64_t n = w.n, k = w.k, sum = sum_of(w.position), rows = sum + w.more_rows, cells = GROUPS * n * k;
    struct problem p = {.t = t,
                        .n = n,
                        .k = k,
                        .rows = rows,
                        .beta = w.beta,
                        .bias_scale = w.bias_scale,
                        .has_bias = w.has_bias,
                        .has_probs = w.has_probs};
    p.m = twin_new(c, GROUPS, sizeof(int64_t));
    problem_counts(c, &p, w.position);
    p.x = rows_new(c, sum, w.more_rows, k, t.activation);
    p.dy = rows_new(c, sum, w.more_rows, n, t.activation);
    p.weight = twin_random(c, cells, t.weight, 1);
    p.scale = scales_new(c, GROUPS * ((n + 127) / 128) * ((k + 127) / 128));
    p.bias = twin_random(c, GROUPS * n, t.bias, 1);
    p.probs = rows_new(c, sum, w.more_rows, 1, MOE_F32);
    p.y = twin_new(c, rows * n, moe_dtype_bytes(t.activation));
    p.dx = twin_new(c, rows * k, moe_dtype_bytes(t.activation));
    p.d_weight = twin_random(c, cells, t.grad, 1);
    p.d_bias = twin_random(c, GROUPS * n, t.grad, 1);
    p.d_probs = twin_random(c, rows, MOE_F32, 1);
    p.table = twin_new(c, GROUPS, sizeof(struct moe_linear_group));
    twin_poison(c, &p.y);
    twin_poison(c, &p.dx);
    if (w.beta == 0.0f) {
        twin_poison(c, &p.d_weight);
        twin_poison(c, &p.d_bias);
    }
    fill_table(c, &p);
    return p;
}

void problem_free(struct check *c, struct problem *p)
{
    struct twin *all[] = {&p->m, &p->x,  &p->dy,       &p->weight, &p->scale,   &p->bias, &p->probs,
                          &p->y, &p->dx, &p->d_weight, &p->d_bias, &p->d_probs, &p->table};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        twin_free(c, all[i]);
    }
}

const struct twin *output_of(const struct problem *p, enum moe_linear_kind kind, enum moe_dtype *type)
{
    const struct twin *out[] = {&p->y, &p->dx, &p->d_weight, &p->d_bias, &p->d_probs};
    if (type != NULL) {
        *type = kind <= MOE_LINEAR_DGRAD ? p->t.activation : kind == MOE_LINEAR_PGRAD ? MOE_F32 : p->t.grad;
    }
    return out[kind];
}

struct moe_linear_pass pass_of(const struct problem *p, enum moe_linear_kind kind, int side)
{
    return (struct moe_linear_pass){.kind = kind,
                                    .groups = GROUPS,
                                    .n = p->n,
                                    .k = p->k,
                                    .rows = p->rows,
                                    .m = twin_at(&p->m, side),
                                    .group = twin_at(&p->table, side),
                                    .activation = p->t.activation,
                                    .weight = p->t.weight,
                                    .bias = p->t.bias,
                                    .grad = p->t.grad,
                                    .block_scales = p->t.block_scales,
                                    .x = twin_at(&p->x, side),
                                    .dy = twin_at(&p->dy, side),
                                    .out = twin_at(output_of(p, kind, NULL), side),
                                    .beta = p->beta,
                                    .bias_probs = p->has_probs ? twin_at(&p->probs, side) : NULL,
                                    .bias_scale = p->bias_scale};
}
