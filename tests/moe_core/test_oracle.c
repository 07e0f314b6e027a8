/*
 * test_oracle.c: the reference in double precision against vectors that PyTorch's autograd made
 * (tests/moe_core/oracle/make_vectors.py).
 *
 * Every case of the file is one layer with its options, weights and token sets; choices must be equal, everything else
 * equal to 1e-12 of the largest element of its array. A gradient that the vectors have and the reference lacks, or an
 * option that this program does not know, is a failure.
 */
#include "tests/moe_core/oracle.h"

enum { MOST_SETS = 8 };
static const double tolerance = 1e-12;

static void hold(const char *name, const json_t *object, const char *key, const double *got)
{
    double *want = doubles(object, key), size = 1e-4; /* what cancels to 0 does so to 1e-16 */
    assert_non_null(want);
    int64_t count = length(object, key);
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - want[i]) <= tolerance * size)) {
            fail_msg("%s: %s[%lld]: got %.17g, PyTorch has %.17g", name, key, (long long)i, got[i], want[i]);
        }
    }
    free(want);
}

/* One weight or gradient: its name in the file, and its places in the structs. */
struct field {
    const char *name;
    const double **weight;
    double **grad;
};

enum { FIELDS = 12 };

static void fields_of(struct moe_ref_weights *w, struct moe_ref_layer_grads *g, struct field to[FIELDS])
{
    const struct field all[FIELDS] = {{"gate", &w->gate, &g->gate},
                                      {"gate_bias", &w->gate_bias, &g->gate_bias},
                                      {"expert_bias", &w->expert_bias, NULL},
                                      {"w1", &w->w1, &g->w1},
                                      {"b1", &w->b1, &g->b1},
                                      {"w2", &w->w2, &g->w2},
                                      {"b2", &w->b2, &g->b2},
                                      {"shared_w1", &w->shared_w1, &g->shared_w1},
                                      {"shared_b1", &w->shared_b1, &g->shared_b1},
                                      {"shared_w2", &w->shared_w2, &g->shared_w2},
                                      {"shared_b2", &w->shared_b2, &g->shared_b2},
                                      {"shared_gate", &w->shared_gate, &g->shared_gate}};
    memcpy(to, all, sizeof(all));
}

static struct moe_ref_set set_of(const json_t *s, const struct moe_ref_layer *l, const struct moe_ref_layer_grads *g)
{
    struct moe_ref_set set = {.tokens = (int64_t)number(s, "tokens"),
                              .x = doubles(s, "x"),
                              .dy = doubles(s, "dy"),
                              .balance = (int32_t)number(s, "balance"),
                              .global = (int32_t)number(s, "global_group"),
                              .choice = integers(s, "choice"),
                              .grads = *g};
    set.y = support_doubles(set.tokens * l->router.hidden);
    set.dx = support_doubles(set.tokens * l->router.hidden);
    set.probs = support_doubles(set.tokens * l->router.experts);
    set.losses = support_doubles(MOE_LOSSES);
    set.index = calloc((size_t)(set.tokens * l->router.topk + 1), sizeof(int32_t));
    assert_non_null(set.index);
    return set;
}

static void check_set(const char *name, const json_t *s, const struct moe_ref_set *set)
{
    int32_t *want = integers(s, "index");
    for (int64_t i = 0; i < length(s, "index"); i++) {
        if (set->index[i] != want[i]) {
            fail_msg("%s: index[%lld]: got %d, PyTorch has %d", name, (long long)i, set->index[i], want[i]);
        }
    }
    free(want);
    hold(name, s, "probs", set->probs);
    hold(name, s, "losses", set->losses);
    hold(name, s, "y", set->y);
    hold(name, s, "dx", set->dx);
}

static void set_free(struct moe_ref_set *s)
{
    void *arrays[] = {(void *)s->x, (void *)s->dy, (void *)s->choice, s->y, s->dx, s->probs, s->losses, s->index};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        free(arrays[i]);
    }
}

static void check_case(const json_t *c)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *options = json_object_get(c, "options"), *weights = json_object_get(c, "weights"),
                 *grads = json_object_get(c, "grads"), *given = json_object_get(c, "sets");
    struct moe_ref_layer layer = layer_of(options);
    struct moe_ref_layer_grads g = {0};
    struct field fields[FIELDS];
    struct moe_ref_set sets[MOST_SETS];
    int32_t n = (int32_t)json_array_size(given);
    size_t known = 0;
    assert_in_range(n, 1, MOST_SETS);
    fields_of(&layer.weights, &g, fields);
    for (int i = 0; i < FIELDS; i++) {
        *fields[i].weight = doubles(weights, fields[i].name);
        known += *fields[i].weight != NULL;
        if (fields[i].grad != NULL && *fields[i].weight != NULL) {
            *fields[i].grad = support_doubles(length(weights, fields[i].name));
        }
    }
    assert_int_equal(known, json_object_size(weights));
    int32_t *earlier = integers(options, "global_earlier");
    int64_t counts[64] = {0};
    for (int64_t e = 0; earlier != NULL && e < layer.router.experts; e++) {
        counts[e] = earlier[e];
    }
    layer.global_earlier = earlier != NULL ? counts : NULL;
    for (int32_t i = 0; i < n; i++) {
        sets[i] = set_of(json_array_get(given, (size_t)i), &layer, &g);
    }
    assert_int_equal(moe_ref_layer_run(&layer, sets, n), 0);
    for (int32_t i = 0; i < n; i++) {
        check_set(name, json_array_get(given, (size_t)i), &sets[i]);
        set_free(&sets[i]);
    }
    for (int i = 0; i < FIELDS; i++) {
        if (fields[i].grad != NULL && *fields[i].weight != NULL) {
            hold(name, grads, fields[i].name, *fields[i].grad);
            free(*fields[i].grad);
        }
        free((void *)*fields[i].weight);
    }
    free(earlier);
}

static void test_reference_equals_autograd(void **state)
{
    size_t i;
    json_t *c;
    (void)state;
    assert_true(json_array_size(vectors) >= 60);
    json_array_foreach(vectors, i, c)
    {
        check_case(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference_equals_autograd)};
    return cmocka_run_group_tests(tests, load, unload);
}
