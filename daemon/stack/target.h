/*
 * target.h: a live process as the stack helper sees it: its threads, its mappings, its memory, and, when looking is
 * refused, the reason. One thread. Nothing here stops or changes the process.
 */
#ifndef ROLL_DAEMON_STACK_TARGET_H
#define ROLL_DAEMON_STACK_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_STACK_THREADS_MAX 1024u /* threads of one process that are looked at; further ones are only counted */
#define ROLL_STACK_WHY_BYTES   320u

/* One line of /proc/PID/maps. */
struct roll_mapping {
    uint64_t start, end, offset;
    char *path; /* owned; "" for anonymous memory */
};

struct roll_target {
    pid_t pid;
    struct roll_mapping *map; /* ascending */
    size_t maps;
    bool other_root; /* the process has another mount namespace: its paths are below /proc/PID/root */
    struct roll_page_cache *pages;
};

struct roll_thread_info {
    pid_t tid;
    char name[17];
    char state; /* as in /proc/PID/stat: R S D T t Z ... */
};

/* What is known about a refusal; pure input of roll_refusal_text. */
struct roll_refusal {
    int error; /* errno of the refused call */
    uid_t ours, theirs;
    bool privileged;      /* we hold CAP_SYS_PTRACE and may use it: we are root, or of the target's user */
    int yama;             /* kernel.yama.ptrace_scope; -1 = no Yama */
    pid_t tracer;         /* process that traces the target already; 0 = none */
    bool filtered;        /* a seccomp filter applies to us */
    bool same_user_files; /* /proc/PID belongs to the target's user, so the target is dumpable */
};

/* Reads maps. Errors: NOTFOUND (no such process), DENIED (errno says why; another user's, unless we are root), NOMEM.
 * *out is owned. */
int roll_target_open(pid_t pid, struct roll_target **out);
void roll_target_close(struct roll_target **target);
/* Lists the threads, main thread first, at most max; *all becomes the number of all threads. Returns how many were
 * written; 0: the process has ended. */
size_t roll_target_threads(pid_t pid, struct roll_thread_info *out, size_t max, size_t *all);

/* Copies memory of the target, past the cache. Returns whether all of it could be read. */
bool roll_target_read(const struct roll_target *target, uint64_t address, void *out, size_t bytes);
/* Reads one word through a cache of pages. A page is read once: a target is opened for one look. */
bool roll_target_word(struct roll_target *target, uint64_t address, uint64_t *out);
/* The mapping that holds an address; NULL when none does. */
const struct roll_mapping *roll_target_mapping(const struct roll_target *target, uint64_t address);
/* The path by which a file of the target can be opened from here. Returns out. */
const char *roll_target_path(const struct roll_target *target, const char *path, char *out, size_t size);

/* Fills in, for the errno of a refused call, what /proc says about the target and about us. */
void roll_refusal_look(pid_t pid, int error, struct roll_refusal *out);
/* One line that says what refused and what to do. Pure. Returns out. */
const char *roll_refusal_text(const struct roll_refusal *refusal, char out[ROLL_STACK_WHY_BYTES]);

#endif
