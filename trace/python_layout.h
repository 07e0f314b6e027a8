/*
 * python_layout.h: where CPython keeps what a stack consists of, for 3.9 to 3.14, and how it encodes line numbers.
 * Pure.
 */
#ifndef ROLL_TRACE_PYTHON_LAYOUT_H
#define ROLL_TRACE_PYTHON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_PY_NONE         0xffffu /* this version has no such member */
#define ROLL_PY_OFFSET_WORDS 128u    /* words of the table of offsets at the beginning of _PyRuntime, 3.13 and later */

#define ROLL_PY_FRAME_BYTES 128u /* bytes of a frame that are read: all members of interest lie within */

enum roll_py_lines {
    ROLL_PY_LNOTAB,    /* 3.9: pairs (bytes of code, lines) */
    ROLL_PY_RANGES,    /* 3.10: pairs as in LNOTAB, but with gaps, and with ends instead of beginnings */
    ROLL_PY_LOCATIONS, /* 3.11 on: variable-length entries */
};
enum roll_py_at {
    ROLL_PY_AT_BYTE,    /* 3.9: f_lasti counts bytes */
    ROLL_PY_AT_UNIT,    /* 3.10: f_lasti counts code units of two bytes */
    ROLL_PY_AT_POINTER, /* 3.11 on: a pointer into the code */
};

/* Offsets in bytes within each structure. */
struct roll_py_layout {
    unsigned minor; /* the version is 3.minor */
    bool free_threaded;
    enum roll_py_lines lines;
    enum roll_py_at at;
    uint32_t interpreters;                /* first interpreter, in _PyRuntime */
    uint32_t finalizing;                  /* in _PyRuntime; not 0: the interpreter ends, and its states go away */
    uint32_t runtime_key;                 /* in _PyRuntime: 1, and the key of the threads' states. NONE: not known */
    uint32_t interp_next, interp_threads; /* in an interpreter */
    uint32_t thread_next, thread_frame, thread_ident, thread_tid;
    uint32_t cframe_frame; /* 3.11, 3.12: thread_frame leads to a struct that holds the frame here */
    uint32_t frame_code, frame_previous, frame_at, frame_owner, frame_entry;
    uint32_t code_file, code_name, code_qualname, code_lines, code_firstline, code_bytes;
    uint32_t object_type;
    uint32_t bytes_size, bytes_data;
    uint32_t text_length, text_state, text_ascii, text_wide; /* data of ASCII and of other text */
    uint32_t text_kind_bit;                                  /* lowest bit of `kind` in the state */
    uint8_t owner_shim; /* frames of this owner or a greater one stand for C code */
};

/* The table of a version from 3.9 to 3.12 (default builds, x86-64 and other 64-bit machines). NULL for others. */
const struct roll_py_layout *roll_py_layout_known(unsigned minor);
/*
 * Reads the table of offsets that 3.13 and later carry (`count` 64-bit words of it). 0; MAGIC: no such table; VERSION:
 * a version that is not known; CORRUPT: an offset that cannot be.
 */
int roll_py_layout_read(const uint64_t *words, size_t count, struct roll_py_layout *out);

/* The line of the instruction at byte `at` of the code, from its line table: for one that has none, that of the
 * instructions before it, and before all of them the first line of the code. 0: the table does not reach that far.
 * Bounded by `bytes`. */
unsigned roll_py_line(enum roll_py_lines form, const uint8_t *table, size_t bytes, unsigned first_line, unsigned at);

/* One character as UTF-8, at most 4 bytes, not terminated; characters that control a terminal or turn
 * text round, and half pairs, become `?`. Returns the
 * bytes. Pure. */
size_t roll_put_utf8(char *out, uint32_t character);

#endif
