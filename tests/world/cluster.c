/*
 * cluster.c: a cluster as its plan says: hosts with clocks of their own, folders, a root, relays, agents, and the ranks
 * of its jobs. Files are real ones, in a folder of this process.
 */
#include "tests/world/stage.h"

#include "tests/world/calls.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0) {
        world_fail("%s cannot be made", path);
    }
}

static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        char name[WORLD_PATH + 300];
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && unlink(name) != 0) {
            remove_folder(name);
        }
    }
    if (d) {
        closedir(d);
    }
    rmdir(path);
}

static struct host *add_host(uint32_t starved)
{
    struct host *h = &world.host[world.hosts];
    snprintf(h->name, sizeof(h->name), "node%u", world.hosts);
    snprintf(h->rings, sizeof(h->rings), "%.200s/node%u", world.dir, world.hosts++);
    h->mono_ns = (uint64_t)(1 + world_below(100000)) * S_ + world_below(1000000000);
    h->real_ns = (int64_t)world_below(4000000) - 2000000;
    h->starved = starved;
    make_folder(h->rings);
    return h;
}

static void add_role(char kind, uint32_t number, struct host *host, const struct role *above)
{
    struct role *role = &stage.role[stage.roles++];
    *role = (struct role){.kind = kind, .host = host, .calm_ns = WORLD_NEVER, .swift_ns = WORLD_NEVER};
    char name[24];
    snprintf(name, sizeof(name), "%s%u", kind == 'r' ? "root" : kind == 'y' ? "relay" : "agent", number);
    memcpy(role->name, name, sizeof(name));
    if (above) {
        memcpy(role->above, above->listen, sizeof(role->above));
    }
    snprintf(role->listen, sizeof(role->listen), "ipc://%s", name);
    role->begin_ns = world.now_ns + world_below(2000) * MS_;
    role->again_ms = 500;
}

/* The agents of a job's hosts. */
static void add_job(const char *name, const struct script *script, uint32_t records)
{
    const struct plan *plan = stage.plan;
    struct job *job = &stage.job[stage.jobs++];
    uint32_t per_node = plan->per_node, most = stage.jobs == 1 ? 4 : 1;
    while (per_node * most < script->program.ranks) {
        per_node++;
    }
    *job = (struct job){.name = name,
                        .program = &script->program,
                        .story = &script->story,
                        .first_host = world.hosts,
                        .per_node = per_node,
                        .records = records,
                        .statuses = plan->statuses};
    for (uint32_t i = 0; i * per_node < script->program.ranks; i++) {
        struct host *host = add_host(script->program.starved);
        const struct role *above = &stage.role[plan->relays ? 1 + i % plan->relays : 0];
        add_role('a', (uint32_t)(host - world.host), host, stage.jobs == 1 ? above : &stage.role[0]);
    }
}

/* All files of the world that this process plays. */
static void folder_of(pid_t pid, char out[WORLD_PATH])
{
    static const char *base = "/dev/shm";
    snprintf(out, WORLD_PATH, "%s/roll-world.%07d", access(base, W_OK) == 0 ? base : "/tmp", (int)pid);
}

void play_clean(pid_t pid)
{
    char folder[WORLD_PATH];
    folder_of(pid, folder);
    remove_folder(folder);
}

void cluster_unwatch(const struct fault *f, uint64_t until_ns)
{
    for (uint32_t i = 0; i < world.hosts; i++) {
        if (f->b != 0 || i == f->target % world.hosts) {
            world.host[i].unwatched_ns = until_ns;
        }
    }
}

void cluster_remove(void)
{
    remove_folder(world.dir);
}

void cluster_build(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults)
{
    memset(&world, 0, sizeof(world));
    memset(&stage, 0, sizeof(stage));
    stage.plan = plan;
    world.rng.state = plan->seed * 0x2545f4914f6cdd1du + 1;
    world.now_ns = START_NS - LEAD_NS;
    world.loud = play_loud;
    folder_of(getpid(), world.dir);
    remove_folder(world.dir);
    make_folder(world.dir);
    snprintf(stage.trace, sizeof(stage.trace), "%.200s/trace", world.dir);
    snprintf(stage.said, sizeof(stage.said), "%.200s/said.json", world.dir);
    calls_reset();
    struct host *head = add_host(0);
    add_role('r', 0, head, NULL);
    for (uint32_t i = 0; i < plan->relays; i++) {
        add_role('y', i, head, &stage.role[0]);
    }
    add_job("first", script, plan->records);
    if (second) {
        add_job("second", second, PLAN_RECORDS);
    }
    for (uint32_t i = 0; i < stage.jobs; i++) {
        if (ranks_begin(&stage.job[i]) != 0) {
            world_fail("too many ranks");
        }
    }
    for (uint32_t i = 0; with_faults && i < plan->faults; i++) {
        if (plan->fault[i].kind == FAULT_UNWATCH && plan->fault[i].a == 0) {
            cluster_unwatch(&plan->fault[i], WORLD_NEVER);
        }
    }
}
