/*
 * detect_moe_outside.c: why a rank lacks a backward collective, in a job that does not use moe_core: the rank made no
 * expert product in forward.
 *
 * The grouped products of Transformer Engine and cuBLAS can be seen from outside (interposer/ext/ext.def). For each
 * member of each communicator the detector remembers in which of the last 64 intervals it made one. An interval lies
 * between two collectives of the member, or between two of its exchanges (groups of sends and receives, which is how
 * frameworks make an all-to-all-v). The detector speaks when ranks wait for a rank, and in one of the rank's last
 * intervals all peers that make such products on that communicator made one and the rank did not, though it had made
 * them before. Skipping the experts is what takes the backward collectives out of the rank's graph.
 *
 * Collectives have the numbers of their communicator; exchanges have none. Some frameworks leave empty messages out on
 * both sides, so a rank that has nothing to send and nothing to receive makes an empty group, which leaves no record.
 * (PyTorch makes empty messages since NCCL 2.14, and all its groups leave records.) So each member counts its own
 * exchanges. Where a send meets a receive, their two groups are one exchange: the lower number is raised to the higher
 * one, and what that member did before is forgotten, because it was counted differently. Counting alone was rejected:
 * after one empty group every interval would be compared with the wrong one.
 *
 * The verdict is always suspected. A rank whose experts got no rows makes no such product and may be right (Transformer
 * Engine's legacy path does not call the C function then). So the difference alone is never a finding: nothing is said
 * without a wait, and nothing is predicted. Ranks without experts (pipeline stages) never made a product and are never
 * named. How many groups a product has says nothing. Where records of a rank are lost, its earlier intervals are not
 * compared.
 */
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>

#define WINDOW 64u /* intervals remembered: the bits of intervals.made */
#define RECENT 12u /* a miss so many collectives back did no harm */
#define HABIT  2u  /* intervals in which the rank must have made a product */

#define EXT_TICKETS 16u /* products remembered per member */

/* In which intervals between two calls of one kind a member made a grouped product. */
struct intervals {
    uint64_t made; /* bit n: in the interval that ends with call number `last` - n */
    uint32_t last;
    uint32_t from;  /* the intervals that end below this number are not known */
    uint32_t shift; /* by how much outside_meet has raised the numbers; 0 for collectives */
    /* Ticket + 1 of the newest product in an interval, by the interval's number - shift. */
    uint64_t ticket[EXT_TICKETS];
};

/* The exchanges of a member: its groups of sends and receives. Exchanges that meet have one number: the place of the
 * group among the member's groups, from 1, + in.shift. */
struct exchanges {
    struct intervals in;
    uint32_t next;  /* number of the next group */
    uint32_t group; /* id of the newest group */
    bool lost;      /* records were lost: the numbers say nothing any more */
};

struct moe_outside_source {
    bool products; /* the rank has made grouped products that were seen from outside */
};
STATE_OF_SOURCE(moe_outside)

static bool has_products(const struct source *s)
{
    const struct moe_outside_source *own = moe_outside_of_source(s);
    return own && own->products;
}

struct moe_outside_member {
    struct intervals in; /* the intervals between collectives */
    /* The member has made an exchange after a grouped product, and `exchange` follows its exchanges. */
    bool exchanges;
    struct exchanges exchange;
};
STATE_OF_MEMBER(moe_outside)

enum kind { EXCHANGES, COLLECTIVES, KINDS };

/* The intervals of a member between its calls of one kind; in NULL: there are none to compare. */
struct track {
    struct intervals *in;
    uint32_t next; /* number of the call that will end the current interval */
};

static struct track track_of(struct member *m, enum kind kind)
{
    struct moe_outside_member *own = moe_outside_of_member(m);
    if (own && kind == COLLECTIVES) {
        return (struct track){.in = &own->in, .next = m->next};
    }
    bool usable = own && own->exchanges && !own->exchange.lost;
    return usable ? (struct track){.in = &own->exchange.in, .next = own->exchange.next} : (struct track){.in = NULL};
}

/* The member made a product in the interval that ends with call number `seq`. */
static bool made(const struct intervals *in, uint32_t seq)
{
    return in->last >= seq && in->last - seq < WINDOW && (in->made >> (in->last - seq) & 1) != 0;
}

static void note_product(struct track t, uint64_t ticket)
{
    uint32_t ahead = t.next - t.in->last;
    if (t.in->made == 0) {
        t.in->from = t.next;
    }
    t.in->made = t.in->made != 0 && ahead < WINDOW ? t.in->made << ahead | 1 : 1;
    t.in->last = t.next;
    t.in->ticket[(t.next - t.in->shift) % EXT_TICKETS] = ticket + 1;
}

static void outside_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                           bool first)
{
    struct source *s = e->source[source];
    if (!first || rec->op != ROLL_OP_EXT_GROUPED_GEMM) {
        return;
    }
    struct moe_outside_source *own = moe_outside_make_source(s);
    if (own) {
        own->products = true;
    }
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        if (!m || m->comm->size < 2 || !moe_outside_make_member(m)) {
            continue;
        }
        if (!m->unsure) { /* otherwise the number of the next collective is not known */
            note_product(track_of(m, COLLECTIVES), ticket);
        }
        struct track exchanges = track_of(m, EXCHANGES);
        if (exchanges.in) {
            note_product(exchanges, ticket);
        }
    }
}

/* The lost records may have held a product, so no earlier interval is compared. Exchanges cannot be counted from here
 * on. */
static void outside_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    const struct source *s = e->source[source];
    struct member *m;
    (void)count;
    for (size_t i = 0; (m = source_touched(s, &i)) != NULL;) {
        struct moe_outside_member *own = moe_outside_of_member(m);
        if (own) {
            own->in.made = 0;
            own->exchange.lost = own->exchanges;
        }
    }
}

uint32_t outside_exchange(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    struct moe_outside_member *own = rec->group == 0 ? NULL : moe_outside_of_member(m);
    if (rec->group == 0 || (!(own && own->exchanges) && !has_products(e->source[m->source]))) {
        return 0;
    }
    own = own ? own : moe_outside_make_member(m);
    if (!own) {
        return 0; /* without memory the exchange is not judged */
    }
    struct exchanges *x = &own->exchange;
    own->exchanges = true;
    if (x->next == 0 || x->group != rec->group) {
        x->group = rec->group;
        x->next += x->next == 0 ? 2 : 1;
    }
    return x->next - 1 - x->in.shift;
}

void outside_meet(struct member *m, struct member *other, struct node *n, uint32_t place)
{
    if (n->exchange == 0) {
        n->exchange = place;
        return;
    }
    struct moe_outside_member *own = moe_outside_of_member(m), *peer = moe_outside_of_member(other);
    if (place == 0 || !peer || !peer->exchanges || other == m) {
        return;
    }
    uint32_t mine = place + own->exchange.in.shift, theirs = n->exchange + peer->exchange.in.shift;
    struct exchanges *low = mine < theirs ? &own->exchange : &peer->exchange;
    uint32_t by = mine < theirs ? theirs - mine : mine - theirs;
    if (by != 0) {
        low->in.shift += by;
        low->next += by;
        low->in.last += by;
        low->in.from = mine < theirs ? theirs : mine;
    }
}

/* An interval in which all peers made a product and a member did not. */
struct miss {
    struct member *member, *peer; /* the member that made no product; a peer that made one */
    enum kind kind;
    /* Number of the call that ends the interval; calls of that kind that the member has made since. */
    uint32_t seq, ago;
};

/* The number of other members that made a product in the interval. *able: how many of them make products at all and
 * have come so far. *peer: one that made it. */
static uint32_t peers_made(const struct member *m, enum kind kind, uint32_t seq, uint32_t *able, struct member **peer)
{
    uint32_t n = 0;
    *able = 0;
    for (uint32_t r = 0; r < m->comm->size; r++) {
        struct member *other = &m->comm->member[r];
        struct track t = track_of(other, kind);
        if (other == m || !t.in || t.in->made == 0 || t.next < seq || seq < t.in->from) {
            continue;
        }
        (*able)++;
        if (made(t.in, seq)) {
            n++;
            *peer = other;
        }
    }
    return n;
}

/*
 * In how many intervals of m on this communicator all peers that make products made one and m did not; *out: the newest
 * of them.
 *
 * Exactly one such interval is a finding. A rank that has come through the backward of a layer without rows has missed
 * twice, in forward and in backward, and was right; so two may be just that. Backward goes through the layers in
 * reverse. So all exchanges of the later layers lie between a skip and the exchange that is missing because of it, and
 * a miss between exchanges may lie far back.
 */
static uint32_t find_miss(struct member *m, enum kind kind, struct miss *out)
{
    struct track t = track_of(m, kind);
    if (!t.in || t.in->made == 0) {
        return 0;
    }
    uint32_t hits = 0, misses = 0;
    uint32_t from = t.next > WINDOW ? t.next - WINDOW : 1;
    for (uint32_t seq = from > t.in->from ? from : t.in->from; seq < t.next; seq++) {
        uint32_t able;
        struct member *peer = NULL;
        uint32_t n = peers_made(m, kind, seq, &able, &peer);
        if (n == 0) {
            continue;
        }
        if (made(t.in, seq)) {
            hits++;
        } else if (n == able) {
            misses++;
            *out = (struct miss){.member = m, .peer = peer, .kind = kind, .seq = seq, .ago = t.next - 1 - seq};
        }
    }
    bool recent = misses > 0 && out->ago < (kind == EXCHANGES ? WINDOW : RECENT);
    return misses > 1 || (recent && hits >= HABIT) ? misses : 0;
}

/*
 * The miss of s that explains best why `waiter` waits. Of several communicators with a miss the smallest says most: it
 * is that of the experts. Exchanges say more than collectives: a whole step, forward and backward, may lie between two
 * collectives. So where any track shows two misses, one miss between collectives is no finding.
 */
static bool miss_of(const struct source *s, uint32_t waiter, struct miss *out)
{
    bool found = false, came_through = false;
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        bool common = false;
        for (uint32_t r = 0; m && m->comm->size > 1 && r < m->comm->size; r++) {
            common = common || m->comm->member[r].source == waiter;
        }
        for (enum kind kind = 0; common && kind < KINDS; kind++) {
            struct miss miss;
            uint32_t misses = find_miss(m, kind, &miss);
            came_through = came_through || misses > 1;
            if (misses == 1 && (!found || m->comm->size < out->member->comm->size)) {
                *out = miss;
                found = true;
            }
        }
    }
    return found && !(came_through && out->kind == COLLECTIVES);
}

/* Adds "between #16 and #17 on communicator ep", or "between two exchanges (groups of sends and receives) on
 * communicator ep, 4 exchanges before the last that it made". */
static void words_interval(struct words *w, const struct miss *miss)
{
    if (miss->kind == COLLECTIVES) {
        words_add(w, "between #%u and #%u on ", miss->seq - 1, miss->seq);
        words_comm(w, miss->member->comm);
        return;
    }
    words_add(w, "between two exchanges (groups of sends and receives) on ");
    words_comm(w, miss->member->comm);
    if (miss->ago == 0) {
        words_add(w, ", the last that it made");
    } else {
        words_add(w, ", %u exchange%s before the last that it made", miss->ago, miss->ago == 1 ? "" : "s");
    }
}

/* Adds the rows and groups of a product, as far as they were known on the host. */
static void words_product(struct words *w, const struct roll_record *rec)
{
    words_add(w, " made a %s", roll_op_name(rec->op));
    if (rec->aux != 0) {
        words_add(w, " of %u group%s", rec->aux, rec->aux == 1 ? "" : "s");
    }
    if (rec->aux != 0 && (rec->count != 0 || rec->peer != ROLL_PEER_NONE)) {
        words_add(w, " and %" PRIu64 " row%s", rec->count, rec->count == 1 ? "" : "s");
    }
}

static void speak(struct roll_engine *e, const struct block *b, struct source *s, const struct miss *miss)
{
    const struct comm *c = miss->member->comm;
    const struct source *peer = e->source[miss->peer->source];
    const struct intervals *theirs = track_of(miss->peer, miss->kind).in;
    uint64_t ticket =
        theirs->last - miss->seq < EXT_TICKETS ? theirs->ticket[(miss->seq - theirs->shift) % EXT_TICKETS] : 0;
    const struct entry *call = ticket ? source_entry(peer, ticket - 1) : NULL;
    struct source *waiter = b->waiter;
    uint64_t waits_in = b->ticket;
    for (uint32_t i = 0; waiter == s && i < b->steps; i++) { /* a circle may be reported from any of its ranks */
        waiter = b->step[i].rank;
        waits_in = b->step[i].ticket;
    }
    const struct entry *waits = source_entry(waiter, waits_in);
    const struct member *on = waits ? source_member(waiter, waits->rec.comm) : NULL;
    uint64_t mutes = e->mutes;
    comm_mute(e, miss->member->comm, NO_SEQ);
    comm_explained(e, b->comm);
    if (!say_once(e, say_key(ROLL_VERDICT_MOE_GEMM_MISSING, c->key, s->world, 0))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_GEMM_MISSING, ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    doubt_add(e, v->number, mutes, b);
    struct roll_rankset peers = {0};
    say_comm(v, c, miss->seq);
    (void)roll_rankset_add(&v->culprits, s->world);
    (void)roll_rankset_add(&peers, peer->world);
    say_side(v, s, source_index(e, s), &v->culprits, s->last.op ? &s->last : NULL);
    say_side(v, peer, source_index(e, peer), &peers, call ? &call->rec : NULL);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_add(&w, "Rank %u made no expert product ", s->world);
    words_interval(&w, miss);
    words_add(&w, ", where rank %u", peer->world);
    if (call) {
        words_product(&w, &call->rec);
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

/* The call of s with this ticket is on communicator c. */
static bool waits_on(const struct source *s, uint64_t ticket, const struct comm *c)
{
    const struct entry *entry = source_entry(s, ticket);
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    return m && m->comm == c;
}

/*
 * This wait can come from the miss. A rank that missed between exchanges lacks an exchange of the same communicator in
 * backward. A wait elsewhere, for a rank that had no rows in a pass without backward, is another matter. Misses between
 * collectives can explain any wait, because collectives also carry the counts for exchanges of other communicators.
 */
static bool can_explain(const struct block *b, const struct source *s, const struct miss *miss)
{
    const struct comm *c = miss->member->comm;
    bool on = miss->kind == COLLECTIVES || (b->waiter != s && waits_on(b->waiter, b->ticket, c));
    for (uint32_t i = 0; i < b->steps && !on; i++) {
        on = b->step[i].rank != s && waits_on(b->step[i].rank, b->step[i].ticket, c);
    }
    return on;
}

static bool outside_block(struct roll_engine *e, const struct block *b)
{
    struct miss miss;
    if (!b->waiter || !b->comm || b->kind == BLOCK_DEAD || b->kind == BLOCK_STOPPED || b->kind == BLOCK_KNOWN ||
        b->kind == BLOCK_BLAMED) {
        return false;
    }
    if (b->kind != BLOCK_CYCLE) {
        bool found = miss_of(b->rank, source_index(e, b->waiter), &miss) && can_explain(b, b->rank, &miss);
        if (found) {
            speak(e, b, b->rank, &miss);
        }
        return found;
    }
    for (uint32_t i = 0; i < b->steps; i++) {
        if (miss_of(b->step[i].rank, source_index(e, b->waiter), &miss) && can_explain(b, b->step[i].rank, &miss)) {
            speak(e, b, b->step[i].rank, &miss);
            return true;
        }
    }
    return false;
}

const struct detector detect_moe_outside = {
    .name = "moe_outside", .block = outside_block, .record = outside_record, .lost = outside_lost};
