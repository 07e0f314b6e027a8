/*
 * dispatcher_kind.h: what the front (dispatcher.c) and the kinds of dispatcher share.
 *
 * The front checks arguments and state, resolves the groups and holds the members that every kind needs; a kind fills
 * in a table of functions and keeps its own buffers behind `state`.
 */
#ifndef MOE_CORE_DISPATCH_DISPATCHER_KIND_H
#define MOE_CORE_DISPATCH_DISPATCHER_KIND_H

#include "moe_core/base/fail.h"
#include "moe_core/dispatch/collective.h"
#include "moe_core/include/moe/dispatcher.h"

#pragma GCC visibility push(hidden)

struct moe_uneven_group; /* uneven.h */

struct moe_dispatcher_kind_ops {
    const char *name;
    /*
     * Refuses what the kind does not have (UNSUPPORTED), allocates d->state, and the room of the exchange that `create`
     * makes. Issues nothing. Before the call the front has resolved the groups and checked the shape.
     */
    int (*open)(moe_dispatcher_t *d);
    /*
     * Sets d->max_rows and d->standing, and allocates what has the same size in every forward; where d->standing is
     * set, also what has not. What fails before the exchange, where the kind has one, is told in it. After the call the
     * front allocates the same for struct moe_dispatcher.
     */
    int (*create)(moe_dispatcher_t *d);
    void (*destroy)(moe_dispatcher_t *d); /* also called after an open or a create that failed half-way */
    void (*release)(moe_dispatcher_t *d); /* gives back all memory of the pool that the kind has */
    /*
     * Exchanges, and fills in the plan. Before the call the front has checked T and the pointers, stored the routing
     * and zeroed the plan. `proposed` is the word that travels: the proposals, and above them the number of
     * moe_dispatcher_set_alike.
     */
    int (*prepare)(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed);
    /*
     * Takes part in the exchange of prepare, as far as peers go before they look at what came, and tells them
     * MOE_DECLINED. d->routing has no more than the number of tokens. Not called where d->standing is set: nothing is
     * taken there, so nothing is lacking. What fails in it is lost: the rank has a failure of its own.
     */
    void (*decline)(moe_dispatcher_t *d);
    int (*forward)(moe_dispatcher_t *d, const void *x);
    int (*combine)(moe_dispatcher_t *d, void *y);
    int (*push_dispatch)(moe_dispatcher_t *d, struct moe_plan *plan);
    int (*push_combine)(moe_dispatcher_t *d, struct moe_plan *plan);
};

/* Beside the remedies that a rank proposes: it has no memory to go on. */
#define MOE_DECLINED (UINT32_C(1) << 31)

/* How far the layer-forward has come; each call needs the stage that the call before it leaves. */
enum moe_dispatcher_stage {
    MOE_DISPATCHER_IDLE,
    MOE_DISPATCHER_PREPARED,
    MOE_DISPATCHER_SENT,
    MOE_DISPATCHER_COMBINED
};

struct moe_dispatcher {
    const struct moe_dispatcher_kind_ops *kind;
    moe_device_t *device;
    struct moe_dispatcher_config config;
    struct moe_group ep, etp, tp_ep, tp;
    int64_t local;              /* experts of this rank */
    int64_t max_rows;           /* the most rows of the experts' buffers */
    bool standing;              /* sizes are known beforehand: all memory is made once, so that a graph can capture */
    struct moe_routing routing; /* of the last prepare */
    struct moe_dispatch_plan plan;
    struct moe_event at;     /* set by moe_dispatcher_at */
    enum moe_uneven padding; /* how the last forward padded different numbers of tokens */
    enum moe_dispatcher_stage stage;
    const moe_dispatcher_t *follows; /* set by moe_dispatcher_follow, until the next exchange is over */
    bool shares;                     /* set by moe_dispatcher_share */
    uint16_t alike;                  /* set by moe_dispatcher_set_alike */
    bool compares;                   /* likewise: there is a number to compare */
    int32_t unlike;         /* the first rank whose `alike` differs in this forward's exchange; 0: none that is known */
    uint16_t theirs, first; /* its number, and that of rank 0 */
    bool detached;          /* set by moe_dispatcher_detach */
    bool backward;          /* begin_backward was called for the last forward */
    const void *x;          /* of the last forward */
    const void *dy;         /* of the backward under way */
    void *dx;
    const struct moe_shared_weights *shared_weights;
    /* Device buffers that the accessors give out: of the pool, while they hold something; or standing ones. */
    void *rows, *expert_out, *d_expert_out, *d_rows; /* [received,H] */
    float *row_probs, *d_row_probs;                  /* [received]; NULL where no probabilities travel */
    float *d_probs;                                  /* [T,E] */
    int64_t *m;                                      /* [local], fixed */
    void *state;                                     /* owned by the kind */
};

/*
 * Takes memory for this forward or backward from the pool, in the pointer at `at`. A standing dispatcher has it: the
 * first call, in create, makes it for the most bytes, and later calls change nothing. Errors: NOMEM, STATE.
 */
int moe_dispatcher_take(moe_dispatcher_t *d, size_t bytes, void *at);
/* The same for `rows` rows of H elements in the rows' type. */
int moe_dispatcher_take_rows(moe_dispatcher_t *d, int64_t rows, void *at);
/* Gives memory back to the pool once the work that uses it is enqueued; does nothing in a standing dispatcher. */
void moe_dispatcher_give(moe_dispatcher_t *d, void *at);
/* Frees memory of moe_dispatcher_take for good, standing or not. */
void moe_dispatcher_free(moe_dispatcher_t *d, void *at);
/* Takes the rows and, where they travel, the probabilities of one of the front's pairs of buffers, for plan.received
 * rows. */
int moe_dispatcher_take_received(moe_dispatcher_t *d, void **rows, float **probs);

/*
 * Pushes a node whose argument is the dispatcher. Where the group is NULL or has one rank, the node carries no
 * obligation.
 */
int moe_dispatcher_push(moe_dispatcher_t *d, struct moe_plan *plan, const char *name, int (*run)(void *),
                        enum moe_obligation_op op, const struct moe_group *group, uint64_t count);
/* Describes rows of `type` and `width` to the functions of collective.h. */
struct moe_collective moe_dispatcher_collective(const moe_dispatcher_t *d, const struct moe_group *group,
                                                const char *what, ncclDataType_t type, int64_t width);
/* NOMEM, which names rank r of the dispatch group, where that is another rank and its proposal says MOE_DECLINED. */
int moe_dispatcher_declined(const moe_dispatcher_t *d, int64_t r, uint32_t proposal);
/* Reports MOE_UNIFORM on a group of several ranks. Call it before the collective that needs the number. */
void moe_dispatcher_uniform(const moe_dispatcher_t *d, const struct moe_group *group, enum moe_uniform what,
                            int64_t count);
/*
 * Whether a legacy behaviour that is about to happen is cured: asks moe_remedies for a local remedy, and notes its use
 * in the plan.
 */
bool moe_dispatcher_cured(moe_dispatcher_t *d, uint32_t remedy);

/* The word that travels with an exchange: proposals, above them the number of set_alike, then MOE_DECLINED; above these
 * 32 bits another number: T, where numbers of tokens are padded. */
enum { MOE_WORD_PROPOSED = 0xffff, MOE_WORD_ALIKE = 0x7fff, MOE_WORD_ALIKE_SHIFT = 16, MOE_WORD_TOKENS_SHIFT = 32 };
/*
 * Reads the words of all ranks, `stride` numbers apart: returns the bitwise AND of the proposals, and notes the first
 * rank whose `alike` differs from that of rank 0.
 */
uint32_t moe_dispatcher_agreed(moe_dispatcher_t *d, const int64_t *words, int64_t stride);

/* Whether this is a recomputed forward. */
bool moe_dispatcher_again(const moe_dispatcher_t *d);
/*
 * How this forward pads different numbers of tokens: as configured, or else as `agreed` in the previous exchange. A
 * recomputed forward pads as the first one did, whatever the exchange of that one agreed,
 * because backward works on what the recomputed forward makes.
 */
enum moe_uneven moe_dispatcher_padding(moe_dispatcher_t *d, uint32_t agreed);
/* The word of this rank with its T. */
int64_t moe_dispatcher_word(const moe_dispatcher_t *d, uint32_t word);
/*
 * Reads the T of all ranks from their words, `stride` numbers apart, which came in an exchange that was padded to
 * `padded`. Returns what is enough for the collectives behind it, the same on all ranks: where a remedy has padded, T
 * itself if all have the same, else the largest one rounded up. The plan notes the remedy as a cure in the latter case
 * alone: it has to be in force before anybody knows whether the numbers differ.
 */
int64_t moe_dispatcher_evened(moe_dispatcher_t *d, const int64_t *words, int64_t stride, int64_t padded);
/* The plan notes the padding by a remedy as a cure: where no host reads the words. */
void moe_dispatcher_note_padding(moe_dispatcher_t *d);
/* Finds T_pad of this forward, padded as moe_dispatcher_padding says. */
int moe_dispatcher_pad(const moe_dispatcher_t *d, struct moe_uneven_group *group, enum moe_uneven padding,
                       int64_t *padded);
/*
 * Whether different numbers of tokens are a hazard of this dispatcher, and if so, the remedies against it that this
 * rank proposes when the dispatcher is made; 0: none.
 */
uint32_t moe_dispatcher_proposed_first(const moe_dispatcher_t *d);

extern const struct moe_dispatcher_kind_ops moe_dispatcher_alltoall, moe_dispatcher_allgather, moe_dispatcher_deepep,
    moe_dispatcher_hybridep;

#define DISPATCHER_FAIL(d, code, ...) moe_fail(code, (d)->config.world_rank, (d)->config.layer, __VA_ARGS__)

#pragma GCC visibility pop

#endif
