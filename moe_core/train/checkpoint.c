/*
 * checkpoint.c: what saving (checkpoint_save.c) and resuming (checkpoint_resume.c) have in common.
 *
 * A file holds whole tensors under names of a state dict: model.NAME, optimizer.mean.NAME, optimizer.variance.NAME. So
 * it does not depend on the layout that wrote it: each rank reads the pieces that are its share in the layout of now.
 * A file for each rank was rejected: it ties a checkpoint to a layout, and resharding becomes a program of its own.
 * Rank 0 writes and verifies; what it finds out, all ranks learn before any goes on, so that none waits for one that
 * gave up.
 */
#include "moe_core/train/checkpoint_inside.h"

#include "moe_core/include/moe/error.h"
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

static const char *const kind_names[CHECKPOINT_KINDS] = {"model", "optimizer.mean", "optimizer.variance"};

int checkpoint_agree(struct checkpoint *c, int64_t mine, int64_t *least)
{
    return job_least(c->model->job, c->model->job->world, mine, least);
}

int checkpoint_all_good(struct checkpoint *c, bool failed)
{
    int32_t who = -1;
    int rc = job_failed(c->model->job, failed, &who);
    return rc != 0 ? rc : who >= 0 ? MOE_E_STATE : 0;
}

const struct params *checkpoint_params(const struct model *m, enum tensor_buffer buffer)
{
    return buffer == TENSOR_EXPERTS ? &m->experts : buffer == TENSOR_SHARED ? &m->shared : &m->dense;
}

float *checkpoint_array(const struct params *p, int kind)
{
    return kind == 0 ? p->value : kind == 1 ? p->mean : p->variance;
}

/* facts */

static void add_word(struct checkpoint_facts *f, const char *name, const char *word)
{
    struct ckpt_fact *fact = &f->at[f->used++];
    snprintf(fact->name, sizeof(fact->name), "%s", name);
    snprintf(fact->value, sizeof(fact->value), "%.60s", word);
}

static void add_number(struct checkpoint_facts *f, const char *name, uint64_t number)
{
    char word[24];
    snprintf(word, sizeof(word), "%" PRIu64, number);
    add_word(f, name, word);
}

struct checkpoint_facts checkpoint_facts_of(const struct checkpoint *c, uint32_t step)
{
    const struct train_options *o = c->options;
    struct checkpoint_facts f = {.used = 0};
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
    add_word(&f, "format", CHECKPOINT_FORMAT);
    add_number(&f, "step", (uint64_t)step);
    return f;
}

/* tensors */

void checkpoint_describe(struct ckpt_tensor *to, int kind, const struct tensor *t)
{
    *to = (struct ckpt_tensor){.ndims = t->ndims};
    snprintf(to->name, sizeof(to->name), "%s.%s", kind_names[kind], t->name);
    memcpy(to->dims, t->dims, sizeof(t->dims));
}

void checkpoint_describe_bias(struct ckpt_tensor *to, const struct model *m, int64_t layer)
{
    *to = (struct ckpt_tensor){.ndims = 1, .dims = {m->shape.experts}};
    snprintf(to->name, sizeof(to->name), "model.layers.%lld.router.expert_bias", (long long)layer);
}

struct ckpt_tensor *checkpoint_describe_all(const struct checkpoint *c, int32_t *count)
{
    const struct model *m = c->model;
    int64_t biases = m->expert_bias != NULL ? m->shape.layers : 0;
    struct ckpt_tensor *all = calloc((size_t)(CHECKPOINT_KINDS * c->count + biases), sizeof(*all));
    *count = 0;
    for (int kind = 0; kind < CHECKPOINT_KINDS && all != NULL; kind++) {
        for (int32_t i = 0; i < c->count; i++) {
            checkpoint_describe(&all[(*count)++], kind, &c->tensors[i]);
        }
    }
    for (int64_t l = 0; l < biases && all != NULL; l++) {
        checkpoint_describe_bias(&all[(*count)++], m, l);
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
    if (c->tensors == NULL) {
        fprintf(stderr, "moe_train: rank %d has no memory for the list of tensors\n", m->job->rank);
    }
    bool failed = c->tensors == NULL || (m->job->rank == 0 && o->save != NULL && !folder_ready(c));
    return checkpoint_all_good(c, failed);
}

void checkpoint_destroy(struct checkpoint *c)
{
    if (c->options == NULL) {
        return;
    }
    if (c->lock >= 0) {
        close(c->lock);
    }
    free(c->tensors);
    *c = (struct checkpoint){.lock = -1};
}
