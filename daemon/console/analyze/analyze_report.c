/*
 * analyze_report.c: reads the reports of NCCL's own tools: `ncclras -f json`, the text of `ncclras`
 * (report_read_ras.c), and the lines of NCCL Inspector (report_read_inspector.c). What they mean is judged in
 * report_judge.c.
 */
#include "daemon/console/analyze/report_state.h"

#include "daemon/base/file.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_MOST (256u << 20)
#define JSON_MOST (64u << 20) /* of RAS, in one value: 16,384 ranks in four communicators each are 20 MiB */

static bool has(const char *head, size_t bytes, const char *text)
{
    return memmem(head, bytes, text, strlen(text)) != NULL;
}

bool roll_report_is_likely(const char *head, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && head[at] != '\0' && strchr(" \t\r\n", head[at]) != NULL) {
        at++;
    }
    if (at < bytes && head[at] == '{') {
        /* A dump of Flight Recorder names the version of NCCL as well. */
        bool is_ras = has(head, bytes, "\"cuda_runtime_version\"") || has(head, bytes, "\"communicators");
        return (is_ras && has(head, bytes, "\"nccl_version\"")) || has(head, bytes, "\"coll_perf\"") ||
               (has(head, bytes, "\"header\"") && has(head, bytes, "\"n_ranks\""));
    }
    bool text = at < bytes && (unsigned char)head[at] < 0x80; /* a pickle begins otherwise */
    return text && has(head, bytes, "NCCL version ") && has(head, bytes, "Job summary");
}

roll_reports_t *roll_reports_new(void)
{
    return calloc(1, sizeof(roll_reports_t));
}

void roll_reports_destroy(roll_reports_t **reports)
{
    roll_reports_t *r = *reports;
    *reports = NULL;
    if (r == NULL) {
        return;
    }
    for (size_t i = 0; i < r->comms; i++) {
        free(r->comm[i].rank);
    }
    for (size_t i = r->given; i < r->verdicts.used; i++) {
        roll_verdict_copy_destroy(&r->verdicts.at[i]);
    }
    free(r->verdicts.at);
    free(r->comm);
    free(r->call);
    roll_map_fini(&r->inspected.place);
    roll_map_fini(&r->functions.place);
    roll_map_fini(&r->world_at);
    free(r->inspected.at);
    free(r->functions.at);
    free(r);
}

int roll_reports_parse(roll_reports_t *r, const char *text, size_t bytes, char *why, size_t size)
{
    why[0] = '\0';
    r->files++;
    if (memmem(text, bytes, "\"nccl_version\"", 14) != NULL) {
        json_error_t error;
        if (bytes > JSON_MOST) {
            snprintf(why, size, "JSON larger than %u MiB: no report of ncclras is", JSON_MOST >> 20);
            return ROLL_E_LIMIT;
        }
        json_t *root = json_loadb(text, bytes, 0, &error);
        if (root == NULL) {
            snprintf(why, size, "no whole JSON: line %d: %s", error.line, error.text);
            return ROLL_E_CORRUPT;
        }
        int err = roll_report_read_ras_json(r, root, why, size);
        json_decref(root);
        return err;
    }
    if (memmem(text, bytes, "Job summary", 11) != NULL) {
        char *copy = strndup(text, bytes);
        int err = copy != NULL ? roll_report_read_ras_text(r, copy, why, size) : ROLL_E_NOMEM;
        free(copy);
        return err;
    }
    return roll_report_read_inspector(r, text, bytes, why, size);
}

int roll_reports_add(roll_reports_t *r, const char *path, char *why, size_t size)
{
    char *text = NULL;
    size_t bytes;
    why[0] = '\0';
    int err = roll_read_whole(path, FILE_MOST, &text, &bytes);
    if (err == ROLL_E_LIMIT) {
        snprintf(why, size, "larger than %u MiB: no report is", FILE_MOST >> 20);
        return err;
    }
    if (err != 0) {
        snprintf(why, size, "%s", roll_strerror(err));
        return err;
    }
    struct stat st;
    r->time = stat(path, &st) == 0 ? (uint64_t)st.st_mtime : 0; /* of reports that do not tell their time */
    err = roll_reports_parse(r, text, bytes, why, size);
    free(text);
    return err;
}

struct roll_verdict_copy *roll_reports_next(roll_reports_t *r)
{
    return r->given < r->verdicts.used ? r->verdicts.at[r->given++] : NULL;
}
