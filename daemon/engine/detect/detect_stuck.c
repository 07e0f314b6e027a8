/*
 * detect_stuck.c: everyone has arrived and nothing completes: the device, the network, or a kernel that does not end.
 *
 * For the matcher such a call is complete: all members have made it, and nothing before it on their streams is missing.
 * That it does not end shows only in hosts that do not come back from a wait behind it. A host wait proves nothing but
 * that somebody waits: device work is not recorded, so a long kernel in front of the call, or behind it, looks the
 * same. Therefore
 *   - all members must stand in it: inside a wait that covers the call and that no incomplete call explains, or inside
 * the call itself; a member without a wait counts only when nothing at all has come from it for as long;
 *   - where some have left it (their host has come back from a wait behind it, or the device has said so), those who
 * have not must be ranks that learn completion, and the operation one that nobody leaves before the last has arrived:
 * then no kernel in front or behind can be the reason;
 *   - the patience is long and grows with the job's own waits: see stuck_patience.
 * So it is suspected, never proven, and says which calls it may be. A shorter patience (suspect_ns) was rejected: hosts
 * that run a whole step ahead of their device and wait at its end, or the first step with all its set-up, wait longer
 * than that in healthy jobs.
 *
 * Nothing here is on the path of a record but a few words per host wait that has returned.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>
#include <string.h>

#define SEEN_ENOUGH 3u  /* waits at one place of the program before its history counts */
#define CREATION    24u /* creation of communicators: thousands of ranks take minutes */
#define LONGEST     5u  /* but no less than so many times the rank's longest wait so far */
#define HOSTS_SHOWN 8u

struct stuck_comm {
    uint64_t looked_ns; /* patience clock at which its creation was looked into, plus one */
};
STATE_OF_COMM(stuck)

void stuck_polled(struct source *s, uint64_t ticket)
{
    struct stuck_source *w = stuck_make_source(s);
    if (w && ticket > w->last) {
        w->last = ticket;
    }
}

static uint32_t site_key(const struct roll_record *rec)
{
    return (uint32_t)rec->callsite << 8 | rec->op;
}

/*
 * Its host has come back in good order. When all have that stood in the call, it was slow. A communicator that has been
 * aborted lets go of its hosts as well, and that says nothing.
 */
static void came_back(struct roll_engine *e, const struct source *s, struct stuck_source *w)
{
    struct stuck_engine *own = stuck_of_engine(e);
    uint64_t number = w->verdict;
    w->verdict = 0;
    for (uint32_t i = 0; i < e->sources; i++) { /* the one that was found last time waits still, most of the time */
        uint32_t at = (own->waiter + i) % e->sources;
        const struct stuck_source *other = stuck_of_source(e->source[at]);
        if (other && other->verdict == number) {
            own->waiter = at;
            return;
        }
    }
    for (uint32_t i = 0; e->aborts > 0 && i < s->members; i++) {
        for (uint32_t r = 0; s->member[i] && r < s->member[i]->comm->size; r++) {
            if (s->member[i]->comm->member[r].ended != 0) {
                return;
            }
        }
    }
    stuck_case_close(e, number);
    (void)say_withdraw(e, number, "all ranks have come back from their waits: it was slow, not stuck");
}

void stuck_renumber(struct roll_engine *e, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct stuck_source *w = stuck_of_source(e->source[i]);
        if (w && w->verdict == from) {
            w->verdict = to;
        }
    }
}

void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since)
{
    struct stuck_source *w = stuck_make_source(s);
    if (!w) {
        return;
    }
    w->last = roll_seal_ticket(rec->seal) > w->last ? roll_seal_ticket(rec->seal) : w->last;
    uint32_t key = site_key(rec), at = (key * 0x9e3779b1u) >> 26;
    uint64_t took =
        since != NO_CLOCK && e->clock > since && e->clock - since > rec->call_ns ? e->clock - since : rec->call_ns;
    if (rec->call_ns == UINT32_MAX && since != NO_CLOCK) {
        w->long_wait = roll_seal_ticket(rec->seal) + 1;
        w->long_ns = took;
    }
    w->longest_ns = took > w->longest_ns ? took : w->longest_ns;
    w->site[at].count = w->site[at].key == key ? w->site[at].count + 1 : 1;
    w->site[at].key = key;
    if (w->verdict != 0 && roll_seal_ticket(rec->seal) + 1 == w->told && rec->result == 0) {
        came_back(e, s, w);
    }
}

void stuck_goes_on(struct source *s, uint64_t inside, uint64_t now_inside)
{
    struct stuck_source *w = stuck_of_source(s);
    if (w && w->told == inside) {
        w->told = now_inside;
    }
}

bool stuck_long_wait(const struct source *s, uint64_t ticket, uint64_t *ns)
{
    const struct stuck_source *w = stuck_of_source(s);
    if (!w || w->long_wait != ticket + 1) {
        return false;
    }
    *ns = w->long_ns;
    return true;
}

uint64_t stuck_patience(const struct roll_engine *e, const struct source *s, const struct roll_record *wait)
{
    uint32_t key = site_key(wait), at = (key * 0x9e3779b1u) >> 26;
    const struct stuck_source *w = stuck_of_source(s);
    bool usual = w && w->site[at].key == key && w->site[at].count >= SEEN_ENOUGH;
    uint64_t least = e->config.suspect_ns * (usual ? STUCK_USUAL : STUCK_UNUSUAL);
    uint64_t longest = w ? w->longest_ns * LONGEST : 0;
    return longest > least ? longest : least;
}

/* words */

/* "host a (ranks 0-3), host b (rank 4)" */
void stuck_words_hosts(struct words *w, const struct roll_engine *e, const struct roll_rankset *set)
{
    struct stuck_hosts at;
    stuck_hosts_of(&at, e, set);
    for (uint32_t i = 0; i < at.hosts && i < HOSTS_SHOWN; i++) {
        struct roll_rankset here = {0};
        for (uint32_t k = 0; k < at.host[i].count; k++) {
            (void)roll_rankset_add(&here, e->source[at.source[at.host[i].first + k]]->world);
        }
        words_add(w, "%shost %s (", i > 0 ? ", " : "", e->source[at.source[at.host[i].first]]->host);
        words_ranks(w, &here);
        words_add(w, ")");
        roll_rankset_fini(&here);
    }
    if (at.hosts > HOSTS_SHOWN) {
        words_add(w, " and %u more hosts", at.hosts - HOSTS_SHOWN);
    }
    stuck_hosts_fini(&at);
}

/* Calls of s between this one and its wait of which nobody knows either that they are over. */
static uint32_t calls_behind(struct stuck *k, const struct source *s, const struct thread *t, uint64_t ticket)
{
    const struct entry *in = source_entry(s, t->inside - 1);
    uint32_t n = 0;
    for (uint64_t at = ticket + 1; in && at < t->inside - 1 && spend(&k->work); at++) {
        const struct entry *entry = source_entry(s, at);
        n += entry && stuck_is_call(&entry->rec) && stuck_covers(k, s, &in->rec, t->inside - 1, &entry->rec, at);
    }
    return n;
}

/* Who is through and takes the communicator down does no harm by the rules of NCCL, but whoever looks for the reason
 * should know. */
static void words_aborted(const struct stuck *k, struct words *w)
{
    struct roll_rankset aborted = {0};
    for (uint32_t r = 0; r < k->comm->size; r++) {
        uint32_t world = k->comm->member[r].ended ? comm_world(k->e, k->comm, r) : NO_SOURCE;
        if (world != NO_SOURCE && roll_rankset_has(&k->left, world)) {
            (void)roll_rankset_add(&aborted, world);
        }
    }
    if (roll_rankset_count(&aborted) > 0) {
        words_add(w, " Since then ");
        words_ranks(w, &aborted);
        words_add(w, " %s aborted the communicator.", roll_rankset_count(&aborted) == 1 ? "has" : "have");
    }
    roll_rankset_fini(&aborted);
}

static void words_who(struct stuck *k, struct words *w)
{
    words_wait(w, &k->in);
    words_add(w, " in it for %.1f s: ", (double)(k->e->clock - k->since) / 1e9);
    stuck_words_hosts(w, k->e, &k->in);
    words_add(w, ".");
    if (roll_rankset_count(&k->left) > 0) {
        words_add(w, " ");
        words_ranks(w, &k->left);
        bool one = roll_rankset_count(&k->left) == 1;
        if (k->rooted) {
            words_add(w, " %s left it, which they may before the others; its root, rank %u, has not.",
                      one ? "has" : "have", comm_world(k->e, k->comm, (uint32_t)k->rec.peer));
            words_aborted(k, w);
        } else {
            words_add(w,
                      " %s left it, which nobody can before all have arrived; of the others it is learnt when their "
                      "device is through, and it is not.",
                      one ? "has" : "have");
        }
    }
    if (roll_rankset_count(&k->away) > 0) {
        words_add(w, " Of ");
        words_ranks(w, &k->away);
        words_add(w, " nothing has come for as long.");
    }
    if (k->longest_ns > 0) {
        words_add(w, " The longest wait of these ranks so far took %.1f s.", (double)k->longest_ns / 1e9);
    }
}

/*
 * Some of its members have made more calls than others, here or on other communicators. They may have gone on while
 * others waited; or one of them has left something out that later calls took the place of.
 */
static void open_class(struct roll_verdict *v, const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->comms; i++) {
        const struct comm *c = e->comm[i];
        for (uint32_t r = 1; r < c->size; r++) {
            if (!c->member[r].gone && !c->member[0].gone && c->member[r].next != c->member[0].next) {
                say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
                say_may_be(v, ROLL_VERDICT_RANK_BLOCKED);
            }
        }
        for (uint32_t p = 0; c->pair && p <= c->pair_mask; p++) {
            if (c->pair[p] && c->pair[p]->issued[0] != c->pair[p]->issued[1]) {
                say_may_be(v, ROLL_VERDICT_P2P_UNMATCHED);
                say_may_be(v, ROLL_VERDICT_RANK_BLOCKED);
            }
        }
    }
}

static uint64_t speak(struct stuck *k, uint32_t behind)
{
    struct roll_engine *e = k->e;
    struct roll_verdict *v = say(e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    if (!v) {
        return 0;
    }
    uint32_t index = source_index(e, k->first);
    bool left = roll_rankset_count(&k->left) > 0;
    say_comm(v, k->comm, k->rec.seq);
    say_side(v, k->first, index, &k->in, &k->rec);
    if (left) {
        say_side(v, k->first, index, &k->left, &k->rec);
    }
    (void)roll_rankset_copy(&v->waiting, &k->in);
    struct words w = {.used = 0};
    words_add(&w, "Everyone has arrived and nothing completes. All members of ");
    words_comm(&w, k->comm);
    words_add(&w, roll_op_class(k->rec.op) == ROLL_CLASS_P2P ? " that it needs have made " : " have made ");
    words_call(&w, &k->rec);
    words_add(&w, ", #%u; what is before it is done as far as the records say. ", k->rec.seq);
    words_who(k, &w);
    if (behind > 0 && !k->known) {
        words_add(&w, " It may also be one of the %u calls that were enqueued behind it.", behind);
    }
    if (k->lax) {
        words_add(&w,
                  " Whether an earlier wait of these hosts was for it as well is not known; if it was, they wait for "
                  "kernels behind it.");
    }
    open_class(v, e);
    words_may_be(&w, v);
    words_add(&w,
              " No mistake of the program was found in the records: look at the devices (Xid), the network and the "
              "hosts%s",
              k->known && left
                  ? ". Suspected: it may only be slow."
                  : ". Suspected: a kernel in front of it, or behind it, that takes so long looks the same.");
    say_text(e, v, "%s", w.text);
    stuck_case_open(k, v->number, v->text);
    return v->number;
}

/* All who wait now wait for this, as far as is known; it is told once. */
static void mark_told(struct stuck *k, uint64_t number)
{
    for (uint32_t i = 0; i < k->e->sources; i++) {
        struct source *s = k->e->source[i];
        for (uint32_t t = 0; t < s->threads; t++) {
            struct stuck_source *w = s->thread[t].inside != 0 ? stuck_make_source(s) : NULL;
            if (w && s->thread[t].inside > w->told) {
                w->told = s->thread[t].inside;
                w->verdict = roll_rankset_has(&k->in, s->world) ? number : 0;
            }
        }
    }
}

static bool may_be_stuck(const struct roll_engine *e, const struct source *s, const struct thread *t)
{
    const struct stuck_source *w = stuck_of_source(s);
    return t->inside != 0 && !(w && t->inside <= w->told) && e->unheard == 0 &&
           e->calm - t->calm >= e->config.suspect_ns;
}

/* creations: all members are inside, and none returns */

static bool all_inside(struct stuck *k, const struct source *s)
{
    struct roll_engine *e = k->e;
    for (uint32_t r = 0; r < k->comm->size; r++) {
        const struct member *o = &k->comm->member[r];
        const struct source *os = o->source == NO_SOURCE ? NULL : e->source[o->source];
        const struct entry *own = os && os->init ? source_entry(os, os->init - 1) : NULL;
        if (!own || source_member(os, own->rec.comm) != o || os->proc != ROLL_PROC_RUNNING || os->unheard ||
            e->calm - os->init_calm < CREATION * e->config.suspect_ns) {
            return false;
        }
        (void)roll_rankset_add(&k->in, os->world);
        k->since = os->init_since > k->since ? os->init_since : k->since;
    }
    k->first = s;
    k->first_since = s->init_since;
    return true;
}

static void speak_creation(struct stuck *k)
{
    struct roll_verdict *v = say(k->e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    struct words w = {.used = 0};
    if (!v) {
        return;
    }
    say_comm(v, k->comm, 0);
    say_side(v, k->first, source_index(k->e, k->first), &k->in, &k->rec);
    (void)roll_rankset_copy(&v->waiting, &k->in);
    words_add(&w, "Everyone has arrived and nothing completes. All %u members of a new communicator are inside ",
              k->comm->size);
    words_call(&w, &k->rec);
    words_add(&w, " for %.1f s: ", (double)(k->e->clock - k->since) / 1e9);
    stuck_words_hosts(&w, k->e, &k->in);
    words_add(&w, ". The records show no mistake of the program: look at the network between the hosts (interfaces, "
                  "routes, a firewall; NCCL_DEBUG=INFO says what NCCL tries). Suspected: it may only be slow.");
    say_text(k->e, v, "%s", w.text);
    stuck_case_open(k, v->number, v->text);
}

static void look_at_creation(struct stuck *run, struct source *s)
{
    struct roll_engine *e = run->e;
    const struct entry *entry = s->init ? source_entry(s, s->init - 1) : NULL;
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    if (!m || entry->rec.op != ROLL_OP_COMM_INIT || e->calm - s->init_calm < CREATION * e->config.suspect_ns ||
        m->comm->open || m->comm->size < 2) {
        return;
    }
    struct stuck_comm *own = stuck_make_comm(m->comm);
    if (!own || own->looked_ns == e->clock + 1) {
        return;
    }
    own->looked_ns = e->clock + 1; /* one member asks for all */
    uint64_t key = say_key(ROLL_VERDICT_COLLECTIVE_STUCK, m->comm->key, ROLL_OP_COMM_INIT, 0);
    struct stuck k = {.e = e, .comm = m->comm, .rec = entry->rec, .work = run->work};
    if (!say_is_said(e, key) && all_inside(&k, s) && !stuck_is_troubled(&k) && say_once(e, key)) {
        speak_creation(&k);
    }
    run->work = k.work;
    stuck_fini(&k);
}

/* Some host has waited for long: only then is anything else looked at. */
static bool anyone_is_patient(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (s->init != 0) {
            return true;
        }
        for (uint32_t t = 0; t < s->threads; t++) {
            if (may_be_stuck(e, s, &s->thread[t])) {
                return true;
            }
        }
    }
    return false;
}

/* The call in which this host stands is told, when all do, their patience has run out, and nothing else may be the
 * reason. */
static void look_at_wait(struct stuck *k, struct source *s, const struct thread *t)
{
    struct roll_engine *e = k->e;
    uint64_t ticket;
    if (!may_be_stuck(e, s, t)) {
        return;
    }
    if (e->dirty) {
        sweep(e);
    }
    bool found = stuck_find(k, s, t, &ticket) || (!k->stands && stuck_find_last(k, s, t, &ticket));
    if (found && k->ripe && !stuck_is_troubled(k)) {
        mark_told(k, speak(k, calls_behind(k, s, t, ticket)));
    }
    k->lax = false;
}

static void stuck_tick(struct roll_engine *e)
{
    struct stuck_engine *own = stuck_of_engine(e);
    stuck_case_tick(e);
    if (e->finishing || e->clock - own->run_ns < e->config.stall_ns / 2) {
        return;
    }
    own->run_ns = e->clock;
    if (!anyone_is_patient(e)) {
        return;
    }
    struct stuck k = {.e = e, .work = stuck_work(e)};
    uint32_t from = own->next % e->sources, n = 0;
    while (n < e->sources && k.work > 0) { /* where the bound is met, the next run goes on */
        struct source *s = e->source[(from + n++) % e->sources];
        if (s->init != 0) {
            look_at_creation(&k, s);
        }
        for (uint32_t t = 0; t < s->threads; t++) {
            look_at_wait(&k, s, &s->thread[t]);
        }
    }
    own->next = n < e->sources ? from + n : 0;
    own->work = k.work;
    stuck_fini(&k);
}

/* Others wait for a rank that stands in such a call: when patience runs out, that is told, and not that this one is
 * blocked or busy. */
static bool stuck_block(struct roll_engine *e, const struct block *b)
{
    return (b->kind == BLOCK_STUCK || b->kind == BLOCK_BUSY) && stuck_stands(e, b->rank);
}

static void stuck_end(struct roll_engine *e)
{
    stuck_case_close(e, 0);
}

const struct detector detect_stuck = {
    .name = "stuck", ENGINE_STATE(stuck), .block = stuck_block, .tick = stuck_tick, .fini = stuck_end};
