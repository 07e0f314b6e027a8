/*
 * wide_rows.c: rows and products of few rows in plain loops, for numbers of 64 bits (wide_float.h): in place of the
 * loops that are written for an instruction set.
 */
#include "moe_core/host/host_gemm.h"
#include "moe_core/host/host_rows.h"

static void sum_rows(const void *const *from, const float *p, int64_t n, const void *const *next, int64_t width,
                     void *to, bool stream)
{
    float *out = to;
    (void)next;
    (void)stream;
    for (int64_t i = 0; i < width; i++) {
        float sum = 0;
        for (int64_t r = 0; r < n; r++) {
            sum += (p != NULL ? p[r] : 1) * ((const float *)from[r])[i];
        }
        out[i] = sum;
    }
}

static float scale_row(const void *dy, const void *row, const void *next, float p, int64_t width, void *to, bool stream)
{
    const float *d = dy, *r = row;
    float *out = to, dot = 0;
    (void)next;
    (void)stream;
    for (int64_t i = 0; i < width; i++) {
        dot += d[i] * r[i];
        out[i] = p * d[i];
    }
    return dot;
}

const struct moe_host_rows *moe_host_rows_table(void)
{
    static const struct moe_host_rows table = {.name = "wide", .sum = {sum_rows}, .scale = {scale_row}};
    return &table;
}

void moe_host_rows_copy(void *const *to, int64_t n, const void *from, size_t bytes, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++) {
        memcpy(to[i], from, bytes);
    }
}

void moe_host_row_zero(void *to, size_t bytes, bool stream)
{
    (void)stream;
    memset(to, 0, bytes);
}

bool moe_host_rows_stream(size_t bytes)
{
    (void)bytes;
    return false;
}

void moe_host_rows_done(void)
{
}

static void forward(const struct moe_product *p)
{
    const float *w = p->w;
    for (int64_t r = 0; r < p->m; r++) {
        for (int64_t o = 0; o < p->n; o++) {
            float sum = 0;
            for (int64_t i = 0; i < p->k; i++) {
                sum += p->in[r * p->in_stride + i] * w[o * p->w_stride + i];
            }
            p->out[r * p->out_stride + o] = sum;
        }
    }
}

static void dgrad(const struct moe_product *p)
{
    const float *w = p->w;
    for (int64_t r = 0; r < p->m; r++) {
        for (int64_t i = 0; i < p->k; i++) {
            float sum = 0;
            for (int64_t o = 0; o < p->n; o++) {
                sum += p->in[r * p->in_stride + o] * w[o * p->w_stride + i];
            }
            p->out[r * p->out_stride + i] = sum;
        }
    }
}

static void wgrad(const struct moe_product *p)
{
    for (int64_t o = 0; o < p->n; o++) {
        for (int64_t i = 0; i < p->k; i++) {
            float sum = p->beta == 0 ? 0 : p->out[o * p->out_stride + i];
            for (int64_t r = 0; r < p->m; r++) {
                sum += p->in[r * p->in_stride + o] * p->x[r * p->x_stride + i];
            }
            p->out[o * p->out_stride + i] = sum;
        }
    }
}

const struct moe_host_small moe_host_small_plain = {"wide", {forward}, {dgrad}, wgrad};
#if defined(__x86_64__)
const struct moe_host_small moe_host_small_avx2 = {"wide", {forward}, {dgrad}, wgrad};
#endif
