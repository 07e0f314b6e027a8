/*
 * cmd_stacks.c: rollcall stacks [RANKS]: shows where in their code the ranks are, merged over ranks; with --pid, any
 * processes of this host.
 *
 * The daemon answers rank by rank as the agents do, so there is progress to show and a slow rank does not hide the
 * others. With
 * --pid there is no daemon: the same helper is started by the console itself.
 */
#include "daemon/base/clock.h"
#include "daemon/console/link.h"
#include "daemon/console/place.h"
#include "daemon/console/stacks_view.h"
#include "daemon/console/text.h"
#include "daemon/stack/stack_run.h"
#include "trace/err.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define POLL_MS     20
#define PROGRESS_NS (500 * ROLL_MS)
#define WAIT_S      10.0
#define SAMPLES_MAX 16
#define MS_MAX      10000

int cmd_stacks(const struct roll_command *self, int argc, char **argv);

struct stacks {
    struct roll_link_options link;
    bool json, native, python, pids;
    uint32_t samples;
    int64_t interval_ms;
    double timeout_s;
    const char *threads;
    enum roll_stack_threads which;
    json_t *answers; /* [{"rank","host","stack"}], owned */
    size_t wanted;
    uint64_t begin_ns;
    bool showed;
};

/* progress */

static void progress(struct stacks *s, bool over)
{
    bool shown = !s->json && isatty(STDERR_FILENO) == 1;
    if (over && s->showed) {
        fprintf(stderr, "\r\033[K");
    } else if (!over && shown && roll_mono_ns() - s->begin_ns > PROGRESS_NS) {
        s->showed = true;
        fprintf(stderr, "\r\033[Kstacks: %zu of %zu", json_array_size(s->answers), s->wanted);
        fflush(stderr);
    }
}

/* from the daemon */

static json_t *first_query(const struct stacks *s, const char *ranks)
{
    json_t *query = json_pack("{s:s, s:i, s:I, s:b, s:b, s:I}", "op", "stacks", "samples", (int)s->samples,
                              "interval_ms", (json_int_t)s->interval_ms, "native", (int)s->native, "python",
                              (int)s->python, "timeout_ms", (json_int_t)(s->timeout_s * 1000));
    if (query && ranks) {
        json_object_set_new(query, "ranks", json_string(ranks));
    }
    return query;
}

static int ask_daemon(struct stacks *s, const char *ranks)
{
    roll_client_t *client = NULL;
    json_t *reply = NULL;
    int code = roll_link_open(&s->link, &client);
    if (code == 0) {
        code = roll_link_ask(client, &s->link, first_query(s, ranks), &reply);
    }
    json_int_t id = roll_json_int(reply, "id", 0);
    s->wanted = (size_t)roll_json_int(reply, "count", 0);
    bool done = code != 0;
    /* The root gives up by itself; this is for a root that does not. */
    uint64_t end = roll_mono_ns() + (uint64_t)((s->timeout_s + 5) * 1e9);
    while (!done && roll_mono_ns() < end) {
        json_decref(reply);
        reply = NULL;
        code = roll_link_ask(
            client, &s->link,
            json_pack("{s:s, s:I, s:I}", "op", "stacks", "id", id, "from", (json_int_t)json_array_size(s->answers)),
            &reply);
        if (code != 0) {
            break;
        }
        json_array_extend(s->answers, json_object_get(reply, "answers"));
        done = json_is_true(json_object_get(reply, "done"));
        progress(s, done);
        if (!done && json_array_size(json_object_get(reply, "answers")) == 0) {
            poll(NULL, 0, POLL_MS);
        }
    }
    progress(s, true);
    json_decref(reply);
    roll_client_destroy(&client);
    return code;
}

/* of processes here */

static int read_pids(const struct roll_command *self, struct stacks *s, int argc, char **argv, pid_t *pid)
{
    for (int i = 0; i < argc; i++) {
        char *end;
        long n = strtol(argv[i], &end, 10);
        if (argv[i][0] < '1' || argv[i][0] > '9' || *end != '\0' || n > (1 << 24) || n == getpid()) {
            return roll_usage(self, "'%s' is not the number of a process", argv[i]);
        }
        for (size_t k = 0; k < s->wanted; k++) {
            if (pid[k] == n) {
                return roll_usage(self, "pid %ld is named twice", n);
            }
        }
        pid[s->wanted++] = (pid_t)n;
    }
    return 0;
}

static int ask_helper(const struct roll_command *self, struct stacks *s, int argc, char **argv)
{
    struct roll_place place;
    char why[256], rings[PATH_MAX];
    pid_t *pid = calloc((size_t)argc + 1, sizeof(*pid));
    roll_place_find(&place);
    int code = pid && argc > 0 ? read_pids(self, s, argc, argv, pid)
                               : roll_usage(self, "--pid needs the numbers of processes");
    if (code == 0 && place.daemon[0] == '\0') {
        roll_say("rollcalld, which reads the stacks, was not found beside this program; build or install it");
        code = ROLL_EXIT_UNREACHABLE;
    }
    if (code != 0) {
        free(pid);
        return code;
    }
    struct roll_stack_ask ask = {
        .helper = place.daemon,
        .pid = pid,
        .pids = s->wanted,
        .samples = s->samples,
        .interval_ms = (unsigned)s->interval_ms,
        .native = s->native,
        .python = s->python,
        .dir = roll_place_rings(rings, sizeof(rings)) == 0 ? rings : NULL,
        .timeout_ns = (uint64_t)(s->timeout_s * 1e9),
    };
    roll_stack_run_t *run = roll_stack_run_new(&ask, why, sizeof(why));
    free(pid);
    if (!run) {
        roll_say("%s", why);
        return ROLL_EXIT_UNREACHABLE;
    }
    while (!roll_stack_run_over(run)) {
        struct pollfd p = {roll_stack_run_fd(run), POLLIN, 0};
        json_t *stack;
        poll(&p, 1, POLL_MS);
        while ((stack = roll_stack_run_next(run, roll_mono_ns())) != NULL) {
            json_array_append_new(s->answers, json_pack("{s:I, s:o}", "rank",
                                                        (json_int_t)roll_json_int(stack, "pid", 0), "stack", stack));
        }
        progress(s, false);
    }
    progress(s, true);
    roll_stack_run_destroy(&run);
    return 0;
}

/* telling */

static int build(const struct stacks *s, enum roll_stack_threads which, struct roll_stack_tree *tree)
{
    size_t i;
    json_t *answer;
    int err = 0;
    json_array_foreach(s->answers, i, answer)
    {
        int rc = roll_stack_tree_add(tree, (uint32_t)roll_json_int(answer, "rank", 0), json_object_get(answer, "stack"),
                                     which);
        err = rc == ROLL_E_NOMEM ? rc : err;
    }
    roll_stack_tree_sort(tree);
    return err;
}

static void print_part(const struct stacks *s, enum roll_stack_threads which, const char *title,
                       const struct roll_stacks_style *style)
{
    struct roll_stack_tree tree = {0};
    build(s, which, &tree);
    if (tree.root.child) {
        if (title) {
            printf("%s\n", title);
        }
        roll_stacks_print(stdout, &tree, style);
    }
    roll_stack_tree_fini(&tree);
}

/* Prints one line for each reason why ranks, or the native or Python half of their stacks, are missing. */
static void print_reasons(const struct stacks *s, const char *key, const char *what, const char *noun)
{
    size_t n = json_array_size(s->answers);
    bool *said = calloc(n ? n : 1, sizeof(*said));
    for (size_t i = 0; said && i < n; i++) {
        const char *why = roll_json_text(json_object_get(json_array_get(s->answers, i), "stack"), key, NULL);
        struct roll_rankset set = {0};
        char text[256];
        for (size_t k = i; why && !said[i] && k < n; k++) {
            const json_t *other = json_array_get(s->answers, k);
            const char *theirs = roll_json_text(json_object_get(other, "stack"), key, NULL);
            if (theirs && strcmp(why, theirs) == 0) {
                said[k] = k != i;
                roll_rankset_add(&set, (uint32_t)roll_json_int(other, "rank", 0));
            }
        }
        if (set.used > 0) {
            roll_rankset_format(&set, text, sizeof(text));
            fflush(stdout);
            roll_say("%s%s %s: %s%s", noun, roll_rankset_count(&set) == 1 ? "" : "s", text, what, why);
        }
        roll_rankset_fini(&set);
    }
    free(said);
}

static size_t failed(const struct stacks *s)
{
    size_t i, n = 0;
    json_t *answer;
    json_array_foreach(s->answers, i, answer)
    {
        n += json_object_get(json_object_get(answer, "stack"), "error") != NULL;
    }
    return n + (s->wanted > json_array_size(s->answers) ? s->wanted - json_array_size(s->answers) : 0);
}

static void print_text(const struct stacks *s)
{
    struct winsize size;
    struct roll_stacks_style style = {
        .one = s->pids ? "process" : "rank", .many = s->pids ? "processes" : "ranks", .samples = s->samples};
    style.colour = roll_colour_wanted(STDOUT_FILENO);
    style.width = isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
    if (s->which == ROLL_STACK_ALL) {
        print_part(s, ROLL_STACK_MAIN, "main threads", &style);
        print_part(s, ROLL_STACK_OTHERS, "\nother threads", &style);
    } else {
        print_part(s, s->which, NULL, &style);
    }
    const char *noun = s->pids ? "pid" : "rank";
    print_reasons(s, "error", "no stacks: ", noun);
    if (failed(s) < json_array_size(s->answers)) {
        print_reasons(s, "native_error", "no native stacks: ", noun);
        print_reasons(s, "python_error", "no Python stacks: ", noun);
    }
    size_t i;
    json_t *answer;
    json_array_foreach(s->answers, i, answer)
    {
        json_int_t left = roll_json_int(json_object_get(answer, "stack"), "left_out", 0);
        if (left > 0) {
            roll_say("%s %lld: %lld threads were left out, because there was no time for more", noun,
                     (long long)roll_json_int(answer, "rank", 0), (long long)left);
        }
    }
    if (json_array_size(s->answers) < s->wanted) {
        roll_say("%zu of %zu did not answer in time", s->wanted - json_array_size(s->answers), s->wanted);
    }
}

static int print_json(const struct stacks *s)
{
    struct roll_stack_tree main_tree = {0}, others = {0};
    build(s, s->which == ROLL_STACK_ALL ? ROLL_STACK_MAIN : s->which, &main_tree);
    if (s->which == ROLL_STACK_ALL) {
        build(s, ROLL_STACK_OTHERS, &others);
    }
    json_t *out =
        json_pack("{s:s, s:s, s:i, s:I, s:i, s:s, s:o, s:o, s:O}", "schema", "rollcall.stacks/1", "of",
                  s->pids ? "pids" : "ranks", "samples", (int)s->samples, "interval_ms", (json_int_t)s->interval_ms,
                  "failed", (int)failed(s), "threads", s->threads, "main", roll_stack_tree_json(&main_tree), "others",
                  roll_stack_tree_json(&others), "answers", s->answers);
    int err = out ? roll_json_line(out, stdout) : ROLL_E_NOMEM;
    json_decref(out);
    roll_stack_tree_fini(&main_tree);
    roll_stack_tree_fini(&others);
    return err;
}

/* command */

static int check(const struct roll_command *self, struct stacks *s)
{
    if (roll_stack_threads_by_name(s->threads, &s->which) != 0) {
        return roll_usage(self, "--threads: '%s' is none of all, main, nccl", s->threads);
    }
    if (s->samples > SAMPLES_MAX || s->interval_ms > MS_MAX) {
        return roll_usage(self, "at most %d samples, %d ms apart", SAMPLES_MAX, MS_MAX);
    }
    if (!s->native && !s->python) { /* neither was asked for alone: show both */
        s->native = s->python = true;
    }
    s->timeout_s += s->samples * (double)s->interval_ms / 1000;
    return 0;
}

int cmd_stacks(const struct roll_command *self, int argc, char **argv)
{
    struct stacks s = {.samples = 3, .interval_ms = 200, .timeout_s = WAIT_S, .threads = "all"};
    const struct roll_option options[] = {
        {"samples", 'n', ROLL_OPT_COUNT, "N", "look so many times (default 3)", &s.samples},
        {"interval", 'i', ROLL_OPT_NUMBER, "MS", "milliseconds between two looks (default 200)", &s.interval_ms},
        {"threads", 't', ROLL_OPT_TEXT, "WHICH", "all (default), main, or nccl: those inside NCCL", &s.threads},
        {"native", 0, ROLL_OPT_FLAG, NULL, "native frames only, the interpreter's own included", &s.native},
        {"python", 0, ROLL_OPT_FLAG, NULL, "Python frames only", &s.python},
        {"pid", 'p', ROLL_OPT_FLAG, NULL, "operands are processes of this host; no daemon is asked", &s.pids},
        {"timeout", 0, ROLL_OPT_SECONDS, "SECONDS", "give up SECONDS after the last sample (default 10)", &s.timeout_s},
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object", &s.json},
        ROLL_LINK_OPTIONS(s.link),
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (!s.pids && argc - first > 1) {
        return roll_usage(self, "one set of ranks, such as 0-3,7");
    }
    struct roll_rankset ranks = {0};
    if (!s.pids && argc > first && (roll_rankset_parse(argv[first], &ranks) != 0 || ranks.used == 0)) {
        roll_rankset_fini(&ranks);
        return roll_usage(self, "'%s' is not a set of ranks, such as 0-3,7", argv[first]);
    }
    roll_rankset_fini(&ranks);
    code = check(self, &s);
    if (code != 0) {
        return code;
    }
    s.begin_ns = roll_mono_ns();
    s.answers = json_array();
    code =
        s.pids ? ask_helper(self, &s, argc - first, argv + first) : ask_daemon(&s, argc > first ? argv[first] : NULL);
    if (code == 0 && s.json) {
        code = print_json(&s) == 0 ? 0 : ROLL_EXIT_UNREACHABLE;
    } else if (code == 0) {
        print_text(&s);
    }
    if (code == 0 && failed(&s) > 0) {
        code = failed(&s) >= s.wanted ? ROLL_EXIT_UNREACHABLE : ROLL_EXIT_INCOMPLETE;
    }
    json_decref(s.answers);
    return code;
}
