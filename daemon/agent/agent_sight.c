/*
 * agent_sight.c: measures how freely the ranks of this node run.
 *
 * A rank that makes no call may be stuck, or may be ready to run without getting a CPU: in its ring both look alike.
 * The kernel counts for each thread how long it has stood ready without a CPU (/proc/PID/task/TID/schedstat, second
 * number); the thread that stood longest counts for its rank. Reading that of every thread is not free, so it is done
 * only while somebody on the node, or in our own group of processes, is kept waiting at all (PSI: /proc/pressure/cpu,
 * cpu.pressure of the cgroup). Ranks that have no ring yet, and other processes that work for a rank, are not among
 * these threads. Two other numbers cover them: how much longer our own sleeps were than asked for, and how many threads
 * of the node are ready for each of its CPUs. The load average itself was rejected: it also counts threads that wait
 * for a disk, and is a minute late.
 */
#include "daemon/agent/agent_sight.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/base/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_NS    (500 * ROLL_MS)
#define SAMPLE_NS    (40 * ROLL_MS)
#define CALM_PERMILL 50u /* every busy node has less than this */
#define MOST_PERMILL 1000u
#define PRESSURES    2

struct thread_wait {
    uint32_t tid;
    uint64_t wait_ns;
};

struct roll_sight_of_ring { /* owned by its ring */
    struct thread_wait thread[ROLL_SIGHT_THREADS];
    size_t threads;
    uint64_t looked_ns; /* when they were read; 0: too old to compare with */
};

struct roll_agent_sight {
    const char *proc;
    char pressure[PRESSURES][512]; /* paths of pressure files; "" = none */
    uint64_t some_us[PRESSURES];
    uint64_t last_ns, late_ns;
    bool calm; /* nobody was kept waiting in the last period */
    long cpus;
    int loadavg; /* descriptor, -1: not open. Read in each look, unlike the other files */
    uint64_t sampled_ns, samples,
        ready; /* samples of how many threads of the node ran or were ready to run: their number, and their sum */
};

/* Reads "some avg10=... total=N": microseconds in which some task waited. False when there is no such file. */
static bool read_pressure(const char *path, uint64_t *some_us)
{
    char text[512];
    bool read = path[0] && roll_read_text(path, text, sizeof(text)) > 0;
    const char *total = read ? roll_proc_word(text, "some ", "total=") : NULL;
    *some_us = total ? strtoull(total, NULL, 10) : *some_us;
    return total != NULL;
}

roll_agent_sight_t *roll_agent_sight_new(const char *proc, const char *cgroup)
{
    roll_agent_sight_t *sight = calloc(1, sizeof(*sight));
    char path[300], text[4096];
    if (!sight) {
        return NULL;
    }
    sight->proc = proc;
    sight->loadavg = -1;
    sight->cpus = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(sight->pressure[0], sizeof(sight->pressure[0]), "%s/pressure/cpu", proc);
    snprintf(path, sizeof(path), "%s/self/cgroup", proc);
    roll_read_text(path, text, sizeof(text));
    const char *group = roll_proc_word(text, "0::/", "");
    if (group) {
        int bytes = (int)strcspn(group, "\n");
        snprintf(sight->pressure[1], sizeof(sight->pressure[1]), "%.200s/%.*s/cpu.pressure", cgroup,
                 bytes < 249 ? bytes : 249, group);
    }
    return sight;
}

void roll_agent_sight_destroy(roll_agent_sight_t **sight)
{
    if (*sight && (*sight)->loadavg >= 0) {
        close((*sight)->loadavg);
    }
    free(*sight);
    *sight = NULL;
}

void roll_agent_sight_late(roll_agent_sight_t *sight, uint64_t late_ns)
{
    if (sight) {
        sight->late_ns += late_ns;
    }
}

/* Permille of the period in which some task was kept waiting, by the worst pressure file; -1: none can be read. */
static int pressure(roll_agent_sight_t *sight, uint64_t passed_ns)
{
    int most = -1;
    for (int i = 0; i < PRESSURES; i++) {
        uint64_t now_us = 0, before = sight->some_us[i];
        if (read_pressure(sight->pressure[i], &now_us)) {
            sight->some_us[i] = now_us;
            uint64_t waited = before != 0 && now_us > before ? (now_us - before) * 1000 : 0;
            int share = (int)(waited < passed_ns ? waited * MOST_PERMILL / passed_ns : MOST_PERMILL);
            most = share > most ? share : most;
        }
    }
    return most;
}

/* Reads "0.52 0.58 0.59 3/1245 31337": 3 of 1245 threads run or are ready to, this one among them. */
static void sample_ready(struct roll_agent_sight *sight)
{
    char path[300], text[128];
    if (sight->loadavg < 0) {
        snprintf(path, sizeof(path), "%s/loadavg", sight->proc);
        sight->loadavg = open(path, O_RDONLY | O_CLOEXEC);
    }
    ssize_t n = sight->loadavg >= 0 ? pread(sight->loadavg, text, sizeof(text) - 1, 0) : 0;
    text[n > 0 ? n : 0] = '\0';
    const char *slash = strchr(text, '/'), *at = slash;
    while (at && at > text && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    unsigned long ready = at && at < slash ? strtoul(at, NULL, 10) : 0;
    if (ready > 0) {
        sight->ready += ready - 1;
        sight->samples++;
    }
}

/* Permille of the time in which one more thread of this node would stand ready without a CPU. This holds for ranks
 * without a ring, and for helper processes. */
static int starved_by_node(struct roll_agent_sight *sight)
{
    uint64_t ready = sight->ready, cpus = sight->cpus > 0 ? (uint64_t)sight->cpus * sight->samples : 0;
    sight->ready = sight->samples = 0;
    return cpus > 0 && ready > cpus ? (int)(MOST_PERMILL - MOST_PERMILL * cpus / ready) : 0;
}

static bool read_wait(const char *proc, uint32_t pid, const char *tid, uint64_t *wait_ns)
{
    char path[400], text[128];
    unsigned long long ran, waited;
    snprintf(path, sizeof(path), "%s/%u/task/%s/schedstat", proc, pid, tid);
    roll_read_text(path, text, sizeof(text));
    bool found = sscanf(text, "%llu %llu", &ran, &waited) == 2;
    *wait_ns = found ? waited : 0;
    return found;
}

static uint64_t waited_before(const struct roll_sight_of_ring *old, uint32_t tid, uint64_t now)
{
    for (size_t i = 0; i < old->threads; i++) {
        if (old->thread[i].tid == tid) {
            return old->thread[i].wait_ns;
        }
    }
    return now; /* a new thread: nobody knows since when it waits */
}

/* Permille of the time since the last look in which the worst thread of the process stood ready; -1: not known. */
static int look_at_process(const roll_agent_sight_t *sight, struct roll_agent_ring *ring, uint64_t now)
{
    char path[300];
    struct roll_sight_of_ring *old = ring->sight, new = {.looked_ns = now};
    if (!old && !(old = ring->sight = calloc(1, sizeof(*old)))) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/%u/task", sight->proc, ring->map.header->pid);
    DIR *d = opendir(path);
    uint64_t most = 0;
    struct dirent *entry;
    while (d && new.threads < ROLL_SIGHT_THREADS && (entry = readdir(d)) != NULL) {
        struct thread_wait *t = &new.thread[new.threads];
        if (entry->d_name[0] == '.' || !read_wait(sight->proc, ring->map.header->pid, entry->d_name, &t->wait_ns)) {
            continue;
        }
        t->tid = (uint32_t)strtoul(entry->d_name, NULL, 10);
        uint64_t before = waited_before(old, t->tid, t->wait_ns);
        most = t->wait_ns > before && t->wait_ns - before > most ? t->wait_ns - before : most;
        new.threads++;
    }
    if (d) {
        closedir(d);
    }
    uint64_t passed = old->looked_ns ? now - old->looked_ns : 0;
    *old = new;
    if (new.threads == 0 || passed == 0) {
        return new.threads == 0 ? -1 : 0;
    }
    return (int)(most < passed ? most * MOST_PERMILL / passed : MOST_PERMILL);
}

void roll_agent_sight_look(roll_agent_sight_t *sight, struct roll_agent_ring **rings, size_t n, uint64_t now)
{
    if (sight && !sight->calm && now - sight->sampled_ns >= SAMPLE_NS) {
        sight->sampled_ns = now;
        sample_ready(sight);
    }
    if (!sight || now - sight->last_ns < PERIOD_NS) {
        return;
    }
    uint64_t passed = sight->last_ns ? now - sight->last_ns : PERIOD_NS;
    int own = (int)(sight->late_ns < passed ? sight->late_ns * MOST_PERMILL / passed : MOST_PERMILL);
    int all = pressure(sight, passed), node = starved_by_node(sight);
    own = own > node ? own : node;
    sight->last_ns = now;
    sight->late_ns = 0;
    bool calm = all >= 0 && all < (int)CALM_PERMILL && own < (int)CALM_PERMILL;
    sight->calm = calm;
    for (size_t i = 0; i < n; i++) {
        struct roll_agent_ring *ring = rings[i];
        if (ring->gone || ring->foreign || calm) {
            ring->starved = ring->foreign && !calm && !ring->gone ? (uint32_t)own : 0;
            if (ring->sight) {
                ring->sight->looked_ns = 0;
                ring->sight->threads = 0;
            }
            continue;
        }
        int starved = look_at_process(sight, ring, now);
        starved = starved < 0 ? all : starved;
        starved = starved < own ? own : starved;
        ring->starved = starved < (int)CALM_PERMILL ? 0 : (uint32_t)starved;
    }
}
