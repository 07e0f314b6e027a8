/*
 * test_control.c: the control page: one maker wins, changes act at each level, wrong changes are refused.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"
#include "trace/control.h"
#include "trace/err.h"
#include "trace/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define FILL ROLL_REMEDY_FILL
#define PAD  ROLL_REMEDY_PAD

static struct roll_control *make_page(char dir[64], enum roll_policy policy)
{
    scratch_make(dir);
    struct roll_control *c = NULL;
    assert_int_equal(roll_control_open(scratch_path(dir, "j.0.ctl"), true, policy, &c), 0);
    return c;
}

static void change(struct roll_control *c, uint32_t level, uint32_t action, uint32_t mask, uint64_t key, uint32_t layer)
{
    struct roll_control_change what = {level, action, mask, layer, key};
    uint64_t before = atomic_load(&c->generation);
    assert_int_equal(roll_control_apply(c, &what), 0);
    assert_int_equal(atomic_load(&c->generation), before + 1);
}

static void a_new_page_is_private_and_carries_its_policy(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_AUTO);
    struct stat info;
    assert_int_equal(stat(scratch_path(dir, "j.0.ctl"), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_size, ROLL_CONTROL_BYTES);
    assert_int_equal(atomic_load(&c->policy), ROLL_POLICY_AUTO);
    assert_int_equal(atomic_load(&c->auto_local), roll_remedy_all());
    assert_int_equal(roll_control_mask(c, 1, 1, 0), 0);
    roll_control_close(&c);
    assert_null(c);
    roll_control_close(&c);
    assert_int_equal(scratch_remove(dir), 1);
}

static void a_page_is_not_made_unless_asked(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    struct roll_control *c = NULL;
    assert_int_equal(roll_control_open(scratch_path(dir, "j.0.ctl"), false, ROLL_POLICY_OBSERVE, &c), ROLL_E_NOTFOUND);
    assert_int_equal(roll_control_open("/nonexistent/j.ctl", true, ROLL_POLICY_OBSERVE, &c), ROLL_E_NOTFOUND);
    assert_null(c);
    assert_int_equal(scratch_remove(dir), 0);
}

/* Each child opens the page at the same moment with a policy of its own and reports the policy that it found. */
static void of_many_makers_the_first_wins(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        char dir[64];
        scratch_make(dir);
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s", scratch_path(dir, "j.0.ctl"));
        int gate[2];
        assert_int_equal(pipe(gate), 0);
        pid_t child[6];
        for (int i = 0; i < 6; i++) {
            child[i] = fork();
            assert_true(child[i] >= 0);
            if (child[i] == 0) {
                char byte;
                struct roll_control *c = NULL;
                close(gate[1]);
                if (read(gate[0], &byte, 1) != 0 || roll_control_open(path, true, (enum roll_policy)(i % 3), &c) < 0) {
                    _exit(99);
                }
                _exit((int)atomic_load(&c->policy));
            }
        }
        close(gate[0]);
        close(gate[1]);
        int first = -1;
        for (int i = 0; i < 6; i++) {
            int status;
            assert_int_equal(waitpid(child[i], &status, 0), child[i]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 99);
            first = i == 0 ? WEXITSTATUS(status) : first;
            assert_int_equal(WEXITSTATUS(status), first);
        }
        assert_int_equal(scratch_remove(dir), 1); /* no temporary file is left */
    }
}

static void levels_add_and_take_away(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_OBSERVE);
    change(c, 0, 1, FILL, 0, 0);
    assert_int_equal(roll_control_mask(c, 0, ROLL_LAYER_NONE, 0), FILL);
    change(c, 2, 2, FILL, 0, 3); /* off in layer 3 */
    assert_int_equal(roll_control_mask(c, 0, 3, 0), 0);
    assert_int_equal(roll_control_mask(c, 0, 2, 0), FILL);
    change(c, 1, 1, PAD, 0xabc, 0); /* on for one group */
    assert_int_equal(roll_control_mask(c, 0xabc, 3, 0), PAD);
    assert_int_equal(roll_control_mask(c, 0xabd, 3, 0), 0);
    change(c, 2, 1, FILL, 0, 3);
    assert_int_equal(roll_control_mask(c, 0xabc, 3, 0), FILL | PAD);
    change(c, 2, 0, FILL, 0, 3);
    change(c, 1, 0, PAD, 0xabc, 0);
    change(c, 0, 2, FILL, 0, 0);
    assert_int_equal(roll_control_mask(c, 0xabc, 3, 0), 0);
    assert_int_equal(atomic_load(&c->group[0].comm_key), 0);
    roll_control_close(&c);
    scratch_remove(dir);
}

static void a_policy_change_sets_what_ranks_may_do_alone(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_OBSERVE);
    assert_int_equal(atomic_load(&c->auto_local), 0);
    change(c, 0, 3, ROLL_POLICY_AUTO, 0, 0);
    assert_int_equal(atomic_load(&c->auto_local), roll_remedy_all());
    change(c, 0, 3, ROLL_POLICY_ADVISE, 0, 0);
    assert_int_equal(atomic_load(&c->auto_local), 0);
    assert_int_equal(atomic_load(&c->policy), ROLL_POLICY_ADVISE);
    roll_control_close(&c);
    scratch_remove(dir);
}

static void what_is_off_is_not_taken_by_policy_auto(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_AUTO);
    assert_int_equal(roll_control_mask(c, 9, 3, FILL | PAD), FILL | PAD);
    assert_int_equal(roll_control_mask(c, 9, 3, 0), 0);
    change(c, 2, 2, FILL, 0, 3); /* off in layer 3 */
    assert_int_equal(roll_control_mask(c, 9, 3, FILL | PAD), PAD);
    assert_int_equal(roll_control_mask(c, 9, 4, FILL | PAD), FILL | PAD);
    change(c, 1, 2, PAD, 9, 0); /* off on communicator 9 */
    assert_int_equal(roll_control_mask(c, 9, 4, FILL | PAD), FILL);
    assert_int_equal(roll_control_mask(c, 8, 4, FILL | PAD), FILL | PAD);
    change(c, 0, 2, FILL, 0, 0); /* off for the job */
    assert_int_equal(roll_control_mask(c, 8, 4, FILL | PAD), PAD);
    change(c, 2, 1, FILL, 0, 4); /* on in one layer, although off for the job */
    assert_int_equal(roll_control_mask(c, 8, 4, 0), FILL);
    change(c, 0, 0, FILL, 0, 0); /* clear: as the policy says */
    assert_int_equal(roll_control_mask(c, 8, 5, FILL), FILL);
    change(c, 0, 3, ROLL_POLICY_ADVISE, 0, 0);
    change(c, 0, 0, FILL, 0, 0);
    assert_int_equal(roll_control_mask(c, 8, 5, FILL), 0);
    roll_control_close(&c);
    scratch_remove(dir);
}

static void impossible_changes_are_refused_and_change_nothing(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_OBSERVE);
    static const struct roll_control_change bad[] = {
        {3, 1, 1, 0, 0},                   /* no such level */
        {0, 4, 1, 0, 0},                   /* no such action */
        {0, 3, 3, 0, 0},                   /* no such policy */
        {1, 3, 1, 0, 1},                   /* a policy is the job's */
        {1, 1, 1, 0, 0},                   /* no communicator */
        {2, 1, 1, ROLL_CONTROL_LAYERS, 0}, /* no such layer */
    };
    struct roll_control before;
    memcpy(&before, c, sizeof(before));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(roll_control_apply(c, &bad[i]), ROLL_E_ARG);
    }
    assert_memory_equal(&before, c, sizeof(before));
    for (uint64_t key = 1; key <= ROLL_CONTROL_GROUPS; key++) {
        change(c, 1, 1, FILL, key, 0);
    }
    struct roll_control_change one_more = {1, 1, FILL, 0, 1000};
    assert_int_equal(roll_control_apply(c, &one_more), ROLL_E_LIMIT);
    change(c, 1, 0, FILL, 7, 0);
    assert_int_equal(roll_control_apply(c, &one_more), 0); /* a cleared group makes room */
    assert_int_equal(roll_control_mask(c, 1000, ROLL_LAYER_NONE, 0), FILL);
    roll_control_close(&c);
    scratch_remove(dir);
}

static void a_page_cut_at_any_length_is_refused(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_OBSERVE);
    for (size_t cut = 0; cut < ROLL_CONTROL_BYTES; cut++) {
        assert_int_equal(roll_control_check(c, cut), ROLL_E_SHORT);
    }
    assert_int_equal(roll_control_check(c, ROLL_CONTROL_BYTES), 0);
    assert_int_equal(truncate(scratch_path(dir, "j.0.ctl"), 100), 0);
    struct roll_control *other = NULL;
    assert_int_equal(roll_control_open(scratch_path(dir, "j.0.ctl"), true, ROLL_POLICY_AUTO, &other), ROLL_E_SHORT);
    roll_control_close(&c);
    scratch_remove(dir);
}

static void flipped_bits_of_the_head_are_noticed(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *c = make_page(dir, ROLL_POLICY_OBSERVE);
    uint8_t copy[ROLL_CONTROL_BYTES];
    memcpy(copy, c, sizeof(copy));
    roll_control_close(&c);
    scratch_remove(dir);
    for (size_t bit = 0; bit < 16 * 8; bit++) {
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = roll_control_check(copy, sizeof(copy));
        bool newer_but_readable = bit >= 65 && bit < 80; /* version grows, `oldest` still says 1 */
        assert_true(newer_but_readable ? err == 0 : err < 0);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    copy[24] = 3;
    assert_int_equal(roll_control_check(copy, sizeof(copy)), ROLL_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_page_is_private_and_carries_its_policy),
        cmocka_unit_test(a_page_is_not_made_unless_asked),
        cmocka_unit_test(of_many_makers_the_first_wins),
        cmocka_unit_test(levels_add_and_take_away),
        cmocka_unit_test(a_policy_change_sets_what_ranks_may_do_alone),
        cmocka_unit_test(what_is_off_is_not_taken_by_policy_auto),
        cmocka_unit_test(impossible_changes_are_refused_and_change_nothing),
        cmocka_unit_test(a_page_cut_at_any_length_is_refused),
        cmocka_unit_test(flipped_bits_of_the_head_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
