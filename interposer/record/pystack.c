/*
 * pystack.c: finds the interpreter of this process once, then follows frames; see pystack.h.
 *
 * How a thread comes to its own state: CPython to 3.13 keeps that in a key of pthread_getspecific, 3.14 in a
 * thread-local variable. Neither is exported. So when a thread with Python is first seen, its state is found in the
 * interpreter's list of threads, and then the key, or the word of the interpreter's thread-local block, that holds just
 * that state. Keeping the state's address per thread was rejected: states are freed and made anew while a thread lives
 * (PyGILState_Release), and nothing would tell.
 */
#include "interposer/record/pystack.h"

#include "interposer/bind/elfsym.h"
#include "interposer/record/clock.h"
#include "trace/err.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define KEYS        1024u /* PTHREAD_KEYS_MAX of glibc */
#define TLS_MAX     65536u
#define INTERPS     64u
#define THREADS     65536u
#define PROBED      200u /* frames that the first use judges */
#define RETRY_NS    10000000u
#define LINES_BYTES (1u << 20)
#define COPY_BYTES  (1u << 16) /* of a line table of another thread's code */
#define TEXT_BYTES  1024u      /* of a text, before it is UTF-8 */
#define CODE_BYTES  (1u << 24)
#define TAGS        ((uintptr_t)7) /* low bits of a pointer to an object, which are no part of the address */
#define MAIN_AFTER  8u             /* in the runtime, the first interpreter made stands behind the newest one */
#define KEY_FROM    512u           /* bytes of the runtime in which its key may be */
#define KEY_TO      4096u
#define KEY_SET     UINT64_C(1)
#define KEY_LAST    13u /* 3.14 has no key; another library's key may hold the state as well */

_Atomic uint32_t roll_pystack_ready;

struct roll_pystack roll_pystack;
#define py roll_pystack
static bool judged;       /* found, or never to be read. Under roll_lock */
static uint64_t retry_ns; /* not asked for again before. Under roll_lock */

typedef struct {
    unsigned long int module, offset;
} tls_index;
extern void *__tls_get_addr(tls_index *);
#pragma weak __tls_get_addr

/* plain loads */

static inline uintptr_t word_at(uintptr_t at)
{
    return *(const uintptr_t *)at;
}

static inline uint32_t half_at(uintptr_t at)
{
    return *(const uint32_t *)at;
}

/* False: Python has ended, or is about to and frees the states of threads that go on without its lock. */
static inline bool runs(void)
{
    return word_at(py.runtime + py.layout.interpreters + MAIN_AFTER) == py.main &&
           word_at(py.runtime + py.layout.finalizing) == 0;
}

bool roll_pystack_runs(void)
{
    return runs();
}

/*
 * The state of this thread. Between the look at the runtime and the reads that follow lie some nanoseconds in which
 * another thread may begin to end Python and let go of this state. The memory is then what the allocator has kept:
 * a fault would need the allocator to give it back to the kernel within that time. A read that cannot fault costs more
 * than the call that is recorded. What such a read gave is not used: the runtime is looked at once more behind it.
 */
static inline uintptr_t this_state(void)
{
    if (!runs()) {
        return 0;
    }
    if (py.specific != NULL) {
        /* A Python that began anew in this process may have another key, and the old one be somebody else's. */
        return word_at(py.key_at) == (KEY_SET | (uint64_t)py.key << 32) ? (uintptr_t)py.specific(py.key) : 0;
    }
    return word_at((uintptr_t)__tls_get_addr(&(tls_index){py.tls_module, py.tls_offset}));
}

static inline uintptr_t innermost(uintptr_t state)
{
    uintptr_t frame = state != 0 ? word_at(state + py.layout.thread_frame) : 0;
    return frame != 0 && py.layout.cframe_frame != ROLL_PY_NONE ? word_at(frame + py.layout.cframe_frame) : frame;
}

/* Whether a frame stands for C code that called into the interpreter. */
static inline bool is_shim(uintptr_t frame)
{
    return *(const uint8_t *)(frame + py.layout.frame_owner) >= py.layout.owner_shim;
}

static inline struct roll_pyframe frame_at(uintptr_t frame, bool pointers)
{
    uintptr_t at = frame + py.layout.frame_at;
    return (struct roll_pyframe){.code = word_at(frame + py.layout.frame_code) & ~TAGS,
                                 .at = pointers ? word_at(at) : half_at(at)};
}

uint32_t roll_pystack_read(struct roll_pyframe *out, uint32_t max)
{
    uint32_t n = 0;
    if (atomic_load_explicit(&roll_pystack_ready, memory_order_acquire) == 0) {
        return 0;
    }
    bool pointers = py.layout.at == ROLL_PY_AT_POINTER;
    uintptr_t frame = innermost(this_state());
    for (uint32_t hops = 0; frame != 0 && n < max && hops < ROLL_PYSTACK_DEPTH; hops++) {
        if (!pointers || !is_shim(frame)) {
            out[n++] = frame_at(frame, pointers);
        }
        frame = word_at(frame + py.layout.frame_previous);
    }
    return runs() ? n : 0;
}

/* The two halves of a product: one multiplication mixes two words well. */
static inline uint64_t fold(uint64_t a, uint64_t b)
{
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/*
 * Mixes a frame into a hash. Where it stands is its code object and a place in that; the file, the first line, and the
 * address, size and beginning of the line table tell code objects apart that had one address one after the other.
 */
static inline uint64_t mix_frame(uint64_t hash, struct roll_pyframe f, bool pointers)
{
    uintptr_t lines = word_at(f.code + py.layout.code_lines);
    uint64_t size = word_at(lines + py.layout.bytes_size), begin = word_at(lines + py.layout.bytes_data);
    if (!pointers) { /* tables of 3.9 and 3.10 say a far line by many equal pairs at their beginning */
        uint64_t tail;
        memcpy(&tail, (const void *)(lines + py.layout.bytes_data + size - sizeof(tail)), sizeof(tail));
        begin ^= tail * UINT64_C(0xff51afd7ed558ccd);
    }
    uint64_t file = word_at(f.code + py.layout.code_file), first = half_at(f.code + py.layout.code_firstline);
    return fold(f.code ^ lines << 12 ^ size << 48 ^ UINT64_C(0x9e3779b97f4a7c15),
                ((f.at << 8) + begin + (first << 40) + (file << 20)) ^ hash);
}

uint64_t roll_pystack_identity(const struct roll_pyframe *frame)
{
    return mix_frame(UINT64_C(0xff51afd7ed558ccd), *frame, py.layout.at == ROLL_PY_AT_POINTER);
}

/* Compiled once for each form of frames: 3.9 and 3.10 have no shims, and count where later versions point. */
static inline __attribute__((always_inline)) uint64_t mix_chain(uint64_t hash, uintptr_t frame, bool pointers)
{
    for (uint32_t hops = 0; frame != 0 && hops < ROLL_PYSTACK_DEPTH; hops++) {
        if (!pointers || !is_shim(frame)) {
            hash = mix_frame(hash, frame_at(frame, pointers), pointers);
        }
        frame = word_at(frame + py.layout.frame_previous);
    }
    return hash;
}

uint64_t roll_pystack_mix_frames(uint64_t hash)
{
    uintptr_t frame = innermost(this_state());
    uint64_t mixed = py.layout.at == ROLL_PY_AT_POINTER ? mix_chain(hash, frame, true) : mix_chain(hash, frame, false);
    return runs() ? mixed : hash;
}

/* what a frame stands for */

bool roll_pystack_load(uintptr_t at, void *out, size_t bytes)
{
    memcpy(out, (const void *)at, bytes);
    return true;
}

static uint64_t get_word(roll_pystack_get *get, uintptr_t at)
{
    uint64_t word = 0;
    return get(at, &word, sizeof(word)) ? word : 0;
}

static uint32_t get_half(roll_pystack_get *get, uintptr_t at)
{
    uint32_t half = 0;
    return get(at, &half, sizeof(half)) ? half : 0;
}

/* A str as UTF-8, terminated; of one that is too long, the end or the beginning. */
static bool put_text(roll_pystack_get *get, uintptr_t object, char *out, size_t bytes, bool end)
{
    const struct roll_py_layout *l = &py.layout;
    uint8_t data[TEXT_BYTES];
    if (object == 0 || get_word(get, object + l->object_type) != py.text_type) {
        return false;
    }
    uintptr_t length = get_word(get, object + l->text_length);
    uint32_t state = get_half(get, object + l->text_state);
    unsigned kind = state >> l->text_kind_bit & 7;
    bool compact = state >> (l->text_kind_bit + 3) & 1, ascii = state >> (l->text_kind_bit + 4) & 1;
    if (!compact || (kind != 1 && kind != 2 && kind != 4)) {
        return false;
    }
    size_t room = (bytes - 1) / (ascii ? 1 : 4), chars = length < room ? (size_t)length : room, used = 0;
    uintptr_t from = object + (ascii ? l->text_ascii : l->text_wide) + (end ? (length - chars) * kind : 0);
    if (chars * kind > sizeof(data) || (chars > 0 && !get(from, data, chars * kind))) {
        return false;
    }
    for (size_t i = 0; i < chars; i++) {
        uint32_t c = 0;
        memcpy(&c, data + i * kind, kind); /* little-endian */
        used += roll_put_utf8(out + used, c);
    }
    out[used] = '\0';
    return true;
}

/* Where in its code, in bytes, a frame stands; UINT32_MAX: before the first instruction. */
static uint32_t byte_of(const struct roll_pyframe *frame)
{
    uint64_t byte = frame->at;
    if (py.layout.at == ROLL_PY_AT_UNIT) {
        byte = (uint64_t)(int64_t)(int32_t)frame->at * 2;
    } else if (py.layout.at == ROLL_PY_AT_BYTE) {
        byte = (uint64_t)(int64_t)(int32_t)frame->at;
    } else {
        byte = frame->at - (frame->code + py.layout.code_bytes);
    }
    return byte < CODE_BYTES ? (uint32_t)byte : UINT32_MAX;
}

/* The line of a byte of the code, by a line table at this address; 0: none. A table that another thread may let go of
 * is copied, and one that is too large for that says nothing. */
static uint32_t line_at(roll_pystack_get *get, uintptr_t lines, uint32_t first, uint32_t byte)
{
    static uint8_t copied[COPY_BYTES]; /* under roll_lock */
    uintptr_t bytes = 0, data = lines + py.layout.bytes_data;
    if (!get(lines + py.layout.bytes_size, &bytes, sizeof(bytes))) {
        return 0;
    }
    if (get == roll_pystack_load) {
        return bytes <= LINES_BYTES ? roll_py_line(py.layout.lines, (const uint8_t *)data, (size_t)bytes, first, byte)
                                    : 0;
    }
    return bytes <= sizeof(copied) && (bytes == 0 || get(data, copied, (size_t)bytes))
               ? roll_py_line(py.layout.lines, copied, (size_t)bytes, first, byte)
               : 0;
}

bool roll_pystack_describe(const struct roll_pyframe *frame, roll_pystack_get *get, char *file, size_t file_bytes,
                           char *function, size_t function_bytes, uint32_t *line)
{
    const struct roll_py_layout *l = &py.layout;
    uint32_t name = l->code_qualname != ROLL_PY_NONE ? l->code_qualname : l->code_name;
    uint32_t first = get_half(get, frame->code + l->code_firstline), byte = byte_of(frame);
    uintptr_t lines = get_word(get, frame->code + l->code_lines);
    *line = byte != UINT32_MAX && lines != 0 ? line_at(get, lines, first, byte) : first;
    return put_text(get, get_word(get, frame->code + l->code_file), file, file_bytes, true) &&
           put_text(get, get_word(get, frame->code + name), function, function_bytes, false);
}

/* finding the interpreter: every read may lead nowhere */

bool roll_pystack_peek(uintptr_t at, void *out, size_t bytes)
{
    struct iovec to = {out, bytes}, from = {(void *)at, bytes};
    return at != 0 && process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)bytes;
}

static uintptr_t peek_word(uintptr_t at)
{
    uintptr_t word = 0;
    return roll_pystack_peek(at, &word, sizeof(word)) ? word : 0;
}

/*
 * What the interpreter exports. The tables of loaded objects are read in place: dlsym takes the loader's lock, which a
 * thread holds while it runs the constructors of a library, and such a constructor may wait for roll_lock.
 */
enum { RUNTIME, CODE_TYPE, TEXT_TYPE, VERSION_WORD, SEND, GET_FRAME, NAMES };
static const char *const names[NAMES] = {"_PyRuntime", "PyCode_Type", "PyUnicode_Type",
                                         "Py_Version", "PyIter_Send", "PyThreadState_GetFrame"};
static uintptr_t named[NAMES]; /* 0: not exported. Under roll_lock */

/* The names of one object. The first object that has a name gives it, as in a lookup by the loader. */
static int look_up(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct link_map map = {.l_addr = info->dlpi_addr};
    (void)size, (void)arg;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            map.l_ld = (ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        }
    }
    for (unsigned i = 0; map.l_ld != NULL && i < NAMES; i++) {
        named[i] = named[i] != 0 ? named[i] : (uintptr_t)roll_elf_symbol(&map, names[i]);
    }
    return 0;
}

/* Versions that do not say their layout: the names that they export tell them apart. */
static unsigned minor_by_names(void)
{
    uint32_t hex = 0;
    if (named[VERSION_WORD] != 0 && roll_pystack_peek(named[VERSION_WORD], &hex, sizeof(hex))) {
        return hex >> 16 & 0xff;
    }
    return named[SEND] != 0 ? 10 : named[GET_FRAME] != 0 ? 9 : 0;
}

static bool choose_layout(void)
{
    uint64_t words[ROLL_PY_OFFSET_WORDS];
    if (!roll_pystack_peek(py.runtime, words, sizeof(words))) {
        return false;
    }
    int err = roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &py.layout);
    if (err == ROLL_E_MAGIC) {
        const struct roll_py_layout *known = roll_py_layout_known(minor_by_names());
        if (known != NULL) {
            py.layout = *known;
            err = 0;
        }
    }
    /* Without the interpreter's lock another thread may change what a free-threaded build shows of this one. */
    return err == 0 && !py.layout.free_threaded;
}

/* This thread's state in the interpreters' lists, which other threads may change meanwhile; 0: none. */
static uintptr_t listed_state(void)
{
    const struct roll_py_layout *l = &py.layout;
    uintptr_t self = (uintptr_t)pthread_self(), interp = peek_word(py.runtime + l->interpreters);
    for (unsigned i = 0; interp != 0 && i < INTERPS; i++) {
        uintptr_t state = peek_word(interp + l->interp_threads);
        for (unsigned n = 0; state != 0 && n < THREADS; n++) {
            if (peek_word(state + l->thread_ident) == self) {
                return state;
            }
            state = peek_word(state + l->thread_next);
        }
        interp = peek_word(interp + l->interp_next);
    }
    return 0;
}

struct tls_search {
    uintptr_t runtime, state;
    unsigned found;
    size_t module, offset;
};

static int search_tls(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct tls_search *s = arg;
    const ElfW(Phdr) *tls = NULL;
    bool holds = false;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + ph->p_vaddr;
        holds = holds || (ph->p_type == PT_LOAD && s->runtime - start < ph->p_memsz);
        tls = ph->p_type == PT_TLS ? ph : tls;
    }
    if (!holds || tls == NULL || size < sizeof(*info) || info->dlpi_tls_data == NULL) {
        return holds;
    }
    for (size_t at = 0; at + sizeof(uintptr_t) <= tls->p_memsz && at < TLS_MAX; at += sizeof(uintptr_t)) {
        if (word_at((uintptr_t)info->dlpi_tls_data + at) == s->state) {
            s->found++;
            s->offset = at;
        }
    }
    s->module = info->dlpi_tls_modid;
    return 1;
}

/* Whether a key is the runtime's own: other libraries (pybind11) keep states in keys as well. */
static bool find_key(unsigned key)
{
    uint64_t want = KEY_SET | (uint64_t)key << 32, word;
    if (py.layout.runtime_key != ROLL_PY_NONE &&
        roll_pystack_peek(py.runtime + py.layout.runtime_key, &word, sizeof(word)) && word == want) {
        py.key_at = py.runtime + py.layout.runtime_key;
        return true;
    }
    for (uint32_t at = KEY_FROM; at < KEY_TO && roll_pystack_peek(py.runtime + at, &word, sizeof(word));
         at += sizeof(word)) {
        if (word == want) {
            py.key_at = py.runtime + at;
            return true;
        }
    }
    return false;
}

/* Finds where a thread keeps its state, by the state of this one. */
static bool find_place(uintptr_t state)
{
    py.specific = py.layout.minor <= KEY_LAST ? roll_specific() : NULL;
    for (py.key = 0; py.specific != NULL && py.key < KEYS; py.key++) {
        if ((uintptr_t)py.specific(py.key) == state && find_key(py.key)) {
            return true;
        }
    }
    /* A second word holds the state of a thread that has the interpreter's lock: then a later call will show which. */
    struct tls_search search = {.runtime = py.runtime, .state = state};
    dl_iterate_phdr(search_tls, &search);
    py.specific = NULL;
    py.tls_module = search.module;
    py.tls_offset = search.offset;
    return search.found == 1 && &__tls_get_addr != NULL;
}

/* Whether a frame's code is code, with a file, a name and a place in it. */
static bool frame_is_sound(uintptr_t frame)
{
    const struct roll_py_layout *l = &py.layout;
    uint8_t data[ROLL_PY_FRAME_BYTES], byte;
    uintptr_t code, at, type;
    if (!roll_pystack_peek(frame, data, sizeof(data))) {
        return false;
    }
    memcpy(&code, data + l->frame_code, sizeof(code));
    memcpy(&at, data + l->frame_at, sizeof(at));
    code &= ~TAGS;
    type = peek_word(code + l->object_type);
    uintptr_t file = peek_word(code + l->code_file), name = peek_word(code + l->code_name);
    uintptr_t lines = peek_word(code + l->code_lines), bytes = peek_word(lines + l->bytes_size);
    bool within = l->at != ROLL_PY_AT_POINTER || at - (code + l->code_bytes) + 2 * sizeof(uint64_t) < CODE_BYTES;
    return type == py.code_type && within && peek_word(file + l->object_type) == py.text_type &&
           peek_word(name + l->object_type) == py.text_type && bytes > 0 && bytes < LINES_BYTES &&
           roll_pystack_peek(lines + l->bytes_data + bytes - 1, &byte, 1);
}

/* Follows the chain of this thread: every frame must be sound. */
static bool chain_is_sound(uintptr_t state)
{
    const struct roll_py_layout *l = &py.layout;
    uintptr_t frame = peek_word(state + l->thread_frame);
    unsigned seen = 0;
    if (frame != 0 && l->cframe_frame != ROLL_PY_NONE) {
        frame = peek_word(frame + l->cframe_frame);
    }
    for (unsigned hops = 0; frame != 0 && hops < PROBED; hops++) {
        uint8_t owner = 0;
        if (l->frame_owner != ROLL_PY_NONE && !roll_pystack_peek(frame + l->frame_owner, &owner, 1)) {
            return false;
        }
        bool shim = l->frame_owner != ROLL_PY_NONE && owner >= l->owner_shim;
        if (!shim && !frame_is_sound(frame)) {
            return false;
        }
        seen += !shim;
        if (!roll_pystack_peek(frame + l->frame_previous, &frame, sizeof(frame))) {
            return false;
        }
    }
    return seen > 0;
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *arg)
{
    *(unsigned long long *)arg = size >= sizeof(*info) ? info->dlpi_adds : 0;
    return 1;
}

/* Whether there is an interpreter. A program may load it late; the objects are searched only when some were loaded
 * since. */
static bool find_runtime(void)
{
    static unsigned long long loaded;
    unsigned long long now = 0;
    dl_iterate_phdr(count_loaded, &now);
    if (named[RUNTIME] == 0 && (now == 0 || now != loaded)) {
        loaded = now;
        dl_iterate_phdr(look_up, NULL);
    }
    py.runtime = named[RUNTIME];
    return py.runtime != 0;
}

static void find(void)
{
    if (!find_runtime()) {
        return;
    }
    py.code_type = named[CODE_TYPE];
    py.text_type = named[TEXT_TYPE];
    if (!choose_layout() || py.code_type == 0 || py.text_type == 0) {
        judged = true;
        return;
    }
    py.main = peek_word(py.runtime + py.layout.interpreters + MAIN_AFTER);
    bool ends = peek_word(py.runtime + py.layout.finalizing) != 0;
    uintptr_t state = py.main != 0 && !ends ? listed_state() : 0;
    if (state == 0 || peek_word(state + py.layout.thread_frame) == 0) {
        return; /* a thread that has run no Python yet */
    }
    if (!chain_is_sound(state)) {
        judged = true;
        return;
    }
    if (find_place(state)) {
        judged = true;
        atomic_store_explicit(&roll_pystack_ready, 1, memory_order_release);
    }
}

void roll_pystack_find(void)
{
    int saved = errno;
    uint64_t now = judged ? 0 : roll_clock_monotonic();
    if (!judged && now >= retry_ns) {
        find();
        retry_ns = now + RETRY_NS;
    }
    errno = saved;
}
