/*
 * proc_look.c: see proc_look.h.
 *
 * A mapped NCCL alone is not at work: PyTorch maps it in every program. NCCL is at work where there is something that
 * only a communicator brings: threads that NCCL has named (NCCL_SET_THREAD_NAME=1, which `rollcall run` sets), or its
 * shared memory.
 */
#include "daemon/stack/proc_look.h"

#include "daemon/base/file.h"
#include "daemon/base/proc.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENVIRONMENT_MAX (1024u * 1024u)
#define STATUS_MAX      (1024u * 1024u)

/* Threads of NCCL that exist without a communicator: the thread behind a unique id waits for the members, maybe for
 * long.
 */
static const char *const no_work[] = {"NCCL Bootstrap"};

static int error_of(int err)
{
    return err == ENOENT || err == ESRCH ? ROLL_E_NOTFOUND : err == EACCES || err == EPERM ? ROLL_E_DENIED : ROLL_E_IO;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/*
 * Whether a mapping is shared memory that exists as long as a communicator does: NCCL's /dev/shm/nccl-XXXXXX,
 * hostnccl's hn- and 16 hex digits. The beginning of a name alone does not decide: programs and libraries are mapped
 * too, and some are called nccl-something.
 */
static bool is_memory(const char *path, const char *name)
{
    size_t digits = begins(name, "hn-") ? strspn(name + 3, "0123456789abcdef") : 0;
    return begins(path, "/dev/shm/nccl-") || (digits == 16 && (name[19] == '\0' || name[19] == ' '));
}

static void note_nccl(struct roll_look *look, const char *path)
{
    for (unsigned i = 0; i < look->nccls; i++) {
        if (strcmp(look->nccl[i], path) == 0) {
            return;
        }
    }
    if (look->nccls < ROLL_LOOK_NCCLS) {
        snprintf(look->nccl[look->nccls++], PATH_MAX, "%s", path);
    }
}

static void note_mapping(struct roll_look *look, const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    look->preload = look->preload || begins(name, "librollcall.so");
    look->audit = look->audit || begins(name, "librollcall_audit.so");
    if (begins(name, "libnccl.so")) {
        note_nccl(look, path);
    } else if (begins(name, "libnccl-profiler")) {
        snprintf(look->profiler, sizeof(look->profiler), "%s", path);
    }
    if (look->work[0] == '\0' && is_memory(path, name)) {
        snprintf(look->work, sizeof(look->work), "its shared memory %.*s is mapped", (int)strcspn(name, " "), name);
    }
}

static int read_maps(uint32_t pid, struct roll_look *look)
{
    char path[64], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof(path), "/proc/%u/maps", pid);
    FILE *f = fopen(path, "re");
    if (!f) {
        return error_of(errno);
    }
    while (getline(&line, &room, f) > 0) {
        line[strcspn(line, "\n")] = '\0';
        const char *file = strchr(line, '/');
        if (file) {
            note_mapping(look, file);
        }
    }
    int err = ferror(f) ? error_of(errno) : 0;
    free(line);
    fclose(f);
    return err;
}

static bool is_worker(const char *thread)
{
    bool worker = begins(thread, "NCCL ");
    for (size_t i = 0; i < sizeof(no_work) / sizeof(no_work[0]); i++) {
        worker = worker && !begins(thread, no_work[i]);
    }
    return worker;
}

static void read_threads(uint32_t pid, struct roll_look *look)
{
    char path[64], name[32];
    snprintf(path, sizeof(path), "/proc/%u/task", pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && look->work[0] == '\0' && (e = readdir(d)) != NULL;) {
        char file[400];
        snprintf(file, sizeof(file), "/proc/%u/task/%s/comm", pid, e->d_name);
        roll_read_text(file, name, sizeof(name));
        name[strcspn(name, "\n")] = '\0';
        if (is_worker(name)) {
            snprintf(look->work, sizeof(look->work), "its thread %s runs", name);
        }
    }
    if (d) {
        closedir(d);
    }
}

int roll_look(uint32_t pid, struct roll_look *out)
{
    memset(out, 0, sizeof(*out));
    int err = read_maps(pid, out);
    if (!err && out->work[0] == '\0') {
        read_threads(pid, out);
    }
    return err;
}

int roll_look_env(uint32_t pid, struct roll_look_env *out)
{
    char path[64];
    *out = (struct roll_look_env){0};
    snprintf(path, sizeof(path), "/proc/%u/environ", pid);
    return roll_read_whole(path, ENVIRONMENT_MAX, &out->text, &out->bytes);
}

void roll_look_env_fini(struct roll_look_env *env)
{
    free(env->text);
    *env = (struct roll_look_env){0};
}

const char *roll_look_get(const struct roll_look_env *env, const char *name)
{
    size_t length = strlen(name);
    for (size_t at = 0; at < env->bytes; at += strlen(env->text + at) + 1) {
        if (strncmp(env->text + at, name, length) == 0 && env->text[at + length] == '=') {
            return env->text + at + length + 1;
        }
    }
    return NULL;
}

/* roll_ident_read wants getenv's shape. */
static _Thread_local const struct roll_look_env *asked;

static const char *get(const char *name)
{
    return roll_look_get(asked, name);
}

void roll_look_ident(const struct roll_look_env *env, struct roll_ident *out)
{
    asked = env;
    roll_ident_read(get, out);
    asked = NULL;
}

static uint32_t last_number(const char *text)
{
    const char *at = text + strcspn(text, "\n");
    while (at > text && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    return (uint32_t)strtoul(at, NULL, 10);
}

int roll_look_kin(uint32_t pid, struct roll_look_kin *out)
{
    char path[64], *text;
    size_t bytes;
    *out = (struct roll_look_kin){.inner = pid};
    snprintf(path, sizeof(path), "/proc/%u/status", pid);
    int err = roll_read_whole(path, STATUS_MAX, &text, &bytes); /* it lists the groups: of no known size */
    if (err) {
        return err;
    }
    const char *parent = roll_proc_word(text, "PPid:", ""), *inner = roll_proc_word(text, "NSpid:", "");
    out->parent = parent ? last_number(parent) : out->parent;
    out->inner = inner ? last_number(inner) : out->inner;
    free(text);
    return 0;
}

void roll_look_exe(uint32_t pid, char out[PATH_MAX])
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/exe", pid);
    ssize_t n = readlink(path, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
}
