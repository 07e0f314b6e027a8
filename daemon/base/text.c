/*
 * text.c: UTF-8 text measured, cut and broken into lines.
 *
 * One character counts as one column. Wide characters (East Asian) would take two; the texts here are ours, in English,
 * and names of hosts, programs and communicators, so a table of widths was rejected.
 */
#include "daemon/base/text.h"

#include <stdbool.h>
#include <string.h>

static bool starts_char(unsigned char c)
{
    return (c & 0xc0) != 0x80;
}

size_t roll_text_width(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += starts_char((unsigned char)*text);
    }
    return n;
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

void roll_text_wrap(const char *text, size_t width, FILE *out)
{
    size_t column = 0;
    for (size_t bytes; *text != '\0'; text += bytes) {
        if (*text == '\n') {
            fputc('\n', out);
            column = 0;
            bytes = 1;
            continue;
        }
        bytes = strspn(text, " ");
        if (bytes > 0) {
            continue;
        }
        char word[256];
        bytes = strcspn(text, " \n");
        bytes = bytes < sizeof(word) ? bytes : sizeof(word) - 1;
        snprintf(word, sizeof(word), "%.*s", (int)bytes, text);
        size_t wide = roll_text_width(word);
        bool fits = column == 0 || column + 1 + wide <= width;
        fprintf(out, "%s%s", fits ? column > 0 ? " " : "" : "\n", word);
        column = fits && column > 0 ? column + 1 + wide : wide;
    }
    fputc('\n', out);
}
