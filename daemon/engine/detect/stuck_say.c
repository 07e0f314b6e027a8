/*
 * stuck_say.c: the text of collective-stuck, for a call in which all members stand and for a creation that all members
 * are inside.
 */
#include "daemon/engine/detect/stuck.h"

/* Names the members that left the call and aborted the communicator since. NCCL allows such an abort, but whoever looks
 * for the reason should know of it. */
static void words_aborted(const struct stuck *k, struct words *w)
{
    struct roll_rankset aborted = {0};
    for (uint32_t r = 0; r < k->comm->size; r++) {
        uint32_t world = k->comm->member[r].ended ? comm_world(k->e, k->comm, r) : NO_SOURCE;
        if (world != NO_SOURCE && roll_rankset_has(&k->left, world)) {
            (void)roll_rankset_add(&aborted, world);
        }
    }
    if (roll_rankset_count(&aborted) > 0) {
        words_add(w, " Since then ");
        words_ranks(w, &aborted);
        words_add(w, " %s aborted the communicator.", roll_rankset_count(&aborted) == 1 ? "has" : "have");
    }
    roll_rankset_fini(&aborted);
}

static void words_who(struct stuck *k, struct words *w)
{
    words_wait(w, &k->in);
    words_add(w, " in it for %.1f s: ", (double)(k->e->clock - k->since) / 1e9);
    stuck_words_hosts(w, k->e, &k->in);
    words_add(w, ".");
    if (roll_rankset_count(&k->left) > 0) {
        words_add(w, " ");
        words_ranks(w, &k->left);
        bool one = roll_rankset_count(&k->left) == 1;
        if (k->rooted) {
            words_add(w, " %s left it, which they may before the others; its root, rank %u, has not.",
                      one ? "has" : "have", comm_world(k->e, k->comm, (uint32_t)k->rec.peer));
            words_aborted(k, w);
        } else {
            words_add(w,
                      " %s left it, which nobody can before all have arrived; the others report what their devices "
                      "complete, and have not reported it.",
                      one ? "has" : "have");
        }
    }
    if (roll_rankset_count(&k->away) > 0) {
        words_add(w, " Nothing has come from ");
        words_ranks(w, &k->away);
        words_add(w, " for as long.");
    }
    if (k->longest_ns > 0) {
        words_add(w, " The longest wait of these ranks so far took %.1f s.", (double)k->longest_ns / 1e9);
    }
}

/*
 * Adds the other mistakes that are possible when some members have made more calls than others, on any communicator.
 * Those members may have gone on while others waited; or a member has left out a call, and a later call of it was taken
 * for that one.
 */
static void open_class(struct roll_verdict *v, const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->comms; i++) {
        const struct comm *c = e->comm[i];
        for (uint32_t r = 1; r < c->size; r++) {
            if (!c->member[r].gone && !c->member[0].gone && c->member[r].next != c->member[0].next) {
                say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
                say_may_be(v, ROLL_VERDICT_RANK_BLOCKED);
            }
        }
        for (uint32_t p = 0; c->pair && p <= c->pair_mask; p++) {
            if (c->pair[p] && c->pair[p]->issued[0] != c->pair[p]->issued[1]) {
                say_may_be(v, ROLL_VERDICT_P2P_UNMATCHED);
                say_may_be(v, ROLL_VERDICT_RANK_BLOCKED);
            }
        }
    }
}

uint64_t stuck_say(struct stuck *k, uint32_t behind)
{
    struct roll_engine *e = k->e;
    struct roll_verdict *v = say(e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    if (!v) {
        return 0;
    }
    uint32_t index = source_index(e, k->first);
    bool left = roll_rankset_count(&k->left) > 0;
    say_comm(v, k->comm, k->rec.seq);
    say_side(v, k->first, index, &k->in, &k->rec);
    if (left) {
        say_side(v, k->first, index, &k->left, &k->rec);
    }
    (void)roll_rankset_copy(&v->waiting, &k->in);
    stuck_lone_taken(e, v, &k->in);
    struct words w = {.used = 0};
    words_add(&w, "Everyone has arrived and nothing completes. All members of ");
    words_comm(&w, k->comm);
    words_add(&w, roll_op_class(k->rec.op) == ROLL_CLASS_P2P ? " that it needs have made " : " have made ");
    words_call(&w, &k->rec);
    words_add(&w, ", #%u; what is before it is done as far as the records say. ", k->rec.seq);
    words_who(k, &w);
    if (behind > 0 && !k->known) {
        words_add(&w, " It may also be one of the %u calls that were enqueued behind it.", behind);
    }
    if (k->lax) {
        words_add(&w, " It is not known whether an earlier wait of these hosts was for this call as well; if it was, "
                      "the hosts wait for kernels behind it.");
    }
    open_class(v, e);
    words_may_be(&w, v);
    words_add(&w,
              " No mistake of the program was found in the records: look at the devices (Xid), the network and the "
              "hosts%s",
              k->known && left
                  ? ". Suspected: it may only be slow."
                  : ". Suspected: a kernel in front of it, or behind it, that takes so long looks the same.");
    say_text(e, v, "%s", w.text);
    stuck_case_open(k, v->number, v->text);
    return v->number;
}

void stuck_say_creation(struct stuck *k)
{
    struct roll_verdict *v = say(k->e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    struct words w = {.used = 0};
    if (!v) {
        return;
    }
    say_comm(v, k->comm, 0);
    say_side(v, k->first, source_index(k->e, k->first), &k->in, &k->rec);
    (void)roll_rankset_copy(&v->waiting, &k->in);
    words_add(&w, "Everyone has arrived and nothing completes. All %u members of a new communicator are inside ",
              k->comm->size);
    words_call(&w, &k->rec);
    words_add(&w, " for %.1f s: ", (double)(k->e->clock - k->since) / 1e9);
    stuck_words_hosts(&w, k->e, &k->in);
    words_add(&w, ". The records show no mistake of the program: look at the network between the hosts (interfaces, "
                  "routes, a firewall; NCCL_DEBUG=INFO says what NCCL tries). Suspected: it may only be slow.");
    say_text(k->e, v, "%s", w.text);
    stuck_case_open(k, v->number, v->text);
}
