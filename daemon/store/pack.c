/*
 * pack.c: PACK frames: compresses the model's columns with zstd, and decompresses them again.
 *
 * One zstd stream runs through all PACKs of a segment and is flushed at the end of each, so small PACKs compress nearly
 * as well as large ones, and a reader that follows a writer sees the whole of each. A large column ends a zstd block,
 * because each column has its own statistics. A stream per PACK was rejected: a slow job writes a PACK a second, and
 * would pay for its dictionary in each.
 */
#include "daemon/store/pack.h"

#include "daemon/base/array.h"
#include "daemon/store/pack_model.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define WINDOW_LOG 20  /* 1 MiB, which a reader must be ready to keep */
#define OWN_BLOCK  512 /* a column of this many bytes gets statistics of its own */
#define LENGTHS    ((size_t)PACK_COLUMNS * sizeof(uint32_t))
#define HEAD       (ROLL_FRAME_HEAD_BYTES + sizeof(struct roll_pack_head))

struct roll_packer {
    struct roll_pack_model *model;
    struct roll_pack_coder coder;
    ZSTD_CCtx *zstd;
    uint64_t number; /* number of the next PACK in the segment */
    uint32_t frames, records;
    uint8_t *out;
    size_t room;
};

struct roll_unpacker {
    struct roll_pack_model *model;
    ZSTD_DCtx *zstd;
    uint64_t number; /* number of the next PACK; UINT64_MAX: only PACK 0 can be read */
    uint8_t *columns, *out;
    size_t columns_room, out_room;
};

/* packing */

roll_packer_t *roll_packer_new(void)
{
    roll_packer_t *p = calloc(1, sizeof(*p));
    if (p) {
        p->model = roll_pack_model_new();
        p->zstd = ZSTD_createCCtx();
        if (!p->model || !p->zstd) {
            roll_packer_destroy(&p);
            return NULL;
        }
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, ROLL_PACK_LEVEL);
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_windowLog, WINDOW_LOG);
    }
    return p;
}

void roll_packer_destroy(roll_packer_t **packer)
{
    roll_packer_t *p = *packer;
    if (p) {
        roll_pack_model_destroy(&p->model);
        roll_pack_fini(&p->coder);
        ZSTD_freeCCtx(p->zstd);
        free(p->out);
        free(p);
        *packer = NULL;
    }
}

void roll_packer_reset(roll_packer_t *p)
{
    roll_pack_model_reset(p->model);
    roll_pack_clear(&p->coder);
    ZSTD_CCtx_reset(p->zstd, ZSTD_reset_session_only);
    p->number = 0;
    p->frames = p->records = 0;
}

int roll_packer_add(roll_packer_t *p, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    if (frame->head.type == ROLL_FRAME_PACK) {
        return ROLL_E_ARG;
    }
    roll_pack_write(p->model, &p->coder, frame, raw, bytes);
    p->frames++;
    p->records += frame->head.count;
    return p->coder.err;
}

uint32_t roll_packer_waiting(const roll_packer_t *p, size_t *bytes, bool *full)
{
    *bytes = roll_pack_size(&p->coder);
    *full = p->records >= ROLL_PACK_RECORDS || *bytes >= ROLL_PACK_BYTES;
    return p->frames;
}

/* Compresses all of these bytes. */
static int squeeze(roll_packer_t *p, size_t *used, const void *data, size_t bytes, ZSTD_EndDirective end)
{
    ZSTD_inBuffer in = {data, bytes, 0};
    size_t left;
    do {
        if (p->room < *used + ZSTD_CStreamOutSize()) {
            int err = ROLL_GROW(p->out, p->room, p->room * 2 + ZSTD_CStreamOutSize());
            if (err) {
                return err;
            }
        }
        ZSTD_outBuffer out = {p->out, p->room, *used};
        left = ZSTD_compressStream2(p->zstd, &out, &in, end);
        if (ZSTD_isError(left)) {
            return ROLL_E_IO;
        }
        *used = out.pos;
    } while (end == ZSTD_e_continue ? in.pos < in.size : left > 0);
    return 0;
}

int roll_packer_finish(roll_packer_t *p, bool repeats, const uint8_t **out, size_t *bytes)
{
    uint32_t length[PACK_COLUMNS];
    size_t used = HEAD;
    if (p->frames == 0) {
        return ROLL_E_NOTFOUND;
    }
    roll_pack_flush_bits(&p->coder);
    int err = p->coder.err;
    for (int i = 0; i < PACK_COLUMNS; i++) {
        length[i] = (uint32_t)p->coder.column[i].used;
    }
    struct roll_pack_head head = {.frames = p->frames, .columns = (uint32_t)(roll_pack_size(&p->coder) + LENGTHS)};
    if (!err) {
        err = squeeze(p, &used, length, sizeof(length), ZSTD_e_continue);
    }
    for (int i = 0; i < PACK_COLUMNS && !err; i++) {
        const struct roll_pack_bytes *b = &p->coder.column[i];
        bool own = b->used >= OWN_BLOCK || i == PACK_COLUMNS - 1 || p->coder.column[i + 1].used >= OWN_BLOCK;
        err = squeeze(p, &used, b->data, b->used, own ? ZSTD_e_flush : ZSTD_e_continue);
    }
    if (err) {
        return err;
    }
    memcpy(p->out + ROLL_FRAME_HEAD_BYTES, &head, sizeof(head));
    struct roll_frame_head frame = {.type = ROLL_FRAME_PACK, .seq = p->number, .first = repeats};
    int64_t n = roll_frame_encode(&frame, p->out + ROLL_FRAME_HEAD_BYTES, used - ROLL_FRAME_HEAD_BYTES, p->out, used);
    if (n < 0) {
        return (int)n;
    }
    p->number++;
    p->frames = p->records = 0;
    roll_pack_clear(&p->coder);
    *out = p->out;
    *bytes = (size_t)n;
    return 0;
}

/* unpacking */

roll_unpacker_t *roll_unpacker_new(void)
{
    roll_unpacker_t *u = calloc(1, sizeof(*u));
    if (u) {
        u->number = UINT64_MAX;
        u->model = roll_pack_model_new();
        u->zstd = ZSTD_createDCtx();
        if (!u->model || !u->zstd) {
            roll_unpacker_destroy(&u);
            return NULL;
        }
        ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, WINDOW_LOG);
    }
    return u;
}

void roll_unpacker_destroy(roll_unpacker_t **unpacker)
{
    roll_unpacker_t *u = *unpacker;
    if (u) {
        roll_pack_model_destroy(&u->model);
        ZSTD_freeDCtx(u->zstd);
        free(u->columns);
        free(u->out);
        free(u);
        *unpacker = NULL;
    }
}

/* The compressed bytes must give exactly what the head promises. */
static int expand(roll_unpacker_t *u, const uint8_t *data, size_t bytes, size_t columns)
{
    ZSTD_inBuffer in = {data, bytes, 0};
    ZSTD_outBuffer out = {u->columns, columns + 1, 0}; /* one more byte, to notice when there are too many */
    while (in.pos < in.size) {
        size_t before = in.pos + out.pos;
        size_t hint = ZSTD_decompressStream(u->zstd, &out, &in);
        if (ZSTD_isError(hint) || out.pos > columns || in.pos + out.pos == before) {
            return ROLL_E_CORRUPT;
        }
    }
    return out.pos == columns ? 0 : ROLL_E_CORRUPT;
}

static int split(const roll_unpacker_t *u, size_t columns, struct roll_pack_coder *c)
{
    uint32_t length[PACK_COLUMNS];
    size_t at = sizeof(length);
    memcpy(length, u->columns, sizeof(length));
    for (int i = 0; i < PACK_COLUMNS; i++) {
        if (length[i] > columns - at) {
            return ROLL_E_CORRUPT;
        }
        c->column[i] = (struct roll_pack_bytes){.data = u->columns + at, .used = length[i]};
        at += length[i];
    }
    return at == columns ? 0 : ROLL_E_CORRUPT;
}

/* Reads all frames of the columns. */
static int frames_out(roll_unpacker_t *u, struct roll_pack_coder *c, uint32_t frames, size_t *bytes)
{
    size_t used = 0;
    if (ROLL_GROW(u->out, u->out_room, ROLL_PACK_MAX_FRAMES) != 0) { /* at once: only what is used costs memory */
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < frames; i++) {
        size_t left = ROLL_PACK_MAX_FRAMES - used, most = left < ROLL_FRAME_MAX_BYTES ? left : ROLL_FRAME_MAX_BYTES;
        int64_t n = roll_pack_read(u->model, c, u->out + used, most);
        if (n < 0) {
            return (int)n;
        }
        used += (size_t)n;
    }
    for (int i = 0; i < PACK_COLUMNS; i++) {
        if (c->column[i].at != c->column[i].used) {
            return ROLL_E_CORRUPT;
        }
    }
    *bytes = used;
    return 0;
}

int roll_unpacker_take(roll_unpacker_t *u, const struct roll_frame *pack, const uint8_t **out, size_t *bytes)
{
    struct roll_pack_head head;
    if (pack->head.type != ROLL_FRAME_PACK) {
        return ROLL_E_ARG;
    }
    if (pack->head.payload < sizeof(head)) {
        return ROLL_E_CORRUPT;
    }
    memcpy(&head, pack->payload, sizeof(head));
    if (pack->head.seq == 0) {
        roll_pack_model_reset(u->model);
        ZSTD_DCtx_reset(u->zstd, ZSTD_reset_session_only);
    } else if (pack->head.seq != u->number) {
        return ROLL_E_INCOMPLETE;
    }
    u->number = UINT64_MAX;
    if (head.columns > ROLL_PACK_MAX_COLUMNS || head.columns < LENGTHS) {
        return head.columns < LENGTHS ? ROLL_E_CORRUPT : ROLL_E_LIMIT;
    }
    if (ROLL_GROW(u->columns, u->columns_room, head.columns + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    struct roll_pack_coder coder = {.reading = true};
    int err = expand(u, pack->payload + sizeof(head), pack->head.payload - sizeof(head), head.columns);
    if (!err) {
        err = split(u, head.columns, &coder);
    }
    if (!err) {
        err = frames_out(u, &coder, head.frames, bytes);
    }
    if (!err) {
        u->number = pack->head.seq + 1;
        *out = u->out;
    }
    return err;
}
