/*
 * top_cell.c: see top_cell.h. Each table reading its members by itself was rejected: "-" would have as many meanings as
 * there are tables.
 */
#include "daemon/console/top/top_cell.h"

#include <stdio.h>

const char *roll_top_comm_name(const json_t *comm)
{
    const char *label = roll_json_text(comm, "label", "");
    return roll_json_text(comm, "name", label[0] != '\0' ? label : roll_json_text(comm, "key", "-"));
}

const char *roll_top_any(const json_t *object, const char *key, char out[ROLL_TOP_CELL])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_string(v)) {
        snprintf(out, ROLL_TOP_CELL, "%s", json_string_value(v));
    } else if (json_is_integer(v) && json_integer_value(v) >= 0) {
        snprintf(out, ROLL_TOP_CELL, "%lld", (long long)json_integer_value(v));
    } else if (json_is_true(v) || json_is_false(v)) {
        snprintf(out, ROLL_TOP_CELL, "%s", json_is_true(v) ? "yes" : "no");
    } else {
        snprintf(out, ROLL_TOP_CELL, "-");
    }
    return out;
}

const char *roll_top_counted(const json_t *object, const char *key, char out[ROLL_TOP_CELL])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        return roll_count_text((uint64_t)json_integer_value(v), out, ROLL_TOP_CELL);
    }
    return roll_top_any(object, key, out);
}

int roll_top_row(struct roll_columns *t, char cell[][ROLL_TOP_CELL])
{
    const char *cells[ROLL_COLUMNS_MAX];
    for (size_t i = 0; i < t->columns; i++) {
        cells[i] = cell[i][0] != '\0' ? cell[i] : "-";
    }
    return roll_columns_row(t, cells);
}
