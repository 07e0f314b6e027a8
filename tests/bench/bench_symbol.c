/*
 * bench_symbol.c: what the first verdict waits for the names of its call sites: with nothing read ahead, and when a
 * live root has had the time between a call site's first use and the verdict.
 *
 * Each trial has a table of its own, so each is the first verdict of a root; the pages of the program are in memory
 * either way. The program is this one, with its debug information; the call sites are functions of several of its
 * files.
 */
#include "tests/bench/bench.h"

#include "daemon/base/clock.h"
#include "daemon/feed/feed.h"
#include "daemon/stack/symbol.h"
#include "daemon/store/pack.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIALS   40
#define AHEAD_US 200000 /* between the definition and the verdict: a job's first step takes longer */

static int find_self(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct roll_def_module *m = arg;
    m->bias = info->dlpi_addr;
    m->start = UINT64_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *s = &info->dlpi_phdr[i];
        uint64_t at = info->dlpi_addr + s->p_vaddr;
        if (s->p_type == PT_LOAD) {
            m->start = at < m->start ? at : m->start;
            m->end = at + s->p_memsz > m->end ? at + s->p_memsz : m->end;
        }
    }
    return 1; /* the first is the program */
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Defines the program and the call sites, waits, and returns how long one verdict's call site takes in ms; negative: no
 * name came. */
static double first_name(bool ahead)
{
    void *const functions[] = {(void *)roll_feed_frame, (void *)roll_packer_finish, (void *)roll_verdict_print,
                               (void *)roll_bench_symbol};
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
    roll_symbols_t *symbols = roll_symbols_new();
    if (n <= 0 || !symbols) {
        return -1;
    }
    if (ahead) {
        roll_symbols_warm(symbols);
    }
    struct roll_def module = {.type = ROLL_DEF_MODULE, .id = 1};
    dl_iterate_phdr(find_self, &module.module.info);
    module.module.path = path;
    module.module.info.path_bytes = (uint32_t)n;
    struct roll_def site = {.type = ROLL_DEF_CALLSITE, .id = 1, .callsite = {.depth = 4}};
    for (unsigned i = 0; i < 4; i++) {
        site.callsite.pc[i] = (uint64_t)(uintptr_t)functions[i] + 16;
    }
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    int got = -1;
    double ms = -1;
    if (roll_symbols_define(symbols, 1, &module) == 0 && roll_symbols_define(symbols, 1, &site) == 0) {
        usleep(ahead ? AHEAD_US : 0);
        uint64_t begin = roll_mono_ns();
        got = roll_symbols_callsite(symbols, 1, 1, frame, ROLL_SYMBOL_FRAMES);
        ms = (double)(roll_mono_ns() - begin) * 1e-6;
    }
    bool named = got >= 4 && frame[0].function[0] != '\0';
    roll_symbols_destroy(&symbols);
    return named ? ms : -1;
}

int roll_bench_symbol(json_t *out, FILE *table)
{
    static const char *const names[] = {"when_shown", "ahead"};
    static const char *const labels[] = {"names of the first verdict, looked up when shown",
                                         "names of the first verdict, read ahead"};
    for (int ahead = 0; ahead < 2; ahead++) {
        double ms[TRIALS];
        char measured[64];
        for (int i = 0; i < TRIALS; i++) {
            ms[i] = first_name(ahead == 1);
            if (ms[i] < 0) {
                fprintf(stderr, "bench: a function of this program has no name\n");
                return ROLL_E_NOTFOUND;
            }
        }
        qsort(ms, TRIALS, sizeof(*ms), by_size);
        json_object_set_new(
            out, names[ahead],
            json_pack("{s:i,s:f,s:f}", "trials", TRIALS, "p50_ms", ms[TRIALS / 2], "p99_ms", ms[TRIALS * 99 / 100]));
        snprintf(measured, sizeof(measured), "p50 %.2f ms, p99 %.2f ms", ms[TRIALS / 2], ms[TRIALS * 99 / 100]);
        roll_bench_line(table, labels[ahead], measured, ahead ? "p50 <= 10 ms, p99 <= 50 ms" : "");
    }
    return 0;
}
