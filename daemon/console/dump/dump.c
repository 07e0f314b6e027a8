/*
 * dump.c: prints structures as rows of sixteen bytes with the fields that begin in each row.
 *
 * Every structure of trace/ is described by one table of fields (dump_ring.c, dump_trace.c), and this file walks
 * any table. The rows keep the file's own order and show every byte, padding included, so that a dump can be held
 * against the byte-by-byte description in docs/ and against `hexdump -C`. A dump of decoded structs was rejected: it
 * would hide exactly the bytes that one looks for when a file is damaged.
 */
#include "daemon/console/dump/dump.h"

#include "daemon/console/text.h"
#include "trace/record.h"
#include "trace/ring.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

static uint64_t number(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes < 8 ? bytes : 8; i > 0; i--) {
        value = value << 8 | data[i - 1];
    }
    return value;
}

static int64_t signed_number(const uint8_t *data, size_t bytes)
{
    uint64_t value = number(data, bytes);
    unsigned shift = (unsigned)(64 - 8 * (bytes < 8 ? bytes : 8));
    return (int64_t)(value << shift) >> shift;
}

static const char *state_name(unsigned state)
{
    static const char *const names[] = {"empty", "entered", "returned", "complete"};
    return state < 4 ? names[state] : "?";
}

static size_t text_copy(const uint8_t *data, size_t bytes, char *out, size_t size)
{
    size_t n = 0;
    for (; n < bytes && n + 1 < size && data[n] != 0; n++) {
        out[n] = data[n] >= 0x20 && data[n] < 0x7f ? (char)data[n] : '?';
    }
    out[n] = '\0';
    return n;
}

static void exit_text(int64_t status, char *out, size_t size)
{
    int s = (int)status & ~ROLL_EXIT_ASKED;
    const char *asked = ((int)status & ROLL_EXIT_ASKED) != 0 ? ", asked to end" : "";
    if (s == ROLL_EXIT_UNKNOWN) {
        snprintf(out, size, "unknown%s", asked);
    } else if (WIFSIGNALED(s)) {
        snprintf(out, size, "signal %d%s", WTERMSIG(s), asked);
    } else {
        snprintf(out, size, "exit %d%s", WEXITSTATUS(s), asked);
    }
}

/* Writes the value of a field as people read it. */
static void value_text(const struct roll_dump_field *f, const uint8_t *data, char *out, size_t size)
{
    uint64_t v = number(data, f->bytes);
    char text[256];
    switch (f->kind) {
    case ROLL_DUMP_UINT:
        snprintf(out, size, "%" PRIu64, v);
        break;
    case ROLL_DUMP_INT:
        snprintf(out, size, "%" PRId64, signed_number(data, f->bytes));
        break;
    case ROLL_DUMP_HEX:
        snprintf(out, size, "0x%0*" PRIx64, (int)(2 * f->bytes), v);
        break;
    case ROLL_DUMP_TEXT:
        text_copy(data, f->bytes, text, sizeof(text));
        snprintf(out, size, "\"%s\"", text);
        break;
    case ROLL_DUMP_BYTES:
        snprintf(out, size, "%u bytes", f->bytes);
        break;
    case ROLL_DUMP_SEAL:
        if (v == 0) {
            snprintf(out, size, "empty");
        } else {
            snprintf(out, size, "ticket %" PRIu64 " %s", roll_seal_ticket(v), state_name(v & 0xff));
        }
        break;
    case ROLL_DUMP_NAME:
        snprintf(out, size, "%" PRIu64 " %s", v, f->label((unsigned)v));
        break;
    case ROLL_DUMP_EXIT:
        exit_text(signed_number(data, f->bytes), out, size);
        break;
    }
}

static json_t *value_json(const struct roll_dump_field *f, const uint8_t *data)
{
    uint64_t v = number(data, f->bytes);
    char text[512];
    switch (f->kind) {
    case ROLL_DUMP_UINT:
        return json_integer((json_int_t)v);
    case ROLL_DUMP_INT:
        return json_integer((json_int_t)signed_number(data, f->bytes));
    case ROLL_DUMP_NAME:
        return json_pack("{s:I, s:s}", "value", (json_int_t)v, "name", f->label((unsigned)v));
    case ROLL_DUMP_TEXT:
        text_copy(data, f->bytes, text, sizeof(text));
        return json_string(text);
    case ROLL_DUMP_SEAL:
        return v == 0
                   ? json_null()
                   : json_pack("{s:I, s:s}", "ticket", (json_int_t)roll_seal_ticket(v), "state", state_name(v & 0xff));
    default:
        value_text(f, data, text, sizeof(text));
        return json_string(text);
    }
}

static void thing_json(struct roll_dump *d, const char *kind, uint64_t offset, const uint8_t *data, size_t bytes,
                       const struct roll_dump_field *fields, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    json_t *values = json_object();
    json_t *thing = json_pack("{s:s, s:s, s:I, s:I}", "schema", "rollcall.dump/1", "kind", kind, "offset",
                              (json_int_t)offset, "bytes", (json_int_t)bytes);
    char *hex = malloc(2 * bytes + 1);
    for (size_t i = 0; i < n; i++) {
        if ((size_t)fields[i].offset + fields[i].bytes <= bytes) {
            json_object_set_new(values, fields[i].name, value_json(&fields[i], data + fields[i].offset));
        }
    }
    json_object_set_new(thing, "fields", values);
    if (hex != NULL) {
        for (size_t i = 0; i < bytes; i++) {
            hex[2 * i] = digits[data[i] >> 4];
            hex[2 * i + 1] = digits[data[i] & 15];
        }
        hex[2 * bytes] = '\0';
        json_object_set_new(thing, "hex", json_string(hex));
    }
    free(hex);
    if (thing != NULL) {
        roll_json_line(thing, d->out);
    }
    json_decref(thing);
}

static void thing_text(struct roll_dump *d, const char *title, uint64_t offset, const uint8_t *data, size_t bytes,
                       const struct roll_dump_field *fields, size_t n)
{
    bool skipping = false;
    fprintf(d->out, "%s\n", title);
    for (size_t row = 0; row < bytes; row += 16) {
        char values[1024];
        size_t used = 0, len = bytes - row < 16 ? bytes - row : 16;
        bool zero = true;
        values[0] = '\0';
        for (size_t i = 0; i < len; i++) {
            zero = zero && data[row + i] == 0;
        }
        for (size_t i = 0; i < n; i++) {
            if (fields[i].offset < row || fields[i].offset >= row + 16 ||
                (size_t)fields[i].offset + fields[i].bytes > bytes) {
                continue;
            }
            char value[300];
            value_text(&fields[i], data + fields[i].offset, value, sizeof(value));
            int w =
                snprintf(values + used, sizeof(values) - used, "%s%s=%s", used > 0 ? "  " : "", fields[i].name, value);
            used += w < 0 ? 0 : (size_t)w;
            used = used < sizeof(values) ? used : sizeof(values) - 1;
        }
        if (zero && used == 0) {
            if (!skipping) {
                fprintf(d->out, "  *\n");
            }
            skipping = true;
            continue;
        }
        skipping = false;
        fprintf(d->out, "  %08" PRIx64 " ", offset + row);
        for (size_t i = 0; i < 16; i++) {
            if (i < len) {
                fprintf(d->out, "%s%02x", i == 8 ? "  " : " ", data[row + i]);
            } else if (used > 0) {
                fprintf(d->out, "%s  ", i == 8 ? "  " : " ");
            }
        }
        fprintf(d->out, "%s%s\n", used > 0 ? "  " : "", values);
    }
}

void roll_dump_thing(struct roll_dump *d, const char *kind, const char *title, uint64_t offset, const void *data,
                     size_t bytes, const struct roll_dump_field *fields, size_t n)
{
    if (d->json) {
        thing_json(d, kind, offset, data, bytes, fields, n);
    } else {
        thing_text(d, title, offset, data, bytes, fields, n);
    }
}

void roll_dump_note(struct roll_dump *d, const char *kind, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!d->json) {
        fprintf(d->out, "%s\n", text);
        return;
    }
    json_t *note = json_pack("{s:s, s:s, s:s}", "schema", "rollcall.dump/1", "kind", kind, "text", text);
    if (note != NULL) {
        roll_json_line(note, d->out);
    }
    json_decref(note);
}
