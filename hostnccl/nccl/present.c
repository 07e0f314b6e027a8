/*
 * present.c: HOSTNCCL_PRESENT=RANKS:WORLD: the job believes that it has WORLD ranks, and only RANKS of them run.
 *
 * The others are stood in for. A rank that runs must not wait for one that never comes, so the members of each
 * communicator have to be known before its ranks meet: from the number of ranks alone nobody can tell a tensor-parallel
 * group, of which all run, from a data-parallel one, of which one runs. A communicator of all ranks of the job needs no
 * word: its ranks are those of the job. Of any other the members are told by hostncclTell, under the name that the
 * communicator is given; whatever is not known for certain is refused with a line. To wait for those that come within
 * some time was rejected: on a loaded machine another set would be present in each run.
 *
 * What a rank that is stood in for contributes: run_coll.c, run_p2p.c.
 */
#include "hostnccl/nccl/present.h"
#include "hostnccl/nccl/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "HOSTNCCL_PRESENT"

/* A communicator that was told of. */
struct told {
    char *name; /* NULL: none */
    int count;
    struct told *next;
    int ranks[];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct told *all_told;

/* What the variable says. */
struct world {
    int size, own; /* `own`: the rank of this process */
    bool runs[HN_MAX_RANKS];
};

bool hn_present_is_on(void)
{
    const char *value = getenv(VARIABLE);

    return value && *value;
}

ncclResult_t hn_present_refuse(const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* A framework may keep the text of an error to itself, and a refusal is about the rehearsal, not about the job. */
    fprintf(stderr, "hostnccl: " VARIABLE ": %s\n", text);
    return hn_fail(ncclInvalidUsage, VARIABLE ": %s", text);
}

ncclResult_t hn_present_whole(ncclComm_t comm, const char *call)
{
    if (!comm->place) {
        return ncclSuccess;
    }
    return hn_present_refuse("%s: %d of the communicator's %d ranks are stood in for, and nobody knows what they would "
                             "say here; rehearse all ranks, or a set in which each such communicator is whole",
                             call, comm->nranks - comm->places, comm->nranks);
}

/* Reads a number below `limit`, and moves on behind it. False: there is none. */
static bool number(const char **at, int limit, int *out)
{
    int n = 0;
    const char *p = *at;

    for (; *p >= '0' && *p <= '9' && n < limit; p++) {
        n = n * 10 + (*p - '0');
    }
    if (p == *at || n >= limit) {
        return false;
    }
    *at = p;
    *out = n;
    return true;
}

/* Reads the ranks of "0-3,7:64". */
static bool read_set(const char *at, struct world *w)
{
    int first, last;

    do {
        if (!number(&at, HN_MAX_RANKS, &first)) {
            return false;
        }
        last = first;
        if (*at == '-' && (at++, !number(&at, HN_MAX_RANKS, &last) || last < first)) {
            return false;
        }
        memset(w->runs + first, true, (size_t)(last - first + 1));
    } while (*at == ',' && at++);
    if (*at != ':' || (at++, !number(&at, HN_MAX_RANKS + 1, &w->size)) || *at) {
        return false;
    }
    for (int r = w->size; r < HN_MAX_RANKS; r++) {
        if (w->runs[r]) {
            return false;
        }
    }
    return true;
}

/* One line about a call that is refused; "" where it is not. */
struct why {
    char text[256];
};

static bool read_world(struct world *w, struct why *why)
{
    const char *value = getenv(VARIABLE), *rank = getenv("RANK");

    memset(w, 0, sizeof(*w));
    if (!read_set(value, w)) {
        snprintf(why->text, sizeof(why->text), "'%.80s' is not RANKS:WORLD, like 0-7:64, of at most %d ranks", value,
                 HN_MAX_RANKS);
        return false;
    }
    if (!rank || !number(&rank, HN_MAX_RANKS, &w->own) || *rank) {
        snprintf(why->text, sizeof(why->text), "RANK does not say which rank this process is");
        return false;
    }
    if (w->own >= w->size || !w->runs[w->own]) {
        snprintf(why->text, sizeof(why->text), "rank %d runs, but is not one of the ranks that are said to run",
                 w->own);
        return false;
    }
    return true;
}

/* Whether this may be the communicator that was told of: of that name and size, with this rank at this place. */
static bool fits(const struct told *t, const struct world *w, int nranks, int rank, const char *name)
{
    bool is_named = name && t->name ? !strcmp(name, t->name) : name == t->name;

    return is_named && t->count == nranks && t->ranks[rank] == w->own;
}

/* Whether the same members run. */
static bool runs_alike(const struct told *a, const struct told *b, const struct world *w)
{
    for (int r = 0; r < a->count; r++) {
        if (w->runs[a->ranks[r]] != w->runs[b->ranks[r]]) {
            return false;
        }
    }
    return true;
}

/* Finds the members of the communicator. False: it is refused. *found is NULL where the rank on the communicator is
 * that in the job. With the lock. */
static bool find_told(const struct world *w, int nranks, int rank, const char *name, const char *call,
                      const struct told **found, struct why *why)
{
    *found = NULL;
    for (const struct told *t = all_told; t; t = t->next) {
        if (!fits(t, w, nranks, rank, name)) {
            continue;
        }
        if (*found && !runs_alike(*found, t, w)) {
            snprintf(why->text, sizeof(why->text),
                     "%s: several groups of %d ranks were told of%s%.60s, of which other ranks run: give each "
                     "communicator a name of its own (ncclConfig_t.commName)",
                     call, nranks, name ? " with the name " : "", name ? name : "");
            return false;
        }
        *found = t;
    }
    if (*found || (nranks == w->size && rank == w->own)) {
        return true;
    }
    snprintf(
        why->text, sizeof(why->text),
        "%s: rank %d of a communicator of %d ranks%s%.60s: nobody has told which of the job's %d ranks these are, so "
        "nobody knows which of them run: tell it (hostncclTell, docs/HOSTNCCL.md), or rehearse all ranks",
        call, rank, nranks, name ? " named " : "", name ? name : "", w->size);
    return false;
}

/* Fills `place`. Returns how many are present; 0: it is refused. `nranks` and `rank` are good. */
static int find_places(int nranks, int rank, const char *name, const char *call, int *place, struct why *why)
{
    struct world *w;
    const struct told *t;
    int places = 0;

    why->text[0] = '\0';
    if (!hn_present_is_on() || nranks == 1) {
        for (int r = 0; r < nranks; r++) {
            place[r] = r;
        }
        return nranks;
    }
    w = malloc(sizeof(*w));
    if (!w) {
        snprintf(why->text, sizeof(why->text), "out of memory");
        return 0;
    }
    if (read_world(w, why)) {
        pthread_mutex_lock(&lock);
        bool is_known = find_told(w, nranks, rank, name, call, &t, why);
        for (int r = 0; is_known && r < nranks; r++) {
            place[r] = w->runs[t ? t->ranks[r] : r] ? places++ : -1;
        }
        pthread_mutex_unlock(&lock);
    }
    free(w);
    return places;
}

ncclResult_t hn_present_set(ncclComm_t comm, const char *call)
{
    struct why why;
    int *place;
    int places;

    if (!hn_present_is_on() || comm->nranks == 1) {
        return ncclSuccess;
    }
    place = malloc((size_t)comm->nranks * sizeof(*place));
    if (!place) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    places = find_places(comm->nranks, comm->rank, comm->name, call, place, &why);
    if (places == 0 || places == comm->nranks) {
        free(place);
        return places == 0 ? hn_present_refuse("%s", why.text) : ncclSuccess;
    }
    comm->places = places;
    for (int r = comm->nranks - 1; r >= 0; r--) {
        comm->lowest = place[r] == 0 ? r : comm->lowest;
        place[r] = place[r] < 0 ? 0 : place[r];
    }
    comm->place = place;
    hn_debug("%s comm %p: %d of %d ranks are present, the lowest is %d", call, (void *)comm, places, comm->nranks,
             comm->lowest);
    return ncclSuccess;
}

int hostncclPresent(int nranks, int rank, const ncclConfig_t *config, int *place)
{
    ncclConfig_t read;
    struct why why;

    if (nranks < 1 || nranks > HN_MAX_RANKS || rank < 0 || rank >= nranks ||
        hn_config_read(&read, config, NULL) != ncclSuccess) {
        return 0;
    }
    return find_places(nranks, rank, read.commName, "", place, &why);
}

int hostncclTell(const char *name, const int *ranks, int count)
{
    struct told *t, *old;

    if (count <= 0) {
        pthread_mutex_lock(&lock);
        t = all_told;
        all_told = NULL;
        pthread_mutex_unlock(&lock);
        for (; t; t = old) {
            old = t->next;
            free(t->name);
            free(t);
        }
        return 0;
    }
    t = malloc(sizeof(*t) + (size_t)count * sizeof(*t->ranks));
    if (!t) {
        return -1;
    }
    *t = (struct told){.name = name ? strdup(name) : NULL, .count = count};
    for (int r = 0; r < count; r++) {
        t->ranks[r] = ranks[r];
        if (ranks[r] < 0 || ranks[r] >= HN_MAX_RANKS) {
            count = -1;
        }
    }
    if (count < 0 || (name && !t->name)) {
        free(t->name);
        free(t);
        return -1;
    }
    pthread_mutex_lock(&lock);
    t->next = all_told;
    all_told = t;
    pthread_mutex_unlock(&lock);
    return 0;
}
