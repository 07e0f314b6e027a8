/*
 * seeds.h: the seeds of each fuzz target, from the golden files.
 */
#ifndef ROLL_TESTS_TRACE_FUZZ_SEEDS_H
#define ROLL_TESTS_TRACE_FUZZ_SEEDS_H

#include <stddef.h>
#include <stdint.h>

/* Seed i of the target with this name ("ring", ...), from 0: its length, 0 when there are no more. out: 64 KiB. */
size_t seed_make(const char *target, unsigned i, uint8_t *out);

#endif
