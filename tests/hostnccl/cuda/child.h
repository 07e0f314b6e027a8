/*
 * child.h: cases that need a process of their own, because the runtime reads its environment once: the parent never
 * calls CUDA, so its children may.
 */
#ifndef ROLL_TESTS_HOSTNCCL_CUDA_CHILD_H
#define ROLL_TESTS_HOSTNCCL_CUDA_CHILD_H

#include "tests/hostnccl/cuda/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a child: leaves with the line number when the condition does not hold. */
#define expect(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                              \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Runs the case in a child, with what it writes to standard error in text; its exit status must be 0. */
static inline void run_child(void (*body)(void), char *text, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        alarm(280); /* a hang is a failure */
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body();
        exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n = 1; n > 0 && length + 1 < size;) {
        n = read(ends[0], text + length, size - 1 - length);
        length += n > 0 ? (size_t)n : 0;
    }
    text[length] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status) {
        fail_msg("the child said: %s", text);
    }
}

/* A folder for the reports of the children; make_reports makes it. */
static inline char *report_folder(void)
{
    static char folder[] = "/tmp/hostcuda-report-XXXXXX";
    return folder;
}

/* Before a group of tests. A child that made the folder would make one of its own, which nobody removes. */
static inline int make_reports(void **state)
{
    (void)state;
    return mkdtemp(report_folder()) ? 0 : -1;
}

/* Reads the calling process's report. */
static inline void read_report(char *text, size_t size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/hostcuda.%ld", report_folder(), (long)getpid());
    FILE *file = fopen(path, "r");
    expect(file);
    size_t got = fread(text, 1, size - 1, file);
    text[got] = 0;
    fclose(file);
}

static inline int remove_reports(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", report_folder());
    return system(command) ? -1 : 0;
}

#endif
