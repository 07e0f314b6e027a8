/*
 * zmtp_raw.h: ZMTP by hand, for peers that libzmq would not be: what stands on a connection, byte by byte.
 */
#ifndef ROLL_TESTS_DAEMON_ZMTP_RAW_H
#define ROLL_TESTS_DAEMON_ZMTP_RAW_H

#include <arpa/inet.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ZMTP_GREETING_BYTES 64

/* ZMTP 3.0, mechanism NULL. */
static const char zmtp_greeting[ZMTP_GREETING_BYTES] = {(char)0xff, 0,    0, 0, 0,   0,   0,   0,
                                                        1,          0x7f, 3, 0, 'N', 'U', 'L', 'L'};
/* READY of a DEALER and of a ROUTER: a short command. */
static const char zmtp_dealer[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                  "DEALER";
static const char zmtp_router[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                  "ROUTER";

/* A connection to tcp://127.0.0.1:PORT; -1: none. */
static inline int zmtp_connect(const char *endpoint)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static inline bool zmtp_send(int fd, const void *from, size_t bytes)
{
    return send(fd, from, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static inline bool zmtp_receive(int fd, void *out, size_t bytes)
{
    return recv(fd, out, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* The whole handshake, with this READY. */
static inline bool zmtp_greet(int fd, const char *ready)
{
    char theirs[256];
    uint8_t head[2];
    return zmtp_send(fd, zmtp_greeting, sizeof(zmtp_greeting)) && zmtp_receive(fd, theirs, ZMTP_GREETING_BYTES) &&
           zmtp_send(fd, ready, sizeof(zmtp_dealer) - 1) && zmtp_receive(fd, head, 2) && head[0] == 4 &&
           zmtp_receive(fd, theirs, head[1]);
}

#endif
