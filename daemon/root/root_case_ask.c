/*
 * root_case_ask.c: which records are asked for where digests do not agree.
 *
 * Of a job of not too many ranks everybody is asked: what a rank waits for may stand on any other communicator. Of a
 * larger one only those are asked that are concerned: the members of the communicators that hints name, ranks that have
 * hinted at something themselves, and processes that have failed. Where a rank waits on another communicator, that one
 * stands as well, and gives a hint of its own; what the engine says of a communicator that nobody has named is not
 * said, and its members are asked (root_case.c). Of calls that differ on communicators of more ranks than that the
 * calls on these are asked for first, and all records where the engine cannot name a wrong argument by them. How many
 * records are asked for is shared out among those that are asked, so that a case costs what it costs at any number of
 * ranks.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define WANTS         16384u     /* communicators that an EXCERPT names */
#define CASE_RANKS    256u       /* as many are asked all of them */
#define CASE_RECORDS  (1u << 20) /* that rings reach back for all together, about */
#define HISTORY       512u       /* records of each ring that are asked for besides what is wanted, at most */
#define HISTORY_LEAST 64u        /* the same at least, */
#define FOLLOW_LEAST  64u        /* and of those that follow */
#define REACH         384u /* so far back an excerpt may reach at any share: hosts run some steps ahead of who stands */
#define NARROW_LEAST  16u  /* of calls on one communicator: what came before, at least, */
#define NARROW_MOST   64u  /* and at most: an alignment looks back no further */
#define NARROW_BEHIND 16u  /* and behind the window in which calls differ: by these it is seen who goes on alike */
#define NARROW_FOLLOW 512u /* and of what follows no more than these: windows that differ may be some apart */
/*
 * Of the share of a ring so much is history, and as many records as that may follow. What is wanted is what a verdict
 * rests on, and what a large case costs beyond it everybody waits for.
 */
#define HISTORY_PART 8u
#define FOLLOW_PART  4u
#define BESIDE_BYTES 4096u /* that come of a ring beside its records and what these name, about */
#define NAMED_PART   16u   /* of what may be kept, a part for what records name, however many there are */

bool roll_case_is_hinted(const struct roll_digested *d, uint64_t key)
{
    for (size_t i = 0; i < d->hints.hints; i++) {
        if (d->hints.hint[i].key == key) {
            return true;
        }
    }
    return false;
}

/* The first collective that this hint that calls differ may be about, as far as check points tell now. */
static uint32_t hinted_from(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    struct roll_sum_place place;
    bool known = d->narrow && roll_sum_place(d->sum, h->key, &place) && place.differs_at != 0;
    return known && roll_digest_window_of(place.differs_at) == h->seq ? roll_digest_first(place.differs_at) : h->seq;
}

/* The same as it was when the case was opened: from there on its calls were asked for. */
static uint32_t asked_from(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    for (uint32_t i = 0; d->narrow && i < d->spans; i++) {
        if (d->span[i].key == h->key && d->span[i].window == h->seq) {
            return d->span[i].first;
        }
    }
    return h->seq;
}

/* Where calls alone are asked for, the part of a window that is alike is not. */
static void note_spans(struct roll_digested *d)
{
    d->spans = 0;
    for (size_t i = 0; d->narrow && i < d->hints.hints && d->spans < ROLL_CASE_SPANS; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        uint32_t first = h->why == ROLL_HINT_DIFFERS ? hinted_from(d, h) : h->seq;
        if (first > h->seq && asked_from(d, h) == h->seq) {
            d->span[d->spans++] = (struct case_span){.key = h->key, .window = h->seq, .first = first};
        }
    }
}

bool roll_case_reaches_back(const struct roll_digested *d, const struct roll_digest_hint *h,
                            const struct roll_frame_want *want)
{
    return hinted_from(d, h) >= want->low;
}

struct roll_frame_want roll_case_want(const struct roll_digested *d, size_t hints, uint64_t key)
{
    struct roll_sum_place place = {0};
    bool known = roll_sum_place(d->sum, key, &place) && place.members != 0;
    struct roll_frame_want w = {.key = key, .low = UINT32_MAX};
    if (known && !d->narrow) {
        w.low = place.members == place.size ? place.low : 0;
    }
    for (size_t i = 0; i < hints && i < d->hints.hints; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        if (h->key == key && h->why == ROLL_HINT_DIFFERS) {
            uint32_t end = h->seq + ROLL_DIGEST_WINDOW + NARROW_BEHIND, first = asked_from(d, h);
            w.low = first < w.low ? first : w.low;
            w.high = d->narrow && end > w.high && end > h->seq ? end : w.high;
        } else if (h->key == key && h->why == ROLL_HINT_MESSAGES) {
            w.classes |= h->seq;
        } else if (h->key == key && h->why == ROLL_HINT_OBSERVED && (w.step == 0 || h->seq < w.step)) {
            w.step = h->seq;
        }
    }
    return w;
}

bool roll_case_asks_everybody(const roll_root_t *root, const struct roll_digested *d)
{
    return d->rings <= (root->o.case_ranks ? root->o.case_ranks : CASE_RANKS);
}

bool roll_case_stands(const struct roll_digested *d, const struct roll_digest_hint *hint)
{
    struct roll_sum_place place;
    bool known = roll_sum_place(d->sum, hint->key, &place);
    if (known && place.members != 0) {
        return place.low == hint->seq && (place.low < place.high || place.members < place.size);
    }
    if (known && place.low < place.high) { /* all are below a relay or an agent, which tells where they stand apart */
        return place.low == hint->seq;
    }
    /* One of an older release does not: the records know, while they are here. */
    const roll_engine_t *engine = d->fed ? roll_feed_engine(d->feed) : NULL;
    return engine && roll_engine_has_all(engine, hint->key) && roll_engine_done(engine, hint->key) == hint->seq;
}

/* An earlier hint names the same communicator: for another reason, or because it stands as well. */
static bool is_named_before(const struct roll_digested *d, size_t at)
{
    bool before = false;
    for (size_t i = 0; i < at && !before; i++) {
        before = d->hints.hint[i].key == d->hints.hint[at].key;
    }
    return before;
}

/* How many rings will send records: members of hinted communicators, as far as their numbers are known. */
static uint64_t concerned(const struct roll_digested *d)
{
    uint64_t n = 8; /* those that fail, or have hinted themselves */
    struct roll_sum_place place;
    for (size_t i = 0; d->scoped && i < d->hints.hints; i++) {
        uint64_t members = roll_sum_place(d->sum, d->hints.hint[i].key, &place) ? place.size : 8;
        n += is_named_before(d, i) ? 0 : members;
    }
    return d->scoped && n < d->rings ? n : d->rings + 1;
}

static uint64_t bounded(uint64_t n, uint64_t least, uint64_t most)
{
    return n < least ? least : n < most ? n : most;
}

bool roll_case_any_stands(const struct roll_digested *d, bool there)
{
    bool stands = false;
    for (size_t i = 0; i < d->hints.hints && !stands; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        bool still = h->why == ROLL_HINT_STANDS ? roll_case_stands(d, h) : !roll_hint_is_urgent(h);
        stands = still && (!there || roll_hint_differs(d, h->key));
    }
    return stands;
}

/* Calls differ, nobody stands there, and nothing else is urgent: so the calls on their communicators may be enough. Who
 * stands elsewhere waits until something is told of them. */
static bool is_about_calls(const struct roll_digested *d)
{
    bool calls = false, others = false;
    for (size_t i = 0; i < d->hints.hints; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        bool differs = h->why == ROLL_HINT_DIFFERS && h->key != 0;
        calls = calls || differs;
        others = others || (roll_hint_is_urgent(h) && !differs);
    }
    return calls && !others && !roll_case_any_stands(d, true);
}

uint64_t roll_case_front(const struct roll_digested *d)
{
    uint64_t front = 0;
    for (size_t i = 0; i < d->hints.hints; i++) {
        struct roll_sum_place place;
        bool differs = d->hints.hint[i].why == ROLL_HINT_DIFFERS;
        front += differs && roll_sum_place(d->sum, d->hints.hint[i].key, &place) ? place.high : 0;
    }
    return front;
}

/* How many records each ring is asked for, about. */
static uint64_t share_of(const roll_root_t *root, const struct roll_digested *d)
{
    return (root->o.case_records ? root->o.case_records : CASE_RECORDS) / concerned(d);
}

/* The records that are there come first, and communicators, places and the heads of frames. */
static size_t room_for_named(const roll_root_t *root, const struct roll_digested *d)
{
    uint64_t most = bounded(share_of(root, d), REACH, UINT64_MAX);
    uint64_t each = (d->narrow ? NARROW_MOST + ROLL_DIGEST_WINDOW + NARROW_BEHIND : most) * ROLL_RECORD_BYTES;
    uint64_t rings = concerned(d), all = rings * (each + BESIDE_BYTES), least = ROLL_CASE_STAGE / NAMED_PART;
    return (size_t)(all + least < ROLL_CASE_STAGE ? ROLL_CASE_STAGE - all : least);
}

void roll_case_measure(const roll_root_t *root, struct roll_digested *d)
{
    size_t named = 0;
    for (size_t i = 0; i < d->hints.hints; i++) {
        named += !is_named_before(d, i);
    }
    d->scoped = !roll_case_asks_everybody(root, d) && d->again < ROLL_CASE_SCOPED && named <= ROLL_CASE_NAMED;
    d->narrow = d->scoped && !d->broad && is_about_calls(d) &&
                concerned(d) > (root->o.case_ranks ? root->o.case_ranks : CASE_RANKS);
    d->named_most = room_for_named(root, d);
    note_spans(d);
    d->stalls = d->narrow && roll_case_any_stands(d, false);
    d->front = d->narrow ? roll_case_front(d) : 0;
}

static void add_want(const struct roll_digested *d, struct roll_frame_excerpt *ask, struct roll_map *known,
                     uint64_t key)
{
    struct roll_frame_want *list = (struct roll_frame_want *)(void *)(ask + 1);
    if (key != 0 && ask->wants < WANTS && roll_map_get(known, key) == ROLL_MAP_NONE &&
        roll_map_add(known, key, ask->wants) == 0) {
        list[ask->wants++] = roll_case_want(d, d->hints.hints, key);
    }
}

/* NULL: no memory. Returned owned; *bytes: how many of it are the payload. */
static struct roll_frame_excerpt *ask_new(const roll_root_t *root, const struct roll_digested *d, size_t *bytes)
{
    struct roll_frame_excerpt *ask = malloc(sizeof(*ask) + WANTS * sizeof(struct roll_frame_want));
    struct roll_map known = {0};
    struct roll_sum_place place;
    if (!ask) {
        return NULL;
    }
    uint64_t share = share_of(root, d), key;
    *ask = (struct roll_frame_excerpt){.history = bounded(share / HISTORY_PART, HISTORY_LEAST, HISTORY),
                                       .most = bounded(share, REACH, UINT64_MAX),
                                       .follow = bounded(share / FOLLOW_PART, FOLLOW_LEAST, UINT64_MAX),
                                       .scope = d->scoped ? ROLL_EXCERPT_CONCERNED : ROLL_EXCERPT_EVERYONE};
    if (d->narrow) {
        ask->scope = ROLL_EXCERPT_NARROW;
        ask->history = bounded(share / FOLLOW_PART, NARROW_LEAST, NARROW_MOST);
        ask->follow = NARROW_FOLLOW; /* of these calls `high` is the end, which each member comes to */
    }
    for (size_t i = 0; i < d->hints.hints; i++) { /* hints first: they may be about what is judged below */
        if (!d->narrow || d->hints.hint[i].why == ROLL_HINT_DIFFERS) {
            add_want(d, ask, &known, d->hints.hint[i].key);
        }
    }
    for (size_t i = 0; !d->scoped && i < WANTS && roll_sum_at(d->sum, i, &key, &place); i++) {
        if (place.members != 0) {
            add_want(d, ask, &known, key);
        }
    }
    roll_map_fini(&known);
    *bytes = sizeof(*ask) + ask->wants * sizeof(struct roll_frame_want);
    return ask;
}

/* Sends an EXCERPT to an agent, or to all that hold rings of the run; ask NULL: no more is wanted. */
static void send_ask(const struct roll_run *run, struct roll_peer *peer, const void *ask, size_t bytes)
{
    for (size_t i = 0; i < peer->used; i++) {
        if (peer->streams[i].run == run) {
            struct roll_frame_head head = {
                .type = ROLL_FRAME_EXCERPT, .stream = peer->streams[i].stream, .first = run->digested->number};
            int err = roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, ask, bytes);
            if (err && peer->unasked != run->digested->number) { /* it is tried again, and said once */
                peer->unasked = run->digested->number;
                roll_log(ROLL_LOG_WARNING, "root: the %s on %s cannot be asked for records of %s.%u: %s",
                         roll_peer_noun(peer), peer->host, run->job, run->restart, roll_strerror(err));
            }
            return;
        }
    }
}

void roll_case_ask_all(const roll_root_t *root, const struct roll_run *run)
{
    size_t bytes = 0;
    struct roll_frame_excerpt *ask = run->digested->number ? ask_new(root, run->digested, &bytes) : NULL;
    for (size_t i = 0; i < root->peers_used; i++) {
        if (!root->peers[i]->gone) {
            send_ask(run, root->peers[i], ask, bytes);
        }
    }
    run->digested->unasked = false;
    free(ask);
}

/* The first ring of this peer, from number `from` on, of which something is awaited; peer->used: there is none. Of a
 * ring that the run could not keep for want of memory nothing is. */
static size_t awaited_of(const struct roll_run *run, const struct roll_peer *peer, size_t from)
{
    size_t k = peer->gone || roll_streams_count(peer, run) == 0 || from > peer->used ? peer->used : from;
    for (; k < peer->used; k++) {
        const struct digested_ring *r =
            peer->streams[k].run == run ? roll_digested_ring_of(run->digested, peer->streams[k].stream) : NULL;
        if (r && !roll_digested_has_sent(r)) {
            return k;
        }
    }
    return peer->used;
}

/*
 * Asked in each turn of the root, while thousands of rings send: so the look begins at the ring that was awaited last,
 * and goes round behind that. To count the rings that have sent, and those that agents hold, was rejected: a ring that
 * two agents hold, or that could not be kept, is counted on one side only.
 */
bool roll_case_is_whole(const roll_root_t *root, const struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    bool any = false; /* where all agents have gone nobody has been asked yet */
    size_t first = d->awaited_peer < root->peers_used ? d->awaited_peer : 0;
    for (size_t n = 0; root->peers_used > 0 && n <= root->peers_used; n++) {
        size_t i = (first + n) % root->peers_used, from = n == 0 && i == d->awaited_peer ? d->awaited_stream : 0;
        const struct roll_peer *peer = root->peers[i];
        size_t at = awaited_of(run, peer, from);
        if (at < peer->used) {
            d->awaited_peer = i;
            d->awaited_stream = at;
            return false;
        }
        any = any || (!peer->gone && roll_streams_count(peer, run) > 0);
    }
    return any;
}

void roll_case_ask_again(const roll_root_t *root, const struct roll_run *run)
{
    size_t bytes = 0;
    struct roll_frame_excerpt *ask = NULL;
    run->digested->unasked = false;
    for (size_t i = 0; i < root->peers_used; i++) {
        if (awaited_of(run, root->peers[i], 0) < root->peers[i]->used) {
            ask = ask ? ask : ask_new(root, run->digested, &bytes);
            if (ask) {
                send_ask(run, root->peers[i], ask, bytes);
            }
        }
    }
    free(ask);
}
