/*
 * ranks.c: see ranks.h.
 *
 * A text is entered under its hash, and compared with all of its bytes. Of texts that share a hash only the first is
 * kept, so that a file which was made for that costs no more than one that was not.
 */
#include "daemon/dumps/ranks.h"

#include "daemon/base/array.h"
#include "daemon/dumps/dump.h"
#include "trace/err.h"

#include <string.h>

#define LISTS_BYTES ((size_t)1 << 31) /* of all lists together */
#define PRIME       0x9e3779b97f4a7c15u

void roll_rank_lists_init(struct roll_rank_lists *lists)
{
    *lists = (struct roll_rank_lists){.knowns = 0};
    roll_arena_init(&lists->arena, LISTS_BYTES);
}

void roll_rank_lists_fini(struct roll_rank_lists *lists)
{
    roll_arena_fini(&lists->arena);
    free(lists->known);
    roll_map_fini(&lists->at);
    *lists = (struct roll_rank_lists){.knowns = 0};
}

/* In four lanes, which do not wait for each other: this is all that most texts cost. */
static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t lane[4] = {bytes, 1, 2, 3}, word[4], h = 0;
    size_t i = 0;
    for (; bytes - i >= sizeof(word); i += sizeof(word)) {
        memcpy(word, text + i, sizeof(word));
        for (unsigned k = 0; k < 4; k++) {
            lane[k] = (lane[k] ^ word[k]) * PRIME;
            lane[k] ^= lane[k] >> 32;
        }
    }
    memset(word, 0, sizeof(word));
    memcpy(word, text + i, bytes - i);
    for (unsigned k = 0; k < 4; k++) {
        h = (h ^ lane[k] ^ word[k]) * PRIME;
        h ^= h >> 29;
    }
    return h;
}

static bool is_digit(char c)
{
    return (unsigned)(unsigned char)c - (unsigned)'0' <= 9;
}

/* How many numbers a text holds. */
static size_t numbers_in(const char *text, size_t bytes)
{
    size_t n = bytes > 0 && is_digit(text[0]);
    for (size_t i = 1; i < bytes; i++) {
        n += is_digit(text[i]) && !is_digit(text[i - 1]);
    }
    return n;
}

static int read_text(const char *text, size_t bytes, uint32_t *rank, uint32_t *ranks)
{
    const char *at = text, *end = at + bytes;
    while (at < end) {
        uint32_t number = 0;
        if (!is_digit(*at)) {
            if (*at != ' ' && *at != ',' && *at != '[' && *at != ']') {
                return ROLL_E_CORRUPT;
            }
            at++;
            continue;
        }
        while (at < end && is_digit(*at) && number < ROLL_DUMP_RANKS_MAX) {
            number = number * 10 + ((uint32_t)(unsigned char)*at - '0');
            at++;
        }
        if (number >= ROLL_DUMP_RANKS_MAX) {
            return ROLL_E_CORRUPT;
        }
        rank[(*ranks)++] = number;
        at += end - at >= 2 && at[0] == ',' && at[1] == ' ' ? 2 : 0;
    }
    return 0;
}

static int read_values(const struct roll_value *v, uint32_t *rank, uint32_t *ranks)
{
    for (size_t i = 0; i < roll_value_count(v); i++) {
        int64_t one = roll_value_integer(roll_value_at(v, i), -1);
        if (one < 0 || one >= ROLL_DUMP_RANKS_MAX) {
            return ROLL_E_CORRUPT;
        }
        rank[(*ranks)++] = (uint32_t)one;
    }
    return 0;
}

/* A list that was not met before, without what is known of its order. */
static int read_new(struct roll_rank_lists *lists, const struct roll_value *v, struct roll_ranks *out)
{
    bool text = roll_value_is(v, ROLL_VALUE_TEXT);
    size_t n = text ? numbers_in(v->text, v->bytes) : roll_value_count(v);
    uint32_t *rank = roll_arena_take(&lists->arena, (n + 1) * sizeof(*rank));
    *out = (struct roll_ranks){.rank = rank, .rising = true};
    int err = rank == NULL ? ROLL_E_NOMEM : text ? read_text(v->text, v->bytes, rank, &out->ranks) : 0;
    err = err == 0 && !text ? read_values(v, rank, &out->ranks) : err;
    for (uint32_t i = 0; err == 0 && i < out->ranks; i++) {
        out->hash = (out->hash ^ (rank[i] + 1u)) * PRIME;
        out->hash ^= out->hash >> 31;
        out->rising = out->rising && (i == 0 || rank[i] > rank[i - 1]);
    }
    return err;
}

int roll_rank_lists_read(struct roll_rank_lists *lists, const struct roll_value *v, struct roll_ranks *out)
{
    *out = (struct roll_ranks){.rising = true};
    if (!roll_value_is(v, ROLL_VALUE_TEXT)) {
        return roll_value_is(v, ROLL_VALUE_LIST) ? read_new(lists, v, out) : 0;
    }
    uint64_t key = hash_of(v->text, v->bytes);
    uint32_t at = roll_map_get(&lists->at, key);
    if (at != ROLL_MAP_NONE && lists->known[at].bytes == v->bytes &&
        memcmp(lists->known[at].text, v->text, v->bytes) == 0) {
        *out = lists->known[at].list;
        return 0;
    }
    int err = read_new(lists, v, out);
    if (err != 0 || at != ROLL_MAP_NONE) {
        return err;
    }
    char *copy = roll_arena_take(&lists->arena, v->bytes + 1);
    err = copy == NULL ? ROLL_E_NOMEM : ROLL_GROW(lists->known, lists->room, lists->knowns + 1);
    err = err != 0 ? err : roll_map_add(&lists->at, key, (uint32_t)lists->knowns);
    if (err == 0) {
        memcpy(copy, v->text, v->bytes);
        lists->known[lists->knowns++] = (struct roll_ranks_known){.text = copy, .bytes = v->bytes, .list = *out};
    }
    return err;
}

int32_t roll_ranks_find(const struct roll_ranks *list, uint32_t rank)
{
    uint32_t low = 0, high = list->ranks;
    for (uint32_t i = 0; !list->rising && i < list->ranks; i++) {
        if (list->rank[i] == rank) {
            return (int32_t)i;
        }
    }
    while (list->rising && low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (list->rank[mid] < rank) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return list->rising && low < list->ranks && list->rank[low] == rank ? (int32_t)low : -1;
}
