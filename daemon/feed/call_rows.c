/*
 * call_rows.c: see call_rows.h.
 *
 * A call is a list of values, whose names are told once: 512 objects with fifteen names each would be four times the
 * bytes. Times are ns after the first call, because JavaScript holds no ns of the wall clock.
 */
#include "daemon/feed/call_rows.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/source_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS_MOST 65536u  /* definitions of a kind that records, or call sites, refer to */
#define MS_NS    1000000 /* the base is a whole ms */

/* Columns of a row, in their order, with the form in which json_pack takes the value. */
#define COLUMNS(_)                                                                                                     \
    _("ticket", "I")                                                                                                   \
    _("enter_ns", "I")                                                                                                 \
    _("call_ns", "o")                                                                                                  \
    _("state", "s")                                                                                                    \
    _("op", "s")                                                                                                       \
    _("comm", "o")                                                                                                     \
    _("seq", "I")                                                                                                      \
    _("count", "o")                                                                                                    \
    _("dtype", "o")                                                                                                    \
    _("redop", "o")                                                                                                    \
    _("peer", "o")                                                                                                     \
    _("group", "I")                                                                                                    \
    _("step", "o")                                                                                                     \
    _("thread", "i")                                                                                                   \
    _("site", "o")

struct comm {
    uint64_t key;
    int32_t rank, size;
    char name[ROLL_NAME_BYTES];
    bool used;
};

struct line {
    uint32_t source, line;
    bool library;
    char *function; /* owned */
};

struct site {
    uint32_t line; /* id of its innermost line of the user's, else of its innermost line; 0: it has none */
    bool used;
};

struct roll_call_rows {
    struct comm *comm; /* all by id */
    char **path;
    struct line *line;
    struct site *site;
    size_t comms, paths, lines, sites;
    uint64_t base_ms;
    json_t *list; /* owned */
};

roll_call_rows_t *roll_call_rows_new(void)
{
    roll_call_rows_t *rows = calloc(1, sizeof(*rows));
    if (rows != NULL && (rows->list = json_array()) == NULL) {
        free(rows);
        rows = NULL;
    }
    return rows;
}

void roll_call_rows_destroy(roll_call_rows_t **pointer)
{
    roll_call_rows_t *rows = *pointer;
    *pointer = NULL;
    if (rows == NULL) {
        return;
    }
    for (size_t i = 0; i < rows->paths; i++) {
        free(rows->path[i]);
    }
    for (size_t i = 0; i < rows->lines; i++) {
        free(rows->line[i].function);
    }
    free(rows->comm);
    free(rows->path);
    free(rows->line);
    free(rows->site);
    json_decref(rows->list);
    free(rows);
}

static int define_comm(roll_call_rows_t *rows, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(rows->comm, rows->comms, (size_t)def->id + 1);
    if (!err) {
        struct comm *comm = &rows->comm[def->id];
        comm->key = def->comm.info.key;
        comm->rank = def->comm.info.rank;
        comm->size = def->comm.info.nranks;
        snprintf(comm->name, sizeof(comm->name), "%.*s", (int)def->comm.info.label_bytes, def->comm.label);
    }
    return err;
}

static int define_source(roll_call_rows_t *rows, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(rows->path, rows->paths, (size_t)def->id + 1);
    if (!err && rows->path[def->id] == NULL) {
        rows->path[def->id] = strndup(def->source.path, def->source.path_bytes);
        err = rows->path[def->id] == NULL ? ROLL_E_NOMEM : 0;
    }
    return err;
}

static int define_line(roll_call_rows_t *rows, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(rows->line, rows->lines, (size_t)def->id + 1);
    char *function = err ? NULL : strndup(def->line.function, def->line.info.function_bytes);
    if (err || function == NULL) {
        return ROLL_E_NOMEM;
    }
    free(rows->line[def->id].function);
    rows->line[def->id] = (struct line){def->line.info.source, def->line.info.line,
                                        (def->line.info.flags & ROLL_DEF_LINE_LIBRARY) != 0, function};
    return 0;
}

static const struct line *line_of(const roll_call_rows_t *rows, uint32_t id)
{
    return id < rows->lines && rows->line[id].function != NULL ? &rows->line[id] : NULL;
}

/* The lines of a call site are defined before it. */
static int define_site(roll_call_rows_t *rows, const struct roll_def *def)
{
    int err = ROLL_GROW_ZERO(rows->site, rows->sites, (size_t)def->id + 1);
    uint32_t found = 0;
    for (uint32_t i = 0; !err && i < def->callsite.lines; i++) {
        const struct line *line = line_of(rows, def->callsite.line[i].line);
        if (line != NULL && (found == 0 || (!line->library && line_of(rows, found)->library))) {
            found = def->callsite.line[i].line;
        }
    }
    if (!err) {
        rows->site[def->id].line = found;
    }
    return err;
}

int roll_call_rows_define(roll_call_rows_t *rows, const struct roll_def *def)
{
    if (def->id == 0 || def->id >= IDS_MOST) {
        return ROLL_E_LIMIT;
    }
    switch (def->type) {
    case ROLL_DEF_COMM:
        return define_comm(rows, def);
    case ROLL_DEF_SOURCE:
        return define_source(rows, def);
    case ROLL_DEF_LINE:
        return define_line(rows, def);
    case ROLL_DEF_CALLSITE:
        return define_site(rows, def);
    default:
        return 0;
    }
}

bool roll_call_is_shown(unsigned op)
{
    enum roll_op_class class = roll_op_class(op);
    return class != ROLL_CLASS_NONE && class != ROLL_CLASS_MOE && class != ROLL_CLASS_POLL && class != ROLL_CLASS_ORDER;
}

static const char *state_of(const struct roll_record *rec, bool done)
{
    enum { NCCL_IN_PROGRESS = 7 };
    enum roll_state state = roll_seal_state(rec->seal);
    return state == ROLL_STATE_ENTERED                                    ? "entered"
           : rec->result != 0 && rec->result != NCCL_IN_PROGRESS          ? "refused"
           : done || state == ROLL_STATE_COMPLETE                         ? "complete"
           : (rec->flags & ROLL_FLAG_CAPTURED) != 0                       ? "captured"
           : rec->result == NCCL_IN_PROGRESS && state != ROLL_STATE_EMPTY ? "in progress"
                                                                          : "returned";
}

static json_t *number_or_null(bool known, uint64_t number)
{
    return known ? json_integer((json_int_t)number) : json_null();
}

json_t *roll_call_row_json(const struct roll_call_row *row)
{
#define NAME(name, form) form
    static const char form[] = "[" COLUMNS(NAME) "]";
#undef NAME
    const struct roll_record *rec = row->rec;
    bool inside = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED, typed = rec->dtype != ROLL_DTYPE_NONE;
    bool counted = typed && (rec->flags & ROLL_FLAG_UNSIZED) == 0;
    return json_pack(form, (json_int_t)roll_seal_ticket(rec->seal), (json_int_t)row->after_ns,
                     number_or_null(!inside, rec->call_ns), state_of(rec, row->done), roll_op_name(rec->op),
                     number_or_null(row->comm, rec->comm), (json_int_t)rec->seq, number_or_null(counted, rec->count),
                     typed ? json_string(roll_dtype_name(rec->dtype)) : json_null(),
                     rec->redop != ROLL_RED_NONE ? json_string(roll_redop_name(rec->redop)) : json_null(),
                     rec->peer != ROLL_PEER_NONE ? json_integer(rec->peer) : json_null(), (json_int_t)rec->group,
                     number_or_null(rec->step != ROLL_STEP_NONE, rec->step), (int)rec->thread,
                     number_or_null(row->site, rec->callsite));
}

json_t *roll_call_columns_json(void)
{
#define NAME(name, form) name,
    static const char *const columns[] = {COLUMNS(NAME)};
#undef NAME
    json_t *names = json_array();
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        json_array_append_new(names, json_string(columns[i]));
    }
    return names;
}

int roll_call_rows_add(roll_call_rows_t *rows, const struct roll_record *rec, uint64_t real_ns, bool done)
{
    if (!roll_call_is_shown(rec->op)) {
        return 0;
    }
    if (json_array_size(rows->list) == 0) {
        rows->base_ms = real_ns / MS_NS;
    }
    bool comm = rec->comm < rows->comms && rows->comm[rec->comm].key != 0;
    bool site = rec->callsite < rows->sites && rows->site[rec->callsite].line != 0;
    if (comm) {
        rows->comm[rec->comm].used = true;
    }
    if (site) {
        rows->site[rec->callsite].used = true;
    }
    const struct roll_call_row call = {rec, real_ns - rows->base_ms * MS_NS, comm, site, done};
    json_t *row = roll_call_row_json(&call);
    return row == NULL || json_array_append_new(rows->list, row) != 0 ? ROLL_E_NOMEM : 0;
}

static json_t *comms_json(const roll_call_rows_t *rows)
{
    json_t *list = json_array();
    for (size_t i = 0; i < rows->comms; i++) {
        const struct comm *comm = &rows->comm[i];
        char key[24];
        snprintf(key, sizeof(key), "0x%016" PRIx64, comm->key);
        if (comm->used) {
            json_array_append_new(list, json_pack("{s:i,s:s,s:o,s:i,s:i}", "id", (int)i, "key", key, "name",
                                                  roll_text_to_json(comm->name[0] != '\0' ? comm->name : key), "rank",
                                                  (int)comm->rank, "size", (int)comm->size));
        }
    }
    return list;
}

static json_t *sites_json(const roll_call_rows_t *rows)
{
    json_t *list = json_array();
    for (size_t i = 0; i < rows->sites; i++) {
        const struct line *line = rows->site[i].used ? line_of(rows, rows->site[i].line) : NULL;
        char place[200];
        if (line != NULL) {
            const char *path = line->source < rows->paths ? rows->path[line->source] : NULL;
            roll_source_line_text(place, sizeof(place), path != NULL ? path : "?", line->line, line->function);
            json_array_append_new(list, json_pack("{s:i,s:o}", "id", (int)i, "place", roll_text_to_json(place)));
        }
    }
    return list;
}

json_t *roll_call_rows_json(roll_call_rows_t *rows)
{
    return json_pack("{s:s,s:I,s:o,s:o,s:o,s:O}", "schema", "rollcall.calls/1", "base_ms", (json_int_t)rows->base_ms,
                     "comms", comms_json(rows), "sites", sites_json(rows), "columns", roll_call_columns_json(), "rows",
                     rows->list);
}
