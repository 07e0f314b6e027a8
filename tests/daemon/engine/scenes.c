/*
 * scenes.c: see scenes.h.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct roll_record *scene_moe(struct sim *sim, uint32_t rank, uint32_t comm, enum roll_op op, uint16_t layer,
                              uint8_t phase)
{
    struct roll_record *rec = sim_record(sim, rank, op, comm);
    rec->layer = layer;
    rec->phase = phase;
    return rec;
}

void scene_uniform(struct sim *sim, uint32_t rank, uint32_t comm, enum moe_uniform what, uint64_t count)
{
    struct roll_record *rec = scene_moe(sim, rank, comm, ROLL_OP_MOE_UNIFORM, 2, ROLL_PHASE_FORWARD);
    rec->peer = (int32_t)what;
    rec->count = count;
}

void scene_splits(struct sim *sim, uint32_t rank, uint32_t ep, uint32_t buffer, uint32_t ranks, uint32_t each,
                  uint8_t phase, uint16_t microbatch)
{
    struct roll_record *rec = scene_moe(sim, rank, ep, ROLL_OP_MOE_COUNTS, 1, phase);
    rec->count = 10;
    rec->group = buffer;
    rec->microbatch = microbatch;
    for (uint32_t p = 0; p < ranks; p++) {
        rec = scene_moe(sim, rank, ep, ROLL_OP_MOE_SPLIT, 1, phase);
        rec->count = each + (p == 0 && phase == ROLL_PHASE_RECOMPUTE ? rank % 2 : 0);
        rec->group = 7;
        rec->peer = (int32_t)p;
        rec->microbatch = microbatch;
    }
}

uint64_t scene_bits(double value)
{
    uint64_t out;
    memcpy(&out, &value, sizeof(out));
    return out;
}

void scene_tensor(struct sim *sim, uint32_t rank, uint32_t comm, enum moe_tensor what, enum moe_tensor_fact fact,
                  uint64_t count, uint32_t count2)
{
    struct roll_record *rec = scene_moe(sim, rank, comm, ROLL_OP_MOE_TENSOR, 3, ROLL_PHASE_REDUCE);
    rec->peer = (int32_t)what;
    rec->aux = (uint16_t)fact;
    rec->count = count;
    rec->group = count2;
}

void scene_tells(struct sim *sim, const char *what, uint32_t rank, const char *said, const char *unsaid)
{
    char want[96] = "";
    if (what) {
        snprintf(want, sizeof(want), rank == SCENE_NOBODY ? "%s -" : "%s %u", what, rank);
    }
    sim_expect(sim, want);
    char *got = sim_run(sim, 0, true, true);
    if (said && !strstr(got, said)) {
        fail_msg("'%s' is not in: %s", said, got);
    }
    if (unsaid && strstr(got, unsaid)) {
        fail_msg("'%s' is in: %s", unsaid, got);
    }
    free(got);
}

void scene_refused(struct sim *sim, uint32_t rank, uint32_t comm, uint64_t count, enum news news)
{
    struct roll_record *rec = sim_call(sim, rank, comm, ROLL_OP_ALLREDUCE, count);
    rec->result = SCENE_BAD;
    sim->rank[rank].seq[comm]--;
    if (news == LATER) {
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        rec->result = 0;
        sim_return(sim, rank);
        sim->rank[rank].event[sim->rank[rank].events - 1].rec.result = SCENE_BAD;
    }
}

uint32_t scene_bits_float(float value)
{
    uint32_t out;
    memcpy(&out, &value, sizeof(out));
    return out;
}

uint32_t scene_creation(struct sim *sim, const uint32_t *ranks, uint32_t joined, uint32_t size)
{
    uint32_t c = sim_comm(sim, "part", ranks, joined);
    for (uint32_t i = 0; i < joined; i++) {
        uint32_t r = ranks[i];
        struct sim_event *event = &sim->rank[r].event[sim->rank[r].events - 1];
        event->def.comm.info.nranks = (int32_t)size;
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, c);
        rec->count = size;
        rec->peer = (int32_t)i;
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
    return c;
}

void scene_calls(struct sim *sim, uint32_t comm, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sim_all(sim, comm, ROLL_OP_ALLREDUCE, 512);
    }
    scene_sync_all(sim);
}

void scene_waited_calls(struct sim *sim, uint32_t comm, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        scene_calls(sim, comm, 1);
    }
}

void scene_sync_all(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_sync(sim, r);
    }
}

void scene_all_stuck(struct sim *sim, uint32_t comm)
{
    sim_all(sim, comm, ROLL_OP_ALLREDUCE, 512);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_stuck(sim, r);
    }
}

void scene_exchange(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t starved, uint32_t omit)
{
    sim_group(sim, rank);
    for (uint32_t p = 0; p < sim->ranks; p++) {
        bool empty = rank == starved || p == starved;
        if (!empty || rank != omit) {
            sim_send(sim, rank, comm, p, empty ? 0 : 32 + rank * 4 + p);
            sim_recv(sim, rank, comm, p, empty ? 0 : 32 + p * 4 + rank);
        }
    }
    sim_group_end(sim, rank);
    sim_return(sim, rank);
}

void scene_expect_after(struct sim *sim, uint64_t seconds, const char *findings)
{
    sim->patience_ns = seconds * S_;
    sim_expect(sim, findings);
}

void scene_expect_text(const struct sim *sim, const char *part)
{
    char *text = sim_run(sim, 0, true, true);
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' is not in: %s", part, text);
    }
    free(text);
}

struct sim *scene_two_wait(uint32_t *w)
{
    struct sim *sim = sim_new(3);
    *w = sim_world(sim);
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, *w, ROLL_OP_ALLREDUCE, 512);
        sim_sync(sim, r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        sim_call(sim, r, *w, ROLL_OP_ALLREDUCE, 512);
        sim_stuck(sim, r);
    }
    return sim;
}
