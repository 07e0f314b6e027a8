/* test_dumps.c: dumps of other tools: what a pickle may say, what it may not, and that damage is one clear error. */
#include "daemon/dumps/dump.h"
#include "daemon/dumps/value.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* {'version': '2.10', 'n': [1, -2, 2**40, 1.5, None, True, ('a', 'a')]}: the opcodes that PyTorch's pickler writes. */
static const uint8_t plain[] = "\x80\x02}q\x00(X\x07\x00\x00\x00versionq\x01X\x04\x00\x00\x00"
                               "2.10q\x02X\x01\x00\x00\x00nq\x03]q\x04(K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00"
                               "\x00\x01G\x3f\xf8\x00\x00\x00\x00\x00\x00N\x88X\x01\x00\x00\x00"
                               "aq\x05h\x05\x86q\x06"
                               "eu.";
#define PLAIN_BYTES (sizeof(plain) - 1)

static roll_dump_reader_t *reader; /* of all tests */

static int decode(struct roll_arena *arena, const void *data, size_t bytes, struct roll_value *out)
{
    size_t where;
    roll_arena_init(arena, 1u << 20);
    return roll_pickle_decode(arena, data, bytes, out, &where);
}

static void a_pickle_of_plain_data_is_read(void **state)
{
    struct roll_arena arena;
    struct roll_value v;
    (void)state;
    assert_int_equal(decode(&arena, plain, PLAIN_BYTES, &v), 0);
    assert_true(roll_value_says(roll_value_get(&v, "version"), "2.10"));
    const struct roll_value *n = roll_value_get(&v, "n");
    assert_int_equal(roll_value_count(n), 7);
    assert_int_equal(roll_value_integer(roll_value_at(n, 0), 0), 1);
    assert_int_equal(roll_value_integer(roll_value_at(n, 1), 0), -2);
    assert_int_equal(roll_value_integer(roll_value_at(n, 2), 0), INT64_C(1) << 40);
    assert_true(roll_value_is(roll_value_at(n, 3), ROLL_VALUE_REAL) && roll_value_at(n, 3)->real == 1.5);
    assert_true(roll_value_is(roll_value_at(n, 4), ROLL_VALUE_NULL));
    assert_true(roll_value_is(roll_value_at(n, 5), ROLL_VALUE_TRUE));
    assert_true(roll_value_says(roll_value_at(roll_value_at(n, 6), 1), "a"));
    assert_null(roll_value_at(n, 7));
    assert_null(roll_value_get(n, "n"));
    roll_arena_fini(&arena);
}

static void a_pickle_that_ends_early_says_so(void **state)
{
    (void)state;
    for (size_t n = 0; n < PLAIN_BYTES; n++) {
        struct roll_arena arena;
        struct roll_value v;
        uint8_t *copy = malloc(n + 1); /* so that a sanitizer sees a byte too many */
        assert_non_null(copy);
        memcpy(copy, plain, n);
        assert_int_equal(decode(&arena, copy, n, &v), ROLL_E_SHORT);
        roll_arena_fini(&arena);
        free(copy);
    }
}

static void a_pickle_that_asks_for_code_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        int err;
    } cases[] = {
#define CASE(text, code) {text, sizeof(text) - 1, code}
        CASE("\x80\x02"
             "cos\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85q\x02Rq\x03.",
             ROLL_E_UNSUPPORTED),
        CASE("\x80\x04\x8c\x02os\x8c\x06system\x93.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x02(ios\nsystem\n.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x02N}b.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x02X\x01\x00\x00\x00pQ.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x06N.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", ROLL_E_UNSUPPORTED),
        CASE("\x80\x02"
             "e.",
             ROLL_E_CORRUPT),                                /* no mark */
        CASE("\x80\x02(u.", ROLL_E_CORRUPT),                 /* no mapping below the mark */
        CASE("\x80\x02}(Nu.", ROLL_E_CORRUPT),               /* a key without a value */
        CASE("\x80\x02h\x00.", ROLL_E_CORRUPT),              /* nothing was put into the memo */
        CASE("\x80\x02Nr\xff\xff\xff\xff.", ROLL_E_CORRUPT), /* a memo of 4 billion */
        CASE("\x80\x02NN.", ROLL_E_CORRUPT),
        CASE("\x80\x02.", ROLL_E_CORRUPT),
        CASE("\x80\x02(\x86.", ROLL_E_CORRUPT), /* a tuple of what lies below the mark */
        CASE("\x80\x02X\xff\xff\xff\xff"
             "a.",
             ROLL_E_SHORT),
#undef CASE
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct roll_arena arena;
        struct roll_value v;
        if (decode(&arena, cases[i].bytes, cases[i].n, &v) != cases[i].err) {
            fail_msg("case %zu", i);
        }
        roll_arena_fini(&arena);
    }
}

static void a_list_that_holds_itself_does_no_harm(void **state)
{
    static const char bytes[] = "\x80\x02}q\x00(X\x07\x00\x00\x00versionX\x03\x00\x00\x00"
                                "2.1X\x07\x00\x00\x00"
                                "entriesh\x00X\x09\x00\x00\x00pg_config}q\x01X\x01\x00\x00\x00xh\x01su.";
    struct roll_dump *d;
    char why[256];
    (void)state;
    assert_int_equal(roll_dump_parse(reader, "rank_1", bytes, sizeof(bytes) - 1, &d, why, sizeof(why)), 0);
    assert_int_equal(d->rank, 1);
    assert_int_equal(d->calls, 0);
    roll_dump_destroy(&d);
}

static void deep_nesting_and_many_marks_are_bounded(void **state)
{
    enum { DEEP = 200000 };
    struct roll_arena arena;
    struct roll_value v;
    size_t where;
    uint8_t *bytes = malloc(DEEP + 3);
    (void)state;
    assert_non_null(bytes);
    memset(bytes, ']', DEEP + 2);
    bytes[0] = 0x80;
    bytes[1] = 2;
    roll_arena_init(&arena, 1u << 16);
    assert_int_equal(roll_pickle_decode(&arena, bytes, DEEP, &v, &where), ROLL_E_NOMEM);
    roll_arena_fini(&arena);
    memset(bytes + 2, '(', DEEP);
    assert_int_equal(decode(&arena, bytes, DEEP, &v), ROLL_E_SHORT);
    roll_arena_fini(&arena);
    free(bytes);
}

#define ENTRY(seq, name, size)                                                                                         \
    "{\"record_id\": 5, \"pg_id\": 0, \"process_group\": [\"0\", \"default_pg\"], \"collective_seq_id\": " seq         \
    ", \"p2p_seq_id\": 0, \"profiling_name\": \"" name "\", \"time_created_ns\": 1000, \"input_sizes\": [[" size       \
    "]], \"input_dtypes\": [\"Float\"], \"output_sizes\": [[" size                                                     \
    "]], \"output_dtypes\": [\"Float\"], \"state\": \"scheduled\", \"is_p2p\": false}"
#define DUMP(entries)                                                                                                  \
    "{\"version\": \"2.10\", \"pg_config\": {\"0\": {\"name\": \"0\", \"desc\": \"default_pg\", \"ranks\": \"[0, 1, "  \
    "2]\"}},"                                                                                                          \
    "\"pg_status\": {\"0\": {\"last_enqueued_collective\": \"7\", \"last_completed_collective\": \"6\"}}, "            \
    "\"entries\": [" entries "]}"

static struct roll_dump *parsed(const char *name, const char *json)
{
    struct roll_dump *d = NULL;
    char why[256];
    int err = roll_dump_parse(reader, name, json, strlen(json), &d, why, sizeof(why));
    if (err != 0) {
        fail_msg("%d: %s", err, why);
    }
    return d;
}

static void a_dump_in_json_is_read(void **state)
{
    struct roll_dump *d = parsed("/x/trace_rank_2.json", DUMP(ENTRY("7", "nccl:all_reduce", "4, 8")));
    (void)state;
    assert_int_equal(d->rank, 2);
    assert_int_equal(d->world, 3);
    assert_int_equal(d->groups, 1);
    assert_int_equal(d->group[0].self, 2);
    assert_int_equal(d->group[0].enqueued, 7); /* written as a text in JSON */
    assert_int_equal(d->calls, 1);
    assert_int_equal(d->call[0].rec.op, ROLL_OP_ALLREDUCE);
    assert_int_equal(d->call[0].rec.count, 32);
    assert_int_equal(d->call[0].rec.dtype, ROLL_DTYPE_FLOAT32);
    assert_int_equal(d->call[0].rec.seq, 7);
    assert_false(d->whole);
    roll_dump_destroy(&d);
}

/* A rehearsed job's dump has frames of rollcall's own: they are no lines of the job, and not counted among libraries.
 */
static void frames_of_rollcall_are_left_out(void **state)
{
    static const char json[] =
        DUMP("{\"record_id\": 5, \"pg_id\": 0, \"process_group\": [\"0\", \"default_pg\"], \"collective_seq_id\": 7, "
             "\"profiling_name\": \"nccl:all_reduce\", \"time_created_ns\": 1000, \"input_sizes\": [[4]], "
             "\"input_dtypes\": [\"Float\"], \"output_sizes\": [[4]], \"output_dtypes\": [\"Float\"], "
             "\"state\": \"scheduled\", \"is_p2p\": false, \"frames\": ["
             "{\"name\": \"_dispatch\", \"filename\": \"/opt/lib/rollcall/rehearse/mode.py\", \"line\": 299},"
             "{\"name\": \"all_reduce\", \"filename\": \"/v/site-packages/torch/c10d.py\", \"line\": 3000},"
             "{\"name\": \"step\", \"filename\": \"/opt/lib/rollcall/torch.py\", \"line\": 10},"
             "{\"name\": \"main\", \"filename\": \"/job/train.py\", \"line\": 12},"
             "{\"name\": \"<module>\", \"filename\": \"/opt/lib/rollcall/zygote.py\", \"line\": 90},"
             "{\"name\": \"main\", \"filename\": \"/opt/lib/rollcall/python/sitecustomize.py\", \"line\": 9}]}");
    struct roll_dump *d = parsed("rank0", json);
    (void)state;
    assert_int_equal(d->calls, 1);
    assert_int_equal(d->sites, 1);
    assert_int_equal(d->site[0].lines, 1);
    assert_int_equal(d->site[0].folded[0], 1);
    assert_string_equal(d->text + d->line[d->site[0].line[0]].file, "/job/train.py");
    roll_dump_destroy(&d);
}

static void calls_that_were_issued_as_one_are_one(void **state)
{
    struct roll_dump *d =
        parsed("rank0", DUMP(ENTRY("7", "nccl:_broadcast_oop", "4") "," ENTRY(
                            "7", "nccl:_broadcast_oop", "6") "," ENTRY("7", "nccl:ALLGATHER_coalesced", "1")));
    (void)state;
    assert_int_equal(d->calls, 1);
    assert_true((d->call[0].rec.flags & ROLL_FLAG_UNSIZED) != 0);
    roll_dump_destroy(&d);
}

static void a_name_that_is_not_known_ends_nothing(void **state)
{
    struct roll_dump *d =
        parsed("rank0", DUMP(ENTRY("6", "new:thing", "4") "," ENTRY("7", "gloo:all_reduce", "4") ", 3"));
    (void)state;
    assert_int_equal(d->calls, 1);
    assert_int_equal(d->odd, 1);
    assert_int_equal(d->unknowns, 1);
    assert_string_equal(d->text + d->unknown[0].name, "new:thing");
    roll_dump_destroy(&d);
}

static void what_is_no_dump_is_refused_with_a_reason(void **state)
{
    static const struct {
        const char *name, *text, *word;
        int err;
    } cases[] = {
        {"rank_0", "{\"a\": 1}", "neither", ROLL_E_MAGIC},
        {"rank_0", "{\"version\": \"2.10\", \"entries\": [", "cut", ROLL_E_CORRUPT},
        {"rank_0", "{\"version\": \"9.0\", \"entries\": []}", "9.0", ROLL_E_VERSION},
        {"trace", "{\"version\": \"2.10\", \"entries\": []}", "rank", ROLL_E_ARG},
        {"rank_0", "{\"version\": \"2.10\", \"pg_config\": {\"0\": {\"ranks\": \"[0, x]\"}}}", "pg_config",
         ROLL_E_CORRUPT},
        {"rank_0", "{\"version\": \"2.10\", \"pg_config\": {\"0\": {\"ranks\": \"[99999999999]\"}}}", "pg_config",
         ROLL_E_CORRUPT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct roll_dump *d;
        char why[256];
        int err = roll_dump_parse(reader, cases[i].name, cases[i].text, strlen(cases[i].text), &d, why, sizeof(why));
        if (err != cases[i].err || strstr(why, cases[i].word) == NULL || d != NULL) {
            fail_msg("case %zu: %d, %s", i, err, why);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pickle_of_plain_data_is_read),
        cmocka_unit_test(a_pickle_that_ends_early_says_so),
        cmocka_unit_test(a_pickle_that_asks_for_code_is_refused),
        cmocka_unit_test(a_list_that_holds_itself_does_no_harm),
        cmocka_unit_test(deep_nesting_and_many_marks_are_bounded),
        cmocka_unit_test(a_dump_in_json_is_read),
        cmocka_unit_test(frames_of_rollcall_are_left_out),
        cmocka_unit_test(calls_that_were_issued_as_one_are_one),
        cmocka_unit_test(a_name_that_is_not_known_ends_nothing),
        cmocka_unit_test(what_is_no_dump_is_refused_with_a_reason),
    };
    reader = roll_dump_reader_new();
    int failed = reader != NULL ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    roll_dump_reader_destroy(&reader);
    return failed;
}
