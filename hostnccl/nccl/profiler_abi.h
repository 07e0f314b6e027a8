/*
 * profiler_abi.h: the interface between NCCL and a profiler plugin, versions 1 to 7, as far as this library uses it.
 *
 * The structs are written from the facts of NCCL's interface (names, order and types of members), each version in full,
 * so that a plugin that reads a version wrongly fails here. Members for which this library has no value stay zero.
 */
#ifndef ROLL_HOSTNCCL_NCCL_PROFILER_ABI_H
#define ROLL_HOSTNCCL_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HN_PROFILER_NEWEST 7

enum hn_event {
    HN_EVENT_GROUP = 1 << 0,
    HN_EVENT_COLL = 1 << 1,
    HN_EVENT_P2P = 1 << 2,
    HN_EVENT_PROXY_OP = 1 << 3,
    HN_EVENT_PROXY_STEP = 1 << 4,
    HN_EVENT_PROXY_CTRL = 1 << 5,
    HN_EVENT_KERNEL_CH = 1 << 6,
    HN_EVENT_NET = 1 << 7,
    HN_EVENT_GROUP_API = 1 << 8,
    HN_EVENT_COLL_API = 1 << 9,
    HN_EVENT_P2P_API = 1 << 10,
    HN_EVENT_KERNEL_LAUNCH = 1 << 11,
};

enum hn_event_state {
    HN_STATE_PROXY_OP_IN_PROGRESS = 19,
    HN_STATE_KERNEL_CH_STOP = 22,
    HN_STATE_GROUP_START_API_STOP = 23,
    HN_STATE_GROUP_END_API_START = 24,
};

struct hn_proxy_op {
    pid_t pid;
    uint8_t channel;
    int peer, steps, chunk, is_send;
};

/* Versions 1 to 4: the type is one byte. */
struct hn_descr_v1 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t comm_hash, seq;
            uint8_t func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t op;
            size_t traffic;
            uint8_t channels, warps, algo, proto;
            int is_collnet, is_nvls;
        } coll;
        struct {
            const char *name;
            uint64_t comm_hash;
            uint8_t func;
            void *buff;
            uint8_t datatype;
            size_t count;
            int peer;
        } p2p;
        struct hn_proxy_op proxy_op;
    };
};

struct hn_descr_v2 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t comm_hash, seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            size_t traffic;
            uint8_t channels, warps;
            const char *algo, *proto;
        } coll;
        struct {
            const char *name;
            uint64_t comm_hash;
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
        } p2p;
        struct hn_proxy_op proxy_op;
    };
};

struct hn_descr_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t comm_hash, seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
        } coll;
        struct {
            const char *name;
            uint64_t comm_hash;
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
        } p2p;
        struct hn_proxy_op proxy_op;
        struct {
            uint8_t channel;
        } kernel_ch;
    };
};

struct hn_descr_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
        } coll;
        struct {
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } p2p;
        struct hn_proxy_op proxy_op;
        struct {
            uint8_t channel;
            uint64_t timer;
        } kernel_ch;
    };
};

/* Versions 5 and 6; 6 adds events that this library does not have. */
struct hn_descr_v5 {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            bool captured;
            int depth;
        } group_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool captured;
        } coll_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool captured;
        } p2p_api;
        struct {
            void *stream;
        } kernel_launch;
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
            void *group;
        } coll;
        struct {
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
        } p2p;
        struct hn_proxy_op proxy_op;
        struct {
            uint8_t channel;
            uint64_t timer;
        } kernel_ch;
    };
};

struct hn_descr_v7 {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            bool captured;
            int depth;
        } group_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool captured;
            uint64_t tag;
        } coll_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            bool captured;
            uint64_t tag;
        } p2p_api;
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
            void *group;
            const char *variant;
            bool is_symmetric;
            uint64_t tag;
        } coll;
        struct {
            const char *func;
            void *buff;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
            uint64_t tag;
        } p2p;
        struct hn_proxy_op proxy_op;
        struct {
            uint8_t channel;
            uint64_t timer;
        } kernel_ch;
    };
};

/* The descriptors of all versions. */
union hn_descr {
    struct hn_descr_v1 v1;
    struct hn_descr_v2 v2;
    struct hn_descr_v3 v3;
    struct hn_descr_v4 v4;
    struct hn_descr_v5 v5;
    struct hn_descr_v7 v7;
};

/* A plugin's table. Only init differs between versions. */
struct hn_profiler {
    const char *name;
    union {
        int (*v1)(void **context, int *mask);
        int (*v4)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks, int rank,
                  void *logger);
        int (*v5)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int nranks, int rank,
                  void *logger);
    } init;
    int (*start)(void *context, void **handle, void *descr);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, void *args);
    int (*finalize)(void *context);
};

#endif
