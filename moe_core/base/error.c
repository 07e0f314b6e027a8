/*
 * error.c: the code table and the message of the last failure.
 *
 * The message is kept per thread, like errno: a layer's call fails deep inside (a dispatcher, a map) and returns only
 * a code through functions that know neither rank nor layer. The simpler idea, printing where it happens, was
 * rejected: a library does not write to the standard error of its host.
 */
#include "moe_core/base/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[256];

const char *moe_error_text(int code)
{
    switch (code) {
    case MOE_OK:
        return "no error";
#define MOE_ERR(name, value, text)                                                                                     \
    case MOE_E_##name:                                                                                                 \
        return text;
#include "moe_core/include/moe/err.def"
#undef MOE_ERR
    default:
        return "unknown error";
    }
}

const char *moe_last_error(void)
{
    return last_error;
}

int moe_fail(int code, int32_t rank, uint32_t layer, const char *format, ...)
{
    char detail[160];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    int used = 0;
    if (rank >= 0) {
        used += snprintf(last_error, sizeof(last_error), "rank %d, ", rank);
    }
    if (layer != MOE_NO_LAYER) {
        used += snprintf(last_error + used, sizeof(last_error) - (size_t)used, "layer %u, ", layer);
    }
    snprintf(last_error + used, sizeof(last_error) - (size_t)used, "%s: %s", moe_error_text(code), detail);
    return code;
}

int moe_fail_at(int code, int32_t rank, uint32_t layer)
{
    char message[sizeof(last_error)];
    if (code != 0 && strstr(last_error, "layer") == NULL) {
        memcpy(message, last_error, sizeof(message));
        snprintf(last_error, sizeof(last_error), "rank %d, layer %u, %.*s", rank, layer, (int)sizeof(last_error) - 40,
                 message);
    }
    return code;
}
