/*
 * auth_digest.c: see auth_digest.h. The hashes are libsodium's, which libzmq needs already.
 *
 * A nonce is a time and its code under a secret of this process: nothing has to be remembered of it, so nobody can fill
 * a table with them. That the same answer is not given twice is not looked after: who can hear the loopback interface
 * is root, and who listens on our port while we are away makes answers for nonces of a process that has ended. The
 * functions of libmicrohttpd 0.9.75 were rejected: all who come within a second are given the same nonce there, and all
 * but one of them are turned away.
 */
#include "daemon/http/auth_digest.h"
#include "trace/err.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HEX_BYTES ROLL_AUTH_RESPONSE_BYTES /* of a hash */

static const struct field {
    const char *name;
    size_t at;
} fields[] = {
    {"username", offsetof(struct roll_auth, username)},
    {"realm", offsetof(struct roll_auth, realm)},
    {"nonce", offsetof(struct roll_auth, nonce)},
    {"uri", offsetof(struct roll_auth, uri)},
    {"cnonce", offsetof(struct roll_auth, cnonce)},
    {"response", offsetof(struct roll_auth, response)},
    {"algorithm", offsetof(struct roll_auth, algorithm)},
    {"qop", offsetof(struct roll_auth, qop)},
    {"nc", offsetof(struct roll_auth, nc)},
};

/* Copies one value, quoted or not, and returns what follows; NULL: it is too long, or has no end. */
static const char *read_value(const char *at, char out[ROLL_AUTH_FIELD_BYTES])
{
    size_t n = 0;
    bool quoted = *at == '"';
    at += quoted;
    while (quoted ? *at != '"' : *at != ',' && *at != ' ' && *at != '\t' && *at != '\0') {
        at += quoted && *at == '\\';
        if (*at == '\0' || n + 1 >= ROLL_AUTH_FIELD_BYTES) {
            return NULL;
        }
        out[n++] = *at++;
    }
    out[n] = '\0';
    return at + quoted;
}

/* Reads one "name=value" into its field, and returns what follows; NULL: it is none. A field twice is refused. */
static const char *read_field(const char *at, struct roll_auth *out)
{
    size_t n = strcspn(at, "= \t,");
    char unknown[ROLL_AUTH_FIELD_BYTES], *value = unknown;
    if (n == 0 || at[n] != '=') {
        return NULL;
    }
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        if (strlen(fields[i].name) == n && strncasecmp(fields[i].name, at, n) == 0) {
            value = (char *)out + fields[i].at;
            if (value[0] != '\0') {
                return NULL;
            }
        }
    }
    return read_value(at + n + 1, value);
}

bool roll_auth_read(const char *header, struct roll_auth *out)
{
    memset(out, 0, sizeof(*out));
    if (strncasecmp(header, "Digest ", 7) != 0) {
        return false;
    }
    const char *at = header + 7;
    at += strspn(at, " \t,");
    while (at != NULL && *at != '\0') {
        at = read_field(at, out);
        at = at != NULL ? at + strspn(at, " \t,") : NULL;
    }
    bool whole = at != NULL;
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        whole = whole && ((const char *)out + fields[i].at)[0] != '\0';
    }
    return whole;
}

/* The hash of these texts with colons between them, in hexadecimal. */
static void hash_of(char out[HEX_BYTES], size_t n, const char *const *part)
{
    crypto_hash_sha256_state state;
    uint8_t hash[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_init(&state);
    for (size_t i = 0; i < n; i++) {
        crypto_hash_sha256_update(&state, (const uint8_t *)":", i > 0);
        crypto_hash_sha256_update(&state, (const uint8_t *)part[i], strlen(part[i]));
    }
    crypto_hash_sha256_final(&state, hash);
    sodium_bin2hex(out, HEX_BYTES, hash, sizeof(hash));
}

void roll_auth_response(const struct roll_auth *auth, const char *method, const char *password,
                        char out[ROLL_AUTH_RESPONSE_BYTES])
{
    char who[HEX_BYTES], what[HEX_BYTES];
    hash_of(who, 3, (const char *const[]){auth->username, auth->realm, password});
    hash_of(what, 2, (const char *const[]){method, auth->uri});
    hash_of(out, 6, (const char *const[]){who, auth->nonce, auth->nc, auth->cnonce, auth->qop, what});
}

bool roll_auth_matches(const struct roll_auth *auth, const char *method, const char *password)
{
    char wanted[ROLL_AUTH_RESPONSE_BYTES];
    roll_auth_response(auth, method, password, wanted);
    return strcasecmp(auth->algorithm, "SHA-256") == 0 && strcasecmp(auth->qop, "auth") == 0 &&
           strlen(auth->response) == sizeof(wanted) - 1 &&
           sodium_memcmp(wanted, auth->response, sizeof(wanted) - 1) == 0;
}

int roll_auth_init(struct roll_auth_nonces *nonces)
{
    if (sodium_init() < 0) {
        return ROLL_E_IO;
    }
    randombytes_buf(nonces->secret, sizeof(nonces->secret));
    return 0;
}

/* A nonce is 16 digits of the time, and 32 of its code. */
void roll_auth_nonce(const struct roll_auth_nonces *nonces, uint64_t now_s, char out[ROLL_AUTH_NONCE_BYTES])
{
    uint8_t code[crypto_auth_hmacsha256_BYTES];
    snprintf(out, ROLL_AUTH_NONCE_BYTES, "%016" PRIx64, now_s);
    crypto_auth_hmacsha256(code, (const uint8_t *)out, 16, nonces->secret);
    sodium_bin2hex(out + 16, ROLL_AUTH_NONCE_BYTES - 16, code, 16);
}

bool roll_auth_nonce_is_ours(const struct roll_auth_nonces *nonces, uint64_t now_s, const char *nonce)
{
    char wanted[ROLL_AUTH_NONCE_BYTES];
    uint64_t made_s = 0;
    if (strlen(nonce) != ROLL_AUTH_NONCE_BYTES - 1 || sscanf(nonce, "%16" SCNx64, &made_s) != 1 || made_s > now_s ||
        now_s - made_s > ROLL_AUTH_NONCE_S) {
        return false;
    }
    roll_auth_nonce(nonces, made_s, wanted);
    return sodium_memcmp(wanted, nonce, ROLL_AUTH_NONCE_BYTES - 1) == 0;
}
