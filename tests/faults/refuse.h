/*
 * refuse.h: malloc and calloc of a test program, which refuse what one shared library asks for on the thread that says
 * so: from its n-th request on, or that request alone. Included by one file of the program. fail_nth.so, which is for
 * whole programs, knows neither threads nor a library by itself.
 */
#ifndef ROLL_TESTS_FAULTS_REFUSE_H
#define ROLL_TESTS_FAULTS_REFUSE_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct refusing {
    const void *library; /* where it lies in memory; NULL: nothing is counted */
    int64_t from;        /* the number of the first request that is refused, from 0; -1: none is */
    bool once;           /* that one alone */
    int64_t asked;       /* requests so far */
    bool looking;
};

static _Thread_local struct refusing refusing;

/* Begins to count the requests of the library that has the function `name`. */
static inline void refuse_begin(const char *name, int64_t from, bool once)
{
    Dl_info where;
    void *in = dlsym(RTLD_DEFAULT, name);
    refusing = (struct refusing){.from = from, .once = once};
    if (in == NULL || dladdr(in, &where) == 0) {
        abort();
    }
    refusing.library = where.dli_fbase;
}

static inline void refuse_end(void)
{
    refusing.library = NULL;
}

/* Counts a request that comes from `caller`: whether it is refused. */
static inline bool refuse_now(const void *caller)
{
    struct refusing *r = &refusing;
    Dl_info where;
    if (r->library == NULL || r->looking) {
        return false;
    }
    r->looking = true;
    bool counts = dladdr(caller, &where) != 0 && where.dli_fbase == r->library;
    r->looking = false;
    int64_t number = r->asked;
    r->asked += counts;
    return counts && r->from >= 0 && (r->once ? number == r->from : number >= r->from);
}

void *malloc(size_t bytes)
{
    static void *(*real)(size_t);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "malloc");
    }
    return refuse_now(__builtin_return_address(0)) ? NULL : real(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    static void *(*real)(size_t, size_t);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "calloc");
    }
    return refuse_now(__builtin_return_address(0)) ? NULL : real(count, bytes);
}

#endif
