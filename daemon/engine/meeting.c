/*
 * meeting.c: a small table per communicator of things that all members say once per step, layer and topic.
 *
 * Three detectors compare such words (numbers that must be equal, replicas, sums of gradients). A list of their own in each was what the obligations
 * have; one table is shorter and bounded in one place. Obligations stay apart, because they compare lists.
 */
#include "daemon/engine/meeting.h"

#include <stdlib.h>

#define MEETINGS_MAX 256u

static struct meeting *find(const struct comm *c, const struct roll_record *rec, uint32_t topic)
{
    struct meeting *m = c->meeting;
    while (m &&
           !(m->topic == topic && m->step == rec->step && m->microbatch == rec->microbatch && m->layer == rec->layer)) {
        m = m->next;
    }
    return m;
}

static void free_one(struct meeting **m)
{
    free((*m)->by);
    free(*m);
    *m = NULL;
}

void meeting_drop(struct comm *c, struct meeting *m)
{
    for (struct meeting **at = &c->meeting; *at; at = &(*at)->next) {
        if (*at == m) {
            *at = m->next;
            c->meetings--;
            free_one(&m);
            return;
        }
    }
}

void meeting_free_all(struct comm *c)
{
    while (c->meeting) {
        meeting_drop(c, c->meeting);
    }
}

static struct meeting *open_meeting(struct comm *c, const struct roll_record *rec, uint32_t topic)
{
    struct meeting *m = calloc(1, sizeof(*m));
    struct word_of *by = calloc(c->size ? c->size : 1, sizeof(*by));
    if (!m || !by) {
        free(m);
        free(by);
        return NULL;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        by[r].source = NO_SOURCE;
    }
    *m = (struct meeting){.topic = topic,
                          .step = rec->step,
                          .microbatch = rec->microbatch,
                          .layer = rec->layer,
                          .members = c->size,
                          .by = by,
                          .next = c->meeting};
    c->meeting = m;
    if (++c->meetings > MEETINGS_MAX) {
        struct meeting *last = c->meeting;
        while (last->next) {
            last = last->next;
        }
        meeting_drop(c, last);
    }
    return m;
}

struct meeting *meeting_say(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                            uint32_t topic, unsigned at, uint64_t value, uint8_t wanted)
{
    struct member *member = source_member(e->source[source], rec->comm);
    if (!member || member->comm->size == 0 || member->comm->open) {
        return NULL;
    }
    struct comm *c = member->comm;
    struct meeting *m = find(c, rec, topic);
    m = m ? m : open_meeting(c, rec, topic);
    if (!m || member->rank < 0 || (uint32_t)member->rank >= m->members) {
        return NULL;
    }
    struct word_of *word = &m->by[member->rank];
    if ((word->have & 1u << at) != 0) {
        return NULL;
    }
    bool before = (word->have & wanted) == wanted;
    word->source = source;
    word->ticket = ticket;
    word->value[at] = value;
    word->have |= (uint8_t)(1u << at);
    m->arrived += !before && (word->have & wanted) == wanted;
    return m;
}

bool meeting_whole(const struct comm *c, const struct meeting *m)
{
    return m->arrived >= c->size;
}

bool meeting_due(const struct roll_engine *e, const struct comm *c, const struct meeting *m)
{
    return meeting_whole(c, m) || e->finishing || e->clock - m->since >= e->config.stall_ns / 20;
}

static uint32_t votes(const struct meeting *m, unsigned at, uint64_t value)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < m->members; r++) {
        n += (m->by[r].have >> at & 1) != 0 && m->by[r].value[at] == value;
    }
    return n;
}

bool meeting_vote(const struct roll_engine *e, const struct meeting *m, unsigned at, uint64_t *common,
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
