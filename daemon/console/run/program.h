/*
 * program.h: what kind of program a command is, and where its NCCL is, without running it.
 */
#ifndef ROLL_DAEMON_CONSOLE_RUN_PROGRAM_H
#define ROLL_DAEMON_CONSOLE_RUN_PROGRAM_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* Properties of an executable file or library that matter for binding. */
struct roll_program {
    bool readable, elf, script, dynamic, needs_nccl, defines_nccl;
    bool elevated; /* runs with another user's or group's rights (set-user-id): the loader then ignores LD_PRELOAD */
    bool other_machine;    /* made for another processor, or another word size */
    char interpreter[128]; /* interpreter of a script */
    char loader[128];      /* the dynamic loader that the file names; "" = none */
};
/* Reads the properties of a file. 0 or NOTFOUND, DENIED, IO. */
int roll_program_inspect(const char *path, struct roll_program *out);

/* Where a listing of libraries happens: what the job will have in front. NULL = nothing. Borrowed. */
struct roll_loading {
    const char *path;    /* of LD_LIBRARY_PATH */
    const char *preload; /* of LD_PRELOAD */
};
/*
 * Lists the libraries of a program, or of a library that `loader` would load, as ldd(1) does: the loader lists them,
 * and no code of the file runs. Calls `visit` once for each, with its path; a library that is not found has none. For
 * glibc's loader only: others may run the program instead of listing.
 */
void roll_list_libraries(const char *loader, const char *file, const struct roll_loading *with,
                         void (*visit)(void *to, const char *path), void *to);

#define ROLL_STUDY_NCCLS 4u

/* A command, and the libraries that the loader brings in with it. */
struct roll_study {
    int error;           /* error of the search or of roll_program_inspect; 0 = the other members are valid */
    char path[PATH_MAX]; /* path of the program */
    struct roll_program program;
    char nccl[ROLL_STUDY_NCCLS][PATH_MAX]; /* libnccl.so files that come with the program */
    unsigned nccls;
    char holder[PATH_MAX]; /* the file that contains NCCL itself (linked statically); "" = none is known */
};
/*
 * Finds the command as the shell would, and lists its libraries as ldd(1) does: the loader lists them, and no code of
 * the program runs. Arguments that are themselves programs (of mpirun, env, ...) are not looked at. first: a directory
 * that the job will have in front of LD_LIBRARY_PATH (borrowed); NULL = none.
 */
void roll_study(const char *command, const char *first, struct roll_study *out);

/* Whether a command, found as the shell would find it, is a file that this user may run. */
bool roll_program_runs(const char *command);

/* The script that a command hands to a Python interpreter (`python -u train.py`), where there is no such file: every
 * rank would say so. Borrowed from the command; NULL: it is there, or the command names none. */
const char *roll_missing_script(char *const command[]);

/* The release of the NCCL in a file ("2.28.9"), by a text that the file holds; false when there is none. */
bool roll_nccl_release(const char *path, char *out, size_t size);
/* Whether the NCCL in this file knows profiler plugins (2.23 and later). An unknown release counts as one that does. */
bool roll_nccl_has_profiler(const char *path);

/* Whether a loader is glibc's. */
bool roll_loader_lists(const char *loader);

#endif
