/*
 * execute.c: see execute.h. Time is virtual: the thread with the lowest clock makes its next act, then the devices do
 * all that they can, then hosts whose wait is over go on. Who can go on does not depend on the order of these steps
 * (every wait is for all of its conditions, and none is ever taken back but by the end of a process), so the outcome
 * belongs to the program, and the order of times only to the records.
 */
#include "tests/simulation/execute.h"

#include "trace/ident.h"

#include <string.h>

#define LAUNCHES_MAX 3000u /* of one rank */
#define OPS_MAX      24000u
#define SLOTS_MAX    600u
#define PAIRS_MAX    3600u
#define MESSAGES_MAX 64u
#define DEVICE_NS    2000u
#define IN_PROGRESS  7u

enum launch_state { QUEUED, RUNNING, DONE };

struct op {
    uint16_t act;
    uint16_t pair; /* of a message, or UINT16_MAX */
    uint8_t side;
    uint8_t n;
    uint64_t bytes;
    bool over;
};

struct launch {
    uint32_t first_op, ops, colls; /* collectives first, then messages */
    uint32_t at;                   /* the collective that runs; colls: the messages do */
    uint16_t slot;
    uint8_t streams; /* mask */
    uint8_t comm, state;
    bool on_slot;
    uint32_t log;   /* the record by which its completion is told */
    uint32_t first; /* the record of its first call */
};

struct fifo {
    uint16_t launch[LAUNCHES_MAX];
    uint32_t head, tail;
};

struct slot {
    mask_t arrived;
    uint16_t act; /* of the first */
    bool bad;
};

enum block { FREE, ON_STREAMS, ON_CREATION, ON_COMM, ON_CONNECT, ON_MEET, ON_JOIN, ON_NOTHING };

struct host {
    uint64_t clock;
    uint16_t list[ACTS_MAX];
    uint32_t acts, pc;
    enum block block;
    uint64_t connects; /* communicators whose connections it waits for */
    struct poll poll;
    uint8_t streams; /* waited for */
    uint32_t upto;   /* launches before this one */
    int comm;        /* waited for; and of a creation: the parent */
    uint32_t creation;
    uint32_t log; /* the record that is open; UINT32_MAX = none */
    uint16_t act;
    bool in_group;
    uint32_t group;     /* 0: not given out yet */
    uint32_t group_log; /* its first record */
    uint32_t pending[256];
    uint32_t pendings;
    bool ended;
};

struct process {
    struct host host[THREADS_MAX];
    struct launch launch[LAUNCHES_MAX];
    uint32_t launches, settled;
    struct fifo stream[STREAMS_MAX], comm[COMMS_MAX];
    uint32_t seq[COMMS_MAX], coll[COMMS_MAX];
    uint16_t p2p[COMMS_MAX][RANKS_MAX][2];
    uint8_t id[COMMS_MAX];
    uint8_t ids, splits[COMMS_MAX];
    uint32_t groups;
    uint64_t doom, halt; /* when it is killed, stopped */
    int32_t doom_signal;
    uint32_t met[THREADS_MAX]; /* meetings of the threads that each has come to */
    uint64_t made;             /* communicators that are there */
    bool over, stopped, jammed;
};

static struct machine {
    const struct program *p;
    struct story *out;
    struct rng rng;
    uint64_t now;
    uint32_t mark;
    mask_t who;
    uint32_t threads; /* that the program's ranks have */
    bool polls;       /* some host does, or has */
    struct process proc[RANKS_MAX];
    struct op op[OPS_MAX];
    uint32_t ops;
    struct slot slot[COMMS_MAX][SLOTS_MAX];
    mask_t creation[COMMS_MAX][8]; /* by parent and number of the split; [comm][7] for an init */
    mask_t connected[COMMS_MAX];   /* have made their first collective */
    struct {
        uint8_t posted[2];
        uint8_t gone[2][MESSAGES_MAX];
        uint32_t bytes[2][MESSAGES_MAX];
    } pair[PAIRS_MAX];
    uint32_t pairs;
    uint16_t pair_of[COMMS_MAX][RANKS_MAX][RANKS_MAX];
    struct {
        uint8_t rank;
        uint16_t launch;
    } running[512];
    uint32_t runnings;
    bool full;
} m;

uint64_t story_key(const struct program *p, int comm)
{
    const struct comm_info *k = &p->comm[comm];
    if (k->parent < 0) {
        uint64_t id[2] = {(uint64_t)comm + 1, 77};
        return roll_key_unique_id(id, sizeof(id));
    }
    return roll_key_child(story_key(p, k->parent), k->child, k->color);
}

/* records */

static struct log *write_log(uint32_t rank, uint32_t thread, uint16_t act, enum roll_op op)
{
    struct rank_story *s = &m.out->rank[rank];
    if (s->logs == LOGS_MAX) {
        m.full = true;
        return &s->log[0];
    }
    const struct act *a = &m.p->act[act];
    struct log *log = &s->log[s->logs++];
    *log = (struct log){.rec = {.enter_ns = m.now,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .comm = 0,
                                .callsite = (uint16_t)(a->site),
                                .thread = (uint16_t)(thread + 1),
                                .layer = ROLL_LAYER_NONE,
                                .op = (uint8_t)op,
                                .dtype = ROLL_DTYPE_NONE,
                                .redop = ROLL_RED_NONE},
                        .enter_ns = m.now,
                        .back_ns = m.now + 200,
                        .done_ns = NEVER,
                        .act = act};
    uint32_t longest = m.p->pace_ns < 20000 ? m.p->pace_ns : 20000;
    log->back_ns = m.now + 200 + rng_below(&m.rng, longest) + a->slow * 10000u;
    return log;
}

static uint32_t last_log(uint32_t rank)
{
    return m.out->rank[rank].logs - 1;
}

static void define(uint32_t rank, int comm)
{
    struct rank_story *s = &m.out->rank[rank];
    struct process *q = &m.proc[rank];
    if (q->id[comm] == 0) {
        q->id[comm] = ++q->ids;
        s->def[s->defs].before = s->logs;
        s->def[s->defs++].comm = comm;
    }
}

static void come_back(uint32_t rank, struct host *h, uint64_t at)
{
    if (h->log != UINT32_MAX) {
        struct log *log = &m.out->rank[rank].log[h->log];
        uint64_t least = log->enter_ns + m.p->act[log->act].slow * 10000u; /* however soon its peers have connected */
        at = at > least ? at : least;
        log->back_ns = at;
        h->log = UINT32_MAX;
    }
    h->block = FREE;
    h->clock = at + rng_below(&m.rng, m.p->pace_ns);
}

/* A call that returns at once: its host goes on behind it. */
static void take_time(uint32_t rank, struct host *h)
{
    uint64_t back = m.out->rank[rank].log[last_log(rank)].back_ns;
    h->clock = back > h->clock && back != NEVER ? back : h->clock;
}

/* devices */

static bool lowered(unsigned op)
{
    return op == ROLL_OP_ALLTOALL || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}

static uint64_t act_bytes(const struct act *a)
{
    return a->count * dtype_width(a->dtype);
}

/* All of them come into one meeting: do they fit? Another reduction, another datatype of as many bytes: NCCL goes on.
 */
static bool fits(const struct act *a, const struct act *b)
{
    return a->op == b->op && act_bytes(a) == act_bytes(b) && a->peer == b->peer;
}

static uint16_t get_pair(int comm, uint32_t src, uint32_t dst)
{
    uint16_t *at = &m.pair_of[comm][src][dst];
    if (*at == 0) {
        if (m.pairs + 1 >= PAIRS_MAX) {
            m.full = true;
            return 1;
        }
        *at = (uint16_t)++m.pairs;
        m.pair[*at].posted[0] = m.pair[*at].posted[1] = 0;
    }
    return *at;
}

static void add_op(struct launch *l, uint16_t act, uint16_t pair, unsigned side, uint64_t bytes)
{
    if (m.ops == OPS_MAX) {
        m.full = true;
        return;
    }
    m.op[m.ops++] = (struct op){.act = act, .pair = pair, .side = (uint8_t)side, .bytes = bytes};
    l->ops++;
}

static void add_message(struct launch *l, uint16_t act, int comm, uint32_t src, uint32_t dst, unsigned side,
                        uint64_t bytes)
{
    add_op(l, act, get_pair(comm, src, dst), side, bytes);
}

/* AlltoAll, Gather and Scatter are sends and receives. */
static void add_lowered(struct launch *l, uint16_t act, uint32_t rank)
{
    const struct act *a = &m.p->act[act];
    mask_t others = m.p->comm[a->comm].members;
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        if ((others & BIT(r)) == 0 || r == rank) {
            continue;
        }
        bool to = a->op == ROLL_OP_ALLTOALL || (a->op == ROLL_OP_GATHER ? (int)r == a->peer : (int)rank == a->peer);
        bool from = a->op == ROLL_OP_ALLTOALL || (a->op == ROLL_OP_GATHER ? (int)rank == a->peer : (int)r == a->peer);
        if (to) {
            add_message(l, act, a->comm, rank, r, 0, act_bytes(a));
        }
        if (from) {
            add_message(l, act, a->comm, r, rank, 1, act_bytes(a));
        }
    }
}

static uint32_t size_class(const struct act *a)
{
    return 63u - (uint32_t)__builtin_clzll(act_bytes(a) | 1);
}

/* Inside a group NCCL runs collectives by size, then function, reduction and type. */
static bool goes_first(const struct act *a, const struct act *b)
{
    if (size_class(a) != size_class(b)) {
        return size_class(a) > size_class(b);
    }
    if (a->op != b->op) {
        return a->op < b->op;
    }
    return a->redop != b->redop ? a->redop < b->redop : a->dtype < b->dtype;
}

/* What one group, or one call, does on one communicator. */
static void launch(uint32_t rank, const uint32_t *act, uint32_t acts, int comm, uint32_t first, uint32_t log)
{
    struct process *q = &m.proc[rank];
    if (q->launches == LAUNCHES_MAX) {
        m.full = true;
        return;
    }
    struct launch *l = &q->launch[q->launches];
    *l = (struct launch){.first_op = m.ops, .comm = (uint8_t)comm, .log = log, .first = first};
    for (uint32_t i = 0; i < acts; i++) {
        const struct act *a = &m.p->act[act[i]];
        if (a->comm != comm) {
            continue;
        }
        l->streams = (uint8_t)(l->streams | 1u << a->stream);
        if (a->kind == ACT_COLL && !lowered(a->op) && a->count != 0) {
            add_op(l, (uint16_t)act[i], 0, 0, 0);
            for (uint32_t k = m.ops - 1; k > l->first_op; k--) {
                if (!goes_first(&m.p->act[m.op[k].act], &m.p->act[m.op[k - 1].act])) {
                    break;
                }
                struct op swap = m.op[k];
                m.op[k] = m.op[k - 1];
                m.op[k - 1] = swap;
            }
            l->colls++;
        }
    }
    for (uint32_t i = 0; i < acts; i++) {
        const struct act *a = &m.p->act[act[i]];
        if (a->comm != comm) {
            continue;
        }
        if (a->kind == ACT_COLL && lowered(a->op) && a->count != 0) {
            add_lowered(l, (uint16_t)act[i], rank);
        } else if (a->kind == ACT_SEND && a->peer != (int)rank) {
            add_message(l, (uint16_t)act[i], comm, rank, (uint32_t)a->peer, 0, act_bytes(a));
        } else if (a->kind == ACT_RECV && a->peer != (int)rank) {
            add_message(l, (uint16_t)act[i], comm, (uint32_t)a->peer, rank, 1, act_bytes(a));
        }
    }
    if (l->ops == 0) {
        return; /* dropped */
    }
    uint16_t id = (uint16_t)q->launches++;
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        if ((l->streams & 1u << s) != 0) {
            q->stream[s].launch[q->stream[s].tail++] = id;
        }
    }
    q->comm[comm].launch[q->comm[comm].tail++] = id;
}

static bool at_head(const struct fifo *f, uint32_t id)
{
    return f->head < f->tail && f->launch[f->head] == id;
}

static bool may_start(const struct process *q, uint32_t id)
{
    const struct launch *l = &q->launch[id];
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        if ((l->streams & 1u << s) != 0 && !at_head(&q->stream[s], id)) {
            return false;
        }
    }
    return at_head(&q->comm[l->comm], id);
}

static void post_messages(struct launch *l)
{
    for (uint32_t i = l->first_op + l->colls; i < l->first_op + l->ops; i++) {
        struct op *o = &m.op[i];
        uint8_t *posted = &m.pair[o->pair].posted[o->side];
        if (*posted == MESSAGES_MAX) {
            m.full = true;
            return;
        }
        o->n = (*posted)++;
        m.pair[o->pair].bytes[o->side][o->n] = (uint32_t)o->bytes;
        m.pair[o->pair].gone[o->side][o->n] = 0;
    }
}

static void begin_stage(struct process *q, uint32_t rank, struct launch *l)
{
    if (l->at == l->colls) {
        post_messages(l);
        return;
    }
    uint32_t k = q->coll[l->comm]++;
    if (k >= SLOTS_MAX) {
        m.full = true;
        return;
    }
    struct slot *s = &m.slot[l->comm][k];
    uint16_t act = m.op[l->first_op + l->at].act;
    if (s->arrived == 0 && !s->bad) {
        s->act = act;
    } else if (!fits(&m.p->act[s->act], &m.p->act[act])) {
        s->bad = true;
    }
    s->arrived = (mask_t)(s->arrived | BIT(rank));
    l->slot = (uint16_t)k;
}

/* A message is done when its partner is there; a send that is larger than its receive never is, nor a receive that gets
 * less. */
static bool messages_done(struct launch *l)
{
    bool all = true;
    for (uint32_t i = l->first_op + l->colls; i < l->first_op + l->ops; i++) {
        struct op *o = &m.op[i];
        if (!o->over) {
            uint32_t other = !o->side;
            bool there = m.pair[o->pair].posted[other] > o->n && !m.pair[o->pair].gone[other][o->n];
            uint32_t peers = m.pair[o->pair].bytes[other][o->n];
            o->over = there && (o->side == 0 ? o->bytes <= peers : peers >= o->bytes);
            all = all && o->over;
        }
    }
    return all;
}

static bool stage_done(struct launch *l)
{
    if (l->at == l->colls) {
        return messages_done(l);
    }
    const struct slot *s = &m.slot[l->comm][l->slot];
    return s->arrived == m.p->comm[l->comm].members && !s->bad;
}

static void leave_queues(struct process *q, struct launch *l)
{
    l->state = DONE;
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        q->stream[s].head += (l->streams & 1u << s) != 0;
    }
    q->comm[l->comm].head++;
}

static bool start_heads(uint32_t rank)
{
    struct process *q = &m.proc[rank];
    bool any = false;
    if (q->jammed || q->over) {
        return false;
    }
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        struct fifo *f = &q->stream[s];
        if (f->head == f->tail) {
            continue;
        }
        uint16_t id = f->launch[f->head];
        struct launch *l = &q->launch[id];
        if (l->state == QUEUED && may_start(q, id)) {
            if (m.runnings == sizeof(m.running) / sizeof(m.running[0])) {
                m.full = true;
                return any;
            }
            l->state = RUNNING;
            m.running[m.runnings].rank = (uint8_t)rank;
            m.running[m.runnings++].launch = id;
            begin_stage(q, rank, l);
            any = true;
        }
    }
    return any;
}

/* The devices do all that they can; true when anything was finished. */
static bool run_devices(mask_t fresh)
{
    bool any = false, moved = true;
    while (moved) {
        moved = false;
        for (uint32_t r = 0; r < m.p->ranks; r++) {
            if ((fresh & BIT(r)) != 0) {
                moved = start_heads(r) || moved;
            }
        }
        fresh = 0;
        for (uint32_t i = 0; i < m.runnings;) {
            uint32_t rank = m.running[i].rank;
            struct process *q = &m.proc[rank];
            struct launch *l = &q->launch[m.running[i].launch];
            if (l->state == RUNNING && stage_done(l)) {
                any = moved = true;
                if (l->at < l->colls && ++l->at <= l->colls && (l->at < l->colls || l->ops > l->colls)) {
                    begin_stage(q, rank, l);
                } else {
                    leave_queues(q, l);
                    m.out->rank[rank].log[l->log].done_ns = m.now + DEVICE_NS;
                    fresh = (mask_t)(fresh | BIT(rank));
                }
            }
            if (l->state == DONE) {
                m.running[i] = m.running[--m.runnings];
            } else {
                i++;
            }
        }
    }
    return any;
}

/* What this rank has begun on the communicator (-1: on all) is over for it, and its peers get nothing more from it. */
static void withdraw(uint32_t rank, int comm)
{
    struct process *q = &m.proc[rank];
    for (uint32_t id = 0; id < q->launches; id++) {
        struct launch *l = &q->launch[id];
        if (l->state == DONE || (comm >= 0 && l->comm != comm)) {
            continue;
        }
        if (l->state == RUNNING && l->at < l->colls) {
            struct slot *s = &m.slot[l->comm][l->slot];
            s->bad = s->arrived != m.p->comm[l->comm].members || s->bad;
            s->arrived = (mask_t)(s->arrived & ~BIT(rank));
        }
        for (uint32_t i = l->first_op + l->colls; l->state == RUNNING && l->at == l->colls && i < l->first_op + l->ops;
             i++) {
            m.pair[m.op[i].pair].gone[m.op[i].side][m.op[i].n] = !m.op[i].over;
        }
        m.out->stale = m.out->stale || comm < 0;
        if (l->state == RUNNING) {
            leave_queues(q, l);
            continue;
        }
        /* Not at the head of its queues: taken out of them. */
        l->state = DONE;
        for (uint32_t s = 0; s < STREAMS_MAX + 1; s++) {
            struct fifo *f = s < STREAMS_MAX ? &q->stream[s] : &q->comm[l->comm];
            uint32_t kept = f->head;
            for (uint32_t k = f->head; k < f->tail; k++) {
                if (f->launch[k] != id) {
                    f->launch[kept++] = f->launch[k];
                }
            }
            f->tail = kept;
        }
    }
    for (uint32_t i = 0; i < m.runnings;) {
        if (m.running[i].rank == rank && q->launch[m.running[i].launch].state == DONE) {
            m.running[i] = m.running[--m.runnings];
        } else {
            i++;
        }
    }
}

/* hosts */

static void end_process(uint32_t rank, enum roll_proc_state state, int32_t status)
{
    struct process *q = &m.proc[rank];
    struct rank_story *s = &m.out->rank[rank];
    withdraw(rank, -1);
    q->over = true;
    s->end_ns = m.now;
    s->state = state;
    s->status = status;
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        q->host[t].ended = true;
    }
}

static void number_call(uint32_t rank, struct log *log, const struct act *a)
{
    struct process *q = &m.proc[rank];
    bool taken = a->error == 0;
    if (a->kind == ACT_COLL) {
        log->rec.seq = q->seq[a->comm];
        q->seq[a->comm] += a->count != 0 && taken;
        return;
    }
    uint16_t *n = &q->p2p[a->comm][a->peer][a->kind == ACT_RECV];
    log->rec.seq = *n;
    *n = (uint16_t)(*n + taken);
}

static bool nonblocking(const struct act *a)
{
    return a->comm >= 0 && m.p->comm[a->comm].nonblocking;
}

/* The state of a nonblocking communicator changes back to success: that is recorded. */
static void write_async(uint32_t rank, uint32_t thread, uint16_t act, int comm)
{
    struct log *log = write_log(rank, thread, act, ROLL_OP_COMM_ASYNC);
    log->rec.comm = m.proc[rank].id[comm];
    log->rec.flags = ROLL_FLAG_NONBLOCKING;
}

/* The first collective of a communicator makes connections: the host is held until all members have come. */
static void connect(uint32_t rank, struct host *h, int comm, uint32_t log)
{
    if (m.p->connects && (m.connected[comm] & BIT(rank)) == 0) {
        m.connected[comm] = (mask_t)(m.connected[comm] | BIT(rank));
        h->connects = (h->block == ON_CONNECT ? h->connects : 0) | 1ull << comm;
        h->block = ON_CONNECT;
        h->log = log;
        m.out->rank[rank].log[log].back_ns = NEVER;
    }
}

static bool all_connected(const struct host *h)
{
    for (uint32_t c = 0; c < m.p->comms; c++) {
        if ((h->connects & 1ull << c) != 0 && m.connected[c] != m.p->comm[c].members) {
            return false;
        }
    }
    return true;
}

static void make_call(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &m.p->act[act];
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    struct log *log = write_log(rank, thread, act,
                                a->kind == ACT_COLL   ? (enum roll_op)a->op
                                : a->kind == ACT_SEND ? ROLL_OP_SEND
                                                      : ROLL_OP_RECV);
    log->rec.comm = q->id[a->comm];
    log->rec.count = a->count;
    log->rec.dtype = a->dtype;
    log->rec.redop = a->redop;
    log->rec.stream = (uint16_t)(a->stream + 2);
    log->rec.peer = a->peer < 0 ? ROLL_PEER_NONE : (int32_t)comm_rank(m.p, a->comm, (uint32_t)a->peer);
    log->rec.result = a->error;
    log->rec.flags = nonblocking(a) ? ROLL_FLAG_NONBLOCKING : 0;
    number_call(rank, log, a);
    if (h->in_group) {
        h->group_log = h->group ? h->group_log : last_log(rank);
        h->group = h->group ? h->group : ++q->groups;
        log->rec.group = h->group;
        log->rec.flags |= ROLL_FLAG_IN_GROUP;
        if (a->error == 0 && h->pendings < sizeof(h->pending) / sizeof(h->pending[0])) {
            h->pending[h->pendings++] = act;
        }
        return;
    }
    take_time(rank, h);
    if (a->error == 0) {
        uint32_t one = act;
        launch(rank, &one, 1, a->comm, last_log(rank), last_log(rank));
        if (a->kind == ACT_COLL && a->count != 0 && !nonblocking(a)) {
            connect(rank, h, a->comm, last_log(rank));
        }
        if (nonblocking(a)) {
            log->rec.result = IN_PROGRESS;
            write_async(rank, thread, act, a->comm);
        }
    }
}

/* Nothing of the group was enqueued: its numbers are given again. */
static void take_back(struct process *q, struct host *h)
{
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &m.p->act[h->pending[i]];
        if (a->kind == ACT_COLL) {
            q->seq[a->comm] -= a->count != 0;
        } else {
            q->p2p[a->comm][a->peer][a->kind == ACT_RECV]--;
        }
    }
    h->group = 0;
    h->pendings = 0;
}

static bool has_collective(const struct host *h, int comm)
{
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &m.p->act[h->pending[i]];
        if (a->comm == comm && a->kind == ACT_COLL && a->count != 0) {
            return true;
        }
    }
    return false;
}

/* The end of a group launches one communicator after the other, in ascending order of their hashes. */
static void end_group(uint32_t rank, uint32_t thread, uint16_t act)
{
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    h->in_group = false;
    if (h->group == 0) {
        return; /* empty: no record */
    }
    uint8_t error = m.p->act[act].error;
    struct log *log = write_log(rank, thread, act, ROLL_OP_GROUP_END);
    uint32_t at = last_log(rank);
    log->rec.group = h->group;
    log->rec.aux = (uint16_t)h->pendings;
    take_time(rank, h);
    if (error != 0) {
        log->rec.result = error == SIMULATED ? 0 : error;
        log->rec.count = error == SIMULATED;
        take_back(q, h);
        return;
    }
    bool slow = false;
    uint64_t comms = 0;
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &m.p->act[h->pending[i]];
        log->rec.stream = log->rec.stream ? log->rec.stream : (uint16_t)(a->stream + 2);
        slow = slow || nonblocking(a);
        comms |= 1ull << a->comm;
    }
    for (int c = 0; c < (int)m.p->comms && !slow; c++) {
        if ((comms & 1ull << c) != 0 && has_collective(h, c)) {
            connect(rank, h, c, at);
        }
    }
    while (comms != 0) {
        int best = -1;
        for (int c = 0; c < (int)m.p->comms; c++) {
            if ((comms & 1ull << c) != 0 && (best < 0 || story_key(m.p, c) < story_key(m.p, best))) {
                best = c;
            }
        }
        comms &= ~(1ull << best);
        launch(rank, h->pending, h->pendings, best, h->group_log, at);
        if (slow) {
            log->rec.result = IN_PROGRESS;
            write_async(rank, thread, act, best);
            log = &m.out->rank[rank].log[at];
        }
    }
    h->group = 0;
    h->pendings = 0;
}

/* A loop of polls: said by a record after 100 ms, and by others as story_poll_on says. */
static void begin_polls(struct host *h, enum roll_op op, uint16_t stream, uint16_t comm, uint64_t place)
{
#ifndef ROLL_SIM_BEFORE /* it recorded no polls */
    m.polls = true;
#endif
    h->poll = (struct poll){.since_ns = m.now,
                            .next_ns = m.now + POLL_FIRST_NS,
                            .log = UINT32_MAX,
                            .op = (uint8_t)op,
                            .stream = stream,
                            .comm = comm,
                            .place = place,
                            .on = true};
}

static void end_polls(uint32_t rank, struct host *h, uint64_t at)
{
    if (h->poll.on && h->poll.log != UINT32_MAX) {
        struct log *log = &m.out->rank[rank].log[h->poll.log];
        log->back_ns = at;
        log->rec.result = 0;
    }
    h->poll.on = false;
}

void story_poll(struct log *out, const struct poll *poll, uint32_t thread)
{
    uint64_t lasts_ms = (poll->next_ns - poll->since_ns) / MS_;
    *out = (struct log){.rec = {.enter_ns = poll->next_ns,
                                .count = poll->place,
                                .seq = (uint32_t)lasts_ms,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .comm = poll->comm,
                                .stream = poll->stream,
                                .thread = (uint16_t)(thread + 1),
                                .layer = ROLL_LAYER_NONE,
                                .op = poll->op,
                                .dtype = ROLL_DTYPE_NONE,
                                .redop = ROLL_RED_NONE,
                                .aux = (uint16_t)(lasts_ms < UINT16_MAX ? lasts_ms : UINT16_MAX)},
                        .enter_ns = poll->next_ns,
                        .back_ns = NEVER,
                        .done_ns = NEVER};
}

/* As interposer/cuda/poll.c does it: the older the loop is, the more rarely. */
void story_poll_on(struct poll *poll)
{
    uint64_t age = poll->next_ns - poll->since_ns;
    uint64_t again = age >= 60 * S_ ? age / 60 : age / 5 < S_ ? age / 5 : S_;
    again = again > 30 * S_ ? 30 * S_ : again;
    poll->next_ns += again > 200 * MS_ ? again : 200 * MS_;
}

static void write_poll(uint32_t rank, uint32_t thread)
{
    struct host *h = &m.proc[rank].host[thread];
    struct log *log = write_log(rank, thread, h->act, (enum roll_op)h->poll.op);
    uint32_t before = h->poll.log;
    story_poll(log, &h->poll, thread);
    log->act = h->act;
    h->poll.log = last_log(rank);
    if (before != UINT32_MAX) {
        m.out->rank[rank].log[before].back_ns = h->poll.next_ns;
        m.out->rank[rank].log[before].rec.result = POLL_GOES_ON;
    }
    story_poll_on(&h->poll);
}

/* Tickets count from 0; a record's place is that number plus 1. Where an event was recorded: behind it comes this
 * launch. */
static uint64_t event_place(uint32_t rank, const struct process *q, uint32_t upto)
{
    return upto < q->launches ? q->launch[upto].first + 1u : m.out->rank[rank].logs + 1u;
}

static void begin_wait(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &m.p->act[act];
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    h->block = ON_STREAMS;
    h->streams = (uint8_t)(a->kind == ACT_DEVICE ? 0xffu : 1u << a->stream);
    h->upto = q->launches;
    const struct fifo *f = &q->stream[a->stream];
    if (a->kind == ACT_EVENT && a->count > 0) {
        h->upto = f->tail >= a->count ? f->launch[f->tail - a->count] : 0;
    }
    uint64_t place = event_place(rank, q, h->upto);
    if (a->kind == ACT_STREAM || a->kind == ACT_EVENT || a->kind == ACT_DEVICE) {
        struct log *log = write_log(rank, thread, act,
                                    a->kind == ACT_STREAM  ? ROLL_OP_STREAM_SYNC
                                    : a->kind == ACT_EVENT ? ROLL_OP_EVENT_SYNC
                                                           : ROLL_OP_DEVICE_SYNC);
        log->rec.stream = a->kind == ACT_DEVICE ? 0 : (uint16_t)(a->stream + 2);
        log->rec.count = a->kind == ACT_EVENT ? place : 0;
        log->back_ns = NEVER;
        h->log = last_log(rank);
    } else if (a->kind == ACT_POLL) {
        bool event = a->count != 0;
        begin_polls(h, event ? ROLL_OP_EVENT_QUERY : ROLL_OP_STREAM_QUERY, (uint16_t)(a->stream + 2), 0,
                    event ? place : 0);
    }
}

static void begin_creation(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &m.p->act[act];
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    bool init = a->kind == ACT_INIT;
    if (init) {
        define(rank, a->comm);
    }
    struct log *log = write_log(rank, thread, act, init ? ROLL_OP_COMM_INIT : ROLL_OP_COMM_SPLIT);
    log->rec.comm = q->id[a->comm];
    log->rec.count = init ? mask_count(m.p->comm[a->comm].members) : 0;
    log->rec.peer = init ? (int32_t)comm_rank(m.p, a->comm, rank) : a->child < 0 ? -1 : m.p->comm[a->child].color;
    log->rec.aux = init ? 0 : q->splits[a->comm];
    h->creation = init ? 7u : q->splits[a->comm]++;
    h->comm = a->comm;
    h->block = ON_CREATION;
    m.creation[a->comm][h->creation % 8] = (mask_t)(m.creation[a->comm][h->creation % 8] | BIT(rank));
    if (nonblocking(a)) {
        log->rec.result = IN_PROGRESS;
        log->rec.flags = ROLL_FLAG_NONBLOCKING;
        begin_polls(h, ROLL_OP_COMM_QUERY, 0, q->id[a->comm], 0);
    } else {
        log->back_ns = NEVER;
        h->log = last_log(rank);
    }
}

static void life(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &m.p->act[act];
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    struct log *log = write_log(rank, thread, act, a->kind == ACT_ABORT ? ROLL_OP_COMM_ABORT : ROLL_OP_COMM_DESTROY);
    log->rec.comm = q->id[a->comm];
    if (a->kind == ACT_ABORT) {
        withdraw(rank, a->comm);
        return;
    }
    log->back_ns = NEVER;
    h->log = last_log(rank);
    h->block = ON_COMM;
    h->comm = a->comm;
}

static mask_t creation_needs(const struct act *a)
{
    return m.p->comm[a->comm].members;
}

static bool others_ended(const struct process *q, const struct host *h)
{
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        const struct host *o = &q->host[t];
        if (o != h && !o->ended && (o->pc < o->acts || o->block != FREE)) {
            return false;
        }
    }
    return true;
}

/* Is the thread's wait over? */
static bool wait_over(uint32_t rank, struct host *h)
{
    struct process *q = &m.proc[rank];
    const struct act *a = &m.p->act[h->act];
    switch (h->block) {
    case ON_STREAMS:
        for (uint32_t s = 0; s < STREAMS_MAX; s++) {
            const struct fifo *f = &q->stream[s];
            if ((h->streams & 1u << s) != 0 && f->head < f->tail && f->launch[f->head] < h->upto) {
                return false;
            }
        }
        return true;
    case ON_CREATION:
        return m.creation[h->comm][h->creation % 8] == creation_needs(a);
    case ON_COMM:
        return q->comm[h->comm].head == q->comm[h->comm].tail;
    case ON_CONNECT:
        return all_connected(h);
    case ON_MEET:
        return q->met[0] == q->met[1];
    case ON_JOIN:
        return others_ended(q, h);
    default:
        return false;
    }
}

static void go_on(uint32_t rank, uint32_t thread)
{
    struct host *h = &m.proc[rank].host[thread];
    const struct act *a = &m.p->act[h->act];
    enum block block = h->block;
    end_polls(rank, h, m.now + DEVICE_NS);
    come_back(rank, h, m.now + DEVICE_NS + rng_below(&m.rng, 2000));
    if (block == ON_MEET) {
        h->clock = m.now + DEVICE_NS + rng_below(&m.rng, 4000); /* both at once */
    }
    if (block != ON_CREATION) {
        return;
    }
    int made = a->kind == ACT_SPLIT ? a->child : a->comm;
    if (made >= 0) {
        define(rank, made);
        m.proc[rank].made |= 1ull << made;
    }
    if (nonblocking(a)) {
        write_async(rank, thread, h->act, a->comm);
    }
}

static void leave(uint32_t rank, const struct act *a)
{
    int32_t code = (int32_t)a->count;
    bool quick = a->error == 1; /* _exit: no last words */
    end_process(rank, quick && code != 0 ? ROLL_PROC_DEAD : ROLL_PROC_FINISHED, code << 8);
}

static void make_act(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &m.p->act[act];
    struct process *q = &m.proc[rank];
    struct host *h = &q->host[thread];
    h->act = act;
    h->clock = m.now + 300 + rng_below(&m.rng, a->slow ? 2000 : m.p->pace_ns);
    if (act >= m.mark && (m.who & BIT(rank)) != 0 && m.out->event_ns == NEVER) {
        m.out->event_ns = m.now;
    }
    switch ((enum kind)a->kind) {
    case ACT_COLL:
    case ACT_SEND:
    case ACT_RECV:
        make_call(rank, thread, act);
        break;
    case ACT_GROUP:
        h->in_group = true;
        break;
    case ACT_END:
        end_group(rank, thread, act);
        break;
    case ACT_STREAM:
    case ACT_EVENT:
    case ACT_DEVICE:
    case ACT_COPY:
    case ACT_POLL:
        begin_wait(rank, thread, act);
        break;
    case ACT_PAUSE:
        h->clock = m.now + a->count;
        break;
    case ACT_INIT:
    case ACT_SPLIT:
        begin_creation(rank, thread, act);
        break;
    case ACT_DESTROY:
    case ACT_ABORT:
        life(rank, thread, act);
        break;
    case ACT_EXIT:
        if (a->error == 0 && !others_ended(q, h)) {
            h->block = ON_JOIN;
            h->pc--; /* again */
            break;
        }
        leave(rank, a);
        break;
    case ACT_DOOM:
        q->doom = m.now + a->count;
        q->doom_signal = a->peer;
        break;
    case ACT_STOP:
        q->halt = m.now + a->count;
        break;
    case ACT_SPIN:
        h->block = ON_NOTHING;
        break;
    case ACT_MEET:
        q->met[thread]++;
        h->block = ON_MEET;
        break;
    case ACT_JAM:
        q->jammed = true;
        break;
    case ACT_KINDS:
        break;
    }
}

static void wake(void)
{
    for (uint32_t r = 0; r < m.p->ranks; r++) {
        struct process *q = &m.proc[r];
        for (uint32_t t = m.threads; t-- > 0;) { /* the first thread waits for the others, and is asked last */
            struct host *h = &q->host[t];
            if (!q->over && !q->stopped && h->block != FREE && wait_over(r, h)) {
                go_on(r, t);
            }
        }
    }
}

/* A rank is killed or stopped at its hour, whatever it does. */
static uint64_t next_fate(uint32_t *rank)
{
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < m.p->ranks; r++) {
        const struct process *q = &m.proc[r];
        uint64_t when = q->doom < q->halt ? q->doom : q->halt;
        if (!q->over && when < at) {
            at = when;
            *rank = r;
        }
    }
    return at;
}

/* A second thread begins with a communicator when the first one has made it. */
static bool is_ready(const struct process *q, const struct host *h)
{
    if (h->block != FREE || h->pc == h->acts) {
        return false;
    }
    const struct act *a = &m.p->act[h->list[h->pc]];
    return a->comm < 0 || a->kind == ACT_INIT || (q->made & 1ull << a->comm) != 0;
}

/* Of the hosts that poll: who says next that it still does. */
static uint64_t next_poll(uint32_t *rank, uint32_t *thread)
{
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < m.p->ranks; r++) {
        const struct process *q = &m.proc[r];
        for (uint32_t t = 0; m.polls && !q->over && !q->stopped && t < m.threads; t++) {
            const struct host *h = &q->host[t];
            if (h->poll.on && h->poll.next_ns < at) {
                at = h->poll.next_ns;
                *rank = r;
                *thread = t;
            }
        }
    }
    return at;
}

static bool step(void)
{
    uint32_t rank = 0, thread = 0, fated = 0;
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < m.p->ranks; r++) {
        const struct process *q = &m.proc[r];
        for (uint32_t t = 0; !q->over && !q->stopped && t < m.threads; t++) {
            const struct host *h = &q->host[t];
            if (is_ready(q, h) && h->clock < at) {
                at = h->clock;
                rank = r;
                thread = t;
            }
        }
    }
    uint64_t fate = next_fate(&fated);
    if (at == NEVER && fate == NEVER) {
        return false;
    }
    uint32_t poller = 0, polling = 0;
    uint64_t poll = next_poll(&poller, &polling);
    if (poll <= at && poll <= fate) {
        m.now = poll > m.now ? poll : m.now;
        write_poll(poller, polling);
        return !m.full;
    }
    if (fate <= at) {
        struct process *q = &m.proc[fated];
        m.now = fate > m.now ? fate : m.now;
        if (q->doom == fate) {
            end_process(fated, ROLL_PROC_DEAD, q->doom_signal);
        } else {
            q->halt = NEVER;
            q->stopped = true;
            m.out->rank[fated].stop_ns = m.now;
        }
        q->doom = q->over ? NEVER : q->doom;
    } else {
        struct host *h = &m.proc[rank].host[thread];
        m.now = at > m.now ? at : m.now;
        make_act(rank, thread, h->list[h->pc++]);
        fated = rank;
    }
    run_devices(BIT(fated));
    wake();
    return !m.full;
}

static void start(const struct program *p, struct story *out, uint64_t seed)
{
    m.p = p;
    m.out = out;
    m.rng.state = seed;
    m.now = START_NS;
    m.ops = m.pairs = m.runnings = 0;
    m.threads = 1;
    m.polls = false;
    m.full = false;
    memset(m.slot, 0, sizeof(m.slot[0]) * p->comms);
    memset(m.creation, 0, sizeof(m.creation));
    memset(m.connected, 0, sizeof(m.connected));
    memset(m.pair_of, 0, sizeof(m.pair_of[0]) * p->comms);
    for (uint32_t r = 0; r < p->ranks; r++) {
        struct process *q = &m.proc[r];
        struct rank_story *s = &out->rank[r];
        q->made = 0;
        q->launches = q->settled = q->ids = 0;
        q->groups = q->met[0] = q->met[1] = 0;
        q->over = q->stopped = q->jammed = false;
        q->doom = q->halt = NEVER;
        memset(q->seq, 0, sizeof(q->seq));
        memset(q->coll, 0, sizeof(q->coll));
        memset(q->p2p, 0, sizeof(q->p2p));
        memset(q->id, 0, sizeof(q->id));
        memset(q->splits, 0, sizeof(q->splits));
        for (uint32_t i = 0; i < STREAMS_MAX; i++) {
            q->stream[i].head = q->stream[i].tail = 0;
        }
        for (uint32_t i = 0; i < p->comms; i++) {
            q->comm[i].head = q->comm[i].tail = 0;
        }
        s->logs = s->defs = 0;
        s->stop_ns = s->end_ns = NEVER;
        s->state = ROLL_PROC_RUNNING;
        s->status = ROLL_EXIT_UNKNOWN;
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            struct host *h = &q->host[t];
            h->clock = START_NS + MS_ + rng_below(&m.rng, p->pace_ns);
            h->acts = h->pc = h->group = h->pendings = 0;
            h->block = FREE;
            h->log = UINT32_MAX;
            h->in_group = h->ended = h->poll.on = false;
            s->stuck[t] = NO_ACT;
        }
    }
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        m.threads = a->thread != 0 ? THREADS_MAX : m.threads;
        for (mask_t left = a->ranks; left != 0; left = (mask_t)(left & (left - 1))) {
            struct host *h = &m.proc[mask_first(left)].host[a->thread];
            h->list[h->acts++] = (uint16_t)i;
        }
    }
}

int execute(const struct program *p, struct story *out, uint32_t mark, mask_t who, uint64_t seed)
{
    start(p, out, seed);
    m.mark = mark;
    m.who = who;
    out->hangs = out->stale = false;
    out->waiting = 0;
    out->event_ns = NEVER;
    while (step()) {
    }
    if (m.full) {
        return -1;
    }
    out->still_ns = m.now;
    for (uint32_t r = 0; r < p->ranks; r++) {
        struct process *q = &m.proc[r];
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            out->rank[r].poll[t] = q->host[t].poll;
            out->rank[r].poll[t].on = q->host[t].poll.on && !q->over && !q->stopped;
        }
        for (uint32_t t = 0; t < THREADS_MAX && !q->over; t++) {
            if (q->host[t].block != FREE && q->host[t].block != ON_NOTHING) {
                out->hangs = true;
                out->waiting = (mask_t)(out->waiting | BIT(r));
                out->rank[r].stuck[t] = q->host[t].act;
            }
        }
    }
    return 0;
}
