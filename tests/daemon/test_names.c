/*
 * test_names.c: what communicators are called, by the engine's words and views, and which of them are one family.
 */
#include "daemon/feed/families.h"
#include "daemon/feed/seen.h"
#include "trace/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* An engine that is fed by hand. Each rank numbers its communicators, call sites and records by itself. */
struct job {
    roll_engine_t *engine;
    uint32_t ranks;
    struct rank {
        uint64_t ticket;
        uint32_t comms, sites;
    } rank[1024];
};

static void begin_with(struct job *job, roll_engine_t *engine, uint32_t ranks)
{
    *job = (struct job){.engine = engine, .ranks = ranks};
    assert_non_null(job->engine);
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t source;
        const struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)ranks};
        assert_int_equal(roll_engine_open(job->engine, &info, &source), 0);
        assert_int_equal(source, r);
    }
}

static void begin(struct job *job, uint32_t ranks)
{
    static const struct roll_engine_config config = {.stall_ns = 0};
    begin_with(job, roll_engine_new(&config), ranks);
}

/* Defines a call site of one line of Python, and returns its id. */
static uint32_t site(struct job *job, uint32_t rank, const char *file, uint32_t line, const char *function,
                     bool library)
{
    uint32_t id = ++job->rank[rank].sites;
    struct roll_def def = {.type = ROLL_DEF_SOURCE, .id = id};
    def.source.path = file;
    def.source.path_bytes = (uint32_t)strlen(file);
    assert_int_equal(roll_engine_define(job->engine, rank, &def), 0);
    def = (struct roll_def){.type = ROLL_DEF_LINE, .id = id};
    def.line.info = (struct roll_def_line){.source = id,
                                           .line = line,
                                           .flags = library ? ROLL_DEF_LINE_LIBRARY : 0,
                                           .function_bytes = (uint32_t)strlen(function)};
    def.line.function = function;
    assert_int_equal(roll_engine_define(job->engine, rank, &def), 0);
    def = (struct roll_def){.type = ROLL_DEF_CALLSITE, .id = id};
    def.callsite.depth = 1;
    def.callsite.lines = 1;
    def.callsite.pc[0] = 0x1000;
    def.callsite.line[0] = (struct roll_callsite_line){.line = id};
    assert_int_equal(roll_engine_define(job->engine, rank, &def), 0);
    return id;
}

struct made {
    uint64_t key;
    const char *label;
    uint32_t first, stride, size; /* its ranks */
    const char *file;             /* of the line that made it; NULL: nobody knows */
    uint32_t line;
    bool library; /* the line is a library's */
};

/* One member makes the communicator; `line` in place of made->line. */
static void join(struct job *job, const struct made *made, uint32_t member, uint32_t line)
{
    uint32_t rank = made->first + member * made->stride, id = ++job->rank[rank].comms;
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = id};
    def.comm.label = made->label;
    def.comm.info = (struct roll_def_comm){.key = made->key,
                                           .rank = (int32_t)member,
                                           .nranks = (int32_t)made->size,
                                           .color = ROLL_COLOR_NONE,
                                           .origin = ROLL_COMM_INIT,
                                           .label_bytes = (uint32_t)strlen(made->label)};
    uint32_t at = made->file ? site(job, rank, made->file, line, "main", made->library) : 0;
    assert_int_equal(roll_engine_define(job->engine, rank, &def), 0);
    struct roll_record rec = {.seal = roll_seal(job->rank[rank].ticket++, ROLL_STATE_RETURNED),
                              .op = ROLL_OP_COMM_INIT,
                              .comm = (uint16_t)id,
                              .callsite = (uint16_t)at,
                              .step = ROLL_STEP_NONE,
                              .layer = ROLL_LAYER_NONE,
                              .peer = ROLL_PEER_NONE};
    assert_int_equal(roll_engine_feed(job->engine, rank, &rec, 1), 0);
}

static void make(struct job *job, const struct made *made)
{
    for (uint32_t m = 0; m < made->size; m++) {
        join(job, made, m, made->line);
    }
}

/* The view of the communicator with this key. */
static struct roll_view_comm view_of(const struct job *job, uint64_t key)
{
    struct roll_view_comm view;
    for (uint32_t i = 0; roll_engine_comm(job->engine, i, &view); i++) {
        if (view.key == key) {
            return view;
        }
    }
    fail_msg("no communicator has the key %llx", (unsigned long long)key);
    return view;
}

/* What the words of a verdict call a communicator: a member leaves an AllReduce unanswered there, and `why` says so. */
static void expect_words(struct job *job, uint64_t key, uint32_t rank, uint32_t id, const char *words)
{
    char text[4096];
    struct roll_record rec = {.seal = roll_seal(job->rank[rank].ticket++, ROLL_STATE_ENTERED),
                              .op = ROLL_OP_ALLREDUCE,
                              .comm = (uint16_t)id,
                              .count = 16,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .step = ROLL_STEP_NONE,
                              .layer = ROLL_LAYER_NONE,
                              .peer = ROLL_PEER_NONE};
    (void)key;
    assert_int_equal(roll_engine_feed(job->engine, rank, &rec, 1), 0);
    assert_true(roll_engine_why(job->engine, rank, text, sizeof(text)) > 0);
    if (strstr(text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, text);
    }
}

static void test_a_name_comes_from_the_label_the_members_and_the_line(void **state)
{
    (void)state;
    static const char hash[] = "3fa94c21aa3fa94c21aa3fa94c21aa3fa94c21aa";
    static const struct {
        struct made made;
        const char *name, *place, *words;
    } rows[] = {
        {{1, "ep", 0, 1, 4, "/x/train.py", 91, false}, "ep", "train.py:91 main", " on communicator ep (4 ranks)"},
        {{1, "0", 0, 1, 8, "/x/train.py", 91, false},
         "default group",
         "train.py:91 main",
         " on the default group (8 ranks)"},
        {{1, "0", 0, 1, 4, "/x/train.py", 91, false},
         "group 0",
         "train.py:91 main",
         " on group 0 of ranks 0-3 (4 ranks)"},
        {{1, "12", 0, 2, 4, NULL, 0, false}, "group 12", "", " on group 12 of every other rank from 0 (4 ranks)"},
        {{1, hash, 0, 1, 4, NULL, 0, false}, "group 3fa94c21", "", " on group 3fa94c21 of ranks 0-3 (4 ranks)"},
        {{1, "", 0, 1, 4, "/x/train.py", 91, false},
         "ranks 0-3",
         "train.py:91 main",
         " on the communicator of ranks 0-3 made at train.py:91 (4 ranks)"},
        {{1, "", 0, 1, 4, "/lib/torch/c10d.py", 91, true},
         "ranks 0-3",
         "",
         " on the communicator of ranks 0-3 (4 ranks)"},
        {{1, "a\x1b[31m\nb", 0, 1, 4, NULL, 0, false}, "a?[31m?b", "", " on communicator a?[31m?b (4 ranks)"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job job;
        begin(&job, 8);
        make(&job, &rows[i].made);
        struct roll_view_comm view = view_of(&job, 1);
        assert_string_equal(view.name, rows[i].name);
        assert_string_equal(view.place, rows[i].place);
        expect_words(&job, 1, 0, 1, rows[i].words);
        roll_engine_destroy(&job.engine);
    }
}

/* Text of any length and kind is cut where a character ends. */
static void test_a_long_name_is_cut_at_a_character(void **state)
{
    (void)state;
    char label[200], file[200];
    memset(label, 'x', 62);
    memcpy(label + 62, "\xc3\xa9\xc3\xa9", 5);
    memset(file, 'f', sizeof(file) - 1);
    file[sizeof(file) - 1] = '\0';
    struct job job;
    begin(&job, 2);
    make(&job, &(struct made){1, label, 0, 1, 2, file, UINT32_MAX, false});
    struct roll_view_comm view = view_of(&job, 1);
    assert_int_equal(strlen(view.name), 62);
    assert_int_equal(strspn(view.place, "f"), ROLL_NAME_BYTES - 1);
    roll_engine_destroy(&job.engine);
}

/* Whoever comes first: the line is that of the lowest rank, and the name the same. That lines differ is said. */
static void test_the_order_of_arrival_names_nothing(void **state)
{
    (void)state;
    const struct made twin[2] = {{1, "", 0, 1, 4, "/x/train.py", 91, false},
                                 {2, "", 0, 1, 4, "/x/train.py", 91, false}};
    for (int order = 0; order < 2; order++) {
        struct job job;
        begin(&job, 4);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t member = order == 0 ? i : 3 - i;
            join(&job, &twin[0], member, 91);
            join(&job, &twin[1], member, member == 3 ? 95 : 91);
        }
        assert_string_equal(view_of(&job, 1).place, "train.py:91 main");
        assert_string_equal(view_of(&job, 2).place, "train.py:91 main and other lines");
        expect_words(&job, 1, 2, 1, " on the 1st communicator of ranks 0-3 made at train.py:91 (4 ranks)");
        expect_words(&job, 2, 1, 2, " on the 2nd communicator of ranks 0-3 made at train.py:91 (4 ranks)");
        roll_engine_destroy(&job.engine);
    }
}

/* Communicators of the same members that different lines made need no number. */
static void test_lines_tell_twins_apart(void **state)
{
    (void)state;
    struct job job;
    begin(&job, 4);
    make(&job, &(struct made){1, "", 0, 1, 4, "/x/train.py", 91, false});
    make(&job, &(struct made){2, "", 0, 1, 4, "/x/train.py", 92, false});
    expect_words(&job, 1, 0, 1, " on the communicator of ranks 0-3 made at train.py:91 (4 ranks)");
    expect_words(&job, 2, 1, 2, " on the communicator of ranks 0-3 made at train.py:92 (4 ranks)");
    roll_engine_destroy(&job.engine);
}

/* A description that the job gives to a group counts for all communicators of its label and size, before and after. */
static void test_what_the_job_calls_a_group(void **state)
{
    (void)state;
    static const struct roll_group_name told[] = {
        {.label = "5", .size = 2, .name = "mesh_dp", .file = "/x/train.py", .function = "main", .line = 17},
        {.label = "6", .size = 2, .name = "mesh_dp"},
        {.label = "7", .size = 2, .name = "undefined"},
        {.label = "8", .size = 4, .name = "default_pg"},
        {.label = "5", .size = 2, .name = "too late", .file = "/x/late.py", .function = "main", .line = 1},
        {.label = "10", .size = 1, .name = "mesh_dp"},
        {.label = "10", .size = 1, .name = "replicas", .is_own = true},
        {.label = "10", .size = 1, .name = "mesh_dp", .file = "/x/train.py", .function = "main", .line = 18},
        {.label = "10", .size = 1, .name = "too late", .is_own = true},
        {.label = "", .size = 2, .name = "no label"},
        {.label = "9", .size = 2, .file = "/x/train.py", .function = "main", .line = 21}, /* made, and named later */
        {.label = "9", .size = 2, .name = "dp", .file = "/x/train.py", .function = "main", .line = 22},
    };
    struct job job;
    begin(&job, 4);
    make(&job, &(struct made){1, "5", 0, 2, 2, "/x/other.py", 3, false});
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        assert_int_equal(roll_engine_group(job.engine, &told[i]), 0);
    }
    make(&job, &(struct made){2, "6", 1, 2, 2, NULL, 0, false});
    make(&job, &(struct made){3, "7", 0, 1, 2, NULL, 0, false});
    make(&job, &(struct made){4, "8", 0, 1, 4, NULL, 0, false});
    make(&job, &(struct made){5, "5", 0, 1, 4, NULL, 0, false}); /* of another size */
    make(&job, &(struct made){6, "9", 0, 1, 2, NULL, 0, false});
    make(&job, &(struct made){7, "10", 3, 1, 1, NULL, 0, false});
    assert_string_equal(view_of(&job, 6).name, "dp");
    assert_string_equal(view_of(&job, 6).place, "train.py:21 main");
    assert_string_equal(view_of(&job, 1).name, "mesh_dp");
    assert_string_equal(view_of(&job, 1).place, "train.py:17 main");
    assert_string_equal(view_of(&job, 2).name, "mesh_dp");
    assert_string_equal(view_of(&job, 7).name, "replicas"); /* the job's own word, whoever is heard first */
    assert_string_equal(view_of(&job, 7).place, "train.py:18 main");
    assert_string_equal(view_of(&job, 3).name, "group 7");
    assert_string_equal(view_of(&job, 4).name, "default group");
    assert_string_equal(view_of(&job, 5).name, "group 5");
    expect_words(&job, 1, 0, 1, " on group mesh_dp of ranks 0,2 (2 ranks)");
    roll_engine_destroy(&job.engine);
}

/* The same from a rank, by a definition, in any order with that of the communicator. */
static void test_a_rank_tells_what_its_group_is_called(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        struct job job;
        struct roll_def def = {.type = ROLL_DEF_NAME, .id = 1};
        def.name.info = (struct roll_def_name){.kind = ROLL_NAME_GROUP,
                                               .size = 2,
                                               .line = 17,
                                               .label_bytes = 2,
                                               .text_bytes = 8,
                                               .file_bytes = 11,
                                               .function_bytes = 4};
        def.name.label = "5\n";
        def.name.text = "mesh\x1b_dp, and more that is not of it";
        def.name.file = "/x/train.py";
        def.name.function = "main";
        begin(&job, 4);
        if (before) {
            assert_int_equal(roll_engine_define(job.engine, 3, &def), 0);
        }
        make(&job, &(struct made){1, "5\n", 0, 2, 2, NULL, 0, false});
        if (!before) {
            assert_int_equal(roll_engine_define(job.engine, 3, &def), 0);
        }
        assert_string_equal(view_of(&job, 1).name, "mesh?_dp");
        assert_string_equal(view_of(&job, 1).place, "train.py:17 main");
        def.name.info = (struct roll_def_name){
            .count = 1, .kind = ROLL_NAME_GROUP, .size = 2, .label_bytes = 2, .text_bytes = 4}; /* its own word */
        def.name.text = "data";
        assert_int_equal(roll_engine_define(job.engine, 0, &def), 0);
        assert_string_equal(view_of(&job, 1).name, "data");
        assert_string_equal(view_of(&job, 1).place, "train.py:17 main");
        roll_engine_destroy(&job.engine);
    }
}

static void expect_family(const struct roll_comm_family *family, const char *name, const char *text, const char *place)
{
    char out[96];
    assert_string_equal(family->name, name);
    assert_string_equal(roll_family_text(family, out, sizeof(out)), text);
    assert_string_equal(family->place, place);
}

static void test_groups_of_one_shape_and_line_are_a_family(void **state)
{
    (void)state;
    struct job job;
    struct roll_comm_families found = {.at = NULL};
    begin(&job, 1024);
    make(&job, &(struct made){1, "0", 0, 1, 1024, "/x/train.py", 10, false});
    for (uint32_t g = 0; g < 128; g++) {
        make(&job, &(struct made){100 + g, "", g * 8, 1, 8, "/x/train.py", 20, false});
    }
    for (uint32_t g = 0; g < 8; g++) {
        make(&job, &(struct made){300 + g, "", g, 8, 128, "/x/train.py", 30, false});
    }
    for (uint32_t g = 0; g < 4; g++) { /* the same shape as those of line 20, made elsewhere, and named */
        make(&job, &(struct made){400 + g, "ep", g * 8, 1, 8, "/x/train.py", 40, false});
    }
    make(&job, &(struct made){500, "", 3, 5, 3, NULL, 0, false});
    for (uint32_t g = 0; g < 6; g++) { /* PyTorch's numbers, and names with a number behind */
        char number[16], name[16];
        snprintf(number, sizeof(number), "%u", 20 + g);
        snprintf(name, sizeof(name), "pp_%u", g);
        make(&job, &(struct made){600 + g, number, g * 4, 1, 4, "/x/train.py", 50, false});
        make(&job, &(struct made){700 + g, name, g, 64, 16, "/x/train.py", 60, false});
    }
    for (uint32_t g = 0; g < 4; g++) { /* the shape of those of line 20, from another line; and one line, two shapes */
        make(&job, &(struct made){800 + g, "", g * 8, 1, 8, "/x/train.py", 70, false});
        make(&job, &(struct made){900 + g, "", g * 16, 2, 8, "/x/train.py", 20, false});
    }
    make(&job, &(struct made){1000, "etp", 0, 1, 8, "/x/train.py", 40, false}); /* another name */
    assert_int_equal(roll_families_find(job.engine, &found), 0);
    assert_int_equal(found.comms, 163);
    assert_int_equal(found.used, 10);
    expect_family(&found.at[0], "default group", "1 group of 1024 neighbours", "train.py:10 main");
    expect_family(&found.at[1], "tp-like", "128 groups of 8 neighbours", "train.py:20 main");
    expect_family(&found.at[2], "dp-like", "8 groups of every 8th rank (128 ranks each)", "train.py:30 main");
    expect_family(&found.at[3], "ep", "4 groups of 8 neighbours", "train.py:40 main");
    expect_family(&found.at[4], "dp-like", "1 group of every 5th rank (3 ranks each)", "");
    expect_family(&found.at[5], "tp-like", "6 groups of 4 neighbours", "train.py:50 main");
    expect_family(&found.at[6], "pp", "6 groups of every 64th rank (16 ranks each)", "train.py:60 main");
    expect_family(&found.at[7], "tp-like", "4 groups of 8 neighbours", "train.py:70 main");
    expect_family(&found.at[8], "dp-like", "4 groups of every 2nd rank (8 ranks each)", "train.py:20 main");
    assert_int_equal(found.of[0], 0);
    assert_int_equal(found.of[128], 1);
    assert_int_equal(found.of[141], 4);
    json_t *json = roll_families_json(&found);
    assert_int_equal(json_array_size(json), 10);
    assert_string_equal(json_string_value(json_object_get(json_array_get(json, 1), "text")),
                        "128 groups of 8 neighbours");
    assert_true(json_is_null(json_object_get(json_array_get(json, 4), "made_at")));
    json_decref(json);
    roll_families_fini(&found);
    roll_engine_destroy(&job.engine);
}

/* A collective of one rank, complete. */
static void reduce(struct job *job, uint32_t rank, uint32_t id, uint32_t seq, uint64_t count, uint32_t step)
{
    struct roll_record rec = {.seal = roll_seal(job->rank[rank].ticket++, ROLL_STATE_RETURNED),
                              .op = ROLL_OP_ALLREDUCE,
                              .comm = (uint16_t)id,
                              .seq = seq,
                              .count = count,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .step = step,
                              .layer = ROLL_LAYER_NONE,
                              .peer = ROLL_PEER_NONE};
    assert_int_equal(roll_engine_feed(job->engine, rank, &rec, 1), 0);
}

static const char *text_in(const json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));
    return text != NULL ? text : "";
}

static void test_what_a_run_did_is_told_by_families(void **state)
{
    (void)state;
    static const struct roll_engine_config config = {.stall_ns = 0};
    struct job job;
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    begin_with(&job, roll_feed_engine(feed), 32);
    make(&job, &(struct made){1, "0", 0, 1, 32, NULL, 0, false});
    for (uint32_t g = 0; g < 4; g++) {
        make(&job, &(struct made){100 + g, "", g * 8, 1, 8, "/x/train.py", 20, false});
    }
    make(&job, &(struct made){200, "unused", 0, 1, 4, NULL, 0, false});
    for (uint32_t step = 10; step < 13; step++) {
        for (uint32_t r = 0; r < 32; r++) {
            reduce(&job, r, 1, step - 10, 100, step);
            reduce(&job, r, 2, 2 * (step - 10), 1, step);
            reduce(&job, r, 2, 2 * (step - 10) + 1, 1, step);
        }
    }
    for (uint32_t r = 0; r < 8; r++) { /* one group of four is further than the others, and another has begun */
        reduce(&job, r, 2, 6, 1, 12);
    }
    reduce(&job, 0, 2, 7, 1, 12);
    struct roll_comm_families found = {.at = NULL};
    assert_int_equal(roll_families_find(job.engine, &found), 0);
    assert_int_equal(found.at[1].done, 6);
    assert_int_equal(found.at[1].ahead, 8);
    roll_families_fini(&found);
    json_t *seen = roll_feed_seen(feed), *groups = json_object_get(seen, "groups");
    assert_int_equal(json_integer_value(json_object_get(seen, "steps")), 3);
    assert_string_equal(text_in(seen, "steps_source"), "job");
    assert_int_equal(json_array_size(groups), 2); /* the one with most bytes first */
    assert_string_equal(text_in(json_array_get(groups, 0), "name"), "default group");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(groups, 0), "groups")), 1);
    const json_t *tp = json_array_get(groups, 1);
    assert_string_equal(text_in(tp, "name"), "tp-like");
    assert_string_equal(text_in(tp, "text"), "4 groups of 8 neighbours");
    assert_string_equal(text_in(tp, "ranks"), "0-31");
    assert_string_equal(text_in(tp, "made_at"), "train.py:20 main");
    assert_true(json_number_value(json_object_get(tp, "calls")) == (6.0 * 32 + 9) / 32);
    assert_true(json_number_value(json_object_get(tp, "calls_per_step")) == (6.0 * 32 + 9) / 32 / 3);
    json_decref(seen);
    roll_feed_destroy(&feed);
}

static void test_what_a_run_did_has_learned_steps(void **state)
{
    (void)state;
    static const struct roll_engine_config config = {.stall_ns = 0};
    struct job job;
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    begin_with(&job, roll_feed_engine(feed), 2);
    make(&job, &(struct made){1, "0", 0, 1, 2, NULL, 0, false});
    for (uint32_t call = 0; call < 3 * 150; call++) {
        for (uint32_t r = 0; r < 2; r++) {
            reduce(&job, r, 1, call, 100 + call % 3, ROLL_STEP_NONE);
        }
    }
    json_t *seen = roll_feed_seen(feed);
    assert_int_equal(json_integer_value(json_object_get(seen, "steps")), 150);
    assert_string_equal(text_in(seen, "steps_source"), "learned");
    assert_null(json_object_get(json_array_get(json_object_get(seen, "groups"), 0), "calls_per_step"));
    json_decref(seen);
    roll_feed_destroy(&feed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_comes_from_the_label_the_members_and_the_line),
        cmocka_unit_test(test_a_long_name_is_cut_at_a_character),
        cmocka_unit_test(test_the_order_of_arrival_names_nothing),
        cmocka_unit_test(test_lines_tell_twins_apart),
        cmocka_unit_test(test_what_the_job_calls_a_group),
        cmocka_unit_test(test_a_rank_tells_what_its_group_is_called),
        cmocka_unit_test(test_groups_of_one_shape_and_line_are_a_family),
        cmocka_unit_test(test_what_a_run_did_is_told_by_families),
        cmocka_unit_test(test_what_a_run_did_has_learned_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
