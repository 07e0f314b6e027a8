/*
 * verdict_calls.c: what a side of a verdict called, in words.
 *
 * A report of moe_core, a compute call and the creation of a communicator are told in the words of their arguments; any
 * other call by its operation and what NCCL compares.
 */
#include "daemon/verdict/verdict_print.h"

#include <inttypes.h>
#include <string.h>

/* A number of a report in words: "received 1 row", "received 2 rows". before NULL: the number says nothing. */
struct quantity {
    const char *before, *one, *many;
};

static void add_quantity(struct roll_line *text, const struct quantity *q, int64_t number)
{
    if (q->before != NULL) {
        const char *unit = number == 1 ? q->one : q->many;
        roll_line_add(text, "%s%" PRId64 "%s%s", q->before, number, *unit != '\0' ? " " : "", unit);
    }
}

/* A number that all ranks need alike (MOE_UNIFORM), in words: which one it is stands in `peer`. */
static void add_uniform(struct roll_line *text, int64_t kind, int64_t number)
{
    static const struct quantity kinds[] = {{"has ", "token", "tokens"},
                                            {"has ", "row of capacity", "rows of capacity"},
                                            {"makes a buffer of ", "byte", "bytes"}};
    static const struct quantity other = {"says ", "", ""};
    add_quantity(text, kind >= 0 && (size_t)kind < sizeof(kinds) / sizeof(kinds[0]) ? &kinds[kind] : &other, number);
}

/* A fact about a tensor (MOE_TENSOR). Its number is a checksum or a sum's bits and tells nobody anything; the verdict's
 * text says it where it does. */
static void add_tensor(struct roll_line *text, int64_t tensor)
{
    static const char *const names[] = {"router weight",    "router bias",   "expert bias",  "shared expert",
                                        "experts' weights", "dense weights", "gradient norm"};
    roll_line_add(text, "report about the %s",
                  tensor >= 0 && (size_t)tensor < sizeof(names) / sizeof(names[0]) ? names[tensor] : "tensor");
}

/* What moe_core reported, in words. False when it is no report of moe_core. */
static bool describe_report(const json_t *side, struct roll_line *text)
{
    static const struct {
        const char *op;
        struct quantity count, peer;
        const char *after;
        const char *none; /* instead of all this where the count is 0; NULL = as usual */
    } reports[] = {
        {"moe route", {"routed ", "token", "tokens"}, {" over ", "expert", "experts"}, "", NULL},
        {"moe counts", {"received ", "row", "rows"}, {", ", "local expert", "local experts"}, "", NULL},
        {"moe split", {"sends ", "row", "rows"}, {" to member ", "", ""}, "", NULL},
        {"moe gemm", {"expert GEMM over ", "row", "rows"}, {" in ", "group", "groups"}, "", NULL},
        {"moe skip", {NULL, NULL, NULL}, {"skipped its ", "local expert", "local experts"}, ": no rows", NULL},
        {"moe oblige end",
         {"owes ", "backward collective", "backward collectives"},
         {NULL, NULL, NULL},
         "",
         "owes none"},
        {"moe remedy",
         {"used ", "row of zeros", "rows of zeros"},
         {NULL, NULL, NULL},
         "",
         "walked its plan without a row"},
    };
    int64_t count = 0;
    int64_t peer = 0;
    roll_member_number(side, "count", &count);
    roll_member_number(side, "peer", &peer);
    if (strcmp(roll_member_text(side, "op"), "moe uniform") == 0) {
        add_uniform(text, peer, count);
        return true;
    }
    if (strcmp(roll_member_text(side, "op"), "moe tensor") == 0) {
        add_tensor(text, peer);
        return true;
    }
    for (size_t i = 0; i < sizeof(reports) / sizeof(reports[0]); i++) {
        if (strcmp(reports[i].op, roll_member_text(side, "op")) != 0) {
            continue;
        }
        if (reports[i].none != NULL && count == 0) {
            roll_line_add(text, "%s", reports[i].none);
            return true;
        }
        add_quantity(text, &reports[i].count, count);
        add_quantity(text, &reports[i].peer, peer);
        roll_line_add(text, "%s", reports[i].after);
        return true;
    }
    return false;
}

/* A compute call that was seen from outside of moe_core, in words. False when it is none, or its size is not known. */
static bool describe_outside(const json_t *side, struct roll_line *text)
{
    static const struct quantity rows = {" over ", "row", "rows"}, of = {" in ", "group", "groups"};
    int64_t count, groups, empty;
    if (!roll_member_number(side, "groups", &groups)) {
        return false;
    }
    roll_line_add(text, "%.40s", roll_member_text(side, "op"));
    if (roll_member_number(side, "count", &count)) {
        add_quantity(text, &rows, count);
        if (*roll_member_text(side, "dtype") != '\0') {
            roll_line_add(text, " of %.40s", roll_member_text(side, "dtype"));
        }
    }
    add_quantity(text, &of, groups);
    if (roll_member_number(side, "empty", &empty) && empty > 0) {
        roll_line_add(text, ", %" PRId64 " empty", empty);
    }
    return true;
}

/* A call about a communicator itself, in the words of its arguments. False when it is none. */
static bool describe_life(const json_t *side, struct roll_line *text)
{
    static const struct {
        const char *op;
        struct quantity count, peer;
    } calls[] = {
        {"CommInit", {" of ", "rank", "ranks"}, {" as rank ", "", ""}},
        {"CommSplit", {NULL, NULL, NULL}, {", color ", "", ""}},
        {"CommShrink", {NULL, NULL, NULL}, {NULL, NULL, NULL}},
        {"CommGrow", {" to ", "rank", "ranks"}, {NULL, NULL, NULL}},
        {"CommFinalize", {NULL, NULL, NULL}, {NULL, NULL, NULL}},
        {"CommDestroy", {NULL, NULL, NULL}, {NULL, NULL, NULL}},
        {"CommAbort", {NULL, NULL, NULL}, {NULL, NULL, NULL}},
        {"CommRevoke", {NULL, NULL, NULL}, {NULL, NULL, NULL}},
    };
    int64_t number = 0;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (strcmp(calls[i].op, roll_member_text(side, "op")) == 0) {
            roll_line_add(text, "%s", calls[i].op);
            if (roll_member_number(side, "count", &number)) {
                add_quantity(text, &calls[i].count, number);
            }
            if (roll_member_number(side, "peer", &number)) {
                add_quantity(text, &calls[i].peer, number);
            }
            return true;
        }
    }
    return false;
}

/* What one side called. `mark` receives where the differing field lies in the text. */
static void describe_call(const json_t *side, const char *field, struct roll_line *text, size_t mark[2])
{
    static const struct {
        const char *member, *before, *after;
        bool is_text;
    } parts[] = {
        {"op", "", "", true},
        {"count", "  ", "", false},
        {"dtype", " x ", "", true},
        {"redop", "  ", "", true},
        {"root", "  root ", "", false},
        {"peer", "  peer ", "", false},
        {"graph", "  graph ", "", false},
    };
    if (*roll_member_text(side, "op") == '\0') {
        roll_line_add(text, "made no such call");
        mark[0] = 0;
        mark[1] = text->used;
        return;
    }
    if (describe_report(side, text) || describe_outside(side, text)) {
        mark[0] = 0;
        mark[1] = text->used;
        return;
    }
    bool life = describe_life(side, text);
    for (size_t i = 0; !life && i < sizeof(parts) / sizeof(parts[0]); i++) {
        const json_t *value = json_object_get(side, parts[i].member);
        if (json_is_null(value) || value == NULL) {
            continue;
        }
        roll_line_add(text, "%s", parts[i].before);
        size_t start = text->used;
        if (parts[i].is_text) {
            roll_line_add(text, "%.40s", json_string_value(value) != NULL ? json_string_value(value) : "");
        } else {
            roll_line_add(text, "%" PRId64, (int64_t)json_integer_value(value));
        }
        if (strcmp(parts[i].member, field) == 0) {
            mark[0] = start;
            mark[1] = text->used;
        }
    }
    if (strcmp(roll_member_text(side, "state"), "entered") == 0) {
        roll_line_add(text, "  (inside)");
    }
    if (*roll_member_text(side, "error") != '\0') {
        roll_line_add(text, "  returned %.40s", roll_member_text(side, "error"));
    }
}

static bool has_call(const json_t *verdict)
{
    size_t i;
    json_t *side;
    json_array_foreach(json_object_get(verdict, "evidence"), i, side)
    {
        if (*roll_member_text(side, "op") != '\0') {
            return true;
        }
    }
    return false;
}

/*
 * Says what a side did. Of a rank that died, ended or does not come only the last call is known, and its peers wait in
 * another call: without the word "last" the two rows would read like a mismatch.
 */
void roll_describe_side(const json_t *verdict, size_t index, const char *field, struct roll_line *text, size_t mark[2])
{
    const json_t *side = json_array_get(json_object_get(verdict, "evidence"), index);
    if (index == 0 && strcmp(roll_member_text(verdict, "family"), "process") == 0 &&
        *roll_member_text(side, "op") != '\0') {
        roll_line_add(text, "last: ");
    }
    if (strcmp(roll_member_text(verdict, "code"), "moe-recompute-differs") == 0 &&
        *roll_member_text(side, "phase") != '\0') {
        roll_line_add(text, strcmp(roll_member_text(side, "phase"), "recompute") == 0 ? "recomputed: " : "first: ");
    }
    if (!has_call(verdict)) { /* beside others a side without a call has left one out; alone it has not */
        bool several = strpbrk(roll_member_text(side, "ranks_text"), "-,") != NULL;
        roll_line_add(text, several ? "no call that all of them made last" : "nothing of its calls is known");
        mark[0] = mark[1] = text->used;
        return;
    }
    describe_call(side, field, text, mark);
}
