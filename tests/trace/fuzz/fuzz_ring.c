/*
 * fuzz_ring.c: arbitrary bytes as a ring file: checked as they are, then with a repaired head, then read in full.
 *
 * The head is repaired because no fuzzer guesses a checksum; its geometry is repaired only every other time, so that
 * both wrong sizes and the code behind them are reached.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <string.h>

static void repair(uint8_t *ring, size_t bytes, bool geometry)
{
    struct roll_ring_header *h = (struct roll_ring_header *)(void *)ring;
    memcpy(h->magic, ROLL_RING_MAGIC, 8);
    h->version = ROLL_RING_VERSION;
    h->oldest = ROLL_RING_VERSION;
    if (geometry) {
        h->header_bytes = ROLL_RING_HEADER_BYTES;
        h->record_bytes = ROLL_RECORD_BYTES;
        h->capacity = 64;
        h->defs_offset = h->header_bytes;
        h->defs_bytes = (bytes - h->header_bytes - 64 * 64) & ~(size_t)63;
        h->records_offset = h->defs_offset + h->defs_bytes;
        h->file_bytes = h->records_offset + 64 * 64;
        h->job[ROLL_NAME_BYTES - 1] = '\0';
        h->host[ROLL_NAME_BYTES - 1] = '\0';
        h->exe[sizeof(h->exe) - 1] = '\0';
        h->pid |= 1;
        h->epoch |= 1;
        h->world_rank = -1;
        h->world_size &= 0xffff;
        h->local_rank &= 0xff;
    }
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
}

static void read_records(const struct roll_ring *ring, uint64_t from)
{
    struct roll_record out[16];
    uint64_t next = from;
    uint64_t lost = 0;
    for (unsigned i = 0; i < 64; i++) {
        uint64_t at = next;
        size_t n = roll_ring_read(ring, at, out, 16, &next, &lost);
        PROMISE(n <= 16 && next - at >= n);
        for (size_t j = 0; j < n; j++) {
            char line[512];
            struct roll_record again;
            PROMISE(roll_seal_state(out[j].seal) != ROLL_STATE_EMPTY);
            roll_record_check(&out[j]);
            roll_record_format(&out[j], line, sizeof(line));
            /* What the scan gave, asking for it gives again. A file at rest does not change. */
            PROMISE(roll_ring_get(ring, roll_seal_ticket(out[j].seal), &again) == ROLL_OK || next >= UINT64_MAX >> 8);
        }
        next += n == 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct roll_ring ring;
    uint8_t *copy = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    PROMISE(copy != NULL);
    memset(copy, 0, (bytes + 64) & ~(size_t)63);
    memcpy(copy, data, bytes);
    roll_ring_check(copy, bytes);
    if (bytes >= ROLL_RING_HEADER_BYTES + 64 * 64) {
        repair(copy, bytes, data[bytes - 1] % 2 == 0);
    }
    if (roll_ring_view(copy, bytes, &ring) == ROLL_OK) {
        PROMISE(ring.header->file_bytes <= bytes);
        uint64_t head = atomic_load(&ring.header->head);
        read_records(&ring, 0);
        read_records(&ring, head - 70);
        read_records(&ring, head + 1);
        size_t offset = 0;
        struct roll_def def;
        size_t before = 0;
        while (roll_def_decode(ring.defs, ring.header->defs_bytes, &offset, &def) == ROLL_OK) {
            PROMISE(offset > before && offset <= ring.header->defs_bytes);
            before = offset;
        }
        roll_ring_close(&ring);
    }
    free(copy);
    return 0;
}
