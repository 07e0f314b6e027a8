/*
 * cmd_export.c: rollcall export: a recorded trace as files that other tools read.
 */
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/export/export.h"
#include "daemon/console/export/out.h"
#include "daemon/console/export/perfetto.h"
#include "daemon/console/export/sqlite.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <stdio.h>
#include <string.h>

int cmd_export(const struct roll_command *self, int argc, char **argv);

static int export_recorder(char **path, size_t paths, const char *folder, bool force)
{
    size_t ranks;
    bool cut;
    if (roll_out_folder(folder, force) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    if (roll_export(path, paths, folder, ROLL_EXPORT_ENTRIES, &ranks, &cut) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    char dumps[48];
    printf("%s in %s\n", roll_plural(ranks, "dump", "dumps", dumps, sizeof(dumps)), folder);
    return cut ? ROLL_EXIT_INCOMPLETE : ROLL_EXIT_CLEAN;
}

/* The forms in which all of a job goes into one file. */
static const struct form {
    const char *option, *output, *package;
    int (*write)(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                 struct roll_analysis_summary *summary);
} forms[] = {
#ifdef ROLL_HAVE_PERFETTO
    {"--perfetto", "rollcall.pftrace", NULL, roll_export_perfetto},
#else
    {"--perfetto", NULL, "protobuf-c-compiler and libprotobuf-c-dev", NULL},
#endif
#ifdef ROLL_HAVE_SQLITE
    {"--sqlite", "rollcall.sqlite", NULL, roll_export_sqlite},
#else
    {"--sqlite", NULL, "libsqlite3-dev", NULL},
#endif
};

static bool ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static int export_form(const struct roll_command *self, const struct form *form, char **path, size_t paths,
                       unsigned threads, const char *only, const char *output, bool force)
{
    struct roll_analysis_summary s = {.runs = 0};
    if (form->write == NULL) {
        roll_say("%s: this rollcall was built without it; to build it with it, install %s", form->option,
                 form->package);
        return ROLL_EXIT_UNREACHABLE;
    }
    output = output != NULL ? output : form->output;
    if (ends(output, ".rtrc") || ends(output, ".ring")) {
        return roll_usage(self, "--output %s: that is the name of what was recorded", output);
    }
    if (roll_out_name(output, force) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    if (form->write(path, paths, threads, only, output, &s) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    char calls[48], ranks[48], findings[48];
    printf("%s of %s, %s in %s\n", roll_plural(s.engine.calls, "call", "calls", calls, sizeof(calls)),
           roll_plural(s.engine.sources, "rank", "ranks", ranks, sizeof(ranks)),
           roll_plural(s.engine.findings, "finding", "findings", findings, sizeof(findings)), output);
    if (s.unreadable > 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    return s.cut || s.engine.lost + s.older > 0 ? ROLL_EXIT_INCOMPLETE : ROLL_EXIT_CLEAN;
}

int cmd_export(const struct roll_command *self, int argc, char **argv)
{
    bool recorder = false, perfetto = false, sqlite = false, force = false;
    const char *output = NULL, *job = NULL;
    uint32_t threads = 0;
    const struct roll_option options[] = {
        {"flight-recorder", 0, ROLL_OPT_FLAG, NULL, "as dumps of PyTorch's Flight Recorder, which torchfrtrace reads",
         &recorder},
        {"perfetto", 0, ROLL_OPT_FLAG, NULL, "as a trace that ui.perfetto.dev and trace_processor open", &perfetto},
        {"sqlite", 0, ROLL_OPT_FLAG, NULL, "as an SQLite database, which DuckDB reads as well", &sqlite},
        {"output", 'o', ROLL_OPT_TEXT, "PLACE",
         "the file; of dumps the directory, one file a rank (default: rollcall.pftrace, rollcall.sqlite, "
         "flight_recorder)",
         &output},
        {"force", 0, ROLL_OPT_FLAG, NULL, "replace a file, or dumps, of that name that are there", &force},
        ROLL_JOB_OPTION(job),
        ROLL_READ_OPTIONS(threads),
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (recorder + perfetto + sqlite != 1) {
        return roll_usage(self, "say as what: one of --flight-recorder, --perfetto and --sqlite");
    }
    if (first == argc) {
        return roll_usage(self, "name a trace: a directory of --trace, or files");
    }
    if (recorder && job != NULL) {
        return roll_usage(self, "--job goes with --perfetto and --sqlite; dumps are those of all jobs");
    }
    char **path = argv + first;
    size_t paths = (size_t)(argc - first);
    return recorder ? export_recorder(path, paths, output != NULL ? output : "flight_recorder", force)
                    : export_form(self, &forms[sqlite ? 1 : 0], path, paths, threads, job, output, force);
}
