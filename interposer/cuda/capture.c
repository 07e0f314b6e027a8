/*
 * capture.c: the wrappers of cuda.def: captures begin and end, graphs are instantiated, changed and launched.
 *
 * NCCL sees a captured call once, whatever is launched later. So launches are recorded here, at both layers: the
 * runtime, which applications link, and the driver, which a statically linked runtime, and PyTorch, reach through
 * cuGetProcAddress (its answer is exchanged for our wrapper). The runtime itself calls the driver; the thread's depth
 * keeps such a call from being recorded twice. Handles of both layers are the same addresses.
 *
 * Every wrapper takes six words and passes them on: no function of the table has more, all are integers or pointers,
 * and the forms of different releases (cudaGraphInstantiate has had three or five arguments) then need no rows of their
 * own. The real function never reads the words that the caller did not give.
 */
#include "interposer/cuda/order_note.h"
#include "interposer/wrap/call.h"

#include <errno.h>
#include <string.h>

#define NO_RUNTIME 303 /* cudaErrorSharedObjectInitFailed, and the driver's error of the same name */

/* Errors of EndCapture that leave the capture open: the capture began on another stream, or in another thread. */
#define ERROR_UNMATCHED    903
#define ERROR_WRONG_THREAD 908

enum kind {
    BEGIN,
    END,
    DERIVE,
    CHILD,
    UPDATE,
    FORGET,
    LAUNCH,
    PROC,
    ENTRY,
    ENTRY_VERSION,
    EVENT_RECORD,
    EVENT_WAIT,
    EVENT_FORGET,
    STREAM_FORGET
};
enum library { RUNTIME, DRIVER };

struct words {
    uintptr_t a, b, c, d, e, f;
};
typedef int (*real_t)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

enum row_id {
#define ROLL_CUDA_ROW(name, library, kind, symbol, per_thread) ROW_##name,
#include "interposer/cuda/cuda.def"
    ROWS
};

#define ROLL_CUDA_ROW(name, library, kind, symbol, per_thread)                                                         \
    ROLL_EXPORT int name(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
#include "interposer/cuda/cuda.def"

static const struct row {
    const char *name, *symbol;
    real_t wrapper;
    uint8_t library, kind, per_thread;
} rows[ROWS] = {
#define ROLL_CUDA_ROW(name, library, kind, symbol, per_thread) {#name, symbol, name, library, kind, per_thread},
#include "interposer/cuda/cuda.def"
};
static real_t reals[ROWS];

static real_t real_of(enum row_id id)
{
    real_t real = __atomic_load_n(&reals[id], __ATOMIC_ACQUIRE);
    if (ROLL_UNLIKELY(real == NULL)) {
        real = (real_t)roll_symbol_resolve(rows[id].name, rows[id].library == DRIVER ? "libcuda.so" : "libcudart.so");
        __atomic_store_n(&reals[id], real, __ATOMIC_RELEASE);
    }
    return real;
}

static int forward(real_t real, const struct words *w)
{
    return real(w->a, w->b, w->c, w->d, w->e, w->f);
}

/* Forwards a call that is not recorded itself, and whose inner calls must not be recorded either. */
static int forward_alone(struct roll_thread *t, real_t real, const struct words *w, const uintptr_t *frame)
{
    t->depth = 1;
    t->frame = (uintptr_t)frame;
    int result = forward(real, w);
    t->depth = 0;
    return result;
}

/* Marks the thread as running our own code, between an application's call and its return: calls that a signal handler
 * makes there are not recorded. */
static void quietly(struct roll_thread *t, bool on)
{
    t->depth = on;
    t->busy = on;
    atomic_signal_fence(memory_order_seq_cst);
}

static int begin(struct roll_thread *t, real_t real, const struct words *w, const uintptr_t *frame)
{
    quietly(t, true);
    roll_capture_prepare();
    roll_completion_before_capture();
    quietly(t, false);
    /* The counter grows before the call, because other threads may use the stream as soon as the call returns. */
    atomic_fetch_add_explicit(&roll_captures_open, 1, memory_order_relaxed);
    int result = forward_alone(t, real, w, frame);
    if (result != 0) {
        atomic_fetch_sub_explicit(&roll_captures_open, 1, memory_order_relaxed);
    }
    return result;
}

static int end(struct roll_thread *t, real_t real, const struct words *w, const uintptr_t *frame)
{
    unsigned long long id = 0;
    if (atomic_load_explicit(&roll_captures_open, memory_order_relaxed) == 0) {
        return forward_alone(t, real, w, frame);
    }
    quietly(t, true); /* a lock is taken here */
    bool active = roll_capture_of((cudaStream_t)w->a, &id);
    if (active) {
        roll_completion_count((cudaStream_t)w->a, roll_capture_graph(id));
    }
    quietly(t, false);
    int result = forward_alone(t, real, w, frame);
    int saved = errno;
    /* A capture that was invalidated is over too, although it was not active any more. An end without a beginning ends
     * no capture. */
    if (result != ERROR_UNMATCHED && result != ERROR_WRONG_THREAD && (active || result != 0)) {
        uint32_t open = atomic_load_explicit(&roll_captures_open, memory_order_relaxed);
        while (open != 0 && !atomic_compare_exchange_weak_explicit(&roll_captures_open, &open, open - 1,
                                                                   memory_order_relaxed, memory_order_relaxed)) {
        }
    }
    if (active && result != ERROR_UNMATCHED && result != ERROR_WRONG_THREAD) {
        quietly(t, true);
        roll_capture_end(id, result == 0 && w->b != 0 ? *(const void *const *)w->b : NULL);
        quietly(t, false);
    }
    errno = saved;
    return result;
}

/* Calls that give handles their contents. Their effect is noted when they have succeeded. */
static int derive(struct roll_thread *t, enum kind kind, real_t real, const struct words *w, const uintptr_t *frame)
{
    if (kind == FORGET) { /* before the call, because CUDA may use the address again at once */
        quietly(t, true);
        roll_graph_bind((const void *)w->a, NULL);
        quietly(t, false);
    }
    int result = forward_alone(t, real, w, frame);
    if (result == 0 && kind != FORGET) {
        int saved = errno;
        quietly(t, true);
        if (kind == DERIVE && w->a != 0) {
            roll_graph_bind(*(const void *const *)w->a, (const void *)w->b);
        } else if (kind == UPDATE) {
            roll_graph_bind((const void *)w->a, (const void *)w->b);
        } else if (kind == CHILD) {
            roll_graph_add_child((const void *)w->b, (const void *)w->e);
        }
        quietly(t, false);
        errno = saved;
    }
    return result;
}

/* launches */

struct launch {
    struct roll_thread *t;
    const struct roll_body *body;
    uint32_t group; /* 0: the launch is a single record */
    uint16_t stream, site;
};

/* Writes the record of one part of the launch. In a group the parts are only announced: the group's end is the record
 * that takes time. */
static void write_part(const struct launch *l, struct roll_call *call, struct roll_comm *comm,
                       const struct roll_captured_p2p *p2p, uint64_t hash)
{
    const struct roll_kind kind = {.op = p2p != NULL ? p2p->op : ROLL_OP_GRAPH_LAUNCH,
                                   .class = p2p != NULL ? ROLL_CLASS_P2P : ROLL_CLASS_COLL};
    struct roll_fill fill = {
        .count = p2p != NULL ? p2p->count : hash,
        .group = l->group,
        .peer = p2p != NULL ? p2p->peer : ROLL_PEER_NONE,
        .comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed),
        .stream = l->stream,
        .aux = l->body->id,
        .op = kind.op,
        .dtype = p2p != NULL ? p2p->dtype : ROLL_DTYPE_NONE,
        .redop = ROLL_RED_NONE,
        .flags = (uint8_t)((p2p != NULL ? (p2p->flags & ROLL_FLAG_BYTES) | ROLL_FLAG_REPLAYED : 0) | comm->flags |
                           (l->group != 0 ? ROLL_FLAG_IN_GROUP : 0)),
    };
    fill.seq = roll_next_seq(comm, &kind, fill.count, fill.peer);
    roll_record_write(l->t, call, &fill, l->site, l->group != 0 ? ROLL_STATE_RETURNED : ROLL_STATE_ENTERED);
    if (p2p == NULL && ROLL_UNLIKELY(roll_session->compare != NULL)) {
        roll_failfast_launched(comm, hash);
    }
}

static void write_launch(const struct launch *l, struct roll_call *call)
{
    const struct roll_body *body = l->body;
    for (uint32_t i = 0; i < body->parts; i++) {
        const struct roll_body_part *part = &body->part[i];
        if (part->collectives != 0) {
            write_part(l, call, part->comm, NULL, part->hash + (part->hash == 0));
        }
    }
    for (const struct roll_p2p_chunk *chunk = body->p2p; chunk != NULL; chunk = chunk->next) {
        for (uint32_t i = 0; i < chunk->used; i++) {
            write_part(l, call, chunk->call[i].comm, &chunk->call[i], 0);
        }
    }
    if (l->group != 0) {
        uint32_t records = body->lists + body->p2ps;
        struct roll_fill fill = {.group = l->group,
                                 .peer = ROLL_PEER_NONE,
                                 .stream = l->stream,
                                 .op = ROLL_OP_GROUP_END,
                                 .dtype = ROLL_DTYPE_NONE,
                                 .redop = ROLL_RED_NONE,
                                 .aux = (uint16_t)(records < UINT16_MAX ? records : UINT16_MAX)};
        roll_record_write(l->t, call, &fill, l->site, ROLL_STATE_ENTERED);
    }
}

static int launch(struct roll_thread *t, real_t real, const struct words *w, bool per_thread, uintptr_t pc,
                  const uintptr_t *frame)
{
    enum { UNHANDLED_CUDA_ERROR = 1 };
    if (atomic_load_explicit(&roll_graph_handles, memory_order_relaxed) == 0 || !roll_wanted(t)) {
        return forward(real, w);
    }
    int saved = errno;
    roll_enter_begin(t);
    struct roll_body *body = roll_body_get((const void *)w->a);
    unsigned long long id = 0;
    cudaStream_t stream = (cudaStream_t)w->b;
    bool embedded = body != NULL && roll_capture_of(stream, &id);
    if (embedded) {
        roll_graph_embed(id, (const void *)w->a);
    }
    if (body == NULL || embedded) {
        roll_enter_end(t);
        errno = saved;
        int result = forward_alone(t, real, w, frame);
        if (body != NULL) {
            saved = errno;
            quietly(t, true);
            roll_body_put(body);
            quietly(t, false);
            errno = saved;
        }
        return result;
    }
    struct roll_call call = {.rec = NULL};
    struct launch l = {
        .t = t, .body = body, .stream = roll_stream_id(t, stream, per_thread), .site = roll_callsite(t, pc, frame)};
    if (body->lists + body->p2ps > 1) {
        l.group = atomic_fetch_add_explicit(&roll_session->groups, 1, memory_order_relaxed) + 1;
    }
    if (ROLL_UNLIKELY(roll_order_pending(l.stream))) {
        (void)roll_tell_launch(t, l.stream);
    }
    write_launch(&l, &call);
    call.stream = t->group_depth == 0 ? l.stream : 0;
    t->frame = (uintptr_t)frame;
    roll_enter_end(t);
    errno = saved;
    int result = forward(real, w);
    saved = errno;
    t->busy = true;
    if (result != 0 && l.group != 0) {
        roll_refused_group(t, l.group, body->lists + body->p2ps, call.ticket);
    }
    roll_body_put(body);
    if (atomic_load_explicit(&roll_completion_mode, memory_order_relaxed) != 0) {
        t->work_stream = stream;
        t->work_id = t->group_depth == 0 ? l.stream : 0;
    }
    errno = saved;
    roll_leave(t, &call, result == 0 ? 0 : UNHANDLED_CUDA_ERROR);
    return result;
}

/* streams that wait for each other */

/* A call whose effect on the order of streams is noted: events are recorded, waited for and destroyed, streams are
 * destroyed. What is destroyed is forgotten before, because CUDA may use its address again at once. An event is noted
 * before as well: what another thread enqueues meanwhile may stand behind it. */
static int order(struct roll_thread *t, enum kind kind, real_t real, const struct words *w, bool per_thread,
                 const uintptr_t *frame)
{
    if (!roll_wanted(t)) {
        return forward(real, w);
    }
    if (kind == EVENT_RECORD) {
        roll_note_event(t, (cudaEvent_t)w->a, (cudaStream_t)w->b, per_thread);
    } else if (kind == EVENT_FORGET) {
        roll_order_forget_event((cudaEvent_t)w->a);
    } else if (kind == STREAM_FORGET && w->a > 2) {
        quietly(t, true);
        roll_order_forget_stream(roll_stream_known((cudaStream_t)w->a));
        quietly(t, false);
    }
    int result = forward_alone(t, real, w, frame);
    if (kind == EVENT_RECORD && result != 0) {
        roll_order_forget_event((cudaEvent_t)w->a);
    } else if (kind == EVENT_WAIT && result == 0) {
        roll_note_wait(t, (cudaStream_t)w->a, (cudaEvent_t)w->b, per_thread);
    }
    return result;
}

/* who asks for a function by name */

static int dispatch(real_t real, enum kind kind, bool per_thread, const struct words *w, uintptr_t pc,
                    const uintptr_t *frame);

/*
 * The driver answers with the form of a function that fits the version asked for, and may not export that form under
 * the function's name. So each answer gets a wrapper of its own that forwards to just that address. The number of these
 * wrappers is fixed, because no code is made at run time; a program asks for a dozen.
 */
#define ANSWERS 48
static struct {
    real_t real;
    uint8_t kind, per_thread;
} answers[ANSWERS];
static uint32_t answered; /* under roll_lock */

#define ANSWER(n)                                                                                                      \
    static int answer_##n(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)                \
    {                                                                                                                  \
        const struct words words = {a, b, c, d, e, f};                                                                 \
        return dispatch(answers[n].real, answers[n].kind, answers[n].per_thread, &words, ROLL_PC, ROLL_FRAME);         \
    }
/* clang-format off */
#define EACH_ANSWER(X)                                                                                                 \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)                              \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)                    \
    X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47)
/* clang-format on */
EACH_ANSWER(ANSWER)
#define ANSWER_NAME(n) answer_##n,
static const real_t answer_wrapper[ANSWERS] = {EACH_ANSWER(ANSWER_NAME)};

static bool is_ours(real_t function)
{
    for (unsigned i = 0; i < ROWS; i++) {
        if (rows[i].wrapper == function) {
            return true;
        }
    }
    return false;
}

/* Exchanges the answer of cuGetProcAddress for our wrapper. */
static void exchange(const char *symbol, void **answer, bool per_thread)
{
    unsigned row = 0;
    real_t real = (real_t)*answer;
    while (row < ROWS && (rows[row].symbol[0] == '\0' || strcmp(rows[row].symbol, symbol) != 0)) {
        row++;
    }
    if (row == ROWS || real == NULL || is_ours(real)) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    uint32_t at = 0;
    while (at < answered && (answers[at].real != real || answers[at].per_thread != per_thread)) {
        at++;
    }
    if (at < ANSWERS) {
        answers[at].real = real;
        answers[at].kind = rows[row].kind;
        answers[at].per_thread = per_thread;
        answered = at == answered ? at + 1 : answered;
        *answer = (void *)answer_wrapper[at];
    }
    pthread_mutex_unlock(&roll_lock);
}

static int ask(struct roll_thread *t, enum kind kind, real_t real, const struct words *w, bool per_thread,
               const uintptr_t *frame)
{
    enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2 };
    int result = forward_alone(t, real, w, frame);
    void **answer = (void **)w->b;
    if (result != 0 || w->a == 0 || answer == NULL) {
        return result;
    }
    /* (symbol, answer, version, flags, status); in the oldest form without a version. */
    uintptr_t flags = kind == ENTRY ? w->c : w->d;
    bool own = (flags & FLAG_PER_THREAD) != 0 || (per_thread && (flags & FLAG_LEGACY) == 0);
    int saved = errno;
    quietly(t, true);
    exchange((const char *)w->a, answer, own);
    quietly(t, false);
    errno = saved;
    return result;
}

static int dispatch(real_t real, enum kind kind, bool per_thread, const struct words *w, uintptr_t pc,
                    const uintptr_t *frame)
{
    struct roll_thread *t = &roll_thread_self;
    if (real == NULL) {
        return NO_RUNTIME;
    }
    if (!ROLL_RECORDING || !roll_outside(t)) {
        return forward(real, w);
    }
    switch (kind) {
    case BEGIN:
        return begin(t, real, w, frame);
    case END:
        return end(t, real, w, frame);
    case LAUNCH:
        return launch(t, real, w, per_thread, pc, frame);
    case EVENT_RECORD:
    case EVENT_WAIT:
    case EVENT_FORGET:
    case STREAM_FORGET:
        return order(t, kind, real, w, per_thread, frame);
    case PROC:
    case ENTRY:
    case ENTRY_VERSION:
        return ask(t, kind, real, w, per_thread, frame);
    default:
        return derive(t, kind, real, w, frame);
    }
}

#define ROLL_CUDA_ROW(name, library, kind, symbol, per_thread)                                                         \
    int name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)                             \
    {                                                                                                                  \
        const struct words words = {a, b, c, d, e, f};                                                                 \
        return dispatch(real_of(ROW_##name), kind, per_thread, &words, ROLL_PC, ROLL_FRAME);                           \
    }                                                                                                                  \
    ROLL_OWN(name)
#include "interposer/cuda/cuda.def"
