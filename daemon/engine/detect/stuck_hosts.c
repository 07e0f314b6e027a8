/*
 * stuck_hosts.c: the hosts on which a set of ranks runs, in the order in which the hosts have appeared.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>
#include <string.h>

#define HOSTS_SHOWN 8u

/* A source, to be sorted by its host. */
struct placed {
    const char *host;
    uint32_t index; /* index of the source */
};

static int by_host(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    int order = strcmp(x->host, y->host);
    return order != 0 ? order : x->index < y->index ? -1 : 1;
}

/* Orders hosts by their first sources. */
static int by_appearance(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

void stuck_hosts_of(struct stuck_hosts *out, const struct roll_engine *e, const struct roll_rankset *set)
{
    *out = (struct stuck_hosts){.hosts = 0};
    struct placed *all = calloc(e->sources + 1, sizeof(*all));
    /* For each host: index of its first source << 32, and where the host begins in `all`. */
    uint64_t *order = calloc(e->sources + 1, sizeof(*order));
    out->source = calloc(e->sources + 1, sizeof(*out->source));
    out->host = calloc(e->sources + 1, sizeof(*out->host));
    uint32_t n = 0, used = 0;
    for (uint32_t i = 0; all && order && out->source && out->host && i < e->sources; i++) {
        if (roll_rankset_has(set, e->source[i]->world)) {
            all[n++] = (struct placed){.host = e->source[i]->host, .index = i};
        }
    }
    if (n > 0) {
        qsort(all, n, sizeof(*all), by_host);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(all[i].host, all[i - 1].host) != 0) {
            order[out->hosts++] = (uint64_t)all[i].index << 32 | i;
        }
    }
    if (out->hosts > 1) {
        qsort(order, out->hosts, sizeof(*order), by_appearance);
    }
    for (uint32_t h = 0; h < out->hosts; h++) {
        uint32_t from = (uint32_t)order[h];
        out->host[h].first = used;
        for (uint32_t i = from; i < n && strcmp(all[i].host, all[from].host) == 0; i++) {
            out->source[used++] = all[i].index;
        }
        out->host[h].count = used - out->host[h].first;
    }
    free(all);
    free(order);
}

void stuck_hosts_fini(struct stuck_hosts *hosts)
{
    free(hosts->source);
    free(hosts->host);
    *hosts = (struct stuck_hosts){.hosts = 0};
}

void stuck_words_hosts(struct words *w, const struct roll_engine *e, const struct roll_rankset *set)
{
    struct stuck_hosts at;
    stuck_hosts_of(&at, e, set);
    for (uint32_t i = 0; i < at.hosts && i < HOSTS_SHOWN; i++) {
        struct roll_rankset here = {0};
        for (uint32_t k = 0; k < at.host[i].count; k++) {
            (void)roll_rankset_add(&here, e->source[at.source[at.host[i].first + k]]->world);
        }
        words_add(w, "%shost %s (", i > 0 ? ", " : "", e->source[at.source[at.host[i].first]]->host);
        words_ranks(w, &here);
        words_add(w, ")");
        roll_rankset_fini(&here);
    }
    if (at.hosts > HOSTS_SHOWN) {
        words_add(w, " and %u more hosts", at.hosts - HOSTS_SHOWN);
    }
    stuck_hosts_fini(&at);
}
