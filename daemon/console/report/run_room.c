/*
 * run_room.c: the end of every list of a report: what still has room, and words for what has none.
 */
#include "daemon/console/report/run_parts.h"

#include "daemon/base/json.h"

#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 2, 3))) void roll_report_leave_out(json_t *out, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    json_array_append_new(out, roll_text_to_json(text));
}

void roll_report_cut(json_t *array, size_t most)
{
    for (size_t n = json_array_size(array); n > most; n--) {
        (void)json_array_remove(array, n - 1);
    }
}

bool roll_report_take(struct roll_report_room *room, json_t *value)
{
    size_t bytes = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENSURE_ASCII);
    bool fits = value != NULL && bytes <= room->bytes;
    room->bytes -= fits ? bytes : 0;
    return fits;
}
