/*
 * digest.c: see digest.h. From what was taken of a series to sections of a file.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define PAYLOAD (32u * 1024u) /* of one piece of the digest, as in a DIGEST frame */

/* The arrays of a section. */
struct arrays {
    struct roll_rdig_ring *ring;
    struct roll_rdig_comm *comm;
    struct roll_span *span;
    size_t spans, span_room;
    uint8_t *digest;
    size_t digest_bytes, digest_room;
};

static void arrays_fini(struct arrays *a)
{
    free(a->ring);
    free(a->comm);
    free(a->span);
    free(a->digest);
}

/* Messages of a communicator that is all here do not match up. */
static bool has_messages(const struct roll_taken *t, const struct taken_ring *r)
{
    for (size_t i = 0; i < t->hints.hints; i++) {
        for (size_t k = 0; k < r->comms && t->hints.hint[i].why == ROLL_HINT_MESSAGES; k++) {
            if (r->comm[k].key == t->hints.hint[i].key) {
                return true;
            }
        }
    }
    return false;
}

static int ring_array(const struct roll_taken *t, const struct taken_excerpt *e, struct arrays *a)
{
    a->ring = calloc(e->parts + 1, sizeof(*a->ring));
    for (size_t i = 0; i < e->parts && a->ring; i++) {
        const struct taken_ring *r = t->ring[i];
        struct roll_ring_header h;
        memcpy(&h, r->header, sizeof(h));
        bool known = r->status.proc_state != 0;
        a->ring[i] = (struct roll_rdig_ring){.epoch = r->epoch,
                                             .begin = e->part[i].begin,
                                             .next = e->part[i].end,
                                             .lost = r->lost,
                                             .world_rank = h.world_rank < 0 ? -1 : h.world_rank,
                                             .proc_state = known ? r->status.proc_state : ROLL_PROC_RUNNING,
                                             .exit_status = known ? r->status.exit_status : ROLL_EXIT_UNKNOWN};
        for (unsigned why = 1; why <= ROLL_HINT_LAST && e->part[i].begin > r->first; why++) {
            bool before = r->hinted[why] != 0 && r->hinted[why] - 1 < e->part[i].begin;
            before = before || (why == ROLL_HINT_MESSAGES && has_messages(t, r));
            a->ring[i].hinted |= (uint32_t)before << why;
        }
    }
    return a->ring ? 0 : ROLL_E_NOMEM;
}

static int span_array(struct arrays *a, const struct roll_spans *spans, uint32_t *n)
{
    int err = ROLL_GROW(a->span, a->span_room, a->spans + spans->used);
    if (!err && spans->used > 0) {
        memcpy(a->span + a->spans, spans->at, spans->used * sizeof(*a->span));
        a->spans += spans->used;
    }
    *n = err ? 0 : (uint32_t)spans->used;
    return err;
}

static int comm_array(const struct roll_taken *t, const struct taken_excerpt *e, struct arrays *a)
{
    a->comm = calloc(e->comms + 1, sizeof(*a->comm));
    int err = a->comm ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < e->comms && !err; i++) {
        uint32_t key = e->kind == ROLL_RDIG_END ? roll_map_get(&t->key_at, e->comm[i].key) : ROLL_MAP_NONE;
        a->comm[i] = e->comm[i];
        if (key != ROLL_MAP_NONE) {
            err = span_array(a, &t->key[key].spans, &a->comm[i].spans);
        }
    }
    return err;
}

static int digest_array(const struct roll_taken *t, struct arrays *a)
{
    struct roll_digest_cursor cursor = {0};
    uint8_t *payload = malloc(PAYLOAD);
    int err = payload ? 0 : ROLL_E_NOMEM;
    for (size_t n; !err && (n = roll_digest_encode(&t->up, &cursor, payload, PAYLOAD)) != 0;) {
        uint32_t bytes = (uint32_t)n;
        err = ROLL_GROW(a->digest, a->digest_room, a->digest_bytes + sizeof(bytes) + n);
        if (!err) {
            memcpy(a->digest + a->digest_bytes, &bytes, sizeof(bytes));
            memcpy(a->digest + a->digest_bytes + sizeof(bytes), payload, n);
            a->digest_bytes += sizeof(bytes) + n;
        }
    }
    free(payload);
    return err;
}

/* What every section says of the series. */
static struct roll_rdig_view view_of(const struct roll_taken *t, const struct roll_series *s, uint32_t kind,
                                     const struct roll_digest_at *at)
{
    struct roll_rdig_view v = {.is = {.kind = kind,
                                      .flags = *s->cut ? ROLL_RDIG_CUT : 0,
                                      .restart = t->restart,
                                      .key = at->key,
                                      .seq = at->seq,
                                      .last = at->last,
                                      .first_ns = t->first_ns,
                                      .last_ns = t->last_ns,
                                      .records = t->records,
                                      .calls = t->calls}};
    const char *slash = strrchr(s->file[0].series, '/');
    v.name = slash ? slash + 1 : s->file[0].series;
    v.path = t->how->path;
    v.is.name_bytes = (uint32_t)strnlen(v.name, ROLL_RDIG_TEXT - 1);
    v.is.path_bytes = (uint32_t)strnlen(v.path, ROLL_RDIG_TEXT - 1);
    memcpy(v.is.job, t->job, sizeof(v.is.job));
    memcpy(v.is.host, t->host, sizeof(v.is.host));
    for (size_t i = 0; i < t->rings; i++) {
        v.is.lost += t->ring[i]->lost;
        v.is.older += t->ring[i]->older;
    }
    return v;
}

static int add_excerpt(const struct roll_taken *t, const struct taken_excerpt *e, struct roll_series *s,
                       struct roll_rdig_out *out)
{
    struct arrays a = {0};
    struct roll_cut cut = {0};
    struct roll_rdig_view v = view_of(t, s, e->kind, &e->at);
    int err = ring_array(t, e, &a);
    err = err ? err : comm_array(t, e, &a);
    err = err || e->kind != ROLL_RDIG_END ? err : digest_array(t, &a);
    err = err ? err : roll_cut(t, e, s, &cut);
    if (!err) {
        v.rings = a.ring;
        v.comms = a.comm;
        v.spans = a.span;
        v.digest = a.digest;
        v.head = cut.head;
        v.trace = cut.trace;
        v.is.flags |= (e->whole ? ROLL_RDIG_WHOLE : 0) | (*s->cut ? ROLL_RDIG_CUT : 0);
        v.is.rings = (uint32_t)e->parts;
        v.is.comms = (uint32_t)e->comms;
        v.is.spans = (uint32_t)a.spans;
        v.is.digest_bytes = (uint32_t)a.digest_bytes;
        v.is.head_bytes = (uint32_t)cut.head_bytes;
        v.is.trace_bytes = cut.trace_bytes;
        err = roll_rdig_add(out, &v);
    }
    free(cut.head);
    free(cut.trace);
    arrays_fini(&a);
    return err;
}

/* The spans of a range, where the node has members of the communicator. Its rings say whose they are. */
static int add_range(const struct roll_taken *t, const struct taken_place *p, const struct roll_series *s,
                     struct roll_rdig_out *out)
{
    struct roll_rdig_view v = view_of(t, s, ROLL_RDIG_RANGE, &p->at);
    struct roll_rdig_comm comm = {.key = p->at.key, .size = 1, .members = 1, .spans = (uint32_t)p->spans.used};
    struct roll_rdig_ring *ring = p->spans.used > 0 ? calloc(t->rings, sizeof(*ring)) : NULL;
    if (!ring) {
        return p->spans.used > 0 ? ROLL_E_NOMEM : 0;
    }
    for (size_t i = 0; i < t->rings; i++) {
        const struct taken_ring *r = t->ring[i];
        ring[i] = (struct roll_rdig_ring){.epoch = r->epoch,
                                          .begin = r->next,
                                          .next = r->next,
                                          .world_rank = -1,
                                          .proc_state = ROLL_PROC_RUNNING,
                                          .exit_status = ROLL_EXIT_UNKNOWN};
    }
    v.rings = ring;
    v.is.rings = (uint32_t)t->rings;
    v.comms = &comm;
    v.is.comms = 1;
    v.spans = p->spans.at;
    v.is.spans = comm.spans;
    int err = roll_rdig_add(out, &v);
    free(ring);
    return err;
}

int roll_digest_series(struct roll_series *s, const struct roll_digest_how *how, struct roll_rdig_out *out)
{
    struct roll_taken t;
    int err = roll_take(&t, s, how);
    roll_series_end(s);
    err = !err && t.rings == 0 ? ROLL_E_NOTFOUND : err;
    s->quiet = true;
    for (size_t i = 0; i < t.excerpts && !err; i++) {
        err = add_excerpt(&t, &t.excerpt[i], s, out);
    }
    for (size_t i = 0; i < t.places && !err; i++) {
        err = t.place[i].at.seq < t.place[i].at.last ? add_range(&t, &t.place[i], s, out) : 0;
    }
    roll_taken_fini(&t);
    return err;
}
