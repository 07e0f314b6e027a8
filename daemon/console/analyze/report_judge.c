/*
 * report_judge.c: the reports of NCCL's own tools, judged: those of RAS (report_ras.c), and the calls of Inspector
 * (report_inspector.c), communicator by communicator.
 */
#include "daemon/console/analyze/report_state.h"

#include <stdlib.h>
#include <string.h>

static int by_call(const void *a, const void *b)
{
    const struct roll_report_call *x = a, *y = b;
    int order = (x->comm > y->comm) - (x->comm < y->comm);
    order = order != 0 ? order : (x->sn > y->sn) - (x->sn < y->sn);
    order = order != 0 ? order : (x->function > y->function) - (x->function < y->function);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

int roll_reports_judge(roll_reports_t *r)
{
    int err = roll_reports_judge_ras(r);
    if (r->calls > 1) {
        qsort(r->call, r->calls, sizeof(*r->call), by_call);
    }
    for (size_t at = 0, next; at < r->calls && err == 0; at = next) {
        for (next = at; next < r->calls && r->call[next].comm == r->call[at].comm; next++) {
        }
        err = roll_reports_judge_inspected(r, r->call + at, next - at);
    }
    return err;
}

void roll_reports_summary(const roll_reports_t *r, struct roll_reports_summary *out)
{
    *out = (struct roll_reports_summary){.calls = r->calls, .findings = r->findings, .comms = r->inspected.used};
    out->ranks = r->told_ranks;
    uint64_t named = 0;
    for (size_t i = 0; i < r->comms; i++) {
        bool is_newest = i + 1 == r->comms || strcmp(r->comm[i].id, r->comm[i + 1].id) != 0;
        named += is_newest && r->comm[i].is_partial;
        out->comms += is_newest && !r->comm[i].is_partial;
        out->ranks = is_newest && r->comm[i].size > out->ranks ? r->comm[i].size : out->ranks;
    }
    out->comms += r->told_comms > named ? r->told_comms : named; /* the table counts those that are named as well */
    for (size_t i = 0; i < r->inspected.used; i++) {
        out->ranks = r->inspected.at[i].size > out->ranks ? r->inspected.at[i].size : out->ranks;
    }
}
