/*
 * place.c: where each rank comes in on each group, and how its calls are numbered.
 *
 * The windows of ranks reach back to different depths, and a group that is quiet on one rank may have been pushed out
 * of the window there. What remains is the tool's own count of each group, which is the same on all members, and which
 * its status tells also where no entry is left. Only where neither is known the member is unsure, and not said to lack
 * anything.
 */
#include "daemon/dumps/dumps_state.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE       UINT32_MAX
#define NUMBER_MAX (UINT32_MAX / 2) /* no group has so many calls */

/* What one dump shows of one of its groups. */
struct part {
    uint32_t first, last, done; /* of its collectives: the oldest and the newest, the newest that is complete; NONE */
    uint32_t met;               /* the newest that is complete and that nobody leaves before all are in; NONE */
    bool messages;              /* there are messages */
    uint32_t shared;            /* the number of the group among all */
    uint32_t start;             /* where the member comes in */
    bool sure;
};

/* What all dumps show of one group. */
struct shared {
    uint32_t first;      /* the oldest collective of anybody; NONE: there is none */
    uint32_t start;      /* the last that some member comes in at */
    uint32_t end;        /* of the member that has come least far: its newest collective */
    uint32_t complete;   /* the newest that is complete on some member; NONE: not known */
    uint32_t done;       /* the newest that is complete on some member, and needs all of them; 0 = none */
    uint32_t batch;      /* the newest that is several issued together; NONE: there is none */
    int32_t least, most; /* the ranks of the two */
    bool messages;
    const struct roll_dump_group *group;
};

struct placing {
    const struct dumps_job *job;
    struct part **part; /* by dump and group; owned */
    struct shared *shared;
    size_t shares, room;
    struct roll_map at;         /* key of a group -> its number in `shared` */
    struct roll_map is_unsized; /* place_of collectives whose amount is not known of some member */
};

static int share_of(struct placing *p, const struct roll_dump_group *g, uint32_t *out)
{
    uint64_t key = g->key;
    *out = roll_map_get(&p->at, key);
    if (*out != ROLL_MAP_NONE) {
        return 0;
    }
    int err = ROLL_GROW(p->shared, p->room, p->shares + 1);
    err = err != 0 ? err : roll_map_reserve(&p->at);
    if (err == 0) {
        *out = (uint32_t)p->shares++;
        p->shared[*out] = (struct shared){.first = NONE,
                                          .start = 0,
                                          .end = NONE,
                                          .complete = NONE,
                                          .batch = NONE,
                                          .least = -1,
                                          .most = -1,
                                          .group = g};
        (void)roll_map_add(&p->at, key, *out);
    }
    return err;
}

/*
 * A group that was destroyed and made anew under its name counts from 1 again. What comes before that in the dump is of
 * the group that is gone, and is left to no communicator. Without memory all stays.
 */
static void leave_former(struct roll_dump *d)
{
    bool *begun = calloc(d->groups + 1, sizeof(*begun));
    for (size_t i = d->calls; begun != NULL && i > 0; i--) {
        struct roll_dump_call *c = &d->call[i - 1];
        bool first = roll_op_class(c->rec.op) == ROLL_CLASS_COLL && c->rec.seq <= 1;
        if (begun[c->group] && !first) {
            c->rec.seq = NONE;
        }
        begun[c->group] = begun[c->group] || first;
    }
    free(begun);
}

/* Looks through the calls of one dump. Calls on a group of which the rank is no member, and numbers that cannot be, are
 * left to no communicator. */
static int look(struct placing *p, struct roll_dump *d, struct part *part)
{
    int err = 0;
    leave_former(d);
    for (uint32_t i = 0; i < d->groups && err == 0; i++) {
        part[i] = (struct part){.first = NONE, .last = NONE, .done = NONE, .met = NONE};
        err = share_of(p, &d->group[i], &part[i].shared);
    }
    for (size_t i = 0; i < d->calls && err == 0; i++) {
        struct roll_dump_call *c = &d->call[i];
        struct part *of = &part[c->group];
        struct shared *s = &p->shared[of->shared];
        bool message = roll_op_class(c->rec.op) == ROLL_CLASS_P2P;
        c->rec.comm = c->rec.seq < NUMBER_MAX ? dumps_comm(d, c->group) : 0;
        c->rec.stream = c->rec.comm; /* a stream for each communicator, as PyTorch has it */
        if (c->rec.comm == 0) {
            continue;
        }
        if (message) {
            of->messages = s->messages = true;
            continue;
        }
        of->first = of->first == NONE ? c->rec.seq : of->first;
        of->last = of->last == NONE || c->rec.seq > of->last ? c->rec.seq : of->last;
        bool meets = roll_op_has(c->rec.op, ROLL_TRAIT_MEETS) && !roll_op_has(c->rec.op, ROLL_TRAIT_LOWERED);
        if (c->complete && (of->done == NONE || c->rec.seq > of->done)) {
            of->done = c->rec.seq;
        }
        if (c->complete && meets && (of->met == NONE || c->rec.seq > of->met)) {
            of->met = c->rec.seq;
        }
        s->batch = c->ended && (s->batch == NONE || c->rec.seq > s->batch) ? c->rec.seq : s->batch;
        s->first = of->first < s->first ? of->first : s->first;
    }
    return err;
}

/* Where a member comes in: at its oldest collective; else behind those that the tool has counted. */
static void begin(const struct roll_dump *d, const struct roll_dump_group *g, const struct shared *s, struct part *of)
{
    bool counted = g->enqueued != ROLL_DUMP_NO_NUMBER && g->enqueued < NUMBER_MAX && !s->messages;
    of->sure = true;
    if (of->first != NONE) {
        of->start = of->first;
    } else if (d->whole) {
        of->start = s->first < 1 ? s->first : 1;
    } else if (counted) {
        of->start = g->enqueued + 1;
        of->last = g->enqueued;
    } else {
        of->start = g->issued < NUMBER_MAX ? g->issued + 1 : s->first != NONE ? s->first : 1;
        of->sure = s->first == NONE; /* where nobody makes collectives, nobody lacks one */
    }
    if (of->first == NONE && d->whole) {
        of->last = 0;
    }
}

static void compare(const struct roll_dump *d, const struct roll_dump_group *g, struct part *of, struct shared *s)
{
    uint32_t over = of->done != NONE ? of->done : g->over < NUMBER_MAX && !s->messages ? g->over : NONE;
    s->complete = over != NONE && (s->complete == NONE || over > s->complete) ? over : s->complete;
    s->start = of->start > s->start ? of->start : s->start;
    if (of->sure && of->last != NONE && (s->end == NONE || of->last < s->end)) {
        s->end = of->last;
        s->least = d->rank;
    }
    if (of->met != NONE && of->met > s->done) {
        s->done = of->met;
        s->most = d->rank;
    }
}

/* A call is complete that needs all members, and the dump of one of them ends before it. */
static void look_for_progress(const struct placing *p, struct dumps_seen *seen)
{
    for (size_t i = 0; i < p->shares && !seen->runs; i++) {
        const struct shared *s = &p->shared[i];
        if (s->end != NONE && s->done > s->end) {
            const char *name = s->group->label[0] != '\0' ? s->group->label : s->group->name;
            seen->runs = true;
            snprintf(seen->words, sizeof(seen->words),
                     " (on \"%s\" rank %" PRId32 " has completed call %" PRIu32 ", and the dump of rank %" PRId32
                     " ends with call %" PRIu32 ")",
                     name, s->most, s->done, s->least, s->end);
        }
    }
}

/*
 * NCCL drops a collective of no elements, and the engine counts as NCCL does: behind such a call the numbers are lower
 * by one. Not where some member's window begins behind it, because that one's numbers would not be.
 */
static void leave_out_empty(struct roll_dump *d, const struct placing *p, const struct part *part, uint32_t *dropped)
{
    memset(dropped, 0, d->groups * sizeof(*dropped));
    for (size_t i = 0; i < d->calls; i++) {
        struct roll_dump_call *c = &d->call[i];
        if (roll_op_class(c->rec.op) != ROLL_CLASS_COLL) {
            continue;
        }
        bool empty = c->rec.count == 0, shown = c->rec.seq >= p->shared[part[c->group].shared].start;
        c->rec.seq -= dropped[c->group];
        if (empty && shown) {
            dropped[c->group]++;
        } else if (empty) { /* as any other call that all have made */
            c->rec.flags |= ROLL_FLAG_UNSIZED;
            c->rec.count = 1;
        }
    }
}

/* What a collective is known by among all dumps. */
static uint64_t place_of(const struct part *of, const struct roll_dump_call *c)
{
    return (uint64_t)of->shared << 32 | c->rec.seq;
}

static bool is_placed(const struct roll_dump_call *c)
{
    return c->rec.comm != 0 && roll_op_class(c->rec.op) == ROLL_CLASS_COLL;
}

/*
 * A collective whose amount one member's dump does not tell is compared by its amount with nobody's. The newest call of
 * a rank may be the first of several that were being issued together when the dump was written, where others issue
 * calls in that way: then it is not what the rank issues in all.
 */
static int find_unsized(struct placing *p, struct roll_dump *d, const struct part *part)
{
    int err = 0;
    for (size_t i = 0; i < d->calls && err == 0; i++) {
        struct roll_dump_call *c = &d->call[i];
        const struct part *of = &part[c->group];
        uint32_t batch = p->shared[of->shared].batch;
        bool newest = c->rec.seq == of->last && !c->ended && !c->complete;
        bool open = newest && batch != NONE && c->rec.seq <= batch;
        bool odd = is_placed(c) && (open || (c->rec.flags & ROLL_FLAG_UNSIZED) != 0);
        if (odd && roll_map_get(&p->is_unsized, place_of(of, c)) == ROLL_MAP_NONE) {
            err = roll_map_add(&p->is_unsized, place_of(of, c), 0);
        }
    }
    return err;
}

static void leave_amounts(struct roll_dump *d, const struct placing *p, const struct part *part)
{
    for (size_t i = 0; i < d->calls; i++) {
        struct roll_dump_call *c = &d->call[i];
        if (is_placed(c) && roll_map_get(&p->is_unsized, place_of(&part[c->group], c)) != ROLL_MAP_NONE) {
            c->rec.flags |= ROLL_FLAG_UNSIZED;
            c->rec.count = 1;
        }
    }
}

static int tell(roll_feed_t *feed, struct roll_dump *d, const struct placing *p, const struct part *part)
{
    uint32_t source = dumps_source(feed, d);
    uint32_t *dropped = calloc(d->groups + 1, sizeof(*dropped));
    int err = dropped == NULL ? ROLL_E_NOMEM : roll_engine_snapshot(roll_feed_engine(feed), source, true);
    for (uint32_t i = 0; i < d->groups && err == 0; i++) {
        uint16_t comm = dumps_comm(d, i);
        if (comm != 0) { /* a definition that contradicts others has made no member: then there is nothing to place */
            (void)roll_engine_place(roll_feed_engine(feed), source, comm, part[i].start, part[i].sure);
        }
    }
    if (err == 0) {
        leave_amounts(d, p, part);
        leave_out_empty(d, p, part, dropped);
    }
    free(dropped);
    return err;
}

/* Keeps what a rank of which there is no dump would come in at: behind what is complete on some member. */
static int keep_common(const struct placing *p, struct dumps_seen *seen)
{
    size_t room = 0;
    int err = ROLL_GROW(seen->common, room, p->shares + 1);
    for (size_t i = 0; i < p->shares && err == 0; i++) {
        const struct shared *s = &p->shared[i];
        seen->common[seen->commons++] = (struct dumps_common){.group = s->group,
                                                              .next = s->complete != NONE ? s->complete + 1
                                                                      : s->first != NONE  ? s->first
                                                                                          : 1};
    }
    return err;
}

int dumps_place(roll_feed_t *feed, struct dumps_job *job, struct dumps_seen *seen)
{
    struct placing p = {.job = job, .part = calloc(job->dumps, sizeof(*p.part))};
    int err = p.part == NULL ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        p.part[i] = calloc(job->dump[i]->groups + 1, sizeof(*p.part[i]));
        err = p.part[i] == NULL ? ROLL_E_NOMEM : look(&p, job->dump[i], p.part[i]);
    }
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        const struct roll_dump *d = job->dump[i];
        for (uint32_t k = 0; k < d->groups; k++) {
            begin(d, &d->group[k], &p.shared[p.part[i][k].shared], &p.part[i][k]);
            if (dumps_comm(d, k) != 0) {
                compare(d, &d->group[k], &p.part[i][k], &p.shared[p.part[i][k].shared]);
            }
        }
    }
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        err = find_unsized(&p, job->dump[i], p.part[i]);
    }
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        err = tell(feed, job->dump[i], &p, p.part[i]);
    }
    if (err == 0) {
        look_for_progress(&p, seen);
        err = keep_common(&p, seen);
        err = err != 0 ? err : dumps_place_messages(feed, job);
    }
    for (size_t i = 0; i < job->dumps && p.part != NULL; i++) {
        free(p.part[i]);
    }
    free(p.part);
    free(p.shared);
    roll_map_fini(&p.at);
    roll_map_fini(&p.is_unsized);
    return err;
}
