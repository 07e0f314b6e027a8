/*
 * test_verdict_text.c: the block that people see, as a whole, and that no input can spoil the terminal.
 */
#include "tests/daemon/verdict/sample.h"

#include "trace/err.h"

static const char block[] =
    "PROVEN    count-mismatch  rank 3\n"
    "          different element counts in one collective\n"
    "where     call #17 on communicator \"dp\" (8 ranks), step 12, microbatch 0, layer 1, backward\n"
    "rank 3    AllReduce  512 x float32  sum  (inside)   reduce_gradients  train.c:88\n"
    "                                                    from main  train.c:140\n"
    "0-2,4-7   AllReduce  1024 x float32  sum            libtrain.so+0x1000\n"
    "waiting   0-2,4-7 (7 ranks) when this was found\n"
    "why       Rank 3 reduces 512 elements where its seven peers reduce 1024; NCCL does not compare\n"
    "          counts, so the peers wait until their own timeout.\n"
    "remedy    fill: a rank without tokens walks its whole backward plan with exact zeros\n"
    "          $ rollcall remedy on fill\n"
    "\n";

static void the_block_is_short_and_aligned(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    char *text = sample_print(json, false, 0);
    assert_string_equal(text, block);
    free(text);
    json_decref(json);
}

/* A remedy that acts before the fault is no help when the fault has been found: what helps then is told in its place.
 */
static void a_remedy_that_comes_too_late_is_not_offered(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    json_object_set_new(json_object_get(json, "remedy"), "instead",
                        json_string("rollcall run --policy auto -- COMMAND"));
    char *text = sample_print(json, false, 0);
    assert_non_null(strstr(text, "\nremedy    fill: a rank without tokens walks its whole backward plan with exact "
                                 "zeros; too late for\n          this step: start the job again with it\n"
                                 "          $ rollcall run --policy auto -- COMMAND\n"));
    assert_null(strstr(text, "remedy on"));
    free(text);
    json_decref(json);
}

/* A group of PyTorch is called by its name, a label that the job chose stands in quotes, and the job's line that made
 * the communicator has a line of its own. */
static void a_communicator_has_its_name_and_the_line_that_made_it(void **state)
{
    (void)state;
    static const struct {
        const char *label, *name, *made, *made_at, *lines;
    } rows[] = {
        {"0", "the default group (4 ranks)", "made by CommInit", "train.py:91 main",
         "where     call #17 on the default group (4 ranks), step 12, microbatch 0, layer 1, backward\n"
         "          made at train.py:91 main, by CommInit\n"},
        {"5", "group mesh_dp of ranks 0,2 (2 ranks)", "", "",
         "where     call #17 on group mesh_dp of ranks 0,2 (2 ranks), step 12, microbatch 0, layer 1, backward\n"},
        {"dp", "communicator dp of ranks 0-3 (4 ranks)", "made by CommSplit of the default group (8 ranks), color 1",
         "train.py:91 main",
         "where     call #17 on communicator \"dp\" of ranks 0-3 (4 ranks), step 12, microbatch 0, layer 1,\n"
         "          backward\n"
         "          made at train.py:91 main, by CommSplit of the default group (8 ranks), color 1\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = sample_verdict(), *comm = json_object_get(json, "comm");
        json_object_set_new(comm, "label", json_string(rows[i].label));
        json_object_set_new(comm, "name", json_string(rows[i].name));
        json_object_set_new(comm, "made", json_string(rows[i].made));
        json_object_set_new(comm, "made_at", json_string(rows[i].made_at));
        char *text = sample_print(json, false, 0);
        if (strstr(text, rows[i].lines) == NULL) {
            fail_msg("no\n%sin\n%s", rows[i].lines, text);
        }
        free(text);
        json_decref(json);
    }
}

static void a_learned_step_is_about_so_many(void **state)
{
    (void)state;
    static const struct {
        int step;
        const char *words;
    } rows[] = {{150, ", step ~150 (learned), "},
                {1204, ", step ~1,204 (learned), "},
                {1000007, ", step ~1,000,007 (learned), "}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = sample_verdict();
        json_object_set_new(json, "step", json_integer(rows[i].step));
        json_object_set_new(json, "step_source", json_string("learned"));
        char *text = sample_print(json, false, 0);
        assert_non_null(strstr(text, rows[i].words));
        free(text);
        json_decref(json);
    }
}

/* Both sides are told where their steps differ; a rank that made no call was last in its step. */
static void sides_in_different_steps_are_told(void **state)
{
    (void)state;
    static const struct {
        int step[2]; /* -1: not told */
        bool made;
        const char *words, *absent;
    } rows[] = {{{11, 12}, true, ", rank 3 in step 11, ranks 0-2,4-7 in step 12", " step 10"},
                {{11, 12}, false, ", rank 3 last in step 11, ranks 0-2,4-7 in step 12", " step 10"},
                {{12, 12}, true, ", step 10", "in step"},
                {{-1, 12}, true, ", step 10", "in step"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *json = sample_verdict(), *evidence = json_object_get(json, "evidence");
        json_object_set_new(json, "step", json_integer(10));
        assert_int_equal(json_array_size(evidence), 2);
        for (size_t k = 0; k < 2; k++) {
            int step = rows[i].step[k];
            json_object_set_new(json_array_get(evidence, k), "step", step < 0 ? json_null() : json_integer(step));
        }
        if (!rows[i].made) {
            json_object_set_new(json_array_get(evidence, 0), "op", json_null());
        }
        char *text = sample_print(json, false, 0);
        if (strstr(text, rows[i].words) == NULL || strstr(text, rows[i].absent) != NULL) {
            fail_msg("%s: %s", rows[i].words, text);
        }
        free(text);
        json_decref(json);
    }
}

static void colour_changes_nothing_but_colour(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    char *text = sample_print(json, true, 0);
    assert_non_null(strstr(text, "\033[31m512\033[0m")); /* the argument that differs */
    char *to = text;
    for (char *from = text; *from != '\0';) {
        if (*from == '\033') {
            from = strchr(from, 'm') + 1;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    assert_string_equal(text, block);
    free(text);
    json_decref(json);
}

/* Where the calls do not say who is wrong, the first line names both sides, as the text does; a note names nobody. */
static void a_tie_names_both_sides(void **state)
{
    (void)state;
    for (int note = 0; note < 2; note++) {
        json_t *json = sample_verdict();
        json_object_set_new(json, "culprits", json_array());
        json_object_set_new(json, "culprits_text", json_string(""));
        json_object_set_new(json, "certainty", json_string(note ? "note" : "proven"));
        char *text = sample_print(json, ROLL_VERDICT_PLAIN, 0);
        const char *want = note ? "NOTE      count-mismatch\n" : "PROVEN    count-mismatch  rank 3 or ranks 0-2,4-7\n";
        assert_memory_equal(text, want, strlen(want));
        free(text);
        json_decref(json);
    }
}

static void little_is_enough(void **state)
{
    (void)state;
    json_t *json = json_pack("{s:s, s:s}", "code", "rank-dead", "certainty", "suspected");
    char *text = sample_print(json, false, 0);
    assert_string_equal(text, "SUSPECTED rank-dead\n\n");
    free(text);
    json_decref(json);
}

static void the_life_of_a_verdict_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *way, *line, *earlier;
    } ways[] = {{"supersedes", "\nreplaces  verdict 3, which counts no more\n", "replaced"},
                {"confirms", "\nconfirms  verdict 3, which was not proven\n", "confirmed"},
                {"withdraws", "\nwithdraws verdict 3, which counts no more\n", "withdrawn"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        json_t *json = sample_verdict(), *earlier = sample_verdict();
        json_object_set_new(json, ways[i].way, json_integer(3));
        json_object_set_new(json, "number", json_integer(4));
        json_object_set_new(json, "may_be", json_pack("[s, s]", "call-added", "op-mismatch"));
        json_object_set_new(earlier, "number", json_integer(3));
        char *text = sample_print(json, false, 0);
        if (strstr(text, ways[i].line) == NULL || strstr(text, "\nor        call-added, op-mismatch\n") == NULL) {
            fail_msg("%s", text);
        }
        free(text);
        /* What the text says is not said again. */
        json_object_set_new(json, "text", json_string("So it is. The calls known so far fit call-added as well."));
        text = sample_print(json, false, 0);
        assert_null(strstr(text, "\nor        "));
        free(text);
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(roll_verdict_print_of(out, earlier, json, false), 0);
        assert_int_equal(roll_verdict_print_of(out, json, NULL, false), 0);
        fclose(out);
        char want[128];
        snprintf(want, sizeof(want), "earlier   verdict 3 (proven count-mismatch) was %s by verdict 4\n\nPROVEN",
                 ways[i].earlier);
        assert_memory_equal(text, want, strlen(want));
        free(text);
        json_decref(json);
        json_decref(earlier);
    }
}

static void what_is_no_verdict_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"{}", "[]", "{\"code\":1,\"certainty\":\"proven\"}", "{\"code\":\"x\"}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_t *json = json_loads(bad[i], 0, NULL);
        char *text = sample_print(json, false, ROLL_E_CORRUPT);
        assert_string_equal(text, "");
        free(text);
        json_decref(json);
    }
}

/* Each member in turn becomes something else: no crash, no control character. */
static void members_of_a_wrong_type_are_survived(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    const char *name;
    json_t *value;
    json_object_foreach(json, name, value)
    {
        static const char *const others[] = {"null",
                                             "7",
                                             "\"x\"",
                                             "[]",
                                             "{}",
                                             "[7]",
                                             "[[]]",
                                             "[{\"callsite\":99}]",
                                             "[{\"callsite\":-1,\"op\":7,\"count\":\"x\"}]"};
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            json_t *copy = json_deep_copy(json);
            json_object_set_new(copy, name, json_loads(others[i], JSON_DECODE_ANY, NULL));
            char *text = NULL;
            size_t bytes = 0;
            FILE *out = open_memstream(&text, &bytes);
            roll_verdict_print(out, copy, false);
            fclose(out);
            free(text);
            json_decref(copy);
        }
    }
    json_decref(json);
}

static void text_of_others_cannot_steer_the_terminal(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    static const char evil[] = "a\033[2J\033]0;title\007b\xc2\x9b"
                               "31mc\nd\re";
    json_object_set_new(json, "text", json_string(evil));
    json_object_set_new(json, "title", json_string(evil));
    json_object_set_new(json_object_get(json, "comm"), "label", json_string(evil));
    json_t *frames = json_object_get(json_array_get(json_object_get(json, "callsites"), 0), "frames");
    json_object_set_new(json_array_get(frames, 0), "function", json_string(evil));
    json_object_set_new(json_array_get(frames, 0), "file", json_string(evil));
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 0), "op", json_string(evil));
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 0), "ranks_text", json_string(evil));
    char *text = sample_print(json, false, 0);
    for (const char *p = text; *p != '\0'; p++) {
        assert_true((unsigned char)*p >= 0x20 || *p == '\n');
        assert_false(*p == '\xc2' && (unsigned char)p[1] < 0xa0);
    }
    free(text);
    json_decref(json);
}

static void long_things_stay_within_bounds(void **state)
{
    (void)state;
    json_t *json = sample_verdict();
    char words[6000];
    for (size_t i = 0; i < sizeof(words) - 1; i++) {
        words[i] = i % 9 == 8 ? ' ' : 'w';
    }
    words[sizeof(words) - 1] = '\0';
    json_object_set_new(json, "text", json_string(words));
    json_object_set_new(json, "culprits_text", json_string("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"));
    json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
    json_object_set_new(side, "ranks_text", json_string("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"));
    char *text = sample_print(json, false, 0);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(strlen(line) <= 104);
    }
    free(text);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_is_short_and_aligned),
        cmocka_unit_test(a_remedy_that_comes_too_late_is_not_offered),
        cmocka_unit_test(a_communicator_has_its_name_and_the_line_that_made_it),
        cmocka_unit_test(a_learned_step_is_about_so_many),
        cmocka_unit_test(sides_in_different_steps_are_told),
        cmocka_unit_test(colour_changes_nothing_but_colour),
        cmocka_unit_test(a_tie_names_both_sides),
        cmocka_unit_test(little_is_enough),
        cmocka_unit_test(the_life_of_a_verdict_is_told),
        cmocka_unit_test(what_is_no_verdict_is_refused),
        cmocka_unit_test(members_of_a_wrong_type_are_survived),
        cmocka_unit_test(text_of_others_cannot_steer_the_terminal),
        cmocka_unit_test(long_things_stay_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
