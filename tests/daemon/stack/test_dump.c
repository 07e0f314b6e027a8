/* test_dump.c: what CPython's dumper and py-spy write, whole, cut and damaged. */
#include "tests/trace/cmocka_all.h"

#include "daemon/stack/python_dump.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

static const char dump[] = "Thread 0x00007f1c2b7fe700 (most recent call first):\n"
                           "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
                           "  File \"/srv/a \"b\", line 3 in c.py\", line 7 in f\\xfcnf\\u65e5\\U0001f600\\q\\xzz\n"
                           "\n"
                           "Current thread 0x00007f1c2d0b4740 [python3] (most recent call first):\n"
                           "  File \"train.py\", line 12 in <module>\n"
                           "  ...\n";

static void threads_and_frames(void **state)
{
    (void)state;
    struct roll_text_pool pool = {0};
    struct roll_py_stacks s;
    assert_int_equal(roll_py_dump_parse(dump, sizeof(dump) - 1, &pool, &s), 0);
    assert_int_equal(s.threads, 2);
    assert_true(s.thread[0].ident == UINT64_C(0x7f1c2b7fe700));
    assert_int_equal(s.thread[0].frames, 2);
    assert_string_equal(s.thread[0].frame[0].function, "wait");
    assert_int_equal(s.thread[0].frame[0].line, 320);
    assert_string_equal(s.thread[0].frame[1].file, "/srv/a \"b\", line 3 in c.py");
    assert_string_equal(s.thread[0].frame[1].function, "f\xc3\xbcnf\xe6\x97\xa5\xf0\x9f\x98\x80\\q\\xzz");
    assert_int_equal(s.thread[1].frames, 1);
    assert_int_equal(s.thread[1].left_out, 1);
    roll_py_stacks_fini(&s);
    roll_text_pool_fini(&pool);
}

static void every_cut_is_taken(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof(dump); n++) {
        struct roll_text_pool pool = {0};
        struct roll_py_stacks s;
        char *copy = malloc(n + 1);
        memcpy(copy, dump, n);
        int err = roll_py_dump_parse(copy, n, &pool, &s);
        assert_true(err == 0 || err == ROLL_E_NOTFOUND);
        roll_py_stacks_fini(&s);
        roll_text_pool_fini(&pool);
        free(copy);
    }
}

static void a_dump_without_end_is_bounded(void **state)
{
    (void)state;
    struct roll_text_pool pool = {0};
    struct roll_py_stacks s;
    static const char line[] = "  File \"x.py\", line 1 in f\n", head[] = "Thread 0x1 (most recent call first):\n";
    size_t frames = 100000, bytes = sizeof(head) - 1 + frames * (sizeof(line) - 1);
    char *text = malloc(bytes);
    memcpy(text, head, sizeof(head) - 1);
    for (size_t i = 0; i < frames; i++) {
        memcpy(text + sizeof(head) - 1 + i * (sizeof(line) - 1), line, sizeof(line) - 1);
    }
    assert_int_equal(roll_py_dump_parse(text, bytes, &pool, &s), 0);
    assert_int_equal(s.thread[0].frames, ROLL_PY_INNER + ROLL_PY_OUTER);
    assert_int_equal(s.thread[0].left_out, frames - ROLL_PY_INNER - ROLL_PY_OUTER);
    roll_py_stacks_fini(&s);
    roll_text_pool_fini(&pool);
    free(text);
}

static void py_spy(void **state)
{
    (void)state;
    static const char text[] = "[{\"pid\":7,\"thread_id\":5,\"os_thread_id\":9,\"frames\":[{\"name\":\"step\","
                               "\"filename\":\"t.py\",\"line\":4},"
                               "{\"name\":3}]}]";
    struct roll_text_pool pool = {0};
    struct roll_py_stacks s;
    assert_int_equal(roll_py_spy_parse(text, sizeof(text) - 1, &pool, &s), 0);
    assert_int_equal(s.thread[0].tid, 9);
    assert_string_equal(s.thread[0].frame[0].function, "step");
    assert_string_equal(s.thread[0].frame[1].function, "?");
    roll_py_stacks_fini(&s);
    assert_int_equal(roll_py_spy_parse("{}", 2, &pool, &s), ROLL_E_CORRUPT);
    assert_int_equal(roll_py_spy_parse("[]", 2, &pool, &s), ROLL_E_NOTFOUND);
    assert_int_equal(roll_py_spy_parse(text, 20, &pool, &s), ROLL_E_CORRUPT);
    roll_text_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_frames),
        cmocka_unit_test(every_cut_is_taken),
        cmocka_unit_test(a_dump_without_end_is_bounded),
        cmocka_unit_test(py_spy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
