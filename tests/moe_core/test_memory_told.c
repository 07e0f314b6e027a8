/*
 * test_memory_told.c: a rank without memory and its peers, who are told instead of waiting.
 *
 * The sick rank is refused everything from one request on, so what it takes to tell the others must be there already. A
 * rank that returned instead of taking part would leave its peers in a collective, and the test would not end.
 */
#include "tests/moe_core/memory_trial.h"

#include "moe_core/include/moe/ep_buffer.h"

#include <dlfcn.h>
#include <pthread.h>

enum { RANKS = 2, SICK = 1, ROUNDS = 160, BOUND = 1024 };

/* Where the sick rank has no memory. */
enum place { IN_MAKING, IN_FORWARD, IN_RECOMPUTE, IN_FLIGHT };

struct told_case {
    enum place place;
    enum moe_dispatcher_kind kind;
    bool narrow;       /* rows in bfloat16: the router's input is made of them, before anything is exchanged */
    bool losses;       /* the router sums its counts over the ranks, four times */
    bool keep_routing; /* recompute does not route */
    bool no_padding;   /* uneven NONE */
    bool bound;        /* uneven BOUND: tokens are padded to so many that each buffer has a segment of its own */
    int from;          /* IN_FORWARD: this request and all behind it are refused */
    bool budget;       /* sizes known beforehand */
    bool capacity;
    bool overlap; /* the shared expert on a stream of its own */
};

struct told {
    const struct told_case *c;
    ncclUniqueId id;
    int rank;
    int rc[ROUNDS], rounds;
    bool same; /* the step after the failure gives what the one before it gave */
    bool clean;
    char message[256];
    /* When the routing maps are gathered in the first pass: requests of this forward so far, bytes in use. */
    struct {
        const moe_device_t *device;
        const struct counting *counting;
        int64_t asked, requests;
        size_t in_use;
    } at_maps;
};

static _Thread_local struct told *self;

/* NCCL's, on its way: the symbol of the program is the library's as well. */
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    __typeof__(ncclAllGather) *next;
    *(void **)&next = dlsym(RTLD_NEXT, "ncclAllGather");
    if (self != NULL && type == ncclUint8 && self->rounds == 0) {
        self->at_maps.requests = self->at_maps.counting->asked - self->at_maps.asked;
        self->at_maps.in_use = figures_of(self->at_maps.device).in_use;
    }
    return next(send, recv, count, type, comm, stream);
}

static struct moe_layer_config config_for(const struct told_case *c, ncclComm_t ep, int rank)
{
    struct moe_layer_config config = config_of(ep, rank, c->kind);
    config.type = c->narrow ? MOE_BF16 : MOE_F32;
    config.recompute = c->place == IN_RECOMPUTE;
    config.options.keep_routing = c->keep_routing;
    config.in_flight = c->place == IN_FLIGHT ? 2 : 0;
    config.uneven = c->no_padding ? MOE_UNEVEN_NONE : c->bound ? MOE_UNEVEN_BOUND : config.uneven;
    config.token_bound = c->bound ? BOUND : 0;
    config.row_budget = c->budget ? RANKS * T * K : 0;
    if (c->losses) {
        config.balance = config.global = ep;
        for (int i = 0; i < MOE_LOSSES; i++) {
            config.router.coeff[i] = 0.1f;
        }
    }
    if (c->capacity) {
        config.router.capacity_factor = 1.0f;
        config.router.pad_to_capacity = true;
    }
    if (c->overlap) {
        config.shared_ffn = F;
        config.shared_overlap = true;
    }
    return config;
}

/* Layers are made until one of all ranks' is: in round n the sick rank is refused its n-th request and all behind it.
 */
static void make_in_rounds(struct told *t, moe_device_t *device, struct counting *c, ncclComm_t ep)
{
    const struct moe_layer_config config = config_for(t->c, ep, t->rank);
    moe_layer_t *layer = NULL;
    while (layer == NULL && t->rounds < ROUNDS) {
        size_t before = c->bytes;
        c->refuse = t->rank == SICK ? c->asked + t->rounds : -1;
        int rc = t->rc[t->rounds++] = moe_layer_new(device, &config, &layer);
        c->refuse = -1;
        if (rc != 0) {
            const char *says = moe_last_error();
            bool named = t->rank == SICK ? strstr(says, "bytes of host device memory") != NULL
                                         : strstr(says, "rank 1 of the group") != NULL;
            t->clean = t->clean && named && layer == NULL && c->bytes == before;
        }
    }
    moe_layer_destroy(&layer);
}

/* One pass. In that of round 1 the sick rank is refused everything in the place of the case. */
static int pass(struct told *t, moe_device_t *device, moe_layer_t *layer, struct model *m, struct counting *c,
                int round)
{
    const struct moe_layer_weights w = weights_of(m, true);
    const bool flies = t->c->place == IN_FLIGHT && round > 0, refused = round == 1 && t->rank == SICK;
    const struct moe_step first = {.microbatch = 1}, step = {.step = 0};
    size_t bytes = 0;
    int rc = flies ? moe_layer_forward(layer, &w, &first, m->x, T, m->y) : 0;
    moe_device_trim(device, &bytes);
    t->at_maps.asked = c->asked;
    c->refuse = refused && t->c->place != IN_RECOMPUTE ? c->asked + t->c->from : -1;
    rc = rc ? rc : moe_layer_forward(layer, &w, &step, m->x, T, m->y);
    moe_device_trim(device, &bytes);
    c->refuse = refused ? c->asked : -1;
    rc = rc ? rc : moe_layer_backward_of(layer, &step, m->dy, m->dx);
    c->refuse = -1;
    if (flies) { /* the other microbatch is as it was */
        int other = moe_layer_backward_of(layer, &first, m->dy, m->dx);
        rc = rc ? rc : other;
    }
    int waited = moe_device_sync(device);
    return rc ? rc : waited;
}

static void run_rounds(struct told *t, moe_device_t *device, struct counting *c, ncclComm_t ep)
{
    const struct moe_layer_config config = config_for(t->c, ep, t->rank);
    const size_t rows = (size_t)T * H * moe_dtype_bytes(config.type);
    struct model m = {0};
    moe_layer_t *layer = NULL;
    float *y = malloc(rows), *dx = malloc(rows);
    make_model(device, &m, t->rank, E / RANKS);
    if (t->c->narrow) {
        to_bf16(m.x);
        to_bf16(m.dy);
    }
    t->rc[0] = moe_layer_new(device, &config, &layer);
    for (t->rounds = 0; t->rounds < 3 && layer != NULL; t->rounds++) {
        if (t->rounds == 2 && t->c->losses) { /* what the failed pass counted is not what this compares */
            moe_router_global_reset(moe_layer_router(layer));
        }
        memset(m.y, 0xff, rows);
        memset(m.dx, 0xff, rows);
        t->rc[t->rounds] = pass(t, device, layer, &m, c, t->rounds);
        if (t->rounds == 1) {
            snprintf(t->message, sizeof(t->message), "%s", moe_last_error());
            t->clean = t->clean && figures_of(device).in_use == 0;
        } else if (t->rounds == 0) {
            memcpy(y, m.y, rows);
            memcpy(dx, m.dx, rows);
            if (t->c->losses) {
                moe_router_global_reset(moe_layer_router(layer));
            }
        } else {
            t->same = memcmp(y, m.y, rows) == 0 && memcmp(dx, m.dx, rows) == 0;
        }
    }
    moe_layer_destroy(&layer);
    free_model(device, &m);
    free(y);
    free(dx);
}

static void *run_told(void *arg)
{
    struct told *t = arg;
    moe_device_t *device = NULL;
    ncclComm_t ep = NULL;
    struct counting *c = calloc(1, sizeof(*c));
    t->clean = cudaSetDevice(t->rank) == cudaSuccess && ncclCommInitRank(&ep, RANKS, t->id, t->rank) == ncclSuccess;
    device = device_of(c);
    c->for_good = true;
    t->at_maps.device = device;
    t->at_maps.counting = c;
    self = t;
    if (t->c->place == IN_MAKING) {
        make_in_rounds(t, device, c, ep);
    } else {
        run_rounds(t, device, c, ep);
    }
    moe_device_destroy(&device);
    ncclCommDestroy(ep);
    t->clean = t->clean && c->bytes == 0 && !c->wrong;
    free(c);
    return NULL;
}

static void tell(const struct told_case *c, struct told told[RANKS])
{
    pthread_t thread[RANKS];
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        told[i] = (struct told){.c = c, .id = id, .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_told, &told[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < RANKS; i++) {
        assert_true(told[i].clean);
    }
}

/* Whatever a layer cannot make on one rank, no rank has one, and the next try works on all. */
static void test_a_layer_is_made_on_all_ranks_or_on_none(void **state)
{
    (void)state;
    const struct told_case cases[] = {
        {.kind = MOE_DISPATCH_ALLTOALL, .overlap = true},
        {.kind = MOE_DISPATCH_ALLTOALL, .capacity = true},
        {.kind = MOE_DISPATCH_ALLGATHER},
        {.kind = MOE_DISPATCH_ALLGATHER, .no_padding = true},
        {.kind = MOE_DISPATCH_DEEPEP},
        {.kind = MOE_DISPATCH_HYBRIDEP},
        {.kind = MOE_DISPATCH_HYBRIDEP, .no_padding = true, .budget = true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct told told[RANKS];
        tell(&cases[i], told);
        assert_in_range(told[0].rounds, 15, ROUNDS - 1);
        assert_int_equal(told[0].rounds, told[1].rounds);
        for (int n = 0; n < told[0].rounds; n++) {
            assert_int_equal(told[0].rc[n], n < told[0].rounds - 1 ? MOE_E_NOMEM : 0);
            assert_int_equal(told[1].rc[n], told[0].rc[n]);
        }
    }
}

static void check_told_of(const struct told_case *c, struct told told[RANKS])
{
    tell(c, told);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(told[i].rounds, 3);
        assert_int_equal(told[i].rc[0], 0);
        assert_int_equal(told[i].rc[1], MOE_E_NOMEM);
        assert_int_equal(told[i].rc[2], 0);
        assert_true(told[i].same);
        assert_non_null(strstr(told[i].message, i == SICK ? "bytes of host device memory"
                                                : c->place == IN_FLIGHT
                                                    ? "rank 1 of the group could not make its layer"
                                                    : "rank 1 of the group has none for this forward"));
        assert_non_null(strstr(told[i].message, i == 0 ? "rank 0, layer 0" : "rank 1, layer 0"));
    }
}

static void check_told(const struct told_case *c)
{
    struct told told[RANKS];
    check_told_of(c, told);
}

/* Before the router's collectives, between them and the exchange, and in the exchange's own memory. */
static void test_a_forward_without_memory_is_told_to_the_peers(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (int losses = 0; losses < 2; losses++) {
            struct told_case c = {
                .place = IN_FORWARD, .kind = (enum moe_dispatcher_kind)kind, .narrow = true, .losses = losses == 1};
            check_told(&c);
        }
        struct told_case own = {.place = IN_FORWARD, .kind = (enum moe_dispatcher_kind)kind};
        struct told_case unpadded = {
            .place = IN_FORWARD, .kind = (enum moe_dispatcher_kind)kind, .no_padding = true, .losses = true};
        if (kind != MOE_DISPATCH_ALLTOALL) { /* which takes nothing before its exchange */
            check_told(&own);
            check_told(&unpadded);
        }
    }
}

/*
 * The AllGather dispatcher has all that its gathers need before the maps are exchanged, the rows of all ranks included:
 * whichever request is the first that is refused until then, the peers are told.
 */
static void test_what_is_gathered_has_its_memory_before_the_maps_are_exchanged(void **state)
{
    (void)state;
    for (int bound = 0; bound < 2; bound++) {
        struct told_case c = {
            .place = IN_FORWARD, .kind = MOE_DISPATCH_ALLGATHER, .bound = bound == 1, .no_padding = bound == 0};
        const size_t most = bound ? BOUND : T, own = bound ? BOUND : 0, local = E / RANKS;
        const size_t numbers = (RANKS * most + own) * (E + H) + RANKS * most * local;
        const size_t bytes = numbers * sizeof(float) + RANKS * most * local;
        struct told told[RANKS];
        do {
            check_told_of(&c, told);
            assert_in_range(told[SICK].at_maps.in_use, bytes, bytes + 4096); /* what lies between the buffers */
        } while (++c.from < told[SICK].at_maps.requests);
        assert_in_range(told[SICK].at_maps.requests, bound ? 3 : 1, 6);
    }
}

static void test_a_recomputed_forward_without_memory_is_told_to_the_peers(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (int i = 0; i < 3; i++) {
            struct told_case c = {
                .place = IN_RECOMPUTE, .kind = (enum moe_dispatcher_kind)kind, .losses = i > 0, .keep_routing = i == 2};
            check_told(&c);
        }
    }
}

/* One more microbatch in flight is a layer that is made in a forward. */
static void test_a_microbatch_in_flight_without_memory_is_told_to_the_peers(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        struct told_case c = {.place = IN_FLIGHT, .kind = (enum moe_dispatcher_kind)kind};
        check_told(&c);
    }
}

struct buffer_rank {
    ncclUniqueId id;
    int rank;
    int rc[3];
    char message[160];
    struct moe_ep_buffer_info info;
};

/* The group's buffer: rank 1 says that it failed, then finds no memory, then has it. */
static void *run_buffer(void *arg)
{
    struct buffer_rank *r = arg;
    struct counting *c = calloc(1, sizeof(*c));
    ncclComm_t comm = NULL;
    moe_ep_buffer_t *buffer = NULL;
    cudaSetDevice(r->rank);
    moe_device_t *device = device_of(c);
    ncclCommInitRank(&comm, 2, r->id, r->rank);
    for (int i = 0; i < 3; i++) {
        struct moe_ep_buffer_want want = {.receive_bytes = 5000, .send_bytes = 3000, .bounds = i == 0};
        want.failed = i == 0 && r->rank == 1 ? MOE_E_SHAPE : 0;
        c->refuse = i == 1 && r->rank == 1 ? c->asked : -1;
        c->for_good = true; /* the exchange itself does without */
        r->rc[i] = moe_ep_buffer_acquire_as(device, comm, &want, &buffer);
        if (i == 1) {
            snprintf(r->message, sizeof(r->message), "%s", moe_last_error());
            c->refuse = -1;
        }
    }
    if (buffer != NULL) {
        moe_ep_buffer_describe(buffer, &r->info);
    }
    moe_ep_buffer_release(&buffer);
    moe_device_destroy(&device);
    ncclCommDestroy(comm);
    r->rc[2] = c->bytes != 0 ? MOE_E_STATE : r->rc[2];
    free(c);
    return NULL;
}

static void test_a_rank_without_memory_for_the_groups_buffer_says_so(void **state)
{
    (void)state;
    struct buffer_rank rank[2] = {{.rank = 0}, {.rank = 1}};
    pthread_t thread[2];
    assert_int_equal(ncclGetUniqueId(&rank[0].id), ncclSuccess);
    rank[1].id = rank[0].id;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, run_buffer, &rank[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(rank[i].rc[0], MOE_E_SHAPE);
        assert_int_equal(rank[i].rc[1], MOE_E_NOMEM);
        assert_int_equal(rank[i].rc[2], 0);
        assert_int_equal(rank[i].info.held_bytes, 5120 + 3072);
        assert_int_equal(rank[i].info.made, 1);
    }
    assert_non_null(strstr(rank[0].message, "rank 1 of the group"));
    assert_non_null(strstr(rank[1].message, "8192 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer_is_made_on_all_ranks_or_on_none),
        cmocka_unit_test(test_a_forward_without_memory_is_told_to_the_peers),
        cmocka_unit_test(test_what_is_gathered_has_its_memory_before_the_maps_are_exchanged),
        cmocka_unit_test(test_a_recomputed_forward_without_memory_is_told_to_the_peers),
        cmocka_unit_test(test_a_microbatch_in_flight_without_memory_is_told_to_the_peers),
        cmocka_unit_test(test_a_rank_without_memory_for_the_groups_buffer_says_so),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
