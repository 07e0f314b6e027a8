/*
 * auth_digest.h: HTTP Digest authentication with SHA-256 (RFC 7616): whether an Authorization header was made with a
 * password, which the header does not hold. Used inside daemon/http only. Any thread; one state by one at a time.
 */
#ifndef ROLL_DAEMON_HTTP_AUTH_DIGEST_H
#define ROLL_DAEMON_HTTP_AUTH_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_AUTH_FIELD_BYTES 512u /* longest value of a field, its end included */
#define ROLL_AUTH_NONCE_BYTES 49u  /* of a nonce of ours, its end included */

/* The fields of a header that say who asks. */
struct roll_auth {
    char username[ROLL_AUTH_FIELD_BYTES], realm[ROLL_AUTH_FIELD_BYTES], nonce[ROLL_AUTH_FIELD_BYTES],
        uri[ROLL_AUTH_FIELD_BYTES], cnonce[ROLL_AUTH_FIELD_BYTES], response[ROLL_AUTH_FIELD_BYTES],
        algorithm[ROLL_AUTH_FIELD_BYTES], qop[ROLL_AUTH_FIELD_BYTES], nc[ROLL_AUTH_FIELD_BYTES];
};

/* Reads "Digest name=value, name="value", ...". False for anything else, or without one of the fields. Pure. */
bool roll_auth_read(const char *header, struct roll_auth *out);
/* Whether the response was made with this password, for this method. Pure. */
bool roll_auth_matches(const struct roll_auth *auth, const char *method, const char *password);

/* The response that this password makes: the member `response` is not looked at. Pure. */
#define ROLL_AUTH_RESPONSE_BYTES 65u /* its end included */
void roll_auth_response(const struct roll_auth *auth, const char *method, const char *password,
                        char out[ROLL_AUTH_RESPONSE_BYTES]);

/* The secret of the nonces of one server. */
struct roll_auth_nonces {
    uint8_t secret[32];
};

/* 0, or IO. Once before all else. */
int roll_auth_init(struct roll_auth_nonces *nonces);
/* A nonce that is ours until ROLL_AUTH_NONCE_S after this time (seconds that only grow). */
#define ROLL_AUTH_NONCE_S 3600u
void roll_auth_nonce(const struct roll_auth_nonces *nonces, uint64_t now_s, char out[ROLL_AUTH_NONCE_BYTES]);
bool roll_auth_nonce_is_ours(const struct roll_auth_nonces *nonces, uint64_t now_s, const char *nonce);

#endif
