/*
 * rma.c: one-sided calls: put with a signal, a signal alone, and the wait for signals.
 *
 * A put waits for nobody: it copies into the peer's window and counts one signal up. Signals of a pair of ranks are
 * counted in its channel, by index; the one who waits takes as many as it asked for. Inside a group all puts and
 * signals come before anything that waits, and the waits come last, so that two ranks that put and wait in any order
 * inside one group do not wait for each other; NCCL runs these side by side.
 */
#include "hostnccl/include/nccl_newer.h"
#include "hostnccl/nccl/window.h"

#include <stdlib.h>
#include <string.h>

void hn_run_puts(ncclComm_t comm, const struct hn_rma *ops, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct hn_rma *op = &ops[i];
        if (op->is_wait) {
            continue;
        }
        if (op->bytes && !hn_leaves_out(op->bytes)) {
            memmove(op->to, op->from, op->bytes);
        }
        atomic_fetch_add(&hn_map_channel(&comm->map, comm->rank, op->peer)->signals[op->index], 1);
        hn_word_bump(&hn_map_rank(&comm->map, op->peer)->bell);
    }
}

/* Takes the signals of one wait when they are there. */
static bool take_signals(ncclComm_t comm, const struct hn_rma *op)
{
    uint32_t there = atomic_load(&hn_map_channel(&comm->map, op->peer, comm->rank)->signals[op->index]);
    uint32_t *taken = &comm->signals_taken[(size_t)op->peer * HN_SIGNALS + (size_t)op->index];

    if (!hn_reached(there, *taken + op->signals)) {
        return false;
    }
    *taken += op->signals;
    return true;
}

int hn_run_waits(ncclComm_t comm, const struct hn_rma *ops, size_t count)
{
    struct hn_word *bell = &hn_map_rank(&comm->map, comm->rank)->bell;

    for (size_t i = 0; i < count; i++) {
        while (ops[i].is_wait) {
            uint32_t seen = hn_word_get(bell);
            if (take_signals(comm, &ops[i])) {
                break;
            }
            if (hn_word_wait_change(&comm->exec_wait, bell, seen)) {
                return -1;
            }
        }
    }
    return 0;
}

static ncclResult_t check_signal(ncclComm_t comm, int peer, int index, int ctx, const char *call)
{
    if (peer < 0 || peer >= comm->nranks) {
        return hn_fail(ncclInvalidArgument, "%s: peer %d of %d ranks", call, peer, comm->nranks);
    }
    if (hn_is_absent(comm, peer)) {
        return hn_present_whole(comm, call);
    }
    if (index < 0 || index >= HN_SIGNALS || ctx) {
        return hn_fail(ncclInvalidArgument, "%s: signal %d of context %d: hostnccl has signals 0 to %d of context 0",
                       call, index, ctx, HN_SIGNALS - 1);
    }
    return ncclSuccess;
}

static ncclResult_t put(const void *from, size_t count, ncclDataType_t type, int peer, ncclWindow_t window,
                        size_t offset, int index, int ctx, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    struct hn_rma op = {.peer = peer, .index = index, .from = from, .bytes = count * hn_type_size(type)};
    ncclResult_t rc = hn_comm_usable(comm, "ncclPutSignal");
    char *base = NULL;
    size_t size = 0;

    rc = rc != ncclSuccess ? rc : check_signal(comm, peer, index, ctx, "ncclPutSignal");
    if (rc == ncclSuccess && (!hn_type_size(type) || flags)) {
        rc = hn_fail(ncclInvalidArgument, "ncclPutSignal: data type %d, flags %u", (int)type, flags);
    }
    if (rc == ncclSuccess && !hn_window_is_of(comm, window)) {
        rc = hn_fail(ncclInvalidArgument, "ncclPutSignal: %p is not a window of this communicator", (void *)window);
    }
    rc = rc != ncclSuccess ? rc : hn_window_of_peer(window, peer, &base, &size);
    if (rc == ncclSuccess && (offset > size || op.bytes > size - offset)) {
        rc = hn_fail(ncclInvalidArgument, "ncclPutSignal: %zu bytes at %zu of a window of %zu", op.bytes, offset, size);
    }
    if (rc == ncclSuccess && !hn_window_holds(comm, from, op.bytes)) {
        rc = hn_fail(ncclInvalidArgument, "ncclPutSignal: the local buffer lies in no symmetric window");
    }
    if (rc == ncclSuccess) {
        op.to = base + offset;
        rc = hn_submit_rma(comm, &op, 1, stream);
    }
    return rc;
}

static ncclResult_t signal_peer(int peer, int index, int ctx, unsigned flags, ncclComm_t comm, cudaStream_t stream)
{
    struct hn_rma op = {.peer = peer, .index = index};
    ncclResult_t rc = hn_comm_usable(comm, "ncclSignal");

    rc = rc != ncclSuccess ? rc : check_signal(comm, peer, index, ctx, "ncclSignal");
    if (rc == ncclSuccess && flags) {
        rc = hn_fail(ncclInvalidArgument, "ncclSignal: flags %u", flags);
    }
    return rc != ncclSuccess ? rc : hn_submit_rma(comm, &op, 1, stream);
}

static ncclResult_t wait_signals(int count, const ncclWaitSignalDesc_t *descs, ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t rc = hn_comm_usable(comm, "ncclWaitSignal");
    struct hn_rma *ops;

    if (rc == ncclSuccess && (count < 1 || !descs)) {
        rc = hn_fail(ncclInvalidArgument, "ncclWaitSignal: %d descriptors at %p", count, (const void *)descs);
    }
    if (rc != ncclSuccess) {
        return rc;
    }
    ops = calloc((size_t)count, sizeof(*ops));
    if (!ops) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    for (int i = 0; i < count && rc == ncclSuccess; i++) {
        rc = check_signal(comm, descs[i].peer, descs[i].sigIdx, descs[i].ctx, "ncclWaitSignal");
        if (rc == ncclSuccess && descs[i].opCnt < 0) {
            rc = hn_fail(ncclInvalidArgument, "ncclWaitSignal: %d signals", descs[i].opCnt);
        }
        ops[i] = (struct hn_rma){
            .is_wait = true, .peer = descs[i].peer, .index = descs[i].sigIdx, .signals = (uint32_t)descs[i].opCnt};
    }
    rc = rc != ncclSuccess ? rc : hn_submit_rma(comm, ops, (size_t)count, stream);
    free(ops);
    return rc;
}

/* Each call is a group of its own, or part of the caller's. */
static ncclResult_t ends(ncclResult_t rc)
{
    (void)hn_group_error(rc);
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclPutSignal, const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
       ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
       cudaStream_t stream)
{
    hn_debug("ncclPutSignal count %zu type %d peer %d window %p offset %zu comm %p", count, (int)datatype, peer,
             (void *)peerWin, peerWinOffset, (void *)comm);
    hn_group_start();
    return ends(put(localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags, comm, stream));
}

HN_API(ncclResult_t, ncclSignal, int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
       cudaStream_t stream)
{
    hn_debug("ncclSignal peer %d comm %p", peer, (void *)comm);
    hn_group_start();
    return ends(signal_peer(peer, sigIdx, ctx, flags, comm, stream));
}

HN_API(ncclResult_t, ncclWaitSignal, int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream)
{
    hn_debug("ncclWaitSignal of %d comm %p", nDesc, (void *)comm);
    hn_group_start();
    return ends(wait_signals(nDesc, signalDescs, comm, stream));
}
