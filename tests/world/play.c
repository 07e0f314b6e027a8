/*
 * play.c: plays a plan: lets time pass from one thing that happens to the next, and ends the cluster in good order.
 */
#include "tests/world/stage.h"

#include "tests/world/quiet.h"

#include <stdio.h>
#include <string.h>

#define SETTLE_NS (30 * S_)  /* how long it goes on when nothing more happens: longer than any patience */
#define JAM_NS    (150 * S_) /* of work on a device that never ends: a creation is waited for two minutes */
#define END_NS    (12 * S_)  /* an orderly end takes no longer */
#define HEARD_NS  (1 * S_)   /* what was written so long ago the root has heard of */
#define BACK_NS   (10 * S_)  /* an agent that was not heard is waited for */
#define HOUR_NS   (3600 * S_)

bool play_loud;
struct stage stage;

/* How long it takes until all has been said of what has happened. */
static uint64_t settle_ns(const struct script *script)
{
    uint64_t settle = script->mutation.kind == MUTATION_JAM ? JAM_NS : SETTLE_NS;
    return settle * 1000 / (1000 - script->program.starved);
}

static void pass(uint64_t until, bool with_faults, uint32_t *fault_at)
{
    const struct plan *plan = stage.plan;
    while (world.now_ns < until && !world.trouble[0]) {
        quiet_look();
        uint64_t next = until, links = link_next(), ranks = ranks_next();
        for (uint32_t i = 0; i < stage.roles; i++) {
            uint64_t at = role_next(&stage.role[i]);
            next = at < next ? at : next;
        }
        next = links < next ? links : next;
        next = ranks < next ? ranks : next;
        for (uint32_t i = 0; with_faults && i < plan->faults; i++) {
            uint64_t at = (*fault_at >> i & 1) ? WORLD_NEVER : fault_ns(&plan->fault[i]);
            next = at < next ? at : next;
        }
        world.now_ns = next > world.now_ns ? next : world.now_ns;
        if (ranks <= world.now_ns) {
            ranks_turn();
        }
        for (uint32_t i = 0; with_faults && i < plan->faults; i++) {
            if (!(*fault_at >> i & 1) && fault_ns(&plan->fault[i]) <= world.now_ns) {
                *fault_at |= 1u << i;
                ranks_turn();
                fault_strike(&plan->fault[i]);
            }
        }
        link_turn();
        for (uint32_t i = 0; i < stage.roles; i++) {
            if (role_next(&stage.role[i]) <= world.now_ns) {
                role_turn(&stage.role[i]);
            }
        }
    }
}

/* How long the world goes on: until all has been said that is to be said. */
static uint64_t end_of(const struct plan *plan, const struct script *script, bool with_faults)
{
    uint64_t end = START_NS + plan->hours * HOUR_NS;
    end = script->story.still_ns > end ? script->story.still_ns : end;
    for (uint32_t i = 0; with_faults && i < plan->faults; i++) {
        uint64_t over = fault_over_ns(&plan->fault[i]) + BACK_NS;
        end = over > end ? over : end;
    }
    return end + settle_ns(script);
}

/* Where nothing happens for long: not before all has been said of what did, and not when the accounts are made. */
static void begin_quiet(const struct plan *plan, const struct script *script, bool with_faults)
{
    struct quiet q = {.slack_ns = plan->slack * MS_, .settle_ns = settle_ns(script) + BACK_NS};
    for (uint32_t i = 0; with_faults && i < plan->faults; i++) {
        q.stir[q.stirs++] = (struct stir){fault_ns(&plan->fault[i]), fault_over_ns(&plan->fault[i])};
    }
    q.stir[q.stirs++] = (struct stir){stage.end_ns - HEARD_NS, WORLD_NEVER};
    quiet_begin(&q);
}

/* Root first, as it gives its last verdicts; then what is below it. */
static void end_in_order(uint32_t *faults)
{
    stage.ends = true;
    for (uint32_t i = 0; i < stage.roles; i++) {
        struct role *role = &stage.role[i];
        if (!process_lives(role->process)) {
            continue;
        }
        role->process->dies_in = 0;
        role->process->stop = true;
        process_wake(role->process, world.now_ns);
        uint64_t until = world.now_ns + END_NS;
        while (role->process && world.now_ns < until && !world.trouble[0]) {
            pass(world.now_ns + 100 * MS_, false, faults);
        }
        if (role->process && !world.trouble[0]) {
            world_fail("%s does not end", role->name);
        }
    }
}

void play(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults,
          struct played *out)
{
    uint32_t faults = 0;
    memset(out, 0, sizeof(*out));
    cluster_build(plan, script, second, with_faults);
    stage.end_ns = end_of(plan, script, with_faults);
    begin_quiet(plan, script, with_faults);
    uint64_t began = world.now_ns;
    pass(stage.end_ns - HEARD_NS, with_faults, &faults);
    ranks_mark();
    pass(stage.end_ns, with_faults, &faults);
    if (!world.trouble[0]) {
        accounts_check(out, with_faults);
    }
    accounts_memory(out);
    end_in_order(&faults);
    out->world_ns = world.now_ns - began;
    out->host_ns = out->world_ns * world.hosts;
    out->rank_ns = out->world_ns * script->program.ranks;
    out->deaths = stage.deaths;
    out->turns = world.turns;
    out->print = world.print ^ world.rng.state;
    accounts_judge(script, out);
    snprintf(out->trouble, sizeof(out->trouble), "%s", world.trouble);
    for (uint32_t i = 0; i < stage.roles; i++) {
        if (stage.role[i].process) {
            process_kill(stage.role[i].process);
            process_forget(stage.role[i].process);
        }
    }
    ranks_end();
    socket_reset();
    cluster_remove();
}
