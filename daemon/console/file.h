/*
 * file.h: the one line that says why a file cannot be read, and directories of our own.
 */
#ifndef ROLL_DAEMON_CONSOLE_FILE_H
#define ROLL_DAEMON_CONSOLE_FILE_H

/* One line on standard error: what is wrong with the file and what to do. */
void roll_file_complain(const char *path, int err);

/* Removes a directory with everything in it; follows no links. Returns 0 or ROLL_E_IO. */
int roll_directory_remove(const char *path);

#endif
