/*
 * rdig.c: see rdig.h. To write sections to the file one by one was rejected: its checksum stands in front, so that a
 * reader knows before it begins whether the file is whole, and what a node has to say fits into memory.
 */
#include "daemon/digest/rdig.h"

#include "daemon/base/array.h"
#include "trace/err.h"
#include "trace/frame.h"

#include <string.h>

#define PARTS 8u

struct part {
    const void *at;
    uint64_t bytes;
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* The sizes of the parts by the section's head, in their order. */
static void parts_of(const struct roll_rdig_section *s, struct part part[PARTS])
{
    const uint64_t bytes[PARTS] = {(uint64_t)s->rings * sizeof(struct roll_rdig_ring),
                                   (uint64_t)s->comms * sizeof(struct roll_rdig_comm),
                                   (uint64_t)s->spans * sizeof(struct roll_span),
                                   s->name_bytes,
                                   s->path_bytes,
                                   s->digest_bytes,
                                   s->head_bytes,
                                   s->trace_bytes};
    for (unsigned i = 0; i < PARTS; i++) {
        part[i].bytes = bytes[i];
    }
}

/* writing */

static int grow(struct roll_rdig_out *out, uint64_t bytes)
{
    if (bytes > ROLL_RDIG_MOST || out->used + bytes > ROLL_RDIG_MOST) {
        return ROLL_E_LIMIT;
    }
    int err = ROLL_GROW(out->bytes, out->room, out->used + (size_t)bytes);
    if (err == 0) {
        memset(out->bytes + out->used, 0, (size_t)bytes);
    }
    return err;
}

static int begin(struct roll_rdig_out *out)
{
    int err = out->used == 0 ? grow(out, sizeof(struct roll_rdig_head)) : 0;
    out->used += out->used == 0 && err == 0 ? sizeof(struct roll_rdig_head) : 0;
    return err;
}

int roll_rdig_add(struct roll_rdig_out *out, const struct roll_rdig_view *v)
{
    struct part part[PARTS] = {{v->rings, 0}, {v->comms, 0},  {v->spans, 0}, {v->name, 0},
                               {v->path, 0},  {v->digest, 0}, {v->head, 0},  {v->trace, 0}};
    struct roll_rdig_section is = v->is;
    int err = begin(out);
    parts_of(&is, part);
    is.bytes = sizeof(is);
    for (unsigned i = 0; i < PARTS; i++) {
        is.bytes = part[i].bytes > ROLL_RDIG_MOST ? UINT64_MAX / 2 : is.bytes + padded(part[i].bytes);
    }
    err = err ? err : grow(out, is.bytes);
    if (err) {
        return err;
    }
    uint8_t *at = out->bytes + out->used;
    memcpy(at, &is, sizeof(is));
    at += sizeof(is);
    for (unsigned i = 0; i < PARTS; i++) {
        if (part[i].bytes > 0) {
            memcpy(at, part[i].at, (size_t)part[i].bytes);
        }
        at += padded(part[i].bytes);
    }
    out->used += (size_t)is.bytes;
    out->sections++;
    return 0;
}

int roll_rdig_seal(struct roll_rdig_out *out)
{
    int err = begin(out);
    if (err) {
        return err;
    }
    struct roll_rdig_head head = {
        .version = ROLL_RDIG_VERSION, .oldest = ROLL_RDIG_NEEDS, .sections = out->sections, .bytes = out->used};
    memcpy(head.magic, ROLL_RDIG_MAGIC, sizeof(head.magic));
    memcpy(out->bytes, &head, sizeof(head));
    head.crc = roll_crc32c(0, out->bytes, out->used);
    memcpy(out->bytes, &head, sizeof(head));
    return 0;
}

void roll_rdig_fini(struct roll_rdig_out *out)
{
    free(out->bytes);
    *out = (struct roll_rdig_out){0};
}

/* reading */

int roll_rdig_check(const void *data, size_t bytes, uint32_t *sections)
{
    struct roll_rdig_head head;
    if (bytes < sizeof(head)) {
        return ROLL_E_SHORT;
    }
    memcpy(&head, data, sizeof(head));
    if (memcmp(head.magic, ROLL_RDIG_MAGIC, sizeof(head.magic)) != 0) {
        return ROLL_E_MAGIC;
    }
    if (head.oldest > ROLL_RDIG_VERSION || head.version < ROLL_RDIG_OLDEST) {
        return ROLL_E_VERSION;
    }
    if (head.bytes != bytes) {
        return head.bytes > bytes ? ROLL_E_SHORT : ROLL_E_SIZE;
    }
    uint32_t crc = head.crc;
    head.crc = 0;
    const uint8_t *rest = (const uint8_t *)data + sizeof(head);
    if (roll_crc32c(roll_crc32c(0, &head, sizeof(head)), rest, bytes - sizeof(head)) != crc) {
        return ROLL_E_CHECKSUM;
    }
    *sections = head.sections;
    return 0;
}

static bool is_text(const char *field, size_t bytes)
{
    return memchr(field, '\0', bytes) != NULL;
}

static bool is_plain(const struct roll_rdig_section *s)
{
    bool range = s->kind == ROLL_RDIG_RANGE;
    return s->kind >= ROLL_RDIG_END && s->kind <= ROLL_RDIG_RANGE && s->job[0] != '\0' &&
           is_text(s->job, sizeof(s->job)) && is_text(s->host, sizeof(s->host)) && s->seq <= s->last &&
           s->name_bytes < ROLL_RDIG_TEXT && s->path_bytes < ROLL_RDIG_TEXT &&
           (range ? s->trace_bytes == 0 : s->head_bytes > 0 && s->trace_bytes > 0);
}

static bool are_rings(const struct roll_rdig_view *v)
{
    for (uint32_t i = 0; i < v->is.rings; i++) {
        struct roll_rdig_ring r;
        roll_rdig_ring(v, i, &r);
        if (r.epoch == 0 || r.begin > r.next || r.proc_state < ROLL_PROC_RUNNING || r.proc_state > ROLL_PROC_DEAD) {
            return false;
        }
    }
    return true;
}

static bool are_comms(const struct roll_rdig_view *v)
{
    uint64_t spans = 0;
    for (uint32_t i = 0; i < v->is.comms; i++) {
        struct roll_rdig_comm c;
        roll_rdig_comm(v, i, &c);
        spans += c.spans;
        if (c.size == 0 || c.members == 0 || c.members > c.size || spans > v->is.spans) {
            return false;
        }
    }
    return spans == v->is.spans;
}

/* How much of a section's head the file has: what a later version has added is not in it. */
static size_t head_of(const void *data)
{
    struct roll_rdig_head head;
    memcpy(&head, data, sizeof(head));
    return head.version >= 2 ? sizeof(struct roll_rdig_section) : ROLL_RDIG_SECTION_1;
}

int roll_rdig_next(const void *data, size_t bytes, size_t *at, struct roll_rdig_view *out)
{
    struct part part[PARTS];
    size_t head = head_of(data);
    *at = *at == 0 ? sizeof(struct roll_rdig_head) : *at;
    if (*at >= bytes) {
        return ROLL_E_NOTFOUND;
    }
    const uint8_t *from = (const uint8_t *)data + *at;
    size_t left = bytes - *at;
    if (left < head) {
        return ROLL_E_CORRUPT;
    }
    out->is = (struct roll_rdig_section){0};
    memcpy(&out->is, from, head);
    if (out->is.bytes > left || out->is.bytes < head || !is_plain(&out->is)) {
        return ROLL_E_CORRUPT;
    }
    uint64_t end = head;
    parts_of(&out->is, part);
    for (unsigned i = 0; i < PARTS; i++) {
        if (part[i].bytes > left || end + padded(part[i].bytes) > out->is.bytes) {
            return ROLL_E_CORRUPT;
        }
        part[i].at = from + end;
        end += padded(part[i].bytes);
    }
    out->rings = part[0].at;
    out->comms = part[1].at;
    out->spans = part[2].at;
    out->name = part[3].at;
    out->path = part[4].at;
    out->digest = part[5].at;
    out->head = part[6].at;
    out->trace = part[7].at;
    *at += (size_t)out->is.bytes;
    return end == out->is.bytes && are_rings(out) && are_comms(out) ? 0 : ROLL_E_CORRUPT;
}

void roll_rdig_ring(const struct roll_rdig_view *v, uint32_t i, struct roll_rdig_ring *out)
{
    memcpy(out, (const uint8_t *)v->rings + (size_t)i * sizeof(*out), sizeof(*out));
}

void roll_rdig_comm(const struct roll_rdig_view *v, uint32_t i, struct roll_rdig_comm *out)
{
    memcpy(out, (const uint8_t *)v->comms + (size_t)i * sizeof(*out), sizeof(*out));
}

void roll_rdig_spans(const struct roll_rdig_view *v, uint32_t first, uint32_t n, struct roll_span *out)
{
    if (n > 0) {
        memcpy(out, (const uint8_t *)v->spans + (size_t)first * sizeof(*out), (size_t)n * sizeof(*out));
    }
}
