/*
 * units.h: amounts as people write them on a command line, and as they like to read them. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_UNITS_H
#define ROLL_DAEMON_BASE_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A size like 65536, 64K, 16M, 2G or 1T, in bytes. False for anything else and for a number that is too large; *out is
 * undefined then. */
bool roll_units_bytes(const char *text, uint64_t *out);
/* A time like 90s, 12h or 7d, in ns; without a letter in seconds. False for anything else, for 0 and above 100 years;
 * *out_ns is 0 then. */
bool roll_units_time(const char *text, uint64_t *out_ns);
/* "12 B", "3.4 MiB". Returns out. */
const char *roll_units_bytes_text(double bytes, char *out, size_t size);

#endif
