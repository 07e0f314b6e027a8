/*
 * doctor.h: checks of `rollcall doctor`: each finds one thing that would keep rollcall from working here.
 */
#ifndef ROLL_CONSOLE_DOCTOR_H
#define ROLL_CONSOLE_DOCTOR_H

#include "daemon/console/place.h"
#include "daemon/console/run/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* INFO ("--"): neither good nor bad. */
enum roll_health { ROLL_HEALTH_OK, ROLL_HEALTH_WARN, ROLL_HEALTH_FAIL, ROLL_HEALTH_INFO };

struct roll_checkup {
    bool json;
    unsigned warned, failed;
};

/* Reports the outcome of one check: what was looked at, how it is, and for anything but OK what to do. */
void roll_checkup_say(struct roll_checkup *c, const char *check, enum roll_health health, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* doctor_program.c: is this command (found through PATH) a program that rollcall can enter, and which binding sees its
 * NCCL? */
void roll_checkup_program(struct roll_checkup *c, const struct roll_place *place, const char *command);

/* doctor_process.c: what is seen of a process that runs. */
void roll_checkup_process(struct roll_checkup *c, uint32_t pid);

/* doctor_process.c: may stacks of other processes be read here? */
void roll_checkup_ptrace(struct roll_checkup *c);
/* What it says where Yama's ptrace_scope is `scope` (0 to 3; without Yama 0). Pure. */
enum roll_health roll_ptrace_words(int scope, bool root, char *out, size_t size);

/* The last line: one sentence on what follows from the checks. */
void roll_checkup_conclude(struct roll_checkup *c, enum roll_health health, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
