/*
 * report_read_inspector.c: reads the lines of NCCL Inspector: its README in NCCL's repository
 * (plugins/profiler/inspector), format v4.0 and later.
 */
#include "daemon/console/analyze/report_state.h"

#include "daemon/base/array.h"
#include "daemon/console/text.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <stdio.h>
#include <string.h>

#define LINE_MOST (1u << 20) /* of Inspector */

static uint32_t name_at(struct roll_report_names *names, const char *name)
{
    uint64_t key = roll_hash64(1, name, strlen(name)) | 1;
    uint32_t at = roll_map_get(&names->place, key);
    if (at != ROLL_MAP_NONE) {
        return at;
    }
    if (names->used >= ROLL_REPORT_COMMS_MOST || ROLL_GROW(names->at, names->room, names->used + 1) != 0 ||
        roll_map_add(&names->place, key, (uint32_t)names->used) != 0) {
        return UINT32_MAX;
    }
    names->at[names->used] = (struct roll_report_name){.size = 0};
    snprintf(names->at[names->used].text, sizeof(names->at[0].text), "%s", name);
    return (uint32_t)names->used++;
}

/* One line of Inspector. NOTFOUND: it is a line of another kind (a P2P, a later format). */
static int read_inspector_line(roll_reports_t *r, const json_t *line)
{
    const json_t *head = json_object_get(line, "header"), *perf = json_object_get(line, "coll_perf");
    uint64_t rank = roll_report_number(head, "rank", UINT64_MAX), ranks = roll_report_number(head, "n_ranks", 0);
    if (!json_is_object(perf)) {
        return json_is_object(head) ? ROLL_E_NOTFOUND : ROLL_E_CORRUPT;
    }
    if (ranks == 0 || ranks > ROLL_REPORT_RANKS_MOST || rank >= ranks || roll_json_text(head, "id", "")[0] == '\0' ||
        roll_json_text(perf, "coll", "")[0] == '\0') {
        return ROLL_E_CORRUPT;
    }
    struct roll_report_call call = {.comm = name_at(&r->inspected, roll_json_text(head, "id", "")),
                                    .function = name_at(&r->functions, roll_json_text(perf, "coll", "")),
                                    .rank = (uint32_t)rank,
                                    .sn = roll_report_number(perf, "coll_sn", UINT64_MAX),
                                    .bytes = roll_report_number(perf, "coll_msg_size_bytes", 0),
                                    .took_us = roll_report_number(perf, "coll_exec_time_us", 0)};
    if (call.comm == UINT32_MAX || call.function == UINT32_MAX || ROLL_GROW(r->call, r->call_room, r->calls + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    if (call.sn == UINT64_MAX) {
        return ROLL_E_CORRUPT;
    }
    r->inspected.at[call.comm].size = (uint32_t)ranks;
    r->call[r->calls++] = call;
    return 0;
}

int roll_report_read_inspector(roll_reports_t *r, const char *text, size_t bytes, char *why, size_t size)
{
    size_t good = 0, odd = 0;
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : bytes - at;
        json_t *line = n > 1 && n <= LINE_MOST ? json_loadb(text + at, n, 0, NULL) : NULL;
        int err = line != NULL ? read_inspector_line(r, line) : n > 1 ? ROLL_E_CORRUPT : ROLL_E_NOTFOUND;
        json_decref(line);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
        good += err == 0;
        odd += err == ROLL_E_CORRUPT;
        at += n + 1;
    }
    if (odd > 0) {
        snprintf(why, size, "%zu of %zu lines could not be read%s", odd, odd + good,
                 good > 0 ? "; the rest is judged" : "");
    }
    return good == 0 ? ROLL_E_CORRUPT : 0;
}
