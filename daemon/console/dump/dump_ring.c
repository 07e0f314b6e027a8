/*
 * dump_ring.c: the fields of the ring header, the definitions, the record and the control page, and walks over them.
 *
 * The tables repeat names and offsets of trace/ring.h, record.h, def.h and control.h through offsetof, so that they
 * cannot point at other bytes than the code uses; the golden tests hold the printed result.
 */
#include "daemon/console/dump/dump.h"

#include "trace/control.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <inttypes.h>
#include <string.h>

#define FIELD ROLL_DUMP_FIELD
#define NAMED(type, member, label)                                                                                     \
    {                                                                                                                  \
#member, offsetof(type, member), sizeof(((type *)NULL)->member), ROLL_DUMP_NAME, label                         \
    }
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const char *ring_state(unsigned state)
{
    static const char *const names[] = {"?", "attached", "finished", "disabled"};
    return state < COUNT(names) ? names[state] : "?";
}

static const char *completion_name(unsigned completion)
{
    static const char *const names[] = {"off", "write", "counter", "event"};
    return completion < COUNT(names) ? names[completion] : "?";
}

static const char *flag_names(unsigned flags)
{
    static const char *const bit[] = {"captured", "in-group", "in-place", "nonblocking", "bytes", "replayed", "plugin"};
    static _Thread_local char text[96];
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < COUNT(bit); i++) {
        if ((flags >> i & 1) != 0) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used > 0 ? "+" : "", bit[i]);
        }
    }
    return flags == 0 ? "none" : text;
}

#define H struct roll_ring_header
static const struct roll_dump_field header_fields[] = {
    FIELD(H, magic, ROLL_DUMP_TEXT),
    FIELD(H, version, ROLL_DUMP_UINT),
    FIELD(H, oldest, ROLL_DUMP_UINT),
    FIELD(H, header_bytes, ROLL_DUMP_UINT),
    FIELD(H, record_bytes, ROLL_DUMP_UINT),
    FIELD(H, capacity, ROLL_DUMP_UINT),
    FIELD(H, defs_offset, ROLL_DUMP_UINT),
    FIELD(H, defs_bytes, ROLL_DUMP_UINT),
    FIELD(H, records_offset, ROLL_DUMP_UINT),
    FIELD(H, file_bytes, ROLL_DUMP_UINT),
    FIELD(H, pid, ROLL_DUMP_UINT),
    FIELD(H, world_rank, ROLL_DUMP_INT),
    FIELD(H, world_size, ROLL_DUMP_INT),
    FIELD(H, local_rank, ROLL_DUMP_INT),
    FIELD(H, restart, ROLL_DUMP_UINT),
    FIELD(H, flags, ROLL_DUMP_UINT),
    FIELD(H, start_ticks, ROLL_DUMP_UINT),
    FIELD(H, epoch, ROLL_DUMP_HEX),
    FIELD(H, boot_id, ROLL_DUMP_BYTES),
    FIELD(H, job, ROLL_DUMP_TEXT),
    FIELD(H, host, ROLL_DUMP_TEXT),
    FIELD(H, exe, ROLL_DUMP_TEXT),
    FIELD(H, reserved0, ROLL_DUMP_UINT),
    FIELD(H, static_crc, ROLL_DUMP_HEX),
    FIELD(H, head, ROLL_DUMP_UINT),
    FIELD(H, defs_used, ROLL_DUMP_UINT),
    NAMED(H, state, ring_state),
    FIELD(H, exit_status, ROLL_DUMP_EXIT),
    FIELD(H, finish_ns, ROLL_DUMP_UINT),
    FIELD(H, clock_mono_ns, ROLL_DUMP_UINT),
    FIELD(H, clock_real_ns, ROLL_DUMP_UINT),
    FIELD(H, counted, ROLL_DUMP_UINT),
    ROLL_DUMP_LOSSES(H),
    NAMED(H, completion, completion_name),
};
#undef H

#define R struct roll_record
static const struct roll_dump_field record_fields[] = {
    FIELD(R, seal, ROLL_DUMP_SEAL),    FIELD(R, enter_ns, ROLL_DUMP_UINT),   FIELD(R, count, ROLL_DUMP_UINT),
    FIELD(R, seq, ROLL_DUMP_UINT),     FIELD(R, group, ROLL_DUMP_UINT),      FIELD(R, peer, ROLL_DUMP_INT),
    FIELD(R, call_ns, ROLL_DUMP_UINT), FIELD(R, step, ROLL_DUMP_UINT),       FIELD(R, comm, ROLL_DUMP_UINT),
    FIELD(R, stream, ROLL_DUMP_UINT),  FIELD(R, callsite, ROLL_DUMP_UINT),   FIELD(R, thread, ROLL_DUMP_UINT),
    FIELD(R, layer, ROLL_DUMP_UINT),   FIELD(R, microbatch, ROLL_DUMP_UINT), NAMED(R, op, roll_op_name),
    NAMED(R, dtype, roll_dtype_name),  NAMED(R, redop, roll_redop_name),     NAMED(R, flags, flag_names),
    NAMED(R, phase, roll_phase_name),  FIELD(R, result, ROLL_DUMP_UINT),     FIELD(R, aux, ROLL_DUMP_UINT),
};
#undef R

static const char *def_name(unsigned type)
{
    static const char *const names[] = {"?",     "comm",  "callsite", "module", "stream", "thread",
                                        "layer", "graph", "source",   "line",   "stand",  "text"};
    return type < COUNT(names) ? names[type] : "?";
}

#define DEF_HEAD                                                                                                       \
    {"type", 0, 2, ROLL_DUMP_NAME, def_name}, {"seal", 2, 2, ROLL_DUMP_HEX, NULL},                                     \
        {"bytes", 4, 4, ROLL_DUMP_UINT, NULL},                                                                         \
    {                                                                                                                  \
        "id", 8, 4, ROLL_DUMP_UINT, NULL                                                                               \
    }
#define BODY(type, member, kind)                                                                                       \
    {                                                                                                                  \
#member, 16 + offsetof(type, member), sizeof(((type *)NULL)->member), kind, NULL                               \
    }

#define C struct roll_def_comm
static const struct roll_dump_field comm_fields[] = {
    DEF_HEAD,
    BODY(C, key, ROLL_DUMP_HEX),
    BODY(C, parent_key, ROLL_DUMP_HEX),
    BODY(C, rank, ROLL_DUMP_INT),
    BODY(C, nranks, ROLL_DUMP_INT),
    BODY(C, color, ROLL_DUMP_INT),
    BODY(C, child, ROLL_DUMP_UINT),
    BODY(C, origin, ROLL_DUMP_UINT),
    BODY(C, device, ROLL_DUMP_INT),
    BODY(C, flags, ROLL_DUMP_UINT),
    BODY(C, label_bytes, ROLL_DUMP_UINT),
};
#undef C
#define M struct roll_def_module
static const struct roll_dump_field module_fields[] = {
    DEF_HEAD,
    BODY(M, start, ROLL_DUMP_HEX),
    BODY(M, end, ROLL_DUMP_HEX),
    BODY(M, bias, ROLL_DUMP_HEX),
    BODY(M, build_id_bytes, ROLL_DUMP_UINT),
    BODY(M, build_id, ROLL_DUMP_BYTES),
    BODY(M, path_bytes, ROLL_DUMP_UINT),
};
#undef M
static const struct roll_dump_field callsite_fields[] = {
    DEF_HEAD,
    {"depth", 16, 4, ROLL_DUMP_UINT, NULL},
    {"lines", 20, 4, ROLL_DUMP_UINT, NULL},
    {"pc[0]", 24, 8, ROLL_DUMP_HEX, NULL},
    {"pc[1]", 32, 8, ROLL_DUMP_HEX, NULL},
    {"pc[2]", 40, 8, ROLL_DUMP_HEX, NULL},
    {"pc[3]", 48, 8, ROLL_DUMP_HEX, NULL},
    {"pc[4]", 56, 8, ROLL_DUMP_HEX, NULL},
    {"pc[5]", 64, 8, ROLL_DUMP_HEX, NULL},
    {"pc[6]", 72, 8, ROLL_DUMP_HEX, NULL},
    {"pc[7]", 80, 8, ROLL_DUMP_HEX, NULL},
};
static const struct roll_dump_field stream_fields[] = {DEF_HEAD, {"handle", 16, 8, ROLL_DUMP_HEX, NULL}};
static const struct roll_dump_field thread_fields[] = {
    DEF_HEAD, {"tid", 16, 4, ROLL_DUMP_UINT, NULL}, {"name_bytes", 20, 4, ROLL_DUMP_UINT, NULL}};
static const struct roll_dump_field layer_fields[] = {DEF_HEAD, {"name_bytes", 16, 4, ROLL_DUMP_UINT, NULL}};
#define G struct roll_def_graph
static const struct roll_dump_field graph_fields[] = {
    DEF_HEAD,
    BODY(G, first_ticket, ROLL_DUMP_UINT),
    BODY(G, last_ticket, ROLL_DUMP_UINT),
    BODY(G, calls, ROLL_DUMP_UINT),
    BODY(G, parts, ROLL_DUMP_UINT),
};
#undef G
static const struct roll_dump_field source_fields[] = {DEF_HEAD, {"path_bytes", 16, 4, ROLL_DUMP_UINT, NULL}};
#define L struct roll_def_line
static const struct roll_dump_field line_fields[] = {
    DEF_HEAD,
    BODY(L, source, ROLL_DUMP_UINT),
    BODY(L, line, ROLL_DUMP_UINT),
    BODY(L, flags, ROLL_DUMP_HEX),
    BODY(L, function_bytes, ROLL_DUMP_UINT),
};
#undef L
static const struct roll_dump_field stand_fields[] = {DEF_HEAD, {"lines", 16, 4, ROLL_DUMP_UINT, NULL}};
static const struct roll_dump_field text_fields[] = {DEF_HEAD, {"text_bytes", 16, 4, ROLL_DUMP_UINT, NULL}};
#define N struct roll_def_name
static const struct roll_dump_field name_fields[] = {
    DEF_HEAD,
    BODY(N, count, ROLL_DUMP_UINT),
    BODY(N, kind, ROLL_DUMP_UINT),
    BODY(N, size, ROLL_DUMP_UINT),
    BODY(N, line, ROLL_DUMP_UINT),
    BODY(N, label_bytes, ROLL_DUMP_UINT),
    BODY(N, text_bytes, ROLL_DUMP_UINT),
    BODY(N, file_bytes, ROLL_DUMP_UINT),
    BODY(N, function_bytes, ROLL_DUMP_UINT),
};
#undef N
static const struct roll_dump_field other_fields[] = {DEF_HEAD};
/* The lines of a call site stand behind its addresses. */
static const char *const line_names[ROLL_CALLSITE_LINES] = {"line[0]", "line[1]", "line[2]", "line[3]",
                                                            "line[4]", "line[5]", "line[6]", "line[7]"};
static const char *const folded_names[ROLL_CALLSITE_LINES] = {"folded[0]", "folded[1]", "folded[2]", "folded[3]",
                                                              "folded[4]", "folded[5]", "folded[6]", "folded[7]"};

/* For each type of definition: its fixed fields. The text behind them, if any, becomes one more field. */
static const struct {
    const struct roll_dump_field *fields;
    size_t n;
    uint16_t text_at; /* 0 = no text */
    const char *text_name;
} def_tables[] = {
    [ROLL_DEF_COMM] = {comm_fields, COUNT(comm_fields), 16 + sizeof(struct roll_def_comm), "label"},
    [ROLL_DEF_CALLSITE] = {callsite_fields, COUNT(callsite_fields), 0, NULL},
    [ROLL_DEF_MODULE] = {module_fields, COUNT(module_fields), 16 + sizeof(struct roll_def_module), "path"},
    [ROLL_DEF_STREAM] = {stream_fields, COUNT(stream_fields), 0, NULL},
    [ROLL_DEF_THREAD] = {thread_fields, COUNT(thread_fields), 16 + sizeof(struct roll_def_thread), "name"},
    [ROLL_DEF_LAYER] = {layer_fields, COUNT(layer_fields), 16 + sizeof(struct roll_def_layer), "name"},
    [ROLL_DEF_GRAPH] = {graph_fields, COUNT(graph_fields), 0, NULL},
    [ROLL_DEF_SOURCE] = {source_fields, COUNT(source_fields), 16 + sizeof(struct roll_def_source), "path"},
    [ROLL_DEF_LINE] = {line_fields, COUNT(line_fields), 16 + sizeof(struct roll_def_line), "function"},
    [ROLL_DEF_STAND] = {stand_fields, COUNT(stand_fields), 0, NULL},
    [ROLL_DEF_TEXT] = {text_fields, COUNT(text_fields), 16 + sizeof(struct roll_def_text), "text"},
    [ROLL_DEF_NAME] = {name_fields, COUNT(name_fields), 16 + sizeof(struct roll_def_name), "texts"},
};

/* The lines of a call site or of a stand, which begin `at` bytes into the definition. */
static size_t add_lines(struct roll_dump_field *fields, size_t n, uint32_t lines, size_t at)
{
    for (uint32_t i = 0; i < lines; i++, at += sizeof(struct roll_callsite_line)) {
        fields[n++] = (struct roll_dump_field){line_names[i], (uint16_t)at, 4, ROLL_DUMP_UINT, NULL};
        fields[n++] = (struct roll_dump_field){folded_names[i], (uint16_t)(at + 4), 4, ROLL_DUMP_UINT, NULL};
    }
    return n;
}

static void dump_def(struct roll_dump *d, uint64_t offset, const uint8_t *entry, size_t bytes,
                     const struct roll_def *def)
{
    struct roll_dump_field fields[ROLL_CALLSITE_DEPTH + 2 * ROLL_CALLSITE_LINES + 16];
    size_t n = COUNT(other_fields);
    char title[96];
    const struct roll_dump_field *from = other_fields;

    if ((unsigned)def->type < COUNT(def_tables) && def_tables[def->type].fields != NULL) {
        from = def_tables[def->type].fields;
        n = def_tables[def->type].n;
    }
    memcpy(fields, from, n * sizeof(*fields));
    if (def->type == ROLL_DEF_CALLSITE) {
        n -= ROLL_CALLSITE_DEPTH - def->callsite.depth;
        n = add_lines(fields, n, def->callsite.lines, 24 + def->callsite.depth * sizeof(uint64_t));
    } else if (def->type == ROLL_DEF_STAND) {
        n = add_lines(fields, n, def->stand.lines, 24);
    }
    if (from != other_fields && def_tables[def->type].text_at != 0 && bytes > def_tables[def->type].text_at) {
        uint16_t at = def_tables[def->type].text_at;
        fields[n++] =
            (struct roll_dump_field){def_tables[def->type].text_name, at, (uint16_t)(bytes - at), ROLL_DUMP_TEXT, NULL};
    }
    snprintf(title, sizeof(title), "definition: %s %" PRIu32, def_name(def->type), def->id);
    roll_dump_thing(d, "definition", title, offset, entry, bytes, fields, n);
}

int roll_dump_defs(struct roll_dump *d, uint64_t offset, const void *data, size_t bytes)
{
    size_t at = 0;
    int err = 0;
    while (at < bytes) {
        struct roll_def def;
        size_t begin = at;
        err = roll_def_decode(data, bytes, &at, &def);
        if (err == ROLL_E_NOTFOUND) {
            return 0;
        }
        if (err != 0) {
            roll_dump_note(d, "error", "definitions end at offset 0x%08" PRIx64 ": %s", offset + begin,
                           roll_strerror(err));
            return err;
        }
        dump_def(d, offset + begin, (const uint8_t *)data + begin, at - begin, &def);
    }
    return 0;
}

void roll_dump_record(struct roll_dump *d, uint64_t offset, const void *record)
{
    struct roll_record rec;
    char title[320] = "record: ";
    memcpy(&rec, record, sizeof(rec));
    roll_record_format(&rec, title + 8, sizeof(title) - 8);
    roll_dump_thing(d, "record", title, offset, record, sizeof(rec), record_fields, COUNT(record_fields));
    d->printed++;
}

void roll_dump_ring_header(struct roll_dump *d, uint64_t offset, const void *data)
{
    roll_dump_thing(d, "ring-header", "ring header", offset, data, ROLL_RING_HEADER_BYTES, header_fields,
                    COUNT(header_fields));
}

int roll_dump_ring(struct roll_dump *d, const void *data, size_t bytes)
{
    struct roll_ring ring;
    int err = roll_ring_view(data, bytes, &ring);
    if (err != 0) {
        return err;
    }
    const struct roll_ring_header *h = ring.header;
    uint64_t capacity = ring.mask + 1;
    uint64_t head = roll_ring_head(&ring);
    uint64_t used = atomic_load_explicit(&ring.header->defs_used, memory_order_acquire);
    uint64_t first = head > capacity ? head - capacity : 0;

    roll_dump_note(d, "file", "ring file, %zu bytes: %" PRIu64 " calls recorded, the last %" PRIu64 " are here", bytes,
                   head, head - first);
    roll_dump_ring_header(d, 0, data);
    err = roll_dump_defs(d, h->defs_offset, ring.defs, used < h->defs_bytes ? (size_t)used : (size_t)h->defs_bytes);
    if (d->limit != 0 && head - first > d->limit) {
        first = head - d->limit;
    }
    uint64_t unfinished = 0;
    for (uint64_t t = first; t < head; t++) {
        struct roll_record rec;
        uint64_t slot = t & ring.mask;
        if (roll_ring_get(&ring, t, &rec) != 0) {
            unfinished++;
            continue;
        }
        roll_dump_record(d, h->records_offset + slot * ROLL_RECORD_BYTES, &rec);
    }
    if (unfinished > 0) {
        roll_dump_note(d, "note", "%" PRIu64 " slots were reserved and never filled", unfinished);
    }
    roll_ring_close(&ring);
    return err;
}

#define P struct roll_control
static const struct roll_dump_field control_fields[] = {
    FIELD(P, magic, ROLL_DUMP_TEXT),       FIELD(P, version, ROLL_DUMP_UINT),
    FIELD(P, oldest, ROLL_DUMP_UINT),      FIELD(P, bytes, ROLL_DUMP_UINT),
    FIELD(P, generation, ROLL_DUMP_UINT),  NAMED(P, policy, roll_policy_name),
    FIELD(P, on, ROLL_DUMP_HEX),           FIELD(P, auto_local, ROLL_DUMP_HEX),
    FIELD(P, agent_pid, ROLL_DUMP_UINT),   FIELD(P, agent_seen_ns, ROLL_DUMP_UINT),
    FIELD(P, policy_told, ROLL_DUMP_UINT),
};
#undef P
static const struct roll_dump_field control_layer_fields[] = {{"on", 0, 4, ROLL_DUMP_HEX, NULL},
                                                              {"off", 4, 4, ROLL_DUMP_HEX, NULL}};
static const struct roll_dump_field control_group_fields[] = {
    {"comm_key", 0, 8, ROLL_DUMP_HEX, NULL}, {"on", 8, 4, ROLL_DUMP_HEX, NULL}, {"off", 12, 4, ROLL_DUMP_HEX, NULL}};

/* Shows the entries of a table in the control page that are not all zero. */
static void dump_entries(struct roll_dump *d, const char *what, const uint8_t *page, size_t at, size_t bytes, size_t n,
                         const struct roll_dump_field *fields, size_t field_count)
{
    static const uint8_t zero[16];
    for (size_t i = 0; i < n; i++) {
        char kind[32], title[64];
        if (memcmp(page + at + i * bytes, zero, bytes) == 0) {
            continue;
        }
        snprintf(kind, sizeof(kind), "control-%s", what);
        snprintf(title, sizeof(title), "%s %zu", what, i);
        roll_dump_thing(d, kind, title, at + i * bytes, page + at + i * bytes, bytes, fields, field_count);
    }
}

int roll_dump_control(struct roll_dump *d, const void *data, size_t bytes)
{
    int err = roll_control_check(data, bytes);
    if (err != 0) {
        return err;
    }
    roll_dump_note(d, "file", "control page, %zu bytes", bytes);
    roll_dump_thing(d, "control", "control page", 0, data, offsetof(struct roll_control, layer), control_fields,
                    COUNT(control_fields));
    dump_entries(d, "layer", data, offsetof(struct roll_control, layer), 8, ROLL_CONTROL_LAYERS, control_layer_fields,
                 COUNT(control_layer_fields));
    dump_entries(d, "group", data, offsetof(struct roll_control, group), 16, ROLL_CONTROL_GROUPS, control_group_fields,
                 COUNT(control_group_fields));
    return 0;
}
