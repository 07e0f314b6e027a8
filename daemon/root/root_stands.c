/*
 * root_stands.c: how each rank of a run stands, and for whom it waits: what the page, the status and `top` show.
 *
 * One letter for each rank, by the rule that reports have as well (daemon/feed/field.h). That each face derives it from
 * what it has of a rank was rejected: `top` then called a rank running whose streams wait, which the page called
 * waiting.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/feed/field.h"
#include "daemon/verdict/verdict_brief.h"

#define BUSY_NS (1000 * ROLL_MS)

/* Those who are in their own code while others wait for them: as a finding says; or who have made no call for a second
 * while members of a communicator have made one that they have not, which less than a second is the way of any job. */
static void find_awaited(const struct roll_run *run, struct roll_rankset *awaited)
{
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    struct roll_rankset behind = {0};
    struct roll_view_comm comm;
    struct roll_view_source v;
    uint64_t now = roll_real_ns();
    roll_verdict_awaited(&run->verdicts, awaited);
    for (uint32_t i = 0; !roll_digested_calm(run) && roll_engine_comm(engine, i, &comm); i++) {
        (void)roll_rankset_union(&behind, &comm.behind);
    }
    for (size_t i = 0, n = roll_rankset_count(&behind); i < n; i++) {
        uint32_t rank = roll_rankset_at(&behind, i);
        if (roll_engine_rank(engine, rank, &v) && v.last_ns + BUSY_NS < now) {
            (void)roll_rankset_add(awaited, rank);
        }
    }
    roll_rankset_fini(&behind);
}

void roll_stands_begin(const struct roll_run *run, struct roll_stands *out)
{
    *out = (struct roll_stands){.run = run};
    roll_verdict_waiting(&run->verdicts, &out->waiting);
    find_awaited(run, &out->awaited);
}

void roll_stands_end(struct roll_stands *stands)
{
    roll_rankset_fini(&stands->waiting);
    roll_rankset_fini(&stands->awaited);
    stands->run = NULL;
}

char roll_stands_letter(const struct roll_stands *stands, const struct roll_view_source *v)
{
    return roll_field_letter(v, &stands->waiting, &stands->awaited);
}

/* The culprits of the newest finding that stands and says that this rank waits. */
static void awaited_by_finding(const struct roll_run *run, uint32_t rank, struct roll_rankset *out)
{
    for (size_t i = run->verdicts.used; i-- > 0 && roll_rankset_count(out) == 0;) {
        const struct roll_verdict_copy *copy = run->verdicts.at[i];
        if (roll_verdict_stands(copy) && roll_rankset_has(&copy->said.waiting, rank)) {
            (void)roll_rankset_union(out, &copy->said.culprits);
        }
    }
}

void roll_stands_awaits(const struct roll_stands *stands, const struct roll_view_source *v, struct roll_rankset *out)
{
    if (v->info.world_rank < 0 || roll_stands_letter(stands, v) != 'w') {
        return;
    }
    uint32_t rank = (uint32_t)v->info.world_rank;
    if (!roll_digested_calm(stands->run)) {
        roll_engine_awaited(roll_feed_engine(roll_run_judge(stands->run)), rank, out);
    }
    if (roll_rankset_count(out) == 0) {
        awaited_by_finding(stands->run, rank, out);
    }
}
