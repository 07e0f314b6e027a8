/*
 * doctor.h: checks of `rollcall doctor`: each finds one thing that would keep rollcall from working here.
 */
#ifndef ROLL_DAEMON_CONSOLE_DOCTOR_DOCTOR_H
#define ROLL_DAEMON_CONSOLE_DOCTOR_DOCTOR_H

#include "daemon/console/place.h"
#include "daemon/console/run/program.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a check came out. INFO ("--") is neither good nor bad. */
enum roll_health { ROLL_HEALTH_OK, ROLL_HEALTH_WARN, ROLL_HEALTH_FAIL, ROLL_HEALTH_INFO };

struct roll_checkup_line;

/* The checks that were made. Zero-initialised is empty; roll_checkup_print empties it. */
struct roll_checkup {
    bool json;
    unsigned warned, failed;
    struct roll_checkup_line *line; /* owned; in the order in which they were said */
    size_t used, room;
    enum roll_health concluded;
    char conclusion[512]; /* what was concluded about the command or the process; "" = nothing */
};

/* Notes the outcome of one check: what was checked, how it came out, and, unless that is OK, what to do. */
void roll_checkup_say(struct roll_checkup *c, const char *check, enum roll_health health, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* doctor_program.c: checks whether this command (found through PATH) is a program that rollcall can enter, and which
 * binding sees its NCCL. */
/* hostnccl: with the stand-ins in front, as `rollcall run --hostnccl` puts them. */
void roll_checkup_program(struct roll_checkup *c, const struct roll_place *place, const char *command, bool hostnccl);

/* doctor_libraries.c: says which copies of NCCL and CUDA's libraries the command, which was studied, would use: its
 * own, and those of the PyTorch wheel of an interpreter. */
void roll_checkup_libraries(struct roll_checkup *c, const struct roll_place *place, const struct roll_study *study,
                            const char *command, bool hostnccl);

/* doctor_rehearsal.c: says what `rollcall rehearse` would use for this command (ended by NULL). */
void roll_checkup_rehearsal(struct roll_checkup *c, const struct roll_place *place, char *const command[]);

/* doctor_python.c: whether calls of the command's interpreter, which is run and asked what it is, will be told by their
 * lines of Python. Nothing for a command without one. */
void roll_checkup_python(struct roll_checkup *c, char *const command[]);
/* The same of a running process: `lines` of Python are in its ring. */
void roll_checkup_python_lines(struct roll_checkup *c, const char *program, uint64_t calls, uint32_t lines);
/* The words of that check for an interpreter: its implementation, release and flags ("t": free-threaded, "d": debug).
 * Pure. */
enum roll_health roll_python_words(const char *name, unsigned major, unsigned minor, const char *flags, char *out,
                                   size_t size);
/* Whether a program is an interpreter of Python, by its name. Pure. */
bool roll_is_python(const char *interpreter);

/* doctor_process.c: checks what rollcall sees of a running process. */
void roll_checkup_process(struct roll_checkup *c, uint32_t pid);

/* doctor_process.c: checks whether stacks of other processes may be read here. */
void roll_checkup_ptrace(struct roll_checkup *c);
/* The words of that check where Yama's ptrace_scope is `scope` (0 to 3; without Yama 0). Pure. */
enum roll_health roll_ptrace_words(int scope, bool root, char *out, size_t size);

/* doctor_history.c: for how many seconds a ring of the size that is set holds a rank's calls. */
void roll_checkup_history(struct roll_checkup *c);
/* The same of a running process's ring (borrowed), at its own rate. */
void roll_checkup_ring_history(struct roll_checkup *c, const struct roll_ring *ring);
/* The words of that check: a ring of so many records, at so many calls a second; 0: at two usual rates. Pure. */
enum roll_health roll_history_words(uint64_t records, double calls_per_s, char *out, size_t size);

/* Notes in one sentence what the checks of a command or process mean together. */
void roll_checkup_conclude(struct roll_checkup *c, enum roll_health health, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints what was noted: first, in short, what it means, then a line for each check. */
void roll_checkup_print(struct roll_checkup *c);

#endif
