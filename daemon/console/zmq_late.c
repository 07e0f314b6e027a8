/*
 * zmq_late.c: libzmq, loaded when a command first needs it. Only the program `rollcall` has this file.
 *
 * libzmq brings 15 libraries (Kerberos, C++, multicast), and to load them took 1.9 ms of the 3.2 ms in which `rollcall
 * --version` was over: more than half of what `analyze` needs for the dumps of a small job. Commands that ask no daemon
 * should not wait for them. So the functions that daemon/wire calls are defined here, each under its own name and with
 * the prototype of zmq.h, and pass their arguments on. rollcalld and the tests link libzmq itself.
 *
 * A second program for the commands that ask a daemon was rejected: there would be two programs to install, to find and
 * to name in every message. A linker's delayed loading is not there on Linux.
 *
 * Where libzmq cannot be loaded, one line says so and each function fails as it fails by itself, so that a job under
 * `rollcall run` goes on. Any thread may call.
 */
#include "daemon/console/late.h"

#include <zmq.h>

#if ZMQ_VERSION_MAJOR != 4
#error "the name of the library below is that of libzmq 4"
#endif

/* What daemon/wire calls. */
#define NO_ROWS(ROW)
#define ROWS(ROW)                                                                                                      \
    ROW(int, -1, zmq_bind, (void *s, const char *endpoint), (s, endpoint))                                             \
    ROW(int, -1, zmq_close, (void *s), (s))                                                                            \
    ROW(int, -1, zmq_connect, (void *s, const char *endpoint), (s, endpoint))                                          \
    ROW(void *, NULL, zmq_ctx_new, (void), ())                                                                         \
    ROW(int, -1, zmq_ctx_term, (void *context), (context))                                                             \
    ROW(int, -1, zmq_curve_keypair, (char *public_key, char *secret_key), (public_key, secret_key))                    \
    ROW(int, -1, zmq_curve_public, (char *public_key, const char *secret_key), (public_key, secret_key))               \
    ROW(int, -1, zmq_disconnect, (void *s, const char *endpoint), (s, endpoint))                                       \
    ROW(int, -1, zmq_getsockopt, (void *s, int option, void *value, size_t *size), (s, option, value, size))           \
    ROW(int, 0, zmq_has, (const char *capability), (capability))                                                       \
    ROW(int, -1, zmq_msg_close, (zmq_msg_t * msg), (msg))                                                              \
    ROW(void *, NULL, zmq_msg_data, (zmq_msg_t * msg), (msg))                                                          \
    ROW(int, -1, zmq_msg_get, (const zmq_msg_t *msg, int property), (msg, property))                                   \
    ROW(const char *, NULL, zmq_msg_gets, (const zmq_msg_t *msg, const char *property), (msg, property))               \
    ROW(int, -1, zmq_msg_init, (zmq_msg_t * msg), (msg))                                                               \
    ROW(int, -1, zmq_msg_init_size, (zmq_msg_t * msg, size_t size), (msg, size))                                       \
    ROW(int, 0, zmq_msg_more, (const zmq_msg_t *msg), (msg))                                                           \
    ROW(int, -1, zmq_msg_move, (zmq_msg_t * to, zmq_msg_t * from), (to, from))                                         \
    ROW(int, -1, zmq_msg_recv, (zmq_msg_t * msg, void *s, int flags), (msg, s, flags))                                 \
    ROW(int, -1, zmq_msg_send, (zmq_msg_t * msg, void *s, int flags), (msg, s, flags))                                 \
    ROW(size_t, 0, zmq_msg_size, (const zmq_msg_t *msg), (msg))                                                        \
    ROW(int, -1, zmq_poll, (zmq_pollitem_t * items, int n, long timeout), (items, n, timeout))                         \
    ROW(int, -1, zmq_recv, (void *s, void *to, size_t size, int flags), (s, to, size, flags))                          \
    ROW(int, -1, zmq_send, (void *s, const void *from, size_t size, int flags), (s, from, size, flags))                \
    ROW(int, -1, zmq_setsockopt, (void *s, int option, const void *value, size_t size), (s, option, value, size))      \
    ROW(void *, NULL, zmq_socket, (void *context, int type), (context, type))                                          \
    ROW(int, -1, zmq_socket_monitor, (void *s, const char *endpoint, int events), (s, endpoint, events))               \
    ROW(const char *, "libzmq is not there", zmq_strerror, (int number), (number))                                     \
    ROW(int, -1, zmq_unbind, (void *s, const char *endpoint), (s, endpoint))                                           \
    ROW(uint8_t *, NULL, zmq_z85_decode, (uint8_t * to, const char *from), (to, from))                                 \
    ROW(char *, NULL, zmq_z85_encode, (char *to, const uint8_t *from, size_t size), (to, from, size))

ROLL_LATE(ROWS, NO_ROWS, "libzmq.so.5", "no daemon can be asked, and none is told")
