/*
 * graph.h: what the files about graphs share. A *graph* is nodes and the edges between them; an *executable graph* is a
 * frozen copy of one that can be launched. Everything but launching happens under one lock, hostcuda_graph_lock:
 * building graphs is not time-critical, and one lock makes it simple to get captures right that fork, join and fail
 * over several streams.
 */
#ifndef ROLL_HOSTNCCL_CUDA_GRAPH_H
#define ROLL_HOSTNCCL_CUDA_GRAPH_H

#include "hostnccl/cuda/stream.h"

/* A growing list of borrowed nodes. */
struct hostcuda_nodes {
    struct hostcuda_node **items;
    size_t count, room;
};

struct hostcuda_node {
    struct hostcuda_handle handle;
    struct hostcuda_graph *graph; /* borrowed: the graph owns the node */
    struct hostcuda_work work;
    struct hostcuda_nodes before; /* the nodes on which it depends, in the order in which the program named them */
    struct hostcuda_node *origin; /* of a clone: the node from which it was made; only compared, never followed */
    size_t index;                 /* place in the graph */
    bool is_off;                  /* of an executable graph: the program has switched the node off */
};

struct hostcuda_graph {
    struct hostcuda_handle handle;
    struct hostcuda_nodes nodes; /* in the order of their making; the graph owns them */
    struct hostcuda_held {
        struct hostcuda_user_object *object;
        unsigned int count;
    } * held; /* references to user objects, owned */
    size_t held_count;
    const struct hostcuda_graph
        *origin;               /* of a clone: the graph from which it was made; only compared, never followed */
    bool is_child;             /* owned by a node, so the program must not destroy it */
    unsigned int captures;     /* captures that are adding to the graph */
    unsigned long long number; /* that no other graph of the process has or had */
    bool is_instantiated;      /* of a graph with nodes of memory, which may be instantiated once at a time */
};

/* graph.c; all with the lock held unless it says otherwise */

extern pthread_mutex_t hostcuda_graph_lock;

/* A new graph, known by its handle. cudaErrorMemoryAllocation. */
cudaError_t hostcuda_graph_new(struct hostcuda_graph **graph);

/* Forgets and frees a graph with its nodes and references. */
void hostcuda_graph_free(struct hostcuda_graph **graph);

/*
 * Makes a deep copy. With `keep_origin` the copy's nodes have the same origin as the nodes of the source. Errors:
 * cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_graph_clone(struct hostcuda_graph **clone, const struct hostcuda_graph *source, bool keep_origin);

/* The graph or node behind a handle; NULL when it is not alive. Borrowed. */
struct hostcuda_graph *hostcuda_graph_of(cudaGraph_t handle);
struct hostcuda_node *hostcuda_node_of(cudaGraphNode_t handle);

/* Adds a node behind others of the same graph. Takes what the work owns, also on failure. cudaErrorInvalidValue,
 * cudaErrorNotSupported (memory inside another graph), cudaErrorMemoryAllocation. */
cudaError_t hostcuda_node_add(struct hostcuda_graph *graph, struct hostcuda_work *work,
                              struct hostcuda_node *const *before, size_t count, struct hostcuda_node **node);

/* The graph's nodes in an order that respects the edges; the order of their making where that does. Returns owned, NULL
 * without memory (*has_cycle false) or with a cycle (*has_cycle true). */
struct hostcuda_node **hostcuda_graph_sorted(const struct hostcuda_graph *graph, bool *has_cycle);

/* Appends a node; with `once` only if it is not in the list. False without memory. */
bool hostcuda_nodes_add(struct hostcuda_nodes *nodes, struct hostcuda_node *node, bool once);

/* The bit of the handle of a condition that says that each launch begins with the value, which is the low half. */
enum { HOSTCUDA_CONDITION_ASSIGN_SHIFT = 32 };

/* The body of a condition that runs; NULL: none does. Borrowed. */
const struct hostcuda_graph *hostcuda_condition_body(const struct hostcuda_work *work);

/* exec.c */

/* One node of a frozen graph, child graphs unfolded. */
struct hostcuda_step {
    struct hostcuda_node *node; /* of the frozen graph or one of its children; borrowed */
    size_t *before;             /* indices of steps; owned */
    size_t before_count;
    size_t lane;     /* lanes run beside each other; lane 0 is the stream of the launch */
    bool is_watched; /* a step of another lane depends on it */
};

/*
 * A frozen graph. A frozen graph is never changed: an update makes another one, so that launches that still run keep
 * theirs.
 */
struct hostcuda_body {
    atomic_int refs;
    struct hostcuda_graph *graph; /* owned */
    struct hostcuda_step *steps;
    size_t count, lanes;
};

/* Freezes a graph, taking it on success. cudaErrorInvalidValue (a cycle), cudaErrorMemoryAllocation. */
cudaError_t hostcuda_body_new(struct hostcuda_body **body, struct hostcuda_graph *graph);
void hostcuda_body_free(struct hostcuda_body *body); /* with the lock held */
void hostcuda_body_put(struct hostcuda_body *body);  /* not with the lock held; NULL is allowed */

struct hostcuda_exec {
    struct hostcuda_handle handle;
    pthread_mutex_t lock; /* one launch or update at a time; taken before hostcuda_graph_lock */
    struct hostcuda_body *body;
    struct hostcuda_mark *last;     /* the end of the previous launch, or NULL */
    struct hostcuda_stream **lanes; /* for lanes 1 and up, made when first needed; owned */
    size_t lane_count;
    int lane_device;
    unsigned long long flags;
    struct hostcuda_graph *memory_of;    /* the graph with nodes of memory from which it was made; NULL: it has none */
    unsigned long long memory_of_number; /* its number: the graph may be gone, and another in its place */
};

/* The executable graph behind a handle, with a reference to put back; NULL when it is not alive. */
struct hostcuda_exec *hostcuda_exec_get(cudaGraphExec_t handle);

/* launch.c */

/*
 * Enqueues one launch, and keeps no reference of its own once the launch has run. Errors: cudaErrorMemoryAllocation,
 * errors of capture.
 */
cudaError_t hostcuda_exec_launch(struct hostcuda_exec *exec, struct hostcuda_stream *stream);

/* user_object.c */

struct hostcuda_user_object *hostcuda_user_object_of(cudaUserObject_t handle); /* borrowed; NULL when it is not alive */
void hostcuda_user_object_retain(struct hostcuda_user_object *object, unsigned int count);
/*
 * Gives up `count` references; false when there are fewer. Giving up the last one starts the destructor on the
 * destructors' thread.
 */
bool hostcuda_user_object_release(struct hostcuda_user_object *object, unsigned int count);

/* memory_op.c */

/* Performs the operations in order; a wait sleeps until its condition holds. */
void hostcuda_memory_ops_run(const struct hostcuda_memory_op *ops, size_t count);

#endif
