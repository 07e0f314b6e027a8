/*
 * flight.h: dumps of PyTorch's Flight Recorder. One thread per dump.
 */
#ifndef ROLL_DAEMON_DUMPS_FLIGHT_H
#define ROLL_DAEMON_DUMPS_FLIGHT_H

#include "daemon/dumps/dump.h"
#include "daemon/dumps/value.h"

/* These values are such a dump, whole or not. */
bool roll_flight_is(const struct roll_value *top);
/* Fills in a new dump; bytes: the size of the file, which bounds the work. 0; CORRUPT, with words in `why`; NOMEM,
 * LIMIT. */
int roll_flight_read(const struct roll_value *top, size_t bytes, struct roll_rank_lists *lists, struct roll_dump *dump,
                     char *why, size_t size);

#endif
