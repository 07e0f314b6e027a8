/*
 * bench_binding.c: whether it matters by which way a job came by NCCL: `roll_bench binding`.
 *
 * One process (tests/interposer/binding/bound.c) makes the same call linked, looked up and through the auditor, in
 * turn; it runs three times: bare, under the preload, and under the preload with the auditor. What was bound is the
 * same wrapper each time, so the figures should be one figure; the lookup itself is what the dlsym hook costs.
 */
#include "tests/bench/bench.h"

#include <ftw.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* One run; an owned object, NULL when it failed. */
static json_t *measure(const char *top, const char *work, const char *variables)
{
    char command[4 * PATH_MAX], line[1024] = "";
    snprintf(command, sizeof(command),
             "env -u LD_PRELOAD -u LD_AUDIT -u ROLLCALL_DAEMON ROLLCALL_DIR=%s %s "
             "%s/bin/roll_bench_bound %s/tests/binding/libroll_bench_bound_extension.so",
             work, variables, top, top);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) {
        return NULL;
    }
    char *read = fgets(line, sizeof(line), pipe);
    int status = pclose(pipe);
    json_t *result = read != NULL && status == 0 ? json_loads(line, 0, NULL) : NULL;
    if (result == NULL) {
        fprintf(stderr, "roll_bench: gave no figures (status %d): %s\n", status, command);
    }
    return result;
}

static double figure(json_t *run, const char *name)
{
    return json_real_value(json_object_get(run, name));
}

static void line_over(FILE *table, json_t *out, const char *what, const char *key, json_t *run, const char *name,
                      const char *goal)
{
    char text[64];
    double over = figure(run, name) - figure(run, "bare");
    snprintf(text, sizeof(text), "p50 %.1f ns", over);
    roll_bench_line(table, what, text, goal);
    json_object_set_new(out, key, json_real(over));
}

static void line_lookup(FILE *table, json_t *out, const char *what, const char *key, json_t *bare, json_t *run,
                        const char *name)
{
    char text[64];
    snprintf(text, sizeof(text), "%.0f ns, without us %.0f", figure(run, name), figure(bare, name));
    roll_bench_line(table, what, text, "(once per function)");
    json_object_set_new(out, key, json_pack("[f, f]", figure(run, name), figure(bare, name)));
}

int roll_bench_binding(json_t *out, FILE *table)
{
    char top[PATH_MAX] = "", work[] = "/tmp/roll-bench-XXXXXX", with[PATH_MAX + 64], audited[2 * PATH_MAX + 128];
    ssize_t n = readlink("/proc/self/exe", top, sizeof(top) - 1);
    top[n > 0 ? n : 0] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(top, '/');
        if (slash == NULL) {
            return -1;
        }
        *slash = '\0';
    }
    if (mkdtemp(work) == NULL) {
        return -1;
    }
    snprintf(with, sizeof(with), "LD_PRELOAD=%s/lib/librollcall.so", top);
    snprintf(audited, sizeof(audited), "%s LD_AUDIT=%s/lib/librollcall_audit.so", with, top);
    json_t *bare = measure(top, work, ""), *hooked = measure(top, work, with), *through = measure(top, work, audited);
    int rc = bare != NULL && hooked != NULL && through != NULL ? 0 : -1;
    if (rc == 0) {
        line_over(table, out, "call over bare: needed", "linked_over_bare_ns", hooked, "linked", "(the measure)");
        line_over(table, out, "call over bare: looked up through the dlsym hook", "looked_up_over_bare_ns", hooked,
                  "looked_up", "no slower than needed");
        line_over(table, out, "call over bare: needed, an auditor in the process", "linked_audited_over_bare_ns",
                  through, "linked", "no slower than needed");
        line_over(table, out, "call over bare: RTLD_DEEPBIND through the auditor", "deep_audited_over_bare_ns", through,
                  "deep", "no slower than needed");
        line_lookup(table, out, "one dlsym, of an NCCL function", "dlsym_nccl_ns", bare, hooked, "dlsym_nccl");
        line_lookup(table, out, "one dlsym, of any other", "dlsym_other_ns", bare, hooked, "dlsym_other");
        line_lookup(table, out, "one dlsym, of any other, an auditor in the process", "dlsym_other_audited_ns", bare,
                    through, "dlsym_other");
    }
    json_decref(bare);
    json_decref(hooked);
    json_decref(through);
    nftw(work, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return rc;
}
