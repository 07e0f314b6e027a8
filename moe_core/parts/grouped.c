/*
 * grouped.c: the grouped linear's public entry points: shapes checked here, rows checked in the stream.
 *
 * There is deliberately no early return for "no rows at all": the number of rows is known on the device only, and a
 * call that is left out leaves wgrad unwritten (TransformerEngine #3019, #2769).
 */
#include "moe_core/include/moe/grouped.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/ops.h"

static int check(const struct moe_grouped_shape *s)
{
    if (s->groups < 1 || s->out_features < 1 || s->in_features < 1 || s->rows < 0 || s->m == NULL) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "%lld groups of %lld x %lld, %lld rows",
                        (long long)s->groups, (long long)s->out_features, (long long)s->in_features,
                        (long long)s->rows);
    }
    return 0;
}

static struct moe_grouped base(const struct moe_grouped_shape *s, enum moe_grouped_kind kind)
{
    return (struct moe_grouped){
        .kind = kind, .groups = s->groups, .n = s->out_features, .k = s->in_features, .rows = s->rows, .m = s->m};
}

int moe_grouped_forward(moe_device_t *device, const struct moe_grouped_shape *shape, const float *x, const float *w,
                        float *y)
{
    struct moe_grouped args = base(shape, MOE_GROUPED_FORWARD);
    args.in = x;
    args.w = w;
    args.out = y;
    int rc = check(shape);
    return rc ? rc : moe_device_ops(device)->grouped(device, &args);
}

int moe_grouped_dgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *w,
                      float *dx)
{
    struct moe_grouped args = base(shape, MOE_GROUPED_DGRAD);
    args.in = dy;
    args.w = w;
    args.out = dx;
    int rc = check(shape);
    return rc ? rc : moe_device_ops(device)->grouped(device, &args);
}

int moe_grouped_wgrad(moe_device_t *device, const struct moe_grouped_shape *shape, const float *dy, const float *x,
                      bool accumulate, float *dw)
{
    struct moe_grouped args = base(shape, MOE_GROUPED_WGRAD);
    args.in = dy;
    args.x = x;
    args.out = dw;
    args.beta = accumulate ? 1.0f : 0.0f;
    int rc = check(shape);
    return rc ? rc : moe_device_ops(device)->grouped(device, &args);
}
