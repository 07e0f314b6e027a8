/*
 * generate.c: see generate.h. A job makes its communicators (the world, then grids by splits), repeats a step of random
 * items, and ends. An item is drawn anew from its own seed each time it is made, so a periodic program makes the same
 * calls in every step; a program that is not periodic draws new seeds. All ranks make items in one common order, each
 * item complete in itself: that is what makes the program correct.
 */
#include "tests/simulation/generate.h"

#include "tests/simulation/shrink.h"

#include <string.h>

#define CLASSES_MAX 8u
#define ITEMS_MAX   24u

/* The siblings of one split; the world is a class of one. */
struct class
{
    uint8_t first, comms;
    uint8_t thread, stream;
};

struct maker {
    struct program *p;
    struct rng rng; /* of the program as a whole */
    struct class class[CLASSES_MAX];
    uint32_t classes;
    uint8_t splits[COMMS_MAX];
    struct {
        uint64_t seed;
        uint16_t site;
    } item[ITEMS_MAX];
    uint32_t items;
    bool events, polls, refusals, skews, sites, varied_waits;
    bool threads;     /* a rank has two, which must not wait for each other's streams: they would wait in a circle */
    uint32_t seconds; /* seconds of skew that are left: in a slower program a rank is rightly called busy */
};

static mask_t everybody(const struct program *p)
{
    return (mask_t)((1u << p->ranks) - 1);
}

static struct act plain(struct maker *k, enum kind kind, mask_t ranks)
{
    return (struct act){.ranks = ranks,
                        .unit = (uint16_t)k->p->units,
                        .kind = (uint8_t)kind,
                        .dtype = ROLL_DTYPE_NONE,
                        .redop = ROLL_RED_NONE,
                        .comm = -1,
                        .child = -1,
                        .peer = -1};
}

static void add(struct maker *k, const struct act *a)
{
    (void)program_add(k->p, a);
}

/* communicators */

static int new_comm(struct maker *k, const char *label, mask_t members, int parent, int color)
{
    struct program *p = k->p;
    struct comm_info *c = &p->comm[p->comms];
    *c = (struct comm_info){.members = members, .parent = (int8_t)parent, .color = (int8_t)color};
    if (parent >= 0) {
        c->child = k->splits[parent];
        c->nonblocking = p->comm[parent].nonblocking;
    }
    snprintf(c->label, sizeof(c->label), "%s", label);
    return (int)p->comms++;
}

static void make_world(struct maker *k, const char *label, bool nonblocking)
{
    int comm = new_comm(k, label, everybody(k->p), -1, -1);
    k->p->comm[comm].nonblocking = nonblocking;
    struct act a = plain(k, ACT_INIT, everybody(k->p));
    a.comm = (int8_t)comm;
    add(k, &a);
    k->p->units++;
    k->class[k->classes++] = (struct class){.first = (uint8_t)comm, .comms = 1};
}

/* Rank r goes to colour r / block when `rows`, else to r % block. Those of `none` take part without a colour. */
static void make_grid(struct maker *k, const char *label, uint32_t block, bool rows, mask_t none)
{
    struct program *p = k->p;
    uint32_t colors = rows ? (p->ranks + block - 1) / block : block;
    if (k->classes == CLASSES_MAX || p->comms + colors > COMMS_MAX) {
        return;
    }
    struct class class = {.first = (uint8_t)p->comms, .comms = (uint8_t)colors};
    for (uint32_t color = 0; color < colors; color++) {
        mask_t members = 0;
        for (uint32_t r = 0; r < p->ranks; r++) {
            members = (mask_t)(members | ((rows ? r / block : r % block) == color ? BIT(r) & ~none : 0));
        }
        if (mask_count(members) == 0) {
            class.comms--;
            continue;
        }
        struct act a = plain(k, ACT_SPLIT, members);
        a.comm = 0;
        a.child = (int8_t)new_comm(k, label, members, 0, (int)color);
        add(k, &a);
    }
    if (none != 0) {
        struct act a = plain(k, ACT_SPLIT, none);
        a.comm = 0;
        add(k, &a);
    }
    k->splits[0]++;
    p->units++;
    if (class.comms > 0) {
        k->class[k->classes++] = class;
    }
}

static void make_comms(struct maker *k)
{
    uint32_t n = k->p->ranks;
    make_world(k, "world", rng_chance(&k->rng, 10));
    if (rng_chance(&k->rng, 25)) {
        return;
    }
    if (rng_chance(&k->rng, 15)) {
        make_world(k, "data", false);
    }
    uint32_t block[4], blocks = 0;
    for (uint32_t b = 2; b <= n / 2 && blocks < 4; b++) {
        if (n % b == 0) {
            block[blocks++] = b;
        }
    }
    if (blocks > 0) {
        uint32_t tp = block[rng_below(&k->rng, blocks)];
        make_grid(k, "tp", tp, true, 0);
        make_grid(k, "dp", tp, false, 0);
        if (blocks > 1 && rng_chance(&k->rng, 40)) {
            make_grid(k, "ep", block[rng_below(&k->rng, blocks)], rng_chance(&k->rng, 50), 0);
        }
    } else {
        make_grid(k, "dp", n, true, rng_chance(&k->rng, 30) ? 1 : 0); /* one colour: the world, or nearly */
    }
}

/* Each class on a stream of its own, or all on one; one class may have a thread of its own. */
static void place_classes(struct maker *k)
{
    bool many_streams = rng_chance(&k->rng, 50);
    uint32_t threaded = k->classes > 1 && rng_chance(&k->rng, 12) ? 1 + rng_below(&k->rng, k->classes - 1) : UINT32_MAX;
    for (uint32_t i = 0; i < k->classes; i++) {
        k->class[i].stream = many_streams ? (uint8_t)(i % 3) : 0;
        if (i == threaded && !k->p->comm[0].nonblocking) {
            k->threads = true;
            k->class[i].thread = 1;
            k->class[i].stream = 5;
        }
    }
}

/* items */

static const uint8_t dtypes[] = {ROLL_DTYPE_FLOAT32, ROLL_DTYPE_FLOAT32, ROLL_DTYPE_BFLOAT16, ROLL_DTYPE_FLOAT16,
                                 ROLL_DTYPE_FLOAT64, ROLL_DTYPE_INT32,   ROLL_DTYPE_INT64};
static const uint8_t ops[] = {ROLL_OP_ALLREDUCE,     ROLL_OP_ALLREDUCE, ROLL_OP_ALLREDUCE, ROLL_OP_BROADCAST,
                              ROLL_OP_REDUCE,        ROLL_OP_ALLGATHER, ROLL_OP_ALLGATHER, ROLL_OP_REDUCESCATTER,
                              ROLL_OP_REDUCESCATTER, ROLL_OP_ALLTOALL,  ROLL_OP_GATHER,    ROLL_OP_SCATTER};

static uint64_t draw_count(struct rng *rng)
{
    static const uint16_t common[] = {1, 64, 100, 256, 512, 1000, 1024, 4096};
    return rng_chance(rng, 60) ? common[rng_below(rng, 8)] : 1 + rng_below(rng, 5000);
}

static bool op_reduces(unsigned op)
{
    return op == ROLL_OP_ALLREDUCE || op == ROLL_OP_REDUCE || op == ROLL_OP_REDUCESCATTER;
}

static bool op_rooted(unsigned op)
{
    return op == ROLL_OP_BROADCAST || op == ROLL_OP_REDUCE || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}

/* A collective of all siblings of a class. */
static void make_collective(struct maker *k, struct rng *rng, const struct class *class, uint16_t site)
{
    uint8_t op = ops[rng_below(rng, sizeof(ops))];
    uint8_t dtype = dtypes[rng_below(rng, sizeof(dtypes))];
    uint8_t redop = (uint8_t)(rng_chance(rng, 70) ? ROLL_RED_SUM : rng_below(rng, ROLL_RED_LIMIT));
    uint64_t count = draw_count(rng);
    uint32_t root = rng_chance(rng, 60) ? 0 : rng_next(rng);
    /* Empty on all ranks: dropped everywhere. One sibling alone: another stage of a pipeline. */
    count = rng_chance(rng, 3) ? 0 : count;
    /* Now and then on another stream: NCCL keeps the order of a communicator's calls across streams. */
    uint8_t stream = rng_chance(rng, 10) && !k->threads ? (uint8_t)rng_below(rng, 3) : class->stream;
    uint32_t only = class->comms > 1 && rng_chance(rng, 12) ? rng_below(rng, class->comms) : class->comms;
    for (uint32_t i = 0; i < class->comms; i++) {
        int comm = class->first + (int)i;
        mask_t members = k->p->comm[comm].members;
        if (only < class->comms && i != only) {
            continue;
        }
        struct act a = plain(k, ACT_COLL, members);
        a.thread = class->thread;
        a.stream = stream;
        a.site = site;
        a.comm = (int8_t)comm;
        a.op = op;
        a.dtype = dtype;
        a.redop = op_reduces(op) ? redop : ROLL_RED_NONE;
        a.count = count;
        a.peer = op_rooted(op) ? (int8_t)mask_at(members, root % mask_count(members)) : -1;
        add(k, &a);
    }
}

static void group_mark(struct maker *k, enum kind kind, mask_t ranks, uint8_t thread)
{
    struct act a = plain(k, kind, ranks);
    a.thread = thread;
    add(k, &a);
}

static void make_group(struct maker *k, struct rng *rng, const struct class *class, uint16_t site)
{
    const struct class *other = &k->class[rng_below(rng, k->classes)];
    bool alike = k->p->comm[other->first].nonblocking == k->p->comm[class->first].nonblocking; /* NCCL refuses others */
    bool mixed = rng_chance(rng, 30) && other->thread == class->thread && alike;
    uint32_t calls = 2 + rng_below(rng, 3);
    group_mark(k, ACT_GROUP, everybody(k->p), class->thread);
    for (uint32_t i = 0; i < calls; i++) {
        make_collective(k, rng, mixed && i % 2 == 1 ? other : class, (uint16_t)(site + i));
    }
    group_mark(k, ACT_END, everybody(k->p), class->thread);
}

static void message(struct maker *k, const struct class *class, int comm, uint32_t from, uint32_t to, bool send,
                    uint64_t count, uint8_t dtype, uint16_t site)
{
    struct act a = plain(k, send ? ACT_SEND : ACT_RECV, BIT(send ? from : to));
    a.thread = class->thread;
    a.stream = class->stream;
    a.site = site;
    a.comm = (int8_t)comm;
    a.peer = (int8_t)(send ? to : from);
    a.count = count;
    a.dtype = dtype;
    add(k, &a);
}

/* Each sends to the next and receives from the one before, in one group. */
static void make_ring(struct maker *k, struct rng *rng, const struct class *class, uint16_t site)
{
    uint64_t count = rng_chance(rng, 8) ? 0 : draw_count(rng);
    uint8_t dtype = dtypes[rng_below(rng, sizeof(dtypes))];
    group_mark(k, ACT_GROUP, everybody(k->p), class->thread);
    for (uint32_t i = 0; i < class->comms; i++) {
        mask_t members = k->p->comm[class->first + i].members;
        uint32_t n = mask_count(members);
        for (uint32_t r = 0; n > 1 && r < n; r++) {
            uint32_t at = mask_at(members, r), next = mask_at(members, (r + 1) % n),
                     before = mask_at(members, (r + n - 1) % n);
            message(k, class, class->first + (int)i, at, next, true, count, dtype, site);
            message(k, class, class->first + (int)i, before, at, false, count, dtype, (uint16_t)(site + 1));
        }
    }
    group_mark(k, ACT_END, everybody(k->p), class->thread);
}

/* Plain sends and receives down a chain of ranks, and sometimes an answer for each. */
static void make_chain(struct maker *k, struct rng *rng, const struct class *class, uint16_t site)
{
    uint64_t count = rng_chance(rng, 8) ? 0 : draw_count(rng);
    bool answer = rng_chance(rng, 40);
    for (uint32_t i = 0; i < class->comms; i++) {
        int comm = class->first + (int)i;
        mask_t members = k->p->comm[comm].members;
        uint32_t n = mask_count(members);
        for (uint32_t r = 0; r + 1 < n && r < 4; r++) {
            uint32_t a = mask_at(members, r), b = mask_at(members, r + 1);
            message(k, class, comm, a, b, true, count, ROLL_DTYPE_FLOAT32, site);
            message(k, class, comm, a, b, false, count, ROLL_DTYPE_FLOAT32, (uint16_t)(site + 1));
            if (answer) {
                message(k, class, comm, b, a, true, count + 8, ROLL_DTYPE_FLOAT32, (uint16_t)(site + 2));
                message(k, class, comm, b, a, false, count + 8, ROLL_DTYPE_FLOAT32, (uint16_t)(site + 3));
            }
        }
    }
}

/* All-to-all-v: all pairs, many of them empty; frameworks send to themselves as well. */
static void make_exchange(struct maker *k, struct rng *rng, const struct class *class, uint16_t site)
{
    uint32_t empty = rng_chance(rng, 30) ? 70 : 20;
    if (mask_count(k->p->comm[class->first].members) > 8) {
        make_collective(k, rng, class, site);
        return;
    }
    group_mark(k, ACT_GROUP, everybody(k->p), class->thread);
    for (uint32_t i = 0; i < class->comms; i++) {
        int comm = class->first + (int)i;
        mask_t members = k->p->comm[comm].members;
        uint32_t n = mask_count(members);
        uint64_t count[8][8];
        for (uint32_t s = 0; s < n; s++) {
            bool none = rng_chance(rng, 15);
            for (uint32_t d = 0; d < n; d++) {
                count[s][d] = none || rng_chance(rng, empty) ? 0 : 16 * (1 + rng_below(rng, 20));
            }
        }
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t o = 0; o < n; o++) {
                uint32_t me = mask_at(members, r), peer = mask_at(members, o);
                message(k, class, comm, me, peer, true, count[r][o], ROLL_DTYPE_FLOAT32, site);
                message(k, class, comm, peer, me, false, count[o][r], ROLL_DTYPE_FLOAT32, (uint16_t)(site + 1));
            }
        }
    }
    group_mark(k, ACT_END, everybody(k->p), class->thread);
}

static enum kind draw_wait(struct maker *k, struct rng *rng)
{
    uint32_t kind = rng_below(rng, 100);
    if (k->events && kind < 40) {
        return ACT_EVENT;
    }
    if (k->polls && kind < 70) {
        return rng_chance(rng, 50) ? ACT_POLL : ACT_COPY;
    }
    return kind < 80 || k->threads ? ACT_STREAM : ACT_DEVICE;
}

static void make_wait(struct maker *k, struct rng *rng, const struct class *class)
{
    struct act a = plain(k, draw_wait(k, rng), everybody(k->p));
    a.thread = class->thread;
    a.stream = class->stream;
    if (a.kind == ACT_POLL && rng_chance(rng, 50)) {
        a.count = 1; /* an event, not the stream */
    }
    if (a.kind == ACT_EVENT && rng_chance(rng, 40)) {
        a.count = 1 + rng_below(rng, 3);
    }
    if (k->varied_waits) {
        a.ranks = (mask_t)(rng_next(rng) & everybody(k->p));
    }
    if (a.ranks != 0) {
        add(k, &a);
    }
}

static void make_item(struct maker *k, uint64_t seed, uint16_t site)
{
    struct rng rng = {.state = seed};
    const struct class *class = &k->class[rng_below(&rng, k->classes)];
    uint32_t kind = rng_below(&rng, 100);
    uint16_t at = k->sites ? site : 0;
    if (kind < 45) {
        make_collective(k, &rng, class, at);
    } else if (kind < 57) {
        make_group(k, &rng, class, at);
    } else if (kind < 64) {
        make_ring(k, &rng, class, at);
    } else if (kind < 71) {
        make_chain(k, &rng, class, at);
    } else if (kind < 81) {
        make_exchange(k, &rng, class, at);
    } else {
        make_wait(k, &rng, class);
    }
    k->p->units++;
}

/* A group that NCCL refuses, or that is only simulated; then it is made as it should be. */
static void refuse_group(struct maker *k, uint32_t first)
{
    struct program *p = k->p;
    uint32_t last = p->acts, at = first;
    mask_t who = BIT(mask_at(p->act[first].ranks, rng_below(&k->rng, mask_count(p->act[first].ranks))));
    uint8_t error = rng_chance(&k->rng, 30) ? SIMULATED : 5;
    for (uint32_t i = first; i < last; i++) {
        struct act a = p->act[i + at - first];
        a.ranks = (mask_t)(a.ranks & who);
        if (a.kind == ACT_END) {
            a.error = error;
        }
        if (a.ranks != 0 && program_insert(p, at, &a)) {
            at++;
        }
    }
}

/* What differs from step to step: host time, refused calls. */
static void disturb(struct maker *k, uint32_t first)
{
    struct program *p = k->p;
    if (k->skews && rng_chance(&k->rng, 15)) {
        struct act a = plain(k, ACT_PAUSE, BIT(rng_below(&k->rng, p->ranks)));
        a.count = MS_ * (1 + rng_below(&k->rng, 200));
        if (k->seconds > 0 && rng_chance(&k->rng, 10)) {
            a.count = S_ / 2 + MS_ * rng_below(&k->rng, 2000);
            a.count = a.count * 1000 / (1000 - p->starved);
            k->seconds--;
        }
        (void)program_insert(p, first, &a);
        first++;
    }
    if (k->refusals && rng_chance(&k->rng, 20) && first < p->acts && p->act[first].kind == ACT_GROUP) {
        refuse_group(k, first);
    } else if (k->refusals && rng_chance(&k->rng, 20) && first < p->acts && p->act[first].kind == ACT_COLL) {
        struct act a = p->act[first];
        a.ranks = BIT(mask_at(a.ranks, rng_below(&k->rng, mask_count(a.ranks))));
        a.error = 4;
        a.count += rng_chance(&k->rng, 50) ? 7 : 0;
        (void)program_insert(p, first, &a);
    }
}

static void make_steps(struct maker *k)
{
    struct program *p = k->p;
    bool periodic = rng_chance(&k->rng, 70), splits_late = rng_chance(&k->rng, 15);
    uint32_t steps = 2 + rng_below(&k->rng, 7), late = steps / 2;
    k->items = 2 + rng_below(&k->rng, 7);
    for (uint32_t i = 0; i < k->items; i++) {
        k->item[i].seed = rng_next(&k->rng);
        k->item[i].site = (uint16_t)(10 + i * 10);
    }
    for (uint32_t step = 0; step < steps && p->acts < 2500; step++) {
        if (splits_late && step == late && !p->comm[0].nonblocking) {
            if (rng_chance(&k->rng, 30) && k->classes < CLASSES_MAX) {
                make_world(k, "late", false);
            } else {
                make_grid(k, "late", p->ranks > 3 ? p->ranks / 2 : p->ranks, true,
                          (mask_t)(rng_chance(&k->rng, 30) ? BIT(rng_below(&k->rng, p->ranks)) : 0));
            }
        }
        for (uint32_t i = 0; i < k->items && p->acts < 2800; i++) {
            uint32_t first = p->acts;
            make_item(k, periodic ? k->item[i].seed : (k->item[i].seed += 0x51ed2701), k->item[i].site);
            disturb(k, first);
        }
        if (rng_chance(&k->rng, periodic ? 0 : 30)) {
            make_wait(k, &k->rng, &k->class[0]);
            p->units++;
        }
    }
}

static void make_end(struct maker *k)
{
    struct program *p = k->p;
    uint32_t how = rng_below(&k->rng, 10);
    for (uint32_t i = 0; i < (k->threads ? k->classes : 1); i++) {
        struct act a = plain(k, k->threads ? ACT_STREAM : ACT_DEVICE, everybody(p));
        a.thread = k->class[i].thread;
        a.stream = k->class[i].stream;
        add(k, &a);
    }
    p->units++;
    for (uint32_t i = 0; how < 6 && i < k->classes; i++) {
        const struct class *class = &k->class[k->classes - 1 - i];
        for (uint32_t c = class->first; c < class->first + (uint32_t) class->comms; c++) {
            struct act a = plain(k, how < 5 ? ACT_DESTROY : ACT_ABORT, p->comm[c].members);
            a.comm = (int8_t)c;
            a.thread = class->thread;
            add(k, &a);
        }
        p->units++;
    }
    struct act a = plain(k, ACT_EXIT, everybody(p));
    add(k, &a);
    p->units++;
}

/* One rank makes two calls of different communicators, on different streams, the other way round: that is legal where
 * nothing waits for it. */
static void disorder(struct maker *k)
{
    static struct program before;
    static struct story story;
    struct program *p = k->p;
    uint32_t i = rng_below(&k->rng, p->acts), j = i + 1;
    const struct act *a = &p->act[i];
    mask_t rank = BIT(mask_at(a->ranks, rng_below(&k->rng, mask_count(a->ranks))));
    while (j < p->acts && (p->act[j].ranks & rank) == 0) {
        j++;
    }
    const struct act *b = &p->act[j];
    if (j == p->acts || a->kind != ACT_COLL || b->kind != ACT_COLL || a->unit == b->unit || a->comm == b->comm ||
        a->stream == b->stream || a->error != 0 || b->error != 0 || a->ranks == rank || b->ranks == rank) {
        return;
    }
    for (uint32_t g = 0; g < p->acts; g++) {
        if (p->act[g].kind == ACT_GROUP && (p->act[g].unit == a->unit || p->act[g].unit == b->unit)) {
            return;
        }
    }
    before = *p;
    struct act moved = *b;
    moved.ranks = rank;
    p->act[j].ranks = (mask_t)(p->act[j].ranks & ~rank);
    if (!program_insert(p, i, &moved) || program_correct(p, &story, 1) != 1) {
        *p = before;
    }
}

void generate(struct program *p, uint64_t seed)
{
    static const uint8_t sizes[] = {2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 5, 5, 6, 8, 8, 8, 12, 16};
    static const uint32_t paces[] = {2 * US_, 20 * US_, 20 * US_, 200 * US_, 2 * MS_, 20 * MS_};
    struct maker k = {.p = p};
    k.rng.state = seed * 0xd1342543de82ef95u + 1;
    p->comms = p->acts = p->units = 0;
    p->ranks = sizes[rng_below(&k.rng, sizeof(sizes))];
    p->pace_ns = paces[rng_below(&k.rng, 6)];
    p->completion = rng_chance(&k.rng, 20);
    k.events = rng_chance(&k.rng, 25);
    k.polls = rng_chance(&k.rng, 20);
    k.refusals = rng_chance(&k.rng, 15);
    k.skews = rng_chance(&k.rng, 50);
    k.seconds = 2;
    k.sites = rng_chance(&k.rng, 50);
    k.varied_waits = rng_chance(&k.rng, 20);
    p->connects = rng_chance(&k.rng, 25);
    p->starved = k.skews && rng_chance(&k.rng, 10) ? 500 + rng_below(&k.rng, 400) : 0;
    make_comms(&k);
    place_classes(&k);
    make_steps(&k);
    make_end(&k);
    for (int i = rng_chance(&k.rng, 15) && p->acts < 2000 ? 20 : 0; i > 0; i--) {
        disorder(&k);
    }
}
