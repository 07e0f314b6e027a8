/*
 * cmd_verdicts.c: rollcall verdicts: what has been found so far, and with --follow what is found from now on.
 *
 * Exit code 1 when there was a finding among what was printed, so that it can stand in a script's condition.
 */
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/verdict_text.h"
#include "trace/err.h"

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

static bool print_one(const json_t *verdict, bool json, bool colour)
{
    if (json) {
        roll_json_line(verdict, stdout);
    } else {
        roll_verdict_print(stdout, verdict, colour);
        fflush(stdout);
    }
    return strcmp(roll_json_text(verdict, "certainty", "note"), "note") != 0;
}

static bool follow(roll_client_t *client, bool json, bool colour)
{
    bool found = false;
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    while (!over && !ferror(stdout)) {
        json_t *verdict = NULL;
        int err = roll_client_next(client, 500, &verdict);
        if (err == 0) {
            found |= print_one(verdict, json, colour);
            json_decref(verdict);
            continue;
        }
        json_t *reply = NULL;
        if (err != ROLL_E_TIMEOUT ||
            roll_client_query(client, json_pack("{s:s}", "op", "status"), ROLL_CLIENT_TIMEOUT_MS, &reply) != 0) {
            if (!over) {
                roll_say("%s is gone", roll_client_endpoint(client));
            }
            break;
        }
        json_decref(reply);
    }
    return found;
}

int cmd_verdicts(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    bool json = false, following = false, found = false;
    int64_t from = 0;
    const struct roll_option options[] = {
        {"follow", 'f', ROLL_OPT_FLAG, NULL, "go on until the daemon ends, or Ctrl-C", &following},
        {"from", 0, ROLL_OPT_NUMBER, "N", "only from verdict number N on", &from},
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
    bool colour = roll_colour_wanted(STDOUT_FILENO);
    json_t *reply = NULL, *verdict;
    code = roll_link_ask(client, &link,
                         json_pack("{s:s, s:I}", "op", following ? "subscribe" : "verdicts", "from", (json_int_t)from),
                         &reply);
    if (code == 0 && following) {
        found = follow(client, json, colour);
    } else if (code == 0) {
        size_t i;
        json_array_foreach(json_object_get(reply, "verdicts"), i, verdict)
        {
            found |= print_one(verdict, json, colour);
        }
    }
    json_decref(reply);
    roll_client_destroy(&client);
    return code != 0 ? code : found ? ROLL_EXIT_FINDING : ROLL_EXIT_CLEAN;
}
