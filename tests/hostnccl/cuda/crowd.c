/*
 * crowd.c: crowd PROCESSES STREAMS ROUNDS: many processes with several streams each pass one token around; every hop is
 * a host function on some stream of some process that sleeps until its turn. All of them wait but one, so a waiter that
 * spun would starve the one that has to run. Prints the time; exits 1 when a process failed. Ends by itself after a
 * minute.
 */
#include <cuda_runtime.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 280, STREAMS_MAX = 16 };

struct turn {
    _Atomic uint32_t *token; /* one futex word per hop of a round, so that only the next one is woken */
    uint32_t hop, hops, round;
};

static void futex(_Atomic uint32_t *word, int what, uint32_t value)
{
    syscall(SYS_futex, word, what, value, NULL, NULL, 0);
}

/* Waits until its word shows its round, then passes on. */
static void take_turn(void *data)
{
    struct turn *turn = data;
    _Atomic uint32_t *mine = &turn->token[turn->hop];
    uint32_t seen;
    while ((seen = atomic_load(mine)) < turn->round) {
        futex(mine, FUTEX_WAIT, seen);
    }
    uint32_t next = (turn->hop + 1) % turn->hops;
    atomic_fetch_add(&turn->token[next], 1);
    futex(&turn->token[next], FUTEX_WAKE, 1);
}

static int member(_Atomic uint32_t *token, uint32_t process, uint32_t processes, uint32_t streams, uint32_t rounds)
{
    cudaStream_t stream[STREAMS_MAX];
    struct turn *turns = calloc((size_t)streams * rounds, sizeof(*turns));
    if (!turns) {
        return 1;
    }
    for (uint32_t s = 0; s < streams; s++) {
        if (cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking)) {
            return 1;
        }
    }
    for (uint32_t r = 0; r < rounds; r++) {
        for (uint32_t s = 0; s < streams; s++) {
            struct turn *turn = &turns[r * streams + s];
            *turn = (struct turn){token, s * processes + process, processes * streams, r + 1};
            if (cudaLaunchHostFunc(stream[s], take_turn, turn)) {
                return 1;
            }
        }
    }
    if (cudaDeviceSynchronize()) {
        return 1;
    }
    free(turns);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t processes = argc > 1 ? (uint32_t)atoi(argv[1]) : 64, streams = argc > 2 ? (uint32_t)atoi(argv[2]) : 4,
             rounds = argc > 3 ? (uint32_t)atoi(argv[3]) : 20;
    if (streams > STREAMS_MAX || !processes || !streams) {
        fprintf(stderr, "crowd PROCESSES STREAMS ROUNDS, at most %d streams\n", STREAMS_MAX);
        return 2;
    }
    _Atomic uint32_t *token =
        mmap(NULL, processes * streams * sizeof(*token), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (token == MAP_FAILED) {
        return 1;
    }
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    atomic_store(&token[0], 1); /* the first round may start */
    for (uint32_t p = 0; p < processes; p++) {
        pid_t pid = fork();
        if (!pid) {
            alarm(LIMIT_S);
            _exit(member(token, p, processes, streams, rounds));
        }
        if (pid < 0) {
            perror("fork");
            return 1;
        }
    }
    int failed = 0;
    for (int status; wait(&status) > 0;) {
        failed += status != 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%u processes, %u streams, %u rounds: %.3f s, %d failed\n", processes, streams, rounds,
           (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9, failed);
    return failed != 0;
}
