/*
 * test_compare.c: the page on which ranks compare their calls: which call is published, which differs, and which lines
 * are never believed.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"
#include "trace/compare.h"
#include "trace/err.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

static struct roll_compare page; /* a page of our own memory: the table needs no file */

static struct roll_compare_call call_of(uint64_t key, uint32_t seq, int32_t rank, uint64_t count)
{
    return (struct roll_compare_call){.key = key, .count = count, .seq = seq, .pid = 100, .rank = rank, .members = 1};
}

static enum roll_compare_answer publish(uint64_t key, uint32_t seq, int32_t rank, uint64_t count, uint32_t moment,
                                        struct roll_compare_cell **other)
{
    struct roll_compare_call call = call_of(key, seq, rank, count);
    return roll_compare_call(&page, &call, moment, roll_compare_word(key, seq, count), other);
}

static int clean(void **state)
{
    (void)state;
    memset(&page, 0, sizeof(page));
    return 0;
}

static void the_first_publishes_the_others_compare(void **state)
{
    (void)state;
    struct roll_compare_cell *other = NULL;
    struct roll_compare_call seen;
    uint32_t moment = 0;
    assert_int_equal(publish(7, 3, 0, 1024, 5, &other), ROLL_COMPARE_FIRST);
    assert_int_equal(publish(7, 3, 1, 1024, 6, &other), ROLL_COMPARE_SAME);
    assert_int_equal(publish(7, 3, 2, 512, 6, &other), ROLL_COMPARE_OTHER);
    assert_int_equal(roll_compare_read(other, 7, 3, &seen, &moment), ROLL_COMPARE_WHOLE);
    assert_int_equal(seen.count, 1024);
    assert_int_equal(seen.rank, 0);
    assert_int_equal(moment, 5);
    assert_int_equal(roll_compare_read(other, 7, 4, &seen, &moment), ROLL_COMPARE_FOREIGN);
    assert_int_equal(roll_compare_read(other, 8, 3, &seen, &moment), ROLL_COMPARE_FOREIGN);
    assert_int_equal(publish(7, 4, 2, 512, 6, &other), ROLL_COMPARE_FIRST);
    assert_int_equal(publish(8, 3, 2, 512, 6, &other), ROLL_COMPARE_FIRST);
}

/* The writer of the line was killed at each moment between claim and publication, or was overtaken. */
static void a_line_that_is_not_whole_is_never_believed(void **state)
{
    (void)state;
    struct roll_compare_cell *other = NULL, kept;
    struct roll_compare_call seen;
    uint32_t moment;
    publish(7, 3, 0, 1024, 5, &other);
    struct roll_compare_cell *line = roll_compare_find(&page, 7, 3);
    kept = *line;
    for (size_t cut = 8; cut < sizeof(kept); cut++) { /* byte `cut` was not written yet */
        memcpy(line, &kept, sizeof(kept));
        ((uint8_t *)line)[cut] ^= 0x41;
        assert_int_equal(publish(7, 3, 1, 512, 6, &other), ROLL_COMPARE_OTHER);
        assert_int_equal(roll_compare_read(other, 7, 3, &seen, &moment), ROLL_COMPARE_TORN);
        assert_int_equal(publish(7, 3, 1, 1024, 6, &other), ROLL_COMPARE_SAME);
    }
    memset(line, 0, sizeof(*line)); /* claimed, and nothing more */
    atomic_store(&line->word, roll_compare_word(7, 3, 1024));
    assert_int_equal(publish(7, 3, 1, 512, 6, &other), ROLL_COMPARE_OTHER);
    assert_int_equal(roll_compare_read(other, 7, 3, &seen, &moment), ROLL_COMPARE_TORN);
}

static void the_older_line_makes_room_and_a_late_rank_compares_nothing(void **state)
{
    (void)state;
    struct roll_compare_cell *other = NULL;
    const uint32_t lap = ROLL_COMPARE_CELLS / ROLL_COMPARE_WAYS;
    assert_int_equal(publish(7, 1, 0, 1, UINT32_MAX, &other), ROLL_COMPARE_FIRST); /* moments wrap */
    assert_int_equal(publish(7, 1 + lap, 0, 2, 1, &other), ROLL_COMPARE_FIRST);
    assert_int_equal(publish(7, 1 + 2 * lap, 0, 3, 2, &other), ROLL_COMPARE_FIRST);
    assert_null(roll_compare_find(&page, 7, 1));
    assert_non_null(roll_compare_find(&page, 7, 1 + lap));
    assert_int_equal(publish(7, 1, 1, 99, 2, &other), ROLL_COMPARE_LATE);
    assert_int_equal(publish(7, 1 + 2 * lap, 1, 3, 2, &other), ROLL_COMPARE_SAME);
}

static void only_its_publisher_withdraws_a_line(void **state)
{
    (void)state;
    struct roll_compare_cell *other = NULL;
    struct roll_compare_call seen;
    uint32_t moment;
    publish(7, 3, 0, 1024, 5, &other);
    roll_compare_withdraw(&page, 7, 3, 100, 1);
    roll_compare_withdraw(&page, 7, 3, 101, 0);
    roll_compare_withdraw(&page, 7, 4, 100, 0);
    struct roll_compare_cell *line = roll_compare_find(&page, 7, 3);
    assert_int_equal(roll_compare_read(line, 7, 3, &seen, &moment), ROLL_COMPARE_WHOLE);
    roll_compare_drop(line, &seen, moment + 1);
    assert_non_null(roll_compare_find(&page, 7, 3));
    roll_compare_drop(line, &seen, moment);
    assert_null(roll_compare_find(&page, 7, 3));
    publish(7, 3, 0, 1024, 5, &other);
    roll_compare_withdraw(&page, 7, 3, 100, 0);
    assert_null(roll_compare_find(&page, 7, 3));
    assert_int_equal(publish(7, 3, 2, 512, 6, &other), ROLL_COMPARE_FIRST);
}

/* Threads come to each place at once with two different calls: the call that got FIRST stays published. The threads
 * spin, to come as close together as they can; on a busy machine that may take milliseconds for each place, so the time
 * is bounded. */
#define PLACES 4000u
#define RACE_S 2
static _Atomic uint32_t turn, places;
static uint8_t told[4][PLACES];

static void *race(void *arg)
{
    int me = (int)(uintptr_t)arg;
    time_t end = time(NULL) + RACE_S;
    for (uint32_t seq = 0; seq < atomic_load(&places); seq++) {
        struct roll_compare_cell *other = NULL;
        if (me == 0 && time(NULL) > end) {
            atomic_store(&places, seq + 1); /* all threads see this, and wait for this thread below */
        }
        atomic_fetch_add(&turn, 1);
        while (atomic_load(&turn) < (seq + 1) * 4) {
            sched_yield();
        }
        told[me][seq] = (uint8_t)publish(7, seq, me, me % 2 ? 10 : 20, 1, &other);
    }
    return NULL;
}

static void of_those_who_race_one_call_stands(void **state)
{
    (void)state;
    pthread_t thread[4];
    atomic_store(&turn, 0);
    atomic_store(&places, PLACES);
    for (uintptr_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, race, (void *)i), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    for (uint32_t seq = 0; seq < atomic_load(&places); seq++) {
        struct roll_compare_call seen;
        uint32_t moment;
        struct roll_compare_cell *line = roll_compare_find(&page, 7, seq);
        assert_non_null(line);
        assert_int_equal(roll_compare_read(line, 7, seq, &seen, &moment), ROLL_COMPARE_WHOLE);
        assert_int_equal(told[seen.rank][seq], ROLL_COMPARE_FIRST);
    }
}

static void a_page_is_private_and_a_broken_one_refused(void **state)
{
    (void)state;
    char dir[64];
    struct stat info;
    struct roll_compare *a = NULL, *b = NULL;
    scratch_make(dir);
    assert_int_equal(roll_compare_open(scratch_path(dir, "j.cmp"), &a), 0);
    assert_int_equal(roll_compare_open(scratch_path(dir, "j.cmp"), &b), 0);
    assert_int_equal(stat(scratch_path(dir, "j.cmp"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(info.st_size, ROLL_COMPARE_BYTES);
    atomic_store(&a->cell[9].word, 77);
    assert_int_equal(atomic_load(&b->cell[9].word), 77);
    roll_compare_close(&b);
    static uint8_t copy[ROLL_COMPARE_BYTES];
    memcpy(copy, a, sizeof(copy));
    assert_int_equal(roll_compare_check(copy, sizeof(copy)), 0);
    assert_int_equal(roll_compare_check(copy, sizeof(copy) - 1), ROLL_E_SHORT);
    copy[16]++;
    assert_int_equal(roll_compare_check(copy, sizeof(copy)), ROLL_E_SIZE);
    copy[10] = 9;
    assert_int_equal(roll_compare_check(copy, sizeof(copy)), ROLL_E_VERSION);
    copy[0] = 'x';
    assert_int_equal(roll_compare_check(copy, sizeof(copy)), ROLL_E_MAGIC);
    roll_compare_close(&a);
    assert_int_equal(truncate(scratch_path(dir, "j.cmp"), 4096), 0);
    assert_int_equal(roll_compare_open(scratch_path(dir, "j.cmp"), &a), ROLL_E_SHORT);
    assert_int_equal(scratch_remove(dir), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_first_publishes_the_others_compare, clean),
        cmocka_unit_test_setup(a_line_that_is_not_whole_is_never_believed, clean),
        cmocka_unit_test_setup(the_older_line_makes_room_and_a_late_rank_compares_nothing, clean),
        cmocka_unit_test_setup(only_its_publisher_withdraws_a_line, clean),
        cmocka_unit_test_setup(of_those_who_race_one_call_stands, clean),
        cmocka_unit_test(a_page_is_private_and_a_broken_one_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
