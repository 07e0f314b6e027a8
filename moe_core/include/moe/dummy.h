/*
 * dummy.h: dummy rows: a zero row with probability 0 for experts without rows, put in before the experts and taken out
 * after (Megatron-LM #4851; R2).
 *
 * HOST    what #4851 did: when the host's counts sum to zero, one zero row for each local expert, all m one; else
 * nothing. DEVICE  m_i' = max(m_i, 1), decided on the device by the counts, with L spare rows: capturable, and beside
 * experts that have rows.
 *
 * The experts then run on rows, m and probabilities of `struct moe_dummy_view`. The upstream gradient of a dummy row is
 * zero, so every gradient of an expert that has no other row is exactly zero, and present; real rows are equal in every
 * bit to a run without.
 */
#ifndef MOE_DUMMY_H
#define MOE_DUMMY_H

#include "device.h"
#include "dtype.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_dummy moe_dummy_t;

enum moe_dummy_form { MOE_DUMMY_HOST = 0, MOE_DUMMY_DEVICE = 1 };

struct moe_dummy_config {
    int64_t max_rows, hidden, experts; /* experts: local ones */
    enum moe_dtype type;               /* of rows */
    enum moe_dummy_form form;
};

/* What the experts are given: borrowed, valid until the next moe_dummy_forward. rows is known on the host: with DEVICE
 * it is always rows + experts. */
struct moe_dummy_view {
    const void *x;          /* [rows,H] */
    const float *row_probs; /* [rows], NULL when none were given */
    const int64_t *m;       /* [L], device */
    int64_t rows;
    void *y;            /* [rows,H]: where the experts may put their output */
    void *dy, *dx;      /* [rows,H]: where backward's rows go */
    float *d_row_probs; /* [rows] */
};

/* *out is owned; borrows device. The experts that run on its rows need max_rows + experts rows. Errors: NOMEM, SHAPE,
 * ARG. One thread at a time. */
int moe_dummy_new(moe_device_t *device, const struct moe_dummy_config *config, moe_dummy_t **out);
void moe_dummy_destroy(moe_dummy_t **dummy);

/*
 * x [rows,H], row_probs [rows] or NULL, m [L] on the device; host_m [L] for the HOST form (read before the call
 * returns), NULL for DEVICE. Borrowed until moe_dummy_backward. Errors: CAPACITY, ARG.
 */
int moe_dummy_forward(moe_dummy_t *dummy, const void *x, const float *row_probs, const int64_t *m,
                      const int64_t *host_m, int64_t rows, struct moe_dummy_view *out);

/* y [rows,H] of the real rows, from view.y. */
int moe_dummy_strip(moe_dummy_t *dummy, void *y);

/* view.dy from dy [rows,H]: zeros for dummy rows. */
int moe_dummy_strip_backward(moe_dummy_t *dummy, const void *dy);

/* dx [rows,H] and d_row_probs [rows] (NULL: not wanted) of the real rows, from view.dx and view.d_row_probs. */
int moe_dummy_backward(moe_dummy_t *dummy, void *dx, float *d_row_probs);

/* Dummy rows of the last forward: HOST's number, L or 0; DEVICE: -1, only the device knows. */
int64_t moe_dummy_count(const moe_dummy_t *dummy);

#ifdef __cplusplus
}
#endif
#endif
