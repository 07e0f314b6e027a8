/* test_top.c: what `rollcall top` shows for a given status, without a terminal and without a root. */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/text.h"
#include "daemon/console/text.h"
#include "daemon/console/top/top_view.h"

#include <stdlib.h>
#include <string.h>

#define NOW 1700000010000000000u

/* Four ranks; 0, 2 and 3 stand in the same AllReduce, 1 is one call behind. */
static const char status_text[] =
    "{\"schema\":\"rollcall.status/2\",\"run\":{\"job\":\"j\",\"restart\":0,\"policy\":\"observe\"},"
    "\"summary\":{\"ranks\":4,\"ranks_live\":4,\"calls\":1234,\"records\":1300,\"comms\":1,\"findings\":1,\"verdicts\":"
    "1,"
    "\"lost\":0,\"incomplete\":1},"
    "\"ranks\":["
    "{\"rank\":0,\"host\":\"n1\",\"pid\":10,\"state\":\"running\",\"calls\":6,\"lost\":0,\"last_ns\":"
    "1700000009000000000,"
    "\"last\":{\"op\":\"AllReduce\",\"comm\":\"0x00000000000000aa\",\"seq\":5},\"in_call\":false,\"pending\":1,"
    "\"stands\":\"waiting\",\"waits_for\":\"1\",\"step\":3},"
    "{\"rank\":1,\"host\":\"n1\",\"pid\":11,\"state\":\"running\",\"calls\":5,\"lost\":0,\"last_ns\":"
    "1700000008000000000,"
    "\"last\":{\"op\":\"AllReduce\",\"comm\":\"0x00000000000000aa\",\"seq\":4},\"in_call\":false,\"pending\":0,"
    "\"stands\":\"busy\",\"waits_for\":null,\"step\":3},"
    "{\"rank\":2,\"host\":\"n1\",\"pid\":12,\"state\":\"running\",\"calls\":6,\"lost\":0,\"last_ns\":"
    "1700000007500000000,"
    "\"last\":{\"op\":\"AllReduce\",\"comm\":\"0x00000000000000aa\",\"seq\":5},\"in_call\":false,\"pending\":1,"
    "\"stands\":\"waiting\",\"waits_for\":\"1\",\"step\":3},"
    "{\"rank\":3,\"host\":\"n1\",\"pid\":13,\"state\":\"running\",\"calls\":6,\"lost\":0,\"last_ns\":"
    "1700000009500000000,"
    "\"last\":{\"op\":\"AllReduce\",\"comm\":\"0x00000000000000aa\",\"seq\":5},\"in_call\":false,\"pending\":1,"
    "\"stands\":\"waiting\",\"waits_for\":\"1\",\"step\":3}],"
    "\"comms\":[{\"key\":\"0x00000000000000aa\",\"label\":\"dp\",\"role\":\"\",\"size\":4,\"seen\":4,\"done\":5,"
    "\"ahead\":6,"
    "\"members\":[0,1,2,3],\"behind\":[1]}],"
    "\"agents\":[{\"host\":\"n1\",\"pid\":9,\"seen_ns\":1700000009900000000,\"rings\":4}],"
    "\"remedies\":{\"on\":[\"fill\"],\"layers\":[],\"groups\":[]}}";

static const char verdict_text[] =
    "[{\"schema\":\"rollcall.verdict/1\",\"number\":1,\"code\":\"call-skipped\",\"title\":\"a rank left out a call\","
    "\"certainty\":\"proven\",\"culprits_text\":\"1\",\"waiting_text\":\"0,2-3\",\"comm\":{\"key\":"
    "\"0x00000000000000aa\","
    "\"label\":\"dp\",\"size\":4},\"seq\":5,\"time_ns\":1700000009123456789}]";

static json_t *load(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    return value;
}

/* Prints what --once prints into memory. */
static char *once(const json_t *status, const json_t *verdicts, bool fold, size_t width)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    assert_int_equal(roll_top_print(status, verdicts, NOW, fold, width, f), 0);
    fclose(f);
    return text;
}

static void test_once_shows_ranks_comms_and_verdicts(void **state)
{
    (void)state;
    json_t *status = load(status_text), *verdicts = load(verdict_text);
    char *text = once(status, verdicts, false, 0);
    assert_string_equal(
        text, "rollcall  job j  restart 0  policy observe  remedies fill\n"
              "ranks 4 (4 live)  calls 1,234  communicators 1  findings 1  lost 0  not made by all 1\n"
              "\n"
              "RANK  HOST  PID  STATE    WAITS FOR  LAST CALL  COMM  SEQ       AGE  STEP  CALLS  LOST\n"
              "   0  n1     10  waiting  1          AllReduce  dp      5     1.0 s     3      6     0\n"
              "   1  n1     11  busy     -          AllReduce  dp      4     2.0 s     3      5     0\n"
              "   2  n1     12  waiting  1          AllReduce  dp      5     2.5 s     3      6     0\n"
              "   3  n1     13  waiting  1          AllReduce  dp      5  500.0 ms     3      6     0\n"
              "\n"
              "COMM  ROLE  SIZE  SEEN  BY ALL  FURTHEST  BEHIND  MEMBERS  KEY\n"
              "dp    -        4     4       5         6  1       0-3      0x00000000000000aa\n"
              "\n"
              "#  TIME (UTC)    CERTAINTY  VERDICT       RANKS  WAITING  COMM  SEQ  TITLE\n"
              "1  22:13:29.123  proven     call-skipped  1      0,2-3    dp      5  a rank left out a call\n");
    free(text);
    json_decref(status);
    json_decref(verdicts);
}

static void test_verdicts_that_were_lost_show_where_there_are_any(void **state)
{
    (void)state;
    json_t *status = load(status_text);
    json_object_set_new(status, "losses", json_pack("{s:i}", "verdict", 2));
    char *text = once(status, NULL, false, 0);
    assert_non_null(strstr(text, "  lost 0  not made by all 1  verdicts lost 2\n"));
    free(text);
    json_decref(status);
}

static void test_the_heading_says_which_step_the_job_is_in(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"learned", "  step ~1,204 (learned)\n"}, {"job", "  step 1,204\n"}};
    for (size_t i = 0; i < 2; i++) {
        json_t *status = load(status_text), *summary = json_object_get(status, "summary");
        json_object_set_new(summary, "step", json_integer(1204));
        json_object_set_new(summary, "step_source", json_string(rows[i][0]));
        char *text = once(status, NULL, false, 0);
        assert_non_null(strstr(text, rows[i][1]));
        free(text);
        json_decref(status);
    }
}

static void test_fold_puts_ranks_at_one_place_into_one_row(void **state)
{
    (void)state;
    json_t *status = load(status_text);
    struct roll_columns t = {0};
    char line[256];
    assert_int_equal(roll_top_ranks(status, NOW, true, &t), 0);
    assert_int_equal(roll_columns_rows(&t), 3);
    roll_columns_line(&t, 1, 0, line, sizeof(line));
    assert_string_equal(line, "0,2-3  3  waiting  1          AllReduce  dp      5     3   2.5 s");
    roll_columns_line(&t, 2, 0, line, sizeof(line));
    assert_string_equal(line, "1      1  busy     -          AllReduce  dp      4     3   2.0 s");
    roll_columns_fini(&t);
    json_decref(status);
}

static void test_comms_fold_their_ranks(void **state)
{
    (void)state;
    json_t *status = load(status_text);
    struct roll_columns t = {0};
    char line[256];
    assert_int_equal(roll_top_comms(status, false, &t), 0);
    roll_columns_line(&t, 1, 0, line, sizeof(line));
    assert_string_equal(line, "dp    -        4     4       5         6  1       0-3      0x00000000000000aa");
    roll_columns_fini(&t);
    /* Where communicators were made is known of jobs in Python. */
    json_object_set_new(json_array_get(json_object_get(status, "comms"), 0), "made_at", json_string("t.py:9 main"));
    assert_int_equal(roll_top_comms(status, false, &t), 0);
    roll_columns_line(&t, 1, 0, line, sizeof(line));
    assert_string_equal(line,
                        "dp    -        4     4       5         6  1       0-3      t.py:9 main  0x00000000000000aa");
    roll_columns_fini(&t);
    json_decref(status);
}

/* Many communicators of one kind are one row, when it is asked for, and where they are too many for a screen. A name
 * that the root gives goes before label and key, also for the last calls and for verdicts. */
static void test_families_share_a_row_and_names_are_used(void **state)
{
    (void)state;
    struct roll_columns t = {0};
    char line[256];
    for (int many = 0; many < 2; many++) {
        json_t *status = json_object(), *comms = json_array();
        for (int i = 0; i < (many ? 100 : 3); i++) {
            char key[32];
            snprintf(key, sizeof(key), "0x%016x", i);
            json_array_append_new(comms, json_pack("{s:s,s:s,s:s,s:s,s:i}", "key", key, "label", "1", "name", "group 1",
                                                   "made_at", "train.py:9 main", "size", 8));
        }
        json_object_set_new(status, "comms", comms);
        json_object_set_new(status, "families",
                            json_pack("[{s:s,s:i,s:i,s:i,s:s,s:s}]", "name", "tp-like", "groups", many ? 100 : 3,
                                      "done", 7, "ahead", 9, "text", "100 groups of 8 neighbours", "made_at",
                                      "train.py:9 main"));
        assert_int_equal(roll_top_comms(status, false, &t), 0);
        assert_int_equal(roll_columns_rows(&t), many ? 2 : 4);
        roll_columns_line(&t, 1, 0, line, sizeof(line));
        assert_string_equal(line,
                            many ? "tp-like     100       7         9  100 groups of 8 neighbours  train.py:9 main"
                                 : "group 1  -        8     -       -         -  -       -        train.py:9 main  "
                                   "0x0000000000000000");
        roll_columns_fini(&t);
        assert_int_equal(roll_top_comms(status, true, &t), 0);
        assert_int_equal(roll_columns_rows(&t), 2);
        roll_columns_fini(&t);
        json_object_set_new(
            status, "ranks",
            json_pack("[{s:i,s:{s:s,s:s}}]", "rank", 0, "last", "op", "AllReduce", "comm", "0x0000000000000002"));
        roll_top_sort(status);
        char *text = once(status, NULL, false, 0);
        assert_non_null(strstr(text, "AllReduce  group 1"));
        free(text);
        json_decref(status);
    }
    static const char *const names[][2] = {
        {"the default group (4 ranks)", "default group"},
        {"group 1 of ranks 0-1 (2 ranks)", "group 1 of ranks 0-1"},
        {"communicator ep (2 ranks)", "ep"},
        {"the communicator of ranks 0-3 made at t.py:9 (4 ranks)", "ranks 0-3 made at t.py:9"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *verdicts = load(verdict_text);
        json_object_set_new(json_object_get(json_array_get(verdicts, 0), "comm"), "name", json_string(names[i][0]));
        assert_int_equal(roll_top_verdicts(verdicts, &t), 0);
        roll_columns_line(&t, 1, 0, line, sizeof(line));
        char want[64];
        snprintf(want, sizeof(want), "  %s  ", names[i][1]);
        if (strstr(line, want) == NULL) {
            fail_msg("no \"%s\" in: %s", want, line);
        }
        roll_columns_fini(&t);
        json_decref(verdicts);
    }
}

/* A root with thousands of ranks tells those that stand alike as one, and of a run whose records are not here what
 * digests say. */
static void test_rows_of_the_root_are_shown_as_they_come(void **state)
{
    (void)state;
    json_t *status = load(
        "{\"run\":{\"job\":\"j\",\"restart\":0,\"policy\":\"observe\"},\"summary\":{\"ranks\":16384,\"ranks_live\":"
        "16383,"
        "\"calls\":8192000,\"comms\":65,\"findings\":0,\"lost\":0,\"incomplete\":0},\"ranks\":[],\"comms\":[],"
        "\"states\":{\"running\":16383,\"stopped\":0,\"finished\":0,\"dead\":1},"
        "\"digests\":{\"calls_per_s\":8191999.6,\"comms_of_rank\":5,\"records\":\"none\"},\"trace\":{\"kept\":false,"
        "\"why\":\"x\"},"
        "\"groups\":[{\"ranks_text\":\"0-6,8-16383\",\"count\":16383,\"rank\":0,\"state\":\"running\",\"heard\":true,"
        "\"in_call\":true,\"stands\":\"waiting\",\"waits_for\":\"7\",\"waiting\":16383,\"last_ns\":1700000009000000000,"
        "\"calls\":5,\"lost\":0,\"step\":3,"
        "\"step_last\":4,\"last\":{\"op\":\"AllReduce\",\"state\":\"entered\",\"comm\":\"\",\"comm_name\":\"256 "
        "ranks\","
        "\"seq\":120,\"seq_last\":164,\"place\":null}},"
        "{\"ranks_text\":\"7\",\"count\":1,\"rank\":7,\"state\":\"dead\",\"heard\":false,\"in_call\":false,\"last_ns\":"
        "0,"
        "\"calls\":0,\"lost\":0,\"step\":null,\"step_last\":null,\"last\":null}],"
        "\"families\":[{\"name\":\"64 groups of 256 ranks\",\"groups\":64,\"size\":256,\"stride\":null,"
        "\"text\":\"64 groups of 256 ranks\",\"made_at\":null,\"done\":100,\"ahead\":164,\"apart\":60}]}");
    roll_top_sort(status);
    char *text = once(status, NULL, false, 0);
    assert_non_null(strstr(text, "ranks 16,384 (16,383 live)  calls 8,192,000 (8,191,999/s)  communicators 65 across "
                                 "nodes, 5 of a rank  findings 0  dead 1  no trace here\n"));
    assert_non_null(strstr(
        text, "\n0-6,8-16383  16,383  waiting in a call  7          AllReduce  256 ranks  120-164   3-4   1.0 s\n"));
    assert_non_null(strstr(
        text, "\n7                 1  dead, not heard    -          -          -                -     -       -\n"));
    assert_non_null(
        strstr(text, "\n64 groups of 256 ranks      64     100       164  64 groups of 256 ranks     60\n"));
    free(text);
    json_decref(status);
}

static void test_lines_fit_80_columns(void **state)
{
    (void)state;
    json_t *status = load(status_text), *verdicts = load(verdict_text);
    char *text = once(status, verdicts, false, 80);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(roll_text_width(line) <= 80);
    }
    free(text);
    json_decref(status);
    json_decref(verdicts);
}

/* On a narrow terminal no figure of the headings is lost, and of the ranks the state is cut before the call. */
static void test_a_narrow_terminal_loses_no_figure(void **state)
{
    (void)state;
    json_t *status = load(status_text), *rank = json_array_get(json_object_get(status, "ranks"), 0);
    json_object_set_new(json_object_get(status, "run"), "job", json_string("run-20261128T232533Z-10294"));
    json_object_set_new(rank, "in_call", json_true());
    json_object_set_new(rank, "inside", json_string("cudaStreamSynchronize"));
    char *text = once(status, NULL, false, 60);
    assert_non_null(strstr(text,
                           "rollcall  job run-20261128T232533Z-10294  restart 0\n  policy observe  remedies fill\n"
                           "ranks 4 (4 live)  calls 1,234  communicators 1  findings 1\n"
                           "  lost 0  not made by all 1\n"));
    assert_non_null(strstr(text, "\n   0  n1    waiting in cud\xe2\x80\xa6  1          AllReduce  dp      5\n"));
    free(text);
    json_decref(status);
}

/* What moe_core reports has no sequence number; 0 would be read as the first call. */
static void test_moe_verdict_shows_no_sequence_number(void **state)
{
    (void)state;
    json_t *verdicts = load(verdict_text), *v = json_array_get(verdicts, 0);
    struct roll_columns table = {0};
    char line[512];
    json_object_set_new(v, "seq", json_integer(0));
    for (int moe = 0; moe < 2; moe++) {
        json_object_set_new(v, "family", json_string(moe ? "moe" : "sequence"));
        assert_int_equal(roll_top_verdicts(verdicts, &table), 0);
        roll_columns_line(&table, 1, 0, line, sizeof(line));
        assert_non_null(strstr(line, moe ? "dp      -  a rank" : "dp      0  a rank"));
        roll_columns_fini(&table);
    }
    json_decref(verdicts);
}

/* What has become of a verdict is said in the words that all have for it. */
static void test_a_verdict_that_stands_no_more_is_shown_as_what_it_became(void **state)
{
    (void)state;
    static const char *const ways[][2] = {
        {"supersedes", "replaced"}, {"confirms", "confirmed"}, {"withdraws", "withdrawn"}};
    for (size_t i = 0; i < 3; i++) {
        json_t *verdicts = load(verdict_text), *later = json_deep_copy(json_array_get(verdicts, 0));
        struct roll_columns t = {0};
        char line[256], want[64];
        json_object_set_new(later, "number", json_integer(2));
        json_object_set_new(later, ways[i][0], json_integer(1));
        json_array_append_new(verdicts, later);
        assert_int_equal(roll_top_verdicts(verdicts, &t), 0);
        snprintf(want, sizeof(want), "1  22:13:29.123  %s  ", ways[i][1]);
        roll_columns_line(&t, 1, 0, line, sizeof(line));
        if (strstr(line, want) != line) {
            fail_msg("no \"%s\" in: %s", want, line);
        }
        roll_columns_line(&t, 2, 0, line, sizeof(line));
        assert_non_null(strstr(line, "2  22:13:29.123  proven  "));
        roll_columns_fini(&t);
        json_decref(verdicts);
    }
}

/* A host that waits in a synchronize has left its AllReduce: the call that it is inside is its state. */
static void test_state_is_the_call_that_a_rank_is_inside(void **state)
{
    (void)state;
    json_t *status = load("{\"ranks\":[{\"rank\":0,\"state\":\"running\",\"in_call\":true,\"inside\":"
                          "\"cudaStreamSynchronize\",\"last\":{\"op\":\"AllReduce\"}},"
                          "{\"rank\":1,\"state\":\"running\",\"in_call\":false,\"inside\":null,\"last\":{\"op\":"
                          "\"AllReduce\"}},{\"rank\":2,\"state\":\"stopped\",\"in_call\":true,\"inside\":"
                          "\"cudaStreamSynchronize\",\"last\":{\"op\":\"AllReduce\"}}]}");
    for (int folded = 0; folded < 2; folded++) {
        char *text = once(status, NULL, folded != 0, 0);
        assert_non_null(strstr(text, "in cudaStreamSynchronize  -          AllReduce  "));
        assert_non_null(strstr(text, "running                   -          AllReduce  "));
        assert_non_null(strstr(text, "stopped                   -          AllReduce  "));
        free(text);
    }
    json_decref(status);
}

/* The word is that of the page; the call that the rank is inside, and for whom it waits, stand beside it. Ranks that
 * wait for others are not folded into one row. */
static void test_how_a_rank_stands_is_told_in_the_words_of_the_page(void **state)
{
    (void)state;
    static const char *const stands[] = {"running", "inside", "waiting", "busy", "finished"};
    static const char *const inside[] = {"in Send", "in Send", "waiting in Send", "busy in Send", "finished in Send"};
    for (size_t i = 0; i < sizeof(stands) / sizeof(stands[0]); i++) {
        for (int in_call = 0; in_call < 2; in_call++) {
            json_t *status = json_pack("{s:[{s:i,s:s,s:b,s:s,s:s,s:s,s:{s:s}}]}", "ranks", "rank", 0, "state",
                                       "running", "in_call", in_call, "inside", "Send", "stands", stands[i],
                                       "waits_for", "4-7", "last", "op", "AllReduce");
            char want[64], *text = once(status, NULL, false, 0);
            snprintf(want, sizeof(want), "  -  %s ", in_call ? inside[i] : stands[i]);
            if (strstr(text, want) == NULL || strstr(text, " 4-7        AllReduce ") == NULL) {
                fail_msg("no \"%s\" in: %s", want, text);
            }
            free(text);
            json_decref(status);
        }
    }
    /* An older root, rollcall.status/1: there `waits_for` is a number. */
    json_t *older = load("{\"ranks\":[{\"rank\":0,\"state\":\"running\",\"stands\":\"waiting\",\"waits_for\":3,"
                         "\"awaits\":\"4-7\",\"last\":{\"op\":\"AllReduce\"}}]}");
    char *text = once(older, NULL, false, 0);
    assert_non_null(strstr(text, " 4-7        AllReduce "));
    assert_int_equal(roll_row_pending(json_array_get(json_object_get(older, "ranks"), 0)), 3);
    free(text);
    json_decref(older);
    json_t *status = load("{\"ranks\":[{\"rank\":0,\"state\":\"running\",\"stands\":\"waiting\",\"waits_for\":\"2\"},"
                          "{\"rank\":1,\"state\":\"running\",\"stands\":\"waiting\",\"waits_for\":\"3\"}]}");
    struct roll_columns t = {0};
    assert_int_equal(roll_top_ranks(status, NOW, true, &t), 0);
    assert_int_equal(roll_columns_rows(&t), 3);
    roll_columns_fini(&t);
    json_decref(status);
}

/* A column in which no row has anything is not there: not in the width either, and nothing is left out in its place. */
static void test_columns_that_are_hidden_take_no_room(void **state)
{
    (void)state;
    struct roll_columns t = {.columns = 4, .hide = 1u << 1 | 1u << 3, .drop = {2, 3}, .shrink = 1};
    static const char *const rows[2][4] = {{"AAAAAA", "BBBBBBBB", "CCCCCC", "DDDDDDDDDD"}, {"a", "-", "c", "-"}};
    static const struct {
        size_t width;
        const char *head, *row;
    } wants[] = {{0, "AAAAAA  CCCCCC", "a       c"}, {14, "AAAAAA  CCCCCC", "a       c"}, {13, "AAAAAA", "a"}};
    char line[256];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(roll_columns_row(&t, rows[i]), 0);
    }
    for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++) {
        roll_columns_line(&t, 0, wants[i].width, line, sizeof(line));
        assert_string_equal(line, wants[i].head);
        roll_columns_line(&t, 1, wants[i].width, line, sizeof(line));
        assert_string_equal(line, wants[i].row);
    }
    roll_columns_fini(&t);
}

static void test_narrow_tables_leave_out_whole_columns(void **state)
{
    (void)state;
    struct roll_columns t = {.columns = 4, .drop = {2, 3}, .shrink = 4};
    static const char *const rows[2][4] = {{"AAAA", "BBBBBBBB", "CCCCCC", "DDDDDDDDDD"}, {"a", "b", "c", "d"}};
    static const struct {
        size_t width;
        const char *line;
    } wants[] = {{0, "AAAA  BBBBBBBB  CCCCCC  DDDDDDDDDD"},
                 {34, "AAAA  BBBBBBBB  CCCCCC  DDDDDDDDDD"},
                 {33, "AAAA  CCCCCC  DDDDDDDDDD"},
                 {24, "AAAA  CCCCCC  DDDDDDDDDD"},
                 {23, "AAAA  DDDDDDDDDD"},
                 {12, "AAAA  DDDDD\xe2\x80\xa6"}};
    char line[256];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(roll_columns_row(&t, rows[i]), 0);
    }
    for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++) {
        roll_columns_line(&t, 0, wants[i].width, line, sizeof(line));
        assert_string_equal(line, wants[i].line);
    }
    roll_columns_fini(&t);
}

static void test_the_finding_is_told_whatever_table_is_shown(void **state)
{
    (void)state;
    json_t *status = load("{\"ripening\":\"rank 3 has not made AllReduce #7\"}"), *verdicts = load(verdict_text);
    char out[256];
    char *text = once(status, NULL, false, 0);
    assert_non_null(strstr(text, "\nnothing found yet: rank 3 has not made AllReduce #7\n"));
    free(text);
    roll_top_found(status, verdicts, out, sizeof(out));
    assert_non_null(strstr(out, "FOUND (proven) call-skipped, rank 1: a rank left out"));
    json_t *v = json_array_get(verdicts, 0);
    json_object_set_new(v, "certainty", json_string("note"));
    assert_string_equal(roll_top_found(status, verdicts, out, sizeof(out)),
                        "nothing found yet: rank 3 has not made AllReduce #7");
    json_object_set_new(status, "ripening", json_null());
    assert_string_equal(roll_top_found(status, verdicts, out, sizeof(out)), "");
    assert_string_equal(roll_top_found(NULL, NULL, out, sizeof(out)), "");
    json_decref(status);
    json_decref(verdicts);
}

static void test_state_of_the_last_call_is_told_where_it_is_not_ordinary(void **state)
{
    (void)state;
    json_t *status = load("{\"ranks\":[{\"rank\":0,\"last\":{\"op\":\"AllReduce\",\"state\":\"captured\"}},"
                          "{\"rank\":1,\"last\":{\"op\":\"Broadcast\",\"state\":\"returned\"}}]}");
    char *text = once(status, NULL, false, 0);
    assert_non_null(strstr(text, "AllReduce, captured"));
    assert_null(strstr(text, "Broadcast,"));
    free(text);
    json_decref(status);
}

static void test_silent_agent_is_named_with_its_age(void **state)
{
    (void)state;
    json_t *status = load("{\"agents\":[{\"host\":\"n7\",\"seen_ns\":1699999997700000000}]}");
    char out[128];
    assert_string_equal(roll_top_stale(status, NOW, out, sizeof(out)), "agent of n7 silent for 12.3 s");
    assert_string_equal(roll_top_stale(status, 1699999998000000000u, out, sizeof(out)), "");
    json_decref(status);
    status = load("{\"summary\":{\"ranks_live\":4},\"agents\":["
                  "{\"host\":\"n7\",\"seen_ns\":1699999997700000000,\"ranks\":2,\"gone\":true},"
                  "{\"host\":\"n8\",\"seen_ns\":1700000009900000000,\"ranks\":2,\"gone\":false}]}");
    assert_string_equal(roll_top_stale(status, NOW, out, sizeof(out)),
                        "2 of 4 ranks heard, agent of n7 silent for 12.3 s");
    json_decref(status);
    status = load("{\"summary\":{\"ranks_live\":3},\"agents\":["
                  "{\"host\":\"n7\",\"seen_ns\":1699999997700000000,\"ranks\":2,\"gone\":true},"
                  "{\"host\":\"n8\",\"seen_ns\":1700000009900000000,\"ranks\":1,\"gone\":true}]}");
    assert_string_equal(roll_top_stale(status, NOW, out, sizeof(out)),
                        "0 of 3 ranks heard, agent of n7 (and 1 more) silent for 12.3 s");
    json_decref(status);
}

static void test_ranks_without_a_record_are_named(void **state)
{
    (void)state;
    char out[256];
    json_t *status = load("{\"unseen\":{\"count\":1,\"of\":4,\"ranks_text\":\"3\"}}");
    roll_top_unseen(status, out, sizeof(out));
    assert_non_null(
        strstr(out, "no record of rank 3 (1 of 4): not begun, or the agent there does not reach this root"));
    json_decref(status);
    status = load("{\"unseen\":{\"count\":8,\"of\":16,\"ranks_text\":\"8-15\"}}");
    char *text = once(status, NULL, false, 40);
    assert_non_null(strstr(text, "\nno record of ranks 8-15 (8 of 16)"));
    free(text);
    json_decref(status);
    status = load("{\"unseen\":null}"); /* and of an older root none at all */
    assert_string_equal(roll_top_unseen(status, out, sizeof(out)), "");
    json_decref(status);
}

static void test_ranks_are_put_into_order(void **state)
{
    (void)state;
    json_t *status = load("{\"ranks\":[{\"rank\":2},{\"rank\":0},{\"rank\":1}]}");
    roll_top_sort(status);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(roll_json_int(json_array_get(json_object_get(status, "ranks"), i), "rank", -1), i);
    }
    json_decref(status);
}

static void test_strange_status_is_shown_with_dashes(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}",
        "[]",
        "{\"ranks\":{}}",
        ("{\"ranks\":[1,null,{\"rank\":-1,\"last\":null,\"last_ns\":-5,\"step\":\"x\"}],\"comms\":[{\"members\":3,"
         "\"behind\":null}]}"),
        "{\"ranks\":[{\"rank\":4000000000,\"last_ns\":9223372036854775807}],\"agents\":[{}],\"remedies\":[]}",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *status = load(texts[i]);
        for (int fold = 0; fold < 2; fold++) {
            roll_top_sort(status);
            char *text = once(status, status, fold == 1, 80);
            assert_non_null(text);
            free(text);
        }
        json_decref(status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once_shows_ranks_comms_and_verdicts),
        cmocka_unit_test(test_verdicts_that_were_lost_show_where_there_are_any),
        cmocka_unit_test(test_the_heading_says_which_step_the_job_is_in),
        cmocka_unit_test(test_fold_puts_ranks_at_one_place_into_one_row),
        cmocka_unit_test(test_comms_fold_their_ranks),
        cmocka_unit_test(test_families_share_a_row_and_names_are_used),
        cmocka_unit_test(test_rows_of_the_root_are_shown_as_they_come),
        cmocka_unit_test(test_lines_fit_80_columns),
        cmocka_unit_test(test_a_narrow_terminal_loses_no_figure),
        cmocka_unit_test(test_moe_verdict_shows_no_sequence_number),
        cmocka_unit_test(test_a_verdict_that_stands_no_more_is_shown_as_what_it_became),
        cmocka_unit_test(test_state_is_the_call_that_a_rank_is_inside),
        cmocka_unit_test(test_how_a_rank_stands_is_told_in_the_words_of_the_page),
        cmocka_unit_test(test_columns_that_are_hidden_take_no_room),
        cmocka_unit_test(test_narrow_tables_leave_out_whole_columns),
        cmocka_unit_test(test_the_finding_is_told_whatever_table_is_shown),
        cmocka_unit_test(test_state_of_the_last_call_is_told_where_it_is_not_ordinary),
        cmocka_unit_test(test_silent_agent_is_named_with_its_age),
        cmocka_unit_test(test_ranks_without_a_record_are_named),
        cmocka_unit_test(test_ranks_are_put_into_order),
        cmocka_unit_test(test_strange_status_is_shown_with_dashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
