/*
 * test_agent_digest.c: what an agent tells of rings that are only folded: how many calls each rank has made, and all of
 * a digest anew when it could not be sent.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_digest.h"
#include "daemon/agent/agent_ring.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <string.h>

#define MS    UINT64_C(1000000)
#define CALLS 5u

struct place {
    char dir[64];
    struct synth rank;
    struct roll_agent_ring *ring;
    roll_agent_digests_t *digests;
    uint64_t seq, now;
    bool full;        /* nothing can be sent */
    size_t fronts;    /* that came in the newest digest */
    uint64_t refused; /* digests that could not be sent */
    struct roll_frame_last last;
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct place *p = ctx;
    struct roll_digest digest = {0};
    if (p->full && head.type == ROLL_FRAME_DIGEST) {
        p->refused++;
        return ROLL_E_BUSY;
    }
    if (head.type == ROLL_FRAME_DIGEST && bytes > 0) {
        assert_int_equal(roll_digest_decode(payload, bytes, &digest), 0);
        p->fronts = digest.fronts;
    } else if (head.type == ROLL_FRAME_STATUS) {
        memcpy(&p->last, (const uint8_t *)payload + sizeof(struct roll_frame_status), sizeof(p->last));
    }
    roll_digest_fini(&digest);
    *seq = ++p->seq;
    return 0;
}

static void begin(struct place *p)
{
    memset(p, 0, sizeof(*p));
    p->now = 5000 * MS;
    scratch_make(p->dir);
    assert_int_equal(synth_open(&p->rank, p->dir, "folds", 0, 2, 1024), 0);
    uint16_t comm = synth_comm(&p->rank, 7);
    for (unsigned i = 0; i < CALLS; i++) {
        synth_allreduce(&p->rank, &(struct synth_call){.comm = comm, .count = 1});
    }
    assert_int_equal(roll_agent_ring_new(p->rank.path, &p->ring), 0);
    p->ring->link = ROLL_LINK_LIVE;
    p->ring->digest = true;
    p->digests = roll_agent_digests_new(take, p);
    assert_non_null(p->digests);
}

static void end(struct place *p)
{
    roll_agent_digests_drop(p->digests, p->ring);
    roll_agent_digests_destroy(&p->digests);
    roll_agent_ring_destroy(&p->ring);
    synth_close(&p->rank);
    scratch_remove(p->dir);
}

static void look(struct place *p, uint64_t step_ns)
{
    p->now += step_ns;
    p->ring->upto = roll_agent_ring_head(p->ring);
    assert_true(roll_agent_digests_pump(p->digests, p->ring, p->now) >= 0);
    p->fronts = 0;
    roll_agent_digests_tell(p->digests, p->now);
}

static void test_a_status_says_how_many_calls_were_made(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    look(&p, MS);
    assert_int_equal(p.last.calls, CALLS);
    end(&p);
}

static void test_a_digest_that_could_not_be_sent_is_told_anew(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    p.full = true;
    for (int i = 0; i < 20; i++) { /* it moves, and stands */
        look(&p, 100 * MS);
    }
    assert_true(p.refused > 0);
    p.full = false;
    look(&p, 100 * MS);
    assert_int_equal(p.fronts, 1);
    look(&p, 100 * MS);
    assert_int_equal(p.fronts, 0); /* nothing is new any more */
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_status_says_how_many_calls_were_made),
        cmocka_unit_test(test_a_digest_that_could_not_be_sent_is_told_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
