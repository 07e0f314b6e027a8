/*
 * analyze_exit.c: the exit code of an analysis, which whoever shows it in another form has as well.
 */
#include "daemon/console/analyze/analyze.h"

/* Something is missing of what is judged. A call whose place is not known, because a table of call sites was full, is
 * judged as any other: it is counted, and that is all. */
static bool is_any_unjudged(const struct roll_analysis_summary *s)
{
    bool any = false;
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        any = any || (roll_loss_is_unrecorded(k) && k != ROLL_LOSS_CALLSITE && s->losses[k] > 0);
    }
    return any;
}

int roll_analysis_exit(const struct roll_analysis_summary *s, uint64_t lost)
{
    if (s->engine.findings > 0) {
        return ROLL_EXIT_FINDING;
    }
    if (s->unreadable > 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    /* A trace without a rank ends before anything was recorded. */
    return s->cut || s->unjudged > 0 || s->unreached > 0 || s->missing > 0 || lost > 0 || s->engine.lost > 0 ||
                   s->older > 0 || is_any_unjudged(s) || s->engine.sources == 0
               ? ROLL_EXIT_INCOMPLETE
               : ROLL_EXIT_CLEAN;
}
