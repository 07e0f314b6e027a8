/*
 * graph_api.c: the calls about whole graphs: making, copying, destroying, what is in them, and the user objects that
 * they keep alive. Every call takes the lock of graphs, so a handle that it found stays alive until it returns.
 */
#include "hostnccl/cuda/graph_memory.h"

#include <stdlib.h>

/* Enters with the lock of graphs, to be given back by leave(). */
static cudaError_t enter(void)
{
    cudaError_t error = hostcuda_enter_work();
    pthread_mutex_lock(&hostcuda_graph_lock);
    return error;
}

static cudaError_t leave(cudaError_t error)
{
    pthread_mutex_unlock(&hostcuda_graph_lock);
    return hostcuda_leave(error);
}

/* Enters, and finds the graph. */
static cudaError_t enter_with(cudaGraph_t handle, struct hostcuda_graph **graph)
{
    cudaError_t error = enter();
    *graph = error ? NULL : hostcuda_graph_of(handle);
    return error ? error : *graph ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t enter_with_node(cudaGraphNode_t handle, struct hostcuda_node **node)
{
    cudaError_t error = enter();
    *node = error ? NULL : hostcuda_node_of(handle);
    return error ? error : *node ? cudaSuccess : cudaErrorInvalidValue;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned int flags)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter();
    if (!error && (!out || flags)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        error = hostcuda_graph_new(&graph);
    }
    if (!error) {
        *out = (cudaGraph_t)graph;
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    if (!error && (graph->is_child || graph->captures)) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        hostcuda_graph_free(&graph);
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphClone(cudaGraph_t *out, cudaGraph_t handle)
{
    struct hostcuda_graph *graph, *clone;
    cudaError_t error = enter_with(handle, &graph);
    if (!error && !out) {
        error = cudaErrorInvalidValue;
    } else if (!error && hostcuda_graph_has_memory(graph)) {
        error = cudaErrorNotSupported;
    }
    if (!error) {
        error = hostcuda_graph_clone(&clone, graph, false);
    }
    if (!error) {
        *out = (cudaGraph_t)clone;
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t *out, cudaGraphNode_t original, cudaGraph_t handle)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    if (!error) {
        error = cudaErrorInvalidValue;
        for (size_t i = 0; out && i < graph->nodes.count; i++) {
            if (graph->nodes.items[i]->origin == (struct hostcuda_node *)original && original) {
                *out = (cudaGraphNode_t)graph->nodes.items[i];
                error = cudaSuccess;
            }
        }
    }
    return leave(error);
}

/*
 * Answers as all calls that list do: without an array it says how many items there are; with an array it fills the
 * array, and sets what is beyond the last item to NULL.
 */
static void list(struct hostcuda_node *const *found, size_t count, cudaGraphNode_t *nodes, size_t *room)
{
    for (size_t i = 0; nodes && i < *room; i++) {
        nodes[i] = i < count ? (cudaGraphNode_t)found[i] : NULL;
    }
    if (!nodes || *room > count) {
        *room = count;
    }
}

HOSTCUDA_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    if (!error && !count) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        list(graph->nodes.items, graph->nodes.count, nodes, count);
    }
    return leave(error);
}

/* Lists the nodes that `wanted` accepts, in the order of their making. */
static cudaError_t list_where(const struct hostcuda_graph *graph,
                              bool (*wanted)(const struct hostcuda_node *, const void *), const void *what,
                              cudaGraphNode_t *nodes, size_t *count)
{
    struct hostcuda_nodes found = {0};
    cudaError_t error = count ? cudaSuccess : cudaErrorInvalidValue;
    for (size_t i = 0; !error && i < graph->nodes.count; i++) {
        if (wanted(graph->nodes.items[i], what) && !hostcuda_nodes_add(&found, graph->nodes.items[i], false)) {
            error = cudaErrorMemoryAllocation;
        }
    }
    if (!error) {
        list(found.items, found.count, nodes, count);
    }
    free(found.items);
    return error;
}

static bool is_root(const struct hostcuda_node *node, const void *what)
{
    (void)what;
    return node->before.count == 0;
}

static bool comes_after(const struct hostcuda_node *node, const void *what)
{
    for (size_t i = 0; i < node->before.count; i++) {
        if (node->before.items[i] == what) {
            return true;
        }
    }
    return false;
}

HOSTCUDA_EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    return leave(error ? error : list_where(graph, is_root, NULL, nodes, count));
}

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t handle, enum cudaGraphNodeType *type)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, &node);
    if (!error && !type) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *type = (enum cudaGraphNodeType)node->work.type;
    }
    return leave(error);
}

static cudaError_t get_dependencies(cudaGraphNode_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, &node);
    if (!error && !count) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        list(node->before.items, node->before.count, nodes, count);
    }
    return leave(error);
}

static cudaError_t get_dependents(cudaGraphNode_t handle, cudaGraphNode_t *nodes, size_t *count)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, &node);
    return leave(error ? error : list_where(node->graph, comes_after, node, nodes, count));
}

static cudaError_t get_edges(cudaGraph_t handle, cudaGraphNode_t *from, cudaGraphNode_t *to, size_t *count)
{
    struct hostcuda_graph *graph;
    size_t found = 0;
    cudaError_t error = enter_with(handle, &graph);
    if (!error && (!count || !from != !to)) {
        error = cudaErrorInvalidValue;
    }
    for (size_t i = 0; !error && i < graph->nodes.count; i++) {
        const struct hostcuda_node *node = graph->nodes.items[i];
        for (size_t k = 0; k < node->before.count; k++, found++) {
            if (from && found < *count) {
                from[found] = (cudaGraphNode_t)node->before.items[k];
                to[found] = (cudaGraphNode_t)graph->nodes.items[i];
            }
        }
    }
    for (size_t i = found; !error && from && i < *count; i++) {
        from[i] = to[i] = NULL;
    }
    if (!error && (!from || *count > found)) {
        *count = found;
    }
    return leave(error);
}

/* One edge, to be added or taken away. */
typedef cudaError_t edge_fn(struct hostcuda_node *from, struct hostcuda_node *to);

static cudaError_t add_edge(struct hostcuda_node *from, struct hostcuda_node *to)
{
    if (comes_after(to, from) || from == to) {
        return cudaErrorInvalidValue;
    }
    return hostcuda_nodes_add(&to->before, from, false) ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t remove_edge(struct hostcuda_node *from, struct hostcuda_node *to)
{
    size_t kept = 0;
    for (size_t i = 0; i < to->before.count; i++) {
        if (to->before.items[i] != from) {
            to->before.items[kept++] = to->before.items[i];
        }
    }
    bool was_there = kept != to->before.count;
    to->before.count = kept;
    return was_there ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t change_edges(cudaGraph_t handle, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                size_t count, edge_fn *change)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    if (!error && count && (!from || !to)) {
        error = cudaErrorInvalidValue;
    } else if (!error && change == remove_edge && hostcuda_graph_has_memory(graph)) {
        error = cudaErrorNotSupported;
    }
    for (size_t i = 0; !error && i < count; i++) {
        struct hostcuda_node *a = hostcuda_node_of(from[i]), *b = hostcuda_node_of(to[i]);
        error = a && b && a->graph == graph && b->graph == graph ? change(a, b) : cudaErrorInvalidValue;
    }
    return leave(error);
}

/* An edge may carry data since CUDA 12.3; only kernels that start early have any, and there are none here. */
static bool is_plain(const cudaGraphEdgeData *edges, size_t count)
{
    for (size_t i = 0; edges && i < count; i++) {
        if (edges[i].from_port || edges[i].to_port || edges[i].type) {
            return false;
        }
    }
    return true;
}

static void say_plain(cudaGraphEdgeData *edges, size_t count)
{
    for (size_t i = 0; edges && i < count; i++) {
        edges[i] = (cudaGraphEdgeData){0};
    }
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphNodeGetDependencies, _v2)(cudaGraphNode_t node,
                                                                             cudaGraphNode_t *nodes,
                                                                             cudaGraphEdgeData *edges, size_t *count)
{
    cudaError_t error = get_dependencies(node, nodes, count);
    say_plain(error ? NULL : edges, error ? 0 : *count);
    return error;
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphNodeGetDependentNodes, _v2)(cudaGraphNode_t node,
                                                                               cudaGraphNode_t *nodes,
                                                                               cudaGraphEdgeData *edges, size_t *count)
{
    cudaError_t error = get_dependents(node, nodes, count);
    say_plain(error ? NULL : edges, error ? 0 : *count);
    return error;
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphGetEdges, _v2)(cudaGraph_t graph, cudaGraphNode_t *from,
                                                                  cudaGraphNode_t *to, cudaGraphEdgeData *edges,
                                                                  size_t *count)
{
    cudaError_t error = get_edges(graph, from, to, count);
    say_plain(error ? NULL : edges, error ? 0 : *count);
    return error;
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphAddDependencies, _v2)(cudaGraph_t graph, const cudaGraphNode_t *from,
                                                                         const cudaGraphNode_t *to,
                                                                         const cudaGraphEdgeData *edges, size_t count)
{
    return is_plain(edges, count) ? change_edges(graph, from, to, count, add_edge)
                                  : hostcuda_leave(cudaErrorNotSupported);
}

HOSTCUDA_EXPORT cudaError_t HOSTCUDA_FORM(cudaGraphRemoveDependencies,
                                          _v2)(cudaGraph_t graph, const cudaGraphNode_t *from,
                                               const cudaGraphNode_t *to, const cudaGraphEdgeData *edges, size_t count)
{
    return is_plain(edges, count) ? change_edges(graph, from, to, count, remove_edge)
                                  : hostcuda_leave(cudaErrorInvalidValue);
}

#if CUDART_VERSION < 13000
HOSTCUDA_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes, size_t *count)
{
    return get_dependencies(node, nodes, count);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t *nodes, size_t *count)
{
    return get_dependents(node, nodes, count);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                                              size_t *count)
{
    return get_edges(graph, from, to, count);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                                     const cudaGraphNode_t *to, size_t count)
{
    return change_edges(graph, from, to, count, add_edge);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                                        const cudaGraphNode_t *to, size_t count)
{
    return change_edges(graph, from, to, count, remove_edge);
}
#endif

HOSTCUDA_EXPORT cudaError_t cudaGraphDestroyNode(cudaGraphNode_t handle)
{
    struct hostcuda_node *node;
    cudaError_t error = enter_with_node(handle, &node);
    if (!error && node->graph->captures) {
        error = cudaErrorInvalidValue; /* a captured stream may stand on it */
    } else if (!error && hostcuda_graph_has_memory(node->graph)) {
        error = cudaErrorNotSupported; /* what is allocated and freed in a graph stays so */
    }
    if (!error) {
        struct hostcuda_nodes *nodes = &node->graph->nodes;
        size_t kept = 0;
        for (size_t i = 0; i < nodes->count; i++) {
            if (nodes->items[i] != node) {
                (void)remove_edge(node, nodes->items[i]);
                nodes->items[i]->index = kept;
                nodes->items[kept++] = nodes->items[i];
            }
        }
        nodes->count = kept;
        hostcuda_handle_put(hostcuda_handle_remove(HOSTCUDA_NODE, node));
    }
    return leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object_handle,
                                                      unsigned int count, unsigned int flags)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    struct hostcuda_user_object *object = error ? NULL : hostcuda_user_object_of(object_handle);
    if (!error && (!object || !count || flags & ~(unsigned int)cudaGraphUserObjectMove)) {
        error = cudaErrorInvalidValue;
    }
    if (error) {
        return leave(error);
    }
    size_t at = 0;
    while (at < graph->held_count && graph->held[at].object != object) {
        at++;
    }
    if (at == graph->held_count) {
        struct hostcuda_held *held = realloc(graph->held, (at + 1) * sizeof(*held));
        if (!held) {
            return leave(cudaErrorMemoryAllocation);
        }
        graph->held = held;
        held[graph->held_count++] = (struct hostcuda_held){.object = object};
    }
    graph->held[at].count += count;
    if (!(flags & cudaGraphUserObjectMove)) {
        hostcuda_user_object_retain(object, count);
    }
    return leave(cudaSuccess);
}

HOSTCUDA_EXPORT cudaError_t cudaGraphReleaseUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count)
{
    struct hostcuda_graph *graph;
    cudaError_t error = enter_with(handle, &graph);
    if (!error) {
        error = cudaErrorInvalidValue;
        for (size_t i = 0; i < graph->held_count; i++) {
            struct hostcuda_held *held = &graph->held[i];
            if ((cudaUserObject_t)held->object == object && count && count <= held->count) {
                held->count -= count;
                hostcuda_user_object_release(held->object, count);
                if (!held->count) {
                    *held = graph->held[--graph->held_count];
                }
                error = cudaSuccess;
                break;
            }
        }
    }
    return leave(error);
}
