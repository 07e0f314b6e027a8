/*
 * fuzz_dump.c: arbitrary bytes as the dump of another tool, pickle or JSON. What is read goes through the engine, three
 * times over, as the dumps of three ranks of one job.
 */
#include "daemon/dumps/dump.h"
#include "daemon/verdict/verdict.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void say(void *ctx, const char *line)
{
    (void)ctx, (void)line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roll_engine_config config = {.window = 256};
    roll_dumps_t *set = roll_dumps_new();
    roll_dump_reader_t *reader = roll_dump_reader_new();
    for (int rank = 0; set && reader && rank < 3; rank++) {
        struct roll_dump *dump;
        char name[32], why[256];
        snprintf(name, sizeof(name), "/fuzz/rank_%d", rank);
        if (roll_dump_parse(reader, name, data, size, &dump, why, sizeof(why)) == 0) {
            (void)roll_dumps_add(set, dump);
        }
    }
    for (size_t j = 0; set && j < roll_dumps_jobs(set); j++) {
        roll_feed_t *feed = roll_feed_new(&config, roll_dumps_job(set, j), 0);
        if (feed) {
            struct roll_verdict_copy *v;
            (void)roll_dumps_feed(set, j, feed, say, NULL);
            (void)roll_feed_finish(feed);
            while ((v = roll_feed_next(feed)) != NULL) {
                roll_verdict_copy_destroy(&v);
            }
            roll_feed_destroy(&feed);
        }
    }
    roll_dumps_destroy(&set);
    roll_dump_reader_destroy(&reader);
    return 0;
}
