/*
 * job.c: the programs that the tests watch, in one: `job MODE [ARGUMENT]`. Linked with an NCCL, or loaded with one
 * through host.c. Exit status 0 when the job itself saw no mistake; the test checks the job's ring. The modes are in
 * the files job_*.c.
 */
#include "tests/interposer/job.h"

#include <stdlib.h>
#include <string.h>

int job_main(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(void);
} modes[] = {
    {"operations", job_mode_every_operation},
    {"groups", job_mode_groups},
    {"children", job_mode_children},
    {"forever", job_mode_forever},
    {"errno", job_mode_errno_is_kept},
    {"fork", job_mode_forks},
    {"threads", job_mode_threads},
    {"signals", job_mode_signals},
    {"callsites", job_mode_callsites},
    {"odd", job_mode_odd_functions},
    {"waits", job_mode_waits},
    {"may_wait", job_mode_may_wait},
    {"orders", job_mode_orders},
    {"polls", job_mode_polls},
    {"moe", job_mode_moe},
    {"names", job_mode_names},
    {"marks", job_mode_marks},
    {"own_mark", job_mode_own_mark},
    {"agent", job_mode_starts_agent},
    {"wild-frames", job_mode_wild_frames},
    {"churn", job_mode_churn},
    {"clocks", job_mode_clocks},
    {"async", job_mode_async_errors},
    {"stuck-send", job_mode_stuck_in_send},
    {"stuck-group", job_mode_stuck_in_group},
    {"stuck-init", job_mode_stuck_in_init},
    {"nothing", job_mode_quiet},
};

int job_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "many") == 0) {
        return job_mode_many(atoi(argv[2]));
    }
    for (size_t i = 0; argc >= 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].run();
        }
    }
    fprintf(stderr, "job: no such mode\n");
    return 2;
}

#ifndef JOB_PLUGIN
int main(int argc, char **argv)
{
    return job_main(argc, argv);
}
#endif
