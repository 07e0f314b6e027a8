/*
 * node_read.c: how the sources of node facts read a file, and how one is told.
 */
#include "daemon/agent/node_facts.h"

#include "daemon/base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void roll_node_say(const struct roll_node *n, enum roll_fact kind, const char *format, ...)
{
    char text[ROLL_NODE_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (char *p = text; *p; p++) {
        *p = (unsigned char)*p < ' ' || (unsigned char)*p > '~' ? '?' : *p;
    }
    n->tell(n->ctx, kind, text);
}

int roll_node_read(const struct roll_node *n, const char *path, char *out, size_t size)
{
    char full[PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", n->root, path);
    if (roll_read_text(full, out, size) < 0) {
        return -1;
    }
    out[strcspn(out, "\n")] = '\0';
    return (int)strlen(out);
}

int64_t roll_node_number(const struct roll_node *n, const char *path)
{
    char text[64], *end;
    if (roll_node_read(n, path, text, sizeof(text)) <= 0) {
        return -1;
    }
    errno = 0;
    long long value = strtoll(text, &end, 0);
    return end == text || errno || value < 0 ? -1 : value;
}
