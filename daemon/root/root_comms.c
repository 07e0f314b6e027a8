/*
 * root_comms.c: the communicators of a run as a status lists them, one by one and by families.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/json.h"
#include "daemon/feed/site.h"

#include <string.h>

/* family: its index in the list of families. */
static json_t *comm_json(const struct roll_view_comm *v, uint32_t family)
{
    json_t *comm = roll_comm_json(v);
    json_object_set_new(comm, "members", roll_ranks_to_json(&v->members));
    json_object_set_new(comm, "family", json_integer((json_int_t)family));
    return comm;
}

void roll_comms_json(const struct roll_run *run, struct roll_comm_families *families, size_t rows, json_t **comms,
                     json_t **folded)
{
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_view_comm comm;
    if (roll_digested_calm(run)) {
        *comms = roll_fronts_comms(run, rows);
        *folded = roll_fronts_families(run);
        return;
    }
    *comms = json_array();
    for (uint32_t i = 0, seen = 0; i < families->comms && (families->comms <= rows || seen < families->used); i++) {
        struct roll_comm_family *family = &families->at[families->of[i]];
        bool is_first = families->of[i] == seen; /* they are numbered by their first communicators */
        if ((families->comms > rows && !is_first) || !roll_engine_comm(engine, i, &comm)) {
            continue;
        }
        roll_feed_comm_site(roll_run_judge(run), &comm, ROLL_SITE_KNOWN);
        if (is_first) {
            memcpy(family->place, comm.place, sizeof(family->place));
            seen++;
        }
        if (families->comms <= rows) {
            json_array_append_new(*comms, comm_json(&comm, families->of[i]));
        }
    }
    *folded = roll_families_json(families);
}
