/*
 * agent_unseen.c: finds processes that have our library and use NCCL, but none of whose calls was seen.
 *
 * The process itself cannot report this: our library is there, and nothing ever calls it. So the agent looks at the
 * processes of its user that have the library mapped, and notes those in which NCCL has been at work for some seconds
 * without a call in any ring. proc_look.c defines "at work". A process in which NCCL is not seen at work is not noted:
 * a missing note is better than a wrong one.
 *
 * The costs are one listing of /proc a second, and reading the maps of each process: once a second in the beginning,
 * later four times a minute; twice a minute for a process without our library.
 */
#include "daemon/agent/agent_unseen.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
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
    uint64_t look_ns;
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

static void examine(roll_unseen_t *u, struct process *p, uint64_t now, roll_unseen_seen_t *seen,
                    roll_unseen_tell_t *tell, void *ctx)
{
    struct roll_ident ident;
    p->next_ns = now + (p->idle < PATIENCE ? AGAIN_NS : LATER_NS);
    if (roll_look(p->pid, &u->look) != 0 || !u->look.preload || !is_ours(u, p->pid, &ident)) {
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

/* The entry of a process. A new process is first looked at after a while, when it runs its final program. */
static struct process *entry_of(roll_unseen_t *u, uint32_t pid, ino_t inode, uint64_t now)
{
    for (size_t i = 0; i < u->used; i++) {
        if (u->process[i].pid == pid && u->process[i].inode == inode) {
            return &u->process[i];
        }
    }
    if (ROLL_GROW(u->process, u->room, u->used + 1) != 0) {
        return NULL;
    }
    u->process[u->used] = (struct process){.pid = pid, .inode = inode, .next_ns = now + LOOK_NS};
    return &u->process[u->used++];
}

static void forget_gone(roll_unseen_t *u)
{
    for (size_t i = u->used; i-- > 0;) {
        if (!u->process[i].listed) {
            u->process[i] = u->process[--u->used];
        } else {
            u->process[i].listed = false;
        }
    }
}

void roll_unseen_look(roll_unseen_t *u, uint64_t now, roll_unseen_seen_t *seen, roll_unseen_tell_t *tell, void *ctx)
{
    if (!u || (u->look_ns != 0 && now - u->look_ns < LOOK_NS)) {
        return;
    }
    u->look_ns = now;
    DIR *d = opendir("/proc");
    if (!d) {
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (!isdigit((unsigned char)e->d_name[0]) || fstatat(dirfd(d), e->d_name, &st, 0) != 0 ||
            st.st_uid != geteuid()) {
            continue;
        }
        struct process *p = entry_of(u, (uint32_t)strtoul(e->d_name, NULL, 10), st.st_ino, now);
        if (!p) {
            continue;
        }
        p->listed = true;
        p->done = p->done || seen(ctx, p->pid);
        if (!p->done && now >= p->next_ns) {
            examine(u, p, now, seen, tell, ctx);
        }
    }
    closedir(d);
    forget_gone(u);
}
