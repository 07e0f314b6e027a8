/*
 * mutate_make.c: how each mistake changes the program: acts are left out, added, moved or changed for the ranks that
 * make it.
 */
#include "tests/simulation/mutate.h"

#include <string.h>

/* The ranks `who` get a copy of act `at` as an act of their own, behind it. Returns the copy's place, or UINT32_MAX. */
static uint32_t split_off(struct program *p, uint32_t at, mask_t who)
{
    struct act own = p->act[at];
    own.ranks = (mask_t)(own.ranks & who);
    p->act[at].ranks = (mask_t)(p->act[at].ranks & ~who);
    if (own.ranks == 0 || !program_insert(p, at + 1, &own)) {
        return UINT32_MAX;
    }
    return at + 1;
}

static uint32_t unit_begin(const struct program *p, uint32_t at)
{
    while (at > 0 && p->act[at - 1].unit == p->act[at].unit) {
        at--;
    }
    return at;
}

static uint32_t unit_end(const struct program *p, uint32_t at)
{
    while (at + 1 < p->acts && p->act[at + 1].unit == p->act[at].unit) {
        at++;
    }
    return at + 1;
}

static bool same_meaning(const struct act *a, const struct act *b)
{
    return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop && a->peer == b->peer;
}

static bool change_argument(struct program *p, struct mutation *k, uint32_t at)
{
    at = split_off(p, at, k->who);
    if (at == UINT32_MAX) {
        return false;
    }
    static const uint8_t other_ops[] = {ROLL_OP_ALLREDUCE, ROLL_OP_REDUCESCATTER, ROLL_OP_ALLGATHER, ROLL_OP_ALLTOALL};
    static const uint8_t other_types[] = {ROLL_DTYPE_FLOAT32, ROLL_DTYPE_FLOAT64, ROLL_DTYPE_BFLOAT16,
                                          ROLL_DTYPE_INT32};
    struct act *a = &p->act[at], before = p->act[at];
    mask_t members = p->comm[a->comm].members;
    k->mark = at;
    switch (k->kind) {
    case MUTATION_COUNT:
        a->count = k->param % 3 == 0 ? a->count * 2 : a->count + 1 + k->param % 9;
        return true;
    case MUTATION_ZERO:
        a->count = 0;
        return true;
    case MUTATION_DTYPE:
        for (uint32_t i = 0; i < 4 && a->dtype == before.dtype; i++) {
            a->dtype = other_types[(k->param + i) % 4];
        }
        return true;
    case MUTATION_REDOP:
    case MUTATION_AFTER_REDOP:
        a->redop = (uint8_t)((a->redop + 1 + k->param % (ROLL_RED_PREMUL - 1)) % ROLL_RED_PREMUL);
        return !same_meaning(a, &before);
    case MUTATION_ROOT:
        a->peer = (int8_t)mask_at(
            members, (comm_rank(p, a->comm, (uint32_t)a->peer) + 1 + k->param % (mask_count(members) - 1)) %
                         mask_count(members));
        return !same_meaning(a, &before);
    default:
        for (uint32_t i = 0; i < 4 && a->op == before.op; i++) {
            a->op = other_ops[(k->param + i) % 4];
        }
        a->peer = -1;
        a->redop = a->op == ROLL_OP_ALLREDUCE || a->op == ROLL_OP_REDUCESCATTER ? ROLL_RED_SUM : ROLL_RED_NONE;
        return true;
    }
}

/* The next plain collective of all of `who` behind `at`: on the same communicator, or on another. */
static bool next_call(const struct program *p, uint32_t at, mask_t who, bool same, uint32_t *out)
{
    const struct act *a = &p->act[at];
    for (uint32_t i = at + 1; i < p->acts; i++) {
        const struct act *b = &p->act[i];
        if ((b->ranks & who) == 0 || b->thread != a->thread) {
            continue;
        }
        if (b->kind == ACT_DESTROY || b->kind == ACT_ABORT || b->kind == ACT_EXIT || b->kind == ACT_SPLIT ||
            b->kind == ACT_INIT || b->kind == ACT_GROUP || b->kind == ACT_SEND || b->kind == ACT_RECV) {
            return false;
        }
        if (b->kind == ACT_COLL && b->error == 0 && b->unit != a->unit) {
            if ((b->comm == a->comm) != same || (b->ranks & who) != who) {
                return false;
            }
            *out = i;
            return (!same || !same_meaning(a, b)) && !program_unit_refused(p, b->unit);
        }
    }
    return false;
}

static bool swap(struct program *p, struct mutation *k, uint32_t at, bool same)
{
    uint32_t later;
    if (!next_call(p, at, k->who, same, &later)) {
        return false;
    }
    uint32_t own = split_off(p, at, k->who);
    if (own == UINT32_MAX) {
        return false;
    }
    struct act moved = p->act[own];
    memmove(&p->act[own], &p->act[own + 1],
            (later - own) * sizeof(moved)); /* later has moved by one: it is later + 1 */
    p->act[later] = p->act[later + 1];
    p->act[later + 1] = moved;
    k->mark = at;
    return true;
}

/* `who` makes another call of the kind of act `at` at place `to`. */
static bool add_call(struct program *p, struct mutation *k, uint32_t at, uint32_t to)
{
    struct act extra = p->act[at];
    extra.ranks = k->who;
    extra.site = extra.site ? 999 : 0;
    if (k->param % 3 != 0) {
        extra.count += 1 + k->param % 50;
    }
    if (k->param % 7 == 0 && extra.peer < 0) {
        extra.op = extra.op == ROLL_OP_ALLREDUCE ? ROLL_OP_ALLGATHER : ROLL_OP_ALLREDUCE;
        extra.redop = extra.op == ROLL_OP_ALLREDUCE ? ROLL_RED_SUM : ROLL_RED_NONE;
    }
    k->mark = to;
    return program_insert(p, to, &extra);
}

/* Ranks do not make their acts of this unit, or only those of one communicator. */
static void leave_out(struct program *p, uint16_t unit, int comm, mask_t who)
{
    for (uint32_t i = 0; i < p->acts; i++) {
        struct act *a = &p->act[i];
        if (a->unit == unit && (comm < 0 || a->comm == comm)) {
            a->ranks = (mask_t)(a->ranks & ~who);
        }
    }
}

/* A rank's all-to-all-v, with all of its messages empty where that is asked for. */
static bool leave_exchange(struct program *p, struct mutation *k)
{
    uint32_t rank = mask_first(k->who);
    uint32_t messages = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        struct act *a = &p->act[i];
        bool its = (a->kind == ACT_SEND || a->kind == ACT_RECV) && a->unit == k->unit && a->comm == k->comm &&
                   (a->ranks == k->who || a->peer == (int)rank);
        if (its && k->kind == MUTATION_NO_EMPTY) {
            a->count = 0;
        }
        if (its && a->ranks == k->who) {
            a->ranks = 0;
            k->mark = messages++ == 0 ? i : k->mark;
        }
    }
    return messages > 2;
}

/* The rank makes no more use of the communicator from act `from` on. */
static void forget_comm(struct program *p, uint32_t from, int comm, mask_t who)
{
    for (uint32_t i = from; i < p->acts; i++) {
        struct act *a = &p->act[i];
        if (a->comm == comm) {
            a->ranks = (mask_t)(a->ranks & ~who);
        }
        if (a->kind == ACT_SPLIT && a->comm == comm && a->child >= 0) {
            forget_comm(p, i + 1, a->child, who);
        }
    }
}

static bool insert_fate(struct program *p, struct mutation *k, uint32_t at, enum kind kind)
{
    struct act a = {.ranks = k->who,
                    .unit = p->act[at].unit,
                    .kind = (uint8_t)kind,
                    .thread = p->act[at].thread,
                    .comm = -1,
                    .child = -1,
                    .peer = -1};
    if (kind == ACT_EXIT) {
        a.error = 2; /* does not wait for its other threads */
        a.count = k->kind == MUTATION_EXIT || k->kind == MUTATION_EXIT_UNDONE ? 0 : 1 + k->param % 3;
        if (a.count != 0 && k->param % 2 == 0) {
            a.error = 1;
        }
    } else if (kind == ACT_DOOM) {
        static const int8_t signals[] = {9, 11, 6, 9, 15};
        a.peer = signals[k->param % 5];
        a.count = k->kind == MUTATION_KILL_WAIT ? MS_ * (k->param % 40) : 0;
    } else if (kind == ACT_DESTROY || kind == ACT_ABORT) {
        a.comm = k->comm;
    }
    k->mark = at;
    return program_insert(p, at, &a);
}

/* An exit behind act `own`: act `at` may be the first of another unit, and of another thread. */
static bool insert_exit(struct program *p, struct mutation *k, uint32_t own)
{
    uint8_t thread = p->act[own].thread;
    bool done = insert_fate(p, k, own + 1, ACT_EXIT);
    p->act[own + 1].thread = thread;
    k->mark = own;
    return done;
}

/* The place behind everything that a communicator is used for. */
static uint32_t last_use(const struct program *p, int comm)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].comm == comm && act_is_call(&p->act[i])) {
            last = i;
        }
    }
    return unit_end(p, last);
}

/* All others make one more call on the parent before the split. */
static bool skip_before_split(struct program *p, struct mutation *k, uint32_t at)
{
    struct act call = {.ranks = (mask_t)(p->comm[k->comm].members & ~k->who),
                       .unit = (uint16_t)(p->units++),
                       .kind = ACT_COLL,
                       .thread = p->act[at].thread,
                       .stream = 0,
                       .op = k->param % 2 ? ROLL_OP_ALLREDUCE : ROLL_OP_ALLGATHER,
                       .dtype = ROLL_DTYPE_FLOAT32,
                       .redop = k->param % 2 ? ROLL_RED_SUM : ROLL_RED_NONE,
                       .comm = k->comm,
                       .child = -1,
                       .peer = -1,
                       .count = 77 + k->param % 100};
    struct act wait = call;
    wait.kind = ACT_STREAM;
    wait.comm = -1;
    wait.count = 0;
    wait.redop = ROLL_RED_NONE;
    wait.dtype = ROLL_DTYPE_NONE;
    wait.ranks = p->comm[k->comm].members;
    at = unit_begin(p, at);
    k->mark = at;
    return call.ranks != 0 && (k->param % 3 != 0 || program_insert(p, at, &wait)) && program_insert(p, at, &call);
}

static bool head_to_head(struct program *p, struct mutation *k, uint32_t at)
{
    /* a sends, b receives, b sends, a receives: b sends first, or a receives first. */
    if (at + 3 >= p->acts || p->act[at + 1].kind != ACT_RECV || p->act[at + 2].kind != ACT_SEND ||
        p->act[at + 3].kind != ACT_RECV || p->act[at + 2].ranks != p->act[at + 1].ranks) {
        return false;
    }
    uint32_t first = k->param % 2 ? at + 1 : at, second = k->param % 2 ? at + 2 : at + 3;
    struct act swap_act = p->act[first];
    p->act[first] = p->act[second];
    p->act[second] = swap_act;
    k->who = p->act[first].ranks;
    k->mark = first;
    return true;
}

/* On one communicator without the group: each rank sends before it receives. An all-to-all-v is left alone. */
static bool ungroup(struct program *p, struct mutation *k, uint32_t at)
{
    uint32_t begin = unit_begin(p, at), end = unit_end(p, at);
    mask_t seen = 0, members = p->comm[k->comm].members;
    for (uint32_t i = begin; i < end; i++) {
        struct act *a = &p->act[i];
        if (a->kind == ACT_SEND && a->comm == k->comm) {
            if ((seen & a->ranks) != 0 || a->peer == (int)mask_first(a->ranks)) {
                return false;
            }
            seen = (mask_t)(seen | a->ranks);
        } else if (a->kind == ACT_GROUP || a->kind == ACT_END) {
            a->ranks = (mask_t)(a->ranks & ~members);
        }
    }
    k->who = seen;
    k->mark = begin;
    return seen == members;
}

static bool wrong_comm(struct program *p, struct mutation *k, uint32_t at)
{
    k->who = BIT(mask_first(k->who));
    for (uint32_t c = 1; c < p->comms; c++) {
        uint32_t other = (c + k->param) % p->comms;
        if ((int)other == k->comm || (p->comm[other].members & k->who) == 0 ||
            p->comm[other].members == p->comm[k->comm].members || mask_count(p->comm[other].members) < 2 ||
            (p->act[at].peer >= 0 && (p->comm[other].members & BIT(p->act[at].peer)) == 0)) {
            continue;
        }
        bool made = false;
        for (uint32_t i = 0; i < at; i++) {
            made = made || (p->act[i].kind == ACT_SPLIT && p->act[i].child == (int)other);
        }
        if (!made) {
            continue;
        }
        uint32_t own = split_off(p, at, k->who);
        if (own == UINT32_MAX) {
            return false;
        }
        p->act[own].comm = (int8_t)other;
        k->mark = own;
        return true;
    }
    return false;
}

static bool insert_meet(struct program *p, uint32_t at, mask_t who, uint8_t thread, uint16_t unit)
{
    struct act a = {.ranks = who,
                    .unit = unit,
                    .kind = ACT_MEET,
                    .thread = thread,
                    .dtype = ROLL_DTYPE_NONE,
                    .redop = ROLL_RED_NONE,
                    .comm = -1,
                    .child = -1,
                    .peer = -1};
    return program_insert(p, at, &a);
}

/* The ranks `who` make their acts of a unit apart, slowly, on this thread. Returns the place behind these acts. */
static uint32_t split_unit(struct program *p, uint32_t begin, uint32_t end, uint32_t to, mask_t who, uint8_t thread)
{
    struct act own[64];
    uint32_t n = 0;
    for (uint32_t i = begin; i < end && n < 64; i++) {
        if ((p->act[i].ranks & who) != 0) {
            own[n] = p->act[i];
            own[n].ranks = (mask_t)(own[n].ranks & who);
            own[n].thread = thread;
            own[n++].slow = 3;
            p->act[i].ranks = (mask_t)(p->act[i].ranks & ~who);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)program_insert(p, to++, &own[i]);
    }
    return to;
}

/* The next unit of calls on the same communicator is made by another thread, at the same time as this one. */
static bool race(struct program *p, struct mutation *k, uint32_t at)
{
    k->who = BIT(mask_first(k->who));
    uint32_t begin = unit_begin(p, at), end = unit_end(p, at), next = end;
    while (next < p->acts && ((p->act[next].ranks & k->who) == 0 || p->act[next].comm != k->comm)) {
        if ((p->act[next].ranks & k->who) != 0 && p->act[next].comm >= 0) {
            return false; /* it would be overtaken */
        }
        next++;
    }
    if (next == p->acts || !act_is_collective(&p->act[next]) || p->act[next].thread != 0 || end - begin > 40) {
        return false;
    }
    uint32_t next_begin = unit_begin(p, next), next_end = unit_end(p, next);
    uint16_t unit = p->act[begin].unit;
    for (uint32_t i = next_begin; i < next_end; i++) {
        if (p->act[i].comm >= 0 && p->act[i].comm != k->comm && (p->act[i].ranks & k->who) != 0) {
            return false; /* only this communicator, or the order of others is changed too */
        }
    }
    uint32_t to = split_unit(p, next_begin, next_end, end, k->who, 1); /* behind the first one */
    if (!insert_meet(p, end, k->who, 1, unit) || !insert_meet(p, to + 1, k->who, 1, unit) ||
        !insert_meet(p, to + 1, k->who, 0, unit)) {
        return false;
    }
    (void)split_unit(p, begin, end, end, k->who, 0);
    k->mark = begin;
    return insert_meet(p, end, k->who, 0, unit);
}

bool mutation_make(struct program *p, struct mutation *k, uint32_t at)
{
    uint32_t own;
    k->mark = at;
    switch (k->kind) {
    case MUTATION_SKIP_SPLIT:
        return skip_before_split(p, k, at);
    case MUTATION_SKIP:
        p->act[at].ranks = (mask_t)(p->act[at].ranks & ~k->who);
        return true;
    case MUTATION_ADD:
        return add_call(p, k, at, unit_end(p, at));
    case MUTATION_EXTRA_GROUP:
        return add_call(p, k, at, at + 1);
    case MUTATION_LONE:
        return add_call(p, k, at, last_use(p, k->comm));
    case MUTATION_SWAP_SAME:
        return swap(p, k, at, true);
    case MUTATION_SWAP_COMMS:
        return swap(p, k, at, false);
    case MUTATION_COUNT:
    case MUTATION_DTYPE:
    case MUTATION_OP:
    case MUTATION_REDOP:
    case MUTATION_AFTER_REDOP:
    case MUTATION_ROOT:
    case MUTATION_ZERO:
        return change_argument(p, k, at);
    case MUTATION_BYTES:
        p->act[at].count = k->param % 4 == 0 && p->act[at].count > 0 ? 0 : p->act[at].count + 1 + k->param % 9;
        return true;
    case MUTATION_NO_SEND:
    case MUTATION_NO_RECV:
        p->act[at].ranks = 0;
        return true;
    case MUTATION_NO_EXCHANGE:
    case MUTATION_NO_EMPTY:
        return leave_exchange(p, k);
    case MUTATION_HEAD_TO_HEAD:
        return head_to_head(p, k, at);
    case MUTATION_WRONG_COMM:
        return wrong_comm(p, k, at);
    case MUTATION_UNGROUPED:
        return ungroup(p, k, at);
    case MUTATION_REFUSED_P2P:
        p->act[at].error = 4;
        return true;
    case MUTATION_NO_INIT:
        p->act[at].ranks = (mask_t)(p->act[at].ranks & ~k->who);
        forget_comm(p, at + 1, k->comm, k->who);
        return true;
    case MUTATION_EXIT:
    case MUTATION_EXIT_CODE:
        return insert_fate(p, k, unit_begin(p, at), ACT_EXIT);
    case MUTATION_EXIT_UNDONE:
        return insert_exit(p, k, at);
    case MUTATION_KILL_HOST:
        return insert_fate(p, k, unit_begin(p, at), ACT_DOOM);
    case MUTATION_KILL_WAIT:
        return insert_fate(p, k, at, ACT_DOOM);
    case MUTATION_STOP:
        return insert_fate(p, k, unit_begin(p, at), ACT_STOP);
    case MUTATION_SPIN:
        return insert_fate(p, k, unit_begin(p, at), ACT_SPIN);
    case MUTATION_DESTROY:
    case MUTATION_ABORT:
        at = unit_begin(p, at);
        forget_comm(p, at, k->comm, k->who);
        return insert_fate(p, k, at, k->kind == MUTATION_DESTROY ? ACT_DESTROY : ACT_ABORT);
    case MUTATION_NO_SPLIT:
        leave_out(p, k->unit, -1, k->who);
        for (uint32_t i = at; i < p->acts && p->act[i].unit == k->unit; i++) {
            if (p->act[i].child >=
                0) { /* a colour of nobody makes none, and -1 stands for acts without a communicator */
                forget_comm(p, i + 1, p->act[i].child, k->who);
            }
        }
        return true;
    case MUTATION_REFUSED_ON:
    case MUTATION_REFUSED_EXIT:
        own = split_off(p, at, k->who);
        if (own == UINT32_MAX) {
            return false;
        }
        p->act[own].error = 4;
        k->mark = own;
        return k->kind == MUTATION_REFUSED_ON || insert_exit(p, k, own);
    case MUTATION_RACE:
        return race(p, k, at);
    case MUTATION_AFTER_PAUSE:
        own = unit_begin(p, at);
        if (!insert_fate(p, k, own, ACT_PAUSE)) {
            return false;
        }
        p->act[own].count = 5500 * MS_ + MS_ * (k->param % 2000);
        return true;
    case MUTATION_JAM:
        return insert_fate(p, k, unit_begin(p, at), ACT_JAM);
    case MUTATION_KINDS:
        break;
    }
    return false;
}
