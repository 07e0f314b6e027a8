/* names.c: a table of places over symbol_file.h. Sampling only notes places; names are made later, when no thread is
 * held up. */
#include "daemon/stack/names.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static size_t slot_of(const struct roll_names *n, const struct roll_symbol_file *file, uint64_t address)
{
    uint64_t hash = (address ^ (uint64_t)(uintptr_t)file) * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(hash >> 24) & (n->slots - 1);
    while (n->slot[i]) {
        const struct roll_place_in_file *p = &n->place[n->slot[i] - 1];
        if (p->file == file && p->address == address) {
            break;
        }
        i = (i + 1) & (n->slots - 1);
    }
    return i;
}

static bool grow(struct roll_names *n)
{
    if (n->used == n->room) {
        size_t room = n->room ? n->room * 2 : 512;
        struct roll_place_in_file *place = realloc(n->place, room * sizeof(*place));
        if (!place) {
            return false;
        }
        n->place = place;
        n->room = room;
    }
    if (n->used * 2 >= n->slots) {
        uint32_t *slot = calloc(n->slots ? n->slots * 2 : 1024, sizeof(*slot));
        if (!slot) {
            return false;
        }
        free(n->slot);
        n->slot = slot;
        n->slots = n->slots ? n->slots * 2 : 1024;
        for (size_t i = 0; i < n->used; i++) {
            n->slot[slot_of(n, n->place[i].file, n->place[i].address)] = (uint32_t)i + 1;
        }
    }
    return true;
}

static struct named_file *file_of(struct roll_names *n, const struct roll_target *target, const struct roll_module *m)
{
    char path[PATH_MAX + 64];
    roll_target_path(target, m->path, path, sizeof(path));
    size_t bytes = strlen(path);
    for (size_t i = 0; i < n->files; i++) {
        if (roll_symbol_file_is(n->file[i].file, path, bytes, m->build_id, m->build_id_bytes)) {
            return &n->file[i];
        }
    }
    if (n->files == n->file_room) {
        size_t room = n->file_room ? n->file_room * 2 : 64;
        struct named_file *file = realloc(n->file, room * sizeof(*file));
        if (!file) {
            return NULL;
        }
        n->file = file;
        n->file_room = room;
    }
    struct named_file f = {roll_symbol_file_new(path, bytes, m->build_id, m->build_id_bytes), strdup(m->path)};
    if (!f.file || !f.module) {
        roll_symbol_file_destroy(&f.file);
        free(f.module);
        return NULL;
    }
    n->file[n->files] = f;
    return &n->file[n->files++];
}

uint32_t roll_names_place(struct roll_names *n, const struct roll_target *target, struct roll_module *module,
                          uint64_t address)
{
    const struct named_file *file = NULL;
    if (module) {
        if (!module->symbols) {
            file = file_of(n, target, module);
            if (!file) {
                return UINT32_MAX;
            }
            module->symbols = (void *)((uintptr_t)(file - n->file) +
                                       1); /* the file's number + 1, not its address: the table may move */
        }
        file = &n->file[(uintptr_t)module->symbols - 1];
        address -= module->bias;
    }
    if (!grow(n)) {
        return UINT32_MAX;
    }
    struct roll_symbol_file *symbols = file ? file->file : NULL;
    size_t i = slot_of(n, symbols, address);
    if (n->slot[i] == 0) {
        n->place[n->used] = (struct roll_place_in_file){symbols, file ? file->module : "", address, NULL, 0};
        n->slot[i] = (uint32_t)++n->used;
    }
    return n->slot[i] - 1;
}

const struct roll_symbol_frame *roll_names_frames(struct roll_names *n, uint32_t place, size_t *count)
{
    static const struct roll_symbol_frame unknown = {.function = "", .file = "", .module = ""};
    struct roll_place_in_file *p = &n->place[place];
    if (!p->frame) {
        struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
        size_t used = 1;
        frame[0] = unknown;
        frame[0].offset = p->address;
        if (p->file) {
            used = roll_symbol_file_frames(p->file, p->address, frame, ROLL_SYMBOL_FRAMES);
        }
        p->frame = used > 0 ? malloc(used * sizeof(*frame)) : NULL;
        if (!p->frame) {
            *count = 1;
            return &unknown;
        }
        for (size_t i = 0; i < used; i++) {
            frame[i].module = p->module; /* as the process sees it, not by way of /proc */
        }
        memcpy(p->frame, frame, used * sizeof(*frame));
        p->frames = used;
    }
    *count = p->frames;
    return p->frame;
}

void roll_names_fini(struct roll_names *n)
{
    for (size_t i = 0; i < n->used; i++) {
        free(n->place[i].frame);
    }
    for (size_t i = 0; i < n->files; i++) {
        roll_symbol_file_destroy(&n->file[i].file);
        free(n->file[i].module);
    }
    free(n->file);
    free(n->place);
    free(n->slot);
    *n = (struct roll_names){0};
}
