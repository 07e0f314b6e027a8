/* driver_graph.c: the driver interface to graphs, executable graphs and user objects. */
#include "hostnccl/cuda/driver.h"

#include <string.h>

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

/* The runtime's descriptions of nodes begin like the driver's, apart from that of a copy. */

static bool is_side(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/* False for what the driver interface knows and is not here: arrays. */
static bool copy_of(struct cudaMemcpy3DParms *to, const CUDA_MEMCPY3D *from)
{
    static const enum cudaMemcpyKind kinds[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                                    {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
    if (!is_side(from->srcMemoryType) || !is_side(from->dstMemoryType)) {
        return false;
    }
    bool has_host_source = from->srcMemoryType == CU_MEMORYTYPE_HOST;
    bool has_host_target = from->dstMemoryType == CU_MEMORYTYPE_HOST;
    void *src = has_host_source ? (void *)(uintptr_t)from->srcHost : (void *)(uintptr_t)from->srcDevice;
    void *dst = has_host_target ? from->dstHost : (void *)(uintptr_t)from->dstDevice;
    bool is_unified = from->srcMemoryType == CU_MEMORYTYPE_UNIFIED || from->dstMemoryType == CU_MEMORYTYPE_UNIFIED;
    *to =
        (struct cudaMemcpy3DParms){.srcPos = {from->srcXInBytes, from->srcY, from->srcZ},
                                   .srcPtr = {src, from->srcPitch, from->WidthInBytes, from->srcHeight},
                                   .dstPos = {from->dstXInBytes, from->dstY, from->dstZ},
                                   .dstPtr = {dst, from->dstPitch, from->WidthInBytes, from->dstHeight},
                                   .extent = {from->WidthInBytes, from->Height, from->Depth},
                                   .kind = is_unified ? cudaMemcpyDefault : kinds[!has_host_source][!has_host_target]};
    return true;
}

static struct cudaKernelNodeParams kernel_of(const CUDA_KERNEL_NODE_PARAMS *p)
{
    return (struct cudaKernelNodeParams){.func = p->func ? (void *)p->func : (void *)p->kern,
                                         .gridDim = {p->gridDimX, p->gridDimY, p->gridDimZ},
                                         .blockDim = {p->blockDimX, p->blockDimY, p->blockDimZ},
                                         .sharedMemBytes = p->sharedMemBytes,
                                         .kernelParams = p->kernelParams,
                                         .extra = p->extra};
}

DRIVER_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                            const CUDA_KERNEL_NODE_PARAMS *params)
{
    if (!params) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct cudaKernelNodeParams kernel = kernel_of(params);
    return DRIVER(cudaGraphAddKernelNode(node, graph, before, count, &kernel));
}

DRIVER_EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                            const CUDA_MEMCPY3D *params, CUcontext context)
{
    struct cudaMemcpy3DParms copy;
    (void)context;
    if (!params || !copy_of(&copy, params)) {
        return params ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    return DRIVER(cudaGraphAddMemcpyNode(node, graph, before, count, &copy));
}

DRIVER_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                            const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
    (void)context;
    return DRIVER(
        cudaGraphAddMemsetNode(node, graph, before, count, (const struct cudaMemsetParams *)(const void *)params));
}

DRIVER_EXPORT CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count,
                                          const CUDA_HOST_NODE_PARAMS *params)
{
    return DRIVER(
        cudaGraphAddHostNode(node, graph, before, count, (const struct cudaHostNodeParams *)(const void *)params));
}

DRIVER_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                                size_t count, CUgraph child)
{
    return DRIVER(cudaGraphAddChildGraphNode(node, graph, before, count, child));
}

DRIVER_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count)
{
    return DRIVER(cudaGraphAddEmptyNode(node, graph, before, count));
}

DRIVER_EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                                 size_t count, CUevent event)
{
    return DRIVER(cudaGraphAddEventRecordNode(node, graph, before, count, event));
}

DRIVER_EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                               size_t count, CUevent event)
{
    return DRIVER(cudaGraphAddEventWaitNode(node, graph, before, count, event));
}

/* The runtime's description of a node. */
static CUresult params_of(struct cudaGraphNodeParams *to, const CUgraphNodeParams *from)
{
    if (!from) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(to, from, sizeof(*to));
    if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        to->kernel = kernel_of(&from->kernel);
    } else if (from->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        to->memcpy.flags = from->memcpy.flags;
        return copy_of(&to->memcpy.copyParams, &from->memcpy.copyParams) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    } else if (from->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                      const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
    struct cudaGraphNodeParams own;
    CUresult error = params_of(&own, params);
    error = error ? error
                  : DRIVER(add_node(node, graph, before, (const cudaGraphEdgeData *)(const void *)edges, count, &own));
    if (!error && params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        params->conditional.phGraph_out = own.conditional.phGraph_out;
    }
    return error;
}

DRIVER_EXPORT CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
    struct cudaGraphNodeParams own;
    CUresult error = params_of(&own, params);
    return error ? error : DRIVER(cudaGraphNodeSetParams(node, &own));
}

DRIVER_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
    struct cudaGraphNodeParams own;
    CUresult error = params_of(&own, params);
    return error ? error : DRIVER(cudaGraphExecNodeSetParams(exec, node, &own));
}

DRIVER_EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph,
                                                      CUcontext context, unsigned int value, unsigned int flags)
{
    cudaGraphConditionalHandle made = 0;
    (void)context;
    CUresult error = DRIVER(cudaGraphConditionalHandleCreate(handle ? &made : NULL, graph, value, flags));
    if (!error) {
        *handle = made;
    }
    return error;
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
