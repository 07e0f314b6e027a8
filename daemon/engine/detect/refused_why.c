/*
 * refused_why.c: why a call was refused, as far as its record and the records around it show: an argument that cannot
 * be right, another call of its group, or a cause on another rank.
 */
#include "daemon/engine/detect/refused.h"

/* How many more sends than receives the rank made to itself in the group of this call. */
static int to_itself(const struct source *s, const struct member *m, const struct roll_record *rec)
{
    enum { AROUND = 256 };
    uint64_t ticket = roll_seal_ticket(rec->seal), low = ticket > AROUND ? ticket - AROUND : 0;
    int sum = rec->group == 0 ? (rec->op == ROLL_OP_SEND ? 1 : -1) : 0;
    for (uint64_t t = low; rec->group != 0 && t < ticket + AROUND && t < s->next; t++) {
        const struct entry *at = source_entry(s, t);
        bool here = at && source_same_unit(&at->rec, rec) && roll_op_class(at->rec.op) == ROLL_CLASS_P2P &&
                    at->rec.comm == rec->comm && at->rec.peer == m->rank;
        sum += !here ? 0 : at->rec.op == ROLL_OP_SEND ? 1 : -1;
    }
    return sum;
}

/* The argument of a creation that contradicts what another process claims: detect_claim.c. "": none. */
static const char *wrong_claim(const struct roll_engine *e, const struct source *s, const struct member *m,
                               const struct roll_record *rec, struct words *w)
{
    const struct comm *c = m ? m->comm : NULL;
    const struct claim *claim = m ? NULL : claim_of(e, s, &c);
    uint32_t claims = 0;
    const struct claim *on = m ? claims_on(c, &claims) : NULL;
    for (uint32_t i = 0; !claim && i < claims; i++) {
        bool against = on[i].rank == rec->peer || (uint32_t)on[i].nranks != c->size;
        claim = against ? &on[i] : NULL;
    }
    if (!claim) {
        return "";
    }
    uint32_t size = m ? (uint32_t)claim->nranks : c->size;
    if ((uint32_t)claim->nranks != c->size) {
        words_add(w, "another process came with the same unique id for %u ranks", size);
        return "nranks";
    }
    words_add(w, "rank %d of this unique id is taken by rank %u", rec->peer,
              m ? e->source[claim->source]->world : comm_world(e, c, (uint32_t)claim->rank));
    return "rank";
}

const char *refused_wrong_argument(const struct roll_engine *e, const struct source *s, const struct member *m,
                                   const struct roll_record *rec, struct words *w)
{
    enum roll_op_class class = roll_op_class(rec->op);
    uint32_t size = class == ROLL_CLASS_COMM ? (uint32_t)rec->count : m ? m->comm->size : UINT32_MAX;
    bool rooted = roll_op_has(rec->op, ROLL_TRAIT_ROOT);
    bool known = m && !m->comm->open;
    if (rec->op == ROLL_OP_COMM_INIT && size == 0) {
        words_add(w, "the number of ranks is not above 0");
        return "nranks";
    }
    if (rec->op == ROLL_OP_COMM_INIT && (rec->peer < 0 || (uint32_t)rec->peer >= size)) {
        words_add(w, "rank %d is none of a communicator of %u, whose ranks are 0 to %u", rec->peer, size, size - 1);
        return "rank";
    }
    if (rec->op == ROLL_OP_COMM_INIT) {
        return wrong_claim(e, s, m, rec, w);
    }
    if (known && (rooted || class == ROLL_CLASS_P2P) && (rec->peer < 0 || (uint32_t)rec->peer >= size)) {
        words_add(w, "%s %d does not exist, the members are 0 to %u", rooted ? "root" : "member", rec->peer, size - 1);
        return rooted ? "root" : "peer";
    }
    if ((class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && rec->dtype >= ROLL_DTYPE_LIMIT &&
        rec->dtype != ROLL_DTYPE_NONE) {
        words_add(w, "%u is no datatype", rec->dtype);
        return "dtype";
    }
    if (known && class == ROLL_CLASS_P2P && rec->peer == m->rank && to_itself(s, m, rec) != 0) {
        words_add(w,
                  "member %d is the rank itself, and a message to oneself needs its send and its receive in one group",
                  rec->peer);
        return "peer";
    }
    return "";
}

bool refused_is_wrong(const struct roll_engine *e, const struct member *m, const struct roll_record *rec)
{
    struct words none = {.used = 0};
    return *refused_wrong_argument(e, e->source[m->source], m, rec, &none) != '\0';
}

const struct roll_record *refused_wrong_in_group(const struct roll_engine *e, const struct source *s,
                                                 const struct roll_record *rec)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; rec->group != 0 && t-- > low;) {
        const struct entry *entry = source_entry(s, t);
        const struct roll_record *other = entry ? &entry->rec : NULL;
        const struct member *m = other ? source_member(s, other->comm) : NULL;
        if (m && other->group == rec->group && other->thread == rec->thread && call_failed(other) &&
            refused_is_wrong(e, m, other)) {
            return other;
        }
    }
    return NULL;
}

const struct roll_record *refused_last_error(const struct source *s)
{
    return s->failed.op != ROLL_OP_NONE ? &s->failed : NULL;
}

bool refused_is_from_elsewhere(const struct roll_record *rec)
{
    return rec->result == NCCL_REMOTE_ERROR || rec->result == NCCL_TIMEOUT;
}

static void find_lost(const struct roll_engine *e, const struct comm *c, struct refused_comm *out)
{
    out->lost = NULL;
    out->lost_more = false;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *o = &c->member[r];
        const struct source *s = o->source != NO_SOURCE ? e->source[o->source] : NULL;
        if (s && s != out->lost && (s->proc == ROLL_PROC_DEAD || o->ended != 0)) {
            out->lost_more = out->lost != NULL;
            out->lost = s;
        }
    }
    c->engine->effort += c->size;
}

/* Another member than s has died, or has aborted the communicator. Which members have is found once for all that ask,
 * until a process ends, a member aborts, or one is heard for the first time: thousands of ranks may be refused at once.
 */
static bool others_lost(const struct roll_engine *e, struct comm *c, const struct source *s)
{
    uint64_t state = e->proc_changes + e->aborts + e->enrolled + 1;
    struct refused_comm none = {0}, *made = refused_make_comm(c), *own = made ? made : &none;
    if (own->lost_as_of != state) {
        find_lost(e, c, own);
        own->lost_as_of = state;
    }
    return own->lost_more || (own->lost && own->lost != s);
}

bool refused_is_echo(const struct roll_engine *e, const struct source *s, const struct member *m,
                     const struct roll_record *rec)
{
    if (rec->result == NCCL_INVALID_ARGUMENT || !m) {
        return false;
    }
    return others_lost(e, m->comm, s) || m->ended != 0 || m->comm->aborted;
}
