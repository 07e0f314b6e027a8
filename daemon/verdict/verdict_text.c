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
 * One gutter, then content: the eye finds who, what and what to do without reading. The printer works from JSON alone,
 * so that a stored verdict prints as a live one. Typed verdicts (verdict.h) as its input were rejected: a console
 * prints the codes, operations and phases of a newer daemon as well, for which the console knows no number. Text from
 * other processes is stripped of control characters: it must not steer a terminal.
 */
#include "daemon/verdict/verdict_text.h"

#include "daemon/verdict/verdict_print.h"
#include "daemon/verdict/verdict_tally.h"
#include "trace/err.h"

#include <inttypes.h>
#include <string.h>

/* parts */

static const char *style_of(const char *certainty)
{
    static const struct {
        const char *certainty, *style;
    } styles[] = {{"proven", ROLL_BOLD ROLL_RED},
                  {"predicted", ROLL_BOLD ROLL_YELLOW},
                  {"suspected", ROLL_BOLD ROLL_CYAN},
                  {"note", ROLL_BOLD ROLL_GREEN}};
    for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++) {
        if (strcmp(styles[i].certainty, certainty) == 0) {
            return styles[i].style;
        }
    }
    return ROLL_BOLD;
}

/* Who is named at the top: the culprits; where the calls do not say who is wrong, both sides, as the text names them.
 */
static void header_ranks(const json_t *verdict, char *out, size_t size)
{
    const json_t *evidence = json_object_get(verdict, "evidence");
    char one[64], other[64];
    roll_printer_ranks(one, roll_member_text(verdict, "culprits_text"));
    other[0] = '\0';
    if (one[0] == '\0' && json_array_size(evidence) == 2 &&
        strcmp(roll_member_text(verdict, "certainty"), "note") != 0) {
        roll_printer_ranks(one, roll_member_text(json_array_get(evidence, 0), "ranks_text"));
        roll_printer_ranks(other, roll_member_text(json_array_get(evidence, 1), "ranks_text"));
    }
    snprintf(out, size, "%s%s%s", one, other[0] != '\0' ? " or " : "", other);
}

static void print_header(const struct roll_printer *p, const json_t *verdict, bool numbered)
{
    char certainty[32];
    snprintf(certainty, sizeof(certainty), "%s", roll_member_text(verdict, "certainty"));
    const char *style = style_of(certainty);
    for (char *c = certainty; *c != '\0'; c++) {
        *c = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    }
    roll_printer_gutter(p, certainty, style);
    roll_printer_paint(p, ROLL_BOLD);
    roll_printer_put(p, roll_member_text(verdict, "code"));
    char ranks[160];
    header_ranks(verdict, ranks, sizeof(ranks));
    if (ranks[0] != '\0') {
        fputs("  ", p->out);
        roll_printer_put(p, ranks);
    }
    roll_printer_paint(p, ROLL_PLAIN);
    int64_t number = 0;
    if (numbered && roll_member_number(verdict, "number", &number)) {
        fprintf(p->out, "  (verdict %" PRId64 ")", number);
    }
    fputc('\n', p->out);
    if (*roll_member_text(verdict, "title") != '\0') {
        roll_printer_gutter(p, "", "");
        roll_printer_wrap(p, roll_member_text(verdict, "title"));
    }
}

/* Whether the verdict is about a call in a communicator's sequence: moe_core's reports, numbers and the creation itself
 * have no place in it. */
static bool is_call(const json_t *verdict)
{
    const char *family = roll_member_text(verdict, "family");
    bool creates = strcmp(roll_member_text(verdict, "code"), "init-missing") == 0;
    return strcmp(family, "moe") != 0 && strcmp(family, "numbers") != 0 && !creates;
}

/* The name is "communicator " and the label, with more behind it: then the label stands in quotes. */
static bool is_by_label(const char *name, const char *label)
{
    static const char word[] = "communicator ";
    size_t n = sizeof(word) - 1;
    return strncmp(name, word, n) == 0 && strncmp(name + n, label, strlen(label)) == 0;
}

static void add_comm(struct roll_line *text, const json_t *verdict)
{
    const json_t *comm = json_object_get(verdict, "comm");
    if (!json_is_object(comm)) {
        return;
    }
    int64_t size = 0;
    int64_t seq = 0;
    const char *label = roll_member_text(comm, "label"), *name = roll_member_text(comm, "name");
    roll_member_number(comm, "size", &size);
    if (roll_member_number(verdict, "seq", &seq) && is_call(verdict)) {
        roll_line_add(text, "call #%" PRId64 " on ", seq);
    }
    if (*name != '\0' && (*label == '\0' || !is_by_label(name, label))) {
        roll_line_add(text, "%.120s, ", name);
    } else if (strstr(roll_member_text(comm, "name"), " of ") != NULL) { /* other communicators have the label, too */
        roll_line_add(text, "communicator \"%.64s\"%.100s, ", label, strstr(roll_member_text(comm, "name"), " of "));
    } else if (*label != '\0' && size > 0) {
        roll_line_add(text, "communicator \"%.64s\" (%" PRId64 " ranks), ", label, size);
    } else if (*label != '\0') { /* of another tool, which does not tell how many there are */
        roll_line_add(text, "communicator \"%.64s\", ", label);
    } else {
        roll_line_add(text, "communicator %.20s (%" PRId64 " ranks), ", roll_member_text(comm, "key"), size);
    }
}

/* A number with a comma before each three digits: "1,204". */
static void add_grouped(struct roll_line *text, int64_t number)
{
    if (number >= 1000) {
        add_grouped(text, number / 1000);
        roll_line_add(text, ",%03" PRId64, number % 1000);
    } else {
        roll_line_add(text, "%" PRId64, number);
    }
}

/* Adds the steps of both sides, where they were told and differ: "rank 3 in step 11, ranks 0-2 in step 12". They are
 * those of the calls shown, and of a rank that made none that of its last call: hosts run ahead of each other, which
 * says nothing. False: there is one step at most. */
static bool add_steps(struct roll_line *text, const json_t *verdict)
{
    const json_t *evidence = json_object_get(verdict, "evidence");
    const json_t *side[2] = {json_array_get(evidence, 0), json_array_get(evidence, 1)};
    int64_t step[2];
    if (json_array_size(evidence) != 2 || !roll_member_number(side[0], "step", &step[0]) ||
        !roll_member_number(side[1], "step", &step[1]) || step[0] == step[1] ||
        strcmp(roll_member_text(side[0], "ranks_text"), roll_member_text(side[1], "ranks_text")) == 0) {
        return false;
    }
    for (size_t i = 0; i < 2; i++) {
        char ranks[64];
        bool made = json_is_string(json_object_get(side[i], "op"));
        roll_printer_ranks(ranks, roll_member_text(side[i], "ranks_text"));
        roll_line_add(text, made ? "%s in step %" PRId64 ", " : "%s last in step %" PRId64 ", ", ranks, step[i]);
    }
    return true;
}

static void print_where(const struct roll_printer *p, const json_t *verdict)
{
    static const char *const places[] = {"step", "microbatch", "layer"};
    struct roll_line text = {.used = 0};
    add_comm(&text, verdict);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int64_t number;
        bool is_in_layer =
            json_is_integer(json_object_get(verdict, "layer")) || *roll_member_text(verdict, "phase") != '\0';
        if (i == 1 && !is_in_layer) {
            continue; /* a job that tells its steps alone tells no microbatch */
        }
        if (i == 0 && add_steps(&text, verdict)) {
            continue;
        }
        if (i == 2 && json_array_size(json_object_get(verdict, "layers")) > 1) {
            roll_line_add(&text, "layers %.80s, ", roll_member_text(verdict, "layers_text"));
        } else if (i == 0 && strcmp(roll_member_text(verdict, "step_source"), "learned") == 0 &&
                   roll_member_number(verdict, "step", &number)) {
            roll_line_add(&text, "step ~");
            add_grouped(&text, number);
            roll_line_add(&text, " (learned), ");
        } else if (roll_member_number(verdict, places[i], &number)) {
            roll_line_add(&text, "%s %" PRId64 ", ", places[i], number);
        }
    }
    if (*roll_member_text(verdict, "phase") != '\0') {
        roll_line_add(&text, "%.20s, ", roll_member_text(verdict, "phase"));
    }
    if (text.used > 2) {
        text.bytes[text.used - 2] = '\0'; /* the last ", " */
        roll_printer_gutter(p, "where", ROLL_DIM);
        roll_printer_wrap(p, text.bytes);
    }
}

/* Prints where a communicator was made: the job's line where that is known; of a communicator without a label also how,
 * and the place in native code, because its members alone may not tell a reader which one it is. */
static void print_made(const struct roll_printer *p, const json_t *verdict)
{
    const json_t *comm = json_object_get(verdict, "comm");
    struct roll_line text = {.used = 0};
    int64_t site = -1, line = 0;
    if (*roll_member_text(comm, "made_at") != '\0') {
        const char *made = roll_member_text(comm, "made");
        roll_line_add(&text, "made at %.150s", roll_member_text(comm, "made_at"));
        roll_line_add(&text, *made != '\0' ? ", %.120s" : "%.0s", strncmp(made, "made ", 5) == 0 ? made + 5 : made);
        roll_printer_gutter(p, "", "");
        roll_printer_wrap(p, text.bytes);
        return;
    }
    if (*roll_member_text(comm, "made") == '\0' || *roll_member_text(comm, "label") != '\0') {
        return;
    }
    roll_line_add(&text, "communicator %.150s", roll_member_text(comm, "made"));
    if (roll_member_number(comm, "callsite", &site)) {
        const json_t *frames =
            json_object_get(json_array_get(json_object_get(verdict, "callsites"), (size_t)site), "frames");
        json_t *telling = roll_printer_telling(p, frames);
        const json_t *frame = json_array_get(telling, 0);
        roll_line_add(&text, *roll_member_text(frame, "function") ? ", in %.80s" : "%.0s",
                      roll_member_text(frame, "function"));
        if (roll_member_number(frame, "line", &line) && *roll_member_text(frame, "file") != '\0') {
            const char *slash = strrchr(roll_member_text(frame, "file"), '/');
            roll_line_add(&text, " %.80s:%" PRId64, slash ? slash + 1 : roll_member_text(frame, "file"), line);
        }
        json_decref(telling);
    }
    roll_printer_gutter(p, "", "");
    roll_printer_wrap(p, text.bytes);
}

static void print_waiting(const struct roll_printer *p, const json_t *verdict)
{
    const char *text = roll_member_text(verdict, "waiting_text");
    size_t n = json_array_size(json_object_get(verdict, "waiting"));
    if (*text == '\0') {
        return;
    }
    roll_printer_gutter(p, "waiting", ROLL_DIM);
    roll_printer_put(p, text);
    /* A verdict is never changed; who waits by now, `why` knows. Of a prediction nobody waits yet. */
    bool predicted = strcmp(roll_member_text(verdict, "certainty"), "predicted") == 0;
    fprintf(p->out, " (%zu rank%s)%s\n", n, n == 1 ? "" : "s", predicted ? "" : " when this was found");
}

/* How the engine begins the sentence with what else the calls fit (explain.c): what it says is not said again. */
#define MAY_BE_WORDS "The calls known so far fit "

static const struct {
    const char *member, *does;
} ways[] = {
#define WAY(member, does, done) {#member, does},
#include "daemon/verdict/life.def"
};

/* Prints which earlier verdict counts no more, and which verdicts this one does not exclude. */
static void print_life(const struct roll_printer *p, const json_t *verdict)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        int64_t number;
        if (roll_member_number(verdict, ways[i].member, &number)) {
            roll_printer_gutter(p, ways[i].does, ROLL_DIM);
            fprintf(p->out, "verdict %" PRId64 ", which %s\n", number,
                    strcmp(ways[i].member, "confirms") == 0 ? "was not proven" : "counts no more");
        }
    }
    const json_t *codes = json_object_get(verdict, "may_be");
    struct roll_line text = {.used = 0};
    for (size_t i = 0; i < json_array_size(codes); i++) {
        const char *code = json_string_value(json_array_get(codes, i));
        roll_line_add(&text, "%s%.40s", i > 0 ? ", " : "", code != NULL ? code : "?");
    }
    if (text.used > 0 && strstr(roll_member_text(verdict, "text"), MAY_BE_WORDS) == NULL) {
        roll_printer_gutter(p, "or", ROLL_DIM);
        roll_printer_wrap(p, text.bytes);
    }
}

static void print_remedy(const struct roll_printer *p, const json_t *verdict)
{
    const json_t *remedy = json_object_get(verdict, "remedy");
    if (!json_is_object(remedy)) {
        return;
    }
    bool acted = json_is_true(json_object_get(verdict, "remedied"));
    struct roll_line text = {.used = 0};
    const char *instead = roll_member_text(remedy, "instead");
    const char *command = *instead != '\0' ? instead : roll_member_text(remedy, "command");
    roll_line_add(&text, "%.40s%s: %.300s%s", roll_member_text(remedy, "name"), acted ? " (has acted)" : "",
                  roll_member_text(remedy, "text"),
                  *instead != '\0' ? "; too late for this step: start the job again with it" : "");
    roll_printer_gutter(p, "remedy", ROLL_GREEN);
    roll_printer_wrap(p, text.bytes);
    if (!acted && *command != '\0') {
        roll_printer_gutter(p, "", "");
        roll_printer_paint(p, ROLL_BOLD);
        fputs("$ ", p->out);
        roll_printer_put(p, command);
        roll_printer_paint(p, ROLL_PLAIN);
        fputc('\n', p->out);
    }
}

int roll_verdict_print(FILE *out, const json_t *verdict, unsigned style)
{
    struct roll_printer p = roll_printer_of(out, style);
    if (*roll_member_text(verdict, "code") == '\0' || *roll_member_text(verdict, "certainty") == '\0') {
        return ROLL_E_CORRUPT;
    }
    print_header(&p, verdict, (style & ROLL_VERDICT_NUMBER) != 0);
    print_where(&p, verdict);
    print_made(&p, verdict);
    roll_printer_evidence(&p, verdict);
    print_waiting(&p, verdict);
    if (*roll_member_text(verdict, "text") != '\0') {
        roll_printer_gutter(&p, "why", ROLL_DIM);
        roll_printer_wrap(&p, roll_member_text(verdict, "text"));
    }
    print_life(&p, verdict);
    print_remedy(&p, verdict);
    fputc('\n', out); /* blocks stand apart */
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}

int roll_verdict_print_of(FILE *out, const json_t *verdict, const json_t *retired_by, unsigned style)
{
    if (retired_by == NULL) {
        return roll_verdict_print(out, verdict, style);
    }
    struct roll_printer p = roll_printer_of(out, style);
    int64_t number = 0, by = 0;
    roll_member_number(verdict, "number", &number);
    roll_member_number(retired_by, "number", &by);
    roll_printer_gutter(&p, "earlier", ROLL_DIM);
    roll_printer_paint(&p, ROLL_DIM);
    fprintf(out, "verdict %" PRId64 " (", number);
    roll_printer_put(&p, roll_member_text(verdict, "certainty"));
    fputc(' ', out);
    roll_printer_put(&p, roll_member_text(verdict, "code"));
    fprintf(out, ") was %s by verdict %" PRId64 "\n\n", roll_verdict_json_makes(retired_by), by);
    roll_printer_paint(&p, ROLL_PLAIN);
    return ferror(out) ? ROLL_E_IO : ROLL_OK;
}
