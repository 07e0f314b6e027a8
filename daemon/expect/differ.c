/*
 * differ.c: what has changed between two rehearsals: communicators that came, went or have another size, calls and
 * bytes by communicator and operation, their order, memory.
 *
 * A communicator is found again by its label and its members; where several have both alike, in the order in which they
 * are kept. What is compared are the calls of the parts that do not repeat, and those of each repetition, so a
 * rehearsal of three steps equals one of ten (rounds.c). Communicators that changed alike make one line.
 */
#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/base/units.h"
#include "daemon/expect/expect.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <string.h>

#define MEMORY_LEAST (1u << 20) /* less, or less than a hundredth, comes and goes with the order of threads */

void roll_expected_sums(const struct roll_expected *x, uint32_t sequence, struct roll_expected_sum sums[ROLL_OP_LIMIT])
{
    const struct roll_expected_sequence *s = &x->sequence[sequence];
    memset(sums, 0, ROLL_OP_LIMIT * sizeof(*sums));
    for (uint32_t i = 0; i < s->parts; i++) {
        const struct roll_expected_part *part = &x->part[s->first + i];
        for (uint32_t k = 0; k < part->calls; k++) {
            const struct roll_expected_call *call = &x->call[x->item[part->first + k]];
            uint64_t bytes = call->count == ROLL_EXPECTED_ANY ? 0 : call->count * roll_dtype_bytes(call->dtype);
            struct roll_expected_sum *sum = &sums[call->op];
            *(part->times > 1 ? &sum->each_calls : &sum->once_calls) += 1;
            *(part->times > 1 ? &sum->each_bytes : &sum->once_bytes) += bytes;
            *(part->times > 1 ? &sum->each_vary : &sum->once_vary) |= call->count == ROLL_EXPECTED_ANY;
        }
    }
}

/* A change that some communicators have in common. */
struct change {
    const char *what;
    char *name, *text; /* owned; the communicator's name, and a part of a sentence */
    uint32_t comms;
    struct roll_rankset ranks;
};

struct differ {
    const struct roll_expected *old, *now;
    struct change *change; /* owned */
    size_t changes, room;
    struct roll_map at; /* by what, name and text */
    int err;
};

static struct change *change_of(struct differ *d, const char *what, const char *name, const char *text)
{
    uint64_t key = roll_hash64(roll_hash64(roll_hash64(1, what, strlen(what)), name, strlen(name)), text, strlen(text));
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&d->at, key, &step)) != ROLL_MAP_NONE;) {
        struct change *c = &d->change[i];
        if (strcmp(c->what, what) == 0 && strcmp(c->name, name) == 0 && strcmp(c->text, text) == 0) {
            return c;
        }
    }
    d->err = d->err == 0 ? ROLL_GROW(d->change, d->room, d->changes + 1) : d->err;
    d->err = d->err == 0 ? roll_map_add(&d->at, key, (uint32_t)d->changes) : d->err;
    if (d->err != 0) {
        return NULL;
    }
    struct change *c = &d->change[d->changes++];
    *c = (struct change){.what = what, .name = strdup(name), .text = strdup(text)};
    d->err = c->name != NULL && c->text != NULL ? 0 : ROLL_E_NOMEM;
    return d->err == 0 ? c : NULL;
}

/* Adds the members of a communicator to a change. */
static void add_comm(struct differ *d, struct change *c, const struct roll_expected *x,
                     const struct roll_expected_comm *comm)
{
    for (uint32_t r = 0; c != NULL && r < comm->size && d->err == 0; r++) {
        d->err = roll_rankset_add(&c->ranks, x->member[comm->first + r].world);
    }
    if (c != NULL) {
        c->comms++;
    }
}

static const char *name_of(const struct roll_expected_comm *comm)
{
    return comm->name[0] != '\0'    ? comm->name
           : comm->label[0] != '\0' ? comm->label
           : comm->role[0] != '\0'  ? comm->role
                                    : "communicator without a name";
}

/* communicators */

static uint64_t identity(const struct roll_expected *x, const struct roll_expected_comm *comm)
{
    uint64_t key = roll_hash64(comm->size, comm->label, strlen(comm->label));
    for (uint32_t r = 0; r < comm->size; r++) {
        key = roll_hash64(key, &x->member[comm->first + r].world, sizeof(uint32_t));
    }
    return key;
}

static bool same_comm(const struct differ *d, const struct roll_expected_comm *a, const struct roll_expected_comm *b)
{
    bool same = a->size == b->size && strcmp(a->label, b->label) == 0;
    for (uint32_t r = 0; same && r < a->size; r++) {
        same = d->old->member[a->first + r].world == d->now->member[b->first + r].world;
    }
    return same;
}

/* Finds for each communicator of `now` that of `old`, NONE where it is new, and which of `old` are gone. */
static int pair_comms(const struct differ *d, uint32_t *partner, bool *stays)
{
    struct roll_map at = {0};
    int err = 0;
    for (uint32_t i = 0; i < d->old->comms && err == 0; i++) {
        err = roll_map_add(&at, identity(d->old, &d->old->comm[i]), i);
    }
    for (uint32_t i = 0; i < d->now->comms && err == 0; i++) {
        size_t step = 0;
        uint32_t other;
        partner[i] = ROLL_EXPECTED_NONE;
        while ((other = roll_map_each(&at, identity(d->now, &d->now->comm[i]), &step)) != ROLL_MAP_NONE) {
            if (!stays[other] && same_comm(d, &d->old->comm[other], &d->now->comm[i])) {
                stays[other] = true;
                partner[i] = other;
                break;
            }
        }
    }
    roll_map_fini(&at);
    return err;
}

/* The size of the first communicator of this name that is gone, or is new; 0: there is none of another size. */
static uint32_t other_size(const struct roll_expected *x, const struct roll_expected_comm *comm, const bool *stays,
                           const uint32_t *partner)
{
    for (uint32_t i = 0; i < x->comms && comm->label[0] != '\0'; i++) {
        bool alone = stays != NULL ? !stays[i] : partner[i] == ROLL_EXPECTED_NONE;
        if (alone && x->comm[i].size != comm->size && strcmp(x->comm[i].label, comm->label) == 0) {
            return x->comm[i].size;
        }
    }
    return 0;
}

static void tell_alone(struct differ *d, const uint32_t *partner, const bool *stays)
{
    char text[128];
    for (uint32_t i = 0; i < d->now->comms; i++) {
        const struct roll_expected_comm *comm = &d->now->comm[i];
        if (partner[i] != ROLL_EXPECTED_NONE) {
            continue;
        }
        uint32_t size = other_size(d->old, comm, stays, NULL);
        snprintf(text, sizeof(text), size > 0 ? "%u ranks, before %u" : "%u ranks: new", comm->size, size);
        add_comm(d, change_of(d, size > 0 ? "communicator-resized" : "communicator-new", name_of(comm), text), d->now,
                 comm);
    }
    for (uint32_t i = 0; i < d->old->comms; i++) {
        const struct roll_expected_comm *comm = &d->old->comm[i];
        if (!stays[i] && other_size(d->now, comm, NULL, partner) == 0) {
            snprintf(text, sizeof(text), "%u ranks: gone", comm->size);
            add_comm(d, change_of(d, "communicator-gone", name_of(comm), text), d->old, comm);
        }
    }
}

/* calls */

/* Calls of which no count is kept have no bytes to tell; beside others they make it at least so many. */
static void bytes_text(char *out, size_t size, uint64_t bytes, bool vary, bool is_exact)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64 " B", bytes);
    if (!is_exact) {
        roll_units_bytes_text((double)bytes, text, sizeof(text));
    }
    snprintf(out, size, "%s%s", vary && bytes == 0 ? "of varying size" : text, vary && bytes > 0 ? " and more" : "");
}

static void amount_text(char *out, size_t size, const struct roll_expected_sum *now,
                        const struct roll_expected_sum *old, bool is_each)
{
    uint64_t calls = is_each ? now->each_calls : now->once_calls, before = is_each ? old->each_calls : old->once_calls;
    uint64_t bytes = is_each ? now->each_bytes : now->once_bytes,
             old_bytes = is_each ? old->each_bytes : old->once_bytes;
    bool vary = is_each ? now->each_vary : now->once_vary, old_vary = is_each ? old->each_vary : old->once_vary;
    char a[48], b[48];
    bytes_text(a, sizeof(a), bytes, vary, false);
    bytes_text(b, sizeof(b), old_bytes, old_vary, false);
    if (calls == before && strcmp(a, b) == 0) { /* too little for rounded numbers to show it */
        bytes_text(a, sizeof(a), bytes, vary, true);
        bytes_text(b, sizeof(b), old_bytes, old_vary, true);
    }
    snprintf(out, size, "%" PRIu64 " calls, %s %s (before %" PRIu64 ", %s)", calls, a,
             is_each ? "each time round" : "once", before, b);
}

static bool same_calls(const struct differ *d, uint32_t old, uint32_t now)
{
    const struct roll_expected_sequence *a = &d->old->sequence[old], *b = &d->now->sequence[now];
    bool same = a->parts == b->parts;
    for (uint32_t i = 0; same && i < a->parts; i++) {
        const struct roll_expected_part *p = &d->old->part[a->first + i], *q = &d->now->part[b->first + i];
        same = p->calls == q->calls && (p->times > 1) == (q->times > 1);
        for (uint32_t k = 0; same && k < p->calls; k++) {
            const struct roll_expected_call *x = &d->old->call[d->old->item[p->first + k]],
                                            *y = &d->now->call[d->now->item[q->first + k]];
            same = roll_expected_fits(x, y) && x->count == y->count;
        }
    }
    return same;
}

/* What differs between two sequences, a text for each operation; an array of [what, text], owned. */
static json_t *differ_sequences(struct differ *d, uint32_t old, uint32_t now)
{
    static struct roll_expected_sum before[ROLL_OP_LIMIT], after[ROLL_OP_LIMIT]; /* large; one thread */
    json_t *out = json_array();
    char text[256], amount[192];
    if (same_calls(d, old, now) || roll_expected_same_rounds(d->old, old, d->now, now)) {
        return out;
    }
    roll_expected_sums(d->old, old, before);
    roll_expected_sums(d->now, now, after);
    for (unsigned op = 0; op < ROLL_OP_LIMIT; op++) {
        const struct roll_expected_sum *a = &before[op], *b = &after[op];
        if (a->each_calls != b->each_calls || a->each_bytes != b->each_bytes) {
            amount_text(amount, sizeof(amount), b, a, true);
            snprintf(text, sizeof(text), "%s: %s", roll_op_name(op), amount);
            json_array_append_new(out, json_pack("[s,s]", "calls", text));
        }
        if (a->once_calls != b->once_calls || a->once_bytes != b->once_bytes) {
            amount_text(amount, sizeof(amount), b, a, false);
            snprintf(text, sizeof(text), "%s: %s", roll_op_name(op), amount);
            json_array_append_new(out, json_pack("[s,s]", "calls", text));
        }
    }
    if (json_array_size(out) == 0) {
        json_array_append_new(out, json_pack("[s,s]", "order",
                                             "as many calls of each kind, in another order or with "
                                             "other arguments"));
    }
    return out;
}

static void tell_calls(struct differ *d, const uint32_t *partner)
{
    struct roll_map known = {0};
    json_t *results = json_array(); /* for each pair of sequences that was compared */
    for (uint32_t c = 0; c < d->now->comms && d->err == 0; c++) {
        const struct roll_expected_comm *comm = &d->now->comm[c];
        if (partner[c] == ROLL_EXPECTED_NONE) {
            continue;
        }
        const struct roll_expected_comm *other = &d->old->comm[partner[c]];
        for (uint32_t r = 0; r < comm->size && d->err == 0; r++) {
            const struct roll_expected_member *m = &d->now->member[comm->first + r];
            uint32_t old = d->old->member[other->first + r].sequence;
            uint64_t key = (uint64_t)old << 32 | m->sequence;
            uint32_t at = roll_map_get(&known, key);
            if (at == ROLL_MAP_NONE) {
                at = (uint32_t)json_array_size(results);
                d->err = roll_map_add(&known, key, at);
                json_array_append_new(results, differ_sequences(d, old, m->sequence));
            }
            json_t *list = json_array_get(results, at), *one;
            size_t i;
            json_array_foreach(list, i, one)
            {
                const char *what = json_string_value(json_array_get(one, 0));
                struct change *change = change_of(d, strcmp(what, "calls") == 0 ? "calls" : "order", name_of(comm),
                                                  json_string_value(json_array_get(one, 1)));
                d->err = change != NULL ? roll_rankset_add(&change->ranks, m->world) : d->err;
            }
        }
    }
    json_decref(results);
    roll_map_fini(&known);
}

static void tell_memory(struct differ *d)
{
    char text[128], now[32], before[32];
    for (uint32_t i = 0; i < d->now->ranks && i < d->old->ranks && d->err == 0; i++) {
        uint64_t a = d->old->device_bytes[i], b = d->now->device_bytes[i];
        uint64_t more = a > b ? a - b : b - a;
        if (a > 0 && b > 0 && more >= MEMORY_LEAST && more * 100 >= a) {
            snprintf(text, sizeof(text), "device memory %s (before %s; %+" PRId64 " B)",
                     roll_units_bytes_text((double)b, now, sizeof(now)),
                     roll_units_bytes_text((double)a, before, sizeof(before)), (int64_t)(b - a));
            struct change *change = change_of(d, "memory", "", text);
            d->err = change != NULL ? roll_rankset_add(&change->ranks, i) : d->err;
        }
    }
}

static json_t *change_json(const struct change *c)
{
    char text[512], many[32] = "";
    json_t *ranks = roll_ranks_text_json(&c->ranks);
    const char *who = ranks != NULL ? json_string_value(ranks) : "";
    size_t count = roll_rankset_count(&c->ranks);
    if (c->comms > 1) {
        snprintf(many, sizeof(many), "%u communicators of ", c->comms);
    }
    snprintf(text, sizeof(text), "%s%s%s%s%s%.200s%s%s", c->name, c->name[0] != '\0' ? ": " : "", many, c->text,
             count > 0 ? (count > 1 ? "; ranks " : "; rank ") : "", count > 0 ? who : "",
             count > 0 && strlen(who) > 200 ? ",..." : "", "");
    return json_pack("{s:s,s:o,s:o,s:o}", "what", c->what, "communicator", roll_text_to_json(c->name), "ranks",
                     ranks != NULL ? ranks : json_null(), "text", roll_text_to_json(text));
}

json_t *roll_expected_differ(const struct roll_expected *old, const struct roll_expected *now)
{
    struct differ d = {.old = old, .now = now};
    uint32_t *partner = calloc((size_t)now->comms + 1, sizeof(*partner));
    bool *stays = calloc((size_t)old->comms + 1, sizeof(*stays));
    json_t *out = NULL, *changes = json_array();
    char text[64];
    d.err = partner != NULL && stays != NULL ? pair_comms(&d, partner, stays) : ROLL_E_NOMEM;
    if (d.err == 0) {
        if (old->ranks != now->ranks) {
            snprintf(text, sizeof(text), "%u ranks (before %u)", now->ranks, old->ranks);
            (void)change_of(&d, "ranks", "", text);
        }
        tell_alone(&d, partner, stays);
        tell_calls(&d, partner);
        tell_memory(&d);
    }
    for (size_t i = 0; i < d.changes; i++) {
        if (d.err == 0) {
            json_array_append_new(changes, change_json(&d.change[i]));
        }
        free(d.change[i].name);
        free(d.change[i].text);
        roll_rankset_fini(&d.change[i].ranks);
    }
    if (d.err == 0) {
        out = json_pack("{s:I,s:O}", "count", (json_int_t)d.changes, "changes", changes);
    }
    free(d.change);
    roll_map_fini(&d.at);
    free(partner);
    free(stays);
    json_decref(changes);
    return out;
}
