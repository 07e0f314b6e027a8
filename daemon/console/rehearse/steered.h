/*
 * steered.h: values that steer a rehearsed job: what the Python package rollcall.rehearse is told, and what it tells.
 * One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REHEARSE_STEERED_H
#define ROLL_DAEMON_CONSOLE_REHEARSE_STEERED_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* As the user gave them; NULL or 0 = not given. */
struct roll_steering {
    const char *compute; /* a size, or "off" */
    const char *values;  /* "zero" or "random:SEED[,same|,different]" */
    uint32_t steps;
};

/* Checks the texts. 0; ROLL_E_ARG: `why` names the option and what it wants. */
int roll_steering_check(const struct roll_steering *s, char *why, size_t size);

/*
 * Sets the variables that rollcall.rehearse reads, and HOSTNCCL_DATA such that a payload of what is computed is moved.
 * What the user has set in the environment stays, unless an option says otherwise. Only after the check.
 */
void roll_steering_apply(const struct roll_steering *s);

/* Reads the notes `steered.PID` in a folder. The member "steered" of the report (docs/REHEARSE.md), owned; NULL when no
 * process wrote any, or out of memory. */
json_t *roll_steered_json(const char *notes);

/* Whether PyTorch read values back, and each came from the host, a computation or a hook. */
bool roll_steered_is_computed(const json_t *steered);

/* Prints it for people; nothing for NULL. */
void roll_steered_print(const json_t *steered, FILE *out);

#endif
