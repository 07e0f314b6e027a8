/*
 * node_traces.c: see node_traces.h. Plain frames: that packed ones are read alike is tried elsewhere.
 */
#include "tests/daemon/node_traces.h"

#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict.h"
#include "trace/err.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char node_traces_dir[64];

int node_traces_set_up(void **state)
{
    (void)state;
    strcpy(node_traces_dir, "/tmp/rollcall-nodes-XXXXXX");
    assert_non_null(mkdtemp(node_traces_dir));
    return 0;
}

int node_traces_tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", node_traces_dir);
    return system(command);
}

void node_traces_path(uint32_t node, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/node%u/job.0@host%u.00000001.rtrc", node_traces_dir, node, node);
}

void node_traces_rdig(uint32_t node, uint32_t round, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/node%u.%u.rdig", node_traces_dir, node, round);
}

/* traces */

static void put(struct node_traces *t, uint32_t node, struct roll_frame_head head, const void *payload, size_t bytes)
{
    static uint8_t raw[1u << 20];
    int64_t n = roll_frame_encode(&head, payload, bytes, raw, sizeof(raw));
    assert_true(n > 0);
    assert_int_equal(fwrite(raw, 1, (size_t)n, t->file[node]), (size_t)n);
}

static void put_ring(struct node_traces *t, uint32_t rank)
{
    uint32_t node = t->rank[rank].node;
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 65536,
                                 .pid = 1000 + rank,
                                 .world_rank = (int32_t)rank,
                                 .world_size = (int32_t)t->ranks,
                                 .local_rank = (int32_t)rank,
                                 .epoch = rank + 1,
                                 .job = "job"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    snprintf(h.host, sizeof(h.host), "host%u", node);
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    put(t, node, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h.epoch}, &h, sizeof(h));
}

void node_traces_begin(struct node_traces *t, uint32_t nodes, uint32_t ranks)
{
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    char path[PATH_MAX];
    assert_true(nodes <= NODES_MOST && ranks <= RANKS_MOST);
    *t = (struct node_traces){.nodes = nodes, .ranks = ranks};
    roll_trace_head(head);
    for (uint32_t i = 0; i < nodes; i++) {
        node_traces_path(i, path);
        *strrchr(path, '/') = '\0';
        (void)mkdir(path, 0700);
        node_traces_path(i, path);
        t->file[i] = fopen(path, "w");
        assert_non_null(t->file[i]);
        assert_int_equal(fwrite(head, 1, sizeof(head), t->file[i]), sizeof(head));
    }
    for (uint32_t r = 0; r < ranks; r++) {
        t->rank[r].node = r * nodes / ranks;
        put_ring(t, r);
    }
}

void node_traces_comm(struct node_traces *t, uint32_t rank, uint32_t id, const struct roll_def_comm *comm)
{
    uint8_t entry[sizeof(struct roll_def_head) + (sizeof(*comm) + 7) / 8 * 8] = {0};
    struct roll_def_head head = {.seal = ROLL_DEF_SEAL | ROLL_DEF_COMM, .bytes = sizeof(entry), .id = id};
    memcpy(entry, &head, sizeof(head));
    memcpy(entry + sizeof(head), comm, sizeof(*comm));
    put(t, t->rank[rank].node,
        (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = rank + 1, .first = t->rank[rank].defs}, entry,
        sizeof(entry));
    t->rank[rank].defs += sizeof(entry);
}

void node_traces_records(struct node_traces *t, uint32_t rank, const struct roll_record *recs, uint32_t n, bool updates)
{
    struct roll_frame_head head = {.type = updates ? ROLL_FRAME_UPDATES : ROLL_FRAME_RECORDS,
                                   .stream = rank + 1,
                                   .first = n > 0 ? roll_seal_ticket(recs[0].seal) : 0,
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = n};
    if (n > 0) {
        put(t, t->rank[rank].node, head, recs, n * sizeof(*recs));
    }
}

void node_traces_process(struct node_traces *t, uint32_t rank, uint64_t head, uint64_t now, enum roll_proc_state state,
                         int32_t status)
{
    struct roll_frame_status s = {
        .head = head, .proc_state = state, .exit_status = status, .finish_ns = state >= ROLL_PROC_FINISHED ? now : 0};
    put(t, t->rank[rank].node, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = rank + 1}, &s, sizeof(s));
}

void node_traces_sight(struct node_traces *t, uint32_t rank, uint32_t starved)
{
    struct roll_frame_sight s = {.heard = 1, .starved = starved};
    put(t, t->rank[rank].node, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = rank + 1}, &s, sizeof(s));
}

void node_traces_tick(struct node_traces *t, uint32_t node, uint64_t now)
{
    put(t, node, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = now}, &now, sizeof(now));
}

void node_traces_end(struct node_traces *t)
{
    for (uint32_t i = 0; i < t->nodes; i++) {
        assert_int_equal(fclose(t->file[i]), 0);
    }
}

/* digests */

size_t node_traces_digest(uint32_t node, uint32_t round, uint32_t history, const struct roll_digest_at *at, size_t ats)
{
    char folder[PATH_MAX], name[PATH_MAX], *paths[1] = {folder};
    struct roll_digest_found found;
    struct roll_analyze_file *file = NULL;
    struct roll_series *series = NULL;
    struct roll_rdig_out out = {0};
    struct roll_reading reading = {0};
    size_t n = 0;
    bool cut = false;
    node_traces_path(node, folder);
    *strrchr(folder, '/') = '\0';
    struct roll_digest_how how = {.history = history, .at = at, .ats = ats, .path = folder};
    assert_int_equal(roll_digest_find(paths, 1, &file, &found), 0);
    assert_int_equal(found.traces, 1);
    assert_int_equal(roll_series_of(file, &found.traces, &series, &n), 0);
    assert_int_equal(n, 1);
    series->ahead = roll_ahead_new(1, 1);
    series->reading = &reading;
    series->cut = &cut;
    assert_int_equal(roll_digest_series(series, &how, &out), 0);
    assert_false(cut);
    assert_int_equal(roll_rdig_seal(&out), 0);
    node_traces_rdig(node, round, name);
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(out.bytes, 1, out.used, f), out.used);
    assert_int_equal(fclose(f), 0);
    size_t bytes = out.used;
    roll_rdig_fini(&out);
    roll_ahead_destroy(&series->ahead);
    free(series);
    free(file);
    return bytes;
}

/* what is told */

static int silence(void)
{
    fflush(stderr);
    int kept = dup(STDERR_FILENO), nothing = open("/dev/null", O_WRONLY);
    assert_true(kept >= 0 && nothing >= 0);
    dup2(nothing, STDERR_FILENO);
    close(nothing);
    return kept;
}

void node_told_of(struct node_told *out, char (*path)[PATH_MAX], size_t n, bool all)
{
    struct roll_engine_config config = {0};
    struct roll_verdict_list list = {.at = NULL};
    struct roll_verdict_copy *v;
    *out = (struct node_told){.n = 0};
    int kept = silence();
    roll_analysis_t *a = roll_analysis_new(&config, false);
    assert_non_null(a);
    for (size_t i = 0; i < n; i++) {
        (void)roll_analysis_add(a, path[i]);
    }
    assert_int_equal(roll_analysis_finish(a), 0);
    while ((v = roll_analysis_next(a)) != NULL) {
        assert_int_equal(roll_verdict_list_add(&list, v), 0);
    }
    for (size_t i = 0; i < list.used; i++) {
        v = list.at[i];
        out->standing += roll_verdict_stands(v);
        if ((all || roll_verdict_stands(v)) && out->n < 64) {
            out->v[out->n].code = v->said.code;
            out->v[out->n].certainty = v->said.certainty;
            out->v[out->n].comm_key = v->said.comm_key;
            out->v[out->n].seq = v->said.seq;
            assert_int_equal(roll_rankset_copy(&out->v[out->n].culprits, &v->said.culprits), 0);
            out->n++;
        }
    }
    roll_analysis_summary(a, &out->summary);
    json_t *unreached = roll_analysis_unreached(a);
    char *text = json_dumps(unreached, JSON_COMPACT);
    snprintf(out->unreached, sizeof(out->unreached), "%s", text ? text : "");
    free(text);
    json_decref(unreached);
    roll_verdict_list_fini(&list);
    roll_analysis_destroy(&a);
    dup2(kept, STDERR_FILENO);
    close(kept);
}

void node_told_of_traces(struct node_told *out, uint32_t nodes, bool all)
{
    static char path[NODES_MOST][PATH_MAX];
    for (uint32_t i = 0; i < nodes; i++) {
        node_traces_path(i, path[i]);
    }
    node_told_of(out, path, nodes, all);
}

void node_told_of_digests(struct node_told *out, uint32_t nodes, uint32_t rounds, bool all)
{
    static char path[4 * NODES_MOST][PATH_MAX];
    size_t n = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < nodes; i++) {
            node_traces_rdig(i, round, path[n]);
            n += access(path[n], R_OK) == 0;
        }
    }
    node_told_of(out, path, n, all);
}

bool node_told_equal(const struct node_told *a, const struct node_told *b)
{
    bool equal = a->n == b->n;
    for (uint32_t i = 0; i < a->n && equal; i++) {
        bool found = false;
        for (uint32_t k = 0; k < b->n && !found; k++) {
            found = a->v[i].code == b->v[k].code && a->v[i].certainty == b->v[k].certainty &&
                    a->v[i].comm_key == b->v[k].comm_key && a->v[i].seq == b->v[k].seq &&
                    roll_rankset_equal(&a->v[i].culprits, &b->v[k].culprits);
        }
        equal = found;
    }
    return equal;
}

void node_told_print(const char *what, const struct node_told *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        char ranks[64];
        (void)roll_rankset_format(&t->v[i].culprits, ranks, sizeof(ranks));
        fprintf(stderr, "%s: %s %s %s at %llx:%llu\n", what, roll_certainty_name(t->v[i].certainty),
                roll_verdict_name(t->v[i].code), ranks, (unsigned long long)t->v[i].comm_key,
                (unsigned long long)t->v[i].seq);
    }
    fprintf(stderr, "%s: %u verdicts, unreached %s\n", what, t->n, t->unreached);
}

void node_told_fini(struct node_told *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        roll_rankset_fini(&t->v[i].culprits);
    }
    t->n = 0;
}
