/*
 * rank.c: see rank.h. What a rank has done by now is written when somebody is about to look: nobody else can tell.
 */
#include "tests/world/rank.h"

#include "tests/world/calls.h"
#include "trace/ident.h"
#include "trace/ring_write.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANKS     (2u * RANKS_MAX)
#define OPEN_MAX  256u
#define SITES_MAX 2048u
#define LEAD_NS   (300 * MS_) /* a process begins so long before its first call */

struct rank {
    const struct job *job; /* NULL = free */
    const struct rank_story *story;
    uint32_t number;
    const struct host *host;
    pid_t pid;
    struct roll_ring ring;
    char path[512];
    uint64_t epoch;
    bool begun, stopped, ended, hostile;
    uint32_t next, def, opens, tickets, marked;
    struct { /* records whose later states have not been written */
        uint32_t ticket;
        struct log log;
        bool back;
    } open[OPEN_MAX];
    struct poll poll[THREADS_MAX];
    struct { /* the newest record of each loop of polls */
        uint32_t ticket;
        bool on;
        uint64_t enter_ns;
    } said[THREADS_MAX];
    bool polls;
    bool site[SITES_MAX]; /* it is defined; [0]: the module is */
    uint64_t next_ns;     /* nothing is to be written before */
};

static struct rank rank[RANKS];
static uint32_t ranks;
static pid_t next_pid;
/* Of all ranks: before, nothing is to be written; and when the next one begins or ends. */
static uint64_t write_ns, life_ns;
static uint64_t stirred_ns; /* when something was last written */

static uint64_t begin_ns(const struct rank *r)
{
    return START_NS - LEAD_NS + r->number * MS_;
}

/* When the next one begins or ends. */
static void look_ahead(void)
{
    life_ns = WORLD_NEVER;
    for (uint32_t i = 0; i < ranks; i++) {
        const struct rank *r = &rank[i];
        uint64_t at = !r->begun ? begin_ns(r) : !r->ended ? r->story->end_ns : WORLD_NEVER;
        life_ns = at < life_ns ? at : life_ns;
    }
}

int ranks_begin(const struct job *job)
{
    for (uint32_t i = 0; i < job->program->ranks; i++) {
        if (ranks == RANKS) {
            return -1;
        }
        struct rank *r = &rank[ranks++];
        memset(r, 0, sizeof(*r));
        r->job = job;
        r->story = &job->story->rank[i];
        r->number = i;
        r->host = &world.host[job->first_host + i / job->per_node];
        r->pid = 100000 + next_pid++;
        r->next_ns = begin_ns(r);
        memcpy(r->poll, r->story->poll, sizeof(r->poll));
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            r->polls = r->polls || r->poll[t].on;
        }
    }
    write_ns = stirred_ns = 0;
    look_ahead();
    return 0;
}

void ranks_end(void)
{
    for (uint32_t i = 0; i < ranks; i++) {
        roll_ring_close(&rank[i].ring);
    }
    ranks = 0;
    next_pid = 0;
    write_ns = life_ns = WORLD_NEVER;
}

/* definitions */

static void define_comm(struct rank *r, uint32_t index)
{
    const struct program *p = r->job->program;
    int comm = r->story->def[index].comm;
    const struct comm_info *k = &p->comm[comm];
    struct roll_def_comm def = {.key = story_key(p, comm),
                                .parent_key = k->parent < 0 ? 0 : story_key(p, k->parent),
                                .rank = (int32_t)comm_rank(p, comm, r->number),
                                .nranks = (int32_t)mask_count(k->members),
                                .color = k->parent < 0 ? ROLL_COLOR_NONE : k->color,
                                .child = k->child,
                                .origin = k->parent < 0 ? ROLL_COMM_INIT : ROLL_COMM_SPLIT,
                                .flags = k->nonblocking,
                                .label_bytes = (uint32_t)strlen(k->label)};
    roll_def_append(&r->ring, ROLL_DEF_COMM, index + 1, &def, sizeof(def), k->label, def.label_bytes);
}

/* A place of the program, which has another address in each process. */
static void define_site(struct rank *r, uint16_t site)
{
    uint64_t bias = 0x10000000ull * (r->number + 1);
    if (site == 0 || site >= SITES_MAX || r->site[site]) {
        return;
    }
    if (!r->site[0]) {
        struct roll_def_module module = {.start = bias, .end = bias + 0x100000, .bias = bias, .path_bytes = 10};
        roll_def_append(&r->ring, ROLL_DEF_MODULE, 1, &module, sizeof(module), "/opt/train", 10);
    }
    struct roll_def_callsite def = {.depth = 2};
    uint64_t pc[2] = {bias + 0x1000 + site * 16ull, bias + 0x100};
    roll_def_append(&r->ring, ROLL_DEF_CALLSITE, site, &def, sizeof(def), pc, sizeof(pc));
    r->site[0] = r->site[site] = true;
}

/* records */

static uint32_t enter(struct rank *r, const struct log *log)
{
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&r->ring, &ticket);
    uint64_t seal = rec->seal;
    *rec = log->rec;
    rec->seal = seal;
    rec->enter_ns = log->enter_ns + r->host->mono_ns;
    rec->call_ns = 0;
    rec->result = 0;
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    r->tickets++;
    return (uint32_t)ticket;
}

static void leave(struct rank *r, uint32_t ticket, uint64_t took, uint8_t result)
{
    roll_ring_return(&r->ring, &r->ring.records[ticket & r->ring.mask], ticket,
                     took > UINT32_MAX ? UINT32_MAX : (uint32_t)took, result);
}

static void complete(struct rank *r, uint32_t ticket, uint16_t stream)
{
    struct roll_ring_header *h = r->ring.header;
    if (stream < ROLL_RING_DONE_STREAMS && atomic_load(&h->done[stream]) <= ticket) {
        atomic_store(&h->done[stream], ticket + 1);
    }
}

static void soon(struct rank *r, uint64_t at)
{
    r->next_ns = at < r->next_ns ? at : r->next_ns;
}

/* The later states of the calls that are open, in the order of their tickets. */
static void write_news(struct rank *r, uint64_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->opens; i++) {
        const struct log *log = &r->open[i].log;
        bool completes = r->job->program->completion;
        if (!r->open[i].back && log->back_ns <= now) {
            r->open[i].back = true;
            leave(r, r->open[i].ticket, log->back_ns - log->enter_ns, log->rec.result);
        }
        bool done = log->done_ns <= now && r->open[i].back;
        if (completes && done) {
            complete(r, r->open[i].ticket, log->rec.stream);
        }
        bool stays = r->open[i].back ? completes && log->done_ns != NEVER && !done : log->back_ns != NEVER;
        if (stays) {
            uint64_t next = !r->open[i].back ? log->back_ns : log->done_ns;
            soon(r, next > now ? next : now + 1);
            r->open[kept++] = r->open[i];
        }
    }
    r->opens = kept;
}

/* Those that no call has followed: a communicator is defined when the call that makes it returns. */
static void define_rest(struct rank *r)
{
    for (; r->def < r->story->defs; r->def++) {
        define_comm(r, r->def);
    }
}

static void write_calls(struct rank *r, uint64_t now)
{
    const struct rank_story *s = r->story;
    while (r->next < s->logs && s->log[r->next].enter_ns <= now) {
        const struct log *log = &s->log[r->next];
        write_news(r, log->enter_ns);
        for (; r->def < s->defs && s->def[r->def].before <= r->next; r->def++) {
            define_comm(r, r->def);
        }
        define_site(r, log->rec.callsite);
        uint32_t ticket = enter(r, log);
        if (r->opens < OPEN_MAX) {
            r->open[r->opens].ticket = ticket;
            r->open[r->opens].log = *log;
            r->open[r->opens++].back = false;
        }
        r->next++;
    }
    write_news(r, now);
    if (r->next < s->logs) {
        soon(r, s->log[r->next].enter_ns);
    } else if (now >= r->job->story->still_ns) {
        define_rest(r);
    } else {
        soon(r, r->job->story->still_ns);
    }
}

/* Hosts that still poll say so. */
static void write_polls(struct rank *r, uint64_t now)
{
    for (uint32_t t = 0; t < THREADS_MAX && r->next == r->story->logs; t++) {
        struct poll *poll = &r->poll[t];
        while (poll->on && poll->next_ns <= now) {
            struct log log;
            story_poll(&log, poll, t);
            if (r->said[t].on) {
                leave(r, r->said[t].ticket, log.enter_ns - r->said[t].enter_ns, POLL_GOES_ON);
            } else if (poll->log < r->story->logs) {
                leave(r, poll->log, log.enter_ns - r->story->log[poll->log].enter_ns, POLL_GOES_ON);
            }
            r->said[t].ticket = enter(r, &log);
            r->said[t].enter_ns = log.enter_ns;
            r->said[t].on = true;
            story_poll_on(poll);
        }
        if (poll->on) {
            soon(r, poll->next_ns);
        }
    }
}

/* life */

static void begin(struct rank *r)
{
    struct roll_ident ident = {.rank = (int32_t)r->number,
                               .size = (int32_t)r->job->program->ranks,
                               .local_rank = (int32_t)(r->number % r->job->per_node)};
    snprintf(ident.job, sizeof(ident.job), "%s", r->job->name);
    struct roll_ring_params params = {.capacity = r->job->records,
                                      .world_rank = ident.rank,
                                      .world_size = ident.size,
                                      .local_rank = ident.local_rank,
                                      .job = r->job->name,
                                      .exe = "train",
                                      .defs_bytes = 64 * 1024};
    r->begun = true;
    if (roll_ring_path(r->path, sizeof(r->path), r->host->rings, &ident, (uint32_t)r->pid) != 0 ||
        roll_ring_create(r->path, &params, &r->ring) != 0) {
        world_fail("rank %u of %s has no ring", r->number, r->job->name);
        r->ended = true;
        return;
    }
    r->epoch = r->ring.header->epoch;
    if (r->job->program->completion) {
        atomic_store(&r->ring.header->completion, ROLL_COMPLETION_WRITE);
    }
}

static void end(struct rank *r, uint64_t now)
{
    struct roll_ring_header *h = r->ring.header;
    const struct rank_story *s = r->story;
    r->ended = true;
    if (s->state == ROLL_PROC_FINISHED) {
        atomic_store(&h->finish_ns, now + r->host->mono_ns);
        atomic_store(&h->state, ROLL_RING_FINISHED);
    }
    if (r->job->statuses) {
        atomic_store(&h->exit_status, s->status);
    }
    calls_ended(r->host, r->pid);
}

static void turn(struct rank *r, uint64_t now)
{
    const struct rank_story *s = r->story;
    r->next_ns = WORLD_NEVER;
    calls_as = (struct caller){r->host, r->pid};
    if (!r->begun) {
        begin(r);
    }
    uint64_t until = s->end_ns < now ? s->end_ns : now;
    if (!r->ended) {
        write_calls(r, until);
        write_polls(r, until);
        soon(r, s->end_ns);
        if (s->stop_ns > now) {
            soon(r, s->stop_ns);
        }
        r->stopped = s->stop_ns <= now;
        if (s->end_ns <= now) {
            define_rest(r);
            end(r, s->end_ns);
        }
    }
    if (r->ended) {
        r->next_ns = WORLD_NEVER;
    }
    calls_as = (struct caller){0};
}

void ranks_turn(void)
{
    if (write_ns > world.now_ns) {
        return;
    }
    write_ns = WORLD_NEVER;
    for (uint32_t i = 0; i < ranks; i++) {
        if (rank[i].next_ns <= world.now_ns) {
            turn(&rank[i], world.now_ns);
            stirred_ns = world.now_ns;
        }
        write_ns = rank[i].next_ns < write_ns ? rank[i].next_ns : write_ns;
    }
    look_ahead();
}

uint64_t ranks_next(void)
{
    return life_ns;
}

uint64_t ranks_stir_next(void)
{
    return write_ns;
}

uint64_t ranks_stirred(void)
{
    return stirred_ns;
}

char rank_process(const struct host *host, pid_t pid)
{
    for (uint32_t i = 0; i < ranks; i++) {
        const struct rank *r = &rank[i];
        if (r->host == host && r->pid == pid) {
            return !r->begun || r->ended ? 0 : r->stopped ? 'T' : 'R';
        }
    }
    return 0;
}

void ranks_mark(void)
{
    ranks_turn();
    for (uint32_t i = 0; i < ranks; i++) {
        rank[i].marked = rank[i].tickets;
    }
}

bool rank_written(uint32_t i, struct rank_written *out)
{
    if (i >= ranks) {
        return false;
    }
    *out = (struct rank_written){.job = rank[i].job->name,
                                 .rank = rank[i].number,
                                 .epoch = rank[i].epoch,
                                 .records = rank[i].tickets,
                                 .marked = rank[i].marked,
                                 .there = access(rank[i].path, F_OK) == 0,
                                 .hostile = rank[i].hostile};
    return true;
}

void rank_harm(uint32_t i, enum rank_harm harm)
{
    struct rank *r = &rank[i % (ranks ? ranks : 1)];
    if (i >= ranks || !r->begun || !r->ring.header) {
        return;
    }
    r->hostile = true;
    if (harm == RANK_WILD) {
        uint64_t ticket;
        struct roll_record *rec = roll_ring_reserve(&r->ring, &ticket);
        for (size_t k = sizeof(rec->seal); k < sizeof(*rec); k++) {
            ((uint8_t *)rec)[k] = (uint8_t)world_below(256);
        }
        roll_ring_publish(rec, ticket, ROLL_STATE_RETURNED);
        r->tickets++;
    } else if (harm == RANK_JUMP) {
        atomic_fetch_add(&r->ring.header->head, UINT64_C(1) << (20 + world_below(36)));
    } else if (truncate(r->path, (off_t)world_below(200) * 4096) == 0) {
        r->ended = true; /* its own next store would be its end, too */
        look_ahead();
        calls_ended(r->host, r->pid);
    }
}
