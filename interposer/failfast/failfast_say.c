/*
 * failfast_say.c: the words of a refusal.
 *
 * The loader names our own place in the code. The other rank's place lies in another address space. Its ring has the
 * call site's address and the object that holds it, as for every reader of rings; where this process has the same
 * object loaded, the loader gives the function's name. Names published beside each call were rejected: every call would
 * pay for what one in a million needs.
 *
 * The text that ncclGetLastError gives is kept here for the life of the process, in turn in one of a few places,
 * because the application may still hold an earlier one. ncclGetLastError gives our text until NCCL's own text changes:
 * NCCL, too, has one text per process.
 */
#include "interposer/failfast/failfast_say.h"

#include "interposer/bind/compat.h"
#include "interposer/failfast/failfast.h"
#include "interposer/record/session.h"
#include "trace/def.h"
#include "trace/op.h"

#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXTS      8u
#define TEXT_BYTES 1536u
#define LINES      16u /* most lines that a process writes to standard error */
#define PLACE      320u

static char directory[3072];
static struct roll_ident identity;

/* Guards the data below; taken only by refusals, and by ncclGetLastError after one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char texts[TEXTS][TEXT_BYTES];
static unsigned told, told_set; /* number of texts so far; set (api.h) of the newest text's communicator */
static uint64_t real_hash;      /* hash of NCCL's own text when our newest text was written */
static bool real_known;
static _Atomic bool speaking; /* our text is newer than NCCL's own */

struct words {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct words *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->used, w->size - w->used, format, args);
    va_end(args);
    w->used += n < 0 ? 0 : (size_t)n;
    w->used = w->used < w->size ? w->used : w->size - 1;
}

void roll_failfast_say_start(const char *dir, const struct roll_ident *ident)
{
    snprintf(directory, sizeof(directory), "%s", dir);
    identity = *ident;
}

struct object {
    uintptr_t pc;     /* the object that holds this address is wanted, or (0) */
    const char *path; /* the object of this path */
    uintptr_t bias;
    char name[256];
    bool found;
};

static int match_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct object *object = arg;
    if (object->path != NULL) {
        object->found = info->dlpi_name != NULL && strcmp(info->dlpi_name, object->path) == 0;
    }
    for (unsigned i = 0; object->path == NULL && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + ph->p_vaddr;
        object->found =
            object->found || (ph->p_type == PT_LOAD && object->pc >= start && object->pc - start < ph->p_memsz);
    }
    if (object->found) {
        object->bias = info->dlpi_addr;
        snprintf(object->name, sizeof(object->name), "%s", info->dlpi_name != NULL ? info->dlpi_name : "");
    }
    return object->found;
}

static const char *short_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* "libtrain.so+0x1234 (step)"; pc is an address of this process, or 0 when the function cannot be known. */
static void place(struct words *w, const char *path, uint64_t offset, uintptr_t pc)
{
    add(w, "%s+0x%" PRIx64, path[0] != '\0' ? short_name(path) : "the program", offset);
    const char *function = pc != 0 ? roll_symbol_of((const void *)(pc - 1)) : NULL;
    if (function != NULL) {
        add(w, " (%s)", function);
    }
}

static void my_place(struct words *w, uintptr_t pc)
{
    struct object object = {.pc = pc};
    if (pc == 0 || dl_iterate_phdr(match_object, &object) == 0) {
        add(w, "an unknown place");
        return;
    }
    if (object.name[0] == '\0') {
        snprintf(object.name, sizeof(object.name), "%s", roll_session->ring.header->exe);
    }
    place(w, object.name, pc - object.bias, pc);
}

/* Writes the other rank's place: address and object, if its ring has them. */
static void their_place(struct words *w, const struct roll_compare_call *call)
{
    static char path[4096]; /* under `lock` */
    static struct roll_def def;
    struct roll_ident whose = identity;
    struct roll_ring ring;
    uint64_t pc = 0, offset = 0;
    char object[256] = "";
    whose.rank = call->world;
    if (call->callsite == 0 || roll_ring_path(path, sizeof(path), directory, &whose, call->pid) != 0 ||
        roll_ring_open(path, false, &ring) != 0) {
        add(w, "an unknown place");
        return;
    }
    for (size_t at = 0; roll_def_decode(ring.defs, ring.defs_bytes, &at, &def) == 0;) {
        if (def.type == ROLL_DEF_CALLSITE && def.id == call->callsite && def.callsite.depth > 0) {
            pc = def.callsite.pc[0];
            break;
        }
    }
    for (size_t at = 0; pc != 0 && roll_def_decode(ring.defs, ring.defs_bytes, &at, &def) == 0;) {
        if (def.type == ROLL_DEF_MODULE && pc >= def.module.info.start && pc < def.module.info.end) {
            snprintf(object, sizeof(object), "%.*s", (int)def.module.info.path_bytes, def.module.path);
            offset = pc - def.module.info.bias;
            break;
        }
    }
    if (object[0] == '\0') {
        add(w, "an unknown place");
    } else {
        struct object same = {.path = object};
        if (strcmp(short_name(object), ring.header->exe) == 0) {
            same.path = ""; /* the loader's name for the program itself is empty */
        }
        bool here = dl_iterate_phdr(match_object, &same) != 0;
        place(w, object, offset, here ? same.bias + (uintptr_t)offset : 0);
    }
    roll_ring_close(&ring);
}

static bool is_reduction(uint8_t op)
{
    return roll_op_has(op, ROLL_TRAIT_REDOP);
}

/* "AllReduce of 1024 float32 (sum)", "Broadcast of 10 int8 (root 2)". */
static void describe(struct words *w, const struct roll_compare_call *call)
{
    add(w, "%s of %" PRIu64 " %s", roll_op_name(call->op), call->count, roll_dtype_name(call->dtype));
    if (is_reduction(call->op)) {
        add(w, " (%s%s", roll_redop_name(call->redop), call->peer >= 0 ? "" : ")");
    }
    if (call->peer >= 0) {
        add(w, "%sroot %d)", is_reduction(call->op) ? ", " : " (", call->peer);
    }
    if ((call->flags & ROLL_FLAG_CAPTURED) != 0) {
        add(w, " captured into a graph");
    }
}

static uint64_t bytes_of(const struct roll_compare_call *call)
{
    size_t width = roll_dtype_bytes(call->dtype);
    return call->count * (width != 0 ? width : 1);
}

static void difference(struct words *w, const struct roll_compare_call *a, const struct roll_compare_call *b)
{
    bool reduction = is_reduction(a->op);
    if (a->op != b->op) {
        add(w, "the operation differs (%s here, %s there)", roll_op_name(a->op), roll_op_name(b->op));
    } else if (((a->flags ^ b->flags) & ROLL_FLAG_CAPTURED) != 0) {
        add(w, "the graph capture differs (%s here)",
            (a->flags & ROLL_FLAG_CAPTURED) != 0 ? "captured" : "not captured");
    } else if (reduction && a->dtype != b->dtype) {
        add(w, "the datatype differs (%s here, %s there)", roll_dtype_name(a->dtype), roll_dtype_name(b->dtype));
    } else if (reduction && a->count != b->count) {
        add(w, "the count differs (%" PRIu64 " here, %" PRIu64 " there)", a->count, b->count);
    } else if (!reduction && bytes_of(a) != bytes_of(b)) {
        add(w, "the count differs (%" PRIu64 " bytes here, %" PRIu64 " bytes there)", bytes_of(a), bytes_of(b));
    } else if (reduction && a->redop != b->redop) {
        add(w, "the reduction differs (%s here, %s there)", roll_redop_name(a->redop), roll_redop_name(b->redop));
    } else if (a->peer != b->peer) {
        add(w, "the root differs (%d here, %d there)", a->peer, b->peer);
    } else {
        add(w, "the calls of the group differ");
    }
}

static void who(struct words *w, const struct roll_compare_call *call)
{
    if (call->world >= 0) {
        add(w, "rank %d", call->world);
    } else {
        add(w, "process %u (rank %d of the communicator)", call->pid, call->rank);
    }
}

static void name_comm(struct words *w, const struct roll_comm *comm)
{
    if (comm->def.label_bytes > 0) {
        add(w, "communicator \"%.*s\" (%d ranks)", (int)comm->def.label_bytes, comm->label, comm->nranks);
    } else {
        add(w, "communicator 0x%016" PRIx64 " (%d ranks)", comm->def.key, comm->nranks);
    }
}

static uint64_t hash_of(const char *text)
{
    return text != NULL ? roll_hash64(1, text, strlen(text)) : 0;
}

/* Begins the next text in a free place, and notes NCCL's own text of now. Takes `lock`, which `publish` gives back. */
static struct words begin(const struct roll_comm *comm)
{
    pthread_mutex_lock(&lock);
    told_set = comm->set;
    struct words w = {.text = texts[told++ % TEXTS], .size = TEXT_BYTES - 1};
    w.text[0] = '\0';
    return w;
}

/* Notes the hash of NCCL's own text. Under `lock`. */
static void note_real(void)
{
    typedef const char *(*ask_t)(ncclComm_t);
    ask_t ask = ROLL_REAL_OF(told_set, ncclGetLastError, ask_t);
    real_known = ask != NULL;
    real_hash = ask != NULL ? hash_of(ask(NULL)) : 0;
}

void roll_failfast_say_settled(void)
{
    pthread_mutex_lock(&lock);
    note_real();
    pthread_mutex_unlock(&lock);
}

static void publish(struct words *w, bool aloud)
{
    static unsigned lines;
    note_real();
    atomic_store_explicit(&speaking, true, memory_order_release);
    if (aloud && lines < LINES) {
        lines++;
        w->text[w->used] = '\n';
        roll_tell(w->text, w->used + 1);
        w->text[w->used] = '\0';
    }
    pthread_mutex_unlock(&lock);
}

void roll_failfast_say(const struct roll_comm *comm, const struct roll_compare_call *mine, uintptr_t pc,
                       const struct roll_compare_call *theirs)
{
    struct words w = begin(comm);
    add(&w, "rollcall: refused: ");
    who(&w, mine);
    add(&w, " calls ");
    describe(&w, mine);
    add(&w, " as #%u on ", mine->seq);
    name_comm(&w, comm);
    add(&w, ", but ");
    who(&w, theirs);
    add(&w, " called ");
    describe(&w, theirs);
    add(&w, " there: ");
    difference(&w, mine, theirs);
    if (comm->zero_seq == mine->seq + 1) {
        add(&w, "; before it came %s of 0 elements, which NCCL drops on this rank alone", roll_op_name(comm->zero_op));
    }
    add(&w, ". Here at ");
    my_place(&w, pc);
    add(&w, ", there at ");
    their_place(&w, theirs);
    add(&w, ". The call was not made.");
    publish(&w, true);
}

void roll_failfast_say_aborted(const struct roll_comm *comm, const struct roll_compare_call *call)
{
    struct words w = begin(comm);
    add(&w, "rollcall: refused: %s on ", roll_op_name(call->op));
    name_comm(&w, comm);
    add(&w, ", which was aborted because of an earlier mismatch (ROLLCALL_ON_MISMATCH=abort)");
    publish(&w, false);
}

const char *roll_failfast_last_error(unsigned set, const char *real)
{
    const char *text = real;
    if (ROLL_LIKELY(!atomic_load_explicit(&speaking, memory_order_acquire))) {
        return real;
    }
    pthread_mutex_lock(&lock);
    if (set != told_set) {
        text = real;
    } else if (real_known && real != NULL && real[0] != '\0' && hash_of(real) != real_hash) {
        atomic_store_explicit(&speaking, false, memory_order_relaxed); /* NCCL has had an error of its own since */
    } else {
        text = texts[(told - 1) % TEXTS];
    }
    pthread_mutex_unlock(&lock);
    return text;
}
