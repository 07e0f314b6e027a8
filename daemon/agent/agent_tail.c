/*
 * agent_tail.c: see agent_tail.h.
 *
 * The agent cuts the image so that it fits into one frame. Parts of one ring in several frames were rejected: between
 * two of them the rank goes on, and the parts would be of different moments.
 */
#include "daemon/agent/agent_tail.h"

#include "daemon/agent/agent_look.h"
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

#define QUESTIONS 64u
#define TELL_NS   (300 * ROLL_MS)  /* between the end of a process and what its launcher says of it */
#define LOOK_NS   (2000 * ROLL_MS) /* patience with a process; a root has more with its agent */
/* For so long behind one that did not answer the others get less: a root waits 8 s for an answer, and may ask for all
 * ranks of a node at once. One that answers in between does not renew the patience. */
#define VAIN_NS      (10000 * ROLL_MS)
#define LOOK_VAIN_NS (300 * ROLL_MS)
#define ANSWER_MOST  (1000u * 1024u) /* a root takes a mebibyte of JSON */
#define IMAGE_MOST   (640u * 1024u)  /* four thirds of it as text, and room for the rest */

struct question {
    uint64_t number, epoch;
    uint32_t records;
};

struct roll_agent_tails {
    const char *host;
    struct question queue[QUESTIONS];
    size_t used;
    json_t *out;             /* an answer that waits for room in the socket, or for its process; owned */
    roll_agent_look_t *look; /* at the process of `out`; owned; NULL: it is not waited for */
    uint64_t look_ns;        /* since when */
    uint64_t vain_ns;        /* when one was last waited for in vain; 0: none was, as far as this root knows */
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
    t->vain_ns = 0;
    roll_agent_look_leave(&t->look);
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

/* Begins to look at the process that writes the ring. */
static void begin_look(roll_agent_tails_t *t, json_t *answer, const struct roll_agent_ring *ring)
{
    const struct roll_ring_header *h = ring->map.header;
    struct roll_source_process process = {.pid = (pid_t)h->pid, .start_ticks = h->start_ticks};
    const char *why = "the process that its ring names is not the one that writes it, or has ended";
    if (ring->gone || ring->foreign) {
        return;
    }
    if (roll_source_mapping(h, ring->path, &process.ring)) {
        t->look = roll_agent_look_new(&process, &why);
        t->look_ns = roll_mono_ns();
    }
    if (!t->look) {
        set(answer, "process_error", json_string(why));
    }
}

/* Puts what the process has told into the answer. False: it is still waited for. */
static bool end_look(roll_agent_tails_t *t)
{
    json_t *environment, *libraries;
    const char *why;
    if (!t->look) {
        return true;
    }
    bool told = roll_agent_look_done(t->look, &environment, &libraries, &why);
    bool in_vain = t->vain_ns != 0 && t->look_ns - t->vain_ns < VAIN_NS;
    uint64_t now = roll_mono_ns();
    if (!told && now - t->look_ns < (in_vain ? LOOK_VAIN_NS : LOOK_NS)) {
        return false;
    }
    t->vain_ns = told ? t->vain_ns : now;
    set(t->out, "environment", environment);
    set(t->out, "libraries", libraries);
    why = told ? why : "its process does not answer: /proc/PID tells nothing of it in time";
    set(t->out, "process_error", why ? json_string(why) : NULL);
    roll_agent_look_leave(&t->look);
    if (json_dumpb(t->out, NULL, 0, JSON_COMPACT) > ANSWER_MOST) { /* the tail says most */
        json_object_del(t->out, "environment");
        json_object_del(t->out, "log");
    }
    return true;
}

static json_t *answer_of(roll_agent_tails_t *t, const struct question *q, const struct roll_agent_ring *ring)
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
    set(answer, "process", json_integer(roll_agent_ring_proc(ring)));
    begin_look(t, answer, ring);
    add_image(answer, &ring->map, q);
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
    if (t->out && !end_look(t)) {
        return true; /* the next turn looks again */
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
