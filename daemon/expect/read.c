/*
 * read.c: an expectation from its file. The file may come from anywhere, so every number is checked before it is used,
 * and nothing is taken from a file of which a part is wrong.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/expect/expect.h"
#include "trace/rankset.h"

#include <string.h>

#define RANKS_MOST   (1u << 20)
#define MEMBERS_MOST (1u << 24)   /* of all communicators together */
#define TEXT_MOST    (256u << 20) /* likewise: each communicator gets a copy of what the file says once of its kind */

/* What is read, and where it stopped to make sense. */
struct reader {
    struct roll_expect_build build;
    uint32_t *call, *sequence;     /* owned: what the numbers of the file became */
    size_t calls, sequences, text; /* text: bytes of the communicators' names */
    const char *what;              /* the member that is wrong; NULL: none */
};

static int wrong(struct reader *r, const char *what)
{
    r->what = what;
    return ROLL_E_CORRUPT;
}

/* A whole number from `least` to `most`; false when it is none. */
static bool number(const json_t *value, uint64_t least, uint64_t most, uint64_t *out)
{
    json_int_t n = json_integer_value(value);
    *out = (uint64_t)n;
    return json_is_integer(value) && n >= 0 && *out >= least && *out <= most;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

/* The number of a datatype or of a reduction by its name; `none` where there is no name, -1 where it is unknown. */
static int by_name(const char *name, const char *(*names)(unsigned), unsigned limit, int none)
{
    if (name[0] == '\0') {
        return none;
    }
    for (unsigned i = 0; i < limit; i++) {
        if (strcmp(names(i), name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static int read_call(struct reader *r, const json_t *object, uint32_t *id)
{
    const json_t *count = json_object_get(object, "count");
    enum roll_op op = roll_op_by_name(text_of(object, "op"));
    bool message = roll_op_class(op) == ROLL_CLASS_P2P;
    const json_t *peer = json_object_get(object, message ? "ahead" : "root");
    int dtype = by_name(text_of(object, "dtype"), roll_dtype_name, ROLL_DTYPE_LIMIT, ROLL_DTYPE_NONE);
    int redop = by_name(text_of(object, "redop"), roll_redop_name, ROLL_RED_LIMIT, ROLL_RED_NONE);
    uint64_t elements = ROLL_EXPECTED_ANY, place = 0;
    if ((!message && roll_op_class(op) != ROLL_CLASS_COLL) || dtype < 0 || redop < 0 ||
        (count != NULL && !number(count, 0, INT64_MAX, &elements)) ||
        (peer != NULL && !number(peer, 0, RANKS_MOST, &place))) {
        return wrong(r, "calls");
    }
    struct roll_expected_call call = {elements,       peer != NULL ? (int32_t)place : -1,
                                      (uint8_t)op,    (uint8_t)dtype,
                                      (uint8_t)redop, json_is_true(json_object_get(object, "captured"))};
    return roll_expect_call(&r->build, &call, id);
}

static int read_calls(struct reader *r, const json_t *array)
{
    size_t room = 0, i;
    json_t *object;
    int err = json_is_array(array) ? 0 : wrong(r, "calls");
    json_array_foreach((json_t *)array, i, object)
    {
        err = err == 0 ? ROLL_GROW(r->call, room, i + 1) : err;
        err = err == 0 ? read_call(r, object, &r->call[i]) : err;
        r->calls = err == 0 ? i + 1 : r->calls;
    }
    return err;
}

/* Reads one sequence: its parts one behind the other, and all their calls in one array. */
static int read_sequence(struct reader *r, const json_t *parts, uint32_t *id)
{
    uint32_t *call = NULL;
    struct roll_expected_part *part = NULL;
    size_t calls = 0, room = 0, part_room = 0, i, k;
    json_t *one, *item;
    int err = json_is_array(parts) ? ROLL_GROW(part, part_room, json_array_size(parts) + 1) : wrong(r, "sequences");
    json_array_foreach((json_t *)parts, i, one)
    {
        const json_t *items = json_array_get(one, 1);
        uint64_t times, at;
        if (err == 0 && (!number(json_array_get(one, 0), 1, INT32_MAX, &times) || json_array_size(items) == 0)) {
            err = wrong(r, "sequences");
        }
        if (err != 0) {
            break;
        }
        part[i] = (struct roll_expected_part){(uint32_t)calls, (uint32_t)json_array_size(items), (uint32_t)times};
        json_array_foreach((json_t *)items, k, item)
        {
            err = err == 0 ? ROLL_GROW(call, room, calls + 1) : err;
            if (err == 0 && (r->calls == 0 || !number(item, 0, r->calls - 1, &at))) {
                err = wrong(r, "sequences");
            }
            if (err == 0) {
                call[calls++] = r->call[at];
            }
        }
    }
    err = err == 0 ? roll_expect_parts(&r->build, call, part, json_array_size(parts), id) : err;
    free(call);
    free(part);
    return err;
}

static int read_sequences(struct reader *r, const json_t *array)
{
    size_t room = 0, i;
    json_t *parts;
    int err = json_is_array(array) ? 0 : wrong(r, "sequences");
    json_array_foreach((json_t *)array, i, parts)
    {
        err = err == 0 ? ROLL_GROW(r->sequence, room, i + 1) : err;
        err = err == 0 ? read_sequence(r, parts, &r->sequence[i]) : err;
        r->sequences = err == 0 ? i + 1 : r->sequences;
    }
    return err;
}

/* A set of ranks. */
static int read_set(struct reader *r, const char *text, const char *what, struct roll_rankset *set)
{
    int err = text != NULL ? roll_rankset_parse(text, set) : ROLL_E_ARG;
    return err == 0 || err == ROLL_E_NOMEM ? err : wrong(r, what);
}

/* Fills in what the members do, by their rank on the communicator. */
static int read_does(struct reader *r, const json_t *does, struct roll_expected_member *member, uint32_t size)
{
    size_t i;
    uint32_t told = 0;
    json_t *one;
    int err = 0;
    json_array_foreach((json_t *)does, i, one)
    {
        struct roll_rankset set = {0};
        const char *text = json_string_value(json_array_get(one, 0));
        uint64_t sequence, nth;
        err = err == 0 ? read_set(r, text, "communicators", &set) : err;
        if (err == 0 && (r->sequences == 0 || !number(json_array_get(one, 1), 0, r->sequences - 1, &sequence) ||
                         !number(json_array_get(one, 2), 0, RANKS_MOST, &nth))) {
            err = wrong(r, "communicators");
        }
        for (size_t k = 0; err == 0 && k < set.used; k++) {
            if (set.range[k].last >= size) {
                err = wrong(r, "communicators");
            }
            for (uint32_t rank = set.range[k].first; err == 0 && rank <= set.range[k].last; rank++) {
                /* Each rank once, which bounds the work as well. */
                err = member[rank].sequence == ROLL_EXPECTED_NONE ? 0 : wrong(r, "communicators");
                told++;
                member[rank].sequence = r->sequence[sequence];
                member[rank].nth = (uint32_t)nth;
            }
        }
        roll_rankset_fini(&set);
    }
    return err == 0 && told != size ? wrong(r, "communicators") : err;
}

/* The members of one communicator, in the order of their ranks on it. */
static int read_members(struct reader *r, const json_t *members, struct roll_expected_member *member, uint32_t size)
{
    uint32_t used = 0;
    uint64_t world;
    int err = 0;
    if (json_is_string(members)) {
        struct roll_rankset set = {0};
        err = read_set(r, json_string_value(members), "communicators", &set);
        err = err == 0 && roll_rankset_count(&set) != size ? wrong(r, "communicators") : err;
        for (size_t k = 0; err == 0 && k < set.used; k++) {
            for (uint32_t rank = set.range[k].first; rank <= set.range[k].last; rank++) {
                member[used++].world = rank;
            }
        }
        roll_rankset_fini(&set);
        return err;
    }
    if (json_array_size(members) != size) {
        return wrong(r, "communicators");
    }
    for (; used < size && err == 0; used++) {
        err = number(json_array_get(members, used), 0, RANKS_MOST, &world) ? 0 : wrong(r, "communicators");
        member[used].world = (uint32_t)world;
    }
    return err;
}

static int read_kind(struct reader *r, const json_t *kind)
{
    const json_t *of = json_object_get(kind, "members");
    uint64_t size;
    size_t i;
    json_t *members;
    /* A kind without communicators would take time and say nothing. */
    if (!number(json_object_get(kind, "size"), 1, r->build.x->ranks, &size) || json_array_size(of) == 0) {
        return wrong(r, "communicators");
    }
    struct roll_expected_comm comm = {.role = (char *)text_of(kind, "role"),
                                      .made = (char *)text_of(kind, "made"),
                                      .name = (char *)text_of(kind, "name"),
                                      .size = (uint32_t)size,
                                      .messages = json_is_true(json_object_get(kind, "messages"))};
    struct roll_expected_member *member = calloc(size, sizeof(*member));
    int err = member != NULL ? 0 : ROLL_E_NOMEM;
    for (size_t k = 0; k < size && err == 0; k++) {
        member[k].sequence = ROLL_EXPECTED_NONE;
    }
    err = err == 0 ? read_does(r, json_object_get(kind, "does"), member, comm.size) : err;
    json_array_foreach((json_t *)of, i, members)
    {
        if (err == 0 && r->build.x->members + size > MEMBERS_MOST) {
            err = wrong(r, "communicators");
        }
        comm.label = (char *)json_string_value(json_array_get(members, 0));
        err = err == 0 && comm.label == NULL ? wrong(r, "communicators") : err;
        r->text += err == 0 ? strlen(comm.label) + strlen(comm.role) + strlen(comm.made) + strlen(comm.name) : 0;
        err = err == 0 && r->text > TEXT_MOST ? wrong(r, "communicators") : err;
        err = err == 0 ? read_members(r, json_array_get(members, 1), member, comm.size) : err;
        if (err == 0) {
            err = roll_expect_comm(&r->build, &comm, member);
            err = err == 0 || err == ROLL_E_NOMEM ? err : wrong(r, "communicators");
        }
    }
    free(member);
    return err;
}

static int read_memory(struct reader *r, const json_t *memory)
{
    size_t i;
    json_t *one;
    int err = 0;
    json_array_foreach((json_t *)memory, i, one)
    {
        struct roll_rankset set = {0};
        const char *text = json_string_value(json_array_get(one, 0));
        uint64_t bytes;
        err = err == 0 ? read_set(r, text, "memory", &set) : err;
        err = err == 0 && !number(json_array_get(one, 1), 1, INT64_MAX, &bytes) ? wrong(r, "memory") : err;
        for (size_t k = 0; err == 0 && k < set.used; k++) {
            for (uint32_t rank = set.range[k].first; rank <= set.range[k].last && err == 0; rank++) {
                bool once = rank < r->build.x->ranks && r->build.x->device_bytes[rank] == 0;
                err = once ? 0 : wrong(r, "memory");
                if (err == 0) {
                    r->build.x->device_bytes[rank] = bytes;
                }
            }
        }
        roll_rankset_fini(&set);
    }
    return err;
}

static int read_all(struct reader *r, const json_t *root, struct roll_expected **out)
{
    uint64_t ranks, steps = 0;
    size_t i;
    json_t *kind;
    if (!number(json_object_get(root, "ranks"), 1, RANKS_MOST, &ranks)) {
        return wrong(r, "ranks");
    }
    if (!number(json_object_get(root, "steps"), 0, INT64_MAX, &steps)) {
        return wrong(r, "steps");
    }
    int err = roll_expect_begin(&r->build, (uint32_t)ranks);
    err = err == 0 ? read_calls(r, json_object_get(root, "calls")) : err;
    err = err == 0 ? read_sequences(r, json_object_get(root, "sequences")) : err;
    const json_t *kinds = json_object_get(root, "communicators");
    err = err == 0 && !json_is_array(kinds) ? wrong(r, "communicators") : err;
    json_array_foreach((json_t *)kinds, i, kind)
    {
        err = err == 0 ? read_kind(r, kind) : err;
    }
    err = err == 0 ? read_memory(r, json_object_get(root, "memory")) : err;
    if (err == 0) {
        r->build.x->steps = steps;
        err = roll_expect_end(&r->build, out);
    }
    return err;
}

int roll_expected_parse(const char *text, size_t bytes, struct roll_expected **out, char *why, size_t size)
{
    struct reader r = {.what = NULL};
    json_error_t where;
    json_t *root = json_loadb(text, bytes, 0, &where);
    const char *schema = text_of(root, "schema");
    int err = ROLL_E_CORRUPT;
    *out = NULL;
    why[0] = '\0';
    if (root == NULL) {
        snprintf(why, size, ": no JSON, line %d: %s", where.line, where.text);
    } else if (strcmp(schema, ROLL_EXPECTED_SCHEMA) != 0) {
        bool newer = strncmp(schema, "rollcall.expected/", 18) == 0;
        err = newer ? ROLL_E_VERSION : ROLL_E_CORRUPT;
        snprintf(why, size,
                 newer ? ": of another version, \"%.40s\": rehearse again with --save"
                       : ": no file of `rollcall rehearse --save`",
                 schema);
    } else {
        err = read_all(&r, root, out);
        if (r.what != NULL) {
            snprintf(why, size, ": the member \"%s\" is damaged", r.what);
        } else if (err != 0) {
            snprintf(why, size, ": not enough memory for it");
        }
    }
    json_decref(root);
    free(r.call);
    free(r.sequence);
    roll_expect_drop(&r.build);
    return err;
}

int roll_expected_read(const char *path, struct roll_expected **out, char *why, size_t size)
{
    char *text;
    size_t bytes;
    int err = roll_read_whole(path, ROLL_EXPECTED_BYTES, &text, &bytes);
    *out = NULL;
    if (err != 0) {
        snprintf(why, size,
                 err == ROLL_E_NOTFOUND ? ": there is no such file"
                 : err == ROLL_E_DENIED ? ": it must not be read"
                 : err == ROLL_E_LIMIT  ? ": larger than 16 MiB"
                                        : ": it cannot be read");
        return err;
    }
    err = roll_expected_parse(text, bytes, out, why, size);
    free(text);
    return err;
}
