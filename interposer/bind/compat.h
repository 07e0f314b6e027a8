/*
 * compat.h: the few libc functions whose default version is newer than the oldest system that the library must load on.
 *
 * glibc 2.34 moved libdl and libpthread into libc and gave their symbols new versions; a library that is linked plainly
 * on a new system does not load on an old one. These names are bound to the oldest version, weakly: where an old system
 * keeps them in libdl or libpthread and the process has not loaded those, they are NULL, and the caller does its work
 * without them.
 */
#ifndef ROLL_INTERPOSER_BIND_COMPAT_H
#define ROLL_INTERPOSER_BIND_COMPAT_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* The real dlsym, past the one that this library defines, and dlopen; NULL where the process has neither. */
void *roll_dlsym_next(const char *name);
void *roll_dlsym(void *handle, const char *name);
void *roll_dlopen(const char *path, int flags);

/* The dlsym behind ours: the next one in the process, which may be another library's hook. Lock-free, found once. */
typedef void *(*roll_dlsym_t)(void *handle, const char *name);
roll_dlsym_t roll_dlsym_behind(void);

/* The loaded object that an address lies in, as dlopen would give it (a struct link_map); NULL when it lies in none. */
void *roll_object_of(const void *address);

/* The name of the function that an address of this process lies in; NULL when there is none, or no way to ask. */
const char *roll_symbol_of(const void *address);

/* The symbol of this name in a loaded object or in the libraries that it needs; NULL when there is none. */
void *roll_dlsym_within(const struct link_map *map, const char *name);

/* Forgets the text that a failed lookup has left for dlerror. */
void roll_dlerror_clear(void);

/* libc's pthread_getspecific; NULL where the process has none. */
typedef void *(*roll_specific_t)(unsigned key);
roll_specific_t roll_specific(void);

/* Bounds of the calling thread's stack; false when unknown. Not on any hot path: may allocate inside libc. */
int roll_stack_bounds(uintptr_t *low, uintptr_t *high);

#endif
