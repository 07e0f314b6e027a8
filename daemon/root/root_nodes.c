/*
 * root_nodes.c: the nodes of a run: what is lost there, who is not heard, how hard its ranks press for processors, and
 * when its agent was heard. For the page.
 *
 * The status has agents, and 32 relays may be all that a root knows of 2,048 nodes; whoever looks for the node that is
 * in trouble wants nodes. So the ranks are folded by their hosts here, the worst first.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MOST 1024u

struct node {
    const char *host; /* borrowed from the engine */
    uint32_t rank, ranks, silent, starved;
    uint64_t lost, unrecorded;
    const struct roll_peer *peer; /* borrowed; NULL: nobody has its rings */
    struct roll_rankset set;      /* owned */
};

/* By host, and then by rank. */
static int by_host(const void *a, const void *b)
{
    const struct node *x = a, *y = b;
    int hosts = strverscmp(x->host, y->host);
    return hosts != 0 ? hosts : (x->rank > y->rank) - (x->rank < y->rank);
}

static int more(uint64_t a, uint64_t b)
{
    return (a < b) - (a > b);
}

static int by_need(const void *a, const void *b)
{
    const struct node *x = a, *y = b;
    int silent = more(x->silent, y->silent), lost = more(x->lost + x->unrecorded, y->lost + y->unrecorded);
    /* In hundredths, so that the order does not change with every look. */
    int starved = more(x->starved / 10, y->starved / 10);
    return silent != 0 ? silent : lost != 0 ? lost : starved != 0 ? starved : strverscmp(x->host, y->host);
}

/* What is known of one rank, as a node of one. */
static struct node rank_of(const roll_root_t *root, const struct roll_run *run, const struct roll_view_source *v,
                           struct roll_eyes_at *at)
{
    struct roll_feed_stream ring;
    struct node node = {.host = v->info.host ? v->info.host : "",
                        .rank = (uint32_t)v->info.world_rank,
                        .ranks = 1,
                        .silent = !v->heard && v->proc != ROLL_PROC_FINISHED && v->proc != ROLL_PROC_DEAD,
                        .lost = v->lost,
                        .peer = roll_eyes_peer(root, run, v->info.stream, at)};
    if (roll_feed_find(run->feed, v->info.stream, &ring)) {
        node.starved = ring.starved;
        node.lost = ring.lost > node.lost ? ring.lost : node.lost;
        for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
            node.unrecorded += roll_loss_is_unrecorded(k) ? ring.losses[k] : 0;
        }
    }
    return node;
}

static struct node *ranks_of(const roll_root_t *root, const struct roll_run *run, struct roll_eyes_at *at, size_t *n)
{
    struct roll_view_source v;
    struct node *list = NULL;
    size_t room = 0;
    *n = 0;
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v) && ROLL_GROW(list, room, *n + 1) == 0; i++) {
        if (v.info.world_rank >= 0) {
            list[(*n)++] = rank_of(root, run, &v, at);
        }
    }
    return list;
}

/* Folds ranks, which are in the order of their hosts, into nodes. Returns how many. */
static size_t fold(struct node *list, size_t n)
{
    size_t nodes = 0;
    for (size_t i = 0; i < n; i++) {
        struct node one = list[i];
        if (nodes == 0 || strcmp(list[nodes - 1].host, one.host) != 0) {
            list[nodes++] = one;
        } else {
            struct node *to = &list[nodes - 1];
            to->ranks += !roll_rankset_has(&to->set, one.rank);
            to->silent += one.silent;
            to->starved = one.starved > to->starved ? one.starved : to->starved;
            to->lost += one.lost;
            to->unrecorded += one.unrecorded;
            to->peer = one.peer ? one.peer : to->peer;
        }
        (void)roll_rankset_add(&list[nodes - 1].set, one.rank);
    }
    return nodes;
}

static json_t *agent_json(const roll_root_t *root, const struct roll_peer *peer, uint64_t now)
{
    if (!peer) {
        return json_null();
    }
    json_t *agent = json_pack("{s:o,s:b,s:I,s:b,s:I}", "host", roll_text_to_json(peer->host), "relay", (int)peer->relay,
                              "pid", (json_int_t)peer->pid, "gone", (int)peer->gone, "age_ns",
                              (json_int_t)(now > peer->seen_ns ? now - peer->seen_ns : 0));
    if (agent) {
        roll_eyes_tell(root, peer, agent);
    }
    return agent;
}

static json_t *node_json(const roll_root_t *root, const struct node *node, uint64_t now)
{
    return json_pack("{s:o,s:I,s:o,s:I,s:I,s:I,s:I,s:o}", "host", roll_text_to_json(node->host), "ranks",
                     (json_int_t)node->ranks, "ranks_text", roll_ranks_text_json(&node->set), "silent",
                     (json_int_t)node->silent, "lost", (json_int_t)node->lost, "unrecorded",
                     (json_int_t)node->unrecorded, "starved", (json_int_t)node->starved, "agent",
                     agent_json(root, node->peer, now));
}

json_t *roll_nodes_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *most = json_object_get(query, "rows");
    size_t rows_most =
        json_is_integer(most) && json_integer_value(most) >= 0 ? (size_t)json_integer_value(most) : ROWS_MOST;
    struct roll_eyes_at at = {.is_made = false};
    size_t n;
    struct node *list = ranks_of(root, run, &at, &n);
    uint64_t now = roll_mono_ns();
    json_t *rows = json_array();
    if (n > 1) {
        qsort(list, n, sizeof(*list), by_host);
    }
    n = fold(list, n);
    if (n > 1) {
        qsort(list, n, sizeof(*list), by_need);
    }
    for (size_t i = 0; i < n; i++) {
        if (i < rows_most && i < ROWS_MOST) {
            json_array_append_new(rows, node_json(root, &list[i], now));
        }
        roll_rankset_fini(&list[i].set);
    }
    free(list);
    roll_eyes_at_fini(&at);
    return json_pack("{s:I,s:o,s:o,s:o,s:I}", "count", (json_int_t)n, "nodes", rows, "losses", roll_losses_json(run),
                     "eyes", roll_eyes_json(root, run), "time_ns", (json_int_t)roll_real_ns());
}
