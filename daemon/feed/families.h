/*
 * families.h: communicators that are one thing of the program many times: all the tensor-parallel groups of a job, say.
 *
 * Communicators are of one family when they have one size, the same distances between their members' ranks, the same
 * name where the job gave one, and one line of the job made them. So a table of 2,048 groups becomes a few rows. What a
 * family is called where the job gave no name is a guess by its shape, and says so: "tp-like". One thread.
 */
#ifndef ROLL_DAEMON_FEED_FAMILIES_H
#define ROLL_DAEMON_FEED_FAMILIES_H

#include "daemon/base/map.h"
#include "daemon/engine/engine.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct roll_comm_family {
    char name[128];       /* "mesh_tp", "default group"; "tp-like" where the job gave none */
    char place[200];      /* the job's line that made them: "train.py:91 main"; "" = not known */
    uint32_t groups;      /* communicators */
    uint32_t size;        /* ranks of each */
    uint32_t stride;      /* distance between the ranks of its members; 0 = they have no common one */
    uint64_t done, ahead; /* least and most of its communicators: struct roll_view_comm */
};

struct roll_comm_families {
    struct roll_comm_family *at; /* owned; in the order of their first communicator */
    size_t used, room;
    uint32_t *of; /* owned; by the engine's number of the communicator: its family */
    size_t comms, comm_room;
    struct roll_map by_key;
    struct roll_map comm_at; /* from the key of a communicator to its number in `of` */
};

/* One communicator as a status lists it (docs/FRAME.md, `comms`), without its members and its family; owned; NULL: no
 * memory. Borrows view. */
json_t *roll_comm_json(const struct roll_view_comm *view);

/* Finds the families of all communicators, at the cost of one view of each. *out is to be empty, and owned by the
 * caller. 0, NOMEM. */
int roll_families_find(const roll_engine_t *engine, struct roll_comm_families *out);
void roll_families_fini(struct roll_comm_families *families);

/* "512 groups of 8 neighbours", "8 groups of every 8th rank (64 ranks each)", "3 groups of 5 ranks". Returns out. */
const char *roll_family_text(const struct roll_comm_family *family, char *out, size_t size);
/* All of them as an array of objects `name`, `groups`, `size`, `stride` (null: none), `text`, `made_at` (null: not
 * known), `done` and `ahead`, owned; NULL: no memory. */
json_t *roll_families_json(const struct roll_comm_families *families);

#endif
