/*
 * host_route.c: the host back end's row maps and chunk maps: builds them (host_map.c checks and reads them).
 *
 * A map is built in two passes over the tokens: how many chose each expert, then which row each choice has. One pass
 * per expert, as the device's scan has it, was rejected: it reads the choices E times. The header is cleared before the
 * first cell is written and set after the last, so that a build that failed leaves no map.
 */
#include "moe_core/host/host_map.h"

#include "moe_core/base/fail.h"

#include <stdlib.h>
#include <string.h>

static int32_t *cells_of(struct moe_map_header *map)
{
    return (int32_t *)(map + 1);
}

/* One choice of a token. */
struct place {
    int64_t row;
    int32_t expert;
    int32_t choice; /* its number among the token's choices */
};

/* A build's working state: arrays of E, the choices of one token, and where the cells are. */
struct build {
    const struct moe_row_map_build *a;
    int64_t *start, *m, *used, *chosen;
    struct place *choice; /* choices of the present token: column = expert, row = -1 until it has one */
    int32_t *rows, *experts, *source, *lines;
    int64_t routed;
};

/* Finds the experts of token t in order of choice (ascending with a routing map); returns their number or an error. */
static int64_t choices(const struct build *b, int64_t t)
{
    const struct moe_row_map_build *a = b->a;
    int64_t n = 0;
    if (a->mask != NULL) {
        const uint8_t *line = a->mask + t * a->experts;
        for (int64_t e = 0; e < a->experts; e++) {
            if (line[e] != 0) {
                b->choice[n] = (struct place){.row = -1, .expert = (int32_t)e, .choice = (int32_t)n};
                n++;
            }
        }
        return a->kind == MOE_MAP_MASK || n <= a->k ? n : MOE_E_EXPERT;
    }
    for (int32_t j = 0; j < a->k; j++) {
        int32_t e = a->index[t * a->k + j];
        if (e < -1 || e >= a->experts) {
            return MOE_E_EXPERT;
        }
        for (int64_t i = 0; e >= 0 && i < n; i++) {
            if (b->choice[i].expert == e) {
                return MOE_E_EXPERT;
            }
        }
        if (e >= 0) {
            b->choice[n++] = (struct place){.row = -1, .expert = e, .choice = j};
        }
    }
    return n;
}

static int count_choices(struct build *b)
{
    for (int64_t t = 0; t < b->a->tokens; t++) {
        int64_t n = choices(b, t);
        if (n < 0) {
            return (int)n;
        }
        for (int64_t i = 0; i < n; i++) {
            b->chosen[b->choice[i].expert]++;
        }
    }
    if (b->a->chosen != NULL) {
        memcpy(b->a->chosen, b->chosen, (size_t)b->a->experts * sizeof(*b->chosen));
    }
    return 0;
}

/* Finds where each expert's rows start and how many it has. */
static int reserve_rows(struct build *b)
{
    const struct moe_row_map_build *a = b->a;
    int64_t start = 0, align = a->align > 1 ? a->align : 1;
    for (int64_t e = 0; e < a->experts; e++) {
        int64_t m = a->capacity > 0     ? a->capacity
                    : a->counts != NULL ? a->counts[e]
                                        : (b->chosen[e] + align - 1) / align * align;
        if (m < 0) {
            return MOE_E_COUNT;
        }
        if (m > a->rows - start) {
            if (!a->drop) {
                return MOE_E_CAPACITY;
            }
            m = a->rows - start;
        }
        if (b->chosen[e] > m && !a->drop) {
            return MOE_E_SPLIT;
        }
        b->start[e] = start;
        b->m[e] = m;
        start += m;
    }
    if (a->m != NULL) {
        memcpy(a->m, b->m, (size_t)a->experts * sizeof(*b->m));
    }
    return 0;
}

/*
 * Writes token t's line of a MASK map: descending rows, then their experts. A routing map gives choices in ascending
 * order, so taking the last choice first makes sorting unnecessary.
 */
static void mask_line(struct build *b, int64_t t, int64_t choices_n)
{
    int64_t experts = b->a->experts;
    int32_t *line = b->lines + t * (2 * experts + 1), n = 0;
    for (int64_t i = choices_n - 1; i >= 0; i--) {
        const struct place *c = &b->choice[i];
        if (c->row < 0) {
            continue;
        }
        int32_t at = n++;
        for (; at > 0 && line[at - 1] < c->row; at--) {
            line[at] = line[at - 1];
            line[experts + at] = line[experts + at - 1];
        }
        line[at] = (int32_t)c->row;
        line[experts + at] = c->expert;
    }
    line[2 * experts] = n;
}

static void index_line(struct build *b, int64_t t, int64_t choices_n)
{
    const struct moe_row_map_build *a = b->a;
    for (int32_t j = 0; j < a->k; j++) {
        b->rows[j * a->tokens + t] = b->experts[j * a->tokens + t] = -1;
    }
    for (int64_t i = 0; i < choices_n; i++) {
        const struct place *c = &b->choice[i];
        if (c->row >= 0) {
            b->rows[c->choice * a->tokens + t] = (int32_t)c->row;
            b->experts[c->choice * a->tokens + t] = c->expert;
            if (b->source != NULL) {
                b->source[c->row] = (int32_t)(t * a->k + c->choice);
            }
        }
    }
}

static void fill(struct build *b)
{
    const struct moe_row_map_build *a = b->a;
    for (int64_t r = 0; b->source != NULL && r < a->rows; r++) {
        b->source[r] = -1;
    }
    for (int64_t t = 0; t < a->tokens; t++) {
        int64_t n = choices(b, t);
        for (int64_t i = 0; i < n; i++) {
            int32_t e = b->choice[i].expert;
            if (b->used[e] < b->m[e]) {
                b->choice[i].row = b->start[e] + b->used[e]++;
                b->routed++;
            }
        }
        if (a->kind == MOE_MAP_MASK) {
            mask_line(b, t, n);
        } else {
            index_line(b, t, n);
        }
    }
}

int moe_host_row_map_build(const void *args)
{
    const struct moe_row_map_build *a = args;
    size_t experts = (size_t)a->experts;
    size_t most = a->mask != NULL ? experts : (size_t)a->k;
    struct build b = {.a = a};
    memset(a->map, 0, sizeof(*a->map));
    int64_t *arrays = calloc(4 * experts, sizeof(*arrays));
    b.choice = calloc(most + 1, sizeof(*b.choice));
    int rc = arrays == NULL || b.choice == NULL ? MOE_E_NOMEM : 0;
    if (rc != 0) {
        goto out;
    }
    b.start = arrays;
    b.m = arrays + experts;
    b.used = arrays + 2 * experts;
    b.chosen = arrays + 3 * experts;
    b.lines = cells_of(a->map);
    b.source = a->kind == MOE_MAP_SORTED ? b.lines : NULL;
    b.rows = b.lines + (a->kind == MOE_MAP_SORTED ? a->rows : 0);
    b.experts = b.rows + a->k * a->tokens;
    rc = count_choices(&b);
    if (rc != 0) {
        goto out;
    }
    rc = reserve_rows(&b);
    if (rc != 0) {
        goto out;
    }
    fill(&b);
    *a->map = (struct moe_map_header){.magic = MOE_MAP_MAGIC,
                                      .kind = (int32_t)a->kind,
                                      .k = a->kind == MOE_MAP_MASK ? 0 : a->k,
                                      .tokens = a->tokens,
                                      .experts = a->experts,
                                      .rows = a->rows,
                                      .routed = b.routed};
out:
    free(arrays);
    free(b.choice);
    return rc;
}

/* Finishes a chunk map whose cells are written: marks the rest as slack, and writes the header. */
static void finish_chunks(struct moe_map_header *map, int64_t routed, int64_t rows)
{
    for (int64_t r = routed; r < rows; r++) {
        cells_of(map)[r] = -1;
    }
    *map = (struct moe_map_header){.magic = MOE_MAP_MAGIC, .kind = MOE_MAP_CHUNK, .rows = rows, .routed = routed};
}

/* *sum += count, at most rows. */
static int add_count(int64_t *sum, int64_t count, int64_t rows)
{
    if (count < 0 || count > rows - *sum) {
        return MOE_E_SPLIT;
    }
    *sum += count;
    return 0;
}

int moe_host_chunk_map(const void *args)
{
    const struct moe_chunk_map *a = args;
    int64_t local = a->experts / a->ranks, first = a->rank * local, start = 0, sum = 0;
    int32_t *cells = cells_of(a->map);
    memset(a->map, 0, sizeof(*a->map));
    memset(a->m, 0, (size_t)local * sizeof(*a->m));
    for (int64_t p = 0; p < a->ranks; p++) {
        for (int64_t i = 0; i < local; i++) {
            int rc = add_count(&sum, a->counts[p * a->stride + first + i], a->rows);
            if (rc != 0) {
                return rc;
            }
        }
    }
    if (sum != a->rows && !a->slack) {
        return MOE_E_SPLIT;
    }
    /* Received order: by source rank, then by expert. Wanted: by expert, then by source rank. */
    for (int64_t i = 0; i < local; i++) {
        int64_t before = 0; /* rows received before this (source, expert) chunk */
        for (int64_t p = 0; p < a->ranks; p++) {
            const int64_t *counts = a->counts + p * a->stride + first;
            for (int64_t j = 0; j < i; j++) {
                before += counts[j];
            }
            for (int64_t r = 0; r < counts[i]; r++) {
                cells[before + r] = (int32_t)(start + r);
            }
            start += counts[i];
            a->m[i] += counts[i];
            for (int64_t j = i; j < local; j++) {
                before += counts[j];
            }
        }
    }
    finish_chunks(a->map, sum, a->rows);
    return 0;
}

/* Marks a chunk as taken; false when it is out of range or taken already. */
static bool take(uint8_t *seen, int64_t chunk, int64_t chunks)
{
    if (chunk < 0 || chunk >= chunks || (seen[chunk / 8] >> (chunk % 8) & 1) != 0) {
        return false;
    }
    seen[chunk / 8] = (uint8_t)(seen[chunk / 8] | 1u << (chunk % 8));
    return true;
}

int moe_host_chunk_order(const void *args)
{
    const struct moe_chunk_order *a = args;
    size_t chunks = (size_t)a->chunks;
    int64_t sum = 0, to = 0;
    int rc = 0;
    memset(a->map, 0, sizeof(*a->map));
    int64_t *start = calloc(chunks + 1, sizeof(*start));
    uint8_t *seen = calloc(chunks / 8 + 1, 1);
    if (start == NULL || seen == NULL) {
        rc = MOE_E_NOMEM;
    }
    for (size_t i = 0; i < chunks && rc == 0; i++) {
        start[i] = sum;
        rc = add_count(&sum, a->split[i], a->rows);
        if (rc == 0 && !take(seen, a->order[i], a->chunks)) {
            rc = MOE_E_EXPERT;
        }
    }
    if (rc == 0 && sum != a->rows && !a->slack) {
        rc = MOE_E_SPLIT;
    }
    for (size_t i = 0; i < chunks && rc == 0; i++) {
        int32_t chunk = a->order[i];
        for (int64_t r = 0; r < a->split[chunk]; r++) {
            cells_of(a->map)[start[chunk] + r] = (int32_t)to++;
        }
    }
    if (rc == 0) {
        finish_chunks(a->map, sum, a->rows);
    }
    free(start);
    free(seen);
    return rc;
}

int moe_host_pad_counts(const void *args)
{
    const struct moe_pad_counts *a = args;
    int64_t local = a->experts / a->ranks;
    for (int64_t r = 0; r < a->ranks; r++) {
        int64_t rows = 0;
        for (int64_t p = 0; p < a->ranks; p++) {
            for (int64_t i = 0; i < local; i++) {
                rows += a->counts[p * a->stride + r * local + i];
            }
        }
        if (rows == 0) {
            a->counts[(r + 1) % a->ranks * a->stride + r * local]++;
        }
    }
    return 0;
}
