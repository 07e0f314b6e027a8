/*
 * target.c: /proc and process_vm_readv.
 *
 * Memory is read with process_vm_readv, not with PTRACE_PEEKDATA: that needs a stopped thread and a system call per
 * word. A cache of pages makes the many small reads of an unwinder cheap; code and unwind tables never change, so they
 * are read once.
 */
#include "daemon/stack/target.h"

#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/base/proc.h"
#include "trace/err.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE       4096u
#define CACHED     512u /* pages; a power of two */
#define CAP_PTRACE 19   /* CAP_SYS_PTRACE */

struct roll_page_cache {
    uint64_t address[CACHED]; /* 0 = free */
    uint8_t data[CACHED][PAGE];
};

/* maps */

static int add_map(struct roll_target *t, const char *line, size_t *room)
{
    unsigned long long start, end, offset;
    int path_at = 0;
    if (sscanf(line, "%llx-%llx %*s %llx %*s %*s %n", &start, &end, &offset, &path_at) < 3) {
        return 0;
    }
    int err = ROLL_GROW(t->map, *room, t->maps + 1);
    if (err) {
        return err;
    }
    char *path = strdup(path_at > 0 ? line + path_at : "");
    if (!path) {
        return ROLL_E_NOMEM;
    }
    path[strcspn(path, "\n")] = '\0';
    t->map[t->maps++] = (struct roll_mapping){start, end, offset, path};
    return 0;
}

static bool other_root(pid_t pid)
{
    char path[64], ours[64] = "", theirs[64] = "";
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)pid);
    ssize_t a = readlink("/proc/self/ns/mnt", ours, sizeof(ours) - 1), b = readlink(path, theirs, sizeof(theirs) - 1);
    return a > 0 && b > 0 && strcmp(ours, theirs) != 0;
}

/*
 * Whether a process may be looked at: only root may look at processes of other users. With CAP_SYS_PTRACE this program
 * could read everybody's memory for any user who may start it, so the capability is used only for processes of our own
 * user.
 */
static bool of_our_user(pid_t pid)
{
    char path[64], text[4096];
    unsigned real = 0, effective = 0, saved = 0, us = (unsigned)getuid();
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    const char *uid = us != 0 && roll_read_text(path, text, sizeof(text)) > 0 ? roll_proc_word(text, "Uid:", "") : NULL;
    bool ours = us == 0, found = uid && sscanf(uid, "%u %u %u", &real, &effective, &saved) == 3;
    return ours || !found ||
           (real == us && effective == us &&
            saved == us); /* a process that has ended is reported by the caller, who opens it next */
}

int roll_target_open(pid_t pid, struct roll_target **out)
{
    char path[64];
    if (!of_our_user(pid)) {
        errno = EPERM;
        return ROLL_E_DENIED;
    }
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) {
        return errno == EACCES || errno == EPERM ? ROLL_E_DENIED : ROLL_E_NOTFOUND;
    }
    struct roll_target *t = calloc(1, sizeof(*t));
    char *line = NULL;
    size_t line_room = 0, room = 0;
    int err = t && (t->pages = calloc(1, sizeof(*t->pages))) ? 0 : ROLL_E_NOMEM;
    if (!err) {
        t->pid = pid;
        t->other_root = other_root(pid);
    }
    errno = 0;
    while (!err && getline(&line, &line_room, f) > 0) {
        err = add_map(t, line, &room);
    }
    if (!err &&
        t->maps == 0) { /* no mapping: the permission is checked at the first read, or the process is a zombie */
        err = errno == EACCES || errno == EPERM ? ROLL_E_DENIED : ROLL_E_NOTFOUND;
    }
    free(line);
    fclose(f);
    if (err) {
        roll_target_close(&t);
        return err;
    }
    *out = t;
    return 0;
}

void roll_target_close(struct roll_target **self)
{
    struct roll_target *t = *self;
    if (!t) {
        return;
    }
    for (size_t i = 0; i < t->maps; i++) {
        free(t->map[i].path);
    }
    free(t->map);
    free(t->pages);
    free(t);
    *self = NULL;
}

const struct roll_mapping *roll_target_mapping(const struct roll_target *t, uint64_t address)
{
    size_t low = 0, high = t->maps;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (address >= t->map[mid].end) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < t->maps && address >= t->map[low].start ? &t->map[low] : NULL;
}

const char *roll_target_path(const struct roll_target *t, const char *path, char *out, size_t size)
{
    if (t->other_root && path[0] == '/') {
        snprintf(out, size, "/proc/%d/root%s", (int)t->pid, path);
    } else {
        snprintf(out, size, "%s", path);
    }
    return out;
}

/* memory */

bool roll_target_read(const struct roll_target *t, uint64_t address, void *out, size_t bytes)
{
    struct iovec to = {out, bytes}, from = {(void *)(uintptr_t)address, bytes};
    return bytes == 0 || process_vm_readv(t->pid, &to, 1, &from, 1, 0) == (ssize_t)bytes;
}

static const uint8_t *page_at(struct roll_target *t, uint64_t page)
{
    size_t slot = (size_t)(page / PAGE) & (CACHED - 1);
    struct roll_page_cache *c = t->pages;
    if (page != 0 && c->address[slot] == page) {
        return c->data[slot];
    }
    c->address[slot] = 0;
    if (!roll_target_mapping(t, page) || !roll_target_read(t, page, c->data[slot], PAGE)) {
        return NULL;
    }
    c->address[slot] = page;
    return c->data[slot];
}

bool roll_target_word(struct roll_target *t, uint64_t address, uint64_t *out)
{
    uint64_t page = address & ~(uint64_t)(PAGE - 1);
    size_t at = (size_t)(address - page);
    if (at > PAGE - sizeof(*out)) {
        return roll_target_read(t, address, out, sizeof(*out));
    }
    const uint8_t *data = page_at(t, page);
    if (data) {
        memcpy(out, data + at, sizeof(*out));
    }
    return data != NULL;
}

/* threads */

static int by_tid(const void *a, const void *b)
{
    pid_t x = ((const struct roll_thread_info *)a)->tid, y = ((const struct roll_thread_info *)b)->tid;
    return (x > y) - (x < y);
}

size_t roll_target_threads(pid_t pid, struct roll_thread_info *out, size_t max, size_t *all)
{
    char path[64];
    size_t n = 0;
    *all = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    const struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0])) {
            continue;
        }
        ++*all;
        if (n < max) {
            pid_t tid = (pid_t)atoi(entry->d_name);
            struct roll_proc_stat stat;
            if (roll_proc_stat(pid, tid, &stat) == 0) {
                out[n] = (struct roll_thread_info){.tid = tid, .state = stat.state};
                memcpy(out[n++].name, stat.name, sizeof(stat.name));
            }
        }
    }
    if (d) {
        closedir(d);
    }
    qsort(out, n, sizeof(*out), by_tid);
    for (size_t i = 1; i < n; i++) { /* thread ids wrap, so the main thread need not have the lowest */
        if (out[i].tid == pid) {
            struct roll_thread_info main_thread = out[i];
            memmove(out + 1, out, i * sizeof(*out));
            out[0] = main_thread;
        }
    }
    return n;
}

/* refusals */

/* The number behind `name` in a status file of /proc; -1 when it is not there. */
static long status_field(const char *text, const char *name, int base)
{
    const char *at = roll_proc_word(text, name, "");
    return at ? strtol(at, NULL, base) : -1;
}

void roll_refusal_look(pid_t pid, int error, struct roll_refusal *out)
{
    char path[64], text[4096];
    struct stat st;
    *out = (struct roll_refusal){.error = error, .ours = geteuid(), .theirs = geteuid(), .yama = -1};
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (roll_read_text(path, text, sizeof(text)) > 0) {
        long uid = status_field(text, "Uid:", 10), tracer = status_field(text, "TracerPid:", 10);
        out->theirs = uid >= 0 ? (uid_t)uid : out->theirs;
        out->tracer = tracer > 0 ? (pid_t)tracer : 0;
    } else if (error == EPERM || error == EACCES) {
        out->error = ESRCH;
    }
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    out->same_user_files = stat(path, &st) != 0 || st.st_uid == out->theirs;
    if (roll_read_text("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text)) > 0) {
        out->yama = atoi(text);
    }
    if (roll_read_text("/proc/self/status", text, sizeof(text)) > 0) {
        out->filtered = status_field(text, "Seccomp:", 10) == 2;
        const char *caps = roll_proc_word(text, "CapEff:", "");
        bool may = getuid() == 0 || out->theirs == getuid(); /* see of_our_user */
        out->privileged = may && caps && (strtoull(caps, NULL, 16) >> CAP_PTRACE & 1);
    }
}

const char *roll_refusal_text(const struct roll_refusal *r, char out[ROLL_STACK_WHY_BYTES])
{
    const size_t size = ROLL_STACK_WHY_BYTES;
    if (r->error == ESRCH || r->error == ENOENT) {
        snprintf(out, size, "the process has ended");
    } else if (r->tracer != 0) {
        snprintf(out, size, "pid %d traces it already (a debugger?): detach that first", (int)r->tracer);
    } else if (r->error != EPERM && r->error != EACCES) {
        snprintf(out, size, "cannot be looked at: %s", strerror(r->error));
    } else if (r->yama == 3) {
        snprintf(
            out, size,
            "kernel.yama.ptrace_scope is 3: nothing may be traced until this host is started anew with another value");
    } else if (r->yama == 2 && !r->privileged) {
        snprintf(out, size,
                 "kernel.yama.ptrace_scope is 2: only CAP_SYS_PTRACE may look: run rollcalld as root, or give it the "
                 "capability");
    } else if (r->ours != r->theirs && !r->privileged) {
        snprintf(out, size,
                 "it belongs to user %u and rollcalld runs as user %u: run rollcalld as that "
                 "user, or as root",
                 (unsigned)r->theirs, (unsigned)r->ours);
    } else if (r->yama == 1 && !r->privileged) {
        snprintf(out, size,
                 "kernel.yama.ptrace_scope is 1 and the process has not named this reader: let its own agent ask, "
                 "start it with "
                 "ROLLCALL_PTRACER=any, or give rollcalld CAP_SYS_PTRACE");
    } else if (!r->same_user_files && !r->privileged) {
        snprintf(out, size, "it has made itself undumpable (or changed its user): only CAP_SYS_PTRACE may look");
    } else if (r->filtered) {
        snprintf(out, size,
                 "a seccomp filter on rollcalld forbids ptrace: a container needs --cap-add SYS_PTRACE and a profile "
                 "that allows it");
    } else {
        snprintf(out, size, "not permitted (%s): a container needs --cap-add SYS_PTRACE and the ranks' pid namespace",
                 strerror(r->error));
    }
    return out;
}
