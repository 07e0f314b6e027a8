/*
 * names.c: what the job itself says, by rollcall.torch: the step that it is in, and names of groups and tensors.
 *
 * A job finds these functions by their names (dlsym), and does without where this library is not preloaded. A step is a
 * store into what the records of this thread and of threads without a word of their own carry: it costs a few
 * nanoseconds and writes no record. Where moe_core tells of steps, its word counts alone, and else the best of what has
 * told (enum roll_step_by): two ways to count must not meet. A name is a definition, written once: it costs the calls
 * that it names nothing, because readers find it by the label of the communicator and the count. To mark each call from
 * Python was rejected: collectives of DDP and FSDP are made by C++, where no Python could say in time which tensors are
 * meant.
 */
#include "interposer/wrap/names.h"
#include "interposer/wrap/call.h"

#include <string.h>

#define NAMES_MAX 4096u /* of one process: a model has some hundreds */
#define TEXT_MAX  240u

ROLL_EXPORT void rollcall_step(uint32_t step);
ROLL_EXPORT void rollcall_step_by(uint32_t step, uint32_t by);
ROLL_EXPORT void rollcall_name(uint32_t kind, uint64_t count, uint32_t size, const char *label, const char *text,
                               const char *file, const char *function, uint32_t line);

/* What was told last before recording began: PyTorch makes its communicators within the first step. `by` in the high
 * half; 0: nothing. */
static _Atomic uint64_t early;

static void set_process(struct roll_session *session, uint32_t step, uint32_t by)
{
    atomic_store_explicit(&session->step_by, by, memory_order_relaxed);
    atomic_store_explicit(&session->moe, (uint64_t)step << 32 | (uint64_t)ROLL_LAYER_NONE << 16, memory_order_relaxed);
    atomic_store_explicit(&session->moe_phase, ROLL_PHASE_NONE + 1u, memory_order_release);
}

void roll_step_begin(struct roll_session *session)
{
    uint64_t told = atomic_load_explicit(&early, memory_order_relaxed);
    if (told != 0) {
        set_process(session, (uint32_t)told, (uint32_t)(told >> 32));
    }
}

void roll_step_tell(uint32_t step, enum roll_step_by by)
{
    struct roll_thread *t = &roll_thread_self;
    if (!roll_active() && atomic_load_explicit(&early, memory_order_relaxed) >> 32 <= (uint64_t)by) {
        atomic_store_explicit(&early, (uint64_t)by << 32 | step, memory_order_relaxed);
    }
    if (!roll_wanted(t) || atomic_load_explicit(&roll_session->has_moe, memory_order_relaxed) ||
        atomic_load_explicit(&roll_session->step_by, memory_order_relaxed) > (uint32_t)by) {
        return;
    }
    t->moe = (struct roll_moe_context){.step = step, .layer = ROLL_LAYER_NONE};
    t->moe_known = true;
    set_process(roll_session, step, (uint32_t)by);
}

void rollcall_step(uint32_t step)
{
    roll_step_tell(step, ROLL_STEP_BY_JOB);
}

void rollcall_step_by(uint32_t step, uint32_t by)
{
    if (by >= ROLL_STEP_BY_PROFILER && by <= ROLL_STEP_BY_JOB) {
        roll_step_tell(step, (enum roll_step_by)by);
    }
}

/* Appends a text to the tail of the definition; returns its length, cut to what one text may have. */
static uint16_t add(char *tail, size_t *used, const char *text)
{
    size_t n = text != NULL ? strnlen(text, TEXT_MAX) : 0;
    memcpy(tail + *used, text != NULL ? text : "", n);
    *used += n;
    return (uint16_t)n;
}

void rollcall_name(uint32_t kind, uint64_t count, uint32_t size, const char *label, const char *text, const char *file,
                   const char *function, uint32_t line)
{
    static _Atomic uint32_t names;
    struct roll_thread *t = &roll_thread_self;
    char tail[4 * TEXT_MAX];
    size_t used = 0;
    if (!roll_wanted(t) || (kind != ROLL_NAME_GROUP && kind != ROLL_NAME_TENSORS) ||
        !roll_def_is_roomy(&roll_session->ring)) {
        return;
    }
    uint32_t id = atomic_fetch_add_explicit(&names, 1, memory_order_relaxed) + 1;
    if (id > NAMES_MAX) {
        atomic_store_explicit(&names, NAMES_MAX, memory_order_relaxed);
        return;
    }
    struct roll_def_name def = {.count = count, .kind = kind, .size = size, .line = line};
    def.label_bytes = add(tail, &used, label);
    def.text_bytes = add(tail, &used, text);
    def.file_bytes = add(tail, &used, file);
    def.function_bytes = add(tail, &used, function);
    (void)roll_def_append(&roll_session->ring, ROLL_DEF_NAME, id, &def, sizeof(def), tail, used);
}
