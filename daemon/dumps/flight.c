/*
 * flight.c: what PyTorch's Flight Recorder keeps, as calls.
 *
 * Facts of the format, versions 2.4 to 2.11: a pickle or JSON of one mapping with `version`, `pg_config` (the rank's
 * groups by name, with their ranks as a text), `pg_status` (how far each group has come, by a number of the process
 * that stands nowhere in pg_config) and `entries`, oldest first. The recorder is a ring for all groups together, so a
 * busy group pushes a quiet one out; some writers leave completed calls out. A dump does not say which rank wrote it.
 *
 * Not kept by the recorder: root, reduction, the splits of an all-to-all, streams, and what the host does.
 */
#include "daemon/dumps/flight.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"
#include "trace/python_own.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MAX    65536u
#define ENTRIES_MAX   (1u << 24)
#define NEAR          16u /* calls of other groups that may stand between those that were issued as one */
#define WORK_PER_BYTE 64u /* in a dump there are some bytes for each thing that is read */
#define WORK_LEAST    ((size_t)1 << 24)
#define LIST_MAX      8192u /* groups by number and by name are laid side by side up to this many */

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
    const struct roll_value *completed, *is_p2p, *frames, *retired, *root, *reduction; /* the last two: of rollcall */
};

struct reading {
    struct roll_dump *dump;
    struct roll_map group_at; /* hash of a name -> number of the group */
    struct roll_map line_at, site_at;
    uint32_t units;
    uint32_t *id_group; /* pg_id -> 1 + number of its group, as far as entries show it */
    size_t ids, id_room;
    /* The newest calls, as far as they are messages that are being issued as one: where they begin, their numbers. */
    bool batch_open;
    size_t batch_first;
    uint32_t batch_coll, batch_p2p;
    uint32_t *batches; /* by group: batches that took the number of a collective (format 2.1) */
    size_t batch_room;
    bool full; /* a completed call is among the entries */
    /* What may still be read. Parts of a file may stand in many places at once (a pickle can say so), so that the size
     * of the file alone is no bound of the work. */
    size_t work;
};

static uint64_t hash_text(uint64_t h, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    return (h ^ bytes) * 0x9e3779b97f4a7c15u + 1;
}

/* Takes so much of the work that may still be done. 0, LIMIT. */
static int spend(struct reading *r, size_t work)
{
    if (work > r->work) {
        r->work = 0;
        return ROLL_E_LIMIT;
    }
    r->work -= work;
    return 0;
}

/* How much there is to read in a value itself. */
static size_t extent(const struct roll_value *v)
{
    return roll_value_is(v, ROLL_VALUE_TEXT) ? v->bytes : roll_value_count(v);
}

/* groups */

/* The numbers in a text "[0, 1]". Each rank's dump holds the list of all ranks, so this loop is where most bytes of a
 * large job pass: room is taken once, and few steps are made for a digit. */
static int read_ranks_of_text(const struct roll_value *v, struct roll_dump_group *g)
{
    const char *at = v->text, *end = at + v->bytes;
    size_t room = 0, commas = 0;
    for (const char *p = at; p < end; p++) {
        commas += *p == ',';
    }
    int err = ROLL_GROW(g->rank, room, commas + 1);
    while (at < end && err == 0) {
        uint32_t number = 0;
        unsigned digit = (unsigned char)*at - (unsigned)'0';
        if (digit > 9) {
            if (*at != ' ' && *at != ',' && *at != '[' && *at != ']') {
                return ROLL_E_CORRUPT;
            }
            at++;
            continue;
        }
        while (digit <= 9 && number < ROLL_DUMP_RANKS_MAX) {
            number = number * 10 + digit;
            at++;
            digit = at < end ? (unsigned char)*at - (unsigned)'0' : 10;
        }
        if (number >= ROLL_DUMP_RANKS_MAX) {
            return ROLL_E_CORRUPT;
        }
        err = ROLL_GROW(g->rank, room, g->ranks + 1u); /* numbers may stand without a comma between them */
        if (err == 0) {
            g->rank[g->ranks++] = number;
        }
        at += end - at >= 2 && at[0] == ',' && at[1] == ' ' ? 2 : 0;
    }
    return err;
}

/* The same, or a list of numbers. */
static int read_ranks(const struct roll_value *v, struct roll_dump_group *g)
{
    size_t room = 0;
    if (roll_value_is(v, ROLL_VALUE_LIST)) {
        for (size_t i = 0; i < roll_value_count(v); i++) {
            int64_t rank = roll_value_integer(roll_value_at(v, i), -1);
            int err =
                rank < 0 || rank >= ROLL_DUMP_RANKS_MAX ? ROLL_E_CORRUPT : ROLL_GROW(g->rank, room, g->ranks + 1u);
            if (err != 0) {
                return err;
            }
            g->rank[g->ranks++] = (uint32_t)rank;
        }
        return 0;
    }
    return roll_value_is(v, ROLL_VALUE_TEXT) ? read_ranks_of_text(v, g) : 0;
}

static void read_label(const struct roll_value *desc, struct roll_dump_group *g)
{
    if (!roll_value_says(desc, "undefined")) {
        roll_value_copy(desc, g->label, sizeof(g->label));
    }
}

/* The number of the group with this name, which is made without members where the configuration lacks it. */
static int group_of(struct reading *r, const struct roll_value *name, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    int err = spend(r, name->bytes);
    if (err != 0) {
        return err;
    }
    uint64_t key = hash_text(0, name->text, name->bytes);
    *out = roll_map_get(&r->group_at, key);
    if (*out != ROLL_MAP_NONE) {
        return 0;
    }
    err = d->groups >= GROUPS_MAX ? ROLL_E_LIMIT : ROLL_GROW(d->group, d->group_room, d->groups + 1);
    err = err != 0 ? err : roll_map_reserve(&r->group_at);
    if (err != 0) {
        return err;
    }
    struct roll_dump_group *g = &d->group[d->groups];
    *g = (struct roll_dump_group){
        .self = -1, .issued = ROLL_DUMP_NO_NUMBER, .enqueued = ROLL_DUMP_NO_NUMBER, .over = ROLL_DUMP_NO_NUMBER};
    roll_value_copy(name, g->name, sizeof(g->name));
    *out = (uint32_t)d->groups++;
    (void)roll_map_add(&r->group_at, key, *out);
    return 0;
}

static int read_groups(struct reading *r, const struct roll_value *config)
{
    struct roll_dump *d = r->dump;
    uint32_t number;
    int err = 0;
    for (uint32_t i = 0; roll_value_is(config, ROLL_VALUE_MAP) && i + 1 < config->list->used && err == 0; i += 2) {
        const struct roll_value *name = &config->list->at[i], *one = &config->list->at[i + 1];
        if (!roll_value_is(name, ROLL_VALUE_TEXT) || !roll_value_is(one, ROLL_VALUE_MAP)) {
            return ROLL_E_CORRUPT;
        }
        err = group_of(r, name, &number);
        struct roll_dump_group *g = err == 0 ? &d->group[number] : NULL;
        if (g != NULL && g->ranks == 0) {
            read_label(roll_value_get(one, "desc"), g);
            err = spend(r, extent(one) + extent(roll_value_get(one, "ranks")));
            err = err != 0 ? err : read_ranks(roll_value_get(one, "ranks"), g);
            bool all = strcmp(g->label, "default_pg") == 0 || strcmp(g->name, "0") == 0;
            d->world = all && g->ranks > d->world ? g->ranks : d->world;
        }
    }
    return err;
}

/* places of the program */

static bool is_library(const struct roll_value *file)
{
    static const char *const parts[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (memmem(file->text, file->bytes, parts[i], strlen(parts[i])) != NULL) {
            return true;
        }
    }
    return false;
}

static int keep_text(struct roll_dump *d, const struct roll_value *v, uint32_t *out)
{
    size_t bytes = roll_value_is(v, ROLL_VALUE_TEXT) && v->bytes < 1024 ? v->bytes : 0;
    int err = d->text_used + bytes + 1 > UINT32_MAX / 2 ? ROLL_E_LIMIT
                                                        : ROLL_GROW(d->text, d->text_room, d->text_used + bytes + 1);
    if (err == 0) {
        *out = (uint32_t)d->text_used;
        roll_value_copy(v, d->text + d->text_used, bytes + 1);
        d->text_used += bytes + 1;
    }
    return err;
}

/* One frame; *out: 1 + the number of its line, 0 where the frame is none. */
static int read_line(struct reading *r, const struct roll_value *frame, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    const struct roll_value *file = roll_value_get(frame, "filename"), *function = roll_value_get(frame, "name");
    int64_t line = roll_value_integer(roll_value_get(frame, "line"), 0);
    int err = spend(r, 1 + extent(frame) + extent(file) + extent(function));
    *out = 0;
    if (err != 0) {
        return err;
    }
    if (!roll_value_is(file, ROLL_VALUE_TEXT) || file->bytes == 0 || line < 0 || line > INT32_MAX ||
        roll_python_is_own(file->text, file->bytes)) { /* of a rehearsed job's dump, some are */
        return 0;
    }
    uint64_t key = hash_text((uint64_t)line, file->text, file->bytes);
    key = roll_value_is(function, ROLL_VALUE_TEXT) ? hash_text(key, function->text, function->bytes) : key;
    uint32_t known = roll_map_get(&r->line_at, key);
    if (known != ROLL_MAP_NONE) {
        *out = known + 1;
        return 0;
    }
    struct roll_dump_line one = {.line = (uint32_t)line, .library = is_library(file)};
    err = ROLL_GROW(d->line, d->line_room, d->lines + 1);
    err = err != 0 ? err : roll_map_reserve(&r->line_at);
    err = err != 0 ? err : keep_text(d, file, &one.file);
    err = err != 0 ? err : keep_text(d, function, &one.function);
    if (err == 0) {
        d->line[d->lines] = one;
        (void)roll_map_add(&r->line_at, key, (uint32_t)d->lines++);
        *out = (uint32_t)d->lines;
    }
    return err;
}

/* The place of an entry: the frames of the job itself, where there are some; else the innermost of the libraries. */
static int read_site(struct reading *r, const struct roll_value *frames, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    struct roll_dump_site own = {.lines = 0}, any = {.lines = 0};
    uint64_t key = 0;
    uint32_t folded = 0;
    int err = 0;
    *out = 0;
    for (size_t i = 0; i < roll_value_count(frames) && err == 0; i++) {
        uint32_t line = 0;
        err = read_line(r, roll_value_at(frames, i), &line);
        if (err != 0 || line == 0) {
            continue;
        }
        if (any.lines < ROLL_CALLSITE_LINES) {
            any.line[any.lines++] = line - 1;
        }
        bool library = d->line[line - 1].library;
        if (!library && own.lines < ROLL_CALLSITE_LINES) {
            own.folded[own.lines] = folded;
            own.line[own.lines++] = line - 1;
        }
        folded = library ? folded + 1 : 0;
    }
    const struct roll_dump_site *site = own.lines > 0 ? &own : &any;
    if (err != 0 || site->lines == 0) {
        return err;
    }
    for (uint32_t i = 0; i < site->lines; i++) {
        key = (key ^ (site->line[i] + 1u) ^ (uint64_t)site->folded[i] << 32) * 0x9e3779b97f4a7c15u;
        key ^= key >> 29;
    }
    uint32_t known = roll_map_get(&r->site_at, key);
    if (known != ROLL_MAP_NONE) {
        *out = known + 1;
        return 0;
    }
    err = d->sites >= UINT16_MAX - 1 ? 0 : ROLL_GROW(d->site, d->site_room, d->sites + 1);
    err = err != 0 ? err : roll_map_reserve(&r->site_at);
    if (err == 0 && d->sites < UINT16_MAX - 1) {
        d->site[d->sites] = *site;
        (void)roll_map_add(&r->site_at, key, (uint32_t)d->sites++);
        *out = (uint32_t)d->sites;
    }
    return err;
}

/* entries */

static void find_members(const struct roll_value *map, struct entry *e)
{
    const struct {
        const char *key;
        const struct roll_value **at;
    } keys[] = {
        {"pg_id", &e->pg_id},
        {"process_group", &e->group},
        {"collective_seq_id", &e->coll},
        {"p2p_seq_id", &e->p2p},
        {"profiling_name", &e->name},
        {"time_created_ns", &e->created},
        {"input_sizes", &e->in},
        {"output_sizes", &e->out},
        {"input_dtypes", &e->in_types},
        {"output_dtypes", &e->out_types},
        {"state", &e->state},
        {"time_discovered_completed_ns", &e->completed},
        {"is_p2p", &e->is_p2p},
        {"frames", &e->frames},
        {"retired", &e->retired},
        {"root", &e->root},
        {"reduction", &e->reduction},
    };
    size_t next = 0; /* writers keep one order, so the search begins where the last key was found */
    for (uint32_t i = 0; i + 1 < map->list->used; i += 2) {
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
            size_t at = (next + k) % (sizeof(keys) / sizeof(keys[0]));
            if (roll_value_says(&map->list->at[i], keys[at].key)) {
                *keys[at].at = &map->list->at[i + 1];
                next = at + 1;
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

static uint32_t number_of(const struct roll_value *v)
{
    int64_t n = roll_value_integer(v, -1);
    return n < 0 || n >= UINT32_MAX ? ROLL_DUMP_NO_NUMBER : (uint32_t)n;
}

static int note_id(struct reading *r, const struct roll_value *pg_id, uint32_t group)
{
    int64_t id = roll_value_integer(pg_id, -1);
    if (id < 0 || id >= GROUPS_MAX) {
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
static uint32_t unit_of(struct reading *r, uint32_t group, uint32_t coll, uint32_t p2p)
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
static void end_collectives(struct reading *r, uint32_t group, uint32_t coll, bool complete)
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
static int end_batch(struct reading *r, uint32_t group, uint32_t coll, bool complete)
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

static int read_entry(struct reading *r, const struct roll_value *map)
{
    struct roll_dump *d = r->dump;
    struct entry e = {.pg_id = NULL};
    if (!roll_value_is(map, ROLL_VALUE_MAP)) {
        d->odd++;
        return 0;
    }
    int err = spend(r, 1 + 16 * extent(map)); /* each key is compared with those that are looked for */
    if (err != 0) {
        return err;
    }
    find_members(map, &e);
    err = spend(r, extent(e.in) + extent(e.out) + extent(e.frames) + extent(e.name) + dimensions(e.in) +
                       dimensions(e.out));
    if (err != 0) {
        return err;
    }
    const struct roll_value *name = roll_value_is(e.group, ROLL_VALUE_LIST) ? roll_value_at(e.group, 0) : e.group;
    uint32_t coll = number_of(e.coll), p2p = number_of(e.p2p), number;
    if (!roll_value_is(name, ROLL_VALUE_TEXT) || !roll_value_is(e.name, ROLL_VALUE_TEXT) ||
        coll == ROLL_DUMP_NO_NUMBER || roll_value_integer(e.created, -1) < 0) {
        d->odd++;
        return 0;
    }
    err = group_of(r, name, &number);
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
    if (named == NULL || (!message && roll_value_is(e.is_p2p, ROLL_VALUE_TRUE))) {
        d->odd += named == NULL;
        return 0; /* its number stays: where later calls come, it counts as made */
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
    err = read_site(r, e.frames, &c.site);
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

static int read_entries(struct reading *r, const struct roll_value *entries)
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

/* how far the groups have come */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/*
 * Groups of which no entry says the number: numbers and names are both given in the order in which groups are made, so
 * where there are as many of the one as of the other and all names are numbers, they are laid side by side. Entries
 * that say otherwise prove the guess wrong.
 */
static int guess_ids(struct reading *r, const uint32_t *id, size_t ids)
{
    const struct roll_dump *d = r->dump;
    uint64_t order[LIST_MAX]; /* name << 32 | group */
    size_t n = 0;
    bool good = d->groups == ids && ids <= LIST_MAX;
    for (size_t i = 0; i < d->groups && good; i++) {
        char *end;
        unsigned long name = strtoul(d->group[i].name, &end, 10);
        good = end != d->group[i].name && *end == '\0' && name < UINT32_MAX;
        size_t at = n++;
        for (; at > 0 && order[at - 1] >> 32 > name; at--) {
            order[at] = order[at - 1];
        }
        order[at] = (uint64_t)name << 32 | i;
    }
    for (size_t i = 0; i < n && good; i++) {
        uint32_t known = id[i] < r->ids ? r->id_group[id[i]] : 0;
        good = known == 0 || known == (uint32_t)order[i] + 1;
    }
    int err = 0;
    for (size_t i = 0; i < n && good && err == 0; i++) {
        err = ROLL_GROW_ZERO(r->id_group, r->id_room, (size_t)id[i] + 1);
        if (err == 0) {
            r->id_group[id[i]] = (uint32_t)order[i] + 1;
            r->ids = r->ids > id[i] ? r->ids : id[i] + 1u;
        }
    }
    return err;
}

static int read_status(struct reading *r, const struct roll_value *status)
{
    struct roll_dump *d = r->dump;
    size_t n = roll_value_count(status), ids = 0;
    uint32_t *id = n > 0 && n <= GROUPS_MAX ? calloc(n, sizeof(*id)) : NULL;
    if (id == NULL) {
        return n == 0 || n > GROUPS_MAX ? 0 : ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t number = number_of(&status->list->at[2 * i]);
        id[ids] = number;
        ids += number < GROUPS_MAX;
    }
    qsort(id, ids, sizeof(*id), by_number);
    int err = guess_ids(r, id, ids);
    free(id);
    for (size_t i = 0; i < n && err == 0; i++) {
        uint32_t number = number_of(&status->list->at[2 * i]);
        const struct roll_value *of = &status->list->at[2 * i + 1];
        uint32_t group = number < r->ids ? r->id_group[number] : 0;
        int64_t enqueued = roll_value_integer(roll_value_get(of, "last_enqueued_collective"), INT64_MIN);
        int64_t over = roll_value_integer(roll_value_get(of, "last_completed_collective"), INT64_MIN);
        if (group != 0 && enqueued >= -1 && enqueued < UINT32_MAX) {
            d->group[group - 1].enqueued = enqueued < 0 ? 0 : (uint32_t)enqueued;
        }
        if (group != 0 && over >= -1 && over < UINT32_MAX) {
            d->group[group - 1].over = over < 0 ? 0 : (uint32_t)over;
        }
    }
    return err;
}

bool roll_flight_is(const struct roll_value *top)
{
    return roll_value_get(top, "version") != NULL &&
           (roll_value_get(top, "entries") != NULL || roll_value_get(top, "pg_config") != NULL);
}

int roll_flight_read(const struct roll_value *top, size_t bytes, struct roll_dump *dump, char *why, size_t size)
{
    struct reading r = {.dump = dump, .work = WORK_LEAST + bytes * WORK_PER_BYTE};
    char version[16];
    roll_value_copy(roll_value_get(top, "version"), version, sizeof(version));
    snprintf(dump->tool, sizeof(dump->tool), "Flight Recorder %s", version);
    int64_t rank = roll_value_integer(roll_value_get(top, "rank"), -1);
    dump->rank = rank >= 0 && rank < ROLL_DUMP_RANKS_MAX ? (int32_t)rank : ROLL_DUMP_RANK_UNKNOWN;
    int err = strncmp(version, "2.", 2) == 0 ? 0 : ROLL_E_VERSION;
    if (err != 0) {
        snprintf(why, size, "a Flight Recorder dump of version '%s'; versions 2.x are read", version);
    }
    const char *part = "pg_config";
    err = err != 0 ? err : read_groups(&r, roll_value_get(top, "pg_config"));
    part = err == 0 ? "entries" : part;
    err = err != 0 ? err : read_entries(&r, roll_value_get(top, "entries"));
    part = err == 0 ? "pg_status" : part;
    err = err != 0 ? err : read_status(&r, roll_value_get(top, "pg_status"));
    if (err == ROLL_E_CORRUPT || err == ROLL_E_LIMIT) {
        snprintf(why, size, "'%s' is not what a Flight Recorder dump holds", part);
    }
    roll_map_fini(&r.group_at);
    roll_map_fini(&r.line_at);
    roll_map_fini(&r.site_at);
    free(r.id_group);
    free(r.batches);
    return err;
}
