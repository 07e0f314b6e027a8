/*
 * readme.c: README.md and incident.json of a bundle: what each file is, what is not there and why, and what to do next.
 * Whoever gets a bundle may never have heard of rollcall.
 */
#include "daemon/base/json.h"
#include "daemon/base/text.h"
#include "daemon/console/incident/incident.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS_MOST 5
#define LEFT_MOST     40 /* lines; incident.json has all of them */

/* Text of another process in Markdown: on one line, and nothing of it is markup. */
static void put(FILE *out, const char *text)
{
    char *copy = strdup(text);
    if (copy == NULL) {
        return;
    }
    roll_text_plain(copy, strlen(copy));
    for (const char *p = copy; *p; p++) {
        if (strchr("\\`*_[]<>|#&~!", *p) != NULL) {
            fputc('\\', out);
        }
        fputc(*p == '\n' ? ' ' : *p, out);
    }
    free(copy);
}

static void put_findings(FILE *out, const json_t *list)
{
    size_t k, n = 0;
    json_t *verdict;
    json_array_foreach(list, k, verdict)
    {
        bool stands = strcmp(roll_json_text(verdict, "certainty", "note"), "note") != 0 &&
                      roll_verdict_json_retired_by(list, verdict) == NULL;
        if (stands && n++ < FINDINGS_MOST) {
            size_t culprits = json_array_size(json_object_get(verdict, "culprits"));
            fprintf(out, "- **%s %s**%s", roll_json_text(verdict, "certainty", "?"),
                    roll_json_text(verdict, "code", "?"),
                    culprits == 0   ? ""
                    : culprits == 1 ? ", rank "
                                    : ", ranks ");
            put(out, roll_json_text(verdict, "culprits_text", ""));
            fputs(": ", out);
            put(out, roll_json_text(verdict, "text", ""));
            fputc('\n', out);
        }
    }
    if (n > FINDINGS_MOST) {
        fprintf(out, "- and %zu more: verdicts.txt\n", n - FINDINGS_MOST);
    }
    if (n == 0) {
        fputs("Nothing has been found that stands.\n", out);
    }
}

static bool put_losses(FILE *out, const json_t *status)
{
    const char *cause;
    json_t *count;
    bool any = false;
    json_object_foreach(json_object_get(status, "losses"), cause, count)
    {
        if (json_integer_value(count) > 0) {
            fprintf(out, "%s%s %lld", any ? ", " : "Lost, by cause: ", cause, (long long)json_integer_value(count));
            any = true;
        }
    }
    fputs(any ? ".\n" : "", out);
    return any;
}

static void put_files(FILE *out, const struct roll_bundle *b)
{
    size_t k;
    json_t *file;
    fputs("| file | bytes | is |\n|---|---:|---|\n", out);
    json_array_foreach(b->files, k, file)
    {
        fprintf(out, "| `%s` | %lld | %s |\n", roll_json_text(file, "name", "?"),
                (long long)roll_json_int(file, "bytes", 0), roll_json_text(file, "what", "?"));
    }
    fputs("| `incident.json` | | this list, and what was left out, for programs (rollcall.incident/1) |\n", out);
}

static void put_left_out(FILE *out, const json_t *list)
{
    size_t k;
    json_t *text;
    json_array_foreach(list, k, text)
    {
        if (k < LEFT_MOST) {
            fputs("- ", out);
            put(out, json_string_value(text));
            fputc('\n', out);
        }
    }
    if (k > LEFT_MOST) {
        fprintf(out, "- and %zu more: incident.json\n", k - LEFT_MOST);
    }
}

static void put_next(FILE *out, bool trace)
{
    int n = 2;
    fputs("1. Read `verdicts.txt`: the rank, the place in its code, and why. `why.txt` says who waits for whom.\n",
          out);
    if (trace) {
        fprintf(
            out,
            "%d. `rollcall analyze .` judges the recorded calls again, without the job; `rollcall export --perfetto .`"
            " shows them in ui.perfetto.dev, and `rollcall replay .` may let the same hang happen on a laptop.\n",
            n++);
    }
    fprintf(
        out,
        "%d. Compare `environment.txt` and `versions.txt` between the culprits and the others: a line that not all "
        "ranks "
        "have is worth a look.\n"
        "%d. To send it: `tar czf incident.tar.gz -C .. \"$(basename \"$PWD\")\"`. Names of hosts, paths and functions "
        "are in it; secrets of the environment are not.\n",
        n, n + 1);
}

static void write_readme(struct roll_incident *i, bool trace)
{
    char *bytes = NULL, got[256], date[ROLL_TIME_BYTES];
    size_t used = 0;
    FILE *out = open_memstream(&bytes, &used);
    if (out == NULL) {
        return;
    }
    (void)roll_rankset_format(&i->got, got, sizeof(got));
    fputs("# Incident: ", out);
    put(out, roll_json_text(i->run, "job", "?"));
    fprintf(out, ", restart %lld\n\n", (long long)roll_json_int(i->run, "restart", 0));
    char ranks[48];
    fprintf(out, "Made by rollcall %s at %s, of a job of %s", ROLL_VERSION, roll_time_text(roll_now_real_ns(), date),
            roll_plural((uint64_t)roll_json_int(i->run, "ranks", 0), "rank", "ranks", ranks, sizeof(ranks)));
    fprintf(out, "; the last calls are those of %zu of them (%s).\n\n## Found\n\n", roll_rankset_count(&i->got),
            got[0] != '\0' ? got : "none");
    put_findings(out, json_object_get(i->verdicts, "verdicts"));
    if ((int64_t)roll_rankset_count(&i->got) < roll_json_int(i->run, "ranks", 0)) {
        fputs("\nThis was said with the calls of all ranks. With those in this bundle `rollcall analyze` may be less "
              "certain: who is in the minority, only all members of a communicator can show.\n",
              out);
    }
    fputs("\n## What to do next\n\n", out);
    put_next(out, trace);
    fputs("\n## Files\n\n", out);
    put_files(out, &i->bundle);
    fputs("\n## Not in it\n\n", out);
    bool lost = put_losses(out, i->status), left = json_array_size(i->bundle.left_out) > 0;
    fputs(lost && left ? "\n" : lost ? "" : left ? "" : "Nothing: no record was lost, and no file left out.\n", out);
    put_left_out(out, i->bundle.left_out);
    if (fclose(out) == 0) {
        roll_bundle_text(&i->bundle, "README.md", "this file", bytes, used);
    }
    free(bytes);
}

void roll_incident_readme(struct roll_incident *i)
{
    bool trace = false;
    size_t k;
    json_t *file;
    json_array_foreach(i->bundle.files, k, file)
    {
        trace = trace || strncmp(roll_json_text(file, "name", ""), "trace/", 6) == 0;
    }
    /* These two are small, and say what else had no room: they are written whatever the others took. */
    i->bundle.limit += UINT64_C(1) << 20;
    write_readme(i, trace);
    json_t *all = json_pack("{s:s, s:O?, s:s, s:I, s:O, s:O, s:o, s:o}", "schema", "rollcall.incident/1", "run", i->run,
                            "rollcall", ROLL_VERSION, "made_ns", (json_int_t)roll_now_real_ns(), "files",
                            i->bundle.files, "left_out", i->bundle.left_out, "concerned",
                            roll_ranks_text_json(&i->concerned), "recorded", roll_ranks_text_json(&i->got));
    char *text = all != NULL ? json_dumps(all, JSON_INDENT(1)) : NULL;
    if (text != NULL) {
        roll_bundle_text(&i->bundle, "incident.json", "what is in the bundle, and what is not", text, strlen(text));
    }
    free(text);
    json_decref(all);
}
