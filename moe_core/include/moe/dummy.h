/*
 * dummy.h: dummy rows: a zero row with probability 0 for experts without rows, put in before the experts and taken out
 * after them (Megatron-LM #4851; remedy R2).
 *
 * HOST    the behaviour of #4851: when the host's counts sum to zero, each local expert gets one zero row, so that
 * every m is 1; otherwise nothing is added. DEVICE  m_i' = max(m_i, 1), decided by the counts on the device, with L
 * spare rows. This form can be captured, and works where only some experts have rows.
 *
 * The experts then run on the rows, counts and probabilities of `struct moe_dummy_view`. The upstream gradient of a
 * dummy row is zero. So every gradient of an expert that has no other row exists and is exactly zero, and real rows are
 * equal in every bit to a run without dummy rows.
 */
#ifndef MOE_DUMMY_H
#define MOE_DUMMY_H

#include "device.h"
#include "dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_dummy moe_dummy_t;

enum moe_dummy_form { MOE_DUMMY_HOST = 0, MOE_DUMMY_DEVICE = 1 };

struct moe_dummy_config {
    int64_t max_rows, hidden, experts; /* experts: the local ones, L */
    enum moe_dtype type;               /* of rows: float32, bfloat16, float16 */
    enum moe_dummy_form form;
    bool pooled; /* row buffers are taken from the device's pool by each forward, for its rows, and go back with
                    moe_dummy_release; otherwise they are made once for max_rows */
};

/* What the experts are to run on. Borrowed, valid until the next moe_dummy_forward. */
struct moe_dummy_view {
    const void *x;          /* [rows,H] */
    const float *row_probs; /* [rows], NULL when none were given */
    const int64_t *m;       /* [L] rows per expert, on the device */
    int64_t rows;           /* known on the host; with DEVICE always the given rows + experts */
    void *y;                /* [rows,H]: room for the experts' output */
    void *dy, *dx;          /* [rows,H]: upstream gradient and gradient of x */
    float *d_row_probs;     /* [rows]: gradient of row_probs */
};

/*
 * Makes the buffers of dummy rows. *out is owned by the caller; borrows device. The experts that run on the view need
 * max_rows + experts rows. All functions of this file: one thread at a time. Errors: NOMEM, SHAPE, ARG.
 */
int moe_dummy_new(moe_device_t *device, const struct moe_dummy_config *config, moe_dummy_t **out);
/* Frees the buffers and clears the pointer. NULL is allowed. */
void moe_dummy_destroy(moe_dummy_t **dummy);
/* Gives the row buffers of a pooled object back to the pool: forward and backward are over. NULL is allowed. */
void moe_dummy_release(moe_dummy_t *dummy);

/*
 * Makes *out from x [rows,H], row_probs [rows] (or NULL) and m [L] on the device, all borrowed until
 * moe_dummy_backward. host_m [L] holds the counts on the host: the HOST form reads it before the call returns, the
 * DEVICE form takes NULL. Errors: CAPACITY (rows > max_rows), ARG.
 */
int moe_dummy_forward(moe_dummy_t *dummy, const void *x, const float *row_probs, const int64_t *m,
                      const int64_t *host_m, int64_t rows, struct moe_dummy_view *out);

/* Copies the real rows of view.y into y [rows,H]. */
int moe_dummy_strip(moe_dummy_t *dummy, void *y);

/* Fills view.dy from dy [rows,H], with zeros for the dummy rows. */
int moe_dummy_strip_backward(moe_dummy_t *dummy, const void *dy);

/*
 * Copies the real rows of view.dx into dx [rows,H], and those of view.d_row_probs into d_row_probs [rows] (NULL: not
 * wanted).
 */
int moe_dummy_backward(moe_dummy_t *dummy, void *dx, float *d_row_probs);

/* How many dummy rows the last forward added: L or 0 with HOST; -1 with DEVICE, because only the device knows. */
int64_t moe_dummy_count(const moe_dummy_t *dummy);

#ifdef __cplusplus
}
#endif
#endif
