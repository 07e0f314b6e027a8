/*
 * site.c: where in the program a call stands, as a number that is the same on every rank that runs the same binaries.
 *
 * A record names its call site by an id of its own process, and a definition lists the return addresses behind it.
 * Addresses differ from process to process; module (by build id, else by file name) and offset do not. The whole
 * recorded stack counts, and not the innermost frame alone: a program that makes all its calls through one helper has
 * one innermost frame and many callers. The numbers are worked out when ranks disagree, so the path of a record does
 * not pass here. Symbols and lines of native code were rejected: they need files, and the engine has none. Lines of
 * Python come with the definitions: they are exact, and count with the innermost return address as the near place of a
 * call.
 */
#include "trace/site.h"
#include "daemon/base/array.h"
#include "daemon/engine/model/budget.h"

#include <stdlib.h>
#include <string.h>

#define SITES_MAX   UINT16_MAX
#define MODULES_MAX 4096u
#define COMMON_MAX  512u /* of a rank's sites the newest that are tried as common to two ranks */

struct stack {
    uint32_t depth, lines;
    uint64_t pc[ROLL_CALLSITE_DEPTH];
    struct roll_callsite_line line[ROLL_CALLSITE_LINES];
};

struct module {
    uint64_t start, end, bias, identity;
    uint32_t id;
};

struct site_table {
    struct stack *stack; /* by id - 1 */
    size_t stacks;
    struct module *module; /* in the order of their ids, which is that in which they came to their places */
    uint32_t modules;
    size_t module_room;
    uint64_t *source, *line; /* identities by id; 0: not defined */
    size_t sources, lines;
    /* Of what no record of an excerpt names the rank's agent sends the numbers alone (ROLL_DEF_SITES); by id - 1. */
    struct roll_site_number *number;
    size_t numbers;
    /* Identities and near places of all sites, by id - 1; near places are 0 where there is no line. Two ranks without
     * a common site are found out by comparing hundreds of sites with thousands. */
    uint64_t *full, *near_place;
    size_t full_room, near_room;
    bool is_reckoned; /* the two are those of what is defined now */
};

static int add_stack(struct site_table *t, const struct roll_def *def)
{
    if (def->id == 0 || def->id > SITES_MAX || def->callsite.depth > ROLL_CALLSITE_DEPTH) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(t->stack, t->stacks, def->id);
    if (rc != 0) {
        return rc;
    }
    struct stack *s = &t->stack[def->id - 1];
    s->depth = def->callsite.depth;
    s->lines = def->callsite.lines;
    memcpy(s->pc, def->callsite.pc, s->depth * sizeof(s->pc[0]));
    memcpy(s->line, def->callsite.line, s->lines * sizeof(s->line[0]));
    return 0;
}

static int add_source(struct roll_engine *e, struct site_table *t, const struct roll_def *def)
{
    if (def->id > SITES_MAX) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(t->source, t->sources, (size_t)def->id + 1);
    if (rc == 0) {
        t->source[def->id] = roll_site_source(def->source.path, def->source.path_bytes);
        rc = line_note_file(e, t->source[def->id], def->source.path, def->source.path_bytes);
    }
    return rc;
}

static int add_line(struct roll_engine *e, struct site_table *t, const struct roll_def *def)
{
    const struct roll_def_line *info = &def->line.info;
    if (def->id > SITES_MAX) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(t->line, t->lines, (size_t)def->id + 1);
    if (rc == 0) {
        uint64_t source = info->source < t->sources ? t->source[info->source] : 0;
        t->line[def->id] = roll_site_line(source, info, def->line.function);
        rc = line_note(e, t->line[def->id], source, info, def->line.function);
    }
    return rc;
}

static int add_module(struct site_table *t, const struct roll_def *def)
{
    const struct roll_def_module *info = &def->module.info;
    if (t->modules == MODULES_MAX) {
        return 0;
    }
    int rc = ROLL_GROW(t->module, t->module_room, t->modules + 1u);
    if (rc != 0) {
        return rc;
    }
    uint32_t at = t->modules++; /* an excerpt defines a module when a record first names it */
    for (; at > 0 && t->module[at - 1].id > def->id; at--) {
        t->module[at] = t->module[at - 1];
    }
    t->module[at] = (struct module){.start = info->start,
                                    .end = info->end,
                                    .bias = info->bias,
                                    .identity = roll_site_module(info, def->module.path),
                                    .id = def->id};
    return 0;
}

static int add_numbers(struct site_table *t, const struct roll_def *def)
{
    struct roll_site_number n;
    uint32_t id;
    int rc = ROLL_GROW_ZERO(t->number, t->numbers, (size_t)def->sites.first + def->sites.sites);
    for (uint32_t i = 0; rc == 0 && roll_def_site_number(def, i, &id, &n); i++) {
        t->number[id - 1] = n.whole != 0 || n.near != 0 ? n : t->number[id - 1];
    }
    return rc;
}

/* What the tables, which are found by ids of the source's own, grow by. */
static uint64_t table_bytes(const struct site_table *t, const struct roll_def *def)
{
    uint64_t ids = (uint64_t)def->id + 1;
    switch (def->id <= SITES_MAX ? def->type : 0) {
    case ROLL_DEF_SOURCE:
        return ids > t->sources ? (ids - t->sources) * sizeof(*t->source) : 0;
    case ROLL_DEF_LINE:
        return ids > t->lines ? (ids - t->lines) * sizeof(*t->line) : 0;
    case ROLL_DEF_CALLSITE:
        return ids > t->stacks ? (ids - t->stacks) * sizeof(*t->stack) : 0;
    case ROLL_DEF_SITES:
        ids = (uint64_t)def->sites.first + def->sites.sites;
        return ids > t->numbers ? (ids - t->numbers) * sizeof(*t->number) : 0;
    default:
        return 0;
    }
}

int site_define(struct roll_engine *e, struct source *s, const struct roll_def *def)
{
    if (!s->sites) {
        s->sites = calloc(1, sizeof(*s->sites));
        if (!s->sites) {
            return ROLL_E_NOMEM;
        }
    }
    uint64_t bytes = table_bytes(s->sites, def);
    if (bytes > 0 && !budget_take(e, s, bytes)) {
        budget_refuse_words(e, s); /* its calls are judged without their places */
        return 0;
    }
    s->sites->is_reckoned = false;
    switch (def->type) {
    case ROLL_DEF_MODULE:
        return add_module(s->sites, def);
    case ROLL_DEF_SOURCE:
        return add_source(e, s->sites, def);
    case ROLL_DEF_LINE:
        return add_line(e, s->sites, def);
    case ROLL_DEF_SITES:
        return add_numbers(s->sites, def);
    default:
        return add_stack(s->sites, def);
    }
}

void site_forget(struct source *s)
{
    if (s->sites) {
        free(s->sites->stack);
        free(s->sites->module);
        free(s->sites->source);
        free(s->sites->line);
        free(s->sites->number);
        free(s->sites->full);
        free(s->sites->near_place);
        free(s->sites);
        s->sites = NULL;
    }
}

/* The module that holds an address. Where modules came to the same place one after the other, it is the newest. */
static const struct module *module_of(const struct site_table *t, uint64_t pc)
{
    for (uint32_t i = t->modules; i-- > 0;) {
        if (pc >= t->module[i].start && pc < t->module[i].end) {
            return &t->module[i];
        }
    }
    return NULL;
}

/* The stack is one: a table has room for ids that were never defined. Other tools keep lines and no addresses. */
static bool is_there(const struct stack *stack)
{
    return stack && (stack->depth > 0 || stack->lines > 0);
}

/* The parts of a call site; without any where it was never defined. */
static struct roll_site parts(const struct site_table *t, uint32_t id)
{
    const struct stack *stack = t && id > 0 && id <= t->stacks ? &t->stack[id - 1] : NULL;
    struct roll_site site = {.depth = stack ? stack->depth : 0, .lines = stack ? stack->lines : 0};
    const struct module *module = NULL;
    for (; site.known < site.depth && (module = module_of(t, stack->pc[site.known])) != NULL; site.known++) {
        site.module[site.known] = module->identity;
        site.offset[site.known] = stack->pc[site.known] - module->bias;
    }
    for (uint32_t i = 0; i < site.lines; i++) {
        site.line[i] = stack->line[i].line < t->lines ? t->line[stack->line[i].line] : 0;
        site.folded[i] = stack->line[i].folded;
    }
    return site;
}

/* The number that an agent has sent of a call site that it has not sent; NULL: there is none. */
static const struct roll_site_number *told_number(const struct site_table *t, size_t at)
{
    const struct roll_site_number *n = at < t->numbers ? &t->number[at] : NULL;
    bool sent = at < t->stacks && is_there(&t->stack[at]);
    return n && !sent && (n->whole != 0 || n->near != 0) ? n : NULL;
}

/* So many call sites may be known, by their ids. */
static size_t sites_of(const struct site_table *t)
{
    return t->stacks > t->numbers ? t->stacks : t->numbers;
}

static uint64_t identity(const struct site_table *t, uint32_t id)
{
    struct roll_site site = parts(t, id);
    return roll_site_whole(&site);
}

uint64_t site_of(const struct source *s, const struct roll_record *rec)
{
    return identity(s->sites, rec->callsite);
}

uint64_t site_line(const struct roll_engine *e, const struct source *s, uint32_t callsite)
{
    const struct site_table *t = s->sites;
    const struct stack *stack = t && callsite > 0 && callsite <= t->stacks ? &t->stack[callsite - 1] : NULL;
    for (uint32_t i = 0; stack && i < stack->lines; i++) {
        uint64_t line = stack->line[i].line < t->lines ? t->line[stack->line[i].line] : 0;
        if (line_find(e, line)) {
            return line;
        }
    }
    return 0;
}

bool site_stands_aside(const struct roll_engine *e, const struct source *s, uint32_t callsite)
{
    static const char *const words[] = {"eval", "valid", "test", "infer", "generate", "save", "checkpoint"};
    const struct site_table *t = s->sites;
    const struct stack *stack = t && callsite > 0 && callsite <= t->stacks ? &t->stack[callsite - 1] : NULL;
    for (uint32_t i = 0; stack && i < stack->lines; i++) {
        uint64_t id = stack->line[i].line < t->lines ? t->line[stack->line[i].line] : 0;
        const struct python_line *line = line_find(e, id);
        const char *name = line ? strrchr(line->function, '.') : NULL;
        name = name ? name + 1 : line ? line->function : "";
        name += strspn(name, "_");
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) {
            if (strncmp(name, words[k], strlen(words[k])) == 0) {
                return true;
            }
        }
    }
    return false;
}

static uint64_t near(const struct site_table *t, uint32_t id)
{
    struct roll_site site = parts(t, id);
    return roll_site_near(&site);
}

/* Works out the identities of all sites, unless nothing was defined since. False without memory. */
static bool reckon(struct site_table *t)
{
    if (t->is_reckoned) {
        return true;
    }
    if (ROLL_GROW_ZERO(t->full, t->full_room, sites_of(t)) != 0 ||
        ROLL_GROW_ZERO(t->near_place, t->near_room, sites_of(t)) != 0) {
        return false;
    }
    for (size_t i = 0; i < sites_of(t); i++) {
        const struct roll_site_number *told = told_number(t, i);
        struct roll_site site = parts(t, (uint32_t)i + 1);
        t->full[i] = told ? told->whole : roll_site_whole(&site);
        t->near_place[i] = told ? told->near : site.lines > 0 ? roll_site_near(&site) : 0;
    }
    t->is_reckoned = true;
    return true;
}

static bool holds(const uint64_t *all, size_t count, uint64_t one)
{
    for (size_t i = count; i > 0; i--) {
        if (all[i - 1] == one) {
            return true;
        }
    }
    return false;
}

bool site_is_known(const struct source *s, uint64_t site)
{
    if (s->sites && site != 0 && reckon(s->sites)) {
        return holds(s->sites->full, sites_of(s->sites), site);
    }
    for (size_t i = s->sites ? sites_of(s->sites) : 0; i > 0; i--) {
        const struct roll_site_number *told = told_number(s->sites, i - 1);
        bool there = i <= s->sites->stacks && is_there(&s->sites->stack[i - 1]);
        if (told ? told->whole == site : there && identity(s->sites, (uint32_t)i) == site) {
            return true;
        }
    }
    return false;
}

/* Some site (near: some near place with a line) is common to two ranks. */
static bool some_is_common(const struct source *a, const struct source *b, bool near_place)
{
    uint32_t tried = 0;
    if (!reckon(a->sites) || !reckon(b->sites)) {
        return false;
    }
    const uint64_t *of_a = near_place ? a->sites->near_place : a->sites->full;
    const uint64_t *of_b = near_place ? b->sites->near_place : b->sites->full;
    for (size_t id = sites_of(a->sites); id > 0 && tried < COMMON_MAX; id--) {
        const struct roll_site_number *told = told_number(a->sites, id - 1);
        const struct stack *stack = id <= a->sites->stacks ? &a->sites->stack[id - 1] : NULL;
        bool has_lines = told ? told->near != 0 : stack && stack->lines > 0;
        if (!(told || is_there(stack)) || (near_place && !has_lines)) {
            continue;
        }
        tried++;
        if (of_a[id - 1] != 0 && holds(of_b, sites_of(b->sites), of_a[id - 1])) {
            return true;
        }
    }
    return false;
}

bool site_is_home(const struct source *s, const struct source *other, const struct roll_record *of_other)
{
    uint64_t site = site_of(other, of_other);
    if (site == 0 || !s->sites) {
        return false;
    }
    if (site_is_known(s, site)) {
        return true;
    }
    bool line = other->sites->stack[of_other->callsite - 1].lines > 0;
    uint64_t place = line ? near(other->sites, of_other->callsite) : 0;
    return place != 0 && reckon(s->sites) && holds(s->sites->near_place, sites_of(s->sites), place) &&
           !some_is_common(s, other, false);
}

/*
 * Where stacks were walked through code without frame pointers, they have other addresses on each rank, and no site is
 * common: then sites of the two cannot be compared, but for their lines of Python. Where some site is common, callers
 * could be walked, and two stacks that part behind a common line are two calls of one native function.
 */
enum site_relation site_compare(const struct source *a, const struct roll_record *of_a, const struct source *b,
                                const struct roll_record *of_b)
{
    uint64_t full_a = site_of(a, of_a), full_b = site_of(b, of_b);
    if (full_a == 0 || full_b == 0) {
        return SITE_UNKNOWN;
    }
    if (full_a == full_b) {
        return SITE_SAME;
    }
    if (near(a->sites, of_a->callsite) != near(b->sites, of_b->callsite)) {
        return some_is_common(a, b, false) || some_is_common(a, b, true) ? SITE_OTHER : SITE_UNKNOWN;
    }
    if (site_is_known(a, full_b) || site_is_known(b, full_a)) {
        return SITE_OTHER;
    }
    bool line = a->sites->stack[of_a->callsite - 1].lines > 0;
    return line && !some_is_common(a, b, false) ? SITE_SAME : SITE_UNKNOWN;
}
