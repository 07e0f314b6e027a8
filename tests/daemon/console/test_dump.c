/*
 * test_dump.c: `rollcall dump` of a ring, a control page and a trace whose every byte is known, against golden files.
 *
 * With ROLL_GOLDEN_UPDATE=1 the golden files are written anew instead (look at the difference before committing).
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"

#include "daemon/base/file.h"
#include "daemon/console/dump/dump.h"

#include "trace/control.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/op.h"
#include "trace/ring.h"
#include "trace/ring_write.h"

#define GOLDEN "tests/daemon/console/golden/" /* tests run in the source directory */

static const struct roll_record example = {.enter_ns = 1000000,
                                           .count = 1024,
                                           .seq = 4,
                                           .peer = ROLL_PEER_NONE,
                                           .call_ns = 1200,
                                           .step = 7,
                                           .comm = 1,
                                           .stream = 1,
                                           .callsite = 1,
                                           .thread = 1,
                                           .layer = 2,
                                           .op = ROLL_OP_ALLREDUCE,
                                           .dtype = ROLL_DTYPE_FLOAT32,
                                           .redop = ROLL_RED_SUM,
                                           .flags = ROLL_FLAG_INPLACE,
                                           .phase = ROLL_PHASE_BACKWARD};

static void write_record(struct roll_ring *ring, uint32_t seq, enum roll_state state)
{
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(ring, &ticket);
    uint64_t seal = rec->seal;
    *rec = example;
    rec->seal = seal;
    rec->seq = seq;
    rec->enter_ns += 1000 * seq;
    roll_ring_publish(rec, ticket, state);
}

/* Everything that differs from run to run gets a fixed value, and the checksum is made good. */
static void fix_header(struct roll_ring_header *h)
{
    h->pid = 4242;
    h->epoch = 0x1122334455667788u;
    h->start_ticks = 99;
    for (unsigned i = 0; i < 16; i++) {
        h->boot_id[i] = (uint8_t)i;
    }
    atomic_store(&h->clock_mono_ns, 5000000);
    atomic_store(&h->clock_real_ns, 1700000000000000000u);
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
}

static void make_ring(const char *path)
{
    struct roll_ring_params params = {.capacity = 64,
                                      .defs_bytes = 4096,
                                      .world_rank = 3,
                                      .world_size = 4,
                                      .local_rank = 3,
                                      .job = "golden",
                                      .host = "node-1",
                                      .exe = "train"};
    struct roll_def_comm comm = {.key = 0xabcdef,
                                 .rank = 3,
                                 .nranks = 4,
                                 .color = ROLL_COLOR_NONE,
                                 .origin = ROLL_COMM_INIT,
                                 .device = 0,
                                 .label_bytes = 2};
    struct roll_def_module module = {
        .start = 0x400000, .end = 0x500000, .build_id_bytes = 4, .build_id = {1, 2, 3, 4}, .path_bytes = 10};
    struct {
        struct roll_def_callsite head;
        uint64_t pc[2];
    } callsite = {{.depth = 2}, {0x401000, 0x402000}};
    struct roll_def_stream stream = {.handle = 0x10};
    struct roll_ring ring;
    assert_int_equal(roll_ring_create(path, &params, &ring), 0);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_COMM, 1, &comm, sizeof(comm), "dp", 2), 0);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_MODULE, 1, &module, sizeof(module), "/opt/train", 10), 0);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_CALLSITE, 1, &callsite, sizeof(callsite), NULL, 0), 0);
    assert_int_equal(roll_def_append(&ring, ROLL_DEF_STREAM, 2, &stream, sizeof(stream), NULL, 0), 0);
    write_record(&ring, 4, ROLL_STATE_RETURNED);
    write_record(&ring, 5, ROLL_STATE_ENTERED);
    atomic_store(&ring.header->losses[ROLL_LOSS_CALLSITE], 7);
    atomic_store(&ring.header->exit_status, 9);
    fix_header(ring.header);
    roll_ring_close(&ring);
}

static size_t add_frame(uint8_t *out, size_t at, size_t size, struct roll_frame_head head, const void *payload,
                        size_t bytes)
{
    int64_t n = roll_frame_encode(&head, payload, bytes, out + at, size - at);
    assert_true(n > 0);
    return at + (size_t)n;
}

static size_t make_trace(uint8_t *out, size_t size)
{
    struct roll_record rec[2] = {example, example};
    struct roll_frame_status status = {.head = 2, .proc_state = ROLL_PROC_DEAD, .exit_status = 9, .finish_ns = 77};
    size_t at = ROLL_TRACE_HEAD_BYTES;
    rec[0].seal = roll_seal(0, ROLL_STATE_RETURNED);
    rec[1].seal = roll_seal(1, ROLL_STATE_ENTERED);
    rec[1].seq = 5;
    roll_trace_head(out);
    at = add_frame(
        out, at, size,
        (struct roll_frame_head){.type = ROLL_FRAME_RECORDS, .rec_size = 64, .count = 2, .seq = 1, .stream = 0x55}, rec,
        sizeof(rec));
    at = add_frame(out, at, size, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .seq = 2, .stream = 0x55},
                   &status, sizeof(status));
    at = add_frame(out, at, size, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = 1700000000000000000u}, NULL,
                   0);
    return at;
}

/* Dumps and compares with the golden file. Returns what the dump returned. */
static int dump_and_compare(const char *name, bool json, const void *data, size_t bytes)
{
    char *text = NULL;
    size_t size = 0, golden_size = 0;
    char *golden = NULL;
    FILE *f = open_memstream(&text, &size);
    struct roll_dump dump = {.out = f, .json = json};
    int err = roll_dump_any(&dump, data, bytes);
    fclose(f);
    char path[256];
    snprintf(path, sizeof(path), GOLDEN "%s", name);
    if (getenv("ROLL_GOLDEN_UPDATE") != NULL) {
        f = fopen(path, "w");
        assert_non_null(f);
        fwrite(text, 1, size, f);
        fclose(f);
    }
    assert_int_equal(roll_read_whole(path, SIZE_MAX, &golden, &golden_size), 0);
    assert_string_equal(text, golden);
    free(golden);
    free(text);
    return err;
}

static void test_ring_dump_is_as_the_golden_file(void **state)
{
    (void)state;
    char dir[64];
    char *data = NULL;
    size_t bytes = 0;
    scratch_make(dir);
    make_ring(scratch_path(dir, "a.ring"));
    assert_int_equal(roll_read_whole(scratch_path(dir, "a.ring"), SIZE_MAX, &data, &bytes), 0);
    assert_int_equal(dump_and_compare("ring.txt", false, data, bytes), 0);
    assert_int_equal(dump_and_compare("ring.ndjson", true, data, bytes), 0);
    free(data);
    scratch_remove(dir);
}

static void test_control_dump_is_as_the_golden_file(void **state)
{
    (void)state;
    char dir[64];
    struct roll_control *control = NULL;
    char *data = NULL;
    size_t bytes = 0;
    scratch_make(dir);
    assert_int_equal(roll_control_open(scratch_path(dir, "a.ctl"), true, ROLL_POLICY_ADVISE, &control), 0);
    struct roll_control_change layer = {.level = 2, .action = 1, .mask = ROLL_REMEDY_FILL, .layer = 3};
    struct roll_control_change group = {.level = 1, .action = 2, .mask = ROLL_REMEDY_PAD, .comm_key = 0xabc};
    assert_int_equal(roll_control_apply(control, &layer), 0);
    assert_int_equal(roll_control_apply(control, &group), 0);
    roll_control_close(&control);
    assert_int_equal(roll_read_whole(scratch_path(dir, "a.ctl"), SIZE_MAX, &data, &bytes), 0);
    assert_int_equal(dump_and_compare("control.txt", false, data, bytes), 0);
    free(data);
    scratch_remove(dir);
}

static void test_trace_dump_is_as_the_golden_file(void **state)
{
    (void)state;
    static uint8_t data[4096];
    size_t bytes = make_trace(data, sizeof(data));
    assert_int_equal(dump_and_compare("trace.txt", false, data, bytes), 0);
    assert_int_equal(dump_and_compare("trace.ndjson", true, data, bytes), 0);
    /* Cut in the middle of the last frame: everything before it is shown. */
    assert_int_equal(dump_and_compare("trace_cut.txt", false, data, bytes - 5), ROLL_E_INCOMPLETE);
}

static void test_damaged_files_are_refused_with_their_error(void **state)
{
    (void)state;
    char dir[64];
    char *data = NULL;
    size_t bytes = 0;
    FILE *f = fopen("/dev/null", "w");
    struct roll_dump dump = {.out = f};
    scratch_make(dir);
    make_ring(scratch_path(dir, "a.ring"));
    assert_int_equal(roll_read_whole(scratch_path(dir, "a.ring"), SIZE_MAX, &data, &bytes), 0);
    uint8_t *b = (uint8_t *)data;
    assert_int_equal(roll_dump_any(&dump, data, bytes - 1), ROLL_E_SHORT);
    assert_int_equal(roll_dump_any(&dump, data, 3), ROLL_E_SHORT);
    b[200] ^= 1;
    assert_int_equal(roll_dump_any(&dump, data, bytes), ROLL_E_CHECKSUM);
    b[200] ^= 1;
    b[8] = 9;
    b[10] = 9;
    assert_int_equal(roll_dump_any(&dump, data, bytes), ROLL_E_VERSION);
    b[0] = 'X';
    assert_int_equal(roll_dump_any(&dump, data, bytes), ROLL_E_MAGIC);
    free(data);
    fclose(f);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_dump_is_as_the_golden_file),
        cmocka_unit_test(test_control_dump_is_as_the_golden_file),
        cmocka_unit_test(test_trace_dump_is_as_the_golden_file),
        cmocka_unit_test(test_damaged_files_are_refused_with_their_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
