/*
 * view.c: read-only views for the faces: what each rank and each communicator is doing, and why a rank does not go on.
 */
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void roll_engine_summary(const roll_engine_t *e, struct roll_engine_summary *out)
{
    *out = (struct roll_engine_summary){.calls = e->calls,
                                        .records = e->records,
                                        .verdicts = e->numbers,
                                        .findings = e->findings,
                                        .lost = e->lost,
                                        .sources = e->sources,
                                        .comms = e->comms};
    for (uint32_t i = 0; i < e->sources; i++) {
        out->sources_live += source_alive(e->source[i]);
    }
    for (uint32_t i = 0; i < e->comms; i++) {
        const struct comm *c = e->comm[i];
        for (uint32_t seq = c->base; seq < c->high; seq++) {
            const struct slot *s = comm_slot(c, seq);
            out->incomplete += s->arrived > 0 && s->arrived < c->size;
        }
    }
}

static uint32_t pending(const struct source *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->queues; i++) {
        uint64_t ticket = s->queue[i].head - 1;
        struct entry *entry = s->queue[i].head ? source_entry(s, ticket) : NULL;
        for (; entry; entry = source_chain(s, &ticket)) {
            n += !entry_complete(s, entry);
        }
    }
    return n;
}

static uint64_t inside_of(const struct source *s)
{
    uint64_t oldest = 0;
    for (uint32_t i = 0; i < s->threads; i++) {
        uint64_t inside = s->thread[i].inside;
        if (inside != 0 && (oldest == 0 || inside < oldest)) {
            oldest = inside;
        }
    }
    return oldest;
}

/* Whether the device is known to be through with this call. */
static bool is_done(const struct source *s, const struct roll_record *rec)
{
    bool done = roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE;
    for (uint32_t i = 0; i < s->queues && !done; i++) {
        bool here = i == rec->stream || rec->group != 0; /* a group is on the stream of its first call */
        done = here && roll_seal_ticket(rec->seal) < s->queue[i].done;
    }
    return done;
}

/* NCCL goes on with it in the background: nothing has said yet that it is through. */
static bool in_progress(const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    return rec->result == NCCL_IN_PROGRESS && !(m && m->settled > roll_seal_ticket(rec->seal));
}

/* How far a call has come, in one word. */
/* Nothing of it was enqueued: NCCL refused it, or its group. */
static bool in_vain(const struct source *s, const struct roll_record *rec)
{
    const struct entry *entry = source_entry(s, roll_seal_ticket(rec->seal));
    return call_failed(rec) || (entry && refused_call(entry));
}

static const char *state_of(const struct source *s, const struct roll_record *rec)
{
    if (rec->op == ROLL_OP_NONE) {
        return "";
    }
    if (roll_seal_state(rec->seal) == ROLL_STATE_ENTERED) {
        return "entered";
    }
    if (in_vain(s, rec)) {
        return "refused";
    }
    if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        return "captured";
    }
    if (source_group_open(s, rec)) {
        return "in group";
    }
    return in_progress(s, rec) ? "in progress" : is_done(s, rec) ? "complete" : "returned";
}

bool roll_engine_source(const roll_engine_t *e, uint32_t i, struct roll_view_source *out)
{
    if (i >= e->sources) {
        return false;
    }
    const struct source *s = e->source[i];
    *out = (struct roll_view_source){.info = s->info,
                                     .proc = s->proc,
                                     .exit_status = s->exit_status,
                                     .records = s->records,
                                     .calls = s->calls,
                                     .lost = s->lost,
                                     .last_ns = s->last_ns,
                                     .last = s->last,
                                     .last_comm_key = s->last_key,
                                     .state = state_of(s, &s->last),
                                     .in_call = inside_of(s) != 0,
                                     .heard = !s->unheard,
                                     .waits_for = pending(s),
                                     .step = s->step};
    out->info.world_rank = (int32_t)s->world;
    return true;
}

/* A guess from membership and traffic; only for people. */
static const char *role_of(const struct roll_engine *e, const struct comm *c)
{
    static const char *const known[] = {"edp", "etp", "ep", "dp", "tp", "pp", "cp", "world"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t n = strlen(known[i]);
        if (strncmp(c->label, known[i], n) == 0 && (c->label[n] < 'a' || c->label[n] > 'z')) {
            return known[i];
        }
    }
    if (c->moe > 0) {
        return "ep";
    }
    if (c->size == e->sources && c->parent_key == 0) {
        return "world";
    }
    return c->p2p > c->coll * 4 ? "pp" : "";
}

static void forget_sets(struct roll_engine *e)
{
    roll_rankset_clear(&e->view_members);
    roll_rankset_clear(&e->view_behind);
}

bool roll_engine_comm(const roll_engine_t *engine, uint32_t i, struct roll_view_comm *out)
{
    struct roll_engine *e =
        (struct roll_engine *)(uintptr_t)engine; /* the sets that the view lends live in the engine */
    if (i >= e->comms) {
        return false;
    }
    const struct comm *c = e->comm[i];
    *out = (struct roll_view_comm){.key = c->key, .size = c->size, .seen = c->seen};
    memcpy(out->label, c->label, sizeof(out->label));
    snprintf(out->role, sizeof(out->role), "%s", role_of(e, c));
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t next = c->member[r].next;
        least = next < least ? next : least;
        most = next > most ? next : most;
    }
    out->done = least;
    out->ahead = most;
    forget_sets(e);
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world == NO_SOURCE) {
            continue;
        }
        (void)roll_rankset_add(&e->view_members, world);
        if (most > least && c->member[r].next == least) {
            (void)roll_rankset_add(&e->view_behind, world);
        }
    }
    out->members = e->view_members;
    out->behind = e->view_behind;
    return true;
}

/* How far a call has come, in words; nothing for the plain case: it has returned. */
static void words_state(struct words *w, const struct roll_engine *e, const struct source *s,
                        const struct roll_record *rec)
{
    if (roll_seal_state(rec->seal) == ROLL_STATE_ENTERED) {
        words_add(w, " (entered, not returned)");
    } else if (call_failed(rec)) {
        words_add(w, " (returned %s: nothing was enqueued)", roll_result_name(rec->result));
    } else if (in_vain(s, rec)) {
        words_add(w, " (its group returned an error or was only simulated: nothing was enqueued)");
    } else if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        words_add(w, " (captured into CUDA graph %u: it runs when that is launched)", rec->aux);
    } else if (source_group_open(s, rec)) {
        words_add(w, " (in a group that has not been ended: not enqueued yet)");
    } else if (in_progress(s, rec)) {
        uint64_t since = source_wall(s, rec);
        words_add(w, " (returned, in progress in the background for %.1f s)",
                  e->now > since ? (double)(e->now - since) / 1e9 : 0.0);
    } else if (is_done(s, rec)) {
        words_add(w, " (complete on the device)");
    } else if (s->completes) {
        words_add(w, " (returned, not complete on the device)");
    }
}

/* Who an explanation is about: one rank, or several that stand alike, of which `s` is the first. */
struct subject {
    const struct source *s;
    const struct roll_rankset *ranks;
    bool many;
};

static void why_state(struct words *w, const struct roll_engine *e, const struct subject *who)
{
    const struct source *s = who->s;
    uint64_t inside = inside_of(s);
    const struct entry *entry = inside ? source_entry(s, inside - 1) : NULL;
    words_ranks(w, who->ranks);
    if (s->proc == ROLL_PROC_DEAD || s->proc == ROLL_PROC_FINISHED) {
        words_add(w, s->proc == ROLL_PROC_DEAD ? (who->many ? " are dead (" : " is dead (")
                                               : (who->many ? " have ended (" : " has ended ("));
        words_exit(w, s->exit_status);
        words_add(w, ")");
    } else if (s->proc == ROLL_PROC_STOPPED) {
        words_add(w, who->many ? ": their processes are stopped" : "'s process is stopped");
    } else if (s->unheard) {
        words_add(w,
                  who->many ? " are not heard: the agent on host %s is silent"
                            : " is not heard: its agent on host %s is silent",
                  s->info.host);
        if (entry) {
            words_add(w, who->many ? ". When they were seen last they were inside "
                                   : ". When it was seen last it was inside ");
            words_call(w, &entry->rec);
        }
    } else if (entry) {
        words_add(w, who->many ? " are inside " : " is inside ");
        if (who->many && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
            words_add(w, "messages like rank %u's: ", s->world);
        }
        words_call(w, &entry->rec);
    } else {
        words_add(w, who->many ? " are not inside any call" : " is not inside any call");
        if (e->clock > s->seen) {
            double ago = (double)(e->clock - s->seen) / 1e9;
            if (who->many) {
                words_add(w, "; rank %u's last call was noted %.1f s ago", s->world, ago);
            } else {
                words_add(w, "; its last call was noted %.1f s ago", ago);
            }
        }
    }
}

/*
 * The call that keeps a queue from going on: the first one that somebody has not made, which need not be the head (a
 * group waits as a whole, and what stands before it waits for peers that wait in turn); else the first that is
 * incomplete.
 */
static struct entry *call_in_the_way(const struct roll_engine *e, const struct source *s, const struct queue *q,
                                     struct roll_rankset *missing, uint32_t *unknown)
{
    uint64_t ticket = q->head - 1;
    struct entry *first = NULL;
    *unknown = 0;
    for (struct entry *entry = q->head ? source_entry(s, ticket) : NULL; entry; entry = source_chain(s, &ticket)) {
        if (entry_complete(s, entry) || !source_member(s, entry->rec.comm)) {
            continue;
        }
        first = first ? first : entry;
        *unknown = waitgraph_missing(e, s, entry, missing);
        if (*unknown + roll_rankset_count(missing) > 0) {
            return entry;
        }
    }
    return first;
}

/* What two ranks would be told alike about a call; of messages each rank has its own peers and sizes. */
static uint64_t call_key(const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    uint64_t size = message ? 0 : say_key(rec->count, rec->dtype, rec->redop, (uint64_t)(uint32_t)rec->peer);
    return say_key(rec->op, m ? m->comm->key : 0, message ? 0 : rec->seq, size);
}

static uint64_t state_key(const struct source *s)
{
    uint64_t inside = inside_of(s);
    const struct entry *entry = inside ? source_entry(s, inside - 1) : NULL;
    return say_key(s->proc, s->proc == ROLL_PROC_RUNNING ? s->unheard : (uint64_t)(uint32_t)s->exit_status,
                   entry ? call_key(s, &entry->rec) : 0, 1);
}

static uint64_t set_key(const struct roll_rankset *set)
{
    uint64_t key = 0;
    size_t n = roll_rankset_count(set);
    for (size_t i = 0; i < n; i++) {
        key = say_key(key, roll_rankset_at(set, i), 0, 0);
    }
    return key;
}

#define KINDS_SHOWN 3u /* kinds of ranks that are waited for: what each kind is doing */

/* What those are doing that a call waits for: those that stand alike together. */
static void why_missing(struct words *w, const struct roll_engine *e, const struct roll_rankset *missing)
{
    uint64_t shown[KINDS_SHOWN];
    size_t n = roll_rankset_count(missing), kinds = 0;
    for (size_t i = 0; i < n && kinds < KINDS_SHOWN; i++) {
        const struct source *s = source_newest(e, roll_rankset_at(missing, i));
        uint64_t key = s ? state_key(s) : 0;
        bool known = !s;
        for (size_t k = 0; k < kinds; k++) {
            known = known || shown[k] == key;
        }
        if (known) {
            continue;
        }
        struct roll_rankset alike = {0};
        for (size_t k = i; k < n; k++) {
            const struct source *other = source_newest(e, roll_rankset_at(missing, k));
            if (other && state_key(other) == key) {
                (void)roll_rankset_add(&alike, other->world);
            }
        }
        struct subject who = {.s = s, .ranks = &alike, .many = roll_rankset_count(&alike) > 1};
        words_add(w, kinds ? "; " : "");
        why_state(w, e, &who);
        shown[kinds++] = key;
        roll_rankset_fini(&alike);
    }
}

static void why_wait(struct words *w, struct roll_engine *e, const struct subject *who, const struct entry *entry,
                     const struct roll_rankset *missing, uint32_t unknown)
{
    const struct source *s = who->s;
    const char *tense = source_alive(s) ? (who->many ? "wait" : "waits") : "waited";
    words_add(w, who->many ? " They %s in " : " It %s in ", tense);
    if (who->many && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        words_add(w, "messages, each for its own peers; rank %u in ", s->world);
    }
    words_call(w, &entry->rec);
    words_add(w, ", #%u on ", entry->rec.seq);
    words_comm(w, source_member(s, entry->rec.comm)->comm);
    if (roll_rankset_count(missing) > 0) {
        words_add(w, ", for ");
        words_ranks(w, missing);
        words_add(w, ": ");
        why_missing(w, e, missing);
    } else if (unknown > 0) {
        words_add(w, ", for %u members that have never been seen", unknown);
    } else {
        words_add(w, "; every member has made this call, but some of them have earlier ones on the same stream to "
                     "finish first");
    }
    words_add(w, ".");
}

/* A process that has ended waits for nothing, and its queues are empty: its oldest call that nobody has answered, of
 * those still in its log. */
static struct entry *call_left_behind(const struct roll_engine *e, const struct source *s, struct roll_rankset *missing,
                                      uint32_t *unknown)
{
    uint64_t low = source_log_low(s);
    for (uint64_t ticket = low; ticket < s->next; ticket++) {
        struct entry *entry = source_entry(s, ticket);
        enum roll_op_class class = entry ? roll_op_class(entry->rec.op) : ROLL_CLASS_NONE;
        bool waits = class == ROLL_CLASS_P2P || (class == ROLL_CLASS_COLL && entry->rec.count != 0);
        if (!waits || !source_member(s, entry->rec.comm) || entry_answered(s, entry)) {
            continue;
        }
        *unknown = waitgraph_missing(e, s, entry, missing);
        if (*unknown + roll_rankset_count(missing) > 0) {
            return entry;
        }
    }
    return NULL;
}

/* A communicator of this rank on which something has been found, and which it has not got past. */
static const struct comm *trouble_of(const struct source *s)
{
    for (uint32_t i = 1; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && m->comm->muted && !m->passed && !m->gone) {
            return m->comm;
        }
    }
    return NULL;
}

/*
 * The number of the finding for which a communicator is silent: the newest that stands and names it, for hardly any is
 * told there while the silence lasts. 0 when it is too long ago to be remembered.
 */
static uint64_t finding_on(const struct roll_engine *e, const struct comm *c)
{
    uint64_t number = 0;
    for (uint32_t i = 0; i < FOUND_KEPT; i++) {
        const struct found *f = &e->found[i];
        for (uint32_t k = 0; f->number > number && k < sizeof(f->comm_key) / sizeof(f->comm_key[0]); k++) {
            if (f->comm_key[k] == c->key && say_stands(e, f->number)) {
                number = f->number;
            }
        }
    }
    return number;
}

static void why_waits(struct words *w, struct roll_engine *e, const struct subject *who)
{
    const struct source *s = who->s;
    uint32_t places = source_alive(s) ? s->queues : 1;
    bool any = false;
    for (uint32_t i = 0; i < places; i++) {
        struct roll_rankset missing = {0};
        uint32_t unknown = 0;
        const struct entry *entry = source_alive(s) ? call_in_the_way(e, s, &s->queue[i], &missing, &unknown)
                                                    : call_left_behind(e, s, &missing, &unknown);
        if (entry) {
            why_wait(w, e, who, entry, &missing, unknown);
        }
        any = any || entry;
        roll_rankset_fini(&missing);
    }
    const struct comm *trouble = any ? NULL : trouble_of(s);
    if (trouble) {
        words_add(w, " Every peer has come to the calls that %s issued; why it goes no further on ",
                  who->many ? "they have" : "it has");
        words_comm(w, trouble);
        uint64_t number = finding_on(e, trouble);
        if (number != 0) {
            words_add(w, " is what verdict %" PRIu64 " says.", number);
        } else {
            words_add(w, " is what the finding about it says: `rollcall verdicts` lists it.");
        }
    } else if (!any) {
        words_add(w, who->many ? " Everything that they have issued could be matched."
                               : " Everything that it has issued could be matched.");
    }
}

/* What has become of the communicators of this rank, where it is not ordinary. */
static void why_comms(struct words *w, const struct subject *who)
{
    for (uint32_t i = 1; i < who->s->members; i++) {
        const struct member *m = who->s->member[i];
        if (m && m->async != 0) {
            words_add(w, " NCCL reports %s on ", roll_result_name(m->async));
            words_comm(w, m->comm);
            words_add(w, " (ncclCommGetAsyncError).");
        }
        if (m && m->ended != 0) {
            words_add(w, who->many ? " They have %s " : " It has %s ",
                      m->ended == ROLL_OP_COMM_ABORT ? "aborted" : "revoked");
            words_comm(w, m->comm);
            words_add(w, m->comm->aborted ? ": nothing on it is judged any more."
                                          : ": what was not done there stays undone, and its peers are judged on.");
        }
    }
}

uint64_t roll_engine_why_key(roll_engine_t *e, uint32_t world_rank)
{
    const struct source *s = source_newest(e, world_rank);
    if (!s) {
        return 0;
    }
    sweep(e);
    uint64_t key = say_key(state_key(s), s->last.op ? call_key(s, &s->last) : 0, inside_of(s) != 0, 2);
    for (const char *at = state_of(s, &s->last); *at; at++) {
        key = say_key(key, (uint64_t)(unsigned char)*at, 0, 0);
    }
    for (uint32_t i = 0; i < s->queues; i++) {
        struct roll_rankset missing = {0};
        uint32_t unknown;
        const struct entry *entry = call_in_the_way(e, s, &s->queue[i], &missing, &unknown);
        bool message = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P;
        if (entry) {
            key = say_key(key, call_key(s, &entry->rec), message ? 0 : set_key(&missing), unknown);
        }
        roll_rankset_fini(&missing);
    }
    for (uint32_t i = 1; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && (m->async != 0 || m->ended != 0)) {
            key = say_key(key, m->comm->key, m->async, m->ended);
        }
    }
    return key;
}

int roll_engine_why_alike(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size)
{
    sweep(e);
    struct subject who = {.ranks = ranks, .many = roll_rankset_count(ranks) > 1};
    who.s = roll_rankset_count(ranks) > 0 ? source_newest(e, roll_rankset_at(ranks, 0)) : NULL;
    if (!who.s) {
        return ROLL_E_NOTFOUND;
    }
    struct words w = {.used = 0};
    const struct roll_record *last = &who.s->last;
    why_state(&w, e, &who);
    if (w.used > 0) {
        w.text[0] = 'R';
    }
    words_add(&w, ".");
    if (last->op != ROLL_OP_NONE) {
        bool messages = who.many && roll_op_class(last->op) == ROLL_CLASS_P2P;
        words_add(&w, who.many ? " Their last NCCL call: " : " Its last NCCL call: ");
        if (messages) {
            words_add(&w, "a message, rank %u's ", who.s->world);
        }
        words_call(&w, last);
        words_state(&w, e, who.s, last);
        words_add(&w, ".");
    }
    why_comms(&w, &who);
    why_waits(&w, e, &who);
    snprintf(out, size, "%s", w.text);
    return (int)w.used;
}

int roll_engine_why(roll_engine_t *e, uint32_t world_rank, char *out, size_t size)
{
    struct roll_rankset one = {0};
    (void)roll_rankset_add(&one, world_rank);
    int n = roll_engine_why_alike(e, &one, out, size);
    roll_rankset_fini(&one);
    return n;
}
