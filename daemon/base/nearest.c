/*
 * nearest.c: see nearest.h. Near is what one slip of the hand in four letters makes; a word that only begins alike is
 * not near, because a wrong suggestion is followed as readily as a right one.
 */
#include "daemon/base/nearest.h"

#include <string.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t roll_nearest_distance(const char *one, const char *other)
{
    size_t n = strnlen(one, ROLL_NEAREST_BYTES), m = strnlen(other, ROLL_NEAREST_BYTES);
    size_t row[ROLL_NEAREST_BYTES + 1][ROLL_NEAREST_BYTES + 1];
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = 0; k <= m; k++) {
            if (i == 0 || k == 0) {
                row[i][k] = i + k;
                continue;
            }
            size_t replaced = row[i - 1][k - 1] + (one[i - 1] != other[k - 1]);
            row[i][k] = least(replaced, least(row[i - 1][k], row[i][k - 1]) + 1);
            if (i > 1 && k > 1 && one[i - 1] == other[k - 2] && one[i - 2] == other[k - 1]) {
                row[i][k] = least(row[i][k], row[i - 2][k - 2] + 1);
            }
        }
    }
    return row[n][m];
}

void roll_nearest_offer(struct roll_nearest *search, const char *word)
{
    size_t distance = roll_nearest_distance(search->typed, word), letters = strlen(search->typed);
    if (distance <= (letters + 3) / 4 && distance < letters && (!search->found || distance < search->distance)) {
        search->found = word;
        search->distance = distance;
    }
}
