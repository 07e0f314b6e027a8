/*
 * target.h: a live process as the stack helper sees it: its threads, what is mapped where, its memory, and, when it
 * will not be looked at, why not. One thread. Nothing here stops or changes the process.
 */
#ifndef ROLL_STACK_TARGET_H
#define ROLL_STACK_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_STACK_THREADS_MAX 1024u /* of one process; the rest is counted and said */
#define ROLL_STACK_WHY_BYTES   320u

/* One line of /proc/PID/maps. */
struct roll_map {
    uint64_t start, end, offset;
    bool writable;
    char *path; /* owned; "" for anonymous memory */
};

struct roll_target {
    pid_t pid;
    struct roll_map *map; /* ascending */
    size_t maps;
    bool other_root; /* another mount namespace: its paths are below /proc/PID/root */
    struct roll_page_cache *pages;
    uint64_t moment; /* advanced by roll_target_moment: what is writable is read anew */
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
    bool privileged;      /* we hold CAP_SYS_PTRACE, and it counts: we are root, or of its user */
    int yama;             /* kernel.yama.ptrace_scope; -1 = no Yama */
    pid_t tracer;         /* who traces the target already; 0 = nobody */
    bool filtered;        /* a seccomp filter is on us */
    bool same_user_files; /* /proc/PID belongs to its user: it is dumpable */
};

/* Reads maps. Errors: NOTFOUND (no such process), DENIED (errno says why; another user's, unless we are root), NOMEM.
 * *out is owned. */
int roll_target_open(pid_t pid, struct roll_target **out);
void roll_target_close(struct roll_target **target);
/* The threads, main thread first, at most max; *all is how many there are. Returns those written; 0: the process has
 * ended. */
size_t roll_target_threads(pid_t pid, struct roll_thread_info *out, size_t max, size_t *all);

/* Copies memory. Returns whether all of it could be read. Not from a cache. */
bool roll_target_read(const struct roll_target *target, uint64_t address, void *out, size_t bytes);
/* One word, through a cache of pages: what can be written is kept until the next moment, the rest for good. */
bool roll_target_word(struct roll_target *target, uint64_t address, uint64_t *out);
void roll_target_moment(struct roll_target *target);
/* The mapping that holds an address; NULL when none does. */
const struct roll_map *roll_target_map(const struct roll_target *target, uint64_t address);
/* Where a path of the target can be opened from here. Returns out. */
const char *roll_target_path(const struct roll_target *target, const char *path, char *out, size_t size);

/* Fills in what /proc says about target and us, for an errno. */
void roll_refusal_look(pid_t pid, int error, struct roll_refusal *out);
/* One line that says what refused and what to do. Pure. Returns out. */
const char *roll_refusal_text(const struct roll_refusal *refusal, char out[ROLL_STACK_WHY_BYTES]);

#endif
