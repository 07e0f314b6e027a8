/*
 * stack_merge.h: the stacks of many ranks as one prefix tree. A node is a frame; its label is the set of ranks that are
 * in that frame.
 *
 * A node counts threads and names ranks. With several samples a node also knows whether those threads were in it every
 * time (stuck) or only sometimes (moving). Pure; one thread.
 */
#ifndef ROLL_DAEMON_STACK_STACK_MERGE_H
#define ROLL_DAEMON_STACK_STACK_MERGE_H

#include "trace/rankset.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roll_stack_node {
    const char *function, *file, *module; /* borrowed from the answers */
    uint64_t offset;
    unsigned line;
    bool python;
    struct roll_rankset ranks;
    uint32_t threads;   /* threads that were in this frame at least once */
    uint32_t hits;      /* looks that found a thread in this frame */
    uint32_t looks;     /* looks that saw those threads at all; when there are more than hits, the threads move */
    uint32_t missed;    /* looks that did not see those threads: not born yet, gone, not readable */
    uint32_t ends;      /* looks whose stack ended here */
    uint64_t last_task; /* used while counting, meaningless later */
    struct roll_stack_node *child, *next; /* first child, next sibling; owned by the tree */
};

/* Whether every look found these threads in this frame. */
static inline bool roll_stack_stuck(const struct roll_stack_node *node)
{
    return node->hits == node->looks && node->missed == 0;
}

struct roll_stack_tree {
    struct roll_stack_node root; /* its children are the outermost frames */
    uint64_t tasks;
};

/* Which threads of a process are taken: all; the main one; those that are inside NCCL or rollcall's wrappers; all
 * except the main one. */
enum roll_stack_threads { ROLL_STACK_ALL, ROLL_STACK_MAIN, ROLL_STACK_NCCL, ROLL_STACK_OTHERS };
/* 0, or ROLL_E_ARG for a name that is none of all, main, nccl. */
int roll_stack_threads_by_name(const char *name, enum roll_stack_threads *out);

/*
 * Adds one process: its rollcall.stack/1 (borrowed; it must live as long as the tree; hostile) under the number `rank`.
 * 0, NOMEM, or ROLL_E_CORRUPT when numbers in the JSON lead nowhere (the good part is added).
 */
int roll_stack_tree_add(struct roll_stack_tree *tree, uint32_t rank, const json_t *stack,
                        enum roll_stack_threads which);
/* Brings siblings into the order in which people read: most ranks first, then the lowest rank. */
void roll_stack_tree_sort(struct roll_stack_tree *tree);
void roll_stack_tree_fini(struct roll_stack_tree *tree);

/* The tree as JSON, owned: a list of {"fn","file","line","module","kind","ranks","threads","stuck","children"},
 * "missed" where it is not 0. */
json_t *roll_stack_tree_json(const struct roll_stack_tree *tree);

#endif
