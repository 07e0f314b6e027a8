/*
 * late.h: a library that is loaded when one of its functions is first called. Only the program `rollcall` has such
 * files (zmq_late.c, dw_late.c): to load all that its commands can need takes longer than to judge the dumps of a small
 * job.
 *
 * The functions are defined here, each under its own name and with the prototype of its header, and pass their
 * arguments on. The link fails where a row is missing, and the compiler where a prototype is another. Where the library
 * cannot be loaded, one line says so and each function fails as it fails by itself. Any thread may call.
 */
#ifndef ROLL_DAEMON_CONSOLE_LATE_H
#define ROLL_DAEMON_CONSOLE_LATE_H

#include "daemon/console/console.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#define ROLL_LATE_MEMBER(type, fails, name, parameters, arguments) type(*name) parameters;
#define ROLL_LATE_FIND(type, fails, name, parameters, arguments)                                                       \
    late.name = loaded ? (__typeof__(late.name))dlsym(library, #name) : NULL;                                          \
    loaded = late.name != NULL;
#define ROLL_LATE_CALL(type, fails, name, parameters, arguments)                                                       \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return is_loaded() ? late.name arguments : (fails);                                                            \
    }
#define ROLL_LATE_VOID(type, fails, name, parameters, arguments)                                                       \
    void name parameters                                                                                               \
    {                                                                                                                  \
        if (is_loaded()) {                                                                                             \
            late.name arguments;                                                                                       \
        }                                                                                                              \
    }

/* ROWS, VOIDS: tables of ROW(type, fails, name, parameters, arguments), the second of functions that return nothing.
 * `then` says what follows where the library cannot be loaded. All of `late` is written before pthread_once returns. */
#define ROLL_LATE(ROWS, VOIDS, LIBRARY, then)                                                                          \
    static struct {                                                                                                    \
        ROWS(ROLL_LATE_MEMBER)                                                                                         \
        VOIDS(ROLL_LATE_MEMBER)                                                                                        \
    } late;                                                                                                            \
    static bool loaded;                                                                                                \
    static pthread_once_t once = PTHREAD_ONCE_INIT;                                                                    \
    static void load(void)                                                                                             \
    {                                                                                                                  \
        void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);                                                        \
        loaded = library != NULL;                                                                                      \
        ROWS(ROLL_LATE_FIND)                                                                                           \
        VOIDS(ROLL_LATE_FIND)                                                                                          \
        if (!loaded) {                                                                                                 \
            roll_say("%s: %s", dlerror(), then);                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static bool is_loaded(void)                                                                                        \
    {                                                                                                                  \
        int number = errno;                                                                                            \
        (void)pthread_once(&once, load);                                                                               \
        errno = loaded ? number : ENOSYS;                                                                              \
        return loaded;                                                                                                 \
    }                                                                                                                  \
    ROWS(ROLL_LATE_CALL)                                                                                               \
    VOIDS(ROLL_LATE_VOID)

#endif
