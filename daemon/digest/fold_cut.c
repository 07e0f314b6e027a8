/*
 * fold_cut.c: what is new of one rank since the last time: windows that were filled, a check point, fronts, sums, hints
 * (fold.h).
 *
 * All communicators of the rank are looked at, because one rank has few; a list of those that have moved is not worth
 * its upkeep on the path of each record.
 */
#include "daemon/digest/fold_state.h"

#include "daemon/digest/points.h"

#include <stdlib.h>
#include <string.h>

/* The roundest number of calls in the window that is being filled, where no call of it is missing. */
static void cut_point(struct roll_fold_member *m, struct roll_digest *out)
{
    uint32_t window = m->next / ROLL_DIGEST_WINDOW, begin = window * ROLL_DIGEST_WINDOW;
    uint32_t from = m->pointed > begin ? m->pointed : begin;
    if (m->known && m->next > from) {
        uint32_t calls = roll_point_roundest(from, m->next) - begin;
        roll_digest_add_window(out,
                               &(struct roll_digest_window){
                                   .key = m->key, .hash = roll_fold_hash(m, calls), .window = window, .calls = calls});
        m->pointed = m->next;
    }
}

/* Nobody will compare its windows any more. Where the rank came to is kept: an excerpt may reach back so far, and a
 * rank that seemed to stand at 0 would be blamed. */
static void give_back_windows(struct roll_fold *fold, uint32_t id)
{
    free(fold->member[id]->fill);
    fold->member[id]->fill = NULL;
    roll_observed_forget(fold->observed, id);
}

static void cut_member(struct roll_fold_member *m, bool gone, struct roll_digest *out)
{
    uint32_t full = m->next / ROLL_DIGEST_WINDOW, calls = m->next & ROLL_FOLD_MASK;
    /* The window behind which nothing has come yet is not among `filled`. */
    if (calls == 0 && m->next != 0) {
        bool known = m->known;
        m->fill->filled[(full - 1) % ROLL_FOLD_WINDOWS] =
            (struct roll_fold_filled){known ? roll_fold_hash(m, ROLL_DIGEST_WINDOW) : 0, known};
    }
    for (uint32_t w = full - m->told > ROLL_FOLD_WINDOWS ? full - ROLL_FOLD_WINDOWS : m->told; w < full; w++) {
        const struct roll_fold_filled *f = &m->fill->filled[w % ROLL_FOLD_WINDOWS];
        if (f->known) {
            roll_digest_add_window(out, &(struct roll_digest_window){.key = m->key, .hash = f->hash, .window = w});
        }
    }
    m->told = full;
    cut_point(m, out);
    if (m->moved) {
        struct roll_digest_front front = {.key = m->key,
                                          .hash = m->known ? roll_fold_hash(m, calls) : 0,
                                          .size = m->size,
                                          .members = 1,
                                          .low = m->next,
                                          .high = m->next,
                                          .gone = gone};
        roll_digest_add_front(out, &front);
        m->moved = false;
    }
    if (m->sums_moved) {
        struct roll_digest_messages sums = {.key = m->key};
        memcpy(sums.sum, m->sum, sizeof(sums.sum));
        roll_digest_add_messages(out, &sums);
        m->sums_moved = false;
    }
}

void roll_fold_cut(roll_fold_t *fold, uint64_t now_ns, struct roll_digest *out)
{
    for (size_t i = 0; i < fold->members; i++) {
        struct roll_fold_member *m = fold->member[i];
        if (!m || !m->fill) {
            continue;
        }
        bool gone = m->gone || fold->ended;
        cut_member(m, gone, out);
        m->gone_ns = gone && m->gone_ns == 0 ? now_ns : m->gone_ns;
        if (gone && now_ns >= m->gone_ns + ROLL_DIGEST_KEEP_NS) {
            give_back_windows(fold, (uint32_t)i);
        }
    }
    uint64_t from = fold->likes > ROLL_FOLD_LIKES ? fold->likes - ROLL_FOLD_LIKES : 0;
    for (uint64_t i = fold->likes_told > from ? fold->likes_told : from; i < fold->likes; i++) {
        roll_digest_add_like(out, &fold->like[i % ROLL_FOLD_LIKES]);
    }
    fold->likes_told = fold->likes;
    roll_observed_cut(fold->observed, out);
    for (uint32_t i = 0; i < fold->threads; i++) {
        struct roll_fold_inside *t = &fold->inside[i];
        if (t->ticket != 0 && !t->told && now_ns - t->since_ns >= fold->inside_ns) {
            roll_fold_hint(fold, roll_fold_member_of(fold, t->comm), ROLL_HINT_INSIDE, 0);
            t->told = true;
        }
    }
    bool at_work = fold->call_ticket > fold->waited_ticket;
    if (at_work && !fold->told_quiet && now_ns - fold->last_ns >= 2 * fold->inside_ns) {
        roll_fold_hint(fold, NULL, ROLL_HINT_QUIET, 0);
        fold->told_quiet = true;
    }
    for (size_t i = 0; i < fold->hints.hints; i++) {
        const struct roll_digest_hint *h = &fold->hints.hint[i];
        roll_digest_add_hint(out, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    roll_digest_clear(&fold->hints);
}

void roll_fold_again(roll_fold_t *fold)
{
    for (size_t i = 0; i < fold->members; i++) {
        struct roll_fold_member *m = fold->member[i];
        if (m && m->fill) {
            uint32_t full = m->next / ROLL_DIGEST_WINDOW;
            m->told = full > ROLL_FOLD_WINDOWS ? full - ROLL_FOLD_WINDOWS : 0;
            m->pointed = 0;
            m->moved = m->sums_moved = true;
        }
    }
    fold->likes_told = 0;
    roll_observed_again(fold->observed);
}
