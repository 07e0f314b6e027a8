/* test_merge.c: the prefix tree, and its text to the letter. */
#include "tests/trace/cmocka_all.h"

#include "daemon/console/stacks_view.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

/* One thread of one process; samples are numbers of stacks, -1 = none. */
static json_t *process(int tid, json_t *samples)
{
    return json_pack("{s:i, s:[{s:i, s:o}], s:[[i,i],[i,i,i],[i,i],[i,i,i]], "
                     "s:[{s:s,s:s,s:s,s:i},{s:s,s:s,s:s,s:i},{s:s,s:s,s:s,s:i},"
                     "{s:s,s:s,s:s,s:I}]}",
                     "pid", 1, "threads", "tid", tid, "samples", samples, "stacks", 0, 1, 0, 1, 2, 0, 3, 0, 3, 3,
                     "frames",                                                                             //
                     "fn", "main", "kind", "native", "file", "/src/job/main.c", "line", 5,                 //
                     "fn", "step", "kind", "python", "file", "/src/train.py", "line", 40,                  //
                     "fn", "ncclAllReduce", "kind", "native", "module", "/lib/libnccl.so.2", "offset", 64, //
                     "fn", "", "kind", "native", "module", "/lib/libnccl.so.2", "offset", (json_int_t)256);
}

static char *print(struct roll_stack_tree *tree, unsigned samples)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    struct roll_stacks_style style = {.one = "rank", .many = "ranks", .samples = samples};
    roll_stack_tree_sort(tree);
    roll_stacks_print(f, tree, &style);
    fclose(f);
    return text;
}

static void ranks_part_where_their_stacks_part(void **state)
{
    (void)state;
    struct roll_stack_tree tree = {0};
    json_t *inside = process(1, json_pack("[i,i]", 1, 1)), *moving = process(1, json_pack("[i,i]", 0, 2));
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(roll_stack_tree_add(&tree, rank, rank == 2 ? moving : inside, ROLL_STACK_MAIN), 0);
    }
    char *text = print(&tree, 2);
    assert_string_equal(text, "[0-3] (4 ranks)  stuck\n"
                              "  main  job/main.c:5\n"
                              "  [0-3] (4 ranks)  moving: here in 7 of 8 looks\n"
                              "    step  src/train.py:40\n"
                              "    [0-1,3] (3 ranks)  stuck\n"
                              "      ncclAllReduce  libnccl.so.2\n"
                              "  [2] (1 rank)  moving: here in 1 of 2 looks\n"
                              "    libnccl.so.2+0x100\n");
    free(text);
    json_t *json = roll_stack_tree_json(&tree), *first = json_array_get(json, 0);
    assert_string_equal(json_string_value(json_object_get(first, "ranks")), "0-3");
    assert_true(json_is_true(json_object_get(first, "stuck")));
    assert_int_equal(json_array_size(json_object_get(first, "children")), 2);
    json_decref(json);
    roll_stack_tree_fini(&tree);
    json_decref(inside);
    json_decref(moving);
}

static void a_thread_that_was_not_seen_every_time_is_not_called_stuck(void **state)
{
    (void)state;
    struct roll_stack_tree tree = {0};
    json_t *young = process(7, json_pack("[n,n,i]", 0));
    assert_int_equal(roll_stack_tree_add(&tree, 0, young, ROLL_STACK_OTHERS), 0);
    char *text = print(&tree, 3);
    assert_string_equal(text, "[0] (1 rank)  seen in 1 of 3 looks\n  main  job/main.c:5\n  step  src/train.py:40\n");
    free(text);
    json_t *json = roll_stack_tree_json(&tree), *first = json_array_get(json, 0);
    assert_true(json_is_false(json_object_get(first, "stuck")));
    assert_int_equal(json_integer_value(json_object_get(first, "missed")), 2);
    json_decref(json);
    roll_stack_tree_fini(&tree);
    json_decref(young);
}

/* 512 ranks of which every second one is elsewhere: text for people is cut, JSON is not. */
static void many_ranks_that_do_not_fold(void **state)
{
    (void)state;
    struct roll_stack_tree tree = {0};
    json_t *here = process(1, json_pack("[i]", 0)), *there = process(1, json_pack("[i]", 3));
    for (uint32_t rank = 0; rank < 512; rank++) {
        assert_int_equal(roll_stack_tree_add(&tree, rank, rank % 2 ? there : here, ROLL_STACK_MAIN), 0);
    }
    char *text = print(&tree, 1);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        assert_true(strcspn(line, "\n") < 320);
    }
    assert_non_null(strstr(text, "[0,2,4,"));
    assert_non_null(strstr(text, ",\u2026] (256 ranks)\n"));
    free(text);
    json_t *json = roll_stack_tree_json(&tree);
    const char *ranks = json_string_value(
        json_object_get(json_array_get(json_object_get(json_array_get(json, 0), "children"), 0), "ranks"));
    struct roll_rankset set = {0};
    assert_int_equal(roll_rankset_parse(ranks, &set), 0);
    assert_int_equal(roll_rankset_count(&set), 256);
    roll_rankset_fini(&set);
    json_decref(json);
    roll_stack_tree_fini(&tree);
    json_decref(here);
    json_decref(there);
}

static void threads_are_chosen(void **state)
{
    (void)state;
    json_t *outside = process(1, json_pack("[i]", 0)), *inside = process(7, json_pack("[i]", 1));
    const struct {
        enum roll_stack_threads which;
        bool outside, inside;
    } cases[] = {{ROLL_STACK_ALL, true, true},
                 {ROLL_STACK_MAIN, true, false},
                 {ROLL_STACK_OTHERS, false, true},
                 {ROLL_STACK_NCCL, false, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct roll_stack_tree tree = {0};
        roll_stack_tree_add(&tree, 0, outside, cases[i].which);
        roll_stack_tree_add(&tree, 1, inside, cases[i].which);
        assert_int_equal(roll_rankset_has(&tree.root.ranks, 0), cases[i].outside);
        assert_int_equal(roll_rankset_has(&tree.root.ranks, 1), cases[i].inside);
        roll_stack_tree_fini(&tree);
    }
    json_decref(outside);
    json_decref(inside);
}

/* As where the C library has no debug information; further inside it, such a frame is shown. */
static void what_every_program_begins_with_has_no_name_in_a_bare_library(void **state)
{
    (void)state;
    static const char *const libraries[] = {"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc-2.28.so",
                                            "/lib64/libpthread-2.28.so"};
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        struct roll_stack_tree tree = {0};
        json_t *p = json_pack("{s:i, s:[{s:i, s:[i]}], s:[[i,i,i]], s:[{s:s,s:s,s:s,s:i},{s:s,s:s,s:s,s:i}]}", "pid", 1,
                              "threads", "tid", 1, "samples", 0, "stacks", 0, 1, 0, "frames", "fn", "", "kind",
                              "native", "module", libraries[i], "offset", 0x27249, "fn", "main", "kind", "native",
                              "file", "/src/job/main.c", "line", 5);
        assert_non_null(p);
        roll_stack_tree_add(&tree, 0, p, ROLL_STACK_MAIN);
        char *text = print(&tree, 1), wanted[128];
        const char *name = strrchr(libraries[i], '/') + 1;
        snprintf(wanted, sizeof(wanted), "[0] (1 rank)\n  main  job/main.c:5\n  %s+0x27249\n", name);
        assert_string_equal(text, wanted);
        free(text);
        roll_stack_tree_fini(&tree);
        json_decref(p);
    }
}

static void recursion_is_folded_and_colour_only_when_wanted(void **state)
{
    (void)state;
    struct roll_stack_tree tree = {0};
    json_t *p = json_pack("{s:i, s:[{s:i, s:[i]}], s:[[i,i,i]], s:[{s:s,s:s,s:s,s:i}]}", "pid", 1, "threads", "tid", 1,
                          "samples", 0, "stacks", 0, 0, 0, "frames", "fn", "down\033[31m", "kind", "python", "file",
                          "r.py", "line", 3);
    roll_stack_tree_add(&tree, 4, p, ROLL_STACK_MAIN);
    char *text = print(&tree, 1);
    assert_string_equal(text,
                        "[4] (1 rank)\n  down?[31m  r.py:3  (3 times)\n"); /* a name cannot speak to the terminal */
    free(text);
    roll_stack_tree_fini(&tree);
    json_decref(p);
}

static void hostile_answers(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "{\"threads\":3}",
        "{\"threads\":[3]}",
        "{\"threads\":[{\"samples\":[99,-1]}],\"stacks\":[]}",
        "{\"threads\":[{\"samples\":[0]}],\"stacks\":[[0,7,-5]],\"frames\":[{}]}",
        "{\"threads\":[{\"samples\":{}}],\"stacks\":7,\"frames\":\"x\"}",
        "{\"threads\":[{\"samples\":[0]}],\"stacks\":[[\"x\"]],\"frames\":[{\"fn\":3,\"line\":\"y\"}]}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct roll_stack_tree tree = {0};
        json_t *json = json_loads(texts[i], 0, NULL);
        assert_non_null(json);
        int err = roll_stack_tree_add(&tree, 0, json, ROLL_STACK_ALL);
        assert_true(err == 0 || err == ROLL_E_CORRUPT);
        free(print(&tree, 3));
        json_decref(roll_stack_tree_json(&tree));
        roll_stack_tree_fini(&tree);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_part_where_their_stacks_part),
        cmocka_unit_test(a_thread_that_was_not_seen_every_time_is_not_called_stuck),
        cmocka_unit_test(many_ranks_that_do_not_fold),
        cmocka_unit_test(threads_are_chosen),
        cmocka_unit_test(what_every_program_begins_with_has_no_name_in_a_bare_library),
        cmocka_unit_test(recursion_is_folded_and_colour_only_when_wanted),
        cmocka_unit_test(hostile_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
