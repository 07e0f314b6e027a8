/* test_sight.c: how freely ranks run, read from a /proc and a cgroup that are made up here: pressure, threads that
 * stand ready, a node that is full. */
#include "daemon/agent/agent_sight.h"

#include "daemon/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PID    4711u
#define SECOND (1000 * ROLL_MS)

struct place {
    char root[64], proc[128], cgroup[128];
    struct roll_ring_header header;
    struct roll_agent_ring ring, *rings[1];
    roll_agent_sight_t *sight;
    uint64_t now, pressure_us;
};

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void put_pressure(struct place *p, const char *name, uint64_t us)
{
    char text[200];
    snprintf(text, sizeof(text), "some avg10=0.00 avg60=0.00 avg300=0.00 total=%llu\nfull avg10=0.00 total=0\n",
             (unsigned long long)us);
    put(strncmp(name, "job", 3) == 0 ? p->cgroup : p->proc, name, text);
}

static void put_thread(struct place *p, unsigned tid, uint64_t waited_ns)
{
    char name[64], text[64];
    snprintf(name, sizeof(name), "%u/task/%u/schedstat", PID, tid);
    snprintf(text, sizeof(text), "123456789 %llu 17\n", (unsigned long long)waited_ns);
    put(p->proc, name, text);
}

static void put_ready(struct place *p, long ready)
{
    char text[64];
    snprintf(text, sizeof(text), "9.00 5.00 1.00 %ld/500 4712\n", ready + 1);
    put(p->proc, "loadavg", text);
}

static void begin(struct place *p, bool pressure)
{
    *p = (struct place){.now = 100 * SECOND};
    snprintf(p->root, sizeof(p->root), "/tmp/roll_sight.XXXXXX");
    assert_non_null(mkdtemp(p->root));
    snprintf(p->proc, sizeof(p->proc), "%s/proc", p->root);
    snprintf(p->cgroup, sizeof(p->cgroup), "%s/cgroup", p->root);
    put(p->proc, "self/cgroup", "0::/job/agent\n");
    put_ready(p, 1);
    if (pressure) {
        put_pressure(p, "pressure/cpu", 1000);
    }
    put_thread(p, PID, 5000);
    p->header.pid = PID;
    p->ring.map.header = &p->header;
    p->rings[0] = &p->ring;
    p->sight = roll_agent_sight_new(p->proc, p->cgroup);
    assert_non_null(p->sight);
}

static void end(struct place *p)
{
    char command[128];
    roll_agent_sight_destroy(&p->sight);
    assert_null(p->sight);
    free(p->ring.sight);
    snprintf(command, sizeof(command), "rm -r %s", p->root);
    assert_int_equal(system(command), 0);
}

/* Half a second goes by, with looks as the agent makes them. */
static uint32_t look(struct place *p)
{
    for (int i = 0; i < 50; i++) {
        p->now += 10 * ROLL_MS;
        roll_agent_sight_look(p->sight, p->rings, 1, p->now);
    }
    return p->ring.starved;
}

static void test_nobody_waits_on_a_calm_node(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    for (int i = 1; i < 6; i++) {
        put_pressure(&p, "pressure/cpu", 1000 + (uint64_t)i * 10000); /* 2 % */
        put_thread(&p, PID, 5000 + (uint64_t)i * 400 * ROLL_MS);      /* not looked at */
        uint32_t starved = look(&p);
        assert_true(i < 3 || starved == 0);
    }
    end(&p);
}

static void test_worst_thread_speaks_for_its_rank(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    put_thread(&p, PID + 1, 0);
    uint32_t starved = 0;
    for (uint64_t i = 1; i < 5; i++) {
        put_pressure(&p, "pressure/cpu", 1000 + i * 400000); /* 80 % */
        put_thread(&p, PID, 5000 + i * 50 * ROLL_MS);        /* 10 % */
        put_thread(&p, PID + 1, i * 300 * ROLL_MS);          /* 60 % */
        starved = look(&p);
    }
    assert_in_range(starved, 590, 610);
    for (uint64_t i = 5; i < 8; i++) { /* the pressure goes, and with it the word */
        starved = look(&p);
    }
    assert_int_equal(starved, 0);
    end(&p);
}

static void test_pressure_of_the_own_group_counts(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    uint32_t starved = 0;
    for (uint64_t i = 1; i < 5; i++) {
        put_pressure(&p, "job/agent/cpu.pressure", 1000 + i * 500000);
        put_thread(&p, PID, i * 450 * ROLL_MS);
        starved = look(&p);
    }
    assert_in_range(starved, 890, 910);
    end(&p);
}

static void test_without_pressure_files_threads_are_looked_at(void **state)
{
    (void)state;
    struct place p;
    begin(&p, false);
    uint32_t starved = 0;
    for (uint64_t i = 1; i < 5; i++) {
        put_thread(&p, PID, i * 200 * ROLL_MS);
        starved = look(&p);
    }
    assert_in_range(starved, 390, 410);
    end(&p);
}

static void test_full_node_starves_who_is_not_seen(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    uint32_t starved = 0;
    for (uint64_t i = 1; i < 5; i++) {
        put_pressure(&p, "pressure/cpu", 1000 + i * 500000);
        put_ready(&p, 4 * sysconf(_SC_NPROCESSORS_ONLN));
        starved = look(&p);
    }
    assert_in_range(starved, 740, 760);
    end(&p);
}

static void test_own_late_looks_count(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    look(&p);
    put_pressure(&p, "pressure/cpu", 2000);
    look(&p);
    roll_agent_sight_late(p.sight, 350 * ROLL_MS);
    assert_in_range(look(&p), 690, 710);
    assert_int_equal(look(&p), 0);
    end(&p);
}

static void test_a_process_that_is_gone_is_not_starved(void **state)
{
    (void)state;
    struct place p;
    begin(&p, true);
    p.ring.gone = true;
    for (uint64_t i = 1; i < 4; i++) {
        put_pressure(&p, "pressure/cpu", 1000 + i * 500000);
        put_thread(&p, PID, i * 450 * ROLL_MS);
        assert_int_equal(look(&p), 0);
    }
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_waits_on_a_calm_node),
        cmocka_unit_test(test_worst_thread_speaks_for_its_rank),
        cmocka_unit_test(test_pressure_of_the_own_group_counts),
        cmocka_unit_test(test_without_pressure_files_threads_are_looked_at),
        cmocka_unit_test(test_full_node_starves_who_is_not_seen),
        cmocka_unit_test(test_own_late_looks_count),
        cmocka_unit_test(test_a_process_that_is_gone_is_not_starved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
