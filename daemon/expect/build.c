/*
 * build.c: an expectation under construction: calls, sequences and communicators, each kept once.
 *
 * The members of a large job do the same but for a few kinds of ranks, so equal sequences are kept once; that makes the
 * expectation of thousands of ranks as large as that of a few.
 */
#include "daemon/base/array.h"
#include "daemon/expect/expect.h"
#include "trace/ident.h"

#include <string.h>

int roll_expect_begin(struct roll_expect_build *b, uint32_t ranks)
{
    *b = (struct roll_expect_build){0};
    b->x = calloc(1, sizeof(*b->x));
    if (b->x == NULL) {
        return ROLL_E_NOMEM;
    }
    b->x->ranks = ranks;
    b->x->device_bytes = calloc((size_t)ranks + 1, sizeof(*b->x->device_bytes));
    return b->x->device_bytes != NULL ? 0 : ROLL_E_NOMEM;
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static bool same_call(const struct roll_expected_call *a, const struct roll_expected_call *b)
{
    return a->count == b->count && a->peer == b->peer && a->op == b->op && a->dtype == b->dtype &&
           a->redop == b->redop && a->captured == b->captured;
}

int roll_expect_call(struct roll_expect_build *b, const struct roll_expected_call *call, uint32_t *id)
{
    struct roll_expected *x = b->x;
    uint64_t key =
        mix(mix(mix(1, call->count), (uint32_t)call->peer),
            (uint64_t)call->op << 24 | (uint64_t)call->dtype << 16 | (uint64_t)call->redop << 8 | call->captured);
    size_t step = 0, room = b->call_room;
    for (uint32_t i; (i = roll_map_each(&b->call_at, key, &step)) != ROLL_MAP_NONE;) {
        if (same_call(&x->call[i], call)) {
            *id = i;
            return 0;
        }
    }
    int err = ROLL_GROW(x->call, room, (size_t)x->calls + 1);
    b->call_room = room;
    err = err == 0 ? roll_map_add(&b->call_at, key, x->calls) : err;
    if (err == 0) {
        x->call[x->calls] = *call;
        *id = x->calls++;
    }
    return err;
}

static uint64_t key_of(const uint32_t *call, const struct roll_expected_part *part, size_t parts)
{
    uint64_t key = parts;
    for (size_t i = 0; i < parts; i++) {
        key = mix(mix(key, part[i].calls), part[i].times);
        for (uint32_t k = 0; k < part[i].calls; k++) {
            key = mix(key, call[part[i].first + k]);
        }
    }
    return key;
}

static bool same_sequence(const struct roll_expected *x, const struct roll_expected_sequence *s, const uint32_t *call,
                          const struct roll_expected_part *part, size_t parts)
{
    bool same = s->parts == parts;
    for (size_t i = 0; same && i < parts; i++) {
        const struct roll_expected_part *mine = &x->part[s->first + i];
        same = mine->calls == part[i].calls && mine->times == part[i].times &&
               memcmp(&x->item[mine->first], &call[part[i].first], part[i].calls * sizeof(*call)) == 0;
    }
    return same;
}

static int add_part(struct roll_expect_build *b, const uint32_t *call, const struct roll_expected_part *part)
{
    struct roll_expected *x = b->x;
    int err = ROLL_GROW(x->part, b->part_room, (size_t)x->parts + 1);
    err = err == 0 ? ROLL_GROW(x->item, b->item_room, (size_t)x->items + part->calls) : err;
    if (err == 0 && (size_t)x->items + part->calls >= UINT32_MAX) {
        err = ROLL_E_LIMIT;
    }
    if (err == 0) {
        memcpy(&x->item[x->items], &call[part->first], part->calls * sizeof(*call));
        x->part[x->parts++] = (struct roll_expected_part){x->items, part->calls, part->times};
        x->items += part->calls;
        x->repeats = x->repeats || part->times > 1;
    }
    return err;
}

int roll_expect_parts(struct roll_expect_build *b, const uint32_t *call, const struct roll_expected_part *part,
                      size_t parts, uint32_t *id)
{
    struct roll_expected *x = b->x;
    uint64_t key = key_of(call, part, parts);
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&b->sequence_at, key, &step)) != ROLL_MAP_NONE;) {
        if (same_sequence(x, &x->sequence[i], call, part, parts)) {
            *id = i;
            return 0;
        }
    }
    struct roll_expected_sequence made = {x->parts, (uint32_t)parts};
    int err = ROLL_GROW(x->sequence, b->sequence_room, (size_t)x->sequences + 1);
    for (size_t i = 0; i < parts && err == 0; i++) {
        err = add_part(b, call, &part[i]);
    }
    err = err == 0 ? roll_map_add(&b->sequence_at, key, x->sequences) : err;
    if (err == 0) {
        x->sequence[x->sequences] = made;
        *id = x->sequences++;
    }
    return err;
}

/* Where a unit has other counts from time to time, the first of its calls gets none: it is the one that is kept. */
static int loosen(struct roll_expect_build *b, uint32_t *call, const struct roll_expected_part *part, size_t parts)
{
    int err = 0;
    for (size_t i = 0; i < parts; i++) {
        for (uint32_t k = 0; k < part[i].calls && err == 0; k++) {
            uint32_t at = part[i].first + k;
            bool varies = false;
            for (uint32_t t = 1; t < part[i].times; t++) {
                varies = varies || call[at + t * part[i].calls] != call[at];
            }
            struct roll_expected_call without = b->x->call[call[at]];
            without.count = ROLL_EXPECTED_ANY;
            err = varies ? roll_expect_call(b, &without, &call[at]) : 0;
        }
    }
    return err;
}

/* Finds what repeats in a sequence, and adds it. */
static int learn(struct roll_expect_build *b, const uint32_t *call, size_t calls, uint32_t *id)
{
    struct roll_expected_part *part = NULL;
    size_t parts = 0;
    uint32_t *copy = calloc(calls + 1, sizeof(*copy));
    int err = copy != NULL ? roll_repeats_learn(b->x->call, call, NULL, calls, &part, &parts) : ROLL_E_NOMEM;
    if (err == 0) {
        memcpy(copy, call, calls * sizeof(*copy));
        err = loosen(b, copy, part, parts);
    }
    err = err == 0 ? roll_expect_parts(b, copy, part, parts, id) : err;
    free(part);
    free(copy);
    return err;
}

int roll_expect_sequence(struct roll_expect_build *b, const uint32_t *call, size_t calls, uint32_t *id)
{
    uint64_t key = roll_hash64(0, call, calls * sizeof(*call)), check = roll_hash64(1, call, calls * sizeof(*call));
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&b->raw_at, key, &step)) != ROLL_MAP_NONE;) {
        if (b->raw[i].check == check && b->raw[i].calls == calls) {
            *id = b->raw[i].sequence;
            return 0;
        }
    }
    int err = ROLL_GROW(b->raw, b->raw_room, b->raws + 1);
    err = err == 0 ? learn(b, call, calls, id) : err;
    err = err == 0 ? roll_map_add(&b->raw_at, key, (uint32_t)b->raws) : err;
    if (err == 0) {
        b->raw[b->raws++] = (struct roll_expect_raw){check, calls, *id};
    }
    return err;
}

int roll_expect_comm(struct roll_expect_build *b, const struct roll_expected_comm *comm,
                     const struct roll_expected_member *member)
{
    struct roll_expected *x = b->x;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (member[i].world >= x->ranks || member[i].sequence >= x->sequences) {
            return ROLL_E_ARG;
        }
    }
    int err = ROLL_GROW(x->comm, b->comm_room, (size_t)x->comms + 1);
    err = err == 0 ? ROLL_GROW(x->member, b->member_room, (size_t)x->members + comm->size) : err;
    if (err == 0 && (size_t)x->members + comm->size >= UINT32_MAX) {
        err = ROLL_E_LIMIT;
    }
    if (err != 0) {
        return err;
    }
    struct roll_expected_comm *mine = &x->comm[x->comms++];
    *mine = *comm;
    mine->first = x->members;
    mine->label = strdup(comm->label);
    mine->role = strdup(comm->role);
    mine->made = strdup(comm->made);
    mine->name = strdup(comm->name != NULL ? comm->name : "");
    memcpy(&x->member[x->members], member, comm->size * sizeof(*member));
    x->members += comm->size;
    bool has_texts = mine->label != NULL && mine->role != NULL && mine->made != NULL && mine->name != NULL;
    return has_texts ? 0 : ROLL_E_NOMEM;
}

/* The places of each rank, by the number of the communicator. */
static int find_places(struct roll_expected *x)
{
    x->place_first = calloc((size_t)x->ranks + 2, sizeof(*x->place_first));
    x->place = calloc((size_t)x->members + 1, sizeof(*x->place));
    if (x->place_first == NULL || x->place == NULL) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = 0; i < x->members; i++) {
        x->place_first[x->member[i].world + 2]++; /* moved by two, so that the second pass may count up */
    }
    for (uint32_t i = 1; i < x->ranks + 2; i++) {
        x->place_first[i] += x->place_first[i - 1];
    }
    for (uint32_t c = 0; c < x->comms; c++) {
        for (uint32_t r = 0; r < x->comm[c].size; r++) {
            uint32_t world = x->member[x->comm[c].first + r].world;
            x->place[x->place_first[world + 1]++] = (struct roll_expected_place){c, r};
        }
    }
    return 0;
}

int roll_expect_end(struct roll_expect_build *b, struct roll_expected **out)
{
    int err = find_places(b->x);
    *out = NULL;
    if (err == 0) {
        *out = b->x;
        b->x = NULL;
    }
    roll_expect_drop(b);
    return err;
}

void roll_expect_drop(struct roll_expect_build *b)
{
    roll_expected_destroy(&b->x);
    roll_map_fini(&b->call_at);
    roll_map_fini(&b->sequence_at);
    roll_map_fini(&b->raw_at);
    free(b->raw);
    *b = (struct roll_expect_build){0};
}

void roll_expected_destroy(struct roll_expected **expected)
{
    struct roll_expected *x = *expected;
    *expected = NULL;
    if (x == NULL) {
        return;
    }
    for (uint32_t i = 0; i < x->comms; i++) {
        free(x->comm[i].label);
        free(x->comm[i].role);
        free(x->comm[i].made);
        free(x->comm[i].name);
    }
    free(x->call);
    free(x->item);
    free(x->part);
    free(x->sequence);
    free(x->comm);
    free(x->member);
    free(x->place_first);
    free(x->place);
    free(x->device_bytes);
    free(x);
}
