/*
 * many_ranks.c: an agent that speaks for as many ranks as a page can have to show, none of which there is.
 *
 *   many_ranks ENDPOINT JOB RANKS PER_HOST HOST
 *
 * Hosts are called HOST0, HOST1, ... It reads lines from standard input, "stopped 5 9", "dead 3 3", "running 5 9": the
 * ranks from one number to the other are so from then on, and says "ok" when that has been sent. It begins again when
 * a root asks it to, and ends with its input. Whoever asks for calls gets 256 of each rank, whose counts are how many
 * rings were asked for; after a line "lie 0 0" what is none, after "swell 0 0" more than there may be. Processes that
 * really write rings were rejected: 16,384 rings do not fit here.
 */
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define MOST   16384
#define CALLS  256
#define SWELLS (300 * 1024)

static void *agent;
static uint64_t seq;
static struct roll_ring ring;
static const char *job, *host;
static int ranks, per_host;
static uint8_t state[MOST]; /* enum roll_proc_state */
static enum { TRUTH, LIE, SWELL } answers = TRUTH;

static uint64_t now_ns(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void say(struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++seq;
    while (roll_net_send(agent, NULL, 0, &head, payload, bytes) == ROLL_E_BUSY) {
        usleep(1000);
    }
}

static void say_state(int r)
{
    struct roll_frame_status status = {.proc_state = state[r],
                                       .clock_mono_ns = now_ns(CLOCK_MONOTONIC),
                                       .clock_real_ns = now_ns(CLOCK_REALTIME),
                                       .exit_status = state[r] == ROLL_PROC_DEAD ? 9 : 0};
    say((struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = (uint64_t)r + 1}, &status, sizeof(status));
}

static void begin(void)
{
    char hello[128];
    snprintf(hello, sizeof(hello), "{\"agent\":\"rollcalld\",\"host\":\"many\",\"pid\":%d,\"dir\":\"/many\"}",
             (int)getpid());
    say((struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
    static struct roll_ring_header h;
    for (int r = 0; r < ranks; r++) {
        memcpy(&h, ring.header, sizeof(h));
        h.world_rank = r;
        h.world_size = ranks;
        h.local_rank = r % per_host;
        h.pid = 1000 + (uint32_t)r;
        h.epoch = (uint64_t)r + 1;
        snprintf(h.host, sizeof(h.host), "%s%d", host, r / per_host);
        snprintf(h.job, sizeof(h.job), "%s", job);
        h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
        say((struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h.epoch}, &h, sizeof(h));
        say_state(r);
    }
}

static json_t *calls_of(size_t asked)
{
    json_t *rows = json_array();
    if (answers == LIE) {
        json_decref(rows);
        return json_pack("{s:s,s:i,s:[{}],s:i}", "base_ms", "yesterday", "rows", 5, "comms", "sites", 7);
    }
    for (int i = 0; i < CALLS; i++) {
        json_array_append_new(rows, json_pack("[i,i,i,s,s,i,i,I,s,s,n,i,n,i,n]", i, i * 1000000, 300000, "complete",
                                              "AllReduce", 1, i, (json_int_t)asked, "float32", "sum", 0, 1));
    }
    json_t *calls =
        json_pack("{s:I,s:[{s:i,s:s,s:s,s:i,s:i}],s:[],s:o}", "base_ms", (json_int_t)(now_ns(CLOCK_REALTIME) / 1000000),
                  "comms", "id", 1, "key", "0x1", "name", "all", "rank", 0, "size", ranks, "sites", "rows", rows);
    json_object_set_new(calls, "columns",
                        json_pack("[s,s,s,s,s,s,s,s,s,s,s,s,s,s,s]", "ticket", "enter_ns", "call_ns", "state", "op",
                                  "comm", "seq", "count", "dtype", "redop", "peer", "group", "step", "thread", "site"));
    if (answers == SWELL) {
        static char much[SWELLS + 1];
        memset(much, 'x', SWELLS);
        json_object_set_new(calls, "much", json_string(much));
    }
    return calls;
}

/* An answer for each ring that was asked for. */
static void answer(const struct roll_frame *ask)
{
    json_t *json = roll_net_json(ask), *streams = json_object_get(json, "streams"), *stream;
    const char *op = json_string_value(json_object_get(json, "op"));
    size_t i;
    json_array_foreach(streams, i, stream)
    {
        json_t *out = op && strcmp(op, "calls") == 0 ? json_pack("{s:s,s:O,s:o}", "op", op, "stream", stream, "calls",
                                                                 calls_of(json_array_size(streams)))
                                                     : NULL;
        struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = ask->head.seq, .first = i};
        while (out && roll_net_send_json(agent, NULL, 0, &head, out) == ROLL_E_BUSY) {
            usleep(1000);
        }
        json_decref(out);
    }
    json_decref(json);
}

/* Takes what the root has said, and begins again where it asks for that. */
static void listen_to_root(void)
{
    bool again = false;
    for (;;) {
        struct roll_frame frame;
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, agent) < 0) {
            zmq_msg_close(&msg);
            break;
        }
        bool whole = roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0;
        if (whole && frame.head.type == ROLL_FRAME_WELCOME) {
            json_t *json = roll_net_json(&frame);
            again = again || json_is_true(json_object_get(json, "resync"));
            json_decref(json);
        } else if (whole && frame.head.type == ROLL_FRAME_ASK) {
            answer(&frame);
        }
        zmq_msg_close(&msg);
    }
    if (again) {
        begin();
    }
}

static void obey(const char *line)
{
    char what[16];
    int from, to;
    if (sscanf(line, "%15s %d %d", what, &from, &to) != 3 || from < 0 || to >= ranks) {
        return;
    }
    answers = strcmp(what, "lie") == 0 ? LIE : strcmp(what, "swell") == 0 ? SWELL : TRUTH;
    for (int r = from; r <= to && answers == TRUTH; r++) {
        state[r] = strcmp(what, "dead") == 0      ? ROLL_PROC_DEAD
                   : strcmp(what, "stopped") == 0 ? ROLL_PROC_STOPPED
                                                  : ROLL_PROC_RUNNING;
        say_state(r);
    }
    puts("ok");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 6 || atoi(argv[3]) < 1 || atoi(argv[3]) > MOST || atoi(argv[4]) < 1) {
        fprintf(stderr, "many_ranks ENDPOINT JOB RANKS PER_HOST HOST\n");
        return 2;
    }
    job = argv[2];
    ranks = atoi(argv[3]);
    per_host = atoi(argv[4]);
    host = argv[5];
    memset(state, ROLL_PROC_RUNNING, sizeof(state));
    struct roll_ring_params params = {.capacity = 64, .world_size = ranks, .job = "job", .exe = "many_ranks"};
    if (roll_ring_create(NULL, &params, &ring) != 0) {
        return 3;
    }
    void *context = zmq_ctx_new();
    agent = roll_net_dealer(context, NULL, "many/1", 0);
    if (!agent || zmq_connect(agent, argv[1]) != 0) {
        return 3;
    }
    begin();
    puts("ok");
    fflush(stdout);
    char line[256];
    uint64_t beat_ns = 0;
    for (bool more = true; more;) {
        struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&in, 1, 50) > 0) {
            more = fgets(line, sizeof(line), stdin) != NULL;
            obey(more ? line : "");
        }
        listen_to_root();
        if (now_ns(CLOCK_MONOTONIC) - beat_ns > 100000000u) {
            beat_ns = now_ns(CLOCK_MONOTONIC);
            say((struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT}, NULL, 0);
        }
    }
    zmq_close(agent);
    zmq_ctx_term(context);
    roll_ring_close(&ring);
    return 0;
}
