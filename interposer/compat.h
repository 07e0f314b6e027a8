/*
 * compat.h: the few libc functions whose default version is newer than the oldest system that the library must load on.
 *
 * glibc 2.34 moved libdl and libpthread into libc and gave their symbols new versions; a library linked plainly on a new
 * system does not load on an old one. These names are bound to the oldest version, weakly: where an old system keeps
 * them in libdl or libpthread and the process has not loaded those, they are NULL and the caller does without.
 */
#ifndef ROLL_INTERPOSER_COMPAT_H
#define ROLL_INTERPOSER_COMPAT_H

#include <stddef.h>
#include <stdint.h>

/* dlsym and dlopen; NULL where the process has neither. */
void *roll_dlsym_next(const char *name);
void *roll_dlsym(void *handle, const char *name);
void *roll_dlopen(const char *path, int flags);

/* Bounds of the calling thread's stack; false when unknown. Not on any hot path: may allocate inside libc. */
int roll_stack_bounds(uintptr_t *low, uintptr_t *high);

#endif
