/*
 * exec_body.c: the frozen part of an executable graph, which its launches share: the last one that is done frees it.
 */
#include "hostnccl/cuda/graph.h"

#include <stdlib.h>

void hostcuda_body_free(struct hostcuda_body *body)
{
    for (size_t i = 0; i < body->count; i++) {
        free(body->steps[i].before);
    }
    free(body->steps);
    hostcuda_graph_free(&body->graph);
    free(body);
}

void hostcuda_body_put(struct hostcuda_body *body)
{
    if (body && atomic_fetch_sub_explicit(&body->refs, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_lock(&hostcuda_graph_lock);
        hostcuda_body_free(body);
        pthread_mutex_unlock(&hostcuda_graph_lock);
    }
}
