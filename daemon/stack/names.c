/* names.c: a table of places over symbol_file.h. Sampling only notes places; names are made later, when no thread is
 * held up. */
#include "daemon/stack/names.h"

#include "daemon/base/array.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static uint32_t find(const struct roll_names *n, uint64_t key, const struct roll_symbol_file *file, uint64_t address)
{
    size_t step = 0;
    uint32_t number;
    do {
        number = roll_map_each(&n->index, key, &step);
    } while (number != ROLL_MAP_NONE && (n->place[number].file != file || n->place[number].address != address));
    return number;
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
    if (ROLL_GROW(n->file, n->file_room, n->files + 1) != 0) {
        return NULL;
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
    struct roll_symbol_file *symbols = file ? file->file : NULL;
    uint64_t key = address ^ (uint64_t)(uintptr_t)symbols;
    uint32_t number = find(n, key, symbols, address);
    if (number != ROLL_MAP_NONE) {
        return number;
    }
    if (ROLL_GROW(n->place, n->room, n->used + 1) != 0 || roll_map_add(&n->index, key, (uint32_t)n->used) != 0) {
        return UINT32_MAX;
    }
    n->place[n->used] = (struct roll_place_in_file){symbols, file ? file->module : "", address, NULL, 0};
    return (uint32_t)n->used++;
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
    roll_map_fini(&n->index);
    *n = (struct roll_names){0};
}
