/*
 * proc_look.h: reads from /proc what concerns NCCL and this project in another process of the same user; changes
 * nothing.
 *
 * Used by the agent (agent_unseen.c) and by `rollcall doctor PID`, so that both mean the same by "NCCL is at work".
 */
#ifndef ROLL_DAEMON_STACK_PROC_LOOK_H
#define ROLL_DAEMON_STACK_PROC_LOOK_H

#include "trace/ident.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_LOOK_NCCLS 4u

struct roll_look {
    bool preload, audit;                  /* librollcall.so, librollcall_audit.so are mapped */
    char nccl[ROLL_LOOK_NCCLS][PATH_MAX]; /* libnccl.so*: their paths */
    unsigned nccls;
    char profiler[PATH_MAX]; /* a libnccl-profiler*.so; "" = none */
    char work[128];          /* the sign that NCCL is at work; "" = it is not */
};

/* The environment of a process when it was started. */
struct roll_look_env {
    char *text; /* owned */
    size_t bytes;
};

/* Reads maps and the names of the threads. 0, NOTFOUND (no such process), DENIED, IO. Any thread. */
int roll_look(uint32_t pid, struct roll_look *out);
/* Reads the environment. Errors as roll_look, NOMEM. */
int roll_look_env(uint32_t pid, struct roll_look_env *out);
void roll_look_env_fini(struct roll_look_env *env);
/* A variable of that environment, NULL when it is not set; borrowed. */
const char *roll_look_get(const struct roll_look_env *env, const char *name);
/* The run and rank that the environment of the process names. */
void roll_look_ident(const struct roll_look_env *env, struct roll_ident *out);
/* The parent of a process, and its number in its own pid namespace. */
struct roll_look_kin {
    uint32_t parent; /* 0 = none that can be seen from here */
    uint32_t inner;  /* number in its own pid namespace, which is also the number in its ring */
};
int roll_look_kin(uint32_t pid, struct roll_look_kin *out);
/* The program's file; "" when it cannot be read. */
void roll_look_exe(uint32_t pid, char out[PATH_MAX]);

#endif
