/*
 * test_ident.c: identities from a made-up environment, keys, names of files.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/def.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The environment of the current test: name, value, ..., NULL. */
static const char *const *environment;

static const char *get(const char *name)
{
    for (const char *const *p = environment; *p != NULL; p += 2) {
        if (strcmp(p[0], name) == 0) {
            return p[1];
        }
    }
    return NULL;
}

static struct roll_ident read_with(const char *const *pairs)
{
    struct roll_ident ident;
    environment = pairs;
    roll_ident_read(get, &ident);
    return ident;
}
#define ENV(...) read_with((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void an_empty_environment_is_a_local_job_of_unknown_size(void **state)
{
    (void)state;
    struct roll_ident i = ENV();
    assert_string_equal(i.job, "local");
    assert_int_equal(i.restart, 0);
    assert_int_equal(i.rank, -1);
    assert_int_equal(i.size, -1);
    assert_int_equal(i.local_rank, -1);
}

static void each_launcher_is_understood(void **state)
{
    (void)state;
    struct roll_ident i = ENV("RANK", "3", "WORLD_SIZE", "8", "LOCAL_RANK", "1");
    assert_true(i.rank == 3 && i.size == 8 && i.local_rank == 1);
    i = ENV("SLURM_PROCID", "4", "SLURM_NTASKS", "16", "SLURM_LOCALID", "0");
    assert_true(i.rank == 4 && i.size == 16 && i.local_rank == 0);
    i = ENV("OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE", "6", "OMPI_COMM_WORLD_LOCAL_RANK", "2");
    assert_true(i.rank == 5 && i.size == 6 && i.local_rank == 2);
    i = ENV("PMI_RANK", "6", "PMI_SIZE", "7", "MPI_LOCALRANKID", "3");
    assert_true(i.rank == 6 && i.size == 7 && i.local_rank == 3);
    i = ENV("PMIX_RANK", "9");
    assert_true(i.rank == 9 && i.size == -1 && i.local_rank == -1);
}

static void the_inner_launcher_wins_as_a_whole(void **state)
{
    (void)state;
    struct roll_ident i =
        ENV("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_LOCALID", "0", "RANK", "11", "WORLD_SIZE", "16");
    assert_true(i.rank == 11 && i.size == 16 && i.local_rank == -1);
    i = ENV("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "RANK", "11");
    assert_true(i.rank == 11 && i.size == -1);
}

static void values_that_are_no_numbers_in_range_are_ignored(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "-1", "x", "3x", " 3", "+3", "2147483648", "99999999999999999999", "0x3"};
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        struct roll_ident i = ENV("RANK", bad[b], "WORLD_SIZE", bad[b], "ROLLCALL_RESTART", bad[b]);
        assert_true(i.rank == -1 && i.size == -1 && i.restart == 0);
    }
    struct roll_ident i = ENV("RANK", "x", "SLURM_PROCID", "2", "SLURM_NTASKS", "4");
    assert_true(i.rank == 2 && i.size == 4);
    i = ENV("RANK", "8", "WORLD_SIZE", "8");
    assert_true(i.rank == 8 && i.size == -1); /* a rank outside its world: the size is wrong */
    i = ENV("RANK", "0", "WORLD_SIZE", "0");
    assert_true(i.rank == 0 && i.size == -1);
}

static void the_job_is_named_and_cleaned(void **state)
{
    (void)state;
    assert_string_equal(ENV("ROLLCALL_JOB", "a", "SLURM_JOB_ID", "7").job, "a");
    assert_string_equal(ENV("SLURM_JOB_ID", "7", "TORCHELASTIC_RUN_ID", "t").job, "7");
    assert_string_equal(ENV("SLURM_JOB_ID", "7", "SLURM_STEP_ID", "3").job, "7.3");
    assert_string_equal(ENV("TORCHELASTIC_RUN_ID", "t").job, "t");
    assert_string_equal(ENV("ROLLCALL_JOB", "../../etc/x y").job, "_._.._etc_x_y");
    assert_string_equal(ENV("ROLLCALL_JOB", "").job, "local");
    char text[200];
    memset(text, 'j', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(strlen(ENV("ROLLCALL_JOB", text).job), ROLL_JOB_BYTES - 1);
}

static void the_restart_count_is_found(void **state)
{
    (void)state;
    assert_int_equal(ENV("TORCHELASTIC_RESTART_COUNT", "2").restart, 2);
    assert_int_equal(ENV("SLURM_RESTART_COUNT", "3").restart, 3);
    assert_int_equal(ENV("SLURM_RESTART_COUNT", "3", "ROLLCALL_RESTART", "1").restart, 1);
}

static void keys_are_stable_and_tell_communicators_apart(void **state)
{
    (void)state;
    uint8_t id[128] = {0};
    uint64_t zero = roll_key_unique_id(id, sizeof(id));
    assert_int_not_equal(zero, 0);
    for (size_t bit = 0; bit < sizeof(id) * 8; bit++) {
        id[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(roll_key_unique_id(id, sizeof(id)) != zero);
        id[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* The hash is part of the format: every version of rollcall in a job must compute the same key. */
    assert_true(zero == 0x1825379e981a90deu);
    assert_true(roll_key_child(zero, 0, 1) == 0xf52fba878f671f1du);
    uint64_t seen[64];
    size_t n = 0;
    for (uint32_t child = 0; child < 8; child++) {
        for (int32_t color = 0; color < 8; color++) {
            seen[n++] = roll_key_child(zero, child, color == 7 ? ROLL_COLOR_NONE : color);
        }
    }
    for (size_t a = 0; a < n; a++) {
        for (size_t b = a + 1; b < n; b++) {
            assert_true(seen[a] != seen[b]);
        }
    }
}

static void the_hash_spreads_single_bits(void **state)
{
    (void)state;
    uint8_t data[24] = {0};
    uint64_t base = roll_hash64(0, data, sizeof(data));
    unsigned least = 64;
    for (size_t bit = 0; bit < sizeof(data) * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        unsigned flipped = (unsigned)__builtin_popcountll(base ^ roll_hash64(0, data, sizeof(data)));
        least = flipped < least ? flipped : least;
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(least >= 12);
    assert_true(roll_hash64(0, "a", 1) != roll_hash64(0, "a\0", 2));
    assert_true(roll_hash64(0, "", 0) != roll_hash64(1, "", 0));
}

static void files_have_the_documented_names(void **state)
{
    (void)state;
    struct roll_ident i = ENV("RANK", "3", "ROLLCALL_JOB", "j", "ROLLCALL_RESTART", "2");
    char path[64];
    assert_int_equal(roll_ring_path(path, sizeof(path), "/d", &i, 99), 0);
    assert_string_equal(path, "/d/j.2.3.99.ring");
    i.rank = -1;
    assert_int_equal(roll_ring_path(path, sizeof(path), "/d", &i, 99), 0);
    assert_string_equal(path, "/d/j.2.p.99.ring");
    assert_int_equal(roll_control_path(path, sizeof(path), "/d", "j", 2), 0);
    assert_string_equal(path, "/d/j.2.ctl");
    assert_int_equal(roll_control_path(path, 10, "/d", "j", 2), ROLL_E_SIZE);
    assert_int_equal(roll_default_dir(path, sizeof(path)), 0);
    char want[64];
    snprintf(want, sizeof(want), "%s/rollcall-%u", access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp",
             (unsigned)geteuid());
    assert_string_equal(path, want);
    assert_int_equal(roll_default_dir(path, 4), ROLL_E_SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_environment_is_a_local_job_of_unknown_size),
        cmocka_unit_test(each_launcher_is_understood),
        cmocka_unit_test(the_inner_launcher_wins_as_a_whole),
        cmocka_unit_test(values_that_are_no_numbers_in_range_are_ignored),
        cmocka_unit_test(the_job_is_named_and_cleaned),
        cmocka_unit_test(the_restart_count_is_found),
        cmocka_unit_test(keys_are_stable_and_tell_communicators_apart),
        cmocka_unit_test(the_hash_spreads_single_bits),
        cmocka_unit_test(files_have_the_documented_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
