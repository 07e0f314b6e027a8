/*
 * listen.c: the addresses that the endpoint accepts: numbers and "localhost" only. With names from DNS, "loopback only"
 * would depend on the DNS server.
 */
#include "daemon/http/listen.h"
#include "trace/err.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

static int parse_port(const char *text, uint16_t *out)
{
    uint32_t port = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') {
        return ROLL_E_ARG;
    }
    for (size_t i = 0; i < digits; i++) {
        port = port * 10 + (uint32_t)(text[i] - '0');
    }
    if (port > UINT16_MAX) {
        return ROLL_E_ARG;
    }
    *out = (uint16_t)port;
    return ROLL_OK;
}

static int parse_v6(const char *host, uint16_t port, struct sockaddr_storage *out)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (inet_pton(AF_INET6, host, &address.sin6_addr) != 1) {
        return ROLL_E_ARG;
    }
    if (!IN6_IS_ADDR_LOOPBACK(&address.sin6_addr)) {
        return ROLL_E_DENIED;
    }
    memcpy(out, &address, sizeof(address));
    return ROLL_OK;
}

static int parse_v4(const char *host, uint16_t port, struct sockaddr_storage *out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (*host == '\0' || strcasecmp(host, "localhost") == 0) {
        host = "127.0.0.1";
    }
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        return ROLL_E_ARG;
    }
    if (ntohl(address.sin_addr.s_addr) >> 24 != 127) {
        return ROLL_E_DENIED;
    }
    memcpy(out, &address, sizeof(address));
    return ROLL_OK;
}

int roll_listen_parse(const char *text, struct sockaddr_storage *out)
{
    char host[64] = "";
    memset(out, 0, sizeof(*out));
    const char *colon = strrchr(text, ':');
    const char *bracket = strrchr(text, ']');
    const char *port_text = colon != NULL ? colon + 1 : text;
    size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    uint16_t port = 0;
    if (bytes >= sizeof(host) || (bracket != NULL && colon != bracket + 1)) {
        return ROLL_E_ARG;
    }
    int err = parse_port(port_text, &port);
    if (err < 0) {
        return err;
    }
    memcpy(host, text, bytes);
    if (host[0] == '[' && bracket != NULL) {
        host[bytes - 1] = '\0';
        return parse_v6(host + 1, port, out);
    }
    return parse_v4(host, port, out);
}

bool roll_listen_host_is_loopback(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; host != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        size_t bytes = strlen(names[i]);
        uint16_t port;
        if (strncasecmp(host, names[i], bytes) == 0 &&
            (host[bytes] == '\0' || (host[bytes] == ':' && parse_port(host + bytes + 1, &port) == ROLL_OK))) {
            return true;
        }
    }
    return false;
}
