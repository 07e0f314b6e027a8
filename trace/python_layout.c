/*
 * python_layout.c: the tables.
 *
 * The offsets of 3.9 to 3.12 are those that a C compiler gives for these versions' own headers (debug and tracing
 * builds differ and are refused by the reader's checks). From 3.13 on an interpreter carries its offsets, in an order
 * that changed with 3.14: only the places of the words in that table stand here.
 */
#include "trace/python_layout.h"

#include "trace/err.h"

#include <string.h>

#define OFFSET_MAX (1u << 24)

/* clang-format off */
static const struct roll_py_layout known[] = {
    {.minor = 9, .lines = ROLL_PY_LNOTAB, .at = ROLL_PY_AT_BYTE, .interpreters = 32,
     .finalizing = 16, .runtime_key = 584, .interp_next = 0, .interp_threads = 8,
     .thread_next = 8, .thread_frame = 24, .thread_ident = 176, .thread_tid = ROLL_PY_NONE,
      .cframe_frame = ROLL_PY_NONE,
     .frame_code = 32, .frame_previous = 24, .frame_at = 104, .frame_owner = ROLL_PY_NONE, .frame_entry = ROLL_PY_NONE,
     .code_file = 104, .code_name = 112, .code_qualname = ROLL_PY_NONE, .code_lines = 120, .code_firstline = 40,
      .code_bytes = ROLL_PY_NONE,
     .object_type = 8, .bytes_size = 16, .bytes_data = 32,
     .text_length = 16, .text_state = 32, .text_ascii = 48, .text_wide = 72, .text_kind_bit = 2,
      .owner_shim = UINT8_MAX},
    {.minor = 10, .lines = ROLL_PY_RANGES, .at = ROLL_PY_AT_UNIT, .interpreters = 32,
     .finalizing = 16, .runtime_key = 584, .interp_next = 0, .interp_threads = 8,
     .thread_next = 8, .thread_frame = 24, .thread_ident = 176, .thread_tid = ROLL_PY_NONE,
      .cframe_frame = ROLL_PY_NONE,
     .frame_code = 32, .frame_previous = 24, .frame_at = 96, .frame_owner = ROLL_PY_NONE, .frame_entry = ROLL_PY_NONE,
     .code_file = 104, .code_name = 112, .code_qualname = ROLL_PY_NONE, .code_lines = 120, .code_firstline = 40,
      .code_bytes = ROLL_PY_NONE,
     .object_type = 8, .bytes_size = 16, .bytes_data = 32,
     .text_length = 16, .text_state = 32, .text_ascii = 48, .text_wide = 72, .text_kind_bit = 2,
      .owner_shim = UINT8_MAX},
    {.minor = 11, .lines = ROLL_PY_LOCATIONS, .at = ROLL_PY_AT_POINTER, .interpreters = 40,
     .finalizing = 24, .runtime_key = 592, .interp_next = 0, .interp_threads = 16,
     .thread_next = 8, .thread_frame = 56, .thread_ident = 152, .thread_tid = 160, .cframe_frame = 8,
     .frame_code = 32, .frame_previous = 48, .frame_at = 56, .frame_owner = 69, .frame_entry = 68,
     .code_file = 112, .code_name = 120, .code_qualname = 128, .code_lines = 136, .code_firstline = 72,
      .code_bytes = 184,
     .object_type = 8, .bytes_size = 16, .bytes_data = 32,
     .text_length = 16, .text_state = 32, .text_ascii = 48, .text_wide = 72, .text_kind_bit = 2, .owner_shim = 3},
    {.minor = 12, .lines = ROLL_PY_LOCATIONS, .at = ROLL_PY_AT_POINTER, .interpreters = 40,
     .finalizing = 24, .runtime_key = 1544, .interp_next = 0, .interp_threads = 72,
     .thread_next = 8, .thread_frame = 56, .thread_ident = 136, .thread_tid = 144, .cframe_frame = 0,
     .frame_code = 0, .frame_previous = 8, .frame_at = 56, .frame_owner = 70, .frame_entry = ROLL_PY_NONE,
     .code_file = 112, .code_name = 120, .code_qualname = 128, .code_lines = 136, .code_firstline = 68,
      .code_bytes = 192,
     .object_type = 8, .bytes_size = 16, .bytes_data = 32,
     .text_length = 16, .text_state = 32, .text_ascii = 40, .text_wide = 56, .text_kind_bit = 2, .owner_shim = 3},
};

/* Which word of the table of offsets holds which offset. */
static const struct {
    unsigned minor;
    uint8_t finalizing, interpreters, interp_next, interp_threads, thread_next, thread_frame, thread_ident, thread_tid;
    uint8_t frame_previous, frame_code, frame_at, frame_owner;
    uint8_t code_file, code_name, code_qualname, code_lines, code_firstline, code_bytes, object_type;
} places[] = {
    {13, 4, 5, 8, 9, 21, 23, 24, 25, 29, 30, 31, 33, 35, 36, 37, 38, 39, 43, 45},
    {14, 4, 5, 8, 9, 24, 26, 27, 28, 32, 33, 34, 36, 40, 41, 42, 43, 44, 48, 51},
};
/* clang-format on */

const struct roll_py_layout *roll_py_layout_known(unsigned minor)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].minor == minor) {
            return &known[i];
        }
    }
    return NULL;
}

int roll_py_layout_read(const uint64_t *words, size_t count, struct roll_py_layout *out)
{
    if (count < 3 || memcmp(words, "xdebugpy", 8) != 0) {
        return ROLL_E_MAGIC;
    }
    unsigned minor = (unsigned)(words[1] >> 16 & 0xff), major = (unsigned)(words[1] >> 24 & 0xff);
    size_t i = 0;
    while (i < sizeof(places) / sizeof(places[0]) && places[i].minor != minor) {
        i++;
    }
    if (major != 3 || i == sizeof(places) / sizeof(places[0])) {
        return ROLL_E_VERSION;
    }
    if (places[i].object_type >= count) {
        return ROLL_E_SHORT;
    }
    bool free_threaded = words[2] != 0;
    uint32_t base = free_threaded ? 32 : 16; /* where an object's own members begin */
    *out = (struct roll_py_layout){
        .minor = minor,
        .free_threaded = free_threaded,
        .lines = ROLL_PY_LOCATIONS,
        .at = ROLL_PY_AT_POINTER,
        .runtime_key = minor == 13 ? 2160 : ROLL_PY_NONE, /* no part of the table, and looked at before use */
        .cframe_frame = ROLL_PY_NONE,
        .frame_entry = ROLL_PY_NONE,
        .owner_shim = 3,
        .bytes_size = base,
        .bytes_data = base + 16,
        .text_length = base,
        .text_state = base + 16,
        .text_ascii = base + 24,
        .text_wide = base + 40,
        .text_kind_bit = free_threaded && minor >= 14 ? 8 : 2,
    };
    const struct {
        uint32_t *to;
        uint8_t word;
    } fields[] = {
        {&out->finalizing, places[i].finalizing},
        {&out->interpreters, places[i].interpreters},
        {&out->interp_next, places[i].interp_next},
        {&out->interp_threads, places[i].interp_threads},
        {&out->thread_next, places[i].thread_next},
        {&out->thread_frame, places[i].thread_frame},
        {&out->thread_ident, places[i].thread_ident},
        {&out->thread_tid, places[i].thread_tid},
        {&out->frame_previous, places[i].frame_previous},
        {&out->frame_code, places[i].frame_code},
        {&out->frame_at, places[i].frame_at},
        {&out->frame_owner, places[i].frame_owner},
        {&out->code_file, places[i].code_file},
        {&out->code_name, places[i].code_name},
        {&out->code_qualname, places[i].code_qualname},
        {&out->code_lines, places[i].code_lines},
        {&out->code_firstline, places[i].code_firstline},
        {&out->code_bytes, places[i].code_bytes},
        {&out->object_type, places[i].object_type},
    };
    for (size_t k = 0; k < sizeof(fields) / sizeof(fields[0]); k++) {
        if (words[fields[k].word] >= OFFSET_MAX) {
            return ROLL_E_CORRUPT;
        }
        *fields[k].to = (uint32_t)words[fields[k].word];
    }
    if (out->frame_previous > ROLL_PY_FRAME_BYTES - 8 || out->frame_code > ROLL_PY_FRAME_BYTES - 8 ||
        out->frame_at > ROLL_PY_FRAME_BYTES - 8 || out->frame_owner >= ROLL_PY_FRAME_BYTES) {
        return ROLL_E_CORRUPT;
    }
    return 0;
}

/* lines */

/*
 * What to say of an instruction when the table has come to this line there. Where it has none (line 0, which from 3.11
 * on the beginning of each module's code says, where a thread that waits for the interpreter's lock often stands), the
 * first line of the code is the nearest that is known.
 */
static unsigned known_line(int64_t line, unsigned first)
{
    return line > 0 && line <= INT32_MAX ? (unsigned)line : first;
}

static unsigned lnotab_line(const uint8_t *table, size_t bytes, unsigned first, unsigned at)
{
    unsigned address = 0;
    int64_t line = first;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        address += table[i];
        if (address > at) {
            break;
        }
        line += (int8_t)table[i + 1];
    }
    return known_line(line, first);
}

static unsigned ranges_line(const uint8_t *table, size_t bytes, unsigned first, unsigned at)
{
    unsigned end = 0;
    int64_t line = first;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        int delta = (int8_t)table[i + 1];
        line += delta == -128 ? 0 : delta; /* no line: that of the entry before is the nearest */
        end += table[i];
        if (at < end) {
            return known_line(line, first);
        }
    }
    return 0;
}

struct reader {
    const uint8_t *at, *end;
};

static uint8_t next_byte(struct reader *r)
{
    return r->at < r->end ? *r->at++ : 0;
}

/* Six bits a byte, lowest first; bit 6 says that more follow. */
static uint32_t varint(struct reader *r)
{
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 32; shift += 6) {
        uint8_t byte = next_byte(r);
        value |= (uint32_t)(byte & 63) << shift;
        if (!(byte & 64)) {
            break;
        }
    }
    return value;
}

static int64_t signed_varint(struct reader *r)
{
    uint32_t value = varint(r);
    return value & 1 ? -(int64_t)(value >> 1) : (int64_t)(value >> 1);
}

/* Kinds of entries: 0-9 two bytes of columns, 10-12 the same behind a line step of 0 to 2, 13 only a line step, 14 line
 * step, end line and columns, 15 nothing: then the line of the entry before is the nearest. */
static unsigned locations_line(const uint8_t *table, size_t bytes, unsigned first, unsigned at)
{
    struct reader r = {table, table + bytes};
    int64_t line = first;
    unsigned end = 0;
    while (r.at < r.end) {
        uint8_t head = next_byte(&r);
        unsigned kind = head >> 3 & 15;
        end += ((head & 7u) + 1) * 2;
        if (kind == 15) {
            /* nothing follows */
        } else if (kind >= 13) {
            line += signed_varint(&r);
            for (int i = 0; kind == 14 && i < 3; i++) {
                varint(&r);
            }
        } else {
            line += kind >= 10 ? (int)kind - 10 : 0;
            for (int i = kind >= 10 ? 2 : 1; i > 0; i--) {
                next_byte(&r);
            }
        }
        if (at < end) {
            return known_line(line, first);
        }
    }
    return 0;
}

unsigned roll_py_line(enum roll_py_lines form, const uint8_t *table, size_t bytes, unsigned first_line, unsigned at)
{
    switch (form) {
    case ROLL_PY_LNOTAB:
        return lnotab_line(table, bytes, first_line, at);
    case ROLL_PY_RANGES:
        return ranges_line(table, bytes, first_line, at);
    default:
        return locations_line(table, bytes, first_line, at);
    }
}

/* text */

/* Characters that steer a terminal, or that turn the order of those beside them round. */
static bool steers(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

size_t roll_put_utf8(char *out, uint32_t c)
{
    c = steers(c) ? '?' : c;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xd800 && c < 0xe000) { /* half of a surrogate pair, from a file name that is no valid text */
            out[0] = '?';
            return 1;
        }
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | (c >> 18 & 7));
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}
