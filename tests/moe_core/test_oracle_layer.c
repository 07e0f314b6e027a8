/*
 * test_oracle_layer.c: the library's layer, float32 on one rank, against the vectors that PyTorch's autograd made: no
 * reference of ours between them.
 *
 * All cases of one rank; several token sets are several microbatches, whose gradients add up. Left out, and counted:
 * groups of ranks, replayed routing, counts of earlier microbatches (the reference has them, test_oracle.c).
 */
#include "tests/moe_core/oracle.h"

#include "moe_core/include/moe/layer.h"

enum { FIELDS = 11, ONE_RANK = 50 }; /* of the cases at least so many are of one rank */
static const double tolerance = 2e-5;

/* A parameter: its name in the file and where the library has it. */
struct field {
    const char *name;
    const void **weight;
    void **grad;
};

static float *narrow(moe_device_t *device, const json_t *object, const char *key)
{
    double *from = doubles(object, key);
    float *to = from != NULL ? support_floats(device, length(object, key) + 1) : NULL;
    for (int64_t i = 0; i < length(object, key); i++) {
        to[i] = (float)from[i];
    }
    free(from);
    return to;
}

static void hold(const char *name, const json_t *object, const char *key, const float *got)
{
    double *want = doubles(object, key), size = 1e-2; /* what cancels does so to the rounding of what was added */
    char what[96];
    snprintf(what, sizeof(what), "%s: %s", name, key);
    for (int64_t i = 0; i < length(object, key); i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < length(object, key); i++) {
        if (!(fabs((double)got[i] - want[i]) <= tolerance * size)) {
            fail_msg("%s[%lld]: got %.9g, PyTorch has %.9g", what, (long long)i, (double)got[i], want[i]);
        }
    }
    free(want);
}

static bool one_rank(const json_t *c)
{
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(c, "sets"), i, s)
    {
        if (number(s, "balance") != 0 || number(s, "global_group") != 0 ||
            json_is_array(json_object_get(s, "choice"))) {
            return false;
        }
    }
    return !json_is_array(json_object_get(json_object_get(c, "options"), "global_earlier"));
}

static struct moe_layer_config config_of(const struct moe_ref_layer *l, const json_t *weights)
{
    struct moe_layer_config config = {.max_tokens = 16,
                                      .hidden = l->router.hidden,
                                      .ffn = l->ffn,
                                      .experts = l->router.experts,
                                      .topk = l->router.topk,
                                      .renormalise = l->router.renormalise,
                                      .router = l->router.options,
                                      .has_bias = json_object_get(weights, "b1") != NULL,
                                      .activation = l->activation,
                                      .clamp = l->clamp,
                                      .place = l->place,
                                      .shared_ffn = l->shared_ffn,
                                      .shared_bias = json_object_get(weights, "shared_b1") != NULL,
                                      .shared_gate = json_object_get(weights, "shared_gate") != NULL};
    config.router.gate_bias = json_object_get(weights, "gate_bias") != NULL;
    config.router.expert_bias = json_object_get(weights, "expert_bias") != NULL;
    return config;
}

/* One set forward and backward, its outputs held. */
static void run_set(moe_device_t *device, moe_layer_t *layer, const struct moe_layer_weights *weights, const char *name,
                    const json_t *s)
{
    struct moe_step step = {0};
    float *x = narrow(device, s, "x"), *dy = narrow(device, s, "dy"), losses[MOE_LOSSES];
    float *y = support_floats(device, length(s, "x") + 1), *dx = support_floats(device, length(s, "x") + 1);
    assert_int_equal(moe_layer_forward(layer, weights, &step, x, (int64_t)number(s, "tokens"), y), 0);
    assert_int_equal(moe_device_copy(device, losses, moe_router_losses(moe_layer_router(layer)), sizeof(losses)), 0);
    assert_int_equal(moe_layer_backward(layer, dy, dx), 0);
    assert_int_equal(moe_device_sync(device), 0);
    hold(name, s, "losses", losses);
    hold(name, s, "y", y);
    hold(name, s, "dx", dx);
    void *arrays[] = {&x, &dy, &y, &dx};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
}

static void check_case(moe_device_t *device, const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *from = json_object_get(c, "weights"), *grads = json_object_get(c, "grads");
    struct moe_ref_layer options = layer_of(json_object_get(c, "options"));
    struct moe_layer_config config = config_of(&options, from);
    struct moe_layer_weights w = {0};
    struct moe_shared_weights *shared = &w.shared;
    const struct field fields[FIELDS] = {{"gate", (const void **)&w.gate, (void **)&w.d_gate},
                                         {"gate_bias", (const void **)&w.gate_bias, (void **)&w.d_gate_bias},
                                         {"w1", &w.w1, (void **)&w.d_w1},
                                         {"b1", &w.b1, (void **)&w.d_b1},
                                         {"w2", &w.w2, (void **)&w.d_w2},
                                         {"b2", &w.b2, (void **)&w.d_b2},
                                         {"shared_w1", &shared->w1, &shared->d_w1},
                                         {"shared_b1", &shared->b1, &shared->d_b1},
                                         {"shared_w2", &shared->w2, &shared->d_w2},
                                         {"shared_b2", &shared->b2, &shared->d_b2},
                                         {"shared_gate", &shared->gate, &shared->d_gate}};
    for (int i = 0; i < FIELDS; i++) {
        *fields[i].weight = narrow(device, from, fields[i].name);
        *fields[i].grad = *fields[i].weight != NULL ? support_floats(device, length(from, fields[i].name)) : NULL;
    }
    w.expert_bias = narrow(device, from, "expert_bias");
    moe_layer_t *layer = NULL;
    if (moe_layer_new(device, &config, &layer) != 0) {
        fail_msg("%s: %s", name, moe_last_error());
    }
    if (options.loss_scale != 0) {
        moe_router_set_loss_scale(moe_layer_router(layer), (float)options.loss_scale);
    }
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(c, "sets"), i, s)
    {
        run_set(device, layer, &w, name, s);
    }
    moe_layer_destroy(&layer);
    for (int f = 0; f < FIELDS; f++) {
        if (*fields[f].weight != NULL) {
            hold(name, grads, fields[f].name, *fields[f].grad);
        }
        moe_device_free(device, (void *)fields[f].weight);
        moe_device_free(device, (void *)fields[f].grad);
    }
    moe_device_free(device, &w.expert_bias);
}

static void test_layer_equals_autograd(void **state)
{
    moe_device_t *device = NULL;
    size_t i, done = 0;
    json_t *c;
    (void)state;
    assert_int_equal(moe_device_new_host(&device), 0);
    json_array_foreach(vectors, i, c)
    {
        if (one_rank(c)) {
            check_case(device, c);
            done++;
        }
    }
    moe_device_destroy(&device);
    print_message("%zu of %zu cases are of one rank\n", done, json_array_size(vectors));
    assert_true(done >= ONE_RANK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layer_equals_autograd)};
    return cmocka_run_group_tests(tests, load, unload);
}
