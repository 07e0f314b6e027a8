/*
 * page_words.h: the passwords of the web page (docs/WEB.md), which everybody who can read the user's cookie can make,
 * and nobody else.
 */
#ifndef ROLL_DAEMON_WIRE_PAGE_WORDS_H
#define ROLL_DAEMON_WIRE_PAGE_WORDS_H

#include <stddef.h>

#define ROLL_PAGE_WORD_BYTES 33 /* 128 bits as hexadecimal digits, and the end */

struct roll_page_words {
    char viewer[ROLL_PAGE_WORD_BYTES];    /* may look */
    char operator_[ROLL_PAGE_WORD_BYTES]; /* may switch as well */
};

/* Makes both from the cookie (curve.h), which is made where there is none. On error `why` holds one line. Errors: those
 * of roll_curve_cookie. */
int roll_page_words(struct roll_page_words *out, char *why, size_t why_size);

#endif
