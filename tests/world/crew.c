/*
 * crew.c: see crew.h.
 *
 * Worker k of n plays the plans k, k + n, k + 2n ...: so nobody has to hand them out, and a pipe of each is read in
 * turn. What a plan prints is followed by a zero byte, which no text holds, and its tally. Threads were rejected: there
 * is one world in a process.
 */
#include "tests/world/crew.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

void tally_add(struct tally *sum, const struct tally *one)
{
    sum->plans += one->plans;
    sum->bad += one->bad;
    sum->unusable += one->unusable;
    sum->deaths += one->deaths;
    sum->lossy += one->lossy;
    sum->written += one->written;
    sum->lost += one->lost;
    sum->world_s += one->world_s;
    sum->host_s += one->host_s;
    sum->rank_s += one->rank_s;
    sum->agent_most = one->agent_most > sum->agent_most ? one->agent_most : sum->agent_most;
    sum->root_most = one->root_most > sum->root_most ? one->root_most : sum->root_most;
    sum->relay_most = one->relay_most > sum->relay_most ? one->relay_most : sum->relay_most;
}

unsigned crew_processors(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > (int)CREW_MOST ? CREW_MOST : (unsigned)n;
}

static void work(const struct crew *crew, uint64_t from, uint64_t n)
{
    for (uint64_t i = from; i < n; i += crew->workers) {
        struct tally tally = {0};
        crew->play(i, &tally);
        if (putchar(0) < 0 || fwrite(&tally, sizeof(tally), 1, stdout) != 1 || fflush(stdout) != 0) {
            _exit(1); /* nobody wants to know any more */
        }
    }
}

/* A process whose standard output is read; NULL: it cannot be had. */
static FILE *begin(const struct crew *crew, uint64_t from, uint64_t n, pid_t *pid)
{
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) {
        return NULL;
    }
    *pid = fork();
    if (*pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        work(crew, from, n);
        _exit(0);
    }
    close(ends[1]);
    FILE *file = *pid > 0 ? fdopen(ends[0], "r") : NULL;
    if (!file) {
        close(ends[0]);
    }
    return file;
}

/* Passes on what one plan printed. 0, or -1: its process has died. */
static int pass_on(FILE *from, struct tally *tally)
{
    int c;
    while ((c = getc(from)) > 0) {
        putchar(c);
    }
    fflush(stdout);
    return c == 0 && fread(tally, sizeof(*tally), 1, from) == 1 ? 0 : -1;
}

static int play_side_by_side(const struct crew *crew, uint64_t n, struct tally *sum)
{
    FILE *said[CREW_MOST];
    pid_t pid[CREW_MOST];
    unsigned used = 0;
    int rc = 0;
    while (used < crew->workers && rc == 0) {
        said[used] = begin(crew, used, n, &pid[used]);
        rc = said[used] ? 0 : -1;
        used += rc == 0;
    }
    for (uint64_t i = 0; i < n && sum->bad < crew->failures && rc == 0; i++) {
        struct tally tally;
        rc = pass_on(said[i % crew->workers], &tally);
        if (rc == 0) {
            tally_add(sum, &tally);
        }
    }
    for (unsigned k = 0; k < used; k++) {
        fclose(said[k]);
        kill(pid[k], SIGTERM);
        waitpid(pid[k], NULL, 0);
        crew->clean(pid[k]);
    }
    return rc;
}

int crew_play(const struct crew *crew, uint64_t n, struct tally *sum)
{
    if (crew->workers > 1 && n > 1) {
        struct crew fits = *crew;
        fits.workers = n < crew->workers ? (unsigned)n : crew->workers;
        return play_side_by_side(&fits, n, sum);
    }
    for (uint64_t i = 0; i < n && sum->bad < crew->failures; i++) {
        struct tally tally = {0};
        crew->play(i, &tally);
        tally_add(sum, &tally);
    }
    return 0;
}
