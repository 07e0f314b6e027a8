/*
 * detector.h: what a detector is: a row of functions, called by the matcher at fixed moments. docs/ADDING.md says how
 * to add one.
 *
 * A detector judges; it does not match. It is given what the matcher has found (a disagreement, a pair, a reason for
 * waiting, a record) and either stays silent or says one verdict per cause. All functions may be NULL. They run in the
 * order of the table in detectors.c.
 */
#ifndef ROLL_ENGINE_DETECTOR_H
#define ROLL_ENGINE_DETECTOR_H

#include "daemon/engine/internal.h"

struct detector {
    const char *name;
    /* Ranks disagree at one place of a communicator, and it is known how. True: said, or known; nobody else is asked.
     */
    bool (*disagree)(struct roll_engine *e, const struct finding *f);
    /* A send and a receive that meet differ in bytes. */
    bool (*pair)(struct roll_engine *e, struct pair *p, uint32_t index);
    /* Ranks wait, and this is why. True: said, or known. */
    bool (*block)(struct roll_engine *e, const struct block *b);
    /* A record of class MOE, EXT or COMM, first time or grown. Collectives and p2p do not come here: that path is hot.
     */
    void (*record)(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket, bool first);
    /* Records of this source are lost. */
    void (*lost)(struct roll_engine *e, uint32_t source, uint64_t count);
    /* Time has passed. */
    void (*tick)(struct roll_engine *e);
    /* Frees what the detector has hung onto the engine. */
    void (*fini)(struct roll_engine *e);
};

/* One per file detect_*.c. */
extern const struct detector detect_null, detect_signature, detect_group, detect_zero, detect_align, detect_missing,
    detect_p2p, detect_alltoallv, detect_lowered, detect_taken, detect_circular, detect_process, detect_moe_zero,
    detect_moe_obligation, detect_moe_phase, detect_moe_outside, detect_moe_uniform, detect_moe_route, detect_numbers,
    detect_init, detect_loss, detect_capture, detect_race, detect_refused, detect_stuck, detect_unheard, detect_claim,
    detect_straggler, detect_order, detect_gather;

extern const struct detector *const detectors[];
extern const size_t detector_count;

bool detectors_disagree(struct roll_engine *e, const struct finding *f);
bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index);
bool detectors_block(struct roll_engine *e, const struct block *b);

/* detect_moe_outside.c: a send or receive in a group: the place of the group among the member's exchanges, from 1; 0 =
 * not followed. */
uint32_t outside_exchange(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* A send and a receive that meet belong to one exchange: numbers are made equal. `place` is that of the call of `m`, 0
 * = none. */
void outside_meet(struct member *m, struct member *other, struct node *n, uint32_t place);
/* Notes that members moved as many bytes in this collective, but not of one datatype; once per place. detect_dtype.c */
void dtype_note(struct roll_engine *e, struct comm *c, uint32_t seq);
/* Notes that a communicator is judged no more, because too much on it is incomplete. */
void loss_window(struct roll_engine *e, const struct comm *c);
/* A send and a receive that pair up have different numbers of collectives before them that are made of messages. */
void lowered_cross(struct roll_engine *e, const struct pair *p, uint32_t index);
/* Says that a send and a receive differ in bytes; ticket: of both calls. */
void p2p_say_bytes(struct roll_engine *e, struct pair *p, uint32_t index, const uint64_t ticket[2], bool proven);

#endif
