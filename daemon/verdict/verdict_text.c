/*
 * verdict_text.c: a verdict for people.
 *
 *   PROVEN    count-mismatch  rank 3
 *             different element counts in one collective
 *   where     AllReduce #17 on communicator "dp" (8 ranks), step 12, layer 1, backward
 *   rank 3    AllReduce  512 x float32  sum    reduce_gradients  train.c:88
 *                                              from main         train.c:140
 *   0-2,4-7   AllReduce  1024 x float32  sum   reduce_gradients  train.c:88
 *   waiting   0-2,4-7 (7 ranks)
 *   why       Rank 3 ...
 *   or        call-skipped            (what the records do not exclude)
 *   instead   replaces verdict 3, which counts no more
 *   remedy    fill: ...
 *             $ rollcall remedy on fill
 *
 * A note is no trouble, and a job with many empty ranks has many of them: while a job runs each takes one line,
 *
 *   note      moe-zero-tokens    Rank 0 received no tokens in MoE layer 3, step 13.
 *
 * One gutter, then content: the eye finds who, what and what to do without reading. Works from JSON alone, so that a
 * stored verdict prints as a live one. Typed verdicts (verdict.h) as its input were rejected: a console prints the
 * codes, operations and phases of a newer daemon, too, which it knows no number for. Text from other processes is
 * stripped of control characters: it must not steer a terminal.
 */
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define GUTTER    10
#define COLUMNS   100
#define CALLERS   2 /* frames shown above the innermost one */
#define CALL_MOST 48
#define CODE      19 /* column of the codes in lines of notes; fits those of the MoE notes */

#define BOLD   "\033[1m"
#define DIM    "\033[2m"
#define RED    "\033[31m"
#define YELLOW "\033[33m"
#define GREEN  "\033[32m"
#define CYAN   "\033[36m"
#define PLAIN  "\033[0m"

struct printer {
    FILE *out;
    bool color;
};

static void paint(const struct printer *p, const char *style)
{
    if (p->color) {
        fputs(style, p->out);
    }
}

/* text */

/* Characters, not bytes, of a UTF-8 text. */
static size_t width_of(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static void put_clean(const struct printer *p, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        /* C1 controls are c2 80 to c2 9f in UTF-8. */
        bool c1 = c == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xa0;
        if (c1) {
            i++;
        }
        fputc(c < 0x20 || c == 0x7f || c1 ? ' ' : c, p->out);
    }
}

static void put(const struct printer *p, const char *text)
{
    put_clean(p, text, strlen(text));
}

static void pad(const struct printer *p, size_t from, size_t to)
{
    for (; from < to; from++) {
        fputc(' ', p->out);
    }
}

/* Begins a line: the label in the gutter. A label that is too wide takes a line of its own. */
static void gutter(const struct printer *p, const char *label, const char *style)
{
    paint(p, style);
    put(p, label);
    paint(p, PLAIN);
    size_t width = width_of(label);
    if (width + 1 > GUTTER) {
        fputc('\n', p->out);
        width = 0;
    }
    pad(p, width, GUTTER);
}

/* Words of a paragraph, wrapped between the gutter and the last column. */
static void put_wrapped(const struct printer *p, const char *text)
{
    size_t column = GUTTER;
    while (*text != '\0') {
        size_t blanks = strspn(text, " \n\t");
        text += blanks;
        size_t bytes = strcspn(text, " \n\t");
        if (bytes == 0) {
            break;
        }
        char word[256];
        size_t kept = bytes < sizeof(word) ? bytes : sizeof(word) - 1;
        memcpy(word, text, kept);
        word[kept] = '\0';
        size_t width = width_of(word);
        if (column > GUTTER && column + 1 + width > COLUMNS) {
            fputc('\n', p->out);
            pad(p, 0, GUTTER);
            column = GUTTER;
        } else if (column > GUTTER) {
            fputc(' ', p->out);
            column++;
        }
        put_clean(p, text, bytes);
        column += width;
        text += bytes;
    }
    fputc('\n', p->out);
}

/* members */

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static bool number_of(const json_t *object, const char *name, int64_t *out)
{
    const json_t *value = json_object_get(object, name);
    *out = json_integer_value(value);
    return json_is_integer(value);
}

/* "rank 3", "ranks 0-2,4", or "" for nobody. Long sets are cut; the waiting line below says how many. */
static void ranks_label(char out[64], const char *text)
{
    bool several = strpbrk(text, "-,") != NULL;
    int most = 40;
    snprintf(out, 64, "%s%.*s%s",
             *text == '\0' ? ""
             : several     ? "ranks "
                           : "rank ",
             most, text, strlen(text) > (size_t)most ? "\u2026" : "");
}

/* parts */

static const char *style_of(const char *certainty)
{
    static const struct {
        const char *certainty, *style;
    } styles[] = {{"proven", BOLD RED}, {"predicted", BOLD YELLOW}, {"suspected", BOLD CYAN}, {"note", BOLD GREEN}};
    for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++) {
        if (strcmp(styles[i].certainty, certainty) == 0) {
            return styles[i].style;
        }
    }
    return BOLD;
}

static void print_header(const struct printer *p, const json_t *verdict)
{
    char certainty[32];
    snprintf(certainty, sizeof(certainty), "%s", text_of(verdict, "certainty"));
    const char *style = style_of(certainty);
    for (char *c = certainty; *c != '\0'; c++) {
        *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    }
    gutter(p, certainty, style);
    paint(p, BOLD);
    put(p, text_of(verdict, "code"));
    char ranks[64];
    ranks_label(ranks, text_of(verdict, "culprits_text"));
    if (ranks[0] != '\0') {
        fputs("  ", p->out);
        put(p, ranks);
    }
    paint(p, PLAIN);
    fputc('\n', p->out);
    if (*text_of(verdict, "title") != '\0') {
        gutter(p, "", "");
        put_wrapped(p, text_of(verdict, "title"));
    }
}

struct text {
    char bytes[512];
    size_t used;
};

static void __attribute__((format(printf, 2, 3))) add(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->bytes + text->used, sizeof(text->bytes) - text->used, format, args);
    va_end(args);
    size_t left = sizeof(text->bytes) - text->used - 1;
    text->used += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left;
}

/* Whether the verdict is about a call in a communicator's sequence: moe_core's reports, numbers and the creation itself
 * have no place in it. */
static bool is_call(const json_t *verdict)
{
    const char *family = text_of(verdict, "family");
    bool creates = strcmp(text_of(verdict, "code"), "init-missing") == 0;
    return strcmp(family, "moe") != 0 && strcmp(family, "numbers") != 0 && !creates;
}

static void add_comm(struct text *text, const json_t *verdict)
{
    const json_t *comm = json_object_get(verdict, "comm");
    if (!json_is_object(comm)) {
        return;
    }
    int64_t size = 0;
    int64_t seq = 0;
    const char *label = text_of(comm, "label");
    number_of(comm, "size", &size);
    if (number_of(verdict, "seq", &seq) && is_call(verdict)) {
        add(text, "call #%" PRId64 " on ", seq);
    }
    if (*label == '\0' && *text_of(comm, "name") != '\0') {
        add(text, "%.120s, ", text_of(comm, "name"));
    } else if (strstr(text_of(comm, "name"), " of ") != NULL) { /* others have the label, too */
        add(text, "communicator \"%.64s\"%.100s, ", label, strstr(text_of(comm, "name"), " of "));
    } else if (*label != '\0') {
        add(text, "communicator \"%.64s\" (%" PRId64 " ranks), ", label, size);
    } else {
        add(text, "communicator %.20s (%" PRId64 " ranks), ", text_of(comm, "key"), size);
    }
}

static void print_where(const struct printer *p, const json_t *verdict)
{
    static const char *const places[] = {"step", "microbatch", "layer"};
    struct text text = {.used = 0};
    add_comm(&text, verdict);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int64_t number;
        if (i == 2 && json_array_size(json_object_get(verdict, "layers")) > 1) {
            add(&text, "layers %.80s, ", text_of(verdict, "layers_text"));
        } else if (number_of(verdict, places[i], &number)) {
            add(&text, "%s %" PRId64 ", ", places[i], number);
        }
    }
    if (*text_of(verdict, "phase") != '\0') {
        add(&text, "%.20s, ", text_of(verdict, "phase"));
    }
    if (text.used > 2) {
        text.bytes[text.used - 2] = '\0'; /* the last ", " */
        gutter(p, "where", DIM);
        put_wrapped(p, text.bytes);
    }
}

/* How a communicator that has no label came to be, and where: its members alone may not tell a reader which one it is.
 */
static void print_made(const struct printer *p, const json_t *verdict)
{
    const json_t *comm = json_object_get(verdict, "comm");
    struct text text = {.used = 0};
    int64_t site = -1, line = 0;
    if (*text_of(comm, "made") == '\0' || *text_of(comm, "label") != '\0') {
        return;
    }
    add(&text, "communicator %.150s", text_of(comm, "made"));
    if (number_of(comm, "callsite", &site)) {
        const json_t *frames =
            json_object_get(json_array_get(json_object_get(verdict, "callsites"), (size_t)site), "frames");
        const json_t *frame = json_array_get(frames, 0);
        add(&text, *text_of(frame, "function") ? ", in %.80s" : "%.0s", text_of(frame, "function"));
        if (number_of(frame, "line", &line) && *text_of(frame, "file") != '\0') {
            const char *slash = strrchr(text_of(frame, "file"), '/');
            add(&text, " %.80s:%" PRId64, slash ? slash + 1 : text_of(frame, "file"), line);
        }
    }
    gutter(p, "", "");
    put_wrapped(p, text.bytes);
}

/* A number of a report in words: "received 1 row", "received 2 rows". before NULL: the number says nothing. */
struct quantity {
    const char *before, *one, *many;
};

static void add_quantity(struct text *text, const struct quantity *q, int64_t number)
{
    if (q->before != NULL) {
        const char *unit = number == 1 ? q->one : q->many;
        add(text, "%s%" PRId64 "%s%s", q->before, number, *unit != '\0' ? " " : "", unit);
    }
}

/* A number that all ranks need alike (MOE_UNIFORM), in words: which one it is stands in `peer`. */
static void add_uniform(struct text *text, int64_t kind, int64_t number)
{
    static const struct quantity kinds[] = {{"has ", "token", "tokens"},
                                            {"has ", "row of capacity", "rows of capacity"},
                                            {"makes a buffer of ", "byte", "bytes"}};
    static const struct quantity other = {"says ", "", ""};
    add_quantity(text, kind >= 0 && (size_t)kind < sizeof(kinds) / sizeof(kinds[0]) ? &kinds[kind] : &other, number);
}

/* A fact about a tensor (MOE_TENSOR). Its number is a checksum or a sum's bits and tells nobody anything; the verdict's
 * text says it where it does. */
static void add_tensor(struct text *text, int64_t tensor)
{
    static const char *const names[] = {"router weight",    "router bias",   "expert bias",  "shared expert",
                                        "experts' weights", "dense weights", "gradient norm"};
    add(text, "report about the %s",
        tensor >= 0 && (size_t)tensor < sizeof(names) / sizeof(names[0]) ? names[tensor] : "tensor");
}

/* What moe_core reported, in words. False when it is no report of moe_core. */
static bool describe_report(const json_t *side, struct text *text)
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
    number_of(side, "count", &count);
    number_of(side, "peer", &peer);
    if (strcmp(text_of(side, "op"), "moe uniform") == 0) {
        add_uniform(text, peer, count);
        return true;
    }
    if (strcmp(text_of(side, "op"), "moe tensor") == 0) {
        add_tensor(text, peer);
        return true;
    }
    for (size_t i = 0; i < sizeof(reports) / sizeof(reports[0]); i++) {
        if (strcmp(reports[i].op, text_of(side, "op")) != 0) {
            continue;
        }
        if (reports[i].none != NULL && count == 0) {
            add(text, "%s", reports[i].none);
            return true;
        }
        add_quantity(text, &reports[i].count, count);
        add_quantity(text, &reports[i].peer, peer);
        add(text, "%s", reports[i].after);
        return true;
    }
    return false;
}

/* A compute call that was seen from outside of moe_core, in words. False when it is none, or its size is not known. */
static bool describe_outside(const json_t *side, struct text *text)
{
    static const struct quantity rows = {" over ", "row", "rows"}, of = {" in ", "group", "groups"};
    int64_t count, groups, empty;
    if (!number_of(side, "groups", &groups)) {
        return false;
    }
    add(text, "%.40s", text_of(side, "op"));
    if (number_of(side, "count", &count)) {
        add_quantity(text, &rows, count);
        if (*text_of(side, "dtype") != '\0') {
            add(text, " of %.40s", text_of(side, "dtype"));
        }
    }
    add_quantity(text, &of, groups);
    if (number_of(side, "empty", &empty) && empty > 0) {
        add(text, ", %" PRId64 " empty", empty);
    }
    return true;
}

/* A call about a communicator itself, in the words of its arguments. False when it is none. */
static bool describe_life(const json_t *side, struct text *text)
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
        if (strcmp(calls[i].op, text_of(side, "op")) == 0) {
            add(text, "%s", calls[i].op);
            if (number_of(side, "count", &number)) {
                add_quantity(text, &calls[i].count, number);
            }
            if (number_of(side, "peer", &number)) {
                add_quantity(text, &calls[i].peer, number);
            }
            return true;
        }
    }
    return false;
}

/* What one side called. `mark` receives where the differing field lies in the text. */
static void describe_call(const json_t *side, const char *field, struct text *text, size_t mark[2])
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
    if (*text_of(side, "op") == '\0') {
        add(text, "made no such call");
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
        add(text, "%s", parts[i].before);
        size_t start = text->used;
        if (parts[i].is_text) {
            add(text, "%.40s", json_string_value(value) != NULL ? json_string_value(value) : "");
        } else {
            add(text, "%" PRId64, (int64_t)json_integer_value(value));
        }
        if (strcmp(parts[i].member, field) == 0) {
            mark[0] = start;
            mark[1] = text->used;
        }
    }
    if (strcmp(text_of(side, "state"), "entered") == 0) {
        add(text, "  (inside)");
    }
    if (*text_of(side, "error") != '\0') {
        add(text, "  returned %.40s", text_of(side, "error"));
    }
}

/*
 * What a side did. Of a rank that died, ended or does not come the last call is known, which is not the one that its
 * peers wait in: without the word the two rows read like a mismatch.
 */
static void describe_side(const json_t *verdict, size_t index, const char *field, struct text *text, size_t mark[2])
{
    const json_t *side = json_array_get(json_object_get(verdict, "evidence"), index);
    if (index == 0 && strcmp(text_of(verdict, "family"), "process") == 0 && *text_of(side, "op") != '\0') {
        add(text, "last: ");
    }
    if (strcmp(text_of(verdict, "code"), "moe-recompute-differs") == 0 && *text_of(side, "phase") != '\0') {
        add(text, strcmp(text_of(side, "phase"), "recompute") == 0 ? "recomputed: " : "first: ");
    }
    describe_call(side, field, text, mark);
}

static void put_call(const struct printer *p, const struct text *text, const size_t mark[2], const char *style)
{
    put_clean(p, text->bytes, mark[0]);
    paint(p, style);
    put_clean(p, text->bytes + mark[0], mark[1] - mark[0]);
    paint(p, PLAIN);
    put_clean(p, text->bytes + mark[1], text->used - mark[1]);
}

/* The last component of a path. */
static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static void put_frame(const struct printer *p, const json_t *frame)
{
    int64_t line = 0;
    int64_t offset = 0;
    bool placed = number_of(frame, "line", &line) && *text_of(frame, "file") != '\0';
    number_of(frame, "offset", &offset);
    struct text text = {.used = 0};
    if (*text_of(frame, "function") != '\0') {
        add(&text, "%.80s  ", text_of(frame, "function"));
    }
    if (placed) {
        add(&text, "%.80s:%" PRId64, base_of(text_of(frame, "file")), line);
    } else {
        const char *module = text_of(frame, "module");
        add(&text, "%.80s+0x%" PRIx64, *module != '\0' ? base_of(module) : "?", (uint64_t)offset);
    }
    put(p, text.bytes);
    fputc('\n', p->out);
}

static const json_t *frames_of(const json_t *verdict, const json_t *side)
{
    int64_t index;
    if (!number_of(side, "callsite", &index) || index < 0) {
        return NULL;
    }
    const json_t *site = json_array_get(json_object_get(verdict, "callsites"), (size_t)index);
    return json_object_get(site, "frames");
}

/* Whether an earlier side came from the same call site. */
static bool same_place(const json_t *verdict, size_t index)
{
    const json_t *evidence = json_object_get(verdict, "evidence");
    const json_t *frames = frames_of(verdict, json_array_get(evidence, index));
    for (size_t i = 0; frames != NULL && i < index; i++) {
        if (frames_of(verdict, json_array_get(evidence, i)) == frames) {
            return true;
        }
    }
    return false;
}

static void print_side(const struct printer *p, const json_t *verdict, size_t index, size_t column)
{
    const json_t *side = json_array_get(json_object_get(verdict, "evidence"), index);
    char ranks[64];
    const char *set = text_of(side, "ranks_text");
    ranks_label(ranks, set);
    gutter(p, width_of(ranks) + 1 > GUTTER && width_of(set) + 1 <= GUTTER ? set : ranks, index == 0 ? BOLD : "");
    struct text call = {.used = 0};
    size_t mark[2] = {0, 0};
    describe_side(verdict, index, text_of(verdict, "field"), &call, mark);
    put_call(p, &call, mark, index == 0 ? RED : GREEN);
    const json_t *frames = frames_of(verdict, side);
    size_t n = json_array_size(frames);
    if (n == 0) {
        fputc('\n', p->out);
        return;
    }
    size_t at = GUTTER + width_of(call.bytes);
    if (same_place(verdict, index)) {
        pad(p, at, column);
        paint(p, DIM);
        fputs("same place\n", p->out);
        paint(p, PLAIN);
        return;
    }
    for (size_t i = 0; i < n && i <= CALLERS; i++) {
        if (i > 0 && strncmp(text_of(json_array_get(frames, i), "function"), "__libc_start", 12) == 0) {
            break; /* what calls main tells nobody anything */
        }
        if (i == 0 && at > column) {
            fputc('\n', p->out);
            at = 0;
        }
        pad(p, at, column);
        paint(p, i > 0 ? DIM : "");
        fputs(i > 0 ? "from " : "", p->out);
        put_frame(p, json_array_get(frames, i));
        paint(p, i > 0 ? PLAIN : "");
        at = 0;
    }
}

static void print_evidence(const struct printer *p, const json_t *verdict)
{
    const json_t *evidence = json_object_get(verdict, "evidence");
    size_t widest = 0;
    for (size_t i = 0; i < json_array_size(evidence); i++) {
        struct text call = {.used = 0};
        size_t mark[2];
        describe_side(verdict, i, "", &call, mark);
        size_t width = width_of(call.bytes);
        widest = width > widest && width <= CALL_MOST ? width : widest;
    }
    for (size_t i = 0; i < json_array_size(evidence); i++) {
        print_side(p, verdict, i, GUTTER + widest + 3);
    }
}

static void print_waiting(const struct printer *p, const json_t *verdict)
{
    const char *text = text_of(verdict, "waiting_text");
    size_t n = json_array_size(json_object_get(verdict, "waiting"));
    if (*text == '\0') {
        return;
    }
    gutter(p, "waiting", DIM);
    put(p, text);
    fprintf(p->out, " (%zu rank%s)\n", n, n == 1 ? "" : "s");
}

/* What an earlier verdict said counts no more; and what this one does not exclude. */
static void print_life(const struct printer *p, const json_t *verdict)
{
    static const struct {
        const char *member, *label, *words;
    } ways[] = {{"supersedes", "instead", "replaces verdict %" PRId64 ", which counts no more"},
                {"confirms", "confirms", "verdict %" PRId64 ", which was not proven"},
                {"withdraws", "withdrawn", "verdict %" PRId64 " counts no more"}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        int64_t number;
        if (number_of(verdict, ways[i].member, &number)) {
            gutter(p, ways[i].label, DIM);
            fprintf(p->out, ways[i].words, number);
            fputc('\n', p->out);
        }
    }
    const json_t *codes = json_object_get(verdict, "may_be");
    struct text text = {.used = 0};
    for (size_t i = 0; i < json_array_size(codes); i++) {
        const char *code = json_string_value(json_array_get(codes, i));
        add(&text, "%s%.40s", i > 0 ? ", " : "", code != NULL ? code : "?");
    }
    if (text.used > 0) {
        gutter(p, "or", DIM);
        put_wrapped(p, text.bytes);
    }
}

static void print_remedy(const struct printer *p, const json_t *verdict)
{
    const json_t *remedy = json_object_get(verdict, "remedy");
    if (!json_is_object(remedy)) {
        return;
    }
    bool acted = json_is_true(json_object_get(verdict, "remedied"));
    struct text text = {.used = 0};
    add(&text, "%.40s%s: %.300s", text_of(remedy, "name"), acted ? " (has acted)" : "", text_of(remedy, "text"));
    gutter(p, "remedy", GREEN);
    put_wrapped(p, text.bytes);
    if (!acted && *text_of(remedy, "command") != '\0') {
        gutter(p, "", "");
        paint(p, BOLD);
        fputs("$ ", p->out);
        put(p, text_of(remedy, "command"));
        paint(p, PLAIN);
        fputc('\n', p->out);
    }
}

/* The end of the first sentence: a full stop before a blank and a capital letter, or the whole text. */
static size_t first_sentence(const char *text)
{
    for (const char *at = strstr(text, ". "); at != NULL; at = strstr(at + 1, ". ")) {
        if (at[2] >= 'A' && at[2] <= 'Z') {
            return (size_t)(at - text) + 1;
        }
    }
    return strlen(text);
}

int roll_verdict_print_line(FILE *out, const json_t *verdict, bool color)
{
    struct printer p = {out, color};
    const char *certainty = text_of(verdict, "certainty");
    const char *code = text_of(verdict, "code");
    const char *text = text_of(verdict, *text_of(verdict, "text") != '\0' ? "text" : "title");
    if (*code == '\0' || *certainty == '\0') {
        return ROLL_E_CORRUPT;
    }
    gutter(&p, certainty, DIM);
    put(&p, code);
    pad(&p, width_of(code) + 1 > CODE ? CODE - 2 : width_of(code), CODE);
    paint(&p, DIM);
    put_clean(&p, text, first_sentence(text));
    paint(&p, PLAIN);
    fputc('\n', out);
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}

int roll_verdict_print(FILE *out, const json_t *verdict, bool color)
{
    struct printer p = {out, color};
    if (*text_of(verdict, "code") == '\0' || *text_of(verdict, "certainty") == '\0') {
        return ROLL_E_CORRUPT;
    }
    print_header(&p, verdict);
    print_where(&p, verdict);
    print_made(&p, verdict);
    print_evidence(&p, verdict);
    print_waiting(&p, verdict);
    if (*text_of(verdict, "text") != '\0') {
        gutter(&p, "why", DIM);
        put_wrapped(&p, text_of(verdict, "text"));
    }
    print_life(&p, verdict);
    print_remedy(&p, verdict);
    fputc('\n', out); /* blocks stand apart */
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}

int roll_verdict_print_of(FILE *out, const json_t *verdict, const json_t *retired_by, bool color)
{
    if (retired_by == NULL) {
        return roll_verdict_print(out, verdict, color);
    }
    struct printer p = {out, color};
    int64_t number = 0, by = 0;
    number_of(verdict, "number", &number);
    number_of(retired_by, "number", &by);
    bool confirmed = json_is_integer(json_object_get(retired_by, "confirms"));
    bool withdrawn = json_is_integer(json_object_get(retired_by, "withdraws"));
    gutter(&p, "earlier", DIM);
    paint(&p, DIM);
    fprintf(out, "verdict %" PRId64 " (", number);
    put(&p, text_of(verdict, "certainty"));
    fputc(' ', out);
    put(&p, text_of(verdict, "code"));
    fprintf(out, ") was %s by verdict %" PRId64 "\n\n",
            confirmed   ? "confirmed"
            : withdrawn ? "withdrawn"
                        : "replaced",
            by);
    paint(&p, PLAIN);
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}
