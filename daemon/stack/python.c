/*
 * python.c: follows CPython's own lists in another process's memory, which may change meanwhile.
 *
 * Every pointer is checked by the object that it leads to: code objects by their type, texts by their size. A chain of
 * frames is read again when its head has moved meanwhile. Running code in the process (PEP 768) was rejected: it acts
 * when the interpreter loop comes by, and a thread that hangs in C never comes by.
 */
#include "daemon/stack/python.h"

#include "daemon/base/array.h"
#include "daemon/stack/symbol_find.h"
#include "trace/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES       4
#define INTERPS     64u
#define NAME_CHARS  256u
#define FILE_CHARS  1024u
#define LINES_BYTES (64u * 1024u)
#define CODES       512u /* code objects remembered; a power of two */
#define TAGS                                                                                                           \
    UINT64_C(7) /* low bits of a pointer to an object, which are no part of the address (3.14 marks references there)  \
                 */
#define GLIBC_TID                                                                                                      \
    720u /* offset in glibc's struct pthread of the kernel's thread id, which 3.9 and 3.10 do not keep themselves */

struct code {
    uint64_t address; /* 0 = free */
    const char *function, *file;
    unsigned first_line;
    uint64_t bytes;
    uint8_t *lines; /* owned */
    size_t lines_bytes;
};

struct reader {
    struct roll_target *target;
    struct roll_text_pool *pool;
    struct roll_py_layout layout;
    uint64_t runtime, code_type;
    struct code code[CODES];
};

/* small reads */

static bool read_u64(const struct reader *r, uint64_t at, uint64_t *out)
{
    return roll_target_read(r->target, at, out, sizeof(*out));
}

static bool read_u32(const struct reader *r, uint64_t at, uint32_t *out)
{
    return roll_target_read(r->target, at, out, sizeof(*out));
}

/* A str object as UTF-8, cut to max characters; the end is kept, because the end of a path matters. NULL when the
 * object is no str. */
static const char *read_text(const struct reader *r, uint64_t object, size_t max)
{
    const struct roll_py_layout *l = &r->layout;
    uint64_t length;
    uint32_t state;
    if (object == 0 || !read_u64(r, object + l->text_length, &length) || !read_u32(r, object + l->text_state, &state)) {
        return NULL;
    }
    unsigned kind = state >> l->text_kind_bit & 7;
    bool compact = state >> (l->text_kind_bit + 3) & 1, ascii = state >> (l->text_kind_bit + 4) & 1;
    if (!compact || (kind != 1 && kind != 2 && kind != 4) || length > (1u << 20)) {
        return NULL;
    }
    uint64_t skip = length > max ? length - max : 0;
    size_t chars = (size_t)(length - skip);
    uint8_t raw[4 * FILE_CHARS];
    char text[4 * FILE_CHARS + 4];
    size_t used = 0;
    if (chars > FILE_CHARS ||
        !roll_target_read(r->target, object + (ascii ? l->text_ascii : l->text_wide) + skip * kind, raw,
                          chars * kind)) {
        return NULL;
    }
    for (size_t i = 0; i < chars; i++) {
        uint32_t c = 0;
        memcpy(&c, raw + i * kind, kind); /* little-endian */
        used += roll_put_utf8(text + used, c);
    }
    text[used] = '\0';
    return roll_text_keep(r->pool, text);
}

/* code objects */

static void read_lines(const struct reader *r, uint64_t object, struct code *code)
{
    uint64_t size;
    if (object != 0 && read_u64(r, object + r->layout.bytes_size, &size) && size > 0 && size <= LINES_BYTES) {
        code->lines = malloc((size_t)size);
        if (code->lines && roll_target_read(r->target, object + r->layout.bytes_data, code->lines, (size_t)size)) {
            code->lines_bytes = (size_t)size;
        }
    }
}

/* The code object at an address, remembered; NULL when there is none. */
static const struct code *code_at(struct reader *r, uint64_t address)
{
    const struct roll_py_layout *l = &r->layout;
    struct code *slot = &r->code[(address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 40 & (CODES - 1)];
    if (slot->address == address) {
        return slot;
    }
    uint64_t type, file, name, lines;
    uint32_t first;
    if (!read_u64(r, address + l->object_type, &type) || (r->code_type != 0 && type != r->code_type) ||
        !read_u64(r, address + l->code_file, &file) ||
        !read_u64(r, address + (l->code_qualname != ROLL_PY_NONE ? l->code_qualname : l->code_name), &name) ||
        !read_u64(r, address + l->code_lines, &lines) || !read_u32(r, address + l->code_firstline, &first)) {
        return NULL;
    }
    struct code code = {.address = address, .first_line = first};
    code.bytes = l->code_bytes != ROLL_PY_NONE ? address + l->code_bytes : 0;
    code.function = read_text(r, name, NAME_CHARS);
    code.file = read_text(r, file, FILE_CHARS);
    if (!code.function || !code.file) {
        return NULL;
    }
    read_lines(r, lines, &code);
    free(slot->lines);
    *slot = code;
    return slot;
}

static unsigned line_of(const struct reader *r, const struct code *code, uint64_t at)
{
    const struct roll_py_layout *l = &r->layout;
    uint64_t byte = at;
    if (l->at == ROLL_PY_AT_UNIT) {
        byte = at * 2;
    } else if (l->at == ROLL_PY_AT_POINTER) {
        byte = at - code->bytes;
    }
    if (byte > UINT32_MAX / 2) { /* before the first instruction */
        return code->first_line;
    }
    unsigned line = roll_py_line(l->lines, code->lines, code->lines_bytes, code->first_line, (unsigned)byte);
    return line;
}

/* frames */

struct raw_frame {
    uint64_t code, at;
    bool entry;
};

struct chain {
    struct raw_frame frame[ROLL_PY_CHAIN_MAX];
    size_t used;
    bool cut;
};

/* The thread's innermost frame. */
static bool read_head(const struct reader *r, uint64_t thread, uint64_t *frame)
{
    uint64_t cframe;
    if (r->layout.cframe_frame == ROLL_PY_NONE) {
        return read_u64(r, thread + r->layout.thread_frame, frame);
    }
    *frame = 0;
    return read_u64(r, thread + r->layout.thread_frame, &cframe) &&
           (cframe == 0 || read_u64(r, cframe + r->layout.cframe_frame, frame));
}

static bool read_frame(const struct reader *r, uint64_t at, struct raw_frame *out, uint64_t *previous, bool *shim)
{
    const struct roll_py_layout *l = &r->layout;
    uint8_t data[ROLL_PY_FRAME_BYTES];
    uint64_t word;
    uint32_t lasti;
    if (!roll_target_read(r->target, at, data, sizeof(data))) {
        return false;
    }
    memcpy(&word, data + l->frame_code, sizeof(word));
    out->code = word & ~TAGS;
    memcpy(previous, data + l->frame_previous, sizeof(*previous));
    if (l->at == ROLL_PY_AT_POINTER) {
        memcpy(&out->at, data + l->frame_at, sizeof(out->at));
    } else {
        memcpy(&lasti, data + l->frame_at, sizeof(lasti));
        out->at = (uint64_t)(int64_t)(int32_t)lasti;
    }
    *shim = l->frame_owner != ROLL_PY_NONE && data[l->frame_owner] >= l->owner_shim;
    out->entry = l->frame_entry != ROLL_PY_NONE ? data[l->frame_entry] != 0 : l->at != ROLL_PY_AT_POINTER;
    return true;
}

/* Follows the frames from the innermost one. False when a pointer led nowhere. */
static bool follow(const struct reader *r, uint64_t frame, struct chain *out)
{
    out->used = 0;
    out->cut = false;
    for (uint64_t hops = 0; frame != 0; hops++) {
        struct raw_frame raw;
        uint64_t previous;
        bool shim;
        if (hops >= 2 * ROLL_PY_CHAIN_MAX || out->used == ROLL_PY_CHAIN_MAX) {
            out->cut = true;
            return true;
        }
        if (!read_frame(r, frame, &raw, &previous, &shim)) {
            return false;
        }
        if (shim) { /* a shim stands for the C code that called into the interpreter, so the frame that it called is an
                       entry */
            if (out->used > 0) {
                out->frame[out->used - 1].entry = true;
            }
        } else {
            out->frame[out->used++] = raw;
        }
        frame = previous;
    }
    if (out->used > 0) {
        out->frame[out->used - 1].entry = true;
    }
    return true;
}

/* Turns kept frames into names. False when the code object of a frame is none. */
static bool name_frames(struct reader *r, const struct chain *chain, struct roll_py_thread *out)
{
    size_t n = chain->used, inner = n;
    if (n > ROLL_PY_INNER + ROLL_PY_OUTER) {
        inner = ROLL_PY_INNER;
        out->left_out = (uint32_t)(n - ROLL_PY_INNER - ROLL_PY_OUTER);
        out->left_out_at = ROLL_PY_INNER;
        n = ROLL_PY_INNER + ROLL_PY_OUTER;
    }
    if (chain->cut) {
        out->left_out += 1; /* at least one: the chain was cut */
    }
    free(out->frame);
    out->frames = 0;
    out->frame = calloc(n ? n : 1, sizeof(*out->frame));
    for (size_t i = 0; out->frame && i < n; i++) {
        const struct raw_frame *raw = &chain->frame[i < inner ? i : chain->used - n + i];
        const struct code *code = code_at(r, raw->code);
        if (!code) {
            return false;
        }
        out->frame[out->frames++] =
            (struct roll_py_frame){code->function, code->file, line_of(r, code, raw->at), raw->entry};
    }
    return out->frame != NULL;
}

static bool read_thread(struct reader *r, uint64_t thread, struct roll_py_thread *out)
{
    static struct chain chain; /* large, and there is one thread */
    bool whole = false;
    for (int i = 0; i < TRIES && !whole; i++) {
        uint64_t before, after;
        struct raw_frame first = {0}, again = {0};
        uint64_t previous;
        bool shim;
        out->left_out = 0;
        out->left_out_at = 0;
        if (!read_head(r, thread, &before)) {
            return false;
        }
        if (before != 0 && !read_frame(r, before, &first, &previous, &shim)) {
            continue;
        }
        if (!follow(r, before, &chain) || !name_frames(r, &chain, out) || !read_head(r, thread, &after)) {
            continue;
        }
        whole = before == after &&
                (before == 0 || (read_frame(r, before, &again, &previous, &shim) && again.code == first.code));
    }
    out->torn = !whole;
    return true;
}

/* threads */

static pid_t tid_of(const struct reader *r, uint64_t thread, uint64_t ident)
{
    uint64_t tid = 0;
    uint32_t word = 0;
    if (r->layout.thread_tid != ROLL_PY_NONE) {
        return read_u64(r, thread + r->layout.thread_tid, &tid) && tid <= INT32_MAX ? (pid_t)tid : 0;
    }
    /* This place is not documented, so the caller checks that the process has such a thread. */
    return read_u32(r, ident + GLIBC_TID, &word) && word <= INT32_MAX ? (pid_t)word : 0;
}

static int add_thread(struct reader *r, uint64_t at, struct roll_py_stacks *out)
{
    struct roll_py_thread thread = {0};
    if (!read_u64(r, at + r->layout.thread_ident, &thread.ident)) {
        return ROLL_E_CORRUPT;
    }
    thread.tid = tid_of(r, at, thread.ident);
    if (!read_thread(r, at, &thread)) {
        free(thread.frame);
        return ROLL_E_CORRUPT;
    }
    int err = ROLL_GROW(out->thread, out->room, out->threads + 1);
    if (err) {
        free(thread.frame);
        return err;
    }
    out->thread[out->threads++] = thread;
    return 0;
}

static int read_all(struct reader *r, struct roll_py_stacks *out)
{
    const struct roll_py_layout *l = &r->layout;
    uint64_t interp, thread;
    if (!read_u64(r, r->runtime + l->interpreters, &interp)) {
        return ROLL_E_DENIED;
    }
    if (interp == 0) {
        return ROLL_E_NOTFOUND;
    }
    for (unsigned i = 0; interp != 0 && i < INTERPS; i++) {
        if (!read_u64(r, interp + l->interp_threads, &thread)) {
            return ROLL_E_CORRUPT;
        }
        for (unsigned n = 0; thread != 0; n++) {
            if (n == ROLL_PY_THREADS_MAX || out->threads == ROLL_PY_THREADS_MAX) {
                out->more = true;
                break;
            }
            int err = add_thread(r, thread, out);
            if (err == ROLL_E_NOMEM || (err && out->threads == 0)) {
                return err;
            }
            if (err || !read_u64(r, thread + l->thread_next, &thread)) {
                break; /* the list has changed meanwhile; the threads read so far are kept */
            }
        }
        if (!read_u64(r, interp + l->interp_next, &interp)) {
            break;
        }
    }
    return out->threads > 0 ? 0 : ROLL_E_NOTFOUND;
}

/* which CPython */

/* "3.N" in the name of a program or library: libpython3.9.so.1.0, python3.10. 0 when there is none. */
static unsigned minor_in(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const char *at = strstr(base, "python3.");
    return at ? (unsigned)strtoul(at + 8, NULL, 10) : 0;
}

static int choose_layout(struct reader *r, const struct roll_module *m, uint64_t version_at, struct roll_py_stacks *out,
                         char *why)
{
    uint64_t words[ROLL_PY_OFFSET_WORDS];
    uint32_t hex = 0;
    if (!roll_target_read(r->target, r->runtime, words, sizeof(words))) {
        return ROLL_E_DENIED;
    }
    int err = roll_py_layout_read(words, ROLL_PY_OFFSET_WORDS, &r->layout);
    unsigned minor = r->layout.minor;
    if (err == ROLL_E_MAGIC) {
        minor = version_at && read_u32(r, version_at, &hex) ? hex >> 16 & 0xff : minor_in(m->path);
        const struct roll_py_layout *layout = roll_py_layout_known(minor);
        err = layout ? 0 : ROLL_E_VERSION;
        r->layout = layout ? *layout : r->layout;
    } else if (err == ROLL_E_VERSION) {
        minor = (unsigned)(words[1] >> 16 & 0xff);
    }
    snprintf(out->version, sizeof(out->version), "3.%u%s", minor, !err && r->layout.free_threaded ? "t" : "");
    if (err == ROLL_E_VERSION) {
        snprintf(why, ROLL_STACK_WHY_BYTES, "CPython %s is not one that this release can read (3.9 to 3.14)",
                 minor ? out->version : "of an unknown version");
    }
    return err;
}

/* Finds the runtime in one module. */
static bool find_runtime(struct reader *r, const struct roll_module *m, uint64_t *version_at)
{
    static const char *const names[] = {"_PyRuntime", "PyCode_Type", "Py_Version"};
    uint64_t at[3];
    if (!roll_symbol_find(r->target, m, names, at, 3)) {
        return false;
    }
    r->runtime = at[0] ? at[0] : roll_section_find(r->target, m, ".PyRuntime");
    r->code_type = at[1];
    *version_at = at[2];
    return r->runtime != 0;
}

static bool may_hold_python(const struct roll_modules *modules, size_t i)
{
    const char *path = modules->module[i].path, *slash = strrchr(path, '/');
    return slash && strstr(slash, "python") != NULL && strstr(slash, "cpython-") == NULL;
}

int roll_py_read(struct roll_target *target, struct roll_modules *modules, struct roll_text_pool *pool,
                 struct roll_py_stacks *out, char why[ROLL_STACK_WHY_BYTES])
{
    struct reader *r = calloc(1, sizeof(*r));
    int err = ROLL_E_NOTFOUND;
    *out = (struct roll_py_stacks){0};
    why[0] = '\0';
    if (!r) {
        return ROLL_E_NOMEM;
    }
    r->target = target;
    r->pool = pool;
    for (size_t i = 0; i < modules->used && err == ROLL_E_NOTFOUND; i++) {
        const struct roll_module *m = &modules->module[i];
        uint64_t version_at;
        if (may_hold_python(modules, i) && find_runtime(r, m, &version_at)) {
            errno = 0;
            err = choose_layout(r, m, version_at, out, why);
            err = err ? err : read_all(r, out);
        }
    }
    if (err == ROLL_E_CORRUPT && why[0] == '\0') {
        snprintf(why, ROLL_STACK_WHY_BYTES,
                 "the memory of this CPython %s does not look like that version's (a debug build?)", out->version);
    }
    for (size_t i = 0; i < CODES; i++) {
        free(r->code[i].lines);
    }
    free(r);
    if (err) {
        char version[sizeof(out->version)];
        memcpy(version, out->version, sizeof(version));
        roll_py_stacks_fini(out);
        memcpy(out->version, version, sizeof(version));
    }
    return err;
}

void roll_py_stacks_fini(struct roll_py_stacks *stacks)
{
    for (size_t i = 0; i < stacks->threads; i++) {
        free(stacks->thread[i].frame);
    }
    free(stacks->thread);
    *stacks = (struct roll_py_stacks){0};
}
