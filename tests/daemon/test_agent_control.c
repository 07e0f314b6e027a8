/*
 * test_agent_control.c: which control pages a CONTROL frame changes: those of the run that it names.
 */
#include "daemon/agent/agent_control.h"
#include "daemon/base/bus_guard.h"
#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/trace/scratch.h"

/* Applies the first `bytes` bytes of a change for restart 1 of the job. */
static void change(struct roll_agent_controls *c, enum roll_control_action action, uint32_t mask, uint32_t bytes)
{
    struct roll_frame_control control = {.job = "job", .change = {.action = action, .mask = mask}, .restart = 1};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_CONTROL, .payload = bytes},
                               .payload = (const uint8_t *)&control};
    roll_agent_controls_apply(c, &frame);
}

/* The same of one that switches `mask` on. */
static void apply(struct roll_agent_controls *c, uint32_t mask, uint32_t bytes)
{
    change(c, ROLL_ACTION_ON, mask, bytes);
}

static uint32_t mask_of(const struct roll_agent_controls *c, size_t page)
{
    return roll_control_mask(c->page[page].control, 0, 0, 0);
}

static void a_change_reaches_the_page_of_its_restart_and_one_without_restart_all(void **state)
{
    (void)state;
    char dir[64];
    struct roll_agent_controls c = {0};
    scratch_make(dir);
    roll_agent_controls_need(&c, dir, "job", 0, ROLL_POLICY_OBSERVE);
    roll_agent_controls_need(&c, dir, "job", 1, ROLL_POLICY_OBSERVE);
    roll_agent_controls_need(&c, dir, "job2", 1, ROLL_POLICY_OBSERVE);
    assert_int_equal(c.used, 3);

    apply(&c, ROLL_REMEDY_PAD, ROLL_FRAME_CONTROL_OLDEST_BYTES - 1);
    assert_int_equal(mask_of(&c, 1), 0);
    apply(&c, ROLL_REMEDY_PAD, sizeof(struct roll_frame_control));
    assert_int_equal(mask_of(&c, 0), 0);
    assert_int_equal(mask_of(&c, 1), ROLL_REMEDY_PAD);
    apply(&c, ROLL_REMEDY_FILL, ROLL_FRAME_CONTROL_OLDEST_BYTES);
    assert_int_equal(mask_of(&c, 0), ROLL_REMEDY_FILL);
    assert_int_equal(mask_of(&c, 1), ROLL_REMEDY_PAD | ROLL_REMEDY_FILL);
    assert_int_equal(mask_of(&c, 2), 0);

    roll_agent_controls_drop(&c, "job", 0);
    roll_agent_controls_drop(&c, "job", 1);
    roll_agent_controls_drop(&c, "job2", 1);
    roll_agent_controls_fini(&c);
    assert_int_equal(scratch_remove(dir), 0);
}

static void a_page_that_is_cut_is_left_and_the_others_stay(void **state)
{
    (void)state;
    char dir[64];
    struct roll_agent_controls c = {0};
    scratch_make(dir);
    roll_guard();
    roll_agent_controls_need(&c, dir, "job", 1, ROLL_POLICY_OBSERVE);
    roll_agent_controls_need(&c, dir, "job2", 1, ROLL_POLICY_OBSERVE);
    roll_agent_controls_leave_cut(&c);
    assert_non_null(c.page[0].control);
    assert_non_null(c.page[1].control);

    assert_int_equal(truncate(c.page[0].path, 0), 0);
    roll_agent_controls_seen(&c, 7); /* the agent's loop writes into it, and lives */
    roll_agent_controls_leave_cut(&c);
    assert_null(c.page[0].control);
    assert_non_null(c.page[1].control);
    assert_int_equal(atomic_load(&c.page[1].control->agent_seen_ns), 7);

    roll_agent_controls_seen(&c, 8);
    apply(&c, ROLL_REMEDY_PAD, sizeof(struct roll_frame_control));
    roll_agent_controls_policy(&c, ROLL_POLICY_AUTO);
    roll_agent_controls_need(&c, dir, "job", 1, ROLL_POLICY_OBSERVE); /* its next ring opens no file without a page */
    assert_int_equal(c.used, 2);
    assert_null(c.page[0].control);
    assert_int_equal(atomic_load(&c.page[1].control->agent_seen_ns), 8);

    roll_agent_controls_drop(&c, "job", 1);
    roll_agent_controls_drop(&c, "job2", 1);
    roll_agent_controls_fini(&c);
    assert_int_equal(scratch_remove(dir), 0);
}

/* A root tells all that is switched when a ring is announced, the policy first: what is off is off meanwhile. */
static void a_policy_that_is_told_again_leaves_off_what_is_off(void **state)
{
    (void)state;
    char dir[64];
    struct roll_agent_controls c = {0};
    const uint32_t bytes = sizeof(struct roll_frame_control), rest = roll_remedy_all() & ~(uint32_t)ROLL_REMEDY_FILL;
    scratch_make(dir);
    roll_agent_controls_need(&c, dir, "job", 1, ROLL_POLICY_AUTO);
    struct roll_control *page = c.page[0].control;
    change(&c, ROLL_ACTION_OFF, ROLL_REMEDY_FILL, bytes);
    assert_int_equal(atomic_load(&page->auto_local), rest);
    change(&c, ROLL_ACTION_POLICY, ROLL_POLICY_AUTO, bytes); /* nobody has told it yet: all of it is set */
    assert_int_equal(atomic_load(&page->policy_told), 1);
    assert_int_equal(atomic_load(&page->auto_local), roll_remedy_all());
    change(&c, ROLL_ACTION_OFF, ROLL_REMEDY_FILL, bytes);
    uint64_t changes = atomic_load(&page->generation);
    change(&c, ROLL_ACTION_POLICY, ROLL_POLICY_AUTO, bytes);
    assert_int_equal(atomic_load(&page->auto_local), rest);
    assert_int_equal(atomic_load(&page->generation), changes);
    roll_agent_controls_policy(&c, ROLL_POLICY_OBSERVE); /* the root's policy for new jobs is not that of this one */
    assert_int_equal(atomic_load(&page->policy), ROLL_POLICY_AUTO);
    assert_int_equal(atomic_load(&page->auto_local), rest);

    change(&c, ROLL_ACTION_POLICY, ROLL_POLICY_OBSERVE, bytes);
    assert_int_equal(atomic_load(&page->auto_local), 0);
    change(&c, ROLL_ACTION_POLICY, ROLL_POLICY_AUTO, bytes);
    assert_int_equal(atomic_load(&page->auto_local), roll_remedy_all());

    roll_agent_controls_need(&c, dir, "job2", 1, ROLL_POLICY_OBSERVE);
    roll_agent_controls_policy(&c, ROLL_POLICY_ADVISE);
    assert_int_equal(atomic_load(&c.page[1].control->policy), ROLL_POLICY_ADVISE);

    roll_agent_controls_drop(&c, "job", 1);
    roll_agent_controls_drop(&c, "job2", 1);
    roll_agent_controls_fini(&c);
    assert_int_equal(scratch_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_change_reaches_the_page_of_its_restart_and_one_without_restart_all),
        cmocka_unit_test(a_page_that_is_cut_is_left_and_the_others_stay),
        cmocka_unit_test(a_policy_that_is_told_again_leaves_off_what_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
