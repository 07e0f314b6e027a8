/*
 * graphs.c: see graphs.h. Three bounded tables under roll_lock: open captures by CUDA's capture id, bodies, and
 * handles.
 *
 * A capture becomes known here when the first NCCL call comes on a stream that belongs to it; so streams that joined by
 * events count, and graphs without NCCL calls cost nothing. Only CUDA knows which capture a stream belongs to. CUDA is
 * asked through the driver where there is one, because the driver has no "last error" that asking could change. The
 * legacy stream cannot be captured, and asking about it while another stream is captured is an error, so it is never
 * asked about.
 *
 * Handles are addresses that CUDA uses again. So every new executable graph is bound, also one that holds nothing.
 * Counting nodes of a finished graph instead was rejected: NCCL's kernels do not say which call they came from.
 */
#include "interposer/cuda/graphs.h"

#include "interposer/wrap/call.h"
#include "trace/signature.h"

#include <errno.h>
#include <string.h>

#define CAPTURES  64u
#define HANDLES   8192u /* a power of two */
#define BODIES    4096u
#define P2P_LIMIT 8192u /* captured point-to-point calls of one graph */
#define TOMBSTONE ((uintptr_t)1)

_Atomic uint32_t roll_captures_open;
_Atomic uint32_t roll_graph_handles;

static struct {
    unsigned long long id;
    uint64_t used; /* time of the last use: the oldest capture makes room, because its end may never have been seen */
    struct roll_body *body;
} captures[CAPTURES];
static uint64_t uses;

static struct {
    uintptr_t handle;
    struct roll_body *body;
} handles[HANDLES];

static struct roll_body *spare;
static struct roll_p2p_chunk *spare_chunk;
static uint32_t bodies, ids;

typedef int (*query_t)(cudaStream_t, int *, unsigned long long *, void *, void *, void *, void *);
static query_t query;

void roll_capture_prepare(void)
{
    static const char *const driver[] = {"cuStreamGetCaptureInfo_v3", "cuStreamGetCaptureInfo_v2",
                                         "cuStreamGetCaptureInfo"};
    if (__atomic_load_n(&query, __ATOMIC_ACQUIRE) != NULL) {
        return;
    }
    roll_function_t found = NULL;
    for (unsigned i = 0; i < sizeof(driver) / sizeof(driver[0]) && found == NULL; i++) {
        found = roll_symbol_resolve(driver[i], "libcuda.so");
    }
    if (found == NULL) { /* releases differ in the arguments behind the third; all of these may be NULL */
        found = roll_symbol_resolve("cudaStreamGetCaptureInfo", "libcudart.so");
    }
    __atomic_store_n(&query, (query_t)found, __ATOMIC_RELEASE);
}

bool roll_capture_of(cudaStream_t stream, unsigned long long *id)
{
    enum { STATUS_NONE, STATUS_ACTIVE };
    int status = STATUS_NONE;
    query_t ask = __atomic_load_n(&query, __ATOMIC_ACQUIRE);
    bool legacy = (uintptr_t)stream <= 1;
    return !legacy && ask != NULL && atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0 &&
           ask(stream, &status, id, NULL, NULL, NULL, NULL) == 0 && status == STATUS_ACTIVE;
}

static void lose(void)
{
    if (roll_active()) {
        atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_GRAPH], 1, memory_order_relaxed);
    }
}

/* bodies; all under roll_lock */

static struct roll_body *body_new(void)
{
    struct roll_body *body = spare;
    if (ids == UINT16_MAX) {
        return NULL;
    }
    if (body != NULL) {
        spare = body->next;
    } else if (bodies < BODIES) {
        body = roll_session_alloc(sizeof(*body));
        bodies += body != NULL;
    }
    if (body != NULL) {
        *body = (struct roll_body){.refs = 1, .id = (uint16_t)++ids, .first = UINT64_MAX};
    }
    return body;
}

static void body_release(struct roll_body *body)
{
    if (body == NULL || --body->refs != 0) {
        return;
    }
    if (body->p2p != NULL) {
        body->p2p_last->next = spare_chunk;
        spare_chunk = body->p2p;
    }
    body->next = spare;
    spare = body;
}

static struct roll_body_part *part_of(struct roll_body *body, struct roll_comm *comm)
{
    for (uint32_t i = 0; i < body->parts; i++) {
        if (body->part[i].comm == comm) {
            return &body->part[i];
        }
    }
    if (body->parts == ROLL_GRAPH_PARTS) {
        return NULL;
    }
    body->part[body->parts] = (struct roll_body_part){.comm = comm};
    return &body->part[body->parts++];
}

static bool p2p_append(struct roll_body *body, const struct roll_captured_p2p *call)
{
    if (body->p2ps == P2P_LIMIT) {
        return false;
    }
    if (body->p2p_last == NULL || body->p2p_last->used == ROLL_P2P_CHUNK) {
        struct roll_p2p_chunk *chunk = spare_chunk;
        if (chunk != NULL) {
            spare_chunk = chunk->next;
        } else {
            chunk = roll_session_alloc(sizeof(*chunk));
        }
        if (chunk == NULL) {
            return false;
        }
        chunk->next = NULL;
        chunk->used = 0;
        *(body->p2p_last != NULL ? &body->p2p_last->next : &body->p2p) = chunk;
        body->p2p_last = chunk;
    }
    body->p2p_last->call[body->p2p_last->used++] = *call;
    body->p2ps++;
    return true;
}

/* Appends the contents of `from` to those of `body`. */
static bool body_append(struct roll_body *body, const struct roll_body *from)
{
    bool whole = true;
    for (uint32_t i = 0; i < from->parts; i++) {
        const struct roll_body_part *theirs = &from->part[i];
        struct roll_body_part *part = part_of(body, theirs->comm);
        if (part == NULL) {
            whole = false;
            continue;
        }
        body->lists += part->collectives == 0 && theirs->collectives != 0;
        part->hash = roll_sequence_join(part->hash, theirs->hash, theirs->collectives);
        part->collectives += theirs->collectives;
        part->p2p += theirs->p2p;
    }
    for (const struct roll_p2p_chunk *chunk = from->p2p; chunk != NULL; chunk = chunk->next) {
        for (uint32_t i = 0; i < chunk->used; i++) {
            whole = p2p_append(body, &chunk->call[i]) && whole;
        }
    }
    body->calls += from->calls;
    body->first = from->first < body->first ? from->first : body->first;
    body->last = from->last > body->last ? from->last : body->last;
    return whole;
}

static void body_define(const struct roll_body *body)
{
    static struct roll_graph_part part[ROLL_GRAPH_PARTS]; /* static: small stacks; under roll_lock */
    struct roll_def_graph def = {
        .first_ticket = body->first, .last_ticket = body->last, .calls = body->calls, .parts = body->parts};
    for (uint32_t i = 0; i < body->parts; i++) {
        const struct roll_body_part *from = &body->part[i];
        part[i] = (struct roll_graph_part){
            .hash = from->collectives == 0 ? 0 : from->hash + (from->hash == 0),
            .collectives = from->collectives,
            .comm = (uint16_t)atomic_load_explicit(&from->comm->id, memory_order_relaxed),
            .p2p = (uint16_t)(from->p2p < UINT16_MAX ? from->p2p : UINT16_MAX),
        };
    }
    roll_def_append(&roll_session->ring, ROLL_DEF_GRAPH, body->id, &def, sizeof(def), part,
                    body->parts * sizeof(part[0]));
}

/* handles; all under roll_lock */

static uint32_t slot_of(uintptr_t handle)
{
    return (uint32_t)((handle * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & (HANDLES - 1);
}

/* The place of the handle in the table; else (found false) the first free place where it would be. */
static uint32_t place_of(uintptr_t handle, bool *found)
{
    uint32_t at = slot_of(handle), free_place = HANDLES;
    for (uint32_t i = 0; i < HANDLES; i++, at = (at + 1) & (HANDLES - 1)) {
        if (handles[at].handle == handle) {
            *found = true;
            return at;
        }
        if (handles[at].handle <= TOMBSTONE && free_place == HANDLES) {
            free_place = at;
        }
        if (handles[at].handle == 0) {
            break;
        }
    }
    *found = false;
    return free_place;
}

static struct roll_body *body_of(const void *handle)
{
    bool found = false;
    uint32_t at = place_of((uintptr_t)handle, &found);
    return found ? handles[at].body : NULL;
}

static void unbind(uint32_t at)
{
    bool last = handles[(at + 1) & (HANDLES - 1)].handle == 0;
    body_release(handles[at].body);
    handles[at].body = NULL;
    handles[at].handle = TOMBSTONE;
    for (; last && handles[at].handle == TOMBSTONE; at = (at - 1) & (HANDLES - 1)) {
        handles[at].handle = 0;
    }
    atomic_fetch_sub_explicit(&roll_graph_handles, 1, memory_order_relaxed);
}

/* Binds a handle to body, which may be NULL. Takes one reference to body. */
static void bind(const void *handle, struct roll_body *body)
{
    bool found = false;
    uint32_t at = place_of((uintptr_t)handle, &found);
    if (found && body == NULL) {
        unbind(at);
    } else if (found) {
        body_release(handles[at].body);
        handles[at].body = body;
    } else if (body != NULL && atomic_load_explicit(&roll_graph_handles, memory_order_relaxed) < HANDLES / 4 * 3) {
        handles[at].handle = (uintptr_t)handle;
        handles[at].body = body;
        atomic_fetch_add_explicit(&roll_graph_handles, 1, memory_order_relaxed);
    } else if (body != NULL) {
        body_release(body);
        lose();
    }
}

void roll_graph_bind(const void *handle, const void *source)
{
    if ((uintptr_t)handle <= TOMBSTONE || atomic_load_explicit(&roll_graph_handles, memory_order_relaxed) == 0) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    struct roll_body *body = source != NULL ? body_of(source) : NULL;
    if (body != NULL) {
        body->refs++;
    }
    bind(handle, body);
    pthread_mutex_unlock(&roll_lock);
}

/* Makes and defines a new body with the contents of `a` and behind them those of `b`; NULL where there is no room. */
static struct roll_body *joined(const struct roll_body *a, const struct roll_body *b)
{
    struct roll_body *body = body_new();
    bool whole = body != NULL && (a == NULL || body_append(body, a)) && body_append(body, b);
    if (!whole) {
        body_release(body);
        lose();
        return NULL;
    }
    body_define(body);
    return body;
}

void roll_graph_add_child(const void *graph, const void *child)
{
    if (atomic_load_explicit(&roll_graph_handles, memory_order_relaxed) == 0) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    const struct roll_body *theirs = body_of(child);
    if (theirs != NULL) {
        bind(graph, joined(body_of(graph), theirs));
    }
    pthread_mutex_unlock(&roll_lock);
}

struct roll_body *roll_body_get(const void *handle)
{
    if (atomic_load_explicit(&roll_graph_handles, memory_order_relaxed) == 0) {
        return NULL;
    }
    pthread_mutex_lock(&roll_lock);
    struct roll_body *body = body_of(handle);
    if (body != NULL) {
        body->refs++;
    }
    pthread_mutex_unlock(&roll_lock);
    return body;
}

void roll_body_put(struct roll_body *body)
{
    pthread_mutex_lock(&roll_lock);
    body_release(body);
    pthread_mutex_unlock(&roll_lock);
}

/* captures */

/* The body of a capture, which is made when the capture is not known yet; NULL where there is no room. Under roll_lock.
 */
static struct roll_body *captured_body(unsigned long long id)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < CAPTURES; i++) {
        if (captures[i].body != NULL && captures[i].id == id) {
            captures[i].used = ++uses;
            return captures[i].body;
        }
        bool older = captures[i].body == NULL || captures[i].used < captures[oldest].used;
        oldest = captures[oldest].body != NULL && older ? i : oldest;
    }
    body_release(captures[oldest].body);
    captures[oldest].body = body_new();
    captures[oldest].id = id;
    captures[oldest].used = ++uses;
    return captures[oldest].body;
}

void roll_captured_enter(struct roll_thread *t, cudaStream_t stream, struct roll_comm *comm, struct roll_fill *fill)
{
    int saved = errno;
    unsigned long long id = 0;
    if (roll_capture_of(stream, &id)) {
        pthread_mutex_lock(&roll_lock);
        struct roll_body *body = captured_body(id);
        if (body != NULL) {
            fill->aux = body->id;
        } else {
            lose();
        }
        pthread_mutex_unlock(&roll_lock);
        fill->flags |= ROLL_FLAG_CAPTURED;
        t->captured = (struct roll_captured_call){.pending = body != NULL && comm != NULL,
                                                  .id = id,
                                                  .comm = comm,
                                                  .count = fill->count,
                                                  .peer = fill->peer,
                                                  .op = fill->op,
                                                  .dtype = fill->dtype,
                                                  .redop = fill->redop,
                                                  .flags = fill->flags};
    }
    errno = saved;
}

static bool add_call(struct roll_body *body, const struct roll_captured_call *c)
{
    struct roll_body_part *part = part_of(body, c->comm);
    if (part == NULL) {
        return false;
    }
    if (roll_op_class(c->op) == ROLL_CLASS_P2P) {
        struct roll_captured_p2p call = {
            .comm = c->comm, .count = c->count, .peer = c->peer, .op = c->op, .dtype = c->dtype, .flags = c->flags};
        part->p2p++;
        return p2p_append(body, &call);
    }
    struct roll_signed_call call = {c->count, c->peer, c->op, c->dtype, c->redop, c->flags};
    body->lists += part->collectives == 0;
    part->hash = roll_sequence_hash(part->hash, roll_signature(&call));
    part->collectives++;
    return true;
}

void roll_captured_leave(struct roll_thread *t, uint64_t ticket, int result)
{
    int saved = errno;
    const struct roll_captured_call *c = &t->captured;
    bool collective = roll_op_class(c->op) == ROLL_CLASS_COLL, message = roll_op_class(c->op) == ROLL_CLASS_P2P;
    if ((result == ncclSuccess || result == ncclInProgress) && ((collective && c->count != 0) || message)) {
        pthread_mutex_lock(&roll_lock);
        struct roll_body *body = captured_body(c->id);
        if (body != NULL) {
            body->first = ticket < body->first ? ticket : body->first;
            body->last = ticket > body->last ? ticket : body->last;
            body->calls++;
            if (!add_call(body, c)) {
                lose();
            }
        }
        pthread_mutex_unlock(&roll_lock);
    }
    t->captured.pending = false;
    errno = saved;
}

uint16_t roll_capture_graph(unsigned long long id)
{
    uint16_t graph = 0;
    pthread_mutex_lock(&roll_lock);
    for (uint32_t i = 0; i < CAPTURES; i++) {
        const struct roll_body *body = captures[i].body;
        if (body != NULL && captures[i].id == id && body->calls != 0) {
            graph = body->id;
        }
    }
    pthread_mutex_unlock(&roll_lock);
    return graph;
}

void roll_capture_end(unsigned long long id, const void *graph)
{
    if (!roll_active()) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    struct roll_body *body = NULL;
    for (uint32_t i = 0; i < CAPTURES && body == NULL; i++) {
        if (captures[i].body != NULL && captures[i].id == id) {
            body = captures[i].body;
            captures[i].body = NULL;
        }
    }
    if (body != NULL && graph != NULL && body->calls != 0) {
        /* A capture into a graph that holds something already adds to that. */
        const struct roll_body *before = body_of(graph);
        struct roll_body *both = NULL;
        body_define(body);
        if (before != NULL) {
            both = joined(before, body);
            body_release(body);
            body = both;
        }
        bind(graph, body);
    } else {
        body_release(body);
    }
    pthread_mutex_unlock(&roll_lock);
}

void roll_graph_embed(unsigned long long id, const void *exec)
{
    pthread_mutex_lock(&roll_lock);
    const struct roll_body *theirs = body_of(exec);
    struct roll_body *body = theirs != NULL ? captured_body(id) : NULL;
    if (body != NULL && !body_append(body, theirs)) {
        lose();
    }
    pthread_mutex_unlock(&roll_lock);
}
