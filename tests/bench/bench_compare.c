/*
 * bench_compare.c: what fail-fast costs a call: `roll_bench compare`.
 *
 * Eight ranks of one node on the fake NCCL (tests/interposer/bench_compare_rank.c), in turn with
 * ROLLCALL_ON_MISMATCH=report and =error, several times; the figure is the difference of the medians over ranks and
 * runs. Report mode records and compares nothing, so the difference is the compare alone.
 */
#include "tests/bench/bench.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 8
#define PAIRS 5
#define GOAL  150.0

enum { REPORT, ERROR, MODES };
static const char *const modes[MODES] = {"report", "error"};
static const char *const figures[] = {"publishes_p50", "publishes_p99", "compares_p50", "compares_p99"};
enum { FIGURES = 4 };

struct bench {
    char top[PATH_MAX], work[PATH_MAX];
    double value[MODES][FIGURES][RANKS * PAIRS];
    int used[MODES];
};

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int find_products(struct bench *b)
{
    ssize_t n = readlink("/proc/self/exe", b->top, sizeof(b->top) - 1);
    b->top[n > 0 ? n : 0] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(b->top, '/');
        if (slash == NULL) {
            return -1;
        }
        *slash = '\0';
    }
    snprintf(b->work, sizeof(b->work), "/dev/shm/roll-bench-XXXXXX");
    return mkdtemp(b->work) != NULL ? 0 : -1;
}

/* One rank of a run, with its line in WORK/RANK. Does not return. */
static void exec_rank(const struct bench *b, int rank, const char *mode, int run)
{
    char out[PATH_MAX + 32], program[PATH_MAX + 64], preload[PATH_MAX + 64], turns[PATH_MAX + 16], number[16], job[32];
    snprintf(out, sizeof(out), "%s/%d", b->work, rank);
    snprintf(program, sizeof(program), "%s/bin/roll_bench_compare_rank", b->top);
    snprintf(preload, sizeof(preload), "%s/lib/librollcall.so", b->top);
    snprintf(turns, sizeof(turns), "%s/turns", b->work);
    snprintf(number, sizeof(number), "%d", rank);
    snprintf(job, sizeof(job), "bench-%d", run);
    int fd = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    unsetenv("ROLLCALL_DAEMON");
    setenv("LD_PRELOAD", preload, 1);
    setenv("ROLLCALL_DIR", b->work, 1);
    setenv("ROLLCALL_JOB", job, 1);
    setenv("ROLLCALL_ON_MISMATCH", mode, 1);
    setenv("RANK", number, 1);
    setenv("WORLD_SIZE", "8", 1);
    execl(program, program, number, "8", turns, (char *)NULL);
    _exit(127);
}

/* Starts all ranks, waits, and takes their figures. */
static int run_mode(struct bench *b, int mode, int run)
{
    static const char zero[8];
    char turns[PATH_MAX + 16];
    pid_t pid[RANKS];
    int rc = 0;
    snprintf(turns, sizeof(turns), "%s/turns", b->work);
    int fd = open(turns, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, zero, sizeof(zero)) != (ssize_t)sizeof(zero)) {
        return -1;
    }
    close(fd);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            exec_rank(b, r, modes[mode], run);
        }
    }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        rc = pid[r] < 0 || waitpid(pid[r], &status, 0) < 0 || status != 0 ? -1 : rc;
    }
    for (int r = 0; r < RANKS && rc == 0; r++) {
        char path[PATH_MAX + 16];
        snprintf(path, sizeof(path), "%s/%d", b->work, r);
        json_t *line = json_load_file(path, 0, NULL);
        rc = line != NULL && json_integer_value(json_object_get(line, "refused")) == 0 ? 0 : -1;
        for (int f = 0; f < FIGURES && rc == 0; f++) {
            b->value[mode][f][b->used[mode]] = json_number_value(json_object_get(line, figures[f]));
        }
        b->used[mode]++;
        json_decref(line);
    }
    return rc;
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(double), by_double);
    return values[n / 2];
}

static void report(struct bench *b, json_t *out, FILE *table)
{
    static const char *const who[] = {"publishes first", "compares with it"};
    for (int kind = 0; kind < 2; kind++) {
        char name[64], text[96];
        double value[MODES][2];
        for (int mode = 0; mode < MODES; mode++) {
            for (int f = 0; f < 2; f++) {
                value[mode][f] = median(b->value[mode][2 * kind + f], b->used[mode]);
            }
        }
        double p50 = value[ERROR][0] - value[REPORT][0], p99 = value[ERROR][1] - value[REPORT][1];
        snprintf(name, sizeof(name), "a call, 8 ranks on the node, that %s", who[kind]);
        snprintf(text, sizeof(text), "p50 +%.1f ns, p99 +%.1f ns", p50, p99);
        roll_bench_line(table, name, text, "p50 <= 150 ns");
        snprintf(text, sizeof(text), "p50 %.1f ns, with error %.1f ns", value[REPORT][0], value[ERROR][0]);
        roll_bench_line(table, "  over the bare call with report", text, "");
        json_object_set_new(out, kind == 0 ? "publishes" : "compares",
                            json_pack("{s:f,s:f,s:f,s:f,s:b}", "added_p50_ns", p50, "added_p99_ns", p99,
                                      "report_p50_ns", value[REPORT][0], "error_p50_ns", value[ERROR][0], "reached",
                                      p50 <= GOAL));
    }
}

int roll_bench_compare(json_t *out, FILE *table)
{
    static struct bench b;
    int rc = find_products(&b);
    for (int pair = 0; pair < PAIRS && rc == 0; pair++) {
        rc = run_mode(&b, REPORT, 2 * pair);
        rc = rc ? rc : run_mode(&b, ERROR, 2 * pair + 1);
    }
    if (rc == 0) {
        report(&b, out, table);
    } else {
        fprintf(stderr, "roll_bench: the ranks of compare gave no figures, or a call of theirs was refused\n");
    }
    nftw(b.work, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return rc;
}
