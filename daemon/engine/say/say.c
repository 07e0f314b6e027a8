/*
 * say.c: how verdicts are built, and the memory of what has been said.
 *
 * One cause gets one verdict: a detector forms a key of the cause that it is about to tell, and say_once answers
 * whether the cause is new. Lists of causes at each object were rejected: causes span ranks, communicators and steps,
 * so the keys are hashes in one table.
 *
 * A verdict that was said before all was known may be said better, be proven, or be taken back. The verdict that does
 * so names the earlier one, which stays in every record of the run and counts as a finding no more. To change the
 * earlier verdict in place was rejected: it has been read by then.
 */
#include "daemon/engine/say/say.h"
#include "daemon/base/array.h"

#include <inttypes.h>
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

/* The row of a key; NULL: nothing has been said or remembered under this key. */
static struct said_key *key_row(const struct roll_engine *e, uint64_t key)
{
    uint32_t at = roll_map_get(&e->said_key_at, key);
    return at == ROLL_MAP_NONE ? NULL : &e->said_key[at];
}

/* The row of a key, which is made if there is none; NULL: no memory. */
static struct said_key *key_row_make(struct roll_engine *e, uint64_t key)
{
    struct said_key *row = key_row(e, key);
    if (row) {
        return row;
    }
    if (ROLL_GROW(e->said_key, e->said_key_room, e->said_keys + 1u) != 0 ||
        roll_map_add(&e->said_key_at, key, e->said_keys) != 0) {
        return NULL;
    }
    return &e->said_key[e->said_keys++];
}

bool say_once(struct roll_engine *e, uint64_t key)
{
    struct said_key *row = say_is_said(e, key) ? NULL : key_row_make(e, key);
    if (row) {
        *row = (struct said_key){.number = 0};
    }
    return row != NULL;
}

bool say_is_said(const struct roll_engine *e, uint64_t key)
{
    const struct said_key *row = key_row(e, key);
    return row && !row->forgotten;
}

void say_remember(struct roll_engine *e, uint64_t key, uint64_t number)
{
    struct said_key *row = key_row_make(e, key);
    if (row) {
        *row = (struct said_key){.number = number};
    }
}

uint64_t say_recall(const struct roll_engine *e, uint64_t key)
{
    const struct said_key *row = key_row(e, key);
    return row ? row->number : 0;
}

void say_forget(struct roll_engine *e, uint64_t key)
{
    struct said_key *row = key_row(e, key);
    if (row) {
        *row = (struct said_key){.forgotten = true};
    }
}

static struct told *told_find(const struct roll_engine *e, uint64_t number)
{
    uint32_t low = 0, high = e->tolds;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (e->told[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < e->tolds && e->told[low].number == number ? &e->told[low] : NULL;
}

/* Keeps what may be needed of a finding later. Without memory the finding is counted for good, and never taken back. */
static void told_add(struct roll_engine *e, const struct roll_verdict *v)
{
    if (ROLL_GROW(e->told, e->told_room, e->tolds + 1u) == 0) {
        e->told[e->tolds++] = (struct told){.number = v->number, .code = v->code, .certainty = v->certainty};
    }
}

const struct told *say_told(const struct roll_engine *e, uint64_t number)
{
    return told_find(e, number);
}

bool say_stands(const struct roll_engine *e, uint64_t number)
{
    const struct told *told = told_find(e, number);
    return told && !told->retired;
}

/* The finding counts no more. False: it is none, or it has been retired before. */
static bool retire(struct roll_engine *e, uint64_t number)
{
    struct told *told = told_find(e, number);
    if (!told || told->retired) {
        return false;
    }
    told->retired = true;
    e->findings--;
    return true;
}

void say_supersedes(struct roll_engine *e, struct roll_verdict *v, uint64_t number)
{
    if (v && retire(e, number)) {
        v->supersedes = number;
    }
}

void say_confirms(struct roll_engine *e, struct roll_verdict *v, uint64_t number)
{
    if (v && retire(e, number)) {
        v->confirms = number;
    }
}

void say_keep(struct roll_engine *e, const struct roll_verdict *v)
{
    struct told *told = told_find(e, v->number);
    if (told) {
        told->comm_key = v->comm_key;
        memcpy(told->comm_label, v->comm_label, sizeof(told->comm_label));
        told->comm_size = v->comm_size;
        told->seq = v->seq;
    }
}

bool say_withdraw(struct roll_engine *e, uint64_t number, const char *why)
{
    for (const struct said *said = e->out_first; said; said = said->next) {
        if (said->verdict.number == number) {
            say_keep(e, &said->verdict);
        }
    }
    struct told *told = told_find(e, number);
    if (!told || told->retired || told->certainty == ROLL_PROVEN) {
        return false;
    }
    struct roll_verdict *v = say(e, told->code, ROLL_NOTE);
    if (!v) {
        return false;
    }
    v->comm_key = told->comm_key;
    memcpy(v->comm_label, told->comm_label, sizeof(v->comm_label));
    v->comm_size = told->comm_size;
    v->seq = told->seq;
    v->withdraws = number;
    (void)retire(e, number);
    say_text(e, v, "Verdict %" PRIu64 " (%s) is withdrawn: %s.", number, roll_verdict_name(told->code), why);
    return true;
}

void say_may_be(struct roll_verdict *v, enum roll_verdict_code code)
{
    bool there = !v || v->code == code || v->may_bes == ROLL_VERDICT_MAYBE;
    for (uint32_t i = 0; !there && i < v->may_bes; i++) {
        there = v->may_be[i] == code;
    }
    if (!there) {
        v->may_be[v->may_bes++] = code;
    }
}

struct roll_verdict *say(struct roll_engine *e, enum roll_verdict_code code, enum roll_certainty certainty)
{
    struct said *said = calloc(1, sizeof(*said));
    if (!said) {
        return NULL;
    }
    if (e->no_rooms > 0 && certainty == ROLL_PROVEN) { /* the records of a rank that was set aside are not all known */
        certainty = ROLL_SUSPECTED;
    }
    struct roll_verdict *v = &said->verdict;
    v->number = ++e->numbers;
    v->code = code;
    v->certainty = certainty;
    v->time_ns = e->now;
    v->field = "";
    v->text = "";
    v->step = ROLL_STEP_NONE;
    v->step_learned = round_now(e) != ROLL_STEP_NONE ? round_now(e) : 0;
    v->layer = ROLL_LAYER_NONE;
    if (certainty != ROLL_NOTE) {
        e->findings++;
        told_add(e, v);
    }
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
    struct words w = {.used = 0};
    words_comm(&w, c);
    snprintf(v->comm_name, sizeof(v->comm_name), "%.127s", w.text);
    w = (struct words){.used = 0};
    words_comm_made(&w, c);
    snprintf(v->comm_made, sizeof(v->comm_made), "%.159s", w.text);
    w = (struct words){.used = 0};
    words_comm_place(&w, c);
    snprintf(v->comm_place, sizeof(v->comm_place), "%.199s", w.text);
    v->comm_made_source = c->made_source;
    v->comm_made_callsite = c->made_callsite;
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
        side->has_last_step = s && s->step != ROLL_STEP_NONE && roll_rankset_count(ranks) == 1;
        side->last_step = side->has_last_step ? s->step : 0;
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
    bool creation = roll_op_class(at->rec.op) == ROLL_CLASS_COMM;
    (void)roll_rankset_add(out, s->world);
    for (uint32_t i = 0; m && !at->pair && i < e->sources; i++) {
        const struct source *other = e->source[i];
        const struct entry *makes = creation && other->init != 0 ? source_entry(other, other->init - 1) : NULL;
        const struct member *too = makes && makes->rec.op == at->rec.op ? source_member(other, makes->rec.comm) : NULL;
        if (too && too->comm == m->comm && too->splits == m->splits) {
            (void)roll_rankset_add(out, other->world);
        }
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

/* A sentence may begin with what words_ranks wrote ("rank 3 ..."): gives it its capital letter. */
static void capitals(char *text)
{
    for (char *at = text; at; at = strstr(at, ". ") ? strstr(at, ". ") + 2 : NULL) {
        if (strncmp(at, "rank", 4) == 0) {
            *at = 'R';
        }
    }
}

/* Ranks may wait for what this verdict says: it is no note, and no mistake that hangs nothing. */
static bool may_hang(const struct roll_verdict *v)
{
    return v->certainty != ROLL_NOTE && v->code != ROLL_VERDICT_COLLECTIVE_STUCK &&
           v->code != ROLL_VERDICT_RANK_STUCK && v->code != ROLL_VERDICT_STRAGGLER &&
           v->code != ROLL_VERDICT_REDOP_MISMATCH;
}

/* Remembers a finding for which ranks may wait. */
static void found_add(struct roll_engine *e, const struct roll_verdict *v)
{
    struct found *f = &e->found[e->founds++ % FOUND_KEPT];
    roll_rankset_fini(&f->ranks);
    *f = (struct found){.number = v->number, .clock = e->clock, .comm_key = {v->comm_key}};
    bool any = v->comm_key != 0;
    for (uint32_t i = 0; i < v->sides; i++) {
        const struct source *s = v->side[i].source < e->sources ? e->source[v->side[i].source] : NULL;
        const struct member *m = s ? source_member(s, v->side[i].rec.comm) : NULL;
        f->comm_key[i + 1] = m ? m->comm->key : 0;
        any = any || m;
        (void)roll_rankset_union(&f->ranks, &v->side[i].ranks);
    }
    (void)roll_rankset_union(&f->ranks, &v->culprits);
    (void)roll_rankset_union(&f->ranks, &v->waiting);
    if (any) {
        roll_rankset_fini(&f->ranks);
    }
}

/* The ranks that are set aside for want of room; owned. */
static struct roll_rankset ranks_aside(const struct roll_engine *e)
{
    struct roll_rankset ranks = {0};
    for (uint32_t i = 0; i < e->sources; i++) {
        if (source_lacks_room(e, e->source[i])) {
            (void)roll_rankset_add(&ranks, e->source[i]->world);
        }
    }
    return ranks;
}

/* Takes ranks that were set aside for want of room out of those that are named; where nobody is left, the finding is a
 * note. True: there were such ranks among them. That a process has died or is stopped comes from its agent, and not
 * from the rank's records: it is named for that as any other. */
static bool spare_those_aside(struct roll_engine *e, struct roll_verdict *v, const struct roll_rankset *aside)
{
    if (v->code == ROLL_VERDICT_RANK_DEAD || v->code == ROLL_VERDICT_RANK_STOPPED) {
        return false;
    }
    struct roll_rankset left = {0};
    size_t named = roll_rankset_count(&v->culprits);
    for (size_t i = 0; i < named; i++) {
        uint32_t rank = roll_rankset_at(&v->culprits, i);
        if (!roll_rankset_has(aside, rank)) {
            (void)roll_rankset_add(&left, rank);
        }
    }
    size_t lefts = roll_rankset_count(&left);
    roll_rankset_fini(&v->culprits);
    v->culprits = left;
    if (lefts == 0 && named > 0 && v->certainty != ROLL_NOTE) {
        (void)retire(e, v->number);
        v->certainty = ROLL_NOTE;
    }
    return lefts < named;
}

/* A text that is returned owned; NULL: no memory. */
static char *text_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *text_of(const char *format, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) {
        text = NULL;
    }
    va_end(args);
    return text;
}

/* Adds why a verdict beside a rank that was set aside says less than it would have said. The text is taken, and that
 * which is returned is owned. */
static char *words_aside(struct roll_engine *e, struct roll_verdict *v, char *text)
{
    struct roll_rankset ranks = ranks_aside(e);
    bool spared = spare_those_aside(e, v, &ranks), doubted = v->certainty != ROLL_NOTE;
    bool any = roll_rankset_count(&ranks) > 0, one = roll_rankset_count(&ranks) == 1;
    struct words w = {.used = 0};
    words_ranks(&w, &ranks);
    roll_rankset_fini(&ranks);
    char *longer = !any || (!spared && !doubted)
                       ? NULL
                       : text_of("%s %s %s set aside for want of room, so %s.", text, w.text, one ? "was" : "were",
                                 spared ? "nobody is named for what it lacks" : "this is not proven");
    if (longer) {
        free(text);
    }
    return longer ? longer : text;
}

/* This says why ranks wait in calls: what is seen of a circle when it is looked at again. What comes of a circle, the
 * end of a process, does not; nor does a mistake for which nobody waits yet. */
static bool explains_waits(const struct roll_verdict *v)
{
    enum roll_family family = roll_verdict_family(v->code);
    bool calls = family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_ALIGNMENT || family == ROLL_FAMILY_P2P ||
                 v->code == ROLL_VERDICT_CIRCULAR_WAIT || v->code == ROLL_VERDICT_CROSSED_WAIT;
    return calls && v->certainty != ROLL_PREDICTED;
}

/* What was suspected of this communicator is looked at again, and this is what comes of it. */
static void take_place(struct roll_engine *e, struct roll_verdict *v)
{
    const struct comm *c = comm_find(e, v->comm_key);
    uint64_t number = c && explains_waits(v) && v->supersedes == 0 && v->confirms == 0 ? c->doubted : 0;
    const struct told *told = say_told(e, number);
    if (told && told->code == v->code && v->certainty == ROLL_PROVEN) {
        say_confirms(e, v, number);
    } else if (number != 0) {
        say_supersedes(e, v, number);
    }
}

void say_text(struct roll_engine *e, struct roll_verdict *v, const char *format, ...)
{
    struct said *said = e->out_last;
    va_list args;
    va_start(args, format);
    char *text = NULL;
    if (said && &said->verdict == v && vasprintf(&text, format, args) >= 0) {
        if (e->no_rooms > 0) {
            text = words_aside(e, v, text);
        }
        capitals(text);
        if (!said->text && may_hang(v)) {
            found_add(e, v);
            take_place(e, v);
        }
        free(said->text);
        said->text = text;
        v->text = text;
        for (uint32_t i = 0; i < v->sides && e->tensors_used > 0; i++) {
            struct roll_verdict_side *side = &v->side[i];
            if (roll_op_class(side->rec.op) == ROLL_CLASS_COLL) {
                tensors_text(e, v->comm_label, v->comm_size, side->rec.count, side->tensors, sizeof(side->tensors));
            }
        }
    }
    va_end(args);
}
