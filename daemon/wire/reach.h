/*
 * reach.h: why an endpoint gives no answer, as far as that can be seen from here. Any thread; waits for some seconds at
 * most.
 */
#ifndef ROLL_DAEMON_WIRE_REACH_H
#define ROLL_DAEMON_WIRE_REACH_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Writes what is wrong, and what to do next, as a part of a sentence. endpoint: tcp:// or ipc://. keys: with keys the
 * endpoint was asked; curve_dir: where they are from (NULL or "": the user's cookie).
 */
void roll_reach_why(const char *endpoint, bool keys, const char *curve_dir, char *out, size_t size);

#endif
