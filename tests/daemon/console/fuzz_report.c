/*
 * fuzz_report.c: arbitrary bytes as reports of NCCL's own tools: the text and the JSON of ncclras, the lines of NCCL
 * Inspector. What a first byte between '0' and '9' tells is where the input is cut into two reports, which are judged
 * together, as two of one job are.
 */
#include "daemon/console/analyze/analyze_report.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void add(roll_reports_t *reports, const uint8_t *data, size_t size)
{
    char why[256];
    (void)roll_report_is_likely((const char *)data, size < 4096 ? size : 4096);
    (void)roll_reports_parse(reports, (const char *)data, size, why, sizeof(why));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roll_reports_summary summary;
    struct roll_verdict_copy *v;
    roll_reports_t *reports = roll_reports_new();
    if (reports == NULL) {
        return 0;
    }
    if (size > 0 && data[0] >= '0' && data[0] <= '9') {
        size_t cut = (size - 1) * (size_t)(data[0] - '0') / 9;
        add(reports, data + 1, cut);
        add(reports, data + 1 + cut, size - 1 - cut);
    } else {
        add(reports, data, size);
        add(reports, data, size);
    }
    (void)roll_reports_judge(reports);
    roll_reports_summary(reports, &summary);
    while ((v = roll_reports_next(reports)) != NULL) {
        roll_verdict_copy_destroy(&v);
    }
    roll_reports_destroy(&reports);
    return 0;
}
