/* harness.c: see harness.h. Polling with short sleeps is fine here: it measures nothing. */
#include "tests/hostnccl/nccl/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void check_true(bool ok, const char *text, const char *file, int line)
{
    if (!ok) {
        fprintf(stderr, "rank %s: %s:%d: %s is false\n", getenv("RANK") ? getenv("RANK") : "?", file, line, text);
        _exit(1);
    }
}

void check_result(int got, int want, const char *text, const char *file, int line)
{
    if (got != want) {
        fprintf(stderr, "rank %s: %s:%d: %s is %d, not %d (%s)\n", getenv("RANK") ? getenv("RANK") : "?", file, line,
                text, got, want, ncclGetLastError(NULL));
        _exit(1);
    }
}

void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool still_busy(cudaStream_t stream, int ms)
{
    int64_t end = now_ms() + ms;

    while (now_ms() < end) {
        if (cudaStreamQuery(stream) != cudaErrorNotReady) {
            return false;
        }
        sleep_ms(5);
    }
    return true;
}

void finish(struct rank *r)
{
    ncclResult_t async = ncclSuccess;

    CUDA(cudaStreamSynchronize(r->stream));
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    NCCL(async);
}

void expect_hang(struct rank *r)
{
    ncclResult_t async = ncclSuccess;

    CHECK(still_busy(r->stream, 150));
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    NCCL(async); /* the call hangs and tells nothing */
    NCCL(ncclCommAbort(r->comm));
    r->aborted = true;
    CUDA(cudaStreamSynchronize(r->stream));
}

/* between ranks */

static const char *told(const char *dir, int rank, const char *what)
{
    static _Thread_local char path[256];
    snprintf(path, sizeof(path), "%s/told-%s-%d", dir, what, rank);
    return path;
}

void tell(const struct rank *r, const char *what)
{
    int fd = open(told(getenv("HOSTNCCL_DIR"), r->rank, what), O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
}

void await(const struct rank *r, int rank, const char *what)
{
    (void)r;
    while (access(told(getenv("HOSTNCCL_DIR"), rank, what), F_OK) != 0) {
        sleep_ms(2);
    }
}

void meet(const struct rank *r, const char *what)
{
    tell(r, what);
    for (int i = 0; i < r->n; i++) {
        await(r, i, what);
    }
}

void stay(const struct rank *r)
{
    const char *dir = getenv("HOSTNCCL_DIR");
    int left;

    tell(r, "stay");
    do {
        left = 0;
        for (int i = 0; i < r->n; i++) {
            left += access(told(dir, i, "stay"), F_OK) != 0 && access(told(dir, i, "done"), F_OK) != 0;
        }
        sleep_ms(2);
    } while (left > 0);
}

/* Rank 0 makes the id; the others wait for the file to appear under its final name. */
static void share_id(struct rank *r, const char *path)
{
    char temporary[256];
    int fd;

    if (r->rank == 0) {
        snprintf(temporary, sizeof(temporary), "%s.new", path);
        NCCL(ncclGetUniqueId(&r->id));
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0 && write(fd, &r->id, sizeof(r->id)) == (ssize_t)sizeof(r->id));
        close(fd);
        CHECK(rename(temporary, path) == 0);
        return;
    }
    while ((fd = open(path, O_RDONLY)) < 0) {
        sleep_ms(1);
    }
    CHECK(read(fd, &r->id, sizeof(r->id)) == (ssize_t)sizeof(r->id));
    close(fd);
}

static const struct rank_case *find_case(const struct rank_case *cases, const char *name)
{
    while (cases->name && strcmp(cases->name, name) != 0) {
        cases++;
    }
    return cases->name ? cases : NULL;
}

void rank_main(int argc, char **argv, const struct rank_case *cases)
{
    struct rank r = {0};

    if (!getenv("RANK") || argc < 2) {
        return;
    }
    const struct rank_case *c = find_case(cases, argv[1]);
    r.rank = atoi(getenv("RANK"));
    r.n = atoi(getenv("WORLD_SIZE"));
    CHECK(c != NULL);
    share_id(&r, getenv("TEST_ID_FILE"));
    CUDA(cudaSetDevice(r.rank % 8));
    CUDA(cudaStreamCreate(&r.stream));
    if (!c->makes_comm) {
        NCCL(ncclCommInitRank(&r.comm, r.n, r.id, r.rank));
    }
    c->run(&r);
    tell(&r, "done");
    if (!c->makes_comm && !r.aborted) {
        NCCL(ncclCommDestroy(r.comm));
    }
    _exit(0);
}

static void exec_rank(const struct job *j, const char *name, int rank, const char *env)
{
    char text[32], path[128], *argv[] = {(char *)(uintptr_t) "rank", (char *)(uintptr_t)name, NULL};

    snprintf(text, sizeof(text), "%d", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof(text), "%d", j->n);
    setenv("WORLD_SIZE", text, 1);
    setenv("HOSTNCCL_DIR", j->dir, 1);
    snprintf(path, sizeof(path), "%s/id", j->dir);
    setenv("TEST_ID_FILE", path, 1);
    if (env) {
        (void)putenv((char *)(uintptr_t)env);
    }
    execv("/proc/self/exe", argv);
    _exit(127);
}

void job_start(struct job *j, const char *name, int n, const char *env)
{
    *j = (struct job){.dir = "/dev/shm/hostnccl-test-XXXXXX", .n = n};
    assert_in_range(n, 1, 128);
    assert_non_null(mkdtemp(j->dir));
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        j->pids[r] = fork();
        if (j->pids[r] == 0) {
            exec_rank(j, name, r, env);
        }
        assert_true(j->pids[r] > 0);
    }
}

void job_kill(struct job *j)
{
    for (int r = 0; r < j->n; r++) {
        if (j->pids[r] > 0) {
            kill(j->pids[r], SIGKILL);
            waitpid(j->pids[r], NULL, 0);
            j->pids[r] = 0;
        }
    }
}

/* How much slower than an idle machine a busy one may be. */
enum { BUSY = 20 };

int job_wait(struct job *j, int limit_s)
{
    int64_t end = now_ms() + (int64_t)limit_s * 1000 * BUSY;
    int bad = 0, left = j->n;

    while (left && now_ms() < end) {
        left = 0;
        for (int r = 0; r < j->n; r++) {
            int status;
            if (j->pids[r] <= 0) {
                continue;
            }
            if (waitpid(j->pids[r], &status, WNOHANG) == j->pids[r]) {
                j->pids[r] = 0;
                bad += !WIFEXITED(status) || WEXITSTATUS(status);
            } else {
                left++;
            }
        }
        if (left) {
            sleep_ms(2);
        }
    }
    if (left) {
        print_error("%d of %d ranks were still running after %d s\n", left, j->n, limit_s * BUSY);
    }
    job_kill(j);
    return bad + left;
}

void job_await(const struct job *j, const char *what)
{
    for (int r = 0; r < j->n; r++) {
        while (access(told(j->dir, r, what), F_OK) != 0) {
            sleep_ms(2);
        }
    }
}

static int each_file(const char *path, bool remove)
{
    DIR *d = opendir(path);
    int segments = 0;

    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        segments += !strncmp(e->d_name, "hn-", 3);
        if (remove && e->d_name[0] != '.') {
            unlinkat(dirfd(d), e->d_name, 0);
        }
    }
    if (d) {
        closedir(d);
    }
    return segments;
}

int job_segments(const struct job *j)
{
    return each_file(j->dir, false);
}

void job_clean(struct job *j)
{
    job_kill(j);
    each_file(j->dir, true);
    rmdir(j->dir);
}

void ranks_run(const char *name, int n, int limit_s, const char *env)
{
    struct job j;

    job_start(&j, name, n, env);
    int bad = job_wait(&j, limit_s), segments = job_segments(&j);
    job_clean(&j);
    if (bad || segments) {
        fail_msg("%s on %d processes: %d ranks failed, %d segments left", name, n, bad, segments);
    }
}

struct thread_rank {
    struct rank r;
    const struct rank_case *c;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;

    CUDA(cudaSetDevice(t->r.rank));
    CUDA(cudaStreamCreate(&t->r.stream));
    t->c->run(&t->r);
    tell(&t->r, "done");
    if (!t->r.aborted) {
        NCCL(ncclCommDestroy(t->r.comm));
    }
    CUDA(cudaStreamDestroy(t->r.stream));
    return NULL;
}

void threads_run(const struct rank_case *cases, const char *name, int n)
{
    char dir[] = "/dev/shm/hostnccl-test-XXXXXX";
    struct thread_rank t[8] = {0};
    ncclComm_t comms[8];
    pthread_t threads[8];

    assert_in_range(n, 1, 8);
    assert_non_null(mkdtemp(dir));
    setenv("HOSTNCCL_DIR", dir, 1);
    assert_int_equal(ncclCommInitAll(comms, n, NULL), ncclSuccess);
    for (int r = 0; r < n; r++) {
        t[r].r = (struct rank){.rank = r, .n = n, .comm = comms[r]};
        t[r].c = find_case(cases, name);
        assert_non_null(t[r].c);
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &t[r]), 0);
    }
    for (int r = 0; r < n; r++) {
        pthread_join(threads[r], NULL);
    }
    assert_int_equal(each_file(dir, true), 0);
    rmdir(dir);
    unsetenv("HOSTNCCL_DIR");
}
