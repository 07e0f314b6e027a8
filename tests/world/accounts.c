/*
 * accounts.c: what is right at the end: of each ring, of the memory of each daemon, and of what people were told.
 *
 * The root is asked while it lives, as a console asks it. To count what comes over links was rejected: a message that
 * is lost and sent again is right.
 */
#include "tests/world/stage.h"

#include <string.h>

#define AGENT_BYTES (24u << 20)
#define ROOT_BYTES  (96u << 20)

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
void accounts_check(struct played *out, bool with_faults)
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

void accounts_memory(struct played *out)
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
void accounts_judge(const struct script *script, struct played *out)
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
