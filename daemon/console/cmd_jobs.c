/*
 * cmd_jobs.c: rollcall jobs, which is also `rollcall` alone: the jobs running here, how they stand, and how to look
 * closer; where none runs, how to start one.
 *
 * Two things tell of jobs: the live roots of this user on this node (and the one that ROLLCALL_DAEMON names), each of
 * which knows its jobs with their findings; and the rings on this node, which are there without any daemon. A job that
 * a root has told of is not told again from its rings.
 */
#include "daemon/base/json.h"
#include "daemon/base/text.h"
#include "daemon/console/agent_log.h"
#include "daemon/console/link.h"
#include "daemon/console/rings_here.h"
#include "daemon/console/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int cmd_jobs(const struct roll_command *self, int argc, char **argv);

#define ROOTS_MOST   32u
#define ROOT_WAIT_MS 3000 /* patience with each root: one that has not ended is slow only on an overloaded machine */

struct jobs {
    json_t *list; /* owned: members of `runs` and what rings tell, each with `source` */
    size_t roots; /* that answered */
    size_t unreached;
};

/* Adds what one root tells of its jobs, each with the endpoint by which it is asked. known: roots that were asked
 * before, one of which a relay may name. */
static void ask_root(struct jobs *jobs, const char *endpoint, const char *curve,
                     char (*known)[ROLL_CLIENT_ENDPOINT_BYTES], size_t knowns)
{
    roll_client_t *client = NULL;
    json_t *reply = NULL, *run;
    char why[512] = "";
    size_t i;
    if (roll_client_new(endpoint, curve, ROOT_WAIT_MS, &client, why, sizeof(why)) != 0) {
        roll_say("%s", why);
        jobs->unreached++;
        return;
    }
    roll_link_say_relay(client);
    endpoint = roll_client_endpoint(client);
    bool again = false;
    for (size_t k = 0; k < knowns; k++) {
        again = again || strcmp(known[k], endpoint) == 0;
    }
    int err = again ? 0 : roll_client_query(client, json_pack("{s:s}", "op", "runs"), ROOT_WAIT_MS, &reply);
    if (err != 0) {
        roll_say("%s does not answer", endpoint);
        jobs->unreached++;
    }
    jobs->roots += err == 0 && !again;
    json_array_foreach(json_object_get(reply, "runs"), i, run)
    {
        json_object_set_new(run, "source", json_string("daemon"));
        json_object_set_new(run, "daemon", json_string(endpoint));
        json_array_append(jobs->list, run);
    }
    json_decref(reply);
    roll_client_destroy(&client);
}

/* named: by the user, besides those that run here; NULL: none is. */
static void ask_roots(struct jobs *jobs, const char *named, const char *curve)
{
    static char endpoint[ROOTS_MOST][ROLL_CLIENT_ENDPOINT_BYTES];
    named = named != NULL ? named : getenv("ROLLCALL_DAEMON");
    size_t n = roll_client_live(endpoint, ROOTS_MOST), known = n < ROOTS_MOST ? n : ROOTS_MOST;
    bool is_listed = named == NULL || named[0] == '\0';
    for (size_t i = 0; i < known; i++) {
        is_listed = is_listed || strcmp(endpoint[i], named) == 0;
        ask_root(jobs, endpoint[i], curve, NULL, 0);
    }
    if (!is_listed) {
        ask_root(jobs, named, curve, endpoint, known);
    }
    if (n > known) {
        roll_say("%zu more daemons of yours run here and were not asked", n - known);
    }
}

static bool is_told(const struct jobs *jobs, const struct roll_rings_here *rings)
{
    size_t i;
    json_t *job;
    json_array_foreach(jobs->list, i, job)
    {
        if (strcmp(roll_json_text(job, "job", ""), rings->job) == 0 &&
            roll_json_int(job, "restart", 0) == (int64_t)rings->restart) {
            return true;
        }
    }
    return false;
}

/* Adds the jobs of rings that no root has told of, while a process of theirs lives. */
static void add_rings(struct jobs *jobs, const struct roll_rings_here *rings, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct roll_rings_here *r = &rings[i];
        char ranks[256] = "";
        if (r->live == 0 || is_told(jobs, r)) {
            continue;
        }
        (void)roll_rankset_format(&r->ranks, ranks, sizeof(ranks));
        char line[ROLL_AGENT_LINE_BYTES];
        bool trouble = roll_agent_log_look(r->folder, line);
        json_t *job = json_pack("{s:s,s:o,s:o,s:i,s:I,s:I,s:s,s:I,s:I,s:I,s:I}", "source", "rings", "rings",
                                roll_text_to_json(r->folder), "job", roll_text_to_json(r->job), "restart",
                                (int)r->restart, "ranks", (json_int_t)r->rings, "ranks_live", (json_int_t)r->live,
                                "ranks_text", ranks, "calls", (json_int_t)r->calls, "last_ns", (json_int_t)r->last_ns,
                                "since_ns", (json_int_t)r->since_ns, "pid", (json_int_t)r->pid);
        if (job != NULL && trouble) {
            json_object_set_new(job, "agent_trouble", roll_text_to_json(line));
        }
        json_array_append_new(jobs->list, job);
    }
}

static const char *ago(uint64_t then_ns, char *out, size_t size)
{
    uint64_t now = roll_now_real_ns();
    return roll_span_text(now > then_ns ? now - then_ns : 0, out, size);
}

/* How the job stands, in one line: what was found, how far it is, when it last moved. */
static void print_state(const json_t *job)
{
    const json_t *finding = json_object_get(job, "finding");
    int64_t findings = roll_json_int(job, "findings", -1), step = roll_json_int(job, "step", -1);
    uint64_t last = (uint64_t)roll_json_int(job, "last_ns", 0);
    char many[64], calls[32], age[32];
    fputs("    state  ", stdout);
    if (findings > 0) {
        const char *ranks = roll_json_text(finding, "ranks_text", "");
        printf("%s; the newest: %s %s", roll_plural((uint64_t)findings, "finding", "findings", many, sizeof(many)),
               roll_json_text(finding, "certainty", "?"), roll_json_text(finding, "code", "?"));
        if (ranks[0] != '\0') {
            printf(", rank%s %s", strpbrk(ranks, ",-") != NULL ? "s" : "", ranks);
        }
        fputs("; ", stdout);
    } else if (findings == 0) {
        fputs("no finding; ", stdout);
    } else {
        fputs("not judged: no daemon of yours here knows this job; ", stdout);
    }
    if (step >= 0) {
        printf("step %" PRId64 ", ", step);
    }
    fputs(roll_plural((uint64_t)roll_json_int(job, "calls", 0), "call", "calls", calls, sizeof(calls)), stdout);
    double rate = json_number_value(json_object_get(job, "calls_per_s"));
    if (rate >= 1) {
        printf(" (%s a second)", roll_count_text((uint64_t)rate, many, sizeof(many)));
    }
    if (last > 0) {
        printf(", the last %s ago", ago(last, age, sizeof(age)));
    }
    fputs("\n", stdout);
}

/* The options that make the other subcommands ask for this job: none where it is the only one of the only root, else
 * its name where that is enough. */
static void selection(const struct jobs *jobs, const json_t *job, char *out, size_t size)
{
    const char *endpoint = roll_json_text(job, "daemon", ""), *name = roll_json_text(job, "job", "");
    size_t i, beside = 0, named = 0;
    json_t *other;
    json_array_foreach(jobs->list, i, other)
    {
        bool told = roll_json_text(other, "daemon", NULL) != NULL;
        beside += told && strcmp(roll_json_text(other, "daemon", ""), endpoint) == 0;
        named += told && strcmp(roll_json_text(other, "job", ""), name) == 0;
    }
    out[0] = '\0';
    if (jobs->roots <= 1 && beside <= 1) {
        return;
    }
    if (roll_link_names_job(name, named)) {
        snprintf(out, size, " --job %s", name);
    } else {
        size_t n = jobs->roots > 1 ? (size_t)snprintf(out, size, " --daemon %s", endpoint) : 0;
        if (beside > 1 && n < size) {
            snprintf(out + n, size - n, " --job %s", name);
        }
    }
}

static void print_job(const struct jobs *jobs, const json_t *job)
{
    char text[512], option[512], age[32];
    bool is_root = strcmp(roll_json_text(job, "source", ""), "daemon") == 0;
    if (is_root) {
        roll_line_print(roll_link_about(job, text, sizeof(text)), stdout);
        print_state(job);
        selection(jobs, job, option, sizeof(option));
        bool found = roll_json_int(job, "findings", 0) > 0;
        printf("    look   rollcall top%s   %s%s%srollcall why%s   rollcall stacks%s\n", option,
               found ? "rollcall verdicts" : "", found ? option : "", found ? "   " : "", option, option);
        return;
    }
    uint64_t live = (uint64_t)roll_json_int(job, "ranks_live", 0), all = (uint64_t)roll_json_int(job, "ranks", 0);
    const char *ranks = roll_json_text(job, "ranks_text", "");
    const char *name = roll_json_text(job, "job", "?");
    fputs("job ", stdout);
    roll_text_put(name, strlen(name), stdout);
    if (roll_json_int(job, "restart", 0) > 0) {
        printf(", restart %" PRId64, roll_json_int(job, "restart", 0));
    }
    printf(": %s here", roll_plural(all, "rank", "ranks", text, sizeof(text)));
    if (ranks[0] != '\0') {
        printf(" (%s)", ranks);
    }
    if (live < all) {
        printf(", %" PRIu64 " running", live);
    }
    printf(", for %s\n", ago((uint64_t)roll_json_int(job, "since_ns", 0), age, sizeof(age)));
    print_state(job);
    if (json_object_get(job, "agent_trouble") != NULL) {
        printf("    agent  %s\n           (%s/agent.log)\n", roll_json_text(job, "agent_trouble", ""),
               roll_json_text(job, "rings", "?"));
    }
    printf("    look   rollcall analyze %s   rollcall doctor %" PRId64 "   rollcall stacks --pid %" PRId64 "\n",
           roll_json_text(job, "rings", "?"), roll_json_int(job, "pid", 0), roll_json_int(job, "pid", 0));
}

static void print_none(const char *base)
{
    printf("No job runs under rollcall here (%s).\n\n"
           "  rollcall run -- torchrun --nproc-per-node 8 train.py   start one, as it is\n"
           "  rollcall run -n 8 -- ./program                         without a launcher\n"
           "  rollcall rehearse -n 8 -- python train.py              here, without a GPU\n"
           "  rollcall doctor -- python train.py                     would it be seen?\n"
           "  rollcall analyze FILE...                               what a job has left\n\n"
           "`rollcall help` lists all commands.\n",
           base[0] != '\0' ? base : "no directory of rings");
}

static void print_jobs(const struct jobs *jobs, const char *base)
{
    size_t i, running = 0, over = 0;
    json_t *job;
    json_array_foreach(jobs->list, i, job)
    {
        if (roll_json_int(job, "ranks_live", 0) > 0) {
            fputs(running++ > 0 ? "\n" : "", stdout);
            print_job(jobs, job);
        } else {
            over++;
        }
    }
    if (running == 0) {
        print_none(base);
    }
    if (over > 0) {
        char many[64];
        printf("\n%s still known to a daemon: `rollcall verdicts --job JOB` (`rollcall jobs --json` names them).\n",
               roll_plural(over, "job that is over is", "jobs that are over are", many, sizeof(many)));
    }
}

int cmd_jobs(const struct roll_command *self, int argc, char **argv)
{
    struct jobs jobs = {.list = json_array()};
    struct roll_rings_here *rings = NULL;
    const char *curve = NULL, *named = NULL;
    size_t count = 0;
    char base[PATH_MAX];
    bool json = false;
    const struct roll_option options[] = {
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object", &json},
        {"daemon", 0, ROLL_OPT_TEXT, "ENDPOINT", "a root besides those that run here (default: ROLLCALL_DAEMON)",
         &named},
        {"curve-dir", 0, ROLL_OPT_TEXT, "DIR", "keys for a root on another host (default: ROLLCALL_CURVE_DIR)", &curve},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first >= 0 && first < argc) {
        code = roll_usage(self, "unexpected argument '%s'", argv[first]);
        first = -1;
    }
    if (first >= 0) {
        ask_roots(&jobs, named, curve);
        if (roll_rings_here(&rings, &count, base, sizeof(base)) != 0) {
            roll_say("there is no memory for a list of all rings");
        }
        add_rings(&jobs, rings, count);
        roll_rings_here_free(rings, count);
        if (json) {
            json_t *all = json_pack("{s:s,s:O}", "schema", "rollcall.jobs/1", "jobs", jobs.list);
            roll_json_line(all, stdout);
            json_decref(all);
        } else {
            print_jobs(&jobs, base);
        }
    }
    json_decref(jobs.list);
    return first >= 0 && jobs.unreached > 0 ? ROLL_EXIT_UNREACHABLE : code;
}
