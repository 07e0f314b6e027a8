/*
 * site.h: a place in the program as numbers that are the same in each process that runs the same binaries, whatever the
 * addresses and ids there. An engine makes them of definitions; an agent that sends an excerpt sends them in the place
 * of definitions that no record of it names (ROLL_DEF_SITES). So both have to make them alike.
 *
 * Pure. Any thread. All arguments are borrowed.
 */
#ifndef ROLL_TRACE_SITE_H
#define ROLL_TRACE_SITE_H

#include "trace/def.h"

/* The parts of a call site, innermost first. */
struct roll_site {
    uint32_t depth, lines; /* return addresses, and lines of an interpreted language */
    uint32_t known;        /* so many of the addresses, the first, lie in modules that are known */
    uint64_t module[ROLL_CALLSITE_DEPTH], offset[ROLL_CALLSITE_DEPTH]; /* of these: which one, and where there */
    uint64_t line[ROLL_CALLSITE_LINES];                                /* roll_site_line; 0 = not known */
    uint32_t folded[ROLL_CALLSITE_LINES];
};

/* A module is known by its build id, which depends on its contents; else by its file's name. */
uint64_t roll_site_module(const struct roll_def_module *info, const char *path);
/* A file of source code, by its name without folders, which need not be the same on every host. Never 0. */
uint64_t roll_site_source(const char *path, uint32_t path_bytes);
/* A line of that file (0: not known). Never 0. */
uint64_t roll_site_line(uint64_t source, const struct roll_def_line *info, const char *function);
/* The whole place; 0: it is not known, because the innermost module is not, or nothing of it is. */
uint64_t roll_site_whole(const struct roll_site *site);
/* The place by what is exact: the innermost return address, right behind the call, and the lines; the other addresses
 * may have been guessed from words on the stack. 0 likewise. */
uint64_t roll_site_near(const struct roll_site *site);

#endif
