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
#include "daemon/console/console.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <zmq.h>

#if ZMQ_VERSION_MAJOR != 4
#error "the name of the library below is that of libzmq 4"
#endif
#define LIBRARY "libzmq.so.5"

/* ROW(type, fails, name, parameters, arguments): what daemon/wire calls; the link fails where a row is missing. */
#define ROWS(ROW)                                                                                                      \
    ROW(int, -1, zmq_bind, (void *s, const char *endpoint), (s, endpoint))                                             \
    ROW(int, -1, zmq_close, (void *s), (s))                                                                            \
    ROW(int, -1, zmq_connect, (void *s, const char *endpoint), (s, endpoint))                                          \
    ROW(void *, NULL, zmq_ctx_new, (void), ())                                                                         \
    ROW(int, -1, zmq_ctx_term, (void *context), (context))                                                             \
    ROW(int, -1, zmq_curve_keypair, (char *public_key, char *secret_key), (public_key, secret_key))                    \
    ROW(int, 0, zmq_has, (const char *capability), (capability))                                                       \
    ROW(int, -1, zmq_msg_close, (zmq_msg_t * msg), (msg))                                                              \
    ROW(void *, NULL, zmq_msg_data, (zmq_msg_t * msg), (msg))                                                          \
    ROW(int, -1, zmq_msg_init, (zmq_msg_t * msg), (msg))                                                               \
    ROW(int, -1, zmq_msg_init_size, (zmq_msg_t * msg, size_t size), (msg, size))                                       \
    ROW(int, 0, zmq_msg_more, (const zmq_msg_t *msg), (msg))                                                           \
    ROW(int, -1, zmq_msg_recv, (zmq_msg_t * msg, void *s, int flags), (msg, s, flags))                                 \
    ROW(int, -1, zmq_msg_send, (zmq_msg_t * msg, void *s, int flags), (msg, s, flags))                                 \
    ROW(size_t, 0, zmq_msg_size, (const zmq_msg_t *msg), (msg))                                                        \
    ROW(int, -1, zmq_poll, (zmq_pollitem_t * items, int n, long timeout), (items, n, timeout))                         \
    ROW(int, -1, zmq_recv, (void *s, void *to, size_t size, int flags), (s, to, size, flags))                          \
    ROW(int, -1, zmq_send, (void *s, const void *from, size_t size, int flags), (s, from, size, flags))                \
    ROW(int, -1, zmq_setsockopt, (void *s, int option, const void *value, size_t size), (s, option, value, size))      \
    ROW(void *, NULL, zmq_socket, (void *context, int type), (context, type))                                          \
    ROW(int, -1, zmq_socket_monitor, (void *s, const char *endpoint, int events), (s, endpoint, events))               \
    ROW(const char *, LIBRARY " is not there", zmq_strerror, (int number), (number))                                   \
    ROW(uint8_t *, NULL, zmq_z85_decode, (uint8_t * to, const char *from), (to, from))                                 \
    ROW(char *, NULL, zmq_z85_encode, (char *to, const uint8_t *from, size_t size), (to, from, size))

#define ROW(type, fails, name, parameters, arguments) type(*name) parameters;
static struct {
    ROWS(ROW)
} late; /* all of it is written once, before pthread_once returns */
#undef ROW
static bool loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    loaded = library != NULL;
#define ROW(type, fails, name, parameters, arguments)                                                                  \
    late.name = loaded ? (__typeof__(late.name))dlsym(library, #name) : NULL;                                          \
    loaded = late.name != NULL;
    ROWS(ROW)
#undef ROW
    if (!loaded) {
        roll_say("%s: no daemon can be asked, and none is told", dlerror());
    }
}

static bool is_loaded(void)
{
    int number = errno;
    (void)pthread_once(&once, load);
    errno = loaded ? number : ENOSYS;
    return loaded;
}

#define ROW(type, fails, name, parameters, arguments)                                                                  \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return is_loaded() ? late.name arguments : (fails);                                                            \
    }
ROWS(ROW)
#undef ROW
