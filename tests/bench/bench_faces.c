/*
 * bench_faces.c: how long a root of 64 to 16,384 ranks takes to answer those who look at it: `top`, `status`, `why`, a
 * scrape of its metrics; and what it costs to have all these ranks announced while nothing happens.
 *
 * The root is a real one. The nodes are a process that speaks as relays do, of 512 ranks each: it announces rings that
 * do not exist and says of them what agents would say. Streamed, each rank has made some calls and is inside one, and
 * they are up to 64 calls apart, as in a job that has just begun to hang. By digests, fronts go on ten times a second
 * and each ring's STATUS comes every 5 s. Rings of real agents were rejected: 16,384 of them take a terabyte of pages.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_daemon.h"

#include "daemon/base/log.h"
#include "daemon/console/top/top_view.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/wire/client.h"
#include "daemon/wire/net.h"
#include "tests/daemon/synth.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define COMMS      4u   /* of each rank: world, across (ranks / 64), 64 neighbours, 8 */
#define BELOW      512u /* ranks of one relay */
#define APART      64u
#define CALLS      64u /* of the rank that is furthest behind */
#define LOOKS      5u  /* of each question */
#define BEAT_NS    UINT64_C(100000000)
#define STATUS_NS  UINT64_C(5000000000)
#define SETTLE_MS  300000
#define ANSWER_MS  60000
#define TOP_ROWS   256
#define CALM_S     4
#define HTTP_FIRST 19400

static const uint32_t sizes[] = {64, 1024, 4096, 16384};

struct nodes {
    uint32_t ranks, peers;
    bool digest;
    uint64_t begin_ns;
    struct roll_ring_header header;
    void *context;
    void **socket; /* of each peer */
    uint64_t *seq;
    uint64_t **stream; /* epochs of a peer's rings */
};

static struct roll_def_comm comm_of(uint32_t ranks, uint32_t c, uint32_t rank)
{
    uint32_t across = ranks / 64 > 1 ? ranks / 64 : 1;
    const uint32_t size[COMMS] = {ranks, across, 64, 8};
    uint32_t group = c == 1 ? rank % 64 : rank / size[c], at = c == 1 ? rank / 64 : rank % size[c];
    return (struct roll_def_comm){.key = (uint64_t)(c + 1) << 32 | (group + 1),
                                  .rank = (int32_t)at,
                                  .nranks = (int32_t)size[c],
                                  .color = ROLL_COLOR_NONE,
                                  .origin = ROLL_COMM_SPLIT};
}

/* sending */

static void drop_input(void *socket)
{
    zmq_msg_t msg;
    do {
        zmq_msg_init(&msg);
    } while (roll_net_recv(&msg, socket) >= 0 && zmq_msg_close(&msg) == 0);
    zmq_msg_close(&msg);
}

static void say(struct nodes *n, uint32_t peer, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++n->seq[peer];
    while (roll_net_send(n->socket[peer], NULL, 0, &head, payload, bytes) == ROLL_E_BUSY) {
        drop_input(n->socket[peer]);
        usleep(500);
    }
}

static uint32_t made_by(uint32_t rank)
{
    return CALLS + rank * 29u % APART;
}

static void announce(struct nodes *n, uint32_t peer, uint32_t rank)
{
    struct roll_ring_header *h = &n->header;
    uint64_t stream = UINT64_C(0x5eed000000000000) + rank + 1;
    uint8_t defs[COMMS * 256] = {0};
    size_t used = 0;
    h->world_rank = (int32_t)rank;
    h->world_size = (int32_t)n->ranks;
    h->local_rank = (int32_t)(rank % 8);
    h->pid = rank + 1000;
    h->epoch = stream;
    snprintf(h->host, sizeof(h->host), "n%u", rank / 8);
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
    say(n, peer, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = stream}, h, sizeof(*h));
    for (uint32_t c = 0; c < COMMS && !n->digest; c++) {
        struct roll_def_comm info = comm_of(n->ranks, c, rank);
        struct roll_def_head head = {
            .seal = ROLL_DEF_SEAL | ROLL_DEF_COMM, .id = c + 1, .bytes = sizeof(head) + (sizeof(info) + 7) / 8 * 8};
        memcpy(defs + used, &head, sizeof(head));
        memcpy(defs + used + sizeof(head), &info, sizeof(info));
        used += head.bytes;
    }
    if (used > 0) {
        say(n, peer, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = stream}, defs, used);
    }
    n->stream[peer][rank % BELOW] = stream;
}

/* The rank's calls: of sixteen one is of all ranks, three across, four of 64 neighbours, eight of the node. */
static void send_records(struct nodes *n, uint32_t peer, uint32_t rank)
{
    static struct roll_record recs[CALLS + APART];
    uint32_t made = made_by(rank), seq[COMMS] = {0};
    for (uint32_t i = 0; i < made; i++) {
        uint32_t at = i % 16, c = at == 0 ? 0 : at < 4 ? 1 : at < 8 ? 2 : 3;
        recs[i] = (struct roll_record){.seal = roll_seal(i, i + 1 < made ? ROLL_STATE_RETURNED : ROLL_STATE_ENTERED),
                                       .enter_ns = n->begin_ns + i * 1000000u,
                                       .count = 1024,
                                       .seq = seq[c]++,
                                       .peer = ROLL_PEER_NONE,
                                       .call_ns = i + 1 < made ? 1000 : 0,
                                       .step = i / 16,
                                       .comm = (uint16_t)(c + 1),
                                       .stream = (uint16_t)(c + 1),
                                       .thread = 1,
                                       .layer = ROLL_LAYER_NONE,
                                       .op = ROLL_OP_ALLREDUCE,
                                       .dtype = ROLL_DTYPE_FLOAT32,
                                       .redop = ROLL_RED_SUM};
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                   .stream = n->stream[peer][rank % BELOW],
                                   .rec_size = sizeof(recs[0]),
                                   .count = made};
    say(n, peer, head, recs, made * sizeof(recs[0]));
}

static void send_status(struct nodes *n, uint32_t peer, uint32_t rank, uint32_t calls)
{
    struct {
        struct roll_frame_status status;
        struct roll_frame_last last;
    } both = {.status = {.head = n->digest ? calls : made_by(rank),
                         .proc_state = ROLL_PROC_RUNNING,
                         .exit_status = ROLL_EXIT_UNKNOWN},
              .last = {.calls = calls,
                       .comm = comm_of(n->ranks, rank % COMMS, rank).key,
                       .enter_ns = synth_mono_ns(),
                       .seq = calls / COMMS + rank * 29u % APART,
                       .comms = COMMS,
                       .op = ROLL_OP_ALLREDUCE}};
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    both.status.clock_mono_ns = synth_mono_ns();
    both.status.clock_real_ns = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
    say(n, peer, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = n->stream[peer][rank % BELOW]}, &both,
        n->digest ? sizeof(both) : sizeof(both.status));
}

/* What a relay tells of its members of the communicators that are not all below it. */
static void send_digest(struct nodes *n, uint32_t peer, uint32_t calls)
{
    uint32_t here = n->ranks - peer * BELOW < BELOW ? n->ranks - peer * BELOW : BELOW, across = n->ranks / 64;
    struct roll_digest d = {0};
    struct roll_digest_cursor cursor = {0};
    static uint8_t payload[65536];
    if (n->peers > 1) {
        roll_digest_add_front(&d, &(struct roll_digest_front){.key = comm_of(n->ranks, 0, 0).key,
                                                              .size = n->ranks,
                                                              .members = here,
                                                              .low = calls,
                                                              .high = calls + 9});
    }
    for (uint32_t g = 0; g < 64 && n->peers > 1; g++) {
        roll_digest_add_front(&d, &(struct roll_digest_front){.key = comm_of(n->ranks, 1, g).key,
                                                              .size = across,
                                                              .members = here / 64,
                                                              .low = calls * 3,
                                                              .high = calls * 3 + g % 5});
    }
    size_t bytes = roll_digest_encode(&d, &cursor, payload, sizeof(payload));
    struct roll_frame_head head = {
        .type = ROLL_FRAME_DIGEST, .stream = n->stream[peer][0], .first = (uint64_t)calls * 16 * here};
    say(n, peer, head, payload, bytes);
    roll_digest_fini(&d);
}

static void hello(struct nodes *n, uint32_t peer)
{
    char host[32];
    snprintf(host, sizeof(host), "relay%u", peer);
    json_t *json = json_pack("{s:s,s:s,s:i,s:s,s:s}", "agent", host, "host", host, "pid", (int)peer + 1, "version", "0",
                             "dir", host);
    struct roll_frame_head head = {.type = ROLL_FRAME_HELLO, .seq = ++n->seq[peer]};
    roll_net_send_json(n->socket[peer], NULL, 0, &head, json);
    json_decref(json);
}

static uint32_t below(const struct nodes *n, uint32_t peer)
{
    return n->ranks - peer * BELOW < BELOW ? n->ranks - peer * BELOW : BELOW;
}

static void run_nodes(struct nodes *n, const char *endpoint)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    n->context = zmq_ctx_new();
    n->socket = calloc(n->peers, sizeof(*n->socket));
    n->seq = calloc(n->peers, sizeof(*n->seq));
    n->stream = calloc(n->peers, sizeof(*n->stream));
    for (uint32_t p = 0; p < n->peers; p++) {
        n->stream[p] = calloc(BELOW, sizeof(uint64_t));
        n->socket[p] = roll_net_dealer(n->context, NULL, "", 0);
        if (!n->socket[p] || zmq_connect(n->socket[p], endpoint) != 0) {
            _exit(1);
        }
        hello(n, p);
        for (uint32_t r = p * BELOW; r < p * BELOW + below(n, p); r++) {
            announce(n, p, r);
            if (!n->digest) {
                send_records(n, p, r);
            }
            send_status(n, p, r, CALLS);
        }
    }
    uint64_t told = synth_mono_ns();
    for (uint32_t turn = 0;; turn++) {
        uint64_t now = synth_mono_ns();
        bool all = now - told > STATUS_NS;
        for (uint32_t p = 0; p < n->peers; p++) {
            drop_input(n->socket[p]);
            for (uint32_t r = p * BELOW; n->digest && all && r < p * BELOW + below(n, p); r++) {
                send_status(n, p, r, CALLS + turn * 4);
            }
            if (n->digest) {
                send_digest(n, p, CALLS + turn);
            }
            struct roll_frame_heartbeat beat = {.agents = 64};
            say(n, p, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT}, &beat, sizeof(beat));
        }
        told = all ? now : told;
        synth_until(now + BEAT_NS);
    }
}

/* asking */

/* Of LOOKS answers the quickest and the slowest, and the least time that the root worked meanwhile: on a machine that
 * is busy with other things the time of the clock tells of those. */
struct took {
    double best_ms, worst_ms, cpu_ms;
};

struct measured {
    double ready_s, screen, calm_core;
    struct took status, top, why, why_rank, scrape;
    size_t top_bytes, why_bytes, rows;
};

static pid_t watched; /* the root */

static double cpu_s(pid_t pid)
{
    clockid_t clock;
    struct timespec t = {0};
    if (clock_getcpuclockid(pid, &clock) == 0) {
        clock_gettime(clock, &t);
    }
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double since_ms(uint64_t begin)
{
    return (double)(synth_mono_ns() - begin) * 1e-6;
}

static void note(struct took *took, double ms, double cpu_ms)
{
    bool first = took->worst_ms == 0;
    took->best_ms = first || ms < took->best_ms ? ms : took->best_ms;
    took->worst_ms = ms > took->worst_ms ? ms : took->worst_ms;
    took->cpu_ms = first || cpu_ms < took->cpu_ms ? cpu_ms : took->cpu_ms;
}

/* Returns owned; NULL: there is no answer. Takes the query. */
static json_t *ask(roll_client_t *client, json_t *query, struct took *took)
{
    json_t *reply = NULL;
    double cpu = cpu_s(watched);
    uint64_t begin = synth_mono_ns();
    int err = roll_client_query(client, query, ANSWER_MS, &reply);
    double ms = since_ms(begin);
    const char *refused = json_string_value(json_object_get(reply, "error"));
    if (err || refused) {
        fprintf(stderr, "bench: a question was not answered: %s\n", refused ? refused : roll_strerror(err));
        json_decref(reply);
        return NULL;
    }
    note(took, ms, (cpu_s(watched) - cpu) * 1e3);
    return reply;
}

static size_t bytes_of(const json_t *json)
{
    return json ? json_dumpb(json, NULL, 0, JSON_COMPACT) : 0;
}

/* What `top` does with an answer. */
static void show(json_t *status, struct measured *m)
{
    uint64_t begin = synth_mono_ns();
    char *text = NULL;
    size_t bytes = 0;
    json_t *none = json_array();
    FILE *out = open_memstream(&text, &bytes);
    roll_top_sort(status);
    roll_top_print(status, none, begin, false, 160, out);
    fclose(out);
    double took = since_ms(begin);
    m->screen = m->screen == 0 || took < m->screen ? took : m->screen;
    m->rows = 0;
    for (size_t i = 0; i < bytes; i++) {
        m->rows += text[i] == '\n';
    }
    json_decref(none);
    free(text);
}

/* One GET of the metrics; ms, -1: none. */
static double scrape(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    char buffer[65536];
    size_t bytes = 0;
    ssize_t n;
    uint64_t begin = synth_mono_ns();
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof(to)) != 0 || write(s, get, sizeof(get) - 1) < 0) {
        close(s);
        return -1;
    }
    while ((n = read(s, buffer, sizeof(buffer))) > 0) {
        bytes += (size_t)n;
    }
    close(s);
    return bytes > 1000 ? since_ms(begin) : -1;
}

static bool is_ready(const json_t *status, const struct nodes *n)
{
    const json_t *summary = json_object_get(status, "summary");
    json_int_t calls = 0, records = json_integer_value(json_object_get(summary, "records"));
    for (uint32_t r = 0; r < n->ranks; r++) {
        calls += made_by(r);
    }
    return json_integer_value(json_object_get(summary, "ranks")) == (json_int_t)n->ranks &&
           (n->digest || records == calls);
}

static int ask_all(roll_client_t *client, pid_t root, int port, const struct nodes *n, struct measured *m)
{
    uint64_t begin = synth_mono_ns();
    bool ready = false;
    while (!ready && since_ms(begin) < SETTLE_MS) {
        struct took unused = {0};
        json_t *status = ask(client, json_pack("{s:s,s:i}", "op", "status", "rows", TOP_ROWS), &unused);
        ready = is_ready(status, n);
        json_decref(status);
        usleep(100000);
    }
    m->ready_s = since_ms(begin) * 1e-3;
    if (!ready) {
        return ROLL_E_TIMEOUT;
    }
    sleep(2);
    double used = cpu_s(root);
    sleep(CALM_S);
    m->calm_core = (cpu_s(root) - used) / CALM_S;
    for (unsigned i = 0; i < LOOKS; i++) {
        json_decref(ask(client, json_pack("{s:s}", "op", "status"), &m->status));
        json_t *top = ask(client, json_pack("{s:s,s:i}", "op", "status", "rows", TOP_ROWS), &m->top);
        m->top_bytes = bytes_of(top);
        if (top) {
            show(top, m);
        }
        json_decref(top);
        json_t *why = ask(client, json_pack("{s:s}", "op", "why"), &m->why);
        m->why_bytes = bytes_of(why);
        json_decref(why);
        json_decref(ask(client, json_pack("{s:s,s:i}", "op", "why", "rank", (int)(i * 7 % n->ranks)), &m->why_rank));
        double cpu = cpu_s(root), ms = scrape(port);
        note(&m->scrape, ms < 0 ? ANSWER_MS : ms, (cpu_s(root) - cpu) * 1e3);
    }
    return 0;
}

static int measure(uint32_t ranks, bool digest, struct measured *m)
{
    static int port = HTTP_FIRST;
    struct nodes n = {.ranks = ranks, .peers = (ranks + BELOW - 1) / BELOW, .digest = digest};
    char dir[] = "/dev/shm/rollcall-bench-XXXXXX", console[128], where[256], http[32], command[64], why[512];
    struct synth seed;
    roll_client_t *client = NULL;
    pid_t root = 0, speaker = 0;
    if (!mkdtemp(dir) || synth_open(&seed, dir, "faces", 0, 1, 64) != 0) {
        return ROLL_E_IO;
    }
    memcpy(&n.header, seed.ring.header, sizeof(n.header));
    synth_close(&seed);
    n.begin_ns = synth_mono_ns();
    snprintf(console, sizeof(console), "ipc://%s/root.socket", dir);
    snprintf(http, sizeof(http), "127.0.0.1:%d", ++port);
    int err = roll_bench_launch(
        &root,
        (const char *const[]){"--root", digest ? "--digest" : "--stream", "--listen", console, "--http", http, NULL},
        where, sizeof(where));
    watched = root;
    if (!err) {
        speaker = fork();
        if (speaker == 0) {
            run_nodes(&n, console);
        }
        err = roll_client_new(console, NULL, 3000, &client, why, sizeof(why));
    }
    err = err ? err : ask_all(client, root, port, &n, m);
    roll_client_destroy(&client);
    for (int i = 0; i < 2; i++) {
        pid_t pid = i ? root : speaker;
        if (pid > 0) {
            kill(pid, SIGKILL); /* neither has anything to put in order */
            waitpid(pid, NULL, 0);
        }
    }
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command) == 0 ? err : ROLL_E_IO;
}

static const char *text_of(const struct took *t, char out[48])
{
    snprintf(out, 48, "%.0f (%.0f)", t->best_ms, t->cpu_ms);
    return out;
}

static json_t *json_of(const struct took *t)
{
    return json_pack("{s:f,s:f,s:f}", "best_ms", t->best_ms, "worst_ms", t->worst_ms, "cpu_ms", t->cpu_ms);
}

int roll_bench_faces(json_t *out, FILE *table)
{
    json_t *rows = json_array();
    int err = 0;
    roll_log_init(true);
    json_object_set_new(out, "faces", rows);
    fprintf(
        table,
        "  ms until the answer is here (ms that the root worked for it), the least of %u; calm: what the root needs "
        "of a core while nobody asks\n",
        LOOKS);
    fprintf(table, "  %6s  %-8s  %11s  %11s  %6s  %11s  %11s  %11s  %9s  %9s  %5s  %7s\n", "ranks", "", "status", "top",
            "screen", "why", "why RANK", "metrics", "top's", "why's", "lines", "calm");
    for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]) && !err; i++) {
        struct measured m = {0};
        uint32_t ranks = sizes[i / 2];
        bool digest = i % 2 != 0;
        char text[5][48];
        err = measure(ranks, digest, &m);
        fprintf(table, "  %6u  %-8s  %11s  %11s  %6.1f  %11s  %11s  %11s  %5.0f KiB  %5.0f KiB  %5zu  %5.1f %%\n",
                ranks, digest ? "digests" : "streamed", text_of(&m.status, text[0]), text_of(&m.top, text[1]), m.screen,
                text_of(&m.why, text[2]), text_of(&m.why_rank, text[3]), text_of(&m.scrape, text[4]),
                (double)m.top_bytes / 1024, (double)m.why_bytes / 1024, m.rows, m.calm_core * 100);
        fflush(table);
        json_array_append_new(
            rows, json_pack("{s:i,s:b,s:o,s:o,s:f,s:o,s:o,s:o,s:I,s:I,s:I,s:f,s:f}", "ranks", (int)ranks, "digests",
                            (int)digest, "status", json_of(&m.status), "top", json_of(&m.top), "screen_ms", m.screen,
                            "why", json_of(&m.why), "why_rank", json_of(&m.why_rank), "metrics", json_of(&m.scrape),
                            "top_bytes", (json_int_t)m.top_bytes, "why_bytes", (json_int_t)m.why_bytes, "lines",
                            (json_int_t)m.rows, "calm_core", m.calm_core, "ready_s", m.ready_s));
    }
    return err;
}
