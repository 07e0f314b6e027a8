/*
 * check.h: the beginning and the end of the data checks of catalogue.h.
 */
#ifndef ROLL_TESTS_CATALOGUE_CHECK_H
#define ROLL_TESTS_CATALOGUE_CHECK_H

#include "tests/catalogue/catalogue.h"

/* Gives the buffers of `bytes` each their first content. */
void cat_check_begin(struct cat *c, size_t bytes);
/* The program's status: 0, or CAT_WRONG_DATA. */
int cat_check_end(const struct cat *c);

#endif
