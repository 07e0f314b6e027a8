/*
 * dispatch_check.c: what is expected: results that equal the reference, and the calls that were recorded.
 */
#include "tests/moe_core/dispatch_inside.h"

static void close_to(const struct dr_case *c, int rank, const char *what, const double *got, const double *want,
                     int64_t count)
{
    double size = 1e-30, tolerance = c->type == MOE_F32 ? 1e-5 : c->type == MOE_F16 ? 4e-3 : 3e-2;
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - want[i]) <= tolerance * size)) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d: %s[%lld]: got %.9g, want %.9g", text, rank, what, (long long)i, got[i], want[i]);
        }
    }
}

/* One choice of one token: adds to the token's output, gradients and the expert's weight gradient. */
static void reference_choice(const struct dr_data *d, int64_t experts, int64_t t, int32_t e, double *y, double *dx,
                             double *d_probs, double *d_w)
{
    const double *w = d->w + e * DR_HIDDEN * DR_HIDDEN, *x = d->x + t * DR_HIDDEN, *dy = d->dy + t * DR_HIDDEN;
    double p = d->probs[t * experts + e];
    for (int64_t o = 0; o < DR_HIDDEN; o++) {
        for (int64_t h = 0; h < DR_HIDDEN; h++) {
            y[t * DR_HIDDEN + o] += p * w[o * DR_HIDDEN + h] * x[h];
            dx[t * DR_HIDDEN + h] += p * w[o * DR_HIDDEN + h] * dy[o];
            d_probs[t * experts + e] += dy[o] * w[o * DR_HIDDEN + h] * x[h];
            d_w[(e * DR_HIDDEN + o) * DR_HIDDEN + h] += p * dy[o] * x[h];
        }
    }
}

/* Where the host knows the rows: those that all sources have for this rank's experts, what the plan says was put
 * between and behind them, and how many of the experts have none. */
static void check_received(const struct dr_case *c, const struct dr_result *results, int r, struct dr_data *d)
{
    const struct moe_dispatch_plan *plan = &results[r].plan;
    int64_t rows = 0, of[DR_EXPERTS] = {0}, empty = 0;
    for (int source = 0; source < dr_ranks(c); source++) {
        dr_make_data(c, source, d);
        for (int64_t i = 0; i < d->tokens * DR_TOPK; i++) {
            int32_t e = d->index[i];
            bool here = e >= 0 && e / dr_local(c) == r / c->etp;
            rows += here;
            of[here ? e % dr_local(c) : DR_EXPERTS - 1] += here;
        }
    }
    for (int64_t e = 0; e < dr_local(c); e++) {
        empty += of[e] == 0;
    }
    bool said = plan->exact && c->capacity == 0 && !c->legacy.static_rows;
    if (said &&
        (plan->received - plan->filler - plan->padded != rows || plan->empty_experts != empty - (plan->padded > 0))) {
        char text[160];
        dr_describe(c, text, sizeof(text));
        fail_msg("%s: rank %d: %lld rows received, of which %lld filler and %lld padding, want %lld; %lld experts "
                 "without rows, want %lld",
                 text, r, (long long)plan->received, (long long)plan->filler, (long long)plan->padded, (long long)rows,
                 (long long)plan->empty_experts, (long long)empty);
    }
}

void dr_check_reference(const struct dr_case *c, const struct dr_result *results)
{
    enum { WEIGHT = DR_HIDDEN * DR_HIDDEN };
    int64_t experts = dr_experts(c);
    struct dr_data *d = malloc(sizeof(*d));
    double *d_w = support_doubles(DR_EXPERTS * WEIGHT);
    assert_non_null(d);
    for (int r = 0; r < dr_ranks(c); r++) {
        double y[DR_TOKENS * DR_HIDDEN] = {0}, dx[DR_TOKENS * DR_HIDDEN], d_probs[DR_TOKENS * DR_EXPERTS] = {0};
        if (results[r].rc != 0) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d: %s", text, r, results[r].message);
        }
        check_received(c, results, r, d);
        dr_make_data(c, r, d);
        for (int64_t i = 0; i < DR_TOKENS * DR_HIDDEN; i++) {
            dx[i] = 1;
        }
        for (int64_t i = 0; i < d->tokens * DR_TOPK; i++) {
            if (d->index[i] >= 0) {
                reference_choice(d, experts, i / DR_TOPK, d->index[i], y, dx, d_probs, d_w);
            }
        }
        close_to(c, r, "y", results[r].y, y, d->tokens * DR_HIDDEN);
        close_to(c, r, "dx", results[r].dx, dx, d->tokens * DR_HIDDEN);
        close_to(c, r, "d_probs", results[r].d_probs, d_probs, d->tokens * experts);
    }
    for (int p = 0; p < c->ep; p++) {
        int64_t local = dr_local(c);
        double got[DR_LOCAL * WEIGHT] = {0};
        for (int q = 0; q < c->etp; q++) {
            for (int64_t i = 0; i < local * WEIGHT; i++) {
                got[i] += results[p * c->etp + q].d_w[i];
            }
        }
        close_to(c, p * c->etp, "d_w", got, d_w + p * local * WEIGHT, local * WEIGHT);
    }
    free(d);
    free(d_w);
}

static const char *op_name(enum dr_op op)
{
    static const char *const names[] = {"nothing", "AllReduce", "AllGather", "ReduceScatter", "AlltoAll"};
    return names[op];
}

static const char *role_name(enum dr_role role)
{
    static const char *const names[] = {"?", "ep", "etp", "tp_ep", "tp"};
    return names[role];
}

/* Members of r's communicator of a role, in its order. */
static int member(const struct dr_case *c, int r, enum dr_role role, int i)
{
    return role == DR_EP ? i * c->etp + r % c->etp : role == DR_ETP ? r / c->etp * c->etp + i : i;
}

static int size_of(const struct dr_case *c, enum dr_role role)
{
    return role == DR_EP ? c->ep : role == DR_ETP ? c->etp : dr_ranks(c);
}

/* Unit i of rank r against the wanted one and against the same unit of its peers. */
static void check_unit(const struct dr_case *c, const struct dr_result *results, bool backward, int r, size_t i,
                       const struct dr_want *want)
{
    char text[160];
    const struct dr_record *mine = backward ? &results[r].backward : &results[r].forward;
    const struct dr_unit *unit = &mine->unit[i];
    dr_describe(c, text, sizeof(text));
    if (unit->op != DR_NOTHING && (unit->op != want->op || unit->role != want->role)) {
        fail_msg("%s: rank %d: %s %zu is %s on %s, want %s on %s", text, r, backward ? "backward" : "forward", i,
                 op_name(unit->op), role_name(unit->role), op_name(want->op), role_name(want->role));
    }
    uint64_t sent = 0, received = 0;
    for (int p = 0; p < DR_RANKS; p++) {
        sent += unit->sent[p];
        received += unit->received[p];
    }
    uint64_t rows = (uint64_t)(want->op == DR_ALLTOALL ? results[r].plan.sent : results[r].plan.received);
    uint64_t bytes = want->op != DR_ALLTOALL ? unit->bytes : want->back ? received : sent;
    if ((want->bytes > 0 && unit->bytes != want->bytes) || (want->row_bytes > 0 && bytes != rows * want->row_bytes)) {
        fail_msg("%s: rank %d: %s %zu (%s on %s) has %llu bytes, want %llu, or %llu for each of %llu rows", text, r,
                 backward ? "backward" : "forward", i, op_name(want->op), role_name(want->role),
                 (unsigned long long)bytes, (unsigned long long)want->bytes, (unsigned long long)want->row_bytes,
                 (unsigned long long)rows);
    }
    for (int p = 0; p < size_of(c, want->role); p++) {
        int peer = member(c, r, want->role, p), me = want->role == DR_EP    ? r / c->etp
                                                     : want->role == DR_ETP ? r % c->etp
                                                                            : r;
        const struct dr_unit *other = backward ? &results[peer].backward.unit[i] : &results[peer].forward.unit[i];
        if (unit->bytes != other->bytes || unit->sent[p] != other->received[me]) {
            fail_msg("%s: %s %zu (%s on %s): rank %d has %llu bytes, sends %llu; rank %d has %llu, receives %llu", text,
                     backward ? "backward" : "forward", i, op_name(want->op), role_name(want->role), r,
                     (unsigned long long)unit->bytes, (unsigned long long)unit->sent[p], peer,
                     (unsigned long long)other->bytes, (unsigned long long)other->received[me]);
        }
    }
}

/* Each rank sends each other the rows that its own data has for it: what the plan says is not asked. */
static void check_each(const struct dr_case *c, const struct dr_result *results, bool backward, int r, size_t i,
                       const struct dr_want *want)
{
    const struct dr_unit *unit = backward ? &results[r].backward.unit[i] : &results[r].forward.unit[i];
    for (int p = 0; p < size_of(c, want->role); p++) {
        int peer = member(c, r, want->role, p), from = want->back ? peer : r, to = want->back ? r : peer;
        uint64_t bytes = (uint64_t)dr_rows_for(c, from, to / c->etp, want->each) * want->row_bytes;
        if (unit->sent[p] != bytes) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d: %s %zu sends rank %d %llu bytes, want %llu", text, r,
                     backward ? "backward" : "forward", i, peer, (unsigned long long)unit->sent[p],
                     (unsigned long long)bytes);
        }
    }
}

static void check_list(const struct dr_case *c, const struct dr_result *results, bool backward,
                       const struct dr_want *want, size_t count)
{
    char text[160];
    dr_describe(c, text, sizeof(text));
    for (int r = 0; r < dr_ranks(c); r++) {
        const struct dr_record *record = backward ? &results[r].backward : &results[r].forward;
        if (record->units != count) {
            fail_msg("%s: rank %d: %zu units %s, want %zu", text, r, record->units, backward ? "backward" : "forward",
                     count);
        }
    }
    for (int r = 0; r < dr_ranks(c); r++) {
        for (size_t i = 0; i < count; i++) {
            check_unit(c, results, backward, r, i, &want[i]);
            if (want[i].each != DR_PLAN) {
                check_each(c, results, backward, r, i, &want[i]);
            }
        }
    }
}

/* The number of elements that an obligation gives, where it gives one, is what was issued. */
static void check_count(const struct dr_case *c, const struct dr_unit *obligation, const struct dr_unit *issued)
{
    uint64_t bytes = obligation->bytes * sizeof(float);
    if (bytes > 0 && c->type == MOE_F32) {
        assert_int_equal(obligation->op == DR_ALLTOALL ? issued->sent[0]
                                                       : issued->bytes / (uint64_t)size_of(c, obligation->role),
                         bytes);
    }
}

void dr_check_sequence(const struct dr_case *c, const struct dr_result *results, const struct dr_want *forward,
                       size_t forwards, const struct dr_want *backward, size_t backwards)
{
    check_list(c, results, false, forward, forwards);
    check_list(c, results, true, backward, backwards);
    for (int r = 0; r < dr_ranks(c); r++) {
        assert_int_equal(results[r].obligations, backwards);
        for (size_t i = 0; i < backwards; i++) {
            assert_int_equal(results[r].obligation[i].op, backward[i].op);
            assert_int_equal(results[r].obligation[i].role, backward[i].role);
            check_count(c, &results[r].obligation[i], &results[r].backward.unit[i]);
        }
    }
}
