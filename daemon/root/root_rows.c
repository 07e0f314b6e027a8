/*
 * root_rows.c: the ranks of a large run as the rows of a table: ranks that stand alike are one row.
 *
 * A list of 16,384 ranks is longer than a message may be, and nobody reads it. Ranks stand alike when they are in the
 * same call; where that makes more rows than a screen has, because each rank is somewhere else in its step, it is made
 * coarser until they fit: the same operation on communicators of one family, then the same operation, then the same
 * state of the process. To cut the list off was rejected: the one rank that matters could be behind the cut.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/base/map.h"
#include "daemon/feed/field.h"
#include "daemon/feed/site.h"
#include "trace/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST  40u /* of a screen */
#define TEXT_BYTES 400u
#define LEVELS     4u
#define PLACES     8u /* ranks of a row that are looked at closely: what all of them have is shown */

const char *roll_proc_name(unsigned proc)
{
    static const char *const names[] = {"unknown", "running", "stopped", "finished", "dead"};
    return names[proc <= ROLL_PROC_DEAD ? proc : 0];
}

/* What is kept of each rank while rows are made. */
struct stand {
    int32_t rank;
    uint32_t source;
    uint64_t key[LEVELS];
    uint64_t comm, last_ns, lost, calls;
    uint32_t seq, step;
    bool waits;
    char letter;
};

struct row {
    uint32_t first; /* the source of its lowest rank */
    struct roll_rankset ranks;
    size_t count;
    uint64_t oldest_ns, lost, calls;
    uint32_t seq, seq_last, step, step_last;
    size_t waiting;
    uint64_t comm; /* key of the first's communicator, */
    bool one_comm; /* and it is that of all */
    char letter;   /* how all of them stand */
};

static uint64_t mix(uint64_t key, uint64_t value)
{
    uint64_t x = (key ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* Where only digests are here, communicators of one size are one family. */
static uint64_t family_of(const struct roll_run *run, const struct roll_comm_families *families, uint64_t key)
{
    uint32_t comm = roll_map_get(&families->comm_at, key);
    return comm != ROLL_MAP_NONE ? families->of[comm] + 1u
           : key != 0            ? UINT64_C(1) << 32 | roll_fronts_size(run, key)
                                 : 0;
}

/* Four keys of how a rank stands, from fine to coarse. */
static void keys_of(const struct roll_run *run, const struct roll_view_source *v, char letter,
                    const struct roll_comm_families *families, uint64_t *key)
{
    uint64_t family = family_of(run, families, v->last_comm_key);
    uint64_t state = 0, proc = mix(mix(mix(0, v->proc), v->heard), (uint64_t)(unsigned char)letter);
    for (const char *at = v->state ? v->state : ""; *at; at++) {
        state = mix(state, (uint64_t)(unsigned char)*at);
    }
    key[3] = proc;
    key[2] = mix(mix(mix(proc, v->in_call), v->inside), v->last.op);
    key[1] = mix(mix(key[2], state), family);
    key[0] = mix(mix(mix(key[1], v->last_comm_key), v->last.seq), (uint64_t)(uint32_t)v->exit_status);
    key[0] = mix(mix(mix(key[0], v->last.callsite), v->step), v->pending > 0);
}

static int by_rank(const void *a, const void *b)
{
    const struct stand *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->source < y->source ? -1 : x->source > y->source;
}

static struct stand *list_of(const struct roll_stands *stands, const struct roll_comm_families *families, size_t *n)
{
    const struct roll_run *run = stands->run;
    size_t count = roll_engine_sources(roll_feed_engine(roll_run_judge(run)));
    struct stand *list = calloc(count + 1, sizeof(*list));
    struct roll_view_source v;
    *n = 0;
    for (uint32_t i = 0; list && i < count && roll_run_source_brief(run, i, &v); i++) {
        struct stand *s = &list[(*n)++];
        *s = (struct stand){.rank = v.info.world_rank,
                            .source = i,
                            .comm = v.last_comm_key,
                            .last_ns = v.last_ns,
                            .lost = v.lost,
                            .calls = v.calls,
                            .seq = v.last.seq,
                            .step = v.step,
                            .waits = v.pending > 0,
                            .letter = roll_stands_letter(stands, &v)};
        keys_of(run, &v, s->letter, families, s->key);
    }
    if (*n > 1) {
        qsort(list, *n, sizeof(*list), by_rank);
    }
    return list;
}

/* The finest level whose rows are no more than ROWS_MOST. */
static unsigned level_of(const struct stand *list, size_t n)
{
    for (unsigned level = 0; level + 1 < LEVELS; level++) {
        struct roll_map seen = {0};
        uint32_t rows = 0;
        for (size_t i = 0; i < n && rows <= ROWS_MOST; i++) {
            if (roll_map_get(&seen, list[i].key[level]) == ROLL_MAP_NONE) {
                rows += roll_map_add(&seen, list[i].key[level], rows) == 0;
            }
        }
        roll_map_fini(&seen);
        if (rows <= ROWS_MOST) {
            return level;
        }
    }
    return LEVELS - 1;
}

static void add_to_row(struct row *row, const struct stand *s)
{
    bool has_step = s->step != ROLL_STEP_NONE;
    row->count++;
    row->oldest_ns = s->last_ns < row->oldest_ns ? s->last_ns : row->oldest_ns;
    row->lost += s->lost;
    row->calls += s->calls;
    row->seq = s->seq < row->seq ? s->seq : row->seq;
    row->seq_last = s->seq > row->seq_last ? s->seq : row->seq_last;
    row->step = has_step && s->step < row->step ? s->step : row->step;
    row->step_last = has_step && s->step > row->step_last ? s->step : row->step_last;
    row->waiting += s->waits;
    row->letter = s->letter;
    row->comm = row->count == 1 ? s->comm : row->comm;
    row->one_comm = row->comm == s->comm && (row->count == 1 || row->one_comm);
    if (s->rank >= 0) {
        (void)roll_rankset_add(&row->ranks, (uint32_t)s->rank);
    }
}

/* The line of the last call, where the ranks of the row that were looked at agree; null: they do not, or none is known.
 */
static json_t *place_of(const struct roll_run *run, const struct row *row)
{
    size_t n = roll_rankset_count(&row->ranks);
    char first[256] = "", place[256];
    for (size_t i = 0; i < n && i < PLACES; i++) {
        struct roll_view_source v;
        uint32_t rank = roll_rankset_at(&row->ranks, n <= PLACES ? i : i * (n - 1) / (PLACES - 1));
        if (!roll_run_rank(run, rank, &v) ||
            !roll_feed_site(roll_run_judge(run), v.info.stream, v.last.callsite, ROLL_SITE_KNOWN, place,
                            sizeof(place)) ||
            (i > 0 && strcmp(place, first) != 0)) {
            return json_null();
        }
        memcpy(first, place, sizeof(first));
    }
    return first[0] != '\0' ? roll_text_to_json(first) : json_null();
}

/* For whom the ranks of the row wait, where those that were looked at agree; "various": they do not. */
static json_t *awaits_of(const struct roll_stands *stands, const struct row *row)
{
    size_t n = roll_rankset_count(&row->ranks);
    char first[TEXT_BYTES] = "", text[TEXT_BYTES];
    for (size_t i = 0; row->letter == 'w' && i < n && i < PLACES; i++) {
        struct roll_view_source v;
        struct roll_rankset awaits = {0};
        uint32_t rank = roll_rankset_at(&row->ranks, n <= PLACES ? i : i * (n - 1) / (PLACES - 1));
        if (roll_run_rank(stands->run, rank, &v)) {
            roll_stands_awaits(stands, &v, &awaits);
        }
        (void)roll_rankset_format(&awaits, text, sizeof(text));
        roll_rankset_fini(&awaits);
        if (i > 0 && strcmp(text, first) != 0) {
            return json_string("various");
        }
        memcpy(first, text, sizeof(first));
    }
    return first[0] != '\0' ? json_string(first) : json_null();
}

static json_t *row_json(const struct roll_stands *stands, const struct row *row,
                        const struct roll_comm_families *families, unsigned level)
{
    const struct roll_run *run = stands->run;
    struct roll_view_source v;
    char ranks[TEXT_BYTES], key[24], size[32] = "";
    if (!roll_run_source(run, row->first, &v)) {
        return NULL;
    }
    uint32_t comm = roll_map_get(&families->comm_at, v.last_comm_key);
    const char *name = "";
    if (level < 2 && comm != ROLL_MAP_NONE) {
        const struct roll_comm_family *f = &families->at[families->of[comm]];
        snprintf(size, sizeof(size), "of %u", f->size);
        name = f->name[0] != '\0' ? f->name : size;
    } else if (level < 2 && roll_fronts_size(run, v.last_comm_key) > 0) {
        snprintf(size, sizeof(size), "%u ranks", roll_fronts_size(run, v.last_comm_key));
        name = size;
    }
    (void)roll_rankset_format(&row->ranks, ranks, sizeof(ranks));
    snprintf(key, sizeof(key), "0x%016llx", (unsigned long long)v.last_comm_key);
    json_t *last = json_null();
    if (v.last.op != ROLL_OP_NONE && level < 3) {
        last = json_pack("{s:s,s:s,s:s,s:o,s:I,s:I,s:o}", "op", roll_op_name(v.last.op), "state",
                         level < 2 && v.state ? v.state : "", "comm", level < 2 && row->one_comm ? key : "",
                         "comm_name", roll_text_to_json(name), "seq", (json_int_t)row->seq, "seq_last",
                         (json_int_t)row->seq_last, "place", level == 0 ? place_of(run, row) : json_null());
    }
    bool has_step = row->step != ROLL_STEP_NONE;
    bool is_inside = level < 3 && v.inside != ROLL_OP_NONE;
    return json_pack("{s:s,s:I,s:i,s:s,s:b,s:o,s:b,s:I,s:I,s:I,s:I,s:o,s:o,s:o,s:s,s:o}", "ranks_text", ranks, "count",
                     (json_int_t)row->count, "rank", (int)v.info.world_rank, "state", roll_proc_name(v.proc), "in_call",
                     (int)(level < 3 && v.in_call), "inside",
                     is_inside ? json_string(roll_op_name(v.inside)) : json_null(), "heard", (int)v.heard, "waiting",
                     (json_int_t)row->waiting, "last_ns", (json_int_t)row->oldest_ns, "calls", (json_int_t)row->calls,
                     "lost", (json_int_t)row->lost, "step", has_step ? json_integer(row->step) : json_null(),
                     "step_last", has_step ? json_integer(row->step_last) : json_null(), "last", last, "stands",
                     roll_field_name(row->letter), "waits_for", awaits_of(stands, row));
}

json_t *roll_rows_json(const struct roll_run *run, const struct roll_comm_families *families)
{
    size_t n, used = 0, room = 0;
    struct roll_stands stands;
    roll_stands_begin(run, &stands);
    struct stand *list = list_of(&stands, families, &n);
    unsigned level = level_of(list, n);
    struct roll_map at = {0};
    struct row *row = NULL;
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        uint32_t k = roll_map_get(&at, list[i].key[level]);
        if (k == ROLL_MAP_NONE) {
            if (ROLL_GROW(row, room, used + 1) != 0 || roll_map_add(&at, list[i].key[level], (uint32_t)used) != 0) {
                break;
            }
            k = (uint32_t)used++;
            row[k] = (struct row){
                .first = list[i].source, .oldest_ns = UINT64_MAX, .seq = UINT32_MAX, .step = ROLL_STEP_NONE};
        }
        add_to_row(&row[k], &list[i]);
    }
    for (size_t i = 0; i < used; i++) {
        json_array_append_new(rows, row_json(&stands, &row[i], families, level));
        roll_rankset_fini(&row[i].ranks);
    }
    roll_stands_end(&stands);
    roll_map_fini(&at);
    free(row);
    free(list);
    return rows;
}
