/*
 * report.c: see report.h.
 *
 * The file has its name only when it is whole. What it holds is bounded whatever was recorded: a part of the room for
 * every kind of list, and words for what is beyond it.
 */
#include "daemon/console/report/report.h"

#include "daemon/base/json.h"
#include "daemon/base/memory.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/export/job.h"
#include "daemon/console/export/out.h"
#include "daemon/console/report/html.h"
#include "daemon/console/report/lanes.h"
#include "daemon/console/report/node_losses.h"
#include "daemon/console/report/run_json.h"
#include "daemon/console/report/source_lines.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/verdict/verdict_markdown.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM_BYTES   (8u << 20) /* of what is listed: a mail takes 10 MiB nearly everywhere */
#define RUNS_MOST    64u        /* jobs in one report */
#define PLAIN_MOST   20u        /* findings that are seen without scripts */
#define TITLE        160u
#define TICKET_BYTES 48000u /* of findings in Markdown: what GitHub takes for one comment is 65,536 */
#define LINES_MOST   100u

struct report {
    const struct roll_report_options *options;
    struct roll_lanes lanes;
    FILE *out;
    struct roll_report_room room;
    size_t lines;     /* of Markdown about findings that are not there in full */
    json_t *left_out; /* owned */
};

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    (void)job;
    return roll_lanes_call(&((struct report *)ctx)->lanes, call);
}

static int take_verdict(void *ctx, struct roll_job *job, uint32_t run, const struct roll_verdict_copy *verdict)
{
    struct report *r = ctx;
    return roll_verdict_is_finding(&verdict->said) ? roll_lanes_finding(&r->lanes, job, run, verdict) : 0;
}

static void summary_of(const struct roll_analysis_summary *s, char out[ROLL_SUMMARY_TEXT])
{
    struct roll_summary summary = {.ranks = s->engine.sources,
                                   .of_ranks = s->missing > 0 ? s->engine.sources + s->missing : 0,
                                   .calls = s->engine.calls,
                                   .comms = s->engine.comms,
                                   .findings = s->engine.findings,
                                   .lost = s->engine.lost,
                                   .older = s->older,
                                   .incomplete = s->engine.incomplete};
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        summary.unrecorded[k] = roll_loss_is_unrecorded(k) ? s->losses[k] : 0;
    }
    const struct roll_engine_failed *failed = &s->engine.failed;
    roll_summary_failed(&summary, failed->calls, failed->rank, roll_op_name(failed->op),
                        roll_result_name(failed->result));
    roll_summary_text(&summary, out, ROLL_SUMMARY_TEXT);
}

/* The newest finding that stands; NULL = none. Borrowed. */
static const struct roll_verdict_copy *newest(const struct roll_verdict_list *list)
{
    for (size_t i = list->used; i-- > 0;) {
        if (roll_verdict_stands(list->at[i])) {
            return list->at[i];
        }
    }
    return NULL;
}

/* what is seen without scripts */

/* Returned owned; NULL: no memory. */
static char *plain_text(const struct roll_job *job)
{
    char *text = NULL, line[ROLL_SUMMARY_TEXT];
    size_t size, told = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) {
        return NULL;
    }
    fprintf(out, "This report shows more where scripts may run. Without them:\n\n");
    for (size_t i = job->verdicts.used; i-- > 0 && told < PLAIN_MOST;) {
        if (roll_verdict_stands(job->verdicts.at[i])) {
            json_t *json = roll_verdict_to_json(job->verdicts.at[i]);
            (void)roll_verdict_print(out, json, ROLL_VERDICT_PLAIN);
            json_decref(json);
            told++;
        }
    }
    summary_of(&job->summary, line);
    fprintf(out, "%s\n", line);
    return fclose(out) == 0 ? text : NULL;
}

/* the runs */

static json_t *about_json(const struct roll_job *job)
{
    char line[ROLL_SUMMARY_TEXT];
    summary_of(&job->summary, line);
    return json_pack("{s:s,s:s,s:I,s:I,s:o,s:o}", "schema", "rollcall.report/1", "version", ROLL_VERSION, "made_ns",
                     (json_int_t)roll_now_real_ns(), "findings", (json_int_t)job->summary.engine.findings, "summary",
                     roll_text_to_json(line), "unjudged", roll_report_unjudged(job));
}

/* What is done with one run and its verdicts; run ROLL_JOB_NONE: they are of none. */
typedef int each_run(struct report *r, struct roll_job *job, uint32_t run, const struct roll_verdict_list *part);

/* Each run that was read, and behind them whatever job the verdicts of other tools' reports name. */
static int for_each_run(struct report *r, struct roll_job *job, each_run *each)
{
    size_t told = 0, lost = 0;
    int err = 0;
    for (size_t i = 0; i < job->runs + job->verdicts.used && err == 0; i++) {
        bool run = i < job->runs;
        const struct roll_verdict_copy *v = run ? NULL : job->verdicts.at[i - job->runs];
        bool known = run ? job->run[i].feed == NULL : roll_job_run_of(job, v) != ROLL_JOB_NONE;
        for (size_t k = 0; !run && !known && k < i - job->runs; k++) {
            const struct roll_verdict_copy *before = job->verdicts.at[k];
            known = before->restart == v->restart && strcmp(before->job, v->job) == 0;
        }
        if (known) {
            continue;
        }
        if (told == RUNS_MOST) {
            lost++;
            continue;
        }
        struct roll_verdict_list part;
        err = roll_report_part(&job->verdicts, run ? roll_feed_job(job->run[i].feed) : v->job,
                               run ? roll_feed_restart(job->run[i].feed) : v->restart, &part);
        err = err != 0 ? err : each(r, job, run ? (uint32_t)i : ROLL_JOB_NONE, &part);
        free(part.at);
        told++;
    }
    if (lost > 0) {
        char text[96];
        snprintf(text, sizeof(text), "%zu of %zu jobs: --job chooses one", lost, lost + told);
        json_array_append_new(r->left_out, json_string(text));
    }
    return err;
}

/* HTML */

static int put_run(struct report *r, struct roll_job *job, uint32_t run, const struct roll_verdict_list *part)
{
    static const char comma[] = ",\n";
    json_t *json = roll_report_run_json(job, run, part, &r->lanes, &r->room);
    fputs(comma, r->out);
    int err = json != NULL ? roll_html_json(r->out, json) : ROLL_E_NOMEM;
    json_decref(json);
    return err;
}

static int put_html(struct report *r, struct roll_job *job)
{
    const struct roll_verdict_copy *finding = newest(&job->verdicts);
    char title[TITLE];
    char *plain = plain_text(job);
    json_t *about = about_json(job);
    const char *name = finding != NULL                     ? finding->job
                       : job->runs > 0 && job->run[0].feed ? roll_feed_job(job->run[0].feed)
                                                           : "";
    snprintf(title, sizeof(title), "rollcall report: %s%s%s", name, finding != NULL ? ": " : "",
             finding != NULL ? roll_verdict_name(finding->said.code) : ": no finding");
    roll_job_plain(title, false);
    int err = plain != NULL && about != NULL ? 0 : ROLL_E_NOMEM;
    if (err == 0) {
        roll_html_begin(r->out, title, plain);
        fputs("[", r->out);
        err = roll_html_json(r->out, about);
    }
    err = err != 0 ? err : for_each_run(r, job, put_run);
    if (err == 0) {
        if (r->lanes.left_out > 0) {
            char text[96];
            snprintf(text, sizeof(text), "the calls around %" PRIu64 " later findings", r->lanes.left_out);
            json_array_append_new(r->left_out, json_string(text));
        }
        roll_sources_say(&r->room.sources, r->left_out);
        fputs(",\n", r->out); /* the last one: what the report as a whole leaves out */
        err = roll_html_json(r->out, r->left_out);
        fputs("]", r->out);
        roll_html_end(r->out);
    }
    free(plain);
    json_decref(about);
    return err;
}

/* Markdown */

/* One finding in full, where it fits. 0, NOMEM. */
static int put_finding(struct report *r, const struct roll_verdict_copy *finding, bool *fits)
{
    json_t *json = roll_verdict_to_json(finding);
    char *text = NULL;
    size_t size = 0;
    FILE *out = json != NULL ? open_memstream(&text, &size) : NULL;
    if (r->room.has_source) {
        roll_source_lines_add(json, &r->room.sources);
    }
    int err = out != NULL ? roll_verdict_markdown(out, json) : ROLL_E_NOMEM;
    err = out != NULL && fclose(out) != 0 ? ROLL_E_NOMEM : err;
    *fits = err == 0 && size <= r->room.bytes;
    if (*fits) {
        fprintf(r->out, "%s\n", text);
        r->room.bytes -= size;
    }
    free(text);
    json_decref(json);
    return err;
}

/* The findings that stand, the newest first, and in a line each what is over or does not fit. */
static int put_markdown_run(struct report *r, struct roll_job *job, uint32_t run, const struct roll_verdict_list *part)
{
    (void)job, (void)run;
    size_t more = 0;
    int err = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = part->used; i-- > 0 && err == 0;) {
            const struct roll_verdict *v = &part->at[i]->said;
            bool stands = roll_verdict_stands(part->at[i]), fits = false;
            if (stands != (pass == 0) || !roll_verdict_is_finding(v)) {
                continue;
            }
            err = stands ? put_finding(r, part->at[i], &fits) : 0;
            if (!fits && r->lines++ < LINES_MOST) {
                fprintf(r->out, "- verdict %" PRIu64 ", %s, %s: %s\n", v->number, roll_verdict_name(v->code),
                        roll_certainty_name(v->certainty),
                        stands ? "stands; `rollcall analyze` says all of it" : "a later verdict took its place");
            } else if (!fits) {
                more++;
            }
        }
    }
    if (more > 0) {
        fprintf(r->out, "- and %zu more\n", more);
    }
    return err;
}

static void put_list(FILE *out, const char *title, const json_t *list)
{
    size_t i;
    json_t *text;
    if (json_array_size(list) > 0) {
        fprintf(out, "\n### %s\n\n", title);
    }
    json_array_foreach((json_t *)list, i, text)
    {
        fputs("- ", out);
        roll_markdown_plain(out, json_string_value(text));
        fputc('\n', out);
    }
}

/* Where things were lost, and how much of a node's is older than what was recorded. */
static void put_losses(FILE *out, const struct roll_job *job)
{
    size_t i;
    json_t *node, *texts = json_array(), *before = json_array();
    for (size_t k = 0; k < job->runs; k++) {
        json_t *list = job->run[k].feed != NULL ? roll_node_losses_json(job->run[k].feed) : NULL;
        json_array_foreach(list, i, node)
        {
            json_int_t lost = json_integer_value(json_object_get(node, "lost"));
            json_int_t unrecorded = json_integer_value(json_object_get(node, "unrecorded"));
            json_int_t older = json_integer_value(json_object_get(node, "older"));
            if (older > 0 && json_array_size(before) < LINES_MOST) {
                json_array_append_new(before, json_sprintf("node %s: %" JSON_INTEGER_FORMAT
                                                           " older call%s not in this recording",
                                                           json_string_value(json_object_get(node, "host")), older,
                                                           older == 1 ? " is" : "s are"));
            }
            if (lost + unrecorded > 0 && json_array_size(texts) < LINES_MOST) {
                json_array_append_new(
                    texts, json_sprintf("node %s: %" JSON_INTEGER_FORMAT " record%s lost, %" JSON_INTEGER_FORMAT
                                        " time%s something could not be recorded",
                                        json_string_value(json_object_get(node, "host")), lost, lost == 1 ? "" : "s",
                                        unrecorded, unrecorded == 1 ? "" : "s"));
            }
        }
        json_decref(list);
    }
    put_list(out, "Where something was lost", texts);
    put_list(out, "What is older than this recording", before);
    json_decref(before);
    json_decref(texts);
}

static int put_markdown(struct report *r, struct roll_job *job)
{
    char line[ROLL_SUMMARY_TEXT];
    json_t *unjudged = roll_report_unjudged(job);
    summary_of(&job->summary, line);
    r->room.bytes = TICKET_BYTES;
    fputs("# ", r->out);
    roll_markdown_plain(r->out, line);
    fputs("\n\n", r->out);
    if (job->summary.engine.findings == 0) {
        fputs("No finding.\n", r->out);
    }
    int err = for_each_run(r, job, put_markdown_run);
    put_losses(r->out, job);
    put_list(r->out, "What could not be judged", unjudged);
    roll_sources_say(&r->room.sources, r->left_out);
    put_list(r->out, "What is left out here", r->left_out);
    fprintf(r->out, "\nJudged by rollcall %s.\n", ROLL_VERSION);
    json_decref(unjudged);
    return err;
}

/* all of it */

static int complain(const char *path, int number)
{
    roll_say("%s: %s", path != NULL ? path : "standard output", strerror(number));
    return roll_out_error(number);
}

static int take_end(void *ctx, struct roll_job *job)
{
    struct report *r = ctx;
    const char *path = r->options->output;
    if (roll_memory_failures() > 0) { /* a judgement that lacked memory anywhere may be a wrong one */
        return ROLL_E_NOMEM;
    }
    int fd = path != NULL ? roll_out_begin(path) : -1;
    if (path != NULL && fd < 0) {
        return fd;
    }
    int own = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : dup(STDOUT_FILENO);
    r->out = own >= 0 ? fdopen(own, "w") : NULL;
    if (r->out == NULL && own >= 0) {
        close(own);
    }
    int err = r->out == NULL ? ROLL_E_NOMEM : r->options->markdown ? put_markdown(r, job) : put_html(r, job);
    if (r->out != NULL) {
        bool failed = ferror(r->out) != 0;
        int number = errno;
        failed = fclose(r->out) != 0 || failed;
        number = errno != 0 ? errno : number;
        err = failed ? complain(path, number) : err == ROLL_E_IO ? ROLL_E_NOMEM : err;
    }
    int last = fd >= 0 ? roll_out_end(err == 0) : 0;
    return err != 0 ? err : last;
}

int roll_report_write(char **path, size_t paths, const struct roll_report_options *options,
                      struct roll_analysis_summary *summary)
{
    struct report r = {
        .options = options, .room = {.bytes = ROOM_BYTES, .has_source = options->has_source}, .left_out = json_array()};
    const struct roll_job_writer writer = {
        .ctx = &r, .call = take_call, .end = take_end, .verdict = take_verdict, .takes_all = true};
    int err = r.left_out == NULL ? ROLL_E_NOMEM
                                 : roll_job_read(path, paths, options->threads, options->job, &writer, summary);
    if (err == ROLL_E_NOMEM) {
        roll_say("%s: no report is written", roll_strerror(err));
    }
    roll_lanes_fini(&r.lanes);
    json_decref(r.left_out);
    return err;
}
