/*
 * nodes.c: see nodes.h. Memory is short nowhere here: what cannot be had ends the simulator.
 */
#include "tests/simulation/nodes.h"

#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/sum.h"
#include "tests/simulation/execute.h"

#include <stdlib.h>
#include <string.h>

#define INSIDE_NS     (1 * S_)
#define STAND_NS      (250 * MS_)
#define DEFS_MAX      4096u
#define RECORDS_MAX   65536u
#define WIDENED       3u /* so often others are found to be concerned; then everybody is */
#define GATHER_NS     (300 * MS_)
#define FRONT_NS      (200 * MS_)
#define NARROW_NS     (3 * S_)
#define SPANS         16u      /* hints of which a part of the window is asked for */
#define NARROW_AROUND 16u      /* the calls before and behind those that a narrow engine is about */
#define STOOD_NS      (2 * S_) /* so long after an engine has said nothing of some, all are looked at */

struct rank_node {
    struct roll_source_info info;
    char host[16];
    roll_fold_t *fold;
    struct roll_def *def;
    uint32_t defs;
    struct roll_record *rec; /* by ticket; state EMPTY: lost */
    uint32_t recs;
    uint64_t lost_first, lost_count;
    enum roll_proc_state proc;
    int32_t status;
    bool told_process, told_sight;
    bool failed, hinted; /* it has ended badly, or has hinted at something itself */
    bool asked;          /* its records go to the engine */
    uint32_t number;     /* of a narrow engine: how many records of it have gone there, */
    uint32_t *number_of; /* and by ticket the number under which that was, plus 1; 0: it was not */
    struct roll_engine_sight sight;
    uint32_t source;
};

struct nodes {
    struct nodes_how how;
    struct rank_node rank[RANKS_MAX];
    roll_sum_t *node[RANKS_MAX], *relay[RANKS_MAX], *root;
    uint64_t next_ns[RANKS_MAX]; /* when a node tells next */
    uint32_t nodes, relays, hints;
    bool failed; /* a process has ended, and not in good order */
    struct rng rng;
    roll_engine_t *e;
    struct roll_digest digest, up, came, wanted; /* wanted: hints that name a place */
    struct roll_digest stood;                    /* hints that somebody stands */
    struct roll_digest named;                    /* a hint of each communicator that is hinted at */
    bool said, told;                             /* the engine has said something, and of somebody, or for certain */
    bool everybody;                              /* all are looked at from the next engine on */
    bool wider;                                  /* others are concerned than the engine has seen */
    bool narrow;                                 /* the engine sees the calls on the communicators of `named` alone */
    bool stalls, stalls_there;                   /* meanwhile it is hinted at that somebody stands, and there */
    uint64_t front;                              /* how far members had come there when it was opened, */
    uint64_t stall_front, stall_ns;              /* and when somebody stood there, or later; since then no further */
    uint64_t since_ns;                           /* when something was said then, else when it was opened */
    bool others;       /* what is hinted at is not only that calls differ, or somebody stands */
    bool broad, hurry; /* no engine does from here on; this one is to be replaced at once */
    uint32_t narrows;  /* engines that did */
    uint64_t opened_ns, now;
    uint32_t from[SPANS];      /* of the first of `wanted`, where its calls are asked for from */
    size_t asked;              /* a narrow engine sees the calls around the first so many of `wanted` */
    uint64_t begin[RANKS_MAX]; /* from which ticket on the engine was fed */
    uint32_t opened;           /* how often an engine was opened */
};

static void *need(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

struct nodes *nodes_new(const struct nodes_how *how)
{
    struct nodes *n = need(calloc(1, sizeof(*n)));
    n->how = *how;
    n->rng.state = how->seed;
    n->nodes = (how->ranks + how->per_node - 1) / how->per_node;
    n->relays = (n->nodes + 1) / 2;
    struct roll_sum_config config = {.stand_ns = STAND_NS};
    for (uint32_t i = 0; i < n->nodes; i++) {
        n->node[i] = need(roll_sum_new(&config));
        n->relay[i] = need(roll_sum_new(&config));
    }
    config.is_root = true;
    n->root = need(roll_sum_new(&config));
    for (uint32_t r = 0; r < how->ranks; r++) {
        n->rank[r].fold = need(roll_fold_new(INSIDE_NS));
        n->rank[r].def = need(malloc(DEFS_MAX * sizeof(struct roll_def)));
        n->rank[r].rec = need(calloc(RECORDS_MAX, sizeof(struct roll_record)));
        n->rank[r].number_of = need(calloc(RECORDS_MAX, sizeof(uint32_t)));
    }
    return n;
}

void nodes_destroy(struct nodes **pointer)
{
    struct nodes *n = *pointer;
    if (!n) {
        return;
    }
    for (uint32_t i = 0; i < n->nodes; i++) {
        roll_sum_destroy(&n->node[i]);
        roll_sum_destroy(&n->relay[i]);
    }
    roll_sum_destroy(&n->root);
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        roll_fold_destroy(&n->rank[r].fold);
        free(n->rank[r].def);
        free(n->rank[r].rec);
        free(n->rank[r].number_of);
    }
    roll_engine_destroy(&n->e);
    roll_digest_fini(&n->digest);
    roll_digest_fini(&n->up);
    roll_digest_fini(&n->came);
    roll_digest_fini(&n->wanted);
    roll_digest_fini(&n->named);
    roll_digest_fini(&n->stood);
    free(n);
    *pointer = NULL;
}

static bool is_named(const struct nodes *n, uint64_t key)
{
    for (size_t i = 0; i < n->named.hints; i++) {
        if (n->named.hint[i].key == key) {
            return true;
        }
    }
    return false;
}

/* Calls on this communicator are hinted at to differ. */
static bool differs_there(const struct nodes *n, uint64_t key)
{
    bool there = false;
    for (size_t i = 0; i < n->wanted.hints && !there; i++) {
        there = n->wanted.hint[i].key == key && n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
    }
    return there;
}

/* The calls on some communicators are not enough. */
static void broaden(struct nodes *n)
{
    n->broad = n->wider = n->hurry = true;
}

static bool asks_everybody(const struct nodes *n)
{
    return !n->how.scoped || n->opened > WIDENED + n->narrows || n->everybody;
}

static bool is_concerned(const struct nodes *n, const struct rank_node *k)
{
    bool concerned = asks_everybody(n) || k->failed || k->hinted;
    for (uint32_t i = 0; i < k->defs && !concerned; i++) {
        concerned = k->def[i].type == ROLL_DEF_COMM && is_named(n, k->def[i].comm.info.key);
    }
    return concerned;
}

void nodes_open(struct nodes *n, uint32_t rank, const struct roll_source_info *info)
{
    n->rank[rank].info = *info;
    snprintf(n->rank[rank].host, sizeof(n->rank[rank].host), "%s", info->host);
    n->rank[rank].info.host = n->rank[rank].host;
}

void nodes_define(struct nodes *n, uint32_t rank, const struct roll_def *def)
{
    struct rank_node *k = &n->rank[rank];
    if (k->defs < DEFS_MAX) {
        k->def[k->defs++] = *def;
    }
    if (def->type == ROLL_DEF_COMM) {
        (void)roll_fold_comm(k->fold, def->id, &def->comm.info);
    }
    if (n->e && k->asked) {
        (void)roll_engine_define(n->e, k->source, def);
    }
    /* A node that is late comes in when its ranks turn out to be members. */
    n->wider = n->wider || (n->e && !k->asked && is_concerned(n, k));
}

/* The first call of the window that may differ, as root_case_ask.c says it. */
static uint32_t hinted_from(const struct nodes *n, const struct roll_digest_hint *h)
{
    struct roll_sum_place place;
    bool known = roll_sum_place(n->root, h->key, &place) && place.differs_at != 0;
    return known && roll_digest_window_of(place.differs_at) == h->seq ? roll_digest_first(place.differs_at) : h->seq;
}

/* Which calls on a communicator a narrow engine sees: from *first on, before *high (root_case_ask.c, agent_narrow.c).
 */
static bool range_of(const struct nodes *n, uint64_t key, uint32_t *first, uint32_t *high)
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

/* The communicator of this record, by its key; 0: it is not known. */
static uint64_t key_of(const struct rank_node *k, const struct roll_record *rec)
{
    uint64_t key = 0;
    for (uint32_t i = 0; i < k->defs && key == 0; i++) {
        bool is = k->def[i].type == ROLL_DEF_COMM && k->def[i].id == rec->comm;
        key = is ? k->def[i].comm.info.key : 0;
    }
    return key;
}

/* The call is on a communicator whose calls differ, around these, and no message. */
static bool is_kept(const struct nodes *n, const struct rank_node *k, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    uint32_t first, high;
    if ((class != ROLL_CLASS_COLL && class != ROLL_CLASS_COMM) || !range_of(n, key_of(k, rec), &first, &high)) {
        return false;
    }
    return class != ROLL_CLASS_COLL || rec->count == 0 || (rec->seq >= first && rec->seq < high);
}

/* A wrong call is hinted at that a narrow engine does not see. */
static bool is_beyond(const struct nodes *n, const struct roll_digest_hint *h)
{
    uint32_t first, high;
    bool seen = range_of(n, h->key, &first, &high) && h->seq + ROLL_DIGEST_WINDOW <= high;
    return n->narrow && h->why == ROLL_HINT_DIFFERS && !(seen && hinted_from(n, h) >= first);
}

/* Feeds a record to the engine, to a narrow one under a number of its own, as an agent numbers them (agent_narrow.c).
 */
static void feed_one(struct nodes *n, struct rank_node *k, struct roll_record rec)
{
    uint64_t ticket = roll_seal_ticket(rec.seal);
    if (n->narrow) {
        if (ticket >= RECORDS_MAX || !is_kept(n, k, &rec)) {
            return;
        }
        if (k->number_of[ticket] == 0) {
            k->number_of[ticket] = ++k->number;
        }
        rec.seal = roll_seal(k->number_of[ticket] - 1, roll_seal_state(rec.seal));
    }
    (void)roll_engine_feed(n->e, k->source, &rec, 1);
}

/* A narrow engine is told of no loss but that one of the calls that it would see may be among those that are gone. */
static void lose(struct nodes *n, struct rank_node *k)
{
    (void)roll_engine_lost(n->e, k->source, n->narrow ? k->number++ : k->lost_first, n->narrow ? 1 : k->lost_count);
}

void nodes_feed(struct nodes *n, uint32_t rank, const struct roll_record *recs, size_t count)
{
    struct rank_node *k = &n->rank[rank];
    for (size_t i = 0; i < count; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        if (ticket < RECORDS_MAX) {
            k->rec[ticket] = recs[i];
            k->recs = ticket + 1 > k->recs ? (uint32_t)ticket + 1 : k->recs;
        }
        (void)roll_fold_record(k->fold, &recs[i], recs[i].enter_ns);
    }
    for (size_t i = 0; n->e && k->asked && n->narrow && i < count; i++) {
        feed_one(n, k, recs[i]);
    }
    if (n->e && k->asked && !n->narrow) {
        (void)roll_engine_feed(n->e, k->source, recs, count);
    }
}

void nodes_lost(struct nodes *n, uint32_t rank, uint64_t first, uint64_t count)
{
    struct rank_node *k = &n->rank[rank];
    k->lost_first = first;
    k->lost_count = count;
    roll_fold_lost(k->fold);
    if (n->e && k->asked) {
        lose(n, k);
    }
}

void nodes_process(struct nodes *n, uint32_t rank, enum roll_proc_state state, int32_t status)
{
    struct rank_node *k = &n->rank[rank];
    k->proc = state;
    k->status = status;
    k->told_process = true;
    k->failed = state == ROLL_PROC_DEAD || state == ROLL_PROC_STOPPED || (state == ROLL_PROC_FINISHED && status != 0);
    n->failed = n->failed || (k->failed && state != ROLL_PROC_STOPPED);
    n->wider = n->wider || (k->failed && !k->asked);
    if (k->failed && n->narrow) {
        broaden(n);
    }
    if (n->e && k->asked && !n->narrow) {
        (void)roll_engine_process(n->e, k->source, state, status);
    }
}

void nodes_sight(struct nodes *n, uint32_t rank, const struct roll_engine_sight *sight)
{
    struct rank_node *k = &n->rank[rank];
    k->sight = *sight;
    k->told_sight = true;
    struct roll_engine_sight aside = {.heard = false, .aside = true, .starved = sight->starved};
    if (n->e) {
        (void)roll_engine_sight(n->e, k->source, k->asked && !n->narrow ? sight : &aside);
    }
}

roll_engine_t *nodes_engine(struct nodes *n)
{
    return n->e;
}

uint32_t nodes_opened(const struct nodes *n)
{
    return n->opened;
}

uint32_t nodes_hints(const struct nodes *n)
{
    return n->hints;
}

/* the engine */

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct rank_node *k = from;
    *out = k->rec[ticket];
    return roll_seal_state(out->seal) != ROLL_STATE_EMPTY;
}

static void place(struct nodes *n, struct rank_node *k, const struct roll_excerpt_records *records, uint64_t begin)
{
    struct roll_fold_place *list;
    size_t places;
    if (roll_excerpt_places(records, k->fold, begin, &list, &places) != 0) {
        return;
    }
    for (size_t i = 0; i < places; i++) {
        struct roll_record at = {.comm = list[i].comm};
        uint32_t first = 0, high;
        if (n->narrow && (list[i].op != ROLL_OP_NONE || !range_of(n, key_of(k, &at), &first, &high))) {
            continue;
        }
        list[i].next = list[i].next > first || !n->narrow ? list[i].next : first;
        if (list[i].op != ROLL_OP_NONE) {
            (void)roll_engine_place_made(n->e, k->source, list[i].comm, (enum roll_op)list[i].op, list[i].peer,
                                         list[i].next, list[i].sure ? list[i].made : UINT32_MAX);
        } else if (begin != 0 || first > 0) {
            (void)roll_engine_place(n->e, k->source, list[i].comm, list[i].next, list[i].sure);
            (void)roll_engine_place_splits(n->e, k->source, list[i].comm, list[i].made);
        }
    }
    free(list);
}

/* All members of the communicator are below this level. */
static bool knows_all(const roll_sum_t *sum, uint64_t key, struct roll_sum_place *out)
{
    return roll_sum_place(sum, key, out) && out->members == out->size;
}

static uint64_t begin_of(struct nodes *n, struct rank_node *k, const struct roll_excerpt_records *records)
{
    struct roll_excerpt_want want[COMMS_MAX];
    size_t wants = 0;
    for (uint32_t i = 0; i < k->defs && wants < COMMS_MAX; i++) {
        struct roll_sum_place place;
        if (k->def[i].type != ROLL_DEF_COMM) {
            continue;
        }
        uint64_t key = k->def[i].comm.info.key;
        uint32_t node = (uint32_t)(k - n->rank) / n->how.per_node;
        bool known = knows_all(n->node[node], key, &place) || knows_all(n->relay[node / 2], key, &place) ||
                     knows_all(n->root, key, &place);
        struct roll_excerpt_want *w = &want[wants++];
        *w = (struct roll_excerpt_want){.comm = (uint16_t)k->def[i].id, .low = known ? place.low : 0};
        for (size_t h = 0; h < n->wanted.hints; h++) {
            const struct roll_digest_hint *hint = &n->wanted.hint[h];
            if (hint->key == key && hint->why == ROLL_HINT_DIFFERS && hint->seq < w->low) {
                w->low = hint->seq;
            } else if (hint->key == key && hint->why == ROLL_HINT_MESSAGES) {
                w->classes |= hint->seq;
            }
        }
    }
    uint64_t begin = roll_excerpt_begin(records, k->fold, want, wants, n->how.history);
    uint64_t former = n->begin[k - n->rank];
    return n->opened > 1 && former < begin ? former : begin;
}

static struct roll_excerpt_records records_of(struct rank_node *k)
{
    return (struct roll_excerpt_records){.from = k, .record = record_of, .next = k->recs};
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
    bool known = v->comm_key == 0 || is_named(n, v->comm_key) || roll_engine_has_all(n->e, v->comm_key), out = false;
    if (n->narrow && v->code != ROLL_VERDICT_DATA_INCOMPLETE && !is_seen_narrowly(v, retires)) {
        if (v->certainty != ROLL_NOTE) {
            broaden(n);
        }
        return false;
    }
    if (retires || (v->certainty == ROLL_NOTE && v->code != ROLL_VERDICT_AGENT_SILENT)) {
        return true;
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        out = out || (!n->rank[r].asked && roll_rankset_has(&v->culprits, r));
    }
    if (!known && !asks_everybody(n)) {
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

/* The hints of this moment ask for records that the engine has not been given. */
static bool lacks(struct nodes *n)
{
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct roll_excerpt_records records = records_of(&n->rank[r]);
        if (begin_of(n, &n->rank[r], &records) < n->begin[r]) {
            return true;
        }
    }
    return false;
}

/* These two as the root's (root_case_ask.c). */
static uint64_t front_of(const struct nodes *n)
{
    uint64_t front = 0;
    for (size_t i = 0; i < n->wanted.hints; i++) {
        struct roll_sum_place place;
        bool differs = n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
        front += differs && roll_sum_place(n->root, n->wanted.hint[i].key, &place) ? place.high : 0;
    }
    return front;
}

static bool is_about_calls(const struct nodes *n)
{
    bool calls = false, others = false;
    for (size_t i = 0; i < n->wanted.hints; i++) {
        calls = calls || n->wanted.hint[i].why == ROLL_HINT_DIFFERS;
        others = others || n->wanted.hint[i].why != ROLL_HINT_DIFFERS;
    }
    for (size_t i = 0; i < n->stood.hints; i++) {
        others = others || differs_there(n, n->stood.hint[i].key);
    }
    return calls && !others && !n->others;
}

/* Everybody's newest records go to an engine, and from here on all that comes. */
static void open_engine(struct nodes *n, uint64_t now)
{
    struct roll_engine_config config = {.memory = n->how.room};
    roll_engine_destroy(&n->e);
    n->opened++;
    n->asked = n->wanted.hints;
    n->narrow = n->how.narrow && !n->broad && !n->failed && !asks_everybody(n) && is_about_calls(n);
    n->stalls = n->narrow && n->stood.hints > 0;
    n->stalls_there = n->hurry = false;
    n->narrows += n->narrow;
    for (size_t i = 0; i < n->asked && i < SPANS; i++) {
        n->from[i] = hinted_from(n, &n->wanted.hint[i]);
    }
    n->front = front_of(n);
    n->since_ns = now;
    n->broad = n->broad || !n->narrow;
    n->wider = n->said = n->told = false;
    n->opened_ns = now;
    n->e = need(roll_engine_new(&config));
    (void)roll_engine_tick(n->e, now);
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        struct roll_engine_sight unheard = {.heard = false, .aside = true, .starved = k->sight.starved};
        k->asked = is_concerned(n, k);
        k->number = 0;
        memset(k->number_of, 0, RECORDS_MAX * sizeof(*k->number_of));
        (void)roll_engine_open(n->e, &k->info, &k->source);
        if (!k->asked || n->narrow) {
            (void)roll_engine_sight(n->e, k->source, &unheard);
        }
        if (!k->asked) {
            continue;
        }
        if (k->told_sight && !n->narrow) {
            (void)roll_engine_sight(n->e, k->source, &k->sight);
        }
        for (uint32_t i = 0; i < k->defs; i++) {
            (void)roll_engine_define(n->e, k->source, &k->def[i]);
        }
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        struct roll_excerpt_records records = records_of(k);
        n->begin[r] = begin_of(n, k, &records);
        if (k->asked) {
            place(n, k, &records, n->begin[r]);
        }
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        for (uint64_t t = n->begin[r]; k->asked && t < k->recs; t++) {
            if (roll_seal_state(k->rec[t].seal) != ROLL_STATE_EMPTY) {
                feed_one(n, k, k->rec[t]);
            } else if (t == k->lost_first) {
                lose(n, k);
            }
        }
        if (k->asked && k->lost_count != 0 && k->lost_first >= k->recs) { /* nothing has come behind the loss */
            lose(n, k);
        }
        if (k->asked && k->told_process && !n->narrow) {
            (void)roll_engine_process(n->e, k->source, k->proc, k->status);
        }
    }
}

/* digests */

/* A digest goes up, in payloads so small that most need several. */
static void tell(struct nodes *n, roll_sum_t *to, uint32_t child, const struct roll_digest *d, uint64_t now)
{
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[256];
    for (size_t used; (used = roll_digest_encode(d, &cursor, bytes, sizeof(bytes))) != 0;) {
        roll_digest_clear(&n->came);
        if (roll_digest_decode(bytes, used, &n->came) != 0 || roll_sum_take(to, child, &n->came, now) != 0) {
            abort();
        }
    }
}

static void tell_node(struct nodes *n, uint32_t node, uint64_t now)
{
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        roll_digest_clear(&n->digest);
        roll_fold_cut(n->rank[r].fold, now, &n->digest);
        n->rank[r].hinted = n->rank[r].hinted || n->digest.hints > 0;
        n->wider = n->wider || (n->e && n->digest.hints > 0 && !n->rank[r].asked);
        tell(n, n->how.levels == 1 ? n->root : n->node[node], r, &n->digest, now);
    }
    if (n->how.levels > 1) {
        roll_digest_clear(&n->up);
        roll_sum_cut(n->node[node], now, &n->up);
        tell(n, n->how.levels == 2 ? n->root : n->relay[node / 2], node, &n->up, now);
    }
}

/* The levels above a node tell everything anew. */
static void tell_again(struct nodes *n, uint32_t node)
{
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        roll_fold_again(n->rank[r].fold);
    }
    roll_sum_again(n->node[node]);
}

static void renew(roll_sum_t **sum, bool is_root)
{
    roll_sum_destroy(sum);
    *sum = need(roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = is_root}));
}

/* An agent is started anew: it has what the ring still holds, which may not be everything. */
static void renew_agent(struct nodes *n, uint32_t node, uint64_t now)
{
    renew(&n->node[node], false);
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        roll_fold_destroy(&k->fold);
        k->fold = need(roll_fold_new(INSIDE_NS));
        for (uint32_t i = 0; i < k->defs; i++) {
            if (k->def[i].type == ROLL_DEF_COMM) {
                (void)roll_fold_comm(k->fold, k->def[i].id, &k->def[i].comm.info);
            }
        }
        for (uint32_t t = k->recs > 100 ? k->recs - 100 : 0; t < k->recs; t++) {
            (void)roll_fold_record(k->fold, &k->rec[t], k->rec[t].enter_ns < now ? k->rec[t].enter_ns : now);
        }
    }
}

/* Something dies, and comes back at once. */
static void fault(struct nodes *n, uint64_t now)
{
    uint32_t node = rng_below(&n->rng, n->nodes);
    switch (rng_below(&n->rng, 4)) {
    case 0: /* a digest is lost with its link */
        for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
            roll_digest_clear(&n->digest);
            roll_fold_cut(n->rank[r].fold, now, &n->digest);
        }
        tell_again(n, node);
        break;
    case 1:
        renew_agent(n, node, now);
        break;
    case 2:
        renew(&n->relay[node / 2], false);
        tell_again(n, node / 2 * 2);
        if (node / 2 * 2 + 1 < n->nodes) {
            tell_again(n, node / 2 * 2 + 1);
        }
        break;
    default:
        renew(&n->root, true);
        for (uint32_t i = 0; i < n->nodes; i++) {
            tell_again(n, i);
            roll_sum_again(n->relay[i / 2]);
        }
        break;
    }
}

/* Somebody still stands on a communicator whose calls differ. */
static bool stands_there(const struct nodes *n)
{
    bool stands = false;
    for (size_t i = 0; i < n->stood.hints && !stands; i++) {
        const struct roll_digest_hint *h = &n->stood.hint[i];
        struct roll_sum_place place;
        bool known = h->why == ROLL_HINT_STANDS && roll_sum_place(n->root, h->key, &place);
        bool still = !known || (place.low == h->seq && (place.low < place.high || place.members < place.size));
        stands = still && differs_there(n, h->key);
    }
    return stands;
}

/* As root_digest.c says it. */
static bool hangs_there(struct nodes *n, uint64_t now)
{
    uint64_t front = front_of(n);
    if (n->stalls_there && front > n->stall_front) {
        n->stall_front = front;
        n->stall_ns = now;
    }
    return (now > n->opened_ns + FRONT_NS && front <= n->front) ||
           (n->stalls_there && now > n->stall_ns + FRONT_NS && stands_there(n));
}

void nodes_tick(struct nodes *n, uint64_t now)
{
    n->now = now;
    if (n->how.faults && rng_chance(&n->rng, 10)) {
        fault(n, now);
    }
    for (uint32_t i = 0; i < n->nodes; i++) {
        if (now >= n->next_ns[i]) {
            tell_node(n, i, now);
            n->next_ns[i] = now + n->how.period_ns / 2 + rng_below(&n->rng, (uint32_t)n->how.period_ns);
        }
    }
    for (uint32_t i = 0; i < n->relays && n->how.levels == 3; i++) {
        roll_digest_clear(&n->up);
        roll_sum_cut(n->relay[i], now, &n->up);
        tell(n, n->root, i, &n->up, now);
    }
    roll_digest_clear(&n->up);
    roll_sum_cut(n->root, now, &n->up);
    size_t before = n->wanted.hints;
    for (size_t i = 0; i < n->up.hints; i++) {
        const struct roll_digest_hint *h = &n->up.hint[i];
        n->hints |= n->opened == 0 ? 1u << h->why : 0;
        bool stands = h->why == ROLL_HINT_STANDS || h->why == ROLL_HINT_QUIET || h->why == ROLL_HINT_INSIDE;
        if (n->narrow && h->why != ROLL_HINT_DIFFERS && !stands) {
            broaden(n);
        }
        if (stands) {
            roll_digest_add_hint(&n->stood, h->key, (enum roll_digest_why)h->why, h->seq);
        }
        n->others = n->others || (!stands && h->why != ROLL_HINT_DIFFERS);
        n->stalls = n->stalls || (n->narrow && stands);
        if (n->narrow && stands && !n->stalls_there && differs_there(n, h->key)) {
            n->stalls_there = true;
            n->stall_front = front_of(n);
            n->stall_ns = now;
        }
        n->wider = n->wider || (n->e && is_beyond(n, h));
        if (h->why == ROLL_HINT_DIFFERS || h->why == ROLL_HINT_MESSAGES) {
            roll_digest_add_hint(&n->wanted, h->key, (enum roll_digest_why)h->why, h->seq);
        }
        if (h->key != 0 && !is_named(n, h->key)) {
            roll_digest_add_hint(&n->named, h->key, (enum roll_digest_why)h->why, h->seq);
            n->wider = n->wider || !asks_everybody(n);
        }
    }
    bool late = now > n->since_ns + NARROW_NS, elsewhere = n->stalls && n->said && now > n->since_ns + S_;
    if (n->e && n->narrow && (elsewhere || (!n->told && hangs_there(n, now)) || (!n->said && late))) {
        broaden(n);
    }
    if (n->e && !n->narrow && !n->said && !asks_everybody(n) && now - n->opened_ns > STOOD_NS) {
        n->everybody = n->wider = true;
    }
    if (n->e && n->wider && (n->hurry || now - n->opened_ns > GATHER_NS)) {
        open_engine(n, now);
    } else if (n->e ? n->wanted.hints > before && lacks(n) : n->up.hints > 0 || n->failed) {
        open_engine(n, now);
    }
}
