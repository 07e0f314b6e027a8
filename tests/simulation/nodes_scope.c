/*
 * nodes_scope.c: who and what the engine of a tree of digests sees: all records of everybody, those of the ranks that
 * are concerned, or the calls around a place where calls differ.
 */
#include "tests/simulation/nodes_state.h"

#define WIDENED       3u  /* so often others are found to be concerned; then everybody is */
#define NARROW_AROUND 16u /* the calls before and behind those that a narrow engine is about */

bool nodes_is_named(const struct nodes *n, uint64_t key)
{
    for (size_t i = 0; i < n->named.hints; i++) {
        if (n->named.hint[i].key == key) {
            return true;
        }
    }
    return false;
}

bool nodes_differ_there(const struct nodes *n, uint64_t key)
{
    bool there = false;
    for (size_t i = 0; i < n->wanted.hints && !there; i++) {
        there = n->wanted.hint[i].key == key && n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
    }
    return there;
}

void nodes_broaden(struct nodes *n)
{
    n->broad = n->wider = n->hurry = true;
}

bool nodes_ask_everybody(const struct nodes *n)
{
    return !n->how.scoped || n->opened > WIDENED + n->narrows || n->everybody;
}

bool nodes_is_concerned(const struct nodes *n, const struct rank_node *k)
{
    bool concerned = nodes_ask_everybody(n) || k->failed || k->hinted;
    for (uint32_t i = 0; i < k->defs && !concerned; i++) {
        concerned = k->def[i].type == ROLL_DEF_COMM && nodes_is_named(n, k->def[i].comm.info.key);
    }
    return concerned;
}

uint32_t nodes_hinted_from(const struct nodes *n, const struct roll_digest_hint *h)
{
    struct roll_sum_place place;
    bool known = roll_sum_place(n->root, h->key, &place) && place.differs_at != 0;
    return known && roll_digest_window_of(place.differs_at) == h->seq ? roll_digest_first(place.differs_at) : h->seq;
}

bool nodes_range(const struct nodes *n, uint64_t key, uint32_t *first, uint32_t *high)
{
    uint32_t low = UINT32_MAX;
    *high = 0;
    for (size_t i = 0; i < n->asked; i++) {
        const struct roll_digest_hint *h = &n->wanted.hint[i];
        if (h->key == key && h->why == ROLL_HINT_DIFFERS) {
            uint32_t end = h->seq + ROLL_DIGEST_WINDOW + NARROW_AROUND, begin = i < SPANS ? n->from[i] : h->seq;
            low = begin < low ? begin : low;
            *high = end > *high ? end : *high;
        }
    }
    *first = low > NARROW_AROUND ? low - NARROW_AROUND : 0;
    return *high != 0;
}

uint64_t nodes_key(const struct rank_node *k, const struct roll_record *rec)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < k->defs && key == 0; i++) {
        bool is = k->def[i].type == ROLL_DEF_COMM && k->def[i].id == rec->comm;
        key = is ? k->def[i].comm.info.key : 0;
    }
    return key;
}

bool nodes_is_kept(const struct nodes *n, const struct rank_node *k, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    uint32_t first, high;
    if ((class != ROLL_CLASS_COLL && class != ROLL_CLASS_COMM) || !nodes_range(n, nodes_key(k, rec), &first, &high)) {
        return false;
    }
    return class != ROLL_CLASS_COLL || rec->count == 0 || (rec->seq >= first && rec->seq < high);
}

bool nodes_is_beyond(const struct nodes *n, const struct roll_digest_hint *h)
{
    uint32_t first, high;
    bool seen = nodes_range(n, h->key, &first, &high) && h->seq + ROLL_DIGEST_WINDOW <= high;
    return n->narrow && h->why == ROLL_HINT_DIFFERS && !(seen && nodes_hinted_from(n, h) >= first);
}

uint64_t nodes_front(const struct nodes *n)
{
    uint64_t front = 0;
    for (size_t i = 0; i < n->wanted.hints; i++) {
        struct roll_sum_place place;
        bool differs = n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
        front += differs && roll_sum_place(n->root, n->wanted.hint[i].key, &place) ? place.high : 0;
    }
    return front;
}

bool nodes_are_about_calls(const struct nodes *n)
{
    bool calls = false, others = false;
    for (size_t i = 0; i < n->wanted.hints; i++) {
        calls = calls || n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
        others = others || n->wanted.hint[i].why != ROLL_HINT_DIFFERS;
    }
    for (size_t i = 0; i < n->stood.hints; i++) {
        others = others || nodes_differ_there(n, n->stood.hint[i].key);
    }
    return calls && !others && !n->others;
}

/* As the root's (root_case_say.c). */
static bool is_seen_narrowly(const struct roll_verdict *v, bool retires)
{
    enum roll_family family = roll_verdict_family(v->code);
    bool argument = v->code == ROLL_VERDICT_COUNT_MISMATCH || v->code == ROLL_VERDICT_DTYPE_MISMATCH ||
                    v->code == ROLL_VERDICT_REDOP_MISMATCH || v->code == ROLL_VERDICT_ROOT_MISMATCH ||
                    v->code == ROLL_VERDICT_OP_MISMATCH;
    bool plain = true;
    for (uint32_t i = 0; i < v->sides; i++) {
        const struct roll_record *rec = &v->side[i].rec;
        plain = plain && rec->group == 0 && !roll_op_has(rec->op, ROLL_TRAIT_LOWERED);
    }
    return plain && (argument || (retires && (family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_ALIGNMENT)));
}

bool nodes_says(struct nodes *n, const struct roll_verdict *v)
{
    bool retires = v->supersedes != 0 || v->confirms != 0 || v->withdraws != 0;
    bool known = v->comm_key == 0 || nodes_is_named(n, v->comm_key) || roll_engine_has_all(n->e, v->comm_key),
         out = false;
    if (n->narrow && v->code != ROLL_VERDICT_DATA_INCOMPLETE && !is_seen_narrowly(v, retires)) {
        if (v->certainty != ROLL_NOTE) {
            nodes_broaden(n);
        }
        return false;
    }
    if (retires || (v->certainty == ROLL_NOTE && v->code != ROLL_VERDICT_AGENT_SILENT)) {
        return true;
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        out = out || (!n->rank[r].asked && roll_rankset_has(&v->culprits, r));
    }
    if (!known && !nodes_ask_everybody(n)) {
        roll_digest_add_hint(&n->named, v->comm_key, ROLL_HINT_STANDS, 0);
        n->wider = true;
        return false;
    }
    if (out) {
        n->everybody = n->wider = true;
    }
    n->said = n->said || !out;
    n->told = n->told || (!out && (v->certainty == ROLL_PROVEN || roll_rankset_count(&v->culprits) > 0));
    n->since_ns = n->said ? n->now : n->since_ns;
    return !out;
}
