/*
 * run_env.c: variables of the environment that are lists.
 */
#include "daemon/console/run/run.h"

#include <stdio.h>
#include <stdlib.h>

void roll_env_prepend(const char *name, const char *first)
{
    const char *old = getenv(name);
    char *joined = NULL;
    if (old == NULL || old[0] == '\0') {
        setenv(name, first, 1);
    } else if (asprintf(&joined, "%s:%s", first, old) > 0) {
        setenv(name, joined, 1);
        free(joined);
    }
}
