/*
 * trace_file.c: see trace_file.h.
 *
 * The file is mapped, because the frames are decoded where they lie. The reader unpacks as it goes: its callers do not
 * see which frames were packed.
 */
#include "daemon/store/trace_file.h"

#include "daemon/store/pack.h"
#include "daemon/store/segment.h"
#include "trace/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct roll_trace_reader {
    const uint8_t *data;
    size_t bytes, at;
    void *map; /* mapping to unmap; NULL when the bytes are borrowed */
    roll_unpacker_t *unpacker;
    const uint8_t *inner; /* frames of the PACK that ends at `next` */
    size_t inner_bytes, inner_at, next;
    bool resume;
    bool repeats; /* the PACK repeats what an earlier segment had */
};

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
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe is refused, not waited for */
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
    r->repeats = pack->head.first == 1;
    if (r->resume && r->repeats) {
        r->inner_at = r->inner_bytes;
    }
    return err;
}

/* The offset stays at the beginning of a PACK until all frames in it have been given. */
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
            out->head.flags |= r->repeats && out->head.type == ROLL_FRAME_RECORDS ? ROLL_RECORDS_REPEATED : 0;
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
