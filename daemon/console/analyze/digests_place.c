/*
 * digests_place.c: what is to be done about a place where calls differ or stand: judged by the excerpts, by an engine
 * of its own, or told with the command that fetches its records.
 *
 * An engine of a place sees a piece of a run. So only what it says of the place is kept, and what it has not taken back
 * when the piece is over.
 */
#include "daemon/console/analyze/digests_compare.h"

#include "daemon/console/console.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS_NAMED 8u  /* that a line names */
#define PLACES_TOLD 16u /* of a run; further ones are counted: they mostly follow from these */

/* The next finding of this run on a communicator, from number *at on; NULL: there is none. */
static const struct roll_verdict_copy *next_finding(const struct digests_compared *c, uint64_t key, size_t *at)
{
    const struct roll_rdig_section *is = &c->run->section[0]->view.is;
    while (*at < c->digests->verdicts) {
        const struct roll_verdict_copy *v = c->digests->verdict[(*at)++];
        if (strcmp(v->job, is->job) == 0 && v->restart == is->restart && v->said.comm_key == key &&
            roll_verdict_is_finding(&v->said)) {
            return v;
        }
    }
    return NULL;
}

static bool has_finding(const struct digests_compared *c, uint64_t key)
{
    size_t at = 0;
    return next_finding(c, key, &at) != NULL;
}

/* The excerpts begin in the middle of the window, and all of them hold the call that differs: a finding that stands has
 * said what is wrong there. */
static bool is_told(const struct digests_compared *c, const struct digest_place *p, const struct digest_known *k)
{
    const struct roll_verdict_copy *v;
    uint64_t first = p->seq - p->seq % ROLL_DIGEST_WINDOW, last = first + ROLL_DIGEST_WINDOW - 1;
    for (size_t at = 0; p->last == p->seq && (v = next_finding(c, p->key, &at)) != NULL;) {
        if (roll_verdict_stands(v) && v->said.seq >= first && v->said.seq <= last && v->said.seq >= k->from) {
            return true;
        }
    }
    return false;
}

/* The name of a communicator as verdicts have it. */
static void name_of(const struct digests_compared *c, uint64_t key, char *out, size_t size)
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
static const struct digest_section *section_with(const struct digests_compared *c, const struct digest_member *m,
                                                 const struct digest_place *p)
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
static int keep_place(struct digests_compared *c, const struct digest_place *p, struct roll_verdict_list *list)
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

static int judge_place(struct digests_compared *c, const struct digest_place *p,
                       const struct digest_section *const *section, size_t n)
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

static void note_unreached(struct digests_compared *c, json_t *what)
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
static void tell_command(struct digests_compared *c, const struct digest_place *p, const char *at,
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
static int tell_place(struct digests_compared *c, const struct digest_place *p,
                      const struct digest_section *const *lacks, size_t n)
{
    char name[160], at[64], where[128];
    if (c->told++ >= PLACES_TOLD) {
        c->digests->summary.unreached++;
        return 0;
    }
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

static bool all_finished(const struct digests_compared *c)
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
static void tell_messages(struct digests_compared *c, const struct digest_place *p, const struct digest_known *k)
{
    char name[160];
    if (k->whole || has_finding(c, p->key)) {
        return; /* the engine has seen them */
    }
    name_of(c, p->key, name, sizeof(name));
    roll_say("job %s.%u: messages on %s do not match up (one was not received, or with other bytes)%s, and not in the "
             "newest records: `rollcall analyze` of the nodes' traces tells which",
             c->run->section[0]->view.is.job, c->run->section[0]->view.is.restart, name,
             all_finished(c) ? "" : ", or were on their way at the end");
    note_unreached(c, json_pack("{s:o, s:b}", "hosts", json_array(), "messages", true));
}

/* A node has members of it whose observations, before the excerpt, do not agree: that is told of its ranks. */
static bool is_observed_before(const struct digests_compared *c, const struct digest_known *k)
{
    for (uint32_t i = k->first; i != UINT32_MAX; i = c->member[i].next) {
        const struct roll_rdig_view *v = &c->member[i].section->view;
        for (uint32_t n = 0; n < v->is.rings; n++) {
            struct roll_rdig_ring r;
            roll_rdig_ring(v, n, &r);
            if ((r.hinted >> ROLL_HINT_OBSERVED & 1) != 0) {
                return true;
            }
        }
    }
    return false;
}

/* What members on several nodes have observed differs: that is known by its step, and where that lies in a node's
 * records only the node could say. An engine that has seen it has spoken. */
static void tell_observed(struct digests_compared *c, const struct digest_place *p, const struct digest_known *k)
{
    char name[160], when[48] = "outside of any step";
    if (k->whole || has_finding(c, p->key) || is_observed_before(c, k)) {
        return;
    }
    name_of(c, p->key, name, sizeof(name));
    if (p->seq != ROLL_OBSERVED_OUTSIDE) {
        snprintf(when, sizeof(when), "in step %u", p->seq - roll_observed_step(0));
    }
    roll_say(
        "job %s.%u: what moe_core observed %s differs between nodes on %s, and the newest records do not tell how: "
        "`rollcall analyze` of the nodes' traces does",
        c->run->section[0]->view.is.job, c->run->section[0]->view.is.restart, when, name);
    note_unreached(c, json_pack("{s:o, s:b}", "hosts", json_array(), "observed", true));
}

int roll_digests_look_at(struct digests_compared *c, const struct digest_place *p)
{
    const struct digest_known *k = digest_known_of(c, p->key);
    if (p->messages) {
        tell_messages(c, p, k);
        return 0;
    }
    if (p->observed) {
        tell_observed(c, p, k);
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
        err = is_told(c, p, k) ? 0 : tell_place(c, p, lacks, n);
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
    {ROLL_HINT_OTHER, "calls that digests cannot compare (on communicators that are not known)"},
    {ROLL_HINT_MESSAGES, "messages that do not match up"},
    {ROLL_HINT_OBSERVED, "observations of moe_core that are out of the ordinary"},
};

void roll_digests_tell_rest(struct digests_compared *c)
{
    if (c->told > PLACES_TOLD) {
        roll_say("job %s.%u: %zu further places where calls differ or stand are not told one by one",
                 c->run->section[0]->view.is.job, c->run->section[0]->view.is.restart, c->told - PLACES_TOLD);
    }
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
