/*
 * refused_say.c: the verdict about a refused call: which ranks were refused, why, what they did instead, and who waits.
 */
#include "daemon/engine/detect/refused.h"

void refused_case_fini(struct refused_case *t)
{
    roll_rankset_fini(&t->culprits);
    roll_rankset_fini(&t->waiting);
    roll_rankset_fini(&t->behind);
}

static void words_outcome(struct words *w, const struct refused_case *t, bool one)
{
    words_add(w, "nothing %s was enqueued, and ", t->rec->group != 0 ? "of its whole group" : "of it");
    switch (t->outcome) {
    case DESTROYED:
        words_add(w, "the communicator has been destroyed without it.");
        break;
    case ENDED:
        words_add(w, one ? "the rank has ended (" : "the ranks have ended (one of them: ");
        words_exit(w, t->rank->exit_status);
        words_add(w, ").");
        break;
    case WENT_ON:
        if (!t->instead) {
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

uint64_t refused_speak(struct roll_engine *e, const struct refused_case *t, uint64_t before)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_CALL_REFUSED, t->certainty);
    if (!v) {
        return 0;
    }
    say_supersedes(e, v, before);
    struct words w = {.used = 0};
    bool message = roll_op_class(t->rec->op) == ROLL_CLASS_P2P, one = roll_rankset_count(&t->culprits) == 1;
    bool elsewhere = refused_is_from_elsewhere(t->rec);
    if (t->comm) {
        say_comm(v, t->comm, t->waits ? t->waits->seq : t->rec->seq);
    }
    if (!elsewhere && t->certainty != ROLL_NOTE) {
        (void)roll_rankset_copy(&v->culprits, &t->culprits);
    }
    (void)roll_rankset_copy(&v->waiting, &t->waiting);
    say_side(v, t->rank, source_index(e, t->rank), &t->culprits, t->rec);
    if (t->waiter) {
        say_side(v, t->waiter, source_index(e, t->waiter), &t->waiting, t->waits);
    }
    words_ranks(&w, &t->culprits);
    words_add(&w, " called ");
    words_call(&w, t->rec);
    if (t->comm && roll_op_class(t->rec->op) != ROLL_CLASS_COMM) {
        words_add(&w, message ? " on " : " as #%u on ", t->rec->seq);
        words_comm(&w, t->comm);
    }
    bool declined = call_declined(t->rec);
    if (declined) {
        words_add(&w, ", and rollcall refused it (ROLLCALL_ON_MISMATCH), because another rank's call there differed: ");
    } else {
        words_add(&w, ", and NCCL returned %s: ", roll_result_name(t->rec->result));
    }
    v->field = refused_wrong_argument(e, t->rank, t->member, t->rec, &w);
    if (*v->field != '\0') {
        words_add(&w, "; ");
    }
    words_outcome(&w, t, one);
    const struct roll_record *voids =
        *v->field == '\0' && !elsewhere ? refused_wrong_in_group(e, t->rank, t->rec) : NULL;
    if (voids) {
        words_add(&w, " What NCCL did not take is ");
        words_call(&w, voids);
        words_add(&w, " in the same group: ");
        (void)refused_wrong_argument(e, t->rank, source_member(t->rank, voids->comm), voids, &w);
        words_add(&w, ".");
    } else if (declined) {
        words_add(&w, " What differed stands in its line on the rank's standard error.");
    } else if (*v->field == '\0' && !elsewhere) {
        words_add(&w, " Which argument or state NCCL did not take is not in the record: NCCL_DEBUG=WARN prints it.");
    }
    if (t->waiter) {
        words_add(&w, " ");
        words_wait(&w, &t->waiting);
        words_add(&w, " in ");
        words_call(&w, t->waits);
        words_add(&w, t->certainty == ROLL_PROVEN ? ", in vain." : ".");
        for (size_t i = 0; i < roll_rankset_count(&t->behind); i++) {
            (void)roll_rankset_add(&v->waiting, roll_rankset_at(&t->behind, i));
        }
        if (roll_rankset_count(&t->behind) > 0) {
            words_add(&w, " ");
            words_wait(&w, &t->behind);
            words_add(&w, " in other calls for the same reason.");
        }
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

enum refused_outcome refused_outcome_of(const struct source *s, const struct member *m)
{
    return !source_alive(s) ? ENDED : m && m->gone ? DESTROYED : NOT_AGAIN;
}

struct member *refused_member_in(const struct comm *c, const struct roll_engine *e, const struct source *s)
{
    uint32_t index = source_index(e, s);
    for (uint32_t r = 0; c && r < c->size; r++) {
        if (c->member[r].source == index) {
            return &c->member[r];
        }
    }
    return NULL;
}

/* The key of the verdict: one for all calls refused at one place of a communicator, one for each refused message. */
static uint64_t place_key(const struct refused_case *t)
{
    return roll_op_class(t->rec->op) == ROLL_CLASS_COLL && t->comm
               ? say_key(ROLL_VERDICT_CALL_REFUSED, t->comm->key, t->rec->seq, 0)
               : say_key(ROLL_VERDICT_CALL_REFUSED, t->rank->world, roll_seal_ticket(t->rec->seal), 2);
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
            uint64_t key = say_key(ROLL_VERDICT_CALL_REFUSED, s->world, roll_seal_ticket(rec->seal), 1);
            fresh = say_once(e, key) || fresh;
        }
    }
    if (fresh) {
        uint64_t before = say_recall(e, place_key(t)),
                 number = refused_speak(e, t, before ? before : told_of_end(e, t));
        say_remember(e, place_key(t), number);
        if (number != 0 && t->certainty == ROLL_SUSPECTED && t->waiter && t->comm) {
            doubt_call(e, number, t->waiter, roll_seal_ticket(t->waits->seal), t->rank, t->comm);
        }
        note_ends(e, t, number);
    }
}
