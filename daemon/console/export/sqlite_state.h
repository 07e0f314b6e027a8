/*
 * sqlite_state.h: what the files that write an SQLite database share: a row is begun, gets its columns one after the
 * other, and is done. Errors stick (`err`). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_SQLITE_STATE_H
#define ROLL_DAEMON_CONSOLE_EXPORT_SQLITE_STATE_H

#include "daemon/console/export/job.h"
#include "trace/rankset.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

/* The tables that are written row by row, and how many columns they have. */
#define ROLL_SQLITE_TABLES(TABLE)                                                                                      \
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

enum roll_sqlite_table {
#define TABLE(name, columns) ROLL_TABLE_##name,
    ROLL_SQLITE_TABLES(TABLE)
#undef TABLE
        ROLL_SQLITE_TABLES_ALL
};

struct roll_sqlite {
    sqlite3 *db;
    sqlite3_stmt *insert[ROLL_SQLITE_TABLES_ALL];
    int err; /* the first error, of SQLite */
    int column;
    sqlite3_stmt *row; /* that is being filled */
};

/* sqlite_rows.c */

void roll_sqlite_try(struct roll_sqlite *w, int err); /* notes the first error, of SQLite */
int roll_sqlite_error(const struct roll_sqlite *w);   /* as one of trace/err.def */
void roll_sqlite_row(struct roll_sqlite *w, enum roll_sqlite_table table);
void roll_sqlite_done(struct roll_sqlite *w);
void roll_sqlite_number(struct roll_sqlite *w, uint64_t value);
void roll_sqlite_null(struct roll_sqlite *w);
void roll_sqlite_number_if(struct roll_sqlite *w, bool known, uint64_t value);
/* A text that may have been made by another process; NULL or "": NULL. lines: of several lines. */
void roll_sqlite_words_of(struct roll_sqlite *w, const char *text, bool lines);
void roll_sqlite_words(struct roll_sqlite *w, const char *text);
void roll_sqlite_key(struct roll_sqlite *w, uint64_t value); /* in hexadecimal digits; 0: NULL */
void roll_sqlite_ranks(struct roll_sqlite *w, const struct roll_rankset *set);

/* sqlite_end.c: runs, communicators, ranks, call sites and verdicts, which are known when all has been read. */
void roll_sqlite_write_end(struct roll_sqlite *w, const struct roll_job *job);

#endif
