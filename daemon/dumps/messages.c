/*
 * messages.c: which send of a dump meets which receive of another.
 *
 * NCCL matches messages of a pair in their order, and a window does not say how many came before it. Two cases are
 * certain: both windows begin with the process, so that the order alone says it; or each of the two has messages with
 * nobody else on the group, so that the tool's own numbers of messages are those of the pair. All other messages are
 * left to no communicator: they show what their rank did last, and nobody is said to lack one.
 */
#include "daemon/dumps/dumps_state.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"

#include <stdlib.h>

#define SENDS    0u
#define RECEIVES 1u

/* One message, as the one side of its pair that it is. */
struct side {
    uint64_t key;
    uint32_t source, target; /* places in the group */
    uint32_t dump, call;
    uint32_t which; /* SENDS, RECEIVES */
};

/* All messages of one dump on one group. */
struct talk {
    bool any, several; /* there are messages; with more than one partner */
    uint32_t partner;
    uint32_t newest; /* the number of the newest; 0 = there is none */
};

/* The messages of one side, one after the other. */
struct queue {
    struct side *at;
    size_t n;
    const struct roll_dump *dump; /* the dump of that side's rank; NULL: there is none */
    const struct talk *talk;      /* of that dump on the group */
    uint32_t group;               /* the group's number in that dump */
};

struct pairing {
    struct dumps_job *job;
    struct talk **talk;  /* by dump and group; owned */
    struct roll_map *at; /* by dump: key of a group -> its number there; owned */
};

static int by_pair(const void *a, const void *b)
{
    const struct side *x = a, *y = b;
    const uint64_t order[][2] = {{x->key, y->key},     {x->source, y->source}, {x->target, y->target},
                                 {x->which, y->which}, {x->dump, y->dump},     {x->call, y->call}};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (order[i][0] != order[i][1]) {
            return order[i][0] < order[i][1] ? -1 : 1;
        }
    }
    return 0;
}

static bool is_message(const struct roll_dump_call *c)
{
    return c->rec.comm != 0 && (c->rec.op == ROLL_OP_SEND || c->rec.op == ROLL_OP_RECV);
}

static struct roll_dump_call *call_of(const struct dumps_job *job, const struct side *s)
{
    return &job->dump[s->dump]->call[s->call];
}

/* The dump of a place of the group, and the group's number there. */
static void find_dump(const struct pairing *p, const struct roll_dump_group *g, uint32_t place, struct queue *out)
{
    const struct dumps_job *job = p->job;
    size_t low = 0, high = job->dumps; /* dumps stand in the order of their ranks */
    out->dump = NULL;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if ((uint32_t)job->dump[mid]->rank < g->members.rank[place]) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low == job->dumps || (uint32_t)job->dump[low]->rank != g->members.rank[place]) {
        return;
    }
    uint32_t group = roll_map_get(&p->at[low], g->key);
    if (group != ROLL_MAP_NONE) {
        out->dump = job->dump[low];
        out->group = group;
        out->talk = &p->talk[low][group];
    }
}

/* Looks through a dump once: which groups it has, and with whom it has messages on each. */
static int listen(struct pairing *p, size_t number)
{
    const struct roll_dump *d = p->job->dump[number];
    struct talk *talk = p->talk[number] = calloc(d->groups + 1, sizeof(*talk));
    int err = talk == NULL ? ROLL_E_NOMEM : 0;
    for (uint32_t i = 0; i < d->groups && err == 0; i++) {
        bool fresh = dumps_comm(d, i) != 0 && roll_map_get(&p->at[number], d->group[i].key) == ROLL_MAP_NONE;
        err = fresh ? roll_map_add(&p->at[number], d->group[i].key, i) : 0;
    }
    for (size_t i = 0; i < d->calls && err == 0; i++) {
        const struct roll_dump_call *c = &d->call[i];
        struct talk *t = &talk[c->group];
        if (c->rec.op == ROLL_OP_SEND || c->rec.op == ROLL_OP_RECV) {
            t->several = t->several || (t->any && t->partner != (uint32_t)c->rec.peer);
            t->any = true;
            t->partner = (uint32_t)c->rec.peer;
            t->newest = c->rec.call_ns > t->newest ? c->rec.call_ns : t->newest;
        }
    }
    return err;
}

/* All messages of the dump on this group are with one partner. */
static bool is_faithful(const struct queue *q, uint32_t partner)
{
    return !q->talk->any || (!q->talk->several && q->talk->partner == partner);
}

/* The tool's own number of a message, which is kept in `call_ns` while the pairs are being numbered. */
static uint32_t number(const struct dumps_job *job, const struct side *s)
{
    return call_of(job, s)->rec.call_ns;
}

static void leave(const struct dumps_job *job, const struct queue *q)
{
    for (size_t i = 0; i < q->n; i++) {
        call_of(job, &q->at[i])->rec.comm = 0;
    }
}

/* The message from which on both sides are known; UINT32_MAX: nobody can say. */
static uint32_t common_begin(const struct dumps_job *job, const struct queue *q)
{
    uint32_t begin = 0;
    for (unsigned i = 0; i < 2; i++) {
        const struct roll_dump_group *g = &q[i].dump->group[q[i].group];
        if (q[i].n > 0) {
            uint32_t first = number(job, &q[i].at[0]);
            if (first == 0) {
                return UINT32_MAX; /* format 2.1 does not number what is issued in a batch */
            }
            begin = first > begin ? first : begin;
        } else if (q[i].talk->newest > 0) {
            begin = q[i].talk->newest + 1 > begin ? q[i].talk->newest + 1 : begin;
        } else if (!q[i].dump->whole && g->enqueued == ROLL_DUMP_NO_NUMBER) {
            return UINT32_MAX;
        } else if (!q[i].dump->whole && g->enqueued + 1 > begin) {
            begin = g->enqueued + 1; /* where it counts collectives, it is as large as anybody's: nothing is left */
        }
    }
    return begin;
}

/* Numbers a pair from `begin` on. False: the sides do not have the same numbers. */
static bool pair_up(const struct dumps_job *job, struct queue *q, uint32_t begin, bool by_number)
{
    size_t skip[2] = {0, 0};
    for (unsigned i = 0; by_number && i < 2; i++) {
        while (skip[i] < q[i].n && number(job, &q[i].at[skip[i]]) < begin) {
            skip[i]++;
        }
    }
    size_t a = q[0].n - skip[0], b = q[1].n - skip[1], both = a < b ? a : b;
    for (size_t k = 0; by_number && k < both; k++) {
        if (number(job, &q[0].at[skip[0] + k]) != number(job, &q[1].at[skip[1] + k])) {
            return false;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        for (size_t k = 0; k < q[i].n; k++) {
            struct roll_dump_call *c = call_of(job, &q[i].at[k]);
            if (k < skip[i]) {
                c->rec.comm = 0;
            } else {
                c->rec.seq = begin + (uint32_t)(k - skip[i]);
            }
        }
    }
    return true;
}

static int place_sides(roll_feed_t *feed, const struct queue *q, uint32_t source, uint32_t target, uint32_t begin)
{
    int err = 0;
    for (unsigned i = 0; i < 2 && err == 0; i++) {
        err = roll_engine_place_messages(roll_feed_engine(feed), dumps_source(feed, q[i].dump),
                                         dumps_comm(q[i].dump, q[i].group), i == SENDS ? ROLL_OP_SEND : ROLL_OP_RECV,
                                         i == SENDS ? target : source, begin);
        err = err == ROLL_E_ARG ? 0 : err;
    }
    return err;
}

static int place_pair(roll_feed_t *feed, const struct pairing *p, struct side *at, size_t n)
{
    const struct dumps_job *job = p->job;
    const struct roll_dump *d = job->dump[at->dump];
    const struct roll_dump_group *g = &d->group[call_of(job, at)->group];
    struct queue q[2] = {{.at = at}, {.at = at}};
    while (q[SENDS].n < n && at[q[SENDS].n].which == SENDS) {
        q[SENDS].n++;
    }
    q[RECEIVES].at = at + q[SENDS].n;
    q[RECEIVES].n = n - q[SENDS].n;
    bool good = at->source < g->members.ranks && at->target < g->members.ranks && at->source != at->target;
    if (good) {
        find_dump(p, g, at->source, &q[SENDS]);
        find_dump(p, g, at->target, &q[RECEIVES]);
        good = q[SENDS].dump != NULL && q[RECEIVES].dump != NULL;
    }
    bool whole = good && q[SENDS].dump->whole && q[RECEIVES].dump->whole;
    uint32_t begin = 0;
    if (good && !whole) {
        good = is_faithful(&q[SENDS], at->target) && is_faithful(&q[RECEIVES], at->source);
        begin = good ? common_begin(job, q) : UINT32_MAX;
        good = begin != UINT32_MAX;
    }
    if (!good || !pair_up(job, q, begin, !whole)) {
        leave(job, &q[SENDS]);
        leave(job, &q[RECEIVES]);
        return 0;
    }
    return place_sides(feed, q, at->source, at->target, begin);
}

int dumps_place_messages(roll_feed_t *feed, struct dumps_job *job)
{
    struct side *side = NULL;
    size_t room = 0, n = 0, end;
    struct pairing p = {
        .job = job, .talk = calloc(job->dumps, sizeof(*p.talk)), .at = calloc(job->dumps, sizeof(*p.at))};
    int err = p.talk == NULL || p.at == NULL ? ROLL_E_NOMEM : 0;
    for (uint32_t i = 0; i < job->dumps && err == 0; i++) {
        struct roll_dump *d = job->dump[i];
        for (uint32_t k = 0; k < d->calls && err == 0; k++) {
            struct roll_dump_call *c = &d->call[k];
            if (!is_message(c)) {
                continue;
            }
            const struct roll_dump_group *g = &d->group[c->group];
            bool sends = c->rec.op == ROLL_OP_SEND;
            uint32_t me = (uint32_t)g->self, peer = (uint32_t)c->rec.peer;
            c->rec.call_ns = c->rec.seq;
            err = ROLL_GROW(side, room, n + 1);
            if (err == 0) {
                side[n++] = (struct side){.key = g->key,
                                          .source = sends ? me : peer,
                                          .target = sends ? peer : me,
                                          .dump = i,
                                          .call = k,
                                          .which = sends ? SENDS : RECEIVES};
            }
        }
    }
    for (uint32_t i = 0; i < job->dumps && n > 0 && err == 0; i++) {
        err = listen(&p, i);
    }
    if (n > 1) {
        qsort(side, n, sizeof(*side), by_pair);
    }
    for (size_t i = 0; i < n && err == 0; i = end) {
        for (end = i + 1; end < n && side[end].key == side[i].key && side[end].source == side[i].source &&
                          side[end].target == side[i].target;
             end++) {
        }
        err = place_pair(feed, &p, &side[i], end - i);
    }
    for (size_t i = 0; i < n; i++) {
        call_of(job, &side[i])->rec.call_ns = 0;
    }
    for (uint32_t i = 0; i < job->dumps && p.talk != NULL && p.at != NULL; i++) {
        free(p.talk[i]);
        roll_map_fini(&p.at[i]);
    }
    free(p.talk);
    free(p.at);
    free(side);
    return err;
}
