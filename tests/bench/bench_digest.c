/*
 * bench_digest.c: what it costs to compare the calls of up to 16,384 ranks by digests: in the folds of a node, in a
 * relay of 64 nodes, in the root.
 *
 * The pure parts alone, in one process, by processor time: no rings, no sockets. Each rank makes 500 collectives a
 * second on four communicators (world, 31 of them; ranks / 64, across, 94; 64, 125; 8, 250), nodes of 8 ranks tell ten
 * times a second, and one rank in a hundred is 500 calls behind. Two seconds of the job are run through. Then, many
 * times anew, one rank calls another size, at a moment that is drawn, and how long the root takes to hear of it is
 * counted in the job's time.
 */
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/fold.h"
#include "daemon/digest/sum.h"
#include "tests/bench/bench.h"
#include "trace/err.h"
#include "trace/op.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define COMMS     4u
#define PER_NODE  8u
#define PER_RELAY 64u /* nodes */
#define LOOKS     20u /* digests of a node */
#define CALLS     50u /* collectives of a rank between two of them */
#define LOOK_NS   100000000u
#define BEHIND    500u /* calls by which one rank in a hundred is behind */
#define TRIALS    200u /* wrong calls; of more than 1,024 ranks */
#define FEW       20u
#define PATIENCE  60u /* digests of a node until a wrong call is taken for unheard */
#define PAYLOAD   65536u

static const uint32_t sizes[] = {64, 1024, 4096, 16384};

struct place {
    uint32_t ranks, nodes, relays;
    roll_fold_t **fold;
    roll_sum_t **node, **relay, *root; /* relays: none where one root can hear all nodes */
    uint32_t (*seq)[COMMS];            /* of each rank */
    uint64_t *ticket;
    struct roll_digest up, came;
    double fold_s, node_s, relay_s, root_s;
    uint64_t relay_bytes, root_bytes;
    uint32_t wrong; /* the rank that calls another size; UINT32_MAX: none */
    uint64_t wrong_call;
};

static double processor(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct roll_def_comm comm_of(const struct place *p, uint32_t c, uint32_t rank)
{
    uint32_t across = p->ranks / 64;
    const uint32_t size[COMMS] = {p->ranks, across, 64, 8};
    uint32_t group = c == 1 ? rank % 64 : rank / size[c], at = c == 1 ? rank / 64 : rank % size[c];
    return (struct roll_def_comm){.key = (uint64_t)(c + 1) << 32 | (group + 1),
                                  .rank = (int32_t)at,
                                  .nranks = (int32_t)size[c],
                                  .color = ROLL_COLOR_NONE,
                                  .origin = ROLL_COMM_SPLIT};
}

static void place_fini(struct place *p)
{
    for (uint32_t i = 0; p->fold && i < p->ranks; i++) {
        roll_fold_destroy(&p->fold[i]);
    }
    for (uint32_t i = 0; p->node && i < p->nodes; i++) {
        roll_sum_destroy(&p->node[i]);
    }
    for (uint32_t i = 0; p->relay && i < p->relays; i++) {
        roll_sum_destroy(&p->relay[i]);
    }
    roll_sum_destroy(&p->root);
    roll_digest_fini(&p->up);
    roll_digest_fini(&p->came);
    free(p->fold);
    free(p->node);
    free(p->relay);
    free(p->seq);
    free(p->ticket);
}

static int place_init(struct place *p, uint32_t ranks)
{
    struct roll_sum_config config = {.stand_ns = UINT64_C(1000) * LOOK_NS}; /* a rank that is behind stands nowhere */
    *p = (struct place){.ranks = ranks, .nodes = ranks / PER_NODE, .wrong = UINT32_MAX};
    p->relays = p->nodes > PER_RELAY ? p->nodes / PER_RELAY : 0;
    p->fold = calloc(ranks, sizeof(*p->fold));
    p->node = calloc(p->nodes, sizeof(*p->node));
    p->relay = calloc(p->relays + 1, sizeof(*p->relay));
    p->seq = calloc(ranks, sizeof(*p->seq));
    p->ticket = calloc(ranks, sizeof(*p->ticket));
    if (!p->fold || !p->node || !p->relay || !p->seq || !p->ticket) {
        return ROLL_E_NOMEM;
    }
    bool whole = true;
    for (uint32_t i = 0; i < ranks; i++) {
        p->fold[i] = roll_fold_new(UINT64_C(1000) * LOOK_NS);
        for (uint32_t c = 0; c < COMMS && p->fold[i]; c++) {
            struct roll_def_comm info = comm_of(p, c, i);
            whole = whole && roll_fold_comm(p->fold[i], c + 1, &info) == 0;
        }
        whole = whole && p->fold[i];
    }
    for (uint32_t i = 0; i < p->nodes; i++) {
        p->node[i] = roll_sum_new(&config);
        whole = whole && p->node[i];
    }
    for (uint32_t i = 0; i < p->relays; i++) {
        p->relay[i] = roll_sum_new(&config);
        whole = whole && p->relay[i];
    }
    config.is_root = true;
    p->root = roll_sum_new(&config);
    return whole && p->root ? 0 : ROLL_E_NOMEM;
}

static uint32_t on_comm(uint64_t ticket)
{
    uint32_t at = (uint32_t)(ticket % 16);
    return at == 0 ? 0 : at < 4 ? 1 : at < 8 ? 2 : 3;
}

/* The next calls of a rank. The program is the same for all. */
static void call(struct place *p, uint32_t rank, uint32_t calls, struct roll_record *out)
{
    for (uint32_t i = 0; i < calls; i++) {
        uint64_t ticket = p->ticket[rank]++;
        uint32_t c = on_comm(ticket);
        bool wrong = rank == p->wrong && ticket == p->wrong_call;
        out[i] = (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                      .enter_ns = UINT64_C(1000000000) + ticket * 2000000,
                                      .count = 1024 + ticket % 13 * 256 + wrong,
                                      .seq = p->seq[rank][c]++,
                                      .peer = ROLL_PEER_NONE,
                                      .call_ns = 500,
                                      .comm = (uint16_t)(c + 1),
                                      .stream = 2,
                                      .thread = 1,
                                      .layer = ROLL_LAYER_NONE,
                                      .op = ticket % 3 == 0 ? ROLL_OP_ALLGATHER : ROLL_OP_ALLREDUCE,
                                      .dtype = ROLL_DTYPE_BFLOAT16,
                                      .redop = ticket % 3 == 0 ? ROLL_RED_NONE : ROLL_RED_SUM};
    }
}

/* How many calls a rank makes until look i: each rank is somewhere else within its step, and one in a hundred is far
 * behind. */
static uint32_t next_calls(const struct place *p, uint32_t rank, uint32_t i)
{
    uint64_t target = (uint64_t)i * CALLS + (rank * 2654435761u + i * 40503u) / 65536u % CALLS;
    target = rank % 100 == 99 ? (target > BEHIND ? target - BEHIND : 0) : target;
    return (uint32_t)(target - p->ticket[rank]);
}

/* A digest goes from one level to the next as bytes. What is measured: the bytes are written by the one, and read by
 * the other. */
static int send(struct place *p, roll_sum_t *to, uint32_t child, uint64_t now, double *writer, double *reader,
                uint64_t *bytes)
{
    static unsigned char payload[PAYLOAD];
    struct roll_digest_cursor cursor = {0};
    int err = 0;
    for (;;) {
        double begin = processor();
        size_t n = roll_digest_encode(&p->up, &cursor, payload, sizeof(payload));
        double middle = processor();
        *writer += middle - begin;
        if (n == 0 || err != 0) {
            return err;
        }
        roll_digest_clear(&p->came);
        err = roll_digest_decode(payload, n, &p->came);
        err = err ? err : roll_sum_take(to, child, &p->came, now);
        *reader += processor() - middle;
        *bytes += n;
    }
}

/* One tenth of a second of all nodes. Returns hints that came to the root, or an error. */
static int look(struct place *p, uint64_t now, struct roll_record *recs)
{
    int err = 0;
    for (uint32_t n = 0; n < p->nodes && err == 0; n++) {
        for (uint32_t rank = n * PER_NODE; rank < (n + 1) * PER_NODE; rank++) {
            uint32_t calls = next_calls(p, rank, (uint32_t)(now / LOOK_NS));
            call(p, rank, calls, recs);
            double begin = processor();
            for (uint32_t i = 0; i < calls && err == 0; i++) {
                err = roll_fold_record(p->fold[rank], &recs[i], now);
            }
            roll_digest_clear(&p->up);
            roll_fold_cut(p->fold[rank], now, &p->up);
            double middle = processor();
            p->fold_s += middle - begin;
            err = err ? err : roll_sum_take(p->node[n], rank, &p->up, now);
            p->node_s += processor() - middle;
        }
        double begin = processor();
        roll_digest_clear(&p->up);
        roll_sum_cut(p->node[n], now, &p->up);
        p->node_s += processor() - begin;
        bool relayed = p->relays != 0;
        err = err ? err
                  : send(p, relayed ? p->relay[n / PER_RELAY] : p->root, n, now, &p->node_s,
                         relayed ? &p->relay_s : &p->root_s, relayed ? &p->relay_bytes : &p->root_bytes);
    }
    for (uint32_t i = 0; i < p->relays && err == 0; i++) {
        double begin = processor();
        roll_digest_clear(&p->up);
        roll_sum_cut(p->relay[i], now, &p->up);
        p->relay_s += processor() - begin;
        err = send(p, p->root, i, now, &p->relay_s, &p->root_s, &p->root_bytes);
    }
    double begin = processor();
    roll_digest_clear(&p->up);
    roll_sum_cut(p->root, now, &p->up);
    p->root_s += processor() - begin;
    return err != 0 ? err : (int)p->up.hints;
}

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A rank calls another size; after how much of the job's time does the root hear of it? Negative: never, or an error.
 */
static double trial(uint32_t ranks, uint32_t draw, struct roll_record *recs)
{
    struct place p;
    double heard = -1;
    int hints = place_init(&p, ranks);
    p.wrong = (draw * 2654435761u) % ranks;
    p.wrong -= p.wrong % 100 == 99;
    p.wrong_call = 100 + draw * 7 % 500;
    while (on_comm(p.wrong_call) == 1 && ranks == 64) {
        p.wrong_call++; /* there the communicator across has one member, who agrees with itself */
    }
    double called = 0; /* when the wrong call was made: at some moment before the look that sees it */
    for (uint32_t i = 1; i <= PATIENCE && hints == 0; i++) {
        called = p.ticket[p.wrong] <= p.wrong_call ? (double)i * 0.1 - 0.05 : called;
        hints = look(&p, (uint64_t)i * LOOK_NS, recs);
        if (hints > 0) {
            heard = (double)i * 0.1 - called;
        }
    }
    place_fini(&p);
    return heard;
}

static int one_size(uint32_t ranks, struct roll_record *recs, json_t *list, FILE *table)
{
    struct place p;
    struct mallinfo2 before = mallinfo2();
    int err = place_init(&p, ranks), hints = 0;
    for (uint32_t i = 1; i <= LOOKS && err == 0; i++) {
        int found = look(&p, (uint64_t)i * LOOK_NS, recs);
        err = found < 0 ? found : 0;
        hints += found > 0 ? found : 0;
    }
    struct mallinfo2 after = mallinfo2();
    uint32_t n = ranks > 1024 ? FEW : TRIALS;
    double job_s = LOOKS * 0.1, records = 0, trials[TRIALS];
    for (uint32_t i = 0; i < ranks && err == 0; i++) {
        records += (double)p.ticket[i];
    }
    for (uint32_t i = 0; i < n && err == 0; i++) {
        trials[i] = trial(ranks, i, recs);
        err = trials[i] < 0 ? ROLL_E_INCOMPLETE : 0;
    }
    if (err == 0 && hints == 0) {
        qsort(trials, n, sizeof(*trials), by_number);
        double middle = trials[n / 2], late = trials[n * 99 / 100], most = trials[n - 1];
        double mib = (double)(after.uordblks - before.uordblks) / (1 << 20);
        double node = 100 * (p.fold_s + p.node_s) / job_s / p.nodes;
        fprintf(
            table, "  %6u  %9.0f  %5.1f ns  %6.3f %%  %8.1f %%  %8.1f %%  %7.2f  %7.2f  %6.0f  %5.2f  %5.2f  %5.2f\n",
            ranks, records / job_s, p.fold_s * 1e9 / records, node, p.relays ? 100 * p.relay_s / job_s / p.relays : 0.0,
            100 * p.root_s / job_s, p.relays ? (double)p.relay_bytes / job_s / p.relays / 1e6 : 0.0,
            (double)p.root_bytes / job_s / 1e6, mib, middle, late, most);
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "ranks", (int)ranks,
                                              "fold_ns", p.fold_s * 1e9 / records, "root_core", p.root_s / job_s,
                                              "root_bytes_s", (double)p.root_bytes / job_s, "mib", mib, "heard_p50_s",
                                              middle, "heard_p99_s", late, "heard_most_s", most));
    }
    place_fini(&p);
    if (hints != 0) {
        fprintf(stderr, "roll_bench: a healthy job of %u ranks gave %d hints\n", ranks, hints);
        return ROLL_E_CORRUPT;
    }
    return err;
}

int roll_bench_digest(json_t *out, FILE *table)
{
    struct roll_record recs[2 * CALLS];
    json_t *list = json_array();
    int err = list ? 0 : ROLL_E_NOMEM;
    fprintf(table, "  %6s  %9s  %8s  %8s  %10s  %10s  %7s  %7s  %6s  %19s\n", "ranks", "calls/s", "a call", "a node",
            "a relay", "the root", "relay", "root", "memory", "heard, s");
    fprintf(table, "  %6s  %9s  %8s  %8s  %10s  %10s  %7s  %7s  %6s  %5s  %5s  %5s\n", "", "", "folded", "of core",
            "of core", "of core", "MB/s in", "MB/s in", "MiB", "p50", "p99", "most");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes) && err == 0; i++) {
        err = one_size(sizes[i], recs, list, table);
    }
    if (list) {
        json_object_set_new(out, "digest", list);
    }
    return err;
}
