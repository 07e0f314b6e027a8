/*
 * source_line.c: see source_line.h.
 */
#include "trace/source_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *roll_source_line_text(char *out, size_t size, const char *file, uint32_t line, const char *function)
{
    const char *slash = strrchr(file, '/');
    snprintf(out, size, "%.80s:%" PRIu32 "%s%.80s", slash != NULL ? slash + 1 : file, line,
             function[0] != '\0' ? " " : "", function);
    return out;
}
