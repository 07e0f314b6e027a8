/*
 * corpus.c: one text in memory, batches drawn from it by key.
 *
 * The places of a microbatch and rank are neighbours in the text, as in the documents of a real job, and no independent
 * draws: neighbouring contexts are alike and go to the same experts, which leaves other ranks without tokens.
 */
#include "moe_core/train/corpus.h"

#include "moe_core/train/random.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_text(const char *path)
{
    static const char *const licences[] = {"GPL-3", "GPL-2", "LGPL-2.1", "Apache-2.0", "GPL-1"};
    if (path != NULL) {
        return fopen(path, "re");
    }
    for (size_t i = 0; i < sizeof(licences) / sizeof(licences[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "/usr/share/common-licenses/%s", licences[i]);
        FILE *file = fopen(name, "re");
        if (file != NULL) {
            return file;
        }
    }
    return NULL;
}

int corpus_open(const char *path, uint64_t seed, int64_t context, struct corpus *corpus)
{
    enum { MOST = 64 << 20 };
    *corpus = (struct corpus){.seed = seed, .context = context};
    FILE *file = open_text(path);
    if (file == NULL) {
        fprintf(stderr, "moe_train: cannot read %s: %s; give a text with --text FILE\n", path ? path : "a licence text",
                strerror(errno));
        return -1;
    }
    corpus->text = malloc(MOST);
    if (corpus->text != NULL) {
        corpus->bytes = fread(corpus->text, 1, MOST, file);
    }
    fclose(file);
    if (corpus->bytes < (size_t)context + 2) {
        fprintf(
            stderr,
            "moe_train: the text has %zu bytes, too few for a context of %lld; name a longer one with --text FILE\n",
            corpus->bytes, (long long)context);
        corpus_close(corpus);
        return -1;
    }
    uint8_t *fitted = realloc(corpus->text, corpus->bytes);
    corpus->text = fitted != NULL ? fitted : corpus->text;
    corpus->learn = corpus->bytes;
    return 0;
}

void corpus_close(struct corpus *corpus)
{
    free(corpus->text);
    corpus->text = NULL;
}

double corpus_bigram_entropy(const struct corpus *corpus)
{
    static uint32_t pairs[256][256]; /* 64 MiB of text at most: no overflow */
    uint32_t firsts[256] = {0};
    double sum = 0;
    memset(pairs, 0, sizeof(pairs));
    for (size_t i = 0; i + 1 < corpus->bytes; i++) {
        pairs[corpus->text[i]][corpus->text[i + 1]]++;
        firsts[corpus->text[i]]++;
    }
    for (size_t i = 0; i < 256 * (size_t)256; i++) {
        double n = pairs[i / 256][i % 256];
        sum += n > 0 ? n * log(firsts[i / 256] / n) : 0;
    }
    return sum / (double)(corpus->bytes - 1);
}

void corpus_batch(const struct corpus *corpus, uint32_t step, uint32_t microbatch, int32_t rank, int64_t tokens,
                  uint8_t *batch)
{
    size_t line = (size_t)corpus->context + 1;
    size_t places = corpus->learn - line + 1;
    size_t start = (size_t)(random_key(corpus->seed, ((uint64_t)step << 32) | microbatch, (uint64_t)rank) % places);
    for (size_t t = 0; t < (size_t)tokens; t++) {
        memcpy(batch + t * line, corpus->text + (start + t) % places, line);
    }
}

int corpus_hold_out(struct corpus *corpus)
{
    size_t line = (size_t)corpus->context + 1, out = corpus->bytes / 10;
    if (out < line) {
        fprintf(stderr, "moe_train: --validate: a tenth of the text has %zu bytes, too few for a context of %lld\n",
                out, (long long)corpus->context);
        return -1;
    }
    corpus->learn = corpus->bytes - out;
    return 0;
}

int64_t corpus_held_out(const struct corpus *corpus)
{
    return (int64_t)(corpus->bytes - corpus->learn) - corpus->context;
}

void corpus_batch_held_out(const struct corpus *corpus, int64_t first, int64_t tokens, uint8_t *batch)
{
    size_t line = (size_t)corpus->context + 1;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t place = (first + t) % corpus_held_out(corpus);
        memcpy(batch + (size_t)t * line, corpus->text + corpus->learn + place, line);
    }
}

void corpus_batch_alike(const struct corpus *corpus, uint32_t step, uint32_t microbatch, int64_t tokens, uint8_t *batch)
{
    size_t line = (size_t)corpus->context + 1;
    if (tokens > 0) {
        corpus_batch(corpus, step, microbatch, 0, 1, batch);
    }
    for (size_t t = 1; t < (size_t)tokens; t++) {
        memcpy(batch + t * line, batch, line);
    }
}
