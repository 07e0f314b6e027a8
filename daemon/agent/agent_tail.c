/*
 * agent_tail.c: see agent_tail.h.
 *
 * The agent cuts the image so that it fits into one frame. Parts of one ring in several frames were rejected: between
 * two of them the rank goes on, and the parts would be of different moments.
 */
#include "daemon/agent/agent_tail.h"

#include "daemon/agent/agent_process.h"
#include "daemon/base/base64.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/base/software.h"
#include "daemon/store/ring_image.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define QUESTIONS   64u
#define TELL_NS     (300 * ROLL_MS) /* between the end of a process and what its launcher says of it */
#define ANSWER_MOST (1000u * 1024u) /* a root takes a mebibyte of JSON */
#define IMAGE_MOST  (640u * 1024u)  /* four thirds of it as text, and room for the rest */

struct question {
    uint64_t number, epoch;
    uint32_t records;
};

struct roll_agent_tails {
    const char *host;
    struct question queue[QUESTIONS];
    size_t used;
    json_t *out; /* an answer that waits for room in the socket; owned */
    uint64_t out_number;
};

roll_agent_tails_t *roll_agent_tails_new(const char *host)
{
    roll_agent_tails_t *t = calloc(1, sizeof(*t));
    if (t) {
        t->host = host;
    }
    return t;
}

void roll_agent_tails_forget(roll_agent_tails_t *t)
{
    t->used = 0;
    json_decref(t->out);
    t->out = NULL;
}

void roll_agent_tails_destroy(roll_agent_tails_t **tails)
{
    if (*tails) {
        roll_agent_tails_forget(*tails);
        free(*tails);
        *tails = NULL;
    }
}

void roll_agent_tails_ask(roll_agent_tails_t *t, const struct roll_frame *ask)
{
    json_t *json = roll_net_json(ask), *epoch;
    const char *op = json_string_value(json_object_get(json, "op"));
    const json_t *epochs = json_object_get(json, "streams");
    json_int_t records = json_integer_value(json_object_get(json, "records"));
    size_t i;
    json_array_foreach(op && strcmp(op, "tail") == 0 ? epochs : NULL, i, epoch)
    {
        const char *text = json_string_value(epoch);
        if (t->used < QUESTIONS) {
            t->queue[t->used++] =
                (struct question){.number = ask->head.seq,
                                  .epoch = text ? strtoull(text, NULL, 16) : 0,
                                  .records = records < 1                                     ? 1
                                             : records > (json_int_t)ROLL_RING_IMAGE_RECORDS ? ROLL_RING_IMAGE_RECORDS
                                                                                             : (uint32_t)records};
        }
    }
    json_decref(json);
}

/* answers */

static void set(json_t *object, const char *key, json_t *value)
{
    if (value) {
        json_object_set_new(object, key, value);
    }
}

static void add_image(json_t *answer, const struct roll_ring *ring, const struct question *q)
{
    struct roll_ring_image image;
    int err = roll_ring_image_make(ring, q->records, IMAGE_MOST, &image);
    if (err) {
        set(answer, "error",
            json_string(err == ROLL_E_SIZE ? "its definitions are too large to be sent"
                                           : "its agent has no memory for the tail of its ring"));
        return;
    }
    char *text = roll_base64_new(image.bytes, image.used);
    set(answer, "ring", text ? json_string_nocheck(text) : NULL);
    set(answer, "records", json_integer((json_int_t)(image.head < image.records ? image.head : image.records)));
    set(answer, "head", json_integer((json_int_t)image.head));
    free(text);
    free(image.bytes);
}

static json_t *answer_of(const roll_agent_tails_t *t, const struct question *q, const struct roll_agent_ring *ring)
{
    char epoch[24], log[8192];
    snprintf(epoch, sizeof(epoch), "%016llx", (unsigned long long)q->epoch);
    json_t *answer = json_pack("{s:s, s:s, s:o, s:o}", "op", "tail", "stream", epoch, "host",
                               roll_text_to_json(t->host), "software", roll_software_json());
    roll_log_tail(log, sizeof(log));
    set(answer, "log", roll_text_to_json(log));
    if (!answer || !ring) {
        set(answer, "error", json_string("its ring is not here any more"));
        return answer;
    }
    pid_t pid = ring->gone || ring->foreign ? 0 : (pid_t)ring->map.header->pid;
    set(answer, "process", json_integer(roll_agent_ring_proc(ring)));
    if (pid > 0) {
        set(answer, "environment", roll_process_environment(pid));
        set(answer, "libraries", roll_process_libraries(pid));
    }
    add_image(answer, &ring->map, q);
    if (json_dumpb(answer, NULL, 0, JSON_COMPACT) > ANSWER_MOST) { /* the tail says most */
        json_object_del(answer, "environment");
        json_object_del(answer, "log");
    }
    return answer;
}

/* A launcher that has ended the job is about to write so into the ring. */
static bool is_about_to_tell(const struct roll_agent_ring *ring)
{
    return ring && ring->gone && roll_mono_ns() - ring->gone_ns < TELL_NS &&
           (atomic_load(&ring->map.header->exit_status) & ~ROLL_EXIT_ASKED) == ROLL_EXIT_UNKNOWN;
}

bool roll_agent_tails_pump(roll_agent_tails_t *t, void *socket, roll_agent_ring_fn find, void *ctx)
{
    const struct roll_agent_ring *ring = t->used > 0 ? find(ctx, t->queue[0].epoch) : NULL;
    if (is_about_to_tell(ring)) {
        return true;
    }
    if (t->used > 0 && !t->out) {
        t->out = answer_of(t, &t->queue[0], ring);
        t->out_number = t->queue[0].number;
        memmove(t->queue, t->queue + 1, --t->used * sizeof(t->queue[0]));
    }
    if (t->out) {
        struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = t->out_number};
        int err = roll_net_send_json(socket, NULL, 0, &head, t->out);
        if (err == ROLL_E_BUSY) {
            return true; /* the socket is full: the next turn tries again */
        }
        if (err) {
            roll_log(ROLL_LOG_WARNING, "agent: the tail of a ring cannot be sent to the root: %s", roll_strerror(err));
        }
        json_decref(t->out);
        t->out = NULL;
    }
    return t->used > 0;
}
