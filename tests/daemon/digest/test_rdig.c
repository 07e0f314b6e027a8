/*
 * test_rdig.c: the bytes of an .rdig file: what was written is read, what was damaged is refused, docs/RDIG.md says
 * where everything stands, and files of earlier versions stay readable; and spans, coarse and fine.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/digest/rdig.h"
#include "daemon/digest/span.h"
#include "trace/err.h"
#include "trace/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/daemon/digest/golden/v%u.rdig"

/* the file */

/* A file with one section of each kind. */
static void make(struct roll_rdig_out *out)
{
    static const struct roll_rdig_ring ring[2] = {
        {.epoch = 11, .begin = 3, .next = 10, .lost = 1, .world_rank = 0, .proc_state = 3, .hinted = 1u << 5},
        {.epoch = 12, .begin = 0, .next = 9, .world_rank = -1, .proc_state = 4, .exit_status = 9}};
    static const struct roll_rdig_comm comm[2] = {{.key = 0xa0, .size = 4, .members = 2, .from = 70, .spans = 2},
                                                  {.key = 0xb0, .size = 2, .members = 1, .from = 0, .spans = 1}};
    static const struct roll_span span[3] = {{1, 0, 2}, {2, 2, 1}, {3, 7, 1}};
    struct roll_rdig_view v = {.is = {.kind = ROLL_RDIG_END,
                                      .flags = ROLL_RDIG_CUT,
                                      .job = "job",
                                      .host = "node1",
                                      .restart = 2,
                                      .rings = 2,
                                      .comms = 2,
                                      .spans = 3,
                                      .first_ns = 5,
                                      .last_ns = 6,
                                      .records = 19,
                                      .calls = 18,
                                      .lost = 1,
                                      .older = 3,
                                      .name_bytes = 5,
                                      .path_bytes = 4,
                                      .digest_bytes = 3,
                                      .head_bytes = 9,
                                      .trace_bytes = 17},
                               .rings = ring,
                               .comms = comm,
                               .spans = span,
                               .name = "job.2",
                               .path = "/tmp",
                               .digest = (const uint8_t *)"abc",
                               .head = (const uint8_t *)"123456789",
                               .trace = (const uint8_t *)"abcdefghijklmnopq"};
    *out = (struct roll_rdig_out){0};
    assert_int_equal(roll_rdig_add(out, &v), 0);
    v.is.kind = ROLL_RDIG_PLACE;
    v.is.key = 0xa0;
    v.is.seq = v.is.last = 64;
    v.is.digest_bytes = 0;
    assert_int_equal(roll_rdig_add(out, &v), 0);
    v.is.kind = ROLL_RDIG_RANGE;
    v.is.last = 640;
    v.is.head_bytes = 0;
    v.is.trace_bytes = 0;
    assert_int_equal(roll_rdig_add(out, &v), 0);
    assert_int_equal(roll_rdig_seal(out), 0);
}

static void check_sections(const void *data, size_t bytes, uint64_t older)
{
    struct roll_rdig_view v;
    struct roll_rdig_ring ring;
    struct roll_rdig_comm comm;
    struct roll_span span[3];
    uint32_t sections;
    size_t at = 0;
    assert_int_equal(roll_rdig_check(data, bytes, &sections), 0);
    assert_int_equal(sections, 3);
    assert_int_equal(roll_rdig_next(data, bytes, &at, &v), 0);
    assert_int_equal(v.is.kind, ROLL_RDIG_END);
    assert_string_equal(v.is.host, "node1");
    assert_int_equal(v.is.lost, 1);
    assert_int_equal(v.is.older, older);
    assert_memory_equal(v.name, "job.2", 5);
    assert_memory_equal(v.path, "/tmp", 4);
    assert_memory_equal(v.digest, "abc", 3);
    assert_memory_equal(v.head, "123456789", 9);
    assert_memory_equal(v.trace, "abcdefghijklmnopq", 17);
    roll_rdig_ring(&v, 1, &ring);
    assert_int_equal(ring.epoch, 12);
    assert_int_equal(ring.exit_status, 9);
    roll_rdig_comm(&v, 0, &comm);
    assert_int_equal(comm.from, 70);
    roll_rdig_spans(&v, 0, 3, span);
    assert_int_equal(span[2].window, 7);
    assert_true(roll_spans_are(span, 3));
    assert_int_equal(roll_rdig_next(data, bytes, &at, &v), 0);
    assert_int_equal(v.is.kind, ROLL_RDIG_PLACE);
    assert_int_equal(v.is.seq, 64);
    assert_int_equal(roll_rdig_next(data, bytes, &at, &v), 0);
    assert_int_equal(v.is.kind, ROLL_RDIG_RANGE);
    assert_int_equal(v.is.last, 640);
    assert_int_equal(roll_rdig_next(data, bytes, &at, &v), ROLL_E_NOTFOUND);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct roll_rdig_out out;
    make(&out);
    check_sections(out.bytes, out.used, 3);
    roll_rdig_fini(&out);
}

/* Reads a file whole. */
static char *load(const char *path, size_t *bytes)
{
    static char text[1u << 16];
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        fail_msg("%s is not there", path);
    }
    *bytes = fread(text, 1, sizeof(text) - 1, f);
    text[*bytes] = '\0';
    assert_int_equal(fclose(f), 0);
    return text;
}

static void files_of_each_version_stay_readable(void **state)
{
    (void)state;
    struct roll_rdig_out out;
    size_t bytes;
    char path[64];
    snprintf(path, sizeof(path), GOLDEN, 1u);
    const char *golden = load(path, &bytes);
    check_sections(golden, bytes, 0); /* which does not tell what is older */
    snprintf(path, sizeof(path), GOLDEN, ROLL_RDIG_VERSION);
    golden = load(path, &bytes);
    check_sections(golden, bytes, 3);
    make(&out);
    assert_int_equal(out.used, bytes);
    assert_memory_equal(out.bytes, golden, bytes);
    roll_rdig_fini(&out);
}

static void each_cut_and_each_turned_byte_is_refused(void **state)
{
    (void)state;
    struct roll_rdig_out out;
    uint32_t sections;
    make(&out);
    for (size_t n = 0; n < out.used; n++) {
        assert_int_equal(roll_rdig_check(out.bytes, n, &sections), ROLL_E_SHORT);
        out.bytes[n] ^= 0x10;
        assert_int_not_equal(roll_rdig_check(out.bytes, out.used, &sections), 0);
        out.bytes[n] ^= 0x10;
    }
    assert_int_equal(roll_rdig_check(out.bytes, out.used, &sections), 0);
    roll_rdig_fini(&out);
}

/* Counts that cannot be, under a checksum that is right. */
static void sections_that_contradict_themselves_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        uint32_t value;
    } change[] = {{offsetof(struct roll_rdig_section, kind), 9},
                  {offsetof(struct roll_rdig_section, rings), UINT32_MAX},
                  {offsetof(struct roll_rdig_section, comms), 3},
                  {offsetof(struct roll_rdig_section, spans), 2},
                  {offsetof(struct roll_rdig_section, name_bytes), UINT32_MAX},
                  {offsetof(struct roll_rdig_section, head_bytes), 0},
                  {offsetof(struct roll_rdig_section, bytes), 16},
                  {offsetof(struct roll_rdig_section, bytes), 1u << 20},
                  {sizeof(struct roll_rdig_section) + offsetof(struct roll_rdig_ring, proc_state), 5},
                  {sizeof(struct roll_rdig_section) + offsetof(struct roll_rdig_ring, next), 1},
                  {sizeof(struct roll_rdig_section) + 2 * sizeof(struct roll_rdig_ring), 0}};
    for (size_t i = 0; i < sizeof(change) / sizeof(change[0]); i++) {
        struct roll_rdig_out out;
        struct roll_rdig_view v;
        uint32_t sections;
        size_t at = 0;
        make(&out);
        uint8_t *place = out.bytes + sizeof(struct roll_rdig_head) + change[i].offset;
        if (i + 1 == sizeof(change) / sizeof(change[0])) {
            place += offsetof(struct roll_rdig_comm, size);
        }
        memcpy(place, &change[i].value, sizeof(change[i].value));
        assert_int_equal(roll_rdig_seal(&out), 0);
        assert_int_equal(roll_rdig_check(out.bytes, out.used, &sections), 0);
        if (roll_rdig_next(out.bytes, out.used, &at, &v) != ROLL_E_CORRUPT) {
            fail_msg("change %zu is not refused", i);
        }
        roll_rdig_fini(&out);
    }
}

/* the document */

static const struct {
    const char *of, *name;
    size_t offset, size;
} members[] = {
#define M(type, name)                                                                                                  \
    {                                                                                                                  \
#type, #name, offsetof(struct type, name), sizeof(((struct type *)0)->name)                                    \
    }
    M(roll_rdig_head, magic),
    M(roll_rdig_head, version),
    M(roll_rdig_head, oldest),
    M(roll_rdig_head, sections),
    M(roll_rdig_head, bytes),
    M(roll_rdig_head, crc),
    M(roll_rdig_head, reserved),
    M(roll_rdig_section, bytes),
    M(roll_rdig_section, kind),
    M(roll_rdig_section, flags),
    M(roll_rdig_section, job),
    M(roll_rdig_section, host),
    M(roll_rdig_section, restart),
    M(roll_rdig_section, rings),
    M(roll_rdig_section, comms),
    M(roll_rdig_section, spans),
    M(roll_rdig_section, key),
    M(roll_rdig_section, seq),
    M(roll_rdig_section, last),
    M(roll_rdig_section, first_ns),
    M(roll_rdig_section, last_ns),
    M(roll_rdig_section, records),
    M(roll_rdig_section, calls),
    M(roll_rdig_section, lost),
    M(roll_rdig_section, name_bytes),
    M(roll_rdig_section, path_bytes),
    M(roll_rdig_section, digest_bytes),
    M(roll_rdig_section, head_bytes),
    M(roll_rdig_section, trace_bytes),
    M(roll_rdig_section, older),
    M(roll_rdig_ring, epoch),
    M(roll_rdig_ring, begin),
    M(roll_rdig_ring, next),
    M(roll_rdig_ring, lost),
    M(roll_rdig_ring, world_rank),
    M(roll_rdig_ring, proc_state),
    M(roll_rdig_ring, exit_status),
    M(roll_rdig_ring, hinted),
    M(roll_rdig_comm, key),
    M(roll_rdig_comm, size),
    M(roll_rdig_comm, members),
    M(roll_rdig_comm, from),
    M(roll_rdig_comm, spans),
    M(roll_span, hash),
    M(roll_span, window),
    M(roll_span, windows),
#undef M
};
#define MEMBERS (sizeof(members) / sizeof(members[0]))

static void the_document_says_where_everything_stands(void **state)
{
    (void)state;
    size_t bytes, checked = 0, end = 0;
    char of[64] = "", name[64];
    for (char *row = strtok(load("docs/RDIG.md", &bytes), "\n"); row != NULL; row = strtok(NULL, "\n")) {
        size_t offset, size;
        if (sscanf(row, "### struct %63s", of) == 1) {
            end = 0;
        } else if (sscanf(row, "| %zu | %zu | `%63[^`]` |", &offset, &size, name) == 3) {
            assert_true(checked < MEMBERS);
            assert_string_equal(members[checked].of, of);
            assert_string_equal(members[checked].name, name);
            assert_int_equal(members[checked].offset, offset);
            assert_int_equal(members[checked].size, size);
            assert_int_equal(offset, end);
            end += size;
            checked++;
        }
    }
    assert_int_equal(checked, MEMBERS);
}

/* spans */

static uint64_t hash_of(uint32_t window, uint32_t wrong)
{
    return window * UINT64_C(0x9e3779b97f4a7c15) + (window == wrong);
}

static void fill(struct roll_spans *s, uint32_t windows, uint32_t wrong, uint32_t unknown)
{
    *s = (struct roll_spans){0};
    for (uint32_t w = 0; w < windows; w++) {
        if (w != unknown) {
            assert_int_equal(roll_spans_add(s, w, hash_of(w, wrong)), 0);
        }
    }
    assert_true(roll_spans_are(s->at, s->used));
}

static void spans_stay_few_and_find_a_difference_wherever_it_is(void **state)
{
    (void)state;
    static const uint32_t most[] = {1, 63, 1000, 5000, 100000};
    for (size_t m = 0; m < sizeof(most) / sizeof(most[0]); m++) {
        for (uint32_t i = 0; i < 40; i++) {
            /* The lists end at different windows, and each has a window that it does not know. */
            uint32_t n = most[m], wrong = (uint32_t)(i * UINT64_C(7919) % n), shorter = n - n / 7;
            struct roll_spans a, b, c;
            struct roll_span where;
            fill(&a, n, UINT32_MAX, n / 2);
            fill(&b, shorter, UINT32_MAX, n / 3);
            assert_true(a.used <= 1024 + 64 * 20);
            assert_false(roll_spans_differ(a.at, a.used, b.at, b.used, &where));
            fill(&c, shorter, wrong, UINT32_MAX);
            bool finds = roll_spans_differ(a.at, a.used, c.at, c.used, &where);
            if (finds) {
                assert_true(where.window <= wrong && wrong < where.window + where.windows);
                uint32_t back = n - wrong;
                assert_true(where.windows == 1 || where.windows <= back / 16);
            } else { /* only at the end of the shorter one, or beside the window that is not known */
                bool end = wrong + n / 16 + 1 >= shorter;
                uint32_t away = wrong > n / 2 ? wrong - n / 2 : n / 2 - wrong;
                assert_true(end || away <= n / 16);
            }
            roll_spans_fini(&a);
            roll_spans_fini(&b);
            roll_spans_fini(&c);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc == 2) { /* writes the golden file of the current version */
        struct roll_rdig_out out;
        FILE *f = fopen(argv[1], "w");
        make(&out);
        return f == NULL || fwrite(out.bytes, 1, out.used, f) != out.used || fclose(f) != 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(files_of_each_version_stay_readable),
        cmocka_unit_test(each_cut_and_each_turned_byte_is_refused),
        cmocka_unit_test(sections_that_contradict_themselves_are_refused),
        cmocka_unit_test(the_document_says_where_everything_stands),
        cmocka_unit_test(spans_stay_few_and_find_a_difference_wherever_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
