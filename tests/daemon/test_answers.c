/*
 * test_answers.c: what an agent is asked is answered by that agent alone: another peer, which knows the number of the
 * question and of the ring, speaks for nobody else's rank, neither in a bundle nor in stacks.
 *
 * The agent that is asked is stopped, so that the other one is always the first to answer.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static void *socket_of_stranger;

static void say(enum roll_frame_type type, uint64_t seq, json_t *json)
{
    struct roll_frame_head head = {.type = type, .seq = seq};
    assert_non_null(json);
    assert_true(HARNESS_UNTIL(roll_net_send_json(socket_of_stranger, NULL, 0, &head, json) == 0));
    json_decref(json);
}

/* Waits until the root has answered the stranger's query, and so has read all that it sent before. */
static void is_read(void)
{
    bool replied = false;
    say(ROLL_FRAME_QUERY, 77, json_pack("{s:s}", "op", "no such query"));
    while (!replied) {
        zmq_msg_t msg;
        struct roll_frame frame;
        zmq_msg_init(&msg);
        assert_true(HARNESS_UNTIL(roll_net_recv(&msg, socket_of_stranger) >= 0));
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        replied = frame.head.type == ROLL_FRAME_REPLY;
        zmq_msg_close(&msg);
    }
}

/* The number of the one ring in a directory, as answers name it. */
static void ring_of(const char *dir, char text[24])
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    text[0] = '\0';
    while (d && text[0] == '\0' && (entry = readdir(d)) != NULL) {
        char path[600];
        struct roll_ring ring;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        if (strstr(entry->d_name, ".ring") && roll_ring_open(path, false, &ring) == 0) {
            snprintf(text, 24, "%016llx", (unsigned long long)ring.header->epoch);
            roll_ring_close(&ring);
        }
    }
    closedir(d);
}

/* Asks, lets the stranger answer, then the agent; what came, as text. Owned. */
static char *asked(roll_client_t *client, pid_t agent, json_t *query, json_t *lie)
{
    const char *op = json_string_value(json_object_get(query, "op"));
    json_t *begun = harness_ask(client, "O", query), *came = NULL;
    json_int_t id = json_integer_value(json_object_get(begun, "id"));
    assert_true(id > 0);
    say(ROLL_FRAME_ANSWER, (uint64_t)id, lie);
    is_read();
    came = harness_ask(client, "{s:s,s:I}", "op", op, "id", id);
    assert_true(json_is_false(json_object_get(came, "done")));
    assert_int_equal(kill(agent, SIGCONT), 0);
    for (int i = 0; !json_is_true(json_object_get(came, "done")); i++) {
        assert_true(i < HARNESS_END_MS / 20);
        usleep(20000);
        json_decref(came);
        came = harness_ask(client, "{s:s,s:I}", "op", op, "id", id);
    }
    assert_int_equal(kill(agent, SIGSTOP), 0);
    char *text = json_dumps(came, 0);
    json_decref(begun);
    json_decref(came);
    json_decref(query);
    assert_non_null(text);
    return text;
}

static void test_who_was_not_asked_answers_for_nobody(void **state)
{
    (void)state;
    char endpoint[256], stream[24];
    const char *dir = harness_path("rings");
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    setenv("ROLLCALL_INSECURE", "1", 1);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", dir, "--connect", endpoint);
    assert_true(agent > 0);
    pid_t rank = harness_rank(dir, 0, 1, 1000, 40, "wait");
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "ranks") == 1));
    ring_of(dir, stream);
    assert_string_not_equal(stream, "");
    void *context = zmq_ctx_new();
    assert_non_null(socket_of_stranger = roll_net_dealer(context, NULL, "stranger", 0));
    assert_int_equal(zmq_connect(socket_of_stranger, endpoint), 0);
    say(ROLL_FRAME_HELLO, 1, json_pack("{s:s,s:i}", "host", "evil", "pid", 1));
    is_read();
    assert_int_equal(kill(agent, SIGSTOP), 0);
    char *tail = asked(client, agent, json_pack("{s:s,s:i,s:i}", "op", "incident", "rank", 0, "records", 64),
                       json_pack("{s:s,s:s,s:s,s:s}", "op", "tail", "stream", stream, "host", "evil", "error", "evil"));
    assert_null(strstr(tail, "evil"));
    assert_non_null(strstr(tail, "\"ring\""));
    free(tail);
    char *stack = asked(client, agent, json_pack("{s:s,s:s,s:i}", "op", "stacks", "ranks", "0", "samples", 1),
                        json_pack("{s:s,s:s,s:{s:s}}", "op", "stacks", "stream", stream, "stack", "error", "evil"));
    assert_null(strstr(stack, "evil"));
    free(stack);
    assert_int_equal(kill(agent, SIGCONT), 0);
    zmq_close(socket_of_stranger);
    zmq_ctx_term(context);
    roll_client_destroy(&client);
    unsetenv("ROLLCALL_INSECURE");
    (void)harness_end(rank, SIGKILL);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_was_not_asked_answers_for_nobody, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
