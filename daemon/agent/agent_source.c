/*
 * agent_source.c: a thread that reads files, and what it is asked for.
 *
 * Reading a file may take as long as a file server is away, and the agent must not wait for that: records and the
 * states of ranks go on. So a thread reads, and the agent waits for it only a moment, once: after a wait that was in
 * vain not again until the thread has caught up. What comes later is written later.
 *
 * The texts are definitions of the ring like those of the rank itself: they reach the root, a root that was started
 * anew, the trace and `rollcall dump` on the ways that are there. An agent that is killed within the nanoseconds
 * between the reservation of room and the seal ends the log of that ring's definitions; the records go on. A frame of
 * their own was rejected: it would need a second way of everything that definitions have.
 */
#include "daemon/agent/agent_source.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "trace/def.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define WAITING    1024u /* lines that wait to be read; further ones are asked for later */
#define TOLD       64u   /* answers that wait for who asked */
#define PATH_BYTES 1024u
#define PATIENCE   (20 * ROLL_MS)
#define JOIN_NS    (200 * ROLL_MS)

struct item {
    uint64_t epoch;
    struct roll_source_process process;
    uint32_t id, line; /* id of the line's definition */
    bool said;
    char path[PATH_BYTES];
    char text[ROLL_TEXT_BYTES + 1];
    struct roll_agent_around *around; /* of a question: where its answer goes; owned; else NULL */
};

struct roll_agent_sources {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t more, less;
    bool stop, ended;
    struct item *asked, *read; /* owned */
    size_t asked_used, asked_room, read_used, read_room;
    struct roll_agent_around *told[TOLD]; /* answers, oldest first; owned */
    size_t told_used;
    bool busy; /* one item is being read */
    bool slow; /* a wait was in vain, and the thread has not caught up. The agent's thread alone */
};

/* A line that has a definition. */
struct known_line {
    uint32_t source, line;
    bool wanted; /* a line of the user's that nobody has asked for */
};

struct roll_sources_of_ring {
    size_t at;   /* definitions up to here are known */
    char **path; /* by the id of the file; owned */
    size_t paths;
    struct known_line *line; /* by id */
    size_t lines, wanted;
    bool looked, is_mapped;             /* `mapping` was looked for, and is known: without it nothing is read */
    struct roll_source_mapping mapping; /* of the ring */
};

/* the thread that reads */

/* Reads what one item asks for; without the lock. */
static void read_item(struct item *item)
{
    struct roll_agent_around *a = item->around;
    if (a != NULL) {
        a->said = roll_source_around(&item->process, item->path, item->line, &a->lines);
    } else {
        item->said = roll_source_line(&item->process, item->path, item->line, item->text);
    }
}

/* Puts away what was read. Under the lock. */
static void keep_item(roll_agent_sources_t *s, const struct item *item)
{
    if (item->around != NULL) {
        if (s->told_used == TOLD) { /* whoever asked has given it up */
            free(s->told[0]);
            memmove(s->told, s->told + 1, --s->told_used * sizeof(s->told[0]));
        }
        s->told[s->told_used++] = item->around;
        return;
    }
    if (s->read_used == WAITING) { /* the oldest is of a ring that has gone, if any is */
        memmove(s->read, s->read + 1, --s->read_used * sizeof(*item));
    }
    if (!s->stop && item->said && ROLL_GROW(s->read, s->read_room, s->read_used + 1) == 0) {
        s->read[s->read_used++] = *item;
    }
}

static void *work(void *argument)
{
    roll_agent_sources_t *s = argument;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (s->asked_used == 0) {
            pthread_cond_wait(&s->more, &s->lock);
            continue;
        }
        struct item item = s->asked[0];
        memmove(s->asked, s->asked + 1, --s->asked_used * sizeof(item));
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        read_item(&item);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        keep_item(s, &item);
        if (s->asked_used == 0) {
            pthread_cond_signal(&s->less);
        }
    }
    s->ended = true;
    pthread_cond_signal(&s->less);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

roll_agent_sources_t *roll_agent_sources_new(void)
{
    const char *wish = getenv("ROLLCALL_SOURCE");
    roll_agent_sources_t *s = wish != NULL && strcmp(wish, "off") == 0 ? NULL : calloc(1, sizeof(*s));
    pthread_condattr_t monotonic;
    sigset_t all, old;
    if (s == NULL) {
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->less, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    int err = pthread_create(&s->thread, NULL, work, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err != 0) {
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->more);
        pthread_cond_destroy(&s->less);
        free(s);
        return NULL;
    }
    return s;
}

/* Waits, with the lock held, until there is nothing to be read any more, or the thread has ended. False: in vain. */
static bool wait_for_thread(roll_agent_sources_t *s, uint64_t patience_ns, bool end)
{
    uint64_t until = roll_mono_ns() + patience_ns;
    struct timespec at = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    int err = 0;
    while (err == 0 && (end ? !s->ended : s->asked_used > 0 || s->busy)) {
        err = pthread_cond_timedwait(&s->less, &s->lock, &at);
    }
    return err == 0;
}

void roll_agent_sources_destroy(roll_agent_sources_t **sources)
{
    roll_agent_sources_t *s = *sources;
    *sources = NULL;
    if (s == NULL) {
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->more);
    bool ended = wait_for_thread(s, JOIN_NS, true);
    pthread_mutex_unlock(&s->lock);
    if (!ended) {
        pthread_detach(s->thread);
        return;
    }
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    pthread_cond_destroy(&s->less);
    for (size_t i = 0; i < s->asked_used; i++) {
        free(s->asked[i].around);
    }
    while (s->told_used > 0) {
        free(s->told[--s->told_used]);
    }
    free(s->asked);
    free(s->read);
    free(s);
}

/* rings */

void roll_sources_of_ring_destroy(struct roll_sources_of_ring **pointer)
{
    struct roll_sources_of_ring *known = *pointer;
    *pointer = NULL;
    for (size_t i = 0; known != NULL && i < known->paths; i++) {
        free(known->path[i]);
    }
    if (known != NULL) {
        free(known->path);
        free(known->line);
        free(known);
    }
}

/* Takes note of a definition. False: no memory. */
static bool note(struct roll_sources_of_ring *known, const struct roll_def *def)
{
    if (def->type == ROLL_DEF_SOURCE) {
        if (ROLL_GROW_ZERO(known->path, known->paths, (size_t)def->id + 1) != 0) {
            return false;
        }
        if (known->path[def->id] == NULL && def->source.path_bytes > 0 && def->source.path[0] == '/' &&
            def->source.path_bytes < PATH_BYTES - 1) {
            known->path[def->id] = strndup(def->source.path, def->source.path_bytes);
        }
    } else if (def->type == ROLL_DEF_LINE || def->type == ROLL_DEF_TEXT) {
        if (ROLL_GROW_ZERO(known->line, known->lines, (size_t)def->id + 1) != 0) {
            return false;
        }
        struct known_line *line = &known->line[def->id];
        bool was = line->wanted;
        if (def->type == ROLL_DEF_LINE) {
            *line = (struct known_line){.source = def->line.info.source, .line = def->line.info.line};
        }
        line->wanted = def->type == ROLL_DEF_LINE && (def->line.info.flags & ROLL_DEF_LINE_LIBRARY) == 0;
        known->wanted += line->wanted;
        known->wanted -= was;
    }
    return true;
}

static void read_definitions(struct roll_sources_of_ring *known, const struct roll_agent_ring *ring)
{
    uint64_t used = atomic_load_explicit(&ring->map.header->defs_used, memory_order_acquire);
    size_t limit = (size_t)(used < ring->map.defs_bytes ? used : ring->map.defs_bytes), at = known->at;
    struct roll_def def;
    while (at < limit && roll_def_decode(ring->map.defs, limit, &at, &def) == 0 && note(known, &def)) {
        known->at = at;
    }
}

/* Asks for the lines that nobody has asked for; how many. Under the lock. */
static size_t ask(roll_agent_sources_t *s, struct roll_sources_of_ring *known, const struct roll_agent_ring *ring)
{
    const struct roll_ring_header *h = ring->map.header;
    size_t asked = 0;
    for (size_t id = 1; id < known->lines && known->wanted > 0 && s->asked_used < WAITING; id++) {
        struct known_line *line = &known->line[id];
        if (!line->wanted) {
            continue;
        }
        line->wanted = false;
        known->wanted--;
        const char *path = line->source < known->paths ? known->path[line->source] : NULL;
        if (path == NULL || line->line == 0 || ROLL_GROW(s->asked, s->asked_room, s->asked_used + 1) != 0) {
            continue;
        }
        struct item *item = &s->asked[s->asked_used++];
        *item = (struct item){.epoch = h->epoch,
                              .process = {.pid = (pid_t)h->pid, .start_ticks = h->start_ticks, .ring = known->mapping},
                              .id = (uint32_t)id,
                              .line = line->line};
        memcpy(item->path, path, strlen(path) + 1);
        asked++;
    }
    if (asked > 0) {
        pthread_cond_signal(&s->more);
    }
    return asked;
}

/* Writes the texts that have come for a ring into its area. Under the lock. */
static void write_texts(roll_agent_sources_t *s, struct roll_agent_ring *ring)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->read_used; i++) {
        const struct item *item = &s->read[i];
        if (item->epoch != ring->map.header->epoch) {
            s->read[kept++] = *item;
        } else if (roll_def_is_roomy(&ring->map)) {
            struct roll_def_text def = {.text_bytes = (uint32_t)strlen(item->text)};
            (void)roll_def_append(&ring->map, ROLL_DEF_TEXT, item->id, &def, sizeof(def), item->text, def.text_bytes);
        }
    }
    s->read_used = kept;
}

/* What the ring defines by now; NULL: nobody may read for it, or there is no memory. */
static struct roll_sources_of_ring *known_of(const roll_agent_sources_t *s, struct roll_agent_ring *ring)
{
    if (s == NULL || ring->second || ring->foreign) {
        return NULL;
    }
    ring->sources = ring->sources != NULL ? ring->sources : calloc(1, sizeof(*ring->sources));
    if (ring->sources != NULL) {
        read_definitions(ring->sources, ring);
    }
    return ring->sources;
}

static void find_mapping(struct roll_sources_of_ring *known, const struct roll_agent_ring *ring)
{
    if (!known->looked) {
        known->looked = true;
        known->is_mapped = roll_source_mapping(ring->map.header, ring->path, &known->mapping);
    }
}

static bool defines(const struct roll_sources_of_ring *known, const char *file, uint32_t line)
{
    bool found = false;
    for (size_t id = 1; id < known->lines && !found; id++) {
        const struct known_line *is = &known->line[id];
        const char *path = is->source < known->paths ? known->path[is->source] : NULL;
        found = is->line == line && line > 0 && path != NULL && strcmp(path, file) == 0;
    }
    return found;
}

bool roll_agent_sources_ask(roll_agent_sources_t *s, struct roll_agent_ring *ring, uint64_t question, size_t number,
                            const char *file, uint32_t line)
{
    const struct roll_ring_header *h = ring->map.header;
    struct roll_sources_of_ring *known = known_of(s, ring);
    if (known == NULL || ring->gone || !defines(known, file, line)) {
        return false;
    }
    find_mapping(known, ring);
    struct roll_agent_around *around = known->is_mapped ? calloc(1, sizeof(*around)) : NULL;
    if (around == NULL) {
        return false;
    }
    *around = (struct roll_agent_around){.question = question, .epoch = ring->epoch, .item = number};
    pthread_mutex_lock(&s->lock);
    bool taken = s->asked_used < WAITING && ROLL_GROW(s->asked, s->asked_room, s->asked_used + 1) == 0;
    if (taken) {
        struct item *item = &s->asked[s->asked_used++];
        *item = (struct item){.epoch = ring->epoch,
                              .process = {.pid = (pid_t)h->pid, .start_ticks = h->start_ticks, .ring = known->mapping},
                              .line = line,
                              .around = around};
        memcpy(item->path, file, strlen(file) + 1); /* as long as a path that is known */
        pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&s->lock);
    if (!taken) {
        free(around);
    }
    return taken;
}

bool roll_agent_sources_take(roll_agent_sources_t *s, struct roll_agent_around *out)
{
    bool there = false;
    if (s == NULL) {
        return false;
    }
    pthread_mutex_lock(&s->lock);
    if (s->told_used > 0) {
        there = true;
        *out = *s->told[0];
        free(s->told[0]);
        memmove(s->told, s->told + 1, --s->told_used * sizeof(s->told[0]));
    }
    pthread_mutex_unlock(&s->lock);
    return there;
}

void roll_agent_sources_look(roll_agent_sources_t *s, struct roll_agent_ring *ring)
{
    struct roll_sources_of_ring *known = known_of(s, ring);
    if (known == NULL) {
        return;
    }
    if (known->wanted > 0) {
        find_mapping(known, ring);
    }
    pthread_mutex_lock(&s->lock);
    size_t asked = known->wanted > 0 && known->is_mapped && !ring->gone ? ask(s, known, ring) : 0;
    s->slow = s->slow && (s->asked_used > 0 || s->busy);
    if (asked > 0 && !s->slow) {
        s->slow = !wait_for_thread(s, PATIENCE, false);
    }
    if (s->read_used > 0) {
        write_texts(s, ring);
    }
    pthread_mutex_unlock(&s->lock);
}
