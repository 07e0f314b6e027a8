/*
 * listen.h: checks addresses to listen on and Host headers to answer to: loopback only. Used inside daemon/http only.
 */
#ifndef ROLL_DAEMON_HTTP_LISTEN_H
#define ROLL_DAEMON_HTTP_LISTEN_H

#include <stdbool.h>
#include <sys/socket.h>

/* Turns "127.0.0.1:9400", "[::1]:0", "localhost:9400", ":9400" or "9400" into an address. 0; ARG when malformed; DENIED
 * when it is not a loopback address. Pure. */
int roll_listen_parse(const char *text, struct sockaddr_storage *out);

/* Whether a Host header names this machine's loopback. The header of a page of another site that reaches us under its
 * own name (DNS rebinding) does not. NULL (HTTP/1.0): no. Pure. */
bool roll_listen_host_is_loopback(const char *host);

#endif
