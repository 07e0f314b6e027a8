/*
 * crc32c.c: CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), for ring headers and frames.
 *
 * Processors with SSE 4.2 have an instruction for it; everything else takes a 16-entry table, a nibble at a time:
 * slower than the usual 8 x 256 tables, but the checksum of a frame is rare there and the table is its own proof.
 */
#include "trace/frame.h"

#include <string.h>

#define STEP1(x) ((x) >> 1 ^ (0x82f63b78u & (0u - ((x)&1u))))
#define STEP4(x) STEP1(STEP1(STEP1(STEP1((uint32_t)(x)))))

static const uint32_t nibble[16] = {
    STEP4(0), STEP4(1), STEP4(2),  STEP4(3),  STEP4(4),  STEP4(5),  STEP4(6),  STEP4(7),
    STEP4(8), STEP4(9), STEP4(10), STEP4(11), STEP4(12), STEP4(13), STEP4(14), STEP4(15),
};

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t bytes)
{
    uint64_t wide = crc;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; bytes > 0; p++, bytes--) {
        crc = __builtin_ia32_crc32qi(crc, *p);
    }
    return crc;
}
#endif

uint32_t roll_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~by_instruction(crc, data, bytes);
    }
#endif
    return ~by_table(crc, data, bytes);
}
