/*
 * trace_file.c: trace files by append.
 *
 * A file that is cut anywhere stays valid up to its last whole frame, so a writer that finds one (its predecessor was
 * killed) cuts the ragged end and goes on. Frames are collected in a buffer and written by one write(2) per turn of the
 * root's loop: stdio was rejected because a daemon must know when the bytes have left the process. The reader unpacks
 * as it goes: nobody above it knows which frames were packed.
 */
#include "daemon/store/trace_file.h"

#include "daemon/store/pack.h"
#include "daemon/store/segment.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (256u * 1024u)

struct roll_trace_writer {
    int fd;
    size_t used;
    uint8_t buffer[BUFFER_BYTES];
};

struct roll_trace_reader {
    const uint8_t *data;
    size_t bytes, at;
    void *map; /* to unmap; NULL when the bytes are borrowed */
    roll_unpacker_t *unpacker;
    const uint8_t *inner; /* frames of the PACK that ends at `next` */
    size_t inner_bytes, inner_at, next;
    bool resume;
};

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return roll_segment_errno();
        }
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Cuts an existing file after its last whole frame, or gives a new one its head. */
static int prepare(int fd, const char *path)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return roll_segment_errno();
    }
    if (st.st_size == 0) {
        uint8_t head[ROLL_TRACE_HEAD_BYTES];
        roll_trace_head(head);
        return write_all(fd, head, sizeof(head));
    }
    roll_trace_reader_t *reader = NULL;
    int err = roll_trace_reader_new(path, &reader);
    if (err) {
        return err;
    }
    struct roll_frame frame;
    while (roll_trace_reader_next(reader, &frame) == 0) {
    }
    size_t end = roll_trace_reader_offset(reader);
    roll_trace_reader_destroy(&reader);
    if (end < (size_t)st.st_size && ftruncate(fd, (off_t)end) != 0) {
        return roll_segment_errno();
    }
    return 0;
}

int roll_trace_writer_new(const char *path, roll_trace_writer_t **out)
{
    roll_trace_writer_t *w = calloc(1, sizeof(*w));
    if (!w) {
        return ROLL_E_NOMEM;
    }
    int err;
    w->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (w->fd < 0) {
        err = roll_segment_errno();
    } else if (flock(w->fd, LOCK_EX | LOCK_NB) != 0) {
        err = ROLL_E_BUSY;
    } else {
        err = prepare(w->fd, path);
    }
    if (err) {
        roll_trace_writer_destroy(&w);
        return err;
    }
    *out = w;
    return 0;
}

int roll_trace_writer_flush(roll_trace_writer_t *w)
{
    int err = w->used ? write_all(w->fd, w->buffer, w->used) : 0;
    w->used = 0;
    return err;
}

int roll_trace_writer_append(roll_trace_writer_t *w, const void *frame, size_t bytes)
{
    if (bytes > sizeof(w->buffer) - w->used) {
        int err = roll_trace_writer_flush(w);
        if (err) {
            return err;
        }
    }
    if (bytes > sizeof(w->buffer)) {
        return write_all(w->fd, frame, bytes);
    }
    memcpy(w->buffer + w->used, frame, bytes);
    w->used += bytes;
    return 0;
}

void roll_trace_writer_destroy(roll_trace_writer_t **pointer)
{
    roll_trace_writer_t *w = *pointer;
    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        roll_trace_writer_flush(w);
        close(w->fd);
    }
    free(w);
    *pointer = NULL;
}

int roll_trace_reader_view(const void *data, size_t bytes, roll_trace_reader_t **out)
{
    int err = roll_trace_check(data, bytes);
    if (err) {
        return err;
    }
    roll_trace_reader_t *r = calloc(1, sizeof(*r));
    if (!r) {
        return ROLL_E_NOMEM;
    }
    r->data = data;
    r->bytes = bytes;
    r->at = ROLL_TRACE_HEAD_BYTES;
    *out = r;
    return 0;
}

int roll_trace_reader_new(const char *path, roll_trace_reader_t **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* of a pipe too: it is refused, not waited for */
    if (fd < 0) {
        return roll_segment_errno();
    }
    struct stat st;
    void *map = NULL;
    int err = 0;
    if (fstat(fd, &st) != 0) {
        err = roll_segment_errno();
    } else if (!S_ISREG(st.st_mode)) {
        err = ROLL_E_IO;
    } else if (st.st_size < (off_t)ROLL_TRACE_HEAD_BYTES) {
        err = ROLL_E_SHORT;
    } else {
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        err = map == MAP_FAILED ? roll_segment_errno() : 0;
    }
    close(fd);
    if (err) {
        return err;
    }
    err = roll_trace_reader_view(map, (size_t)st.st_size, out);
    if (err) {
        munmap(map, (size_t)st.st_size);
        return err;
    }
    (*out)->map = map;
    return 0;
}

static int unpack(roll_trace_reader_t *r, const struct roll_frame *pack)
{
    if (!r->unpacker && !(r->unpacker = roll_unpacker_new())) {
        return ROLL_E_NOMEM;
    }
    r->inner_at = r->inner_bytes = 0;
    int err = roll_unpacker_take(r->unpacker, pack, &r->inner, &r->inner_bytes);
    if (r->resume && pack->head.first == 1) {
        r->inner_at = r->inner_bytes;
    }
    return err;
}

/* The offset stays at the beginning of a PACK until all that is in it has been given. */
int roll_trace_reader_next(roll_trace_reader_t *r, struct roll_frame *out)
{
    for (;;) {
        size_t used = 0;
        if (r->inner_at < r->inner_bytes) {
            int err = roll_frame_decode(r->inner + r->inner_at, r->inner_bytes - r->inner_at, out, &used);
            if (err || out->head.type == ROLL_FRAME_PACK) {
                return err == ROLL_E_NOMEM ? err : ROLL_E_CORRUPT;
            }
            r->inner_at += used;
            if (r->inner_at == r->inner_bytes) {
                r->at = r->next;
            }
            return 0;
        }
        if (r->next > r->at) {
            r->at = r->next;
        }
        if (r->at == r->bytes) {
            return ROLL_E_NOTFOUND;
        }
        int err = roll_frame_decode(r->data + r->at, r->bytes - r->at, out, &used);
        if (!err && out->head.type == ROLL_FRAME_PACK) {
            err = unpack(r, out);
            if (!err) {
                r->next = r->at + used;
                continue;
            }
        }
        if (err) {
            return err;
        }
        r->at = r->next = r->at + used;
        return 0;
    }
}

void roll_trace_reader_resume(roll_trace_reader_t *r)
{
    r->resume = true;
}

size_t roll_trace_reader_offset(const roll_trace_reader_t *r)
{
    return r->at;
}

void roll_trace_reader_destroy(roll_trace_reader_t **pointer)
{
    roll_trace_reader_t *r = *pointer;
    if (!r) {
        return;
    }
    if (r->map) {
        munmap(r->map, r->bytes);
    }
    roll_unpacker_destroy(&r->unpacker);
    free(r);
    *pointer = NULL;
}
