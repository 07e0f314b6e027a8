/*
 * page_words.c: see page_words.h. Each password is what CURVE makes of the one before as a secret key, which cannot be
 * turned round: the operator's of the cookie, the viewer's of the operator's. So there is no second secret to be kept,
 * and who was given the viewer's password can make neither of the others. Passwords in a file of their own were
 * rejected: a root that is started again, and its consoles, would have to agree about whose file it is.
 */
#include "daemon/wire/page_words.h"
#include "daemon/wire/curve.h"
#include "trace/err.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

/* One step: the public half of a secret key, in 40 characters. */
static int step(const char *secret, char out[ROLL_CURVE_KEY_BYTES], char word[ROLL_PAGE_WORD_BYTES])
{
    uint8_t bytes[32];
    if (zmq_curve_public(out, secret) != 0 || zmq_z85_decode(bytes, out) == NULL) {
        return ROLL_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < ROLL_PAGE_WORD_BYTES / 2; i++) {
        snprintf(word + 2 * i, 3, "%02x", bytes[i]);
    }
    return 0;
}

int roll_page_words(struct roll_page_words *out, char *why, size_t why_size)
{
    struct roll_curve_keys keys;
    char first[ROLL_CURVE_KEY_BYTES], second[ROLL_CURVE_KEY_BYTES], third[ROLL_CURVE_KEY_BYTES];
    char unused[ROLL_PAGE_WORD_BYTES];
    int rc = roll_curve_cookie(&keys, why, why_size);
    if (rc == 0) {
        rc = step(keys.secret_key, first, unused); /* the cookie's public key, which servers are known by */
        rc = rc ? rc : step(first, second, out->operator_);
        rc = rc ? rc : step(second, third, out->viewer);
        if (rc) {
            snprintf(why, why_size, "libzmq makes no keys here");
        }
    }
    explicit_bzero(&keys, sizeof(keys));
    explicit_bzero(first, sizeof(first));
    explicit_bzero(second, sizeof(second));
    return rc;
}
