/*
 * verdict_line.c: a verdict as one line for people, beside a job that runs.
 *
 * A note is no trouble, and a job with many empty ranks has many of them: each takes one line,
 *
 *   note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13.
 *
 * A terminal that is too narrow for it would break it inside of words, so there the sentence is broken between them and
 * goes on below itself, or, where no width is left beside the code, below the code. Sentences that are cut were
 * rejected: their end often says the number that matters.
 */
#include "daemon/base/text.h"
#include "daemon/verdict/verdict_print.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <string.h>

#define CODE     19  /* width of the codes: the longest code of an MoE note fits */
#define BESIDE   72u /* columns from which on there is room for a sentence beside a code */
#define SENTENCE 1024

/* The end of the first sentence: a full stop before a blank and a capital letter, or the whole text. */
static size_t first_sentence(const char *text)
{
    for (const char *at = strstr(text, ". "); at != NULL; at = strstr(at + 1, ". ")) {
        if (at[2] >= 'A' && at[2] <= 'Z') {
            return (size_t)(at - text) + 1;
        }
    }
    return strlen(text);
}

/* The sentence of a note, from column `at` on; the cursor stands before it. */
static void print_sentence(const struct roll_printer *p, const char *text, unsigned columns, size_t at, size_t cursor)
{
    char sentence[SENTENCE];
    snprintf(sentence, sizeof(sentence), "%.*s", (int)first_sentence(text), text);
    for (char *c = sentence; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c; /* a note is one paragraph, whatever another process sends */
    }
    bool fits = columns == 0 || at + roll_text_width(sentence) <= p->columns;
    if (!fits && p->columns < BESIDE) {
        fputc('\n', p->out);
        at = ROLL_PRINT_GUTTER;
        cursor = 0;
    }
    roll_printer_pad(p, cursor, at);
    roll_printer_paint(p, ROLL_DIM);
    if (fits) {
        roll_text_put(text, first_sentence(text), p->out);
        roll_printer_paint(p, ROLL_PLAIN);
        fputc('\n', p->out);
    } else {
        roll_text_wrap(sentence, at, p->columns, p->out);
        roll_printer_paint(p, ROLL_PLAIN);
    }
}

int roll_verdict_print_line(FILE *out, const json_t *verdict, unsigned style)
{
    struct roll_printer p = roll_printer_of(out, style);
    const char *certainty = roll_member_text(verdict, "certainty");
    const char *code = roll_member_text(verdict, "code");
    const char *text = roll_member_text(verdict, *roll_member_text(verdict, "text") != '\0' ? "text" : "title");
    if (*code == '\0' || *certainty == '\0') {
        return ROLL_E_CORRUPT;
    }
    roll_printer_gutter(&p, certainty, ROLL_DIM);
    roll_printer_put(&p, code);
    size_t width = roll_text_width(code);
    size_t at = ROLL_PRINT_GUTTER + (width + 1 > CODE ? width + 2 : CODE);
    print_sentence(&p, text, style >> 8, at, ROLL_PRINT_GUTTER + width);
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}
