/*
 * credit.c: see credit.h. A mark is set once in a while, not for each frame: a frame may have some hundred bytes.
 */
#include "daemon/wire/credit.h"

#include "daemon/base/clock.h"

#define MARK_BYTES  (UINT64_C(1) << 20)
#define PATIENCE_NS (10000 * ROLL_MS) /* as long as silence is borne elsewhere */

void roll_credit_sent(struct roll_credit *credit, uint64_t seq, uint64_t bytes)
{
    credit->sent += bytes;
    if (credit->sent - credit->marked < MARK_BYTES) {
        return;
    }
    credit->marked = credit->sent;
    credit->marks += credit->marks < ROLL_CREDIT_MARKS; /* of too many the newest covers what follows */
    unsigned at = (credit->first + credit->marks - 1) % ROLL_CREDIT_MARKS;
    credit->mark[at].seq = seq;
    credit->mark[at].sent = credit->sent;
}

void roll_credit_read(struct roll_credit *credit, uint64_t seq)
{
    while (credit->marks > 0 && credit->mark[credit->first].seq <= seq) {
        credit->read = credit->mark[credit->first].sent;
        credit->first = (credit->first + 1) % ROLL_CREDIT_MARKS;
        credit->marks--;
        credit->full_ns = 0;
    }
}

bool roll_credit_has(struct roll_credit *credit)
{
    if (credit->sent - credit->read < ROLL_CREDIT_BYTES) {
        return true;
    }
    uint64_t now = roll_mono_ns();
    credit->full_ns = credit->full_ns ? credit->full_ns : now;
    if (now - credit->full_ns < PATIENCE_NS) {
        return false;
    }
    *credit = (struct roll_credit){.sent = 0};
    return true;
}

bool roll_credit_is_used(const struct roll_credit *credit)
{
    return credit->marks >= 2;
}
