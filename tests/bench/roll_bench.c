/*
 * roll_bench.c: every figure of the README, measured here and now, as a table and as JSON.
 *
 * One program with one part per figure rather than one program per figure: people run it once and paste the table.
 */
#include "tests/bench/bench.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const struct {
    const char *name;
    const char *about;
    int (*run)(json_t *out, FILE *table);
} parts[] = {
    {"record", "recording one collective in the rank, over the bare call", roll_bench_record},
    {"python", "the lines of Python that a recorded call notes", roll_bench_python},
    {"binding", "the same call needed, looked up and through the auditor; one lookup", roll_bench_binding},
    {"compare", "what fail-fast adds to a call, 8 ranks on the node", roll_bench_compare},
    {"graph", "launches of CUDA graphs, and learning completion, in the rank", roll_bench_graph},
    {"engine", "engine, records in to verdict state, one core", roll_bench_engine},
    {"engine-scale", "the same for 64 to 16,384 ranks, in step and apart (about 2 minutes)", roll_bench_engine_scale},
    {"digest", "calls of up to 16,384 ranks compared by digests, processor time by level", roll_bench_digest},
    {"scale", "agents, relays and root, real processes and sockets, 64 to 16,384 ranks (about an hour)",
     roll_bench_scale},
    {"faces", "a root of 64 to 16,384 ranks answers top, status, why and a scrape (about 3 minutes)", roll_bench_faces},
    {"verdict", "wrong call to printed verdict, 16 ranks", roll_bench_verdict},
    {"agent", "agent and root, each, for 8 ranks at 10,000, 500 and no calls a second each", roll_bench_agent},
    {"symbol", "names of the first verdict: looked up when shown, and read ahead", roll_bench_symbol},
    {"trace", "what a call costs in a trace: plain frames, through zstd, as written", roll_bench_trace},
    {"analyze", "traces of 64 nodes through rollcall analyze, with one thread and two", roll_bench_analyze},
    {"job", "moe_train with 8 ranks, watched over alone, pairs in turn (about 4 minutes)", roll_bench_job},
    {"job_causes", "what of that is whose: preload, agent, root; at the start and for each step (about 80 s)",
     roll_bench_job_causes},
    {"stacks", "stacks of 8 hung ranks, merged and printed", roll_bench_stacks},
    {"moe", "moe_core on the host, beside memcpy and BLAS", roll_bench_moe},
    {"memory", "memory of a layer of moe_core beside the bytes of its rows, 1 to 64 ranks (about 2 minutes)",
     roll_bench_moe_memory},
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))

static int usage(FILE *to, int rc)
{
    fprintf(to, "usage: roll_bench [--json FILE] [PART...]\n\n");
    for (size_t i = 0; i < PARTS; i++) {
        fprintf(to, "  %-12s %s\n", parts[i].name, parts[i].about);
    }
    fprintf(
        to,
        "\nWithout PART all are run. --json FILE writes the figures there (- for standard output, table on stderr).\n");
    return rc;
}

static void describe_machine(json_t *out)
{
    struct utsname un;
    if (uname(&un) == 0) {
        json_object_set_new(out, "kernel", json_string(un.release));
        json_object_set_new(out, "machine", json_string(un.machine));
    }
    json_object_set_new(out, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
}

int main(int argc, char **argv)
{
    const char *json_path = NULL;
    bool wanted[PARTS] = {false};
    bool any = false;
    int rc = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            return usage(stdout, 0);
        }
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json_path = argv[++i];
            continue;
        }
        size_t p = 0;
        while (p < PARTS && strcmp(argv[i], parts[p].name) != 0) {
            p++;
        }
        if (p == PARTS) {
            fprintf(stderr, "roll_bench: no part '%s'\n", argv[i]);
            return usage(stderr, 2);
        }
        wanted[p] = any = true;
    }

    FILE *table = json_path && strcmp(json_path, "-") == 0 ? stderr : stdout;
    json_t *out = json_object();
    json_object_set_new(out, "schema", json_string("rollcall.bench/1"));
    describe_machine(out);
    for (size_t p = 0; p < PARTS; p++) {
        if (any && !wanted[p]) {
            continue;
        }
        fprintf(table, "%s\n", parts[p].about);
        fflush(table);
        json_t *part = json_object();
        int err = parts[p].run(part, table);
        if (err < 0) {
            fprintf(stderr, "roll_bench: part '%s' could not be measured\n", parts[p].name);
            rc = 1;
        }
        json_object_set_new(out, parts[p].name, part);
        fflush(table);
    }
    if (json_path && json_dump_file(out, json_path, JSON_INDENT(2)) != 0) {
        if (strcmp(json_path, "-") == 0) {
            json_dumpf(out, stdout, JSON_INDENT(2));
            putchar('\n');
        } else {
            fprintf(stderr, "roll_bench: cannot write %s\n", json_path);
            rc = 3;
        }
    }
    json_decref(out);
    return rc;
}
