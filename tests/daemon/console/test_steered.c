/* test_steered.c: the notes of rollcall.rehearse as a part of a rehearsal's report, and the options that set it. */
#include "daemon/console/rehearse/steered.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static void put(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/rollcall-test-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"steered.1", "steered.2", "steered.3"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void ranks_are_folded_and_doubt_comes_first(void **state)
{
    char *text = NULL;
    size_t size = 0;
    (void)state;
    put("steered.1", "rank 0\nsize 65536\nvalues zero\nread computed item 00000000000000000009 3 /j/a.py\tf\n"
                     "read skipped item 00000000000000000002 7 /j/a b.py\tg\nops computed 00000000000000000005\n"
                     "failed 00000000000000000001 aten::foo\nops failed 00000000000000000001\n");
    put("steered.2", "rank 1\nsize 65536\nvalues zero\nread skipped item 00000000000000000003 7 /j/a b.py\tg\n"
                     "ops computed 00000000000000000006\nops compiled 00000000000000000004\nstep "
                     "00000000000000000004\nstopped 00000000000000000004\n");
    json_t *s = roll_steered_json(folder);
    assert_non_null(s);
    char *out = json_dumps(s, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        out, "{\"failed\":[{\"count\":1,\"operation\":\"aten::foo\"}],\"left\":[],\"odd\":[],\"operations\":{"
             "\"captured\":0,\"compiled\":4,\"computed\":11,"
             "\"failed\":1,\"left\":0},\"processes\":2,\"read_at\":[{\"file\":\"/j/a b.py\",\"function\":\"g\","
             "\"how\":\"item\",\"line\":7,\"ranks\":\"0-1\",\"reads\":5,\"value\":\"skipped\"},{\"file\":\"/j/a.py\","
             "\"function\":\"f\",\"how\":\"item\",\"line\":3,\"ranks\":\"0\",\"reads\":9,\"value\":\"computed\"}],"
             "\"reads\":{\"computed\":9,\"skipped\":5},\"size_bytes\":65536,\"steps\":4,\"stopped\":{\"ranks\":\"1\","
             "\"steps\":4},\"values\":\"zero\"}");
    free(out);
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    roll_steered_print(s, f);
    fclose(f);
    assert_string_equal(text,
                        "Operations on CUDA tensors: 11 computed on the host (up to 65536 bytes each), 0 left out, "
                        "4 kernels that the job has compiled left out, 1 that the host cannot compute (aten::foo).\n"
                        "Values that the host read back: 9 computed, 5 skipped.\n\n"
                        "Read back, and nobody computed it: a branch on it is the rehearsal's own (docs/REHEARSE.md, "
                        "\"Values that steer\"):\n\n"
                        "READS  RANKS  VALUE    HOW   READ BACK AT\n"
                        "    5  0-1    skipped  item  a b.py:7 g\n\n"
                        "Stopped after 4 steps: rank 1.\n");
    free(text);
    assert_false(roll_steered_is_computed(s));
    json_object_del(json_object_get(s, "reads"), "skipped");
    assert_true(roll_steered_is_computed(s));
    json_object_set_new(json_object_get(s, "reads"), "unknown", json_integer(1));
    assert_false(roll_steered_is_computed(s));
    assert_false(roll_steered_is_computed(NULL));
    assert_false(roll_steered_is_whole(NULL));
    json_t *operations = json_object_get(s, "operations");
    json_object_set_new(operations, "failed", json_integer(0));
    json_object_set_new(operations, "compiled", json_integer(0));
    assert_false(roll_steered_is_whole(s)); /* a value was read */
    json_object_set_new(s, "reads", json_object());
    assert_true(roll_steered_is_whole(s));
    static const char *const missing[] = {"left", "compiled", "captured", "failed"};
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        json_object_set_new(operations, missing[i], json_integer(1));
        assert_false(roll_steered_is_whole(s));
        json_object_set_new(operations, missing[i], json_integer(0));
    }
    json_object_set_new(operations, "computed", json_integer(0));
    assert_false(roll_steered_is_whole(s));
    json_decref(s);
}

static void notes_that_are_torn_or_odd_are_passed_over(void **state)
{
    (void)state;
    assert_null(roll_steered_json(folder));
    assert_null(roll_steered_json("/nonexistent"));
    put("steered.1", "rank 99999999999999999999\nread\nread x\nread skipped item 0000\nread skipped item 1 2 ");
    put("steered.2", "rank -1\n\xff\xfe\x1b[2J\nstopped\nops\nread p\xff item 00000000000000000001 2 \x1b\xff\tf\n");
    put("steered.3", "");
    json_t *s = roll_steered_json(folder);
    assert_non_null(s);
    json_t *at = json_object_get(s, "read_at");
    for (size_t i = 0; i < json_array_size(at); i++) {
        for (const char *c = json_string_value(json_object_get(json_array_get(at, i), "file")); *c != '\0'; c++) {
            assert_true(*c >= ' ' && *c < 127);
        }
    }
    assert_true(json_is_null(json_object_get(s, "stopped")));
    roll_steered_print(s, stderr);
    roll_steered_print(NULL, stderr);
    json_decref(s);
}

/* The text of what is printed of a report's part. */
static const char *printed(void (*print)(const json_t *, FILE *), const json_t *part)
{
    static char out[2048];
    FILE *f = fmemopen(out, sizeof(out), "w");
    assert_non_null(f);
    memset(out, 0, sizeof(out));
    print(part, f);
    fclose(f);
    return out;
}

static void what_was_left_out_is_named(void **state)
{
    (void)state;
    put("steered.1", "size 65536\nops left 00000000000000000005\nleft 00000000000000000001 aten::cat\n"
                     "ops computed 00000000000000000001\n");
    put("steered.2", "size 65536\nops left 00000000000000000004\nleft 00000000000000000004 aten::mm\n");
    json_t *s = roll_steered_json(folder);
    assert_non_null(strstr(printed(roll_steered_print, s),
                           " 9 left out (aten::mm 4, aten::cat). With --compute 1M more are computed.\n"));
    json_decref(s);
}

static const json_t *ended; /* of print_odd */
static int code;

static void print_odd(const json_t *steered, FILE *out)
{
    roll_steered_print_odd(steered, ended, code, out);
}

#define NAN_AT_31 "odd nan computed 00000000000000000012 31 /j/train.py\tmain\nodd_step 00000000000000000003\n"
#define STEPS_3   "step 00000000000000000003\n"
#define READS_12  "read computed item 00000000000000000012 31 /j/train.py\tmain\n"

static void a_rank_that_stops_for_a_number_is_told(void **state)
{
    static const struct {
        const char *first, *second; /* notes of rank 0 and 1 */
        const char *ended;          /* JSON */
        int code;
        const char *told;
    } cases[] = {
        {READS_12 STEPS_3 NAN_AT_31, READS_12 STEPS_3 NAN_AT_31, "[{\"ranks\":[0,1],\"code\":1}]", 1,
         "Ranks 0-1 stopped after they had read nan at train.py:31 main (value: computed).\n"},
        {READS_12 STEPS_3 NAN_AT_31, READS_12 STEPS_3, "[{\"ranks\":[0],\"code\":1}]", 124,
         "Rank 0 stopped after it had read nan at train.py:31 main (value: computed).\n"},
        /* Launched by somebody else: how each rank ended is not known. */
        {READS_12 STEPS_3 NAN_AT_31, READS_12 STEPS_3, NULL, 1,
         "Rank 0 stopped after it had read nan at train.py:31 main (value: computed).\n"},
        {READS_12 STEPS_3 NAN_AT_31, READS_12 STEPS_3, NULL, 0,
         "Rank 0 ended just after it had read nan at train.py:31 main (value: computed).\n"},
        {"read skipped item 00000000000000000002 7 /j/a.py\tf\nodd inf skipped 00000000000000000002 7 /j/a.py\tf\n", "",
         "[{\"ranks\":[0],\"code\":2}]", 2,
         "Rank 0 stopped after it had read inf at a.py:7 f (value: skipped, so the rehearsal's own: see --compute, and "
         "rollcall.rehearse.value_at).\n"},
        /* The healthy ones: it goes on, for steps or for reads; it ends well behind inf; it does not move. */
        {READS_12 "step 00000000000000000004\n" NAN_AT_31, "", NULL, 1, ""},
        {READS_12 "read computed item 00000000000000000009 40 /j/train.py\tmain\n" STEPS_3 NAN_AT_31, "", NULL, 1, ""},
        {"read computed item 00000000000000000002 7 /j/a.py\tf\n"
         "odd inf computed 00000000000000000002 7 /j/a.py\tf\n",
         "", NULL, 0, ""},
        {READS_12 STEPS_3 NAN_AT_31, "", NULL, 124, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        snprintf(text, sizeof(text), "rank 0\n%s", cases[i].first);
        put("steered.1", text);
        snprintf(text, sizeof(text), "rank 1\n%s", cases[i].second);
        put("steered.2", text);
        json_t *s = roll_steered_json(folder), *how = cases[i].ended ? json_loads(cases[i].ended, 0, NULL) : NULL;
        ended = how;
        code = cases[i].code;
        assert_string_equal(printed(print_odd, s), cases[i].told);
        json_decref(s);
        json_decref(how);
    }
}

static void steps_groups_and_allocators_are_read(void **state)
{
    struct roll_steered_steps *steps;
    size_t count;
    uint64_t bytes = 0;
    (void)state;
    put("steered.2", "rank 0\nstep 00000000000000000006\nstep_end first 00000000000000000100\n"
                     "step_end second 00000000000000000200\nstep_end third 00000000000000000300\nstep_end last "
                     "00000000000000000600\n"
                     "group 4 21 0\tdefault_pg\t/j/a.py\tmain\ngroup 2 30 7\t\t/j/a.py\tmain\n"
                     "allocator 3 00000000000000004096\n");
    put("steered.1", "group 4 22 0\tother\t/j/a.py\tmain\ngroup 2\ngroup 2 9 8\tx\nstep_end never 7\n");
    put("steered.3", "");
    assert_int_equal(roll_steered_read_steps(folder, &steps, &count), 0);
    const struct roll_steered_steps *mine = roll_steered_steps_of(steps, count, 2);
    assert_non_null(mine);
    assert_true(mine->steps == 6 && mine->first_ns == 100 && mine->second_ns == 200 && mine->third_ns == 300 &&
                mine->last_ns == 600);
    assert_null(roll_steered_steps_of(steps, count, 3));
    assert_null(roll_steered_steps_of(NULL, 0, 3));
    free(steps);
    json_t *groups = roll_steered_groups(folder);
    char *out = json_dumps(groups, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        out, "{\"0\":{\"description\":\"other\",\"file\":\"/j/a.py\",\"function\":\"main\",\"line\":22,\"size\":4},"
             "\"7\":{\"description\":\"\",\"file\":\"/j/a.py\",\"function\":\"main\",\"line\":30,\"size\":2}}");
    free(out);
    json_decref(groups);
    assert_true(roll_steered_allocator(folder, 2, 3, &bytes));
    assert_int_equal(bytes, 4096);
    assert_false(roll_steered_allocator(folder, 2, 1, &bytes));
    assert_false(roll_steered_allocator(folder, 9, 3, &bytes));
}

static void options_are_checked(void **state)
{
    static const struct {
        struct roll_steering s;
        int err;
    } cases[] = {
        {{0}, 0},
        {{.compute = "64K"}, 0},
        {{.compute = "off", .values = "zero", .steps = 3}, 0},
        {{.values = "random:7"}, 0},
        {{.values = "random:7,same"}, 0},
        {{.values = "random:7,different"}, 0},
        {{.compute = "much"}, ROLL_E_ARG},
        {{.values = "random"}, ROLL_E_ARG},
        {{.values = "random:"}, ROLL_E_ARG},
        {{.values = "random:x"}, ROLL_E_ARG},
        {{.values = "random:7,alike"}, ROLL_E_ARG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[256] = "";
        assert_int_equal(roll_steering_check(&cases[i].s, why, sizeof(why)), cases[i].err);
        assert_true((why[0] != '\0') == (cases[i].err != 0));
    }
}

static void check_variables(const struct roll_steering *s, const char *compute, const char *data)
{
    unsetenv("HOSTNCCL_DATA");
    roll_steering_apply(s);
    const char *is = getenv("ROLLCALL_REHEARSE_COMPUTE");
    assert_string_equal(is != NULL ? is : "", compute);
    assert_string_equal(getenv("HOSTNCCL_DATA"), data);
}

static void what_is_computed_is_moved(void **state)
{
    (void)state;
    check_variables(&(struct roll_steering){0}, "", "skip:65536");
    check_variables(&(struct roll_steering){.compute = "1M"}, "1048576", "skip:1048576");
    check_variables(&(struct roll_steering){.compute = "0"}, "0", "skip:4096");
    check_variables(&(struct roll_steering){.compute = "100G"}, "107374182400", "skip:4294967293");
    check_variables(&(struct roll_steering){.compute = "off"}, "off", "skip:4096");
    check_variables(&(struct roll_steering){0}, "off", "skip:4096"); /* by the environment */
    setenv("HOSTNCCL_DATA", "move", 1);
    roll_steering_apply(&(struct roll_steering){.steps = 3, .values = "random:1"});
    assert_string_equal(getenv("HOSTNCCL_DATA"), "move");
    assert_string_equal(getenv("ROLLCALL_REHEARSE_STEPS"), "3");
    assert_string_equal(getenv("ROLLCALL_REHEARSE_VALUES"), "random:1");
    assert_string_equal(getenv("ROLLCALL_REHEARSE"), "1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_are_folded_and_doubt_comes_first, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(notes_that_are_torn_or_odd_are_passed_over, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_was_left_out_is_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_rank_that_stops_for_a_number_is_told, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(steps_groups_and_allocators_are_read, make_folder, remove_folder),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(what_is_computed_is_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
