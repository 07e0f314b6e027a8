/*
 * bench_scale_ranks.c: the ranks and the agents of the nodes that one process of roll_bench scale stands for.
 *
 * One process writes the rings of all ranks of 64 nodes as the interposer does; another one runs the agents' own code,
 * a thread for each node. So the time of the second one is what agents cost, and a rank's process is not full of the
 * threads of agents. Each rank is somewhere else in its step, up to SCALE_SKEW_NS behind the first one, and one in a
 * hundred is SCALE_SLOW_NS later still. Agents that only send prepared digests were rejected: their wake-ups are most
 * of what they cost.
 */
#include "tests/bench/bench_scale.h"

#include "daemon/agent/agent.h"
#include "daemon/wire/curve.h"
#include "daemon/wire/net.h"
#include "tests/daemon/synth.h"
#include "trace/def.h"
#include "trace/err.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define CAPACITY UINT32_C(4096) /* records of a ring: 8 s, and what an excerpt looks back is half of that */
#define TICK_NS  UINT64_C(20000000)
#define BURST    40u /* calls in a tick, four times as many as are due: who was held up makes good for it */

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

uint32_t scale_first_node(const struct scale_fleet *f, uint32_t host)
{
    return host + 1 == f->hosts ? f->nodes - 1 : host * (SCALE_RELAY / f->per_node);
}

uint32_t scale_nodes_of(const struct scale_fleet *f, uint32_t host)
{
    uint32_t most = SCALE_RELAY / f->per_node, first = host * most, all = f->nodes - 1;
    return host + 1 == f->hosts ? 1 : all - first < most ? all - first : most;
}

uint32_t scale_spread(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    return x ^ (x >> 16);
}

uint64_t scale_job_ns(const struct scale_board *b, uint64_t now)
{
    return now - atomic_load(&b->start_ns);
}

/* the ranks */

static struct comm make_comm(struct writer *w, uint64_t key, uint32_t rank, uint32_t size)
{
    struct roll_def_comm def = {.key = key,
                                .rank = (int32_t)rank,
                                .nranks = (int32_t)size,
                                .color = ROLL_COLOR_NONE,
                                .origin = ROLL_COMM_INIT,
                                .device = (int32_t)(w->rank % 8)};
    w->synth.comms++;
    roll_def_append(&w->synth.ring, ROLL_DEF_COMM, w->synth.comms, &def, sizeof(def), NULL, 0);
    return (struct comm){key, w->synth.comms};
}

static int open_writer(struct writer *w, const struct scale_fleet *f, const char *dir, uint32_t rank)
{
    uint32_t across = f->ranks / 64;
    char host[32];
    snprintf(host, sizeof(host), "node%05u", rank / f->per_node);
    struct roll_ring_params params = {.capacity = CAPACITY,
                                      .defs_bytes = 4096,
                                      .world_rank = (int32_t)rank,
                                      .world_size = (int32_t)f->ranks,
                                      .local_rank = (int32_t)(rank % f->per_node),
                                      .job = "scale",
                                      .host = host,
                                      .exe = "train.py"};
    snprintf(w->synth.path, sizeof(w->synth.path), "%s/rank%u.ring", dir, rank);
    w->synth.rank = (int32_t)rank;
    w->synth.size = (int32_t)f->ranks;
    int err = roll_ring_create(w->synth.path, &params, &w->synth.ring);
    if (err) {
        return err;
    }
    w->rank = rank;
    w->behind_ns = scale_spread(rank) % SCALE_SKEW_NS + (scale_spread(rank ^ 0x5555u) % 100 == 0 ? SCALE_SLOW_NS : 0);
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

/* Whether this call is the wrong one of the newest trial. Only one process holds the rank, so nobody races for it. */
static bool is_wrong(struct writer *w, struct scale_board *b, uint32_t *seen, const struct comm *comm)
{
    uint32_t trial = atomic_load(&b->trial);
    uint64_t at = atomic_load(&b->worldwide) ? 0 : trial % 8;
    if (trial == *seen || atomic_load(&b->wrong_rank) != w->rank || w->made % 16 != at) {
        return false;
    }
    *seen = trial;
    atomic_store(&b->wrong_key, comm->key);
    atomic_store(&b->wrong_ns, synth_mono_ns());
    return true;
}

/* Makes the calls that are due. A rank that is to stand still says where, and then the others make few more. */
static void write_until(struct writer *w, struct scale_board *b, uint64_t now, uint32_t *seen)
{
    uint64_t since = scale_job_ns(b, now);
    uint64_t behind = since / 2 < w->behind_ns ? since / 2 : w->behind_ns; /* all begin together, and drift apart */
    uint64_t due = (since - behind) * SCALE_RATE / 1000000000u, hold = atomic_load(&b->hold);
    if (atomic_load(&b->still_rank) == w->rank) {
        if (atomic_load(&b->still_ns) == 0) {
            atomic_store(&b->hold, w->made + SCALE_AHEAD);
            atomic_store(&b->still_ns, now);
        }
        return;
    }
    due = due < hold ? due : hold;
    for (due = due < w->made + BURST ? due : w->made + BURST; w->made < due; w->made++) {
        const struct comm *comm = comm_of(w, w->made);
        bool wrong = is_wrong(w, b, seen, comm);
        synth_allreduce(&w->synth, &(struct synth_call){.comm = comm->id, .count = wrong ? 999 : 1024});
    }
}

static void run_writers(const struct scale_fleet *f, uint32_t host)
{
    struct scale_board *b = f->board;
    uint32_t first = scale_first_node(f, host), ranks = scale_nodes_of(f, host) * f->per_node, seen = 0;
    struct writer *w = calloc(ranks, sizeof(*w));
    bool good = w != NULL;
    for (uint32_t i = 0; i < ranks && good; i++) {
        char dir[96];
        snprintf(dir, sizeof(dir), "%s/n%u", f->dir, first + i / f->per_node);
        good = i % f->per_node != 0 || mkdir(dir, 0700) == 0;
        good = good && open_writer(&w[i], f, dir, first * f->per_node + i) == 0;
    }
    if (!good) {
        fprintf(stderr, "bench: the ranks of process %u cannot be made\n", host);
        _exit(1);
    }
    atomic_fetch_add(&b->writers, 1);
    while (atomic_load(&b->start_ns) == 0) {
        usleep(1000);
    }
    for (uint64_t next = synth_mono_ns();; next += TICK_NS) {
        uint64_t now = synth_mono_ns(), late = now > next ? now - next : 0, calls = 0;
        if (late > atomic_load(&b->late_ns[host])) {
            atomic_store(&b->late_ns[host], late);
        }
        next = late > 50 * TICK_NS ? now : next;
        for (uint32_t i = 0; i < ranks; i++) {
            write_until(&w[i], b, now, &seen);
            calls += w[i].made;
        }
        atomic_store(&b->calls[host], calls);
        synth_until(next + TICK_NS);
    }
}

/* the agents */

struct node {
    pthread_t thread;
    char dir[96];
    struct roll_agent_options options;
};

static void *agent_main(void *argument)
{
    struct node *node = argument;
    char why[256] = "";
    if (roll_agent_run(&node->options, why, sizeof(why)) != 0) {
        fprintf(stderr, "bench: an agent: %s\n", why);
    }
    return NULL;
}

static void run_agents(const struct scale_fleet *f, uint32_t host)
{
    static _Atomic bool stop;
    static struct roll_curve_keys keys;
    char why[256] = "";
    uint32_t first = scale_first_node(f, host), nodes = scale_nodes_of(f, host);
    uint32_t relay = host + 1 == f->hosts && f->relays ? f->relays - 1 : host;
    const char *door = f->relays ? f->door[relay] : f->direct ? f->root_at : f->console;
    struct node *node = calloc(nodes, sizeof(*node));
    void *context = zmq_ctx_new();
    bool good = node && context && roll_curve_load(f->keys, false, &keys, why, sizeof(why)) == 0;
    if (context) {
        zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 8192);
    }
    /* Thousands of agents of one user have no inotify for each, and each would say so. */
    int nowhere = open("/dev/null", O_WRONLY);
    (void)dup2(nowhere, STDERR_FILENO);
    close(nowhere);
    atomic_fetch_add(&f->board->agents, 1);
    while (atomic_load(&f->board->go) == 0) {
        usleep(1000);
    }
    for (uint32_t i = 0; i < nodes && good; i++) {
        snprintf(node[i].dir, sizeof(node[i].dir), "%s/n%u", f->dir, first + i);
        node[i].options = (struct roll_agent_options){
            .context = context, .dir = node[i].dir, .endpoint = door, .keys = &keys, .stop = &stop};
        good = pthread_create(&node[i].thread, NULL, agent_main, &node[i]) == 0;
    }
    if (!good) {
        fprintf(stderr, "bench: the agents of process %u cannot be started: %s\n", host, why);
        _exit(1);
    }
    for (uint32_t i = 0; i < nodes; i++) {
        pthread_join(node[i].thread, NULL);
    }
    _exit(0);
}

/* processes */

static pid_t fork_one(const struct scale_fleet *f, uint32_t host, void (*run)(const struct scale_fleet *, uint32_t))
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        run(f, host);
        _exit(0);
    }
    return pid;
}

pid_t scale_fork_writers(const struct scale_fleet *f, uint32_t host)
{
    return fork_one(f, host, run_writers);
}

pid_t scale_fork_agents(const struct scale_fleet *f, uint32_t host)
{
    return fork_one(f, host, run_agents);
}
