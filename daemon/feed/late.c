/*
 * late.c: see late.h.
 */
#include "daemon/feed/late.h"

#define LINK_WINDOW_NS UINT64_C(30000000000)

/* The windows, as they are at this time. */
static void turn(struct roll_late *late, uint64_t now)
{
    if (now - late->window_ns >= ROLL_LATE_WINDOW_NS) {
        late->last_ns = now - late->window_ns < 2 * ROLL_LATE_WINDOW_NS ? late->most_ns : 0;
        late->most_ns = 0;
        late->window_ns = now;
    }
}

void roll_late_note(struct roll_late *late, uint64_t late_ns, uint64_t now)
{
    turn(late, now);
    late->total_ns += late_ns;
    late->most_ns = late_ns > late->most_ns ? late_ns : late->most_ns;
}

uint64_t roll_late_lately(const struct roll_late *late, uint64_t now)
{
    struct roll_late at = *late;
    turn(&at, now);
    return at.most_ns > at.last_ns ? at.most_ns : at.last_ns;
}

uint64_t roll_late_link_took(struct roll_late_link *link, uint64_t made_ns, uint64_t now)
{
    uint64_t way = now - made_ns;
    /* The clocks may be any distance apart, so ways are compared by their difference. A sender whose clock goes back is
     * another one. */
    if (link->any && made_ns < link->window_ns) {
        *link = (struct roll_late_link){.any = false};
    }
    if (!link->any || made_ns - link->window_ns >= LINK_WINDOW_NS) {
        link->any_before = link->any && made_ns - link->window_ns < 2 * LINK_WINDOW_NS;
        link->least_before = link->least;
        link->least = way;
        link->any = true;
        link->window_ns = made_ns;
    }
    link->least = (int64_t)(way - link->least) < 0 ? way : link->least;
    uint64_t least =
        link->any_before && (int64_t)(link->least_before - link->least) < 0 ? link->least_before : link->least;
    link->late_ns = way - least;
    return link->late_ns;
}

uint64_t roll_late_missed_add(struct roll_late_missed *missed, uint64_t from, uint64_t to)
{
    from = from > missed->upto_ns ? from : missed->upto_ns;
    if (to <= from) {
        return 0;
    }
    missed->upto_ns = to;
    missed->total_ns += to - from;
    return to - from;
}

uint64_t roll_late_missed_gap(struct roll_late_missed *missed, uint64_t heard, uint64_t now)
{
    uint64_t end = now - heard < ROLL_LATE_HEARD_NS ? now : heard + ROLL_LATE_HEARD_NS;
    return now - heard < ROLL_LATE_BEAT_NS ? 0 : roll_late_missed_add(missed, heard + ROLL_LATE_BEAT_NS, end);
}
