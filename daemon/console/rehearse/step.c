/*
 * step.c: one step of a rehearsed job: found where the job told none, and the order of its calls.
 *
 * A step is what repeats in all calls of a rank, over its communicators. On one communicator it may be a layer that
 * repeats, so each communicator by itself was rejected.
 */
#include "daemon/base/array.h"
#include "daemon/console/rehearse/order.h"
#include "daemon/console/text.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The calls of a rank as numbers, equal for equal calls on one communicator; *at: where each stands in `made`. */
static int number_calls(struct roll_rehearse_order *o, const struct ring *r, bool with_counts, uint32_t *id,
                        uint32_t *at, size_t *calls)
{
    struct roll_map known = {0};
    uint32_t numbers = 0;
    int err = 0;
    *calls = 0;
    for (size_t i = 0; i < r->mades && err == 0; i++) {
        uint32_t call = r->made[i].call;
        if (call == ROLL_EXPECTED_NONE) {
            continue;
        }
        if (!with_counts) {
            struct roll_expected_call without = o->build.x->call[call];
            without.count = ROLL_EXPECTED_ANY;
            err = roll_expect_call(&o->build, &without, &call);
        }
        uint64_t key = (uint64_t)r->made[i].comm << 32 | call;
        uint32_t number = err == 0 ? roll_map_get(&known, key) : 0;
        if (err == 0 && number == ROLL_MAP_NONE) {
            number = numbers++;
            err = roll_map_add(&known, key, number);
        }
        id[*calls] = number;
        at[(*calls)++] = (uint32_t)i;
    }
    roll_map_fini(&known);
    return err;
}

/* Finds the step of one rank: the part that repeats and holds most of its calls. True: that is half of them. */
static bool find_step(struct roll_rehearse_order *o, struct ring *r, bool with_counts)
{
    uint32_t *id = calloc(r->mades + 1, sizeof(*id)), *at = calloc(r->mades + 1, sizeof(*at));
    struct roll_expected_part *part = NULL;
    size_t calls = 0, parts = 0;
    uint64_t most = 0;
    bool there = id != NULL && at != NULL && number_calls(o, r, with_counts, id, at, &calls) == 0 &&
                 roll_repeats_find(id, calls, &part, &parts) == 0;
    for (size_t i = 0; there && i < parts; i++) {
        uint64_t covered = (uint64_t)part[i].calls * part[i].times;
        if (part[i].times > 1 && covered > most) {
            most = covered;
            size_t end = (size_t)part[i].first + part[i].calls;
            r->step = (struct roll_rehearse_step){at[part[i].first], end < calls ? at[end] : r->mades, part[i].times};
        }
    }
    free(part);
    free(id);
    free(at);
    return most * 2 >= calls && most > 0;
}

void roll_rehearse_order_learn(roll_rehearse_order_t *o)
{
    for (size_t i = 0; i < o->rings; i++) {
        if (!find_step(o, &o->ring[i], true)) {
            (void)find_step(o, &o->ring[i], false); /* amounts that follow the data */
        }
    }
}

uint32_t roll_rehearse_order_steps(const roll_rehearse_order_t *o)
{
    uint32_t most = 0;
    for (size_t i = 0; i < o->rings; i++) {
        most = o->ring[i].step.times > most ? o->ring[i].step.times : most;
    }
    return most;
}

void roll_rehearse_order_step(const roll_rehearse_order_t *o, size_t ring, uint32_t comm, unsigned op, uint64_t *calls,
                              uint64_t *bytes)
{
    const struct ring *r = ring < o->rings ? &o->ring[ring] : NULL;
    *calls = *bytes = 0;
    for (size_t i = r != NULL ? r->step.first : 0; r != NULL && r->step.times > 1 && i < r->step.last; i++) {
        const struct made *made = &r->made[i];
        if (made->call != ROLL_EXPECTED_NONE && made->comm == comm && o->build.x->call[made->call].op == op) {
            const struct roll_expected_call *call = &o->build.x->call[made->call];
            ++*calls;
            *bytes += call->count == ROLL_EXPECTED_ANY ? 0 : call->count * roll_dtype_bytes(call->dtype);
        }
    }
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
