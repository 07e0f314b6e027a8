/*
 * dumps.c: a set of dumps: which of them are of one job, and what the engine is told of each job.
 *
 * Dumps of a job lie in one folder as a rule, or in one folder a node. A rank that is there a second time, or a job of
 * another size, is another job. Files of different jobs never meet.
 *
 * The calls of all ranks are given to the feed in the order of their times, as a daemon would have seen them, and no
 * time passes in between: how long ranks were silent in the past is over, and says nothing of where they stand.
 */
#include "daemon/dumps/dumps_state.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH      512u
#define LINE_BYTES 512
/* Behind the last call at most so much time passes for the engine. With a snapshot nothing waits longer than
 * suspect_ns, 5 s, and the engine's clock takes one stall of a step at most: so it comes to 9 s. */
#define STILL_MOST_NS 15000000000u
/* The engine is asked to look as often as a daemon asks it for so long; behind that, where patience has run out, four
 * times less often: on the dumps of a small job looking was half of the work. */
#define STEP_NS    500000000u
#define CLOSELY_NS 7000000000u
/* A file that is older than its calls by more than this has a time that says nothing. */
#define BELIEVED_NS 3600000000000u
#define SKEW_NS     1000000000u /* between the clocks of two nodes */

roll_dumps_t *roll_dumps_new(void)
{
    return calloc(1, sizeof(struct roll_dumps));
}

void roll_dumps_destroy(roll_dumps_t **dumps)
{
    struct roll_dumps *set = *dumps;
    *dumps = NULL;
    if (set == NULL) {
        return;
    }
    for (size_t j = 0; j < set->jobs; j++) {
        for (size_t i = 0; i < set->job[j].dumps; i++) {
            roll_dump_destroy(&set->job[j].dump[i]);
        }
        free(set->job[j].dump);
        roll_rankset_fini(&set->job[j].ranks);
    }
    free(set->job);
    free(set);
}

/* which job */

static bool has_folder(const struct dumps_job *job, uint64_t folder)
{
    for (size_t i = job->dumps; i-- > 0;) { /* files of a folder come one after the other */
        if (job->dump[i]->folder == folder) {
            return true;
        }
    }
    return false;
}

static bool has_room(const struct dumps_job *job, const struct roll_dump *d)
{
    return (job->world == d->world || job->world == 0 || d->world == 0) &&
           !roll_rankset_has(&job->ranks, (uint32_t)d->rank);
}

static struct dumps_job *job_of(struct roll_dumps *set, const struct roll_dump *d)
{
    bool owned = false;
    for (size_t j = 0; j < set->jobs; j++) {
        bool here = has_folder(&set->job[j], d->folder);
        if (here && has_room(&set->job[j], d)) {
            return &set->job[j];
        }
        owned = owned || here;
    }
    for (size_t j = 0; j < set->jobs && !owned; j++) {
        if (has_room(&set->job[j], d)) {
            return &set->job[j];
        }
    }
    return NULL;
}

/* The name of the folder of a file, as a feed takes it: a ring of another name than the feed's would be refused. */
static void name_job(const char *path, char out[ROLL_NAME_BYTES])
{
    char folder[ROLL_NAME_BYTES];
    const char *end = strrchr(path, '/');
    while (end != NULL && end > path && end[-1] == '/') {
        end--; /* "folder//file" */
    }
    const char *begin = end;
    while (begin != NULL && begin > path && begin[-1] != '/') {
        begin--;
    }
    bool named = end != NULL && end > begin && strncmp(begin, ".", (size_t)(end - begin)) != 0;
    snprintf(folder, sizeof(folder), "%.*s", named ? (int)(end - begin) : 5, named ? begin : "dumps");
    roll_feed_clean_job(folder, out);
}

int roll_dumps_add(roll_dumps_t *set, struct roll_dump *dump)
{
    struct dumps_job *job = job_of(set, dump);
    int err = 0;
    if (job == NULL) {
        err = ROLL_GROW(set->job, set->room, set->jobs + 1);
        if (err == 0) {
            job = &set->job[set->jobs++];
            *job = (struct dumps_job){.world = 0};
            name_job(dump->path, job->name);
        }
    }
    err = err != 0 ? err : ROLL_GROW(job->dump, job->room, job->dumps + 1);
    err = err != 0 ? err : roll_rankset_add(&job->ranks, (uint32_t)dump->rank);
    if (err != 0) {
        roll_dump_destroy(&dump);
        return err;
    }
    job->world = dump->world > job->world ? dump->world : job->world;
    job->dump[job->dumps++] = dump;
    return 0;
}

size_t roll_dumps_jobs(const roll_dumps_t *set)
{
    return set->jobs;
}

const char *roll_dumps_job(const roll_dumps_t *set, size_t job)
{
    return job < set->jobs ? set->job[job].name : "";
}

/* frames */

static int give(roll_feed_t *feed, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.payload = (uint32_t)bytes;
    struct roll_frame frame = {.head = head, .payload = payload};
    return roll_feed_frame(feed, &frame);
}

static int announce(roll_feed_t *feed, const struct dumps_job *job, const struct roll_dump *d)
{
    struct roll_ring_header h;
    memset(&h, 0, sizeof(h));
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    h.version = ROLL_RING_VERSION;
    h.oldest = ROLL_RING_OLDEST;
    h.header_bytes = ROLL_RING_HEADER_BYTES;
    h.record_bytes = ROLL_RECORD_BYTES;
    h.world_rank = d->rank;
    h.world_size = job->world > 0 && job->world <= INT32_MAX ? (int32_t)job->world : -1;
    h.local_rank = -1;
    h.epoch = dumps_epoch(d);
    h.restart = roll_feed_restart(feed);
    snprintf(h.job, sizeof(h.job), "%s", roll_feed_job(feed));
    snprintf(h.exe, sizeof(h.exe), "%s", d->tool);
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    int err = give(feed, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h.epoch}, &h, sizeof(h));
    return err != 0 ? err : dumps_define(feed, d);
}

static int by_rank(const void *a, const void *b)
{
    const struct roll_dump *x = *(struct roll_dump *const *)a, *y = *(struct roll_dump *const *)b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* records */

struct moment {
    uint64_t ns;
    uint32_t dump, call;
};

static int by_time(const void *a, const void *b)
{
    const struct moment *x = a, *y = b;
    if (x->ns != y->ns) {
        return x->ns < y->ns ? -1 : 1;
    }
    return x->dump != y->dump ? (x->dump > y->dump) - (x->dump < y->dump) : (x->call > y->call) - (x->call < y->call);
}

/* Where the records of a dump stand: what the next one is given. */
struct writer {
    uint64_t ticket;
    uint32_t unit, units; /* the calls that are being issued as one, and how many such there have been */
    uint16_t in_unit;
};

static struct roll_record finish(struct writer *w, const struct roll_dump_call *c)
{
    struct roll_record rec = c->rec;
    rec.seal = roll_seal(w->ticket++, c->complete ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED);
    rec.callsite = (uint16_t)c->site;
    return rec;
}

static int give_records(roll_feed_t *feed, const struct roll_dump *d, const struct roll_record *rec, size_t n)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                   .stream = dumps_epoch(d),
                                   .first = roll_seal_ticket(rec[0].seal),
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = (uint32_t)n};
    return n == 0 ? 0 : give(feed, head, rec, n * sizeof(*rec));
}

/* The end of calls that were issued as one, which the engine wants to see before it takes them as issued. */
static void end_unit(struct writer *w, struct roll_record *rec, size_t *n, uint64_t ns)
{
    if (w->unit != 0) {
        rec[(*n)++] = (struct roll_record){.seal = roll_seal(w->ticket++, ROLL_STATE_RETURNED),
                                           .enter_ns = ns,
                                           .group = w->units,
                                           .peer = ROLL_PEER_NONE,
                                           .step = ROLL_STEP_NONE,
                                           .layer = ROLL_LAYER_NONE,
                                           .thread = 1,
                                           .op = ROLL_OP_GROUP_END,
                                           .dtype = ROLL_DTYPE_NONE,
                                           .redop = ROLL_RED_NONE,
                                           .aux = w->in_unit};
        w->unit = 0;
    }
}

/* Gives a call of a dump, or, where it is the first of several that were issued as one, all of those. */
static int give_call(roll_feed_t *feed, struct writer *w, const struct roll_dump *d, uint32_t first)
{
    struct roll_record rec[BATCH];
    size_t n = 0;
    uint32_t unit = d->call[first].unit;
    int err = 0;
    w->unit = unit;
    w->units += unit != 0;
    w->in_unit = 0;
    for (size_t i = first; i < d->calls && (i == first || (unit != 0 && d->call[i].unit == unit)) && err == 0; i++) {
        rec[n] = finish(w, &d->call[i]);
        if (unit != 0) {
            rec[n].group = w->units;
            rec[n].flags |= ROLL_FLAG_IN_GROUP;
            w->in_unit = w->in_unit < UINT16_MAX ? (uint16_t)(w->in_unit + 1) : w->in_unit;
        }
        if (++n == BATCH - 1) {
            err = give_records(feed, d, rec, n);
            n = 0;
        }
    }
    end_unit(w, rec, &n, d->call[first].rec.enter_ns);
    return err != 0 ? err : n > 0 ? give_records(feed, d, rec, n) : 0;
}

static int give_calls(roll_feed_t *feed, const struct dumps_job *job, uint64_t *last_ns)
{
    struct moment *moment = NULL;
    size_t room = 0, n = 0, total = 0;
    struct writer *writer = calloc(job->dumps, sizeof(*writer));
    int err = writer == NULL ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < job->dumps; i++) {
        total += job->dump[i]->calls;
    }
    err = err != 0 ? err : ROLL_GROW(moment, room, total + 1);
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        const struct roll_dump *d = job->dump[i];
        uint64_t ns = 0;
        for (size_t k = 0; k < d->calls; k++) {
            bool follows = k > 0 && d->call[k].unit != 0 && d->call[k].unit == d->call[k - 1].unit;
            ns = d->call[k].rec.enter_ns > ns ? d->call[k].rec.enter_ns : ns;
            if (!follows) {
                moment[n++] = (struct moment){.ns = ns, .dump = (uint32_t)i, .call = (uint32_t)k};
            }
        }
        *last_ns = ns > *last_ns ? ns : *last_ns;
    }
    if (n > 1) {
        qsort(moment, n, sizeof(*moment), by_time);
    }
    for (size_t i = 0; i < n && err == 0; i++) {
        err = give_call(feed, &writer[moment[i].dump], job->dump[moment[i].dump], moment[i].call);
    }
    free(moment);
    free(writer);
    return err;
}

/* time */

/*
 * How long the job had stood when the first of its dumps was written: by the time of the files, which copying makes
 * later and never earlier. A file that is older than some rank's call was written while the job ran.
 */
static uint64_t stood_ns(const struct dumps_job *job, uint64_t last_ns, bool *runs)
{
    uint64_t first = UINT64_MAX;
    for (size_t i = 0; i < job->dumps; i++) {
        uint64_t w = job->dump[i]->written_ns;
        first = w != 0 && w < first ? w : first;
    }
    if (first == UINT64_MAX || first + BELIEVED_NS < last_ns) {
        return STILL_MOST_NS; /* nothing says when */
    }
    *runs = *runs || first + SKEW_NS < last_ns;
    uint64_t stood = first > last_ns ? first - last_ns : 0;
    return stood < STILL_MOST_NS ? stood : STILL_MOST_NS;
}

static int let_pass(roll_feed_t *feed, uint64_t from, uint64_t ns)
{
    int err = roll_feed_tick(feed, from);
    for (uint64_t t = STEP_NS; t <= ns && err == 0; t += t < CLOSELY_NS ? STEP_NS : 4u * (uint64_t)STEP_NS) {
        err = roll_feed_tick(feed, from + t);
    }
    return err;
}

/* what is said of the job as a whole */

static void find_missing(const struct dumps_job *job, struct roll_rankset *missing)
{
    for (uint32_t r = 0; r < job->world && r < ROLL_DUMP_RANKS_MAX; r++) {
        if (!roll_rankset_has(&job->ranks, r)) {
            (void)roll_rankset_add(missing, r);
        }
    }
}

static void say_missing(const struct dumps_job *job, const struct roll_rankset *missing, roll_dumps_say *say, void *ctx)
{
    char ranks[LINE_BYTES / 2], line[LINE_BYTES];
    size_t n = roll_rankset_count(missing);
    if (n > 0) {
        (void)roll_rankset_format(missing, ranks, sizeof(ranks));
        snprintf(line, sizeof(line), "%s: no dump of rank%s %s: nothing is known of %s calls", job->name,
                 n == 1 ? "" : "s", ranks, n == 1 ? "its" : "their");
        say(ctx, line);
    }
}

bool roll_dumps_unusable(const roll_dumps_t *set, size_t number)
{
    const struct dumps_job *job = &set->job[number];
    size_t calls = 0, unusable = 0;
    for (size_t i = 0; i < job->dumps; i++) {
        calls += job->dump[i]->calls;
        unusable += job->dump[i]->odd + job->dump[i]->unknowns;
    }
    return calls == 0 && unusable > 0;
}

/* No entry of a job could be used. The dumps of a job that is through may hold no entry at all: that is no fault. */
static void say_unusable(const struct dumps_job *job, roll_dumps_say *say, void *ctx)
{
    char line[LINE_BYTES];
    size_t odd = 0, unknown = 0;
    for (size_t i = 0; i < job->dumps; i++) {
        odd += job->dump[i]->odd;
        unknown += job->dump[i]->unknowns;
    }
    int n = snprintf(line, sizeof(line), "%s: nothing could be judged: none of the %zu entries in its dumps is usable",
                     job->name, odd + unknown);
    size_t used = n > 0 && (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;
    if (odd > 0) {
        n = snprintf(line + used, sizeof(line) - used,
                     "; %zu of them lack%s what names a call: process_group, collective_seq_id, profiling_name, "
                     "time_created_ns, and the peer of a message",
                     odd, odd == 1 ? "s" : "");
        used = n > 0 && (size_t)n < sizeof(line) - used ? used + (size_t)n : sizeof(line) - 1;
    }
    if (unknown > 0) {
        snprintf(line + used, sizeof(line) - used, "; %zu of them name%s no operation that is known here", unknown,
                 unknown == 1 ? "s" : "");
    }
    say(ctx, line);
}

/* Entries that could not be used: their calls count as made where later ones come, and are else not there. */
static void say_odd(const struct dumps_job *job, roll_dumps_say *say, void *ctx)
{
    char ranks[LINE_BYTES / 2], line[LINE_BYTES];
    struct roll_rankset who = {0};
    size_t n = 0;
    for (size_t i = 0; i < job->dumps; i++) {
        n += job->dump[i]->odd;
        if (job->dump[i]->odd > 0) {
            (void)roll_rankset_add(&who, (uint32_t)job->dump[i]->rank);
        }
    }
    (void)roll_rankset_format(&who, ranks, sizeof(ranks));
    if (n > 0) {
        snprintf(line, sizeof(line), "%s: %zu entr%s in the dump%s of rank%s %s could not be used: the rest is judged",
                 job->name, n, n == 1 ? "y" : "ies", roll_rankset_count(&who) == 1 ? "" : "s",
                 roll_rankset_count(&who) == 1 ? "" : "s", ranks);
        say(ctx, line);
    }
    roll_rankset_fini(&who);
}

/* Groups of which a member's dump tells other members than another one's. Those of a split share a name as well, but
 * nobody is in two of them. Calls of the two are not compared; one line says so. */
static void say_contradiction(const struct dumps_job *job, roll_dumps_say *say, void *ctx)
{
    struct roll_map first = {0}; /* hash of a name -> its number in `of` */
    const struct roll_dump_group **of = NULL;
    size_t room = 0, n = 0;
    bool said = false;
    for (size_t i = 0; i < job->dumps && !said; i++) {
        const struct roll_dump *d = job->dump[i];
        for (size_t k = 0; k < d->groups && !said; k++) {
            const struct roll_dump_group *g = &d->group[k];
            uint64_t key = roll_hash64(1, g->name, strlen(g->name));
            uint32_t at = roll_map_get(&first, key);
            if (at == ROLL_MAP_NONE && g->members.ranks > 0) {
                if (ROLL_GROW(of, room, n + 1) == 0 && roll_map_add(&first, key, (uint32_t)n) == 0) {
                    of[n++] = g;
                }
            } else if (at != ROLL_MAP_NONE && g->members.ranks > 0 && of[at]->key != g->key &&
                       roll_ranks_find(&of[at]->members, (uint32_t)d->rank) >= 0) {
                char line[LINE_BYTES];
                said = true;
                snprintf(line, sizeof(line),
                         "%s: the dump of rank %" PRId32 " tells other members of \"%s\" than others do: what it holds "
                         "of such groups is compared with nobody's",
                         job->name, d->rank, g->label[0] != '\0' ? g->label : g->name);
                say(ctx, line);
            }
        }
    }
    free(of);
    roll_map_fini(&first);
}

/* What stands for the dump of a rank that has written none: the groups of which others say that it is a member. */
static struct roll_dump *stand_in(uint32_t rank, const struct dumps_seen *seen)
{
    struct roll_dump *d = roll_dump_new();
    for (size_t i = 0; d != NULL && i < seen->commons; i++) {
        const struct roll_dump_group *g = seen->common[i].group;
        int32_t self = roll_ranks_find(&g->members, rank);
        if (self >= 0 && ROLL_GROW(d->group, d->group_room, d->groups + 1) == 0) {
            struct roll_dump_group *own = &d->group[d->groups++];
            *own = *g;
            own->self = self;
            own->enqueued = seen->common[i].next;
        }
    }
    if (d != NULL) {
        d->rank = (int32_t)rank;
        snprintf(d->tool, sizeof(d->tool), "no dump");
    }
    return d;
}

/*
 * Nothing explains why calls are not complete, and of some ranks there is no dump: then these are the only ones that
 * may lack the calls. Not where most ranks are missing, as when the files of a node were not collected.
 */
static int suspect_missing(struct dumps_job *job, const struct roll_rankset *missing, const struct dumps_seen *seen,
                           roll_feed_t *feed)
{
    int err = 0;
    size_t n = roll_rankset_count(missing);
    struct roll_engine_summary summary;
    roll_engine_summary(roll_feed_engine(feed), &summary);
    for (size_t i = 0; n * 2 < job->world && summary.findings == 0 && i < n && err == 0; i++) {
        struct roll_dump *d = stand_in(roll_rankset_at(missing, i), seen);
        err = d == NULL ? ROLL_E_NOMEM : announce(feed, job, d);
        uint32_t source = err == 0 ? dumps_source(feed, d) : 0;
        err = err != 0 ? err : roll_engine_snapshot(roll_feed_engine(feed), source, false);
        for (uint32_t k = 0; err == 0 && k < d->groups; k++) {
            (void)roll_engine_place(roll_feed_engine(feed), source, dumps_comm(d, k), d->group[k].enqueued, true);
        }
        roll_dump_destroy(&d);
    }
    return err;
}

static int feed_job(struct dumps_job *job, roll_feed_t *feed, const struct roll_rankset *missing,
                    struct dumps_seen *seen, roll_dumps_say *say, void *ctx)
{
    uint64_t last_ns = 0;
    int err = 0;
    for (size_t i = 0; i < job->dumps && err == 0; i++) {
        err = announce(feed, job, job->dump[i]);
    }
    err = err != 0 ? err : dumps_adopt_unknown(job, say, ctx);
    err = err != 0 ? err : dumps_place(feed, job, seen);
    err = err != 0 ? err : give_calls(feed, job, &last_ns);
    if (err != 0) {
        return err;
    }
    uint64_t stood = stood_ns(job, last_ns, &seen->runs);
    if (seen->runs) {
        char line[LINE_BYTES];
        snprintf(
            line, sizeof(line),
            "%s: the job ran on while its dumps were written%s: who lacks a call at such a moment says nothing, and is "
            "not judged",
            job->name, seen->words);
        say(ctx, line);
        stood = 0;
    }
    err = let_pass(feed, last_ns, stood);
    if (err == 0 && roll_rankset_count(missing) > 0) {
        err = suspect_missing(job, missing, seen, feed);
        err = err != 0 ? err : let_pass(feed, last_ns + stood, stood);
    }
    return err;
}

int roll_dumps_feed(roll_dumps_t *set, size_t number, roll_feed_t *feed, roll_dumps_say *say, void *ctx)
{
    struct dumps_job *job = &set->job[number];
    struct dumps_seen seen = {.runs = false};
    struct roll_rankset missing = {0};
    qsort(job->dump, job->dumps, sizeof(*job->dump), by_rank);
    find_missing(job, &missing);
    say_missing(job, &missing, say, ctx);
    if (roll_dumps_unusable(set, number)) {
        say_unusable(job, say, ctx);
    } else {
        say_odd(job, say, ctx);
    }
    say_contradiction(job, say, ctx);
    int err = feed_job(job, feed, &missing, &seen, say, ctx);
    roll_rankset_fini(&missing);
    free(seen.common);
    return err;
}
