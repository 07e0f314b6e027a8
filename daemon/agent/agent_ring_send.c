/*
 * agent_ring_send.c: sends one ring to the root.
 *
 * The ring is the queue: the agent keeps two cursors into it and copies nothing that waits. Records go out before their
 * call returns; the tickets of such records are watched, and the finished record follows as an update. Records are read
 * before the definitions that they may name, and are sent after these.
 *
 * The job may write anything anywhere into its ring. What no decoder would let pass is left out here, and counted: a
 * frame with one such record would be refused as a whole, at each try anew, and with it all rings of the node would
 * wait.
 */
#include "daemon/agent/agent_ring.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

#define REANNOUNCE_NS  (2000 * ROLL_MS)
#define STATUS_NS      (500 * ROLL_MS)  /* how often an idle ring sends clock pair and losses */
#define STATUS_SLOW_NS (5000 * ROLL_MS) /* likewise where many thousand ranks have one root */
#define STATUS_MIN_NS  (20 * ROLL_MS)   /* likewise until the root is known to have caught up */
#define EXIT_STATUS_NS (50 * ROLL_MS)   /* patience with a launcher, which may say how its rank ended */
#define STUCK_NS       (1000 * ROLL_MS) /* a slot of a live process not sealed for so long never is */
#define SIGHT_NS       (400 * ROLL_MS)  /* between two SIGHT frames */
#define SIGHT_STEP     50u              /* permille of change that is worth a SIGHT frame */

static int announce(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now)
{
    struct roll_ring_header *h = ring->map.header;
    if (!ring->gone) {
        uint64_t mono = 0, real = 0;
        roll_clock_pair(&mono, &real);
        atomic_store_explicit(&h->clock_mono_ns, mono, memory_order_relaxed);
        atomic_store_explicit(&h->clock_real_ns, real, memory_order_relaxed);
    }
    int err = out->send(out->ctx, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h->epoch}, h, sizeof(*h),
                        &ring->announce_seq);
    if (!err) {
        ring->link = ROLL_LINK_ANNOUNCED;
        ring->announce_ns = now;
    }
    return err;
}

/* Sends the whole entries of the definitions area that have not been sent. */
static int send_defs(struct roll_agent_ring *ring, const struct roll_agent_out *out)
{
    const struct roll_ring_header *h = ring->map.header;
    for (;;) {
        uint64_t used = atomic_load_explicit(&ring->map.header->defs_used, memory_order_acquire);
        size_t limit = (size_t)(used < ring->map.defs_bytes ? used : ring->map.defs_bytes);
        size_t end = (size_t)ring->defs_sent;
        size_t max = end + ROLL_AGENT_BATCH * ROLL_RECORD_BYTES;
        struct roll_def def;
        for (size_t at = end; at < limit && roll_def_decode(ring->map.defs, limit, &at, &def) == 0 && at <= max;) {
            end = at;
        }
        if (end == ring->defs_sent) {
            return 0;
        }
        uint64_t seq;
        int err = out->send(
            out->ctx, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = h->epoch, .first = ring->defs_sent},
            ring->map.defs + ring->defs_sent, end - (size_t)ring->defs_sent, &seq);
        if (err) {
            return err;
        }
        ring->defs_sent = end;
    }
}

static void watch(struct roll_agent_ring *ring, const struct roll_record *rec)
{
    if (roll_seal_state(rec->seal) != ROLL_STATE_ENTERED) {
        return;
    }
    if (ring->pending_used == ROLL_PENDING_MAX) { /* more open calls than a process has threads: give up the oldest */
        memmove(ring->pending, ring->pending + 1, (ROLL_PENDING_MAX - 1) * sizeof(*ring->pending));
        ring->pending_used--;
    }
    ring->pending[ring->pending_used++] = roll_seal_ticket(rec->seal);
}

/* Moves the records that can be sent to the front of the row. Returns how many there are. *bad: the others, but for
 * those below ticket `counted`. */
static size_t keep_sound(struct roll_record *recs, size_t n, uint64_t counted, uint64_t *bad)
{
    size_t keep = 0;
    *bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (roll_record_check(&recs[i]) == 0) {
            recs[keep++] = recs[i];
        } else {
            *bad += roll_seal_ticket(recs[i].seal) >= counted;
        }
    }
    return keep;
}

static void count_loss(struct roll_agent_ring *ring, enum roll_loss cause, uint64_t lost)
{
    if (lost == 0 || ring->second) {
        return;
    }
    uint64_t before = atomic_fetch_add_explicit(&ring->map.header->losses[cause], lost, memory_order_relaxed);
    if (cause == ROLL_LOSS_CORRUPT && before == 0) {
        roll_log(ROLL_LOG_WARNING, "agent: %s: a record before %llu cannot be one; it is left out (said once, counted)",
                 ring->path, (unsigned long long)roll_agent_ring_head(ring));
    }
}

static int send_recs(struct roll_agent_ring *ring, const struct roll_agent_out *out, enum roll_frame_type type,
                     const struct roll_record *recs, size_t n)
{
    uint64_t seq;
    struct roll_frame_head head = {.type = (uint16_t)type,
                                   .stream = ring->map.header->epoch,
                                   .first = roll_seal_ticket(recs[0].seal),
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = (uint32_t)n};
    return out->send(out->ctx, head, recs, n * sizeof(*recs), &seq);
}

/* Whether the record at the cursor will never be sealed, because its process is gone, or the thread that was writing it
 * is (cancelled, longjmp). */
static bool given_up(struct roll_agent_ring *ring, uint64_t now)
{
    if (ring->gone || ring->sent < ring->given_upto) {
        return true;
    }
    if (ring->stuck_ticket != ring->sent || ring->stuck_ns == 0 || ring->stopped) {
        ring->stuck_ticket = ring->sent;
        ring->stuck_ns = now;
        ring->stuck_head = roll_agent_ring_head(ring);
    }
    if (now - ring->stuck_ns <= STUCK_NS) {
        return false;
    }
    ring->given_upto = ring->stuck_head; /* these have been waited for as long: a wild head has thousands of them */
    return true;
}

/* Of so many lost tickets from `sent` on, behind which n records were read, those that have not been counted. */
static uint64_t uncounted(const struct roll_agent_ring *ring, uint64_t lost, uint64_t next, size_t n)
{
    uint64_t known = ring->counted > ring->sent ? ring->counted : ring->sent, end = next - n;
    uint64_t left = end > known ? end - known : 0;
    return lost < left ? lost : left;
}

/* A head below what has been read is damage. The rank's calls go to nowhere until it has come there again. */
static void note_way_back(struct roll_agent_ring *ring)
{
    uint64_t head = roll_agent_ring_head(ring);
    if (head < ring->sent && head != ring->back_head) {
        count_loss(ring, ROLL_LOSS_CORRUPT,
                   ring->back_head != 0 && head > ring->back_head ? head - ring->back_head : 1);
        ring->back_head = head;
    }
}

/* The ring holds it as well, behind the counts: an agent that is killed in between counts a batch twice, and loses
 * none in silence. */
static void note_counted(struct roll_agent_ring *ring, uint64_t next)
{
    if (next > ring->counted) {
        ring->counted = next;
        if (!ring->second) {
            atomic_store_explicit(&ring->map.header->counted, next, memory_order_release);
        }
    }
}

/* Sends new records, as far as the window allows. */
static int64_t send_records(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now)
{
    struct roll_record *recs = (struct roll_record *)(void *)out->buffer;
    int64_t total = 0;
    note_way_back(ring);
    /* Only a batch at a time: so the rings catch up side by side after a pause, and no rank seems far behind another.
     */
    while ((ring->told <= ring->acked || ring->told - ring->acked < ROLL_AGENT_WINDOW) && total < ROLL_AGENT_BATCH &&
           ring->sent < ring->upto) {
        uint64_t next = ring->sent, lost = 0, bad, there = ring->upto - ring->sent;
        size_t most = there < ROLL_AGENT_BATCH ? (size_t)there : ROLL_AGENT_BATCH;
        size_t n = roll_ring_read(&ring->map, ring->sent, recs, most, &next, &lost);
        uint64_t head = roll_agent_ring_head(ring);
        if (n == 0 && next == ring->sent && ring->second && ring->upto != UINT64_MAX && head <= ring->sent) {
            /* head has gone back since the first reader was here */
            next = ring->upto;
        } else if (n == 0 && next == ring->sent) {
            if (ring->sent >= head || !given_up(ring, now)) {
                break;
            }
            next = ring->sent + 1;
            lost = 1;
        }
        size_t sound = keep_sound(recs, n, ring->counted, &bad);
        int err = send_defs(ring, out);
        if (!err && sound > 0) {
            err = send_recs(ring, out, ROLL_FRAME_RECORDS, recs, sound);
        }
        if (err) {
            return total > 0 ? total : err;
        }
        count_loss(ring, ROLL_LOSS_OVERRUN, uncounted(ring, lost, next, n));
        count_loss(ring, ROLL_LOSS_CORRUPT, bad);
        note_counted(ring, next);
        for (size_t i = 0; i < sound; i++) {
            watch(ring, &recs[i]);
            ring->told = roll_seal_ticket(recs[i].seal) + 1;
        }
        ring->sent = next;
        total += (int64_t)n + (lost < ROLL_AGENT_BATCH ? (int64_t)lost : (int64_t)ROLL_AGENT_BATCH);
    }
    return total;
}

/*
 * Whether the loop of polls that the i-th watched record belongs to goes on in a record that has not been sent. To send
 * the end of the old one alone says that the thread has left its loop, and all patience with it begins anew. The new
 * one was written before the old one returned, so it has been sent when all has that is there; where the other threads
 * never let that be, it is among the watched.
 */
static bool is_ahead(const struct roll_agent_ring *ring, size_t i, const struct roll_record *rec)
{
    if (roll_op_class(rec->op) != ROLL_CLASS_POLL || rec->result != ROLL_POLL_GOES_ON ||
        roll_agent_ring_head(ring) <= ring->sent) {
        return false;
    }
    struct roll_record next;
    bool sent = false;
    for (size_t k = i + 1; k < ring->pending_used && !sent; k++) {
        sent = roll_ring_get(&ring->map, ring->pending[k], &next) == 0 && roll_op_class(next.op) == ROLL_CLASS_POLL &&
               next.thread == rec->thread;
    }
    return !sent;
}

/* Sends updates for watched calls that have returned meanwhile. */
static int64_t send_updates(struct roll_agent_ring *ring, const struct roll_agent_out *out)
{
    struct roll_record *recs = (struct roll_record *)(void *)out->buffer;
    size_t n = 0, keep = 0, i;
    for (i = 0; i < ring->pending_used && n < ROLL_AGENT_BATCH; i++) {
        int err = roll_ring_get(&ring->map, ring->pending[i], &recs[n]);
        if (err) {
            continue; /* the record is overwritten: the call's end will never be known */
        }
        if (roll_record_check(&recs[n]) != 0) {
            count_loss(ring, ROLL_LOSS_CORRUPT, 1);
            continue;
        }
        if (roll_seal_state(recs[n].seal) == ROLL_STATE_ENTERED || is_ahead(ring, i, &recs[n])) {
            ring->pending[keep++] = ring->pending[i];
        } else {
            n++;
        }
    }
    if (n > 0) {
        int err = send_recs(ring, out, ROLL_FRAME_UPDATES, recs, n);
        if (err) {
            /* No ticket may be forgotten: put those that are kept and those that could not be sent back in order. */
            uint64_t merged[ROLL_AGENT_BATCH + ROLL_PENDING_MAX];
            size_t a = 0, b = 0, m = 0;
            while (a < keep || b < n) {
                bool first = b == n || (a < keep && ring->pending[a] < roll_seal_ticket(recs[b].seal));
                merged[m++] = first ? ring->pending[a++] : roll_seal_ticket(recs[b++].seal);
            }
            memmove(ring->pending + m, ring->pending + i, (ring->pending_used - i) * sizeof(*ring->pending));
            memcpy(ring->pending, merged, m * sizeof(*merged));
            ring->pending_used = m + (ring->pending_used - i);
            return err;
        }
    }
    memmove(ring->pending + keep, ring->pending + i, (ring->pending_used - i) * sizeof(*ring->pending));
    ring->pending_used = keep + (ring->pending_used - i);
    return (int64_t)n;
}

static int by_ticket(const void *a, const void *b)
{
    uint64_t x = ((const struct roll_record *)a)->seal, y = ((const struct roll_record *)b)->seal;
    return (x > y) - (x < y);
}

/*
 * Sends what the device, or the rank, has noted as complete: for each stream the newest call, as one update with the
 * state COMPLETE. Streams are in order, so this update covers all earlier calls on that stream. A record that is
 * overwritten, or not sent yet, is passed over: a later one covers it.
 */
static int64_t send_completions(struct roll_agent_ring *ring, const struct roll_agent_out *out)
{
    struct roll_record *recs = (struct roll_record *)(void *)out->buffer;
    const struct roll_ring_header *h = ring->map.header;
    size_t n = 0;
    if (atomic_load_explicit(&h->completion, memory_order_relaxed) == ROLL_COMPLETION_OFF) {
        return 0;
    }
    for (size_t i = 0; i < ROLL_RING_DONE_STREAMS && n < ROLL_AGENT_BATCH; i++) {
        uint64_t done = atomic_load_explicit(&h->done[i], memory_order_acquire);
        if (done <= ring->done[i] || done > ring->sent) {
            continue;
        }
        bool there = roll_ring_get(&ring->map, done - 1, &recs[n]) == 0 && roll_record_check(&recs[n]) == 0;
        if (there && roll_seal_state(recs[n].seal) < ROLL_STATE_RETURNED) {
            continue; /* the device was faster than the call's return */
        }
        if (there) {
            recs[n++].seal = roll_seal(done - 1, ROLL_STATE_COMPLETE);
        }
        ring->done[i] = done;
    }
    if (n == 0) {
        return 0;
    }
    qsort(recs, n, sizeof(*recs), by_ticket);
    int err = send_recs(ring, out, ROLL_FRAME_UPDATES, recs, n);
    if (err) {
        memset(ring->done, 0, sizeof(ring->done)); /* all of them are sent again */
    }
    return err ? err : (int64_t)n;
}

/* Looks again, after a new conversation began, at the calls that the root holds as entered: they may have returned
 * meanwhile. */
static int recheck(struct roll_agent_ring *ring, const struct roll_agent_out *out)
{
    struct roll_record *recs = (struct roll_record *)(void *)out->buffer;
    while (ring->recheck < ring->recheck_end) {
        uint64_t next = ring->recheck, lost = 0, bad;
        size_t n = roll_ring_read(&ring->map, ring->recheck, recs, ROLL_AGENT_BATCH, &next, &lost);
        size_t use = 0, before = ring->pending_used;
        n = keep_sound(recs, n, ring->counted, &bad); /* what is left out here has been counted */
        for (size_t i = 0; i < n && roll_seal_ticket(recs[i].seal) < ring->recheck_end; i++) {
            if (roll_seal_state(recs[i].seal) == ROLL_STATE_ENTERED) {
                watch(ring, &recs[i]);
            } else {
                recs[use++] = recs[i];
            }
        }
        int err = use ? send_recs(ring, out, ROLL_FRAME_UPDATES, recs, use) : 0;
        if (err) {
            ring->pending_used = before; /* the next turn begins at the same ticket */
            return err;
        }
        next = next > ring->recheck ? next : ring->recheck + 1;
        ring->recheck = next < ring->recheck_end ? next : ring->recheck_end; /* what lies behind is sent as ever */
    }
    return 0;
}

static int send_status(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now)
{
    struct roll_ring_header *h = ring->map.header;
    if (h->epoch != ring->epoch) { /* the file has been cut: what is read is zeros, and the ring is about to be left */
        return 0;
    }
    struct roll_frame_status s = {.head = roll_agent_ring_head(ring),
                                  .defs_used = atomic_load_explicit(&h->defs_used, memory_order_relaxed),
                                  .finish_ns = 0,
                                  .proc_state = roll_agent_ring_proc(ring),
                                  .exit_status = atomic_load_explicit(&h->exit_status, memory_order_acquire)};
    bool gone = s.proc_state == ROLL_PROC_FINISHED || s.proc_state == ROLL_PROC_DEAD;
    if (gone) {
        s.finish_ns = atomic_load_explicit(&h->finish_ns, memory_order_relaxed);
        s.finish_ns = s.finish_ns ? s.finish_ns : ring->gone_ns;
        if (ring->sent < s.head || (ring->follower && ring->follower->sent < s.head)) {
            return 0; /* the last records go first */
        }
        if ((s.exit_status & ~ROLL_EXIT_ASKED) == ROLL_EXIT_UNKNOWN && now - ring->gone_ns < EXIT_STATUS_NS &&
            !ring->drain_status) {
            return 0; /* the launcher may be about to write how the process ended */
        }
    }
    for (unsigned i = 0; i < ROLL_LOSS_LIMIT; i++) {
        s.losses[i] = atomic_load_explicit(&h->losses[i], memory_order_relaxed);
    }
    bool news = s.proc_state != ring->status.proc_state || s.exit_status != ring->status.exit_status ||
                s.head < ring->status.head; /* damage: the root must not take the rank for one that makes no calls */
    /* The root takes a ring's word for being up to date once in a conversation. From then on its records say it. */
    bool moved = !ring->caught_up && s.head != ring->status.head && ring->sent == s.head &&
                 now - ring->status_ns >= STATUS_MIN_NS;
    bool due = now - ring->status_ns >= (ring->digest ? STATUS_SLOW_NS : STATUS_NS) && !(gone && ring->status_ns > 0);
    if (!news && !moved && !due && !ring->drain_status) {
        return 0;
    }
    roll_clock_pair(&s.clock_mono_ns, &s.clock_real_ns);
    int err = out->send(out->ctx, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = h->epoch}, &s,
                        sizeof(s), &ring->status_seq);
    if (!err) {
        ring->status = s;
        ring->status_ns = now;
        ring->caught_up = ring->caught_up || (ring->sent > 0 && ring->sent == s.head);
        ring->drain_status = ring->drain_status && ring->sent < ring->drain_head;
    }
    return err;
}

/* Sends how freely the rank runs, when that has changed by SIGHT_STEP, or when the rank is starved no more. */
static int send_sight(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now)
{
    uint32_t is = ring->starved, was = ring->starved_said;
    bool news = is == 0 ? was != 0 : is >= was + SIGHT_STEP || was >= is + SIGHT_STEP;
    uint64_t seq;
    if (!news || now - ring->starved_ns < SIGHT_NS) {
        return 0;
    }
    struct roll_frame_sight sight = {.heard = 1, .starved = is};
    int err = out->send(out->ctx, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = ring->map.header->epoch},
                        &sight, sizeof(sight), &seq);
    if (!err) {
        ring->starved_said = is;
        ring->starved_ns = now;
    }
    return err;
}

/* Whether a call that was sent as entered has returned, or another one is complete. */
static bool has_ends(const struct roll_agent_ring *ring)
{
    const struct roll_ring_header *h = ring->map.header;
    for (size_t i = 0; i < ring->pending_used; i++) {
        struct roll_record rec;
        if (roll_ring_get(&ring->map, ring->pending[i], &rec) != 0 || roll_seal_state(rec.seal) != ROLL_STATE_ENTERED) {
            return true;
        }
    }
    if (atomic_load_explicit(&h->completion, memory_order_relaxed) != ROLL_COMPLETION_OFF) {
        for (size_t i = 0; i < ROLL_RING_DONE_STREAMS; i++) {
            if (atomic_load_explicit(&h->done[i], memory_order_relaxed) != ring->done[i]) {
                return true;
            }
        }
    }
    return false;
}

bool roll_agent_ring_has_news(const struct roll_agent_ring *ring, uint64_t may_wait)
{
    if (ring->link != ROLL_LINK_LIVE) {
        return ring->link == ROLL_LINK_NEW;
    }
    bool untold = ring->gone && ring->status.proc_state != (uint32_t)roll_agent_ring_proc(ring);
    return untold || ring->recheck != ring->recheck_end || roll_agent_ring_waits(ring) ||
           roll_agent_ring_head(ring) - ring->sent > may_wait || (may_wait == 0 && has_ends(ring));
}

int64_t roll_agent_ring_pump(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now)
{
    if (ring->link == ROLL_LINK_ANNOUNCED && now - ring->announce_ns > REANNOUNCE_NS) {
        ring->link = ROLL_LINK_NEW;
    }
    if (ring->link == ROLL_LINK_NEW) {
        return announce(ring, out, now);
    }
    if (ring->link != ROLL_LINK_LIVE) {
        return 0;
    }
    int64_t err = send_sight(ring, out, now); /* SIGHT goes first, so that the engine judges the records below by it */
    err = err ? err : recheck(ring, out);
    int64_t records = err ? err : send_records(ring, out, now);
    int64_t updates = records < 0 ? records : send_updates(ring, out);
    int64_t completions = updates < 0 ? updates : send_completions(ring, out);
    err = completions < 0 ? completions : send_defs(ring, out);
    if (!err) {
        err = send_status(ring, out, now);
    }
    return err ? err : records + updates + completions;
}
