/*
 * order.c: see order.h.
 *
 * One lock for all lists: it is taken only where there is a call to note, and held for some nanoseconds. A thread that
 * does not get it soon (its holder was put to sleep) goes without: the list then lacks a call. Where that could leave
 * an old list in place of a new one, all lists of events made so far are forgotten. A lock for each list was rejected:
 * a wait needs two, and the reduction of a list looks into others.
 */
#include "interposer/cuda/order.h"

#define EVENTS 4096u /* a power of two; an event that falls into the place of another one takes it */
#define SPINS  200u  /* some microseconds */
#define LOOKS  64u   /* lists that are looked into to find out whether one call stands behind another */

struct roll_order roll_orders[ROLL_ORDER_STREAMS];

static struct {
    _Atomic uint64_t key;
    uint32_t generation;
    struct roll_order_list list;
} events[EVENTS];
static _Atomic uint32_t generation;
static _Atomic uint32_t lock;

static bool take_lock(void)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&lock, memory_order_relaxed) == 0 &&
            atomic_exchange_explicit(&lock, 1, memory_order_acquire) == 0) {
            return true;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    return false;
}

static void give_lock(void)
{
    atomic_store_explicit(&lock, 0, memory_order_release);
}

static uint64_t call_of(uint16_t stream, uint64_t last)
{
    return last << 16 | stream;
}

static uint16_t stream_of(uint64_t call)
{
    return (uint16_t)call;
}

static uint32_t size_of(const struct roll_order_list *list)
{
    return atomic_load_explicit(&list->calls, memory_order_relaxed);
}

static void resize(struct roll_order_list *list, uint32_t calls)
{
    atomic_store_explicit(&list->calls, calls, memory_order_relaxed);
}

/* The list holds this call of its stream, or a later one. */
static bool holds(const struct roll_order_list *list, uint64_t call)
{
    for (uint32_t i = 0; i < size_of(list); i++) {
        if (stream_of(list->call[i]) == stream_of(call) && list->call[i] >= call) {
            return true;
        }
    }
    return false;
}

/* `call` stands behind `other`, by what it has told itself, and what those calls have told. */
static bool is_behind(uint64_t call, uint64_t other, unsigned *looks)
{
    const struct roll_order *o = &roll_orders[stream_of(call)];
    uint64_t from = atomic_load_explicit(&o->told_for, memory_order_acquire);
    if (stream_of(call) == stream_of(other)) {
        return call > other;
    }
    if (from == 0 || call >> 16 < from || *looks == 0) {
        return false;
    }
    --*looks;
    if (holds(&o->told, other)) {
        return true;
    }
    for (uint32_t i = 0; i < size_of(&o->told); i++) {
        if (o->told.call[i] > other >> 16 << 16 && is_behind(o->told.call[i], other, looks)) {
            return true;
        }
    }
    return false;
}

static bool is_implied(const struct roll_order_list *list, uint64_t call)
{
    unsigned looks = LOOKS;
    for (uint32_t i = 0; i < size_of(list); i++) {
        if (list->call[i] != call && is_behind(list->call[i], call, &looks)) {
            return true;
        }
    }
    return false;
}

/* Adds a call, unless the list says as much already. True: the list says more than before. */
static bool add(struct roll_order_list *list, uint64_t call)
{
    if (holds(list, call) || is_implied(list, call)) {
        return false;
    }
    uint32_t kept = 0;
    unsigned looks = LOOKS;
    for (uint32_t i = 0; i < size_of(list); i++) {
        if (!is_behind(call, list->call[i], &looks)) {
            list->call[kept++] = list->call[i];
        }
    }
    /* In the order of tickets; where the list is full the oldest call goes. */
    uint32_t at = kept;
    while (at > 0 && list->call[at - 1] > call) {
        at--;
    }
    if (kept == ROLL_BEHIND_MAX) {
        if (at == 0) {
            resize(list, kept);
            return false;
        }
        at--;
        for (uint32_t i = 0; i < at; i++) {
            list->call[i] = list->call[i + 1];
        }
    } else {
        for (uint32_t i = kept++; i > at; i--) {
            list->call[i] = list->call[i - 1];
        }
    }
    list->call[at] = call;
    resize(list, kept);
    return true;
}

static unsigned place_of(cudaEvent_t event)
{
    return (unsigned)(((uint64_t)(uintptr_t)event * UINT64_C(0x9e3779b97f4a7c15)) >> 44) & (EVENTS - 1);
}

static bool is_known(unsigned at, cudaEvent_t event)
{
    return size_of(&events[at].list) != 0 &&
           atomic_load_explicit(&events[at].key, memory_order_relaxed) == (uint64_t)(uintptr_t)event;
}

static bool is_fresh(unsigned at, cudaEvent_t event)
{
    return is_known(at, event) && events[at].generation == atomic_load_explicit(&generation, memory_order_relaxed);
}

/* The calls of a stream's list that its own newest call does not tell. */
static void untold(const struct roll_order *o, uint16_t stream, struct roll_order_list *out)
{
    uint64_t last = atomic_load_explicit(&o->last, memory_order_relaxed);
    for (uint32_t i = 0; i < size_of(&o->now); i++) {
        if (stream_of(o->now.call[i]) != stream && !(last != 0 && holds(&o->told, o->now.call[i]))) {
            (void)add(out, o->now.call[i]);
        }
    }
}

void roll_order_recorded(cudaEvent_t event, uint16_t stream, bool captured)
{
    const struct roll_order *o = &roll_orders[stream];
    unsigned at = place_of(event);
    uint64_t last = atomic_load_explicit(&o->last, memory_order_relaxed);
    if (stream == 0 || captured || (last == 0 && size_of(&o->now) == 0)) {
        if (is_known(at, event)) {
            resize(&events[at].list, 0);
        }
        return;
    }
    if (!take_lock()) {
        atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
        return;
    }
    struct roll_order_list *list = &events[at].list;
    resize(list, 0);
    atomic_store_explicit(&events[at].key, (uint64_t)(uintptr_t)event, memory_order_relaxed);
    events[at].generation = atomic_load_explicit(&generation, memory_order_relaxed);
    if (last != 0) {
        list->call[0] = call_of(stream, last);
        resize(list, 1);
    }
    if (last == 0 || roll_order_pending(stream)) {
        untold(o, stream, list);
    }
    give_lock();
}

bool roll_order_has(cudaEvent_t event)
{
    return is_known(place_of(event), event);
}

void roll_order_waits(uint16_t stream, cudaEvent_t event)
{
    struct roll_order *o = &roll_orders[stream];
    unsigned at = place_of(event);
    if (stream == 0 || !is_known(at, event) || !take_lock()) {
        return;
    }
    bool more = false;
    if (is_fresh(at, event)) {
        for (uint32_t i = 0; i < size_of(&events[at].list); i++) {
            uint64_t call = events[at].list.call[i];
            bool told = atomic_load_explicit(&o->last, memory_order_relaxed) != 0 &&
                        (holds(&o->told, call) || is_implied(&o->told, call));
            more = (stream_of(call) != stream && !told && add(&o->now, call)) || more;
        }
    }
    if (more) {
        atomic_store_explicit(&o->pending, 1, memory_order_relaxed);
    }
    give_lock();
}

static unsigned give(const struct roll_order_list *list, uint64_t *out)
{
    for (uint32_t i = 0; i < size_of(list); i++) {
        out[i] = list->call[i] >> 16;
    }
    return size_of(list);
}

unsigned roll_order_take(uint16_t stream, uint64_t *out)
{
    struct roll_order *o = &roll_orders[stream];
    struct roll_order_list list = {.calls = 0};
    if (stream == 0 || !take_lock()) {
        return 0; /* it stays pending */
    }
    untold(o, stream, &list);
    atomic_store_explicit(&o->told_for, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < size_of(&o->now); i++) {
        o->told.call[i] = o->now.call[i];
    }
    resize(&o->told, size_of(&o->now));
    atomic_store_explicit(&o->pending, 0, memory_order_relaxed);
    give_lock();
    return give(&list, out);
}

void roll_order_untold(uint16_t stream)
{
    struct roll_order *o = &roll_orders[stream];
    if (stream != 0 && size_of(&o->told) != 0 && take_lock()) {
        resize(&o->told, 0);
        atomic_store_explicit(&o->told_for, 0, memory_order_relaxed);
        atomic_store_explicit(&o->pending, size_of(&o->now) != 0, memory_order_relaxed);
        give_lock();
    }
}

unsigned roll_order_of_stream(uint16_t stream, uint64_t *out)
{
    const struct roll_order *o = &roll_orders[stream];
    struct roll_order_list list = {.calls = 0};
    bool any = size_of(&o->now) != 0 &&
               (atomic_load_explicit(&o->last, memory_order_relaxed) == 0 || roll_order_pending(stream));
    if (stream != 0 && any && take_lock()) {
        untold(o, stream, &list);
        give_lock();
    }
    return give(&list, out);
}

unsigned roll_order_of_event(cudaEvent_t event, uint64_t *out)
{
    unsigned at = place_of(event), calls = 0;
    if (is_known(at, event) && take_lock()) {
        calls = is_fresh(at, event) ? give(&events[at].list, out) : 0;
        give_lock();
    }
    return calls;
}

void roll_order_forget_event(cudaEvent_t event)
{
    unsigned at = place_of(event);
    if (is_known(at, event)) {
        resize(&events[at].list, 0);
    }
}

void roll_order_forget_stream(uint16_t stream)
{
    struct roll_order *o = &roll_orders[stream];
    bool any = size_of(&o->now) != 0 || atomic_load_explicit(&o->last, memory_order_relaxed) != 0;
    if (stream == 0 || !any) {
        return;
    }
    bool locked = take_lock(); /* without it, too: what is emptied says less */
    atomic_store_explicit(&o->last, 0, memory_order_relaxed);
    resize(&o->now, 0);
    resize(&o->told, 0);
    atomic_store_explicit(&o->told_for, 0, memory_order_relaxed);
    atomic_store_explicit(&o->pending, 0, memory_order_relaxed);
    if (locked) {
        give_lock();
    }
}
