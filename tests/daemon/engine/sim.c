/*
 * sim.c: see sim.h. The orders: round robin, rank after rank, the reverse, the last rank first, and random ones with
 * fixed seeds, in chunks of random size, some with time passing between the chunks.
 */
#include "tests/daemon/engine/sim.h"

#include "trace/err.h"
#include "trace/signature.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_NS (1000 * S_)
#define CALL_NS  1000u

struct sim *sim_new(uint32_t ranks)
{
    struct sim *sim = calloc(1, sizeof(*sim));
    assert_non_null(sim);
    sim->ranks = ranks;
    sim->rank = calloc(ranks, sizeof(*sim->rank));
    assert_non_null(sim->rank);
    for (uint32_t r = 0; r < ranks; r++) {
        sim->rank[r].step = ROLL_STEP_NONE;
        for (uint32_t c = 0; c < SIM_COMMS; c++) {
            sim->rank[r].in_comm[c] = -1;
        }
    }
    sim->patience_ns = 10 * S_;
    return sim;
}

void sim_destroy(struct sim **sim)
{
    for (uint32_t r = 0; r < (*sim)->ranks; r++) {
        free((*sim)->rank[r].event);
        for (uint32_t c = 0; c < SIM_COMMS; c++) {
            free((*sim)->rank[r].p2p[c]);
        }
    }
    free((*sim)->rank);
    free(*sim);
    *sim = NULL;
}

static struct sim_event *add(struct sim *sim, uint32_t rank)
{
    struct sim_rank *r = &sim->rank[rank];
    if (r->events == r->room) {
        r->room = r->room ? r->room * 2 : 64;
        r->event = realloc(r->event, r->room * sizeof(*r->event));
        assert_non_null(r->event);
    }
    struct sim_event *event = &r->event[r->events++];
    memset(event, 0, sizeof(*event));
    return event;
}

uint32_t sim_comm(struct sim *sim, const char *label, const uint32_t *ranks, uint32_t size)
{
    uint32_t c = sim->comms++;
    assert_true(c < SIM_COMMS);
    sim->comm[c].key = 0x1000 + c;
    sim->comm[c].size = size;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t rank = ranks ? ranks[i] : i;
        struct sim_rank *r = &sim->rank[rank];
        sim->comm[c].member[i] = rank;
        r->in_comm[c] = (int32_t)i;
        r->comm_id[c] = ++r->comms;
        r->p2p[c] = calloc((size_t)size * 2, sizeof(uint32_t));
        struct sim_event *event = add(sim, rank);
        event->kind = SIM_DEFINE;
        event->def.type = ROLL_DEF_COMM;
        event->def.id = r->comm_id[c];
        event->def.comm.label = label;
        event->def.comm.info = (struct roll_def_comm){.key = sim->comm[c].key,
                                                      .rank = (int32_t)i,
                                                      .nranks = (int32_t)size,
                                                      .color = ROLL_COLOR_NONE,
                                                      .origin = ROLL_COMM_INIT,
                                                      .label_bytes = (uint32_t)strlen(label)};
    }
    return c;
}

uint32_t sim_world(struct sim *sim)
{
    return sim_comm(sim, "world", NULL, sim->ranks);
}

/* The line of Python of the place that comes, and its file, which has other folders on each host. */
static void define_line(struct sim *sim, uint32_t rank)
{
    static const char *const paths[] = {"/home/a/job.py", "/nfs/bb/job.py"};
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_DEFINE;
    event->def = (struct roll_def){.type = ROLL_DEF_SOURCE, .id = 1};
    event->def.source.path = paths[rank % 2];
    event->def.source.path_bytes = 14;
    event = add(sim, rank);
    event->kind = SIM_DEFINE;
    event->def = (struct roll_def){.type = ROLL_DEF_LINE, .id = sim->site};
    event->def.line.info = (struct roll_def_line){.source = 1, .line = sim->site, .function_bytes = 5};
    event->def.line.function = "train";
}

/* Defines the place of the call that comes: the same place of the program has another address in each process. */
static void define_site(struct sim *sim, uint32_t rank)
{
    struct sim_rank *r = &sim->rank[rank];
    uint64_t bias = 0x10000000ull * (rank + 1);
    assert_true(sim->site < SIM_SITES);
    if (!r->site[0]) {
        struct sim_event *event = add(sim, rank);
        event->kind = SIM_DEFINE;
        event->def.type = ROLL_DEF_MODULE;
        event->def.id = 1;
        event->def.module.path = "/opt/train";
        event->def.module.info =
            (struct roll_def_module){.start = bias, .end = bias + 0x100000, .bias = bias, .path_bytes = 10};
        r->site[0] = true;
    }
    if (!r->site[sim->site]) {
        if (sim->python) {
            define_line(sim, rank);
        }
        struct sim_event *event = add(sim, rank);
        uint32_t depth = 0;
        event->kind = SIM_DEFINE;
        event->def.type = ROLL_DEF_CALLSITE;
        event->def.id = sim->site;
        if (sim->helper != 0) {
            event->def.callsite.pc[depth++] = bias + 0x20000 + sim->helper * 16ull;
        }
        event->def.callsite.pc[depth++] = bias + 0x1000 + (sim->guessed ? 977ull * (rank + 1) : 0) + sim->site * 16ull;
        event->def.callsite.pc[depth++] = bias + 0x100;
        event->def.callsite.depth = depth;
        event->def.callsite.lines = sim->python;
        event->def.callsite.line[0] = (struct roll_callsite_line){.line = sim->site, .folded = 3};
        r->site[sim->site] = true;
    }
}

struct roll_record *sim_record(struct sim *sim, uint32_t rank, enum roll_op op, uint32_t comm)
{
    struct sim_rank *r = &sim->rank[rank];
    if (sim->site != 0) {
        define_site(sim, rank);
    }
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_RECORD;
    event->rec = (struct roll_record){.seal = roll_seal(r->ticket, ROLL_STATE_RETURNED),
                                      .enter_ns = START_NS + r->ticket * CALL_NS,
                                      .group = r->open_group,
                                      .peer = ROLL_PEER_NONE,
                                      .call_ns = 100,
                                      .step = r->step,
                                      .comm = comm == UINT32_MAX ? 0 : r->comm_id[comm],
                                      .stream = 2,
                                      .callsite = sim->site,
                                      .thread = 1,
                                      .layer = ROLL_LAYER_NONE,
                                      .op = (uint8_t)op,
                                      .dtype = ROLL_DTYPE_NONE,
                                      .redop = ROLL_RED_NONE,
                                      .flags = r->open_group ? ROLL_FLAG_IN_GROUP : 0};
    r->ticket++;
    return &event->rec;
}

struct roll_record *sim_call(struct sim *sim, uint32_t rank, uint32_t comm, enum roll_op op, uint64_t count)
{
    struct sim_rank *r = &sim->rank[rank];
    assert_true(r->in_comm[comm] >= 0);
    struct roll_record *rec = sim_record(sim, rank, op, comm);
    bool reduces = roll_op_has(op, ROLL_TRAIT_REDOP);
    rec->count = count;
    rec->dtype = ROLL_DTYPE_FLOAT32;
    rec->redop = reduces ? ROLL_RED_SUM : ROLL_RED_NONE;
    rec->peer = op == ROLL_OP_BROADCAST || op == ROLL_OP_REDUCE ? 0 : ROLL_PEER_NONE;
    rec->seq = r->seq[comm];
    r->seq[comm] += count != 0;
    r->grouped += r->open_group != 0;
    return rec;
}

void sim_all(struct sim *sim, uint32_t comm, enum roll_op op, uint64_t count)
{
    for (uint32_t i = 0; i < sim->comm[comm].size; i++) {
        sim_call(sim, sim->comm[comm].member[i], comm, op, count);
    }
}

static struct roll_record *p2p(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t peer, uint64_t count,
                               unsigned side)
{
    struct sim_rank *r = &sim->rank[rank];
    struct roll_record *rec = sim_record(sim, rank, side ? ROLL_OP_RECV : ROLL_OP_SEND, comm);
    rec->count = count;
    rec->dtype = ROLL_DTYPE_FLOAT32;
    rec->peer = (int32_t)peer;
    rec->seq = r->p2p[comm][peer * 2 + side]++;
    r->grouped += r->open_group != 0;
    return rec;
}

struct roll_record *sim_send(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t to, uint64_t count)
{
    return p2p(sim, rank, comm, to, count, 0);
}

struct roll_record *sim_recv(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t from, uint64_t count)
{
    return p2p(sim, rank, comm, from, count, 1);
}

void sim_group(struct sim *sim, uint32_t rank)
{
    sim->rank[rank].open_group = ++sim->rank[rank].group;
    sim->rank[rank].grouped = 0;
}

void sim_group_end(struct sim *sim, uint32_t rank)
{
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_GROUP_END, UINT32_MAX);
    rec->flags = 0;
    rec->aux = (uint16_t)sim->rank[rank].grouped;
    sim->rank[rank].open_group = 0;
}

void sim_capture(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t id, uint32_t calls, uint64_t count)
{
    struct sim_rank *r = &sim->rank[rank];
    uint64_t hash = 0, first = r->ticket;
    for (uint32_t i = 0; i < calls; i++) {
        struct roll_record *rec = sim_call(sim, rank, comm, ROLL_OP_ALLREDUCE, count + i);
        rec->flags |= ROLL_FLAG_CAPTURED;
        rec->aux = (uint16_t)id;
        struct roll_signed_call call = {rec->count, rec->peer, rec->op, rec->dtype, rec->redop, rec->flags};
        hash = roll_sequence_hash(hash, roll_signature(&call));
    }
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_DEFINE;
    event->def.type = ROLL_DEF_GRAPH;
    event->def.id = id;
    event->def.graph.info =
        (struct roll_def_graph){.first_ticket = first, .last_ticket = r->ticket - 1, .calls = calls, .parts = 1};
    event->def.graph.part[0] = (struct roll_graph_part){.hash = hash, .collectives = calls, .comm = r->comm_id[comm]};
    r->graph[id] = hash;
}

struct roll_record *sim_launch(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t id)
{
    struct roll_record *rec = sim_call(sim, rank, comm, ROLL_OP_GRAPH_LAUNCH, sim->rank[rank].graph[id]);
    rec->dtype = ROLL_DTYPE_NONE;
    rec->aux = (uint16_t)id;
    return rec;
}

struct roll_record *sim_sync(struct sim *sim, uint32_t rank)
{
    return sim_record(sim, rank, ROLL_OP_STREAM_SYNC, UINT32_MAX);
}

struct roll_record *sim_stuck(struct sim *sim, uint32_t rank)
{
    struct roll_record *rec = sim_sync(sim, rank);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    return rec;
}

void sim_return(struct sim *sim, uint32_t rank)
{
    struct sim_rank *r = &sim->rank[rank];
    size_t last = r->events - 1;
    while (r->event[last].kind != SIM_RECORD) { /* time may have passed since */
        assert_true(last > 0);
        last--;
    }
    struct roll_record rec = r->event[last].rec;
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_RECORD;
    event->rec = rec;
    event->rec.seal = roll_seal(roll_seal_ticket(rec.seal), ROLL_STATE_RETURNED);
}

void sim_product(struct sim *sim, uint32_t rank, uint32_t rows, uint16_t groups)
{
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_EXT_GROUPED_GEMM, 0);
    rec->count = rows;
    rec->aux = groups;
    sim_return(sim, rank);
}

void sim_lose(struct sim *sim, uint32_t rank, uint64_t count)
{
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_LOST;
    event->first = sim->rank[rank].ticket;
    event->count = count;
    sim->rank[rank].ticket += count;
}

void sim_pass(struct sim *sim, uint32_t rank, uint64_t ns)
{
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_PASS;
    event->first = ns;
}

void sim_proc(struct sim *sim, uint32_t rank, enum roll_proc_state state, int32_t status)
{
    struct sim_event *event = add(sim, rank);
    event->kind = SIM_PROC;
    event->proc = state;
    event->status = status;
}

void sim_step(struct sim *sim, uint32_t step)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim->rank[r].step = step;
    }
}

void sim_moe_forward(struct sim *sim, uint32_t rank, uint32_t ep, uint32_t layer, uint64_t rows, uint32_t duties)
{
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_MOE_COUNTS, ep);
    rec->layer = (uint16_t)layer;
    rec->count = rows;
    rec->phase = ROLL_PHASE_FORWARD;
    if (rows == 0 && duties == 0) {
        rec = sim_record(sim, rank, ROLL_OP_MOE_SKIP, ep);
        rec->layer = (uint16_t)layer;
        rec->phase = ROLL_PHASE_FORWARD;
    }
    for (uint32_t i = 0; i < duties; i++) {
        rec = sim_record(sim, rank, ROLL_OP_MOE_OBLIGE, ep);
        rec->layer = (uint16_t)layer;
        rec->seq = i;
        rec->peer = ROLL_OP_ALLTOALL;
        rec->phase = ROLL_PHASE_FORWARD;
    }
    rec = sim_record(sim, rank, ROLL_OP_MOE_OBLIGE_END, ep);
    rec->layer = (uint16_t)layer;
    rec->count = duties;
    rec->phase = ROLL_PHASE_FORWARD;
}

/* feeding */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

void sim_wait(roll_engine_t *e, uint64_t ns, uint64_t *now)
{
    for (uint64_t end = *now + ns; *now < end;) {
        *now += end - *now < S_ / 50 ? end - *now : S_ / 50;
        roll_engine_tick(e, *now);
    }
}

void sim_feed(roll_engine_t *e, uint32_t source, const struct sim_event *event, uint64_t *now)
{
    switch (event->kind) {
    case SIM_RECORD:
        assert_int_equal(roll_engine_feed(e, source, &event->rec, 1), 0);
        break;
    case SIM_DEFINE:
        assert_int_equal(roll_engine_define(e, source, &event->def), 0);
        break;
    case SIM_PROC:
        assert_int_equal(roll_engine_process(e, source, event->proc, event->status), 0);
        break;
    case SIM_PASS:
        sim_wait(e, event->first, now);
        break;
    case SIM_LOST:
        assert_int_equal(roll_engine_lost(e, source, event->first, event->count), 0);
        break;
    }
}

static uint32_t pick(uint32_t order, uint32_t ranks, uint64_t *state, uint32_t turn)
{
    switch (order) {
    case 0:
        return turn % ranks;
    case 1:
        return 0;
    case 2:
    case 3:
        return ranks - 1;
    default:
        return next_random(state) % ranks;
    }
}

uint32_t sim_open(const struct sim *sim, roll_engine_t *e, uint32_t rank)
{
    uint32_t source;
    struct roll_source_info info = {.stream = rank + 1,
                                    .world_rank = (int32_t)rank,
                                    .world_size = (int32_t)sim->ranks,
                                    .local_rank = (int32_t)rank,
                                    .pid = 1000 + rank,
                                    .host = "node0",
                                    .exe = "train"};
    assert_int_equal(roll_engine_open(e, &info, &source), 0);
    return source;
}

/* Feeds what the rank that is furthest behind in time does next, until all have done all. */
static void feed_by_time(const struct sim *sim, roll_engine_t *e, const uint32_t *source, size_t *at, uint64_t *now)
{
    uint64_t *clock = calloc(sim->ranks, sizeof(*clock)), began = *now;
    uint32_t sources = sim->ranks - sim->skip_last_source;
    assert_non_null(clock);
    for (;;) {
        uint32_t r = sources;
        for (uint32_t i = 0; i < sources; i++) {
            bool left = at[i] < sim->rank[i].events;
            r = left && (r == sources || clock[i] < clock[r]) ? i : r;
        }
        if (r == sources) {
            break;
        }
        const struct sim_event *event = &sim->rank[r].event[at[r]++];
        if (event->kind == SIM_PASS) {
            clock[r] += event->first;
            continue;
        }
        if (clock[r] > *now - began) {
            sim_wait(e, clock[r] - (*now - began), now);
        }
        sim_feed(e, source[r], event, now);
    }
    free(clock);
}

static void feed_all(const struct sim *sim, roll_engine_t *e, uint32_t order, uint64_t *now)
{
    size_t *at = calloc(sim->ranks, sizeof(*at));
    uint32_t *source = calloc(sim->ranks, sizeof(*source));
    assert_non_null(at);
    assert_non_null(source);
    uint32_t sources = sim->ranks - sim->skip_last_source;
    uint64_t state = order * 7919 + 1;
    size_t left = 0;
    for (uint32_t r = 0; r < sources; r++) {
        source[r] = sim_open(sim, e, r);
        left += sim->rank[r].events;
    }
    if (order == SIM_BY_TIME) {
        feed_by_time(sim, e, source, at, now);
        left = 0;
    }
    for (uint32_t turn = 0; left > 0; turn++) {
        uint32_t r = pick(order, sources, &state, turn);
        while (at[r] == sim->rank[r].events) {
            r = order == 3 || order == 2 ? (r + sources - 1) % sources : (r + 1) % sources;
        }
        size_t chunk = order == 0 ? 1 : order < 3 ? SIZE_MAX : 1 + next_random(&state) % (order == 4 ? 2 : 9);
        for (; chunk > 0 && at[r] < sim->rank[r].events; chunk--, left--) {
            sim_feed(e, source[r], &sim->rank[r].event[at[r]++], now);
        }
        if (order >= 7) {
            *now += 1000;
            roll_engine_tick(e, *now);
        }
    }
    free(at);
    free(source);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct line {
    uint64_t number; /* of a finding; 0 = a note */
    char *text;
};

static int by_line(const void *a, const void *b)
{
    return by_text(&((const struct line *)a)->text, &((const struct line *)b)->text);
}

/* What is proven is that ranks wait for each other, and for what: which mistake led there may be open
 * (docs/VERDICTS.md). */
static bool is_of_a_wait(enum roll_verdict_code code)
{
    static const enum roll_verdict_code waits[] = {
        ROLL_VERDICT_CIRCULAR_WAIT, ROLL_VERDICT_CROSSED_WAIT,       ROLL_VERDICT_INIT_MISSING,
        ROLL_VERDICT_P2P_UNMATCHED, ROLL_VERDICT_ALLTOALLV_MISMATCH,
    };
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        if (waits[i] == code) {
            return true;
        }
    }
    return false;
}

/* What a later verdict has superseded, confirmed or withdrawn is left out; with `all` nothing is. */
static char *collect(roll_engine_t *e, bool notes, bool text, bool all)
{
    struct line line[512];
    size_t lines = 0, bytes = 1;
    const struct roll_verdict *v;
    while ((v = roll_engine_next(e)) && lines < 512) {
        char ranks[256];
        uint64_t retires = v->supersedes + v->confirms + v->withdraws;
        assert_true((v->supersedes != 0) + (v->confirms != 0) + (v->withdraws != 0) <= 1);
        assert_true(retires < v->number);
        assert_true(v->withdraws == 0 || v->certainty == ROLL_NOTE);
        assert_true(v->certainty != ROLL_PROVEN || v->may_bes == 0 || is_of_a_wait(v->code));
        for (size_t i = 0; i < lines && !all && retires != 0; i++) {
            if (line[i].number == retires) {
                free(line[i].text);
                line[i--] = line[--lines];
                retires = 0;
            }
        }
        if (v->certainty == ROLL_NOTE && !notes) {
            continue;
        }
        assert_true(v->text && v->text[0]);
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        line[lines].number = v->certainty == ROLL_NOTE ? 0 : v->number;
        assert_true(asprintf(&line[lines].text, "%s %s %s%s%s", roll_certainty_name(v->certainty),
                             roll_verdict_name(v->code), ranks[0] ? ranks : "-", text ? " " : "",
                             text ? v->text : "") > 0);
        bytes += strlen(line[lines++].text) + 2;
    }
    if (!text) {
        qsort(line, lines, sizeof(line[0]), by_line);
    }
    char *joined = calloc(1, bytes);
    assert_non_null(joined);
    for (size_t i = 0; i < lines; i++) {
        strcat(joined, i ? "; " : "");
        strcat(joined, line[i].text);
        free(line[i].text);
    }
    return joined;
}

static char *run_order(const struct sim *sim, uint32_t order, bool notes, bool text, bool all)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    assert_non_null(e);
    roll_engine_expect(e, sim->expected);
    uint64_t now = START_NS;
    roll_engine_tick(e, now);
    feed_all(sim, e, order, &now);
    sim_wait(e, sim->patience_ns, &now);
    if (sim->finish) {
        roll_engine_finish(e);
    }
    struct roll_engine_summary summary;
    roll_engine_summary(e, &summary);
    char *out = collect(e, notes, text, all);
    size_t findings = out[0] != '\0';
    for (const char *at = out; !notes && !text && !all && (at = strstr(at, "; ")); at++) {
        findings++;
    }
    assert_true(notes || text || all || summary.findings == findings);
    roll_engine_destroy(&e);
    assert_null(e);
    return out;
}

char *sim_run(const struct sim *sim, uint32_t order, bool notes, bool text)
{
    return run_order(sim, order, notes, text, false);
}

char *sim_run_all(const struct sim *sim, uint32_t order)
{
    return run_order(sim, order, false, false, true);
}

void sim_expect_at(const struct sim *sim, const char *findings, const char *file, int line)
{
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        /* What is healthy gives no finding at any time; what is sick is told in the end, and may be told better on the
         * way. */
        char *got = findings[0] == '\0' ? sim_run_all(sim, order) : sim_run(sim, order, false, false);
        if (strcmp(got, findings) != 0) {
            char *text = sim_run(sim, order, true, true);
            printf("%s:%d: %u ranks, order %u:\n  wanted: %s\n  got:    %s\n  texts:  %s\n", file, line, sim->ranks,
                   order, findings, got, text);
            free(text);
            free(got);
            _fail(file, line);
        }
        free(got);
    }
}

void sim_expect_with_notes(const struct sim *sim, const char *want)
{
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *got = sim_run(sim, order, true, false);
        assert_string_equal(got, want);
        free(got);
    }
}
