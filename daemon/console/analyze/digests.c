/*
 * digests.c: the files and their sections, sorted into runs.
 *
 * Files are mapped, because of 2,048 nodes' files each part is looked at once or twice. A section that comes twice, as
 * from a node that was asked a second time, is used once: the one that was made later, or holds more.
 */
#include "daemon/console/analyze/digests.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/store/segment.h"
#include "trace/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

roll_digests_t *roll_digests_new(const struct roll_engine_config *config)
{
    roll_digests_t *d = calloc(1, sizeof(*d));
    if (d) {
        d->config = config;
        d->unreached = json_array();
    }
    if (d && !d->unreached) {
        roll_digests_destroy(&d);
    }
    return d;
}

void roll_digests_destroy(roll_digests_t **pointer)
{
    roll_digests_t *d = *pointer;
    *pointer = NULL;
    if (!d) {
        return;
    }
    for (size_t i = 0; i < d->files; i++) {
        munmap(d->file[i].map, d->file[i].bytes);
        free(d->file[i].path);
    }
    for (size_t i = d->given; i < d->verdicts; i++) {
        roll_verdict_copy_destroy(&d->verdict[i]);
    }
    json_decref(d->unreached);
    free(d->file);
    free(d->section);
    free(d->verdict);
    free(d);
}

/* files */

static int map_file(const char *path, struct digest_file *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    int err = fd < 0 || fstat(fd, &st) != 0 ? roll_segment_errno() : 0;
    if (!err) {
        err = !S_ISREG(st.st_mode)                                ? ROLL_E_IO
              : st.st_size < (off_t)sizeof(struct roll_rdig_head) ? ROLL_E_SHORT
              : st.st_size > (off_t)ROLL_RDIG_MOST                ? ROLL_E_LIMIT
                                                                  : 0;
    }
    if (!err) {
        out->bytes = (size_t)st.st_size;
        out->map = mmap(NULL, out->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        err = out->map == MAP_FAILED ? roll_segment_errno() : 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

static int add_section(roll_digests_t *d, const struct roll_rdig_view *view, const char *path)
{
    struct digest_section s = {.view = *view, .path = path};
    int err = ROLL_GROW(d->section, d->section_room, d->sections + 1);
    for (uint32_t i = 0; i < view->is.rings; i++) {
        struct roll_rdig_ring r;
        roll_rdig_ring(view, i, &r);
        s.epoch = i == 0 ? r.epoch : s.epoch;
        s.next += r.next;
        s.begin += r.begin;
    }
    if (!err) {
        d->section[d->sections++] = s;
    }
    return err;
}

static int add_sections(roll_digests_t *d, const struct digest_file *f)
{
    struct roll_rdig_view view;
    uint32_t said, there = 0;
    int err = roll_rdig_check(f->map, f->bytes, &said);
    for (size_t at = 0; !err && (err = roll_rdig_next(f->map, f->bytes, &at, &view)) == 0; there++) {
        err = add_section(d, &view, f->path);
    }
    return err != ROLL_E_NOTFOUND ? err : there == said ? 0 : ROLL_E_CORRUPT;
}

int roll_digests_add(roll_digests_t *d, const char *path)
{
    struct digest_file f = {0};
    size_t before = d->sections;
    int err = ROLL_GROW(d->file, d->file_room, d->files + 1);
    err = err ? err : map_file(path, &f);
    if (err) {
        return err;
    }
    f.path = strdup(path);
    err = f.path ? add_sections(d, &f) : ROLL_E_NOMEM;
    if (err) {
        d->sections = before;
        munmap(f.map, f.bytes);
        free(f.path);
        return err;
    }
    d->file[d->files++] = f;
    d->summary.files++;
    return 0;
}

/* sections */

static bool same_text(const char *a, uint32_t as, const char *b, uint32_t bs)
{
    return as == bs && memcmp(a, b, as) == 0;
}

static bool same_run(const struct roll_rdig_section *a, const struct roll_rdig_section *b)
{
    return a->restart == b->restart && strcmp(a->job, b->job) == 0;
}

/* Two sections that say the same of the same traces, at different times or with more or fewer records. */
static bool are_of_one(const struct digest_section *a, const struct digest_section *b)
{
    const struct roll_rdig_section *x = &a->view.is, *y = &b->view.is;
    return same_run(x, y) && x->kind == y->kind && x->key == y->key && x->seq == y->seq && x->last == y->last &&
           a->epoch == b->epoch && strcmp(x->host, y->host) == 0 &&
           same_text(a->view.name, x->name_bytes, b->view.name, y->name_bytes);
}

static bool is_better(const struct digest_section *a, const struct digest_section *b)
{
    return a->next != b->next ? a->next > b->next : a->begin < b->begin;
}

/* Of several that are of one, all but the best are dropped. Sorted by what are_of_one compares, so that a run of 2,048
 * nodes is not compared each with each. */
static int by_series(const void *a, const void *b)
{
    const struct digest_section *x = *(struct digest_section *const *)a, *y = *(struct digest_section *const *)b;
    const struct roll_rdig_section *s = &x->view.is, *t = &y->view.is;
    int order = strcmp(s->job, t->job);
    order = order ? order : (s->restart > t->restart) - (s->restart < t->restart);
    order = order ? order : (s->kind > t->kind) - (s->kind < t->kind);
    order = order ? order : (s->key > t->key) - (s->key < t->key);
    order = order ? order : (s->seq > t->seq) - (s->seq < t->seq);
    order = order ? order : (s->last > t->last) - (s->last < t->last);
    order = order ? order : strcmp(s->host, t->host);
    order = order ? order : (x->epoch > y->epoch) - (x->epoch < y->epoch);
    return order ? order : (x > y) - (x < y);
}

static void drop_doubles(struct digest_section **list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i; k-- > 0 && list[k]->epoch == list[i]->epoch && !list[i]->dropped;) {
            struct digest_section *a = list[k], *b = list[i];
            if (a->dropped || !are_of_one(a, b)) {
                continue;
            }
            if (a->view.is.kind == ROLL_RDIG_END && a->next == b->next && a->begin == b->begin) {
                roll_say("%s: tells the same as %s, which is used", b->path, a->path);
            }
            bool better = is_better(b, a);
            a->dropped = better;
            b->dropped = !better;
        }
    }
}

/* runs */

/* Adds what these sections lack, and the feed that has been fed them does not know of. Files of version 1 count among
 * what is lost what is older: so both together are never more than all sections lack. */
static void add_lacking(struct roll_digests_summary *s, uint64_t lost, uint64_t older, const roll_feed_t *feed)
{
    uint64_t losses[ROLL_LOSS_LIMIT], fed_lost = roll_feed_losses(feed, losses), fed_older = roll_feed_older(feed);
    uint64_t all = lost + older > fed_lost + fed_older ? lost + older - fed_lost - fed_older : 0;
    uint64_t more = lost > fed_lost ? lost - fed_lost : 0;
    more = more < all ? more : all;
    s->lost += more;
    s->older += all - more;
}

static int judge_run(roll_digests_t *d, struct digest_run *run)
{
    bool whole = true;
    uint64_t lost = 0, older = 0;
    for (size_t i = 0; i < run->ends; i++) {
        const struct roll_rdig_section *s = &run->section[i]->view.is;
        whole = whole && (s->flags & ROLL_RDIG_WHOLE) != 0;
        *d->cut = *d->cut || (s->flags & ROLL_RDIG_CUT) != 0;
        lost += s->lost;
        older += s->older;
        d->summary.calls += s->calls;
    }
    int err = roll_digests_feed(d, run->section, run->ends, !whole, run->feed);
    err = err ? err : roll_feed_finish(run->feed);
    for (struct roll_verdict_copy *v; !err && (v = roll_feed_next(run->feed)) != NULL;) {
        err = roll_digests_keep(d, v);
    }
    add_lacking(&d->summary, lost, older, run->feed);
    return err ? err : roll_digests_compare(d, run);
}

/* traces beside digests */

enum beside { TRACES_HOLD_ALL, DIGESTS_HOLD_ALL, EACH_LACKS };

/* How many rings of the digests the traces have, as far as these; and how many of the traces' the digests have. */
static enum beside which_holds_all(const struct digest_run *run, const roll_feed_t *feed)
{
    size_t digested = 0, traced = 0, as_far = 0, farther = 0;
    struct roll_feed_stream s;
    while (roll_feed_stream(feed, traced, &s)) {
        traced++;
    }
    for (size_t i = 0; i < run->ends; i++) {
        const struct roll_rdig_view *v = &run->section[i]->view;
        for (uint32_t k = 0; k < v->is.rings; k++) {
            struct roll_rdig_ring r;
            roll_rdig_ring(v, k, &r);
            bool there = roll_feed_find(feed, r.epoch, &s);
            digested++;
            as_far += there && s.next_ticket >= r.next;
            farther += there && r.next >= s.next_ticket;
        }
    }
    return as_far == digested ? TRACES_HOLD_ALL : farther == traced ? DIGESTS_HOLD_ALL : EACH_LACKS;
}

/* The feed for the digests of a run of which traces were given, too; NULL: the traces are what is judged. 0, NOMEM. */
static int feed_beside(roll_digests_t *d, struct digest_run *run, roll_digests_feed_of *feed_of, void *ctx)
{
    roll_feed_t *feed = run->feed;
    const struct roll_rdig_section *is = &run->section[0]->view.is;
    bool traced;
    switch (which_holds_all(run, feed)) {
    case TRACES_HOLD_ALL:
        roll_say(
            "job %s.%u: its traces were given as well, and hold all that its digests tell of: the traces are judged",
            is->job, is->restart);
        run->feed = NULL;
        return 0;
    case DIGESTS_HOLD_ALL:
        roll_say(
            "job %s.%u: some traces of it were given as well, and its digests tell of more: the digests are judged",
            is->job, is->restart);
        return feed_of(ctx, is->job, is->restart, true, &traced, &run->feed);
    default:
        roll_say("job %s.%u: of some ranks there are traces alone, of others digests alone: the traces are judged, and "
                 "the digests left out; `rollcall digest` of these traces makes them digests, too, which can be "
                 "analyzed together",
                 is->job, is->restart);
        *d->cut = true;
        run->feed = NULL;
        return 0;
    }
}

int roll_digests_judge(roll_digests_t *d, roll_digests_feed_of *feed_of, void *ctx, bool *cut)
{
    struct digest_section **list = calloc(d->sections + 1, sizeof(*list));
    const struct digest_section **of_run = calloc(d->sections + 1, sizeof(*of_run));
    int err = list && of_run ? 0 : ROLL_E_NOMEM;
    size_t kept = 0;
    d->cut = cut;
    for (size_t i = 0; i < d->sections && !err; i++) {
        list[i] = &d->section[i];
    }
    if (!err && d->sections > 1) {
        qsort(list, d->sections, sizeof(*list), by_series);
    }
    if (!err) {
        drop_doubles(list, d->sections);
    }
    for (size_t i = 0; i < d->sections && !err; i++) {
        if (!list[i]->dropped) {
            of_run[kept++] = list[i];
        }
    }
    for (size_t i = 0, next; i < kept && !err; i = next) {
        const struct roll_rdig_section *first = &of_run[i]->view.is;
        struct digest_run run = {.section = of_run + i};
        for (next = i; next < kept && same_run(first, &of_run[next]->view.is); next++) {
            run.ends += of_run[next]->view.is.kind == ROLL_RDIG_END;
        }
        run.all = next - i;
        bool traced = false;
        err = feed_of(ctx, first->job, first->restart, false, &traced, &run.feed);
        if (err == ROLL_E_NOTFOUND) {
            err = 0;
            continue;
        }
        err = !err && traced ? feed_beside(d, &run, feed_of, ctx) : err;
        err = !err && run.feed ? judge_run(d, &run) : err;
    }
    free(list);
    free(of_run);
    return err;
}

struct roll_verdict_copy *roll_digests_next(roll_digests_t *d)
{
    return d->given < d->verdicts ? d->verdict[d->given++] : NULL;
}

void roll_digests_summary(const roll_digests_t *d, struct roll_digests_summary *out)
{
    *out = d->summary;
}

json_t *roll_digests_unreached(const roll_digests_t *d)
{
    return json_incref(d->unreached);
}
