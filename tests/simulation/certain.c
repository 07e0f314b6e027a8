/*
 * certain.c: do the records of a sick program leave one explanation only?
 *
 * The collectives of a rank that did wrong are laid beside those of a rank that did right, from the first that differs.
 * Left out, added, exchanged, called with a wrong argument: an explanation stands as long as no call that both have
 * made contradicts it. Only when three calls speak for what was really done and each other explanation is contradicted
 * must the engine prove the class. Nothing is asked where groups are involved, in which NCCL sorts, nor of a rank that
 * made no more calls.
 */
#include "tests/simulation/judge.h"

#include "trace/signature.h"

#define CALLS_MAX 800u

struct line {
    uint64_t call[CALLS_MAX];
    uint32_t calls;
    bool grouped;
};

static void read_line(const struct program *p, const struct story *s, uint32_t rank, int comm, struct line *out)
{
    const struct rank_story *story = &s->rank[rank];
    out->calls = 0;
    out->grouped = false;
    for (uint32_t i = 0; i < story->logs && out->calls < CALLS_MAX; i++) {
        const struct roll_record *rec = &story->log[i].rec;
        const struct act *a = &p->act[story->log[i].act];
        if (roll_op_class(rec->op) != ROLL_CLASS_COLL || a->comm != comm || rec->count == 0) {
            continue;
        }
        out->grouped = out->grouped || rec->group != 0;
        if (a->error == 0) {
            struct roll_signed_call call = {rec->count, rec->peer, rec->op, rec->dtype, rec->redop, rec->flags};
            out->call[out->calls++] = roll_signature(&call);
        }
    }
}

/* a from `i` on against b from `k` on: how many calls agree; -1 when one does not. */
static int agree(const struct line *a, uint32_t i, const struct line *b, uint32_t k)
{
    int n = 0;
    for (; i < a->calls && k < b->calls; i++, k++, n++) {
        if (a->call[i] != b->call[k]) {
            return -1;
        }
    }
    return n;
}

enum { SKIPPED, ADDED, REORDERED, ARGUMENT, EXPLANATIONS };

static int explanation_of(enum mutation_kind kind)
{
    switch (kind) {
    case MUTATION_SKIP:
    case MUTATION_SKIP_SPLIT:
        return SKIPPED;
    case MUTATION_ADD:
        return ADDED;
    case MUTATION_SWAP_SAME:
        return REORDERED;
    case MUTATION_COUNT:
    case MUTATION_DTYPE:
    case MUTATION_OP:
    case MUTATION_REDOP:
    case MUTATION_ROOT:
        return ARGUMENT;
    default:
        return EXPLANATIONS;
    }
}

bool class_is_certain(const struct program *p, const struct mutation *k, const struct story *s)
{
    static struct line odd, even, one;
    int wanted = explanation_of(k->kind), stands[EXPLANATIONS] = {-1, -1, -1, -1};
    if (wanted == EXPLANATIONS || k->comm < 0) {
        return false;
    }
    read_line(p, s, mask_first(k->who), k->comm, &odd);
    even.calls = 0;
    bool grouped = odd.grouped;
    for (uint32_t r = 0; r < p->ranks; r++) {
        if ((p->comm[k->comm].members & ~k->who & BIT(r)) != 0) {
            read_line(p, s, r, k->comm, &one);
            grouped = grouped || one.grouped;
            even = one.calls > even.calls ? one : even;
        }
    }
    uint32_t d = 0;
    while (d < odd.calls && d < even.calls && odd.call[d] == even.call[d]) {
        d++;
    }
    if (grouped || d >= odd.calls || d >= even.calls) {
        return false;
    }
    for (uint32_t shift = 8; shift > 0; shift--) {
        int skipped = agree(&odd, d, &even, d + shift), added = agree(&odd, d + shift, &even, d);
        stands[SKIPPED] = skipped >= 0 ? skipped : stands[SKIPPED];
        stands[ADDED] = added >= 0 ? added : stands[ADDED];
    }
    stands[ARGUMENT] = agree(&odd, d + 1, &even, d + 1);
    bool crossed = (d + 1 >= even.calls || odd.call[d] == even.call[d + 1]) &&
                   (d + 1 >= odd.calls || odd.call[d + 1] == even.call[d]);
    stands[REORDERED] = crossed ? agree(&odd, d + 2, &even, d + 2) : -1;
    for (int i = 0; i < EXPLANATIONS; i++) {
        if (i != wanted && stands[i] >= 0) {
            return false;
        }
    }
    return stands[wanted] >= 3;
}
