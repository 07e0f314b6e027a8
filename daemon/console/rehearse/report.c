/*
 * report.c: what a rehearsed job did, from its trace: communicators, calls, memory, verdicts.
 *
 * The trace is read once and goes two ways: to the engine, by a feed as in `rollcall analyze`, which knows what
 * communicators are called, who is in them and what was wrong; and to a count of calls by rank, communicator and
 * operation, which the engine does not keep. Asking the live root was rejected: a rehearsal may be over before anybody
 * asks, and the root has no such counts either.
 */
#include "daemon/console/rehearse/report.h"
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/console/text.h"
#include "daemon/feed/families.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/op.h"

#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* What the ranks did on a communicator, by operation: of one rank, and of the one that did the least. */
struct done {
    struct count most;
    uint64_t least;
    uint32_t members; /* that made such a call */
    struct met at;    /* who did the most */
};

static json_t *op_json(const struct reading *r, const struct done *done, uint32_t mets, unsigned op, uint64_t steps)
{
    json_t *out =
        json_pack("{s:s,s:I,s:I,s:I}", "op", roll_op_name(op), "calls", (json_int_t)done->most.calls, "calls_least",
                  (json_int_t)(done->members < mets ? 0 : done->least), "bytes", (json_int_t)done->most.bytes);
    if (steps > 0) {
        json_object_set_new(out, "calls_per_step", json_real((double)done->most.step_calls / (double)steps));
        json_object_set_new(out, "bytes_per_step", json_real((double)done->most.step_bytes / (double)steps));
    } else if (roll_rehearse_order_steps(r->order) > 1) {
        double calls, bytes;
        roll_rehearse_order_step(r->order, done->at.ring, done->at.id, op, &calls, &bytes);
        json_object_set_new(out, "calls_per_step", json_real(calls));
        json_object_set_new(out, "bytes_per_step", json_real(bytes));
    }
    return out;
}

static json_t *ops_json(const struct reading *r, uint64_t key, uint64_t steps)
{
    struct done *done = calloc(ROLL_OP_LIMIT, sizeof(*done));
    json_t *ops = json_array();
    uint32_t mets = 0;
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&r->met_at, key, &step)) != ROLL_MAP_NONE;) {
        const struct local *comm = &r->ring[r->met[i].ring].comm[r->met[i].id];
        mets++;
        for (unsigned op = 0; done != NULL && comm->op != NULL && op < ROLL_OP_LIMIT; op++) {
            struct done *d = &done[op];
            const struct count *count = &comm->op[op];
            if (count->calls == 0) {
                continue;
            }
            d->least = d->members++ == 0 || count->calls < d->least ? count->calls : d->least;
            if (count->calls > d->most.calls) {
                d->most = *count;
                d->at = r->met[i];
            }
        }
    }
    for (unsigned op = 0; done != NULL && op < ROLL_OP_LIMIT; op++) {
        if (done[op].members > 0) {
            json_array_append_new(ops, op_json(r, &done[op], mets, op, steps));
        }
    }
    free(done);
    return ops;
}

static json_t *comm_json(struct reading *r, const struct roll_view_comm *view, uint64_t steps)
{
    char made[512], key[24];
    json_t *ranks = roll_ranks_text_json(&view->members); /* first: the engine's next answer is in the same place */
    roll_report_made(r, view, made, sizeof(made));
    snprintf(key, sizeof(key), "0x%016" PRIx64, view->key);
    json_t *out = json_pack("{s:s,s:o,s:o,s:s,s:i,s:i,s:o,s:o,s:o}", "key", key, "label",
                            roll_text_to_json(view->label), "name", roll_text_to_json(roll_report_name(view)), "role",
                            view->role, "size", (int)view->size, "seen", (int)view->seen, "ranks", ranks, "made",
                            roll_text_to_json(made), "calls", ops_json(r, view->key, steps));
    if (out != NULL && view->believed > 0) {
        json_object_set_new(out, "of", json_integer(view->believed));
    }
    return out;
}

/* A communicator's place in the report: large ones first, then by their first rank, then as they were met. */
struct place {
    uint32_t size, first;
    size_t at;
    json_t *comm; /* owned */
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = (y->size > x->size) - (y->size < x->size);
    order = order != 0 ? order : (x->first > y->first) - (x->first < y->first);
    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

/* *families: those of the communicators, as an array; an empty one where there is no memory for them. */
static json_t *comms_json(struct reading *r, uint64_t steps, json_t **families)
{
    struct roll_comm_families found = {.at = NULL};
    struct place *place = NULL;
    size_t used = 0, room = 0;
    struct roll_view_comm view;
    json_t *comms = json_array();
    bool has_families = roll_families_find(roll_feed_engine(r->feed), &found) == 0;
    *families = has_families ? roll_families_json(&found) : json_array();
    for (uint32_t i = 0; roll_engine_comm(roll_feed_engine(r->feed), i, &view); i++) {
        if (ROLL_GROW(place, room, used + 1) != 0) {
            break;
        }
        uint32_t first = roll_rankset_count(&view.members) > 0 ? roll_rankset_at(&view.members, 0) : UINT32_MAX;
        place[used] = (struct place){view.size, first, used, comm_json(r, &view, steps)};
        if (has_families) {
            json_object_set_new(place[used].comm, "family", json_integer((json_int_t)found.of[i] + 1));
        }
        used++;
    }
    if (used > 1) {
        qsort(place, used, sizeof(*place), by_place);
    }
    for (size_t i = 0; i < used; i++) {
        json_array_append_new(comms, place[i].comm);
    }
    free(place);
    roll_families_fini(&found);
    return comms;
}

/* memory */

/* The rank that a process was recorded as; -1: none, or several. For jobs whose ranks have no variable RANK. */
static int rank_of_pid(const struct reading *r, uint32_t pid)
{
    struct roll_view_source view;
    int rank = -1;
    for (uint32_t i = 0; roll_engine_source(roll_feed_engine(r->feed), i, &view); i++) {
        if (view.info.pid == pid) {
            if (rank >= 0) {
                return -1;
            }
            rank = view.info.world_rank;
        }
    }
    return rank;
}

/* Adds what one process noted about its devices (hostnccl/cuda/report.c). */
static void add_notes(const struct reading *r, json_t *memory, json_t *kernels, const char *notes, const char *path)
{
    uint32_t pid = (uint32_t)strtoul(strrchr(path, '.') + 1, NULL, 10);
    char *text = NULL, *rest = NULL;
    size_t bytes;
    int rank = -1;
    json_t *devices = json_array();
    if (roll_read_whole(path, 16u << 20, &text, &bytes) != 0) {
        json_decref(devices);
        return;
    }
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        unsigned device;
        uint64_t peak, total, number;
        char fate[16];
        if (sscanf(line, "memory %u peak %" SCNu64 " of %" SCNu64, &device, &peak, &total) == 3) {
            json_t *one = json_pack("{s:i,s:I,s:I}", "device", (int)device, "peak_bytes", (json_int_t)peak,
                                    "size_bytes", (json_int_t)total);
            if (roll_steered_allocator(notes, pid, device, &number)) {
                json_object_set_new(one, "allocator_peak_bytes", json_integer((json_int_t)number));
            }
            json_array_append_new(devices, one);
        } else if (sscanf(line, "kernel %15s %" SCNu64, fate, &number) == 2) {
            int64_t before = roll_json_int(kernels, fate, 0);
            json_object_set_new(kernels, fate, json_integer(before + (json_int_t)number));
        } else {
            (void)sscanf(line, "rank %d", &rank);
        }
    }
    free(text);
    rank = rank >= 0 ? rank : rank_of_pid(r, pid);
    json_t *entry = NULL;
    /* The ranks that the launcher knows stand first, in their order, so the look at its own place finds most of them.
     */
    json_t *there = rank >= 0 ? json_array_get(memory, (size_t)rank) : NULL;
    entry = there != NULL && roll_json_int(there, "rank", -1) == rank ? there : NULL;
    for (size_t i = 0; entry == NULL && i < json_array_size(memory) && rank >= 0; i++) {
        json_t *one = json_array_get(memory, i);
        entry = roll_json_int(one, "rank", -1) == rank ? one : entry;
    }
    if (json_array_size(devices) == 0 || entry != NULL) {
        if (entry != NULL && json_array_size(devices) > 0) {
            json_object_set(entry, "devices", devices);
        }
        json_decref(devices);
        return;
    }
    json_array_append_new(
        memory, json_pack("{s:o,s:o}", "rank", rank >= 0 ? json_integer(rank) : json_null(), "devices", devices));
}

static int by_rank(const void *a, const void *b)
{
    int64_t x = roll_json_int(*(json_t *const *)a, "rank", INT64_MAX);
    int64_t y = roll_json_int(*(json_t *const *)b, "rank", INT64_MAX);
    return (x > y) - (x < y);
}

/* In the order of the ranks; processes of which no rank is known come last. */
static json_t *sorted(json_t *memory)
{
    size_t count = json_array_size(memory);
    json_t **entry = count > 1 ? calloc(count, sizeof(json_t *)) : NULL;
    for (size_t i = 0; entry != NULL && i < count; i++) {
        entry[i] = json_incref(json_array_get(memory, i));
    }
    if (entry != NULL) {
        qsort(entry, count, sizeof(json_t *), by_rank);
    }
    for (size_t i = 0; entry != NULL && i < count; i++) {
        json_array_set_new(memory, i, entry[i]);
    }
    free(entry);
    return memory;
}

static json_t *memory_json(const struct reading *r, const char *notes, json_t *kernels)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    json_t *memory = json_array();
    for (size_t i = 0; i < r->ranks; i++) {
        if (r->rank[i].peak_bytes > 0) {
            json_array_append_new(memory, json_pack("{s:i,s:I,s:[]}", "rank", (int)i, "host_peak_bytes",
                                                    (json_int_t)r->rank[i].peak_bytes, "devices"));
        }
    }
    snprintf(pattern, sizeof(pattern), "%s/hostcuda.*", notes);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        add_notes(r, memory, kernels, notes, files.gl_pathv[i]);
    }
    globfree(&files);
    return sorted(memory);
}

/* the whole */

/* The findings that no later verdict has ended. */
static json_t *findings_json(const struct reading *r)
{
    json_t *findings = json_array();
    size_t i;
    json_t *verdict;
    json_array_foreach(r->verdicts, i, verdict)
    {
        if (roll_verdict_json_is_finding(verdict) && roll_verdict_json_retired_by(r->verdicts, verdict) == NULL) {
            json_array_append(findings, verdict);
        }
    }
    return findings;
}

/* One way in which processes ended, and which ranks did. */
static void add_end(json_t *list, uint32_t world, int status)
{
    const char *how = WIFSIGNALED(status) ? "signal" : "code";
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (roll_json_int(one, how, -1) == number) {
            json_array_append_new(json_object_get(one, "ranks"), json_integer(world));
            return;
        }
    }
    json_array_append_new(list, json_pack("{s:[i],s:i}", "ranks", (int)world, how, number));
}

/* The ranks that did not end with 0: as the launcher saw it, else as their rings tell. */
static json_t *ended_json(const struct reading *r)
{
    json_t *list = json_array();
    struct roll_view_source view;
    for (size_t i = 0; i < r->ranks; i++) {
        if (r->rank[i].has_ended && r->rank[i].status != 0) {
            add_end(list, (uint32_t)i, r->rank[i].status);
        }
    }
    for (uint32_t i = 0; r->ranks == 0 && roll_engine_source(roll_feed_engine(r->feed), i, &view); i++) {
        if (view.exit_status != ROLL_EXIT_UNKNOWN && view.exit_status != 0) {
            add_end(list, (uint32_t)view.info.world_rank, view.exit_status);
        }
    }
    return list;
}

static json_t *report_json(struct reading *r, const char *notes)
{
    roll_engine_t *engine = roll_feed_engine(r->feed);
    uint64_t steps = r->first_step == ROLL_STEP_NONE ? 0 : (uint64_t)r->last_step - r->first_step + 1;
    struct roll_engine_summary s;
    struct roll_steered_steps *told = NULL;
    size_t tolds = 0;
    if (roll_steered_read_steps(notes, &told, &tolds) != 0 || roll_report_meetings(r) != 0 ||
        roll_rehearse_order_learn(r->order, r->feed, told, tolds) != 0) {
        free(told);
        return NULL;
    }
    free(told);
    uint64_t told_steps = steps > 0 ? steps : roll_rehearse_order_told(r->order);
    uint32_t learned = roll_rehearse_order_steps(r->order);
    json_t *families, *comms = comms_json(r, steps, &families);
    json_t *order = roll_rehearse_order_json(r->order, r->feed, comms);
    json_t *kernels = json_pack("{s:i, s:i, s:i}", "skipped", 0, "run", 0, "refused", 0);
    roll_engine_summary(engine, &s);
    json_t *memory = memory_json(r, notes, kernels);
    json_t *out = json_pack("{s:s,s:s,s:I,s:I,s:o,s:I,s:I,s:o,s:o,s:o,s:o}", "schema", "rollcall.rehearsal/1", "job",
                            roll_feed_job(r->feed), "ranks", (json_int_t)s.sources, "calls", (json_int_t)s.calls,
                            "steps", told_steps > 0 ? json_integer((json_int_t)told_steps) : json_null(),
                            "findings_count", (json_int_t)roll_tally_findings(&r->tally), "lost", (json_int_t)s.lost,
                            "communicators", comms, "memory", memory, "kernels", kernels, "findings", findings_json(r));
    if (told_steps == 0 && learned > 1) {
        json_object_set_new(out, "steps_learned", json_integer(learned));
    }
    json_object_set_new(out, "families", families);
    if (order != NULL) {
        json_object_set_new(out, "order", order);
    }
    json_t *ended = ended_json(r);
    if (json_array_size(ended) > 0) {
        json_object_set(out, "ended", ended);
    }
    json_decref(ended);
    return out;
}

json_t *roll_rehearse_report(const char *trace, const char *notes, const struct roll_rehearse_rank *rank, size_t ranks,
                             struct roll_expected **expected)
{
    const struct roll_engine_config config = {0};
    struct reading r = {.first_step = ROLL_STEP_NONE, .last_step = ROLL_STEP_NONE, .rank = rank, .ranks = ranks};
    json_t *report = NULL;
    r.feed = roll_feed_new(&config, NULL, 0);
    r.verdicts = json_array();
    r.order = roll_rehearse_order_new();
    if (r.feed != NULL && r.verdicts != NULL && r.order != NULL && roll_report_groups(&r, notes) == 0 &&
        roll_report_read(&r, trace) == 0) {
        report = report_json(&r, notes);
    }
    if (expected != NULL) {
        *expected = NULL;
    }
    if (report != NULL && expected != NULL) {
        (void)roll_rehearse_order_expected(r.order, r.feed, report, expected);
    }
    roll_rehearse_order_destroy(&r.order);
    for (size_t i = 0; i < r.rings; i++) {
        for (size_t k = 0; k < r.ring[i].comms; k++) {
            free(r.ring[i].comm[k].op);
        }
        free(r.ring[i].comm);
    }
    free(r.ring);
    free(r.met);
    roll_map_fini(&r.ring_at);
    roll_map_fini(&r.met_at);
    roll_map_fini(&r.view_at);
    roll_tally_fini(&r.tally);
    roll_feed_destroy(&r.feed);
    json_decref(r.verdicts);
    return report;
}
