/*
 * fuzz_rankset.c: arbitrary text as a set of ranks, and arbitrary bytes as a series of additions, against a bitmap.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/err.h"
#include "trace/rankset.h"

#include <stdio.h>
#include <string.h>

static void parse_text(const char *text)
{
    struct roll_rankset set = {0};
    struct roll_rankset again = {0};
    int err = roll_rankset_parse(text, &set);
    PROMISE(err == ROLL_OK || err == ROLL_E_ARG || err == ROLL_E_LIMIT);
    size_t wanted = roll_rankset_format(&set, NULL, 0);
    char *out = malloc(wanted + 1);
    PROMISE(out != NULL);
    PROMISE(roll_rankset_format(&set, out, wanted + 1) == wanted && strlen(out) == wanted);
    PROMISE(roll_rankset_parse(out, &again) == ROLL_OK);
    PROMISE(roll_rankset_equal(&set, &again));
    for (size_t size = 1; size <= wanted && size < 20; size++) {
        char cut[20];
        roll_rankset_format(&set, cut, size);
        PROMISE(strlen(cut) < size);
    }
    free(out);
    roll_rankset_fini(&set);
    roll_rankset_fini(&again);
}

static void add_ranges(const uint8_t *data, size_t bytes)
{
    struct roll_rankset set = {0};
    bool map[512] = {false};
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        uint32_t first = data[i];
        uint32_t last = first + data[i + 1] % 32;
        PROMISE(roll_rankset_add_range(&set, first, last) == ROLL_OK);
        memset(map + first, true, last - first + 1);
    }
    size_t count = 0;
    for (uint32_t rank = 0; rank < 512; rank++) {
        PROMISE(roll_rankset_has(&set, rank) == map[rank]);
        PROMISE(!map[rank] || roll_rankset_at(&set, count) == rank);
        count += map[rank];
    }
    PROMISE(roll_rankset_count(&set) == count);
    roll_rankset_fini(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    PROMISE(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    parse_text(text);
    add_ranges(data, bytes);
    free(text);
    return 0;
}
