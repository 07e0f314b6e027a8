/*
 * test_facts.c: facts about tensors: their values, when they are reported, and that no fact is reported about the
 * elements of healthy gradients.
 */
#include "tests/moe_core/support.h"

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
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* What one share says of elements `from` .. `to`, the others zero; *size: the sum of absolute values. */
static double projection(struct fixture *f, const float *values, int from, int to, float *size)
{
    size_t before = events;
    for (int i = 0; i < 12; i++) {
        f->grad[i] = i >= from && i < to ? values[i] : 0.0f;
    }
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_share(f->facts, &router, f->grad, 12), 0);
    assert_int_equal(events, before); /* nothing before the step's end */
    report(f);
    assert_int_equal(events, before + 1);
    uint32_t low = (uint32_t)seen[before].count2;
    memcpy(size, &low, sizeof(*size));
    return as_double(seen[before].count);
}

static void test_a_share_is_told_as_a_linear_number_with_its_size(void **state)
{
    struct fixture *f = *state;
    float values[12], size;
    int plus = 0;
    for (int i = 0; i < 12; i++) {
        values[i] = (float)(i - 4); /* absolutely adds up to 38 */
    }
    double all = projection(f, values, 0, 12, &size), parts = 0;
    assert_true(size == 38.0f);
    assert_int_equal(seen[0].kind, MOE_EV_TENSOR);
    assert_int_equal(seen[0].aux, MOE_TENSOR_PART);
    assert_int_equal(seen[0].peer, MOE_TENSOR_ROUTER);
    assert_int_equal(seen[0].layer, 3);
    assert_int_equal(seen[0].step, 7);
    for (int i = 0; i < 12; i++) {
        double one = projection(f, values, i, i + 1, &size);
        events = 0;
        assert_true(fabs(one) == fabs((double)values[i])); /* each element with a sign of its own */
        plus += one == (double)values[i];
        parts += one;
    }
    assert_true(parts == all);
    assert_true(plus > 1 && plus < 12); /* the numbers differ, or the gradient of a softmax would show nothing */
}

static void test_a_sum_is_told_as_one_and_only_once(void **state)
{
    struct fixture *f = *state;
    f->grad[0] = 5.0f;
    moe_facts_begin(f->facts, &step);
    assert_int_equal(moe_facts_share(f->facts, &router, f->grad, 12), 0);
    assert_int_equal(moe_facts_sum(f->facts, &router, f->grad, 12), 0);
    report(f);
    assert_int_equal(events, 2);
    assert_int_equal(seen[1].aux, MOE_TENSOR_SUM);
    assert_true(seen[1].count == seen[0].count);
    moe_facts_report(f->facts);
    assert_int_equal(events, 2);
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
        cmocka_unit_test_setup_teardown(test_a_share_is_told_as_a_linear_number_with_its_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_sum_is_told_as_one_and_only_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_checksum_sees_one_bit_and_not_the_place_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_elements_that_are_no_number_are_counted_and_none_is_silence, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_more_facts_than_there_is_room_for_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
