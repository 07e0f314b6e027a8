/*
 * lanes.c: see lanes.h.
 */
#include "daemon/console/report/lanes.h"

#include "daemon/base/array.h"
#include "daemon/feed/call_rows.h"
#include "daemon/feed/field.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define OF_EACH 4u /* ranks of the named, and of those that wait */
#define OF_SIDE 2u /* ranks of each side of the evidence */

struct roll_lane {
    uint64_t made;
    struct roll_lane_call last[ROLL_LANE_CALLS]; /* call number n at n % ROLL_LANE_CALLS */
};

void roll_lanes_fini(struct roll_lanes *lanes)
{
    for (size_t i = 0; i < lanes->lane_room; i++) {
        free(lanes->lane[i]);
    }
    for (size_t i = 0; i < lanes->moments; i++) {
        for (uint32_t k = 0; k < lanes->moment[i].lanes; k++) {
            free(lanes->moment[i].lane[k].call);
        }
        free(lanes->moment[i].state);
    }
    free(lanes->lane);
    free(lanes->moment);
    *lanes = (struct roll_lanes){.lane = NULL};
}

/* calls */

/* The call among the kept ones that has this ticket; NULL = none. News are mostly about the newest ones. */
static struct roll_lane_call *find(struct roll_lane *lane, uint64_t ticket)
{
    uint64_t kept = lane->made < ROLL_LANE_CALLS ? lane->made : ROLL_LANE_CALLS;
    for (uint64_t i = 1; i <= kept; i++) {
        struct roll_lane_call *call = &lane->last[(lane->made - i) % ROLL_LANE_CALLS];
        if (roll_seal_ticket(call->rec.seal) == ticket) {
            return call;
        }
    }
    return NULL;
}

int roll_lanes_call(struct roll_lanes *lanes, const struct roll_job_call *call)
{
    if (!roll_call_is_shown(call->rec->op)) {
        return 0;
    }
    if (ROLL_GROW_ZERO(lanes->lane, lanes->lane_room, (size_t)call->ring + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    struct roll_lane *lane = lanes->lane[call->ring];
    if (lane == NULL && (lane = lanes->lane[call->ring] = calloc(1, sizeof(*lane))) == NULL) {
        return ROLL_E_NOMEM;
    }
    bool first = call->news == ROLL_FEED_FIRST;
    struct roll_lane_call *at = first ? NULL : find(lane, roll_seal_ticket(call->rec->seal));
    if (at == NULL && !first) {
        return 0; /* of a call that is not kept any more */
    }
    at = at != NULL ? at : &lane->last[lane->made++ % ROLL_LANE_CALLS];
    *at = (struct roll_lane_call){*call->rec, call->real_ns, call->comm};
    return 0;
}

/* moments */

/* last_ns: wall clock of the newest record. */
static int copy_states(struct roll_moment *m, const roll_engine_t *engine, const struct roll_rankset *waiting,
                       const struct roll_rankset *awaited, uint64_t *last_ns)
{
    struct roll_view_source v;
    m->states = roll_engine_sources(engine);
    m->state = malloc((size_t)m->states + 1);
    *last_ns = 0;
    for (uint32_t i = 0; m->state != NULL && i < m->states; i++) {
        bool there = roll_engine_source_brief(engine, i, &v);
        m->state[i] = there ? roll_field_place(&v, i, waiting, awaited).state : 'n';
        *last_ns = there && v.last_ns > *last_ns ? v.last_ns : *last_ns;
    }
    return m->state != NULL ? 0 : ROLL_E_NOMEM;
}

static int copy_lane(struct roll_lanes *lanes, struct roll_moment *m, uint32_t ring)
{
    for (uint32_t i = 0; i < m->lanes; i++) {
        if (m->lane[i].ring == ring) {
            return 0;
        }
    }
    const struct roll_lane *lane = ring < lanes->lane_room ? lanes->lane[ring] : NULL;
    if (lane == NULL || m->lanes == ROLL_MOMENT_LANES) {
        return 0;
    }
    uint32_t calls = lane->made < ROLL_LANE_CALLS ? (uint32_t)lane->made : ROLL_LANE_CALLS;
    struct roll_lane_call *call = malloc(((size_t)calls + 1) * sizeof(*call));
    if (call == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < calls; i++) {
        call[i] = lane->last[(lane->made - calls + i) % ROLL_LANE_CALLS];
    }
    m->lane[m->lanes++] = (struct roll_moment_lane){ring, calls, call};
    return 0;
}

/* The newest process of a rank, by the engine: the numbers of ranks are in no map before the end. */
static int copy_rank(struct roll_lanes *lanes, struct roll_job *job, struct roll_moment *m, uint32_t rank)
{
    const struct roll_job_run *run = &job->run[m->run];
    struct roll_view_source v;
    struct roll_feed_stream stream;
    bool there = roll_engine_rank(roll_feed_engine(run->feed), rank, &v) &&
                 roll_feed_find(run->feed, v.info.stream, &stream) && stream.source < run->rings &&
                 run->ring[stream.source] > 0;
    return there ? copy_lane(lanes, m, run->ring[stream.source] - 1) : 0;
}

static int copy_ranks(struct roll_lanes *lanes, struct roll_job *job, struct roll_moment *m,
                      const struct roll_rankset *ranks, size_t most)
{
    size_t n = roll_rankset_count(ranks);
    int err = 0;
    for (size_t i = 0; i < n && i < most && err == 0; i++) {
        err = copy_rank(lanes, job, m, roll_rankset_at(ranks, i));
    }
    return err;
}

static struct roll_moment *moment_new(struct roll_lanes *lanes, uint32_t run, uint64_t number, uint64_t time_ns)
{
    if (ROLL_GROW(lanes->moment, lanes->moment_room, lanes->moments + 1) != 0) {
        return NULL;
    }
    lanes->moment[lanes->moments] = (struct roll_moment){.run = run, .number = number, .time_ns = time_ns};
    return &lanes->moment[lanes->moments++];
}

int roll_lanes_finding(struct roll_lanes *lanes, struct roll_job *job, uint32_t run,
                       const struct roll_verdict_copy *finding)
{
    const struct roll_verdict *v = &finding->said;
    if (lanes->moments >= ROLL_MOMENTS_MOST) {
        lanes->left_out++;
        return 0;
    }
    uint64_t last_ns;
    struct roll_moment *m = moment_new(lanes, run, v->number, v->time_ns);
    const struct roll_rankset nobody = {.used = 0},
                              *awaited = v->code == ROLL_VERDICT_RANK_BUSY ? &v->culprits : &nobody;
    const roll_engine_t *engine = roll_feed_engine(job->run[run].feed);
    int err = m == NULL ? ROLL_E_NOMEM : copy_states(m, engine, &v->waiting, awaited, &last_ns);
    err = err != 0 ? err : copy_ranks(lanes, job, m, &v->culprits, OF_EACH);
    for (uint32_t i = 0; i < v->sides && err == 0; i++) {
        err = copy_ranks(lanes, job, m, &v->side[i].ranks, OF_SIDE);
    }
    return err != 0 ? err : copy_ranks(lanes, job, m, &v->waiting, OF_EACH);
}

int roll_lanes_end(struct roll_lanes *lanes, struct roll_job *job, uint32_t run, const struct roll_rankset *waiting,
                   const struct roll_rankset *awaited)
{
    const roll_engine_t *engine = roll_feed_engine(job->run[run].feed);
    struct roll_view_source v;
    struct roll_moment *m = moment_new(lanes, run, 0, 0);
    int err = m == NULL ? ROLL_E_NOMEM : copy_states(m, engine, waiting, awaited, &m->time_ns);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; err == 0 && m->lanes < ROLL_MOMENT_LANES && i < m->states; i++) {
            bool odd = strchr("wdsc", m->state[i]) != NULL;
            if ((pass == 1 || odd) && roll_engine_source_brief(engine, i, &v) && v.info.world_rank >= 0) {
                err = copy_rank(lanes, job, m, (uint32_t)v.info.world_rank);
            }
        }
    }
    return err;
}
