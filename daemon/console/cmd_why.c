/*
 * cmd_why.c: rollcall why [RANK]: the root's explanation, in plain words, why a rank does not go on; and behind it the
 * verdicts that the explanation points at, so that nobody has to look them up.
 */
#include "daemon/base/text.h"
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/console/top/top_view.h"
#include "daemon/verdict/verdict_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POINTED 3u /* verdicts that are printed */

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
        roll_text_wrap(roll_json_text(rank, "text", "?"), 0, roll_columns_wanted(STDOUT_FILENO), stdout);
    }
    if (json_array_size(json_object_get(reply, "ranks")) == 0) {
        puts(roll_json_text(reply, "text", "the root gave no explanation"));
    }
}

/* Adds the numbers of the verdicts that a paragraph points at: "verdict 3" in the middle of a sentence or at its head.
 */
static size_t add_pointed(const char *text, unsigned long *number, size_t n)
{
    static const char word[] = "erdict ";
    for (const char *at = strstr(text, word); at != NULL && n < POINTED; at = strstr(at + 1, word)) {
        char *end = NULL;
        unsigned long one = strtoul(at + sizeof(word) - 1, &end, 10);
        bool new = end != at + sizeof(word) - 1 && one > 0;
        for (size_t i = 0; i < n; i++) {
            new = new &&number[i] != one;
        }
        if (new) {
            number[n++] = one;
        }
    }
    return n;
}

/* Prints the verdicts that the explanations point at, once each. */
static void print_pointed(roll_client_t *client, const struct roll_link_options *link, const json_t *reply,
                          unsigned style)
{
    unsigned long number[POINTED];
    size_t i, n = 0;
    json_t *group, *answer = NULL;
    json_array_foreach(json_object_get(reply, "groups"), i, group)
    {
        n = add_pointed(roll_json_text(group, "text", ""), number, n);
    }
    for (size_t k = 0; k < n; k++) {
        json_t *query = json_pack("{s:s, s:I}", "op", "verdicts", "from", (json_int_t)number[k]);
        answer = NULL;
        if (roll_link_ask(client, link, roll_link_same_run(query, reply), &answer) != 0) {
            json_decref(answer);
            return;
        }
        const json_t *verdict = json_array_get(json_object_get(answer, "verdicts"), 0);
        if (roll_json_int(verdict, "number", 0) == (int64_t)number[k]) {
            fputs("\n", stdout);
            (void)roll_verdict_print(stdout, verdict, style);
        }
        json_decref(answer);
    }
}

int cmd_why(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    bool json = false, frames = false;
    const struct roll_option options[] = {
        {"verbose", 'v', ROLL_OPT_FLAG, NULL, "every frame of a call: libraries and native code as well", &frames},
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
        unsigned style = (roll_colour_wanted(STDOUT_FILENO) ? ROLL_VERDICT_COLOR : ROLL_VERDICT_PLAIN) |
                         ROLL_VERDICT_COLUMNS(roll_columns_wanted(STDOUT_FILENO)) |
                         (frames ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN) | ROLL_VERDICT_NUMBER;
        print_pointed(client, &link, reply, style);
    }
    json_decref(reply);
    roll_client_destroy(&client);
    return code;
}
