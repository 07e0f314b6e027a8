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

/* steering.c */

/* Checks the texts. 0; ROLL_E_ARG: `why` names the option and what it wants. */
int roll_steering_check(const struct roll_steering *s, char *why, size_t size);

/*
 * Sets the variables that rollcall.rehearse reads, and HOSTNCCL_DATA such that a payload of what is computed is moved.
 * What the user has set in the environment stays, unless an option says otherwise. Only after the check.
 */
void roll_steering_apply(const struct roll_steering *s);

/* steered_lines.c */

#define ROLL_STEERED_NOTES_MOST (16u << 20) /* bytes of the notes of one process */
/* Makes a line of the notes plain, in place: bytes beyond ASCII and control characters become '?', because the text is
 * a key of JSON, and goes to a terminal. */
void roll_steered_plain(char *line);

/* The steps that a process told of. Moments are CLOCK_MONOTONIC, 0 = not told. */
struct roll_steered_steps {
    uint32_t pid;
    uint64_t steps;
    uint64_t first_ns, second_ns, third_ns, last_ns; /* when the first, second, third and last of them ended */
};

/* Reads of the notes in a folder which processes have told of steps. *out: owned, by pid. 0, NOMEM. */
int roll_steered_read_steps(const char *notes, struct roll_steered_steps **out, size_t *count);
/* Those of a process; NULL: it told none. */
const struct roll_steered_steps *roll_steered_steps_of(const struct roll_steered_steps *steps, size_t count,
                                                       uint32_t pid);

/* The process groups of PyTorch that the notes in a folder tell of, owned: by the name that PyTorch gives them, an
 * object with `size`, `description`, `file`, `line` and `function`. NULL: no memory. */
json_t *roll_steered_groups(const char *notes);

/* The most bytes that PyTorch's allocator gave out on a device of a process. False: not known. */
bool roll_steered_allocator(const char *notes, uint32_t pid, unsigned device, uint64_t *bytes);

/* steered.c */

/* Reads the notes `steered.PID` in a folder. The member "steered" of the report (docs/REHEARSE.md), owned; NULL when no
 * process wrote any, or out of memory. */
json_t *roll_steered_json(const char *notes);

/* Whether nobody computed a value of this kind (`value` of the report's `read_at`), or not all of what it was made of.
 */
bool roll_steered_is_doubtful(const char *value);

/* Whether PyTorch read values back, and each came from the host, a computation or a hook. */
bool roll_steered_is_computed(const json_t *steered);

/* Whether all that PyTorch did on the device was computed on the host, and no value was read back. */
bool roll_steered_is_whole(const json_t *steered);

/* Prints which ranks ended behind a read of nan or inf. ended: as in the report; code: the job's. */
void roll_steered_print_odd(const json_t *steered, const json_t *ended, int code, FILE *out);

/* Prints it for people; nothing for NULL. */
void roll_steered_print(const json_t *steered, FILE *out);

#endif
