/*
 * graph.c: graphs: nodes, the edges between them, and copies of both. The public calls are in graph_api.c and
 * graph_node.c.
 *
 * Nodes are kept in the order of their making, and an edge is kept only with the node in which it ends: capture and
 * instantiation need nothing else. The edges that start in a node are found by walking the graph.
 */
#include "hostnccl/cuda/graph_memory.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t hostcuda_graph_lock = PTHREAD_MUTEX_INITIALIZER;

bool hostcuda_nodes_add(struct hostcuda_nodes *nodes, struct hostcuda_node *node, bool once)
{
    for (size_t i = 0; once && i < nodes->count; i++) {
        if (nodes->items[i] == node) {
            return true;
        }
    }
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? 2 * nodes->room : 4;
        struct hostcuda_node **items = realloc(nodes->items, room * sizeof(struct hostcuda_node *));
        if (!items) {
            return false;
        }
        nodes->items = items;
        nodes->room = room;
    }
    nodes->items[nodes->count++] = node;
    return true;
}

static void node_release(struct hostcuda_handle *handle)
{
    struct hostcuda_node *node = (struct hostcuda_node *)handle;
    hostcuda_work_drop(&node->work);
    free(node->before.items);
    free(node);
}

static void graph_release(struct hostcuda_handle *handle)
{
    struct hostcuda_graph *graph = (struct hostcuda_graph *)handle;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        hostcuda_handle_put(hostcuda_handle_remove(HOSTCUDA_NODE, graph->nodes.items[i]));
    }
    for (size_t i = 0; i < graph->held_count; i++) {
        hostcuda_user_object_release(graph->held[i].object, graph->held[i].count);
    }
    free(graph->nodes.items);
    free(graph->held);
    free(graph);
}

cudaError_t hostcuda_graph_new(struct hostcuda_graph **graph)
{
    static _Atomic unsigned long long graphs;
    struct hostcuda_graph *made = calloc(1, sizeof(*made));
    if (!made) {
        return cudaErrorMemoryAllocation;
    }
    atomic_init(&made->handle.refs, 1);
    made->handle.release = graph_release;
    made->number = atomic_fetch_add(&graphs, 1) + 1;
    if (hostcuda_handle_add(HOSTCUDA_GRAPH, &made->handle)) {
        free(made);
        return cudaErrorMemoryAllocation;
    }
    *graph = made;
    return cudaSuccess;
}

void hostcuda_graph_free(struct hostcuda_graph **graph)
{
    if (*graph) {
        hostcuda_handle_put(hostcuda_handle_remove(HOSTCUDA_GRAPH, *graph));
        *graph = NULL;
    }
}

struct hostcuda_graph *hostcuda_graph_of(cudaGraph_t handle)
{
    struct hostcuda_handle *found = hostcuda_handle_get(HOSTCUDA_GRAPH, handle);
    hostcuda_handle_put(found); /* the registry gives up its reference only with the lock held */
    return (struct hostcuda_graph *)found;
}

struct hostcuda_node *hostcuda_node_of(cudaGraphNode_t handle)
{
    struct hostcuda_handle *found = hostcuda_handle_get(HOSTCUDA_NODE, handle);
    hostcuda_handle_put(found);
    return (struct hostcuda_node *)found;
}

/* Adds the node whatever it is. Takes what the work owns, also on failure. */
static cudaError_t add_node(struct hostcuda_graph *graph, struct hostcuda_work *work,
                            struct hostcuda_node *const *before, size_t count, struct hostcuda_node **node)
{
    struct hostcuda_node *made = calloc(1, sizeof(*made));
    cudaError_t error = made ? cudaSuccess : cudaErrorMemoryAllocation;
    if (!made) {
        hostcuda_work_drop(work);
        return error;
    }
    atomic_init(&made->handle.refs, 1);
    made->handle.release = node_release;
    made->graph = graph;
    made->work = *work;
    for (size_t i = 0; i < count && !error; i++) {
        if (before[i]->graph != graph) {
            error = cudaErrorInvalidValue;
        } else if (!hostcuda_nodes_add(&made->before, before[i], true)) {
            error = cudaErrorMemoryAllocation;
        }
    }
    if (!error && hostcuda_handle_add(HOSTCUDA_NODE, &made->handle)) {
        error = cudaErrorMemoryAllocation;
    } else if (!error && !hostcuda_nodes_add(&graph->nodes, made, false)) {
        (void)hostcuda_handle_remove(HOSTCUDA_NODE, made);
        error = cudaErrorMemoryAllocation;
    }
    if (error) {
        node_release(&made->handle);
        return error;
    }
    made->index = graph->nodes.count - 1;
    *node = made;
    return cudaSuccess;
}

cudaError_t hostcuda_node_add(struct hostcuda_graph *graph, struct hostcuda_work *work,
                              struct hostcuda_node *const *before, size_t count, struct hostcuda_node **node)
{
    struct hostcuda_node *made;
    cudaError_t error = hostcuda_graph_memory_may(graph, work);
    if (error) {
        hostcuda_work_drop(work);
        return error;
    }
    error = add_node(graph, work, before, count, &made);
    if (!error) {
        hostcuda_graph_memory_placed(graph, &made->work);
    }
    if (!error && node) {
        *node = made;
    }
    return error;
}

/* The edges follow when all nodes are there: an edge may come from a later node. */
static cudaError_t clone_node(struct hostcuda_graph *clone, const struct hostcuda_node *from, bool keep_origin)
{
    struct hostcuda_node *made;
    struct hostcuda_work work;
    cudaError_t error = hostcuda_work_copy(&work, &from->work);
    if (!error) {
        error = add_node(clone, &work, NULL, 0, &made);
    }
    if (!error) {
        made->origin = keep_origin ? from->origin : (struct hostcuda_node *)(uintptr_t)from;
        made->is_off = keep_origin && from->is_off;
        if (made->work.type == cudaGraphNodeTypeGraph) {
            made->work.arg.child->is_child = true;
        }
    }
    return error;
}

cudaError_t hostcuda_graph_clone(struct hostcuda_graph **out, const struct hostcuda_graph *source, bool keep_origin)
{
    struct hostcuda_graph *clone = NULL;
    cudaError_t error = hostcuda_graph_new(&clone);
    for (size_t i = 0; !error && i < source->nodes.count; i++) {
        error = clone_node(clone, source->nodes.items[i], keep_origin);
    }
    for (size_t i = 0; !error && i < source->nodes.count; i++) {
        const struct hostcuda_nodes *before = &source->nodes.items[i]->before;
        for (size_t k = 0; !error && k < before->count; k++) {
            struct hostcuda_node *same = clone->nodes.items[before->items[k]->index];
            error = hostcuda_nodes_add(&clone->nodes.items[i]->before, same, false) ? cudaSuccess
                                                                                    : cudaErrorMemoryAllocation;
        }
    }
    if (!error && source->held_count) {
        clone->held = malloc(source->held_count * sizeof(*clone->held));
        error = clone->held ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    for (size_t i = 0; !error && i < source->held_count; i++) {
        clone->held[clone->held_count++] = source->held[i];
        hostcuda_user_object_retain(source->held[i].object, source->held[i].count);
    }
    if (error) {
        hostcuda_graph_free(&clone);
        return error;
    }
    clone->origin = keep_origin ? source->origin : source;
    *out = clone;
    return cudaSuccess;
}

/* Without the flag a launch begins with a value that is not defined: 0 here. */
static unsigned int value_of(cudaGraphConditionalHandle handle)
{
    return handle >> HOSTCUDA_CONDITION_ASSIGN_SHIFT & 1 ? (unsigned int)handle : 0;
}

const struct hostcuda_graph *hostcuda_condition_body(const struct hostcuda_work *work)
{
    const struct hostcuda_condition *c = &work->arg.condition;
    unsigned int value = value_of(c->handle);
    switch (c->type) {
    case cudaGraphCondTypeIf:
        return value ? c->bodies[0] : c->count > 1 ? c->bodies[1] : NULL;
    case cudaGraphCondTypeWhile:
        return value ? c->bodies[0] : NULL;
    default:
        return value < c->count ? c->bodies[value] : NULL;
    }
}

enum colour { UNSEEN, OPEN, SORTED };

struct sorting {
    unsigned char *colours;
    struct hostcuda_node **order;
    size_t count;
};

/* Puts the nodes on which a node depends before it. False when the dependencies lead back to the node itself. */
static bool sort_node(struct sorting *s, struct hostcuda_node *node)
{
    if (s->colours[node->index] != UNSEEN) {
        return s->colours[node->index] == SORTED;
    }
    s->colours[node->index] = OPEN;
    for (size_t i = 0; i < node->before.count; i++) {
        if (!sort_node(s, node->before.items[i])) {
            return false;
        }
    }
    s->colours[node->index] = SORTED;
    s->order[s->count++] = node;
    return true;
}

struct hostcuda_node **hostcuda_graph_sorted(const struct hostcuda_graph *graph, bool *has_cycle)
{
    struct sorting s = {.colours = calloc(graph->nodes.count + 1, 1),
                        .order = calloc(graph->nodes.count + 1, sizeof(struct hostcuda_node *))};
    bool is_sorted = s.colours && s.order;
    *has_cycle = false;
    for (size_t i = 0; is_sorted && i < graph->nodes.count; i++) {
        is_sorted = sort_node(&s, graph->nodes.items[i]);
        *has_cycle = !is_sorted;
    }
    free(s.colours);
    if (!is_sorted) {
        free(s.order);
        return NULL;
    }
    return s.order;
}
