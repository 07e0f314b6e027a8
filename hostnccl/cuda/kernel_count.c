/*
 * kernel_count.c: what became of launches: each is counted under its kernel's name, in the process and in its report.
 */
#include "hostnccl/cuda/kernel.h"

#include <stdio.h>

static const char *const fates[] = {
    [HOSTCUDA_SKIPPED] = "skipped", [HOSTCUDA_RUN] = "run", [HOSTCUDA_REFUSED] = "refused"};

/* The report gets a line for each kernel with the first launch. */
void hostcuda_kernel_count(struct hostcuda_function *function, enum hostcuda_fate fate)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    unsigned long long number = atomic_fetch_add(&function->launches[fate].count, 1) + 1;
    if (!hostcuda_report_is_wanted()) {
        return;
    }
    pthread_mutex_lock(&lock); /* so that a smaller number never overwrites a larger one */
    if (number == 1) {
        int start = snprintf(NULL, 0, "kernel %s ", fates[fate]);
        function->launches[fate].at =
            hostcuda_report_line(start, "kernel %s %020d %s\n", fates[fate], 1, function->name);
    }
    number = atomic_load(&function->launches[fate].count);
    if (function->launches[fate].at > 0) {
        hostcuda_report_number(function->launches[fate].at, number);
    }
    pthread_mutex_unlock(&lock);
}

void hostcuda_kernel_run(const struct hostcuda_kernel *kernel)
{
    hostcuda_kernel_count(kernel->function, kernel->fn || kernel->code ? HOSTCUDA_RUN : HOSTCUDA_SKIPPED);
    if (kernel->fn) {
        kernel->fn(kernel->block);
    } else if (kernel->code) {
        struct hostcuda_code_launch launch = {.entry = kernel->code,
                                              .grid = {kernel->grid[0], kernel->grid[1], kernel->grid[2]},
                                              .threads = {kernel->threads[0], kernel->threads[1], kernel->threads[2]},
                                              .shared_bytes = kernel->shared_bytes,
                                              .parameters = kernel->block,
                                              .is_overlapped = kernel->is_overlapped,
                                              .cluster = kernel->cluster};
        int error = hostcuda_code_loaded()->run(&launch);
        if (error) {
            hostcuda_fault_set((cudaError_t)error);
        }
    }
}
