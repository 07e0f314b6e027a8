/*
 * synth_rank.c: a rank process: COUNT AllReduce calls at RATE per second, then the end that was asked for.
 *
 *   synth_rank DIR JOB RANK SIZE RATE COUNT CAPACITY END [LABEL [FILE LINE]]
 *
 * LABEL is what the job calls its communicator; its calls are made at that line of that file of Python. END is one of
 * these:
 *
 *   exit    ends in good order
 *   wait    waits for SIGTERM, and then ends in good order
 *   hang    hangs inside a call
 *   wrong   makes a call with a wrong count, and then hangs
 *   pause   waits for SIGUSR1, is inside a call until SIGUSR2, and then goes on at the same rate until SIGTERM
 */
#include "tests/daemon/synth.h"

#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t ended, entered, left;

static void on_term(int number)
{
    (void)number;
    ended = 1;
}

static void on_user(int number)
{
    entered = entered || number == SIGUSR1;
    left = left || number == SIGUSR2;
}

static void idle_until(volatile sig_atomic_t *flag)
{
    while (!ended && !*flag) {
        usleep(5000);
    }
}

/* A call that lasts as long as its peers are told to let it last. */
static void pause_inside(struct synth *s, struct synth_call call, uint64_t rate)
{
    idle_until(&entered);
    call.hang = true;
    uint64_t ticket = synth_allreduce(s, &call);
    idle_until(&left);
    synth_return(s, ticket);
    call.hang = false;
    while (!ended) {
        usleep((useconds_t)(1000000 / rate));
        synth_allreduce(s, &call);
    }
}

static void idle(void)
{
    while (!ended) {
        usleep(5000);
    }
}

int main(int argc, char **argv)
{
    if (argc != 9 && argc != 10 && argc != 12) {
        fprintf(stderr, "synth_rank DIR JOB RANK SIZE RATE COUNT CAPACITY END [LABEL [FILE LINE]]\n");
        return 2;
    }
    int32_t rank = atoi(argv[3]), size = atoi(argv[4]);
    uint64_t rate = strtoull(argv[5], NULL, 10), count = strtoull(argv[6], NULL, 10);
    const char *end = argv[8];
    static struct synth s;
    struct sigaction sa = {.sa_handler = on_term};
    sigaction(SIGTERM, &sa, NULL);
    sa.sa_handler = on_user;
    sigaction(SIGUSR1, &sa, NULL);
    sigaction(SIGUSR2, &sa, NULL);
    int err = synth_open(&s, argv[1], argv[2], rank, size, (uint32_t)strtoul(argv[7], NULL, 10));
    if (err) {
        fprintf(stderr, "synth_rank: %s\n", roll_strerror(err));
        return 3;
    }
    s.label = argv[9];
    if (argc == 12) {
        synth_site(&s, argv[10], (uint32_t)strtoul(argv[11], NULL, 10), "train");
    }
    uint16_t comm = synth_comm(&s, 0x1000);
    struct synth_call call = {.comm = comm, .count = 1024};
    uint64_t begin = synth_mono_ns(), slice = rate / 1000 ? rate / 1000 : 1; /* calls between two sleeps: about 1 ms */
    for (uint64_t i = 0; i < count; i++) {
        if (rate && i % slice == 0) {
            synth_until(begin + i * 1000000000u / rate);
        }
        synth_allreduce(&s, &call);
    }
    if (strcmp(end, "wrong") == 0) {
        call.count = 999;
    }
    if (strcmp(end, "wrong") == 0 || strcmp(end, "hang") == 0) {
        call.hang = true;
        synth_allreduce(&s, &call);
        idle();
    }
    if (strcmp(end, "pause") == 0) {
        pause_inside(&s, call, rate ? rate : 1000);
    }
    if (strcmp(end, "wait") == 0) {
        idle();
    }
    synth_finish(&s);
    synth_close(&s);
    return 0;
}
