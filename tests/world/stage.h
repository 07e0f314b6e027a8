/*
 * stage.h: the cluster that is played at this moment: its daemons and jobs. play.c and the files beside it share it,
 * and nobody else: daemons.c lets daemons begin and end, cluster.c builds hosts, daemons and jobs, strike.c does what a
 * fault does, accounts.c adds up what is left.
 */
#ifndef ROLL_TESTS_WORLD_STAGE_H
#define ROLL_TESTS_WORLD_STAGE_H

#include "daemon/root/root_state.h"
#include "tests/world/play.h"
#include "tests/world/rank.h"

#define LEAD_NS (3 * S_) /* the world begins so long before the job's first call */
#define ROLES   12u
#define LIVES   64u

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

struct stage {
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
};
extern struct stage stage; /* play.c */

/* daemons.c */
/* When something of the role is due: a process of it begins, goes on or is over; WORLD_NEVER. */
uint64_t role_next(const struct role *role);
/* Does what is due. */
void role_turn(struct role *role);

/* cluster.c */
/* A new world of that plan: hosts, daemons that begin one after the other, jobs. second: NULL = there is none. */
void cluster_build(const struct plan *plan, const struct script *script, const struct script *second, bool with_faults);
/* All files of it go. */
void cluster_remove(void);
/* inotify of a host, or of all, is refused until then. */
void cluster_unwatch(const struct fault *f, uint64_t until_ns);

/* strike.c */
/* When it happens, and when what it does directly is over. */
uint64_t fault_ns(const struct fault *f);
uint64_t fault_over_ns(const struct fault *f);
void fault_strike(const struct fault *f);

/* accounts.c */
/* Each ring that its ranks wrote is what the root took and what it counts as lost; called while the root lives. */
void accounts_check(struct played *out, bool with_faults);
/* No daemon took more memory than it may. */
void accounts_memory(struct played *out);
/* What was said by all roots, and by the last one, which has ended. */
void accounts_judge(const struct script *script, struct played *out);

#endif
