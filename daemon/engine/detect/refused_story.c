/*
 * refused_story.c: what was refused to each of several ranks, why, and what each did instead.
 *
 * Ranks that are refused at one place need not have made one mistake: one broadcasts from a root that does not exist,
 * another gives a datatype that is none, a third ends while the second waits. To tell the story of one of them for all
 * was rejected: whoever looks for that call in the code of another rank does not find it there.
 */
#include "daemon/engine/detect/refused.h"

#include <string.h>

void refused_stories_fini(struct refused_stories *all)
{
    for (uint32_t i = 0; i < all->used; i++) {
        roll_rankset_fini(&all->story[i].ranks);
    }
    roll_rankset_fini(&all->rest);
}

/* What this culprit did; false: its call is not known. */
static bool story_of(const struct roll_engine *e, const struct refused_case *t, const struct source *s,
                     struct refused_story *out)
{
    enum roll_op_class class = roll_op_class(t->rec->op);
    *out = (struct refused_story){.rank = s};
    if (s == t->rank) {
        out->member = t->member;
        out->rec = t->rec;
        out->outcome = t->outcome;
        return true;
    }
    if (class == ROLL_CLASS_COMM) {
        out->rec = refused_last_error(s);
        out->member = out->rec ? source_member(s, out->rec->comm) : NULL;
        out->outcome = refused_outcome_of(s, NULL);
        return out->rec != NULL;
    }
    out->member = refused_member_in(t->comm, e, s);
    const struct refused_member *own = out->member ? refused_of_member(out->member) : NULL;
    const struct refusal *r = !own ? NULL : class == ROLL_CLASS_COLL ? &own->coll : &own->message;
    if (!r || r->rec.op == ROLL_OP_NONE) {
        return false;
    }
    out->rec = &r->rec;
    out->outcome = t->outcome == WENT_ON                   ? WENT_ON
                   : t->outcome == PASSED_OVER && !r->open ? PASSED_OVER
                                                           : refused_outcome_of(s, out->member);
    return true;
}

static bool same_call(const struct roll_record *a, const struct roll_record *b)
{
    return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop &&
           a->result == b->result && (a->group != 0) == (b->group != 0);
}

/* The two creations were refused for the same argument. */
static bool same_argument(const struct roll_engine *e, const struct refused_story *a, const struct refused_story *b)
{
    struct words mine = {.used = 0}, theirs = {.used = 0};
    (void)refused_wrong_argument(e, a->rank, a->member, a->rec, &mine);
    (void)refused_wrong_argument(e, b->rank, b->member, b->rec, &theirs);
    return strcmp(mine.text, theirs.text) == 0;
}

static bool is_alike(const struct roll_engine *e, const struct refused_story *a, const struct refused_story *b)
{
    bool creation = roll_op_class(a->rec->op) == ROLL_CLASS_COMM;
    bool same = same_call(a->rec, b->rec) && a->outcome == b->outcome &&
                (a->outcome != ENDED || a->rank->exit_status == b->rank->exit_status);
    if (!same || creation) {
        return same && same_argument(e, a, b);
    }
    /* Of a group the rank keeps the call that NCCL did not take. */
    const struct roll_record *mine = &a->rank->failed, *theirs = &b->rank->failed;
    bool reason = a->rec->group == 0 || (same_call(mine, theirs) && mine->peer == theirs->peer);
    return a->rec->seq == b->rec->seq && a->rec->peer == b->rec->peer && reason;
}

static void add_story(const struct roll_engine *e, struct refused_stories *all, const struct refused_story *one,
                      bool known)
{
    uint32_t at = 0;
    while (known && at < all->used && !is_alike(e, &all->story[at], one)) {
        at++;
    }
    if (!known || (at == all->used && at == REFUSED_STORIES)) {
        (void)roll_rankset_add(&all->rest, one->rank->world);
        return;
    }
    if (at == all->used) {
        all->story[all->used++] = *one;
    }
    (void)roll_rankset_add(&all->story[at].ranks, one->rank->world);
}

void refused_stories(const struct roll_engine *e, const struct refused_case *t, struct refused_stories *out)
{
    struct refused_story one;
    *out = (struct refused_stories){.used = 0};
    (void)story_of(e, t, t->rank, &one);
    add_story(e, out, &one, true);
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (s != t->rank && roll_rankset_has(&t->culprits, s->world) && s->world != t->rank->world) {
            bool known = story_of(e, t, s, &one);
            if (known || source_newest(e, s->world) == s) { /* else an earlier process of the same rank */
                add_story(e, out, &one, known);
            }
        }
    }
}

static void words_outcome(struct words *w, const struct refused_case *t, const struct refused_story *story)
{
    bool one = roll_rankset_count(&story->ranks) == 1;
    words_add(w, "nothing %s was enqueued, and ", story->rec->group != 0 ? "of its whole group" : "of it");
    switch (story->outcome) {
    case DESTROYED:
        words_add(w, "the communicator has been destroyed without it.");
        break;
    case ENDED:
        words_add(w, one ? "the rank has ended (" : "the ranks have ended (each: ");
        words_exit(w, story->rank->exit_status);
        words_add(w, ").");
        break;
    case WENT_ON:
        if (!t->instead || story->rec->seq != t->rec->seq) {
            words_add(w, "it was left out.");
            break;
        }
        words_add(w, "in its place came ");
        words_call(w, t->instead);
        words_add(w, ".");
        break;
    case PASSED_OVER:
        words_add(w, "the rank went on with something else; it made as many such calls as its peers, less one.");
        break;
    default:
        words_add(w, "it was not made again.");
    }
}

/* Adds what is known beside the call itself: the call of its group that NCCL did not take, or where to look. */
static void words_beside(struct words *w, const struct roll_engine *e, const struct refused_story *story, bool known)
{
    bool elsewhere = refused_is_from_elsewhere(story->rec);
    const struct roll_record *voids = !known && !elsewhere ? refused_wrong_in_group(e, story->rank, story->rec) : NULL;
    if (voids) {
        words_add(w, " What NCCL did not take is ");
        words_call(w, voids);
        words_add(w, " in the same group: ");
        (void)refused_wrong_argument(e, story->rank, source_member(story->rank, voids->comm), voids, w);
        words_add(w, ".");
    } else if (call_declined(story->rec)) {
        words_add(w, " What differed stands in its line on the rank's standard error.");
    } else if (!known && !elsewhere) {
        words_add(w, " Which argument or state NCCL did not take is not in the record: NCCL_DEBUG=WARN prints it.");
    }
}

const char *words_story(struct words *w, const struct roll_engine *e, const struct refused_case *t,
                        const struct refused_story *story)
{
    enum roll_op_class class = roll_op_class(story->rec->op);
    words_ranks(w, &story->ranks);
    words_add(w, " called ");
    words_call(w, story->rec);
    if (t->comm && class != ROLL_CLASS_COMM) {
        words_add(w, class == ROLL_CLASS_P2P ? " on " : " as #%u on ", story->rec->seq);
        words_comm(w, t->comm);
    }
    if (call_declined(story->rec)) {
        words_add(w, ", and rollcall refused it (ROLLCALL_ON_MISMATCH), because another rank's call there differed: ");
    } else {
        words_add(w, ", and NCCL returned %s: ", roll_result_name(story->rec->result));
    }
    const char *field = refused_wrong_argument(e, story->rank, story->member, story->rec, w);
    if (*field != '\0') {
        words_add(w, "; ");
    }
    words_outcome(w, t, story);
    words_beside(w, e, story, *field != '\0');
    return field;
}
