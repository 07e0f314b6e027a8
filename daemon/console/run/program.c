/*
 * program.c: what kind of program a command is, from its ELF file, without running it.
 *
 * LD_PRELOAD reaches dynamically linked programs only, and sees NCCL only when NCCL is a shared library: these are the
 * two reasons why a job shows "no rank called NCCL". libelf reads the file; a parser of our own would have to be
 * fuzzed.
 */
#include "daemon/console/run/program.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <gelf.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void look_at_dynamic(Elf *elf, Elf_Scn *section, const GElf_Shdr *header, struct roll_program *p)
{
    Elf_Data *data = elf_getdata(section, NULL);
    for (size_t i = 0; data != NULL && header->sh_entsize > 0 && i < header->sh_size / header->sh_entsize; i++) {
        GElf_Dyn dyn;
        if (gelf_getdyn(data, (int)i, &dyn) != NULL && dyn.d_tag == DT_NEEDED) {
            const char *name = elf_strptr(elf, header->sh_link, dyn.d_un.d_val);
            p->needs_nccl = p->needs_nccl || (name != NULL && strncmp(name, "libnccl.so", 10) == 0);
        }
    }
}

static void look_at_symbols(Elf *elf, Elf_Scn *section, const GElf_Shdr *header, struct roll_program *p)
{
    Elf_Data *data = elf_getdata(section, NULL);
    for (size_t i = 0; data != NULL && header->sh_entsize > 0 && i < header->sh_size / header->sh_entsize; i++) {
        GElf_Sym sym;
        if (gelf_getsym(data, (int)i, &sym) == NULL || sym.st_shndx == SHN_UNDEF) {
            continue;
        }
        const char *name = elf_strptr(elf, header->sh_link, sym.st_name);
        p->defines_nccl = p->defines_nccl || (name != NULL && strcmp(name, "ncclAllReduce") == 0);
    }
}

/* Notes whether the file is made for the processor that this program runs on. */
static void look_at_machine(Elf *elf, struct roll_program *p)
{
    GElf_Ehdr theirs, ours;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    Elf *self = fd >= 0 ? elf_begin(fd, ELF_C_READ, NULL) : NULL;
    p->other_machine = self != NULL && gelf_getehdr(elf, &theirs) != NULL && gelf_getehdr(self, &ours) != NULL &&
                       (theirs.e_machine != ours.e_machine || theirs.e_ident[EI_CLASS] != ours.e_ident[EI_CLASS]);
    elf_end(self);
    if (fd >= 0) {
        close(fd);
    }
}

static void look_at_elf(int fd, struct roll_program *p)
{
    size_t n = 0;
    if (elf_version(EV_CURRENT) == EV_NONE) {
        return;
    }
    Elf *elf = elf_begin(fd, ELF_C_READ, NULL);
    if (elf == NULL || elf_kind(elf) != ELF_K_ELF) {
        elf_end(elf);
        return;
    }
    p->elf = true;
    look_at_machine(elf, p);
    for (size_t i = 0; elf_getphdrnum(elf, &n) == 0 && i < n; i++) {
        GElf_Phdr header;
        if (gelf_getphdr(elf, (int)i, &header) != NULL && header.p_type == PT_INTERP) {
            p->dynamic = true;
            ssize_t got = pread(fd, p->loader, sizeof(p->loader) - 1, (off_t)header.p_offset);
            p->loader[got > 0 ? got : 0] = '\0';
        }
    }
    for (Elf_Scn *section = NULL; (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        if (gelf_getshdr(section, &header) == NULL) {
            continue;
        }
        if (header.sh_type == SHT_DYNAMIC) {
            look_at_dynamic(elf, section, &header, p);
        } else if (header.sh_type == SHT_SYMTAB || header.sh_type == SHT_DYNSYM) {
            look_at_symbols(elf, section, &header, p);
        }
    }
    elf_end(elf);
}

int roll_program_inspect(const char *path, struct roll_program *p)
{
    char head[128] = "";
    struct stat st;
    *p = (struct roll_program){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: opening a named pipe would wait */
    if (fd < 0) {
        return errno == ENOENT || errno == ENOTDIR ? ROLL_E_NOTFOUND : errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
    }
    ssize_t got = -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (got = pread(fd, head, sizeof(head) - 1, 0)) < 0) {
        close(fd);
        return ROLL_E_IO;
    }
    p->readable = true;
    p->elevated = ((st.st_mode & S_ISUID) != 0 && st.st_uid != getuid()) ||
                  ((st.st_mode & S_ISGID) != 0 && st.st_gid != getgid());
    if (head[0] == '#' && head[1] == '!') {
        p->script = true;
        snprintf(p->interpreter, sizeof(p->interpreter), "%.*s", (int)strcspn(head + 2, "\n"), head + 2);
    } else if (got > 0 && head[0] != '\x7f' && strlen(head) == (size_t)got) {
        p->script = true; /* execvp, too, takes a file without a magic number for a script */
        snprintf(p->interpreter, sizeof(p->interpreter), "/bin/sh");
    } else {
        look_at_elf(fd, p);
    }
    close(fd);
    return 0;
}

/* Finds a command as the shell would. */
static bool find(const char *command, char out[PATH_MAX])
{
    const char *path = getenv("PATH");
    if (strchr(command, '/') != NULL) {
        snprintf(out, PATH_MAX, "%s", command);
        return true;
    }
    for (const char *p = path; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, ":");
        snprintf(out, PATH_MAX, "%.*s/%s", n > 0 ? (int)n : 1, n > 0 ? p : ".", command);
        struct stat st;
        if (access(out, X_OK) == 0 && stat(out, &st) == 0 && S_ISREG(st.st_mode)) {
            return true;
        }
        p += n + (p[n] == ':');
    }
    return false;
}

bool roll_program_runs(const char *command)
{
    char path[PATH_MAX];
    struct stat st;
    return find(command, path) && access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Adds one library of a program to the study. */
static void study_library(void *to, const char *path)
{
    struct roll_study *s = to;
    struct roll_program p;
    const char *name = strrchr(path, '/') + 1;
    if (begins(name, "libnccl.so")) {
        if (s->nccls < ROLL_STUDY_NCCLS) {
            snprintf(s->nccl[s->nccls++], PATH_MAX, "%s", path);
        }
    } else if (s->holder[0] == '\0' && roll_program_inspect(path, &p) == 0 && p.defines_nccl) {
        snprintf(s->holder, sizeof(s->holder), "%s", path);
    }
}

/* Becomes the loader, which lists instead of running. */
static _Noreturn void list(const char *loader, const char *file, const struct roll_loading *with, int out)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(out, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    unsetenv("LD_PRELOAD");
    unsetenv("LD_AUDIT");
    if (with->path != NULL) {
        roll_env_prepend("LD_LIBRARY_PATH", with->path);
    }
    if (with->preload != NULL) {
        setenv("LD_PRELOAD", with->preload, 1);
    }
    execl(loader, loader, file, (char *)NULL);
    _exit(127);
}

void roll_list_libraries(const char *loader, const char *file, const struct roll_loading *with,
                         void (*visit)(void *to, const char *path), void *to)
{
    int out[2];
    char *line = NULL;
    size_t room = 0;
    if (pipe2(out, O_CLOEXEC) != 0) {
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        list(loader, file, with, out[1]);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    while (pid > 0 && f != NULL && getline(&line, &room, f) > 0) { /* "\tlibm.so.6 => /lib/libm.so.6 (0x...)" */
        char *path = strchr(line, '/');
        if (path != NULL) {
            path[strcspn(path, " \n")] = '\0';
            visit(to, path);
        }
    }
    free(line);
    if (f != NULL) {
        fclose(f);
    } else {
        close(out[0]);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

bool roll_loader_lists(const char *loader)
{
    return strstr(loader, "/ld-linux") != NULL;
}

void roll_study(const char *command, const char *first, struct roll_study *s)
{
    memset(s, 0, sizeof(*s));
    s->error = find(command, s->path) ? roll_program_inspect(s->path, &s->program) : ROLL_E_NOTFOUND;
    if (s->error == 0 && s->program.defines_nccl) {
        snprintf(s->holder, sizeof(s->holder), "%s", s->path);
    }
    if (s->error == 0 && s->program.dynamic && roll_loader_lists(s->program.loader) && !s->program.other_machine &&
        !s->program.elevated) {
        roll_list_libraries(s->program.loader, s->path, &(struct roll_loading){.path = first}, study_library, s);
    }
}

bool roll_nccl_release(const char *path, char *out, size_t size)
{
    static const char mark[] = "NCCL version ";
    struct stat st;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size <= 0) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    size_t bytes = (size_t)st.st_size;
    const char *text = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (text == MAP_FAILED) {
        return false;
    }
    for (const char *at = text;
         !found && (at = memmem(at, bytes - (size_t)(at - text), mark, sizeof(mark) - 1)) != NULL;) {
        at += sizeof(mark) - 1;
        size_t left = bytes - (size_t)(at - text), n = 0;
        while (n < left && n + 1 < size && ((at[n] >= '0' && at[n] <= '9') || at[n] == '.')) {
            out[n] = at[n];
            n++;
        }
        out[n] = '\0';
        found = n >= 5 && strchr(out, '.') != NULL; /* "2.28.9" */
    }
    munmap((void *)(uintptr_t)text, bytes);
    return found;
}

bool roll_nccl_has_profiler(const char *path)
{
    char release[32];
    int major = 0, minor = 0;
    if (!roll_nccl_release(path, release, sizeof(release)) || sscanf(release, "%d.%d", &major, &minor) != 2) {
        return true;
    }
    return major > 2 || (major == 2 && minor >= 23);
}

const char *roll_missing_script(char *const command[])
{
    const char *slash = strrchr(command[0], '/'), *base = slash != NULL ? slash + 1 : command[0];
    if (fnmatch("python*", base, 0) != 0 && fnmatch("pypy*", base, 0) != 0) {
        return NULL;
    }
    for (size_t i = 1; command[i] != NULL; i++) {
        const char *word = command[i];
        if (word[0] != '-') {
            return access(word, F_OK) == 0 || errno != ENOENT ? NULL : word;
        }
        if (strpbrk(word, "cm") != NULL || word[1] == '\0' || word[1] == '-') {
            return NULL; /* a command, a module, standard input; or an option that may take the next word */
        }
        i += (word[1] == 'X' || word[1] == 'W') && word[2] == '\0' && command[i + 1] != NULL;
    }
    return NULL;
}
