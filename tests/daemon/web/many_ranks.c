/*
 * many_ranks.c: an agent that speaks for as many ranks as a page can have to show, none of which there is.
 *
 *   many_ranks ENDPOINT JOB RANKS PER_HOST HOST
 *
 * Hosts are called HOST0, HOST1, ... It reads lines from standard input, "stopped 5 9", "dead 3 3", "running 5 9": the
 * ranks from one number to the other are so from then on, and says "ok" when that has been sent. It begins again when
 * a root asks it to, and ends with its input. Processes that really write rings were rejected: 16,384 rings do not fit
 * here.
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

#define MOST 16384

static void *agent;
static uint64_t seq;
static struct roll_ring ring;
static const char *job, *host;
static int ranks, per_host;
static uint8_t state[MOST]; /* enum roll_proc_state */

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
        if (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0 &&
            frame.head.type == ROLL_FRAME_WELCOME) {
            json_t *json = roll_net_json(&frame);
            again = again || json_is_true(json_object_get(json, "resync"));
            json_decref(json);
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
    for (int r = from; r <= to; r++) {
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
