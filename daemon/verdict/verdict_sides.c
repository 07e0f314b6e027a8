/*
 * verdict_sides.c: the evidence of a verdict for people: what each side called (verdict_calls.c), and from where. The
 * field in which the sides differ is painted.
 */
#include "daemon/verdict/verdict_print.h"

#include "daemon/base/text.h"
#include "daemon/stack/symbol.h"

#include <inttypes.h>
#include <string.h>

#define CALLERS    2 /* frames shown above the innermost one */
#define CALL_MOST  48
#define TEXT_LEAST 40 /* columns that a line of source has at least */

static void put_call(const struct roll_printer *p, const struct roll_line *text, const size_t mark[2],
                     const char *style)
{
    roll_text_put(text->bytes, mark[0], p->out);
    roll_printer_paint(p, style);
    roll_text_put(text->bytes + mark[0], mark[1] - mark[0], p->out);
    roll_printer_paint(p, ROLL_PLAIN);
    roll_text_put(text->bytes + mark[1], text->used - mark[1], p->out);
}

/* The last component of a path. */
static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static void put_frame(const struct roll_printer *p, const json_t *frame)
{
    int64_t line = 0;
    int64_t offset = 0;
    bool placed = roll_member_number(frame, "line", &line) && *roll_member_text(frame, "file") != '\0';
    roll_member_number(frame, "offset", &offset);
    struct roll_line text = {.used = 0};
    if (*roll_member_text(frame, "function") != '\0') {
        roll_line_add(&text, "%.80s  ", roll_member_text(frame, "function"));
    }
    if (placed) {
        roll_line_add(&text, "%.80s:%" PRId64, base_of(roll_member_text(frame, "file")), line);
    } else {
        const char *module = roll_member_text(frame, "module");
        roll_line_add(&text, "%.80s+0x%" PRIx64, *module != '\0' ? base_of(module) : "?", (uint64_t)offset);
    }
    roll_printer_put(p, text.bytes);
    fputc('\n', p->out);
}

/* What the line says in its file, below its frame. */
static void put_text(const struct roll_printer *p, const json_t *frame, size_t column)
{
    struct roll_line text = {.used = 0};
    size_t room = column + TEXT_LEAST < p->columns ? p->columns - column : TEXT_LEAST;
    roll_line_add(&text, "%.400s", roll_member_text(frame, "text"));
    if (text.used > 0) {
        roll_text_fit(text.bytes, sizeof(text.bytes), room);
        roll_printer_pad(p, 0, column);
        roll_printer_paint(p, ROLL_DIM);
        roll_printer_put(p, text.bytes);
        roll_printer_paint(p, ROLL_PLAIN);
        fputc('\n', p->out);
    }
}

static const json_t *frames_of(const json_t *verdict, const json_t *side)
{
    int64_t index;
    if (!roll_member_number(side, "callsite", &index) || index < 0) {
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

static bool is_native(const json_t *frame)
{
    return strcmp(roll_member_text(frame, "language"), "python") != 0;
}

static bool is_stand(const json_t *frame)
{
    return json_is_true(json_object_get(frame, "main_thread"));
}

json_t *roll_printer_telling(const struct roll_printer *p, const json_t *frames)
{
    enum { OWN, STAND, PYTHON, NATIVE, KINDS };
    json_t *kind[KINDS], *best = NULL;
    for (size_t k = 0; k < KINDS; k++) {
        kind[k] = json_array();
    }
    for (size_t i = 0; i < json_array_size(frames); i++) {
        json_t *frame = json_array_get(frames, i);
        bool library = json_is_true(json_object_get(frame, "library"));
        size_t k = is_native(frame) ? NATIVE : library ? PYTHON : is_stand(frame) ? STAND : OWN;
        json_array_append(kind[p->frames ? 0 : k], frame);
    }
    for (size_t k = 0; k < KINDS; k++) {
        best = best == NULL && json_array_size(kind[k]) > 0 ? json_incref(kind[k]) : best;
        json_decref(kind[k]);
    }
    return best != NULL ? best : json_array();
}

/* Whether the main thread waits for a backward pass where it stands: what it called says so. */
static bool is_backward(const json_t *frames)
{
    for (size_t i = 0; i < json_array_size(frames); i++) {
        const json_t *frame = json_array_get(frames, i);
        if (is_stand(frame) && json_is_true(json_object_get(frame, "library")) &&
            strstr(roll_member_text(frame, "function"), "backward") != NULL) {
            return true;
        }
    }
    return false;
}

/* Whether nothing follows but what calls main or begins a thread, which tells nobody anything. */
static bool only_begins(const json_t *frames, size_t i)
{
    bool only = strncmp(roll_member_text(json_array_get(frames, i), "function"), "__libc_start", 12) == 0;
    for (bool nameless = !only; nameless && i < json_array_size(frames); i++) {
        const json_t *frame = json_array_get(frames, i);
        const char *function = roll_member_text(frame, "function");
        nameless = (function[0] == '\0' && roll_path_is_libc(roll_member_text(frame, "module"))) ||
                   strcmp(function, "_start") == 0;
        only = nameless;
    }
    return only;
}

/* The frames that tell where a call was made, from this column on; `at` is where the line stands now. */
static void print_place(const struct roll_printer *p, const json_t *frames, size_t at, size_t column)
{
    json_t *telling = roll_printer_telling(p, frames);
    bool stand = false, native = json_array_size(telling) > 0 && is_native(json_array_get(telling, 0));
    for (size_t i = 0; i < json_array_size(telling) && (i <= CALLERS || p->frames); i++) {
        const json_t *frame = json_array_get(telling, i);
        if (i > 0 && only_begins(telling, i)) {
            break;
        }
        if (i == 0 && at >= column) {
            fputc('\n', p->out);
            at = 0;
        }
        roll_printer_pad(p, at, column);
        if (is_stand(frame) && !stand) { /* first of all: the call itself came from a thread without a line to show */
            stand = true;
            roll_printer_put(p, roll_symbols_stand_words(is_backward(frames)));
            fputc('\n', p->out);
            roll_printer_pad(p, 0, column);
        }
        bool goes_native = is_native(frame) && !native; /* these follow the lines of Python, and did not call them */
        if (goes_native) {
            native = true;
            roll_printer_put(p, "in native code");
            fputc('\n', p->out);
            roll_printer_pad(p, 0, column);
        }
        roll_printer_paint(p, i > 0 ? ROLL_DIM : "");
        fputs(i > 0 && !goes_native ? "from " : "", p->out);
        put_frame(p, frame);
        roll_printer_paint(p, i > 0 ? ROLL_PLAIN : "");
        if (i == 0 || p->frames) {
            put_text(p, frame, column + 2);
        }
        at = 0;
    }
    json_decref(telling);
}

static void print_side(const struct roll_printer *p, const json_t *verdict, size_t index, size_t column)
{
    const json_t *side = json_array_get(json_object_get(verdict, "evidence"), index);
    char ranks[64];
    const char *set = roll_member_text(side, "ranks_text");
    roll_printer_ranks(ranks, set);
    roll_printer_gutter(
        p,
        roll_text_width(ranks) + 1 > ROLL_PRINT_GUTTER && roll_text_width(set) + 1 <= ROLL_PRINT_GUTTER ? set : ranks,
        index == 0 ? ROLL_BOLD : "");
    struct roll_line call = {.used = 0};
    size_t mark[2] = {0, 0};
    roll_describe_side(verdict, index, roll_member_text(verdict, "field"), &call, mark);
    put_call(p, &call, mark, index == 0 ? ROLL_RED : ROLL_GREEN);
    const json_t *frames = frames_of(verdict, side);
    size_t n = json_array_size(frames);
    if (n == 0) {
        fputc('\n', p->out);
        return;
    }
    size_t at = ROLL_PRINT_GUTTER + roll_text_width(call.bytes);
    if (same_place(verdict, index)) {
        if (at >= column) {
            fputc('\n', p->out);
            at = 0;
        }
        roll_printer_pad(p, at, column);
        roll_printer_paint(p, ROLL_DIM);
        fputs("same place\n", p->out);
        roll_printer_paint(p, ROLL_PLAIN);
        return;
    }
    print_place(p, frames, at, column);
}

/* What has the call's count, in a line of its own; sides that carry the same say it once. */
static void put_tensors(const struct roll_printer *p, const json_t *evidence, size_t index)
{
    const char *tensors = roll_member_text(json_array_get(evidence, index), "tensors");
    for (size_t i = 0; i < index; i++) {
        if (strcmp(tensors, roll_member_text(json_array_get(evidence, i), "tensors")) == 0) {
            return;
        }
    }
    if (*tensors != '\0') {
        char text[256]; /* a call of the job's own may have the same count: that it carries them is not known */
        snprintf(text, sizeof(text), "as many as %.240s", tensors);
        roll_printer_pad(p, 0, ROLL_PRINT_GUTTER);
        roll_printer_wrap(p, text);
    }
}

void roll_printer_evidence(const struct roll_printer *p, const json_t *verdict)
{
    const json_t *evidence = json_object_get(verdict, "evidence");
    size_t widest = 0;
    for (size_t i = 0; i < json_array_size(evidence); i++) {
        struct roll_line call = {.used = 0};
        size_t mark[2];
        roll_describe_side(verdict, i, "", &call, mark);
        size_t width = roll_text_width(call.bytes);
        widest = width > widest && width <= CALL_MOST ? width : widest;
    }
    for (size_t i = 0; i < json_array_size(evidence); i++) {
        print_side(p, verdict, i, ROLL_PRINT_GUTTER + widest + 3);
        put_tensors(p, evidence, i);
    }
}
