/*
 * error.c: the code table and the message of the last failure.
 *
 * The message is kept per thread, like errno: a layer's call fails deep inside (a dispatcher, a map) and returns only
 * a code through functions that know neither rank nor layer. Beside the message stands whether it names a layer
 * already, so that the layer's own functions add their place once and only once (moe_fail_at). The simpler idea,
 * printing where it happens, was rejected: a library does not write to the standard error of its host.
 */
#include "moe_core/base/fail.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The last failure of this thread. */
static _Thread_local struct moe_failure last;

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
    return last.message;
}

/* Keeps "<place><text of code>: <detail>". */
__attribute__((format(printf, 4, 0))) static int keep(int code, const char *place, bool has_layer, const char *format,
                                                      va_list args)
{
    char detail[160];
    vsnprintf(detail, sizeof(detail), format, args);
    snprintf(last.message, sizeof(last.message), "%s%s: %s", place, moe_error_text(code), detail);
    last.code = code;
    last.detail = (uint16_t)(strlen(place) + strlen(moe_error_text(code)) + strlen(": "));
    last.has_layer = has_layer;
    last.told = false;
    return code;
}

/* Writes "rank R, " and "layer L, " into `place`, each where it is known. */
static void name_place(char *place, size_t size, int32_t rank, uint32_t layer)
{
    int used = rank >= 0 ? snprintf(place, size, "rank %d, ", rank) : 0;
    place[used] = '\0';
    if (layer != MOE_NO_LAYER) {
        snprintf(place + used, size - (size_t)used, "layer %u, ", layer);
    }
}

int moe_fail(int code, int32_t rank, uint32_t layer, const char *format, ...)
{
    char place[48];
    va_list args;
    name_place(place, sizeof(place), rank, layer);
    va_start(args, format);
    keep(code, place, layer != MOE_NO_LAYER, format, args);
    va_end(args);
    return code;
}

int moe_fail_layers(int code, int32_t rank, const char *format, ...)
{
    char place[48];
    va_list args;
    name_place(place, sizeof(place), rank, MOE_NO_LAYER);
    va_start(args, format);
    keep(code, place, true, format, args);
    va_end(args);
    return code;
}

void moe_failure_keep(struct moe_failure *out)
{
    *out = last;
}

void moe_failure_restore(const struct moe_failure *kept)
{
    last = *kept;
}

int moe_fail_at(int code, int32_t rank, uint32_t layer)
{
    if (code != 0 && !last.has_layer) {
        char place[48], message[sizeof(last.message)];
        name_place(place, sizeof(place), rank, layer);
        memcpy(message, last.message, sizeof(message));
        snprintf(last.message, sizeof(last.message), "%s%.*s", place, (int)(sizeof(last.message) - sizeof(place)),
                 message);
        last.detail = (uint16_t)(last.detail + strlen(place));
        last.has_layer = true;
    }
    return code;
}

int moe_told(int code)
{
    last.told = true;
    return code;
}
