/*
 * flight_site.c: the places of the program at which the calls of a Flight Recorder dump stand: each line and each place
 * once.
 */
#include "daemon/dumps/flight_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"
#include "trace/python_own.h"

#include <string.h>

static bool is_library(const struct roll_value *file)
{
    static const char *const parts[] = {"/site-packages/", "/dist-packages/", "/lib/python3",
                                        "/rollcall/moe/",  "<frozen",         "<string>"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (memmem(file->text, file->bytes, parts[i], strlen(parts[i])) != NULL) {
            return true;
        }
    }
    return false;
}

int flight_keep_text(struct roll_dump *d, const struct roll_value *v, uint32_t *out)
{
    size_t bytes = roll_value_is(v, ROLL_VALUE_TEXT) && v->bytes < 1024 ? v->bytes : 0;
    int err = d->text_used + bytes + 1 > UINT32_MAX / 2 ? ROLL_E_LIMIT
                                                        : ROLL_GROW(d->text, d->text_room, d->text_used + bytes + 1);
    if (err == 0) {
        *out = (uint32_t)d->text_used;
        roll_value_copy(v, d->text + d->text_used, bytes + 1);
        d->text_used += bytes + 1;
    }
    return err;
}

/* One frame; *out: 1 + the number of its line, 0 where the frame is none. */
static int read_line(struct flight_reading *r, const struct roll_value *frame, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    const struct roll_value *file = roll_value_get(frame, "filename"), *function = roll_value_get(frame, "name");
    int64_t line = roll_value_integer(roll_value_get(frame, "line"), 0);
    int err = flight_spend(r, 1 + flight_extent(frame) + flight_extent(file) + flight_extent(function));
    *out = 0;
    if (err != 0) {
        return err;
    }
    if (!roll_value_is(file, ROLL_VALUE_TEXT) || file->bytes == 0 || line < 0 || line > INT32_MAX ||
        roll_python_is_own(file->text, file->bytes)) { /* of a rehearsed job's dump, some are */
        return 0;
    }
    uint64_t key = flight_hash((uint64_t)line, file->text, file->bytes);
    key = roll_value_is(function, ROLL_VALUE_TEXT) ? flight_hash(key, function->text, function->bytes) : key;
    uint32_t known = roll_map_get(&r->line_at, key);
    if (known != ROLL_MAP_NONE) {
        *out = known + 1;
        return 0;
    }
    struct roll_dump_line one = {.line = (uint32_t)line, .library = is_library(file)};
    err = ROLL_GROW(d->line, d->line_room, d->lines + 1);
    err = err != 0 ? err : roll_map_reserve(&r->line_at);
    err = err != 0 ? err : flight_keep_text(d, file, &one.file);
    err = err != 0 ? err : flight_keep_text(d, function, &one.function);
    if (err == 0) {
        d->line[d->lines] = one;
        (void)roll_map_add(&r->line_at, key, (uint32_t)d->lines++);
        *out = (uint32_t)d->lines;
    }
    return err;
}

/* The frames are those of the job itself, where there are some, else the innermost of the libraries. */
int flight_read_site(struct flight_reading *r, const struct roll_value *frames, uint32_t *out)
{
    struct roll_dump *d = r->dump;
    struct roll_dump_site own = {.lines = 0}, any = {.lines = 0};
    uint64_t key = 0;
    uint32_t folded = 0;
    int err = 0;
    *out = 0;
    for (size_t i = 0; i < roll_value_count(frames) && err == 0; i++) {
        uint32_t line = 0;
        err = read_line(r, roll_value_at(frames, i), &line);
        if (err != 0 || line == 0) {
            continue;
        }
        if (any.lines < ROLL_CALLSITE_LINES) {
            any.line[any.lines++] = line - 1;
        }
        bool library = d->line[line - 1].library;
        if (!library && own.lines < ROLL_CALLSITE_LINES) {
            own.folded[own.lines] = folded;
            own.line[own.lines++] = line - 1;
        }
        folded = library ? folded + 1 : 0;
    }
    const struct roll_dump_site *site = own.lines > 0 ? &own : &any;
    if (err != 0 || site->lines == 0) {
        return err;
    }
    for (uint32_t i = 0; i < site->lines; i++) {
        key = (key ^ (site->line[i] + 1u) ^ (uint64_t)site->folded[i] << 32) * 0x9e3779b97f4a7c15u;
        key ^= key >> 29;
    }
    uint32_t known = roll_map_get(&r->site_at, key);
    if (known != ROLL_MAP_NONE) {
        *out = known + 1;
        return 0;
    }
    err = d->sites >= UINT16_MAX - 1 ? 0 : ROLL_GROW(d->site, d->site_room, d->sites + 1);
    err = err != 0 ? err : roll_map_reserve(&r->site_at);
    if (err == 0 && d->sites < UINT16_MAX - 1) {
        d->site[d->sites] = *site;
        (void)roll_map_add(&r->site_at, key, (uint32_t)d->sites++);
        *out = (uint32_t)d->sites;
    }
    return err;
}
