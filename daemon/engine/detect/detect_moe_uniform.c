/*
 * detect_moe_uniform.c: a number that must be the same on all members of a communicator is not.
 *
 * In a moe_core job each rank reports such a number before the first collective that needs it
 * (moe_core/include/moe/observe.h, MOE_UNIFORM): its tokens, where a dispatcher needs equally many and nothing pads
 * them; the capacity of an expert, where splits are equal; the bytes of a buffer that all ranks make together. Ranks
 * with different numbers will send each other what the other does not expect. This is predicted before the collective,
 * and said again as proven when ranks then disagree on that communicator. The numbers do not say who is right. The
 * ranks named are those whose number is not the most common one, if most members have that one; the text gives both
 * numbers.
 *
 * Waiting for the mismatch of the collective itself was rejected: it names bytes, not the reason.
 */
#include "daemon/engine/detect/compare.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"

#define TOPIC      0x100u
#define TOPIC_MASK 0xffu

struct moe_uniform_engine {
    bool any; /* the job reports such numbers */
};
STATE_OF_ENGINE(moe_uniform)

static const struct {
    enum roll_verdict_code code;
    const char *singular, *what, *why;
    uint32_t remedy;
    bool shows; /* where the difference does harm, calls of the same step differ or wait */
} kinds[] = {
    {ROLL_VERDICT_MOE_TOKENS_UNEQUAL, "token", "tokens",
     "This dispatcher needs equal numbers on all ranks, and nothing pads them", ROLL_REMEDY_UNEVEN, true},
    {ROLL_VERDICT_MOE_CAPACITY, "row", "rows of capacity for each expert",
     "The splits of the all-to-all are equal only if the capacity is: it must not come from the rank's own tokens", 0,
     true},
    {ROLL_VERDICT_MOE_BUFFER, "byte", "bytes of communication buffer",
     "The buffer is made by all ranks together: its size must come from numbers that all ranks have", 0, false},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* The report of one rank of the set. */
static const struct report *report_in(const struct roll_engine *e, const struct comparison *m,
                                      const struct roll_rankset *set)
{
    for (uint32_t r = 0; r < m->members; r++) {
        if (m->by[r].have != 0 && roll_rankset_has(set, e->source[m->by[r].source]->world)) {
            return &m->by[r];
        }
    }
    return NULL;
}

static void side(struct roll_engine *e, struct gathered *g, const struct report *report,
                 const struct roll_rankset *ranks)
{
    const struct source *s = e->source[report->source];
    const struct entry *entry = source_entry(s, report->ticket);
    gather_side(g, s, report->source, ranks, entry ? &entry->rec : NULL);
}

static void words_uniform(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    (void)e;
    words_add(w, g->certainty == ROLL_PROVEN ? "The predicted mismatch has happened: " : "");
    words_ranks(w, &g->side[0].ranks);
    words_add(w, roll_rankset_count(&g->side[0].ranks) == 1 ? " has %u%s %s, " : " have %u%s %s, ", g->number_of[0],
              g->several ? " and other numbers of" : "", kinds[g->kind].what);
    words_ranks(w, &g->side[1].ranks);
    words_add(w, roll_rankset_count(&g->side[1].ranks) == 1 ? " has %u" : " have %u", g->number_of[1]);
    if (g->step != ROLL_STEP_NONE || g->layer != ROLL_LAYER_NONE) {
        words_add(w, ", in ");
        gather_place(g, w);
    }
    words_add(w, ", on ");
    gather_comm(g, w);
    words_add(w, roll_rankset_count(&g->comms) > 1 ? " (the numbers are those of the first)" : "");
    words_add(w, ". %s.", kinds[g->kind].why);
    words_add(w, g->unnamed ? " No majority says which number is right." : "");
    if (kinds[g->kind].remedy != 0) {
        words_add(
            w, " Start the job with the remedy on (MOE_REMEDIES=uneven, or policy auto), or with the dispatcher's own "
               "option (moe_train: --uneven max, or bound): both pad from the first batch on. For this exchange the "
               "remedy comes too late: it is agreed on in one and acts from the next one on.");
    }
}

static uint64_t key_of(const struct comm *c, uint32_t kind, enum roll_certainty certainty)
{
    return say_key(kinds[kind].code, gather_family(c), certainty, 0);
}

/* More than two different numbers were reported. */
static bool are_several(const struct comparison *m, uint64_t common, uint64_t odd)
{
    for (uint32_t r = 0; r < m->members; r++) {
        if (m->by[r].have != 0 && m->by[r].value[0] != common && m->by[r].value[0] != odd) {
            return true;
        }
    }
    return false;
}

/* Adds what one comparison shows to the gathering of its kind. */
static void tell(struct roll_engine *e, struct comm *c, struct comparison *m, enum roll_certainty certainty)
{
    struct roll_rankset minor = {0}, major = {0};
    uint64_t common = 0;
    bool tie, fresh = false;
    uint32_t kind = m->topic & TOPIC_MASK;
    bool over = certainty == ROLL_PREDICTED && gather_find(e, key_of(c, kind, ROLL_PROVEN)) != NULL;
    struct gathered *g = NULL;
    if (!over && compare_vote(e, m, 0, &common, &minor, &major, &tie)) {
        g = gather_open(e, key_of(c, kind, certainty), kinds[kind].code, certainty, &fresh);
    }
    if (g && g->undone) { /* such numbers have turned out to do no harm here */
        g = NULL;
    }
    if (g && fresh) {
        const struct report *odd = report_in(e, m, &minor);
        struct gathered *before = certainty == ROLL_PROVEN ? gather_find(e, key_of(c, kind, ROLL_PREDICTED)) : NULL;
        side(e, g, odd, &minor);
        side(e, g, report_in(e, m, &major), &major);
        g->kind = kind;
        g->number_of[0] = (uint32_t)odd->value[0];
        g->number_of[1] = (uint32_t)common;
        g->several = are_several(m, common, odd->value[0]);
        g->remedy = kinds[kind].remedy;
        g->phase = ROLL_PHASE_FORWARD;
        g->words = words_uniform;
        g->confirms = before && !before->undone ? gather_flush(e, before) : 0;
    }
    if (g) {
        /* More than half of all members, not only of those that have reported. */
        bool named = !tie && roll_rankset_count(&major) * 2 > c->size;
        bool known = g->unnamed && named && g->comm == c && m->step == g->step;
        g->unnamed = fresh ? !named : g->unnamed && !known;
        g->pending = g->pending || known;
        m->predicted = m->predicted || certainty == ROLL_PREDICTED;
        gather_add(e, g, c, m->step, m->microbatch, m->layer, &minor, &major);
    }
    roll_rankset_fini(&minor);
    roll_rankset_fini(&major);
}

static bool differs(const struct comparison *m)
{
    const struct report *first = NULL;
    for (uint32_t r = 0; r < m->members; r++) {
        if (m->by[r].have != 0) {
            if (first && first->value[0] != m->by[r].value[0]) {
                return true;
            }
            first = first ? first : &m->by[r];
        }
    }
    return false;
}

static void judge(struct roll_engine *e, struct comm *c, struct comparison *m)
{
    bool whole = compare_whole(c, m);
    if (m->differ && ((!m->told && compare_due(e, c, m)) || (whole && !m->told_whole))) {
        m->told = true;
        m->told_whole = whole;
        tell(e, c, m, ROLL_PREDICTED);
    }
    if (!m->differ && compare_whole(c, m)) {
        compare_drop(c, m); /* a comparison with a difference is kept: the mismatch may come true */
    }
}

static uint32_t calls_of(const struct comm *c)
{
    return c->coll + c->p2p;
}

/* The difference has done no harm: every member is at a later step, as many calls as there are members have been made
 * on the communicator since, and nothing is disputed there. */
static bool is_past(const struct roll_engine *e, const struct comm *c, struct comparison *m)
{
    while (m->step != ROLL_STEP_NONE && m->beyond < m->members) {
        uint32_t source = c->member[m->beyond].source;
        if (source == NO_SOURCE || e->source[source]->step <= m->step) {
            return false;
        }
        m->beyond++;
    }
    return m->step != ROLL_STEP_NONE && calls_of(c) - m->calls >= c->size && !c->muted && c->held == NO_SEQ;
}

/*
 * Withdraws a prediction. Hosts run ahead of their calls, so suspect_ns must have passed. One step whose different
 * numbers did no harm is enough, because the numbers of other steps may differ as well, perhaps in all. If one of those
 * does harm, that is said as proven.
 */
static void expire(struct roll_engine *e, struct comm *c, struct comparison *m)
{
    uint32_t kind = m->topic & TOPIC_MASK;
    struct gathered *g = gather_find(e, key_of(c, kind, ROLL_PREDICTED));
    if (!g || !kinds[kind].shows || e->clock - m->since < e->config.suspect_ns || !is_past(e, c, m)) {
        return;
    }
    compare_drop(c, m);
    if (!g->undone) {
        g->undone = true;
        g->pending = false;
        (void)say_withdraw(e, g->number, "all ranks have got to a later step, and their calls since agree");
    }
}

static void uniform_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                           bool first)
{
    if (!first || rec->op != ROLL_OP_MOE_UNIFORM || rec->peer < 0 || (uint32_t)rec->peer >= KINDS) {
        return;
    }
    moe_uniform_of_engine(e)->any = true;
    struct comparison *m = compare_say(e, source, rec, ticket, TOPIC | (uint32_t)rec->peer, 0, rec->count, 1);
    if (!m) {
        return;
    }
    struct comm *c = source_member(e->source[source], rec->comm)->comm;
    if (!m->differ && differs(m)) {
        m->differ = true;
        m->since = e->clock;
        m->calls = calls_of(c);
    }
    judge(e, c, m);
}

static void uniform_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; moe_uniform_of_engine(e)->any && i < e->comms; i++) {
        struct comparison *next;
        const struct compare_comm *compared = compare_of_comm(e->comm[i]);
        for (struct comparison *m = compared ? compared->first : NULL; m; m = next) {
            next = m->next;
            if ((m->topic & ~TOPIC_MASK) == TOPIC) {
                if (m->predicted) {
                    expire(e, e->comm[i], m);
                } else {
                    judge(e, e->comm[i], m);
                }
            }
        }
    }
}

/* One of the numbers that were reported is zero. */
static bool has_none(const struct comparison *m)
{
    bool none = false;
    for (uint32_t r = 0; r < m->members && !none; r++) {
        none = m->by[r].have != 0 && m->by[r].value[0] == 0;
    }
    return none;
}

/* True: different numbers were reported for this communicator and step. They are the reason for the mismatch that has
 * been found now, and that has been said. none: only where one of them is zero. */
static bool came_true(struct roll_engine *e, struct comm *c, uint32_t step, bool none)
{
    const struct compare_comm *compared = compare_of_comm(c);
    for (struct comparison *m = compared ? compared->first : NULL; m; m = m->next) {
        if ((m->topic & ~TOPIC_MASK) == TOPIC && m->differ && m->step == step && (!none || has_none(m))) {
            if (!m->told) { /* the two verdicts are the same in whatever order the records come */
                m->told = true;
                tell(e, c, m, ROLL_PREDICTED);
            }
            m->predicted = false; /* the prediction has come true */
            tell(e, c, m, ROLL_PROVEN);
            comm_explained(e, c);
            return true;
        }
    }
    return false;
}

static bool uniform_disagree(struct roll_engine *e, const struct finding *f)
{
    const struct entry *entry = f->minor_source ? source_entry(f->minor_source, f->minor_ticket) : NULL;
    const struct entry *other = f->major_source ? source_entry(f->major_source, f->major_ticket) : NULL;
    bool sizes = entry && other && entry->rec.op == other->rec.op && entry->rec.count != other->rec.count;
    return sizes && f->kind != ALIGN_GROUP && came_true(e, f->comm, entry->rec.step, false);
}

static bool uniform_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    const struct node *n = p2p_node(p, index);
    const struct member *from = &p->comm->member[p->end[0]];
    const struct entry *entry = from->source != NO_SOURCE ? source_entry(e->source[from->source], n->ticket[0]) : NULL;
    return entry && came_true(e, p->comm, entry->rec.step, false);
}

/* Where one of the numbers is zero, no call differs in bytes: the rank without tokens makes no calls. A rank that is
 * merely quiet while others wait for it is that rank at most; else its silence has nothing to do with the numbers. */
static bool uniform_block(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    bool elsewhere =
        b->kind == BLOCK_DEAD || b->kind == BLOCK_STOPPED || b->kind == BLOCK_FINISHED || b->kind == BLOCK_KNOWN;
    bool quiet = b->kind == BLOCK_BUSY || b->kind == BLOCK_STUCK || b->kind == BLOCK_UNHEARD ||
                 (b->kind == BLOCK_CYCLE && !b->hard);
    return b->comm && waits && !elsewhere && came_true(e, b->comm, waits->rec.step, quiet);
}

const struct detector detect_moe_uniform = {.name = "moe_uniform",
                                            ENGINE_STATE(moe_uniform),
                                            .record = uniform_record,
                                            .disagree = uniform_disagree,
                                            .pair = uniform_pair,
                                            .block = uniform_block,
                                            .tick = uniform_tick};
