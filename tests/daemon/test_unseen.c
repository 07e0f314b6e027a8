/*
 * test_unseen.c: when the agent notes a process that has our library and shows no calls, on a clock of the test's own.
 * The processes are this program again (`test_unseen child|parent DIRECTORY`); their mappings make them look like
 * ranks.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/scratch.h"

#include "daemon/agent/agent_unseen.h"
#include "trace/ident.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define MEMORY "hn-00000000000000aa"

/* the process that is looked at */

static void map_file(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096) != 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) {
        _exit(1);
    }
    close(fd);
}

/* Writes its number, or its child's, when it is ready; a byte on its input begins the work of NCCL. */
static int be_a_process(bool parent, const char *dir)
{
    int ready[2];
    char byte;
    map_file(dir, "librollcall.so");
    if (parent) {
        map_file(dir, MEMORY);
        if (pipe(ready) != 0) {
            return 1;
        }
    }
    pid_t pid = parent ? fork() : getpid();
    if (pid == 0) {
        close(ready[1]);
        return read(ready[0], &byte, 1) == 0 ? 0 : 1; /* as long as the parent lives */
    }
    if (write(STDOUT_FILENO, &pid, sizeof(pid)) != (ssize_t)sizeof(pid)) {
        return 1;
    }
    while (read(STDIN_FILENO, &byte, 1) == 1) {
        map_file(dir, MEMORY);
        if (write(STDOUT_FILENO, &pid, sizeof(pid)) != (ssize_t)sizeof(pid)) {
            return 1;
        }
    }
    return 0;
}

/* the test */

struct process {
    char dir[64];
    int in, out;
    pid_t pid, looked_at;
    roll_unseen_t *unseen;
    uint64_t now;
    pid_t seen; /* process whose calls are in a ring; 0 = none */
    unsigned notes;
};

static bool seen(void *ctx, uint32_t pid)
{
    const struct process *p = ctx;
    return p->seen != 0 && (pid_t)pid == p->seen;
}

static void tell(void *ctx, json_t *note)
{
    struct process *p = ctx;
    p->notes += json_integer_value(json_object_get(note, "pid")) == p->looked_at;
}

/* named: its environment says where its ring is to be. */
static void start_named(struct process *p, const char *kind, bool named)
{
    int in[2], out[2];
    char variable[128] = "LANG=C";
    *p = (struct process){.now = SECOND};
    scratch_make(p->dir);
    if (named) {
        snprintf(variable, sizeof(variable), "ROLLCALL_DIR=%s", p->dir);
    }
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    p->pid = fork();
    if (p->pid == 0) {
        char *argv[] = {(char *)(uintptr_t) "test_unseen", (char *)(uintptr_t)kind, p->dir, NULL};
        char *environment[] = {variable, NULL};
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execve("/proc/self/exe", argv, environment);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p->in = in[1];
    p->out = out[0];
    assert_int_equal(read(p->out, &p->looked_at, sizeof(p->looked_at)), sizeof(p->looked_at));
    p->unseen = roll_unseen_new(p->dir, "here");
    assert_non_null(p->unseen);
}

static void start(struct process *p, const char *kind)
{
    start_named(p, kind, true);
}

static void begin_work(struct process *p)
{
    pid_t pid;
    assert_int_equal(write(p->in, "w", 1), 1);
    assert_int_equal(read(p->out, &pid, sizeof(pid)), sizeof(pid));
}

/* Lets seconds pass; stops when there is a note. Returns how many have passed. */
static unsigned pass(struct process *p, unsigned seconds)
{
    unsigned passed = 0;
    while (passed < seconds && p->notes == 0) {
        p->now += SECOND;
        roll_unseen_look(p->unseen, p->now, seen, tell, p);
        passed++;
    }
    return passed;
}

static void finish(struct process *p)
{
    int status;
    close(p->in);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, 0);
    close(p->out);
    roll_unseen_destroy(&p->unseen);
    scratch_remove(p->dir);
}

static void test_work_without_a_call_is_noted_once(void **state)
{
    (void)state;
    struct process p;
    start(&p, "child");
    pass(&p, 10);
    assert_int_equal(p.notes, 0);
    begin_work(&p);
    assert_in_range(pass(&p, 10), 4, 5); /* three seconds of work */
    assert_int_equal(p.notes, 1);
    for (int i = 0; i < 60; i++) {
        p.now += SECOND;
        roll_unseen_look(p.unseen, p.now, seen, tell, &p);
    }
    assert_int_equal(p.notes, 1);
    p.notes = 0;
    roll_unseen_again(p.unseen); /* another root */
    assert_in_range(pass(&p, 10), 1, 5);
    assert_int_equal(p.notes, 1);
    finish(&p);
}

/* After long idleness it is looked at more rarely, and still found. */
static void test_work_that_begins_late(void **state)
{
    (void)state;
    struct process p;
    start(&p, "child");
    pass(&p, 300);
    assert_int_equal(p.notes, 0);
    begin_work(&p);
    assert_in_range(pass(&p, 60), 4, 20);
    assert_int_equal(p.notes, 1);
    finish(&p);
}

static void test_one_whose_calls_are_seen(void **state)
{
    (void)state;
    struct process p;
    start(&p, "child");
    begin_work(&p);
    p.seen = p.looked_at;
    pass(&p, 60);
    assert_int_equal(p.notes, 0);
    finish(&p);
}

/* A forked child holds its parent's memory: of no interest while the parent is seen, nor when it has gone. */
static void test_what_a_rank_has_forked(void **state)
{
    (void)state;
    struct process p;
    start(&p, "parent");
    p.seen = p.pid;
    pass(&p, 60);
    assert_int_equal(p.notes, 0);
    p.seen = 0;
    roll_unseen_again(p.unseen);
    pass(&p, 60);
    assert_int_equal(p.notes, 0);
    finish(&p);

    start(&p, "parent"); /* the child is noted like any other process where the parent is not */
    pass(&p, 60);
    assert_int_equal(p.notes, 1);
    finish(&p);
}

/* Ranks of another ring directory are another agent's. */
static void test_ranks_of_another_directory_are_not_noted(void **state)
{
    (void)state;
    struct process p;
    start(&p, "child");
    begin_work(&p);
    roll_unseen_destroy(&p.unseen);
    p.unseen = roll_unseen_new("/nowhere", "here");
    pass(&p, 60);
    assert_int_equal(p.notes, 0);
    finish(&p);
}

/* Its maps are not read: that would be most of what an agent does. */
static void test_one_whose_environment_does_not_name_us(void **state)
{
    (void)state;
    struct process p;
    char fallback[512];
    if (access("/etc/ld.so.preload", F_OK) == 0) {
        skip(); /* then the maps decide */
    }
    start_named(&p, "child", false);
    begin_work(&p);
    assert_int_equal(roll_default_dir(fallback, sizeof(fallback)), 0);
    roll_unseen_destroy(&p.unseen);
    p.unseen = roll_unseen_new(fallback, "here");
    pass(&p, 120);
    assert_int_equal(p.notes, 0);
    finish(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_without_a_call_is_noted_once),
        cmocka_unit_test(test_work_that_begins_late),
        cmocka_unit_test(test_one_whose_calls_are_seen),
        cmocka_unit_test(test_what_a_rank_has_forked),
        cmocka_unit_test(test_ranks_of_another_directory_are_not_noted),
        cmocka_unit_test(test_one_whose_environment_does_not_name_us),
    };
    if (argc == 3) {
        return be_a_process(strcmp(argv[1], "parent") == 0, argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
