/*
 * tensors.c: what the job says that its collectives carry: "bucket 3: layer4.weight to
 * layer3.bias (25 parameters, 12.5 MiB)".
 *
 * A name holds for calls of one count on communicators of one label and size. All ranks of a job say the same, so a
 * name is kept once. Where a job gives several names to one count (equal layers of a model), the call may be any of
 * them, and that is said.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 65536u

struct tensors {
    char label[ROLL_NAME_BYTES];
    char text[TENSORS_BYTES]; /* the first name */
    uint64_t count;
    uint32_t size, others; /* others: further names */
};

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 31;
}

static uint64_t mix_text(uint64_t h, const char *text)
{
    for (; *text != '\0'; text++) {
        h = mix(h, (unsigned char)*text);
    }
    return h;
}

static uint64_t key_of(const char *label, uint32_t size, uint64_t count)
{
    return mix_text(mix(mix(1, size), count), label) | 1;
}

int tensors_define(struct roll_engine *e, const struct roll_def *def)
{
    const struct roll_def_name *info = &def->name.info;
    char label[ROLL_NAME_BYTES], text[TENSORS_BYTES];
    if (info->kind != ROLL_NAME_TENSORS || info->text_bytes == 0) {
        return 0;
    }
    line_clean(label, sizeof(label), def->name.label, info->label_bytes);
    line_clean(text, sizeof(text), def->name.text, info->text_bytes);
    uint64_t key = key_of(label, info->size, info->count), name = mix_text(mix(2, key), text) | 1;
    if (roll_map_get(&e->tensors_named, name) != ROLL_MAP_NONE || e->tensors_used == TENSORS_MAX) {
        return 0;
    }
    uint32_t at = roll_map_get(&e->tensors_at, key);
    if (at == ROLL_MAP_NONE) {
        if (ROLL_GROW(e->tensors, e->tensors_room, e->tensors_used + 1u) != 0 ||
            roll_map_add(&e->tensors_at, key, e->tensors_used) != 0) {
            return ROLL_E_NOMEM;
        }
        struct tensors *new = &e->tensors[e->tensors_used++];
        *new = (struct tensors){.count = info->count, .size = info->size};
        memcpy(new->label, label, sizeof(label));
        memcpy(new->text, text, sizeof(text));
    } else {
        e->tensors[at].others++;
    }
    return roll_map_add(&e->tensors_named, name, 0);
}

void tensors_text(const struct roll_engine *e, const char *label, uint32_t size, uint64_t count, char *out, size_t room)
{
    uint32_t at = roll_map_get(&e->tensors_at, key_of(label, size, count));
    out[0] = '\0';
    if (at == ROLL_MAP_NONE || e->tensors[at].count != count || strcmp(e->tensors[at].label, label) != 0) {
        return;
    }
    const struct tensors *t = &e->tensors[at];
    if (t->others == 0) {
        snprintf(out, room, "%s", t->text);
    } else {
        snprintf(out, room,
                 t->others == 1 ? "%s, or %u other of as many elements" : "%s, or one of %u others of as many elements",
                 t->text, t->others);
    }
}

void tensors_free(struct roll_engine *e)
{
    free(e->tensors);
    roll_map_fini(&e->tensors_at);
    roll_map_fini(&e->tensors_named);
}
