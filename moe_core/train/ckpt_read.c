/*
 * ckpt_read.c: reads the file of a checkpoint and refuses one that is short, damaged or something else.
 *
 * The header is JSON of one shape only, so the reader is a cursor over that shape. A library for all of JSON was
 * rejected: what it accepts beyond that is damage here. Nothing that the header says is believed before it was compared
 * with the size of the file.
 */
#include "moe_core/train/ckpt_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MOST = 64 << 20, PIECE = 1 << 20 };

/* A cursor over the header. `bad` stays set. */
struct cursor {
    const char *at, *end;
    bool bad;
};

static void skip_spaces(struct cursor *c)
{
    while (c->at < c->end && *c->at == ' ') {
        c->at++;
    }
}

static bool next_is(struct cursor *c, char what)
{
    skip_spaces(c);
    if (c->at < c->end && *c->at == what) {
        c->at++;
        return true;
    }
    return false;
}

static void expect(struct cursor *c, char what)
{
    c->bad = c->bad || !next_is(c, what);
}

/* A string without escapes; what does not fit is bad. */
static void string(struct cursor *c, char *to, size_t size)
{
    size_t used = 0;
    expect(c, '"');
    while (!c->bad && c->at < c->end && *c->at != '"') {
        c->bad = *c->at == '\\' || used + 1 >= size;
        if (!c->bad) {
            to[used++] = *c->at++;
        }
    }
    to[c->bad ? 0 : used] = '\0';
    expect(c, '"');
}

static int64_t number(struct cursor *c)
{
    int64_t value = 0;
    bool any = false;
    skip_spaces(c);
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
        c->bad = c->bad || value > INT64_MAX / 16;
        value = c->bad ? 0 : value * 10 + (*c->at - '0');
        c->at++;
        any = true;
    }
    c->bad = c->bad || !any;
    return value;
}

static void facts(struct cursor *c, struct ckpt_in *in)
{
    expect(c, '{');
    for (bool first = true; !c->bad && !next_is(c, '}'); first = false) {
        struct ckpt_fact *more = realloc(in->fact, (size_t)(in->facts + 1) * sizeof(*more));
        if (more == NULL) {
            c->bad = true;
            return;
        }
        in->fact = more;
        if (!first) {
            expect(c, ',');
        }
        struct ckpt_fact *f = &in->fact[in->facts++];
        string(c, f->name, sizeof(f->name));
        expect(c, ':');
        string(c, f->value, sizeof(f->value));
    }
}

/* {"dtype":"F32","shape":[..],"data_offsets":[a,b]}; its bytes follow those of the one before it. */
static void tensor(struct cursor *c, struct ckpt_tensor *t, const char *dtype, uint64_t element, uint64_t begin)
{
    char word[16];
    uint64_t bytes = element;
    expect(c, '{');
    string(c, word, sizeof(word));
    expect(c, ':');
    c->bad = c->bad || strcmp(word, "dtype") != 0;
    string(c, word, sizeof(word));
    expect(c, ',');
    c->bad = c->bad || strcmp(word, dtype) != 0;
    string(c, word, sizeof(word));
    expect(c, ':');
    expect(c, '[');
    c->bad = c->bad || strcmp(word, "shape") != 0;
    for (t->ndims = 0; !c->bad && !next_is(c, ']'); t->ndims++) {
        if (t->ndims > 0) {
            expect(c, ',');
        }
        int64_t side = number(c);
        c->bad = c->bad || t->ndims == 4 || side < 1 || bytes > (uint64_t)INT64_MAX / (uint64_t)side;
        if (!c->bad) {
            t->dims[t->ndims] = side;
            bytes *= (uint64_t)side;
        }
    }
    expect(c, ',');
    string(c, word, sizeof(word));
    expect(c, ':');
    expect(c, '[');
    t->begin = (uint64_t)number(c);
    expect(c, ',');
    t->end = (uint64_t)number(c);
    expect(c, ']');
    expect(c, '}');
    c->bad = c->bad || strcmp(word, "data_offsets") != 0 || t->begin != begin || t->end != begin + bytes;
}

/* Whether the header is one of ours. The last tensor is the checksum; *data: the bytes behind the header. */
static bool parse(struct ckpt_in *in, const char *text, size_t size, uint64_t *data)
{
    struct cursor c = {text, text + size, false};
    char name[CKPT_NAME];
    bool checksum = false;
    uint64_t at = 0;
    expect(&c, '{');
    string(&c, name, sizeof(name));
    expect(&c, ':');
    c.bad = c.bad || strcmp(name, "__metadata__") != 0;
    facts(&c, in);
    while (!c.bad && !checksum) {
        struct ckpt_tensor t = {.ndims = 0};
        expect(&c, ',');
        string(&c, t.name, sizeof(t.name));
        expect(&c, ':');
        checksum = strcmp(t.name, "checksum") == 0;
        tensor(&c, &t, checksum ? "U8" : "F32", checksum ? 1 : sizeof(float), at);
        at = t.end;
        if (!checksum && !c.bad) {
            struct ckpt_tensor *more = realloc(in->tensor, (size_t)(in->tensors + 1) * sizeof(*more));
            c.bad = more == NULL;
            in->tensor = more != NULL ? more : in->tensor;
            if (more != NULL) {
                in->tensor[in->tensors++] = t;
            }
        }
        c.bad = c.bad || (checksum && t.end - t.begin != 8);
    }
    expect(&c, '}');
    *data = at;
    return !c.bad;
}

static int read_all(int fd, void *to, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -EIO;
        }
        done += (size_t)got;
    }
    return 0;
}

/* Reads everything but the last 8 bytes and compares its hash with them. */
static int check_hash(const struct ckpt_in *in, char *why, size_t size)
{
    uint64_t hash = ckpt_hash_begin, told = 0, end = in->bytes - sizeof(told);
    char *piece = malloc(PIECE);
    int rc = piece != NULL ? 0 : -ENOMEM;
    for (uint64_t at = 0; at < end && rc == 0; at += PIECE) {
        size_t bytes = end - at < PIECE ? (size_t)(end - at) : PIECE;
        rc = read_all(in->fd, piece, bytes, at);
        hash = rc == 0 ? ckpt_hash(hash, piece, bytes) : hash;
    }
    free(piece);
    rc = rc ? rc : read_all(in->fd, &told, sizeof(told), end);
    if (rc != 0) {
        snprintf(why, size, "cannot be read: %s", strerror(-rc));
    } else if (hash != told) {
        snprintf(why, size,
                 "is damaged: the checksum of its bytes is %016" PRIx64 ", the one it was written with %016" PRIx64,
                 hash, told);
        rc = -EIO;
    }
    return rc;
}

int ckpt_open(struct ckpt_in *in, const char *path, bool whole, char *why, size_t size)
{
    uint64_t header = 0, data = 0;
    struct stat st;
    char *text = NULL;
    *in = (struct ckpt_in){.fd = open(path, O_RDONLY | O_CLOEXEC)};
    int rc = -1;
    if (in->fd < 0 || fstat(in->fd, &st) != 0) {
        snprintf(why, size, "cannot be opened: %s", strerror(errno));
        goto out;
    }
    in->bytes = (uint64_t)st.st_size;
    if (!S_ISREG(st.st_mode) || in->bytes < 16 || read_all(in->fd, &header, sizeof(header), 0) != 0) {
        snprintf(why, size, "is no checkpoint: it has %" PRIu64 " bytes", in->bytes);
        goto out;
    }
    if (header < 2 || header > HEADER_MOST) {
        snprintf(why, size, "is no checkpoint of moe_train: it does not begin with the length of a header");
        goto out;
    }
    if (header > in->bytes - sizeof(header)) {
        snprintf(why, size, "is short: it has %" PRIu64 " bytes, its header alone %" PRIu64, in->bytes, header);
        goto out;
    }
    text = malloc(header);
    if (text == NULL || read_all(in->fd, text, header, sizeof(header)) != 0) {
        snprintf(why, size, "cannot be read: %s", text == NULL ? "no memory" : strerror(EIO));
        goto out;
    }
    if (!parse(in, text, header, &data)) {
        snprintf(why, size, "is no checkpoint of moe_train, or its header is damaged");
        goto out;
    }
    in->data_at = sizeof(header) + header;
    if (in->bytes != in->data_at + data) {
        snprintf(why, size, "is %s: it has %" PRIu64 " bytes, by its header %" PRIu64,
                 in->bytes < in->data_at + data ? "short" : "damaged", in->bytes, in->data_at + data);
        goto out;
    }
    rc = whole && check_hash(in, why, size) != 0 ? -1 : 0;
out:
    free(text);
    if (rc != 0) {
        ckpt_close(in);
    }
    return rc;
}

int ckpt_told_hash(const struct ckpt_in *in, uint64_t *hash)
{
    return read_all(in->fd, hash, sizeof(*hash), in->bytes - sizeof(*hash));
}

int ckpt_read(const struct ckpt_in *in, const struct ckpt_tensor *t, int64_t at, float *to, int64_t count)
{
    return read_all(in->fd, to, (size_t)count * sizeof(*to), in->data_at + t->begin + (uint64_t)at * sizeof(*to));
}

const struct ckpt_tensor *ckpt_find(const struct ckpt_in *in, const char *name)
{
    for (int32_t i = 0; i < in->tensors; i++) {
        if (strcmp(in->tensor[i].name, name) == 0) {
            return &in->tensor[i];
        }
    }
    return NULL;
}

const char *ckpt_fact(const struct ckpt_in *in, const char *name)
{
    for (int32_t i = 0; i < in->facts; i++) {
        if (strcmp(in->fact[i].name, name) == 0) {
            return in->fact[i].value;
        }
    }
    return NULL;
}

void ckpt_close(struct ckpt_in *in)
{
    if (in->fd >= 0) {
        close(in->fd);
    }
    free(in->fact);
    free(in->tensor);
    *in = (struct ckpt_in){.fd = -1};
}
