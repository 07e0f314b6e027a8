/*
 * bench_scale_trials.c: what is done to the fleet of roll_bench scale, and how long it takes: nothing; wrong calls; a
 * rank that stops calling; an agent that is killed and comes back; a root that is killed and comes back; the death of
 * a node.
 *
 * All times are of the slow clock. A root that has work for a second would seem to have done it in a fraction of one
 * there, so the processor time of the root, which is real, stands beside each of them: both together are the most that
 * it can take with a machine for each node.
 */
#include "tests/bench/bench_scale.h"

#include "tests/daemon/synth.h"
#include "trace/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALM_S    3
#define SETTLE_S  4 /* then the last rank is as far behind as it will be */
#define TOLD_S    30.0
#define SETTLED_S 120.0

static double seconds(uint64_t since)
{
    return (double)(synth_mono_ns() - since) * 1e-9;
}

static json_int_t figure(const json_t *reply, const char *part, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(reply, part), name));
}

/* A row of many ranks takes minutes, in which nothing is known of it but this. Real seconds. */
__attribute__((format(printf, 3, 4))) static void progress(const struct scale_measured *m, uint64_t begin,
                                                           const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "bench: %u ranks, after %.0f s: %s\n", m->ranks, seconds(begin) * m->factor, text);
}

/* Seconds until the root knows all ranks as living ones; < 0: they have not been there in time. */
static double wait_all(const struct scale_fleet *f)
{
    uint64_t begin = synth_mono_ns();
    while (seconds(begin) < SETTLED_S) {
        json_t *reply = scale_ask(f, "runs");
        const json_t *run = json_array_get(json_object_get(reply, "runs"), 0);
        json_int_t ranks = json_integer_value(json_object_get(run, "ranks_live"));
        json_decref(reply);
        if (ranks == (json_int_t)f->ranks) {
            return seconds(begin);
        }
        usleep(50000);
    }
    return -1;
}

/* Waits until no records are looked at any more. */
static void rest(const struct scale_fleet *f)
{
    for (uint64_t begin = synth_mono_ns(); seconds(begin) < SETTLED_S; usleep(500000)) {
        json_t *status = scale_ask(f, "status");
        const char *records = json_string_value(json_object_get(json_object_get(status, "digests"), "records"));
        bool none = records && strcmp(records, "none") == 0;
        json_decref(status);
        if (none) {
            return;
        }
    }
}

static double query_ms(const struct scale_fleet *f, const char *op)
{
    double root = scale_cpu_s(f->root);
    uint64_t begin = synth_mono_ns();
    json_t *reply = scale_ask(f, op);
    double ms = seconds(begin) * 1e3, cpu = (scale_cpu_s(f->root) - root) * 1e3;
    json_decref(reply);
    return !reply ? -1 : ms > cpu ? ms : cpu;
}

/* verdicts */

struct said {
    char code[32], culprits[64];
    uint64_t key;
};

static bool next_said(const struct scale_fleet *f, int ms, struct said *said)
{
    json_t *verdict = NULL;
    *said = (struct said){.key = 0};
    if (roll_client_next(f->client, ms, &verdict) != 0) {
        return false;
    }
    if (json_integer_value(json_object_get(verdict, "withdraws")) !=
        0) { /* that an earlier one is no finding any more */
        json_decref(verdict);
        return false;
    }
    const char *key = json_string_value(json_object_get(json_object_get(verdict, "comm"), "key"));
    const char *culprits = json_string_value(json_object_get(verdict, "culprits_text"));
    const char *code = json_string_value(json_object_get(verdict, "code"));
    said->key = key ? strtoull(key, NULL, 16) : 0;
    snprintf(said->culprits, sizeof(said->culprits), "%s", culprits ? culprits : "");
    snprintf(said->code, sizeof(said->code), "%s", code ? code : "?");
    json_decref(verdict);
    return true;
}

static void print_other(const struct scale_fleet *f, const char *during, const struct said *said)
{
    fprintf(stderr, "bench: %u ranks, %s: also told is %s of ranks '%s' on 0x%llx\n", f->ranks, during, said->code,
            said->culprits, (unsigned long long)said->key);
}

/* Reads what is told for so long: nothing should be. */
static uint32_t listen_for(const struct scale_fleet *f, double s, const char *during)
{
    uint32_t others = 0;
    struct said said;
    for (uint64_t begin = synth_mono_ns(); seconds(begin) < s;) {
        if (next_said(f, 50, &said)) {
            print_other(f, during, &said);
            others++;
        }
    }
    return others;
}

/* the job runs, and nothing is wrong */

static int calm(const struct scale_fleet *f, struct scale_measured *m)
{
    double part[SCALE_HOSTS] = {0}, busiest;
    json_t *before = scale_ask(f, "status");
    usleep(500000);
    double root = scale_cpu_s(f->root), relays = scale_relays_s(f, &busiest, part), agents = scale_agents_s(f);
    uint64_t begin = synth_mono_ns(), calls = scale_calls(f);
    for (uint32_t i = 0; i < f->hosts; i++) {
        atomic_store(&f->board->late_ns[i], 0);
    }
    sleep(CALM_S);
    double s = seconds(begin);
    m->root = (scale_cpu_s(f->root) - root) / s;
    m->agent = (scale_agents_s(f) - agents) / s / f->nodes;
    m->relay = f->relays ? (scale_relays_s(f, &busiest, part) - relays) / s / f->relays : 0;
    m->relay_most = f->relays ? busiest / s : 0;
    m->calls = (double)(scale_calls(f) - calls) / s;
    for (uint32_t i = 0; i < f->hosts; i++) {
        double late = (double)atomic_load(&f->board->late_ns[i]) * 1e-6;
        m->late_ms = late > m->late_ms ? late : m->late_ms;
    }
    json_t *after = scale_ask(f, "status");
    m->into_root = (double)(figure(after, "digests", "bytes") - figure(before, "digests", "bytes")) / seconds(begin);
    m->opened = (uint32_t)figure(after, "digests", "opened");
    m->others = (uint32_t)figure(after, "summary", "findings");
    int err = figure(after, "summary", "calls") > figure(before, "summary", "calls") ? 0 : ROLL_E_TIMEOUT;
    json_decref(before);
    json_decref(after);
    m->runs_ms = query_ms(f, "runs");
    m->status_ms = query_ms(f, "status");
    m->why_ms = query_ms(f, "why");
    return err;
}

/* a wrong call */

/* A finding may be told first without a culprit, where most ranks have not come yet, and be told again with one. */
static bool is_earlier(const struct scale_measured *m, uint32_t trial, const char *culprits)
{
    for (uint32_t t = 0; culprits[0] && t + 1 < trial; t++) {
        char one[16];
        snprintf(one, sizeof(one), "%u", m->wrong[t]);
        if (strcmp(one, culprits) == 0) {
            return true;
        }
    }
    return false;
}

/* A rank makes one wrong call. Seconds until the verdict, < 0: none came; *named: it names the rank at once. */
static double wrong_call(const struct scale_fleet *f, struct scale_measured *m, uint32_t trial, bool *named,
                         uint32_t *others)
{
    uint32_t part = f->ranks / 32, rank = (trial * 13 % 32) * part + scale_spread(trial) % part;
    char culprit[16];
    struct said said;
    snprintf(culprit, sizeof(culprit), "%u", rank);
    m->wrong[trial - 1] = rank;
    *named = false;
    atomic_store(&f->board->wrong_ns, 0);
    atomic_store(&f->board->wrong_rank, rank);
    atomic_store(&f->board->trial, trial);
    for (uint64_t begin = synth_mono_ns(); seconds(begin) < TOLD_S;) {
        if (!next_said(f, 20, &said)) {
            continue;
        }
        bool ours = said.key == atomic_load(&f->board->wrong_key);
        *named = ours && strcmp(said.culprits, culprit) == 0;
        if (ours && (*named || said.culprits[0] == '\0')) {
            return seconds(atomic_load(&f->board->wrong_ns));
        }
        if (!is_earlier(m, trial, said.culprits)) {
            print_other(f, "a wrong call", &said);
            ++*others;
        }
    }
    return -1;
}

/* soon: the next call does not wait until the records of the last one are looked at no more. A p99 needs a hundred of
 * them, and jobs do not wait either. */
static void wrong_calls(const struct scale_fleet *f, struct scale_measured *m, uint32_t trials, bool soon,
                        uint64_t begin)
{
    for (uint32_t t = 1; t <= trials; t++) {
        bool named = false;
        if (soon) {
            usleep(100000 + scale_spread(t) % 3000000);
        } else {
            rest(f);
            sleep(2); /* no case is opened so soon behind another one */
        }
        double cpu = scale_cpu_s(f->root), s = wrong_call(f, m, t, &named, &m->others);
        m->tried++;
        if (s >= 0) {
            m->told_cpu_ms[m->told] = (scale_cpu_s(f->root) - cpu) * 1e3;
            m->told_ms[m->told++] = s * 1e3;
            m->named += named;
        }
        progress(m, begin, "wrong call %u of %u: told after %.0f ms, the root busy for %.0f ms%s", t, trials, s * 1e3,
                 (scale_cpu_s(f->root) - cpu) * 1e3,
                 named   ? ""
                 : s < 0 ? ", NOT TOLD"
                         : ", without its rank");
    }
}

/* a rank stops calling */

static void stall(const struct scale_fleet *f, struct scale_measured *m)
{
    uint32_t rank = f->ranks / 3;
    char culprit[16];
    struct said said;
    snprintf(culprit, sizeof(culprit), "%u", rank);
    rest(f);
    m->others += listen_for(f, 2, "before a rank stands");
    m->still_s = -1;
    double cpu = scale_cpu_s(f->root);
    atomic_store(&f->board->still_rank, rank);
    for (uint64_t begin = synth_mono_ns(); seconds(begin) < TOLD_S && m->still_s < 0;) {
        if (!next_said(f, 20, &said)) {
            continue;
        }
        bool ours = strcmp(said.culprits, culprit) == 0;
        if (ours) {
            m->still_s = seconds(atomic_load(&f->board->still_ns));
            m->still_cpu_s = scale_cpu_s(f->root) - cpu;
            m->still_right++;
            snprintf(m->still_code, sizeof(m->still_code), "%s", said.code);
        } else if (!is_earlier(m, SCALE_TRIALS, said.culprits)) {
            print_other(f, "a rank stands", &said);
            m->others++;
        }
    }
    atomic_store(&f->board->still_rank, SCALE_NOBODY);
    atomic_store(&f->board->hold, UINT64_MAX);
    sleep(6); /* all go on again, and the finding is withdrawn */
    while (next_said(f, 0, &said)) {
        if (strcmp(said.culprits, culprit) != 0) {
            print_other(f, "a rank goes on", &said);
            m->others += said.culprits[0] != '\0';
        }
    }
}

/* deaths */

static void agent_dies(struct scale_fleet *f, struct scale_measured *m)
{
    uint32_t last = f->hosts - 1;
    rest(f);
    scale_kill(&f->agent[last]);
    m->agent_others = listen_for(f, 4, "an agent is dead");
    f->agent[last] = scale_fork_agents(f, last);
    m->agent_others += listen_for(f, 6, "an agent is back");
}

static int root_dies(struct scale_fleet *f, struct scale_measured *m)
{
    char listen[256];
    rest(f);
    json_t *before = scale_ask(f, "status");
    json_int_t calls = figure(before, "summary", "calls");
    json_decref(before);
    snprintf(listen, sizeof(listen), "%s", f->root_at);
    scale_kill(&f->root);
    uint64_t begin = synth_mono_ns();
    int err = scale_start_root(f, listen);
    err = err ? err : scale_console(f, 1);
    if (err) {
        return err;
    }
    m->again_s = wait_all(f) < 0 ? -1 : seconds(begin);
    m->again_cpu = scale_cpu_s(f->root);
    for (begin = synth_mono_ns(); seconds(begin) < 10 && !m->again_whole; usleep(200000)) {
        json_t *after = scale_ask(f, "status");
        m->again_whole = figure(after, "summary", "calls") >= calls;
        json_decref(after);
    }
    m->again_others = listen_for(f, 3, "the root is back");
    return 0;
}

/* The node's ranks end with their agent, and the others' hosts soon wait for them. */
static void node_dies(struct scale_fleet *f, struct scale_measured *m)
{
    uint32_t last = f->hosts - 1;
    char ranks[64];
    struct said said;
    snprintf(ranks, sizeof(ranks), "%u-%u", f->ranks - f->per_node, f->ranks - 1);
    rest(f);
    uint64_t begin = synth_mono_ns();
    m->dead_s = -1;
    atomic_store(&f->board->hold, scale_job_ns(f->board, begin) * SCALE_RATE / UINT64_C(1000000000) + SCALE_AHEAD);
    scale_kill(&f->agent[last]);
    scale_kill(&f->writer[last]);
    while (seconds(begin) < TOLD_S + 10) {
        if (!next_said(f, 20, &said)) {
            continue;
        }
        if (is_earlier(m, SCALE_TRIALS, said.culprits)) {
            continue;
        }
        if (m->dead_s < 0) {
            m->dead_s = seconds(begin);
            snprintf(m->dead_code, sizeof(m->dead_code), "%s", said.code);
            snprintf(m->dead_ranks, sizeof(m->dead_ranks), "%.60s", said.culprits);
        }
        if (strcmp(said.culprits, ranks) != 0) {
            print_other(f, "a node is dead", &said);
            m->dead_others++;
        }
    }
}

/* all of it */

static bool wants(const char *only, char what)
{
    return !only || strchr(only, what) != NULL;
}

int scale_measure(uint32_t trials, const char *only, struct scale_measured *m)
{
    struct scale_fleet f;
    uint64_t start = synth_mono_ns(), begin;
    progress(m, start, "rings and processes are made; all that follows is %u times slower than real time", m->factor);
    int err = scale_open(&f, m->ranks, m->per_node, only && strchr(only, 'd'));
    m->rings_s = seconds(start) * m->factor;
    progress(m, start, "%u processes with %u agents and %u relays are there", 2 * f.hosts + f.relays + 1, f.nodes,
             f.relays);
    if (!err) {
        begin = synth_mono_ns();
        atomic_store(&f.board->go, 1);
        m->begin_s = wait_all(&f) < 0 ? -1 : seconds(begin);
        m->begin_cpu = scale_cpu_s(f.root);
        err = m->begin_s < 0 ? ROLL_E_TIMEOUT : 0;
        progress(m, start, err ? "the root does NOT know all ranks" : "all ranks are known");
    }
    if (!err) {
        atomic_store(&f.board->start_ns, synth_mono_ns());
        sleep(SETTLE_S);
        rest(&f);
        progress(m, start, "ranks have drifted apart; now %d s in which nothing is wrong", CALM_S);
        err = calm(&f, m);
    }
    if (!err && wants(only, 'r')) { /* before anything is wrong that a new root would find again */
        progress(m, start, "the root is killed");
        err = root_dies(&f, m);
    }
    err = err ? err : scale_console(&f, 1);
    if (!err && wants(only, 'w')) {
        progress(m, start, "%u wrong calls", trials);
        atomic_store(&f.board->worldwide, only && strchr(only, 'g'));
        wrong_calls(&f, m, trials, strchr(only ? only : "", 'q') != NULL, start);
    }
    if (!err && wants(only, 's')) {
        progress(m, start, "a rank stops calling");
        stall(&f, m);
    }
    if (!err && wants(only, 'a')) {
        progress(m, start, "an agent is killed");
        agent_dies(&f, m);
    }
    m->root_mib = scale_peak_mib(f.root);
    m->relay_mib = f.relays ? scale_peak_mib(f.relay[f.relays - 1]) : 0;
    m->agent_mib = scale_peak_mib(f.agent[0]) / scale_nodes_of(&f, 0);
    if (!err && wants(only, 'n')) {
        progress(m, start, "a node dies");
        node_dies(&f, m);
    }
    progress(m, start, err ? "the row has come to its end early" : "the row is done");
    scale_close(&f);
    return err;
}
