/*
 * write.c: an expectation as a file: one JSON object, a line for each call, sequence and kind of communicators, so that
 * the file can be kept beside the program and its changes can be read.
 *
 * What is equal is written once: calls and sequences by number, communicators by kind (the same size, origin and calls)
 * with a list of their labels and members; PyTorch gives each communicator a label of its own. The file of 16,384 ranks
 * is then a few MB.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/expect/expect.h"
#include "trace/ident.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Writes an element (taken) of an array as a line. */
static int put(FILE *out, size_t i, json_t *element)
{
    char *text = element != NULL ? json_dumps(element, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    int err = text != NULL ? 0 : ROLL_E_NOMEM;
    if (err == 0) {
        fprintf(out, "%s%s", i > 0 ? ",\n" : "\n", text);
    }
    free(text);
    json_decref(element);
    return err;
}

static json_t *call_json(const struct roll_expected_call *call)
{
    json_t *out = json_pack("{s:s}", "op", roll_op_name(call->op));
    if (call->dtype != ROLL_DTYPE_NONE) {
        json_object_set_new(out, "dtype", json_string(roll_dtype_name(call->dtype)));
    }
    if (call->redop != ROLL_RED_NONE) {
        json_object_set_new(out, "redop", json_string(roll_redop_name(call->redop)));
    }
    if (call->count != ROLL_EXPECTED_ANY) {
        json_object_set_new(out, "count", json_integer((json_int_t)call->count));
    }
    if (call->peer >= 0) {
        bool message = roll_op_class(call->op) == ROLL_CLASS_P2P;
        json_object_set_new(out, message ? "ahead" : "root", json_integer(call->peer));
    }
    if (call->captured) {
        json_object_set_new(out, "captured", json_true());
    }
    return out;
}

static json_t *sequence_json(const struct roll_expected *x, const struct roll_expected_sequence *s)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < s->parts; i++) {
        const struct roll_expected_part *part = &x->part[s->first + i];
        json_t *calls = json_array();
        for (uint32_t k = 0; k < part->calls; k++) {
            json_array_append_new(calls, json_integer(x->item[part->first + k]));
        }
        json_array_append_new(out, json_pack("[i,o]", (int)part->times, calls));
    }
    return out;
}

/* The label of a communicator and its members: a folded text where their order is that of the job, else one by one. */
static json_t *members_json(const struct roll_expected *x, const struct roll_expected_comm *comm)
{
    const struct roll_expected_member *m = &x->member[comm->first];
    struct roll_rankset set = {0};
    bool rises = true;
    json_t *out = NULL;
    for (uint32_t r = 0; r < comm->size && rises; r++) {
        rises = (r == 0 || m[r].world > m[r - 1].world) && roll_rankset_add(&set, m[r].world) == 0;
    }
    if (rises) {
        out = roll_ranks_text_json(&set);
    } else {
        out = json_array();
        for (uint32_t r = 0; r < comm->size; r++) {
            json_array_append_new(out, json_integer(m[r].world));
        }
    }
    roll_rankset_fini(&set);
    return json_pack("[o,o]", roll_text_to_json(comm->label), out);
}

/* Which ranks of the communicator do what. */
static json_t *does_json(const struct roll_expected *x, const struct roll_expected_comm *comm)
{
    struct kind {
        uint32_t sequence, nth;
        struct roll_rankset ranks;
    } *kind = NULL;
    size_t kinds = 0, room = 0;
    json_t *out = json_array();
    for (uint32_t r = 0; r < comm->size && out != NULL; r++) {
        const struct roll_expected_member *m = &x->member[comm->first + r];
        size_t i = 0;
        while (i < kinds && (kind[i].sequence != m->sequence || kind[i].nth != m->nth)) {
            i++;
        }
        if (i == kinds && ROLL_GROW(kind, room, kinds + 1) == 0) {
            kind[kinds++] = (struct kind){.sequence = m->sequence, .nth = m->nth};
        }
        if (i == kinds || roll_rankset_add(&kind[i].ranks, r) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    for (size_t i = 0; i < kinds; i++) {
        if (out != NULL) {
            json_array_append_new(out, json_pack("[o,i,i]", roll_ranks_text_json(&kind[i].ranks), (int)kind[i].sequence,
                                                 (int)kind[i].nth));
        }
        roll_rankset_fini(&kind[i].ranks);
    }
    free(kind);
    return out;
}

/* One kind of communicators. */
struct group {
    char *text; /* owned: what its communicators have in common */
    json_t *kind, *members;
};

static json_t *common_json(const struct roll_expected *x, const struct roll_expected_comm *comm)
{
    json_t *out = json_pack("{s:s,s:o,s:i,s:b,s:o}", "role", comm->role, "made", roll_text_to_json(comm->made), "size",
                            (int)comm->size, "messages", (int)comm->messages, "does", does_json(x, comm));
    if (out != NULL && comm->name[0] != '\0') {
        json_object_set_new(out, "name", roll_text_to_json(comm->name));
    }
    return out;
}

static int put_comms(const struct roll_expected *x, FILE *out)
{
    struct group *group = NULL;
    size_t groups = 0, room = 0;
    struct roll_map at = {0};
    int err = 0;
    for (uint32_t c = 0; c < x->comms && err == 0; c++) {
        json_t *kind = common_json(x, &x->comm[c]);
        char *text = kind != NULL ? json_dumps(kind, JSON_COMPACT) : NULL;
        uint64_t key = text != NULL ? roll_hash64(0, text, strlen(text)) : 0;
        size_t step = 0;
        uint32_t i = ROLL_MAP_NONE;
        while (text != NULL && (i = roll_map_each(&at, key, &step)) != ROLL_MAP_NONE &&
               strcmp(group[i].text, text) != 0) {
        }
        err = text != NULL ? 0 : ROLL_E_NOMEM;
        if (err == 0 && i == ROLL_MAP_NONE) {
            i = (uint32_t)groups;
            err = ROLL_GROW(group, room, groups + 1);
            err = err == 0 ? roll_map_add(&at, key, i) : err;
            if (err == 0) {
                group[groups++] = (struct group){text, json_incref(kind), json_array()};
                text = NULL;
            }
        }
        if (err == 0 && json_array_append_new(group[i].members, members_json(x, &x->comm[c])) != 0) {
            err = ROLL_E_NOMEM;
        }
        free(text);
        json_decref(kind);
    }
    for (size_t i = 0; i < groups; i++) {
        if (err == 0) {
            json_object_set(group[i].kind, "members", group[i].members);
            err = put(out, i, json_incref(group[i].kind));
        }
        free(group[i].text);
        json_decref(group[i].kind);
        json_decref(group[i].members);
    }
    free(group);
    roll_map_fini(&at);
    return err;
}

/* The device memory by ranks: [["0-3", bytes], ...]. */
static int put_memory(const struct roll_expected *x, FILE *out)
{
    size_t written = 0;
    int err = 0;
    for (uint32_t i = 0, end; i < x->ranks && err == 0; i = end) {
        char text[32];
        end = i + 1;
        while (end < x->ranks && x->device_bytes[end] == x->device_bytes[i]) {
            end++;
        }
        if (x->device_bytes[i] > 0) {
            snprintf(text, sizeof(text), end > i + 1 ? "%u-%u" : "%u", i, end - 1);
            err = put(out, written++, json_pack("[s,I]", text, (json_int_t)x->device_bytes[i]));
        }
    }
    return err;
}

static int put_all(const struct roll_expected *x, FILE *out)
{
    int err = 0;
    fprintf(out, "{\"schema\":\"%s\",\"ranks\":%u,\"steps\":%llu,\n\"calls\":[", ROLL_EXPECTED_SCHEMA, x->ranks,
            (unsigned long long)x->steps);
    for (uint32_t i = 0; i < x->calls && err == 0; i++) {
        err = put(out, i, call_json(&x->call[i]));
    }
    fputs("],\n\"sequences\":[", out);
    for (uint32_t i = 0; i < x->sequences && err == 0; i++) {
        err = put(out, i, sequence_json(x, &x->sequence[i]));
    }
    fputs("],\n\"communicators\":[", out);
    err = err == 0 ? put_comms(x, out) : err;
    fputs("],\n\"memory\":[", out);
    err = err == 0 ? put_memory(x, out) : err;
    fputs("]}\n", out);
    return err;
}

/* A file of another name first: whoever reads meets the old file or the new one, and never half of one. */
static int replace(const char *path, const char *text, size_t bytes)
{
    char other[PATH_MAX];
    if (snprintf(other, sizeof(other), "%s.%d.tmp", path, (int)getpid()) >= (int)sizeof(other)) {
        errno = ENAMETOOLONG;
        return ROLL_E_IO;
    }
    int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return ROLL_E_IO;
    }
    bool whole = roll_write_all(fd, text, bytes) == bytes && fsync(fd) == 0;
    int number = whole ? 0 : errno;
    if (close(fd) != 0 && whole) {
        number = errno;
    }
    if (number == 0 && rename(other, path) != 0) {
        number = errno;
    }
    if (number != 0) {
        unlink(other);
        errno = number;
    }
    return number == 0 ? 0 : ROLL_E_IO;
}

int roll_expected_write(const struct roll_expected *expected, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    int err = out != NULL ? put_all(expected, out) : ROLL_E_NOMEM;
    if (out != NULL && (fclose(out) != 0 || text == NULL)) {
        err = ROLL_E_NOMEM;
    }
    err = err == 0 && bytes > ROLL_EXPECTED_BYTES ? ROLL_E_SIZE : err;
    err = err == 0 ? replace(path, text, bytes) : err;
    free(text);
    return err;
}
