/*
 * rings_here.c: see rings_here.h. A ring outlives its process, so a process counts as living only while one with its
 * number and its time of birth is there. Files that are no rings are passed over: what is wrong with a ring is for
 * `rollcall dump` to say.
 */
#include "daemon/console/rings_here.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/proc.h"
#include "daemon/console/place.h"
#include "trace/err.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct looking {
    struct roll_rings_here *at;
    size_t used, room;
};

static bool is_alive(const struct roll_ring_header *h)
{
    struct roll_proc_stat stat;
    return memcmp(h->boot_id, roll_proc_boot_id(), sizeof(h->boot_id)) == 0 &&
           roll_proc_stat((pid_t)h->pid, 0, &stat) == 0 && stat.start_ticks == h->start_ticks && stat.state != 'Z' &&
           stat.state != 'X';
}

/* Wall clock at which a process began, from its ticks since the node was started. */
static uint64_t began_ns(uint64_t ticks)
{
    long hz = sysconf(_SC_CLK_TCK);
    uint64_t up = roll_clock(CLOCK_BOOTTIME), now = roll_real_ns();
    uint64_t at = hz > 0 ? ticks * (UINT64_C(1000000000) / (uint64_t)hz) : up;
    return now - (up > at ? up - at : 0);
}

static struct roll_rings_here *job_of(struct looking *l, const char *folder, const struct roll_ring_header *h)
{
    for (size_t i = 0; i < l->used; i++) {
        struct roll_rings_here *job = &l->at[i];
        if (job->restart == h->restart && strncmp(job->job, h->job, sizeof(job->job)) == 0 &&
            strcmp(job->folder, folder) == 0) {
            return job;
        }
    }
    if (ROLL_GROW(l->at, l->room, l->used + 1) != 0) {
        return NULL;
    }
    struct roll_rings_here *job = &l->at[l->used++];
    *job = (struct roll_rings_here){.restart = h->restart, .world = -1};
    snprintf(job->folder, sizeof(job->folder), "%s", folder);
    snprintf(job->job, sizeof(job->job), "%.*s", (int)sizeof(h->job) - 1, h->job);
    snprintf(job->exe, sizeof(job->exe), "%.*s", (int)sizeof(h->exe) - 1, h->exe);
    return job;
}

static int add_ring(struct looking *l, const char *folder, const struct roll_ring *ring)
{
    const struct roll_ring_header *h = ring->header;
    struct roll_rings_here *job = job_of(l, folder, h);
    struct roll_record rec;
    if (job == NULL) {
        return ROLL_E_NOMEM;
    }
    uint64_t head = atomic_load_explicit(&h->head, memory_order_acquire);
    uint64_t mono = atomic_load_explicit(&h->clock_mono_ns, memory_order_relaxed);
    uint64_t real = atomic_load_explicit(&h->clock_real_ns, memory_order_relaxed);
    job->rings++;
    job->calls += head;
    job->world = h->world_size > job->world ? h->world_size : job->world;
    if (head > 0 && roll_ring_get(ring, head - 1, &rec) == 0) {
        uint64_t last = rec.enter_ns - mono + real;
        job->last_ns = last > job->last_ns ? last : job->last_ns;
    }
    if (is_alive(h)) {
        uint64_t since = began_ns(h->start_ticks);
        job->live++;
        job->pid = job->pid != 0 ? job->pid : h->pid;
        job->since_ns = job->since_ns == 0 || since < job->since_ns ? since : job->since_ns;
    }
    return h->world_rank >= 0 ? roll_rankset_add(&job->ranks, (uint32_t)h->world_rank) : 0;
}

static int look_in(struct looking *l, const char *folder)
{
    DIR *d = opendir(folder);
    int err = 0;
    for (struct dirent *e; d != NULL && err == 0 && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        char path[PATH_MAX + 256];
        struct roll_ring ring;
        if (n <= 5 || strcmp(e->d_name + n - 5, ".ring") != 0) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (roll_ring_open(path, false, &ring) == 0) {
            err = add_ring(l, folder, &ring);
            roll_ring_close(&ring);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return err;
}

static int by_folder(const void *a, const void *b)
{
    const struct roll_rings_here *x = a, *y = b;
    int order = strcmp(x->folder, y->folder);
    order = order != 0 ? order : strcmp(x->job, y->job);
    return order != 0 ? order : (x->restart > y->restart) - (x->restart < y->restart);
}

int roll_rings_here(struct roll_rings_here **out, size_t *count, char *base, size_t size)
{
    struct looking l = {0};
    char below[PATH_MAX + 256];
    int err = roll_place_rings(base, (int)size);
    if (err == 0) {
        err = look_in(&l, base);
    } else {
        base[0] = '\0';
        err = 0;
    }
    DIR *d = base[0] != '\0' ? opendir(base) : NULL;
    for (struct dirent *e; d != NULL && err == 0 && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "run-", 4) == 0 &&
            snprintf(below, sizeof(below), "%s/%s", base, e->d_name) < (int)PATH_MAX) {
            err = look_in(&l, below);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    if (l.used > 1) {
        qsort(l.at, l.used, sizeof(*l.at), by_folder);
    }
    *out = l.at;
    *count = l.used;
    return err;
}

void roll_rings_here_free(struct roll_rings_here *all, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        roll_rankset_fini(&all[i].ranks);
    }
    free(all);
}
