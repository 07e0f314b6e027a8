/*
 * report_judge.c: what the reports of NCCL's own tools mean.
 *
 * RAS counts launches by function, at some moment, and ranks of a healthy job are never level: one report with unequal
 * counts is a note. Where a later report has the same unequal counts, nobody has gone on, and the ranks that are behind
 * are suspected. RAS does not tell sizes, reductions, roots or the order, so nothing is proven. A rank that RAS was not
 * told of is suspected to be dead: it may as well be that its RAS thread alone did not answer.
 *
 * Inspector writes completed collectives: what hangs is not in it. Two things can be told: ranks whose sizes differ in
 * one collective, and a rank that is in the collectives for a shorter time than all others, time and again. Who comes
 * last does not wait, so it is the late one. The measure and its limits are those of the engine's straggler.
 */
#include "daemon/console/analyze/report_state.h"

#include "trace/err.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART_S       5u /* so far apart are two reports that show that nobody goes on */
#define NOTE_LOOKS    32
#define NOTE_LATE     30
#define SUSPECT_LOOKS 64
#define SUSPECT_LATE  60
#define LATE_US       1000u
#define SUSPECT_US    5000u
#define NAMED_MOST    1024u /* ranks that are looked for among those of the job */
#define WHERES        3u    /* ranks whose processes are named */

/* saying */

static struct roll_verdict begin(enum roll_verdict_code code, enum roll_certainty certainty)
{
    return (struct roll_verdict){
        .code = code, .certainty = certainty, .field = "", .step = ROLL_STEP_NONE, .layer = ROLL_LAYER_NONE};
}

static int say(roll_reports_t *r, struct roll_verdict *v, const char *job, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int say(roll_reports_t *r, struct roll_verdict *v, const char *job, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    struct roll_verdict_copy *copy = NULL;
    if (n >= 0) {
        v->number = r->verdicts.used + 1;
        v->text = text;
        copy = roll_verdict_copy_new(v, NULL, NULL, job, 0);
        free(text);
    }
    roll_rankset_fini(&v->culprits);
    roll_rankset_fini(&v->waiting);
    if (copy == NULL || roll_verdict_list_add(&r->verdicts, copy) != 0) {
        return ROLL_E_NOMEM;
    }
    r->findings += v->certainty != ROLL_NOTE;
    return 0;
}

static void name_comm(struct roll_verdict *v, const char *id, uint32_t size)
{
    snprintf(v->comm_label, sizeof(v->comm_label), "%.40s", id);
    if (size > 0) {
        snprintf(v->comm_name, sizeof(v->comm_name), "communicator %.40s (%u ranks)", id, size);
    } else {
        snprintf(v->comm_name, sizeof(v->comm_name), "communicator %.40s", id);
    }
    v->comm_size = size;
    v->comm_key = roll_hash64(1, id, strlen(id)) | 1;
}

/* RAS */

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

static int judge_missing(roll_reports_t *r, const struct roll_report_comm *c)
{
    struct named gone = {.all_known = false};
    struct roll_verdict v = begin(ROLL_VERDICT_RANK_DEAD, ROLL_SUSPECTED);
    char who[320];
    int err = 0;
    for (size_t i = 0; i < c->ranks && err == 0; i++) {
        err = c->rank[i].is_missing ? name_rank(r, c, &c->rank[i], &gone) : 0;
    }
    size_t count = roll_rankset_count(&gone.local);
    if (err == 0 && count > 0) {
        name_comm(&v, c->id, c->size);
        err =
            say(r, &v, "RAS",
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

struct value {
    uint64_t value;
    uint32_t weight;
};

static int by_value(const void *a, const void *b)
{
    const struct value *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* The value that most have, and how many; the values are sorted in place. */
static uint64_t most_common(struct value *value, size_t n, uint32_t *of)
{
    uint64_t common = 0;
    *of = 0;
    qsort(value, n, sizeof(*value), by_value);
    for (size_t at = 0, next; at < n; at = next) {
        uint32_t same = 0;
        for (next = at; next < n && value[next].value == value[at].value; next++) {
            same += value[next].weight;
        }
        if (same > *of) {
            *of = same;
            common = value[at].value;
        }
    }
    return common;
}

static int level_of(const struct roll_report_comm *c, unsigned f, struct level *l)
{
    struct value *value = malloc((c->ranks + 1) * sizeof(*value));
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
            value[n++] = (struct value){here, weight(&c->rank[i])};
        }
    }
    l->common = most_common(value, n, &l->of_common);
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
    struct roll_verdict v = !is_standing ? begin(ROLL_VERDICT_STRAGGLER, ROLL_NOTE)
                                         : begin(is_tie   ? ROLL_VERDICT_SEQUENCE_TIE
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
    name_comm(&v, c->id, c->size);
    v.seq = behind ? l->least : l->common;
    if (err == 0 && roll_rankset_count(&odd.local) == 0) {
        snprintf(who, sizeof(who), "The ranks of %s", v.comm_name);
    } else if (err == 0) {
        named_text(&odd, &v, who, sizeof(who));
    }
    if (err == 0 && is_tie) {
        err = say(r, &v, "RAS",
                  "The ranks of %s have launched between %" PRIu64 " and %" PRIu64
                  " %s, and no majority says who is right%s%s. RAS "
                  "counts launches by function, and tells neither sizes nor order.",
                  v.comm_name, l->least, l->most, roll_report_function(f),
                  is_standing ? ": nobody has gone on for "
                              : "; one report does not tell whether they go on: make another a while later",
                  is_standing ? since : "");
    } else if (err == 0) {
        err = say(r, &v, "RAS", "%s%s%s%s has launched %" PRIu64 " %s on %s, and most ranks %" PRIu64 "%s%s. %s", who,
                  odd.where[0] != '\0' ? " (" : "", odd.where, odd.where[0] != '\0' ? ")" : "",
                  behind ? l->least : l->most, roll_report_function(f), v.comm_name, l->common,
                  is_standing ? "; nobody has gone on for " : "", is_standing ? since : "",
                  is_standing ? "Suspected: RAS counts launches by function, so whether a call was left out, added, or "
                                "is still to come is not told, and sizes, "
                                "reductions and order are not known."
                              : "In one report that means little, as ranks of a healthy job are never level: make "
                                "another report a while later and give both.");
    }
    named_fini(&odd);
    return err;
}

static int judge_ras(roll_reports_t *r)
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

/* Inspector */

static int by_call(const void *a, const void *b)
{
    const struct roll_report_call *x = a, *y = b;
    int order = (x->comm > y->comm) - (x->comm < y->comm);
    order = order != 0 ? order : (x->sn > y->sn) - (x->sn < y->sn);
    order = order != 0 ? order : (x->function > y->function) - (x->function < y->function);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How a rank has come to the collectives of one communicator. */
struct come {
    uint64_t looks, late_us; /* a bit for each look, as in the engine's straggler; sum over those that were late */
    uint32_t late;
    bool is_seen;
};

/* There is one communicator of this size, and no larger one: it seems to be that of the whole job. */
static bool is_world(const roll_reports_t *r, uint32_t size)
{
    size_t others = 0;
    for (size_t i = 0; i < r->inspected.used; i++) {
        others += r->inspected.at[i].size >= size;
    }
    return others == 1;
}

/* One rank in words, and as a culprit where the communicator is that of the whole job. */
static void name_one(const roll_reports_t *r, struct roll_verdict *v, uint32_t rank, char *out, size_t size)
{
    bool is_known = is_world(r, v->comm_size);
    if (is_known) {
        (void)roll_rankset_add(&v->culprits, rank);
    }
    snprintf(out, size, "Rank %u%s%s", rank, is_known ? "" : " of ", is_known ? "" : v->comm_name);
}

/* The sizes of one collective, of all its ranks, differ. */
static int judge_sizes(roll_reports_t *r, const struct roll_report_call *call, uint32_t ranks)
{
    struct value *value = malloc(ranks * sizeof(*value));
    uint32_t with = 0, odd = 0;
    if (value == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        value[i] = (struct value){call[i].bytes, 1};
    }
    uint64_t common = most_common(value, ranks, &with);
    free(value);
    struct roll_verdict v = begin(ROLL_VERDICT_COUNT_MISMATCH, ROLL_SUSPECTED);
    name_comm(&v, r->inspected.at[call->comm].text, ranks);
    v.seq = call->sn;
    v.field = "count";
    while (call[odd].bytes == common) {
        odd++;
    }
    bool is_tie = with * 2 <= ranks;
    char who[256];
    if (is_tie) {
        snprintf(who, sizeof(who), "One half of %s", v.comm_name);
    } else {
        for (uint32_t i = is_world(r, ranks) ? odd + 1 : ranks; i < ranks; i++) {
            if (call[i].bytes != common) {
                (void)roll_rankset_add(&v.culprits, call[i].rank);
            }
        }
        name_one(r, &v, call[odd].rank, who, sizeof(who));
    }
    return say(r, &v, "Inspector",
               "%s made %s #%" PRIu64 " with %" PRIu64 " bytes, where %s made it with %" PRIu64
               ". NCCL does not compare "
               "sizes. Suspected: the number is Inspector's own, and a record that is missing would shift it.",
               who, r->functions.at[call->function].text, call->sn, call[odd].bytes,
               is_tie ? "the others" : "most ranks", common);
}

/* One collective of which there is a record of each rank. */
static void look(const struct roll_report_call *call, uint32_t ranks, uint64_t *scratch, struct come *come)
{
    for (uint32_t i = 0; i < ranks; i++) {
        scratch[i] = call[i].took_us;
    }
    qsort(scratch, ranks, sizeof(*scratch), by_number);
    uint64_t usual = scratch[ranks / 2];
    for (uint32_t i = 0; i < ranks; i++) {
        struct come *c = &come[call[i].rank];
        bool late = usual > call[i].took_us && usual - call[i].took_us >= LATE_US && call[i].took_us < usual / 2;
        c->looks = c->looks << 1 | late;
        c->late += late;
        c->late_us += late ? usual - call[i].took_us : 0;
    }
}

static int judge_come(roll_reports_t *r, uint32_t comm, const struct come *come, uint32_t ranks, uint64_t looks)
{
    char missing[128] = "";
    struct roll_rankset unseen = {0};
    int err = 0;
    for (uint32_t i = 0; i < ranks && err == 0; i++) {
        bool is_suspected = looks >= SUSPECT_LOOKS && __builtin_popcountll(come[i].looks) >= SUSPECT_LATE &&
                            come[i].late_us / come[i].late >= SUSPECT_US;
        bool is_noted =
            looks >= NOTE_LOOKS && __builtin_popcountll(come[i].looks & ((UINT64_C(1) << NOTE_LOOKS) - 1)) >= NOTE_LATE;
        if (is_suspected || is_noted) {
            struct roll_verdict v = begin(ROLL_VERDICT_STRAGGLER, is_suspected ? ROLL_SUSPECTED : ROLL_NOTE);
            char who[256];
            name_comm(&v, r->inspected.at[comm].text, ranks);
            name_one(r, &v, i, who, sizeof(who));
            err = say(
                r, &v, "Inspector",
                "%s is in the collectives of %s for a shorter time than the median rank, by %.1f ms, in %u of %" PRIu64
                " that all ranks have completed: it comes last, and the others wait for it in them. Slow, not stuck. "
                "By the times of Inspector, which tells when kernels run and not why they begin late.",
                who, v.comm_name, (double)(come[i].late_us / come[i].late) / 1e3, come[i].late, looks);
        }
        err = err == 0 && !come[i].is_seen ? roll_rankset_add(&unseen, i) : err;
    }
    size_t n = roll_rankset_count(&unseen);
    if (err == 0 && n > 0) {
        struct roll_verdict v = begin(ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
        name_comm(&v, r->inspected.at[comm].text, ranks);
        (void)roll_rankset_format(&unseen, missing, sizeof(missing));
        err = say(r, &v, "Inspector",
                  "Of rank%s %s of %s there is no record: no file was given, or nothing was completed that Inspector "
                  "keeps (it leaves out small collectives).",
                  n == 1 ? "" : "s", missing, v.comm_name);
    }
    roll_rankset_fini(&unseen);
    return err;
}

/* The calls of one communicator, in their order. */
static int judge_inspected(roll_reports_t *r, const struct roll_report_call *call, size_t n)
{
    uint32_t ranks = r->inspected.at[call->comm].size;
    struct come *come = calloc(ranks, sizeof(*come));
    uint64_t *scratch = calloc(ranks, sizeof(*scratch)), looks = 0;
    bool is_told = false;
    int err = come == NULL || scratch == NULL ? ROLL_E_NOMEM : 0;
    for (size_t at = 0, next; at < n && err == 0; at = next) {
        bool same = true, each = true;
        for (next = at; next < n && call[next].sn == call[at].sn && call[next].function == call[at].function; next++) {
            same = same && call[next].bytes == call[at].bytes;
            each = each && call[next].rank == next - at; /* each rank once */
            if (call[next].rank < ranks) {
                come[call[next].rank].is_seen = true;
            }
        }
        if (!each || next - at != ranks || ranks < 2) {
            continue;
        }
        if (same) {
            look(call + at, ranks, scratch, come);
            looks++;
        } else if (!is_told) {
            is_told = true;
            err = judge_sizes(r, call + at, ranks);
        }
    }
    err = err == 0 ? judge_come(r, call->comm, come, ranks, looks) : err;
    free(come);
    free(scratch);
    return err;
}

int roll_reports_judge(roll_reports_t *r)
{
    int err = judge_ras(r);
    if (r->calls > 1) {
        qsort(r->call, r->calls, sizeof(*r->call), by_call);
    }
    for (size_t at = 0, next; at < r->calls && err == 0; at = next) {
        for (next = at; next < r->calls && r->call[next].comm == r->call[at].comm; next++) {
        }
        err = judge_inspected(r, r->call + at, next - at);
    }
    return err;
}

void roll_reports_summary(const roll_reports_t *r, struct roll_reports_summary *out)
{
    *out = (struct roll_reports_summary){.calls = r->calls, .findings = r->findings, .comms = r->inspected.used};
    out->ranks = r->told_ranks;
    uint64_t named = 0;
    for (size_t i = 0; i < r->comms; i++) {
        bool is_newest = i + 1 == r->comms || strcmp(r->comm[i].id, r->comm[i + 1].id) != 0;
        named += is_newest && r->comm[i].is_partial;
        out->comms += is_newest && !r->comm[i].is_partial;
        out->ranks = is_newest && r->comm[i].size > out->ranks ? r->comm[i].size : out->ranks;
    }
    out->comms += r->told_comms > named ? r->told_comms : named; /* the table counts those that are named as well */
    for (size_t i = 0; i < r->inspected.used; i++) {
        out->ranks = r->inspected.at[i].size > out->ranks ? r->inspected.at[i].size : out->ranks;
    }
}
