/*
 * export.c: from the frames of traces to what each rank has called.
 *
 * A call is complete where the trace says so: the rank has learnt it from its device, or its host came back from a wait
 * that covers the call. Numbers on a group are counted here as the recorder counts them: each collective has one, also
 * one of no elements, which NCCL drops, and messages that were issued as one share one.
 */
#include "daemon/console/export/export.h"

#include "daemon/base/array.h"
#include "daemon/base/dir.h"
#include "daemon/base/map.h"
#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/console/file.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct export
{
    struct roll_export_rank *rank; /* owned */
    size_t ranks, rank_room;
    struct roll_map rank_at;       /* by stream */
    struct roll_export_comm *comm; /* owned */
    size_t comms, comm_room;
    struct roll_map comm_at; /* by key */
    roll_symbols_t *symbols;
    size_t files;
    bool cut; /* one ended early */
};

static struct roll_export_rank *rank_of(struct export *x, uint64_t stream)
{
    uint32_t at = roll_map_get(&x->rank_at, stream);
    return at == ROLL_MAP_NONE ? NULL : &x->rank[at];
}

static int take_ring(struct export *x, const struct roll_frame *frame)
{
    struct roll_ring_header h;
    if (frame->head.payload < sizeof(h) || rank_of(x, frame->head.stream) != NULL) {
        return 0;
    }
    memcpy(&h, frame->payload, sizeof(h));
    int err = ROLL_GROW(x->rank, x->rank_room, x->ranks + 1);
    err = err != 0 ? err : roll_map_reserve(&x->rank_at);
    if (err == 0) {
        (void)roll_map_add(&x->rank_at, frame->head.stream, (uint32_t)x->ranks);
        x->rank[x->ranks++] = (struct roll_export_rank){.stream = frame->head.stream,
                                                        .world_rank = h.world_rank,
                                                        .offset = (int64_t)(h.clock_real_ns - h.clock_mono_ns)};
    }
    return err;
}

static int take_comm(struct export *x, struct roll_export_rank *rank, const struct roll_def *def)
{
    const struct roll_def_comm *info = &def->comm.info;
    if (info->key == 0 || info->nranks <= 0 || info->rank < 0 || info->rank >= info->nranks || def->id > UINT16_MAX) {
        return 0;
    }
    uint32_t at = roll_map_get(&x->comm_at, info->key);
    int err = ROLL_GROW_ZERO(rank->comm, rank->comms, (size_t)def->id + 1);
    if (err == 0 && at == ROLL_MAP_NONE) {
        err = ROLL_GROW(x->comm, x->comm_room, x->comms + 1);
        err = err != 0 ? err : roll_map_reserve(&x->comm_at);
        int32_t *world = err == 0 ? malloc((size_t)info->nranks * sizeof(*world)) : NULL;
        if (world == NULL) {
            return ROLL_E_NOMEM;
        }
        for (int32_t k = 0; k < info->nranks; k++) {
            world[k] = -1;
        }
        at = (uint32_t)x->comms++;
        x->comm[at] = (struct roll_export_comm){.key = info->key, .size = (uint32_t)info->nranks, .world = world};
        (void)roll_map_add(&x->comm_at, info->key, at);
    }
    if (err == 0 && (uint32_t)info->rank < x->comm[at].size) {
        struct roll_export_comm *c = &x->comm[at];
        c->world[info->rank] = rank->world_rank;
        rank->comm[def->id] = at + 1;
        if (c->label[0] == '\0' && info->label_bytes > 0) {
            size_t n = info->label_bytes < sizeof(c->label) ? info->label_bytes : sizeof(c->label) - 1;
            memcpy(c->label, def->comm.label, n);
        }
    }
    return err;
}

static int take_defs(struct export *x, struct roll_export_rank *rank, const struct roll_frame *frame)
{
    size_t at = 0;
    struct roll_def def;
    int err = 0;
    while (err == 0 && at < frame->head.payload &&
           roll_def_decode(frame->payload, frame->head.payload, &at, &def) == 0) {
        err =
            def.type == ROLL_DEF_COMM ? take_comm(x, rank, &def) : roll_symbols_define(x->symbols, rank->stream, &def);
    }
    return err;
}

/* The host came back from a wait: what it covers is over. Calls below `open` are complete, whatever their stream. */
static void waited(struct roll_export_rank *rank, const struct roll_record *rec)
{
    bool all = rec->op == ROLL_OP_DEVICE_SYNC;
    bool one = (rec->op == ROLL_OP_STREAM_SYNC || rec->op == ROLL_OP_STREAM_QUERY) && rec->stream != 0;
    if ((!all && !one) || roll_seal_state(rec->seal) < ROLL_STATE_RETURNED || rec->result != 0) {
        return;
    }
    size_t i = all ? rank->calls : rec->stream < rank->streams ? rank->newest[rec->stream] : 0;
    while (i > (all ? rank->open : 0)) {
        struct roll_export_call *c = &rank->call[i - 1];
        if (!all && c->waited) {
            break; /* what is before it on its stream is over as well */
        }
        if (roll_seal_ticket(c->rec.seal) < roll_seal_ticket(rec->seal)) {
            c->complete = c->waited = true;
        }
        i = all ? i - 1 : c->before;
    }
    while (rank->open < rank->calls && rank->call[rank->open].complete) {
        rank->open++;
    }
}

static int take_record(struct roll_export_rank *rank, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    if (class == ROLL_CLASS_SYNC || class == ROLL_CLASS_POLL) {
        waited(rank, rec);
        return 0;
    }
    bool known = rec->comm < rank->comms && rank->comm[rec->comm] != 0 && rec->op != ROLL_OP_GRAPH_LAUNCH;
    if ((class != ROLL_CLASS_COLL && class != ROLL_CLASS_P2P) || !known) {
        return 0;
    }
    bool complete = roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE;
    for (size_t i = rank->calls; i-- > 0 && roll_seal_ticket(rank->call[i].rec.seal) >= roll_seal_ticket(rec->seal);) {
        if (roll_seal_ticket(rank->call[i].rec.seal) == roll_seal_ticket(rec->seal)) { /* an update */
            rank->call[i].complete = rank->call[i].complete || complete;
            return 0;
        }
    }
    int err = ROLL_GROW(rank->call, rank->room, rank->calls + 1);
    err = err != 0 ? err : ROLL_GROW_ZERO(rank->newest, rank->streams, (size_t)rec->stream + 1);
    if (err == 0) {
        size_t before = rank->newest[rec->stream];
        rank->call[rank->calls++] = (struct roll_export_call){.rec = *rec,
                                                              .real_ns = rec->enter_ns + (uint64_t)rank->offset,
                                                              .comm = rank->comm[rec->comm] - 1,
                                                              .before = before,
                                                              .complete = complete};
        rank->newest[rec->stream] = rank->calls;
    }
    return err;
}

static int take(struct export *x, const struct roll_frame *frame)
{
    struct roll_export_rank *rank = rank_of(x, frame->head.stream);
    int err = 0;
    if (frame->head.type == ROLL_FRAME_RING) {
        return take_ring(x, frame);
    }
    if (rank == NULL) {
        return 0;
    }
    if (frame->head.type == ROLL_FRAME_DEFS) {
        return take_defs(x, rank, frame);
    }
    bool records = frame->head.type == ROLL_FRAME_RECORDS || frame->head.type == ROLL_FRAME_UPDATES;
    for (uint32_t i = 0; records && i < frame->head.count && err == 0; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        err = roll_seal_state(rec.seal) == ROLL_STATE_EMPTY ? 0 : take_record(rank, &rec);
    }
    return err;
}

static int read_trace(struct export *x, const char *path)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    int err = roll_trace_reader_new(path, &reader), end = 0;
    while (err == 0 && (end = roll_trace_reader_next(reader, &frame)) == 0) {
        err = take(x, &frame);
    }
    roll_trace_reader_destroy(&reader);
    err = err == 0 && end == ROLL_E_NOMEM ? end : err;
    if (err == 0 && end != ROLL_E_NOTFOUND) {
        x->cut = true;
        roll_say("%s: %s; everything before it is written", path, roll_strerror(end));
    }
    x->files += err == 0;
    return err;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A trace, or those of a directory, and of the ones directly in it where `inside` says so: one for each node. */
static int read_path(struct export *x, const char *path, bool inside)
{
    struct dirent **entry = NULL;
    int err = 0;
    if (!is_folder(path)) {
        err = read_trace(x, path);
        if (err != 0) {
            roll_file_complain(path, err, ROLL_WANTED_TRACE);
        }
        return err;
    }
    int n = scandir(path, &entry, NULL, alphasort);
    if (n < 0) {
        err = errno == ENOMEM ? ROLL_E_NOMEM : errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
        roll_file_complain(path, err, ROLL_WANTED_TRACE);
    }
    for (int i = 0; i < n; i++) {
        char inner[PATH_MAX];
        size_t len = strlen(entry[i]->d_name);
        bool trace = len > 5 && strcmp(entry[i]->d_name + len - 5, ".rtrc") == 0;
        bool fits = snprintf(inner, sizeof(inner), "%s/%s", path, entry[i]->d_name) < PATH_MAX;
        bool folder = fits && inside && entry[i]->d_name[0] != '.' && is_folder(inner);
        if (fits && err == 0 && (folder || (trace && !is_folder(inner)))) {
            err = read_path(x, inner, false);
        }
        free(entry[i]);
    }
    free(entry);
    return err;
}

/* Numbers the calls of a rank as the recorder does. */
static int number(struct export *x, struct roll_export_rank *rank)
{
    struct {
        uint32_t coll, p2p, unit;
    } *count = calloc(x->comms + 1, sizeof(*count));
    for (size_t i = 0; count != NULL && i < rank->calls; i++) {
        struct roll_export_call *c = &rank->call[i];
        bool message = roll_op_class(c->rec.op) == ROLL_CLASS_P2P;
        bool joins = message && c->rec.group != 0 && i > 0 && count[c->comm].unit == c->rec.group;
        count[c->comm].unit = message ? c->rec.group : 0;
        count[c->comm].coll += !message;
        count[c->comm].p2p += message && !joins;
        c->coll = count[c->comm].coll;
        c->p2p = count[c->comm].p2p;
    }
    int err = count == NULL ? ROLL_E_NOMEM : 0;
    free(count);
    return err;
}

/* The rank of a member of which there is no ring: the lowest behind `after` that has no ring either. */
static int32_t absent_rank(const struct roll_map *there, int32_t after)
{
    do {
        after++;
    } while (roll_map_get(there, (uint64_t)after + 1) != ROLL_MAP_NONE);
    return after;
}

/*
 * Members of which there is no ring: of a communicator of all ranks their place says who they are. Of others nobody can
 * say; members stand in the order of their ranks as a rule, and a rank that has a ring is none of them.
 */
static int complete_members(struct export *x)
{
    struct roll_map there = {0};
    int err = 0;
    uint32_t world = (uint32_t)x->ranks;
    for (size_t i = 0; i < x->comms; i++) {
        world = x->comm[i].size > world ? x->comm[i].size : world;
    }
    for (size_t i = 0; i < x->ranks && err == 0; i++) {
        err = x->rank[i].world_rank < 0 ? 0 : roll_map_add(&there, (uint64_t)x->rank[i].world_rank + 1, 0);
    }
    for (size_t i = 0; i < x->comms && err == 0; i++) {
        struct roll_export_comm *c = &x->comm[i];
        int32_t newest = -1;
        for (uint32_t k = 0; k < c->size; k++) {
            bool by_place = c->size == world && roll_map_get(&there, (uint64_t)k + 1) == ROLL_MAP_NONE;
            if (c->world[k] < 0) {
                c->world[k] = by_place ? (int32_t)k : absent_rank(&there, newest);
            }
            newest = c->world[k] > newest ? c->world[k] : newest;
        }
        if (c->label[0] == '\0' && c->size == x->ranks && i == 0) {
            snprintf(c->label, sizeof(c->label), "default_pg");
        }
    }
    roll_map_fini(&there);
    return err;
}

/* Where the dump of a rank's n-th ring goes, without its name: a rank has more than one where the trace holds more than
 * one run. False: the path is too long, or the folder cannot be made. */
static bool name_folder(const char *folder, uint32_t n, char *out, size_t size)
{
    int bytes = n == 1 ? snprintf(out, size, "%s", folder) : snprintf(out, size, "%s/again_%u", folder, n);
    return bytes > 0 && (size_t)bytes + 32 < size && (n == 1 || mkdir(out, 0777) == 0 || errno == EEXIST);
}

static int write_all(struct export *x, const char *folder, size_t entries, size_t *ranks)
{
    char why[PATH_MAX + 128];
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        int number = errno;
        roll_say("%s", roll_dir_cannot_make(folder, number, why, sizeof(why)));
        return roll_out_error(number);
    }
    int err = complete_members(x);
    struct roll_map there = {0}; /* world rank -> how many of its rings were written */
    uint32_t *times = calloc(x->ranks + 1, sizeof(*times)), most = 1;
    err = err == 0 && times == NULL ? ROLL_E_NOMEM : err;
    for (size_t i = 0; i < x->ranks && err == 0; i++) {
        char path[PATH_MAX - 64] = "";
        int32_t rank = x->rank[i].world_rank;
        err = number(x, &x->rank[i]);
        uint32_t at = err == 0 && rank >= 0 ? roll_map_get(&there, (uint64_t)rank + 1) : 0;
        if (err == 0 && rank >= 0 && at == ROLL_MAP_NONE) {
            at = (uint32_t)i;
            err = roll_map_add(&there, (uint64_t)rank + 1, at);
        }
        if (err == 0 && rank >= 0) {
            err = name_folder(folder, ++times[at], path, sizeof(path)) ? 0 : ROLL_E_IO;
        }
        if (err == 0 && rank >= 0) {
            most = times[at] > most ? times[at] : most;
            size_t used = strlen(path);
            snprintf(path + used, sizeof(path) - used, "/nccl_trace_rank_%d", rank);
            err = roll_export_write(path, &x->rank[i], x->comm, x->comms, entries, x->symbols);
            *ranks += err == 0;
        }
    }
    if (err == 0 && most > 1) {
        roll_say("ranks have up to %u rings, as a job that was started again has: further ones are in %s/again_2%s",
                 most, folder, most > 2 ? " and so on" : "");
    }
    free(times);
    roll_map_fini(&there);
    if (err != 0) {
        roll_say("%s: %s", folder, roll_strerror(err));
    }
    return err;
}

int roll_export(char **path, size_t paths, const char *folder, size_t entries, size_t *ranks, bool *cut)
{
    struct export x = {.symbols = roll_symbols_new()};
    int err = x.symbols == NULL ? ROLL_E_NOMEM : 0;
    *ranks = 0;
    for (size_t i = 0; i < paths && err == 0; i++) {
        err = read_path(&x, path[i], true);
    }
    if (err == 0 && x.files == 0) {
        roll_file_say_none("no trace (*.rtrc)", path, paths);
        err = ROLL_E_NOTFOUND;
    }
    err = err != 0 ? err : write_all(&x, folder, entries, ranks);
    *cut = x.cut;
    for (size_t i = 0; i < x.ranks; i++) {
        free(x.rank[i].call);
        free(x.rank[i].newest);
        free(x.rank[i].comm);
    }
    for (size_t i = 0; i < x.comms; i++) {
        free(x.comm[i].world);
    }
    free(x.rank);
    free(x.comm);
    roll_map_fini(&x.rank_at);
    roll_map_fini(&x.comm_at);
    roll_symbols_destroy(&x.symbols);
    return err;
}
