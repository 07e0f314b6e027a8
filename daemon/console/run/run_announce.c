/*
 * run_announce.c: the thread that prints verdicts as they come and asks for the root's last verdicts and the summary
 * when the job is over.
 *
 * A thread of its own, because the client waits inside its calls (ZeroMQ) while the main thread has to relay
 * output and reap ranks. The two threads share one structure. Each flag below goes one way; everything that the main
 * thread reads at the end is published by the write to done_fd, after which this thread touches nothing any more.
 */
#include "daemon/console/console.h"
#include "daemon/console/run/run.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_tally.h"
#include "daemon/verdict/verdict_text.h"
#include "daemon/wire/client.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NOTES_SHOWN 8 /* notes of one code that are printed: a large job has one for each rank and layer */
#define DRAIN_MS    10000
#define LATE_MS     1000 /* patience for verdicts that the root still sends after its answer */
#define AGAIN_LOOKS 100  /* empty looks before the root is asked again whether it knows us: 5 s */
#define PAUSE_US    200000
#define LOOK_MS     50 /* how soon the end of the job is noticed; a verdict wakes the thread at once */

struct roll_announcer {
    pthread_t thread;
    char endpoint[256], job[ROLL_JOB_BYTES];
    FILE *json; /* borrowed */
    bool quiet;
    unsigned style, line_style;  /* enum roll_verdict_style; line_style: of notes */
    atomic_bool finish, give_up; /* set by the main thread, read by this one */
    atomic_bool ended;           /* set by the main thread: the job did not end by itself, we have ended it */
    atomic_bool found;           /* set by this thread, once `waiting` is written: the main thread reads it then */
    char waiting[128];           /* the ranks that wait for what the first finding says; "" = none are known */
    int done_fd;
    uint64_t seen; /* verdicts printed */
    struct roll_tally tally;
    json_t *heard;   /* owned; what was heard, for roll_verdict_json_is_new */
    json_t *notes;   /* owned; number of notes of each code */
    json_t *summary; /* owned; NULL until the root has sent it */
    json_t *did;     /* owned; what the run did, likewise */
};

/* Whether a note is left out because many like it were printed. The first that is left out is replaced by a line that
 * says so; a verdict that withdraws another is always printed. */
static bool is_folded(struct roll_announcer *a, const json_t *verdict)
{
    const char *code = roll_json_text(verdict, "code", "");
    if (roll_verdict_json_is_finding(verdict) || json_is_integer(json_object_get(verdict, "withdraws"))) {
        return false;
    }
    if (atomic_load(&a->ended) && strcmp(code, "rank-dead") == 0) {
        return true;
    }
    a->notes = a->notes ? a->notes : json_object();
    int64_t before = roll_json_int(a->notes, code, 0);
    json_object_set_new(a->notes, code, json_integer(before + 1));
    if (before == NOTES_SHOWN) {
        roll_say("further notes '%s' are not printed: `rollcall verdicts` and the file of --json have them", code);
    }
    return before >= NOTES_SHOWN;
}

static void announce(struct roll_announcer *a, const json_t *verdict)
{
    bool note = !roll_verdict_json_is_finding(verdict);
    a->seen++;
    roll_tally_add_json(&a->tally, verdict);
    if (!a->quiet && !is_folded(a, verdict)) {
        (note ? roll_verdict_print_line : roll_verdict_print)(stderr, verdict, note ? a->line_style : a->style);
        fflush(stderr);
    }
    if (!note && !atomic_load(&a->found)) {
        snprintf(a->waiting, sizeof(a->waiting), "%s", roll_json_text(verdict, "waiting_text", ""));
        atomic_store(&a->found, true);
    }
    if (a->json != NULL && roll_json_line(verdict, a->json) != 0) {
        roll_say("cannot write the verdicts to the file of --json any more; they go on here");
        a->json = NULL;
    }
}

static bool announce_next(struct roll_announcer *a, roll_client_t *client, int timeout_ms)
{
    json_t *verdict = NULL;
    if (roll_client_next(client, timeout_ms, &verdict) != 0) {
        return false;
    }
    if (roll_verdict_json_is_new(a->heard, verdict)) {
        announce(a, verdict);
    }
    json_decref(verdict);
    return true;
}

/* A query about our job; it names the job, because others may use the root as well. */
static json_t *query(const struct roll_announcer *a, const char *op)
{
    json_t *q = json_pack("{s:s}", "op", op);
    if (q != NULL && a->job[0] != '\0') {
        json_object_set_new(q, "job", json_string(a->job));
    }
    return q;
}

/*
 * Everything recorded is judged before the root answers a drain, and it pushes the verdicts before the answer. The
 * engine is told that no more will come ("final") only where the root is ours: elsewhere other nodes may still be
 * running.
 */
static void last_word(struct roll_announcer *a, roll_client_t *client)
{
    json_t *reply = NULL, *drain = query(a, "drain");
    json_object_set_new(drain, "timeout_ms", json_integer(DRAIN_MS));
    json_object_set_new(drain, "final", json_boolean(a->job[0] == '\0'));
    if (roll_client_query(client, drain, DRAIN_MS + 1000, &reply) != 0) {
        return;
    }
    if (json_object_get(reply, "error")) {
        json_decref(reply);
        return;
    }
    const json_t *summary = json_object_get(reply, "summary");
    uint64_t verdicts = (uint64_t)roll_json_int(summary, "verdicts", 0);
    while (announce_next(a, client, a->seen < verdicts ? LATE_MS : 0)) {
    }
    a->summary = json_is_object(summary) ? json_deep_copy(summary) : json_pack("{s:i}", "ranks", 0);
    a->did = json_deep_copy(json_object_get(reply, "seen"));
    if (json_is_false(json_object_get(reply, "drained"))) {
        json_object_set_new(a->summary, "undrained", json_true());
    }
    json_decref(reply);
}

/* Subscribes to the verdicts of our job. A root that has the subscription does nothing; one that was killed and started
 * again meanwhile has not. */
static bool subscribe(const struct roll_announcer *a, roll_client_t *client, bool *is_relay)
{
    json_t *reply = NULL;
    bool is_answered = roll_client_query(client, query(a, "subscribe"), ROLL_CLIENT_TIMEOUT_MS, &reply) == 0;
    const char *refused = json_string_value(json_object_get(reply, "error"));
    if (refused && !*is_relay) { /* it names its root */
        roll_say("%s: %s; the job runs on, its verdicts are not shown here", a->endpoint, refused);
    }
    *is_relay = *is_relay || refused;
    is_answered = is_answered && !refused;
    json_decref(reply);
    return is_answered;
}

/* Connects and subscribes. A root that does not answer may still come, or come again: it is asked until the job is
 * over, each time for as long as an answer may take. */
static bool join_root(const struct roll_announcer *a, roll_client_t **client, bool *is_relay)
{
    char why[512] = "";
    for (bool told = false;; told = true) {
        int err = *client ? 0 : roll_client_new(a->endpoint, NULL, ROLL_CLIENT_TIMEOUT_MS, client, why, sizeof(why));
        const char *relay = err == 0 ? roll_client_relay(*client) : NULL;
        if (err == 0 && subscribe(a, *client, is_relay)) {
            if (relay != NULL && !a->quiet) {
                roll_say("%s is a relay; its root, %s, tells the verdicts", relay, roll_client_endpoint(*client));
            }
            return true;
        }
        bool hopeless = *is_relay || (err != 0 && err != ROLL_E_UNREACHABLE);
        if (hopeless && err != 0) {
            roll_say("%s; the job runs on, its verdicts are not shown here", why);
        } else if (!hopeless && !told) {
            roll_say("the job runs on, its verdicts are shown once the root answers (%s)",
                     err != 0 ? why : "it does not yet");
        }
        if (hopeless || atomic_load(&a->finish) || atomic_load(&a->give_up)) {
            return false;
        }
        usleep(PAUSE_US); /* who answers at once, and not as a root does, is not asked all the time */
    }
}

static void *run(void *arg)
{
    struct roll_announcer *a = arg;
    roll_client_t *client = NULL;
    uint64_t one = 1;
    bool is_relay = false;

    if (!join_root(a, &client, &is_relay)) {
        goto out;
    }
    for (int looks = 1; !atomic_load(&a->finish) && !atomic_load(&a->give_up); looks++) {
        looks = announce_next(a, client, LOOK_MS) ? 0 : looks;
        if (looks % AGAIN_LOOKS == 0 && looks > 0) {
            (void)subscribe(a, client, &is_relay); /* nothing to do where the root is away: it is asked again */
        }
    }
    if (!atomic_load(&a->give_up)) {
        last_word(a, client);
    }
out:
    roll_client_destroy(&client);
    /* The byte stays in the pipe, however late the main thread reads it. */
    (void)!write(a->done_fd, &one, sizeof(one));
    return NULL;
}

roll_announcer_t *roll_announcer_new(const char *endpoint, const char *job, FILE *json, bool quiet, bool frames)
{
    struct roll_announcer *a = calloc(1, sizeof(*a));
    sigset_t all, old;
    if (a == NULL) {
        return NULL;
    }
    snprintf(a->endpoint, sizeof(a->endpoint), "%s", endpoint);
    snprintf(a->job, sizeof(a->job), "%s", job);
    a->json = json;
    a->heard = json_object();
    a->quiet = quiet;
    unsigned colour = roll_colour_wanted(STDERR_FILENO) ? ROLL_VERDICT_COLOR : ROLL_VERDICT_PLAIN;
    a->style = colour | ROLL_VERDICT_COLUMNS(roll_columns_wanted(STDERR_FILENO)) |
               (frames ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN);
    a->line_style = colour | ROLL_VERDICT_COLUMNS(roll_columns_terminal(STDERR_FILENO));
    a->done_fd = eventfd(0, EFD_CLOEXEC);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = a->done_fd < 0 ? -1 : pthread_create(&a->thread, NULL, run, a);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err != 0) {
        if (a->done_fd >= 0) {
            close(a->done_fd);
        }
        json_decref(a->heard);
        free(a);
        return NULL;
    }
    return a;
}

int roll_announcer_finish(roll_announcer_t *a)
{
    atomic_store(&a->finish, true);
    return a->done_fd;
}

void roll_announcer_ended(roll_announcer_t *announcer)
{
    atomic_store(&announcer->ended, true);
}

void roll_announcer_give_up(roll_announcer_t *a)
{
    atomic_store(&a->give_up, true);
}

const char *roll_announcer_waiting(const roll_announcer_t *a)
{
    return atomic_load(&a->found) ? a->waiting : NULL;
}

const json_t *roll_announcer_summary(const roll_announcer_t *a)
{
    return a->summary;
}

const json_t *roll_announcer_did(const roll_announcer_t *a)
{
    return a->did;
}

uint64_t roll_announcer_findings(const roll_announcer_t *a)
{
    return roll_tally_findings(&a->tally);
}

void roll_announcer_destroy(roll_announcer_t **announcer)
{
    struct roll_announcer *a = *announcer;
    *announcer = NULL;
    if (a == NULL) {
        return;
    }
    atomic_store(&a->give_up, true);
    pthread_join(a->thread, NULL);
    close(a->done_fd);
    json_decref(a->summary);
    json_decref(a->did);
    roll_tally_fini(&a->tally);
    json_decref(a->notes);
    json_decref(a->heard);
    free(a);
}
