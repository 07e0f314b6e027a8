/*
 * agent_unseen.c: finds processes that have our library and use NCCL, but none of whose calls was seen.
 *
 * The process itself cannot report this: our library is there, and nothing ever calls it. So the agent looks at the
 * processes of its user that have the library mapped, and notes those in which NCCL has been at work for some seconds
 * without a call in any ring. proc_look.c defines "at work". A process in which NCCL is not seen at work is not noted:
 * a missing note is better than a wrong one.
 *
 * The costs are one listing of /proc a second, if a process or thread has begun since the last one, and reading the
 * maps of each process that may have our library: once a second in the beginning, later four times a minute; of others
 * the environment, twice a minute.
 */
#include "daemon/agent/agent_unseen.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/stack/proc_look.h"
#include "trace/ident.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS  (1000 * ROLL_MS)
#define AGAIN_NS (1000 * ROLL_MS) /* between two looks at a process that has our library */
#define LATER_NS                                                                                                       \
    (15000 *                                                                                                           \
     ROLL_MS) /* the same, when PATIENCE looks have found no work: reading the maps of a large process takes long */
#define PATIENCE 30
#define OTHERS_NS                                                                                                      \
    (30000 * ROLL_MS) /* between two looks at a process without our library, which may execute another program */
#define LIST_NS   (10000 * ROLL_MS) /* /proc is listed this often whatever the kernel tells */
#define ANCESTORS 16
#define WORK_NS   (3000 * ROLL_MS) /* NCCL must have worked for this long without a call being seen */

struct process {
    uint32_t pid;
    ino_t inode; /* inode of the directory in /proc, which differs for another process of the same number */
    uint64_t next_ns, work_ns; /* when the process is looked at again; since when NCCL works there, 0 = not seen yet */
    unsigned idle;             /* looks that have found no work */
    bool done, known, listed;
};

struct roll_unseen {
    char dir[PATH_MAX], fallback[PATH_MAX], host[ROLL_JOB_BYTES];
    uint64_t look_ns, list_ns;
    uint64_t last_pid; /* the last number that was given to a process or thread when /proc was listed; 0: not known */
    struct process *process;
    size_t used, room;
    struct roll_look look; /* large */
};

roll_unseen_t *roll_unseen_new(const char *dir, const char *host)
{
    roll_unseen_t *u = calloc(1, sizeof(*u));
    if (!u) {
        return NULL;
    }
    if (roll_default_dir(u->fallback, sizeof(u->fallback)) != 0) {
        roll_unseen_destroy(&u);
        return NULL;
    }
    if (!realpath(dir, u->dir)) {
        snprintf(u->dir, sizeof(u->dir), "%s", dir);
    }
    snprintf(u->host, sizeof(u->host), "%s", host);
    return u;
}

void roll_unseen_destroy(roll_unseen_t **unseen)
{
    if (*unseen) {
        free((*unseen)->process);
        free(*unseen);
        *unseen = NULL;
    }
}

void roll_unseen_again(roll_unseen_t *u)
{
    for (size_t i = 0; u && i < u->used; i++) {
        u->process[i].done = false;
        u->process[i].next_ns = 0;
    }
}

/* Whether this process would put its ring into our directory; *ident is then its identity. */
static bool is_ours(const roll_unseen_t *u, uint32_t pid, struct roll_ident *ident)
{
    char real[PATH_MAX];
    struct roll_look_env env;
    if (roll_look_env(pid, &env) != 0) {
        return false;
    }
    const char *off = roll_look_get(&env, "ROLLCALL_DISABLE"), *dir = roll_look_get(&env, "ROLLCALL_DIR");
    dir = dir && *dir ? dir : u->fallback;
    bool ours = (strcmp(dir, u->dir) == 0 || (realpath(dir, real) && strcmp(real, u->dir) == 0)) &&
                !(off && strcmp(off, "1") == 0);
    roll_look_ident(&env, ident);
    roll_look_env_fini(&env);
    return ours;
}

static void tell_of(roll_unseen_t *u, uint32_t pid, const struct roll_ident *ident, const char *reason,
                    roll_unseen_tell_t *tell, void *ctx)
{
    char exe[PATH_MAX];
    roll_look_exe(pid, exe);
    const char *base = strrchr(exe, '/');
    json_t *note = json_pack("{s:s,s:i,s:i,s:s,s:s#,s:s,s:s,s:i}", "note", "attached-unseen", "pid", (int)pid, "rank",
                             (int)ident->rank, "host", u->host, "exe", base ? base + 1 : exe,
                             (int)strnlen(base ? base + 1 : exe, 120), "reason", reason, "job", ident->job, "restart",
                             (int)ident->restart);
    if (note) {
        tell(ctx, note);
    }
    json_decref(note);
}

/*
 * Whether the process is seen after all. It may have a ring under the number that it has in its container. Or it was
 * forked, without exec, from a rank that has one: then it holds the memory of that rank's communicators and makes no
 * call (a data loader's worker). Once found, this holds for as long as the process lives.
 */
static bool is_known(uint32_t pid, roll_unseen_seen_t *seen, void *ctx)
{
    char exe[PATH_MAX], theirs[PATH_MAX];
    struct roll_look_kin kin;
    roll_look_exe(pid, exe);
    for (int up = 0; up < ANCESTORS && pid > 1 && roll_look_kin(pid, &kin) == 0; up++, pid = kin.parent) {
        roll_look_exe(pid, theirs);
        if (exe[0] == '\0' || strcmp(exe, theirs) != 0) {
            return false;
        }
        if (seen(ctx, pid) || seen(ctx, kin.inner)) {
            return true;
        }
    }
    return false;
}

/*
 * Whether our library may be in a process, by its environment, which is read much faster than its maps: on a node with
 * some hundred processes their maps alone cost more than all else that an agent does. The preload stands there, and
 * what else sets rollcall up. Maps decide where the system preloads for everybody, and where no environment is to be
 * seen.
 */
static bool may_have_library(uint32_t pid)
{
    struct roll_look_env env;
    if (access("/etc/ld.so.preload", F_OK) == 0 || roll_look_env(pid, &env) != 0) {
        return true;
    }
    bool may = memchr(env.text, '=', env.bytes) == NULL || memmem(env.text, env.bytes, "rollcall", 8) != NULL ||
               memmem(env.text, env.bytes, "ROLLCALL_", 9) != NULL;
    roll_look_env_fini(&env);
    return may;
}

static void examine(roll_unseen_t *u, struct process *p, uint64_t now, roll_unseen_seen_t *seen,
                    roll_unseen_tell_t *tell, void *ctx)
{
    struct roll_ident ident;
    p->next_ns = now + (p->idle < PATIENCE ? AGAIN_NS : LATER_NS);
    if (!may_have_library(p->pid) || roll_look(p->pid, &u->look) != 0 || !u->look.preload ||
        !is_ours(u, p->pid, &ident)) {
        p->next_ns = now + OTHERS_NS;
        p->work_ns = 0;
        return;
    }
    if (u->look.work[0] == '\0') {
        p->work_ns = 0;
        p->idle++;
        return;
    }
    p->idle = 0;
    p->next_ns = now + AGAIN_NS;
    if (p->known || is_known(p->pid, seen, ctx)) {
        p->done = p->known = true;
    } else if (p->work_ns == 0) {
        p->work_ns = now;
    } else if (now - p->work_ns >= WORK_NS) {
        p->done = true;
        tell_of(u, p->pid, &ident, u->look.work, tell, ctx);
    }
}

/* The entry of a process, or NULL. /proc is listed by number, and entries are kept in the order of their first listing:
 * so the next one that is asked for is nearly always behind the last that was found (*at). */
static struct process *find(roll_unseen_t *u, uint32_t pid, ino_t inode, size_t *at)
{
    for (size_t tried = 0; tried < u->used; tried++) {
        *at = *at + 1 < u->used ? *at + 1 : 0;
        if (u->process[*at].pid == pid && u->process[*at].inode == inode) {
            return &u->process[*at];
        }
    }
    return NULL;
}

static void forget_gone(roll_unseen_t *u)
{
    size_t kept = 0;
    for (size_t i = 0; i < u->used; i++) {
        if (u->process[i].listed) {
            u->process[kept] = u->process[i];
            u->process[kept++].listed = false;
        }
    }
    u->used = kept;
}

/* A new process is first looked at after a while, when it runs its final program. */
static void list(roll_unseen_t *u, uint64_t now)
{
    DIR *d = opendir("/proc");
    size_t at = 0;
    if (!d) {
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) {
            continue;
        }
        uint32_t pid = (uint32_t)strtoul(e->d_name, NULL, 10);
        struct process *p = find(u, pid, e->d_ino, &at);
        if (!p && ROLL_GROW(u->process, u->room, u->used + 1) == 0) {
            p = &u->process[u->used++];
            *p = (struct process){.pid = pid, .inode = e->d_ino, .next_ns = now + LOOK_NS};
        }
        if (p) {
            p->listed = true;
        }
    }
    closedir(d);
    forget_gone(u);
}

/* Whether a process may have begun since the last listing: the kernel tells the last number that it gave away. */
static bool may_be_new(roll_unseen_t *u, uint64_t now)
{
    char text[128];
    const char *last = roll_read_text("/proc/loadavg", text, sizeof(text)) > 0 ? strrchr(text, ' ') : NULL;
    uint64_t number = last ? strtoull(last, NULL, 10) : 0;
    bool same = number != 0 && number == u->last_pid && now - u->list_ns < LIST_NS;
    u->last_pid = number;
    u->list_ns = same ? u->list_ns : now;
    return !same;
}

/* Whether the process is of our user: others may become that (a launcher's child), and are asked again. */
static bool is_own(const struct process *p)
{
    struct stat st;
    char path[32];
    snprintf(path, sizeof(path), "/proc/%u", p->pid);
    return stat(path, &st) == 0 && st.st_uid == geteuid();
}

void roll_unseen_look(roll_unseen_t *u, uint64_t now, roll_unseen_seen_t *seen, roll_unseen_tell_t *tell, void *ctx)
{
    if (!u || (u->look_ns != 0 && now - u->look_ns < LOOK_NS)) {
        return;
    }
    u->look_ns = now;
    if (may_be_new(u, now)) {
        list(u, now);
    }
    for (size_t i = 0; i < u->used; i++) {
        struct process *p = &u->process[i];
        p->done = p->done || seen(ctx, p->pid);
        if (p->done || now < p->next_ns) {
            continue;
        }
        if (is_own(p)) {
            examine(u, p, now, seen, tell, ctx);
        } else {
            p->next_ns = now + OTHERS_NS;
        }
    }
}
