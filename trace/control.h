/*
 * control.h: the control page: one page per (job, restart) and node, written by the agent, read by every rank.
 *
 * Ranks read the page without a lock, with relaxed loads of single words. Each word is meaningful alone, and ranks
 * agree on remedies that need several of them in-band (docs/MOE.md, Remedies), so no consistent snapshot is needed.
 * `generation` grows with each change, for people who look. Byte by byte: docs/RING.md.
 */
#ifndef ROLL_TRACE_CONTROL_H
#define ROLL_TRACE_CONTROL_H

#include "trace/remedy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_CONTROL_MAGIC   "ROLLCTRL"
#define ROLL_CONTROL_VERSION 1u
#define ROLL_CONTROL_BYTES   4096u
#define ROLL_CONTROL_LAYERS  256u
#define ROLL_CONTROL_GROUPS  32u

struct roll_control {
    char magic[8];                  /*   0 */
    uint16_t version;               /*   8 */
    uint16_t oldest;                /*  10 */
    uint32_t bytes;                 /*  12 */
    _Atomic uint64_t generation;    /*  16: grows with each change */
    _Atomic uint32_t policy;        /*  24: enum roll_policy */
    _Atomic uint32_t on;            /*  28: remedies on for the whole job */
    _Atomic uint32_t auto_local;    /*  32: remedies that a rank may take (local) or propose to its group (symmetric) by
                                       itself when it meets their hazard */
    _Atomic uint32_t agent_pid;     /*  36 */
    _Atomic uint64_t agent_seen_ns; /*  40: CLOCK_MONOTONIC when the agent last looked */
    _Atomic uint32_t policy_told;   /*  48: 1: a root has set the policy; a root that comes after it goes on with it */
    uint8_t pad0[76];               /*  52 */
    struct {
        _Atomic uint32_t on, off; /* remedies added to those of the job, then remedies taken from them */
    } layer[ROLL_CONTROL_LAYERS]; /* 128 */
    struct {
        _Atomic uint64_t comm_key; /* 0 = unused entry */
        _Atomic uint32_t on, off;
    } group[ROLL_CONTROL_GROUPS]; /* 2176 */
    uint8_t pad1[ROLL_CONTROL_BYTES - 2176 - 32 * 16];
};

_Static_assert(sizeof(struct roll_control) == ROLL_CONTROL_BYTES, "the control page is one page");
_Static_assert(offsetof(struct roll_control, layer) == 128 && offsetof(struct roll_control, group) == 2176,
               "control page offsets are part of the format");

/*
 * Opens the control page `path`, making it first (0600, atomically: the first maker wins) when it does not exist and
 * `create` is set; a page that is made starts with `policy`. *out is a mapping that roll_control_close unmaps.
 * Errors: NOTFOUND, DENIED, IO, SPACE, SHORT, MAGIC, VERSION, SIZE. Any thread; no malloc.
 */
int roll_control_open(const char *path, bool create, enum roll_policy policy, struct roll_control **out);
void roll_control_close(struct roll_control **control);

/* Checks bytes that should be a control page; pure. */
int roll_control_check(const void *data, size_t bytes);

/*
 * The remedies in force for a layer on a communicator; with key 0 or layer ROLL_LAYER_NONE that level is skipped.
 * `hazard` has the bits of the remedies that would cure what the rank is about to meet. In force are the remedies that
 * are on, and those of `hazard` that the policy lets a rank take. A remedy that is off for the communicator or the
 * layer stays off whatever the policy. Inline because moe_core asks through the interposer once per layer and pass. Any
 * thread; wait-free.
 */
static inline uint32_t roll_control_mask(struct roll_control *c, uint64_t comm_key, uint32_t layer, uint32_t hazard)
{
    uint32_t mask = atomic_load_explicit(&c->on, memory_order_relaxed) |
                    (hazard & atomic_load_explicit(&c->auto_local, memory_order_relaxed));
    for (unsigned i = 0; comm_key != 0 && i < ROLL_CONTROL_GROUPS; i++) {
        uint64_t key = atomic_load_explicit(&c->group[i].comm_key, memory_order_relaxed);
        if (key == comm_key) {
            mask |= atomic_load_explicit(&c->group[i].on, memory_order_relaxed);
            mask &= ~atomic_load_explicit(&c->group[i].off, memory_order_relaxed);
        }
    }
    if (layer < ROLL_CONTROL_LAYERS) {
        mask |= atomic_load_explicit(&c->layer[layer].on, memory_order_relaxed);
        mask &= ~atomic_load_explicit(&c->layer[layer].off, memory_order_relaxed);
    }
    return mask;
}

/* Where a change applies. Wire values. */
enum roll_control_level {
    ROLL_LEVEL_JOB = 0,
    ROLL_LEVEL_GROUP = 1, /* the communicator comm_key */
    ROLL_LEVEL_LAYER = 2,
};

/* What a change does with the remedies of its mask. Wire values. */
enum roll_control_action {
    ROLL_ACTION_CLEAR = 0, /* takes both back: neither on nor off */
    ROLL_ACTION_ON = 1,
    ROLL_ACTION_OFF = 2,    /* a remedy that is off for the job is not taken by policy auto either */
    ROLL_ACTION_POLICY = 3, /* sets the policy, which mask holds; level JOB only */
};

/* One change, as sent by the root (frame CONTROL) and applied by the agent. */
struct roll_control_change {
    uint32_t level;  /* enum roll_control_level */
    uint32_t action; /* enum roll_control_action */
    uint32_t mask;
    uint32_t layer;    /* level LAYER */
    uint64_t comm_key; /* level GROUP */
};
_Static_assert(sizeof(struct roll_control_change) == 24, "part of the wire format");

/* Applies a change and advances generation; policy AUTO sets auto_local to all remedies, others clear it.
 * 0, ARG, or LIMIT when the group table is full. One writer at a time. */
int roll_control_apply(struct roll_control *control, const struct roll_control_change *change);

#endif
