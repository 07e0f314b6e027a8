/*
 * dispatcher_flex.h: what the two Flex dispatchers share: everything but the way in which a rank learns what it will
 * receive.
 *
 * Tokens go to ranks, not to experts: a token goes to a rank once, although several of its experts may live there, and
 * the sum over a rank's experts is taken there before the way back. With expert tensor parallelism each expert has etp
 * ranks, and a token goes to all of them: E' = etp E experts, k' = etp k choices. Two row maps describe the whole way:
 * `out` from tokens to ranks, `in` from the rows received to local experts.
 *
 *   x [T_pad,H]  --out-->  rows by rank  ==all-to-all-v==>  rows by source  --in-->  rows by expert
 *
 * and back the same way. Beside each row go 2k words: its experts and the bits of its float32 probabilities. The words
 * are sent even where the experts do not ask for probabilities: then the local half of combine ends with a weighted sum
 * over the rank's experts. Merging at the source, as alltoall does, would need a row per expert.
 */
#ifndef MOE_CORE_DISPATCH_DISPATCHER_FLEX_H
#define MOE_CORE_DISPATCH_DISPATCHER_FLEX_H

#include "moe_core/dispatch/dispatcher_kind.h"
#include "moe_core/include/moe/ep_buffer.h"
#include "moe_core/include/moe/permute.h"

#pragma GCC visibility push(hidden)

/* What is on the wire: [sent,H] and [sent,2k] on their way out, [came,H] and [came,2k] on their way in. */
enum moe_flex_area { MOE_FLEX_SENT_ROWS, MOE_FLEX_SENT_WORDS, MOE_FLEX_CAME_ROWS, MOE_FLEX_CAME_WORDS, MOE_FLEX_AREAS };

/* The state that both kinds share; the first member of each kind's own state. */
struct moe_flex {
    int64_t first;              /* number of this rank's first expert */
    int64_t most;               /* the largest possible T_pad */
    int64_t max_sent, max_came; /* the most rows sent, and received, on the wire */
    uint32_t proposed;          /* remedies to propose where the group's buffer is made */
    int64_t numbers;            /* int64 numbers per rank in the layout's counts: ranks + experts + 1 */

    /* The numbers of one layer-forward, set by the kind's prepare. */
    int64_t tokens, padded; /* T, T_pad */
    int64_t slot;           /* rows reserved for each peer, whether used or not; 0: exactly as many as are sent */
    int64_t sent, came;     /* rows sent, and received, on the wire */
    bool drop;              /* choices beyond the experts' rows are dropped */
    bool left;              /* legacy empty_returns_early: this rank has left dispatch */
    bool foreign;           /* legacy empty_from_input: the experts' rows are taken from this rank's own input */
    bool view_fails;        /* legacy empty_unpermute: no token of this rank goes anywhere */
    int64_t *split_sent, *split_came; /* host [ranks] */

    moe_row_map_t *out, *in;
    moe_ep_buffer_t *opened; /* the room of the group's agreement */
    moe_ep_buffer_t *buffer; /* the group's agreement; also the memory of the four areas where the dispatcher stands */
    int64_t *chosen;         /* [L]: choices received for each expert, dropped ones included */
    int64_t *pad_rows;       /* [L]: the experts' rows where remedy PAD acts on this rank */
    /* What the pool gives, while it holds something. */
    void *area[MOE_FLEX_AREAS]; /* rows and words on the wire */
    uint8_t *to_ranks;          /* [T_pad, ranks] */
    int32_t *words;             /* [T_pad, 2k] */
    void *pad;                  /* [T_pad, H]: x, y, dy or dx with padding tokens */
    int32_t *in_index;          /* [came, k] */
    uint8_t *in_mask;           /* [came, L] */
    float *in_probs;            /* [came, L] */
    float *d_in_probs;          /* [came, L] */
    float *d_choice;            /* [T_pad, k] */
};

/*
 * Refuses what neither kind has, computes sizes from `most` (T_pad) and the rows per peer, and makes the room of the
 * group's agreement. Errors: UNSUPPORTED, SHAPE, NOMEM, COMM.
 */
int moe_flex_open(moe_dispatcher_t *d, struct moe_flex *f, int64_t most, int64_t rows_per_token);
/*
 * Agrees on the group's buffer (COLLECTIVE) and makes what does not change from forward to forward; where d->standing
 * is set, everything. `failed`: 0, or what keeps this rank from going on, which is then told in the agreement and
 * returned. Errors: NOMEM, SHAPE, COMM.
 */
int moe_flex_create(moe_dispatcher_t *d, struct moe_flex *f, int failed);
void moe_flex_destroy(moe_dispatcher_t *d, struct moe_flex *f);
/* Gives all memory of the pool back. */
void moe_flex_release(moe_dispatcher_t *d);

/* The most rows that the experts' buffer needs when nothing is dropped. */
int64_t moe_flex_max_rows(const moe_dispatcher_t *d, int64_t most);

/* Enqueues the layout of this rank's tokens: to_ranks, counts [numbers], and the routing map [padded, map_row] where
 * map is not NULL. */
int moe_flex_lay_out(moe_dispatcher_t *d, struct moe_flex *f, uint8_t *map, int64_t map_row, int64_t *counts);
/* Fills in plan and splits from the counts of all ranks on the host [ranks, numbers]. Errors, the same on all ranks:
 * COUNT. */
int moe_flex_derive(moe_dispatcher_t *d, struct moe_flex *f, const int64_t *counts, bool pad);
/* The bitwise AND of the remedies that all ranks proposed. */
uint32_t moe_flex_agreed(moe_dispatcher_t *d, const struct moe_flex *f, const int64_t *counts);
/* Builds the map `out`. Call it once the splits are known. */
int moe_flex_build_out(moe_dispatcher_t *d, struct moe_flex *f);

static inline struct moe_flex *moe_flex_of(const moe_dispatcher_t *d)
{
    return d->state;
}

static inline size_t moe_flex_row_bytes(const moe_dispatcher_t *d)
{
    return (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
}

/* Takes the memory of an area for the rows of this layer-forward, or finds its place in the group's buffer. */
int moe_flex_take_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area);
void moe_flex_give_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area);
/* Takes `numbers` numbers of four bytes for each token, or for each row that came. */
int moe_flex_take_numbers(moe_dispatcher_t *d, int64_t rows, int64_t numbers, void *at);

static inline int moe_flex_take_d_probs(moe_dispatcher_t *d)
{
    return moe_flex_take_numbers(d, d->routing.tokens, d->config.experts, &d->d_probs);
}

/* dispatcher_flex_steps.c: the functions behind prepare of both kinds, whose state begins with struct moe_flex. */
int moe_flex_forward(moe_dispatcher_t *d, const void *x);
int moe_flex_combine(moe_dispatcher_t *d, void *y);
int moe_flex_push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan);
int moe_flex_push_combine(moe_dispatcher_t *d, struct moe_plan *plan);

#pragma GCC visibility pop

#endif
