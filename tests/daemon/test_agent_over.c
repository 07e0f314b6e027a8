/*
 * test_agent_over.c: what an agent that lives on keeps of jobs that are over: a trace that grows no more, and rings of
 * dead processes for a day. Time is given, not waited for.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_state.h"
#include "daemon/base/clock.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND_NS (UINT64_C(1000000000))
#define HOUR_NS   (3600 * SECOND_NS)
#define NOBODY    4194305u /* no process has this number: it is beyond the largest */

struct place {
    char dir[64], trace[96];
    struct synth rank;
    struct roll_agent_ring *ring;
};

static void begin(struct place *p)
{
    scratch_make(p->dir);
    snprintf(p->trace, sizeof(p->trace), "%s/trace", p->dir);
    assert_int_equal(mkdir(p->trace, 0700), 0);
    assert_int_equal(synth_open(&p->rank, p->dir, "over", 0, 2, 1024), 0);
    uint16_t comm = synth_comm(&p->rank, 7);
    for (int i = 0; i < 10; i++) {
        synth_allreduce(&p->rank, &(struct synth_call){.comm = comm, .count = 1});
    }
}

static void end(struct place *p)
{
    roll_agent_ring_destroy(&p->ring);
    synth_close(&p->rank);
    scratch_remove(p->trace);
    scratch_remove(p->dir);
}

static uint64_t bytes_in(const char *dir)
{
    DIR *d = opendir(dir);
    uint64_t bytes = 0;
    struct stat st;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        bytes += fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    }
    closedir(d);
    return bytes;
}

/* Lets so many seconds pass. Returns the bytes of the trace. */
static uint64_t pass(struct place *p, roll_agent_trace_t *t, uint64_t *now, uint64_t seconds)
{
    for (uint64_t i = 0; i < seconds * 10; i++) {
        *now += SECOND_NS / 10;
        roll_agent_trace_pump(t, *now);
    }
    return bytes_in(p->trace);
}

static void test_a_trace_of_a_job_that_is_over_grows_no_more(void **state)
{
    (void)state;
    for (int gone = 0; gone < 2; gone++) {
        struct place p;
        uint64_t now = roll_mono_ns();
        begin(&p);
        assert_int_equal(roll_agent_ring_new(p.rank.path, &p.ring), 0);
        struct roll_agent_trace_options o = {.dir = p.trace, .host = "n1", .segment_bytes = 1 << 20};
        roll_agent_trace_t *t = roll_agent_trace_new(&o);
        assert_non_null(t);
        roll_agent_trace_add(t, p.ring);
        (void)pass(&p, t, &now, 5);
        p.ring->gone = gone;
        p.ring->gone_ns = now;
        p.ring->gone_head = roll_agent_ring_head(p.ring);
        uint64_t before = pass(&p, t, &now, 70);
        assert_true(before > 0);
        uint64_t after = pass(&p, t, &now, 600);
        if (gone) {
            assert_true(after == before);
        } else {
            assert_true(after > before + 1000); /* the twin that only stands still: its clock goes on */
        }
        roll_agent_trace_destroy(&t);
        end(&p);
    }
}

/* What the header of a ring says once and for all is covered by a checksum. */
static void seal(struct roll_ring_header *h)
{
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
}

/* An agent without anything but its directory of rings. */
static void begin_agent(struct roll_agent *a, struct roll_agent_options *o, const struct place *p, uint64_t now)
{
    *o = (struct roll_agent_options){.dir = p->dir};
    *a = (struct roll_agent){.o = o, .inotify = -1, .processes = -1, .old_ns = now};
}

static void end_agent(struct roll_agent *a)
{
    while (a->used > 0) {
        roll_agent_ring_destroy(&a->rings[--a->used]);
    }
    while (a->bad_used > 0) {
        free(a->bad[--a->bad_used].path);
    }
    free(a->rings);
    free(a->bad);
    roll_agent_controls_fini(&a->controls);
}

static void test_the_ring_of_a_dead_process_stays_for_a_day(void **state)
{
    (void)state;
    struct place p = {.ring = NULL};
    struct roll_agent a;
    struct roll_agent_options o;
    uint64_t now = roll_mono_ns();
    begin(&p);
    begin_agent(&a, &o, &p, now);
    roll_agent_scan(&a, now);
    assert_int_equal(a.used, 1);
    a.rings[0]->gone = true;
    a.rings[0]->gone_ns = now;
    a.rings[0]->status.proc_state = ROLL_PROC_DEAD;
    roll_agent_clean(&a, now - SECOND_NS, false); /* a look that began before the end was noticed */
    assert_int_equal(a.used, 1);
    roll_agent_clean(&a, now + 23 * HOUR_NS, false);
    assert_int_equal(a.used, 1);
    assert_int_equal(access(p.rank.path, F_OK), 0);
    roll_agent_clean(&a, now + 25 * HOUR_NS, false);
    assert_int_equal(a.used, 0);
    assert_int_not_equal(access(p.rank.path, F_OK), 0);
    end_agent(&a);
    end(&p);
}

static void test_what_an_older_job_left_goes_when_it_is_a_day_old(void **state)
{
    (void)state;
    struct place p = {.ring = NULL};
    struct roll_agent a;
    struct roll_agent_options o;
    uint64_t now = roll_mono_ns();
    if (now < 12 * 60 * SECOND_NS) {
        print_message("SKIPPED: this machine runs for less than 12 minutes\n");
        skip();
    }
    scratch_make(p.dir);
    snprintf(p.trace, sizeof(p.trace), "%s/trace", p.dir);
    assert_int_equal(mkdir(p.trace, 0700), 0);
    assert_int_equal(synth_open(&p.rank, p.dir, "over", 0, 2, 1024), 0);
    p.rank.ring.header->pid = NOBODY;
    seal(p.rank.ring.header);
    atomic_store(&p.rank.ring.header->clock_mono_ns, now - 11 * 60 * SECOND_NS);
    begin_agent(&a, &o, &p, now);
    roll_agent_scan(&a, now);
    assert_int_equal(a.used, 0); /* it is not streamed */
    roll_agent_clean(&a, now + 2 * HOUR_NS, false);
    assert_int_equal(access(p.rank.path, F_OK), 0);
    assert_int_equal(a.bad_used, 1);
    p.rank.ring.header->boot_id[0] ^= 1; /* as old as can be */
    seal(p.rank.ring.header);
    roll_agent_clean(&a, now + 2 * HOUR_NS + 60 * SECOND_NS, false);
    assert_int_equal(access(p.rank.path, F_OK), 0); /* it is not looked at all the time */
    roll_agent_clean(&a, now + 4 * HOUR_NS, false);
    assert_int_not_equal(access(p.rank.path, F_OK), 0);
    assert_int_equal(a.bad_used, 0);
    end_agent(&a);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_trace_of_a_job_that_is_over_grows_no_more),
        cmocka_unit_test(test_the_ring_of_a_dead_process_stays_for_a_day),
        cmocka_unit_test(test_what_an_older_job_left_goes_when_it_is_a_day_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
