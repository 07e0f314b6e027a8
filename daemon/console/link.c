/* link.c: connects to the root and asks it, with the same messages and exit codes in every subcommand. */
#include "daemon/console/link.h"

#include "daemon/base/text.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define ROOTS_NAMED 16
/* Patience with each of several roots, which are asked what they watch: as much as with one. */
#define ROOT_WAIT_MS 3000

static void say_hosts(const json_t *run, FILE *out)
{
    const json_t *named = json_object_get(run, "hosts_named");
    uint64_t hosts = (uint64_t)roll_json_int(run, "hosts", 0);
    size_t shown = json_array_size(named) < 3 ? json_array_size(named) : 3;
    fprintf(out,
            hosts == 1       ? " on host "
            : hosts <= shown ? " on hosts "
                             : " on %llu hosts (",
            (unsigned long long)hosts);
    for (size_t i = 0; i < shown; i++) {
        const char *name = json_string_value(json_array_get(named, i));
        fprintf(out, "%s%s", i ? ", " : "", name ? name : "?");
    }
    fputs(hosts > shown ? ", \xe2\x80\xa6)" : "", out);
}

const char *roll_link_about(const json_t *run, char *out, size_t size)
{
    char many[48], time[ROLL_TIME_BYTES], age[32];
    uint64_t ranks = (uint64_t)roll_json_int(run, "ranks", 0), live = (uint64_t)roll_json_int(run, "ranks_live", 0);
    uint64_t since = (uint64_t)roll_json_int(run, "since_ns", 0), now = roll_now_real_ns();
    int64_t restart = roll_json_int(run, "restart", 0);
    FILE *text = fmemopen(out, size, "w");
    out[0] = '\0';
    if (text == NULL) {
        return out;
    }
    fprintf(text, "job %s", roll_json_text(run, "job", "?"));
    if (restart > 0) {
        fprintf(text, ", restart %lld", (long long)restart);
    }
    if (ranks == 0) {
        fputs(": no rank seen yet", text);
    } else {
        fprintf(text, ": rank%s %s", ranks == 1 ? "" : "s", roll_json_text(run, "ranks_text", "?"));
        if (ranks > 1) {
            fprintf(text, " (%s)", roll_plural(ranks, "rank", "ranks", many, sizeof(many)));
        }
        say_hosts(run, text);
    }
    if (live < ranks) {
        fprintf(text, live == 0 ? ", none running" : ", %s running", roll_count_text(live, many, sizeof(many)));
    }
    roll_time_text(since, time);
    time[sizeof("2026-11-20T13:01:02") - 1] = '\0'; /* seconds are enough here */
    fprintf(text, ", watched since %sZ (%s)", time, roll_span_text(now > since ? now - since : 0, age, sizeof(age)));
    fclose(text);
    out[size - 1] = '\0';
    roll_text_plain(out, strlen(out));
    return out;
}

/* "; KIND: --job A, --job B" for the names from `from` to `to`, the first NAMED of them. */
static void add_jobs(FILE *out, const char *kind, const json_t *jobs, size_t from, size_t to)
{
    enum { NAMED = 8 };
    size_t named = to - from > NAMED ? from + NAMED : to;
    for (size_t i = from; i < named; i++) {
        fprintf(out, "%s%s--job %s", i == from ? kind : ", ", i == from ? ": " : "",
                json_string_value(json_array_get(jobs, i)));
    }
    if (named < to) {
        fprintf(out, ", and %zu more (rollcall jobs)", to - named);
    }
}

const char *roll_link_others(const json_t *reply, char *out, size_t size)
{
    const json_t *jobs = json_object_get(reply, "other_jobs");
    size_t n = json_array_size(jobs), live = (size_t)roll_json_int(reply, "other_jobs_live", 0);
    live = live < n ? live : n;
    out[0] = '\0';
    FILE *text = n > 0 ? fmemopen(out, size, "w") : NULL;
    if (text == NULL) {
        return out;
    }
    bool runs = roll_json_int(json_object_get(reply, "run"), "ranks_live", 0) > 0;
    fputs(live > 0 ? "the newest job that runs here; "
          : runs   ? "the one job that runs here; "
                   : "the newest job here; ",
          text);
    add_jobs(text, "others that run", jobs, 0, live);
    add_jobs(text, live > 0 ? "; ended" : "others, ended", jobs, live, n);
    fclose(text);
    out[size - 1] = '\0';
    roll_text_plain(out, strlen(out));
    return out;
}

void roll_link_print_about(const json_t *reply)
{
    const json_t *run = json_object_get(reply, "run");
    char text[512], others[1024];
    if (run == NULL) {
        return;
    }
    roll_line_print(roll_link_about(run, text, sizeof(text)), stdout);
    roll_link_others(reply, others, sizeof(others));
    if (others[0] != '\0') {
        roll_line_print(others, stdout);
    }
    putchar('\n');
}

json_t *roll_link_same_run(json_t *query, const json_t *reply)
{
    const json_t *run = json_object_get(reply, "run");
    if (query != NULL && json_is_string(json_object_get(run, "job"))) {
        json_object_set(query, "job", json_object_get(run, "job"));
        json_object_set(query, "restart", json_object_get(run, "restart"));
    }
    return query;
}

/* What one of several roots says that it watches, owned; NULL: it does not answer. */
static json_t *runs_of(const struct roll_link_options *o, const char *endpoint)
{
    roll_client_t *client = NULL;
    json_t *reply = NULL;
    char why[512] = "";
    if (roll_client_new(endpoint, o->curve, ROOT_WAIT_MS, &client, why, sizeof(why)) != 0 ||
        roll_client_query(client, json_pack("{s:s}", "op", "runs"), ROOT_WAIT_MS, &reply) != 0) {
        reply = NULL;
    }
    roll_client_destroy(&client);
    json_t *runs = json_incref(json_object_get(reply, "runs"));
    json_decref(reply);
    return runs;
}

bool roll_link_names_job(const char *job, size_t same)
{
    const char *root = getenv("ROLLCALL_DAEMON");
    bool asks_all = root == NULL || root[0] == '\0'; /* else --job is a job of that root */
    return same == 1 && asks_all && job[0] != '\0' && job[0] != '-' &&
           job[strspn(job, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+@%:,/=")] == '\0';
}

/* Prints the jobs of one root, each behind the option that picks it. names: of all jobs, with how many have each. */
static void name_root(const char *endpoint, const json_t *runs, const json_t *names)
{
    char text[512];
    size_t i;
    json_t *run;
    json_array_foreach((json_t *)runs, i, run)
    {
        const char *job = roll_json_text(run, "job", "");
        if (roll_link_names_job(job, (size_t)roll_json_int(names, job, 0))) {
            roll_say("--job %s  %s", job, roll_link_about(run, text, sizeof(text)));
        } else {
            roll_say("--daemon %s  %s", endpoint, roll_link_about(run, text, sizeof(text)));
        }
    }
    if (json_array_size(runs) == 0) {
        roll_say("--daemon %s  %s", endpoint, runs == NULL ? "does not answer" : "no job: no rank has been seen");
    }
}

/* Prints several roots, each with its jobs: people know jobs by their names, and roots not at all. */
static void name_roots(const struct roll_link_options *o)
{
    static char endpoint[ROOTS_NAMED][ROLL_CLIENT_ENDPOINT_BYTES];
    size_t n = roll_client_live(endpoint, ROOTS_NAMED), named = n < ROOTS_NAMED ? n : ROOTS_NAMED, k;
    json_t *runs[ROOTS_NAMED], *names = json_object(), *run;
    for (size_t i = 0; i < named; i++) {
        runs[i] = runs_of(o, endpoint[i]);
        json_array_foreach(runs[i], k, run)
        {
            const char *job = roll_json_text(run, "job", "");
            json_object_set_new(names, job, json_integer(roll_json_int(names, job, 0) + 1));
        }
    }
    roll_say("%zu daemons of yours are running here; pick a job by its option, or a daemon by --daemon (or "
             "ROLLCALL_DAEMON):",
             n);
    for (size_t i = 0; i < named; i++) {
        name_root(endpoint[i], runs[i], names);
        json_decref(runs[i]);
    }
    json_decref(names);
    if (n > named) {
        roll_say("and %zu more", n - named);
    }
}

/* Of several roots that run here those that watch the job; `chosen` is the last of them. */
static size_t roots_of_job(const struct roll_link_options *o, char chosen[ROLL_CLIENT_ENDPOINT_BYTES])
{
    static char endpoint[ROOTS_NAMED][ROLL_CLIENT_ENDPOINT_BYTES];
    size_t n = roll_client_live(endpoint, ROOTS_NAMED), found = 0;
    for (size_t i = 0; i < n && i < ROOTS_NAMED; i++) {
        roll_client_t *client = NULL;
        json_t *reply = NULL;
        char why[512];
        if (roll_client_new(endpoint[i], o->curve, ROOT_WAIT_MS, &client, why, sizeof(why)) == 0 &&
            roll_client_query(client, json_pack("{s:s,s:s}", "op", "runs", "job", o->job), ROOT_WAIT_MS, &reply) == 0 &&
            json_array_size(json_object_get(reply, "runs")) > 0) {
            found++;
            memcpy(chosen, endpoint[i], sizeof(endpoint[i]));
        }
        json_decref(reply);
        roll_client_destroy(&client);
    }
    return found;
}

void roll_link_say_relay(const roll_client_t *client)
{
    const char *relay = roll_client_relay(client);
    if (relay != NULL) {
        roll_say("%s is a relay, which judges nothing; its root, %s, answers", relay, roll_client_endpoint(client));
    }
}

int roll_link_open(const struct roll_link_options *o, roll_client_t **client)
{
    char why[512] = "";
    int err = roll_client_new(o->daemon, o->curve, ROLL_CLIENT_TIMEOUT_MS, client, why, sizeof(why));
    if (err == ROLL_E_LIMIT && o->job != NULL) { /* several roots run here: the job says which */
        char chosen[ROLL_CLIENT_ENDPOINT_BYTES];
        size_t found = roots_of_job(o, chosen);
        if (found == 1) {
            err = roll_client_new(chosen, o->curve, ROLL_CLIENT_TIMEOUT_MS, client, why, sizeof(why));
        } else if (found > 1) {
            roll_say("job %s is watched by %zu of them", o->job, found);
        } else {
            roll_say("job %s is watched by none of them", o->job);
        }
    }
    if (err == 0) {
        roll_link_say_relay(*client);
        return 0;
    }
    if (err == ROLL_E_LIMIT) {
        name_roots(o);
        return ROLL_EXIT_UNREACHABLE;
    }
    roll_say("%s", why[0] != '\0' ? why : roll_strerror(err));
    return err == ROLL_E_ARG ? ROLL_EXIT_USAGE : ROLL_EXIT_UNREACHABLE;
}

int roll_link_ask(roll_client_t *client, const struct roll_link_options *o, json_t *query, json_t **reply)
{
    if (query != NULL && o->job != NULL && json_object_get(query, "job") == NULL) {
        json_object_set_new(query, "job", json_string(o->job));
    }
    int err = query == NULL ? ROLL_E_NOMEM : roll_client_query(client, query, ROLL_CLIENT_TIMEOUT_MS, reply);
    if (err != 0) {
        roll_say("%s: %s; is the daemon still running?", roll_client_endpoint(client), roll_strerror(err));
        return ROLL_EXIT_UNREACHABLE;
    }
    const char *refused = roll_json_text(*reply, "error", NULL);
    if (refused != NULL) {
        roll_say("%s: %s", roll_client_endpoint(client), refused);
        int code = json_is_true(json_object_get(*reply, "unavailable")) ? ROLL_EXIT_UNREACHABLE : ROLL_EXIT_USAGE;
        json_decref(*reply);
        *reply = NULL;
        return code;
    }
    return 0;
}
