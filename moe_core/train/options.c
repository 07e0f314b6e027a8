/*
 * options.c: the command line of moe_train, from one table.
 *
 * The table holds name, argument, limits and help together, so that --help, parsing and bounds cannot disagree.
 */
#include "moe_core/train/options.h"

#include "moe_core/train/together.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum value_type {
    V_FLAG,
    V_U32,
    V_U64,
    V_I32,
    V_I64,
    V_DOUBLE,
    V_STRING,
    V_CHOICE,
    V_INJECT,
    V_LEGACY,
    V_HAZARD,
    V_HELP,
    V_VERSION
};

struct row {
    const char *name, *argument;
    enum value_type type;
    size_t offset;
    double low, high;
    const char *help;
};

static const char *const dispatchers[] = {"alltoall", "allgather", "deepep", "hybridep", NULL};
static const char *const tp_modes[] = {"sequence", "split", "shard", NULL};
static const char *const activations[] = {"swiglu", "geglu", "clamped", "geglu-tanh", NULL};
static const char *const places[] = {"source", "activation", "input", NULL};
static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const unevens[] = {"none", "max", "bound", NULL};

#define AT(member) offsetof(struct train_options, member)
static const struct row rows[] = {
    {"spawn", "N", V_I32, AT(spawn), 1, 512,
     "start N ranks on this host (else RANK, WORLD_SIZE, LOCAL_RANK say which rank this is)"},
    {"steps", "N", V_U32, AT(steps), 1, 1e9, "training steps (60)"},
    {"seed", "N", V_U64, AT(seed), 0, 1e18, "seed of weights and batches (1)"},
    {"ep", "N", V_I32, AT(ep), 1, 512, "ranks that share one set of experts (4, or all when there are fewer)"},
    {"layers", "N", V_I64, AT(layers), 1, 255, "MoE layers (4)"},
    {"hidden", "N", V_I64, AT(hidden), 1, 65536, "hidden width (64)"},
    {"ffn", "N", V_I64, AT(ffn), 1, 65536, "width of an expert (64)"},
    {"experts", "N", V_I64, AT(experts), 1, 4096, "experts per layer, a multiple of --ep (32)"},
    {"topk", "N", V_I32, AT(topk), 1, 64, "experts per token (1)"},
    {"tokens", "N", V_I64, AT(tokens), 1, 65536, "tokens per rank and microbatch (8)"},
    {"microbatches", "N", V_U32, AT(microbatches), 1, 1024, "microbatches per step (1)"},
    {"context", "N", V_I64, AT(context), 1, 256, "bytes that the model sees (8)"},
    {"lr", "X", V_DOUBLE, AT(lr), 0, 10, "learning rate after warm-up (0.004)"},
    {"text", "FILE", V_STRING, AT(text), 0, 0, "what to learn (a licence text of /usr/share/common-licenses)"},
    {"save", "DIR", V_STRING, AT(save), 0, 0,
     "write the whole state of training to DIR/step-NUMBER.safetensors at the end, for any layout of ranks"},
    {"save-every", "N", V_U32, AT(save_every), 1, 1e9, "with --save: also after every Nth step"},
    {"resume", "DIR", V_STRING, AT(resume), 0, 0,
     "go on from the newest checkpoint in DIR, or from the file DIR; give the other options again"},
    {"until", "N", V_U32, AT(until), 1, 1e9, "end after N steps although --steps says more, as if interrupted"},
    {"validate", "N", V_U32, AT(validate), 1, 1e9,
     "learn from nine tenths of the text, and after every Nth step and the last one print the loss on the tenth held "
     "out"},
    {"timeout", "S", V_U32, AT(timeout_s), 1, 86400,
     "the job's own watchdog: end after S seconds without progress, longer in the first step and where steps are slow, "
     "status 3 (20)"},
    {"hold", "FILE", V_STRING, AT(hold), 0, 0,
     "begin the second step only once FILE exists: time for what has to be done beside the job before it goes on"},
    {"dispatcher", "KIND", V_CHOICE, AT(dispatcher), 0, 0, "alltoall, allgather, deepep or hybridep (alltoall)"},
    {"etp", "N", V_I32, AT(etp), 1, 512, "ranks that share each expert, neighbours (1)"},
    {"tp", "N", V_I32, AT(tp), 1, 512, "ranks of tensor parallelism, neighbours (1)"},
    {"tp-mode", "MODE", V_CHOICE, AT(tp_mode), 0, 0,
     "what they share: sequence (each has its own tokens), split (the same, each works on a part), shard (the same, "
     "each has a part of each expert) (sequence)"},
    {"activation", "NAME", V_CHOICE, AT(activation), 0, 0, "swiglu, geglu, geglu-tanh or clamped (swiglu)"},
    {"router", "PRESET", V_STRING, AT(router), 0, 0,
     "the scores and limits of mixtral, deepseek-v3, qwen3-moe or gpt-oss, with --experts and --topk (plain softmax)"},
    {"probs", "PLACE", V_CHOICE, AT(place), 0, 0,
     "where the router's weights are applied: source, activation or input (source)"},
    {"bias", NULL, V_FLAG, AT(bias), 0, 0, "biases in the experts"},
    {"shared", "N", V_I64, AT(shared), 1, 65536, "a shared expert of this width"},
    {"shared-gate", NULL, V_FLAG, AT(shared_gate), 0, 0, "with --shared: a gate per token"},
    {"shared-overlap", NULL, V_FLAG, AT(shared_overlap), 0, 0,
     "with --shared: on a stream of its own, beside the dispatcher (alltoall only)"},
    {"capacity", "X", V_DOUBLE, AT(capacity), 0.01, 1000,
     "an expert takes at most X times its even share of a rank's tokens"},
    {"pad-capacity", NULL, V_FLAG, AT(pad_capacity), 0, 0,
     "with --capacity: always as many, filled up with zeros (alltoall only)"},
    {"recompute", NULL, V_FLAG, AT(recompute), 0, 0, "backward begins with the layer's forward again"},
    {"keep-routing", NULL, V_FLAG, AT(keep_routing), 0, 0, "with --recompute: the first forward's routing is kept"},
    {"dtype", "TYPE", V_CHOICE, AT(dtype), 0, 0, "of the layers' rows: f32, bf16 or f16 (f32)"},
    {"vary-tokens", NULL, V_FLAG, AT(vary_tokens), 0, 0, "0 to --tokens tokens, drawn for each rank and microbatch"},
    {"uneven", "HOW", V_CHOICE, AT(uneven), 0, 0,
     "what hybridep and allgather do about it: none, max (padding to the largest) or bound (none)"},
    {"token-bound", "N", V_I64, AT(token_bound), 1, 65536, "the bound of --uneven bound and of the remedy (--tokens)"},
    {"empty-every", "N", V_U32, AT(empty_every), 1, 1e9,
     "in every Nth microbatch all tokens of all ranks are alike, so that ranks have no tokens for their experts"},
    {"overlap", NULL, V_FLAG, AT(overlap), 0, 0,
     "gradient buckets are reduced in backward, as soon as they are complete"},
    {"buckets", "BYTES", V_I64, AT(buckets), 4, 1e12, "gradient buckets of at most so many bytes"},
    {"legacy", "NAME", V_LEGACY, 0, 0, 0, "behave as frameworks did; may be given several times"},
    {"hazard", "PROGRAM", V_HAZARD, AT(hazard), 0, 0,
     "be a program that goes wrong around its layers: PROGRAM[:healthy][:rank=R][:step=S] (rank 1, from step 2)"},
    {"facts", NULL, V_FLAG, AT(facts), 0, 0,
     "tell an observer checksums of replicas, sums of gradients and elements that are no number, once per step"},
    {"legacy-skip", NULL, V_FLAG, AT(legacy.layer.legacy_skip_empty), 0, 0,
     "--legacy skip-empty: the job will hang when a rank has no tokens"},
    {"check", NULL, V_FLAG, AT(check), 0, 0,
     "compare loss and all gradients of every step with a single-process reference in double"},
    {"must-learn", NULL, V_FLAG, AT(must_learn), 0, 0,
     "fail unless the mean loss of the last tenth of the steps is below the bigram entropy of the text"},
    {"exact", NULL, V_FLAG, AT(exact), 0, 0, "print losses with 17 significant digits"},
    {"verbose", NULL, V_FLAG, AT(verbose), 0, 0,
     "report each layer forward in which this rank has no tokens, on standard error"},
    {"inject", "FAULT", V_INJECT, AT(inject), 0, 0,
     "commit a fault: FAULT[:rank=R][:step=S][:layer=L] (rank 1, step 5)"},
    {"version", NULL, V_VERSION, 0, 0, 0, "print the version"},
    {"help", NULL, V_HELP, 0, 0, 0, "this text"},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* The names of 0, 1, ... of each V_CHOICE. */
static const struct {
    size_t offset;
    const char *const *names;
} choices[] = {
    {AT(dispatcher), dispatchers}, {AT(tp_mode), tp_modes}, {AT(activation), activations},
    {AT(place), places},           {AT(dtype), dtypes},     {AT(uneven), unevens},
};

const char *options_choice_name(const char *option, int32_t value)
{
    for (size_t i = 0; i < ROWS; i++) {
        for (size_t k = 0; strcmp(rows[i].name, option) == 0 && k < sizeof(choices) / sizeof(choices[0]); k++) {
            if (choices[k].offset == rows[i].offset) {
                return choices[k].names[value];
            }
        }
    }
    return NULL;
}

static void print_help(void)
{
    printf("usage: moe_train [options]\n"
           "Trains a small byte-level mixture-of-experts language model over several ranks (expert and data "
           "parallel).\n\n");
    for (size_t i = 0; i < ROWS; i++) {
        char left[48];
        snprintf(left, sizeof(left), "--%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        printf("  %-18s %s\n", left, rows[i].help);
    }
    printf("\nnames for --legacy:\n");
    legacy_help(stdout);
    printf("\nfaults for --inject:\n");
    inject_help(stdout);
    printf("\nprograms for --hazard:\n");
    hazard_help(stdout);
    printf("\nenvironment: RANK, WORLD_SIZE, LOCAL_RANK; MOE_RENDEZVOUS (directory in which the ranks meet; else "
           "HOSTNCCL_DIR,\n"
           "ROLLCALL_DIR, TMPDIR or /tmp, with MASTER_ADDR, MASTER_PORT and ROLLCALL_JOB in the file's name);\n"
           "MOE_REMEDIES=fill,pad (remedies without a tool; `rollcall remedy list` shows the names)\n"
           "exit status: 0 done, 1 failed, --check found a difference or --must-learn no learning, 2 usage, 3 no "
           "progress for --timeout seconds\n");
}

static int set_number(const struct row *row, const char *text, void *member)
{
    char *end = NULL;
    errno = 0;
    double number = row->type == V_DOUBLE ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || !(number >= row->low && number <= row->high)) {
        fprintf(stderr, "moe_train: --%s '%s': expected a number from %.15g to %.15g\n", row->name, text, row->low,
                row->high);
        return -1;
    }
    switch (row->type) {
    case V_U32:
        *(uint32_t *)member = (uint32_t)number;
        break;
    case V_U64:
        *(uint64_t *)member = strtoull(text, NULL, 10);
        break;
    case V_I32:
        *(int32_t *)member = (int32_t)number;
        break;
    case V_I64:
        *(int64_t *)member = (int64_t)number;
        break;
    default:
        *(double *)member = number;
        break;
    }
    return 0;
}

static int set_choice(const struct row *row, const char *text, int32_t *member)
{
    size_t which = 0;
    while (choices[which].offset != row->offset) {
        which++;
    }
    const char *const *names = choices[which].names;
    for (int32_t i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0) {
            *member = i;
            return 0;
        }
    }
    fprintf(stderr, "moe_train: --%s '%s': expected one of", row->name, text);
    for (int32_t i = 0; names[i] != NULL; i++) {
        fprintf(stderr, " %s", names[i]);
    }
    fprintf(stderr, "\n");
    return -1;
}

static int set_row(const struct row *row, const char *text, struct train_options *options)
{
    void *member = (char *)options + row->offset;
    switch (row->type) {
    case V_FLAG:
        *(bool *)member = true;
        return 0;
    case V_STRING:
        *(const char **)member = text;
        return 0;
    case V_CHOICE:
        return set_choice(row, text, member);
    case V_LEGACY:
        return legacy_parse(text, &options->legacy);
    case V_HAZARD:
        return hazard_parse(text, &options->hazard);
    case V_INJECT:
        return inject_parse(text, &options->inject);
    default:
        return set_number(row, text, member);
    }
}

/*
 * Refuses a name in MOE_REMEDIES that is no remedy. The library ignores such a name, because a library prints nothing;
 * a program may print.
 */
static enum options_result check_remedies(const char *at)
{
    static const char *const names[] = {
#define ROLL_REMEDY_ROW(name, bit, label, scope, text) label,
#include "common/remedy.def"
#undef ROLL_REMEDY_ROW
    };
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    while (at != NULL && *at != '\0') {
        size_t bytes = strcspn(at, ","), i = 0;
        while (i < NAMES && (strlen(names[i]) != bytes || memcmp(names[i], at, bytes) != 0)) {
            i++;
        }
        if (i == NAMES) {
            fprintf(stderr, "moe_train: MOE_REMEDIES: '%.*s' is none of", (int)bytes, at);
            for (i = 0; i < NAMES; i++) {
                fprintf(stderr, " %s", names[i]);
            }
            fprintf(stderr, "\n");
            return OPTIONS_USAGE;
        }
        at += bytes + (at[bytes] == ',');
    }
    return OPTIONS_RUN;
}

static enum options_result check_together(const struct train_options *o)
{
    if (check_remedies(getenv("MOE_REMEDIES")) != OPTIONS_RUN) {
        return OPTIONS_USAGE;
    }
    if (o->topk > o->experts) {
        fprintf(stderr, "moe_train: --topk %d is more than --experts %lld\n", o->topk, (long long)o->experts);
        return OPTIONS_USAGE;
    }
    struct moe_router_config preset = {0};
    if (o->router != NULL && moe_router_preset(o->router, &preset) != 0) {
        fprintf(stderr, "moe_train: --router '%s': expected one of mixtral deepseek-v3 qwen3-moe gpt-oss\n", o->router);
        return OPTIONS_USAGE;
    }
    if (o->inject.fault != NULL && o->inject.layer >= o->layers) {
        fprintf(stderr, "moe_train: --inject names layer %lld; there are %lld\n", (long long)o->inject.layer,
                (long long)o->layers);
        return OPTIONS_USAGE;
    }
    return options_fit_together(o) ? OPTIONS_RUN : OPTIONS_USAGE;
}

enum options_result options_parse(int argc, char **argv, struct train_options *options)
{
    *options = (struct train_options){.steps = 60,
                                      .microbatches = 1,
                                      .seed = 1,
                                      .layers = 4,
                                      .hidden = 64,
                                      .ffn = 64,
                                      .experts = 32,
                                      .tokens = 8,
                                      .context = 8,
                                      .topk = 1,
                                      .etp = 1,
                                      .tp = 1,
                                      .lr = 0.004,
                                      .timeout_s = 20};
    struct option table[ROWS + 1] = {0};
    for (int i = 0; i < ROWS; i++) {
        table[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, i + 1};
    }
    opterr = 0;
    int got;
    while ((got = getopt_long(argc, argv, ":", table, NULL)) != -1) {
        if (got < 1 || got > ROWS) {
            fprintf(stderr, "moe_train: %s '%s'; --help lists the options\n",
                    got == ':' ? "missing argument of" : "unknown option", argv[optind - 1]);
            return OPTIONS_USAGE;
        }
        const struct row *row = &rows[got - 1];
        if (row->type == V_HELP || row->type == V_VERSION) {
            if (row->type == V_HELP) {
                print_help();
            } else {
                printf("moe_train %s\n", ROLL_VERSION);
            }
            return OPTIONS_DONE;
        }
        if (set_row(row, optarg, options) != 0) {
            return OPTIONS_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "moe_train: unexpected argument '%s'\n", argv[optind]);
        return OPTIONS_USAGE;
    }
    return check_together(options);
}
