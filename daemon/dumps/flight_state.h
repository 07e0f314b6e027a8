/*
 * flight_state.h: what the files of the reader of Flight Recorder dumps share: flight_groups.c reads the
 * groups, flight_entries.c the calls, flight_site.c the places of the program, and flight.c how far the groups have
 * come. One thread per dump.
 */
#ifndef ROLL_DAEMON_DUMPS_FLIGHT_STATE_H
#define ROLL_DAEMON_DUMPS_FLIGHT_STATE_H

#include "daemon/base/map.h"
#include "daemon/dumps/dump.h"
#include "daemon/dumps/ranks.h"
#include "daemon/dumps/value.h"

#define FLIGHT_GROUPS_MAX 65536u

struct flight_reading {
    struct roll_dump *dump;
    struct roll_rank_lists *lists; /* borrowed */
    struct roll_map group_at;      /* hash of a name -> number of the group */
    struct roll_map line_at, site_at;
    uint32_t units;
    uint32_t *id_group; /* pg_id -> 1 + number of its group, as far as entries show it */
    size_t ids, id_room;
    /* The newest calls, as far as they are messages that are being issued as one: where they begin, their numbers. */
    bool batch_open;
    size_t batch_first;
    uint32_t batch_coll, batch_p2p;
    uint32_t *batches; /* by group: batches that took the number of a collective (format 2.1) */
    size_t batch_room;
    bool full; /* a completed call is among the entries */
    /* What may still be read. Parts of a file may stand in many places at once (a pickle can say so), so that the size
     * of the file alone is no bound of the work. */
    size_t work;
};

/* Takes so much of the work that may still be done. 0, LIMIT. */
int flight_spend(struct flight_reading *r, size_t work);
/* How much there is to read in a value itself. */
size_t flight_extent(const struct roll_value *v);
uint64_t flight_hash(uint64_t h, const char *text, size_t bytes);
/* A number of the recorder; ROLL_DUMP_NO_NUMBER for all else. */
uint32_t flight_number(const struct roll_value *v);
/* The number of the group with this name, which is made without members where the configuration lacks it. 0, NOMEM,
 * LIMIT. */
int flight_group(struct flight_reading *r, const struct roll_value *name, uint32_t *out);

/* The groups of a dump, by its configuration. 0, CORRUPT, NOMEM, LIMIT. */
int flight_read_groups(struct flight_reading *r, const struct roll_value *config);

/* flight_entries.c: the calls of a dump. 0, NOMEM, LIMIT. */
int flight_read_entries(struct flight_reading *r, const struct roll_value *entries);

/* flight_site.c: keeps a text of the dump; *out: its offset. 0, NOMEM, LIMIT. */
int flight_keep_text(struct roll_dump *d, const struct roll_value *v, uint32_t *out);
/* The place of an entry; *out: 1 + its number, 0 where there is none. 0, NOMEM, LIMIT. */
int flight_read_site(struct flight_reading *r, const struct roll_value *frames, uint32_t *out);

#endif
