/*
 * digest_bytes.c: see digest_bytes.h. A head, which says of what form the digest is and how many parts there are, then
 * the parts, each kind by itself, in the order of the head; little-endian. A level that folds otherwise, by windows of
 * another size, would seem to differ everywhere: its digests are refused by their form. Sums that are zero are left out
 * of their part. Numbers of variable length were rejected: most of a digest are keys and hashes, which they make
 * longer.
 */
#include "daemon/digest/digest_bytes.h"

#include "trace/err.h"

#include <math.h>
#include <string.h>

struct head {
    uint16_t version, window; /* ROLL_DIGEST_VERSION, ROLL_DIGEST_WINDOW */
    uint32_t reserved;
    uint32_t windows, fronts, sums, likes, shares, hints;
};
struct window_bytes {
    uint64_t key, hash;
    uint32_t window, calls; /* calls: less than a window, of a check point; 0: all of it */
};
struct front_bytes {
    uint64_t key, hash;
    uint32_t size, members, low, high;
    uint32_t flags, reserved; /* FRONT_DIFFERS, FRONT_GONE */
};
struct sums_bytes {
    uint64_t key;
    uint32_t classes, reserved; /* a bit for each sum that follows, 8 bytes each */
};
struct like_bytes {
    uint64_t key, place, hash;
    uint32_t why, seq;
};
struct share_bytes {
    uint64_t key, place;
    double part, size, least, most;
    uint32_t members, seq;
};
struct hint_bytes {
    uint64_t key;
    uint32_t why, seq;
};
#define FRONT_DIFFERS 1u
#define FRONT_GONE    2u

_Static_assert(sizeof(struct head) == 32 && sizeof(struct window_bytes) == 24 && sizeof(struct front_bytes) == 40 &&
                   sizeof(struct sums_bytes) == 16 && sizeof(struct like_bytes) == 32 &&
                   sizeof(struct share_bytes) == 56 && sizeof(struct hint_bytes) == 16,
               "the sizes are part of the format");

/* encoding */

struct writer {
    unsigned char *at;
    size_t left;
};

static bool put(struct writer *w, const void *bytes, size_t n)
{
    if (n > w->left) {
        return false;
    }
    memcpy(w->at, bytes, n);
    w->at += n;
    w->left -= n;
    return true;
}

static bool put_window(struct writer *w, const struct roll_digest_window *window)
{
    struct window_bytes b = {
        .key = window->key, .hash = window->hash, .window = window->window, .calls = window->calls};
    return put(w, &b, sizeof(b));
}

static bool put_front(struct writer *w, const struct roll_digest_front *front)
{
    struct front_bytes b = {.key = front->key,
                            .hash = front->hash,
                            .size = front->size,
                            .members = front->members,
                            .low = front->low,
                            .high = front->high,
                            .flags = (front->differs ? FRONT_DIFFERS : 0) | (front->gone ? FRONT_GONE : 0)};
    return put(w, &b, sizeof(b));
}

static bool put_sums(struct writer *w, const struct roll_digest_messages *sums)
{
    unsigned char bytes[sizeof(struct sums_bytes) + sizeof(sums->sum)];
    struct sums_bytes b = {.key = sums->key};
    size_t n = sizeof(b);
    for (unsigned i = 0; i < ROLL_DIGEST_CLASSES; i++) {
        if (sums->sum[i] != 0) {
            b.classes |= 1u << i;
            memcpy(bytes + n, &sums->sum[i], sizeof(sums->sum[i]));
            n += sizeof(sums->sum[i]);
        }
    }
    memcpy(bytes, &b, sizeof(b));
    return put(w, bytes, n);
}

static bool put_like(struct writer *w, const struct roll_digest_like *like)
{
    struct like_bytes b = {
        .key = like->key, .place = like->place, .hash = like->hash, .why = like->why, .seq = like->seq};
    return put(w, &b, sizeof(b));
}

static bool put_share(struct writer *w, const struct roll_digest_share *share)
{
    struct share_bytes b = {.key = share->key,
                            .place = share->place,
                            .part = share->part,
                            .size = share->size,
                            .least = share->least,
                            .most = share->most,
                            .members = share->members,
                            .seq = share->seq};
    return put(w, &b, sizeof(b));
}

static bool put_hint(struct writer *w, const struct roll_digest_hint *hint)
{
    struct hint_bytes b = {.key = hint->key, .why = hint->why, .seq = hint->seq};
    return put(w, &b, sizeof(b));
}

/*
 * How many of the next windows and fronts go into `room`: the windows of a communicator together with its front, which
 * in a digest stand in one order. A front behind which windows come would say of them that they have been told, and
 * without it nobody knows whether windows with high numbers are made up. Where there is no room for them together even
 * in a payload of their own, the front goes first.
 */
static void fit_comms(const struct roll_digest *d, const struct roll_digest_cursor *cursor, size_t room,
                      uint32_t *windows, uint32_t *fronts)
{
    size_t w = cursor->windows, f = cursor->fronts;
    for (bool fits = true; fits && (w < d->windows || f < d->fronts);) {
        uint64_t key = w < d->windows ? d->window[w].key : 0;
        size_t run = 0;
        while (w + run < d->windows && d->window[w + run].key == key) {
            run++;
        }
        bool alone = f < d->fronts && (run == 0 || d->front[f].key != key);
        run = alone ? 0 : run;
        size_t front = f < d->fronts, bytes = run * sizeof(struct window_bytes) + front * sizeof(struct front_bytes);
        fits = bytes <= room;
        if (!fits) {
            bool first = w == cursor->windows && f == cursor->fronts;
            front = first && front * sizeof(struct front_bytes) <= room ? front : 0;
            run = first ? (room - front * sizeof(struct front_bytes)) / sizeof(struct window_bytes) : 0;
        }
        room -= run * sizeof(struct window_bytes) + front * sizeof(struct front_bytes);
        w += run;
        f += front;
    }
    *windows = (uint32_t)(w - cursor->windows);
    *fronts = (uint32_t)(f - cursor->fronts);
}

size_t roll_digest_encode(const struct roll_digest *d, struct roll_digest_cursor *cursor, void *out, size_t room)
{
    struct head head = {.version = ROLL_DIGEST_VERSION, .window = ROLL_DIGEST_WINDOW};
    struct writer w = {.at = (unsigned char *)out + sizeof(head), .left = room};
    if (room < sizeof(head)) {
        return 0;
    }
    w.left -= sizeof(head);
    fit_comms(d, cursor, w.left, &head.windows, &head.fronts);
    for (uint32_t i = 0; i < head.windows; i++) {
        (void)put_window(&w, &d->window[cursor->windows++]);
    }
    for (uint32_t i = 0; i < head.fronts; i++) {
        (void)put_front(&w, &d->front[cursor->fronts++]);
    }
    bool goes_on = cursor->windows == d->windows && cursor->fronts == d->fronts;
    for (; goes_on && cursor->sums < d->sums && put_sums(&w, &d->messages[cursor->sums]); cursor->sums++) {
        head.sums++;
    }
    for (; goes_on && cursor->likes < d->likes && put_like(&w, &d->like[cursor->likes]); cursor->likes++) {
        head.likes++;
    }
    for (; goes_on && cursor->shares < d->shares && put_share(&w, &d->share[cursor->shares]); cursor->shares++) {
        head.shares++;
    }
    for (; goes_on && cursor->hints < d->hints && put_hint(&w, &d->hint[cursor->hints]); cursor->hints++) {
        head.hints++;
    }
    memcpy(out, &head, sizeof(head));
    bool none = head.windows + head.fronts + head.sums + head.likes + head.shares + head.hints == 0;
    return none ? 0 : room - w.left;
}

/* decoding */

struct reader {
    const unsigned char *at;
    size_t left;
};

static bool get(struct reader *r, void *out, size_t n)
{
    if (n > r->left) {
        return false;
    }
    memcpy(out, r->at, n);
    r->at += n;
    r->left -= n;
    return true;
}

static bool get_sums(struct reader *r, struct roll_digest_messages *out)
{
    struct sums_bytes b;
    if (!get(r, &b, sizeof(b)) || b.classes >> ROLL_DIGEST_CLASSES != 0) {
        return false;
    }
    *out = (struct roll_digest_messages){.key = b.key};
    for (unsigned i = 0; i < ROLL_DIGEST_CLASSES; i++) {
        if ((b.classes >> i & 1) != 0 && !get(r, &out->sum[i], sizeof(out->sum[i]))) {
            return false;
        }
    }
    return true;
}

/* A number that is none, or too large, would spread to every level above, and hide what the others say. */
static bool get_share(struct reader *r, struct roll_digest_share *out)
{
    struct share_bytes b;
    if (!get(r, &b, sizeof(b)) || !isfinite(b.part) || !isfinite(b.size) || isnan(b.least) || isnan(b.most)) {
        return false;
    }
    *out = (struct roll_digest_share){.key = b.key,
                                      .place = b.place,
                                      .part = b.part,
                                      .size = b.size,
                                      .least = b.least,
                                      .most = b.most,
                                      .members = b.members,
                                      .seq = b.seq};
    return true;
}

static bool get_likes(struct reader *r, const struct head *head, struct roll_digest *out)
{
    for (uint32_t i = 0; i < head->likes; i++) {
        struct like_bytes b;
        if (!get(r, &b, sizeof(b)) || (b.why != ROLL_HINT_OBSERVED && b.why != ROLL_HINT_MESSAGES)) {
            return false;
        }
        roll_digest_add_like(out, &(struct roll_digest_like){
                                      .key = b.key, .place = b.place, .hash = b.hash, .why = b.why, .seq = b.seq});
    }
    for (uint32_t i = 0; i < head->shares; i++) {
        struct roll_digest_share share;
        if (!get_share(r, &share)) {
            return false;
        }
        roll_digest_add_share(out, &share);
    }
    return true;
}

static bool get_parts(struct reader *r, const struct head *head, struct roll_digest *out)
{
    for (uint32_t i = 0; i < head->windows; i++) {
        struct window_bytes b;
        if (!get(r, &b, sizeof(b)) || b.calls >= ROLL_DIGEST_WINDOW) {
            return false;
        }
        roll_digest_add_window(
            out, &(struct roll_digest_window){.key = b.key, .hash = b.hash, .window = b.window, .calls = b.calls});
    }
    for (uint32_t i = 0; i < head->fronts; i++) {
        struct front_bytes b;
        if (!get(r, &b, sizeof(b))) {
            return false;
        }
        roll_digest_add_front(out, &(struct roll_digest_front){.key = b.key,
                                                               .hash = b.hash,
                                                               .size = b.size,
                                                               .members = b.members,
                                                               .low = b.low,
                                                               .high = b.high,
                                                               .differs = (b.flags & FRONT_DIFFERS) != 0,
                                                               .gone = (b.flags & FRONT_GONE) != 0});
    }
    for (uint32_t i = 0; i < head->sums; i++) {
        struct roll_digest_messages sums;
        if (!get_sums(r, &sums)) {
            return false;
        }
        roll_digest_add_messages(out, &sums);
    }
    if (!get_likes(r, head, out)) {
        return false;
    }
    for (uint32_t i = 0; i < head->hints; i++) {
        struct hint_bytes b;
        if (!get(r, &b, sizeof(b)) || b.why == 0 || b.why > ROLL_HINT_LAST) {
            return false;
        }
        roll_digest_add_hint(out, b.key, (enum roll_digest_why)b.why, b.seq);
    }
    return true;
}

int roll_digest_decode(const void *data, size_t bytes, struct roll_digest *out)
{
    struct reader r = {.at = data, .left = bytes};
    const struct roll_digest_cursor before = {out->windows, out->fronts, out->sums,
                                              out->likes,   out->shares, out->hints};
    struct head head;
    if (!get(&r, &head, sizeof(head))) {
        return ROLL_E_SHORT;
    }
    if (head.version < ROLL_DIGEST_OLDEST || head.version > ROLL_DIGEST_VERSION || head.window != ROLL_DIGEST_WINDOW) {
        return ROLL_E_VERSION;
    }
    out->short_of_memory = false;
    bool whole = get_parts(&r, &head, out) && r.left == 0;
    if (whole && !out->short_of_memory) {
        return 0;
    }
    out->windows = before.windows;
    out->fronts = before.fronts;
    out->sums = before.sums;
    out->likes = before.likes;
    out->shares = before.shares;
    out->hints = before.hints;
    return whole ? ROLL_E_NOMEM : ROLL_E_SIZE;
}
