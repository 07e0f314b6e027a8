/*
 * sqlite_late.c: libsqlite3, loaded by `rollcall export --sqlite`. As zmq_late.c, which says why; only the program
 * `rollcall` has this file.
 */
#include "daemon/console/late.h"

#include <sqlite3.h>

typedef int roll_sqlite_exec(void *, int, char **, char **);
typedef void roll_sqlite_free(void *);

/* What daemon/console/export calls. */
#define NO_ROWS(ROW)
#define ROWS(ROW)                                                                                                      \
    ROW(int, SQLITE_ERROR, sqlite3_bind_int64, (sqlite3_stmt * s, int i, sqlite3_int64 value), (s, i, value))          \
    ROW(int, SQLITE_ERROR, sqlite3_bind_null, (sqlite3_stmt * s, int i), (s, i))                                       \
    ROW(int, SQLITE_ERROR, sqlite3_bind_text,                                                                          \
        (sqlite3_stmt * s, int i, const char *text, int bytes, roll_sqlite_free *end), (s, i, text, bytes, end))       \
    ROW(int, SQLITE_ERROR, sqlite3_close, (sqlite3 * db), (db))                                                        \
    ROW(const char *, "libsqlite3 is not there", sqlite3_errmsg, (sqlite3 * db), (db))                                 \
    ROW(int, SQLITE_ERROR, sqlite3_exec,                                                                               \
        (sqlite3 * db, const char *sql, roll_sqlite_exec *row, void *ctx, char **words), (db, sql, row, ctx, words))   \
    ROW(int, SQLITE_ERROR, sqlite3_finalize, (sqlite3_stmt * s), (s))                                                  \
    ROW(int, SQLITE_ERROR, sqlite3_open_v2, (const char *path, sqlite3 **db, int flags, const char *vfs),              \
        (path, db, flags, vfs))                                                                                        \
    ROW(int, SQLITE_ERROR, sqlite3_prepare_v2,                                                                         \
        (sqlite3 * db, const char *sql, int bytes, sqlite3_stmt **s, const char **rest), (db, sql, bytes, s, rest))    \
    ROW(int, SQLITE_ERROR, sqlite3_reset, (sqlite3_stmt * s), (s))                                                     \
    ROW(int, SQLITE_ERROR, sqlite3_step, (sqlite3_stmt * s), (s))

ROLL_LATE(ROWS, NO_ROWS, "libsqlite3.so.0", "no database can be written")
