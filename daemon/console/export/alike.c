/*
 * alike.c: see alike.h.
 *
 * Findings are the same when code, certainty and ranks are: a verdict's number, time and words depend on how fast a
 * machine is. Comparing exit codes was rejected: a replay that hangs in another place has the same one.
 */
#include "daemon/console/export/alike.h"

#include "daemon/base/array.h"
#include "trace/err.h"
#include "trace/verdict.h"

#include <stdlib.h>
#include <string.h>

int roll_standing_take(struct roll_standing *out, const struct roll_job *job)
{
    for (size_t i = 0; i < job->verdicts.used; i++) {
        const struct roll_verdict_copy *copy = job->verdicts.at[i];
        if (!roll_verdict_stands(copy)) {
            continue;
        }
        if (ROLL_GROW(out->at, out->room, out->used + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        struct roll_stands *s = &out->at[out->used++];
        *s = (struct roll_stands){.code = copy->said.code, .certainty = copy->said.certainty};
        (void)roll_rankset_format(&copy->said.culprits, s->ranks, sizeof(s->ranks));
    }
    return 0;
}

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    (void)ctx, (void)job, (void)call;
    return 0;
}

static int take_end(void *ctx, struct roll_job *job)
{
    return roll_standing_take(ctx, job);
}

int roll_standing_read(char *path, unsigned threads, struct roll_standing *out)
{
    struct roll_analysis_summary summary;
    const struct roll_job_writer writer = {.ctx = out, .call = take_call, .end = take_end};
    return roll_job_read(&path, 1, threads, NULL, &writer, &summary);
}

void roll_standing_fini(struct roll_standing *standing)
{
    free(standing->at);
    *standing = (struct roll_standing){.at = NULL};
}

/* why they differ */

/* How long nothing must have moved before a finding of this kind is said (docs/VERDICTS.md); seconds, with room. */
static double patience_s(const struct roll_stands *s)
{
    switch (s->code) {
    case ROLL_VERDICT_COLLECTIVE_STUCK:
    case ROLL_VERDICT_RANK_STUCK:
        return 70;
    case ROLL_VERDICT_INIT_MISSING:
        return 130;
    default:
        return s->certainty == ROLL_SUSPECTED ? 10 : 2;
    }
}

/* Why a replay may lack it, or have it where the trace does not: the first row that fits. */
static const char *why_of(const struct roll_stands *s, bool lacks)
{
    static const struct {
        unsigned code, family; /* 0 = any */
        int lacks;             /* 1: the replay lacks it; 0: only the replay has it; -1: both */
        const char *text;
    } rows[] = {
        {0, ROLL_FAMILY_MOE, -1, "it rests on what MoE layers report, and a replay has no layers: not repeatable"},
        {0, ROLL_FAMILY_NUMBERS, -1, "it rests on numbers, and a replay's buffers hold none: not repeatable"},
        {0, ROLL_FAMILY_TOOL, -1, "it is about how the job was recorded, not about its calls: not repeatable"},
        {ROLL_VERDICT_RANK_STOPPED, 0, 1, "a replay stops no process; a rank that was stopped stays without a call"},
        {ROLL_VERDICT_RANK_FINISHED, 0, 1,
         "why a rank ended may not be in its calls: what was wrong with a call's buffers, for one, is not recorded"},
        {ROLL_VERDICT_STRAGGLER, 0, -1, "it rests on times between calls, which a replay shortens: --paced keeps them"},
        {ROLL_VERDICT_RANK_BUSY, 0, -1, "it rests on what the host did between calls, which a replay does not do"},
        {ROLL_VERDICT_RANK_BLOCKED, 0, -1, "it rests on where the host stood outside NCCL, which a replay does not do"},
        {ROLL_VERDICT_CALL_ADDED, 0, -1, "it may rest on call sites, and all calls of a replay come from one place"},
        {ROLL_VERDICT_CALL_SKIPPED, 0, -1, "it may rest on call sites, and all calls of a replay come from one place"},
        {ROLL_VERDICT_CALLS_REORDERED, 0, -1, "it may rest on call sites, of which a replay has one"},
        {ROLL_VERDICT_SEQUENCE_TIE, 0, -1, "it may rest on call sites, of which a replay has one"},
        {ROLL_VERDICT_P2P_DEADLOCK, 0, 0,
         "messages that went through in NCCL's buffers wait here: HOSTNCCL_EAGER=65536 gives such buffers"},
        {ROLL_VERDICT_CALL_REFUSED, 0, -1, "NCCL may refuse a call for its buffers, which are not recorded"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool fits = rows[i].code != 0 ? rows[i].code == s->code : rows[i].family == roll_verdict_family(s->code);
        if (fits && (rows[i].lacks < 0 || rows[i].lacks == lacks)) {
            return rows[i].text;
        }
    }
    return NULL;
}

static bool is_same(const struct roll_stands *a, const struct roll_stands *b)
{
    return a->code == b->code && a->certainty == b->certainty && strcmp(a->ranks, b->ranks) == 0;
}

/* Whether `list` names the same ranks for a call that does not fit, which call sites may have told apart otherwise. */
static bool has_twin(const struct roll_standing *list, const struct roll_stands *one)
{
    for (size_t i = 0; i < list->used; i++) {
        enum roll_family family = roll_verdict_family(list->at[i].code), own = roll_verdict_family(one->code);
        bool calls = (family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_ALIGNMENT) &&
                     (own == ROLL_FAMILY_SEQUENCE || own == ROLL_FAMILY_ALIGNMENT);
        if (calls && one->ranks[0] != '\0' && strcmp(one->ranks, list->at[i].ranks) == 0) {
            return true;
        }
    }
    return false;
}

/* How many of `list` are the same as this one. */
static size_t count_of(const struct roll_standing *list, const struct roll_stands *one)
{
    size_t n = 0;
    for (size_t i = 0; i < list->used; i++) {
        n += is_same(&list->at[i], one);
    }
    return n;
}

static bool is_first(const struct roll_standing *list, size_t at)
{
    size_t i = 0;
    while (!is_same(&list->at[i], &list->at[at])) {
        i++;
    }
    return i == at;
}

static void put_finding(FILE *out, const struct roll_stands *s)
{
    bool several = strpbrk(s->ranks, "-,") != NULL;
    fprintf(out, "%s (%s%s%s%s)", roll_verdict_name(s->code), roll_certainty_name(s->certainty),
            s->ranks[0] == '\0' ? "" : ", ",
            s->ranks[0] == '\0' ? ""
            : several           ? "ranks "
                                : "rank ",
            s->ranks);
}

/* What of the first list the second lacks, a line each. False: something. */
static bool put_lacks(FILE *out, const struct roll_standing *list, const struct roll_standing *other, bool lacks,
                      double ended_after_s)
{
    bool same = true;
    for (size_t i = 0; i < list->used; i++) {
        const struct roll_stands *s = &list->at[i];
        if (!is_first(list, i) || count_of(list, s) <= count_of(other, s)) {
            continue;
        }
        bool twin = has_twin(other, s), early = lacks && !twin && ended_after_s > 0 && ended_after_s < patience_s(s);
        const char *why = twin
                              ? "the other names the same ranks by another code, as it may without the job's call sites"
                              : why_of(s, lacks);
        fputs(lacks ? "rollcall: replay: different: the trace has "
                    : "rollcall: replay: different: only the replay has ",
              out);
        put_finding(out, s);
        fputs(lacks ? ", the replay has not" : "", out);
        if (early) {
            fprintf(out, ": %g s without a move (--timeout) are too short to judge it; --timeout %g is enough",
                    ended_after_s, patience_s(s));
        } else {
            fprintf(out, ": %s", why != NULL ? why : "why is not known; rollcall analyze says what each rests on");
        }
        fputc('\n', out);
        same = false;
    }
    return same;
}

bool roll_standing_compare(FILE *out, const struct roll_standing *was, const struct roll_standing *now,
                           double ended_after_s)
{
    bool same = put_lacks(out, was, now, true, ended_after_s);
    same = put_lacks(out, now, was, false, ended_after_s) && same;
    if (!same) {
        return false;
    }
    if (was->used == 0) {
        fprintf(out, "rollcall: replay: the same as in the trace: no finding\n");
        return true;
    }
    for (size_t i = 0; i < was->used; i++) {
        fputs(i > 0 ? ", " : "rollcall: replay: the same as in the trace: ", out);
        put_finding(out, &was->at[i]);
    }
    fputc('\n', out);
    return true;
}
