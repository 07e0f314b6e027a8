/*
 * test_verdict_copy.c: copies of verdicts: every value and everything pointed to survives what it was copied from, a
 * copy that was shown holds no JSON, lists know what still stands, and no failed allocation leaves half a copy.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_brief.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/err.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* Stands for the engine: source n has the ring with epoch n + 10. */
bool roll_engine_source(const roll_engine_t *engine, uint32_t i, struct roll_view_source *out)
{
    (void)engine;
    *out = (struct roll_view_source){.info = {.stream = i + 10}};
    return i < 4;
}

static const roll_engine_t *const engine = (const roll_engine_t *)(uintptr_t)64; /* never looked into */

/* allocations that fail */

static unsigned allocations, failing; /* the allocation with this number fails; 0 = none */

static bool fails(void)
{
    return ++allocations == failing;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

/* a verdict */

/* Each value is another one, so that two that are mixed up show. What it points to is on the heap. */
static struct roll_verdict full_verdict(void)
{
    struct roll_verdict v = {.number = 2,
                             .code = ROLL_VERDICT_COUNT_MISMATCH,
                             .certainty = ROLL_PROVEN,
                             .time_ns = 1700000000000000001,
                             .event_ns = 1700000000000000000,
                             .comm_key = 0xc0ffee,
                             .comm_label = "dp",
                             .comm_name = "communicator \"dp\" of ranks 0-3",
                             .comm_made = "split from world",
                             .comm_place = "train.py:91 main",
                             .comm_made_source = 3,
                             .comm_made_callsite = 1,
                             .comm_size = 8,
                             .seq = 17,
                             .field = strdup("count"),
                             .sides = 2,
                             .step = 12,
                             .microbatch = 1,
                             .layer = 3,
                             .phase = ROLL_PHASE_BACKWARD,
                             .remedy = ROLL_REMEDY_FILL,
                             .remedied = true,
                             .text = strdup("Rank 3 reduces too little."),
                             .supersedes = 21,
                             .confirms = 22,
                             .withdraws = 23,
                             .may_be = {ROLL_VERDICT_CALL_ADDED, ROLL_VERDICT_OP_MISMATCH},
                             .may_bes = 2};
    roll_rankset_add(&v.culprits, 3);
    roll_rankset_add_range(&v.waiting, 0, 2);
    roll_rankset_add_range(&v.layers, 3, 5);
    for (uint32_t i = 0; i < 2; i++) {
        roll_rankset_add(&v.side[i].ranks, 3 * (1 - i));
        v.side[i].source = i;
        v.side[i].rec = (struct roll_record){.seal = roll_seal(4 + i, ROLL_STATE_ENTERED),
                                             .enter_ns = 555 + i,
                                             .count = 512 + i,
                                             .seq = 17,
                                             .peer = ROLL_PEER_NONE,
                                             .callsite = 1,
                                             .op = ROLL_OP_ALLREDUCE,
                                             .dtype = ROLL_DTYPE_FLOAT32};
    }
    return v;
}

/* As the engine does with what it lent: nothing of it is left. */
static void release(struct roll_verdict *v)
{
    roll_rankset_fini(&v->culprits);
    roll_rankset_fini(&v->waiting);
    roll_rankset_fini(&v->layers);
    for (size_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        roll_rankset_fini(&v->side[i].ranks);
    }
    free((void *)(uintptr_t)v->field);
    free((void *)(uintptr_t)v->text);
    memset(v, 0xa5, sizeof(*v));
}

static roll_symbols_t *call_sites(void)
{
    static const uint64_t pc[] = {0x1001, 0x2001, 0x3001, 0x2001}; /* by source: 1 and 3 share theirs */
    roll_symbols_t *symbols = roll_symbols_new();
    for (uint64_t i = 0; i < 4; i++) {
        struct roll_def def = {.type = ROLL_DEF_CALLSITE, .id = 1, .callsite = {.depth = 1, .pc = {pc[i]}}};
        assert_int_equal(roll_symbols_define(symbols, 10 + i, &def), 0);
    }
    return symbols;
}

static bool is_set(const struct roll_rankset *set, const char *text)
{
    char folded[64];
    roll_rankset_format(set, folded, sizeof(folded));
    return strcmp(folded, text) == 0;
}

/* tests */

static void everything_survives_what_it_was_copied_from(void **state)
{
    (void)state;
    struct roll_verdict lent = full_verdict(), twin = full_verdict();
    roll_symbols_t *symbols = call_sites();
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&lent, engine, symbols, "job-1", 7);
    release(&lent);
    roll_symbols_destroy(&symbols);
    assert_non_null(copy);
    assert_string_equal(copy->job, "job-1");
    assert_int_equal(copy->restart, 7);
    assert_string_equal(copy->said.text, twin.text);
    assert_string_equal(copy->said.field, twin.field);
    assert_true(roll_rankset_equal(&copy->said.culprits, &twin.culprits));
    assert_true(roll_rankset_equal(&copy->said.waiting, &twin.waiting));
    assert_true(roll_rankset_equal(&copy->said.layers, &twin.layers));
    for (size_t i = 0; i < 2; i++) {
        assert_true(roll_rankset_equal(&copy->said.side[i].ranks, &twin.side[i].ranks));
    }
    /* All the rest is values: with the pointers taken out, both are the same bytes. */
    struct roll_verdict mine = copy->said, other = twin;
    struct roll_verdict *const both[] = {&mine, &other};
    for (size_t i = 0; i < 2; i++) {
        both[i]->text = both[i]->field = NULL;
        both[i]->culprits = both[i]->waiting = both[i]->layers = (struct roll_rankset){0};
        for (size_t k = 0; k < ROLL_VERDICT_SIDES; k++) {
            both[i]->side[k].ranks = (struct roll_rankset){0};
        }
    }
    assert_memory_equal(&mine, &other, sizeof(mine));
    assert_int_equal(copy->sites, 2);
    assert_int_equal(copy->side_site[0], 0);
    assert_int_equal(copy->side_site[1], 1);
    assert_int_equal(copy->comm_site, 1); /* made where the second side called */
    assert_int_equal(copy->site[1].frames, 1);
    assert_int_equal(copy->site[1].frame[0].offset, 0x2000); /* the call lies before the address it returns to */
    assert_string_equal(copy->site[1].frame[0].function, "");
    release(&twin);
    roll_verdict_copy_destroy(&copy);
    assert_null(copy);
    roll_verdict_copy_destroy(&copy);
}

static void what_is_not_known_stays_so(void **state)
{
    (void)state;
    struct roll_verdict v = {.number = 1,
                             .code = ROLL_VERDICT_RANK_DEAD,
                             .sides = ROLL_VERDICT_SIDES + 3,
                             .may_bes = ROLL_VERDICT_MAYBE + 3};
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, NULL, 0);
    assert_non_null(copy);
    assert_string_equal(copy->said.text, "");
    assert_string_equal(copy->said.field, "");
    assert_string_equal(copy->job, "");
    assert_int_equal(copy->said.sides, ROLL_VERDICT_SIDES);
    assert_int_equal(copy->said.may_bes, ROLL_VERDICT_MAYBE);
    assert_true(is_set(&copy->said.culprits, ""));
    assert_int_equal(copy->sites, 0);
    for (size_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        assert_int_equal(copy->side_site[i], -1);
    }
    assert_int_equal(copy->comm_site, -1);
    json_t *json = roll_verdict_to_json(copy);
    assert_non_null(json);
    json_decref(json);
    roll_verdict_copy_destroy(&copy);
}

static void text_of_others_is_cleaned_once(void **state)
{
    (void)state;
    struct roll_verdict v = {.number = 1, .text = "broken \xc3( text"};
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, "j", 0);
    assert_non_null(copy);
    assert_string_equal(copy->said.text, "broken ?( text");
    json_t *json = roll_verdict_to_json(copy);
    assert_string_equal(json_string_value(json_object_get(json, "text")), copy->said.text);
    json_decref(json);
    roll_verdict_copy_destroy(&copy);
}

static void json_is_made_anew_and_shows_what_was_attached(void **state)
{
    (void)state;
    struct roll_verdict v = full_verdict();
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, "j", 0);
    release(&v);
    assert_non_null(copy);
    copy->said.time_ns = 99; /* as a feed does that knows the wall clock */
    json_t *plain = roll_verdict_to_json(copy);
    assert_int_equal(json_integer_value(json_object_get(plain, "time_ns")), 99);
    assert_null(json_object_get(plain, "stacks"));
    assert_int_equal(roll_verdict_attach(copy, "stacks", json_pack("[i]", 3)), 0);
    assert_int_equal(roll_verdict_attach(copy, "none", NULL), ROLL_E_NOMEM);
    json_t *json = roll_verdict_to_json(copy);
    char *text = roll_verdict_to_text(copy), *same = json_dumps(json, JSON_COMPACT);
    assert_string_equal(text, same);
    const char *key, *last = "";
    json_t *value;
    json_object_foreach(json, key, value)
    {
        last = key;
    }
    assert_string_equal(last, "stacks");
    assert_int_equal(json_object_del(json, "stacks"), 0);
    assert_true(json_equal(json, plain));
    roll_verdict_copy_destroy(&copy);
    assert_int_equal(json_integer_value(json_object_get(json, "number")), 2); /* JSON outlives the copy */
    json_decref(json);
    json_decref(plain);
    free(text);
    free(same);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t
__sanitizer_get_current_allocated_bytes(void); /* the header that declares it does not come with every compiler */
#endif

/* Bytes that are allocated at this moment, whoever has them. */
static size_t held_bytes(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return __sanitizer_get_current_allocated_bytes();
#else
    return mallinfo2().uordblks;
#endif
}

/* The root keeps every verdict of a run. What it keeps of one about 16,384 ranks is small, also when its JSON, which is
 * about as large as a megabyte, has been made, written and sent. */
static void a_verdict_that_was_shown_holds_little(void **state)
{
    (void)state;
    enum { RANKS = 16384, VERDICTS = 32 };
    struct roll_verdict v = {.number = 1, .code = ROLL_VERDICT_COUNT_MISMATCH, .sides = 2, .text = strdup("text")};
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(roll_rankset_add(i == 7 ? &v.side[0].ranks : &v.side[1].ranks, i), 0);
        assert_int_equal(roll_rankset_add(i == 7 ? &v.culprits : &v.waiting, i), 0);
    }
    struct roll_verdict_copy *copy[VERDICTS];
    size_t shown = 0, before = held_bytes();
    for (size_t i = 0; i < VERDICTS; i++) {
        copy[i] = roll_verdict_copy_new(&v, NULL, NULL, "j", 0);
        assert_non_null(copy[i]);
        char *text = roll_verdict_to_text(copy[i]);
        assert_non_null(text);
        shown += strlen(text);
        free(text);
    }
    size_t each = (held_bytes() - before) / VERDICTS;
    assert_true(shown / VERDICTS > 2 * RANKS * 5);
    if (each > 16384) {
        fail_msg("a verdict that was shown holds %zu bytes", each);
    }
    for (size_t i = 0; i < VERDICTS; i++) {
        roll_verdict_copy_destroy(&copy[i]);
    }
    release(&v);
}

static struct roll_verdict_copy *small(uint64_t number, enum roll_certainty certainty, const char *job)
{
    struct roll_verdict v = {.number = number, .code = ROLL_VERDICT_RANK_BUSY, .certainty = certainty};
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, job, 0);
    assert_non_null(copy);
    return copy;
}

static void a_list_knows_what_still_stands(void **state)
{
    (void)state;
    struct roll_verdict_list list = {.at = NULL};
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(roll_verdict_list_add(&list, small(i, i == 3 ? ROLL_NOTE : ROLL_SUSPECTED, "j")), 0);
    }
    struct roll_verdict_copy *other = small(4, ROLL_NOTE, "k");
    other->said.withdraws = 1; /* of another job: nothing to this one */
    assert_int_equal(roll_verdict_list_add(&list, other), 0);
    other = small(4, ROLL_NOTE, "j");
    other->restart = 1; /* of another restart: likewise */
    other->said.withdraws = 1;
    assert_int_equal(roll_verdict_list_add(&list, other), 0);
    assert_true(roll_verdict_stands(list.at[0]) && roll_verdict_stands(list.at[1]));
    assert_false(roll_verdict_stands(list.at[2]));
    for (uint64_t i = 1; i <= 3; i++) {
        other = small(4 + i, i == 2 ? ROLL_PROVEN : ROLL_NOTE, "j");
        *(i == 1 ? &other->said.withdraws : i == 2 ? &other->said.confirms : &other->said.supersedes) = i;
        assert_int_equal(roll_verdict_retires(&other->said), i);
        assert_int_equal(roll_verdict_list_add(&list, other), 0);
    }
    assert_ptr_equal(roll_verdict_list_ended_by(&list, list.at[0]), list.at[5]);
    assert_ptr_equal(roll_verdict_list_ended_by(&list, list.at[1]), list.at[6]);
    assert_null(roll_verdict_list_ended_by(&list, list.at[2])); /* a note is no finding: there is nothing to end */
    assert_false(roll_verdict_stands(list.at[0]) || roll_verdict_stands(list.at[1]));
    assert_true(roll_verdict_stands(list.at[6]));
    static const char *const become[] = {"withdrawn", "confirmed", NULL}; /* and what the page is told of it */
    json_t *briefs = roll_verdict_briefs_json(&list, 100);
    for (size_t i = 0; i < 3; i++) {
        const json_t *brief = json_array_get(json_object_get(briefs, "findings"), list.used - 1 - i);
        const char *told = json_string_value(json_object_get(brief, "ended_how"));
        assert_int_equal(json_integer_value(json_object_get(brief, "number")), i + 1);
        assert_true((list.at[i]->ended_how != NULL) == (become[i] != NULL) && (told != NULL) == (become[i] != NULL));
        if (become[i] != NULL) {
            assert_string_equal(list.at[i]->ended_how, become[i]);
            assert_string_equal(told, become[i]);
        }
    }
    json_decref(briefs);
    roll_verdict_list_fini(&list);
    assert_int_equal(list.used, 0);
}

/* Each allocation of a copy and of a list fails in turn: all or nothing, and nothing is left behind (ASan). */
static void no_allocation_that_fails_leaves_half_a_copy(void **state)
{
    (void)state;
    roll_symbols_t *symbols = call_sites();
    struct roll_verdict v = full_verdict();
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, engine, symbols, "j", 0); /* symbols are warm now */
    roll_verdict_copy_destroy(&copy);
    unsigned tries = 0;
    for (; copy == NULL; tries++) {
        allocations = 0;
        failing = tries + 1;
        copy = roll_verdict_copy_new(&v, engine, symbols, "j", 0);
        failing = 0;
    }
    assert_true(tries > 9); /* the copy, its texts, five sets of ranks, two call sites */
    struct roll_verdict_list list = {.at = NULL};
    allocations = 0;
    failing = 1;
    assert_int_equal(roll_verdict_list_add(&list, copy), ROLL_E_NOMEM);
    failing = 0;
    assert_int_equal(list.used, 0);
    roll_verdict_list_fini(&list);
    release(&v);
    roll_symbols_destroy(&symbols);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_survives_what_it_was_copied_from),
        cmocka_unit_test(what_is_not_known_stays_so),
        cmocka_unit_test(text_of_others_is_cleaned_once),
        cmocka_unit_test(json_is_made_anew_and_shows_what_was_attached),
        cmocka_unit_test(a_verdict_that_was_shown_holds_little),
        cmocka_unit_test(a_list_knows_what_still_stands),
        cmocka_unit_test(no_allocation_that_fails_leaves_half_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
