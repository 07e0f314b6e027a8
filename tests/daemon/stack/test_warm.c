/*
 * test_warm.c: the thread that reads debug information ahead, under owners that come and go in several threads, while
 * it closes the files whenever it has nothing to do: it waits for no time here. What it does wrong shows under the
 * sanitizers above all (scripts/threads).
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/stack/symbol_warm.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS   3
#define ROUNDS    6
#define ADDRESSES 64u

static char self[4096];
static uint64_t bias;
static _Atomic unsigned rests;

__attribute__((noinline)) void looked_for(void);
void looked_for(void)
{
    static volatile int keep;
    keep++;
}

static int find_bias(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(uint64_t *)arg = info->dlpi_addr;
    return 1; /* the first one is the program */
}

/* Nothing comes for as long as it is waited for: that is over at once. */
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *end);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *end);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *end)
{
    struct timespec past = {.tv_sec = 1};
    (void)end;
    int err = __real_pthread_cond_timedwait(cond, mutex, &past);
    rests += err == ETIMEDOUT;
    return err;
}

static bool is_found(struct roll_symbol_file *file)
{
    struct roll_symbol_frame frame[4];
    uint64_t address = (uint64_t)(uintptr_t)looked_for - bias;
    return roll_symbol_file_frames(file, address, frame, 4) == 1 && strcmp(frame[0].function, "looked_for") == 0;
}

static void ask(roll_symbol_warm_t *warm, struct roll_symbol_file *file)
{
    for (unsigned i = 0; i < ADDRESSES; i++) {
        roll_symbol_warm_add(warm, file, (uint64_t)(uintptr_t)looked_for - bias + i);
    }
}

/* Owners with two files each: the first round goes while much of what it asked for waits, the second with nothing. */
static void *come_and_go(void *argument)
{
    unsigned *bad = argument;
    for (int round = 0; round < ROUNDS; round++) {
        roll_symbol_warm_t *warm = roll_symbol_warm_new();
        struct roll_symbol_file *file[2];
        for (int i = 0; i < 2; i++) {
            file[i] = roll_symbol_file_new(self, strlen(self), (const uint8_t *)"", 0);
        }
        if (!warm || !file[0] || !file[1]) {
            (*bad)++;
        } else {
            ask(warm, file[0]);
            *bad += !is_found(file[0]);
            ask(warm, file[1]);
            *bad += round % 2 ? !is_found(file[1]) : 0;
        }
        roll_symbol_warm_destroy(&warm);
        *bad += warm != NULL;
        for (int i = 0; i < 2; i++) { /* nobody looks into them any more */
            *bad += file[i] && !is_found(file[i]);
            roll_symbol_file_destroy(&file[i]);
        }
    }
    return NULL;
}

static void owners_come_and_go_in_several_threads(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    unsigned bad[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, come_and_go, &bad[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(bad[i], 0);
    }
}

/* While one owner stays, its files rest whenever nothing is asked; who asks meanwhile is told the same. */
static void files_rest_while_they_are_asked(void **state)
{
    (void)state;
    roll_symbol_warm_t *warm = roll_symbol_warm_new();
    struct roll_symbol_file *file = roll_symbol_file_new(self, strlen(self), (const uint8_t *)"", 0);
    pthread_t thread;
    unsigned bad = 0;
    assert_non_null(warm);
    assert_non_null(file);
    assert_int_equal(pthread_create(&thread, NULL, come_and_go, &bad), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct roll_symbol_frame frame;
        roll_symbol_warm_add(warm, file, (uint64_t)(uintptr_t)looked_for - bias);
        (void)roll_symbol_file_frames(file, (uint64_t)round, &frame, 1); /* new, so it is opened */
        assert_true(is_found(file));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(bad, 0);
    unsigned before = rests;
    roll_symbol_warm_add(warm, file, (uint64_t)(uintptr_t)looked_for - bias + ADDRESSES);
    for (int i = 0; (rests == before || roll_symbol_file_is_open(file)) && i < 30000; i++) {
        usleep(10000);
    }
    assert_true(rests > before);
    assert_false(roll_symbol_file_is_open(file));
    roll_symbol_warm_destroy(&warm);
    assert_true(is_found(file));
    roll_symbol_file_destroy(&file);
}

static int set_up(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    dl_iterate_phdr(find_bias, &bias);
    return n > 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_come_and_go_in_several_threads),
        cmocka_unit_test(files_rest_while_they_are_asked),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
