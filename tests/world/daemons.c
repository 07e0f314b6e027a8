/*
 * daemons.c: the daemons of the cluster: what a process of each runs, when it begins, and that it leaves nothing
 * behind.
 *
 * A role is a daemon as people see it, whatever number of processes it has been. To put its life into process.c was
 * rejected: that one knows stacks and deaths, and of no daemon.
 */
#include "tests/world/stage.h"

#include "daemon/agent/agent.h"
#include "daemon/relay/relay.h"
#include "tests/world/calls.h"

#include <string.h>
#include <sys/stat.h>

static void run_agent(struct process *p)
{
    struct role *role = p->argument;
    char why[512] = "";
    int fd = -1, pid = 0;
    p->code = roll_agent_lock(role->host->rings, &fd, &pid);
    if (p->code != 0) {
        return;
    }
    struct roll_agent_options o = {
        .context = &stage, .dir = role->host->rings, .endpoint = role->above, .stop = &p->stop};
    p->code = roll_agent_run(&o, why, sizeof(why));
    if (p->code != 0) {
        world_fail("%s does not start: %s", role->name, why);
    }
    roll_agent_unlock(role->host->rings, &fd);
}

static void run_relay(struct process *p)
{
    struct role *role = p->argument;
    char why[512] = "";
    roll_relay_t *relay = NULL;
    struct roll_relay_options o = {
        .context = &stage, .listen = {role->listen}, .listens = 1, .above = role->above, .stop = &p->stop};
    p->code = roll_relay_new(&o, &relay, why, sizeof(why));
    if (p->code != 0) {
        world_fail("%s does not start: %s", role->name, why);
        return;
    }
    roll_relay_run(relay);
    roll_relay_destroy(&relay);
}

/* What a root has said of the first job, before it forgets. */
static void remember(const roll_root_t *root)
{
    findings_fini(&stage.told);
    stage.known = false;
    for (size_t i = 0; i < root->runs_used; i++) {
        if (strcmp(root->runs[i]->job, "first") == 0) {
            struct process *p = process_now;
            process_now = NULL; /* what is remembered is not the root's */
            told_take(&root->runs[i]->verdicts, &stage.told);
            process_now = p;
            stage.known = true;
        }
    }
}

static void run_root(struct process *p)
{
    struct role *role = p->argument;
    const struct plan *plan = stage.plan;
    char why[512] = "";
    struct roll_root_options o = {.context = &stage,
                                  .listen = {role->listen},
                                  .listens = 1,
                                  .trace_dir = plan->trace ? stage.trace : NULL,
                                  .json_path = stage.said,
                                  .compare = plan->digest ? ROLL_COMPARE_DIGEST : ROLL_COMPARE_STREAM,
                                  .stop = &p->stop};
    p->code = roll_root_new(&o, &role->root, why, sizeof(why));
    if (p->code != 0) {
        role->root = NULL;
        world_fail("%s does not start: %s", role->name, why);
        return;
    }
    (void)roll_root_run(role->root);
    remember(role->root);
    roll_root_destroy(&role->root);
}

static void begin(struct role *role)
{
    role->begin_ns = WORLD_NEVER;
    struct stat st;
    stage.roots += role->kind == 'r';
    if (role->kind == 'r' && stat(stage.said, &st) == 0 && (!stage.plan->trace || stage.plan->digest) &&
        stage.lives < LIVES - 1) {
        stage.from[++stage.lives] = st.st_size;
    }
    role->process = process_begin(role->name, role->host,
                                  role->kind == 'r'   ? run_root
                                  : role->kind == 'y' ? run_relay
                                                      : run_agent,
                                  role);
    if (!role->process) {
        world_fail("no room for %s", role->name);
    }
}

/* A daemon that has ended in good order has given everything back. */
static void take_leave(struct role *role)
{
    struct process *p = role->process;
    size_t blocks, bytes = heap_left(p, &blocks);
    int left = calls_left(p);
    if (p->state == PROCESS_OVER && (blocks > 0 || left > 0)) {
        world_fail("%s leaves %zu bytes in %zu blocks and %d descriptors and mappings", role->name, bytes, blocks,
                   left);
    }
    if (p->state == PROCESS_DEAD) {
        stage.deaths++;
    }
    role->most = p->heap_most > role->most ? p->heap_most : role->most;
    role->root = NULL;
    process_forget(p);
    role->process = NULL;
    role->begin_ns = stage.ends ? WORLD_NEVER : world.now_ns + role->again_ms * MS_;
}

uint64_t role_next(const struct role *role)
{
    uint64_t next = role->begin_ns;
    next = role->calm_ns < next ? role->calm_ns : next;
    next = role->swift_ns < next ? role->swift_ns : next;
    if (role->process) {
        uint64_t wake = process_lives(role->process) ? role->process->wake_ns : world.now_ns;
        next = wake < next ? wake : next;
    }
    return next;
}

void role_turn(struct role *role)
{
    if (role->process && !process_lives(role->process)) {
        take_leave(role);
    }
    if (role->begin_ns <= world.now_ns && !role->process && !stage.ends) {
        begin(role);
    }
    if (role->calm_ns <= world.now_ns) {
        role->calm_ns = WORLD_NEVER;
        if (role->process) {
            role->process->slow_us = 0;
        }
    }
    if (role->swift_ns <= world.now_ns) {
        role->swift_ns = WORLD_NEVER;
        if (process_lives(role->process)) {
            link_slow(role->process, 0);
        }
    }
    if (process_lives(role->process) && role->process->wake_ns <= world.now_ns) {
        ranks_turn();
        process_run(role->process);
    }
}
