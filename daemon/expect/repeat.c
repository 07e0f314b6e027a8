/*
 * repeat.c: what repeats in a sequence of calls.
 *
 * A training job makes the same calls in each step, behind a beginning and before an end. For each length of a unit the
 * sequence is compared with itself, moved by that length; the repetition that covers most is taken, and what is left
 * before and behind it is searched in the same way. A repetition inside a unit (the layers of a step) stays as it is:
 * it belongs to the model and has to be the same in each run. To take the repetition that covers most for the only one
 * was rejected: the broadcasts of a large model's parameters are longer than a few steps.
 */
#include "daemon/base/array.h"
#include "daemon/expect/expect.h"

#define LOOPS_MOST  64u
#define EFFORT_MOST 400000000u /* comparisons: a second, for a sequence of 20,000 calls and more */

struct search {
    const uint32_t *id;
    uint64_t effort;
    uint32_t loops;
    struct roll_expected_part *part; /* owned */
    size_t parts, room;
    int err;
};

static void add_part(struct search *s, uint32_t first, uint32_t calls, uint32_t times)
{
    if (calls > 0 && s->err == 0 && (s->err = ROLL_GROW(s->part, s->room, s->parts + 1)) == 0) {
        s->part[s->parts++] = (struct roll_expected_part){first, calls, times};
    }
}

/* The repetition that covers most of [low, high); of those that cover as much, the one with the shortest unit. */
static struct roll_expected_part longest(struct search *s, uint32_t low, uint32_t high)
{
    struct roll_expected_part best = {0};
    uint64_t covered = 0;
    for (uint32_t unit = 1; unit <= (high - low) / 2 && covered < high - low && s->effort >= high - low; unit++) {
        uint32_t run = 0;
        s->effort -= high - low;
        for (uint32_t i = low; i + unit < high; i++) {
            run = s->id[i] == s->id[i + unit] ? run + 1 : 0;
            uint32_t times = run / unit + 1;
            if (times > 1 && (uint64_t)times * unit > covered) {
                covered = (uint64_t)times * unit;
                best = (struct roll_expected_part){i + 1 - run, unit, times};
            }
        }
    }
    return best;
}

static void search(struct search *s, uint32_t low, uint32_t high)
{
    struct roll_expected_part best = {0};
    if (s->loops < LOOPS_MOST && high - low >= 2) {
        best = longest(s, low, high);
    }
    /* Two calls of a kind in a row are no repetition, unless there is little else. */
    uint64_t covered = (uint64_t)best.calls * best.times;
    if (best.times < 2 || (best.times == 2 && best.calls < 3 && covered * 2 < high - low)) {
        add_part(s, low, high - low, 1);
        return;
    }
    s->loops++;
    search(s, low, best.first);
    add_part(s, best.first, best.calls, best.times);
    search(s, best.first + (uint32_t)covered, high);
}

int roll_repeats_find(const uint32_t *id, size_t n, struct roll_expected_part **part, size_t *parts)
{
    struct search s = {.id = id, .effort = EFFORT_MOST};
    *part = NULL;
    *parts = 0;
    if (n >= UINT32_MAX) {
        return ROLL_E_LIMIT;
    }
    if (n > 0) {
        search(&s, 0, (uint32_t)n);
    }
    if (s.err != 0) {
        free(s.part);
        return s.err;
    }
    *part = s.part;
    *parts = s.parts;
    return 0;
}
