/*
 * verdict.c: copies of verdicts, and lists of them.
 *
 * A copy is a plain structure with the engine's own structure inside, so that there is one set of names for what a
 * verdict says. The frames of one call site, and their strings, lie in one block of memory.
 */
#include "daemon/verdict/verdict.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

/* call sites */

static size_t bytes_of(const char *text)
{
    return text != NULL ? strlen(text) + 1 : 1;
}

/* Copies a string to *room, which moves on behind it. */
static const char *put(char **room, const char *text)
{
    char *copy = *room;
    size_t bytes = bytes_of(text);
    memcpy(copy, text != NULL ? text : "", bytes);
    *room += bytes;
    return copy;
}

static bool alike(const char *a, const char *b)
{
    return strcmp(a != NULL ? a : "", b != NULL ? b : "") == 0;
}

/* Whether a line may say the same in both: what was never read is no difference. */
static bool says_alike(const struct roll_symbol_frame *a, const struct roll_symbol_frame *b)
{
    return bytes_of(a->text) == 1 || bytes_of(b->text) == 1 || strcmp(a->text, b->text) == 0;
}

static bool is_site(const struct roll_verdict_site *site, const struct roll_symbol_frame *frame, size_t n)
{
    bool same = site->frames == n;
    for (size_t i = 0; same && i < n; i++) {
        const struct roll_symbol_frame *one = &site->frame[i];
        same = alike(one->function, frame[i].function) && alike(one->file, frame[i].file) &&
               alike(one->module, frame[i].module) && one->line == frame[i].line && one->offset == frame[i].offset &&
               one->python == frame[i].python && one->stand == frame[i].stand && says_alike(one, &frame[i]);
    }
    return same;
}

/* Finds the call site with these frames in the copy, or adds it. *index as in side_site. 0 or NOMEM. */
static int note_site(struct roll_verdict_copy *copy, const struct roll_symbol_frame *frame, size_t n, int *index)
{
    for (uint32_t i = 0; i < copy->sites; i++) {
        if (is_site(&copy->site[i], frame, n)) {
            *index = (int)i;
            return 0;
        }
    }
    size_t bytes = n * sizeof(*frame);
    for (size_t i = 0; i < n; i++) {
        bytes +=
            bytes_of(frame[i].function) + bytes_of(frame[i].file) + bytes_of(frame[i].module) + bytes_of(frame[i].text);
    }
    struct roll_symbol_frame *own = malloc(bytes);
    if (own == NULL) {
        return ROLL_E_NOMEM;
    }
    char *room = (char *)(own + n);
    for (size_t i = 0; i < n; i++) {
        own[i] = frame[i];
        own[i].function = put(&room, frame[i].function);
        own[i].file = put(&room, frame[i].file);
        own[i].module = put(&room, frame[i].module);
        own[i].text = put(&room, frame[i].text);
    }
    *index = (int)copy->sites;
    copy->site[copy->sites++] = (struct roll_verdict_site){.frame = own, .frames = n};
    return 0;
}

static int resolve(struct roll_verdict_copy *copy, uint32_t source, uint32_t callsite, const roll_engine_t *engine,
                   roll_symbols_t *symbols, int *index)
{
    struct roll_view_source view;
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    if (symbols == NULL || engine == NULL || callsite == 0 || !roll_engine_source(engine, source, &view)) {
        return 0;
    }
    int n = roll_symbols_callsite(symbols, view.info.stream, callsite, frame, ROLL_SYMBOL_FRAMES);
    return n > 0 ? note_site(copy, frame, (size_t)n, index) : 0;
}

static int resolve_all(struct roll_verdict_copy *copy, const roll_engine_t *engine, roll_symbols_t *symbols)
{
    const struct roll_verdict *v = &copy->said;
    int err = 0;
    for (uint32_t i = 0; i < v->sides && err == 0; i++) {
        const struct roll_verdict_side *side = &v->side[i];
        if (side->rec.op != ROLL_OP_NONE) {
            err = resolve(copy, side->source, side->rec.callsite, engine, symbols, &copy->side_site[i]);
        }
    }
    if (v->comm_key != 0 && err == 0) {
        err = resolve(copy, v->comm_made_source, v->comm_made_callsite, engine, symbols, &copy->comm_site);
    }
    return err;
}

/* copies */

/* Copies a text as its JSON will show it: what is no UTF-8 is cleaned once, for all who print the text. */
static char *copy_text(const char *text)
{
    json_t *string = roll_text_to_json(text != NULL ? text : "");
    char *copy = string != NULL ? strdup(json_string_value(string)) : NULL;
    json_decref(string);
    return copy;
}

static int copy_ranks(struct roll_verdict *to, const struct roll_verdict *from)
{
    int err = roll_rankset_copy(&to->culprits, &from->culprits);
    err = err ? err : roll_rankset_copy(&to->waiting, &from->waiting);
    err = err ? err : roll_rankset_copy(&to->layers, &from->layers);
    for (uint32_t i = 0; i < to->sides && err == 0; i++) {
        err = roll_rankset_copy(&to->side[i].ranks, &from->side[i].ranks);
    }
    return err;
}

/* Copies the values of a verdict, and nothing that the verdict points to. */
static void copy_values(struct roll_verdict *to, const struct roll_verdict *from)
{
    *to = *from;
    to->culprits = to->waiting = to->layers = (struct roll_rankset){0};
    to->sides = from->sides < ROLL_VERDICT_SIDES ? from->sides : ROLL_VERDICT_SIDES;
    to->may_bes = from->may_bes < ROLL_VERDICT_MAYBE ? from->may_bes : ROLL_VERDICT_MAYBE;
    for (uint32_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        to->side[i].ranks = (struct roll_rankset){0};
    }
}

struct roll_verdict_copy *roll_verdict_copy_new(const struct roll_verdict *verdict, const roll_engine_t *engine,
                                                roll_symbols_t *symbols, const char *job, uint32_t restart)
{
    struct roll_verdict_copy *copy = calloc(1, sizeof(*copy));
    if (copy == NULL) {
        return NULL;
    }
    copy_values(&copy->said, verdict);
    copy->restart = restart;
    copy->job = strdup(job != NULL ? job : "");
    copy->said.text = copy->text = copy_text(verdict->text);
    copy->said.field = copy->field = copy_text(verdict->field);
    copy->comm_site = -1;
    for (uint32_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        copy->side_site[i] = -1;
    }
    if (copy->job == NULL || copy->text == NULL || copy->field == NULL || copy_ranks(&copy->said, verdict) != 0 ||
        resolve_all(copy, engine, symbols) != 0) {
        roll_verdict_copy_destroy(&copy);
    }
    return copy;
}

void roll_verdict_copy_destroy(struct roll_verdict_copy **pointer)
{
    struct roll_verdict_copy *copy = *pointer;
    *pointer = NULL;
    if (copy == NULL) {
        return;
    }
    roll_rankset_fini(&copy->said.culprits);
    roll_rankset_fini(&copy->said.waiting);
    roll_rankset_fini(&copy->said.layers);
    for (uint32_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
        roll_rankset_fini(&copy->said.side[i].ranks);
    }
    for (uint32_t i = 0; i < copy->sites; i++) {
        free(copy->site[i].frame);
    }
    free(copy->job);
    free(copy->text);
    free(copy->field);
    json_decref(copy->attached);
    free(copy);
}

int roll_verdict_attach(struct roll_verdict_copy *copy, const char *member, json_t *value)
{
    copy->attached = copy->attached != NULL ? copy->attached : json_object();
    return json_object_set_new(copy->attached, member, value) == 0
               ? 0
               : ROLL_E_NOMEM; /* the error path of jansson releases value, too */
}

uint64_t roll_verdict_retires(const struct roll_verdict *verdict)
{
    return verdict->supersedes != 0 ? verdict->supersedes
           : verdict->confirms != 0 ? verdict->confirms
                                    : verdict->withdraws;
}

const char *roll_verdict_makes(const struct roll_verdict *verdict)
{
#define WAY(member, does, done)                                                                                        \
    if (verdict->member != 0) {                                                                                        \
        return done;                                                                                                   \
    }
#include "daemon/verdict/life.def"
    return NULL;
}

/* lists */

/* The newest verdict of the list with this number, of the run that `mate` belongs to; NULL = none. */
static struct roll_verdict_copy *find(const struct roll_verdict_list *list, const struct roll_verdict_copy *mate,
                                      uint64_t number)
{
    for (size_t i = number != 0 ? list->used : 0; i-- > 0;) {
        struct roll_verdict_copy *one = list->at[i];
        if (one->said.number == number && one->restart == mate->restart && strcmp(one->job, mate->job) == 0) {
            return one;
        }
    }
    return NULL;
}

int roll_verdict_list_add(struct roll_verdict_list *list, struct roll_verdict_copy *copy)
{
    int err = ROLL_GROW(list->at, list->room, list->used + 1);
    if (err != 0) {
        roll_verdict_copy_destroy(&copy);
        return err;
    }
    struct roll_verdict_copy *ended = find(list, copy, roll_verdict_retires(&copy->said));
    if (ended != NULL && roll_verdict_is_finding(&ended->said)) {
        ended->ended_by = copy->said.number;
        ended->ended_how = roll_verdict_makes(&copy->said);
    }
    list->at[list->used++] = copy;
    return 0;
}

struct roll_verdict_copy *roll_verdict_list_ended_by(const struct roll_verdict_list *list,
                                                     const struct roll_verdict_copy *copy)
{
    return find(list, copy, copy->ended_by);
}

void roll_verdict_list_fini(struct roll_verdict_list *list)
{
    for (size_t i = 0; i < list->used; i++) {
        roll_verdict_copy_destroy(&list->at[i]);
    }
    free(list->at);
    *list = (struct roll_verdict_list){.at = NULL};
}
