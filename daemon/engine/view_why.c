/*
 * view_why.c: why a rank does not go on, in plain sentences: what it is inside, which call it waits in, whom that call
 * lacks, and what those are doing.
 *
 * Ranks that stand alike are told in one sentence; a key says whether two do. To compare finished sentences was
 * rejected: each names its own rank, and of a thousand ranks all but a few would be written for nothing.
 */
#include "daemon/base/map.h"
#include "daemon/engine/judge/judge.h"
#include "daemon/engine/view.h"

#include <inttypes.h>
#include <stdio.h>

/* The ranks that an explanation is about: one, or several that stand alike, of which `s` is the first. */
struct subject {
    const struct source *s;
    const struct roll_rankset *ranks;
    bool many;
};

/* What these ranks are doing. */
static void why_state(struct words *w, const struct roll_engine *e, const struct subject *who)
{
    const struct source *s = who->s;
    uint64_t inside = view_inside(s);
    const struct entry *entry = inside ? source_entry(s, inside - 1) : NULL;
    words_ranks(w, who->ranks);
    if (s->proc == ROLL_PROC_DEAD || s->proc == ROLL_PROC_FINISHED) {
        words_add(w, s->proc == ROLL_PROC_DEAD ? (who->many ? " are dead (" : " is dead (")
                                               : (who->many ? " have ended (" : " has ended ("));
        words_exit(w, s->exit_status);
        words_add(w, ")");
    } else if (s->proc == ROLL_PROC_STOPPED) {
        words_add(w, who->many ? ": their processes are stopped" : "'s process is stopped");
    } else if (s->no_room) {
        words_add(w, who->many
                         ? " are set aside: they asked for more room than there is, so what they do is known in part"
                         : " is set aside: it asked for more room than there is, so what it does is known in part");
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

/* A key of what is told about a call: two calls with one key are told alike. Of messages the peer and the size do not
 * count, because each rank has its own. */
static uint64_t call_key(const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    uint64_t size = message ? 0 : say_key(rec->count, rec->dtype, rec->redop, (uint64_t)(uint32_t)rec->peer);
    return say_key(rec->op, m ? m->comm->key : 0, message ? 0 : rec->seq, size);
}

static uint64_t state_key(const struct source *s)
{
    uint64_t inside = view_inside(s);
    const struct entry *entry = inside ? source_entry(s, inside - 1) : NULL;
    return say_key(
        s->proc, s->proc == ROLL_PROC_RUNNING ? (uint64_t)s->unheard + s->no_room : (uint64_t)(uint32_t)s->exit_status,
        entry ? call_key(s, &entry->rec) : 0, 1);
}

#define KINDS_SHOWN 3u /* of the ranks that are waited for, so many groups that stand alike are told */

/* What the ranks are doing that a call waits for. Those that stand alike are told together. */
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

/* Whether this is the call that was told as their last one. Messages of ranks that stand alike are each rank's own. */
static bool is_last(const struct subject *who, const struct roll_record *rec)
{
    const struct roll_record *last = &who->s->last;
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    return last->op == rec->op && last->comm == rec->comm && last->seq == rec->seq && !(message && who->many);
}

/* In which call these ranks wait, and for whom. A rank that is in no call of its own has issued this one to its stream,
 * where it waits; the host is elsewhere. */
static void why_wait(struct words *w, struct roll_engine *e, const struct subject *who, const struct entry *entry,
                     const struct roll_rankset *missing, uint32_t unknown)
{
    const struct source *s = who->s;
    if (!source_alive(s)) {
        words_add(w, who->many ? " They waited in " : " It waited in ");
    } else if (source_group_open(s, &entry->rec)) {
        words_add(w, who->many ? " They will wait in " : " It will wait in ");
    } else if (view_inside(s) != 0) {
        words_add(w, who->many ? " They wait in " : " It waits in ");
    } else {
        words_add(w, who->many ? " Their streams wait in " : " Its stream waits in ");
    }
    if (who->many && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        words_add(w, "messages, each for its own peers; rank %u in ", s->world);
    }
    if (is_last(who, &entry->rec)) {
        words_add(w, "that call");
    } else {
        words_call_at(w, s, &entry->rec);
    }
    if (roll_rankset_count(missing) > 0) {
        words_add(w, ", for ");
        words_ranks(w, missing);
        words_add(w, ": ");
        why_missing(w, e, missing);
    } else if (unknown > 0) {
        words_add(w, ", for %u members that have never been seen", unknown);
    } else {
        words_add(w, "; every member has issued it, but the streams of some of them have not come to it, because an "
                     "earlier call is not done");
    }
    words_add(w, ".");
}

/* The oldest call of an ended process that was never answered, of those that its log still holds. Such a process waits
 * for nothing, so its queues are empty. */
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

/* A communicator of this rank on which trouble was found that the rank has not got past; NULL: none. */
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
 * The finding for which a communicator is silent: the newest that stands and names the communicator, because hardly any
 * finding is told there while the silence lasts. 0: the finding was so long ago that it is not remembered.
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

/* The same for each queue; where no call is in the way, the trouble that is known. */
static void why_waits(struct words *w, struct roll_engine *e, const struct subject *who)
{
    const struct source *s = who->s;
    uint32_t places = source_alive(s) ? s->queues : 1;
    bool any = false;
    for (uint32_t i = 0; i < places; i++) {
        struct roll_rankset missing = {0};
        uint32_t unknown = 0;
        const struct entry *entry = source_alive(s) ? view_in_the_way(e, s, &s->queue[i], &missing, &unknown)
                                                    : call_left_behind(e, s, &missing, &unknown);
        if (entry) {
            why_wait(w, e, who, entry, &missing, unknown);
        }
        any = any || entry;
        roll_rankset_fini(&missing);
    }
    const struct comm *trouble = any ? NULL : trouble_of(s);
    if (trouble) {
        words_add(w, " To each call that %s issued every peer has made one with the same number; why %s no further on ",
                  who->many ? "they have" : "it has", who->many ? "they go" : "it goes");
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

/* Errors and aborts on the communicators of these ranks. */
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

static uint64_t why_key(const struct roll_engine *e, uint32_t world_rank, struct view_memo *memo)
{
    const struct source *s = source_newest(e, world_rank);
    if (!s) {
        return 0;
    }
    uint64_t key = say_key(state_key(s), s->last.op ? call_key(s, &s->last) : 0, view_inside(s) != 0, 2);
    for (const char *at = view_state(s, &s->last); *at; at++) {
        key = say_key(key, (uint64_t)(unsigned char)*at, 0, 0);
    }
    for (uint32_t i = 0; i < s->queues; i++) {
        struct view_lacks lacks;
        const struct entry *entry = view_find_wait(e, s, &s->queue[i], memo, &lacks);
        bool message = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P;
        if (entry) {
            key = say_key(key, call_key(s, &entry->rec), message ? 0 : lacks.set, lacks.unknown);
        }
    }
    for (uint32_t i = 1; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && (m->async != 0 || m->ended != 0)) {
            key = say_key(key, m->comm->key, m->async, m->ended);
        }
    }
    return key;
}

void roll_engine_why_keys(roll_engine_t *e, const uint32_t *world_rank, size_t n, uint64_t *key)
{
    struct view_memo memo = {.used = 0};
    sweep(e);
    for (size_t i = 0; i < n; i++) {
        key[i] = why_key(e, world_rank[i], &memo);
    }
    roll_map_fini(&memo.at);
    free(memo.lacks);
}

uint64_t roll_engine_why_key(roll_engine_t *e, uint32_t world_rank)
{
    uint64_t key;
    roll_engine_why_keys(e, &world_rank, 1, &key);
    return key;
}

int roll_engine_why_alike(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size)
{
    sweep(e);
    return roll_engine_why_told(e, ranks, out, size);
}

int roll_engine_why_told(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size)
{
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
        view_words_state(&w, e, who.s, last);
        if (!messages) {
            words_number(&w, who.s, last);
        }
        words_add(&w, ".");
    }
    why_comms(&w, &who);
    why_waits(&w, e, &who);
    if (who.s->step == ROLL_STEP_NONE && round_now(e) != ROLL_STEP_NONE) {
        words_add(&w, " The job is in step ~%u (learned: its calls have repeated so often).", round_now(e));
    }
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
