/*
 * run_why.c: why the ranks of a run stand, in the words of `rollcall why`, for all that stand alike together.
 */
#include "daemon/console/report/run_parts.h"

#include "daemon/base/json.h"

#include <stdlib.h>

#define GROUPS_MOST 64u /* of ranks that stand alike, in words */
#define WHY_BYTES   4096u

struct group {
    uint64_t key;
    struct roll_rankset ranks;
};

static int by_key(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    uint32_t i = roll_rankset_at(&x->ranks, 0), k = roll_rankset_at(&y->ranks, 0);
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (i > k) - (i < k);
}

static int by_rank(const void *a, const void *b)
{
    uint32_t i = roll_rankset_at(&((const struct group *)a)->ranks, 0);
    uint32_t k = roll_rankset_at(&((const struct group *)b)->ranks, 0);
    return (i > k) - (i < k);
}

/* Ranks that stood alike at the end, as groups of them; those of whom there is nothing to say are in none. */
static size_t groups_of(roll_engine_t *engine, const struct roll_field_place *place, size_t n, struct group *group)
{
    uint32_t *number = calloc(n + 1, sizeof(*number));
    uint64_t *key = malloc((n + 1) * sizeof(*key));
    size_t used = 0, groups = 0;
    for (size_t i = 0; number != NULL && i < n; i++) {
        number[i] = (uint32_t)place[i].rank;
    }
    if (number != NULL && key != NULL) {
        roll_engine_why_keys(engine, number, n, key);
        for (size_t i = 0; i < n; i++) {
            if (key[i] != 0) {
                group[used] = (struct group){.key = key[i]};
                (void)roll_rankset_add(&group[used++].ranks, number[i]);
            }
        }
    }
    free(number);
    free(key);
    qsort(group, used, sizeof(*group), by_key);
    for (size_t i = 0; i < used; i++) {
        if (groups > 0 && group[groups - 1].key == group[i].key) {
            (void)roll_rankset_union(&group[groups - 1].ranks, &group[i].ranks);
            roll_rankset_fini(&group[i].ranks);
        } else {
            group[groups++] = group[i];
        }
    }
    qsort(group, groups, sizeof(*group), by_rank);
    return groups;
}

json_t *roll_report_why(roll_engine_t *engine, const struct roll_field_place *place, size_t n,
                        struct roll_report_room *room, json_t *left_out)
{
    struct group *group = calloc(n + 1, sizeof(*group));
    size_t groups = group != NULL ? groups_of(engine, place, n, group) : 0, lost = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < groups; i++) {
        char text[WHY_BYTES] = "", folded[256] = "";
        bool told = json_array_size(list) < GROUPS_MOST &&
                    roll_engine_why_told(engine, &group[i].ranks, text, sizeof(text)) >= 0;
        (void)roll_rankset_format(&group[i].ranks, folded, sizeof(folded));
        json_t *one = told ? json_pack("{s:s,s:o,s:I,s:o}", "ranks_text", folded, "all_text",
                                       roll_ranks_text_json(&group[i].ranks), "count",
                                       (json_int_t)roll_rankset_count(&group[i].ranks), "text", roll_text_to_json(text))
                           : NULL;
        if (roll_report_take(room, one)) {
            json_array_append(list, one);
        } else {
            lost++;
        }
        json_decref(one);
        roll_rankset_fini(&group[i].ranks);
    }
    if (lost > 0) {
        roll_report_leave_out(left_out, "%zu further ways in which ranks stood at the end", lost);
    }
    free(group);
    return list;
}
