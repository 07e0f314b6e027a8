/*
 * sqlite.c: a recorded job as an SQLite database: what its numbers mean, then calls as they are read, then what is
 * known at the end (sqlite_end.c).
 *
 * A call of which more becomes known later is written again over itself: its number is made of its process and its
 * ticket, so no table of all calls is held to find it. There is no journal: what would be undone is the whole file,
 * which has no name until it is whole (out.c).
 */
#include "daemon/console/export/sqlite.h"

#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/console/export/sqlite_state.h"
#include "trace/err.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA_VERSION 2
#define TICKET_BITS    40u /* of the number of a call; the process is above: more tickets than a ring writes in years */

/* the database */

static void execute(struct roll_sqlite *w, const char *sql)
{
    if (w->err == SQLITE_OK) {
        roll_sqlite_try(w, sqlite3_exec(w->db, sql, NULL, NULL, NULL));
    }
}

static void prepare(struct roll_sqlite *w, enum roll_sqlite_table table, const char *name, int columns)
{
    char sql[256];
    int n = snprintf(sql, sizeof(sql), "INSERT OR REPLACE INTO %s VALUES(?", name);
    for (int i = 1; i < columns; i++) {
        n += snprintf(sql + n, sizeof(sql) - (size_t)n, ",?");
    }
    snprintf(sql + n, sizeof(sql) - (size_t)n, ")");
    if (w->err == SQLITE_OK) {
        roll_sqlite_try(w, sqlite3_prepare_v2(w->db, sql, -1, &w->insert[table], NULL));
    }
}

static void name_row(struct roll_sqlite *w, enum roll_sqlite_table table, unsigned id, const char *name)
{
    roll_sqlite_row(w, table);
    roll_sqlite_number(w, id);
    roll_sqlite_words(w, name);
    roll_sqlite_done(w);
}

/* The small tables, that say what the numbers of calls mean. */
static void write_names(struct roll_sqlite *w)
{
    static const char *const state[] = {"empty", "entered", "returned", "complete"};
    for (unsigned op = 1; op < 256; op++) { /* a newer writer may have operations that are not known here */
        roll_sqlite_row(w, ROLL_TABLE_ops);
        roll_sqlite_number(w, op);
        roll_sqlite_words(w, roll_op_class(op) != ROLL_CLASS_NONE ? roll_op_name(op) : "?");
        roll_sqlite_words(w, roll_job_class_name(roll_op_class(op)));
        roll_sqlite_done(w);
    }
    for (unsigned dtype = 0; dtype < ROLL_DTYPE_LIMIT; dtype++) {
        roll_sqlite_row(w, ROLL_TABLE_dtypes);
        roll_sqlite_number(w, dtype);
        roll_sqlite_words(w, roll_dtype_name(dtype));
        roll_sqlite_number(w, roll_dtype_bytes(dtype));
        roll_sqlite_done(w);
    }
    for (unsigned i = 0; i < ROLL_RED_LIMIT; i++) {
        name_row(w, ROLL_TABLE_redops, i, roll_redop_name(i));
    }
    for (unsigned i = ROLL_PHASE_FORWARD; i <= ROLL_PHASE_OPTIMIZER; i++) {
        name_row(w, ROLL_TABLE_phases, i, roll_phase_name(i));
    }
    for (unsigned i = ROLL_STATE_ENTERED; i <= ROLL_STATE_COMPLETE; i++) {
        name_row(w, ROLL_TABLE_states, i, state[i]);
    }
    for (unsigned i = 0; i < 256; i++) {
        if (i == 0 || strcmp(roll_result_name(i), "?") != 0) {
            name_row(w, ROLL_TABLE_results, i, roll_result_name(i));
        }
    }
}

static void begin(struct roll_sqlite *w)
{
    roll_sqlite_try(w, sqlite3_open_v2(roll_out_part(), &w->db, SQLITE_OPEN_READWRITE, NULL));
    execute(w, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE;"
               "PRAGMA cache_size = -32768; PRAGMA temp_store = FILE; BEGIN");
    execute(w, roll_sqlite_tables);
#define TABLE(name, columns) prepare(w, ROLL_TABLE_##name, #name, columns);
    ROLL_SQLITE_TABLES(TABLE)
#undef TABLE
    write_names(w);
}

static void close_all(struct roll_sqlite *w)
{
    for (unsigned i = 0; i < ROLL_SQLITE_TABLES_ALL; i++) {
        (void)sqlite3_finalize(w->insert[i]);
    }
    (void)sqlite3_close(w->db);
}

/* calls, and the end */

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    struct roll_sqlite *w = ctx;
    const struct roll_record *rec = call->rec;
    bool comm = call->comm != ROLL_JOB_NONE, is_back = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    uint64_t ticket = roll_seal_ticket(rec->seal);
    (void)job;
    roll_sqlite_row(w, ROLL_TABLE_calls);
    roll_sqlite_number(w, (uint64_t)call->ring << TICKET_BITS | (ticket & ((UINT64_C(1) << TICKET_BITS) - 1)));
    roll_sqlite_number(w, call->ring);
    roll_sqlite_number(w, ticket);
    roll_sqlite_number_if(w, comm, call->comm);
    roll_sqlite_number_if(w, comm, rec->seq);
    roll_sqlite_number(w, rec->op);
    roll_sqlite_number(w, rec->count);
    roll_sqlite_number_if(w, rec->dtype != ROLL_DTYPE_NONE, rec->dtype);
    roll_sqlite_number_if(w, rec->redop != ROLL_RED_NONE, rec->redop);
    roll_sqlite_number_if(w, rec->peer >= 0, (uint64_t)rec->peer);
    roll_sqlite_number(w, call->bytes);
    roll_sqlite_number(w, call->real_ns);
    roll_sqlite_number_if(w, is_back, rec->call_ns);
    roll_sqlite_number(w, roll_seal_state(rec->seal));
    roll_sqlite_number_if(w, is_back, rec->result);
    roll_sqlite_number_if(w, rec->step != ROLL_STEP_NONE, rec->step);
    roll_sqlite_number_if(w, rec->step != ROLL_STEP_NONE, rec->microbatch);
    roll_sqlite_number_if(w, rec->layer != ROLL_LAYER_NONE, rec->layer);
    roll_sqlite_number_if(w, rec->phase != ROLL_PHASE_NONE, rec->phase);
    roll_sqlite_number_if(w, rec->stream != 0, rec->stream);
    roll_sqlite_number(w, rec->thread);
    roll_sqlite_number_if(w, rec->callsite != 0, rec->callsite);
    roll_sqlite_number_if(w, rec->group != 0, rec->group);
    roll_sqlite_number(w, rec->flags);
    roll_sqlite_done(w);
    return roll_sqlite_error(w);
}

static void about(struct roll_sqlite *w, const char *name, const char *said, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRIu64, value);
    roll_sqlite_row(w, ROLL_TABLE_about);
    roll_sqlite_words(w, name);
    roll_sqlite_words(w, said != NULL ? said : digits);
    roll_sqlite_done(w);
}

static int end(void *ctx, struct roll_job *job)
{
    struct roll_sqlite *w = ctx;
    about(w, "schema", NULL, SCHEMA_VERSION);
    about(w, "cut", job->summary.cut ? "yes" : "no", 0);
    about(w, "unreadable files", NULL, job->summary.unreadable);
    about(w, "lost records", NULL, job->summary.engine.lost);
    about(w, "ranks without a record", NULL, job->summary.missing);
    roll_sqlite_write_end(w, job);
    roll_out_progress("all calls are written; indexes are made");
    execute(w, roll_sqlite_views);
    execute(w, "COMMIT");
    roll_out_progress(NULL);
    return roll_sqlite_error(w);
}

int roll_export_sqlite(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                       struct roll_analysis_summary *summary)
{
    struct roll_sqlite w = {.err = SQLITE_OK};
    struct roll_job_writer writer = {.ctx = &w, .call = take_call, .end = end};
    int err = roll_out_begin(out);
    if (err < 0) {
        return err;
    }
    begin(&w);
    err = roll_sqlite_error(&w);
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
