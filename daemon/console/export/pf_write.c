/*
 * pf_write.c: see pf_write.h. All packets are of one sequence, so a name is interned once for the whole file.
 */
#include "daemon/console/export/pf_write.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/console/export/out.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <pftrace.pb-c.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEQUENCE      1u
#define STATE_CLEARED 1u
#define STATE_NEEDED  2u
#define CLOCK_REAL    1u
#define CLOCK_BOOT    6u
#define PACKET_FIELD  0x0a /* field 1, bytes: a packet of the trace */
#define BUFFER_BYTES  (1u << 20)

struct roll_pf {
    FILE *out;
    char *buffer; /* of `out` */
    uint8_t *packed;
    size_t room;
    struct names {
        struct roll_map at; /* hash of a name -> its place here */
        char **text;        /* owned, as are the texts: hashes of hostile names may be alike */
        size_t used, room;
    } names[ROLL_PF_SPACES];
    bool begun, dated;
    int err;
};

roll_pf_t *roll_pf_new(int fd)
{
    roll_pf_t *pf = calloc(1, sizeof(*pf));
    int own = pf != NULL ? dup(fd) : -1;
    if (pf != NULL) {
        pf->out = own >= 0 ? fdopen(own, "w") : NULL;
        pf->buffer = malloc(BUFFER_BYTES);
    }
    if (pf == NULL || pf->out == NULL || pf->buffer == NULL) {
        if (own >= 0 && pf->out == NULL) {
            close(own);
        }
        if (pf != NULL) {
            (void)roll_pf_end(&pf);
        }
        return NULL;
    }
    setvbuf(pf->out, pf->buffer, _IOFBF, BUFFER_BYTES);
    return pf;
}

int roll_pf_error(const roll_pf_t *pf)
{
    return pf->err;
}

int roll_pf_end(roll_pf_t **pointer)
{
    roll_pf_t *pf = *pointer;
    *pointer = NULL;
    int err = pf->err;
    if (pf->out != NULL && fclose(pf->out) != 0 && err == 0) {
        err = roll_out_error(errno);
    }
    for (unsigned i = 0; i < ROLL_PF_SPACES; i++) {
        for (size_t k = 0; k < pf->names[i].used; k++) {
            free(pf->names[i].text[k]);
        }
        free(pf->names[i].text);
        roll_map_fini(&pf->names[i].at);
    }
    free(pf->buffer);
    free(pf->packed);
    free(pf);
    return err;
}

static void put(roll_pf_t *pf, Roll__Pf__Packet *packet)
{
    uint8_t head[12] = {PACKET_FIELD};
    size_t used = 1;
    packet->has_trusted_packet_sequence_id = packet->has_sequence_flags = 1;
    packet->trusted_packet_sequence_id = SEQUENCE;
    packet->sequence_flags = pf->begun ? STATE_NEEDED : STATE_CLEARED;
    size_t bytes = pf->err == 0 ? protobuf_c_message_get_packed_size(&packet->base) : 0;
    pf->err = pf->err == 0 && bytes == 0 ? ROLL_E_UNSUPPORTED : pf->err; /* the library could not be loaded */
    pf->err = pf->err != 0 ? pf->err : ROLL_GROW(pf->packed, pf->room, bytes);
    if (pf->err != 0) {
        return;
    }
    pf->begun = true;
    for (size_t n = bytes; (head[used++] = (uint8_t)((n & 0x7f) | (n > 0x7f ? 0x80 : 0))) > 0x7f; n >>= 7) {
    }
    bytes = protobuf_c_message_pack(&packet->base, pf->packed);
    if (fwrite(head, 1, used, pf->out) != used || fwrite(pf->packed, 1, bytes, pf->out) != bytes) {
        pf->err = roll_out_error(errno);
    }
}

/* Says that the times of this trace are those of the wall clock. */
static void date(roll_pf_t *pf, uint64_t time_ns)
{
    Roll__Pf__ClockSnapshot__Clock boot = ROLL__PF__CLOCK_SNAPSHOT__CLOCK__INIT;
    boot.has_clock_id = boot.has_timestamp = 1;
    boot.clock_id = CLOCK_BOOT;
    boot.timestamp = time_ns;
    Roll__Pf__ClockSnapshot__Clock real = boot, *both[] = {&boot, &real};
    real.clock_id = CLOCK_REAL;
    Roll__Pf__ClockSnapshot snapshot = ROLL__PF__CLOCK_SNAPSHOT__INIT;
    snapshot.n_clocks = 2;
    snapshot.clocks = both;
    Roll__Pf__Packet packet = ROLL__PF__PACKET__INIT;
    packet.clock_snapshot = &snapshot;
    pf->dated = true;
    put(pf, &packet);
}

static void write_name(roll_pf_t *pf, enum roll_pf_space space, uint64_t number, char *text)
{
    Roll__Pf__InternedName name = ROLL__PF__INTERNED_NAME__INIT, *one = &name;
    name.has_iid = name.has_text = 1;
    name.iid = number;
    name.text.len = strlen(text);
    name.text.data = (uint8_t *)text;
    Roll__Pf__InternedData data = ROLL__PF__INTERNED_DATA__INIT;
    struct {
        size_t *n;
        Roll__Pf__InternedName ***list;
    } in[ROLL_PF_SPACES] = {
        [ROLL_PF_CATEGORY] = {&data.n_event_categories, &data.event_categories},
        [ROLL_PF_EVENT] = {&data.n_event_names, &data.event_names},
        [ROLL_PF_NOTE] = {&data.n_debug_annotation_names, &data.debug_annotation_names},
        [ROLL_PF_WORD] = {&data.n_debug_annotation_string_values, &data.debug_annotation_string_values},
    };
    *in[space].n = 1;
    *in[space].list = &one;
    Roll__Pf__Packet packet = ROLL__PF__PACKET__INIT;
    packet.interned_data = &data;
    put(pf, &packet);
}

uint64_t roll_pf_intern(roll_pf_t *pf, enum roll_pf_space space, const char *text)
{
    struct names *names = &pf->names[space];
    uint64_t hash = roll_hash64(space, text, strlen(text));
    uint32_t at;
    for (size_t step = 0; (at = roll_map_each(&names->at, hash, &step)) != ROLL_MAP_NONE;) {
        if (strcmp(names->text[at], text) == 0) {
            return (uint64_t)at + 1;
        }
    }
    int err = pf->err != 0 ? pf->err : ROLL_GROW(names->text, names->room, names->used + 1);
    err = err != 0 ? err : roll_map_reserve(&names->at);
    char *own = err == 0 ? strdup(text) : NULL;
    if (own == NULL) {
        pf->err = err != 0 ? err : ROLL_E_NOMEM;
        return 0;
    }
    (void)roll_map_add(&names->at, hash, (uint32_t)names->used);
    names->text[names->used++] = own;
    write_name(pf, space, names->used, own);
    return names->used;
}

/* protobuf-c has no texts that are const; none is written to. */
static char *borrowed(const char *text)
{
    char *out;
    memcpy(&out, &text, sizeof(out));
    return out;
}

void roll_pf_track(roll_pf_t *pf, const struct roll_pf_track *track)
{
    Roll__Pf__ProcessDescriptor process = ROLL__PF__PROCESS_DESCRIPTOR__INIT;
    Roll__Pf__TrackDescriptor descriptor = ROLL__PF__TRACK_DESCRIPTOR__INIT;
    descriptor.has_uuid = 1;
    descriptor.uuid = track->number;
    descriptor.has_parent_uuid = track->parent != 0;
    descriptor.parent_uuid = track->parent;
    descriptor.description = borrowed(track->description);
    if (track->process != 0) {
        process.has_pid = 1;
        process.pid = track->process;
        process.process_name = borrowed(track->name);
        descriptor.process = &process;
    } else {
        descriptor.name = borrowed(track->name);
    }
    Roll__Pf__Packet packet = ROLL__PF__PACKET__INIT;
    packet.track_descriptor = &descriptor;
    put(pf, &packet);
}

static void note_of(const struct roll_pf_note *from, Roll__Pf__DebugAnnotation *out)
{
    *out = (Roll__Pf__DebugAnnotation)ROLL__PF__DEBUG_ANNOTATION__INIT;
    out->has_name_iid = 1;
    out->name_iid = from->name;
    switch (from->kind) {
    case ROLL_PF_UINT:
        out->has_uint_value = 1;
        out->uint_value = from->value;
        break;
    case ROLL_PF_INT:
        out->has_int_value = 1;
        out->int_value = (int64_t)from->value;
        break;
    case ROLL_PF_BOOL:
        out->has_bool_value = 1;
        out->bool_value = from->value != 0;
        break;
    case ROLL_PF_TEXT:
        out->string_value = borrowed(from->text);
        break;
    case ROLL_PF_INTERNED:
        out->has_string_value_iid = 1;
        out->string_value_iid = from->value;
        break;
    }
}

void roll_pf_event(roll_pf_t *pf, const struct roll_pf_event *event)
{
    Roll__Pf__DebugAnnotation note[ROLL_PF_NOTES], *notes[ROLL_PF_NOTES];
    Roll__Pf__TrackEvent out = ROLL__PF__TRACK_EVENT__INIT;
    uint64_t category = event->category, flow = event->flow;
    if (!pf->dated) {
        date(pf, event->time_ns);
    }
    for (size_t i = 0; i < event->notes; i++) {
        note_of(&event->note[i], &note[i]);
        notes[i] = &note[i];
    }
    out.n_debug_annotations = event->notes;
    out.debug_annotations = notes;
    out.n_category_iids = category != 0;
    out.category_iids = &category;
    out.has_type = out.has_track_uuid = 1;
    out.type = (Roll__Pf__TrackEvent__Type)event->type;
    out.track_uuid = event->track;
    out.has_name_iid = event->name != 0;
    out.name_iid = event->name;
    out.name = borrowed(event->text);
    out.n_flow_ids = flow != 0;
    out.flow_ids = &flow;
    Roll__Pf__Packet packet = ROLL__PF__PACKET__INIT;
    packet.has_timestamp = 1;
    packet.timestamp = event->time_ns;
    packet.track_event = &out;
    put(pf, &packet);
}
