/*
 * wheel.c: which Python interpreter a command comes to, and where that interpreter's PyTorch is.
 *
 * A command names its interpreter by a path, by a name for PATH, behind `env` and other programs that start programs,
 * in the first line of a script, or not at all (a shell script). Where the packages lie beside an interpreter, they are
 * found by looking; else the interpreter is asked, because only it knows what its configuration, PYTHONPATH and .pth
 * files come to.
 */
#include "daemon/base/file.h"
#include "daemon/console/rehearse/rehearse.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MS 20000 /* an interpreter on a network's file system starts slowly */

static const char library[] = "/torch/lib/libtorch_cuda.so";

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool is_one_of(const char *name, const char *const *list)
{
    while (*list != NULL && strcmp(name, *list) != 0) {
        list++;
    }
    return *list != NULL;
}

static bool is_program(const char *path)
{
    struct stat st;
    return access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool roll_program_find(const char *command, char *out, size_t size)
{
    char *paths = NULL, *rest = NULL;
    bool found = false;
    if (strchr(command, '/') != NULL) {
        return snprintf(out, size, "%s", command) < (int)size && is_program(out);
    }
    const char *list = getenv("PATH");
    paths = strdup(list != NULL ? list : "");
    for (char *folder = paths != NULL ? strtok_r(paths, ":", &rest) : NULL; folder != NULL && !found;
         folder = strtok_r(NULL, ":", &rest)) {
        found = snprintf(out, size, "%s/%s", folder, command) < (int)size && is_program(out);
    }
    free(paths);
    return found;
}

/* where the packages are */

/* Looks for packages with a CUDA wheel below the folder above that of the interpreter; links are not followed, because
 * a virtual environment is one. */
static bool packages_beside(const char *interpreter, const char *wanted, char *out, size_t size)
{
    char prefix[PATH_MAX], pattern[PATH_MAX + 64];
    glob_t found = {0};
    bool is_found = snprintf(prefix, sizeof(prefix), "%s", interpreter) < (int)sizeof(prefix);
    for (int up = 0; up < 2 && is_found; up++) {
        char *slash = strrchr(prefix, '/');
        is_found = slash != NULL && slash != prefix;
        if (is_found) {
            *slash = '\0';
        }
    }
    if (is_found) {
        snprintf(pattern, sizeof(pattern), "%s/lib/python3*/site-packages%s", prefix, wanted);
        is_found = glob(pattern, 0, NULL, &found) == 0;
    }
    if (is_found) {
        int length = (int)(strlen(found.gl_pathv[0]) - strlen(wanted));
        is_found = snprintf(out, size, "%.*s", length, found.gl_pathv[0]) < (int)size;
    }
    globfree(&found);
    return is_found;
}

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Reads a line from a process that is not trusted to end. */
static bool read_answer(int fd, char *out, size_t size)
{
    size_t used = 0;
    uint64_t until = now_ms() + ANSWER_MS, now;
    while (used + 1 < size && (now = now_ms()) < until) {
        struct pollfd at = {fd, POLLIN, 0};
        ssize_t n = poll(&at, 1, (int)(until - now)) > 0 ? read(fd, out + used, size - 1 - used) : -1;
        if (n <= 0) {
            break;
        }
        used += (size_t)n;
    }
    out[used] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return out[0] != '\0';
}

bool roll_rehearse_ask(const char *interpreter, const char *question, char *out, size_t size)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) != 0) {
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        setpgid(0, 0);
        if (dup2(null, STDIN_FILENO) >= 0 && dup2(null, STDERR_FILENO) >= 0 && dup2(fd[1], STDOUT_FILENO) >= 0) {
            execl(interpreter, interpreter, "-c", question, (char *)NULL);
        }
        _exit(127);
    }
    close(fd[1]);
    bool is_told = pid > 0 && read_answer(fd[0], out, size);
    close(fd[0]);
    if (pid > 0) {
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL); /* it has answered, or takes too long */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    return is_told;
}

/*
 * Asks the interpreter where its PyTorch is. Nothing of PyTorch runs, and nothing of the folder in which the command
 * was given: it comes first in the path of modules, and a job may have a file there that is called like a module of
 * Python's. -I would leave out PYTHONPATH and the user's packages as well, which the job does use, and -P is younger
 * than 3.9.
 */
static bool ask_for_packages(const char *interpreter, char *out, size_t size)
{
    static const char question[] =
        "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; import importlib.util as u; s = "
        "u.find_spec('torch'); print((list(s and s.submodule_search_locations or ()) + "
        "[''])[0])";
    char answer[PATH_MAX];
    bool is_told = roll_rehearse_ask(interpreter, question, answer, sizeof(answer)) && answer[0] == '/';
    char *slash = is_told ? strrchr(answer, '/') : NULL;
    if (slash == NULL || slash == answer) {
        return false;
    }
    *slash = '\0';
    return snprintf(out, size, "%s", answer) < (int)size;
}

static bool has_library(const char *packages, const char *wanted)
{
    char path[PATH_MAX + 64];
    return snprintf(path, sizeof(path), "%s%s", packages, wanted) < (int)sizeof(path) && access(path, R_OK) == 0;
}

/* Where the interpreter's PyTorch is, whatever it was built for, when it is asked, which it is once. */
static bool asked_packages(const char *path, char *out, size_t size)
{
    static char asked[PATH_MAX], answer[PATH_MAX];
    if (fnmatch("python*", base_of(path), 0) != 0) {
        return false;
    }
    if (strcmp(asked, path) != 0) {
        snprintf(asked, sizeof(asked), "%s", path);
        if (!ask_for_packages(path, answer, sizeof(answer))) {
            answer[0] = '\0';
        }
    }
    return answer[0] != '\0' && snprintf(out, size, "%s", answer) < (int)size;
}

bool roll_rehearse_packages(const char *command, char *out, size_t size)
{
    char path[PATH_MAX];
    return roll_program_find(command, path, sizeof(path)) &&
           (packages_beside(path, library, out, size) ||
            (asked_packages(path, out, size) && has_library(out, library)));
}

bool roll_rehearse_without_cuda(const char *command, char *out, size_t size)
{
    static const char other[] = "/torch/lib/libtorch_cpu.so"; /* which every wheel has */
    char path[PATH_MAX];
    return !roll_rehearse_packages(command, out, size) && roll_program_find(command, path, sizeof(path)) &&
           (packages_beside(path, other, out, size) || (asked_packages(path, out, size) && has_library(out, other)));
}

bool roll_rehearse_wheel(const char *command, char *out, size_t size)
{
    char packages[PATH_MAX];
    return roll_rehearse_packages(command, packages, sizeof(packages)) &&
           snprintf(out, size, "%s%s", packages, library) < (int)size;
}

bool roll_rehearse_nccl(const char *command, char *out, size_t size)
{
    char packages[PATH_MAX];
    return roll_rehearse_packages(command, packages, sizeof(packages)) &&
           snprintf(out, size, "%s/nvidia/nccl/lib/libnccl.so.2", packages) < (int)size && access(out, R_OK) == 0;
}

/* which interpreter */

/* The interpreter that the first line of a script names: "#!/venv/bin/python", "#!/usr/bin/env -S python3 -u". */
static bool interpreter_of_script(const char *path, char *out, size_t size)
{
    char line[PATH_MAX] = "", *rest = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof(line) - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 2 || line[0] != '#' || line[1] != '!') {
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    char *word = strtok_r(line + 2, " \t", &rest);
    if (word != NULL && strcmp(base_of(word), "env") == 0) {
        do {
            word = strtok_r(NULL, " \t", &rest);
        } while (word != NULL && (word[0] == '-' || strchr(word, '=') != NULL));
    }
    return word != NULL && fnmatch("python*", base_of(word), 0) == 0 && roll_program_find(word, out, size);
}

/* The interpreter of the environment that is active: what a shell script would start. */
static bool active_interpreter(char *out, size_t size)
{
    static const char *const folders[] = {"VIRTUAL_ENV", "CONDA_PREFIX"}, *const names[] = {"python", "python3"};
    char packages[PATH_MAX];
    for (size_t i = 0; i < 2; i++) {
        const char *folder = getenv(folders[i]);
        if (folder != NULL && folder[0] == '/' && snprintf(out, size, "%s/bin/python", folder) < (int)size &&
            roll_rehearse_packages(out, packages, sizeof(packages))) {
            return true;
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (roll_program_find(names[i], out, size) && roll_rehearse_packages(out, packages, sizeof(packages))) {
            return true;
        }
    }
    return false;
}

/* The interpreter of the project in this folder or one above, where `uv run` keeps it. */
static bool project_interpreter(char *out, size_t size)
{
    char folder[PATH_MAX];
    const char *named = getenv("UV_PROJECT_ENVIRONMENT");
    if (named != NULL && named[0] != '\0') {
        return snprintf(out, size, "%s/bin/python", named) < (int)size && is_program(out);
    }
    bool is_there = getcwd(folder, sizeof(folder)) != NULL;
    while (is_there) {
        if (snprintf(out, size, "%s/.venv/bin/python", folder) < (int)size && is_program(out)) {
            return true;
        }
        char *slash = strrchr(folder, '/');
        is_there = slash != NULL && slash != folder;
        if (is_there) {
            *slash = '\0';
        }
    }
    return false;
}

/* The first word behind `env` and its options that is a program. */
static char *const *behind_env(char *const *word)
{
    while (word[0] != NULL && (word[0][0] == '-' || strchr(word[0], '=') != NULL)) {
        word += strcmp(word[0], "-u") == 0 && word[1] != NULL ? 2 : 1;
    }
    return word;
}

bool roll_rehearse_interpreter(char *const command[], char *out, size_t size)
{
    static const char *const starters[] = {"nice",   "ionice", "chrt", "taskset", "numactl", "timeout", "stdbuf",
                                           "setsid", "nohup",  "time", "mpirun",  "mpiexec", "srun",    NULL};
    static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh", NULL};
    static const char *const managers[] = {"poetry", "pdm", "pipenv", "hatch", NULL};
    bool is_started = false; /* by a program whose options are not known here */
    for (char *const *word = command; word[0] != NULL;) {
        const char *name = base_of(word[0]);
        char path[PATH_MAX];
        if (strcmp(name, "env") == 0) {
            word = behind_env(word + 1);
        } else if (is_one_of(name, starters)) {
            is_started = true;
            word++;
        } else if (is_one_of(name, shells) || is_one_of(name, managers)) {
            return active_interpreter(out, size);
        } else if (strcmp(name, "uv") == 0) {
            return project_interpreter(out, size);
        } else if (fnmatch("python*", name, 0) == 0 && roll_program_find(word[0], out, size)) {
            return true;
        } else if (roll_program_find(word[0], path, sizeof(path)) && interpreter_of_script(path, out, size)) {
            return true;
        } else if (is_started) {
            word++;
        } else {
            return snprintf(out, size, "%s", word[0]) < (int)size;
        }
    }
    return false;
}
