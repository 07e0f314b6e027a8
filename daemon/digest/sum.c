/*
 * sum.c: the life of a sum, what it forgets of communicators and children, and what it answers (sum.h).
 */
#include "daemon/digest/sum_state.h"

#include <stdlib.h>

#define FORGET_NS UINT64_C(1000000000) /* between two looks for what may be forgotten */

roll_sum_t *roll_sum_new(const struct roll_sum_config *config)
{
    roll_sum_t *sum = calloc(1, sizeof(*sum));
    if (sum) {
        sum->config = *config;
        sum->config.most = config->most ? config->most : 1u << 17;
        sum->config.likes = config->likes ? config->likes : 1u << 14;
        sum->config.shares = config->shares ? config->shares : 1u << 11;
    }
    return sum;
}

void roll_sum_destroy(roll_sum_t **pointer)
{
    roll_sum_t *sum = *pointer;
    if (!sum) {
        return;
    }
    for (size_t i = 0; i < sum->levels; i++) {
        free(sum->level[i].cell);
    }
    free(sum->level);
    roll_map_fini(&sum->at);
    roll_map_fini(&sum->cell);
    roll_map_fini(&sum->no_room);
    roll_likes_fini(&sum->likes);
    roll_shares_fini(&sum->shares);
    roll_digest_fini(&sum->hints);
    free(sum->waiting);
    free(sum->of_child);
    free(sum);
    *pointer = NULL;
}

void roll_sum_forget(roll_sum_t *sum, uint64_t now_ns)
{
    if (now_ns - sum->forgot_ns < FORGET_NS) {
        return;
    }
    sum->forgot_ns = now_ns;
    for (size_t i = sum->levels; i-- > 0;) {
        const struct roll_sum_level *c = &sum->level[i];
        bool settled = !c->moved && (c->members == 0 || !c->sums_moved) && !c->apart;
        if (c->over && settled && now_ns - c->told_ns >= ROLL_DIGEST_KEEP_NS) {
            roll_sum_level_drop(sum, i);
        }
    }
}

void roll_sum_leave(roll_sum_t *sum, uint32_t child, uint64_t now_ns)
{
    for (size_t i = 0; i < sum->levels; i++) {
        struct roll_sum_level *c = &sum->level[i];
        struct roll_sum_cell *cell = roll_sum_cell_known(sum, c, child);
        if (!cell) {
            continue;
        }
        c->members -= cell->members;
        for (unsigned k = 0; k < ROLL_DIGEST_CLASSES; k++) {
            c->sum[k] -= cell->sum[k];
        }
        *cell = (struct roll_sum_cell){.child = child};
        c->moved = c->sums_moved = true;
        c->told_ns = c->sums_since_ns = now_ns;
    }
    roll_sum_front_forget(sum, child, 0);
}

void roll_sum_again(roll_sum_t *sum)
{
    for (size_t i = 0; i < sum->levels; i++) {
        struct roll_sum_level *c = &sum->level[i];
        c->moved = c->sums_moved = true;
        c->apart = false;
        c->judged = c->judged > ROLL_SUM_OPEN ? c->judged - ROLL_SUM_OPEN : 0;
        c->pointed = c->high - c->high % ROLL_DIGEST_WINDOW;
    }
    roll_likes_again(&sum->likes);
    roll_shares_again(&sum->shares);
}

void roll_sum_figures(const roll_sum_t *sum, struct roll_sum_figures *out)
{
    *out = sum->figures;
}

bool roll_sum_at(const roll_sum_t *sum, size_t i, uint64_t *key, struct roll_sum_place *out)
{
    *key = i < sum->levels ? sum->level[i].key : 0;
    return i < sum->levels && roll_sum_place(sum, *key, out);
}

bool roll_sum_place(const roll_sum_t *sum, uint64_t key, struct roll_sum_place *out)
{
    uint32_t at = roll_map_get(&sum->at, key);
    if (at == ROLL_MAP_NONE) {
        return false;
    }
    const struct roll_sum_level *c = &sum->level[at];
    *out = (struct roll_sum_place){
        .low = c->low, .high = c->high, .size = c->size, .members = c->members, .differs_at = c->differs_at};
    return true;
}
