/*
 * detect_claim.c: ranks come to the creation of one communicator with arguments that contradict each other: the same
 * rank twice, or different sizes.
 *
 * The unique id names the communicator, so the definitions that the processes write before the call can be compared
 * while the processes wait inside it. Such a creation never ends: NCCL's root counts the ranks that have come, and
 * where one comes twice another place stays empty. The definitions alone prove it. The definition that comes second
 * gets no member; it is kept as a claim.
 *
 * Who is wrong: of two sizes, the one for which at most half of its ranks came, while more than half came for the
 * other. Of two ranks that claim one number, the one whose number in the job is another, if all other members have the
 * same number in the communicator as in the job. Otherwise nobody is named, because a launcher may number ranks in any
 * way. A process that was started in place of another one makes no claim.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/creation.h"
#include "daemon/engine/detect/detector.h"

#include <stdlib.h>

#define CLAIMS_MAX 4096u

struct claim_engine {
    uint32_t claims; /* claims on all communicators */
};
STATE_OF_ENGINE(claim)

struct claim_comm {
    struct claim *claim; /* owned */
    uint32_t claims;
    size_t claim_room;
    uint64_t ns; /* patience clock of the last claim */
};
STATE_OF_COMM(claim)

const struct claim *claims_on(const struct comm *c, uint32_t *count)
{
    const struct claim_comm *own = claim_of_comm(c);
    *count = own ? own->claims : 0;
    return own ? own->claim : NULL;
}

int claim_add(struct roll_engine *e, struct comm *c, uint32_t source, const struct roll_def_comm *def)
{
    const struct member *held = (uint32_t)def->rank < c->size ? &c->member[def->rank] : NULL;
    bool anew = held && held->source != NO_SOURCE && e->source[held->source]->world == e->source[source]->world;
    if (c->open || (def->flags & ROLL_DEF_COMM_OPEN) != 0 || def->origin != ROLL_COMM_INIT || anew ||
        (claim_of_comm(c) && claim_of_comm(c)->claims >= CLAIMS_MAX)) {
        return ROLL_E_CORRUPT;
    }
    struct claim_comm *own = claim_make_comm(c);
    for (uint32_t i = 0; own && i < own->claims; i++) {
        if (own->claim[i].source == source) {
            return 0;
        }
    }
    if (!own || ROLL_GROW(own->claim, own->claim_room, own->claims + 1u) != 0) {
        return ROLL_E_NOMEM;
    }
    claim_of_engine(e)->claims++;
    own->claim[own->claims++] = (struct claim){.source = source, .rank = def->rank, .nranks = def->nranks};
    own->ns = e->clock;
    return 0;
}

const struct claim *claim_of(const struct roll_engine *e, const struct source *s, const struct comm **out)
{
    uint32_t index = source_index(e, s);
    for (uint32_t i = 0; claim_of_engine(e)->claims > 0 && i < e->comms; i++) {
        const struct claim_comm *own = claim_of_comm(e->comm[i]);
        for (uint32_t k = 0; own && k < own->claims; k++) {
            if (own->claim[k].source == index) {
                *out = e->comm[i];
                return &own->claim[k];
            }
        }
    }
    return NULL;
}

/* The call by which s takes part in the creation: s is inside it, or it was refused. NULL: it has ended in good order.
 */
static const struct roll_record *creation_of(const struct source *s)
{
    const struct entry *inside = s->init ? source_entry(s, s->init - 1) : NULL;
    return inside ? &inside->rec : s->failed.op == ROLL_OP_COMM_INIT ? &s->failed : NULL;
}

/* One contradiction. Where `named`, side 0 is wrong. */
struct contradiction {
    struct roll_rankset side[2], came; /* world ranks; owned */
    const struct source *source[2];    /* one source of each side */
    uint32_t rank, nranks[2];
    bool named;
};

static void contradiction_fini(struct contradiction *d)
{
    roll_rankset_fini(&d->side[0]);
    roll_rankset_fini(&d->side[1]);
    roll_rankset_fini(&d->came);
}

static void put(struct contradiction *d, unsigned side, const struct source *s)
{
    (void)roll_rankset_add(&d->side[side], s->world);
    d->source[side] = s;
}

/* Compares the sizes. Side 0 are the ranks of another size than the first definition; the sides are swapped where those
 * are the majority. */
static bool sizes_differ(const struct roll_engine *e, const struct comm *c, struct contradiction *d)
{
    const struct claim_comm *own = claim_of_comm(c);
    d->nranks[1] = c->size;
    for (uint32_t i = 0; i < own->claims; i++) {
        if ((uint32_t)own->claim[i].nranks != c->size) {
            d->nranks[0] = (uint32_t)own->claim[i].nranks;
            put(d, 0, e->source[own->claim[i].source]);
        }
    }
    for (uint32_t r = 0; r < c->size && d->source[0]; r++) {
        if (c->member[r].source != NO_SOURCE) {
            put(d, 1, e->source[c->member[r].source]);
        }
    }
    if (!d->source[0] || !d->source[1]) {
        return false;
    }
    bool most[2];
    for (unsigned k = 0; k < 2; k++) {
        most[k] = roll_rankset_count(&d->side[k]) * 2 > d->nranks[k];
    }
    d->named = most[0] != most[1];
    if (d->named && most[0]) {
        struct contradiction turned = *d;
        for (unsigned k = 0; k < 2; k++) {
            d->side[k] = turned.side[!k];
            d->source[k] = turned.source[!k];
            d->nranks[k] = turned.nranks[!k];
        }
    }
    return true;
}

/* All members but one have the same number in the communicator as in the job. */
static bool numbered_alike(const struct roll_engine *e, const struct comm *c, uint32_t but)
{
    uint32_t seen = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = r != but ? comm_world(e, c, r) : NO_SOURCE;
        if (world != NO_SOURCE && world != r) {
            return false;
        }
        seen += world != NO_SOURCE;
    }
    return seen > 0 && c->size >= e->sources;
}

static bool rank_is_taken(const struct roll_engine *e, const struct comm *c, struct contradiction *d)
{
    const struct claim_comm *own = claim_of_comm(c);
    for (uint32_t i = 0; i < own->claims; i++) {
        uint32_t rank = (uint32_t)own->claim[i].rank;
        if ((uint32_t)own->claim[i].nranks != c->size) {
            continue;
        }
        const struct source *claims = e->source[own->claim[i].source], *holds = e->source[c->member[rank].source];
        bool wrong = claims->world == rank; /* then the rank that came first is wrong */
        d->rank = rank;
        d->nranks[0] = d->nranks[1] = c->size;
        put(d, 0, wrong ? holds : claims);
        put(d, 1, wrong ? claims : holds);
        d->named = (claims->world == rank || holds->world == rank) && numbered_alike(e, c, rank);
        return true;
    }
    return false;
}

static void words_empty(struct words *w, const struct comm *c)
{
    struct roll_rankset empty = {0};
    char folded[128];
    for (uint32_t r = 0; r < c->size; r++) {
        if (c->member[r].source == NO_SOURCE) {
            (void)roll_rankset_add(&empty, r);
        }
    }
    if (roll_rankset_count(&empty) > 0) {
        (void)roll_rankset_format(&empty, folded, sizeof(folded));
        words_add(w, " Nobody has come as %s %s.", roll_rankset_count(&empty) == 1 ? "rank" : "ranks", folded);
    }
    roll_rankset_fini(&empty);
}

static void speak(struct roll_engine *e, struct comm *c, struct contradiction *d, bool size)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_INIT_MISSING, ROLL_PROVEN);
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    for (unsigned k = 0; k < 2; k++) {
        say_side(v, d->source[k], source_index(e, d->source[k]), &d->side[k], creation_of(d->source[k]));
    }
    if (d->named) {
        (void)roll_rankset_copy(&v->culprits, &d->side[0]);
    }
    (void)roll_rankset_copy(&v->waiting, &d->came);
    say_comm(v, c, 0);
    v->field = size ? "count" : "peer";
    words_ranks(&w, &d->side[0]);
    if (size) {
        words_add(&w, " came to CommInit for a communicator of %u ranks, ", d->nranks[0]);
        words_ranks(&w, &d->side[1]);
        words_add(&w, " with the same unique id for one of %u ranks: the communicator is never complete.",
                  d->nranks[1]);
    } else {
        words_add(&w, " and ");
        words_ranks(&w, &d->side[1]);
        words_add(
            &w, " both came to CommInit as rank %u of %u, with the same unique id: the communicator is never complete.",
            d->rank, c->size);
        words_empty(&w, c);
    }
    if (!d->named) {
        words_add(&w, " The calls do not say which side is wrong.");
    } else if (!size) {
        words_add(&w, " Every other rank of the job came with its own number.");
    }
    words_add(&w,
              " Look at how the rank and the number of ranks are computed, and whether the unique id is of this job.");
    say_text(e, v, "%s", w.text);
}

static void claims_of(struct roll_engine *e, struct comm *c)
{
    const struct claim_comm *own = claim_of_comm(c);
    struct contradiction d = {.named = false};
    bool settled = own && (e->finishing || e->clock - own->ns >= e->config.stall_ns);
    if (!settled || own->claims == 0 || creation_is_told(c, 0)) {
        return;
    }
    bool size = sizes_differ(e, c, &d), any = size || rank_is_taken(e, c, &d);
    for (uint32_t i = 0; any && i < own->claims; i++) {
        const struct source *s = e->source[own->claim[i].source];
        if (creation_of(s)) {
            (void)roll_rankset_add(&d.came, s->world);
        }
    }
    bool stuck = roll_rankset_count(&d.came) > 0;
    for (uint32_t r = 0; any && r < c->size; r++) {
        const struct source *s = c->member[r].source != NO_SOURCE ? e->source[c->member[r].source] : NULL;
        if (s && creation_of(s)) {
            (void)roll_rankset_add(&d.came, s->world);
        }
    }
    if (any && stuck && creation_set_told(c, 0)) {
        speak(e, c, &d, size);
    }
    contradiction_fini(&d);
}

static void claim_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; claim_of_engine(e)->claims > 0 && i < e->comms; i++) {
        claims_of(e, e->comm[i]);
    }
}

static void claim_comm_fini(struct comm *c)
{
    if (claim_of_comm(c)) {
        free(claim_of_comm(c)->claim);
    }
}

const struct detector detect_claim = {
    .name = "claim", ENGINE_STATE(claim), .tick = claim_tick, .comm_fini = claim_comm_fini};
