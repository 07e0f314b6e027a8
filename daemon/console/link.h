/*
 * link.h: a subcommand's connection to the root, and the one line on standard error when there is none.
 */
#ifndef ROLL_DAEMON_CONSOLE_LINK_H
#define ROLL_DAEMON_CONSOLE_LINK_H

#include "daemon/console/console.h"
#include "daemon/wire/client.h"

#include <jansson.h>

/* The options that every subcommand with a connection has. */
struct roll_link_options {
    const char *daemon, *curve, *job;
};
#define ROLL_LINK_OPTIONS(l)                                                                                           \
    {"daemon",   0, ROLL_OPT_TEXT, "ENDPOINT", "the root (default: ROLLCALL_DAEMON, else the one running here)",       \
     &(l).daemon},                                                                                                     \
        {"curve-dir", 0, ROLL_OPT_TEXT, "DIR", "keys for a root on another host (default: ROLLCALL_CURVE_DIR)",        \
         &(l).curve},                                                                                                  \
    {                                                                                                                  \
        "job", 0, ROLL_OPT_TEXT, "JOB", "which job, where the root watches several", &(l).job                          \
    }

/* Says in one line that a relay was asked, and which root answers in its place; nothing where a root was asked. */
void roll_link_say_relay(const roll_client_t *client);
/* Connects: to the root that is named; else to the one that runs here, or of several to the one that watches the job
 * that is named. 0, or the exit code after a line on standard error, which of several roots names each. */
int roll_link_open(const struct roll_link_options *options, roll_client_t **client);

/*
 * Asks (takes query, adds the job) and waits. On success *reply is returned owned. 0, or after one line on standard
 * error the exit code: ROLL_EXIT_UNREACHABLE when nobody answers, ROLL_EXIT_USAGE when the root refuses the query.
 */
int roll_link_ask(roll_client_t *client, const struct roll_link_options *options, json_t *query, json_t **reply);

/* Whether `--job NAME` alone picks a job when `same` jobs of all daemons here have its name: it is the only one, no
 * daemon is named otherwise, and a shell takes the name as it is. */
bool roll_link_names_job(const char *job, size_t same);

/* "job NAME: ranks 0-3 (4 ranks) on host vm, watched since 2026-11-23T00:55:40Z (35.1 s)". run: a member `run` of a
 * reply. Returns out. */
const char *roll_link_about(const json_t *run, char *out, size_t size);
/* Prints that line for a reply that names its run, and the other jobs that could have been meant. Prints nothing for
 * the reply of an older root, which names no run. */
void roll_link_print_about(const json_t *reply);
/* "the newest job that runs here; others that run: --job B; ended: --job A", from a reply that names its run and the
 * other jobs; "": there is no other. Returns out. */
const char *roll_link_others(const json_t *reply, char *out, size_t size);
/* Makes the query ask about the run that gave this reply: without a job another run may answer a moment later. Borrows
 * reply, returns query, which may be NULL. */
json_t *roll_link_same_run(json_t *query, const json_t *reply);

#endif
