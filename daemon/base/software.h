/*
 * software.h: which rollcall, kernel and C library this process runs on. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_SOFTWARE_H
#define ROLL_DAEMON_BASE_SOFTWARE_H

#include <jansson.h>

/* {"rollcall", "kernel", "libc", "machine"}, texts; owned; NULL without memory. */
json_t *roll_software_json(void);

#endif
