/*
 * init_say.c: the words of a creation that lacks members (detect_init.c): who has not joined, who never will, and who
 * still may. They stand apart because who is missed and what is said of it are two ideas.
 */
#include "daemon/engine/detect/init.h"

/* Adds why these ranks cannot come any more, and which others have not come yet. */
static void words_never(struct words *w, const struct roll_engine *e, const struct absent *a)
{
    size_t never = roll_rankset_count(&a->never), left = 0;
    bool one = never == 1;
    struct roll_rankset late = {0};
    for (size_t i = 0; i < never; i++) {
        const struct source *s = source_newest(e, roll_rankset_at(&a->never, i));
        left += s && source_alive(s);
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!source_alive(s)) {
            continue;
        }
        if (roll_rankset_has(&a->ranks, s->world) && !roll_rankset_has(&a->never, s->world)) {
            (void)roll_rankset_add(&late, s->world);
        }
    }
    if (left > 0 && left < never) {
        words_add(w, " Their processes have ended, or they have left the parent: they never will.");
    } else if (left == 0) {
        words_add(w,
                  one ? " Its process has ended, so it never will." : " Their processes have ended: they never will.");
    } else {
        words_add(w,
                  one ? " It has left the parent, so it never will." : " They have left the parent: they never will.");
    }
    if (roll_rankset_count(&late) > 0) {
        words_add(w, " ");
        words_ranks(w, &late);
        words_add(w, roll_rankset_count(&late) == 1 ? " has not joined yet, but still may."
                                                    : " have not joined yet, but still may.");
    }
    roll_rankset_fini(&late);
}

void init_say(struct roll_engine *e, struct source *s, const struct roll_record *rec, const struct absent *a)
{
    /* Then the ranks that may still come are not named: why they have not come is another matter. */
    bool over = absent_is_over(a);
    struct roll_verdict *v = say(e, ROLL_VERDICT_INIT_MISSING, over ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    const struct member *m = source_member(s, rec->comm);
    uint32_t size = rec->op == ROLL_OP_COMM_SPLIT && m ? m->comm->size : (uint32_t)rec->count;
    struct roll_rankset culprits = {0};
    (void)roll_rankset_copy(&culprits, over ? &a->never : &a->ranks);
    bool whole = creation_is_whole(e, s, rec) && s->info.world_size > 0;
    for (uint32_t r = 0; !over && !a->unsure && a->unseen > 0 && whole && r < (uint32_t)rec->count; r++) {
        if (!roll_rankset_has(&a->ranks, r) && !roll_rankset_has(&a->inside, r)) {
            (void)roll_rankset_add(&culprits, r);
        }
    }
    (void)roll_rankset_copy(&v->culprits, &culprits);
    (void)roll_rankset_copy(&v->waiting, &a->inside);
    say_side(v, NULL, source_index(e, s), &culprits, NULL);
    say_side(v, s, source_index(e, s), &a->inside, rec);
    v->comm_size = rec->op == ROLL_OP_COMM_INIT ? (uint32_t)rec->count : 0;
    struct words w = {.used = 0};
    words_wait(&w, &a->inside);
    words_add(&w, " in %s for %.1f s: ", roll_op_name(rec->op),
              e->clock > s->init_since ? (double)(e->clock - s->init_since) / 1e9 : 0.0);
    if (roll_rankset_count(&culprits) > 0) {
        words_ranks(&w, &culprits);
        words_add(&w, " did not join.");
    } else {
        words_add(&w, "%u of its %u members did not join; which ranks they are is not known.", a->unseen, size);
    }
    if (over) {
        words_never(&w, e, a);
    } else if (a->unseen > 0 && whole) {
        words_add(&w,
                  " Nothing has been seen of %u of them: they were not started, or not preloaded. Suspected: they may "
                  "only be late.",
                  a->unseen);
    } else {
        words_add(&w, " Suspected: a rank may only be late.");
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&culprits);
}
