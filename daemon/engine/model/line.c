/*
 * line.c: lines of the job's own Python as texts, each once for all ranks, and what the job calls its process groups.
 *
 * The ranks of a job run one program, so a line that all of them define is kept once, under its identity (site.c), and
 * 16,384 ranks take the room of one. Lines of libraries are not kept: where a communicator was made means a line that
 * whoever wrote the job can look at. Texts come from processes that anybody may have written: they are cut to a length,
 * and lose their control characters here, once, for all who show them.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/engine_state.h"
#include "trace/plain.h"

#include <stdlib.h>
#include <string.h>

#define LINES_MAX  65536u
#define GROUPS_MAX 65536u

uint64_t line_hash(uint64_t seed, const void *data, size_t bytes)
{
    uint64_t h = seed ^ 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < bytes; i++) {
        h = (h ^ ((const uint8_t *)data)[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 31;
    }
    return h;
}

void line_clean(char *out, size_t room, const char *text, size_t bytes)
{
    size_t n = bytes < room - 1 ? bytes : room - 1;
    while (n < bytes && n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) {
        n--; /* a character of several bytes is kept whole or left out */
    }
    size_t used = 0;
    for (size_t i = 0, odd; i<n; i += odd> 0 ? odd : 1) {
        odd = roll_plain_odd(text + i, n - i);
        out[used++] = odd > 0 ? '?' : text[i];
    }
    out[used] = '\0';
}

int line_note_file(struct roll_engine *e, uint64_t identity, const char *path, uint32_t bytes)
{
    if (roll_map_get(&e->file_at, identity) != ROLL_MAP_NONE || e->files == LINES_MAX) {
        return 0;
    }
    if (roll_map_reserve(&e->file_at) != 0 || ROLL_GROW(e->file, e->file_room, e->files + 1u) != 0) {
        return ROLL_E_NOMEM;
    }
    uint32_t from = bytes;
    while (from > 0 && path[from - 1] != '/') {
        from--;
    }
    line_clean(e->file[e->files].name, sizeof(e->file[0].name), path + from, bytes - from);
    return roll_map_add(&e->file_at, identity, e->files++);
}

int line_note(struct roll_engine *e, uint64_t identity, uint64_t file, const struct roll_def_line *info,
              const char *function)
{
    uint32_t at = roll_map_get(&e->file_at, file);
    if ((info->flags & ROLL_DEF_LINE_LIBRARY) != 0 || info->line == 0 || at == ROLL_MAP_NONE ||
        roll_map_get(&e->line_at, identity) != ROLL_MAP_NONE || e->lines == LINES_MAX) {
        return 0;
    }
    if (roll_map_reserve(&e->line_at) != 0 || ROLL_GROW(e->line, e->line_room, e->lines + 1u) != 0) {
        return ROLL_E_NOMEM;
    }
    struct python_line *line = &e->line[e->lines];
    *line = (struct python_line){.number = info->line};
    line_clean(line->function, sizeof(line->function), function, info->function_bytes);
    memcpy(line->file, e->file[at].name, sizeof(line->file));
    return roll_map_add(&e->line_at, identity, e->lines++);
}

const struct python_line *line_find(const struct roll_engine *e, uint64_t identity)
{
    uint32_t at = identity != 0 ? roll_map_get(&e->line_at, identity) : ROLL_MAP_NONE;
    return at == ROLL_MAP_NONE ? NULL : &e->line[at];
}

static uint64_t group_key(const char *label, uint32_t size)
{
    return line_hash(size, label, strlen(label));
}

static bool is_nameless(const struct group *group)
{
    return group->name[0] == '\0' || strcmp(group->name, "undefined") == 0;
}

/* What is told of a group once more fills what is not known yet; the job's own word also replaces a description. So the
 * order in which ranks are heard matters only where they give one group two names. */
static void group_learn(struct group *known, const struct group *told)
{
    if (!is_nameless(told) && (is_nameless(known) || (told->is_own && !known->is_own))) {
        memcpy(known->name, told->name, sizeof(known->name));
        known->is_own = told->is_own;
    }
    if (known->line.number == 0) {
        known->line = told->line;
    }
}

int roll_engine_group(roll_engine_t *e, const struct roll_group_name *name)
{
    struct group group = {.size = name->size, .is_own = name->is_own, .line = {.number = name->line}};
    line_clean(group.label, sizeof(group.label), name->label, strlen(name->label));
    if (group.label[0] == '\0') {
        return 0;
    }
    const char *file = name->file ? name->file : "", *base = strrchr(file, '/');
    const char *function = name->function ? name->function : "";
    line_clean(group.name, sizeof(group.name), name->name ? name->name : "", name->name ? strlen(name->name) : 0);
    line_clean(group.line.file, sizeof(group.line.file), base ? base + 1 : file, strlen(base ? base + 1 : file));
    line_clean(group.line.function, sizeof(group.line.function), function, strlen(function));
    const struct group *known = group_find(e, group.label, group.size);
    if (known) {
        group_learn(&e->group[known - e->group], &group);
        return 0;
    }
    if (e->groups == GROUPS_MAX) {
        return 0;
    }
    if (roll_map_reserve(&e->group_at) != 0 || ROLL_GROW(e->group, e->group_room, e->groups + 1u) != 0) {
        return ROLL_E_NOMEM;
    }
    e->group[e->groups] = group;
    return roll_map_add(&e->group_at, group_key(group.label, group.size), e->groups++);
}

int group_define(struct roll_engine *e, const struct roll_def *def)
{
    const struct roll_def_name *info = &def->name.info;
    char label[ROLL_NAME_BYTES], text[ROLL_NAME_BYTES], file[256], function[96];
    uint32_t cut = info->file_bytes < sizeof(file) ? 0 : info->file_bytes - (uint32_t)sizeof(file) + 1;
    line_clean(label, sizeof(label), def->name.label, info->label_bytes);
    line_clean(text, sizeof(text), def->name.text, info->text_bytes);
    line_clean(file, sizeof(file), def->name.file + cut, info->file_bytes - cut); /* the end of a path tells most */
    line_clean(function, sizeof(function), def->name.function, info->function_bytes);
    return roll_engine_group(e, &(struct roll_group_name){.label = label,
                                                          .size = info->size,
                                                          .name = text,
                                                          .file = file,
                                                          .function = function,
                                                          .line = info->line,
                                                          .is_own = info->count != 0});
}

const struct group *group_find(const struct roll_engine *e, const char *label, uint32_t size)
{
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&e->group_at, group_key(label, size), &step)) != ROLL_MAP_NONE;) {
        if (e->group[i].size == size && strcmp(e->group[i].label, label) == 0) {
            return &e->group[i];
        }
    }
    return NULL;
}

void lines_free(struct roll_engine *e)
{
    free(e->file);
    free(e->line);
    free(e->group);
    roll_map_fini(&e->file_at);
    roll_map_fini(&e->line_at);
    roll_map_fini(&e->group_at);
}
