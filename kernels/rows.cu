/*
 * rows.cu: pads, trims, picks and clears rows: everything that moves whole rows without a row map.
 *
 * Idea: a functor over starts that a plan has found on the device says where a row goes (plan.cuh, rows.cuh). The host
 * never sees a count. Architecture: any. Indices: 64 bit.
 */
#include "kernels/plan.cuh"
#include "kernels/rows.cuh"

enum { THREADS = 256, MOST_BLOCKS = 132 * 16 };

/* pad and trim */

struct PadSizes { /* side 0: the sizes as given; side 1: rounded up */
    const int64_t *m;
    int64_t align;
    __device__ Sizes operator()(int64_t i) const
    {
        int64_t rows = m[i];
        return {{rows, rows < 0 || rows > INT64_MAX - align ? rows : moe_round_up(rows, align)},
                rows < 0 ? MOE_E_COUNT : 0};
    }
};

struct PadRows {
    const int64_t *m, *start, *other; /* starts in the output, starts in the input */
    int64_t groups;
    const Plan *plan;
    int side; /* of the output */
    __device__ bool ready() const
    {
        return plan->error == 0;
    }
    __device__ Step operator()(int64_t r, int) const
    {
        if (r >= plan->total[side]) {
            return {-1, r};
        }
        int64_t group = moe_piece_of(start, groups, r), in_group = r - start[group];
        return {in_group < m[group] ? other[group] + in_group : -1, r};
    }
};

struct PadOne { /* one group, whose sizes the host knows */
    int64_t rows;
    __device__ bool ready() const
    {
        return true;
    }
    __device__ Step operator()(int64_t r, int) const
    {
        return {r < rows ? r : -1, r};
    }
};

static __global__ void __launch_bounds__(THREADS)
    pad_m(PadSizes sizes, int64_t groups, const Plan *__restrict__ plan, int64_t *padded_m)
{
    for (int64_t i = threadIdx.x; plan->error == 0 && i < groups; i += THREADS) {
        padded_m[i] = sizes(i).size[1];
    }
}

static __global__ void set_one(int64_t *to, int64_t value)
{
    *to = value;
}

extern "C" int moe_cuda_pad_rows(moe_device_t *device, const struct moe_pad_rows *a)
{
    int64_t bytes = a->width * (int64_t)moe_bytes_of(a->type), total = a->trim ? a->rows : a->padded;
    if (a->groups == 0) {
        if (a->padded_m != nullptr) {
            set_one<<<1, 1, 0, device->stream>>>(a->padded_m, a->padded);
        }
        int rc = moe_launch_result();
        return rc ? rc : launch_rows(device, PadOne{a->rows}, total, bytes, a->from, a->to);
    }
    Scratch<int64_t> starts(device, 2 * a->groups);
    Scratch<Plan> plan(device, 1);
    int rc = starts.rc ? starts.rc : plan.rc;
    if (rc != 0) {
        return rc;
    }
    PadSizes sizes = {a->m, a->align > 1 ? a->align : 1};
    int64_t *plain = starts.data, *padded = starts.data + a->groups;
    plan_starts<<<1, PLAN_THREADS, 0, device->stream>>>(sizes, a->groups, a->rows, a->padded, MOE_E_SPLIT,
                                                        MOE_E_CAPACITY, 0, plain, padded, plan.data,
                                                        moe_state(device)->error);
    if (a->padded_m != nullptr) {
        pad_m<<<1, THREADS, 0, device->stream>>>(sizes, a->groups, plan.data, a->padded_m);
    }
    PadRows move = {a->m, a->trim ? plain : padded, a->trim ? padded : plain, a->groups, plan.data, a->trim ? 0 : 1};
    return launch_rows(device, move, total, bytes, a->from, a->to);
}

/* slack */

struct Slack {
    const int64_t *m;
    int64_t groups, rows;
    const Plan *plan;
    __device__ bool ready() const
    {
        return plan->error == 0;
    }
    __device__ Step operator()(int64_t r, int) const
    {
        return {-1, r >= plan->total[0] ? r : -1};
    }
};

struct PlainSizes { /* both sides: the sizes as given */
    const int64_t *m;
    __device__ Sizes operator()(int64_t i) const
    {
        return {{m[i], m[i]}, m[i] < 0 ? MOE_E_COUNT : 0};
    }
};

extern "C" int moe_cuda_zero_slack(moe_device_t *device, const struct moe_zero_slack *a)
{
    Scratch<int64_t> starts(device, 2 * a->groups);
    Scratch<Plan> plan(device, 1);
    int rc = starts.rc ? starts.rc : plan.rc;
    if (rc != 0) {
        return rc;
    }
    if (a->m == nullptr) {
        return 0; /* no counts: no slack */
    }
    plan_starts<<<1, PLAN_THREADS, 0, device->stream>>>(PlainSizes{a->m}, a->groups, a->rows, a->rows, MOE_E_SPLIT,
                                                        MOE_E_SPLIT, 0, starts.data, starts.data + a->groups, plan.data,
                                                        moe_state(device)->error);
    return launch_rows(device, Slack{a->m, a->groups, a->rows, plan.data}, a->rows, a->row_bytes, nullptr, a->data);
}

/* dummy rows */

struct DummySizes { /* side 1: at least one row */
    const int64_t *m;
    __device__ Sizes operator()(int64_t i) const
    {
        return {{m[i], m[i] > 0 ? m[i] : 1}, m[i] < 0 ? MOE_E_COUNT : 0};
    }
};

static __global__ void __launch_bounds__(THREADS)
    dummy_rows(moe_dummy_rows a, const int64_t *__restrict__ start0, const int64_t *__restrict__ start1,
               const Plan *__restrict__ plan)
{
    if (plan->error != 0) {
        return;
    }
    int64_t stride = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t r = first; r < a.rows + a.groups; r += stride) {
        int64_t from = -2;
        if (r < plan->total[1]) {
            int64_t group = moe_piece_of(start1, a.groups, r);
            from = a.m[group] > 0 ? start0[group] + r - start1[group] : -1;
        }
        a.map[r] = from;
    }
    for (int64_t i = first; i < a.groups; i += stride) {
        a.padded[i] = a.m[i] > 0 ? a.m[i] : 1;
    }
}

extern "C" int moe_cuda_dummy_rows(moe_device_t *device, const struct moe_dummy_rows *a)
{
    Scratch<int64_t> starts(device, 2 * a->groups);
    Scratch<Plan> plan(device, 1);
    int rc = starts.rc ? starts.rc : plan.rc;
    if (rc != 0 || a->rows + a->groups == 0) {
        return rc;
    }
    plan_starts<<<1, PLAN_THREADS, 0, device->stream>>>(DummySizes{a->m}, a->groups, a->rows, a->rows + a->groups,
                                                        MOE_E_SPLIT, MOE_E_SPLIT, 0, starts.data,
                                                        starts.data + a->groups, plan.data, moe_state(device)->error);
    dummy_rows<<<moe_blocks(a->rows + a->groups, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
        *a, starts.data, starts.data + a->groups, plan.data);
    return moe_launch_result();
}

struct Pick {
    const int64_t *map;
    bool inverse;
    __device__ bool ready() const
    {
        return true;
    }
    __device__ Step operator()(int64_t r, int) const
    {
        int64_t other = map[r];
        if (other >= 0) {
            return inverse ? Step{r, other} : Step{other, r};
        }
        return {-1, other == -1 && !inverse ? r : -1};
    }
};

extern "C" int moe_cuda_pick_rows(moe_device_t *device, const struct moe_pick_rows *a)
{
    return launch_rows(device, Pick{a->map, a->inverse}, a->rows, a->row_bytes, a->from, a->to);
}

/* counts by value */

static __global__ void __launch_bounds__(THREADS) fill_counts(int64_t *to, int64_t count, int64_t value)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        to[i] = value;
    }
}

extern "C" int moe_cuda_fill_counts(moe_device_t *device, const struct moe_fill_counts *a)
{
    if (a->count == 0) {
        return 0;
    }
    fill_counts<<<moe_blocks(a->count, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(a->to, a->count, a->value);
    return moe_launch_result();
}
