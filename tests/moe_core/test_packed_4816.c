/*
 * test_packed_4816.c: packed sequences on 16 ranks, as the test that Megatron-LM #4816 brought: every rank's outputs
 * and gradients are held against the whole model in double, with the tokens of all ranks (packed_ranks.c).
 */
#include "tests/moe_core/packed_ranks.h"

#include "moe_core/include/moe/uneven.h"

/* the whole model */

struct truth {
    double x[PACKED_STAGE][PACKED_LAYERS + 1][PACKED_MOST * PACKED_H],
        d[PACKED_STAGE][PACKED_LAYERS + 1][PACKED_MOST * PACKED_H], y[PACKED_STAGE][PACKED_MOST * PACKED_H],
        dy[PACKED_STAGE][PACKED_MOST * PACKED_H];
    double gate[PACKED_STAGE][PACKED_LAYERS][PACKED_E * PACKED_H]; /* of each rank's tokens */
    double w1[2][PACKED_LAYERS][PACKED_E * 2 * PACKED_F * PACKED_H],
        w2[2][PACKED_LAYERS][PACKED_E * PACKED_H * PACKED_F]; /* of the tokens of each dispatch group */
};

/* The dispatch group of a rank in its stage. */
static int group_of(const struct packed_scenario *s, int rank)
{
    return s->over_dp ? packed_cp_of(rank) : packed_dp_of(rank);
}

static void run_reference(const struct packed_scenario *s, const struct packed_model *m, struct truth *t, int layer,
                          const int64_t *tokens, bool back)
{
    struct moe_ref_layer ref = {
        .router = {.hidden = PACKED_H, .experts = PACKED_E, .topk = PACKED_K, .renormalise = true},
        .ffn = PACKED_F,
        .weights = {.gate = m->gate[layer], .w1 = m->w1[layer], .w2 = m->w2[layer]}};
    struct moe_ref_set set[PACKED_STAGE];
    for (int r = 0; r < PACKED_STAGE; r++) {
        for (int64_t i = 0; back && i < tokens[r] * PACKED_H; i++) {
            t->dy[r][i] = packed_share * t->d[r][layer + 1][i];
        }
        set[r] = (struct moe_ref_set){
            .tokens = tokens[r], .x = t->x[r][layer], .dy = back ? t->dy[r] : NULL, .y = t->y[r], .dx = t->d[r][layer]};
        if (back) {
            int g = group_of(s, r);
            set[r].grads =
                (struct moe_ref_layer_grads){.gate = t->gate[r][layer], .w1 = t->w1[g][layer], .w2 = t->w2[g][layer]};
        }
    }
    assert_int_equal(moe_ref_layer_run(&ref, set, PACKED_STAGE), 0);
    for (int r = 0; r < PACKED_STAGE; r++) {
        for (int64_t i = 0; i < tokens[r] * PACKED_H; i++) {
            if (back) {
                t->d[r][layer][i] += t->d[r][layer + 1][i];
            } else {
                t->x[r][layer + 1][i] = t->x[r][layer][i] + packed_share * t->y[r][i];
            }
        }
    }
}

static void check_close(const char *what, int rank, const float *got, const double *want, int64_t count)
{
    double size = 1;
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= 3e-5 * size)) {
            fail_msg("rank %d: %s[%lld]: got %.9g, want %.9g", rank, what, (long long)i, (double)got[i], want[i]);
        }
    }
}

static void check_parameters(const struct packed_scenario *s, const struct packed_result *results,
                             const struct truth *t)
{
    for (int r = 0; r < PACKED_RANKS; r++) {
        int pair = r % PACKED_STAGE / 2 * 2, g = group_of(s, r);
        int64_t first = packed_owner_of(s, r) * (PACKED_E / 2), f = packed_tp_of(r) * (PACKED_F / 2);
        for (int l = 0; l < 2; l++) {
            int whole = packed_stage_of(r) * 2 + l;
            double gate[PACKED_E * PACKED_H], w1[PACKED_E / 2 * PACKED_F * PACKED_H],
                w2[PACKED_E / 2 * PACKED_H * PACKED_F / 2];
            for (int i = 0; i < PACKED_E * PACKED_H; i++) {
                gate[i] = t->gate[pair][whole][i] + t->gate[pair + 1][whole][i];
            }
            for (int64_t i = 0; i < packed_sizes[1]; i++) {
                int64_t h = i % PACKED_H, row = i / PACKED_H % (PACKED_F / 2), half = i / PACKED_H / (PACKED_F / 2);
                w1[i] = t->w1[g][whole][((first * 2 + half) * PACKED_F + f + row) * PACKED_H + h];
            }
            for (int64_t i = 0; i < packed_sizes[2]; i++) {
                w2[i] = t->w2[g][whole][(first * PACKED_H + i / (PACKED_F / 2)) * PACKED_F + f + i % (PACKED_F / 2)];
            }
            check_close("d_gate", r, results[r].d_gate[l], gate, packed_sizes[0]);
            check_close("d_w1", r, results[r].d_w1[l], w1, packed_sizes[1]);
            check_close("d_w2", r, results[r].d_w2[l], w2, packed_sizes[2]);
        }
    }
}

static void check(const struct packed_scenario *s, const struct packed_model *m, const struct packed_result *results)
{
    struct truth *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    for (int b = 0; b < PACKED_BATCHES; b++) {
        int64_t tokens[PACKED_STAGE];
        for (int r = 0; r < PACKED_STAGE; r++) {
            tokens[r] = packed_tokens(r, b, t->x[r][0], t->d[r][PACKED_LAYERS]);
        }
        for (int l = 0; l < PACKED_LAYERS; l++) {
            run_reference(s, m, t, l, tokens, false);
        }
        for (int l = PACKED_LAYERS - 1; l >= 0; l--) {
            run_reference(s, m, t, l, tokens, true);
        }
        for (int r = 0; r < PACKED_RANKS; r++) {
            int stage = packed_stage_of(r);
            check_close("y", r, results[r].y[b], t->x[r % PACKED_STAGE][stage == 0 ? 2 : 4],
                        tokens[r % PACKED_STAGE] * PACKED_H);
            check_close("dx", r, results[r].dx[b], t->d[r % PACKED_STAGE][stage == 0 ? 0 : 2],
                        tokens[r % PACKED_STAGE] * PACKED_H);
        }
    }
    check_parameters(s, results, t);
    free(t);
}

static void test_the_packs_are_uneven_as_meant(void **state)
{
    (void)state;
    bool none = false, differ = false;
    for (int b = 0; b < PACKED_BATCHES; b++) {
        int64_t tokens[PACKED_STAGE];
        for (int r = 0; r < PACKED_STAGE; r++) {
            double x[PACKED_MOST * PACKED_H], dy[PACKED_MOST * PACKED_H];
            tokens[r] = packed_tokens(r, b, x, dy);
            assert_true(tokens[r] <= PACKED_MOST);
            none = none || tokens[r] == 0;
            assert_int_equal(tokens[r], tokens[r / 4 * 4]); /* cp and tp cut evenly */
        }
        differ = differ || tokens[0] != tokens[4];
    }
    assert_true(none && differ);
}

static void test_sixteen_ranks_train_on_packed_sequences(void **state)
{
    (void)state;
    static struct packed_result results[PACKED_RANKS];
    struct packed_model *m = malloc(sizeof(*m));
    assert_non_null(m);
    packed_make_model(m);
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (int over_dp = 0; over_dp < 2; over_dp++) {
            struct packed_scenario s = {(enum moe_dispatcher_kind)kind, over_dp, (kind + over_dp) % 2 == 0};
            packed_run(&s, m, results);
            check(&s, m, results);
            for (int r = 0; r < PACKED_RANKS;
                 r++) { /* one MAX for a microbatch, not for a layer, and none in recompute */
                size_t asked = 0;
                for (size_t i = 0; i < results[r].calls.calls; i++) {
                    const struct form_call *call = &results[r].calls.call[i];
                    asked += call->op == 'R' && call->kind == 'i' && call->count == 1;
                }
                assert_int_equal(asked,
                                 kind == MOE_DISPATCH_HYBRIDEP || kind == MOE_DISPATCH_ALLGATHER ? PACKED_BATCHES : 0);
            }
        }
    }
    free(m);
}

int main(void)
{
    setenv("HOSTCUDA_DEVICES", "16", 1); /* a device for each rank; before the first call of the runtime */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_packs_are_uneven_as_meant),
        cmocka_unit_test(test_sixteen_ranks_train_on_packed_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
