/*
 * root_hints.c: the hints of a run that is compared by digests: what waits to be looked at, and how soon a case is
 * opened for it, or the open one is begun anew.
 *
 * A case costs records, so cases that found nothing new put the next one off. But only for what they were about: a
 * wrong call on a communicator that none of them has looked at is looked at at once, and so is one that the open case
 * cannot see, because its ranks were cut or it is about others. A pause of one length for all hints was rejected: one
 * slow rank would hold up the verdict about another one's wrong call.
 */
#include "daemon/root/root_digest.h"

#define HINTS    (4 * ROLL_CASE_NAMED) /* that are kept; of so many communicators everybody is asked anyway */
#define SEEN_NS  (1000 * ROLL_MS)      /* the open case has been sent the records behind a hint by then */
#define STILL_NS (2000 * ROLL_MS)
#define QUIET_NS (1250 * ROLL_MS) /* a job in which nobody has told of a call for so long makes none */
#define GOING_NS                                                                                                       \
    (3000 * ROLL_MS) /* where a job goes on, who waits there has waited for so long before it is looked at */
#define TIMES 2u     /* a case is begun anew so many times as late as its records took to come, at the earliest */

/* Of a communicator that is named already the call counts at which its last member stands now. Where it was named for
 * another reason, that it stands is noted beside that: it is told once, and the open case may end before its engine has
 * been patient enough. */
static void stands_later(struct roll_digested *d, const struct roll_digest_hint *h)
{
    bool known = false;
    for (size_t i = 0; i < d->hints.hints; i++) {
        if (d->hints.hint[i].key == h->key && d->hints.hint[i].why == ROLL_HINT_STANDS) {
            d->hints.hint[i].seq = h->seq;
            known = true;
        }
    }
    if (!known && d->hints.hints < HINTS) {
        roll_digest_add_hint(&d->hints, h->key, ROLL_HINT_STANDS, h->seq);
    }
}

static bool any_cut(const struct roll_digested *d)
{
    bool cut = false;
    for (size_t i = 0; i < d->rings && !cut; i++) {
        cut = d->ring[i].cut;
    }
    return cut;
}

/* What finds nothing new is looked at less and less often. */
static uint64_t next_pause(uint64_t last_ns, bool news)
{
    uint64_t longer = 2 * last_ns < ROLL_CASE_HOLD_MOST_NS ? 2 * last_ns : ROLL_CASE_HOLD_MOST_NS;
    return news ? ROLL_CASE_HOLD_NS : longer;
}

/* One of the last cases was about this communicator. */
static bool is_past(const struct roll_digested *d, uint64_t key)
{
    return key == 0 || roll_map_get(&d->past, key) != ROLL_MAP_NONE;
}

/* Of this communicator no call is known to differ, or only later ones. */
static bool is_lower(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    bool lower = true;
    for (size_t i = 0; i < d->hints.hints && lower; i++) {
        const struct roll_digest_hint *o = &d->hints.hint[i];
        lower = o->key != h->key || o->why != ROLL_HINT_DIFFERS || h->seq < o->seq;
    }
    return lower;
}

/* The open case has not asked for what this hint is about: records further back, or those of other members. Notes it.
 */
static bool note_one(struct roll_digested *d, const struct roll_digest_hint *h)
{
    struct roll_frame_want w = roll_case_want(d, d->hints.hints, h->key);
    bool differs = h->why == ROLL_HINT_DIFFERS && !roll_case_reaches_back(d, h, &w);
    bool messages = h->why == ROLL_HINT_MESSAGES && (h->seq & ~w.classes) != 0;
    bool observed = h->why == ROLL_HINT_OBSERVED && (w.step == 0 || h->seq < w.step);
    bool others = h->key != 0 ? !roll_case_is_hinted(d, h->key) : d->scoped;
    bool lower = h->why == ROLL_HINT_DIFFERS && is_lower(d, h); /* a narrow case asks from there on */
    if (h->why == ROLL_HINT_STANDS && !others) {
        stands_later(d, h);
    }
    if ((differs || lower || messages || observed || (others && h->key != 0)) && d->hints.hints < HINTS) {
        roll_digest_add_hint(&d->hints, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    return differs || messages || observed || (others && d->scoped);
}

/* Into d->late or d->covered: of each communicator and kind the newest, which alone nobody has looked at; of messages
 * all. */
static void note_late(struct roll_digest *late, const struct roll_digest_hint *h)
{
    for (size_t k = 0; k < late->hints; k++) {
        struct roll_digest_hint *l = &late->hint[k];
        if (l->key == h->key && l->why == h->why) {
            bool sooner = h->why == ROLL_HINT_STANDS || h->seq < l->seq;
            l->seq = h->why == ROLL_HINT_MESSAGES ? l->seq | h->seq : sooner ? h->seq : l->seq;
            return;
        }
    }
    if (late->hints < HINTS) {
        roll_digest_add_hint(late, h->key, (enum roll_digest_why)h->why, h->seq);
    }
}

/* The open case has asked for the calls on some communicators alone, and a wrong one among those that this hint is
 * about will be there: also of members that are cut behind these calls (ROLL_EXCERPT_PASSED). Of those that are cut
 * before (d->partly) it will not. */
static bool is_covered(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    struct roll_frame_want w = roll_case_want(d, d->asked, h->key);
    return d->narrow && h->why == ROLL_HINT_DIFFERS && roll_case_reaches_back(d, h, &w) &&
           (uint64_t)h->seq + ROLL_DIGEST_WINDOW <= w.high;
}

/* Where what differs at this collective leaves off, as far as hints tell that the windows behind it differ as well. */
static uint64_t differs_upto(const struct roll_digested *d, uint64_t key, uint32_t seq)
{
    uint64_t upto = seq, before;
    do {
        before = upto;
        for (size_t i = 0; i < d->hints.hints; i++) {
            const struct roll_digest_hint *h = &d->hints.hint[i];
            uint64_t window = roll_digest_window_of(h->seq), end = window + ROLL_DIGEST_WINDOW - 1;
            bool follows = h->key == key && h->why == ROLL_HINT_DIFFERS && window <= upto + ROLL_DIGEST_WINDOW;
            upto = follows && end > upto ? end : upto;
        }
    } while (upto != before);
    return upto;
}

/*
 * The open case has told of calls that differ there: in that window or just behind it, where a call that was left out
 * shows, or before it and in all windows between. To go by the communicator alone was rejected: another call that
 * differs on it, far from the first, would not be looked at any more.
 */
static bool is_told(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    uint64_t window = roll_digest_window_of(h->seq);
    bool told = false;
    for (uint32_t i = 0; i < d->named_keys && h->why == ROLL_HINT_DIFFERS && !told; i++) {
        uint32_t seq = d->named_seq[i];
        bool near = seq < window + 2 * ROLL_DIGEST_WINDOW && window <= differs_upto(d, h->key, seq);
        told = d->named_key[i] == h->key && (seq == ROLL_CASE_ANYWHERE || near);
    }
    return told;
}

/*
 * A member was cut before it had sent all that was asked of it: where calls are wanted of several communicators, or of
 * places far apart, as many of them as may follow come before the last. What was counted as covered may be behind
 * these, and so may be what the case was opened for and has not told of.
 */
static void leave_uncovered(struct roll_digested *d)
{
    for (size_t i = 0; i < d->covered.hints; i++) {
        note_late(&d->late, &d->covered.hint[i]);
    }
    bool left = d->covered.hints > 0;
    d->late_urgent = d->late_urgent || left;
    roll_digest_clear(&d->covered);
    for (size_t i = 0; d->named && i < d->asked && i < d->hints.hints && !left; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        left = h->why == ROLL_HINT_DIFFERS && !is_told(d, h);
    }
    d->unseen = d->unseen || left;
}

/*
 * Notes what is hinted at while records of the open case are here: where one of its ranks has been cut, it may not be
 * among these. That a rank was cut may be heard of a moment after the hint, so a hint waits that long.
 */
static void note_open(struct roll_digested *d, const struct roll_digest *up, uint64_t now)
{
    bool cut = (up->hints > 0 || d->late.hints > 0) && any_cut(d);
    if (d->narrow && d->partly) {
        leave_uncovered(d);
    }
    if (!cut && d->late.hints > 0 && now - d->late_ns > SEEN_NS) {
        roll_digest_clear(&d->late);
        d->late_urgent = false;
    }
    d->late_ns = d->late.hints > 0 ? d->late_ns : now;
    for (size_t i = 0; i < up->hints; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        if (is_covered(d, h) && !d->partly) {
            note_late(&d->covered, h);
        } else {
            note_late(&d->late, h);
            d->late_urgent = d->late_urgent || roll_hint_is_urgent(h);
            d->unseen = d->unseen || (d->narrow && h->why == ROLL_HINT_DIFFERS);
        }
    }
    d->unseen = d->unseen || (cut && d->late_urgent);
}

/* Somebody stands, while a case has the calls on some communicators alone. */
static void note_stall(struct roll_digested *d, uint64_t key, uint64_t now)
{
    if (!d->stalls_there && roll_hint_differs(d, key)) {
        d->stalls_there = true;
        d->stall_front = roll_case_front(d);
        d->stall_ns = now;
    }
}

void roll_hints_note(struct roll_digested *d, const struct roll_digest *up, uint64_t now)
{
    for (size_t i = 0; i < up->hints; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        bool urgent = roll_hint_is_urgent(h), further = note_one(d, h);
        if (d->number == 0) {
            uint64_t due = urgent ? now : now + ROLL_CASE_GATHER_NS;
            d->due_ns = !d->pending || due < d->due_ns ? due : d->due_ns;
            d->pending = true;
            d->urgent = d->urgent || urgent;
            d->fresh = d->fresh || (urgent && !is_past(d, h->key));
        } else if (d->narrow && !urgent) {
            d->stalls = true;
            note_stall(d, h->key, now);
        } else if (d->narrow && h->why != ROLL_HINT_DIFFERS) {
            roll_case_broaden(d);
        } else if (further && urgent) {
            d->elsewhere = true;
        } else if (further) {
            d->wider = true;
        }
    }
    if (d->number != 0) {
        note_open(d, up, now);
    }
}

/* Something of the kind has been hinted at since the case was opened, and was not among its records. */
static bool is_late(const struct roll_digested *d, const struct roll_digest_hint *h)
{
    bool late = false;
    for (size_t k = 0; k < d->late.hints && !late; k++) {
        late = d->late.hint[k].key == h->key && d->late.hint[k].why == h->why;
    }
    return late;
}

bool roll_hints_redo(struct roll_digested *d, uint64_t now)
{
    uint64_t open = now - d->opened_ns, took = d->fed_ns - d->opened_ns;
    uint64_t pause = took * TIMES > ROLL_CASE_GATHER_NS ? took * TIMES : ROLL_CASE_GATHER_NS;
    /* Such a case has told of the call that it was opened for, and nothing is left for it to see: the next call need
     * not wait. */
    bool told = d->narrow && d->named;
    bool again = d->unseen && (open > d->redo_ns || told);
    if (!d->fed || open <= pause || !(d->elsewhere || again)) {
        return false;
    }
    d->redo_ns = next_pause(d->redo_ns, d->engine_news);
    if (d->unseen && (told || (open > SEEN_NS && !d->narrow))) {
        /* What was hinted at before has been looked at: only what came since is asked for. */
        size_t keep = 0;
        for (size_t i = 0; i < d->hints.hints; i++) {
            struct roll_digest_hint h = d->hints.hint[i];
            if (told ? !is_told(d, &h) : !is_late(d, &h)) {
                d->hints.hint[keep++] = h;
            }
        }
        d->hints.hints = keep;
    }
    for (size_t i = 0; d->unseen && i < d->late.hints; i++) {
        const struct roll_digest_hint *h = &d->late.hint[i];
        roll_digest_add_hint(&d->hints, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    return true;
}

uint64_t roll_hints_quiet_ns(const struct roll_digested *d, uint64_t now)
{
    return d->still_since_ns != 0 && now > d->still_since_ns ? now - d->still_since_ns : 0;
}

bool roll_hints_stilled(struct roll_digested *d, uint64_t now)
{
    bool went_on = d->fed && !d->engine_news && d->opened_ns < d->still_since_ns;
    if (!went_on || roll_hints_quiet_ns(d, now) <= QUIET_NS || now - d->opened_ns <= d->stilled_ns || !any_cut(d)) {
        return false;
    }
    d->stilled_ns = next_pause(d->stilled_ns, false);
    return true;
}

void roll_hints_open(struct roll_digested *d)
{
    d->asked = d->hints.hints;
    d->hasty = d->hasty || d->urgent || d->elsewhere || d->unseen; /* one that is begun anew is about the same call */
    d->pending = d->urgent = d->fresh = d->elsewhere = d->unseen = d->late_urgent = false;
    roll_digest_clear(&d->late);
    roll_digest_clear(&d->covered);
}

void roll_hints_close(struct roll_digested *d, uint64_t now)
{
    bool late = d->late.hints > 0 && (now - d->late_ns <= SEEN_NS || any_cut(d));
    size_t keep = 0;
    d->hold_ns = next_pause(d->hold_ns, d->news);
    d->held_until_ns = now + d->hold_ns;
    d->closed_ns = now;
    if (d->news) {
        roll_map_fini(&d->past);
        d->pasts = 0;
        d->redo_ns = d->stilled_ns = ROLL_CASE_HOLD_NS;
    }
    for (size_t i = 0; i < d->hints.hints; i++) { /* who stands gives no second hint */
        struct roll_digest_hint h = d->hints.hint[i];
        if (d->pasts < HINTS && !is_past(d, h.key) && roll_map_add(&d->past, h.key, d->pasts) == 0) {
            d->pasts++;
        }
        if (h.why == ROLL_HINT_STANDS && roll_case_stands(d, &h)) {
            d->hints.hint[keep++] = h;
        }
    }
    d->hints.hints = keep;
    for (size_t i = 0; late && i < d->late.hints; i++) { /* nobody has looked at it */
        const struct roll_digest_hint *h = &d->late.hint[i];
        roll_digest_add_hint(&d->hints, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    d->pending = d->hints.hints > 0;
    d->urgent = late && d->late_urgent;
    d->fresh = d->elsewhere = d->unseen = d->late_urgent = d->hasty = false;
    roll_digest_clear(&d->late);
    roll_digest_clear(&d->covered);
    d->due_ns = now;
    d->still_key = 0;
}

/*
 * Whether a communicator that stood when a hint came still stands at the same call after STILL_NS: that is no slow
 * rank, so the job has not to wait for what earlier cases that found nothing have put off.
 */
static bool still_stands(struct roll_digested *d, uint64_t now)
{
    struct roll_digest_hint still = {.key = d->still_key, .seq = d->still_seq};
    if (d->still_key != 0 && !roll_case_stands(d, &still)) {
        d->still_key = 0;
    }
    for (size_t i = 0; d->still_key == 0 && i < d->hints.hints; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        if (h->why == ROLL_HINT_STANDS && roll_case_stands(d, h)) {
            d->still_key = h->key;
            d->still_seq = h->seq;
            d->still_ns = now;
        }
    }
    return d->still_key != 0 && now - d->still_ns > STILL_NS;
}

bool roll_hints_due(struct roll_digested *d, uint64_t now, bool asks_everybody)
{
    /* Where a case asks everybody anyway, nothing need be gathered. In a large job records of ranks that go on are cut
     * before they come to where the others wait: who stands is looked at when they all do. */
    bool stilled = d->urgent || roll_hints_quiet_ns(d, now) > QUIET_NS || now - d->due_ns > GOING_NS;
    bool gathered = asks_everybody || (now >= d->due_ns && stilled);
    bool held = now < d->held_until_ns && !(d->urgent && now - d->closed_ns >= ROLL_CASE_HOLD_NS) && !d->fresh;
    return d->pending && ((!held && gathered) || still_stands(d, now));
}
