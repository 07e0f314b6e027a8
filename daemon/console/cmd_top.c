/*
 * cmd_top.c: rollcall top: a running job at a glance: full screen on a terminal, plain text with --once or in a pipe,
 * one JSON object with --json. The full screen keeps what it last heard and says how old it is when the root is gone.
 */
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/console/top/top_screen.h"
#include "daemon/console/top/top_view.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ROWS 256 /* with more ranks than these the root tells those as one that stand alike */

int cmd_top(const struct roll_command *self, int argc, char **argv);

struct source {
    roll_client_t *client; /* NULL after the root was lost */
    const struct roll_link_options *link;
};

/* Asks one question without printing anything on the terminal. NULL when there is no answer; `why` then says the
 * reason. */
static json_t *ask(struct source *s, json_t *query, char *why, size_t size)
{
    json_t *reply = NULL;
    if (s->link->job != NULL && json_object_get(query, "job") == NULL) {
        json_object_set_new(query, "job", json_string(s->link->job));
    }
    int err = roll_client_query(s->client, query, ROLL_CLIENT_TIMEOUT_MS, &reply);
    if (err != 0) {
        snprintf(why, size, "the root does not answer (%s)", roll_strerror(err));
        return NULL;
    }
    const char *refused = roll_json_text(reply, "error", NULL);
    if (refused != NULL) {
        snprintf(why, size, "%s", refused);
        json_decref(reply);
        return NULL;
    }
    return reply;
}

static void fetch(void *context, json_t **status, json_t **verdicts, char *why, size_t size)
{
    struct source *s = context;
    if (s->client == NULL && roll_client_new(s->link->daemon, s->link->curve, 500, &s->client, why, size) != 0) {
        return;
    }
    *status = ask(s, json_pack("{s:s,s:i}", "op", "status", "rows", ROWS), why, size);
    if (*status != NULL) {
        roll_top_sort(*status);
        json_t *query = json_pack("{s:s, s:i}", "op", "verdicts", "from", 0);
        json_t *reply = ask(s, roll_link_same_run(query, *status), why, size);
        *verdicts = reply != NULL ? json_incref(json_object_get(reply, "verdicts")) : NULL;
        json_decref(reply);
    } else {
        roll_client_destroy(&s->client); /* connect anew next time: another root may be there then */
    }
}

static int print_once(struct source *s, bool json, bool fold)
{
    json_t *status = NULL, *reply = NULL;
    json_t *query =
        json && !fold ? json_pack("{s:s}", "op", "status") : json_pack("{s:s,s:i}", "op", "status", "rows", ROWS);
    int code = roll_link_ask(s->client, s->link, query, &status);
    if (code == 0) {
        roll_top_sort(status);
    }
    if (code == 0 && json) {
        char time[ROLL_TIME_BYTES];
        uint64_t now = roll_now_real_ns();
        json_object_del(status, "names");
        json_object_set_new(status, "time", json_string(roll_time_text(now, time)));
        json_object_set_new(status, "time_ns", json_integer((json_int_t)now));
        roll_json_line(status, stdout);
    } else if (code == 0) {
        query = roll_link_same_run(json_pack("{s:s, s:i}", "op", "verdicts", "from", 0), status);
        code = roll_link_ask(s->client, s->link, query, &reply);
        struct winsize size = {0};
        size_t width = isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
        if (code == 0) {
            roll_top_print(status, json_object_get(reply, "verdicts"), roll_now_real_ns(), fold, width, stdout);
        }
    }
    json_decref(status);
    json_decref(reply);
    return code;
}

int cmd_top(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    bool once = false, json = false, fold = false;
    double interval = 1;
    const struct roll_option options[] = {
        {"once", '1', ROLL_OPT_FLAG, NULL, "print once, as plain text", &once},
        {"json", 0, ROLL_OPT_FLAG, NULL, "print once, one JSON object; without -g it lists all ranks", &json},
        {"group", 'g', ROLL_OPT_FLAG, NULL,
         "with --once: ranks that stand at the same place in one row; of 257 and more also with --json", &fold},
        {"interval", 'd', ROLL_OPT_SECONDS, "S", "seconds between two looks (default 1)", &interval},
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
    struct source source = {.link = &link};
    code = roll_link_open(&link, &source.client);
    if (code != 0) {
        return code;
    }
    static char
        where[ROLL_CLIENT_ENDPOINT_BYTES]; /* the job has chosen the root once, and not with each new connection */
    if (link.job != NULL && link.daemon == NULL) {
        snprintf(where, sizeof(where), "%s", roll_client_endpoint(source.client));
        link.daemon = where;
    }
    const char *term = getenv("TERM");
    bool screen = !once && !json && isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1 && term != NULL &&
                  strcmp(term, "dumb") != 0;
    if (screen && roll_top_screen(fetch, &source, interval) != 0) {
        roll_say("this terminal (TERM=%s) has no full screen; here is the plain text", term);
        screen = false;
    }
    if (!screen) {
        code = print_once(&source, json, fold);
    }
    roll_client_destroy(&source.client);
    return code;
}
