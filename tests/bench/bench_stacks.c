/*
 * bench_stacks.c: the stacks of a hung job of 8 ranks, from the command to the last printed line, beside what else a
 * node has for it.
 *
 * The job is real: moe_train on hostnccl, in which rank 3 stays busy in host code. gdb (and eu-stack, where installed)
 * look at the same processes one after the other, as their users do; they name no Python frames, merge nothing and stop
 * a whole process while they walk.
 */
#include "tests/bench/bench.h"

#include "daemon/base/clock.h"
#include "trace/err.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS          8
#define TRIALS         7
#define WAIT_S         60
#define PATH_MAX_BYTES 4096

extern char **environ;

struct bench {
    char bin[PATH_MAX_BYTES]; /* where roll_bench is, and rollcall with it */
    char dir[64];
    pid_t job;
};

static int begin(struct bench *b)
{
    char rollcall[PATH_MAX_BYTES + 16], train[PATH_MAX_BYTES + 16], n[8];
    char *argv[] = {rollcall,
                    (char[]){"run"},
                    (char[]){"-n"},
                    n,
                    (char[]){"--hostnccl"},
                    (char[]){"--quiet"},
                    (char[]){"--"},
                    train,
                    (char[]){"--steps"},
                    (char[]){"40"},
                    (char[]){"--timeout"},
                    (char[]){"300"},
                    (char[]){"--inject"},
                    (char[]){"sleep:rank=3"},
                    NULL};
    posix_spawn_file_actions_t quiet;
    ssize_t used = readlink("/proc/self/exe", b->bin, sizeof(b->bin) - 1);
    if (used <= 0) {
        return ROLL_E_NOTFOUND;
    }
    b->bin[used] = '\0';
    *strrchr(b->bin, '/') = '\0';
    snprintf(b->dir, sizeof(b->dir), "/dev/shm/rollcall-bench-XXXXXX");
    if (!mkdtemp(b->dir)) {
        return ROLL_E_IO;
    }
    setenv("ROLLCALL_DIR", b->dir, 1);
    snprintf(rollcall, sizeof(rollcall), "%s/rollcall", b->bin);
    snprintf(train, sizeof(train), "%s/moe_train", b->bin);
    snprintf(n, sizeof(n), "%d", RANKS);
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = access(train, X_OK) == 0 ? posix_spawn(&b->job, rollcall, &quiet, NULL, argv, environ) : ROLL_E_NOTFOUND;
    posix_spawn_file_actions_destroy(&quiet);
    return rc == 0 ? 0 : ROLL_E_NOTFOUND;
}

static void end(struct bench *b)
{
    if (b->job > 0) {
        kill(b->job, SIGTERM);
        waitpid(b->job, NULL, 0);
    }
    if (b->dir[0]) {
        rmdir(b->dir);
    }
    unsetenv("ROLLCALL_DIR");
}

/* Runs a command and takes its output, at most size bytes. Returns its exit code. */
static int run(const char *command, char *out, size_t size, double *seconds)
{
    uint64_t from = roll_mono_ns();
    FILE *f = popen(command, "re");
    char rest[4096];
    if (!f) {
        return -1;
    }
    size_t n = fread(out, 1, size - 1, f);
    out[n] = '\0';
    while (fread(rest, 1, sizeof(rest), f) > 0) {
    }
    int status = pclose(f);
    *seconds = (double)(roll_mono_ns() - from) * 1e-9;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool hung(const struct bench *b)
{
    char command[PATH_MAX_BYTES + 64], out[4096];
    double seconds;
    snprintf(command, sizeof(command), "'%s/rollcall' verdicts --json 2>/dev/null", b->bin);
    for (int i = 0; i < WAIT_S * 5; i++) {
        run(command, out, sizeof(out), &seconds);
        if (strstr(out, "\"rank-busy\"")) {
            return true;
        }
        usleep(200000);
    }
    return false;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and worst of a command that has to end with 0 and to name the rank that is busy. */
static int measure(const char *command, const char *proof, double out[2])
{
    static char text[1 << 20];
    double took[TRIALS];
    for (int i = 0; i < TRIALS; i++) {
        if (run(command, text, sizeof(text), &took[i]) != 0 || !strstr(text, proof)) {
            fprintf(stderr, "roll_bench: '%s' did not show %s\n", command, proof);
            return ROLL_E_INCOMPLETE;
        }
    }
    qsort(took, TRIALS, sizeof(took[0]), by_value);
    out[0] = took[TRIALS / 2];
    out[1] = took[TRIALS - 1];
    return 0;
}

static int ours(const struct bench *b, json_t *out, FILE *table)
{
    static const struct {
        const char *options, *key, *title, *goal;
    } rows[] = {
        {"-n 1", "one_look", "8 ranks, one look: merged and printed", "goal <= 1 s"},
        {"", "three_looks", "8 ranks, three looks (400 ms of waiting in it)", "goal <= 1 s"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[PATH_MAX_BYTES + 64], measured[64], key[64];
        double took[2];
        snprintf(command, sizeof(command), "'%s/rollcall' stacks %s 2>&1", b->bin, rows[i].options);
        if (measure(command, "inject_process", took) != 0) {
            return ROLL_E_INCOMPLETE;
        }
        snprintf(measured, sizeof(measured), "%.2f s, worst %.2f s", took[0], took[1]);
        roll_bench_line(table, rows[i].title, measured, rows[i].goal);
        snprintf(key, sizeof(key), "%s_s", rows[i].key);
        json_object_set_new(out, key, json_real(took[0]));
        snprintf(key, sizeof(key), "%s_worst_s", rows[i].key);
        json_object_set_new(out, key, json_real(took[1]));
    }
    return 0;
}

/* One run of another tool over all ranks. */
static void theirs(const struct bench *b, const char *tool, const char *each, json_t *out, FILE *table)
{
    static char text[1 << 20];
    char command[PATH_MAX_BYTES + 512], title[64], measured[64], key[32];
    double seconds;
    snprintf(command, sizeof(command), "command -v %s", tool);
    snprintf(title, sizeof(title), "%s on the same 8 ranks, one after the other", tool);
    if (run(command, text, sizeof(text), &seconds) != 0) {
        snprintf(measured, sizeof(measured), "%s is not installed", tool);
        roll_bench_line(table, title, measured, "");
        return;
    }
    snprintf(command, sizeof(command),
             "'%s/rollcall' top --once --json | tr ',' '\\n' | sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' | sort -u | "
             "while read p; do "
             "tr '\\0' ' ' < /proc/$p/cmdline | grep -q 'moe_train ' && { %s; }; done 2>/dev/null",
             b->bin, each);
    run(command, text, sizeof(text), &seconds);
    if (!strstr(text, "inject_process")) {
        snprintf(measured, sizeof(measured), "%s could not look", tool);
    } else {
        snprintf(measured, sizeof(measured), "%.2f s", seconds);
        snprintf(key, sizeof(key), "%s_s", tool);
        json_object_set_new(out, key, json_real(seconds));
    }
    roll_bench_line(table, title, measured, "for comparison");
}

int roll_bench_stacks(json_t *out, FILE *table)
{
    struct bench b = {.job = -1};
    int err = begin(&b);
    if (err) {
        fprintf(table, "  left out: moe_train or rollcall is not beside roll_bench\n");
        end(&b);
        return 0;
    }
    err = hung(&b) ? ours(&b, out, table) : ROLL_E_TIMEOUT;
    if (!err) {
        theirs(&b, "gdb", "gdb -p $p -batch -nx -ex 'set debuginfod enabled off' -ex 'thread apply all bt'", out,
               table);
        theirs(&b, "eu-stack", "eu-stack -p $p", out, table);
    }
    end(&b);
    return err;
}
