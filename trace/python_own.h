/*
 * python_own.h: which Python files are rollcall's own. Their frames lie around a job and within it, and no call of the
 * job comes from there: a recorder in the rank and a reader of other tools' stacks leave them out alike. Pure.
 */
#ifndef ROLL_TRACE_PYTHON_OWN_H
#define ROLL_TRACE_PYTHON_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Whether a file is rollcall's own, by its path, which need not end in a 0. */
static inline bool roll_python_is_own(const char *path, size_t bytes)
{
    static const char *const parts[] = {"/rollcall/rehearse/", "/rollcall/zygote.py", "/rollcall/torch.py",
                                        "/rollcall/python/sitecustomize.py"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (memmem(path, bytes, parts[i], strlen(parts[i])) != NULL) {
            return true;
        }
    }
    return false;
}

#endif
