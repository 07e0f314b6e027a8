/*
 * detect_moe_route.c: a rank whose own words about its routing do not fit together.
 *
 * Two comparisons inside one rank, so both are proven by its records alone, and need no peer:
 *   - the rows that it will send to its peers (MOE_SPLIT of forward) do not add up to the rows of the buffer that it sends (MOE_COUNTS): frameworks that
 *     size the buffer as tokens x top-k while the routing map has fewer entries raise an error there, or send rows that nobody wrote (Megatron-LM #5542);
 *   - the splits of a recomputed forward differ from those of the first (top-k ties that flip: Automodel #3140): its peers expect the first ones.
 * Only complete lists are compared: one MOE_SPLIT per member, in order, nothing lost between them. A recompute is compared only where one forward of its
 * step, microbatch and layer can be meant: where several wait for theirs (layers or microbatches without numbers), nobody can say which.
 */
#include "daemon/engine/detector.h"

#include <stdlib.h>
#include <string.h>

#define BATCHES 64u /* microbatches of one layer that may be under way at once (pipelining) */

/* The splits of one layer and microbatch. */
struct split_note {
    uint32_t step, next; /* next: the peer whose split comes next */
    uint16_t microbatch, comm;
    uint8_t phase;
    uint32_t pending; /* forwards that have not been recomputed */
    bool known;       /* `forward` holds the complete list of the only one */
    bool compares;    /* the recompute whose list this is can only mean that one */
    uint64_t buffer;  /* rows of the buffer that is sent; 0 = not known */
    uint64_t sum;     /* rows sent, so far */
    uint64_t hash, forward;
    uint64_t ticket; /* of the forward's last split */
};

/* By layer, BATCHES each. */
struct split_table {
    uint32_t layers;
    struct split_note *note;
};

static struct split_note *note_of(struct source *s, const struct roll_record *rec)
{
    if (rec->layer == ROLL_LAYER_NONE || rec->layer >= 1024) {
        return NULL;
    }
    struct split_table *t = s->splits;
    if (!t) {
        t = s->splits = calloc(1, sizeof(*t));
    }
    if (t && rec->layer >= t->layers) {
        uint32_t layers = rec->layer + 8u;
        struct split_note *note = realloc(t->note, (size_t)layers * BATCHES * sizeof(*note));
        if (!note) {
            return NULL;
        }
        memset(note + (size_t)t->layers * BATCHES, 0, (size_t)(layers - t->layers) * BATCHES * sizeof(*note));
        t->note = note;
        t->layers = layers;
    }
    return t ? &t->note[(size_t)rec->layer * BATCHES + rec->microbatch % BATCHES] : NULL;
}

static void speak(struct roll_engine *e, uint32_t source, const struct roll_record *rec, enum roll_verdict_code code,
                  const struct split_note *n)
{
    const struct source *s = e->source[source];
    const struct member *m = source_member(s, rec->comm);
    struct roll_verdict *v = say_once(e, say_key(code, s->world, rec->layer, 0)) ? say(e, code, ROLL_PROVEN) : NULL;
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    const struct entry *before = source_entry(s, n->ticket);
    (void)roll_rankset_add(&v->culprits, s->world);
    say_side(v, s, source, &v->culprits, rec);
    if (code == ROLL_VERDICT_MOE_RECOMPUTE) {
        say_side(v, s, source, &v->culprits, before ? &before->rec : NULL);
    }
    if (m) {
        say_comm(v, m->comm, 0);
    }
    v->step = rec->step;
    v->microbatch = rec->microbatch;
    v->layer = rec->layer;
    v->phase = rec->phase;
    v->remedy = code == ROLL_VERDICT_MOE_RECOMPUTE ? ROLL_REMEDY_ROUTING : ROLL_REMEDY_SPLITS;
    words_add(&w, "Rank %u", s->world);
    if (code == ROLL_VERDICT_MOE_RECOMPUTE) {
        words_add(&w, " recomputed the forward of ");
        words_place(&w, rec->step, rec->microbatch, rec->layer);
        words_add(&w, " and routed its tokens differently: it sends and expects other numbers of rows than in the "
                      "first forward, which its peers "
                      "have kept or recomputed rightly. Top-k ties that are not broken in a fixed order do this.");
    } else {
        words_add(&w, " sends %llu rows in ", (unsigned long long)n->sum);
        words_place(&w, rec->step, rec->microbatch, rec->layer);
        words_add(&w, " from a buffer of %llu: its routing map has %s entries than tokens times top-k. %s.",
                  (unsigned long long)n->buffer, n->sum < n->buffer ? "fewer" : "more",
                  n->sum < n->buffer ? "Rows that nobody wrote may be sent, or the all-to-all refused"
                                     : "The all-to-all reads beyond the buffer, or is refused");
    }
    words_remedy(&w, e, v->remedy, m ? m->comm->key : 0, rec->layer);
    say_text(e, v, "%s", w.text);
}

static void list_whole(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                       struct split_note *n)
{
    if (rec->phase == ROLL_PHASE_FORWARD) {
        n->forward = n->hash;
        n->known = n->pending == 1;
        n->ticket = ticket;
        if (n->buffer != 0 && n->buffer != UINT32_MAX && n->sum != n->buffer) { /* UINT32_MAX: it may be more */
            speak(e, source, rec, ROLL_VERDICT_MOE_SPLIT_SUM, n);
        }
    } else if (n->compares && n->hash != n->forward) {
        speak(e, source, rec, ROLL_VERDICT_MOE_RECOMPUTE, n);
    }
}

/* MOE_COUNTS: the head of a list. */
static void begin(struct split_note *n, const struct roll_record *rec)
{
    if (n->step != rec->step || n->microbatch != rec->microbatch) {
        n->pending = 0;
        n->known = false;
    }
    if (rec->phase == ROLL_PHASE_FORWARD) {
        n->pending++;
        n->known = n->compares = false;
    } else {
        n->compares = n->known && n->pending == 1;
        n->pending -= n->pending > 0;
        n->known = false;
    }
    n->step = rec->step;
    n->microbatch = rec->microbatch;
    n->comm = rec->comm;
    n->phase = rec->phase;
    n->buffer = rec->group;
    n->next = 0;
    n->sum = n->hash = 0;
}

static void route_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                         bool first)
{
    bool phase = rec->phase == ROLL_PHASE_FORWARD || rec->phase == ROLL_PHASE_RECOMPUTE;
    bool wanted = first && phase && (rec->op == ROLL_OP_MOE_COUNTS || rec->op == ROLL_OP_MOE_SPLIT);
    struct split_note *n = wanted ? note_of(e->source[source], rec) : NULL;
    const struct member *m = n ? source_member(e->source[source], rec->comm) : NULL;
    if (!m || m->comm->size == 0 || m->comm->open) {
        return;
    }
    if (!source_certain(e->source[source], rec)) {
        *n = (struct split_note){.next = NO_SEQ};
        return;
    }
    if (rec->op == ROLL_OP_MOE_COUNTS) {
        begin(n, rec);
        return;
    }
    bool follows = n->step == rec->step && n->microbatch == rec->microbatch && n->phase == rec->phase &&
                   n->comm == rec->comm && rec->peer >= 0 && (uint32_t)rec->peer == n->next;
    if (!follows) {
        n->next = NO_SEQ; /* a hole: this list says nothing */
        return;
    }
    n->next++;
    n->sum += rec->count;
    n->hash = say_key(n->hash, rec->count, rec->group, (uint64_t)rec->peer);
    if (n->next == m->comm->size) {
        list_whole(e, source, rec, ticket, n);
    }
}

static void route_fini(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i]->splits) {
            free(e->source[i]->splits->note);
            free(e->source[i]->splits);
            e->source[i]->splits = NULL;
        }
    }
}

const struct detector detect_moe_route = {.name = "moe_route", .record = route_record, .fini = route_fini};
