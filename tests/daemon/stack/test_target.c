/* test_target.c: the words of every kind of refusal; maps, modules and memory of this very
 * process. */
#include "tests/trace/cmocka_all.h"

#include "daemon/stack/module.h"
#include "trace/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void refusals(void **state)
{
    (void)state;
    const struct {
        struct roll_refusal refusal;
        const char *say;
    } cases[] = {
        {{.error = ESRCH, .yama = 3}, "has ended"},
        {{.error = EPERM, .yama = 1, .tracer = 77, .same_user_files = true}, "pid 77 traces it already"},
        {{.error = EPERM, .yama = 3, .privileged = true}, "ptrace_scope is 3"},
        {{.error = EPERM, .yama = 2, .same_user_files = true}, "ptrace_scope is 2"},
        {{.error = EPERM, .yama = 1, .same_user_files = true}, "ROLLCALL_PTRACER=any"},
        {{.error = EPERM, .yama = 1, .ours = 5, .theirs = 6, .same_user_files = true}, "belongs to user 6"},
        {{.error = EACCES, .yama = -1, .ours = 5, .theirs = 5}, "undumpable"},
        {{.error = EPERM, .yama = 0, .same_user_files = true, .filtered = true}, "seccomp"},
        {{.error = EPERM, .yama = -1, .same_user_files = true, .privileged = true}, "SYS_PTRACE"},
        {{.error = EIO, .yama = 1}, "cannot be looked at"},
    };
    char text[ROLL_STACK_WHY_BYTES];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        roll_refusal_text(&cases[i].refusal, text);
        if (!strstr(text, cases[i].say) || strchr(text, '\n')) {
            fail_msg("case %zu: '%s' does not say '%s'", i, text, cases[i].say);
        }
    }
}

static void this_process(void **state)
{
    (void)state;
    struct roll_target *t = NULL;
    struct roll_modules m = {0};
    uint64_t word = 0, value = UINT64_C(0x1122334455667788);
    assert_int_equal(roll_target_open(getpid(), &t), 0);
    assert_false(t->other_root);
    assert_true(roll_target_word(t, (uint64_t)(uintptr_t)&value, &word));
    assert_true(word == value);
    value++; /* a page is read once */
    assert_true(roll_target_word(t, (uint64_t)(uintptr_t)&value, &word) && word == value - 1);
    assert_false(roll_target_word(t, 8, &word));
    assert_int_equal(roll_modules_read(&m, t), 0);
    const struct roll_module *own = roll_modules_find(&m, (uint64_t)(uintptr_t)(void *)this_process);
    assert_non_null(own);
    assert_non_null(strstr(own->path, "test_stack_target"));
    assert_true(own->rows > 0);
    assert_int_equal(own->build_id_bytes, 20);
    assert_null(roll_modules_find(&m, 8));
    bool vdso = false;
    for (size_t i = 0; i < m.used; i++) {
        vdso = vdso || (strcmp(m.module[i].path, "[vdso]") == 0 && m.module[i].rows > 0);
    }
    assert_true(vdso);
    roll_modules_fini(&m);
    roll_target_close(&t);
    assert_null(t);
    assert_int_equal(roll_target_open(1 << 30, &t), ROLL_E_NOTFOUND);
}

static void threads_of_this_process(void **state)
{
    (void)state;
    struct roll_thread_info list[4];
    size_t all;
    assert_int_equal(roll_target_threads(getpid(), list, 4, &all), 1);
    assert_int_equal(all, 1);
    assert_int_equal(list[0].tid, getpid());
    assert_string_equal(list[0].name, "test_stack_targ");
    assert_int_equal(roll_target_threads(1 << 30, list, 4, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(this_process),
        cmocka_unit_test(threads_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
