/*
 * golden.h: the golden files of the current version, made in memory.
 */
#ifndef ROLL_TESTS_TRACE_GOLDEN_GOLDEN_H
#define ROLL_TESTS_TRACE_GOLDEN_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

#define GOLDEN_RING_BYTES (4096 + 4096 + 64 * 64)
#define GOLDEN_TRACE_MOST 32768

/* Each fills a zeroed buffer and returns its length. */
size_t golden_ring(uint8_t out[GOLDEN_RING_BYTES]);
size_t golden_control(uint8_t out[4096]);
size_t golden_control_told(uint8_t out[4096]); /* the same page, which says that a root has set its policy */
size_t golden_trace(uint8_t out[GOLDEN_TRACE_MOST]);

#endif
