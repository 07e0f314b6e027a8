/*
 * make_seeds.c: writes the seeds of the fuzz targets: make_seeds DIRECTORY makes DIRECTORY/fuzz_TARGET/NUMBER.
 */
#include "tests/trace/fuzz/seeds.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
    static const char *const targets[] = {"ring", "def", "frame", "control", "compare", "rankset"};
    static uint8_t bytes[65536];
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    for (size_t t = 0; t < sizeof(targets) / sizeof(targets[0]); t++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/fuzz_%s", argv[1], targets[t]);
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            perror(path);
            return 1;
        }
        size_t n = 1;
        for (unsigned i = 0; n > 0; i++) {
            n = seed_make(targets[t], i, bytes);
            snprintf(path, sizeof(path), "%s/fuzz_%s/%u", argv[1], targets[t], i);
            FILE *out = n > 0 ? fopen(path, "wb") : NULL;
            if (n > 0 && (out == NULL || fwrite(bytes, 1, n, out) != n || fclose(out) != 0)) {
                perror(path);
                return 1;
            }
        }
    }
    return 0;
}
