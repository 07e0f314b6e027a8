/*
 * test_agent_tail.c: what an agent says for a bundle where a process does not answer, where a ring names a process that
 * is not its own, and where it is asked for more lines of source than it reads at a time. A process that holds its
 * memory map is the test's own (the linker's --wrap); all else is real.
 */
#include "daemon/agent/agent_lines.h"
#include "daemon/agent/agent_process.h"
#include "daemon/agent/agent_tail.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/wire/net.h"
#include "trace/ring_write.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#define RINGS 2u

static atomic_int stuck; /* the pid of the process that does not answer; 0: none */
static atomic_int woken; /* looks that went on after it */

json_t *__real_roll_process_environment(pid_t pid);
json_t *__wrap_roll_process_environment(pid_t pid);

json_t *__wrap_roll_process_environment(pid_t pid)
{
    bool waited = false;
    while (atomic_load(&stuck) == pid) {
        waited = true;
        usleep(1000);
    }
    json_t *answer = __real_roll_process_environment(pid);
    atomic_fetch_add(&woken, waited);
    return answer;
}

static struct here {
    void *context, *agent, *root;
    struct roll_agent_ring ring[RINGS];
    pid_t child[RINGS + 1]; /* the last one writes no ring */
} here;

static pid_t sleeper(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        while (true) {
            pause();
        }
    }
    assert_true(pid > 0);
    return pid;
}

static int set_up(void **state)
{
    (void)state;
    here = (struct here){.context = zmq_ctx_new()};
    here.child[RINGS] = sleeper(); /* before there is a ring that it could inherit */
    here.agent = zmq_socket(here.context, ZMQ_PAIR);
    here.root = zmq_socket(here.context, ZMQ_PAIR);
    assert_int_equal(zmq_bind(here.root, "inproc://root"), 0);
    assert_int_equal(zmq_connect(here.agent, "inproc://root"), 0);
    for (size_t i = 0; i < RINGS; i++) {
        struct roll_agent_ring *r = &here.ring[i];
        const struct roll_ring_params params = {.capacity = 256, .world_rank = (int32_t)i, .world_size = 2, .job = "j"};
        snprintf(r->path, sizeof(r->path), "/tmp/rollcall-tail-XXXXXX");
        int fd = mkstemp(r->path);
        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(roll_ring_create(r->path, &params, &r->map), 0);
        here.child[i] = sleeper(); /* maps it, as a rank does */
        r->map.header->pid = (uint32_t)here.child[i];
        r->map.header->start_ticks = 0;
        r->epoch = r->map.header->epoch;
        r->pidfd = -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i <= RINGS; i++) {
        kill(here.child[i], SIGKILL);
        waitpid(here.child[i], NULL, 0);
    }
    for (size_t i = 0; i < RINGS; i++) {
        roll_ring_close(&here.ring[i].map);
        unlink(here.ring[i].path);
    }
    zmq_close(here.agent);
    zmq_close(here.root);
    zmq_ctx_term(here.context);
    return 0;
}

static const struct roll_agent_ring *find(void *ctx, uint64_t epoch)
{
    (void)ctx;
    for (size_t i = 0; i < RINGS; i++) {
        if (here.ring[i].map.header->epoch == epoch) {
            return &here.ring[i];
        }
    }
    return NULL;
}

static struct roll_frame frame_of(const char *text)
{
    return (struct roll_frame){.head = {.type = ROLL_FRAME_ASK, .seq = 5, .payload = (uint32_t)strlen(text)},
                               .payload = (const void *)text};
}

static void ask(roll_agent_tails_t *tails, size_t ring)
{
    char text[128];
    snprintf(text, sizeof(text), "{\"op\":\"tail\",\"records\":64,\"streams\":[\"%016llx\"]}",
             (unsigned long long)here.ring[ring].epoch);
    struct roll_frame frame = frame_of(text);
    roll_agent_tails_ask(tails, &frame);
}

/* What has come at the root, and to which question (may be NULL); NULL: nothing. Owned. */
static json_t *came(uint64_t *question)
{
    zmq_msg_t msg;
    struct roll_frame frame;
    json_t *json = NULL;
    zmq_msg_init(&msg);
    if (roll_net_recv(&msg, here.root) >= 0) {
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        json = roll_net_json(&frame);
        assert_non_null(json);
        if (question) {
            *question = frame.head.seq;
        }
    }
    zmq_msg_close(&msg);
    return json;
}

/* Turns of the agent's loop until an answer comes. */
static json_t *answer(roll_agent_tails_t *tails)
{
    json_t *json = NULL;
    for (int i = 0; i < 60000 && !json; i++) { /* a minute: only a hang takes that long */
        (void)roll_agent_tails_pump(tails, here.agent, find, NULL);
        json = came(NULL);
        usleep(1000);
    }
    assert_non_null(json);
    assert_true(json_is_string(json_object_get(json, "ring"))); /* the calls are there in any case */
    return json;
}

static bool has_environment(const json_t *json)
{
    return json_is_object(json_object_get(json_object_get(json, "environment"), "variables"));
}

static void a_process_that_does_not_answer_is_named_and_the_others_are_told(void **state)
{
    (void)state;
    roll_agent_tails_t *tails = roll_agent_tails_new("node");
    atomic_store(&stuck, here.child[0]);
    ask(tails, 0);
    ask(tails, 1);
    json_t *first = answer(tails), *second = answer(tails);
    assert_false(has_environment(first));
    assert_non_null(strstr(json_string_value(json_object_get(first, "process_error")), "does not answer"));
    assert_true(has_environment(second));
    assert_null(json_object_get(second, "process_error"));
    json_decref(first);
    json_decref(second);
    ask(tails, 0); /* the root goes away while it is looked at */
    (void)roll_agent_tails_pump(tails, here.agent, find, NULL);
    roll_agent_tails_forget(tails);
    atomic_store(&stuck, 0);
    for (int i = 0; i < 60000 && atomic_load(&woken) < 1; i++) {
        usleep(1000);
    }
    assert_in_range(atomic_load(&woken), 1, 2); /* the second may have come too late to be held */
    ask(tails, 0);
    json_t *third = answer(tails);
    assert_true(has_environment(third));
    json_decref(third);
    roll_agent_tails_destroy(&tails);
}

/* Of a node where every second process does not answer the root hears in time: a process that does answer does not make
 * the next one be waited for for the full 2 s again, which the first one is. */
static void those_that_do_not_answer_are_not_waited_for_one_by_one(void **state)
{
    (void)state;
    roll_agent_tails_t *tails = roll_agent_tails_new("node");
    int before = atomic_load(&woken), looks = 0;
    uint64_t waited = UINT64_MAX;
    atomic_store(&stuck, here.child[0]);
    for (; looks < 5 && waited >= 2000 * ROLL_MS; looks++) { /* a loaded machine may take as long for less */
        ask(tails, 0);
        ask(tails, 1);
        uint64_t begin = roll_mono_ns();
        json_t *hangs = answer(tails);
        waited = roll_mono_ns() - begin;
        json_t *answers = answer(tails);
        assert_non_null(strstr(json_string_value(json_object_get(hangs, "process_error")), "does not answer"));
        json_decref(hangs);
        json_decref(answers);
        assert_true(looks > 0 || waited >= 2000 * ROLL_MS);
    }
    assert_true(waited < 2000 * ROLL_MS);
    atomic_store(&stuck, 0);
    for (int i = 0; i < 60000 && atomic_load(&woken) < before + looks; i++) {
        usleep(1000);
    }
    assert_int_equal(atomic_load(&woken), before + looks);
    roll_agent_tails_destroy(&tails);
}

static void a_ring_tells_nothing_of_a_process_that_does_not_write_it(void **state)
{
    (void)state;
    const pid_t others[] = {here.child[RINGS], getpid(), 1, 0, -1, INT32_MAX};
    roll_agent_tails_t *tails = roll_agent_tails_new("node");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        here.ring[0].map.header->pid = (uint32_t)others[i];
        ask(tails, 0);
        json_t *json = answer(tails);
        assert_null(json_object_get(json, "environment"));
        assert_null(json_object_get(json, "libraries"));
        assert_non_null(strstr(json_string_value(json_object_get(json, "process_error")), "not the one that writes"));
        json_decref(json);
    }
    here.ring[0].map.header->pid = (uint32_t)here.child[0];
    here.ring[0].map.header->start_ticks = 1; /* another process had this number then */
    ask(tails, 0);
    json_t *json = answer(tails);
    assert_null(json_object_get(json, "environment"));
    json_decref(json);
    roll_agent_tails_destroy(&tails);
}

/* Answers to a question for lines that has the number `question`, for so many ranks; those beyond `told` must say why.
 */
static void expect_lines(uint64_t question, int ranks, int told, const char *why)
{
    for (int i = 1; i <= ranks; i++) {
        uint64_t number;
        json_t *json = NULL;
        for (int turn = 0; turn < 60000 && !(json = came(&number)); turn++) {
            usleep(1000);
        }
        assert_non_null(json);
        assert_int_equal(number, question);
        assert_int_equal(strtol(json_string_value(json_object_get(json, "stream")), NULL, 16), i);
        const json_t *source = json_object_get(json, "source"), *error = json_object_get(source, "error");
        assert_int_equal(json_is_array(json_object_get(source, "lines")), i <= told);
        assert_int_equal(json_is_string(error), i > told);
        assert_true(i <= told || strstr(json_string_value(error), why));
        json_decref(json);
    }
}

static void lines_for_more_ranks_than_are_read_at_a_time_are_refused_in_words(void **state)
{
    (void)state;
    const char *text = "{\"op\":\"source\",\"streams\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\"],"
                       "\"lines\":[]}";
    struct roll_frame frame = frame_of(text);
    roll_agent_lines_t *lines = roll_agent_lines_new();
    roll_agent_lines_ask(lines, NULL, NULL, 0, &frame, 1);
    roll_agent_lines_pump(lines, NULL, here.agent, 1);
    expect_lines(frame.head.seq, 10, 8, "8 ranks at a time");
    assert_null(came(NULL));
    assert_false(roll_agent_lines_waits(lines));
    roll_agent_lines_destroy(&lines);
}

/* So many are taken before anything is sent: eight are read, eight are told that there is no room, of one nobody is. */
static void a_question_for_lines_that_meets_a_full_queue_is_answered(void **state)
{
    (void)state;
    roll_agent_lines_t *lines = roll_agent_lines_new();
    for (int round = 0; round < 2; round++) { /* the second: who was turned away has left no place taken */
        for (uint64_t i = 1; i <= 17; i++) {
            struct roll_frame frame = frame_of("{\"op\":\"source\",\"streams\":[\"1\",\"2\"],\"lines\":[]}");
            frame.head.seq = i;
            roll_agent_lines_ask(lines, NULL, NULL, 0, &frame, 1);
        }
        roll_agent_lines_pump(lines, NULL, here.agent, 1);
        for (uint64_t i = 16; i >= 1; i--) { /* the newest goes first */
            expect_lines(i, 2, i <= 8 ? 2 : 0, "ask again");
        }
        assert_null(came(NULL));
        assert_false(roll_agent_lines_waits(lines));
    }
    roll_agent_lines_destroy(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_process_that_does_not_answer_is_named_and_the_others_are_told, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(those_that_do_not_answer_are_not_waited_for_one_by_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_ring_tells_nothing_of_a_process_that_does_not_write_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lines_for_more_ranks_than_are_read_at_a_time_are_refused_in_words, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_question_for_lines_that_meets_a_full_queue_is_answered, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
