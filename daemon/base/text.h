/*
 * text.h: UTF-8 text on a terminal: how wide it is, cut to a width, broken into lines. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_TEXT_H
#define ROLL_DAEMON_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Whether a file is the C library by its name: without debug information it has no names for what begins a program. */
bool roll_path_is_libc(const char *path);

/* Terminal columns that UTF-8 text takes; control bytes count as one. */
size_t roll_text_width(const char *text);
/* Cuts text to `width` columns, at a character's boundary, with an ellipsis when something was cut. */
void roll_text_fit(char *text, size_t size, size_t width);

/* Makes what would steer a terminal blanks, in place; line ends stay. */
void roll_text_plain(char *text, size_t bytes);

/* Prints text of another process: what would steer a terminal shows as a blank. */
void roll_text_put(const char *text, size_t bytes, FILE *out);
/*
 * Prints paragraphs, likewise, broken between words so that no line is wider than `width` columns, except where a
 * single word is. The first line begins where the cursor is, in column `indent`; the others begin with as many blanks.
 */
void roll_text_wrap(const char *text, size_t indent, size_t width, FILE *out);
/* How many columns a paragraph may have there: those of the terminal, and 100 where it has more or there is none. */
unsigned roll_columns_wanted(int fd);
/* The same for what is one line where no person reads it: 0, so any width, where there is no terminal, or one that does
 * not say how wide it is. */
unsigned roll_columns_terminal(int fd);

#endif
