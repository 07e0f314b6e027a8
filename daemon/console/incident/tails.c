/*
 * tails.c: see tails.h. Rings as files were rejected: what reads them asks this machine whether their processes live,
 * and on the machine of whoever gets the bundle they never do. A trace says how they were, and takes a tenth of the
 * room.
 */
#include "daemon/console/incident/tails.h"

#include "daemon/base/array.h"
#include "daemon/base/base64.h"
#include "daemon/base/clock.h"
#include "daemon/feed/clock.h"
#include "daemon/feed/merge.h"
#include "daemon/store/ring_image.h"
#include "daemon/store/segment.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_NS   (100 * ROLL_MS)             /* between two ticks behind the last record */
#define PASS_NS   (UINT64_C(60000) * ROLL_MS) /* no patience is longer; then one tick for the rest */
#define BYTES_ALL (UINT64_C(1) << 30)         /* of all tails in memory */
#define FRAME     (512u * ROLL_RECORD_BYTES + ROLL_FRAME_HEAD_BYTES)

/* A process that lived until its launcher ended the job is told as it was before: the finding is older than that. */
static enum roll_proc_state before_the_end(struct roll_ring_header *h, json_int_t process)
{
    int32_t status = atomic_load(&h->exit_status);
    if (status != ROLL_EXIT_UNKNOWN && (status & ROLL_EXIT_ASKED) != 0) {
        atomic_store(&h->exit_status, ROLL_EXIT_UNKNOWN);
        atomic_store(&h->state, ROLL_RING_ATTACHED);
        return ROLL_PROC_RUNNING;
    }
    return process >= ROLL_PROC_RUNNING && process <= ROLL_PROC_DEAD ? (enum roll_proc_state)process : 0;
}

int roll_tails_add(struct roll_tails *tails, uint32_t rank, const json_t *answer, char *why, size_t why_size)
{
    const char *text = json_string_value(json_object_get(answer, "ring"));
    const char *error = json_string_value(json_object_get(answer, "error"));
    json_int_t process = json_integer_value(json_object_get(answer, "process"));
    uint8_t *image = NULL, *data = NULL;
    size_t bytes = 0, size = 0;
    struct roll_ring ring;
    snprintf(why, why_size, "%s", error ? error : "the agent's answer has no tail");
    if (!text) {
        return ROLL_E_NOTFOUND;
    }
    int err = roll_base64_open(text, &image, &bytes);
    err = err ? err : roll_ring_image_open(image, bytes, &data, &size);
    free(image);
    err = err ? err : roll_ring_view(data, size, &ring);
    err = err                               ? err
          : tails->bytes + size > BYTES_ALL ? ROLL_E_LIMIT
                                            : ROLL_GROW(tails->at, tails->room, tails->used + 1);
    if (err) {
        snprintf(why, why_size, "%s", roll_strerror(err));
        free(data);
        return err;
    }
    tails->bytes += size;
    tails->at[tails->used++] =
        (struct roll_tail){.rank = rank,
                           .data = data,
                           .bytes = size,
                           .ring = ring,
                           .process = before_the_end((struct roll_ring_header *)(void *)data, process),
                           .head = roll_ring_head(&ring)};
    return 0;
}

void roll_tails_fini(struct roll_tails *tails)
{
    for (size_t i = 0; i < tails->used; i++) {
        free(tails->at[i].data);
    }
    free(tails->at);
    *tails = (struct roll_tails){.at = NULL};
}

/* the trace */

struct writer {
    roll_segments_t *segments;
    uint64_t seq, time_ns;
    uint8_t *frame; /* room for one, as it is encoded; grows with definitions */
    size_t room;
};

static int keep(struct writer *w, struct roll_frame_head head, const void *payload, size_t bytes)
{
    size_t wanted = bytes + ROLL_FRAME_HEAD_BYTES;
    struct roll_frame frame;
    if (w->room < wanted) {
        uint8_t *more = realloc(w->frame, wanted);
        if (!more) {
            return ROLL_E_NOMEM;
        }
        w->frame = more;
        w->room = wanted;
    }
    head.seq = head.type == ROLL_FRAME_TICK ? head.seq : ++w->seq;
    int64_t n = roll_frame_make(&head, payload, bytes, w->frame, w->room, &frame);
    return n < 0 ? (int)n : roll_segments_append(w->segments, &frame, w->frame, (size_t)n, roll_mono_ns());
}

static int take_frame(void *ctx, const struct roll_frame *frame)
{
    return keep(ctx, frame->head, frame->payload, frame->head.payload);
}

static int take_tick(void *ctx, uint64_t time_ns)
{
    struct writer *w = ctx;
    struct roll_feed_time time = roll_feed_time_on_grid(time_ns, time_ns);
    w->time_ns = time_ns > w->time_ns ? time_ns : w->time_ns;
    return keep(w, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = time.engine_ns}, &time.wall_ns,
                sizeof(time.wall_ns));
}

/* Behind the last record: the time in which nothing came, as long as somebody was there who would have seen it. */
static int let_time_pass(struct writer *w, uint64_t until_ns)
{
    int err = 0;
    uint64_t begin = w->time_ns;
    while (err == 0 && begin > 0 && w->time_ns + STEP_NS < until_ns && w->time_ns < begin + PASS_NS) {
        err = take_tick(w, w->time_ns + STEP_NS);
    }
    return err || begin == 0 || w->time_ns >= until_ns ? err : take_tick(w, until_ns);
}

static int write_all(const struct roll_tails *tails, struct writer *w, const struct roll_frame_settings *settings,
                     uint64_t until_ns)
{
    struct roll_ring *ring = calloc(tails->used, sizeof(*ring));
    enum roll_proc_state *process = calloc(tails->used, sizeof(*process));
    const struct roll_merge_sink sink = {take_frame, take_tick, w};
    int err = ring && process ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; err == 0 && i < tails->used; i++) {
        ring[i] = tails->at[i].ring;
        process[i] = tails->at[i].process;
    }
    err = err ? err : keep(w, (struct roll_frame_head){.type = ROLL_FRAME_SETTINGS}, settings, sizeof(*settings));
    err = err ? err : roll_merge_rings_into(&sink, ring, process, tails->used);
    err = err ? err : let_time_pass(w, until_ns);
    err = err ? err : roll_segments_turn(w->segments, roll_mono_ns(), true);
    free(ring);
    free(process);
    return err;
}

static int by_rank(const void *a, const void *b)
{
    const struct roll_tail *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Counts what was written, and takes the writer's lock file away. */
static void count_files(struct roll_bundle *b, const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        struct stat st;
        char name[PATH_MAX];
        if (entry->d_name[0] == '.') {
            (void)unlinkat(dirfd(d), entry->d_name, 0);
        } else if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            snprintf(name, sizeof(name), "trace/%s", entry->d_name);
            roll_bundle_count(b, name,
                              "the last calls of the ranks concerned: rollcall analyze, export, replay read it",
                              (uint64_t)st.st_size);
        }
    }
    if (d) {
        closedir(d);
    }
}

int roll_tails_write(struct roll_tails *tails, struct roll_bundle *bundle, const char *job, uint32_t restart,
                     const struct roll_frame_settings *settings, uint64_t until_ns)
{
    char dir[2 * PATH_MAX + 16], series[96], word[49];
    struct writer w = {.frame = malloc(FRAME), .room = FRAME};
    int pid;
    if (tails->used == 0 || bundle->number != 0) {
        free(w.frame);
        return 0;
    }
    qsort(tails->at, tails->used, sizeof(tails->at[0]), by_rank);
    roll_bundle_word(job, word, sizeof(word));
    snprintf(series, sizeof(series), "%s.%u", word, restart);
    snprintf(dir, sizeof(dir), "%s/trace", bundle->path);
    struct roll_segment_options o = {.dir = dir, .series = series};
    if (mkdirat(bundle->fd, "trace", 0700) != 0) {
        bundle->number = errno;
        free(w.frame);
        return 0;
    }
    int err = w.frame ? roll_segments_new(&o, &w.segments, &pid) : ROLL_E_NOMEM;
    err = err ? err : write_all(tails, &w, settings, until_ns);
    roll_segments_destroy(&w.segments);
    free(w.frame);
    if (err == ROLL_E_SPACE || err == ROLL_E_IO) {
        bundle->number = err == ROLL_E_SPACE ? ENOSPC : EIO;
        return 0;
    }
    count_files(bundle, dir);
    return err;
}
