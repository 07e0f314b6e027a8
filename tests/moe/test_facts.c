/*
 * test_facts.c: facts about tensors: what they say, when they are told, and that they stay silent about healthy gradients.
 */
#include "tests/moe/support.h"

#include "moe_core/include/moe/facts.h"

enum { MOST = 8, SEEN = 16 };

static struct moe_event seen[SEEN];
static size_t events;

void moe_observe(const struct moe_event *event)
{
    if (events < SEEN) {
        seen[events++] = *event;
    }
}

struct fixture {
    moe_device_t *device;
    moe_facts_t *facts;
    float *grad;
    int64_t *m;
};

static int setup(void **state)
{
    static struct fixture f;
    events = 0;
    assert_int_equal(moe_device_new_host(&f.device), 0);
    assert_int_equal(moe_facts_new(f.device, MOST, &f.facts), 0);
    f.grad = support_floats(f.device, 12);
    f.m = support_array(f.device, 3, sizeof(int64_t));
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    moe_device_free(f->device, &f->grad);
    moe_device_free(f->device, &f->m);
    moe_facts_destroy(&f->facts);
    moe_device_destroy(&f->device);
    return 0;
}

static const struct moe_subject router = {.tensor = MOE_TENSOR_ROUTER, .layer = 3};
static const struct moe_step step = {.step = 7};

static void report(struct fixture *f)
{
    assert_int_equal(moe_device_sync(f->device), 0);
    moe_facts_report(f->facts);
}

static double as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void test_a_share_and_its_sum_are_told_with_their_size(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 12; i++) {
        f->grad[i] = (float)(i - 4); /* adds up to 18, absolutely to 38 */
    }
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_share(f->facts, &router, f->grad, 12), 0);
    assert_int_equal(moe_facts_sum(f->facts, &router, f->grad, 11), 0);
    assert_int_equal(events, 0); /* nothing before the step's end */
    report(f);
    assert_int_equal(events, 2);
    assert_int_equal(seen[0].kind, MOE_EV_TENSOR);
    assert_int_equal(seen[0].aux, MOE_TENSOR_PART);
    assert_int_equal(seen[0].peer, MOE_TENSOR_ROUTER);
    assert_int_equal(seen[0].layer, 3);
    assert_int_equal(seen[0].step, 7);
    assert_true(as_double(seen[0].count) == 18.0);
    float size;
    uint32_t low = (uint32_t)seen[0].count2;
    memcpy(&size, &low, sizeof size);
    assert_true(size == 38.0f);
    assert_int_equal(seen[1].aux, MOE_TENSOR_SUM);
    assert_true(as_double(seen[1].count) == 11.0);
    moe_facts_report(f->facts);
    assert_int_equal(events, 2); /* once */
}

static void test_a_checksum_sees_one_bit_and_not_the_place_in_memory(void **state)
{
    struct fixture *f = *state;
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_replica(f->facts, &router, f->grad, 5 * sizeof(float)), 0);
    assert_int_equal(moe_facts_replica(f->facts, &router, f->grad + 6, 5 * sizeof(float)), 0);
    assert_int_equal(moe_device_sync(f->device), 0);
    f->grad[4] = -0.0f; /* one bit */
    assert_int_equal(moe_facts_replica(f->facts, &router, f->grad, 5 * sizeof(float)), 0);
    report(f);
    assert_int_equal(events, 3);
    assert_true(seen[0].count == seen[1].count);
    assert_true(seen[0].count != seen[2].count);
    assert_int_equal(seen[0].aux, MOE_TENSOR_REPLICA);
}

static void test_elements_that_are_no_number_are_counted_and_none_is_silence(void **state)
{
    struct fixture *f = *state;
    f->m[0] = 2; /* m[1] = m[2] = 0 */
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_finite(f->facts, &router, f->grad, f->m, 3, 4), 0);
    report(f);
    assert_int_equal(events, 0);
    f->grad[1] = NAN;
    f->grad[5] = INFINITY;
    f->grad[11] = -INFINITY;
    assert_int_equal(moe_facts_finite(f->facts, &router, f->grad, f->m, 3, 4), 0);
    assert_int_equal(moe_facts_finite(f->facts, &router, f->grad, NULL, 3, 4), 0);
    report(f);
    assert_int_equal(events, 2);
    assert_int_equal(seen[0].aux, MOE_TENSOR_NOTFINITE);
    assert_int_equal(seen[0].count, 3);
    assert_int_equal(seen[0].count2, 2);
    assert_int_equal(seen[1].count2, 0);
}

static void test_more_facts_than_there_is_room_for_are_refused(void **state)
{
    struct fixture *f = *state;
    moe_facts_begin(f->facts, &step);
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(moe_facts_replica(f->facts, &router, f->grad, 4), 0);
    }
    assert_int_equal(moe_facts_replica(f->facts, &router, f->grad, 4), MOE_E_CAPACITY);
    assert_int_equal(moe_facts_share(f->facts, &router, f->grad, 4), MOE_E_CAPACITY);
    assert_int_equal(moe_facts_finite(f->facts, &router, f->grad, NULL, 1, 4), MOE_E_CAPACITY);
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_replica(f->facts, &router, f->grad, 4), 0);
    report(f);
    assert_int_equal(events, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_share_and_its_sum_are_told_with_their_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_checksum_sees_one_bit_and_not_the_place_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_elements_that_are_no_number_are_counted_and_none_is_silence, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_more_facts_than_there_is_room_for_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
