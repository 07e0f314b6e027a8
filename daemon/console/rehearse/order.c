/*
 * order.c: the calls of a rehearsal in the order in which each rank made them, and what a live job is expected to do by
 * that.
 *
 * Messages of an exchange in which a rank sends or receives several at once (an all-to-all of uneven parts) follow the
 * data: how many there are, to whom and how long. Such messages, and those of a communicator on which a rehearsal saw
 * none, are no part of what is expected.
 */
#include "daemon/console/rehearse/order.h"
#include "daemon/base/array.h"
#include "daemon/console/text.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_MOST (1u << 22) /* of one rank: 64 MiB */

roll_rehearse_order_t *roll_rehearse_order_new(void)
{
    roll_rehearse_order_t *o = calloc(1, sizeof(*o));
    if (o != NULL && roll_expect_begin(&o->build, 0) != 0) {
        roll_rehearse_order_destroy(&o);
    }
    return o;
}

void roll_rehearse_order_destroy(roll_rehearse_order_t **order)
{
    struct roll_rehearse_order *o = *order;
    *order = NULL;
    for (size_t i = 0; o != NULL && i < o->rings; i++) {
        for (size_t k = 0; k < o->ring[i].comms; k++) {
            free(o->ring[i].comm[k].step);
        }
        free(o->ring[i].comm);
        free(o->ring[i].made);
    }
    if (o != NULL) {
        free(o->ring);
        free(o->searched);
        roll_map_fini(&o->searched_at);
        roll_expect_drop(&o->build);
    }
    free(o);
}

int roll_rehearse_order_comm(roll_rehearse_order_t *o, size_t ring, uint64_t stream, uint32_t id,
                             const struct roll_def_comm *def)
{
    int err = ROLL_GROW_ZERO(o->ring, o->rings, ring + 1);
    err = err == 0 ? ROLL_GROW_ZERO(o->ring[ring].comm, o->ring[ring].comms, (size_t)id + 1) : err;
    if (err == 0) {
        o->ring[ring].stream = stream;
        o->ring[ring].comm[id].def = *def;
    }
    return err;
}

/* Notes a message, and whether it is one of several of its group that go the same way. */
static void note_message(struct local *comm, const struct roll_record *rec)
{
    bool same = rec->group != 0 && rec->group == comm->group && rec->thread == comm->thread && comm->messages > 0;
    uint32_t *count = rec->op == ROLL_OP_SEND ? &comm->sends : &comm->receives;
    if (!same) {
        comm->sends = comm->receives = 0;
    }
    comm->group = rec->group;
    comm->thread = rec->thread;
    comm->exchanges = comm->exchanges || ++*count > 1;
    comm->messages++;
}

static bool is_call(const struct roll_record *rec)
{
    return roll_expected_counts(rec) ||
           (rec->count == 0 && (roll_op_class(rec->op) == ROLL_CLASS_COLL || roll_op_class(rec->op) == ROLL_CLASS_P2P));
}

static bool is_wait(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_DEVICE_SYNC || (rec->op == ROLL_OP_STREAM_SYNC && rec->stream != 0);
}

/* When a call was made, from the first one of its rank on. */
static uint32_t since_first(struct ring *r, const struct roll_record *rec)
{
    r->first_ns = r->mades == 0 ? rec->enter_ns : r->first_ns;
    uint64_t us = rec->enter_ns > r->first_ns ? (rec->enter_ns - r->first_ns) / 1000 : 0;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Notes that the host waits for a stream, behind some call: what is on that stream is over then. */
static int note_wait(struct roll_rehearse_order *o, struct ring *r, const struct roll_record *rec)
{
    const struct made wait = {.call = ROLL_EXPECTED_NONE,
                              .stream = rec->op == ROLL_OP_DEVICE_SYNC ? 0 : rec->stream,
                              .at_us = r->mades > 0 ? since_first(r, rec) : 0};
    bool again =
        r->mades > 0 && r->made[r->mades - 1].call == ROLL_EXPECTED_NONE && r->made[r->mades - 1].stream == wait.stream;
    if (r->mades == 0 || again || r->mades == CALLS_MOST) {
        o->cut = o->cut || r->mades == CALLS_MOST;
        return 0;
    }
    int err = ROLL_GROW(r->made, r->room, r->mades + 1);
    if (err == 0) {
        r->made[r->mades++] = wait;
    }
    return err;
}

int roll_rehearse_order_call(roll_rehearse_order_t *o, size_t ring, const struct roll_record *rec)
{
    struct ring *r = ring < o->rings ? &o->ring[ring] : NULL;
    if (r != NULL && is_wait(rec)) {
        return note_wait(o, r, rec);
    }
    if (r == NULL || rec->comm >= r->comms || r->comm[rec->comm].def.key == 0 || !is_call(rec)) {
        return 0;
    }
    if (r->mades == CALLS_MOST) {
        o->cut = true;
        return 0;
    }
    struct local *comm = &r->comm[rec->comm];
    struct roll_expected_call call = roll_expected_of(rec, (uint32_t)comm->def.rank, (uint32_t)comm->def.nranks);
    uint32_t id = 0;
    int err = roll_expect_call(&o->build, &call, &id);
    err = err == 0 ? ROLL_GROW(r->made, r->room, r->mades + 1) : err;
    if (err != 0) {
        return err;
    }
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    uint32_t at_us = since_first(r, rec);
    r->made[r->mades++] = (struct made){id, rec->comm, rec->stream, message, rec->count == 0, at_us};
    if (message) {
        note_message(comm, rec);
    }
    return 0;
}

/* the ranks */

/* Of each ring the rank in the job. */
static void find_worlds(struct roll_rehearse_order *o, roll_feed_t *feed, uint32_t *ranks)
{
    *ranks = 0;
    for (size_t i = 0; i < o->rings; i++) {
        struct roll_feed_stream stream;
        struct roll_view_source view;
        o->ring[i].world = ROLL_EXPECTED_NONE;
        if (o->ring[i].stream != 0 && roll_feed_find(feed, o->ring[i].stream, &stream) &&
            roll_engine_source(roll_feed_engine(feed), stream.source, &view)) {
            o->ring[i].world = (uint32_t)view.info.world_rank;
            *ranks = o->ring[i].world + 1 > *ranks ? o->ring[i].world + 1 : *ranks;
        }
    }
}

/* Where a communicator is met: its rings, by its key. */
struct met {
    uint32_t ring, id;
};

struct meeting {
    struct met *met; /* owned */
    size_t mets, room;
    struct roll_map at;
    const json_t *comms; /* of the report; borrowed */
    struct roll_map comm_at;
};

static int find_meetings(const struct roll_rehearse_order *o, struct meeting *m)
{
    int err = 0;
    for (size_t i = 0; i < o->rings && err == 0; i++) {
        for (size_t k = 0; k < o->ring[i].comms && err == 0; k++) {
            uint64_t key = o->ring[i].comm[k].def.key;
            if (key == 0 || o->ring[i].world == ROLL_EXPECTED_NONE) {
                continue;
            }
            err = ROLL_GROW(m->met, m->room, m->mets + 1);
            err = err == 0 ? roll_map_add(&m->at, key, (uint32_t)m->mets) : err;
            if (err == 0) {
                m->met[m->mets++] = (struct met){(uint32_t)i, (uint32_t)k};
            }
        }
    }
    return err;
}

/* communicators */

/* The report's communicators, by key. */
static int index_comms(const json_t *comms, struct roll_map *at)
{
    size_t i;
    json_t *comm;
    int err = 0;
    json_array_foreach((json_t *)comms, i, comm)
    {
        err = err == 0 ? roll_map_add(at, strtoull(roll_json_text(comm, "key", "0"), NULL, 16), (uint32_t)i) : err;
    }
    return err;
}

/* Communicators of the same label, size and place that the rank had before this one. */
static uint32_t nth(const struct meeting *m, const struct ring *r, uint32_t id, const char *label)
{
    const struct roll_def_comm *mine = &r->comm[id].def;
    uint32_t n = 0;
    for (uint32_t i = 0; i < id; i++) {
        const struct roll_def_comm *other = &r->comm[i].def;
        if (other->key != 0 && other->nranks == mine->nranks && other->rank == mine->rank) {
            uint32_t at = roll_map_get(&m->comm_at, other->key);
            const json_t *comm = at == ROLL_MAP_NONE ? NULL : json_array_get(m->comms, at);
            n += strcmp(roll_json_text(comm, "label", ""), label) == 0;
        }
    }
    return n;
}

static int sequence_of(struct roll_rehearse_order *o, const struct ring *r, uint32_t id, bool messages, uint32_t *out)
{
    uint32_t *call = malloc((r->mades + 1) * sizeof(*call));
    size_t calls = 0;
    if (call == NULL) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < r->mades; i++) {
        const struct made *made = &r->made[i];
        bool counts = made->call != ROLL_EXPECTED_NONE && !made->empty && (messages || !made->message);
        if (counts && made->comm == id) {
            call[calls++] = r->made[i].call;
        }
    }
    int err = roll_expect_sequence(&o->build, call, calls, out);
    free(call);
    return err;
}

/* "CommSplit of world, color 1 at ..." without the colour, in which siblings differ. */
static void without_colour(const char *made, char *out, size_t size)
{
    const char *at = strstr(made, ", color ");
    const char *rest = at != NULL ? at + strlen(", color ") : NULL;
    if (at == NULL) {
        snprintf(out, size, "%s", made);
        return;
    }
    rest += strspn(rest, "-0123456789");
    snprintf(out, size, "%.*s%s", (int)(at - made), made, rest);
}

/* Adds one communicator of the report, unless some of its members were not seen. */
static int add_comm(struct roll_rehearse_order *o, const struct meeting *meeting, const json_t *comm)
{
    uint64_t key = strtoull(roll_json_text(comm, "key", "0"), NULL, 16);
    uint32_t size = (uint32_t)roll_json_int(comm, "size", 0), seen = 0, messages = 0;
    char made[512];
    bool exchanges = false;
    struct met *met = calloc((size_t)size + 1, sizeof(*met));
    bool *has = calloc((size_t)size + 1, sizeof(*has));
    struct roll_expected_member *member = calloc((size_t)size + 1, sizeof(*member));
    int err = met != NULL && has != NULL && member != NULL ? 0 : ROLL_E_NOMEM;
    size_t step = 0;
    for (uint32_t i; err == 0 && (i = roll_map_each(&meeting->at, key, &step)) != ROLL_MAP_NONE;) {
        const struct local *local = &o->ring[meeting->met[i].ring].comm[meeting->met[i].id];
        if (local->def.rank < 0 || (uint32_t)local->def.rank >= size) {
            continue;
        }
        seen += !has[local->def.rank];
        has[local->def.rank] = true;
        met[local->def.rank] = meeting->met[i];
        exchanges = exchanges || local->exchanges;
        messages += local->messages;
    }
    without_colour(roll_json_text(comm, "made", ""), made, sizeof(made));
    const char *name = roll_json_text(comm, "name", "");
    bool is_label = strcmp(name, roll_json_text(comm, "label", "")) == 0;
    struct roll_expected_comm mine = {.label = (char *)roll_json_text(comm, "label", ""),
                                      .name = (char *)(is_label ? "" : name),
                                      .role = (char *)roll_json_text(comm, "role", ""),
                                      .made = made,
                                      .size = size,
                                      .messages = !exchanges && messages > 0};
    bool whole = seen == size && size > 0;
    for (uint32_t r = 0; err == 0 && whole && r < size; r++) {
        const struct ring *ring = &o->ring[met[r].ring];
        member[r].world = ring->world;
        member[r].nth = nth(meeting, ring, met[r].id, mine.label);
        err = sequence_of(o, ring, met[r].id, mine.messages, &member[r].sequence);
    }
    err = err == 0 && whole ? roll_expect_comm(&o->build, &mine, member) : err;
    free(met);
    free(has);
    free(member);
    return err;
}

static int add_memory(struct roll_expected *x, const json_t *memory)
{
    size_t i, k;
    json_t *rank, *device;
    free(x->device_bytes);
    x->device_bytes = calloc((size_t)x->ranks + 1, sizeof(*x->device_bytes));
    json_array_foreach((json_t *)memory, i, rank)
    {
        int64_t world = roll_json_int(rank, "rank", -1);
        json_array_foreach(json_object_get(rank, "devices"), k, device)
        {
            uint64_t peak = (uint64_t)roll_json_int(device, "peak_bytes", 0);
            if (x->device_bytes != NULL && world >= 0 && world < (int64_t)x->ranks && peak > x->device_bytes[world]) {
                x->device_bytes[world] = peak;
            }
        }
    }
    return x->device_bytes != NULL ? 0 : ROLL_E_NOMEM;
}

int roll_rehearse_order_expected(roll_rehearse_order_t *o, roll_feed_t *feed, const json_t *report,
                                 struct roll_expected **out)
{
    const json_t *comms = json_object_get(report, "communicators");
    struct meeting meeting = {.comms = comms};
    size_t i;
    json_t *comm;
    *out = NULL;
    if (o->cut) {
        return ROLL_E_LIMIT;
    }
    find_worlds(o, feed, &o->build.x->ranks);
    o->build.x->steps = (uint64_t)roll_json_int(report, "steps", 0);
    int err = find_meetings(o, &meeting);
    err = err == 0 ? index_comms(comms, &meeting.comm_at) : err;
    json_array_foreach((json_t *)comms, i, comm)
    {
        err = err == 0 ? add_comm(o, &meeting, comm) : err;
    }
    err = err == 0 ? add_memory(o->build.x, json_object_get(report, "memory")) : err;
    err = err == 0 ? roll_expect_end(&o->build, out) : err;
    free(meeting.met);
    roll_map_fini(&meeting.at);
    roll_map_fini(&meeting.comm_at);
    return err;
}
