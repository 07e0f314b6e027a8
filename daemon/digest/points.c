/*
 * points.c: see points.h. Of each roundness the newest are kept, so that the many that are hardly round do not take the
 * place of the few at which everybody meets. Members that are further apart meet less often, at rounder ones.
 */
#include "daemon/digest/points.h"

#include "daemon/digest/digest.h"

_Static_assert(ROLL_DIGEST_WINDOW == 1u << ROLL_POINT_ROUNDS, "no multiple of a window is a check point");

uint32_t roll_point_roundest(uint32_t from, uint32_t to)
{
    unsigned bits = 31u - (unsigned)__builtin_clz(from ^ to); /* the highest bit in which they differ is set in `to` */
    return to >> bits << bits;
}

bool roll_points_take(struct roll_points *points, uint32_t at, uint64_t hash)
{
    unsigned round = (unsigned)__builtin_ctz(at);
    struct roll_point *p = &points->point[round][(at >> (round + 1)) % ROLL_POINT_KEPT];
    if (p->at < at) {
        *p = (struct roll_point){.hash = hash, .at = at};
    }
    bool news = p->at == at && p->hash != hash && !p->differs;
    p->differs = p->differs || news;
    return news;
}

const struct roll_point *roll_points_roundest(const struct roll_points *points, uint32_t from, uint32_t to)
{
    const struct roll_point *best = NULL;
    for (unsigned round = ROLL_POINT_ROUNDS; round-- > 0 && !best;) {
        for (unsigned i = 0; i < ROLL_POINT_KEPT; i++) {
            const struct roll_point *p = &points->point[round][i];
            best = p->at > from && p->at <= to && (!best || p->at > best->at) ? p : best;
        }
    }
    return best;
}
