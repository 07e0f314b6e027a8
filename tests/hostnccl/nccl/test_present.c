/*
 * test_present.c: HOSTNCCL_PRESENT: some ranks of a communicator run, the others are stood in for: what their
 * contributions are, in every call; whose communicators these are; and what is refused.
 */
#include "hostnccl/include/nccl_newer.h"
#include "hostnccl/nccl/present.h"
#include "tests/hostnccl/nccl/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the eight ranks that the job believes in, the harness's three run as these. */
enum { WORLD = 8, MANY = 5000 };
static const int SETS[][3] = {{0, 1, 2}, {2, 3, 6}, {5, 6, 7}};
static const char *const NAMES[] = {"0-2:8", "2-3,6:8", "5-7:8"};

struct part {
    int rank, lowest; /* in the job */
    bool runs[WORLD];
    ncclComm_t comm;
};

/* The communicator of the job, as rank `r` of the harness in set `set`. */
static struct part part_of(struct rank *r, size_t set)
{
    char number[16];
    struct part p = {.rank = SETS[set][r->rank], .lowest = SETS[set][0]};

    for (int i = 0; i < 3; i++) {
        p.runs[SETS[set][i]] = true;
    }
    snprintf(number, sizeof(number), "%d", p.rank);
    setenv("RANK", number, 1);
    setenv("HOSTNCCL_PRESENT", NAMES[set], 1);
    NCCL(ncclCommInitRank(&p.comm, WORLD, r->id, p.rank));
    return p;
}

/* Whose contribution stands for rank `r`. */
static int stands_for(const struct part *p, int r)
{
    return p->runs[r] ? r : p->lowest;
}

static void ended(struct rank *r)
{
    CUDA(cudaStreamSynchronize(r->stream));
}

static int *memory(size_t count)
{
    void *at;

    CUDA(cudaMalloc(&at, count * sizeof(int)));
    memset(at, 0, count * sizeof(int));
    return at;
}

/* Every collective with `n` elements in a block, of which element i is 1000 times the rank, and i. */
static void every_collective(struct rank *r, const struct part *p, size_t n)
{
    int *in = memory(n * WORLD), *out = memory(n * WORLD), sum = 0;

    for (int k = 0; k < WORLD; k++) {
        sum += 1000 * stands_for(p, k);
        for (size_t i = 0; i < n; i++) {
            in[(size_t)k * n + i] = 1000 * p->rank + (int)i;
        }
    }
    NCCL(ncclAllReduce(in, out, n, ncclInt, ncclSum, p->comm, r->stream));
    ended(r);
    CHECK(out[0] == sum && out[n - 1] == sum + WORLD * ((int)n - 1));
    NCCL(ncclAllReduce(in, out, n, ncclInt, ncclMax, p->comm, r->stream));
    ended(r);
    CHECK(out[n - 1] >= 1000 * p->rank + (int)n - 1);
    NCCL(ncclAllGather(in, out, n, ncclInt, p->comm, r->stream));
    ended(r);
    for (int k = 0; k < WORLD; k++) {
        CHECK(out[(size_t)k * n] == 1000 * stands_for(p, k) &&
              out[(size_t)k * n + n - 1] == 1000 * stands_for(p, k) + (int)n - 1);
    }
    NCCL(ncclReduceScatter(in, out, n, ncclInt, ncclSum, p->comm, r->stream));
    ended(r);
    CHECK(out[0] == sum && out[n - 1] == sum + WORLD * ((int)n - 1));
    for (int root = 0; root < WORLD; root++) {
        memset(out, 0, n * sizeof(int));
        NCCL(ncclReduce(in, out, n, ncclInt, ncclSum, root, p->comm, r->stream));
        ended(r);
        CHECK(out[0] == (root == p->rank ? sum : 0));
        for (size_t i = 0; i < n; i++) {
            out[i] = 7 * p->rank + (int)i;
        }
        NCCL(ncclBroadcast(in, out, n, ncclInt, root, p->comm, r->stream));
        ended(r);
        CHECK(out[n - 1] == (p->runs[root] ? 1000 * root : 7 * p->lowest) + (int)n - 1);
    }
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
}

/* An all-gather of blocks of several sizes, as frameworks make it: a group of broadcasts. */
static void uneven_gather(struct rank *r, const struct part *p)
{
    int *in = memory(WORLD), *out = memory(WORLD * WORLD);

    for (int i = 0; i < WORLD; i++) {
        in[i] = 100 * p->rank + i;
        out[p->rank * WORLD + i] = in[i];
    }
    NCCL(ncclGroupStart());
    for (int k = 0; k < WORLD; k++) {
        int *block = out + (size_t)k * WORLD;
        NCCL(ncclBroadcast(k == p->rank ? in : block, block, WORLD, ncclInt, k, p->comm, r->stream));
    }
    NCCL(ncclGroupEnd());
    ended(r);
    for (int k = 0; k < WORLD; k++) {
        CHECK(out[k * WORLD + 3] == 100 * stands_for(p, k) + 3);
    }
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
}

/* Messages with ranks that run are real. One from a rank that does not is the one that this rank sends it in the group,
 * else zeros. */
static void messages(struct rank *r, const struct part *p)
{
    int *in = memory(WORLD), *out = memory(2 * WORLD);

    for (int k = 0; k < WORLD; k++) {
        in[k] = 100 * p->rank + k;
    }
    NCCL(ncclAlltoAll(in, out, 1, ncclInt, p->comm, r->stream));
    ended(r);
    for (int k = 0; k < WORLD; k++) {
        CHECK(out[k] == (p->runs[k] ? 100 * k + p->rank : 100 * p->rank + k));
    }
    int other = p->runs[0] ? WORLD - 1 : 0; /* one that does not run */
    out[0] = out[1] = out[2] = 5;
    NCCL(ncclRecv(out, 2, ncclInt, other, p->comm, r->stream));
    NCCL(ncclSend(in, 2, ncclInt, other, p->comm, r->stream));
    ended(r);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] == 5);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(in + 1, 1, ncclInt, other, p->comm, r->stream));
    NCCL(ncclRecv(out, 2, ncclInt, other, p->comm, r->stream));
    NCCL(ncclSend(in + 2, 2, ncclInt, other, p->comm, r->stream));
    NCCL(ncclRecv(out + 2, 1, ncclInt, other, p->comm, r->stream));
    NCCL(ncclGroupEnd());
    ended(r);
    CHECK(out[0] == in[1] && out[1] == 0 && out[2] == in[2]);
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
}

static void in_set(struct rank *r, size_t set)
{
    struct part p = part_of(r, set);

    every_collective(r, &p, 3);
    every_collective(r, &p, MANY); /* in steps, and in several pieces */
    uneven_gather(r, &p);
    messages(r, &p);
    NCCL(ncclCommDestroy(p.comm));
}

static void case_first(struct rank *r)
{
    in_set(r, 0);
}

static void case_apart(struct rank *r)
{
    in_set(r, 1);
}

static void case_last(struct rank *r)
{
    in_set(r, 2);
}

/* The sum over a communicator that was told of under a name. */
static int sum_of(struct rank *r, const char *name, const int *members, int count, int rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm;
    ncclUniqueId id = r->id;
    int *one = memory(1), place = -1;

    CHECK(hostncclTell(name, members, count) == 0);
    for (int i = 0; i < count; i++) {
        place = members[i] == rank ? i : place;
    }
    if (place < 0) {
        CUDA(cudaFree(one));
        return 0;
    }
    config.commName = name;
    one[0] = 1 + rank;
    memcpy((char *)&id + 8, name, 3); /* another communicator of that time */
    NCCL(ncclCommInitRankConfig(&comm, count, id, place, &config));
    NCCL(ncclAllReduce(one, one, 1, ncclInt, ncclSum, comm, r->stream));
    ended(r);
    int sum = one[0];
    NCCL(ncclCommDestroy(comm));
    CUDA(cudaFree(one));
    return sum;
}

/* Ranks 0 to 2 of 8 run. */
static void case_told(struct rank *r)
{
    static const int pair[] = {0, 2}, column[] = {1, 5}, row[] = {3, 2, 7};

    setenv("HOSTNCCL_PRESENT", NAMES[0], 1);
    CHECK(sum_of(r, "pair", pair, 2, r->rank) == (r->rank == 1 ? 0 : 4));
    CHECK(sum_of(r, "column", column, 2, r->rank) == (r->rank == 1 ? 4 : 0));
    CHECK(sum_of(r, "row", row, 3, r->rank) == (r->rank == 2 ? 9 : 0));
}

static void is_refused(ncclResult_t result, const char *text)
{
    CHECK(result == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(NULL), "HOSTNCCL_PRESENT: ") && strstr(ncclGetLastError(NULL), text));
}

/* What is not known for certain is refused, and nobody waits. */
static void case_refused(struct rank *r)
{
    static const int one[] = {0, 1}, other[] = {0, 5}, third[] = {1, 6}, fourth[] = {2, 4};
    struct part p = part_of(r, 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t child = NULL;
    ncclWindow_t window = NULL;
    void *at;

    is_refused(ncclCommInitRank(&child, 4, r->id, r->rank), "nobody has told which of the job's 8 ranks");
    is_refused(ncclCommInitRank(&child, WORLD, r->id, r->rank + 3), "nobody has told");
    CHECK(!child);
    /* The same name for two groups of which other ranks run. */
    config.commName = "twice";
    CHECK(!hostncclTell("twice", r->rank == 0 ? one : r->rank == 1 ? third : fourth, 2));
    CHECK(!hostncclTell("twice", other, 2));
    if (r->rank == 0) {
        is_refused(ncclCommInitRankConfig(&child, 2, r->id, 0, &config), "several groups of 2 ranks");
    }
    is_refused(ncclCommSplit(p.comm, 0, 0, &child, NULL), "ncclCommSplit: 5 of the communicator's 8 ranks");
    is_refused(ncclCommShrink(p.comm, (int[]){7}, 1, &child, NULL, 0), "ncclCommShrink: ");
    is_refused(ncclCommGrow(p.comm, WORLD + 1, NULL, -1, &child, NULL), "ncclCommGrow: ");
    CUDA(cudaMalloc(&at, 4096));
    is_refused(ncclCommWindowRegister(p.comm, at, 4096, &window, NCCL_WIN_COLL_SYMMETRIC), "WindowRegister");
    NCCL(ncclCommDestroy(p.comm));
    setenv("HOSTNCCL_PRESENT", "0-3", 1);
    is_refused(ncclCommInitRank(&child, WORLD, r->id, r->rank), "'0-3' is not RANKS:WORLD");
    setenv("HOSTNCCL_PRESENT", "0-9:8", 1);
    is_refused(ncclCommInitRank(&child, WORLD, r->id, r->rank), "is not RANKS:WORLD");
    setenv("HOSTNCCL_PRESENT", "4-5:8", 1);
    is_refused(ncclCommInitRank(&child, WORLD, r->id, r->rank), "is not one of the ranks that are said to run");
    unsetenv("RANK");
    is_refused(ncclCommInitRank(&child, WORLD, r->id, r->rank), "RANK does not say");
}

/* A rank that runs and leaves a call out holds the others up: only ranks that do not run are stood in for. */
static void case_missing(struct rank *r)
{
    struct part p = part_of(r, 1);
    int *one = memory(1);

    r->comm = p.comm;
    if (r->rank == 1) {
        stay(r);
        r->aborted = true;
        NCCL(ncclCommAbort(p.comm));
        return;
    }
    NCCL(ncclAllReduce(one, one, 1, ncclInt, ncclSum, p.comm, r->stream));
    expect_hang(r);
}

static const struct rank_case CASES[] = {
    {"first", case_first, true}, {"apart", case_apart, true},     {"last", case_last, true},
    {"told", case_told, true},   {"refused", case_refused, true}, {"missing", case_missing, true},
    {NULL, NULL, false}};

static void of_eight_ranks_three_run(void **state)
{
    (void)state;
    ranks_run("first", 3, 20, NULL);
    ranks_run("apart", 3, 20, NULL);
    ranks_run("last", 3, 20, NULL);
    ranks_run("first", 3, 20, "HOSTNCCL_EAGER=4096");
}

static void members_of_other_communicators_are_told(void **state)
{
    (void)state;
    ranks_run("told", 3, 20, NULL);
}

static void what_nobody_knows_is_refused(void **state)
{
    (void)state;
    ranks_run("refused", 3, 20, NULL);
}

static void a_rank_that_runs_is_waited_for(void **state)
{
    (void)state;
    ranks_run("missing", 3, 20, NULL);
}

/* What the interposer asks. */
static void places_are_those_of_the_ranks_that_run(void **state)
{
    static const int members[] = {6, 0, 3};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int place[WORLD];
    (void)state;
    config.commName = "some";
    unsetenv("HOSTNCCL_PRESENT");
    assert_int_equal(hostncclPresent(3, 1, &config, place), 3);
    assert_int_equal(place[2], 2);
    setenv("HOSTNCCL_PRESENT", NAMES[1], 1);
    setenv("RANK", "3", 1);
    assert_int_equal(hostncclPresent(WORLD, 3, NULL, place), 3);
    assert_true(place[0] == -1 && place[2] == 0 && place[3] == 1 && place[6] == 2);
    assert_int_equal(hostncclPresent(3, 2, &config, place), 0);
    assert_int_equal(hostncclTell("some", members, 3), 0);
    assert_int_equal(hostncclPresent(3, 2, &config, place), 2);
    assert_true(place[0] == 0 && place[1] == -1 && place[2] == 1);
    assert_int_equal(hostncclPresent(3, 1, &config, place), 0); /* this rank has another place */
    assert_int_equal(hostncclTell(NULL, NULL, 0), 0);
    assert_int_equal(hostncclPresent(3, 2, &config, place), 0);
    assert_int_equal(hostncclTell("bad", (int[]){0, -1}, 2), -1);
    unsetenv("HOSTNCCL_PRESENT");
    unsetenv("RANK");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_eight_ranks_three_run),
        cmocka_unit_test(members_of_other_communicators_are_told),
        cmocka_unit_test(what_nobody_knows_is_refused),
        cmocka_unit_test(a_rank_that_runs_is_waited_for),
        cmocka_unit_test(places_are_those_of_the_ranks_that_run),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
