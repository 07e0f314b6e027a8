/*
 * families.c: which communicators are of one family, and what a family is called.
 */
#include "daemon/feed/families.h"
#include "daemon/base/array.h"
#include "daemon/base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A family without a name of its own: by what most jobs lay out so. Ranks of one node are neighbours, and what talks
 * most is placed there. The communicator of all ranks is laid out like nothing else. */
static void guess_name(const struct roll_view_comm *view, bool named, char *out, size_t size)
{
    const char *like = strcmp(view->role, "world") == 0 ? NULL
                       : view->role[0] != '\0'          ? view->role
                       : view->stride == 1              ? "tp"
                       : view->stride > 1               ? "dp"
                                                        : NULL;
    if (named || view->size < 2 || like == NULL) {
        snprintf(out, size, "%s", view->name);
    } else {
        snprintf(out, size, "%s-like", like);
    }
}

/* The name of a family of which a second communicator is seen: what the names of both begin with, "tp" of tp_0 and
 * tp_1. PyTorch's numbers of groups have nothing in common but the word. */
static void share_name(const struct roll_view_comm *view, char *name, size_t size)
{
    size_t n = 0;
    while (name[n] != '\0' && name[n] == view->name[n]) {
        n++;
    }
    if (name[n] != '\0' || view->name[n] != '\0') {
        while (n > 0 && strchr("0123456789_-: ", name[n - 1]) != NULL) {
            n--;
        }
        name[n] = '\0';
    }
    if (!view->named || n == 0 || strcmp(name, "group") == 0) {
        guess_name(view, false, name, size);
        if (strstr(name, "-like") == NULL) {
            snprintf(name, size, "groups of %" PRIu32, view->size); /* no shape to guess by */
        }
    }
}

json_t *roll_comm_json(const struct roll_view_comm *v)
{
    char key[24];
    snprintf(key, sizeof(key), "0x%016" PRIx64, v->key);
    return json_pack("{s:s,s:o,s:s,s:i,s:i,s:I,s:I,s:o,s:o,s:o}", "key", key, "label", roll_text_to_json(v->label),
                     "role", v->role, "size", (int)v->size, "seen", (int)v->seen, "done", (json_int_t)v->done, "ahead",
                     (json_int_t)v->ahead, "behind", roll_ranks_to_json(&v->behind), "name", roll_text_to_json(v->name),
                     "made_at", v->place[0] != '\0' ? roll_text_to_json(v->place) : json_null());
}

int roll_families_find(const roll_engine_t *engine, struct roll_comm_families *out)
{
    struct roll_view_comm view;
    for (uint32_t i = 0; roll_engine_comm(engine, i, &view); i++) {
        uint32_t at = roll_map_get(&out->by_key, view.family);
        if (ROLL_GROW(out->of, out->comm_room, out->comms + 1) != 0 ||
            ROLL_GROW(out->at, out->room, out->used + 1) != 0 || roll_map_reserve(&out->by_key) != 0 ||
            roll_map_add(&out->comm_at, view.key, i) != 0) {
            return ROLL_E_NOMEM;
        }
        if (at == ROLL_MAP_NONE) {
            at = (uint32_t)out->used++;
            struct roll_comm_family *new = &out->at[at];
            *new = (struct roll_comm_family){.size = view.size, .stride = view.stride, .done = view.done};
            guess_name(&view, view.named, new->name, sizeof(new->name));
            memcpy(new->place, view.place, sizeof(new->place));
            (void)roll_map_add(&out->by_key, view.family, at);
        }
        struct roll_comm_family *family = &out->at[at];
        out->of[out->comms++] = at;
        family->groups++;
        family->done = view.done < family->done ? view.done : family->done;
        family->ahead = view.ahead > family->ahead ? view.ahead : family->ahead;
        if (family->groups == 2) {
            share_name(&view, family->name, sizeof(family->name));
        }
    }
    return 0;
}

void roll_families_fini(struct roll_comm_families *families)
{
    free(families->at);
    free(families->of);
    roll_map_fini(&families->by_key);
    roll_map_fini(&families->comm_at);
    *families = (struct roll_comm_families){.at = NULL};
}

const char *roll_family_text(const struct roll_comm_family *f, char *out, size_t size)
{
    const char *s = f->groups == 1 ? "" : "s";
    if (f->size < 2 || f->stride == 0) {
        snprintf(out, size, "%" PRIu32 " group%s of %" PRIu32 " rank%s", f->groups, s, f->size,
                 f->size == 1 ? "" : "s");
    } else if (f->stride == 1) {
        snprintf(out, size, "%" PRIu32 " group%s of %" PRIu32 " neighbours", f->groups, s, f->size);
    } else {
        const char *th = f->stride % 100 / 10 == 1 ? "th"
                         : f->stride % 10 == 2     ? "nd"
                         : f->stride % 10 == 3     ? "rd"
                         : f->stride % 10 == 1     ? "st"
                                                   : "th";
        snprintf(out, size, "%" PRIu32 " group%s of every %" PRIu32 "%s rank (%" PRIu32 " ranks each)", f->groups, s,
                 f->stride, th, f->size);
    }
    return out;
}

json_t *roll_families_json(const struct roll_comm_families *families)
{
    json_t *list = json_array();
    for (size_t i = 0; i < families->used && list != NULL; i++) {
        const struct roll_comm_family *f = &families->at[i];
        char text[96];
        json_t *one = json_pack("{s:o,s:I,s:I,s:o,s:s,s:o,s:I,s:I}", "name", roll_text_to_json(f->name), "groups",
                                (json_int_t)f->groups, "size", (json_int_t)f->size, "stride",
                                f->stride > 0 ? json_integer(f->stride) : json_null(), "text",
                                roll_family_text(f, text, sizeof(text)), "made_at",
                                f->place[0] != '\0' ? roll_text_to_json(f->place) : json_null(), "done",
                                (json_int_t)f->done, "ahead", (json_int_t)f->ahead);
        if (one == NULL || json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}
