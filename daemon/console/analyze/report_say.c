/*
 * report_say.c: how a verdict about a report of NCCL's own tools is begun and said. Such a verdict has no ring and no
 * call site: what it names stands in its words.
 */
#include "daemon/console/analyze/report_state.h"

#include "trace/err.h"
#include "trace/ident.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct roll_verdict roll_report_begin(enum roll_verdict_code code, enum roll_certainty certainty)
{
    return (struct roll_verdict){.code = code,
                                 .certainty = certainty,
                                 .field = "",
                                 .seq = ROLL_SEQ_NONE,
                                 .step = ROLL_STEP_NONE,
                                 .layer = ROLL_LAYER_NONE};
}

int roll_report_say(roll_reports_t *r, struct roll_verdict *v, const char *job, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    struct roll_verdict_copy *copy = NULL;
    if (n >= 0) {
        v->number = r->verdicts.used + 1;
        v->text = text;
        copy = roll_verdict_copy_new(v, NULL, NULL, job, 0);
        free(text);
    }
    roll_rankset_fini(&v->culprits);
    roll_rankset_fini(&v->waiting);
    if (copy == NULL || roll_verdict_list_add(&r->verdicts, copy) != 0) {
        return ROLL_E_NOMEM;
    }
    r->findings += v->certainty != ROLL_NOTE;
    return 0;
}

void roll_report_name_comm(struct roll_verdict *v, const char *id, uint32_t size)
{
    snprintf(v->comm_label, sizeof(v->comm_label), "%.40s", id);
    if (size > 0) {
        snprintf(v->comm_name, sizeof(v->comm_name), "communicator %.40s (%u ranks)", id, size);
    } else {
        snprintf(v->comm_name, sizeof(v->comm_name), "communicator %.40s", id);
    }
    v->comm_size = size;
    v->comm_key = roll_hash64(1, id, strlen(id)) | 1;
}

static int by_value(const void *a, const void *b)
{
    const struct roll_report_value *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

uint64_t roll_report_most_common(struct roll_report_value *value, size_t n, uint32_t *of)
{
    uint64_t common = 0;
    *of = 0;
    qsort(value, n, sizeof(*value), by_value);
    for (size_t at = 0, next; at < n; at = next) {
        uint32_t same = 0;
        for (next = at; next < n && value[next].value == value[at].value; next++) {
            same += value[next].weight;
        }
        if (same > *of) {
            *of = same;
            common = value[at].value;
        }
    }
    return common;
}
