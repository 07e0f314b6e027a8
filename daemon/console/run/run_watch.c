/*
 * run_watch.c: the launcher reads from the rings whether anything moves, and writes into them how a rank ended.
 *
 * Progress is read from the rings rather than asked of the daemon, so that --timeout also works when the daemon is
 * gone.
 */
#include "daemon/console/run/run.h"

#include "daemon/base/proc.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* Calls fn for each ring file in dir whose name ends in `suffix`. */
static void each_ring(const char *dir, const char *suffix, bool writable, void (*fn)(struct roll_ring *, void *),
                      void *data)
{
    DIR *d = opendir(dir);
    if (d == NULL) {
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), m = strlen(suffix);
        char path[PATH_MAX + 256];
        struct roll_ring ring;
        if (n <= m || strcmp(e->d_name + n - m, suffix) != 0) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (roll_ring_open(path, writable, &ring) == 0) {
            fn(&ring, data);
            roll_ring_close(&ring);
        }
    }
    closedir(d);
}

/* How far the ranks have come. */
struct progress {
    const struct roll_run_job *job;
    uint64_t sum;
    int32_t begun, world; /* ranks that live and have made a call; ranks of the job, as far as that is known */
};

static bool has_ended(const struct roll_run_job *job, pid_t pid)
{
    for (uint32_t i = 0; job->alive < job->count && i < job->count; i++) {
        if (job->rank[i].pid == pid) {
            return !job->rank[i].alive;
        }
    }
    return false;
}

/* Adds the ticket behind the newest call of a ring. A host that polls has a record every second, and has not moved:
 * PyTorch's watchdog polls for ever. */
static void add_calls(struct roll_ring *ring, void *data)
{
    struct progress *p = data;
    uint64_t next = roll_ring_head(ring);
    uint64_t oldest = next > ring->mask + 1 ? next - ring->mask - 1 : 0;
    struct roll_record rec;
    while (next > oldest && roll_ring_get(ring, next - 1, &rec) == 0 && roll_op_class(rec.op) == ROLL_CLASS_POLL) {
        next--;
    }
    p->sum += 1 + next;
    p->begun += next > 0 && !has_ended(p->job, (pid_t)ring->header->pid);
    p->world = ring->header->world_size > p->world ? ring->header->world_size : p->world;
}

bool roll_run_progress(const char *dir, const struct roll_run_job *job, bool are_ranks, uint64_t *sum)
{
    struct progress p = {.job = job, .world = are_ranks ? (int32_t)job->count : 1};
    each_ring(dir, ".ring", false, add_calls, &p);
    *sum = p.sum;
    return p.begun + (are_ranks ? (int32_t)(job->count - job->alive) : 0) >= p.world;
}

static void set_exit(struct roll_ring *ring, void *data)
{
    atomic_store_explicit(&ring->header->exit_status, *(int *)data, memory_order_release);
}

void roll_run_note_exit(const char *dir, pid_t pid, int status)
{
    char suffix[32];
    snprintf(suffix, sizeof(suffix), ".%d.ring", (int)pid);
    each_ring(dir, suffix, true, set_exit, &status);
}

/* Whether this very process lives: another one may have its number by now, and a zombie has ended. */
static bool lives(const struct roll_ring_header *h)
{
    struct roll_proc_stat stat;
    if (roll_proc_stat((pid_t)h->pid, 0, &stat) != 0 || stat.state == 'Z' || stat.state == 'X') {
        return false;
    }
    return h->start_ticks == 0 || stat.start_ticks == 0 || stat.start_ticks == h->start_ticks;
}

static void set_asked(struct roll_ring *ring, void *data)
{
    (void)data;
    int32_t unknown = ROLL_EXIT_UNKNOWN;
    if (lives(ring->header)) {
        atomic_compare_exchange_strong(&ring->header->exit_status, &unknown, ROLL_EXIT_UNKNOWN | ROLL_EXIT_ASKED);
    }
}

void roll_run_note_asked(const char *dir)
{
    each_ring(dir, ".ring", true, set_asked, NULL);
}
