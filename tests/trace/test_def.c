/*
 * test_def.c: definitions from many threads in one area, and bytes that the decoder refuses.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/def.h"
#include "trace/err.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void make_ring(struct roll_ring *ring, uint64_t defs_bytes)
{
    struct roll_ring_params params = {.capacity = 64, .defs_bytes = defs_bytes, .job = "test"};
    assert_int_equal(roll_ring_create(NULL, &params, ring), 0);
}

static const struct roll_def_comm comm = {.key = 0x1234,
                                          .rank = 2,
                                          .nranks = 8,
                                          .color = ROLL_COLOR_NONE,
                                          .origin = ROLL_COMM_INIT,
                                          .device = -1,
                                          .label_bytes = 5};

static void append_one_of_each(struct roll_ring *ring)
{
    struct roll_def_callsite site = {.depth = 2};
    uint64_t pcs[2] = {0x1000, 0x2000};
    struct roll_def_module module = {
        .start = 0x1000, .end = 0x9000, .bias = 0x1000, .build_id_bytes = 20, .path_bytes = 9};
    memset(module.build_id, 0xab, 20);
    struct roll_def_stream stream = {.handle = 0xdead};
    struct roll_def_thread thread = {.tid = 77, .name_bytes = 4};
    struct roll_def_layer layer = {.name_bytes = 3};
    struct roll_def_source source = {.path_bytes = 6};
    struct roll_def_line line = {.source = 1, .line = 48, .flags = ROLL_DEF_LINE_LIBRARY, .function_bytes = 7};
    struct roll_def_callsite with_lines = {.depth = 1, .lines = 2};
    struct {
        uint64_t pc;
        struct roll_callsite_line line[2];
    } place = {0x3000, {{1, 0}, {2, 5}}};
    assert_int_equal(roll_def_append(ring, ROLL_DEF_COMM, 1, &comm, sizeof(comm), "dp-ep", 5), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_CALLSITE, 1, &site, sizeof(site), pcs, sizeof(pcs)), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_MODULE, 1, &module, sizeof(module), "/bin/true", 9), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_STREAM, 2, &stream, sizeof(stream), NULL, 0), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_THREAD, 1, &thread, sizeof(thread), "main", 4), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_LAYER, 9, &layer, sizeof(layer), "moe", 3), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_SOURCE, 1, &source, sizeof(source), "job.py", 6), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_LINE, 1, &line, sizeof(line), "metrics", 7), 0);
    assert_int_equal(
        roll_def_append(ring, ROLL_DEF_CALLSITE, 2, &with_lines, sizeof(with_lines), &place, sizeof(place)), 0);
    struct roll_def_stand stand = {.lines = 2};
    struct roll_def_text text = {.text_bytes = 11};
    assert_int_equal(roll_def_append(ring, ROLL_DEF_STAND, 2, &stand, sizeof(stand), place.line, sizeof(place.line)),
                     0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_TEXT, 1, &text, sizeof(text), "reduce(x, y)", 11), 0);
}

static void every_type_goes_in_and_comes_out(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 0);
    append_one_of_each(&ring);
    size_t area = ring.header->defs_bytes;
    size_t offset = 0;
    struct roll_def def;
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.type, ROLL_DEF_COMM);
    assert_int_equal(def.comm.info.key, 0x1234);
    assert_memory_equal(def.comm.label, "dp-ep", 5);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.callsite.depth, 2);
    assert_int_equal(def.callsite.pc[1], 0x2000);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.module.info.end, 0x9000);
    assert_int_equal(def.module.info.build_id[19], 0xab);
    assert_memory_equal(def.module.path, "/bin/true", 9);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.stream.handle, 0xdead);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.thread.tid, 77);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.id, 9);
    assert_memory_equal(def.layer.name, "moe", 3);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.source.path_bytes, 6);
    assert_memory_equal(def.source.path, "job.py", 6);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.line.info.line, 48);
    assert_int_equal(def.line.info.flags, ROLL_DEF_LINE_LIBRARY);
    assert_memory_equal(def.line.function, "metrics", 7);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.callsite.pc[0], 0x3000);
    assert_int_equal(def.callsite.lines, 2);
    assert_int_equal(def.callsite.line[1].line, 2);
    assert_int_equal(def.callsite.line[1].folded, 5);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.type, ROLL_DEF_STAND);
    assert_int_equal(def.stand.lines, 2);
    assert_int_equal(def.stand.line[1].line, 2);
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), 0);
    assert_int_equal(def.text.text_bytes, 11);
    assert_memory_equal(def.text.text, "reduce(x, y", 11);
    size_t end = offset;
    assert_int_equal(end, atomic_load(&ring.header->defs_used));
    assert_int_equal(roll_def_decode(ring.defs, area, &offset, &def), ROLL_E_NOTFOUND);
    assert_int_equal(offset, end);
    roll_ring_close(&ring);
}

static void an_unfinished_entry_hides_what_stands_behind_it(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 0);
    append_one_of_each(&ring);
    uint32_t zero = 0;
    uint32_t kept;
    memcpy(&kept, ring.defs, 4);
    memcpy(ring.defs, &zero, 4);
    size_t offset = 0;
    struct roll_def def;
    assert_int_equal(roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def), ROLL_E_NOTFOUND);
    assert_int_equal(offset, 0);
    memcpy(ring.defs, &kept, 4);
    assert_int_equal(roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def), 0);
    roll_ring_close(&ring);
}

static void a_full_area_counts_the_loss_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 4096);
    struct roll_def_stream stream = {.handle = 1};
    unsigned kept = 0;
    while (roll_def_append(&ring, ROLL_DEF_STREAM, kept + 1, &stream, sizeof(stream), NULL, 0) == 0) {
        kept++;
    }
    assert_int_equal(kept, 4096 / 24);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_STREAM, 1, &stream, sizeof(stream), NULL, 0), ROLL_E_LIMIT);
    assert_int_equal(atomic_load(&ring.header->losses[ROLL_LOSS_DEFS_FULL]), 2);
    size_t offset = 0;
    struct roll_def def;
    for (unsigned i = 1; i <= kept; i++) {
        assert_int_equal(roll_def_decode(ring.defs, 4096, &offset, &def), 0);
        assert_int_equal(def.id, i);
    }
    assert_int_equal(roll_def_decode(ring.defs, 4096, &offset, &def), ROLL_E_NOTFOUND);
    roll_ring_close(&ring);
}

static void an_entry_that_is_too_large_is_refused(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 0);
    static uint8_t body[ROLL_DEF_MAX_BYTES];
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_LAYER, 1, body, sizeof(body), NULL, 0), ROLL_E_LIMIT);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_LAYER, 1, body, 8, body, SIZE_MAX), ROLL_E_LIMIT);
    assert_int_equal(atomic_load(&ring.header->defs_used), 0);
    roll_ring_close(&ring);
}

#define THREADS 8
#define EACH    500

struct crowd {
    struct roll_ring *ring;
    uint32_t number;
};

static void *define_many(void *arg)
{
    const struct crowd *crowd = arg;
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t id = crowd->number * EACH + i + 1;
        struct roll_def_callsite site = {.depth = id % ROLL_CALLSITE_DEPTH + 1};
        uint64_t pcs[ROLL_CALLSITE_DEPTH];
        for (uint32_t d = 0; d < site.depth; d++) {
            pcs[d] = (uint64_t)id << 8 | d;
        }
        roll_def_append(crowd->ring, ROLL_DEF_CALLSITE, id, &site, sizeof(site), pcs, site.depth * sizeof(pcs[0]));
    }
    return NULL;
}

static void many_threads_define_and_a_reader_sees_only_whole_entries(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 1024 * 1024);
    pthread_t thread[THREADS];
    struct crowd crowd[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        crowd[i] = (struct crowd){&ring, i};
        assert_int_equal(pthread_create(&thread[i], NULL, define_many, &crowd[i]), 0);
    }
    static bool seen[THREADS * EACH + 1];
    size_t offset = 0;
    unsigned wrong = 0;
    for (unsigned count = 0; count < THREADS * EACH;) {
        struct roll_def def;
        int err = roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def);
        if (err == ROLL_E_NOTFOUND) {
            continue;
        }
        assert_int_equal(err, 0);
        wrong += def.id == 0 || def.id > THREADS * EACH || seen[def.id];
        wrong += def.callsite.depth != def.id % ROLL_CALLSITE_DEPTH + 1;
        for (uint32_t d = 0; d < def.callsite.depth; d++) {
            wrong += def.callsite.pc[d] != ((uint64_t)def.id << 8 | d);
        }
        assert_int_equal(wrong, 0);
        seen[def.id] = true;
        count++;
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
    }
    roll_ring_close(&ring);
}

/* Walks an area to its end or first error. */
static int walk(const uint8_t *data, size_t bytes, unsigned *entries)
{
    size_t offset = 0;
    struct roll_def def;
    int err = 0;
    for (*entries = 0; err == 0 && offset < bytes; ++*entries) {
        err = roll_def_decode(data, bytes, &offset, &def);
    }
    return err;
}

static void a_log_cut_anywhere_is_valid_up_to_its_last_whole_entry(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 0);
    append_one_of_each(&ring);
    size_t bytes = atomic_load(&ring.header->defs_used);
    unsigned entries;
    assert_int_equal(walk(ring.defs, bytes, &entries), 0);
    assert_int_equal(entries, 11);
    unsigned whole = 0;
    for (size_t cut = 0; cut < bytes; cut++) {
        /* An exact copy on the heap, so that a sanitizer sees a read beyond its end. */
        uint8_t *copy = malloc(cut + 1);
        assert_non_null(copy);
        memcpy(copy + 1, ring.defs, cut); /* misaligned as well */
        int err = walk(copy + 1, cut, &entries);
        assert_true(err == 0 || err == ROLL_E_SHORT);
        whole += err == 0;
        free(copy);
    }
    assert_int_equal(whole, 11); /* the empty one and the ends of eight entries */
    roll_ring_close(&ring);
}

static int decode_changed(size_t at, uint32_t value, const void *body, size_t body_bytes, enum roll_def_type type)
{
    struct roll_ring ring;
    make_ring(&ring, 0);
    assert_int_equal(roll_def_append(&ring, type, 1, body, body_bytes, "tail-tail-tail-tail-", 20), 0);
    size_t offset = 0;
    struct roll_def def;
    assert_int_equal(roll_def_decode(ring.defs, 4096, &offset, &def), 0);
    memcpy(ring.defs + at, &value, sizeof(value));
    offset = 0;
    int err = roll_def_decode(ring.defs, 4096, &offset, &def);
    assert_int_equal(err < 0 ? offset : 0, 0);
    roll_ring_close(&ring);
    return err;
}

static void malformed_entries_are_refused(void **state)
{
    (void)state;
    struct roll_def_comm c = comm;
    struct roll_def_module m = {.start = 1, .end = 2, .path_bytes = 3};
    struct roll_def_callsite s = {.depth = 1};
    struct roll_def_thread t = {.name_bytes = 1};
#define COMM(at, value) decode_changed(at, (uint32_t)(value), &c, sizeof(c), ROLL_DEF_COMM)
    assert_int_equal(COMM(0, 0x12340001), ROLL_E_CORRUPT); /* seal */
    assert_int_equal(COMM(0, ROLL_DEF_SEAL), ROLL_E_CORRUPT);
    assert_int_equal(COMM(4, 12), ROLL_E_SIZE);
    assert_int_equal(COMM(4, 15), ROLL_E_SIZE);
    assert_int_equal(COMM(4, 8192), ROLL_E_SIZE);
    assert_int_equal(COMM(4, 24), ROLL_E_SIZE);   /* too short for its type */
    assert_int_equal(COMM(8, 0), ROLL_E_CORRUPT); /* id */
    assert_int_equal(COMM(8, 65536), ROLL_E_CORRUPT);
    assert_int_equal(COMM(12, 1), ROLL_E_CORRUPT);       /* reserved */
    assert_int_equal(COMM(16 + 16, -1), ROLL_E_CORRUPT); /* rank */
    assert_int_equal(COMM(16 + 16, 8), ROLL_E_CORRUPT);
    assert_int_equal(COMM(16 + 20, 0), ROLL_E_CORRUPT); /* nranks */
    assert_int_equal(COMM(16 + 20, 1 << 25), ROLL_E_CORRUPT);
    assert_int_equal(COMM(16 + 32, 9), ROLL_E_CORRUPT);       /* origin */
    assert_int_equal(COMM(16 + 44, 0xffffffff), ROLL_E_SIZE); /* label_bytes */
#undef COMM
    assert_int_equal(decode_changed(16, 9, &s, sizeof(s), ROLL_DEF_CALLSITE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, 8, &s, sizeof(s), ROLL_DEF_CALLSITE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 4, 9, &s, sizeof(s), ROLL_DEF_CALLSITE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 4, 3, &s, sizeof(s), ROLL_DEF_CALLSITE), ROLL_E_SIZE);
    struct roll_def_source f = {.path_bytes = 1};
    struct roll_def_line l = {.function_bytes = 1};
    assert_int_equal(decode_changed(16, 1000, &f, sizeof(f), ROLL_DEF_SOURCE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 12, 1000, &l, sizeof(l), ROLL_DEF_LINE), ROLL_E_SIZE);
    struct roll_def_stand stand = {.lines = 0};
    struct roll_def_text text = {.text_bytes = 0};
    assert_int_equal(decode_changed(16, 8, &stand, sizeof(stand), ROLL_DEF_STAND), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, 9, &stand, sizeof(stand), ROLL_DEF_STAND), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, 200, &text, sizeof(text), ROLL_DEF_TEXT), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, ROLL_TEXT_BYTES + 1, &text, sizeof(text), ROLL_DEF_TEXT), ROLL_E_SIZE);
    struct roll_def_name n = {.text_bytes = 1};
    assert_int_equal(decode_changed(16 + 20, 1000, &n, sizeof(n), ROLL_DEF_NAME), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 26, 1000, &n, sizeof(n), ROLL_DEF_NAME), ROLL_E_SIZE);
    struct roll_def_sites sites = {.first = 1};
    assert_int_equal(decode_changed(16, 200, &sites, sizeof(sites), ROLL_DEF_SITES), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, ROLL_SITES_MOST + 1, &sites, sizeof(sites), ROLL_DEF_SITES), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, 0xffffffff, &sites, sizeof(sites), ROLL_DEF_SITES), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 4, 0, &sites, sizeof(sites), ROLL_DEF_SITES), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(16 + 4, 0x10000, &sites, sizeof(sites), ROLL_DEF_SITES), ROLL_E_CORRUPT);
    struct {
        struct roll_def_sites head;
        struct roll_site_number number[2];
    } two = {.head = {.sites = 2, .first = 1}}; /* 65535 is the last id that a call site can have */
    assert_int_equal(decode_changed(16 + 4, 0xfffe, &two, sizeof(two), ROLL_DEF_SITES), 0);
    assert_int_equal(decode_changed(16 + 4, 0xffff, &two, sizeof(two), ROLL_DEF_SITES), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(16 + 4, 0xffffffff, &two, sizeof(two), ROLL_DEF_SITES), ROLL_E_CORRUPT);
    two.head.sites = 1;
    assert_int_equal(decode_changed(16 + 4, 0xffff, &two, sizeof(two), ROLL_DEF_SITES), 0);
    assert_int_equal(decode_changed(16 + 4, 0x10000, &two, sizeof(two), ROLL_DEF_SITES), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(16 + 24, 21, &m, sizeof(m), ROLL_DEF_MODULE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16 + 48, 1000, &m, sizeof(m), ROLL_DEF_MODULE), ROLL_E_SIZE);
    assert_int_equal(decode_changed(16, 7, &m, sizeof(m), ROLL_DEF_MODULE), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(16 + 4, 1000, &t, sizeof(t), ROLL_DEF_THREAD), ROLL_E_SIZE);
}

static void an_unknown_type_is_skipped_not_refused(void **state)
{
    (void)state;
    struct roll_ring ring;
    make_ring(&ring, 0);
    assert_int_equal(roll_def_append(&ring, (enum roll_def_type)999, 5, "from the future", 15, NULL, 0), 0);
    append_one_of_each(&ring);
    size_t offset = 0;
    struct roll_def def;
    assert_int_equal(roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def), 0);
    assert_int_equal(def.type, 999);
    assert_int_equal(def.id, 5);
    assert_int_equal(roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def), 0);
    assert_int_equal(def.type, ROLL_DEF_COMM);
    roll_ring_close(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_goes_in_and_comes_out),
        cmocka_unit_test(an_unfinished_entry_hides_what_stands_behind_it),
        cmocka_unit_test(a_full_area_counts_the_loss_and_keeps_what_it_has),
        cmocka_unit_test(an_entry_that_is_too_large_is_refused),
        cmocka_unit_test(many_threads_define_and_a_reader_sees_only_whole_entries),
        cmocka_unit_test(a_log_cut_anywhere_is_valid_up_to_its_last_whole_entry),
        cmocka_unit_test(malformed_entries_are_refused),
        cmocka_unit_test(an_unknown_type_is_skipped_not_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
