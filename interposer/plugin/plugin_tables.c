/*
 * plugin_tables.c: the tables ncclProfiler_v1 to ncclProfiler_v7 that NCCL looks for, newest first.
 *
 * Only init differs between the tables. It stores the version in the context, where every other callback finds it.
 */
#include "interposer/plugin/plugin.h"

#define CALLER ((uintptr_t)__builtin_return_address(0))

static int init_v1(void **context, int *mask)
{
    const struct roll_plugin_comm said = {.version = 1, .rank = -1};
    return roll_plugin_init(&said, context, mask, CALLER);
}

static int init_v2(void **context, int *mask)
{
    const struct roll_plugin_comm said = {.version = 2, .rank = -1};
    return roll_plugin_init(&said, context, mask, CALLER);
}

static int init_v3(void **context, int *mask)
{
    const struct roll_plugin_comm said = {.version = 3, .rank = -1};
    return roll_plugin_init(&said, context, mask, CALLER);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks, int rank,
                   void *logger)
{
    const struct roll_plugin_comm said = {
        .version = 4, .hash = hash, .name = name, .nodes = nodes, .nranks = nranks, .rank = rank, .logger = logger};
    return roll_plugin_init(&said, context, mask, CALLER);
}

#define INIT_V5(v)                                                                                                     \
    static int init_v##v(void **context, uint64_t hash, int *mask, const char *name, int nodes, int nranks, int rank,  \
                         void *logger)                                                                                 \
    {                                                                                                                  \
        const struct roll_plugin_comm said = {.version = (v),                                                          \
                                              .hash = hash,                                                            \
                                              .name = name,                                                            \
                                              .nodes = nodes,                                                          \
                                              .nranks = nranks,                                                        \
                                              .rank = rank,                                                            \
                                              .logger = logger};                                                       \
        return roll_plugin_init(&said, context, mask, CALLER);                                                         \
    }
INIT_V5(5)
INIT_V5(6)
INIT_V5(7)

#define TABLE(v, kind)                                                                                                 \
    extern ROLL_EXPORT const struct roll_profiler ncclProfiler_v##v;                                                   \
    const struct roll_profiler ncclProfiler_v##v = {                                                                   \
        ROLL_PROFILER_NAME, {.kind = init_v##v}, roll_plugin_start,                                                    \
        roll_plugin_stop,   roll_plugin_state,   roll_plugin_finalize,                                                 \
    };
TABLE(1, v1)
TABLE(2, v1)
TABLE(3, v1)
TABLE(4, v4)
TABLE(5, v5)
TABLE(6, v5)
TABLE(7, v5)
