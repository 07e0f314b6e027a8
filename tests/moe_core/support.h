/*
 * support.h: what the tests of moe_core share: device arrays, random numbers, comparison with the reference.
 */
#ifndef ROLL_TESTS_MOE_CORE_SUPPORT_H
#define ROLL_TESTS_MOE_CORE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "moe_core/include/moe/device.h"
#include "moe_core/include/moe/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next number in [-1,1) of a sequence; the same on every machine. */
static inline double support_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(int32_t)(*state >> 32) / 2147483648.0;
}

/* An array of `count` elements of `size` bytes on the device; fails the test when it cannot be had. */
static inline void *support_array(moe_device_t *device, int64_t count, size_t size)
{
    void *array = NULL;
    assert_int_equal(moe_device_alloc(device, (size_t)count * size, &array), 0);
    return array;
}

static inline float *support_floats(moe_device_t *device, int64_t count)
{
    return support_array(device, count, sizeof(float));
}

/* Random floats in [-scale, scale), and the same numbers in double. */
static inline void support_fill(float *to, double *twin, int64_t count, double scale, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = (float)(scale * support_random(state));
        if (twin != NULL) {
            twin[i] = (double)to[i];
        }
    }
}

static inline double *support_doubles(int64_t count)
{
    double *array = calloc((size_t)count + 1, sizeof(*array));
    assert_non_null(array);
    return array;
}

/* Fails when an element differs by more than `tolerance` of the largest wanted element. */
static inline void support_close(const char *what, const float *got, const double *want, int64_t count,
                                 double tolerance)
{
    double size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= tolerance * size)) {
            fail_msg("%s[%lld]: got %.9g, want %.9g", what, (long long)i, (double)got[i], want[i]);
        }
    }
}

/* Fills with a value that no computation gives, to see what was written. */
static inline void support_poison(float *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        data[i] = -12345.75f;
    }
}

static inline int support_is_poison(const float *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (data[i] != -12345.75f) {
            return 0;
        }
    }
    return 1;
}

#endif
