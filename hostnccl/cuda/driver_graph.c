/* driver_graph.c: the driver interface to graphs, executable graphs and user objects. */
#include "hostnccl/cuda/driver.h"

DRIVER_EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    return DRIVER(cudaGraphCreate(graph, flags));
}

DRIVER_EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    return DRIVER(cudaGraphDestroy(graph));
}

DRIVER_EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph original)
{
    return DRIVER(cudaGraphClone(clone, original));
}

DRIVER_EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return DRIVER(cudaGraphGetNodes(graph, nodes, count));
}

DRIVER_EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    return DRIVER(cudaGraphGetRootNodes(graph, nodes, count));
}

DRIVER_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    return DRIVER(cudaGraphNodeGetType(node, (enum cudaGraphNodeType *)(void *)type));
}

DRIVER_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return DRIVER(cudaGraphInstantiateWithFlags(exec, graph, flags));
}

DRIVER_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                    CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return DRIVER(cudaGraphInstantiateWithParams(exec, graph, (cudaGraphInstantiateParams *)(void *)params));
}

DRIVER_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    return DRIVER(cudaGraphExecUpdate(exec, graph, (cudaGraphExecUpdateResultInfo *)(void *)info));
}

DRIVER_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    return DRIVER(cudaGraphExecDestroy(exec));
}

DRIVER_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return DRIVER(cudaGraphUpload(exec, stream));
}

DRIVER_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return DRIVER(cudaGraphLaunch(exec, stream));
}

DRIVER_EXPORT CUresult cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned int count,
                                          unsigned int flags)
{
    return DRIVER(cudaUserObjectCreate(object, pointer, destroy, count, flags));
}

DRIVER_EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    return DRIVER(cudaUserObjectRetain(object, count));
}

DRIVER_EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    return DRIVER(cudaUserObjectRelease(object, count));
}

DRIVER_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                               unsigned int flags)
{
    return DRIVER(cudaGraphRetainUserObject(graph, object, count, flags));
}

DRIVER_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    return DRIVER(cudaGraphReleaseUserObject(graph, object, count));
}
