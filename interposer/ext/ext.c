/*
 * ext.c: the wrappers of ext.def: compute calls of MoE layers, for jobs that do not use moe_core.
 *
 * Their records serve one finding: "this rank made no expert product between these two collectives". So a record says
 * that a call was made, when, and how large it was as far as the host knows: nothing on the device is ever read. Calls
 * are recorded only while there is a session. A call that one of these functions makes in turn (a grouped product calls
 * cuBLAS) is not recorded again.
 *
 * Every layer makes dense products. A record of each would cost more than it is worth, so only the first one after any
 * other record of the process is recorded; the next record counts those that were left out.
 *
 * Transformer Engine throws C++ exceptions through these functions. A wrapper that an exception leaves keeps its record
 * open and its depth set, as after a longjmp: see roll_outside.
 */
#include "interposer/bind/thunk.h"
#include "interposer/wrap/call.h"

#include <string.h>

#define LIBRARY_TE     "libtransformer_engine.so"
#define LIBRARY_BLAS   "libcublas.so"
#define LIBRARY_BLASLT "libcublasLt.so"
#define NO_BLAS        1 /* CUBLAS_STATUS_NOT_INITIALIZED */

enum { CUDA_32F = 0, CUDA_64F = 1 };

enum ext_id {
#define ROLL_EXT_CALL(name, ...)  EXT_##name,
#define ROLL_EXT_DENSE(name, ...) EXT_##name,
#define ROLL_EXT_NOTE(n, name, ...)
#include "interposer/ext/ext.def"
    EXT_LIMIT
};

static const struct {
    const char *name, *library;
} table[EXT_LIMIT] = {
#define ROLL_EXT_CALL(name, library, ret, absent, params, args, op, ...) {#name, LIBRARY_##library},
#define ROLL_EXT_DENSE(name, library, ...)                               {#name, LIBRARY_##library},
#define ROLL_EXT_NOTE(n, name, library, op)
#include "interposer/ext/ext.def"
};
static roll_function_t reals[EXT_LIMIT];

static roll_function_t real_of(enum ext_id id)
{
    roll_function_t real = __atomic_load_n(&reals[id], __ATOMIC_ACQUIRE);
    if (ROLL_UNLIKELY(real == NULL)) {
        real = roll_symbol_resolve(table[id].name, table[id].library);
        __atomic_store_n(&reals[id], real, __ATOMIC_RELEASE);
    }
    return real;
}

/* How large a call is, as far as the host knows. `empty` -1 and `dtype` NONE mean that these are not known. */
struct shape {
    uint64_t rows;
    uint64_t groups;
    int32_t empty;
    uint8_t dtype;
};

/* Transformer Engine's readers of a tensor handle; either all of them are found, or none. */
static struct {
    size_t (*ndims)(const void *);
    size_t (*size)(const void *, size_t);
    size_t (*numel)(const void *);
    int (*type)(const void *);
    size_t (*groups)(const void *);
} reader;

static bool readers(void)
{
    static _Atomic uint32_t state; /* 1 found, 2 not there */
    uint32_t seen = atomic_load_explicit(&state, memory_order_acquire);
    if (ROLL_UNLIKELY(seen == 0)) {
        reader.ndims = (size_t(*)(const void *))roll_symbol_resolve("nvte_tensor_ndims", LIBRARY_TE);
        reader.size = (size_t(*)(const void *, size_t))roll_symbol_resolve("nvte_tensor_size", LIBRARY_TE);
        reader.numel = (size_t(*)(const void *))roll_symbol_resolve("nvte_tensor_numel", LIBRARY_TE);
        reader.type = (int (*)(const void *))roll_symbol_resolve("nvte_tensor_type", LIBRARY_TE);
        reader.groups = (size_t(*)(const void *))roll_symbol_resolve("nvte_grouped_tensor_num_tensors", LIBRARY_TE);
        seen = reader.ndims != NULL && reader.size != NULL && reader.numel != NULL && reader.type != NULL ? 1 : 2;
        atomic_store_explicit(&state, seen, memory_order_release);
    }
    return seen == 1;
}

static uint8_t dtype_of_te(int type)
{
    static const uint8_t map[] = {ROLL_DTYPE_UINT8,    ROLL_DTYPE_NONE,       ROLL_DTYPE_INT32,
                                  ROLL_DTYPE_INT64,    ROLL_DTYPE_FLOAT32,    ROLL_DTYPE_FLOAT16,
                                  ROLL_DTYPE_BFLOAT16, ROLL_DTYPE_FLOAT8E4M3, ROLL_DTYPE_FLOAT8E5M2};
    return type >= 0 && (size_t)type < sizeof(map) ? map[type] : ROLL_DTYPE_NONE;
}

static uint8_t dtype_of_cuda(int type)
{
    static const uint8_t map[] = {[0] = ROLL_DTYPE_FLOAT32,     [1] = ROLL_DTYPE_FLOAT64,    [2] = ROLL_DTYPE_FLOAT16,
                                  [3] = ROLL_DTYPE_INT8,        [14] = ROLL_DTYPE_BFLOAT16,  [10] = ROLL_DTYPE_INT32,
                                  [28] = ROLL_DTYPE_FLOAT8E4M3, [29] = ROLL_DTYPE_FLOAT8E5M2};
    static const uint32_t known = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 3 | 1u << 10 | 1u << 14 | 1u << 28 | 1u << 29;
    return type >= 0 && type < 32 && (known >> type & 1u) != 0 ? map[type] : ROLL_DTYPE_NONE;
}

/* Rows of a tensor that is seen as a matrix; 0 for a tensor without elements. Only existing dimensions are asked for:
 * TE's readers throw for others. */
static uint64_t rows_of(const void *tensor)
{
    size_t dims = tensor != NULL ? reader.ndims(tensor) : 0;
    size_t elements = dims != 0 ? reader.numel(tensor) : 0;
    if (elements == 0) {
        return 0;
    }
    size_t last = reader.size(tensor, dims - 1);
    return last != 0 ? elements / last : 0;
}

static struct shape shape_tensors(void *const *list, size_t n)
{
    struct shape s = {.groups = n, .empty = -1, .dtype = ROLL_DTYPE_NONE};
    if (list == NULL || n > UINT16_MAX || !readers()) {
        return s;
    }
    s.empty = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t part = rows_of(list[i]);
        s.rows += part;
        s.empty += part == 0;
        s.dtype = list[i] != NULL && s.dtype == ROLL_DTYPE_NONE ? dtype_of_te(reader.type(list[i])) : s.dtype;
    }
    return s;
}

static struct shape shape_groups(size_t n)
{
    return (struct shape){.groups = n, .empty = -1, .dtype = ROLL_DTYPE_NONE};
}

static struct shape shape_grouped(const void *tensor)
{
    readers();
    return shape_groups(tensor != NULL && reader.groups != NULL ? reader.groups(tensor) : 0);
}

static struct shape shape_rows(int64_t n, const void *like)
{
    uint8_t dtype = like != NULL && readers() ? dtype_of_te(reader.type(like)) : ROLL_DTYPE_NONE;
    return (struct shape){.rows = n > 0 ? (uint64_t)n : 0, .groups = 1, .empty = n <= 0, .dtype = dtype};
}

static struct shape shape_dense(int64_t n, int64_t batch, int type)
{
    uint64_t total = n > 0 && batch > 0 ? (uint64_t)n * (uint64_t)batch : 0;
    return (struct shape){
        .rows = total, .groups = batch > 0 ? (uint64_t)batch : 0, .empty = -1, .dtype = dtype_of_cuda(type)};
}

/* cuBLAS keeps the shapes of grouped products in host memory. A result has n columns, which are n rows to a framework.
 */
#define SHAPE_GROUPS(name, int_t)                                                                                      \
    static struct shape name(const int_t *m, const int_t *n, const int_t *k, const int_t *size, int_t groups,          \
                             int type)                                                                                 \
    {                                                                                                                  \
        struct shape s = {.groups = groups > 0 ? (uint64_t)groups : 0, .dtype = dtype_of_cuda(type)};                  \
        for (int_t i = 0; i < groups && m != NULL && n != NULL && k != NULL && size != NULL; i++) {                    \
            bool empty = m[i] <= 0 || n[i] <= 0 || k[i] <= 0 || size[i] <= 0;                                          \
            s.rows += empty ? 0 : (uint64_t)n[i] * (uint64_t)size[i];                                                  \
            s.empty += empty;                                                                                          \
        }                                                                                                              \
        return s;                                                                                                      \
    }
SHAPE_GROUPS(shape_groups_int, int)
SHAPE_GROUPS(shape_groups_long, int64_t)

static void enter(struct roll_thread *t, struct roll_call *call, uint8_t op, const struct shape *s, uint32_t skipped,
                  cudaStream_t stream, uintptr_t pc, const uintptr_t *frame)
{
    struct roll_fill fill = {
        .count = s->rows,
        .seq = skipped,
        .peer = s->empty,
        .stream = stream != NONE_STREAM ? roll_stream_id(t, stream, false) : 0,
        .aux = (uint16_t)(s->groups < UINT16_MAX ? s->groups : UINT16_MAX),
        .op = op,
        .dtype = s->dtype,
        .redop = ROLL_RED_NONE,
    };
    roll_enter_fill(t, call, &fill, pc, frame);
}

/* Dense products: whether anything has been recorded in this process since this thread's last one. */
static bool dense_wanted(struct roll_thread *t)
{
    uint64_t head = atomic_load_explicit(&roll_session->ring.header->head, memory_order_relaxed);
    if (head == t->dense_head) {
        t->dense_skipped++;
        roll_poll_over(t); /* the thread computes, so it does more than wait */
        return false;
    }
    return true;
}

#define RETURNS_void(statement) statement
#define RETURNS_int(statement)  int result = statement
#define RESULT_OF_void          0
#define RESULT_OF_int           result
#define RETURN_void
#define RETURN_int return result

#define WRAP(name, ret, absent, params, args, op_, shape_, stream_, wanted, settle)                                    \
    ROLL_EXPORT ret name params;                                                                                       \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT ret name params                                                                                        \
    {                                                                                                                  \
        typedef ret(*real_t) params;                                                                                   \
        struct roll_thread *t = &roll_thread_self;                                                                     \
        real_t real = (real_t)real_of(EXT_##name);                                                                     \
        if (ROLL_UNLIKELY(real == NULL)) {                                                                             \
            return absent;                                                                                             \
        }                                                                                                              \
        if (!roll_wanted(t) || !(wanted)) {                                                                            \
            return real args;                                                                                          \
        }                                                                                                              \
        struct roll_call call;                                                                                         \
        roll_enter_begin(t);                                                                                           \
        struct shape s = shape_;                                                                                       \
        enter(t, &call, ROLL_OP_##op_, &s, t->dense_skipped, stream_, ROLL_PC, ROLL_FRAME);                            \
        settle;                                                                                                        \
        roll_enter_end(t);                                                                                             \
        RETURNS_##ret(real args);                                                                                      \
        roll_leave(t, &call, RESULT_OF_##ret);                                                                         \
        RETURN_##ret;                                                                                                  \
    }

#define ROLL_EXT_CALL(name, library, ret, absent, params, args, op, shape, stream)                                     \
    WRAP(name, ret, absent, params, args, op, shape, stream, true, t->dense_skipped = 0)
#define ROLL_EXT_DENSE(name, library, ret, absent, params, args, shape, stream)                                        \
    WRAP(name, ret, absent, params, args, EXT_GEMM, shape, stream, dense_wanted(t),                                    \
         (t->dense_skipped = 0, t->dense_head = call.ticket + 1))
#define ROLL_EXT_NOTE(n, name, library, op)
#include "interposer/ext/ext.def"

#if ROLL_THUNKS

static const struct {
    const char *name, *library;
    uint8_t op;
} notes[] = {
#define ROLL_EXT_CALL(name, ...)
#define ROLL_EXT_DENSE(name, ...)
#define ROLL_EXT_NOTE(n, name, library, op) [n] = {#name, LIBRARY_##library, ROLL_OP_##op},
#include "interposer/ext/ext.def"
};
#define NOTES (sizeof(notes) / sizeof(notes[0]))
static roll_function_t noted[NOTES];

/* The table of the thunks of noted functions. It always stays empty, so that each call takes the slow way of its thunk,
 * which asks roll_ext_note. */
roll_function_t roll_ext_none[NOTES] __attribute__((visibility("hidden"), used));
uint32_t roll_ext_never __attribute__((visibility("hidden"), used));
roll_function_t roll_ext_note(unsigned n, uintptr_t pc) __attribute__((visibility("hidden"), used));

static void nothing(void)
{
}

/* The frame above ours is the thunk's: it holds the caller's frame and return address, as a wrapper's would. */
roll_function_t roll_ext_note(unsigned n, uintptr_t pc)
{
    struct roll_thread *t = &roll_thread_self;
    roll_function_t real = __atomic_load_n(&noted[n], __ATOMIC_ACQUIRE);
    if (real == NULL) {
        real = roll_symbol_resolve(notes[n].name, notes[n].library);
        __atomic_store_n(&noted[n], real, __ATOMIC_RELEASE);
    }
    if (real == NULL) {
        return nothing;
    }
    if (roll_wanted(t)) {
        const uintptr_t *frame = *(const uintptr_t *const *)__builtin_frame_address(0);
        struct shape unknown = {.empty = -1, .dtype = ROLL_DTYPE_NONE};
        struct roll_call call;
        roll_enter_begin(t);
        enter(t, &call, notes[n].op, &unknown, t->dense_skipped, NONE_STREAM, pc, frame);
        t->dense_skipped = 0;
        roll_enter_end(t);
        roll_leave(t, &call, 0);
    }
    return real;
}

ROLL_THUNK_SLOW(roll_ext_note)

#define ROLL_EXT_CALL(name, ...)
#define ROLL_EXT_DENSE(name, ...)
#define ROLL_EXT_NOTE(n, name, library, op)                                                                            \
    ROLL_THUNK(#name, roll_ext_none, #n, roll_ext_never)                                                               \
    ROLL_OWN(name)
#include "interposer/ext/ext.def"

#endif
