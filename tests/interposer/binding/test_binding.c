/*
 * test_binding.c: every way in which a job reaches NCCL, on hostnccl. The ring must hold exactly the calls that were
 * made, once each, and lookups must find exactly the functions that there are. One row of the table is one way.
 */
#include "tests/interposer/harness.h"

#include <unistd.h>

static const uint8_t expected[] = {
    ROLL_OP_COMM_INIT, ROLL_OP_ALLREDUCE, ROLL_OP_ALLREDUCE, ROLL_OP_ALLREDUCE,
    ROLL_OP_ALLREDUCE, ROLL_OP_GROUP_END, ROLL_OP_BROADCAST, ROLL_OP_COMM_DESTROY,
};
#define CALLS (sizeof(expected) / sizeof(expected[0]))

#define PROGRAM "ROLL_TEST_PROGRAM"
#define PYTHON  "ROLL_TEST_PYTHON"
#define NCCL    "ROLL_TEST_NCCL"      /* hostnccl's libnccl.so.2, whole path */
#define OTHER   "ROLL_TEST_NCCL_COPY" /* the same code in another file */
#define EXT     "ROLL_TEST_EXTENSION"
#define FRONT   "ROLL_TEST_FRONT"
#define SONAME  "libnccl.so.2"

/* How the preload is loaded: by itself, not at all, with the auditor, before or after other preloads. */
enum preload { OURS, NONE, AUDITED, AFTER_HOOK, BEFORE_HOOK, AFTER_SHIM, BEFORE_SHIM };

struct way {
    const char *name;
    const char *argv[4]; /* names of environment variables that hold paths; other words are taken as they are */
    enum preload preload;
    int rounds;         /* how often the calls were made; 0 = nothing is recorded */
    const char *errors; /* what stands on standard error, NULL = nothing */
};

static const struct way ways[] = {
    {"needed, lazy", {"ROLL_TEST_LINKED_LAZY"}, OURS, 1, NULL},
    {"needed, -z now", {"ROLL_TEST_LINKED_NOW"}, OURS, 1, NULL},
    {"needed, audited", {"ROLL_TEST_LINKED_LAZY"}, AUDITED, 1, NULL},
    {"extension, RTLD_LOCAL", {PROGRAM, "local", EXT}, OURS, 1, NULL},
    {"extension, RTLD_GLOBAL", {PROGRAM, "global", EXT}, OURS, 1, NULL},
    {"extension, RTLD_LAZY", {PROGRAM, "lazy", EXT}, OURS, 1, NULL},
    {"extension, opened twice", {PROGRAM, "twice", EXT}, OURS, 2, NULL},
    {"extension, RTLD_DEEPBIND, without the auditor", {PROGRAM, "deep-now", EXT}, OURS, 0, NULL},
    {"extension, RTLD_DEEPBIND and now", {PROGRAM, "deep-now", EXT}, AUDITED, 1, NULL},
    {"extension, RTLD_DEEPBIND and lazy", {PROGRAM, "deep-lazy", EXT}, AUDITED, 1, NULL},
    {"dlopen by name, dlsym", {PROGRAM, "handle", SONAME}, OURS, 1, NULL},
    {"dlopen by path, dlsym", {PROGRAM, "handle", NCCL}, OURS, 1, NULL},
    {"dlopen by path, dlsym, audited", {PROGRAM, "handle", NCCL}, AUDITED, 1, NULL},
    {"dlopen, RTLD_DEFAULT", {PROGRAM, "default", SONAME}, OURS, 1, NULL},
    {"dlopen, RTLD_NEXT", {PROGRAM, "next", NCCL}, OURS, 1, NULL},
    {"dlopen, handle of the program", {PROGRAM, "main", NCCL}, OURS, 1, NULL},
    {"a local NCCL is not global", {PROGRAM, "hidden", NCCL}, OURS, 1, NULL},
    {"dlmopen", {PROGRAM, "namespace", NCCL}, OURS, 1, NULL},
    {"two NCCLs", {PROGRAM, "two", NCCL, OTHER}, OURS, 2, NULL},
    {"pnccl names", {PROGRAM, "twins", NCCL}, OURS, 0, NULL},
    {"no NCCL at all", {PROGRAM, "missing"}, OURS, 0, "ncclAllReduce was called, but there is no NCCL in this process"},
    {"ctypes, by name", {PYTHON, "calls.py", SONAME}, OURS, 1, NULL},
    {"ctypes, by path", {PYTHON, "calls.py", NCCL}, OURS, 1, NULL},
    {"ctypes, beside a framework", {PYTHON, "calls.py", OTHER, EXT}, OURS, 1, NULL},
    {"front, preloaded", {PYTHON, "calls.py", FRONT}, OURS, 1, "front"},
    {"front alone", {PYTHON, "calls.py", FRONT}, NONE, 1, "front"},
    {"front alone, beside a framework", {PYTHON, "calls.py", FRONT, EXT}, NONE, 1, "front"},
    {"front by C, alone", {PROGRAM, "handle", FRONT}, NONE, 1, "front"},
    {"another hook before ours", {PROGRAM, "handle", NCCL}, AFTER_HOOK, 1, "hook: 1"},
    {"another hook after ours", {PROGRAM, "handle", NCCL}, BEFORE_HOOK, 1, "hook: "},
    {"a shim before ours", {"ROLL_TEST_LINKED_LAZY"}, AFTER_SHIM, 1, "hook: 4"},
    {"a shim after ours", {"ROLL_TEST_LINKED_LAZY"}, BEFORE_SHIM, 1, "hook: 4"},
    {"a shim after ours, dlsym", {PROGRAM, "handle", NCCL}, BEFORE_SHIM, 1, NULL},
};

static const char *word(const char *name)
{
    return name != NULL && strncmp(name, "ROLL_TEST_", 10) == 0 ? job_path(name) : name;
}

static void set_preload(struct job *job, enum preload preload, char text[1024], char audit[512])
{
    const char *ours = job_path("ROLL_TEST_PRELOAD");
    const char *other = preload == AFTER_HOOK || preload == BEFORE_HOOK ? "ROLL_TEST_HOOK" : "ROLL_TEST_SHIM";
    switch (preload) {
    case OURS:
    case AUDITED:
        snprintf(text, 1024, "LD_PRELOAD=%s", ours);
        break;
    case NONE:
        snprintf(text, 1024, "LD_PRELOAD=");
        break;
    case AFTER_HOOK:
    case AFTER_SHIM:
        snprintf(text, 1024, "LD_PRELOAD=%s:%s", job_path(other), ours);
        break;
    case BEFORE_HOOK:
    case BEFORE_SHIM:
        snprintf(text, 1024, "LD_PRELOAD=%s:%s", ours, job_path(other));
        break;
    }
    job_env(job, text);
    if (preload == AUDITED) {
        snprintf(audit, 512, "LD_AUDIT=%s", job_path("ROLL_TEST_AUDIT"));
        job_env(job, audit);
    }
}

static void check_records(const struct job *job, int rounds)
{
    struct dump dump;
    dump_open(job, &dump);
    assert_int_equal(dump.count, (size_t)rounds * CALLS);
    for (size_t i = 0; i < dump.count; i++) {
        const struct roll_record *rec = &dump.records[i];
        assert_int_equal(rec->op, expected[i % CALLS]);
        assert_int_equal(rec->result, 0);
        assert_int_equal(roll_seal_state(rec->seal), ROLL_STATE_RETURNED);
        if (rec->op != ROLL_OP_GROUP_END) {
            assert_int_equal(rec->comm, i / CALLS + 1); /* known, and of its own round */
        }
        assert_int_not_equal(rec->callsite, 0);
    }
    dump_close(&dump);
}

static void run_way(const struct way *way)
{
    static char library_path[512], nccl_dir[128], text[1024], audit[512], no_debug[] = "ROLLCALL_DAEMON=";
    struct job job;
    char *argv[5] = {NULL};
    job_begin(&job);
    snprintf(library_path, sizeof(library_path), "LD_LIBRARY_PATH=%s", job_path("ROLL_TEST_HOSTNCCL"));
    snprintf(nccl_dir, sizeof(nccl_dir), "HOSTNCCL_DIR=%s", job.dir);
    job_env(&job, library_path);
    job_env(&job, nccl_dir);
    job_env(&job, no_debug);
    set_preload(&job, way->preload, text, audit);
    for (int i = 0; i < 4 && way->argv[i] != NULL; i++) {
        argv[i] = (char *)(uintptr_t)word(strcmp(way->argv[i], "calls.py") == 0 ? "ROLL_TEST_CALLS_PY" : way->argv[i]);
    }
    job_start(&job, argv);
    job_wait(&job);
    bool silent = job.output[0] == '\0' &&
                  (way->errors == NULL ? job.errors[0] == '\0' : strstr(job.errors, way->errors) != NULL);
    if (job.status != 0 || !silent || job_files(&job, ".ring") != (way->rounds > 0)) {
        print_message("%s: status %x, %zu rings\n%s%s", way->name, (unsigned)job.status, job_files(&job, ".ring"),
                      job.output, job.errors);
    }
    assert_int_equal(job.status, 0);
    assert_true(silent);
    assert_int_equal(job_files(&job, ".ring"), way->rounds > 0);
    if (way->rounds > 0) {
        check_records(&job, way->rounds);
    }
    job_end(&job);
}

static void test_a_call_is_seen_whichever_way_nccl_is_bound(void **state)
{
    run_way(*state);
}

/* A front whose NCCL is not there, or is the front itself: an error, one line, no crash and no endless search. */
static void test_a_front_with_nothing_behind_it(void **state)
{
    (void)state;
    static char itself[512], text[1024], audit[512];
    snprintf(itself, sizeof(itself), "ROLLCALL_NCCL=%s", job_path(FRONT));
    const char *const named[] = {"ROLLCALL_NCCL=/nowhere/libnccl.so.2", "ROLLCALL_NCCL=libc.so.6", itself};
    for (size_t i = 0; i < 2 * sizeof(named) / sizeof(named[0]); i++) {
        struct job job;
        job_begin(&job);
        job_env(&job, named[i / 2]);
        set_preload(&job, i % 2 == 0 ? OURS : NONE, text, audit);
        char *argv[] = {(char *)(uintptr_t)job_path(PROGRAM), (char *)(uintptr_t) "nothing",
                        (char *)(uintptr_t)job_path(FRONT), NULL};
        job_start(&job, argv);
        job_wait(&job);
        JOB_SUCCEEDED(&job);
        assert_non_null(strstr(job.errors, "cannot be loaded as NCCL"));
        assert_ptr_equal(strchr(job.errors, '\n'), strrchr(job.errors, '\n')); /* one line */
        job_end(&job);
    }
}

/* A front that somebody has copied away from librollcall.so. */
static void test_a_front_that_is_alone(void **state)
{
    (void)state;
    static char text[1024], audit[512];
    struct job job;
    job_begin(&job);
    set_preload(&job, NONE, text, audit);
    char *argv[] = {(char *)(uintptr_t)job_path(PROGRAM), (char *)(uintptr_t) "nothing",
                    (char *)(uintptr_t)job_path("ROLL_TEST_FRONT_ALONE"), NULL};
    job_start(&job, argv);
    job_wait(&job);
    JOB_SUCCEEDED(&job);
    assert_non_null(strstr(job.errors, "librollcall.so is not"));
    assert_ptr_equal(strchr(job.errors, '\n'), strrchr(job.errors, '\n'));
    job_end(&job);
}

/* Programs that have nothing to do with NCCL: the same output, errors and status under the preload, the auditor too, as
 * without, and no trace of us. */
static void test_other_programs_behave_as_without_us(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "echo $((6 * 7)); (exit 3)",
        "bash -c 'trap \"echo trapped\" USR1; kill -USR1 $$; exec sh -c \"echo exec\"'",
        "echo 'int main(void) { return 6 * 7; }' | cc -x c - -o \"$ROLLCALL_DIR/program\" && "
        "\"$ROLLCALL_DIR/program\"; echo $?; rm \"$ROLLCALL_DIR/program\"",
        "\"$ROLL_TEST_PYTHON\" -c 'import ctypes, ctypes.util; c = ctypes.CDLL(None); print(c.abs(-3), hasattr(c, "
        "\"ncclAllReduce\"), hasattr(c, \"nccl\"), hasattr(c, \"malloc\"))'",
        "\"$ROLL_TEST_PYTHON\" -c 'import os, sys; pid = os.fork(); print(pid > 0) if pid else os._exit(5); "
        "print(os.waitpid(pid, 0)[1])'",
        "\"$ROLL_TEST_STATIC\"",
        "\"$ROLL_TEST_OWN\"",
        "no-such-program",
        "kill -9 $$",
    };
    static char text[1024], audit[512];
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        static struct job jobs[3]; /* large */
        static const enum preload preloads[3] = {NONE, OURS, AUDITED};
        for (int p = 0; p < 3; p++) {
            job_begin(&jobs[p]);
            set_preload(&jobs[p], preloads[p], text, audit);
            char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t)commands[i], NULL};
            job_start(&jobs[p], argv);
            job_wait(&jobs[p]);
            assert_int_equal(job_files(&jobs[p], ""), 0);
            job_end(&jobs[p]);
            assert_int_equal(jobs[p].status, jobs[0].status);
            assert_string_equal(jobs[p].output, jobs[0].output);
            assert_string_equal(jobs[p].errors, jobs[0].errors);
        }
    }
}

/* Four NCCLs in one process: three are recorded, and one line says that the fourth is not; each is called only by its
 * own callers, and by itself. */
static void test_four_nccls_are_never_mixed(void **state)
{
    (void)state;
    static char paths[4][512];
    char *argv[7] = {(char *)(uintptr_t)job_path(PROGRAM), (char *)(uintptr_t) "tags"};
    for (int n = 1; n <= 4; n++) {
        struct job job;
        struct dump dump;
        job_begin(&job);
        for (int i = 0; i < n; i++) {
            snprintf(paths[i], sizeof(paths[i]), "%s%d", job_path("ROLL_TEST_TAGGED"), 3 + i);
            argv[2 + i] = paths[i];
        }
        argv[2 + n] = NULL;
        job_start(&job, argv);
        job_wait(&job);
        JOB_SUCCEEDED(&job);
        assert_int_equal(strstr(job.errors, "libnccl.so.2.6 are not recorded") != NULL, n == 4);
        dump_open(&job, &dump);
        size_t recorded = n < 4 ? (size_t)n : 3;
        static const uint8_t ops[3] = {ROLL_OP_COMM_INIT, ROLL_OP_BROADCAST, ROLL_OP_REDUCE};
        assert_int_equal(dump.count, 2 * 3 * recorded); /* two rounds */
        for (size_t i = 0; i < dump.count; i++) {
            assert_int_equal(dump.records[i].op, ops[i % 3]);
            assert_int_equal(dump.records[i].result, i % 3 == 0 ? 0 : 3 + i / 3 % recorded);
        }
        dump_close(&dump);
        job_end(&job);
    }
}

/* Each way works without us as well; otherwise the rows above would prove nothing about us. */
static void test_each_way_works_without_us(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (strcmp(ways[i].name, "no NCCL at all") != 0 && ways[i].preload == OURS &&
            strncmp(ways[i].name, "front", 5) != 0) {
            struct way bare = ways[i];
            bare.preload = NONE;
            bare.rounds = 0;
            run_way(&bare);
        }
    }
}

int main(void)
{
    enum { WAYS = sizeof(ways) / sizeof(ways[0]) };
    struct CMUnitTest tests[WAYS + 5];
    for (size_t i = 0; i < WAYS; i++) {
        tests[i] = (struct CMUnitTest){ways[i].name, test_a_call_is_seen_whichever_way_nccl_is_bound, NULL, NULL,
                                       (void *)(uintptr_t)&ways[i]};
    }
    tests[WAYS] = (struct CMUnitTest)cmocka_unit_test(test_each_way_works_without_us);
    tests[WAYS + 1] = (struct CMUnitTest)cmocka_unit_test(test_four_nccls_are_never_mixed);
    tests[WAYS + 2] = (struct CMUnitTest)cmocka_unit_test(test_other_programs_behave_as_without_us);
    tests[WAYS + 3] = (struct CMUnitTest)cmocka_unit_test(test_a_front_with_nothing_behind_it);
    tests[WAYS + 4] = (struct CMUnitTest)cmocka_unit_test(test_a_front_that_is_alone);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
