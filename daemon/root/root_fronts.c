/*
 * root_fronts.c: what is known of a run that is compared by digests while no records are here: how far the members of
 * its communicators have come (the fronts of its digests), and what each ring called last (STATUS).
 *
 * This is for people: `top`, `why` and the end of `rollcall run`. Nothing is judged by it. Fronts know a communicator
 * by its key and its size, so that is what it is called here: names are in definitions, which come with records. To
 * have all definitions sent was rejected: those of 16,384 ranks are megabytes, for a table of five rows.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RATE_NS (1000 * ROLL_MS) /* between two looks at how fast the job goes */

/* what comes in */

void roll_fronts_status(struct digested_ring *ring, const struct roll_frame *frame)
{
    struct roll_frame_status s;
    if (frame->head.payload < sizeof(s) + sizeof(ring->last)) {
        return; /* of an older agent */
    }
    memcpy(&s, frame->payload, sizeof(s));
    memcpy(&ring->last, frame->payload + sizeof(s), sizeof(ring->last));
    ring->enter_ns = ring->last.enter_ns ? s.clock_real_ns - s.clock_mono_ns + ring->last.enter_ns : 0;
}

/* Agents count, and so do their rings, whose STATUS comes at a drain. An agent that was started anew has counted less
 * than its predecessor: what was told once is not taken back. */
static uint64_t folded_calls(struct roll_digested *d)
{
    uint64_t calls = 0, of_rings = 0;
    for (size_t i = 0; i < d->calls_room; i++) {
        calls += d->calls[i];
    }
    for (size_t i = 0; i < d->rings; i++) {
        of_rings += d->ring[i].last.calls;
    }
    calls = of_rings > calls ? of_rings : calls;
    d->most_calls = calls > d->most_calls ? calls : d->most_calls;
    return d->most_calls;
}

uint64_t roll_run_calls(const struct roll_run *run)
{
    struct roll_engine_summary s;
    if (run->digested) {
        return folded_calls(run->digested);
    }
    roll_engine_summary(roll_feed_engine(run->feed), &s);
    return s.calls;
}

void roll_fronts_look(struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    if (now - d->rate_ns < RATE_NS) {
        return;
    }
    uint64_t calls = roll_run_calls(run);
    d->calls_per_s = d->rate_ns ? (double)(calls - d->rate_calls) * 1e9 / (double)(now - d->rate_ns) : 0;
    d->rate_ns = now;
    d->rate_calls = calls;
}

uint64_t roll_run_findings(const struct roll_run *run)
{
    uint64_t findings = 0;
    for (size_t i = 0; i < run->verdicts.used; i++) {
        findings += roll_verdict_stands(run->verdicts.at[i]);
    }
    return findings;
}

bool roll_digested_sees_part(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    bool part = false;
    for (size_t i = 0; d && d->fed && i < d->rings && !part; i++) {
        part = d->ring[i].cut || d->ring[i].aside || d->ring[i].lacks;
    }
    return part;
}

bool roll_digested_calm(const struct roll_run *run)
{
    return run->digested && (!run->judge || run->narrow);
}

void roll_digested_wanted(struct roll_run *run, int64_t rank)
{
    struct roll_digested *d = run->digested;
    if (!d) {
        return;
    }
    d->wanted = true;
    for (size_t i = 0; i < d->rings; i++) {
        if (roll_digested_header_int(&d->ring[i], offsetof(struct roll_ring_header, world_rank)) == rank) {
            d->wanted_key = d->ring[i].last.comm;
        }
    }
}

/* ranks */

static void add_last(const struct roll_run *run, struct roll_view_source *v)
{
    const struct digested_ring *r = run->digested ? roll_digested_ring_of(run->digested, v->info.stream) : NULL;
    if (!r || (r->last.calls == 0 && r->last.comms == 0)) {
        return;
    }
    v->calls = r->last.calls > v->calls ? r->last.calls : v->calls; /* what was told last is up to 5 s old */
    if ((run->judge && !run->narrow) || r->last.op == ROLL_OP_NONE) {
        return;
    }
    v->last = (struct roll_record){
        .op = r->last.op, .seq = r->last.seq, .dtype = ROLL_DTYPE_NONE, .redop = ROLL_RED_NONE, .peer = ROLL_PEER_NONE};
    v->last_comm_key = r->last.comm;
    v->last_ns = r->enter_ns;
    v->in_call = r->last.inside != 0;
    v->state = v->in_call ? "entered" : "returned";
}

bool roll_run_source(const struct roll_run *run, uint32_t i, struct roll_view_source *out)
{
    bool there = roll_engine_source(roll_feed_engine(roll_run_judge(run)), i, out);
    if (there) {
        add_last(run, out);
    }
    return there;
}

bool roll_run_source_brief(const struct roll_run *run, uint32_t i, struct roll_view_source *out)
{
    bool there = roll_engine_source_brief(roll_feed_engine(roll_run_judge(run)), i, out);
    if (there) {
        add_last(run, out);
    }
    return there;
}

bool roll_run_rank(const struct roll_run *run, uint32_t rank, struct roll_view_source *out)
{
    bool there = roll_engine_rank(roll_feed_engine(roll_run_judge(run)), rank, out);
    if (there) {
        add_last(run, out);
    }
    return there;
}

/* communicators */

struct front {
    uint64_t key;
    struct roll_sum_place at;
};

struct size_row {
    uint32_t size, groups, low, high, apart;
};

/* Communicators of which members are on several nodes; those of one node are judged there, and told of where their
 * members stand apart. Returned owned, *n of them. */
static struct front *fronts_of(const struct roll_run *run, size_t *n)
{
    struct front *list = NULL, one;
    size_t room = 0;
    *n = 0;
    for (size_t i = 0; roll_sum_at(run->digested->sum, i, &one.key, &one.at); i++) {
        if ((one.at.members != 0 || one.at.low < one.at.high) && ROLL_GROW(list, room, *n + 1) == 0) {
            list[(*n)++] = one;
        }
    }
    return list;
}

size_t roll_fronts_count(const struct roll_run *run)
{
    uint64_t key;
    struct roll_sum_place at;
    size_t n = 0;
    for (size_t i = 0; roll_sum_at(run->digested->sum, i, &key, &at); i++) {
        n += at.members != 0;
    }
    return n;
}

uint64_t roll_fronts_moved(const struct roll_run *run)
{
    return run->digested ? run->digested->moved_ns : 0;
}

json_t *roll_fronts_rate(const struct roll_run *run)
{
    return run->digested ? json_real(run->digested->calls_per_s) : json_null();
}

uint32_t roll_fronts_size(const struct roll_run *run, uint64_t key)
{
    struct roll_sum_place p;
    return run->digested && roll_sum_place(run->digested->sum, key, &p) ? p.size : 0;
}

static int by_size(const void *a, const void *b)
{
    const struct size_row *x = a, *y = b;
    return x->size < y->size ? 1 : x->size > y->size ? -1 : 0;
}

/* The rows, the largest communicators first; returned owned. */
static struct size_row *sizes_of(const struct front *front, size_t fronts, size_t *n)
{
    struct size_row *row = NULL;
    struct roll_map at = {0};
    size_t room = 0;
    *n = 0;
    for (size_t i = 0; i < fronts; i++) {
        const struct roll_sum_place *p = &front[i].at;
        uint32_t k = roll_map_get(&at, p->size);
        if (k == ROLL_MAP_NONE) {
            if (ROLL_GROW(row, room, *n + 1) != 0 || roll_map_add(&at, p->size, (uint32_t)*n) != 0) {
                break;
            }
            k = (uint32_t)(*n)++;
            row[k] = (struct size_row){.size = p->size, .low = UINT32_MAX};
        }
        struct size_row *r = &row[k];
        r->groups++;
        r->low = p->low < r->low ? p->low : r->low;
        r->high = p->high > r->high ? p->high : r->high;
        r->apart = p->high - p->low > r->apart ? p->high - p->low : r->apart;
    }
    roll_map_fini(&at);
    if (*n > 1) {
        qsort(row, *n, sizeof(*row), by_size);
    }
    return row;
}

static int by_distance(const void *a, const void *b)
{
    const struct front *x = a, *y = b;
    uint32_t dx = x->at.high - x->at.low, dy = y->at.high - y->at.low;
    if (dx != dy) {
        return dx < dy ? 1 : -1;
    }
    return x->at.size < y->at.size ? 1 : x->at.size > y->at.size ? -1 : 0;
}

json_t *roll_fronts_comms(const struct roll_run *run, size_t rows)
{
    size_t n, sizes;
    struct front *front = fronts_of(run, &n);
    struct size_row *row = sizes_of(front, n, &sizes);
    json_t *list = json_array();
    if (n > 1) {
        qsort(front, n, sizeof(*front), by_distance);
    }
    for (size_t i = 0; i < n && i < rows; i++) {
        char key[24], name[48];
        const struct roll_sum_place *p = &front[i].at;
        size_t family = 0;
        while (family < sizes && row[family].size != p->size) {
            family++;
        }
        snprintf(key, sizeof(key), "0x%016llx", (unsigned long long)front[i].key);
        snprintf(name, sizeof(name), "%" PRIu32 " ranks", p->size);
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:i,s:i,s:I,s:I,s:[],s:[],s:s,s:n,s:I}", "key", key,
                                              "label", "", "role", "", "size", (int)p->size, "seen",
                                              (int)(p->members ? p->members : p->size), "done", (json_int_t)p->low,
                                              "ahead", (json_int_t)p->high, "members", "behind", "name", name,
                                              "made_at", "family", (json_int_t)family));
    }
    free(front);
    free(row);
    return list;
}

json_t *roll_fronts_families(const struct roll_run *run)
{
    size_t n, sizes;
    struct front *front = fronts_of(run, &n);
    struct size_row *row = sizes_of(front, n, &sizes);
    json_t *list = json_array();
    for (size_t i = 0; i < sizes; i++) {
        const struct size_row *r = &row[i];
        char text[64];
        snprintf(text, sizeof(text), "%" PRIu32 " group%s of %" PRIu32 " ranks", r->groups, r->groups == 1 ? "" : "s",
                 r->size);
        json_array_append_new(list, json_pack("{s:s,s:I,s:I,s:n,s:s,s:n,s:I,s:I,s:I}", "name", text, "groups",
                                              (json_int_t)r->groups, "size", (json_int_t)r->size, "stride", "text",
                                              text, "made_at", "done", (json_int_t)r->low, "ahead", (json_int_t)r->high,
                                              "apart", (json_int_t)r->apart));
    }
    free(front);
    free(row);
    return list;
}

/* the end of a run */

json_t *roll_fronts_seen(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    struct roll_rankset ranks = {0};
    struct roll_view_source v;
    struct roll_sum_figures f;
    uint64_t least = UINT64_MAX, most = 0;
    uint32_t comms = 0, told = 0;
    for (uint32_t i = 0; roll_run_source(run, i, &v); i++) {
        if (v.info.world_rank >= 0) {
            (void)roll_rankset_add(&ranks, (uint32_t)v.info.world_rank);
        }
    }
    for (size_t i = 0; i < d->rings; i++) {
        const struct roll_frame_last *last = &d->ring[i].last;
        if (last->calls > 0) {
            told++;
            least = last->calls < least ? last->calls : least;
            most = last->calls > most ? last->calls : most;
            comms = last->comms > comms ? last->comms : comms;
        }
    }
    roll_sum_figures(d->sum, &f);
    json_t *digests = json_pack("{s:I,s:I,s:I,s:I,s:I,s:o,s:I}", "windows", (json_int_t)f.windows, "comms",
                                (json_int_t)roll_fronts_count(run), "calls_least", (json_int_t)(told ? least : 0),
                                "calls_most", (json_int_t)most, "comms_of_rank", (json_int_t)comms, "families",
                                roll_fronts_families(run), "opened", (json_int_t)d->opened);
    json_t *seen = json_pack("{s:o,s:n,s:n,s:[],s:i,s:n,s:o}", "ranks", roll_ranks_text_json(&ranks), "steps",
                             "steps_source", "groups", "groups_more", 0, "slowest", "digests", digests);
    roll_rankset_fini(&ranks);
    return seen;
}

/* why */

#define SILENT_NS                                                                                                      \
    (2000 * ROLL_MS) /* digests come ten times a second, and at least once a second where calls are made */

/* What keeps all this from being the whole truth, and what to do about it. */
static void why_unknown(const struct roll_digested *d, const struct roll_view_source *v, FILE *out)
{
    if (d->told_ns != 0 && roll_mono_ns() - d->told_ns > SILENT_NS) {
        fprintf(out,
                " No digest has come for %.1f s: of what the job does now nothing is known. Look at the agents and "
                "relays (`rollcall top`).",
                (double)(roll_mono_ns() - d->told_ns) * 1e-9);
    } else if (d->number != 0 || d->pending) {
        fprintf(out, " Something does not agree, or stands: records are asked for, and say more in some seconds.");
    } else {
        fprintf(out, " Nothing stands and nothing differs, as far as it has been compared; what the rank waits for at "
                     "this moment is in its records, which are not here.");
    }
    fprintf(out,
            " To look closer: `rollcall stacks %" PRId32
            "` shows where it is; ask again in some seconds, when records may have been looked at for this question.",
            v->info.world_rank);
}

static void why_comm(const struct roll_run *run, uint64_t key, FILE *out)
{
    struct roll_sum_place p;
    if (key == 0) {
        return;
    }
    bool known = roll_sum_place(run->digested->sum, key, &p);
    if (known && p.members == 0 && p.low < p.high) {
        fprintf(out,
                " All %" PRIu32 " members of its communicator, 0x%016" PRIx64
                ", are below one agent or relay; they have made %" PRIu32 " to %" PRIu32
                " calls there, and the last one stands.",
                p.size, key, p.low, p.high);
    } else if (!known || p.members == 0) {
        fprintf(out,
                " All members of its communicator, 0x%016" PRIx64
                ", are below one agent or relay, which compares their calls and tells what differs.",
                key);
    } else if (p.low == p.high && p.members == p.size) {
        fprintf(out, " All %" PRIu32 " members of communicator 0x%016" PRIx64 " have made %" PRIu32 " calls there.",
                p.size, key, p.low);
    } else {
        fprintf(out,
                " Of the %" PRIu32 " members of its communicator, 0x%016" PRIx64 ", %" PRIu32
                " have been heard of; they have made %" PRIu32 " to %" PRIu32 " calls there.",
                p.size, key, p.members, p.low, p.high);
    }
}

void roll_fronts_why(const struct roll_run *run, const struct roll_view_source *v, FILE *out)
{
    const struct digested_ring *r = roll_digested_ring_of(run->digested, v->info.stream);
    uint64_t now = roll_real_ns();
    bool over = v->proc == ROLL_PROC_DEAD || v->proc == ROLL_PROC_FINISHED;
    fprintf(out, "Rank %" PRId32 " on host %s %s.", v->info.world_rank, v->info.host ? v->info.host : "?",
            v->proc == ROLL_PROC_DEAD       ? "is dead"
            : v->proc == ROLL_PROC_FINISHED ? "has ended"
            : v->proc == ROLL_PROC_STOPPED  ? "is stopped"
            : v->heard                      ? "runs"
                                            : "is not heard: its agent is silent");
    fprintf(out, " The calls of this job are compared by digests where they are made.");
    if (!r || r->last.enter_ns == 0) {
        fprintf(out, " Nothing has been told of its calls yet.");
    } else {
        double ago = now > r->enter_ns ? (double)(now - r->enter_ns) * 1e-9 : 0;
        fprintf(out,
                " %s %" PRIu64 " call%s on %" PRIu32 " communicator%s. The newest that is known, %s #%" PRIu32
                ", was made %.1f s ago%s%s.",
                over ? "It had made" : "It has made", r->last.calls, r->last.calls == 1 ? "" : "s", r->last.comms,
                r->last.comms == 1 ? "" : "s", roll_op_name(r->last.op), r->last.seq, ago,
                r->last.inside ? ", and had not returned" : "", over ? "" : " (newer ones are told every 5 s)");
        why_comm(run, r->last.comm, out);
    }
    if (!over) {
        why_unknown(run->digested, v, out);
    }
}
