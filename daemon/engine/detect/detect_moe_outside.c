/*
 * detect_moe_outside.c: why a rank lacks a backward collective, in a job that does not use moe_core: it made no expert
 * product in forward.
 *
 * Seen from outside are the grouped products of Transformer Engine and cuBLAS (interposer/ext/ext.def). For each member
 * of each communicator it is remembered in which of the last 64 intervals it made one: between two of its collectives,
 * and between two of its exchanges (groups of sends and receives, which is how frameworks make an all-to-all-v). When
 * ranks wait for a rank, and in one of its last intervals all peers that make such calls on that communicator made one
 * and it did not, though it had made them in the intervals before, then that is told as the cause: skipping the experts
 * is what takes the backward collectives out of its graph.
 *
 * Collectives are numbered by their communicator. Exchanges are not: where a framework leaves empty messages out, on
 * both sides, a rank that has nothing to send and nothing to receive makes an empty group, which leaves no record
 * (PyTorch makes empty messages since NCCL 2.14, and its groups all leave one). So each member counts its own, and
 * where a send meets a receive the two groups are one exchange: the lower number is raised to the higher, and what the
 * member did before is forgotten, for it was numbered otherwise. Counting alone was rejected: one empty group, and
 * every interval after it would be compared with the wrong one.
 *
 * Suspected, always: a rank whose experts got no rows makes no such call and may be right (Transformer Engine's legacy
 * path does not reach the C function then), so the difference alone is never a finding: without a wait nothing is said,
 * and nothing is predicted. Ranks without experts (pipeline stages) never made the call and are never meant; how many
 * groups a rank has says nothing. Where records of a rank are lost, it is not compared for what lies before.
 */
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>

#define WINDOW 64u /* intervals remembered: bits of intervals.made */
#define RECENT 12u /* a miss that lies further back has been survived */
#define HABIT  2u  /* intervals in which the rank did make the call */

#define EXT_TICKETS 16u /* expert products remembered per member */

/* In which intervals between two calls of a kind a member made a grouped product. */
struct intervals {
    uint64_t made; /* bit n: in the interval that ends with number `last` - n */
    uint32_t last;
    uint32_t from;                /* intervals that end below this number are not known */
    uint32_t shift;               /* by how much numbers have been raised: see outside_meet; 0 for collectives */
    uint64_t ticket[EXT_TICKETS]; /* by number - shift: ticket + 1 of its newest product in an interval */
};

/* The exchanges of a member: its groups of sends and receives, numbered so that those that meet have one number: the
 * place of the group among the member's own, from 1, + in.shift. */
struct exchanges {
    struct intervals in;
    uint32_t next;  /* number that its next group takes */
    uint32_t group; /* its newest group */
    bool lost;      /* records are: the numbers say nothing any more */
};

struct moe_outside_source {
    bool products; /* it has made grouped products, seen from outside */
};
STATE_OF_SOURCE(moe_outside)

static bool has_products(const struct source *s)
{
    const struct moe_outside_source *own = moe_outside_of_source(s);
    return own && own->products;
}

struct moe_outside_member {
    struct intervals in; /* between collectives */
    bool exchanges;      /* it has made an exchange after a grouped product: */
    struct exchanges exchange;
};
STATE_OF_MEMBER(moe_outside)

enum kind { EXCHANGES, COLLECTIVES, KINDS };

/* The intervals of a member between its calls of one kind; in NULL: none to be compared. */
struct track {
    struct intervals *in;
    uint32_t next; /* number of the call that ends the one it is in */
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

/* The interval that ends with call number `seq`. */
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
        if (!m->unsure) { /* else the number of its next collective is not known */
            note_product(track_of(m, COLLECTIVES), ticket);
        }
        struct track exchanges = track_of(m, EXCHANGES);
        if (exchanges.in) {
            note_product(exchanges, ticket);
        }
    }
}

/* What is lost may have been a product: nothing before is compared. Exchanges cannot be counted on from here. */
static void outside_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    const struct source *s = e->source[source];
    (void)count;
    for (uint32_t i = 0; i < s->members; i++) {
        struct moe_outside_member *own = s->member[i] ? moe_outside_of_member(s->member[i]) : NULL;
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
        return 0; /* without memory this one is not judged */
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

struct miss {
    struct member *member, *peer; /* peer: one that made the call */
    enum kind kind;
    uint32_t seq, ago; /* ago: calls of that kind that the member has made since */
};

/* Members other than m that made the call in the interval; *able: those that make such calls at all, and have got so
 * far. */
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
 * How many intervals of the rank are there on this communicator in which all peers that make the call made it and it
 * did not; *out: the newest.
 *
 * One alone is a finding. A rank that has come through the backward of a layer without rows has missed twice, in
 * forward and in backward, and was right: two may be just that. Backward goes through the layers the other way, so
 * between a skip and the exchange that lacks because of it lie all exchanges of the layers after it: one between
 * exchanges may lie far back.
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
 * Of several communicators that show the same, the smallest says most: it is the experts' own. Exchanges say more than
 * collectives. Between two collectives may lie a whole step, forward and backward: where something finer shows two
 * misses, one there is no finding.
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

/* "between #16 and #17 on communicator ep", "between two exchanges on communicator ep, 4 exchanges ago" */
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

/* Rows and groups as far as they were known on the host. */
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
    for (uint32_t i = 0; waiter == s && i < b->steps; i++) { /* a circle may be told from any of its ranks */
        waiter = b->step[i].rank;
        waits_in = b->step[i].ticket;
    }
    const struct entry *waits = source_entry(waiter, waits_in);
    const struct member *on = waits ? source_member(waiter, waits->rec.comm) : NULL;
    comm_mute(e, miss->member->comm, NO_SEQ);
    comm_explained(e, b->comm);
    if (!say_once(e, say_key(ROLL_VERDICT_MOE_GEMM_MISSING, c->key, s->world, 0))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_GEMM_MISSING, ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    doubt_add(e, v->number, b);
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

/* The call waits on this communicator. */
static bool waits_on(const struct source *s, uint64_t ticket, const struct comm *c)
{
    const struct entry *entry = source_entry(s, ticket);
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    return m && m->comm == c;
}

/*
 * Whether this wait can come of the miss. An exchange that a rank lacks in backward is one of the communicator on which
 * it missed: a wait elsewhere, where a rank had no rows in a pass that has no backward, is another matter. Collectives
 * are also counts, of other groups than the exchange.
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
