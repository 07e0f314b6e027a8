/*
 * err.h: the error codes, from err.def, and their texts.
 *
 * Every function that can fail returns int: 0, or one of these. Results go through out-parameters, last.
 */
#ifndef ROLL_TRACE_ERR_H
#define ROLL_TRACE_ERR_H

enum roll_err {
    ROLL_OK = 0,
#define ROLL_ERR(name, value, text) ROLL_E_##name = (value),
#include "trace/err.def"
#undef ROLL_ERR
};

/* The text of an error code; "unknown error" for a code that is not in the table. Any thread; static storage. */
const char *roll_strerror(int err);

/* The code for an errno value: ENOSPC is SPACE, EACCES is DENIED, ...; IO for all that have no better name. Pure. */
int roll_err_from_errno(int number);

#endif
