/* test_program.c: the properties that `rollcall doctor` reads from an executable file. */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"

#include "daemon/console/doctor/doctor.h"
#include "trace/err.h"

#include <sys/stat.h>

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_dynamic_program_can_be_entered(void **state)
{
    (void)state;
    struct roll_program p;
    assert_int_equal(roll_program_inspect("/proc/self/exe", &p), 0);
    assert_true(p.elf && !p.script && !p.needs_nccl && !p.defines_nccl);
    assert_int_equal(roll_program_inspect("/bin/sh", &p), 0);
    assert_true(p.elf && p.dynamic);
}

static void test_static_program_cannot_be_entered(void **state)
{
    (void)state;
    struct roll_program p;
    assert_int_equal(roll_program_inspect(PROGRAM_STATIC, &p), 0);
    assert_true(p.elf && !p.dynamic);
}

static void test_nccl_inside_the_program_is_seen(void **state)
{
    (void)state;
    struct roll_program p;
    assert_int_equal(roll_program_inspect(PROGRAM_INSIDE, &p), 0);
    assert_true(p.elf && p.dynamic && p.defines_nccl && !p.needs_nccl);
}

static void test_release_is_read_from_the_file(void **state)
{
    (void)state;
    char release[32];
    assert_true(roll_nccl_release(PROGRAM_OLD, release, sizeof(release)));
    assert_string_equal(release, "2.21.5");
    assert_false(roll_nccl_has_profiler(PROGRAM_OLD));
    assert_false(roll_nccl_release(PROGRAM_INSIDE, release, sizeof(release)));
    assert_true(roll_nccl_has_profiler(PROGRAM_INSIDE)); /* the program does not say */
    assert_false(roll_nccl_release("/nonexistent", release, sizeof(release)));
}

static void test_study_finds_where_nccl_is(void **state)
{
    (void)state;
    static struct roll_study s;
    roll_study(PROGRAM_INSIDE, NULL, &s);
    assert_int_equal(s.error, 0);
    assert_string_equal(s.holder, PROGRAM_INSIDE);
    assert_int_equal(s.nccls, 0);
    roll_study("sh", NULL, &s); /* through PATH */
    assert_int_equal(s.error, 0);
    assert_string_equal(s.holder, "");
    assert_true(s.path[0] == '/' && s.program.loader[0] == '/');
    roll_study("/nonexistent/program", NULL, &s);
    assert_int_equal(s.error, ROLL_E_NOTFOUND);
}

static void test_script_names_its_interpreter(void **state)
{
    (void)state;
    struct roll_program p;
    char dir[64];
    scratch_make(dir);
    write_file(scratch_path(dir, "s"), "#!/usr/bin/env python3\nimport torch\n");
    assert_int_equal(roll_program_inspect(scratch_path(dir, "s"), &p), 0);
    assert_true(p.script && !p.elf);
    assert_string_equal(p.interpreter, "/usr/bin/env python3");
    scratch_remove(dir);
}

static void test_a_text_without_a_magic_number_is_the_shells(void **state)
{
    (void)state;
    struct roll_program p;
    char dir[64];
    scratch_make(dir);
    write_file(scratch_path(dir, "s"), "exec true\n");
    assert_int_equal(roll_program_inspect(scratch_path(dir, "s"), &p), 0);
    assert_true(p.script && !p.elf);
    assert_string_equal(p.interpreter, "/bin/sh");
    scratch_remove(dir);
}

/* Nobody writes into the pipe, so opening it must not wait. */
static void test_a_pipe_is_not_waited_for(void **state)
{
    (void)state;
    struct roll_program p;
    char dir[64];
    scratch_make(dir);
    assert_int_equal(mkfifo(scratch_path(dir, "f"), 0700), 0);
    alarm(200);
    assert_int_equal(roll_program_inspect(scratch_path(dir, "f"), &p), ROLL_E_IO);
    alarm(0);
    scratch_remove(dir);
}

/* A set-user-id program of our own user gains no rights, so the loader honours LD_PRELOAD. */
static void test_set_user_id_of_oneself_takes_nothing_away(void **state)
{
    (void)state;
    struct roll_program p;
    char dir[64];
    scratch_make(dir);
    write_file(scratch_path(dir, "s"), "#!/bin/sh\n");
    assert_int_equal(chmod(scratch_path(dir, "s"), 06755), 0);
    assert_int_equal(roll_program_inspect(scratch_path(dir, "s"), &p), 0);
    assert_false(p.elevated);
    if (geteuid() == 0) {
        assert_int_equal(chown(scratch_path(dir, "s"), 65534, (gid_t)-1), 0);
        assert_int_equal(chmod(scratch_path(dir, "s"), 04755), 0);
        assert_int_equal(roll_program_inspect(scratch_path(dir, "s"), &p), 0);
    } else {
        assert_int_equal(roll_program_inspect("/bin/su", &p), 0);
    }
    assert_true(p.elevated);
    scratch_remove(dir);
}

static void test_words_for_yama(void **state)
{
    (void)state;
    static const struct {
        int scope;
        bool root;
        enum roll_health health;
        const char *says;
    } rows[] = {
        {0, false, ROLL_HEALTH_OK, "may be read"},       {0, true, ROLL_HEALTH_OK, "may be read"},
        {1, false, ROLL_HEALTH_OK, "ranks allow it"},    {1, true, ROLL_HEALTH_OK, "may be read"},
        {2, false, ROLL_HEALTH_WARN, "but by root"},     {2, true, ROLL_HEALTH_OK, "may be read"},
        {3, false, ROLL_HEALTH_WARN, "read by anybody"}, {3, true, ROLL_HEALTH_WARN, "read by anybody"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[160];
        assert_int_equal(roll_ptrace_words(rows[i].scope, rows[i].root, text, sizeof(text)), rows[i].health);
        assert_non_null(strstr(text, rows[i].says));
    }
}

static void test_seconds_that_a_ring_holds(void **state)
{
    (void)state;
    static const struct {
        uint64_t records;
        double rate;
        enum roll_health health;
        const char *says;
    } rows[] = {
        {65536, 0, ROLL_HEALTH_OK, "131.1 s of calls at 500 a second, 6.6 s at 10,000"},
        {65536, 0, ROLL_HEALTH_OK, "for such a job ROLLCALL_RING_RECORDS=524288 holds 52 s (32 MiB a rank)"},
        {8192, 0, ROLL_HEALTH_WARN, "16.4 s of calls at 500"},
        {8192, 0, ROLL_HEALTH_WARN, "ROLLCALL_RING_RECORDS=16384 holds 33 s (1 MiB a rank)"},
        {1u << 20, 0, ROLL_HEALTH_OK, "104.9 s at 10,000"},
        {65536, 2184, ROLL_HEALTH_OK, "30.0 s of calls at its 2,184 a second"},
        {65536, 2200, ROLL_HEALTH_WARN, "ROLLCALL_RING_RECORDS=131072 holds 60 s"},
        {65536, 1e7, ROLL_HEALTH_WARN, "no ring is large enough"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256];
        assert_int_equal(roll_history_words(rows[i].records, rows[i].rate, text, sizeof(text)), rows[i].health);
        if (strstr(text, rows[i].says) == NULL) {
            fail_msg("'%s' does not say '%s'", text, rows[i].says);
        }
    }
}

static void test_interpreters_whose_lines_can_be_read(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned major, minor;
        const char *flags;
        enum roll_health health;
        const char *says;
    } rows[] = {
        {"cpython", 3, 9, "", ROLL_HEALTH_OK, "CPython 3.9: calls are told by their lines"},
        {"cpython", 3, 14, "", ROLL_HEALTH_OK, "lines of Python"},
        {"cpython", 3, 8, "", ROLL_HEALTH_WARN, "native frames alone: frames are known of CPython 3.9 to 3.14"},
        {"cpython", 3, 15, "", ROLL_HEALTH_WARN, "3.9 to 3.14"},
        {"cpython", 4, 11, "", ROLL_HEALTH_WARN, "3.9 to 3.14"},
        {"cpython", 3, 13, "t", ROLL_HEALTH_WARN, "free-threaded"},
        {"cpython", 3, 12, "d", ROLL_HEALTH_WARN, "debug build"},
        {"pypy", 3, 10, "", ROLL_HEALTH_WARN, "another interpreter than CPython"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256];
        assert_int_equal(
            roll_python_words(rows[i].name, rows[i].major, rows[i].minor, rows[i].flags, text, sizeof(text)),
            rows[i].health);
        assert_non_null(strstr(text, rows[i].says));
    }
}

static void test_other_files_are_neither(void **state)
{
    (void)state;
    struct roll_program p;
    char dir[64];
    scratch_make(dir);
    write_file(scratch_path(dir, "t"), "\x7f"
                                       "ELF but not really");
    assert_int_equal(roll_program_inspect(scratch_path(dir, "t"), &p), 0);
    assert_true(!p.script && !p.dynamic && !p.needs_nccl);
    write_file(scratch_path(dir, "t"), "");
    assert_int_equal(roll_program_inspect(scratch_path(dir, "t"), &p), 0);
    assert_true(!p.script && !p.elf);
    assert_int_equal(roll_program_inspect(scratch_path(dir, "no"), &p), ROLL_E_NOTFOUND);
    assert_int_equal(roll_program_inspect(dir, &p), ROLL_E_IO);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dynamic_program_can_be_entered),
        cmocka_unit_test(test_static_program_cannot_be_entered),
        cmocka_unit_test(test_nccl_inside_the_program_is_seen),
        cmocka_unit_test(test_script_names_its_interpreter),
        cmocka_unit_test(test_seconds_that_a_ring_holds),
        cmocka_unit_test(test_interpreters_whose_lines_can_be_read),
        cmocka_unit_test(test_other_files_are_neither),
        cmocka_unit_test(test_release_is_read_from_the_file),
        cmocka_unit_test(test_study_finds_where_nccl_is),
        cmocka_unit_test(test_a_text_without_a_magic_number_is_the_shells),
        cmocka_unit_test(test_a_pipe_is_not_waited_for),
        cmocka_unit_test(test_set_user_id_of_oneself_takes_nothing_away),
        cmocka_unit_test(test_words_for_yama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
