/*
 * test_source.c: lines of source that are read for other processes: what may be read, and what is made of it.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/stack/source_line.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[] = "/tmp/rollcall-source-XXXXXX";
static pid_t rank;

static void a_line_is_cut_out_of_a_file(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t line;
        const char *want; /* NULL: nothing */
    } cases[] = {
        {"one\n  two = 2\t\r\nthree", 2, "two = 2"},
        {"one\n  two = 2\nthree", 3, "three"},
        {"one\n", 1, "one"},
        {"one\n", 2, NULL},
        {"one\n", 0, NULL},
        {"one\n", 4000000000u, NULL},
        {"", 1, NULL},
        {"   \n", 1, NULL},
        {"a\033[31mb\x7f", 1, "a?[31mb?"},
        {"a\tb", 1, "a b"},
        {"\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x9a\x80", 1, "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x9a\x80"},
        {"\xff\xc0\xaf\xe4\xb8", 1, "?????"},
        {"if x: \xe2\x80\xae return", 1, "if x: ? return"}, /* a mark that turns the text behind it round */
        {"\xc2\x9b"
         "2J",
         1, "?2J"}, /* the one-byte form of a terminal's escape */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char out[ROLL_TEXT_BYTES + 1];
        bool said = roll_source_line_of(cases[i].bytes, strlen(cases[i].bytes), cases[i].line, out);
        assert_int_equal(said, cases[i].want != NULL);
        if (said) {
            assert_string_equal(out, cases[i].want);
        }
    }
}

static void a_long_line_ends_in_an_ellipsis(void **state)
{
    (void)state;
    char bytes[1000], out[ROLL_TEXT_BYTES + 1];
    memset(bytes, 'x', sizeof(bytes));
    assert_true(roll_source_line_of(bytes, ROLL_TEXT_BYTES, 1, out));
    assert_int_equal(strlen(out), ROLL_TEXT_BYTES);
    assert_int_equal(out[ROLL_TEXT_BYTES - 1], 'x');
    assert_true(roll_source_line_of(bytes, sizeof(bytes), 1, out));
    assert_int_equal(strlen(out), ROLL_TEXT_BYTES);
    assert_string_equal(out + ROLL_TEXT_BYTES - 3, "\xe2\x80\xa6");
    for (size_t i = 0; i + 1 < sizeof(bytes); i += 2) {
        memcpy(bytes + i, "\xc3\xa9", 2);
    }
    assert_true(roll_source_line_of(bytes, sizeof(bytes), 1, out));
    assert_true(strlen(out) <= ROLL_TEXT_BYTES);
    assert_string_equal(out + strlen(out) - 5, "\xc3\xa9\xe2\x80\xa6");
}

static void the_lines_around_one_keep_their_blanks(void **state)
{
    (void)state;
    static const char bytes[] = "a\n  b\n\n\td\r\ne\nf\x1b\ng\nh\n";
    struct roll_source_lines out;
    assert_true(roll_source_around_of(bytes, sizeof(bytes) - 1, 5, &out));
    assert_int_equal(out.first, 2);
    assert_int_equal(out.lines, 7);
    static const char *const want[] = {"  b", "", " d", "e", "f?", "g", "h"};
    for (uint32_t i = 0; i < out.lines; i++) {
        assert_string_equal(out.text[i], want[i]);
    }
    assert_true(roll_source_around_of(bytes, sizeof(bytes) - 1, 1, &out));
    assert_int_equal(out.first, 1);
    assert_int_equal(out.lines, 4);
    assert_true(roll_source_around_of(bytes, sizeof(bytes) - 1, 8, &out));
    assert_int_equal(out.first, 5);
    assert_int_equal(out.lines, 4);
    assert_false(roll_source_around_of(bytes, sizeof(bytes) - 1, 9, &out));
    assert_false(roll_source_around_of(bytes, sizeof(bytes) - 1, 0, &out));
    assert_false(roll_source_around_of(bytes, sizeof(bytes) - 1, UINT32_MAX, &out));
    assert_false(roll_source_around_of(bytes, 0, 1, &out));
}

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* What is said of line 2 of a file, by its name in the folder. */
static bool says(const char *name, char out[ROLL_TEXT_BYTES + 1])
{
    struct roll_source_process process = {.pid = rank};
    return roll_source_line(&process, name[0] == '/' ? name : path_of(name), 2, out);
}

static void only_plain_files_are_read(void **state)
{
    (void)state;
    char out[ROLL_TEXT_BYTES + 1];
    assert_true(says("job.py", out));
    assert_string_equal(out, "all_reduce(x)");
    assert_true(says("link.py", out)); /* a link within the root of the process */
    assert_false(says("none.py", out));
    assert_false(says("pipe", out)); /* opening it would wait for a writer */
    assert_false(says("/dev/zero", out));
    assert_false(says(".", out));
    assert_false(says("huge.py", out));
    struct roll_source_process process = {.pid = rank};
    assert_false(roll_source_line(&process, "job.py", 2, out)); /* in which folder? */
    process.start_ticks = 1;                                    /* another process had this number */
    assert_false(roll_source_line(&process, path_of("job.py"), 2, out));
    process = (struct roll_source_process){.pid = 0x3ffffff};
    assert_false(roll_source_line(&process, path_of("job.py"), 2, out));
}

static bool says_around(const char *path)
{
    struct roll_source_process process = {.pid = rank};
    struct roll_source_lines out;
    return roll_source_around(&process, path, 2, &out) && out.lines == 2 &&
           strcmp(out.text[1], "    all_reduce(x)") == 0;
}

/* What is no Python says nothing to who asks for lines, whatever a link to it is called. */
static void lines_around_one_are_those_of_python_alone(void **state)
{
    (void)state;
    char out[ROLL_TEXT_BYTES + 1];
    assert_true(says_around(path_of("job.py")));
    assert_true(says_around(path_of("link.py")));
    assert_true(says("secret", out)); /* the file itself is as readable as the others */
    assert_false(says_around(path_of("secret")));
    assert_false(says_around(path_of("secret.py")));
    assert_false(says_around(".py"));
    assert_false(says_around(path_of("none.py")));
}

/* A ring is the job's to write: it may name a process that knows more than the job. */
static void a_process_that_does_not_map_the_ring_says_nothing(void **state)
{
    (void)state;
    char out[ROLL_TEXT_BYTES + 1], link[64], program[512] = "";
    struct roll_source_process process = {.pid = rank};
    snprintf(link, sizeof(link), "/proc/%d/exe", (int)rank);
    assert_true(readlink(link, program, sizeof(program) - 1) > 0);
    const char *mapped[] = {program, path_of("job.py")}; /* the first alone is mapped by the process */
    for (int i = 0; i < 2; i++) {
        int fd = open(mapped[i], O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        void *at = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(at, MAP_FAILED);
        close(fd);
        assert_false(roll_source_mapping(at, "/dev/null", &process.ring));
        assert_true(roll_source_mapping(at, mapped[i], &process.ring));
        process.ring.owner = geteuid();
        process.pid = rank;
        assert_int_equal(roll_source_line(&process, path_of("job.py"), 2, out), i == 0);
        process.pid = getpid(); /* an agent maps all rings */
        assert_false(roll_source_line(&process, path_of("job.py"), 2, out));
        process.pid = rank;
        process.ring.owner = geteuid() + 1;
        assert_false(roll_source_line(&process, path_of("job.py"), 2, out));
        munmap(at, 1);
    }
}

static void a_file_that_was_changed_says_nothing(void **state)
{
    (void)state;
    char out[ROLL_TEXT_BYTES + 1];
    const struct timespec old[2] = {{1000000000, 0}, {1000000000, 0}};
    assert_true(says("later.py", out));
    bool said = true;
    for (int i = 0; i < 3000 && said; i++) { /* the kernel tells when a process began in hundredths of a second */
        usleep(10000);
        FILE *file = fopen(path_of("later.py"), "w");
        fputs("one\nother(x)\n", file);
        fclose(file);
        said = says("later.py", out);
    }
    assert_false(said);
    utimensat(AT_FDCWD, path_of("later.py"), old, 0); /* also where its time was set back */
    assert_false(says("later.py", out));
}

static void put_file(const char *name)
{
    FILE *file = fopen(path_of(name), "w");
    assert_non_null(file);
    fputs("import x\n    all_reduce(x)\n", file);
    fclose(file);
}

/* The files are older than the process that runs them, as those of a job are. The process runs a program of its own,
 * because what it was forked from is as old as this test. */
static int make_rank(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    put_file("job.py");
    put_file("later.py");
    put_file("secret");
    put_file("huge.py");
    assert_int_equal(truncate(path_of("huge.py"), 5 << 20), 0);
    char target[512];
    snprintf(target, sizeof(target), "%s", path_of("job.py"));
    assert_int_equal(symlink(target, path_of("link.py")), 0);
    snprintf(target, sizeof(target), "%s", path_of("secret"));
    assert_int_equal(symlink(target, path_of("secret.py")), 0);
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    int begun[2];
    assert_int_equal(pipe2(begun, O_CLOEXEC), 0);
    rank = fork();
    assert_true(rank >= 0);
    if (rank == 0) {
        execlp("sleep", "sleep", "600", (char *)NULL);
        _exit(127);
    }
    /* Until it has begun its program it is a fork of this one: a pipe that closes with the exec tells. */
    char byte;
    close(begun[1]);
    assert_int_equal(read(begun[0], &byte, 1), 0);
    close(begun[0]);
    return 0;
}

static int end_rank(void **state)
{
    (void)state;
    static const char *const names[] = {"job.py", "later.py", "huge.py", "link.py", "pipe", "secret", "secret.py"};
    kill(rank, SIGKILL);
    waitpid(rank, NULL, 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unlink(path_of(names[i]));
    }
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_cut_out_of_a_file),
        cmocka_unit_test(a_long_line_ends_in_an_ellipsis),
        cmocka_unit_test(the_lines_around_one_keep_their_blanks),
        cmocka_unit_test(only_plain_files_are_read),
        cmocka_unit_test(lines_around_one_are_those_of_python_alone),
        cmocka_unit_test(a_process_that_does_not_map_the_ring_says_nothing),
        cmocka_unit_test(a_file_that_was_changed_says_nothing),
    };
    return cmocka_run_group_tests(tests, make_rank, end_rank);
}
