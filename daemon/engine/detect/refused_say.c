/*
 * refused_say.c: the verdict about a refused call: the stories of the refused ranks, and who waits for them.
 */
#include "daemon/engine/detect/refused.h"

#include <string.h>

void refused_case_fini(struct refused_case *t)
{
    roll_rankset_fini(&t->culprits);
    roll_rankset_fini(&t->waiting);
    roll_rankset_fini(&t->behind);
    roll_rankset_fini(&t->spared);
    roll_rankset_fini(&t->pending);
}

/* Adds the stories of all that are accused, and returns the argument that is wrong in each of them; "": there is none.
 */
static const char *words_stories(struct words *w, const struct roll_engine *e, const struct refused_case *t,
                                 const struct refused_stories *all)
{
    const char *field = words_story(w, e, t, &all->story[0]);
    for (uint32_t i = 1; i < all->used; i++) {
        words_add(w, " ");
        const char *another = words_story(w, e, t, &all->story[i]);
        field = strcmp(field, another) == 0 ? field : "";
    }
    if (roll_rankset_count(&all->rest) > 0) {
        words_add(w, " To ");
        words_ranks(w, &all->rest);
        words_add(w, " a call was refused there as well; what differs there is not told here.");
        field = "";
    }
    return field;
}

/* Adds who was refused there, too, and is not accused. */
static void words_others(struct words *w, const struct refused_case *t)
{
    if (roll_rankset_count(&t->spared) > 0) {
        words_add(w, " To ");
        words_ranks(w, &t->spared);
        words_add(w, " a call was refused there as well, with an error whose cause lies elsewhere.");
    }
    if (roll_rankset_count(&t->pending) > 0) {
        words_add(w, " To ");
        words_ranks(w, &t->pending);
        words_add(w, " a call was refused there as well, which may still be made again.");
    }
}

/* Adds who waits for the refused calls. */
static void words_waiting(struct words *w, const struct refused_case *t, struct roll_verdict *v)
{
    words_add(w, " ");
    words_wait(w, &t->waiting);
    words_add(w, " in ");
    words_call(w, t->waits);
    words_add(w, t->certainty == ROLL_PROVEN ? ", in vain." : ".");
    (void)roll_rankset_union(&v->waiting, &t->behind);
    if (roll_rankset_count(&t->behind) > 0) {
        words_add(w, " ");
        words_wait(w, &t->behind);
        words_add(w, " in other calls for the same reason.");
    }
}

uint64_t refused_speak(struct roll_engine *e, const struct refused_case *t, uint64_t before)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_CALL_REFUSED, t->certainty);
    if (!v) {
        return 0;
    }
    say_supersedes(e, v, before);
    struct words w = {.used = 0};
    bool elsewhere = refused_is_from_elsewhere(t->rec);
    struct refused_stories all;
    refused_stories(e, t, &all);
    if (t->comm) {
        say_comm(v, t->comm, t->waits ? t->waits->seq : t->rec->seq);
    }
    if (!elsewhere && t->certainty != ROLL_NOTE) {
        (void)roll_rankset_copy(&v->culprits, &t->culprits);
    }
    (void)roll_rankset_copy(&v->waiting, &t->waiting);
    for (uint32_t i = 0; i < all.used; i++) {
        const struct refused_story *story = &all.story[i];
        say_side(v, story->rank, source_index(e, story->rank), &story->ranks, story->rec);
    }
    if (t->waiter) {
        say_side(v, t->waiter, source_index(e, t->waiter), &t->waiting, t->waits);
    }
    v->field = words_stories(&w, e, t, &all);
    words_others(&w, t);
    if (t->waiter) {
        words_waiting(&w, t, v);
    }
    if (elsewhere) {
        words_add(&w, " The error says that its cause lies with another rank or on the way there: nobody is named.");
    }
    if (t->outcome == PASSED_OVER) {
        words_add(&w, " Suspected: it may have made the call again later, and left out another one.");
    } else if (t->certainty == ROLL_SUSPECTED && !elsewhere) {
        words_add(&w, " Suspected: it may still be made again.");
    }
    say_text(e, v, "%s", w.text);
    refused_stories_fini(&all);
    return v->number;
}

/* The oldest incomplete call of s, if it is a message whose side the member `of` has not made; NULL: it is none. */
static const struct entry *lacks_message(const struct source *s, const struct member *of)
{
    for (uint32_t k = 0; k < s->queues; k++) {
        const struct entry *head = s->queue[k].head ? source_entry(s, s->queue[k].head - 1) : NULL;
        if (head && head->pair && head->pair->comm == of->comm && head->rec.peer == of->rank &&
            !(p2p_node(head->pair, head->index)->have & 1u << !p2p_side(&head->rec))) {
            return head;
        }
    }
    return NULL;
}

void refused_add_waiting(const struct roll_engine *e, struct refused_case *t, const struct source *waiter,
                         const struct entry *waits)
{
    struct roll_rankset *out = &t->waiting;
    t->waiter = waiter;
    t->waits = &waits->rec;
    for (uint32_t i = 0; t->member && roll_op_class(t->rec->op) == ROLL_CLASS_P2P && i < e->sources; i++) {
        const struct source *s = e->source[i];
        const struct entry *lacks = s != t->rank && source_alive(s) ? lacks_message(s, t->member) : NULL;
        if (lacks && out == &t->waiting && !waits->pair) {
            t->waiter = s;
            t->waits = &lacks->rec;
            out = &t->behind;
        }
        if (lacks && (t->waits == &lacks->rec || s != waiter)) {
            (void)roll_rankset_add(t->waits == &lacks->rec ? &t->waiting : &t->behind, s->world);
        }
    }
    say_beside(e, waiter, waits, out);
}

/* The key of the verdict: one for all calls refused at one place of a communicator, one for each refused message. */
static uint64_t place_key(const struct refused_case *t)
{
    return roll_op_class(t->rec->op) == ROLL_CLASS_COLL && t->comm
               ? say_key(ROLL_VERDICT_CALL_REFUSED, t->comm->key, t->rec->seq, 0)
               : say_key(ROLL_VERDICT_CALL_REFUSED, t->rank->world, roll_seal_ticket(t->rec->seal), 2);
}

uint64_t refused_told_at(const struct roll_engine *e, const struct comm *c, uint32_t seq)
{
    return say_recall(e, say_key(ROLL_VERDICT_CALL_REFUSED, c->key, seq, 0));
}

/* The verdict about the end of these ranks and of no others, which the reason for their end supersedes; 0: none. */
static uint64_t told_of_end(const struct roll_engine *e, const struct refused_case *t)
{
    uint64_t number = t->outcome == ENDED && !refused_is_from_elsewhere(t->rec) ? t->rank->end_number : 0;
    for (uint32_t i = 0; number != 0 && i < e->sources; i++) {
        const struct source *s = e->source[i];
        number = s->end_number == number && !roll_rankset_has(&t->culprits, s->world) ? 0 : number;
    }
    return number;
}

/* Marks the end of these ranks as told: whoever waits for one of them elsewhere waits for the same reason
 * (wait_judge.c). */
static void note_ends(struct roll_engine *e, const struct refused_case *t, uint64_t number)
{
    bool named = t->outcome == ENDED && number != 0 && !refused_is_from_elsewhere(t->rec);
    for (uint32_t i = 0; named && i < e->sources; i++) {
        struct source *s = e->source[i];
        if (!source_alive(s) && roll_rankset_has(&t->culprits, s->world)) {
            s->end_named = true;
            s->end_number = number;
        }
    }
}

/* There is memory to mark every culprit as told. */
static bool can_be_marked(struct roll_engine *e, const struct refused_case *t)
{
    bool can = refused_make_source(t->rank) != NULL;
    for (uint32_t i = 0; i < e->sources && can; i++) {
        can = !roll_rankset_has(&t->culprits, e->source[i]->world) || refused_make_source(e->source[i]);
    }
    return can;
}

void refused_tell_once(struct roll_engine *e, struct refused_case *t)
{
    bool fresh = false;
    if (!can_be_marked(e, t)) {
        return;
    }
    if (t->comm) {
        comm_mute(e, t->comm, t->waits && roll_op_class(t->waits->op) == ROLL_CLASS_COLL ? t->waits->seq : NO_SEQ);
        comm_explained(e, t->comm);
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        const struct member *m = t->comm ? refused_member_in(t->comm, e, s) : NULL;
        bool coll = roll_op_class(t->rec->op) == ROLL_CLASS_COLL;
        const struct refused_member *r = m ? refused_of_member(m) : NULL;
        const struct roll_record *rec = s == t->rank || !r ? t->rec : coll ? &r->coll.rec : &r->message.rec;
        if (s == t->rank || roll_rankset_has(&t->culprits, s->world)) {
            (void)refused_set_said(s, false);
            uint64_t proof =
                t->certainty == ROLL_PROVEN ? 3 : 1; /* what was suspected is told again when it is proven */
            uint64_t key = say_key(ROLL_VERDICT_CALL_REFUSED, s->world, roll_seal_ticket(rec->seal), proof);
            fresh = say_once(e, key) || fresh;
        }
    }
    for (uint32_t i = 0; i < e->sources && fresh; i++) {
        if (roll_rankset_has(&t->spared, e->source[i]->world)) { /* told in the same verdict */
            (void)refused_set_said(e->source[i], false);
        }
    }
    if (fresh) {
        uint64_t before = say_recall(e, place_key(t)),
                 number = refused_speak(e, t, before ? before : told_of_end(e, t));
        say_remember(e, place_key(t), number);
        if (number != 0 && t->certainty == ROLL_SUSPECTED && t->waiter && t->comm) {
            doubt_call(e, number, t->mutes, t->waiter, roll_seal_ticket(t->waits->seal), t->rank, t->comm);
        }
        note_ends(e, t, number);
    }
}
