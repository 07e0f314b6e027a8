/*
 * options.c: one table gives getopt's list, the help text and what an option sets; only the meaning of a mode is code.
 */
#include "daemon/rollcalld/options.h"

#include "daemon/base/units.h"
#include "daemon/store/segment.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_id {
    OPT_STANDALONE = 256,
    OPT_AGENT,
    OPT_ROOT,
    OPT_DIR,
    OPT_LISTEN,
    OPT_CONNECT,
    OPT_POLICY,
    OPT_TRACE,
    OPT_TRACE_SEGMENT,
    OPT_TRACE_LIMIT,
    OPT_TRACE_AGE,
    OPT_JSON,
    OPT_HTTP,
    OPT_CURVE_DIR,
    OPT_INSECURE,
    OPT_DETACH,
    OPT_IF_NONE,
    OPT_LINGER,
    OPT_PARENT,
    OPT_OWN_DIR,
    OPT_READY_FD,
    OPT_STALL_MS,
    OPT_SUSPECT_MS,
    OPT_STACKS,
    OPT_VERSION,
    OPT_HELP,
};

static const struct {
    const char *name, *value;
    int id;
    const char *help;
} table[] = {
    {"standalone", NULL, OPT_STANDALONE, "agent and root in one process (default)"},
    {"agent", NULL, OPT_AGENT, "stream the rings of DIR to the root named by --connect"},
    {"root", NULL, OPT_ROOT, "take what agents send, judge it, answer consoles"},
    {"dir", "DIR", OPT_DIR, "ring directory (default: ROLLCALL_DIR, else /dev/shm/rollcall-UID)"},
    {"listen", "EP", OPT_LISTEN, "root: tcp://ADDR:PORT or ipc://PATH, repeatable (default: ipc://DIR/root)"},
    {"connect", "EP", OPT_CONNECT, "agent: the root (default: ROLLCALL_DAEMON)"},
    {"policy", "P", OPT_POLICY, "observe (default), advise, or auto: switch remedies"},
    {"trace", "DIR", OPT_TRACE, "keep every call in DIR/JOB.RESTART*.rtrc, for rollcall analyze"},
    {"trace-segment", "SIZE", OPT_TRACE_SEGMENT, "begin a new segment after SIZE bytes (K, M, G; default 64M)"},
    {"trace-limit", "SIZE", OPT_TRACE_LIMIT, "remove the oldest segments beyond SIZE bytes in all (default: none)"},
    {"trace-age", "TIME", OPT_TRACE_AGE, "remove segments older than TIME (s, m, h, d; default: never)"},
    {"json", "FILE", OPT_JSON, "append verdicts to FILE, one JSON object a line"},
    {"http", "ADDR:PORT", OPT_HTTP, "serve Prometheus metrics (loopback only)"},
    {"curve-dir", "DIR", OPT_CURVE_DIR, "keys made by rollcall keygen, for tcp (default: ROLLCALL_CURVE_DIR)"},
    {"insecure", NULL, OPT_INSECURE, "listen beyond loopback without keys"},
    {"detach", NULL, OPT_DETACH, "go to the background once ready"},
    {"if-none", NULL, OPT_IF_NONE, "exit 0 quietly when DIR already has an agent"},
    {"linger", "SECONDS", OPT_LINGER, "exit this long after the last live rank is gone (0 = never)"},
    {"parent", "PID", OPT_PARENT, "with --linger: not while PID, who started this, lives"},
    {"own-dir", NULL, OPT_OWN_DIR, "remove DIR at exit; log only warnings"},
    {"ready-fd", "N", OPT_READY_FD, "write one line with the endpoint to descriptor N when ready"},
    {"stacks", "WHEN", OPT_STACKS, "auto: take the stacks of those whom others wait for; default: only when asked"},
    {"stall-ms", "N", OPT_STALL_MS, "look into an incomplete operation after N ms (default 500)"},
    {"suspect-ms", "N", OPT_SUSPECT_MS, "say what is only suspected after N ms, or some times that (default 5000)"},
    {"version", NULL, OPT_VERSION, "print the version"},
    {"help", NULL, OPT_HELP, "print this"},
};
#define OPTIONS (sizeof(table) / sizeof(*table))

static void print_help(void)
{
    printf("usage: rollcalld [--standalone | --agent | --root] [OPTION]...\n"
           "Watches the ranks whose rings lie in DIR and says which rank keeps the others waiting, and why.\n\n");
    for (size_t i = 0; i < OPTIONS; i++) {
        char left[40];
        snprintf(left, sizeof(left), "--%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        printf("  %-20s  %s\n", left, table[i].help);
    }
    printf("\nExit status: 0 clean, 1 a finding, 2 usage, 3 something cannot be reached, read or bound.\n");
}

static int usage(const char *format, const char *a, const char *b)
{
    char line[512];
    snprintf(line, sizeof(line), format, a, b);
    fprintf(stderr, "rollcalld: %s (rollcalld --help lists all options)\n", line);
    return 2;
}

static bool number(const char *text, unsigned long max, unsigned long *out)
{
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *out <= max;
}

static int set_mode(struct roll_options *o, bool *seen, enum roll_mode mode)
{
    if (*seen && o->mode != mode) {
        return usage("choose one of --standalone, --agent, --root%s%s", "", "");
    }
    *seen = true;
    o->mode = mode;
    return -1;
}

static int set(struct roll_options *o, bool *mode_seen, int id, const char *value, const char *name)
{
    unsigned long n;
    uint64_t big;
    switch (id) {
    case OPT_STANDALONE:
        return set_mode(o, mode_seen, ROLL_MODE_STANDALONE);
    case OPT_AGENT:
        return set_mode(o, mode_seen, ROLL_MODE_AGENT);
    case OPT_ROOT:
        return set_mode(o, mode_seen, ROLL_MODE_ROOT);
    case OPT_DIR:
        if (strlen(value) == 0 || strlen(value) >= sizeof(o->dir)) {
            return usage("--dir: '%s' is no directory name%s", value, "");
        }
        snprintf(o->dir, sizeof(o->dir), "%s", value);
        return -1;
    case OPT_LISTEN:
    case OPT_CONNECT:
        if (!roll_net_endpoint_ok(value)) {
            return usage("--%s: '%s' is not an endpoint; it looks like tcp://HOST:PORT or ipc:///PATH", name, value);
        }
        if (id == OPT_CONNECT) {
            o->connect = value;
        } else if (o->listens + 2 >= ROLL_ROOT_LISTEN_MAX) {
            return usage("too many --listen%s%s", "", "");
        } else {
            o->listen[o->listens++] = value;
        }
        return -1;
    case OPT_POLICY:
        o->policy_set = true;
        return roll_policy_by_name(value, &o->policy) == 0
                   ? -1
                   : usage("--policy: '%s' is none of observe, advise, auto%s", value, "");
    case OPT_TRACE:
        o->trace = value;
        return -1;
    case OPT_TRACE_SEGMENT:
    case OPT_TRACE_LIMIT:
        if (!roll_units_bytes(value, &big) || big < ROLL_SEGMENT_BYTES_LEAST) {
            return usage("--%s: '%s' is not a size from 64K, like 16M or 2G", name, value);
        }
        *(id == OPT_TRACE_LIMIT ? &o->trace_limit : &o->trace_segment) = big;
        return -1;
    case OPT_TRACE_AGE:
        if (!roll_units_time(value, &o->trace_age_ns)) {
            return usage("--%s: '%s' is not a time, like 90s, 12h or 7d", name, value);
        }
        return -1;
    case OPT_JSON:
        o->json = value;
        return -1;
    case OPT_HTTP:
        o->http = value;
        return -1;
    case OPT_CURVE_DIR:
        o->curve_dir = value;
        return -1;
    case OPT_INSECURE:
        o->insecure = true;
        return -1;
    case OPT_DETACH:
        o->detach = true;
        return -1;
    case OPT_IF_NONE:
        o->if_none = true;
        return -1;
    case OPT_OWN_DIR:
        o->own_dir = true;
        return -1;
    case OPT_LINGER:
        if (!number(value, 86400 * 365, &n)) {
            return usage("--%s: '%s' is not a number of seconds", name, value);
        }
        o->linger_s = (unsigned)n;
        return -1;
    case OPT_PARENT:
        if (!number(value, INT_MAX, &n) || n == 0) {
            return usage("--%s: '%s' is not a process id", name, value);
        }
        o->parent = (pid_t)n;
        return -1;
    case OPT_READY_FD:
        if (!number(value, INT_MAX, &n)) {
            return usage("--%s: '%s' is not a descriptor", name, value);
        }
        o->ready_fd = (int)n;
        return -1;
    case OPT_STALL_MS:
        if (!number(value, 86400000, &n) || n == 0) {
            return usage("--%s: '%s' is not a number of milliseconds from 1", name, value);
        }
        o->stall_ns = n * 1000000u;
        return -1;
    case OPT_SUSPECT_MS:
        if (!number(value, 86400000, &n) || n == 0) {
            return usage("--%s: '%s' is not a number of milliseconds from 1", name, value);
        }
        o->suspect_ns = n * 1000000u;
        return -1;
    case OPT_STACKS:
        o->stacks_auto = strcmp(value, "auto") == 0;
        return o->stacks_auto || strcmp(value, "ask") == 0 ? -1
                                                           : usage("--stacks: '%s' is none of auto, ask%s", value, "");
    case OPT_VERSION:
        printf("rollcalld %s\n", ROLL_VERSION);
        return 0;
    case OPT_HELP:
        print_help();
        return 0;
    default:
        return 2;
    }
}

/* What the modes need and do not take. */
static int check(struct roll_options *o)
{
    const char *env = getenv("ROLLCALL_DIR");
    bool agent = o->mode == ROLL_MODE_AGENT;
    if (!o->curve_dir) {
        env = getenv("ROLLCALL_CURVE_DIR");
        o->curve_dir = env && env[0] ? env : NULL;
    }
    if (agent && !o->connect) {
        env = getenv("ROLLCALL_DAEMON");
        o->connect = env && env[0] ? env : NULL;
        if (!o->connect || !roll_net_endpoint_ok(o->connect)) {
            return usage("--agent needs --connect EP (or ROLLCALL_DAEMON): the root to stream to%s%s", "", "");
        }
    }
    if (!agent && o->connect) {
        return usage("--connect is for --agent%s%s", "", "");
    }
    if (agent && (o->listens || o->json || o->http)) {
        return usage("--listen, --json and --http belong to the root, not to --agent%s%s", "", "");
    }
    if (!o->trace && (o->trace_segment || o->trace_limit || o->trace_age_ns)) {
        return usage("--trace-segment, --trace-limit and --trace-age need --trace DIR%s%s", "", "");
    }
    if (o->trace_limit && o->trace_limit < ROLL_SEGMENT_LIMIT_LEAST) {
        return usage("--trace-limit: at least 256K, room for four segments%s%s", "", "");
    }
    if (o->if_none && o->mode == ROLL_MODE_ROOT) {
        return usage("--if-none is about agents: not for --root%s%s", "", "");
    }
    env = getenv("ROLLCALL_DIR");
    bool wants_dir = o->mode != ROLL_MODE_ROOT || o->listens == 0;
    if (o->dir[0] == '\0' && wants_dir) {
        if (env && env[0]) {
            snprintf(o->dir, sizeof(o->dir), "%s", env);
        } else if (roll_default_dir(o->dir, sizeof(o->dir)) != 0) {
            return usage("no default directory; name one with --dir%s%s", "", "");
        }
    }
    if (o->own_dir && o->dir[0] == '\0') {
        return usage("--own-dir needs --dir%s%s", "", "");
    }
    return -1;
}

int roll_options_parse(int argc, char **argv, struct roll_options *out)
{
    struct option options[OPTIONS + 1];
    for (size_t i = 0; i < OPTIONS; i++) {
        options[i] =
            (struct option){table[i].name, table[i].value ? required_argument : no_argument, NULL, table[i].id};
    }
    options[OPTIONS] = (struct option){0};
    memset(out, 0, sizeof(*out));
    out->ready_fd = -1;
    bool mode_seen = false;
    opterr = 0;
    for (;;) {
        int at = optind, index = -1;
        int id = getopt_long(argc, argv, ":", options, &index);
        if (id == -1) {
            break;
        }
        if (id == '?') {
            return usage("unknown option '%s'%s", argv[at], "");
        }
        if (id == ':') {
            return usage("option '%s' needs a value%s", argv[at], "");
        }
        int code = set(out, &mode_seen, id, optarg, index >= 0 ? options[index].name : "");
        if (code >= 0) {
            return code;
        }
    }
    if (optind < argc) {
        return usage("unexpected argument '%s'%s", argv[optind], "");
    }
    return check(out);
}
