/*
 * catalogue.c: the executable: `catalogue NAME sick|healthy` is one rank; `catalogue --list` is the table for the
 * runner.
 *
 * Ranks meet through a file that rank 0 renames into place, because the launcher promises an environment and a private
 * directory, nothing more.
 */
#include "tests/catalogue/catalogue.h"
#include "tests/catalogue/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cat_program *const families[] = {
    cat_sequence,      cat_alignment,      cat_p2p,          cat_order,           cat_process, cat_healthy,
    cat_graphs,        cat_graphs_healthy, cat_refused,      cat_refused_healthy, cat_absent,  cat_mixed,
    cat_mixed_healthy, cat_polls,          cat_polls_healthy};
#define FAMILIES (sizeof(families) / sizeof(families[0]))

/* Elements of the ordinary step that was the last NCCL call; 0 when the last call was another one. */
static size_t last_step;

void cat_nccl(ncclResult_t result, const char *what)
{
    last_step = 0;
    if (result != ncclSuccess) {
        fprintf(stderr, "catalogue: %s: %s\n", what, ncclGetErrorString(result));
        exit(9);
    }
}

void cat_cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "catalogue: %s: %s\n", what, cudaGetErrorString(error));
        exit(9);
    }
}

void cat_sync(struct cat *c)
{
    CUDA(cudaStreamSynchronize(c->stream));
    if (last_step > 0) {
        cat_check_sum(c, last_step);
    }
}

void cat_step(struct cat *c, size_t count)
{
    NCCL(ncclAllReduce(c->send, c->recv, count, ncclFloat32, ncclSum, c->world, c->stream));
    last_step = count;
}

static const char *need(const char *name)
{
    const char *value = getenv(name);
    if (!value) {
        fprintf(
            stderr,
            "catalogue: %s is not set: start me with `rollcall run -n N --hostnccl -- catalogue NAME sick|healthy`\n",
            name);
        exit(2);
    }
    return value;
}

void cat_share(struct cat *c, const char *name, ncclUniqueId *id)
{
    const char *own =
        getenv("ROLL_CATALOGUE_DIR"); /* of ranks on several nodes: these have no ring directory in common */
    const char *dir = own ? own : need("ROLLCALL_DIR");
    char path[512], tmp[520];
    snprintf(path, sizeof(path), "%s/catalogue-%s.id", dir, name);
    snprintf(tmp, sizeof(tmp), "%s.tmp", path);
    if (c->rank == 0) {
        NCCL(ncclGetUniqueId(id));
        FILE *f = fopen(tmp, "wb");
        if (!f || fwrite(id, sizeof(*id), 1, f) != 1 || fclose(f) != 0 || rename(tmp, path) != 0) {
            perror("catalogue: writing the unique id");
            exit(9);
        }
        return;
    }
    for (int tries = 0; tries < 30000; tries++) { /* minutes: only a hang reaches this end */
        FILE *f = fopen(path, "rb");
        if (f) {
            size_t n = fread(id, sizeof(*id), 1, f);
            fclose(f);
            if (n == 1) {
                return;
            }
        }
        usleep(10000);
    }
    fprintf(stderr, "catalogue: rank 0 never wrote the unique id '%s'\n", name);
    exit(9);
}

ncclComm_t cat_join(struct cat *c, const char *name)
{
    ncclUniqueId id;
    ncclComm_t comm;
    cat_share(c, name, &id);
    NCCL(ncclCommInitRank(&comm, c->size, id, c->rank));
    return comm;
}

static const struct cat_program *find(const char *name)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        for (const struct cat_program *p = families[f]; p->name; p++) {
            if (strcmp(p->name, name) == 0) {
                return p;
            }
        }
    }
    return NULL;
}

static int list(void)
{
    for (size_t f = 0; f < FAMILIES; f++) {
        for (const struct cat_program *p = families[f]; p->name; p++) {
            printf("%s\t%s\t%s\t%s\t%s\t%d\n", p->name, p->code, p->code_two ? p->code_two : p->code, p->certainty,
                   p->culprits, p->min_ranks);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        return list();
    }
    const struct cat_program *program = argc == 3 ? find(argv[1]) : NULL;
    if (!program || (strcmp(argv[2], "sick") != 0 && strcmp(argv[2], "healthy") != 0)) {
        fprintf(stderr, "usage: catalogue --list | catalogue NAME sick|healthy\n");
        return 2;
    }

    struct cat c = {.rank = atoi(need("RANK")), .size = atoi(need("WORLD_SIZE"))};
    c.sick = strcmp(argv[2], "sick") == 0;
    c.culprit = c.sick && c.rank == c.size - 1;
    c.next = (c.rank + 1) % c.size;
    c.prev = (c.rank + c.size - 1) % c.size;
    int devices = 0;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaSetDevice(atoi(need("LOCAL_RANK")) % (devices > 0 ? devices : 1))); /* ranks may share a device */
    CUDA(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&c.other, cudaStreamNonBlocking));
    size_t bytes = CAT_ELEMENTS * (size_t)c.size * sizeof(float);
    CUDA(cudaMalloc((void **)&c.send, bytes));
    CUDA(cudaMalloc((void **)&c.recv, bytes));
    cat_check_begin(&c, bytes);
    if (!program->no_world) {
        c.world = cat_join(&c, "world");
    }
    program->run(&c);
    CUDA(cudaDeviceSynchronize());
    if (c.world) {
        NCCL(ncclCommDestroy(c.world));
    }
    return cat_check_end(&c);
}
