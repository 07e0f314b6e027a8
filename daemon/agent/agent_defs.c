/*
 * agent_defs.c: which definitions of its ring an excerpt has (agent_excerpt.c): all communicators and the names of
 * process groups, because who is a member, and what a communicator is called, is told by all of them; and of the rest,
 * which are call sites, their lines and modules, names of tensors, graphs, streams and threads, what its records name,
 * when they first name it.
 *
 * The definitions of a ring are tens of kilobytes, of a program that compiles code as it runs hundreds, and a root that
 * asks thousands of ranks would keep little else. An engine compares where ranks call from, though, with all call sites
 * that a rank has ever had: whether it knows the place of another one's call decides who went astray. Of the call sites
 * that no record names it is told the numbers that it would make of their definitions (trace/site.h), 16 bytes each.
 *
 * Rejected: to let the root ask for definitions when it says something, because verdicts are worded at once; and to
 * send all of them for the first rank of a program alone, because ids and addresses are each process's own.
 *
 * The job owns the ring, and may write over what has been noted here: a definition that is read again counts only where
 * it has still the type and the id under which it was noted. So nothing leads further than its type does, and what is
 * sent is what was wanted.
 */
#include "daemon/agent/agent_digest_state.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/site.h"

#include <stdlib.h>
#include <string.h>

#define TYPES (ROLL_DEF_TEXT + 1u) /* those that are found by type and id; names of tensors have their counts */
#define UNIT  8u                   /* bytes by which offsets of definitions are told from each other */
#define COUNTS_MOST                                                                                                    \
    4096u /* of records; a job that has more gets all names of tensors, in the place of a list of them */

/* A definition, or one that is named and has not come. */
struct cell {
    uint64_t identity; /* of a file, a line */
    uint32_t at;       /* its offset in the ring's area / UNIT, + 1; 0: it has not come */
    bool wanted;
};

struct loaded {
    uint64_t start, end, bias, identity;
    uint32_t id;
};

/* What some collectives carry. */
struct tensors {
    uint64_t count;
    uint32_t at, id;
    bool wanted;
};

struct roll_agent_defs {
    const struct roll_ring *ring; /* borrowed */
    struct cell *cell[TYPES];     /* by id; owned */
    size_t cells[TYPES];
    struct loaded *module; /* in the order of their definitions; owned */
    size_t modules, module_room;
    struct tensors *name; /* owned */
    size_t names, name_room;
    struct roll_map count; /* those of the records that have been sent */
    uint64_t *todo;        /* what is to be sent, as todo_of; owned */
    size_t todos, todo_room;
    uint32_t *site; /* ids of call sites whose numbers are to be sent, unless they are wanted by then; owned */
    size_t sites, site_room;
    uint64_t upto;  /* the definitions below this offset are known here, */
    uint64_t plain; /* and the communicators among those below this one have been sent */
};

int roll_agent_defs_new(const struct roll_ring *ring, struct roll_agent_defs **out)
{
    struct roll_agent_defs *defs = calloc(1, sizeof(*defs));
    if (defs) {
        defs->ring = ring;
    }
    *out = defs;
    return defs ? 0 : ROLL_E_NOMEM;
}

void roll_agent_defs_destroy(struct roll_agent_defs **pointer)
{
    struct roll_agent_defs *defs = *pointer;
    if (!defs) {
        return;
    }
    for (size_t i = 0; i < TYPES; i++) {
        free(defs->cell[i]);
    }
    free(defs->module);
    free(defs->name);
    roll_map_fini(&defs->count);
    free(defs->todo);
    free(defs->site);
    free(defs);
    *pointer = NULL;
}

/* The definition at this offset, and where the next one begins; false: the job has written something else over it. */
static bool read_at(const struct roll_agent_defs *defs, uint64_t offset, struct roll_def *out, size_t *end)
{
    *end = (size_t)offset;
    return offset < defs->upto && roll_def_decode(defs->ring->defs, (size_t)defs->upto, end, out) == 0;
}

static uint32_t mark_of(uint64_t offset)
{
    return (uint32_t)(offset / UNIT) + 1;
}

static uint64_t offset_of(uint32_t mark)
{
    return (uint64_t)(mark - 1) * UNIT;
}

/* The same of what was noted there as a definition of this type with this id; mark 0: nothing was. */
static bool read_noted(const struct roll_agent_defs *defs, uint32_t mark, unsigned type, uint32_t id,
                       struct roll_def *out)
{
    size_t end;
    return mark != 0 && read_at(defs, offset_of(mark), out, &end) && out->type == type && out->id == id;
}

/* In the order in which the ring defines it; no id is above UINT16_MAX. */
static uint64_t todo_of(uint32_t mark, unsigned type, uint32_t id)
{
    return (uint64_t)mark << 32 | (uint64_t)type << 16 | id;
}

static int add_todo(struct roll_agent_defs *defs, uint32_t mark, unsigned type, uint32_t id)
{
    int err = ROLL_GROW(defs->todo, defs->todo_room, defs->todos + 1);
    if (!err) {
        defs->todo[defs->todos++] = todo_of(mark, type, id);
    }
    return err;
}

/* what names what */

static int want(struct roll_agent_defs *defs, unsigned type, uint32_t id);

/* Where modules came to the same place one after the other, the newest counts. */
static const struct loaded *module_of(const struct roll_agent_defs *defs, uint64_t pc)
{
    for (size_t i = defs->modules; i-- > 0;) {
        if (pc >= defs->module[i].start && pc < defs->module[i].end) {
            return &defs->module[i];
        }
    }
    return NULL;
}

static int want_module(struct roll_agent_defs *defs, uint64_t pc)
{
    const struct loaded *module = module_of(defs, pc);
    return module ? want(defs, ROLL_DEF_MODULE, module->id) : 0;
}

static int want_lines(struct roll_agent_defs *defs, const struct roll_callsite_line *line, uint32_t lines)
{
    int rc = 0;
    for (uint32_t i = 0; i < lines && rc == 0; i++) {
        rc = want(defs, ROLL_DEF_LINE, line[i].line);
    }
    return rc;
}

/* What this definition, which is to be sent, names itself. */
static int follow(struct roll_agent_defs *defs, const struct roll_def *def)
{
    int rc = 0;
    switch (def->type) {
    case ROLL_DEF_CALLSITE:
        for (uint32_t i = 0; i < def->callsite.depth && rc == 0; i++) {
            uint64_t pc = def->callsite.pc[i];
            rc = want_module(defs, pc);
            rc = rc ? rc : want_module(defs, pc - (pc > 0)); /* the call is in front of the address */
        }
        rc = rc ? rc : want_lines(defs, def->callsite.line, def->callsite.lines);
        return rc ? rc : want(defs, ROLL_DEF_STAND, def->id);
    case ROLL_DEF_STAND:
        return want_lines(defs, def->stand.line, def->stand.lines);
    case ROLL_DEF_LINE:
        rc = want(defs, ROLL_DEF_SOURCE, def->line.info.source);
        return rc ? rc : want(defs, ROLL_DEF_TEXT, def->id);
    default:
        return 0;
    }
}

/* Each leads to types that lead no further back: a call site to its stand, this to lines, these to files. */
static int want(struct roll_agent_defs *defs, unsigned type, uint32_t id)
{
    struct roll_def def;
    if (id == 0 || id > UINT16_MAX) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(defs->cell[type], defs->cells[type], (size_t)id + 1);
    struct cell *cell = rc == 0 ? &defs->cell[type][id] : NULL;
    if (!cell || cell->wanted) {
        return rc;
    }
    cell->wanted = true; /* where it has not come it is sent when it does */
    if (!read_noted(defs, cell->at, type, id, &def)) {
        return 0;
    }
    rc = add_todo(defs, cell->at, type, id);
    return rc ? rc : follow(defs, &def);
}

static bool has_count(const struct roll_agent_defs *defs, uint64_t count)
{
    return defs->count.used == COUNTS_MOST || roll_map_get(&defs->count, count) != ROLL_MAP_NONE;
}

static int want_tensors(struct roll_agent_defs *defs, uint64_t count)
{
    if (has_count(defs, count)) {
        return 0;
    }
    int rc = roll_map_add(&defs->count, count, 0);
    for (size_t i = 0; i < defs->names && rc == 0; i++) {
        if (has_count(defs, defs->name[i].count) && !defs->name[i].wanted) {
            defs->name[i].wanted = true;
            rc = add_todo(defs, defs->name[i].at, ROLL_DEF_NAME, defs->name[i].id);
        }
    }
    return rc;
}

static int want_of(struct roll_agent_defs *defs, const struct roll_record *rec)
{
    bool graph = (rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED)) != 0 || rec->op == ROLL_OP_GRAPH_LAUNCH;
    int rc = want(defs, ROLL_DEF_CALLSITE, rec->callsite);
    rc = rc ? rc : want(defs, ROLL_DEF_STREAM, rec->stream);
    rc = rc ? rc : want(defs, ROLL_DEF_THREAD, rec->thread);
    rc = rc ? rc : rec->layer != ROLL_LAYER_NONE ? want(defs, ROLL_DEF_LAYER, rec->layer) : 0;
    rc = rc ? rc : graph ? want(defs, ROLL_DEF_GRAPH, rec->aux) : 0;
    return rc || roll_op_class(rec->op) != ROLL_CLASS_COLL ? rc : want_tensors(defs, rec->count);
}

/* what the ring defines */

static bool is_plain(const struct roll_def *def)
{
    return def->type == ROLL_DEF_COMM || (def->type == ROLL_DEF_NAME && def->name.info.kind != ROLL_NAME_TENSORS);
}

static int note_name(struct roll_agent_defs *defs, const struct roll_def *def, uint32_t mark)
{
    uint64_t count = def->name.info.count;
    bool wanted = has_count(defs, count);
    int rc = ROLL_GROW(defs->name, defs->name_room, defs->names + 1);
    rc = rc == 0 && wanted ? add_todo(defs, mark, ROLL_DEF_NAME, def->id) : rc;
    if (rc == 0) {
        defs->name[defs->names++] = (struct tensors){.count = count, .at = mark, .id = def->id, .wanted = wanted};
    }
    return rc;
}

static uint64_t identity_of(const struct roll_agent_defs *defs, unsigned type, uint32_t id)
{
    return id < defs->cells[type] ? defs->cell[type][id].identity : 0;
}

/* Room for it in the lists of its type; what is noted there twice does no harm. */
static int list(struct roll_agent_defs *defs, const struct roll_def *def)
{
    int rc = 0;
    if (def->type == ROLL_DEF_MODULE && (rc = ROLL_GROW(defs->module, defs->module_room, defs->modules + 1)) == 0) {
        const struct roll_def_module *info = &def->module.info;
        defs->module[defs->modules++] = (struct loaded){.start = info->start,
                                                        .end = info->end,
                                                        .bias = info->bias,
                                                        .identity = roll_site_module(info, def->module.path),
                                                        .id = def->id};
    }
    if (def->type == ROLL_DEF_CALLSITE && (rc = ROLL_GROW(defs->site, defs->site_room, defs->sites + 1)) == 0) {
        defs->site[defs->sites++] = def->id;
    }
    return rc;
}

/* Notes a definition at this offset. What has been wanted for long is sent now, and what it names. */
static int note(struct roll_agent_defs *defs, const struct roll_def *def, uint64_t offset)
{
    uint32_t mark = mark_of(offset);
    if (def->type == ROLL_DEF_NAME && !is_plain(def)) {
        return note_name(defs, def, mark);
    }
    if (def->type >= TYPES || def->type == ROLL_DEF_COMM) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(defs->cell[def->type], defs->cells[def->type], (size_t)def->id + 1);
    rc = rc ? rc : list(defs, def);
    if (rc != 0) {
        return rc;
    }
    struct cell *cell = &defs->cell[def->type][def->id];
    cell->at = mark; /* of the texts of a line the newest counts */
    if (def->type == ROLL_DEF_SOURCE) {
        cell->identity = roll_site_source(def->source.path, def->source.path_bytes);
    } else if (def->type == ROLL_DEF_LINE) {
        uint64_t source = identity_of(defs, ROLL_DEF_SOURCE, def->line.info.source);
        cell->identity = roll_site_line(source, &def->line.info, def->line.function);
    }
    rc = cell->wanted ? add_todo(defs, mark, def->type, def->id) : 0;
    return rc == 0 && cell->wanted ? follow(defs, def) : rc;
}

/* sending */

static int send_defs(const struct turn *t, uint32_t flags, uint64_t first, const void *payload, size_t bytes)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_DEFS, .flags = flags, .first = first};
    uint64_t seq;
    head.stream = t->f->ring->map.header->epoch;
    return t->d->send(t->d->ctx, head, payload, bytes, &seq);
}

/* Communicators and names of groups as they stand in the ring, those that stand side by side in one frame. */
static int send_plain(const struct turn *t, struct roll_agent_defs *defs)
{
    int err = 0;
    while (!err && defs->plain < defs->upto) {
        uint64_t first = defs->plain;
        size_t at = (size_t)first, end = at;
        struct roll_def def;
        bool plain = true;
        while (plain && end - first < ROLL_AGENT_PAYLOAD - ROLL_DEF_MAX_BYTES && read_at(defs, at, &def, &at)) {
            plain = is_plain(&def);
            end = plain ? at : end;
        }
        err = end > first ? send_defs(t, 0, first, defs->ring->defs + first, end - (size_t)first) : 0;
        if (!err) {
            defs->plain = at > first ? at : defs->upto; /* behind the one that ended the row */
        }
    }
    return err;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Copies what is to be sent to `out`, ROLL_DEF_MAX_BYTES, and returns its bytes; 0: it is not there any more. The copy
 * is what is looked at: the ring may change meanwhile. */
static size_t copy_noted(const struct roll_agent_defs *defs, uint64_t todo, uint8_t *out)
{
    struct roll_def def;
    uint32_t mark = (uint32_t)(todo >> 32);
    size_t from = (size_t)offset_of(mark), end, at = 0;
    if (!read_at(defs, from, &def, &end)) {
        return 0;
    }
    memcpy(out, defs->ring->defs + from, end - from);
    bool whole = roll_def_decode(out, end - from, &at, &def) == 0 && at == end - from;
    return whole && todo_of(mark, def.type, def.id) == todo ? at : 0;
}

/* What is wanted, in the order in which the ring defines it: files stand before their lines, and these and modules
 * before call sites. */
static int send_todo(const struct turn *t, struct roll_agent_defs *defs)
{
    int err = 0;
    if (defs->todos > 1) {
        qsort(defs->todo, defs->todos, sizeof(*defs->todo), by_number);
    }
    while (!err && defs->todos > 0) {
        size_t n = 0, bytes = 0;
        for (; n < defs->todos && bytes + ROLL_DEF_MAX_BYTES <= ROLL_AGENT_PAYLOAD; n++) {
            bool again = n > 0 && defs->todo[n] == defs->todo[n - 1];
            bytes += again ? 0 : copy_noted(defs, defs->todo[n], t->d->payload + bytes);
        }
        err = bytes > 0 ? send_defs(t, ROLL_DEFS_NAMED, 0, t->d->payload, bytes) : 0;
        if (!err) {
            defs->todos -= n;
            memmove(defs->todo, defs->todo + n, defs->todos * sizeof(*defs->todo));
        }
    }
    return err;
}

/* The numbers of a call site, as the engine makes them of its definition. False: it is none any more. */
static bool number_of(const struct roll_agent_defs *defs, uint32_t id, struct roll_site_number *out)
{
    struct roll_def def;
    struct roll_site site = {.known = 0};
    if (!read_noted(defs, defs->cell[ROLL_DEF_CALLSITE][id].at, ROLL_DEF_CALLSITE, id, &def)) {
        return false;
    }
    site.depth = def.callsite.depth;
    site.lines = def.callsite.lines;
    const struct loaded *module;
    for (; site.known < site.depth && (module = module_of(defs, def.callsite.pc[site.known])) != NULL; site.known++) {
        site.module[site.known] = module->identity;
        site.offset[site.known] = def.callsite.pc[site.known] - module->bias;
    }
    for (uint32_t i = 0; i < site.lines; i++) {
        site.line[i] = identity_of(defs, ROLL_DEF_LINE, def.callsite.line[i].line);
        site.folded[i] = def.callsite.line[i].folded;
    }
    *out =
        (struct roll_site_number){.whole = roll_site_whole(&site), .near = site.lines > 0 ? roll_site_near(&site) : 0};
    return true;
}

/* Puts the numbers of a row of call sites with ids that follow each other, from the n-th of those that wait on, into
 * one definition. Those that are sent themselves are left out of its beginning and end. Returns how many of the list it
 * has gone over. */
static size_t put_numbers(const struct roll_agent_defs *defs, size_t n, uint8_t *out, size_t *bytes)
{
    struct roll_def_head head = {.seal = ROLL_DEF_SEAL | ROLL_DEF_SITES, .id = 1};
    struct roll_def_sites info = {.first = defs->site[n]};
    uint8_t *numbers = out + sizeof(head) + sizeof(info);
    size_t begin = n;
    for (uint32_t i = 0; n < defs->sites && i < ROLL_SITES_MOST && defs->site[n] == info.first + i; i++, n++) {
        struct roll_site_number number = {.whole = 0};
        bool sent = defs->cell[ROLL_DEF_CALLSITE][defs->site[n]].wanted;
        bool there = !sent && number_of(defs, defs->site[n], &number);
        memcpy(numbers + i * sizeof(number), &number, sizeof(number));
        info.sites = there ? i + 1 : info.sites;
        if (sent && info.sites == 0) {
            return n + 1 - begin;
        }
    }
    *bytes = info.sites > 0 ? sizeof(head) + sizeof(info) + info.sites * sizeof(struct roll_site_number) : 0;
    head.bytes = (uint32_t)*bytes;
    memcpy(out, &head, sizeof(head));
    memcpy(out + sizeof(head), &info, sizeof(info));
    return n - begin;
}

/* Of the call sites that are not sent, their numbers. */
static int send_numbers(const struct turn *t, struct roll_agent_defs *defs)
{
    int err = 0;
    while (!err && defs->sites > 0) {
        size_t n = 0, bytes = 0;
        while (n < defs->sites && bytes + ROLL_DEF_MAX_BYTES <= ROLL_AGENT_PAYLOAD) {
            size_t one = 0;
            n += put_numbers(defs, n, t->d->payload + bytes, &one);
            bytes += one;
        }
        err = bytes > 0 ? send_defs(t, ROLL_DEFS_NAMED, 0, t->d->payload, bytes) : 0;
        if (!err) {
            defs->sites -= n;
            memmove(defs->site, defs->site + n, defs->sites * sizeof(*defs->site));
        }
    }
    return err;
}

int roll_agent_defs_take(const struct turn *t, uint64_t first, size_t bytes)
{
    struct roll_agent_defs *defs = t->f->defs;
    uint64_t end = first + bytes;
    int rc = 0;
    while (rc == 0 && defs->upto < end) {
        struct roll_def def;
        size_t at = (size_t)defs->upto;
        if (roll_def_decode(defs->ring->defs, (size_t)end, &at, &def) != 0) {
            defs->upto = end; /* the reader has seen whole entries here: the job writes over them */
            break;
        }
        uint64_t offset = defs->upto;
        defs->upto = at;
        rc = note(defs, &def, offset);
        defs->upto = rc == 0 ? at : offset; /* it is noted anew */
    }
    rc = rc ? rc : send_plain(t, defs);
    return rc ? rc : send_todo(t, defs);
}

int roll_agent_defs_name(const struct turn *t, const struct roll_record *recs, size_t n)
{
    struct roll_agent_defs *defs = t->f->defs;
    int rc = 0;
    for (size_t i = 0; defs && i < n && rc == 0; i++) {
        rc = want_of(defs, &recs[i]);
    }
    return rc ? rc : roll_agent_defs_rest(t);
}

int roll_agent_defs_rest(const struct turn *t)
{
    struct roll_agent_defs *defs = t->f->defs;
    int rc = defs ? send_todo(t, defs) : 0;
    return rc || !defs ? rc : send_numbers(t, defs);
}
