/* memory.h: which memory kernels may touch (memory.cc). */
#ifndef ROLL_TESTS_KERNELS_EMU_MEMORY_H
#define ROLL_TESTS_KERNELS_EMU_MEMORY_H

#include <cstddef>
#include <cstdint>

/* Memory of the device has come or gone. Any thread. */
void emu_memory_told(const void *start, size_t bytes, bool is_there);
/* Whether all of the bytes are memory of the device. Any thread. */
bool emu_memory_has(uint64_t address, uint64_t bytes);

#endif
