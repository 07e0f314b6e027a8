/*
 * def.c: appends definitions to a ring's area and decodes them again.
 *
 * The writer's order is reserve, fill, seal; the seal's release store pairs with the acquire load in roll_def_decode,
 * so a sealed entry is whole. A lock per area was rejected: a thread that is killed while holding it would stop the
 * rest.
 */
#include "trace/def.h"
#include "trace/err.h"

#include <string.h>

#define RANKS_LIMIT (1 << 24)

static size_t round_up_8(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

int roll_def_append(struct roll_ring *ring, enum roll_def_type type, uint32_t id, const void *body, size_t body_bytes,
                    const void *tail, size_t tail_bytes)
{
    if (body_bytes > ROLL_DEF_MAX_BYTES || tail_bytes > ROLL_DEF_MAX_BYTES) {
        return ROLL_E_LIMIT;
    }
    size_t bytes = round_up_8(sizeof(struct roll_def_head) + body_bytes + tail_bytes);
    if (bytes > ROLL_DEF_MAX_BYTES) {
        return ROLL_E_LIMIT;
    }
    uint64_t area = ring->header->defs_bytes;
    uint64_t at = atomic_fetch_add_explicit(&ring->header->defs_used, bytes, memory_order_relaxed);
    if (at > area || bytes > area - at) {
        atomic_fetch_add_explicit(&ring->header->losses[ROLL_LOSS_DEFS_FULL], 1, memory_order_relaxed);
        return ROLL_E_LIMIT;
    }
    struct roll_def_head *head = (struct roll_def_head *)(void *)(ring->defs + at);
    uint8_t *out = (uint8_t *)(head + 1);
    head->bytes = (uint32_t)bytes;
    head->id = id;
    head->reserved = 0;
    if (body_bytes > 0) {
        memcpy(out, body, body_bytes);
    }
    if (tail_bytes > 0) {
        memcpy(out + body_bytes, tail, tail_bytes);
    }
    memset(out + body_bytes + tail_bytes, 0, bytes - sizeof(*head) - body_bytes - tail_bytes);
    __atomic_store_n(&head->seal, ROLL_DEF_SEAL | (uint32_t)type, __ATOMIC_RELEASE);
    return ROLL_OK;
}

bool roll_def_is_roomy(const struct roll_ring *ring)
{
    uint64_t area = ring->header->defs_bytes;
    return atomic_load_explicit(&ring->header->defs_used, memory_order_relaxed) < area - area / 4;
}

/* A mapped area is aligned, and another process may be writing it; a frame's payload may be unaligned and does not
 * change. */
static uint32_t load_seal(const uint8_t *p)
{
    uint32_t seal;
    if (((uintptr_t)p & 3) == 0) {
        return __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_ACQUIRE);
    }
    memcpy(&seal, p, sizeof(seal));
    return seal;
}

/* Copies the fixed part and finds the label behind it, whose length is a field of that part. */
static int decode_comm(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_comm *info = &out->comm.info;
    if (bytes < sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(info, body, sizeof(*info));
    if (info->label_bytes > bytes - sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    if (info->key == 0 || info->nranks < 1 || info->nranks > RANKS_LIMIT || info->rank < 0 ||
        info->rank >= info->nranks || info->origin < ROLL_COMM_INIT || info->origin > ROLL_COMM_GROW) {
        return ROLL_E_CORRUPT;
    }
    out->comm.label = (const char *)body + sizeof(*info);
    return ROLL_OK;
}

static int decode_callsite(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_callsite info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.depth > ROLL_CALLSITE_DEPTH || info.lines > ROLL_CALLSITE_LINES) {
        return ROLL_E_SIZE;
    }
    size_t pcs = info.depth * sizeof(out->callsite.pc[0]), lines = info.lines * sizeof(out->callsite.line[0]);
    if (pcs + lines > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->callsite.depth = info.depth;
    out->callsite.lines = info.lines;
    memcpy(out->callsite.pc, body + sizeof(info), pcs);
    memcpy(out->callsite.line, body + sizeof(info) + pcs, lines);
    return ROLL_OK;
}

static int decode_module(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_module *info = &out->module.info;
    if (bytes < sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(info, body, sizeof(*info));
    if (info->path_bytes > bytes - sizeof(*info) || info->build_id_bytes > sizeof(info->build_id)) {
        return ROLL_E_SIZE;
    }
    if (info->start >= info->end) {
        return ROLL_E_CORRUPT;
    }
    out->module.path = (const char *)body + sizeof(*info);
    return ROLL_OK;
}

static int decode_stream(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    if (bytes < sizeof(out->stream)) {
        return ROLL_E_SIZE;
    }
    memcpy(&out->stream, body, sizeof(out->stream));
    return ROLL_OK;
}

static int decode_thread(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_thread info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.name_bytes > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->thread.tid = info.tid;
    out->thread.name = (const char *)body + sizeof(info);
    out->thread.name_bytes = info.name_bytes;
    return ROLL_OK;
}

static int decode_layer(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_layer info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.name_bytes > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->layer.name = (const char *)body + sizeof(info);
    out->layer.name_bytes = info.name_bytes;
    return ROLL_OK;
}

static int decode_graph(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_graph *info = &out->graph.info;
    if (bytes < sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(info, body, sizeof(*info));
    if (info->parts > ROLL_GRAPH_PARTS || info->parts * sizeof(struct roll_graph_part) > bytes - sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(out->graph.part, body + sizeof(*info), info->parts * sizeof(struct roll_graph_part));
    for (uint32_t i = 0; i < info->parts; i++) {
        if ((out->graph.part[i].hash == 0) != (out->graph.part[i].collectives == 0)) {
            return ROLL_E_CORRUPT;
        }
    }
    return ROLL_OK;
}

static int decode_source(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_source info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.path_bytes > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->source.path = (const char *)body + sizeof(info);
    out->source.path_bytes = info.path_bytes;
    return ROLL_OK;
}

static int decode_line(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_line *info = &out->line.info;
    if (bytes < sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(info, body, sizeof(*info));
    if (info->function_bytes > bytes - sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    out->line.function = (const char *)body + sizeof(*info);
    return ROLL_OK;
}

static int decode_stand(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_stand info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.lines > ROLL_CALLSITE_LINES || info.lines * sizeof(out->stand.line[0]) > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->stand.lines = info.lines;
    memcpy(out->stand.line, body + sizeof(info), info.lines * sizeof(out->stand.line[0]));
    return ROLL_OK;
}

static int decode_text(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_text info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.text_bytes > ROLL_TEXT_BYTES || info.text_bytes > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    out->text.text = (const char *)body + sizeof(info);
    out->text.text_bytes = info.text_bytes;
    return ROLL_OK;
}

static int decode_name(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_name *info = &out->name.info;
    if (bytes < sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    memcpy(info, body, sizeof(*info));
    size_t texts = (size_t)info->label_bytes + info->text_bytes + info->file_bytes + info->function_bytes;
    if (texts > bytes - sizeof(*info)) {
        return ROLL_E_SIZE;
    }
    out->name.label = (const char *)body + sizeof(*info);
    out->name.text = out->name.label + info->label_bytes;
    out->name.file = out->name.text + info->text_bytes;
    out->name.function = out->name.file + info->file_bytes;
    return ROLL_OK;
}

static int decode_sites(const uint8_t *body, size_t bytes, struct roll_def *out)
{
    struct roll_def_sites info;
    if (bytes < sizeof(info)) {
        return ROLL_E_SIZE;
    }
    memcpy(&info, body, sizeof(info));
    if (info.sites > ROLL_SITES_MOST || info.sites * sizeof(struct roll_site_number) > bytes - sizeof(info)) {
        return ROLL_E_SIZE;
    }
    if (info.first == 0 || info.first > UINT16_MAX || info.sites > UINT16_MAX + 1u - info.first) {
        return ROLL_E_CORRUPT;
    }
    out->sites.sites = info.sites;
    out->sites.first = info.first;
    out->sites.number = body + sizeof(info);
    return ROLL_OK;
}

bool roll_def_site_number(const struct roll_def *def, uint32_t i, uint32_t *id, struct roll_site_number *out)
{
    if (def->type != ROLL_DEF_SITES || i >= def->sites.sites) {
        return false;
    }
    *id = def->sites.first + i;
    memcpy(out, def->sites.number + i * sizeof(*out), sizeof(*out));
    return true;
}

typedef int body_decoder(const uint8_t *body, size_t bytes, struct roll_def *out);
static body_decoder *const body_decoders[] = {
    [ROLL_DEF_COMM] = decode_comm,     [ROLL_DEF_CALLSITE] = decode_callsite, [ROLL_DEF_MODULE] = decode_module,
    [ROLL_DEF_STREAM] = decode_stream, [ROLL_DEF_THREAD] = decode_thread,     [ROLL_DEF_LAYER] = decode_layer,
    [ROLL_DEF_GRAPH] = decode_graph,   [ROLL_DEF_SOURCE] = decode_source,     [ROLL_DEF_LINE] = decode_line,
    [ROLL_DEF_STAND] = decode_stand,   [ROLL_DEF_TEXT] = decode_text,         [ROLL_DEF_NAME] = decode_name,
    [ROLL_DEF_SITES] = decode_sites,
};

/* Fewer bytes than a head are the unused end of an area when they are zero, else the beginning of a cut entry. */
static int end_of_area(const uint8_t *p, size_t left)
{
    for (size_t i = 0; i < left; i++) {
        if (p[i] != 0) {
            return ROLL_E_SHORT;
        }
    }
    return ROLL_E_NOTFOUND;
}

int roll_def_decode(const void *data, size_t bytes, size_t *offset, struct roll_def *out)
{
    if (*offset > bytes) {
        return ROLL_E_SHORT;
    }
    const uint8_t *p = (const uint8_t *)data + *offset;
    size_t left = bytes - *offset;
    struct roll_def_head head;
    if (left < sizeof(head)) {
        return end_of_area(p, left);
    }
    uint32_t seal = load_seal(p);
    if (seal == 0) {
        return ROLL_E_NOTFOUND;
    }
    memcpy(&head, p, sizeof(head));
    uint32_t type = seal & 0xffff;
    if ((seal & 0xffff0000u) != ROLL_DEF_SEAL || type == 0 || head.id == 0 || head.id > UINT16_MAX ||
        head.reserved != 0) {
        return ROLL_E_CORRUPT;
    }
    if (head.bytes < sizeof(head) || head.bytes % 8 != 0 || head.bytes > ROLL_DEF_MAX_BYTES) {
        return ROLL_E_SIZE;
    }
    if (head.bytes > left) {
        return ROLL_E_SHORT;
    }
    *out = (struct roll_def){.type = (enum roll_def_type)type, .id = head.id};
    if (type < sizeof(body_decoders) / sizeof(body_decoders[0])) {
        int err = body_decoders[type](p + sizeof(head), head.bytes - sizeof(head), out);
        if (err < 0) {
            return err;
        }
    }
    *offset += head.bytes;
    return ROLL_OK;
}
