/*
 * front.c: a libnccl.so.2 to be named where a program asks for NCCL's path (VLLM_NCCL_SO_PATH, SGLANG_NCCL_SO_PATH):
 * every function is a jump to librollcall.so's wrapper, which forwards to the real NCCL (front_open.c finds it).
 *
 * Compiled once for each release that brought functions, with ROLL_API_VERSION its number: functions that this NCCL
 * lacks are not in the file, so that a program which looks a function up gets the truth. One front with every name was
 * rejected for that reason: the loader has no symbols that appear and disappear at run time. pnccl names go to the real
 * functions past the wrappers, as in NCCL.
 *
 * librollcall.so is opened at the first call: the one that is preloaded, else the one beside which we are installed.
 * The front does not name librollcall.so as needed (DT_NEEDED), because a lookup in the front would then also search
 * librollcall.so, and find every name of every release.
 */
#include "interposer/bind/front.h"
#include "interposer/bind/compat.h"
#include "interposer/bind/thunk.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if ROLL_THUNKS

/* Marks the file as one of ours, and says for which release it is. */
extern const int roll_front;
ROLL_EXPORT const int roll_front = ROLL_API_VERSION;

/* Addresses by id, twice: of the nccl names, and from ROLL_API_LIMIT on of the pnccl names. */
extern roll_function_t roll_front_table[2 * ROLL_API_LIMIT] __attribute__((visibility("hidden")));
roll_function_t roll_front_table[2 * ROLL_API_LIMIT];

/* Always 0: a front has only one NCCL behind it, whatever object calls. */
extern const unsigned roll_front_never __attribute__((visibility("hidden")));
const unsigned roll_front_never = 0;

roll_function_t roll_front_find(unsigned index, uintptr_t pc) __attribute__((visibility("hidden"), used));

typedef __typeof__(&roll_front_function) roll_front_function_t;

/* Opens librollcall.so by its place relative to this front, which is LIBDIR/rollcall/front/RELEASE/libnccl.so.2. */
static void *open_beside(void)
{
    const struct link_map *map = roll_object_of(&roll_front);
    char path[4096];
    size_t n = map != NULL ? strnlen(map->l_name, sizeof(path)) : sizeof(path);
    if (n >= sizeof(path)) {
        return NULL;
    }
    memcpy(path, map->l_name, n + 1);
    for (int up = 0; up < 4; up++) {
        char *slash = strrchr(path, '/');
        if (slash == NULL) {
            return NULL;
        }
        *slash = '\0';
    }
    n = strlen(path);
    if (n + sizeof("/librollcall.so") > sizeof(path)) {
        return NULL;
    }
    memcpy(path + n, "/librollcall.so", sizeof("/librollcall.so"));
    return roll_dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Says that librollcall.so is missing: once, and not where writing would block or raise a signal. The function of
 * librollcall.so for this purpose cannot be used, because that library is missing. */
static void say_alone(void)
{
    static _Atomic bool said;
    static const char line[] =
        "rollcall: a front for NCCL is loaded, but librollcall.so is not and was not found beside it: "
        "every call fails; name the real NCCL instead\n";
    const char *quiet = getenv("ROLLCALL_QUIET");
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    if ((quiet == NULL || strcmp(quiet, "1") != 0) && !atomic_exchange(&said, true) && poll(&ready, 1, 0) == 1 &&
        ready.revents == POLLOUT) {
        ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);
        (void)n;
    }
}

/* The function of librollcall.so that finds NCCL's functions. NULL where there is no librollcall.so: then no call can
 * be forwarded, because only that library knows where NCCL is. */
static roll_front_function_t connect_library(void)
{
    static roll_front_function_t cached;
    roll_front_function_t function = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
    if (function == NULL) {
        void *library = roll_dlopen("librollcall.so", RTLD_NOW | RTLD_NOLOAD);
        library = library != NULL ? library : open_beside();
        library = library != NULL ? library : roll_dlopen("librollcall.so", RTLD_NOW | RTLD_LOCAL);
        void *found = library != NULL ? roll_dlsym(library, "roll_front_function") : NULL;
        memcpy(&function, &found, sizeof(function));
        __atomic_store_n(&cached, function, __ATOMIC_RELEASE);
    }
    return function;
}

static ncclResult_t absent(void)
{
    return ncclInvalidUsage;
}

static ncclResult_t nothing_behind(void)
{
    return ncclSystemError;
}

/* The answer of a function that returns a text. It must not be NULL, because callers print it unchecked. */
static const char *no_text(void)
{
    return "there is no NCCL behind the front";
}

static roll_function_t instead_of(unsigned id, int there)
{
    bool text = id == ROLL_API_ncclGetErrorString || id == ROLL_API_ncclGetLastError;
    return text ? (roll_function_t)no_text : there ? (roll_function_t)absent : (roll_function_t)nothing_behind;
}

roll_function_t roll_front_find(unsigned index, uintptr_t pc)
{
    (void)pc;
    int there = 0;
    int saved = errno;
    roll_front_function_t ask = connect_library();
    if (ask == NULL) {
        say_alone();
    }
    roll_function_t function =
        ask != NULL ? ask(&roll_front, index % ROLL_API_LIMIT, index >= ROLL_API_LIMIT, &there) : NULL;
    errno = saved;
    if (function != NULL) {
        __atomic_store_n(&roll_front_table[index], function, __ATOMIC_RELEASE);
        return function;
    }
    return instead_of(index % ROLL_API_LIMIT, there);
}

ROLL_THUNK_SLOW(roll_front_find)

_Static_assert(ROLL_API_LIMIT == 160, "the number in the next line");
#define FRONT(id, name)                                                                                                \
    ROLL_THUNK(#name, roll_front_table, #id, roll_front_never)                                                         \
    ROLL_THUNK("p" #name, roll_front_table, "160+" #id, roll_front_never)
#define ROLL_API_CALL(id, name, ...)      FRONT(id, name)
#define ROLL_API_LIFE(id, name, ...)      FRONT(id, name)
#define ROLL_API_PASS(id, ret, name, ...) FRONT(id, name)
#define ROLL_API_JUMP(id, name)           FRONT(id, name)
#define ROLL_API_LONE(id, name)           ROLL_THUNK(#name, roll_front_table, #id, roll_front_never)
#include "interposer/wrap/api.def"

#endif
