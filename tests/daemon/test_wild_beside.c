/*
 * test_wild_beside.c: a job whose rings are written over and cut at random while they are read, beside another job on
 * the same agent: of that one every record arrives, nothing is lost, nobody is accused, and its wrong call is found.
 *
 * What the damaged job is told of itself is its own affair. All is drawn from a seed, which a failure names.
 */
#include "daemon/base/bus_guard.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RANKS  4
#define CALLS  20u /* of each rank of the healthy job in a round */
#define ROUNDS 48
#define SICK   2 /* ranks of the damaged job, which is started anew in each round */
#define WRITES 64

static struct synth well[RANKS];
static uint16_t comm[RANKS];
static uint64_t dice;

static uint64_t roll(uint64_t sides)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % sides;
}

/* Bytes of no meaning at `n` places of [from, from + bytes). */
static void scribble(int fd, uint64_t from, uint64_t bytes, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t word = roll(UINT64_MAX);
        size_t size = 1 + roll(8);
        assert_int_equal(pwrite(fd, &word, size, (off_t)(from + roll(bytes))), size);
    }
}

enum { ANYWHERE, HEADER, DEFINITIONS, RECORDS, CUT, CUT_AND_GROWN, ONES, COUNT, GONE, KINDS };

static void damage(const struct synth *s, unsigned kind)
{
    uint64_t bytes = ROLL_RING_HEADER_BYTES + s->ring.defs_bytes + (s->ring.mask + 1) * ROLL_RECORD_BYTES;
    uint64_t records = bytes - (s->ring.mask + 1) * ROLL_RECORD_BYTES;
    uint64_t head = roll(UINT64_MAX) >> roll(60);
    static char ones[65536];
    int fd = open(s->path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    switch (kind) {
    case ANYWHERE:
        scribble(fd, 0, bytes - 8, WRITES);
        break;
    case HEADER:
        scribble(fd, 0, ROLL_RING_HEADER_BYTES - 8, 4);
        break;
    case DEFINITIONS:
        scribble(fd, ROLL_RING_HEADER_BYTES, 512, WRITES);
        break;
    case RECORDS:
        scribble(fd, records, 64 * ROLL_RECORD_BYTES, WRITES);
        break;
    case CUT:
        assert_int_equal(ftruncate(fd, (off_t)roll(bytes)), 0);
        break;
    case CUT_AND_GROWN:
        assert_int_equal(ftruncate(fd, (off_t)roll(bytes)), 0);
        assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
        break;
    case ONES:
        memset(ones, 0xff, sizeof(ones));
        assert_int_equal(pwrite(fd, ones, sizeof(ones), (off_t)roll(records)), sizeof(ones));
        break;
    case COUNT:
        assert_int_equal(pwrite(fd, &head, sizeof(head), (off_t)offsetof(struct roll_ring_header, head)), sizeof(head));
        break;
    default:
        assert_int_equal(unlink(s->path), 0);
        break;
    }
    close(fd);
}

static void call_all(unsigned calls, uint64_t count_of_last)
{
    for (unsigned i = 0; i < calls; i++) {
        for (int r = 0; r < RANKS; r++) {
            struct synth_call call = {.comm = comm[r], .count = r == RANKS - 1 ? count_of_last : 1024};
            synth_allreduce(&well[r], &call);
        }
    }
}

/* Findings about the healthy job, as code and culprits; "" when there is none. */
static void findings(roll_client_t *client, char *out, size_t size)
{
    json_t *reply = harness_ask(client, "{s:s,s:i,s:s}", "op", "verdicts", "from", 0, "job", "well"), *verdict;
    size_t i, used = 0;
    out[0] = '\0';
    json_array_foreach(json_object_get(reply, "verdicts"), i, verdict)
    {
        if (strcmp(json_string_value(json_object_get(verdict, "certainty")), "note") != 0 && used < size) {
            used +=
                (size_t)snprintf(out + used, size - used, "%s %s;", json_string_value(json_object_get(verdict, "code")),
                                 json_string_value(json_object_get(verdict, "culprits_text")));
        }
    }
    json_decref(reply);
}

static bool found(roll_client_t *client, const char *what)
{
    char text[1024];
    findings(client, text, sizeof(text));
    return strstr(text, what) != NULL;
}

/* A round: the damaged job is started anew, calls, and is damaged while it goes on. */
static void one_round(unsigned n)
{
    static struct synth sick[SICK];
    for (int r = 0; r < SICK; r++) {
        assert_int_equal(synth_open_restart(&sick[r], harness_path("d"), "sick", n, r, SICK, 64), 0);
        uint16_t on = synth_comm(&sick[r], 0x2000);
        struct synth_call call = {.comm = on, .count = 64};
        for (unsigned i = 0; i < 40; i++) {
            synth_allreduce(&sick[r], &call);
        }
    }
    call_all(CALLS / 2, 1024);
    if (n % 2 == 0) {
        usleep(30000); /* as long as the agent needs to see it, or not: both are tried */
    }
    for (int r = 0; r < SICK; r++) {
        damage(&sick[r], (n + (unsigned)r) % KINDS);
    }
    call_all(CALLS - CALLS / 2, 1024);
    for (int r = 0; r < SICK; r++) {
        synth_close(&sick[r]);
    }
}

static void check(const char *mode, uint64_t seed)
{
    char where[320], text[1024];
    bool digest = strcmp(mode, "--digest") == 0;
    dice = seed;
    print_message("seed %llu\n", (unsigned long long)seed);
    roll_guard(); /* behind cmocka's own handlers: this process has mapped what it cuts */
    assert_int_equal(mkdir(harness_path("d"), 0700), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(synth_open(&well[r], harness_path("d"), "well", r, RANKS, 4096), 0);
        comm[r] = synth_comm(&well[r], 0x1000);
    }
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    pid_t root =
        DAEMON("root.err", NULL, "--root", mode, "--listen", where, "--stall-ms", "300", "--suspect-ms", "300");
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    for (unsigned n = 0; n < ROUNDS; n++) {
        one_round(n);
    }
    const json_int_t all = (json_int_t)RANKS * CALLS * ROUNDS;
    assert_true(HARNESS_UNTIL(harness_has(client, "well", digest ? "calls" : "records") == all));
    assert_int_equal(harness_has(client, "well", "lost"), 0);
    usleep(1000000); /* much longer than a stall */
    findings(client, text, sizeof(text));
    assert_string_equal(text, "");
    call_all(1, 999);
    call_all(100, 1024);
    assert_true(HARNESS_UNTIL(found(client, "count-mismatch 3;")));
    findings(client, text, sizeof(text));
    assert_string_equal(text, "count-mismatch 3;");
    assert_int_equal(harness_has(client, "well", "lost"), 0);
    roll_client_destroy(&client);
    for (int r = 0; r < RANKS; r++) {
        synth_close(&well[r]);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 1);
}

/* ROLL_SEED: another one. */
static uint64_t seed_or(uint64_t usual)
{
    const char *text = getenv("ROLL_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : usual;
    return seed > 0 ? seed : usual;
}

static void test_a_neighbour_is_untouched(void **state)
{
    (void)state;
    check("--stream", seed_or(1));
}

static void test_a_neighbour_is_untouched_under_digests(void **state)
{
    (void)state;
    check("--digest", seed_or(2));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_a_neighbour_is_untouched),
                                       TEST(test_a_neighbour_is_untouched_under_digests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
