/*
 * raw_peer.c: see raw_peer.h.
 */
#include "tests/daemon/raw_peer.h"

#include "tests/trace/cmocka_all.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static void receive(int fd, size_t bytes)
{
    char buffer[256];
    while (bytes > 0) {
        ssize_t n = recv(fd, buffer, bytes < sizeof(buffer) ? bytes : sizeof(buffer), 0);
        assert_true(n > 0);
        bytes -= (size_t)n;
    }
}

static void greet(int fd)
{
    char greeting[64] = {(char)0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    static const char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                                "DEALER";
    assert_int_equal(send(fd, greeting, 64, MSG_NOSIGNAL), 64);
    receive(fd, 64);
    assert_int_equal(send(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL), sizeof(ready) - 1);
    uint8_t head[2]; /* its READY: a short command */
    assert_int_equal(recv(fd, head, 2, MSG_WAITALL), 2);
    assert_int_equal(head[0], 4);
    receive(fd, head[1]);
}

static int local_peer(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(strlen(path) < sizeof(to.sun_path));
    strcpy(to.sun_path, path);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    greet(fd);
    return fd;
}

int raw_peer(const char *endpoint)
{
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        return local_peer(endpoint + 6);
    }
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    greet(fd);
    return fd;
}
