/*
 * source.c: the log of one rank process, its host threads and its stream queues.
 *
 * The log holds each call until the call is complete, addressed by its ticket: an update (the call has returned) and
 * the evidence of a verdict are found with one index. The log starts small and doubles only while calls really are
 * incomplete; a bound (config.window) ends the growth for a rank whose peers are not traced. What a rank was once apart
 * from its peers does not make its log long for ever: room.c halves it again. To copy records into a
 * list for each communicator was rejected: a call belongs to a communicator, a stream, a thread and a group at once.
 * Beside the log stands a brief of each call, because to read whole records again when calls get complete is most of
 * what that costs where the logs of thousands of ranks are in no cache.
 *
 * A log is made of chunks, which are there where something was written: excerpts of a few hundred records of each of
 * thousands of ranks are most of what an engine holds, and arrays whose size is a power of two were a fifth more, and,
 * when all of them had grown, left as much again in holes that nothing else fits into.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/budget.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_MIN   2u
#define LOG_MIN       256u
#define QUEUE_OF_COMM 4096u /* queue of a communicator's calls whose stream is not known; streams have smaller ids */
#define TURNS_MIN     3u    /* forward, backward, forward, backward: a habit, and no thread that took over for good */
#define POLLS_MIN     4u    /* polls that make a loop */
#define POLL_GAP_MS   125u  /* between two polls of a loop, on average; a host that asks less often does other things */
#define POLL_FRESH_NS 600000000u /* three times what passes between two records of a loop (interposer/cuda/poll.c) */

/* There is room for one more thread. Most ranks have two or three, and room for all would be most of a source. */
static bool has_thread_room(struct source *s)
{
    if (s->threads < s->thread_room) {
        return true;
    }
    uint32_t room = s->thread_room ? 2 * s->thread_room : THREADS_MIN;
    struct thread *thread = realloc(s->thread, room * sizeof(*thread));
    if (thread) {
        s->thread = thread;
        s->thread_room = room;
    }
    return thread != NULL;
}

void source_touch(struct source *s, struct member *m)
{
    if (ROLL_GROW(s->touched, s->touched_room, s->touches + 1) != 0) {
        s->touched_all = true;
        return;
    }
    m->touched = true;
    s->touched[s->touches++] = m;
}

struct member *source_touched(const struct source *s, size_t *i)
{
    if (!s->touched_all) {
        return *i < s->touches ? s->touched[(*i)++] : NULL;
    }
    while (*i < s->members && !s->member[*i]) {
        ++*i;
    }
    return *i < s->members ? s->member[(*i)++] : NULL;
}

void source_untouch(struct source *s)
{
    for (size_t i = 0; i < s->touches; i++) {
        s->touched[i]->touched = false;
    }
    s->touches = 0;
    s->touched_all = false;
}

struct thread *source_thread(struct source *s, uint16_t id)
{
    if (s->threads > 0 && s->thread[s->thread_last].id == id) {
        return &s->thread[s->thread_last];
    }
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].id == id) {
            s->thread_last = i;
            return &s->thread[i];
        }
    }
    if (s->threads == THREADS_MAX || !has_thread_room(s)) {
        s->many_threads = true;
        return NULL;
    }
    s->thread_last = s->threads++;
    s->thread[s->thread_last] = (struct thread){.id = id};
    return &s->thread[s->thread_last];
}

bool source_thread_known(const struct source *s, uint16_t id)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].id == id) {
            return true;
        }
    }
    return false;
}

bool source_hands_over(const struct source *s)
{
    const struct thread *t = s->turn != 0 ? &s->thread[s->turn - 1] : NULL;
    return t && t->inside != 0 && !t->polls && s->turns >= TURNS_MIN && !s->overlaps && !s->many_threads;
}

/* A call is evidence until all others have answered it, even when its own host has left it long ago (sweep.c). */
static bool is_evidence(const struct source *s, const struct entry *entry)
{
    enum roll_op_class class = roll_op_class(entry->rec.op);
    bool counts = class == ROLL_CLASS_P2P || (class == ROLL_CLASS_COLL && entry->rec.count != 0);
    return counts && !entry_complete(s, entry);
}

void source_log_gap(struct source *s, uint64_t upto)
{
    uint64_t first = s->next;
    s->next = upto;
    /* What the place held is further back than the log is long. Without memory the way past the gap is longer. */
    if (s->log && upto > first && source_log_place(s, first) == 0) {
        struct log_chunk *chunk = source_chunk(s, first);
        chunk->entry[first % LOG_CHUNK] = (struct entry){.rec = {.enter_ns = first, .count = upto - first}};
        chunk->brief[first % LOG_CHUNK] = (struct brief){0};
    }
}

/* How many tickets from this one on were skipped by one gap. */
static uint64_t gap_at(const struct source *s, uint64_t ticket)
{
    const struct log_chunk *chunk = source_chunk(s, ticket);
    const struct roll_record *rec = chunk ? &chunk->entry[ticket % LOG_CHUNK].rec : NULL;
    return rec && rec->seal == 0 && rec->enter_ns == ticket ? rec->count : 0;
}

/* The way is no longer than the log, and leads past gaps in one step: tickets come from outside, and may lie 2^54 from
 * each other. */
uint64_t source_log_needed(struct source *s, uint64_t upto)
{
    const struct entry *entry;
    const struct brief *brief;
    uint64_t low = source_log_low(s), there = s->next < upto ? s->next : upto;
    s->kept = s->kept > low ? s->kept : low;
    while (s->kept < there && (!(brief = source_brief_at(s, s->kept)) || brief_complete(s, brief) ||
                               !(entry = source_entry(s, s->kept)) || !is_evidence(s, entry))) {
        uint64_t gap = gap_at(s, s->kept);
        s->kept += gap != 0 && gap < there - s->kept ? gap : 1;
    }
    s->kept = s->kept >= there && s->kept < upto ? upto : s->kept;
    uint64_t oldest = s->kept < upto ? s->kept : upto;
    for (uint32_t i = 0; i < s->queues; i++) {
        if (s->queue[i].head != 0 && s->queue[i].head - 1 < oldest) {
            oldest = s->queue[i].head - 1;
        }
    }
    return oldest;
}

/* Moves the log into one of `room` entries, a power of two. What lies further back than that is left out. */
static int move_log(struct source *s, uint64_t room)
{
    struct source to = {.log = calloc(room / LOG_CHUNK, sizeof(*to.log)), .log_mask = room - 1};
    if (!to.log) {
        return ROLL_E_NOMEM;
    }
    for (uint64_t i = 0; i <= s->log_mask; i++) {
        const struct log_chunk *from = source_chunk(s, i);
        const struct entry *entry = from ? &from->entry[i % LOG_CHUNK] : NULL;
        if (!entry || roll_seal_state(entry->rec.seal) == ROLL_STATE_EMPTY) {
            continue;
        }
        uint64_t ticket = roll_seal_ticket(entry->rec.seal);
        if (s->next - 1 - ticket >= room) {
            continue;
        }
        if (source_log_place(&to, ticket) != 0) {
            source_log_free(&to);
            return ROLL_E_NOMEM;
        }
        source_chunk(&to, ticket)->entry[ticket % LOG_CHUNK] = *entry;
        source_chunk(&to, ticket)->brief[ticket % LOG_CHUNK] = from->brief[i % LOG_CHUNK];
    }
    source_log_free(s);
    s->log = to.log;
    s->log_mask = to.log_mask;
    return 0;
}

int source_log_place(struct source *s, uint64_t ticket)
{
    struct log_chunk **chunk = &s->log[(ticket & s->log_mask) / LOG_CHUNK];
    *chunk = *chunk ? *chunk : calloc(1, sizeof(**chunk));
    return *chunk ? 0 : ROLL_E_NOMEM;
}

void source_log_free(struct source *s)
{
    for (uint64_t i = 0; s->log && i <= s->log_mask / LOG_CHUNK; i++) {
        free(s->log[i]);
    }
    free(s->log);
    s->log = NULL;
}

int source_log_grow(struct source *s)
{
    return move_log(s, (s->log_mask + 1) * 2);
}

int source_log_shrink(struct source *s)
{
    return move_log(s, (s->log_mask + 1) / 2);
}

int source_log_open(struct source *s, uint64_t ticket)
{
    s->log = calloc(LOG_MIN / LOG_CHUNK, sizeof(struct log_chunk *));
    if (!s->log) {
        return ROLL_E_NOMEM;
    }
    s->log_mask = LOG_MIN - 1;
    s->safe = s->kept = ticket;
    return 0;
}

struct entry *source_log_put(struct source *s, const struct roll_record *rec, uint64_t ticket)
{
    struct log_chunk *chunk = source_chunk(s, ticket);
    struct entry *entry = &chunk->entry[ticket % LOG_CHUNK];
    entry->rec = *rec;
    entry->pair = NULL;
    entry->index = 0;
    entry->next = 0;
    chunk->brief[ticket % LOG_CHUNK] = (struct brief){0};
    s->next = ticket + 1;
    return entry;
}

#define WORLDS_MAX (1u << 22) /* a higher rank comes from a damaged frame: its source is kept, and never asked for */

int source_enlist(struct roll_engine *e, struct source *s, uint32_t index)
{
    if (s->world >= WORLDS_MAX) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(e->newest, e->newest_room, s->world + 1u);
    if (rc != 0) {
        return rc;
    }
    const struct source *before = source_newest(e, s->world);
    s->generation = before ? before->generation + 1 : 0;
    e->newest[s->world] = index + 1;
    return 0;
}

struct source *source_newest(const struct roll_engine *e, uint32_t world)
{
    uint32_t index = world < e->newest_room ? e->newest[world] : 0;
    return index ? e->source[index - 1] : NULL;
}

bool source_lacks_room(const struct roll_engine *e, const struct source *s)
{
    const struct source *newest = s->no_room ? source_newest(e, s->world) : NULL;
    return s->no_room && (!newest || newest == s || source_alive(s));
}

static void member_called_from(struct source *s, struct member *m, uint32_t stream, uint16_t thread)
{
    m->many_queues = m->many_queues || (m->queue != 0 && m->queue != stream + 1);
    s->crosses = s->crosses || m->many_queues;
    m->comm->seat[m->rank].queues = m->many_queues ? ALL_QUEUES : queue_bit(stream);
    m->queue = stream + 1;
    m->many_callers = m->many_callers || (m->caller != 0 && m->caller != thread);
    m->caller = thread;
}

int source_queue_open(struct source *s, uint32_t stream)
{
    if (stream < s->queues) {
        return 0;
    }
    int rc = ROLL_GROW_ZERO(s->queue, s->queue_room, stream + 1u);
    s->queues = rc == 0 ? stream + 1 : s->queues;
    return rc;
}

/* The record that says behind which calls this one stands: how far before it, in tickets; 0: there is none. */
static uint64_t behind_link(const struct source *s, const struct roll_record *rec, uint64_t ticket)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
    if ((call && (rec->flags & ROLL_FLAG_REPLAYED) != 0) || rec->op == ROLL_OP_GRAPH_LAUNCH) {
        const struct entry *before = ticket > 0 ? source_entry(s, ticket - 1) : NULL;
        return before && before->rec.op == ROLL_OP_STREAM_WAIT && before->rec.stream == rec->stream &&
                       before->rec.thread == rec->thread
                   ? 1
                   : 0;
    }
    return (call && (rec->flags & ROLL_FLAG_CAPTURED) == 0) || class == ROLL_CLASS_SYNC ? rec->aux : 0;
}

/* Notes a call that is about to go into the queue of its stream, if it is of the common kind. */
static void note_brief(struct source *s, const struct entry *entry, uint64_t ticket)
{
    const uint64_t leaves_early = roll_ops_with(ROLL_TRAIT_LOWERED) & roll_ops_with(ROLL_TRAIT_ROOT);
    const struct roll_record *rec = &entry->rec;
    if (rec->group == 0 && source_state(s, entry) == COLL_ISSUED && roll_op_class(rec->op) == ROLL_CLASS_COLL &&
        !roll_op_among(rec->op, leaves_early) && behind_link(s, rec, ticket) == 0) {
        *source_brief(s, entry) = (struct brief){.seq = rec->seq, .comm = rec->comm};
    }
}

/*
 * The call goes behind the one with ticket `tail`. Where that is the member's collective before this one, and nothing
 * else keeps this one from running, it is ready once that one is complete, and need not be looked at for that
 * (comm_advance). Calls of other kinds are units with others, or are over for some members before they are complete.
 */
static void join_tail(struct source *s, const struct member *m, uint64_t tail, uint64_t ticket)
{
    struct log_chunk *at = source_chunk(s, tail);
    struct brief *before = &at->brief[tail % LOG_CHUNK];
    struct brief *brief = source_brief_at(s, ticket);
    if (ticket - tail <= BRIEF_NEXT_MOST) {
        before->next = (ticket - tail) & BRIEF_NEXT_MOST;
    } else {
        at->entry[tail % LOG_CHUNK].next = (uint32_t)(ticket - tail);
    }
    if (m && !m->many_queues && brief->comm != 0 && brief->comm == before->comm && brief->seq == before->seq + 1 &&
        brief->seq >= m->comm->base && brief->seq < m->comm->high && s->fog_last <= tail) {
        brief->state = COLL_CHAINED;
        comm_slot(m->comm, brief->seq)->chained++;
    }
}

int source_queue_push(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket)
{
    uint32_t stream = entry->rec.stream;
    if (stream == 0 && (entry->rec.flags & ROLL_FLAG_PLUGIN) != 0) {
        /* Old profiler interfaces do not tell the stream. With one stream for all calls there would be circles that are
         * none. */
        stream = QUEUE_OF_COMM + entry->rec.comm;
    }
    if (entry->rec.group != 0) {
        /* NCCL joins the streams that a group uses on one communicator, and launches on the first of them. */
        struct thread *t = source_thread(s, entry->rec.thread);
        if (t && t->group == entry->rec.group) {
            uint32_t i = 0;
            while (i < t->joins && t->joined[i].comm != entry->rec.comm) {
                i++;
            }
            if (i == t->joins && i < GROUP_COMMS) {
                t->joined[i].comm = entry->rec.comm;
                t->joined[i].stream = stream;
                t->joins++;
            }
            stream = i < t->joins ? t->joined[i].stream : stream;
        }
    }
    if (stream >= s->queues) {
        budget_charge(e, s, (stream + 1u - s->queues) * sizeof(*s->queue));
    }
    int rc = source_queue_open(s, stream);
    if (rc != 0) {
        return rc;
    }
    struct queue *q = &s->queue[stream];
    struct member *m = source_member(s, entry->rec.comm);
    if (m && (m->queue != stream + 1 || m->caller != entry->rec.thread)) {
        member_called_from(s, m, stream, entry->rec.thread);
    }
    s->crosses = s->crosses || behind_link(s, &entry->rec, ticket) != 0;
    note_brief(s, entry, ticket);
    /* The log holds the tail, because it keeps all calls from the oldest head of a queue on. */
    if (q->tail != 0 && ticket - (q->tail - 1) <= UINT32_MAX && source_chunk(s, q->tail - 1)) {
        join_tail(s, m, q->tail - 1, ticket);
    } else {
        q->head = ticket + 1;
        q->since = e->clock;
        q->marked = false;
        source_stir_queues(e, s->number, queue_bit(stream));
    }
    q->tail = ticket + 1;
    return 0;
}

uint32_t source_behind(const struct source *s, const struct entry *entry, uint64_t ticket, uint64_t *out)
{
    uint64_t far = behind_link(s, &entry->rec, ticket);
    uint32_t n = 0;
    /* Each link leads further back, and their number is bounded for records that were made up. */
    for (uint32_t links = 0; far != 0 && far <= ticket && links <= ROLL_BEHIND_MAX; links++) {
        ticket -= far;
        const struct entry *at = source_entry(s, ticket);
        far = 0;
        if (at && at->rec.op == ROLL_OP_STREAM_WAIT) {
            for (unsigned i = 0; i < ROLL_BEHIND_PACKED; i++) {
                uint64_t one = roll_behind_packed(at->rec.count, i);
                if (one != 0 && one <= ticket && n < ROLL_BEHIND_MAX && source_entry(s, ticket - one)) {
                    out[n++] = ticket - one;
                }
            }
            far = at->rec.aux;
        } else if (at && n < ROLL_BEHIND_MAX) {
            out[n++] = ticket;
        }
    }
    return n;
}

struct queue *source_before(struct source *s, uint64_t ticket)
{
    const struct entry *entry = source_entry(s, ticket);
    struct queue *q = entry && entry->rec.stream < s->queues ? &s->queue[entry->rec.stream] : NULL;
    return q && q->head != 0 && q->head - 1 <= ticket ? q : NULL;
}

bool source_group_open(const struct source *s, const struct roll_record *rec)
{
    if (rec->group == 0) {
        return false;
    }
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].id == rec->thread) {
            return s->thread[i].group == rec->group;
        }
    }
    return false;
}

bool source_unsettled(const struct source *s, const struct roll_record *rec)
{
    if (roll_seal_state(rec->seal) < ROLL_STATE_RETURNED || (call_failed(rec) && !call_declined(rec)) ||
        source_group_open(s, rec)) {
        return true;
    }
    for (uint32_t i = 0; rec->group != 0 && i < s->threads; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        if (in && in->rec.op == ROLL_OP_GROUP_END && source_same_unit(&in->rec, rec)) {
            return true;
        }
    }
    return false;
}

uint64_t source_wall(const struct source *s, const struct roll_record *rec)
{
    return rec->enter_ns + (uint64_t)s->offset;
}

uint64_t source_line(const struct source *s, const struct roll_record *rec)
{
    return rec->enter_ns + (uint64_t)s->line;
}

void source_set_line(struct source *s, int64_t offset)
{
    uint64_t step = (uint64_t)offset - (uint64_t)s->line;
    uint64_t *const noted[] = {&s->last_line, &s->back_wall, &s->step_wall, &s->again_wall};
    for (size_t i = 0; i < sizeof(noted) / sizeof(noted[0]); i++) {
        *noted[i] += *noted[i] != 0 ? step : 0;
    }
    s->line = offset;
    if ((int64_t)step > 0) { /* what was made before a trouble must not look as if it had been made behind it */
        s->fast_next = s->next;
    }
}

/*
 * The newest record of this loop of polls is young enough to say that the loop goes on. A loop makes five records a
 * second, an older loop one, and each is believed for three times as long as passes until the next. A loop that is
 * older than a minute makes records more rarely (until_next in interposer/cuda/poll.c) and counts as silent in between:
 * to believe its records longer would hold back what the silence of the rank tells.
 */
static bool poll_is_fresh(const struct roll_engine *e, const struct thread *t, const struct roll_record *in)
{
    uint64_t fresh = (uint64_t)in->seq * 600000;
    fresh = fresh < POLL_FRESH_NS ? POLL_FRESH_NS : fresh < 5 * POLL_FRESH_NS ? fresh : 5 * POLL_FRESH_NS;
    return e->clock - t->renewed <= fresh;
}

/*
 * A loop of polls is a wait once the loop has lasted for a stall by the rank's own clock, and while its records keep
 * coming: a thread that polled once and went on to something that nobody records sends none. A poll does not prove that
 * the host does nothing else, so the links that come of it are soft.
 */
static bool poll_waits(const struct roll_engine *e, const struct thread *t, const struct roll_record *in)
{
    bool often = in->aux == UINT16_MAX || (uint64_t)in->aux * POLL_GAP_MS >= in->seq;
    return often && in->aux >= POLLS_MIN && (uint64_t)in->seq * 1000000 >= e->config.stall_ns &&
           poll_is_fresh(e, t, in);
}

struct host_wait source_wait(const struct roll_engine *e, const struct source *s, const struct thread *t,
                             const struct roll_record *in)
{
    bool poll = roll_op_class(in->op) == ROLL_CLASS_POLL;
    bool event = in->op == ROLL_OP_EVENT_SYNC || in->op == ROLL_OP_EVENT_QUERY;
    struct host_wait w = {.upto = t->inside, .waits = !poll || poll_waits(e, t, in), .soft = poll};
    if (event) {
        /* The event stands behind the calls that had been made when it was recorded. Where several threads make calls,
         * or the place is not recorded, calls that came later may stand before it as well. */
        w.vague = in->count == 0 || in->count > t->inside || s->threads > 1;
        w.upto = w.vague ? w.upto : in->count - 1;
        w.soft = w.soft || w.vague;
    }
    return w;
}

void source_polled(struct thread *t, const struct roll_record *rec, bool goes_on)
{
    struct polled now = {.count = rec->count, .stream = rec->stream, .comm = rec->comm, .op = rec->op};
    uint8_t turns = rec->peer > 1 ? (uint8_t)rec->peer : 1, i = 0;
    if (!goes_on || turns != t->turns) {
        t->turns = turns;
        t->named = 0;
    }
    while (i < t->named && (t->thing[i].op != now.op || t->thing[i].stream != now.stream ||
                            t->thing[i].comm != now.comm || t->thing[i].count != now.count)) {
        i++;
    }
    if (i == t->named && i < POLLED_MAX) {
        t->thing[t->named++] = now;
    }
}

/* The call stands in a group, so NCCL only writes it down: the host waits for nobody there, and the end of the group is
 * on its way. */
static bool only_noted(const struct entry *in)
{
    enum roll_op_class class = in ? roll_op_class(in->rec.op) : ROLL_CLASS_SYNC;
    return in && in->rec.group != 0 && (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P);
}

/* A thread that has only ever polled (a watchdog) counts neither as blocked nor as free. */
bool source_blocked(const struct roll_engine *e, const struct source *s)
{
    bool any = false;
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->acts && t->inside ? source_entry(s, t->inside - 1) : NULL;
        if (t->acts && (t->inside == 0 || (t->polls && !(in && poll_waits(e, t, &in->rec))) || only_noted(in))) {
            return false;
        }
        any = any || t->acts;
    }
    return any && !s->many_threads;
}

bool source_polls(const struct source *s)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        if (s->thread[i].acts && s->thread[i].polls && s->thread[i].inside != 0) {
            return true;
        }
    }
    return false;
}

void source_news(const struct roll_engine *e, struct source *s)
{
    s->seen = e->clock;
    s->calm = e->calm;
}

bool source_quiet(const struct roll_engine *e, const struct source *s, uint64_t ns)
{
    return !s->unheard && e->calm > s->calm && e->calm - s->calm >= ns;
}

bool source_polls_after(const struct roll_engine *e, const struct source *s, uint64_t clock)
{
    bool after = true;
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->acts && t->polls && t->inside ? source_entry(s, t->inside - 1) : NULL;
        bool polls = in && poll_is_fresh(e, t, &in->rec);
        after = after && (!polls || t->renewed > clock);
    }
    return after;
}

bool source_certain(struct source *s, const struct roll_record *rec)
{
    if (s->gap) {
        s->gap = false;
        s->in_gap = true;
        s->gap_step = rec->step;
    }
    s->in_gap = s->in_gap && s->gap_step == rec->step;
    return !s->in_gap;
}

uint32_t source_index(const struct roll_engine *e, const struct source *s)
{
    return s && s->number < e->sources && e->source[s->number] == s ? s->number : NO_SOURCE;
}

bool source_holds(const struct source *s, uint64_t ticket, const struct member *m, uint32_t seq)
{
    const struct entry *entry = source_entry(s, ticket);
    return entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.seq == seq && entry->rec.count != 0 &&
           source_state(s, entry) != COLL_REFUSED && source_member(s, entry->rec.comm) == m;
}

uint64_t source_ticket_of(const struct source *s, const struct member *m, uint32_t seq)
{
    uint64_t low = source_log_low(s);
    for (uint64_t ticket = s->next; ticket-- > low;) {
        if (source_holds(s, ticket, m, seq)) {
            return ticket;
        }
    }
    return NO_TICKET;
}
