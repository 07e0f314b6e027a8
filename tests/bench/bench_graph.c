/*
 * bench_graph.c: what a launch of a CUDA graph costs in the rank, and what learning completion costs per call:
 * `roll_bench graph`.
 *
 * Starts tests/interposer/bench_graph.c with the real preload, once for each way of learning completion. Its driver is
 * a fake: the fake's own part is in these figures, the device's (the write, the event) is not; scripts/gpu-check
 * measures that where there is a GPU.
 */
#include "tests/bench/bench.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void remove_directory(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(path);
}

/* The build tree: two levels above this program. */
static int find_top(char top[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", top, PATH_MAX - 1);
    for (int up = 0; up < 2 && n > 0; up++) {
        top[n] = '\0';
        char *slash = strrchr(top, '/');
        n = slash != NULL ? slash - top : 0;
    }
    top[n > 0 ? n : 0] = '\0';
    return n > 0 ? 0 : -1;
}

static json_t *measure(const char *top, const char *way)
{
    char dir[] = "/dev/shm/rollcall-bench-XXXXXX", command[3 * PATH_MAX], line[1024] = "";
    if (mkdtemp(dir) == NULL) {
        return NULL;
    }
    snprintf(command, sizeof(command),
             "env -u ROLLCALL_DAEMON ROLLCALL_DIR=%s ROLLCALL_COMPLETION=%s LD_PRELOAD='%s/lib/librollcall.so' "
             "'%s/bin/roll_bench_graph'",
             dir, way, top, top);
    FILE *out = popen(command, "r");
    bool read = out != NULL && fgets(line, sizeof(line), out) != NULL;
    int status = out != NULL ? pclose(out) : -1;
    remove_directory(dir);
    return read && status == 0 ? json_loads(line, 0, NULL) : NULL;
}

static double figure(const json_t *run, const char *name)
{
    return json_real_value(json_object_get(run, name));
}

static void print(FILE *table, const char *what, double ns, const char *goal)
{
    char text[32];
    snprintf(text, sizeof(text), "%.1f ns", ns);
    roll_bench_line(table, what, text, goal);
}

int roll_bench_graph(json_t *out, FILE *table)
{
    static const char *const ways[] = {"off", "write", "counter", "event"};
    char top[PATH_MAX];
    double plain = 0;
    if (find_top(top) != 0) {
        fprintf(stderr, "roll_bench: cannot find the build tree\n");
        return -1;
    }
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        json_t *run = measure(top, ways[i]);
        if (run == NULL) {
            fprintf(stderr, "roll_bench: roll_bench_graph gave no figures (completion %s)\n", ways[i]);
            return -1;
        }
        double call = figure(run, "call"), base = figure(run, "empty");
        if (i == 0) {
            plain = call;
            print(table, "launch of a graph without NCCL calls", base, "(forwarded, with the fake driver's part)");
            print(table, "launch of 100 captured collectives, over that", figure(run, "collectives_100") - base,
                  "(one record)");
            print(table, "launch of 128 captured sends, over that, each", (figure(run, "messages_128") - base) / 128,
                  "<= 60 ns");
            print(table, "a call, completion off", call, "(with the fake library's part)");
        } else {
            char what[64];
            snprintf(what, sizeof(what), "a call, completion %s, over off", ways[i]);
            print(table, what, call - plain, "(with the fake driver's part)");
        }
        json_object_set_new(out, ways[i], run);
    }
    return 0;
}
