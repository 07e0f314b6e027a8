/*
 * memory.h: the memory of a device, as moe_core's own files use it: what stays (device.h), and the pool for what lives
 * for a part of a step.
 */
#ifndef MOE_CORE_BASE_MEMORY_H
#define MOE_CORE_BASE_MEMORY_H

#include "moe_core/include/moe/device.h"

#include <stdbool.h>

#pragma GCC visibility push(hidden)

struct moe_memory;

/* Makes the books of a device, and the words of moe_memory_words; its stream exists. Errors: NOMEM. */
int moe_memory_new(moe_device_t *device);
/* Gives everything back that is still in the books. The stream is idle. */
void moe_memory_destroy(moe_device_t *device);

/* Lets a new device take its memory from where `model` takes it, the allocator of the caller. Errors: STATE. */
int moe_memory_like(moe_device_t *device, const moe_device_t *model);

/*
 * Whether the device's stream is captured. No memory can be made then: a graph would go on to use what was given back,
 * and a runtime ends the capture.
 */
bool moe_memory_capturing(const moe_device_t *device);

/*
 * Gives zeroed memory of the back end, whatever allocator was set, which outlives the device and is never given back:
 * for what the whole process shares. Errors: NOMEM, STATE (the stream is captured).
 */
int moe_memory_for_ever(moe_device_t *device, size_t bytes, void **out);

/*
 * Room for MOE_MEMORY_WORDS numbers on the device, and as many in pinned host memory: for what a rank says when it can
 * make nothing else. The back end's, made with the device and never counted; only a device that was made while its
 * stream was captured makes it here. Borrowed; contents are the last user's. Errors: NOMEM.
 */
enum { MOE_MEMORY_WORDS = 16 };
int moe_memory_words(moe_device_t *device, int64_t **words, int64_t **host);

/*
 * Gives `bytes` bytes of the pool in the pointer whose address is `pointer_to_pointer`; what it pointed to before, if
 * anything, goes back first. The memory holds anything. It is for work of the device's stream only, is aligned to 256
 * bytes, and 0 bytes give a valid pointer. Errors: NOMEM; STATE (the stream is captured: a graph would go
 * on to use memory that others have by then).
 */
int moe_pool_take(moe_device_t *device, size_t bytes, void *pointer_to_pointer);

/*
 * Gives memory of moe_pool_take back and clears the pointer; NULL is allowed. Work that is enqueued already may still
 * use the memory, work that is enqueued later must not. Nothing waits.
 */
void moe_pool_give(moe_device_t *device, void *pointer_to_pointer);

#pragma GCC visibility pop

#endif
