/*
 * cmd_incident.c: rollcall incident: everything that a living root and its agents know of a finding, as one folder to
 * keep and to send. A root with --incident-dir runs this by itself.
 */
#include "daemon/base/units.h"
#include "daemon/console/incident/incident.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#define BYTES       (UINT64_C(64) << 20)
#define BYTES_LEAST (UINT64_C(256) << 10)
#define RANKS       256u /* as many as a root asks about a difference of digests: a vote needs all members */
#define RANKS_MOST  1024u

int cmd_incident(const struct roll_command *self, int argc, char **argv);

static struct roll_incident incident; /* what a signal takes away; large */

/* Which run answers. 0, or the exit code. */
static int look_at_run(struct roll_incident *i, const char **job, uint32_t *restart, json_t **reply)
{
    int code = roll_link_ask(i->client, &i->o->link,
                             json_pack("{s:s, s:I}", "op", "verdicts", "from", (json_int_t)INT64_MAX), reply);
    const json_t *run = json_object_get(*reply, "run");
    *job = roll_json_text(run, "job", "job");
    *restart = (uint32_t)roll_json_int(run, "restart", 0);
    if (code == 0 && i->o->restart >= 0 && i->o->restart != (int64_t)*restart) {
        roll_say("restart %lld of %s is over: %u runs now; no bundle is written", (long long)i->o->restart, *job,
                 *restart);
        code = ROLL_EXIT_UNREACHABLE;
    }
    return code;
}

static int make(struct roll_incident *i, bool brief)
{
    const char *job;
    uint32_t restart;
    json_t *reply = NULL;
    int code = look_at_run(i, &job, &restart, &reply);
    if (code == 0 && roll_bundle_begin(&i->bundle, i->o->dir, job, restart, &i->o->bounds, i->o->bytes) != 0) {
        code = ROLL_EXIT_UNREACHABLE;
    }
    if (code != 0) {
        json_decref(reply);
        return code;
    }
    code = roll_incident_collect(i);
    if (code != 0) {
        roll_bundle_drop(&i->bundle);
        json_decref(reply);
        return code;
    }
    roll_incident_write(i);
    char size[32];
    uint64_t used = i->bundle.used;
    char ranks[48];
    size_t left = json_array_size(i->bundle.left_out);
    (void)roll_plural(roll_rankset_count(&i->got), "rank", "ranks", ranks, sizeof(ranks));
    if (roll_bundle_end(&i->bundle) != 0) {
        code = ROLL_EXIT_UNREACHABLE;
    } else if (brief) {
        roll_say("a bundle about %s is in %s/%s (%s, last calls of %s%s): its README.md says what to do next", job,
                 i->bundle.dir, i->bundle.name, roll_units_bytes_text((double)used, size, sizeof(size)), ranks,
                 left > 0 ? ", not all could be had" : "");
    } else {
        printf("%s/%s\n", i->bundle.dir, i->bundle.name);
        roll_say("%s, last calls of %s%s; README.md says what each file is, and what to do next",
                 roll_units_bytes_text((double)used, size, sizeof(size)), ranks,
                 left > 0 ? "; not all could be had (README.md, \"Not in it\")" : "");
    }
    json_decref(reply);
    return code;
}

int cmd_incident(const struct roll_command *self, int argc, char **argv)
{
    static struct roll_incident_options o;
    const char *bytes = NULL;
    bool brief = false;
    uint32_t keep = 0, most = 0;
    const char *most_bytes = NULL;
    o = (struct roll_incident_options){.dir = ".", .bytes = BYTES, .ranks = RANKS, .restart = -1};
    const struct roll_option options[] = {
        {"dir", 'd', ROLL_OPT_TEXT, "DIR", "make the bundle in DIR (default: here)", &o.dir},
        {"ranks", 0, ROLL_OPT_COUNT, "N",
         "the last calls of N ranks at most: those that findings name first (default 256)", &o.ranks},
        {"bytes", 0, ROLL_OPT_TEXT, "SIZE", "at most so large (K, M, G; default 64M)", &bytes},
        {"keep", 0, ROLL_OPT_COUNT, "N", "write nothing where DIR has N bundles of this run", &keep},
        {"most", 0, ROLL_OPT_COUNT, "N", "write nothing where DIR has N bundles of all jobs", &most},
        {"most-bytes", 0, ROLL_OPT_TEXT, "SIZE",
         "write nothing that makes the bundles in DIR larger than SIZE together", &most_bytes},
        {"restart", 0, ROLL_OPT_NUMBER, "R", "only if this restart of the job is the one that is watched", &o.restart},
        {"no-stacks", 0, ROLL_OPT_FLAG, NULL, "do not stop ranks for a moment to see where they are", &o.no_stacks},
        {"brief", 0, ROLL_OPT_FLAG, NULL, "one line on standard error; wait for what a fresh finding leads to", &brief},
        {"daemon", 0, ROLL_OPT_TEXT, "ENDPOINT", "the root (default: ROLLCALL_DAEMON, else the one running here)",
         &o.link.daemon},
        {"curve-dir", 0, ROLL_OPT_TEXT, "DIR", "keys for a root on another host (default: ROLLCALL_CURVE_DIR)",
         &o.link.curve},
        {"job", 0, ROLL_OPT_TEXT, "JOB", "which job, where the root watches several", &o.link.job},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (first < argc) {
        return roll_usage(self, "unexpected argument '%s'", argv[first]);
    }
    if (bytes != NULL && (!roll_units_bytes(bytes, &o.bytes) || o.bytes < BYTES_LEAST)) {
        return roll_usage(self, "option '--bytes %s': wants a size from 256K, like 16M or 2G", bytes);
    }
    if (o.ranks > RANKS_MOST) {
        return roll_usage(self, "option '--ranks %u': at most %u", o.ranks, RANKS_MOST);
    }
    if (most_bytes != NULL && !roll_units_bytes(most_bytes, &o.bounds.most_bytes)) {
        return roll_usage(self, "option '--most-bytes %s': wants a size like 512M or 2G", most_bytes);
    }
    o.bounds.keep = keep;
    o.bounds.most = most;
    o.settle = brief;
    umask(077);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file that may grow no larger is an error of writing */
    incident = (struct roll_incident){.o = &o,
                                      .bundle = {.dir_fd = -1, .fd = -1},
                                      .hosts = json_object(),
                                      .variables = json_object(),
                                      .libraries = json_object()};
    code = roll_link_open(&o.link, &incident.client);
    code = code != 0 ? code : make(&incident, brief);
    roll_incident_fini(&incident);
    return code;
}
