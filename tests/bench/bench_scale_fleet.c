/*
 * bench_scale_fleet.c: the processes of roll_bench scale: rollcalld as root and as relays, those of the nodes, and the
 * console; and what each of them uses.
 *
 * Relays with even numbers listen on a socket of this host, those with odd ones on tcp with CURVE, as a relay for other
 * machines does. Between relays and root it is tcp with CURVE always.
 */
#include "tests/bench/bench_daemon.h"
#include "tests/bench/bench_scale.h"

#include "trace/err.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* processes */

void scale_kill(pid_t *pid)
{
    if (*pid > 0) {
        kill(*pid, SIGKILL);
        waitpid(*pid, NULL, 0);
        *pid = 0;
    }
}

void scale_close(struct scale_fleet *f)
{
    char command[128];
    roll_client_destroy(&f->client);
    for (uint32_t i = 0; i < SCALE_HOSTS; i++) {
        scale_kill(&f->agent[i]);
        scale_kill(&f->writer[i]);
        scale_kill(&f->relay[i]);
    }
    scale_kill(&f->root);
    snprintf(command, sizeof(command), "rm -rf '%s'", f->dir);
    if (system(command) != 0) {
        fprintf(stderr, "bench: %s is left behind\n", f->dir);
    }
    munmap(f->board, sizeof(*f->board));
}

static int make_keys(const struct scale_fleet *f)
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

/* Root and relays have machines of their own, in which no node comes before them. Only an administrator may say so. */
static int launch(pid_t *daemon, const char *const *options, char *endpoint, size_t size)
{
    int own = getpriority(PRIO_PROCESS, 0);
    (void)setpriority(PRIO_PROCESS, 0, own - 10);
    int err = roll_bench_launch(daemon, options, endpoint, size);
    (void)setpriority(PRIO_PROCESS, 0, own);
    return err;
}

int scale_start_root(struct scale_fleet *f, const char *listen)
{
    const char *const options[] = {"--root",   "--digest",    "--listen", listen, "--listen",
                                   f->console, "--curve-dir", f->keys,    NULL};
    return launch(&f->root, options, f->root_at, sizeof(f->root_at));
}

int scale_console(struct scale_fleet *f, int from)
{
    char why[512];
    json_t *reply = NULL;
    roll_client_destroy(&f->client);
    int err = roll_client_new(f->console, NULL, 20000, &f->client, why, sizeof(why));
    if (err) {
        fprintf(stderr, "bench: no console: %s\n", why);
        return err;
    }
    if (from > 0) {
        json_t *query = json_pack("{s:s,s:i}", "op", "subscribe", "from", from);
        err = roll_client_query(f->client, query, 20000, &reply);
        json_decref(reply);
    }
    return err;
}

/* Waits until so many processes of the nodes are ready; an error when one of them has ended. */
static int wait_ready(const struct scale_fleet *f, const _Atomic uint32_t *ready, const pid_t *pid)
{
    while (atomic_load(ready) < f->hosts) {
        usleep(1000);
        for (uint32_t i = 0; i < f->hosts; i++) {
            if (waitpid(pid[i], NULL, WNOHANG) != 0) {
                return ROLL_E_IO;
            }
        }
    }
    return 0;
}

static int start_relay(struct scale_fleet *f, uint32_t i)
{
    char listen[256];
    snprintf(listen, sizeof(listen), "ipc://%s/relay%u.socket", f->dir, i);
    const char *const options[] = {"--relay",   "--listen", i % 2 ? "tcp://127.0.0.1:*" : listen,
                                   "--connect", f->root_at, "--curve-dir",
                                   f->keys,     NULL};
    return launch(&f->relay[i], options, f->door[i], sizeof(f->door[i]));
}

int scale_open(struct scale_fleet *f, uint32_t ranks, uint32_t per_node, bool direct)
{
    char dir[] = "/dev/shm/rollcall-scale-XXXXXX";
    *f = (struct scale_fleet){.ranks = ranks, .per_node = per_node, .nodes = ranks / per_node, .direct = direct};
    uint32_t most = SCALE_RELAY / per_node;
    f->hosts = (f->nodes - 1 + most - 1) / most + 1;
    f->relays = f->hosts > 2 && !direct ? f->hosts - 1 : 0;
    f->board = mmap(NULL, sizeof(*f->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (f->board == MAP_FAILED || !mkdtemp(dir)) {
        return ROLL_E_IO;
    }
    atomic_store(&f->board->hold, UINT64_MAX);
    atomic_store(&f->board->still_rank, SCALE_NOBODY);
    snprintf(f->dir, sizeof(f->dir), "%s", dir);
    snprintf(f->keys, sizeof(f->keys), "%s/keys", dir);
    snprintf(f->console, sizeof(f->console), "ipc://%s/root.socket", dir);
    int err = make_keys(f);
    for (uint32_t i = 0; i < f->hosts && !err; i++) {
        err = (f->writer[i] = scale_fork_writers(f, i)) > 0 ? 0 : ROLL_E_IO;
    }
    err = err ? err : wait_ready(f, &f->board->writers, f->writer);
    err = err ? err : scale_start_root(f, "tcp://127.0.0.1:*");
    for (uint32_t i = 0; i < f->relays && !err; i++) {
        err = start_relay(f, i);
    }
    for (uint32_t i = 0; i < f->hosts && !err; i++) {
        err = (f->agent[i] = scale_fork_agents(f, i)) > 0 ? 0 : ROLL_E_IO;
    }
    err = err ? err : wait_ready(f, &f->board->agents, f->agent);
    return err ? err : scale_console(f, 0);
}

json_t *scale_ask(const struct scale_fleet *f, const char *op)
{
    json_t *reply = NULL;
    return roll_client_query(f->client, json_pack("{s:s}", "op", op), 60000, &reply) == 0 ? reply : NULL;
}

/* what they use */

double scale_cpu_s(pid_t pid)
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

double scale_peak_mib(pid_t pid)
{
    char path[64], line[256];
    unsigned long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = pid > 0 ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof(line), f) && sscanf(line, "VmHWM: %lu", &kib) != 1) {
    }
    if (f) {
        fclose(f);
    }
    return (double)kib / 1024.0;
}

/* All relays together; *busiest becomes the largest part of one since `before`, which becomes their time now. */
double scale_relays_s(const struct scale_fleet *f, double *busiest, double *before)
{
    double all = 0;
    *busiest = 0;
    for (uint32_t i = 0; i < f->relays; i++) {
        double now = scale_cpu_s(f->relay[i]), part = now - before[i];
        *busiest = part > *busiest ? part : *busiest;
        before[i] = now;
        all += now;
    }
    return all;
}

double scale_agents_s(const struct scale_fleet *f)
{
    double all = 0;
    for (uint32_t i = 0; i < f->hosts; i++) {
        all += scale_cpu_s(f->agent[i]);
    }
    return all;
}

uint64_t scale_calls(const struct scale_fleet *f)
{
    uint64_t calls = 0;
    for (uint32_t i = 0; i < f->hosts; i++) {
        calls += atomic_load(&f->board->calls[i]);
    }
    return calls;
}
