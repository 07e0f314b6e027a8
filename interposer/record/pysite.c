/*
 * pysite.c: makes definitions of Python frames, off the hot path: a call site is new.
 *
 * The line is worked out here, in the rank, because nobody else can later: code objects go away, and processes do. That
 * costs a microsecond per new line, once. Which files are libraries is a rule on their paths
 * (ROLLCALL_PYTHON_LIBRARIES), because nothing else tells a user's module from an installed one.
 *
 * A line is defined once for what it says, however often its code is compiled anew: a program that executes generated
 * code in a loop would fill the area of definitions. Which line a frame is of is kept by the frame's identity in a
 * table that forgets.
 */
#include "interposer/record/pysite.h"

#include "interposer/record/pystack.h"
#include "interposer/record/session.h"
#include "trace/python_own.h"

#include <stdlib.h>
#include <string.h>

#define LINES        16384u /* powers of two */
#define FILES        2048u
#define ID_MAX       UINT16_MAX
#define PATH_MAXIMUM 1024u
#define NAME_MAXIMUM 256u
#define RULE_BYTES   1024u

static const char DEFAULT_RULE[] = "/site-packages/:/dist-packages/:/lib/python3:/rollcall/moe/:<frozen ";

/* What multiprocessing starts an interpreter with is no line of the job: `python -c "... spawn_main(...)"`. */
static const char STARTED_RULE[] = "<string>",
                  STARTER_RULE[] = "/multiprocessing/spawn.py:/multiprocessing/forkserver.py";

struct entry {
    uint64_t hash; /* 0 = free */
    uint32_t id;   /* 0: no room was left to define it */
    bool library, own, started, starter;
};
static struct entry lines[LINES], files[FILES]; /* by what they say */
static struct entry frames[LINES];              /* by identity; a newer one takes the place of an older one */
static uint32_t known_lines, known_files;
static char libraries[RULE_BYTES]; /* the rule in use; written before the session is active */

/* The place of a hash in a table, or a free one; NULL when the table is full. */
static struct entry *place(struct entry *table, uint32_t size, uint64_t hash)
{
    for (uint32_t i = 0, at = (uint32_t)hash & (size - 1); i < size / 4 * 3; i++, at = (at + 1) & (size - 1)) {
        if (table[at].hash == hash || table[at].hash == 0) {
            return &table[at];
        }
    }
    return NULL;
}

/* Whether a path holds one of the parts that a rule lists, which colons separate. */
static bool follows(const char *path, const char *rule)
{
    while (*rule != '\0') {
        size_t bytes = strcspn(rule, ":");
        if (bytes > 0 && memmem(path, strlen(path), rule, bytes) != NULL) {
            return true;
        }
        rule += bytes + (rule[bytes] == ':');
    }
    return false;
}

void roll_pysite_start(void)
{
    const char *rule = getenv("ROLLCALL_PYTHON_LIBRARIES");
    rule = rule != NULL ? rule : DEFAULT_RULE;
    size_t bytes = strlen(rule);
    while (bytes >= sizeof(libraries) || (bytes > 0 && rule[bytes] != ':' && rule[bytes] != '\0')) {
        bytes--; /* whole parts of it */
    }
    memcpy(libraries, rule, bytes);
    libraries[bytes] = '\0';
}

static const struct entry *define_file(const char *path)
{
    size_t bytes = strlen(path);
    uint64_t hash = roll_hash64(1, path, bytes) | 1;
    struct entry *e = place(files, FILES, hash);
    if (e != NULL && e->hash == 0) {
        struct roll_def_source def = {.path_bytes = (uint32_t)bytes};
        *e = (struct entry){.hash = hash,
                            .library = follows(path, libraries),
                            .own = roll_python_is_own(path, bytes),
                            .started = follows(path, STARTED_RULE),
                            .starter = follows(path, STARTER_RULE)};
        if (roll_def_is_roomy(&roll_session->ring) &&
            roll_def_append(&roll_session->ring, ROLL_DEF_SOURCE, known_files + 1, &def, sizeof(def), path, bytes) ==
                0) {
            e->id = ++known_files;
        }
    }
    return e;
}

/* The line that a frame says it is at; id 0: it cannot be defined. */
static struct entry line_of(const struct roll_pyframe *frame, roll_pystack_get *get)
{
    char path[PATH_MAXIMUM], function[NAME_MAXIMUM];
    uint32_t line;
    const struct entry *file = NULL;
    if (!roll_pystack_describe(frame, get, path, sizeof(path), function, sizeof(function), &line) ||
        (file = define_file(path)) == NULL || file->id == 0) {
        return (struct entry){.id = 0};
    }
    struct roll_def_line def = {.source = file->id,
                                .line = line,
                                .flags = file->library ? ROLL_DEF_LINE_LIBRARY : 0,
                                .function_bytes = (uint32_t)strlen(function)};
    uint64_t hash = roll_hash64(roll_hash64(2, &def, sizeof(def)), function, def.function_bytes) | 1;
    struct entry *e = place(lines, LINES, hash);
    if (e != NULL && e->hash == 0) {
        *e = (struct entry){.hash = hash,
                            .library = file->library,
                            .own = file->own,
                            .started = file->started,
                            .starter = file->starter};
        if (known_lines < ID_MAX && roll_def_is_roomy(&roll_session->ring) &&
            roll_def_append(&roll_session->ring, ROLL_DEF_LINE, known_lines + 1, &def, sizeof(def), function,
                            def.function_bytes) == 0) {
            e->id = ++known_lines;
        }
    }
    return e != NULL ? *e : (struct entry){.id = 0};
}

/* The line of a frame, defined where it is new; id 0: it cannot be. */
static struct entry define_line(const struct roll_pyframe *frame)
{
    uint64_t hash = roll_pystack_identity(frame) | 1;
    struct entry *e = &frames[hash >> 1 & (LINES - 1)];
    if (e->hash != hash) {
        *e = line_of(frame, roll_pystack_load);
        e->hash = hash;
    }
    return *e;
}

/* Frames that are chosen one after the other, from the innermost on. */
struct chosen {
    struct entry line[ROLL_PYSTACK_DEPTH];
    uint32_t n, last_user; /* number of the outermost line of the user's, from 1; 0: none */
};

static void choose(struct chosen *c, struct entry line)
{
    bool is_start = line.started && c->n > 0 && c->line[c->n - 1].starter;
    c->line[c->n] = line;
    c->n += !line.own && !is_start;
    if (c->n > 0 && !c->line[c->n - 1].library) {
        c->last_user = c->n;
    }
}

/* Keeps what there is room for, libraries folded, and nothing outside of the last line of the user's. */
static uint32_t fold(const struct chosen *c, struct roll_callsite_line out[ROLL_CALLSITE_LINES])
{
    bool folds = c->last_user > 0;
    uint32_t n = folds ? c->last_user : c->n, kept = 0, folded = 0;
    for (uint32_t i = 0; i < n && kept < ROLL_CALLSITE_LINES; i++) {
        if (folds && i > 0 && c->line[i].library && c->line[i - 1].library) {
            folded++;
            continue;
        }
        out[kept++] = (struct roll_callsite_line){.line = c->line[i].id, .folded = folded};
        folded = 0;
    }
    return kept;
}

uint32_t roll_pysite_lines(struct roll_callsite_line out[ROLL_CALLSITE_LINES], bool *user)
{
    struct roll_pyframe frame[ROLL_PYSTACK_DEPTH];
    struct chosen c = {.n = 0};
    uint32_t read = roll_pystack_read(frame, ROLL_PYSTACK_DEPTH);
    for (uint32_t i = 0; i < read; i++) {
        struct entry line = define_line(&frame[i]);
        if (line.id == 0) {
            break; /* what lies further out is not known to be called from there */
        }
        choose(&c, line);
    }
    *user = c.last_user > 0;
    return fold(&c, out);
}

uint32_t roll_pysite_stand(const struct roll_pymain *stand, struct roll_callsite_line out[ROLL_CALLSITE_LINES])
{
    struct chosen c = {.n = 0};
    for (uint32_t i = 0; i < stand->frames; i++) {
        struct entry line = {.id = 0};
        if (stand->of[i].shim) {
            continue;
        }
        line = line_of(&stand->of[i].at, roll_pystack_peek);
        if (line.id == 0) {
            break;
        }
        choose(&c, line);
    }
    return c.last_user > 0 && roll_pymain_stands(stand) ? fold(&c, out) : 0;
}
