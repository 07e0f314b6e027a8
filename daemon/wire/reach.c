/*
 * reach.c: looks at an endpoint that gave no answer: whether there is such a socket or host, whether somebody listens,
 * whether that is ZeroMQ, and whether it wants keys.
 *
 * ZeroMQ itself says nothing of all this: it goes on trying, because who is asked may only be late. So the look is a
 * plain connection of its own, after the fact: it sends the first bytes of ZeroMQ's greeting (ZMTP 3, a public
 * document), to which the other side answers with its own, which names its mechanism. It never sends its own mechanism,
 * so the other side has nothing to refuse and nothing to log. A socket monitor was rejected: it tells of a key that is
 * refused, but of no other of these reasons more than that there is no connection.
 */
#include "daemon/wire/reach.h"

#include "daemon/wire/net.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define LOOK_S         2
#define GREETING_BYTES 64
#define MECHANISM_AT   12
#define MECHANISM_MOST 20

/* A socket whose connect, send and receive end after LOOK_S. */
static int socket_of(int family)
{
    const struct timeval most = {.tv_sec = LOOK_S};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    }
    return fd;
}

/* Connects; -1 with the reason in out. */
static int connect_ipc(const char *path, char *out, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof(address.sun_path)) {
        snprintf(out, size, "the path is too long for a socket");
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (stat(path, &st) != 0) {
        snprintf(out, size,
                 errno == EACCES ? "this user may not look there: ask as the user who started the job"
                                 : "there is no such socket: the daemon has ended, or the path is another one "
                                   "(`rollcall jobs` lists those that run here)");
        return -1;
    }
    if (!S_ISSOCK(st.st_mode)) {
        snprintf(out, size, "that file is no socket: an endpoint is what `rollcall jobs` shows, or what --listen says");
        return -1;
    }
    int fd = socket_of(AF_UNIX);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
        return fd;
    }
    snprintf(out, size,
             errno == ECONNREFUSED ? "the socket is there, but nobody listens any more: the daemon has ended"
             : errno == EACCES     ? "the socket belongs to another user: ask as the user who started the job"
                                   : "it cannot be connected to: %s",
             strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    return -1;
}

static int connect_tcp(const char *where, char *out, size_t size)
{
    char host[256];
    const char *colon = strrchr(where, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int number = 0, fd = -1;
    snprintf(host, sizeof(host), "%.*s", colon ? (int)(colon - where) : (int)strlen(where), where);
    size_t n = strlen(host);
    bool bracket = n > 2 && host[0] == '[' && host[n - 1] == ']';
    host[bracket ? n - 1 : n] = '\0';
    if (getaddrinfo(host + bracket, colon ? colon + 1 : NULL, &hints, &list) != 0) {
        snprintf(out, size, "there is no host %s: is the name right?", host + bracket);
        return -1;
    }
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket_of(a->ai_family);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            number = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        snprintf(out, size,
                 number == ECONNREFUSED
                     ? "nobody listens on that port of %s: is rollcalld running there, with --listen and this port?"
                     : "%s is not reached on that port: is it up, and does a firewall let this through?",
                 host + bracket);
    }
    return fd;
}

/* Reads the greeting of the other side. False: it is not ZeroMQ, or says nothing. */
static bool greeted(int fd, char mechanism[MECHANISM_MOST + 1])
{
    static const unsigned char hello[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1}; /* signature and version */
    unsigned char greeting[GREETING_BYTES];
    size_t used = 0;
    if (send(fd, hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello)) {
        return false;
    }
    while (used < MECHANISM_AT + MECHANISM_MOST) {
        ssize_t n = recv(fd, greeting + used, sizeof(greeting) - used, 0);
        if (n <= 0) {
            return false;
        }
        used += (size_t)n;
    }
    memcpy(mechanism, greeting + MECHANISM_AT, MECHANISM_MOST);
    mechanism[MECHANISM_MOST] = '\0';
    return greeting[0] == 0xff && greeting[9] == 0x7f;
}

void roll_reach_why(const char *endpoint, bool keys, const char *curve_dir, char *out, size_t size)
{
    char mechanism[MECHANISM_MOST + 1] = "";
    bool tcp = strncmp(endpoint, "tcp://", 6) == 0;
    int fd = tcp ? connect_tcp(endpoint + 6, out, size) : connect_ipc(endpoint + 6, out, size);
    if (fd < 0) {
        return;
    }
    bool speaks = greeted(fd, mechanism), wants = strcmp(mechanism, "CURVE") == 0;
    bool given = curve_dir && curve_dir[0];
    close(fd);
    if (!speaks) {
        snprintf(out, size, "something listens there, but it is no rollcalld, or is stopped: is the port right?");
    } else if (wants && !keys) {
        snprintf(out, size,
                 "it wants keys: name them with --curve-dir DIR or ROLLCALL_CURVE_DIR (`rollcall keygen` "
                 "makes them)");
    } else if (wants && given) {
        snprintf(out, size,
                 "it does not take the keys of %s: server.pub there has to be that of the root, and the root has to "
                 "list client.pub in its allowed/ (its log names a key that it refuses)",
                 curve_dir);
    } else if (wants) {
        snprintf(out, size,
                 "it does not take this user's cookie: it belongs to another user, was started with another "
                 "ROLLCALL_COOKIE, or has keys, which --curve-dir DIR names");
    } else if (keys) {
        snprintf(out, size, "it takes no keys (it was started with --insecure), and keys were sent: %s",
                 given ? "leave out --curve-dir and ROLLCALL_CURVE_DIR" : "set ROLLCALL_INSECURE=1");
    } else {
        snprintf(out, size,
                 "something listens there and speaks ZeroMQ, but does not answer as a root: it is another "
                 "program, or a root that is stopped or has much to do");
    }
}
