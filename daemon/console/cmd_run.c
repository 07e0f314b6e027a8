/*
 * cmd_run.c: rollcall run: the job under rollcall, in one step: its options. run/run_launch.c does it.
 */
#include "daemon/base/units.h"
#include "daemon/console/console.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/run/program.h"
#include "daemon/console/run/run.h"
#include "daemon/expect/expect.h"
#include "daemon/store/segment.h"

#include "trace/remedy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cmd_run(const struct roll_command *self, int argc, char **argv);

#define RANKS_MAX 4096

/* What the options say, before it is checked. */
struct asked {
    struct roll_run_options o;
    struct roll_place place;
    const char *bind_name;
    bool audit;
    FILE *json;
    char standins[8 * PATH_MAX]; /* a list for LD_PRELOAD */
};

/* Checks the trace options before the job starts: a daemon that refuses them would not watch the job. */
static int check_trace(const struct roll_command *self, const struct roll_run_options *o)
{
    uint64_t limit = UINT64_MAX, n;
    if (o->trace == NULL && (o->trace_segment != NULL || o->trace_limit != NULL || o->trace_age != NULL)) {
        return roll_usage(self, "--trace-segment, --trace-limit and --trace-age need --trace DIR");
    }
    if (o->trace_segment != NULL && (!roll_units_bytes(o->trace_segment, &n) || n < ROLL_SEGMENT_BYTES_LEAST)) {
        return roll_usage(self, "option '--trace-segment %s': wants a size from 64K, like 16M or 2G", o->trace_segment);
    }
    if (o->trace_limit != NULL && (!roll_units_bytes(o->trace_limit, &limit) || limit < ROLL_SEGMENT_LIMIT_LEAST)) {
        return roll_usage(self, "option '--trace-limit %s': wants a size from 256K, like 16M or 2G", o->trace_limit);
    }
    if (o->trace_age != NULL && !roll_units_time(o->trace_age, &n)) {
        return roll_usage(self, "option '--trace-age %s': wants a time, like 90s, 12h or 7d", o->trace_age);
    }
    return 0;
}

/* Says what is wanted where --hostnccl will not do, and notes that the machine has no GPU. */
static void point_to_rehearse(struct roll_run_options *o)
{
    char gpu[PATH_MAX], python[PATH_MAX], packages[PATH_MAX];
    o->no_gpu = !roll_rehearse_gpu("/dev", gpu, sizeof(gpu));
    const char *base = strrchr(o->command[0], '/');
    base = base != NULL ? base + 1 : o->command[0];
    bool is_python = roll_python_script(o->command) > 0 || strcmp(base, "torchrun") == 0;
    if (o->hostnccl && !o->quiet && is_python && roll_rehearse_interpreter(o->command, python, sizeof(python)) &&
        roll_rehearse_packages(python, packages, sizeof(packages))) {
        roll_say(
            "--hostnccl stands in for NCCL and the CUDA runtime alone, and PyTorch wants cuBLAS, cuDNN and others: "
            "`rollcall rehearse -- COMMAND` has them");
    }
}

/* Options that contradict each other or the place. 0, or the exit code. */
static int check(const struct roll_command *self, struct asked *r)
{
    struct roll_run_options *o = &r->o;
    enum roll_policy policy;
    int code;
    if (o->command[0] == NULL) {
        return roll_usage(self, "name the command: rollcall run [OPTION...] -- COMMAND");
    }
    if (o->stacks != NULL && strcmp(o->stacks, "auto") != 0 && strcmp(o->stacks, "ask") != 0) {
        return roll_usage(self, "option '--stacks %s': wants auto or ask", o->stacks);
    }
    if (o->policy != NULL && roll_policy_by_name(o->policy, &policy) != 0) {
        return roll_usage(self, "option '--policy %s': wants observe, advise or auto", o->policy);
    }
    if (o->on_mismatch != NULL && strcmp(o->on_mismatch, "report") != 0 && strcmp(o->on_mismatch, "error") != 0 &&
        strcmp(o->on_mismatch, "abort") != 0) {
        return roll_usage(self, "option '--on-mismatch %s': wants report, error or abort", o->on_mismatch);
    }
    if (r->audit) {
        r->bind_name = r->bind_name == NULL ? "audit" : r->bind_name;
    }
    o->bind = r->bind_name != NULL ? roll_bind_by_name(r->bind_name) : ROLL_BIND_AUTO;
    if (o->bind < 0) {
        return roll_usage(self, "option '--bind %s': wants auto, preload, audit, plugin or front", r->bind_name);
    }
    if (r->audit && o->bind != ROLL_BIND_AUDIT) {
        return roll_usage(self, "--audit and --bind %s contradict each other", r->bind_name);
    }
    if (o->ranks > RANKS_MAX) {
        return roll_usage(self, "option '-n %u': at most %d ranks on one host", o->ranks, RANKS_MAX);
    }
    if (o->daemon == NULL) {
        o->daemon = getenv("ROLLCALL_DAEMON");
        o->daemon = o->daemon != NULL && o->daemon[0] != '\0' ? o->daemon : NULL;
    }
    if (o->daemon != NULL && o->http != NULL) {
        return roll_usage(self, "--http belongs to the root daemon; %s is already running: start it with that",
                          o->daemon);
    }
    if (o->daemon != NULL && o->incident != NULL) {
        return roll_usage(self, "--incident-dir belongs to the root daemon; %s is already running: start it with that",
                          o->daemon);
    }
    if (o->digest && o->stream) {
        return roll_usage(self, "choose one of --digest, --stream");
    }
    if (o->digest && o->trace != NULL) {
        return roll_usage(self, "--digest keeps no trace: leave out --trace, or --digest");
    }
    if ((o->digest || o->stream) && o->daemon != NULL) {
        return roll_usage(self, "--%s belongs to the root daemon; %s is already running: start it with that",
                          o->digest ? "digest" : "stream", o->daemon);
    }
    if (o->daemon != NULL && o->expect != NULL) {
        return roll_usage(self, "--expect belongs to the root daemon; %s is already running: start it with that",
                          o->daemon);
    }
    code = check_trace(self, o);
    if (code != 0) {
        return code;
    }
    if (o->hostnccl && r->place.hostnccl[0] == '\0') {
        roll_say("--hostnccl: the stand-in libraries were not found beside this program; build or install hostnccl");
        return ROLL_EXIT_UNREACHABLE;
    }
    /* A library that a program's RPATH would find does not count where one of its soname is loaded already. The other
     * bindings find NCCL by themselves. */
    if (o->hostnccl && (o->bind == ROLL_BIND_AUTO || o->bind == ROLL_BIND_PRELOAD) &&
        roll_rehearse_preload(r->place.hostnccl, o->command[0], r->standins, sizeof(r->standins)) == 0) {
        o->behind = r->standins;
    }
    if (o->expect != NULL) { /* the daemon reads it again: here it is only seen whether it can be */
        struct roll_expected *expected;
        char why[256];
        if (roll_expected_read(o->expect, &expected, why, sizeof(why)) != 0) {
            roll_say("--expect %s%s", o->expect, why);
            return ROLL_EXIT_UNREACHABLE;
        }
        roll_expected_destroy(&expected);
    }
    if (o->json != NULL) {
        r->json = strcmp(o->json, "-") == 0 ? fdopen(dup(STDOUT_FILENO), "w") : fopen(o->json, "we");
        if (r->json == NULL) {
            roll_say("--json: cannot write %s: %s", o->json, strerror(errno));
            return ROLL_EXIT_UNREACHABLE;
        }
    }
    return 0;
}

int cmd_run(const struct roll_command *self, int argc, char **argv)
{
    static struct asked r; /* large */
    r = (struct asked){.o = {.grace_s = 5}};
    const struct roll_option options[] = {
        {"ranks", 'n', ROLL_OPT_COUNT, "N", "start N ranks here (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_*)", &r.o.ranks},
        {"hostnccl", 0, ROLL_OPT_FLAG, NULL, "NCCL and the CUDA runtime on host memory: no GPU needed", &r.o.hostnccl},
        {"bind", 0, ROLL_OPT_TEXT, "HOW", "how NCCL's calls are seen: auto (default), preload, audit, plugin or front",
         &r.bind_name},
        {"audit", 0, ROLL_OPT_FLAG, NULL, "the same as --bind=audit", &r.audit},
        {"policy", 0, ROLL_OPT_TEXT, "POLICY",
         "observe (default: say what is wrong), advise (with the command that helps), auto (and do it)", &r.o.policy},
        {"on-mismatch", 0, ROLL_OPT_TEXT, "DO",
         "a call that differs from this node's other ranks: report (default), error (refuse it), abort (its "
         "communicator, too)",
         &r.o.on_mismatch},
        {"json", 0, ROLL_OPT_TEXT, "FILE", "verdicts as NDJSON; - is standard output", &r.o.json},
        {"trace", 0, ROLL_OPT_TEXT, "DIR", "keep everything recorded, for `rollcall analyze`", &r.o.trace},
        {"trace-segment", 0, ROLL_OPT_TEXT, "SIZE", "with --trace: a new file after SIZE bytes (K, M, G; default 64M)",
         &r.o.trace_segment},
        {"trace-limit", 0, ROLL_OPT_TEXT, "SIZE",
         "with --trace: keep at most SIZE bytes, remove the oldest files first (default: all)", &r.o.trace_limit},
        {"trace-age", 0, ROLL_OPT_TEXT, "TIME",
         "with --trace: remove files older than TIME (s, m, h, d; default: none)", &r.o.trace_age},
        {"timeout", 0, ROLL_OPT_SECONDS, "S", "end a job in which nothing has moved for S seconds (code 124)",
         &r.o.timeout_s},
        {"grace", 0, ROLL_OPT_SECONDS, "S", "seconds between SIGTERM and SIGKILL (default 5)", &r.o.grace_s},
        {"fail-on-finding", 0, ROLL_OPT_FLAG, NULL,
         "where the job ends with 0: code 1 when there was a finding, 3 when nobody watched", &r.o.fail_on_finding},
        {"daemon", 0, ROLL_OPT_TEXT, "ENDPOINT",
         "a root that runs already (default: ROLLCALL_DAEMON, else one of our own)", &r.o.daemon},
        {"expect", 0, ROLL_OPT_TEXT, "FILE", "note where the job leaves what `rollcall rehearse --save` kept there",
         &r.o.expect},
        {"http", 0, ROLL_OPT_TEXT, "ADDR:PORT", "serve metrics and the web page (loopback only)", &r.o.http},
        {"incident-dir", 0, ROLL_OPT_TEXT, "DIR",
         "write a bundle about the first proven finding into DIR, as `rollcall incident` does", &r.o.incident},
        {"stacks", 0, ROLL_OPT_TEXT, "WHEN",
         "auto: take the stacks of the ranks that others wait for; ask (default): only by `rollcall stacks`",
         &r.o.stacks},
        {"python-stacks", 0, ROLL_OPT_FLAG, NULL,
         "ask Python ranks for their stacks by a signal, where their memory may not be read", &r.o.python_stacks},
        {"nvtx", 0, ROLL_OPT_FLAG, NULL,
         "steps are read from the job's NVTX ranges and marks, where no profiler reads them", &r.o.nvtx},
        {"digest", 0, ROLL_OPT_FLAG, NULL,
         "compare calls by digests, and look at records where something differs; so from 128 ranks on by itself",
         &r.o.digest},
        {"stream", 0, ROLL_OPT_FLAG, NULL, "look at every record, however many ranks there are; so with --trace",
         &r.o.stream},
        {"prefix", 0, ROLL_OPT_FLAG, NULL, "begin each line that a rank prints with the number of the rank",
         &r.o.prefix},
        {"brief", 0, ROLL_OPT_FLAG, NULL, "at the end of a job without findings say no more than the summary line",
         &r.o.brief},
        {"verbose", 'v', ROLL_OPT_FLAG, NULL, "every frame of a call in a verdict: libraries and native code as well",
         &r.o.frames},
        {"quiet", 'q', ROLL_OPT_FLAG, NULL, "print neither verdicts nor the summary", &r.o.quiet},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, true, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    r.o.command = argv + first;
    roll_place_find(&r.place);
    code = check(self, &r);
    if (code != 0) {
        return code;
    }
    const char *script = roll_missing_script(r.o.command);
    if (script != NULL) {
        roll_say("%s: no such script; nothing was started", script);
        return 127;
    }
    point_to_rehearse(&r.o);
    code = roll_run_launch(&r.o, &r.place, r.json, NULL);
    if (r.json != NULL) {
        fclose(r.json);
    }
    return code;
}
