/*
 * corpus.h: the text, and which bytes of it a rank learns from in a microbatch.
 */
#ifndef MOE_CORE_TRAIN_CORPUS_H
#define MOE_CORE_TRAIN_CORPUS_H

#include <stddef.h>
#include <stdint.h>

struct corpus {
    uint8_t *text; /* owned */
    size_t bytes;
    size_t learn; /* bytes to learn from, from the beginning; the others are held out */
    uint64_t seed;
    int64_t context;
};

/* Reads `path`, or a licence text when it is NULL. 0, or -1 with one line on standard error. */
int corpus_open(const char *path, uint64_t seed, int64_t context, struct corpus *corpus);
void corpus_close(struct corpus *corpus);

/*
 * The mean surprise of a byte of the text, in nats, to someone who knows the byte before it and how often each pair
 * occurs: the loss of the best model that sees one byte. One thread at a time.
 */
double corpus_bigram_entropy(const struct corpus *corpus);

/* Fills batch [tokens, context + 1]: the bytes before a place, and the byte there, for places drawn by (seed, step,
 * microbatch, rank). */
void corpus_batch(const struct corpus *corpus, uint32_t step, uint32_t microbatch, int32_t rank, int64_t tokens,
                  uint8_t *batch);

/* Holds the last tenth out: no batch above has a byte of it. 0, or -1 with one line on standard error. */
int corpus_hold_out(struct corpus *corpus);
/* The places of the held-out part, at least 1. */
int64_t corpus_held_out(const struct corpus *corpus);
/* Fills batch with the held-out places from number `first` on, around the end to the beginning. */
void corpus_batch_held_out(const struct corpus *corpus, int64_t first, int64_t tokens, uint8_t *batch);

/* Fills batch with tokens that are all alike, on all ranks: the place drawn for rank 0. */
void corpus_batch_alike(const struct corpus *corpus, uint32_t step, uint32_t microbatch, int64_t tokens,
                        uint8_t *batch);

#endif
