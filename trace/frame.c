/*
 * frame.c: encodes and decodes wire frames, and the head of trace files.
 *
 * The checksum is checked before any field that is not needed to find how far it reaches. So damage on the way is
 * reported as "checksum", and contradictions behind a good checksum as "corrupt": the first is the network's fault, the
 * second the sender's.
 */
#include "trace/frame.h"
#include "trace/control.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <string.h>

#define CRC_AT offsetof(struct roll_frame_head, crc)

static bool carries_records(unsigned type)
{
    return type == ROLL_FRAME_RECORDS || type == ROLL_FRAME_UPDATES;
}

static uint32_t checksum(const uint8_t *frame, size_t bytes)
{
    static const uint8_t zero[4];
    uint32_t crc = roll_crc32c(0, frame, CRC_AT);
    crc = roll_crc32c(crc, zero, sizeof(zero));
    return roll_crc32c(crc, frame + CRC_AT + 4, bytes - CRC_AT - 4);
}

int64_t roll_frame_encode(const struct roll_frame_head *head, const void *payload, size_t payload_bytes, void *out,
                          size_t out_bytes)
{
    if (payload_bytes > ROLL_FRAME_MAX_BYTES - ROLL_FRAME_HEAD_BYTES ||
        payload_bytes + ROLL_FRAME_HEAD_BYTES > out_bytes) {
        return ROLL_E_SIZE;
    }
    struct roll_frame_head h = *head;
    h.magic = ROLL_FRAME_MAGIC;
    h.major = ROLL_FRAME_MAJOR;
    h.minor = roll_frame_minor(head);
    h.hdr_len = ROLL_FRAME_HEAD_BYTES;
    h.payload = (uint32_t)payload_bytes;
    h.crc = 0;
    if (carries_records(h.type)) {
        h.rec_size = h.rec_size != 0 ? h.rec_size : ROLL_RECORD_BYTES;
        if (h.rec_size < ROLL_RECORD_BYTES || (uint64_t)h.count * h.rec_size != payload_bytes) {
            return ROLL_E_SIZE;
        }
    } else {
        h.rec_size = 0;
        h.count = 0;
    }
    uint8_t *bytes = out;
    if (payload_bytes > 0) {
        memmove(bytes + ROLL_FRAME_HEAD_BYTES, payload, payload_bytes);
    }
    memcpy(bytes, &h, sizeof(h));
    h.crc = checksum(bytes, ROLL_FRAME_HEAD_BYTES + payload_bytes);
    memcpy(bytes, &h, sizeof(h));
    return (int64_t)(ROLL_FRAME_HEAD_BYTES + payload_bytes);
}

void roll_frame_record(const struct roll_frame *frame, uint32_t i, struct roll_record *out)
{
    memcpy(out, frame->payload + (size_t)i * frame->head.rec_size, sizeof(*out));
}

static int check_records(const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (h->rec_size < ROLL_RECORD_BYTES || (uint64_t)h->count * h->rec_size != h->payload) {
        return ROLL_E_CORRUPT;
    }
    uint64_t least = h->first;
    for (uint32_t i = 0; i < h->count; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        int err = roll_record_check(&rec);
        if (err < 0) {
            return err;
        }
        uint64_t ticket = roll_seal_ticket(rec.seal);
        if (h->type == ROLL_FRAME_RECORDS && (ticket < least || (i == 0 && ticket != h->first))) {
            return ROLL_E_CORRUPT;
        }
        least = ticket + 1;
    }
    return ROLL_OK;
}

/* Payloads of fixed layout; newer writers may make them longer. */
static const uint32_t least_payload[] = {
    [ROLL_FRAME_RING] = ROLL_RING_HEADER_BYTES,           [ROLL_FRAME_STATUS] = sizeof(struct roll_frame_status),
    [ROLL_FRAME_ACK] = sizeof(struct roll_frame_ack),     [ROLL_FRAME_CONTROL] = ROLL_FRAME_CONTROL_OLDEST_BYTES,
    [ROLL_FRAME_SIGHT] = sizeof(struct roll_frame_sight), [ROLL_FRAME_SETTINGS] = sizeof(struct roll_frame_settings),
};

static int check_payload(const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (carries_records(h->type)) {
        return check_records(frame);
    }
    if (h->type == 0 || h->rec_size != 0 || h->count != 0) {
        return ROLL_E_CORRUPT;
    }
    if (h->type < sizeof(least_payload) / sizeof(least_payload[0]) && h->payload < least_payload[h->type]) {
        return ROLL_E_CORRUPT;
    }
    return ROLL_OK;
}

int64_t roll_frame_make(const struct roll_frame_head *head, const void *payload, size_t payload_bytes, void *out,
                        size_t out_bytes, struct roll_frame *frame)
{
    int64_t n = roll_frame_encode(head, payload, payload_bytes, out, out_bytes);
    if (n < 0) {
        return n;
    }
    struct roll_frame made = {.payload = (const uint8_t *)out + ROLL_FRAME_HEAD_BYTES};
    memcpy(&made.head, out, sizeof(made.head));
    int err = check_payload(&made);
    if (err < 0) {
        return err;
    }
    *frame = made;
    return n;
}

int roll_frame_decode(const void *data, size_t bytes, struct roll_frame *out, size_t *used)
{
    const uint8_t *p = data;
    struct roll_frame_head h = {0};
    if (bytes < sizeof(h.magic)) {
        return ROLL_E_SHORT;
    }
    memcpy(&h, p, bytes < sizeof(h) ? bytes : sizeof(h));
    if (h.magic != ROLL_FRAME_MAGIC) {
        return ROLL_E_MAGIC;
    }
    if (bytes < ROLL_FRAME_HEAD_BYTES) {
        return ROLL_E_SHORT;
    }
    if (h.major != ROLL_FRAME_MAJOR) {
        return ROLL_E_VERSION;
    }
    if (h.hdr_len < ROLL_FRAME_HEAD_BYTES || h.payload > ROLL_FRAME_MAX_BYTES ||
        h.hdr_len + h.payload > ROLL_FRAME_MAX_BYTES) {
        return ROLL_E_SIZE;
    }
    size_t total = (size_t)h.hdr_len + h.payload;
    if (total > bytes) {
        return ROLL_E_SHORT;
    }
    if (used == NULL && total != bytes) {
        return ROLL_E_SIZE;
    }
    if (checksum(p, total) != h.crc) {
        return ROLL_E_CHECKSUM;
    }
    struct roll_frame frame = {.head = h, .payload = p + h.hdr_len};
    int err = check_payload(&frame);
    if (err < 0) {
        return err;
    }
    *out = frame;
    if (used != NULL) {
        *used = total;
    }
    return ROLL_OK;
}

struct trace_head {
    char magic[8];
    uint16_t version;
    uint16_t oldest;
    uint32_t reserved;
};
_Static_assert(sizeof(struct trace_head) == ROLL_TRACE_HEAD_BYTES, "the head of a trace file is 16 bytes");

void roll_trace_head(uint8_t out[ROLL_TRACE_HEAD_BYTES])
{
    struct trace_head head = {.version = ROLL_TRACE_VERSION, .oldest = ROLL_TRACE_VERSION};
    memcpy(head.magic, ROLL_TRACE_MAGIC, sizeof(head.magic));
    memcpy(out, &head, sizeof(head));
}

int roll_trace_check(const void *data, size_t bytes)
{
    struct trace_head head = {0};
    if (bytes >= sizeof(head.magic) && memcmp(data, ROLL_TRACE_MAGIC, sizeof(head.magic)) != 0) {
        return ROLL_E_MAGIC;
    }
    if (bytes < sizeof(head)) {
        return ROLL_E_SHORT;
    }
    memcpy(&head, data, sizeof(head));
    return head.version < ROLL_TRACE_OLDEST || head.oldest > ROLL_TRACE_VERSION ? ROLL_E_VERSION : ROLL_OK;
}
