/*
 * sqlite_rows.c: rows of the tables, column by column. What other processes have made is stripped of what would steer a
 * terminal on its way in, because whoever reads the database prints it.
 */
#include "daemon/console/export/sqlite_state.h"

#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void roll_sqlite_try(struct roll_sqlite *w, int err)
{
    w->err = w->err == SQLITE_OK && err != SQLITE_OK && err != SQLITE_DONE && err != SQLITE_ROW ? err : w->err;
}

int roll_sqlite_error(const struct roll_sqlite *w)
{
    return w->err == SQLITE_OK      ? 0
           : w->err == SQLITE_FULL  ? ROLL_E_SPACE
           : w->err == SQLITE_NOMEM ? ROLL_E_NOMEM
                                    : ROLL_E_IO;
}

void roll_sqlite_row(struct roll_sqlite *w, enum roll_sqlite_table table)
{
    w->row = w->insert[table];
    w->column = 0;
}

void roll_sqlite_done(struct roll_sqlite *w)
{
    if (w->err == SQLITE_OK) {
        roll_sqlite_try(w, sqlite3_step(w->row));
        roll_sqlite_try(w, sqlite3_reset(w->row));
    }
}

void roll_sqlite_number(struct roll_sqlite *w, uint64_t value)
{
    if (w->err == SQLITE_OK) { /* a number of SQLite has a sign: what is larger ends where it does */
        roll_sqlite_try(w,
                        sqlite3_bind_int64(w->row, ++w->column, value > INT64_MAX ? INT64_MAX : (sqlite3_int64)value));
    }
}

void roll_sqlite_null(struct roll_sqlite *w)
{
    if (w->err == SQLITE_OK) {
        roll_sqlite_try(w, sqlite3_bind_null(w->row, ++w->column));
    }
}

void roll_sqlite_number_if(struct roll_sqlite *w, bool known, uint64_t value)
{
    if (known) {
        roll_sqlite_number(w, value);
    } else {
        roll_sqlite_null(w);
    }
}

void roll_sqlite_words_of(struct roll_sqlite *w, const char *text, bool lines)
{
    char *plain = text != NULL && text[0] != '\0' ? strdup(text) : NULL;
    if (plain == NULL) {
        roll_sqlite_try(w, text != NULL && text[0] != '\0' ? SQLITE_NOMEM : SQLITE_OK);
        roll_sqlite_null(w);
        return;
    }
    roll_job_plain(plain, lines);
    if (w->err == SQLITE_OK) {
        roll_sqlite_try(w, sqlite3_bind_text(w->row, ++w->column, plain, -1, SQLITE_TRANSIENT));
    }
    free(plain);
}

void roll_sqlite_words(struct roll_sqlite *w, const char *text)
{
    roll_sqlite_words_of(w, text, false);
}

void roll_sqlite_key(struct roll_sqlite *w, uint64_t value)
{
    char hex[20];
    snprintf(hex, sizeof(hex), "%016" PRIx64, value);
    roll_sqlite_words(w, value != 0 ? hex : NULL);
}

void roll_sqlite_ranks(struct roll_sqlite *w, const struct roll_rankset *set)
{
    size_t size = roll_rankset_format(set, NULL, 0) + 1;
    char *out = malloc(size);
    if (out == NULL) {
        roll_sqlite_try(w, SQLITE_NOMEM);
        return;
    }
    roll_rankset_format(set, out, size);
    roll_sqlite_words(w, out);
    free(out);
}
