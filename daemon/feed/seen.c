/*
 * seen.c: see seen.h. A job of 16,384 ranks has a hundred thousand communicators of a handful of families
 * (families.h): each is one line. Calls and bytes are those of one rank of one such group, the mean over all.
 */
#include "daemon/feed/seen.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/feed/families.h"
#include "trace/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_MOST 12u
#define KINDS_ROOM 256u /* kinds that are told apart; further ones count among the last */

/* Communicators of one family that were used. */
struct kind {
    struct roll_comm_family family; /* its groups are counted here: those that were used */
    struct roll_rankset ranks;      /* of all of them; owned */
    uint64_t ops, members, calls, bytes, step_calls, step_bytes;
};

struct kinds {
    struct kind *at; /* owned */
    size_t used, room;
    struct roll_comm_families families;
    uint32_t *of; /* owned; by family: its kind, from 1; 0 = none yet */
};

static int add(struct kinds *all, uint32_t comm, const struct roll_view_comm *view)
{
    uint32_t family = all->families.of[comm];
    if (all->of[family] == 0 && all->used == KINDS_ROOM) {
        all->of[family] = KINDS_ROOM;
    }
    if (all->of[family] == 0) {
        if (ROLL_GROW(all->at, all->room, all->used + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        all->at[all->used] = (struct kind){.family = all->families.at[family]};
        all->at[all->used].family.groups = 0;
        all->of[family] = (uint32_t)++all->used;
    }
    struct kind *kind = &all->at[all->of[family] - 1];
    if (kind->family.groups++ == 0) { /* a guess by the shape says nothing more of a single one */
        snprintf(kind->family.name, sizeof(kind->family.name), "%s", view->named ? view->name : view->role);
    } else if (kind->family.groups == 2) {
        memcpy(kind->family.name, all->families.at[family].name, sizeof(kind->family.name));
    }
    kind->ops |= view->traffic.ops;
    kind->members += view->seen;
    kind->calls += view->traffic.calls;
    kind->bytes += view->traffic.bytes;
    kind->step_calls += view->traffic.step_calls;
    kind->step_bytes += view->traffic.step_bytes;
    return roll_rankset_union(&kind->ranks, &view->members);
}

static int find_kinds(struct kinds *all, const roll_engine_t *engine)
{
    struct roll_view_comm view;
    int err = roll_families_find(engine, &all->families);
    all->of = err == 0 ? calloc(all->families.used + 1, sizeof(*all->of)) : NULL;
    err = err != 0 ? err : all->of == NULL ? ROLL_E_NOMEM : 0;
    for (uint32_t i = 0; err == 0 && i < all->families.comms && roll_engine_comm(engine, i, &view); i++) {
        err = view.traffic.calls > 0 ? add(all, i, &view) : 0;
    }
    return err;
}

static int by_bytes(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    int order = (y->bytes > x->bytes) - (y->bytes < x->bytes);
    order = order != 0 ? order : (y->calls > x->calls) - (y->calls < x->calls);
    return order != 0 ? order : strcmp(x->family.name, y->family.name);
}

static json_t *ops_json(uint64_t ops)
{
    json_t *list = json_array();
    for (unsigned op = 1; op < 64; op++) {
        if ((ops >> op & 1) != 0) {
            json_array_append_new(list, json_string(roll_op_name(op)));
        }
    }
    return list;
}

static json_t *kind_json(const struct kind *k, uint64_t steps)
{
    double ranks = k->members > 0 ? (double)k->members : 1;
    char text[96];
    json_t *out = json_pack("{s:o,s:I,s:I,s:s,s:o,s:o,s:o,s:f,s:f}", "name", roll_text_to_json(k->family.name),
                            "groups", (json_int_t)k->family.groups, "size", (json_int_t)k->family.size, "text",
                            roll_family_text(&k->family, text, sizeof(text)), "made_at",
                            k->family.place[0] != '\0' ? roll_text_to_json(k->family.place) : json_null(), "ranks",
                            roll_ranks_text_json(&k->ranks), "ops", ops_json(k->ops), "calls", (double)k->calls / ranks,
                            "bytes", (double)k->bytes / ranks);
    if (out != NULL && steps > 0 && k->step_calls > 0) {
        json_object_set_new(out, "calls_per_step", json_real((double)k->step_calls / ranks / (double)steps));
        json_object_set_new(out, "bytes_per_step", json_real((double)k->step_bytes / ranks / (double)steps));
    }
    return out;
}

static json_t *slowest_json(const roll_engine_t *engine)
{
    struct roll_view_slowest s;
    if (!roll_engine_slowest(engine, &s)) {
        return json_null();
    }
    return json_pack("{s:I,s:I,s:I,s:I}", "rank", (json_int_t)s.rank, "late_ns", (json_int_t)s.late_ns, "interval_ns",
                     (json_int_t)s.interval_ns, "looks", (json_int_t)s.looks);
}

json_t *roll_feed_seen(roll_feed_t *feed)
{
    roll_engine_t *engine = roll_feed_engine(feed);
    struct roll_view_source source;
    struct roll_engine_summary summary;
    struct roll_rankset ranks = {0};
    struct kinds all = {0};
    uint64_t steps = 0;
    uint32_t sources = 0;
    roll_engine_summary(engine, &summary);
    for (; roll_engine_source(engine, sources, &source); sources++) {
        uint64_t told = source.step == ROLL_STEP_NONE ? 0 : (uint64_t)source.step - source.first_step + 1;
        steps = source.step != ROLL_STEP_NONE && source.step >= source.first_step && told > steps ? told : steps;
        if (source.info.world_rank >= 0) {
            (void)roll_rankset_add(&ranks, (uint32_t)source.info.world_rank);
        }
    }
    int err = find_kinds(&all, engine);
    bool is_learned = steps == 0 && summary.step_is_learned;
    if (all.used > 1) {
        qsort(all.at, all.used, sizeof(*all.at), by_bytes);
    }
    json_t *groups = json_array();
    for (size_t i = 0; i < all.used && i < KINDS_MOST; i++) {
        json_array_append_new(groups, kind_json(&all.at[i], steps));
    }
    json_t *out =
        json_pack("{s:o,s:o,s:o,s:o,s:I,s:o}", "ranks", roll_ranks_text_json(&ranks), "steps",
                  steps > 0    ? json_integer((json_int_t)steps)
                  : is_learned ? json_integer(summary.step)
                               : json_null(),
                  "steps_source",
                  steps > 0    ? json_string("job")
                  : is_learned ? json_string("learned")
                               : json_null(),
                  "groups", groups, "groups_more", (json_int_t)(all.used > KINDS_MOST ? all.used - KINDS_MOST : 0),
                  "slowest", slowest_json(engine));
    for (size_t i = 0; i < all.used; i++) {
        roll_rankset_fini(&all.at[i].ranks);
    }
    free(all.at);
    free(all.of);
    roll_families_fini(&all.families);
    roll_rankset_fini(&ranks);
    if (err != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}
