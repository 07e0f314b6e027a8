/*
 * exchange.c: which member of a communicator lacks messages that the others have made with it.
 *
 * One send without a receive involves two ranks, and does not say which of them is wrong. Several such messages do say
 * it: where all messages without partner on a communicator are with the same member, and at least two others have made
 * them, that member stands alone. A member that has made nothing of the exchange has skipped the exchange; a member
 * that has made a part of it has left out some messages. The reverse exists as well: one member alone has made messages
 * that nobody answers. Where only one partner has made messages that the member lacks, other ranks count that have made
 * a collective which the member lacks, if all of them are a majority. One against one is a tie.
 *
 * What is lacking follows from the numbers of each pair: the side that is behind lacks what the other has made. To
 * blame the first pair found was rejected: which one that is depends on the order in which the ranks' records come.
 */
#include "daemon/engine/match/exchange.h"
#include "daemon/engine/match/match.h"

#include <stdlib.h>

/* The side of a pair that has made messages which the other lacks: 0 the source, 1 the destination; -1: neither. */
static int maker_of(const struct pair *p)
{
    if (p->issued[0] == p->issued[1]) {
        return -1;
    }
    unsigned maker = p->issued[1] > p->issued[0];
    return p2p_known(p, !maker) ? (int)maker : -1;
}

/* The pair at place i of the table, if one of its sides lacks a message, else NULL; *maker: the other side. */
static const struct pair *lacking_pair(const struct comm *c, uint32_t i, unsigned *maker)
{
    const struct pair *p = c->pair ? c->pair[i] : NULL;
    int at = p ? maker_of(p) : -1;
    *maker = at < 0 ? 0 : (unsigned)at;
    return at < 0 ? NULL : p;
}

/* Some message of this group of s with the member `other` has been answered by that member. m: what s is on the
 * communicator. */
static bool group_has_met(const struct source *s, const struct member *m, const struct roll_record *of, uint32_t other)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; t-- > low;) {
        const struct entry *at = source_entry(s, t);
        if (!at || !at->pair || at->pair->comm != m->comm || !source_same_unit(&at->rec, of)) {
            continue;
        }
        unsigned far = !p2p_side(&at->rec);
        if (at->pair->end[far] == other && at->index < at->pair->issued[far]) {
            return true;
        }
    }
    return false;
}

/* Adds to *out one pair in which the member lacks a message that side `maker` has made. */
static void look_at(const struct roll_engine *e, const struct pair *p, unsigned maker, struct exchange_lack *out)
{
    const struct member *m = &p->comm->member[p->end[maker]];
    uint32_t index = p->issued[!maker];
    if (m->source == NO_SOURCE) {
        return;
    }
    const struct source *s = e->source[m->source];
    out->messages += p->issued[maker] - index;
    (void)roll_rankset_add(&out->waiting, s->world);
    const struct entry *at = index - p->base <= p->mask ? source_entry(s, p2p_node(p, index)->ticket[maker]) : NULL;
    if (!at || at->pair != p) {
        return;
    }
    out->bytes += p2p_bytes(&at->rec);
    out->grouped = out->grouped || at->rec.group != 0;
    out->partly = out->partly || (at->rec.group != 0 && group_has_met(s, m, &at->rec, out->rank));
    bool before = !out->entry || p->end[maker] < out->maker || (p->end[maker] == out->maker && maker == 0);
    if (before) {
        out->entry = at;
        out->maker = p->end[maker];
    }
}

bool exchange_lacks(const struct roll_engine *e, const struct comm *c, uint32_t rank, struct exchange_lack *out)
{
    *out = (struct exchange_lack){.rank = rank};
    bool alone = true;
    for (uint32_t i = 0; c->pair && i <= c->pair_mask; i++) {
        unsigned maker;
        const struct pair *p = lacking_pair(c, i, &maker);
        if (p && p->end[!maker] == rank && p->end[maker] != rank) {
            look_at(e, p, maker, out);
        } else if (p && p->end[maker] == rank) {
            out->answers += p->issued[maker] - p->issued[!maker];
        } else if (p) {
            alone = false;
        }
    }
    out->makers = (uint32_t)roll_rankset_count(&out->waiting);
    struct roll_rankset ahead = {0};
    (void)roll_rankset_copy(&ahead, &out->waiting);
    const struct member *m = &c->member[rank];
    for (uint32_t r = 0; r < c->size && !m->unsure; r++) {
        if (c->member[r].source != NO_SOURCE && c->member[r].next > m->next) {
            (void)roll_rankset_add(&ahead, comm_world(e, c, r));
        }
    }
    out->ahead = (uint32_t)roll_rankset_count(&ahead);
    roll_rankset_fini(&ahead);
    out->whole = out->makers > 0 && out->answers == 0 && !out->partly;
    bool majority = out->ahead > 1 && out->ahead * 2 > c->size;
    out->alone = alone && (out->makers > 1 || (out->makers == 1 && majority));
    return out->alone;
}

bool exchange_adds(const struct roll_engine *e, const struct comm *c, uint32_t rank)
{
    struct roll_rankset others = {0};
    bool alone = true;
    for (uint32_t i = 0; alone && c->pair && i <= c->pair_mask; i++) {
        unsigned maker;
        const struct pair *p = lacking_pair(c, i, &maker);
        uint32_t source = p && p->end[!maker] != rank ? c->member[p->end[!maker]].source : NO_SOURCE;
        uint32_t other = source == NO_SOURCE ? NO_SOURCE : e->source[source]->world;
        bool left = source != NO_SOURCE && (!source_alive(e->source[source]) || c->member[p->end[!maker]].gone);
        alone = !p || (p->end[maker] == rank && left);
        if (other != NO_SOURCE) {
            (void)roll_rankset_add(&others, other);
        }
    }
    size_t count = roll_rankset_count(&others);
    roll_rankset_fini(&others);
    return alone && count > 1 && count * 2 > c->size;
}

/* The partner in this message has made collective #seq before its side of the message, or has made the collective and
 * not that side; false where it is not known. */
static bool partner_differs(const struct roll_engine *e, const struct entry *at, uint32_t seq)
{
    const struct pair *p = at->pair;
    unsigned far = !p2p_side(&at->rec);
    const struct member *m = &p->comm->member[p->end[far]];
    if (!p2p_known(p, far) || m->unsure || m->source == NO_SOURCE || m->next <= seq || m->from > seq) {
        return false;
    }
    uint64_t collective = source_ticket_of(e->source[m->source], m, seq);
    bool made = at->index < p->issued[far];
    bool known = made && at->index - p->base <= p->mask;
    return collective != NO_TICKET && (!made || (known && p2p_node(p, at->index)->ticket[far] > collective));
}

uint32_t exchange_early(const struct roll_engine *e, const struct source *s, uint64_t ticket, uint32_t seq)
{
    const struct entry *head = source_entry(s, ticket);
    const struct member *m = head ? source_member(s, head->rec.comm) : NULL;
    struct roll_rankset others = {0};
    bool agree = false;
    for (const struct entry *at = head; at && m; at = source_chain(s, &ticket)) {
        if (at != head && !source_same_unit(&head->rec, &at->rec)) {
            break;
        }
        if (!at->pair || at->pair->comm != m->comm || at->pair->end[0] == at->pair->end[1]) {
            continue;
        }
        if (partner_differs(e, at, seq)) {
            (void)roll_rankset_add(&others, at->pair->end[!p2p_side(&at->rec)]);
        } else {
            agree = true;
        }
    }
    uint32_t count = agree ? 0 : (uint32_t)roll_rankset_count(&others);
    roll_rankset_fini(&others);
    return count;
}

/* Of the messages of this source that the member `rank` lacks, the ticket of the first; NO_TICKET: there is none. */
static uint64_t first_lacking(const struct comm *c, uint32_t source, uint32_t rank)
{
    uint64_t first = NO_TICKET;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct pair *way[2] = {p2p_pair(c, r, rank), p2p_pair(c, rank, r)};
        for (unsigned side = 0; c->member[r].source == source && side < 2; side++) {
            const struct pair *p = way[side];
            if (!p || maker_of(p) != (int)side || p->issued[!side] - p->base > p->mask) {
                continue;
            }
            uint64_t ticket = p2p_node(p, p->issued[!side])->ticket[side];
            first = ticket < first ? ticket : first;
        }
    }
    return first;
}

bool exchange_comes_first(const struct roll_engine *e, const struct comm *c, const struct exchange_lack *lack,
                          const struct member *m, const struct entry *at)
{
    if (m->source == NO_SOURCE || m->unsure) {
        return false;
    }
    const struct source *s = e->source[m->source];
    uint64_t exchange = first_lacking(c, m->source, lack->rank), call;
    if (at->pair) {
        unsigned far = !p2p_side(&at->rec);
        if (at->index < at->pair->base) {
            return false; /* both sides made this message long ago */
        }
        bool made = at->index < at->pair->issued[far] && at->index - at->pair->base <= at->pair->mask;
        call = made ? p2p_node(at->pair, at->index)->ticket[far] : NO_TICKET;
    } else {
        call = m->next > at->rec.seq ? source_ticket_of(s, m, at->rec.seq) : NO_TICKET;
        if (m->next > at->rec.seq && call == NO_TICKET) {
            return false;
        }
    }
    return call > exchange; /* NO_TICKET, which is above all tickets: the maker has not come to the call */
}

uint32_t exchange_against(const struct roll_engine *e, const struct comm *c, const struct exchange_lack *lack,
                          const struct source *s, uint64_t ticket)
{
    const struct entry *head = source_entry(s, ticket);
    struct roll_rankset others = {0};
    for (const struct entry *at = head; at; at = source_chain(s, &ticket)) {
        const struct member *me = source_member(s, at->rec.comm);
        if (!me || (at != head && !source_same_unit(&head->rec, &at->rec))) {
            break;
        }
        uint32_t from = at->pair ? at->pair->end[!p2p_side(&at->rec)] : 0;
        uint32_t upto = at->pair ? from + 1 : me->comm->size;
        for (uint32_t r = from; r < upto; r++) {
            const struct member *m = &me->comm->member[r];
            if (m != me && exchange_comes_first(e, c, lack, m, at)) {
                (void)roll_rankset_add(&others, e->source[m->source]->world);
            }
        }
    }
    uint32_t count = (uint32_t)roll_rankset_count(&others);
    roll_rankset_fini(&others);
    return count;
}

void exchange_fini(struct exchange_lack *lack)
{
    roll_rankset_fini(&lack->waiting);
}
