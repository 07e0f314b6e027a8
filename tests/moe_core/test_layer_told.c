/*
 * test_layer_told.c: layers that one rank cannot make: its peers, whose own configuration is right and who lack
 * nothing, get its error and its reason, and the next layer on the same communicators works. Wherever a rank gave up
 * alone its peers would wait in the next collective, and the test would not end.
 *
 * Here it is host memory that is lacking, and configurations that are refused; for device memory see
 * test_memory_told.c.
 */
#include "tests/moe_core/memory_trial.h"

#include "tests/faults/refuse.h"

#include <pthread.h>

enum { ROUNDS = 500, MOST = 4 };

/* Asked for by the library as malloc is. */
static cudaError_t pinned(void **out, size_t bytes)
{
    return refuse_now() ? cudaErrorMemoryAllocation : cudaMallocHost(out, bytes);
}

/* What is tried: ranks in ep groups, and where `tp` is more than one in groups of tp that cross those. */
struct trial {
    int ranks, tp, sick;
    void (*spoil)(struct moe_layer_config *config); /* what the sick rank's configuration is refused for; or NULL: */
    bool lacks;                                     /* in round n it has no host memory from its n-th request on */
    struct moe_layer_config config;                 /* a good one, without communicators */
    ncclUniqueId ep[MOST], tp_ids[MOST];
};

/* One rank, a thread. */
struct rank {
    const struct trial *t;
    int rank;
    int rounds, rc[ROUNDS];
    char message[256]; /* of the last layer that was not made */
    bool works;        /* a layer with the good configuration, and a step of it; or else why not: */
    char why[256];
};

static void make_until_made(struct rank *r, moe_device_t *device, struct moe_layer_config *config)
{
    moe_layer_t *layer = NULL;
    bool sick = r->rank == r->t->sick;
    do {
        if (sick && r->t->lacks) {
            refuse_begin(r->rounds, false);
        }
        r->rc[r->rounds] = moe_layer_new(device, config, &layer);
        refuse_end();
        if (r->rc[r->rounds++] != 0) {
            snprintf(r->message, sizeof(r->message), "%s", moe_last_error());
        }
    } while (r->t->lacks && layer == NULL && r->rounds < ROUNDS);
    moe_layer_destroy(&layer);
}

static void one_step(struct rank *r, moe_device_t *device, const struct moe_layer_config *config)
{
    struct model m = {0};
    moe_layer_t *layer = NULL;
    make_model(device, &m, r->rank, E * r->t->tp / r->t->ranks);
    int rc = moe_layer_new(device, config, &layer);
    rc = rc || config->shared_ffn > 0 ? rc : run_step(device, layer, &m, T); /* of which the model has no weights */
    r->works = rc == 0;
    snprintf(r->why, sizeof(r->why), "%s", moe_last_error());
    moe_layer_destroy(&layer);
    free_model(device, &m);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    const struct trial *t = r->t;
    int tp_rank = r->rank % t->tp, ep_rank = r->rank / t->tp;
    struct moe_layer_config config = t->config;
    moe_device_t *device = NULL;
    ncclComm_t ep = NULL, tp = NULL;
    if (cudaSetDevice(r->rank) != cudaSuccess ||
        ncclCommInitRank(&ep, t->ranks / t->tp, t->ep[tp_rank], ep_rank) != ncclSuccess ||
        (t->tp > 1 && ncclCommInitRank(&tp, t->tp, t->tp_ids[ep_rank], tp_rank) != ncclSuccess) ||
        moe_device_new_host(&device) != 0) {
        return NULL;
    }
    config.world_rank = r->rank;
    config.groups.ep = ep;
    config.groups.tp = tp;
    struct moe_layer_config good = config;
    if (r->rank == t->sick && t->spoil != NULL) {
        t->spoil(&config);
    }
    make_until_made(r, device, &config);
    one_step(r, device, &good);
    moe_device_destroy(&device);
    ncclCommDestroy(ep);
    if (tp != NULL) {
        ncclCommDestroy(tp);
    }
    return NULL;
}

static void run(struct trial *t, struct rank rank[MOST])
{
    pthread_t thread[MOST];
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(ncclGetUniqueId(&t->ep[i]), ncclSuccess);
        assert_int_equal(ncclGetUniqueId(&t->tp_ids[i]), ncclSuccess);
    }
    for (int i = 0; i < t->ranks; i++) {
        rank[i] = (struct rank){.t = t, .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &rank[i]), 0);
    }
    for (int i = 0; i < t->ranks; i++) {
        pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < t->ranks; i++) {
        if (!rank[i].works) {
            fail_msg("rank %d has no layer that works behind '%s': %s", i, rank[i].message, rank[i].why);
        }
        assert_int_equal(rank[i].rounds, rank[0].rounds);
        for (int n = 0; n < rank[0].rounds; n++) {
            assert_int_equal(rank[i].rc[n], rank[0].rc[n]);
        }
    }
}

static struct trial trial_of(enum moe_dispatcher_kind kind)
{
    return (struct trial){.ranks = 2, .tp = 1, .sick = 1, .config = config_of(NULL, 0, kind)};
}

/* What stands behind the text of the error. */
static const char *reason_of(const struct rank *r)
{
    const char *text = moe_error_text(r->rc[r->rounds - 1]), *at = strstr(r->message, text);
    assert_non_null(at);
    return at + strlen(text) + strlen(": ");
}

/* host memory */

static void lack_host_memory(struct trial *t, int least)
{
    static struct rank rank[MOST];
    t->lacks = true;
    run(t, rank);
    assert_in_range(rank[0].rounds, least, ROUNDS - 1);
    for (int n = 0; n < rank[0].rounds; n++) {
        assert_int_equal(rank[0].rc[n], n < rank[0].rounds - 1 ? MOE_E_NOMEM : 0);
    }
    assert_non_null(strstr(rank[0].message, "rank 1 of the group could not make its layer: "));
}

/* Whatever it is that one rank has no host memory for: the layer, its parts, the room of an exchange. */
static void test_a_rank_without_host_memory_is_told_of(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        struct trial plain = trial_of((enum moe_dispatcher_kind)kind), none = plain;
        plain.config.in_flight = 2; /* the list of them */
        lack_host_memory(&plain, 30);
        none.config.uneven = MOE_UNEVEN_NONE; /* other exchanges */
        none.config.row_budget = kind == MOE_DISPATCH_HYBRIDEP ? 2 * T * K : 0;
        lack_host_memory(&none, 30);
    }
    struct trial shared = trial_of(MOE_DISPATCH_ALLTOALL); /* a device of its own */
    shared.config.shared_ffn = F;
    shared.config.shared_overlap = true;
    lack_host_memory(&shared, 30);
}

/* configurations */

#define SPOIL(name, member, value)                                                                                     \
    static void name(struct moe_layer_config *config)                                                                  \
    {                                                                                                                  \
        config->member = value;                                                                                        \
    }
SPOIL(no_tokens, max_tokens, -1)
SPOIL(no_flight, in_flight, -1)
SPOIL(narrow, type, MOE_E4M3)
SPOIL(too_many_choices, topk, E + 1)
SPOIL(no_kind, dispatcher, (enum moe_dispatcher_kind)17)
SPOIL(no_mode, tp_mode, (enum moe_tp_mode)8)
SPOIL(not_divided, experts, E - 1)
SPOIL(negative_budget, row_budget, -1)
SPOIL(no_activation, activation, (enum moe_activation)12)
SPOIL(no_place, place, (enum moe_prob_place)5)
SPOIL(overlap_alone, shared_overlap, true)
SPOIL(negative_groups, router.groups, 3)

static const struct {
    const char *what;
    void (*spoil)(struct moe_layer_config *config);
    int want;
} refused[] = {
    {"tokens below 0", no_tokens, MOE_E_SHAPE},
    {"microbatches in flight below 0", no_flight, MOE_E_ARG},
    {"rows of 8 bits", narrow, MOE_E_UNSUPPORTED},
    {"more choices than experts", too_many_choices, MOE_E_SHAPE},
    {"no such dispatcher", no_kind, MOE_E_UNSUPPORTED},
    {"no such mode", no_mode, MOE_E_ARG},
    {"experts that the ranks cannot share", not_divided, MOE_E_SHAPE},
    {"a budget below 0", negative_budget, MOE_E_SHAPE},
    {"no such activation", no_activation, MOE_E_ARG},
    {"no such place", no_place, MOE_E_ARG},
    {"an overlap with nothing", overlap_alone, MOE_E_ARG},
    {"groups that do not divide", negative_groups, MOE_E_SHAPE},
};

/* The first step of making refuses most of them, the experts some, behind the exchange of the group's buffer. */
static void test_a_rank_whose_configuration_is_refused_is_told_of(void **state)
{
    (void)state;
    static struct rank rank[MOST];
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
            struct trial t = trial_of((enum moe_dispatcher_kind)kind);
            char whole[200];
            t.sick = (int)(i % 2);
            t.spoil = refused[i].spoil;
            run(&t, rank);
            const struct rank *sick = &rank[t.sick], *peer = &rank[!t.sick];
            if (sick->rc[0] != refused[i].want) {
                fail_msg("%s: %d (%s), wanted %d", refused[i].what, sick->rc[0], sick->message, refused[i].want);
            }
            snprintf(whole, sizeof(whole), "rank %d of the group could not make its layer: %.90s", t.sick,
                     reason_of(sick));
            if (strncmp(reason_of(peer), whole, strlen(whole)) != 0) {
                fail_msg("%s: its peer says '%s', not '%s'", refused[i].what, peer->message, whole);
            }
        }
    }
}

/*
 * Ranks of tp in dispatch groups of their own: rank 3 is refused, rank 1 hears it in its dispatch group, rank 2 on tp,
 * and rank 0, which meets it in neither, on tp from rank 1.
 */
static void test_ranks_of_tp_in_other_dispatch_groups_are_told(void **state)
{
    (void)state;
    static struct rank rank[MOST];
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        struct trial t = trial_of((enum moe_dispatcher_kind)kind);
        t.ranks = 4;
        t.tp = 2;
        t.sick = 3;
        t.config.tp_mode = MOE_TP_SHARD_EXPERTS;
        t.spoil = kind % 2 == 0 ? no_tokens : no_activation;
        run(&t, rank);
        assert_int_equal(rank[3].rc[0], kind % 2 == 0 ? MOE_E_SHAPE : MOE_E_ARG);
        assert_non_null(strstr(rank[1].message, "rank 1 of the group could not make its layer: "));
        assert_non_null(strstr(rank[2].message, "rank 1 of tp could not make its layer: "));
        assert_null(strstr(rank[2].message, "of the group"));
        assert_non_null(strstr(rank[0].message, "rank 1 of tp could not make its layer: rank 1 of the group could"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_without_host_memory_is_told_of),
        cmocka_unit_test(test_a_rank_whose_configuration_is_refused_is_told_of),
        cmocka_unit_test(test_ranks_of_tp_in_other_dispatch_groups_are_told),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    refuse_in("moe_layer_new");
    refuse_redirect("moe_layer_new", "cudaMallocHost", (void *)(uintptr_t)pinned);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
