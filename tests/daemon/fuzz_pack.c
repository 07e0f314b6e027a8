/*
 * fuzz_pack.c: arbitrary bytes as PACKs: as compressed bytes, and, so that the fuzzer gets past zstd, as columns that are compressed here.
 *
 * Input: records of a mode byte, a byte of frames, two bytes of length, and so many bytes.
 */
#include "daemon/pack.h"
#include "daemon/pack_coder.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t raw[1 << 18], columns[1 << 17], payload[1 << 17];

/* The bytes dealt out to the columns by turns of their first bytes: any bytes are whole columns. */
static size_t deal(const uint8_t *p, size_t n, uint8_t *out)
{
    uint32_t length[PACK_COLUMNS] = {0};
    size_t used = sizeof length, left = n > PACK_COLUMNS ? n - PACK_COLUMNS : 0;
    for (int i = 0; i < PACK_COLUMNS && n > PACK_COLUMNS; i++) {
        size_t part = i == PACK_COLUMNS - 1 ? left : left * p[i] / 512;
        length[i] = (uint32_t)part;
        left -= part;
    }
    if (n > PACK_COLUMNS) {
        memcpy(out + used, p + PACK_COLUMNS, n - PACK_COLUMNS);
        used += n - PACK_COLUMNS;
    }
    memcpy(out, length, sizeof length);
    return used;
}

static void take(roll_unpacker_t *u, uint64_t seq, size_t bytes)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_PACK, .seq = seq};
    struct roll_frame pack, frame;
    const uint8_t *out;
    size_t n, used;
    int64_t size = roll_frame_encode(&head, payload, bytes, raw, sizeof raw);
    if (size < 0 || roll_frame_decode(raw, (size_t)size, &pack, NULL) != 0 ||
        roll_unpacker_take(u, &pack, &out, &n) != 0) {
        return;
    }
    if (n > ROLL_PACK_MAX_FRAMES) {
        abort();
    }
    for (size_t at = 0; at < n && roll_frame_decode(out + at, n - at, &frame, &used) == 0; at += used) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    roll_unpacker_t *u = roll_unpacker_new();
    uint64_t seq = 0;
    for (size_t at = 0; u && at + 4 <= size; seq++) {
        const uint8_t *p = data + at;
        size_t n = (size_t)(p[2] | p[3] << 8), left = size - at - 4;
        n = n < left ? n : left;
        struct roll_pack_head head = {.frames = p[1]};
        size_t bytes = sizeof head;
        if (p[0] & 1) {
            head.columns = (uint32_t)n * 4;
            memcpy(payload + bytes, p + 4, n);
            bytes += n;
        } else {
            size_t dealt = deal(p + 4, n, columns);
            head.columns = (uint32_t)dealt;
            size_t squeezed = ZSTD_compress(payload + bytes, sizeof payload - bytes, columns, dealt, 1);
            bytes += ZSTD_isError(squeezed) ? 0 : squeezed;
        }
        memcpy(payload, &head, sizeof head);
        take(u, p[0] & 2 ? 0 : seq, bytes);
        at += 4 + n;
    }
    roll_unpacker_destroy(&u);
    return 0;
}
