/*
 * stack_merge.c: inserts stacks into the tree, outermost frame first.
 *
 * Siblings are searched one by one: a frame calls few others. Two frames are the same when function and line are
 * (module and offset where there is no name): ranks that stand in one function at two lines are shown apart, because
 * that is what people look for.
 */
#include "daemon/stack/stack_merge.h"

#include "daemon/base/json.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 2048 /* a stack with more frames is not believed */

int roll_stack_threads_by_name(const char *name, enum roll_stack_threads *out)
{
    static const char *const names[] = {"all", "main", "nccl"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum roll_stack_threads)i;
            return 0;
        }
    }
    return ROLL_E_ARG;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* nodes */

static bool same(const struct roll_stack_node *a, const struct roll_stack_node *b)
{
    if (a->python != b->python || a->line != b->line || strcmp(a->function, b->function) != 0 ||
        strcmp(a->file, b->file) != 0) {
        return false;
    }
    bool named = a->function[0] != '\0' && (a->line != 0 || a->python);
    return named || (strcmp(a->module, b->module) == 0 && (a->function[0] != '\0' || a->offset == b->offset));
}

static struct roll_stack_node *child_of(struct roll_stack_node *parent, const struct roll_stack_node *like)
{
    struct roll_stack_node **at = &parent->child;
    while (*at && !same(*at, like)) {
        at = &(*at)->next;
    }
    if (!*at) {
        *at = malloc(sizeof(**at));
        if (*at) {
            **at = *like;
        }
    }
    return *at;
}

/* How many looks at one thread gave a stack, and how many did not. */
struct seen {
    uint32_t looks, missed;
};

/* Counts one look at one thread whose stack goes through this node. */
static int count(struct roll_stack_node *node, uint32_t rank, uint64_t task, const struct seen *seen)
{
    node->hits++;
    if (node->last_task == task) {
        return 0;
    }
    node->last_task = task;
    node->threads++;
    node->looks += seen->looks;
    node->missed += seen->missed;
    return roll_rankset_add(&node->ranks, rank);
}

static int insert(struct roll_stack_tree *tree, uint32_t rank, const json_t *frames, const json_t *stack,
                  const struct seen *seen)
{
    struct roll_stack_node *node = &tree->root;
    int err = count(node, rank, tree->tasks, seen);
    size_t n = json_array_size(stack) < DEPTH_MAX ? json_array_size(stack) : DEPTH_MAX;
    for (size_t i = 0; i < n && !err; i++) {
        const json_t *frame = json_array_get(frames, (size_t)json_integer_value(json_array_get(stack, i)));
        if (!json_is_object(frame)) {
            return ROLL_E_CORRUPT;
        }
        struct roll_stack_node like = {
            .function = text_of(frame, "fn"),
            .file = text_of(frame, "file"),
            .module = text_of(frame, "module"),
            .offset = (uint64_t)json_integer_value(json_object_get(frame, "offset")),
            .line = (unsigned)json_integer_value(json_object_get(frame, "line")),
            .python = strcmp(text_of(frame, "kind"), "python") == 0,
        };
        node = child_of(node, &like);
        err = node ? count(node, rank, tree->tasks, seen) : ROLL_E_NOMEM;
    }
    if (!err) {
        node->ends++;
    }
    return err;
}

/* processes */

static bool in_nccl(const json_t *frames, const json_t *stack)
{
    size_t i;
    json_t *number;
    json_array_foreach(stack, i, number)
    {
        const json_t *frame = json_array_get(frames, (size_t)json_integer_value(number));
        const char *function = text_of(frame, "fn"), *module = text_of(frame, "module");
        if (strncmp(function, "nccl", 4) == 0 || strncmp(function, "pnccl", 5) == 0 || strstr(module, "libnccl") ||
            strstr(module, "librollcall")) {
            return true;
        }
    }
    return false;
}

static bool wanted(const json_t *stack, const json_t *thread, enum roll_stack_threads which)
{
    bool main_thread =
        json_integer_value(json_object_get(thread, "tid")) == json_integer_value(json_object_get(stack, "pid"));
    if (which == ROLL_STACK_MAIN || which == ROLL_STACK_OTHERS) {
        return main_thread == (which == ROLL_STACK_MAIN);
    }
    size_t i;
    json_t *sample;
    bool nccl = false;
    json_array_foreach(json_object_get(thread, "samples"), i, sample)
    {
        nccl = nccl || (json_is_integer(sample) &&
                        in_nccl(json_object_get(stack, "frames"),
                                json_array_get(json_object_get(stack, "stacks"), (size_t)json_integer_value(sample))));
    }
    return which == ROLL_STACK_ALL || nccl;
}

int roll_stack_tree_add(struct roll_stack_tree *tree, uint32_t rank, const json_t *stack, enum roll_stack_threads which)
{
    const json_t *frames = json_object_get(stack, "frames"), *stacks = json_object_get(stack, "stacks");
    json_t *thread, *sample;
    size_t i, k;
    int result = 0;
    json_array_foreach(json_object_get(stack, "threads"), i, thread)
    {
        if (!wanted(stack, thread, which)) {
            continue;
        }
        const json_t *samples = json_object_get(thread, "samples");
        struct seen seen = {0, 0};
        json_array_foreach(samples, k, sample)
        {
            bool whole = json_is_integer(sample);
            seen.looks += whole;
            seen.missed += !whole;
        }
        tree->tasks++;
        json_array_foreach(samples, k, sample)
        {
            if (json_is_integer(sample)) {
                int err = insert(tree, rank, frames, json_array_get(stacks, (size_t)json_integer_value(sample)), &seen);
                result = result == 0 ? err : result;
            }
        }
        if (result == ROLL_E_NOMEM) {
            break;
        }
    }
    return result;
}

/* order, end */

static int by_ranks(const void *a, const void *b)
{
    const struct roll_stack_node *x = *(struct roll_stack_node *const *)a, *y = *(struct roll_stack_node *const *)b;
    size_t nx = roll_rankset_count(&x->ranks), ny = roll_rankset_count(&y->ranks);
    if (nx != ny) {
        return nx > ny ? -1 : 1;
    }
    uint32_t fx = roll_rankset_at(&x->ranks, 0), fy = roll_rankset_at(&y->ranks, 0);
    if (fx != fy) {
        return fx < fy ? -1 : 1;
    }
    return (x->threads < y->threads) - (x->threads > y->threads);
}

static void sort_children(struct roll_stack_node *node)
{
    size_t n = 0, i = 0;
    for (struct roll_stack_node *c = node->child; c; c = c->next) {
        sort_children(c);
        n++;
    }
    struct roll_stack_node **list = n > 1 ? malloc(n * sizeof(struct roll_stack_node *)) : NULL;
    if (!list) {
        return;
    }
    for (struct roll_stack_node *c = node->child; c; c = c->next) {
        list[i++] = c;
    }
    qsort(list, n, sizeof(struct roll_stack_node *), by_ranks);
    for (i = 0; i < n; i++) {
        list[i]->next = i + 1 < n ? list[i + 1] : NULL;
    }
    node->child = list[0];
    free(list);
}

void roll_stack_tree_sort(struct roll_stack_tree *tree)
{
    sort_children(&tree->root);
}

static void destroy_children(struct roll_stack_node *node)
{
    while (node->child) {
        struct roll_stack_node *c = node->child;
        node->child = c->next;
        destroy_children(c);
        roll_rankset_fini(&c->ranks);
        free(c);
    }
}

void roll_stack_tree_fini(struct roll_stack_tree *tree)
{
    destroy_children(&tree->root);
    roll_rankset_fini(&tree->root.ranks);
    *tree = (struct roll_stack_tree){0};
}

/* JSON */

static json_t *node_json(const struct roll_stack_node *node)
{
    json_t *children = json_array();
    for (const struct roll_stack_node *c = node->child; c; c = c->next) {
        json_array_append_new(children, node_json(c));
    }
    json_t *out = json_pack("{s:s, s:s, s:o, s:i, s:b, s:o}", "fn", node->function, "kind",
                            node->python ? "python" : "native", "ranks", roll_ranks_text_json(&node->ranks), "threads",
                            (int)node->threads, "stuck", (int)roll_stack_stuck(node), "children", children);
    if (node->missed > 0) {
        json_object_set_new(out, "missed", json_integer(node->missed));
    }
    if (node->file[0]) {
        json_object_set_new(out, "file", json_string(node->file));
        json_object_set_new(out, "line", json_integer(node->line));
    }
    if (node->module[0]) {
        json_object_set_new(out, "module", json_string(node->module));
        json_object_set_new(out, "offset", json_integer((json_int_t)node->offset));
    }
    return out;
}

json_t *roll_stack_tree_json(const struct roll_stack_tree *tree)
{
    json_t *list = json_array();
    for (const struct roll_stack_node *c = tree->root.child; c; c = c->next) {
        json_array_append_new(list, node_json(c));
    }
    return list;
}
