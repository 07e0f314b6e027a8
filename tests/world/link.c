/*
 * link.c: the network: links that connect, break, are cut or slow, and what is on its way over them.
 *
 * What a connection held when it breaks is lost, in both directions, and what had arrived stays. A link keeps the order
 * of its messages, as TCP does; several links keep none.
 */
#include "tests/world/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDS       16u  /* that are bound */
#define QUEUE      512u /* messages that a side keeps, as the high-water marks of net.c say */
#define LATENCY_US 80u  /* of a link, with up to three times as much by chance */
#define RETRY_NS   (100 * MS_)
#define RETRY_MOST (5 * S_)
#define GIVE_UP_NS (4 * S_)  /* after which TCP gives a connection up that acknowledges nothing (net.c) */
#define IO_NS      (1 * MS_) /* what was sent so shortly before a kill may not have been written */

void *__real_malloc(size_t bytes);
void __real_free(void *block);

static struct link links[LINKS];
static uint32_t in_use; /* of these; a bit for each */
static struct end *bound[ENDS];
static struct piece *pieces;
static struct message *spare; /* messages that were freed */
static uint64_t numbers;
static uint32_t queued;  /* messages in all queues: mostly there is none, and nobody has to look */
static uint32_t closed;  /* links that go when their last message has gone */
static bool news = true; /* something has changed that link_next tells */

/* pieces and messages */

struct piece *piece_new(size_t bytes)
{
    struct piece *piece = __real_malloc(sizeof(*piece) + bytes);
    if (!piece) {
        abort();
    }
    piece->bytes = bytes;
    piece->before = NULL;
    piece->after = pieces;
    if (pieces) {
        pieces->before = piece;
    }
    pieces = piece;
    return piece;
}

void piece_free(struct piece *piece)
{
    if (!piece) {
        return;
    }
    if (piece->before) {
        piece->before->after = piece->after;
    } else {
        pieces = piece->after;
    }
    if (piece->after) {
        piece->after->before = piece->before;
    }
    __real_free(piece);
}

void message_free(struct message *m, uint32_t from)
{
    for (uint32_t i = from; m && i < m->parts; i++) {
        piece_free(m->part[i]);
    }
    if (m) {
        m->next = spare;
        spare = m;
    }
}

/* Its parts are written when they come: they need not be zero. */
struct message *message_new(void)
{
    struct message *m = spare ? spare : __real_malloc(sizeof(*m));
    if (!m) {
        abort();
    }
    spare = spare ? spare->next : NULL;
    m->next = NULL;
    m->at_ns = m->sent_ns = 0;
    m->parts = 0;
    return m;
}

static void queue_put(struct queue *q, struct message *m)
{
    *(q->last ? &q->last->next : &q->first) = m;
    q->last = m;
    m->next = NULL;
    q->n++;
    queued++;
}

struct message *queue_take(struct queue *q)
{
    struct message *m = q->first;
    q->first = m->next;
    q->last = q->first ? q->last : NULL;
    q->n--;
    queued--;
    return m;
}

/* Drops what is not to arrive: of messages on their way, or of all. */
static void queue_drop(struct queue *q, bool (*goes)(const struct message *m))
{
    struct queue kept = {.newest_ns = q->newest_ns};
    while (q->first) {
        struct message *m = queue_take(q);
        if (goes(m)) {
            message_free(m, 0);
        } else {
            queue_put(&kept, m);
        }
    }
    *q = kept;
}

static bool is_on_its_way(const struct message *m)
{
    return m->at_ns != WORLD_NEVER && m->at_ns > world.now_ns;
}

static bool is_any(const struct message *m)
{
    (void)m;
    return true;
}

/* links */

static void send_off(struct link *l, struct queue *q, struct message *m)
{
    uint64_t at = world.now_ns + (LATENCY_US + world_below(3 * LATENCY_US + l->slow_us)) * US_;
    at = l->cut_ns > world.now_ns && at < l->cut_ns ? l->cut_ns + world_below(200) * MS_ : at;
    m->at_ns = at > q->newest_ns ? at : q->newest_ns;
    q->newest_ns = m->at_ns;
    struct end *to = q == &l->rise ? l->router : l->dealer;
    if (to && to->owner) {
        process_wake(to->owner, m->at_ns);
    }
    size_t bytes = 0;
    for (uint32_t i = 0; i < m->parts; i++) {
        bytes += m->part[i]->bytes;
    }
    world.print = (world.print ^ m->at_ns ^ bytes << 40) * 0x9e3779b97f4a7c15u + (uint64_t)(l - links);
}

static void flip(struct message *m)
{
    struct piece *piece = m->part[world_below(m->parts)];
    uint32_t n = 1 + world_below(4);
    for (uint32_t i = 0; i < n && piece->bytes > 0; i++) {
        piece->data[world_below((uint32_t)piece->bytes)] ^= (uint8_t)(1u << world_below(8));
    }
}

/* A message goes on its way, harmed where that was asked for. */
void link_push(struct link *l, bool down, struct message *m)
{
    struct queue *q = down ? &l->fall : &l->rise;
    m->sent_ns = world.now_ns;
    m->at_ns = WORLD_NEVER;
    struct message *again = NULL;
    if (l->harm[down].set && m->parts > 0) {
        l->harm[down].set = l->harm[down].n-- > 1;
        if (l->harm[down].harm == LINK_LOSE) {
            message_free(m, 0);
            return;
        }
        if (l->harm[down].harm == LINK_FLIP) {
            flip(m);
        } else {
            again = message_new();
            again->sent_ns = m->sent_ns;
            again->at_ns = m->at_ns;
            again->parts = m->parts;
            for (uint32_t i = 0; i < m->parts; i++) {
                again->part[i] = piece_new(m->part[i]->bytes);
                memcpy(again->part[i]->data, m->part[i]->data, m->part[i]->bytes);
            }
        }
    }
    for (; m; m = again, again = NULL) {
        queue_put(q, m);
        if (l->up) {
            send_off(l, q, m);
        }
    }
}

static void go_down(struct link *l)
{
    l->up = false;
    l->break_ns = WORLD_NEVER;
    news = true;
    queue_drop(&l->rise, is_on_its_way);
    queue_drop(&l->fall, is_on_its_way);
    l->retry_ns = RETRY_NS;
    l->timer_ns = world.now_ns + RETRY_NS;
}

static struct end *bound_to(const char *target)
{
    for (uint32_t i = 0; i < ENDS; i++) {
        if (bound[i] && strcmp(bound[i]->name, target) == 0) {
            return bound[i];
        }
    }
    return NULL;
}

static void try_connect(struct link *l)
{
    struct end *router = bound_to(l->target);
    news = true;
    if (!router || l->cut_ns > world.now_ns || (router->owner && router->owner->stopped_ns > world.now_ns)) {
        l->timer_ns = world.now_ns + l->retry_ns;
        l->retry_ns = l->retry_ns * 2 < RETRY_MOST ? l->retry_ns * 2 : RETRY_MOST;
        return;
    }
    l->router = router;
    l->up = true;
    l->timer_ns = WORLD_NEVER;
    l->break_ns = WORLD_NEVER;
    if (l->dealer) {
        l->dealer->connections++;
        process_wake(l->dealer->owner, world.now_ns);
    }
    for (struct message *m = l->rise.first; m; m = m->next) {
        if (m->at_ns == WORLD_NEVER) {
            send_off(l, &l->rise, m);
        }
    }
}

/* The next link that is used, from number i on; LINKS: there is none. */
static uint32_t next_used(uint32_t i)
{
    uint32_t left = i < LINKS ? in_use >> i : 0;
    return left ? i + (uint32_t)__builtin_ctz(left) : LINKS;
}

static void link_clear(struct link *l)
{
    in_use &= ~(1u << (l - links));
    news = true;
    closed -= l->used && !l->dealer;
    queue_drop(&l->rise, is_any);
    queue_drop(&l->fall, is_any);
    *l = (struct link){0};
}

uint64_t link_next(void)
{
    static uint64_t next;
    if (!news) {
        return next;
    }
    next = WORLD_NEVER;
    news = false;
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        const struct link *l = &links[i];
        if (l->used && l->dealer) {
            next = !l->up && l->timer_ns < next ? l->timer_ns : next;
            next = l->up && l->break_ns < next ? l->break_ns : next;
        }
    }
    return next;
}

void link_turn(void)
{
    if (closed == 0 && link_next() > world.now_ns) {
        return;
    }
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        struct link *l = &links[i];
        if (!l->used) {
            continue;
        }
        if (!l->dealer && !l->rise.first) {
            link_clear(l);
        } else if (l->dealer && l->up && l->break_ns <= world.now_ns) {
            go_down(l);
        } else if (l->dealer && !l->up && l->timer_ns <= world.now_ns) {
            try_connect(l);
        }
    }
}

/* Of a process; there is one: that of its DEALER. */
static struct link *link_of(const struct process *p)
{
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        if (links[i].used && links[i].dealer && links[i].dealer->owner == p) {
            return &links[i];
        }
    }
    return NULL;
}

void link_break(struct process *p)
{
    struct link *l = link_of(p);
    if (l && l->up) {
        go_down(l);
    }
}

void link_cut(struct process *p, uint64_t until_ns)
{
    struct link *l = link_of(p);
    if (!l) {
        return;
    }
    news = true;
    l->cut_ns = until_ns;
    l->break_ns = until_ns - world.now_ns > GIVE_UP_NS ? world.now_ns + GIVE_UP_NS : WORLD_NEVER;
    for (int down = 0; down < 2; down++) {
        struct queue *q = down ? &l->fall : &l->rise;
        for (struct message *m = q->first; m; m = m->next) {
            if (is_on_its_way(m) && m->at_ns < until_ns) {
                m->at_ns = until_ns;
                q->newest_ns = q->newest_ns > until_ns ? q->newest_ns : until_ns;
            }
        }
    }
    if (l->router) {
        process_wake(l->router->owner, until_ns);
    }
    process_wake(p, until_ns);
}

void link_slow(struct process *p, uint32_t us)
{
    struct link *l = link_of(p);
    if (l) {
        l->slow_us = us;
    }
}

void link_harm(struct process *p, bool down, enum link_harm harm, uint32_t n)
{
    struct link *l = link_of(p);
    if (l) {
        l->harm[down].set = n > 0;
        l->harm[down].harm = harm;
        l->harm[down].n = n;
    }
}

/* ends */

int link_bind(struct end *end, const char *target)
{
    for (uint32_t i = 0; !bound_to(target) && i < ENDS; i++) {
        if (!bound[i]) {
            bound[i] = end;
            snprintf(end->name, sizeof(end->name), "%s", target);
            return 0;
        }
    }
    return -1;
}

void link_unbind(struct end *end)
{
    for (uint32_t i = 0; i < ENDS; i++) {
        bound[i] = bound[i] == end ? NULL : bound[i];
    }
    end->name[0] = '\0';
}

int link_open(struct end *dealer, const char *target)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (!l->used) {
            in_use |= 1u << i;
            news = true;
            *l = (struct link){
                .used = true, .number = ++numbers, .dealer = dealer, .retry_ns = RETRY_NS, .break_ns = WORLD_NEVER};
            snprintf(l->target, sizeof(l->target), "%s", target);
            memcpy(l->name, dealer->name, dealer->name_bytes);
            l->name_bytes = dealer->name_bytes;
            l->timer_ns = world.now_ns + world_below(1000) * US_;
            return 0;
        }
    }
    return -1;
}

static void close_dealer(struct link *l, bool orderly)
{
    uint64_t since = orderly ? WORLD_NEVER : world.now_ns - world_below(2) * IO_NS;
    struct queue kept = {0};
    news = true;
    closed++;
    l->dealer = NULL;
    while (l->rise.first) {
        struct message *m = queue_take(&l->rise);
        if (m->at_ns == WORLD_NEVER || (m->sent_ns >= since && m->at_ns > world.now_ns)) {
            message_free(m, 0);
        } else {
            queue_put(&kept, m);
        }
    }
    l->rise = kept;
    queue_drop(&l->fall, is_any);
    l->up = false;
}

static void close_router(struct link *l)
{
    news = true;
    queue_drop(&l->rise, is_on_its_way);
    while (l->rise.first && l->rise.first->at_ns != WORLD_NEVER) { /* it had been received, and is not read */
        message_free(queue_take(&l->rise), 0);
    }
    l->router = NULL;
    if (!l->dealer) {
        link_clear(l);
    } else if (l->up) {
        go_down(l);
    }
}

void link_close(struct end *end, bool orderly)
{
    link_unbind(end);
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        if (links[i].used && links[i].dealer == end) {
            close_dealer(&links[i], orderly);
        } else if (links[i].used && links[i].router == end) {
            close_router(&links[i]);
        }
    }
}

void link_reset(void)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        link_clear(&links[i]);
    }
    memset(bound, 0, sizeof(bound));
    while (pieces) { /* those that a killed process held */
        piece_free(pieces);
    }
}

struct link *link_up_from(const struct end *dealer)
{
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        if (links[i].used && links[i].dealer == dealer) {
            return &links[i];
        }
    }
    return NULL;
}

struct link *link_down_to(const struct end *router, const void *name, size_t bytes)
{
    for (uint32_t i = next_used(0); i < LINKS; i = next_used(i + 1)) {
        struct link *l = &links[i];
        if (l->used && l->up && l->router == router && l->name_bytes == bytes && memcmp(l->name, name, bytes) == 0) {
            return l;
        }
    }
    return NULL;
}

bool link_has_place(const struct link *l, bool down)
{
    return (down ? &l->fall : &l->rise)->n < (l->up ? 2 * QUEUE : QUEUE);
}

static struct message *arrived(const struct queue *q)
{
    return q->first && q->first->at_ns <= world.now_ns ? q->first : NULL;
}

struct queue *link_pull(const struct end *end, uint32_t *turn, struct link **from)
{
    if (queued == 0) {
        return NULL;
    }
    uint32_t left = (uint32_t)(((uint64_t)in_use << LINKS | in_use) >> *turn); /* in the order of the turns */
    for (; left != 0; left &= left - 1) {
        uint32_t k = (uint32_t)__builtin_ctz(left);
        struct link *l = &links[(*turn + k) % LINKS];
        struct queue *q = !l->used ? NULL : l->router == end ? &l->rise : l->dealer == end ? &l->fall : NULL;
        if (q && arrived(q)) {
            *from = l;
            *turn = (*turn + k + 1) % LINKS;
            return q;
        }
    }
    return NULL;
}

uint64_t link_soonest(const struct process *p)
{
    uint64_t soonest = WORLD_NEVER;
    for (uint32_t i = queued ? next_used(0) : LINKS; i < LINKS; i = next_used(i + 1)) {
        const struct link *l = &links[i];
        const struct queue *q[2] = {l->router && l->router->owner == p ? &l->rise : NULL,
                                    l->dealer && l->dealer->owner == p ? &l->fall : NULL};
        for (int k = 0; k < 2 && l->used; k++) {
            if (q[k] && q[k]->first && is_on_its_way(q[k]->first) && q[k]->first->at_ns < soonest) {
                soonest = q[k]->first->at_ns;
            }
        }
    }
    return soonest;
}
