/*
 * fuzz_compare.c: arbitrary bytes as lines of the compare page: no crash, and a line that is believed is, in every bit,
 * one that a publisher writes: the place's word, the checksum, and a possible call.
 *
 * A stronger promise, that only published lines are believed, holds for lines that a killed or overtaken writer leaves
 * (tests/trace/test_compare.c tears lines at every byte), but not for arbitrary bytes: the checksum guards against
 * accidents and is no signature, and a fuzzer finds bytes with the right one. Such a line is one that its publisher
 * could have written, and only the job's user, who may publish anyway, can write the page.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/compare.h"

#include <string.h>

/* A key that random bytes do not hold by chance together with a checksum that fits. */
#define KEY 0x5eed5eed5eed5eedu

/* Whether a line holds, bit for bit, what publishing this call writes. */
static bool as_published(const struct roll_compare_cell *line, const struct roll_compare_call *call, uint32_t moment)
{
    static struct roll_compare twin; /* always empty in between */
    struct roll_compare_cell *other;
    if (roll_compare_call(&twin, call, moment, atomic_load(&line->word), &other) != ROLL_COMPARE_FIRST) {
        return false;
    }
    struct roll_compare_cell *written = roll_compare_find(&twin, call->key, call->seq);
    bool same = written != NULL && memcmp(written, line, sizeof(*line)) == 0;
    if (written != NULL) {
        roll_compare_drop(written, call, moment);
    }
    return same;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct roll_compare page;
    struct roll_compare_call mine = {.key = KEY, .count = 10, .seq = 3, .pid = 1, .rank = 1, .members = 1}, seen;
    uint64_t word = roll_compare_word(KEY, 3, 10);
    uint32_t moment;
    struct roll_compare_cell *other = NULL, *line = NULL;
    memset(&page, 0, sizeof(page));
    PROMISE(roll_compare_call(&page, &mine, 1, word, &other) == ROLL_COMPARE_FIRST);
    line = roll_compare_find(&page, KEY, 3);
    PROMISE(line != NULL && roll_compare_read(line, KEY, 3, &seen, &moment) == ROLL_COMPARE_WHOLE);
    struct roll_compare_cell good = *line;
    struct roll_compare_cell *set = &page.cell[(size_t)(line - page.cell) & ~(size_t)1];
    memcpy(set, data, bytes < 2 * sizeof(*set) ? bytes : 2 * sizeof(*set));
    (void)roll_compare_check(&page, sizeof(page));
    for (int way = 0; way < 2; way++) {
        enum roll_compare_seen what = roll_compare_read(&set[way], KEY, 3, &seen, &moment);
        PROMISE(what == ROLL_COMPARE_WHOLE || memcmp(&set[way], &good, sizeof(good)) != 0);
        PROMISE(what != ROLL_COMPARE_WHOLE || (seen.key == KEY && seen.seq == 3 && seen.before < seen.members &&
                                               as_published(&set[way], &seen, moment)));
    }
    for (uint64_t count = 10; count < 13; count++) {
        mine.count = count;
        enum roll_compare_answer answer = roll_compare_call(&page, &mine, 2, roll_compare_word(KEY, 3, count), &other);
        PROMISE(answer <= ROLL_COMPARE_LATE);
        PROMISE(answer != ROLL_COMPARE_OTHER || other == &set[0] || other == &set[1]);
        roll_compare_withdraw(&page, KEY, 3, 1, 1);
    }
    return 0;
}
