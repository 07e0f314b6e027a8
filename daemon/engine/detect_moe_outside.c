/*
 * detect_moe_outside.c: why a rank lacks a backward collective, in a job that does not use moe_core: it made no expert product in forward.
 *
 * Seen from outside are the grouped products of Transformer Engine and cuBLAS (interposer/ext.def). For each member of each communicator
 * it is remembered in which of the last 64 intervals between two of its collectives it made one. When ranks wait for a rank, and in one of its last
 * intervals all peers that make such calls on that communicator made one and it did not, though it had made them in the intervals before, then
 * that is told as the cause: skipping the experts is what takes the backward collectives out of its graph.
 *
 * Suspected, always: a rank whose experts got no rows makes no such call and may be right (Transformer Engine's legacy path does not reach the C
 * function then), so the difference alone is never a finding: without a wait nothing is said. Ranks without experts
 * (pipeline stages) never made the call and are never meant; how many groups a rank has says nothing.
 */
#include "daemon/engine/detector.h"

#include <inttypes.h>

#define WINDOW  64u /* intervals remembered: bits of ext.made */
#define RECENT  12u /* a miss that lies further back has been survived */
#define HABIT   2u  /* intervals in which the rank did make the call */
#define EXCUSED 2u  /* misses in the window; a rank that misses more often is one that may */

/* The interval that ends with collective number `seq` of the member. */
static bool made(const struct member *m, uint32_t seq)
{
    return m->ext.last >= seq && m->ext.last - seq < WINDOW && (m->ext.made >> (m->ext.last - seq) & 1) != 0;
}

static void outside_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                           bool first)
{
    struct source *s = e->source[source];
    if (!first || rec->op != ROLL_OP_EXT_GROUPED_GEMM) {
        return;
    }
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        if (!m || m->comm->size < 2) {
            continue;
        }
        uint32_t ahead = m->next - m->ext.last;
        m->ext.made = ahead < WINDOW ? m->ext.made << ahead | 1 : 1;
        m->ext.last = m->next;
        m->ext.ticket[m->next % EXT_TICKETS] = ticket + 1;
    }
}

struct miss {
    struct member *member, *peer; /* peer: one that made the call */
    uint32_t seq;
};

/* Members other than m that made the call in the interval; *able: those that make such calls at all, and have got so far. */
static uint32_t peers_made(const struct member *m, uint32_t seq, uint32_t *able, struct member **peer)
{
    uint32_t n = 0;
    *able = 0;
    for (uint32_t r = 0; r < m->comm->size; r++) {
        struct member *other = &m->comm->member[r];
        if (other == m || other->ext.made == 0 || other->next < seq) {
            continue;
        }
        (*able)++;
        if (made(other, seq)) {
            n++;
            *peer = other;
        }
    }
    return n;
}

/* The rank's newest interval on this communicator in which all peers that make the call made it and it did not. */
static bool find_miss(struct member *m, struct miss *out)
{
    uint32_t hits = 0, misses = 0;
    uint32_t from = m->next > WINDOW ? m->next - WINDOW : 1;
    for (uint32_t seq = from; m->ext.made != 0 && seq < m->next; seq++) {
        uint32_t able;
        struct member *peer = NULL;
        if (peers_made(m, seq, &able, &peer) == 0) {
            continue;
        }
        if (made(m, seq)) {
            hits++;
        } else if (peers_made(m, seq, &able, &peer) == able) {
            misses++;
            *out = (struct miss){.member = m, .peer = peer, .seq = seq};
        }
    }
    return hits >= HABIT && misses > 0 && misses <= EXCUSED && m->next - out->seq <= RECENT;
}

/* Of several communicators that show the same, the smallest says most: it is the experts' own. */
static bool miss_of(const struct source *s, uint32_t waiter, struct miss *out)
{
    bool found = false;
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        struct miss miss;
        bool common = false;
        for (uint32_t r = 0; m && m->comm->size > 1 && r < m->comm->size; r++) {
            common = common || m->comm->member[r].source == waiter;
        }
        if (common && find_miss(m, &miss) && (!found || m->comm->size < out->member->comm->size)) {
            *out = miss;
            found = true;
        }
    }
    return found;
}

static void speak(struct roll_engine *e, const struct block *b, struct source *s, const struct miss *miss)
{
    const struct comm *c = miss->member->comm;
    const struct source *peer = e->source[miss->peer->source];
    uint64_t ticket = miss->peer->ext.ticket[miss->seq % EXT_TICKETS];
    const struct entry *call = ticket ? source_entry(peer, ticket - 1) : NULL;
    struct source *waiter = b->waiter;
    uint64_t waits_in = b->ticket;
    for (uint32_t i = 0; waiter == s && i < b->steps; i++) { /* a circle may be told from any of its ranks */
        waiter = b->step[i].rank;
        waits_in = b->step[i].ticket;
    }
    const struct entry *waits = source_entry(waiter, waits_in);
    const struct member *on = waits ? source_member(waiter, waits->rec.comm) : NULL;
    b->comm->muted = true;
    miss->member->comm->muted = true;
    comm_explained(e, b->comm);
    if (!say_once(e, say_key(ROLL_VERDICT_MOE_GEMM_MISSING, c->key, s->world, 0))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_GEMM_MISSING, ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    struct roll_rankset peers = {0};
    say_comm(v, c, miss->seq);
    (void)roll_rankset_add(&v->culprits, s->world);
    (void)roll_rankset_add(&peers, peer->world);
    say_side(v, s, source_index(e, s), &v->culprits, s->last.op ? &s->last : NULL);
    say_side(v, peer, source_index(e, peer), &peers, call ? &call->rec : NULL);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_add(&w, "Rank %u made no expert product between #%u and #%u on ", s->world, miss->seq - 1, miss->seq);
    words_comm(&w, c);
    words_add(&w, ", where rank %u", peer->world);
    if (call) {
        words_add(&w, " made a %s of %u groups and %" PRIu64 " rows", roll_op_name(call->rec.op), call->rec.aux,
                  call->rec.count);
    } else {
        words_add(&w, " made one");
    }
    words_add(&w, ", as all its peers did and as rank %u did before. Now rank %u waits", s->world, waiter->world);
    if (on) {
        words_add(&w, " in ");
        words_call(&w, &waits->rec);
        words_add(&w, ", #%u on ", waits->rec.seq);
        words_comm(&w, on->comm);
    }
    words_add(&w,
              " for rank %u: experts that are skipped take their backward collectives with them. Suspected: a rule "
              "of thumb, from calls seen outside of moe_core.",
              s->world);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&peers);
}

static bool outside_block(struct roll_engine *e, const struct block *b)
{
    struct miss miss;
    if (!b->waiter || !b->comm || b->kind == BLOCK_DEAD || b->kind == BLOCK_STOPPED || b->kind == BLOCK_KNOWN ||
        b->kind == BLOCK_BLAMED) {
        return false;
    }
    if (b->kind != BLOCK_CYCLE) {
        bool found = miss_of(b->rank, source_index(e, b->waiter), &miss);
        if (found) {
            speak(e, b, b->rank, &miss);
        }
        return found;
    }
    for (uint32_t i = 0; i < b->steps; i++) {
        if (miss_of(b->step[i].rank, source_index(e, b->waiter), &miss)) {
            speak(e, b, b->step[i].rank, &miss);
            return true;
        }
    }
    return false;
}

const struct detector detect_moe_outside = {.name = "moe_outside", .block = outside_block, .record = outside_record};
