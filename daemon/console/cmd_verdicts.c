/*
 * cmd_verdicts.c: rollcall verdicts: prints the verdicts so far, and with --follow those that come from now on.
 *
 * The exit code is 1 when a printed finding still stands, so that a script can use it as a condition. For people, a
 * verdict that a later one withdrew or replaced takes one line, and so do notes that say the same of other ranks,
 * layers and steps. As JSON every verdict is printed as it was given.
 */
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_tally.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"
#include "trace/rankset.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

int cmd_verdicts(const struct roll_command *self, int argc, char **argv);

static volatile sig_atomic_t over;

static void on_signal(int sig)
{
    (void)sig;
    over = 1;
}

static void print_one(const json_t *verdict, const json_t *list, bool json, unsigned style)
{
    if (json) {
        roll_json_line(verdict, stdout);
    } else {
        roll_verdict_print_of(stdout, verdict, roll_verdict_json_retired_by(list, verdict), style);
        fflush(stdout);
    }
}

/* Whether a note may be printed as one line with others. A verdict that withdraws an earlier one belongs to that one
 * alone. */
static bool may_be_folded(const json_t *verdict)
{
    return strcmp(roll_json_text(verdict, "certainty", ""), "note") == 0 &&
           !json_is_integer(json_object_get(verdict, "withdraws"));
}

static bool is_note_like(const json_t *verdict, const json_t *first)
{
    return may_be_folded(verdict) && may_be_folded(first) &&
           strcmp(roll_json_text(verdict, "code", ""), roll_json_text(first, "code", "")) == 0;
}

static void add_numbers(struct roll_rankset *set, const json_t *numbers)
{
    size_t i;
    json_t *one;
    json_array_foreach(numbers, i, one)
    {
        (void)roll_rankset_add(set, (uint32_t)json_integer_value(one));
    }
}

/* Prints, behind the first note of a code, how many more notes of this code there are and about which ranks. */
static void print_more(const json_t *list, size_t at)
{
    const json_t *first = json_array_get(list, at);
    struct roll_rankset ranks = {0}, layers = {0};
    char rank_text[128] = "", layer_text[128] = "";
    size_t more = 0;
    for (size_t i = at; i < json_array_size(list); i++) {
        const json_t *verdict = json_array_get(list, i);
        const json_t *layer = json_object_get(verdict, "layer");
        if (!is_note_like(verdict, first)) {
            continue;
        }
        more += i > at;
        add_numbers(&ranks, json_object_get(verdict, "culprits"));
        if (json_is_integer(layer)) {
            (void)roll_rankset_add(&layers, (uint32_t)json_integer_value(layer));
        }
    }
    (void)roll_rankset_format(&ranks, rank_text, sizeof(rank_text));
    (void)roll_rankset_format(&layers, layer_text, sizeof(layer_text));
    if (more > 0) {
        printf("          and %zu more like it%s%s%s%s (--json has them all)\n\n", more, *rank_text ? ": ranks " : "",
               rank_text, *layer_text ? ", layers " : "", layer_text);
    }
    roll_rankset_fini(&ranks);
    roll_rankset_fini(&layers);
}

/* Whether an earlier note has the same code and counts this one. `seen` holds the codes of all earlier notes. */
static bool is_folded(json_t *seen, const json_t *verdict)
{
    const char *code = roll_json_text(verdict, "code", "");
    bool note = may_be_folded(verdict);
    bool folded = note && json_object_get(seen, code) != NULL;
    if (note) {
        json_object_set_new(seen, code, json_true());
    }
    return folded;
}

/* Prints whose verdicts will come: those of all jobs of the root, or of the job that was named. */
static void print_followed(const json_t *reply, bool json)
{
    char text[512];
    size_t i;
    json_t *run;
    json_array_foreach(json_object_get(reply, "runs"), i, run)
    {
        if (!json) {
            roll_line_print(roll_link_about(run, text, sizeof(text)), stdout);
        }
    }
    fputs(!json && json_array_size(json_object_get(reply, "runs")) > 0 ? "\n" : "", stdout);
    fflush(stdout);
}

/* Subscribes, which does nothing at a root that has this subscriber already: a root that was started again meanwhile
 * has not, and would stay silent for good. */
static bool is_subscribed(roll_client_t *client, const struct roll_link_options *link, int64_t from)
{
    json_t *query = json_pack("{s:s, s:I}", "op", "subscribe", "from", (json_int_t)from), *reply = NULL;
    if (query != NULL && link->job != NULL) {
        json_object_set_new(query, "job", json_string(link->job));
    }
    bool is_done = query != NULL && roll_client_query(client, query, ROLL_CLIENT_TIMEOUT_MS, &reply) == 0 &&
                   json_object_get(reply, "error") == NULL;
    json_decref(reply);
    return is_done;
}

static void follow(roll_client_t *client, const struct roll_link_options *link, int64_t from, struct roll_tally *tally,
                   bool json, unsigned style)
{
    enum { TRIES = 3 }; /* a root that is started again is back in some seconds */
    struct sigaction act = {.sa_handler = on_signal};
    json_t *said = json_object();
    int failed = 0;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    while (!over && !ferror(stdout)) {
        json_t *verdict = NULL;
        int err = roll_client_next(client, 500, &verdict);
        if (err == 0 && roll_verdict_json_is_new(said, verdict)) {
            roll_tally_add_json(tally, verdict);
            print_one(verdict, NULL, json, style);
        }
        json_decref(verdict);
        failed = err == 0 || (err == ROLL_E_TIMEOUT && is_subscribed(client, link, from)) ? 0 : failed + 1;
        if (failed == 1 && !over) {
            roll_say("the root %s does not answer; waiting for it", roll_client_endpoint(client));
        } else if (failed == TRIES) {
            roll_say("the root %s has ended; no more verdicts will come", roll_client_endpoint(client));
            break;
        }
    }
    json_decref(said);
}

int cmd_verdicts(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    struct roll_tally tally = {.row = NULL};
    bool json = false, following = false, frames = false;
    int64_t from = 0;
    const struct roll_option options[] = {
        {"follow", 'f', ROLL_OPT_FLAG, NULL, "go on until the daemon ends, or Ctrl-C", &following},
        {"from", 0, ROLL_OPT_NUMBER, "N", "only from verdict number N on", &from},
        {"verbose", 'v', ROLL_OPT_FLAG, NULL, "every frame of a call: libraries and native code as well", &frames},
        {"json", 0, ROLL_OPT_FLAG, NULL, "one rollcall.verdict/1 object a line", &json},
        ROLL_LINK_OPTIONS(link),
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
    roll_client_t *client = NULL;
    code = roll_link_open(&link, &client);
    if (code != 0) {
        return code;
    }
    unsigned style = (roll_colour_wanted(STDOUT_FILENO) ? ROLL_VERDICT_COLOR : ROLL_VERDICT_PLAIN) |
                     ROLL_VERDICT_COLUMNS(roll_columns_wanted(STDOUT_FILENO)) |
                     (frames ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN) | ROLL_VERDICT_NUMBER;
    json_t *reply = NULL, *verdict;
    code = roll_link_ask(client, &link,
                         json_pack("{s:s, s:I}", "op", following ? "subscribe" : "verdicts", "from", (json_int_t)from),
                         &reply);
    if (code == 0 && following) {
        print_followed(reply, json);
        follow(client, &link, from, &tally, json, style);
    } else if (code == 0) {
        const json_t *list = json_object_get(reply, "verdicts");
        json_t *seen = json_object();
        size_t i;
        if (!json) {
            roll_link_print_about(reply);
            fputs(json_array_size(list) > 0 ? ""
                  : from > 1                ? "Nothing has been found from that number on.\n"
                                            : "Nothing has been found.\n",
                  stdout);
        }
        json_array_foreach(list, i, verdict)
        {
            bool folded = !json && is_folded(seen, verdict);
            roll_tally_add_json(&tally, verdict);
            if (!folded) {
                print_one(verdict, list, json, style);
            }
            if (!json && !folded) {
                print_more(list, i);
            }
        }
        json_decref(seen);
    }
    json_decref(reply);
    roll_client_destroy(&client);
    bool found = roll_tally_findings(&tally) > 0;
    roll_tally_fini(&tally);
    return code != 0 ? code : found ? ROLL_EXIT_FINDING : ROLL_EXIT_CLEAN;
}
