/*
 * doctor_process.c: checks what rollcall sees of a running process, and if it sees nothing, why.
 *
 * Everything comes from /proc and the ring directory: the process is neither attached to nor made to run anything.
 */
#include "daemon/base/file.h"
#include "daemon/console/doctor/doctor.h"
#include "daemon/stack/proc_look.h"

#include "trace/def.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How the calls of the process came into its ring. */
struct seen {
    bool ring;
    char path[PATH_MAX + 300];
    uint64_t records, by_plugin;
    uint32_t lines; /* of Python that are defined */
};

/* How many lines of Python the ring's definitions name. */
static uint32_t count_lines(const struct roll_ring *ring)
{
    uint64_t used = atomic_load_explicit(&ring->header->defs_used, memory_order_acquire);
    size_t limit = (size_t)(used < ring->defs_bytes ? used : ring->defs_bytes), at = 0;
    struct roll_def def;
    uint32_t lines = 0;
    while (at < limit && roll_def_decode(ring->defs, limit, &at, &def) == 0) {
        lines += def.type == ROLL_DEF_LINE;
    }
    return lines;
}

static void read_ring(const char *path, uint32_t pid, struct seen *seen)
{
    struct roll_ring ring;
    if (roll_ring_open(path, false, &ring) != 0) {
        return;
    }
    if (ring.header->pid == pid) {
        seen->ring = true;
        snprintf(seen->path, sizeof(seen->path), "%s", path);
        seen->records = roll_ring_head(&ring);
        uint64_t kept = seen->records < ring.mask + 1 ? seen->records : ring.mask + 1;
        for (uint64_t i = 0; i < kept; i++) {
            seen->by_plugin += (ring.records[i].flags & ROLL_FLAG_PLUGIN) != 0;
        }
        seen->lines = count_lines(&ring);
    }
    roll_ring_close(&ring);
}

static void find_ring(const struct roll_look_env *env, uint32_t pid, struct seen *seen)
{
    char dir[PATH_MAX], path[PATH_MAX + 300];
    const char *named = roll_look_get(env, "ROLLCALL_DIR");
    *seen = (struct seen){0};
    if (named != NULL && named[0] != '\0') {
        snprintf(dir, sizeof(dir), "%s", named);
    } else if (roll_default_dir(dir, sizeof(dir)) != 0) {
        return;
    }
    DIR *d = opendir(dir);
    for (struct dirent *e; d != NULL && !seen->ring && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".ring") == 0 && e->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
            read_ring(path, pid, seen);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

static void say_nccl(struct roll_checkup *c, const struct roll_look *look, const struct roll_study *s)
{
    char release[32];
    for (unsigned i = 0; i < look->nccls; i++) {
        bool told = roll_nccl_release(look->nccl[i], release, sizeof(release));
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_OK, "%s%s%s", look->nccl[i], told ? ", release " : "",
                         told ? release : "");
    }
    if (s->program.defines_nccl) {
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_OK, "inside the program (static libnccl)");
    }
    if (look->nccls > 1) {
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_WARN, "%u NCCLs in one process: each is recorded by itself",
                         look->nccls);
    } else if (look->nccls == 0 && !s->program.defines_nccl) {
        roll_checkup_say(c, "its nccl", ROLL_HEALTH_INFO, "no libnccl.so is mapped%s",
                         look->work[0] != '\0' ? ": it is linked into one of its libraries" : "");
    }
    roll_checkup_say(c, "at work", ROLL_HEALTH_INFO, "%s",
                     look->work[0] != '\0' ? look->work : "NCCL shows no communicator");
}

static void say_bindings(struct roll_checkup *c, const struct roll_look *look, const struct roll_look_env *env)
{
    const char *plugin = roll_look_get(env, "NCCL_PROFILER_PLUGIN"),
               *chained = roll_look_get(env, "ROLLCALL_CHAIN_PROFILER");
    bool ours = plugin != NULL && strstr(plugin, "librollcall.so") != NULL;
    roll_checkup_say(c, "by preload", look->preload ? ROLL_HEALTH_OK : ROLL_HEALTH_WARN, "%s",
                     look->preload ? "librollcall.so is in it" : "librollcall.so is not in it");
    roll_checkup_say(c, "by audit", ROLL_HEALTH_INFO, "%s", look->audit ? "librollcall_audit.so is in it" : "not used");
    roll_checkup_say(c, "by plugin", ours ? ROLL_HEALTH_OK : ROLL_HEALTH_INFO, "%s%s%s%s",
                     ours                        ? "NCCL_PROFILER_PLUGIN names librollcall.so"
                     : plugin != NULL            ? "NCCL_PROFILER_PLUGIN is taken by "
                     : look->profiler[0] != '\0' ? "NCCL has loaded "
                                                 : "not used",
                     ours             ? ""
                     : plugin != NULL ? plugin
                                      : look->profiler,
                     ours && chained != NULL ? ", chained to " : "", ours && chained != NULL ? chained : "");
}

static void conclude(struct roll_checkup *c, const struct roll_look *look, const struct seen *seen, bool disabled)
{
    if (seen->records > 0) {
        roll_checkup_conclude(c, ROLL_HEALTH_OK, "Its NCCL calls are seen%s.",
                              seen->by_plugin > 0 ? ", by NCCL's profiler plugin: without reductions and call sites"
                                                  : "");
    } else if (disabled) {
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "Nothing is seen: it runs with ROLLCALL_DISABLE=1.");
    } else if (!look->preload) {
        roll_checkup_conclude(
            c, ROLL_HEALTH_FAIL,
            "Nothing is seen: it was not started under rollcall (`rollcall run -- COMMAND`, or LD_PRELOAD).");
    } else if (look->work[0] != '\0') {
        roll_checkup_conclude(
            c, ROLL_HEALTH_FAIL,
            "NCCL is at work in it and nothing is seen: NCCL is linked in or bound past the preload; start "
            "it with `rollcall run --bind=plugin` (NCCL 2.23 or newer).");
    } else {
        roll_checkup_conclude(c, ROLL_HEALTH_OK, "It has made no NCCL call yet; the first will be seen.");
    }
}

enum roll_health roll_ptrace_words(int scope, bool root, char *out, size_t size)
{
    bool closed = scope >= 3 || (scope == 2 && !root);
    if (closed) {
        snprintf(out, size, "kernel.yama.ptrace_scope is %d: stacks cannot be read%s; everything else works", scope,
                 scope >= 3 ? " by anybody" : " but by root");
    } else {
        snprintf(out, size, "%s",
                 scope == 1 && !root ? "may be read: ranks allow it themselves (ptrace_scope 1)" : "may be read");
    }
    return closed ? ROLL_HEALTH_WARN : ROLL_HEALTH_OK;
}

void roll_checkup_ptrace(struct roll_checkup *c)
{
    char text[160];
    roll_read_text("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text));
    int scope = atoi(text);
    enum roll_health health = roll_ptrace_words(scope, geteuid() == 0, text, sizeof(text));
    roll_checkup_say(c, "stacks", health, "%s", text);
}

void roll_checkup_process(struct roll_checkup *c, uint32_t pid)
{
    static struct roll_look look; /* large */
    static struct roll_study study;
    struct roll_look_env env = {0};
    struct roll_ident ident;
    struct seen seen;
    char exe[PATH_MAX];
    int err = roll_look(pid, &look);
    err = err != 0 ? err : roll_look_env(pid, &env);
    if (err == ROLL_E_NOTFOUND && kill((pid_t)pid, 0) != 0 && errno == ESRCH) {
        roll_checkup_say(c, "process", ROLL_HEALTH_FAIL,
                         "there is no process %u here: it has ended, or has another number outside its container", pid);
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "There is no process %u to look at.", pid);
        return;
    }
    if (err != 0) {
        roll_checkup_say(c, "process", ROLL_HEALTH_FAIL, "%u: %s; only your own processes can be looked at", pid,
                         roll_strerror(err));
        roll_checkup_conclude(c, ROLL_HEALTH_FAIL, "Process %u cannot be looked at.", pid);
        return;
    }
    roll_look_exe(pid, exe);
    memset(&study, 0, sizeof(study));
    (void)roll_program_inspect(exe, &study.program);
    roll_look_ident(&env, &ident);
    if (ident.rank >= 0) {
        roll_checkup_say(c, "process", ROLL_HEALTH_OK, "%u is %s, rank %d of job %s", pid, exe, ident.rank, ident.job);
    } else {
        roll_checkup_say(c, "process", ROLL_HEALTH_OK, "%u is %s, of job %s", pid, exe, ident.job);
    }
    say_nccl(c, &look, &study);
    say_bindings(c, &look, &env);
    find_ring(&env, pid, &seen);
    if (seen.ring) {
        roll_checkup_say(c, "its ring", ROLL_HEALTH_OK,
                         "%s: %" PRIu64 " records, %" PRIu64 " of those kept by the plugin", seen.path, seen.records,
                         seen.by_plugin);
        struct roll_ring ring;
        if (roll_ring_open(seen.path, false, &ring) == 0) {
            roll_checkup_ring_history(c, &ring);
            roll_ring_close(&ring);
        }
        roll_checkup_python_lines(c, exe, seen.records, seen.lines);
    } else {
        roll_checkup_say(c, "its ring", ROLL_HEALTH_INFO, "it has none");
    }
    const char *off = roll_look_get(&env, "ROLLCALL_DISABLE");
    conclude(c, &look, &seen, off != NULL && strcmp(off, "1") == 0);
    roll_look_env_fini(&env);
}
