/* test_rehearse.c: what `rollcall rehearse` looks at before it starts, and its report where parts of it are missing. */
#include "daemon/console/rehearse/rehearse.h"
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

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/rollcall-test-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"nvidiactl",      "nvidia-uvm",      "nvidia0",         "meminfo",
                                        "memory.max",     "memory.current",  "libnccl.so.2",    "libnccl.so",
                                        "libcublas.so.1", "libcudart.so.13", "libcudart.so.12", "libcudart.so.9",
                                        "libcuda.so.1",   "hostcuda.7"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unlink(path_of(names[i]));
    }
    return rmdir(folder);
}

static void a_gpu_is_a_device_with_a_number(void **state)
{
    char gpu[256];
    (void)state;
    put("nvidiactl", "");
    put("nvidia-uvm", "");
    assert_false(roll_rehearse_gpu(folder, gpu, sizeof(gpu)));
    put("nvidia0", "");
    assert_true(roll_rehearse_gpu(folder, gpu, sizeof(gpu)));
    assert_string_equal(gpu, path_of("nvidia0"));
    assert_false(roll_rehearse_gpu("/nonexistent", gpu, sizeof(gpu)));
}

static void free_memory_is_the_machines_or_the_groups(void **state)
{
    char meminfo[128];
    (void)state;
    put("meminfo", "MemTotal:       100 kB\nMemAvailable:    64 kB\n");
    snprintf(meminfo, sizeof(meminfo), "%s", path_of("meminfo"));
    assert_int_equal(roll_rehearse_free_bytes(meminfo, folder), 65536);
    put("memory.max", "max\n");
    put("memory.current", "1000\n");
    assert_int_equal(roll_rehearse_free_bytes(meminfo, folder), 65536);
    put("memory.max", "5000\n");
    assert_int_equal(roll_rehearse_free_bytes(meminfo, folder), 4000);
    put("memory.current", "6000\n");
    assert_int_equal(roll_rehearse_free_bytes(meminfo, folder), 0);
    assert_true(roll_rehearse_free_bytes("/nonexistent", "/nonexistent") == UINT64_MAX);
}

static void what_a_job_takes_follows_from_its_kind(void **state)
{
    (void)state;
    struct roll_rehearse_cost program = roll_rehearse_cost(false, false, 2), own = roll_rehearse_cost(true, false, 2),
                              shared = roll_rehearse_cost(true, true, 2), wide = roll_rehearse_cost(true, true, 64);
    assert_true(program.rank_bytes < shared.rank_bytes && shared.rank_bytes * 10 < own.rank_bytes);
    assert_int_equal(program.all_bytes + own.all_bytes, 0);
    assert_true(wide.all_bytes > shared.all_bytes && wide.rank_bytes == shared.rank_bytes);
    /* What docs/REHEARSE.md promises: 64 ranks on a machine of two processors with 8 GiB. */
    assert_true(shared.all_bytes + 64 * shared.rank_bytes < 8ull << 30);
}

static void stand_ins_have_their_order(void **state)
{
    char list[1024], want[1024], first[128];
    (void)state;
    assert_int_equal(roll_rehearse_preload(folder, "/nonexistent", list, sizeof(list)), ROLL_E_NOTFOUND);
    put("libnccl.so.2", "");
    put("libnccl.so", "");
    put("libcublas.so.1", "");
    put("libcudart.so.13", "");
    put("libcudart.so.12", "");
    put("libcudart.so.9", ""); /* a release is a number, not a word */
    put("libcuda.so.1", "");
    assert_int_equal(roll_rehearse_preload(folder, "/nonexistent", list, sizeof(list)), 0);
    snprintf(first, sizeof(first), "%s", folder);
    snprintf(want, sizeof(want), "%s/libcudart.so.13:%s/libcuda.so.1:%s/libnccl.so.2:%s/libcublas.so.1", first, first,
             first, first);
    assert_string_equal(list, want);
    assert_int_equal(roll_rehearse_preload(folder, "/nonexistent", list, 20), ROLL_E_SIZE);
    assert_int_equal(roll_rehearse_preload("/a folder", "/nonexistent", list, sizeof(list)), ROLL_E_ARG);
}

static void without_a_trace_the_report_has_no_ranks(void **state)
{
    const struct roll_rehearse_rank rank = {.peak_bytes = 1};
    (void)state;
    json_t *report = roll_rehearse_report(folder, folder, &rank, 1, NULL);
    assert_non_null(report);
    assert_int_equal(json_integer_value(json_object_get(report, "ranks")), 0);
    assert_int_equal(json_array_size(json_object_get(report, "communicators")), 0);
    assert_int_equal(json_array_size(json_object_get(report, "memory")), 1);
    json_decref(report);
}

/* Which ranks run, as --represent says it, folded; "" where it is refused. */
static const char *represented(const char *text, uint32_t ranks, uint32_t *world)
{
    static char out[64];
    struct roll_rankset run = {0};
    char why[128];
    out[0] = '\0';
    if (roll_represent_read(text, ranks, &run, world, why, sizeof(why)) == 0) {
        roll_rankset_format(&run, out, sizeof(out));
    }
    roll_rankset_fini(&run);
    return out;
}

static void ranks_that_run_are_a_number_or_a_set(void **state)
{
    uint32_t world = 0;
    (void)state;
    assert_string_equal(represented("8:64", 0, &world), "0-7");
    assert_int_equal(world, 64);
    assert_string_equal(represented("8", 64, &world), "0-7");
    assert_string_equal(represented("8:64", 64, &world), "0-7");
    assert_string_equal(represented("64:64", 0, &world), "0-63");
    assert_string_equal(represented("16-17,0,8:4096", 0, &world), "0,8,16-17");
    assert_int_equal(world, 4096);
    assert_string_equal(represented("5-5", 8, &world), "5");
    static const char *const wrong[] = {
        "",     ":",    ":64",   "0:64",   "65:64",   "8:", "8:0",     "8:4097", "8:x",
        "x:64", "-:64", "1-:64", "3-1:64", "0,64:64", "8",  "8:64:64", "-1:64",  "99999999999:64"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_string_equal(represented(wrong[i], 0, &world), "");
    }
    assert_string_equal(represented("8:64", 32, &world), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_gpu_is_a_device_with_a_number, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(free_memory_is_the_machines_or_the_groups, make_folder, remove_folder),
        cmocka_unit_test(what_a_job_takes_follows_from_its_kind),
        cmocka_unit_test(ranks_that_run_are_a_number_or_a_set),
        cmocka_unit_test_setup_teardown(stand_ins_have_their_order, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(without_a_trace_the_report_has_no_ranks, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
