/*
 * stuck_facts.c: what the nodes know about a call that does not complete.
 *
 * The engine asks nobody. It says collective-stuck, the feeder lets the agents be asked, and their answers come back as
 * facts, in any order or never. When all nodes of the call have answered, or suspect_ns after the first answer, a
 * verdict with the facts takes the place of the first verdict. When exactly one host has a fault, its ranks in the call
 * are named as suspected. Two other rules were rejected: counting faults, and weighing what is merely odd. Ports that
 * have been down for years and nodes under pressure are found in every cluster.
 *
 * There is one case at a time. A newer case takes the place of the older one, and answers for the older one are
 * ignored.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>
#include <string.h>

#define HOSTS_MAX    256u
#define FACTS_MAX    8u /* facts kept of one host */
#define TEXT_BYTES   128u
#define GROUPS_SHOWN 8u
#define NAMES_SHOWN  8u

/* What one host has answered. */
struct host_facts {
    char name[ROLL_NAME_BYTES];
    bool answered, shown;
    uint32_t facts;
    size_t more;
    struct {
        enum roll_fact kind;
        char text[TEXT_BYTES];
    } fact[FACTS_MAX];
};

/* A verdict about which the nodes are asked, and what is needed to say it again with their facts. */
struct stuck_case {
    /* Number of the first verdict, which the answers name; number of the verdict that stands. */
    uint64_t asked, number;
    struct comm *comm;
    struct roll_record rec;
    const struct source *first;
    struct roll_rankset in, left;
    char *text;
    uint64_t answer_ns; /* patience clock of the first answer */
    uint32_t hosts, answered;
    bool said;
    struct host_facts host[HOSTS_MAX];
};

static struct host_facts *host_of(struct stuck_case *c, const char *name)
{
    for (uint32_t i = 0; i < c->hosts; i++) {
        if (strcmp(c->host[i].name, name) == 0) {
            return &c->host[i];
        }
    }
    return NULL;
}

void stuck_case_close(struct roll_engine *e, uint64_t number)
{
    struct stuck_case *c = stuck_of_engine(e)->asked;
    if (c && (number == 0 || number == c->number)) {
        roll_rankset_fini(&c->in);
        roll_rankset_fini(&c->left);
        free(c->text);
        free(c);
        stuck_of_engine(e)->asked = NULL;
    }
}

void stuck_case_open(struct stuck *k, uint64_t number, const char *text)
{
    struct roll_engine *e = k->e;
    stuck_case_close(e, 0);
    struct stuck_case *c = calloc(1, sizeof(*c));
    if (!c) {
        return;
    }
    c->asked = c->number = number;
    c->comm = k->comm;
    c->rec = k->rec;
    c->first = k->first;
    c->text = strdup(text);
    (void)roll_rankset_copy(&c->in, &k->in);
    (void)roll_rankset_copy(&c->left, &k->left);
    struct roll_rankset all = {0};
    struct stuck_hosts at;
    (void)roll_rankset_copy(&all, &k->in);
    (void)roll_rankset_union(&all, &k->left);
    (void)roll_rankset_union(&all, &k->away);
    stuck_hosts_of(&at, e, &all);
    for (; c->hosts < at.hosts && c->hosts < HOSTS_MAX; c->hosts++) {
        memcpy(c->host[c->hosts].name, e->source[at.source[at.host[c->hosts].first]]->host, ROLL_NAME_BYTES);
    }
    stuck_hosts_fini(&at);
    roll_rankset_fini(&all);
    stuck_of_engine(e)->asked = c;
    if (!c->text) {
        stuck_case_close(e, 0);
    }
}

/* words */

static bool same_facts(const struct host_facts *a, const struct host_facts *b)
{
    if (a->facts != b->facts || a->more != b->more) {
        return false;
    }
    for (uint32_t i = 0; i < a->facts; i++) {
        if (strcmp(a->fact[i].text, b->fact[i].text) != 0) {
            return false;
        }
    }
    return true;
}

static void words_facts(struct words *w, const struct host_facts *h)
{
    bool any = false;
    for (uint32_t i = 0; i < h->facts; i++) {
        any = any || roll_fact_weight(h->fact[i].kind) != ROLL_FACT_PLAIN;
    }
    words_add(w, "%s", any ? "" : h->facts > 0 ? "nothing out of order; " : "nothing out of order");
    for (uint32_t i = 0; i < h->facts; i++) {
        words_add(w, "%s%s", i > 0 ? "; " : "", h->fact[i].text);
    }
    if (h->more > 0) {
        words_add(w, "; and %zu more", h->more);
    }
}

/* Hosts with the same facts are told together. */
static void words_group(struct words *w, struct stuck_case *c, uint32_t first)
{
    uint32_t names = 0;
    for (uint32_t i = first; i < c->hosts; i++) {
        struct host_facts *h = &c->host[i];
        if (h->answered && !h->shown && same_facts(h, &c->host[first])) {
            h->shown = true;
            if (names++ < NAMES_SHOWN) {
                words_add(w, "%s%s", names > 1 ? ", " : " Host ", h->name);
            }
        }
    }
    if (names > NAMES_SHOWN) {
        words_add(w, " and %u more", names - NAMES_SHOWN);
    }
    words_add(w, ": ");
    words_facts(w, &c->host[first]);
    words_add(w, ".");
}

static void words_all(struct words *w, struct stuck_case *c)
{
    uint32_t groups = 0, silent = c->hosts - c->answered;
    for (uint32_t i = 0; i < c->hosts; i++) {
        if (c->host[i].answered && !c->host[i].shown && groups < GROUPS_SHOWN) {
            groups++;
            words_group(w, c, i);
        }
    }
    if (silent > 0) {
        words_add(w, " Nothing was heard from %u host%s.", silent, silent == 1 ? "" : "s");
    }
}

/* judging */

static bool has_fault(const struct host_facts *h)
{
    for (uint32_t i = 0; i < h->facts; i++) {
        if (roll_fact_weight(h->fact[i].kind) == ROLL_FACT_FAULT) {
            return true;
        }
    }
    return false;
}

/* The one host that has a fault. NULL: none or several have one, some host has not answered, or there is only one host.
 */
static struct host_facts *stands_out(struct stuck_case *c)
{
    struct host_facts *odd = NULL;
    for (uint32_t i = 0; i < c->hosts; i++) {
        if (has_fault(&c->host[i])) {
            if (odd || c->hosts < 2) {
                return NULL;
            }
            odd = &c->host[i];
        }
    }
    return c->answered == c->hosts ? odd : NULL;
}

static void add_ranks_of(const struct roll_engine *e, const struct stuck_case *c, const struct host_facts *h,
                         struct roll_rankset *out)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (strcmp(s->host, h->name) == 0 && roll_rankset_has(&c->in, s->world)) {
            (void)roll_rankset_add(out, s->world);
        }
    }
}

static void speak(struct roll_engine *e, struct stuck_case *c)
{
    c->said = true;
    if (!say_stands(e, c->number)) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_COLLECTIVE_STUCK, ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    uint32_t index = source_index(e, c->first);
    struct host_facts *odd = stands_out(c);
    struct words w = {.used = 0};
    say_supersedes(e, v, c->number);
    stuck_renumber(e, c->number, v->number);
    c->number = v->number;
    say_comm(v, c->comm, c->rec.op == ROLL_OP_COMM_INIT ? 0 : c->rec.seq);
    say_side(v, c->first, index, &c->in, &c->rec);
    if (roll_rankset_count(&c->left) > 0) {
        say_side(v, c->first, index, &c->left, &c->rec);
    }
    (void)roll_rankset_copy(&v->waiting, &c->in);
    if (odd) {
        add_ranks_of(e, c, odd, &v->culprits);
    }
    words_add(&w, "%s What their nodes know:", c->text);
    words_all(&w, c);
    if (odd) {
        words_add(&w, " Host %s stands out: it alone has a fault. Suspected for that reason", odd->name);
        if (roll_rankset_count(&v->culprits) > 0) {
            words_add(&w, ": ");
            words_ranks(&w, &v->culprits);
        }
        words_add(&w, ".");
    }
    say_text(e, v, "%s", w.text);
}

int roll_engine_facts(roll_engine_t *e, const struct roll_engine_facts *facts)
{
    struct stuck_case *c = stuck_of_engine(e)->asked;
    if (!facts->host || (facts->facts > 0 && !facts->fact)) {
        return ROLL_E_ARG;
    }
    struct host_facts *h = c && c->asked == facts->verdict && !c->said ? host_of(c, facts->host) : NULL;
    if (!h || h->answered) {
        return 0;
    }
    h->answered = true;
    h->more = facts->more;
    for (size_t i = 0; i < facts->facts; i++) {
        if (h->facts == FACTS_MAX) {
            h->more += facts->facts - i;
            break;
        }
        h->fact[h->facts].kind = facts->fact[i].kind;
        strncpy(h->fact[h->facts].text, facts->fact[i].text, TEXT_BYTES - 1);
        h->facts++;
    }
    c->answer_ns = c->answered++ == 0 ? e->clock : c->answer_ns;
    if (c->answered == c->hosts) {
        speak(e, c);
    }
    return 0;
}

void stuck_case_tick(struct roll_engine *e)
{
    struct stuck_case *c = stuck_of_engine(e)->asked;
    if (c && !c->said && c->answered > 0 && (e->finishing || e->clock - c->answer_ns >= e->config.suspect_ns)) {
        speak(e, c);
    }
}
