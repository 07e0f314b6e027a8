/*
 * fuzz_auth.c: arbitrary bytes as an Authorization header: it is refused, or every field is a text within its bounds;
 * and nobody is let in without the password.
 */
#include "daemon/http/auth_digest.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct roll_auth_nonces nonces;
    static int begun;
    struct roll_auth auth;
    char *header = malloc(size + 1); /* as large as the text, so that a step behind it is seen */
    if (!header || (!begun && roll_auth_init(&nonces) != 0)) {
        free(header);
        return 0;
    }
    begun = 1;
    memcpy(header, data, size);
    header[size] = '\0';
    if (roll_auth_read(header, &auth)) {
        const char *const fields[] = {auth.username, auth.realm,     auth.nonce, auth.uri, auth.cnonce,
                                      auth.response, auth.algorithm, auth.qop,   auth.nc};
        for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
            if (fields[i][0] == '\0' || memchr(fields[i], '\0', ROLL_AUTH_FIELD_BYTES) == NULL) {
                abort();
            }
        }
        if (roll_auth_matches(&auth, "GET", "another password") || roll_auth_nonce_is_ours(&nonces, 5000, auth.nonce)) {
            abort();
        }
    }
    free(header);
    return 0;
}
