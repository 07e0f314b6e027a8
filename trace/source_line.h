/*
 * source_line.h: how a line of a program is written where one line of text has room for it: "train.py:91 main". One
 * form for verdicts, tables and reports, so that a reader finds in one what another said. Pure.
 */
#ifndef ROLL_TRACE_SOURCE_LINE_H
#define ROLL_TRACE_SOURCE_LINE_H

#include <stddef.h>
#include <stdint.h>

/* Writes the file without its folder, the number and the function; an empty function is left out. What does not fit is
 * cut. Any thread. Returns out. */
const char *roll_source_line_text(char *out, size_t size, const char *file, uint32_t line, const char *function);

#endif
