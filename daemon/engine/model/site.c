/*
 * site.c: where in the program a call stands, as a number that is the same on every rank that runs the same binaries.
 *
 * A record names its call site by an id of its own process, and a definition lists the return addresses behind it.
 * Addresses differ from process to process; module (by build id, else by file name) and offset do not. The whole
 * recorded stack counts, and not the innermost frame alone: a program that makes all its calls through one helper has
 * one innermost frame and many callers. The numbers are worked out when ranks disagree, so the path of a record does
 * not pass here. Symbols and lines were rejected: they need files, and the engine has none.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/source.h"

#include <stdlib.h>
#include <string.h>

#define SITES_MAX   UINT16_MAX
#define MODULES_MAX 4096u
#define COMMON_MAX  512u /* of a rank's sites the newest that are tried as common to two ranks */

struct stack {
    uint32_t depth;
    uint64_t pc[ROLL_CALLSITE_DEPTH];
};

struct module {
    uint64_t start, end, bias, identity;
};

struct site_table {
    struct stack *stack; /* by id - 1 */
    size_t stacks;
    struct module *module; /* in the order of their definitions */
    uint32_t modules;
    size_t module_room;
};

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 31;
}

static uint64_t mix_bytes(uint64_t h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        h = mix(h, ((const uint8_t *)bytes)[i]);
    }
    return h;
}

/* A module is known by its build id, which depends on its contents; else by the last part of its path, because the
 * folders before that part need not be the same on every host. */
static uint64_t module_identity(const struct roll_def_module *info, const char *path)
{
    uint32_t bytes = info->build_id_bytes;
    if (bytes > 0 && bytes <= sizeof(info->build_id)) {
        return mix_bytes(1, info->build_id, bytes);
    }
    uint32_t from = info->path_bytes;
    while (from > 0 && path[from - 1] != '/') {
        from--;
    }
    return mix_bytes(2, path + from, info->path_bytes - from);
}

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
    memcpy(s->pc, def->callsite.pc, s->depth * sizeof(s->pc[0]));
    return 0;
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
    t->module[t->modules++] = (struct module){.start = info->start,
                                              .end = info->end,
                                              .bias = info->bias,
                                              .identity = module_identity(info, def->module.path)};
    return 0;
}

int site_define(struct source *s, const struct roll_def *def)
{
    if (!s->sites) {
        s->sites = calloc(1, sizeof(*s->sites));
        if (!s->sites) {
            return ROLL_E_NOMEM;
        }
    }
    return def->type == ROLL_DEF_MODULE ? add_module(s->sites, def) : add_stack(s->sites, def);
}

void site_forget(struct source *s)
{
    if (s->sites) {
        free(s->sites->stack);
        free(s->sites->module);
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

static uint64_t identity(const struct site_table *t, uint32_t id)
{
    const struct stack *stack = t && id > 0 && id <= t->stacks ? &t->stack[id - 1] : NULL;
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; stack && i < stack->depth; i++) {
        const struct module *module = module_of(t, stack->pc[i]);
        if (!module && i == 0) {
            return 0;
        }
        if (!module) {
            break; /* code that was made at run time: only the frames before it are known */
        }
        h = mix(mix(h, module->identity), stack->pc[i] - module->bias);
    }
    return stack && stack->depth > 0 ? h | 1 : 0;
}

uint64_t site_of(const struct source *s, const struct roll_record *rec)
{
    return identity(s->sites, rec->callsite);
}

bool site_is_known(const struct source *s, uint64_t site)
{
    for (size_t i = s->sites ? s->sites->stacks : 0; i > 0; i--) {
        if (s->sites->stack[i - 1].depth > 0 && identity(s->sites, (uint32_t)i) == site) {
            return true;
        }
    }
    return false;
}

/* Some site is common to two ranks. None may be where stacks were walked through code without frame pointers, which
 * gives other addresses on each rank: then sites of the two cannot be compared. */
static bool site_comparable(const struct source *a, const struct source *b)
{
    if (!a->sites || !b->sites) {
        return false;
    }
    uint32_t tried = 0;
    for (size_t id = a->sites->stacks; id > 0 && tried < COMMON_MAX; id--) {
        if (a->sites->stack[id - 1].depth == 0) {
            continue; /* the table has room for ids that were never defined */
        }
        uint64_t site = identity(a->sites, (uint32_t)id);
        tried++;
        if (site != 0 && site_is_known(b, site)) {
            return true;
        }
    }
    return false;
}

/* The innermost frame alone, as a number. Its address, right behind the call, is exact; the frames around it may have
 * been guessed from words on the stack. */
static uint64_t innermost(const struct site_table *t, uint32_t id)
{
    const struct stack *stack = t && id > 0 && id <= t->stacks ? &t->stack[id - 1] : NULL;
    const struct module *module = stack && stack->depth > 0 ? module_of(t, stack->pc[0]) : NULL;
    return module ? mix(mix(1, module->identity), stack->pc[0] - module->bias) | 1 : 0;
}

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
    bool elsewhere = innermost(a->sites, of_a->callsite) != innermost(b->sites, of_b->callsite);
    if (elsewhere ? site_comparable(a, b) : site_is_known(a, full_b) || site_is_known(b, full_a)) {
        return SITE_OTHER;
    }
    return SITE_UNKNOWN;
}
