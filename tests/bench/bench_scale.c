/*
 * bench_scale.c: a large job as its daemons see it: real agents, relays and a root over real sockets, CURVE between
 * relays and root, rings that are written at the pace of a job.
 *
 * The nodes are not machines: one process holds NODES of them, an agent's own code in a thread for each, and one more
 * thread that writes the rings of all their ranks as the interposer does. What an agent costs is the time of its
 * thread, so the writers are not in it. Each rank is somewhere else in its step, up to SKEW_NS behind the first one,
 * and one in a hundred is a second later still. Simulated agents that only send prepared digests were rejected: the
 * wake-ups of an agent are most of what it costs.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_daemon.h"

#include "daemon/agent/agent.h"
#include "daemon/base/log.h"
#include "daemon/wire/client.h"
#include "tests/daemon/synth.h"
#include "trace/def.h"
#include "trace/err.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define RANKS_A_NODE 8
#define NODES        16 /* of one process, and below one relay */
#define RATE         500u
#define CAPACITY     4096u /* records of a ring: 8 s */
#define SKEW_NS      UINT64_C(2000000000)
#define SLOW_NS      UINT64_C(1000000000)
#define TICK_NS      UINT64_C(20000000)
#define WINDOW_S     10
#define TRIALS       8
#define TRIAL_MS     30000
#define HOSTS_MOST   64
#define SETTLE_MS    120000

static const uint32_t sizes[] = {64, 256, 512}; /* two cores write and read no more calls in real time */

/* Shared with the processes of the nodes. */
struct board {
    _Atomic uint32_t ready, stop, trial, wrong_rank;
    _Atomic uint64_t wrong_ns, wrong_key, start_ns;
    _Atomic uint64_t agent_ns[HOSTS_MOST], late_ns[HOSTS_MOST];
};

struct fleet {
    char dir[64], keys[96], console[128], root_at[256];
    uint32_t ranks, nodes, hosts, relays;
    pid_t root, relay[HOSTS_MOST], host[HOSTS_MOST];
    char door[HOSTS_MOST][256];
    struct board *board;
    roll_client_t *client;
};

/* the ranks of a node */

struct comm {
    uint64_t key;
    uint16_t id;
};

struct writer {
    struct synth synth;
    uint32_t rank;
    uint64_t behind_ns, made;
    struct comm comm[4]; /* world, across, 64, 8 */
};

static uint32_t spread(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    return x ^ (x >> 16);
}

static struct comm make_comm(struct writer *w, uint64_t key, uint32_t rank, uint32_t size)
{
    struct roll_def_comm def = {.key = key,
                                .rank = (int32_t)rank,
                                .nranks = (int32_t)size,
                                .color = ROLL_COLOR_NONE,
                                .origin = ROLL_COMM_INIT,
                                .device = (int32_t)(w->rank % RANKS_A_NODE)};
    w->synth.comms++;
    roll_def_append(&w->synth.ring, ROLL_DEF_COMM, w->synth.comms, &def, sizeof(def), NULL, 0);
    return (struct comm){key, w->synth.comms};
}

static int open_writer(struct writer *w, const struct fleet *f, const char *dir, uint32_t rank)
{
    uint32_t across = f->ranks / 64;
    int err = synth_open(&w->synth, dir, "scale", (int32_t)rank, (int32_t)f->ranks, CAPACITY);
    if (err) {
        return err;
    }
    w->rank = rank;
    w->behind_ns = spread(rank) % SKEW_NS + (spread(rank ^ 0x5555u) % 100 == 0 ? SLOW_NS : 0);
    w->comm[0] = make_comm(w, 0x1000, rank, f->ranks);
    w->comm[1] = across > 1 ? make_comm(w, 0x20000u + rank % 64, rank / 64, across) : w->comm[0];
    w->comm[2] = make_comm(w, 0x30000u + rank / 64, rank % 64, 64);
    w->comm[3] = make_comm(w, 0x40000u + rank / 8, rank % 8, 8);
    return 0;
}

/* Of sixteen calls one is of all ranks, three are across, four of 64 neighbours, eight of the node. */
static const struct comm *comm_of(const struct writer *w, uint64_t call)
{
    unsigned at = (unsigned)(call % 16);
    return &w->comm[at == 0 ? 0 : at < 4 ? 1 : at < 8 ? 2 : 3];
}

static void write_until(struct writer *w, struct board *b, uint64_t now, uint32_t *seen)
{
    uint64_t since = now - atomic_load(&b->start_ns);
    uint64_t behind = since / 2 < w->behind_ns ? since / 2 : w->behind_ns; /* all begin together, and drift apart */
    uint64_t due = (since - behind) * RATE / 1000000000u;
    for (; w->made < due; w->made++) {
        const struct comm *comm = comm_of(w, w->made);
        uint32_t trial = atomic_load(&b->trial);
        bool wrong = trial > *seen && atomic_load(&b->wrong_rank) == w->rank && w->made % 16 == trial % 8;
        if (wrong) {
            *seen = trial;
            atomic_store(&b->wrong_key, comm->key);
            atomic_store(&b->wrong_ns, synth_mono_ns());
        }
        synth_allreduce(&w->synth, &(struct synth_call){.comm = comm->id, .count = wrong ? 999 : 1024});
    }
}

/* the process of some nodes */

struct node {
    pthread_t thread;
    char dir[96];
    struct roll_agent_options options;
    uint64_t used_ns;
    int err;
};

static uint64_t thread_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t process_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void *agent_main(void *argument)
{
    struct node *node = argument;
    char why[256] = "";
    node->err = roll_agent_run(&node->options, why, sizeof(why));
    if (node->err) {
        fprintf(stderr, "bench: an agent: %s\n", why);
    }
    return NULL;
}

static void run_host(const struct fleet *f, uint32_t host)
{
    static _Atomic bool stop;
    struct board *b = f->board;
    uint32_t first = host * NODES, nodes = f->nodes - first < NODES ? f->nodes - first : NODES;
    uint32_t ranks = nodes * RANKS_A_NODE, seen = 0;
    struct writer *w = calloc(ranks, sizeof(*w));
    struct node *node = calloc(nodes, sizeof(*node));
    void *context = zmq_ctx_new();
    bool good = w && node && context;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 8192);
    for (uint32_t i = 0; i < nodes && good; i++) {
        snprintf(node[i].dir, sizeof(node[i].dir), "%s/n%u", f->dir, first + i);
        good = mkdir(node[i].dir, 0700) == 0;
        for (uint32_t k = 0; k < RANKS_A_NODE && good; k++) {
            good = open_writer(&w[i * RANKS_A_NODE + k], f, node[i].dir, (first + i) * RANKS_A_NODE + k) == 0;
        }
        node[i].options = (struct roll_agent_options){
            .context = context, .dir = node[i].dir, .endpoint = f->relays ? f->door[host] : f->console, .stop = &stop};
        good = good && pthread_create(&node[i].thread, NULL, agent_main, &node[i]) == 0;
    }
    if (!good) {
        fprintf(stderr, "bench: the nodes of process %u cannot be made\n", host);
        _exit(1);
    }
    atomic_fetch_add(&b->ready, 1);
    while (atomic_load(&b->start_ns) == 0) {
        usleep(1000);
    }
    for (uint64_t next = synth_mono_ns(); !atomic_load(&b->stop); next += TICK_NS) {
        uint64_t now = synth_mono_ns();
        atomic_store(&b->late_ns[host], now > next ? now - next : 0);
        next = now > next + 50 * TICK_NS ? now : next;
        for (uint32_t i = 0; i < ranks; i++) {
            write_until(&w[i], b, now, &seen);
        }
        atomic_store(&b->agent_ns[host], process_ns() - thread_ns());
        synth_until(next + TICK_NS);
    }
    for (uint32_t i = 0; i < ranks; i++) {
        synth_finish(&w[i].synth);
    }
    _exit(0);
}

/* the fleet */

static void stop_process(pid_t pid, int number)
{
    if (pid > 0) {
        kill(pid, number);
        for (int ms = 0; waitpid(pid, NULL, WNOHANG) == 0; ms += 10) {
            if (ms == 5000) {
                kill(pid, SIGKILL);
            }
            usleep(10000);
        }
    }
}

static void close_fleet(struct fleet *f)
{
    char command[128];
    roll_client_destroy(&f->client);
    for (uint32_t i = 0; i < HOSTS_MOST; i++) {
        stop_process(f->host[i], SIGKILL);
        stop_process(f->relay[i], SIGTERM);
    }
    stop_process(f->root, SIGTERM);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->dir);
    if (system(command) != 0) {
        fprintf(stderr, "bench: %s is left behind\n", f->dir);
    }
    munmap(f->board, sizeof(*f->board));
}

static int make_keys(const struct fleet *f)
{
    char own[4096], command[4400];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (!slash) {
        return ROLL_E_NOTFOUND;
    }
    *slash = '\0';
    snprintf(command, sizeof(command), "'%s/rollcall' keygen '%s' >/dev/null", own, f->keys);
    return system(command) == 0 ? 0 : ROLL_E_IO;
}

static int open_fleet(struct fleet *f, uint32_t ranks)
{
    char ignored[256], why[512], dir[] = "/dev/shm/rollcall-bench-XXXXXX";
    *f = (struct fleet){.ranks = ranks, .nodes = ranks / RANKS_A_NODE};
    f->hosts = (f->nodes + NODES - 1) / NODES;
    f->relays = f->hosts > 1 ? f->hosts : 0;
    f->board = mmap(NULL, sizeof(*f->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f->board == MAP_FAILED || !mkdtemp(dir)) {
        return ROLL_E_IO;
    }
    snprintf(f->dir, sizeof(f->dir), "%s", dir);
    snprintf(f->keys, sizeof(f->keys), "%s/keys", dir);
    snprintf(f->console, sizeof(f->console), "ipc://%s/root.socket", dir);
    int err = make_keys(f);
    if (!err) {
        err = roll_bench_launch(&f->root,
                                (const char *const[]){"--root", "--digest", "--listen", "tcp://127.0.0.1:*", "--listen",
                                                      f->console, "--curve-dir", f->keys, NULL},
                                f->root_at, sizeof(f->root_at));
    }
    for (uint32_t i = 0; i < f->relays && !err; i++) {
        snprintf(f->door[i], sizeof(f->door[i]), "ipc://%s/relay%u.socket", dir, i);
        err = roll_bench_launch(&f->relay[i],
                                (const char *const[]){"--relay", "--listen", f->door[i], "--connect", f->root_at,
                                                      "--curve-dir", f->keys, NULL},
                                ignored, sizeof(ignored));
    }
    for (uint32_t i = 0; i < f->hosts && !err; i++) {
        f->host[i] = fork();
        if (f->host[i] == 0) {
            run_host(f, i);
        }
    }
    return err ? err : roll_client_new(f->console, NULL, 3000, &f->client, why, sizeof(why));
}

static json_t *status_of(const struct fleet *f)
{
    json_t *reply = NULL;
    return roll_client_query(f->client, json_pack("{s:s}", "op", "status"), 20000, &reply) == 0 ? reply : NULL;
}

static json_int_t figure(const json_t *status, const char *part, const char *name)
{
    return json_integer_value(json_object_get(json_object_get(status, part), name));
}

/* Milliseconds until all ranks have been announced to the root; -1: they have not been in time. */
static double announced(const struct fleet *f)
{
    uint64_t begin = synth_mono_ns();
    for (uint64_t now = begin; now - begin < SETTLE_MS * UINT64_C(1000000); now = synth_mono_ns()) {
        json_t *status = status_of(f);
        json_int_t ranks = figure(status, "summary", "ranks");
        json_decref(status);
        if (ranks == (json_int_t)f->ranks) {
            return (double)(synth_mono_ns() - begin) * 1e-6;
        }
        usleep(200000);
    }
    return -1;
}

/* what processes use */

static double cpu_s(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = pid > 0 ? fopen(path, "r") : NULL;
    if (f) {
        char *at = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
        if (!at || sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) {
            user = system = 0;
        }
        fclose(f);
    }
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double rss_mib(pid_t pid)
{
    char path[64];
    unsigned long size = 0, resident = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = pid > 0 ? fopen(path, "r") : NULL;
    if (f) {
        if (fscanf(f, "%lu %lu", &size, &resident) != 2) {
            resident = 0;
        }
        fclose(f);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1048576.0;
}

static double agents_s(const struct fleet *f)
{
    double ns = 0;
    for (uint32_t i = 0; i < f->hosts; i++) {
        ns += (double)atomic_load(&f->board->agent_ns[i]);
    }
    return ns * 1e-9;
}

struct measured {
    double announced_ms, calls, root, relay, agent, bytes, root_mib, relay_mib, status_ms, ms[TRIALS];
    uint32_t told, named, other;
    uint32_t wrong[TRIALS]; /* the rank of each trial */
    json_int_t opened, refused;
};

/* The job runs, and nothing is wrong. */
static int measure_calm(const struct fleet *f, struct measured *m)
{
    json_t *before = status_of(f);
    double root = cpu_s(f->root), relay = cpu_s(f->relay[0]), agents = agents_s(f);
    uint64_t begin = synth_mono_ns();
    sleep(WINDOW_S);
    double s = (double)(synth_mono_ns() - begin) * 1e-9;
    m->root = (cpu_s(f->root) - root) / s;
    m->relay = (cpu_s(f->relay[0]) - relay) / s;
    m->agent = (agents_s(f) - agents) / s / f->nodes;
    begin = synth_mono_ns();
    json_t *after = status_of(f);
    m->status_ms = (double)(synth_mono_ns() - begin) * 1e-6;
    m->calls = (double)(figure(after, "summary", "calls") - figure(before, "summary", "calls")) / s;
    m->bytes = (double)(figure(after, "digests", "bytes") - figure(before, "digests", "bytes")) / s;
    m->opened = figure(after, "digests", "opened");
    m->refused = figure(after, "digests", "refused");
    m->other = (uint32_t)figure(after, "summary", "findings");
    m->root_mib = rss_mib(f->root);
    m->relay_mib = rss_mib(f->relay[0]);
    json_decref(before);
    json_decref(after);
    return m->calls > 0 ? 0 : ROLL_E_TIMEOUT;
}

/* Waits until no records are looked at any more. */
static void rest(const struct fleet *f)
{
    for (int i = 0; i < 120; i++) {
        json_t *status = status_of(f);
        const char *records = json_string_value(json_object_get(json_object_get(status, "digests"), "records"));
        bool none = records && strcmp(records, "none") == 0;
        json_decref(status);
        if (none) {
            return;
        }
        usleep(500000);
    }
}

/* A finding may be told first without a culprit, where most ranks have not come yet, and be told again with one. */
static bool is_earlier(const struct measured *m, uint32_t trial, const char *culprits)
{
    for (uint32_t t = 0; culprits && t + 1 < trial; t++) {
        char one[16];
        snprintf(one, sizeof(one), "%u", m->wrong[t]);
        if (strcmp(one, culprits) == 0) {
            return true;
        }
    }
    return false;
}

/* A rank makes one wrong call. Its time until the verdict is kept; other verdicts are counted. */
static void one_trial(const struct fleet *f, struct measured *m, uint32_t trial)
{
    uint32_t part = f->ranks / TRIALS, rank = (trial - 1) * part + spread(trial) % part; /* each another one */
    char culprit[16];
    snprintf(culprit, sizeof(culprit), "%u", rank);
    m->wrong[trial - 1] = rank;
    atomic_store(&f->board->wrong_ns, 0);
    atomic_store(&f->board->wrong_rank, rank);
    atomic_store(&f->board->trial, trial);
    for (int ms = 0; ms < TRIAL_MS; ms += 50) {
        json_t *verdict = NULL;
        if (roll_client_next(f->client, 50, &verdict) != 0) {
            continue;
        }
        const char *key = json_string_value(json_object_get(json_object_get(verdict, "comm"), "key"));
        const char *culprits = json_string_value(json_object_get(verdict, "culprits_text"));
        const char *code = json_string_value(json_object_get(verdict, "code"));
        bool ours = key && strtoull(key, NULL, 16) == atomic_load(&f->board->wrong_key);
        bool named = ours && culprits && strcmp(culprits, culprit) == 0;
        ours = ours && (named || !culprits || culprits[0] == '\0');
        bool late = !ours && is_earlier(m, trial, culprits);
        if (!ours && !late) {
            fprintf(stderr, "bench: %u ranks, trial %u, rank %u is wrong: also told is %s of ranks %s on %s\n",
                    f->ranks, trial, rank, code ? code : "?", culprits ? culprits : "?", key ? key : "?");
        }
        json_decref(verdict);
        if (ours) {
            m->named += named;
            m->ms[m->told++] = (double)(synth_mono_ns() - atomic_load(&f->board->wrong_ns)) * 1e-6;
            return;
        }
        m->other += !late;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int measure(uint32_t ranks, struct measured *m)
{
    struct fleet f;
    int err = open_fleet(&f, ranks);
    while (!err && atomic_load(&f.board->ready) < f.hosts) {
        usleep(10000);
        for (uint32_t i = 0; i < f.hosts && !err; i++) {
            err = waitpid(f.host[i], NULL, WNOHANG) != 0 ? ROLL_E_IO : 0;
        }
    }
    if (!err) {
        m->announced_ms = announced(&f);
        err = m->announced_ms < 0 ? ROLL_E_TIMEOUT : 0;
    }
    if (!err) {
        atomic_store(&f.board->start_ns, synth_mono_ns());
        sleep(8); /* the last rank is as far behind as it will be */
        rest(&f);
        err = measure_calm(&f, m);
    }
    json_t *reply = NULL;
    if (!err) {
        err = roll_client_query(f.client, json_pack("{s:s,s:i}", "op", "subscribe", "from", 1), 3000, &reply);
        json_decref(reply);
    }
    for (uint32_t t = 1; t <= TRIALS && !err; t++) {
        rest(&f);
        sleep(2); /* no case is opened so soon behind another one */
        one_trial(&f, m, t);
    }
    qsort(m->ms, m->told, sizeof(m->ms[0]), by_size);
    close_fleet(&f);
    return err;
}

int roll_bench_scale(json_t *out, FILE *table)
{
    json_t *rows = json_array();
    struct rlimit files;
    int err = 0;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    roll_log_init(true);
    json_object_set_new(out, "scale", rows);
    fprintf(table, "  %6s  %9s  %7s  %7s  %7s  %9s  %8s  %8s  %8s  %8s  %22s  %5s  %5s  %5s\n", "ranks", "calls/s",
            "agent", "relay", "root", "into root", "relay", "root", "begin", "status", "wrong call told", "told",
            "named", "other");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !err; i++) {
        struct measured m = {0};
        err = measure(sizes[i], &m);
        double p50 = m.told ? m.ms[m.told / 2] : -1, most = m.told ? m.ms[m.told - 1] : -1;
        fprintf(
            table,
            "  %6u  %9.0f  %5.2f %%  %5.1f %%  %5.1f %%  %4.2f MB/s  %4.0f MiB  %4.0f MiB  %5.1f s  %5.0f ms  %5.0f, "
            "at most %5.0f ms  %3u/%d  %5u  %5u\n",
            sizes[i], m.calls, m.agent * 100, m.relay * 100, m.root * 100, m.bytes * 1e-6, m.relay_mib, m.root_mib,
            m.announced_ms * 1e-3, m.status_ms, p50, most, m.told, TRIALS, m.named, m.other);
        fflush(table);
        json_array_append_new(rows,
                              json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:i,s:i,s:i}", "ranks",
                                        (int)sizes[i], "calls_per_s", m.calls, "agent_core", m.agent, "relay_core",
                                        m.relay, "root_core", m.root, "root_bytes_per_s", m.bytes, "relay_mib",
                                        m.relay_mib, "root_mib", m.root_mib, "announced_ms", m.announced_ms,
                                        "status_ms", m.status_ms, "told_p50_ms", p50, "told_most_ms", most, "told",
                                        (int)m.told, "trials", TRIALS, "named", (int)m.named, "other", (int)m.other));
    }
    return err;
}
