/*
 * test_segment.c: segments are whole at any instant, readable alone, and bounded in size and age; records that cannot
 * be written are counted.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define KILLS  200
#define SERIES "job.0"
#define CLOCK  UINT64_C(1000000000) /* what the tests call now */
#define SECOND UINT64_C(1000000000)
#define RINGS  3u
#define MOST   (ROLL_FRAME_HEAD_BYTES + 4096 + 64 * ROLL_RECORD_BYTES)

static char dir[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/rollcall-segments-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

/* A job as frames, the same each time: frame number i, made from a state that follows from the i frames before it. */

struct job {
    uint64_t random, ticket[RINGS], clock[RINGS], frame;
    uint8_t bytes[MOST];
};

static uint64_t draw(struct job *j)
{
    j->random ^= j->random << 13;
    j->random ^= j->random >> 7;
    j->random ^= j->random << 17;
    return j->random;
}

static void begin_job(struct job *j)
{
    memset(j, 0, sizeof(*j));
    j->random = 88172645463325252u;
}

static size_t ring_frame(struct job *j, uint64_t epoch)
{
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 64,
                                 .world_rank = (int32_t)epoch - 1,
                                 .world_size = RINGS,
                                 .local_rank = -1,
                                 .epoch = epoch,
                                 .job = "job"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    struct roll_frame_head head = {.type = ROLL_FRAME_RING, .stream = epoch};
    return (size_t)roll_frame_encode(&head, &h, sizeof(h), j->bytes, sizeof(j->bytes));
}

/* Frame j->frame of the job, in j->bytes. Records by turns; the last of some frames has not returned yet. */
static size_t next_frame(struct job *j)
{
    uint64_t number = j->frame++;
    if (number < RINGS) {
        return ring_frame(j, number + 1);
    }
    uint64_t epoch = number % RINGS + 1, *ticket = &j->ticket[epoch - 1], *clock = &j->clock[epoch - 1];
    if (number % 10 == 9) {
        uint64_t real = number * 3000000;
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = real + 1};
        return (size_t)roll_frame_encode(&head, &real, sizeof(real), j->bytes, sizeof(j->bytes));
    }
    struct roll_record recs[32];
    uint32_t n = 1 + (uint32_t)(draw(j) % 32);
    for (uint32_t i = 0; i < n; i++) {
        recs[i] = (struct roll_record){.seal = roll_seal(*ticket, ROLL_STATE_RETURNED),
                                       .enter_ns = *clock += 10000 + draw(j) % 5000,
                                       .count = 1 + *ticket % 5,
                                       .seq = (uint32_t)*ticket,
                                       .peer = ROLL_PEER_NONE,
                                       .call_ns = (uint32_t)(draw(j) % 3000),
                                       .step = ROLL_STEP_NONE,
                                       .layer = ROLL_LAYER_NONE,
                                       .op = ROLL_OP_ALLREDUCE,
                                       .dtype = ROLL_DTYPE_FLOAT32,
                                       .redop = ROLL_RED_SUM};
        ++*ticket;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                   .seq = number,
                                   .stream = epoch,
                                   .first = roll_seal_ticket(recs[0].seal),
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = n};
    return (size_t)roll_frame_encode(&head, recs, n * sizeof(*recs), j->bytes, sizeof(j->bytes));
}

static int append(roll_segments_t *w, const void *raw, size_t bytes, uint64_t now)
{
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(raw, bytes, &frame, NULL), 0);
    return roll_segments_append(w, &frame, raw, bytes, now);
}

static roll_segments_t *writer(uint64_t segment, uint64_t limit, uint64_t age)
{
    roll_segments_t *w = NULL;
    int pid;
    struct roll_segment_options o = {
        .dir = dir, .series = SERIES, .segment_bytes = segment, .limit_bytes = limit, .age_ns = age};
    assert_int_equal(roll_segments_new(&o, &w, &pid), 0);
    return w;
}

static void write_job(roll_segments_t *w, struct job *j, unsigned frames)
{
    for (unsigned i = 0; i < frames; i++) {
        size_t n = next_frame(j);
        assert_int_equal(append(w, j->bytes, n, CLOCK + j->frame), 0);
        if (j->frame % 50 == 0) {
            assert_int_equal(roll_segments_turn(w, CLOCK + j->frame, true), 0);
        }
    }
}

/* Reads all segments one after the other and compares with the job from its beginning. Returns the frames that are
 * there. */
static uint64_t check_prefix(bool may_be_torn)
{
    static struct job j;
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    uint64_t frames = 0;
    begin_job(&j);
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &count), 0);
    for (size_t i = 0; i < count; i++) {
        roll_trace_reader_t *r = NULL;
        struct roll_frame frame;
        int err;
        assert_int_equal(list[i].number, i + 1);
        assert_int_equal(roll_trace_reader_new(list[i].path, &r), 0);
        if (i > 0) {
            roll_trace_reader_resume(r);
        }
        while ((err = roll_trace_reader_next(r, &frame)) == 0) {
            size_t n = next_frame(&j);
            struct roll_frame mine;
            assert_int_equal(roll_frame_decode(j.bytes, n, &mine, NULL), 0);
            assert_memory_equal(&frame.head, &mine.head, sizeof(mine.head));
            assert_memory_equal(frame.payload, mine.payload, mine.head.payload);
            frames++;
        }
        assert_true(err == ROLL_E_NOTFOUND || (may_be_torn && err == ROLL_E_SHORT && i + 1 == count));
        roll_trace_reader_destroy(&r);
    }
    free(list);
    return frames;
}

static size_t segments(uint64_t *bytes)
{
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &count), 0);
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        assert_int_equal(stat(list[i].path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        *bytes += (uint64_t)st.st_size;
    }
    free(list);
    return count;
}

/* tests */

static void test_segments_one_after_the_other_are_the_whole_trace(void **state)
{
    (void)state;
    static struct job j;
    uint64_t bytes;
    begin_job(&j);
    roll_segments_t *w = writer(1, 0, 0); /* the smallest there is: 64 KiB */
    write_job(w, &j, 8000);
    roll_segments_destroy(&w);
    assert_true(segments(&bytes) >= 4);
    assert_int_equal(check_prefix(false), 8000);
}

static void test_a_new_writer_goes_on_in_a_new_segment(void **state)
{
    (void)state;
    static struct job j;
    uint64_t bytes;
    begin_job(&j);
    for (unsigned part = 0; part < 3; part++) {
        roll_segments_t *w = writer(0, 0, 0), *other = NULL;
        struct job again;
        begin_job(&again);
        while (again.frame < j.frame) { /* what a successor reads first */
            struct roll_frame frame;
            size_t n = next_frame(&again);
            assert_int_equal(roll_frame_decode(again.bytes, n, &frame, NULL), 0);
            assert_int_equal(roll_segments_note(w, &frame), 0);
        }
        write_job(w, &j, 300);
        struct roll_segment_options o = {.dir = dir, .series = SERIES};
        int by = 0;
        assert_int_equal(roll_segments_new(&o, &other, &by), ROLL_E_BUSY);
        assert_int_equal(by, getpid());
        roll_segments_destroy(&w);
    }
    assert_int_equal(segments(&bytes), 3);
    assert_int_equal(check_prefix(false), 900);
}

/* Any segment alone: its rings are announced, the feeder takes every frame and is set as the root's was. */
static void test_each_segment_can_be_read_alone(void **state)
{
    (void)state;
    static struct job j;
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    uint8_t raw[128];
    struct roll_frame_head settings = {.type = ROLL_FRAME_SETTINGS};
    struct roll_frame_settings set = {.stall_ns = 123, .suspect_ns = 456, .policy = ROLL_POLICY_ADVISE};
    size_t bytes = (size_t)roll_frame_encode(&settings, &set, sizeof(set), raw, sizeof(raw));
    begin_job(&j);
    roll_segments_t *w = writer(1, 0, 0);
    assert_int_equal(append(w, raw, bytes, CLOCK), 0);
    write_job(w, &j, 6000);
    roll_segments_destroy(&w);
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &count), 0);
    assert_true(count > 1);
    for (size_t i = 0; i < count; i++) {
        struct roll_engine_config config = {0};
        roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
        roll_trace_reader_t *r = NULL;
        struct roll_frame frame;
        struct roll_feed_stream view;
        assert_int_equal(roll_trace_reader_new(list[i].path, &r), 0);
        while (roll_trace_reader_next(r, &frame) == 0) {
            assert_int_equal(roll_feed_frame(feed, &frame), 0);
        }
        roll_engine_settings(roll_feed_engine(feed), &config);
        assert_int_equal(config.stall_ns, 123);
        assert_int_equal(config.suspect_ns, 456);
        assert_int_equal(config.policy, ROLL_POLICY_ADVISE);
        for (unsigned k = 0; k < RINGS; k++) {
            assert_true(roll_feed_stream(feed, k, &view));
            assert_true(view.fed > 0);
            assert_true(i > 0 ? view.lost > 0 : view.lost == 0);
        }
        roll_trace_reader_destroy(&r);
        roll_feed_destroy(&feed);
    }
    free(list);
}

static void test_calls_that_have_not_returned_are_repeated(void **state)
{
    (void)state;
    static struct job j;
    uint8_t raw[256];
    begin_job(&j);
    roll_segments_t *w = writer(1, 0, 0);
    write_job(w, &j, RINGS);
    struct roll_record rec = {.seal = roll_seal(7, ROLL_STATE_ENTERED),
                              .comm = 4,
                              .op = ROLL_OP_ALLREDUCE,
                              .dtype = ROLL_DTYPE_NONE,
                              .redop = ROLL_RED_NONE};
    struct roll_frame_head head = {
        .type = ROLL_FRAME_RECORDS, .stream = 2, .first = 7, .rec_size = ROLL_RECORD_BYTES, .count = 1};
    assert_int_equal(append(w, raw, (size_t)roll_frame_encode(&head, &rec, sizeof(rec), raw, sizeof(raw)), CLOCK), 0);
    struct roll_frame_head tick = {.type = ROLL_FRAME_TICK};
    for (uint64_t i = 0; i < 60000; i++) { /* the job hangs, and its clock goes on */
        uint64_t real = tick.seq = i * 20000000 + draw(&j) % 999999;
        assert_int_equal(append(w, raw, (size_t)roll_frame_encode(&tick, &real, sizeof(real), raw, sizeof(raw)), CLOCK),
                         0);
        if (i % 500 == 0) {
            assert_int_equal(roll_segments_turn(w, CLOCK, true), 0);
        }
    }
    roll_segments_destroy(&w);
    struct roll_segment_name *list = NULL;
    size_t count = 0, seen = 0;
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &count), 0);
    assert_true(count >= 3);
    roll_trace_reader_t *r = NULL;
    struct roll_frame frame;
    assert_int_equal(roll_trace_reader_new(list[count - 1].path, &r), 0);
    while (roll_trace_reader_next(r, &frame) == 0) {
        if (frame.head.type == ROLL_FRAME_RECORDS) {
            struct roll_record again;
            roll_frame_record(&frame, 0, &again);
            assert_memory_equal(&again, &rec, sizeof(rec));
            assert_int_equal(frame.head.stream, 2);
            seen++;
        }
    }
    assert_int_equal(seen, 1);
    roll_trace_reader_destroy(&r);
    free(list);
}

static void test_the_oldest_segments_make_room(void **state)
{
    (void)state;
    static struct job j;
    uint64_t bytes;
    const uint64_t limit = 512 << 10;
    begin_job(&j);
    roll_segments_t *w = writer(0, limit, 0);
    for (unsigned i = 0; i < 60; i++) {
        write_job(w, &j, 400);
        segments(&bytes);
        assert_in_range(bytes, 0, limit);
    }
    struct roll_segment_count count;
    roll_segments_count(w, &count);
    assert_true(count.removed > 0);
    assert_true(count.bytes > limit);
    assert_int_equal(count.lost, 0);
    roll_segments_destroy(&w);
    struct roll_segment_name *list = NULL;
    size_t n = 0;
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &n), 0);
    assert_int_equal(list[0].number, count.removed + 1); /* the newest are those that are left */
    assert_int_equal(list[n - 1].number, count.segments);
    free(list);
}

static void test_old_segments_go_and_other_files_stay(void **state)
{
    (void)state;
    static struct job j;
    static const char *const names[] = {"job.0.00000001.rtrc", "old.7.00000004.rtrc", "job.0@node.00000001.rtrc",
                                        "notes.txt", "plain.rtrc"};
    char path[200];
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        FILE *f = fopen(path, "w");
        fputs("x", f);
        fclose(f);
        const struct timespec then[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
        assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
    }
    begin_job(&j);
    roll_segments_t *w = writer(0, 0, 50 * SECOND);
    write_job(w, &j, 100);
    roll_segments_destroy(&w);
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        assert_int_equal(access(path, F_OK),
                         i < 2 ? -1 : 0); /* an agent's and what is no segment is not ours to remove */
    }
    snprintf(path, sizeof(path), "%s/job.0.00000002.rtrc", dir);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_what_waits_is_written_within_a_second(void **state)
{
    (void)state;
    static struct job j;
    begin_job(&j);
    roll_segments_t *w = writer(0, 0, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(append(w, j.bytes, next_frame(&j), CLOCK), 0);
    }
    assert_int_equal(roll_segments_turn(w, CLOCK + SECOND / 2, false), 0);
    assert_int_equal(check_prefix(false), 0);
    assert_int_equal(roll_segments_turn(w, CLOCK + SECOND, false), 0);
    assert_int_equal(check_prefix(false), 20); /* read while it is written */
    write_job(w, &j, 30);
    assert_int_equal(check_prefix(false), 50);
    roll_segments_destroy(&w);
}

/* A job hangs and only ticks come: they take little room, and are still written in time for a reader. */
static void test_time_alone_takes_little_room(void **state)
{
    (void)state;
    static struct job j;
    uint64_t before, now_bytes, real = UINT64_C(1700000000000000000), seq = real;
    unsigned writes = 0;
    begin_job(&j);
    roll_segments_t *w = writer(0, 0, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(append(w, j.bytes, next_frame(&j), CLOCK), 0);
    }
    assert_int_equal(roll_segments_turn(w, CLOCK + SECOND, false), 0);
    segments(&before);
    uint64_t last = before;
    for (uint64_t i = 1; i <= 600; i++) { /* a minute of ticks; no timer is exact */
        uint64_t now = CLOCK + SECOND + i * (SECOND / 10);
        seq += SECOND / 10 + draw(&j) % 4 * 100000;
        real += SECOND / 10 + draw(&j) % 4 * 100000;
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = seq};
        size_t n = (size_t)roll_frame_encode(&head, &real, sizeof(real), j.bytes, sizeof(j.bytes));
        assert_int_equal(append(w, j.bytes, n, now), 0);
        assert_int_equal(roll_segments_turn(w, now, false), 0);
        segments(&now_bytes);
        writes += now_bytes > last;
        last = now_bytes;
    }
    assert_in_range(writes, 10, 20);
    assert_true(last - before < 60 * 60); /* bytes a minute */
    /* With the first word of something else, a second is the most again. */
    assert_int_equal(append(w, j.bytes, next_frame(&j), CLOCK + 61 * SECOND), 0);
    assert_int_equal(roll_segments_turn(w, CLOCK + 62 * SECOND, false), 0);
    segments(&now_bytes);
    assert_true(now_bytes > last);
    roll_segments_destroy(&w);
}

static void test_a_writer_that_is_killed_at_any_instant_leaves_whole_frames(void **state)
{
    (void)state;
    static struct job j;
    uint64_t most = 0, bytes, several = 0;
    srand(7);
    for (unsigned i = 0; i < KILLS; i++) {
        begin_job(&j);
        pid_t pid = fork();
        if (pid == 0) {
            roll_segments_t *w = NULL;
            int by;
            struct roll_segment_options o = {.dir = dir, .series = SERIES, .segment_bytes = 1};
            if (roll_segments_new(&o, &w, &by) != 0) {
                _exit(1);
            }
            for (;;) {
                struct roll_frame frame;
                size_t n = next_frame(&j);
                if (roll_frame_decode(j.bytes, n, &frame, NULL) != 0 ||
                    roll_segments_append(w, &frame, j.bytes, n, CLOCK) != 0 ||
                    roll_segments_turn(w, CLOCK, j.frame % 40 == 0) != 0) {
                    _exit(1);
                }
            }
        }
        assert_true(pid > 0);
        char second[100];
        snprintf(second, sizeof(second), "%s/" SERIES ".00000002.rtrc", dir);
        for (unsigned ms = 0; i % 4 == 0 && ms < 5000 && access(second, F_OK) != 0; ms++) {
            usleep(1000);
        }
        usleep((useconds_t)(rand() % 12000));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        uint64_t frames = check_prefix(true);
        most = frames > most ? frames : most;
        several += segments(&bytes) > 1;
        tear_down(NULL);
        assert_int_equal(mkdir(dir, 0700), 0);
    }
    print_message("%u kills: up to %llu frames, %llu times in several segments\n", KILLS, (unsigned long long)most,
                  (unsigned long long)several);
    assert_true(most > 200);
    assert_in_range(several, KILLS / 4, KILLS);
}

static void test_a_full_disk_ends_the_recording_and_nothing_else(void **state)
{
    (void)state;
    static struct job j;
    begin_job(&j);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit limit = {150000, 150000};
        roll_segments_t *w = writer(0, 0, 0);
        unsigned errors = 0;
        uint64_t records = 0;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        for (unsigned i = 0; i < 20000; i++) {
            struct roll_frame frame;
            size_t n = next_frame(&j);
            int err = roll_frame_decode(j.bytes, n, &frame, NULL);
            records += frame.head.type == ROLL_FRAME_RECORDS ? frame.head.count : 0;
            err = err ? err : roll_segments_append(w, &frame, j.bytes, n, CLOCK);
            err = err ? err : roll_segments_turn(w, CLOCK, i % 50 == 0);
            errors += err == ROLL_E_SPACE;
            if (err != 0 && err != ROLL_E_SPACE) {
                _exit(2);
            }
        }
        struct roll_segment_count count;
        roll_segments_count(w, &count);
        bool right = errors == 1 && count.stopped && count.lost > 0 && count.records + count.lost == records;
        roll_segments_destroy(&w);
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(check_prefix(true) > 100);
}

static void test_directories_that_are_not_ours_are_refused(void **state)
{
    (void)state;
    char why[400] = "", path[100];
    assert_int_equal(roll_segment_dir(dir, why, sizeof(why)), 0);
    snprintf(path, sizeof(path), "%s/new", dir);
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), ROLL_E_DENIED);
    assert_non_null(strstr(why, "everybody"));
    assert_int_equal(chmod(path, 0755), 0);
    const char *other = path;
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
    } else {
        other = "/usr";
    }
    assert_int_equal(roll_segment_dir(other, why, sizeof(why)), ROLL_E_DENIED);
    assert_non_null(strstr(why, "another user"));
    snprintf(path, sizeof(path), "%s/file", dir);
    fclose(fopen(path, "w"));
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), ROLL_E_ARG);
}

/* Thousands of old segments do not hold up the daemon: a few are removed at a time, until all are gone. */
static void test_many_old_segments_go_a_few_at_a_time(void **state)
{
    (void)state;
    static struct job j;
    char path[100];
    uint64_t bytes;
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    begin_job(&j);
    for (unsigned i = 1; i <= 3 * ROLL_SEGMENT_REMOVE; i++) {
        snprintf(path, sizeof(path), "%s/" SERIES ".%08u.rtrc", dir, i);
        fclose(fopen(path, "w"));
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    roll_segments_t *w = writer(0, 0, 3600 * SECOND);
    write_job(w, &j, 100);
    assert_int_equal(segments(&bytes), 2 * ROLL_SEGMENT_REMOVE + 1);
    assert_int_equal(roll_segments_turn(w, CLOCK + SECOND, false), 0);
    assert_int_equal(segments(&bytes), ROLL_SEGMENT_REMOVE + 1);
    assert_int_equal(roll_segments_turn(w, CLOCK + 2 * SECOND, false), 0);
    assert_int_equal(segments(&bytes), 1);
    roll_segments_destroy(&w);
}

/* A pipe, link or other file under a segment's name is neither waited for, nor followed, nor written over. */
static void test_what_is_no_file_is_neither_waited_for_nor_replaced(void **state)
{
    (void)state;
    static struct job j;
    char path[100], other[100];
    struct stat st;
    struct roll_segment_name *list;
    size_t count;
    roll_trace_reader_t *reader;
    begin_job(&j);
    snprintf(path, sizeof(path), "%s/" SERIES ".00000001.rtrc", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* opening a pipe would wait for ever */
    assert_int_equal(roll_trace_reader_new(path, &reader), ROLL_E_IO);
    roll_segments_t *w = writer(0, 1000, 0);
    snprintf(other, sizeof(other), "%s/elsewhere", dir);
    fclose(fopen(other, "w"));
    snprintf(path, sizeof(path), "%s/." SERIES ".part", dir);
    assert_int_equal(symlink(other, path), 0);
    write_job(w, &j, 200);
    roll_segments_destroy(&w);
    alarm(0);
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(roll_segment_list(dir, SERIES, &list, &count), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[1].number, 2);
    free(list);
}

/* Two writers both found the directory empty: the second does not replace the first one's file. */
static void test_a_segment_that_appears_meanwhile_is_not_written_over(void **state)
{
    (void)state;
    static struct job j;
    struct roll_frame frame;
    struct roll_segment_count count;
    char path[100];
    struct stat st;
    begin_job(&j);
    roll_segments_t *w = writer(0, 0, 0);
    snprintf(path, sizeof(path), "%s/" SERIES ".00000001.rtrc", dir);
    FILE *f = fopen(path, "w");
    fputs("another's", f);
    fclose(f);
    size_t n = next_frame(&j);
    assert_int_equal(roll_frame_decode(j.bytes, n, &frame, NULL), 0);
    assert_int_equal(roll_segments_append(w, &frame, j.bytes, n, CLOCK), ROLL_E_BUSY);
    roll_segments_count(w, &count);
    assert_true(count.stopped);
    roll_segments_destroy(&w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 9);
    snprintf(path, sizeof(path), "%s/." SERIES ".part", dir);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof(path), "%s/." SERIES ".lock", dir);
    assert_int_equal(access(path, F_OK), -1);
}

/* When a segment is removed while it is written, only its own frames are lost; when the directory is gone, an error
 * says so.
 */
static void test_a_segment_that_is_removed_is_followed_by_a_new_one(void **state)
{
    (void)state;
    static struct job j;
    struct roll_frame frame;
    char path[100], command[200];
    begin_job(&j);
    roll_segments_t *w = writer(0, 0, 0);
    write_job(w, &j, 100);
    snprintf(path, sizeof(path), "%s/" SERIES ".00000001.rtrc", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(roll_segments_turn(w, CLOCK + 11 * SECOND, false), 0);
    write_job(w, &j, 100);
    snprintf(path, sizeof(path), "%s/" SERIES ".00000002.rtrc", dir);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(roll_segments_turn(w, CLOCK + 22 * SECOND, false), 0);
    size_t n = next_frame(&j);
    assert_int_equal(roll_frame_decode(j.bytes, n, &frame, NULL), 0);
    assert_int_equal(roll_segments_append(w, &frame, j.bytes, n, CLOCK + 22 * SECOND), ROLL_E_NOTFOUND);
    struct roll_segment_count count;
    roll_segments_count(w, &count);
    assert_true(count.stopped);
    roll_segments_destroy(&w);
    assert_int_equal(mkdir(dir, 0700), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_segments_one_after_the_other_are_the_whole_trace),
        TEST(test_a_new_writer_goes_on_in_a_new_segment),
        TEST(test_each_segment_can_be_read_alone),
        TEST(test_calls_that_have_not_returned_are_repeated),
        TEST(test_the_oldest_segments_make_room),
        TEST(test_old_segments_go_and_other_files_stay),
        TEST(test_what_waits_is_written_within_a_second),
        TEST(test_time_alone_takes_little_room),
        TEST(test_a_writer_that_is_killed_at_any_instant_leaves_whole_frames),
        TEST(test_a_full_disk_ends_the_recording_and_nothing_else),
        TEST(test_directories_that_are_not_ours_are_refused),
        TEST(test_many_old_segments_go_a_few_at_a_time),
        TEST(test_what_is_no_file_is_neither_waited_for_nor_replaced),
        TEST(test_a_segment_that_appears_meanwhile_is_not_written_over),
        TEST(test_a_segment_that_is_removed_is_followed_by_a_new_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
