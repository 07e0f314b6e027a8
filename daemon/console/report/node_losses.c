/*
 * node_losses.c: see node_losses.h. The numbers are those of the page's nodes (daemon/root/root_nodes.c), from the
 * rings alone: a recording has no agents that could be asked.
 */
#include "daemon/console/report/node_losses.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "trace/ring.h"

#include <stdlib.h>
#include <string.h>

struct node {
    char host[ROLL_NAME_BYTES];
    uint64_t lost, older, unrecorded;
    uint32_t starved;
};

static struct node node_of(const struct roll_feed_stream *ring)
{
    struct node node = {.starved = ring->starved};
    memcpy(node.host, ring->host, sizeof(node.host));
    roll_feed_missing(ring, &node.lost, &node.older);
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        node.unrecorded += roll_loss_is_unrecorded(k) ? ring->losses[k] : 0;
    }
    return node;
}

static int by_host(const void *a, const void *b)
{
    return strcmp(((const struct node *)a)->host, ((const struct node *)b)->host);
}

static int by_need(const void *a, const void *b)
{
    const struct node *x = a, *y = b;
    uint64_t i = x->lost + x->unrecorded, k = y->lost + y->unrecorded;
    return i != k                 ? (i < k) - (i > k)
           : x->older != y->older ? (x->older < y->older) - (x->older > y->older)
                                  : strcmp(x->host, y->host);
}

static size_t fold(struct node *list, size_t n)
{
    size_t nodes = 0;
    for (size_t i = 0; i < n; i++) {
        struct node *to = nodes > 0 ? &list[nodes - 1] : NULL;
        if (to == NULL || strcmp(to->host, list[i].host) != 0) {
            list[nodes++] = list[i];
        } else {
            to->lost += list[i].lost;
            to->older += list[i].older;
            to->unrecorded += list[i].unrecorded;
            to->starved = list[i].starved > to->starved ? list[i].starved : to->starved;
        }
    }
    return nodes;
}

json_t *roll_node_losses_json(const roll_feed_t *feed)
{
    struct node *list = NULL;
    size_t room = 0, used = 0;
    struct roll_feed_stream ring;
    json_t *out = json_array();
    bool whole = true;
    for (size_t i = 0; whole && roll_feed_stream(feed, i, &ring); i++) {
        whole = ROLL_GROW(list, room, used + 1) == 0;
        if (whole) {
            list[used++] = node_of(&ring);
        }
    }
    if (!whole) {
        json_decref(out);
        free(list);
        return NULL;
    }
    qsort(list, used, sizeof(*list), by_host);
    used = fold(list, used);
    qsort(list, used, sizeof(*list), by_need);
    for (size_t i = 0; i < used && json_array_size(out) < ROLL_NODE_LOSSES_MOST; i++) {
        const struct node *n = &list[i];
        if (n->lost + n->older + n->unrecorded + n->starved > 0) {
            json_array_append_new(out, json_pack("{s:o,s:I,s:I,s:I,s:I}", "host", roll_text_to_json(n->host), "lost",
                                                 (json_int_t)n->lost, "older", (json_int_t)n->older, "unrecorded",
                                                 (json_int_t)n->unrecorded, "starved", (json_int_t)n->starved));
        }
    }
    free(list);
    return out;
}
