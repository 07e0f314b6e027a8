/*
 * export_pickle.c: the dump of one rank, as PyTorch 2.15 writes it (format 2.10): a pickle of plain data, protocol 2.
 *
 * What the recorder does not keep and a trace does, stands in members that torchfrtrace does not look at: `root` and
 * `reduction`. Backslash-escaped JSON was rejected: the recorder keeps no frames in JSON.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/console/export/export.h"
#include "trace/err.h"
#include "trace/op.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_TEXT 16u /* bytes of one rank in a list */

struct out {
    uint8_t *at;
    size_t used, room;
    int err;
};

static void raw(struct out *o, const void *bytes, size_t n)
{
    o->err = o->err != 0 ? o->err : ROLL_GROW(o->at, o->room, o->used + n);
    if (o->err == 0) {
        memcpy(o->at + o->used, bytes, n);
        o->used += n;
    }
}

static void code(struct out *o, char opcode)
{
    raw(o, &opcode, 1);
}

static void text(struct out *o, const char *s)
{
    uint32_t n = (uint32_t)strlen(s);
    code(o, 'X');
    raw(o, &n, sizeof(n));
    raw(o, s, n);
}

static void integer(struct out *o, int64_t n)
{
    if (n >= INT32_MIN && n <= INT32_MAX) {
        int32_t small = (int32_t)n;
        code(o, 'J');
        raw(o, &small, sizeof(small));
    } else {
        raw(o, "\x8a\x08", 2);
        raw(o, &n, sizeof(n));
    }
}

static void boolean(struct out *o, bool is)
{
    code(o, (char)(is ? 0x88 : 0x89));
}

static void begin(struct out *o, char empty)
{
    code(o, empty);
    code(o, '(');
}

static void member_text(struct out *o, const char *key, const char *value)
{
    text(o, key);
    text(o, value);
}

static void member_integer(struct out *o, const char *key, int64_t value)
{
    text(o, key);
    integer(o, value);
}

static const char *operation(uint8_t op)
{
    switch (op) {
    case ROLL_OP_ALLREDUCE:
        return "all_reduce";
    case ROLL_OP_BROADCAST:
        return "broadcast";
    case ROLL_OP_REDUCE:
        return "reduce";
    case ROLL_OP_ALLGATHER:
        return "_all_gather_base";
    case ROLL_OP_REDUCESCATTER:
        return "_reduce_scatter_base";
    case ROLL_OP_ALLTOALL:
        return "all_to_all";
    case ROLL_OP_GATHER:
        return "gather";
    case ROLL_OP_SCATTER:
        return "scatter";
    case ROLL_OP_SEND:
        return "send";
    case ROLL_OP_RECV:
        return "recv";
    default:
        return NULL;
    }
}

static const char *datatype(uint8_t dtype)
{
    static const char *const names[ROLL_DTYPE_LIMIT] = {
        [ROLL_DTYPE_INT8] = "Char",
        [ROLL_DTYPE_UINT8] = "Byte",
        [ROLL_DTYPE_INT32] = "Int",
        [ROLL_DTYPE_UINT32] = "UInt32",
        [ROLL_DTYPE_INT64] = "Long",
        [ROLL_DTYPE_UINT64] = "UInt64",
        [ROLL_DTYPE_FLOAT16] = "Half",
        [ROLL_DTYPE_FLOAT32] = "Float",
        [ROLL_DTYPE_FLOAT64] = "Double",
        [ROLL_DTYPE_BFLOAT16] = "BFloat16",
        [ROLL_DTYPE_FLOAT8E4M3] = "Float8_e4m3fn",
        [ROLL_DTYPE_FLOAT8E5M2] = "Float8_e5m2",
    };
    return dtype < ROLL_DTYPE_LIMIT && names[dtype] != NULL ? names[dtype] : "Undefined";
}

/* One shape of one dimension, in a list. */
static void sizes(struct out *o, const char *key, uint64_t count)
{
    text(o, key);
    begin(o, ']');
    begin(o, ']');
    integer(o, (int64_t)count);
    raw(o, "ee", 2);
}

static void types(struct out *o, const char *key, uint8_t dtype)
{
    text(o, key);
    begin(o, ']');
    text(o, datatype(dtype));
    code(o, 'e');
}

static void tensors(struct out *o, const struct roll_export_call *c, uint32_t members)
{
    uint64_t in = c->rec.count, all = in * members;
    bool gathers = c->rec.op == ROLL_OP_ALLGATHER, scatters = c->rec.op == ROLL_OP_REDUCESCATTER;
    bool exchanges = c->rec.op == ROLL_OP_ALLTOALL;
    sizes(o, "input_sizes", scatters || exchanges ? all : in);
    types(o, "input_dtypes", c->rec.dtype);
    sizes(o, "output_sizes", gathers || exchanges ? all : in);
    types(o, "output_dtypes", c->rec.dtype);
}

static void frames(struct out *o, const struct roll_export_rank *rank, uint16_t callsite, roll_symbols_t *symbols)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    int n = callsite != 0 ? roll_symbols_callsite(symbols, rank->stream, callsite, frame, ROLL_SYMBOL_FRAMES) : 0;
    text(o, "frames");
    begin(o, ']');
    for (int i = 0; i < n; i++) {
        begin(o, '}');
        member_text(o, "name", frame[i].function[0] != '\0' ? frame[i].function : "??");
        member_text(o, "filename", frame[i].file[0] != '\0' ? frame[i].file : frame[i].module);
        member_integer(o, "line", frame[i].line);
        code(o, 'u');
    }
    code(o, 'e');
}

static void entry(struct out *o, const struct roll_export_rank *rank, size_t i, const struct roll_export_comm *comm,
                  const char *group, const char *label, roll_symbols_t *symbols)
{
    const struct roll_export_call *c = &rank->call[i];
    bool message = roll_op_class(c->rec.op) == ROLL_CLASS_P2P;
    char name[64];
    int32_t me = 0;
    for (uint32_t k = 0; message && k < comm->size; k++) {
        me = comm->world[k] == rank->world_rank ? (int32_t)k : me;
    }
    const char *what = operation(c->rec.op);
    snprintf(name, sizeof(name), "nccl:%s", what != NULL ? what : "unknown");
    if (message) {
        snprintf(name, sizeof(name), c->rec.op == ROLL_OP_SEND ? "nccl:send %d->%d" : "nccl:recv %d<-%d", me,
                 c->rec.peer);
    }
    begin(o, '}');
    member_integer(o, "record_id", (int64_t)i);
    member_integer(o, "pg_id", c->comm);
    text(o, "process_group");
    text(o, group);
    text(o, label);
    code(o, (char)0x86);
    member_text(o, "thread_name", "");
    member_text(o, "thread_id", "0");
    member_integer(o, "collective_seq_id", c->coll);
    member_integer(o, "p2p_seq_id", c->p2p);
    member_integer(o, "op_id", (int64_t)c->coll + c->p2p);
    member_text(o, "profiling_name", name);
    member_integer(o, "time_created_ns", (int64_t)c->real_ns);
    tensors(o, c, comm->size);
    member_text(o, "state", c->complete ? "completed" : "scheduled");
    text(o, "time_discovered_started_ns");
    code(o, 'N');
    text(o, "time_discovered_completed_ns");
    code(o, 'N');
    text(o, "retired");
    boolean(o, c->complete);
    member_integer(o, "timeout_ms", 600000);
    text(o, "is_p2p");
    boolean(o, message);
    if (!message && c->rec.peer >= 0) {
        member_integer(o, "root", c->rec.peer);
    }
    if (c->rec.redop < ROLL_RED_LIMIT) {
        member_integer(o, "reduction", c->rec.redop);
    }
    frames(o, rank, c->rec.callsite, symbols);
    code(o, 'u');
}

/* What a group is called in all dumps alike. */
static void names_of(const struct roll_export_comm *comm, size_t number, char group[32], char label[ROLL_NAME_BYTES])
{
    snprintf(group, 32, "%zu", number);
    snprintf(label, ROLL_NAME_BYTES, "%s", comm->label[0] != '\0' ? comm->label : "undefined");
}

static bool is_member(const struct roll_export_comm *comm, int32_t world)
{
    for (uint32_t k = 0; k < comm->size; k++) {
        if (comm->world[k] == world) {
            return true;
        }
    }
    return false;
}

static void group_config(struct out *o, const struct roll_export_comm *comm, size_t number)
{
    char group[32], label[ROLL_NAME_BYTES];
    size_t room = 16 + (size_t)comm->size * RANKS_TEXT, used = 1;
    char *ranks = malloc(room);
    if (ranks == NULL) {
        o->err = ROLL_E_NOMEM;
        return;
    }
    strcpy(ranks, "[");
    for (uint32_t k = 0; k < comm->size; k++) {
        used += (size_t)snprintf(ranks + used, room - used, "%s%d", k > 0 ? ", " : "", comm->world[k]);
    }
    snprintf(ranks + used, room - used, "]");
    names_of(comm, number, group, label);
    text(o, group);
    begin(o, '}');
    member_text(o, "name", group);
    member_text(o, "desc", label);
    member_text(o, "ranks", ranks);
    code(o, 'u');
    free(ranks);
}

static void status(struct out *o, const struct roll_export_rank *rank, uint32_t comm)
{
    char id[32];
    int64_t last = -1, over = -1;
    for (size_t i = 0; i < rank->calls; i++) {
        const struct roll_export_call *c = &rank->call[i];
        if (c->comm == comm) {
            last = roll_op_class(c->rec.op) == ROLL_CLASS_P2P ? c->p2p : c->coll;
            over = c->complete ? last : over;
        }
    }
    snprintf(id, sizeof(id), "%u", comm);
    text(o, id);
    begin(o, '}');
    member_integer(o, "last_enqueued_collective", last);
    member_integer(o, "last_started_collective", -1);
    member_integer(o, "last_completed_collective", over);
    code(o, 'u');
}

/* Writes the file; beside its place first, so that nobody takes half of one for a dump. */
static int write_file(const char *path, const struct out *o)
{
    char beside[PATH_MAX + 8];
    snprintf(beside, sizeof(beside), "%s.part", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return errno == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
    }
    int number = roll_write_all(fd, o->at, o->used) == o->used ? 0 : errno;
    number = close(fd) != 0 && number == 0 ? errno : number;
    number = number == 0 && rename(beside, path) != 0 ? errno : number;
    if (number != 0) {
        unlink(beside);
    }
    return number == 0 ? 0 : number == ENOSPC ? ROLL_E_SPACE : number == EACCES ? ROLL_E_DENIED : ROLL_E_IO;
}

int roll_export_write(const char *path, const struct roll_export_rank *rank, const struct roll_export_comm *comm,
                      size_t comms, size_t entries, roll_symbols_t *symbols)
{
    struct out o = {.at = NULL};
    char group[32], label[ROLL_NAME_BYTES];
    raw(&o, "\x80\x02", 2);
    begin(&o, '}');
    member_text(&o, "version", "2.10");
    member_text(&o, "comm_lib_version", "0.0.0");
    text(&o, "pg_config");
    begin(&o, '}');
    for (size_t i = 0; i < comms; i++) {
        if (is_member(&comm[i], rank->world_rank)) {
            group_config(&o, &comm[i], i);
        }
    }
    code(&o, 'u');
    text(&o, "pg_status");
    begin(&o, '}');
    for (size_t i = 0; i < comms; i++) {
        if (is_member(&comm[i], rank->world_rank)) {
            status(&o, rank, (uint32_t)i);
        }
    }
    code(&o, 'u');
    text(&o, "entries");
    begin(&o, ']');
    for (size_t i = rank->calls > entries ? rank->calls - entries : 0; i < rank->calls; i++) {
        const struct roll_export_comm *on = &comm[rank->call[i].comm];
        names_of(on, rank->call[i].comm, group, label);
        entry(&o, rank, i, on, group, label, symbols);
    }
    raw(&o, "eu.", 3);
    int err = o.err != 0 ? o.err : write_file(path, &o);
    free(o.at);
    return err;
}
