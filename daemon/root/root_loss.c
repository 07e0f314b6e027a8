/*
 * root_loss.c: verdicts that did not reach a reader, and what ranks asked for and there was no room for: counted for
 * each run, shown in status and metrics.
 *
 * One verdict may be lost at several places (the file of --json, the list for consoles, a subscriber); each place
 * counts it, because each has readers who miss it. The counter is kept here, apart from the runs, because queries and
 * stacks lose verdicts as well.
 */
#include "daemon/root/root_digest.h"
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

/* Each case reads the same records again: what they are refused there counts once, as of the case with the most. */
uint64_t roll_run_no_room(const struct roll_run *run)
{
    bool apart = run->judge && run->judge != run->feed;
    uint64_t now = apart ? roll_engine_refusals(roll_feed_engine(run->judge)) : 0;
    uint64_t n = roll_engine_refusals(roll_feed_engine(run->feed)) + (now > run->no_room ? now : run->no_room);
    if (run->digested) {
        struct roll_sum_figures f;
        roll_sum_figures(run->digested->sum, &f);
        n += f.no_room;
    }
    return n;
}

void roll_room_look(struct roll_run *run)
{
    uint64_t n = run->no_room_told ? 0 : roll_run_no_room(run);
    if (n > 0) {
        run->no_room_told = true;
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u: a rank asks for more room than there is: what does not fit is refused and counted "
                 "(no_room), and the rank is set aside (said once)",
                 run->job, run->restart);
    }
}
