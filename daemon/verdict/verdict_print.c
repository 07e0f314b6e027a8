/*
 * verdict_print.c: the parts of which a printed verdict is made: styles, the gutter, paragraphs, lines.
 *
 * Text from other processes is stripped of control characters where it is printed (daemon/base/text.h), and nowhere
 * else: it must not steer a terminal, and one place cannot be forgotten.
 */
#include "daemon/verdict/verdict_print.h"

#include "daemon/base/text.h"
#include "daemon/verdict/verdict_text.h"

#include <stdarg.h>
#include <string.h>

struct roll_printer roll_printer_of(FILE *out, unsigned style)
{
    unsigned columns = style >> 8;
    return (struct roll_printer){out, (style & ROLL_VERDICT_COLOR) != 0, (style & ROLL_VERDICT_FRAMES) != 0,
                                 columns == 0                   ? ROLL_PRINT_COLUMNS
                                 : columns < ROLL_VERDICT_LEAST ? ROLL_VERDICT_LEAST
                                                                : columns};
}

void roll_printer_paint(const struct roll_printer *p, const char *style)
{
    if (p->color) {
        fputs(style, p->out);
    }
}

void roll_printer_put(const struct roll_printer *p, const char *text)
{
    roll_text_put(text, strlen(text), p->out);
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
    roll_text_wrap(text, ROLL_PRINT_GUTTER, p->columns, p->out);
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
