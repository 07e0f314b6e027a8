/*
 * sqlite.c: from calls and verdicts to rows.
 *
 * A call of which more becomes known later is written again over itself: its number is made of its process and its
 * ticket, so no table of all calls is held to find it. There is no journal: what would be undone is the whole file,
 * which has no name until it is whole (out.c).
 */
#include "daemon/console/export/sqlite.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/err.h"
#include "trace/op.h"

#include <inttypes.h>
#include <jansson.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SCHEMA_VERSION 2
#define TICKET_BITS    40u /* of the number of a call; the process is above: more tickets than a ring writes in years */

/* The tables that are written row by row, and how many columns they have. */
#define TABLES(TABLE)                                                                                                  \
    TABLE(about, 2)                                                                                                    \
    TABLE(runs, 3)                                                                                                     \
    TABLE(ranks, 15)                                                                                                   \
    TABLE(communicators, 11)                                                                                           \
    TABLE(members, 3)                                                                                                  \
    TABLE(callsites, 5)                                                                                                \
    TABLE(calls, 24)                                                                                                   \
    TABLE(verdicts, 18)                                                                                                \
    TABLE(verdict_ranks, 3)                                                                                            \
    TABLE(ops, 3)                                                                                                      \
    TABLE(dtypes, 3)                                                                                                   \
    TABLE(redops, 2)                                                                                                   \
    TABLE(phases, 2)                                                                                                   \
    TABLE(states, 2)                                                                                                   \
    TABLE(results, 2)

enum table {
#define TABLE(name, columns) TABLE_##name,
    TABLES(TABLE)
#undef TABLE
        TABLES_ALL
};

struct writer {
    sqlite3 *db;
    sqlite3_stmt *insert[TABLES_ALL];
    int err; /* the first error, of SQLite */
    int column;
    sqlite3_stmt *row; /* that is being filled */
};

static void try(struct writer *w, int err)
{
    w->err = w->err == SQLITE_OK && err != SQLITE_OK && err != SQLITE_DONE && err != SQLITE_ROW ? err : w->err;
}

/* rows */

static void row(struct writer *w, enum table table)
{
    w->row = w->insert[table];
    w->column = 0;
}

static void number(struct writer *w, uint64_t value)
{
    if (w->err == SQLITE_OK) { /* a number of SQLite has a sign: what is larger ends where it does */
        try(w, sqlite3_bind_int64(w->row, ++w->column, value > INT64_MAX ? INT64_MAX : (sqlite3_int64)value));
    }
}

static void null(struct writer *w)
{
    if (w->err == SQLITE_OK) {
        try(w, sqlite3_bind_null(w->row, ++w->column));
    }
}

static void number_if(struct writer *w, bool known, uint64_t value)
{
    if (known) {
        number(w, value);
    } else {
        null(w);
    }
}

/* A text that may have been made by another process; NULL or "": NULL. lines: of several lines. */
static void words_of(struct writer *w, const char *text, bool lines)
{
    char *plain = text != NULL && text[0] != '\0' ? strdup(text) : NULL;
    if (plain == NULL) {
        try(w, text != NULL && text[0] != '\0' ? SQLITE_NOMEM : SQLITE_OK);
        null(w);
        return;
    }
    roll_job_plain(plain, lines);
    if (w->err == SQLITE_OK) {
        try(w, sqlite3_bind_text(w->row, ++w->column, plain, -1, SQLITE_TRANSIENT));
    }
    free(plain);
}

static void words(struct writer *w, const char *text)
{
    words_of(w, text, false);
}

static void key(struct writer *w, uint64_t value)
{
    char hex[20];
    snprintf(hex, sizeof(hex), "%016" PRIx64, value);
    words(w, value != 0 ? hex : NULL);
}

static void done(struct writer *w)
{
    if (w->err == SQLITE_OK) {
        try(w, sqlite3_step(w->row));
        try(w, sqlite3_reset(w->row));
    }
}

static void ranks_text(struct writer *w, const struct roll_rankset *set)
{
    size_t size = roll_rankset_format(set, NULL, 0) + 1;
    char *out = malloc(size);
    if (out == NULL) {
        try(w, SQLITE_NOMEM);
        return;
    }
    roll_rankset_format(set, out, size);
    words(w, out);
    free(out);
}

/* the database */

static void execute(struct writer *w, const char *sql)
{
    if (w->err == SQLITE_OK) {
        try(w, sqlite3_exec(w->db, sql, NULL, NULL, NULL));
    }
}

static void prepare(struct writer *w, enum table table, const char *name, int columns)
{
    char sql[256];
    int n = snprintf(sql, sizeof(sql), "INSERT OR REPLACE INTO %s VALUES(?", name);
    for (int i = 1; i < columns; i++) {
        n += snprintf(sql + n, sizeof(sql) - (size_t)n, ",?");
    }
    snprintf(sql + n, sizeof(sql) - (size_t)n, ")");
    if (w->err == SQLITE_OK) {
        try(w, sqlite3_prepare_v2(w->db, sql, -1, &w->insert[table], NULL));
    }
}

static void name_row(struct writer *w, enum table table, unsigned id, const char *name)
{
    row(w, table);
    number(w, id);
    words(w, name);
    done(w);
}

/* The small tables, that say what the numbers of calls mean. */
static void write_names(struct writer *w)
{
    static const char *const class[] = {
        [ROLL_CLASS_NONE] = "other",         [ROLL_CLASS_COLL] = "collective",
        [ROLL_CLASS_P2P] = "message",        [ROLL_CLASS_RMA] = "one-sided",
        [ROLL_CLASS_GROUP] = "group",        [ROLL_CLASS_COMM] = "communicator",
        [ROLL_CLASS_SYNC] = "wait",          [ROLL_CLASS_MOE] = "moe",
        [ROLL_CLASS_EXT] = "compute",        [ROLL_CLASS_POLL] = "poll",
        [ROLL_CLASS_ORDER] = "stream order",
    };
    static const char *const state[] = {"empty", "entered", "returned", "complete"};
    for (unsigned op = 1; op < 256; op++) { /* a newer writer may have operations that are not known here */
        row(w, TABLE_ops);
        number(w, op);
        words(w, roll_op_class(op) != ROLL_CLASS_NONE ? roll_op_name(op) : "?");
        words(w, class[roll_op_class(op)]);
        done(w);
    }
    for (unsigned dtype = 0; dtype < ROLL_DTYPE_LIMIT; dtype++) {
        row(w, TABLE_dtypes);
        number(w, dtype);
        words(w, roll_dtype_name(dtype));
        number(w, roll_dtype_bytes(dtype));
        done(w);
    }
    for (unsigned i = 0; i < ROLL_RED_LIMIT; i++) {
        name_row(w, TABLE_redops, i, roll_redop_name(i));
    }
    for (unsigned i = ROLL_PHASE_FORWARD; i <= ROLL_PHASE_OPTIMIZER; i++) {
        name_row(w, TABLE_phases, i, roll_phase_name(i));
    }
    for (unsigned i = ROLL_STATE_ENTERED; i <= ROLL_STATE_COMPLETE; i++) {
        name_row(w, TABLE_states, i, state[i]);
    }
    for (unsigned i = 0; i < 256; i++) {
        if (i == 0 || strcmp(roll_result_name(i), "?") != 0) {
            name_row(w, TABLE_results, i, roll_result_name(i));
        }
    }
}

static void begin(struct writer *w)
{
    try(w, sqlite3_open_v2(roll_out_part(), &w->db, SQLITE_OPEN_READWRITE, NULL));
    execute(w, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;"
               "PRAGMA cache_size = -32768; PRAGMA temp_store = FILE; BEGIN");
    execute(w, roll_sqlite_tables);
#define TABLE(name, columns) prepare(w, TABLE_##name, #name, columns);
    TABLES(TABLE)
#undef TABLE
    write_names(w);
}

static void close_all(struct writer *w)
{
    for (unsigned i = 0; i < TABLES_ALL; i++) {
        (void)sqlite3_finalize(w->insert[i]);
    }
    (void)sqlite3_close(w->db);
}

static int error_of(const struct writer *w)
{
    return w->err == SQLITE_OK      ? 0
           : w->err == SQLITE_FULL  ? ROLL_E_SPACE
           : w->err == SQLITE_NOMEM ? ROLL_E_NOMEM
                                    : ROLL_E_IO;
}

/* calls */

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    struct writer *w = ctx;
    const struct roll_record *rec = call->rec;
    bool comm = call->comm != ROLL_JOB_NONE, is_back = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    uint64_t ticket = roll_seal_ticket(rec->seal);
    (void)job;
    row(w, TABLE_calls);
    number(w, (uint64_t)call->ring << TICKET_BITS | (ticket & ((UINT64_C(1) << TICKET_BITS) - 1)));
    number(w, call->ring);
    number(w, ticket);
    number_if(w, comm, call->comm);
    number_if(w, comm, rec->seq);
    number(w, rec->op);
    number(w, rec->count);
    number_if(w, rec->dtype != ROLL_DTYPE_NONE, rec->dtype);
    number_if(w, rec->redop != ROLL_RED_NONE, rec->redop);
    number_if(w, rec->peer >= 0, (uint64_t)rec->peer);
    number(w, call->bytes);
    number(w, call->real_ns);
    number_if(w, is_back, rec->call_ns);
    number(w, roll_seal_state(rec->seal));
    number_if(w, is_back, rec->result);
    number_if(w, rec->step != ROLL_STEP_NONE, rec->step);
    number_if(w, rec->step != ROLL_STEP_NONE, rec->microbatch);
    number_if(w, rec->layer != ROLL_LAYER_NONE, rec->layer);
    number_if(w, rec->phase != ROLL_PHASE_NONE, rec->phase);
    number_if(w, rec->stream != 0, rec->stream);
    number(w, rec->thread);
    number_if(w, rec->callsite != 0, rec->callsite);
    number_if(w, rec->group != 0, rec->group);
    number(w, rec->flags);
    done(w);
    return error_of(w);
}

/* what is known at the end */

static void write_rank(struct writer *w, const struct roll_job *job, uint32_t ring)
{
    static const char *const state[] = {
        [ROLL_PROC_RUNNING] = "running",
        [ROLL_PROC_STOPPED] = "stopped",
        [ROLL_PROC_FINISHED] = "finished",
        [ROLL_PROC_DEAD] = "dead",
    };
    const struct roll_job_ring *r = &job->ring[ring];
    struct roll_feed_stream view;
    struct roll_view_source source = {.step = ROLL_STEP_NONE};
    bool known = roll_engine_source(roll_feed_engine(job->run[r->run].feed), r->source, &source);
    roll_job_ring_view(job, ring, &view);
    int32_t rank = known ? source.info.world_rank : view.world_rank;
    row(w, TABLE_ranks);
    number(w, ring);
    number(w, r->run);
    number_if(w, rank >= 0, (uint64_t)rank);
    number_if(w, view.local_rank >= 0, (uint64_t)view.local_rank);
    words(w, view.host);
    number(w, view.pid);
    words(w, view.exe);
    words(w, view.proc >= ROLL_PROC_RUNNING && view.proc <= ROLL_PROC_DEAD ? state[view.proc] : NULL);
    int status = view.exit_status & ~ROLL_EXIT_ASKED;
    bool ended = view.exit_status != ROLL_EXIT_UNKNOWN && status != ROLL_EXIT_UNKNOWN;
    number_if(w, ended && WIFEXITED(status), (uint64_t)WEXITSTATUS(status));
    number_if(w, ended && WIFSIGNALED(status), (uint64_t)WTERMSIG(status));
    number(w, source.calls);
    number(w, view.lost);
    number(w, source.pending);
    number_if(w, source.last_ns != 0, source.last_ns);
    number_if(w, source.step != ROLL_STEP_NONE, source.step);
    done(w);
    for (size_t i = 0; i < r->members; i++) {
        if (r->member[i].comm != 0) {
            row(w, TABLE_members);
            number(w, r->member[i].comm - 1);
            number(w, ring);
            number(w, (uint64_t)r->member[i].rank);
            done(w);
        }
    }
}

static char *frames_text(const struct roll_symbol_frame *frame, int frames)
{
    json_t *list = json_array();
    for (int i = 0; i < frames; i++) {
        char line[1024];
        const struct roll_symbol_frame *f = &frame[i];
        if (f->line > 0) {
            snprintf(line, sizeof(line), "%s (%s:%u)", f->function, f->file, f->line);
        } else {
            snprintf(line, sizeof(line), "%s (%s+0x%" PRIx64 ")", f->function, f->module, f->offset);
        }
        roll_job_plain(line, false);
        json_array_append_new(list, json_string(line));
    }
    char *out = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return out;
}

static void write_callsites(struct writer *w, const struct roll_job *job, uint32_t ring)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    for (uint32_t id = 1; id < job->ring[ring].callsites && w->err == SQLITE_OK; id++) {
        char place[320];
        const char *source;
        int frames = roll_job_frames(job, ring, (uint16_t)id, frame);
        if (frames <= 0) {
            continue;
        }
        roll_job_place(frame, frames, place, sizeof(place), &source);
        char *all = frames_text(frame, frames);
        row(w, TABLE_callsites);
        number(w, ring);
        number(w, id);
        words(w, place);
        words(w, source);
        words(w, all);
        done(w);
        free(all);
    }
}

static void write_comm(struct writer *w, const struct roll_job *job, uint32_t comm)
{
    const struct roll_job_comm *c = &job->comm[comm];
    struct roll_view_comm view = {.key = 0};
    char name[192];
    bool known = roll_job_comm_view(job, comm, &view);
    roll_job_comm_name(job, comm, name, sizeof(name));
    row(w, TABLE_communicators);
    number(w, comm);
    number(w, c->run);
    key(w, c->key);
    words(w, name);
    words(w, c->label);
    words(w, known ? view.role : NULL);
    number(w, c->size);
    if (known) {
        ranks_text(w, &view.members);
    } else {
        null(w);
    }
    words(w, known && view.made_by != ROLL_OP_NONE ? roll_op_name(view.made_by) : NULL);
    words(w, known ? view.place : NULL);
    key(w, known ? view.parent_key : 0);
    done(w);
}

static void write_verdict_ranks(struct writer *w, uint64_t verdict, const char *role, const struct roll_rankset *set)
{
    for (size_t i = 0; i < set->used; i++) {
        for (uint64_t rank = set->range[i].first; rank <= set->range[i].last; rank++) {
            row(w, TABLE_verdict_ranks);
            number(w, verdict);
            words(w, role);
            number(w, rank);
            done(w);
        }
    }
}

static void write_verdict(struct writer *w, const struct roll_job *job, uint64_t id)
{
    const struct roll_verdict_copy *copy = job->verdicts.at[id];
    const struct roll_verdict *said = &copy->said;
    uint32_t run = roll_job_run_of(job, copy);
    uint32_t comm = said->comm_key != 0 ? roll_job_comm_of(job, run, said->comm_key) : ROLL_JOB_NONE;
    char *json = roll_verdict_to_text(copy);
    try(w, json == NULL ? SQLITE_NOMEM : SQLITE_OK);
    row(w, TABLE_verdicts);
    number(w, id);
    number_if(w, run != ROLL_JOB_NONE, run);
    number(w, said->number);
    words(w, roll_verdict_name(said->code));
    words(w, roll_certainty_name(said->certainty));
    number(w, roll_verdict_stands(copy));
    number_if(w, copy->ended_by != 0, copy->ended_by);
    number(w, said->time_ns);
    number_if(w, said->event_ns != 0, said->event_ns);
    number_if(w, comm != ROLL_JOB_NONE, comm);
    number_if(w, said->comm_key != 0, said->seq);
    words(w, said->field);
    number_if(w, said->step != ROLL_STEP_NONE, said->step);
    number_if(w, said->layer != ROLL_LAYER_NONE, said->layer);
    ranks_text(w, &said->culprits);
    ranks_text(w, &said->waiting);
    words_of(w, copy->text, true);
    words(w, json);
    done(w);
    free(json);
    write_verdict_ranks(w, id, "culprit", &said->culprits);
    write_verdict_ranks(w, id, "waiting", &said->waiting);
}

static void about(struct writer *w, const char *name, const char *said, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRIu64, value);
    row(w, TABLE_about);
    words(w, name);
    words(w, said != NULL ? said : digits);
    done(w);
}

static int end(void *ctx, struct roll_job *job)
{
    struct writer *w = ctx;
    about(w, "schema", NULL, SCHEMA_VERSION);
    about(w, "cut", job->summary.cut ? "yes" : "no", 0);
    about(w, "unreadable files", NULL, job->summary.unreadable);
    about(w, "lost records", NULL, job->summary.engine.lost);
    about(w, "ranks without a record", NULL, job->summary.missing);
    for (uint32_t i = 0; i < job->runs; i++) {
        row(w, TABLE_runs);
        number(w, i);
        words(w, roll_feed_job(job->run[i].feed));
        number(w, roll_feed_restart(job->run[i].feed));
        done(w);
    }
    for (uint32_t i = 0; i < job->comms; i++) {
        write_comm(w, job, i);
    }
    for (uint32_t i = 0; i < job->rings; i++) {
        write_rank(w, job, i);
        write_callsites(w, job, i);
    }
    for (size_t i = 0; i < job->verdicts.used; i++) {
        write_verdict(w, job, i);
    }
    roll_out_progress("all calls are written; indexes are made");
    execute(w, roll_sqlite_views);
    execute(w, "COMMIT");
    roll_out_progress(NULL);
    return error_of(w);
}

int roll_export_sqlite(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                       struct roll_analysis_summary *summary)
{
    struct writer w = {.err = SQLITE_OK};
    struct roll_job_writer writer = {.ctx = &w, .call = take_call, .end = end};
    int err = roll_out_begin(out);
    if (err < 0) {
        return err;
    }
    begin(&w);
    err = error_of(&w);
    err = err != 0 ? err : roll_job_read(path, paths, threads, only, &writer, summary);
    if (w.err != SQLITE_OK && w.db != NULL) { /* without one the library could not be loaded, which was said */
        roll_say("%s: %s", out, sqlite3_errmsg(w.db));
    } else if (w.err == SQLITE_OK && err != 0 && err != ROLL_E_NOTFOUND) {
        roll_say("%s: %s", out, roll_strerror(err));
    }
    close_all(&w);
    int last = roll_out_end(err == 0);
    return err != 0 ? err : last;
}
