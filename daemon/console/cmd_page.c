/*
 * cmd_page.c: rollcall page: where the daemon's web page is, and who may open it.
 *
 * The password is made here, of the user's cookie, and does not come from the daemon: an answer that holds it would be
 * one more way on which it can be lost. The link has no password in it, so that it can be sent to others.
 */
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "daemon/wire/page_words.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cmd_page(const struct roll_command *self, int argc, char **argv);

/* Where the root is on another host, the page is reached through ssh, and its password is that of the cookie there. */
static void print_elsewhere(const char *host, int64_t port)
{
    printf("page      http://127.0.0.1:%lld/ on host %s, whose loopback alone it is served on:\n"
           "          ssh -L %lld:127.0.0.1:%lld %s rollcall page    prints the user and the password there\n",
           (long long)port, host, (long long)port, (long long)port, host);
}

static int print_here(const char *address, int64_t port, bool operates)
{
    struct roll_page_words words;
    char why[512] = "";
    if (roll_page_words(&words, why, sizeof(why)) != 0) {
        roll_say("%s", why);
        return ROLL_EXIT_UNREACHABLE;
    }
    printf("page      http://%s:%lld/\n"
           "user      %s\n"
           "password  %s\n",
           address, (long long)port, operates ? "operator" : "viewer", operates ? words.operator_ : words.viewer);
    explicit_bzero(&words, sizeof(words));
    return ROLL_EXIT_CLEAN;
}

int cmd_page(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {.job = NULL};
    bool operates = false;
    const struct roll_option options[] = {
        {"operator", 0, ROLL_OPT_FLAG, NULL, "the user who may switch remedies there, as well as look", &operates},
        ROLL_LINK_OPTIONS(link),
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (argc != first) {
        return roll_usage(self, "unexpected argument '%s'", argv[first]);
    }
    roll_client_t *client = NULL;
    json_t *reply = NULL;
    code = roll_link_open(&link, &client);
    code = code ? code : roll_link_ask(client, &link, json_pack("{s:s}", "op", "page"), &reply);
    if (code == 0) {
        const char *host = roll_json_text(reply, "host", "");
        int64_t port = roll_json_int(reply, "port", 0);
        char here[64] = "";
        (void)gethostname(here, sizeof(here) - 1);
        if (strcmp(host, here) != 0) {
            print_elsewhere(host, port);
        } else {
            code = print_here(roll_json_text(reply, "address", "127.0.0.1"), port, operates);
        }
    }
    json_decref(reply);
    roll_client_destroy(&client);
    return code;
}
