/*
 * files.h: the files of the world (files.c), as calls.c ends with them.
 */
#ifndef ROLL_TESTS_WORLD_FILES_H
#define ROLL_TESTS_WORLD_FILES_H

struct process;

/* Closes the folders that a process was reading. */
void files_free(const struct process *p);
/* The disk is a new one. */
void files_reset(void);

#endif
