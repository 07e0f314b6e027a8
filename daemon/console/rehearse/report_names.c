/*
 * report_names.c: what communicators are called in the report, and where they were made. The engine names them
 * (daemon/engine/say/name.c); here stands what it cannot know: what the job's Python noted about its process groups,
 * and lines of native code, which need files.
 */
#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/console/rehearse/report.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/console/text.h"
#include "trace/op.h"
#include "trace/source_line.h"

#include <inttypes.h>
#include <string.h>

/* The frame that tells most: the innermost line of the job's own Python, else of a library's, else of native code. NULL
 * when no frame has a line. */
static const struct roll_symbol_frame *telling_frame(const struct roll_symbol_frame *frame, int n)
{
    const struct roll_symbol_frame *best = NULL;
    for (int i = 0; i < n; i++) { /* those of Python come first */
        if (frame[i].line == 0 || frame[i].file[0] == '\0') {
            continue;
        }
        if (frame[i].python && !frame[i].library) {
            return &frame[i];
        }
        best = best != NULL ? best : &frame[i];
    }
    return best;
}

/* The first native frame, of which at least the module may be known. NULL when there is none. */
static const struct roll_symbol_frame *native_frame(const struct roll_symbol_frame *frame, int n)
{
    for (int i = 0; i < n; i++) {
        if (!frame[i].python) {
            return &frame[i];
        }
    }
    return NULL;
}

/* Where the call stands that made this communicator: "file:line function", or the module; "" when nothing tells. */
static void site_text(struct reading *r, const struct roll_view_comm *view, char *out, size_t size)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    struct roll_view_source source;
    bool known = view->made_callsite != 0 && roll_engine_source(roll_feed_engine(r->feed), view->made_source, &source);
    int n = known ? roll_symbols_callsite(roll_feed_symbols(r->feed), source.info.stream, view->made_callsite, frame,
                                          ROLL_SYMBOL_FRAMES)
                  : 0;
    const struct roll_symbol_frame *line = telling_frame(frame, n), *native = native_frame(frame, n);
    out[0] = '\0';
    if (line != NULL) {
        roll_source_line_text(out, size, line->file, line->line, line->function);
    } else if (native != NULL && native->module[0] != '\0') {
        const char *base = strrchr(native->module, '/');
        snprintf(out, size, "%s+0x%" PRIx64, base != NULL ? base + 1 : native->module, native->offset);
    }
}

int roll_report_meetings(struct reading *r)
{
    struct roll_view_comm view;
    int err = 0;
    for (size_t i = 0; i < r->rings && err == 0; i++) {
        for (size_t k = 0; k < r->ring[i].comms && err == 0; k++) {
            if (r->ring[i].comm[k].def.key == 0) {
                continue;
            }
            err = ROLL_GROW(r->met, r->met_room, r->mets + 1);
            err = err == 0 ? roll_map_add(&r->met_at, r->ring[i].comm[k].def.key, (uint32_t)r->mets) : err;
            if (err == 0) {
                r->met[r->mets++] = (struct met){(uint32_t)i, (uint32_t)k};
            }
        }
    }
    for (uint32_t i = 0; err == 0 && roll_engine_comm(roll_feed_engine(r->feed), i, &view); i++) {
        err = roll_map_add(&r->view_at, view.key, i);
    }
    return err;
}

int roll_report_groups(struct reading *r, const char *notes)
{
    json_t *groups = roll_steered_groups(notes), *group;
    const char *label;
    int err = groups != NULL ? 0 : ROLL_E_NOMEM;
    json_object_foreach(groups, label, group)
    {
        const struct roll_group_name name = {.label = label,
                                             .size = (uint32_t)roll_json_int(group, "size", 0),
                                             .name = roll_json_text(group, "description", ""),
                                             .file = roll_json_text(group, "file", ""),
                                             .function = roll_json_text(group, "function", ""),
                                             .line = (uint32_t)roll_json_int(group, "line", 0)};
        err = err == 0 ? roll_engine_group(roll_feed_engine(r->feed), &name) : err;
    }
    json_decref(groups);
    return err;
}

const char *roll_report_name(const struct roll_view_comm *view)
{
    return view->named ? view->name : view->role;
}

void roll_report_made(struct reading *r, const struct roll_view_comm *view, char *out, size_t size)
{
    char site[256];
    struct roll_view_comm parent;
    uint32_t i = view->parent_key != 0 ? roll_map_get(&r->view_at, view->parent_key) : ROLL_MAP_NONE;
    int n = 0;
    out[0] = '\0';
    if (view->made_by == ROLL_OP_NONE) {
        return;
    }
    if (view->place[0] != '\0') {
        snprintf(site, sizeof(site), "%s", view->place);
    } else {
        site_text(r, view, site, sizeof(site));
    }
    n = snprintf(out, size, "%s", roll_op_name(view->made_by));
    if (i != ROLL_MAP_NONE && roll_engine_comm(roll_feed_engine(r->feed), i, &parent)) {
        n += snprintf(out + n, size - (size_t)n, " of %s", roll_report_name(&parent));
    }
    if (view->color != ROLL_COLOR_NONE) {
        n += snprintf(out + n, size - (size_t)n, ", color %d", view->color);
    }
    if (site[0] != '\0') {
        snprintf(out + n, size - (size_t)n, " at %s", site);
    }
}
