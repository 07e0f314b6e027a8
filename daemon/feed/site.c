/*
 * site.c: see site.h.
 */
#include "daemon/feed/site.h"

#include "daemon/stack/symbol.h"

bool roll_feed_site(roll_feed_t *feed, uint64_t stream, uint32_t callsite, enum roll_site_look look, char *out,
                    size_t size)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    roll_symbols_t *symbols = roll_feed_symbols(feed);
    const char *text;
    int n = 0;
    if (callsite != 0) {
        n = look == ROLL_SITE_READ ? roll_symbols_callsite(symbols, stream, callsite, frame, ROLL_SYMBOL_FRAMES)
                                   : roll_symbols_known(symbols, stream, callsite, frame, ROLL_SYMBOL_FRAMES);
    }
    return n > 0 && (roll_symbols_place(frame, (size_t)n, out, size, &text) ||
                     roll_symbols_native_place(frame, (size_t)n, out, size));
}

void roll_feed_comm_site(roll_feed_t *feed, struct roll_view_comm *comm, enum roll_site_look look)
{
    struct roll_view_source made;
    if (comm->place[0] == '\0' && roll_engine_source_brief(roll_feed_engine(feed), comm->made_source, &made)) {
        (void)roll_feed_site(feed, made.info.stream, comm->made_callsite, look, comm->place, sizeof(comm->place));
    }
}
