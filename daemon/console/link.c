/* link.c: connecting and asking, with the same words and exit codes in every subcommand. */
#include "daemon/console/link.h"

#include "daemon/console/text.h"
#include "trace/err.h"

int roll_link_open(const struct roll_link_options *o, roll_client_t **client)
{
    char why[512] = "";
    int err = roll_client_new(o->daemon, o->curve, ROLL_CLIENT_TIMEOUT_MS, client, why, sizeof(why));
    if (err == 0) {
        return 0;
    }
    roll_say("%s", why[0] != '\0' ? why : roll_strerror(err));
    return err == ROLL_E_ARG ? ROLL_EXIT_USAGE : ROLL_EXIT_UNREACHABLE;
}

int roll_link_ask(roll_client_t *client, const struct roll_link_options *o, json_t *query, json_t **reply)
{
    if (query != NULL && o->job != NULL) {
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
        json_decref(*reply);
        *reply = NULL;
        return ROLL_EXIT_USAGE;
    }
    return 0;
}
