/*
 * host_permute.c: the host back end's movements of rows: permute, unpermute and their gradients, chunks, padding.
 *
 * All loops run in a fixed order, tokens first, so that results are bitwise reproducible. The way back is a gather per
 * token, its rows summed and stored once; adding row after row to the output was rejected: it reads and writes the
 * output once per row.
 */
#include "moe_core/host/host_map.h"

#include "moe_core/base/fail.h"
#include "moe_core/host/host_rows.h"

#include <stdlib.h>
#include <string.h>

/* Rows of one type and width. */
struct rows {
    size_t bytes;
    bool stream;
};

/* Describes rows; `written` is the number of rows that will be stored. */
static struct rows rows_of(enum moe_dtype type, int64_t width, int64_t written)
{
    size_t bytes = (size_t)width * moe_dtype_bytes(type);
    return (struct rows){.bytes = bytes, .stream = moe_host_rows_stream(bytes * (size_t)written)};
}

static const unsigned char *row_in(const struct rows *r, const void *base, int64_t row)
{
    return (const unsigned char *)base + (size_t)row * r->bytes;
}

static unsigned char *row_out(const struct rows *r, void *base, int64_t row)
{
    return (unsigned char *)base + (size_t)row * r->bytes;
}

/* The index of a place's probability. */
static int64_t prob_of(const struct moe_map_view *v, enum moe_prob_layout layout, int64_t t,
                       const struct moe_host_place *p)
{
    return layout == MOE_PROBS_BY_EXPERT ? t * v->experts + p->expert : t * v->k + p->choice;
}

static size_t probs_bytes(const struct moe_map_view *v, enum moe_prob_layout layout)
{
    return (size_t)v->tokens * (size_t)(layout == MOE_PROBS_BY_EXPERT ? v->experts : v->k) * sizeof(float);
}

static void zero_padding(const struct moe_host_map *map, const struct rows *r, void *to, float *row_probs)
{
    for (int64_t row = 0; map->view.map->routed < map->view.rows && row < map->view.rows; row++) {
        if (!moe_host_map_has_row(map, row)) {
            moe_host_row_zero(row_out(r, to, row), r->bytes, r->stream);
            if (row_probs != NULL) {
                row_probs[row] = 0.0f;
            }
        }
    }
}

/* Copies token t to all its rows. `to` has room for the most places of a token. */
static void gather_token(const struct moe_map_gather *a, const struct moe_host_map *map, const struct rows *r,
                         int64_t t, void **to)
{
    int64_t n = moe_host_map_places(map, t), copies = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct moe_host_place *p = &map->place[i];
        float prob = a->probs != NULL ? a->probs[prob_of(&a->view, a->layout, t, p)] : 1.0f;
        if (a->zero_by_prob && prob == 0.0f) {
            moe_host_row_zero(row_out(r, a->to, p->row), r->bytes, r->stream);
        } else {
            to[copies++] = row_out(r, a->to, p->row);
        }
        if (a->row_probs != NULL) {
            a->row_probs[p->row] = prob;
        }
    }
    moe_host_rows_copy(to, copies, row_in(r, a->from, t), r->bytes, r->stream);
}

int moe_host_map_gather(const void *args)
{
    const struct moe_map_gather *a = args;
    const struct rows r = rows_of(a->type, a->width, a->view.rows);
    struct moe_host_map map;
    int rc = moe_host_map_open(&a->view, &map);
    if (rc != 0) {
        return rc;
    }
    void **to = calloc((size_t)map.most + 1, sizeof(*to));
    if (to == NULL) {
        rc = MOE_E_NOMEM;
        goto out;
    }
    zero_padding(&map, &r, a->to, a->row_probs);
    for (int64_t t = 0; t < a->view.tokens; t++) {
        gather_token(a, &map, &r, t, to);
    }
    moe_host_rows_done();
out:
    free(to);
    moe_host_map_close(&map);
    return rc;
}

/* The rows of a token that are summed, and their factors; `from` and `factor` have room for one more than the most
 * places of a token. */
struct terms {
    int64_t n;
    const void **from;
    float *factor;
};

static void collect_terms(const struct moe_map_scatter *a, const struct moe_host_map *map, const struct rows *r,
                          int64_t t, struct terms *out)
{
    int64_t places = moe_host_map_places(map, t), n = 0;
    if (a->beta != 0.0f) {
        out->from[n] = row_in(r, a->to, t);
        out->factor[n++] = 1.0f;
    }
    for (int64_t i = 0; i < places; i++) {
        const struct moe_host_place *p = &map->place[i];
        int64_t cell = prob_of(&a->view, a->layout, t, p);
        float prob = a->probs != NULL ? a->probs[cell] : 1.0f;
        if (!a->zero_by_prob || prob != 0.0f) {
            out->from[n] = row_in(r, a->from, p->row);
            out->factor[n++] = a->zero_by_prob ? 1.0f : prob;
        }
        if (a->d_probs != NULL) {
            a->d_probs[cell] = a->d_row_probs[p->row];
        }
    }
    out->n = n;
}

/*
 * Sums token after token; the rows of the next token are looked up while one is summed, so that they can be fetched
 * ahead.
 */
static void scatter_tokens(const struct moe_map_scatter *a, const struct moe_host_map *map, const struct rows *r,
                           struct terms *now, struct terms *next)
{
    moe_host_sum_fn *sum = moe_host_rows_table()->sum[a->type];
    const bool weighted = a->probs != NULL && !a->zero_by_prob;
    if (a->view.tokens > 0) {
        collect_terms(a, map, r, 0, now);
    }
    for (int64_t t = 0; t < a->view.tokens; t++) {
        next->n = 0;
        if (t + 1 < a->view.tokens) {
            collect_terms(a, map, r, t + 1, next);
        }
        for (int64_t i = next->n; i < now->n; i++) {
            next->from[i] = now->from[i];
        }
        sum(now->from, weighted ? now->factor : NULL, now->n, next->from, a->width, row_out(r, a->to, t), r->stream);
        struct terms keep = *now;
        *now = *next;
        *next = keep;
    }
}

int moe_host_map_scatter(const void *args)
{
    const struct moe_map_scatter *a = args;
    const struct rows r = rows_of(a->type, a->width, a->view.tokens);
    struct moe_host_map map;
    int rc = moe_host_map_open(&a->view, &map);
    if (rc != 0) {
        return rc;
    }
    size_t most = (size_t)map.most + 1;
    const void **from = calloc(2 * most, sizeof(*from));
    float *factor = calloc(2 * most, sizeof(*factor));
    if (from == NULL || factor == NULL) {
        rc = MOE_E_NOMEM;
        goto out;
    }
    struct terms now = {.from = from, .factor = factor}, next = {.from = from + most, .factor = factor + most};
    if (a->d_probs != NULL) {
        memset(a->d_probs, 0, probs_bytes(&a->view, a->layout));
    }
    scatter_tokens(a, &map, &r, &now, &next);
    moe_host_rows_done();
out:
    free(from);
    free(factor);
    moe_host_map_close(&map);
    return rc;
}

int moe_host_map_scatter_backward(const void *args)
{
    const struct moe_map_scatter_backward *a = args;
    const struct rows r = rows_of(a->type, a->width, a->view.rows);
    struct moe_host_map map;
    int rc = moe_host_map_open(&a->view, &map);
    if (rc != 0) {
        return rc;
    }
    moe_host_scale_fn *scale = moe_host_rows_table()->scale[a->type];
    zero_padding(&map, &r, a->d_from, NULL);
    memset(a->d_probs, 0, probs_bytes(&a->view, a->layout));
    for (int64_t t = 0; t < a->view.tokens; t++) {
        int64_t n = moe_host_map_places(&map, t);
        for (int64_t i = 0; i < n; i++) {
            const struct moe_host_place *p = &map.place[i];
            const void *next = i + 1 < n ? row_in(&r, a->from, map.place[i + 1].row) : NULL;
            int64_t cell = prob_of(&a->view, a->layout, t, p);
            a->d_probs[cell] = scale(row_in(&r, a->dy, t), row_in(&r, a->from, p->row), next, a->probs[cell], a->width,
                                     row_out(&r, a->d_from, p->row), r.stream);
        }
    }
    moe_host_rows_done();
    moe_host_map_close(&map);
    return 0;
}

int moe_host_chunk_sort(const void *args)
{
    const struct moe_chunk_sort *a = args;
    const struct rows r = rows_of(a->type, a->width, a->rows);
    struct moe_host_map map;
    int rc = moe_host_chunks_open(a->map, a->rows, &map);
    if (rc != 0) {
        return rc;
    }
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t other = map.cells[row];
        /* A row gets nothing when it has no source (inverse), or when no row goes to it (forward). */
        if (a->inverse ? other < 0 : !moe_host_map_has_row(&map, row)) {
            moe_host_row_zero(row_out(&r, a->to, row), r.bytes, r.stream);
            if (a->probs_to != NULL) {
                a->probs_to[row] = 0.0f;
            }
        }
        if (other < 0) {
            continue;
        }
        int64_t from = a->inverse ? other : row, to = a->inverse ? row : other;
        void *place = row_out(&r, a->to, to);
        moe_host_rows_copy(&place, 1, row_in(&r, a->from, from), r.bytes, r.stream);
        if (a->probs_to != NULL) {
            a->probs_to[to] = a->probs_from[from];
        }
    }
    moe_host_rows_done();
    moe_host_map_close(&map);
    return 0;
}

static int64_t padded_rows(const struct moe_pad_rows *a, int64_t rows)
{
    int64_t align = a->align > 1 ? a->align : 1;
    return (rows + align - 1) / align * align;
}

/* Checks that the groups fit both sides, before any row is moved. */
static int check_groups(const struct moe_pad_rows *a)
{
    int64_t rows = 0, padded = 0;
    for (int64_t i = 0; i < a->groups; i++) {
        if (a->m[i] < 0) {
            return MOE_E_COUNT;
        }
        if (a->m[i] > a->rows - rows) {
            return MOE_E_SPLIT;
        }
        if (padded_rows(a, a->m[i]) > a->padded - padded) {
            return MOE_E_CAPACITY;
        }
        rows += a->m[i];
        padded += padded_rows(a, a->m[i]);
    }
    return 0;
}

int moe_host_pad_rows(const void *args)
{
    const struct moe_pad_rows *a = args;
    const struct rows r = rows_of(a->type, a->width, a->padded);
    int64_t groups = a->groups > 0 ? a->groups : 1, total = a->trim ? a->rows : a->padded, from = 0, to = 0;
    int rc = check_groups(a);
    if (rc != 0) {
        return rc;
    }
    for (int64_t i = 0; i < groups; i++) {
        int64_t rows = a->groups > 0 ? a->m[i] : a->rows, padded = a->groups > 0 ? padded_rows(a, rows) : a->padded;
        memmove(row_out(&r, a->to, to), row_in(&r, a->from, from), (size_t)rows * r.bytes);
        from += a->trim ? padded : rows;
        to += rows;
        if (!a->trim) {
            memset(row_out(&r, a->to, to), 0, (size_t)(padded - rows) * r.bytes);
            to += padded - rows;
        }
        if (a->padded_m != NULL) {
            a->padded_m[i] = padded;
        }
    }
    memset(row_out(&r, a->to, to), 0, (size_t)(total - to) * r.bytes);
    return 0;
}
