/*
 * feed.c: see feed.h. Four ways: as a job runs (agents look at their rings again and again, nodes may be late, time
 * passes as in the job); all records in random chunks; the same with time passing between the chunks; rank after rank.
 * Each keeps every rank's own order, as rings do.
 */
#include "tests/simulation/feed.h"
#include "tests/simulation/nodes.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_MAX  64u
#define SITES_MAX 2048u

struct reader {
    uint32_t source, next, def, opens;
    uint16_t open[OPEN_MAX]; /* records whose later states have not been fed */
    uint64_t late_ns;
    bool stopped, ended;
    uint32_t lost_from, lost;
    struct poll poll[THREADS_MAX]; /* loops that go on after the last record */
    struct log said[THREADS_MAX];  /* the newest record of each */
    uint32_t tickets;
    bool site[SITES_MAX]; /* it is defined; [0]: the module is */
};

struct feeder {
    const struct program *p;
    const struct story *s;
    roll_engine_t *e;    /* NULL: all is told to `nodes` */
    struct nodes *nodes; /* NULL: all is told to `e` */
    uint32_t opened;     /* engines that `nodes` had opened when a finding came last */
    struct rng rng;
    struct reader reader[RANKS_MAX];
    uint64_t now;
    struct findings *out;
    uint64_t waiting;  /* since when all records of the story are known; 0 = not yet */
    bool knows_status; /* of processes that end */
    struct feed_options options;
    struct {
        uint64_t from, to; /* nothing is heard of a node */
        uint32_t first, last;
        bool said;
    } silence;
};

/* The engine that sees records; NULL: none has to. */
static roll_engine_t *engine_of(const struct feeder *f)
{
    return f->nodes ? nodes_engine(f->nodes) : f->e;
}

static void tell_def(struct feeder *f, uint32_t rank, const struct roll_def *def)
{
    if (f->nodes) {
        nodes_define(f->nodes, rank, def);
    } else {
        (void)roll_engine_define(f->e, f->reader[rank].source, def);
    }
}

static void tell_records(struct feeder *f, uint32_t rank, const struct roll_record *recs, size_t n)
{
    if (f->nodes) {
        nodes_feed(f->nodes, rank, recs, n);
    } else {
        (void)roll_engine_feed(f->e, f->reader[rank].source, recs, n);
    }
}

static void tell_lost(struct feeder *f, uint32_t rank, uint64_t first, uint64_t count)
{
    if (f->nodes) {
        nodes_lost(f->nodes, rank, first, count);
    } else {
        (void)roll_engine_lost(f->e, f->reader[rank].source, first, count);
    }
}

static void tell_process(struct feeder *f, uint32_t rank, enum roll_proc_state state, int32_t status)
{
    if (f->nodes) {
        nodes_process(f->nodes, rank, state, status);
    } else {
        (void)roll_engine_process(f->e, f->reader[rank].source, state, status);
    }
}

static void define(struct feeder *f, uint32_t rank, uint32_t index)
{
    int comm = f->s->rank[rank].def[index].comm;
    const struct comm_info *k = &f->p->comm[comm];
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = index + 1};
    def.comm.label = k->label;
    def.comm.info = (struct roll_def_comm){.key = story_key(f->p, comm),
                                           .parent_key = k->parent < 0 ? 0 : story_key(f->p, k->parent),
                                           .rank = (int32_t)comm_rank(f->p, comm, rank),
                                           .nranks = (int32_t)mask_count(k->members),
                                           .color = k->parent < 0 ? ROLL_COLOR_NONE : k->color,
                                           .child = k->child,
                                           .origin = k->parent < 0 ? ROLL_COMM_INIT : ROLL_COMM_SPLIT,
                                           .device = 0,
                                           .flags = k->nonblocking,
                                           .label_bytes = (uint32_t)strlen(k->label)};
    tell_def(f, rank, &def);
}

/* Defines a place of the program, which has another address in each process. */
static void define_site(struct feeder *f, uint32_t rank, uint16_t site)
{
    struct reader *d = &f->reader[rank];
    uint64_t bias = 0x10000000ull * (rank + 1);
    if (site >= SITES_MAX || d->site[site]) {
        return;
    }
    struct roll_def def = {.type = ROLL_DEF_MODULE, .id = 1};
    def.module.path = "/opt/train";
    def.module.info = (struct roll_def_module){.start = bias, .end = bias + 0x100000, .bias = bias, .path_bytes = 10};
    if (!d->site[0]) {
        tell_def(f, rank, &def);
    }
    def = (struct roll_def){.type = ROLL_DEF_CALLSITE, .id = site, .callsite.depth = 2};
    def.callsite.pc[0] = bias + 0x1000 + site * 16ull;
    def.callsite.pc[1] = bias + 0x100;
    tell_def(f, rank, &def);
    d->site[0] = d->site[site] = true;
}

static enum roll_state state_at(const struct program *p, const struct log *log, uint64_t seen)
{
    if (log->back_ns > seen) {
        return ROLL_STATE_ENTERED;
    }
    return p->completion && log->done_ns <= seen ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED;
}

static struct roll_record record_at(const struct feeder *f, const struct reader *d, const struct log *log,
                                    uint32_t index, enum roll_state state)
{
    struct roll_record rec = log->rec;
    (void)f;
    (void)d;
    rec.seal = roll_seal(index, state);
    if (state == ROLL_STATE_ENTERED) {
        rec.result = 0;
        return rec;
    }
    uint64_t took = log->back_ns - log->enter_ns;
    rec.call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    return rec;
}

static bool will_change(const struct program *p, const struct log *log, enum roll_state state)
{
    return (state == ROLL_STATE_ENTERED && log->back_ns != NEVER) ||
           (state == ROLL_STATE_RETURNED && p->completion && log->done_ns != NEVER);
}

static bool in_loss(const struct reader *d, uint32_t index)
{
    return index - d->lost_from < d->lost;
}

/* Later states of records that are known already. */
static void feed_news(struct feeder *f, uint32_t rank, uint64_t seen)
{
    struct reader *d = &f->reader[rank];
    const struct rank_story *s = &f->s->rank[rank];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < d->opens; i++) {
        const struct log *log = &s->log[d->open[i]];
        enum roll_state state = state_at(f->p, log, seen);
        bool news = state > ROLL_STATE_ENTERED;
        if (news) {
            struct roll_record rec = record_at(f, d, log, d->open[i], state);
            tell_records(f, rank, &rec, 1);
        }
        if (!news || will_change(f->p, log, state)) {
            d->open[kept++] = d->open[i];
        }
    }
    d->opens = kept;
}

/*
 * The next record will change. An agent gives up what the device may still do of calls when there are many, and never
 * the return of a call in which a thread is: it has no more of these than there are threads.
 */
static void keep_open(struct feeder *f, uint32_t rank, uint64_t seen, enum roll_state state)
{
    struct reader *d = &f->reader[rank];
    const struct log *log = f->s->rank[rank].log;
    uint32_t i = d->opens == OPEN_MAX && state != ROLL_STATE_ENTERED ? OPEN_MAX : 0;
    while (d->opens == OPEN_MAX && i < OPEN_MAX && state_at(f->p, &log[d->open[i]], seen) == ROLL_STATE_ENTERED) {
        i++;
    }
    if (d->opens == OPEN_MAX && i < OPEN_MAX) {
        memmove(&d->open[i], &d->open[i + 1], (OPEN_MAX - 1 - i) * sizeof(d->open[0]));
        d->opens--;
    }
    if (d->opens < OPEN_MAX) {
        d->open[d->opens++] = (uint16_t)d->next;
    }
}

/* Up to `most` records that existed at `seen`; returns how many. */
static uint32_t feed_new(struct feeder *f, uint32_t rank, uint64_t seen, uint32_t most)
{
    struct reader *d = &f->reader[rank];
    const struct rank_story *s = &f->s->rank[rank];
    struct roll_record batch[32];
    uint32_t fed = 0, n = 0;
    while (fed < most && d->next < s->logs && s->log[d->next].enter_ns <= seen) {
        const struct log *log = &s->log[d->next];
        if (n == 32 || (d->def < s->defs && s->def[d->def].before <= d->next)) {
            tell_records(f, rank, batch, n);
            n = 0;
            for (; d->def < s->defs && s->def[d->def].before <= d->next; d->def++) {
                define(f, rank, d->def);
            }
        }
        enum roll_state state = state_at(f->p, log, seen);
        if (log->rec.callsite != 0) {
            define_site(f, rank, log->rec.callsite);
        }
        if (!in_loss(d, d->next)) {
            batch[n++] = record_at(f, d, log, d->next, state);
            if (will_change(f->p, log, state)) {
                keep_open(f, rank, seen, state);
            }
        } else if (d->next + 1 == d->lost_from + d->lost) {
            tell_records(f, rank, batch, n);
            n = 0;
            tell_lost(f, rank, d->lost_from, d->lost);
        }
        d->next++;
        fed++;
    }
    if (n > 0) {
        tell_records(f, rank, batch, n);
    }
    if (d->next == s->logs && seen >= f->s->still_ns) {
        for (; d->def < s->defs; d->def++) {
            define(f, rank, d->def);
        }
    }
    return fed;
}

static void feed_process(struct feeder *f, uint32_t rank, uint64_t seen)
{
    struct reader *d = &f->reader[rank];
    const struct rank_story *s = &f->s->rank[rank];
    if (!d->stopped && s->stop_ns <= seen) {
        d->stopped = true;
        tell_process(f, rank, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
    }
    if (!d->ended && s->end_ns <= seen) {
        d->ended = true;
        bool known = f->knows_status || s->status == 0; /* another launcher than `rollcall run` */
        tell_process(f, rank, s->state, known ? s->status : ROLL_EXIT_UNKNOWN);
    }
}

/* A verdict may take an earlier one's place, or take it back. */
static void note_life(struct feeder *f, const struct roll_verdict *v, struct found *found)
{
#ifdef ROLL_SIM_BEFORE /* an engine from before verdicts had a life */
    (void)f;
    (void)v;
    (void)found;
#else
    uint64_t earlier = v->supersedes ? v->supersedes : v->confirms ? v->confirms : v->withdraws;
    for (uint32_t i = 0; earlier != 0 && i < f->out->founds; i++) {
        if (f->out->found[i].number == earlier) {
            f->out->found[i].superseded = true;
            f->out->found[i].withdrawn = v->withdraws != 0;
        }
    }
    if (found) {
        found->may_bes = v->may_bes < 4 ? v->may_bes : 4;
        memcpy(found->may_be, v->may_be, found->may_bes * sizeof(found->may_be[0]));
    }
#endif
}

static void collect(struct feeder *f)
{
    const struct roll_verdict *v;
    roll_engine_t *e = engine_of(f);
    uint32_t opened = f->nodes ? nodes_opened(f->nodes) : 0;
    while (e && (v = roll_engine_next(e)) != NULL) {
        if (f->nodes && !nodes_says(f->nodes, v)) {
            continue;
        }
        if (v->certainty == ROLL_NOTE || f->out->founds == FOUND_MAX) {
            note_life(f, v, NULL);
        }
        if (v->certainty == ROLL_NOTE || f->out->founds == FOUND_MAX) {
            continue;
        }
        for (; opened != f->opened; f->opened = opened) {
            for (uint32_t i = 0; i < f->out->founds; i++) {
                f->out->found[i].superseded = true;
                f->out->found[i].number = 0;
            }
        }
        struct found *found = &f->out->found[f->out->founds++];
        *found = (struct found){.code = v->code, .certainty = v->certainty, .number = v->number, .now_ns = f->now};
        note_life(f, v, found);
        for (size_t i = 0; i < roll_rankset_count(&v->culprits); i++) {
            uint32_t rank = roll_rankset_at(&v->culprits, i);
            found->culprits = (mask_t)(found->culprits | (rank < RANKS_MAX ? BIT(rank) : 0));
        }
        if (f->options.texts) {
            found->text = strdup(v->text ? v->text : "");
        }
    }
}

/* Hosts that still poll say so, by their own clock. */
static void feed_polls(struct feeder *f)
{
#ifndef ROLL_SIM_BEFORE
    for (uint32_t r = 0; f->waiting && r < f->p->ranks; r++) {
        struct reader *d = &f->reader[r];
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            struct poll *poll = &d->poll[t];
            while (poll->on && poll->next_ns <= f->s->still_ns + (f->now - f->waiting)) {
                struct log log;
                story_poll(&log, poll, t);
                struct roll_record rec = record_at(f, d, &log, d->tickets, ROLL_STATE_ENTERED);
                tell_records(f, r, &rec, 1);
                if (poll->log != UINT32_MAX) {
                    struct log before = poll->log < f->s->rank[r].logs ? f->s->rank[r].log[poll->log] : d->said[t];
                    before.back_ns = log.enter_ns;
                    before.rec.result = POLL_GOES_ON;
                    rec = record_at(f, d, &before, poll->log, ROLL_STATE_RETURNED);
                    tell_records(f, r, &rec, 1);
                }
                d->said[t] = log;
                poll->log = d->tickets++;
                story_poll_on(poll);
            }
        }
    }
#else
    (void)f;
#endif
}

static void pass(struct feeder *f, uint64_t ns)
{
    f->now += ns;
    feed_polls(f);
    if (f->nodes) {
        nodes_tick(f->nodes, f->now);
    }
    if (engine_of(f)) {
        (void)roll_engine_tick(engine_of(f), f->now);
    }
    collect(f);
}

/* Nothing more comes: fine steps first, because how soon it is said matters. */
static void wait_long(struct feeder *f)
{
    f->waiting = f->now;
    for (uint32_t r = 0; r < f->p->ranks; r++) {
        memcpy(f->reader[r].poll, f->s->rank[r].poll, sizeof(f->reader[r].poll));
        f->reader[r].tickets = f->s->rank[r].logs;
    }
    for (int i = 0; i < 20; i++) {
        pass(f, 10 * MS_);
    }
    for (int i = 0; i < 36; i++) {
        pass(f, 50 * MS_);
    }
    uint32_t steps = f->options.patience_s * 2 * 1000 / (1000 - f->p->starved); /* suspicion is as much slower */
    for (uint32_t i = 0; i < 24 || i < steps; i++) {
        pass(f, 500 * MS_);
    }
}

static bool all_read(const struct feeder *f)
{
    for (uint32_t r = 0; r < f->p->ranks; r++) {
        if (f->reader[r].next < f->s->rank[r].logs) {
            return false;
        }
    }
    return true;
}

#define FREEZE_NS (250 * MS_) /* of silence: then the root lets no time pass ... */
#define GIVE_UP_NS                                                                                                     \
    (10 * S_) /* ... until it gives the agent up and says that its ranks are not heard (docs/DAEMON.md) */

/* One node's agent says nothing for a while. Returns when all has been seen. */
static uint64_t choose_silence(struct feeder *f, uint32_t per_node)
{
    uint32_t node = rng_below(&f->rng, (f->p->ranks + per_node - 1) / per_node);
    uint64_t length = f->s->still_ns - START_NS;
    f->silence.first = node * per_node;
    f->silence.last = f->silence.first + per_node - 1;
    f->silence.from = START_NS + rng_below(&f->rng, (uint32_t)(length / MS_) + 1) * MS_;
    f->silence.to = f->silence.from + 300 * MS_ + rng_below(&f->rng, 20000) * MS_;
    f->out->live = false;
    f->out->style = "live, a node silent";
    return (f->silence.to > f->s->still_ns ? f->silence.to : f->s->still_ns) + 2 * S_;
}

static bool is_silent(const struct feeder *f, uint32_t rank)
{
    return f->silence.to != 0 && rank >= f->silence.first && rank <= f->silence.last && f->now >= f->silence.from &&
           f->now < f->silence.to;
}

static bool is_frozen(const struct feeder *f)
{
    return f->silence.to != 0 && f->now >= f->silence.from + FREEZE_NS && f->now < f->silence.from + GIVE_UP_NS &&
           f->now < f->silence.to;
}

static void tell_sight(struct feeder *f, uint32_t rank, bool heard)
{
#ifndef ROLL_SIM_BEFORE
    struct roll_engine_sight sight = {.heard = heard, .starved = f->p->starved};
    if (f->nodes) {
        nodes_sight(f->nodes, rank, &sight);
    } else {
        (void)roll_engine_sight(f->e, f->reader[rank].source, &sight);
    }
#else
    (void)f;
    (void)rank;
    (void)heard;
#endif
}

static void tell_silence(struct feeder *f, uint64_t before)
{
    uint64_t give_up = f->silence.from + GIVE_UP_NS;
    bool lost = f->silence.to > give_up && before < give_up && f->now >= give_up;
    bool back = f->silence.to > give_up && before < f->silence.to && f->now >= f->silence.to;
    for (uint32_t r = f->silence.first; (lost || back) && r <= f->silence.last && r < f->p->ranks; r++) {
        tell_sight(f, r, back);
    }
}

/* As a job runs: agents look every `period`; a node may see everything later than the others. */
static void feed_live(struct feeder *f)
{
    static const uint64_t periods[] = {10 * MS_, 20 * MS_, 50 * MS_};
    uint64_t period = periods[rng_below(&f->rng, 3)];
    uint32_t per_node = 1 + rng_below(&f->rng, 4);
    uint64_t last = f->s->still_ns;
    bool early = rng_chance(&f->rng, 50); /* the process is looked at before the ring */
    f->out->live = true;
    f->out->style = "live";
    if (rng_chance(&f->rng, 40)) {
        uint32_t node = rng_below(&f->rng, (f->p->ranks + per_node - 1) / per_node);
        uint64_t late = MS_ * (1 + rng_below(&f->rng, rng_chance(&f->rng, 70) ? 300 : 1500));
        for (uint32_t r = 0; r < f->p->ranks; r++) {
            f->reader[r].late_ns = r / per_node == node ? late : 0;
        }
        last += late;
        f->out->live = false;
        f->out->style = "live, a node late";
    }
    f->now = START_NS;
    if (rng_chance(&f->rng, 8)) {
        last = choose_silence(f, per_node);
    }
    while (f->now <= last || !all_read(f)) {
        uint64_t before = f->now;
        if (is_frozen(f)) {
            f->now += period;
        } else {
            pass(f, period);
        }
        tell_silence(f, before);
        uint32_t first = rng_below(&f->rng, f->p->ranks);
        for (uint32_t i = 0; i < f->p->ranks; i++) {
            uint32_t r = (first + i) % f->p->ranks;
            if (is_silent(f, r)) {
                continue;
            }
            uint64_t seen = f->now - f->reader[r].late_ns - rng_below(&f->rng, (uint32_t)(period / 4));
            if (early) {
                feed_process(f, r, seen);
            }
            feed_news(f, r, seen);
            (void)feed_new(f, r, seen, UINT32_MAX);
            feed_process(f, r, seen);
        }
        collect(f);
    }
    /* The rest of what can be seen. */
    for (uint32_t r = 0; r < f->p->ranks; r++) {
        feed_news(f, r, NEVER - 1);
        (void)feed_new(f, r, NEVER - 1, UINT32_MAX);
        feed_process(f, r, NEVER - 1);
    }
}

static void feed_chunks(struct feeder *f, uint64_t step_ns)
{
    uint64_t seen = NEVER - 1;
    f->now = START_NS;
    uint32_t size = 1 + rng_below(&f->rng, 24);
    bool early = rng_chance(&f->rng, 20);
    while (!all_read(f)) {
        uint32_t r = rng_below(&f->rng, f->p->ranks);
        while (f->reader[r].next == f->s->rank[r].logs) {
            r = (r + 1) % f->p->ranks;
        }
        uint32_t left = f->s->rank[r].logs - f->reader[r].next, most = 1 + rng_below(&f->rng, size);
        if (early && left <= most) { /* no time passes in between: an agent sends the end behind the last record */
            feed_process(f, r, seen);
        }
        (void)feed_new(f, r, seen, most);
        if (f->reader[r].next == f->s->rank[r].logs) {
            feed_process(f, r, seen);
        }
        if (step_ns != 0) {
            pass(f, 1 + rng_below(&f->rng, (uint32_t)step_ns));
        }
        collect(f);
    }
}

static void feed_ranks(struct feeder *f)
{
    bool back = rng_chance(&f->rng, 50);
    f->now = START_NS;
    for (uint32_t i = 0; i < f->p->ranks; i++) {
        uint32_t r = back ? f->p->ranks - 1 - i : i;
        (void)feed_new(f, r, NEVER - 1, UINT32_MAX);
        feed_process(f, r, NEVER - 1);
        collect(f);
    }
}

static void lose(struct feeder *f)
{
    uint32_t r = rng_below(&f->rng, f->p->ranks);
    uint32_t logs = f->s->rank[r].logs;
    if (logs > 4) {
        f->reader[r].lost_from = 2 + rng_below(&f->rng, logs - 3);
        f->reader[r].lost = 1 + rng_below(&f->rng, logs - f->reader[r].lost_from);
        f->reader[r].lost = f->reader[r].lost > 40 ? 40 : f->reader[r].lost;
    }
    f->out->lossy = true;
}

/* An engine, or a tree of digests, and the ranks that it will hear of. */
static int begin(struct feeder *f)
{
    const struct program *p = f->p;
    struct roll_engine_config config = {.memory = f->options.room};
    uint32_t per_node = 1 + rng_below(&f->rng, 8);
    if (f->options.levels != 0) {
        f->nodes = nodes_new(&(struct nodes_how){.ranks = p->ranks,
                                                 .per_node = per_node,
                                                 .levels = f->options.levels,
                                                 .history = f->options.history,
                                                 .period_ns = 100 * MS_,
                                                 .seed = f->rng.state,
                                                 .faults = f->options.faults,
                                                 .scoped = f->options.scoped,
                                                 .narrow = f->options.narrow,
                                                 .room = f->options.room});
    } else {
        f->e = roll_engine_new(&config);
    }
    if (!f->nodes && !f->e) {
        return -1;
    }
    if (f->e) {
        (void)roll_engine_tick(f->e, START_NS);
    }
    for (uint32_t r = 0; r < p->ranks; r++) {
        char host[16];
        snprintf(host, sizeof(host), "node%u", r / per_node);
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)p->ranks,
                                        .local_rank = (int32_t)(r % per_node),
                                        .pid = 1000 + r,
                                        .host = host,
                                        .exe = "train"};
        if (f->nodes) {
            nodes_open(f->nodes, r, &info);
        } else if (roll_engine_open(f->e, &info, &f->reader[r].source) != 0) {
            roll_engine_destroy(&f->e);
            return -1;
        }
    }
    return 0;
}

int feed(const struct program *p, const struct story *s, uint64_t order, const struct feed_options *o,
         struct findings *out)
{
    static struct feeder f;
    memset(&f, 0, sizeof(f));
    memset(out, 0, sizeof(*out));
    f.p = p;
    f.s = s;
    f.out = out;
    f.options = *o;
    f.rng.state = order * 0x9e3779b97f4a7c15u + 5;
    (void)rng_next(&f.rng);
    if (begin(&f) != 0) {
        return -1;
    }
    for (uint32_t r = 0; p->starved != 0 && r < p->ranks; r++) {
        tell_sight(&f, r, true);
    }
    if (o->losses) {
        lose(&f);
    }
    f.knows_status = !rng_chance(&f.rng, 15);
    bool finish = false;
    switch (rng_below(&f.rng, 8)) {
    case 0:
        out->style = "chunks";
        feed_chunks(&f, 0);
        finish = rng_chance(&f.rng, 50);
        break;
    case 1:
        out->style = "chunks, time passes";
        feed_chunks(&f, MS_ * (1 + rng_below(&f.rng, 20)));
        break;
    case 2:
        out->style = "rank after rank";
        feed_ranks(&f);
        finish = rng_chance(&f.rng, 50);
        break;
    default:
        feed_live(&f);
        break;
    }
    wait_long(&f);
    if (finish && engine_of(&f)) {
        (void)roll_engine_finish(engine_of(&f));
        collect(&f);
    }
    out->hints = f.nodes ? nodes_hints(f.nodes) : 0;
    out->looked = engine_of(&f) != NULL;
    nodes_destroy(&f.nodes);
    roll_engine_destroy(&f.e);
    return 0;
}

void findings_fini(struct findings *out)
{
    for (uint32_t i = 0; i < out->founds; i++) {
        free(out->found[i].text);
    }
    out->founds = 0;
}
