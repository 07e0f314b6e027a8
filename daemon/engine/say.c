/*
 * say.c: building verdicts, and the memory of what has been said.
 *
 * One cause, one verdict: a detector forms a key of what it is about to say, and say_once answers whether that is new. The keys are hashes in one open
 * table rather than lists at each object: causes span ranks, communicators and steps.
 */
#include "daemon/engine/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t say_key(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t part[4] = {a, b, c, d};
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < 4; i++) {
        h = (h ^ part[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 31;
    }
    return h ? h : 1;
}

static bool keys_grow(struct roll_engine *e)
{
    if (e->said_key && (e->said_keys + 1) * 2 <= e->said_mask) {
        return true;
    }
    uint32_t room = e->said_key ? (e->said_mask + 1) * 2 : 64;
    uint64_t *old = e->said_key;
    uint32_t old_room = old ? e->said_mask + 1 : 0;
    uint64_t *table = calloc(room, sizeof(*table));
    if (!table) {
        return false;
    }
    for (uint32_t i = 0; i < old_room; i++) {
        uint32_t at = (uint32_t)old[i] & (room - 1);
        while (old[i] != 0 && table[at] != 0) {
            at = (at + 1) & (room - 1);
        }
        if (old[i] != 0) {
            table[at] = old[i];
        }
    }
    free(old);
    e->said_key = table;
    e->said_mask = room - 1;
    return true;
}

bool say_once(struct roll_engine *e, uint64_t key)
{
    if (!keys_grow(e)) {
        return false;
    }
    uint32_t at = (uint32_t)key & e->said_mask;
    while (e->said_key[at] != 0) {
        if (e->said_key[at] == key) {
            return false;
        }
        at = (at + 1) & e->said_mask;
    }
    e->said_key[at] = key;
    e->said_keys++;
    return true;
}

struct roll_verdict *say(struct roll_engine *e, enum roll_verdict_code code, enum roll_certainty certainty)
{
    struct said *said = calloc(1, sizeof(*said));
    if (!said) {
        return NULL;
    }
    struct roll_verdict *v = &said->verdict;
    v->number = ++e->numbers;
    v->code = code;
    v->certainty = certainty;
    v->time_ns = e->now;
    v->field = "";
    v->text = "";
    v->step = ROLL_STEP_NONE;
    v->layer = ROLL_LAYER_NONE;
    e->findings += certainty != ROLL_NOTE;
    if (e->out_last) {
        e->out_last->next = said;
    } else {
        e->out_first = said;
    }
    e->out_last = said;
    return v;
}

void say_comm(struct roll_verdict *v, const struct comm *c, uint64_t seq)
{
    v->comm_key = c->key;
    memcpy(v->comm_label, c->label, sizeof(v->comm_label));
    v->comm_size = c->size;
    v->seq = seq;
}

void say_side(struct roll_verdict *v, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
              const struct roll_record *rec)
{
    if (v->sides == ROLL_VERDICT_SIDES) {
        return;
    }
    struct roll_verdict_side *side = &v->side[v->sides++];
    (void)roll_rankset_copy(&side->ranks, ranks);
    side->source = index;
    if (!rec) {
        return;
    }
    side->rec = *rec;
    side->rec.enter_ns = s ? source_wall(s, rec) : rec->enter_ns; /* the host's own clock means nothing to a reader */
    if (v->event_ns == 0) {
        v->event_ns = side->rec.enter_ns;
    }
    if (v->step == ROLL_STEP_NONE && rec->step != ROLL_STEP_NONE) {
        v->step = rec->step;
        v->microbatch = rec->microbatch;
        v->layer = rec->layer;
        v->phase = rec->phase;
    }
}

void say_beside(const struct roll_engine *e, const struct source *s, const struct entry *at, struct roll_rankset *out)
{
    struct member *m = source_member(s, at->rec.comm);
    (void)roll_rankset_add(out, s->world);
    for (uint32_t i = 0; m && !at->pair && i < e->sources; i++) {
        const struct source *other = e->source[i];
        for (uint32_t k = 0; k < other->queues; k++) {
            const struct queue *q = &other->queue[k];
            const struct entry *head = q->head ? source_entry(other, q->head - 1) : NULL;
            struct member *om = head ? source_member(other, head->rec.comm) : NULL;
            if (om && om->comm == m->comm && head->rec.seq == at->rec.seq && head->rec.op == at->rec.op &&
                head->rec.count == at->rec.count && roll_op_class(head->rec.op) == ROLL_CLASS_COLL) {
                (void)roll_rankset_add(out, other->world);
            }
        }
    }
}

/* Sentences begin with whatever words_ranks wrote: "rank 3 ...". */
static void capitals(char *text)
{
    for (char *at = text; at; at = strstr(at, ". ") ? strstr(at, ". ") + 2 : NULL) {
        if (strncmp(at, "rank", 4) == 0) {
            *at = 'R';
        }
    }
}

void say_text(struct roll_engine *e, struct roll_verdict *v, const char *format, ...)
{
    struct said *said = e->out_last;
    va_list args;
    va_start(args, format);
    char *text = NULL;
    if (said && &said->verdict == v && vasprintf(&text, format, args) >= 0) {
        capitals(text);
        free(said->text);
        said->text = text;
        v->text = text;
    }
    va_end(args);
}

uint32_t source_index(const struct roll_engine *e, const struct source *s)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i] == s) {
            return i;
        }
    }
    return NO_SOURCE;
}
