/*
 * options.c: the options of rollcalld as a table, a function for each kind of argument, and what the modes need.
 */
#include "daemon/rollcalld/options.h"

#include "daemon/base/options.h"
#include "daemon/base/text.h"
#include "daemon/base/units.h"
#include "daemon/store/segment.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int __attribute__((format(printf, 1, 2))) usage(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "rollcalld: %s (rollcalld --help lists all options)\n", line);
    return 2;
}

/* arguments */

/* What the command line has said so far. */
struct command_line {
    struct roll_options *out;
    bool mode_seen;
};

static bool number(const char *text, unsigned long least, unsigned long most, unsigned long *out)
{
    char *end;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && *out >= least && *out <= most;
}

static int take_mode(const struct roll_option *option, const char *text, void *into)
{
    struct command_line *line = into;
    enum roll_mode mode = strcmp(option->name, "agent") == 0   ? ROLL_MODE_AGENT
                          : strcmp(option->name, "root") == 0  ? ROLL_MODE_ROOT
                          : strcmp(option->name, "relay") == 0 ? ROLL_MODE_RELAY
                                                               : ROLL_MODE_STANDALONE;
    (void)text;
    if (line->mode_seen && line->out->mode != mode) {
        return usage("choose one of --standalone, --agent, --root, --relay");
    }
    line->mode_seen = true;
    line->out->mode = mode;
    return ROLL_OPTION_GO_ON;
}

static int take_dir(const struct roll_option *option, const char *text, void *into)
{
    struct roll_options *o = into;
    (void)option;
    if (strlen(text) == 0 || strlen(text) >= sizeof(o->dir)) {
        return ROLL_OPTION_BAD;
    }
    snprintf(o->dir, sizeof(o->dir), "%s", text);
    return ROLL_OPTION_GO_ON;
}

static int take_listen(const struct roll_option *option, const char *text, void *into)
{
    struct roll_options *o = into;
    if (!roll_net_endpoint_ok(text)) {
        return ROLL_OPTION_BAD;
    }
    if (o->listens + 2 >= ROLL_ROOT_LISTEN_MAX) {
        return usage("too many --%s", option->name);
    }
    o->listen[o->listens++] = text;
    return ROLL_OPTION_GO_ON;
}

static int take_connect(const struct roll_option *option, const char *text, void *into)
{
    (void)option;
    *(const char **)into = text;
    return roll_net_endpoint_ok(text) ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_policy(const struct roll_option *option, const char *text, void *into)
{
    struct roll_options *o = into;
    (void)option;
    o->policy_set = true;
    return roll_policy_by_name(text, &o->policy) == 0 ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_bytes(const struct roll_option *option, const char *text, void *into)
{
    uint64_t *bytes = into;
    (void)option;
    return roll_units_bytes(text, bytes) && *bytes >= ROLL_SEGMENT_BYTES_LEAST ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_age(const struct roll_option *option, const char *text, void *into)
{
    (void)option;
    return roll_units_time(text, into) ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_seconds(const struct roll_option *option, const char *text, void *into)
{
    unsigned long n;
    bool good = number(text, 0, 86400 * 365, &n);
    (void)option;
    *(unsigned *)into = good ? (unsigned)n : 0;
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_pid(const struct roll_option *option, const char *text, void *into)
{
    unsigned long n;
    bool good = number(text, 1, INT_MAX, &n);
    (void)option;
    *(pid_t *)into = good ? (pid_t)n : 0;
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_descriptor(const struct roll_option *option, const char *text, void *into)
{
    unsigned long n;
    bool good = number(text, 0, INT_MAX, &n);
    (void)option;
    *(int *)into = good ? (int)n : -1;
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_ms(const struct roll_option *option, const char *text, void *into)
{
    unsigned long n;
    bool good = number(text, 1, 86400000, &n);
    (void)option;
    *(uint64_t *)into = good ? n * 1000000u : 0;
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_count(const struct roll_option *option, const char *text, void *into)
{
    unsigned long n;
    bool good = number(text, 1, UINT32_MAX, &n);
    (void)option;
    *(uint64_t *)into = good ? n : 0;
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int take_stacks(const struct roll_option *option, const char *text, void *into)
{
    bool is_auto = strcmp(text, "auto") == 0;
    (void)option;
    *(bool *)into = is_auto;
    return is_auto || strcmp(text, "ask") == 0 ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static int print_version(const struct roll_option *option, const char *text, void *into)
{
    (void)option, (void)text, (void)into;
    printf("rollcalld %s\n", ROLL_VERSION);
    return 0;
}

static void print_help(const struct roll_option *table)
{
    printf("usage: rollcalld [--standalone | --agent | --root | --relay] [OPTION]...\n"
           "Watches the ranks whose rings lie in DIR and says which rank keeps the others waiting, and why.\n\n");
    roll_options_print(table, false, 21, isatty(STDOUT_FILENO) == 1 ? roll_columns_wanted(STDOUT_FILENO) : 0);
    printf("\nExit status: 0 clean, 1 a finding, 2 usage, 3 something cannot be reached, read or bound.\n");
}

/* Which options which mode has a use for. One that is given to another mode is refused: whoever gives it believes that
 * it does something. An option without a row is for all. */
#define S (1u << ROLL_MODE_STANDALONE)
#define A (1u << ROLL_MODE_AGENT)
#define R (1u << ROLL_MODE_ROOT)
#define L (1u << ROLL_MODE_RELAY)
static const struct {
    const char *name;
    unsigned modes;
    const char *what; /* an option of this kind is: */
} uses[] = {
    {"dir", S | A | R, "for rings: it belongs to the root and its agents"},
    {"own-dir", S | A | R, "for rings: it belongs to the root and its agents"},
    {"if-none", S | A, "about rings: it belongs to agents"},
    {"linger", S | A | R, "about ranks: it belongs to the root and its agents"},
    {"parent", S | A | R, "about ranks: it belongs to the root and its agents"},
    {"connect", A | L, "where to send to: it belongs to --agent and --relay"},
    {"listen", S | R | L, "for who is connected to: it belongs to the root and to relays"},
    {"insecure", S | R | L, "about --listen: it belongs to the root and to relays"},
    {"policy", S | A | R, "for who judges or switches: it belongs to the root and its agents"},
    {"trace", S | A | R, "for who keeps calls: it belongs to the root and its agents"},
    {"trace-segment", S | A | R, "about --trace: it belongs to the root and its agents"},
    {"trace-limit", S | A | R, "about --trace: it belongs to the root and its agents"},
    {"trace-age", S | A | R, "about --trace: it belongs to the root and its agents"},
    {"json", S | R, "for who judges: it belongs to the root"},
    {"expect", S | R, "for who judges: it belongs to the root"},
    {"http", S | R, "for who judges: it belongs to the root"},
    {"incident-dir", S | R, "for who judges: it belongs to the root"},
    {"incident-keep", S | R, "about --incident-dir: it belongs to the root"},
    {"stacks", S | R, "for who judges: it belongs to the root"},
    {"digest", S | R, "the root's to decide, which tells agents and relays: it belongs to the root"},
    {"stream", S | R, "the root's to decide, which tells agents and relays: it belongs to the root"},
    {"case-ranks", S | R, "for who judges: it belongs to the root"},
    {"case-records", S | R, "for who judges: it belongs to the root"},
    {"stall-ms", S | R, "for who judges: it belongs to the root"},
    {"suspect-ms", S | R, "for who judges: it belongs to the root"},
};
#undef S
#undef A
#undef R
#undef L

static const char *mode_option(enum roll_mode mode)
{
    static const char *const names[] = {[ROLL_MODE_STANDALONE] = "standalone",
                                        [ROLL_MODE_AGENT] = "agent",
                                        [ROLL_MODE_ROOT] = "root",
                                        [ROLL_MODE_RELAY] = "relay"};
    return names[mode];
}

/* given: by the place of the option in the table. */
static int check_uses(const struct roll_option *table, const bool *given, enum roll_mode mode)
{
    for (size_t i = 0; table[i].name; i++) {
        for (size_t k = 0; given[i] && k < sizeof(uses) / sizeof(uses[0]); k++) {
            if (strcmp(table[i].name, uses[k].name) == 0 && (uses[k].modes >> mode & 1) == 0) {
                return usage("--%s is %s, not to --%s: leave it out", uses[k].name, uses[k].what, mode_option(mode));
            }
        }
    }
    return -1;
}

/* Options that say something about another one, or against it. */
static int check_pairs(const struct roll_options *o)
{
    if (!o->trace && (o->trace_segment || o->trace_limit || o->trace_age_ns)) {
        return usage("--trace-segment, --trace-limit and --trace-age need --trace DIR");
    }
    if (!o->incident && o->incident_keep) {
        return usage("--incident-keep needs --incident-dir DIR");
    }
    if (o->trace_limit && o->trace_limit < ROLL_SEGMENT_LIMIT_LEAST) {
        return usage("--trace-limit: at least 256K, room for four segments");
    }
    if (o->stream && (o->case_ranks || o->case_records)) {
        fprintf(stderr, "rollcalld: --case-ranks and --case-records are about digests: without use with --stream\n");
    }
    if (o->parent && !o->linger_s) {
        return usage("--parent needs --linger: it says until when not to exit");
    }
    return -1;
}

/* One process that has both the rings and --trace keeps what it was asked to keep, however many ranks there are: a root
 * that compares digests would have no records to write. */
static enum roll_root_compare compare_of(const struct roll_options *o)
{
    bool keeps = o->mode == ROLL_MODE_STANDALONE && o->trace;
    return o->stream || (keeps && !o->digest) ? ROLL_COMPARE_STREAM
           : o->digest                        ? ROLL_COMPARE_DIGEST
                                              : ROLL_COMPARE_AUTO;
}

/* Checks what each mode needs. */
static int check(struct roll_options *o)
{
    const char *env = getenv("ROLLCALL_DIR");
    bool agent = o->mode == ROLL_MODE_AGENT;
    o->compare = compare_of(o);
    if (!o->curve_dir) {
        env = getenv("ROLLCALL_CURVE_DIR");
        o->curve_dir = env && env[0] ? env : NULL;
    }
    bool relay = o->mode == ROLL_MODE_RELAY;
    if ((agent || relay) && !o->connect) {
        env = getenv("ROLLCALL_DAEMON");
        o->connect = env && env[0] ? env : NULL;
        if (!o->connect || !roll_net_endpoint_ok(o->connect)) {
            return usage("--%s needs --connect EP (or ROLLCALL_DAEMON): the root to send to",
                         agent ? "agent" : "relay");
        }
    }
    if (relay) {
        bool listens = o->listens > 0 && o->listens <= ROLL_RELAY_LISTEN_MAX;
        return listens
                   ? -1
                   : usage("--relay needs --listen EP, at most %d: where its agents connect to", ROLL_RELAY_LISTEN_MAX);
    }
    int code = check_pairs(o);
    if (code >= 0) {
        return code;
    }
    env = getenv("ROLLCALL_DIR");
    bool wants_dir = o->mode != ROLL_MODE_ROOT || o->listens == 0;
    if (o->dir[0] == '\0' && wants_dir) {
        if (env && env[0]) {
            snprintf(o->dir, sizeof(o->dir), "%s", env);
        } else if (roll_default_dir(o->dir, sizeof(o->dir)) != 0) {
            return usage("no default directory; name one with --dir");
        }
    }
    if (o->own_dir && o->dir[0] == '\0') {
        return usage("--own-dir needs --dir");
    }
    return -1;
}

/* given[i]: option i of the table was given. */
static int read_table(const struct roll_option *table, int argc, char **argv, bool *given)
{
    struct roll_option_reader read = {.table = table, .argc = argc, .argv = argv};
    enum roll_option_event event;
    while ((event = roll_options_next(&read)) == ROLL_OPTION_TAKEN) {
        given[read.option - table] = true;
        if (read.option->kind == ROLL_OPT_HELP) {
            print_help(table);
            return 0;
        }
    }
    switch (event) {
    case ROLL_OPTION_OVER:
        return read.operand < argc ? usage("unexpected argument '%s'", argv[read.operand]) : -1;
    case ROLL_OPTION_LACKS:
        return usage("option '%s' needs a value", argv[read.at]);
    case ROLL_OPTION_EXIT:
        return read.code;
    case ROLL_OPTION_WRONG: {
        const struct roll_option_own *own = read.option->value;
        return usage("--%s: '%s' is %s", read.option->name, read.word, own->wrong);
    }
    default: {
        char meant[320];
        return usage("unknown option '%s'%s", argv[read.at],
                     roll_options_meant(table, argv[read.at], meant, sizeof(meant)));
    }
    }
}

int roll_options_parse(int argc, char **argv, struct roll_options *out)
{
    struct command_line line = {.out = out};
    const struct roll_option table[] = {
        {"standalone", 0, ROLL_OPT_OWN, NULL, "agent and root in one process (default)",
         &(struct roll_option_own){take_mode, &line, NULL}},
        {"agent", 0, ROLL_OPT_OWN, NULL, "stream the rings of DIR to the root named by --connect",
         &(struct roll_option_own){take_mode, &line, NULL}},
        {"root", 0, ROLL_OPT_OWN, NULL, "take what agents send, judge it, answer consoles",
         &(struct roll_option_own){take_mode, &line, NULL}},
        {"relay", 0, ROLL_OPT_OWN, NULL, "between agents and root: add up digests, pass on the rest",
         &(struct roll_option_own){take_mode, &line, NULL}},
        {"dir", 0, ROLL_OPT_OWN, "DIR", "ring directory (default: ROLLCALL_DIR, else /dev/shm/rollcall-UID)",
         &(struct roll_option_own){take_dir, out, "no directory name"}},
        {"listen", 0, ROLL_OPT_OWN, "EP",
         "root, relay: tcp://ADDR:PORT or ipc://PATH, repeatable (default: ipc://DIR/root)",
         &(struct roll_option_own){take_listen, out, "not an endpoint; it looks like tcp://HOST:PORT or ipc:///PATH"}},
        {"connect", 0, ROLL_OPT_OWN, "EP", "agent, relay: the root, or a relay (default: ROLLCALL_DAEMON)",
         &(struct roll_option_own){take_connect, &out->connect,
                                   "not an endpoint; it looks like tcp://HOST:PORT or ipc:///PATH"}},
        {"policy", 0, ROLL_OPT_OWN, "P",
         "observe (default), advise (say the command that helps), auto (switch remedies)",
         &(struct roll_option_own){take_policy, out, "none of observe, advise, auto"}},
        {"trace", 0, ROLL_OPT_ANY, "DIR", "keep every call in DIR/JOB.RESTART*.rtrc, for rollcall analyze",
         &out->trace},
        {"trace-segment", 0, ROLL_OPT_OWN, "SIZE", "begin a new segment after SIZE bytes (K, M, G; default 64M)",
         &(struct roll_option_own){take_bytes, &out->trace_segment, "not a size from 64K, like 16M or 2G"}},
        {"trace-limit", 0, ROLL_OPT_OWN, "SIZE", "remove the oldest segments beyond SIZE bytes in all (default: none)",
         &(struct roll_option_own){take_bytes, &out->trace_limit, "not a size from 64K, like 16M or 2G"}},
        {"trace-age", 0, ROLL_OPT_OWN, "TIME", "remove segments older than TIME (s, m, h, d; default: never)",
         &(struct roll_option_own){take_age, &out->trace_age_ns, "not a time, like 90s, 12h or 7d"}},
        {"json", 0, ROLL_OPT_ANY, "FILE", "append verdicts to FILE, one JSON object a line", &out->json},
        {"expect", 0, ROLL_OPT_ANY, "FILE", "note where the job leaves what was rehearsed", &out->expect},
        {"http", 0, ROLL_OPT_ANY, "ADDR:PORT", "serve metrics and the web page (loopback only)", &out->http},
        {"curve-dir", 0, ROLL_OPT_ANY, "DIR", "keys made by rollcall keygen, for tcp (default: ROLLCALL_CURVE_DIR)",
         &out->curve_dir},
        {"insecure", 0, ROLL_OPT_FLAG, NULL, "no keys for tcp, beyond loopback either", &out->insecure},
        {"detach", 0, ROLL_OPT_FLAG, NULL, "go to the background once ready", &out->detach},
        {"no-supervise", 0, ROLL_OPT_FLAG, NULL, "be one process, which nobody starts again when it dies",
         &out->no_supervise},
        {"if-none", 0, ROLL_OPT_FLAG, NULL, "exit 0 quietly when DIR already has an agent", &out->if_none},
        {"linger", 0, ROLL_OPT_OWN, "SECONDS", "exit this long after the last live rank is gone (0 = never)",
         &(struct roll_option_own){take_seconds, &out->linger_s, "not a number of seconds"}},
        {"parent", 0, ROLL_OPT_OWN, "PID",
         "with --linger: not while PID, who started this, lives (implies --no-supervise)",
         &(struct roll_option_own){take_pid, &out->parent, "not a process id"}},
        {"own-dir", 0, ROLL_OPT_FLAG, NULL, "remove DIR at exit; log only warnings", &out->own_dir},
        {"ready-fd", 0, ROLL_OPT_OWN, "N", "write one line with the endpoint to descriptor N when ready",
         &(struct roll_option_own){take_descriptor, &out->ready_fd, "not a descriptor"}},
        {"stacks", 0, ROLL_OPT_OWN, "WHEN",
         "auto: take the stacks of the ranks that others wait for; ask (default): only when asked",
         &(struct roll_option_own){take_stacks, &out->stacks_auto, "none of auto, ask"}},
        {"incident-dir", 0, ROLL_OPT_ANY, "DIR",
         "write a bundle about the first proven finding of a run into DIR (rollcall incident)", &out->incident},
        {"incident-keep", 0, ROLL_OPT_OWN, "N", "at most N bundles of a run (default 3)",
         &(struct roll_option_own){take_count, &out->incident_keep, "not a number from 1"}},
        {"digest", 0, ROLL_OPT_FLAG, NULL,
         "compare calls by digests where they are made; ask for records on a difference (default from 128 ranks on)",
         &out->digest},
        {"stream", 0, ROLL_OPT_FLAG, NULL, "send every record to the root (default below 128 ranks)", &out->stream},
        {"case-ranks", 0, ROLL_OPT_OWN, "N",
         "with digests: on a difference, ask all of up to N ranks, of more those concerned (default 256)",
         &(struct roll_option_own){take_count, &out->case_ranks, "not a number from 1"}},
        {"case-records", 0, ROLL_OPT_OWN, "N", "with digests: ask them for about N records (default 1048576)",
         &(struct roll_option_own){take_count, &out->case_records, "not a number from 1"}},
        {"stall-ms", 0, ROLL_OPT_OWN, "N", "look into an incomplete operation after N ms (default 500)",
         &(struct roll_option_own){take_ms, &out->stall_ns, "not a number of milliseconds from 1"}},
        {"suspect-ms", 0, ROLL_OPT_OWN, "N",
         "wait N ms, or a multiple of it, before a suspicion is told (default 5000)",
         &(struct roll_option_own){take_ms, &out->suspect_ns, "not a number of milliseconds from 1"}},
        {"version", 0, ROLL_OPT_OWN, NULL, "print the version", &(struct roll_option_own){print_version, NULL, NULL}},
        {"help", 0, ROLL_OPT_HELP, NULL, "print this", NULL},
        {0},
    };
    _Static_assert(sizeof(table) / sizeof(table[0]) <= ROLL_OPTIONS_MAX + 1, "rows beyond the most would not count");
    memset(out, 0, sizeof(*out));
    out->ready_fd = -1;
    bool given[sizeof(table) / sizeof(table[0])] = {false};
    int code = read_table(table, argc, argv, given);
    code = code >= 0 ? code : check_uses(table, given, out->mode);
    return code >= 0 ? code : check(out);
}
