/*
 * uneven.c: one number of tokens for all ranks of a dispatch group.
 *
 * The number has an all-reduce of its own. It cannot travel in the exchange that follows, which would save a
 * collective, because the size of that exchange depends on the number. The host waits, because sizes of collectives are
 * host numbers; a program that cannot wait (a captured graph) uses BOUND. All ranks see the same maximum, so the check
 * against the buffers fails on all of them or on none.
 *
 * All layers of a microbatch have the same T, so one of them asks and the others look it up: a list of the process
 * holds one book per device and group, as ep_buffer.c holds one buffer. A number in struct moe_step, filled in by the
 * first layer, was rejected: the caller would have to carry it from layer to layer. The lock guards the list only; the
 * thread of a device alone reads and writes the books of that device.
 */
#include "moe_core/include/moe/uneven.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/ops.h"

#include <pthread.h>
#include <stdlib.h>

/* What one microbatch agreed on. */
struct entry {
    const moe_uneven_group_t *by; /* NULL: the entry is free, or the object that agreed is gone */
    uint32_t step;
    uint16_t microbatch;
    bool known;
    int64_t most;
};

struct book {
    struct book *next;
    moe_device_t *device;
    ncclComm_t comm;
    int users;
    size_t written; /* entries ever; the oldest is overwritten */
    struct entry entry[MOE_UNEVEN_MICROBATCHES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct book *books;

struct moe_uneven_group {
    moe_device_t *device;
    struct moe_uneven_config config;
    struct book *book;
    int ranks;
    int64_t *most; /* device [1] */
    int64_t *host; /* pinned [1] */
};

#define FAIL(g, code, ...) moe_fail(code, (g)->config.world_rank, (g)->config.layer, __VA_ARGS__)

int64_t moe_uneven_round(int64_t tokens)
{
    return (tokens + MOE_TOKEN_ALIGN - 1) / MOE_TOKEN_ALIGN * MOE_TOKEN_ALIGN;
}

/* the books */

static struct book *open_book(moe_device_t *device, ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    struct book *b = books;
    while (b != NULL && (b->device != device || b->comm != comm)) {
        b = b->next;
    }
    if (b == NULL && (b = calloc(1, sizeof(*b))) != NULL) {
        b->device = device;
        b->comm = comm;
        b->next = books;
        books = b;
    }
    if (b != NULL) {
        b->users++;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

static void close_book(moe_uneven_group_t *g)
{
    struct book *b = g->book;
    if (b == NULL) {
        return;
    }
    for (size_t i = 0; i < MOE_UNEVEN_MICROBATCHES; i++) {
        b->entry[i].by = b->entry[i].by == g ? NULL : b->entry[i].by;
    }
    pthread_mutex_lock(&lock);
    bool last = --b->users == 0;
    for (struct book **at = &books; last && *at != NULL; at = &(*at)->next) {
        if (*at == b) {
            *at = b->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (last) {
        free(b);
    }
}

static struct entry *find_entry(struct book *b, const struct moe_uneven_place *place)
{
    for (size_t i = 0; i < MOE_UNEVEN_MICROBATCHES; i++) {
        struct entry *e = &b->entry[i];
        if (e->known && e->step == place->step && e->microbatch == place->microbatch) {
            return e;
        }
    }
    return NULL;
}

static void write_entry(moe_uneven_group_t *g, const struct moe_uneven_place *place, int64_t most)
{
    struct book *b = g->book;
    struct entry *e = find_entry(b, place);
    if (e == NULL) {
        e = &b->entry[b->written++ % MOE_UNEVEN_MICROBATCHES];
    }
    *e = (struct entry){.by = g, .step = place->step, .microbatch = place->microbatch, .known = true, .most = most};
}

/* life */

int moe_uneven_new(moe_device_t *device, const struct moe_uneven_config *config, moe_uneven_group_t **out)
{
    *out = NULL;
    moe_uneven_group_t *g = calloc(1, sizeof(*g));
    if (g == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "padding of tokens");
    }
    g->device = device;
    g->config = *config;
    g->ranks = 1;
    int rc = 0;
    if (config->max_tokens < 0 || config->token_bound < 0 || config->max_tokens > INT64_MAX - MOE_TOKEN_ALIGN ||
        config->token_bound > INT64_MAX - MOE_TOKEN_ALIGN) {
        rc = FAIL(g, MOE_E_SHAPE, "at most %lld tokens, bound %lld", (long long)config->max_tokens,
                  (long long)config->token_bound);
    } else if (config->comm != NULL && ncclCommCount(config->comm, &g->ranks) != ncclSuccess) {
        rc = FAIL(g, MOE_E_COMM, "size of the dispatch group");
    }
    if (rc == 0 && (g->book = open_book(device, config->comm)) == NULL) {
        rc = FAIL(g, MOE_E_NOMEM, "padding of tokens");
    }
    rc = rc ? rc : moe_device_alloc(device, sizeof(*g->most), (void **)&g->most);
    if (rc == 0 && cudaMallocHost((void **)&g->host, sizeof(*g->host)) != cudaSuccess) {
        rc = FAIL(g, MOE_E_NOMEM, "pinned host memory");
    }
    if (rc != 0) {
        moe_uneven_destroy(&g);
        return rc;
    }
    *out = g;
    return 0;
}

void moe_uneven_destroy(moe_uneven_group_t **group)
{
    moe_uneven_group_t *g = *group;
    if (g == NULL) {
        return;
    }
    close_book(g);
    moe_device_free(g->device, &g->most);
    cudaFreeHost(g->host);
    free(g);
    *group = NULL;
}

int64_t moe_uneven_bound(const struct moe_uneven_config *config)
{
    return moe_uneven_round(config->max_tokens > config->token_bound ? config->max_tokens : config->token_bound);
}

int64_t moe_uneven_most(const moe_uneven_group_t *g)
{
    return moe_uneven_bound(&g->config);
}

static int exchange(moe_uneven_group_t *g, int64_t tokens, int64_t *most)
{
    *g->host = tokens;
    int rc = moe_device_copy(g->device, g->most, g->host, sizeof(*g->host));
    if (rc == 0 && g->ranks > 1) {
        ncclResult_t nc =
            ncclAllReduce(g->most, g->most, 1, ncclInt64, ncclMax, g->config.comm, moe_device_stream(g->device));
        if (nc != ncclSuccess) {
            return FAIL(g, MOE_E_COMM, "AllReduce of the numbers of tokens: %s", ncclGetErrorString(nc));
        }
    }
    rc = rc ? rc : moe_device_copy(g->device, g->host, g->most, sizeof(*g->host));
    rc = rc ? rc : moe_device_sync(g->device);
    *most = *g->host;
    return rc;
}

/* The largest T of the microbatch: looked up where it was agreed on before, else asked. */
static int agree_on_most(moe_uneven_group_t *g, const struct moe_uneven_place *place, int64_t tokens, int64_t *most)
{
    const struct entry *e = place != NULL ? find_entry(g->book, place) : NULL;
    if (e == NULL || (e->by == g && !place->again)) {
        int rc = exchange(g, tokens, most);
        if (rc == 0 && place != NULL) {
            write_entry(g, place, *most);
        }
        return rc;
    }
    *most = e->most;
    return tokens <= moe_uneven_round(*most)
               ? 0
               : FAIL(g, MOE_E_CAPACITY,
                      "%lld tokens; microbatch %u of step %u was padded to %lld in an earlier layer: its layers have "
                      "the "
                      "same tokens",
                      (long long)tokens, place->microbatch, place->step, (long long)moe_uneven_round(*most));
}

int moe_uneven_agree(moe_uneven_group_t *g, enum moe_uneven kind, const struct moe_uneven_place *place, int64_t tokens,
                     int64_t *padded)
{
    *padded = tokens;
    if (tokens < 0 || tokens > g->config.max_tokens) {
        return FAIL(g, MOE_E_SHAPE, "%lld tokens, made for at most %lld", (long long)tokens,
                    (long long)g->config.max_tokens);
    }
    if (kind == MOE_UNEVEN_NONE) {
        return 0;
    }
    int64_t most = g->config.token_bound;
    if (kind == MOE_UNEVEN_BOUND) {
        if (most == 0) {
            return FAIL(g, MOE_E_UNSUPPORTED, "padding to a bound without one: set token_bound");
        }
        if (tokens > most) {
            return FAIL(g, MOE_E_CAPACITY, "%lld tokens, the bound is %lld", (long long)tokens, (long long)most);
        }
    } else {
        int rc = agree_on_most(g, place, tokens, &most);
        if (rc != 0) {
            return rc;
        }
        if (moe_uneven_round(most) < tokens || moe_uneven_round(most) > moe_uneven_most(g)) {
            return FAIL(g, MOE_E_CAPACITY, "a rank has %lld tokens, made for at most %lld", (long long)most,
                        (long long)g->config.max_tokens);
        }
    }
    *padded = moe_uneven_round(most);
    return 0;
}

int moe_uneven_pad(moe_device_t *device, const void *from, int64_t tokens, int64_t padded, size_t row_bytes, void *to)
{
    if (tokens < 0 || padded < tokens) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "%lld rows padded to %lld", (long long)tokens,
                        (long long)padded);
    }
    size_t used = (size_t)tokens * row_bytes, rest = (size_t)(padded - tokens) * row_bytes;
    int rc = used == 0 ? 0 : moe_device_copy(device, to, from, used);
    return rc || rest == 0 ? rc : moe_device_ops(device)->zero(device, (char *)to + used, rest);
}

int moe_uneven_trim(moe_device_t *device, const void *from, int64_t tokens, size_t row_bytes, void *to)
{
    return tokens <= 0 ? 0 : moe_device_copy(device, to, from, (size_t)tokens * row_bytes);
}
