/*
 * harness.h: real daemons and synthetic ranks for the integration tests. Everything started here is ended here, also
 * when a test fails.
 */
#ifndef ROLL_TESTS_DAEMON_HARNESS_H
#define ROLL_TESTS_DAEMON_HARNESS_H

#include "daemon/wire/client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

/* cmocka set-up and tear-down: a fresh directory; tear-down ends what still runs and fails when anything is left
 * behind. */
int harness_set_up(void **state);
int harness_tear_down(void **state);

/* The directory of this test, and a path in it (static: the same name gives the same pointer). */
const char *harness_dir(void);
const char *harness_path(const char *name);

/* Whether daemons get a supervisor from now on. No at first, for tests that know one process of each, by its pid. */
extern bool harness_supervised;

/* Starts a program (argv[0] = "rollcalld" or "synth_rank": the built one; else through PATH) with standard error to
 * `log` in the directory. Ends in tear-down at the latest. */
pid_t harness_spawn(const char *log, const char *const *argv);
#define SPAWN(log, ...) harness_spawn((log), (const char *const[]){__VA_ARGS__, NULL})
/* Like spawn, with --ready-fd: returns when it is ready; endpoint (>= 256 bytes) may be NULL. -1 when it ended instead.
 */
pid_t harness_daemon(const char *log, char *endpoint, const char *const *argv);
#define DAEMON(log, endpoint, ...)                                                                                     \
    harness_daemon((log), (endpoint), (const char *const[]){"rollcalld", __VA_ARGS__, NULL})
/* A synthetic rank in `dir`. */
pid_t harness_rank(const char *dir, int rank, int size, unsigned rate, unsigned count, const char *end);

/* Waits until the condition holds; false when the end of the wait was reached. That end is so late that only a hang
 * reaches it: no test may depend on how fast the machine is. */
#define HARNESS_END_MS 300000
#define HARNESS_UNTIL(condition)                                                                                       \
    ({                                                                                                                 \
        bool holds_ = false;                                                                                           \
        for (int waited_ = 0; !(holds_ = (condition)) && waited_ < HARNESS_END_MS; waited_ += 20) {                    \
            usleep(20000);                                                                                             \
        }                                                                                                              \
        holds_;                                                                                                        \
    })

/* Sends a signal and waits; returns the exit status, or 128 + signal. 0 = send none, just wait. Fails the test at the
 * end of all waits. */
int harness_end(pid_t pid, int number);

/* Asks the root; fails the test when there is no answer. Returns owned. */
json_t *harness_ask(roll_client_t *client, const char *format, ...);
/* The error of an answer, borrowed from it; NULL: it has none. */
const char *harness_error(const json_t *reply);
roll_client_t *harness_client(const char *endpoint);
/* Drains and returns the member of the summary. */
json_int_t harness_drained(roll_client_t *client, const char *member);
/* The value of a member of the run's summary now; 0 before there is a run. job may be NULL. */
json_int_t harness_has(roll_client_t *client, const char *job, const char *member);
/* The first verdict with this code among those of the root, waited for. NULL when there is none. Returns owned. */
json_t *harness_verdict(roll_client_t *client, const char *code);
/* Does this text come into the log? */
bool harness_logged(const char *log, const char *text);
/* How many calls has a rank of harness_rank made? 0 before it has a ring. */
uint64_t harness_calls(const char *dir, int rank, int size, pid_t pid);
/* How many directory entries end with this suffix? */
int harness_count(const char *dir, const char *suffix);

#endif
