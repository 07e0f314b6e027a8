/*
 * bench_python.c: what the lines of Python cost a call: `roll_bench python`. A real interpreter runs bench_python.py
 * with the real preload on the fake NCCL; both sides are of one process.
 */
#include "tests/bench/bench.h"

#include "trace/err.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOAL_FRAMES "p50 <= 20 ns"
#define GOAL_FIRST  "<= 5 us"

int roll_bench_python(json_t *out, FILE *table)
{
    char top[PATH_MAX], command[6 * PATH_MAX], dir[] = "/dev/shm/rollcall-bench-XXXXXX", text[64];
    ssize_t used = readlink("/proc/self/exe", top, sizeof(top) - 1);
    json_t *told = NULL;
    int err = 0;

    for (int up = 0; used > 0 && up < 2; up++) {
        top[used] = '\0';
        *strrchr(top, '/') = '\0';
        used = (ssize_t)strlen(top);
    }
    if (used <= 0 || !mkdtemp(dir)) {
        return ROLL_E_IO;
    }
    snprintf(command, sizeof(command),
             "LD_PRELOAD='%s/lib/librollcall.so' LD_LIBRARY_PATH='%s/tests/interposer/fake' ROLLCALL_DIR=%s RANK=0 "
             "WORLD_SIZE=1 python3 '%s/tests/bench/bench_python.py' '%s/tests/interposer/libroll_bench_calls.so'",
             top, top, dir, ROLL_SOURCE, top);
    FILE *f = popen(command, "re");
    told = f ? json_loadf(f, 0, NULL) : NULL;
    err = f && pclose(f) == 0 && told ? 0 : ROLL_E_INCOMPLETE;
    snprintf(command, sizeof(command), "rm -r %s", dir);
    if (system(command) != 0) {
        fprintf(stderr, "roll_bench: %s stays behind\n", dir);
    }
    if (err) {
        fprintf(stderr, "roll_bench: no figures from python3 and bench_python.py\n");
        json_decref(told);
        return err;
    }
    static const struct {
        const char *figure, *more, *less, *goal;
    } rows[] = {
        {"a call with 6 frames of Python, over one without", "six_ns", "none_ns", GOAL_FRAMES},
        {"a call with 20 frames of Python, over one without", "twenty_ns", "none_ns", ""},
        {"a thread's call while the main thread stands, over that", "stands_ns", "none_ns", ""},
        {"the first call at a line, over the second", "first_ns", "again_ns", GOAL_FIRST},
    };
    snprintf(text, sizeof(text), "%.1f ns", json_number_value(json_object_get(told, "none_ns")));
    roll_bench_line(table, "a recorded call of a thread without Python", text, "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double over = json_number_value(json_object_get(told, rows[i].more)) -
                      json_number_value(json_object_get(told, rows[i].less));
        snprintf(text, sizeof(text), "+%.1f ns", over);
        roll_bench_line(table, rows[i].figure, text, rows[i].goal);
    }
    json_object_set_new(out, "python", told);
    return 0;
}
