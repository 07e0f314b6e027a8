/* graph_dot.c: drawing a graph for the program graphviz: a box for each node with its number and kind, an arrow for
 * each edge. */
#include "hostnccl/cuda/graph.h"

#include <stdio.h>

static const char *kind_of(int type)
{
    static const char *const kinds[] = {
        [cudaGraphNodeTypeKernel] = "kernel",        [cudaGraphNodeTypeMemcpy] = "memcpy",
        [cudaGraphNodeTypeMemset] = "memset",        [cudaGraphNodeTypeHost] = "host",
        [cudaGraphNodeTypeGraph] = "graph",          [cudaGraphNodeTypeEmpty] = "empty",
        [cudaGraphNodeTypeWaitEvent] = "event wait", [cudaGraphNodeTypeEventRecord] = "event record",
        [HOSTCUDA_NODE_BATCH] = "memory operations", [cudaGraphNodeTypeConditional] = "condition",
        [cudaGraphNodeTypeMemAlloc] = "allocation",  [cudaGraphNodeTypeMemFree] = "free",
    };
    return kinds[type];
}

/* `prefix` keeps the names of nodes in nested graphs apart. */
static void draw(FILE *out, const struct hostcuda_graph *graph, const char *prefix)
{
    for (size_t i = 0; i < graph->nodes.count; i++) {
        const struct hostcuda_node *node = graph->nodes.items[i];
        fprintf(out, "  \"%s%zu\" [shape=box label=\"%s%zu %s\"];\n", prefix, i, prefix, i, kind_of(node->work.type));
        for (size_t k = 0; k < node->before.count; k++) {
            fprintf(out, "  \"%s%zu\" -> \"%s%zu\";\n", prefix, node->before.items[k]->index, prefix, i);
        }
        char inner[64];
        if (node->work.type == cudaGraphNodeTypeGraph) {
            snprintf(inner, sizeof(inner), "%s%zu.", prefix, i);
            draw(out, node->work.arg.child, inner);
        }
        for (unsigned int k = 0; node->work.type == cudaGraphNodeTypeConditional && k < node->work.arg.condition.count;
             k++) {
            snprintf(inner, sizeof(inner), "%s%zu.%u.", prefix, i, k);
            draw(out, node->work.arg.condition.bodies[k], inner);
        }
    }
}

HOSTCUDA_EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char *path, unsigned int flags)
{
    cudaError_t error = hostcuda_enter_work();
    FILE *out = error || !path ? NULL : fopen(path, "we");
    (void)flags; /* every flag only chooses how much more is written about a node */
    if (!out) {
        return hostcuda_leave(error ? error : path ? cudaErrorOperatingSystem : cudaErrorInvalidValue);
    }
    pthread_mutex_lock(&hostcuda_graph_lock);
    struct hostcuda_graph *graph = hostcuda_graph_of(handle);
    if (graph) {
        fprintf(out, "digraph graph_of_%zu_nodes {\n", graph->nodes.count);
        draw(out, graph, "");
        fputs("}\n", out);
    }
    pthread_mutex_unlock(&hostcuda_graph_lock);
    bool is_written = !ferror(out);
    is_written = !fclose(out) && is_written;
    return hostcuda_leave(!graph ? cudaErrorInvalidValue : is_written ? cudaSuccess : cudaErrorOperatingSystem);
}
