/*
 * report_ras.c: what the reports of RAS mean.
 *
 * RAS counts launches by function, at some moment, and ranks of a healthy job are never level: one report with unequal
 * counts is a note. Where a later report has the same unequal counts, nobody has gone on, and the ranks that are behind
 * are suspected. RAS does not tell sizes, reductions, roots or the order, so nothing is proven. A rank that RAS was not
 * told of is suspected to be dead: it may as well be that its RAS thread alone did not answer.
 */
#include "daemon/console/analyze/report_state.h"

#include "trace/err.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART_S    5u    /* so far apart are two reports that show that nobody goes on */
#define NAMED_MOST 1024u /* ranks that are looked for among those of the job */
#define WHERES     3u    /* ranks whose processes are named */

/* ranks, in a communicator and in the job */

static int by_age(const void *a, const void *b)
{
    const struct roll_report_comm *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    order = order != 0 ? order : (x->time > y->time) - (x->time < y->time);
    return order != 0 ? order : (x->order > y->order) - (x->order < y->order);
}

static int by_rank(const void *a, const void *b)
{
    const struct roll_report_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static const struct roll_report_rank *rank_of(const struct roll_report_comm *c, uint32_t rank)
{
    const struct roll_report_rank key = {.rank = rank};
    return c->ranks > 0 ? bsearch(&key, c->rank, c->ranks, sizeof(key), by_rank) : NULL;
}

static uint64_t process_key(const struct roll_report_rank *rank)
{
    return roll_hash64(1, rank->where, strlen(rank->where)) | 1;
}

/* All processes of a communicator, as far as they are told, are in the largest one as well. */
static bool is_within(const roll_reports_t *r, const struct roll_report_comm *c)
{
    for (size_t i = 0; i < c->ranks && strcmp(c->id, r->world->id) != 0; i++) {
        const struct roll_report_rank *rank = &c->rank[i];
        bool there = rank->where[0] != '\0' && roll_map_get(&r->world_at, process_key(rank)) != ROLL_MAP_NONE;
        if (!there && !rank->is_missing) {
            return false;
        }
    }
    return true;
}

/* Finds the communicator that all ranks of the job seem to be in: its ranks are the job's. A communicator that has
 * processes of its own, as the next group of tensor parallelism has, shows that the largest one is not all of the job.
 */
static int find_world(roll_reports_t *r)
{
    int err = 0;
    r->world = NULL;
    for (size_t i = 0; i < r->comms; i++) {
        const struct roll_report_comm *c = &r->comm[i];
        r->world = !c->is_partial && (r->world == NULL || c->size >= r->world->size) ? c : r->world; /* the newest */
    }
    for (size_t i = 0; r->world != NULL && i < r->world->ranks && err == 0; i++) {
        const struct roll_report_rank *rank = &r->world->rank[i];
        bool fresh = rank->where[0] != '\0' && roll_map_get(&r->world_at, process_key(rank)) == ROLL_MAP_NONE;
        err = fresh ? roll_map_add(&r->world_at, process_key(rank), rank->rank) : 0;
    }
    for (size_t i = 0; r->world != NULL && i < r->comms && err == 0; i++) {
        r->world = r->comm[i].is_partial || is_within(r, &r->comm[i]) ? r->world : NULL;
    }
    return err;
}

/* The rank in the job of a rank of a communicator, by its process; false: not known. */
static bool world_rank(const roll_reports_t *r, const struct roll_report_comm *c, const struct roll_report_rank *rank,
                       uint32_t *out)
{
    if (r->world == NULL || rank->rank == ROLL_REPORT_OTHERS) {
        return false;
    }
    bool itself = strcmp(c->id, r->world->id) == 0;
    *out = itself ? rank->rank : rank->where[0] != '\0' ? roll_map_get(&r->world_at, process_key(rank)) : ROLL_MAP_NONE;
    return *out != ROLL_MAP_NONE;
}

/* Ranks that a verdict names: in the job where that is known, else in words, as ranks of the communicator. */
struct named {
    struct roll_rankset local, world;
    bool all_known;
    char where[WHERES * (ROLL_REPORT_WHERE + 2) + 8];
    unsigned wheres;
};

static int name_rank(const roll_reports_t *r, const struct roll_report_comm *c, const struct roll_report_rank *rank,
                     struct named *n)
{
    uint32_t world = 0;
    size_t before = roll_rankset_count(&n->local);
    bool is_first = before == 0, is_known = before < NAMED_MOST && world_rank(r, c, rank, &world);
    size_t used = strlen(n->where);
    n->all_known = (is_first || n->all_known) && is_known;
    if (rank->where[0] != '\0' && n->wheres < WHERES) {
        snprintf(n->where + used, sizeof(n->where) - used, "%s%s", n->wheres++ > 0 ? "; " : "", rank->where);
    } else if (n->wheres == WHERES) {
        snprintf(n->where + used, sizeof(n->where) - used, "; \xe2\x80\xa6");
        n->wheres++;
    }
    int err = roll_rankset_add(&n->local, rank->rank);
    return err == 0 && is_known ? roll_rankset_add(&n->world, world) : err;
}

/* "Rank 7", "Ranks 3,5 of communicator 0x... (8 ranks)"; the culprits go into the verdict where they are known. */
static const char *named_text(struct named *n, struct roll_verdict *v, char *out, size_t size)
{
    char ranks[128];
    (void)roll_rankset_format(n->all_known ? &n->world : &n->local, ranks, sizeof(ranks));
    bool one = roll_rankset_count(&n->local) == 1;
    snprintf(out, size, "%s %s%s%s", one ? "Rank" : "Ranks", ranks, n->all_known ? "" : " of ",
             n->all_known ? "" : v->comm_name);
    if (n->all_known) {
        (void)roll_rankset_copy(&v->culprits, &n->world);
    }
    return out;
}

static void named_fini(struct named *n)
{
    roll_rankset_fini(&n->local);
    roll_rankset_fini(&n->world);
}

/* judging */

static int judge_missing(roll_reports_t *r, const struct roll_report_comm *c)
{
    struct named gone = {.all_known = false};
    struct roll_verdict v = roll_report_begin(ROLL_VERDICT_RANK_DEAD, ROLL_SUSPECTED);
    char who[320];
    int err = 0;
    for (size_t i = 0; i < c->ranks && err == 0; i++) {
        err = c->rank[i].is_missing ? name_rank(r, c, &c->rank[i], &gone) : 0;
    }
    size_t count = roll_rankset_count(&gone.local);
    if (err == 0 && count > 0) {
        roll_report_name_comm(&v, c->id, c->size);
        err = roll_report_say(
            r, &v, "RAS",
            "%s did not answer NCCL's RAS network when the report was made%s%s%s. Suspected: %s may have ended, be "
            "stopped, or have lost the network; RAS does not tell which, and a busy RAS thread looks the same.",
            named_text(&gone, &v, who, sizeof(who)), gone.where[0] != '\0' ? " (" : "", gone.where,
            gone.where[0] != '\0' ? ")" : "", count == 1 ? "the process" : "these processes");
    }
    named_fini(&gone);
    return err;
}

static uint32_t weight(const struct roll_report_rank *rank)
{
    return rank->is_missing ? 0 : rank->rank == ROLL_REPORT_OTHERS ? rank->others : 1;
}

/* Counts of one function: the most, and what most ranks have. */
struct level {
    uint64_t most, least, common;
    uint32_t ranks, of_common;
};

static int level_of(const struct roll_report_comm *c, unsigned f, struct level *l)
{
    struct roll_report_value *value = malloc((c->ranks + 1) * sizeof(*value));
    size_t n = 0;
    *l = (struct level){.least = UINT64_MAX};
    if (value == NULL) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < c->ranks; i++) {
        uint64_t here = c->rank[i].launched[f];
        if (weight(&c->rank[i]) > 0) {
            l->ranks += weight(&c->rank[i]);
            l->most = here > l->most ? here : l->most;
            l->least = here < l->least ? here : l->least;
            value[n++] = (struct roll_report_value){here, weight(&c->rank[i])};
        }
    }
    l->common = roll_report_most_common(value, n, &l->of_common);
    free(value);
    return 0;
}

/* Whether each rank of a communicator has launched as much in both reports, which are apart. */
static bool stands(const struct roll_report_comm *now, const struct roll_report_comm *before)
{
    if (before == NULL || now->time == 0 || before->time == 0 || now->time < before->time + APART_S) {
        return false;
    }
    for (size_t i = 0; i < now->ranks; i++) {
        const struct roll_report_rank *then = rank_of(before, now->rank[i].rank);
        if (then == NULL ||
            (!now->rank[i].is_missing && memcmp(then->launched, now->rank[i].launched, sizeof(then->launched)) != 0)) {
            return false;
        }
    }
    return now->ranks > 0;
}

/* The ranks that differ from most are named; which is "behind" where any are, else those ahead. */
static int judge_function(roll_reports_t *r, const struct roll_report_comm *c, const struct roll_report_comm *before,
                          unsigned f, const struct level *l)
{
    bool is_standing = stands(c, before), behind = l->least < l->common;
    bool is_tie = l->of_common * 2 <= l->ranks;
    struct named odd = {.all_known = false};
    char who[320] = "", since[64] = "";
    int err = 0;
    for (size_t i = 0; i < c->ranks && err == 0 && !is_tie; i++) {
        uint64_t n = c->rank[i].launched[f];
        bool is_odd = weight(&c->rank[i]) == 1 && c->rank[i].rank != ROLL_REPORT_OTHERS &&
                      (behind ? n < l->common : n > l->common);
        err = is_odd ? name_rank(r, c, &c->rank[i], &odd) : 0;
    }
    struct roll_verdict v = !is_standing ? roll_report_begin(ROLL_VERDICT_STRAGGLER, ROLL_NOTE)
                                         : roll_report_begin(is_tie   ? ROLL_VERDICT_SEQUENCE_TIE
                                                             : behind ? ROLL_VERDICT_CALL_SKIPPED
                                                                      : ROLL_VERDICT_CALL_ADDED,
                                                             ROLL_SUSPECTED);
    if (is_standing && !is_tie) {
        v.may_be[v.may_bes++] = behind ? ROLL_VERDICT_RANK_BUSY : ROLL_VERDICT_CALL_SKIPPED;
        v.may_be[v.may_bes++] = behind ? ROLL_VERDICT_RANK_BLOCKED : ROLL_VERDICT_RANK_BUSY;
    }
    if (before != NULL) {
        snprintf(since, sizeof(since), "%" PRIu64 " s", c->time - before->time);
    }
    roll_report_name_comm(&v, c->id, c->size);
    v.seq = behind ? l->least : l->common;
    if (err == 0 && roll_rankset_count(&odd.local) == 0) {
        snprintf(who, sizeof(who), "The ranks of %s", v.comm_name);
    } else if (err == 0) {
        named_text(&odd, &v, who, sizeof(who));
    }
    if (err == 0 && is_tie) {
        err = roll_report_say(r, &v, "RAS",
                              "The ranks of %s have launched between %" PRIu64 " and %" PRIu64
                              " %s, and no majority says who is right%s%s. RAS "
                              "counts launches by function, and tells neither sizes nor order.",
                              v.comm_name, l->least, l->most, roll_report_function(f),
                              is_standing ? ": nobody has gone on for "
                                          : "; one report does not tell whether they go on: make another a while later",
                              is_standing ? since : "");
    } else if (err == 0) {
        err = roll_report_say(
            r, &v, "RAS", "%s%s%s%s has launched %" PRIu64 " %s on %s, and most ranks %" PRIu64 "%s%s. %s", who,
            odd.where[0] != '\0' ? " (" : "", odd.where, odd.where[0] != '\0' ? ")" : "", behind ? l->least : l->most,
            roll_report_function(f), v.comm_name, l->common, is_standing ? "; nobody has gone on for " : "",
            is_standing ? since : "",
            is_standing ? "Suspected: RAS counts launches by function, so whether a call was left out, added, or "
                          "is still to come is not told, and sizes, "
                          "reductions and order are not known."
                        : "In one report that means little, as ranks of a healthy job are never level: make "
                          "another report a while later and give both.");
    }
    named_fini(&odd);
    return err;
}

int roll_reports_judge_ras(roll_reports_t *r)
{
    int err = 0;
    for (size_t i = 0; i < r->comms; i++) {
        if (r->comm[i].ranks > 1) {
            qsort(r->comm[i].rank, r->comm[i].ranks, sizeof(*r->comm[i].rank), by_rank);
        }
    }
    if (r->comms > 1) {
        qsort(r->comm, r->comms, sizeof(*r->comm), by_age);
    }
    err = find_world(r);
    for (size_t i = 0; i < r->comms && err == 0; i++) {
        const struct roll_report_comm *c = &r->comm[i];
        if (i + 1 < r->comms && strcmp(c->id, r->comm[i + 1].id) == 0) {
            continue; /* there is a newer report */
        }
        const struct roll_report_comm *before = i > 0 && strcmp(c->id, r->comm[i - 1].id) == 0 ? &r->comm[i - 1] : NULL;
        err = judge_missing(r, c);
        for (unsigned f = 0; f < ROLL_RAS_FUNCTIONS && err == 0; f++) {
            struct level l;
            err = level_of(c, f, &l);
            err = err == 0 && l.ranks > 1 && l.most != l.least ? judge_function(r, c, before, f, &l) : err;
        }
    }
    return err;
}
