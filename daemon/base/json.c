/*
 * json.c: see json.h. Objects are built with jansson where they are needed; here are only the parts for which jansson
 * has no function.
 */
#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *roll_ranks_to_json(const struct roll_rankset *set)
{
    json_t *array = json_array();
    for (size_t i = 0; array != NULL && i < set->used; i++) {
        for (uint64_t rank = set->range[i].first; rank <= set->range[i].last; rank++) {
            if (json_array_append_new(array, json_integer((json_int_t)rank)) != 0) {
                json_decref(array);
                return NULL;
            }
        }
    }
    return array;
}

json_t *roll_ranks_text_json(const struct roll_rankset *set)
{
    size_t bytes = roll_rankset_format(set, NULL, 0) + 1;
    char *text = malloc(bytes);
    if (text == NULL) {
        return NULL;
    }
    roll_rankset_format(set, text, bytes);
    json_t *string = json_string(text);
    free(text);
    return string;
}

json_t *roll_text_to_json(const char *text)
{
    json_t *string = json_string(text);
    if (string != NULL) {
        return string;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return NULL;
    }
    for (char *p = copy; *p != '\0'; p++) {
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    }
    string = json_string(copy);
    free(copy);
    return string;
}

const char *roll_error_of_json(const void *bytes, size_t count, char *out, size_t size)
{
    json_t *json = json_loadb(bytes, count, 0, NULL);
    const char *words = json_string_value(json_object_get(json, "error"));
    if (words) {
        snprintf(out, size, "%s", words);
    } else {
        snprintf(out, size, "%.*s", (int)(count < size ? count : size - 1), (const char *)bytes);
    }
    json_decref(json);
    return out;
}
