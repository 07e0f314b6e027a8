/*
 * bench_daemon.c: how long a wrong call takes to become a printed verdict, with real processes and sockets; and the
 * processes that bench_agent.c needs as well.
 *
 * The ranks are synthetic: they write rings as the interposer does, without NCCL, so that the daemon is what is
 * measured. Latency counts from the wrong call, which is the last of its collective, so no waiting for peers is in it.
 */
#include "tests/bench/bench_daemon.h"
#include "tests/bench/bench.h"

#include "daemon/verdict/verdict_text.h"
#include "daemon/wire/client.h"
#include "tests/daemon/synth.h"
#include "trace/err.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_LATENCY 16
#define TRIALS        ROLL_BENCH_TRIALS

/* processes */

static int daemon_path(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 16);
    if (n <= 0) {
        return ROLL_E_NOTFOUND;
    }
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    strcpy(slash + 1, "rollcalld");
    return access(out, X_OK) == 0 ? 0 : ROLL_E_NOTFOUND;
}

int roll_bench_launch(pid_t *daemon, const char *const *options, char *endpoint, size_t size)
{
    char path[PATH_MAX], fd[16];
    int ends[2];
    if (daemon_path(path, sizeof(path)) != 0) {
        fprintf(stderr, "bench: rollcalld is not beside this program\n");
        return ROLL_E_NOTFOUND;
    }
    if (pipe(ends) != 0) {
        return ROLL_E_IO;
    }
    *daemon = fork();
    if (*daemon == 0) {
        const char *argv[24] = {path, "--ready-fd", fd};
        int n = 3;
        snprintf(fd, sizeof(fd), "%d", ends[1]);
        for (; *options; options++) {
            argv[n++] = *options;
        }
        argv[n++] = "--no-supervise"; /* it is measured by its pid */
        close(ends[0]);
        setenv("ROLLCALL_QUIET", "1", 0); /* 0 in the environment: what they log is seen */
        execv(path, (char *const *)argv);
        _exit(127);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    bool said = f && fgets(endpoint, (int)size, f) != NULL;
    if (f) {
        fclose(f);
    }
    endpoint[strcspn(endpoint, "\n")] = '\0';
    return said ? 0 : ROLL_E_UNREACHABLE;
}

/* Starts one daemon of the directory. */
int roll_bench_start(struct roll_bench_daemons *b, int slot, const char *const *extra, char *endpoint, size_t size)
{
    const char *options[20] = {"--dir", b->dir};
    for (int n = 2; *extra; extra++) {
        options[n++] = *extra;
    }
    return roll_bench_launch(&b->daemon[slot], options, endpoint, size);
}

int roll_bench_open(struct roll_bench_daemons *b)
{
    memset(b, 0, sizeof(*b));
    snprintf(b->dir, sizeof(b->dir), "/dev/shm/rollcall-bench-XXXXXX");
    if (!mkdtemp(b->dir)) {
        fprintf(stderr, "bench: no directory under /dev/shm\n");
        return ROLL_E_IO;
    }
    b->board = mmap(NULL, sizeof(*b->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return b->board == MAP_FAILED ? ROLL_E_NOMEM : 0;
}

void roll_bench_close(struct roll_bench_daemons *b)
{
    if (b->board && b->board != MAP_FAILED) {
        atomic_store(&b->board->stop, 1);
    }
    for (int i = 0; i < ROLL_BENCH_RANKS; i++) {
        if (b->rank[i] > 0) {
            waitpid(b->rank[i], NULL, 0);
        }
    }
    roll_client_destroy(&b->client);
    for (int i = 1; i >= 0; i--) {
        if (b->daemon[i] > 0) {
            kill(b->daemon[i], SIGTERM);
            int ms = 0;
            while (ms < 5000 && waitpid(b->daemon[i], NULL, WNOHANG) == 0) {
                usleep(10000);
                ms += 10;
            }
            if (ms >= 5000) {
                fprintf(stderr, "bench: rollcalld did not end in 5 s\n");
                kill(b->daemon[i], SIGKILL);
                waitpid(b->daemon[i], NULL, 0);
            }
        }
    }
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", b->dir);
    if (system(command) != 0) {
        fprintf(stderr, "bench: %s is left behind\n", b->dir);
    }
    if (b->board && b->board != MAP_FAILED) {
        munmap(b->board, sizeof(*b->board));
    }
}

/* latency */

/* One rank: healthy calls all the time, and one call per trial on a communicator of its own; the wrong rank calls last.
 */
static void rank_of_trials(const struct roll_bench_daemons *b, int rank)
{
    static struct synth s;
    struct roll_bench_board *board = b->board;
    uint16_t comm[TRIALS + 1];
    if (synth_open(&s, b->dir, "bench", rank, RANKS_LATENCY, 16384) != 0) {
        _exit(1);
    }
    for (int i = 0; i <= TRIALS; i++) {
        comm[i] = synth_comm(&s, 0x2000u + (uint64_t)i);
    }
    atomic_fetch_add(&board->ready, 1);
    uint64_t next = synth_mono_ns();
    for (uint32_t seen = 0; !atomic_load(&board->stop); next += 1000000) {
        uint32_t trial = atomic_load(&board->trial);
        if (trial > seen) {
            int wrong = (int)(trial * 7 % RANKS_LATENCY);
            if (rank != wrong || atomic_load(&board->done[seen]) == RANKS_LATENCY - 1) {
                struct synth_call call = {.comm = comm[trial], .count = rank == wrong ? 999 : 1024};
                if (rank == wrong) {
                    atomic_store(&board->wrong_ns[seen], synth_mono_ns());
                }
                synth_allreduce(&s, &call);
                atomic_fetch_add(&board->done[seen], 1);
                seen = trial;
            }
        } else if (synth_mono_ns() / 10000000 % 2 == 0) {
            synth_allreduce(&s, &(struct synth_call){.comm = comm[0], .count = 64});
        }
        synth_until(next);
    }
    synth_finish(&s);
    _exit(0);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Waits for the verdict about this trial's communicator, prints it, and returns the milliseconds since the wrong call.
 */
static double one_trial(struct roll_bench_daemons *b, uint32_t trial, FILE *printed)
{
    char key[24];
    snprintf(key, sizeof(key), "0x%016llx", 0x2000ull + trial);
    atomic_store(&b->board->trial, trial);
    for (int tries = 0; tries < 100; tries++) {
        json_t *verdict = NULL;
        if (roll_client_next(b->client, 50, &verdict) != 0) {
            continue;
        }
        const char *comm = json_string_value(json_object_get(json_object_get(verdict, "comm"), "key"));
        const char *code = json_string_value(json_object_get(verdict, "code"));
        bool ours = comm && code && strcmp(comm, key) == 0 && strcmp(code, "count-mismatch") == 0;
        if (ours) {
            roll_verdict_print(printed, verdict, false);
            fflush(printed);
        }
        uint64_t now = synth_mono_ns();
        json_decref(verdict);
        if (ours) {
            return (double)(now - atomic_load(&b->board->wrong_ns[trial - 1])) * 1e-6;
        }
    }
    return -1;
}

int roll_bench_verdict(json_t *out, FILE *table)
{
    struct roll_bench_daemons b;
    char endpoint[256], why[512], measured[64];
    double ms[TRIALS];
    uint32_t used = 0;
    int err = roll_bench_open(&b);
    FILE *printed = fopen("/dev/null", "w");
    if (!err) {
        err = roll_bench_start(&b, 0, (const char *const[]){"--standalone", NULL}, endpoint, sizeof(endpoint));
    }
    if (!err) {
        err = roll_client_new(endpoint, NULL, 3000, &b.client, why, sizeof(why));
    }
    json_t *reply = NULL;
    if (!err) {
        err = roll_client_query(b.client, json_pack("{s:s,s:i}", "op", "subscribe", "from", 0), 3000, &reply);
        json_decref(reply);
    }
    for (int i = 0; i < RANKS_LATENCY && !err; i++) {
        b.rank[i] = fork();
        if (b.rank[i] == 0) {
            rank_of_trials(&b, i);
        }
    }
    while (!err && atomic_load(&b.board->ready) < RANKS_LATENCY) {
        usleep(10000);
    }
    usleep(300000);
    for (uint32_t t = 1; t <= TRIALS && !err; t++) {
        double one = one_trial(&b, t, printed);
        if (one < 0) {
            fprintf(stderr, "bench: trial %u gave no verdict\n", t);
            err = ROLL_E_TIMEOUT;
        } else {
            ms[used++] = one;
        }
        usleep(10000 + t * 7919 % 40000);
    }
    if (used > 0) {
        qsort(ms, used, sizeof(*ms), by_size);
        double p50 = ms[used / 2], p99 = ms[used * 99 / 100];
        json_object_set_new(out, "verdict_latency",
                            json_pack("{s:i,s:i,s:f,s:f,s:f}", "ranks", RANKS_LATENCY, "trials", (int)used, "p50_ms",
                                      p50, "p99_ms", p99, "max_ms", ms[used - 1]));
        snprintf(measured, sizeof(measured), "p50 %.1f ms, p99 %.1f ms", p50, p99);
        roll_bench_line(table, "wrong call to printed verdict, 16 ranks", measured, "p50 <= 10 ms, p99 <= 50 ms");
    }
    if (printed) {
        fclose(printed);
    }
    roll_bench_close(&b);
    return err;
}
