/*
 * analyze_report.c: reads the reports of NCCL's own tools: `ncclras -f json`, the text of `ncclras`, and the lines of
 * NCCL Inspector. What they mean is judged in report_judge.c.
 *
 * RAS: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html, whose format may change from
 * release to release: members that are not there are taken for nothing, and nothing is taken for granted. Inspector:
 * its README in NCCL's repository (plugins/profiler/inspector), format v4.0 and later.
 */
#include "daemon/console/analyze/report_state.h"

#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define FILE_MOST  (256u << 20)
#define JSON_MOST  (64u << 20) /* of RAS, in one value: 16,384 ranks in four communicators each are 20 MiB */
#define LINE_MOST  (1u << 20)  /* of Inspector */
#define RANKS_MOST (1u << 17)
#define COMMS_MOST (1u << 20)

static const char *const functions[ROLL_RAS_FUNCTIONS] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                                          "AllReduce"};

const char *roll_report_function(unsigned i)
{
    return functions[i];
}

static bool has(const char *head, size_t bytes, const char *text)
{
    return memmem(head, bytes, text, strlen(text)) != NULL;
}

bool roll_report_is_likely(const char *head, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && head[at] != '\0' && strchr(" \t\r\n", head[at]) != NULL) {
        at++;
    }
    if (at < bytes && head[at] == '{') {
        /* A dump of Flight Recorder names the version of NCCL as well. */
        bool is_ras = has(head, bytes, "\"cuda_runtime_version\"") || has(head, bytes, "\"communicators");
        return (is_ras && has(head, bytes, "\"nccl_version\"")) || has(head, bytes, "\"coll_perf\"") ||
               (has(head, bytes, "\"header\"") && has(head, bytes, "\"n_ranks\""));
    }
    bool text = at < bytes && (unsigned char)head[at] < 0x80; /* a pickle begins otherwise */
    return text && has(head, bytes, "NCCL version ") && has(head, bytes, "Job summary");
}

/* RAS */

static struct roll_report_comm *comm_new(roll_reports_t *r, const char *id, uint32_t size)
{
    if (r->comms >= COMMS_MOST || ROLL_GROW(r->comm, r->comm_room, r->comms + 1) != 0) {
        return NULL;
    }
    struct roll_report_comm *comm = &r->comm[r->comms++];
    *comm = (struct roll_report_comm){.size = size, .order = r->files, .time = r->time};
    snprintf(comm->id, sizeof(comm->id), "%s", id);
    return comm;
}

static struct roll_report_rank *add_rank(struct roll_report_comm *comm, uint32_t rank)
{
    if (comm->ranks >= RANKS_MOST || ROLL_GROW(comm->rank, comm->room, comm->ranks + 1) != 0) {
        return NULL;
    }
    comm->rank[comm->ranks] = (struct roll_report_rank){.rank = rank};
    return &comm->rank[comm->ranks++];
}

static uint64_t number(const json_t *object, const char *key, uint64_t otherwise)
{
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? (uint64_t)json_integer_value(v) : otherwise;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* "2026-06-19 06:55:57", in seconds; 0 where it is none. */
static uint64_t seconds_of(const char *text)
{
    struct tm tm = {0};
    return strptime(text, "%Y-%m-%d %H:%M:%S", &tm) != NULL ? (uint64_t)timegm(&tm) : 0;
}

static void where_of(const json_t *rank, char out[ROLL_REPORT_WHERE])
{
    if (json_is_integer(json_object_get(rank, "pid"))) {
        snprintf(out, ROLL_REPORT_WHERE, "process %" PRIu64 " on %.40s, GPU %" PRIu64, number(rank, "pid", 0),
                 text_of(rank, "host"), number(rank, "cuda_dev", 0));
    }
}

static int read_ras_comm(roll_reports_t *r, const json_t *comm)
{
    const json_t *ranks = json_object_get(comm, "ranks"), *missing = json_object_get(comm, "missing_ranks");
    struct roll_report_comm *out = NULL;
    uint64_t size = number(comm, "size", 0);
    char id[64];
    size_t i;
    json_t *one;
    snprintf(id, sizeof(id), "%.31s/%.31s", text_of(comm, "hash"), text_of(comm, "secondary_hash"));
    if (size == 0 || size > RANKS_MOST || !json_is_array(ranks)) {
        return ROLL_E_CORRUPT;
    }
    out = comm_new(r, id, (uint32_t)size);
    if (out == NULL) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(ranks, i, one)
    {
        uint64_t number_of = number(one, "rank", UINT64_MAX);
        struct roll_report_rank *rank = number_of < size ? add_rank(out, (uint32_t)number_of) : NULL;
        if (rank == NULL) {
            return number_of < size ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        where_of(one, rank->where);
        for (unsigned f = 0; f < ROLL_RAS_FUNCTIONS; f++) {
            rank->launched[f] = number(json_object_get(one, "collective_counts"), functions[f], 0);
        }
    }
    json_array_foreach(missing, i, one)
    {
        uint64_t number_of = json_is_integer(one) ? (uint64_t)json_integer_value(one) : number(one, "rank", UINT64_MAX);
        struct roll_report_rank *rank = number_of < size ? add_rank(out, (uint32_t)number_of) : NULL;
        if (rank == NULL) {
            return number_of < size ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        rank->is_missing = true;
        where_of(one, rank->where);
    }
    return 0;
}

static int read_ras_json(roll_reports_t *r, const json_t *root, char *why, size_t size)
{
    const json_t *comms = json_object_get(root, "communicators");
    size_t i, odd = 0;
    json_t *comm;
    uint64_t told = seconds_of(text_of(root, "timestamp"));
    r->time = told != 0 ? told : r->time;
    if (!json_is_array(comms)) {
        snprintf(why, size, "no list of communicators: it is no status of ncclras");
        return ROLL_E_CORRUPT;
    }
    json_array_foreach(comms, i, comm)
    {
        int err = read_ras_comm(r, comm);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
        odd += err != 0;
    }
    if (odd > 0) {
        snprintf(why, size, "%zu of %zu communicators could not be read; the rest is judged", odd, i);
    }
    return odd > 0 && odd == i ? ROLL_E_CORRUPT : 0;
}

/* The function that a warning is about: "Communicator ranks have different AllReduce operation counts". */
static unsigned function_of(const char *line)
{
    for (unsigned f = 0; f < ROLL_RAS_FUNCTIONS; f++) {
        char text[64];
        snprintf(text, sizeof(text), " different %s operation counts", functions[f]);
        if (strstr(line, text) != NULL) {
            return f;
        }
    }
    return ROLL_RAS_FUNCTIONS - 1; /* releases before 2.26 count all functions together */
}

/* What the lines about one communicator have told so far. */
struct told {
    struct roll_report_comm *comm;
    unsigned function;
    uint64_t common, common_ranks, last; /* what most ranks have launched; what the line before this one told */
};

/* The ranks of "The missing ranks: 3,5" or "The missing rank: 21". */
static int read_missing(struct told *told, const char *list)
{
    for (char *end = NULL; *list != '\0'; list = *end != '\0' ? end + 1 : end) {
        unsigned long rank = strtoul(list, &end, 10);
        struct roll_report_rank *one = end != list && rank < RANKS_MOST ? add_rank(told->comm, (uint32_t)rank) : NULL;
        if (end == list) {
            return 0;
        }
        if (one == NULL) {
            return rank < RANKS_MOST ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        one->is_missing = true;
    }
    return 0;
}

static int read_warning(struct told *told, const char *line)
{
    unsigned long long ranks, operation;
    unsigned rank;
    int at = 0;
    const char *missing = strstr(line, "missing rank");
    if (told->comm == NULL) {
        return 0;
    }
    if (strstr(line, "have different ") != NULL) {
        told->function = function_of(line);
        told->common_ranks = 0;
    } else if (sscanf(line, " %llu ranks have launched up to operation %llu", &ranks, &operation) == 2 ||
               (sscanf(line, " %llu ranks have not launched any operations%n", &ranks, &at) == 1 && at > 0)) {
        told->last = at > 0 ? 0 : operation;
        if (ranks > told->common_ranks) {
            told->common_ranks = ranks;
            told->common = told->last;
        }
    } else if (sscanf(line, " Rank %u has launched up to operation %llu", &rank, &operation) == 2 ||
               sscanf(line, " Rank %u -- GPU%n", &rank, &at) == 1) {
        struct roll_report_rank *one = rank < RANKS_MOST ? add_rank(told->comm, rank) : NULL;
        const char *who = strstr(line, "-- ");
        if (one == NULL) {
            return rank < RANKS_MOST ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        one->launched[told->function] = at > 0 ? told->last : operation;
        snprintf(one->where, sizeof(one->where), "%.*s", who != NULL ? (int)strcspn(who + 3, "\r\n") : 0,
                 who != NULL ? who + 3 : "");
    } else if (missing != NULL && strchr(missing, ':') != NULL) {
        return read_missing(told, strchr(missing, ':') + 1);
    }
    return 0;
}

/* Takes what was told of a communicator: beside the odd ranks, one stands for those that are not named. */
static int end_comm(struct told *told)
{
    struct roll_report_rank *rest;
    if (told->comm == NULL || told->common_ranks == 0) {
        told->comm = NULL;
        return 0;
    }
    rest = add_rank(told->comm, ROLL_REPORT_OTHERS);
    if (rest != NULL) {
        rest->launched[told->function] = told->common;
        rest->others = (uint32_t)(told->common_ranks < RANKS_MOST ? told->common_ranks : RANKS_MOST);
    }
    told->comm = NULL;
    return rest != NULL ? 0 : ROLL_E_NOMEM;
}

static int read_ras_text(roll_reports_t *r, char *text, char *why, size_t size)
{
    struct told told = {0};
    bool is_whole =
        strstr(text, "\nErrors\n") != NULL || strstr(text, "Warnings") != NULL || strstr(text, " RUNNING") != NULL;
    int err = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && err == 0; line = strtok_r(NULL, "\n", &rest)) {
        char hash[40], state[16], errors[40];
        unsigned group, number_of, n[6];
        int end = 0;
        if (sscanf(line, " %u %u %u %u %u %u %15s %39s", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], state, errors) ==
            8) {
            r->told_comms += n[1];
        } else if (sscanf(line, " %u %u %u %u %u %n", &n[0], &n[1], &n[2], &n[3], &n[4], &end) == 5 &&
                   line[end] == '\0') {
            r->told_ranks = n[4] > r->told_ranks ? n[4] : r->told_ranks;
        }
        if (sscanf(line, "#%u-%u (%39[^)])", &group, &number_of, hash) == 3) {
            err = end_comm(&told);
            told = (struct told){.comm = comm_new(r, hash, 0)};
            err = told.comm == NULL ? ROLL_E_NOMEM : err;
            if (told.comm != NULL) {
                told.comm->is_partial = true;
            }
        } else {
            err = read_warning(&told, line);
        }
    }
    err = err == 0 ? end_comm(&told) : err;
    if (err == 0 && !is_whole) {
        snprintf(why, size, "the report ends before its table of communicators");
        return ROLL_E_SHORT;
    }
    if (err == ROLL_E_CORRUPT) {
        snprintf(why, size, "a line about ranks has numbers that no job has");
    }
    return err;
}

/* Inspector */

static uint32_t name_at(struct roll_report_names *names, const char *name)
{
    uint64_t key = roll_hash64(1, name, strlen(name)) | 1;
    uint32_t at = roll_map_get(&names->place, key);
    if (at != ROLL_MAP_NONE) {
        return at;
    }
    if (names->used >= COMMS_MOST || ROLL_GROW(names->at, names->room, names->used + 1) != 0 ||
        roll_map_add(&names->place, key, (uint32_t)names->used) != 0) {
        return UINT32_MAX;
    }
    names->at[names->used] = (struct roll_report_name){.size = 0};
    snprintf(names->at[names->used].text, sizeof(names->at[0].text), "%s", name);
    return (uint32_t)names->used++;
}

/* One line of Inspector. NOTFOUND: it is a line of another kind (a P2P, a later format). */
static int read_inspector_line(roll_reports_t *r, const json_t *line)
{
    const json_t *head = json_object_get(line, "header"), *perf = json_object_get(line, "coll_perf");
    uint64_t rank = number(head, "rank", UINT64_MAX), ranks = number(head, "n_ranks", 0);
    if (!json_is_object(perf)) {
        return json_is_object(head) ? ROLL_E_NOTFOUND : ROLL_E_CORRUPT;
    }
    if (ranks == 0 || ranks > RANKS_MOST || rank >= ranks || text_of(head, "id")[0] == '\0' ||
        text_of(perf, "coll")[0] == '\0') {
        return ROLL_E_CORRUPT;
    }
    struct roll_report_call call = {.comm = name_at(&r->inspected, text_of(head, "id")),
                                    .function = name_at(&r->functions, text_of(perf, "coll")),
                                    .rank = (uint32_t)rank,
                                    .sn = number(perf, "coll_sn", UINT64_MAX),
                                    .bytes = number(perf, "coll_msg_size_bytes", 0),
                                    .took_us = number(perf, "coll_exec_time_us", 0)};
    if (call.comm == UINT32_MAX || call.function == UINT32_MAX || ROLL_GROW(r->call, r->call_room, r->calls + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    if (call.sn == UINT64_MAX) {
        return ROLL_E_CORRUPT;
    }
    r->inspected.at[call.comm].size = (uint32_t)ranks;
    r->call[r->calls++] = call;
    return 0;
}

static int read_inspector(roll_reports_t *r, const char *text, size_t bytes, char *why, size_t size)
{
    size_t good = 0, odd = 0;
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end != NULL ? (size_t)(end - text) - at : bytes - at;
        json_t *line = n > 1 && n <= LINE_MOST ? json_loadb(text + at, n, 0, NULL) : NULL;
        int err = line != NULL ? read_inspector_line(r, line) : n > 1 ? ROLL_E_CORRUPT : ROLL_E_NOTFOUND;
        json_decref(line);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
        good += err == 0;
        odd += err == ROLL_E_CORRUPT;
        at += n + 1;
    }
    if (odd > 0) {
        snprintf(why, size, "%zu of %zu lines could not be read%s", odd, odd + good,
                 good > 0 ? "; the rest is judged" : "");
    }
    return good == 0 ? ROLL_E_CORRUPT : 0;
}

/* the whole */

roll_reports_t *roll_reports_new(void)
{
    return calloc(1, sizeof(roll_reports_t));
}

void roll_reports_destroy(roll_reports_t **reports)
{
    roll_reports_t *r = *reports;
    *reports = NULL;
    if (r == NULL) {
        return;
    }
    for (size_t i = 0; i < r->comms; i++) {
        free(r->comm[i].rank);
    }
    for (size_t i = r->given; i < r->verdicts.used; i++) {
        roll_verdict_copy_destroy(&r->verdicts.at[i]);
    }
    free(r->verdicts.at);
    free(r->comm);
    free(r->call);
    roll_map_fini(&r->inspected.place);
    roll_map_fini(&r->functions.place);
    roll_map_fini(&r->world_at);
    free(r->inspected.at);
    free(r->functions.at);
    free(r);
}

int roll_reports_parse(roll_reports_t *r, const char *text, size_t bytes, char *why, size_t size)
{
    why[0] = '\0';
    r->files++;
    if (memmem(text, bytes, "\"nccl_version\"", 14) != NULL) {
        json_error_t error;
        if (bytes > JSON_MOST) {
            snprintf(why, size, "JSON larger than %u MiB: no report of ncclras is", JSON_MOST >> 20);
            return ROLL_E_LIMIT;
        }
        json_t *root = json_loadb(text, bytes, 0, &error);
        if (root == NULL) {
            snprintf(why, size, "no whole JSON: line %d: %s", error.line, error.text);
            return ROLL_E_CORRUPT;
        }
        int err = read_ras_json(r, root, why, size);
        json_decref(root);
        return err;
    }
    if (memmem(text, bytes, "Job summary", 11) != NULL) {
        char *copy = strndup(text, bytes);
        int err = copy != NULL ? read_ras_text(r, copy, why, size) : ROLL_E_NOMEM;
        free(copy);
        return err;
    }
    return read_inspector(r, text, bytes, why, size);
}

int roll_reports_add(roll_reports_t *r, const char *path, char *why, size_t size)
{
    char *text = NULL;
    size_t bytes;
    why[0] = '\0';
    int err = roll_read_whole(path, FILE_MOST, &text, &bytes);
    if (err == ROLL_E_LIMIT) {
        snprintf(why, size, "larger than %u MiB: no report is", FILE_MOST >> 20);
        return err;
    }
    if (err != 0) {
        snprintf(why, size, "%s", roll_strerror(err));
        return err;
    }
    struct stat st;
    r->time = stat(path, &st) == 0 ? (uint64_t)st.st_mtime : 0; /* of reports that do not tell their time */
    err = roll_reports_parse(r, text, bytes, why, size);
    free(text);
    return err;
}

struct roll_verdict_copy *roll_reports_next(roll_reports_t *r)
{
    return r->given < r->verdicts.used ? r->verdicts.at[r->given++] : NULL;
}
