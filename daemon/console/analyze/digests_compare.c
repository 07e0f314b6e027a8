/*
 * digests_compare.c: the digests of all nodes of a run, added up: where calls differ, or stand, and whether the
 * excerpts reach that place.
 *
 * A difference is no finding: only the engine says what is wrong, from records. Where the excerpts of the end have
 * them, it has said so already; where other sections have been fetched for that place, they go to an engine of their
 * own; and where neither is so, the place is told with the command that fetches its records. To take a difference of
 * hashes for a mismatch was rejected: hashes differ, too, where calls do that NCCL does not mind.
 */
#include "daemon/console/analyze/digests.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/console/console.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/sum.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAND_NS    UINT64_C(250000000)
#define LATER_NS    UINT64_C(10000000000)
#define HOSTS_NAMED 8u  /* that a line names */
#define TOLD_MOST   64u /* places of a run; further ones follow from these, or nobody reads them */

/* What is known of one communicator, over all sections of the end. */
struct known {
    uint64_t key;
    uint32_t size;
    uint32_t first, sections; /* in `member`: sections that have members of it */
    uint32_t from;            /* the excerpts have all collectives from this one on */
    bool whole;               /* of all of them */
};
struct member {
    const struct digest_section *section;
    struct roll_rdig_comm comm;
    uint32_t spans_at, next;
};
/* Something that has to be looked at. */
struct place {
    uint64_t key;
    uint32_t seq, last;
    bool stands, messages;
};
struct comparing {
    roll_digests_t *digests;
    const struct digest_run *run;
    struct known *known;
    size_t knowns, known_room;
    struct roll_map known_at;
    struct member *member; /* by communicator, in the order of sections, linked by `next` */
    size_t members, member_room;
    struct place *place;
    size_t places, place_room;
    roll_sum_t *sum;
};

/* what is known */

static int add_member(struct comparing *c, const struct digest_section *s, const struct roll_rdig_comm *comm,
                      uint32_t spans_at)
{
    uint32_t at = roll_map_get(&c->known_at, comm->key);
    int err = ROLL_GROW(c->member, c->member_room, c->members + 1);
    if (!err && at == ROLL_MAP_NONE) {
        err = ROLL_GROW(c->known, c->known_room, c->knowns + 1);
        err = err ? err : roll_map_add(&c->known_at, comm->key, (uint32_t)c->knowns);
        at = (uint32_t)c->knowns;
        if (!err) {
            c->known[c->knowns++] =
                (struct known){.key = comm->key, .size = comm->size, .first = UINT32_MAX, .whole = true};
        }
    }
    if (err) {
        return err;
    }
    struct known *k = &c->known[at];
    c->member[c->members] = (struct member){s, *comm, spans_at, k->first};
    k->first = (uint32_t)c->members++;
    k->sections++;
    k->from = comm->from > k->from ? comm->from : k->from;
    k->whole = k->whole && (s->view.is.flags & ROLL_RDIG_WHOLE) != 0;
    return 0;
}

static struct known *known_of(const struct comparing *c, uint64_t key)
{
    uint32_t at = roll_map_get(&c->known_at, key);
    return at == ROLL_MAP_NONE ? NULL : &c->known[at];
}

/* Takes the digest of one section. One that says what cannot be is told, and used no further. */
static int take_digest(struct comparing *c, const struct digest_section *s, uint32_t child)
{
    const uint8_t *at = s->view.digest;
    size_t left = s->view.is.digest_bytes;
    struct roll_digest d = {0};
    int err = 0;
    while (left > 0 && !err) {
        uint32_t bytes = 0;
        err = left < sizeof(bytes) ? ROLL_E_SHORT : 0;
        if (!err) {
            memcpy(&bytes, at, sizeof(bytes));
            err = bytes > left - sizeof(bytes) ? ROLL_E_SHORT : 0;
        }
        roll_digest_clear(&d);
        err = err ? err : roll_digest_decode(at + sizeof(bytes), bytes, &d);
        err = err ? err : roll_sum_take(c->sum, child, &d, 1);
        if (!err) {
            at += sizeof(bytes) + bytes;
            left -= sizeof(bytes) + bytes;
        }
    }
    roll_digest_fini(&d);
    if (err && err != ROLL_E_NOMEM) {
        roll_say("%s: the digest of %s says what cannot be (%s): what it says is not compared", s->path,
                 s->view.is.host, roll_strerror(err));
        *c->digests->cut = true;
        return 0;
    }
    return err;
}

static int take_section(struct comparing *c, uint32_t i)
{
    const struct digest_section *s = c->run->section[i];
    uint32_t spans = 0;
    int err = 0;
    for (uint32_t k = 0; k < s->view.is.comms && !err; k++) {
        struct roll_rdig_comm comm;
        roll_rdig_comm(&s->view, k, &comm);
        err = add_member(c, s, &comm, spans);
        spans += comm.spans;
    }
    return err ? err : take_digest(c, s, i);
}

/* places */

/* Of what differs only the first place of a communicator counts: what comes behind it follows from it. */
static int add_place(struct comparing *c, const struct place *p)
{
    for (size_t i = 0; i < c->places; i++) {
        struct place *have = &c->place[i];
        if (have->key == p->key && have->messages == p->messages) {
            bool finer = p->seq >= have->seq && p->last <= have->last;
            if (finer || (p->seq < have->seq && p->last < have->last)) {
                *have = *p;
            }
            return 0;
        }
    }
    int err = c->places < TOLD_MOST ? ROLL_GROW(c->place, c->place_room, c->places + 1) : 0;
    if (!err && c->places < TOLD_MOST) {
        c->place[c->places++] = *p;
    }
    return err;
}

static struct place place_of(uint64_t key, const struct roll_span *where)
{
    uint64_t last = ((uint64_t)where->window + where->windows) * ROLL_DIGEST_WINDOW - 1;
    uint32_t seq = where->window * ROLL_DIGEST_WINDOW;
    return (struct place){
        .key = key, .seq = seq, .last = where->windows == 1 || last > UINT32_MAX ? seq : (uint32_t)last};
}

/* A list of spans, copied. */
struct list {
    struct roll_span *at;
    size_t n;
};

static int list_of(const struct digest_section *s, uint32_t first, uint32_t n, struct list *out)
{
    *out = (struct list){malloc((n + 1) * sizeof(*out->at)), n};
    if (!out->at) {
        return ROLL_E_NOMEM;
    }
    roll_rdig_spans(&s->view, first, n, out->at);
    out->n = roll_spans_are(out->at, n) ? n : 0; /* of a list that cannot be nothing is believed */
    return 0;
}

static uint64_t end_of(const struct list *l)
{
    return l->n == 0 ? 0 : (uint64_t)l->at[l->n - 1].window + l->at[l->n - 1].windows;
}

/* Compares a list with the longest one until now, and keeps the longer one of both. Takes `one`. */
static void compare(struct list *best, struct list one, struct roll_span *where, bool *differs)
{
    struct roll_span here;
    if (roll_spans_differ(best->at, best->n, one.at, one.n, &here) &&
        (!*differs || here.window < where->window || (here.window == where->window && here.windows < where->windows))) {
        *where = here;
        *differs = true;
    }
    bool longer = end_of(&one) > end_of(best);
    free(longer ? best->at : one.at);
    *best = longer ? one : *best;
}

/* Where windows differ that the levels have forgotten long ago. */
static int compare_spans(struct comparing *c, const struct known *k)
{
    struct list best = {0};
    struct roll_span where = {0};
    bool differs = false;
    int err = 0;
    for (uint32_t i = k->first; i != UINT32_MAX && !err; i = c->member[i].next) {
        struct list one;
        err = list_of(c->member[i].section, c->member[i].spans_at, c->member[i].comm.spans, &one);
        if (!err) {
            compare(&best, one, &where, &differs);
        }
    }
    free(best.at);
    if (!err && differs) {
        struct place p = place_of(k->key, &where);
        err = add_place(c, &p);
    }
    return err;
}

/* What was fetched of a range tells more exactly where in it something differs. */
static int compare_ranges(struct comparing *c)
{
    const struct digest_run *run = c->run;
    int err = 0;
    for (size_t i = run->ends, next; i < run->all && !err; i = next) {
        const struct roll_rdig_section *first = &run->section[i]->view.is;
        struct list best = {0};
        struct roll_span where = {0};
        bool differs = false;
        for (next = i; next < run->all && !err; next++) {
            const struct digest_section *s = run->section[next];
            if (s->view.is.kind != first->kind || s->view.is.key != first->key || s->view.is.seq != first->seq ||
                s->view.is.last != first->last) {
                break;
            }
            struct list one;
            err = list_of(s, 0, first->kind == ROLL_RDIG_RANGE ? s->view.is.spans : 0, &one);
            if (!err) {
                compare(&best, one, &where, &differs);
            }
        }
        free(best.at);
        if (!err && differs) {
            struct place p = place_of(first->key, &where);
            err = add_place(c, &p);
        }
        if (!err && first->kind == ROLL_RDIG_PLACE && known_of(c, first->key)) { /* a node has found it wanting, or it
                                                                                    was asked for */
            err = add_place(c, &(struct place){.key = first->key, .seq = first->seq, .last = first->last});
        }
    }
    return err;
}

static int take_hints(struct comparing *c, const struct roll_digest *up)
{
    int err = up->short_of_memory ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < up->hints && !err; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        struct place p = {.key = h->key, .seq = h->seq, .last = h->seq};
        p.stands = h->why == ROLL_HINT_STANDS;
        p.messages = h->why == ROLL_HINT_MESSAGES;
        if (p.messages) {
            p.seq = p.last = 0;
        }
        if (known_of(c, h->key) && (p.stands || p.messages || h->why == ROLL_HINT_DIFFERS)) {
            err = add_place(c, &p);
        }
    }
    return err;
}

/* what is to be done about a place */

static bool has_finding(const struct comparing *c, uint64_t key)
{
    for (size_t i = 0; i < c->digests->verdicts; i++) {
        const struct roll_verdict_copy *v = c->digests->verdict[i];
        if (strcmp(v->job, c->run->section[0]->view.is.job) == 0 && v->restart == c->run->section[0]->view.is.restart &&
            v->said.comm_key == key && roll_verdict_is_finding(&v->said)) {
            return true;
        }
    }
    return false;
}

/* The name of a communicator as verdicts have it. */
static void name_of(const struct comparing *c, uint64_t key, char *out, size_t size)
{
    struct roll_view_comm v;
    snprintf(out, size, "a communicator");
    for (uint32_t i = 0; roll_engine_comm(roll_feed_engine(c->run->feed), i, &v); i++) {
        if (v.key == key) {
            snprintf(out, size, "%s", v.name);
            return;
        }
    }
}

static bool same_node(const struct digest_section *a, const struct digest_section *b)
{
    return a->epoch == b->epoch && strcmp(a->view.is.host, b->view.is.host) == 0;
}

/* The section that has the records of a place of one node: what was fetched of it, or the end; NULL: none has. */
static const struct digest_section *section_with(const struct comparing *c, const struct member *m,
                                                 const struct place *p)
{
    const struct digest_run *run = c->run;
    for (size_t i = run->ends; i < run->all; i++) {
        const struct digest_section *s = run->section[i];
        if (s->view.is.kind != ROLL_RDIG_PLACE || s->view.is.key != p->key || s->view.is.seq != p->seq ||
            !same_node(s, m->section)) {
            continue;
        }
        for (uint32_t k = 0; k < s->view.is.comms; k++) {
            struct roll_rdig_comm comm;
            roll_rdig_comm(&s->view, k, &comm);
            if (comm.key == p->key && comm.from <= p->seq) {
                return s;
            }
        }
    }
    return m->comm.from <= p->seq ? m->section : NULL;
}

/* The verdicts of an engine that has seen one place: what it says of that communicator's calls there, and still says at
 * the end. */
static int keep_place(struct comparing *c, const struct place *p, struct roll_verdict_list *list)
{
    uint64_t number = 0;
    int err = 0;
    for (size_t i = 0; i < c->digests->verdicts; i++) {
        uint64_t n = c->digests->verdict[i]->said.number;
        number = n > number ? n : number;
    }
    for (size_t i = 0; i < list->used && !err; i++) {
        struct roll_verdict_copy *v = list->at[i];
        uint64_t seq = v->said.seq;
        if (v->said.comm_key != p->key || !roll_verdict_stands(v) || seq < p->seq ||
            seq >= (uint64_t)p->seq + ROLL_DIGEST_WINDOW) {
            continue;
        }
        list->at[i] = list->at[--list->used];
        i--;
        v->said.number = ++number;
        v->said.supersedes = v->said.confirms = v->said.withdraws = 0;
        c->digests->summary.findings++;
        err = roll_digests_keep(c->digests, v);
    }
    return err;
}

static int judge_place(struct comparing *c, const struct place *p, const struct digest_section *const *section,
                       size_t n)
{
    const struct roll_rdig_section *is = &section[0]->view.is;
    struct roll_verdict_list list = {.at = NULL};
    roll_feed_t *feed = roll_feed_new(c->digests->config, is->job, is->restart);
    int err = feed ? roll_digests_feed(c->digests, section, n, true, feed) : ROLL_E_NOMEM;
    err = err ? err : roll_feed_finish(feed);
    for (struct roll_verdict_copy *v; !err && (v = roll_feed_next(feed)) != NULL;) {
        err = roll_verdict_list_add(&list, v);
    }
    err = err ? err : keep_place(c, p, &list);
    roll_verdict_list_fini(&list);
    roll_feed_destroy(&feed);
    return err;
}

/* A line of words, each once and no more than a few. */
struct named {
    char text[512];
    size_t used, left_out;
};

static void name_one(struct named *n, json_t *all, const char *text)
{
    size_t i;
    json_t *one;
    json_array_foreach(all, i, one)
    {
        if (strcmp(json_string_value(one), text) == 0) {
            return;
        }
    }
    json_array_append_new(all, json_string(text));
    size_t room = sizeof(n->text) - n->used;
    int len = json_array_size(all) > HOSTS_NAMED
                  ? (int)room
                  : snprintf(n->text + n->used, room, "%s%s", n->used > 0 ? ", " : "", text);
    if (len < 0 || (size_t)len >= room) {
        n->text[n->used] = '\0';
        n->left_out++;
        return;
    }
    n->used += (size_t)len;
}

static void note_unreached(struct comparing *c, json_t *what)
{
    const struct roll_rdig_section *is = &c->run->section[0]->view.is;
    if (what) {
        json_object_set_new(what, "job", json_string(is->job));
        json_object_set_new(what, "restart", json_integer(is->restart));
        json_array_append_new(c->digests->unreached, what);
    }
    c->digests->summary.unreached++;
}

static bool same_path(const struct digest_section *a, const struct digest_section *b)
{
    return a->view.is.path_bytes == b->view.is.path_bytes &&
           memcmp(a->view.path, b->view.path, a->view.is.path_bytes) == 0;
}

/* What is to be run on nodes whose traces lie in one place: sections from number `first` on that have its path, and
 * were not told before. `told`: of each section; set. */
static void tell_command(struct comparing *c, const struct place *p, const char *at,
                         const struct digest_section *const *lacks, size_t n, size_t first, bool *told)
{
    char path[ROLL_RDIG_TEXT], command[ROLL_RDIG_TEXT + 160];
    struct named hosts = {.text = ""};
    json_t *all = json_array();
    for (size_t i = first; i < n; i++) {
        if (!told[i] && same_path(lacks[first], lacks[i])) {
            name_one(&hosts, all, lacks[i]->view.is.host);
            told[i] = true;
        }
    }
    memcpy(path, lacks[first]->view.path, lacks[first]->view.is.path_bytes);
    path[lacks[first]->view.is.path_bytes] = '\0';
    snprintf(command, sizeof(command), "rollcall digest --at %s --output FILE %s", at, path);
    roll_say("on %s%s: %s; then analyze all files together", hosts.text, hosts.left_out > 0 ? " and further nodes" : "",
             command);
    char key[24];
    snprintf(key, sizeof(key), "0x%016" PRIx64, p->key);
    note_unreached(c, json_pack("{s:o, s:s, s:s, s:I, s:I}", "hosts", all, "command", command, "comm_key", key, "seq",
                                (json_int_t)p->seq, "last", (json_int_t)p->last));
}

/* Tells a place of which these sections have no records. */
static int tell_place(struct comparing *c, const struct place *p, const struct digest_section *const *lacks, size_t n)
{
    char name[160], at[64], where[128];
    bool *told = calloc(n + 1, sizeof(*told));
    if (!told) {
        return ROLL_E_NOMEM;
    }
    name_of(c, p->key, name, sizeof(name));
    if (p->last != p->seq) {
        snprintf(at, sizeof(at), "%" PRIx64 ":%u-%u", p->key, p->seq, p->last);
        snprintf(where, sizeof(where), "calls of some ranks differ, somewhere in collectives %u to %u,", p->seq,
                 p->last);
    } else {
        snprintf(at, sizeof(at), "%" PRIx64 ":%u", p->key, p->seq);
        snprintf(where, sizeof(where),
                 p->stands ? "some ranks do not follow the others from collective %u on"
                           : "calls of some ranks differ, among the 64 collectives from %u on,",
                 p->seq);
    }
    roll_say("job %s.%u: %s on %s; the digests have no records of them, so what is wrong there is not known",
             c->run->section[0]->view.is.job, c->run->section[0]->view.is.restart, where, name);
    for (size_t i = 0; i < n; i++) {
        if (!told[i]) {
            tell_command(c, p, at, lacks, n, i, told);
        }
    }
    free(told);
    return 0;
}

static bool all_finished(const struct comparing *c)
{
    for (size_t i = 0; i < c->run->ends; i++) {
        const struct roll_rdig_view *v = &c->run->section[i]->view;
        for (uint32_t k = 0; k < v->is.rings; k++) {
            struct roll_rdig_ring r;
            roll_rdig_ring(v, k, &r);
            if (r.proc_state != ROLL_PROC_FINISHED) {
                return false;
            }
        }
    }
    return true;
}

/* Messages that do not match up are nowhere in particular: only all of their records can tell. */
static void tell_messages(struct comparing *c, const struct place *p, const struct known *k)
{
    char name[160];
    if (k->whole || has_finding(c, p->key) || !all_finished(c)) {
        return; /* the engine has seen them; or they may be on their way */
    }
    name_of(c, p->key, name, sizeof(name));
    roll_say(
        "job %s: messages on %s do not match up (one was not received, or with other bytes), and not in the newest "
        "records: `rollcall analyze` of the nodes' traces tells which",
        c->run->section[0]->view.is.job, name);
    note_unreached(c, json_pack("{s:o, s:b}", "hosts", json_array(), "messages", true));
}

static int look_at(struct comparing *c, const struct place *p)
{
    const struct known *k = known_of(c, p->key);
    if (p->messages) {
        tell_messages(c, p, k);
        return 0;
    }
    if (p->last == p->seq && k->from <= p->seq) {
        return 0; /* the engine has seen it */
    }
    const struct digest_section **have = calloc(k->sections + 1, sizeof(*have)),
                                **lacks = calloc(k->sections + 1, sizeof(*lacks));
    size_t haves = 0, n = 0;
    int err = have && lacks ? 0 : ROLL_E_NOMEM;
    for (uint32_t i = k->first; i != UINT32_MAX && !err; i = c->member[i].next) {
        const struct digest_section *s = p->last == p->seq ? section_with(c, &c->member[i], p) : NULL;
        if (s) {
            have[haves++] = s;
        } else {
            lacks[n++] = c->member[i].section;
        }
    }
    if (!err && n > 0) {
        err = tell_place(c, p, lacks, n);
    } else if (!err) {
        err = judge_place(c, p, have, haves);
    }
    free(have);
    free(lacks);
    return err;
}

/* what no digest compares */

static const struct {
    uint32_t why;
    const char *words;
} not_folded[] = {
    {ROLL_HINT_REFUSED, "calls that NCCL refused"},
    {ROLL_HINT_THREADS, "calls of two threads at once on one communicator"},
    {ROLL_HINT_LIFE, "communicators that were aborted, or used behind their end"},
    {ROLL_HINT_OTHER, "calls that are not compared by digests (moe_core, one-sided)"},
    {ROLL_HINT_MESSAGES, "messages that do not match up"},
};

static void tell_not_folded(struct comparing *c)
{
    for (size_t w = 0; w < sizeof(not_folded) / sizeof(not_folded[0]); w++) {
        struct named hosts = {.text = ""};
        json_t *all = json_array();
        uint64_t ranks = 0;
        for (size_t i = 0; i < c->run->ends; i++) {
            const struct roll_rdig_view *v = &c->run->section[i]->view;
            uint64_t before = ranks;
            for (uint32_t k = 0; k < v->is.rings; k++) {
                struct roll_rdig_ring r;
                roll_rdig_ring(v, k, &r);
                ranks += r.hinted >> not_folded[w].why & 1;
            }
            if (ranks > before) {
                name_one(&hosts, all, v->is.host);
            }
        }
        if (ranks == 0) {
            json_decref(all);
            continue;
        }
        roll_say("job %s: %s of %" PRIu64
                 " rank%s lie before the records that the digests have: `rollcall analyze` of the "
                 "traces on %s%s looks at them",
                 c->run->section[0]->view.is.job, not_folded[w].words, ranks, ranks == 1 ? "" : "s", hosts.text,
                 hosts.left_out > 0 ? " and further nodes" : "");
        note_unreached(c, json_pack("{s:o, s:s}", "hosts", all, "not_compared", not_folded[w].words));
    }
}

int roll_digests_compare(roll_digests_t *digests, const struct digest_run *run)
{
    struct comparing c = {.digests = digests, .run = run};
    struct roll_digest up = {0};
    c.sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = true});
    int err = c.sum ? 0 : ROLL_E_NOMEM;
    for (uint32_t i = 0; i < run->ends && !err; i++) {
        err = take_section(&c, i);
    }
    if (!err) {
        roll_sum_cut(c.sum, 1, &up);
        roll_sum_cut(c.sum, LATER_NS, &up); /* nobody moves any more: what stands now stands for good */
        err = take_hints(&c, &up);
    }
    for (size_t i = 0; i < c.knowns && !err; i++) {
        err = compare_spans(&c, &c.known[i]);
    }
    err = err ? err : compare_ranges(&c);
    for (size_t i = 0; i < c.places && !err; i++) {
        err = look_at(&c, &c.place[i]);
    }
    if (!err) {
        tell_not_folded(&c);
    }
    roll_sum_destroy(&c.sum);
    roll_digest_fini(&up);
    roll_map_fini(&c.known_at);
    free(c.known);
    free(c.member);
    free(c.place);
    return err;
}
