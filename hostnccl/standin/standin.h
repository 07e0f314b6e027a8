/*
 * standin.h: what the files of `standins` share: the program that writes, for a program's own libraries, stand-ins for
 * NVIDIA's mathematics libraries. See main.c.
 */
#ifndef ROLL_HOSTNCCL_STANDIN_STANDIN_H
#define ROLL_HOSTNCCL_STANDIN_STANDIN_H

#include <stddef.h>

/* What a shared object says of itself. */
enum fact {
    FACT_NEEDS,  /* the library `name` */
    FACT_WANTS,  /* the symbol `name`, of `version` of the library `file` where those are not NULL */
    FACT_ASKS,   /* the same, and the object does without it: a weak symbol */
    FACT_DEFINES /* the symbol `name` */
};

typedef void fact_fn(void *context, enum fact fact, const char *name, const char *version, const char *file);

/* Tells the facts of a shared object for this machine; strings live as long as the call. 0; -1: the file is none. */
int library_read(const char *path, fact_fn *tell, void *context);

/* A symbol of a library that is to be written. */
struct offer {
    char *name;
    size_t version; /* 0: none; else 1 + its place in the library's list */
};

/* A library that is to be written. All strings are owned by whoever fills it. */
struct stand_in {
    char *soname;
    struct offer *offers;
    size_t offer_count, offer_room;
    char **versions;
    size_t version_count, version_room;
};

/*
 * Writes a shared object whose functions do nothing and return 0; a function whose name says that it creates something
 * first writes a handle where its first parameter points. `needed` is the soname of a library that the object depends
 * on. 0, or -1 with errno.
 */
int stand_in_write(const struct stand_in *stand_in, const char *needed, const char *path);

#endif
