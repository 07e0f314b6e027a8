/*
 * marks.c: the job's own marks as steps: ranges and marks of NVTX whose names say which step begins.
 *
 * NVTX 3 is headers alone: each object that is compiled with them has tables of its own, which it offers, at its first
 * call, to the library that NVTX_INJECTION64_PATH names (libnvToolsExt.so, the library of NVTX 2, does the same). So
 * this library is that one where the variable names it, and stays out of it else: a call of NVTX without a tool costs
 * one nanosecond, and a profiler that has set the variable keeps its place. To wrap nvtxRangePushA and its like was
 * rejected: since PyTorch 2.5 or so nobody exports or imports these names.
 *
 * What begins a range or sets a mark is taken; what ends a range is not, and costs nothing: a step lasts until the next
 * one begins. All calls answer what they answer without a tool. A name counts by the table below; what it counts as:
 * enum roll_step_by. Of several names that are equally good the first one that came is the step's, until it has been
 * left out PATIENCE times: a job may go from one loop to another.
 *
 * The layouts are those of NVTX's published headers (nvtxTypes.h, nvToolsExt.h), which have been the same since 3.0.
 */
#include "interposer/wrap/names.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX   80u
#define PATIENCE   64u
#define DIGITS_MAX 9u   /* of a number below ROLL_STEP_NONE */
#define NO_DEPTH   (-2) /* NVTX_NO_PUSH_POP_TRACKING: what a push answers where there is no tool */

enum { TABLE_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };

typedef void (*callback_t)(void);
typedef const void *(*export_table_t)(uint32_t id);
typedef int (*module_table_t)(int module, callback_t ***table, unsigned *size);

struct callbacks {
    size_t size;
    module_table_t module_table;
};

/* nvtxEventAttributes_t */
struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *unicode;
        const void *registered;
    } message;
};
_Static_assert(sizeof(struct attributes) == 48 && offsetof(struct attributes, message) == 40,
               "nvtxEventAttributes_t of 64-bit programs");

/* Names that count, in small letters, "_" for each of "_", "-" and blank. Without a number only where a loop has it
 * once as a rule: "step" alone is often the optimizer's. */
static const struct {
    const char *text;
    bool counts_alone, is_profiler;
} words[] = {
    {"step", false, false},        {"train_step", true, false},      {"training_step", true, false},
    {"global_step", false, false}, {"iter", false, false},           {"iteration", true, false},
    {"train_iter", true, false},   {"train_iteration", true, false}, {"training_iteration", true, false},
    {"profilerstep", false, true},
};
#define WORDS (sizeof(words) / sizeof(words[0]))
#define OWN   WORDS /* the word that ROLLCALL_STEP_MARK names */

static char own_word[TEXT_MAX];             /* "": none; written before any callback is there */
static _Atomic uint32_t counted[WORDS + 1]; /* how often each word came without a number */
static _Atomic uint32_t chosen, passed; /* the name that is the step's, 0 = none yet; others that came since it did */

ROLL_EXPORT int InitializeInjectionNvtx2(export_table_t exports);

/* names */

/* What a name says, in one word, which also serves as the handle of a registered one: 0 = no step; else bit 63, the
 * word's place at bit 33, bit 32 where a number follows, and the number. */
typedef uint64_t mark_t;

static char small(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == ' ' || c == '-' ? '_' : c;
}

/* Letters of the text that are the word's; 0: it begins with another one. */
static size_t begins(const char *text, const char *word)
{
    size_t n = 0;
    while (word[n] != '\0' && small(text[n]) == small(word[n])) {
        n++;
    }
    return word[n] == '\0' ? n : 0;
}

/* What is behind the word: nothing, or a number and what is no part of it ("17/1000", "17, seq = 3", not "0.5"). */
static mark_t rest(const char *text, size_t word, bool counts_alone)
{
    mark_t mark = UINT64_C(1) << 63 | (mark_t)word << 33;
    if (text[0] == '\0') {
        return counts_alone ? mark : 0;
    }
    uint32_t number = 0;
    size_t digits = 0;
    while (*text != '\0' && strchr(" _-#:=[(", *text) != NULL) {
        text++;
    }
    for (; text[digits] >= '0' && text[digits] <= '9' && digits <= DIGITS_MAX; digits++) {
        number = number * 10 + (uint32_t)(text[digits] - '0');
    }
    bool is_end = text[digits] == '\0' || strchr(" /,:;)]_-", text[digits]) != NULL;
    return digits > 0 && digits <= DIGITS_MAX && is_end ? mark | UINT64_C(1) << 32 | number : 0;
}

static mark_t read_mark(const char *text)
{
    if (text == NULL) {
        return 0;
    }
    if (own_word[0] != '\0') {
        size_t n = begins(text, own_word);
        return n > 0 ? rest(text + n, OWN, true) : 0;
    }
    char first = small(text[0]);
    if (first != 's' && first != 't' && first != 'i' && first != 'g' && first != 'p') {
        return 0;
    }
    for (size_t i = 0; i < WORDS; i++) {
        size_t n = begins(text, words[i].text);
        mark_t mark = n > 0 ? rest(text + n, i, words[i].counts_alone) : 0;
        if (mark != 0) {
            return mark;
        }
    }
    return 0;
}

static mark_t read_wide(const wchar_t *text)
{
    char narrow[TEXT_MAX];
    size_t n = 0;
    for (; text != NULL && n + 1 < sizeof(narrow) && text[n] != L'\0'; n++) {
        narrow[n] = text[n] > 0 && text[n] < 128 ? (char)text[n] : '?';
    }
    narrow[n] = '\0';
    return read_mark(narrow);
}

/* steps */

static void tell(mark_t mark)
{
    if (mark == 0) {
        return;
    }
    size_t word = mark >> 33 & 0xff;
    bool has_number = (mark >> 32 & 1) != 0;
    uint32_t number = has_number ? (uint32_t)mark : atomic_fetch_add_explicit(&counted[word], 1, memory_order_relaxed);
    enum roll_step_by by = word != OWN && words[word].is_profiler ? ROLL_STEP_BY_PROFILER
                           : has_number || word == OWN            ? ROLL_STEP_BY_MARK
                                                                  : ROLL_STEP_BY_NAME;
    uint32_t name = (uint32_t)by << 16 | (uint32_t)word << 1 | has_number;
    uint32_t now = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (word != OWN && name != now && now != 0) {
        bool is_over =
            (uint32_t)by == now >> 16 && atomic_fetch_add_explicit(&passed, 1, memory_order_relaxed) >= PATIENCE;
        if ((uint32_t)by <= now >> 16 && !is_over) {
            return;
        }
    }
    atomic_store_explicit(&chosen, name, memory_order_relaxed);
    atomic_store_explicit(&passed, 0, memory_order_relaxed);
    roll_step_tell(number, by);
}

static mark_t read_attributes(const struct attributes *a)
{
    if (a == NULL || a->size < sizeof(*a)) {
        return 0;
    }
    return a->message_type == MESSAGE_ASCII        ? read_mark(a->message.ascii)
           : a->message_type == MESSAGE_UNICODE    ? read_wide(a->message.unicode)
           : a->message_type == MESSAGE_REGISTERED ? (mark_t)(uintptr_t)a->message.registered
                                                   : 0;
}

/* callbacks */

static void mark_a(const char *text)
{
    tell(read_mark(text));
}

static void mark_w(const wchar_t *text)
{
    tell(read_wide(text));
}

static void mark_ex(const struct attributes *a)
{
    tell(read_attributes(a));
}

static uint64_t start_a(const char *text)
{
    tell(read_mark(text));
    return 0;
}

static uint64_t start_w(const wchar_t *text)
{
    tell(read_wide(text));
    return 0;
}

static uint64_t start_ex(const struct attributes *a)
{
    tell(read_attributes(a));
    return 0;
}

static int push_a(const char *text)
{
    tell(read_mark(text));
    return NO_DEPTH;
}

static int push_w(const wchar_t *text)
{
    tell(read_wide(text));
    return NO_DEPTH;
}

static int push_ex(const struct attributes *a)
{
    tell(read_attributes(a));
    return NO_DEPTH;
}

static void domain_mark(void *domain, const struct attributes *a)
{
    (void)domain;
    tell(read_attributes(a));
}

static uint64_t domain_start(void *domain, const struct attributes *a)
{
    (void)domain;
    tell(read_attributes(a));
    return 0;
}

static int domain_push(void *domain, const struct attributes *a)
{
    (void)domain;
    tell(read_attributes(a));
    return NO_DEPTH;
}

static const void *register_a(void *domain, const char *text)
{
    (void)domain;
    return (const void *)(uintptr_t)read_mark(text); /* NULL, as without a tool, where the name is no step */
}

static const void *register_w(void *domain, const wchar_t *text)
{
    (void)domain;
    return (const void *)(uintptr_t)read_wide(text);
}

static const struct {
    int module;
    unsigned id;
    callback_t callback;
} hooks[] = {
    {MODULE_CORE, 1, (callback_t)mark_ex},       {MODULE_CORE, 2, (callback_t)mark_a},
    {MODULE_CORE, 3, (callback_t)mark_w},        {MODULE_CORE, 4, (callback_t)start_ex},
    {MODULE_CORE, 5, (callback_t)start_a},       {MODULE_CORE, 6, (callback_t)start_w},
    {MODULE_CORE, 8, (callback_t)push_ex},       {MODULE_CORE, 9, (callback_t)push_a},
    {MODULE_CORE, 10, (callback_t)push_w},       {MODULE_CORE2, 1, (callback_t)domain_mark},
    {MODULE_CORE2, 2, (callback_t)domain_start}, {MODULE_CORE2, 4, (callback_t)domain_push},
    {MODULE_CORE2, 10, (callback_t)register_a},  {MODULE_CORE2, 11, (callback_t)register_w},
};

/* NVTX calls this once for each object that has it, at that object's first call. 1: this tool is there; 0: there is
 * none, and the object's calls do nothing. Objects may come from several threads at once. */
int InitializeInjectionNvtx2(export_table_t exports)
{
    const struct callbacks *callbacks = exports != NULL ? exports(TABLE_CALLBACKS) : NULL;
    const char *own = getenv("ROLLCALL_STEP_MARK");
    bool any = false;
    if (!ROLL_RECORDING || roll_env_true("ROLLCALL_DISABLE") || callbacks == NULL ||
        callbacks->size < sizeof(*callbacks) || callbacks->module_table == NULL) {
        return 0;
    }
    if (own != NULL && own[0] != '\0' && strlen(own) < sizeof(own_word)) {
        strcpy(own_word, own);
    }
    for (size_t i = 0; i < sizeof(hooks) / sizeof(hooks[0]); i++) {
        callback_t **table = NULL;
        unsigned size = 0;
        if (callbacks->module_table(hooks[i].module, &table, &size) != 0 && table != NULL && hooks[i].id < size &&
            table[hooks[i].id] != NULL) {
            *table[hooks[i].id] = hooks[i].callback;
            any = true;
        }
    }
    return any;
}
