/*
 * checkpoint_resume.c: finds the file, makes sure that all ranks have the same one, and reads each rank's share.
 *
 * Rank 0 verifies the whole file; the others believe it and compare what is told of it: reading everything on every
 * rank would be as many times the model's bytes as there are ranks.
 */
#include "moe_core/train/checkpoint_inside.h"

#include "moe_core/include/moe/error.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The newest step in a folder; -1: none. */
static int64_t newest(const char *folder)
{
    int64_t best = -1;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        unsigned step;
        int used = 0;
        if (sscanf(entry->d_name, "step-%8u.safetensors%n", &step, &used) == 1 && entry->d_name[used] == '\0' &&
            used > 0) {
            best = (int64_t)step > best ? (int64_t)step : best;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return best;
}

static void refuse(const char *path, const char *why)
{
    fprintf(stderr, "moe_train: --resume: %s %s; name another checkpoint: --resume FILE\n", path, why);
}

/* The file to resume from, the same on every rank. */
static int choose(struct checkpoint *c, char *path, size_t size)
{
    const char *given = c->options->resume;
    struct stat st;
    bool folder = stat(given, &st) == 0 && S_ISDIR(st.st_mode), first = c->model->job->rank == 0;
    int64_t step = folder && first ? newest(given) : INT64_MAX, least = 0;
    int rc = checkpoint_agree(c, step, &least);
    if (rc != 0) {
        return rc;
    }
    if (least < 0) {
        if (first) {
            refuse(given, "holds no step-NUMBER.safetensors");
        }
        return MOE_E_STATE;
    }
    if (least == INT64_MAX) {
        snprintf(path, size, "%s", given);
    } else {
        snprintf(path, size, "%s/step-%08u.safetensors", given, (unsigned)least);
    }
    return 0;
}

/* Whether the file is of such a job. Rank 0 says what differs, also where that only changes the batches. */
static bool fits(const struct checkpoint *c, const struct ckpt_in *in, const char *path)
{
    struct checkpoint_facts mine = checkpoint_facts_of(c, 0);
    const char *format = ckpt_fact(in, "format"), *step = ckpt_fact(in, "step");
    char why[256];
    if (format == NULL || strcmp(format, CHECKPOINT_FORMAT) != 0 || step == NULL ||
        strtoul(step, NULL, 10) > UINT32_MAX) {
        refuse(path, "is no checkpoint of this moe_train");
        return false;
    }
    if (strtoul(step, NULL, 10) >= options_end(c->options)) {
        snprintf(why, sizeof(why), "has %s steps done already, and this job ends after %u", step,
                 options_end(c->options));
        refuse(path, why);
        return false;
    }
    for (int32_t i = 0; i < mine.used && strcmp(mine.at[i].name, "format") != 0; i++) {
        const char *theirs = ckpt_fact(in, mine.at[i].name);
        if (theirs != NULL && strcmp(theirs, mine.at[i].value) == 0) {
            continue;
        }
        if (i < mine.must) {
            snprintf(why, sizeof(why), "is of another model: its --%s is %s, this job's %s", mine.at[i].name,
                     theirs != NULL ? theirs : "unknown", mine.at[i].value);
            refuse(path, why);
            return false;
        }
        fprintf(stderr, "moe_train: --resume: %s was written with another %s (%s, now %s): the steps are others, too\n",
                path, mine.at[i].name, theirs != NULL ? theirs : "unknown", mine.at[i].value);
    }
    return true;
}

/* A tensor of the file with this name and shape; NULL with a sentence on standard error: there is none. */
static const struct ckpt_tensor *find(const struct ckpt_in *in, const struct ckpt_tensor *want, const char *path)
{
    const struct ckpt_tensor *t = ckpt_find(in, want->name);
    if (t == NULL || t->ndims != want->ndims ||
        memcmp(t->dims, want->dims, (size_t)t->ndims * sizeof(t->dims[0])) != 0) {
        char why[256];
        snprintf(why, sizeof(why), "has no tensor %s of this model's shape", want->name);
        refuse(path, why);
        return NULL;
    }
    return t;
}

/* Loads this rank's share of one kind of a buffer. */
static int load_buffer(struct checkpoint *c, const struct ckpt_in *in, const char *path, enum tensor_buffer buffer,
                       int kind)
{
    const struct model *m = c->model;
    const struct params *p = checkpoint_params(m, buffer);
    float *host = malloc((size_t)p->count * sizeof(*host) + 1);
    int rc = host != NULL ? 0 : MOE_E_NOMEM;
    if (rc != 0) {
        fprintf(stderr, "moe_train: --resume: rank %d has no memory to read %s\n", m->job->rank, path);
    }
    for (int32_t i = 0; i < c->count && rc == 0; i++) {
        const struct tensor *t = &c->tensors[i];
        struct ckpt_tensor want;
        int64_t block, column;
        checkpoint_describe(&want, kind, t);
        const struct ckpt_tensor *from = t->buffer == buffer ? find(in, &want, path) : NULL;
        rc = t->buffer == buffer && from == NULL ? MOE_E_STATE : 0;
        tensor_place(t, m->job, m->job->rank, &block, &column);
        for (int64_t r = 0; from != NULL && r < tensor_runs(t) && rc == 0; r++) {
            struct tensor_run run = tensor_run(t, block, column, r);
            int err = ckpt_read(in, from, run.whole_at, host + t->local_at + run.local_at, run.count);
            if (err != 0) {
                refuse(path, strerror(-err));
                rc = MOE_E_STATE;
            }
        }
    }
    rc = rc ? rc : moe_device_copy(m->job->device, checkpoint_array(p, kind), host, (size_t)p->count * sizeof(*host));
    int waited = moe_device_sync(m->job->device);
    free(host);
    return rc ? rc : waited;
}

static int load_biases(struct checkpoint *c, const struct ckpt_in *in, const char *path)
{
    const struct model *m = c->model;
    int64_t experts = m->shape.experts;
    int rc = 0;
    for (int64_t l = 0; m->expert_bias != NULL && l < m->shape.layers && rc == 0; l++) {
        struct ckpt_tensor want;
        checkpoint_describe_bias(&want, m, l);
        const struct ckpt_tensor *from = find(in, &want, path);
        rc = from == NULL || ckpt_read(in, from, 0, m->expert_bias + l * experts, experts) != 0 ? MOE_E_STATE : 0;
    }
    return rc;
}

/*
 * Whether all ranks have opened the same file: its step and its checksum, which rank 0 has verified. A folder that is
 * not the same on all machines would give each rank a part of another model, and steps of its own.
 */
static int same_file(struct checkpoint *c, const struct ckpt_in *in, bool opened, const char *path, uint32_t *step)
{
    const char *told = opened ? ckpt_fact(in, "step") : NULL;
    uint64_t hash = 0;
    bool good = told != NULL && ckpt_told_hash(in, &hash) == 0;
    *step = good ? (uint32_t)strtoul(told, NULL, 10) : 0;
    int rc = checkpoint_all_good(c, !good);
    const int64_t mine[] = {(int64_t)*step, (int64_t)(hash & UINT32_MAX), (int64_t)(hash >> 32)};
    bool same = true;
    for (size_t i = 0; i < sizeof(mine) / sizeof(mine[0]) && rc == 0; i++) {
        int64_t least = 0, most = 0;
        rc = checkpoint_agree(c, mine[i], &least);
        rc = rc ? rc : checkpoint_agree(c, -mine[i], &most);
        same = same && least == -most;
    }
    if (rc == 0 && !same) {
        if (c->model->job->rank == 0) {
            refuse(path, "is not the same file on all ranks");
        }
        rc = MOE_E_STATE;
    }
    return rc;
}

int checkpoint_resume(struct checkpoint *c, uint32_t *step)
{
    char path[4096], why[256];
    bool first = c->model->job->rank == 0;
    struct ckpt_in in = {.fd = -1};
    *step = 0;
    if (c->options->resume == NULL) {
        return 0;
    }
    int rc = choose(c, path, sizeof(path));
    if (rc != 0) {
        return rc;
    }
    bool good = !first || ckpt_open(&in, path, true, why, sizeof(why)) == 0;
    if (first && !good) {
        refuse(path, why);
    }
    good = good && (!first || fits(c, &in, path));
    rc = checkpoint_all_good(c, !good);
    if (rc != 0) {
        goto out;
    }
    good = first || ckpt_open(&in, path, false, why, sizeof(why)) == 0;
    if (!good) {
        refuse(path, why);
    }
    uint32_t done = 0;
    rc = same_file(c, &in, good, path, &done);
    if (rc != 0) {
        goto out;
    }
    for (int kind = 0; kind < CHECKPOINT_KINDS && good; kind++) {
        for (int buffer = 0; buffer < TENSOR_BUFFERS && good; buffer++) {
            good = load_buffer(c, &in, path, (enum tensor_buffer)buffer, kind) == 0;
        }
    }
    good = good && load_biases(c, &in, path) == 0;
    rc = checkpoint_all_good(c, !good);
    if (rc == 0) {
        *step = done;
        if (first) {
            printf("moe_train: resumes after %u steps from %s\n", *step, path);
            fflush(stdout);
        }
    }
out:
    ckpt_close(&in);
    return rc;
}
