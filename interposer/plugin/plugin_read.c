/*
 * plugin_read.c: reads the descriptor of an event, in each version of the profiler interface.
 *
 * Each layout is named as far as its last member that is read. Later versions only appended members (5 to 7 are alike
 * up to there), so the newest layout also reads the versions after it. One table of names serves all: versions 2 and
 * later give functions and datatypes as words, version 1 as NCCL's internal numbers.
 */
#include "interposer/plugin/plugin.h"

#include <string.h>

struct coll_v1 {
    struct roll_descr head;
    const char *name;
    uint64_t hash, seq;
    uint8_t func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    uint8_t datatype;
};
struct p2p_v1 {
    struct roll_descr head;
    const char *name;
    uint64_t hash;
    uint8_t func;
    void *buffer;
    uint8_t datatype;
    size_t count;
    int peer;
};
struct coll_v2 { /* and 3 */
    struct roll_descr head;
    const char *name;
    uint64_t hash, seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
};
struct p2p_v2 {
    struct roll_descr head;
    const char *name;
    uint64_t hash;
    const char *func;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
};
struct coll_v4 { /* and later */
    struct roll_descr head;
    uint64_t seq;
    const char *func;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
    void *group; /* from 5 on */
};
struct p2p_v4 { /* and later */
    struct roll_descr head;
    const char *func;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t channels;
    void *group; /* from 5 on */
};
struct group_api {
    struct roll_descr head;
    uint8_t captured;
    int depth;
};
struct coll_api {
    struct roll_descr head;
    const char *func;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    uint8_t captured;
};
struct p2p_api {
    struct roll_descr head;
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    uint8_t captured;
};

/* Names of functions by NCCL's internal numbers, which version 1 gives. */
static const char *const numbered[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                       "AllReduce", NULL,     "Send",      "Recv"};

static const char *const datatypes[ROLL_DTYPE_LIMIT] = {
    "Int8",    "Uint8",   "Int32",   "Uint32",   "Int64",      "Uint64",
    "Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2",
};

static uint8_t dtype_of(const char *name)
{
    if (name == NULL) {
        return ROLL_DTYPE_NONE;
    }
    name += strncmp(name, "nccl", 4) == 0 ? 4 : 0;
    for (uint8_t i = 0; i < ROLL_DTYPE_LIMIT; i++) {
        if (strcmp(name, datatypes[i]) == 0) {
            return i;
        }
    }
    return ROLL_DTYPE_NONE;
}

/* Fills operation and root; an unknown operation is not recorded. */
static void name_call(struct roll_plugin_call *out, const char *func, int root)
{
    out->op = ROLL_OP_NONE;
    out->peer = ROLL_PEER_NONE;
    enum roll_op op = func != NULL ? roll_op_by_name(func) : ROLL_OP_NONE; /* NCCL's names are our labels */
    bool message = roll_op_class(op) == ROLL_CLASS_P2P;
    if (message || roll_op_has(op, ~0u)) {
        out->op = (uint8_t)op;
        out->peer = message || roll_op_has(op, ROLL_TRAIT_ROOT) ? root : ROLL_PEER_NONE;
    }
}

static const char *numbered_function(uint8_t number)
{
    return number < sizeof(numbered) / sizeof(numbered[0]) ? numbered[number] : NULL;
}

uint64_t roll_plugin_type(int version, const void *descr)
{
    uint64_t type;
    if (version <= 4) {
        return *(const uint8_t *)descr;
    }
    memcpy(&type, descr, sizeof(type));
    return type;
}

int roll_plugin_depth(const void *descr)
{
    return ((const struct group_api *)descr)->depth;
}

static void read_v1(uint64_t type, const void *descr, struct roll_plugin_call *out)
{
    const struct coll_v1 *coll = descr;
    const struct p2p_v1 *p2p = descr;
    bool is_coll = type == ROLL_EVENT_COLL;
    uint8_t dtype = is_coll ? coll->datatype : p2p->datatype;
    out->name = coll->name;
    out->hash = coll->hash;
    out->count = is_coll ? coll->count : p2p->count;
    out->dtype = dtype < ROLL_DTYPE_LIMIT ? dtype : ROLL_DTYPE_NONE;
    name_call(out, numbered_function(is_coll ? coll->func : p2p->func), is_coll ? coll->root : p2p->peer);
}

static void read_v2(uint64_t type, const void *descr, struct roll_plugin_call *out)
{
    const struct coll_v2 *coll = descr;
    const struct p2p_v2 *p2p = descr;
    bool is_coll = type == ROLL_EVENT_COLL;
    out->name = coll->name;
    out->hash = coll->hash;
    out->count = is_coll ? coll->count : p2p->count;
    out->dtype = dtype_of(is_coll ? coll->datatype : p2p->datatype);
    name_call(out, is_coll ? coll->func : p2p->func, is_coll ? coll->root : p2p->peer);
}

static void read_v4(uint64_t type, const void *descr, struct roll_plugin_call *out)
{
    const struct coll_v4 *coll = descr;
    const struct p2p_v4 *p2p = descr;
    bool is_coll = type == ROLL_EVENT_COLL;
    out->count = is_coll ? coll->count : p2p->count;
    out->dtype = dtype_of(is_coll ? coll->datatype : p2p->datatype);
    name_call(out, is_coll ? coll->func : p2p->func, is_coll ? coll->root : p2p->peer);
}

static void read_api(uint64_t type, const void *descr, struct roll_plugin_call *out)
{
    const struct coll_api *coll = descr;
    const struct p2p_api *p2p = descr;
    bool is_coll = type == ROLL_EVENT_COLL_API;
    out->count = is_coll ? coll->count : p2p->count;
    out->dtype = dtype_of(is_coll ? coll->datatype : p2p->datatype);
    out->stream = is_coll ? coll->stream : p2p->stream;
    out->captured = (is_coll ? coll->captured : p2p->captured) != 0;
    name_call(out, is_coll ? coll->func : p2p->func, is_coll ? coll->root : ROLL_PEER_NONE);
}

void roll_plugin_read(int version, const void *descr, struct roll_plugin_call *out)
{
    uint64_t type = roll_plugin_type(version, descr);
    memset(out, 0, sizeof(*out));
    if (type == ROLL_EVENT_COLL_API || type == ROLL_EVENT_P2P_API) {
        read_api(type, descr, out);
    } else if (version == 1) {
        read_v1(type, descr, out);
    } else if (version <= 3) {
        read_v2(type, descr, out);
    } else {
        read_v4(type, descr, out);
    }
}

void **roll_chain_group(int version, void *descr)
{
    uint64_t type = roll_plugin_type(version, descr);
    if (version >= 5 && type == ROLL_EVENT_COLL) {
        return &((struct coll_v4 *)descr)->group;
    }
    return version >= 5 && type == ROLL_EVENT_P2P ? &((struct p2p_v4 *)descr)->group : NULL;
}
