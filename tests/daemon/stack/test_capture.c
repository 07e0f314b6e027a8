/*
 * test_capture.c: what daemon/stack/capture.c does where timing seldom takes it: the file itself is included, to begin
 * there.
 *
 * The looked-at process is a child of ours that tells by its exit status whether it noticed.
 */
#include "daemon/stack/capture.c"

#include "tests/trace/cmocka_all.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

static volatile uint64_t *shared; /* [0] counts, [1] is what the child waits for */

#define LATE_MS 200000 /* an end that only a hang reaches */

static void nap(long ms)
{
    const struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&ts, NULL) != 0) { /* a signal of our own */
    }
}

static char state_of(pid_t pid)
{
    struct roll_thread_info list[4];
    size_t all;
    return roll_target_threads(pid, list, 4, &all) > 0 ? list[0].state : '?';
}

static void wait_for_state(pid_t pid, char state)
{
    for (int i = 0; i < LATE_MS && state_of(pid) != state; i++) {
        nap(1);
    }
    assert_int_equal(state_of(pid), state);
}

/* A child that waits in epoll_wait until *gate is closed, and ends with 9 when that ends with EINTR. */
static pid_t waiting_child(int *gate)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct epoll_event event = {.events = EPOLLIN};
        int epoll = epoll_create1(0);
        close(ends[1]);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) != 0) {
            _exit(3);
        }
        int rc = epoll_wait(epoll, &event, 1, -1);
        _exit(rc < 0 && errno == EINTR ? 9 : 0);
    }
    close(ends[0]);
    *gate = ends[1];
    wait_for_state(pid, 'S');
    return pid;
}

static int end_of(pid_t pid)
{
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
    }
    assert_int_equal(got, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_wait_that_was_stopped_after_all_goes_on(void **test)
{
    (void)test;
    static struct roll_capture capture;
    struct roll_target *target;
    int error = 0, gate;
    pid_t pid = waiting_child(&gate);
    assert_int_equal(roll_target_open(pid, &target), 0);
    assert_int_equal(capture_stopped(target, pid, roll_mono_ns() + LATE_MS * ROLL_MS, &capture, &error), 0);
    assert_int_equal((long)capture.regs.rax,
                     -EINTR); /* a kernel that does not interrupt the call would make this test show nothing */
    roll_target_close(&target);
    nap(20);
    close(gate);
    assert_int_equal(end_of(pid), 0);
}

static void a_wait_is_read_without_a_stop(void **test)
{
    (void)test;
    static struct roll_capture capture;
    struct roll_target *target;
    int error = 0, gate;
    pid_t pid = waiting_child(&gate);
    struct roll_thread_info info = {.tid = pid, .state = 'S'};
    assert_int_equal(roll_target_open(pid, &target), 0);
    assert_int_equal(roll_capture_thread(target, &info, LATE_MS * ROLL_MS, &capture, &error), 0);
    assert_true(capture.blind);
    assert_int_equal(capture.stopped_ns, 0);
    assert_true(capture.bytes > 0);
    roll_target_close(&target);
    nap(20);
    close(gate);
    assert_int_equal(end_of(pid), 0);
}

/* vfork's parent sleeps where no signal reaches it: it stops when its child has ended, and that is after our patience.
 */
static void a_late_thread_is_let_go_whatever_we_are_at(void **test)
{
    (void)test;
    int signal, error = 0;
    shared[0] = shared[1] = 0;
    pid_t pid = fork();
    if (pid == 0) {
        pid_t child = vfork();
        if (child == 0) {
            for (int i = 0; shared[1] == 0 && i < LATE_MS; i++) {
                usleep(1000);
            }
            _exit(0);
        }
        for (int i = 0; i < LATE_MS; i++) {
            shared[0]++;
            usleep(1000);
        }
        _exit(1);
    }
    wait_for_state(pid, 'D');
    assert_int_equal(stop(pid, roll_mono_ns() + 5 * ROLL_MS, &signal, &error), ROLL_E_TIMEOUT);
    assert_int_equal(late.used, 1);
    shared[1] = 1;
    for (int i = 0; i < LATE_MS && shared[0] < 5; i++) { /* nobody here asks whether it has stopped */
        nap(1);
    }
    assert_true(shared[0] >= 5);
    assert_int_equal(roll_capture_release(), 0);
    kill(pid, SIGKILL);
    assert_int_equal(end_of(pid), 128 + SIGKILL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_that_was_stopped_after_all_goes_on),
        cmocka_unit_test(a_wait_is_read_without_a_stop),
        cmocka_unit_test(a_late_thread_is_let_go_whatever_we_are_at),
    };
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    puts("left out: native stacks are read on x86-64 only, and not under ThreadSanitizer");
    return 77;
}

#endif
