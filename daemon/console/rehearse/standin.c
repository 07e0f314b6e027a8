/*
 * standin.c: which libraries stand in, in which order, and what a PyTorch wheel wants that none of them has.
 *
 * A wheel's libraries name the folders of their own CUDA libraries (RPATH), which beats LD_LIBRARY_PATH; but the loader
 * takes a library that is already there under the same soname. So all stand-ins are preloaded. What a wheel wants is
 * read from its symbol tables: nothing of it runs, and a function that is missing is told before the job rather than by
 * the loader in its middle.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/console/rehearse/rehearse.h"
#include "trace/err.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <gelf.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* text and order */

static int order_of(const char *name)
{
    static const char *const first[] = {"libcudart.so.*", "libcuda.so.*", "libnccl.so.*"};
    int n = (int)(sizeof(first) / sizeof(first[0]));
    for (int i = 0; i < n; i++) {
        if (fnmatch(first[i], name, 0) == 0) {
            return i;
        }
    }
    return n;
}

static int by_order(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int order = order_of(x) - order_of(y);
    return order != 0 ? order : strcmp(x, y);
}

struct names {
    char **name; /* owned */
    size_t used, room;
};

static int add_name(struct names *names, const char *text)
{
    int err = ROLL_GROW(names->name, names->room, names->used + 1);
    char *copy = err == 0 ? strdup(text) : NULL;
    if (copy == NULL) {
        return ROLL_E_NOMEM;
    }
    names->name[names->used++] = copy;
    return 0;
}

static void names_fini(struct names *names)
{
    for (size_t i = 0; i < names->used; i++) {
        free(names->name[i]);
    }
    free(names->name);
    *names = (struct names){0};
}

/* Appends ":entry" or "entry". 0 or SIZE. */
static int append_entry(char *out, size_t size, const char *entry)
{
    size_t used = strlen(out);
    int n = snprintf(out + used, size - used, "%s%s", used > 0 ? ":" : "", entry);
    return n < 0 || (size_t)n >= size - used ? ROLL_E_SIZE : 0;
}

static int append(char *out, size_t size, const char *folder, const char *name)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return n < 0 || (size_t)n >= sizeof(path) ? ROLL_E_SIZE : append_entry(out, size, path);
}

/* lists for LD_PRELOAD */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The next entry of a list with colons, copied; false at its end. */
static bool next_entry(const char **list, char *out, size_t size)
{
    *list += strspn(*list, ":\n");
    size_t length = strcspn(*list, ":\n");
    snprintf(out, size, "%.*s", (int)length, *list);
    *list += length;
    return length > 0;
}

static bool holds_entry(const char *list, const char *wanted)
{
    char entry[PATH_MAX];
    while (next_entry(&list, entry, sizeof(entry))) {
        if (strcmp(entry, wanted) == 0) {
            return true;
        }
    }
    return false;
}

/* Adds the entries of `more` to a list. Where `more` names a CUDA runtime, those of other releases leave the list: one
 * process has one. 0; SIZE or NOMEM: the list is as it was. */
static int merge(char *list, size_t size, const char *more)
{
    char *out = calloc(1, size), entry[PATH_MAX];
    bool has_runtime = strstr(more, "/libcudart.so.") != NULL;
    int err = out != NULL ? 0 : ROLL_E_NOMEM;
    for (const char *rest = list; err == 0 && next_entry(&rest, entry, sizeof(entry));) {
        bool is_other = has_runtime && fnmatch("libcudart.so.*", base_of(entry), 0) == 0 && !holds_entry(more, entry);
        err = is_other ? 0 : append_entry(out, size, entry);
    }
    for (const char *rest = more; err == 0 && next_entry(&rest, entry, sizeof(entry));) {
        err = holds_entry(out, entry) ? 0 : append_entry(out, size, entry);
    }
    if (err == 0) {
        snprintf(list, size, "%s", out);
    }
    free(out);
    return err;
}

/* symbols */

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Functions of the CUDA runtime and of NCCL: the interfaces that have stand-ins of their own. */
static bool is_ours(const char *name)
{
    static const char *const starts[] = {"cuda", "__cuda", "nccl"};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        size_t n = strlen(starts[i]);
        if (strncmp(name, starts[i], n) == 0 && isupper((unsigned char)name[n])) {
            return true;
        }
    }
    return false;
}

static int add_symbols(Elf *elf, Elf_Scn *section, const GElf_Shdr *header, bool is_defined, struct names *names)
{
    Elf_Data *data = elf_getdata(section, NULL);
    size_t n = data != NULL && header->sh_entsize > 0 ? header->sh_size / header->sh_entsize : 0;
    int err = 0;
    for (size_t i = 0; i < n && err == 0; i++) {
        GElf_Sym sym;
        if (gelf_getsym(data, (int)i, &sym) == NULL || (sym.st_shndx != SHN_UNDEF) != is_defined) {
            continue;
        }
        const char *name = elf_strptr(elf, header->sh_link, sym.st_name);
        if (name != NULL && is_ours(name)) {
            err = add_name(names, name);
        }
    }
    return err;
}

/* Adds the functions that a library defines, or those that it wants. 0 or NOMEM; what is no library has none. */
static int symbols_of(const char *path, bool is_defined, struct names *names)
{
    int err = 0, fd = open(path, O_RDONLY | O_CLOEXEC);
    Elf *elf = fd >= 0 && elf_version(EV_CURRENT) != EV_NONE ? elf_begin(fd, ELF_C_READ, NULL) : NULL;
    for (Elf_Scn *section = NULL; err == 0 && elf != NULL && (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        if (gelf_getshdr(section, &header) != NULL && header.sh_type == SHT_DYNSYM) {
            err = add_symbols(elf, section, &header, is_defined, names);
        }
    }
    elf_end(elf);
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

/* Finds what a wheel's library wants and `have` lacks; notes the first of it. */
static size_t lacking_of(const char *library, const struct names *have, char *out, size_t size)
{
    struct names want = {0};
    size_t lacking = 0;
    (void)symbols_of(library, false, &want);
    for (size_t i = 0; i < want.used; i++) {
        if (bsearch(&want.name[i], have->name, have->used, sizeof(*have->name), compare) != NULL) {
            continue;
        }
        if (lacking == 0) {
            snprintf(out, size, "%s wants %s", base_of(library), want.name[i]);
        } else if (lacking < 3) {
            size_t used = strlen(out);
            snprintf(out + used, size - used, ", %s", want.name[i]);
        }
        lacking++;
    }
    names_fini(&want);
    return lacking;
}

size_t roll_rehearse_lacking(const char *command, const char *preload, char *out, size_t size)
{
    char packages[PATH_MAX], pattern[PATH_MAX + 64];
    struct names have = {0};
    size_t lacking = 0;
    glob_t libraries = {0};
    char *list = strdup(preload), *rest = NULL;
    out[0] = '\0';
    for (char *path = list != NULL ? strtok_r(list, ":", &rest) : NULL; path != NULL;
         path = strtok_r(NULL, ":", &rest)) {
        (void)symbols_of(path, true, &have);
    }
    free(list);
    if (have.used > 0 && roll_rehearse_packages(command, packages, sizeof(packages))) {
        qsort(have.name, have.used, sizeof(*have.name), compare);
        snprintf(pattern, sizeof(pattern), "%s/torch/lib/lib*.so", packages);
        (void)glob(pattern, 0, NULL, &libraries);
    }
    for (size_t i = 0; i < libraries.gl_pathc && lacking == 0; i++) {
        lacking = lacking_of(libraries.gl_pathv[i], &have, out, size);
    }
    globfree(&libraries);
    names_fini(&have);
    return lacking;
}

/* the runtime */

/* The CUDA runtime that a library or a program names as needed, "libcudart.so.12"; false: none. */
static bool runtime_of(const char *path, char *out, size_t size)
{
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    Elf *elf = fd >= 0 && elf_version(EV_CURRENT) != EV_NONE ? elf_begin(fd, ELF_C_READ, NULL) : NULL;
    for (Elf_Scn *section = NULL; elf != NULL && !found && (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        GElf_Dyn entry;
        Elf_Data *data =
            gelf_getshdr(section, &header) != NULL && header.sh_type == SHT_DYNAMIC ? elf_getdata(section, NULL) : NULL;
        for (int i = 0; data != NULL && !found && gelf_getdyn(data, i, &entry) != NULL; i++) {
            const char *name = entry.d_tag == DT_NEEDED ? elf_strptr(elf, header.sh_link, entry.d_un.d_val) : NULL;
            found = name != NULL && fnmatch("libcudart.so.*", name, 0) == 0 && strlen(name) < size;
            if (found) {
                snprintf(out, size, "%s", name);
            }
        }
    }
    elf_end(elf);
    if (fd >= 0) {
        close(fd);
    }
    return found;
}

bool roll_rehearse_runtime(const char *command, char *out, size_t size)
{
    char path[PATH_MAX];
    return roll_rehearse_wheel(command, path, sizeof(path)) && runtime_of(path, out, size);
}

/* One process has one runtime: that which the wheel beside the interpreter or the program itself names, else the newest
 * one. The others leave the list. */
static void keep_one_runtime(const char *command, struct names *found)
{
    char wanted[64] = "", path[PATH_MAX];
    const char *kept = NULL;
    if (roll_rehearse_wheel(command, path, sizeof(path)) || roll_program_find(command, path, sizeof(path))) {
        (void)runtime_of(path, wanted, sizeof(wanted));
    }
    for (size_t i = 0; i < found->used; i++) {
        const char *name = found->name[i];
        bool is_better = kept == NULL || (strcmp(kept, wanted) != 0 && strverscmp(name, kept) > 0);
        if (fnmatch("libcudart.so.*", name, 0) == 0 && (strcmp(name, wanted) == 0 || is_better)) {
            kept = name;
        }
    }
    size_t used = 0;
    for (size_t i = 0; i < found->used; i++) {
        if (found->name[i] != kept && fnmatch("libcudart.so.*", found->name[i], 0) == 0) {
            free(found->name[i]);
        } else {
            found->name[used++] = found->name[i];
        }
    }
    found->used = used;
}

int roll_rehearse_preload(const char *folder, const char *command, char *out, size_t size)
{
    struct names found = {0};
    bool has_nccl = false;
    int err = strpbrk(folder, " :") != NULL ? ROLL_E_ARG : 0;
    DIR *d = err == 0 ? opendir(folder) : NULL;
    out[0] = '\0';
    for (struct dirent *e; d != NULL && err == 0 && (e = readdir(d)) != NULL;) {
        if (fnmatch("lib*.so.*", e->d_name, 0) == 0) {
            has_nccl = has_nccl || strcmp(e->d_name, "libnccl.so.2") == 0;
            err = add_name(&found, e->d_name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    err = err == 0 && !has_nccl ? ROLL_E_NOTFOUND : err;
    if (err == 0) {
        keep_one_runtime(command, &found);
        qsort(found.name, found.used, sizeof(*found.name), by_order);
    }
    for (size_t i = 0; i < found.used && err == 0; i++) {
        err = append(out, size, folder, found.name[i]);
    }
    /* A folder of its own keeps a program that is only linked against the stand-ins from finding GPUs there. */
    char nvml[PATH_MAX];
    if (err == 0 && snprintf(nvml, sizeof(nvml), "%s/nvml/libnvidia-ml.so.1", folder) < (int)sizeof(nvml) &&
        access(nvml, R_OK) == 0) {
        err = append_entry(out, size, nvml);
    }
    names_fini(&found);
    return err;
}

/* Runs `standins`; what it prints goes into two files. Its exit code; -1: it did not run. */
static int run_standins(char *const argv[], const char *said, const char *complained)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(said, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        int err = open(complained, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0) {
            execv(argv[0], argv);
        }
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int roll_rehearse_write(const char *folder, const char *command, const char *into, char *preload, size_t size,
                        char *why, size_t why_size)
{
    enum { LACKING = 3 }; /* written; and what the program lacks may not be what the job uses */
    char packages[PATH_MAX], program[PATH_MAX], said[PATH_MAX], complained[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    snprintf(program, sizeof(program), "%s/standins", folder);
    if (access(program, X_OK) != 0 || !roll_rehearse_packages(command, packages, sizeof(packages))) {
        return 0;
    }
    if (strpbrk(into, " :") != NULL) {
        snprintf(why, why_size, "LD_PRELOAD cannot hold %s, which has a blank or a colon in it: set TMPDIR", into);
        return ROLL_E_ARG;
    }
    snprintf(said, sizeof(said), "%s/preload", into);
    snprintf(complained, sizeof(complained), "%s/complaints", into);
    int code = run_standins((char *const[]){program, (char *)into, packages, NULL}, said, complained);
    int err = code == 0 || code == LACKING ? roll_read_whole(said, size, &text, &bytes) : ROLL_E_NOTFOUND;
    err = err == 0 ? merge(preload, size, text) : err;
    free(text);
    text = NULL;
    if (err != 0) {
        bool is_told = roll_read_whole(complained, why_size, &text, &bytes) == 0 && bytes > 0;
        snprintf(why, why_size, "no stand-ins for the libraries of %s: %.*s", packages,
                 is_told ? (int)strcspn(text, "\n") : 40, is_told ? text : "`standins` did not end well");
        free(text);
    }
    return err;
}
