/*
 * step.c: one step of a rehearsed job: told by the job, else found; and the order of its calls.
 *
 * Where the job's Python has told when its steps ended, the calls between the first and the last of these moments are
 * those of the steps in between: the beginning of a job is no step, and the first one has calls that the others lack.
 * So has the second one, where there is a third: PyTorch's DDP arranges its buckets anew in it, with broadcasts.
 * Where nothing is told, a step is what repeats in all calls of a rank, over its communicators. On one communicator it
 * may be a layer that repeats, so each communicator by itself was rejected.
 */
#include "daemon/base/array.h"
#include "daemon/console/rehearse/order.h"
#include "daemon/console/text.h"
#include "trace/ident.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* what repeats */

/* The search itself: the part that repeats and holds most calls. */
static int search(const struct roll_rehearse_order *o, const uint32_t *call, const uint16_t *comm, size_t calls,
                  struct searched *out)
{
    struct roll_expected_part *part = NULL;
    size_t parts = 0;
    uint64_t most = 0;
    int err = roll_repeats_learn(o->build.x->call, call, comm, calls, &part, &parts);
    for (size_t i = 0; i < parts; i++) {
        uint64_t covered = (uint64_t)part[i].calls * part[i].times;
        if (part[i].times > 1 && covered > most) {
            most = covered;
            out->first = part[i].first;
            out->end = part[i].first + part[i].calls;
            out->times = part[i].times;
        }
    }
    free(part);
    return err;
}

/* The same, once for the calls of all ranks that make the same ones. */
static int search_once(struct roll_rehearse_order *o, const uint32_t *call, const uint16_t *comm, size_t calls,
                       struct searched *out)
{
    uint64_t key = roll_hash64(roll_hash64(1, call, calls * sizeof(*call)), comm, calls * sizeof(*comm)),
             check = roll_hash64(roll_hash64(2, call, calls * sizeof(*call)), comm, calls * sizeof(*comm));
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&o->searched_at, key, &step)) != ROLL_MAP_NONE;) {
        if (o->searched[i].check == check && o->searched[i].calls == calls) {
            *out = o->searched[i];
            return 0;
        }
    }
    *out = (struct searched){.check = check, .calls = calls};
    int err = ROLL_GROW(o->searched, o->search_room, o->searches + 1);
    err = err == 0 ? search(o, call, comm, calls, out) : err;
    err = err == 0 ? roll_map_add(&o->searched_at, key, (uint32_t)o->searches) : err;
    if (err == 0) {
        o->searched[o->searches++] = *out;
    }
    return err;
}

/* Finds the step of one rank by what repeats in its calls. */
static void find_step(struct roll_rehearse_order *o, struct ring *r)
{
    uint32_t *call = calloc(r->mades + 1, sizeof(*call)), *at = calloc(r->mades + 1, sizeof(*at));
    uint16_t *comm = calloc(r->mades + 1, sizeof(*comm));
    struct searched found = {0};
    size_t calls = 0;
    for (size_t i = 0; call != NULL && at != NULL && comm != NULL && i < r->mades; i++) {
        if (r->made[i].call != ROLL_EXPECTED_NONE) {
            call[calls] = r->made[i].call;
            comm[calls] = r->made[i].comm;
            at[calls++] = (uint32_t)i;
        }
    }
    if (calls > 0 && search_once(o, call, comm, calls, &found) == 0 && found.times > 1) {
        r->step =
            (struct roll_rehearse_step){at[found.first], found.end < calls ? at[found.end] : r->mades, found.times};
    }
    free(call);
    free(at);
    free(comm);
}

/* what is told */

/* The first call behind a moment. */
static size_t first_behind(const struct ring *r, uint64_t ns)
{
    uint64_t us = ns > r->first_ns ? (ns - r->first_ns) / 1000 : 0;
    size_t low = 0, high = r->mades;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->made[middle].at_us <= us) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Adds up the calls from `first` to `last` by communicator and operation. */
static int add_up(const struct roll_rehearse_order *o, struct ring *r, size_t first, size_t last, uint64_t rounds)
{
    r->rounds = rounds;
    for (size_t i = first; i < last; i++) {
        const struct made *made = &r->made[i];
        if (made->call == ROLL_EXPECTED_NONE) {
            continue;
        }
        struct local *comm = &r->comm[made->comm];
        const struct roll_expected_call *call = &o->build.x->call[made->call];
        comm->step = comm->step != NULL ? comm->step : calloc(ROLL_OP_LIMIT, sizeof(*comm->step));
        if (comm->step == NULL) {
            return ROLL_E_NOMEM;
        }
        comm->step[call->op].calls++;
        comm->step[call->op].bytes +=
            call->count == ROLL_EXPECTED_ANY ? 0 : call->count * roll_dtype_bytes(call->dtype);
    }
    return 0;
}

/* The steps of one rank as its process told them. False: it did not, or there are none between two others. */
static bool take_told(struct roll_rehearse_order *o, struct ring *r, const struct roll_steered_steps *told)
{
    if (told == NULL || told->steps < 2 || told->second_ns == 0 || told->last_ns < told->second_ns || r->mades == 0 ||
        told->last_ns - r->first_ns >= (uint64_t)UINT32_MAX * 1000) {
        return false;
    }
    bool has_third = told->steps > 2 && told->third_ns >= told->second_ns && told->last_ns >= told->third_ns;
    size_t first = first_behind(r, has_third ? told->second_ns : told->first_ns);
    size_t end = first_behind(r, has_third ? told->third_ns : told->second_ns);
    r->step = (struct roll_rehearse_step){first, end, (uint32_t)told->steps};
    return add_up(o, r, first, first_behind(r, told->last_ns), told->steps - (has_third ? 2 : 1)) == 0;
}

int roll_rehearse_order_learn(roll_rehearse_order_t *o, roll_feed_t *feed, const struct roll_steered_steps *told,
                              size_t tolds)
{
    int err = 0;
    for (size_t i = 0; i < tolds; i++) {
        o->told = told[i].steps > o->told ? told[i].steps : o->told;
    }
    for (size_t i = 0; i < o->rings && err == 0; i++) {
        struct ring *r = &o->ring[i];
        struct roll_feed_stream stream;
        const struct roll_steered_steps *mine = NULL;
        if (o->told > 0 && r->stream != 0 && roll_feed_find(feed, r->stream, &stream)) {
            mine = roll_steered_steps_of(told, tolds, stream.pid);
        }
        if (take_told(o, r, mine) || (mine != NULL && mine->steps < 2)) {
            continue;
        }
        find_step(o, r);
        if (r->step.times > 1) {
            /* A repetition may be several steps of which the job has told the number, and not the moments. */
            uint64_t rounds = o->told > 0 ? o->told : 1;
            err = add_up(o, r, r->step.first, r->step.last, rounds);
            for (size_t k = 0; o->told > 0 && k < r->comms; k++) {
                for (size_t op = 0; r->comm[k].step != NULL && op < ROLL_OP_LIMIT; op++) {
                    r->comm[k].step[op].calls *= r->step.times;
                    r->comm[k].step[op].bytes *= r->step.times;
                }
            }
        }
    }
    return err;
}

uint64_t roll_rehearse_order_told(const roll_rehearse_order_t *o)
{
    return o->told;
}

uint32_t roll_rehearse_order_steps(const roll_rehearse_order_t *o)
{
    uint32_t most = 0;
    for (size_t i = 0; i < o->rings; i++) {
        most = o->ring[i].step.times > most ? o->ring[i].step.times : most;
    }
    return most;
}

void roll_rehearse_order_step(const roll_rehearse_order_t *o, size_t ring, uint32_t comm, unsigned op, double *calls,
                              double *bytes)
{
    const struct ring *r = ring < o->rings ? &o->ring[ring] : NULL;
    const struct step_sum *sum =
        r != NULL && comm < r->comms && r->comm[comm].step != NULL ? &r->comm[comm].step[op] : NULL;
    *calls = sum != NULL && r->rounds > 0 ? (double)sum->calls / (double)r->rounds : 0;
    *bytes = sum != NULL && r->rounds > 0 ? (double)sum->bytes / (double)r->rounds : 0;
}

/* the order */

/* The number of a communicator in the report, from 1; 0 = it has none. */
static uint32_t number_of(const struct roll_map *at, const struct ring *r, uint32_t comm)
{
    uint32_t i = roll_map_get(at, r->comm[comm].def.key);
    return i == ROLL_MAP_NONE ? 0 : i + 1;
}

/* The calls one after the other, those of one kind in a row together. */
static json_t *calls_json(const struct roll_rehearse_order *o, const struct ring *r, const struct roll_map *at)
{
    json_t *out = json_array(), *last = NULL;
    for (size_t i = r->step.first; i < r->step.last; i++) {
        const struct made *made = &r->made[i];
        uint32_t comm = made->call != ROLL_EXPECTED_NONE ? number_of(at, r, made->comm) : 0;
        if (comm == 0) {
            continue;
        }
        const char *op = made->message ? "messages" : roll_op_name(o->build.x->call[made->call].op);
        if (last != NULL && roll_json_int(last, "communicator", 0) == comm &&
            strcmp(roll_json_text(last, "op", ""), op) == 0) {
            json_object_set_new(last, "calls", json_integer(roll_json_int(last, "calls", 0) + 1));
            continue;
        }
        last = json_pack("{s:i,s:s,s:i}", "communicator", (int)comm, "op", op, "calls", 1);
        json_array_append_new(out, last);
    }
    return out;
}

#define PENDING_MOST 64u

/* A call that may be in flight. */
struct pending {
    uint32_t comm; /* number in the report */
    uint16_t stream;
};

struct together {
    struct pending at[PENDING_MOST];
    size_t used;
    json_t *pairs; /* owned; of [number, number] */
};

static void add_pair(json_t *pairs, uint32_t a, uint32_t b)
{
    size_t i;
    json_t *pair;
    json_array_foreach(pairs, i, pair)
    {
        if (json_integer_value(json_array_get(pair, 0)) == (a < b ? a : b) &&
            json_integer_value(json_array_get(pair, 1)) == (a < b ? b : a)) {
            return;
        }
    }
    json_array_append_new(pairs, json_pack("[i,i]", (int)(a < b ? a : b), (int)(a < b ? b : a)));
}

static void forget_stream(struct together *t, uint16_t stream)
{
    size_t used = 0;
    for (size_t i = 0; i < t->used; i++) {
        if (stream != 0 && t->at[i].stream != stream) {
            t->at[used++] = t->at[i];
        }
    }
    t->used = used;
}

/*
 * Which communicators may have calls in flight at the same time: their calls are on different streams, and the host has
 * waited for neither in between. Whether one stream waits for the other by an event is in no record.
 */
static json_t *together_json(const struct ring *r, const struct roll_map *at)
{
    struct together t = {.pairs = json_array()};
    for (size_t i = r->step.first; i < r->step.last; i++) {
        const struct made *made = &r->made[i];
        if (made->call == ROLL_EXPECTED_NONE) {
            forget_stream(&t, made->stream);
            continue;
        }
        uint32_t comm = number_of(at, r, made->comm);
        bool there = false;
        for (size_t k = 0; k < t.used; k++) {
            there = there || (t.at[k].comm == comm && t.at[k].stream == made->stream);
            if (t.at[k].comm != comm && t.at[k].stream != made->stream) {
                add_pair(t.pairs, t.at[k].comm, comm);
            }
        }
        if (!there && comm != 0 && t.used < PENDING_MOST) {
            t.at[t.used++] = (struct pending){comm, made->stream};
        }
    }
    return t.pairs;
}

json_t *roll_rehearse_order_json(const roll_rehearse_order_t *o, roll_feed_t *feed, const json_t *comms)
{
    const struct ring *shown = NULL;
    int rank = 0;
    struct roll_map at = {0};
    json_t *comm, *out = NULL;
    size_t i;
    int err = 0;
    for (size_t k = 0; k < o->rings; k++) {
        struct roll_feed_stream stream;
        struct roll_view_source view;
        bool found = o->ring[k].step.times > 1 && roll_feed_find(feed, o->ring[k].stream, &stream) &&
                     roll_engine_source(roll_feed_engine(feed), stream.source, &view);
        if (found && (shown == NULL || view.info.world_rank < rank)) {
            shown = &o->ring[k];
            rank = view.info.world_rank;
        }
    }
    json_array_foreach((json_t *)comms, i, comm)
    {
        uint64_t key = strtoull(roll_json_text(comm, "key", "0"), NULL, 16);
        err = err == 0 ? roll_map_add(&at, key, (uint32_t)i) : err;
    }
    if (shown != NULL && err == 0) {
        out = json_pack("{s:i,s:o,s:o}", "rank", rank, "calls", calls_json(o, shown, &at), "together",
                        together_json(shown, &at));
    }
    roll_map_fini(&at);
    return out;
}
