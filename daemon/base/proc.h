/*
 * proc.h: what the kernel says of processes and of the node. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_PROC_H
#define ROLL_DAEMON_BASE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A line of /proc/PID/stat, or of a thread's. */
struct roll_proc_stat {
    char name[17];        /* of the program or the thread: anything may be in it */
    char state;           /* R S D T t Z ...; ? = not said */
    uint64_t start_ticks; /* since the node was started; 0 = not said */
};

/* The stat of a process; of its thread `tid` where that is not 0. 0; NOTFOUND when it has ended, also while it was
 * read; the errors of roll_read_text. */
int roll_proc_stat(pid_t pid, pid_t tid, struct roll_proc_stat *out);
/* The same from the line itself. False when it is none. Pure. */
bool roll_proc_stat_parse(const char *line, struct roll_proc_stat *out);

/*
 * What stands behind `word` in the line of `text` that begins with `line`; with an empty word right behind that
 * beginning. NULL when there is no such line, or the word is not in it. Borrowed from text. Pure.
 * ("Uid:", "") of /proc/PID/status; ("some ", "avg10=") of /proc/pressure/cpu.
 */
const char *roll_proc_word(const char *text, const char *line, const char *word);

/* What tells this start of the node from every other: 16 bytes, borrowed; all 0 when it is not to be had. */
const uint8_t *roll_proc_boot_id(void);

#endif
