/*
 * verdict_print.c: the parts of which a printed verdict is made: styles, the gutter, paragraphs, lines.
 *
 * Text from other processes is stripped of control characters where it is printed, and nowhere else: it must not steer
 * a terminal, and one place cannot be forgotten.
 */
#include "daemon/verdict/verdict_print.h"

#include "daemon/base/text.h"

#include <stdarg.h>
#include <string.h>

void roll_printer_paint(const struct roll_printer *p, const char *style)
{
    if (p->color) {
        fputs(style, p->out);
    }
}

void roll_printer_put_bytes(const struct roll_printer *p, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        /* C1 controls are c2 80 to c2 9f in UTF-8. */
        bool c1 = c == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xa0;
        if (c1) {
            i++;
        }
        fputc(c < 0x20 || c == 0x7f || c1 ? ' ' : c, p->out);
    }
}

void roll_printer_put(const struct roll_printer *p, const char *text)
{
    roll_printer_put_bytes(p, text, strlen(text));
}

void roll_printer_pad(const struct roll_printer *p, size_t from, size_t to)
{
    for (; from < to; from++) {
        fputc(' ', p->out);
    }
}

void roll_printer_gutter(const struct roll_printer *p, const char *label, const char *style)
{
    roll_printer_paint(p, style);
    roll_printer_put(p, label);
    roll_printer_paint(p, ROLL_PLAIN);
    size_t width = roll_text_width(label);
    if (width + 1 > ROLL_PRINT_GUTTER) {
        fputc('\n', p->out);
        width = 0;
    }
    roll_printer_pad(p, width, ROLL_PRINT_GUTTER);
}

void roll_printer_wrap(const struct roll_printer *p, const char *text)
{
    size_t column = ROLL_PRINT_GUTTER;
    while (*text != '\0') {
        size_t blanks = strspn(text, " \n\t");
        text += blanks;
        size_t bytes = strcspn(text, " \n\t");
        if (bytes == 0) {
            break;
        }
        char word[256];
        size_t kept = bytes < sizeof(word) ? bytes : sizeof(word) - 1;
        memcpy(word, text, kept);
        word[kept] = '\0';
        size_t width = roll_text_width(word);
        if (column > ROLL_PRINT_GUTTER && column + 1 + width > ROLL_PRINT_COLUMNS) {
            fputc('\n', p->out);
            roll_printer_pad(p, 0, ROLL_PRINT_GUTTER);
            column = ROLL_PRINT_GUTTER;
        } else if (column > ROLL_PRINT_GUTTER) {
            fputc(' ', p->out);
            column++;
        }
        roll_printer_put_bytes(p, text, bytes);
        column += width;
        text += bytes;
    }
    fputc('\n', p->out);
}

/* members */

const char *roll_member_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

bool roll_member_number(const json_t *object, const char *name, int64_t *out)
{
    const json_t *value = json_object_get(object, name);
    *out = json_integer_value(value);
    return json_is_integer(value);
}

void roll_printer_ranks(char out[64], const char *text)
{
    bool several = strpbrk(text, "-,") != NULL;
    int most = 40;
    snprintf(out, 64, "%s%.*s%s",
             *text == '\0' ? ""
             : several     ? "ranks "
                           : "rank ",
             most, text, strlen(text) > (size_t)most ? "\u2026" : "");
}

/* lines */

void roll_line_add(struct roll_line *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->used, sizeof(text->bytes) - text->used, format, args);
    va_end(args);
    size_t left = sizeof(text->bytes) - text->used - 1;
    text->used += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left;
}
