/*
 * root_status.c: the answer to "status" (ROLL_STATUS_SCHEMA): what `rollcall top` shows.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/feed/families.h"
#include "daemon/feed/field.h"
#include "daemon/feed/site.h"
#include "trace/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *hex(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "0x%016llx", (unsigned long long)value);
    return json_string(text);
}

/* What ranks have called and could not record, in a ring whose records have all come. */
static json_t *unrecorded_json(const uint64_t sum[ROLL_LOSS_LIMIT])
{
    json_t *by_cause = json_object();
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        if (sum[k] > 0 && roll_loss_is_unrecorded(k)) {
            json_object_set_new(by_cause, roll_loss_name(k), json_integer((json_int_t)sum[k]));
        }
    }
    return by_cause;
}

/* How many calls returned an error, and the first of them; null: none did. */
static json_t *failed_json(const struct roll_engine_failed *failed)
{
    return failed->calls == 0
               ? json_null()
               : json_pack("{s:I,s:I,s:s,s:s}", "calls", (json_int_t)failed->calls, "rank", (json_int_t)failed->rank,
                           "op", roll_op_name(failed->op), "result", roll_result_name(failed->result));
}

json_t *roll_summary_json(struct roll_run *run)
{
    struct roll_engine_summary s;
    uint64_t sum[ROLL_LOSS_LIMIT], lost = roll_feed_losses(run->feed, sum);
    sum[ROLL_LOSS_NO_ROOM] = roll_run_no_room(run);
    roll_engine_summary(roll_feed_engine(roll_run_judge(run)), &s);
    s.lost = lost > s.lost ? lost : s.lost; /* of what was asked for as well */
    s.incomplete = roll_digested_sees_part(run) ? 0 : s.incomplete;
    s.calls = run->digested ? roll_run_calls(run) : s.calls;
    s.comms = roll_digested_calm(run) ? (uint32_t)roll_fronts_count(run) : s.comms;
    s.verdicts = run->digested ? run->verdicts.used : s.verdicts;
    s.findings = run->digested ? roll_run_findings(run) : s.findings;
    return json_pack(
        "{s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:o,s:o,s:o}", "digests", (int)(run->digested != NULL), "ranks",
        (json_int_t)s.sources, "ranks_live", (json_int_t)s.sources_live, "calls", (json_int_t)s.calls, "records",
        (json_int_t)s.records, "comms", (json_int_t)s.comms, "findings", (json_int_t)s.findings, "verdicts",
        (json_int_t)s.verdicts, "lost", (json_int_t)s.lost, "unrecorded", unrecorded_json(sum), "incomplete",
        (json_int_t)s.incomplete, "step", s.step != ROLL_STEP_NONE ? json_integer(s.step) : json_null(), "step_source",
        s.step == ROLL_STEP_NONE ? json_null() : json_string(s.step_is_learned ? "learned" : "job"), "failed",
        failed_json(&s.failed));
}

#define HOSTS_NAMED 8u

static int by_name(const void *a, const void *b)
{
    const char *const *one = a, *const *two = b;
    return strcmp(*one, *two);
}

/* Names the first few hosts, each once, and counts all. The names are sorted first, which keeps this cheap with
 * thousands of ranks. */
static json_t *hosts_json(const char **host, size_t n, size_t *hosts)
{
    json_t *list = json_array();
    *hosts = 0;
    if (n > 1) {
        qsort(host, n, sizeof(*host), by_name);
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && strcmp(host[i], host[i - 1]) == 0) {
            continue;
        }
        if ((*hosts)++ < HOSTS_NAMED) {
            json_array_append_new(list, roll_text_to_json(host[i]));
        }
    }
    return list;
}

/* The newest finding that stands, in short; null: there is none. */
static json_t *finding_json(const struct roll_run *run)
{
    for (size_t i = run->verdicts.used; i-- > 0;) {
        const struct roll_verdict_copy *verdict = run->verdicts.at[i];
        if (roll_verdict_stands(verdict)) {
            char ranks[128] = "";
            (void)roll_rankset_format(&verdict->said.culprits, ranks, sizeof(ranks));
            return json_pack("{s:I,s:s,s:s,s:s,s:s}", "number", (json_int_t)verdict->said.number, "code",
                             roll_verdict_name(verdict->said.code), "certainty",
                             roll_certainty_name(verdict->said.certainty), "title",
                             roll_verdict_title(verdict->said.code), "ranks_text", ranks);
        }
    }
    return json_null();
}

json_t *roll_about_json(const struct roll_run *run)
{
    roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_engine_summary s;
    struct roll_view_source v;
    struct roll_rankset ranks = {0};
    char folded[256] = "";
    size_t n = 0, hosts;
    uint64_t last_ns = 0;
    uint32_t step = ROLL_STEP_NONE;
    roll_engine_summary(engine, &s);
    s.calls = run->digested ? roll_run_calls(run) : s.calls;
    s.findings = run->digested ? roll_run_findings(run) : s.findings;
    const char **host = calloc((size_t)s.sources + 1, sizeof(*host));
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v); i++) {
        if (v.info.world_rank >= 0) {
            (void)roll_rankset_add(&ranks, (uint32_t)v.info.world_rank);
        }
        if (host && n < s.sources && v.info.host) {
            host[n++] = v.info.host;
        }
        last_ns = v.last_ns > last_ns ? v.last_ns : last_ns;
        step = v.step != ROLL_STEP_NONE && (step == ROLL_STEP_NONE || v.step > step) ? v.step : step;
    }
    last_ns = roll_fronts_moved(run) > last_ns ? roll_fronts_moved(run) : last_ns;
    (void)roll_rankset_format(&ranks, folded, sizeof(folded));
    roll_rankset_fini(&ranks);
    json_t *named = hosts_json(host, n, &hosts);
    free(host);
    return json_pack("{s:s,s:i,s:I,s:I,s:s,s:I,s:o,s:I,s:I,s:I,s:o,s:I,s:o,s:o}", "job", run->job, "restart",
                     (int)run->restart, "ranks", (json_int_t)s.sources, "ranks_live", (json_int_t)s.sources_live,
                     "ranks_text", folded, "hosts", (json_int_t)hosts, "hosts_named", named, "since_ns",
                     (json_int_t)run->since_ns, "calls", (json_int_t)s.calls, "last_ns", (json_int_t)last_ns, "step",
                     step == ROLL_STEP_NONE ? json_null() : json_integer(step), "findings", (json_int_t)s.findings,
                     "finding", finding_json(run), "calls_per_s", roll_fronts_rate(run));
}

static json_t *last_json(const struct roll_run *run, const struct roll_view_source *v)
{
    const struct roll_record *r = &v->last;
    if (r->op == ROLL_OP_NONE) {
        return json_null();
    }
    char place[256];
    json_t *where =
        roll_feed_site(roll_run_judge(run), v->info.stream, v->last.callsite, ROLL_SITE_KNOWN, place, sizeof(place))
            ? roll_text_to_json(place)
            : json_null();
    return json_pack("{s:s,s:s,s:o,s:I,s:I,s:s,s:s,s:s,s:o}", "op", roll_op_name(r->op), "state", v->state, "comm",
                     hex(v->last_comm_key), "seq", (json_int_t)r->seq, "count", (json_int_t)r->count, "dtype",
                     r->dtype == ROLL_DTYPE_NONE ? "" : roll_dtype_name(r->dtype), "redop",
                     r->redop == ROLL_RED_NONE ? "" : roll_redop_name(r->redop), "phase", roll_phase_name(r->phase),
                     "place", where);
}

static json_t *exit_json(const struct roll_view_source *v)
{
    return v->exit_status == ROLL_EXIT_UNKNOWN ? json_null() : json_integer(v->exit_status);
}

static json_t *awaits_json(const struct roll_stands *stands, const struct roll_view_source *v)
{
    struct roll_rankset awaits = {0};
    roll_stands_awaits(stands, v, &awaits);
    json_t *text = awaits.used > 0 ? roll_ranks_text_json(&awaits) : json_null();
    roll_rankset_fini(&awaits);
    return text;
}

static json_t *rank_json(const roll_root_t *root, const struct roll_stands *stands, const struct roll_view_source *v,
                         struct roll_eyes_at *at)
{
    const struct roll_run *run = stands->run;
    char seen[160] = "";
    if (!v->heard) {
        const struct roll_peer *peer = roll_eyes_peer(root, run, v->info.stream, at);
        (void)roll_eyes_of(root, run, peer, v, seen, sizeof(seen));
    }
    return json_pack("{s:i,s:o,s:I,s:i,s:o,s:s,s:o,s:I,s:I,s:I,s:I,s:o,s:b,s:o,s:I,s:o,s:b,s:o,s:s,s:o}", "rank",
                     (int)v->info.world_rank, "host", roll_text_to_json(v->info.host ? v->info.host : ""), "pid",
                     (json_int_t)v->info.pid, "local_rank", (int)v->info.local_rank, "exe",
                     roll_text_to_json(v->info.exe ? v->info.exe : ""), "state", roll_proc_name(v->proc), "exit",
                     exit_json(v), "calls", (json_int_t)v->calls, "records", (json_int_t)v->records, "lost",
                     (json_int_t)v->lost, "last_ns", (json_int_t)v->last_ns, "last", last_json(run, v), "in_call",
                     (int)v->in_call, "inside",
                     v->inside != ROLL_OP_NONE ? json_string(roll_op_name(v->inside)) : json_null(), "pending",
                     (json_int_t)v->pending, "step", v->step == ROLL_STEP_NONE ? json_null() : json_integer(v->step),
                     "heard", (int)v->heard, "seen", seen[0] ? roll_text_to_json(seen) : json_null(), "stands",
                     roll_field_name(roll_stands_letter(stands, v)), "waits_for", awaits_json(stands, v));
}

#define RIPE_ASKED                                                                                                     \
    64u /* ranks that are asked for a suspicion that ripens: in a job that stands the first one has it                 \
         */
#define SILENT_NS (5000 * ROLL_MS) /* as long as `top` calls an agent silent */

struct agent_count {
    int agents, rings, ranks;
};

static void count_rings(const struct roll_peer *peer, const struct roll_run *run, struct agent_count *n)
{
    *n = (struct agent_count){.agents = 1};
    for (size_t s = 0; s < peer->used; s++) {
        n->rings += peer->streams[s].run == run;
        n->ranks += peer->streams[s].run == run && peer->streams[s].live;
    }
}

/* Agents that hold rings of this run. Of more than `rows` those are listed that are silent, and the others are counted.
 */
static json_t *agents_json(const roll_root_t *root, const struct roll_run *run, size_t rows, struct agent_count *more)
{
    json_t *list = json_array();
    uint64_t now = roll_mono_ns(), real = roll_real_ns();
    *more = (struct agent_count){0};
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        struct agent_count n;
        count_rings(peer, run, &n);
        if (peer->gone && n.ranks == 0) {
            continue;
        }
        bool is_silent = peer->gone || now - peer->seen_ns > SILENT_NS;
        if (root->peers_used > rows && (!is_silent || json_array_size(list) >= rows)) {
            more->agents++;
            more->rings += n.rings;
            more->ranks += is_silent ? 0 : n.ranks;
            continue;
        }
        json_t *agent = json_pack("{s:o,s:b,s:i,s:I,s:I,s:i,s:i,s:b}", "host", roll_text_to_json(peer->host), "relay",
                                  (int)peer->relay, "serves", (int)peer->agents, "pid", (json_int_t)peer->pid,
                                  "seen_ns", (json_int_t)(peer->seen_ns - now + real), "rings", n.rings, "ranks",
                                  n.ranks, "gone", (int)peer->gone);
        if (agent) {
            roll_eyes_tell(root, peer, agent);
        }
        json_array_append_new(list, agent);
    }
    return list;
}

json_t *roll_losses_json(const struct roll_run *run)
{
    uint64_t sum[ROLL_LOSS_LIMIT];
    (void)roll_feed_losses(run->feed, sum);
    sum[ROLL_LOSS_VERDICT] = roll_run_verdicts_lost(run);
    sum[ROLL_LOSS_NO_ROOM] = roll_run_no_room(run);
    json_t *losses = json_object();
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        json_object_set_new(losses, roll_loss_name(k), json_integer((json_int_t)sum[k]));
    }
    return losses;
}

/* How many processes are in which state. */
static json_t *states_json(const struct roll_run *run)
{
    json_int_t n[ROLL_PROC_DEAD + 1] = {0};
    struct roll_feed_stream s;
    for (size_t i = 0; roll_feed_stream(run->feed, i, &s); i++) {
        n[s.proc <= ROLL_PROC_DEAD ? s.proc : 0]++;
    }
    json_t *states = json_object();
    for (unsigned k = 1; k <= ROLL_PROC_DEAD; k++) {
        json_object_set_new(states, roll_proc_name(k), json_integer(n[k]));
    }
    return states;
}

struct listed {
    int32_t rank;
    uint32_t source;
};

static int by_rank(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->source < y->source ? -1 : x->source > y->source;
}

/* The ranks in the order of their numbers, not of their arrival; returned owned; NULL without memory. */
static json_t *ranks_json(const roll_root_t *root, const struct roll_run *run)
{
    struct roll_view_source source;
    struct roll_eyes_at at = {.is_made = false};
    struct roll_stands stands;
    struct listed *list = NULL;
    size_t room = 0;
    uint32_t n = 0;
    for (; roll_run_source(run, n, &source) && ROLL_GROW(list, room, n + 1u) == 0; n++) {
        list[n] = (struct listed){source.info.world_rank, n};
    }
    json_t *ranks = json_array();
    if (n > 0) {
        qsort(list, n, sizeof(*list), by_rank);
    }
    roll_stands_begin(run, &stands);
    for (uint32_t i = 0; i < n && roll_run_source(run, list[i].source, &source); i++) {
        json_array_append_new(ranks, rank_json(root, &stands, &source, &at));
    }
    roll_stands_end(&stands);
    roll_eyes_at_fini(&at);
    free(list);
    return ranks;
}

/* How much the run's trace keeps, and how much it could not keep. */
static json_t *trace_json(const struct roll_run *run)
{
    struct roll_segment_count c;
    roll_segments_count(run->trace, &c);
    return json_pack("{s:b,s:I,s:I,s:I,s:I,s:I,s:b}", "kept", 1, "segments", (json_int_t)c.segments, "bytes",
                     (json_int_t)c.bytes, "records", (json_int_t)c.records, "removed", (json_int_t)c.removed, "lost",
                     (json_int_t)c.lost, "stopped", (int)c.stopped);
}

/* What a status says besides of a run that is compared by digests. */
static void add_digests(const roll_root_t *root, const struct roll_run *run, json_t *status)
{
    json_t *digests = roll_digested_json(run);
    json_object_set_new(digests, "bytes", json_integer((json_int_t)root->bytes));
    json_object_set_new(status, "digests", digests);
    if (root->o.trace_dir) {
        json_object_set_new(
            status, "trace",
            json_pack("{s:b,s:s}", "kept", 0, "why", "compared by digests: traces are where agents have --trace"));
    }
}

/* Ranks of the job of which no ring has come: they have not begun, or the agent of their node does not reach this root,
 * which nobody else would say. Null: there is none, or nobody knows how many ranks there are. */
static json_t *unseen_json(const struct roll_run *run)
{
    struct roll_rankset here = {0}, unseen = {0};
    struct roll_view_source v;
    char text[256] = "";
    int32_t world = 0;
    int err = 0;
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v); i++) {
        err = err || v.info.world_rank < 0 ? err : roll_rankset_add(&here, (uint32_t)v.info.world_rank);
        world = v.info.world_size > world ? v.info.world_size : world;
    }
    uint32_t next = 0, all = (uint32_t)world;
    for (size_t i = 0; i <= here.used && !err && next < all; i++) {
        uint32_t end = i < here.used && here.range[i].first < all ? here.range[i].first : all;
        err = end > next ? roll_rankset_add_range(&unseen, next, end - 1) : 0;
        next = i < here.used ? here.range[i].last + 1 : all;
    }
    size_t n = err ? 0 : roll_rankset_count(&unseen);
    (void)roll_rankset_format(&unseen, text, sizeof(text));
    roll_rankset_fini(&here);
    roll_rankset_fini(&unseen);
    return n == 0 ? json_null()
                  : json_pack("{s:I,s:i,s:s}", "count", (json_int_t)n, "of", (int)world, "ranks_text", text);
}

/* What may become a finding, in words: of the first ranks that wait; null: nothing does, or it is told already. */
static json_t *ripening_json(const struct roll_run *run)
{
    roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_view_source v;
    struct roll_why why;
    json_t *text = NULL;
    char line[1024];
    if (roll_digested_calm(run) || roll_why_begin(run, &why) != 0) {
        return json_null();
    }
    for (uint32_t i = 0, asked = 0; !text && asked < RIPE_ASKED && roll_run_source_brief(run, i, &v); i++) {
        if ((v.pending > 0 || v.in_call) && v.info.world_rank >= 0 && !roll_why_verdict(&why, &v)) {
            asked++;
            bool ripens = roll_engine_ripening(engine, (uint32_t)v.info.world_rank, true, line, sizeof(line)) > 0;
            text = ripens ? roll_text_to_json(line) : NULL;
        }
    }
    roll_why_end(&why);
    return text ? text : json_null();
}

json_t *roll_status_json(roll_root_t *root, struct roll_run *run, size_t rows)
{
    roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_comm_families families = {.at = NULL};
    (void)roll_families_find(engine, &families); /* without memory fewer are shown */
    bool folds = roll_engine_sources(engine) > rows;
    struct agent_count more;
    json_t *comms, *folded, *agents = agents_json(root, run, rows, &more);
    roll_comms_json(run, &families, rows, &comms, &folded);
    json_t *about = json_pack("{s:s,s:i,s:s}", "job", run->job, "restart", (int)run->restart, "policy",
                              roll_policy_name(run->policy));
    json_t *status = json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:o}", "schema", ROLL_STATUS_SCHEMA, "run", about,
                               "summary", roll_summary_json(run), "ranks", folds ? json_array() : ranks_json(root, run),
                               "comms", comms, "agents", agents, "remedies", roll_remedy_state(run), "losses",
                               roll_losses_json(run), "time_ns", (json_int_t)roll_real_ns(), "families", folded);
    if (status) {
        json_object_set_new(status, "states", states_json(run));
        json_object_set_new(status, "unseen", unseen_json(run));
        json_object_set_new(status, "ripening", ripening_json(run));
    }
    if (status) {
        uint64_t now = roll_mono_ns();
        json_object_set_new(status, "eyes", roll_eyes_json(root, run));
        json_object_set_new(status, "root",
                            json_pack("{s:I,s:I,s:I,s:b,s:I,s:I}", "late_ns", (json_int_t)roll_root_lately(root, now),
                                      "late_total_ns", (json_int_t)root->eye.late.total_ns, "missed_ns",
                                      (json_int_t)run->missed.total_ns, "behind", (int)root->eye.behind, "refused",
                                      (json_int_t)(root->bad_frames + root->refused_frames), "refused_below",
                                      (json_int_t)root->refused_below));
    }
    if (status && folds) {
        json_object_set_new(status, "groups", roll_rows_json(run, &families));
    }
    if (status && more.agents > 0) {
        json_object_set_new(
            status, "agents_more",
            json_pack("{s:i,s:i,s:i}", "agents", more.agents, "rings", more.rings, "ranks", more.ranks));
    }
    roll_families_fini(&families);
    if (status && run->digested) {
        add_digests(root, run, status);
    }
    if (status && run->trace) {
        json_object_set_new(status, "trace", trace_json(run));
    }
    return status;
}
