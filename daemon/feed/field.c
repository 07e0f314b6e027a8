/*
 * field.c: see field.h.
 */
#include "daemon/feed/field.h"

#include "daemon/base/json.h"

#include <stdlib.h>
#include <string.h>

char roll_field_letter(const struct roll_view_source *v, const struct roll_rankset *waiting,
                       const struct roll_rankset *awaited)
{
    uint32_t rank = (uint32_t)v->info.world_rank;
    bool waits = v->pending > 0 || (v->in_call && roll_rankset_has(waiting, rank));
    return v->proc == ROLL_PROC_DEAD         ? 'd'
           : v->proc == ROLL_PROC_FINISHED   ? 'f'
           : !v->heard                       ? 'n'
           : v->proc == ROLL_PROC_STOPPED    ? 's'
           : waits                           ? 'w'
           : v->in_call                      ? 'c'
           : roll_rankset_has(awaited, rank) ? 'b'
                                             : 'r';
}

const char *roll_field_name(char letter)
{
    static const struct {
        char letter;
        const char *name;
    } names[] = {{'r', "running"}, {'c', "inside"}, {'w', "waiting"}, {'b', "busy"},
                 {'s', "stopped"}, {'d', "dead"},   {'n', "silent"},  {'f', "finished"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (names[i].letter == letter) {
            return names[i].name;
        }
    }
    return "unknown";
}

struct roll_field_place roll_field_place(const struct roll_view_source *v, uint32_t source,
                                         const struct roll_rankset *waiting, const struct roll_rankset *awaited)
{
    return (struct roll_field_place){v->info.host ? v->info.host : "", v->info.world_rank, source,
                                     roll_field_letter(v, waiting, awaited)};
}

/* Of one rank the newest process is the last. */
static int by_place(const void *a, const void *b)
{
    const struct roll_field_place *x = a, *y = b;
    int hosts = x->host == y->host ? 0 : strverscmp(x->host, y->host);
    return hosts != 0           ? hosts
           : x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                                : (x->source > y->source) - (x->source < y->source);
}

size_t roll_field_sort(struct roll_field_place *list, size_t n)
{
    size_t used = 0;
    if (n > 1) {
        qsort(list, n, sizeof(*list), by_place);
    }
    for (size_t i = 0; i < n; i++) {
        bool again = used > 0 && list[used - 1].rank == list[i].rank && strcmp(list[used - 1].host, list[i].host) == 0;
        used += !again;
        list[used - 1] = list[i];
    }
    return used;
}

/* The ranks of one host from `first` on, as pairs of the first and last of each run of them. Returns where the next
 * host begins. */
static size_t add_host(const struct roll_field_place *list, size_t n, size_t first, json_t *hosts)
{
    json_t *pairs = json_array();
    size_t i = first;
    while (i < n && strcmp(list[i].host, list[first].host) == 0) {
        size_t from = i++;
        while (i < n && strcmp(list[i].host, list[first].host) == 0 && list[i].rank == list[i - 1].rank + 1) {
            i++;
        }
        json_array_append_new(pairs, json_integer(list[from].rank));
        json_array_append_new(pairs, json_integer(list[i - 1].rank));
    }
    json_array_append_new(hosts, json_pack("{s:o,s:o}", "host", roll_text_to_json(list[first].host), "ranks", pairs));
    return i;
}

json_t *roll_field_places_json(const struct roll_field_place *list, size_t n)
{
    json_t *hosts = json_array();
    for (size_t i = 0; i < n;) {
        i = add_host(list, n, i, hosts);
    }
    return json_pack("{s:I,s:o}", "ranks", (json_int_t)n, "hosts", hosts);
}

json_t *roll_field_states_json(const struct roll_field_place *list, size_t n)
{
    char *states = malloc(n + 1);
    for (size_t i = 0; states && i < n; i++) {
        states[i] = list[i].state;
    }
    json_t *field = states ? json_pack("{s:o}", "states", json_stringn(states, n)) : NULL;
    free(states);
    return field;
}
