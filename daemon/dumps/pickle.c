/*
 * pickle.c: a decoder of pickles that can execute nothing.
 *
 * A pickle is a program for a stack machine. Of its opcodes those that make plain data are in the table below; the
 * others load names, call what they loaded, or ask for what the file does not hold, and are refused by being absent.
 * The general machine with a filter on names (what Python offers) was rejected: everything would hang on the filter.
 *
 * Bounds: each opcode takes at least one byte and pushes at most one value, so the stack and the memo are bounded by
 * the file; memo numbers must come in turn, as every writer gives them; what lists hold lives in the caller's arena.
 */
#include "daemon/dumps/value.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

enum opcode {
    OP_PROTO = 0x80,
    OP_FRAME = 0x95,
    OP_STOP = '.',
    OP_MARK = '(',
    OP_POP = '0',
    OP_POP_MARK = '1',
    OP_NONE = 'N',
    OP_TRUE = 0x88,
    OP_FALSE = 0x89,
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG1 = 0x8a,
    OP_BINFLOAT = 'G',
    OP_BINUNICODE = 'X',
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_BINSTRING = 'T',
    OP_SHORT_BINSTRING = 'U',
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_EMPTY_LIST = ']',
    OP_EMPTY_TUPLE = ')',
    OP_EMPTY_DICT = '}',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_LIST = 'l',
    OP_TUPLE = 't',
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_DICT = 'd',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_MEMOIZE = 0x94,
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
};

#define PROTO_MAX      5
#define STACK_MOST     (1u << 24) /* values: a writer puts all elements of a list there before the list takes them */
#define MEMO_MOST      (1u << 26)
#define LONG_MAX_BYTES 8 /* no number of a dump is larger than 64 bits */

struct machine {
    struct roll_arena *arena; /* borrowed */
    const uint8_t *data;      /* borrowed */
    size_t bytes, at;
    struct roll_value *stack;
    size_t used, room;
    size_t *mark; /* heights of the stack */
    size_t marks, mark_room;
    struct roll_value *memo;
    size_t memos, memo_room;
};

/* the bytes */

static int take(struct machine *m, size_t n, const uint8_t **out)
{
    if (m->bytes - m->at < n) {
        return ROLL_E_SHORT;
    }
    *out = m->data + m->at;
    m->at += n;
    return 0;
}

/* An unsigned little-endian number of n bytes. */
static int take_number(struct machine *m, size_t n, uint64_t *out)
{
    const uint8_t *p;
    int err = take(m, n, &p);
    *out = 0;
    for (size_t i = 0; i < n && err == 0; i++) {
        *out |= (uint64_t)p[i] << 8 * i;
    }
    return err;
}

/* the stack */

static int push(struct machine *m, const struct roll_value *v)
{
    int err = m->used >= STACK_MOST ? ROLL_E_LIMIT : ROLL_GROW(m->stack, m->room, m->used + 1);
    if (err == 0) {
        m->stack[m->used++] = *v;
    }
    return err;
}

/* The height below which nothing may be popped: that of the newest mark. */
static size_t ground(const struct machine *m)
{
    return m->marks > 0 ? m->mark[m->marks - 1] : 0;
}

/* Takes n values from the stack; they stay readable until the next push. */
static int pop(struct machine *m, size_t n, const struct roll_value **out)
{
    if (m->used - ground(m) < n) {
        return ROLL_E_CORRUPT;
    }
    m->used -= n;
    *out = m->stack + m->used;
    return 0;
}

/* Takes all values above the newest mark, and the mark. */
static int pop_marked(struct machine *m, const struct roll_value **out, size_t *n)
{
    if (m->marks == 0) {
        return ROLL_E_CORRUPT;
    }
    size_t height = m->mark[--m->marks];
    *n = m->used - height;
    *out = m->stack + height;
    m->used = height;
    return 0;
}

static int push_text(struct machine *m, size_t size_bytes)
{
    uint64_t n;
    const uint8_t *p;
    int err = take_number(m, size_bytes, &n);
    if (err == 0 && n > UINT32_MAX) {
        err = ROLL_E_SHORT;
    }
    err = err != 0 ? err : take(m, (size_t)n, &p);
    if (err != 0) {
        return err;
    }
    return push(m, &(struct roll_value){.kind = ROLL_VALUE_TEXT, .bytes = (uint32_t)n, .text = (const char *)p});
}

static int push_integer(struct machine *m, size_t bytes, bool is_signed)
{
    uint64_t n;
    int err = take_number(m, bytes, &n);
    unsigned spare = (unsigned)(64 - 8 * bytes);
    int64_t number = is_signed && bytes > 0 ? (int64_t)(n << spare) >> spare : (int64_t)n;
    return err != 0 ? err : push(m, &(struct roll_value){.kind = ROLL_VALUE_INT, .integer = number});
}

static int push_long(struct machine *m)
{
    uint64_t n;
    int err = take_number(m, 1, &n);
    if (err == 0 && n > LONG_MAX_BYTES) {
        err = ROLL_E_UNSUPPORTED;
    }
    return err != 0 ? err : push_integer(m, (size_t)n, true);
}

static int push_real(struct machine *m)
{
    const uint8_t *p;
    int err = take(m, 8, &p);
    uint64_t bits = 0;
    double real;
    for (size_t i = 0; i < 8 && err == 0; i++) {
        bits = bits << 8 | p[i]; /* of all numbers this one is big-endian */
    }
    memcpy(&real, &bits, sizeof(real));
    return err != 0 ? err : push(m, &(struct roll_value){.kind = ROLL_VALUE_REAL, .real = real});
}

static int push_list(struct machine *m, enum roll_value_kind kind, const struct roll_value *from, size_t n)
{
    struct roll_value v = {.kind = kind, .list = roll_value_list_new(m->arena)};
    int err = v.list == NULL ? ROLL_E_NOMEM : 0;
    err = err != 0 ? err : roll_value_append(m->arena, v.list, from, n);
    return err != 0 ? err : push(m, &v);
}

/* Adds n values to the list or mapping on top of the stack. */
static int extend(struct machine *m, enum roll_value_kind kind, const struct roll_value *from, size_t n)
{
    struct roll_value *top = m->used > ground(m) ? &m->stack[m->used - 1] : NULL;
    bool pairs = kind == ROLL_VALUE_MAP;
    if (!roll_value_is(top, kind) || (pairs && n % 2 != 0)) {
        return ROLL_E_CORRUPT;
    }
    return roll_value_append(m->arena, top->list, from, n);
}

/* the memo */

static int put(struct machine *m, uint64_t number)
{
    if (m->used == ground(m) || number > m->memos) {
        return ROLL_E_CORRUPT;
    }
    int err = number >= MEMO_MOST ? ROLL_E_LIMIT : ROLL_GROW(m->memo, m->memo_room, (size_t)number + 1);
    if (err == 0) {
        m->memo[number] = m->stack[m->used - 1];
        m->memos = number == m->memos ? m->memos + 1 : m->memos;
    }
    return err;
}

static int put_numbered(struct machine *m, size_t bytes)
{
    uint64_t number;
    int err = take_number(m, bytes, &number);
    return err != 0 ? err : put(m, number);
}

static int get(struct machine *m, size_t bytes)
{
    uint64_t number;
    int err = take_number(m, bytes, &number);
    if (err == 0 && number >= m->memos) {
        err = ROLL_E_CORRUPT;
    }
    return err != 0 ? err : push(m, &m->memo[number]);
}

static int mark(struct machine *m)
{
    int err = m->marks >= STACK_MOST ? ROLL_E_LIMIT : ROLL_GROW(m->mark, m->mark_room, m->marks + 1);
    if (err == 0) {
        m->mark[m->marks++] = m->used;
    }
    return err;
}

static int header(struct machine *m)
{
    uint64_t version;
    int err = take_number(m, 1, &version);
    return err != 0 ? err : version > PROTO_MAX ? ROLL_E_UNSUPPORTED : 0;
}

/* Opcodes that take what lies above a mark, or a fixed number of values. */
static int gather(struct machine *m, unsigned op)
{
    const struct roll_value *from;
    size_t n = op == OP_TUPLE1 || op == OP_APPEND ? 1 : op == OP_TUPLE2 || op == OP_SETITEM ? 2 : 3;
    bool counted = op == OP_TUPLE1 || op == OP_TUPLE2 || op == OP_TUPLE3 || op == OP_APPEND || op == OP_SETITEM;
    int err = counted ? pop(m, n, &from) : pop_marked(m, &from, &n);
    if (err != 0) {
        return err;
    }
    switch (op) {
    case OP_APPEND:
    case OP_APPENDS:
        return extend(m, ROLL_VALUE_LIST, from, n);
    case OP_SETITEM:
    case OP_SETITEMS:
        return extend(m, ROLL_VALUE_MAP, from, n);
    case OP_DICT:
        return n % 2 != 0 ? ROLL_E_CORRUPT : push_list(m, ROLL_VALUE_MAP, from, n);
    case OP_POP_MARK:
        return 0;
    default:
        return push_list(m, ROLL_VALUE_LIST, from, n);
    }
}

static int step(struct machine *m, unsigned op)
{
    const struct roll_value *gone;
    uint64_t ignored;
    switch (op) {
    case OP_PROTO:
        return header(m);
    case OP_FRAME:
        return take_number(m, 8, &ignored);
    case OP_MARK:
        return mark(m);
    case OP_POP:
        return pop(m, 1, &gone);
    case OP_NONE:
        return push(m, &(struct roll_value){.kind = ROLL_VALUE_NULL});
    case OP_TRUE:
        return push(m, &(struct roll_value){.kind = ROLL_VALUE_TRUE});
    case OP_FALSE:
        return push(m, &(struct roll_value){.kind = ROLL_VALUE_FALSE});
    case OP_BININT:
        return push_integer(m, 4, true);
    case OP_BININT1:
        return push_integer(m, 1, false);
    case OP_BININT2:
        return push_integer(m, 2, false);
    case OP_LONG1:
        return push_long(m);
    case OP_BINFLOAT:
        return push_real(m);
    case OP_BINUNICODE:
    case OP_BINSTRING:
    case OP_BINBYTES:
        return push_text(m, 4);
    case OP_SHORT_BINUNICODE:
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINBYTES:
        return push_text(m, 1);
    case OP_BINUNICODE8:
        return push_text(m, 8);
    case OP_EMPTY_LIST:
    case OP_EMPTY_TUPLE:
        return push_list(m, ROLL_VALUE_LIST, NULL, 0);
    case OP_EMPTY_DICT:
        return push_list(m, ROLL_VALUE_MAP, NULL, 0);
    case OP_APPEND:
    case OP_APPENDS:
    case OP_LIST:
    case OP_TUPLE:
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
    case OP_SETITEM:
    case OP_SETITEMS:
    case OP_DICT:
    case OP_POP_MARK:
        return gather(m, op);
    case OP_BINPUT:
        return put_numbered(m, 1);
    case OP_LONG_BINPUT:
        return put_numbered(m, 4);
    case OP_MEMOIZE:
        return put(m, m->memos);
    case OP_BINGET:
        return get(m, 1);
    case OP_LONG_BINGET:
        return get(m, 4);
    default:
        return ROLL_E_UNSUPPORTED;
    }
}

int roll_pickle_decode(struct roll_arena *arena, const void *data, size_t bytes, struct roll_value *out, size_t *where)
{
    struct machine m = {.arena = arena, .data = data, .bytes = bytes};
    int err = bytes > 0 && m.data[0] != OP_PROTO ? ROLL_E_CORRUPT : ROLL_GROW(m.stack, m.room, 64);
    bool stopped = false;
    *where = 0;
    *out = (struct roll_value){.kind = ROLL_VALUE_NULL};
    while (err == 0 && !stopped) {
        *where = m.at;
        if (m.at == bytes) {
            err = ROLL_E_SHORT;
        } else if (m.data[m.at] == OP_STOP) {
            stopped = true;
            err = m.used == 1 && m.marks == 0 ? 0 : ROLL_E_CORRUPT;
        } else {
            m.at++;
            err = step(&m, m.data[m.at - 1]);
        }
    }
    if (err == 0) {
        *out = m.stack[0];
    }
    free(m.stack);
    free(m.mark);
    free(m.memo);
    return err;
}
