/*
 * fail_nth.h: the page that fail_nth.so and its driver share: what is to fail, and what has been called so far.
 *
 * tests/faults/state.py reads and writes the same bytes.
 */
#ifndef ROLL_TESTS_FAULTS_FAIL_NTH_H
#define ROLL_TESTS_FAULTS_FAIL_NTH_H

#include <stdint.h>

#define FAIL_SITES 4096u

enum fail_kind { FAIL_ALLOCATION = 1, FAIL_SYSTEM = 2 };

/* A place in our own code from which something is called. */
struct fail_site {
    _Atomic uint64_t key; /* object << 56 | function << 40 | offset in the object; 0: free */
    _Atomic uint64_t seen;
};

struct fail_state {
    /* What the driver asks for. */
    uint64_t nth;     /* fail the call with this number, from 1; 0: none */
    uint64_t site;    /* of this site's calls; 0: of all */
    uint32_t kind;    /* of the calls of this kind */
    uint32_t variant; /* with this one of the errors that the function may have */
    uint32_t from;    /* and every later call of the same function, when the error is one that lasts */
    uint32_t number;  /* of the function that failed */
    /* What has been. */
    _Atomic uint64_t seen[4]; /* calls by kind */
    _Atomic uint64_t failed;  /* calls that were made to fail */
    uint64_t offset;          /* the first of them: where in the object, */
    int32_t error;            /* with which error (-1: a part only was read or written), */
    uint32_t variants;        /* how many there were to choose from */
    char function[32], object[64];
    struct fail_site sites[FAIL_SITES];
};

#endif
