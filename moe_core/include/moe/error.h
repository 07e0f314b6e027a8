/*
 * error.h: error codes of moe_core (err.def) and the message of the last one.
 */
#ifndef MOE_ERROR_H
#define MOE_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/* The error codes: MOE_OK, and MOE_E_NAME for each row of err.def. Functions that return int return one of these. */
enum moe_error {
    MOE_OK = 0,
#define MOE_ERR(name, value, text) MOE_E_##name = (value),
#include "err.def"
#undef MOE_ERR
};

/* What a code means, in one phrase; "unknown error" for a number that is no code. Any thread; static storage. */
const char *moe_error_text(int code);

/*
 * The message of the last failure in this thread, such as "rank 3, layer 2: ..." with the numbers that did not fit; ""
 * when nothing has failed yet. Borrowed: valid until the next failure in this thread.
 */
const char *moe_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
