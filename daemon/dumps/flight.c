/*
 * flight.c: what PyTorch's Flight Recorder keeps, as calls.
 *
 * Facts of the format, versions 2.4 to 2.11: a pickle or JSON of one mapping with `version`, `pg_config` (the rank's
 * groups by name, with their ranks as a text), `pg_status` (how far each group has come, by a number of the process
 * that stands nowhere in pg_config) and `entries`, oldest first. The recorder is a ring for all groups together, so a
 * busy group pushes a quiet one out; some writers leave completed calls out. A dump does not say which rank wrote it.
 *
 * Not kept by the recorder: root, reduction, the splits of an all-to-all, streams, and what the host does.
 */
#include "daemon/dumps/flight.h"

#include "daemon/base/array.h"
#include "daemon/dumps/flight_state.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORK_PER_BYTE 64u /* in a dump there are some bytes for each thing that is read */
#define WORK_LEAST    ((size_t)1 << 24)
#define LIST_MAX      8192u /* groups by number and by name are laid side by side up to this many */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/*
 * Groups of which no entry says the number: numbers and names are both given in the order in which groups are made, so
 * where there are as many of the one as of the other and all names are numbers, they are laid side by side. Entries
 * that say otherwise prove the guess wrong.
 */
static int guess_ids(struct flight_reading *r, const uint32_t *id, size_t ids)
{
    const struct roll_dump *d = r->dump;
    uint64_t order[LIST_MAX]; /* name << 32 | group */
    size_t n = 0;
    bool good = d->groups == ids && ids <= LIST_MAX;
    for (size_t i = 0; i < d->groups && good; i++) {
        char *end;
        unsigned long name = strtoul(d->group[i].name, &end, 10);
        good = end != d->group[i].name && *end == '\0' && name < UINT32_MAX;
        size_t at = n++;
        for (; at > 0 && order[at - 1] >> 32 > name; at--) {
            order[at] = order[at - 1];
        }
        order[at] = (uint64_t)name << 32 | i;
    }
    for (size_t i = 0; i < n && good; i++) {
        uint32_t known = id[i] < r->ids ? r->id_group[id[i]] : 0;
        good = known == 0 || known == (uint32_t)order[i] + 1;
    }
    int err = 0;
    for (size_t i = 0; i < n && good && err == 0; i++) {
        err = ROLL_GROW_ZERO(r->id_group, r->id_room, (size_t)id[i] + 1);
        if (err == 0) {
            r->id_group[id[i]] = (uint32_t)order[i] + 1;
            r->ids = r->ids > id[i] ? r->ids : id[i] + 1u;
        }
    }
    return err;
}

static int read_status(struct flight_reading *r, const struct roll_value *status)
{
    struct roll_dump *d = r->dump;
    size_t n = roll_value_count(status), ids = 0;
    uint32_t *id = n > 0 && n <= FLIGHT_GROUPS_MAX ? calloc(n, sizeof(*id)) : NULL;
    if (id == NULL) {
        return n == 0 || n > FLIGHT_GROUPS_MAX ? 0 : ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t number = flight_number(&status->list->at[2 * i]);
        id[ids] = number;
        ids += number < FLIGHT_GROUPS_MAX;
    }
    qsort(id, ids, sizeof(*id), by_number);
    int err = guess_ids(r, id, ids);
    free(id);
    for (size_t i = 0; i < n && err == 0; i++) {
        uint32_t number = flight_number(&status->list->at[2 * i]);
        const struct roll_value *of = &status->list->at[2 * i + 1];
        uint32_t group = number < r->ids ? r->id_group[number] : 0;
        int64_t enqueued = roll_value_integer(roll_value_get(of, "last_enqueued_collective"), INT64_MIN);
        int64_t over = roll_value_integer(roll_value_get(of, "last_completed_collective"), INT64_MIN);
        if (group != 0 && enqueued >= -1 && enqueued < UINT32_MAX) {
            d->group[group - 1].enqueued = enqueued < 0 ? 0 : (uint32_t)enqueued;
        }
        if (group != 0 && over >= -1 && over < UINT32_MAX) {
            d->group[group - 1].over = over < 0 ? 0 : (uint32_t)over;
        }
    }
    return err;
}

bool roll_flight_is(const struct roll_value *top)
{
    return roll_value_get(top, "version") != NULL &&
           (roll_value_get(top, "entries") != NULL || roll_value_get(top, "pg_config") != NULL);
}

int roll_flight_read(const struct roll_value *top, size_t bytes, struct roll_rank_lists *lists, struct roll_dump *dump,
                     char *why, size_t size)
{
    struct flight_reading r = {.dump = dump, .lists = lists, .work = WORK_LEAST + bytes * WORK_PER_BYTE};
    char version[16];
    roll_value_copy(roll_value_get(top, "version"), version, sizeof(version));
    snprintf(dump->tool, sizeof(dump->tool), "Flight Recorder %s", version);
    int64_t rank = roll_value_integer(roll_value_get(top, "rank"), -1);
    dump->rank = rank >= 0 && rank < ROLL_DUMP_RANKS_MAX ? (int32_t)rank : ROLL_DUMP_RANK_UNKNOWN;
    int err = strncmp(version, "2.", 2) == 0 ? 0 : ROLL_E_VERSION;
    if (err != 0) {
        snprintf(why, size, "a Flight Recorder dump of version '%s'; versions 2.x are read", version);
    }
    const char *part = "pg_config";
    err = err != 0 ? err : flight_read_groups(&r, roll_value_get(top, "pg_config"));
    part = err == 0 ? "entries" : part;
    err = err != 0 ? err : flight_read_entries(&r, roll_value_get(top, "entries"));
    part = err == 0 ? "pg_status" : part;
    err = err != 0 ? err : read_status(&r, roll_value_get(top, "pg_status"));
    if (err == ROLL_E_CORRUPT || err == ROLL_E_LIMIT) {
        snprintf(why, size, "'%s' is not what a Flight Recorder dump holds", part);
    }
    roll_map_fini(&r.group_at);
    roll_map_fini(&r.line_at);
    roll_map_fini(&r.site_at);
    free(r.id_group);
    free(r.batches);
    return err;
}
