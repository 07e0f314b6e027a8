/*
 * fuzz_rdig.c: arbitrary bytes as an .rdig file, with head and checksum made right, so that what lies behind them is
 * reached: sections are refused or lie within the bytes, and their spans, digests and traces are read as far as analyze
 * reads them before an engine.
 */
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/rdig.h"
#include "trace/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every byte of a part is read. */
static uint32_t touch(const void *part, uint64_t bytes)
{
    return bytes > 0 ? roll_crc32c(0, part, (size_t)bytes) : 0;
}

static void read_spans(const struct roll_rdig_view *v)
{
    struct roll_span *list = malloc((v->is.spans + 1) * sizeof(*list)), where;
    if (list) {
        roll_rdig_spans(v, 0, v->is.spans, list);
        size_t half = v->is.spans / 2;
        if (roll_spans_are(list, half) && roll_spans_are(list + half, v->is.spans - half)) {
            (void)roll_spans_differ(list, half, list + half, v->is.spans - half, &where);
        }
    }
    free(list);
}

static void read_section(const struct roll_rdig_view *v)
{
    struct roll_digest d = {0};
    struct roll_rdig_ring ring;
    struct roll_rdig_comm comm;
    uint32_t sum = touch(v->name, v->is.name_bytes) + touch(v->path, v->is.path_bytes) +
                   touch(v->head, v->is.head_bytes) + touch(v->trace, v->is.trace_bytes);
    for (uint32_t i = 0; i < v->is.rings; i++) {
        roll_rdig_ring(v, i, &ring);
        sum += (uint32_t)ring.next;
    }
    for (uint32_t i = 0; i < v->is.comms; i++) {
        roll_rdig_comm(v, i, &comm);
        sum += comm.from;
    }
    (void)sum;
    (void)roll_digest_decode(v->digest, v->is.digest_bytes, &d);
    roll_digest_fini(&d);
    read_spans(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roll_rdig_out out = {0};
    struct roll_rdig_view v;
    uint32_t sections;
    (void)roll_rdig_check(data, size, &sections);
    if (size > sizeof(struct roll_rdig_head) && memcmp(data, ROLL_RDIG_MAGIC, 8) == 0) { /* a seed is a whole file */
        data += sizeof(struct roll_rdig_head);
        size -= sizeof(struct roll_rdig_head);
    }
    size_t bytes = sizeof(struct roll_rdig_head) + size;
    out.bytes = malloc(bytes);
    if (!out.bytes) {
        return 0;
    }
    memset(out.bytes, 0, sizeof(struct roll_rdig_head));
    memcpy(out.bytes + sizeof(struct roll_rdig_head), data, size);
    out.used = out.room = bytes;
    if (roll_rdig_seal(&out) != 0 || roll_rdig_check(out.bytes, out.used, &sections) != 0) {
        abort();
    }
    for (uint16_t version = ROLL_RDIG_OLDEST; version <= ROLL_RDIG_VERSION; version++) {
        memcpy(out.bytes + offsetof(struct roll_rdig_head, version), &version, sizeof(version));
        for (size_t at = 0; roll_rdig_next(out.bytes, out.used, &at, &v) == 0;) {
            if (at > out.used) {
                abort();
            }
            read_section(&v);
        }
    }
    roll_rdig_fini(&out);
    return 0;
}
