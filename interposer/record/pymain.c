/*
 * pymain.c: reads the main thread's frames; see pymain.h.
 *
 * The stand of the last call is tried first: a backward pass makes many calls while the main thread stands in one
 * place, and then one system call is enough. Whoever finds that stand in use by another thread, or outdated, follows
 * the chain frame by frame.
 */
#include "interposer/record/pymain.h"

#include "interposer/record/clock.h"
#include "trace/python_layout.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define THREADS    65536u
#define SPAN_BYTES 4096u     /* frames that lie together are read together */
#define MOVES_NS   10000000u /* a main thread that moves is looked at again after this time: a vain look is dear */
#define CODE_BYTES 96u       /* most bytes of code_part */
#define FROM_PARTS (2 + 2 * ROLL_PYSTACK_DEPTH)
#define TO_PARTS   (2 + 3 * ROLL_PYSTACK_DEPTH)

static uintptr_t state; /* of the main thread. Set once, under roll_lock, before anything else here is used */
static struct roll_pymain last;
static atomic_flag last_in_use = ATOMIC_FLAG_INIT;
static _Atomic uint64_t again_ns; /* not read again before */

/* The main thread's state: by the kernel's number where the version keeps that, else the oldest, which is the last of
 * the list. */
static uintptr_t find_state(void)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    uintptr_t at = 0, oldest = 0;
    (void)roll_pystack_peek(roll_pystack.main + l->interp_threads, &at, sizeof(at));
    for (uint32_t n = 0; at != 0 && n < THREADS; n++) {
        uint64_t tid = 0;
        if (l->thread_tid != ROLL_PY_NONE && roll_pystack_peek(at + l->thread_tid, &tid, sizeof(tid)) &&
            tid == (uint64_t)getpid()) {
            return at;
        }
        oldest = at;
        if (!roll_pystack_peek(at + l->thread_next, &at, sizeof(at))) {
            return 0;
        }
    }
    return l->thread_tid == ROLL_PY_NONE ? oldest : 0;
}

/* The part of a code object that tells it from another one at the same address. */
static void code_part(uintptr_t code, uintptr_t *at, size_t *bytes)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    uint32_t low = l->code_file < l->code_lines ? l->code_file : l->code_lines;
    uint32_t high = l->code_file < l->code_lines ? l->code_lines : l->code_file;
    low = low < l->code_firstline ? low : l->code_firstline;
    high = high > l->code_firstline ? high : l->code_firstline;
    *at = code + low;
    *bytes = high - low + sizeof(uint64_t);
}

bool roll_pymain_is_other(void)
{
    if (atomic_load_explicit(&roll_pystack_ready, memory_order_acquire) == 0 || syscall(SYS_gettid) == getpid() ||
        !roll_pystack_runs()) {
        return false;
    }
    int saved = errno;
    uintptr_t at;
    size_t bytes;
    code_part(0, &at, &bytes);
    state = state != 0 || bytes > CODE_BYTES ? state : find_state();
    errno = saved;
    return state != 0;
}

/* Fills in a frame from bytes of it (ROLL_PY_FRAME_BYTES), and gives the frame before it. */
static uintptr_t take_frame(struct roll_pymain_frame *f, uintptr_t frame, const uint8_t *bytes)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    bool pointers = l->at == ROLL_PY_AT_POINTER;
    uint64_t code, previous, at = 0;
    memcpy(&code, bytes + l->frame_code, sizeof(code));
    memcpy(&previous, bytes + l->frame_previous, sizeof(previous));
    memcpy(&at, bytes + l->frame_at, pointers ? sizeof(uint64_t) : sizeof(uint32_t));
    *f = (struct roll_pymain_frame){.frame = frame, .at = {.code = (uintptr_t)(code & ~UINT64_C(7)), .at = at}};
    f->shim = pointers && bytes[l->frame_owner] >= l->owner_shim;
    return (uintptr_t)previous;
}

/* The same for what its code object holds, from the bytes of code_part. */
static void take_code(struct roll_pymain_frame *f, const uint8_t *bytes)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    uintptr_t from;
    size_t n;
    uint32_t first;
    code_part(0, &from, &n);
    memcpy(&f->file, bytes + l->code_file - from, sizeof(f->file));
    memcpy(&f->lines, bytes + l->code_lines - from, sizeof(f->lines));
    memcpy(&first, bytes + l->code_firstline - from, sizeof(first));
    f->first = first;
}

/* Follows the chain, frame by frame. False: there is none, or it leads nowhere. */
static bool follow(struct roll_pymain *out)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    uint8_t bytes[ROLL_PY_FRAME_BYTES], code[CODE_BYTES];
    uintptr_t at, type = 0;
    size_t n;
    *out = (struct roll_pymain){.frames = 0};
    if (!roll_pystack_peek(state + l->thread_frame, &out->head, sizeof(out->head)) || out->head == 0) {
        return false;
    }
    out->inner = out->head;
    if (l->cframe_frame != ROLL_PY_NONE &&
        !roll_pystack_peek(out->head + l->cframe_frame, &out->inner, sizeof(out->inner))) {
        return false;
    }
    for (uintptr_t frame = out->inner; frame != 0 && out->frames < ROLL_PYSTACK_DEPTH;) {
        struct roll_pymain_frame *f = &out->of[out->frames++];
        if (!roll_pystack_peek(frame, bytes, sizeof(bytes))) {
            return false;
        }
        frame = take_frame(f, frame, bytes);
        if (f->shim) {
            continue;
        }
        code_part(f->at.code, &at, &n);
        if (!roll_pystack_peek(f->at.code + l->object_type, &type, sizeof(type)) || type != roll_pystack.code_type ||
            !roll_pystack_peek(at, code, n)) {
            return false;
        }
        take_code(f, code);
    }
    return out->frames > 0;
}

/* What one system call reads. Kept small: it lies on the stack of a thread of the job. */
struct request {
    struct iovec to[TO_PARTS], from[FROM_PARTS];
    unsigned to_parts, from_parts;
    size_t bytes, used;
    uint8_t room[ROLL_PYSTACK_DEPTH * (ROLL_PY_FRAME_BYTES + CODE_BYTES) + 2 * sizeof(uint64_t)];
};

/* Adds room for the next bytes that are read. */
static uint8_t *put(struct request *r, size_t bytes)
{
    uint8_t *to = r->room + r->used;
    r->to[r->to_parts++] = (struct iovec){to, bytes};
    r->used += bytes;
    r->bytes += bytes;
    return to;
}

/* Adds a part to what is read; where it comes to lie. There is room for all parts of a stand. */
static uint8_t *want(struct request *r, uintptr_t at, size_t bytes)
{
    r->from[r->from_parts++] = (struct iovec){(void *)at, bytes};
    return put(r, bytes);
}

/*
 * Wants the frames of a stand; frame[i] becomes where frame i comes to lie. A frame mostly lies right behind its
 * caller's, so one part of memory holds several; what is between them goes where nobody looks. A part costs as much as
 * thousands of bytes.
 */
static void want_frames(struct request *r, const struct roll_pymain *stand, const uint8_t *frame[])
{
    static uint8_t nowhere[SPAN_BYTES];
    for (uint32_t i = 0; i < stand->frames;) {
        uint32_t end = i + 1;
        uintptr_t top = stand->of[i].frame + ROLL_PY_FRAME_BYTES;
        while (end < stand->frames && stand->of[end].frame + ROLL_PY_FRAME_BYTES <= stand->of[end - 1].frame &&
               top - stand->of[end].frame <= SPAN_BYTES) {
            end++;
        }
        uintptr_t low = stand->of[end - 1].frame, at = low;
        r->from[r->from_parts++] = (struct iovec){(void *)low, top - low};
        for (uint32_t k = end; k-- > i;) { /* upwards in memory */
            size_t between = stand->of[k].frame - at;
            if (between > 0) {
                r->to[r->to_parts++] = (struct iovec){nowhere, between};
                r->bytes += between;
            }
            frame[k] = put(r, ROLL_PY_FRAME_BYTES);
            at = stand->of[k].frame + ROLL_PY_FRAME_BYTES;
        }
        i = end;
    }
}

bool roll_pymain_stands(const struct roll_pymain *stand)
{
    const struct roll_py_layout *l = &roll_pystack.layout;
    const uint8_t *frame[ROLL_PYSTACK_DEPTH], *code[ROLL_PYSTACK_DEPTH];
    struct request r;
    uintptr_t at, head, inner;
    size_t n;
    r.to_parts = r.from_parts = 0;
    r.bytes = r.used = 0;
    const uint8_t *of_head = want(&r, state + l->thread_frame, sizeof(head));
    const uint8_t *of_inner =
        l->cframe_frame != ROLL_PY_NONE ? want(&r, stand->head + l->cframe_frame, sizeof(inner)) : of_head;
    want_frames(&r, stand, frame);
    for (uint32_t i = 0; i < stand->frames; i++) {
        code_part(stand->of[i].at.code, &at, &n);
        code[i] = stand->of[i].shim ? NULL : want(&r, at, n);
    }
    int saved = errno;
    ssize_t got = process_vm_readv(getpid(), r.to, r.to_parts, r.from, r.from_parts, 0);
    errno = saved;
    if (got != (ssize_t)r.bytes) {
        return false;
    }
    memcpy(&head, of_head, sizeof(head));
    memcpy(&inner, of_inner, sizeof(inner));
    bool same = head == stand->head && inner == stand->inner;
    for (uint32_t i = 0; same && i < stand->frames; i++) {
        const struct roll_pymain_frame *was = &stand->of[i];
        struct roll_pymain_frame is;
        uintptr_t previous = take_frame(&is, was->frame, frame[i]);
        if (!is.shim && code[i] != NULL) {
            take_code(&is, code[i]);
        }
        bool linked = i + 1 < stand->frames ? previous == stand->of[i + 1].frame
                                            : previous == 0 || stand->frames == ROLL_PYSTACK_DEPTH;
        same = linked && is.shim == was->shim &&
               (is.shim || (is.at.code == was->at.code && is.at.at == was->at.at && is.file == was->file &&
                            is.lines == was->lines && is.first == was->first));
    }
    return same && roll_pystack_runs();
}

static uint64_t number(const struct roll_pymain *stand)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t i = 0; i < stand->frames; i++) {
        const struct roll_pymain_frame *f = &stand->of[i];
        const uint64_t words[] = {f->at.code, f->at.at, f->file, f->lines, f->first};
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]) && !f->shim; k++) {
            h = (h ^ words[k]) * UINT64_C(0xbf58476d1ce4e5b9);
            h ^= h >> 31;
        }
    }
    return h + (h == 0);
}

/* Gives or takes the stand of the last call, unless another thread is at it. */
static bool exchange(struct roll_pymain *stand, bool take)
{
    if (atomic_flag_test_and_set_explicit(&last_in_use, memory_order_acquire)) {
        return false;
    }
    const struct roll_pymain *from = take ? &last : stand;
    struct roll_pymain *to = take ? stand : &last;
    memcpy(to, from, offsetof(struct roll_pymain, of) + from->frames * sizeof(from->of[0]));
    atomic_flag_clear_explicit(&last_in_use, memory_order_release);
    return to->frames > 0;
}

uint64_t roll_pymain_read(struct roll_pymain *out)
{
    int saved = errno;
    uint64_t now = roll_clock_monotonic();
    if (now < atomic_load_explicit(&again_ns, memory_order_relaxed)) {
        return 0;
    }
    bool stands = roll_pystack_runs() && exchange(out, true) && roll_pymain_stands(out);
    if (!stands && roll_pystack_runs()) {
        stands = follow(out) && roll_pymain_stands(out);
        if (stands) {
            (void)exchange(out, false);
        } else {
            atomic_store_explicit(&again_ns, now + MOVES_NS, memory_order_relaxed);
        }
    }
    errno = saved;
    return stands ? number(out) : 0;
}
