/*
 * test_verdict_text.c: the block that people see, as a whole, and that no input can spoil the terminal.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

static const char verdict[] =
    "{\"schema\":\"rollcall.verdict/1\",\"number\":1,\"code\":\"count-mismatch\","
    "\"title\":\"different element counts in one collective\",\"family\":\"sequence\",\"certainty\":\"proven\","
    "\"culprits\":[3],\"culprits_text\":\"3\",\"comm\":{\"key\":\"0x00c0ffee\",\"label\":\"dp\",\"size\":8},\"seq\":17,"
    "\"field\":\"count\",\"step\":12,\"microbatch\":0,\"layer\":1,\"phase\":\"backward\",\"evidence\":["
    "{\"ranks\":[3],\"ranks_text\":\"3\",\"op\":\"AllReduce\",\"count\":512,\"dtype\":\"float32\",\"redop\":\"sum\","
    "\"root\":null,\"state\":\"entered\",\"callsite\":0},"
    "{\"ranks\":[0,1,2],\"ranks_text\":\"0-2,4-7\",\"op\":\"AllReduce\",\"count\":1024,\"dtype\":\"float32\","
    "\"redop\":\"sum\",\"root\":null,\"state\":\"returned\",\"callsite\":1}],\"callsites\":["
    "{\"ranks\":[3],\"frames\":[{\"function\":\"reduce_gradients\",\"file\":\"/src/train.c\",\"line\":88,"
    "\"module\":\"/x/train\",\"offset\":4096},{\"function\":\"main\",\"file\":\"/src/train.c\",\"line\":140,"
    "\"module\":\"/x/train\",\"offset\":4096}]},"
    "{\"ranks\":[0],\"frames\":[{\"function\":null,\"file\":null,\"line\":null,\"module\":\"/x/libtrain.so\","
    "\"offset\":4096}]}],\"waiting\":[0,1,2,4,5,6,7],\"waiting_text\":\"0-2,4-7\",\"remedy\":{\"name\":\"fill\","
    "\"text\":\"a rank without tokens walks its whole backward plan with exact zeros\","
    "\"command\":\"rollcall remedy on fill\"},\"remedied\":false,\"text\":\"Rank 3 reduces 512 elements where its "
    "seven peers reduce 1024; NCCL does not compare counts, so the peers wait until their own timeout.\","
    "\"job\":\"demo\",\"restart\":0}";

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

/* Prints a verdict into memory; the caller frees. */
static char *print(const json_t *json, unsigned style, int want)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(roll_verdict_print(out, json, style), want);
    fclose(out);
    return text;
}

static json_t *load(void)
{
    json_t *json = json_loads(verdict, 0, NULL);
    assert_non_null(json);
    return json;
}

static void the_block_is_short_and_aligned(void **state)
{
    (void)state;
    json_t *json = load();
    char *text = print(json, false, 0);
    assert_string_equal(text, block);
    free(text);
    json_decref(json);
}

/* A remedy that acts before the fault is no help when the fault has been found: what helps then is told in its place.
 */
static void a_remedy_that_comes_too_late_is_not_offered(void **state)
{
    (void)state;
    json_t *json = load();
    json_object_set_new(json_object_get(json, "remedy"), "instead",
                        json_string("rollcall run --policy auto -- COMMAND"));
    char *text = print(json, false, 0);
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
        json_t *json = load(), *comm = json_object_get(json, "comm");
        json_object_set_new(comm, "label", json_string(rows[i].label));
        json_object_set_new(comm, "name", json_string(rows[i].name));
        json_object_set_new(comm, "made", json_string(rows[i].made));
        json_object_set_new(comm, "made_at", json_string(rows[i].made_at));
        char *text = print(json, false, 0);
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
        json_t *json = load();
        json_object_set_new(json, "step", json_integer(rows[i].step));
        json_object_set_new(json, "step_source", json_string("learned"));
        char *text = print(json, false, 0);
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
        json_t *json = load(), *evidence = json_object_get(json, "evidence");
        json_object_set_new(json, "step", json_integer(10));
        assert_int_equal(json_array_size(evidence), 2);
        for (size_t k = 0; k < 2; k++) {
            int step = rows[i].step[k];
            json_object_set_new(json_array_get(evidence, k), "step", step < 0 ? json_null() : json_integer(step));
        }
        if (!rows[i].made) {
            json_object_set_new(json_array_get(evidence, 0), "op", json_null());
        }
        char *text = print(json, false, 0);
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
    json_t *json = load();
    char *text = print(json, true, 0);
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

static void a_rank_that_made_no_call_is_said_so(void **state)
{
    (void)state;
    json_t *json = load();
    json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
    json_object_set_new(side, "op", json_null());
    json_object_set_new(side, "callsite", json_null());
    json_object_set_new(json, "remedied", json_true());
    char *text = print(json, false, 0);
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
        json_t *json = load();
        json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        json_object_set_new(side, "op", json_string(rows[i].op));
        json_object_set_new(side, "count", json_integer(rows[i].count));
        json_object_set_new(side, "peer", json_integer(rows[i].peer));
        char *text = print(json, false, 0);
        assert_non_null(strstr(text, rows[i].text));
        free(text);
        json_decref(json);
    }
}

static void a_call_that_was_the_last_is_said_to_be(void **state)
{
    (void)state;
    json_t *json = load();
    json_object_set_new(json, "family", json_string("process"));
    json_t *site = json_array_get(json_object_get(json, "callsites"), 0);
    json_t *start = json_pack("{s:s}", "function", "__libc_start_call_main");
    json_array_append_new(json_object_get(site, "frames"), start);
    char *text = print(json, false, 0), *bare;
    /* It has no name where the C library has no debug information; a frame of another library is told. */
    json_object_set_new(start, "function", json_null());
    json_object_set_new(start, "module", json_string("/lib64/libc.so.6"));
    bare = print(json, false, 0);
    assert_string_equal(bare, text);
    free(bare);
    json_object_set_new(start, "module", json_string("/lib64/libother.so.6"));
    bare = print(json, false, 0);
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
        json_t *json = load();
        json_t *frames = json_object_get(json_array_get(json_object_get(json, "callsites"), 0), "frames");
        json_array_insert_new(frames, 0,
                              json_pack("{s:s, s:s, s:s, s:i, s:b, s:i}", "language", "python", "function", "train",
                                        "file", "/w/job.py", "line", 72, "library", !own, "folded", 5));
        json_array_insert_new(frames, 0,
                              json_pack("{s:s, s:s, s:s, s:i, s:b, s:i}", "language", "python", "function",
                                        "all_reduce", "file", "/t/c10d.py", "line", 9, "library", 1, "folded", 0));
        char *text = print(json, false, 0);
        const char *want = own ? "sum  (inside)   train  job.py:72\n0-2,4-7"
                               : "sum  (inside)   all_reduce  c10d.py:9\n"
                                 "                                                    from train  job.py:72\n0-2,4-7";
        assert_non_null(strstr(text, want));
        free(text);
        json_decref(json);
    }
}

/* Where the calls do not say who is wrong, the first line names both sides, as the text does; a note names nobody. */
static void a_tie_names_both_sides(void **state)
{
    (void)state;
    for (int note = 0; note < 2; note++) {
        json_t *json = load();
        json_object_set_new(json, "culprits", json_array());
        json_object_set_new(json, "culprits_text", json_string(""));
        json_object_set_new(json, "certainty", json_string(note ? "note" : "proven"));
        char *text = print(json, ROLL_VERDICT_PLAIN, 0);
        const char *want = note ? "NOTE      count-mismatch\n" : "PROVEN    count-mismatch  rank 3 or ranks 0-2,4-7\n";
        assert_memory_equal(text, want, strlen(want));
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
        json_t *json = load();
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
        char *text = print(json, i == 2 ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN, 0);
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
        json_t *json = load();
        json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        char want[80];
        json_object_set_new(json, "family", json_string("moe"));
        json_object_set_new(side, "op", json_string(cases[i].op));
        json_object_set_new(side, "count", json_integer(cases[i].count));
        json_object_set_new(side, "peer", json_integer(cases[i].peer));
        json_object_set_new(side, "callsite", json_null());
        char *text = print(json, false, 0);
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
        json_t *json = load();
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
        char *text = print(json, false, 0);
        snprintf(want, sizeof(want), "\nrank 3    %s", cases[i].want);
        assert_non_null(strstr(text, want));
        free(text);
        json_decref(json);
    }
}

/* Beside a running job a note takes one line, whatever its text holds. */
static void a_note_fits_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *code, *said, *want;
    } cases[] = {
        {"moe-zero-tokens", "Rank 0 received no tokens in MoE layer 3, step 13. Further steps are not told.",
         "note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13.\n"},
        {"rank-dead", "It took 1.5 s. 2 ranks are left",
         "note      rank-dead          It took 1.5 s. 2 ranks are left\n"},
        {"a-code-longer-than-its-column", "a\nb\033[2J", "note      a-code-longer-than-its-column  a b [2J\n"},
        {"no-text", "", "note      no-text            different element counts in one collective\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = load();
        json_object_set_new(json, "certainty", json_string("note"));
        json_object_set_new(json, "code", json_string(cases[i].code));
        json_object_set_new(json, "text", json_string(cases[i].said));
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(roll_verdict_print_line(out, json, false), 0);
        fclose(out);
        assert_string_equal(text, cases[i].want);
        free(text);
        json_decref(json);
    }
}

/* A terminal that is too narrow would break it inside of words. */
static void a_note_is_broken_between_words_where_the_columns_are_few(void **state)
{
    (void)state;
    static const struct {
        unsigned columns;
        const char *code, *said, *want;
    } cases[] = {
        {100, "rank-slow", "Rank 0 is late. It", "note      rank-slow          Rank 0 is late.\n"},
        {80, "moe-zero-tokens", "Rank 0 received no tokens in MoE layer 3, step 13, and these were many words. More.",
         "note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13,\n"
         "                             and these were many words.\n"},
        {60, "moe-zero-tokens", "Rank 0 received no\ntokens in MoE layer 3, step 13, of the job. More.",
         "note      moe-zero-tokens\n"
         "          Rank 0 received no tokens in MoE layer 3, step\n"
         "          13, of the job.\n"},
        {60, "a-code-longer-than-its-column", "It fits beside it", /* 10 + 29 + 2 + 17 columns */
         "note      a-code-longer-than-its-column  It fits beside it\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *json = load();
        json_object_set_new(json, "certainty", json_string("note"));
        json_object_set_new(json, "code", json_string(cases[i].code));
        json_object_set_new(json, "text", json_string(cases[i].said));
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(roll_verdict_print_line(out, json, ROLL_VERDICT_COLUMNS(cases[i].columns)), 0);
        fclose(out);
        assert_string_equal(text, cases[i].want);
        free(text);
        json_decref(json);
    }
}

static void a_call_site_that_both_sides_share_is_printed_once(void **state)
{
    (void)state;
    json_t *json = load();
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 1), "callsite", json_integer(0));
    char *text = print(json, false, 0);
    assert_non_null(strstr(text, "\n0-2,4-7   AllReduce  1024 x float32  sum            same place\n"));
    free(text);
    json_decref(json);
}

static void little_is_enough(void **state)
{
    (void)state;
    json_t *json = json_pack("{s:s, s:s}", "code", "rank-dead", "certainty", "suspected");
    char *text = print(json, false, 0);
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
        json_t *json = load(), *earlier = load();
        json_object_set_new(json, ways[i].way, json_integer(3));
        json_object_set_new(json, "number", json_integer(4));
        json_object_set_new(json, "may_be", json_pack("[s, s]", "call-added", "op-mismatch"));
        json_object_set_new(earlier, "number", json_integer(3));
        char *text = print(json, false, 0);
        if (strstr(text, ways[i].line) == NULL || strstr(text, "\nor        call-added, op-mismatch\n") == NULL) {
            fail_msg("%s", text);
        }
        free(text);
        /* What the text says is not said again. */
        json_object_set_new(json, "text", json_string("So it is. The calls known so far fit call-added as well."));
        text = print(json, false, 0);
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
        char *text = print(json, false, ROLL_E_CORRUPT);
        assert_string_equal(text, "");
        free(text);
        json_decref(json);
    }
}

/* Each member in turn becomes something else: no crash, no control character. */
static void members_of_a_wrong_type_are_survived(void **state)
{
    (void)state;
    json_t *json = load();
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
    json_t *json = load();
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
    char *text = print(json, false, 0);
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
    json_t *json = load();
    char words[6000];
    for (size_t i = 0; i < sizeof(words) - 1; i++) {
        words[i] = i % 9 == 8 ? ' ' : 'w';
    }
    words[sizeof(words) - 1] = '\0';
    json_object_set_new(json, "text", json_string(words));
    json_object_set_new(json, "culprits_text", json_string("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"));
    json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
    json_object_set_new(side, "ranks_text", json_string("0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38"));
    char *text = print(json, false, 0);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(strlen(line) <= 104);
    }
    free(text);
    json_decref(json);
}

/* A count does not prove that the call carries what has that count. */
static void what_has_the_count_of_a_call_is_said(void **state)
{
    (void)state;
    json_t *json = load();
    json_object_set_new(json_array_get(json_object_get(json, "evidence"), 0), "tensors",
                        json_string("bucket 0: a to b"));
    char *text = print(json, false, 0);
    assert_non_null(strstr(text, "\n          as many as bucket 0: a to b\n"));
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
        cmocka_unit_test(a_rank_that_made_no_call_is_said_so),
        cmocka_unit_test(calls_that_make_communicators_are_put_in_words),
        cmocka_unit_test(a_call_that_was_the_last_is_said_to_be),
        cmocka_unit_test(lines_of_python_go_before_native_frames),
        cmocka_unit_test(a_tie_names_both_sides),
        cmocka_unit_test(the_main_thread_tells_where_a_backward_pass_began),
        cmocka_unit_test(reports_of_moe_core_are_put_in_words),
        cmocka_unit_test(products_seen_from_outside_are_put_in_words),
        cmocka_unit_test(a_note_fits_in_one_line),
        cmocka_unit_test(a_note_is_broken_between_words_where_the_columns_are_few),
        cmocka_unit_test(a_call_site_that_both_sides_share_is_printed_once),
        cmocka_unit_test(little_is_enough),
        cmocka_unit_test(the_life_of_a_verdict_is_told),
        cmocka_unit_test(what_is_no_verdict_is_refused),
        cmocka_unit_test(members_of_a_wrong_type_are_survived),
        cmocka_unit_test(text_of_others_cannot_steer_the_terminal),
        cmocka_unit_test(what_has_the_count_of_a_call_is_said),
        cmocka_unit_test(long_things_stay_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
