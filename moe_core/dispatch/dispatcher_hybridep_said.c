/*
 * dispatcher_hybridep_said.c: what all ranks said in layer-forwards before this one: remedies, and what they must give
 * alike.
 *
 * Without a budget, the AND of this layer-forward's proposals is in force at once, because the proposals came with the
 * counts. With a budget the proposals are read when the next layer-forward begins, so the remedies in force are one
 * layer-forward older: a rank that proposed something waits then for the event behind the last one's numbers; one that
 * proposed nothing knows that the AND is nothing. What ranks must give alike (moe_dispatcher_set_alike) is compared by
 * all ranks in the same forward, or one would stop where the others wait: in the next but one, whose wait is for what
 * the stream has long passed unless the host is two layer-forwards ahead of it. Asking the event instead of waiting was
 * rejected: ranks would get the answer in different forwards. While a graph is captured, ranks propose nothing. UNEVEN
 * and BOUND change the exchange that carries them, and always act from the next layer-forward on; for the first one
 * they are agreed on in the exchange that makes the buffer. The last layer-forward is the layer's, also where another
 * microbatch's dispatcher made it (moe_dispatcher_follow).
 */
#include "moe_core/dispatch/dispatcher_hybridep.h"

/* Waits for what all ranks said; what they must give alike is in d->unlike. */
static int read_said(moe_dispatcher_t *d, const struct hybridep *s, const struct moe_hybridep_said *said,
                     uint32_t *agreed)
{
    if (cudaEventSynchronize(said->read) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_DEVICE, "what the ranks said in a layer-forward before");
    }
    *agreed = moe_flex_agreed(d, &s->flex, said->host);
    return 0;
}

int moe_hybridep_read_agreed(moe_dispatcher_t *d, struct hybridep *s, bool capturing)
{
    struct moe_hybridep_said *last = &s->said[s->turn], *before = &s->said[(s->turn + 1) % MOE_HYBRIDEP_TURNS];
    uint32_t ignored = 0;
    int rc = 0;
    if (last->pending) {
        s->agreed = 0;
    }
    if (capturing) { /* it must not wait, and what was said before it is not compared: its replays come in between */
        last->pending = before->pending = false;
        return 0;
    }
    if (last->pending && (s->proposed & MOE_WORD_PROPOSED) != 0) {
        rc = read_said(d, s, last, &s->agreed);
        d->unlike = 0; /* for ranks that proposed nothing it is not yet known */
    }
    if (rc == 0 && before->pending && d->compares) {
        rc = read_said(d, s, before, &ignored);
    }
    before->pending = false;
    if (rc != 0 || d->unlike == 0) {
        return rc;
    }
    last->pending = false; /* said before anybody was told: who mends it now is not told of it a second time */
    return DISPATCHER_FAIL(d, MOE_E_ARG, "the ranks did not say the same in the last layer-forward but one");
}

int moe_hybridep_read_followed(moe_dispatcher_t *d, struct hybridep *s, bool capturing)
{
    const struct hybridep *other = d->follows->state;
    const struct moe_hybridep_said *last = &other->said[other->turn];
    bool known = !last->pending, told = !known && !capturing && (other->proposed & MOE_WORD_PROPOSED) != 0;
    s->agreed = known ? other->agreed : 0;
    int rc = told ? read_said(d, s, last, &s->agreed) : 0;
    d->unlike = 0;
    return rc;
}
