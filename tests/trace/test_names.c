/*
 * test_names.c: names, classes and texts of errors, operations, remedies and verdicts; checks and lines of records.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/err.h"
#include "trace/op.h"
#include "trace/record.h"
#include "trace/remedy.h"
#include "trace/verdict.h"

#include <errno.h>
#include <string.h>

static void every_error_has_a_text_and_a_stable_negative_value(void **state)
{
    (void)state;
    assert_string_equal(roll_strerror(0), "no error");
    assert_int_equal(ROLL_E_NOMEM, -1);
    assert_int_equal(ROLL_E_UNSUPPORTED, -19);
    for (int err = ROLL_E_NOMEM; err >= ROLL_E_UNSUPPORTED; err--) {
        assert_string_not_equal(roll_strerror(err), "unknown error");
    }
    assert_string_equal(roll_strerror(-1000), "unknown error");
    assert_string_equal(roll_strerror(7), "unknown error");
}

static void errno_maps_to_the_code_that_says_what_to_do(void **state)
{
    (void)state;
    assert_int_equal(roll_err_from_errno(0), 0);
    assert_int_equal(roll_err_from_errno(ENOSPC), ROLL_E_SPACE);
    assert_int_equal(roll_err_from_errno(EDQUOT), ROLL_E_SPACE);
    assert_int_equal(roll_err_from_errno(EACCES), ROLL_E_DENIED);
    assert_int_equal(roll_err_from_errno(ENOENT), ROLL_E_NOTFOUND);
    assert_int_equal(roll_err_from_errno(EFBIG), ROLL_E_LIMIT);
    assert_int_equal(roll_err_from_errno(EPIPE), ROLL_E_IO);
}

static void operation_names_go_there_and_back(void **state)
{
    (void)state;
    for (unsigned op = 1; op < 300; op++) {
        const char *name = roll_op_name(op);
        if (roll_op_class(op) == ROLL_CLASS_NONE) {
            assert_string_equal(name, "?");
        } else {
            assert_int_equal(roll_op_by_name(name), op);
        }
    }
    assert_int_equal(roll_op_class(ROLL_OP_ALLTOALL), ROLL_CLASS_COLL);
    assert_int_equal(roll_op_class(ROLL_OP_MOE_SKIP), ROLL_CLASS_MOE);
    assert_int_equal(roll_op_by_name("?"), ROLL_OP_NONE);
    assert_int_equal(roll_op_by_name("allreduce"), ROLL_OP_NONE);
}

/* The code that compares, describes and judges collectives knows nothing but the traits: each NCCL collective says all
 * of them. */
static void each_collective_says_what_nccl_does_with_it(void **state)
{
    (void)state;
    unsigned collectives = 0;
    for (unsigned op = 0; op < 256; op++) {
        bool nccl = roll_op_class(op) == ROLL_CLASS_COLL && op != ROLL_OP_GRAPH_LAUNCH;
        assert_int_equal(roll_op_has(op, ROLL_TRAIT_REDOP) + roll_op_has(op, ROLL_TRAIT_BYTES), nccl);
        assert_int_equal(roll_op_has(op, ROLL_TRAIT_ROOT) + roll_op_has(op, ROLL_TRAIT_MEETS), nccl);
        assert_true(nccl || !roll_op_has(op, ROLL_TRAIT_LOWERED));
        collectives += nccl;
    }
    assert_true(collectives >= 8);
    assert_true(roll_op_has(ROLL_OP_REDUCE, ROLL_TRAIT_ROOT) && roll_op_has(ROLL_OP_REDUCE, ROLL_TRAIT_REDOP));
    assert_true(roll_op_has(ROLL_OP_ALLTOALL, ROLL_TRAIT_LOWERED) && roll_op_has(ROLL_OP_ALLTOALL, ROLL_TRAIT_MEETS));
    assert_false(roll_op_has(ROLL_OP_BROADCAST, ROLL_TRAIT_LOWERED | ROLL_TRAIT_MEETS));
}

static void datatypes_have_names_and_sizes(void **state)
{
    (void)state;
    static const size_t bytes[ROLL_DTYPE_LIMIT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (unsigned d = 0; d < ROLL_DTYPE_LIMIT; d++) {
        assert_int_equal(roll_dtype_bytes(d), bytes[d]);
        assert_string_not_equal(roll_dtype_name(d), "?");
    }
    assert_int_equal(roll_dtype_bytes(ROLL_DTYPE_NONE), 0);
    assert_string_equal(roll_dtype_name(ROLL_DTYPE_BFLOAT16), "bfloat16");
    assert_string_equal(roll_dtype_name(ROLL_DTYPE_LIMIT), "?");
    assert_string_equal(roll_redop_name(ROLL_RED_PREMUL), "premulsum");
    assert_string_equal(roll_redop_name(99), "?");
    assert_string_equal(roll_result_name(4), "ncclInvalidArgument");
    assert_string_equal(roll_result_name(200), "?");
    assert_string_equal(roll_phase_name(ROLL_PHASE_BACKWARD), "backward");
    assert_string_equal(roll_phase_name(99), "?");
}

static void remedies_and_policies_go_there_and_back(void **state)
{
    (void)state;
    assert_int_equal(roll_remedy_by_name("fill"), ROLL_REMEDY_FILL);
    assert_int_equal(roll_remedy_by_name("pad"), ROLL_REMEDY_PAD);
    assert_int_equal(roll_remedy_by_name("none"), 0);
    assert_string_equal(roll_remedy_name(ROLL_REMEDY_PAD), "pad");
    assert_string_equal(roll_remedy_name(ROLL_REMEDY_FILL | ROLL_REMEDY_PAD), "?");
    assert_int_equal(roll_remedy_local() & (ROLL_REMEDY_FILL | ROLL_REMEDY_ZERO_WGRAD | ROLL_REMEDY_PAD |
                                            ROLL_REMEDY_UNEVEN | ROLL_REMEDY_ROUTER_SUM),
                     ROLL_REMEDY_FILL | ROLL_REMEDY_ZERO_WGRAD);
    for (unsigned p = 0; p <= ROLL_POLICY_AUTO; p++) {
        enum roll_policy back = ROLL_POLICY_OBSERVE;
        assert_int_equal(roll_policy_by_name(roll_policy_name(p), &back), 0);
        assert_int_equal(back, p);
    }
    enum roll_policy policy;
    assert_int_equal(roll_policy_by_name("automatic", &policy), ROLL_E_ARG);
}

#define ROLL_VERDICT_ROW(...) +1
static const unsigned table_rows = 0
#include "trace/verdict.def"
    ;
#undef ROLL_VERDICT_ROW

static void verdict_names_go_there_and_back(void **state)
{
    (void)state;
    unsigned rows = 0;
    for (unsigned code = 0; code < 1200; code++) {
        if (strcmp(roll_verdict_name(code), "?") != 0) {
            assert_int_equal(roll_verdict_by_name(roll_verdict_name(code)), code);
            assert_string_not_equal(roll_family_name(roll_verdict_family(code)), "?");
            rows++;
        }
    }
    assert_int_equal(rows, table_rows);
    assert_int_equal(roll_verdict_family(ROLL_VERDICT_MOE_OBLIGATION), ROLL_FAMILY_MOE);
    assert_string_equal(roll_certainty_name(ROLL_PROVEN), "proven");
    assert_string_equal(roll_certainty_name(4), "?");
    assert_string_equal(roll_verdict_title(5), "?");
}

static struct roll_record good_record(void)
{
    return (struct roll_record){
        .seal = roll_seal(12, ROLL_STATE_RETURNED),
        .enter_ns = 1000,
        .count = 1024,
        .seq = 4,
        .peer = ROLL_PEER_NONE,
        .call_ns = 1200,
        .step = 7,
        .comm = 1,
        .callsite = 3,
        .thread = 1,
        .layer = 2,
        .op = ROLL_OP_ALLREDUCE,
        .dtype = ROLL_DTYPE_FLOAT32,
        .redop = ROLL_RED_SUM,
        .phase = ROLL_PHASE_BACKWARD,
    };
}

static void a_record_is_refused_for_each_field_out_of_range(void **state)
{
    (void)state;
    struct roll_record good = good_record();
    assert_int_equal(roll_record_check(&good), 0);
    struct roll_record bad[6] = {good, good, good, good, good, good};
    bad[0].op = ROLL_OP_NONE;
    bad[1].dtype = ROLL_DTYPE_LIMIT;
    bad[2].redop = ROLL_RED_LIMIT;
    bad[3].phase = 6;
    bad[4].seal = roll_seal(12, ROLL_STATE_EMPTY);
    bad[5].seal = roll_seal(12, (enum roll_state)4);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(roll_record_check(&bad[i]), ROLL_E_CORRUPT);
    }
    good.op = ROLL_OP_LIMIT - 1; /* the last id that will be given to an operation: a newer writer knows it */
    assert_int_equal(roll_record_check(&good), 0);
}

static void a_record_prints_as_one_line_and_is_cut_safely(void **state)
{
    (void)state;
    struct roll_record rec = good_record();
    char line[256];
    int wanted = roll_record_format(&rec, line, sizeof(line));
    assert_string_equal(line, "#12 AllReduce comm 1 seq 4 count 1024 float32 sum returned 1200 ns step 7 microbatch 0 "
                              "layer 2 backward stream 0 thread 1 callsite 3 at 1000 ns");
    assert_int_equal(wanted, strlen(line));
    for (size_t size = 0; size < sizeof(line); size++) {
        char cut[256];
        memset(cut, 'x', sizeof(cut));
        assert_int_equal(roll_record_format(&rec, cut, size), wanted);
        if (size > 0) {
            assert_int_equal(strlen(cut), size - 1 < (size_t)wanted ? size - 1 : (size_t)wanted);
        }
        assert_int_equal(cut[size], size < sizeof(cut) ? 'x' : 0);
    }
}

/* A number alone tells nobody what came of a call; a name that belongs to another library tells something wrong. */
static void a_record_says_by_name_what_the_call_returned(void **state)
{
    (void)state;
    static const struct {
        uint8_t op, result;
        const char *said;
    } rows[] = {
        {ROLL_OP_ALLREDUCE, 5 | ROLL_RESULT_DECLINED, " result ncclInvalidUsage (refused by rollcall) "},
        {ROLL_OP_ALLREDUCE, 4, " result ncclInvalidArgument step "},
        {ROLL_OP_SEND, 6, " result ncclRemoteError step "},
        {ROLL_OP_GROUP_END, 5 | ROLL_RESULT_DECLINED, " result ncclInvalidUsage (refused by rollcall) "},
        {ROLL_OP_COMM_INIT, 7, " result ncclInProgress step "},
        {ROLL_OP_ALLREDUCE, 77, " result 77 step "},
        {ROLL_OP_STREAM_SYNC, 5, " result 5 step "},
        {ROLL_OP_STREAM_QUERY, ROLL_POLL_GOES_ON, " result goes on step "},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct roll_record rec = good_record();
        char line[256];
        rec.op = rows[i].op;
        rec.result = rows[i].result;
        (void)roll_record_format(&rec, line, sizeof(line));
        if (!strstr(line, rows[i].said)) {
            fail_msg("no '%s' in: %s", rows[i].said, line);
        }
        rec.result = 0;
        (void)roll_record_format(&rec, line, sizeof(line));
        assert_null(strstr(line, " result "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_a_text_and_a_stable_negative_value),
        cmocka_unit_test(errno_maps_to_the_code_that_says_what_to_do),
        cmocka_unit_test(operation_names_go_there_and_back),
        cmocka_unit_test(each_collective_says_what_nccl_does_with_it),
        cmocka_unit_test(datatypes_have_names_and_sizes),
        cmocka_unit_test(remedies_and_policies_go_there_and_back),
        cmocka_unit_test(verdict_names_go_there_and_back),
        cmocka_unit_test(a_record_is_refused_for_each_field_out_of_range),
        cmocka_unit_test(a_record_prints_as_one_line_and_is_cut_safely),
        cmocka_unit_test(a_record_says_by_name_what_the_call_returned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
