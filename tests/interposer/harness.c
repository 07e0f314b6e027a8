/* harness.c: see harness.h. The job is started by fork and exec; its output goes to files, so that no pipe can fill. */
#include "tests/interposer/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 20000

const char *job_path(const char *name)
{
    const char *path = getenv(name);
    if (path == NULL) {
        fail_msg("%s is not set: run this test through ctest", name);
    }
    return path;
}

void job_begin(struct job *job)
{
    memset(job, 0, sizeof *job);
    snprintf(job->dir, sizeof job->dir, "%s/rollcall-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(job->dir));
    job->output_fd = memfd_create("output", MFD_CLOEXEC);
    job->errors_fd = memfd_create("errors", MFD_CLOEXEC);
    assert_true(job->output_fd >= 0 && job->errors_fd >= 0);
}

void job_env(struct job *job, const char *assignment)
{
    assert_true(job->variables < 15);
    job->environment[job->variables++] = assignment;
}

void job_start(struct job *job, char *const argv[])
{
    fflush(stdout);
    job->pid = fork();
    assert_true(job->pid >= 0);
    if (job->pid == 0) {
        dup2(job->output_fd, 1);
        dup2(job->errors_fd, 2);
        setenv("LD_PRELOAD", getenv("ROLL_TEST_PRELOAD"), 1);
        setenv("ROLLCALL_DIR", job->dir, 1);
        setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
        for (size_t i = 0; i < job->variables; i++) {
            putenv((char *)(uintptr_t)job->environment[i]);
        }
        execvp(argv[0], argv);
        _exit(126);
    }
}

static void slurp(int fd, char out[JOB_OUTPUT])
{
    ssize_t n = pread(fd, out, JOB_OUTPUT - 1, 0);
    out[n > 0 ? n : 0] = '\0';
}

void job_wait(struct job *job)
{
    const struct timespec pause = {0, 1000000};
    pid_t done = 0;
    for (int i = 0; i < WAIT_MS && done == 0; i++) {
        done = waitpid(job->pid, &job->status, WNOHANG);
        if (done == 0) {
            nanosleep(&pause, NULL);
        }
    }
    if (done == 0) {
        kill(job->pid, SIGKILL);
        waitpid(job->pid, &job->status, 0);
        fail_msg("the job did not end");
    }
    slurp(job->output_fd, job->output);
    slurp(job->errors_fd, job->errors);
}

void job_run(struct job *job, const char *program, const char *mode, const char *argument)
{
    char *argv[] = {(char *)(uintptr_t)job_path(program), (char *)(uintptr_t)mode, (char *)(uintptr_t)argument, NULL};
    job_start(job, argv);
    job_wait(job);
}

static bool ends_like(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

size_t job_files(const struct job *job, const char *suffix)
{
    DIR *dir = opendir(job->dir);
    size_t found = 0;
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        found += e->d_name[0] != '.' && ends_like(e->d_name, suffix);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

void job_end(struct job *job)
{
    char path[512];
    DIR *dir = opendir(job->dir);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        snprintf(path, sizeof path, "%s/%s", job->dir, e->d_name);
        unlink(path);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(job->dir);
    close(job->output_fd);
    close(job->errors_fd);
}

void dump_open(const struct job *job, struct dump *dump)
{
    char path[512] = "";
    memset(dump, 0, sizeof *dump);
    assert_int_equal(job_files(job, ".ring"), 1);
    DIR *dir = opendir(job->dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (ends_like(e->d_name, ".ring")) {
            snprintf(path, sizeof path, "%s/%s", job->dir, e->d_name);
        }
    }
    closedir(dir);
    assert_int_equal(roll_ring_open(path, false, &dump->ring), 0);
    size_t offset = 0;
    while (dump->def_count < JOB_DEFS && roll_def_decode(dump->ring.defs, dump->ring.header->defs_bytes, &offset,
                                                         &dump->defs[dump->def_count]) == 0) {
        dump->def_count++;
    }
    uint64_t head = atomic_load(&dump->ring.header->head), capacity = dump->ring.mask + 1, next = 0;
    dump->records = calloc(capacity, sizeof *dump->records);
    assert_non_null(dump->records);
    dump->count =
        roll_ring_read(&dump->ring, head > capacity ? head - capacity : 0, dump->records, capacity, &next, &dump->lost);
}

void dump_close(struct dump *dump)
{
    free(dump->records);
    roll_ring_close(&dump->ring);
}

const struct roll_def *dump_def(const struct dump *dump, enum roll_def_type type, uint32_t id)
{
    for (size_t i = 0; i < dump->def_count; i++) {
        if (dump->defs[i].type == type && dump->defs[i].id == id) {
            return &dump->defs[i];
        }
    }
    fail_msg("no definition of type %d with id %u", (int)type, id);
    return NULL;
}

const struct roll_record *dump_next(const struct dump *dump, size_t *at, enum roll_op op)
{
    while (*at < dump->count) {
        const struct roll_record *rec = &dump->records[(*at)++];
        if (rec->op == op) {
            return rec;
        }
    }
    return NULL;
}
