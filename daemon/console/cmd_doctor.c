/*
 * cmd_doctor.c: rollcall doctor [COMMAND]: what would keep rollcall from working here, one line per check.
 *
 * Each check does what the real thing would do (preload the library, make a file in the ring directory, load the
 * keys) rather than reasoning about settings; a check that cannot fail is not listed.
 */
#include "daemon/console/agent_log.h"
#include "daemon/console/console.h"
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/place.h"
#include "daemon/console/rings_here.h"
#include "daemon/console/run/program.h"
#include "daemon/console/text.h"
#include "daemon/wire/client.h"
#include "daemon/wire/curve.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

int cmd_doctor(const struct roll_command *self, int argc, char **argv);

#define RANKS_WANTED 8u /* ranks of a usual node */

/* Runs a program and catches its output. Returns the wait status, -1 when the program could not be run. */
static int run_quietly(char *const argv[], const char *preload, char *out, size_t size)
{
    int fd[2], status = -1;
    size_t used = 0;
    out[0] = '\0';
    if (pipe2(fd, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDOUT_FILENO);
        dup2(fd[1], STDERR_FILENO);
        if (preload != NULL) {
            setenv("LD_PRELOAD", preload, 1);
        }
        execv(argv[0], argv);
        _exit(127);
    }
    close(fd[1]);
    for (ssize_t n; pid > 0 && used + 1 < size && (n = read(fd[0], out + used, size - 1 - used)) > 0;) {
        used += (size_t)n;
    }
    out[used] = '\0';
    out[strcspn(out, "\n")] = '\0';
    close(fd[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static void check_preload(struct roll_checkup *c, const struct roll_place *place)
{
    char out[512], program[] = "/bin/true";
    char *argv[] = {program, NULL};
    if (place->preload[0] == '\0') {
        roll_checkup_say(c, "preload", ROLL_HEALTH_FAIL,
                         "librollcall.so was not found beside this program; build or install it");
        return;
    }
    int status = run_quietly(argv, place->preload, out, sizeof(out));
    if (status != 0 || out[0] != '\0') {
        roll_checkup_say(c, "preload", ROLL_HEALTH_FAIL, "%s cannot be preloaded: %s", place->preload,
                         out[0] != '\0' ? out : "the program failed");
    } else {
        roll_checkup_say(c, "preload", ROLL_HEALTH_OK, "%s", place->preload);
    }
    const char *disabled = getenv("ROLLCALL_DISABLE");
    if (disabled != NULL && strcmp(disabled, "1") == 0) {
        roll_checkup_say(c, "environment", ROLL_HEALTH_FAIL,
                         "ROLLCALL_DISABLE=1 is set: nothing is recorded; unset it");
    }
}

static void check_daemon(struct roll_checkup *c, struct roll_place *place)
{
    char out[512], option[] = "--version";
    char *argv[] = {place->daemon, option, NULL};
    if (place->daemon[0] == '\0') {
        roll_checkup_say(c, "daemon", ROLL_HEALTH_FAIL,
                         "rollcalld was not found beside this program; build or install it");
        return;
    }
    int status = run_quietly(argv, NULL, out, sizeof(out));
    if (status != 0) {
        roll_checkup_say(c, "daemon", ROLL_HEALTH_FAIL, "%s does not run: %s", place->daemon, out);
    } else if (strstr(out, ROLL_VERSION) == NULL) {
        roll_checkup_say(c, "daemon", ROLL_HEALTH_WARN, "%s is of another version (%s) than this console (%s)",
                         place->daemon, out, ROLL_VERSION);
    } else {
        roll_checkup_say(c, "daemon", ROLL_HEALTH_OK, "%s", place->daemon);
    }
}

/* Shortens path to the nearest directory that exists: itself, or one above it. */
static void existing(char *path)
{
    while (access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            snprintf(path, 2, "/");
            return;
        }
        *slash = '\0';
    }
}

static void check_rings(struct roll_checkup *c)
{
    char dir[PATH_MAX], probe[PATH_MAX + 32], there[PATH_MAX];
    struct stat st;
    struct statvfs fs;
    unsigned long long ring_bytes = roll_place_ring_bytes();
    if (roll_place_rings(dir, sizeof(dir)) != 0) {
        roll_checkup_say(c, "rings", ROLL_HEALTH_FAIL, "ROLLCALL_DIR is too long");
        return;
    }
    if (lstat(dir, &st) == 0 && (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0)) {
        roll_checkup_say(c, "rings", ROLL_HEALTH_FAIL,
                         "%s is not a directory of yours alone: remove it, or set ROLLCALL_DIR", dir);
        return;
    }
    snprintf(there, sizeof(there), "%s", dir);
    existing(there);
    snprintf(probe, sizeof(probe), "%s/.rollcall-doctor-%d", there, (int)getpid());
    int fd = open(probe, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        roll_checkup_say(c, "rings", ROLL_HEALTH_FAIL, "cannot write in %s: %s; set ROLLCALL_DIR to a local directory",
                         there, strerror(errno));
        return;
    }
    int err = posix_fallocate(fd, 0, (off_t)ring_bytes);
    close(fd);
    unlink(probe);
    if (err != 0) {
        roll_checkup_say(c, "rings", ROLL_HEALTH_FAIL,
                         "%s has no room for one ring of %.1f MiB: %s; free some, set ROLLCALL_DIR, or a smaller "
                         "ROLLCALL_RING_RECORDS",
                         there, (double)ring_bytes / 1048576.0, strerror(err));
        return;
    }
    unsigned long long room =
        statvfs(there, &fs) == 0 ? fs.f_bavail * (unsigned long long)fs.f_frsize / ring_bytes : RANKS_WANTED;
    if (room < RANKS_WANTED) {
        roll_checkup_say(c, "rings", ROLL_HEALTH_WARN,
                         "%s has room for %llu rings of %.1f MiB: enlarge /dev/shm, set ROLLCALL_DIR, or a smaller "
                         "ROLLCALL_RING_RECORDS",
                         dir, room, (double)ring_bytes / 1048576.0);
    } else {
        roll_checkup_say(c, "rings", ROLL_HEALTH_OK, "%s", dir);
    }
}

static void check_limits(struct roll_checkup *c)
{
    struct rlimit limit;
    unsigned long long ring_bytes = roll_place_ring_bytes();
    bool fine = true;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < ring_bytes) {
        roll_checkup_say(
            c, "limits", ROLL_HEALTH_FAIL,
            "files may have %llu bytes, a ring has %llu: ulimit -f unlimited, or a smaller ROLLCALL_RING_RECORDS",
            (unsigned long long)limit.rlim_cur, ring_bytes);
        fine = false;
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 256) {
        roll_checkup_say(c, "limits", ROLL_HEALTH_WARN,
                         "a process may have %llu open files; the daemon needs about 3 per rank: ulimit -n 4096",
                         (unsigned long long)limit.rlim_cur);
        fine = false;
    }
    if (fine) {
        roll_checkup_say(c, "limits", ROLL_HEALTH_OK, "file size and open files suffice");
    }
}

static void check_nccl(struct roll_checkup *c, const struct roll_place *place)
{
    void *handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    struct link_map *map = NULL;
    int (*version)(int *) = NULL;
    int number = 0;
    if (handle == NULL) {
        roll_checkup_say(c, "nccl", ROLL_HEALTH_WARN,
                         "no libnccl.so.2 in the loader's path (a Python environment may bring its own)%s%s",
                         place->hostnccl[0] != '\0' ? "; without a GPU: --hostnccl, " : "", place->hostnccl);
        return;
    }
    dlinfo(handle, RTLD_DI_LINKMAP, &map);
    *(void **)&version = dlsym(handle, "ncclGetVersion");
    if (version != NULL) {
        version(&number);
    }
    roll_checkup_say(c, "nccl", ROLL_HEALTH_OK, "%s, version %d.%d.%d", map != NULL ? map->l_name : "libnccl.so.2",
                     number / 10000, number / 100 % 100, number % 100);
    dlclose(handle);
}

static void check_root(struct roll_checkup *c)
{
    char why[512] = "";
    roll_client_t *client = NULL;
    const char *keys = getenv("ROLLCALL_CURVE_DIR");
    const char *named = getenv("ROLLCALL_DAEMON");
    if (keys != NULL && keys[0] != '\0') {
        struct roll_curve_keys pair;
        int err = roll_curve_load(keys, false, &pair, why, sizeof(why));
        roll_checkup_say(c, "keys", err == 0 ? ROLL_HEALTH_OK : ROLL_HEALTH_FAIL, "%s", err == 0 ? keys : why);
        explicit_bzero(&pair, sizeof(pair));
    }
    if (named == NULL || named[0] == '\0') {
        roll_checkup_say(c, "root", ROLL_HEALTH_OK,
                         "none is named by ROLLCALL_DAEMON: `rollcall run` starts one of its own");
        return;
    }
    int err = roll_client_new(NULL, NULL, ROLL_CLIENT_TIMEOUT_MS, &client, why, sizeof(why));
    const char *relay = err == 0 ? roll_client_relay(client) : NULL;
    roll_checkup_say(c, "root", err == 0 ? ROLL_HEALTH_OK : ROLL_HEALTH_FAIL, "%s%s%s", relay != NULL ? relay : "",
                     relay != NULL ? " is a relay; its root answers: " : "",
                     err == 0 ? roll_client_endpoint(client) : why);
    roll_client_destroy(&client);
}

static bool any_rank_lives(void)
{
    struct roll_rings_here *rings = NULL;
    size_t count = 0;
    char base[PATH_MAX];
    bool lives = false;
    (void)roll_rings_here(&rings, &count, base, sizeof(base));
    for (size_t i = 0; i < count; i++) {
        lives = lives || rings[i].live > 0;
    }
    roll_rings_here_free(rings, count);
    return lives;
}

/* The agent that ranks have started here, and what it says of its root. Nothing where none has been; what an earlier
 * one said is no failure while no rank runs that would need it. */
static void check_agent(struct roll_checkup *c)
{
    char dir[PATH_MAX], line[ROLL_AGENT_LINE_BYTES];
    if (roll_place_rings(dir, sizeof(dir)) != 0) {
        return; /* said before */
    }
    bool trouble = roll_agent_log_look(dir, line), runs = roll_agent_log_runs(dir);
    if (trouble) {
        roll_checkup_say(c, "agent", runs || any_rank_lives() ? ROLL_HEALTH_FAIL : ROLL_HEALTH_INFO,
                         "%s%s/agent.log: %s", runs ? "" : "none runs any more; ", dir, line);
    } else if (runs) {
        roll_checkup_say(c, "agent", ROLL_HEALTH_OK, "one serves %s%s%s", dir, line[0] != '\0' ? ": " : "", line);
    }
}

/* Whether the operand is a process: a number is; a program with such a name needs a path. */
static bool is_process(const char *text)
{
    return text[0] != '\0' && strspn(text, "0123456789") == strlen(text) && strlen(text) < 10;
}

int cmd_doctor(const struct roll_command *self, int argc, char **argv)
{
    struct roll_checkup c = {0};
    bool hostnccl = false;
    const struct roll_option options[] = {
        {"hostnccl", 0, ROLL_OPT_FLAG, NULL, "check COMMAND as `rollcall run --hostnccl` would start it", &hostnccl},
        {"json", 0, ROLL_OPT_FLAG, NULL, "one JSON object a line", &c.json},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, true, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    static struct roll_place place;
    signal(SIGXFSZ, SIG_IGN); /* a check is to find that a file may not grow; the signal would end the program */
    roll_place_find(&place);
    check_preload(&c, &place);
    check_daemon(&c, &place);
    check_rings(&c);
    roll_checkup_history(&c);
    check_limits(&c);
    check_nccl(&c, &place);
    check_root(&c);
    check_agent(&c);
    roll_checkup_ptrace(&c);
    if (first < argc && is_process(argv[first])) {
        roll_checkup_process(&c, (uint32_t)strtoul(argv[first], NULL, 10));
    } else if (first < argc) {
        const char *script = roll_missing_script(argv + first);
        if (script != NULL) {
            roll_checkup_say(&c, "script", ROLL_HEALTH_FAIL, "%s: no such file; each rank would say so and end",
                             script);
        }
        roll_checkup_python(&c, argv + first);
        roll_checkup_rehearsal(&c, &place, argv + first);
        roll_checkup_program(&c, &place, argv[first], hostnccl);
    }
    roll_checkup_print(&c);
    return c.failed > 0 ? ROLL_EXIT_FINDING : ROLL_EXIT_CLEAN;
}
