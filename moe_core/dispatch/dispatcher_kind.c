/*
 * dispatcher_kind.c: what every kind of dispatcher asks of its front: memory, nodes, collectives, reports and cures.
 */
#include "moe_core/dispatch/dispatcher_kind.h"

#include "moe_core/base/memory.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

#include <string.h>

int moe_dispatcher_take(moe_dispatcher_t *d, size_t bytes, void *at)
{
    void *memory = NULL;
    memcpy(&memory, at, sizeof(memory));
    int rc = !d->standing     ? moe_pool_take(d->device, bytes, at)
             : memory == NULL ? moe_device_alloc(d->device, bytes, at)
                              : 0;
    return moe_fail_at(rc, d->config.world_rank, d->config.layer);
}

int moe_dispatcher_take_rows(moe_dispatcher_t *d, int64_t rows, void *at)
{
    return moe_dispatcher_take(d, (size_t)rows * (size_t)d->config.hidden * moe_dtype_bytes(d->config.type), at);
}

void moe_dispatcher_give(moe_dispatcher_t *d, void *at)
{
    if (!d->standing) {
        moe_pool_give(d->device, at);
    }
}

void moe_dispatcher_free(moe_dispatcher_t *d, void *at)
{
    if (d->standing) {
        moe_device_free(d->device, at);
    } else {
        moe_pool_give(d->device, at);
    }
}

int moe_dispatcher_take_received(moe_dispatcher_t *d, void **rows, float **probs)
{
    int rc = moe_dispatcher_take_rows(d, d->plan.received, rows);
    return rc || !d->config.probs_travel ? rc : moe_dispatcher_take(d, (size_t)d->plan.received * sizeof(float), probs);
}

int moe_dispatcher_push(moe_dispatcher_t *d, struct moe_plan *plan, const char *name, int (*run)(void *),
                        enum moe_obligation_op op, const struct moe_group *group, uint64_t count)
{
    bool issues = op != MOE_OBLIGE_NONE && group != NULL && group->size > 1;
    struct moe_node node = {.name = name,
                            .run = run,
                            .arg = d,
                            .op = issues ? op : MOE_OBLIGE_NONE,
                            .comm = issues ? group->comm : NULL,
                            .count = issues ? count : 0};
    return moe_plan_push(plan, &node);
}

struct moe_collective moe_dispatcher_collective(const moe_dispatcher_t *d, const struct moe_group *group,
                                                const char *what, ncclDataType_t type, int64_t width)
{
    return (struct moe_collective){.device = d->device,
                                   .group = group,
                                   .what = what,
                                   .type = type,
                                   .width = width,
                                   .world_rank = d->config.world_rank,
                                   .layer = d->config.layer};
}

int moe_dispatcher_declined(const moe_dispatcher_t *d, int64_t r, uint32_t proposal)
{
    return (proposal & MOE_DECLINED) == 0 || r == d->tp_ep.rank
               ? 0
               : DISPATCHER_FAIL(d, MOE_E_NOMEM, "rank %lld of the group has none for this forward", (long long)r);
}

void moe_dispatcher_uniform(const moe_dispatcher_t *d, const struct moe_group *group, enum moe_uniform what,
                            int64_t count)
{
    struct moe_event e = d->at;
    if (group->size > 1) {
        e.size = sizeof(e);
        e.kind = MOE_EV_UNIFORM;
        e.layer = (uint16_t)d->config.layer;
        e.comm = group->comm;
        e.peer = (int32_t)what;
        e.count = (uint64_t)count;
        e.count2 = e.aux = 0;
        moe_observe(&e);
    }
}

bool moe_dispatcher_cured(moe_dispatcher_t *d, uint32_t remedy)
{
    bool cured = (moe_remedies(d->ep.comm, d->config.layer, remedy) & remedy) != 0;
    d->plan.remedied |= cured ? remedy : 0;
    return cured;
}

#define ROLL_REMEDY_ROW(name, bit, label, scope, text) | 1u << (bit)
_Static_assert(((0u
#include "common/remedy.def"
                 ) &
                ~(uint32_t)MOE_WORD_PROPOSED) == 0,
               "a remedy's bit is in the half of the word that carries other things");
#undef ROLL_REMEDY_ROW

uint32_t moe_dispatcher_agreed(moe_dispatcher_t *d, const int64_t *words, int64_t stride)
{
    uint32_t agreed = MOE_WORD_PROPOSED;
    for (int32_t r = 0; r < d->tp_ep.size; r++) {
        uint32_t word = (uint32_t)(words[r * stride] & UINT32_MAX);
        uint16_t alike = (uint16_t)(word >> MOE_WORD_ALIKE_SHIFT & MOE_WORD_ALIKE);
        agreed &= word;
        d->first = r == 0 ? alike : d->first;
        if (alike != d->first && d->unlike == 0) {
            d->unlike = r;
            d->theirs = alike;
        }
    }
    return agreed;
}

bool moe_dispatcher_again(const moe_dispatcher_t *d)
{
    return d->at.phase == MOE_PHASE_RECOMPUTE;
}

enum moe_uneven moe_dispatcher_padding(moe_dispatcher_t *d, uint32_t agreed)
{
    bool bound = (agreed & MOE_REMEDY_BOUND) != 0 && d->config.token_bound > 0;
    if (d->config.uneven != MOE_UNEVEN_NONE) {
        return d->config.uneven;
    }
    if (!moe_dispatcher_again(d)) {
        d->padding = bound ? MOE_UNEVEN_BOUND : (agreed & MOE_REMEDY_UNEVEN) != 0 ? MOE_UNEVEN_MAX : MOE_UNEVEN_NONE;
    }
    return d->padding;
}

void moe_dispatcher_note_padding(moe_dispatcher_t *d)
{
    bool remedy = d->config.uneven == MOE_UNEVEN_NONE;
    d->plan.remedied |= remedy && d->padding == MOE_UNEVEN_BOUND ? MOE_REMEDY_BOUND
                        : remedy && d->padding == MOE_UNEVEN_MAX ? MOE_REMEDY_UNEVEN
                                                                 : 0;
}

int64_t moe_dispatcher_word(const moe_dispatcher_t *d, uint32_t word)
{
    return d->routing.tokens << MOE_WORD_TOKENS_SHIFT | (int64_t)word;
}

int64_t moe_dispatcher_evened(moe_dispatcher_t *d, const int64_t *words, int64_t stride, int64_t padded)
{
    int64_t least = INT64_MAX, most = 0;
    for (int32_t r = 0; r < d->tp_ep.size; r++) {
        int64_t tokens = words[r * stride] >> MOE_WORD_TOKENS_SHIFT;
        least = tokens < least ? tokens : least;
        most = tokens > most ? tokens : most;
    }
    if (d->config.uneven != MOE_UNEVEN_NONE || d->padding == MOE_UNEVEN_NONE) {
        return padded;
    }
    if (least == most) {
        return most;
    }
    moe_dispatcher_note_padding(d);
    int64_t enough = moe_uneven_round(most);
    return enough < padded ? enough : padded;
}

int moe_dispatcher_pad(const moe_dispatcher_t *d, struct moe_uneven_group *group, enum moe_uneven padding,
                       int64_t *padded)
{
    const struct moe_uneven_place place = {
        .step = d->at.step, .microbatch = d->at.microbatch, .again = moe_dispatcher_again(d)};
    return moe_uneven_agree(group, padding, d->shares ? &place : NULL, d->routing.tokens, padded);
}

uint32_t moe_dispatcher_proposed_first(const moe_dispatcher_t *d)
{
    uint32_t hazard = d->config.token_bound > 0 ? MOE_REMEDY_BOUND : MOE_REMEDY_UNEVEN;
    uint32_t useful = d->config.token_bound > 0 ? MOE_REMEDY_BOUND | MOE_REMEDY_UNEVEN : MOE_REMEDY_UNEVEN;
    bool hazardous = d->config.uneven == MOE_UNEVEN_NONE && d->tp_ep.size > 1;
    return hazardous ? moe_remedies(d->tp_ep.comm, d->config.layer, hazard) & useful : 0;
}
