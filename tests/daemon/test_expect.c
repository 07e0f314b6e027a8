/* test_expect.c: what is expected of a job: what repeats in its calls, the file that keeps it, and what has changed. */
#include "daemon/expect/expect.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Parts as text: "ab3(cd)e". */
static const char *parts_of(const char *calls)
{
    static char out[256];
    uint32_t id[128];
    struct roll_expected_part *part;
    size_t parts, n = strlen(calls), used = 0;
    for (size_t i = 0; i < n; i++) {
        id[i] = (uint32_t)calls[i];
    }
    assert_int_equal(roll_repeats_find(id, n, &part, &parts), 0);
    out[0] = '\0';
    for (size_t i = 0; i < parts; i++) {
        const char *form = part[i].times > 1 ? "%u(%.*s)" : "%.0u%.*s";
        used += (size_t)snprintf(out + used, sizeof(out) - used, form, part[i].times > 1 ? part[i].times : 0,
                                 (int)part[i].calls, calls + part[i].first);
    }
    free(part);
    return out;
}

static void what_repeats_is_found(void **state)
{
    (void)state;
    assert_string_equal(parts_of(""), "");
    assert_string_equal(parts_of("a"), "a");
    assert_string_equal(parts_of("aaa"), "3(a)");
    assert_string_equal(parts_of("abcabcabc"), "3(abc)");
    assert_string_equal(parts_of("sabcabcabce"), "s3(abc)e");
    /* The layers of a step are no repetition of their own. */
    assert_string_equal(parts_of("xllllgllllgllllgz"), "x3(llllg)z");
    /* The first step is another one; and the parameters' broadcasts are more calls than the steps. */
    assert_string_equal(parts_of("bbbbbbbbbbbbacdefdefdef"), "12(b)ac3(def)");
    assert_string_equal(parts_of("abcd"), "abcd");
    assert_string_equal(parts_of("abcdeeffgh"), "abcdeeffgh");
    assert_string_equal(parts_of("abab"), "2(ab)");
}

static void a_long_sequence_takes_bounded_time(void **state)
{
    enum { CALLS = 1 << 20 };
    uint32_t *id = calloc(CALLS, sizeof(*id)), seed = 1;
    struct roll_expected_part *part;
    size_t parts;
    (void)state;
    for (size_t i = 0; i < CALLS; i++) {
        id[i] = seed = seed * 1664525u + 1013904223u;
    }
    assert_int_equal(roll_repeats_find(id, CALLS, &part, &parts), 0);
    assert_int_equal(parts, 1);
    free(part);
    free(id);
}

/* A job of `ranks` in groups of `group`, each with a communicator "tp", beside one of all ranks. */
struct shape {
    uint32_t ranks, group, steps;
    uint64_t elements; /* of the sum in each step */
    bool without_split, without_barrier;
    bool varies; /* the sum of each step has one element more */
    bool labels; /* each group has a label of its own, as PyTorch's have, and a name for people */
};

static uint32_t call(struct roll_expect_build *b, enum roll_op op, uint64_t count, int32_t peer)
{
    const struct roll_expected_call c = {
        count, peer, (uint8_t)op, ROLL_DTYPE_FLOAT32, roll_op_has(op, ROLL_TRAIT_REDOP) ? ROLL_RED_SUM : ROLL_RED_NONE,
        false};
    uint32_t id;
    assert_int_equal(roll_expect_call(b, &c, &id), 0);
    return id;
}

static struct roll_expected *build(const struct shape *shape)
{
    struct roll_expect_build b;
    struct roll_expected *x;
    struct roll_expected_member *member = calloc(shape->ranks, sizeof(*member));
    uint32_t made[256], n = 0, world, tp;
    assert_int_equal(roll_expect_begin(&b, shape->ranks), 0);
    b.x->steps = shape->steps;
    made[n++] = call(&b, ROLL_OP_BROADCAST, 7, 0);
    for (uint32_t i = 0; i < shape->steps; i++) {
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, shape->elements + (shape->varies ? i : 0), -1);
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, 1, -1);
    }
    if (!shape->without_barrier) {
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, 2, -1);
    }
    assert_int_equal(roll_expect_sequence(&b, made, n, &world), 0);
    for (n = 0; n < 4 * shape->steps; n++) {
        made[n] = call(&b, n % 4 == 3 ? ROLL_OP_REDUCESCATTER : ROLL_OP_ALLGATHER, 1024, -1);
    }
    assert_int_equal(roll_expect_sequence(&b, made, n, &tp), 0);
    for (uint32_t i = 0; i < shape->ranks; i++) {
        member[i] = (struct roll_expected_member){i, world, 0};
        b.x->device_bytes[i] = 1u << 30;
    }
    const struct roll_expected_comm all = {.label = "world", .role = "dp", .made = "CommInit", .size = shape->ranks};
    assert_int_equal(roll_expect_comm(&b, &all, member), 0);
    for (uint32_t g = 0; !shape->without_split && g < shape->ranks / shape->group; g++) {
        char label[16] = "tp";
        if (shape->labels) {
            snprintf(label, sizeof(label), "%u", g + 17);
        }
        const struct roll_expected_comm comm = {.label = label,
                                                .name = shape->labels ? "mesh_tp" : NULL,
                                                .role = "tp",
                                                .made = "CommSplit",
                                                .size = shape->group};
        for (uint32_t i = 0; i < shape->group; i++) {
            member[i] = (struct roll_expected_member){g * shape->group + i, tp, 0};
        }
        assert_int_equal(roll_expect_comm(&b, &comm, member), 0);
    }
    free(member);
    assert_int_equal(roll_expect_end(&b, &x), 0);
    return x;
}

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/rollcall-expect-%d", (int)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void a_file_holds_what_was_built(void **state)
{
    struct roll_expected *x = build(&(struct shape){.ranks = 8, .group = 2, .steps = 3, .elements = 4096}), *y;
    char why[128];
    (void)state;
    assert_int_equal(roll_expected_write(x, path), 0);
    assert_int_equal(roll_expected_read(path, &y, why, sizeof(why)), 0);
    assert_int_equal(y->ranks, 8);
    assert_int_equal(y->steps, 3);
    assert_true(y->repeats);
    assert_int_equal(y->comms, 5);
    assert_int_equal(y->members, 16);
    assert_int_equal(y->device_bytes[7], 1u << 30);
    for (uint32_t i = 0; i < 8; i++) { /* each rank: the communicator of all, and its pair */
        const struct roll_expected_place *p = &y->place[y->place_first[i]];
        assert_int_equal(y->place_first[i + 1] - y->place_first[i], 2);
        assert_string_equal(y->comm[p[0].comm].label, "world");
        assert_int_equal(p[0].rank, i);
        assert_string_equal(y->comm[p[1].comm].label, "tp");
        assert_int_equal(p[1].rank, i % 2);
        assert_int_equal(y->member[y->comm[p[1].comm].first + i % 2].world, i);
    }
    json_t *difference = roll_expected_differ(x, y);
    assert_int_equal(json_integer_value(json_object_get(difference, "count")), 0);
    json_decref(difference);
    roll_expected_destroy(&x);
    roll_expected_destroy(&y);
}

static void sixteen_thousand_ranks_are_few_bytes(void **state)
{
    (void)state;
    for (int labels = 0; labels < 2; labels++) {
        struct roll_expected *x = build(&(struct shape){
                                 .ranks = 16384, .group = 2, .steps = 10, .elements = 4096, .labels = labels == 1}),
                             *y;
        struct stat st;
        char why[128];
        assert_int_equal(roll_expected_write(x, path), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_in_range(st.st_size, 1000, 300000);
        assert_int_equal(roll_expected_read(path, &y, why, sizeof(why)), 0);
        assert_int_equal(y->members, 2 * 16384);
        assert_string_equal(y->comm[2].label, labels == 1 ? "18" : "tp");
        assert_string_equal(y->comm[2].name, labels == 1 ? "mesh_tp" : "");
        roll_expected_destroy(&x);
        roll_expected_destroy(&y);
    }
}

/* The texts of what differs, one a line. */
static const char *differences(const struct shape *old, const struct shape *now)
{
    static char out[2048];
    struct roll_expected *x = build(old), *y = build(now);
    json_t *difference = roll_expected_differ(x, y), *change;
    size_t i, used = 0;
    out[0] = '\0';
    json_array_foreach(json_object_get(difference, "changes"), i, change)
    {
        used += (size_t)snprintf(out + used, sizeof(out) - used, "%s %s\n",
                                 json_string_value(json_object_get(change, "what")),
                                 json_string_value(json_object_get(change, "text")));
    }
    json_decref(difference);
    roll_expected_destroy(&x);
    roll_expected_destroy(&y);
    return out;
}

static void what_has_changed_is_told(void **state)
{
    const struct shape old = {.ranks = 8, .group = 2, .steps = 3, .elements = 1024};
    struct shape now = old;
    (void)state;
    now.steps = 10; /* more steps of the same kind are no difference */
    assert_string_equal(differences(&old, &now), "");
    now.elements = 2048;
    assert_string_equal(differences(&old, &now), "calls world: AllReduce: 2 calls, 8.0 KiB each time round (before 2, "
                                                 "4.0 KiB); ranks 0-7\n");
    now = old;
    now.without_barrier = true;
    assert_string_equal(differences(&old, &now),
                        "calls world: AllReduce: 0 calls, 0 B once (before 1, 8 B); ranks 0-7\n");
    struct shape plain = now;
    now.varies = true; /* no count is kept, so there are no bytes to tell */
    assert_string_equal(differences(&plain, &now),
                        "calls world: AllReduce: 1 calls, of varying size each time round (before 2, 4.0 KiB); "
                        "ranks 0-7\n");
    now = old;
    now.without_split = true;
    assert_string_equal(differences(&old, &now), "communicator-gone tp: 4 communicators of 2 ranks: gone; ranks 0-7\n");
    assert_string_equal(differences(&now, &old), "communicator-new tp: 4 communicators of 2 ranks: new; ranks 0-7\n");
    now = old;
    now.group = 4;
    assert_string_equal(differences(&old, &now),
                        "communicator-resized tp: 2 communicators of 4 ranks, before 2; ranks 0-7\n");
    now = old;
    struct shape named = old;
    named.labels = now.labels = true;
    now.without_split = true;
    assert_string_equal(differences(&named, &now),
                        "communicator-gone mesh_tp: 4 communicators of 2 ranks: gone; ranks 0-7\n");
    now = old;
    now.ranks = 6;
    assert_non_null(strstr(differences(&old, &now), "ranks 6 ranks (before 8)\n"));
}

/* Amounts that follow the data differ from step to step. */
static void a_count_that_varies_has_none(void **state)
{
    struct roll_expect_build b;
    uint32_t made[6], sequence;
    (void)state;
    assert_int_equal(roll_expect_begin(&b, 2), 0);
    for (uint32_t i = 0; i < 6; i++) {
        made[i] = i % 2 == 0 ? call(&b, ROLL_OP_ALLGATHER, 5 + i, -1) : call(&b, ROLL_OP_ALLREDUCE, 9, -1);
    }
    assert_int_equal(roll_expect_sequence(&b, made, 6, &sequence), 0);
    const struct roll_expected_part *part = &b.x->part[b.x->sequence[sequence].first];
    assert_int_equal(part->times, 3);
    assert_true(b.x->call[b.x->item[part->first]].count == ROLL_EXPECTED_ANY);
    assert_int_equal(b.x->call[b.x->item[part->first + 1]].count, 9);
    roll_expect_drop(&b);
}

/* What a rank of a job does on one communicator, as text: w a warm-up call, b a parameter that is sent round, m a
 * micro-step, s the rest of a step, e an evaluation, c a checkpoint. */
struct course {
    uint32_t steps, every, micro, broadcasts; /* evaluates behind each `every`-th step; 0: never */
    bool warm_up, first_differs, checkpoint;
    uint64_t elements;
};

static struct roll_expected *course(const struct course *c)
{
    struct roll_expect_build b;
    struct roll_expected *x;
    uint32_t made[1024], n = 0, sequence;
    assert_int_equal(roll_expect_begin(&b, 1), 0);
    for (uint32_t i = 0; i < c->broadcasts; i++) {
        made[n++] = call(&b, ROLL_OP_BROADCAST, 100 + 7 * (i % 11), 0); /* neighbours may be alike */
    }
    for (uint32_t i = 0; c->warm_up && i < 3; i++) {
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, 1, -1);
    }
    for (uint32_t i = 1; i <= c->steps; i++) {
        for (uint32_t k = 0; k < c->micro; k++) {
            made[n++] = call(&b, ROLL_OP_ALLGATHER, 512, -1);
            made[n++] = call(&b, ROLL_OP_REDUCESCATTER, 512, -1);
        }
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, c->elements, -1);
        if (c->first_differs && i == 1) {
            made[n++] = call(&b, ROLL_OP_ALLREDUCE, 77, -1);
        }
        if (c->every > 0 && i % c->every == 0) {
            made[n++] = call(&b, ROLL_OP_ALLREDUCE, 2, -1);
            made[n++] = call(&b, ROLL_OP_ALLREDUCE, 3, -1);
        }
    }
    for (uint32_t i = 0; c->checkpoint && i < 4; i++) {
        made[n++] = call(&b, ROLL_OP_ALLGATHER, 64 + i, -1);
    }
    assert_int_equal(roll_expect_sequence(&b, made, n, &sequence), 0);
    const struct roll_expected_comm comm = {.label = "dp", .role = "dp", .made = "CommInit", .size = 1};
    const struct roll_expected_member member = {0, sequence, 0};
    assert_int_equal(roll_expect_comm(&b, &comm, &member), 0);
    assert_int_equal(roll_expect_end(&b, &x), 0);
    return x;
}

static size_t changes(const struct course *old, const struct course *now)
{
    struct roll_expected *x = course(old), *y = course(now);
    json_t *difference = roll_expected_differ(x, y);
    size_t count = (size_t)json_integer_value(json_object_get(difference, "count"));
    json_decref(difference);
    roll_expected_destroy(&x);
    roll_expected_destroy(&y);
    return count;
}

static const struct course courses[] = {
    {.every = 0, .elements = 1000},
    {.every = 2, .elements = 1000},
    {.every = 3, .elements = 1000},
    {.every = 2, .elements = 1000, .broadcasts = 20},
    {.every = 3, .elements = 1000, .broadcasts = 20, .checkpoint = true},
    {.every = 2, .elements = 1000, .warm_up = true, .checkpoint = true},
    {.every = 3, .elements = 1000, .warm_up = true, .first_differs = true, .broadcasts = 40},
    {.every = 0, .elements = 1000, .micro = 4, .warm_up = true, .checkpoint = true},
    {.every = 2, .elements = 1000, .micro = 4, .checkpoint = true, .broadcasts = 12},
    {.every = 3, .elements = 1000, .micro = 4, .first_differs = true, .checkpoint = true},
    {.every = 5, .elements = 1000, .micro = 1, .broadcasts = 30, .checkpoint = true},
};

static void another_number_of_steps_is_no_difference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(courses) / sizeof(courses[0]); i++) {
        struct course old = courses[i], now = courses[i];
        uint32_t least = (old.every > 1 ? 2 * old.every : 3) + old.first_differs;
        for (old.steps = least; old.steps < least + 8; old.steps++) {
            for (now.steps = least; now.steps < least + 8; now.steps++) {
                if (changes(&old, &now) != 0) {
                    fail_msg("case %zu: %u steps, then %u", i, old.steps, now.steps);
                }
            }
        }
    }
}

static void another_job_differs_whatever_its_number_of_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(courses) / sizeof(courses[0]); i++) {
        struct course old = courses[i];
        uint32_t least = (old.every > 1 ? 2 * old.every : 3) + old.first_differs;
        old.steps = least;
        for (uint32_t steps = least; steps < least + 8; steps++) {
            struct course now[6];
            for (size_t k = 0; k < 6; k++) {
                now[k] = courses[i];
                now[k].steps = steps;
            }
            now[0].elements++;
            now[1].micro++;
            now[2].checkpoint = !now[2].checkpoint;
            now[3].warm_up = !now[3].warm_up;
            now[4].every = now[4].every == 0 ? 2 : now[4].every == 2 ? 3 : 2;
            now[5].every = now[5].every == 0 ? 3 : 0;
            for (size_t k = 0; k < 6; k++) {
                if (changes(&old, &now[k]) == 0) {
                    fail_msg("case %zu: %u steps, then %u of job %zu", i, old.steps, steps, k);
                }
            }
        }
    }
}

/* The parameters that are sent round in the beginning are no steps, and keep their sizes. */
static void the_beginning_does_not_loosen_the_rest(void **state)
{
    const struct course c = {.steps = 3, .elements = 1000, .broadcasts = 60};
    (void)state;
    struct roll_expected *x = course(&c);
    for (uint32_t i = 0; i < x->calls; i++) {
        assert_true(x->call[i].count != ROLL_EXPECTED_ANY);
    }
    assert_true(x->repeats);
    roll_expected_destroy(&x);
}

/* Where the amounts do follow the data, they alone have no count. */
static void a_beginning_keeps_its_sizes_where_steps_vary(void **state)
{
    struct roll_expect_build b;
    uint32_t made[64], n = 0, sequence, loose = 0;
    (void)state;
    assert_int_equal(roll_expect_begin(&b, 2), 0);
    for (uint32_t i = 0; i < 20; i++) {
        made[n++] = call(&b, ROLL_OP_BROADCAST, 100 + 7 * (i % 11), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        made[n++] = call(&b, ROLL_OP_ALLGATHER, 5 + i, -1);
        made[n++] = call(&b, ROLL_OP_ALLREDUCE, 9, -1);
    }
    assert_int_equal(roll_expect_sequence(&b, made, n, &sequence), 0);
    assert_int_equal(b.x->sequence[sequence].parts, 2);
    const struct roll_expected_part *part = &b.x->part[b.x->sequence[sequence].first];
    assert_true(part[0].calls == 20 && part[0].times == 1 && part[1].calls == 2 && part[1].times == 4);
    for (uint32_t i = 0; i < b.x->items; i++) {
        loose += b.x->call[b.x->item[i]].count == ROLL_EXPECTED_ANY;
    }
    assert_int_equal(loose, 1);
    roll_expect_drop(&b);
}

/* A sequence of very many parts, each of which repeats, as only a file that nobody rehearsed has. */
static struct roll_expected *many_parts(uint64_t last)
{
    enum { PARTS = 300000 };
    struct roll_expect_build b;
    struct roll_expected *x;
    uint32_t *made = calloc(PARTS, sizeof(*made)), sequence;
    struct roll_expected_part *part = calloc(PARTS, sizeof(*part));
    assert_non_null(made);
    assert_non_null(part);
    assert_int_equal(roll_expect_begin(&b, 1), 0);
    for (uint32_t i = 0; i < PARTS; i++) {
        made[i] = call(&b, ROLL_OP_ALLREDUCE, i + 1 == PARTS ? last : 1 + i % 2, -1);
        part[i] = (struct roll_expected_part){i, 1, 2};
    }
    assert_int_equal(roll_expect_parts(&b, made, part, PARTS, &sequence), 0);
    const struct roll_expected_comm comm = {.label = "dp", .role = "dp", .made = "CommInit", .size = 1};
    const struct roll_expected_member member = {0, sequence, 0};
    assert_int_equal(roll_expect_comm(&b, &comm, &member), 0);
    assert_int_equal(roll_expect_end(&b, &x), 0);
    free(made);
    free(part);
    return x;
}

static void very_many_parts_are_compared_without_a_deep_stack(void **state)
{
    (void)state;
    struct roll_expected *x = many_parts(7), *y = many_parts(8);
    json_t *difference = roll_expected_differ(x, y);
    assert_true(json_integer_value(json_object_get(difference, "count")) > 0);
    json_decref(difference);
    roll_expected_destroy(&x);
    roll_expected_destroy(&y);
}

static void bad_files_are_refused_with_a_reason(void **state)
{
#define HEAD "{\"schema\":\"rollcall.expected/1\",\"ranks\":2,\"steps\":0,"
#define CALL "\"calls\":[{\"op\":\"AllReduce\",\"count\":1}],"
    static const char *const bad[][2] = {
        {"", "no JSON"},
        {"[]", "no file of"},
        {"{\"schema\":\"rollcall.expected/2\"}", "another version"},
        {"{\"schema\":\"rollcall.expected/1\",\"ranks\":0}", "\"ranks\""},
        {"{\"schema\":\"rollcall.expected/1\",\"ranks\":99999999}", "\"ranks\""},
        {HEAD "\"calls\":[{\"op\":\"Sing\"}]}", "\"calls\""},
        {HEAD "\"calls\":[{\"op\":\"AllReduce\",\"count\":-1}]}", "\"calls\""},
        {HEAD CALL "\"sequences\":[[[1,[1]]]]}", "\"sequences\""},
        {HEAD CALL "\"sequences\":[[[0,[0]]]]}", "\"sequences\""},
        {HEAD CALL "\"sequences\":[[[1,[]]]]}", "\"sequences\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]]}", "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":3}]}", "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0\",0,0]]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0-1\",0,0],[\"1\",0,0]]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0-1\",0,0]],"
                   "\"members\":[[\"x\",\"0-2\"]]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0-1\",0,0]],"
                   "\"members\":[[\"x\",[0,7]]]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0-1\",0,0]],"
                   "\"members\":[\"0-1\"]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,\"does\":[[\"0-1\",0,0]]}]}",
         "\"communicators\""},
        {HEAD CALL "\"sequences\":[],\"communicators\":[],\"memory\":[[\"0-1\",1],[\"1\",1]]}", "\"memory\""},
    };
    char why[256];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct roll_expected *x;
        int err = roll_expected_parse(bad[i][0], strlen(bad[i][0]), &x, why, sizeof(why));
        assert_int_not_equal(err, 0);
        assert_null(x);
        if (strstr(why, bad[i][1]) == NULL) {
            fail_msg("%s: %s", bad[i][0], why);
        }
    }
    struct roll_expected *x;
    assert_int_equal(roll_expected_read("/nonexistent", &x, why, sizeof(why)), ROLL_E_NOTFOUND);
    assert_string_equal(why, ": there is no such file");
}

static bool no_memory;

/* In place of libc's, for what keeps texts. */
char *strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *out = no_memory ? NULL : malloc(bytes);
    return out != NULL ? memcpy(out, text, bytes) : NULL;
}

static void short_memory_is_no_damage(void **state)
{
    static const char text[] = HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":2,"
                                         "\"does\":[[\"0-1\",0,0]],\"members\":[[\"x\",\"0-1\"]]}]}";
    struct roll_expected *x;
    char why[256];
    (void)state;
    no_memory = true;
    int err = roll_expected_parse(text, sizeof(text) - 1, &x, why, sizeof(why));
    no_memory = false;
    assert_int_equal(err, ROLL_E_NOMEM);
    assert_string_equal(why, ": not enough memory for it");
    assert_int_equal(roll_expected_parse(text, sizeof(text) - 1, &x, why, sizeof(why)), 0);
    roll_expected_destroy(&x);
}

/* What a kind says of itself is copied for each of its communicators: a file of a few megabytes must not take the
 * memory of the machine. */
static void a_small_file_takes_little_memory(void **state)
{
    enum { NAME = 4 << 20, COMMS = 100 };
    (void)state;
    char *text = malloc(NAME + 4096);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "%s",
                                  HEAD CALL "\"sequences\":[[[1,[0]]]],\"communicators\":[{\"size\":1,"
                                            "\"does\":[[\"0\",0,0]],\"role\":\"");
    memset(&text[used], 'x', NAME);
    used += NAME;
    used += (size_t)sprintf(&text[used], "\",\"members\":[");
    for (int i = 0; i < COMMS; i++) {
        used += (size_t)sprintf(&text[used], "%s[\"\",\"0\"]", i > 0 ? "," : "");
    }
    used += (size_t)sprintf(&text[used], "]}]}");
    struct roll_expected *x;
    char why[256];
    assert_int_not_equal(roll_expected_parse(text, used, &x, why, sizeof(why)), 0);
    assert_null(x);
    assert_non_null(strstr(why, "\"communicators\""));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_repeats_is_found),
        cmocka_unit_test(a_long_sequence_takes_bounded_time),
        cmocka_unit_test_setup_teardown(a_file_holds_what_was_built, make_path, remove_path),
        cmocka_unit_test_setup_teardown(sixteen_thousand_ranks_are_few_bytes, make_path, remove_path),
        cmocka_unit_test(what_has_changed_is_told),
        cmocka_unit_test(a_count_that_varies_has_none),
        cmocka_unit_test(another_number_of_steps_is_no_difference),
        cmocka_unit_test(another_job_differs_whatever_its_number_of_steps),
        cmocka_unit_test(the_beginning_does_not_loosen_the_rest),
        cmocka_unit_test(a_beginning_keeps_its_sizes_where_steps_vary),
        cmocka_unit_test(very_many_parts_are_compared_without_a_deep_stack),
        cmocka_unit_test(bad_files_are_refused_with_a_reason),
        cmocka_unit_test(short_memory_is_no_damage),
        cmocka_unit_test(a_small_file_takes_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
