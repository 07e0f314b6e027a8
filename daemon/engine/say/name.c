/*
 * name.c: what communicators are called. All faces take their names from here: the texts of verdicts and `why` by
 * words_comm, tables and JSON by struct roll_view_comm.
 *
 * A name comes from the first of these that is known:
 *   - what the job calls the process group (roll_engine_group): "group mesh_dp"
 *   - its label (ncclConfig_t.commName): "communicator ep". A label that is only a number is PyTorch's, which counts
 * its groups from 0, the one of all ranks: "the default group", "group 3"; one of hexadecimal digits is a hash of
 *     PyTorch's, of which the first eight are shown
 *   - its members, and the job's line that made it: "the communicator of ranks 0-3 made at train.py:91"
 * Names that several communicators have are told apart by the members. The same members give the same name in each run,
 * so a key, which is made anew each time, is shown only where nobody knows who is in a communicator.
 *
 * Names with a table of words in each face were rejected: `top`, verdicts and the report of a rehearsal then called one
 * communicator by three names.
 */
#include "daemon/engine/say/say.h"
#include "trace/source_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HASH_SHOWN 8
#define HASH_LEAST 32 /* hexadecimal digits: of a hash, and not of a word like "decade" or a number */

enum kind {
    KIND_NONE,    /* nothing but its members names it */
    KIND_LABEL,   /* the job's own label */
    KIND_GROUP,   /* a process group by its description */
    KIND_NUMBER,  /* a process group by PyTorch's number */
    KIND_DEFAULT, /* PyTorch's group of all ranks */
};

struct name {
    enum kind kind;
    char text[ROLL_NAME_BYTES];
};

/* Adds the members that have been seen, as ranks in the job. True: those are all. */
static bool members_of(const struct comm *c, struct roll_rankset *out)
{
    bool all = !c->open && c->size > 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(c->engine, c, r);
        all = all && world != NO_SOURCE;
        if (world != NO_SOURCE) {
            (void)roll_rankset_add(out, world);
        }
    }
    return all;
}

uint32_t members_stride(const struct roll_rankset *set)
{
    if (set->used < 2) {
        return set->used == 1 && set->range[0].first != set->range[0].last;
    }
    uint32_t stride = set->range[1].first - set->range[0].first;
    for (size_t i = 0; i < set->used; i++) {
        bool alone = set->range[i].first == set->range[i].last;
        if (!alone || (i > 0 && set->range[i].first - set->range[i - 1].first != stride)) {
            return 0;
        }
    }
    return stride;
}

/* "ranks 0-3", or "every 8th rank from 3" for ranks at equal distances. */
static void words_members(struct words *w, const struct roll_rankset *set)
{
    uint32_t first = roll_rankset_at(set, 0), stride = members_stride(set);
    if (stride > 1 && roll_rankset_count(set) > 2) {
        const char *th = stride % 100 / 10 == 1 ? "th" : stride % 10 == 2 ? "nd" : stride % 10 == 3 ? "rd" : "th";
        words_add(w, stride == 2 ? "every other rank from %u" : "every %u%s rank from %u", stride == 2 ? first : stride,
                  th, first);
    } else {
        words_ranks(w, set);
    }
}

/* The job's ranks, as its processes were told; else those that were seen. */
static uint32_t world_of(const struct roll_engine *e)
{
    return e->sources > 0 && e->source[0]->info.world_size > 0 ? (uint32_t)e->source[0]->info.world_size : e->sources;
}

static const struct group *group_of(const struct comm *c)
{
    return c->label[0] != '\0' && c->engine->groups > 0
               ? group_find(c->engine, c->label, c->believed > 0 ? c->believed : c->size)
               : NULL;
}

static struct name name_of(const struct comm *c)
{
    struct name name = {.kind = c->label[0] != '\0' ? KIND_LABEL : KIND_NONE};
    const struct group *group = group_of(c);
    const char *told = group && strcmp(group->name, "undefined") != 0 ? group->name : "";
    bool is_number = c->label[0] != '\0' && c->label[strspn(c->label, "0123456789")] == '\0';
    bool is_all = (c->believed > 0 ? c->believed : c->size) == world_of(c->engine) && !c->open;
    memcpy(name.text, c->label, sizeof(name.text));
    if (strcmp(told, "default_pg") == 0 || (told[0] == '\0' && strcmp(c->label, "0") == 0 && is_all)) {
        name.kind = KIND_DEFAULT;
        snprintf(name.text, sizeof(name.text), "default group");
    } else if (told[0] != '\0') {
        name.kind = KIND_GROUP;
        memcpy(name.text, group->name, sizeof(name.text));
    } else if (is_number) {
        name.kind = KIND_NUMBER;
    } else if (strspn(c->label, "0123456789abcdef") >= HASH_LEAST) {
        name.kind = KIND_NUMBER;
        name.text[HASH_SHOWN] = '\0';
    }
    return name;
}

/* The job's line that made the communicator; NULL: not known. *many: its members made it at different lines. */
static const struct python_line *line_of(const struct comm *c, bool *many)
{
    const struct group *group = group_of(c);
    *many = false;
    if (group && group->line.number > 0) {
        return &group->line;
    }
    *many = c->made_elsewhere;
    return c->made_rank > 0
               ? line_find(c->engine, site_line(c->engine, c->engine->source[c->made_source], c->made_callsite))
               : NULL;
}

static bool same_line(const struct comm *a, const struct comm *b)
{
    bool many;
    const struct python_line *x = line_of(a, &many), *y = line_of(b, &many);
    return x == y || (x && y && x->number == y->number && strcmp(x->file, y->file) == 0);
}

/* Which of the communicators without a name that have the same members, and that the same line made, this one is, from
 * 1; 0: there is no other. Each rank makes them in one order, so the answer does not depend on who came first. */
static uint32_t place_among_twins(const struct comm *c)
{
    uint32_t nth = 1, twins = 0;
    for (uint32_t i = 0; i < c->engine->comms; i++) {
        const struct comm *other = c->engine->comm[i];
        bool same = other != c && other->size == c->size && other->label[0] == '\0';
        for (uint32_t r = 0; same && r < c->size; r++) {
            same = other->member[r].source == c->member[r].source;
        }
        same = same && same_line(c, other);
        twins += same;
        nth += same && i < c->id;
    }
    return twins > 0 ? nth : 0;
}

/* Other communicators have the same name: as a rule, the groups of one split, or of one dimension of a mesh. */
static bool has_namesake(const struct comm *c, const struct name *name)
{
    for (uint32_t i = 0; i < c->engine->comms; i++) {
        const struct comm *other = c->engine->comm[i];
        struct name its = other != c ? name_of(other) : (struct name){.kind = KIND_NONE};
        if (its.kind == name->kind && strcmp(its.text, name->text) == 0) {
            return true;
        }
    }
    return false;
}

static void words_nth(struct words *w, uint32_t nth)
{
    bool teen = nth % 100 / 10 == 1;
    words_add(w, "%u%s ", nth,
              !teen && nth % 10 == 1   ? "st"
              : !teen && nth % 10 == 2 ? "nd"
              : !teen && nth % 10 == 3 ? "rd"
                                       : "th");
}

static void words_size(struct words *w, const struct comm *c)
{
    if (c->believed > 0) {
        words_add(w, " (%u of %u ranks run)", c->size, c->believed);
    } else {
        words_add(w, " (%u %s)", c->size, c->size == 1 ? "rank" : "ranks");
    }
}

/* "the 2nd communicator of ranks 0-3 made at train.py:91" */
static void words_nameless(struct words *w, const struct comm *c, const struct roll_rankset *members, bool whole)
{
    bool many;
    const struct python_line *line = line_of(c, &many);
    uint32_t nth = whole ? place_among_twins(c) : 0;
    words_add(w, "the ");
    if (nth > 0) {
        words_nth(w, nth);
    }
    words_add(w, "communicator of ");
    if (whole) {
        words_members(w, members);
    } else {
        words_ranks(w, members);
        words_add(w, " and others");
    }
    if (line) {
        words_add(w, " made at %s:%u", line->file, line->number);
    }
}

void words_comm(struct words *w, const struct comm *c)
{
    static const char *const kinds[] = {
        [KIND_LABEL] = "communicator ", [KIND_GROUP] = "group ", [KIND_NUMBER] = "group ", [KIND_DEFAULT] = "the "};
    struct roll_rankset members = {0};
    struct name name = name_of(c);
    bool whole = members_of(c, &members);
    if (name.kind == KIND_NONE && roll_rankset_count(&members) > 0) {
        words_nameless(w, c, &members, whole);
    } else if (name.kind == KIND_NONE) {
        words_add(w, "communicator 0x%016" PRIx64, c->key);
    } else {
        words_add(w, "%s%s", kinds[name.kind], name.text);
        if (whole && (name.kind == KIND_NUMBER || has_namesake(c, &name))) {
            words_add(w, " of ");
            words_members(w, &members);
        }
    }
    words_size(w, c);
    roll_rankset_fini(&members);
}

void words_comm_short(struct words *w, const struct comm *c, const struct roll_rankset *members)
{
    struct name name = name_of(c);
    if (name.kind != KIND_NONE) {
        words_add(w, "%s%s", name.kind == KIND_NUMBER ? "group " : "", name.text);
    } else if (roll_rankset_count(members) > 0) {
        words_members(w, members);
    } else {
        words_add(w, "0x%016" PRIx64, c->key);
    }
}

bool comm_is_named(const struct comm *c)
{
    return name_of(c).kind != KIND_NONE;
}

void words_comm_made(struct words *w, const struct comm *c)
{
    const struct comm *parent = comm_find(c->engine, c->parent_key);
    enum roll_op by = comm_made_by(c->origin);
    if (by == ROLL_OP_NONE) {
        return;
    }
    words_add(w, "made by %s", roll_op_name(by));
    if (parent) {
        words_add(w, " of ");
        words_comm(w, parent);
    }
    if (c->origin == ROLL_COMM_SPLIT && c->color != ROLL_COLOR_NONE) {
        words_add(w, ", color %d", c->color);
    }
}

void words_comm_place(struct words *w, const struct comm *c)
{
    bool many;
    const struct python_line *line = line_of(c, &many);
    if (line) {
        char text[200];
        words_add(w, "%s%s", roll_source_line_text(text, sizeof(text), line->file, line->number, line->function),
                  many ? " and other lines" : "");
    }
}

/* Letters of a name without the number that tells it from its siblings: "tp" of "tp_3" and "tp-3". */
static size_t stem_of(const char *name)
{
    size_t all = strlen(name), n = all;
    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9') {
        n--;
    }
    return n > 1 && n < all && (name[n - 1] == '_' || name[n - 1] == '-') ? n - 1 : all;
}

uint64_t comm_family(const struct comm *c, const struct roll_rankset *members)
{
    struct name name = name_of(c);
    bool many, is_named = name.kind != KIND_NONE && name.kind != KIND_NUMBER;
    const struct python_line *line = line_of(c, &many);
    const struct source *s = c->made_rank > 0 ? c->engine->source[c->made_source] : NULL;
    uint64_t h = line_hash(c->size, is_named ? name.text : "", is_named ? stem_of(name.text) : 0);
    if (line) {
        h = line_hash(h ^ line->number, line->file, strlen(line->file));
    } else if (s) {
        uint64_t place = site_of(s, &(struct roll_record){.callsite = c->made_callsite});
        h = line_hash(h, &place, sizeof(place));
    }
    for (size_t i = 0; i < members->used; i++) {
        uint32_t gap[2] = {members->range[i].first - members->range[0].first,
                           members->range[i].last - members->range[i].first};
        h = line_hash(h, gap, sizeof(gap));
    }
    return h;
}

void words_number(struct words *w, const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    enum roll_op_class class = roll_op_class(rec->op);
    if (m && (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && rec->op != ROLL_OP_GRAPH_LAUNCH) {
        words_add(w, ", #%u on ", rec->seq);
        words_comm(w, m->comm);
    }
}

void words_call_at(struct words *w, const struct source *s, const struct roll_record *rec)
{
    words_call(w, rec);
    words_number(w, s, rec);
}
