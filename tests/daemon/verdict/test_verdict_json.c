/*
 * test_verdict_json.c: verdicts as JSON: every member there, null for what is unknown, call sites listed once.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_json.h"
#include "trace/op.h"

#include <string.h>

/* Stands for the engine: source n has the ring with epoch n + 10. */
bool roll_engine_source(const roll_engine_t *engine, uint32_t i, struct roll_view_source *out)
{
    (void)engine;
    *out = (struct roll_view_source){.info = {.stream = i + 10}};
    return i < 2;
}

static const roll_engine_t *const engine = (const roll_engine_t *)(uintptr_t)64; /* never looked into */

static struct roll_record all_reduce(uint64_t count)
{
    return (struct roll_record){.seal = roll_seal(4, ROLL_STATE_ENTERED),
                                .enter_ns = 555,
                                .count = count,
                                .seq = 17,
                                .group = 3,
                                .peer = ROLL_PEER_NONE,
                                .callsite = 1,
                                .op = ROLL_OP_ALLREDUCE,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_SUM};
}

static struct roll_verdict full_verdict(void)
{
    struct roll_verdict v = {.number = 2,
                             .code = ROLL_VERDICT_COUNT_MISMATCH,
                             .certainty = ROLL_PROVEN,
                             .time_ns = 1700000000000000001,
                             .event_ns = 1700000000000000000,
                             .comm_key = 0xc0ffee,
                             .comm_label = "dp",
                             .comm_name = "communicator dp (8 ranks)",
                             .comm_place = "train.py:91 main",
                             .comm_size = 8,
                             .seq = 17,
                             .field = "count",
                             .sides = 2,
                             .step = 12,
                             .microbatch = 1,
                             .layer = 3,
                             .phase = ROLL_PHASE_BACKWARD,
                             .remedy = ROLL_REMEDY_FILL,
                             .text = "Rank 3 reduces too little."};
    roll_rankset_add(&v.culprits, 3);
    roll_rankset_add_range(&v.waiting, 0, 2);
    roll_rankset_add(&v.side[0].ranks, 3);
    roll_rankset_add_range(&v.side[1].ranks, 0, 2);
    v.side[0].rec = all_reduce(512);
    v.side[1].rec = all_reduce(1024);
    v.side[1].source = 1;
    return v;
}

static void release(struct roll_verdict *v)
{
    roll_rankset_fini(&v->culprits);
    roll_rankset_fini(&v->waiting);
    for (size_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        roll_rankset_fini(&v->side[i].ranks);
    }
}

static void define_callsite(roll_symbols_t *symbols, uint64_t stream, uint64_t pc)
{
    struct roll_def def = {.type = ROLL_DEF_CALLSITE, .id = 1, .callsite = {.depth = 1, .pc = {pc}}};
    assert_int_equal(roll_symbols_define(symbols, stream, &def), 0);
}

/* The JSON of a copy; the verdict and the copy are gone when it is read. */
static json_t *to_json(const struct roll_verdict *v, const roll_engine_t *from, roll_symbols_t *symbols,
                       const char *job, uint32_t restart)
{
    struct roll_verdict_copy *copy = roll_verdict_copy_new(v, from, symbols, job, restart);
    assert_non_null(copy);
    json_t *json = roll_verdict_to_json(copy);
    roll_verdict_copy_destroy(&copy);
    assert_null(copy);
    return json;
}

static const char *text(const json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    return value != NULL ? value : "(none)";
}

static long number(const json_t *object, const char *name)
{
    assert_true(json_is_integer(json_object_get(object, name)));
    return (long)json_integer_value(json_object_get(object, name));
}

static void a_full_verdict_has_every_member(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    roll_symbols_t *symbols = roll_symbols_new();
    define_callsite(symbols, 10, 0x1001);
    define_callsite(symbols, 11, 0x2001);
    json_t *json = to_json(&v, engine, symbols, "job-1", 2);
    assert_non_null(json);
    assert_string_equal(text(json, "schema"), "rollcall.verdict/1");
    assert_int_equal(number(json, "number"), 2);
    assert_string_equal(text(json, "code"), "count-mismatch");
    assert_string_equal(text(json, "title"), "different element counts in one collective");
    assert_string_equal(text(json, "family"), "sequence");
    assert_string_equal(text(json, "certainty"), "proven");
    assert_string_equal(text(json, "culprits_text"), "3");
    assert_int_equal(json_array_size(json_object_get(json, "waiting")), 3);
    assert_string_equal(text(json, "waiting_text"), "0-2");
    const json_t *comm = json_object_get(json, "comm");
    assert_string_equal(text(comm, "key"), "0x0000000000c0ffee");
    assert_string_equal(text(comm, "label"), "dp");
    assert_int_equal(number(comm, "size"), 8);
    assert_string_equal(text(comm, "name"), "communicator dp (8 ranks)");
    assert_true(json_is_null(json_object_get(comm, "made")));
    assert_string_equal(text(comm, "made_at"), "train.py:91 main");
    assert_int_equal(number(json, "seq"), 17);
    assert_int_equal(number(json, "time_ns"), 1700000000000000001);
    assert_string_equal(text(json, "field"), "count");
    assert_int_equal(number(json, "step"), 12);
    assert_string_equal(text(json, "step_source"), "job");
    assert_int_equal(number(json, "layer"), 3);
    assert_string_equal(text(json, "phase"), "backward");
    const json_t *side = json_array_get(json_object_get(json, "evidence"), 1);
    assert_string_equal(text(side, "op"), "AllReduce");
    assert_int_equal(number(side, "count"), 1024);
    assert_int_equal(number(side, "bytes"), 4096);
    assert_string_equal(text(side, "dtype"), "float32");
    assert_string_equal(text(side, "redop"), "sum");
    assert_string_equal(text(side, "state"), "entered");
    assert_int_equal(number(side, "group"), 3);
    assert_true(json_is_null(json_object_get(side, "root")));
    assert_int_equal(number(side, "callsite"), 1);
    assert_int_equal(json_array_size(json_object_get(json, "callsites")), 2);
    const json_t *remedy = json_object_get(json, "remedy");
    assert_string_equal(text(remedy, "name"), "fill");
    assert_string_equal(text(remedy, "command"), "rollcall remedy on fill");
    assert_string_equal(text(remedy, "instead"), "rollcall run --policy auto -- COMMAND"); /* the skip is past */
    assert_true(json_is_false(json_object_get(json, "remedied")));
    assert_string_equal(text(json, "job"), "job-1");
    assert_int_equal(number(json, "restart"), 2);
    json_decref(json);
    roll_symbols_destroy(&symbols);
    release(&v);
}

static void call_sites_that_are_alike_are_listed_once(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    roll_symbols_t *symbols = roll_symbols_new();
    define_callsite(symbols, 10, 0x1001);
    define_callsite(symbols, 11, 0x1001);
    json_t *json = to_json(&v, engine, symbols, "j", 0);
    const json_t *sites = json_object_get(json, "callsites");
    assert_int_equal(json_array_size(sites), 1);
    assert_int_equal(json_array_size(json_object_get(json_array_get(sites, 0), "ranks")), 4);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(number(json_array_get(json_object_get(json, "evidence"), i), "callsite"), 0);
    }
    json_decref(json);
    roll_symbols_destroy(&symbols);
    release(&v);
}

static void what_is_unknown_is_null(void **state)
{
    (void)state;
    struct roll_verdict v = {.number = 1,
                             .code = ROLL_VERDICT_RANK_DEAD,
                             .certainty = ROLL_PROVEN,
                             .field = "",
                             .step = ROLL_STEP_NONE,
                             .layer = ROLL_LAYER_NONE,
                             .sides = 1,
                             .text = "gone"};
    json_t *json = to_json(&v, NULL, NULL, "j", 0);
    assert_non_null(json);
    static const char *const nulls[] = {"comm",       "seq",   "event_ns", "field",  "step",
                                        "microbatch", "layer", "phase",    "remedy", "step_source"};
    for (size_t i = 0; i < sizeof(nulls) / sizeof(nulls[0]); i++) {
        assert_true(json_is_null(json_object_get(json, nulls[i])));
    }
    const json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
    static const char *const side_nulls[] = {"op",    "seq",   "count", "dtype",    "redop",  "root",  "peer", "bytes",
                                             "state", "group", "graph", "callsite", "groups", "empty", "step"};
    for (size_t i = 0; i < sizeof(side_nulls) / sizeof(side_nulls[0]); i++) {
        assert_true(json_is_null(json_object_get(side, side_nulls[i])));
    }
    assert_int_equal(json_array_size(json_object_get(json, "culprits")), 0);
    assert_string_equal(text(json, "culprits_text"), "");
    json_decref(json);
    v.step_learned = 1204; /* what nobody told may be learned, and says so; of a microbatch nothing is known */
    json = to_json(&v, NULL, NULL, "j", 0);
    assert_int_equal(number(json, "step"), 1204);
    assert_string_equal(text(json, "step_source"), "learned");
    assert_true(json_is_null(json_object_get(json, "microbatch")));
    json_decref(json);
}

static void a_launch_names_its_graph_and_not_a_hash(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    v.side[0].rec.op = ROLL_OP_GRAPH_LAUNCH;
    v.side[0].rec.count = 0xfedcba9876543210;
    v.side[0].rec.dtype = ROLL_DTYPE_NONE;
    v.side[0].rec.aux = 7;
    v.side[1].rec.flags |= ROLL_FLAG_CAPTURED;
    v.side[1].rec.aux = 9;
    json_t *json = to_json(&v, NULL, NULL, "j", 0);
    const json_t *launch = json_array_get(json_object_get(json, "evidence"), 0);
    const json_t *captured = json_array_get(json_object_get(json, "evidence"), 1);
    assert_true(json_is_null(json_object_get(launch, "count")));
    assert_int_equal(number(launch, "graph"), 7);
    assert_int_equal(number(captured, "graph"), 9);
    assert_int_equal(number(captured, "count"), 1024);
    json_decref(json);
    release(&v);
}

static void a_peer_is_not_a_root(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    v.side[0].rec.op = ROLL_OP_SEND;
    v.side[0].rec.redop = ROLL_RED_NONE;
    v.side[0].rec.peer = 5;
    v.side[1].rec.op = ROLL_OP_BROADCAST;
    v.side[1].rec.peer = 6;
    json_t *json = to_json(&v, NULL, NULL, "j", 0);
    const json_t *evidence = json_object_get(json, "evidence");
    assert_int_equal(number(json_array_get(evidence, 0), "peer"), 5);
    assert_true(json_is_null(json_object_get(json_array_get(evidence, 0), "root")));
    assert_true(json_is_null(json_object_get(json_array_get(evidence, 0), "redop")));
    assert_int_equal(number(json_array_get(evidence, 1), "root"), 6);
    json_decref(json);
    release(&v);
}

/* The record of a compute call has other things in its fields: see docs/RING.md. */
static void a_product_has_groups_and_no_peer(void **state)
{
    (void)state;
    static const struct {
        uint64_t count;
        int32_t peer;
        uint16_t aux;
        int64_t want_count, want_groups, want_empty; /* -1: null */
    } cases[] = {
        {77, 1, 4, 77, 4, 1},  {77, 0, 4, 77, 4, 0},   {0, 4, 4, 0, 4, 4},
        {0, -1, 9, -1, 9, -1}, {77, -1, 9, 77, 9, -1}, {0, -1, 0, -1, -1, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct roll_verdict v = full_verdict();
        v.side[0].rec.op = ROLL_OP_EXT_GROUPED_GEMM;
        v.side[0].rec.redop = ROLL_RED_NONE;
        v.side[0].rec.count = cases[i].count;
        v.side[0].rec.peer = cases[i].peer;
        v.side[0].rec.aux = cases[i].aux;
        json_t *json = to_json(&v, NULL, NULL, "j", 0);
        const json_t *side = json_array_get(json_object_get(json, "evidence"), 0);
        const char *const names[] = {"count", "groups", "empty"};
        const int64_t wanted[] = {cases[i].want_count, cases[i].want_groups, cases[i].want_empty};
        for (size_t k = 0; k < 3; k++) {
            const json_t *value = json_object_get(side, names[k]);
            assert_true(wanted[k] < 0 ? json_is_null(value) : json_integer_value(value) == wanted[k]);
            assert_true(wanted[k] < 0 || json_is_integer(value));
        }
        static const char *const nulls[] = {"peer", "root", "seq", "bytes"};
        for (size_t k = 0; k < sizeof(nulls) / sizeof(nulls[0]); k++) {
            assert_true(json_is_null(json_object_get(side, nulls[k])));
        }
        assert_true(json_is_null(json_object_get(json_array_get(json_object_get(json, "evidence"), 1), "groups")));
        json_decref(json);
        release(&v);
    }
}

static void a_verdict_says_what_it_takes_the_place_of(void **state)
{
    (void)state;
    static const char *const ways[] = {"supersedes", "confirms", "withdraws"};
    for (size_t i = 0; i < 4; i++) {
        struct roll_verdict v = full_verdict();
        uint64_t *const numbers[] = {&v.supersedes, &v.confirms, &v.withdraws};
        if (i < 3) {
            *numbers[i] = 1;
        }
        v.may_be[0] = ROLL_VERDICT_CALL_ADDED;
        v.may_be[1] = ROLL_VERDICT_OP_MISMATCH;
        v.may_bes = i == 3 ? 0 : 2;
        json_t *json = to_json(&v, NULL, NULL, "j", 0);
        for (size_t k = 0; k < 3; k++) {
            const json_t *number = json_object_get(json, ways[k]);
            assert_true(k == i ? json_integer_value(number) == 1 : json_is_null(number));
        }
        const json_t *may_be = json_object_get(json, "may_be");
        assert_int_equal(json_array_size(may_be), v.may_bes);
        if (i < 3) {
            assert_string_equal(json_string_value(json_array_get(may_be, 0)), "call-added");
            assert_string_equal(json_string_value(json_array_get(may_be, 1)), "op-mismatch");
        }
        json_decref(json);
        release(&v);
    }
}

static void text_that_is_no_utf8_does_not_lose_the_verdict(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    memcpy(v.comm_label, "d\xff\xfep", 5);
    v.text = "broken \xc3( text";
    json_t *json = to_json(&v, NULL, NULL, "j\xff", 0);
    assert_non_null(json);
    assert_string_equal(text(json_object_get(json, "comm"), "label"), "d??p");
    assert_string_equal(text(json, "text"), "broken ?( text");
    assert_string_equal(text(json, "job"), "j?");
    char *line = json_dumps(json, JSON_COMPACT);
    assert_non_null(line);
    assert_null(strchr(line, '\n'));
    free(line);
    json_decref(json);
    release(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_verdict_has_every_member),
        cmocka_unit_test(call_sites_that_are_alike_are_listed_once),
        cmocka_unit_test(what_is_unknown_is_null),
        cmocka_unit_test(a_launch_names_its_graph_and_not_a_hash),
        cmocka_unit_test(a_peer_is_not_a_root),
        cmocka_unit_test(a_product_has_groups_and_no_peer),
        cmocka_unit_test(a_verdict_says_what_it_takes_the_place_of),
        cmocka_unit_test(text_that_is_no_utf8_does_not_lose_the_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
