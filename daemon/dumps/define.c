/*
 * define.c: the groups and places of a dump, as the definitions that a ring of ours would hold.
 */
#include "daemon/dumps/dumps_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

struct defs {
    uint8_t *at;
    size_t used, room;
};

static int put(struct defs *d, enum roll_def_type type, uint32_t id, const void *body, size_t body_bytes,
               const void *tail, size_t tail_bytes)
{
    size_t bytes = (sizeof(struct roll_def_head) + body_bytes + tail_bytes + 7) & ~(size_t)7;
    struct roll_def_head head = {.seal = ROLL_DEF_SEAL | type, .bytes = (uint32_t)bytes, .id = id};
    int err = ROLL_GROW(d->at, d->room, d->used + bytes);
    if (err == 0) {
        uint8_t *to = d->at + d->used;
        memset(to, 0, bytes);
        memcpy(to, &head, sizeof(head));
        memcpy(to + sizeof(head), body, body_bytes);
        if (tail_bytes > 0) {
            memcpy(to + sizeof(head) + body_bytes, tail, tail_bytes);
        }
        d->used += bytes;
    }
    return err;
}

uint64_t dumps_epoch(const struct roll_dump *d)
{
    return 0x64756d7000000000u | (uint32_t)d->rank; /* "dump" */
}

uint32_t dumps_source(roll_feed_t *feed, const struct roll_dump *d)
{
    struct roll_feed_stream stream;
    return roll_feed_find(feed, dumps_epoch(d), &stream) ? stream.source : UINT32_MAX;
}

uint16_t dumps_comm(const struct roll_dump *d, uint32_t group)
{
    return group < d->groups && group < DUMPS_GROUPS_MAX && d->group[group].self >= 0 ? (uint16_t)(group + 1) : 0;
}

static int define_groups(struct defs *defs, const struct roll_dump *d)
{
    int err = 0;
    for (uint32_t i = 0; i < d->groups && err == 0; i++) {
        const struct roll_dump_group *g = &d->group[i];
        const char *label = g->label[0] != '\0' ? g->label : g->name;
        struct roll_def_comm comm = {.key = g->key,
                                     .rank = g->self,
                                     .nranks = (int32_t)g->members.ranks,
                                     .color = ROLL_COLOR_NONE,
                                     .origin = ROLL_COMM_INIT,
                                     .device = -1,
                                     .label_bytes = (uint32_t)strlen(label)};
        if (dumps_comm(d, i) != 0) {
            err = put(defs, ROLL_DEF_COMM, i + 1, &comm, sizeof(comm), label, comm.label_bytes);
        }
    }
    return err;
}

static int define_lines(struct defs *defs, const struct roll_dump *d)
{
    int err = 0;
    for (uint32_t i = 0; i < d->lines && err == 0; i++) {
        const struct roll_dump_line *l = &d->line[i];
        const char *file = d->text + l->file, *function = d->text + l->function;
        struct roll_def_source source = {.path_bytes = (uint32_t)strlen(file)};
        struct roll_def_line line = {.source = i + 1,
                                     .line = l->line,
                                     .flags = l->library ? ROLL_DEF_LINE_LIBRARY : 0,
                                     .function_bytes = (uint32_t)strlen(function)};
        err = put(defs, ROLL_DEF_SOURCE, i + 1, &source, sizeof(source), file, source.path_bytes);
        err = err != 0 ? err : put(defs, ROLL_DEF_LINE, i + 1, &line, sizeof(line), function, line.function_bytes);
    }
    return err;
}

static int define_sites(struct defs *defs, const struct roll_dump *d)
{
    int err = 0;
    for (uint32_t i = 0; i < d->sites && err == 0; i++) {
        struct roll_callsite_line line[ROLL_CALLSITE_LINES] = {{0}};
        struct roll_def_callsite site = {.depth = 0, .lines = d->site[i].lines};
        for (uint32_t k = 0; k < site.lines; k++) {
            line[k] = (struct roll_callsite_line){.line = d->site[i].line[k] + 1, .folded = d->site[i].folded[k]};
        }
        err = put(defs, ROLL_DEF_CALLSITE, i + 1, &site, sizeof(site), line, site.lines * sizeof(line[0]));
    }
    return err;
}

int dumps_define(roll_feed_t *feed, const struct roll_dump *d)
{
    struct defs defs = {.at = NULL};
    int err = define_groups(&defs, d);
    err = err != 0 ? err : define_lines(&defs, d);
    err = err != 0 ? err : define_sites(&defs, d);
    if (err == 0 && defs.used > 0) {
        struct roll_frame frame = {
            .head = {.type = ROLL_FRAME_DEFS, .stream = dumps_epoch(d), .payload = (uint32_t)defs.used},
            .payload = defs.at};
        err = roll_feed_frame(feed, &frame);
    }
    free(defs.at);
    return err;
}
