/*
 * detect_straggler.c: slow, not stuck: a rank that arrives last at most collectives of a communicator, and jobs whose
 * steps get longer.
 *
 * Host times are times of enqueueing, and the clocks of nodes differ by seconds. Neither matters for the collectives n
 * and n + 1 of a communicator when every member's host came back from a wait for n before it enqueued n + 1, and then
 * waited for n + 1. Nobody leaves call n before all have arrived, so all hosts come back from it at one instant,
 * whatever their clocks say, and the device has nothing left to do there. So the time from that return to the next
 * call, by the rank's own clock, is how late the rank arrives. No clocks are compared. A host that runs ahead of its
 * device gives no sample: its times of enqueueing do not say when the device arrives, and completion, where it is
 * learnt, has no time. A slow device shows where its host waits for it before the call.
 *
 * Time in waits behind other NCCL calls is taken off, because it is spent for others, and only members that made the
 * same NCCL calls in between are compared: stages of a pipeline differ by design. A rank counts as late when it comes
 * more than 1 ms and 5 % of the interval after the median, if the others' waits behind the call confirm it. One late
 * step means nothing. Late in 30 of 32 looks is a note; late in 60 of 64 looks, by a tenth of the interval and 5 ms, is
 * suspected. With jitter alone, two ranks come to the latter once in 10^14 looks.
 *
 * Of a step with many calls and one wait, the first call on the communicator behind the wait is looked at. A wait for
 * an event counts where the place of the event among the rank's calls is known. A wait for an event at an unknown
 * place, or for a stream without NCCL calls, gives no sample: it may let the host go before the call is over, at a time
 * of its own, and as steps repeat, the times do not show it.
 *
 * Nothing is done on the path of records. At ticks, a few times a second and within a bound, the detector looks at the
 * logs of some communicators' members. Where the bound is met in the middle of a large communicator, the next run goes
 * on with the next member. A log that is too short for a step is made longer, within a bound. A counter per record, or
 * arrival times in the slots, were rejected: both are written for every call and read for one in a thousand.
 */
#include "daemon/engine/detect/straggler.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS_SLOW 3u
#define BLOCK       8u  /* intervals whose mean is one point of the trend */
#define LATE_SHARE  20u /* late: by a 20th of the interval */
#define LATE_NS     1000000u
#define WORK_MAX    32768u     /* log entries that one run may look at */
#define LOGS_MAX    (1u << 19) /* entries by which all logs together may be made longer: 40 MB */
#define TRIES       20u        /* runs in which one look waits for members that are fed late */
#define STRANGERS   64u
#define FRESH       8u   /* a late look after so many that were not late begins a new case */
#define STARVED     100u /* permille */

struct straggler_engine {
    uint64_t run_ns; /* patience clock of the last run */
    uint32_t logs;   /* entries by which logs have been made longer */
    uint32_t next;   /* communicator that is looked at next */
};
STATE_OF_ENGINE(straggler)

/* one look at a communicator */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Lower median: of two middle values the smaller. */
static uint64_t median(uint64_t *value, uint32_t n)
{
    qsort(value, n, sizeof(*value), by_size);
    return value[(n - 1) / 2];
}

/* Makes a log longer that does not hold a whole step, if all logs together stay within their bound. */
static void want_longer_log(struct roll_engine *e, struct source *s)
{
    uint64_t room = s->log ? s->log_mask + 1 : 0;
    struct straggler_engine *own = straggler_of_engine(e);
    if (room != 0 && room < BACK_MAX && room <= LOGS_MAX - own->logs && source_log_grow(s) == 0) {
        own->logs += (uint32_t)room;
    }
}

enum measured {
    MEASURE_NONE, /* some member has no such stretch, or the members cannot be compared */
    MEASURE_ALL,
    MEASURE_MORE, /* the bound was met */
    /* The next member has not made the call yet, or not come back from it, or its records have not come yet. */
    MEASURE_LATER,
};

/* Measures the members one after the other, from lag->at on. MEASURE_ALL: each has a stretch that ends with the same
 * call, and they can be compared. */
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
        /* A host that has not waited for long, or never, runs ahead of its device. */
        if (!s || !stuck_of_source(s) || s->next - stuck_of_source(s)->last > BACK_MAX || m->unsure || m->gone ||
            s->proc != ROLL_PROC_RUNNING) {
            return MEASURE_NONE;
        }
        bool found = lag->at == 0 ? straggler_find_stretch(s, m, s->next, &lag->wanted, x, work, &end)
                                  : straggler_find_same(s, m, lag->x[0].call, &lag->wanted, x, work, &end);
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
        return NULL; /* all places are in use; the places of a phase that is over give way in the end */
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
        *l = (struct lateness){.looks = l->looks, .sum_ns = l->sum_ns, .step = rec->step, .seq = rec->seq};
    }
    if (late) {
        bool first = l->mean_ns == 0;
        l->mean_ns = moving(l->mean_ns, x->late_ns, first);
        l->own_ns = moving(l->own_ns, x->inside_ns, first || l->op != x->inside_op);
        l->op = x->inside_op;
    }
    l->sum_ns += x->late_ns;
    l->looks = l->looks << 1 | late;
}

/* Finds out how much later than the median each member came. False: the waits of the others do not confirm it, and this
 * look means nothing. */
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
    /* The half of the members that wait longest wait for the latest one, so their waits are as long as that one is
     * late. */
    bool borne = scratch[c->size / 2] >= most / 2;
    return *interval > 0 && borne;
}

/* steps that get longer */

/* Follows the trend. The mean of eight intervals without the longest one is one point. Three points in a row that are
 * half as much again as the least point so far are a trend. */
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
    if (p->blocks++ < 2 || mean <= p->base_ns) { /* the first points: the job is warming up */
        p->base_ns = mean;
        p->slow_blocks = 0;
        p->slower = false;
        return;
    }
    bool slow = mean - p->base_ns >= p->base_ns / 2 && mean - p->base_ns >= LATE_NS;
    if (mean - p->base_ns < p->base_ns / 10) {
        p->slower = false;
    } else if (!p->slower) { /* as far as jitter allows to tell, this is where the trend began */
        p->slower = true;
        p->slow_step = p->step;
        p->slow_seq = p->seq;
    }
    p->slow_blocks = slow ? p->slow_blocks + 1 : 0;
    if (p->slow_blocks >= BLOCKS_SLOW && !p->slow_said && !p->noted) {
        straggler_tell_slow(e, c, p, x, mean);
    }
}

/* When nobody comes late at a place any more, the next late member is a new case. */
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

/* Judges a look in which all members have been measured. */
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
    p->all_ns += interval;
    p->looks++;
    for (uint32_t r = 0; r < c->size; r++) {
        bool late = x[r].late_ns >= LATE_NS && x[r].late_ns >= interval / LATE_SHARE;
        note_member(&p->member[r], &x[r], late, &call->rec);
    }
    forget_recovered(c, p);
    if (p->looks >= NOTE_LOOKS && !p->noted) {
        straggler_tell_late(e, c, p, x, false);
    }
    if (p->looks >= SUSPECT_LOOKS && !p->suspected) {
        straggler_tell_late(e, c, p, x, true);
    }
    follow_trend(e, c, p, x, interval, &call->rec);
}

/* Begins or continues a look at a communicator. False: the bound was met, and the next run continues here. */
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
    /* Where CPUs are short, or an agent is silent, who arrives last may be only a matter of that. */
    if (e->finishing || e->comms == 0 || e->starved >= STARVED || e->unheard > 0 ||
        e->clock - own->run_ns < e->config.stall_ns / 5) {
        return;
    }
    own->run_ns = e->clock;
    uint32_t work = WORK_MAX;
    for (uint32_t i = 0; i < e->comms && work > 0; i++) {
        struct comm *c = e->comm[own->next % e->comms];
        if (worth_a_look(c) && comm_has_room(e, c) && straggler_make_comm(c) && !look(e, c, &work)) {
            break;
        }
        own->next++;
    }
}

/* The looks at one place say how late each member comes there. Places are not added up: of the ranks of two
 * communicators, each has been compared with its own. The place with the latest rank counts. */
bool roll_engine_slowest(const roll_engine_t *e, struct roll_view_slowest *out)
{
    bool found = false;
    for (uint32_t i = 0; i < e->comms; i++) {
        const struct comm *c = e->comm[i];
        const struct straggler_comm *lag = straggler_of_comm(c);
        for (uint32_t k = 0; lag && k < PLACES; k++) {
            const struct place *p = &lag->place[k];
            for (uint32_t r = 0; p->looks >= BLOCK && r < c->size && c->size <= lag->members; r++) {
                uint64_t late = p->member[r].sum_ns / p->looks;
                uint32_t world = comm_world(e, c, r);
                if (world != NO_SOURCE && (!found || late > out->late_ns)) {
                    *out = (struct roll_view_slowest){world, late, p->all_ns / p->looks, p->looks};
                    found = true;
                }
            }
        }
    }
    return found;
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
