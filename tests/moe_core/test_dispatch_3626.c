/*
 * test_dispatch_3626.c: the matrix of Megatron-LM #3626: dispatchers x layouts x ranks without tokens.
 *
 * For each cell, in which some sources make no choice at all, and every buffer is poisoned before: (i) the sequence of
 * (operation, communicator, bytes) is equal on all ranks, forward and backward, and is the table's; (ii) outputs and
 * all gradients equal the single-process reference; (iii) the obligations on the plan are what backward then issues.
 *
 * TPnEPm: experts split over n ranks of expert tensor parallelism and m of expert parallelism: n x m ranks, each with
 * its own tokens (attention tensor parallelism with sequence parallelism over the same n). TP4EP4 is 16 ranks; its
 * other reading, attention TP 4 over the four ranks of ep 4 with etp 1, is TP1EP4 here.
 */
#include "tests/moe_core/dispatch_ranks.h"

static const struct {
    int etp, ep;
} layouts[] = {{4, 2}, {2, 2}, {1, 2}, {4, 4}, {1, 4}, {1, 8}, {2, 1}, {1, 1}};

/* None, one (first, last), several, all but one (first, last), all. */
static size_t empties(int ep, uint32_t *set)
{
    uint32_t all = (1u << ep) - 1;
    const uint32_t wanted[] = {0, 1, 1u << (ep - 1), all & 0x55, all & ~1u, all >> 1, all};
    size_t n = 0;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        bool seen = false;
        for (size_t j = 0; j < n; j++) {
            seen = seen || set[j] == wanted[i];
        }
        if (!seen) {
            set[n++] = wanted[i];
        }
    }
    return n;
}

struct table {
    enum moe_dispatcher_kind kind;
    /* Lists of units, first those of forward; how many of each. */
    void (*want)(const struct dr_case *c, struct dr_want *forward, size_t *forwards, struct dr_want *backward,
                 size_t *backwards);
    bool different_tokens;
};

static void add(struct dr_want *list, size_t *count, bool when, struct dr_want want)
{
    if (when) {
        list[(*count)++] = want;
    }
}

/* The table of docs/MOE.md, all-to-all. */
static void want_alltoall(const struct dr_case *c, struct dr_want *f, size_t *fs, struct dr_want *b, size_t *bs)
{
    bool ep = c->ep > 1, etp = c->etp > 1, probs = c->travel;
    uint64_t ranks = (uint64_t)dr_ranks(c), experts = (uint64_t)c->ep * DR_LOCAL, row = DR_HIDDEN * sizeof(float);
    enum dr_role all = !etp && !c->use_tp_ep ? DR_EP : !ep ? DR_ETP : DR_TP_EP;
    add(f, fs, ep || etp, (struct dr_want){DR_ALLGATHER, all, .bytes = ranks * (experts + 1) * 8});
    add(f, fs, ep, (struct dr_want){DR_ALLTOALL, DR_EP, .row_bytes = row, .each = DR_BY_CHOICE});
    add(f, fs, ep && probs, (struct dr_want){DR_ALLTOALL, DR_EP, .row_bytes = sizeof(float), .each = DR_BY_CHOICE});
    add(f, fs, etp, (struct dr_want){DR_ALLGATHER, DR_ETP, .row_bytes = row});
    add(f, fs, etp && probs, (struct dr_want){DR_ALLGATHER, DR_ETP, .row_bytes = sizeof(float)});
    add(f, fs, etp, (struct dr_want){DR_REDUCESCATTER, DR_ETP, .row_bytes = row});
    add(f, fs, ep, (struct dr_want){DR_ALLTOALL, DR_EP, .back = true, .row_bytes = row, .each = DR_BY_CHOICE});
    add(b, bs, ep, (struct dr_want){DR_ALLTOALL, DR_EP, .row_bytes = row, .each = DR_BY_CHOICE});
    add(b, bs, etp, (struct dr_want){DR_ALLGATHER, DR_ETP, .row_bytes = row});
    add(b, bs, etp && probs, (struct dr_want){DR_REDUCESCATTER, DR_ETP, .row_bytes = sizeof(float)});
    add(b, bs, etp, (struct dr_want){DR_REDUCESCATTER, DR_ETP, .row_bytes = row});
    add(b, bs, ep && probs,
        (struct dr_want){DR_ALLTOALL, DR_EP, .back = true, .row_bytes = sizeof(float), .each = DR_BY_CHOICE});
    add(b, bs, ep, (struct dr_want){DR_ALLTOALL, DR_EP, .back = true, .row_bytes = row, .each = DR_BY_CHOICE});
}

/* The table of docs/MOE.md, AllGather; 4 tokens on every rank. */
static void want_allgather(const struct dr_case *c, struct dr_want *f, size_t *fs, struct dr_want *b, size_t *bs)
{
    bool several = c->ep * c->etp > 1;
    uint64_t tokens = 4 * (uint64_t)dr_ranks(c), experts = (uint64_t)c->ep * DR_LOCAL;
    uint64_t map = tokens * experts + 8 * (uint64_t)dr_ranks(c), rows = tokens * DR_HIDDEN * sizeof(float);
    enum dr_role all = c->etp == 1 && !c->use_tp_ep ? DR_EP : c->ep == 1 ? DR_ETP : DR_TP_EP;
    add(f, fs, several, (struct dr_want){DR_ALLGATHER, all, .bytes = map});
    add(f, fs, several, (struct dr_want){DR_ALLGATHER, all, .bytes = tokens * experts * sizeof(float)});
    add(f, fs, several, (struct dr_want){DR_ALLGATHER, all, .bytes = rows});
    add(f, fs, several, (struct dr_want){DR_REDUCESCATTER, all, .bytes = rows});
    add(b, bs, several, (struct dr_want){DR_ALLGATHER, all, .bytes = rows});
    add(b, bs, several, (struct dr_want){DR_REDUCESCATTER, all, .bytes = rows});
    add(b, bs, several, (struct dr_want){DR_REDUCESCATTER, all, .bytes = tokens * experts * sizeof(float)});
}

/* The Flex dispatchers: rows and choices there, rows back; a token goes to a rank once. Its choices are k numbers and
 * their probabilities, of which the gradients come back. */
static void want_flex(const struct dr_case *c, struct dr_want *f, size_t *fs, struct dr_want *b, size_t *bs)
{
    bool several = c->ep * c->etp > 1;
    uint64_t ranks = (uint64_t)dr_ranks(c), experts = (uint64_t)c->ep * DR_LOCAL, word = sizeof(float);
    uint64_t row = DR_HIDDEN * word, choices = 2 * DR_TOPK * word, probs = DR_TOPK * word;
    /* DeepEP: counts by rank and by expert; HybridEP: each of 4 tokens' map, 8 experts a word. Both: the remedies. */
    uint64_t layout = c->kind == MOE_DISPATCH_DEEPEP ? (ranks + experts + 1) * 8 : 4 * ((experts + 7) / 8 * 8) + 8;
    enum dr_role all = c->etp == 1 && !c->use_tp_ep ? DR_EP : c->ep == 1 ? DR_ETP : DR_TP_EP;
    const struct dr_want there = {.op = DR_ALLTOALL, .role = all, .row_bytes = row, .each = DR_BY_TOKEN};
    struct dr_want back = there, words = there, d_probs = there;
    back.back = d_probs.back = true;
    words.row_bytes = choices;
    d_probs.row_bytes = probs;
    add(f, fs, several, (struct dr_want){.op = DR_ALLGATHER, .role = all, .bytes = ranks * layout});
    add(f, fs, several, there);
    add(f, fs, several, words);
    add(f, fs, several, back);
    add(b, bs, several, there);
    add(b, bs, several, d_probs);
    add(b, bs, several, back);
}

static const struct table tables[] = {{MOE_DISPATCH_ALLTOALL, want_alltoall, true},
                                      {MOE_DISPATCH_ALLGATHER, want_allgather, false},
                                      {MOE_DISPATCH_DEEPEP, want_flex, true},
                                      {MOE_DISPATCH_HYBRIDEP, want_flex, false}};

static void check_cell(const struct table *table, const struct dr_case *c)
{
    static struct dr_result results[DR_RANKS];
    struct dr_want forward[DR_UNITS], backward[DR_UNITS];
    size_t forwards = 0, backwards = 0;
    dr_run(c, results);
    dr_check_reference(c, results);
    table->want(c, forward, &forwards, backward, &backwards);
    dr_check_sequence(c, results, forward, forwards, backward, backwards);
    for (int r = 0; r < dr_ranks(c); r++) {
        if ((c->empty >> (r / c->etp) & 1) != 0) {
            assert_int_equal(results[r].plan.received, 0);
        }
    }
}

static void check_table(const struct table *table)
{
    for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
        uint32_t set[8], all = (1u << (layouts[l].etp * layouts[l].ep)) - 1;
        const uint32_t mutes[] = {0, 1, all & ~1u}; /* sources none of whose choices is made: none, one, all but one */
        size_t n = empties(layouts[l].ep, set);
        for (size_t i = 0; i < n; i++) {
            for (int travel = 0; travel < 2; travel++) {
                struct dr_case c = {.kind = table->kind,
                                    .etp = layouts[l].etp,
                                    .ep = layouts[l].ep,
                                    .empty = set[i],
                                    .travel = travel != 0,
                                    .masked = i % 2 == 1 ? DR_ALL : 0,
                                    .mute = mutes[(i + (size_t)travel) % 3],
                                    .tokens = table->different_tokens ? (enum dr_tokens)((i + (size_t)travel) % 3)
                                                                      : DR_EQUAL};
                check_cell(table, &c);
            }
        }
    }
}

static void test_sequences_and_results_whichever_ranks_are_empty(void **state)
{
    check_table(*state);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(
            test_sequences_and_results_whichever_ranks_are_empty, (void *)(uintptr_t)&tables[i])};
        if (argc < 2 || strcmp(argv[1], moe_dispatcher_name(tables[i].kind)) == 0) {
            if (cmocka_run_group_tests_name(moe_dispatcher_name(tables[i].kind), tests, NULL, NULL) != 0) {
                return 1;
            }
        }
    }
    return 0;
}
