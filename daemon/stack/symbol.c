/*
 * symbol.c: keeps the modules and call sites that the ranks defined, and makes frames of them on demand.
 *
 * Call sites are symbolised when a verdict first shows them, not when they are defined: a job defines thousands and
 * shows a handful. Reading debug information takes long; a live root does it ahead (symbol_warm.c).
 * Modules of one ring are searched newest first, because a library that was unloaded may have left its addresses to
 * another. Reading the debug information itself is symbol_file.c.
 */
#include "daemon/stack/symbol.h"
#include "daemon/stack/symbol_file.h"
#include "daemon/stack/symbol_warm.h"
#include "trace/err.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct module {
    uint64_t start, end, bias;
    struct roll_symbol_file *file; /* borrowed from the table */
};

struct callsite {
    uint32_t depth; /* return addresses; 0 = never defined */
    bool resolved;
    uint64_t pc[ROLL_CALLSITE_DEPTH];
    size_t frames;
    struct roll_symbol_frame *frame; /* owned; strings belong to the files and the table */
};

/* The definitions of one ring. */
struct stream {
    uint64_t epoch;
    struct module *module;
    size_t modules, module_room;
    struct callsite *callsite; /* by id */
    size_t callsite_room;
};

struct roll_symbols {
    struct stream **slot; /* open addressing by epoch */
    size_t slots, streams;
    struct roll_symbol_file **file;
    size_t files, file_room;
    roll_symbol_warm_t *warm; /* NULL: names are looked up when they are shown */
};

roll_symbols_t *roll_symbols_new(void)
{
    return calloc(1, sizeof(struct roll_symbols));
}

static void destroy_stream(struct stream *stream)
{
    for (size_t i = 0; i < stream->callsite_room; i++) {
        free(stream->callsite[i].frame);
    }
    free(stream->callsite);
    free(stream->module);
    free(stream);
}

void roll_symbols_destroy(roll_symbols_t **symbols)
{
    struct roll_symbols *table = *symbols;
    if (table == NULL) {
        return;
    }
    roll_symbol_warm_destroy(&table->warm);
    for (size_t i = 0; i < table->slots; i++) {
        if (table->slot[i] != NULL) {
            destroy_stream(table->slot[i]);
        }
    }
    for (size_t i = 0; i < table->files; i++) {
        roll_symbol_file_destroy(&table->file[i]);
    }
    free(table->slot);
    free(table->file);
    free(table);
    *symbols = NULL;
}

/* ---- rings ---- */

static size_t place(const struct roll_symbols *table, uint64_t epoch)
{
    size_t i = (size_t)(epoch * 0x9e3779b97f4a7c15u >> 20) & (table->slots - 1);
    while (table->slot[i] != NULL && table->slot[i]->epoch != epoch) {
        i = (i + 1) & (table->slots - 1);
    }
    return i;
}

static struct stream *find_stream(const struct roll_symbols *table, uint64_t epoch)
{
    return table->slots == 0 ? NULL : table->slot[place(table, epoch)];
}

static int grow_slots(struct roll_symbols *table)
{
    struct roll_symbols grown = *table;
    grown.slots = table->slots == 0 ? 64 : table->slots * 2;
    grown.slot = calloc(grown.slots, sizeof(struct stream *));
    if (grown.slot == NULL) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < table->slots; i++) {
        if (table->slot[i] != NULL) {
            grown.slot[place(&grown, table->slot[i]->epoch)] = table->slot[i];
        }
    }
    free(table->slot);
    *table = grown;
    return ROLL_OK;
}

static struct stream *get_stream(struct roll_symbols *table, uint64_t epoch)
{
    struct stream *stream = find_stream(table, epoch);
    if (stream != NULL) {
        return stream;
    }
    if (table->streams * 2 >= table->slots && grow_slots(table) < 0) {
        return NULL;
    }
    stream = calloc(1, sizeof(*stream));
    if (stream != NULL) {
        stream->epoch = epoch;
        table->slot[place(table, epoch)] = stream;
        table->streams++;
    }
    return stream;
}

/* ---- definitions ---- */

static struct roll_symbol_file *get_file(struct roll_symbols *table, const struct roll_def *def)
{
    const struct roll_def_module *info = &def->module.info;
    for (size_t i = 0; i < table->files; i++) {
        if (roll_symbol_file_is(table->file[i], def->module.path, info->path_bytes, info->build_id,
                                info->build_id_bytes)) {
            return table->file[i];
        }
    }
    if (table->files == table->file_room) {
        size_t room = table->file_room == 0 ? 16 : table->file_room * 2;
        struct roll_symbol_file **grown = realloc(table->file, room * sizeof(struct roll_symbol_file *));
        if (grown == NULL) {
            return NULL;
        }
        table->file = grown;
        table->file_room = room;
    }
    struct roll_symbol_file *file =
        roll_symbol_file_new(def->module.path, info->path_bytes, info->build_id, info->build_id_bytes);
    if (file != NULL) {
        table->file[table->files++] = file;
    }
    return file;
}

static int define_module(struct roll_symbols *table, struct stream *stream, const struct roll_def *def)
{
    if (stream->modules == stream->module_room) {
        size_t room = stream->module_room == 0 ? 16 : stream->module_room * 2;
        struct module *grown = realloc(stream->module, room * sizeof(*grown));
        if (grown == NULL) {
            return ROLL_E_NOMEM;
        }
        stream->module = grown;
        stream->module_room = room;
    }
    struct roll_symbol_file *file = get_file(table, def);
    if (file == NULL) {
        return ROLL_E_NOMEM;
    }
    const struct roll_def_module *info = &def->module.info;
    stream->module[stream->modules++] = (struct module){info->start, info->end, info->bias, file};
    return ROLL_OK;
}

static int define_callsite(struct stream *stream, const struct roll_def *def)
{
    if (def->id > UINT16_MAX || def->callsite.depth > ROLL_CALLSITE_DEPTH) {
        return ROLL_OK; /* no record can refer to it */
    }
    if (def->id >= stream->callsite_room) {
        size_t room = stream->callsite_room == 0 ? 64 : stream->callsite_room;
        while (room <= def->id) {
            room *= 2;
        }
        struct callsite *grown = realloc(stream->callsite, room * sizeof(*grown));
        if (grown == NULL) {
            return ROLL_E_NOMEM;
        }
        memset(grown + stream->callsite_room, 0, (room - stream->callsite_room) * sizeof(*grown));
        stream->callsite = grown;
        stream->callsite_room = room;
    }
    struct callsite *site = &stream->callsite[def->id];
    if (site->depth == 0) { /* ids are never reused: a second definition is the first one, sent again */
        site->depth = def->callsite.depth;
        memcpy(site->pc, def->callsite.pc, site->depth * sizeof(site->pc[0]));
    }
    return ROLL_OK;
}

static const struct module *find_module(const struct stream *stream, uint64_t pc)
{
    for (size_t i = stream->modules; i > 0; i--) {
        const struct module *module = &stream->module[i - 1];
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

/* Asks ahead for the addresses that resolve() will ask for. */
static void warm_up(struct roll_symbols *table, const struct stream *stream, const struct roll_def *def)
{
    for (uint32_t i = 0; table->warm != NULL && i < def->callsite.depth; i++) {
        uint64_t call = def->callsite.pc[i] > 0 ? def->callsite.pc[i] - 1 : 0;
        const struct module *module = find_module(stream, call);
        if (module != NULL && !is_own(roll_symbol_file_path(module->file))) {
            roll_symbol_warm_add(table->warm, module->file, call - module->bias);
        }
    }
}

int roll_symbols_define(roll_symbols_t *symbols, uint64_t stream, const struct roll_def *def)
{
    if (def->type != ROLL_DEF_MODULE && def->type != ROLL_DEF_CALLSITE) {
        return ROLL_OK;
    }
    struct stream *into = get_stream(symbols, stream);
    if (into == NULL) {
        return ROLL_E_NOMEM;
    }
    if (def->type == ROLL_DEF_MODULE) {
        return define_module(symbols, into, def);
    }
    int err = define_callsite(into, def);
    if (err == ROLL_OK) {
        warm_up(symbols, into, def);
    }
    return err;
}

/* ---- call sites ---- */

/* Writes the frames of one return address; the call is the instruction in front of that address. */
static size_t resolve_pc(const struct stream *stream, uint64_t pc, struct roll_symbol_frame *out, size_t max)
{
    uint64_t call = pc > 0 ? pc - 1 : 0;
    const struct module *module = find_module(stream, call);
    if (module == NULL) {
        *out = (struct roll_symbol_frame){.function = "", .file = "", .module = "", .offset = call};
        return 1;
    }
    if (is_own(roll_symbol_file_path(module->file))) {
        return 0;
    }
    return roll_symbol_file_frames(module->file, call - module->bias, out, max);
}

static void resolve(const struct stream *stream, struct callsite *site)
{
    struct roll_symbol_frame frames[ROLL_SYMBOL_FRAMES];
    size_t used = 0;
    for (uint32_t i = 0; i < site->depth && used < ROLL_SYMBOL_FRAMES; i++) {
        used += resolve_pc(stream, site->pc[i], frames + used, ROLL_SYMBOL_FRAMES - used);
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

int roll_symbols_callsite(roll_symbols_t *symbols, uint64_t stream, uint32_t id, struct roll_symbol_frame *out,
                          size_t max)
{
    struct stream *from = find_stream(symbols, stream);
    if (from == NULL || id >= from->callsite_room || from->callsite[id].depth == 0) {
        return 0;
    }
    struct callsite *site = &from->callsite[id];
    if (!site->resolved) {
        resolve(from, site);
    }
    size_t n = site->frames < max ? site->frames : max;
    if (n > 0) {
        memcpy(out, site->frame, n * sizeof(*out));
    }
    return (int)n;
}
