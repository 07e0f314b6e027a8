/*
 * test_ring_life.c: makes and opens ring files, and checks which files are refused.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring_write.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const struct roll_ring_params small = {
    .capacity = 100, .world_rank = 3, .world_size = 8, .local_rank = 1, .restart = 2, .job = "job.1"};

static void a_new_ring_says_who_made_it(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    const char *path = scratch_path(dir, "x.ring");
    struct roll_ring ring;
    assert_int_equal(roll_ring_create(path, &small, &ring), 0);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_size, ring.header->file_bytes);
    assert_true((uint64_t)info.st_blocks * 512 >= ring.header->file_bytes); /* no holes */
    struct roll_ring other;
    assert_int_equal(roll_ring_open(path, false, &other), 0);
    const struct roll_ring_header *h = other.header;
    assert_int_equal(h->capacity, 128);
    assert_int_equal(other.mask, 127);
    assert_int_equal(h->pid, getpid());
    assert_int_equal(h->world_rank, 3);
    assert_int_equal(h->world_size, 8);
    assert_int_equal(h->local_rank, 1);
    assert_int_equal(h->restart, 2);
    assert_string_equal(h->job, "job.1");
    assert_string_equal(h->exe, "test_trace_ring_life");
    assert_true(h->start_ticks > 0);
    assert_int_not_equal(h->epoch, 0);
    assert_int_equal(atomic_load(&h->state), ROLL_RING_ATTACHED);
    assert_int_equal(atomic_load(&h->exit_status), ROLL_EXIT_UNKNOWN);
    assert_true(atomic_load(&h->clock_real_ns) > atomic_load(&h->clock_mono_ns));
    roll_ring_close(&other);
    roll_ring_close(&ring);
    roll_ring_close(&ring);
    assert_int_equal(scratch_remove(dir), 1);
}

static void a_header_that_is_overwritten_later_moves_no_bound_of_a_reader(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    const char *path = scratch_path(dir, "x.ring");
    struct roll_ring ring, reader;
    assert_int_equal(roll_ring_create(path, &small, &ring), 0);
    assert_int_equal(roll_ring_open(path, false, &reader), 0);
    uint64_t defs_bytes = ring.header->defs_bytes;
    ring.header->defs_bytes = UINT64_MAX;
    ring.header->capacity = UINT32_MAX;
    assert_int_equal(reader.defs_bytes, defs_bytes);
    assert_int_equal(reader.mask, 127);
    roll_ring_close(&reader);
    roll_ring_close(&ring);
    assert_int_equal(scratch_remove(dir), 1);
}

static void an_agent_may_write_the_exit_status_through_its_own_mapping(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    const char *path = scratch_path(dir, "x.ring");
    struct roll_ring ring;
    struct roll_ring agent;
    assert_int_equal(roll_ring_create(path, &small, &ring), 0);
    assert_int_equal(roll_ring_open(path, true, &agent), 0);
    atomic_store(&agent.header->exit_status, 9);
    assert_int_equal(atomic_load(&ring.header->exit_status), 9);
    roll_ring_close(&agent);
    roll_ring_close(&ring);
    scratch_remove(dir);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    struct roll_ring ring;
    struct roll_ring_params params = small;
    params.capacity = ROLL_RING_MAX_RECORDS + 1;
    assert_int_equal(roll_ring_create(NULL, &params, &ring), ROLL_E_ARG);
    params = small;
    params.defs_bytes = ROLL_RING_MAX_DEFS_BYTES + 1;
    assert_int_equal(roll_ring_create(NULL, &params, &ring), ROLL_E_ARG);
    params = small;
    params.world_rank = -2;
    assert_int_equal(roll_ring_create(NULL, &params, &ring), ROLL_E_ARG);
    assert_null(ring.header);
}

static void names_that_are_too_long_are_cut(void **state)
{
    (void)state;
    char text[400];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    struct roll_ring_params params = {
        .capacity = 64, .world_rank = -1, .world_size = -1, .local_rank = -1, .job = text, .host = text, .exe = text};
    struct roll_ring ring;
    assert_int_equal(roll_ring_create(NULL, &params, &ring), 0);
    assert_int_equal(strlen(ring.header->job), 63);
    assert_int_equal(strlen(ring.header->host), 63);
    assert_int_equal(strlen(ring.header->exe), 127);
    assert_true(ring.anonymous);
    assert_int_equal(roll_ring_check(ring.header, ring.bytes), 0);
    roll_ring_close(&ring);
}

static void a_missing_directory_and_an_unwritable_one_are_told_apart(void **state)
{
    (void)state;
    struct roll_ring ring;
    assert_int_equal(roll_ring_create("/nonexistent/x.ring", &small, &ring), ROLL_E_NOTFOUND);
    assert_int_equal(roll_ring_create("/proc/x.ring", &small, &ring), ROLL_E_NOTFOUND);
    assert_int_equal(roll_ring_open("/nonexistent/x.ring", false, &ring), ROLL_E_NOTFOUND);
    assert_null(ring.header);
}

/* In a child: a limit on file sizes gives LIMIT, not SIGXFSZ, and leaves nothing behind. */
static void a_file_size_limit_is_an_error_not_a_signal(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {65536, 65536};
        struct roll_ring ring;
        struct roll_ring_params params = {.job = "x"};
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(roll_ring_create(scratch_path(dir, "x.ring"), &params, &ring) == ROLL_E_LIMIT ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(scratch_remove(dir), 0);
}

/* A mount namespace of our own: as root at once, else as root of a user namespace. */
static bool own_namespace(void)
{
    char map[64];
    snprintf(map, sizeof(map), "0 %u 1", (unsigned)geteuid());
    if (unshare(CLONE_NEWNS) == 0) {
        return true;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return false;
    }
    int fd = open("/proc/self/uid_map", O_WRONLY);
    bool mapped = fd >= 0 && write(fd, map, strlen(map)) == (ssize_t)strlen(map);
    close(fd);
    return mapped;
}

/* A file system of 1 MiB of its own. 0 good, 1 wrong, 77 no namespace here. */
static int fill_small_disk(const char *dir)
{
    if (!own_namespace() || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", dir, "tmpfs", 0, "size=1m") != 0) {
        return 77;
    }
    struct roll_ring ring;
    struct roll_ring_params params = {.job = "x"}; /* the default ring is larger than the disk */
    int err = roll_ring_create(scratch_path(dir, "x.ring"), &params, &ring);
    DIR *handle = opendir(dir);
    int files = 0;
    while (handle != NULL && readdir(handle) != NULL) {
        files++;
    }
    return err == ROLL_E_SPACE && files == 2 ? 0 : 1;
}

static void a_full_disk_is_an_error_not_a_bus_error(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(fill_small_disk(dir));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    scratch_remove(dir);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: this machine allows no file system in a namespace\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a root directory of our own there is no /proc to name a nameless file with. 0 good, 1 wrong, 77 not allowed here.
 */
static int make_without_proc(const char *dir)
{
    if (!own_namespace() || chroot(dir) != 0 || chdir("/") != 0) {
        return 77;
    }
    struct roll_ring ring;
    return roll_ring_create("/x.ring", &small, &ring) == 0 && roll_ring_create("x.ring", &small, &ring) == 0 ? 0 : 1;
}

static void without_nameless_files_a_temporary_name_is_used_and_goes(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(make_without_proc(dir));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    struct roll_ring ring;
    int err = roll_ring_open(scratch_path(dir, "x.ring"), false, &ring);
    roll_ring_close(&ring);
    int files = scratch_remove(dir);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("skipped: this machine allows no root directory of our own\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(err, 0);
    assert_int_equal(files, 1);
}

static void a_ring_of_the_same_name_is_replaced(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    struct roll_ring first;
    struct roll_ring second;
    struct roll_ring found;
    assert_int_equal(roll_ring_create(scratch_path(dir, "x.ring"), &small, &first), 0);
    assert_int_equal(roll_ring_create(scratch_path(dir, "x.ring"), &small, &second), 0);
    assert_int_equal(roll_ring_open(scratch_path(dir, "x.ring"), false, &found), 0);
    assert_true(found.header->epoch == second.header->epoch && found.header->epoch != first.header->epoch);
    roll_ring_close(&first);
    roll_ring_close(&second);
    roll_ring_close(&found);
    assert_int_equal(scratch_remove(dir), 1);
}

/* A whole ring in memory, for the tests that damage it. */
static uint8_t *copy_of_ring(size_t *bytes)
{
    struct roll_ring ring;
    struct roll_ring_params params = {.capacity = 64, .defs_bytes = 4096, .world_rank = 0, .world_size = 1, .job = "x"};
    assert_int_equal(roll_ring_create(NULL, &params, &ring), 0);
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&ring, &ticket);
    rec->op = 1;
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    *bytes = ring.bytes;
    uint8_t *copy = malloc(ring.bytes);
    assert_non_null(copy);
    memcpy(copy, ring.header, ring.bytes);
    roll_ring_close(&ring);
    return copy;
}

static void a_ring_cut_at_any_length_is_refused(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *copy = copy_of_ring(&bytes);
    assert_int_equal(roll_ring_check(copy, bytes), 0);
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(roll_ring_check(copy, cut), ROLL_E_SHORT);
    }
    free(copy);
}

static void every_flipped_bit_of_the_static_header_is_noticed(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *copy = copy_of_ring(&bytes);
    size_t end = offsetof(struct roll_ring_header, static_crc) + 4;
    for (size_t bit = 0; bit < end * 8; bit++) {
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = roll_ring_check(copy, bytes);
        assert_true(err == ROLL_E_MAGIC || err == ROLL_E_VERSION || err == ROLL_E_CHECKSUM);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(roll_ring_check(copy, bytes), 0);
    free(copy);
}

/* Fields that contradict each other behind a good checksum. */
static int check_changed(uint8_t *copy, size_t bytes, size_t offset, uint64_t value, size_t width)
{
    uint8_t kept[sizeof(value)];
    uint8_t kept_crc[4];
    size_t crc_at = offsetof(struct roll_ring_header, static_crc);
    memcpy(kept, copy + offset, width);
    memcpy(kept_crc, copy + crc_at, 4);
    memcpy(copy + offset, &value, width);
    uint32_t crc = roll_crc32c(0, copy, crc_at);
    memcpy(copy + crc_at, &crc, 4);
    int err = roll_ring_check(copy, bytes);
    memcpy(copy + offset, kept, width);
    memcpy(copy + crc_at, kept_crc, 4);
    return err;
}

static void contradictions_behind_a_good_checksum_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *copy = copy_of_ring(&bytes);
#define CHANGED(member, value)                                                                                         \
    check_changed(copy, bytes, offsetof(struct roll_ring_header, member), (uint64_t)(value),                           \
                  sizeof(((struct roll_ring_header *)0)->member))
    assert_int_equal(CHANGED(oldest, 3), ROLL_E_VERSION);
    assert_int_equal(CHANGED(version, 0), ROLL_E_VERSION);
    assert_int_equal(CHANGED(version, 3), 0); /* a newer version whose `oldest` says that version 2 can read it */
    assert_int_equal(CHANGED(header_bytes, 64), ROLL_E_SIZE);
    assert_int_equal(CHANGED(record_bytes, 128), ROLL_E_SIZE);
    assert_int_equal(CHANGED(capacity, 0), ROLL_E_SIZE);
    assert_int_equal(CHANGED(capacity, 96), ROLL_E_SIZE);
    assert_int_equal(CHANGED(capacity, 1u << 31), ROLL_E_SIZE);
    assert_int_equal(CHANGED(defs_offset, 8192), ROLL_E_SIZE);
    assert_int_equal(CHANGED(defs_bytes, UINT64_MAX - 63), ROLL_E_SIZE);
    assert_int_equal(CHANGED(records_offset, 0), ROLL_E_SIZE);
    assert_int_equal(CHANGED(file_bytes, 64), ROLL_E_SIZE);
    assert_int_equal(CHANGED(pid, 0), ROLL_E_CORRUPT);
    assert_int_equal(CHANGED(epoch, 0), ROLL_E_CORRUPT);
    assert_int_equal(CHANGED(world_rank, -2), ROLL_E_CORRUPT);
#undef CHANGED
    memset(copy + offsetof(struct roll_ring_header, host), 'x', ROLL_NAME_BYTES);
    uint32_t crc = roll_crc32c(0, copy, offsetof(struct roll_ring_header, static_crc));
    memcpy(copy + offsetof(struct roll_ring_header, static_crc), &crc, 4);
    assert_int_equal(roll_ring_check(copy, bytes), ROLL_E_CORRUPT);
    free(copy);
}

static void a_hostile_head_or_seal_cannot_lead_a_reader_astray(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *copy = copy_of_ring(&bytes);
    struct roll_ring ring;
    assert_int_equal(roll_ring_view(copy, bytes, &ring), 0);
    assert_int_equal(roll_ring_view(copy + 4, bytes - 4, &(struct roll_ring){0}), ROLL_E_ARG);
    static const uint64_t heads[] = {0, 1, 64, 65, UINT64_MAX / 2, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        for (size_t j = 0; j < sizeof(heads) / sizeof(heads[0]); j++) {
            atomic_store(&ring.header->head, heads[i]);
            struct roll_record out[8];
            uint64_t next = 0;
            uint64_t lost = 0;
            size_t n = roll_ring_read(&ring, heads[j], out, 8, &next, &lost);
            assert_true(n <= 8);
            assert_true(next >= heads[j] || heads[j] > heads[i]);
        }
    }
    roll_ring_close(&ring);
    free(copy);
}

static void other_files_are_refused_with_the_reason(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    struct roll_ring ring;
    assert_int_equal(roll_ring_open(dir, false, &ring), ROLL_E_CORRUPT);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", scratch_path(dir, "x.ring"));
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(roll_ring_open(path, false, &ring), ROLL_E_SHORT);
    assert_int_equal(write(fd, "#!/bin/sh\necho hello\n", 21), 21);
    assert_int_equal(roll_ring_open(path, false, &ring), ROLL_E_MAGIC);
    close(fd);
    char link_path[PATH_MAX];
    snprintf(link_path, sizeof(link_path), "%s", scratch_path(dir, "link"));
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(roll_ring_open(link_path, false, &ring), ROLL_E_DENIED);
    char fifo[PATH_MAX];
    snprintf(fifo, sizeof(fifo), "%s", scratch_path(dir, "fifo"));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(roll_ring_open(fifo, false, &ring), ROLL_E_CORRUPT);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_ring_says_who_made_it),
        cmocka_unit_test(a_header_that_is_overwritten_later_moves_no_bound_of_a_reader),
        cmocka_unit_test(an_agent_may_write_the_exit_status_through_its_own_mapping),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(names_that_are_too_long_are_cut),
        cmocka_unit_test(a_missing_directory_and_an_unwritable_one_are_told_apart),
        cmocka_unit_test(a_file_size_limit_is_an_error_not_a_signal),
        cmocka_unit_test(a_full_disk_is_an_error_not_a_bus_error),
        cmocka_unit_test(without_nameless_files_a_temporary_name_is_used_and_goes),
        cmocka_unit_test(a_ring_of_the_same_name_is_replaced),
        cmocka_unit_test(a_ring_cut_at_any_length_is_refused),
        cmocka_unit_test(every_flipped_bit_of_the_static_header_is_noticed),
        cmocka_unit_test(contradictions_behind_a_good_checksum_are_refused),
        cmocka_unit_test(a_hostile_head_or_seal_cannot_lead_a_reader_astray),
        cmocka_unit_test(other_files_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
