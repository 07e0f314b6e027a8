/*
 * facts.c: a list of facts per step: where the stream puts each fact, and what the fact is about.
 *
 * The stream writes two 64-bit words per fact into device memory and copies all of them to pinned memory with the last
 * one; the list says how to read them. Reporting from a host function of the stream was rejected: moe_observe must be
 * called by the job's own thread, with its call site.
 */
#include "moe_core/include/moe/facts.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 2 };

struct fact {
    struct moe_subject subject;
    enum moe_tensor_fact kind;
};

struct moe_facts {
    moe_device_t *device;
    struct moe_step step;
    uint32_t most, used;
    struct fact *fact;
    uint64_t *words;      /* device [most, WORDS] */
    uint64_t *host_words; /* pinned, the same */
};

int moe_facts_new(moe_device_t *device, uint32_t most, moe_facts_t **out)
{
    *out = NULL;
    moe_facts_t *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "facts");
    }
    size_t bytes = (size_t)most * WORDS * sizeof(uint64_t);
    f->device = device;
    f->most = most;
    f->fact = calloc(most > 0 ? most : 1, sizeof(*f->fact));
    int rc = f->fact == NULL ? moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "%u facts", most) : 0;
    rc = rc ? rc : moe_device_alloc(device, bytes, (void **)&f->words);
    if (rc == 0 && cudaMallocHost((void **)&f->host_words, bytes > 0 ? bytes : 1) != cudaSuccess) {
        rc = moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "pinned memory of facts");
    }
    if (rc != 0) {
        moe_facts_destroy(&f);
        return rc;
    }
    *out = f;
    return 0;
}

void moe_facts_destroy(moe_facts_t **facts)
{
    moe_facts_t *f = *facts;
    if (f == NULL) {
        return;
    }
    moe_device_free(f->device, &f->words);
    cudaFreeHost(f->host_words);
    free(f->fact);
    free(f);
    *facts = NULL;
}

void moe_facts_begin(moe_facts_t *f, const struct moe_step *step)
{
    f->step = *step;
    f->used = 0;
}

/* The device words of the next fact; NULL when there is no room left. */
static uint64_t *words_of(moe_facts_t *f)
{
    if (f->used == f->most) {
        (void)moe_fail(MOE_E_CAPACITY, MOE_NO_RANK, MOE_NO_LAYER, "more than %u facts in step %u", f->most,
                       f->step.step);
        return NULL;
    }
    return f->words + (size_t)f->used * WORDS;
}

/* Copies the words of a fact, which the stream is going to write, to the host, and puts the fact on the list. */
static int keep(moe_facts_t *f, const struct moe_subject *subject, enum moe_tensor_fact kind)
{
    size_t at = (size_t)f->used * WORDS;
    int rc = moe_device_copy(f->device, f->host_words + at, f->words + at, WORDS * sizeof(uint64_t));
    if (rc == 0) {
        f->fact[f->used++] = (struct fact){.subject = *subject, .kind = kind};
    }
    return rc;
}

int moe_facts_replica(moe_facts_t *f, const struct moe_subject *subject, const void *data, size_t bytes)
{
    struct moe_checksum args = {.data = data, .bytes = bytes, .out = words_of(f)};
    int rc = args.out == NULL ? MOE_E_CAPACITY : moe_device_ops(f->device)->checksum(f->device, &args);
    return rc ? rc : keep(f, subject, MOE_TENSOR_REPLICA);
}

static int add_up(moe_facts_t *f, const struct moe_subject *subject, const float *grad, size_t count,
                  enum moe_tensor_fact kind)
{
    struct moe_sum_abs args = {.count = (int64_t)count, .in = grad, .out = (double *)words_of(f)};
    int rc = args.out == NULL ? MOE_E_CAPACITY : moe_device_ops(f->device)->sum_abs(f->device, &args);
    return rc ? rc : keep(f, subject, kind);
}

int moe_facts_share(moe_facts_t *f, const struct moe_subject *subject, const float *grad, size_t count)
{
    return add_up(f, subject, grad, count, MOE_TENSOR_PART);
}

int moe_facts_sum(moe_facts_t *f, const struct moe_subject *subject, const float *grad, size_t count)
{
    return add_up(f, subject, grad, count, MOE_TENSOR_SUM);
}

int moe_facts_finite(moe_facts_t *f, const struct moe_subject *subject, const float *grad, const int64_t *m,
                     int64_t groups, int64_t elements)
{
    struct moe_not_finite args = {.groups = groups, .elements = elements, .in = grad, .m = m, .out = words_of(f)};
    int rc = args.out == NULL ? MOE_E_CAPACITY : moe_device_ops(f->device)->not_finite(f->device, &args);
    return rc ? rc : keep(f, subject, MOE_TENSOR_NOTFINITE);
}

static uint64_t float_bits(uint64_t double_bits)
{
    double wide;
    memcpy(&wide, &double_bits, sizeof(wide));
    float narrow = (float)wide;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof(bits));
    return bits;
}

void moe_facts_report(moe_facts_t *f)
{
    for (uint32_t i = 0; i < f->used; i++) {
        const struct fact *fact = &f->fact[i];
        const uint64_t *word = f->host_words + (size_t)i * WORDS;
        if (fact->kind == MOE_TENSOR_NOTFINITE && word[0] == 0) {
            continue; /* nothing to report */
        }
        struct moe_event event = {.size = sizeof(event),
                                  .kind = MOE_EV_TENSOR,
                                  .phase = MOE_PHASE_REDUCE,
                                  .step = f->step.step,
                                  .layer =
                                      fact->subject.layer > UINT16_MAX ? UINT16_MAX : (uint16_t)fact->subject.layer,
                                  .peer = (int32_t)fact->subject.tensor,
                                  .aux = (uint32_t)fact->kind,
                                  .count = word[0],
                                  .comm = fact->subject.comm};
        event.count2 = fact->kind == MOE_TENSOR_PART        ? float_bits(word[1])
                       : fact->kind == MOE_TENSOR_NOTFINITE ? word[1]
                                                            : 0;
        moe_observe(&event);
    }
    f->used = 0;
}
