/*
 * doctor_program.c: what kind of program a command is, from its ELF file, without running it.
 *
 * LD_PRELOAD reaches dynamically linked programs only, and sees NCCL only when NCCL is a shared library: these are the
 * two reasons why a job shows "no rank called NCCL". libelf reads the file; a parser of our own would have to be fuzzed.
 */
#include "daemon/console/doctor.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    for (size_t i = 0; elf_getphdrnum(elf, &n) == 0 && i < n; i++) {
        GElf_Phdr header;
        if (gelf_getphdr(elf, (int)i, &header) != NULL && header.p_type == PT_INTERP) {
            p->dynamic = true;
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
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT || errno == ENOTDIR ? ROLL_E_NOTFOUND : errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || pread(fd, head, sizeof(head) - 1, 0) < 0) {
        close(fd);
        return ROLL_E_IO;
    }
    p->readable = true;
    p->elevated = (st.st_mode & (S_ISUID | S_ISGID)) != 0;
    if (head[0] == '#' && head[1] == '!') {
        p->script = true;
        snprintf(p->interpreter, sizeof(p->interpreter), "%.*s", (int)strcspn(head + 2, "\n"), head + 2);
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

/* Does the loader bring libnccl in, directly or through another library? As ldd(1): the loader lists, nothing runs. */
static bool loads_nccl(const char *path)
{
    int out[2];
    char line[1024];
    bool found = false;
    if (pipe2(out, O_CLOEXEC) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
        unsetenv("LD_PRELOAD");
        execl(path, path, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    while (pid > 0 && f != NULL && fgets(line, sizeof(line), f) != NULL) {
        found = found || strstr(line, "libnccl.so") != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

void roll_checkup_program(struct roll_checkup *c, const char *command)
{
    char path[PATH_MAX];
    struct roll_program p;
    int err = find(command, path) ? roll_program_inspect(path, &p) : ROLL_E_NOTFOUND;
    if (err != 0) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL, "%s: %s; give a program that can be run", command,
                         roll_strerror(err));
    } else if (p.elevated && geteuid() != 0) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL,
                         "%s is set-user-id: the loader ignores LD_PRELOAD for it; run the program it starts instead",
                         path);
    } else if (p.script) {
        roll_checkup_say(
            c, "command", ROLL_HEALTH_OK,
            "%s is a script for %s: what it starts is preloaded; whether that uses NCCL shows when it runs", path,
            p.interpreter);
    } else if (!p.elf) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL, "%s is neither an ELF program nor a script", path);
    } else if (!p.dynamic) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL,
                         "%s is linked statically: nothing can be preloaded into it; link it dynamically", path);
    } else if (p.defines_nccl) {
        roll_checkup_say(c, "command", ROLL_HEALTH_FAIL,
                         "%s contains NCCL itself (static libnccl): its calls cannot be seen; link with libnccl.so",
                         path);
    } else if (p.needs_nccl || loads_nccl(path)) {
        roll_checkup_say(c, "command", ROLL_HEALTH_OK, "%s uses the shared libnccl", path);
    } else {
        roll_checkup_say(c, "command", ROLL_HEALTH_WARN,
                         "%s is not linked to libnccl: fine when it loads it later (Python does) or starts what does; "
                         "else no rank will call NCCL",
                         path);
    }
}
