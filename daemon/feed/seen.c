/*
 * seen.c: see seen.h. A job of 16,384 ranks has a hundred thousand communicators of a handful of kinds: what is alike
 * in name, size and operations is one line. Calls and bytes are those of one rank of one such group, the mean over all.
 */
#include "daemon/feed/seen.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "trace/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_MOST 12u
#define KINDS_ROOM 256u /* kinds that are told apart; further ones count among the last */
#define NAME_BYTES 128u

/* Communicators that are alike. */
struct kind {
    char name[NAME_BYTES];
    struct roll_rankset ranks; /* of all of them; owned */
    uint32_t size, groups;
    uint64_t ops, members, calls, bytes, step_calls, step_bytes;
};

struct kinds {
    struct kind *at; /* owned */
    size_t used, room;
};

/* The name of a communicator without the number that tells it from its siblings; PyTorch counts its groups, beginning
 * with that of all ranks. */
static void name_of(const struct roll_view_comm *view, uint32_t ranks, char out[NAME_BYTES])
{
    size_t n = strlen(view->label);
    while (n > 0 && view->label[n - 1] >= '0' && view->label[n - 1] <= '9') {
        n--;
    }
    if (strcmp(view->label, "0") == 0 && view->size == ranks) {
        snprintf(out, NAME_BYTES, "default group");
    } else if (n > 0) {
        bool is_numbered = view->label[n] != '\0' && (view->label[n - 1] == '_' || view->label[n - 1] == '-');
        snprintf(out, NAME_BYTES, "%.*s", (int)(is_numbered ? n - 1 : strlen(view->label)), view->label);
    } else {
        snprintf(out, NAME_BYTES, "%s", view->role);
    }
}

static int add(struct kinds *all, const struct roll_view_comm *view, uint32_t ranks)
{
    char name[NAME_BYTES];
    struct kind *kind = NULL;
    name_of(view, ranks, name);
    for (size_t i = 0; i < all->used && kind == NULL; i++) {
        struct kind *k = &all->at[i];
        bool is_same = k->size == view->size && k->ops == view->traffic.ops && strcmp(k->name, name) == 0;
        kind = is_same || i + 1 == KINDS_ROOM ? k : NULL;
    }
    if (kind == NULL) {
        if (ROLL_GROW(all->at, all->room, all->used + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        kind = &all->at[all->used++];
        *kind = (struct kind){.size = view->size, .ops = view->traffic.ops};
        memcpy(kind->name, name, sizeof(name));
    }
    kind->groups++;
    kind->members += view->seen;
    kind->calls += view->traffic.calls;
    kind->bytes += view->traffic.bytes;
    kind->step_calls += view->traffic.step_calls;
    kind->step_bytes += view->traffic.step_bytes;
    return roll_rankset_union(&kind->ranks, &view->members);
}

static int by_bytes(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;
    int order = (y->bytes > x->bytes) - (y->bytes < x->bytes);
    order = order != 0 ? order : (y->calls > x->calls) - (y->calls < x->calls);
    return order != 0 ? order : strcmp(x->name, y->name);
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
    json_t *out =
        json_pack("{s:o,s:I,s:I,s:o,s:o,s:f,s:f}", "name", roll_text_to_json(k->name), "groups", (json_int_t)k->groups,
                  "size", (json_int_t)k->size, "ranks", roll_ranks_text_json(&k->ranks), "ops", ops_json(k->ops),
                  "calls", (double)k->calls / ranks, "bytes", (double)k->bytes / ranks);
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
    struct roll_view_comm view;
    struct roll_rankset ranks = {0};
    struct kinds all = {0};
    uint64_t steps = 0;
    uint32_t sources = 0;
    int err = 0;
    for (; roll_engine_source(engine, sources, &source); sources++) {
        uint64_t told = source.step == ROLL_STEP_NONE ? 0 : (uint64_t)source.step - source.first_step + 1;
        steps = source.step != ROLL_STEP_NONE && source.step >= source.first_step && told > steps ? told : steps;
        if (source.info.world_rank >= 0) {
            (void)roll_rankset_add(&ranks, (uint32_t)source.info.world_rank);
        }
    }
    for (uint32_t i = 0; err == 0 && roll_engine_comm(engine, i, &view); i++) {
        err = view.traffic.calls > 0 ? add(&all, &view, sources) : 0;
    }
    if (all.used > 1) {
        qsort(all.at, all.used, sizeof(*all.at), by_bytes);
    }
    json_t *groups = json_array();
    for (size_t i = 0; i < all.used && i < KINDS_MOST; i++) {
        json_array_append_new(groups, kind_json(&all.at[i], steps));
    }
    json_t *out =
        json_pack("{s:o,s:o,s:o,s:I,s:o}", "ranks", roll_ranks_text_json(&ranks), "steps",
                  steps > 0 ? json_integer((json_int_t)steps) : json_null(), "groups", groups, "groups_more",
                  (json_int_t)(all.used > KINDS_MOST ? all.used - KINDS_MOST : 0), "slowest", slowest_json(engine));
    for (size_t i = 0; i < all.used; i++) {
        roll_rankset_fini(&all.at[i].ranks);
    }
    free(all.at);
    roll_rankset_fini(&ranks);
    if (err != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}
