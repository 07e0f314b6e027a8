/*
 * top_screen.h: the full-screen face of `rollcall top`: paints the tables of top_view.h and reads keys.
 */
#ifndef ROLL_DAEMON_CONSOLE_TOP_TOP_SCREEN_H
#define ROLL_DAEMON_CONSOLE_TOP_TOP_SCREEN_H

#include <jansson.h>

/* Fetches the newest status and verdicts (returned owned). When there are none both stay NULL, and `why` holds a line
 * that says the reason. */
typedef void roll_top_fetch(void *context, json_t **status, json_t **verdicts, char *why, size_t why_size);

/* Runs until `q`, or a signal that ends it. Restores the terminal. 0, or ROLL_E_UNSUPPORTED without a usable terminal.
 */
int roll_top_screen(roll_top_fetch *fetch, void *context, double interval_s);

#endif
