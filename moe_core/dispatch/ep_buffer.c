/*
 * ep_buffer.c: a process-wide list of buffers, one per (device, communicator), with counted users.
 *
 * A buffer per layer was rejected: staging is only needed while a layer dispatches or combines, layers of one stream
 * take turns, and DeepEP has one per process. The key holds the device beside the communicator, because ranks may be
 * threads of one process. The lock guards the list only and is never held during a collective: the thread of a device
 * alone touches the entries of that device.
 *
 * Both areas lie in one piece of memory, the receive area first; which of them is the NVL part and which the RDMA part
 * is a matter of names here. Memory is made before the exchange, so that a rank without any can say so in it; the room
 * of the exchange itself is made when the buffer is opened, which is no collective, so that ranks can agree behind it.
 */
#include "moe_core/include/moe/ep_buffer.h"

#include "common/mix.h"
#include "moe_core/base/fail.h"
#include "moe_core/base/words.h"
#include "moe_core/include/moe/observe.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 256, WORDS = 4 }; /* of the exchange: receive bytes, send bytes, host, remedies proposed */

struct moe_ep_buffer {
    struct moe_ep_buffer *next;
    moe_device_t *device;
    ncclComm_t comm;
    int users, ranks, rank, node_ranks;
    uint32_t made;
    uint32_t agreed;                  /* remedies that all ranks proposed in the last exchange */
    size_t receive_bytes, send_bytes; /* as agreed */
    char *memory;                     /* both areas; NULL: only bounds were agreed */
    struct moe_words words;           /* the room of the exchange */
    void *exchange;                   /* the area of moe_ep_buffer_reserve */
    size_t exchange_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct moe_ep_buffer *all;

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

size_t moe_ep_buffer_aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t host_hash(void)
{
    char name[256] = "";
    uint64_t hash = 0, word;
    gethostname(name, sizeof(name) - 1);
    for (size_t i = 0; i < sizeof(name); i += sizeof(word)) {
        memcpy(&word, name + i, sizeof(word));
        hash = moe_mix(hash ^ word);
    }
    return (int64_t)hash;
}

/* Finds the list's entry for (device, comm), or makes it, and counts one more user. */
static struct moe_ep_buffer *find(moe_device_t *device, ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    struct moe_ep_buffer *b = all;
    while (b != NULL && (b->device != device || b->comm != comm)) {
        b = b->next;
    }
    if (b == NULL && (b = calloc(1, sizeof(*b))) != NULL) {
        b->device = device;
        b->comm = comm;
        b->ranks = 1;
        b->next = all;
        all = b;
    }
    if (b != NULL) {
        b->users++;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

/* What an exchange tells beside the sizes; a rank that cannot go on says its error, which is negative, for a size. */
struct told {
    int32_t node_ranks;
    uint32_t agreed;
};

/* Compares what every rank asks for, which must be equal, and counts the ranks on this node. */
static int compare(const struct moe_ep_buffer *b, const int64_t *asked, struct told *told)
{
    const int64_t *mine = asked + (size_t)b->rank * WORDS;
    *told = (struct told){.agreed = UINT32_MAX};
    for (int r = 0; r < b->ranks; r++) {
        const int64_t *theirs = asked + (size_t)r * WORDS, *first = asked;
        if (theirs[0] < 0) {
            return moe_told(moe_fail((int)theirs[0], b->rank, MOE_NO_LAYER,
                                     "rank %d of the group cannot make its part of the buffer", r));
        }
        if (theirs[0] != first[0] || theirs[1] != first[1]) {
            return moe_fail(MOE_E_SHAPE, b->rank, MOE_NO_LAYER,
                            "rank %d of the group asks for a buffer of %lld + %lld bytes, rank 0 for %lld + %lld", r,
                            (long long)theirs[0], (long long)theirs[1], (long long)first[0], (long long)first[1]);
        }
        told->node_ranks += theirs[2] == mine[2];
        told->agreed &= (uint32_t)theirs[3];
    }
    return 0;
}

/*
 * Tells an observer the sizes before the collective, outside of steps and layers: ranks whose sizes differ will fail.
 */
static void report(const struct moe_ep_buffer *b, size_t bytes)
{
    struct moe_event event = {.size = sizeof(event),
                              .kind = MOE_EV_UNIFORM,
                              .step = UINT32_MAX,
                              .layer = UINT16_MAX,
                              .peer = MOE_UNIFORM_BUFFER,
                              .count = bytes,
                              .comm = b->comm};
    moe_observe(&event);
}

/*
 * The collective: every rank's sizes and host to every rank. A rank that has `failed` says so, and keeps its own error.
 */
static int exchange(struct moe_ep_buffer *b, const struct moe_ep_buffer_want *want, int failed, struct told *told)
{
    const int64_t mine[WORDS] = {failed ? failed : (int64_t)want->receive_bytes, (int64_t)want->send_bytes, host_hash(),
                                 want->proposed};
    int rc = moe_words_gather(b->device, b->comm, "buffer sizes", mine, &b->words);
    return rc || failed ? rc : compare(b, b->words.host, told);
}

static int place_in_group(struct moe_ep_buffer *b)
{
    if (b->comm != NULL &&
        (ncclCommCount(b->comm, &b->ranks) != ncclSuccess || ncclCommUserRank(b->comm, &b->rank) != ncclSuccess)) {
        return FAIL(MOE_E_COMM, "size and rank of a group");
    }
    return 0;
}

/* Finds the place in the group, and makes the room of the exchange. */
static int make_words(struct moe_ep_buffer *b)
{
    int rc = place_in_group(b);
    return rc || b->ranks == 1 || b->words.host != NULL ? rc : moe_words_new(b->device, b->ranks, WORDS, &b->words);
}

/* Makes the buffer, or makes it larger. The old areas stay until the new ones are certain. */
static int make(struct moe_ep_buffer *b, const struct moe_ep_buffer_want *want)
{
    size_t receive = want->receive_bytes, send = want->send_bytes;
    struct told told = {.node_ranks = 1, .agreed = want->proposed};
    char *memory = NULL;
    int failed = want->failed, rc = make_words(b);
    if (rc != 0) {
        return failed ? failed : rc;
    }
    if (failed == 0 && (!want->bounds || b->memory != NULL)) {
        failed = moe_device_alloc(b->device, receive + send, (void **)&memory);
    }
    if (b->ranks > 1) {
        if (receive + send > 0) { /* a dispatcher without a buffer comes for the agreement */
            report(b, receive + send);
        }
        rc = exchange(b, want, failed, &told);
    }
    if (failed != 0 || rc != 0) {
        moe_device_free(b->device, &memory);
        return failed ? failed : rc;
    }
    if (memory != NULL) {
        moe_device_free(b->device, &b->memory);
        b->memory = memory;
    }
    b->node_ranks = want->node_ranks > 0 ? want->node_ranks : told.node_ranks;
    b->agreed = told.agreed;
    b->receive_bytes = receive;
    b->send_bytes = send;
    b->made++;
    return 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

int moe_ep_buffer_open(moe_device_t *device, ncclComm_t comm, moe_ep_buffer_t **out)
{
    moe_ep_buffer_t *b = find(device, comm);
    *out = NULL;
    if (b == NULL) {
        return FAIL(MOE_E_NOMEM, "a communication buffer");
    }
    int rc = make_words(b);
    if (rc != 0) {
        moe_ep_buffer_release(&b);
    }
    *out = b;
    return rc;
}

int moe_ep_buffer_acquire_as(moe_device_t *device, ncclComm_t comm, const struct moe_ep_buffer_want *want,
                             moe_ep_buffer_t **out)
{
    *out = NULL;
    moe_ep_buffer_t *b = find(device, comm);
    if (b == NULL) {
        return FAIL(MOE_E_NOMEM, "a communication buffer");
    }
    struct moe_ep_buffer_want all_users = *want;
    all_users.receive_bytes = larger(moe_ep_buffer_aligned(want->receive_bytes), b->receive_bytes);
    all_users.send_bytes = larger(moe_ep_buffer_aligned(want->send_bytes), b->send_bytes);
    int rc = want->failed;
    if (b->made == 0 || all_users.receive_bytes > b->receive_bytes || all_users.send_bytes > b->send_bytes) {
        rc = make(b, &all_users);
    } else if (rc == 0 && !want->bounds && b->memory == NULL) {
        rc = moe_device_alloc(device, b->receive_bytes + b->send_bytes, (void **)&b->memory);
    }
    if (rc != 0) {
        moe_ep_buffer_release(&b);
    }
    *out = b;
    return rc;
}

int moe_ep_buffer_reserve(moe_device_t *device, ncclComm_t comm, size_t bytes, moe_ep_buffer_t **out)
{
    *out = NULL;
    moe_ep_buffer_t *b = find(device, comm);
    void *area = NULL;
    if (b == NULL) {
        return FAIL(MOE_E_NOMEM, "a communication buffer");
    }
    int rc = bytes > b->exchange_bytes ? moe_device_alloc(device, bytes, &area) : 0;
    if (rc != 0) {
        moe_ep_buffer_release(&b);
        return rc;
    }
    if (area != NULL) {
        moe_device_free(device, &b->exchange);
        b->exchange = area;
        b->exchange_bytes = bytes;
    }
    *out = b;
    return 0;
}

void *moe_ep_buffer_exchange(const moe_ep_buffer_t *b)
{
    return b->exchange;
}

int moe_ep_buffer_acquire(moe_device_t *device, ncclComm_t comm, size_t receive_bytes, size_t send_bytes,
                          int32_t node_ranks, moe_ep_buffer_t **out)
{
    const struct moe_ep_buffer_want want = {
        .receive_bytes = receive_bytes, .send_bytes = send_bytes, .node_ranks = node_ranks};
    return moe_ep_buffer_acquire_as(device, comm, &want, out);
}

void moe_ep_buffer_release(moe_ep_buffer_t **buffer)
{
    moe_ep_buffer_t *b = *buffer;
    if (b == NULL) {
        return;
    }
    *buffer = NULL;
    pthread_mutex_lock(&lock);
    bool last = --b->users == 0;
    for (struct moe_ep_buffer **at = &all; last && *at != NULL; at = &(*at)->next) {
        if (*at == b) {
            *at = b->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (last) {
        moe_device_free(b->device, &b->memory);
        moe_device_free(b->device, &b->exchange);
        moe_words_free(b->device, &b->words);
        free(b);
    }
}

void *moe_ep_buffer_receive(const moe_ep_buffer_t *b)
{
    return b->memory;
}

void *moe_ep_buffer_send(const moe_ep_buffer_t *b)
{
    return b->memory != NULL ? b->memory + b->receive_bytes : NULL;
}

uint32_t moe_ep_buffer_agreed(const moe_ep_buffer_t *b)
{
    return b->agreed;
}

void moe_ep_buffer_describe(const moe_ep_buffer_t *b, struct moe_ep_buffer_info *info)
{
    bool leaves = b->ranks > b->node_ranks;
    *info = (struct moe_ep_buffer_info){.nvl_bytes = b->receive_bytes + (leaves ? 0 : b->send_bytes),
                                        .rdma_bytes = leaves ? b->send_bytes : 0,
                                        .held_bytes = b->memory != NULL ? b->receive_bytes + b->send_bytes : 0,
                                        .ranks = b->ranks,
                                        .node_ranks = b->node_ranks,
                                        .made = b->made};
}
