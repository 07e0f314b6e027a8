/*
 * test_root_verdicts.c: the verdicts of a root, without daemons: no JSON is kept, a verdict for which there is no
 * memory is counted and shown as lost, and those behind it are sent all the same. The feed's verdicts and their JSON
 * are the test's own (the linker's --wrap).
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/root/root_state.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define ENDPOINT "inproc://root"
#define VERDICTS 4u

/* what the root is given */

static uint64_t given, wanted;     /* verdicts that the feed gave, and is to give */
static bool is_huge;               /* a verdict's JSON has 1.5 MiB */
static uint64_t no_json, no_room;  /* the verdict with this number has no JSON, or no place in a list; 0 = none */
static json_t *made[4 * VERDICTS]; /* all JSON that was made; each held here once */
static size_t mades;

struct roll_verdict_copy *__wrap_roll_feed_next(roll_feed_t *feed);
json_t *__real_roll_verdict_to_json(const struct roll_verdict_copy *copy);
json_t *__wrap_roll_verdict_to_json(const struct roll_verdict_copy *copy);
int __real_roll_verdict_list_add(struct roll_verdict_list *list, struct roll_verdict_copy *copy);
int __wrap_roll_verdict_list_add(struct roll_verdict_list *list, struct roll_verdict_copy *copy);
char *__wrap_roll_verdict_to_text(const struct roll_verdict_copy *copy);

struct roll_verdict_copy *__wrap_roll_feed_next(roll_feed_t *feed)
{
    (void)feed;
    if (given == wanted) {
        return NULL;
    }
    const struct roll_verdict v = {
        .number = ++given, .code = ROLL_VERDICT_RANK_BUSY, .certainty = ROLL_NOTE, .text = "Rank 1 is busy."};
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, "job", 0);
    assert_non_null(copy);
    return copy;
}

json_t *__wrap_roll_verdict_to_json(const struct roll_verdict_copy *copy)
{
    if (copy->said.number == no_json) {
        return NULL;
    }
    assert_true(mades < sizeof(made) / sizeof(*made));
    json_t *json = __real_roll_verdict_to_json(copy);
    if (is_huge) {
        static char words[(3u << 20) / 2];
        memset(words, 'x', sizeof(words) - 1);
        json_object_set_new(json, "text", json_string(words));
    }
    return made[mades++] = json_incref(json);
}

/* As the one of verdict_json.c, which does not pass through the wrapper above. */
char *__wrap_roll_verdict_to_text(const struct roll_verdict_copy *copy)
{
    json_t *json = __wrap_roll_verdict_to_json(copy);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

int __wrap_roll_verdict_list_add(struct roll_verdict_list *list, struct roll_verdict_copy *copy)
{
    if (copy->said.number == no_room) {
        roll_verdict_copy_destroy(&copy);
        return ROLL_E_NOMEM;
    }
    return __real_roll_verdict_list_add(list, copy);
}

/* a root, and a console */

struct here {
    void *context, *console;
    roll_root_t *root;
    struct roll_run *run;
    char json[64];
};

static int set_up(void **state)
{
    struct here *h = calloc(1, sizeof(*h));
    char why[256] = "";
    given = wanted = no_json = no_room = mades = 0;
    is_huge = false;
    snprintf(h->json, sizeof(h->json), "/tmp/roll_verdicts_XXXXXX");
    int fd = mkstemp(h->json);
    assert_true(fd >= 0);
    close(fd);
    h->context = zmq_ctx_new();
    struct roll_root_options o = {
        .context = h->context, .listen = {ENDPOINT}, .listens = 1, .json_path = h->json, .linger_s = 1};
    assert_int_equal(roll_root_new(&o, &h->root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(h->root, "job", 0, ROLL_WORLD_UNASKED, &h->run), 0);
    h->console = roll_net_dealer(h->context, NULL, "console", 100);
    assert_int_equal(zmq_connect(h->console, ENDPOINT), 0);
    *state = h;
    return 0;
}

static int tear_down(void **state)
{
    struct here *h = *state;
    zmq_close(h->console);
    roll_root_destroy(&h->root);
    for (size_t i = 0; i < mades; i++) {
        assert_int_equal(made[i]->refcount, 1); /* nobody else has kept it */
        json_decref(made[i]);
    }
    zmq_ctx_destroy(h->context);
    unlink(h->json);
    free(h);
    return 0;
}

/* The console asks, and the root takes that. */
static void ask(struct here *h, const char *op)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = 1};
    json_t *query = json_pack("{s:s}", "op", op);
    assert_int_equal(roll_net_send_json(h->console, NULL, 0, &head, query), 0);
    json_decref(query);
    zmq_msg_t id, body;
    struct roll_address from = {.socket = h->root->socket[0]};
    struct roll_frame frame;
    zmq_msg_init(&id);
    zmq_msg_init(&body);
    while (roll_net_recv(&id, from.socket) < 0) {
        usleep(1000);
    }
    from.bytes = zmq_msg_size(&id);
    memcpy(from.id, zmq_msg_data(&id), from.bytes);
    assert_true(roll_net_recv(&body, from.socket) >= 0);
    assert_int_equal(roll_frame_decode(zmq_msg_data(&body), zmq_msg_size(&body), &frame, NULL), 0);
    roll_query(h->root, &from, &frame);
    zmq_msg_close(&id);
    zmq_msg_close(&body);
}

/* The feed gives its verdicts, and the root pushes them. */
static void say_all(struct here *h)
{
    wanted = VERDICTS;
    roll_run_tick(h->root, h->run, 1000000000, false);
    roll_push_verdicts(h->root);
}

/* The numbers of the verdicts that the console got, as digits. */
static void pushed(struct here *h, char out[VERDICTS + 1])
{
    size_t n = 0;
    for (;;) {
        zmq_msg_t msg;
        struct roll_frame frame;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, h->console) < 0) {
            zmq_msg_close(&msg);
            break;
        }
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        if (frame.head.type == ROLL_FRAME_VERDICT) {
            assert_true(n < VERDICTS);
            out[n++] = (char)('0' + frame.head.seq);
        }
        zmq_msg_close(&msg);
    }
    out[n] = '\0';
}

static unsigned lines(const struct here *h)
{
    FILE *f = fopen(h->json, "r");
    unsigned n = 0;
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;) {
        n += c == '\n';
    }
    fclose(f);
    return n;
}

/* What the status says of verdicts that were lost. */
static json_int_t lost(struct here *h)
{
    json_t *status = roll_status_json(h->root, h->run, ROLL_STATUS_ROWS);
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "losses"), "verdict"));
    json_decref(status);
    return n;
}

static void what_was_written_and_sent_is_not_kept_as_json(void **state)
{
    struct here *h = *state;
    char got[VERDICTS + 1];
    ask(h, "subscribe");
    say_all(h);
    pushed(h, got);
    assert_string_equal(got, "1234");
    assert_int_equal(lines(h), VERDICTS);
    assert_int_equal(h->run->verdicts.used, VERDICTS);
    assert_int_equal(mades, 2 * VERDICTS); /* for the file and for the console; tear-down sees that all of it is gone */
    assert_int_equal(lost(h), 0);
}

static void json_that_cannot_be_made_holds_up_nobody(void **state)
{
    struct here *h = *state;
    char got[VERDICTS + 1];
    ask(h, "subscribe");
    no_json = 2;
    say_all(h);
    pushed(h, got);
    assert_string_equal(got, "134");
    assert_int_equal(lines(h), VERDICTS - 1);
    assert_int_equal(lost(h), 2); /* one is missing in the file, and one at the console */
    roll_push_verdicts(h->root);
    pushed(h, got);
    assert_string_equal(got, "");
    assert_int_equal(lost(h), 2);
}

static void a_verdict_that_cannot_be_kept_is_counted(void **state)
{
    struct here *h = *state;
    char got[VERDICTS + 1];
    ask(h, "subscribe");
    no_room = 3;
    say_all(h);
    pushed(h, got);
    assert_string_equal(got, "124");
    assert_int_equal(lines(h), VERDICTS);
    assert_int_equal(lost(h), 1);
}

/* Four verdicts of 1.5 MiB: no message holds them together. */
static void an_answer_that_is_too_large_says_so(void **state)
{
    struct here *h = *state;
    zmq_msg_t msg;
    struct roll_frame frame;
    say_all(h);
    is_huge = true;
    ask(h, "verdicts");
    zmq_msg_init(&msg);
    while (roll_net_recv(&msg, h->console) < 0) {
        usleep(1000);
    }
    assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
    assert_int_equal(frame.head.type, ROLL_FRAME_REPLY);
    json_t *answer = roll_net_json(&frame);
    assert_string_equal(json_string_value(json_object_get(answer, "error")),
                        "the answer is larger than a message may be: ask about less");
    json_decref(answer);
    zmq_msg_close(&msg);
}

static void a_file_that_is_full_is_counted(void **state)
{
    struct here *h = *state;
    close(h->root->json_fd);
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) {
        skip();
    }
    h->root->json_fd = dup(fileno(full));
    fclose(full);
    say_all(h);
    assert_int_equal(lost(h), VERDICTS);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(what_was_written_and_sent_is_not_kept_as_json),
        TEST(json_that_cannot_be_made_holds_up_nobody),
        TEST(a_verdict_that_cannot_be_kept_is_counted),
        TEST(an_answer_that_is_too_large_says_so),
        TEST(a_file_that_is_full_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
