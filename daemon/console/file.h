/*
 * file.h: the one line that says why a file cannot be read, and directories of our own.
 */
#ifndef ROLL_DAEMON_CONSOLE_FILE_H
#define ROLL_DAEMON_CONSOLE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#define ROLL_WANTED_TRACE    "a trace (.rtrc)"
#define ROLL_WANTED_RECORDED "a trace (.rtrc) or a ring (.ring)"
#define ROLL_WANTED_JUDGED   "a trace (.rtrc), a ring (.ring), a digest (.rdig), or another tool's dump"
#define ROLL_WANTED_DUMPED   "a ring (.ring), a trace (.rtrc) or a control page (.ctl)"
#define ROLL_NONE_RECORDED   "no trace (*.rtrc) and no ring (*.ring)"
#define ROLL_NONE_JUDGED     "no trace (*.rtrc), no ring (*.ring), no digest (*.rdig) and no dump of another tool"

/* One line on standard error: what is wrong with the file and what to do. wanted: what may be given there, "a trace
 * (.rtrc)". */
void roll_file_complain(const char *path, int err, const char *wanted);
/* Whether these are the first bytes of a file that rollcall writes, as far as they go. */
bool roll_file_is_ours(const void *bytes, size_t n);
/* One line on standard error: the places hold nothing of what is wanted, "no trace (*.rtrc) and no ring (*.ring)". */
void roll_file_say_none(const char *none, char *const *path, size_t paths);

/* Removes a directory with everything in it; follows no links. Returns 0 or ROLL_E_IO. */
int roll_directory_remove(const char *path);

#endif
