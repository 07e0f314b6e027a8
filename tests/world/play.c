/*
 * play.c: plays a plan: builds the cluster, lets time pass from one thing that happens to the next, and ends it in good
 * order.
 */
#include "tests/world/play.h"

#include "daemon/agent/agent.h"
#include "daemon/base/log.h"
#include "daemon/relay/relay.h"
#include "daemon/root/root_state.h"
#include "tests/world/calls.h"
#include "tests/world/quiet.h"
#include "tests/world/rank.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEAD_NS     (3 * S_)   /* the world begins so long before the job's first call */
#define SETTLE_NS   (30 * S_)  /* how long it goes on when nothing more happens: longer than any patience */
#define JAM_NS      (150 * S_) /* of work on a device that never ends: a creation is waited for two minutes */
#define END_NS      (12 * S_)  /* an orderly end takes no longer */
#define HEARD_NS    (1 * S_)   /* what was written so long ago the root has heard of */
#define BACK_NS     (10 * S_)  /* an agent that was not heard is waited for */
#define HOUR_NS     (3600 * S_)
#define AGENT_BYTES (24u << 20)
#define ROOT_BYTES  (96u << 20)
#define ROLES       12u
#define LIVES       64u

bool play_loud;

/* A daemon of the cluster, which may be several processes one after another. */
struct role {
    char name[24], kind; /* r = root, y = relay, a = agent */
    struct host *host;
    char above[64], listen[64];
    struct process *process; /* NULL: none at the moment */
    uint64_t begin_ns;       /* when the next one begins; NEVER */
    uint64_t calm_ns;        /* its slowness ends */
    uint64_t swift_ns;       /* and that of its link */
    uint32_t again_ms;       /* after a death */
    size_t most;
    roll_root_t *root;
};

static struct stage {
    const struct plan *plan;
    struct role role[ROLES];
    uint32_t roles;
    struct job job[2];
    uint32_t jobs;
    char trace[WORLD_PATH], said[WORLD_PATH];
    long from[LIVES]; /* in that file: where the roots begin to speak that remember nothing of their predecessors */
    uint32_t lives, roots;
    struct findings told; /* what the last root said when it ended */
    bool known;           /* it knew of the job */
    bool gone;            /* rings of the job are gone, because a root had all of them */
    uint64_t end_ns;
    uint64_t deaths;
    bool ends;
} stage;

/* the daemons */

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

/* the cluster */

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

/* inotify of a host, or of all, is refused until then. */
static void unwatch(const struct fault *f, uint64_t until_ns)
{
    for (uint32_t i = 0; i < world.hosts; i++) {
        if (f->b != 0 || i == f->target % world.hosts) {
            world.host[i].unwatched_ns = until_ns;
        }
    }
}

static void build(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults)
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
            unwatch(&plan->fault[i], WORLD_NEVER);
        }
    }
}

/* faults */

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
        unwatch(f, world.now_ns + f->a * MS_);
    }
}

static void hit(const struct fault *f)
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

/* time */

static uint64_t fault_ns(const struct fault *f)
{
    return START_NS + f->at_ms * MS_;
}

/* When what it does directly is over. */
static uint64_t fault_over_ns(const struct fault *f)
{
    uint64_t lasts = f->kind == FAULT_SLOW || f->kind == FAULT_DELAY                               ? f->b
                     : fault_whom(f->kind) == 'P' || f->kind == FAULT_CUT || f->kind == FAULT_FULL ? f->a
                                                                                                   : 0;
    return fault_ns(f) + lasts * MS_;
}

/* How long it takes until all has been said of what has happened. */
static uint64_t settle_ns(const struct script *script)
{
    uint64_t settle = script->mutation.kind == MUTATION_JAM ? JAM_NS : SETTLE_NS;
    return settle * 1000 / (1000 - script->program.starved);
}

static uint64_t role_next(const struct role *role)
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

static void role_turn(struct role *role)
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
                hit(&plan->fault[i]);
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

/* accounts */

/* What its rank wrote is what the root took and what it counts as lost, by some cause; a host that polls may have
 * written one more just now. Nothing is dropped on its way where nothing fails. */
static void check_ring(const struct roll_run *run, const struct rank_written *w, const struct roll_feed_stream *s,
                       bool with_faults)
{
    uint64_t counted = 0;
    for (unsigned c = 0; c < ROLL_LOSS_LIMIT; c++) {
        counted += c == ROLL_LOSS_LAPPED ? 0 : s->losses[c];
    }
    if (run->digested) { /* the root has none of them until it asks */
        return;
    }
    if (s->next_ticket < w->marked || s->next_ticket > w->records || s->lost > w->records) {
        world_fail("rank %u of %s wrote %llu records, %llu of them a second ago; the root has come to %llu, of which "
                   "%llu are lost",
                   w->rank, w->job, (unsigned long long)w->records, (unsigned long long)w->marked,
                   (unsigned long long)s->next_ticket, (unsigned long long)s->lost);
    }
    if (s->lost > counted) {
        world_fail("of rank %u of %s %llu records are lost, and %llu have a cause", w->rank, w->job,
                   (unsigned long long)s->lost, (unsigned long long)counted);
    }
    if (!with_faults && s->losses[ROLL_LOSS_WIRE] > 0) {
        world_fail("of rank %u of %s %llu records were dropped on their way, without faults", w->rank, w->job,
                   (unsigned long long)s->losses[ROLL_LOSS_WIRE]);
    }
}

static bool turns_bits(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->faults; i++) {
        if (plan->fault[i].kind == FAULT_FLIP) {
            return true;
        }
    }
    return false;
}

/* What a root has read and could not keep its successor cannot know of, where the ring is gone. */
static bool is_unkept(void)
{
    return disk.refused > 0 && stage.roots > 1;
}

/* Each ring, but for those into which somebody else has written, and those behind a link that turned bits. */
static void check_accounts(struct played *out, bool with_faults)
{
    const roll_root_t *root = stage.role[0].root;
    struct rank_written w;
    if (!root) {
        world_fail("there is no root at the end");
    }
    for (uint32_t i = 0; root && rank_written(i, &w); i++) {
        bool first = strcmp(w.job, "first") == 0, counts = first || (!w.hostile && !turns_bits(stage.plan));
        bool unkept = is_unkept() && !w.there;
        bool found = false;
        out->written += first ? w.records : 0;
        stage.gone = stage.gone || (first && !w.there);
        for (size_t k = 0; k < root->runs_used; k++) {
            const struct roll_run *run = root->runs[k];
            struct roll_feed_stream s;
            if (strcmp(run->job, w.job) == 0 && roll_feed_find(run->feed, w.epoch, &s)) {
                found = true;
                out->lost += first ? s.lost + s.losses[ROLL_LOSS_LAPPED] : 0;
                if (counts && !unkept) {
                    check_ring(run, &w, &s, with_faults);
                }
            }
        }
        /* Another root may have begun when the ring was gone. */
        if (!found && counts && (w.there || stage.roots == 1)) {
            world_fail("the root has never heard of rank %u of %s", w.rank, w.job);
        }
    }
}

static void check_memory(struct played *out)
{
    for (uint32_t i = 0; i < stage.roles; i++) {
        const struct role *role = &stage.role[i];
        size_t most = role->process && role->process->heap_most > role->most ? role->process->heap_most : role->most;
        size_t *max = role->kind == 'r' ? &out->root_most : role->kind == 'y' ? &out->relay_most : &out->agent_most;
        *max = most > *max ? most : *max;
        if (most > (role->kind == 'a' ? AGENT_BYTES : ROOT_BYTES)) {
            world_fail("%s had %zu bytes", role->name, most);
        }
    }
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

/* A ring that holds less than was written in it cannot be asked for what digests show to differ. */
static bool is_short(const struct plan *plan, const struct script *script)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < script->program.ranks; r++) {
        most = script->story.rank[r].logs > most ? script->story.rank[r].logs : most;
    }
    return plan->digest && most > plan->records;
}

/*
 * What the last root said counts; what was ever said accused nobody who did nothing. A root that remembers nothing of
 * its predecessor may come too late: rings of ranks that have ended are gone. Then what the predecessor said counts,
 * and if it had no time to, the trace that the root has not kept is missed.
 */
static void judge_told(const struct script *script, struct played *out)
{
    const struct program *p = &script->program;
    struct latency latency;
    struct findings last = stage.told;
    bool told = false;
    stage.told = (struct findings){0};
    out->outcome = OUTCOME_RIGHT;
    for (uint32_t i = 0; i <= stage.lives; i++) {
        struct findings said;
        told_read(stage.said, stage.from[i], i < stage.lives ? stage.from[i + 1] : 0, "first", &said);
        told = told || judge(p, &script->mutation, &script->story, &said, &latency) == OUTCOME_RIGHT;
        said.lossy = true; /* it may have had no time for more */
        enum outcome outcome = judge(p, &script->mutation, &script->story, &said, &latency);
        if (outcome != OUTCOME_RIGHT && out->outcome == OUTCOME_RIGHT) {
            out->outcome = outcome;
            out->found = said;
        } else {
            findings_fini(&said);
        }
    }
    if (out->outcome != OUTCOME_RIGHT) {
        findings_fini(&last);
        return;
    }
    bool late = !stage.known || stage.lives > 0;
    last.lossy = out->lost > 0 || is_short(stage.plan, script) || ((late || is_unkept()) && stage.gone);
    out->found = last;
    out->outcome = judge(p, &script->mutation, &script->story, &out->found, &latency);
    out->outcome = out->outcome == OUTCOME_MISSED && told && late ? OUTCOME_RIGHT : out->outcome;
}

void play(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults,
          struct played *out)
{
    uint32_t faults = 0;
    memset(out, 0, sizeof(*out));
    build(plan, script, second, with_faults);
    stage.end_ns = end_of(plan, script, with_faults);
    begin_quiet(plan, script, with_faults);
    uint64_t began = world.now_ns;
    pass(stage.end_ns - HEARD_NS, with_faults, &faults);
    ranks_mark();
    pass(stage.end_ns, with_faults, &faults);
    if (!world.trouble[0]) {
        check_accounts(out, with_faults);
    }
    check_memory(out);
    end_in_order(&faults);
    out->world_ns = world.now_ns - began;
    out->host_ns = out->world_ns * world.hosts;
    out->rank_ns = out->world_ns * script->program.ranks;
    out->deaths = stage.deaths;
    out->turns = world.turns;
    out->print = world.print ^ world.rng.state;
    judge_told(script, out);
    snprintf(out->trouble, sizeof(out->trouble), "%s", world.trouble);
    for (uint32_t i = 0; i < stage.roles; i++) {
        if (stage.role[i].process) {
            process_kill(stage.role[i].process);
            process_forget(stage.role[i].process);
        }
    }
    ranks_end();
    socket_reset();
    remove_folder(world.dir);
}
