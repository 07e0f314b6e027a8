/*
 * node_facts.c: the helper's main function; reads pressure, memory and disks.
 *
 * The sources that answer at once come first, and the driver of the GPUs last: when the driver hangs, the other facts
 * have been written. The other sources are read between the two readings of the counters.
 */
#include "daemon/agent/node_facts.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define LIFE_S          20 /* after this time a helper ends by itself */
#define INTERVAL_MS_MAX 2000
#define CPU_MUCH        40.0 /* percent of the last 10 s in which some task waited for a CPU */
#define MEMORY_MUCH     10.0 /* percent in which all tasks waited for memory */
#define MEMORY_LEFT     3    /* percent of memory */
#define DISK_LEFT       1    /* percent */

/* The avg10 of the line that begins with `which` ("some", "full"); -1 when there is none. */
static double pressure(const struct roll_node *n, const char *what, const char *which)
{
    char full[PATH_MAX], text[512];
    snprintf(full, sizeof(full), "%s/proc/pressure/%s", n->root, what);
    const char *at = roll_read_text(full, text, sizeof(text)) > 0 ? roll_proc_word(text, which, "avg10=") : NULL;
    return at ? strtod(at, NULL) : -1;
}

static void memory_left(const struct roll_node *n)
{
    char full[PATH_MAX], text[4096];
    snprintf(full, sizeof(full), "%s/proc/meminfo", n->root);
    roll_read_text(full, text, sizeof(text));
    const char *total_kib = roll_proc_word(text, "MemTotal:", ""),
               *left_kib = roll_proc_word(text, "MemAvailable:", "");
    unsigned long long total = total_kib ? strtoull(total_kib, NULL, 10) : 0;
    unsigned long long left = left_kib ? strtoull(left_kib, NULL, 10) : 0;
    if (total > 0 && left < total / 100 * MEMORY_LEFT) {
        roll_node_say(n, ROLL_FACT_MEMORY, "%llu MiB of %llu MiB of memory are left", left / 1024, total / 1024);
    }
}

void roll_pressure_tell(const struct roll_node *n)
{
    double cpu = pressure(n, "cpu", "some"), memory = pressure(n, "memory", "full");
    if (cpu >= CPU_MUCH) {
        roll_node_say(n, ROLL_FACT_CPU_PRESSURE, "tasks waited for a CPU in %.0f %% of the last 10 s", cpu);
    }
    if (memory >= MEMORY_MUCH) {
        roll_node_say(n, ROLL_FACT_MEMORY, "all tasks waited for memory in %.0f %% of the last 10 s", memory);
    }
    memory_left(n);
}

int roll_disk_full(uint64_t blocks, uint64_t available, uint64_t files, uint64_t files_free)
{
    if (blocks > 0 && available < blocks / 100 * DISK_LEFT + (blocks < 100)) {
        return (int)(100 - (blocks / 100 > 0 ? available / (blocks / 100) : 0));
    }
    return files > 0 && files_free == 0 ? 100 : -1;
}

void roll_disk_tell(const struct roll_node *n, const char *dir)
{
    struct statvfs fs;
    if (!dir || !dir[0] || statvfs(dir, &fs) != 0) {
        return;
    }
    int full = roll_disk_full(fs.f_blocks, fs.f_bavail, fs.f_files, fs.f_favail);
    if (full >= 0) {
        roll_node_say(n, ROLL_FACT_DISK_FULL, "%.80s is full (%d %%)", dir, full);
    }
}

/* the helper */

static void print(json_t *object)
{
    if (object && json_dumpf(object, stdout, JSON_COMPACT) == 0) {
        putchar('\n');
        fflush(stdout);
    }
    json_decref(object);
}

static void print_fact(void *ctx, enum roll_fact kind, const char *text)
{
    (void)ctx;
    print(json_pack("{s:s, s:s}", "kind", roll_fact_name(kind), "text", text));
}

static void begin(const char *what)
{
    print(json_pack("{s:s}", "begin", what));
}

static void rest(uint64_t until_ns)
{
    uint64_t now = roll_mono_ns();
    if (now < until_ns) {
        struct timespec t = {.tv_sec = (time_t)((until_ns - now) / 1000000000u),
                             .tv_nsec = (long)((until_ns - now) % 1000000000u)};
        nanosleep(&t, NULL);
    }
}

int roll_facts_helper(const char *wish)
{
    json_t *json = json_loads(wish, 0, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIFE_S);
    const char *root = json_string_value(json_object_get(json, "root"));
    struct roll_node n = {.root = root ? root : "", .tell = print_fact};
    json_int_t since = json_integer_value(json_object_get(json, "since_us"));
    json_int_t interval = json_integer_value(json_object_get(json, "interval_ms"));
    interval = interval < 1 ? 1 : interval > INTERVAL_MS_MAX ? INTERVAL_MS_MAX : interval;
    begin("its network ports");
    uint64_t first_ns = roll_mono_ns();
    roll_links_t *links = roll_links_look(&n);
    begin("its kernel's log");
    roll_kernel_tell(&n, since > 0 ? (uint64_t)since : 0);
    begin("its memory and disks");
    roll_pressure_tell(&n);
    roll_disk_tell(&n, json_string_value(json_object_get(json, "dir")));
    roll_disk_tell(&n, json_string_value(json_object_get(json, "trace")));
    begin("its network ports");
    rest(first_ns + (uint64_t)interval * ROLL_MS);
    if (links) {
        roll_links_tell(&n, links);
    }
    roll_links_destroy(&links);
    begin("its GPUs (NVML)");
    roll_gpu_tell(&n);
    begin("");
    json_decref(json);
    return 0;
}
