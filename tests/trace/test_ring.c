/*
 * test_ring.c: writers and readers of a ring beside each other: no torn record, exact losses.
 *
 * Every field of a test record is a function of its ticket, so a reader can tell a torn one from a whole one.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/ring_write.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define MIX 0x9e3779b97f4a7c15u

/* The plain stores race with readers and with writers a lap apart; ring_write.h says why that is sound. */
__attribute__((no_sanitize("thread"), noinline)) static void fill(struct roll_record *rec, uint64_t ticket)
{
    uint64_t x = (ticket + 1) * MIX;
    rec->enter_ns = x;
    rec->count = x ^ ticket;
    rec->seq = (uint32_t)x;
    rec->group = (uint32_t)(x >> 32);
    rec->peer = (int32_t)(x >> 16);
    rec->step = (uint32_t)(x >> 8);
    rec->comm = (uint16_t)x;
    rec->stream = (uint16_t)(x >> 16);
    rec->callsite = (uint16_t)(x >> 32);
    rec->thread = (uint16_t)(x >> 48);
    rec->layer = (uint16_t)(x >> 8);
    rec->microbatch = (uint16_t)(x >> 24);
    rec->op = ROLL_OP_ALLREDUCE;
    rec->dtype = (uint8_t)(x % ROLL_DTYPE_LIMIT);
    rec->redop = (uint8_t)(x % ROLL_RED_LIMIT);
    rec->flags = (uint8_t)(x >> 40);
    rec->phase = (uint8_t)(x % 6);
    rec->aux = (uint16_t)(x >> 56);
}

static bool is_whole(const struct roll_record *rec)
{
    struct roll_record want = *rec;
    fill(&want, roll_seal_ticket(rec->seal));
    return memcmp(&want, rec, sizeof(want)) == 0;
}

static void write_one(struct roll_ring *ring)
{
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(ring, &ticket);
    fill(rec, ticket);
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    if (ticket % 3 != 0) {
        roll_ring_return(ring, rec, ticket, (uint32_t)ticket, 0);
    }
}

static void make_ring(struct roll_ring *ring, const char *path, uint32_t capacity)
{
    struct roll_ring_params params = {
        .capacity = capacity, .world_rank = 0, .world_size = 1, .local_rank = 0, .job = "test"};
    assert_int_equal(roll_ring_create(path, &params, ring), 0);
}

static void records_come_out_in_order_with_their_states(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    for (int i = 0; i < 50; i++) {
        write_one(&ring);
    }
    struct roll_record out[64];
    uint64_t next = 0;
    uint64_t lost = 0;
    assert_int_equal(roll_ring_read(&ring, 0, out, 20, &next, &lost), 20);
    assert_int_equal(next, 20);
    assert_int_equal(roll_ring_read(&ring, next, out + 20, 44, &next, &lost), 30);
    assert_int_equal(next, 50);
    assert_int_equal(lost, 0);
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(roll_seal_ticket(out[i].seal), i);
        assert_int_equal(roll_seal_state(out[i].seal), i % 3 != 0 ? ROLL_STATE_RETURNED : ROLL_STATE_ENTERED);
        assert_int_equal(out[i].call_ns, i % 3 != 0 ? i : 0);
        assert_true(is_whole(&out[i]));
    }
    assert_int_equal(roll_ring_read(&ring, next, out, 64, &next, &lost), 0);
    roll_ring_close(&ring);
}

static void a_full_ring_keeps_the_newest_and_counts_what_it_lost(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    for (int i = 0; i < 1000; i++) {
        write_one(&ring);
    }
    struct roll_record out[128];
    uint64_t next = 5;
    uint64_t lost = 0;
    assert_int_equal(roll_ring_read(&ring, 5, out, 128, &next, &lost), 64);
    assert_int_equal(lost, 1000 - 64 - 5);
    assert_int_equal(next, 1000);
    assert_int_equal(roll_seal_ticket(out[0].seal), 1000 - 64);
    assert_int_equal(roll_ring_get(&ring, 1000 - 65, out), ROLL_E_NOTFOUND);
    assert_int_equal(roll_ring_get(&ring, 1000 - 64, out), 0);
    assert_int_equal(roll_ring_get(&ring, 999, out), 0);
    assert_int_equal(roll_ring_get(&ring, 1000, out), ROLL_E_NOTFOUND);
    assert_int_equal(roll_ring_get(&ring, UINT64_MAX, out), ROLL_E_NOTFOUND);
    roll_ring_close(&ring);
}

static void a_return_after_a_lap_is_counted_not_written(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&ring, &ticket);
    fill(rec, ticket);
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    for (int i = 0; i < 64; i++) {
        write_one(&ring);
    }
    roll_ring_return(&ring, rec, ticket, 77, 3);
    struct roll_record out;
    assert_int_equal(roll_ring_get(&ring, 64, &out), 0);
    assert_true(is_whole(&out));
    assert_int_equal(out.call_ns, 64);
    assert_int_equal(atomic_load(&ring.header->losses[ROLL_LOSS_LAPPED]), 1);
    roll_ring_close(&ring);
}

static void a_reader_waits_at_a_slot_that_is_being_written_but_not_for_a_lap(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    write_one(&ring);
    uint64_t held;
    struct roll_record *rec = roll_ring_reserve(&ring, &held);
    fill(rec, held);
    for (int i = 0; i < 10; i++) {
        write_one(&ring);
    }
    struct roll_record out[128];
    uint64_t next = 0;
    uint64_t lost = 0;
    assert_int_equal(roll_ring_read(&ring, 0, out, 128, &next, &lost), 1);
    assert_int_equal(next, held);
    assert_int_equal(lost, 0);
    /* The caller gives up the unfinished ticket: everything behind it is there. */
    assert_int_equal(roll_ring_read(&ring, held + 1, out, 128, &next, &lost), 10);
    for (int i = 0; i < 54; i++) {
        write_one(&ring);
    }
    assert_int_equal(atomic_load(&ring.header->head), 66);
    /* A lap later the slot's second ticket went to scratch, because the slot was held: nothing was mixed. */
    lost = 0;
    assert_int_equal(roll_ring_read(&ring, held, out, 128, &next, &lost), 63);
    assert_int_equal(lost, 1);
    assert_int_equal(next, 65);
    roll_ring_publish(rec, held, ROLL_STATE_ENTERED);
    assert_int_equal(roll_ring_get(&ring, 65, out), ROLL_E_NOTFOUND);
    roll_ring_close(&ring);
}

static void a_late_writer_does_not_destroy_a_newer_record(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    for (int i = 0; i < 65; i++) {
        write_one(&ring);
    }
    /* A writer that took ticket 0 of a ring long ago, and reserves its slot only now: */
    atomic_store(&ring.header->head, 0);
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&ring, &ticket);
    assert_ptr_not_equal(rec, &ring.records[0]);
    fill(rec, ticket);
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    atomic_store(&ring.header->head, 65);
    struct roll_record out;
    assert_int_equal(roll_ring_get(&ring, 64, &out), 0);
    assert_true(is_whole(&out));
    roll_ring_close(&ring);
}

static void records_overwritten_while_the_reader_reads_are_counted(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 64);
    for (int i = 0; i < 70; i++) {
        write_one(&ring);
    }
    atomic_store(&ring.header->head,
                 64); /* as a reader sees it that read the head before the last six records were written */
    struct roll_record out[64];
    uint64_t next = 0;
    uint64_t lost = 0;
    assert_int_equal(roll_ring_read(&ring, 0, out, 64, &next, &lost), 58);
    assert_int_equal(lost, 6);
    assert_int_equal(next, 64);
    assert_int_equal(roll_seal_ticket(out[0].seal), 6);
    roll_ring_close(&ring);
}

struct crowd {
    struct roll_ring *ring;
    unsigned records;
};

static void *writer(void *arg)
{
    struct crowd *crowd = arg;
    for (unsigned i = 0; i < crowd->records; i++) {
        write_one(crowd->ring);
    }
    return NULL;
}

#define WRITERS 4

static void many_writers_and_a_reader_make_no_torn_record(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, NULL, 1024);
    struct crowd crowd = {&ring, 250000};
    pthread_t thread[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, writer, &crowd), 0);
    }
    const uint64_t total = (uint64_t)WRITERS * crowd.records;
    static struct roll_record out[256];
    uint64_t next = 0;
    uint64_t lost = 0;
    uint64_t read = 0;
    uint64_t torn = 0;
    uint64_t disorder = 0;
    bool written = false;
    while (next < total) {
        uint64_t before = next;
        size_t n = roll_ring_read(&ring, next, out, 256, &next, &lost);
        for (size_t i = 0; i < n; i++) {
            torn += !is_whole(&out[i]);
            disorder += roll_seal_ticket(out[i].seal) < before;
            before = roll_seal_ticket(out[i].seal) + 1;
        }
        read += n;
        if (n == 0 && written && next < total) { /* a ticket that went to scratch */
            next++;
            lost++;
        }
        if (!written && atomic_load(&ring.header->head) == total) {
            for (int i = 0; i < WRITERS; i++) {
                pthread_join(thread[i], NULL);
            }
            written = true;
        }
    }
    assert_int_equal(torn, 0);
    assert_int_equal(disorder, 0);
    assert_int_equal(read + lost, total);
    assert_true(read > 0);
    roll_ring_close(&ring);
}

/* The number of records, with a yield after each, is such that no thread is kept from the processor for a whole lap: a
 * writer that is also loses a record of its own, which another test covers. */
#define KILL_RECORDS (1u << 18)

static void *writer_without_end(void *arg)
{
    for (;;) {
        write_one(arg);
        sched_yield();
    }
    return NULL;
}

static pid_t start_writer(const char *path, int threads)
{
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    struct roll_ring ring;
    struct roll_ring_params params = {.capacity = KILL_RECORDS, .world_rank = 0, .world_size = 1, .job = "test"};
    if (roll_ring_create(path, &params, &ring) < 0) {
        _exit(1);
    }
    for (int i = 1; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, writer_without_end, &ring);
    }
    writer_without_end(&ring);
    _exit(0);
}

static void kill_and_read(int threads, unsigned ms)
{
    char dir[64];
    scratch_make(dir);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", scratch_path(dir, "a.ring"));
    pid_t child = start_writer(path, threads);
    assert_true(child > 0);
    struct roll_ring ring;
    int err = ROLL_E_NOTFOUND;
    for (int i = 0; i < 200000 && err == ROLL_E_NOTFOUND; i++) { /* the record is always either absent or whole */
        err = roll_ring_open(path, false, &ring);
        usleep(1000);
    }
    assert_int_equal(err, 0);
    usleep(ms * 1000 + 137 * ms);
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    uint64_t head = atomic_load(&ring.header->head);
    uint64_t next = head > KILL_RECORDS ? head - KILL_RECORDS : 0;
    uint64_t lost = 0;
    unsigned stuck = 0;
    unsigned torn = 0;
    struct roll_record out[64];
    while (next < head) {
        size_t n = roll_ring_read(&ring, next, out, 64, &next, &lost);
        for (size_t i = 0; i < n; i++) {
            torn += !is_whole(&out[i]);
        }
        if (n == 0 && next < head) {
            stuck++;
            next++;
        }
    }
    assert_int_equal(torn, 0);
    assert_int_equal(lost, 0);
    assert_true(stuck <= (unsigned)threads);
    roll_ring_close(&ring);
    assert_int_equal(scratch_remove(dir), 1);
}

static void a_killed_writer_loses_at_most_the_record_it_was_writing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        kill_and_read(1, i % 5);
    }
    for (unsigned i = 0; i < 10; i++) {
        kill_and_read(3, i % 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_in_order_with_their_states),
        cmocka_unit_test(a_full_ring_keeps_the_newest_and_counts_what_it_lost),
        cmocka_unit_test(a_return_after_a_lap_is_counted_not_written),
        cmocka_unit_test(a_reader_waits_at_a_slot_that_is_being_written_but_not_for_a_lap),
        cmocka_unit_test(a_late_writer_does_not_destroy_a_newer_record),
        cmocka_unit_test(records_overwritten_while_the_reader_reads_are_counted),
        cmocka_unit_test(many_writers_and_a_reader_make_no_torn_record),
        cmocka_unit_test(a_killed_writer_loses_at_most_the_record_it_was_writing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
