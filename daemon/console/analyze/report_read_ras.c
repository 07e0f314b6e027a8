/*
 * report_read_ras.c: reads a status of RAS, as JSON and as text.
 *
 * https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html, whose format may change from
 * release to release: members that are not there are taken for nothing, and nothing is taken for granted.
 */
#include "daemon/console/analyze/report_state.h"

#include "daemon/base/array.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const functions[ROLL_RAS_FUNCTIONS] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                                          "AllReduce"};

const char *roll_report_function(unsigned i)
{
    return functions[i];
}

/* JSON */

static struct roll_report_comm *comm_new(roll_reports_t *r, const char *id, uint32_t size)
{
    if (r->comms >= ROLL_REPORT_COMMS_MOST || ROLL_GROW(r->comm, r->comm_room, r->comms + 1) != 0) {
        return NULL;
    }
    struct roll_report_comm *comm = &r->comm[r->comms++];
    *comm = (struct roll_report_comm){.size = size, .order = r->files, .time = r->time};
    snprintf(comm->id, sizeof(comm->id), "%s", id);
    return comm;
}

static struct roll_report_rank *add_rank(struct roll_report_comm *comm, uint32_t rank)
{
    if (comm->ranks >= ROLL_REPORT_RANKS_MOST || ROLL_GROW(comm->rank, comm->room, comm->ranks + 1) != 0) {
        return NULL;
    }
    comm->rank[comm->ranks] = (struct roll_report_rank){.rank = rank};
    return &comm->rank[comm->ranks++];
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
        snprintf(out, ROLL_REPORT_WHERE, "process %" PRIu64 " on %.40s, GPU %" PRIu64,
                 roll_report_number(rank, "pid", 0), roll_json_text(rank, "host", ""),
                 roll_report_number(rank, "cuda_dev", 0));
    }
}

static int read_ras_comm(roll_reports_t *r, const json_t *comm)
{
    const json_t *ranks = json_object_get(comm, "ranks"), *missing = json_object_get(comm, "missing_ranks");
    struct roll_report_comm *out = NULL;
    uint64_t size = roll_report_number(comm, "size", 0);
    char id[64];
    size_t i;
    json_t *one;
    snprintf(id, sizeof(id), "%.31s/%.31s", roll_json_text(comm, "hash", ""),
             roll_json_text(comm, "secondary_hash", ""));
    if (size == 0 || size > ROLL_REPORT_RANKS_MOST || !json_is_array(ranks)) {
        return ROLL_E_CORRUPT;
    }
    out = comm_new(r, id, (uint32_t)size);
    if (out == NULL) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(ranks, i, one)
    {
        uint64_t number_of = roll_report_number(one, "rank", UINT64_MAX);
        struct roll_report_rank *rank = number_of < size ? add_rank(out, (uint32_t)number_of) : NULL;
        if (rank == NULL) {
            return number_of < size ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        where_of(one, rank->where);
        for (unsigned f = 0; f < ROLL_RAS_FUNCTIONS; f++) {
            rank->launched[f] = roll_report_number(json_object_get(one, "collective_counts"), functions[f], 0);
        }
    }
    json_array_foreach(missing, i, one)
    {
        uint64_t number_of =
            json_is_integer(one) ? (uint64_t)json_integer_value(one) : roll_report_number(one, "rank", UINT64_MAX);
        struct roll_report_rank *rank = number_of < size ? add_rank(out, (uint32_t)number_of) : NULL;
        if (rank == NULL) {
            return number_of < size ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
        }
        rank->is_missing = true;
        where_of(one, rank->where);
    }
    return 0;
}

int roll_report_read_ras_json(roll_reports_t *r, const json_t *root, char *why, size_t size)
{
    const json_t *comms = json_object_get(root, "communicators");
    size_t i, odd = 0;
    json_t *comm;
    uint64_t told = seconds_of(roll_json_text(root, "timestamp", ""));
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

/* text */

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
        struct roll_report_rank *one =
            end != list && rank < ROLL_REPORT_RANKS_MOST ? add_rank(told->comm, (uint32_t)rank) : NULL;
        if (end == list) {
            return 0;
        }
        if (one == NULL) {
            return rank < ROLL_REPORT_RANKS_MOST ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
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
        struct roll_report_rank *one = rank < ROLL_REPORT_RANKS_MOST ? add_rank(told->comm, rank) : NULL;
        const char *who = strstr(line, "-- ");
        if (one == NULL) {
            return rank < ROLL_REPORT_RANKS_MOST ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
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
        rest->others =
            (uint32_t)(told->common_ranks < ROLL_REPORT_RANKS_MOST ? told->common_ranks : ROLL_REPORT_RANKS_MOST);
    }
    told->comm = NULL;
    return rest != NULL ? 0 : ROLL_E_NOMEM;
}

int roll_report_read_ras_text(roll_reports_t *r, char *text, char *why, size_t size)
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
