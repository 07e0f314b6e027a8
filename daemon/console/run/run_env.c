/*
 * run_env.c: variables of the environment of a child, and whether all could be set.
 *
 * A rank that lacks one (its WORLD_SIZE, the library that records) does something else than it was started for, so
 * whoever starts one looks at the end. A result of each call was rejected: forty places, of which one would be
 * forgotten.
 */
#include "daemon/console/run/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int lacks; /* errno of what could not be set first */

void roll_env_set(const char *name, const char *value, bool replace)
{
    if (setenv(name, value, replace) != 0 && lacks == 0) {
        lacks = errno;
    }
}

void roll_env_prepend(const char *name, const char *first)
{
    const char *old = getenv(name);
    char *joined = NULL;
    if (old == NULL || old[0] == '\0') {
        roll_env_set(name, first, true);
    } else if (asprintf(&joined, "%s:%s", first, old) > 0) {
        roll_env_set(name, joined, true);
        free(joined);
    } else {
        lacks = ENOMEM;
    }
}

int roll_env_lacks(void)
{
    return lacks;
}
