/*
 * detect_straggler.c: slow, not stuck: a rank that arrives last at most collectives of a communicator, and jobs whose
 * steps get longer.
 *
 * Host times are times of enqueueing, and clocks of nodes differ by seconds. Both are got round by looking only at
 * collectives n and n + 1 of a communicator where every member's host came back from a wait behind n before it enqueued
 * n + 1, and waited behind n + 1 again. From n (an operation that nobody leaves before all have arrived) all hosts come
 * back at one instant, whatever their clocks say; the device has nothing left to do there; so the time from that return
 * to the next call, by the rank's own clock, is how late it arrives. No clocks are compared. A host that runs ahead of
 * its device gives no sample: its times of enqueueing say nothing about when the device arrives, and completion, where
 * it is learnt, comes without a time. A slow device shows where its host waits for it before it calls.
 *
 * Time in waits behind other NCCL calls is taken off (it is spent for others), and only members that made the same such
 * calls in between are compared: stages of a pipeline differ by design. A rank counts as late by more than 1 ms and 5 %
 * of the interval over the median, if the others' waits behind the call show it. One late step is nothing; late in 30
 * of 32 looks is a note; in 60 of 64, by a tenth of the interval and 5 ms, suspected. With jitter alone, two ranks come
 * to the latter once in 10^14 looks.
 *
 * Of a step with many calls and one wait, the first call on the communicator behind the wait is looked at. A wait for
 * an event counts where its place among the rank's calls is known. With an event at an unknown place, or a wait for a
 * stream without NCCL calls of its own, the host may be let go before the call is over, at a time of its own; steps
 * repeat, so nothing in the times tells that from coming back together. These give no sample.
 *
 * Nothing is done on the path of records: at ticks, a few times a second, the logs of some communicators' members are
 * looked at, within a bound. Where it is met in the middle of a large communicator, the next run goes on with the next
 * member. A log that is too short for a step is made longer, within a bound. A counter per record, or arrival times in
 * the slots, were rejected: both are written for every call and read for one in a thousand.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>
#include <string.h>

#define WORK_MAX      32768u     /* log entries that one run may look at */
#define BACK_MAX      2048u      /* of one member */
#define LOGS_MAX      (1u << 19) /* entries by which logs may be made longer, all together: 40 MB */
#define TRIES         20u        /* runs in which the same look waits for members that are fed late */
#define PLACES        4u         /* of the program, per communicator */
#define LATE_NS       1000000u
#define LATE_SHARE    20u /* a 20th of the interval */
#define NOTE_LOOKS    32u
#define NOTE_LATE     30
#define SUSPECT_LOOKS 64u
#define SUSPECT_LATE  60
#define SUSPECT_NS    5000000u
#define SUSPECT_SHARE 10u
#define BLOCK         8u /* intervals whose mean is one point of the trend */
#define BLOCKS_SLOW   3u
#define STRANGERS     64u
#define FRESH         8u   /* looks without being late before a new beginning */
#define STARVED       100u /* permille */
#define CALL_NS_MAX   UINT32_MAX

/* What a member has been like at one place. */
struct lateness {
    uint64_t looks;     /* bit 0 the newest: late */
    uint64_t mean_ns;   /* by how much, over late looks; moving */
    uint64_t own_ns;    /* inside `op`, of that; moving */
    uint8_t op;         /* in which recorded call the most of it passes; NONE: in none */
    uint32_t step, seq; /* since then */
};

struct place {
    uint64_t key;
    uint32_t looks;
    uint64_t interval_ns;    /* moving mean */
    struct lateness *member; /* owned */
    bool noted, suspected, slow_said, slower;
    /* The trend: means of blocks of intervals, without the longest of each. */
    uint32_t in_block, slow_blocks, step, seq;
    uint64_t sum_ns, max_ns, base_ns, blocks;
    uint32_t slow_step, slow_seq;
};

struct stretch;

struct straggler_engine {
    uint64_t run_ns; /* patience clock of the last run */
    uint32_t logs;   /* entries by which logs have been made longer */
    uint32_t next;   /* communicator that is looked at next */
};
STATE_OF_ENGINE(straggler)

/* Who arrives last, as far as it was looked at. */
struct straggler_comm {
    struct stretch *x;  /* of the members that have been looked at; owned; NULL: no look is under way */
    uint32_t at;        /* the next one */
    uint32_t wanted;    /* the call that is looked at */
    uint32_t tries;     /* how often it was waited for a member */
    uint32_t members;   /* room in x */
    uint32_t high;      /* of the communicator when it was looked at last */
    uint32_t seq;       /* newest call that was looked at, plus one */
    uint32_t strangers; /* looks at other places than those below, since one of them made room */
    struct place place[PLACES];
};
STATE_OF_COMM(straggler)

/* One member between two calls. All times by its own clock. */
struct stretch {
    uint64_t before, call;       /* tickets of n and n + 1 */
    uint64_t release, back;      /* its host came back from n, from n + 1 */
    uint64_t arrive_ns, wait_ns; /* time to n + 1, less what was for others; time inside the wait behind n + 1 */
    uint64_t mix;                /* of the calls in between */
    uint64_t inside_ns;          /* the longest sum of times inside recorded calls of one kind */
    uint8_t inside_op;
    uint64_t late_ns;
};

static bool synchronises(enum roll_op op)
{
    return roll_op_has(op, ROLL_TRAIT_MEETS);
}

static bool is_nccl(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
}

/* The host, in whichever of its threads, has come back from a wait behind the call. */
static bool is_wait_for(const struct roll_record *wait, const struct roll_record *call)
{
    bool returned = roll_op_class(wait->op) == ROLL_CLASS_SYNC && roll_seal_state(wait->seal) >= ROLL_STATE_RETURNED;
    bool behind = wait->op != ROLL_OP_EVENT_SYNC || roll_seal_ticket(call->seal) + 1 < wait->count;
    return returned && behind && wait->result == 0 &&
           (wait->op == ROLL_OP_DEVICE_SYNC || (wait->stream != 0 && wait->stream == call->stream));
}

/* How long a call took; false where the record does not say. */
static bool lasted(const struct source *s, const struct roll_record *rec, uint64_t *ns)
{
    *ns = rec->call_ns;
    return rec->call_ns != CALL_NS_MAX || stuck_long_wait(s, roll_seal_ticket(rec->seal), ns);
}

/* The first wait for the call with this ticket, before `upto`. */
static const struct roll_record *wait_behind(const struct source *s, uint64_t ticket, uint64_t upto, uint32_t *work)
{
    const struct entry *call = source_entry(s, ticket);
    for (uint64_t t = ticket + 1; call && t < upto && spend(work); t++) {
        const struct entry *entry = source_entry(s, t);
        if (!entry) {
            return NULL;
        }
        if (is_wait_for(&entry->rec, &call->rec)) {
            return &entry->rec;
        }
    }
    return NULL;
}

/* What passed between the host's return and its call: its own time, that for others, and inside which calls. */
static bool sum_up(const struct source *s, struct stretch *x, const struct roll_record *first,
                   const struct roll_record *call, uint32_t *work)
{
    uint64_t others = 0, inside[256] = {0};
    bool busy = false; /* NCCL calls since the last wait */
    for (uint64_t t = roll_seal_ticket(first->seal) + 1; t < x->call && spend(work); t++) {
        const struct entry *entry = source_entry(s, t);
        uint64_t ns;
        if (!entry || !lasted(s, &entry->rec, &ns)) {
            return false;
        }
        enum roll_op_class class = roll_op_class(entry->rec.op);
        if (is_nccl(&entry->rec)) {
            busy = true;
            x->mix = say_key(x->mix, entry->rec.op, entry->rec.count, entry->rec.dtype);
        }
        bool own = entry->rec.thread == call->thread || entry->rec.thread == first->thread;
        if (class == ROLL_CLASS_SYNC && busy && own) {
            others += ns;
            busy = false;
        } else if (class != ROLL_CLASS_MOE && own) {
            inside[entry->rec.op] += ns;
        }
    }
    if (call->enter_ns < x->release || others > call->enter_ns - x->release) {
        return false;
    }
    x->arrive_ns = call->enter_ns - x->release - others;
    for (unsigned op = 0; op < 256; op++) {
        if (inside[op] > x->inside_ns) {
            x->inside_ns = inside[op];
            x->inside_op = (uint8_t)op;
        }
    }
    return true;
}

static bool measure(const struct source *s, struct stretch *x, uint32_t *work)
{
    const struct entry *call = source_entry(s, x->call);
    const struct roll_record *first = wait_behind(s, x->before, x->call, work);
    const struct roll_record *last = first ? wait_behind(s, x->call, s->next, work) : NULL;
    uint64_t first_ns, last_ns;
    if (!call || !last || !lasted(s, first, &first_ns) || !lasted(s, last, &last_ns)) {
        return false;
    }
    x->release = first->enter_ns + first_ns;
    x->back = last->enter_ns + last_ns;
    x->wait_ns = last_ns;
    return x->back > x->release && sum_up(s, x, first, &call->rec, work) && *work > 0;
}

static bool is_here(const struct source *s, const struct entry *entry, const struct member *m)
{
    return entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
           source_member(s, entry->rec.comm) == m;
}

/* The two are neighbours of one kind that can be compared. */
static bool is_plain(const struct entry *a, const struct entry *b)
{
    return b->rec.seq == a->rec.seq + 1 && b->rec.thread == a->rec.thread && a->rec.group == 0 && b->rec.group == 0 &&
           synchronises(a->rec.op) && ((a->rec.flags | b->rec.flags) & ROLL_FLAG_CAPTURED) == 0;
}

/*
 * The newest two neighbouring calls of the member between and behind which its host waited. seq: number of the second;
 * NO_SEQ: any. Walks back from `from` over what the log still holds, within the bound. *end: its log holds no more.
 */
static bool find_stretch(const struct source *s, const struct member *m, uint64_t from, uint32_t *seq,
                         struct stretch *x, uint32_t *work, bool *end)
{
    uint64_t later = 0, n = 0; /* ticket + 1 of the call after the one that is looked at */
    uint64_t t = from;
    for (; t > 0 && n < BACK_MAX && s->next - t <= s->log_mask && spend(work); t--, n++) {
        const struct entry *entry = source_entry(s, t - 1);
        if (!is_here(s, entry, m)) {
            continue;
        }
        const struct entry *second = later ? source_entry(s, later - 1) : NULL;
        *x = (struct stretch){.before = t - 1, .call = later ? later - 1 : 0};
        if (second && is_plain(entry, second) && (*seq == NO_SEQ || second->rec.seq == *seq) && measure(s, x, work)) {
            *seq = second->rec.seq;
            return true;
        }
        if (*seq != NO_SEQ && entry->rec.seq < *seq) {
            return false;
        }
        later = t;
    }
    *end = t > 0 && s->next - t > s->log_mask;
    return false;
}

/* The same for a further member: ranks run one program, so the call usually stands where the first one has it. */
static bool find_same(const struct source *s, const struct member *m, uint64_t ticket, uint32_t *seq, struct stretch *x,
                      uint32_t *work, bool *end)
{
    const struct entry *entry = source_entry(s, ticket);
    bool here = is_here(s, entry, m) && entry->rec.seq == *seq;
    return find_stretch(s, m, here ? ticket + 1 : s->next, seq, x, work, end);
}

/* --- one look at a communicator --- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Lower median: of two the smaller. */
static uint64_t median(uint64_t *value, uint32_t n)
{
    qsort(value, n, sizeof(*value), by_size);
    return value[(n - 1) / 2];
}

/* A step that its log does not hold: it is given more room, where that is not too much for all together. */
static void want_longer_log(struct roll_engine *e, struct source *s)
{
    uint64_t room = s->log ? s->log_mask + 1 : 0;
    struct straggler_engine *own = straggler_of_engine(e);
    if (room != 0 && room < BACK_MAX && room <= LOGS_MAX - own->logs && source_log_grow(s) == 0) {
        own->logs += (uint32_t)room;
    }
}

enum measured {
    MEASURE_NONE, /* some member has no such stretch, or they may not be compared */
    MEASURE_ALL,
    MEASURE_MORE,  /* the bound was met */
    MEASURE_LATER, /* the next member has not come to it, or back from it; or its news have not come yet */
};

/* Whether all members have a stretch that ends with the same call, and may be compared. Goes on where it ended. */
static enum measured measure_all(struct roll_engine *e, const struct comm *c, uint32_t *work)
{
    struct straggler_comm *lag = straggler_of_comm(c);
    for (; lag->at < c->size; lag->at++) {
        const struct member *m = &c->member[lag->at];
        struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        struct stretch *x = &lag->x[lag->at];
        bool whole = *work == WORK_MAX, end = false;
        if (*work == 0) {
            return MEASURE_MORE;
        }
        /* Hosts that do not wait, or have not for long, run ahead. */
        if (!s || !stuck_of_source(s) || s->next - stuck_of_source(s)->last > BACK_MAX || m->unsure || m->gone ||
            s->proc != ROLL_PROC_RUNNING) {
            return MEASURE_NONE;
        }
        bool found = lag->at == 0 ? find_stretch(s, m, s->next, &lag->wanted, x, work, &end)
                                  : find_same(s, m, lag->x[0].call, &lag->wanted, x, work, &end);
        if (!found) {
            if (end) {
                want_longer_log(e, s);
            }
            bool later = lag->at > 0 && *work > 0 && !end && lag->tries++ < TRIES;
            return *work == 0 && !whole ? MEASURE_MORE : later ? MEASURE_LATER : MEASURE_NONE;
        }
        if (x->mix != lag->x[0].mix || lag->wanted < lag->seq) {
            return MEASURE_NONE;
        }
    }
    return MEASURE_ALL;
}

static struct place *place_of(struct comm *c, uint64_t key)
{
    struct straggler_comm *lag = straggler_of_comm(c);
    struct place *p = &lag->place[0];
    for (uint32_t i = 0; i < PLACES; i++) {
        if (lag->place[i].key == key) {
            return &lag->place[i];
        }
        p = lag->place[i].looks < p->looks ? &lag->place[i] : p;
    }
    if (p->key != 0 && p->looks > BLOCK && ++lag->strangers < STRANGERS) {
        return NULL; /* all are in use; those of a phase that is over make room in the end */
    }
    lag->strangers = 0;
    free(p->member);
    *p = (struct place){.key = key, .member = calloc(c->size, sizeof(*p->member))};
    if (!p->member) {
        p->key = 0;
        return NULL;
    }
    return p;
}

static uint64_t moving(uint64_t mean, uint64_t value, bool first)
{
    return first ? value : mean - mean / 8 + value / 8;
}

static void note_member(struct lateness *l, const struct stretch *x, bool late, const struct roll_record *rec)
{
    if (late && (l->looks & ((1u << FRESH) - 1)) == 0) {
        *l = (struct lateness){.looks = l->looks, .step = rec->step, .seq = rec->seq};
    }
    if (late) {
        bool first = l->mean_ns == 0;
        l->mean_ns = moving(l->mean_ns, x->late_ns, first);
        l->own_ns = moving(l->own_ns, x->inside_ns, first || l->op != x->inside_op);
        l->op = x->inside_op;
    }
    l->looks = l->looks << 1 | late;
}

/* How late each is, over the median, if the others' waits bear it out. False: this look says nothing. */
static bool judge(const struct comm *c, struct stretch *x, uint64_t *scratch, uint64_t *interval)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        scratch[r] = x[r].back - x[r].release;
    }
    *interval = median(scratch, c->size);
    for (uint32_t r = 0; r < c->size; r++) {
        scratch[r] = x[r].arrive_ns;
    }
    uint64_t usual = median(scratch, c->size);
    for (uint32_t r = 0; r < c->size; r++) {
        x[r].late_ns = x[r].arrive_ns > usual ? x[r].arrive_ns - usual : 0;
        most = x[r].late_ns > most ? x[r].late_ns : most;
        scratch[r] = x[r].wait_ns;
    }
    qsort(scratch, c->size, sizeof(*scratch), by_size);
    /* Half of the members, those that wait longest, wait for the latest: their waits are as long as it is late. */
    bool borne = scratch[c->size / 2] >= most / 2;
    return *interval > 0 && borne;
}

/* --- words --- */

static void words_since(struct words *w, uint32_t step, uint32_t seq)
{
    if (step != ROLL_STEP_NONE) {
        words_add(w, "step %u (#%u)", step, seq);
    } else {
        words_add(w, "#%u", seq);
    }
}

static void words_spent(struct words *w, const struct lateness *l)
{
    if (l->op != ROLL_OP_NONE && l->own_ns >= l->mean_ns / 2) {
        bool wait = roll_op_class(l->op) == ROLL_CLASS_SYNC;
        words_add(w, " It spends the time inside %s (%.1f ms)%s.", roll_op_name(l->op), (double)l->own_ns / 1e6,
                  wait ? ", where it waits for its own device" : "");
    } else {
        words_add(w, " The time passes outside all recorded calls: in its own host code (data loading, Python, a "
                     "starved CPU). While it runs, `rollcall stacks` shows where.");
    }
}

static void speak(struct roll_engine *e, struct comm *c, struct place *p, const struct roll_rankset *late,
                  uint32_t worst, const struct stretch *x, enum roll_certainty certainty)
{
    const struct lateness *l = &p->member[worst];
    const struct source *s = e->source[c->member[worst].source];
    const struct entry *call = source_entry(s, x[worst].call);
    struct roll_verdict *v = call ? say(e, ROLL_VERDICT_STRAGGLER, certainty) : NULL;
    if (!v) {
        return;
    }
    bool one = roll_rankset_count(late) == 1;
    uint32_t of = certainty == ROLL_NOTE ? NOTE_LOOKS : SUSPECT_LOOKS;
    uint64_t mask = of == 64 ? UINT64_MAX : (1ull << of) - 1;
    (void)roll_rankset_copy(&v->culprits, late);
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && !roll_rankset_has(late, world)) {
            (void)roll_rankset_add(&v->waiting, world);
        }
    }
    say_comm(v, c, call->rec.seq);
    say_side(v, s, c->member[worst].source, late, &call->rec);
    struct words w = {.used = 0};
    words_ranks(&w, late);
    words_add(&w, one ? " arrives last at " : " arrive last at ");
    words_call(&w, &call->rec);
    words_add(&w, " on ");
    words_comm(&w, c);
    words_add(&w, ", in %d of the last %u that were looked at, by %.1f ms of the %.1f ms from one to the next",
              __builtin_popcountll(l->looks & mask), of, (double)l->mean_ns / 1e6, (double)p->interval_ns / 1e6);
    words_add(&w, "%s, since ", one ? "" : " (the latest of them)");
    words_since(&w, l->step, l->seq);
    words_add(&w, "; ");
    words_wait(&w, &v->waiting);
    words_add(&w, " for it there each time.");
    words_spent(&w, l);
    words_add(
        &w,
        " Slow, not stuck. Counted from the return of all hosts from the call before, so the nodes' clocks do not "
        "matter; these hosts wait behind each of the two calls, so they do not run ahead of their devices there.%s",
        certainty == ROLL_NOTE ? "" : " Suspected: what the rank does meanwhile may be its job.");
    say_text(e, v, "%s", w.text);
}

static void tell_late(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x, bool suspect)
{
    uint64_t mask = suspect ? UINT64_MAX : (1ull << NOTE_LOOKS) - 1;
    struct roll_rankset late = {0};
    uint32_t worst = 0, count = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct lateness *l = &p->member[r];
        bool heavy = !suspect || (l->mean_ns >= SUSPECT_NS && l->mean_ns >= p->interval_ns / SUSPECT_SHARE);
        if (heavy && __builtin_popcountll(l->looks & mask) >= (suspect ? SUSPECT_LATE : NOTE_LATE)) {
            worst = count == 0 || l->mean_ns > p->member[worst].mean_ns ? r : worst;
            count++;
            (void)roll_rankset_add(&late, comm_world(e, c, r));
        }
    }
    uint64_t key = say_key(ROLL_VERDICT_STRAGGLER, c->key, worst, suspect);
    if (count > 0 && count * 2 <= c->size) {
        p->noted = true;
        p->suspected = p->suspected || suspect;
        if (say_once(e, key)) {
            speak(e, c, p, &late, worst, x, suspect ? ROLL_SUSPECTED : ROLL_NOTE);
        }
    }
    roll_rankset_fini(&late);
}

/* --- steps that get longer --- */

static void tell_slow(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x, uint64_t now_ns)
{
    const struct source *s = e->source[c->member[0].source];
    const struct entry *call = source_entry(s, x[0].call);
    p->slow_said = true;
    struct roll_verdict *v = call && say_once(e, say_key(ROLL_VERDICT_STRAGGLER, c->key, 0, 3))
                                 ? say(e, ROLL_VERDICT_STRAGGLER, ROLL_NOTE)
                                 : NULL;
    if (!v) {
        return;
    }
    struct roll_rankset all = {0};
    for (uint32_t r = 0; r < c->size; r++) {
        (void)roll_rankset_add(&all, comm_world(e, c, r));
    }
    say_comm(v, c, call->rec.seq);
    say_side(v, s, c->member[0].source, &all, &call->rec);
    struct words w = {.used = 0};
    words_add(&w, "From one ");
    words_call(&w, &call->rec);
    words_add(&w, " to the next on ");
    words_comm(&w, c);
    words_add(&w, " the job takes %.1f ms now, and took %.1f ms: it has been slower since ", (double)now_ns / 1e6,
              (double)p->base_ns / 1e6);
    words_since(&w, p->slow_step, p->slow_seq);
    words_add(&w, ". No rank arrives last more often than others: all are slower, or their devices are.");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&all);
}

/* The mean of eight intervals without the longest is one point; three points in a row of half as much again than the
 * least so far are a trend. */
static void follow_trend(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x,
                         uint64_t interval, const struct roll_record *rec)
{
    if (p->in_block == 0) {
        p->step = rec->step;
        p->seq = rec->seq;
        p->sum_ns = p->max_ns = 0;
    }
    p->sum_ns += interval;
    p->max_ns = interval > p->max_ns ? interval : p->max_ns;
    if (++p->in_block < BLOCK) {
        return;
    }
    uint64_t mean = (p->sum_ns - p->max_ns) / (BLOCK - 1);
    p->in_block = 0;
    if (p->blocks++ < 2 || mean <= p->base_ns) { /* the first ones: the job warms up */
        p->base_ns = mean;
        p->slow_blocks = 0;
        p->slower = false;
        return;
    }
    bool slow = mean - p->base_ns >= p->base_ns / 2 && mean - p->base_ns >= LATE_NS;
    if (mean - p->base_ns < p->base_ns / 10) {
        p->slower = false;
    } else if (!p->slower) { /* where it began, as far as anything can be told from jitter */
        p->slower = true;
        p->slow_step = p->step;
        p->slow_seq = p->seq;
    }
    p->slow_blocks = slow ? p->slow_blocks + 1 : 0;
    if (p->slow_blocks >= BLOCKS_SLOW && !p->slow_said && !p->noted) {
        tell_slow(e, c, p, x, mean);
    }
}

/* When nobody is late there any more, the next one is a new case. */
static void forget_recovered(const struct comm *c, struct place *p)
{
    int most = 0;
    for (uint32_t r = 0; p->noted && r < c->size; r++) {
        int late = __builtin_popcountll(p->member[r].looks & ((1ull << NOTE_LOOKS) - 1));
        most = late > most ? late : most;
    }
    if (p->noted && most < NOTE_LATE / 4) {
        p->noted = p->suspected = false;
    }
}

/* All members have been measured. */
static void take_look(struct roll_engine *e, struct comm *c, struct stretch *x, uint64_t *scratch)
{
    struct straggler_comm *lag = straggler_of_comm(c);
    uint32_t seq = lag->wanted;
    const struct entry *call = source_entry(e->source[c->member[0].source], x[0].call);
    uint64_t interval;
    if (!call || !judge(c, x, scratch, &interval)) {
        return;
    }
    lag->seq = seq + 1;
    struct place *p = place_of(c, say_key(call->rec.op, call->rec.count, call->rec.callsite, 1));
    if (!p) {
        return;
    }
    p->interval_ns = moving(p->interval_ns, interval, p->looks == 0);
    p->looks++;
    for (uint32_t r = 0; r < c->size; r++) {
        bool late = x[r].late_ns >= LATE_NS && x[r].late_ns >= interval / LATE_SHARE;
        note_member(&p->member[r], &x[r], late, &call->rec);
    }
    forget_recovered(c, p);
    if (p->looks >= NOTE_LOOKS && !p->noted) {
        tell_late(e, c, p, x, false);
    }
    if (p->looks >= SUSPECT_LOOKS && !p->suspected) {
        tell_late(e, c, p, x, true);
    }
    follow_trend(e, c, p, x, interval, &call->rec);
}

/* Begins to look at a communicator, or goes on. False: the bound was met, and the next run goes on here. */
static bool look(struct roll_engine *e, struct comm *c, uint32_t *work)
{
    struct straggler_comm *lag = straggler_of_comm(c);
    if (!lag->x) {
        lag->x = malloc(c->size * sizeof(*lag->x));
        lag->at = lag->tries = 0;
        lag->members = c->size;
        lag->wanted = NO_SEQ;
        lag->high = c->high;
    }
    bool same = lag->x && lag->members == c->size;
    enum measured done = same ? measure_all(e, c, work) : MEASURE_NONE;
    if (done == MEASURE_MORE || done == MEASURE_LATER) {
        return done == MEASURE_LATER;
    }
    uint64_t *scratch = done == MEASURE_ALL ? malloc(c->size * sizeof(*scratch)) : NULL;
    if (scratch) {
        take_look(e, c, lag->x, scratch);
    }
    free(scratch);
    free(lag->x);
    lag->x = NULL;
    return true;
}

static bool worth_a_look(const struct comm *c)
{
    const struct straggler_comm *lag = straggler_of_comm(c);
    return c->size >= 2 && c->seen == c->size && !c->open && !c->muted && !c->aborted && !c->overflow &&
           (!lag || lag->x || c->high > lag->high);
}

static void straggler_tick(struct roll_engine *e)
{
    struct straggler_engine *own = straggler_of_engine(e);
    /* Who is last where CPUs are wanting, or through late eyes, is a matter of those. */
    if (e->finishing || e->comms == 0 || e->starved >= STARVED || e->unheard > 0 ||
        e->clock - own->run_ns < e->config.stall_ns / 5) {
        return;
    }
    own->run_ns = e->clock;
    uint32_t work = WORK_MAX;
    for (uint32_t i = 0; i < e->comms && work > 0; i++) {
        struct comm *c = e->comm[own->next % e->comms];
        if (worth_a_look(c) && straggler_make_comm(c) && !look(e, c, &work)) {
            break;
        }
        own->next++;
    }
}

static void straggler_comm_fini(struct comm *c)
{
    struct straggler_comm *lag = straggler_of_comm(c);
    for (uint32_t i = 0; lag && i < PLACES; i++) {
        free(lag->place[i].member);
    }
    if (lag) {
        free(lag->x);
    }
}

const struct detector detect_straggler = {
    .name = "straggler", ENGINE_STATE(straggler), .tick = straggler_tick, .comm_fini = straggler_comm_fini};
