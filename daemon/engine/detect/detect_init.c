/*
 * detect_init.c: a member never joined the creation of a communicator.
 *
 * Ranks are inside CommInit (or CommSplit) and do not return. A communicator made from a unique id is defined when its
 * creation is entered, so its absent members are those for which no rank has written a definition. Where that
 * definition is lost, the numbers of CommInit calls are compared. For CommSplit the members of the parent are known,
 * and those that have made fewer such calls are absent.
 *
 * Joining late is ordinary (imports, data), so absence is suspected after suspect_ns. It is proven when the process of
 * an absent rank is dead or has ended and was not started again, or when an absent rank has left the parent. Which
 * ranks are absent from a communicator smaller than the job cannot be known: only their number is said. Which creation
 * a rank is inside, init_inside.c knows.
 */
#include "daemon/engine/detect/creation.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/init.h"

struct init_engine {
    uint64_t run_ns;    /* patience clock of the last look at creations */
    uint64_t looked_ns; /* the creation without a definition that was looked at last: patience clock of that look */
    uint32_t looked;    /* its number among the creations of its rank */
    uint64_t size;      /* its number of ranks */
};
STATE_OF_ENGINE(init)

static void absent_fini(struct absent *a)
{
    roll_rankset_fini(&a->ranks);
    roll_rankset_fini(&a->inside);
    roll_rankset_fini(&a->never);
}

/* Adds the absent rank of o. m: its member of the communicator or of the parent; NULL: not known. An abort counts only
 * after suspect_ns: other members usually abort as well. */
static void add_absent(const struct roll_engine *e, const struct source *s, const struct source *o,
                       const struct member *m, struct absent *a)
{
    if (source_is_dark(o) && !(m && (m->gone || m->ended != 0))) {
        a->unsure = true; /* it may have joined since */
        return;
    }
    bool aborted = m && m->ended != 0 && !source_explained(o) &&
                   (e->finishing || (e->unheard == 0 && e->calm - m->ended_calm >= e->config.suspect_ns));
    (void)roll_rankset_add(&a->ranks, o->world);
    if ((!source_alive(o) && o->generation >= s->generation) || (m && m->gone && m->ended == 0) || aborted) {
        (void)roll_rankset_add(&a->never, o->world);
    }
}

/* Counts by the members of the communicator, or of the parent. */
static void count_members(const struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                          const struct member *m, struct absent *a)
{
    for (uint32_t r = 0; r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        if (o->source == NO_SOURCE) {
            a->unseen++;
        } else if (rec->op == ROLL_OP_COMM_INIT || o->splits >= m->splits) {
            (void)roll_rankset_add(&a->inside, e->source[o->source]->world);
        } else if (rec->op == ROLL_OP_COMM_SPLIT && o->gaps != o->split_gaps) {
            continue; /* the record of this split may be among those that were lost */
        } else {
            add_absent(e, s, e->source[o->source], o, a);
        }
    }
}

/* o is inside a creation with the same number among its creations and another size: another communicator. */
static bool makes_another(const struct source *o, const struct source *s, const struct roll_record *rec)
{
    const struct entry *own = o->init && o->inits == s->inits ? source_entry(o, o->init - 1) : NULL;
    return own && own->rec.op == rec->op && own->rec.count != rec->count;
}

/* Counts by the numbers of creations of each rank, where the definition is lost. */
static void count_calls(const struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                        struct absent *a)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i]->inits >= s->inits && !makes_another(e->source[i], s, rec)) {
            (void)roll_rankset_add(&a->inside, e->source[i]->world);
        }
    }
    size_t inside = roll_rankset_count(&a->inside);
    a->unseen = rec->count > inside ? (uint32_t)rec->count - (uint32_t)inside : 0;
}

static void count_absent(const struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                         struct absent *a)
{
    const struct member *m = source_member(s, rec->comm);
    if (m) {
        count_members(e, s, rec, m, a);
    } else if (rec->op == ROLL_OP_COMM_INIT) {
        count_calls(e, s, rec, a);
    }
    for (uint32_t i = 0; a->unseen > 0 && creation_is_whole(e, s, rec) && i < e->sources; i++) {
        const struct source *o = e->source[i];
        if (!roll_rankset_has(&a->inside, o->world) && !roll_rankset_has(&a->ranks, o->world)) {
            add_absent(e, s, o, NULL, a);
            a->unseen--;
        }
    }
    /* Of a member that nobody knows it is not known either whether it is one of those that are not heard. */
    for (uint32_t i = 0; a->unseen > 0 && !a->unsure && i < e->sources; i++) {
        const struct source *o = e->source[i];
        a->unsure = source_is_dark(o) && !roll_rankset_has(&a->inside, o->world);
    }
    a->unseen = a->unsure ? 0 : a->unseen;
}

/* One of the absent ranks waits in a call itself, or is stopped. Then this is the reason, and the wait graph finds it.
 */
static bool waits_elsewhere(const struct roll_engine *e, const struct roll_rankset *absent)
{
    for (uint32_t i = 0; !e->finishing && i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!roll_rankset_has(absent, s->world) || !source_alive(s)) {
            continue;
        }
        bool pending = s->proc == ROLL_PROC_STOPPED || s->init != 0 || source_pending(s);
        if (pending && (s->proc == ROLL_PROC_STOPPED || source_blocked(e, s))) {
            return true;
        }
    }
    return false;
}

/* All ranks that cannot come are dead, and their death has been told. */
static bool is_dead(const struct roll_engine *e, const struct absent *a)
{
    bool all = absent_is_over(a) && a->unseen == 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        bool dead = s->proc == ROLL_PROC_DEAD && process_is_told(s);
        all = all && (!roll_rankset_has(&a->never, s->world) || dead);
    }
    return all;
}

/* s waits in a call that is not over, or in the creation of another communicator. */
static bool waits_in_call(const struct roll_engine *e, const struct source *s)
{
    return s->init != 0 || (source_pending(s) && source_blocked(e, s));
}

/* More of the absent ranks are inside another creation than wait in this one. Then it is told there that the waiters of
 * this one are absent. */
static bool are_more(const struct roll_engine *e, const struct absent *a)
{
    size_t away = 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        away += e->source[i]->init != 0 && roll_rankset_has(&a->ranks, e->source[i]->world);
    }
    return away > roll_rankset_count(&a->inside);
}

/*
 * It has been told already why these ranks do not come: those that wait for them in other calls have told it, or the
 * communicator on which they wait is explained. An absent rank that waits in a call, for another absent rank or for
 * `waiter`, comes when that one does.
 */
static bool is_told(const struct roll_engine *e, const struct source *waiter, const struct absent *a)
{
    bool all = a->unseen == 0, any = missing_is_told(waiter);
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!roll_rankset_has(&a->ranks, s->world)) {
            continue;
        }
        bool told = missing_is_told(s) || (waits_in_call(e, s) && source_explained(s));
        any = any || told;
        all = all && (told || waits_in_call(e, s));
    }
    return all && any;
}

/* All ranks that cannot come have ended, and verdicts name them for it. */
static bool is_end_named(const struct roll_engine *e, const struct absent *a)
{
    bool all = absent_is_over(a);
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        all = all && (!roll_rankset_has(&a->never, s->world) || (!source_alive(s) && s->end_named));
    }
    return all;
}

/* It is known why the rank waits in the creation that it is inside. */
static bool waits_knowingly(const struct roll_engine *e, const struct source *s)
{
    return s->init_known == s->init || (e->unheard > 0 && s->init_dark == s->init);
}

/* It is known for s, or for another member inside the same creation, why the creation does not end. */
static bool is_known(const struct roll_engine *e, const struct source *s, const struct member *m)
{
    bool known = waits_knowingly(e, s);
    for (uint32_t r = 0; m && !known && r < m->comm->size; r++) {
        const struct source *o = m->comm->member[r].source == NO_SOURCE ? NULL : e->source[m->comm->member[r].source];
        const struct entry *at = o && o->init ? source_entry(o, o->init - 1) : NULL;
        known = at && waits_knowingly(e, o) && source_member(o, at->rec.comm) == &m->comm->member[r];
    }
    return known;
}

/* Some verdict says already why the creation cannot end (detect_claim.c, detect_refused.c), or will say it, or the
 * parent is stuck for a reason that has been told. */
static bool is_explained(const struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                         const struct member *m)
{
    const struct comm *claimed = NULL;
    uint32_t claims = 0;
    if (!m) {
        return claim_of(e, s, &claimed) != NULL;
    }
    return creation_is_told(m->comm, creation_split(m, rec)) || claims_on(m->comm, &claims) ||
           (m->comm->muted && m->comm->explains);
}

/* The creation is looked at for the first time in this run. One rank is asked for all that are inside it; without a
 * definition, for all that are inside the creation with this number and size. Without memory nothing is looked at. */
static bool is_first_look(struct roll_engine *e, const struct source *s, const struct roll_record *rec,
                          const struct member *m)
{
    struct init_engine *run = init_of_engine(e);
    struct init_comm *own = m ? init_make_comm(m->comm) : NULL;
    bool again = m ? !own || own->looked_ns == e->clock
                   : run->looked_ns == e->clock && run->looked == s->inits && run->size == rec->count;
    if (own && !again) {
        own->looked_ns = e->clock;
    } else if (!again) {
        run->looked_ns = e->clock;
        run->looked = s->inits;
        run->size = rec->count;
    }
    return !again;
}

/* Something else says why the absent ranks do not come, or may still say it. */
static bool has_other_reason(const struct roll_engine *e, const struct source *s, const struct absent *a)
{
    /* The wait graph has so long to find a reason; after that, absence is told as the reason. Where
     * a rank was set aside, the reason may be that rank, which the wait graph does not tell. */
    bool soon = e->calm - s->init_calm < e->config.suspect_ns * 2 || e->no_rooms > 0;
    bool open = !absent_is_over(a) && ((soon && waits_elsewhere(e, &a->ranks)) || is_told(e, s, a) || are_more(e, a));
    return open || is_dead(e, a) || is_end_named(e, a);
}

/* o is inside a creation, and in that of m's communicator (or of children of it) as far as that is known. */
static bool is_inside(const struct source *o, const struct member *m)
{
    const struct entry *at = o->init != 0 ? source_entry(o, o->init - 1) : NULL;
    const struct member *own = at ? source_member(o, at->rec.comm) : NULL;
    return at && (!m || !own || own->comm == m->comm);
}

/* From when on the absent ranks have had time to join: since s waits; since the last of those that wait there has come,
 * because the ranks of a large job start some seconds apart, and where some still come the others may as well; or since
 * the last of the absent was heard again, for what it did meanwhile comes from then on. Of members of whom nothing is
 * known any rank may be one. */
static uint64_t waits_since(const struct roll_engine *e, const struct source *s, const struct member *m,
                            const struct absent *a)
{
    uint64_t since = s->init_calm;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *o = e->source[i];
        bool later = o->heard_calm > since, came = is_inside(o, m);
        since = later && (a->unseen > 0 || roll_rankset_has(&a->ranks, o->world)) ? o->heard_calm : since;
        since = came && roll_rankset_has(&a->inside, o->world) && o->init_calm > since ? o->init_calm : since;
    }
    return since;
}

/* The absent ranks have had their time. */
static bool is_late(struct roll_engine *e, const struct source *s, const struct member *m, const struct absent *a)
{
    /* Verdicts of ranks that wait in a call for an ended rank come first. */
    uint64_t since = s->init_since > e->heard_clock ? s->init_since : e->heard_clock;
    bool over = absent_is_over(a) && (e->finishing || e->clock - since >= e->config.stall_ns * 3 / 2);
    bool late = (e->unheard == 0 && e->calm - waits_since(e, s, m, a) >= e->config.suspect_ns) || over;
    /* An absent rank that stands in a stuck call: detect_stuck.c tells that instead. */
    for (uint32_t k = 0; late && !absent_is_over(a) && k < e->sources; k++) {
        late = !roll_rankset_has(&a->ranks, e->source[k]->world) || !stuck_stands(e, e->source[k]);
    }
    return late;
}

/* Says the verdict in the place of an earlier one about this creation. */
static void tell(struct roll_engine *e, struct source *s, const struct roll_record *rec, const struct absent *a)
{
    uint64_t key = creation_key(s, rec), said = e->numbers, before = say_recall(e, key);
    init_say(e, s, rec, a);
    if (e->numbers != said) {
        say_supersedes(e, &e->out_last->verdict, before);
        say_remember(e, key, e->numbers);
        ended_say(e, &a->never, source_index(e, s));
    }
    for (uint32_t k = 0; k < e->sources; k++) {
        if (roll_rankset_has(&a->ranks, e->source[k]->world)) {
            missing_set_told(e->source[k]);
        }
    }
}

static void look_at_creation(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    if (is_explained(e, s, rec, m) || !is_first_look(e, s, rec, m) || is_known(e, s, m)) {
        return;
    }
    struct absent a = {.unseen = 0};
    count_absent(e, s, rec, &a);
    bool absent = roll_rankset_count(&a.ranks) > 0 || a.unseen > 0;
    bool all = !absent && !a.unsure && (!m || roll_rankset_count(&a.inside) >= m->comm->size);
    if (all && m) {             /* numbers of calls, without a member, are too weak a sign to withdraw a verdict */
        init_joined(e, s, rec); /* why the creation does not end all the same is another matter */
    } else if (!all && !has_other_reason(e, s, &a) && is_late(e, s, m, &a) && absent &&
               say_once(e, say_key(creation_key(s, rec), 1, roll_rankset_count(&a.never), 0))) {
        tell(e, s, rec, &a);
    }
    absent_fini(&a);
}

static void init_tick(struct roll_engine *e)
{
    struct init_engine *run = init_of_engine(e);
    if (e->clock - run->run_ns < e->config.stall_ns / 8) {
        return;
    }
    run->run_ns = e->clock;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        const struct entry *entry = s->init ? source_entry(s, s->init - 1) : NULL;
        if (entry && e->clock - s->init_since >= e->config.stall_ns && source_alive(s) && !waits_knowingly(e, s)) {
            look_at_creation(e, s, &entry->rec);
        }
    }
}

const struct detector detect_init = {.name = "init", ENGINE_STATE(init), .record = init_record, .tick = init_tick};
