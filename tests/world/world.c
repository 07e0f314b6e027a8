/*
 * world.c: what all parts of the world share: chance, and the first thing that went wrong.
 */
#include "tests/world/world.h"

#include <stdio.h>

struct world world;

void world_fail(const char *format, ...)
{
    va_list args;
    if (world.trouble[0]) {
        return;
    }
    va_start(args, format);
    int n = snprintf(world.trouble, sizeof(world.trouble), "%.3f s: ", (double)world.now_ns / 1e9);
    vsnprintf(world.trouble + n, sizeof(world.trouble) - (size_t)n, format, args);
    va_end(args);
}

uint32_t world_below(uint32_t n)
{
    return rng_below(&world.rng, n);
}

bool world_chance(uint32_t permille)
{
    return world_below(1000) < permille;
}
