/*
 * test_doors_places.c: what one address leaves behind is counted for it alone, whoever else comes, and only of
 * listeners that are watched. Connections are made and accepted here, over addresses of 127.0.0.0/8; what has been left
 * is one whose client has gone and which is not closed. The clock stands still but where a test moves it.
 */
#include "daemon/base/clock.h"
#include "daemon/wire/doors.h"
#include "trace/ident.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DESCRIPTORS 4096u
#define MOST        (DESCRIPTORS / ROLL_DOORS_SHARE)
#define EVIL        0x7f000002u
#define GROUPS      1024u       /* of addresses, when they were counted by a hash */
#define FIRST       0x7f010001u /* of many */
#define BEHIND      0x7f020001u /* of those that come when these are all there */
#define MANY        1024u

static uint64_t now_ns = 1000000000000;
static int fails; /* the error of accept4; 0: none */
static unsigned looks;
static int door; /* that is watched */
static uint16_t door_port;
static int held[DESCRIPTORS];
static unsigned count;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    out->tv_sec = (time_t)(now_ns / 1000000000);
    out->tv_nsec = (long)(now_ns % 1000000000);
    return 0;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    looks++;
    return __real_poll(fds, n, timeout);
}

long __wrap_syscall(long number, ...);
long __real_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    long with[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        with[i] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_accept4 && fails != 0) {
        errno = fails;
        return -1;
    }
    return __real_syscall(number, with[0], with[1], with[2], with[3], with[4], with[5]);
}

static int open_door(bool watched, uint16_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    roll_doors_watch(watched);
    assert_int_equal(listen(fd, 16), 0);
    roll_doors_watch(false);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = at.sin_port;
    return fd;
}

/* Comes from this address to a listener, and stays (*client) or goes. The accepted end is kept; false: there is none.
 */
static bool come_to(int listener, uint16_t port, uint32_t address, int *client)
{
    struct linger reset = {.l_onoff = 1};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* Who goes is reset: thousands of ports that wait for their time would make each further bind slow. */
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    int end = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (client) {
        *client = fd;
    } else {
        close(fd);
    }
    if (end < 0) {
        assert_int_equal(errno, ECONNABORTED);
        return false;
    }
    assert_true(count < DESCRIPTORS);
    held[count++] = end;
    return true;
}

static bool comes(uint32_t address)
{
    return come_to(door, door_port, address, NULL);
}

static unsigned come_often(uint32_t address, unsigned tries)
{
    unsigned let_in = 0;
    for (unsigned i = 0; i < tries; i++) {
        let_in += comes(address);
    }
    return let_in;
}

/* EVIL leaves all that it may, and the one of this minute, with pauses or without. */
static void keep_evil_out(void)
{
    unsigned let_in = come_often(EVIL, 2 * MOST);
    now_ns += 1000 * ROLL_MS;
    assert_int_equal(let_in + come_often(EVIL, 2 * MOST), MOST + 1);
}

static int set_up(void **state)
{
    (void)state;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = DESCRIPTORS;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    now_ns += 3600 * 1000000000ull;
    door = open_door(true, &door_port);
    return 0;
}

static void close_held(void)
{
    while (count > 0) {
        close(held[--count]);
    }
}

static int tear_down(void **state)
{
    (void)state;
    close_held();
    close(door);
    (void)roll_doors_tell("root");
    return 0;
}

/* Another address of the same hash as EVIL has. */
static uint32_t same_hash(void)
{
    uint32_t evil = htonl(EVIL);
    uint64_t group = roll_hash64(AF_INET, &evil, sizeof(evil)) % GROUPS;
    for (uint32_t address = EVIL + 1; address < EVIL + 100 * GROUPS; address++) {
        uint32_t other = htonl(address);
        if (roll_hash64(AF_INET, &other, sizeof(other)) % GROUPS == group) {
            return address;
        }
    }
    fail();
    return 0;
}

static void test_another_address_opens_no_door(void **state)
{
    (void)state;
    uint32_t other = same_hash();
    keep_evil_out();
    for (int i = 0; i < 3; i++) {
        assert_true(comes(other));
        assert_int_equal(come_often(EVIL, MOST + 2), 0);
        now_ns += 2000 * ROLL_MS;
        assert_int_equal(come_often(EVIL, MOST + 2), 0);
    }
    now_ns += 60000 * ROLL_MS;
    assert_int_equal(come_often(EVIL, MOST + 2), 1);
    assert_true(roll_doors_tell("root") > 0);
    assert_int_equal(roll_doors_tell("root"), 0);
}

static void test_who_left_and_was_closed_comes_again(void **state)
{
    (void)state;
    keep_evil_out();
    close_held();
    now_ns += 1000 * ROLL_MS;
    assert_int_equal(come_often(EVIL, MOST), MOST);
}

static void test_other_listeners_are_left_alone(void **state)
{
    (void)state;
    uint16_t port;
    int page = open_door(false, &port);
    keep_evil_out();
    unsigned before = count;
    now_ns += 60000 * ROLL_MS;
    for (unsigned i = 0; i < MOST + 2; i++) {
        assert_true(come_to(page, port, EVIL, NULL));
    }
    assert_int_equal(count, before + MOST + 2);
    assert_int_equal(come_often(EVIL, 3), 1); /* none of those was the one of this minute */
    /* A listener of another library on the descriptor of one that was watched. */
    close(page);
    close(door);
    door = open_door(false, &door_port);
    assert_int_equal(come_often(EVIL, 3), 3);
}

static void test_all_places_are_taken(void **state)
{
    (void)state;
    keep_evil_out();
    for (uint32_t i = 0; i < MANY - 1; i++) {
        assert_true(comes(FIRST + i));
    }
    /* Those behind are one. */
    unsigned let_in = 0, before = count;
    for (uint32_t i = 0; i < 2 * MOST; i++) {
        let_in += comes(BEHIND + i);
    }
    assert_int_equal(let_in, MOST);
    assert_true(comes(FIRST + 7));
    assert_int_equal(come_often(EVIL, 3), 0);
    /* What is closed makes room: not for EVIL, of which all is still here. */
    for (unsigned i = MOST + 1; i < before; i++) {
        close(held[i]);
        held[i] = -1;
    }
    now_ns += 1000 * ROLL_MS;
    assert_true(comes(BEHIND + 2 * MOST));
    assert_int_equal(come_often(BEHIND, MOST / 2), MOST / 2);
    assert_int_equal(come_often(EVIL, 3), 0);
}

/* Of an address that is near its bound all are looked at once a second, and not for each that comes. */
static void test_looks_are_few(void **state)
{
    (void)state;
    int client[MOST];
    unsigned alive = 0;
    assert_int_equal(come_often(EVIL, MOST - 8), MOST - 8);
    looks = 0;
    while (alive < MOST && come_to(door, door_port, EVIL, &client[alive])) {
        alive++;
    }
    close(client[alive]); /* who was turned away */
    assert_true(alive >= 8 && alive <= 16);
    assert_int_equal(looks, MOST - 1);
    assert_int_equal(come_often(EVIL, 100), 0);
    assert_int_equal(looks, MOST - 1);
    now_ns += 1000 * ROLL_MS;
    assert_true(come_to(door, door_port, EVIL, &client[alive]));
    assert_true(looks > MOST - 1);
    for (unsigned i = 0; i <= alive; i++) {
        close(client[i]);
    }
}

/* accept4 fails with this error at a door that is watched, or at another one. Returns what libzmq is told. */
static int error_at(int listener, int error)
{
    fails = error;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int told = errno;
    fails = 0;
    assert_int_equal(fd, -1);
    return told;
}

/* Of each of them libzmq's listener, or that at a socket file, would end the process. */
static void test_what_cannot_be_taken_ends_nothing(void **state)
{
    (void)state;
    static const int lost[] = {EPERM, EACCES, ENETDOWN, EHOSTUNREACH, ENOPROTOOPT, ETIMEDOUT, ECONNABORTED, EPROTO};
    static const int wanted[] = {EMFILE, ENFILE, ENOBUFS, ENOMEM};
    static const int passed[] = {EAGAIN, EINTR, EBADF, EINVAL, ENOTSOCK, EFAULT, ENOSYS};
    uint16_t port;
    unsigned n = sizeof(lost) / sizeof(lost[0]);
    int page = open_door(false, &port);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(error_at(door, lost[i]), ECONNABORTED);
        assert_int_equal(error_at(page, lost[i]), lost[i]); /* another library knows what to do */
    }
    assert_int_equal(roll_doors_tell("root"), n);
    for (unsigned i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        assert_int_equal(error_at(door, wanted[i]), ECONNABORTED);
        assert_int_equal(error_at(page, wanted[i]), wanted[i]);
    }
    for (unsigned i = 0; i < sizeof(passed) / sizeof(passed[0]); i++) {
        assert_int_equal(error_at(door, passed[i]), passed[i]);
    }
    assert_int_equal(roll_doors_tell("root"), 0); /* who waits is let in later, and not counted each time */
    close(page);
    assert_true(comes(EVIL));
}

/* One line about each in a minute, with what is wrong. */
static void test_what_cannot_be_taken_is_told(void **state)
{
    (void)state;
    char log[8192] = "";
    int end[2], stderr_before = dup(STDERR_FILENO);
    assert_int_equal(pipe(end), 0);
    now_ns += 3600 * 1000000000ull; /* the lines of another test are of long ago */
    (void)fflush(stderr);
    assert_true(dup2(end[1], STDERR_FILENO) >= 0);
    for (unsigned i = 0; i < 3; i++) {
        (void)error_at(door, EMFILE);
        (void)error_at(door, EPERM);
        (void)error_at(door, ENETDOWN);
        assert_int_equal(roll_doors_tell("root"), 2);
    }
    assert_true(dup2(stderr_before, STDERR_FILENO) >= 0);
    close(stderr_before);
    close(end[1]);
    ssize_t n = read(end[0], log, sizeof(log) - 1);
    close(end[0]);
    assert_true(n > 0);
    const char *waits = strstr(log, "root: who comes is not let in, and waits: Too many open files");
    const char *lost = strstr(log, "root: 2 connections could not be taken; the last one: Network is down");
    assert_true(waits && lost);
    assert_null(strstr(waits + 20, "who comes is not let in"));
    assert_null(strstr(lost + 40, "could not be taken"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_another_address_opens_no_door),
        TEST(test_who_left_and_was_closed_comes_again),
        TEST(test_other_listeners_are_left_alone),
        TEST(test_all_places_are_taken),
        TEST(test_looks_are_few),
        TEST(test_what_cannot_be_taken_ends_nothing),
        TEST(test_what_cannot_be_taken_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
