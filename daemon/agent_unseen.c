/*
 * agent_unseen.c: "attached but saw nothing", found from outside.
 *
 * The process itself cannot say it: our library is there, and nothing ever calls it. So the agent looks at the processes of its user that have
 * it mapped: is NCCL at work in there, and for some seconds, without a call in any ring? That NCCL is mapped is no work (PyTorch maps it in
 * every program). Work is what only a communicator brings: threads that NCCL has named (NCCL_SET_THREAD_NAME=1, which `rollcall run`
 * sets), or its shared memory. A process that shows neither is not spoken of: a missing note is better than a wrong one.
 *
 * Costs: one listing of /proc a second; the maps of a process are read a few times in its life, those of one without our
 * library twice a minute.
 */
#include "daemon/agent_unseen.h"

#include "daemon/clock.h"
#include "trace/ident.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_NS   (1000 * ROLL_MS)
#define AGAIN_NS  (1000 * ROLL_MS)  /* between two looks at a process that has our library */
#define OTHERS_NS (30000 * ROLL_MS) /* and at one that has not: it may execute another program */
#define WORK_NS   (3000 * ROLL_MS)  /* NCCL has worked for so long, and nothing was seen */
#define TEXT_MAX  (256u * 1024u)

struct process {
    uint32_t pid;
    ino_t inode;               /* of its directory in /proc: another process under the same number has another */
    uint64_t next_ns, work_ns; /* when it is looked at again; since when NCCL works there, 0 = not seen yet */
    bool done, listed;
};

struct roll_unseen {
    char dir[PATH_MAX], fallback[PATH_MAX], host[ROLL_JOB_BYTES];
    uint64_t look_ns;
    struct process *process;
    size_t used, room;
    char *text; /* TEXT_MAX + 1 bytes, for a file of /proc */
};

/* Shared memory that exists as long as a communicator does: by the beginning of its file's name. */
static const char *const memory[] = {"nccl-", "hn-"};

roll_unseen_t *roll_unseen_new(const char *dir, const char *host)
{
    roll_unseen_t *u = calloc(1, sizeof *u);
    if (!u) {
        return NULL;
    }
    u->text = malloc(TEXT_MAX + 1);
    if (!u->text || roll_default_dir(u->fallback, sizeof u->fallback) != 0) {
        roll_unseen_destroy(&u);
        return NULL;
    }
    if (!realpath(dir, u->dir)) {
        snprintf(u->dir, sizeof u->dir, "%s", dir);
    }
    snprintf(u->host, sizeof u->host, "%s", host);
    return u;
}

void roll_unseen_destroy(roll_unseen_t **unseen)
{
    if (*unseen) {
        free((*unseen)->process);
        free((*unseen)->text);
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

/* Reads a file of /proc/PID into u->text, terminated. Bytes read, -1 when it cannot be read. */
static ssize_t slurp(roll_unseen_t *u, uint32_t pid, const char *name)
{
    char path[64];
    size_t used = 0;
    snprintf(path, sizeof path, "/proc/%u/%s", pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    for (ssize_t n; used < TEXT_MAX && (n = read(fd, u->text + used, TEXT_MAX - used)) > 0;) {
        used += (size_t)n;
    }
    close(fd);
    u->text[used] = '\0';
    return (ssize_t)used;
}

/* The file name at the end of a line of maps; NULL where there is none. */
static const char *mapped_name(char *line)
{
    char *slash = strrchr(line, '/');
    return slash ? slash + 1 : NULL;
}

/* What the maps tell. True when our library is among them. */
static bool read_maps(roll_unseen_t *u, uint32_t pid, char *reason, size_t size)
{
    bool ours = false;
    if (slurp(u, pid, "maps") < 0) {
        return false;
    }
    for (char *line = u->text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = '\0';
        }
        const char *name = mapped_name(line);
        ours = ours || (name && strncmp(name, "librollcall.so", 14) == 0);
        for (size_t i = 0; name && i < sizeof memory / sizeof memory[0] && !*reason; i++) {
            if (strncmp(name, memory[i], strlen(memory[i])) == 0) {
                snprintf(reason, size, "its shared memory %.*s is mapped", (int)strcspn(name, " "), name);
            }
        }
    }
    return ours;
}

static void read_threads(uint32_t pid, char *reason, size_t size)
{
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && !*reason && (e = readdir(d)) != NULL;) {
        char file[400];
        snprintf(file, sizeof file, "/proc/%u/task/%s/comm", pid, e->d_name);
        int fd = open(file, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, name, sizeof name - 1) : -1;
        if (fd >= 0) {
            close(fd);
        }
        name[n > 0 ? n : 0] = '\0';
        name[strcspn(name, "\n")] = '\0';
        if (strncmp(name, "NCCL ", 5) == 0) {
            snprintf(reason, size, "its thread %s runs", name);
        }
    }
    if (d) {
        closedir(d);
    }
}

/* ---- the environment of another process, in getenv's shape ---- */

static const char *block;
static size_t block_bytes;

static const char *their(const char *name)
{
    size_t length = strlen(name);
    for (size_t at = 0; at < block_bytes; at += strlen(block + at) + 1) {
        if (strncmp(block + at, name, length) == 0 && block[at + length] == '=') {
            return block + at + length + 1;
        }
    }
    return NULL;
}

/* Would this process put its ring into our directory? Its identity, when so. */
static bool is_ours(roll_unseen_t *u, uint32_t pid, struct roll_ident *ident)
{
    char real[PATH_MAX];
    ssize_t n = slurp(u, pid, "environ");
    if (n <= 0) {
        return false;
    }
    block = u->text;
    block_bytes = (size_t)n;
    const char *off = their("ROLLCALL_DISABLE"), *dir = their("ROLLCALL_DIR");
    dir = dir && *dir ? dir : u->fallback;
    bool same = strcmp(dir, u->dir) == 0 || (realpath(dir, real) && strcmp(real, u->dir) == 0);
    if (!same || (off && strcmp(off, "1") == 0)) {
        return false;
    }
    roll_ident_read(their, ident);
    return true;
}

static void tell_of(roll_unseen_t *u, uint32_t pid, const struct roll_ident *ident, const char *reason,
                    roll_unseen_tell_t *tell, void *ctx)
{
    char path[64], exe[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t n = readlink(path, exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
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

static void examine(roll_unseen_t *u, struct process *p, uint64_t now, roll_unseen_tell_t *tell, void *ctx)
{
    char reason[128] = "";
    struct roll_ident ident;
    p->next_ns = now + AGAIN_NS;
    if (!read_maps(u, p->pid, reason, sizeof reason) || !is_ours(u, p->pid, &ident)) {
        p->next_ns = now + OTHERS_NS;
        p->work_ns = 0;
        return;
    }
    if (!*reason) {
        read_threads(p->pid, reason, sizeof reason);
    }
    if (!*reason) {
        p->work_ns = 0;
    } else if (p->work_ns == 0) {
        p->work_ns = now;
    } else if (now - p->work_ns >= WORK_NS) {
        p->done = true;
        tell_of(u, p->pid, &ident, reason, tell, ctx);
    }
}

/* The entry of a process; a new one is looked at after a while, when it has become what it will be. */
static struct process *entry_of(roll_unseen_t *u, uint32_t pid, ino_t inode, uint64_t now)
{
    for (size_t i = 0; i < u->used; i++) {
        if (u->process[i].pid == pid && u->process[i].inode == inode) {
            return &u->process[i];
        }
    }
    if (u->used == u->room) {
        size_t room = u->room ? u->room * 2 : 64;
        struct process *more = realloc(u->process, room * sizeof *more);
        if (!more) {
            return NULL;
        }
        u->process = more;
        u->room = room;
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
            examine(u, p, now, tell, ctx);
        }
    }
    closedir(d);
    forget_gone(u);
}
