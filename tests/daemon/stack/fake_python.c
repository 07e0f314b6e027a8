/*
 * fake_python.c: the memory of a CPython 3.14, as far as a stack goes, made by hand: no such interpreter is at hand
 * where the tests run.
 *
 * What is real: the order of the table of offsets at the beginning of _PyRuntime
 * (Include/internal/pycore_debug_offsets.h of 3.14), marked references to code objects, frames that stand for C code
 * (owners 3 and 4), line tables. What is ours: the offsets themselves, which an interpreter of another build would have
 * otherwise too.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct text {
    uint64_t refs;
    void *type;
    int64_t length, hash;
    uint32_t state, pad;
    char data[40]; /* ASCII: at 40; other: at 56 */
};
struct bytes {
    uint64_t refs;
    void *type;
    int64_t size, hash;
    uint8_t data[32];
};
struct code {
    uint64_t refs;
    void *type;
    int32_t firstline, pad;
    struct text *file, *name, *qualname;
    struct bytes *lines;
    uint16_t instructions[16];
};
struct frame {
    uintptr_t executable; /* marked in its lowest bits */
    struct frame *previous;
    void *other[5];
    uint16_t *at;
    uint8_t pad[3], owner;
};
struct thread {
    void *prev, *next, *interp;
    struct frame *current;
    uint64_t ident, native;
};
struct interp {
    uint8_t pad[24];
    void *next;
    struct thread *threads;
};

int PyCode_Type[4] __attribute__((visibility("default")));
struct {
    uint64_t table[128];
    struct interp *head;
} _PyRuntime __attribute__((visibility("default"), section(".PyRuntime,\"aw\",@progbits#")));

#define ASCII(s)                                                                                                       \
    {                                                                                                                  \
        .refs = 1, .length = sizeof(s) - 1, .state = 1u << 2 | 1u << 5 | 1u << 6, .data = s                            \
    }
static struct text file = ASCII("train.py"), outer_name = ASCII("main"), gone = ASCII("unseen");
/* "schön": one byte a character, but not ASCII: its data stand 16 bytes further on. */
static struct text inner_name = {.refs = 1, .length = 5, .state = 1u << 2 | 1u << 5};
/* 8 code units on line 10 (step of 0), then 8 on line 12 (step of 2): kinds 13 and 13 with signed steps. */
static struct bytes lines = {.refs = 1, .size = 4, .data = {0x80 | 13 << 3 | 7, 0, 0x80 | 13 << 3 | 7, 4}};
static struct code outer = {
    .type = PyCode_Type, .firstline = 10, .file = &file, .name = &gone, .qualname = &outer_name, .lines = &lines};
static struct code inner = {
    .type = PyCode_Type, .firstline = 20, .file = &file, .name = &gone, .qualname = &inner_name, .lines = &lines};
static struct frame base = {.executable = 1, .owner = 3}, bottom, shim = {.executable = 1, .owner = 4}, top;
static struct thread thread;
static struct interp interp;

enum { INTERPRETERS = 5, NEXT = 8, THREADS = 9, T_NEXT = 24, T_FRAME = 26, T_IDENT = 27, T_NATIVE = 28 };
enum { F_PREVIOUS = 32, F_EXECUTABLE = 33, F_AT = 34, F_OWNER = 36 };
enum { C_FILE = 40, C_NAME = 41, C_QUALNAME = 42, C_LINES = 43, C_FIRST = 44, C_CODE = 48, O_TYPE = 51 };

void fake_python_begin(uint64_t native);

/* Lays it all out for a thread `native`. */
__attribute__((visibility("default"))) void fake_python_begin(uint64_t native)
{
    uint64_t *t = _PyRuntime.table;
    memcpy(inner_name.data + 16, "sch\xf6n", 5);
    bottom = (struct frame){.executable = (uintptr_t)&outer | 1, .previous = &base, .at = outer.instructions + 9};
    shim.previous = &bottom;
    top = (struct frame){.executable = (uintptr_t)&inner | 1, .previous = &shim, .at = inner.instructions + 2};
    thread = (struct thread){.current = &top, .ident = 0x1234, .native = native};
    interp.threads = &thread;
    memcpy(t, "xdebugpy", 8);
    t[1] = 0x030e00f0;
    t[INTERPRETERS] = sizeof(_PyRuntime.table);
    t[NEXT] = offsetof(struct interp, next);
    t[THREADS] = offsetof(struct interp, threads);
    t[T_NEXT] = offsetof(struct thread, next);
    t[T_FRAME] = offsetof(struct thread, current);
    t[T_IDENT] = offsetof(struct thread, ident);
    t[T_NATIVE] = offsetof(struct thread, native);
    t[F_PREVIOUS] = offsetof(struct frame, previous);
    t[F_EXECUTABLE] = offsetof(struct frame, executable);
    t[F_AT] = offsetof(struct frame, at);
    t[F_OWNER] = offsetof(struct frame, owner);
    t[C_FILE] = offsetof(struct code, file);
    t[C_NAME] = offsetof(struct code, name);
    t[C_QUALNAME] = offsetof(struct code, qualname);
    t[C_LINES] = offsetof(struct code, lines);
    t[C_FIRST] = offsetof(struct code, firstline);
    t[C_CODE] = offsetof(struct code, instructions);
    t[O_TYPE] = offsetof(struct code, type);
    _PyRuntime.head = &interp;
}
