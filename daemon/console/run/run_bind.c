/*
 * run_bind.c: picks the ways in which a job's NCCL calls are seen; see bind.h.
 *
 * The preload alone sees a shared NCCL however it is bound (linked, loaded later, looked up), so `auto` uses nothing
 * else, with one exception: NCCL linked into the program or one of its libraries. Only then is NCCL's profiler plugin
 * used. NCCL takes exactly one plugin and runs code for it that it does not run otherwise; a job should not bear that
 * risk for nothing. The user's own plugin is chained. The front is the one of the newest release all of whose functions
 * the real NCCL has.
 */
#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/console/run/bind.h"
#include "daemon/console/run/program.h"
#include "daemon/console/run/run.h"

#include <dirent.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const names[] = {"auto", "preload", "audit", "plugin", "front"};
static const char *const front_variables[] = {"VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH"};
#define COUNT(array) (sizeof(array) / sizeof(array[0]))

int roll_bind_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* fronts */

struct symbols {
    char **name; /* owned, sorted */
    size_t used, room;
    bool front; /* the library is one of our fronts */
};

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void symbols_fini(struct symbols *s)
{
    for (size_t i = 0; i < s->used; i++) {
        free(s->name[i]);
    }
    free(s->name);
    *s = (struct symbols){0};
}

static void add_symbols(Elf *elf, Elf_Scn *section, const GElf_Shdr *header, struct symbols *s)
{
    Elf_Data *data = elf_getdata(section, NULL);
    size_t n = header->sh_entsize > 0 ? header->sh_size / header->sh_entsize : 0;
    if (data == NULL || ROLL_GROW(s->name, s->room, s->used + n) != 0) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        GElf_Sym sym;
        const char *name = gelf_getsym(data, (int)i, &sym) != NULL && sym.st_shndx != SHN_UNDEF
                               ? elf_strptr(elf, header->sh_link, sym.st_name)
                               : NULL;
        s->front = s->front || (name != NULL && strcmp(name, "roll_front") == 0);
        if (name != NULL && strncmp(name, "nccl", 4) == 0 && (s->name[s->used] = strdup(name)) != NULL) {
            s->used++;
        }
    }
}

/* The functions of NCCL that a library exports. */
static struct symbols symbols_of(const char *path)
{
    struct symbols s = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Elf *elf = fd >= 0 && elf_version(EV_CURRENT) != EV_NONE ? elf_begin(fd, ELF_C_READ, NULL) : NULL;
    for (Elf_Scn *section = NULL; elf != NULL && (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        if (gelf_getshdr(section, &header) != NULL && header.sh_type == SHT_DYNSYM) {
            add_symbols(elf, section, &header, &s);
        }
    }
    elf_end(elf);
    if (fd >= 0) {
        close(fd);
    }
    qsort(s.name, s.used, sizeof(*s.name), compare);
    return s;
}

static bool has_all(const struct symbols *all, const struct symbols *some)
{
    for (size_t i = 0; i < some->used; i++) {
        if (bsearch(&some->name[i], all->name, all->used, sizeof(*all->name), compare) == NULL) {
            return false;
        }
    }
    return some->used > 0;
}

/* Finds the front with the most functions among those whose functions the real NCCL all has; "" when there is none.
 * False when `real` is a front itself.
 */
static bool find_front(const struct roll_place *place, const char *real, char out[PATH_MAX])
{
    struct symbols theirs = symbols_of(real);
    bool is_real = !theirs.front;
    size_t best = 0;
    DIR *d = is_real && place->fronts[0] != '\0' ? opendir(place->fronts) : NULL;
    out[0] = '\0';
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof(path), "%s/%s/libnccl.so.2", place->fronts, e->d_name);
        if (e->d_name[0] == '.' || strlen(path) >= PATH_MAX) {
            continue;
        }
        struct symbols front = symbols_of(path);
        if (front.used > best && has_all(&theirs, &front)) {
            best = front.used;
            snprintf(out, PATH_MAX, "%.*s", PATH_MAX - 1, path);
        }
        symbols_fini(&front);
    }
    if (d != NULL) {
        closedir(d);
    }
    symbols_fini(&theirs);
    return is_real;
}

/* the choice */

const char *roll_bind_users_plugin(void)
{
    const char *theirs = getenv("NCCL_PROFILER_PLUGIN");
    const char *base = theirs != NULL ? strrchr(theirs, '/') : NULL;
    base = base != NULL ? base + 1 : theirs;
    bool none = theirs == NULL || theirs[0] == '\0' || strcasecmp(theirs, "none") == 0 ||
                strncmp(base, "librollcall.so", strlen("librollcall.so")) == 0;
    return none ? NULL : theirs;
}

static void pick_front(const struct roll_place *place, struct roll_bind *b)
{
    const char *real = NULL;
    for (size_t i = 0; i < COUNT(front_variables) && (real == NULL || real[0] == '\0'); i++) {
        real = getenv(front_variables[i]);
    }
    if (real == NULL || real[0] == '\0') {
        snprintf(b->why, sizeof(b->why), "preload; no front: neither %s nor %s names an NCCL", front_variables[0],
                 front_variables[1]);
        return;
    }
    if (realpath(real, b->real) == NULL) {
        snprintf(b->why, sizeof(b->why), "preload; no front: %.200s cannot be found", real);
        return;
    }
    bool is_real = find_front(place, b->real, b->front);
    snprintf(b->why, sizeof(b->why),
             b->front[0] != '\0' ? "preload and a front for %.300s"
             : is_real           ? "preload; no front fits %.300s"
                                 : "preload; %.300s is a front already",
             b->real);
}

static void pick_auto(const char *command, const char *first, struct roll_bind *b)
{
    static struct roll_study s; /* large */
    roll_study(command, first, &s);
    const char *base = strrchr(command, '/');
    base = base != NULL ? base + 1 : command;
    if (s.error == 0 && s.holder[0] != '\0' && !roll_nccl_has_profiler(s.holder)) {
        snprintf(b->why, sizeof(b->why),
                 "preload, but NCCL is linked into %.200s and older than 2.23: its calls are not seen", s.holder);
    } else if (s.error == 0 && s.holder[0] != '\0') {
        b->plugin = true;
        snprintf(b->why, sizeof(b->why), "preload and NCCL's profiler plugin: NCCL is linked into %.300s", s.holder);
    } else if (s.nccls > 0) {
        snprintf(b->why, sizeof(b->why), "preload: %.100s uses %.300s", base, s.nccl[0]);
    } else {
        snprintf(b->why, sizeof(b->why), "preload: %.100s is not linked to NCCL; one that it loads later is seen, too",
                 base);
    }
}

void roll_bind_pick(int kind, const struct roll_place *place, bool hostnccl, char *const command[], struct roll_bind *b)
{
    *b = (struct roll_bind){.audit = false};
    switch (kind) {
    case ROLL_BIND_PRELOAD:
        snprintf(b->why, sizeof(b->why), "preload, as asked for");
        break;
    case ROLL_BIND_AUDIT:
        b->audit = place->audit[0] != '\0';
        snprintf(b->why, sizeof(b->why), "%s",
                 b->audit ? "preload and auditor, as asked for" : "preload; librollcall_audit.so was not found");
        break;
    case ROLL_BIND_PLUGIN:
        b->plugin = true;
        snprintf(b->why, sizeof(b->why), "preload and NCCL's profiler plugin, as asked for");
        break;
    case ROLL_BIND_FRONT:
        pick_front(place, b);
        break;
    default:
        pick_auto(command[0], hostnccl ? place->hostnccl : NULL, b);
        break;
    }
    const char *theirs = roll_bind_users_plugin();
    if (b->plugin && theirs != NULL) {
        size_t used = strlen(b->why);
        snprintf(b->why + used, sizeof(b->why) - used, "; %.80s is chained behind it", theirs);
    }
}

void roll_bind_apply(const struct roll_bind *b, const struct roll_place *place)
{
    roll_env_set("NCCL_SET_THREAD_NAME", "1", false); /* NCCL then names its threads, which shows from outside that NCCL
                                                         is at work, and helps in a debugger */
    if (b->audit) {
        roll_env_prepend("LD_AUDIT", place->audit);
    }
    if (b->plugin) {
        const char *theirs = roll_bind_users_plugin(), *set = getenv("NCCL_PROFILER_PLUGIN");
        if (theirs != NULL) {
            roll_env_set("ROLLCALL_CHAIN_PROFILER", theirs, true);
        } else if (set != NULL && strcasecmp(set, "none") == 0) {
            roll_env_set("ROLLCALL_CHAIN_PROFILER", "none", true);
        }
        roll_env_set("NCCL_PROFILER_PLUGIN", place->preload, true);
    }
    for (size_t i = 0; i < COUNT(front_variables) && b->front[0] != '\0'; i++) {
        char named[PATH_MAX];
        const char *value = getenv(front_variables[i]);
        if (value != NULL && realpath(value, named) != NULL && strcmp(named, b->real) == 0) {
            roll_env_set(front_variables[i], b->front, true);
            roll_env_set("ROLLCALL_NCCL", b->real, false);
        }
    }
}
