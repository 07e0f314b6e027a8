/*
 * run_coll.c: the collectives, on the outboxes of the communicator's segment.
 *
 * Every collective is cut into pieces, and every rank goes through the same pieces in lock-step. For a piece, a rank
 *   1. waits until no rank reads its slot any more (HN_SLOTS pieces back), puts its contribution in, and posts;
 *   2. waits until all ranks have posted, and at the first piece compares its own call with what the others say of
 * theirs;
 *   3. reads what it needs from the others' slots, in rank order, and marks the piece consumed.
 * An all-reduce of more than a few KiB has a step between 2 and 3: each rank reduces one part for all, in place in its
 * slot.
 *
 * Compared is what NCCL's kernels depend on: function, bytes, root. Type and reduction are not compared: ranks that
 * differ in those get wrong data, silently. A difference that is found is a hang on every rank of the communicator. In
 * NCCL the root of a small broadcast can run ahead of a missing rank; here it waits for all ranks, so that a program
 * cannot pass by the luck of a buffer.
 *
 * With HOSTNCCL_DATA=skip a longer payload is left out: the collective is then one piece of all its bytes, which every
 * rank posts, compares and consumes like any other piece, and puts into no slot and takes from none. All ranks agree on
 * that (they agree on the bytes, or hang; a communicator has one setting).
 *
 * Ranks that are stood in for (present.c) have no part in this: where their slot is meant, the map gives that of the
 * lowest rank that is present, so their contributions are copies of its own. A broadcast whose root is one of them has
 * what that rank gives in its own broadcast of the same group, else what its receive buffer holds; a reduction to such
 * a root reaches nobody.
 *
 * Rejected: reducing into one shared accumulator (the order of arrival would decide the bits), and a barrier per step
 * (one late rank would cause a wake-up of all; waiting on the counter of one rank at a time wakes only those that need
 * it).
 */
#include "hostnccl/nccl/internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ALIGN = 64, ONE_STEP_BYTES = 4096 };

/* The piece at hand: `at` and `len` in the units of the caller's block. */
struct piece {
    ncclComm_t comm;
    const struct hn_coll *coll;
    uint32_t index;
    size_t at, len;
    bool left_out; /* no buffer is touched */
};

static char *slot_of(const struct piece *p, int rank)
{
    return hn_map_bytes(&p->comm->map, hn_map_slot_at(&p->comm->map, rank, p->index));
}

static const char *send_at(const struct piece *p, size_t at)
{
    return (const char *)p->coll->send + at;
}

static char *recv_at(const struct piece *p, size_t at)
{
    return (char *)p->coll->recv + at;
}

static size_t elements(const struct piece *p, size_t bytes)
{
    return bytes / hn_type_size(p->coll->type);
}

/* Reduces `len` bytes at `at` of every rank's slot into `out`, rank 0 first. */
static void reduce_slots(const struct piece *p, char *out, size_t at, size_t len)
{
    size_t count = elements(p, len);

    if (!len) {
        return;
    }
    memcpy(out, slot_of(p, 0) + at, len);
    for (int r = 1; r < p->comm->nranks; r++) {
        hn_reduce_next(out, slot_of(p, r) + at, count, p->coll->type, &p->coll->op);
    }
    hn_reduce_last(out, count, p->coll->type, &p->coll->op);
}

/* Waits for one counter of every other rank; this rank's own counter has passed already. */
static int wait_all(ncclComm_t comm, size_t word_offset, uint32_t target)
{
    for (int r = 0; r < comm->nranks; r++) {
        struct hn_word *word = (void *)((char *)hn_map_rank(&comm->map, r) + word_offset);
        if (hn_word_wait_reach(&comm->exec_wait, word, target)) {
            return -1;
        }
    }
    return 0;
}

/* Finds the part of the piece that `rank` reduces for all. */
static void part_of(const struct piece *p, int rank, size_t *at, size_t *len)
{
    const struct ncclComm *comm = p->comm;
    size_t n = comm->map.places, r = (size_t)(comm->place ? comm->place[rank] : rank);
    size_t each = ((p->len + n - 1) / n + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;

    *at = r * each < p->len ? r * each : p->len;
    *len = *at + each < p->len ? each : p->len - *at;
}

static void put_reduced_input(const struct piece *p)
{
    hn_reduce_input(slot_of(p, p->comm->rank), send_at(p, p->at), elements(p, p->len), p->coll->type, &p->coll->op);
}

static int take_allreduce(const struct piece *p)
{
    ncclComm_t comm = p->comm;
    size_t at, len;

    if (p->coll->bytes <= ONE_STEP_BYTES) {
        reduce_slots(p, recv_at(p, p->at), 0, p->len);
        return 0;
    }
    part_of(p, comm->rank, &at, &len);
    reduce_slots(p, recv_at(p, p->at + at), at, len);
    memcpy(slot_of(p, comm->rank) + at, recv_at(p, p->at + at), len);
    hn_word_set(&hn_map_rank(&comm->map, comm->rank)->reduced, p->index + 1);
    if (wait_all(comm, offsetof(struct hn_rank, reduced), p->index + 1)) {
        return -1;
    }
    for (int r = 0; r < comm->nranks; r++) {
        part_of(p, r, &at, &len);
        if (r != comm->rank) {
            memcpy(recv_at(p, p->at + at), slot_of(p, r) + at, len);
        }
    }
    return 0;
}

static int take_reduce(const struct piece *p)
{
    if (p->comm->rank == p->coll->root) {
        reduce_slots(p, recv_at(p, p->at), 0, p->len);
    }
    return 0;
}

/* The root, or the rank that has the buffer of a root that is stood in for. */
static int giver_of(const struct piece *p)
{
    return hn_is_absent(p->comm, p->coll->root) ? p->comm->lowest : p->coll->root;
}

static void put_broadcast(const struct piece *p)
{
    char *slot = slot_of(p, p->comm->rank);

    if (p->comm->rank == p->coll->root) {
        memcpy(slot, send_at(p, p->at), p->len);
    } else if (p->comm->rank == giver_of(p)) {
        size_t given = p->coll->instead && p->coll->instead_bytes > p->at ? p->coll->instead_bytes - p->at : 0;
        memcpy(slot, recv_at(p, p->at), p->len);
        if (given) {
            memcpy(slot, (const char *)p->coll->instead + p->at, given < p->len ? given : p->len);
        }
    }
}

static int take_broadcast(const struct piece *p)
{
    if (p->comm->rank != p->coll->root || p->coll->recv != p->coll->send) {
        memcpy(recv_at(p, p->at), slot_of(p, giver_of(p)), p->len);
    }
    return 0;
}

static void put_allgather(const struct piece *p)
{
    memcpy(slot_of(p, p->comm->rank), send_at(p, p->at), p->len);
}

static int take_allgather(const struct piece *p)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        memcpy(recv_at(p, (size_t)r * p->coll->bytes + p->at), slot_of(p, r), p->len);
    }
    return 0;
}

/* The slot holds one part of p->len bytes for each rank. */
static void put_reducescatter(const struct piece *p)
{
    char *slot = slot_of(p, p->comm->rank);

    for (size_t r = 0; r < (size_t)p->comm->nranks; r++) {
        hn_reduce_input(slot + r * p->len, send_at(p, r * p->coll->bytes + p->at), elements(p, p->len), p->coll->type,
                        &p->coll->op);
    }
}

static int take_reducescatter(const struct piece *p)
{
    reduce_slots(p, recv_at(p, p->at), (size_t)p->comm->rank * p->len, p->len);
    return 0;
}

static const struct {
    const char *name;
    void (*put)(const struct piece *);
    int (*take)(const struct piece *);
    bool split_slot; /* a slot is shared by one part per rank */
} KINDS[HN_KIND_COUNT] = {
    [HN_ALLREDUCE] = {"AllReduce", put_reduced_input, take_allreduce, false},
    [HN_BROADCAST] = {"Broadcast", put_broadcast, take_broadcast, false},
    [HN_REDUCE] = {"Reduce", put_reduced_input, take_reduce, false},
    [HN_ALLGATHER] = {"AllGather", put_allgather, take_allgather, false},
    [HN_REDUCESCATTER] = {"ReduceScatter", put_reducescatter, take_reducescatter, true},
};

/*
 * Compares the calls of the other ranks with this rank's call. Returns 0, or -1 after the hang of a mismatch has ended.
 */
static int compare_heads(const struct piece *p, const struct hn_head *own)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        const struct hn_head *h = &hn_map_rank(&p->comm->map, r)->head[p->index % HN_SLOTS];
        if (h->kind == own->kind && h->captured == own->captured && h->root == own->root && h->bytes == own->bytes) {
            continue;
        }
        return hn_mismatch_found(p->comm, "%s%s of %zu bytes, root %d, but rank %d does %s%s of %zu bytes, root %d",
                                 own->captured ? "captured " : "", KINDS[own->kind].name, (size_t)own->bytes, own->root,
                                 r, h->captured ? "captured " : "", h->kind < HN_KIND_COUNT ? KINDS[h->kind].name : "?",
                                 (size_t)h->bytes, h->root);
    }
    return 0;
}

static int run_piece(const struct piece *p, const struct hn_head *own)
{
    ncclComm_t comm = p->comm;
    struct hn_rank *self = hn_map_rank(&comm->map, comm->rank);

    if (wait_all(comm, offsetof(struct hn_rank, consumed), p->index + 1 - HN_SLOTS)) {
        return -1;
    }
    self->head[p->index % HN_SLOTS] = *own;
    if (!p->left_out) {
        KINDS[own->kind].put(p);
    }
    hn_word_set(&self->posted, p->index + 1);
    if (wait_all(comm, offsetof(struct hn_rank, posted), p->index + 1) || (p->at == 0 && compare_heads(p, own)) ||
        (!p->left_out && KINDS[own->kind].take(p))) {
        return -1;
    }
    hn_word_set(&self->consumed, p->index + 1);
    return 0;
}

/* The collective of a communicator of one rank: a copy, scaled and divided as the operation asks. */
static void run_alone(const struct hn_coll *coll)
{
    bool reduces = coll->kind != HN_BROADCAST && coll->kind != HN_ALLGATHER;

    if (reduces) {
        hn_reduce_input(coll->recv, coll->send, coll->count, coll->type, &coll->op);
    } else if (coll->recv != coll->send) {
        memmove(coll->recv, coll->send, coll->bytes);
    }
}

/*
 * Whether this rank's part reads or writes a null buffer. The check comes before anything is said to the peers: NCCL
 * does not promise which part of its work a kernel does before it dies.
 */
static bool lacks_buffer(ncclComm_t comm, const struct hn_coll *coll)
{
    bool is_root = comm->rank == coll->root;
    bool reads = coll->kind != HN_BROADCAST || is_root, writes = coll->kind != HN_REDUCE || is_root;

    return (reads && !coll->send) || (writes && !coll->recv);
}

int hn_run_coll(ncclComm_t comm, const struct hn_coll *coll)
{
    const struct hn_head own = {
        .kind = (uint16_t)coll->kind, .captured = coll->captured, .root = coll->root, .bytes = coll->bytes};
    bool left_out = hn_leaves_out(coll->bytes);
    size_t step = left_out ? coll->bytes : comm->map.chunk;

    if (lacks_buffer(comm, coll)) {
        return hn_fault(comm, KINDS[coll->kind].name);
    }
    if (comm->nranks == 1) {
        if (!left_out) {
            run_alone(coll);
        }
        return 0;
    }
    if (KINDS[coll->kind].split_slot && !left_out) {
        step = step / (size_t)comm->nranks / PART_ALIGN * PART_ALIGN;
    }
    for (size_t at = 0; at < coll->bytes; at += step) {
        struct piece p = {comm, coll, comm->pieces, at, coll->bytes - at < step ? coll->bytes - at : step, left_out};
        if (run_piece(&p, &own)) {
            return -1;
        }
        comm->pieces++;
    }
    return 0;
}
