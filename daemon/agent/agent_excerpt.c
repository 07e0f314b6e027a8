/*
 * agent_excerpt.c: the records that a root asks for of a run that is compared by digests (docs/SCALE.md).
 *
 * An excerpt is a second reader of the ring, which begins where the root wants it to and does send: places first, which
 * say where the rank stands before its first record, then all records, as long as the root wants them, and of the
 * definitions of the ring what these name (agent_defs.c).
 */
#include "daemon/agent/agent_digest_state.h"

#include "daemon/base/clock.h"
#include "daemon/digest/excerpt.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WANTS 65536u /* that an EXCERPT may have */
#define TURNS 64     /* batches of an excerpt that one look sends of one ring */
#define SPARE 8u     /* one part in so many of a ring is written over before its oldest records can be read */

void roll_agent_excerpt_end(struct folded *f)
{
    roll_agent_ring_destroy(&f->copy);
    roll_agent_narrow_end(f);
    roll_agent_defs_destroy(&f->defs);
    free(f->place);
    f->place = NULL;
    f->places = 0;
    f->number = 0;
    f->begun = f->placed = f->all = f->cut = f->aside = f->lacks = false;
}

void roll_agent_excerpts_end(struct roll_agent_digests *d, uint32_t run)
{
    for (size_t i = 0; i < d->used; i++) {
        if (d->ring[i]->run == run) {
            d->ring[i]->hinted = d->ring[i]->hinted && !d->ring[i]->all; /* what it hinted at has been looked at */
            roll_agent_excerpt_end(d->ring[i]);
        }
    }
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    struct roll_agent_ring *copy = from;
    return roll_ring_get(&copy->map, ticket, out) == 0 && roll_record_check(out) == 0;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct roll_frame_want *)a)->key, y = ((const struct roll_frame_want *)b)->key;
    return (x > y) - (x < y);
}

/*
 * What is wanted of one communicator of the ring: what the root says, and what this node knows by itself. Of a
 * communicator that neither speaks of, a level between them knows that its members agree: the history is enough.
 */
static struct roll_excerpt_want want_of(const struct folded_run *run, const struct comm_of_ring *comm)
{
    struct roll_sum_place place;
    const struct roll_frame_want *w = roll_agent_excerpt_named(run, comm->key);
    bool here = roll_sum_place(run->sum, comm->key, &place) && place.size != 0 && place.members == place.size;
    struct roll_excerpt_want want = {.comm = comm->id, .classes = w ? w->classes : 0, .step = w ? w->step : 0};
    want.low = here ? place.low : w ? w->low : UINT32_MAX;
    if (here && w && w->low < want.low) {
        want.low = w->low;
    }
    return want;
}

static bool is_concerned(const struct folded_run *run, const struct folded *f)
{
    const struct roll_agent_ring *ring = f->ring;
    enum roll_proc_state proc = roll_agent_ring_proc(ring);
    int32_t status = atomic_load_explicit(&ring->map.header->exit_status, memory_order_acquire);
    bool failed = proc == ROLL_PROC_DEAD || proc == ROLL_PROC_STOPPED ||
                  (proc == ROLL_PROC_FINISHED && status != 0 && status != ROLL_EXIT_UNKNOWN);
    bool scoped = run->ask.scope == ROLL_EXCERPT_CONCERNED || run->ask.scope == ROLL_EXCERPT_NARROW;
    bool concerned = !scoped || failed || f->hinted;
    for (size_t i = 0; i < f->comms && !concerned; i++) {
        concerned = roll_agent_excerpt_named(run, f->comm[i].key) != NULL;
    }
    return concerned;
}

bool roll_agent_excerpt_is_due(const struct roll_agent_digests *d, const struct folded *f)
{
    return f->aside && is_concerned(&d->run[f->run], f);
}

/* Finds where the excerpt begins, and what the rank had done before. */
static int find_begin(struct roll_agent_digests *d, struct folded *f)
{
    const struct folded_run *run = &d->run[f->run];
    struct roll_agent_ring *copy = f->copy;
    struct roll_excerpt_want *want = calloc(f->comms + 1, sizeof(*want));
    if (!want) {
        return ROLL_E_NOMEM;
    }
    uint64_t head = roll_agent_ring_head(copy), slots = copy->map.mask + 1;
    bool lives = roll_agent_ring_proc(f->ring) == ROLL_PROC_RUNNING;
    uint64_t kept = lives ? slots - slots / SPARE : slots;
    struct roll_excerpt_records records = {
        .from = copy, .record = record_of, .next = f->next, .oldest = head > slots ? head - kept : 0};
    if (roll_agent_narrow_is_asked(run)) {
        free(want);
        records.oldest = records.oldest < records.next ? records.oldest : records.next;
        return roll_agent_narrow_begin(run, f, &records);
    }
    if (run->ask.most != 0 && records.next > run->ask.most && records.oldest < records.next - run->ask.most) {
        records.oldest = records.next - run->ask.most;
    }
    records.oldest = records.oldest < records.next ? records.oldest : records.next;
    for (size_t i = 0; i < f->comms; i++) {
        want[i] = want_of(run, &f->comm[i]);
    }
    f->begin = roll_excerpt_begin(&records, f->fold, want, f->comms, run->ask.history);
    f->end = f->next;
    int err = roll_excerpt_places(&records, f->fold, f->begin, &f->place, &f->places);
    for (size_t i = 0; !err && f->begin != 0 && i < f->places; i++) { /* what is wanted lies before the beginning */
        const struct roll_fold_place *p = &f->place[i];
        for (size_t k = 0; p->op == ROLL_OP_NONE && k < f->comms; k++) {
            f->lacks = f->lacks || (want[k].comm == p->comm && want[k].low < p->next);
        }
    }
    f->lacks = f->lacks || (!err && roll_excerpt_observed(&records, f->fold, want, f->comms) < f->begin);
    copy->sent = copy->acked = f->begin;
    free(want);
    return err;
}

int roll_agent_excerpt_begin(struct roll_agent_digests *d, struct folded *f)
{
    const struct folded_run *run = &d->run[f->run];
    roll_agent_excerpt_end(f);
    if (!is_concerned(run, f) || f->ring->back_head != 0) { /* a ring that is damaged is no ground to accuse its rank */
        f->number = run->number;
        f->aside = true;
        return 0;
    }
    int err = roll_agent_ring_new(f->ring->path, &f->copy);
    if (err) {
        return err;
    }
    if (f->copy->pidfd >= 0) { /* the agent's own reader watches the process */
        close(f->copy->pidfd);
        f->copy->pidfd = -1;
    }
    f->copy->second = true;
    f->copy->link = ROLL_LINK_LIVE;
    err = roll_agent_defs_new(&f->copy->map, &f->defs);
    err = err ? err : find_begin(d, f);
    if (err) {
        roll_agent_excerpt_end(f);
    } else {
        f->number = run->number;
    }
    return err;
}

static int send_place(struct roll_agent_digests *d, struct folded *f)
{
    struct roll_frame_place *out = calloc(f->places + 1, sizeof(*out));
    uint64_t seq;
    if (!out) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < f->places; i++) {
        const struct roll_fold_place *p = &f->place[i];
        out[i] = (struct roll_frame_place){
            .comm = p->comm, .op = p->op, .sure = p->sure, .peer = p->peer, .next = p->next, .made = p->made};
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_PLACE,
                                   .stream = f->ring->map.header->epoch,
                                   .first = f->narrow ? roll_agent_narrow_first(f) : f->begin};
    int err = d->send(d->ctx, head, out, f->places * sizeof(*out), &seq);
    f->placed = f->placed || err == 0;
    free(out);
    return err;
}

/* What the excerpt's reader sends. The process behind the ring is told of by the ring's first reader. */
static int send_excerpt(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct turn *t = ctx;
    int err = 0;
    *seq = 0;
    switch (head.type) {
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        err = t->f->placed ? 0 : send_place(t->d, t->f);
        if (!err && t->f->narrow) {
            return roll_agent_narrow_send(t, head, payload, seq);
        }
        err = err ? err : roll_agent_defs_name(t, payload, head.count);
        return err ? err : t->d->send(t->d->ctx, head, payload, bytes, seq);
    case ROLL_FRAME_DEFS:
        return roll_agent_defs_take(t, head.first, bytes);
    default:
        return 0;
    }
}

static int send_mark(struct roll_agent_digests *d, const struct folded *f, const void *payload, uint32_t flags)
{
    uint64_t seq;
    struct roll_frame_head head = {
        .type = ROLL_FRAME_EXCERPT, .flags = flags, .stream = f->ring->map.header->epoch, .first = f->number};
    return d->send(d->ctx, head, payload, payload ? ROLL_EXCERPT_BEGINS_BYTES : 0, &seq);
}

/* For how long the rank has stood, as the flags say it. Records that the fold has not taken yet are news. */
static uint32_t quiet_flags(const struct folded *f, uint64_t now)
{
    uint64_t quiet = roll_fold_quiet_ns(f->fold, now);
    uint64_t tenths = (quiet < f->stood_ns ? quiet : f->stood_ns) / (100 * ROLL_MS);
    bool news = roll_agent_ring_head(f->ring) != f->next;
    return news ? 0
                : (uint32_t)(tenths < ROLL_EXCERPT_QUIET_MOST ? tenths : ROLL_EXCERPT_QUIET_MOST) << ROLL_EXCERPT_QUIET;
}

/* As much as was wanted has been sent: the reader is not needed any more. */
static int cut(struct roll_agent_digests *d, struct folded *f)
{
    uint32_t passed = f->narrow && roll_agent_narrow_has_passed(f) ? ROLL_EXCERPT_PASSED : 0;
    int err = send_mark(d, f, NULL, ROLL_EXCERPT_CUT | passed);
    if (!err) {
        f->cut = true;
        roll_agent_defs_destroy(&f->defs); /* whose ring is the reader's */
        roll_agent_ring_destroy(&f->copy);
    }
    return err;
}

/* A queue that is full ends the turn; the next one goes on there. */
int64_t roll_agent_excerpt_pump(struct roll_agent_digests *d, struct folded *f, uint64_t now)
{
    struct roll_agent_ring *copy = f->copy;
    uint64_t follow = d->run[f->run].ask.follow;
    struct turn turn = {d, f, now};
    struct roll_agent_out out = {send_excerpt, &turn, d->buffer};
    int64_t total = 0, n = 1;
    int err = 0;
    if (f->aside && !f->begun) {
        err = send_mark(d, f, NULL, ROLL_EXCERPT_ASIDE);
        f->begun = err == 0;
        return err;
    }
    if (!copy) {
        return 0;
    }
    err = f->begun ? 0 : send_mark(d, f, copy->map.header, 0);
    if (err) {
        return err;
    }
    f->begun = true;
    copy->gone = f->ring->gone;
    copy->stopped = f->ring->stopped;
    /* The places are those of the fold, so the excerpt never runs ahead of it. It comes as far as the fold did, behind
     * records that nobody will write any more, too. */
    copy->upto = f->ring->sent;
    if (follow != 0 && !f->narrow && copy->upto > f->end + follow) {
        copy->upto = f->end + follow;
    }
    for (int i = 0; i < TURNS && n > 0; i++) {
        n = roll_agent_ring_pump(copy, &out, now);
        copy->acked = copy->sent; /* nothing is sent twice: what a link loses is asked for anew, from the beginning */
        total += n > 0 ? n : 0;
    }
    if (n >= 0 && (err = roll_agent_defs_rest(&turn)) != 0) {
        n = err;
    }
    if (n >= 0 && !f->placed) {
        n = send_place(d, f);
    }
    if (n >= 0 && !f->all && copy->sent >= f->end) {
        n = send_mark(d, f, NULL, ROLL_EXCERPT_ALL | (f->lacks ? ROLL_EXCERPT_SHORT : 0) | quiet_flags(f, now));
        f->all = n == 0;
    }
    bool full =
        f->narrow ? roll_agent_narrow_is_full(f, follow) : copy->sent >= f->end + follow && f->ring->sent > copy->sent;
    if (n >= 0 && f->all && follow != 0 && full) {
        n = cut(d, f);
    }
    return n < 0 && total == 0 ? n : total;
}

void roll_agent_digests_ask(roll_agent_digests_t *d, const struct roll_frame *frame)
{
    struct roll_frame_excerpt ask = {0};
    const struct folded *f = NULL;
    for (size_t i = 0; i < d->used && !f; i++) {
        f = d->ring[i]->ring->map.header->epoch == frame->head.stream ? d->ring[i] : NULL;
    }
    if (!f) {
        return;
    }
    struct folded_run *run = &d->run[f->run];
    if (frame->head.first != run->number) {
        roll_agent_excerpts_end(d, f->run);
        run->number = frame->head.first;
    }
    if (run->number == 0) {
        return;
    }
    memcpy(&ask, frame->payload, frame->head.payload < sizeof(ask) ? frame->head.payload : sizeof(ask));
    size_t bytes = ask.wants * sizeof(*run->want);
    struct roll_frame_want *want =
        ask.wants <= WANTS && frame->head.payload >= sizeof(ask) + bytes ? malloc(bytes + 1) : NULL;
    if (!want) { /* what is not there is not wanted: the excerpt has its history */
        ask.wants = 0;
    } else {
        memcpy(want, frame->payload + sizeof(ask), bytes);
        qsort(want, ask.wants, sizeof(*want), by_key);
    }
    free(run->want);
    run->want = want;
    run->ask = ask;
}

bool roll_agent_digests_lacks(const roll_agent_digests_t *d, const struct roll_agent_ring *ring, uint64_t head)
{
    for (size_t i = 0; d && i < d->used; i++) {
        const struct folded *f = d->ring[i];
        uint64_t number = f->ring == ring ? d->run[f->run].number : 0;
        if (number != 0 && !(f->number == number && (f->aside || f->cut))) {
            return !f->copy || !f->all || f->copy->sent < head;
        }
    }
    return false;
}
