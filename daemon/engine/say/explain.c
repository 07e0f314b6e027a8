/*
 * explain.c: the words that verdicts are made of: calls, ranks, communicators, places, ends of processes.
 *
 * Sentences are composed in the detectors, because each detector knows its story. The parts are written here, so that
 * one thing has one name in all of them. Sentences in a table were rejected: nearly every one depends on what is known.
 */
#include "daemon/engine/say/say.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

void words_add(struct words *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof(w->text) - w->used;
    int n = vsnprintf(w->text + w->used, room, format, args);
    va_end(args);
    if (n > 0) {
        w->used += (size_t)n < room ? (size_t)n : room - 1;
    }
}

void words_call(struct words *w, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    if (class == ROLL_CLASS_POLL) {
        if (rec->peer > 1) {
            words_add(w, "a loop of polls of %d things by turns, among them ", rec->peer);
        } else {
            words_add(w, "a loop of ");
        }
        words_add(w, "%s (%u%s polls in %.1f s)",
                  rec->op == ROLL_OP_COMM_QUERY ? "CommGetAsyncError" : roll_op_name(rec->op), rec->aux,
                  rec->aux == UINT16_MAX ? " or more" : "", rec->seq / 1e3);
        return;
    }
    words_add(w, "%s", roll_op_name(rec->op));
    if (class != ROLL_CLASS_COLL && class != ROLL_CLASS_P2P) {
        return;
    }
    if (rec->op == ROLL_OP_GRAPH_LAUNCH) {
        words_add(w, " of graph %u", rec->aux);
        return;
    }
    if ((rec->flags & ROLL_FLAG_UNSIZED) != 0) {
        return;
    }
    words_add(w, " of %" PRIu64, rec->count);
    if (rec->dtype != ROLL_DTYPE_NONE) {
        words_add(w, " %s", roll_dtype_name(rec->dtype));
    }
    if (rec->redop != ROLL_RED_NONE && roll_op_has(rec->op, ROLL_TRAIT_REDOP)) {
        words_add(w, " (%s)", roll_redop_name(rec->redop));
    }
    if (rec->peer >= 0 && class == ROLL_CLASS_COLL) {
        words_add(w, " with root %d", rec->peer);
    } else if (class == ROLL_CLASS_P2P) {
        words_add(w, rec->op == ROLL_OP_SEND ? " to member %d" : " from member %d", rec->peer);
    }
    if ((rec->flags & ROLL_FLAG_REPLAYED) != 0) {
        words_add(w, " (in a launch of graph %u)", rec->aux);
    }
}

void words_ranks(struct words *w, const struct roll_rankset *set)
{
    char folded[256];
    size_t count = roll_rankset_count(set);
    if (count == 0) {
        words_add(w, "no rank");
        return;
    }
    (void)roll_rankset_format(set, folded, sizeof(folded));
    words_add(w, "%s %s", count == 1 ? "rank" : "ranks", folded);
}

void words_wait(struct words *w, const struct roll_rankset *set)
{
    words_ranks(w, set);
    words_add(w, roll_rankset_count(set) == 1 ? " waits" : " wait");
}

void words_place(struct words *w, uint32_t step, uint32_t microbatch, uint32_t layer)
{
    if (layer != ROLL_LAYER_NONE) {
        words_add(w, "MoE layer %u", layer);
    }
    if (step != ROLL_STEP_NONE) {
        words_add(w, "%sstep %u", layer != ROLL_LAYER_NONE ? ", " : "", step);
        if (microbatch > 0) {
            words_add(w, ", microbatch %u", microbatch);
        }
    }
}

void words_exit(struct words *w, int32_t status)
{
    if (status == ROLL_EXIT_UNKNOWN) {
        words_add(w, "its exit status is not known");
    } else if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        words_add(w, "killed by signal %d (SIG%s)", WTERMSIG(status), name ? name : "?");
    } else {
        words_add(w, "exit code %d", WEXITSTATUS(status));
    }
}

void words_remedy(struct words *w, const struct roll_engine *e, uint32_t remedy, uint32_t layer)
{
    if (e->config.policy == ROLL_POLICY_OBSERVE) {
        return; /* what it does stands in the verdict beside the text */
    }
    if (e->config.policy == ROLL_POLICY_AUTO) {
        words_add(w, " Policy auto lets ranks take it by themselves.");
    }
    words_add(w, " Switch remedy '%s' on for the steps to come with: rollcall remedy on %s", roll_remedy_name(remedy),
              roll_remedy_name(remedy));
    if (layer != ROLL_LAYER_NONE) {
        words_add(w, " --layer %u", layer);
    }
}

void words_may_be(struct words *w, const struct roll_verdict *v)
{
    for (uint32_t i = 0; i < v->may_bes; i++) {
        words_add(w, "%s%s",
                  i == 0                ? " The calls known so far fit "
                  : i + 1 == v->may_bes ? " and "
                                        : ", ",
                  roll_verdict_name(v->may_be[i]));
    }
    words_add(w, "%s", v->may_bes > 0 ? " as well." : "");
}
