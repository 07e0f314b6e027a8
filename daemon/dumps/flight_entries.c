/*
 * flight_entries.c: the calls of a Flight Recorder dump.
 *
 * Calls that were issued together have one number: collectives become one call, messages a batch, and an entry of its
 * own says that they are complete.
 */
#include "daemon/dumps/flight_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <stdio.h>
#include <string.h>

#define ENTRIES_MAX (1u << 24)
#define NEAR        16u /* calls of other groups that may stand between those that were issued as one */

enum amount { AMOUNT_IN, AMOUNT_OUT, AMOUNT_ONE, AMOUNT_NONE, AMOUNT_END };

static const struct named {
    const char *name;
    uint8_t op, amount;
} names[] = {
#define ROLL_FLIGHT_ROW(name, op, amount) {name, ROLL_OP_##op, AMOUNT_##amount},
#include "daemon/dumps/flight.def"
#undef ROLL_FLIGHT_ROW
};

static const struct {
    const char *name;
    uint8_t dtype;
} dtypes[] = {
    {"Char", ROLL_DTYPE_INT8},
    {"Byte", ROLL_DTYPE_UINT8},
    {"Bool", ROLL_DTYPE_UINT8},
    {"Int", ROLL_DTYPE_INT32},
    {"Long", ROLL_DTYPE_INT64},
    {"Half", ROLL_DTYPE_FLOAT16},
    {"Float", ROLL_DTYPE_FLOAT32},
    {"Double", ROLL_DTYPE_FLOAT64},
    {"BFloat16", ROLL_DTYPE_BFLOAT16},
    {"Float8_e4m3fn", ROLL_DTYPE_FLOAT8E4M3},
    {"Float8_e5m2", ROLL_DTYPE_FLOAT8E5M2},
};

/* One entry, its members found by one walk over its keys. */
struct entry {
    const struct roll_value *pg_id, *group, *coll, *p2p, *name, *created, *in, *out, *in_types, *out_types, *state;
    const struct roll_value *is_p2p, *frames, *root, *reduction; /* the last two: of rollcall */
};

#define MEMBER(key, member)                                                                                            \
    {                                                                                                                  \
        key, sizeof(key) - 1, offsetof(struct entry, member)                                                           \
    }
static const struct {
    const char *key;
    size_t bytes, at;
} members[] = {
    MEMBER("pg_id", pg_id),
    MEMBER("process_group", group),
    MEMBER("collective_seq_id", coll),
    MEMBER("p2p_seq_id", p2p),
    MEMBER("profiling_name", name),
    MEMBER("time_created_ns", created),
    MEMBER("input_sizes", in),
    MEMBER("input_dtypes", in_types),
    MEMBER("output_sizes", out),
    MEMBER("output_dtypes", out_types),
    MEMBER("state", state),
    MEMBER("is_p2p", is_p2p),
    MEMBER("frames", frames),
    MEMBER("root", root),
    MEMBER("reduction", reduction),
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

static void find_members(const struct roll_value *map, struct entry *e)
{
    size_t next = 0; /* writers keep one order, so the search begins where the last key was found */
    for (uint32_t i = 0; i + 1 < map->list->used; i += 2) {
        for (size_t k = 0, at = next; k < MEMBERS; k++, at = at + 1 < MEMBERS ? at + 1 : 0) {
            if (roll_value_is_word(&map->list->at[i], members[at].key, members[at].bytes)) {
                *(const struct roll_value **)((char *)e + members[at].at) = &map->list->at[i + 1];
                next = at + 1 < MEMBERS ? at + 1 : 0;
                break;
            }
        }
    }
}

/* Numbers in a list of shapes. */
static size_t dimensions(const struct roll_value *sizes)
{
    size_t n = 0;
    for (size_t i = 0; roll_value_is(sizes, ROLL_VALUE_LIST) && i < sizes->list->used; i++) {
        n += roll_value_count(&sizes->list->at[i]);
    }
    return n;
}

/* Elements of all tensors of a list of shapes; false: the list says nothing, or no such number can be. */
static bool elements(const struct roll_value *sizes, uint64_t *out)
{
    *out = 0;
    if (!roll_value_is(sizes, ROLL_VALUE_LIST)) {
        return false;
    }
    for (size_t i = 0; i < sizes->list->used; i++) {
        const struct roll_value *shape = roll_value_at(sizes, i);
        uint64_t n = 1;
        for (size_t k = 0; k < roll_value_count(shape); k++) {
            int64_t dim = roll_value_integer(roll_value_at(shape, k), -1);
            if (dim < 0 || __builtin_mul_overflow(n, (uint64_t)dim, &n)) {
                return false;
            }
        }
        if (!roll_value_is(shape, ROLL_VALUE_LIST) || __builtin_add_overflow(*out, n, out)) {
            return false;
        }
    }
    return true;
}

static uint8_t datatype(const struct roll_value *types)
{
    const struct roll_value *first = roll_value_is(types, ROLL_VALUE_LIST) ? roll_value_at(types, 0) : types;
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (roll_value_says(first, dtypes[i].name)) {
            return dtypes[i].dtype;
        }
    }
    return ROLL_DTYPE_NONE;
}

/* What is behind the backend's name in "nccl:all_reduce", without what is behind a blank ("send 0->1"). */
static const struct named *call_named(const struct roll_value *v)
{
    const char *text = v->text, *colon = memchr(text, ':', v->bytes);
    size_t bytes = v->bytes - (colon != NULL ? (size_t)(colon + 1 - text) : 0);
    text = colon != NULL ? colon + 1 : text;
    const char *blank = memchr(text, ' ', bytes);
    bytes = blank != NULL ? (size_t)(blank - text) : bytes;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i].name) == bytes && memcmp(names[i].name, text, bytes) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

/* The other end in "nccl:send 0->1" and "nccl:recv 3<-0": the second number. -1: there is none. */
static int32_t peer_of(const struct roll_value *v)
{
    char text[64];
    int me, peer;
    roll_value_copy(v, text, sizeof(text));
    const char *blank = strchr(text, ' ');
    if (blank != NULL && (sscanf(blank, " %d->%d", &me, &peer) == 2 || sscanf(blank, " %d<-%d", &me, &peer) == 2)) {
        return peer;
    }
    return -1;
}

static int note_id(struct flight_reading *r, const struct roll_value *pg_id, uint32_t group)
{
    int64_t id = roll_value_integer(pg_id, -1);
    if (id < 0 || id >= FLIGHT_GROUPS_MAX) {
        return 0;
    }
    int err = ROLL_GROW_ZERO(r->id_group, r->id_room, (size_t)id + 1);
    if (err == 0) {
        r->id_group[id] = group + 1;
        r->ids = r->ids > (size_t)id ? r->ids : (size_t)id + 1;
    }
    return err;
}

/* The newest call on a group, if it is one of the newest of all; NULL: it is not. Calls that are issued as one on one
 * thread may have some of another thread in between. */
static struct roll_dump_call *newest_on(struct roll_dump *d, uint32_t group)
{
    for (size_t i = d->calls; i > 0 && d->calls - i < NEAR; i--) {
        if (d->call[i - 1].group == group) {
            return &d->call[i - 1];
        }
    }
    return NULL;
}

/* A collective that was issued together with the one before it has its number: the two are one call to the engine. */
static bool joins(struct roll_dump *d, const struct roll_dump_call *c)
{
    struct roll_dump_call *before = newest_on(d, c->group);
    if (before == NULL || c->rec.op == ROLL_OP_SEND || c->rec.op == ROLL_OP_RECV) {
        return false;
    }
    bool same = before->rec.seq == c->rec.seq && before->rec.op != ROLL_OP_SEND && before->rec.op != ROLL_OP_RECV;
    if (same) {
        before->parts++;
        before->complete = before->complete && c->complete;
        before->rec.count += c->rec.count;
        before->rec.flags |= c->rec.flags & ROLL_FLAG_UNSIZED;
        before->rec.dtype = before->rec.dtype == c->rec.dtype ? c->rec.dtype : ROLL_DTYPE_NONE;
        if (before->rec.op != c->rec.op) {
            before->rec.flags |= ROLL_FLAG_UNSIZED;
        }
    }
    return same;
}

static void size_up(const struct entry *e, const struct named *named, struct roll_record *rec)
{
    uint64_t count = 1;
    const struct roll_value *sizes = named->amount == AMOUNT_OUT ? e->out : e->in;
    bool sized = named->amount == AMOUNT_ONE || elements(sizes, &count);
    if (named->amount == AMOUNT_ONE) {
        count = 1;
    } else {
        rec->dtype = datatype(named->amount == AMOUNT_OUT ? e->out_types : e->in_types);
    }
    if (!sized || named->amount == AMOUNT_NONE || named->amount == AMOUNT_END) {
        rec->flags |= ROLL_FLAG_UNSIZED;
        count = 1;
    }
    rec->count = count;
}

/* The batch of messages that this one, the next call, belongs to: they have one number. */
static uint32_t unit_of(struct flight_reading *r, uint32_t group, uint32_t coll, uint32_t p2p)
{
    struct roll_dump *d = r->dump;
    struct roll_dump_call *before = d->calls > 0 ? &d->call[d->calls - 1] : NULL;
    bool same =
        r->batch_open && before != NULL && before->group == group && r->batch_coll == coll && r->batch_p2p == p2p;
    r->batch_first = same ? r->batch_first : d->calls;
    r->batch_open = true;
    r->batch_coll = coll;
    r->batch_p2p = p2p;
    if (!same) {
        return 0;
    }
    before->unit = before->unit != 0 ? before->unit : ++r->units;
    return before->unit;
}

/* Collectives that were issued together end: the recorder says of their end alone whether they are complete. */
static void end_collectives(struct flight_reading *r, uint32_t group, uint32_t coll, bool complete)
{
    uint32_t taken = group < r->batch_room ? r->batches[group] : 0;
    struct roll_dump_call *c = newest_on(r->dump, group);
    if (c != NULL && roll_op_class(c->rec.op) == ROLL_CLASS_COLL && c->rec.seq + taken == coll) {
        c->ended = true;
        c->complete = c->complete || complete;
    }
}

/*
 * A batch of messages ends: whether it is complete, its end says. In format 2.1 the batch has taken the number of a
 * collective, which it does on its own ranks only: later collectives are counted without it.
 */
static int end_batch(struct flight_reading *r, uint32_t group, uint32_t coll, bool complete)
{
    struct roll_dump *d = r->dump;
    bool ours = r->batch_open && r->batch_coll == coll && d->calls > 0 && d->call[d->calls - 1].group == group;
    for (size_t i = r->batch_first; ours && i < d->calls; i++) {
        d->call[i].complete = d->call[i].complete || complete;
    }
    r->batch_open = false;
    if (!ours) {
        end_collectives(r, group, coll, complete);
    }
    if (!ours || r->batch_p2p != 0) {
        return 0;
    }
    int err = ROLL_GROW_ZERO(r->batches, r->batch_room, (size_t)group + 1);
    if (err == 0) {
        r->batches[group]++;
    }
    return err;
}

/* A collective of a name that is not known here: what it is, the dumps of others may say. */
static int keep_unknown(struct flight_reading *r, const struct entry *e, uint32_t group, uint32_t coll)
{
    struct roll_dump *d = r->dump;
    uint32_t taken = group < r->batch_room ? r->batches[group] : 0;
    struct roll_dump_unknown one = {.call = {.group = group, .complete = roll_value_says(e->state, "completed")},
                                    .before = d->calls};
    one.call.rec.enter_ns = (uint64_t)roll_value_integer(e->created, 0);
    one.call.rec.seq = taken < coll ? coll - taken : 0;
    int err = flight_keep_text(d, e->name, &one.name);
    err = err != 0 ? err : flight_read_site(r, e->frames, &one.call.site);
    err = err != 0 ? err : ROLL_GROW(d->unknown, d->unknown_room, d->unknowns + 1);
    if (err == 0) {
        d->unknown[d->unknowns++] = one;
    }
    return err;
}

static int read_entry(struct flight_reading *r, const struct roll_value *map)
{
    struct roll_dump *d = r->dump;
    struct entry e = {.pg_id = NULL};
    if (!roll_value_is(map, ROLL_VALUE_MAP)) {
        d->odd++;
        return 0;
    }
    int err = flight_spend(r, 1 + 16 * flight_extent(map)); /* each key is compared with those that are looked for */
    if (err != 0) {
        return err;
    }
    find_members(map, &e);
    err = flight_spend(r, flight_extent(e.in) + flight_extent(e.out) + flight_extent(e.frames) + flight_extent(e.name) +
                              dimensions(e.in) + dimensions(e.out));
    if (err != 0) {
        return err;
    }
    const struct roll_value *name = roll_value_is(e.group, ROLL_VALUE_LIST) ? roll_value_at(e.group, 0) : e.group;
    uint32_t coll = flight_number(e.coll), p2p = flight_number(e.p2p), number;
    if (!roll_value_is(name, ROLL_VALUE_TEXT) || !roll_value_is(e.name, ROLL_VALUE_TEXT) ||
        coll == ROLL_DUMP_NO_NUMBER || roll_value_integer(e.created, -1) < 0) {
        d->odd++;
        return 0;
    }
    err = flight_group(r, name, &number);
    err = err != 0 ? err : note_id(r, e.pg_id, number);
    if (err != 0) {
        return err;
    }
    struct roll_dump_group *g = &d->group[number];
    g->issued = g->issued == ROLL_DUMP_NO_NUMBER || coll > g->issued ? coll : g->issued;
    r->full = r->full || roll_value_says(e.state, "completed");
    const struct named *named = call_named(e.name);
    bool message = named != NULL && (named->op == ROLL_OP_SEND || named->op == ROLL_OP_RECV);
    if (named != NULL && named->op == ROLL_OP_NONE) {
        return end_batch(r, number, coll, roll_value_says(e.state, "completed"));
    }
    r->batch_open = r->batch_open && message;
    if (roll_value_is(e.is_p2p, ROLL_VALUE_TRUE) && !message) {
        d->odd += named == NULL;
        return 0; /* its number stays: where later calls come, it counts as made */
    }
    if (named == NULL) {
        return keep_unknown(r, &e, number, coll);
    }
    uint32_t taken = number < r->batch_room ? r->batches[number] : 0;
    struct roll_dump_call c = {.group = number, .complete = roll_value_says(e.state, "completed")};
    c.rec = (struct roll_record){.enter_ns = (uint64_t)roll_value_integer(e.created, 0),
                                 .seq = message        ? p2p
                                        : taken < coll ? coll - taken
                                                       : 0,
                                 .peer = message ? peer_of(e.name) : ROLL_PEER_NONE,
                                 .step = ROLL_STEP_NONE,
                                 .layer = ROLL_LAYER_NONE,
                                 .thread = 1,
                                 .op = named->op,
                                 .dtype = ROLL_DTYPE_NONE,
                                 .redop = ROLL_RED_NONE};
    size_up(&e, named, &c.rec);
    int64_t root = roll_value_integer(e.root, -1), reduction = roll_value_integer(e.reduction, -1);
    c.rec.peer = !message && root >= 0 && root < ROLL_DUMP_RANKS_MAX ? (int32_t)root : c.rec.peer;
    c.rec.redop = reduction >= 0 && reduction < ROLL_RED_LIMIT ? (uint8_t)reduction : c.rec.redop;
    if (message && (c.rec.peer < 0 || c.rec.seq == ROLL_DUMP_NO_NUMBER)) {
        d->odd++;
        return 0;
    }
    if (joins(d, &c)) {
        return 0;
    }
    err = flight_read_site(r, e.frames, &c.site);
    err = err != 0 ? err : ROLL_GROW(d->call, d->call_room, d->calls + 1);
    if (err == 0) {
        c.unit = message ? unit_of(r, number, coll, p2p) : 0;
        d->call[d->calls++] = c;
    }
    return err;
}

/*
 * Collectives that were issued together, and of which some are not here: a window may begin in the midst of them, and
 * a dump may be written while they are issued. What they are in all is not known then, so they are not compared.
 */
static void leave_out_parts(struct roll_dump *d)
{
    for (size_t i = 0; i < d->calls; i++) {
        struct roll_dump_call *c = &d->call[i];
        if (i == 0 && !d->whole && (c->parts > 0 || c->ended)) {
            c->rec.seq = ROLL_DUMP_NO_NUMBER;
        } else if (c->parts > 0 && !c->ended) {
            c->rec.flags |= ROLL_FLAG_UNSIZED;
        }
    }
}

int flight_read_entries(struct flight_reading *r, const struct roll_value *entries)
{
    int err = 0;
    size_t n = roll_value_count(entries);
    if (n > ENTRIES_MAX) {
        return ROLL_E_LIMIT;
    }
    for (size_t i = 0; i < n && err == 0; i++) {
        err = read_entry(r, roll_value_at(entries, i));
    }
    /* The recorder numbers all calls of the process from 0. */
    const struct roll_value *first = roll_value_get(roll_value_at(entries, 0), "record_id");
    r->dump->whole = n > 0 && roll_value_integer(first, -1) == 0 && r->full;
    leave_out_parts(r->dump);
    /* Of a window that began later nobody knows how many batches there were before it. */
    for (size_t i = 0; i < r->dump->calls && !r->dump->whole; i++) {
        struct roll_dump_call *c = &r->dump->call[i];
        bool numbered = c->group >= r->batch_room || r->batches[c->group] == 0;
        c->rec.seq = numbered ? c->rec.seq : ROLL_DUMP_NO_NUMBER;
    }
    for (size_t i = 0; i < r->dump->groups && !r->dump->whole; i++) {
        bool numbered = i >= r->batch_room || r->batches[i] == 0;
        r->dump->group[i].issued = numbered ? r->dump->group[i].issued : ROLL_DUMP_NO_NUMBER;
    }
    return err;
}
