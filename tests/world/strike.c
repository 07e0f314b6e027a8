/*
 * strike.c: what a fault of the plan does, and for how long it does so directly. Whom it hits is a number, which means
 * somebody in each cluster: so a plan stays one when its cluster is made smaller.
 */
#include "tests/world/stage.h"

static struct role *role_of(uint32_t target, bool linked)
{
    struct role *role = &stage.role[target % stage.roles];
    return linked && role->kind == 'r' ? &stage.role[stage.roles - 1] : role;
}

static void put_later(uint64_t *at, uint64_t ns)
{
    *at = *at == WORLD_NEVER || *at < ns ? ns : *at;
}

static void hit_process(struct role *role, const struct fault *f)
{
    struct process *p = role->process;
    uint64_t until = world.now_ns + f->a * MS_;
    if (!process_lives(p)) {
        return;
    }
    switch (f->kind) {
    case FAULT_KILL:
        role->again_ms = f->a;
        p->dies_in = f->b;
        if (f->b == 0) {
            process_kill(p);
        }
        break;
    case FAULT_RESTART:
        role->again_ms = f->a;
        p->stop = true;
        process_wake(p, world.now_ns);
        break;
    case FAULT_STOP:
        p->stopped_ns = until;
        break;
    default:
        p->slow_us = f->a;
        put_later(&role->calm_ns, world.now_ns + f->b * MS_);
        break;
    }
}

static void hit_link(struct role *role, const struct fault *f)
{
    struct process *p = role->process;
    if (!process_lives(p)) {
        return;
    }
    switch (f->kind) {
    case FAULT_BREAK:
        link_break(p);
        break;
    case FAULT_CUT:
        link_cut(p, world.now_ns + f->a * MS_);
        break;
    case FAULT_DELAY:
        link_slow(p, f->a);
        put_later(&role->swift_ns, world.now_ns + f->b * MS_);
        break;
    default:
        link_harm(p, f->b != 0,
                  f->kind == FAULT_LOSE     ? LINK_LOSE
                  : f->kind == FAULT_DOUBLE ? LINK_DOUBLE
                                            : LINK_FLIP,
                  f->a);
        break;
    }
}

static void hit_host(const struct fault *f)
{
    if (f->kind == FAULT_CLOCK) {
        world.host[f->target % world.hosts].real_ns += (f->b ? -1 : 1) * (int64_t)f->a * (int64_t)S_;
    } else if (f->a != 0) {
        cluster_unwatch(f, world.now_ns + f->a * MS_);
    }
}

void fault_strike(const struct fault *f)
{
    uint32_t first = stage.job[0].program->ranks;
    switch (fault_whom(f->kind)) {
    case 'P':
        hit_process(role_of(f->target, false), f);
        break;
    case 'L': /* bytes are turned only on the links of hostile nodes */
        hit_link(f->kind == FAULT_FLIP ? &stage.role[stage.roles - 1] : role_of(f->target, true), f);
        break;
    case 'H':
        hit_host(f);
        break;
    case 'D':
        disk.full_until_ns = world.now_ns + f->a * MS_;
        break;
    default:
        for (uint32_t i = 0; stage.jobs > 1 && i < (f->kind == FAULT_WILD ? f->a : 1); i++) {
            rank_harm(first + f->target % stage.job[1].program->ranks, f->kind == FAULT_WILD   ? RANK_WILD
                                                                       : f->kind == FAULT_JUMP ? RANK_JUMP
                                                                                               : RANK_CUT);
        }
        break;
    }
}

uint64_t fault_ns(const struct fault *f)
{
    return START_NS + f->at_ms * MS_;
}

uint64_t fault_over_ns(const struct fault *f)
{
    uint64_t lasts = f->kind == FAULT_SLOW || f->kind == FAULT_DELAY                               ? f->b
                     : fault_whom(f->kind) == 'P' || f->kind == FAULT_CUT || f->kind == FAULT_FULL ? f->a
                                                                                                   : 0;
    return fault_ns(f) + lasts * MS_;
}
