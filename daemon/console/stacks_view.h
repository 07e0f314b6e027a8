/*
 * stacks_view.h: a merged tree of stacks as text.
 */
#ifndef ROLL_DAEMON_CONSOLE_STACKS_VIEW_H
#define ROLL_DAEMON_CONSOLE_STACKS_VIEW_H

#include "daemon/stack/stack_merge.h"

#include <stdio.h>

struct roll_stacks_style {
    const char *one, *many; /* the noun behind numbers of ranks: "rank", "ranks" */
    unsigned samples;
    size_t width; /* columns; 0 = any */
    bool colour;
};

/* Prints the tree, outermost frames first; a line with the ranks stands wherever they part. Prints nothing for an empty
 * tree. Borrows all. */
void roll_stacks_print(FILE *out, const struct roll_stack_tree *tree, const struct roll_stacks_style *style);

#endif
