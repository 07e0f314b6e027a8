/*
 * flight_groups.c: the groups of a Flight Recorder dump, and what its readers share: the bound of their work, numbers.
 */
#include "daemon/dumps/flight_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <string.h>

uint64_t flight_hash(uint64_t h, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    return (h ^ bytes) * 0x9e3779b97f4a7c15u + 1;
}

int flight_spend(struct flight_reading *r, size_t work)
{
    if (work > r->work) {
        r->work = 0;
        return ROLL_E_LIMIT;
    }
    r->work -= work;
    return 0;
}

size_t flight_extent(const struct roll_value *v)
{
    return roll_value_is(v, ROLL_VALUE_TEXT) ? v->bytes : roll_value_count(v);
}

uint32_t flight_number(const struct roll_value *v)
{
    int64_t n = roll_value_integer(v, -1);
    return n < 0 || n >= UINT32_MAX ? ROLL_DUMP_NO_NUMBER : (uint32_t)n;
}

static void read_label(const struct roll_value *desc, struct roll_dump_group *g)
{
    if (!roll_value_says(desc, "undefined")) {
        roll_value_copy(desc, g->label, sizeof(g->label));
    }
}

int flight_group(struct flight_reading *r, const struct roll_value *name, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    int err = flight_spend(r, name->bytes);
    if (err != 0) {
        return err;
    }
    uint64_t key = flight_hash(0, name->text, name->bytes);
    *out = roll_map_get(&r->group_at, key);
    if (*out != ROLL_MAP_NONE) {
        return 0;
    }
    err = d->groups >= FLIGHT_GROUPS_MAX ? ROLL_E_LIMIT : ROLL_GROW(d->group, d->group_room, d->groups + 1);
    err = err != 0 ? err : roll_map_reserve(&r->group_at);
    if (err != 0) {
        return err;
    }
    struct roll_dump_group *g = &d->group[d->groups];
    *g = (struct roll_dump_group){
        .self = -1, .issued = ROLL_DUMP_NO_NUMBER, .enqueued = ROLL_DUMP_NO_NUMBER, .over = ROLL_DUMP_NO_NUMBER};
    roll_value_copy(name, g->name, sizeof(g->name));
    *out = (uint32_t)d->groups++;
    (void)roll_map_add(&r->group_at, key, *out);
    return 0;
}

int flight_read_groups(struct flight_reading *r, const struct roll_value *config)
{
    struct roll_dump *d = r->dump;
    uint32_t number;
    int err = 0;
    for (uint32_t i = 0; roll_value_is(config, ROLL_VALUE_MAP) && i + 1 < config->list->used && err == 0; i += 2) {
        const struct roll_value *name = &config->list->at[i], *one = &config->list->at[i + 1];
        if (!roll_value_is(name, ROLL_VALUE_TEXT) || !roll_value_is(one, ROLL_VALUE_MAP)) {
            return ROLL_E_CORRUPT;
        }
        err = flight_group(r, name, &number);
        struct roll_dump_group *g = err == 0 ? &d->group[number] : NULL;
        if (g != NULL && g->members.ranks == 0) {
            read_label(roll_value_get(one, "desc"), g);
            err = flight_spend(r, flight_extent(one) + flight_extent(roll_value_get(one, "ranks")));
            err = err != 0 ? err : roll_rank_lists_read(r->lists, roll_value_get(one, "ranks"), &g->members);
            bool all = strcmp(g->label, "default_pg") == 0 || strcmp(g->name, "0") == 0;
            d->world = all && g->members.ranks > d->world ? g->members.ranks : d->world;
        }
    }
    return err;
}
