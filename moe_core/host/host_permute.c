/*
 * host_permute.c: the host back end's movements of rows: permute, unpermute and their gradients, chunks, padding.
 *
 * A token's rows are met in a fixed order, and no two tokens share a row, so that results are bitwise reproducible
 * whatever thread takes which tokens. The way back is a gather per token, its rows summed and stored once; adding row
 * after row to the output was rejected: it reads and writes the output once per row.
 */
#include "moe_core/host/host_walk.h"

#include "moe_core/base/fail.h"
#include "moe_core/host/host_gemm.h"
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

/* One thread's own: a walk over the map, and room for the rows of two tokens. */
struct desk {
    struct moe_host_walk walk;
    const void **from; /* [2][most + 1] */
    void **to;         /* [most + 1] */
    float *factor;     /* [2][most + 1] */
};

/* A movement over a map, as the threads see it: ranges of tokens, which share no row that is written. */
struct job {
    const void *args;
    struct moe_host_map map;
    enum moe_prob_layout layout;
    struct rows r;
    void (*range)(const struct job *job, struct desk *desk, int64_t first, int64_t end);
    int64_t step; /* tokens of a range */
    int threads;
    struct desk *desk; /* of each thread */
};

static void close_job(struct job *job)
{
    for (int i = 0; job->desk != NULL && i < job->threads; i++) {
        free(job->desk[i].from);
        free(job->desk[i].to);
        free(job->desk[i].factor);
    }
    free(job->desk);
    moe_host_map_close(&job->map);
}

static int open_desk(const struct job *job, struct desk *out)
{
    size_t most = (size_t)job->map.most + 1;
    out->from = calloc(2 * most, sizeof(*out->from));
    out->to = calloc(most, sizeof(*out->to));
    out->factor = calloc(2 * most, sizeof(*out->factor));
    return out->from == NULL || out->to == NULL || out->factor == NULL ? MOE_E_NOMEM : 0;
}

/*
 * Checks the map, and makes a desk for each thread. by_cell and by_row: see host_walk.h. *job holds memory until it is
 * closed, after an error too. Errors: MAP, NOMEM.
 */
static int open_job(struct job *job, const struct moe_map_view *view, enum moe_prob_layout layout, const float *by_cell,
                    const float *by_row)
{
    enum { RANGE_BYTES = 1 << 20 }; /* so much work that a thread's start does not count */
    int rc = moe_host_map_open(view, layout, &job->map);
    job->layout = layout;
    job->threads = moe_host_threads();
    job->desk = rc == 0 ? calloc((size_t)job->threads, sizeof(*job->desk)) : NULL;
    for (int i = 0; rc == 0 && job->desk != NULL && i < job->threads; i++) {
        rc = open_desk(job, &job->desk[i]);
        job->desk[i].walk.by_cell = by_cell;
        job->desk[i].walk.by_row = by_row;
    }
    size_t ranges = job->threads == 1 ? 1 : (size_t)(view->tokens + view->rows) * job->r.bytes / RANGE_BYTES + 1;
    job->step = view->tokens / (int64_t)ranges + 1;
    return rc == 0 && job->desk == NULL ? MOE_E_NOMEM : rc;
}

static int run_task(void *arg, int64_t i, int worker)
{
    const struct job *job = arg;
    struct desk *desk = &job->desk[worker];
    int64_t tokens = job->map.view.tokens, first = i * job->step,
            end = tokens - first < job->step ? tokens : first + job->step;
    moe_host_walk_begin(&desk->walk, &job->map, job->layout, first, end);
    job->range(job, desk, first, end);
    moe_host_rows_done();
    return 0;
}

static int run_job(struct job *job)
{
    int rc = moe_host_parallel((job->map.view.tokens + job->step - 1) / job->step, run_task, job);
    moe_host_rows_done(); /* padding */
    return rc;
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

/* Copies each token to all its rows. */
static void gather_range(const struct job *job, struct desk *desk, int64_t first, int64_t end)
{
    const struct moe_map_gather *a = job->args;
    const struct rows *r = &job->r;
    for (int64_t t = first; t < end; t++) {
        const struct moe_host_stop *stop;
        int64_t n = moe_host_walk_token(&desk->walk, t, &stop), copies = 0;
        for (int64_t i = 0; i < n; i++) {
            float prob = a->probs != NULL ? a->probs[moe_host_cell(&desk->walk, t, &stop[i])] : 1.0f;
            if (a->zero_by_prob && prob == 0.0f) {
                moe_host_row_zero(row_out(r, a->to, stop[i].row), r->bytes, r->stream);
            } else {
                desk->to[copies++] = row_out(r, a->to, stop[i].row);
            }
            if (a->row_probs != NULL) {
                a->row_probs[stop[i].row] = prob;
            }
        }
        moe_host_rows_copy(desk->to, copies, row_in(r, a->from, t), r->bytes, r->stream);
    }
}

int moe_host_map_gather(const void *args)
{
    const struct moe_map_gather *a = args;
    struct job job = {.args = a, .r = rows_of(a->type, a->width, a->view.rows), .range = gather_range};
    int rc = open_job(&job, &a->view, a->layout, a->probs, NULL);
    if (rc == 0) {
        zero_padding(&job.map, &job.r, a->to, a->row_probs);
        rc = run_job(&job);
    }
    close_job(&job);
    return rc;
}

/* The rows of a token that are summed, and their factors; there is room for one more than the most rows of a token. */
struct terms {
    int64_t n;
    const void **from;
    float *factor;
};

/* Makes all gradients of a token's probabilities zero, just before some are written: the line is in the cache then. */
static void zero_probs(const struct moe_host_walk *walk, int64_t t, float *d_probs)
{
    memset(d_probs + t * walk->columns, 0, (size_t)walk->columns * sizeof(*d_probs));
}

static void collect_terms(const struct moe_map_scatter *a, const struct rows *r, struct moe_host_walk *walk, int64_t t,
                          struct terms *out)
{
    const struct moe_host_stop *stop;
    int64_t stops = moe_host_walk_token(walk, t, &stop), n = 0;
    if (a->d_probs != NULL) {
        zero_probs(walk, t, a->d_probs);
    }
    if (a->beta != 0.0f) {
        out->from[n] = row_in(r, a->to, t);
        out->factor[n++] = 1.0f;
    }
    for (int64_t i = 0; i < stops; i++) {
        float prob = a->probs != NULL ? a->probs[moe_host_cell(walk, t, &stop[i])] : 1.0f;
        if (!a->zero_by_prob || prob != 0.0f) {
            out->from[n] = row_in(r, a->from, stop[i].row);
            out->factor[n++] = a->zero_by_prob ? 1.0f : prob;
        }
        if (a->d_probs != NULL) {
            a->d_probs[moe_host_cell(walk, t, &stop[i])] = a->d_row_probs[stop[i].row];
        }
    }
    out->n = n;
}

/*
 * Sums token after token; the rows of the next token are known while one is summed, so that they can be fetched
 * ahead.
 */
static void scatter_range(const struct job *job, struct desk *desk, int64_t first, int64_t end)
{
    const struct moe_map_scatter *a = job->args;
    const int64_t most = job->map.most + 1;
    moe_host_sum_fn *sum = moe_host_rows_table()->sum[a->type];
    const bool weighted = a->probs != NULL && !a->zero_by_prob;
    struct terms now = {.from = desk->from, .factor = desk->factor},
                 next = {.from = desk->from + most, .factor = desk->factor + most};
    if (first < end) {
        collect_terms(a, &job->r, &desk->walk, first, &now);
    }
    for (int64_t t = first; t < end; t++) {
        next.n = 0;
        if (t + 1 < end) {
            collect_terms(a, &job->r, &desk->walk, t + 1, &next);
        }
        for (int64_t i = next.n; i < now.n; i++) {
            next.from[i] = now.from[i];
        }
        sum(now.from, weighted ? now.factor : NULL, now.n, next.from, a->width, row_out(&job->r, a->to, t),
            job->r.stream);
        struct terms keep = now;
        now = next;
        next = keep;
    }
}

int moe_host_map_scatter(const void *args)
{
    const struct moe_map_scatter *a = args;
    struct job job = {.args = a, .r = rows_of(a->type, a->width, a->view.tokens), .range = scatter_range};
    int rc = open_job(&job, &a->view, a->layout, a->probs, a->d_row_probs);
    rc = rc ? rc : run_job(&job);
    close_job(&job);
    return rc;
}

/* The row that is scaled behind row i of n of token t, NULL: none. */
static const void *row_behind(const struct job *job, struct desk *desk, const void *from, int64_t t,
                              const struct moe_host_stop *stop, int64_t n, int64_t i)
{
    if (i + 1 < n) {
        return row_in(&job->r, from, stop[i + 1].row);
    }
    return moe_host_walk_token(&desk->walk, t + 1, &stop) > 0 ? row_in(&job->r, from, stop[0].row) : NULL;
}

static void scatter_backward_range(const struct job *job, struct desk *desk, int64_t first, int64_t end)
{
    const struct moe_map_scatter_backward *a = job->args;
    const struct rows *r = &job->r;
    moe_host_scale_fn *scale = moe_host_rows_table()->scale[a->type];
    for (int64_t t = first; t < end; t++) {
        const struct moe_host_stop *stop;
        int64_t n = moe_host_walk_token(&desk->walk, t, &stop);
        zero_probs(&desk->walk, t, a->d_probs);
        for (int64_t i = 0; i < n; i++) {
            const void *next = row_behind(job, desk, a->from, t, stop, n, i);
            const int64_t cell = moe_host_cell(&desk->walk, t, &stop[i]);
            a->d_probs[cell] = scale(row_in(r, a->dy, t), row_in(r, a->from, stop[i].row), next, a->probs[cell],
                                     a->width, row_out(r, a->d_from, stop[i].row), r->stream);
        }
    }
}

int moe_host_map_scatter_backward(const void *args)
{
    const struct moe_map_scatter_backward *a = args;
    struct job job = {.args = a, .r = rows_of(a->type, a->width, a->view.rows), .range = scatter_backward_range};
    int rc = open_job(&job, &a->view, a->layout, a->probs, NULL);
    if (rc != 0) {
        goto out;
    }
    zero_padding(&job.map, &job.r, a->d_from, NULL);
    rc = run_job(&job);
out:
    close_job(&job);
    return rc;
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
