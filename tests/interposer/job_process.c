/*
 * job_process.c: modes about the process that calls: errno, forks, threads, signal handlers, the agent that it starts,
 * frames that lead nowhere, and clocks.
 */
#include "tests/interposer/job.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* errno is what NCCL leaves, not what recording does. */
int job_mode_errno_is_kept(void)
{
    int *leave = dlsym(RTLD_DEFAULT, "fake_errno");
    ncclComm_t comm;
    ncclUniqueId id;
    errno = 77;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess && errno == 77);
    CHECK(ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess && errno == 77);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, STREAM(1)) == ncclSuccess && errno == 77);
    *leave = 78;
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, STREAM(2)) == ncclSuccess && errno == 78);
    *leave = 0;
    errno = 79;
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, (ncclComm_t)(void *)job_buffer, NULL) == ncclSuccess &&
          errno == 79);
    CHECK(ncclCommDestroy(comm) == ncclSuccess && errno == 79);
    return 0;
}

/* The child goes on calling; the ring belongs to the parent. */
int job_mode_forks(void)
{
    ncclComm_t comm = job_comm(0, 2);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    pid_t child = fork();
    if (child == 0) {
        ncclComm_t own = job_comm(0, 2);
        for (int i = 0; i < 100; i++) {
            ncclAllReduce(job_buffer, job_buffer, 99, 7, 0, comm, STREAM(i));
        }
        ncclGroupStart();
        ncclGroupEnd();
        ncclCommDestroy(own);
        exit(own != NULL ? 7 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); /* libc does not know of this child */
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            ncclAllReduce(job_buffer, job_buffer, 98, 7, 0, comm, NULL);
        }
        _exit(8);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 8);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 2, 7, 0, comm, NULL) == ncclSuccess);
    _exit(0); /* no destructor may run: the child would mark the ring finished */
}

/* Two threads on a communicator each, then both on one. */
int job_mode_threads(void)
{
    struct job_caller one = {job_comm(0, 2), 1, 5000}, two = {job_comm(0, 2), 2, 5000};
    pthread_t a, b;
    CHECK(pthread_create(&a, NULL, job_call_in_thread, &one) == 0 &&
          pthread_create(&b, NULL, job_call_in_thread, &two) == 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    struct job_caller race = {job_comm(0, 2), 3, 5000};
    CHECK(pthread_create(&a, NULL, job_call_in_thread, &race) == 0 &&
          pthread_create(&b, NULL, job_call_in_thread, &race) == 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    return 0;
}

static ncclComm_t in_handler;
static volatile sig_atomic_t handled;

static void call_from_handler(int number)
{
    (void)number;
    ncclAllReduce(job_buffer, job_buffer, 2, 7, 0, in_handler, NULL);
    handled++;
}

int job_mode_signals(void)
{
    struct itimerval every = {.it_interval = {0, 50}, .it_value = {0, 50}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = call_from_handler;
    action.sa_flags = SA_RESTART;
    in_handler = job_comm(0, 2);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (time_t start = time(NULL); handled <= 100 || (handled < 2000 && time(NULL) - start < 10);) {
        CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, in_handler, NULL) == ncclSuccess);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(handled > 100);
    return 0;
}

static volatile sig_atomic_t children_signalled;

static void count_child(int number)
{
    (void)number;
    children_signalled++;
}

/* The job that starts the agent: it must see no SIGCHLD and have no child to wait for. */
int job_mode_starts_agent(void)
{
    signal(SIGCHLD, count_child);
    int fd = dup(1);
    CHECK(fd > 2 && job_comm(0, 2) != NULL);
    usleep(300000);
    CHECK(children_signalled == 0);
    CHECK(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD);
    return 0;
}

/* Frame pointers that lead to no frame: recording must not follow them. Calls ncclAllReduce with this frame pointer. */
int job_wild_call(ncclComm_t comm, uintptr_t frame, void *data);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl job_wild_call\n"
        ".type job_wild_call,@function\n"
        "job_wild_call:\n"
        "  pushq %rbp\n"
        "  movq %rdi, %r9\n"
        "  movq %rsi, %rbp\n"
        "  movq %rdx, %rdi\n"
        "  movq %rdx, %rsi\n"
        "  movl $1, %edx\n"
        "  movl $7, %ecx\n"
        "  xorl %r8d, %r8d\n"
        "  pushq $0\n"
        "  pushq $0\n"
        "  call ncclAllReduce@PLT\n"
        "  addq $16, %rsp\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size job_wild_call, .-job_wild_call\n");
#else
int job_wild_call(ncclComm_t comm, uintptr_t frame, void *data)
{
    (void)frame;
    return (int)ncclAllReduce(data, data, 1, 7, 0, comm, NULL);
}
#endif

int job_mode_wild_frames(void)
{
    ncclComm_t comm = job_comm(0, 2);
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    uintptr_t wild[] = {0,
                        1,
                        8,
                        here + 1,
                        here + 8,
                        here | 7,
                        UINTPTR_MAX,
                        UINTPTR_MAX - 15,
                        (uintptr_t)job_buffer,
                        here - 64,
                        here + (1u << 20),
                        here + 4096};
    for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
        CHECK(job_wild_call(comm, wild[i], job_buffer) == 0);
    }
    return 0;
}

/* The count of each call is the time just before the call. */
int job_mode_clocks(void)
{
    ncclComm_t comm = job_comm(0, 2);
    for (int i = 0; i < 3000; i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        size_t ns = (size_t)now.tv_sec * 1000000000u + (size_t)now.tv_nsec;
        CHECK(ncclAllReduce(job_buffer, job_buffer, ns, 7, 0, comm, NULL) == ncclSuccess);
        usleep(i % 50 == 0 ? 12000 : 20);
    }
    return 0;
}
