/*
 * report_inspector.c: what the lines of NCCL Inspector mean.
 *
 * Inspector writes completed collectives: what hangs is not in it. Two things can be told: ranks whose sizes differ in
 * one collective, and a rank that is in the collectives for a shorter time than all others, time and again. Who comes
 * last does not wait, so it is the late one. The measure and its limits are those of the engine's straggler.
 */
#include "daemon/console/analyze/report_state.h"

#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTE_LOOKS    32
#define NOTE_LATE     30
#define SUSPECT_LOOKS 64
#define SUSPECT_LATE  60
#define LATE_US       1000u
#define SUSPECT_US    5000u

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How a rank has come to the collectives of one communicator. */
struct come {
    uint64_t looks, late_us; /* a bit for each look, as in the engine's straggler; sum over those that were late */
    uint32_t late;
    bool is_seen;
};

/* There is one communicator of this size, and no larger one: it seems to be that of the whole job. */
static bool is_world(const roll_reports_t *r, uint32_t size)
{
    size_t others = 0;
    for (size_t i = 0; i < r->inspected.used; i++) {
        others += r->inspected.at[i].size >= size;
    }
    return others == 1;
}

/* One rank in words, and as a culprit where the communicator is that of the whole job. */
static void name_one(const roll_reports_t *r, struct roll_verdict *v, uint32_t rank, char *out, size_t size)
{
    bool is_known = is_world(r, v->comm_size);
    if (is_known) {
        (void)roll_rankset_add(&v->culprits, rank);
    }
    snprintf(out, size, "Rank %u%s%s", rank, is_known ? "" : " of ", is_known ? "" : v->comm_name);
}

/* The sizes of one collective, of all its ranks, differ. */
static int judge_sizes(roll_reports_t *r, const struct roll_report_call *call, uint32_t ranks)
{
    struct roll_report_value *value = malloc(ranks * sizeof(*value));
    uint32_t with = 0, odd = 0;
    if (value == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        value[i] = (struct roll_report_value){call[i].bytes, 1};
    }
    uint64_t common = roll_report_most_common(value, ranks, &with);
    free(value);
    struct roll_verdict v = roll_report_begin(ROLL_VERDICT_COUNT_MISMATCH, ROLL_SUSPECTED);
    roll_report_name_comm(&v, r->inspected.at[call->comm].text, ranks);
    v.seq = call->sn;
    v.field = "count";
    while (call[odd].bytes == common) {
        odd++;
    }
    bool is_tie = with * 2 <= ranks;
    char who[256];
    if (is_tie) {
        snprintf(who, sizeof(who), "One half of %s", v.comm_name);
    } else {
        for (uint32_t i = is_world(r, ranks) ? odd + 1 : ranks; i < ranks; i++) {
            if (call[i].bytes != common) {
                (void)roll_rankset_add(&v.culprits, call[i].rank);
            }
        }
        name_one(r, &v, call[odd].rank, who, sizeof(who));
    }
    return roll_report_say(
        r, &v, "Inspector",
        "%s made %s #%" PRIu64 " with %" PRIu64 " bytes, where %s made it with %" PRIu64 ". NCCL does not compare "
        "sizes. Suspected: the number is Inspector's own, and a record that is missing would shift it.",
        who, r->functions.at[call->function].text, call->sn, call[odd].bytes, is_tie ? "the others" : "most ranks",
        common);
}

/* One collective of which there is a record of each rank. */
static void look(const struct roll_report_call *call, uint32_t ranks, uint64_t *scratch, struct come *come)
{
    for (uint32_t i = 0; i < ranks; i++) {
        scratch[i] = call[i].took_us;
    }
    qsort(scratch, ranks, sizeof(*scratch), by_number);
    uint64_t usual = scratch[ranks / 2];
    for (uint32_t i = 0; i < ranks; i++) {
        struct come *c = &come[call[i].rank];
        bool late = usual > call[i].took_us && usual - call[i].took_us >= LATE_US && call[i].took_us < usual / 2;
        c->looks = c->looks << 1 | late;
        c->late += late;
        c->late_us += late ? usual - call[i].took_us : 0;
    }
}

static int judge_come(roll_reports_t *r, uint32_t comm, const struct come *come, uint32_t ranks, uint64_t looks)
{
    char missing[128] = "";
    struct roll_rankset unseen = {0};
    int err = 0;
    for (uint32_t i = 0; i < ranks && err == 0; i++) {
        bool is_suspected = looks >= SUSPECT_LOOKS && __builtin_popcountll(come[i].looks) >= SUSPECT_LATE &&
                            come[i].late_us / come[i].late >= SUSPECT_US;
        bool is_noted =
            looks >= NOTE_LOOKS && __builtin_popcountll(come[i].looks & ((UINT64_C(1) << NOTE_LOOKS) - 1)) >= NOTE_LATE;
        if (is_suspected || is_noted) {
            struct roll_verdict v =
                roll_report_begin(ROLL_VERDICT_STRAGGLER, is_suspected ? ROLL_SUSPECTED : ROLL_NOTE);
            char who[256];
            roll_report_name_comm(&v, r->inspected.at[comm].text, ranks);
            name_one(r, &v, i, who, sizeof(who));
            err = roll_report_say(
                r, &v, "Inspector",
                "%s is in the collectives of %s for a shorter time than the median rank, by %.1f ms, in %u of %" PRIu64
                " that all ranks have completed: it comes last, and the others wait for it in them. Slow, not stuck. "
                "By the times of Inspector, which tells when kernels run and not why they begin late.",
                who, v.comm_name, (double)(come[i].late_us / come[i].late) / 1e3, come[i].late, looks);
        }
        err = err == 0 && !come[i].is_seen ? roll_rankset_add(&unseen, i) : err;
    }
    size_t n = roll_rankset_count(&unseen);
    if (err == 0 && n > 0) {
        struct roll_verdict v = roll_report_begin(ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
        roll_report_name_comm(&v, r->inspected.at[comm].text, ranks);
        (void)roll_rankset_format(&unseen, missing, sizeof(missing));
        err = roll_report_say(
            r, &v, "Inspector",
            "Of rank%s %s of %s there is no record: no file was given, or nothing was completed that Inspector "
            "keeps (it leaves out small collectives).",
            n == 1 ? "" : "s", missing, v.comm_name);
    }
    roll_rankset_fini(&unseen);
    return err;
}

int roll_reports_judge_inspected(roll_reports_t *r, const struct roll_report_call *call, size_t n)
{
    uint32_t ranks = r->inspected.at[call->comm].size;
    struct come *come = calloc(ranks, sizeof(*come));
    uint64_t *scratch = calloc(ranks, sizeof(*scratch)), looks = 0;
    bool is_told = false;
    int err = come == NULL || scratch == NULL ? ROLL_E_NOMEM : 0;
    for (size_t at = 0, next; at < n && err == 0; at = next) {
        bool same = true, each = true;
        for (next = at; next < n && call[next].sn == call[at].sn && call[next].function == call[at].function; next++) {
            same = same && call[next].bytes == call[at].bytes;
            each = each && call[next].rank == next - at; /* each rank once */
            if (call[next].rank < ranks) {
                come[call[next].rank].is_seen = true;
            }
        }
        if (!each || next - at != ranks || ranks < 2) {
            continue;
        }
        if (same) {
            look(call + at, ranks, scratch, come);
            looks++;
        } else if (!is_told) {
            is_told = true;
            err = judge_sizes(r, call + at, ranks);
        }
    }
    err = err == 0 ? judge_come(r, call->comm, come, ranks, looks) : err;
    free(come);
    free(scratch);
    return err;
}
