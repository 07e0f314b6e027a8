/*
 * tell.c: see tell.h.
 *
 * One call needs no record of its own: its distance stands in the record of the call that is behind it. Several stand
 * in cudaStreamWaitEvent records in front of that, four in each.
 */
#include "interposer/wrap/tell.h"

#include "interposer/wrap/call.h"

static uint64_t distance(uint64_t ticket, uint64_t call)
{
    uint64_t far = ticket + 1 - call;
    return far <= UINT16_MAX ? far : 0;
}

/* Writes one record about at most four calls, and about the record `before` (ticket + 1; 0: none). Returns its ticket
 * + 1. */
static uint64_t write_wait(struct roll_thread *t, uint16_t stream, const uint64_t *calls, unsigned n, uint64_t before)
{
    struct roll_fill fill = {.peer = ROLL_PEER_NONE,
                             .stream = stream,
                             .op = ROLL_OP_STREAM_WAIT,
                             .dtype = ROLL_DTYPE_NONE,
                             .redop = ROLL_RED_NONE,
                             .behind = before};
    struct roll_call call;
    roll_record_begin(t, &call, &fill, 0);
    for (unsigned i = 0; i < n; i++) {
        call.rec->count |= distance(call.ticket, calls[i]) << 16 * i;
    }
    roll_ring_publish(call.rec, call.ticket, ROLL_STATE_RETURNED);
    return call.ticket + 1;
}

static uint64_t write_all(struct roll_thread *t, uint16_t stream, const uint64_t *calls, unsigned n, unsigned *records)
{
    uint64_t before = 0;
    *records = 0;
    for (unsigned i = 0; i < n; i += ROLL_BEHIND_PACKED) {
        unsigned here = n - i < ROLL_BEHIND_PACKED ? n - i : ROLL_BEHIND_PACKED;
        before = write_wait(t, stream, calls + i, here, before);
        ++*records;
    }
    return before;
}

unsigned roll_tell_wait(struct roll_thread *t, struct roll_fill *fill, const uint64_t *calls, unsigned n)
{
    unsigned records = 0;
    fill->behind = n == 0 ? 0 : n == 1 ? calls[0] : write_all(t, fill->stream, calls, n, &records);
    return records;
}

unsigned roll_tell_call(struct roll_thread *t, struct roll_fill *fill)
{
    uint64_t calls[ROLL_BEHIND_MAX];
    return roll_tell_wait(t, fill, calls, roll_order_take(fill->stream, calls));
}

unsigned roll_tell_launch(struct roll_thread *t, uint16_t stream)
{
    uint64_t calls[ROLL_BEHIND_MAX];
    unsigned records;
    (void)write_all(t, stream, calls, roll_order_take(stream, calls), &records);
    return records;
}
