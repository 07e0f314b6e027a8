/*
 * sick_job.h: a root with a job that is sick: of three ranks, rank 1 makes one call with a wrong count. For the tests
 * of what a root is asked.
 */
#ifndef ROLL_TESTS_DAEMON_SICK_JOB_H
#define ROLL_TESTS_DAEMON_SICK_JOB_H

#include "tests/daemon/harness.h"

/* Starts all four, with further options of the root (ended by NULL; NULL: none), and waits for the verdict. endpoint:
 * where the root listens. A client of the root, owned until sick_job_end. */
roll_client_t *sick_job_begin(char endpoint[256], pid_t *daemon, pid_t rank[3], const char *const *options);
/* Ends them; a rank whose number is 0 has been ended already. */
void sick_job_end(roll_client_t *client, pid_t daemon, pid_t rank[3]);

#endif
