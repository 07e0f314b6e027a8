/*
 * compare.c: for each communicator, a small table of what its members report once per step, layer and topic.
 *
 * Three detectors compare such reports (numbers that must be equal, replicas, sums of gradients). One table is shorter
 * than a list in each of them, and is bounded in one place. Obligations are kept apart (obligation.h), because there
 * whole lists are compared.
 *
 * Reports of one topic in one step are told apart only by their order, so the order must be complete. A step of which
 * records are missing, or which was given up for want of room, is not compared any more. A step that is run again after
 * the job went back never meets what is left of its first run.
 */
#include "daemon/engine/detect/compare.h"

#include "daemon/engine/detect/detector.h"

#include <stdlib.h>

#define COMPARISONS_MAX 256u

struct compare_member {
    struct moment at; /* the step of the member's last report here */
    bool spoken;      /* `at` is known */
};
STATE_OF_MEMBER(compare)

bool compare_moment(struct source *s, const struct roll_record *rec, struct moment *at)
{
    struct member *m = source_member(s, rec->comm);
    if (!source_certain(s, rec) || !m || m->comm->size == 0 || m->comm->open || m->rank < 0 ||
        (uint32_t)m->rank >= m->comm->size) {
        return false;
    }
    struct compare_member *own = compare_make_member(m);
    if (!own) {
        return false;
    }
    /* The report is outside of any step, before the first one: a buffer was made. */
    if (rec->step == ROLL_STEP_NONE) {
        *at = (struct moment){.turn = own->at.turn};
        return true;
    }
    own->at.turn += own->spoken && rec->step < own->at.step;
    own->at.step = rec->step;
    own->spoken = true;
    *at = own->at;
    return true;
}

static bool upto(const struct moment *a, const struct moment *limit)
{
    return a->turn < limit->turn || (a->turn == limit->turn && a->step <= limit->step);
}

bool compare_closed(const struct closed *c, const struct moment *at)
{
    return c->any && upto(at, &c->upto);
}

void compare_close(struct closed *c, const struct moment *limit)
{
    if (!compare_closed(c, limit)) {
        *c = (struct closed){.upto = *limit, .any = true};
    }
}

static bool matches(const struct comparison *m, const struct comparison *key)
{
    return m->topic == key->topic && m->at.turn == key->at.turn && m->at.step == key->at.step &&
           m->microbatch == key->microbatch && m->layer == key->layer && m->phase == key->phase;
}

/* The oldest comparison of this key in which the rank has not reported value number `at`. */
static struct comparison *find(const struct compare_comm *own, const struct comparison *key, uint32_t rank, unsigned at)
{
    struct comparison *oldest = NULL;
    for (struct comparison *m = own->first; m; m = m->next) {
        oldest = matches(m, key) && (m->by[rank].have & 1u << at) == 0 ? m : oldest;
    }
    return oldest;
}

static void free_one(struct comparison **m)
{
    free((*m)->by);
    free(*m);
    *m = NULL;
}

void compare_drop(struct comm *c, struct comparison *m)
{
    struct compare_comm *own = compare_of_comm(c);
    for (struct comparison **at = &own->first; *at; at = &(*at)->next) {
        if (*at == m) {
            *at = m->next;
            own->count--;
            free_one(&m);
            return;
        }
    }
}

static void compare_comm_fini(struct comm *c)
{
    const struct compare_comm *own = compare_of_comm(c);
    while (own && own->first) {
        compare_drop(c, own->first);
    }
}

/* Gives up the step of the oldest comparison as a whole, because the order of what would be left of it says nothing. */
static void give_up_oldest(struct comm *c)
{
    struct compare_comm *own = compare_of_comm(c);
    const struct comparison *last = own->first;
    while (last->next) {
        last = last->next;
    }
    compare_close(&own->closed, &last->at);
    struct comparison *next;
    for (struct comparison *m = own->first; m; m = next) {
        next = m->next;
        if (compare_closed(&own->closed, &m->at)) {
            compare_drop(c, m);
        }
    }
}

static struct comparison *open_comparison(struct comm *c, const struct comparison *key)
{
    struct compare_comm *own = compare_of_comm(c);
    struct comparison *m = calloc(1, sizeof(*m));
    struct report *by = calloc(c->size ? c->size : 1, sizeof(*by));
    if (!m || !by) {
        free(m);
        free(by);
        return NULL;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        by[r].source = NO_SOURCE;
    }
    *m = *key;
    m->members = c->size;
    m->by = by;
    m->next = own->first;
    own->first = m;
    own->count++;
    return m;
}

struct comparison *compare_say(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                               uint32_t topic, unsigned at, uint64_t value, uint8_t wanted)
{
    struct comparison key = {
        .topic = topic, .step = rec->step, .microbatch = rec->microbatch, .layer = rec->layer, .phase = rec->phase};
    if (!compare_moment(e->source[source], rec, &key.at)) {
        return NULL;
    }
    const struct member *member = source_member(e->source[source], rec->comm);
    struct comm *c = member->comm;
    uint32_t rank = (uint32_t)member->rank;
    struct compare_comm *own = compare_make_comm(c);
    if (!own) {
        return NULL;
    }
    if (own->count >= COMPARISONS_MAX && !compare_closed(&own->closed, &key.at) && !find(own, &key, rank, at)) {
        give_up_oldest(c);
    }
    bool closed = compare_closed(&own->closed, &key.at);
    struct comparison *m = closed ? NULL : find(own, &key, rank, at);
    m = m || closed ? m : open_comparison(c, &key);
    if (!m || rank >= m->members) {
        return NULL;
    }
    struct report *report = &m->by[rank];
    bool before = (report->have & wanted) == wanted;
    report->source = source;
    report->ticket = ticket;
    report->value[at] = value;
    report->have |= (uint8_t)(1u << at);
    m->arrived += !before && (report->have & wanted) == wanted;
    return m;
}

bool compare_whole(const struct comm *c, const struct comparison *m)
{
    return m->arrived >= c->size;
}

bool compare_due(const struct roll_engine *e, const struct comm *c, const struct comparison *m)
{
    return compare_whole(c, m) || e->finishing || e->clock - m->since >= e->config.stall_ns / 20;
}

static uint32_t votes(const struct comparison *m, unsigned at, uint64_t value)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->members; r++) {
        n += (m->by[r].have >> at & 1) != 0 && m->by[r].value[at] == value;
    }
    return n;
}

bool compare_vote(const struct roll_engine *e, const struct comparison *m, unsigned at, uint64_t *common,
                  struct roll_rankset *minor, struct roll_rankset *major, bool *tie)
{
    uint32_t best = 0;
    bool any = false;
    *tie = false;
    for (uint32_t r = 0; r < m->members; r++) {
        if ((m->by[r].have >> at & 1) == 0) {
            continue;
        }
        uint64_t value = m->by[r].value[at];
        uint32_t n = votes(m, at, value);
        if (!any || n > best || (n == best && value > *common)) {
            *tie = any && n == best && value != *common;
            *common = value;
            best = n;
        } else if (n == best && value != *common) {
            *tie = true;
        }
        any = true;
    }
    bool differ = false;
    for (uint32_t r = 0; r < m->members; r++) {
        if ((m->by[r].have >> at & 1) != 0) {
            bool same = m->by[r].value[at] == *common;
            (void)roll_rankset_add(same ? major : minor, e->source[m->by[r].source]->world);
            differ = differ || !same;
        }
    }
    return differ;
}

const struct detector detect_compare = {.name = "compare", .comm_fini = compare_comm_fini};
