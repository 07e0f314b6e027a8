/*
 * helper.c: samples, waits, samples, names, prints.
 *
 * The processes are looked at in turn within each sample, so the samples of all ranks are of nearly the same moment;
 * names are made once all looking is done, once per place, however many ranks share it.
 */
#include "daemon/stack/helper.h"

#include "daemon/base/clock.h"
#include "daemon/stack/sample.h"
#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define PIDS_MAX    4096u
#define BUDGET_MS   2000u
#define THREAD_MS   200u
#define INTERVAL_MS 200u
#define TELL_NS     (500 * ROLL_MS)

struct job {
    struct roll_stack_wish wish;
    struct roll_sampled *process;
    size_t processes;
    struct roll_names names;
    struct roll_text_pool pool;
};

static unsigned number(const json_t *wish, const char *key, unsigned otherwise, unsigned max)
{
    const json_t *value = json_object_get(wish, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : (json_int_t)otherwise;
    return n < 0 ? 0 : n > (json_int_t)max ? max : (unsigned)n;
}

static int read_wish(const json_t *wish, struct job *job)
{
    const json_t *pids = json_object_get(wish, "pids"), *pid;
    size_t i;
    if (!json_is_array(pids) || json_array_size(pids) == 0 || json_array_size(pids) > PIDS_MAX) {
        return ROLL_E_ARG;
    }
    job->wish = (struct roll_stack_wish){
        .samples = number(wish, "samples", 3, ROLL_STACK_SAMPLES_MAX),
        .interval_ms = number(wish, "interval_ms", INTERVAL_MS, 10000),
        .native = !json_is_false(json_object_get(wish, "native")),
        .python = !json_is_false(json_object_get(wish, "python")),
        .dir = json_string_value(json_object_get(wish, "dir")),
        .budget_ms = BUDGET_MS,
        .thread_ms = THREAD_MS,
    };
    job->wish.samples += job->wish.samples == 0;
    job->process = calloc(json_array_size(pids), sizeof(*job->process));
    if (!job->process) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(pids, i, pid)
    {
        json_int_t n = json_integer_value(pid);
        if (n <= 0 || n > INT32_MAX || n == getpid()) {
            return ROLL_E_ARG;
        }
        job->process[job->processes++].pid = (pid_t)n;
    }
    return 0;
}

static int print(json_t *object)
{
    int rc = object ? json_dumpf(object, stdout, JSON_COMPACT) : -1;
    json_decref(object);
    return rc == 0 && putchar('\n') != EOF && fflush(stdout) == 0 ? 0 : ROLL_E_IO;
}

static void pause_until(uint64_t end)
{
    for (uint64_t now = roll_mono_ns(); now < end; now = roll_mono_ns()) {
        const struct timespec ts = {(time_t)((end - now) / 1000000000u), (long)((end - now) % 1000000000u)};
        nanosleep(&ts, NULL); /* the signal of a late thread may end the sleep early */
    }
}

/* Prints the line that says which process we look at, so that the reader knows it when we crash or hang. */
static int begin(const struct roll_sampled *process)
{
    return print(json_pack("{s:i}", "begin", (int)process->pid));
}

static int look(struct job *job)
{
    int err = 0;
    for (unsigned i = 0; i < job->wish.samples && !err; i++) {
        uint64_t start = roll_mono_ns();
        for (size_t k = 0; k < job->processes && !err; k++) {
            err = begin(&job->process[k]);
            if (!err && !job->process[k].gone) {
                err = roll_sample_look(&job->process[k], &job->wish, i, &job->names, &job->pool);
            }
        }
        if (i + 1 < job->wish.samples && !err) {
            pause_until(start + job->wish.interval_ms * ROLL_MS);
        }
    }
    return err;
}

/* Makes the names of all places of a process. That may take seconds where libraries are large and the job keeps the
 * cores busy. A line each half second tells the reader that we go on and do not hang. */
static int name(struct job *job, const struct roll_sampled *process)
{
    int err = begin(process);
    uint64_t said = roll_mono_ns();
    for (size_t i = 0; i < process->threads; i++) {
        for (unsigned k = 0; k < job->wish.samples; k++) {
            const struct roll_thread_sample *sample = &process->thread[i].sample[k];
            for (uint32_t at = 0; at < sample->depth && !err; at++) {
                size_t count;
                roll_names_frames(&job->names, sample->place[at], &count);
                if (roll_mono_ns() - said > TELL_NS) {
                    err = begin(process);
                    said = roll_mono_ns();
                }
            }
        }
    }
    return err;
}

int roll_stack_helper(const char *text)
{
    struct job job = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* when the parent is gone, nobody reads the answer */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    json_t *wish = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    int err = wish ? read_wish(wish, &job) : ROLL_E_ARG;
    if (err == ROLL_E_ARG) {
        fprintf(stderr, "rollcalld: --stack is for rollcalld itself: it wants {\"pids\":[...]} (docs/STACKS.md)\n");
    }
    err = err ? err : look(&job);
    setpriority(PRIO_PROCESS, 0, 5); /* from here on no thread is held up, and the job's own work goes first */
    for (size_t k = 0; k < job.processes && !err; k++) {
        err = name(&job, &job.process[k]);
        err = err ? err : print(roll_sample_json(&job.process[k], &job.wish, &job.names));
    }
    for (size_t k = 0; k < job.processes; k++) {
        roll_sample_fini(&job.process[k]);
    }
    free(job.process);
    roll_names_fini(&job.names);
    roll_text_pool_fini(&job.pool);
    roll_walk_fini();
    json_decref(wish);
    return err == ROLL_E_ARG ? 2 : err ? 3 : 0;
}
