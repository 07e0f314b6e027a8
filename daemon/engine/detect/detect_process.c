/*
 * detect_process.c: a rank's process has died, or is stopped, while others need it.
 *
 * A death is told stall/5 after it is known, together with all other deaths of that time: the loss of a node is one
 * cause. When nobody is left alive, the job was ended from outside, which is one note. SIGTERM, SIGINT and SIGHUP are
 * usually sent to all ranks, and some ranks take their time; so a death by one of these is told only after twice
 * suspect_ns. A rank that was already stuck for a reason that has been told dies as a consequence (by a watchdog, or
 * the launcher) and is not named again, unless it crashed. A rank that has destroyed all its communicators may end in
 * any way. Nor is the end of a rank told that still lived when its launcher began to end the job; where all have ended,
 * the note counts it.
 */
#include "daemon/engine/detect/detector.h"

#include <signal.h>
#include <sys/wait.h>

/* Whether a live rank needs the dead one. */
enum need {
    NEED_NONE,  /* nobody needs the rank, and only a member that is heard for the first time may come to need it */
    NEED_LATER, /* somebody may come to need it */
    NEED_NOW
};

struct process_comm {
    uint32_t needs; /* a member that needed a dead one, when that was asked last */
};
STATE_OF_COMM(process)

/* The host of m is inside the call that destroys the communicator. After stall_ns in it, it waits for calls that are
 * not over. */
static enum need leaves_in_vain(const struct roll_engine *e, const struct member *m)
{
    const struct source *s = e->source[m->source];
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside ? source_entry(s, t->inside - 1) : NULL;
        if (in && (in->rec.op == ROLL_OP_COMM_DESTROY || in->rec.op == ROLL_OP_COMM_FINALIZE) &&
            source_member(s, in->rec.comm) == m) {
            return e->clock - t->since >= e->config.stall_ns ? NEED_NOW : NEED_LATER;
        }
    }
    return NEED_NONE;
}

/* Who needs the rank: a live member of one of its communicators. Whoever needed the last one that was asked about there
 * is looked at first, because thousands may die at once. */
static enum need need_of(struct roll_engine *e, const struct source *s)
{
    enum need need = NEED_NONE;
    for (uint32_t i = 0; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (!m || m->gone || m->ended != 0 || m->comm->aborted) {
            continue;
        }
        struct process_comm none = {0}, *made = process_make_comm(m->comm), *own = made ? made : &none;
        uint32_t size = m->comm->size, first = own->needs < size ? own->needs : 0;
        for (uint32_t k = 0; k < size && need != NEED_NOW; k++) {
            const struct member *o = &m->comm->member[(first + k) % size];
            e->effort++;
            if (o != m && o->source != NO_SOURCE && o->ended == 0 && source_alive(e->source[o->source])) {
                enum need by = o->gone ? leaves_in_vain(e, o) : NEED_NOW;
                need = by > need ? by : need;
                own->needs = (uint32_t)o->rank;
            }
        }
    }
    return need;
}

struct process_engine {
    bool over_said;   /* the end of the job has been told */
    uint64_t settled; /* 1 + `proc_changes` of the engine when no death was left to be told; 0 = some may be */
};
STATE_OF_ENGINE(process)

struct process_source {
    uint64_t due_ns;   /* patience clock at which the death was first due; 0 = not yet */
    uint64_t unneeded; /* `enrolled` of the engine, plus one, when nobody needed the rank */
    bool told;         /* the death has been told as rank-dead */
};
STATE_OF_SOURCE(process)

bool process_is_told(const struct source *s)
{
    const struct process_source *own = process_of_source(s);
    return own && own->told;
}

/* Nobody needed the rank when that was last looked at, and no member of any communicator has been heard for the first
 * time since. */
static bool is_unneeded(const struct roll_engine *e, const struct source *s)
{
    const struct process_source *own = process_of_source(s);
    return own && own->unneeded == e->enrolled + 1;
}

static bool told_to_go(const struct source *s)
{
    int sig = s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) ? WTERMSIG(s->exit_status) : 0;
    return s->asked || sig == SIGTERM || sig == SIGINT || sig == SIGHUP;
}

/*
 * Under a launcher other than `rollcall run` (torchrun, srun) the exit status is not known, and the launcher may be
 * ending the ranks one after another. Twice stall_ns, 1 s by default, is little beside its timeout.
 */
static uint64_t patience(const struct roll_engine *e, const struct source *s)
{
    if (told_to_go(s)) {
        return e->config.suspect_ns * 2;
    }
    return s->exit_status == ROLL_EXIT_UNKNOWN ? e->config.stall_ns * 2 : 0;
}

static bool is_due(const struct roll_engine *e, const struct source *s)
{
    return e->finishing || e->clock - s->proc_ns >= patience(e, s);
}

/*
 * A verdict that comes from those who wait for the dead rank names them as well, so that verdict comes first: when the
 * death is due, the wait graph is asked at once, and a death for which nobody waits is told stall/5 later. The time
 * runs from there and not from the death, because how a process ended may become known long after.
 */
static bool is_overdue(struct roll_engine *e, struct source *s)
{
    if (!is_due(e, s)) {
        return false;
    }
    struct process_source *own = process_make_source(s);
    if (!own) { /* without memory for that moment the death is told at the end of the job */
        return e->finishing;
    }
    if (own->due_ns == 0) {
        own->due_ns = e->clock;
        e->stall_run_ns = 0;
    }
    return e->finishing || e->clock - own->due_ns >= e->config.stall_ns / 5;
}

static bool crashed(const struct source *s)
{
    int sig = s->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(s->exit_status) ? WTERMSIG(s->exit_status) : 0;
    return sig == SIGSEGV || sig == SIGBUS || sig == SIGILL || sig == SIGFPE;
}

/* The process ended in a call in which it waited for a reason that has been told. */
static bool ended_waiting(const struct source *s)
{
    const struct entry *entry = s->excuse ? source_entry(s, s->excuse - 1) : NULL;
    return entry && !entry_answered(s, entry);
}

/* The process waited in a call for a reason that has been told, and was then ended by somebody or something; or it had
 * given up what it waited in. */
static bool consequence(const struct source *s)
{
    return !crashed(s) && (source_explained(s) || source_gave_up(s) || ended_waiting(s));
}

bool process_end_follows(const struct source *s)
{
    bool unknown = s->proc == ROLL_PROC_FINISHED && s->exit_status == ROLL_EXIT_UNKNOWN;
    return (source_failed(s) && consequence(s)) || (unknown && ended_waiting(s));
}

/* Two dead ranks made the same last call, at the same place, and ended alike: one line tells both. */
static bool ended_alike(const struct source *a, const struct source *b)
{
    bool calls = a->last.op == b->last.op;
    if (calls && a->last.op != ROLL_OP_NONE) {
        calls = match_signature(&a->last) == match_signature(&b->last) && a->last.seq == b->last.seq &&
                site_of(a, &a->last) == site_of(b, &b->last);
    }
    return calls && a->exit_status == b->exit_status;
}

/* One side for all dead ranks whose end was alike, that of the first to die first; at most `sides`. What differs in how
 * the others ended stands in *w. */
static void say_ends(struct roll_engine *e, struct roll_verdict *v, const struct roll_rankset *dead,
                     const struct source *first, uint32_t sides, struct words *w)
{
    struct roll_rankset left = {0};
    const struct source *one = first;
    (void)roll_rankset_copy(&left, dead);
    for (uint32_t n = 0; one && n < sides; n++) {
        struct roll_rankset alike = {0}, rest = {0};
        const struct source *next = NULL;
        bool same = true; /* false: the last side holds all that are left, which were not alike */
        for (uint32_t i = 0; i < e->sources; i++) {
            const struct source *s = e->source[i];
            if (!roll_rankset_has(&left, s->world)) {
                continue;
            }
            bool as_one = ended_alike(one, s), in = as_one || n + 1 == sides;
            same = same && (as_one || !in);
            (void)roll_rankset_add(in ? &alike : &rest, s->world);
            next = in || (next && next->proc_ns <= s->proc_ns) ? next : s;
        }
        say_side(v, one, source_index(e, one), &alike, one->last.op != ROLL_OP_NONE && same ? &one->last : NULL);
        if (n > 0 && same && one->exit_status != first->exit_status) {
            words_add(w, "; ");
            words_ranks(w, &alike);
            words_add(w, ": ");
            words_exit(w, one->exit_status);
        }
        roll_rankset_fini(&left);
        left = rest;
        roll_rankset_fini(&alike);
        one = next;
    }
    roll_rankset_fini(&left);
}

/* The members of c that have made collective #seq, which a dead one never makes: they wait for it. One of them. */
static const struct source *who_waits(const struct roll_engine *e, const struct comm *c, uint32_t seq,
                                      struct roll_rankset *out)
{
    const struct source *one = NULL;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        if (s && source_alive(s) && !m->gone && m->ended == 0 && !m->unsure && m->next > seq) {
            (void)roll_rankset_add(out, s->world);
            one = one ? one : s;
        }
    }
    return one;
}

/*
 * Adds where the death is felt: the call of the dead rank's communicators that live members have made and it has not,
 * the one in which most wait; and who they are, where the wait graph has not said so. A death is told before a wait is
 * old enough for the graph.
 */
static void say_felt(struct roll_engine *e, struct roll_verdict *v, const struct source *dead, struct words *w)
{
    struct comm *at = NULL;
    const struct source *waiter = NULL;
    struct roll_rankset most = {0};
    for (uint32_t i = 0; i < dead->members; i++) {
        const struct member *m = dead->member[i];
        struct roll_rankset here = {0};
        if (!m || m->gone || m->ended != 0 || m->unsure || m->comm->aborted) {
            continue;
        }
        const struct source *one = who_waits(e, m->comm, m->next, &here);
        e->effort += m->comm->size;
        if (one && roll_rankset_count(&here) > roll_rankset_count(&most)) {
            (void)roll_rankset_copy(&most, &here);
            at = m->comm;
            waiter = one;
        }
        roll_rankset_fini(&here);
    }
    const struct member *m = at ? comm_member_of(at, source_index(e, dead)) : NULL;
    uint64_t ticket = m ? source_ticket_of(waiter, comm_member_of(at, source_index(e, waiter)), m->next) : NO_TICKET;
    const struct entry *waits = ticket != NO_TICKET ? source_entry(waiter, ticket) : NULL;
    if (waits) {
        say_comm(v, at, m->next);
        say_side(v, waiter, source_index(e, waiter), &most, &waits->rec);
        (void)roll_rankset_union(&v->waiting, &most);
        words_add(w, " ");
        words_wait(w, &most);
        words_add(w, " for rank %u in ", dead->world);
        words_call(w, &waits->rec);
        words_add(w, ", #%u on ", m->next);
        words_comm(w, at);
        words_add(w, ", which it has not made.");
    }
    roll_rankset_fini(&most);
}

static void speak(struct roll_engine *e, const struct roll_rankset *dead, const struct source *first,
                  enum roll_certainty certainty, const struct roll_rankset *waiting)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_RANK_DEAD, certainty);
    if (!v) {
        return;
    }
    if (certainty != ROLL_NOTE) {
        (void)roll_rankset_copy(&v->culprits, dead);
    }
    struct words others = {.used = 0};
    say_ends(e, v, dead, first, certainty == ROLL_NOTE ? 1 : ROLL_VERDICT_SIDES - 1, &others);
    v->event_ns = first->last_ns;
    struct words w = {.used = 0};
    words_ranks(&w, dead);
    bool one = roll_rankset_count(dead) == 1, asked = certainty == ROLL_NOTE && told_to_go(first);
    words_add(&w, "%s (", !asked ? " died" : one ? " was ended from outside" : " were ended from outside");
    if (!one) {
        words_add(&w, "rank %u first: ", first->world);
    }
    words_exit(&w, first->exit_status);
    words_add(&w, "%s)", others.used ? others.text : "");
    if (!one) {
        words_add(&w, "; rank %u was", first->world);
    }
    words_add(&w, " on host %s, pid %u", first->info.host, first->info.pid);
    if (first->last.op != ROLL_OP_NONE) {
        words_add(&w, one ? "; its last NCCL call was " : ", and its last NCCL call ");
        words_call_at(&w, first, &first->last);
        if (call_failed(&first->last)) {
            words_add(&w, ", which returned %s", roll_result_name(first->last.result));
        }
    }
    bool dumped = first->exit_status != ROLL_EXIT_UNKNOWN && WIFSIGNALED(first->exit_status);
    bool killed = dumped && WTERMSIG(first->exit_status) ==
                                SIGKILL; /* another process sent the signal, and there is no core dump */
    struct words felt = {.used = 0};
    if (waiting) {
        (void)roll_rankset_copy(&v->waiting, waiting);
    }
    if (certainty != ROLL_NOTE) {
        say_felt(e, v, first, &felt);
    }
    words_add(&w, ".%s", felt.text);
    words_add(&w, "%s%s",
              certainty == ROLL_NOTE ? " No rank is left running: the job has ended."
              : felt.used > 0        ? " Look at its own output"
              : one ? " A rank that calls on a communicator that it shares will wait without end. Look "
                      "at its own output"
                    : " A rank that calls on a communicator that they share will wait without end. Look "
                      "at their own output",
              certainty == ROLL_NOTE ? ""
              : killed ? " and at the kernel log of its host: the kernel kills like this when memory is short."
              : dumped ? " and core dump."
              : first->exit_status == ROLL_EXIT_UNKNOWN ? "."
                                                        : ": it ended by itself.");
    say_text(e, v, "%s", w.text);
}

static void tell_dead(struct roll_engine *e, const struct roll_rankset *waiting)
{
    struct roll_rankset dead = {0};
    const struct source *first = NULL;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        if (s->proc != ROLL_PROC_DEAD || s->said_dead || s->asked) {
            continue;
        }
        struct process_source none = {.told = false}, *made = process_make_source(s);
        /* Without memory for its state a death is told all the same. */
        struct process_source *own = made ? made : &none;
        enum need need = is_unneeded(e, s) ? NEED_NONE : refused_gathers(e, s) ? NEED_LATER : need_of(e, s);
        if (need != NEED_NOW) {
            own->due_ns = e->clock; /* a rank that somebody may come to need is looked at again in stall/5 */
            own->unneeded = need == NEED_NONE ? e->enrolled + 1 : 0;
            continue;
        }
        s->said_dead = true;
        if (!consequence(s) && !refused_death(e, s)) {
            own->told = true;
            (void)roll_rankset_add(&dead, s->world);
            first = !first || s->proc_ns < first->proc_ns ? s : first;
        }
    }
    if (first) {
        speak(e, &dead, first, ROLL_PROVEN, waiting);
    }
    roll_rankset_fini(&dead);
}

static void note_job_over(struct roll_engine *e)
{
    struct roll_rankset dead = {0};
    const struct source *first = NULL;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        if (s->proc == ROLL_PROC_DEAD && !s->said_dead) {
            s->said_dead = true;
            (void)roll_rankset_add(&dead, s->world);
            first = first ? first : s;
        }
    }
    if (first && !process_of_engine(e)->over_said) {
        process_of_engine(e)->over_said = true;
        speak(e, &dead, first, ROLL_NOTE, NULL);
    }
    roll_rankset_fini(&dead);
}

static void process_tick(struct roll_engine *e)
{
    struct process_engine *own = process_of_engine(e);
    if (own->settled == e->proc_changes + 1 || e->ended == 0) {
        return;
    }
    e->looks += e->sources;
    bool due = false, any = false; /* a death that somebody may need is due; any death is due */
    uint32_t alive = 0, fresh = 0;
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        alive += source_alive(s);
        if (s->proc == ROLL_PROC_DEAD && !s->said_dead) {
            fresh++;
            bool over = is_overdue(e, s);
            any = any || over;
            due = due || (over && !s->asked && !is_unneeded(e, s));
        }
    }
    own->settled = fresh == 0 ? e->proc_changes + 1 : 0;
    if (fresh == 0 || !(alive == 0 ? any : due)) {
        return;
    }
    if (alive == 0) {
        note_job_over(e);
    } else {
        tell_dead(e, NULL);
    }
}

static bool process_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind == BLOCK_DEAD) {
        if (!told_to_go(b->rank) && is_due(e, b->rank)) {
            tell_dead(e, b->waiting);
        }
        return true;
    }
    if (b->kind != BLOCK_STOPPED) {
        return false;
    }
    if (!say_once(e, say_key(ROLL_VERDICT_RANK_STOPPED, b->rank->world, b->rank->proc_ns, 0))) {
        return true;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_RANK_STOPPED, ROLL_PROVEN);
    if (!v) {
        return true;
    }
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    struct roll_rankset waiter = {0};
    (void)roll_rankset_add(&v->culprits, b->rank->world);
    (void)roll_rankset_add(&waiter, b->waiter->world);
    say_side(v, b->rank, source_index(e, b->rank), &v->culprits, NULL);
    say_side(v, b->waiter, source_index(e, b->waiter), &waiter, waits ? &waits->rec : NULL);
    if (b->comm) {
        say_comm(v, b->comm, waits ? waits->rec.seq : 0);
    }
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_add(&w, "Rank %u's process (pid %u on host %s) is stopped, by a signal or a debugger, and ", b->rank->world,
              b->rank->info.pid, b->rank->info.host);
    words_wait(&w, b->waiting);
    words_add(&w, " for it. Continue it with: kill -CONT %u", b->rank->info.pid);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
    return true;
}

const struct detector detect_process = {
    .name = "process", ENGINE_STATE(process), .block = process_block, .tick = process_tick};
