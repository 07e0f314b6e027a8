/*
 * ckpt_file.h: the file of a checkpoint: named float32 tensors with a few words about them, and a checksum of it all.
 *
 * The file is a safetensors file (8 bytes with the length of the header, a header in JSON, the tensors' bytes one after
 * the other), so that anything that reads those reads it, too. Its last tensor, "checksum", is the FNV-1a hash of every
 * byte before it. Source: the format's description in the safetensors project's README.
 */
#ifndef MOE_CORE_TRAIN_CKPT_FILE_H
#define MOE_CORE_TRAIN_CKPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CKPT_NAME = 96, CKPT_VALUE = 64 };

/* A word about the file: "hidden" is "64". */
struct ckpt_fact {
    char name[CKPT_NAME], value[CKPT_VALUE];
};

struct ckpt_tensor {
    char name[CKPT_NAME];
    int32_t ndims;
    int64_t dims[4];
    uint64_t begin, end; /* bytes from the beginning of the data; filled in by ckpt_write_begin and ckpt_open */
};

/* A file that is being written. */
struct ckpt_out {
    FILE *file;
    uint64_t hash;
    char final_path[4096], path[4096];
    int folder; /* of the file, for its fsync */
};

/*
 * Begins `folder`/`name` under another name in the same folder: facts and tensors in this order. Then ckpt_write gives
 * the tensors' elements in that order, in pieces of any size, and ckpt_write_end puts the file into its place: before
 * it, whatever happens, a file of that name is what it was. All: 0 or -errno; after a failure ckpt_write_abort.
 */
int ckpt_write_begin(struct ckpt_out *out, const char *folder, const char *name, const struct ckpt_fact *facts,
                     int32_t nfacts, struct ckpt_tensor *tensors, int32_t ntensors);
int ckpt_write(struct ckpt_out *out, const float *from, int64_t count);
int ckpt_write_end(struct ckpt_out *out);
/* Removes what was written. After ckpt_write_end it does nothing. */
void ckpt_write_abort(struct ckpt_out *out);

/* A file that is read. */
struct ckpt_in {
    int fd;
    uint64_t data_at, bytes; /* where the data begin; of the whole file */
    struct ckpt_fact *fact;  /* owned */
    int32_t facts;
    struct ckpt_tensor *tensor; /* owned; without the checksum */
    int32_t tensors;
};

/*
 * Opens and reads the header; `whole`: reads all of it and compares the checksum, too. 0, or -1 with a sentence in
 * `why` that tells what is wrong with the file.
 */
int ckpt_open(struct ckpt_in *in, const char *path, bool whole, char *why, size_t size);
/* Reads `count` elements from element `at` of a tensor. 0 or -errno (EIO where the file ends before). */
int ckpt_read(const struct ckpt_in *in, const struct ckpt_tensor *t, int64_t at, float *to, int64_t count);
/* The checksum that the file says of itself. 0 or -errno. */
int ckpt_told_hash(const struct ckpt_in *in, uint64_t *hash);
const struct ckpt_tensor *ckpt_find(const struct ckpt_in *in, const char *name); /* NULL: there is none */
const char *ckpt_fact(const struct ckpt_in *in, const char *name);               /* NULL: there is none */
void ckpt_close(struct ckpt_in *in);

uint64_t ckpt_hash(uint64_t hash, const void *data, size_t bytes);
extern const uint64_t ckpt_hash_begin;

#endif
