/*
 * test_excerpt_defs.c: which definitions an excerpt has (daemon/agent/agent_defs.c): of a ring with thousands those
 * that its records name, and the numbers of its other call sites; and that an engine tells the same by them as by all
 * of them, word for word, and compares each call site of a rank with those of another one alike.
 *
 * The rings are real ones, and what is read of them is sent to the test.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_digest.h"
#include "daemon/base/clock.h"
#include "daemon/engine/model/engine_state.h"
#include "daemon/engine/model/source.h"
#include "daemon/feed/feed.h"
#include "daemon/verdict/verdict.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/def.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS   4u
#define MODULES 40u
#define SOURCES 50u
#define LINES   600u
#define SITES   1200u
#define NAMES   200u /* of tensors */
#define CALLS   200u
#define LOOP    8u   /* places from which the calls of a step are made */
#define WRONG   150u /* the call that rank 3 makes otherwise, */
#define ASTRAY  79u  /* at this place, which the others know from long ago */
#define LATER   901u /* a place of which no record of the excerpts is */
#define NEWER   24u  /* a place in the newer module */
#define TYPES   16u
#define FRAMES  512u

struct here {
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring;
    roll_agent_digests_t *digests;
    uint64_t seq, number;
    bool full;     /* no definitions can be sent */
    uint16_t torn; /* a call site that the job wrote over: of it no definition is sent */
    struct {
        uint8_t *raw;
        size_t bytes;
    } frame[FRAMES];
    size_t frames, def_bytes;
    uint32_t sent[TYPES][SITES + 1]; /* definitions, by type and id: how often */
    uint32_t numbers[SITES + 1];     /* call sites of which the numbers were sent, by id */
    bool named[SITES + 1];           /* by records */
};

static char dir[64];
static struct here node[RANKS];
static uint64_t now;

/* definitions */

static uint64_t base_of(uint32_t rank)
{
    return UINT64_C(0x100000000) * (rank + 1);
}

static void define(struct here *n, enum roll_def_type type, uint32_t id, const void *body, size_t bytes,
                   const void *tail, size_t tail_bytes)
{
    assert_int_equal(roll_def_append(&n->rank.ring, type, id, body, bytes, tail, tail_bytes), 0);
}

static void define_text(struct here *n, uint32_t line)
{
    char text[32];
    struct roll_def_text def = {.text_bytes = (uint32_t)snprintf(text, sizeof(text), "dist.call(%u)", line)};
    define(n, ROLL_DEF_TEXT, line, &def, sizeof(def), text, def.text_bytes);
}

static void define_modules(struct here *n, uint32_t rank)
{
    for (uint32_t m = 1; m <= MODULES; m++) {
        char path[32];
        struct roll_def_module def = {.start = base_of(rank) + m * 0x10000,
                                      .end = base_of(rank) + m * 0x10000 + 0x8000,
                                      .bias = base_of(rank) + m * 0x10000,
                                      .build_id_bytes = m % 3 ? 4 : 0,
                                      .build_id = {(uint8_t)m, 1, 2, 3}};
        def.path_bytes = (uint32_t)snprintf(path, sizeof(path), "/none/lib%u.so", m);
        define(n, ROLL_DEF_MODULE, m, &def, sizeof(def), path, def.path_bytes);
    }
}

/* One that came to the place of another one, of whose beginning it lies. */
static void define_newer_module(struct here *n, uint32_t rank)
{
    struct roll_def_module def = {.start = base_of(rank) + 5 * 0x10000,
                                  .end = base_of(rank) + 5 * 0x10000 + 0x1000,
                                  .bias = base_of(rank) + 77,
                                  .build_id_bytes = 4,
                                  .path_bytes = 4};
    define(n, ROLL_DEF_MODULE, MODULES + 1, &def, sizeof(def), "late", 4);
}

static void define_lines(struct here *n)
{
    for (uint32_t i = 1; i <= SOURCES; i++) {
        char path[32];
        struct roll_def_source def = {.path_bytes = (uint32_t)snprintf(path, sizeof(path), "/job/file%u.py", i)};
        define(n, ROLL_DEF_SOURCE, i, &def, sizeof(def), path, def.path_bytes);
    }
    for (uint32_t i = 1; i <= LINES; i++) {
        char name[32];
        struct roll_def_line def = {.source = i % SOURCES + 1, .line = 10 + i, .flags = i % 3 == 0};
        def.function_bytes = (uint32_t)snprintf(name, sizeof(name), "Model.step_%u", i % 40);
        define(n, ROLL_DEF_LINE, i, &def, sizeof(def), name, def.function_bytes);
        if (i % 2 == 0) {
            define_text(n, i);
        }
    }
}

/* Some have addresses in no module, some no lines, some lines alone, some a stand of the main thread; of some pairs the
 * innermost part is the same. */
static void define_site(struct here *n, uint32_t rank, uint32_t id)
{
    struct roll_callsite_line line[ROLL_CALLSITE_LINES], stand[2];
    uint64_t pc[ROLL_CALLSITE_DEPTH];
    struct roll_def_callsite def = {.depth = id % 13 ? 1 + id % 8 : 0};
    uint8_t tail[sizeof(pc) + sizeof(line)];
    def.lines = id % 5 || def.depth == 0 ? 1 + id % 4 : 0;
    for (uint32_t k = 0; k < def.depth; k++) {
        uint32_t from = k == 0 ? id / 2 : id;
        bool nowhere = (k == 0 && id % 11 == 0) || (k == 1 && id % 7 == 0);
        pc[k] = nowhere ? 16 : base_of(rank) + (1 + (from * 7 + k) % MODULES) * 0x10000 + (from * 13 + k) % 0x8000;
    }
    for (uint32_t k = 0; k < def.lines; k++) {
        line[k] = (struct roll_callsite_line){.line = 1 + (id / 2 + k * 7) % LINES, .folded = id % 2};
    }
    if (id % 17 == 0) {
        struct roll_def_stand main = {.lines = 2};
        stand[0] = (struct roll_callsite_line){.line = 1 + (id + 5) % LINES};
        stand[1] = (struct roll_callsite_line){.line = 1 + (id + 9) % LINES};
        define(n, ROLL_DEF_STAND, id, &main, sizeof(main), stand, sizeof(stand));
    }
    memcpy(tail, pc, def.depth * sizeof(pc[0]));
    memcpy(tail + def.depth * sizeof(pc[0]), line, def.lines * sizeof(line[0]));
    define(n, ROLL_DEF_CALLSITE, id, &def, sizeof(def), tail, def.depth * sizeof(pc[0]) + def.lines * sizeof(line[0]));
}

/* The place of this call site is known: its innermost address lies in a module, or it has none. */
static bool is_known(uint32_t id)
{
    return id % 11 != 0 || id % 13 == 0;
}

static void define_name(struct here *n, uint32_t id, uint64_t count)
{
    char text[64];
    struct roll_def_name def = {.count = count, .kind = ROLL_NAME_TENSORS, .size = RANKS, .label_bytes = 2};
    def.text_bytes = (uint16_t)(snprintf(text, sizeof(text), "dpbucket %u", id) - 2);
    define(n, ROLL_DEF_NAME, id, &def, sizeof(def), text, 2u + def.text_bytes);
}

static void define_all(struct here *n, uint32_t rank)
{
    n->rank.label = "dp";
    n->comm = synth_comm(&n->rank, 7);
    define_modules(n, rank);
    define_lines(n);
    for (uint32_t id = 1; id <= SITES; id++) {
        define_site(n, rank, id);
        if (id % 400 == 0) {
            synth_comm(&n->rank, 7 + id);
        }
    }
    for (uint32_t i = 1; i <= NAMES; i++) {
        define_name(n, i, 1000 + i);
    }
    define_newer_module(n, rank);
    struct roll_def_name group = {.kind = ROLL_NAME_GROUP, .size = RANKS, .label_bytes = 2, .text_bytes = 4};
    define(n, ROLL_DEF_NAME, NAMES + 1, &group, sizeof(group), "dpmesh", 6);
    for (uint32_t i = 1; i <= 20; i++) {
        struct roll_def_stream stream = {.handle = i};
        struct roll_def_thread thread = {.tid = i};
        define(n, ROLL_DEF_STREAM, i, &stream, sizeof(stream), NULL, 0);
        define(n, ROLL_DEF_THREAD, i, &thread, sizeof(thread), NULL, 0);
    }
}

/* what is sent */

static void count_defs(struct here *n, const struct roll_frame_head *head, const uint8_t *payload, size_t bytes)
{
    bool named = (head->flags & ROLL_DEFS_NAMED) != 0;
    n->def_bytes += ROLL_FRAME_HEAD_BYTES + bytes;
    assert_true(named ? head->first == 0 : memcmp(n->rank.ring.defs + head->first, payload, bytes) == 0);
    for (size_t at = 0; at < bytes;) {
        struct roll_def def;
        struct roll_site_number number;
        uint32_t id;
        assert_int_equal(roll_def_decode(payload, bytes, &at, &def), 0);
        bool plain = def.type == ROLL_DEF_COMM || (def.type == ROLL_DEF_NAME && def.name.info.kind == ROLL_NAME_GROUP);
        assert_true(named != plain);
        assert_true(def.id <= SITES);
        n->sent[def.type][def.id] += def.type != ROLL_DEF_SITES;
        for (uint32_t i = 0; roll_def_site_number(&def, i, &id, &number); i++) {
            n->numbers[id] += number.whole != 0 || number.near != 0;
        }
    }
}

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct here *n = ctx;
    struct roll_frame frame;
    if (head.type == ROLL_FRAME_DEFS && n->full) {
        return ROLL_E_BUSY;
    }
    *seq = ++n->seq;
    bool kept = head.type == ROLL_FRAME_DEFS || head.type == ROLL_FRAME_PLACE || head.type == ROLL_FRAME_RECORDS ||
                head.type == ROLL_FRAME_UPDATES;
    if (!kept) {
        return 0;
    }
    if (head.type == ROLL_FRAME_DEFS) {
        count_defs(n, &head, payload, bytes);
    }
    for (uint32_t i = 0; head.type == ROLL_FRAME_RECORDS && i < head.count; i++) {
        uint16_t site = ((const struct roll_record *)payload)[i].callsite;
        n->named[site] = true;
        assert_true(site == 0 ||
                    n->sent[ROLL_DEF_CALLSITE][site] == (site != n->torn)); /* before the first record that names it */
    }
    assert_true(n->frames < FRAMES);
    uint8_t *raw = malloc(ROLL_FRAME_HEAD_BYTES + bytes);
    assert_non_null(raw);
    int64_t made = roll_frame_make(&head, payload, bytes, raw, ROLL_FRAME_HEAD_BYTES + bytes, &frame);
    assert_true(made > 0);
    n->frame[n->frames].raw = raw;
    n->frame[n->frames++].bytes = (size_t)made;
    return 0;
}

static void look(struct here *n)
{
    now += 50 * ROLL_MS;
    n->ring->upto = roll_agent_ring_head(n->ring);
    assert_true(roll_agent_digests_pump(n->digests, n->ring, now) >= 0 || n->full);
}

static void call(struct here *n, uint32_t site, uint64_t count)
{
    n->rank.site = (uint16_t)site;
    synth_allreduce(&n->rank, &(struct synth_call){.comm = n->comm, .count = count});
}

static uint32_t loop_site(uint32_t i)
{
    return 100 + i % LOOP * 97;
}

static void ask(struct here *n, uint64_t history)
{
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(struct roll_frame_excerpt)];
    struct roll_frame_excerpt want = {.history = history, .scope = ROLL_EXCERPT_EVERYONE};
    struct roll_frame_head head = {
        .type = ROLL_FRAME_EXCERPT, .stream = n->ring->map.header->epoch, .first = ++n->number};
    struct roll_frame frame;
    assert_true(roll_frame_make(&head, &want, sizeof(want), raw, sizeof(raw), &frame) > 0);
    roll_agent_digests_ask(n->digests, &frame);
}

/* Each rank of the job has thousands of definitions, was at many places long ago, and makes its calls from a few. */
static int set_up(void **state)
{
    (void)state;
    memset(node, 0, sizeof(node));
    now = 5000 * ROLL_MS;
    scratch_make(dir);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct here *n = &node[r];
        if (synth_open(&n->rank, dir, "job", (int32_t)r, RANKS, 1024) != 0) {
            return -1;
        }
        define_all(n, r);
        if (roll_agent_ring_new(n->rank.path, &n->ring) != 0) {
            return -1;
        }
        n->ring->link = ROLL_LINK_LIVE;
        n->ring->digest = true;
        n->digests = roll_agent_digests_new(take, n);
    }
    for (uint32_t i = 0; i < CALLS; i++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            bool wrong = i == WRONG && r == RANKS - 1;
            call(&node[r], wrong ? ASTRAY : loop_site(i), wrong ? 1090 : 1000 + loop_site(i) % NAMES);
        }
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct here *n = &node[r];
        for (size_t i = 0; i < n->frames; i++) {
            free(n->frame[i].raw);
        }
        roll_agent_digests_destroy(&n->digests);
        roll_agent_ring_destroy(&n->ring);
        synth_close(&n->rank);
    }
    scratch_remove(dir);
    return 0;
}

static void ask_all(uint64_t history)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        look(&node[r]);
        ask(&node[r], history);
        look(&node[r]);
    }
}

/* An engine that was told of these rings by all their definitions, or by those that were sent. */
static roll_feed_t *feed_of(bool all)
{
    static uint8_t raw[ROLL_FRAME_HEAD_BYTES + 1024 * 1024];
    roll_feed_t *feed = roll_feed_new(&(struct roll_engine_config){.policy = ROLL_POLICY_OBSERVE}, "job", 0);
    struct roll_frame frame;
    assert_non_null(feed);
    assert_int_equal(roll_feed_tick(feed, UINT64_C(1000000000000)), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct roll_ring *ring = &node[r].rank.ring;
        struct roll_frame_head head = {.type = ROLL_FRAME_RING, .stream = ring->header->epoch};
        assert_true(roll_frame_make(&head, ring->header, ROLL_RING_HEADER_BYTES, raw, sizeof(raw), &frame) > 0);
        assert_int_equal(roll_feed_frame(feed, &frame), 0);
        head.type = ROLL_FRAME_DEFS;
        if (all) {
            assert_true(roll_frame_make(&head, ring->defs, atomic_load(&ring->header->defs_used), raw, sizeof(raw),
                                        &frame) > 0);
            assert_int_equal(roll_feed_frame(feed, &frame), 0);
        }
    }
    for (int defs = 1; defs >= 0; defs--) {
        for (uint32_t r = 0; r < RANKS; r++) {
            for (size_t i = 0; i < node[r].frames; i++) {
                assert_int_equal(roll_frame_decode(node[r].frame[i].raw, node[r].frame[i].bytes, &frame, NULL), 0);
                bool is_defs = frame.head.type == ROLL_FRAME_DEFS;
                if (is_defs == (defs == 1) && !(is_defs && all)) {
                    assert_int_equal(roll_feed_frame(feed, &frame), 0);
                }
            }
        }
    }
    return feed;
}

/* All that it finds, as JSON, one after the other; owned. */
static char *findings(roll_feed_t *feed)
{
    char *text = calloc(1, 1);
    for (uint64_t ms = 0; ms < 8000; ms += 100) {
        struct roll_verdict_copy *copy;
        assert_int_equal(roll_feed_tick(feed, UINT64_C(1000000000000) + ms * ROLL_MS), 0);
        while ((copy = roll_feed_next(feed)) != NULL) {
            char *one = roll_verdict_to_text(copy);
            assert_non_null(one);
            text = realloc(text, strlen(text) + strlen(one) + 2);
            assert_non_null(text);
            strcat(strcat(text, one), "\n");
            free(one);
            roll_verdict_copy_destroy(&copy);
        }
    }
    return text;
}

static void test_verdicts_are_the_same_word_for_word(void **state)
{
    (void)state;
    ask_all(64);
    roll_feed_t *all = feed_of(true), *sent = feed_of(false);
    char *by_all = findings(all), *by_sent = findings(sent);
    assert_non_null(strstr(by_all, "count-mismatch"));
    assert_non_null(strstr(by_all, "Model.step_")); /* with the line, */
    assert_non_null(strstr(by_all, "dist.call("));  /* what it says, */
    assert_non_null(strstr(by_all, "bucket "));     /* what the call carries, */
    assert_non_null(strstr(by_all, "mesh"));        /* and what the group is called */
    assert_string_equal(by_all, by_sent);
    free(by_all);
    free(by_sent);
    roll_feed_destroy(&all);
    roll_feed_destroy(&sent);
}

/* Where calls alone do not tell who went astray: whether the other rank knows the place, and whether the two are one.
 * Rank 0 has sent what its records name, and rank 1 all. */
static void test_call_sites_are_compared_alike(void **state)
{
    (void)state;
    uint32_t homes = 0, others = 0, same = 0, unknown = 0;
    ask_all(64);
    call(&node[0], NEWER, 1);
    look(&node[0]);
    for (uint32_t id = 400; id < SITES; id += 3) { /* so that older modules are named behind newer ones */
        call(&node[0], id, 1);
    }
    look(&node[0]);
    roll_feed_t *all = feed_of(true), *sent = feed_of(false);
    struct roll_engine *a = roll_feed_engine(all), *b = roll_feed_engine(sent);
    for (uint32_t id = 1; id <= SITES; id++) {
        const struct roll_record rec = {.callsite = (uint16_t)id};
        uint64_t site = site_of(a->source[1], &rec);
        assert_int_equal(site_is_known(b->source[0], site), site_is_known(a->source[0], site));
        bool home = site_is_home(a->source[0], a->source[1], &rec);
        assert_int_equal(site_is_home(b->source[0], a->source[1], &rec), home);
        homes += home;
        for (uint32_t i = 0; i < LOOP; i++) { /* with the places that rank 0 has calls from in its excerpt */
            const struct roll_record own = {.callsite = (uint16_t)loop_site(i)};
            enum site_relation is = site_compare(a->source[0], &own, a->source[1], &rec);
            assert_int_equal(site_compare(b->source[0], &own, a->source[1], &rec), is);
            assert_int_equal(site_compare(a->source[1], &rec, b->source[0], &own),
                             site_compare(a->source[1], &rec, a->source[0], &own));
            same += is == SITE_SAME;
            others += is == SITE_OTHER;
            unknown += is == SITE_UNKNOWN;
        }
    }
    print_message("%u homes; %u other places, %u same, %u unknown\n", homes, others, same, unknown);
    assert_true(homes > SITES / 2 && others > SITES && same > 0 && unknown > 0);
    roll_feed_destroy(&all);
    roll_feed_destroy(&sent);
}

static uint32_t used(const uint32_t *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i <= SITES; i++) {
        assert_in_range(list[i], 0, 1); /* nothing is sent twice */
        n += list[i];
    }
    return n;
}

static void test_what_no_record_names_is_not_sent(void **state)
{
    (void)state;
    ask_all(64);
    size_t sent = 0, area = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct here *n = &node[r];
        sent += n->def_bytes;
        area += atomic_load(&n->rank.ring.header->defs_used);
        for (uint32_t id = 1; id <= SITES; id++) {
            assert_int_equal(n->sent[ROLL_DEF_CALLSITE][id], n->named[id]);
            assert_int_equal(n->numbers[id], !n->named[id] && is_known(id));
            assert_int_equal(n->sent[ROLL_DEF_STAND][id], n->named[id] && id % 17 == 0);
        }
        assert_int_equal(used(n->sent[ROLL_DEF_CALLSITE]), r == RANKS - 1 ? LOOP + 1 : LOOP);
        assert_int_equal(used(n->sent[ROLL_DEF_COMM]), 1 + SITES / 400);
        assert_int_equal(used(n->sent[ROLL_DEF_STREAM]), 1);
        assert_int_equal(used(n->sent[ROLL_DEF_THREAD]), 1);
        assert_in_range(used(n->sent[ROLL_DEF_LINE]), 4, 4 * (LOOP + 1));
        assert_in_range(used(n->sent[ROLL_DEF_SOURCE]), 2, used(n->sent[ROLL_DEF_LINE]));
        assert_in_range(used(n->sent[ROLL_DEF_MODULE]), 4, MODULES - 5);
        for (uint32_t i = 1; i <= LINES; i++) {
            assert_int_equal(n->sent[ROLL_DEF_TEXT][i], n->sent[ROLL_DEF_LINE][i] && i % 2 == 0);
        }
        /* One name for each count of the records, and that of the group. */
        assert_int_equal(used(n->sent[ROLL_DEF_NAME]), 1 + LOOP + (r == RANKS - 1));
    }
    print_message("definitions of a ring: %zu bytes; in its excerpt: %zu bytes\n", area / RANKS, sent / RANKS);
    assert_true(sent < area / 5);
}

/* A record that comes later may name what has been there for long, and new definitions may be named already. */
static void test_what_is_named_later_is_sent_then(void **state)
{
    (void)state;
    struct here *n = &node[0];
    ask_all(64);
    assert_int_equal(n->sent[ROLL_DEF_CALLSITE][LATER], 0);
    call(n, LATER, 1150);
    look(n);
    assert_int_equal(n->sent[ROLL_DEF_CALLSITE][LATER], 1);
    assert_int_equal(n->sent[ROLL_DEF_NAME][150], 1);
    uint32_t line = 1 + LATER / 2, other = 1 + 31 / 2; /* of a place that nobody named */
    assert_int_equal(n->sent[ROLL_DEF_LINE][line], 1);
    assert_int_equal(n->sent[ROLL_DEF_LINE][other], 0);
    uint32_t before = n->sent[ROLL_DEF_TEXT][line];
    define_text(n, line);
    define_text(n, other);
    synth_comm(&n->rank, 99);
    look(n);
    assert_int_equal(n->sent[ROLL_DEF_TEXT][line], before + 1);
    assert_int_equal(n->sent[ROLL_DEF_TEXT][other], 0);
    assert_int_equal(n->sent[ROLL_DEF_COMM][2 + SITES / 400], 1);
    call(n, LATER, 1150);
    look(n);
    assert_int_equal(n->sent[ROLL_DEF_CALLSITE][LATER], 1);
}

/* A queue that is full: each is sent once all the same, and no record before what it names (take). */
static void test_what_could_not_be_sent_is_sent_later(void **state)
{
    (void)state;
    struct here *n = &node[0];
    look(n);
    ask(n, 64);
    n->full = true;
    look(n);
    look(n);
    assert_int_equal(n->frames, 0);
    n->full = false;
    look(n);
    assert_int_equal(used(n->sent[ROLL_DEF_CALLSITE]), LOOP);
    for (uint32_t id = 1; id <= SITES; id++) {
        assert_int_equal(n->numbers[id], !n->named[id] && is_known(id));
    }
    n->full = true;
    call(n, LATER, 1150);
    size_t frames = n->frames;
    look(n);
    assert_int_equal(n->frames, frames);
    n->full = false;
    look(n);
    assert_int_equal(n->sent[ROLL_DEF_CALLSITE][LATER], 1);
    assert_true(n->named[LATER]);
}

/* What comes twice is the same, and no communicator comes that way. */
static void test_definitions_that_come_again_change_nothing(void **state)
{
    (void)state;
    ask_all(64);
    roll_feed_t *once = feed_of(false), *twice = feed_of(false);
    for (size_t i = node[3].frames; i-- > 0;) {
        struct roll_frame frame;
        assert_int_equal(roll_frame_decode(node[3].frame[i].raw, node[3].frame[i].bytes, &frame, NULL), 0);
        if (frame.head.type == ROLL_FRAME_DEFS) {
            assert_int_equal(roll_feed_frame(twice, &frame), 0);
        }
    }
    struct roll_frame_head head = {
        .type = ROLL_FRAME_DEFS, .flags = ROLL_DEFS_NAMED, .stream = node[3].rank.ring.header->epoch};
    struct roll_frame frame;
    uint8_t raw[4096];
    uint64_t used_bytes = atomic_load(&node[3].rank.ring.header->defs_used);
    synth_comm(&node[3].rank, 12345);
    assert_true(roll_frame_make(&head, node[3].rank.ring.defs + used_bytes,
                                atomic_load(&node[3].rank.ring.header->defs_used) - used_bytes, raw, sizeof(raw),
                                &frame) > 0);
    uint32_t comms = roll_feed_engine(twice)->comms;
    assert_int_equal(roll_feed_frame(twice, &frame), 0);
    assert_int_equal(roll_feed_engine(twice)->comms, comms);
    char *a = findings(once), *b = findings(twice);
    assert_string_equal(a, b);
    free(a);
    free(b);
    roll_feed_destroy(&once);
    roll_feed_destroy(&twice);
}

/* The job writes over a definition, keeping its length: as a call site of one line, which is the line behind it. */
static void write_over(uint8_t *at, uint32_t type, uint32_t id)
{
    struct roll_def_head head;
    struct roll_def_callsite def = {.lines = 1};
    struct roll_callsite_line line = {.line = id + 1};
    memcpy(&head, at, sizeof(head));
    head.seal = ROLL_DEF_SEAL | type;
    head.id = id;
    memcpy(at, &head, sizeof(head));
    if (type == ROLL_DEF_CALLSITE) {
        memcpy(at + sizeof(head), &def, sizeof(def));
        memcpy(at + sizeof(head) + sizeof(def), &line, sizeof(line));
    }
}

/* The next definition of this type with an id from `id` on, behind *at. */
static uint8_t *find_def(struct here *n, unsigned type, uint32_t id, size_t *at)
{
    struct roll_def def;
    size_t used_bytes = atomic_load(&n->rank.ring.header->defs_used), from = *at;
    while (roll_def_decode(n->rank.ring.defs, used_bytes, at, &def) == 0) {
        if (def.type == type && def.id >= id) {
            return n->rank.ring.defs + from;
        }
        from = *at;
    }
    return NULL;
}

/* Lines become call sites that name the next line: nobody follows them from one to the other, as deep as there are
 * ids. */
static void test_what_was_written_over_leads_nowhere(void **state)
{
    (void)state;
    struct here *n = &node[0];
    uint32_t before[SITES + 1], over = 0;
    ask_all(64);
    memcpy(before, n->sent[ROLL_DEF_CALLSITE], sizeof(before));
    for (size_t at = 0; over < LINES; over++) {
        uint8_t *line = find_def(n, ROLL_DEF_LINE, over + 1, &at);
        assert_non_null(line);
        write_over(line, ROLL_DEF_CALLSITE, over + 1);
    }
    uint32_t lines = used(n->sent[ROLL_DEF_LINE]);
    call(n, LATER, 1150);
    look(n);
    before[LATER]++;
    assert_memory_equal(n->sent[ROLL_DEF_CALLSITE], before, sizeof(before));
    assert_int_equal(used(n->sent[ROLL_DEF_LINE]), lines);
}

/* What waits to be sent, and what numbers are to be made of, is written over meanwhile. */
static void test_what_was_written_over_is_not_sent_as_what_it_was(void **state)
{
    (void)state;
    struct here *n = &node[0];
    size_t at = 0;
    const uint32_t other = 602; /* no record names it, and its place is known */
    look(n);
    ask(n, 64);
    n->full = true;
    look(n);
    uint8_t *site = find_def(n, ROLL_DEF_CALLSITE, other, &at);
    assert_non_null(site);
    write_over(site, ROLL_DEF_CALLSITE, other + 1);
    n->full = false;
    look(n);
    assert_true(is_known(other) && n->numbers[other - 1] == 1);
    assert_int_equal(n->numbers[other], 0);
    n->full = true;
    n->torn = LATER;
    call(n, LATER, 1150);
    look(n);
    site = find_def(n, ROLL_DEF_CALLSITE, LATER, &at);
    assert_non_null(site);
    write_over(site, ROLL_DEF_STREAM, 30); /* which the ring has not */
    n->full = false;
    look(n);
    assert_int_equal(n->sent[ROLL_DEF_STREAM][30], 0);
    assert_int_equal(n->sent[ROLL_DEF_CALLSITE][LATER], 0);
    assert_true(n->sent[ROLL_DEF_LINE][1 + LATER / 2]); /* the rest is sent all the same */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_verdicts_are_the_same_word_for_word),  TEST(test_call_sites_are_compared_alike),
        TEST(test_what_no_record_names_is_not_sent),     TEST(test_what_is_named_later_is_sent_then),
        TEST(test_what_could_not_be_sent_is_sent_later), TEST(test_definitions_that_come_again_change_nothing),
        TEST(test_what_was_written_over_leads_nowhere),  TEST(test_what_was_written_over_is_not_sent_as_what_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
