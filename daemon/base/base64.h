/*
 * base64.h: bytes as text, for the few that travel inside JSON (RFC 4648, with padding). Pure; any thread.
 *
 * libsodium and libmicrohttpd have the same; what is small enough to need it links neither.
 */
#ifndef ROLL_DAEMON_BASE_BASE64_H
#define ROLL_DAEMON_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* The text, owned by the caller; NULL without memory. */
char *roll_base64_new(const void *data, size_t bytes);
/* The bytes of a text (hostile), owned by the caller. 0; NOMEM; CORRUPT. */
int roll_base64_open(const char *text, uint8_t **data, size_t *bytes);

#endif
