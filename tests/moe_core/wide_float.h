/*
 * wide_float.h: included before everything else, makes the library, its host back end and a test compute with 64 bits
 * where they compute with 32: `float` is double, float32 on the wire is float64, and the BLAS is that of doubles.
 *
 * Agreement to 2e-5 leaves room for a mistake that is small, or that meets small numbers; agreement to 1e-12 does not.
 * A second back end in double was rejected: the mistakes that are looked for are those of the code that ships. What
 * counts on the bits of a float is left out: the loops for an instruction set (wide_rows.c stands in), narrow types,
 * and the Flex dispatchers, whose probabilities travel as words.
 */
#ifndef ROLL_TESTS_MOE_CORE_WIDE_FLOAT_H
#define ROLL_TESTS_MOE_CORE_WIDE_FLOAT_H

/* Every header of others that declares something with a float, before the word means something else. */
#include <cblas.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define float double
#define ncclFloat32 ncclFloat64
#define cblas_sgemm cblas_dgemm
#define expf        exp
#define log1pf      log1p
#define sqrtf       sqrt
#define tanhf       tanh
#define erff        erf
#define fabsf       fabs
#define fmaxf       fmax
#define fminf       fmin

#endif
