/* cmd_why.c: rollcall why [RANK]: the root's explanation, in plain words, why a rank does not go on. */
#include "daemon/base/text.h"
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/console/top/top_view.h"

#include <stdlib.h>

#define COLUMNS 100 /* the width of verdicts, too */

int cmd_why(const struct roll_command *self, int argc, char **argv);

/* Prints a paragraph for each group of ranks that stand alike, ordered by the group's first rank. */
static void print_ranks(json_t *reply)
{
    size_t i;
    json_t *rank;
    roll_top_sort(reply);
    const json_t *groups = json_object_get(reply, "groups");
    json_array_foreach(groups ? groups : json_object_get(reply, "ranks"), i, rank)
    {
        fputs(i > 0 ? "\n" : "", stdout);
        roll_text_wrap(roll_json_text(rank, "text", "?"), 0, COLUMNS, stdout);
    }
    if (json_array_size(json_object_get(reply, "ranks")) == 0) {
        puts(roll_json_text(reply, "text", "the root gave no explanation"));
    }
}

int cmd_why(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    bool json = false;
    const struct roll_option options[] = {
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object", &json},
        ROLL_LINK_OPTIONS(link),
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    json_t *query = json_pack("{s:s}", "op", "why");
    if (argc - first == 1) {
        char *end = NULL;
        unsigned long rank = strtoul(argv[first], &end, 10);
        if (argv[first][0] < '0' || argv[first][0] > '9' || *end != '\0' || rank > INT32_MAX) {
            json_decref(query);
            return roll_usage(self, "'%s' is not a rank", argv[first]);
        }
        json_object_set_new(query, "rank", json_integer((json_int_t)rank));
    } else if (argc - first > 1) {
        json_decref(query);
        return roll_usage(self, "one rank at a time");
    }
    roll_client_t *client = NULL;
    code = roll_link_open(&link, &client);
    if (code != 0) {
        json_decref(query);
        return code;
    }
    json_t *reply = NULL;
    code = roll_link_ask(client, &link, query, &reply);
    if (code == 0 && json) {
        json_object_set_new(reply, "schema", json_string("rollcall.why/1"));
        roll_json_line(reply, stdout);
    } else if (code == 0) {
        roll_link_print_about(reply);
        print_ranks(reply);
    }
    json_decref(reply);
    roll_client_destroy(&client);
    return code;
}
