/*
 * site.c: see site.h. The numbers are hashes of 64 bits: to name places by texts was rejected, because hundreds of them
 * are compared with thousands where ranks disagree.
 */
#include "trace/site.h"

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0xbf58476d1ce4e5b9u;
    return h ^ h >> 31;
}

static uint64_t mix_bytes(uint64_t h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        h = mix(h, ((const uint8_t *)bytes)[i]);
    }
    return h;
}

/* The last part of a path. */
static uint64_t mix_base(uint64_t h, const char *path, uint32_t bytes)
{
    uint32_t from = bytes;
    while (from > 0 && path[from - 1] != '/') {
        from--;
    }
    return mix_bytes(h, path + from, bytes - from);
}

static uint64_t mix_lines(uint64_t h, const struct roll_site *site)
{
    for (uint32_t i = 0; i < site->lines; i++) {
        h = mix(mix(h, site->line[i]), site->folded[i]);
    }
    return h;
}

uint64_t roll_site_module(const struct roll_def_module *info, const char *path)
{
    uint32_t bytes = info->build_id_bytes;
    return bytes > 0 && bytes <= sizeof(info->build_id) ? mix_bytes(1, info->build_id, bytes)
                                                        : mix_base(2, path, info->path_bytes);
}

uint64_t roll_site_source(const char *path, uint32_t path_bytes)
{
    return mix_base(3, path, path_bytes) | 1;
}

uint64_t roll_site_line(uint64_t source, const struct roll_def_line *info, const char *function)
{
    return mix_bytes(mix(source, info->line), function, info->function_bytes) | 1;
}

/* Behind code that was made at run time only the frames before it are known. */
uint64_t roll_site_whole(const struct roll_site *site)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    if ((site->depth == 0 && site->lines == 0) || (site->depth > 0 && site->known == 0)) {
        return 0;
    }
    for (uint32_t i = 0; i < site->known; i++) {
        h = mix(mix(h, site->module[i]), site->offset[i]);
    }
    return mix_lines(h, site) | 1;
}

uint64_t roll_site_near(const struct roll_site *site)
{
    if (site->depth == 0 && site->lines > 0) { /* other tools keep lines and no addresses */
        return mix_lines(1, site) | 1;
    }
    return site->known > 0 ? mix_lines(mix(mix(1, site->module[0]), site->offset[0]), site) | 1 : 0;
}
