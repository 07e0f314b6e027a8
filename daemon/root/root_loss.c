/*
 * root_loss.c: verdicts that did not reach a reader: counted for each run, shown in status and metrics.
 *
 * One verdict may be lost at several places (the file of --json, the list for consoles, a subscriber); each place
 * counts it, because each has readers who miss it. The counter is kept here, apart from the runs, because queries and
 * stacks lose verdicts as well.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/log.h"

void roll_run_lose_verdict(struct roll_run *run, uint64_t number, const char *what)
{
    if (run->verdicts_lost++ == 0) {
        roll_log(ROLL_LOG_ERROR, "root: %s.%u: verdict %llu %s (said once, counted)", run->job, run->restart,
                 (unsigned long long)number, what);
    }
}

uint64_t roll_run_verdicts_lost(const struct roll_run *run)
{
    return run->verdicts_lost + roll_feed_verdicts_lost(run->feed);
}
