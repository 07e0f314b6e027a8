/*
 * harsh.c: programs that a preloaded library easily disturbs: `harsh MODE`. Each mode does something that programs may
 * do, and that a library which assumes too much would break or record wrongly. Exit status 0: the program was not
 * disturbed.
 */
#include "interposer/wrap/nccl_types.h"
#include "moe_core/include/moe/observe.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROLL_API_CALL(id, name, params, ...)      ncclResult_t name params;
#define ROLL_API_LIFE(id, name, params, args)     ncclResult_t name params;
#define ROLL_API_PASS(id, ret, name, params, ...) ret name params;
#define ROLL_API_JUMP(id, name)
#define ROLL_API_VERSION 22809
#include "interposer/wrap/api.def"
#undef ROLL_API_VERSION

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "harsh: line %d: %s\n", __LINE__, #condition);                                             \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static char buffer[64];
static ncclConfig_t nonblocking = {.size = sizeof(nonblocking), .magic = ROLL_NCCL_CONFIG_MAGIC, .version = 22809};

static ncclComm_t new_comm(int rank, int nranks)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclGetUniqueId(&id);
    return ncclCommInitRank(&comm, nranks, id, rank) == ncclSuccess ? comm : NULL;
}

static int reduce(ncclComm_t comm, size_t count)
{
    return ncclAllReduce(buffer, buffer, count, 0, 0, comm, NULL) == ncclSuccess ? 0 : 1;
}

static void *first_calls(void *failed)
{
    ncclComm_t comm = new_comm(0, 2);
    *(int *)failed = comm == NULL || reduce(comm, 1) != 0 || ncclGroupStart() != 0 || reduce(comm, 2) != 0 ||
                     ncclGroupEnd() != 0 || ncclCommDestroy(comm) != 0;
    return NULL;
}

/* All work of a first use is done on the smallest stack that a thread can have. */
static int small_stack(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    int failed = 1;
    CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, (size_t)PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&thread, &attr, first_calls, &failed) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && failed == 0);
    return 0;
}

/* A launcher that makes the id and forks its ranks. Prints the rank's process id. */
static int fork_after_id(void)
{
    ncclUniqueId id;
    int status = 0;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    pid_t child = fork();
    if (child == 0) {
        ncclComm_t comm = NULL;
        exit(ncclCommInitRank(&comm, 2, id, 1) == ncclSuccess && reduce(comm, 1) == 0 ? 7 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    printf("%d\n", (int)child);
    return 0;
}

static long address_space_pages(void)
{
    long pages = -1;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL && fscanf(file, "%ld", &pages) != 1) {
        pages = -1;
    }
    if (file != NULL) {
        fclose(file);
    }
    return pages;
}

/* Calls on a communicator for which there was no room: no such call may take memory either. */
static int no_room(void)
{
    for (int i = 0; i < 9000; i++) {
        CHECK(new_comm(0, 2) != NULL);
    }
    ncclComm_t comm = new_comm(0, 65536);
    CHECK(comm != NULL && reduce(comm, 1) == 0);
    long before = address_space_pages();
    for (size_t i = 0; i < 2000; i++) {
        CHECK(reduce(comm, i) == 0);
    }
    CHECK(before > 0 && address_space_pages() - before < 1024);
    return 0;
}

/* Nobody reads standard error any more: SIGPIPE would end the job; or its pipe is full: writing would block. */
static int deaf_stderr(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(dup2(ends[1], 2) == 2);
    close(ends[0]);
    return new_comm(0, 2) != NULL ? 0 : 1;
}

static int full_stderr(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[1], buffer, sizeof(buffer)) > 0) {
    }
    CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], 2) == 2);
    return new_comm(0, 2) != NULL ? 0 : 1;
}

static volatile sig_atomic_t handled;

static void init_in_handler(int number)
{
    (void)number;
    handled++;
    new_comm(0, 2);
}

static void unknown_in_handler(int number)
{
    (void)number;
    handled++;
    reduce((ncclComm_t)(void *)buffer, 1);
}

static void timer(int us, void (*handler)(int))
{
    struct itimerval interval = {.it_interval = {0, us}, .it_value = {0, us}};
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &interval, NULL);
}

/* Handlers that call NCCL while a slow path of ours holds its lock. */
static int signals_at_start(void)
{
    timer(50, init_in_handler);
    ncclComm_t comm = new_comm(0, 2);
    for (int i = 0; i < 1000 || handled < 10; i++) {
        CHECK(comm != NULL && reduce(comm, 1) == 0);
    }
    timer(0, SIG_IGN);
    return 0;
}

static int signals_in_init_all(void)
{
    ncclComm_t all[16];
    CHECK(new_comm(0, 2) != NULL);
    timer(30, unknown_in_handler);
    for (int i = 0; i < 3000 || handled < 100; i++) {
        CHECK(ncclCommInitAll(all, 16, NULL) == ncclSuccess);
        for (int k = 0; k < 16; k++) {
            CHECK(ncclCommDestroy(all[k]) == ncclSuccess);
        }
    }
    timer(0, SIG_IGN);
    return 0;
}

static void *cancelled(void *unused)
{
    pthread_cancel(pthread_self()); /* takes effect at the first cancellation point, wherever that is */
    new_comm(0, 2);
    pthread_testcancel();
    return unused;
}

/* A thread is cancelled while it starts the recording: the others go on. */
static int cancel(void)
{
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    ncclComm_t comm = new_comm(0, 2);
    CHECK(comm != NULL && reduce(comm, 1) == 0);
    return 0;
}

static void progress(void)
{
    ((void (*)(void))dlsym(RTLD_DEFAULT, "fake_progress"))();
}

static void set(const char *name, int value)
{
    *(int *)dlsym(RTLD_DEFAULT, name) = value;
}

/* Nonblocking children made one after another through one variable, and used later. */
static int one_variable(void)
{
    ncclComm_t parent = new_comm(0, 4), child = NULL, kept[2];
    ncclResult_t async = ncclInProgress;
    for (int i = 0; i < 2; i++) {
        child = NULL;
        CHECK(ncclCommSplit(parent, 5 + i, 0, &child, &nonblocking) == ncclInProgress && child == NULL);
        progress();
        CHECK(ncclCommGetAsyncError(parent, &async) == ncclSuccess && async == ncclSuccess && child != NULL);
        kept[i] = child;
    }
    CHECK(reduce(kept[1], 1) == 0 && reduce(kept[0], 2) == 0);
    /* Nobody asked for the older one's handle, so it stays unknown; the newer one must not be taken for it. */
    for (int i = 0; i < 2; i++) {
        child = NULL;
        CHECK(ncclCommSplit(parent, 7 + i, 0, &child, &nonblocking) == ncclInProgress && child == NULL);
        progress();
    }
    return reduce(child, 3);
}

/* A group whose communicators are there at its end, later, or written to a place that has gone meanwhile. */
static int late_groups(void)
{
    ncclComm_t all[2], late = NULL,
                       *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ncclUniqueId id;
    CHECK(ncclGroupStart() == ncclSuccess && ncclCommInitAll(all, 2, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess && reduce(all[1], 1) == 0);
    set("fake_late", 1);
    ncclGetUniqueId(&id);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommInitRankConfig(&late, 2, id, 1, &nonblocking) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInProgress && late == NULL);
    set("fake_late", 0);
    progress();
    CHECK(late != NULL && reduce(late, 2) == 0);
    set("fake_early", 1);
    CHECK(gone != MAP_FAILED && ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommInitRank(gone, 2, id, 0) == ncclSuccess && *gone != NULL);
    CHECK(munmap(gone, 4096) == 0 && ncclGroupEnd() == ncclSuccess);
    set("fake_early", 0);
    return 0;
}

/* Groups that are only simulated leave nothing behind, however many there are. */
static int simulated(void)
{
    ncclComm_t never = NULL, parent = new_comm(0, 4), child = NULL;
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    for (int i = 0; i < 1000; i++) {
        CHECK(ncclGroupStart() == ncclSuccess && ncclCommInitRank(&never, 2, id, 1) == ncclSuccess);
        CHECK(ncclGroupSimulateEnd(NULL) == ncclSuccess);
    }
    CHECK(ncclCommSplit(parent, 1, 0, &child, &nonblocking) == ncclInProgress);
    progress();
    return reduce(child, 1);
}

/* A return address that lies in no object, and right after it a call from an object that was not seen before. */
static int __attribute__((noinline)) nowhere(ncclComm_t comm)
{
    volatile uintptr_t *frame = __builtin_frame_address(0);
    uintptr_t saved = frame[1];
    frame[1] = 0x12345670;
    int failed = reduce(comm, 1);
    frame[1] = saved;
    return failed;
}

static int new_object(void)
{
    int (*plugin)(int, char **) = NULL;
    char mode[] = "many", count[] = "1", *argv[] = {mode, mode, count, NULL};
    ncclComm_t comm = new_comm(0, 2);
    void *handle = dlopen(getenv("ROLL_TEST_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    plugin = (int (*)(int, char **))dlsym(handle, "job_main");
    CHECK(plugin != NULL && nowhere(comm) == 0);
    return plugin(3, argv);
}

static int odd_phase(void)
{
    void (*observe)(const struct moe_event *) = (void (*)(const struct moe_event *))dlsym(RTLD_DEFAULT, "moe_observe");
    struct moe_event event = {.size = sizeof(event), .kind = MOE_EV_COUNTS, .phase = 200, .step = 1};
    ncclComm_t comm = new_comm(0, 2);
    observe(&event);
    return reduce(comm, 1);
}

static sigjmp_buf back;

static void jump_back(int number)
{
    siglongjmp(back, number);
}

/* A home-made timeout: the program leaves a call that hangs by longjmp. */
static int jump(void)
{
    ncclComm_t comm = new_comm(0, 2);
    signal(SIGALRM, jump_back);
    if (sigsetjmp(back, 1) == 0) {
        set("fake_block", 1);
        ualarm(20000, 0);
        reduce(comm, 1);
        return 1;
    }
    set("fake_block", 0);
    CHECK(ncclGroupStart() == ncclSuccess && reduce(comm, 2) == 0 && ncclGroupEnd() == ncclSuccess);
    return reduce(comm, 3);
}

/* Counts calls on their way to libc: the preload binds to these functions, because the program comes first. */
static unsigned long locks, allocations;
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*real)(pthread_mutex_t *);
    if (real == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        memcpy(&real, &found, sizeof(real));
    }
    locks++;
    return real(mutex);
}

extern void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

/* From here on a system call ends the process, except those of the clock (where that is one) and of the exit. */
static int forbid_system_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(rules) / sizeof(rules[0]), rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#define CALL      failed += (int)ncclAllReduce(buffer, buffer, 1, 0, 0, comm, STREAM(i % 100));
#define TEN(x)    x x x x x x x x x x
#define STREAM(n) ((cudaStream_t)(uintptr_t)(0x7000 + 16 * (n)))

/* Three hundred call sites, a hundred streams, in and out of groups. */
static int every_site(ncclComm_t comm, int i)
{
    int failed = 0;
    TEN(TEN(CALL CALL))
    ncclGroupStart();
    TEN(TEN(CALL))
    ncclGroupEnd();
    failed += ncclSend(buffer, 1, 0, 1, comm, STREAM(i % 100)) != ncclSuccess ||
              ncclRecv(buffer, 1, 0, 1, comm, NULL) != ncclSuccess;
    return failed;
}

/* A call site or stream that was used once costs neither memory nor a system call when it is used again, in any order.
 * It costs a lock only where more call sites fall into one bucket than it holds: here seldom more than once in two
 * hundred calls. */
static int hot(void)
{
    ncclComm_t one = new_comm(0, 2), two = new_comm(0, 2), unknown = (ncclComm_t)(void *)buffer;
    unsigned long locks_before = 0, allocations_before = 0;
    int failed = 0;
    for (int i = 0; i < 300; i++) { /* one loop, because its own place is part of the call sites */
        if (i == 100) {
            locks_before = locks;
            allocations_before = allocations;
            if (!forbid_system_calls()) {
                return 77;
            }
        }
        failed += every_site(one, i) + every_site(two, i) + every_site(unknown, i);
    }
    return failed != 0 ? 1 : locks - locks_before > 2000 ? 3 : allocations != allocations_before ? 4 : 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} modes[] = {
    {"small-stack", small_stack},
    {"fork-after-id", fork_after_id},
    {"no-room", no_room},
    {"deaf-stderr", deaf_stderr},
    {"full-stderr", full_stderr},
    {"signals-at-start", signals_at_start},
    {"signals-in-init-all", signals_in_init_all},
    {"cancel", cancel},
    {"one-variable", one_variable},
    {"late-groups", late_groups},
    {"simulated", simulated},
    {"new-object", new_object},
    {"odd-phase", odd_phase},
    {"jump", jump},
    {"hot", hot},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].run();
        }
    }
    fprintf(stderr, "harsh: no such mode\n");
    return 2;
}
