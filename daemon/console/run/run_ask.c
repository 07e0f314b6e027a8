/*
 * run_ask.c: what `run` asks its root beside the verdicts: how a job stands that --timeout is about to end, and where
 * the page is.
 *
 * A suspicion takes some seconds to become a verdict, and longer on a machine that is short of CPUs; a user who set a
 * shorter limit would be told nothing. The ranks that are waited for are told first: what those who wait say of
 * themselves explains the wait, and not its cause.
 */
#include "daemon/console/console.h"
#include "daemon/console/run/run.h"
#include "daemon/console/text.h"
#include "daemon/wire/client.h"

#define ASK_MS 1000 /* patience for each of the root's answers; the job stands still anyway */
#define NAMED  3u   /* ranks that are waited for and told of */

static json_t *ask(roll_client_t *client, const char *job, json_t *query)
{
    json_t *reply = NULL;
    if (query != NULL && job[0] != '\0') {
        json_object_set_new(query, "job", json_string(job));
    }
    return query != NULL && roll_client_query(client, query, ASK_MS, &reply) == 0 ? reply : NULL;
}

/* One explanation. False: a verdict has said it. */
static bool say_rank(const json_t *rank)
{
    const char *text = roll_json_text(rank, "text", "");
    if (text[0] == '\0' || json_is_integer(json_object_get(rank, "verdict"))) {
        return false;
    }
    roll_say("%s", text);
    return true;
}

/* The ranks for which the first waiting group waits, as the status has them; the first NAMED are told. */
static void say_awaited(roll_client_t *client, const char *job)
{
    struct roll_rankset awaited = {0};
    json_t *status = ask(client, job, json_pack("{s:s}", "op", "status")), *rank;
    size_t i;
    json_array_foreach(json_object_get(status, "ranks"), i, rank)
    {
        const char *text = roll_row_awaits(rank, "");
        struct roll_rankset more = {0};
        if (text[0] != '\0' && roll_rankset_parse(text, &more) == 0) {
            (void)roll_rankset_union(&awaited, &more);
        }
        roll_rankset_fini(&more);
    }
    json_decref(status);
    size_t n = roll_rankset_count(&awaited);
    for (size_t k = 0; k < n && k < NAMED; k++) {
        json_t *why =
            ask(client, job, json_pack("{s:s,s:I}", "op", "why", "rank", (json_int_t)roll_rankset_at(&awaited, k)));
        (void)say_rank(json_array_get(json_object_get(why, "ranks"), 0));
        json_decref(why);
    }
    if (n > NAMED) {
        roll_say("%zu ranks more are waited for", n - NAMED);
    }
    roll_rankset_fini(&awaited);
}

void roll_run_say_stand(const char *endpoint, const char *job)
{
    roll_client_t *client = NULL;
    char why[512];
    if (roll_client_new(endpoint, NULL, ASK_MS, &client, why, sizeof(why)) != 0) {
        return;
    }
    json_t *all = ask(client, job, json_pack("{s:s}", "op", "why"));
    const json_t *waits = json_array_get(json_object_get(all, "groups"), 0);
    waits = waits != NULL ? waits : json_array_get(json_object_get(all, "ranks"), 0);
    if (waits != NULL && !json_is_integer(json_object_get(waits, "verdict"))) {
        say_awaited(client, job);
        (void)say_rank(waits);
    }
    json_decref(all);
    roll_client_destroy(&client);
}

void roll_run_say_page(const char *endpoint)
{
    roll_client_t *client = NULL;
    char why[512];
    if (endpoint[0] == '\0' || roll_client_new(endpoint, NULL, ASK_MS, &client, why, sizeof(why)) != 0) {
        return;
    }
    json_t *reply = ask(client, "", json_pack("{s:s}", "op", "page"));
    int64_t port = roll_json_int(reply, "port", 0);
    if (port > 0) {
        roll_say("the page of this job is http://%s:%lld/ (`rollcall page` prints its user and password)",
                 roll_json_text(reply, "address", "127.0.0.1"), (long long)port);
    }
    json_decref(reply);
    roll_client_destroy(&client);
}
