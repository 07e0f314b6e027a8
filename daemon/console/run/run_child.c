/*
 * run_child.c: what a child does between fork and exec to become a rank, or a zygote: its process group, which the
 * warden guards, and the environment that all ranks have alike.
 */
#include "daemon/console/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof(text), "%u", value);
    roll_env_set(name, text, true);
}

/* Sets what all ranks have alike. */
static void set_world(const struct roll_run_options *o, int port)
{
    if (o->ranks == 0) {
        return;
    }
    set_number("WORLD_SIZE", o->ranks);
    set_number("LOCAL_WORLD_SIZE", o->nodes > 1 ? o->ranks / o->nodes : o->ranks);
    if (o->nodes > 1) {
        set_number("GROUP_WORLD_SIZE", o->nodes);
    }
    if (getenv("MASTER_ADDR") == NULL) {
        roll_env_set("MASTER_ADDR", "127.0.0.1", true);
    }
    if (getenv("MASTER_PORT") == NULL) {
        set_number("MASTER_PORT", (uint32_t)port);
    }
}

static void set_common(const struct roll_run_options *o, const struct roll_place *place, const char *dir)
{
    char path[PATH_MAX];
    if (dir[0] != '\0') {
        roll_env_set("ROLLCALL_DIR", dir, true);
    }
    if (place->daemon[0] != '\0') {
        roll_env_set("ROLLCALL_BIN", place->daemon, true);
    }
    if (o->policy != NULL) {
        roll_env_set("ROLLCALL_POLICY", o->policy, true);
    }
    if (o->on_mismatch != NULL) {
        roll_env_set("ROLLCALL_ON_MISMATCH", o->on_mismatch, true);
    }
    if (o->quiet) {
        roll_env_set("ROLLCALL_QUIET", "1", true);
    }
    if (o->daemon != NULL) {
        roll_env_set("ROLLCALL_DAEMON", o->daemon, true);
    } else {
        /* The root of this run is ours; a rank must not start an agent for another. */
        unsetenv("ROLLCALL_DAEMON");
    }
    if (o->behind != NULL && (o->bound == NULL || !o->bound->plugin)) { /* a plugin is for an NCCL that is linked in */
        roll_env_prepend("LD_PRELOAD", o->behind);
    }
    if (place->preload[0] != '\0') {
        roll_env_prepend("LD_PRELOAD", place->preload);
        roll_bind_apply(o->bound, place);
        if (o->nvtx) {
            roll_env_set("NVTX_INJECTION64_PATH", place->preload, false); /* a profiler's stays */
        }
    }
    if (o->python_stacks && place->python[0] != '\0') {
        roll_env_prepend("PYTHONPATH", place->python);
    }
    if (o->hostnccl) {
        roll_env_prepend("LD_LIBRARY_PATH", place->hostnccl);
        if (dir[0] != '\0') {
            /* This directory is made here, because the ranks meet in it before the library has seen it. */
            snprintf(path, sizeof(path), "%s/hostnccl", dir);
            mkdir(path, 0700);
            roll_env_set("HOSTNCCL_DIR", path, false);
        }
    }
}

_Noreturn void roll_run_become(const struct roll_run_options *o, const struct roll_place *place, const char *dir,
                               const sigset_t *mask, struct roll_warden *warden, int port, char *const command[],
                               int error_fd)
{
    setpgid(0, 0);
    roll_warden_guard_group(warden,
                            getpid()); /* before the job's program runs, because we may be killed at any moment */
    if (o->ranks > 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        close(null);
    }
    set_common(o, place, dir);
    set_world(o, port);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGTTOU, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    int code = roll_env_lacks();
    if (code == 0) {
        execvp(command[0], command);
        code = errno;
    }
    ssize_t n = error_fd >= 0 ? write(error_fd, &code, sizeof(code)) : 0;
    (void)n;
    _exit(code == ENOENT ? 127 : 126);
}
