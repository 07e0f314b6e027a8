/*
 * ring_image.c: see ring_image.h. Copying the mapped file as it is was rejected: it is 4 MiB of which most may never
 * have been written, and its newest records would be torn by their writer.
 */
#include "daemon/store/ring_image.h"

#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define LEVEL 1 /* an agent has other work: ten times as fast as the trace's own, and half as large again */

/* Whole entries of the definitions area. */
static size_t defs_of(const struct roll_ring *ring)
{
    uint64_t used = atomic_load_explicit(&ring->header->defs_used, memory_order_acquire);
    size_t bytes = (size_t)(used < ring->defs_bytes ? used : ring->defs_bytes), end = 0;
    struct roll_def def;
    while (end < bytes && roll_def_decode(ring->defs, bytes, &end, &def) == 0) {
    }
    return end < bytes ? end : bytes;
}

static uint32_t power_below(uint64_t n)
{
    uint32_t power = ROLL_RING_MIN_RECORDS;
    while ((uint64_t)power * 2 <= n && power < ROLL_RING_IMAGE_RECORDS) {
        power *= 2;
    }
    return power;
}

/* The header of a ring with `records` records and `defs` bytes of definitions, which is otherwise this one. */
static void make_header(const struct roll_ring *ring, uint32_t records, size_t defs, uint64_t head, uint8_t *out)
{
    struct roll_ring_header *h = (struct roll_ring_header *)(void *)out;
    memcpy(out, ring->header, ROLL_RING_HEADER_BYTES);
    h->header_bytes = ROLL_RING_HEADER_BYTES;
    h->capacity = records;
    h->defs_offset = ROLL_RING_HEADER_BYTES;
    h->defs_bytes = (defs + 4095) / 4096 * 4096;
    h->records_offset = h->defs_offset + h->defs_bytes;
    h->file_bytes = h->records_offset + (uint64_t)records * ROLL_RECORD_BYTES;
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
    atomic_store(&h->head, head);
    atomic_store(&h->defs_used, defs);
}

static void copy_records(const struct roll_ring *ring, uint32_t records, uint64_t head, struct roll_record *out)
{
    for (uint64_t t = head > records ? head - records : 0; t < head; t++) {
        (void)roll_ring_get(ring, t, &out[t & (records - 1)]); /* one that is not there stays empty */
    }
}

static int pack(const uint8_t *raw, size_t bytes, size_t most, struct roll_ring_image *out)
{
    size_t room = ZSTD_compressBound(bytes);
    uint8_t *packed = malloc(room);
    size_t n = packed ? ZSTD_compress(packed, room, raw, bytes, LEVEL) : 0;
    if (!packed || ZSTD_isError(n) || n > most) {
        free(packed);
        return packed && !ZSTD_isError(n) ? ROLL_E_SIZE : ROLL_E_NOMEM;
    }
    out->bytes = packed;
    out->used = n;
    return 0;
}

int roll_ring_image_make(const struct roll_ring *ring, uint32_t records, size_t most, struct roll_ring_image *out)
{
    uint64_t head = roll_ring_head(ring), capacity = ring->mask + 1;
    size_t defs = defs_of(ring), area = (defs + 4095) / 4096 * 4096;
    uint32_t n = power_below(records < capacity ? records : capacity);
    *out = (struct roll_ring_image){.head = head};
    while (n > ROLL_RING_MIN_RECORDS && n / 2 >= head) { /* no more than there are */
        n /= 2;
    }
    for (;; n /= 2) {
        size_t bytes = ROLL_RING_HEADER_BYTES + area + (size_t)n * ROLL_RECORD_BYTES;
        uint8_t *raw = calloc(1, bytes);
        if (!raw) {
            return ROLL_E_NOMEM;
        }
        make_header(ring, n, defs, head, raw);
        memcpy(raw + ROLL_RING_HEADER_BYTES, ring->defs, defs);
        copy_records(ring, n, head, (struct roll_record *)(void *)(raw + ROLL_RING_HEADER_BYTES + area));
        int err = pack(raw, bytes, most, out);
        free(raw);
        out->records = n;
        if (err != ROLL_E_SIZE || n == ROLL_RING_MIN_RECORDS) {
            return err;
        }
    }
}

int roll_ring_image_open(const void *image, size_t bytes, uint8_t **data, size_t *size)
{
    unsigned long long whole = ZSTD_getFrameContentSize(image, bytes);
    *data = NULL;
    if (whole == ZSTD_CONTENTSIZE_ERROR || whole == ZSTD_CONTENTSIZE_UNKNOWN || whole < ROLL_RING_HEADER_BYTES) {
        return ROLL_E_CORRUPT;
    }
    if (whole > ROLL_RING_IMAGE_BYTES) {
        return ROLL_E_SIZE;
    }
    uint8_t *raw = malloc((size_t)whole);
    if (!raw) {
        return ROLL_E_NOMEM;
    }
    size_t n = ZSTD_decompress(raw, (size_t)whole, image, bytes);
    int err = ZSTD_isError(n) || n != whole ? ROLL_E_CORRUPT : roll_ring_check(raw, (size_t)whole);
    if (err) {
        free(raw);
        return err;
    }
    *data = raw;
    *size = (size_t)whole;
    return 0;
}
