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

#define WAIT_MS 280000
#define DIRS    16

/* Directories that no job_end has removed: a failed assertion jumps over it. */
static char left[DIRS][64];

static void remove_directory(const char *path)
{
    char file[512];
    DIR *dir = opendir(path);
    for (struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
        unlink(file);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(path);
    for (size_t i = 0; i < DIRS; i++) {
        if (strcmp(left[i], path) == 0) {
            left[i][0] = '\0';
        }
    }
}

__attribute__((destructor)) static void remove_left(void)
{
    for (size_t i = 0; i < DIRS; i++) {
        if (left[i][0] != '\0') {
            remove_directory(left[i]);
        }
    }
}

const char *job_path(const char *name)
{
    const char *path = getenv(name);
    if (path == NULL) {
        fail_msg("%s is not set: run this test through ctest", name);
    }
    return path;
}

static void catch_output(struct job *job)
{
    job->output_fd = memfd_create("output", MFD_CLOEXEC);
    job->errors_fd = memfd_create("errors", MFD_CLOEXEC);
    assert_true(job->output_fd >= 0 && job->errors_fd >= 0);
}

void job_join(struct job *job, const struct job *other)
{
    memset(job, 0, sizeof(*job));
    memcpy(job->dir, other->dir, sizeof(job->dir));
    catch_output(job);
}

void job_begin(struct job *job)
{
    memset(job, 0, sizeof(*job));
    snprintf(job->dir, sizeof(job->dir), "%s/rollcall-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(job->dir));
    for (size_t i = 0; i < DIRS; i++) {
        if (left[i][0] == '\0') {
            snprintf(left[i], sizeof(left[i]), "%s", job->dir);
            break;
        }
    }
    catch_output(job);
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
    remove_directory(job->dir);
    close(job->output_fd);
    close(job->errors_fd);
}

void job_leave(struct job *job)
{
    close(job->output_fd);
    close(job->errors_fd);
}

void dump_open(const struct job *job, struct dump *dump)
{
    char path[512] = "";
    memset(dump, 0, sizeof(*dump));
    char pid[32];
    size_t rings = 0;
    snprintf(pid, sizeof(pid), ".%d.ring", (int)job->pid);
    DIR *dir = opendir(job->dir);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (ends_like(e->d_name, pid)) {
            snprintf(path, sizeof(path), "%s/%s", job->dir, e->d_name);
            rings++;
        }
    }
    closedir(dir);
    assert_int_equal(rings, 1);
    assert_int_equal(roll_ring_open(path, false, &dump->ring), 0);
    size_t offset = 0;
    while (dump->def_count < JOB_DEFS && roll_def_decode(dump->ring.defs, dump->ring.header->defs_bytes, &offset,
                                                         &dump->defs[dump->def_count]) == 0) {
        dump->def_count++;
    }
    uint64_t head = atomic_load(&dump->ring.header->head), capacity = dump->ring.mask + 1, next = 0;
    dump->records = calloc(capacity, sizeof(*dump->records));
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

/* Asks addr2line for the function at an address of a file. */
static void function_at(const char *path, uint64_t address, char *out, size_t size)
{
    char command[1024];
    snprintf(command, sizeof(command), "addr2line -f -e '%s' 0x%llx", path, (unsigned long long)address);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_non_null(fgets(out, (int)size, pipe));
    out[strcspn(out, "\n")] = '\0';
    pclose(pipe);
}

void dump_frames(const struct dump *dump, uint16_t site, char names[ROLL_CALLSITE_DEPTH][64])
{
    const struct roll_def *def = dump_def(dump, ROLL_DEF_CALLSITE, site);
    for (uint32_t i = 0; i < def->callsite.depth; i++) {
        uint64_t pc = def->callsite.pc[i] - 1; /* inside the call, not after it */
        names[i][0] = '\0';
        for (size_t m = 0; m < dump->def_count; m++) {
            const struct roll_def *module = &dump->defs[m];
            if (module->type == ROLL_DEF_MODULE && pc >= module->module.info.start && pc < module->module.info.end) {
                char path[512];
                snprintf(path, sizeof(path), "%.*s", (int)module->module.info.path_bytes, module->module.path);
                function_at(path, pc - module->module.info.bias, names[i], 64);
                assert_true(module->module.info.build_id_bytes == 20);
            }
        }
    }
}
