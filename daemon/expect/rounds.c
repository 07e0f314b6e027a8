/*
 * rounds.c: whether two sequences are those of one job, with other numbers of steps.
 *
 * One sequence is taken as a pattern: its parts in their order, of which those that repeat may be made any number of
 * times, and the last time round may end early. The other is written out and has to fit. To compare the parts was
 * rejected: a job that evaluates each second step repeats two steps and an evaluation, so an odd number of steps leaves
 * one step behind the repetition, and few steps repeat nothing but the step. Both directions are tried, because the
 * longer of the two rehearsals is the better pattern.
 */
#include "daemon/base/array.h"
#include "daemon/expect/expect.h"

#include <string.h>

#define CALLS_MOST  (1u << 22)
#define EFFORT_MOST 100000000u
#define PARTS_MOST  4096u /* each is one call deeper; rehearsals have some hundred, and a file may say anything */

struct fitting {
    const struct roll_expected *x; /* the pattern's */
    const struct roll_expected_part *part;
    uint32_t parts;
    const struct roll_expected_call **call; /* the other sequence, written out; owned */
    size_t calls;
    uint64_t effort;
    bool is_old; /* the pattern is: its calls are what is expected of the others */
};

static bool write_out(struct fitting *f, const struct roll_expected *y, uint32_t sequence)
{
    const struct roll_expected_sequence *s = &y->sequence[sequence];
    uint64_t calls = 0;
    for (uint32_t i = 0; i < s->parts && calls <= CALLS_MOST; i++) {
        calls += (uint64_t)y->part[s->first + i].calls * y->part[s->first + i].times;
    }
    f->call = calls <= CALLS_MOST ? calloc(calls + 1, sizeof(*f->call)) : NULL;
    for (uint32_t i = 0; f->call != NULL && i < s->parts; i++) {
        const struct roll_expected_part *part = &y->part[s->first + i];
        for (uint64_t k = 0; k < (uint64_t)part->calls * part->times; k++) {
            f->call[f->calls++] = &y->call[y->item[part->first + k % part->calls]];
        }
    }
    return f->call != NULL;
}

static const struct roll_expected_call *in_part(const struct fitting *f, const struct roll_expected_part *part,
                                                uint32_t at)
{
    return &f->x->call[f->x->item[part->first + at]];
}

/* A count that the older one does not keep may be anything; one that only the newer does not keep is a difference. */
static bool is_same(const struct fitting *f, const struct roll_expected_call *mine,
                    const struct roll_expected_call *other)
{
    return f->is_old ? roll_expected_fits(mine, other) : roll_expected_fits(other, mine);
}

/* How many calls of a part, from its k-th on, those at `at` are. */
static uint32_t fitting_calls(struct fitting *f, const struct roll_expected_part *part, uint32_t k, size_t at)
{
    uint32_t n = 0;
    while (k + n < part->calls && at + n < f->calls && f->effort > 0 &&
           is_same(f, in_part(f, part, k + n), f->call[at + n])) {
        n++;
        f->effort--;
    }
    f->effort -= f->effort > 0;
    return n;
}

/* With how many of its calls the part behind a repetition goes on with it. */
static uint32_t goes_on(const struct fitting *f, const struct roll_expected_part *loop,
                        const struct roll_expected_part *part)
{
    uint32_t n = 0;
    while (n < loop->calls && n < part->calls && roll_expected_fits(in_part(f, loop, n), in_part(f, part, n))) {
        n++;
    }
    return n;
}

static bool fits_from(struct fitting *f, uint32_t i, size_t at);

/* The part behind a repetition, of which another part of a round may be left in both sequences. */
static bool fits_behind(struct fitting *f, const struct roll_expected_part *loop, uint32_t i, size_t at)
{
    uint32_t left = fitting_calls(f, loop, 0, at);
    if (i == f->parts) {
        return at + left == f->calls; /* or nothing is left, which is part of a round as well */
    }
    const struct roll_expected_part *part = &f->part[i];
    uint32_t mine = part->times > 1 ? 0 : goes_on(f, loop, part);
    for (uint32_t k = 0; k <= mine && f->effort > 0; k++) {
        for (uint32_t o = 0; o <= left && f->effort > 0; o++) {
            if (part->times > 1) {
                if (fits_from(f, i, at + o)) {
                    return true;
                }
            } else if (fitting_calls(f, part, k, at + o) == part->calls - k &&
                       fits_from(f, i + 1, at + o + part->calls - k)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether the parts from the i-th on are the calls from `at` on. */
static bool fits_from(struct fitting *f, uint32_t i, size_t at)
{
    if (i == f->parts) {
        return at == f->calls;
    }
    const struct roll_expected_part *part = &f->part[i];
    if (part->times <= 1) {
        return fitting_calls(f, part, 0, at) == part->calls && fits_from(f, i + 1, at + part->calls);
    }
    uint32_t rounds = 0;
    while (fitting_calls(f, part, 0, at) == part->calls) {
        at += part->calls;
        rounds++;
    }
    return rounds > 0 && fits_behind(f, part, i + 1, at);
}

static bool fits(const struct roll_expected *x, uint32_t pattern, const struct roll_expected *y, uint32_t other,
                 bool is_old)
{
    const struct roll_expected_sequence *s = &x->sequence[pattern];
    struct fitting f = {.x = x, .part = &x->part[s->first], .parts = s->parts, .effort = EFFORT_MOST, .is_old = is_old};
    bool same = s->parts <= PARTS_MOST && write_out(&f, y, other) && fits_from(&f, 0, 0);
    free(f.call);
    return same && f.effort > 0;
}

bool roll_expected_same_rounds(const struct roll_expected *old, uint32_t a, const struct roll_expected *now, uint32_t b)
{
    return fits(old, a, now, b, true) || fits(now, b, old, a, false);
}
