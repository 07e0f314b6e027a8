/*
 * agent_lines.c: see agent_lines.h. A thread reads the files (agent_source.c), so that the agent waits for none; an
 * answer goes out when all of its lines are there, and after some seconds with those that are.
 */
#include "daemon/agent/agent_lines.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTIONS  8u /* whose lines are read at a time */
#define TURNED     8u /* further ones, that wait to be told so; of what comes beyond nobody is told */
#define RINGS_MOST 8u
#define LINES_MOST 32u /* of one question */
#define TIME_NS    (4000 * ROLL_MS)

struct question {
    uint64_t number, key, until_ns; /* key: by which the reader knows it */
    uint64_t epoch[RINGS_MOST];
    size_t rings, waits; /* waits: for so many lines */
    json_t *answer;      /* by ring: its lines; owned */
    json_t *beyond;      /* texts: further rings, for which there is no place; owned */
    const char *why;     /* what is said of those */
};

struct roll_agent_lines {
    struct question list[QUESTIONS + TURNED];
    size_t used, read;          /* read: so many of them have lines that are read */
    uint64_t last_key, refused; /* refused: rings that were asked for and had no place, since the agent began */
};

roll_agent_lines_t *roll_agent_lines_new(void)
{
    return calloc(1, sizeof(roll_agent_lines_t));
}

static void release(struct question *q)
{
    json_decref(q->answer);
    json_decref(q->beyond);
}

void roll_agent_lines_forget(roll_agent_lines_t *l)
{
    while (l->used > 0) {
        release(&l->list[--l->used]);
    }
    l->read = 0;
}

void roll_agent_lines_destroy(roll_agent_lines_t **self)
{
    if (*self) {
        roll_agent_lines_forget(*self);
        free(*self);
        *self = NULL;
    }
}

bool roll_agent_lines_waits(const roll_agent_lines_t *l)
{
    return l->used > 0;
}

/* questions */

static struct roll_agent_ring *ring_of(struct roll_agent_ring *const *rings, size_t used, uint64_t epoch)
{
    for (size_t i = 0; i < used; i++) {
        if (rings[i]->epoch == epoch) {
            return rings[i];
        }
    }
    return NULL;
}

static size_t place_of(const struct question *q, uint64_t epoch)
{
    size_t i = 0;
    while (i < q->rings && q->epoch[i] != epoch) {
        i++;
    }
    return i;
}

static uint64_t epoch_of(const json_t *text)
{
    return json_is_string(text) ? strtoull(json_string_value(text), NULL, 16) : 0;
}

/* One line that is asked for; those of rings that are elsewhere are for others. */
static void ask_line(struct question *q, roll_agent_sources_t *sources, struct roll_agent_ring *const *rings,
                     size_t used, const json_t *line)
{
    uint64_t epoch = epoch_of(json_object_get(line, "stream"));
    const char *file = json_string_value(json_object_get(line, "file"));
    json_int_t number = json_integer_value(json_object_get(line, "line"));
    size_t at = place_of(q, epoch);
    struct roll_agent_ring *ring = at < q->rings ? ring_of(rings, used, epoch) : NULL;
    if (!ring || !file || number < 1 || number > UINT32_MAX) {
        return;
    }
    json_t *list = json_array_get(q->answer, at);
    json_array_append_new(list, json_pack("{s:s,s:I}", "file", file, "line", number));
    q->waits +=
        sources && roll_agent_sources_ask(sources, ring, q->key, json_array_size(list) - 1, file, (uint32_t)number);
}

/* Puts down a question for the first `most` of the rings that are named; NULL: there is no place for it. */
static struct question *put_down(roll_agent_lines_t *l, const json_t *streams, size_t most)
{
    json_t *one;
    size_t i, n = json_array_size(streams);
    if (n > most) {
        l->refused += n - most;
        roll_log(ROLL_LOG_INFO,
                 "agent: lines of source are asked for %zu ranks, and there was room for %zu; %llu ranks "
                 "were left out so far",
                 n, most, (unsigned long long)l->refused);
    }
    if (l->used == QUESTIONS + TURNED) {
        return NULL;
    }
    struct question *q = &l->list[l->used++];
    *q = (struct question){.answer = json_array(), .beyond = json_array()};
    q->why = most > 0 ? "its agent reads lines for 8 ranks at a time: ask for fewer"
                      : "its agent reads lines for others: ask again in a moment";
    json_array_foreach(streams, i, one)
    {
        if (i >= most) {
            json_array_append(q->beyond, one);
            continue;
        }
        q->epoch[q->rings++] = epoch_of(one);
        json_array_append_new(q->answer, json_array());
    }
    return q;
}

void roll_agent_lines_ask(roll_agent_lines_t *l, roll_agent_sources_t *sources, struct roll_agent_ring *const *rings,
                          size_t used, const struct roll_frame *ask, uint64_t now)
{
    json_t *json = roll_net_json(ask), *streams = json_object_get(json, "streams"), *one;
    const char *op = json_string_value(json_object_get(json, "op"));
    size_t i;
    bool ours = op && strcmp(op, "source") == 0 && json_array_size(streams) > 0;
    struct question *q = ours ? put_down(l, streams, l->read < QUESTIONS ? RINGS_MOST : 0) : NULL;
    if (q) {
        q->number = ask->head.seq;
        q->key = ++l->last_key;
        q->until_ns = now + TIME_NS;
        l->read += q->rings > 0;
        json_array_foreach(json_object_get(json, "lines"), i, one)
        {
            if (i < LINES_MOST) {
                ask_line(q, sources, rings, used, one);
            }
        }
    }
    json_decref(json);
}

/* answers */

static void take(roll_agent_lines_t *l, const struct roll_agent_around *a)
{
    for (size_t i = 0; i < l->used; i++) {
        struct question *q = &l->list[i];
        json_t *line =
            q->key == a->question ? json_array_get(json_array_get(q->answer, place_of(q, a->epoch)), a->item) : NULL;
        json_t *texts = line && a->said ? json_array() : NULL;
        for (uint32_t k = 0; texts && k < a->lines.lines; k++) {
            json_array_append_new(texts, roll_text_to_json(a->lines.text[k]));
        }
        if (texts) {
            json_object_set_new(line, "first", json_integer(a->lines.first));
            json_object_set_new(line, "texts", texts);
        }
        q->waits -= line && q->waits > 0;
    }
}

/* Sends one answer (takes it). */
static void send_one(const struct question *q, size_t number, json_t *json, void *socket)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = q->number, .first = number};
    int err = json ? roll_net_send_json(socket, NULL, 0, &head, json) : ROLL_E_NOMEM;
    if (err) { /* a full socket, too: it is only text for people, who ask again */
        roll_log(ROLL_LOG_INFO, "agent: lines of source cannot be sent to the root: %s", roll_strerror(err));
    }
    json_decref(json);
}

static void send_answers(struct question *q, void *socket)
{
    size_t k;
    json_t *one;
    for (size_t i = 0; i < q->rings; i++) {
        char text[24];
        snprintf(text, sizeof(text), "%016llx", (unsigned long long)q->epoch[i]);
        send_one(q, i,
                 json_pack("{s:s,s:s,s:{s:s,s:O}}", "op", "source", "stream", text, "source", "schema",
                           "rollcall.source/1", "lines", json_array_get(q->answer, i)),
                 socket);
    }
    json_array_foreach(q->beyond, k, one)
    {
        send_one(q, q->rings + k,
                 json_pack("{s:s,s:O,s:{s:s,s:s}}", "op", "source", "stream", one, "source", "schema",
                           "rollcall.source/1", "error", q->why),
                 socket);
    }
}

void roll_agent_lines_pump(roll_agent_lines_t *l, roll_agent_sources_t *sources, void *socket, uint64_t now)
{
    struct roll_agent_around around;
    while (l->used > 0 && roll_agent_sources_take(sources, &around)) {
        take(l, &around);
    }
    for (size_t i = l->used; i-- > 0;) {
        if (l->list[i].waits == 0 || now >= l->list[i].until_ns) {
            send_answers(&l->list[i], socket);
            l->read -= l->list[i].rings > 0;
            release(&l->list[i]);
            memmove(&l->list[i], &l->list[i + 1], (--l->used - i) * sizeof(l->list[0]));
        }
    }
}
