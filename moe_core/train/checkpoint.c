/*
 * checkpoint.c: saves and resumes.
 *
 * A file holds whole tensors under names of a state dict: model.NAME, optimizer.mean.NAME, optimizer.variance.NAME. So
 * it does not depend on the layout that wrote it: each rank reads the pieces that are its share in the layout of now.
 * A file for each rank was rejected: it ties a checkpoint to a layout, and resharding becomes a program of its own.
 * Rank 0 writes and verifies; what it finds out, all ranks learn before any goes on, so that none waits for one that
 * gave up.
 */
#include "moe_core/train/checkpoint.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/ckpt_file.h"
#include "moe_core/train/gather.h"
#include "moe_core/train/optim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "moe_train/1"
enum { KINDS = 3 }; /* parameters, first and second moments */
static const char *const kind_names[KINDS] = {"model", "optimizer.mean", "optimizer.variance"};

/* The least of all ranks' numbers, on every rank: the way to learn of one rank's failure. */
static int agree(struct checkpoint *c, int64_t mine, int64_t *least)
{
    const struct job *job = c->model->job;
    *c->word = mine;
    ncclResult_t nc =
        ncclAllReduce(c->word, c->word, 1, ncclInt64, ncclMin, job->world, moe_device_stream(job->device));
    int rc = job_nccl_failed(job, "AllReduce about a checkpoint", nc) ? MOE_E_COMM : moe_device_sync(job->device);
    *least = *c->word;
    return rc;
}

/* `failed` of any rank is an error on all. */
static int all_good(struct checkpoint *c, bool failed)
{
    int64_t least = 0;
    int rc = agree(c, failed ? -1 : 0, &least);
    return rc != 0 ? rc : least < 0 ? MOE_E_STATE : 0;
}

static const struct params *params_of(const struct model *m, enum tensor_buffer buffer)
{
    return buffer == TENSOR_EXPERTS ? &m->experts : buffer == TENSOR_SHARED ? &m->shared : &m->dense;
}

static float *array_of(const struct params *p, int kind)
{
    return kind == 0 ? p->value : kind == 1 ? p->mean : p->variance;
}

/* facts */

struct facts {
    struct ckpt_fact at[24];
    int32_t used;
    int32_t must; /* the first so many must be the same in the job that resumes */
};

static void add_word(struct facts *f, const char *name, const char *word)
{
    struct ckpt_fact *fact = &f->at[f->used++];
    snprintf(fact->name, sizeof(fact->name), "%s", name);
    snprintf(fact->value, sizeof(fact->value), "%.60s", word);
}

static void add_number(struct facts *f, const char *name, uint64_t number)
{
    char word[24];
    snprintf(word, sizeof(word), "%" PRIu64, number);
    add_word(f, name, word);
}

/* What a file says about the job that wrote it, by the names of options. */
static struct facts facts_of(const struct checkpoint *c, uint32_t step)
{
    const struct train_options *o = c->options;
    struct facts f = {.used = 0};
    add_number(&f, "context", (uint64_t)o->context);
    add_number(&f, "hidden", (uint64_t)o->hidden);
    add_number(&f, "ffn", (uint64_t)o->ffn);
    add_number(&f, "experts", (uint64_t)o->experts);
    add_number(&f, "layers", (uint64_t)o->layers);
    add_number(&f, "topk", (uint64_t)o->topk);
    add_word(&f, "router", o->router != NULL ? o->router : "plain");
    add_word(&f, "activation", options_choice_name("activation", o->activation));
    add_word(&f, "probs", options_choice_name("probs", o->place));
    add_number(&f, "bias", (uint64_t)o->bias);
    add_number(&f, "shared", (uint64_t)o->shared);
    add_number(&f, "shared-gate", (uint64_t)o->shared_gate);
    f.must = f.used;
    add_number(&f, "seed", (uint64_t)o->seed);
    add_number(&f, "text", ckpt_hash(ckpt_hash_begin, c->corpus->text, c->corpus->bytes));
    add_number(&f, "learnt bytes of the text", (uint64_t)c->corpus->learn);
    add_number(&f, "number of steps with a rising rate", optim_warm(o->steps));
    add_number(&f, "tokens", (uint64_t)o->tokens);
    add_number(&f, "microbatches", (uint64_t)o->microbatches);
    add_number(&f, "data-ranks", (uint64_t)c->model->job->data_size);
    add_word(&f, "format", FORMAT);
    add_number(&f, "step", (uint64_t)step);
    return f;
}

/* tensors */

static void describe(struct ckpt_tensor *to, int kind, const struct tensor *t)
{
    *to = (struct ckpt_tensor){.ndims = t->ndims};
    snprintf(to->name, sizeof(to->name), "%s.%s", kind_names[kind], t->name);
    memcpy(to->dims, t->dims, sizeof(t->dims));
}

static void describe_bias(struct ckpt_tensor *to, const struct model *m, int64_t layer)
{
    *to = (struct ckpt_tensor){.ndims = 1, .dims = {m->shape.experts}};
    snprintf(to->name, sizeof(to->name), "model.layers.%lld.router.expert_bias", (long long)layer);
}

/* All tensors of a file in their order. Owned by the caller; NULL when memory is short. */
static struct ckpt_tensor *describe_all(const struct checkpoint *c, int32_t *count)
{
    const struct model *m = c->model;
    int64_t biases = m->expert_bias != NULL ? m->shape.layers : 0;
    struct ckpt_tensor *all = calloc((size_t)(KINDS * c->count + biases), sizeof(*all));
    *count = 0;
    for (int kind = 0; kind < KINDS && all != NULL; kind++) {
        for (int32_t i = 0; i < c->count; i++) {
            describe(&all[(*count)++], kind, &c->tensors[i]);
        }
    }
    for (int64_t l = 0; l < biases && all != NULL; l++) {
        describe_bias(&all[(*count)++], m, l);
    }
    return all;
}

/* making */

static bool is_ours(const char *name, const char *suffix)
{
    size_t bytes = strlen(name), end = strlen(suffix);
    return bytes > end && strcmp(name + bytes - end, suffix) == 0;
}

/* Rank 0: the folder, its lock, and nothing half written in it. */
static bool folder_ready(struct checkpoint *c)
{
    const char *path = c->options->save;
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "moe_train: --save %s: cannot make the folder: %s\n", path, strerror(errno));
        return false;
    }
    c->lock = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->lock < 0 || access(path, W_OK) != 0) {
        fprintf(stderr, "moe_train: --save %s: cannot write there: %s\n", path, strerror(errno));
        return false;
    }
    if (flock(c->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        fprintf(stderr, "moe_train: --save %s: another job saves there; name another folder\n", path);
        return false;
    }
    int fd = dup(c->lock);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, ".step-", 6) == 0 && is_ours(entry->d_name, ".safetensors.part")) {
            (void)unlinkat(c->lock, entry->d_name, 0);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return true;
}

int checkpoint_new(const struct train_options *o, struct model *m, const struct corpus *corpus, struct checkpoint *c)
{
    *c = (struct checkpoint){.options = o, .model = m, .corpus = corpus, .lock = -1};
    if (o->save == NULL && o->resume == NULL) {
        return 0;
    }
    c->tensors = tensors_new(&m->shape, &c->count);
    int rc = c->tensors != NULL ? moe_device_alloc(m->job->device, sizeof(*c->word), (void **)&c->word) : MOE_E_NOMEM;
    return rc ? rc : all_good(c, m->job->rank == 0 && o->save != NULL && !folder_ready(c));
}

void checkpoint_destroy(struct checkpoint *c)
{
    if (c->options == NULL) {
        return;
    }
    if (c->lock >= 0) {
        close(c->lock);
    }
    moe_device_free(c->model->job->device, &c->word);
    free(c->tensors);
    *c = (struct checkpoint){.lock = -1};
}

/* saving */

/* Gathers a tensor of one kind on all ranks; rank 0 writes it. *err: rank 0's, the first one stays. */
static int save_tensor(struct checkpoint *c, int kind, const struct tensor *t, struct ckpt_out *out, int *err)
{
    const struct model *m = c->model;
    const float *share = array_of(params_of(m, t->buffer), kind) + t->local_at;
    int64_t mine = tensor_local_count(t);
    float *shares = gather_shares(m, t->buffer, share, mine), *whole = NULL;
    if (shares == NULL) {
        return MOE_E_NOMEM;
    }
    if (m->job->rank == 0 && *err == 0) {
        whole = malloc((size_t)tensor_count(t) * sizeof(*whole));
        *err = whole != NULL ? 0 : -ENOMEM;
    }
    if (whole != NULL) {
        gather_place(m->job, t, shares, mine, whole);
        *err = ckpt_write(out, whole, tensor_count(t));
    }
    free(whole);
    free(shares);
    return 0;
}

int checkpoint_save(struct checkpoint *c, uint32_t step)
{
    const struct model *m = c->model;
    struct facts f = facts_of(c, step);
    struct ckpt_out out = {.folder = -1};
    char name[64];
    bool writes = m->job->rank == 0;
    int32_t count = 0;
    struct ckpt_tensor *all = describe_all(c, &count);
    int err = all != NULL ? 0 : -ENOMEM, rc = 0;
    snprintf(name, sizeof(name), "step-%08u.safetensors", step);
    if (writes && err == 0) {
        err = ckpt_write_begin(&out, c->options->save, name, f.at, f.used, all, count);
    }
    for (int kind = 0; kind < KINDS && rc == 0; kind++) {
        for (int32_t i = 0; i < c->count && rc == 0; i++) {
            rc = save_tensor(c, kind, &c->tensors[i], &out, &err);
        }
    }
    if (writes && err == 0 && m->expert_bias != NULL) {
        err = ckpt_write(&out, m->expert_bias, m->shape.layers * m->shape.experts);
    }
    if (writes && err == 0 && rc == 0) {
        err = ckpt_write_end(&out);
    }
    if (writes && err != 0) {
        fprintf(stderr, "moe_train: --save: %s/%s cannot be written: %s; older files there are whole\n",
                c->options->save, name, strerror(-err));
    }
    ckpt_write_abort(&out);
    free(all);
    return rc ? rc : all_good(c, err != 0);
}

/* resuming */

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
    int rc = agree(c, step, &least);
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
    struct facts mine = facts_of(c, 0);
    const char *format = ckpt_fact(in, "format"), *step = ckpt_fact(in, "step");
    char why[256];
    if (format == NULL || strcmp(format, FORMAT) != 0 || step == NULL || strtoul(step, NULL, 10) > UINT32_MAX) {
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
    const struct params *p = params_of(m, buffer);
    float *host = malloc((size_t)p->count * sizeof(*host) + 1);
    int rc = host != NULL ? 0 : MOE_E_NOMEM;
    for (int32_t i = 0; i < c->count && rc == 0; i++) {
        const struct tensor *t = &c->tensors[i];
        struct ckpt_tensor want;
        int64_t block, column;
        describe(&want, kind, t);
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
    rc = rc ? rc : moe_device_copy(m->job->device, array_of(p, kind), host, (size_t)p->count * sizeof(*host));
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
        describe_bias(&want, m, l);
        const struct ckpt_tensor *from = find(in, &want, path);
        rc = from == NULL || ckpt_read(in, from, 0, m->expert_bias + l * experts, experts) != 0 ? MOE_E_STATE : 0;
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
    rc = all_good(c, !good);
    if (rc != 0) {
        goto out;
    }
    good = first || ckpt_open(&in, path, false, why, sizeof(why)) == 0;
    if (!good) {
        refuse(path, why);
    }
    for (int kind = 0; kind < KINDS && good; kind++) {
        for (int buffer = 0; buffer < TENSOR_BUFFERS && good; buffer++) {
            good = load_buffer(c, &in, path, (enum tensor_buffer)buffer, kind) == 0;
        }
    }
    good = good && load_biases(c, &in, path) == 0 && ckpt_fact(&in, "step") != NULL;
    rc = all_good(c, !good);
    if (rc == 0) {
        *step = (uint32_t)strtoul(ckpt_fact(&in, "step"), NULL, 10);
        if (first) {
            printf("moe_train: resumes after %u steps from %s\n", *step, path);
            fflush(stdout);
        }
    }
out:
    ckpt_close(&in);
    return rc;
}
