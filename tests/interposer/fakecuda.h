/*
 * fakecuda.h: the part of the CUDA driver that makes and launches graphs, as fakecuda.c fakes it, and the runtime's
 * functions above it (fakeother.c), which call the driver as the real ones do.
 */
#ifndef ROLL_TESTS_INTERPOSER_FAKECUDA_H
#define ROLL_TESTS_INTERPOSER_FAKECUDA_H

#define FAKE_GRAPH_FUNCTIONS(X)                                                                                        \
    X(StreamBeginCapture, (void *stream, int mode), (stream, mode), cuStreamBeginCapture_v2)                           \
    X(StreamEndCapture, (void *stream, void **graph), (stream, graph), cuStreamEndCapture)                             \
    X(GraphInstantiate, (void **exec, void *graph, unsigned long long flags), (exec, graph, flags),                    \
      cuGraphInstantiateWithFlags)                                                                                     \
    X(GraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags), (exec, graph, flags),           \
      cuGraphInstantiateWithFlags)                                                                                     \
    X(GraphClone, (void **clone, void *graph), (clone, graph), cuGraphClone)                                           \
    X(GraphAddChildGraphNode, (void **node, void *graph, const void *deps, unsigned long n, void *child),              \
      (node, graph, deps, n, child), cuGraphAddChildGraphNode)                                                         \
    X(GraphExecUpdate, (void *exec, void *graph, void *result), (exec, graph, result), cuGraphExecUpdate_v2)           \
    X(GraphExecDestroy, (void *exec), (exec), cuGraphExecDestroy)                                                      \
    X(GraphDestroy, (void *graph), (graph), cuGraphDestroy)                                                            \
    X(GraphLaunch, (void *exec, void *stream), (exec, stream), cuGraphLaunch)

#define FAKE_DECLARE(name, params, args, driver)                                                                       \
    int cuda##name params;                                                                                             \
    int driver params;
FAKE_GRAPH_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

int cuStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void *graph, void *deps, void *count);
int cuGetProcAddress_v2(const char *symbol, void **answer, int version, unsigned long long flags, void *status);

/* What completion needs. Work that a stream would do waits until fake_run. */
int cuCtxGetDevice(int *device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuMemHostRegister_v2(void *at, unsigned long bytes, unsigned flags);
int cuMemHostGetDevicePointer_v2(unsigned long long *out, void *at, unsigned flags);
int cuStreamWriteValue64_v2(void *stream, unsigned long long at, unsigned long long value, unsigned flags);
int cuEventCreate(void **event, unsigned flags);
int cuEventRecord(void *event, void *stream);
int cuEventQuery(void *event);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra);
void fake_run(void);         /* all work that has been issued is complete */
extern int fake_unsafe;      /* calls that would have invalidated a capture, or were made on one */
extern int fake_no_wide;     /* the device cannot do 64-bit memory operations */
extern int fake_events_made; /* events created */

/* The stream joins the capture of another, as by an event. */
void fake_join(void *stream, void *origin);
extern int fake_queries;      /* how often it was asked whether a stream is captured */
extern int fake_launches;     /* graphs launched */
extern int fake_launch_error; /* what a launch returns */

#endif
