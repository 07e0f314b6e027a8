/*
 * stuck_lone.c: a rank stays in a call of its own, and nobody waits for that rank: rank-stuck.
 *
 * The walk of the wait graph begins at calls that lack somebody, and the search for a call in which all stand needs
 * their company. Neither comes to a rank that hangs by itself: in a free, in a wait behind a kernel or a host function,
 * in the end of a communicator, in a collective of its own. What is known of such a rank is only how long it has been
 * there, and what it does not wait for. So the verdict is suspected, it says just that, and it is withdrawn when the
 * host comes back. Its patience is that of all waits (stuck_patience).
 *
 * Nothing is said of a rank
 *   - some of whose calls lack somebody, or for whose calls others wait: the walk tells these (judge/waitgraph.c);
 *   - from which anything at all has come meanwhile, by another thread;
 *   - that polls, because a host leaves such a loop by itself;
 *   - that depends on trouble which is known (stuck_trouble.c), or to whose communicators a finding belongs that was
 *     made while the rank was there.
 *
 * Ranks that stay at one place of the program are one finding: it names all who have been there for suspect_ns when the
 * patience of the first has run out. One finding for each rank was rejected: a file server that hangs stops thousands.
 */
#include "daemon/engine/detect/stuck.h"

#include <inttypes.h>
#include <stdio.h>

#define PLACES_MAX 32u  /* places at which one run looks for company */
#define ONE_SIDED  512u /* records before a wait among which one-sided calls are looked for */

/* for whom others wait */

/* Notes for what the calls of this group wait, the first of which stands at the head of a queue of s. */
static void await_head(struct stuck *run, const struct source *s, uint64_t ticket)
{
    struct entry *head = source_entry(s, ticket);
    for (struct entry *entry = head; entry; entry = source_chain(s, &ticket)) {
        if (entry != head && !source_same_unit(&head->rec, &entry->rec)) {
            break;
        }
        struct member *m = source_member(s, entry->rec.comm);
        run->awaited_all = !spend(&run->work) || run->awaited_all;
        if (m && entry->pair) {
            uint32_t other = entry->pair->end[!p2p_side(&entry->rec)];
            uint32_t world = comm_world(run->e, m->comm, other);
            if (world != NO_SOURCE) {
                (void)roll_rankset_add(&run->awaited, world);
            }
        } else if (m) {
            struct stuck_comm *own = stuck_make_comm(m->comm);
            if (!own) {
                run->awaited_all = true;
                return;
            }
            bool newer = own->awaited_ns != run->e->clock + 1 || entry->rec.seq > own->awaited_seq;
            own->awaited_seq = newer ? entry->rec.seq : own->awaited_seq;
            own->awaited_ns = run->e->clock + 1;
        }
    }
}

/* Notes for what s waits inside the creation of a communicator. */
static void await_creation(struct stuck *run, const struct source *s)
{
    const struct entry *entry = source_entry(s, s->init - 1);
    struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    struct stuck_comm *own = m && entry->rec.op == ROLL_OP_COMM_SPLIT ? stuck_make_comm(m->comm) : NULL;
    if (own) {
        own->split_ns = run->e->clock + 1;
    } else {
        run->awaited_all = run->awaited_all || !m || m->comm->open || m->comm->size > 1;
    }
}

/* Finds for whom ranks wait: once in a run, and only where some rank stays alone. */
static void find_awaited(struct stuck *run)
{
    const struct roll_engine *e = run->e;
    run->awaited_known = true;
    for (uint32_t i = 0; i < e->sources && !run->awaited_all; i++) {
        const struct source *s = e->source[i];
        for (uint32_t k = 0; source_alive(s) && k < s->queues; k++) {
            if (s->queue[k].head != 0) {
                await_head(run, s, s->queue[k].head - 1);
            }
        }
        if (source_alive(s) && s->init != 0) {
            await_creation(run, s);
        }
    }
}

/* Some rank waits for a call of s that s has not made. */
static bool is_awaited(const struct stuck *run, const struct source *s)
{
    bool awaited = run->awaited_all || roll_rankset_has(&run->awaited, s->world);
    for (uint32_t i = 0; i < s->members && !awaited; i++) {
        const struct stuck_comm *own = s->member[i] ? stuck_of_comm(s->member[i]->comm) : NULL;
        awaited = own && ((own->awaited_ns == run->e->clock + 1 && own->awaited_seq >= s->member[i]->next) ||
                          own->split_ns == run->e->clock + 1);
    }
    return awaited;
}

/* a rank that stays alone */

static bool is_creation(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_COMM_INIT || rec->op == ROLL_OP_COMM_SPLIT;
}

/* The host may stay in this call for a reason of its own. A creation of several ranks needs all of them; a poll is no
 * call that does not return. */
static bool may_be_alone(const struct source *s, const struct roll_record *in)
{
    const struct member *m = source_member(s, in->comm);
    return roll_op_class(in->op) != ROLL_CLASS_POLL &&
           (!is_creation(in) || (m && !m->comm->open && m->comm->size == 1));
}

static bool is_told(const struct source *s, const struct stuck_source *w)
{
    return w->verdict != 0 || source_explained(s) || missing_is_told(s) || s->excuse != 0;
}

/* s stays alone inside `in`, in which its thread t is. */
static bool is_alone(struct stuck *run, const struct source *s, const struct thread *t, const struct roll_record *in)
{
    struct stuck k = {.e = run->e, .first_since = t->since};
    if (s->proc != ROLL_PROC_RUNNING || source_pending(s) || run->work == 0 || !may_be_alone(s, in) ||
        !source_quiet(run->e, s, run->e->config.suspect_ns)) {
        return false;
    }
    if (!run->awaited_known) {
        find_awaited(run);
    }
    return !is_awaited(run, s) && stuck_found_by(&k, s->number) == 0;
}

void stuck_lone_note(struct stuck *run, struct source *s, const struct thread *t, bool together)
{
    const struct roll_engine *e = run->e;
    const struct entry *in = source_entry(s, t->inside - 1);
    struct stuck_source *w = stuck_make_source(s);
    if (!w || w->lone != 0 || (w->lone_ns == e->clock + 1 && !together)) {
        return; /* of several threads the first one counts, or one that stands with others */
    }
    bool alone = in && !together && !is_told(s, w) && is_alone(run, s, t, &in->rec);
    w->lone_ns = alone || together ? e->clock + 1 : 0;
    w->lone_at = alone ? t->inside : 0;
    w->lone_since = t->since;
}

/* The thread of s that is still inside the call in which s was seen to stay alone; NULL: it has left the call. */
static const struct thread *lone_thread(const struct source *s, const struct stuck_source *w)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].inside == w->lone_at && s->thread[i].inside != 0) {
            return &s->thread[i];
        }
    }
    return NULL;
}

/* The call in which s stays alone, as was found in this run or, where that run had no time left, a moment ago; NULL:
 * it does not. */
static const struct entry *lone_call(const struct roll_engine *e, const struct source *s, const struct thread **t)
{
    const struct stuck_source *w = stuck_of_source(s);
    bool seen = w && w->lone == 0 && w->lone_ns != 0 && e->clock - (w->lone_ns - 1) <= e->config.stall_ns;
    *t = seen && !is_told(s, w) && source_quiet(e, s, e->config.suspect_ns) ? lone_thread(s, w) : NULL;
    return *t ? source_entry(s, (*t)->inside - 1) : NULL;
}

static uint64_t place_of(const struct source *s, const struct roll_record *rec)
{
    return say_key(ROLL_VERDICT_RANK_STUCK, rec->op, site_of(s, rec), 0);
}

static bool is_ripe(const struct roll_engine *e, const struct source *s, const struct thread *t,
                    const struct roll_record *rec)
{
    uint64_t patience = is_creation(rec) ? STUCK_CREATION * e->config.suspect_ns : stuck_patience(e, s, rec);
    return e->calm - t->calm >= patience && source_quiet(e, s, patience);
}

/* the finding */

/* The members of the communicator that is being ended which have not begun to end it. */
static void words_not_ended(const struct stuck *k, struct words *w)
{
    const struct member *m = k->loose ? NULL : source_member(k->first, k->rec.comm);
    struct roll_rankset others = {0};
    for (uint32_t r = 0; m && m->gone && r < m->comm->size; r++) {
        uint32_t world = m->comm->member[r].gone ? NO_SOURCE : comm_world(k->e, m->comm, r);
        if (world != NO_SOURCE) {
            (void)roll_rankset_add(&others, world);
        }
    }
    if (roll_rankset_count(&others) > 0) {
        words_add(w, " Of the members, ");
        words_ranks(w, &others);
        words_add(w, " %s not begun to end it.", roll_rankset_count(&others) == 1 ? "has" : "have");
    }
    roll_rankset_fini(&others);
}

/* What the records do not tell about this kind of call. */
static void words_unseen(const struct stuck *k, struct words *w)
{
    const struct source *s = k->first;
    uint64_t ticket = s->next;
    bool one_sided = false;
    for (uint32_t n = 0; n < ONE_SIDED && ticket-- > 0 && !one_sided; n++) {
        const struct entry *entry = source_entry(s, ticket);
        one_sided = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_RMA;
    }
    if (one_sided) {
        words_add(w, " One-sided calls came before it; who answers those is not followed.");
    }
    if (k->rec.op == ROLL_OP_COMM_SHRINK || k->rec.op == ROLL_OP_COMM_GROW) {
        words_add(w, " Which other ranks have to make this call as well is not followed.");
    }
}

/* Says the finding about the ranks in k->in, which takes the place of `earlier` (0: of none). Returns its number. */
static uint64_t say_lone(struct stuck *k, uint64_t earlier)
{
    struct roll_engine *e = k->e;
    struct roll_verdict *v = say(e, ROLL_VERDICT_RANK_STUCK, ROLL_SUSPECTED);
    if (!v) {
        return 0;
    }
    const struct member *m = k->loose ? NULL : source_member(k->first, k->rec.comm);
    bool one = roll_rankset_count(&k->in) == 1;
    struct words w = {.used = 0};
    say_supersedes(e, v, earlier);
    (void)roll_rankset_copy(&v->culprits, &k->in);
    if (m) {
        say_comm(v, m->comm, k->rec.seq);
    }
    say_side(v, k->first, source_index(e, k->first), &k->in, &k->rec);
    words_ranks(&w, &k->in);
    words_add(&w, " %s been inside ", one ? "has" : "have");
    words_call(&w, &k->rec);
    if (roll_op_class(k->rec.op) == ROLL_CLASS_EXT) { /* the wrapper does not see a C++ exception pass through it */
        words_add(&w, " (or %s left it by an exception)", one ? "has" : "have");
    }
    if (m) {
        words_add(&w, " on ");
        words_comm(&w, m->comm);
    } else if (k->loose) {
        words_add(&w, ", on several communicators,");
    }
    words_add(&w, " for at least %.1f s: ", (double)(e->clock - k->since) / 1e9);
    stuck_words_hosts(&w, e, &k->in);
    words_add(&w,
              ". As far as the records say, nothing of %s waits for another rank, and no other rank waits for %s: all "
              "calls of NCCL before it have been made by all their members.",
              one ? "that rank" : "these ranks", one ? "it" : "them");
    words_not_ended(k, &w);
    words_unseen(k, &w);
    if (k->longest_ns > 0) {
        words_add(&w, " The longest wait so far took %.1f s there.", (double)k->longest_ns / 1e9);
    }
    words_add(
        &w,
        " `rollcall stacks %u` shows where the host stands; then look at what its device runs (a kernel or a host "
        "function that does not end), and at the network under calls that all have made. Suspected: work that "
        "takes so long looks the same.",
        k->first->world);
    say_text(e, v, "%s", w.text);
    return v->number;
}

/* The finding about this place; a free one where there is none; NULL: there are too many. */
static struct stuck_lone *lone_at(struct stuck_engine *own, uint64_t place)
{
    struct stuck_lone *free = NULL;
    for (uint32_t i = STUCK_LONES; i-- > 0;) {
        struct stuck_lone *l = &own->lone[i];
        if (l->number != 0 && l->key == place) {
            return l;
        }
        free = l->number == 0 ? l : free;
    }
    return free;
}

/* Adds s, which has been inside the call `rec` since that moment, to the ranks of a finding. */
static void lone_add(struct stuck *k, const struct source *s, const struct stuck_source *w,
                     const struct roll_record *rec)
{
    if (!k->first) {
        k->first = s;
        k->rec = *rec;
    }
    const struct member *m = source_member(s, rec->comm), *first = source_member(k->first, k->rec.comm);
    k->loose = k->loose || (m ? m->comm : NULL) != (first ? first->comm : NULL);
    (void)roll_rankset_add(&k->in, s->world);
    k->since = w->lone_since > k->since ? w->lone_since : k->since;
    k->first_since = w->lone_since < k->first_since ? w->lone_since : k->first_since;
    k->longest_ns = w->longest_ns > k->longest_ns ? w->longest_ns : k->longest_ns;
}

/* Says the finding about all ranks that stay alone at this place: those that it has named before and that are still
 * there, and with `more` those that were noted since. */
static void lone_say(struct stuck *run, struct stuck_lone *l, uint64_t place, bool more)
{
    struct roll_engine *e = run->e;
    struct stuck_engine *own = stuck_of_engine(e);
    uint32_t id = (uint32_t)(l - own->lone) + 1;
    struct stuck k = {.e = e, .work = run->work, .first_since = UINT64_MAX};
    const struct thread *t;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        const struct stuck_source *w = stuck_of_source(s);
        const struct entry *in = w && w->lone == id ? source_entry(s, w->lone_at - 1) : NULL;
        if (!in && more && (in = lone_call(e, s, &t)) && place_of(s, &in->rec) != place) {
            in = NULL;
        }
        if (in) {
            lone_add(&k, s, w, &in->rec);
        }
    }
    uint64_t number = k.first && !stuck_is_troubled(&k) ? say_lone(&k, l->number) : 0;
    if (number != 0) {
        own->lones += l->number == 0;
        l->key = place;
        l->number = number;
        l->said = 0;
        for (uint32_t i = 0; i < e->sources; i++) {
            struct stuck_source *w = stuck_of_source(e->source[i]);
            if (w && roll_rankset_has(&k.in, e->source[i]->world) &&
                (w->lone == id || lone_call(e, e->source[i], &t))) {
                w->lone = id;
                l->said++;
            }
        }
        l->ranks = l->said;
    }
    run->work = k.work;
    stuck_fini(&k);
}

void stuck_lone_tell(struct stuck *run)
{
    struct roll_engine *e = run->e;
    uint64_t place[PLACES_MAX];
    uint32_t places = 0;
    const struct thread *t;
    for (uint32_t i = 0; i < e->sources && places < PLACES_MAX; i++) {
        const struct source *s = e->source[i];
        const struct entry *in = lone_call(e, s, &t);
        if (!in || !is_ripe(e, s, t, &in->rec)) {
            continue;
        }
        uint64_t own = place_of(s, &in->rec);
        uint32_t k = 0;
        while (k < places && place[k] != own) {
            k++;
        }
        struct stuck_lone *l = k == places ? lone_at(stuck_of_engine(e), own) : NULL;
        if (l) {
            place[places++] = own;
            lone_say(run, l, own, true);
        }
    }
}

/* what becomes of it */

/* The host has left the call for another reason than that the call was over: its process has ended in it, the call has
 * failed, or a communicator was aborted, which releases the hosts as well. A process may end as soon as it is back. */
static bool left_badly(const struct source *s, const struct stuck_source *w)
{
    const struct entry *in = source_entry(s, w->lone_at - 1);
    bool returned = in && roll_seal_state(in->rec.seal) >= ROLL_STATE_RETURNED;
    bool badly = !source_alive(s) && !returned;
    if (in) {
        bool cuda = roll_op_class(in->rec.op) == ROLL_CLASS_SYNC;
        badly = badly || (cuda ? in->rec.result != 0 : call_failed(&in->rec));
    }
    for (uint32_t i = 0; i < s->members && !badly; i++) {
        badly = s->member[i] && s->member[i]->ended != 0;
    }
    return badly;
}

/* Half of the ranks that a finding names have come back, and no more of them for a while: the others are named alone.
 */
static bool has_shrunk(const struct roll_engine *e, const struct stuck_lone *l)
{
    return l->number != 0 && l->ranks > 0 && l->ranks * 2 <= l->said &&
           e->clock - l->changed_ns >= e->config.suspect_ns;
}

/* The number of a finding that was made since and may be why s is there, or of a call in which ranks stand on which s
 * depends; 0: there is none. */
static uint64_t found_since(struct roll_engine *e, const struct source *s, const struct stuck_source *w)
{
    struct stuck k = {.e = e, .work = stuck_work(e), .first_since = w->lone_since};
    uint64_t by = stuck_found_by(&k, s->number);
    if (by == 0) {
        (void)roll_rankset_add(&k.in, s->world);
        by = stuck_is_troubled(&k) ? k.by : 0;
        stuck_of_engine(e)->work = k.work;
    }
    stuck_fini(&k);
    return by;
}

/* Takes the rank out of its finding if it has come back, or if a finding that was made since may be why it is there.
 */
static void lone_look(struct roll_engine *e, const struct source *s, struct stuck_source *w, bool news)
{
    bool back = !source_alive(s) || !lone_thread(s, w);
    uint64_t by = !back && news ? found_since(e, s, w) : 0;
    if (!back && by == 0) {
        return;
    }
    bool badly = back && left_badly(s, w);
    uint64_t took = e->clock - w->lone_since;
    if (back && took > w->longest_ns) {
        w->longest_ns = took; /* the next wait gets five times that */
    }
    struct stuck_lone *l = stuck_lone_leave(e, w);
    l->kept = l->kept || badly;
    l->by = by != 0 ? by : l->by;
}

/* No rank of the finding is left. */
static void lone_end(struct roll_engine *e, struct stuck_lone *l)
{
    char why[128];
    bool one = l->said == 1;
    snprintf(why, sizeof(why),
             one ? "the rank has come back from it: it was slow, not stuck"
                 : "all ranks have come back from it: it was slow, not stuck");
    if (l->by != 0) {
        snprintf(why, sizeof(why), "verdict %" PRIu64 ", which came later, may be why %s there", l->by,
                 one ? "the rank is" : "these ranks are");
    }
    if (!l->kept) {
        (void)say_withdraw(e, l->number, why);
    }
    stuck_lone_close(e, l);
}

void stuck_lone_returned(struct roll_engine *e)
{
    struct stuck_engine *own = stuck_of_engine(e);
    bool news = own->founds != e->founds || own->held != own->said;
    own->founds = e->founds;
    own->held = own->said;
    for (uint32_t i = 0; i < e->sources && own->lones > 0; i++) {
        struct stuck_source *w = stuck_of_source(e->source[i]);
        if (w && w->lone != 0) {
            lone_look(e, e->source[i], w, news);
        }
    }
    for (uint32_t i = 0; i < STUCK_LONES && own->lones > 0; i++) {
        struct stuck_lone *l = &own->lone[i];
        if (l->number != 0 && l->ranks == 0) {
            lone_end(e, l);
        } else if (!e->finishing && has_shrunk(e, l)) {
            struct stuck run = {.e = e, .work = stuck_work(e)};
            lone_say(&run, l, l->key, false);
            own->work = run.work;
            stuck_fini(&run);
        }
    }
}
