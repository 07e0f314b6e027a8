/*
 * kernels_tensor.c: functions of whole tensors and of counts, host against GPU.
 */
#include "tests/gpu/kernels.h"

static const int64_t lengths[] = {0, 1, 2, 3, 7, 8, 31, 255, 1009, 4096, 100003, 1 << 20};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

static void checksum(struct check *c)
{
    row_begin(c, "checksum");
    for (size_t i = 0; i < LENGTHS; i++) {
        for (int64_t offset = 0; offset < 9; offset += 4) { /* aligned to 16, to 4 and to 8 bytes */
            if (!taken(c)) {
                continue;
            }
            struct twin data = twin_new_at(c, lengths[i], 1, offset), sum = twin_new(c, 1, sizeof(uint64_t));
            unsigned char *bytes = twin_at(&data, HOST);
            for (int64_t j = 0; j < lengths[i]; j++) {
                bytes[j] = (unsigned char)next_random(c);
            }
            twin_push(c, &data);
            twin_poison(c, &sum);
            RUN_BOTH(c, checksum, struct moe_checksum, .data = ON(data), .bytes = (size_t)lengths[i], .out = ON(sum));
            both_found(c, 0, "checksum");
            twin_equal(c, &sum, "sum");
            twin_free(c, &data);
            twin_free(c, &sum);
        }
    }
    row_end(c, "");
}

static void cast(struct check *c)
{
    row_begin(c, "cast");
    for (int from = 0; from < MOE_DTYPES; from++) {
        for (int to = 0; to < MOE_DTYPES; to++) {
            for (size_t i = 0; i < LENGTHS; i++) {
                if (!taken(c)) {
                    continue;
                }
                struct twin in = twin_random(c, lengths[i], (enum moe_dtype)from, 600),
                            out = twin_new(c, lengths[i], moe_dtype_bytes((enum moe_dtype)to));
                twin_poison(c, &out);
                RUN_BOTH(c, cast, struct moe_cast, .count = lengths[i], .from_type = (enum moe_dtype)from,
                         .to_type = (enum moe_dtype)to, .from = ON(in), .to = ON(out));
                both_found(c, 0, "cast");
                twin_equal(c, &out, moe_dtype_name((enum moe_dtype)to));
                twin_free(c, &in);
                twin_free(c, &out);
            }
        }
    }
    row_end(c, "");
}

static void scale(struct check *c)
{
    row_begin(c, "scale");
    for (size_t i = 0; i < LENGTHS; i++) {
        struct twin data = twin_random(c, lengths[i], MOE_F32, 3);
        RUN_BOTH(c, scale, struct moe_scale, .count = (size_t)lengths[i], .factor = 0.37f, .data = ON(data));
        both_found(c, 0, "scale");
        twin_equal(c, &data, "data");
        twin_free(c, &data);
    }
    row_end(c, "");
}

static void column_sum(struct check *c)
{
    static const int64_t shape[][2] = {{0, 8}, {1, 1}, {7, 33}, {256, 64}, {257, 31}, {4099, 129}};
    row_begin(c, "column_sum");
    for (size_t s = 0; s < sizeof(shape) / sizeof(shape[0]); s++) {
        if (!taken(c)) {
            continue;
        }
        struct twin in = twin_random(c, shape[s][0] * shape[s][1], MOE_F32, 1),
                    out = twin_random(c, shape[s][1], MOE_F32, 1);
        double *want = twin_wide(c, &out, MOE_F32);
        for (int64_t i = 0; i < in.count; i++) {
            want[i % shape[s][1]] += (double)((const float *)twin_at(&in, HOST))[i];
        }
        RUN_BOTH(c, column_sum, struct moe_column_sum, .rows = shape[s][0], .width = shape[s][1], .in = ON(in),
                 .out = ON(out));
        both_found(c, 0, "column_sum");
        twin_exact(c, &out, MOE_F32, want, 1e-5, (double)shape[s][0] / 100, "out");
        twin_free(c, &in);
        twin_free(c, &out);
    }
    row_end(c, "");
}

static struct twin counts(struct check *c, int64_t n, int64_t below)
{
    struct twin t = twin_new(c, n, sizeof(int64_t));
    for (int64_t i = 0; i < n; i++) {
        ((int64_t *)twin_at(&t, HOST))[i] = random_below(c, below);
    }
    twin_push(c, &t);
    return t;
}

static void count_functions(struct check *c)
{
    static const int64_t lengths_of_counts[] = {0, 1, 63, 257, 5000};
    row_begin(c, "add_counts");
    for (size_t i = 0; i < 5; i++) {
        int64_t n = lengths_of_counts[i];
        struct twin from = counts(c, n, INT32_MAX), to = counts(c, n, INT32_MAX);
        RUN_BOTH(c, add_counts, struct moe_add_counts, .count = n, .from = ON(from), .to = ON(to));
        both_found(c, 0, "add_counts");
        twin_equal(c, &to, "to");
        twin_free(c, &from);
        twin_free(c, &to);
    }
    row_end(c, "");

    row_begin(c, "bias_update");
    for (int64_t experts = 1; experts <= 513; experts *= 8) {
        struct twin chosen = counts(c, experts, 5), bias = twin_random(c, experts, MOE_F32, 1);
        RUN_BOTH(c, bias_update, struct moe_bias_update, .experts = experts, .rate = 1e-3f, .counts = ON(chosen),
                 .bias = ON(bias));
        both_found(c, 0, "bias_update");
        twin_equal(c, &chosen, "counts");
        twin_equal(c, &bias, "bias");
        twin_free(c, &chosen);
        twin_free(c, &bias);
    }
    row_end(c, "");

    row_begin(c, "pad_counts");
    for (int64_t ranks = 1; ranks <= 9; ranks += 2) {
        for (int64_t local = 1; local <= 33; local *= 3) {
            if (!taken(c)) {
                continue;
            }
            int64_t experts = ranks * local, stride = experts + 1;
            struct twin all = counts(c, ranks * stride, 2);
            int64_t *cell = twin_at(&all, HOST);
            for (int64_t p = 0; p < ranks; p++) { /* one rank without rows at least */
                memset(cell + p * stride + (ranks - 1) * local, 0, (size_t)local * sizeof(*cell));
            }
            twin_push(c, &all);
            RUN_BOTH(c, pad_counts, struct moe_pad_counts, .ranks = ranks, .experts = experts, .stride = stride,
                     .counts = ON(all));
            both_found(c, 0, "pad_counts");
            twin_equal(c, &all, "counts");
            twin_free(c, &all);
        }
    }
    row_end(c, "");
}

static void count_sequences(struct check *c)
{
    static const int64_t shape[][4] = {
        {0, 4, 1, 2}, {1, 1, 1, 1}, {60, 7, 3, 2}, {4096, 256, 8, 8}}; /* T, E, sequences, k */
    row_begin(c, "count_sequences");
    for (size_t s = 0; s < 4; s++) {
        int64_t choices = shape[s][0] * shape[s][3];
        struct twin index = twin_new(c, choices, sizeof(int32_t)),
                    out = twin_new(c, shape[s][1] * shape[s][2], sizeof(int64_t));
        for (int64_t i = 0; i < choices; i++) {
            ((int32_t *)twin_at(&index, HOST))[i] = (int32_t)random_below(c, shape[s][1]);
        }
        twin_push(c, &index);
        twin_poison(c, &out);
        RUN_BOTH(c, count_sequences, struct moe_count_sequences, .tokens = shape[s][0], .experts = shape[s][1],
                 .sequences = shape[s][2], .k = (int32_t)shape[s][3], .index = ON(index), .counts = ON(out));
        both_found(c, 0, "count_sequences");
        twin_equal(c, &out, "counts");
        twin_free(c, &index);
        twin_free(c, &out);
    }
    row_end(c, "");
}

void check_tensor(struct check *c)
{
    checksum(c);
    cast(c);
    scale(c);
    column_sum(c);
    count_functions(c);
    count_sequences(c);
}
