/*
 * fail_nth.c: a preloaded library that lets one call fail: the n-th allocation or system call that rollcall's own code
 * makes, or the n-th from one place in it.
 *
 * Own code is the program, or librollcall.so, when one of these is named in `ours`; libc (strdup, opendir, fopen) and
 * jansson are counted as whoever called them, which their stack tells. What other libraries do for themselves is left
 * alone: libzmq ends the process on a failed allocation of its own, which no caller could prevent. Calls of libc to
 * itself (the write of an fputs) cannot be seen from here; the driver's other tool for these is a full device.
 *
 * It works by names, as any preload does. A filter in the kernel (seccomp, ptrace) was rejected: it cannot tell who
 * calls, and slows down every call. All state is in a file that is shared with the driver, so that it outlives a crash.
 */
#include "tests/faults/fail_nth.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#define PART (-1)

static const char *const ours[] = {"rollcalld", "rollcall", "librollcall.so"};
static const char *const through[] = {"libc.so.6", "libjansson.so.4", "fail_nth.so"};

enum { OURS = sizeof(ours) / sizeof(*ours), THROUGH = sizeof(through) / sizeof(*through), RANGES = 64 };

/* Where an object has code. */
struct range {
    uintptr_t from, to, base;
    int object; /* 1 and more: one of ours; -1: one that is looked through */
};

static struct fail_state *state;
static struct range ranges[RANGES];
static int ranges_used;
static __thread bool inside __attribute__((tls_model("initial-exec")));
static __thread int writes_to __attribute__((tls_model("initial-exec"))); /* descriptor; what is said must be heard */

/* objects */

static int object_of(const char *path)
{
    char own[4096];
    if (path[0] == '\0') { /* the program itself */
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", own, sizeof(own) - 1);
        own[n > 0 ? n : 0] = '\0';
        path = own;
    }
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (int i = 0; i < OURS; i++) {
        if (strcmp(name, ours[i]) == 0) {
            return i + 1;
        }
    }
    for (int i = 0; i < THROUGH; i++) {
        if (strcmp(name, through[i]) == 0) {
            return -1;
        }
    }
    return 0;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    int object = object_of(info->dlpi_name);
    for (int i = 0; object != 0 && i < info->dlpi_phnum && ranges_used < RANGES; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
            uintptr_t from = info->dlpi_addr + p->p_vaddr;
            ranges[ranges_used++] = (struct range){from, from + p->p_memsz, info->dlpi_addr, object};
        }
    }
    return 0;
}

static const struct range *range_of(uintptr_t at)
{
    for (int i = 0; i < ranges_used; i++) {
        if (at >= ranges[i].from && at < ranges[i].to) {
            return &ranges[i];
        }
    }
    return NULL;
}

/* The place in our code from which a call comes. Allocations of the programs come through daemon/base/memory_wrap.c,
 * whoever made them, and that frame is skipped. */
struct walk {
    uintptr_t at;
    unsigned frames;
    bool wrapped;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *argument)
{
    struct walk *walk = argument;
    walk->at = _Unwind_GetIP(context);
    const struct range *r = range_of(walk->at);
    if (!r || ++walk->frames >= 64) {
        return _URC_END_OF_STACK;
    }
    if (r->object > 0 && walk->wrapped) {
        walk->wrapped = false;
        return _URC_NO_REASON;
    }
    return r->object < 0 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/* The range of the caller, whose return address is `*at` at first; NULL when it is not ours. */
static const struct range *caller(enum fail_kind kind, uintptr_t *at)
{
    const struct range *r = range_of(*at);
    if (r && (r->object < 0 || kind == FAIL_ALLOCATION)) {
        struct walk walk = {.wrapped = kind == FAIL_ALLOCATION};
        _Unwind_Backtrace(step, &walk);
        *at = walk.at;
        r = range_of(*at);
    }
    return r && r->object > 0 ? r : NULL;
}

/* counting */

static uint64_t count_site(uint64_t key)
{
    for (unsigned i = (unsigned)(key * UINT64_C(0x9e3779b97f4a7c15) >> 52), tries = 0; tries < FAIL_SITES;
         i = (i + 1) % FAIL_SITES, tries++) {
        uint64_t free_ = 0;
        if (atomic_load(&state->sites[i].key) == key ||
            atomic_compare_exchange_strong(&state->sites[i].key, &free_, key) || free_ == key) {
            return atomic_fetch_add(&state->sites[i].seen, 1) + 1;
        }
    }
    return UINT64_MAX;
}

/* Whether what has failed so once fails again and again; an interruption, for one, does not. */
static bool lasts(int error)
{
    return error > 0 && error != EINTR && error != EAGAIN;
}

/* Whether this call is to fail, and with which error; 0 = no. */
static int fails(enum fail_kind kind, unsigned number, const char *name, const int *errors, uint32_t n, void *from)
{
    if (!state || inside) {
        return 0;
    }
    inside = true;
    int error = 0, saved = errno;
    uintptr_t at = (uintptr_t)from;
    const struct range *r = caller(kind, &at);
    if (r) {
        uint64_t key = (uint64_t)r->object << 56 | (uint64_t)number << 40 | (at - r->base);
        uint64_t of_all = atomic_fetch_add(&state->seen[kind], 1) + 1, of_site = count_site(key);
        uint64_t seen = state->site ? of_site : of_all;
        bool chosen = state->kind == (uint32_t)kind && state->nth > 0 && (state->site == 0 || state->site == key);
        bool later = state->from && seen > state->nth && writes_to != STDERR_FILENO && state->number == number &&
                     lasts(state->error);
        if (chosen && (seen == state->nth || later)) {
            error = errors[state->variant % n];
            if (atomic_fetch_add(&state->failed, 1) == 0) {
                state->offset = at - r->base;
                state->error = error;
                state->number = number;
                state->variants = n;
                snprintf(state->function, sizeof(state->function), "%s%s", name,
                         writes_to == STDERR_FILENO ? " of words" : "");
                snprintf(state->object, sizeof(state->object), "%s", ours[r->object - 1]);
            }
        }
    }
    errno = saved;
    inside = false;
    return error;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ROLL_FAIL_STATE");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) {
        return;
    }
    dl_iterate_phdr(add_object, NULL);
    void *page = (void *)syscall(SYS_mmap, NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    struct walk walk = {.wrapped = false};
    _Unwind_Backtrace(step, &walk); /* what it needs for the first time it gets here */
    state = page == MAP_FAILED ? NULL : page;
}

/* The function of libc. dlvsym is asked, because librollcall.so has a dlsym of its own. */
static void *find(const char *name)
{
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.33", "GLIBC_2.34", "GLIBC_2.3.2",
                                           "GLIBC_2.15",  "GLIBC_2.28", "GLIBC_2.7",  "GLIBC_2.4",  "GLIBC_2.9",
                                           "GLIBC_2.25",  "GLIBC_2.8",  "GLIBC_2.3",  "GLIBC_2.2.6"};
    static void *libc;
    bool was = inside;
    inside = true;
    libc = libc ? libc : dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *found = NULL;
    /* The newest version that there is. */
    for (size_t i = 0; libc && i < sizeof(versions) / sizeof(*versions); i++) {
        void *here = dlvsym(libc, name, versions[i]);
        found = here ? here : found;
    }
    inside = was;
    if (!found) {
        static const char lost[] = "fail_nth: libc has no ";
        (void)!syscall(SYS_write, 2, lost, sizeof(lost) - 1);
        (void)!syscall(SYS_write, 2, name, strlen(name));
        _exit(126);
    }
    return found;
}

/* allocations */

enum {
    MALLOC = 1,
    CALLOC,
    REALLOC,
    ALIGNED,
#define FAIL_CALL(type, name, ...) NUMBER_##name,
#define FAIL_BYTES(name, ...)      NUMBER_##name,
#define FAIL_CODE(name, ...)       NUMBER_##name,
#define FAIL_AFTER(name, ...)      NUMBER_##name,
#include "tests/faults/fail_nth.def"
#undef FAIL_CALL
#undef FAIL_BYTES
#undef FAIL_CODE
#undef FAIL_AFTER
    NUMBER_open,
    NUMBER_openat,
    NUMBER_clone,
    NUMBER_syscall,
};

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *at, size_t bytes);
extern void *__libc_memalign(size_t to, size_t bytes);

static const int no_memory[] = {ENOMEM};

static bool no_room(unsigned number, const char *name, void *from)
{
    if (fails(FAIL_ALLOCATION, number, name, no_memory, 1, from)) {
        errno = ENOMEM;
        return true;
    }
    return false;
}

#define FROM __builtin_return_address(0)

void *malloc(size_t bytes)
{
    return no_room(MALLOC, "malloc", FROM) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return no_room(CALLOC, "calloc", FROM) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *at, size_t bytes)
{
    return no_room(REALLOC, "realloc", FROM) ? NULL : __libc_realloc(at, bytes);
}

void *aligned_alloc(size_t to, size_t bytes)
{
    return no_room(ALIGNED, "aligned_alloc", FROM) ? NULL : __libc_memalign(to, bytes);
}

int posix_memalign(void **out, size_t to, size_t bytes)
{
    void *at = no_room(ALIGNED, "posix_memalign", FROM) ? NULL : __libc_memalign(to, bytes);
    *out = at ? at : *out;
    return at ? 0 : ENOMEM;
}

/* system calls */

/* Types that would make rows of the table too long. */
typedef const struct iovec IOVEC;
typedef const posix_spawn_file_actions_t ACTIONS;
typedef const posix_spawnattr_t ATTR;
typedef char *const *ARRAY;

#define HALF(bytes)     ((bytes) > 1 ? (bytes) / 2 : (bytes))
#define FAIL_COUNT(...) (sizeof((const int[]){__VA_ARGS__}) / sizeof(int))
#define FAIL_REAL(type, name, parameters)                                                                              \
    static type(*real) parameters;                                                                                     \
    if (!real) {                                                                                                       \
        void *found = find(#name);                                                                                     \
        memcpy(&real, &found, sizeof(real));                                                                           \
    }
#define FAILS(name, ...)                                                                                               \
    fails(FAIL_SYSTEM, NUMBER_##name, #name, (const int[]){__VA_ARGS__}, FAIL_COUNT(__VA_ARGS__), FROM)

#define FAIL_CALL(type, name, parameters, arguments, value, ...)                                                       \
    type name parameters                                                                                               \
    {                                                                                                                  \
        FAIL_REAL(type, name, parameters)                                                                              \
        int error = FAILS(name, __VA_ARGS__);                                                                          \
        if (error > 0) {                                                                                               \
            errno = error;                                                                                             \
            return value;                                                                                              \
        }                                                                                                              \
        return real arguments;                                                                                         \
    }
#define FAIL_BYTES(name, parameters, arguments, half, ...)                                                             \
    ssize_t name parameters                                                                                            \
    {                                                                                                                  \
        FAIL_REAL(ssize_t, name, parameters)                                                                           \
        writes_to = fd;                                                                                                \
        int error = FAILS(name, __VA_ARGS__);                                                                          \
        writes_to = -1;                                                                                                \
        if (error > 0) {                                                                                               \
            errno = error;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
        return error == PART ? real half : real arguments;                                                             \
    }
#define FAIL_CODE(name, parameters, arguments, ...)                                                                    \
    int name parameters                                                                                                \
    {                                                                                                                  \
        FAIL_REAL(int, name, parameters)                                                                               \
        int error = FAILS(name, __VA_ARGS__);                                                                          \
        return error > 0 ? error : real arguments;                                                                     \
    }
#define FAIL_AFTER(name, parameters, arguments, ...)                                                                   \
    int name parameters                                                                                                \
    {                                                                                                                  \
        FAIL_REAL(int, name, parameters)                                                                               \
        int error = FAILS(name, __VA_ARGS__), result = real arguments;                                                 \
        if (error > 0) {                                                                                               \
            errno = error;                                                                                             \
        }                                                                                                              \
        return error > 0 ? -1 : result;                                                                                \
    }
#include "tests/faults/fail_nth.def"

/* Functions with a number of arguments that varies. */

int open(const char *path, int flags, ...)
{
    FAIL_REAL(int, open, (const char *, int, ...))
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, unsigned) : 0;
    va_end(args);
    int error = FAILS(open, EMFILE, EACCES, ENOENT, EINTR);
    if (error > 0) {
        errno = error;
        return -1;
    }
    return real(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    FAIL_REAL(int, openat, (int, const char *, int, ...))
    va_list args;
    va_start(args, flags);
    unsigned mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, unsigned) : 0;
    va_end(args);
    int error = FAILS(openat, EMFILE, EACCES, ENOENT, EINTR);
    if (error > 0) {
        errno = error;
        return -1;
    }
    return real(dir, path, flags, mode);
}

int clone(int (*run)(void *), void *stack, int flags, void *argument, ...)
{
    FAIL_REAL(int, clone, (int (*)(void *), void *, int, void *, ...))
    int error = FAILS(clone, EAGAIN, ENOMEM);
    if (error > 0) {
        errno = error;
        return -1;
    }
    return real(run, stack, flags, argument); /* nobody here asks for its identifiers */
}

long syscall(long number, ...)
{
    FAIL_REAL(long, syscall, (long, ...))
    va_list args;
    va_start(args, number);
    long a[6];
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(args, long);
    }
    va_end(args);
    int error = inside ? 0 : FAILS(syscall, ENOSYS, EPERM);
    if (error > 0) {
        errno = error;
        return -1;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
