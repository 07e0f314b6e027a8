/*
 * files.c: the files of a bundle, each from one answer. What is read by machines is JSON; what is read at night is
 * text, by the same functions that print it on a terminal.
 */
#include "daemon/base/json.h"
#include "daemon/base/text.h"
#include "daemon/base/units.h"
#include "daemon/console/file.h"
#include "daemon/console/incident/incident.h"
#include "daemon/console/run/program.h"
#include "daemon/console/stacks_view.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_tally.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 100

/* A text that grows; written as a file of the bundle when it is whole. */
struct text {
    char *bytes;
    size_t used;
    FILE *out;
};

static bool begin(struct text *t)
{
    *t = (struct text){.bytes = NULL};
    t->out = open_memstream(&t->bytes, &t->used);
    return t->out != NULL;
}

static void end(struct roll_incident *i, struct text *t, const char *file, const char *what)
{
    bool whole = t->out != NULL && ferror(t->out) == 0;
    whole = t->out != NULL && fclose(t->out) == 0 && whole;
    if (!whole) {
        roll_bundle_left_out(&i->bundle, "%s: there is no memory for it", file);
    } else if (t->used > 0) {
        roll_bundle_text(&i->bundle, file, what, t->bytes, t->used);
    }
    free(t->bytes);
}

/* Names, labels and logs come from other processes. */
static void put(FILE *out, const char *text)
{
    for (const char *line = text; *line; line += *line == '\n') {
        size_t n = strcspn(line, "\n");
        char *copy = strndup(line, n);
        if (copy != NULL) {
            roll_text_plain(copy, n);
            fprintf(out, "%s\n", copy);
        }
        free(copy);
        line += n;
    }
}

static void put_ranks(FILE *out, const json_t *ranks)
{
    struct roll_rankset set = {0};
    char text[256] = "";
    size_t k;
    json_t *rank;
    json_array_foreach(ranks, k, rank)
    {
        (void)roll_rankset_add(&set, (uint32_t)json_integer_value(rank));
    }
    (void)roll_rankset_format(&set, text, sizeof(text));
    fprintf(out, "%s %s", roll_rankset_count(&set) == 1 ? "rank" : "ranks", text);
    roll_rankset_fini(&set);
}

/* verdicts, why, status */

static void write_verdicts(struct roll_incident *i)
{
    const json_t *list = json_object_get(i->verdicts, "verdicts");
    struct text json, text;
    json_t *verdict;
    size_t k;
    bool there = begin(&json);
    there = begin(&text) && there;
    json_array_foreach(there ? list : NULL, k, verdict)
    {
        (void)roll_json_line(verdict, json.out);
        (void)roll_verdict_print_of(text.out, verdict, roll_verdict_json_retired_by(list, verdict),
                                    ROLL_VERDICT_FRAMES);
    }
    if (text.out != NULL && json_array_size(list) == 0) {
        fputs("Nothing has been found.\n", text.out);
    }
    end(i, &text, "verdicts.txt", "what was found, for people: read this first");
    end(i, &json, "verdicts.ndjson", "the same, one rollcall.verdict/1 object a line");
}

static void write_why(struct roll_incident *i)
{
    struct text text;
    json_t *rank;
    size_t k;
    if (i->why == NULL || !begin(&text)) {
        return;
    }
    const json_t *groups = json_object_get(i->why, "groups");
    json_array_foreach(groups != NULL ? groups : json_object_get(i->why, "ranks"), k, rank)
    {
        fputs(k > 0 ? "\n" : "", text.out);
        roll_text_wrap(roll_json_text(rank, "text", "?"), 0, COLUMNS, text.out);
    }
    if (json_array_size(json_object_get(i->why, "ranks")) == 0) {
        fprintf(text.out, "%s\n", roll_json_text(i->why, "text", "no rank waits"));
    }
    end(i, &text, "why.txt", "why each waiting rank does not go on (rollcall why)");
}

static void write_json(struct roll_incident *i, const json_t *json, const char *file, const char *what)
{
    struct text text;
    if (json != NULL && begin(&text)) {
        (void)json_dumpf(json, text.out, JSON_INDENT(1));
        fputc('\n', text.out);
        end(i, &text, file, what);
    }
}

/* stacks */

static void write_stacks(struct roll_incident *i)
{
    static const struct {
        enum roll_stack_threads which;
        const char *title;
    } part[] = {{ROLL_STACK_MAIN, "main threads\n"}, {ROLL_STACK_OTHERS, "\nother threads\n"}};
    const struct roll_stacks_style style = {.one = "rank", .many = "ranks", .samples = 2};
    struct text text;
    json_t *answer;
    size_t k;
    if (json_array_size(i->stacks) == 0 || !begin(&text)) {
        return;
    }
    for (size_t p = 0; p < sizeof(part) / sizeof(part[0]); p++) {
        struct roll_stack_tree tree = {0};
        json_array_foreach(i->stacks, k, answer)
        {
            (void)roll_stack_tree_add(&tree, (uint32_t)roll_json_int(answer, "rank", 0),
                                      json_object_get(answer, "stack"), part[p].which);
        }
        roll_stack_tree_sort(&tree);
        if (tree.root.child != NULL) {
            fputs(part[p].title, text.out);
            roll_stacks_print(text.out, &tree, &style);
        }
        roll_stack_tree_fini(&tree);
    }
    json_array_foreach(i->stacks, k, answer)
    {
        static const char *const lack[] = {"error", "native_error", "python_error"};
        for (size_t l = 0; l < sizeof(lack) / sizeof(lack[0]); l++) {
            const char *why = roll_json_text(json_object_get(answer, "stack"), lack[l], NULL);
            if (why != NULL) {
                char line[320];
                snprintf(line, sizeof(line), "rank %lld: no %sstacks: %s", (long long)roll_json_int(answer, "rank", 0),
                         l == 1   ? "native "
                         : l == 2 ? "Python "
                                  : "",
                         why);
                put(text.out, line);
            }
        }
    }
    end(i, &text, "stacks.txt", "where in their code the ranks were, merged over ranks (rollcall stacks)");
    write_json(i, i->stacks, "stacks.json", "the same as the agents told it, rollcall.stack/1 by rank");
}

/* surroundings */

static void write_environment(struct roll_incident *i)
{
    struct text text;
    const char *name, *value;
    json_t *values, *ranks;
    if (json_object_size(i->variables) == 0 || !begin(&text)) {
        return;
    }
    fputs("# Only variables that concern NCCL, CUDA, PyTorch and launchers; (hidden): the value is a secret, by its "
          "name.\n",
          text.out);
    json_object_foreach(i->variables, name, values)
    {
        json_object_foreach(values, value, ranks)
        {
            char *line = NULL;
            if (asprintf(&line, "%s=%s", name, value) >= 0) {
                roll_text_plain(line, strlen(line));
                fprintf(text.out, "%s   # ", line);
                put_ranks(text.out, ranks);
                fputc('\n', text.out);
            }
            free(line);
        }
    }
    end(i, &text, "environment.txt", "the environment of the ranks concerned, without secrets");
}

static void put_software(FILE *out, const char *who, const json_t *software)
{
    char line[640];
    snprintf(line, sizeof(line), "%s: rollcall %s; %s; %s; %s", who, roll_json_text(software, "rollcall", "?"),
             roll_json_text(software, "kernel", "?"), roll_json_text(software, "libc", "?"),
             roll_json_text(software, "machine", "?"));
    put(out, line);
}

static void write_versions(struct roll_incident *i)
{
    struct text text;
    const char *name;
    json_t *value;
    if (!begin(&text)) {
        return;
    }
    put_software(text.out, "root", json_object_get(i->about, "software"));
    fprintf(text.out, "root: libzmq %s\n", roll_json_text(i->about, "libzmq", "?"));
    json_object_foreach(i->hosts, name, value)
    {
        put_software(text.out, name, json_object_get(value, "software"));
    }
    json_object_foreach(i->libraries, name, value)
    {
        char line[PATH_MAX + 64], release[64] = "";
        bool nccl = strstr(name, "libnccl") != NULL && roll_nccl_release(name, release, sizeof(release));
        snprintf(line, sizeof(line), "%s%s%s", name, nccl ? "   NCCL " : "", nccl ? release : "");
        roll_text_plain(line, strlen(line));
        fprintf(text.out, "library %s   # ", line);
        put_ranks(text.out, value);
        fputc('\n', text.out);
    }
    end(i, &text, "versions.txt",
        "rollcall, kernels, C libraries, libzmq; the files of NCCL and CUDA that the ranks have loaded");
}

/* A relay passes questions on, and answers none: to open it for that was rejected, because it would then have to know
 * who may ask. */
static void note_relays(struct roll_incident *i)
{
    const json_t *agent;
    char hosts[256] = "";
    size_t k, relays = 0, used = 0;
    json_array_foreach(json_object_get(i->status, "agents"), k, agent)
    {
        if (json_is_true(json_object_get(agent, "relay"))) {
            const char *host = roll_json_text(agent, "host", "?");
            bool fits = used + strlen(host) + 3 < sizeof(hosts);
            used += fits ? (size_t)snprintf(hosts + used, sizeof(hosts) - used, "%s%s", used ? ", " : "", host) : 0;
            relays++;
        }
    }
    if (relays > 0) {
        roll_bundle_left_out(&i->bundle,
                             "the logs of %zu relay%s (%s): a relay answers no question; its log is where its standard "
                             "error goes",
                             relays, relays == 1 ? "" : "s", hosts);
    }
}

static void write_logs(struct roll_incident *i)
{
    struct text text;
    const char *host;
    json_t *value;
    if (!begin(&text)) {
        return;
    }
    const char *root = roll_json_text(i->about, "log", "");
    fputs("== root\n", text.out);
    put(text.out, root);
    json_object_foreach(i->hosts, host, value)
    {
        char line[96];
        snprintf(line, sizeof(line), "\n== agent on %.64s", host);
        put(text.out, line);
        bool one = strcmp(roll_json_text(value, "log", ""), root) == 0; /* root and agent are one process */
        put(text.out, one ? "the same process as the root" : roll_json_text(value, "log", ""));
    }
    note_relays(i);
    end(i, &text, "logs.txt", "the newest lines of the logs of the root and of the agents concerned");
}

/* the trace */

static void write_trace(struct roll_incident *i)
{
    const struct roll_frame_settings settings = {.stall_ns = (uint64_t)roll_json_int(i->about, "stall_ns", 0),
                                                 .suspect_ns = (uint64_t)roll_json_int(i->about, "suspect_ns", 0),
                                                 .policy = (uint32_t)roll_json_int(i->about, "policy", 0)};
    uint64_t before = i->bundle.used;
    int err = roll_tails_write(&i->tails, &i->bundle, roll_json_text(i->run, "job", "job"),
                               (uint32_t)roll_json_int(i->run, "restart", 0), &settings, i->taken_ns);
    bool large = i->bundle.used > i->bundle.limit;
    if (err != 0 || large) {
        char path[2 * PATH_MAX + 16];
        snprintf(path, sizeof(path), "%s/trace", i->bundle.path);
        (void)roll_directory_remove(path);
        for (size_t n = json_array_size(i->bundle.files); n > 0 && i->bundle.used > before; n--) {
            json_t *file = json_array_get(i->bundle.files, n - 1);
            i->bundle.used -= (uint64_t)roll_json_int(file, "bytes", 0);
            (void)json_array_remove(i->bundle.files, n - 1);
        }
        roll_bundle_left_out(&i->bundle, "trace: %s",
                             large ? "there was no room for it (--bytes)" : roll_strerror(err));
    }
}

void roll_incident_write(struct roll_incident *i)
{
    write_verdicts(i); /* first: where there is little room, these have it */
    write_why(i);
    write_environment(i);
    write_versions(i);
    write_trace(i);
    write_stacks(i);
    write_json(i, i->status, "status.json", "ranks, communicators, agents, losses (" ROLL_STATUS_SCHEMA ")");
    write_logs(i);
    roll_incident_readme(i);
}

void roll_incident_fini(struct roll_incident *i)
{
    json_t *const owned[] = {i->status, i->verdicts, i->why, i->about, i->stacks, i->hosts, i->variables, i->libraries};
    for (size_t k = 0; k < sizeof(owned) / sizeof(owned[0]); k++) {
        json_decref(owned[k]);
    }
    roll_rankset_fini(&i->concerned);
    roll_rankset_fini(&i->asked);
    roll_rankset_fini(&i->got);
    roll_tails_fini(&i->tails);
    roll_client_destroy(&i->client);
}
