/*
 * oracle.h: reads tests/moe_core/oracle/vectors.json, the layers that PyTorch computed
 * (tests/moe_core/oracle/make_vectors.py).
 */
#ifndef ROLL_TESTS_MOE_CORE_ORACLE_H
#define ROLL_TESTS_MOE_CORE_ORACLE_H

#include "tests/moe_core/support.h"

#include "moe_core/reference/ref_layer.h"

#include <jansson.h>

#define VECTORS "tests/moe_core/oracle/vectors.json" /* from the root of the tree */

static json_t *vectors;

static inline int load(void **state)
{
    json_error_t error;
    (void)state;
    vectors = json_load_file(VECTORS, 0, &error);
    if (vectors == NULL) {
        fprintf(stderr, "%s:%d: %s\n", VECTORS, error.line, error.text);
    }
    return vectors == NULL;
}

static inline int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    return 0;
}

/* A number of an object; 0 where it is not there. */
static inline double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_true(value) ? 1 : json_number_value(value);
}

static inline int32_t word(const json_t *object, const char *key, const char *const *words, int32_t n)
{
    const char *value = json_string_value(json_object_get(object, key));
    for (int32_t i = 0; i < n && value != NULL; i++) {
        if (strcmp(words[i], value) == 0) {
            return i;
        }
    }
    fail_msg("%s: '%s' is no word that this test knows", key, value != NULL ? value : "");
    return 0;
}

static inline int64_t length(const json_t *object, const char *key)
{
    return (int64_t)json_array_size(json_object_get(object, key));
}

/* The array, NULL where it is not there; the caller's. */
static inline double *doubles(const json_t *object, const char *key)
{
    const json_t *array = json_object_get(object, key);
    double *to = json_is_array(array) ? support_doubles(length(object, key)) : NULL;
    for (size_t i = 0; to != NULL && i < json_array_size(array); i++) {
        to[i] = json_number_value(json_array_get(array, i));
    }
    return to;
}

static inline int32_t *integers(const json_t *object, const char *key)
{
    const json_t *array = json_object_get(object, key);
    int32_t *to = json_is_array(array) ? calloc(json_array_size(array) + 1, sizeof(*to)) : NULL;
    for (size_t i = 0; to != NULL && i < json_array_size(array); i++) {
        to[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return to;
}

/* The options of a case. Counts what it read: an option that is not read would be one that is not tested. */
static inline struct moe_ref_layer layer_of(const json_t *o)
{
    static const char *const scores[] = {"softmax", "sigmoid", "sqrtsoftplus"},
                             *const places[] = {"source", "activation", "input"},
                             *const activations[] = {"swiglu", "geglu", "swiglu_clamped", "geglu_tanh"};
    static const char *const known =
        " hidden ffn experts topk renormalise score after groups group_topk scale capacity_factor by_position coeff "
        "sequences activation alpha limit offset place shared_ffn loss_scale global_earlier microbatches ";
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)o, key, value)
    {
        char spaced[64];
        snprintf(spaced, sizeof(spaced), " %s ", key);
        if (strstr(known, spaced) == NULL) {
            fail_msg("the option %s is not known to this test", key);
        }
    }
    struct moe_ref_layer l = {
        .router = {.hidden = (int64_t)number(o, "hidden"),
                   .experts = (int64_t)number(o, "experts"),
                   .topk = (int32_t)number(o, "topk"),
                   .renormalise = number(o, "renormalise") != 0,
                   .options = {.score = (enum moe_score)word(o, "score", scores, 3),
                               .after = number(o, "after") != 0,
                               .groups = (int32_t)number(o, "groups"),
                               .group_topk = (int32_t)number(o, "group_topk"),
                               .scale = (float)number(o, "scale"),
                               .capacity_factor = (float)number(o, "capacity_factor"),
                               .by_position = number(o, "by_position") != 0,
                               .sequences = (int64_t)number(o, "sequences")}},
        .ffn = (int64_t)number(o, "ffn"),
        .shared_ffn = (int64_t)number(o, "shared_ffn"),
        .activation = (enum moe_activation)word(o, "activation", activations, 4),
        .clamp = {(float)number(o, "alpha"), (float)number(o, "limit"), (float)number(o, "offset")},
        .place = (enum moe_prob_place)word(o, "place", places, 3),
        .loss_scale = number(o, "loss_scale"),
        .microbatches = (int64_t)number(o, "microbatches")};
    assert_int_equal(length(o, "coeff"), MOE_LOSSES);
    for (size_t i = 0; i < MOE_LOSSES; i++) {
        l.router.options.coeff[i] = (float)json_number_value(json_array_get(json_object_get(o, "coeff"), i));
    }
    return l;
}

#endif
