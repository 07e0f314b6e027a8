/*
 * check.c: optional checks of what a mistake did to the data: a mismatch that does not hang corrupts data in silence.
 *
 * Off by default, because a check waits for the stream and the programs' timing is part of what they provoke. Checked
 * elements are overwritten with NaN, so that a call which writes nothing is seen as well.
 */
#include "tests/catalogue/check.h"

#include <stdio.h>
#include <stdlib.h>

static bool checking, wrong;
static float *host; /* host copy of the received elements */
static size_t buffer_bytes;

void cat_check_begin(struct cat *c, size_t bytes)
{
    checking = getenv("ROLL_CATALOGUE_CHECK") != NULL;
    buffer_bytes = bytes;
    if (!checking) {
        CUDA(cudaMemset(c->send, 0, bytes));
        return;
    }
    host = malloc(bytes);
    if (!host) {
        perror("catalogue");
        exit(9);
    }
    for (size_t i = 0; i < bytes / sizeof(*host); i++) {
        host[i] = (float)(c->rank + 1);
    }
    CUDA(cudaMemcpy(c->send, host, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemset(c->recv, 0xff, bytes));
    CUDA(cudaDeviceSynchronize());
}

static void compare(struct cat *c, size_t from, size_t count, float value)
{
    for (size_t i = from; i < from + count && !wrong; i++) {
        if (!(host[i] == value)) {
            fprintf(stderr, "catalogue: rank %d: wrong data: element %zu is %g, not %g\n", c->rank, i, (double)host[i],
                    (double)value);
            wrong = true;
        }
    }
}

static bool fetch(struct cat *c)
{
    if (!checking) {
        return false;
    }
    CUDA(cudaStreamSynchronize(c->stream));
    CUDA(cudaMemcpy(host, c->recv, buffer_bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(c->recv, 0xff, buffer_bytes));
    CUDA(cudaDeviceSynchronize());
    return true;
}

void cat_check(struct cat *c, size_t count, float value)
{
    if (fetch(c)) {
        compare(c, 0, count, value);
    }
}

void cat_check_sum(struct cat *c, size_t count)
{
    cat_check(c, count, (float)(c->size * (c->size + 1) / 2));
}

void cat_check_gathered(struct cat *c, size_t count)
{
    if (!fetch(c)) {
        return;
    }
    for (int r = 0; r < c->size; r++) {
        compare(c, (size_t)r * count, count, (float)(r + 1));
    }
}

int cat_check_end(const struct cat *c)
{
    if (checking) {
        fprintf(stderr, "catalogue: rank %d: done\n", c->rank);
    }
    free(host);
    return wrong ? CAT_WRONG_DATA : 0;
}
