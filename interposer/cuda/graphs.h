/*
 * graphs.h: which CUDA graphs hold NCCL calls, so that each launch of one can be recorded.
 *
 * What a graph holds is a "body", made while its capture is open and never changed after: graphs, clones and executable
 * graphs share it by counting references. See graphs.c for the tables, capture.c for the wrappers of CUDA's functions.
 */
#ifndef ROLL_INTERPOSER_CUDA_GRAPHS_H
#define ROLL_INTERPOSER_CUDA_GRAPHS_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "trace/def.h"

#include <stdatomic.h>
#include <stdbool.h>

struct roll_comm;
struct roll_fill;
struct roll_body;

/* Number of captures that are open in this process. While it is 0, which is nearly always, no call asks CUDA anything.
 */
extern _Atomic uint32_t roll_captures_open __attribute__((visibility("hidden")));

/* One captured point-to-point call; its record is written again at each launch. */
struct roll_captured_p2p {
    struct roll_comm *comm;
    uint64_t count;
    int32_t peer;
    uint8_t op, dtype, flags;
};
#define ROLL_P2P_CHUNK 127u
struct roll_p2p_chunk {
    struct roll_p2p_chunk *next;
    uint32_t used;
    struct roll_captured_p2p call[ROLL_P2P_CHUNK];
};

struct roll_body_part {
    struct roll_comm *comm;
    uint64_t hash;
    uint32_t collectives, p2p;
};

struct roll_body {
    uint32_t refs; /* under roll_lock */
    uint16_t id;   /* id of the graph's definition */
    uint64_t first, last;
    uint32_t calls, parts, p2ps;
    uint32_t lists; /* number of parts that hold collectives */
    struct roll_p2p_chunk *p2p, *p2p_last;
    struct roll_body *next; /* next one in the list of spare bodies */
    struct roll_body_part part[ROLL_GRAPH_PARTS];
};

/* Called when a call on `stream` is about to be recorded while a capture is open. If that stream is captured, marks
 * `fill`, and the thread for roll_captured_leave. */
void roll_captured_enter(struct roll_thread *t, cudaStream_t stream, struct roll_comm *comm, struct roll_fill *fill);
/* Called when a captured call has returned: gives it its place in the graph, unless it failed. */
void roll_captured_leave(struct roll_thread *t, uint64_t ticket, int result);

/* Whether the stream is being captured, and by which capture. No CUDA function is called unless one is open. */
bool roll_capture_of(cudaStream_t stream, unsigned long long *id);
/* Finds the function of CUDA that roll_capture_of asks, outside of any hot path. */
void roll_capture_prepare(void);

/* The id of the graph that an open capture will become; 0 while the capture holds no NCCL call. */
uint16_t roll_capture_graph(unsigned long long id);
/* Called when a capture has ended: its graph is `graph`; NULL when there is none. */
void roll_capture_end(unsigned long long id, const void *graph);

/* Changes what a handle (graph or executable graph) holds: roll_graph_bind makes it what `source` holds (NULL: nothing,
 * so the handle is forgotten), roll_graph_add_child adds the contents of a child. Any thread. */
void roll_graph_bind(const void *handle, const void *source);
void roll_graph_add_child(const void *graph, const void *child);
/* Adds what `exec` holds to the capture `id`: a launch into a captured stream becomes a node. */
void roll_graph_embed(unsigned long long id, const void *exec);

/* Number of handles that hold something. */
extern _Atomic uint32_t roll_graph_handles __attribute__((visibility("hidden")));
/* The body of a handle, NULL when it holds nothing. roll_body_put gives it back. */
struct roll_body *roll_body_get(const void *handle);
void roll_body_put(struct roll_body *body);

#endif
