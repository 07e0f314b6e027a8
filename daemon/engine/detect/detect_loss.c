/*
 * detect_loss.c: records of a rank were lost. This is said once per rank, because silence about the rank means less
 * from then on.
 *
 * The matcher goes on at the next sequence number that it sees (match/match.c), and says nothing about a rank whose
 * last calls may be among the lost ones.
 */
#include "daemon/engine/detect/detector.h"

#include <inttypes.h>

struct loss_source {
    bool said;
};
STATE_OF_SOURCE(loss)

static void loss_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    struct source *s = e->source[source];
    struct loss_source *own = loss_make_source(s);
    if (own && own->said) {
        return;
    }
    if (own) { /* without memory the loss is said more than once, rather than not at all */
        own->said = true;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
    if (!v) {
        return;
    }
    (void)roll_rankset_add(&v->culprits, s->world);
    say_side(v, s, source, &v->culprits, NULL);
    v->event_ns = s->last_ns;
    if (count == 0) {
        say_text(
            e, v,
            "Rank %u has made calls of a kind that is not known here: its wrapper is newer than this program, or its "
            "ring is damaged. Calls behind them are matched by their sequence numbers; what these were is not "
            "judged.",
            s->world);
        return;
    }
    if (s->records == 0) { /* no record of the rank was seen before: the beginning is missing */
        say_text(
            e, v,
            "The first %" PRIu64 " records of rank %u are missing: their segments have been removed (--trace-limit, "
            "--trace-age), or its ring had gone round before an agent read it (ROLLCALL_RING_RECORDS makes it larger). "
            "Calls from there on are matched by their sequence numbers; what was before is not judged.",
            count, s->world);
        return;
    }
    say_text(e, v,
             "%" PRIu64 " records of rank %u were lost. Calls after the gap are matched by their sequence numbers; "
             "whether this rank made the calls in the gap is not judged. A larger ring (ROLLCALL_RING_RECORDS) helps.",
             count, s->world);
}

const struct detector detect_loss = {.name = "loss", .lost = loss_lost};
