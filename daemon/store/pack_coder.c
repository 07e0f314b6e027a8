/*
 * pack_coder.c: columns of bytes and bits.
 *
 * Classes and bits are kept apart because zstd compresses classes and can only carry the bits. Bytes that mix both, as
 * variable-length integers do, compress worse. An arithmetic coder of our own would save another tenth, and was
 * rejected: zstd is used anyway, and is known to be right.
 */
#include "daemon/store/pack_coder.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

void roll_pack_fail(struct roll_pack_coder *c, int err)
{
    c->err = c->err ? c->err : err;
}

static bool make_room(struct roll_pack_coder *c, struct roll_pack_bytes *b, size_t n)
{
    int err = ROLL_GROW(b->data, b->room, b->used + n);
    if (err) {
        roll_pack_fail(c, err);
    }
    return err == 0;
}

void roll_pack_code_bytes(struct roll_pack_coder *c, enum roll_pack_column column, void *bytes, size_t n)
{
    struct roll_pack_bytes *b = &c->column[column];
    if (c->err || n == 0) {
        return;
    }
    if (c->reading) {
        if (b->used - b->at < n) {
            roll_pack_fail(c, ROLL_E_CORRUPT);
            return;
        }
        memcpy(bytes, b->data + b->at, n);
        b->at += n;
    } else if (make_room(c, b, n)) {
        memcpy(b->data + b->used, bytes, n);
        b->used += n;
    }
}

void roll_pack_code_byte(struct roll_pack_coder *c, enum roll_pack_column column, uint8_t *byte)
{
    roll_pack_code_bytes(c, column, byte, 1);
}

static void write_bits(struct roll_pack_coder *c, uint64_t value, unsigned n)
{
    c->bits |= value << c->held;
    c->held += n;
    while (c->held >= 8) {
        uint8_t byte = (uint8_t)c->bits;
        roll_pack_code_byte(c, PACK_BITS, &byte);
        c->bits >>= 8;
        c->held -= 8;
    }
}

static uint64_t read_bits(struct roll_pack_coder *c, unsigned n)
{
    while (c->held < n && !c->err) {
        uint8_t byte = 0;
        roll_pack_code_byte(c, PACK_BITS, &byte);
        c->bits |= (uint64_t)byte << c->held;
        c->held += 8;
    }
    uint64_t value = c->bits & ((UINT64_C(1) << n) - 1);
    c->bits >>= n;
    c->held -= c->held < n ? c->held : n;
    return value;
}

/* Codes bits, at most 32 at a time, so that they fit beside the 7 that may be held. */
static void code_bits(struct roll_pack_coder *c, uint64_t *value, unsigned n)
{
    unsigned low = n > 32 ? 32 : n, high = n - low;
    if (c->reading) {
        *value = read_bits(c, low);
        *value |= high ? read_bits(c, high) << 32 : 0;
    } else {
        write_bits(c, *value & ((UINT64_C(1) << low) - 1), low);
        if (high) {
            write_bits(c, *value >> 32, high);
        }
    }
}

void roll_pack_code_number(struct roll_pack_coder *c, enum roll_pack_column column, uint64_t predicted, uint64_t *value)
{
    uint8_t class = 0;
    uint64_t folded = 0, below = 0;
    if (!c->reading) {
        uint64_t off = *value - predicted;
        folded = off << 1 ^ (uint64_t)((int64_t)off >> 63);
        if (folded < 2) {
            class = (uint8_t)folded;
        } else {
            unsigned length = 64 - (unsigned)__builtin_clzll(folded);
            class = (uint8_t)(2 * (length - 1) + (folded >> (length - 2) & 1));
            below = folded & ((UINT64_C(1) << (length - 2)) - 1);
        }
    }
    roll_pack_code_byte(c, column, &class);
    if (class > 127) {
        roll_pack_fail(c, ROLL_E_CORRUPT);
    }
    if (c->err) {
        *value = c->reading ? predicted : *value;
        return;
    }
    if (class < 2) {
        folded = class;
    } else {
        unsigned length = class / 2u + 1;
        if (length > 2) {
            code_bits(c, &below, length - 2);
        }
        folded = (UINT64_C(2) | (class & 1u)) << (length - 2) | below;
    }
    if (c->reading) {
        *value = predicted + (folded >> 1 ^ (0 - (folded & 1)));
    }
}

void roll_pack_flush_bits(struct roll_pack_coder *c)
{
    if (c->held > 0 && !c->reading) {
        write_bits(c, 0, 8 - c->held);
    }
    c->bits = 0;
    c->held = 0;
}

size_t roll_pack_size(const struct roll_pack_coder *c)
{
    size_t sum = 0;
    for (int i = 0; i < PACK_COLUMNS; i++) {
        sum += c->column[i].used;
    }
    return sum;
}

void roll_pack_clear(struct roll_pack_coder *c)
{
    for (int i = 0; i < PACK_COLUMNS; i++) {
        c->column[i].used = c->column[i].at = 0;
    }
    c->bits = 0;
    c->held = 0;
    c->err = 0;
}

void roll_pack_fini(struct roll_pack_coder *c)
{
    for (int i = 0; i < PACK_COLUMNS; i++) {
        free(c->column[i].data);
        c->column[i] = (struct roll_pack_bytes){0};
    }
}
