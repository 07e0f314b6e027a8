/*
 * code_library.c: a library of device code, as HOSTCUDA_CODE names one, with two kernels written by hand: one notes how
 * it was launched and adds, one does what a device must not. It counts the memory that it is told of.
 */
#include "hostnccl/cuda/code.h"

#include <string.h>

#ifndef CODE_VERSION
#define CODE_VERSION HOSTCUDA_CODE_VERSION
#endif

static const size_t add_bytes[] = {sizeof(uint64_t *), sizeof(uint64_t)};
static const struct hostcuda_code_entry entries[] = {
    {.name = "add_numbers", .count = 2, .bytes = add_bytes, .threads_max = 64, .shared_bytes = 4 << 10},
    {.name = "faulty", .threads_max = 1024},
};
static size_t told_bytes;

static const struct hostcuda_code_entry *find(const char *name)
{
    for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        if (strcmp(entries[i].name, name) == 0) {
            return &entries[i];
        }
    }
    return NULL;
}

/* add_numbers(out, more): out[0] += more, and what the launch said into out[1..9]. */
static int run(const struct hostcuda_code_launch *launch)
{
    if (launch->entry != &entries[0]) {
        return 700; /* cudaErrorIllegalAddress */
    }
    uint64_t *out = *(uint64_t **)launch->parameters[0], more = *(uint64_t *)launch->parameters[1];
    out[0] += more;
    for (int i = 0; i < 3; i++) {
        out[1 + i] = launch->grid[i];
        out[4 + i] = launch->threads[i];
    }
    out[7] = launch->shared_bytes;
    out[8] = told_bytes;
    out[9] = launch->is_overlapped;
    return 0;
}

static void memory(const void *start, size_t bytes, bool is_there)
{
    told_bytes += start == NULL ? 0 : is_there ? bytes : -bytes;
}

const struct hostcuda_code *hostcuda_code_table(void)
{
    static const struct hostcuda_code table = {CODE_VERSION, find, run, memory};
    return &table;
}
