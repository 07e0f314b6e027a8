/*
 * cmd_remedy.c: rollcall remedy: lists the remedies of moe_core and which are on, and switches them for the job, for
 * one layer or for one communicator ("group").
 */
#include "daemon/console/link.h"
#include "daemon/console/text.h"
#include "trace/control.h"
#include "trace/remedy.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cmd_remedy(const struct roll_command *self, int argc, char **argv);

enum { LABELS = 32 * 16 }; /* a comma and a name for each bit that a mask can have */

/* The labels of a JSON list: "fill,pad", or "-". */
static const char *labels(const json_t *list, char out[LABELS])
{
    size_t i, used = 0;
    json_t *name;
    snprintf(out, LABELS, "-");
    json_array_foreach(list, i, name)
    {
        if (json_is_string(name) && used < LABELS - 1) {
            int n = snprintf(out + used, LABELS - used, "%s%s", used > 0 ? "," : "", json_string_value(name));
            used += n > 0 ? (size_t)n : 0;
        }
    }
    return out;
}

/* Adds a row for each layer or communicator for which a remedy was switched. */
static void add_level(struct roll_columns *table, const json_t *entries, const char *what, const char *key)
{
    size_t i;
    json_t *entry;
    json_array_foreach(entries, i, entry)
    {
        char where[64], on[LABELS], off[LABELS];
        const json_t *name = json_object_get(entry, key);
        if (json_is_string(name)) {
            snprintf(where, sizeof(where), "%s %s", what, json_string_value(name));
        } else {
            snprintf(where, sizeof(where), "%s %lld", what, (long long)json_integer_value(name));
        }
        roll_columns_row(table, (const char *[]){where, labels(json_object_get(entry, "on"), on),
                                                 labels(json_object_get(entry, "off"), off)});
    }
}

static void print_levels(const json_t *remedies)
{
    struct roll_columns table = {.columns = 3};
    roll_columns_row(&table, (const char *[]){"WHERE", "ON", "OFF"});
    add_level(&table, json_object_get(remedies, "layers"), "layer", "layer");
    add_level(&table, json_object_get(remedies, "groups"), "group", "comm");
    if (roll_columns_rows(&table) > 1) {
        putchar('\n');
        roll_columns_print(&table, 0, stdout);
    }
    roll_columns_fini(&table);
}

static bool is_on(const json_t *on, const char *label)
{
    size_t i;
    json_t *name;
    json_array_foreach(on, i, name)
    {
        if (json_is_string(name) && strcmp(json_string_value(name), label) == 0) {
            return true;
        }
    }
    return false;
}

static void print_list(const json_t *remedies)
{
    const json_t *on = json_object_get(remedies, "on");
    unsigned width = isatty(STDOUT_FILENO) == 1 ? roll_columns_wanted(STDOUT_FILENO) : UINT_MAX;
    struct roll_columns table = {.columns = 3}; /* what one does is broken below itself, and not cut */
    const char *does[33] = {"WHAT IT DOES"};
    size_t n = 1, most = 0;
    char line[256];
    roll_columns_row(&table, (const char *[]){"REMEDY", "JOB", "SCOPE"});
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
        if (strcmp(roll_remedy_name(bit), "?") == 0) {
            continue;
        }
        const char *cells[] = {roll_remedy_name(bit), is_on(on, roll_remedy_name(bit)) ? "on" : "off",
                               (roll_remedy_local() & bit) != 0 ? "local" : "symmetric"};
        roll_columns_row(&table, cells);
        does[n++] = roll_remedy_text(bit);
    }
    for (size_t i = 0; i < n; i++) {
        size_t bytes = roll_columns_line(&table, i, 0, line, sizeof(line));
        most = bytes > most ? bytes : most;
    }
    for (size_t i = 0; i < n; i++) {
        roll_columns_line(&table, i, 0, line, sizeof(line));
        printf("%-*s  ", (int)most, line);
        roll_text_wrap(does[i], most + 2, width, stdout);
    }
    roll_columns_fini(&table);
    print_levels(remedies);
}

int cmd_remedy(const struct roll_command *self, int argc, char **argv)
{
    struct roll_link_options link = {0};
    bool json = false, force = false;
    int64_t layer = -1;
    const char *group = NULL;
    const struct roll_option options[] = {
        {"layer", 0, ROLL_OPT_NUMBER, "N", "only in MoE layer N", &layer},
        {"group", 0, ROLL_OPT_TEXT, "KEY", "only on this communicator (0x..., see rollcall top)", &group},
        {"force", 0, ROLL_OPT_FLAG, NULL, "also for a layer or communicator that no rank has told of", &force},
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object", &json},
        ROLL_LINK_OPTIONS(link),
        {0},
    };
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    const char *action = argc > first ? argv[first] : "list";
    const char *name = argc > first + 1 ? argv[first + 1] : NULL;
    bool list = strcmp(action, "list") == 0;
    if (!list && strcmp(action, "on") != 0 && strcmp(action, "off") != 0 && strcmp(action, "clear") != 0) {
        return roll_usage(self, "'%s' is none of list, on, off, clear", action);
    }
    if (argc > first + 2 || (list && name != NULL)) {
        return roll_usage(self, "unexpected argument '%s'", argv[argc - 1]);
    }
    if (!list && name == NULL) {
        return roll_usage(self, "name a remedy; `rollcall remedy list` shows them");
    }
    if (!list && roll_remedy_by_name(name) == 0) {
        return roll_usage(self, "there is no remedy '%s'; `rollcall remedy list` shows them", name);
    }
    if (layer >= 0 && group != NULL) {
        return roll_usage(self, "--layer and --group exclude each other");
    }
    if (list && (layer >= 0 || group != NULL || force)) {
        return roll_usage(self, "list shows all of them: it takes none of --layer, --group, --force");
    }
    if (layer >= (int64_t)ROLL_CONTROL_LAYERS) {
        return roll_usage(self, "option '--layer %lld': wants a layer from 0 to %u", (long long)layer,
                          ROLL_CONTROL_LAYERS - 1);
    }
    char *end = NULL;
    if (group != NULL && (strtoull(group, &end, 16) == 0 || *end != '\0')) {
        return roll_usage(self, "option '--group %s': wants a communicator's key in hexadecimal", group);
    }
    json_t *query = json_pack("{s:s, s:s, s:s}", "op", "remedy", "action", action, "level",
                              layer >= 0      ? "layer"
                              : group != NULL ? "group"
                                              : "job");
    if (name != NULL) {
        json_object_set_new(query, "remedy", json_string(name));
    }
    if (layer >= 0) {
        json_object_set_new(query, "layer", json_integer(layer));
    }
    if (group != NULL) {
        json_object_set_new(query, "comm", json_string(group));
    }
    if (force) {
        json_object_set_new(query, "force", json_true());
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
        json_object_set_new(reply, "schema", json_string("rollcall.remedy/1"));
        roll_json_line(reply, stdout);
    } else if (code == 0) {
        const json_t *remedies = json_object_get(reply, "remedies");
        print_list(remedies != NULL ? remedies : reply);
        const char *layers = json_string_value(json_object_get(reply, "moe_layers"));
        if (!list && layers != NULL && layers[0] == '\0') {
            roll_say("no rank of this job has reported an MoE layer so far: remedies act in jobs on moe_core");
        }
    }
    json_decref(reply);
    roll_client_destroy(&client);
    return code;
}
