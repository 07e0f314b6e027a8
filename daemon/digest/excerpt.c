/*
 * excerpt.c: see excerpt.h.
 *
 * Where a rank stands before the excerpt follows from the first call of each kind in it, which bears its number; where
 * there is none, from the fold's count. To keep the numbers for each ticket was rejected: they are asked for once in
 * a job's life, and the ring holds them anyway.
 */
#include "daemon/digest/excerpt.h"

#include "daemon/base/map.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>

static bool numbered(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return (class == ROLL_CLASS_COLL && rec->count != 0) || class == ROLL_CLASS_P2P;
}

/* In observations the field means something else. */
static bool same_group(const struct roll_record *a, const struct roll_record *b)
{
    bool calls = roll_op_class(a->op) < ROLL_CLASS_MOE && roll_op_class(b->op) < ROLL_CLASS_MOE;
    return calls && a->group != 0 && a->group == b->group;
}

static bool is_wanted(const struct roll_record *rec, const struct roll_excerpt_want *want, size_t wants)
{
    enum roll_op_class class = roll_op_class(rec->op);
    if (roll_seal_state(rec->seal) == ROLL_STATE_ENTERED && class != ROLL_CLASS_POLL) {
        return true; /* a host is still inside this call */
    }
    for (size_t i = 0; i < wants && numbered(rec); i++) {
        uint32_t of = rec->seq / ROLL_DIGEST_WINDOW % ROLL_DIGEST_CLASSES;
        if (want[i].comm == rec->comm &&
            (class == ROLL_CLASS_COLL ? rec->seq >= want[i].low : (want[i].classes >> of & 1) != 0)) {
            return true;
        }
    }
    return false;
}

/* The last observation before the first one of the step, among the records that are there; 0: these begin in the step,
 * or behind it. */
static uint64_t find_step(const struct roll_excerpt_records *records, uint32_t step)
{
    struct roll_record rec;
    uint64_t before = 0;
    for (uint64_t ticket = records->oldest; ticket < records->next; ticket++) {
        if (!records->record(records->from, ticket, &rec) || roll_op_class(rec.op) != ROLL_CLASS_MOE ||
            rec.step == ROLL_STEP_NONE) {
            continue;
        }
        if (roll_observed_step(rec.step) >= step) {
            return before;
        }
        before = ticket;
    }
    return 0;
}

/* The ticket from which on what was observed is wanted, as far back as can be told. *gone: that is not all of it. */
static uint64_t observed_since(const struct roll_excerpt_records *records, const roll_fold_t *fold,
                               const struct roll_excerpt_want *want, size_t wants, bool *gone)
{
    uint64_t first = UINT64_MAX;
    uint32_t forgotten = UINT32_MAX; /* the oldest such step: the later ones lie behind it */
    for (size_t i = 0; i < wants; i++) {
        uint64_t ticket = roll_fold_observed(fold, want[i].step);
        first = ticket < first ? ticket : first;
        forgotten = want[i].step < forgotten && roll_fold_forgot(fold, want[i].step) ? want[i].step : forgotten;
    }
    uint64_t found = forgotten != UINT32_MAX && !records->only_known ? find_step(records, forgotten) : 0;
    *gone = forgotten != UINT32_MAX && found == 0;
    return found != 0 && found < first ? found : first;
}

uint64_t roll_excerpt_observed(const struct roll_excerpt_records *records, const roll_fold_t *fold,
                               const struct roll_excerpt_want *want, size_t wants)
{
    bool gone;
    uint64_t first = observed_since(records, fold, want, wants, &gone);
    return gone ? 0 : first;
}

uint64_t roll_excerpt_begin(const struct roll_excerpt_records *records, const roll_fold_t *fold,
                            const struct roll_excerpt_want *want, size_t wants, uint64_t history)
{
    uint64_t have = records->next - records->oldest;
    uint64_t begin = have > history ? records->next - history : records->oldest;
    bool gone;
    uint64_t observed = observed_since(records, fold, want, wants, &gone);
    begin = observed < begin ? observed : begin;
    begin = begin > records->oldest ? begin : records->oldest;
    struct roll_record rec, before;
    for (uint64_t ticket = records->oldest; ticket < begin; ticket++) {
        if (records->record(records->from, ticket, &rec) && is_wanted(&rec, want, wants)) {
            begin = ticket;
        }
    }
    while (begin > records->oldest && records->record(records->from, begin, &rec) &&
           records->record(records->from, begin - 1, &before) && same_group(&before, &rec)) {
        begin--;
    }
    return begin;
}

/* A communicator's collectives, or its messages of one direction with one peer. */
static uint64_t kind_of(uint16_t comm, unsigned op, uint32_t peer)
{
    bool message = op == ROLL_OP_SEND || op == ROLL_OP_RECV;
    return (uint64_t)comm << 48 | (uint64_t)(message ? op : ROLL_OP_NONE) << 40 | (message ? peer : 0);
}

int roll_excerpt_places(const struct roll_excerpt_records *records, const roll_fold_t *fold, uint64_t begin,
                        struct roll_fold_place **out, size_t *n)
{
    struct roll_map at = {0};
    struct roll_fold_place place, *list = NULL;
    struct roll_record rec;
    size_t all = 0;
    int err = 0;
    while (roll_fold_place(fold, all, &place)) {
        all++;
    }
    *out = NULL;
    *n = 0;
    list = malloc((all + 1) * sizeof(*list));
    if (!list) {
        return ROLL_E_NOMEM;
    }
    size_t used = 0;
    for (size_t i = 0; i < all && err == 0; i++) {
        struct roll_fold_place *p = &list[used];
        (void)roll_fold_place(fold, i, p);
        if (p->comm != 0) {
            err = roll_map_add(&at, kind_of(p->comm, p->op, p->peer), (uint32_t)used++);
        }
    }
    if (err != 0) {
        goto out;
    }
    /* Backwards, so that the first call of each kind has the last word. */
    for (uint64_t ticket = records->next; ticket-- > begin;) {
        if (!records->record(records->from, ticket, &rec)) {
            continue;
        }
        if (numbered(&rec)) {
            uint32_t i = roll_map_get(&at, kind_of(rec.comm, rec.op, (uint32_t)rec.peer));
            if (i != ROLL_MAP_NONE) {
                /* A refused call and the one in its place have one number: numbers are counted, and not calls. */
                bool message = list[i].op != ROLL_OP_NONE;
                uint32_t numbers = message && list[i].next > rec.seq ? list[i].next - rec.seq : 0;
                numbers -= numbers > 0 && (rec.flags & ROLL_FLAG_CAPTURED) != 0;
                list[i].made -= numbers < list[i].made ? numbers : list[i].made;
                list[i].next = rec.seq < list[i].next || !message ? rec.seq : list[i].next;
            }
        } else if (rec.op == ROLL_OP_COMM_SPLIT) {
            uint32_t i = roll_map_get(&at, kind_of(rec.comm, ROLL_OP_NONE, 0));
            if (i != ROLL_MAP_NONE) {
                list[i].made = rec.aux;
            }
        }
    }
    *out = list;
    *n = used;
    list = NULL;
out:
    roll_map_fini(&at);
    free(list);
    return err;
}
