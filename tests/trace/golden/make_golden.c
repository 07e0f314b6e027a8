/*
 * make_golden.c: writes the golden files of the current version into a directory: make_golden tests/trace/golden/v2
 *
 * Run it once when a version of a format is new; never again for that version.
 */
#include "tests/trace/golden/golden.h"

#include <stdio.h>

static int save(const char *dir, const char *name, const uint8_t *bytes, size_t n)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *out = fopen(path, "wb");
    if (out == NULL || fwrite(bytes, 1, n, out) != n || fclose(out) != 0) {
        perror(path);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static uint8_t ring[GOLDEN_RING_BYTES];
    static uint8_t control[4096];
    static uint8_t trace[GOLDEN_TRACE_MOST];
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    return save(argv[1], "ring.bin", ring, golden_ring(ring)) |
           save(argv[1], "control.bin", control, golden_control(control)) |
           save(argv[1], "control_told.bin", control, golden_control_told(control)) |
           save(argv[1], "trace.bin", trace, golden_trace(trace));
}
