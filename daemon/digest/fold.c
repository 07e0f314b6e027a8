/*
 * fold.c: see fold.h.
 *
 * The signatures of the last 64 collectives are kept beside the hash, because a call that NCCL refuses gives its number
 * back, and the next call takes its place in the window. A hash alone that is rolled on was rejected for that: nothing
 * can be taken out of it. A window is hashed when the first call behind it comes.
 */
#include "daemon/digest/fold.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/digest/observe.h"
#include "daemon/digest/points.h"
#include "trace/op.h"
#include "trace/signature.h"

#include <stdlib.h>
#include <string.h>

#define MASK       (ROLL_DIGEST_WINDOW - 1)
#define THREADS    64u
#define NCCL_GOING 7                         /* ncclInProgress: a call of a nonblocking communicator has been taken */
#define SEQ_MOST   (UINT32_MAX - (1u << 24)) /* a higher number comes from a damaged record */
#define LIKES      256u                      /* windows of messages that are kept, to be told and to be told again */
#define WINDOWS_NEW                                                                                                    \
    64u /* windows that one cut tells of one communicator; more were filled: the oldest are not known                  \
         */

struct filled {
    uint64_t hash;
    bool known;
};

/* Windows of a member: most of its memory. */
struct filling {
    uint64_t sig[ROLL_DIGEST_WINDOW];  /* of the window that is being filled */
    struct filled filled[WINDOWS_NEW]; /* windows that were filled, by number */
};

struct member {
    uint64_t key;
    uint64_t sum[ROLL_DIGEST_CLASSES]; /* of messages */
    uint64_t until_ns;                 /* when the last call on it ended, by the rank's clock */
    uint32_t size, rank, next, told;   /* told: windows below it were told */
    uint32_t pointed;                  /* how many calls there were when a check point was told */
    uint32_t group, splits;
    uint16_t thread;                    /* that of the last call */
    bool open;                          /* the last call is part of a group that has not ended */
    bool here, known;                   /* known: no call of the window that is being filled is missing */
    bool gone, moved, sums_moved, sure; /* gone: destroyed or aborted by the rank */
    uint64_t gone_ns;                   /* when it was told that it is gone; 0: it was not */
    struct filling *fill;               /* owned; NULL: given back, because it has been gone for long */
};

/* Messages of one direction with one peer. */
struct pair {
    uint64_t hash; /* of the bytes of the window's messages */
    uint32_t peer, next, made;
    uint32_t losses; /* what the fold's were when the newest message came */
    uint16_t comm;
    uint8_t op;
    bool sure;  /* `made` is known */
    bool whole; /* all messages of the window are in the hash */
};

struct inside {
    uint64_t ticket, since_ns; /* ticket + 1; 0: the thread is in no call */
    uint16_t thread, comm;
    bool told;
};

struct roll_fold {
    struct member **member; /* by the rank's id; owned */
    size_t members;
    struct pair *pair;
    size_t pairs, pair_room;
    struct roll_map pair_at;
    struct roll_digest_like *like; /* owned; LIKES of them, by number: windows of messages */
    uint64_t likes, likes_told;
    struct roll_observed *observed; /* owned; NULL: the rank has observed nothing */
    uint32_t losses;                /* how often records were lost, a beginning in the middle included */
    struct inside inside[THREADS];
    uint32_t threads;
    uint64_t inside_ns, next_ticket;
    uint64_t last_ns;       /* when the newest record came */
    uint64_t call_ticket;   /* + 1: of the newest call */
    uint64_t waited_ticket; /* + 1: of the newest wait that the host is back from */
    bool told_quiet;
    bool ended;               /* the process has ended, which may be known before its last records are read */
    struct roll_digest hints; /* its hints only */
};

roll_fold_t *roll_fold_new(uint64_t inside_ns)
{
    roll_fold_t *fold = calloc(1, sizeof(*fold));
    if (fold) {
        fold->inside_ns = inside_ns;
    }
    return fold;
}

void roll_fold_destroy(roll_fold_t **pointer)
{
    roll_fold_t *fold = *pointer;
    if (!fold) {
        return;
    }
    for (size_t i = 0; i < fold->members; i++) {
        if (fold->member[i]) {
            free(fold->member[i]->fill);
        }
        free(fold->member[i]);
    }
    free(fold->member);
    free(fold->pair);
    roll_map_fini(&fold->pair_at);
    free(fold->like);
    roll_observed_destroy(&fold->observed);
    roll_digest_fini(&fold->hints);
    free(fold);
    *pointer = NULL;
}

static struct member *member_of(const struct roll_fold *fold, uint32_t id)
{
    return id < fold->members ? fold->member[id] : NULL;
}

/* A hint is told once a cut, however many calls give reason to it. */
static void hint(struct roll_fold *fold, const struct member *m, enum roll_digest_why why, uint32_t seq)
{
    uint64_t key = m ? m->key : 0;
    for (size_t i = 0; i < fold->hints.hints; i++) {
        const struct roll_digest_hint *h = &fold->hints.hint[i];
        if (h->key == key && h->why == (uint32_t)why) {
            return;
        }
    }
    roll_digest_add_hint(&fold->hints, key, why, seq);
}

int roll_fold_comm(roll_fold_t *fold, uint32_t id, const struct roll_def_comm *info)
{
    if (id > UINT16_MAX || info->nranks <= 0 || info->rank < 0 || info->rank >= info->nranks) {
        return ROLL_E_LIMIT;
    }
    int err = ROLL_GROW_ZERO(fold->member, fold->members, (size_t)id + 1);
    if (err != 0 || fold->member[id]) {
        return err;
    }
    struct member *m = calloc(1, sizeof(*m));
    if (!m || !(m->fill = calloc(1, sizeof(*m->fill)))) {
        free(m);
        return ROLL_E_NOMEM;
    }
    m->key = info->key;
    m->size = (uint32_t)info->nranks;
    m->rank = (uint32_t)info->rank;
    m->known = m->moved = m->sure = true;
    fold->member[id] = m;
    return 0;
}

/* collectives */

/* What must be equal of a call, and what the engine remarks on where it is not: as many bytes of another datatype, and
 * whether the call stands in one group with the call before it. */
static uint64_t word_of(const struct member *m, const struct roll_record *rec)
{
    bool joined = rec->group != 0 && rec->group == m->group && rec->thread == m->thread;
    return (roll_record_signature(rec) ^ (uint64_t)rec->dtype << 32 ^ (uint64_t)joined << 48) * 0x9e3779b97f4a7c15u;
}

static uint64_t hash_of(const struct member *m, uint32_t calls)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < calls; i++) {
        hash = roll_sequence_hash(hash, m->fill->sig[i]);
    }
    return hash ^ hash >> 31;
}

/* The windows up to the one that holds `seq` are filled: the first by what is known of it, the others by calls of which
 * nothing is known. */
static void fill_up_to(struct member *m, uint32_t seq)
{
    uint32_t first = m->next > 0 ? (m->next - 1) / ROLL_DIGEST_WINDOW : 0, last = seq / ROLL_DIGEST_WINDOW;
    for (uint32_t w = last - first > WINDOWS_NEW ? last - WINDOWS_NEW : first; w < last; w++) {
        bool known = w == first && m->known && m->next == (w + 1) * ROLL_DIGEST_WINDOW;
        m->fill->filled[w % WINDOWS_NEW] = (struct filled){known ? hash_of(m, ROLL_DIGEST_WINDOW) : 0, known};
    }
    if (last != first) {
        m->known = true;
    }
}

/* A call with a number that an earlier call has: that one was refused, or was only simulated. */
static void step_back(struct roll_fold *fold, struct member *m, uint32_t seq)
{
    if (m->fill &&
        seq / ROLL_DIGEST_WINDOW != m->next / ROLL_DIGEST_WINDOW) { /* the window was told with the refused call */
        hint(fold, m, ROLL_HINT_REFUSED, seq);
        memset(m->fill->sig, 0, sizeof(m->fill->sig));
        m->known = false;
    }
    m->next = seq;
}

static void take_collective(struct roll_fold *fold, struct member *m, const struct roll_record *rec)
{
    uint32_t seq = rec->seq;
    if (rec->count == 0) {
        return;
    }
    if (seq > SEQ_MOST) {
        hint(fold, m, ROLL_HINT_OTHER, 0);
        return;
    }
    if (m->gone) {
        hint(fold, m, ROLL_HINT_LIFE, seq);
    }
    if (!m->fill) {
        m->next = seq + 1;
        return;
    }
    if (seq < m->next) {
        step_back(fold, m, seq);
    }
    fill_up_to(m, seq);
    if (seq > m->next) {
        m->known = false;
        m->sure = true;
    }
    m->fill->sig[seq & MASK] = word_of(m, rec);
    m->next = seq + 1;
    m->moved = true;
}

/* messages */

static uint64_t mix(uint64_t h, uint64_t v)
{
    uint64_t x = (h ^ v) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static struct pair *pair_of(struct roll_fold *fold, const struct roll_record *rec)
{
    uint64_t key = (uint64_t)rec->comm << 48 | (uint64_t)(rec->op == ROLL_OP_RECV) << 40 | (uint32_t)rec->peer;
    uint32_t at = roll_map_get(&fold->pair_at, key);
    if (at != ROLL_MAP_NONE) {
        return &fold->pair[at];
    }
    if (ROLL_GROW(fold->pair, fold->pair_room, fold->pairs + 1) != 0 ||
        roll_map_add(&fold->pair_at, key, (uint32_t)fold->pairs) != 0) {
        return NULL;
    }
    fold->pair[fold->pairs] = (struct pair){
        .peer = (uint32_t)rec->peer, .losses = fold->losses, .comm = rec->comm, .op = rec->op, .sure = true};
    return &fold->pair[fold->pairs++];
}

static uint64_t bytes_of(const struct roll_record *rec)
{
    return (rec->flags & ROLL_FLAG_UNSIZED) != 0 ? 0 : rec->count * roll_dtype_bytes(rec->dtype);
}

/* A hash of the pair: what is mixed into it must not meet the numbers of the ends. */
static uint64_t ends_of(const struct member *m, const struct roll_record *rec)
{
    bool sends = rec->op == ROLL_OP_SEND;
    uint64_t source = sends ? m->rank : (uint32_t)rec->peer, target = sends ? (uint32_t)rec->peer : m->rank;
    return mix(source << 32 | target, 3);
}

/*
 * A window of 64 messages of a pair is told by both ends, when each has filled it: a mistake in messages that go on is
 * heard of then, whoever else sends. The sums of a communicator rest only when nothing is under way on it, which may be
 * never; and to wait until all members have passed a number was rejected, because pairs have different numbers of
 * messages, and one that has stopped would hold up all others.
 */
static int add_to_window(struct roll_fold *fold, const struct member *m, struct pair *p, const struct roll_record *rec,
                         bool follows)
{
    uint32_t window = rec->seq / ROLL_DIGEST_WINDOW;
    if ((rec->seq & MASK) == 0) {
        p->hash = 0;
        p->whole = true;
    }
    p->whole = p->whole && ((follows && p->losses == fold->losses) || (rec->seq & MASK) == 0);
    p->losses = fold->losses;
    p->hash = mix(p->hash, bytes_of(rec) + 1);
    if ((rec->seq & MASK) != MASK || !p->whole) {
        return 0;
    }
    fold->like = fold->like ? fold->like : calloc(LIKES, sizeof(*fold->like));
    if (!fold->like) {
        return ROLL_E_NOMEM;
    }
    fold->like[fold->likes++ % LIKES] = (struct roll_digest_like){.key = m->key,
                                                                  .place = mix(mix(ends_of(m, rec), window), 2),
                                                                  .hash = p->hash,
                                                                  .why = ROLL_HINT_MESSAGES,
                                                                  .seq = 1u << window % ROLL_DIGEST_CLASSES};
    return 0;
}

/* What a message adds to the sum of its class; `back`: it is taken out again. */
static void add_term(struct member *m, const struct roll_record *rec, bool back)
{
    uint64_t term = mix(mix(mix(ends_of(m, rec), rec->seq), bytes_of(rec)), 1);
    m->sum[rec->seq / ROLL_DIGEST_WINDOW % ROLL_DIGEST_CLASSES] += (rec->op == ROLL_OP_SEND) != back ? term : -term;
    m->sums_moved = true;
}

static int take_message(struct roll_fold *fold, struct member *m, const struct roll_record *rec)
{
    if (rec->peer < 0 || (uint32_t)rec->peer >= m->size || (rec->op != ROLL_OP_SEND && rec->op != ROLL_OP_RECV)) {
        return 0;
    }
    if (rec->seq > SEQ_MOST) {
        hint(fold, m, ROLL_HINT_OTHER, 0);
        return 0;
    }
    struct pair *p = pair_of(fold, rec);
    if (!p) {
        return ROLL_E_NOMEM;
    }
    if (m->gone) {
        hint(fold, m, ROLL_HINT_LIFE, 0);
    }
    if (rec->seq < p->next) {
        hint(fold, m, ROLL_HINT_REFUSED, 0); /* what the refused one added to the sum stays there */
        p->made -= p->made < p->next - rec->seq ? p->made : p->next - rec->seq;
    }
    bool follows = rec->seq == p->next;
    p->sure = p->sure && rec->seq <= p->next;
    p->made += (rec->flags & ROLL_FLAG_CAPTURED) == 0;
    p->next = rec->seq + 1;
    if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        p->whole = false;
        return 0;
    }
    add_term(m, rec, false);
    return add_to_window(fold, m, p, rec, follows);
}

/* A call that was taken when it began has been refused: it gives its number back. */
static void give_back(struct roll_fold *fold, struct member *m, const struct roll_record *rec)
{
    hint(fold, m, ROLL_HINT_REFUSED, rec->seq);
    if (roll_op_class(rec->op) == ROLL_CLASS_COLL) {
        if (rec->count != 0 && rec->seq + 1 == m->next) {
            step_back(fold, m, rec->seq);
            m->moved = true;
        }
        return;
    }
    struct pair *p = pair_of(fold, rec);
    if (p && p->next == rec->seq + 1) {
        bool captured = (rec->flags & ROLL_FLAG_CAPTURED) != 0;
        p->next = rec->seq;
        p->whole = false;
        p->made -= !captured;
        if (!captured) {
            add_term(m, rec, true);
        }
    }
}

/* hosts */

static struct inside *thread_of(struct roll_fold *fold, uint16_t thread)
{
    for (uint32_t i = 0; i < fold->threads; i++) {
        if (fold->inside[i].thread == thread) {
            return &fold->inside[i];
        }
    }
    if (fold->threads == THREADS) {
        return NULL;
    }
    fold->inside[fold->threads].thread = thread;
    return &fold->inside[fold->threads++];
}

static void note_host(struct roll_fold *fold, const struct roll_record *rec, uint64_t ticket, uint64_t now_ns)
{
    struct inside *t = thread_of(fold, rec->thread);
    bool entered = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
    if (!t) {
        return;
    }
    if (entered && t->ticket != ticket + 1) {
        /* A loop of polls goes on: its next record takes the place of the one before. */
        bool goes_on = t->ticket != 0 && roll_op_class(rec->op) == ROLL_CLASS_POLL;
        *t = (struct inside){.ticket = ticket + 1,
                             .since_ns = goes_on ? t->since_ns : now_ns,
                             .thread = rec->thread,
                             .comm = rec->comm,
                             .told = goes_on && t->told};
    } else if (!entered && t->ticket == ticket + 1) {
        t->ticket = 0;
    }
}

/* Two threads inside calls of one communicator at once. */
static void note_overlap(struct roll_fold *fold, struct member *m, const struct roll_record *rec)
{
    if (m->thread != 0 && m->thread != rec->thread && (m->open || rec->enter_ns < m->until_ns)) {
        hint(fold, m, ROLL_HINT_THREADS, rec->seq);
    }
    if (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED) {
        m->until_ns = rec->enter_ns + rec->call_ns;
    }
}

/* What a group does on a communicator must not be interrupted before the group's end has returned. */
static void note_group_end(struct roll_fold *fold, const struct roll_record *rec)
{
    bool returned = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    for (size_t i = 0; i < fold->members; i++) {
        struct member *m = fold->member[i];
        if (m && m->group == rec->group && m->thread == rec->thread) {
            m->open = false;
            m->until_ns = returned ? rec->enter_ns + rec->call_ns : UINT64_MAX;
        }
    }
}

static bool failed(const struct roll_record *rec)
{
    return rec->result != 0 && rec->result != NCCL_GOING && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* A call of a kind that is not known here: it may have taken a number on its communicator, or been an observation. */
static void take_unknown(struct roll_fold *fold, struct member *m)
{
    fold->losses++;
    roll_observed_lost(fold->observed);
    if (m) {
        m->known = m->sure = false;
        m->group = 0;
    }
}

/* What is no collective and no message: some of it is the engine's business at once. Grouped products and one-sided
 * operations are not: nobody's are compared with another's unless somebody waits, and that is heard of otherwise. */
static int take_other(struct roll_fold *fold, const struct roll_record *rec, bool fresh)
{
    struct member *m = member_of(fold, rec->comm);
    int rc = 0;
    enum roll_op_class class = roll_op_class(rec->op);
    if (class == ROLL_CLASS_GROUP) {
        if (rec->op == ROLL_OP_GROUP_END && rec->group != 0) {
            note_group_end(fold, rec);
        }
        if (failed(rec) || rec->count == 1) {
            hint(fold, NULL, ROLL_HINT_REFUSED, 0);
        }
    } else if (class == ROLL_CLASS_COMM) {
        bool ends = rec->op == ROLL_OP_COMM_ABORT || rec->op == ROLL_OP_COMM_REVOKE;
        if (ends || failed(rec)) {
            hint(fold, m, ends ? ROLL_HINT_LIFE : ROLL_HINT_REFUSED, 0);
        }
        if (m && fresh && rec->op == ROLL_OP_COMM_SPLIT) {
            m->splits = rec->aux >= m->splits ? rec->aux + 1u : m->splits + 1;
        }
        if (m && (ends || rec->op == ROLL_OP_COMM_DESTROY)) {
            m->gone = m->moved = true;
        }
    } else if (class == ROLL_CLASS_MOE && fresh) {
        rc = roll_observed_record(&fold->observed, rec, m ? m->key : 0, m ? m->size : 0, fold->losses == 0);
        if (rc > 0) {
            hint(fold, m, ROLL_HINT_OBSERVED, roll_observed_step(rec->step));
        }
    } else if (class == ROLL_CLASS_RMA && failed(rec)) {
        hint(fold, m, ROLL_HINT_REFUSED, 0);
    } else if (class == ROLL_CLASS_NONE && fresh) {
        take_unknown(fold, m);
    }
    return rc < 0 ? rc : 0;
}

static bool has_returned(const struct roll_record *rec)
{
    return roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* Calls may still be under way until the host comes back from a wait that it began behind them. The wait's return may
 * be heard of behind the calls that follow it, so tickets say which was first. */
static void note_work(struct roll_fold *fold, const struct roll_record *rec, uint64_t ticket)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    bool waited = class == ROLL_CLASS_SYNC && has_returned(rec);
    uint64_t *newest = call ? &fold->call_ticket : &fold->waited_ticket;
    if ((call || waited) && ticket + 1 > *newest) {
        *newest = ticket + 1;
    }
}

int roll_fold_record(roll_fold_t *fold, const struct roll_record *rec, uint64_t now_ns)
{
    enum roll_op_class class = roll_op_class(rec->op);
    if (roll_seal_state(rec->seal) == ROLL_STATE_EMPTY) {
        return 0;
    }
    uint64_t ticket = roll_seal_ticket(rec->seal);
    bool call = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P, fresh = ticket >= fold->next_ticket;
    struct member *m = call ? member_of(fold, rec->comm) : NULL;
    int err = 0;
    if (fresh && ticket > fold->next_ticket) {
        if (fold->next_ticket != 0) {
            roll_fold_lost(fold);
        }
        fold->losses++;
    }
    note_host(fold, rec, ticket, now_ns);
    fold->next_ticket = fresh ? ticket + 1 : fold->next_ticket;
    fold->last_ns = now_ns;
    fold->told_quiet = false;
    note_work(fold, rec, ticket);
    if (!call) {
        return take_other(fold, rec, fresh);
    }
    if (!m) { /* on no communicator that is known: the engine decides what that means */
        hint(fold, NULL, ROLL_HINT_OTHER, 0);
        return 0;
    }
    if (failed(rec) && rec->group == 0) {
        give_back(fold, m, rec);
        return 0;
    }
    note_overlap(fold, m, rec);
    if (fresh) {
        if (class == ROLL_CLASS_COLL) {
            take_collective(fold, m, rec);
        } else {
            err = take_message(fold, m, rec);
        }
        m->group = rec->group;
        m->thread = rec->thread;
        m->open = rec->group != 0;
    }
    return err;
}

void roll_fold_lost(roll_fold_t *fold)
{
    fold->losses++;
    roll_observed_lost(fold->observed);
    for (size_t i = 0; i < fold->members; i++) {
        struct member *m = fold->member[i];
        if (m) {
            m->known = m->sure = false;
            m->group = 0;
        }
    }
    for (uint32_t i = 0; i < fold->threads; i++) {
        fold->inside[i].ticket = 0;
    }
}

/* cuts */

/* The roundest number of calls in the window that is being filled, where no call of it is missing. */
static void cut_point(struct member *m, struct roll_digest *out)
{
    uint32_t window = m->next / ROLL_DIGEST_WINDOW, begin = window * ROLL_DIGEST_WINDOW;
    uint32_t from = m->pointed > begin ? m->pointed : begin;
    if (m->known && m->next > from) {
        uint32_t calls = roll_point_roundest(from, m->next) - begin;
        roll_digest_add_window(out, &(struct roll_digest_window){
                                        .key = m->key, .hash = hash_of(m, calls), .window = window, .calls = calls});
        m->pointed = m->next;
    }
}

/* Nobody will compare its windows any more. Where the rank came to is kept: an excerpt may reach back so far, and a
 * rank that seemed to stand at 0 would be blamed. */
static void give_back_windows(struct roll_fold *fold, uint32_t id)
{
    free(fold->member[id]->fill);
    fold->member[id]->fill = NULL;
    roll_observed_forget(fold->observed, id);
}

static void cut_member(struct member *m, bool gone, struct roll_digest *out)
{
    uint32_t full = m->next / ROLL_DIGEST_WINDOW, calls = m->next & MASK;
    /* The window behind which nothing has come yet is not among `filled`. */
    if (calls == 0 && m->next != 0) {
        bool known = m->known;
        m->fill->filled[(full - 1) % WINDOWS_NEW] = (struct filled){known ? hash_of(m, ROLL_DIGEST_WINDOW) : 0, known};
    }
    for (uint32_t w = full - m->told > WINDOWS_NEW ? full - WINDOWS_NEW : m->told; w < full; w++) {
        const struct filled *f = &m->fill->filled[w % WINDOWS_NEW];
        if (f->known) {
            roll_digest_add_window(out, &(struct roll_digest_window){.key = m->key, .hash = f->hash, .window = w});
        }
    }
    m->told = full;
    cut_point(m, out);
    if (m->moved) {
        struct roll_digest_front front = {.key = m->key,
                                          .hash = m->known ? hash_of(m, calls) : 0,
                                          .size = m->size,
                                          .members = 1,
                                          .low = m->next,
                                          .high = m->next,
                                          .gone = gone};
        roll_digest_add_front(out, &front);
        m->moved = false;
    }
    if (m->sums_moved) {
        struct roll_digest_messages sums = {.key = m->key};
        memcpy(sums.sum, m->sum, sizeof(sums.sum));
        roll_digest_add_messages(out, &sums);
        m->sums_moved = false;
    }
}

void roll_fold_cut(roll_fold_t *fold, uint64_t now_ns, struct roll_digest *out)
{
    for (size_t i = 0; i < fold->members; i++) {
        struct member *m = fold->member[i];
        if (!m || !m->fill) {
            continue;
        }
        bool gone = m->gone || fold->ended;
        cut_member(m, gone, out);
        m->gone_ns = gone && m->gone_ns == 0 ? now_ns : m->gone_ns;
        if (gone && now_ns >= m->gone_ns + ROLL_DIGEST_KEEP_NS) {
            give_back_windows(fold, (uint32_t)i);
        }
    }
    uint64_t from = fold->likes > LIKES ? fold->likes - LIKES : 0;
    for (uint64_t i = fold->likes_told > from ? fold->likes_told : from; i < fold->likes; i++) {
        roll_digest_add_like(out, &fold->like[i % LIKES]);
    }
    fold->likes_told = fold->likes;
    roll_observed_cut(fold->observed, out);
    for (uint32_t i = 0; i < fold->threads; i++) {
        struct inside *t = &fold->inside[i];
        if (t->ticket != 0 && !t->told && now_ns - t->since_ns >= fold->inside_ns) {
            hint(fold, member_of(fold, t->comm), ROLL_HINT_INSIDE, 0);
            t->told = true;
        }
    }
    bool at_work = fold->call_ticket > fold->waited_ticket;
    if (at_work && !fold->told_quiet && now_ns - fold->last_ns >= 2 * fold->inside_ns) {
        hint(fold, NULL, ROLL_HINT_QUIET, 0);
        fold->told_quiet = true;
    }
    for (size_t i = 0; i < fold->hints.hints; i++) {
        const struct roll_digest_hint *h = &fold->hints.hint[i];
        roll_digest_add_hint(out, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    roll_digest_clear(&fold->hints);
}

void roll_fold_ended(roll_fold_t *fold)
{
    for (size_t i = 0; i < fold->members && !fold->ended; i++) {
        if (fold->member[i]) {
            fold->member[i]->moved = true;
        }
    }
    fold->ended = true;
}

void roll_fold_again(roll_fold_t *fold)
{
    for (size_t i = 0; i < fold->members; i++) {
        struct member *m = fold->member[i];
        if (m && m->fill) {
            uint32_t full = m->next / ROLL_DIGEST_WINDOW;
            m->told = full > WINDOWS_NEW ? full - WINDOWS_NEW : 0;
            m->pointed = 0;
            m->moved = m->sums_moved = true;
        }
    }
    fold->likes_told = 0;
    roll_observed_again(fold->observed);
}

uint64_t roll_fold_observed(const roll_fold_t *fold, uint32_t step)
{
    return roll_observed_begin(fold->observed, step);
}

bool roll_fold_forgot(const roll_fold_t *fold, uint32_t step)
{
    return roll_observed_forgot(fold->observed, step);
}

uint64_t roll_fold_quiet_ns(const roll_fold_t *fold, uint64_t now_ns)
{
    return fold->last_ns != 0 && now_ns > fold->last_ns ? now_ns - fold->last_ns : 0;
}

bool roll_fold_place(const roll_fold_t *fold, size_t i, struct roll_fold_place *out)
{
    if (i < fold->members) {
        const struct member *m = fold->member[i];
        *out = (struct roll_fold_place){.op = ROLL_OP_NONE}; /* nobody has defined it: no communicator has the id 0 */
        if (m) {
            out->comm = (uint16_t)i;
            out->next = m->next;
            out->made = m->splits;
            out->sure = m->sure;
        }
        return true;
    }
    if (i - fold->members >= fold->pairs) {
        return false;
    }
    const struct pair *p = &fold->pair[i - fold->members];
    *out = (struct roll_fold_place){
        .comm = p->comm, .op = p->op, .peer = p->peer, .next = p->next, .made = p->made, .sure = p->sure};
    return true;
}
