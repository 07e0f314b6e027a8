/*
 * ckpt_write.c: writes the file of a checkpoint so that a job killed at any instant leaves the older one whole.
 *
 * The bytes go to a file of another name in the same folder, to the disk, and only then does a rename put them under
 * their own name; the folder goes to the disk last. Writing in place with a mark at the end was rejected: the older
 * file is gone then when the writer is.
 */
#include "moe_core/train/ckpt_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const uint64_t ckpt_hash_begin = 0xcbf29ce484222325ull;

uint64_t ckpt_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3ull;
    }
    return hash;
}

static int put(struct ckpt_out *out, const void *data, size_t bytes)
{
    errno = 0;
    if (fwrite(data, 1, bytes, out->file) != bytes) {
        return errno != 0 ? -errno : -EIO;
    }
    out->hash = ckpt_hash(out->hash, data, bytes);
    return 0;
}

static uint64_t bytes_of(const struct ckpt_tensor *t)
{
    uint64_t bytes = sizeof(float);
    for (int32_t i = 0; i < t->ndims; i++) {
        bytes *= (uint64_t)t->dims[i];
    }
    return bytes;
}

/* The header, padded so that the data begin at a multiple of 8. Owned by the caller; NULL when memory is short. */
static char *header(const struct ckpt_fact *facts, int32_t nfacts, struct ckpt_tensor *tensors, int32_t ntensors,
                    size_t *size)
{
    char *text = NULL;
    uint64_t at = 0;
    FILE *f = open_memstream(&text, size);
    if (f == NULL) {
        return NULL;
    }
    fprintf(f, "{\"__metadata__\":{");
    for (int32_t i = 0; i < nfacts; i++) {
        fprintf(f, "%s\"%s\":\"%s\"", i > 0 ? "," : "", facts[i].name, facts[i].value);
    }
    fprintf(f, "}");
    for (int32_t i = 0; i < ntensors; i++) {
        struct ckpt_tensor *t = &tensors[i];
        t->begin = at;
        at = t->end = at + bytes_of(t);
        fprintf(f, ",\"%s\":{\"dtype\":\"F32\",\"shape\":[", t->name);
        for (int32_t d = 0; d < t->ndims; d++) {
            fprintf(f, "%s%" PRId64, d > 0 ? "," : "", t->dims[d]);
        }
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
    }
    fprintf(f, ",\"checksum\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}}", at,
            at + 8);
    fflush(f);
    for (size_t bytes = *size; bytes % 8 != 0; bytes++) {
        fputc(' ', f);
    }
    if (fclose(f) != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

int ckpt_write_begin(struct ckpt_out *out, const char *folder, const char *name, const struct ckpt_fact *facts,
                     int32_t nfacts, struct ckpt_tensor *tensors, int32_t ntensors)
{
    *out = (struct ckpt_out){.hash = ckpt_hash_begin, .folder = -1};
    int final = snprintf(out->final_path, sizeof(out->final_path), "%s/%s", folder, name),
        temporary = snprintf(out->path, sizeof(out->path), "%s/.%s.part", folder, name);
    if (final < 0 || temporary < 0 || (size_t)temporary >= sizeof(out->path)) {
        out->path[0] = '\0';
        return -ENAMETOOLONG;
    }
    out->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    out->file = out->folder >= 0 ? fopen(out->path, "wbe") : NULL;
    if (out->file == NULL) {
        return -errno;
    }
    size_t size = 0;
    char *text = header(facts, nfacts, tensors, ntensors, &size);
    uint64_t length = size;
    int rc = text != NULL ? put(out, &length, sizeof(length)) : -ENOMEM;
    rc = rc ? rc : put(out, text, size);
    free(text);
    return rc;
}

int ckpt_write(struct ckpt_out *out, const float *from, int64_t count)
{
    return put(out, from, (size_t)count * sizeof(*from));
}

int ckpt_write_end(struct ckpt_out *out)
{
    uint64_t hash = out->hash;
    int rc = put(out, &hash, sizeof(hash));
    if (rc != 0) {
        return rc;
    }
    if (fflush(out->file) != 0 || fsync(fileno(out->file)) != 0) {
        return -errno;
    }
    int closed = fclose(out->file);
    out->file = NULL;
    if (closed != 0 || rename(out->path, out->final_path) != 0) {
        return -errno;
    }
    out->path[0] = '\0';
    rc = fsync(out->folder) != 0 ? -errno : 0;
    close(out->folder);
    out->folder = -1;
    return rc;
}

void ckpt_write_abort(struct ckpt_out *out)
{
    if (out->file != NULL) {
        fclose(out->file);
        out->file = NULL;
    }
    if (out->path[0] != '\0') {
        unlink(out->path);
        out->path[0] = '\0';
    }
    if (out->folder >= 0) {
        close(out->folder);
        out->folder = -1;
    }
}
