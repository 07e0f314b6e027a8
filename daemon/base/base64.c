/* base64.c: see base64.h. */
#include "daemon/base/base64.h"

#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *roll_base64_new(const void *data, size_t bytes)
{
    const uint8_t *in = data;
    char *text = malloc((bytes + 2) / 3 * 4 + 1), *out = text;
    for (size_t i = 0; text && i < bytes; i += 3) {
        size_t n = bytes - i < 3 ? bytes - i : 3;
        uint32_t group = (uint32_t)in[i] << 16 | (n > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (n > 2 ? in[i + 2] : 0u);
        for (size_t k = 0; k < 4; k++) {
            *out++ = k <= n ? letters[group >> (18 - 6 * k) & 63] : '=';
        }
    }
    if (text) {
        *out = '\0';
    }
    return text;
}

int roll_base64_open(const char *text, uint8_t **data, size_t *bytes)
{
    size_t length = strlen(text), pads = 0, used = 0;
    *data = NULL;
    while (pads < 2 && pads < length && text[length - 1 - pads] == '=') {
        pads++;
    }
    if (length % 4 != 0) {
        return ROLL_E_CORRUPT;
    }
    uint8_t *out = malloc(length / 4 * 3 + 1);
    if (!out) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < length; i += 4) {
        uint32_t group = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *letter = text[i + k] ? strchr(letters, text[i + k]) : NULL;
            if (!letter && i + k < length - pads) {
                free(out);
                return ROLL_E_CORRUPT;
            }
            group = group << 6 | (letter ? (uint32_t)(letter - letters) : 0);
        }
        for (size_t k = 0; k < 3; k++) {
            out[used++] = (uint8_t)(group >> (16 - 8 * k));
        }
    }
    *data = out;
    *bytes = used - pads;
    return 0;
}
