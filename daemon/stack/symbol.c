/*
 * symbol.c: keeps the modules and call sites that the ranks defined, and makes frames of them on demand.
 *
 * Call sites are symbolised when a verdict first shows them, not when they are defined: a job defines thousands and
 * shows a handful. Reading debug information takes long; a live root does it ahead (symbol_warm.c).
 * Modules of one ring are searched newest first, because a library that was unloaded may have left its addresses to
 * another. Reading the debug information itself is symbol_file.c.
 */
#include "daemon/stack/symbol.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/stack/symbol_file.h"
#include "daemon/stack/symbol_warm.h"
#include "daemon/stack/text_pool.h"
#include "trace/err.h"
#include "trace/source_line.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct module {
    uint64_t start, end, bias;
    struct roll_symbol_file *file; /* borrowed from the table */
    uint32_t id;
};

/* A line of Python. Texts are the table's. */
struct line {
    const char *file, *function; /* NULL: never defined */
    const char *text;            /* NULL: not known */
    uint32_t number;
    bool library;
};

struct callsite {
    uint32_t depth; /* return addresses; 0 = never defined */
    uint32_t lines, stands;
    bool resolved;
    uint64_t pc[ROLL_CALLSITE_DEPTH];
    struct roll_callsite_line line[ROLL_CALLSITE_LINES], stand[ROLL_CALLSITE_LINES];
    size_t frames;
    struct roll_symbol_frame *frame; /* the native ones. Owned; strings belong to the files and the table */
};

/* The definitions of one ring. */
struct ring_defs {
    struct module *module;
    size_t modules, module_room;
    struct callsite *callsite; /* by id */
    size_t callsite_room;
    const char **source; /* paths by id; the texts are the table's */
    size_t source_room;
    struct line *line; /* by id */
    size_t line_room;
};

struct roll_symbols {
    struct ring_defs *ring; /* owned, in the order in which they were first heard of */
    size_t rings, ring_room;
    struct roll_map index; /* from epochs to numbers of rings */
    struct roll_symbol_file **file;
    size_t files, file_room;
    roll_symbol_warm_t *warm; /* NULL: names are looked up when they are shown */
    struct roll_text_pool pool;
};

roll_symbols_t *roll_symbols_new(void)
{
    return calloc(1, sizeof(struct roll_symbols));
}

static void ring_fini(struct ring_defs *ring)
{
    for (size_t i = 0; i < ring->callsite_room; i++) {
        free(ring->callsite[i].frame);
    }
    free(ring->callsite);
    free(ring->module);
    free(ring->source);
    free(ring->line);
}

void roll_symbols_destroy(roll_symbols_t **symbols)
{
    struct roll_symbols *table = *symbols;
    if (table == NULL) {
        return;
    }
    roll_symbol_warm_destroy(&table->warm);
    for (size_t i = 0; i < table->rings; i++) {
        ring_fini(&table->ring[i]);
    }
    for (size_t i = 0; i < table->files; i++) {
        roll_symbol_file_destroy(&table->file[i]);
    }
    roll_map_fini(&table->index);
    roll_text_pool_fini(&table->pool);
    free(table->ring);
    free(table->file);
    free(table);
    *symbols = NULL;
}

/* rings */

static struct ring_defs *find_ring(const struct roll_symbols *table, uint64_t epoch)
{
    uint32_t number = roll_map_get(&table->index, epoch);
    return number == ROLL_MAP_NONE ? NULL : &table->ring[number];
}

static struct ring_defs *get_ring(struct roll_symbols *table, uint64_t epoch)
{
    struct ring_defs *ring = find_ring(table, epoch);
    if (ring != NULL) {
        return ring;
    }
    if (ROLL_GROW(table->ring, table->ring_room, table->rings + 1) != 0 ||
        roll_map_add(&table->index, epoch, (uint32_t)table->rings) != 0) {
        return NULL;
    }
    ring = &table->ring[table->rings++];
    *ring = (struct ring_defs){0};
    return ring;
}

/* definitions */

static struct roll_symbol_file *get_file(struct roll_symbols *table, const struct roll_def *def)
{
    const struct roll_def_module *info = &def->module.info;
    for (size_t i = 0; i < table->files; i++) {
        if (roll_symbol_file_is(table->file[i], def->module.path, info->path_bytes, info->build_id,
                                info->build_id_bytes)) {
            return table->file[i];
        }
    }
    if (ROLL_GROW(table->file, table->file_room, table->files + 1) != 0) {
        return NULL;
    }
    struct roll_symbol_file *file =
        roll_symbol_file_new(def->module.path, info->path_bytes, info->build_id, info->build_id_bytes);
    if (file != NULL) {
        table->file[table->files++] = file;
    }
    return file;
}

static int define_module(struct roll_symbols *table, struct ring_defs *ring, const struct roll_def *def)
{
    int err = ROLL_GROW(ring->module, ring->module_room, ring->modules + 1);
    if (err != 0) {
        return err;
    }
    struct roll_symbol_file *file = get_file(table, def);
    if (file == NULL) {
        return ROLL_E_NOMEM;
    }
    const struct roll_def_module *info = &def->module.info;
    size_t at =
        ring->modules++; /* the newest at a place counts, and an excerpt defines one when a record first names it */
    for (; at > 0 && ring->module[at - 1].id > def->id; at--) {
        ring->module[at] = ring->module[at - 1];
    }
    ring->module[at] = (struct module){info->start, info->end, info->bias, file, def->id};
    return ROLL_OK;
}

static int define_callsite(struct ring_defs *ring, const struct roll_def *def)
{
    if (def->id > UINT16_MAX || def->callsite.depth > ROLL_CALLSITE_DEPTH) {
        return ROLL_OK; /* no record can refer to it */
    }
    int err = ROLL_GROW_ZERO(ring->callsite, ring->callsite_room, (size_t)def->id + 1);
    if (err != 0) {
        return err;
    }
    struct callsite *site = &ring->callsite[def->id];
    /* Ids are never reused: a second definition is the first one, sent again. */
    if (site->depth == 0 && site->lines == 0) {
        site->depth = def->callsite.depth;
        memcpy(site->pc, def->callsite.pc, site->depth * sizeof(site->pc[0]));
        site->lines = def->callsite.lines;
        memcpy(site->line, def->callsite.line, site->lines * sizeof(site->line[0]));
    }
    return ROLL_OK;
}

/* A text that is not terminated, kept in the table. */
static const char *keep(struct roll_symbols *table, const char *text, uint32_t bytes)
{
    char copy[ROLL_DEF_MAX_BYTES + 1];
    uint32_t n = bytes < ROLL_DEF_MAX_BYTES ? bytes : ROLL_DEF_MAX_BYTES;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return roll_text_keep(&table->pool, copy);
}

static int define_source(struct roll_symbols *table, struct ring_defs *ring, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(ring->source, ring->source_room, (size_t)def->id + 1);
    if (err == 0 && ring->source[def->id] == NULL) {
        ring->source[def->id] = keep(table, def->source.path, def->source.path_bytes);
    }
    return err;
}

static int define_line(struct roll_symbols *table, struct ring_defs *ring, const struct roll_def *def)
{
    const struct roll_def_line *info = &def->line.info;
    int err = ROLL_GROW_ZERO(ring->line, ring->line_room, (size_t)def->id + 1);
    if (err == 0 && ring->line[def->id].function == NULL) {
        bool known = info->source < ring->source_room && ring->source[info->source] != NULL;
        ring->line[def->id] = (struct line){.text = ring->line[def->id].text,
                                            .file = known ? ring->source[info->source] : "",
                                            .function = keep(table, def->line.function, info->function_bytes),
                                            .number = info->line,
                                            .library = (info->flags & ROLL_DEF_LINE_LIBRARY) != 0};
    }
    return err;
}

/* A text may come before its line, and again. The newest counts. */
static int define_text(struct roll_symbols *table, struct ring_defs *ring, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(ring->line, ring->line_room, (size_t)def->id + 1);
    if (err == 0) {
        ring->line[def->id].text = keep(table, def->text.text, def->text.text_bytes);
    }
    return err;
}

static int define_stand(struct ring_defs *ring, const struct roll_def *def)
{
    int err = def->id <= UINT16_MAX ? ROLL_GROW_ZERO(ring->callsite, ring->callsite_room, (size_t)def->id + 1) : 0;
    if (err == 0 && def->id <= UINT16_MAX && ring->callsite[def->id].stands == 0) {
        struct callsite *site = &ring->callsite[def->id];
        site->stands = def->stand.lines;
        memcpy(site->stand, def->stand.line, site->stands * sizeof(site->stand[0]));
    }
    return err;
}

static const struct module *find_module(const struct ring_defs *ring, uint64_t pc)
{
    for (size_t i = ring->modules; i > 0; i--) {
        const struct module *module = &ring->module[i - 1];
        if (pc >= module->start && pc < module->end) {
            return module;
        }
    }
    return NULL;
}

static bool is_own(const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    return strncmp(base, "librollcall", strlen("librollcall")) == 0;
}

void roll_symbols_warm(roll_symbols_t *symbols)
{
    symbols->warm = symbols->warm != NULL ? symbols->warm : roll_symbol_warm_new();
}

size_t roll_symbols_open(const roll_symbols_t *symbols)
{
    size_t n = 0;
    for (size_t i = 0; i < symbols->files; i++) {
        n += roll_symbol_file_is_open(symbols->file[i]);
    }
    return n;
}

/* Asks ahead for the addresses that resolve() will ask for. */
static void warm_up(struct roll_symbols *table, const struct ring_defs *ring, const struct roll_def *def)
{
    for (uint32_t i = 0; table->warm != NULL && i < def->callsite.depth; i++) {
        uint64_t call = def->callsite.pc[i] > 0 ? def->callsite.pc[i] - 1 : 0;
        const struct module *module = find_module(ring, call);
        if (module != NULL && !is_own(roll_symbol_file_path(module->file))) {
            roll_symbol_warm_add(table->warm, module->file, call - module->bias);
        }
    }
}

int roll_symbols_define(roll_symbols_t *symbols, uint64_t epoch, const struct roll_def *def)
{
    static const bool wanted[] = {[ROLL_DEF_MODULE] = true, [ROLL_DEF_CALLSITE] = true, [ROLL_DEF_SOURCE] = true,
                                  [ROLL_DEF_LINE] = true,   [ROLL_DEF_STAND] = true,    [ROLL_DEF_TEXT] = true};
    struct ring_defs *into = NULL;
    int err = 0;
    if ((size_t)def->type >= sizeof(wanted) / sizeof(wanted[0]) || !wanted[def->type]) {
        return ROLL_OK;
    }
    into = get_ring(symbols, epoch);
    if (into == NULL) {
        return ROLL_E_NOMEM;
    }
    switch (def->type) {
    case ROLL_DEF_MODULE:
        return define_module(symbols, into, def);
    case ROLL_DEF_SOURCE:
        return define_source(symbols, into, def);
    case ROLL_DEF_LINE:
        return define_line(symbols, into, def);
    case ROLL_DEF_STAND:
        return define_stand(into, def);
    case ROLL_DEF_TEXT:
        return define_text(symbols, into, def);
    default:
        err = define_callsite(into, def);
        if (err == ROLL_OK) {
            warm_up(symbols, into, def);
        }
        return err;
    }
}

/* call sites */

/* Writes the frames of one return address; the call is the instruction in front of that address. may_read: what nobody
 * has looked up is read from files; else, `*lacks` says that it is not known. */
static size_t resolve_pc(const struct ring_defs *ring, uint64_t pc, bool may_read, bool *lacks,
                         struct roll_symbol_frame *out, size_t max)
{
    uint64_t call = pc > 0 ? pc - 1 : 0;
    const struct module *module = find_module(ring, call);
    if (module == NULL) {
        *out = (struct roll_symbol_frame){.function = "", .file = "", .module = "", .offset = call};
        return 1;
    }
    if (is_own(roll_symbol_file_path(module->file))) {
        return 0;
    }
    if (may_read) {
        return roll_symbol_file_frames(module->file, call - module->bias, out, max);
    }
    size_t n = roll_symbol_file_known(module->file, call - module->bias, out, max);
    *lacks = *lacks || n == 0;
    return n;
}

/* Frames of some lines, behind those that `out` has; returns how many there are then, at most `max`. */
static size_t add_lines(const struct ring_defs *ring, const struct roll_callsite_line *lines, uint32_t count,
                        bool stand, struct roll_symbol_frame *out, size_t n, size_t max)
{
    for (uint32_t i = 0; i < count && n < max; i++) {
        uint32_t id = lines[i].line;
        const struct line *line = id < ring->line_room ? &ring->line[id] : NULL;
        if (line != NULL && line->function != NULL) {
            out[n++] = (struct roll_symbol_frame){.function = line->function,
                                                  .file = line->file,
                                                  .line = line->number,
                                                  .module = "",
                                                  .python = true,
                                                  .library = line->library,
                                                  .stand = stand,
                                                  .folded = lines[i].folded,
                                                  .text = line->text != NULL ? line->text : ""};
        }
    }
    return n;
}

/* The native frames of a call site, all or none of them, kept from then on. */
static void resolve(const struct ring_defs *ring, struct callsite *site, bool may_read)
{
    struct roll_symbol_frame frames[ROLL_SYMBOL_FRAMES];
    size_t used = 0;
    bool lacks = false;
    for (uint32_t i = 0; i < site->depth && used < ROLL_SYMBOL_FRAMES && !lacks; i++) {
        used += resolve_pc(ring, site->pc[i], may_read, &lacks, frames + used, ROLL_SYMBOL_FRAMES - used);
    }
    if (lacks) {
        return;
    }
    if (used == 0) {
        site->resolved = true;
        return;
    }
    site->frame = malloc(used * sizeof(frames[0]));
    if (site->frame != NULL) {
        memcpy(site->frame, frames, used * sizeof(frames[0]));
        site->frames = used;
        site->resolved = true;
    }
}

static struct callsite *find_callsite(const roll_symbols_t *symbols, uint64_t epoch, uint32_t id,
                                      const struct ring_defs **from)
{
    *from = find_ring(symbols, epoch);
    struct callsite *site = *from != NULL && id < (*from)->callsite_room ? &(*from)->callsite[id] : NULL;
    return site != NULL && (site->depth > 0 || site->lines > 0) ? site : NULL; /* other tools keep lines alone */
}

static size_t lines_of(const struct ring_defs *ring, const struct callsite *site, struct roll_symbol_frame *out,
                       size_t max)
{
    size_t n = add_lines(ring, site->line, site->lines, false, out, 0, max);
    return add_lines(ring, site->stand, site->stands, true, out, n, max);
}

static int frames_of(const roll_symbols_t *symbols, uint64_t epoch, uint32_t id, bool may_read,
                     struct roll_symbol_frame *out, size_t max)
{
    const struct ring_defs *from;
    struct callsite *site = find_callsite(symbols, epoch, id, &from);
    if (site == NULL) {
        return 0;
    }
    if (!site->resolved) {
        resolve(from, site, may_read);
    }
    size_t n = lines_of(from, site, out, max), native = site->frames < max - n ? site->frames : max - n;
    if (native > 0) {
        memcpy(out + n, site->frame, native * sizeof(*out));
    }
    return (int)(n + native);
}

int roll_symbols_callsite(roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out,
                          size_t max)
{
    return frames_of(symbols, epoch, id, true, out, max);
}

int roll_symbols_known(roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out, size_t max)
{
    return frames_of(symbols, epoch, id, false, out, max);
}

int roll_symbols_lines(const roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out,
                       size_t max)
{
    const struct ring_defs *from;
    const struct callsite *site = find_callsite(symbols, epoch, id, &from);
    return site != NULL ? (int)lines_of(from, site, out, max) : 0;
}

/* places */

const char *roll_symbols_stand_words(bool backward)
{
    return backward ? "in backward, started at" : "while the main thread was at";
}

bool roll_symbols_native_place(const struct roll_symbol_frame *frame, size_t frames, char *out, size_t size)
{
    for (size_t i = 0; i < frames; i++) {
        if (!frame[i].python && frame[i].line > 0 && frame[i].file[0] != '\0') {
            (void)roll_source_line_text(out, size, frame[i].file, frame[i].line, frame[i].function);
            return true;
        }
    }
    return false;
}

bool roll_symbols_place(const struct roll_symbol_frame *frame, size_t frames, char *out, size_t size, const char **text)
{
    const struct roll_symbol_frame *best = NULL;
    bool backward = false;
    for (size_t i = 0; i < frames && (best == NULL || best->library); i++) {
        backward = backward || (frame[i].stand && frame[i].library && strstr(frame[i].function, "backward") != NULL);
        if (frame[i].python && (best == NULL || !frame[i].library)) {
            best = &frame[i];
        }
    }
    if (best == NULL) {
        return false;
    }
    char line[200];
    *text = best->text;
    snprintf(out, size, "%s%s%s", best->stand ? roll_symbols_stand_words(backward) : "", best->stand ? " " : "",
             roll_source_line_text(line, sizeof(line), best->file, best->line, best->function));
    return true;
}
