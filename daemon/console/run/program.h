/*
 * program.h: what kind of program a command is, and where its NCCL is, without running it.
 */
#ifndef ROLL_CONSOLE_PROGRAM_H
#define ROLL_CONSOLE_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* What an executable file or library is, as far as binding goes. */
struct roll_program {
    bool readable, elf, script, dynamic, needs_nccl, defines_nccl;
    bool elevated; /* runs with another user's or group's rights (set-user-id): the loader then ignores LD_PRELOAD */
    bool other_machine;    /* made for another processor, or another word size */
    char interpreter[128]; /* of a script */
    char loader[128];      /* the dynamic loader that it names; "" = none */
};
/* Looks at the file. 0 or NOTFOUND, DENIED, IO. */
int roll_program_inspect(const char *path, struct roll_program *out);

#define ROLL_STUDY_NCCLS 4u

/* A command, and what the loader brings in with it. */
struct roll_study {
    int error;           /* of the search or of roll_program_inspect; 0 = the rest is valid */
    char path[PATH_MAX]; /* of the program */
    struct roll_program program;
    char nccl[ROLL_STUDY_NCCLS][PATH_MAX]; /* libnccl.so files that come with it */
    unsigned nccls;
    char holder[PATH_MAX]; /* the file that contains NCCL itself (linked statically); "" = none is known */
};
/*
 * Finds the command as the shell would, and lists its libraries as ldd(1) does: the loader lists them, nothing of the
 * program runs. Arguments that are themselves programs (of mpirun, env, ...) are not looked at. first: a directory that
 * the job will have in front of LD_LIBRARY_PATH (borrowed); NULL = none.
 */
void roll_study(const char *command, const char *first, struct roll_study *out);

/* The release of an NCCL in a file, by the text that it carries ("2.28.9"); false when there is none. */
bool roll_nccl_release(const char *path, char *out, size_t size);
/* Does the NCCL in this file know profiler plugins (2.23 and later)? Unknown counts as yes. */
bool roll_nccl_has_profiler(const char *path);

#endif
