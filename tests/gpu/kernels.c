/*
 * kernels.c: gpu_kernels, part e of gpu-check: every function of the CUDA back end against the host's, and how long it
 * takes.
 *
 *   gpu_kernels [--rehearse] [--seed N] [--sample N] [--digest] [--all-there] [--break N] [PART...]
 *
 * --rehearse takes the host's back end for both sides: the program itself can then be tried where there is no GPU.
 * --sample N runs about one case in N of each row, which ones depends on the seed, in smaller sizes, and times nothing:
 * for the emulator (tests/kernels_emu).
 * --digest adds to each row a number of all bytes of the GPU's that it compared: two runs are alike where it is.
 * --all-there finds fault with a row that had cases and compared nothing: else a row of kernels that the GPU does not
 * have is right.
 * --break N spoils what the N-th comparison sees, which must be found. One line of JSON for each function. Exit: 0 all
 * right, 1 something is wrong, 2 usage, 3 no GPU, 9 the check itself failed.
 */
#include "tests/gpu/kernels.h"

#include <math.h>
#include <stdarg.h>
#include <time.h>

static const struct {
    const char *name;
    void (*run)(struct check *c);
} parts[] = {
    {"tensor", check_tensor},     {"gemm", check_gemm},   {"fp8", check_fp8},       {"product", check_product},
    {"product8", check_product8}, {"move", check_move},   {"router", check_router}, {"rows", check_rows},
    {"flex", check_flex},         {"layer", check_layer},
#ifdef GPU_KERNELS_GRAPH /* our own cuda_runtime.h may be older than the graph functions */
    {"graph", check_graph},
#endif
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

void row_begin(struct check *c, const char *name)
{
    c->name = name;
    c->shapes = 0;
    c->cases = c->tried = c->compared = 0;
    c->worst = 0;
    c->digest = 14695981039346656037u; /* FNV-1a */
    c->row_wrong = false;
}

void row_end(struct check *c, const char *more)
{
    char digest[40] = "";
    if (c->all_there && c->compared == 0 && (c->tried > 0 || c->cases == 0)) {
        row_wrong(c, "nothing was compared: no case found such a kernel");
    }
    if (c->digests) {
        snprintf(digest, sizeof(digest), ",\"digest\":\"%016llx\"", (unsigned long long)c->digest);
    }
    printf("{\"kernel\":\"%s\",\"shapes\":%d,\"compared\":%llu,\"worst_in_tolerances\":%.4g%s%s%s,\"right\":%s}\n",
           c->name, c->shapes, (unsigned long long)c->compared, isinf(c->worst) ? 1e30 : c->worst,
           more[0] != '\0' ? "," : "", more, digest, c->row_wrong ? "false" : "true");
    fflush(stdout);
    c->wrong = c->wrong || c->row_wrong;
}

void row_wrong(struct check *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!c->row_wrong) { /* the first finding of a row says enough */
        fprintf(stderr, "gpu check: %s: ", c->name);
        vfprintf(stderr, format, args);
        fprintf(stderr, "\n");
    }
    va_end(args);
    c->row_wrong = true;
}

bool taken(struct check *c)
{
    uint64_t first = c->sample < 4 ? c->sample : 4, i = c->cases++;
    if (c->sample < 2) {
        c->tried++;
        return true;
    }
    uint64_t window = i < first ? first : c->sample, place = i < first ? i : (i - first) % window;
    if (place == 0) {
        c->pick = (next_random(c) >> 16) % window;
    }
    c->tried += place == c->pick;
    return place == c->pick;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: gpu_kernels [--rehearse] [--seed N] [--sample N] [--all-there] [--break N] [PART...]; parts:");
    for (size_t i = 0; i < PARTS; i++) {
        fprintf(stderr, " %s", parts[i].name);
    }
    fprintf(stderr, "\n");
    return 2;
}

static bool wanted(const char *name, char **names, int n)
{
    bool found = n == 0;
    for (int i = 0; i < n; i++) {
        found = found || strcmp(names[i], name) == 0;
    }
    return found;
}

static bool known(const char *name)
{
    bool found = false;
    for (size_t i = 0; i < PARTS; i++) {
        found = found || strcmp(parts[i].name, name) == 0;
    }
    return found;
}

int main(int argc, char **argv)
{
    struct check c = {.random = (uint64_t)time(NULL), .breaks = -1, .name = "start"};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--rehearse") == 0) {
            c.rehearsal = true;
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            c.random = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--sample") == 0 && i + 1 < argc) {
            c.sample = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--digest") == 0) {
            c.digests = true;
        } else if (strcmp(argv[i], "--all-there") == 0) {
            c.all_there = true;
        } else if (strcmp(argv[i], "--break") == 0 && i + 1 < argc) {
            c.breaks = strtol(argv[++i], NULL, 0);
        } else {
            return usage();
        }
    }
    for (int j = i; j < argc; j++) {
        if (!known(argv[j])) {
            return usage();
        }
    }
    fprintf(stderr, "gpu check: seed %llu\n", (unsigned long long)c.random);
    int rc = moe_device_new("host", &c.device[HOST]);
    rc = rc ? rc : moe_device_new(c.rehearsal ? "host" : "cuda", &c.device[GPU]);
    if (rc != 0) {
        /* The vendor's runtime without a GPU refuses the host's device already: it makes no streams there. */
        int gpus = 0;
        bool none = cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0;
        fprintf(stderr, "gpu check: %s\n", moe_last_error());
        moe_device_destroy(&c.device[HOST]);
        return none || rc == MOE_E_UNSUPPORTED ? 3 : 9;
    }
    for (size_t p = 0; p < PARTS; p++) {
        if (wanted(parts[p].name, argv + i, argc - i)) {
            parts[p].run(&c);
        }
    }
    moe_device_destroy(&c.device[GPU]);
    moe_device_destroy(&c.device[HOST]);
    return c.wrong ? 1 : 0;
}
