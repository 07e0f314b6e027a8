/*
 * fuzz_pack.c: arbitrary bytes as PACKs: as compressed bytes; so that the fuzzer gets past zstd, as columns that are
 * compressed here; and, so that it gets past the model, as frames, which have to come back bit for bit, and once more
 * with some bytes of their columns changed.
 *
 * Input: records of a mode byte, a byte of frames, two bytes of length, and so many bytes. The tables of the model are
 * small in the fuzz tree.
 */
#include "daemon/store/pack.h"
#include "daemon/store/pack_coder.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t raw[1 << 18], columns[1 << 17], payload[1 << 18];
static roll_unpacker_t *unpacker; /* kept from input to input: number 0 begins anew */
static roll_packer_t *packer;

/* The bytes dealt out to the columns by turns of their first bytes: any bytes are whole columns. */
static size_t deal(const uint8_t *p, size_t n, uint8_t *out)
{
    uint32_t length[PACK_COLUMNS] = {0};
    size_t used = sizeof(length), left = n > PACK_COLUMNS ? n - PACK_COLUMNS : 0;
    for (int i = 0; i < PACK_COLUMNS && n > PACK_COLUMNS; i++) {
        size_t part = i == PACK_COLUMNS - 1 ? left : left * p[i] / 512;
        length[i] = (uint32_t)part;
        left -= part;
    }
    if (n > PACK_COLUMNS) {
        memcpy(out + used, p + PACK_COLUMNS, n - PACK_COLUMNS);
        used += n - PACK_COLUMNS;
    }
    memcpy(out, length, sizeof(length));
    return used;
}

static void take(roll_unpacker_t *u, uint64_t seq, size_t bytes)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_PACK, .seq = seq};
    struct roll_frame pack, frame;
    const uint8_t *out;
    size_t n, used;
    int64_t size = roll_frame_encode(&head, payload, bytes, raw, sizeof(raw));
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

/* frames */

struct maker {
    const uint8_t *p, *end;
    uint64_t ticket[3], seq;
    uint8_t frame[ROLL_FRAME_HEAD_BYTES + 16 * ROLL_RECORD_BYTES];
};

static uint8_t next_byte(struct maker *k)
{
    return k->p < k->end ? *k->p++ : 0;
}

static struct roll_record make_record(struct maker *k, uint64_t ticket)
{
    uint8_t what = next_byte(k), more = next_byte(k);
    return (struct roll_record){.seal = roll_seal(ticket, what & 1 ? ROLL_STATE_ENTERED : ROLL_STATE_RETURNED),
                                .enter_ns = ticket * 1000 + (what & 6 ? 0 : more),
                                .count = what >> 5,
                                .seq = (uint32_t)ticket + (what & 8 ? more : 0),
                                .peer = what & 16 ? more & 3 : -1,
                                .call_ns = what & 1 ? 0 : more,
                                .comm = more & 1,
                                .callsite = more >> 5,
                                .op = 1};
}

/* One frame of the kind that the next bytes say, in k->frame. Returns its bytes. */
static int64_t make_frame(struct maker *k)
{
    uint8_t kind = next_byte(k) % 6, ring = next_byte(k) % 3, n = kind < 2 ? 1 + next_byte(k) % 8 : 0;
    struct roll_frame_head head = {.stream = ring + 1u, .seq = ++k->seq};
    struct roll_record recs[8];
    struct roll_frame_status status = {.head = next_byte(k), .clock_mono_ns = k->seq, .proc_state = 1};
    uint64_t real = k->seq * (next_byte(k) & 1 ? 100000 : 7), first = k->ticket[ring];
    if (kind < 2) {
        bool updates = kind == 1 && first >= n;
        head.type = updates ? ROLL_FRAME_UPDATES : ROLL_FRAME_RECORDS;
        first -= updates ? n : 0;
        for (unsigned i = 0; i < n; i++) {
            recs[i] = make_record(k, first + i);
        }
        k->ticket[ring] = first + n;
        head.first = first;
        head.rec_size = ROLL_RECORD_BYTES;
        head.count = n;
        return roll_frame_encode(&head, recs, n * sizeof(*recs), k->frame, sizeof(k->frame));
    }
    if (kind == 2) {
        head.type = ROLL_FRAME_STATUS;
        return roll_frame_encode(&head, &status, sizeof(status), k->frame, sizeof(k->frame));
    }
    head.type = kind == 3 ? ROLL_FRAME_TICK : ROLL_FRAME_HEARTBEAT;
    head.seq = kind == 3 ? real : head.seq;
    head.stream = kind == 3 ? 0 : head.stream;
    return roll_frame_encode(&head, &real, kind == 3 ? sizeof(real) : 0, k->frame, sizeof(k->frame));
}

/* Changes bytes of the columns of a PACK that begins a stream; nothing where they are too many. */
static void damage(const struct roll_frame *pack, struct maker *k)
{
    static uint8_t plain[1 << 17];
    struct roll_pack_head head;
    memcpy(&head, pack->payload, sizeof(head));
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    ZSTD_inBuffer in = {pack->payload + sizeof(head), pack->head.payload - sizeof(head), 0};
    ZSTD_outBuffer out = {plain, sizeof(plain), 0};
    bool good = zstd && head.columns > 0 && head.columns < sizeof(plain);
    while (good && in.pos < in.size) {
        good = !ZSTD_isError(ZSTD_decompressStream(zstd, &out, &in));
    }
    ZSTD_freeDCtx(zstd);
    if (!good || out.pos != head.columns) {
        abort();
    }
    for (uint8_t left = next_byte(k) % 8; left > 0; left--) {
        size_t at = (size_t)(next_byte(k) | next_byte(k) << 8) % head.columns;
        plain[at] ^= next_byte(k);
    }
    size_t squeezed = ZSTD_compress(payload + sizeof(head), sizeof(payload) - sizeof(head), plain, head.columns, 1);
    memcpy(payload, &head, sizeof(head));
    take(unpacker, 0, sizeof(head) + (ZSTD_isError(squeezed) ? 0 : squeezed));
}

/* Frames of these bytes through the packer and back. */
static void there_and_back(const uint8_t *p, size_t n, unsigned frames)
{
    static uint8_t plain[256 * sizeof((struct maker *)0)->frame];
    struct maker k = {.p = p, .end = p + n};
    struct roll_frame frame;
    size_t used = 0, bytes;
    const uint8_t *out;
    roll_packer_reset(packer);
    for (unsigned i = 0; i < frames; i++) {
        int64_t size = make_frame(&k);
        if (size > 0 && roll_frame_decode(k.frame, (size_t)size, &frame, NULL) == 0 &&
            roll_packer_add(packer, &frame, k.frame, (size_t)size) == 0) {
            memcpy(plain + used, k.frame, (size_t)size);
            used += (size_t)size;
        }
    }
    if (roll_packer_finish(packer, false, &out, &bytes) != 0) {
        return;
    }
    if (roll_frame_decode(out, bytes, &frame, NULL) != 0 || roll_unpacker_take(unpacker, &frame, &out, &bytes) != 0 ||
        bytes != used || memcmp(out, plain, used) != 0) {
        abort();
    }
    damage(&frame, &k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t seq = 0;
    unpacker = unpacker ? unpacker : roll_unpacker_new();
    packer = packer ? packer : roll_packer_new();
    for (size_t at = 0; unpacker && packer && at + 4 <= size; seq++) {
        const uint8_t *p = data + at;
        size_t n = (size_t)(p[2] | p[3] << 8), left = size - at - 4;
        n = n < left ? n : left;
        at += 4 + n;
        if (p[0] & 4) {
            there_and_back(p + 4, n, p[1]);
            seq = UINT64_MAX; /* the pack began a stream of its own */
            continue;
        }
        struct roll_pack_head head = {.frames = p[1]};
        size_t bytes = sizeof(head);
        if (p[0] & 1) {
            head.columns = (uint32_t)n * 4;
            memcpy(payload + bytes, p + 4, n);
            bytes += n;
        } else {
            size_t dealt = deal(p + 4, n, columns);
            head.columns = (uint32_t)dealt;
            size_t squeezed = ZSTD_compress(payload + bytes, sizeof(payload) - bytes, columns, dealt, 1);
            bytes += ZSTD_isError(squeezed) ? 0 : squeezed;
        }
        memcpy(payload, &head, sizeof(head));
        take(unpacker, p[0] & 2 ? 0 : seq, bytes);
    }
    return 0;
}
