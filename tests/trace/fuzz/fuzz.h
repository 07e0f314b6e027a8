/*
 * fuzz.h: the function that every fuzz target defines, and the macro that reports a broken promise.
 */
#ifndef ROLL_TESTS_TRACE_FUZZ_FUZZ_H
#define ROLL_TESTS_TRACE_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A promise of the interface; breaking it is a finding. */
#define PROMISE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
