/*
 * report.c: what a rehearsed job did, from its trace: communicators, calls, memory, verdicts.
 *
 * The trace is read once and goes two ways: to the engine, by a feed as in `rollcall analyze`, which knows what
 * communicators are called, who is in them and what was wrong; and to a count of calls by rank, communicator and
 * operation, which the engine does not keep. Asking the live root was rejected: a rehearsal may be over before anybody
 * asks, and the root has no such counts either.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/base/map.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/text.h"
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/verdict/verdict_tally.h"
#include "trace/op.h"

#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct count {
    uint64_t calls, bytes;           /* of the whole job */
    uint64_t step_calls, step_bytes; /* of those that belong to a step */
};

/* A communicator as one ring defines it. */
struct local {
    struct roll_def_comm def;
    struct count *op;   /* owned; ROLL_OP_LIMIT; NULL while there is no call */
    uint32_t made_site; /* call site of the call that made it; 0 = unknown */
};

/* A call that makes children: which, and where it stands. */
struct split {
    uint16_t parent, child;
    uint32_t site;
};

struct ring {
    uint64_t stream, next_ticket, defs_offset;
    struct local *comm; /* owned; by id of the definition */
    size_t comms, room;
    struct split *split; /* owned */
    size_t splits, split_room;
};

/* Where a communicator is met: a ring, and the ring's own id of it. */
struct met {
    uint32_t ring, id;
};

struct reading {
    roll_feed_t *feed; /* owned */
    struct ring *ring; /* owned */
    size_t rings, room;
    struct roll_map ring_at; /* by stream */
    struct met *met;         /* owned */
    size_t mets, met_room;
    struct roll_map met_at;  /* by key: many */
    struct roll_map view_at; /* by key: the number of the engine's view */
    json_t *groups;          /* owned: the process groups that the job's Python told of */
    json_t *verdicts;        /* owned */
    struct roll_tally tally;
    roll_rehearse_order_t *order;          /* owned */
    const struct roll_rehearse_rank *rank; /* borrowed */
    size_t ranks;
    uint32_t first_step, last_step; /* of all ranks; ROLL_STEP_NONE while none was told */
};

/* reading */

static struct ring *ring_of(struct reading *r, uint64_t stream)
{
    uint32_t at = roll_map_get(&r->ring_at, stream);
    if (at != ROLL_MAP_NONE) {
        return &r->ring[at];
    }
    if (ROLL_GROW(r->ring, r->room, r->rings + 1) != 0 || roll_map_add(&r->ring_at, stream, (uint32_t)r->rings) != 0) {
        return NULL;
    }
    r->ring[r->rings] = (struct ring){.stream = stream};
    return &r->ring[r->rings++];
}

/* The definition with this id; NULL when there is none. */
static struct local *local_of(struct ring *ring, uint32_t id)
{
    return id < ring->comms && ring->comm[id].def.key != 0 ? &ring->comm[id] : NULL;
}

static int note_def(struct reading *r, struct ring *ring, const struct roll_def *def)
{
    if (def->type != ROLL_DEF_COMM || def->id > UINT16_MAX) {
        return 0;
    }
    size_t before = ring->room;
    int err = ROLL_GROW(ring->comm, ring->room, (size_t)def->id + 1);
    if (err != 0) {
        return err;
    }
    memset(ring->comm + before, 0, (ring->room - before) * sizeof(*ring->comm));
    ring->comms = def->id + 1u > ring->comms ? def->id + 1u : ring->comms;
    ring->comm[def->id].def = def->comm.info;
    return roll_rehearse_order_comm(r->order, (size_t)(ring - r->ring), ring->stream, def->id, &def->comm.info);
}

static int note_defs(struct reading *r, struct ring *ring, const struct roll_frame *frame)
{
    size_t at = 0;
    int err = 0;
    while (err == 0 && at < frame->head.payload) {
        struct roll_def def;
        uint64_t offset = frame->head.first + at;
        if (roll_def_decode(frame->payload, frame->head.payload, &at, &def) != 0) {
            break; /* the feed has refused the frame as well */
        }
        if (offset >= ring->defs_offset) {
            ring->defs_offset = frame->head.first + at;
            err = note_def(r, ring, &def);
        }
    }
    return err;
}

static int note_split(struct ring *ring, const struct roll_record *rec)
{
    int err = ROLL_GROW(ring->split, ring->split_room, ring->splits + 1);
    if (err == 0) {
        ring->split[ring->splits++] = (struct split){rec->comm, rec->aux, rec->callsite};
    }
    return err;
}

/* Counts one call. A captured call runs at each launch of its graph, which is recorded by itself. */
static int note_record(struct reading *r, struct ring *ring, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    struct local *comm = local_of(ring, rec->comm);
    if (rec->op == ROLL_OP_COMM_SPLIT) {
        return note_split(ring, rec);
    }
    if (comm != NULL && class == ROLL_CLASS_COMM && comm->made_site == 0) {
        comm->made_site = rec->callsite; /* of a communicator that has no parent the first such call is its init */
    }
    bool moves = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    if (comm == NULL || !moves || (rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        return 0;
    }
    comm->op = comm->op != NULL ? comm->op : calloc(ROLL_OP_LIMIT, sizeof(*comm->op));
    if (comm->op == NULL) {
        return ROLL_E_NOMEM;
    }
    struct count *count = &comm->op[rec->op];
    uint64_t bytes = rec->count * roll_dtype_bytes(rec->dtype);
    count->calls++;
    count->bytes += bytes;
    if (rec->step != ROLL_STEP_NONE) {
        bool is_first = r->first_step == ROLL_STEP_NONE;
        count->step_calls++;
        count->step_bytes += bytes;
        r->first_step = is_first || rec->step < r->first_step ? rec->step : r->first_step;
        r->last_step = is_first || rec->step > r->last_step ? rec->step : r->last_step;
    }
    return 0;
}

static int note_records(struct reading *r, struct ring *ring, const struct roll_frame *frame)
{
    int err = 0;
    for (uint32_t i = 0; i < frame->head.count && err == 0; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        uint64_t ticket = roll_seal_ticket(rec.seal);
        if (roll_seal_state(rec.seal) != ROLL_STATE_EMPTY && ticket >= ring->next_ticket) {
            ring->next_ticket = ticket + 1;
            err = note_record(r, ring, &rec);
            err = err == 0 ? roll_rehearse_order_call(r->order, (size_t)(ring - r->ring), &rec) : err;
        }
    }
    return err;
}

/* Takes what the feed has said. NOMEM: a verdict is missing in the report. */
static int take_verdicts(struct reading *r)
{
    struct roll_verdict_copy *copy;
    int err = 0;
    while ((copy = roll_feed_next(r->feed)) != NULL) {
        roll_tally_add(&r->tally, copy);
        err = json_array_append_new(r->verdicts, roll_verdict_to_json(copy)) == 0 ? err : ROLL_E_NOMEM;
        roll_verdict_copy_destroy(&copy);
    }
    return err;
}

static int read_frame(struct reading *r, const struct roll_frame *frame)
{
    int err = roll_feed_frame(r->feed, frame);
    bool about_ring = frame->head.type == ROLL_FRAME_DEFS || frame->head.type == ROLL_FRAME_RECORDS;
    struct ring *ring = about_ring ? ring_of(r, frame->head.stream) : NULL;
    if (err == ROLL_E_NOMEM || (about_ring && ring == NULL)) {
        return ROLL_E_NOMEM;
    }
    if (ring != NULL && err == 0) {
        err = frame->head.type == ROLL_FRAME_DEFS ? note_defs(r, ring, frame) : note_records(r, ring, frame);
    }
    int taken = take_verdicts(r);
    return err == ROLL_E_NOMEM ? err : taken; /* one bad frame must not cost the rest */
}

static int read_file(struct reading *r, const char *path)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    int err = roll_trace_reader_new(path, &reader);
    while (err == 0 && (err = roll_trace_reader_next(reader, &frame)) == 0) {
        err = read_frame(r, &frame);
    }
    roll_trace_reader_destroy(&reader);
    return err == ROLL_E_NOMEM ? err : 0; /* a torn end is the end */
}

/* Reads the segments of the trace in their order, which is that of their names. */
static int read_trace(struct reading *r, const char *folder)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    int err = 0;
    snprintf(pattern, sizeof(pattern), "%s/*.rtrc", folder);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc && err == 0; i++) {
        err = read_file(r, files.gl_pathv[i]);
    }
    globfree(&files);
    err = err == 0 ? roll_feed_finish(r->feed) : err;
    (void)take_verdicts(r);
    return err;
}

/* communicators */

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
static void site_text(struct reading *r, const struct ring *ring, uint32_t site, char *out, size_t size)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    int n = site == 0
                ? 0
                : roll_symbols_callsite(roll_feed_symbols(r->feed), ring->stream, site, frame, ROLL_SYMBOL_FRAMES);
    const struct roll_symbol_frame *line = telling_frame(frame, n), *native = native_frame(frame, n);
    out[0] = '\0';
    if (line != NULL) {
        const char *base = strrchr(line->file, '/');
        snprintf(out, size, "%s:%u %s", base != NULL ? base + 1 : line->file, line->line, line->function);
    } else if (native != NULL && native->module[0] != '\0') {
        const char *base = strrchr(native->module, '/');
        snprintf(out, size, "%s+0x%" PRIx64, base != NULL ? base + 1 : native->module, native->offset);
    }
}

static uint32_t made_site(const struct ring *ring, const struct local *comm)
{
    for (size_t i = 0; comm->def.origin == ROLL_COMM_SPLIT && i < ring->splits; i++) {
        const struct split *s = &ring->split[i];
        bool is_parent = s->parent < ring->comms && ring->comm[s->parent].def.key == comm->def.parent_key;
        if (is_parent && s->child == comm->def.child) {
            return s->site;
        }
    }
    return comm->def.origin == ROLL_COMM_SPLIT ? 0 : comm->made_site;
}

/* Where each communicator is met, and which view of the engine is its own. */
static int find_meetings(struct reading *r)
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

/* The ranks that the job believes the communicator to have, where some of them are stood in for; else 0. */
static uint32_t believed_of(const struct reading *r, uint64_t key)
{
    uint32_t i = roll_map_get(&r->met_at, key);
    return i == ROLL_MAP_NONE ? 0
                              : r->ring[r->met[i].ring].comm[r->met[i].id].def.flags >> ROLL_DEF_COMM_BELIEVED_SHIFT;
}

/* What the job's Python says of the process group that a communicator belongs to; NULL: nothing. PyTorch gives the name
 * of the group to NCCL. */
static const json_t *group_of(const struct reading *r, const struct roll_view_comm *view)
{
    uint32_t believed = believed_of(r, view->key), size = believed > 0 ? believed : view->size;
    const json_t *group = view->label[0] != '\0' ? json_object_get(r->groups, view->label) : NULL;
    return group != NULL && roll_json_int(group, "size", 0) == size ? group : NULL;
}

/* What people call a communicator: as the job describes the group, else its label, else its role. A number for a label
 * is PyTorch's, which counts its groups, beginning with the one of all ranks. */
static void name_text(const struct reading *r, const struct roll_view_comm *view, char *out, size_t size)
{
    const json_t *group = group_of(r, view);
    const char *description = roll_json_text(group, "description", "");
    bool is_number = view->label[0] != '\0' && view->label[strspn(view->label, "0123456789")] == '\0';
    if (strcmp(description, "default_pg") == 0 ||
        (is_number && group == NULL && strcmp(view->label, "0") == 0 && view->size == r->rings)) {
        snprintf(out, size, "default group");
    } else if (description[0] != '\0' && strcmp(description, "undefined") != 0) {
        snprintf(out, size, "%s", description);
    } else {
        snprintf(out, size, "%s%.50s", is_number ? "group " : "", view->label[0] != '\0' ? view->label : view->role);
    }
}

static const char *name_of_key(struct reading *r, uint64_t key, char out[ROLL_NAME_BYTES])
{
    struct roll_view_comm view;
    uint32_t i = key != 0 ? roll_map_get(&r->view_at, key) : ROLL_MAP_NONE;
    out[0] = '\0';
    if (i != ROLL_MAP_NONE && roll_engine_comm(roll_feed_engine(r->feed), i, &view)) {
        name_text(r, &view, out, ROLL_NAME_BYTES);
    }
    return out;
}

/* How the communicator came to be, in words: "CommSplit of world, color 1 at job.c:12 main". */
static void made_text(struct reading *r, const struct roll_view_comm *view, char *out, size_t size)
{
    static const enum roll_op by[] = {ROLL_OP_NONE, ROLL_OP_COMM_INIT, ROLL_OP_COMM_SPLIT, ROLL_OP_COMM_SHRINK,
                                      ROLL_OP_COMM_GROW};
    char parent[ROLL_NAME_BYTES], site[256];
    const json_t *group = group_of(r, view);
    size_t step = 0;
    out[0] = '\0';
    for (uint32_t i; (i = roll_map_each(&r->met_at, view->key, &step)) != ROLL_MAP_NONE;) {
        const struct ring *ring = &r->ring[r->met[i].ring];
        const struct local *comm = &ring->comm[r->met[i].id];
        if (comm->def.origin == 0 || comm->def.origin >= sizeof(by) / sizeof(by[0])) {
            continue;
        }
        int n = snprintf(out, size, "%s", roll_op_name(by[comm->def.origin]));
        if (comm->def.parent_key != 0) {
            n += snprintf(out + n, size - (size_t)n, " of %s", name_of_key(r, comm->def.parent_key, parent));
        }
        if (comm->def.origin == ROLL_COMM_SPLIT && comm->def.color != ROLL_COLOR_NONE) {
            n += snprintf(out + n, size - (size_t)n, ", color %d", comm->def.color);
        }
        site_text(r, ring, made_site(ring, comm), site, sizeof(site));
        if (group != NULL && roll_json_int(group, "line", 0) > 0) { /* the job's line says more than PyTorch's */
            const char *file = roll_json_text(group, "file", ""), *base = strrchr(file, '/');
            snprintf(site, sizeof(site), "%s:%d %s", base != NULL ? base + 1 : file,
                     (int)roll_json_int(group, "line", 0), roll_json_text(group, "function", ""));
        }
        if (site[0] != '\0') {
            snprintf(out + n, size - (size_t)n, " at %s", site);
        }
        return;
    }
}

/* What the ranks did on a communicator, by operation: of one rank, and of the one that did the least. */
struct done {
    struct count most;
    uint64_t least;
    uint32_t members; /* that made such a call */
    struct met at;    /* who did the most */
};

static json_t *op_json(const struct reading *r, const struct done *done, uint32_t mets, unsigned op, uint64_t steps)
{
    json_t *out =
        json_pack("{s:s,s:I,s:I,s:I}", "op", roll_op_name(op), "calls", (json_int_t)done->most.calls, "calls_least",
                  (json_int_t)(done->members < mets ? 0 : done->least), "bytes", (json_int_t)done->most.bytes);
    if (steps > 0) {
        json_object_set_new(out, "calls_per_step", json_real((double)done->most.step_calls / (double)steps));
        json_object_set_new(out, "bytes_per_step", json_real((double)done->most.step_bytes / (double)steps));
    } else if (roll_rehearse_order_steps(r->order) > 1) {
        double calls, bytes;
        roll_rehearse_order_step(r->order, done->at.ring, done->at.id, op, &calls, &bytes);
        json_object_set_new(out, "calls_per_step", json_real(calls));
        json_object_set_new(out, "bytes_per_step", json_real(bytes));
    }
    return out;
}

static json_t *ops_json(const struct reading *r, uint64_t key, uint64_t steps)
{
    struct done *done = calloc(ROLL_OP_LIMIT, sizeof(*done));
    json_t *ops = json_array();
    uint32_t mets = 0;
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&r->met_at, key, &step)) != ROLL_MAP_NONE;) {
        const struct local *comm = &r->ring[r->met[i].ring].comm[r->met[i].id];
        mets++;
        for (unsigned op = 0; done != NULL && comm->op != NULL && op < ROLL_OP_LIMIT; op++) {
            struct done *d = &done[op];
            const struct count *count = &comm->op[op];
            if (count->calls == 0) {
                continue;
            }
            d->least = d->members++ == 0 || count->calls < d->least ? count->calls : d->least;
            if (count->calls > d->most.calls) {
                d->most = *count;
                d->at = r->met[i];
            }
        }
    }
    for (unsigned op = 0; done != NULL && op < ROLL_OP_LIMIT; op++) {
        if (done[op].members > 0) {
            json_array_append_new(ops, op_json(r, &done[op], mets, op, steps));
        }
    }
    free(done);
    return ops;
}

static json_t *comm_json(struct reading *r, const struct roll_view_comm *view, uint64_t steps)
{
    char made[512], key[24], name[ROLL_NAME_BYTES];
    json_t *ranks = roll_ranks_text_json(&view->members); /* first: the engine's next answer is in the same place */
    made_text(r, view, made, sizeof(made));
    name_text(r, view, name, sizeof(name));
    snprintf(key, sizeof(key), "0x%016" PRIx64, view->key);
    json_t *out =
        json_pack("{s:s,s:o,s:o,s:s,s:i,s:i,s:o,s:o,s:o}", "key", key, "label", roll_text_to_json(view->label), "name",
                  roll_text_to_json(name), "role", view->role, "size", (int)view->size, "seen", (int)view->seen,
                  "ranks", ranks, "made", roll_text_to_json(made), "calls", ops_json(r, view->key, steps));
    uint32_t believed = believed_of(r, view->key);
    if (out != NULL && believed > 0) {
        json_object_set_new(out, "of", json_integer(believed));
    }
    return out;
}

/* A communicator's place in the report: large ones first, then by their first rank, then as they were met. */
struct place {
    uint32_t size, first;
    size_t at;
    json_t *comm; /* owned */
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = (y->size > x->size) - (y->size < x->size);
    order = order != 0 ? order : (x->first > y->first) - (x->first < y->first);
    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

static json_t *comms_json(struct reading *r, uint64_t steps)
{
    struct place *place = NULL;
    size_t used = 0, room = 0;
    struct roll_view_comm view;
    json_t *comms = json_array();
    for (uint32_t i = 0; roll_engine_comm(roll_feed_engine(r->feed), i, &view); i++) {
        if (ROLL_GROW(place, room, used + 1) != 0) {
            break;
        }
        uint32_t first = roll_rankset_count(&view.members) > 0 ? roll_rankset_at(&view.members, 0) : UINT32_MAX;
        place[used] = (struct place){view.size, first, used, comm_json(r, &view, steps)};
        used++;
    }
    if (used > 1) {
        qsort(place, used, sizeof(*place), by_place);
    }
    for (size_t i = 0; i < used; i++) {
        json_array_append_new(comms, place[i].comm);
    }
    free(place);
    return comms;
}

/* memory */

/* The rank that a process was recorded as; -1: none, or several. For jobs whose ranks have no variable RANK. */
static int rank_of_pid(const struct reading *r, uint32_t pid)
{
    struct roll_view_source view;
    int rank = -1;
    for (uint32_t i = 0; roll_engine_source(roll_feed_engine(r->feed), i, &view); i++) {
        if (view.info.pid == pid) {
            if (rank >= 0) {
                return -1;
            }
            rank = view.info.world_rank;
        }
    }
    return rank;
}

/* Adds what one process noted about its devices (hostnccl/cuda/report.c). */
static void add_notes(const struct reading *r, json_t *memory, json_t *kernels, const char *notes, const char *path)
{
    uint32_t pid = (uint32_t)strtoul(strrchr(path, '.') + 1, NULL, 10);
    char *text = NULL, *rest = NULL;
    size_t bytes;
    int rank = -1;
    json_t *devices = json_array();
    if (roll_read_whole(path, 16u << 20, &text, &bytes) != 0) {
        json_decref(devices);
        return;
    }
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        unsigned device;
        uint64_t peak, total, number;
        char fate[16];
        if (sscanf(line, "memory %u peak %" SCNu64 " of %" SCNu64, &device, &peak, &total) == 3) {
            json_t *one = json_pack("{s:i,s:I,s:I}", "device", (int)device, "peak_bytes", (json_int_t)peak,
                                    "size_bytes", (json_int_t)total);
            if (roll_steered_allocator(notes, pid, device, &number)) {
                json_object_set_new(one, "allocator_peak_bytes", json_integer((json_int_t)number));
            }
            json_array_append_new(devices, one);
        } else if (sscanf(line, "kernel %15s %" SCNu64, fate, &number) == 2) {
            int64_t before = roll_json_int(kernels, fate, 0);
            json_object_set_new(kernels, fate, json_integer(before + (json_int_t)number));
        } else {
            (void)sscanf(line, "rank %d", &rank);
        }
    }
    free(text);
    rank = rank >= 0 ? rank : rank_of_pid(r, pid);
    json_t *entry = NULL;
    /* The ranks that the launcher knows stand first, in their order, so the look at its own place finds most of them.
     */
    json_t *there = rank >= 0 ? json_array_get(memory, (size_t)rank) : NULL;
    entry = there != NULL && roll_json_int(there, "rank", -1) == rank ? there : NULL;
    for (size_t i = 0; entry == NULL && i < json_array_size(memory) && rank >= 0; i++) {
        json_t *one = json_array_get(memory, i);
        entry = roll_json_int(one, "rank", -1) == rank ? one : entry;
    }
    if (json_array_size(devices) == 0 || entry != NULL) {
        if (entry != NULL && json_array_size(devices) > 0) {
            json_object_set(entry, "devices", devices);
        }
        json_decref(devices);
        return;
    }
    json_array_append_new(
        memory, json_pack("{s:o,s:o}", "rank", rank >= 0 ? json_integer(rank) : json_null(), "devices", devices));
}

static int by_rank(const void *a, const void *b)
{
    int64_t x = roll_json_int(*(json_t *const *)a, "rank", INT64_MAX);
    int64_t y = roll_json_int(*(json_t *const *)b, "rank", INT64_MAX);
    return (x > y) - (x < y);
}

/* In the order of the ranks; processes of which no rank is known come last. */
static json_t *sorted(json_t *memory)
{
    size_t count = json_array_size(memory);
    json_t **entry = count > 1 ? calloc(count, sizeof(json_t *)) : NULL;
    for (size_t i = 0; entry != NULL && i < count; i++) {
        entry[i] = json_incref(json_array_get(memory, i));
    }
    if (entry != NULL) {
        qsort(entry, count, sizeof(json_t *), by_rank);
    }
    for (size_t i = 0; entry != NULL && i < count; i++) {
        json_array_set_new(memory, i, entry[i]);
    }
    free(entry);
    return memory;
}

static json_t *memory_json(const struct reading *r, const char *notes, json_t *kernels)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    json_t *memory = json_array();
    for (size_t i = 0; i < r->ranks; i++) {
        if (r->rank[i].peak_bytes > 0) {
            json_array_append_new(memory, json_pack("{s:i,s:I,s:[]}", "rank", (int)i, "host_peak_bytes",
                                                    (json_int_t)r->rank[i].peak_bytes, "devices"));
        }
    }
    snprintf(pattern, sizeof(pattern), "%s/hostcuda.*", notes);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        add_notes(r, memory, kernels, notes, files.gl_pathv[i]);
    }
    globfree(&files);
    return sorted(memory);
}

/* the whole */

/* The findings that no later verdict has ended. */
static json_t *findings_json(const struct reading *r)
{
    json_t *findings = json_array();
    size_t i;
    json_t *verdict;
    json_array_foreach(r->verdicts, i, verdict)
    {
        if (roll_verdict_json_is_finding(verdict) && roll_verdict_json_retired_by(r->verdicts, verdict) == NULL) {
            json_array_append(findings, verdict);
        }
    }
    return findings;
}

/* One way in which processes ended, and which ranks did. */
static void add_end(json_t *list, uint32_t world, int status)
{
    const char *how = WIFSIGNALED(status) ? "signal" : "code";
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (roll_json_int(one, how, -1) == number) {
            json_array_append_new(json_object_get(one, "ranks"), json_integer(world));
            return;
        }
    }
    json_array_append_new(list, json_pack("{s:[i],s:i}", "ranks", (int)world, how, number));
}

/* The ranks that did not end with 0: as the launcher saw it, else as their rings tell. */
static json_t *ended_json(const struct reading *r)
{
    json_t *list = json_array();
    struct roll_view_source view;
    for (size_t i = 0; i < r->ranks; i++) {
        if (r->rank[i].has_ended && r->rank[i].status != 0) {
            add_end(list, (uint32_t)i, r->rank[i].status);
        }
    }
    for (uint32_t i = 0; r->ranks == 0 && roll_engine_source(roll_feed_engine(r->feed), i, &view); i++) {
        if (view.exit_status != ROLL_EXIT_UNKNOWN && view.exit_status != 0) {
            add_end(list, (uint32_t)view.info.world_rank, view.exit_status);
        }
    }
    return list;
}

static json_t *report_json(struct reading *r, const char *notes)
{
    roll_engine_t *engine = roll_feed_engine(r->feed);
    uint64_t steps = r->first_step == ROLL_STEP_NONE ? 0 : (uint64_t)r->last_step - r->first_step + 1;
    struct roll_engine_summary s;
    struct roll_steered_steps *told = NULL;
    size_t tolds = 0;
    if (roll_steered_read_steps(notes, &told, &tolds) != 0 || find_meetings(r) != 0 ||
        roll_rehearse_order_learn(r->order, r->feed, told, tolds) != 0) {
        free(told);
        return NULL;
    }
    free(told);
    uint64_t told_steps = steps > 0 ? steps : roll_rehearse_order_told(r->order);
    uint32_t learned = roll_rehearse_order_steps(r->order);
    json_t *comms = comms_json(r, steps);
    json_t *order = roll_rehearse_order_json(r->order, r->feed, comms);
    json_t *kernels = json_pack("{s:i, s:i, s:i}", "skipped", 0, "run", 0, "refused", 0);
    roll_engine_summary(engine, &s);
    json_t *memory = memory_json(r, notes, kernels);
    json_t *out = json_pack("{s:s,s:s,s:I,s:I,s:o,s:I,s:I,s:o,s:o,s:o,s:o}", "schema", "rollcall.rehearsal/1", "job",
                            roll_feed_job(r->feed), "ranks", (json_int_t)s.sources, "calls", (json_int_t)s.calls,
                            "steps", told_steps > 0 ? json_integer((json_int_t)told_steps) : json_null(),
                            "findings_count", (json_int_t)roll_tally_findings(&r->tally), "lost", (json_int_t)s.lost,
                            "communicators", comms, "memory", memory, "kernels", kernels, "findings", findings_json(r));
    if (told_steps == 0 && learned > 1) {
        json_object_set_new(out, "steps_learned", json_integer(learned));
    }
    if (order != NULL) {
        json_object_set_new(out, "order", order);
    }
    json_t *ended = ended_json(r);
    if (json_array_size(ended) > 0) {
        json_object_set(out, "ended", ended);
    }
    json_decref(ended);
    return out;
}

json_t *roll_rehearse_report(const char *trace, const char *notes, const struct roll_rehearse_rank *rank, size_t ranks,
                             struct roll_expected **expected)
{
    const struct roll_engine_config config = {0};
    struct reading r = {.first_step = ROLL_STEP_NONE, .last_step = ROLL_STEP_NONE, .rank = rank, .ranks = ranks};
    json_t *report = NULL;
    r.feed = roll_feed_new(&config, NULL, 0);
    r.verdicts = json_array();
    r.order = roll_rehearse_order_new();
    r.groups = roll_steered_groups(notes);
    if (r.feed != NULL && r.verdicts != NULL && r.order != NULL && read_trace(&r, trace) == 0) {
        report = report_json(&r, notes);
    }
    if (expected != NULL) {
        *expected = NULL;
    }
    if (report != NULL && expected != NULL) {
        (void)roll_rehearse_order_expected(r.order, r.feed, report, expected);
    }
    roll_rehearse_order_destroy(&r.order);
    for (size_t i = 0; i < r.rings; i++) {
        for (size_t k = 0; k < r.ring[i].comms; k++) {
            free(r.ring[i].comm[k].op);
        }
        free(r.ring[i].comm);
        free(r.ring[i].split);
    }
    free(r.ring);
    free(r.met);
    roll_map_fini(&r.ring_at);
    roll_map_fini(&r.met_at);
    roll_map_fini(&r.view_at);
    json_decref(r.groups);
    roll_tally_fini(&r.tally);
    roll_feed_destroy(&r.feed);
    json_decref(r.verdicts);
    return report;
}
