/*
 * text.c: UTF-8 text measured, cut and broken into lines.
 *
 * One character counts as one column. Wide characters (East Asian) would take two; the texts here are ours, in English,
 * and names of hosts, programs and communicators, so a table of widths was rejected.
 */
#include "daemon/base/text.h"

#include "trace/plain.h"

#include <stdbool.h>
#include <string.h>

static bool starts_char(unsigned char c)
{
    return (c & 0xc0) != 0x80;
}

static size_t width_of(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        n += starts_char((unsigned char)text[i]);
    }
    return n;
}

bool roll_path_is_libc(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "libc.so.", 8) == 0 || strncmp(name, "libc-", 5) == 0 || strncmp(name, "libpthread", 10) == 0;
}

size_t roll_text_width(const char *text)
{
    return width_of(text, strlen(text));
}

void roll_text_fit(char *text, size_t size, size_t width)
{
    static const char ellipsis[] = "\xe2\x80\xa6";
    if (width == 0 || roll_text_width(text) <= width) {
        return;
    }
    size_t at = 0;
    for (size_t seen = 0; text[at] != '\0'; at++) {
        seen += starts_char((unsigned char)text[at]);
        if (seen == width) {
            break;
        }
    }
    if (at + sizeof(ellipsis) <= size) {
        memcpy(text + at, ellipsis, sizeof(ellipsis));
    } else {
        text[at] = '\0';
    }
}

void roll_text_plain(char *text, size_t bytes)
{
    for (size_t i = 0, odd; i<bytes; i += odd> 0 ? odd : 1) {
        odd = text[i] == '\n' ? 0 : roll_plain_odd(text + i, bytes - i);
        memset(text + i, ' ', odd);
    }
}

void roll_text_put(const char *text, size_t bytes, FILE *out)
{
    for (size_t i = 0, odd; i<bytes; i += odd> 0 ? odd : 1) {
        odd = roll_plain_odd(text + i, bytes - i);
        fputc(odd > 0 ? ' ' : text[i], out);
    }
}

void roll_text_wrap(const char *text, size_t indent, size_t width, FILE *out)
{
    size_t column = indent, bytes = 0;
    bool empty = true; /* no word stands in this line yet */
    for (text += strspn(text, " \t"); *text != '\0'; text += bytes + strspn(text + bytes, " \t")) {
        bytes = *text == '\n' ? 1 : strcspn(text, " \t\n");
        size_t wide = width_of(text, bytes);
        if (*text == '\n' || (!empty && column + 1 + wide > width)) {
            fputc('\n', out);
            column = 0;
            empty = true;
        }
        if (*text == '\n') {
            continue;
        }
        size_t blanks = empty ? indent - column : 1;
        fprintf(out, "%*s", (int)blanks, "");
        roll_text_put(text, bytes, out);
        column += blanks + wide;
        empty = false;
    }
    fputc('\n', out);
}
