/*
 * doctor.h: checks of `rollcall doctor`: each finds one thing that would keep rollcall from working here.
 */
#ifndef ROLL_CONSOLE_DOCTOR_H
#define ROLL_CONSOLE_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

enum roll_health { ROLL_HEALTH_OK, ROLL_HEALTH_WARN, ROLL_HEALTH_FAIL };

struct roll_checkup {
    bool json;
    unsigned warned, failed;
};

/* Reports the outcome of one check: what was looked at, how it is, and for anything but OK what to do. */
void roll_checkup_say(struct roll_checkup *c, const char *check, enum roll_health health, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* doctor_program.c: is this command (found through PATH) a program that librollcall.so can enter and that uses NCCL? */
void roll_checkup_program(struct roll_checkup *c, const char *command);

/* What an executable file is, as far as preloading goes. */
struct roll_program {
    bool readable, elf, script, dynamic, needs_nccl, defines_nccl, elevated;
    char interpreter[128]; /* of a script */
};
/* Looks at the file. 0 or NOTFOUND, DENIED, IO. */
int roll_program_inspect(const char *path, struct roll_program *out);

#endif
