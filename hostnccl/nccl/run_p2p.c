/*
 * run_p2p.c: sends and receives of one plan, all in progress at once.
 *
 * Every ordered pair of ranks has a channel: message numbers and byte counters of both sides, and a ring for the data.
 * The n-th send meets the n-th receive; both sides announce their message first, and data moves only when both are at
 * the same one. A send is done when the receiver has taken its last byte: NCCL promises no buffering, so this library
 * gives none (NCCL's own buffers let small unmatched sends pass by luck). HOSTNCCL_EAGER imitates that luck: a short
 * send outside a group is done when its bytes are in the ring, behind earlier bytes, as far as the ring has room.
 * Lengths are not compared: a receiver that asked for less stops reading, and the sender waits for ever; a receiver
 * that asked for more waits for bytes that never come.
 *
 * With HOSTNCCL_DATA=skip the bytes of a longer message are only counted: its sender says so beside the announcement,
 * counts all of them as written when the receiver has come, and the receiver counts as many as it asked for as read.
 * The ring has room for any number of bytes that are not there.
 *
 * A send to a rank that is stood in for (present.c) is done at once, and a receive from one as well: it has the bytes
 * of the message that this rank sends to that rank in the same plan, the n-th of the n-th, and zeros behind them. So
 * counts that are exchanged, and the rows that are exchanged by them, fit together.
 *
 * One thread drives all messages: the thread goes round all messages and, when none has moved, sleeps on this rank's
 * bell, which peers ring when they move a channel. Messages of one direction to one peer go in order; all others are
 * independent.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

static void copy_in(char *ring, size_t window, size_t at, const char *from, size_t len)
{
    size_t pos = at % window, first = len < window - pos ? len : window - pos;

    memcpy(ring + pos, from, first);
    memcpy(ring, from + first, len - first);
}

static void copy_out(char *to, const char *ring, size_t window, size_t at, size_t len)
{
    size_t pos = at % window, first = len < window - pos ? len : window - pos;

    memcpy(to, ring + pos, first);
    memcpy(to + first, ring, len - first);
}

static void ring_bell(ncclComm_t comm, int peer)
{
    hn_word_bump(&hn_map_rank(&comm->map, peer)->bell);
}

/* In error mode only: both lengths are known, and differ. */
static bool lengths_clash(struct hn_channel *ch)
{
    return hn_settings_get()->mismatch != HN_MISMATCH_HANG &&
           atomic_load(&ch->send_bytes) != atomic_load(&ch->recv_bytes);
}

/*
 * Starts a send by saying what it is. No rank reads an empty ring, so the ring may begin anew; short messages then use
 * little memory.
 */
static void start_send(ncclComm_t comm, struct hn_channel *ch, struct hn_p2p *op)
{
    op->started = true;
    op->base = atomic_load(&ch->written);
    if (atomic_load(&ch->read) == op->base) {
        atomic_store(&ch->origin, op->base);
    }
    atomic_store(&ch->send_bytes, op->bytes);
    if (hn_leaves_out_message(op)) {
        atomic_store(&ch->skipped_seq, op->seq);
    }
    atomic_store(&ch->send_seq, op->seq);
    ring_bell(comm, op->peer);
}

/*
 * Moves one send as far as possible. Returns 1 when something moved, 0 when nothing did, -1 when the communicator was
 * stopped or the device has a fault.
 */
static int step_send(ncclComm_t comm, struct hn_p2p *op)
{
    struct hn_channel *ch = hn_map_channel(&comm->map, comm->rank, op->peer);
    char *ring = hn_map_bytes(&comm->map, hn_map_ring_at(&comm->map, comm->rank, op->peer));
    int moved = !op->started;

    if (!op->started) {
        start_send(comm, ch, op);
    }
    if (!op->eager && !hn_reached(atomic_load(&ch->recv_seq), op->seq)) {
        return moved;
    }
    if (op->moved == 0 && atomic_load(&ch->recv_seq) == op->seq && lengths_clash(ch)) {
        return hn_mismatch_found(comm, "send of %zu bytes to rank %d, which receives %zu", op->bytes, op->peer,
                                 (size_t)atomic_load(&ch->recv_bytes));
    }
    uint64_t at = op->base + op->moved, read = atomic_load(&ch->read);
    size_t room = comm->map.window - (size_t)(at - read), left = op->bytes - op->moved;
    bool left_out = hn_leaves_out_message(op);
    size_t len = left_out || left < room ? left : room;
    if (len) {
        if (!left_out) {
            copy_in(ring, comm->map.window, at - atomic_load(&ch->origin), (const char *)op->buf + op->moved, len);
        }
        op->moved += len;
        atomic_store(&ch->written, at + len);
        ring_bell(comm, op->peer);
        moved = 1;
    }
    /*
     * The bytes that an earlier buffered message left in the ring come first; a receiver that asked for less never
     * reaches their end.
     */
    if ((op->eager && op->moved == op->bytes) || read == op->base + op->bytes) {
        op->done = true;
        moved = 1;
    }
    return moved;
}

static int step_recv(ncclComm_t comm, struct hn_p2p *op)
{
    struct hn_channel *ch = hn_map_channel(&comm->map, op->peer, comm->rank);
    const char *ring = hn_map_bytes(&comm->map, hn_map_ring_at(&comm->map, op->peer, comm->rank));
    int moved = 0;

    if (!op->started) {
        op->started = true;
        op->base = atomic_load(&ch->read);
        atomic_store(&ch->recv_bytes, op->bytes);
        atomic_store(&ch->recv_seq, op->seq);
        ring_bell(comm, op->peer);
        moved = 1;
    }
    if (!hn_reached(atomic_load(&ch->send_seq), op->seq)) {
        return moved;
    }
    if (op->moved == 0 && atomic_load(&ch->send_seq) == op->seq && lengths_clash(ch)) {
        return hn_mismatch_found(comm, "receive of %zu bytes from rank %d, which sends %zu", op->bytes, op->peer,
                                 (size_t)atomic_load(&ch->send_bytes));
    }
    size_t there = (size_t)(atomic_load(&ch->written) - op->base) - op->moved, left = op->bytes - op->moved;
    size_t len = there < left ? there : left;
    if (len && !op->buf) {
        return hn_fault(comm, "a receive");
    }
    if (len) {
        bool left_out = hn_settings_get()->left_out_bytes > 0 && atomic_load(&ch->skipped_seq) == op->seq;
        if (!left_out) {
            copy_out((char *)op->buf + op->moved, ring, comm->map.window,
                     op->base + op->moved - atomic_load(&ch->origin), len);
        }
        op->moved += len;
        atomic_store(&ch->read, op->base + op->moved);
        ring_bell(comm, op->peer);
        moved = 1;
    }
    if (op->moved == op->bytes) {
        op->done = true;
        moved = 1;
    }
    return moved;
}

/*
 * Sends of a rank to itself meet its receives in order; the launch has checked that there are as many of each. Returns
 * 0, or -1 after a fault.
 */
static int run_self(ncclComm_t comm, struct hn_p2p *ops, size_t count)
{
    size_t r = 0;

    for (size_t s = 0; s < count; s++) {
        if (!ops[s].is_send || ops[s].peer != comm->rank) {
            continue;
        }
        while (r < count && (ops[r].is_send || ops[r].peer != comm->rank)) {
            r++;
        }
        if (r == count) {
            return 0;
        }
        size_t bytes = ops[r].bytes < ops[s].bytes ? ops[r].bytes : ops[s].bytes;
        if (bytes && (!ops[r].buf || !ops[s].buf)) {
            return hn_fault(comm, "a message to itself");
        }
        if (bytes && ops[r].buf != ops[s].buf && !hn_leaves_out(bytes)) {
            memmove(ops[r].buf, ops[s].buf, bytes);
        }
        ops[s].done = ops[r].done = true;
        r++;
    }
    return 0;
}

/* Does the n-th receive from an absent rank, and the n-th send to it, at once. Returns 0, or -1 after a fault. */
static int echo(ncclComm_t comm, struct hn_p2p *recv, const struct hn_p2p *send)
{
    size_t bytes = send && send->bytes < recv->bytes ? send->bytes : send ? recv->bytes : 0;

    recv->done = true;
    if (recv->bytes && !recv->buf) {
        return hn_fault(comm, "a receive");
    }
    if (!recv->bytes || hn_leaves_out(recv->bytes)) {
        return 0;
    }
    if (bytes) {
        memmove(recv->buf, send->buf, bytes);
    }
    memset((char *)recv->buf + bytes, 0, recv->bytes - bytes);
    return 0;
}

/* The messages from and to ranks that are stood in for. Returns 0, or -1 after a fault. */
static int run_absent(ncclComm_t comm, struct hn_p2p *ops, size_t count)
{
    size_t *next; /* by rank: where to look for the next send to it */
    int rc = 0;

    if (!comm->place) {
        return 0;
    }
    next = calloc((size_t)comm->nranks, sizeof(*next));
    if (!next) {
        hn_comm_set_async(comm, hn_fail(ncclSystemError, "out of memory"));
        return -1;
    }
    for (size_t i = 0; i < count && !rc; i++) {
        if (ops[i].is_send || !hn_is_absent(comm, ops[i].peer)) {
            continue;
        }
        size_t *s = &next[ops[i].peer];
        while (*s < count && (!ops[*s].is_send || ops[*s].peer != ops[i].peer)) {
            ++*s;
        }
        rc = echo(comm, &ops[i], *s < count ? &ops[*s] : NULL);
        *s += *s < count;
    }
    for (size_t i = 0; i < count; i++) {
        ops[i].done = ops[i].done || hn_is_absent(comm, ops[i].peer);
    }
    free(next);
    return rc;
}

/* A send reads its buffer at once; a receive writes when something has come. */
static bool sends_nothing(const struct hn_p2p *ops, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ops[i].is_send && ops[i].bytes && !ops[i].buf) {
            return true;
        }
    }
    return false;
}

/*
 * Goes once round all messages. `busy` has one mark per peer and direction, set while an earlier message is not done.
 */
static int step_all(ncclComm_t comm, struct hn_p2p *ops, size_t count, bool *busy, bool *all_done)
{
    int moved = 0;

    memset(busy, 0, 2 * (size_t)comm->nranks * sizeof(*busy));
    *all_done = true;
    for (size_t i = 0; i < count; i++) {
        struct hn_p2p *op = &ops[i];
        bool *mark = &busy[2 * op->peer + op->is_send];
        if (op->done || *mark) {
            continue;
        }
        int rc = op->is_send ? step_send(comm, op) : step_recv(comm, op);
        if (rc < 0) {
            return -1;
        }
        moved |= rc;
        if (!op->done) {
            *mark = true;
            *all_done = false;
        }
    }
    return moved;
}

int hn_run_p2p(ncclComm_t comm, struct hn_p2p *ops, size_t count)
{
    struct hn_word *bell = &hn_map_rank(&comm->map, comm->rank)->bell;
    bool *busy = calloc(2 * (size_t)comm->nranks, sizeof(*busy));
    bool all_done = false;
    int rc = 0;

    if (!busy) {
        hn_comm_set_async(comm, hn_fail(ncclSystemError, "out of memory"));
        return -1;
    }
    rc = sends_nothing(ops, count) ? hn_fault(comm, "a send") : run_self(comm, ops, count);
    rc = rc ? rc : run_absent(comm, ops, count);
    while (!all_done && !rc) {
        uint32_t seen = hn_word_get(bell);
        int moved = step_all(comm, ops, count, busy, &all_done);
        if (moved < 0) {
            rc = -1;
        } else if (!moved && !all_done) {
            rc = hn_word_wait_change(&comm->exec_wait, bell, seen);
        }
    }
    free(busy);
    return rc;
}
