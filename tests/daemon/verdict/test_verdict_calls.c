/*
 * test_verdict_calls.c: what the sides of a verdict called, and from where, in the words of the block that people see.
 */
#include "tests/daemon/verdict/sample.h"

static void a_rank_that_made_no_call_is_said_so(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
    json_object_set_new(side, "op", json_null());
    json_object_set_new(side, "callsite", json_null());
    json_object_set_new(json, "remedied", json_true());
    char *text = sample_print(json, false, 0);
    assert_non_null(strstr(text, "\nrank 3    made no such call\n"));
    assert_non_null(strstr(text, "\nremedy    fill (has acted): "));
    assert_null(strstr(text, "$ rollcall"));
    free(text);
    json_decref(json);
}

static void calls_that_make_communicators_are_put_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *op;
        int count, peer;
        const char *text;
    } rows[] = {{"CommInit", 4, 2, "\nrank 3    CommInit of 4 ranks as rank 2 "},
                {"CommSplit", 0, 1, "\nrank 3    CommSplit, color 1 "},
                {"CommGrow", 6, 0, "\nrank 3    CommGrow to 6 ranks "},
                {"CommDestroy", 0, 0, "\nrank 3    CommDestroy "}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = sample_verdict();
        json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        json_object_set_new(side, "op", json_string(rows[i].op));
        json_object_set_new(side, "count", json_integer(rows[i].count));
        json_object_set_new(side, "peer", json_integer(rows[i].peer));
        char *text = sample_print(json, false, 0);
        assert_non_null(strstr(text, rows[i].text));
        free(text);
        json_decref(json);
    }
}

static void a_call_that_was_the_last_is_said_to_be(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    json_object_set_new(json, "family", json_string("process"));
    json_t *site = json_array_get(json_object_get(json, "callsites"), 0);
    json_t *start = json_pack("{s:s}", "function", "__libc_start_call_main");
    json_array_append_new(json_object_get(site, "frames"), start);
    char *text = sample_print(json, false, 0), *bare;
    /* It has no name where the C library has no debug information; a frame of another library is told. */
    json_object_set_new(start, "function", json_null());
    json_object_set_new(start, "module", json_string("/lib64/libc.so.6"));
    bare = sample_print(json, false, 0);
    assert_string_equal(bare, text);
    free(bare);
    json_object_set_new(start, "module", json_string("/lib64/libother.so.6"));
    bare = sample_print(json, false, 0);
    assert_non_null(strstr(bare, "libother.so.6"));
    free(bare);
    assert_non_null(strstr(text,
                           "\nrank 3    last: AllReduce  512 x float32  sum  (inside)   reduce_gradients  train.c:88\n"
                           "                                                          from main  train.c:140\n"
                           "0-2,4-7   AllReduce  1024 x float32  sum                  libtrain.so+0x1000\n"));
    free(text);
    json_decref(json);
}

/* The user's lines of Python, where there are any; else those of libraries; native frames only where there is nothing
 * else. */
static void lines_of_python_go_before_native_frames(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        json_t *json = sample_verdict();
        json_t *frames = json_object_get(json_array_get(json_object_get(json, "callsites"), 0), "frames");
        json_array_insert_new(frames, 0,
                              json_pack("{s:s, s:s, s:s, s:i, s:b, s:i}", "language", "python", "function", "train",
                                        "file", "/w/job.py", "line", 72, "library", !own, "folded", 5));
        json_array_insert_new(frames, 0,
                              json_pack("{s:s, s:s, s:s, s:i, s:b, s:i}", "language", "python", "function",
                                        "all_reduce", "file", "/t/c10d.py", "line", 9, "library", 1, "folded", 0));
        char *text = sample_print(json, false, 0);
        const char *want = own ? "sum  (inside)   train  job.py:72\n0-2,4-7"
                               : "sum  (inside)   all_reduce  c10d.py:9\n"
                                 "                                                    from train  job.py:72\n0-2,4-7";
        assert_non_null(strstr(text, want));
        free(text);
        json_decref(json);
    }
}

/* The main thread's line goes before lines of libraries, and says so; the text of a line stands below it. */
static void the_main_thread_tells_where_a_backward_pass_began(void **state)
{
    (void)state;
    static const char *const want[] = {
        "sum  (inside)   in backward, started at\n"
        "                                                    step  job.py:88\n"
        "                                                      loss.backward()\n0-2,4-7",
        "sum  (inside)   while the main thread was at\n"
        "                                                    step  job.py:88\n"
        "                                                      loss.backward()\n0-2,4-7",
        "sum  (inside)   hook  fsdp.py:9\n"
        "                                                    in backward, started at\n"
        "                                                    from run_backward  graph.py:7\n"
        "                                                    from step  job.py:88\n"
        "                                                      loss.backward()\n"
        "                                                    in native code\n"
        "                                                    reduce_gradients  train.c:88\n"
        "                                                    from main  train.c:140\n0-2,4-7"};
    for (int i = 0; i < 3; i++) {
        json_t *json = sample_verdict();
        json_t *frames = json_object_get(json_array_get(json_object_get(json, "callsites"), 0), "frames");
        static const char form[] = "{s:s, s:s, s:s, s:i, s:b, s:s?, s:b}";
        json_array_insert_new(frames, 0,
                              json_pack(form, "language", "python", "function", "step", "file", "/w/job.py", "line", 88,
                                        "library", 0, "text", "loss.backward()", "main_thread", 1));
        json_array_insert_new(frames, 0,
                              json_pack(form, "language", "python", "function", i == 1 ? "join" : "run_backward",
                                        "file", "/t/graph.py", "line", 7, "library", 1, "text", NULL, "main_thread",
                                        1));
        json_array_insert_new(frames, 0,
                              json_pack(form, "language", "python", "function", "hook", "file", "/t/fsdp.py", "line", 9,
                                        "library", 1, "text", NULL, "main_thread", 0));
        char *text = sample_print(json, i == 2 ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN, 0);
        assert_non_null(strstr(text, want[i]));
        free(text);
        json_decref(json);
    }
}

static void reports_of_moe_core_are_put_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *op;
        int count, peer;
        const char *want;
    } cases[] = {
        {"moe route", 3, 8, "routed 3 tokens over 8 experts\n"},
        {"moe counts", 0, 8, "received 0 rows, 8 local experts\n"},
        {"moe counts", 1, 1, "received 1 row, 1 local expert\n"},
        {"moe gemm", 3, 8, "expert GEMM over 3 rows in 8 groups\n"},
        {"moe skip", 0, 8, "skipped its 8 local experts: no rows\n"},
        {"moe oblige end", 3, -1, "owes 3 backward collectives\n"},
        {"moe oblige end", 1, -1, "owes 1 backward collective\n"},
        {"moe oblige end", 0, -1, "owes none\n"},
        {"moe remedy", 3, 1, "used 3 rows of zeros\n"},
        {"moe remedy", 0, 1, "walked its plan without a row\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = sample_verdict();
        json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        char want[80];
        json_object_set_new(json, "family", json_string("moe"));
        json_object_set_new(side, "op", json_string(cases[i].op));
        json_object_set_new(side, "count", json_integer(cases[i].count));
        json_object_set_new(side, "peer", json_integer(cases[i].peer));
        json_object_set_new(side, "callsite", json_null());
        char *text = sample_print(json, false, 0);
        snprintf(want, sizeof(want), "\nrank 3    %s", cases[i].want);
        assert_non_null(strstr(text, want));
        assert_null(strstr(text, "call #"));
        free(text);
        json_decref(json);
    }
}

/* What is not known (-1) is left out. */
static void products_seen_from_outside_are_put_in_words(void **state)
{
    (void)state;
    static const struct {
        int count, groups, empty;
        const char *want;
    } cases[] = {
        {77, 4, 1, "grouped gemm over 77 rows of float32 in 4 groups, 1 empty\n"},
        {1, 1, 0, "grouped gemm over 1 row of float32 in 1 group\n"},
        {-1, 9, -1, "grouped gemm in 9 groups\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = sample_verdict();
        json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        const int numbers[] = {cases[i].count, cases[i].groups, cases[i].empty};
        const char *const names[] = {"count", "groups", "empty"};
        char want[96];
        json_object_set_new(json, "family", json_string("moe"));
        json_object_set_new(side, "op", json_string("grouped gemm"));
        json_object_set_new(side, "dtype", json_string("float32"));
        json_object_set_new(side, "peer", json_null());
        json_object_set_new(side, "callsite", json_null());
        for (size_t k = 0; k < 3; k++) {
            json_object_set_new(side, names[k], numbers[k] < 0 ? json_null() : json_integer(numbers[k]));
        }
        char *text = sample_print(json, false, 0);
        snprintf(want, sizeof(want), "\nrank 3    %s", cases[i].want);
        assert_non_null(strstr(text, want));
        free(text);
        json_decref(json);
    }
}

static void a_call_site_that_both_sides_share_is_printed_once(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 1), "callsite", json_integer(0));
    char *text = sample_print(json, false, 0);
    assert_non_null(strstr(text, "\n0-2,4-7   AllReduce  1024 x float32  sum            same place\n"));
    free(text);
    json_decref(json);
}

/* A count does not prove that the call carries what has that count. */
static void what_has_the_count_of_a_call_is_said(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 0), "tensors",
                        json_string("bucket 0: a to b"));
    char *text = sample_print(json, false, 0);
    assert_non_null(strstr(text, "\n          as many as bucket 0: a to b\n"));
    free(text);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_made_no_call_is_said_so),
        cmocka_unit_test(calls_that_make_communicators_are_put_in_words),
        cmocka_unit_test(a_call_that_was_the_last_is_said_to_be),
        cmocka_unit_test(lines_of_python_go_before_native_frames),
        cmocka_unit_test(the_main_thread_tells_where_a_backward_pass_began),
        cmocka_unit_test(reports_of_moe_core_are_put_in_words),
        cmocka_unit_test(products_seen_from_outside_are_put_in_words),
        cmocka_unit_test(a_call_site_that_both_sides_share_is_printed_once),
        cmocka_unit_test(what_has_the_count_of_a_call_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
