/*
 * agent_process.c: see agent_process.h. What is secret is left out here, on the node, and not where the text is
 * written: so it is in no frame, no memory of a root, and no core file of one.
 */
#include "daemon/agent/agent_process.h"

#include "daemon/base/file.h"
#include "daemon/base/json.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define VARIABLES_MOST 256u
#define VALUE_MOST     1024u
#define ENVIRON_MOST   (1u << 20)
#define MAPS_MOST      (8u << 20)
#define LIBRARIES_MOST 32u

static const char *const told[] = {
#define ROLL_ENVIRONMENT_TOLD(name) name,
#define ROLL_ENVIRONMENT_HIDDEN(word)
#include "daemon/agent/environment.def"
#undef ROLL_ENVIRONMENT_TOLD
#undef ROLL_ENVIRONMENT_HIDDEN
};

static const char *const hidden[] = {
#define ROLL_ENVIRONMENT_TOLD(name)
#define ROLL_ENVIRONMENT_HIDDEN(word) word,
#include "daemon/agent/environment.def"
#undef ROLL_ENVIRONMENT_TOLD
#undef ROLL_ENVIRONMENT_HIDDEN
};

/* Libraries whose release matters for a hang. */
static const char *const libraries[] = {
    "libnccl",   "libcudart", "libcuda.so", "librollcall", "libtorch_cuda",         "libc10d",    "libnvidia-ml",
    "libfabric", "libucp",    "libibverbs", "libmpi",      "libtransformer_engine", "libmoe_core"};

static bool is_told(const char *name)
{
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        if (strncmp(name, told[i], strlen(told[i])) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_hidden(const char *name)
{
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
        if (strcasestr(name, hidden[i])) {
            return true;
        }
    }
    return false;
}

/* Of one word: what stands before its last "@", behind "://" where it has that, is replaced, and so is what follows a
 * "?". Passwords may have commas and slashes in them, so more is hidden than need be. Never grows. */
static void hide_in(char *word, char *end)
{
    size_t rest = strlen(end);
    char *host = memrchr(word, '@', (size_t)(end - word)), *name = memmem(word, (size_t)(end - word), "://", 3);
    name = name != NULL ? name + 3 : host != NULL && memchr(word, ':', (size_t)(host - word)) != NULL ? word : NULL;
    if (host != NULL && name != NULL && host > name) {
        *name = '*';
        memmove(name + 1, host, strlen(host) + 1);
    }
    end = word + strlen(word) - rest;
    char *query = memchr(word, '?', (size_t)(end - word));
    if (query != NULL && query + 1 < end) {
        query[1] = '*';
        memmove(query + 2, end, rest + 1);
    }
}

/* "http://user:word@host", "user:word@host", "https://host/?token=word". */
static void hide_user(char *value)
{
    static const char between[] = " \t\n\"";
    for (char *word = value; *word != '\0';) {
        char *end = word + strcspn(word, between);
        size_t rest = strlen(end);
        hide_in(word, end);
        word += strlen(word) - rest;
        word += strspn(word, between);
    }
}

json_t *roll_process_variables(const char *environment, size_t bytes)
{
    json_t *variables = json_object();
    size_t more = 0, length;
    for (size_t at = 0; variables && at < bytes; at += length + 1) {
        const char *entry = environment + at;
        length = strnlen(entry, bytes - at);
        const char *equals = memchr(entry, '=', length);
        char name[128];
        size_t n = equals ? (size_t)(equals - entry) : 0;
        if (n == 0 || n >= sizeof(name)) {
            continue;
        }
        snprintf(name, sizeof(name), "%.*s", (int)n, entry);
        if (!is_told(name)) {
            continue;
        }
        if (json_object_size(variables) >= VARIABLES_MOST) {
            more++;
            continue;
        }
        char *value = strndup(equals + 1, length - n - 1); /* whole: a cut one may lack what shows that it is secret */
        if (!value) {
            more++;
            continue;
        }
        hide_user(value);
        value[strnlen(value, VALUE_MOST)] = '\0';
        json_t *key = roll_text_to_json(name);
        json_object_set_new(variables, json_string_value(key) ? json_string_value(key) : "?",
                            roll_text_to_json(is_hidden(name) ? ROLL_PROCESS_HIDDEN : value));
        json_decref(key);
        free(value);
    }
    return json_pack("{s:o, s:I}", "variables", variables, "more", (json_int_t)more);
}

json_t *roll_process_environment(pid_t pid)
{
    char path[64], *data = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    if (roll_read_whole(path, ENVIRON_MOST, &data, &bytes) != 0) {
        return NULL;
    }
    json_t *out = roll_process_variables(data, bytes);
    explicit_bzero(data, bytes);
    free(data);
    return out;
}

static bool is_listed(const json_t *list, const char *path)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        if (strcmp(json_string_value(one), path) == 0) {
            return true;
        }
    }
    return false;
}

json_t *roll_process_libraries(pid_t pid)
{
    char path[64], *data = NULL, *save = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    if (roll_read_whole(path, MAPS_MOST, &data, &bytes) != 0) {
        return NULL;
    }
    json_t *list = json_array();
    for (char *line = strtok_r(data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *file = strchr(line, '/'), *base = file ? strrchr(file, '/') + 1 : NULL;
        for (size_t i = 0; base && i < sizeof(libraries) / sizeof(libraries[0]); i++) {
            json_t *text = strncmp(base, libraries[i], strlen(libraries[i])) == 0 ? roll_text_to_json(file) : NULL;
            if (text && json_array_size(list) < LIBRARIES_MOST && !is_listed(list, json_string_value(text))) {
                json_array_append(list, text);
            }
            json_decref(text);
        }
    }
    free(data);
    return list;
}
