/*
 * check_compare.c: the comparison of whole gradients with those of the reference.
 */
#include "moe_core/train/check_compare.h"

#include <math.h>

static const double *part(const struct ref_params *params, const struct tensor *t)
{
    const double *buffer = t->buffer == TENSOR_EXPERTS  ? params->experts
                           : t->buffer == TENSOR_SHARED ? params->shared
                                                        : params->dense;
    return buffer + t->whole_at;
}

static void compare(const struct tensor *t, const double *got, const double *want, double tolerance,
                    struct difference *out)
{
    double most = 0, size = 1e-12;
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double d = fabs(got[i] - want[i]);
        d = isnan(d) ? INFINITY : d;
        at = d > most ? i : at;
        most = fmax(most, d);
        size = fmax(size, fabs(want[i]));
    }
    double relative = most / size;
    out->worst = fmax(out->worst, isnan(relative) ? INFINITY : relative);
    if (relative <= tolerance) {
        return;
    }
    if (out->tensors++ == 0) {
        out->first = *t;
        out->element = at;
        out->got = got[at];
        out->want = want[at];
        out->first_relative = relative;
    }
}

void compare_gradients(const struct tensor *tensors, int32_t count, const struct ref_params *got,
                       const struct ref_params *want, double tolerance, struct difference *out)
{
    for (int32_t i = count; i-- > 0;) {
        compare(&tensors[i], part(got, &tensors[i]), part(want, &tensors[i]), tolerance, out);
    }
}
