/*
 * main.c: moe_train: the training loop.
 *
 * One step: rank 0 broadcasts the learning rate; each microbatch runs forward and backward; gradients are reduced,
 * step_reduce.c; AdamW; the mean loss; one wait. The host runs ahead of the
 * stream except where a layer needs its splits, so a hang shows where it does in a real job: in cudaStreamSynchronize
 * of the main thread, ended by the job's own watchdog.
 */
#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/reduce.h"
#include "moe_core/train/check.h"
#include "moe_core/train/checkpoint.h"
#include "moe_core/train/optim.h"
#include "moe_core/train/spawn.h"
#include "moe_core/train/step_reduce.h"
#include "moe_core/train/watchdog.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_S = 5 }; /* seconds that the other ranks get when a rank has failed */

struct train {
    const struct train_options *options;
    struct job job;
    struct corpus corpus;
    struct model model;
    bool modelled; /* `model` is made, but perhaps for some layers */
    struct hazard hazard;
    struct step_reduce reduce;
    struct check check;
    struct checkpoint checkpoint;
    uint32_t first_step; /* 0, or where a checkpoint ended */
    double first_held_out, last_held_out;
    float *rate; /* device [1] */
    float host_rate;
    double *host_loss; /* pinned [1] */
    double first_loss, last_loss;
    double late_loss;     /* sum over the last tenth of the steps */
    uint32_t late_losses; /* how many that were in this run */
    bool unlearned;       /* --must-learn found that it did not */
    /*
     * device [4]: layer forwards without tokens; key of the first one; ranks whose check failed; how far parameters
     * were off, in billionths of a step.
     */
    int64_t *empty;
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* moe_last_error says what the code means, too, unless the failure came from elsewhere than the library. */
static const char *detail_of(int rc)
{
    const char *text = moe_error_text(rc);
    return strstr(moe_last_error(), text) != NULL ? moe_last_error() : text;
}

static int fail(const struct train *t, const char *what, int rc)
{
    if (rc != 0) {
        fprintf(stderr, "moe_train: rank %d: %s: %s\n", t->job.rank, what, detail_of(rc));
    }
    return rc;
}

/* Sends the learning rate of the step from rank 0 to all. */
static int broadcast_rate(struct train *t, uint32_t step)
{
    int root = inject_root(&t->options->inject, t->job.rank, step);
    t->host_rate = optim_rate(t->options->lr, step, t->options->steps);
    int rc = moe_device_copy(t->job.device, t->rate, &t->host_rate, sizeof(t->host_rate));
    ncclResult_t nc =
        ncclBroadcast(t->rate, t->rate, 1, ncclFloat32, root, t->job.world, moe_device_stream(t->job.device));
    return job_nccl_failed(&t->job, "Broadcast", nc) ? MOE_E_COMM : rc;
}

/* Remembers the layers in which this rank had no tokens. */
static void count_empty(struct train *t, const struct moe_step *step)
{
    for (int64_t l = 0; l < t->options->layers; l++) {
        if (moe_layer_rows(t->model.layer[l]) == 0) {
            int64_t key = (int64_t)step->step << 32 | l << 16 | t->job.rank;
            t->empty[0]++;
            t->empty[1] = key < t->empty[1] ? key : t->empty[1];
        }
    }
}

/* Sends the mean loss over all ranks' tokens to host_loss; valid after the next wait. */
static int reduce_loss(struct train *t)
{
    double *loss = t->model.loss;
    ncclResult_t nc =
        ncclAllReduce(loss, loss, 1, ncclFloat64, ncclSum, t->job.world, moe_device_stream(t->job.device));
    int rc = moe_device_copy(t->job.device, t->host_loss, loss, sizeof(*loss));
    return job_nccl_failed(&t->job, "AllReduce of the loss", nc) ? MOE_E_COMM : rc;
}

static double mean_loss(const struct train *t)
{
    const struct train_options *o = t->options;
    return *t->host_loss / ((double)t->job.world_size * (double)o->tokens * o->microbatches);
}

/* Takes checksums of what must be equal on ranks with the same parameters, before the step changes the parameters. */
static int tell_replicas(struct train *t, const struct moe_step *at)
{
    const struct model *m = &t->model;
    const struct moe_subject dense = {.tensor = MOE_TENSOR_DENSE, .layer = UINT32_MAX, .comm = t->job.world};
    const struct moe_subject experts = {.tensor = MOE_TENSOR_EXPERTS, .layer = UINT32_MAX, .comm = t->job.edp};
    if (m->facts == NULL) {
        return 0;
    }
    moe_facts_begin(m->facts, at);
    int rc = moe_facts_replica(m->facts, &dense, m->dense.value, (size_t)m->dense.count * sizeof(float));
    return rc ? rc : moe_facts_replica(m->facts, &experts, m->experts.value, (size_t)m->experts.count * sizeof(float));
}

static int update(struct train *t, uint32_t step)
{
    int rc = optim_step(t->job.device, &t->model.dense, t->rate, step);
    rc = rc ? rc : optim_step(t->job.device, &t->model.experts, t->rate, step);
    rc = rc ? rc : optim_step(t->job.device, &t->model.shared, t->rate, step);
    return rc != 0 || t->model.expert_bias == NULL ? rc : fail(t, "expert biases", model_update_bias(&t->model));
}

static int train_step(struct train *t, uint32_t step)
{
    const struct train_options *o = t->options;
    struct moe_step at = {.step = step};
    bool skip = false;
    inject_process(&o->inject, t->job.rank, step);
    moe_step_report(&at, MOE_PHASE_FORWARD, (uint64_t)model_tokens(o, t->job.data_rank, &at));
    int rc = broadcast_rate(t, step);
    rc = rc ? rc : model_begin_step(&t->model);
    rc = rc ? rc : tell_replicas(t, &at);
    for (uint32_t mb = 0; mb < o->microbatches && rc == 0; mb++) {
        at.microbatch = (uint16_t)mb;
        if (mb > 0) {
            moe_step_report(&at, MOE_PHASE_FORWARD, (uint64_t)model_tokens(o, t->job.data_rank, &at));
        }
        if (!hazard_skips_microbatch(&t->hazard, step)) {
            rc = fail(t, "microbatch", model_microbatch(&t->model, &t->corpus, &at));
            count_empty(t, &at);
        }
    }
    moe_step_report(&at, MOE_PHASE_REDUCE, (uint64_t)model_tokens(o, t->job.data_rank, &at));
    rc = rc ? rc : fail(t, "hazard", hazard_before_reduce(&t->hazard, step));
    rc = rc ? rc : fail(t, "gradient reduction", step_reduce_run(&t->reduce, step));
    rc = rc ? rc : fail(t, "hazard", hazard_after_reduce(&t->hazard, step, &skip));
    rc = rc ? rc : reduce_loss(t);
    if (rc == 0 && o->check) {
        rc = fail(t, "wait", moe_device_sync(t->job.device));
        rc = rc ? rc : fail(t, "check", check_step(&t->check, &t->model, &t->corpus, step, mean_loss(t)));
    }
    moe_step_report(&at, MOE_PHASE_OPTIMIZER, (uint64_t)model_tokens(o, t->job.data_rank, &at));
    rc = rc != 0 || skip ? rc : update(t, step);
    rc = rc ? rc : fail(t, "wait for the step", moe_device_sync(t->job.device));
    if (rc == 0 && o->check && !skip) {
        check_update(&t->check, &t->model, step);
    }
    if (rc == 0) {
        hazard_end_step(&t->hazard);
    }
    if (rc == 0 && t->model.facts != NULL) {
        moe_facts_report(t->model.facts);
    }
    return rc;
}

/* The last tenth of the steps, one step at least. */
static uint32_t late_steps(const struct train_options *o)
{
    return o->steps / 10 > 0 ? o->steps / 10 : 1;
}

static void report_step(struct train *t, uint32_t step)
{
    double loss = mean_loss(t);
    t->first_loss = step == t->first_step ? loss : t->first_loss;
    t->last_loss = loss;
    if (step >= t->options->steps - late_steps(t->options)) {
        t->late_loss += loss;
        t->late_losses++;
    }
    if (t->job.rank == 0) {
        printf(t->options->exact ? "step %u loss %.17g\n" : "step %u loss %.5f\n", step, loss);
        fflush(stdout);
    }
}

/* Whether the job has learned more than how often one byte follows another; every rank comes to the same answer. */
static void judge_learning(struct train *t)
{
    double entropy = corpus_bigram_entropy(&t->corpus), loss = t->late_loss / t->late_losses;
    t->unlearned = !(loss < entropy);
    if (t->job.rank == 0) {
        printf("moe_train: the mean loss of the last %u steps is %.4f, the bigram entropy of the text %.4f: %s\n",
               t->late_losses, loss, entropy, t->unlearned ? "NOT LEARNED" : "learned");
    }
}

/* Prints the last line. Collective, because the line counts the empty layers of all ranks. */
static int report_summary(struct train *t, double elapsed)
{
    uint32_t steps = options_end(t->options) - t->first_step;
    t->empty[2] = t->check.failed;
    t->empty[3] = (int64_t)fmin(1e9 * t->check.optim.worst, 1e18);
    ncclResult_t nc = ncclAllReduce(&t->empty[0], &t->empty[0], 1, ncclInt64, ncclSum, t->job.world,
                                    moe_device_stream(t->job.device));
    nc = nc != ncclSuccess ? nc
                           : ncclAllReduce(&t->empty[1], &t->empty[1], 1, ncclInt64, ncclMin, t->job.world,
                                           moe_device_stream(t->job.device));
    if (nc == ncclSuccess && t->options->check) {
        nc = ncclAllReduce(&t->empty[2], &t->empty[2], 1, ncclInt64, ncclSum, t->job.world,
                           moe_device_stream(t->job.device));
        nc = nc != ncclSuccess ? nc
                               : ncclAllReduce(&t->empty[3], &t->empty[3], 1, ncclInt64, ncclMax, t->job.world,
                                               moe_device_stream(t->job.device));
    }
    int rc = job_nccl_failed(&t->job, "AllReduce", nc) ? MOE_E_COMM : moe_device_sync(t->job.device);
    if (rc != 0 || t->job.rank != 0) {
        return rc;
    }
    printf("moe_train: %d ranks (ep %d x edp %d): %u steps in %.2f s, %.1f ms a step; loss %.4f -> %.4f; ",
           t->job.world_size, t->job.ep_size, t->job.edp_size, steps, elapsed, 1000 * elapsed / steps, t->first_loss,
           t->last_loss);
    if (t->options->validate > 0) {
        printf("held out %.4f -> %.4f; ", t->first_held_out, t->last_held_out);
    }
    if (t->empty[0] == 0) {
        printf("no rank was ever without tokens\n");
    } else {
        printf("%lld layer forwards without tokens, the first: step %lld, layer %lld, rank %lld\n",
               (long long)t->empty[0], (long long)(t->empty[1] >> 32), (long long)(t->empty[1] >> 16 & 0xffff),
               (long long)(t->empty[1] & 0xffff));
    }
    if (t->options->check) {
        printf("moe_train: check: %u steps against the reference: gradients within %.2g, loss within %.2g (relative)",
               t->check.steps, t->check.worst, t->check.worst_loss);
        if (t->options->dtype != MOE_F32) {
            printf(", routing within %.2g of the best", t->check.regret);
        }
        printf(", parameters after the optimizer within %.2g of a step: %s\n", 1e-9 * (double)t->empty[3],
               t->empty[2] != 0 ? "DIFFERENT" : "equal");
    }
    return 0;
}

enum { VALIDATION_MICROBATCHES = 16 }; /* at most; of the held-out part, a rank's places are neighbours */

/*
 * The mean loss on the held-out part: microbatches spread evenly over it, or all of it where it is short. Before the
 * first step and at a layout's every rank the places are the same, so the numbers can be compared.
 */
static int validate(struct train *t, uint32_t step, bool first)
{
    const struct train_options *o = t->options;
    int64_t places = corpus_held_out(&t->corpus), data_ranks = t->job.data_size, mine = t->job.data_rank;
    int64_t pieces = (places + o->tokens * data_ranks - 1) / (o->tokens * data_ranks);
    pieces = pieces < VALIDATION_MICROBATCHES ? pieces : VALIDATION_MICROBATCHES;
    int rc = moe_device_ops(t->job.device)->zero(t->job.device, t->model.loss, sizeof(double));
    for (int64_t i = 0; i < pieces && rc == 0; i++) {
        struct moe_step at = {.step = step, .microbatch = (uint16_t)(o->microbatches + i)};
        moe_step_report(&at, MOE_PHASE_FORWARD, (uint64_t)o->tokens);
        rc = fail(t, "validation",
                  model_validate(&t->model, &t->corpus, &at, (i * data_ranks + mine) * places / (pieces * data_ranks)));
    }
    rc = rc ? rc : reduce_loss(t);
    rc = rc ? rc : fail(t, "wait for the validation", moe_device_sync(t->job.device));
    double loss = *t->host_loss / ((double)t->job.world_size * (double)o->tokens * (double)pieces);
    t->first_held_out = first ? loss : t->first_held_out;
    t->last_held_out = loss;
    if (rc == 0 && t->job.rank == 0) {
        printf(o->exact ? "validation after %u steps: held-out loss %.17g, training loss %.17g\n"
                        : "validation after %u steps: held-out loss %.5f, training loss %.5f\n",
               step, loss, t->last_loss);
        fflush(stdout);
    }
    return rc;
}

/* What is due after a step: validation, a checkpoint. */
static int after_step(struct train *t, uint32_t done)
{
    const struct train_options *o = t->options;
    bool last = done == options_end(o);
    int rc = 0;
    if (o->validate > 0 && (done % o->validate == 0 || last)) {
        watchdog_progress("validation", done);
        rc = validate(t, done, t->first_held_out == 0);
    }
    if (rc == 0 && o->save != NULL && (last || (o->save_every > 0 && done % o->save_every == 0))) {
        watchdog_progress("saving", done);
        rc = checkpoint_save(&t->checkpoint, done);
    }
    return rc;
}

/* Holds every rank at the same place, so that no rank waits in a collective meanwhile. */
static void hold(const char *file, uint32_t step)
{
    while (access(file, F_OK) != 0) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        watchdog_progress("held", step);
    }
}

static int run_steps(struct train *t)
{
    double start = seconds();
    int rc = 0;
    for (uint32_t step = t->first_step; step < options_end(t->options) && rc == 0; step++) {
        if (step == 1 && t->options->hold != NULL) {
            hold(t->options->hold, step);
        }
        watchdog_progress("training", step);
        rc = train_step(t, step);
        if (rc == 0) {
            report_step(t, step);
            rc = after_step(t, step + 1);
        }
    }
    watchdog_progress("summary", options_end(t->options));
    rc = rc ? rc : report_summary(t, seconds() - start);
    if (rc == 0 && t->options->must_learn) {
        judge_learning(t);
    }
    return rc;
}

/* What a rank makes by itself, calling no peer. */
static int make_own(struct train *t)
{
    moe_device_t *device = t->job.device;
    int rc = fail(t, "model", model_new(t->options, &t->job, &t->model));
    t->modelled = rc == 0;
    rc = rc ? rc : fail(t, "hazard", hazard_new(&t->options->hazard, &t->job, &t->model, &t->hazard));
    rc = rc ? rc : fail(t, "gradient buckets", step_reduce_new(t->options, &t->job, &t->model, &t->reduce));
    if (rc == 0) {
        rc = moe_device_alloc(device, sizeof(*t->rate), (void **)&t->rate);
        rc = rc ? rc : moe_device_alloc(device, sizeof(*t->host_loss), (void **)&t->host_loss);
        rc = rc ? rc : moe_device_alloc(device, 4 * sizeof(*t->empty), (void **)&t->empty);
        (void)fail(t, "what a step counts in", rc);
    }
    return rc;
}

/* Ranks of one tp group and of one dispatch group hear of each other's layers. Where neither kind of group holds whole
 * groups of the other, a rank that is told has a peer that is not, and that waits for it in the next exchange. */
static bool groups_nest(const struct job *job)
{
    int32_t dispatch = job->parts * job->ep_size;
    return job->tp_size % dispatch == 0 || dispatch % job->tp_size == 0;
}

/*
 * Makes what training needs. `why` is what this rank lacks already, NULL: nothing. Before the first call in which peers
 * would wait for it, and behind the layers, which groups of ranks make, all hear whether one cannot go on.
 */
static int start(struct train *t, const char *why)
{
    int rc = why == NULL ? make_own(t) : MOE_E_STATE;
    why = why == NULL && rc != 0 ? detail_of(rc) : why;
    if (job_all_start(&t->job, why) != 0) {
        return -1;
    }
    rc = fail(t, "layers", model_layers_new(&t->model));
    if (rc != 0 && (rc == MOE_E_COMM || !groups_nest(&t->job))) { /* peers may have gone, or be elsewhere */
        return -1;
    }
    if (job_all_start(&t->job, rc != 0 ? detail_of(rc) : NULL) != 0) {
        return -1;
    }
    rc = checkpoint_new(t->options, &t->model, &t->corpus, &t->checkpoint);
    return rc ? rc : checkpoint_resume(&t->checkpoint, &t->first_step);
}

/* What a rank lacks before it has met its peers; it meets them all the same, to tell them. NULL: nothing. */
static const char *lacks_before(struct train *t)
{
    const struct train_options *o = t->options;
    const char *rank = getenv("RANK");
    bool text = corpus_open(o->text, o->seed, o->context, &t->corpus) == 0 &&
                (o->validate == 0 || corpus_hold_out(&t->corpus) == 0);
    bool watched = watchdog_start(rank != NULL ? atoi(rank) : 0, o->timeout_s) == 0;
    if (!watched) {
        fprintf(stderr, "moe_train: rank %s: no thread for the watchdog\n", rank != NULL ? rank : "0");
    }
    return !text ? "it has no text to train with" : !watched ? "it has no thread for its watchdog" : NULL;
}

static int run_rank(const struct train_options *options)
{
    struct train t = {.options = options};
    t.checkpoint.lock = -1;
    const char *why = lacks_before(&t);
    int rc = 1;
    if (job_start(options, &t.job) != 0) {
        why = why != NULL ? why : moe_last_error();
    }
    if (!t.job.joined || start(&t, why) != 0) {
        goto out;
    }
    t.empty[1] = INT64_MAX;
    rc = run_steps(&t) != 0 || t.check.failed || t.unlearned;
    watchdog_progress("shutdown", options->steps);
out:
    if (t.job.device != NULL) {
        moe_device_free(t.job.device, &t.rate);
        moe_device_free(t.job.device, &t.host_loss);
        moe_device_free(t.job.device, &t.empty);
        step_reduce_destroy(&t.reduce);
        hazard_destroy(&t.hazard);
        if (t.modelled) {
            check_destroy(&t.check, &t.model);
        }
        checkpoint_destroy(&t.checkpoint);
        if (t.modelled) {
            model_destroy(&t.model);
        }
    }
    job_end(&t.job);
    watchdog_stop();
    corpus_close(&t.corpus);
    return rc;
}

int main(int argc, char **argv)
{
    static struct train_options options;
    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_DONE:
        return 0;
    case OPTIONS_USAGE:
        return 2;
    default:
        break;
    }
    if (options.spawn > 0 && getenv("MOE_TRAIN_SPAWNED") == NULL) {
        if (!job_fits(&options, options.spawn)) {
            return 2;
        }
        setenv("MOE_TRAIN_SPAWNED", "1", 1);
        return spawn_ranks(argv, options.spawn, GRACE_S);
    }
    return run_rank(&options);
}
