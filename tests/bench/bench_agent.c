/*
 * bench_agent.c: what watching a node of 8 ranks costs: `roll_bench agent`.
 *
 * Real processes write rings at a given rate, as the interposer does, without NCCL. A real agent sends them twice: to a
 * real root, for the processor time of each, how often each is put to sleep (its voluntary changes of context), and
 * their memory; and to a sink in this process, which stands for a root and reads a clock for each record: how many
 * frames, messages and bytes travel, and how old a record is when it arrives. Processor time is the kernel's own
 * account of the process (its CPU clock), not samples. With digests there is no sink: nothing is to be sent while the
 * calls agree, and the root's own account says whether all calls were compared.
 *
 * A rank is inside a call for 20 us, and so the agent meets calls that have not returned, as in a job.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_daemon.h"

#include "daemon/base/file.h"
#include "daemon/base/proc.h"
#include "daemon/wire/net.h"
#include "tests/daemon/synth.h"
#include "trace/err.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RANKS      8
#define SECONDS    8u
#define INSIDE_NS  20000u
#define PATIENCE_S 120
#define ACK_EVERY  1024 /* records, as a root acknowledges them */

static const struct {
    const char *name;
    uint32_t rate; /* calls a second and rank; 0: nothing moves */
    bool digest;
} kinds[] = {{"at_10000", 10000, false},
             {"at_500", 500, false},
             {"at_0", 0, false},
             {"at_10000_digest", 10000, true},
             {"at_500_digest", 500, true}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ranks */

static void rank_at_rate(const struct roll_bench_daemons *b, int rank, uint32_t rate)
{
    static struct synth s;
    if (synth_open(&s, b->dir, "bench", rank, RANKS, 65536) != 0) {
        _exit(1);
    }
    struct synth_call call = {.comm = synth_comm(&s, 0x3000), .count = 1024, .hang = true};
    uint64_t calls = (uint64_t)rate * SECONDS, group = rate >= 1000 ? rate / 1000 : 1;
    synth_return(&s, synth_allreduce(&s, &call)); /* a rank without any call is another matter: it is looked for */
    atomic_fetch_add(&b->board->ready, 1);
    while (atomic_load(&b->board->trial) == 0) {
        usleep(1000);
    }
    uint64_t begin = synth_mono_ns();
    for (uint64_t i = 0; i < calls; i++) {
        if (i % group == 0) {
            synth_until(begin + i * 1000000000u / rate);
        }
        uint64_t ticket = synth_allreduce(&s, &call), entered = synth_mono_ns();
        while (i % group + 1 == group && synth_mono_ns() - entered < INSIDE_NS) {
        }
        synth_return(&s, ticket);
    }
    atomic_fetch_add(&b->board->done[0], 1);
    while (!atomic_load(&b->board->stop)) {
        usleep(10000);
    }
    synth_finish(&s);
    _exit(0);
}

static void start_ranks(struct roll_bench_daemons *b, uint32_t rate)
{
    for (int i = 0; i < RANKS; i++) {
        b->rank[i] = fork();
        if (b->rank[i] == 0) {
            rank_at_rate(b, i, rate);
        }
    }
    while (atomic_load(&b->board->ready) < RANKS) {
        usleep(10000);
    }
    usleep(500000);
}

/* what a process costs */

struct cost {
    double cpu_s;
    uint64_t switches;            /* voluntary: how often its threads went to sleep */
    uint64_t own_kib, shared_kib; /* resident: of its own; of the rings, which are the ranks' memory */
    uint64_t private_kib; /* of its own and of nobody else: without the libraries that others have mapped, too */
};

static uint64_t number_of(const char *path, const char *line)
{
    char text[4096];
    const char *at = roll_read_text(path, text, sizeof(text)) > 0 ? roll_proc_word(text, line, "") : NULL;
    return at ? strtoull(at, NULL, 10) : 0;
}

static struct cost cost_of(pid_t pid)
{
    struct cost c = {0};
    clockid_t clock;
    struct timespec ts = {0};
    char path[300];
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &ts) == 0) {
        c.cpu_s = (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
    }
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    c.own_kib = number_of(path, "RssAnon:") + number_of(path, "RssFile:");
    c.shared_kib = number_of(path, "RssShmem:");
    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
    c.private_kib = number_of(path, "Private_Clean:") + number_of(path, "Private_Dirty:");
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", (int)pid, entry->d_name);
            c.switches += number_of(path, "voluntary_ctxt_switches:");
        }
    }
    if (d) {
        closedir(d);
    }
    return c;
}

static json_t *cost_between(const char *who, const struct cost *from, const struct cost *to, double wall, FILE *table,
                            const char *goal)
{
    char measured[80], figure[64];
    double percent = (to->cpu_s - from->cpu_s) / wall * 100, wakes = (double)(to->switches - from->switches) / wall;
    snprintf(figure, sizeof(figure), "  %s, of one core; sleeps a second; memory", who);
    snprintf(measured, sizeof(measured), "%.2f %%; %.0f; %.1f MiB", percent, wakes, (double)to->own_kib / 1024);
    roll_bench_line(table, figure, measured, goal);
    snprintf(measured, sizeof(measured), "%.1f MiB; %.1f MiB", (double)to->private_kib / 1024,
             (double)to->shared_kib / 1024);
    roll_bench_line(table, "    memory: private; of the ranks' rings", measured, "");
    return json_pack("{s:f,s:f,s:I,s:I,s:I}", "percent", percent, "sleeps_per_s", wakes, "rss_own_kib",
                     (json_int_t)to->own_kib, "rss_private_kib", (json_int_t)to->private_kib, "rss_rings_kib",
                     (json_int_t)to->shared_kib);
}

static json_int_t summary_of(const json_t *status, const char *member)
{
    return json_integer_value(json_object_get(json_object_get(status, "summary"), member));
}

/* The real root: what agent and root cost at this rate. */
static int with_root(uint32_t rate, bool digest, json_t *out, FILE *table)
{
    struct roll_bench_daemons b;
    char endpoint[256] = "", ignored[256], why[512], lost_text[64];
    int err = roll_bench_open(&b);
    err = err ? err
              : roll_bench_start(&b, 0, (const char *const[]){"--root", digest ? "--digest" : "--stream", NULL},
                                 endpoint, sizeof(endpoint));
    err = err ? err
              : roll_bench_start(&b, 1, (const char *const[]){"--agent", "--connect", endpoint, NULL}, ignored,
                                 sizeof(ignored));
    err = err ? err : roll_client_new(endpoint, NULL, 3000, &b.client, why, sizeof(why));
    json_t *reply = NULL;
    if (!err) {
        start_ranks(&b, rate);
        struct cost root = cost_of(b.daemon[0]), agent = cost_of(b.daemon[1]);
        uint64_t begin = synth_mono_ns();
        atomic_store(&b.board->trial, 1);
        sleep(SECONDS);
        struct cost root_after = cost_of(b.daemon[0]), agent_after = cost_of(b.daemon[1]);
        double wall = (double)(synth_mono_ns() - begin) * 1e-9;
        const char *goal = rate >= 10000 ? "< 4 %; < 16 MiB" : rate ? "< 0.5 %" : "";
        json_object_set_new(out, "agent", cost_between("agent", &agent, &agent_after, wall, table, goal));
        json_object_set_new(out, "root", cost_between("root", &root, &root_after, wall, table, ""));
        for (int i = 0; i < PATIENCE_S * 10 && atomic_load(&b.board->done[0]) < RANKS; i++) {
            usleep(100000); /* on a loaded machine the ranks may be behind */
        }
        usleep(500000);
        err = roll_client_query(b.client, json_pack("{s:s,s:i}", "op", "drain", "timeout_ms", 10000), 12000, &reply);
    }
    if (!err) {
        json_int_t records = summary_of(reply, digest ? "calls" : "records"), lost = summary_of(reply, "lost");
        json_int_t expected = (json_int_t)RANKS * (1 + (json_int_t)rate * SECONDS);
        json_object_set_new(out, "records", json_integer(records));
        json_object_set_new(out, "lost", json_integer(lost));
        snprintf(lost_text, sizeof(lost_text), "%lld, %lld", (long long)records, (long long)lost);
        roll_bench_line(table, digest ? "  calls compared, lost" : "  records judged, lost", lost_text, "no loss");
        if (!digest && records + lost != expected) { /* a ring that laps tells its loss to the status only */
            fprintf(stderr, "bench: %lld records of %lld arrived\n", (long long)records, (long long)expected);
            err = ROLL_E_INCOMPLETE;
        }
    }
    json_decref(reply);
    roll_bench_close(&b);
    return err;
}

/* the sink: as much of a root as the agent needs, and a clock */

#define AGES 16384

struct sink {
    void *socket;
    struct sink_stream {
        uint64_t epoch, next, acked;
    } stream[RANKS];
    size_t streams;
    uint64_t messages, frames, bytes, records, updates;
    double age_ms[AGES];
    uint64_t seen; /* records of which an age was looked at, of all or of one in so many */
};

static void acknowledge(struct sink *k, const zmq_msg_t *id, struct sink_stream *s, uint64_t seq)
{
    struct roll_frame_ack ack = {.next_ticket = s->next};
    struct roll_frame_head head = {.type = ROLL_FRAME_ACK, .stream = s->epoch, .seq = seq, .first = s->next};
    (void)roll_net_send(k->socket, zmq_msg_data((zmq_msg_t *)(uintptr_t)id), zmq_msg_size(id), &head, &ack,
                        sizeof(ack));
    s->acked = s->next;
}

static void sink_records(struct sink *k, const zmq_msg_t *id, const struct roll_frame *frame, uint64_t now)
{
    struct sink_stream *s = k->stream;
    while (s < k->stream + k->streams && s->epoch != frame->head.stream) {
        s++;
    }
    for (uint32_t i = 0; s < k->stream + k->streams && i < frame->head.count; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        if (frame->head.type == ROLL_FRAME_UPDATES || roll_seal_ticket(rec.seal) < s->next) {
            k->updates++;
            continue;
        }
        s->next = roll_seal_ticket(rec.seal) + 1;
        k->records++;
        k->age_ms[k->seen++ * 7919 % AGES] = now > rec.enter_ns ? (double)(now - rec.enter_ns) * 1e-6 : 0;
    }
    if (s < k->stream + k->streams && s->next - s->acked >= ACK_EVERY) {
        acknowledge(k, id, s, frame->head.seq);
    }
}

static void sink_frame(struct sink *k, const zmq_msg_t *id, const struct roll_frame *frame, uint64_t now)
{
    struct roll_frame_head welcome = {.type = ROLL_FRAME_WELCOME, .seq = frame->head.seq};
    switch (frame->head.type) {
    case ROLL_FRAME_HELLO:
        (void)roll_net_send(k->socket, zmq_msg_data((zmq_msg_t *)(uintptr_t)id), zmq_msg_size(id), &welcome,
                            "{\"resync\":false}", 16);
        break;
    case ROLL_FRAME_RING:
        if (k->streams < RANKS) {
            k->stream[k->streams++] = (struct sink_stream){.epoch = frame->head.stream};
            acknowledge(k, id, &k->stream[k->streams - 1], frame->head.seq);
        }
        break;
    case ROLL_FRAME_HEARTBEAT:
        for (size_t i = 0; i < k->streams; i++) {
            acknowledge(k, id, &k->stream[i], frame->head.seq);
        }
        break;
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        sink_records(k, id, frame, now);
        break;
    default:
        break;
    }
}

static void sink_until(struct sink *k, uint64_t end_ns)
{
    zmq_pollitem_t item = {k->socket, 0, ZMQ_POLLIN, 0};
    for (uint64_t now; (now = synth_mono_ns()) < end_ns;) {
        zmq_poll(&item, 1, (long)((end_ns - now) / 1000000 + 1));
        zmq_msg_t id, body;
        zmq_msg_init(&id);
        while (roll_net_recv(&id, k->socket) >= 0) {
            uint64_t came = synth_mono_ns();
            k->messages++;
            for (int more = zmq_msg_more(&id); more;) {
                struct roll_frame frame;
                zmq_msg_init(&body);
                if (roll_net_recv(&body, k->socket) < 0) {
                    zmq_msg_close(&body);
                    break;
                }
                more = zmq_msg_more(&body);
                if (roll_frame_decode(zmq_msg_data(&body), zmq_msg_size(&body), &frame, NULL) == 0) {
                    k->frames++;
                    k->bytes += zmq_msg_size(&body);
                    sink_frame(k, &id, &frame, came);
                }
                zmq_msg_close(&body);
            }
            zmq_msg_close(&id);
            zmq_msg_init(&id);
        }
        zmq_msg_close(&id);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sink_report(struct sink *k, const struct sink *from, double wall, json_t *out, FILE *table)
{
    char measured[64];
    double frames = (double)(k->frames - from->frames) / wall, messages = (double)(k->messages - from->messages) / wall,
           kib = (double)(k->bytes - from->bytes) / wall / 1024,
           twice = k->records ? (double)k->updates / (double)k->records * 100 : 0;
    size_t n = k->seen < AGES ? (size_t)k->seen : AGES;
    snprintf(measured, sizeof(measured), "%.0f; %.0f; %.0f", frames, messages, kib);
    roll_bench_line(table, "  frames, messages, KiB a second to the root", measured, "");
    json_object_set_new(out, "wire",
                        json_pack("{s:f,s:f,s:f,s:f}", "frames_per_s", frames, "messages_per_s", messages, "kib_per_s",
                                  kib, "sent_twice_percent", twice));
    if (n > 0) {
        double *age = k->age_ms;
        if (n < AGES) { /* the places are spread: bring those that were used to the front */
            qsort(age, AGES, sizeof(*age), by_size);
            age += AGES - n;
        } else {
            qsort(age, AGES, sizeof(*age), by_size);
        }
        double p50 = age[n / 2], p99 = age[n * 99 / 100];
        snprintf(measured, sizeof(measured), "%.1f ms, %.1f ms; %.1f %%", p50, p99, twice);
        roll_bench_line(table, "  entered to root, p50, p99; records sent twice", measured, "");
        json_object_set_new(out, "age", json_pack("{s:f,s:f}", "p50_ms", p50, "p99_ms", p99));
    }
}

static int with_sink(uint32_t rate, json_t *out, FILE *table)
{
    struct roll_bench_daemons b;
    static struct sink sink;
    char endpoint[128], ignored[256];
    sink = (struct sink){0};
    void *context = zmq_ctx_new();
    int err = roll_bench_open(&b);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/sink", b.dir);
    if (!err && (!context || !(sink.socket = roll_net_router(context, NULL)) || zmq_bind(sink.socket, endpoint) != 0)) {
        err = ROLL_E_IO;
    }
    err = err ? err
              : roll_bench_start(&b, 1, (const char *const[]){"--agent", "--connect", endpoint, NULL}, ignored,
                                 sizeof(ignored));
    if (!err) {
        start_ranks(&b, rate);
        sink_until(&sink, synth_mono_ns() + 500000000u);
        struct sink before = sink;
        uint64_t begin = synth_mono_ns();
        atomic_store(&b.board->trial, 1);
        sink_until(&sink, begin + (SECONDS / 2) * 1000000000ull);
        sink_report(&sink, &before, (double)(synth_mono_ns() - begin) * 1e-9, out, table);
    }
    if (b.daemon[1] > 0) { /* the sink is read to the end: libzmq 4.3 aborts when a peer ends behind a full queue */
        kill(b.daemon[1], SIGTERM);
        sink_until(&sink, synth_mono_ns() + 2000000000ull);
    }
    roll_bench_close(&b);
    if (sink.socket) {
        zmq_close(sink.socket);
    }
    if (context) {
        zmq_ctx_term(context);
    }
    return err;
}

int roll_bench_agent(json_t *out, FILE *table)
{
    int err = 0;
    for (size_t i = 0; i < KINDS && !err; i++) {
        uint32_t rate = kinds[i].rate;
        json_t *part = json_object();
        char name[64];
        snprintf(name, sizeof(name), rate ? "8 ranks at %u calls a second each" : "8 ranks in which nothing moves",
                 rate);
        fprintf(table, " %s%s\n", name, kinds[i].digest ? ", by digests" : "");
        json_object_set_new(part, "calls_per_rank_per_s", json_integer(rate));
        err = with_root(rate, kinds[i].digest, part, table);
        err = err || kinds[i].digest ? err : with_sink(rate, part, table);
        json_object_set_new(out, kinds[i].name, part);
    }
    return err;
}
