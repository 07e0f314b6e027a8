/*
 * test_shared.c: processes that share a device: what one uses is missing to the others, to allocations and to NVML,
 * until the process frees it or is killed.
 */
#include "tests/hostnccl/cuda/child.h"

#include <signal.h>
#include <sys/prctl.h>

static const size_t GB = (size_t)1 << 30;
static char shared_path[] = "/tmp/hostcuda-shared-XXXXXX";

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int instance, compute;
};

extern int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned int, void **);
extern int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned int *, struct process *);
extern int nvmlDeviceGetMemoryInfo(void *, unsigned long long *);

static size_t free_bytes(void)
{
    size_t left, total;
    expect(cudaMemGetInfo(&left, &total) == cudaSuccess && total == 80 * GB);
    return left;
}

/* A process that allocates so much on device 1, a late one when it is told to; frees when it is told to, and waits for
 * its end. It must be started before this process has called CUDA. */
static pid_t start_other(size_t bytes, bool is_late, int told[2], int tells[2])
{
    expect(!pipe(told) && !pipe(tells));
    pid_t pid = fork();
    if (pid) {
        char ready;
        close(tells[1]); /* its end is told by the pipe's */
        expect(pid > 0 && (is_late || read(tells[0], &ready, 1) == 1));
        return pid;
    }
    char *memory, byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);       /* else a test that fails would wait for this process */
    setenv("CUDA_VISIBLE_DEVICES", "1", 1); /* which is its device 0 */
    expect(!is_late || read(told[0], &byte, 1) == 1);
    expect(cudaMalloc((void **)&memory, bytes) == cudaSuccess);
    expect(write(tells[1], "a", 1) == 1);
    if (read(told[0], &byte, 1) == 1) {
        expect(cudaFree(memory) == cudaSuccess);
        expect(write(tells[1], "f", 1) == 1);
    }
    (void)pause();
    _exit(1);
}

static void end(pid_t pid)
{
    int status;
    expect(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
}

static void shares_a_device(void)
{
    int told[2], tells[2], other_told[2], other_tells[2], late_told[2], late_tells[2];
    void *device;
    char *memory, byte;
    unsigned long long info[3];
    struct process list[4];
    unsigned int count = 0;
    setenv("HOSTCUDA_SHARED", shared_path, 1);
    pid_t first = start_other(30 * GB, false, told, tells);
    pid_t second = start_other(20 * GB, false, other_told, other_tells);
    pid_t late = start_other(5 * GB, true, late_told, late_tells);
    expect(free_bytes() == 80 * GB); /* device 0 */
    expect(cudaSetDevice(1) == cudaSuccess && free_bytes() == 30 * GB);
    expect(cudaMalloc((void **)&memory, 31 * GB) == cudaErrorMemoryAllocation);
    expect(cudaMalloc((void **)&memory, 10 * GB) == cudaSuccess && free_bytes() == 20 * GB);

    expect(!nvmlInit_v2() && !nvmlDeviceGetHandleByIndex_v2(1, &device));
    expect(!nvmlDeviceGetMemoryInfo(device, info));
    expect(info[0] == 80 * GB && info[1] == 20 * GB && info[2] == 60 * GB);
    expect(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL) == 7 && count == 3); /* no room */
    expect(!nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) && count == 3);
    expect(list[0].pid == (unsigned int)getpid() && list[0].used == 10 * GB && list[0].instance == ~0u);
    expect(list[1].pid == (unsigned int)first && list[1].used == 30 * GB);
    expect(list[2].pid == (unsigned int)second && list[2].used == 20 * GB && list[2].compute == ~0u);

    expect(write(other_told[1], "f", 1) == 1 && read(other_tells[0], &byte, 1) == 1);
    expect(free_bytes() == 40 * GB);
    end(first); /* killed with all its memory */
    expect(free_bytes() == 70 * GB);
    expect(cudaFree(memory) == cudaSuccess);
    expect(cudaMalloc((void **)&memory, 80 * GB) == cudaSuccess && free_bytes() == 0);
    expect(cudaFree(memory) == cudaSuccess);
    expect(write(late_told[1], "a", 1) == 1 && read(late_tells[0], &byte, 1) == 1);
    expect(free_bytes() == 75 * GB); /* in the place of the one that was killed */
    end(late);
    end(second);
    expect(free_bytes() == 80 * GB);
}

static void counts_alone(void)
{
    int told[2], tells[2];
    unsetenv("HOSTCUDA_SHARED");
    pid_t other = start_other(30 * GB, false, told, tells);
    expect(cudaSetDevice(1) == cudaSuccess && free_bytes() == 80 * GB);
    end(other);
}

static void counts_alone_with_a_bad_file(void)
{
    setenv("HOSTCUDA_SHARED", "/no/such/folder/file", 1);
    expect(free_bytes() == 80 * GB);
}

static void test_processes_share_a_device(void **state)
{
    (void)state;
    char text[1024];
    int file = mkstemp(shared_path);
    assert_true(file >= 0);
    close(file);
    run_child(shares_a_device, text, sizeof(text));
    assert_string_equal(text, "");
    unlink(shared_path);
}

static void test_without_a_file_a_process_is_alone(void **state)
{
    (void)state;
    char text[1024];
    run_child(counts_alone, text, sizeof(text));
    assert_string_equal(text, "");
    run_child(counts_alone_with_a_bad_file, text, sizeof(text));
    assert_non_null(strstr(text, "HOSTCUDA_SHARED=/no/such/folder/file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_share_a_device),
        cmocka_unit_test(test_without_a_file_a_process_is_alone),
    };
    setenv("HOSTCUDA_DEVICES", "2", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
