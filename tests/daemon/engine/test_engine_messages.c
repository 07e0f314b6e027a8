/*
 * test_engine_messages.c: messages that are missing, empty, one too many, or of another size: who is named, and who is
 * not.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES  (sizeof(sizes) / sizeof(sizes[0]))
#define NOBODY UINT32_MAX
#define AR     ROLL_OP_ALLREDUCE
#define BAD    4 /* ncclInvalidArgument */

/*
 * An all-to-all-v as PyTorch makes it: every message, empty ones too. `starved` has no tokens and gets none. omit: rank
 * that leaves its empty messages out.
 */
static void exchange(struct sim *sim, uint32_t r, uint32_t comm, uint32_t starved, uint32_t omit)
{
    sim_group(sim, r);
    for (uint32_t p = 0; p < sim->ranks; p++) {
        bool empty = r == starved || p == starved;
        if (!empty || r != omit) {
            sim_send(sim, r, comm, p, empty ? 0 : 32 + r * 4 + p);
            sim_recv(sim, r, comm, p, empty ? 0 : 32 + p * 4 + r);
        }
    }
    sim_group_end(sim, r);
    sim_return(sim, r);
}

/* A step: forward (dispatch and combine), backward (the same), then a sum over all. `stop`: number of the exchange
 * before which rank `odd` stops. */
static void steps(struct sim *sim, uint32_t ep, uint32_t dp, uint32_t starved, uint32_t n)
{
    for (uint32_t step = 0; step < n; step++) {
        for (uint32_t r = 0; r < sim->ranks; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                exchange(sim, r, ep, starved, NOBODY);
            }
            sim_call(sim, r, dp, AR, 512);
            sim_sync(sim, r);
        }
    }
}

enum then { COLLECTIVE, ELSEWHERE, ENDED, GONE, THENS };

/* The rank skips exchange number `at` of a step, in which all its messages are empty, and then waits or ends. */
static void skip_empty(uint32_t size, uint32_t at, enum then then, bool ahead)
{
    struct sim *sim = sim_new(size);
    uint32_t ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size), odd = size - 1;
    steps(sim, ep, dp, odd, 2);
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t i = 0; i < at + (r != odd); i++) {
            exchange(sim, r, ep, odd, NOBODY);
        }
        if (r != odd && ahead) { /* their hosts do not wait */
            sim_call(sim, r, dp, AR, 512);
        }
        if (r != odd) {
            sim_stuck(sim, r);
        } else if (then == COLLECTIVE || then == ELSEWHERE) {
            sim_call(sim, r, then == COLLECTIVE ? ep : dp, AR, 512);
            sim_stuck(sim, r);
        } else if (then == ENDED) {
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        } else {
            sim_record(sim, r, ROLL_OP_COMM_DESTROY, ep);
        }
    }
    char want[128];
    if (size > 2) {
        snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, false, true);
        bool waits = then == COLLECTIVE || then == ELSEWHERE; /* then it may only be late */
        snprintf(want, sizeof(want), "Rank %u %s an exchange", odd, waits ? "has not made" : "left out");
        assert_non_null(strstr(text, want));
        assert_non_null(strstr(text, "All of them are empty"));
        assert_null(strstr(text, "which side is wrong"));
        free(text);
    } else if (then == ELSEWHERE) {
        sim_expect(sim, ahead ? "proven p2p-unmatched -" : "proven circular-wait -");
    } else {
        sim_expect(sim, "proven p2p-unmatched -"); /* one against one */
    }
    sim_destroy(&sim);
}

static void test_a_rank_skips_an_exchange_of_empty_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t at = 0; at < 4; at++) {
            for (enum then then = 0; then < THENS; then++) {
                bool same_place = sizes[i] == 2 && then == ELSEWHERE;
                skip_empty(sizes[i], at, then, false);
                if (!same_place) {
                    skip_empty(sizes[i], at, then, true);
                }
            }
        }
    }
}

static void test_empty_messages_on_both_sides_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), dp = sim_comm(sim, "dp", NULL, sizes[i]);
        for (uint32_t starved = 0; starved < sizes[i]; starved++) {
            steps(sim, ep, dp, starved, 2);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* It goes on to the next exchange, which has rows: each of its messages meets its peers' empty one. */
static void test_a_skip_that_shows_in_the_next_exchange(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t ahead = 0; ahead < 2; ahead++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                exchange(sim, r, ep, NOBODY, NOBODY);
                if (r != odd) {
                    exchange(sim, r, ep, odd, NOBODY);
                }
                if (r == odd || ahead) {
                    exchange(sim, r, ep, NOBODY, NOBODY);
                }
                sim_stuck(sim, r);
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, want);
            char *text = sim_run(sim, 0, false, true);
            assert_non_null(strstr(text, ahead ? "it has left out an exchange, for its messages here are those of its "
                                                 "peers' next one"
                                               : "it has left out empty messages or a whole exchange of them"));
            free(text);
            sim_destroy(&sim);
        }
    }
}

/* One rank makes an exchange that nobody else makes. */
static void test_an_exchange_too_many(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t empty = 0; empty < 2; empty++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size / 2;
            for (uint32_t r = 0; r < size; r++) {
                exchange(sim, r, ep, NOBODY, NOBODY);
                if (r == odd) {
                    exchange(sim, r, ep, empty ? odd : NOBODY, NOBODY);
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* A rank leaves out what is empty; its peers do not. It takes part in the exchange otherwise. */
static void test_empty_messages_left_out_on_one_side(void **state)
{
    (void)state;
    for (size_t i = 2; i < SIZES; i++) {
        for (uint32_t many = 0; many < 2; many++) { /* of several peers, or of one */
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                sim_group(sim, r);
                for (uint32_t p = 0; p < size; p++) {
                    uint32_t least = r < p ? r : p, most = r < p ? p : r;
                    bool empty = most == odd && least < (many ? 2u : 1u);
                    if (empty && r == odd) {
                        continue;
                    }
                    sim_send(sim, r, ep, p, empty ? 0 : 64);
                    sim_recv(sim, r, ep, p, empty ? 0 : 64);
                }
                sim_group_end(sim, r);
                sim_return(sim, r);
                if (r == odd || (r >= 2 || (!many && r == 1))) {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                } else {
                    sim_stuck(sim, r);
                }
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, many ? want : "proven alltoallv-mismatch -");
            sim_destroy(&sim);
        }
    }
}

static void test_nothing_against_something_differs_in_bytes(void **state)
{
    (void)state;
    for (unsigned side = 0; side < 2; side++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        sim_send(sim, 0, w, 1, side ? 64 : 0);
        sim_recv(sim, 1, w, 0, side ? 0 : 64);
        sim_stuck(sim, 0);
        sim_stuck(sim, 1);
        sim_expect(sim, "proven p2p-bytes -");
        sim_destroy(&sim);
    }
}

/* calls that are refused */

enum news { AT_ONCE, LATER, LATE, NEWS };

/* A send that NCCL refuses: nothing is enqueued, the number is free again. How the engine hears of it: at once, as
 * entered first, that a while before. */
static void refused_send(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t to, uint64_t count, enum news news,
                         uint64_t ns)
{
    struct roll_record *rec = sim_send(sim, rank, comm, to, count);
    sim->rank[rank].p2p[comm][to * 2]--;
    rec->result = BAD;
    if (news != AT_ONCE) {
        rec->result = 0;
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        struct roll_record again = *rec;
        if (ns > 0) {
            sim_pass(sim, rank, ns);
        }
        struct roll_record *end = sim_record(sim, rank, ROLL_OP_SEND, comm);
        sim->rank[rank].ticket--;
        *end = again;
        end->seal = roll_seal(roll_seal_ticket(again.seal), ROLL_STATE_RETURNED);
        end->result = BAD;
    }
}

static void test_a_refused_message_that_is_made_again_is_no_fault(void **state)
{
    (void)state;
    const uint64_t pause[] = {0, S_ / 1000, S_ / 50, S_ / 5, S_ * 2 / 5};
    for (size_t i = 0; i < SIZES; i++) {
        for (enum news news = 0; news < NEWS; news++) {
            for (size_t k = 0; k < (news == LATE ? 5 : 1); k++) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t w = sim_world(sim), size = sizes[i];
                for (uint32_t r = 0; r < size; r++) {
                    for (int n = 0; n < 2; n++) { /* even ranks send first */
                        if (r % 2 == 1) {
                            sim_recv(sim, r, w, (r + size - 1) % size, 200);
                        } else {
                            refused_send(sim, r, w, (r + 1) % size, 100, news, pause[k] * 2 / size);
                            refused_send(sim, r, w, (r + 1) % size, 0, news, pause[k] * 2 / size);
                        }
                        sim_send(sim, r, w, (r + 1) % size, 200);
                        if (r % 2 == 0) {
                            sim_recv(sim, r, w, (r + size - 1) % size, 200);
                        }
                    }
                    sim_sync(sim, r);
                }
                sim_expect(sim, "");
                sim_destroy(&sim);
            }
        }
    }
}

/* The retry is read before the news that the first attempt was refused. */
static void test_news_that_come_after_the_retry(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), size = sizes[i];
        for (uint32_t r = 1; r < size; r++) {
            sim_recv(sim, r, w, 0, 200);
            sim_recv(sim, r, w, 0, 300);
            sim_sync(sim, r);
        }
        for (uint32_t p = 1; p < size; p++) {
            struct roll_record *rec = sim_send(sim, 0, w, p, 100);
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            struct roll_record first = *rec;
            sim->rank[0].p2p[w][p * 2]--;
            sim_pass(sim, 0, S_ / 10);
            sim_send(sim, 0, w, p, 200);
            struct roll_record *end = sim_record(sim, 0, ROLL_OP_SEND, w);
            sim->rank[0].ticket--;
            *end = first;
            end->seal = roll_seal(roll_seal_ticket(first.seal), ROLL_STATE_RETURNED);
            end->result = BAD;
            sim_send(sim, 0, w, p, 300);
        }
        sim_sync(sim, 0);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* The same of collectives: the news of the refusal is late by as much. */
static void test_a_refused_collective_whose_news_is_late(void **state)
{
    (void)state;
    const uint64_t pause[] = {0, S_ / 1000, S_ / 50, S_ / 5, S_ * 2 / 5};
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < 5; k++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                sim_call(sim, r, w, AR, 64);
                if (r == size - 1) {
                    struct roll_record *rec = sim_call(sim, r, w, AR, 100);
                    sim->rank[r].seq[w]--;
                    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
                    struct roll_record again = *rec;
                    sim_pass(sim, r, pause[k]);
                    struct roll_record *end = sim_record(sim, r, AR, w);
                    sim->rank[r].ticket--;
                    *end = again;
                    end->seal = roll_seal(roll_seal_ticket(again.seal), ROLL_STATE_RETURNED);
                    end->result = BAD;
                }
                sim_call(sim, r, w, AR, 200);
                sim_call(sim, r, w, AR, 300);
                sim_sync(sim, r);
            }
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* A group that ends in vain after a while, and is made again. */
static void test_a_group_of_messages_that_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t entered = 0; entered < 3; entered++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                if (r == 0) {
                    sim_group(sim, 0);
                    for (uint32_t p = 0; p < size; p++) {
                        sim_send(sim, 0, w, p, 999);
                        sim_recv(sim, 0, w, p, 999);
                    }
                    if (entered == 2) {
                        sim_pass(sim, 0, S_ * 2 / 5);
                    }
                    sim_group_end(sim, 0);
                    struct sim_rank *rank = &sim->rank[0];
                    struct roll_record *end = &rank->event[rank->events - 1].rec;
                    end->result = BAD;
                    if (entered == 1) {
                        struct roll_record whole = *end;
                        end->result = 0;
                        end->seal = roll_seal(roll_seal_ticket(end->seal), ROLL_STATE_ENTERED);
                        sim_pass(sim, 0, S_ * 2 / 5);
                        sim_return(sim, 0);
                        rank->event[rank->events - 1].rec = whole;
                    }
                    for (uint32_t p = 0; p < size; p++) {
                        rank->p2p[w][p * 2]--;
                        rank->p2p[w][p * 2 + 1]--;
                    }
                }
                exchange(sim, r, w, NOBODY, NOBODY);
                sim_sync(sim, r);
            }
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* A real difference is proven as soon as both calls have returned, and suspected while one has not. */
static void test_a_difference_in_a_call_that_does_not_return_is_suspected(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        struct roll_record *rec = sim_send(sim, 0, w, 1, 64);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        if (returns) {
            sim_return(sim, 0);
        }
        sim_recv(sim, 1, w, 0, 32);
        sim_stuck(sim, 1);
        sim_expect(sim, returns ? "proven p2p-bytes -" : "suspected p2p-bytes -");
        sim_destroy(&sim);
    }
}

/* circles of messages and collectives on one communicator */

static void ring(struct sim *sim, uint32_t w, uint32_t r)
{
    sim_group(sim, r);
    sim_send(sim, r, w, (r + 1) % sim->ranks, 256);
    sim_recv(sim, r, w, (r + sim->ranks - 1) % sim->ranks, 256);
    sim_group_end(sim, r);
    sim_return(sim, r);
}

/* What the last rank does with the collective before the exchange. */
enum fault { SKIPS, ZERO, SWAPS, HEALTHY, FAULTS };

static void before_exchange(uint32_t size, enum fault fault, bool all, bool ahead)
{
    struct sim *sim = sim_new(size);
    uint32_t w = sim_world(sim), odd = size - 1;
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t k = 0; k < 3; k++) {
            bool last = k == 2, wrong = last && r == odd;
            if (!wrong || fault == HEALTHY || fault == ZERO) {
                sim_call(sim, r, w, AR, wrong && fault == ZERO ? 0 : 512);
            }
            if (last && fault != HEALTHY && r != odd && !ahead) {
                break; /* its host waits there */
            }
            if (all) {
                exchange(sim, r, w, NOBODY, NOBODY);
            } else {
                ring(sim, w, r);
            }
            if (wrong && fault == SWAPS) {
                sim_call(sim, r, w, AR, 512);
            }
        }
        if (fault == HEALTHY) {
            sim_sync(sim, r);
        } else {
            sim_stuck(sim, r);
        }
    }
    char want[128] = "";
    if (fault == ZERO) {
        snprintf(want, sizeof(want), "proven zero-count %u", odd);
    } else if (fault != HEALTHY && size > 2) {
        snprintf(want, sizeof(want), fault == SKIPS ? "suspected call-skipped %u" : "proven calls-reordered %u", odd);
    }
    if (size == 2 && (fault == SKIPS || fault == SWAPS)) { /* one against one: nobody is named by the votes */
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, false);
            assert_true(strlen(got) > 0 && strchr(got, ';') == NULL);
            assert_null(strstr(got, "alltoallv"));
            free(got);
        }
    } else {
        sim_expect(sim, want);
    }
    sim_destroy(&sim);
}

static void test_a_collective_before_an_exchange(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum fault fault = 0; fault < FAULTS; fault++) {
            for (int way = 0; way < 4; way++) {
                before_exchange(sizes[i], fault, (way & 1) != 0, (way & 2) != 0);
            }
        }
    }
}

/* The partner of one message waits in a collective: it may have left the message out as well as the other the
 * collective. */
static void test_one_message_against_a_collective_names_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            if (r == last) {
                sim_recv(sim, r, w, 0, 64);
            } else {
                sim_call(sim, r, w, AR, 128);
            }
            sim_stuck(sim, r);
        }
        sim_expect(sim, "proven p2p-unmatched -");
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "The calls alone do not say which side is wrong"));
        assert_null(strstr(text, "never"));
        free(text);
        sim_destroy(&sim);
    }
}

/*
 * A message stands on its stream before a collective that everybody has made, and its partner waits in that collective
 * before it sends. Of the others nobody has such a message, so nobody can say which comes first. Healthy: the partner
 * has sent before it waits.
 */
static void test_a_message_before_a_collective_that_all_have_made_names_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), talk = sim_comm(sim, "talk", NULL, sizes[i]), last = sizes[i] - 1;
            sim_all(sim, w, AR, 64);
            sim_recv(sim, 0, talk, last, 64);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                if (r == last && !sick) {
                    sim_send(sim, r, talk, 0, 64);
                }
                sim_call(sim, r, w, AR, 128);
                if (sick) {
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                }
            }
            sim_expect(sim, sick ? "proven circular-wait -" : "");
            sim_destroy(&sim);
        }
    }
}

/* The partner has ended, and others wait for it too: it is named. With nobody else to say so it is a tie. */
static void test_a_partner_that_ended_early(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 4; way++) {
            bool destroys = (way & 1) != 0, others = (way & 2) != 0;
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], last = size - 1;
            sim_all(sim, w, AR, 64);
            for (uint32_t r = 0; r < size; r++) {
                if (r == last && destroys) {
                    sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                } else if (r == last) {
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                } else if (r == 0) {
                    sim_send(sim, r, w, last, 64);
                    sim_stuck(sim, r);
                } else if (others) {
                    sim_recv(sim, r, w, last, 64);
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
            }
            char want[64];
            snprintf(want, sizeof(want), "proven p2p-unmatched %u", last);
            sim_expect(sim, others && size > 2 ? want : "proven p2p-unmatched -");
            sim_destroy(&sim);
        }
    }
}

/* collectives that NCCL makes of messages */

/* The last rank exchanges before the AlltoAll, the others after it; all hosts come back. */
static void test_messages_that_meet_an_alltoall(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 8; way++) {
            bool sick = (way & 1) != 0, waits = (way & 2) != 0, all = (way & 4) != 0;
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                for (uint32_t k = 0; k < 3; k++) {
                    bool first = sick && k == 1 && r == odd;
                    for (int part = 0; part < 2; part++) {
                        if (part == (first ? 1 : 0)) {
                            sim_call(sim, r, w, ROLL_OP_ALLTOALL, 64);
                        } else if (all) {
                            exchange(sim, r, w, NOBODY, NOBODY);
                        } else if (r == odd) {
                            sim_recv(sim, r, w, 0, 64);
                        } else if (r == 0) {
                            sim_send(sim, r, w, odd, 64);
                        }
                        if (waits) {
                            sim_sync(sim, r);
                        }
                    }
                }
                sim_sync(sim, r);
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            char want[64];
            snprintf(want, sizeof(want), "proven op-mismatch %u", odd);
            sim_expect(sim, !sick ? "" : all && size > 2 ? want : "proven op-mismatch -");
            char *text = sim_run(sim, 0, false, true);
            assert_true(!sick || strstr(text, "the data goes to the wrong call in silence") != NULL);
            free(text);
            sim_destroy(&sim);
        }
    }
}

static void test_a_collective_of_messages_made_by_hand_is_no_fault(void **state)
{
    (void)state;
    const enum roll_op ops[] = {ROLL_OP_ALLTOALL, ROLL_OP_GATHER, ROLL_OP_SCATTER};
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 12; way++) {
            enum roll_op op = ops[way / 4];
            bool root = (way & 1) != 0, more = (way & 2) != 0; /* more: collectives follow */
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], odd = root ? 0 : size - 1;
            for (uint32_t r = 0; r < size; r++) {
                sim_call(sim, r, w, AR, 32);
                if (r == odd) {
                    sim_group(sim, r);
                    for (uint32_t p = 0; p < size; p++) {
                        if (p != r && (op == ROLL_OP_ALLTOALL || (op == ROLL_OP_GATHER ? p == 0 : root))) {
                            sim_send(sim, r, w, p, 64);
                        }
                        if (p != r && (op == ROLL_OP_ALLTOALL || (op == ROLL_OP_GATHER ? root : p == 0))) {
                            sim_recv(sim, r, w, p, 64);
                        }
                    }
                    sim_group_end(sim, r);
                } else {
                    struct roll_record *rec = sim_call(sim, r, w, op, 64);
                    rec->peer = op == ROLL_OP_ALLTOALL ? ROLL_PEER_NONE : 0;
                }
                sim_sync(sim, r);
                for (int k = 0; more && k < 5; k++) {
                    sim_call(sim, r, w, AR, 512);
                    sim_call(sim, r, w, ROLL_OP_ALLGATHER, 77);
                }
                sim_sync(sim, r);
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            sim_expect(sim, "");
            if (more) {
                char *got = sim_run(sim, 0, true, false);
                assert_non_null(strstr(got, "note op-mismatch"));
                free(got);
            }
            sim_destroy(&sim);
        }
    }
}

/* A member waits for the root of its Gather alone, which takes what others have to send as it comes: no circle. */
static void test_a_member_of_a_gather_waits_for_its_root_alone(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                if (r == 1) {
                    sim_send(sim, r, w, 2, 64);
                }
                if (r != 0 || !sick) {
                    sim_call(sim, r, w, ROLL_OP_GATHER, 64)->peer = 0;
                }
                if (r == 2) {
                    sim_recv(sim, r, w, 1, 64);
                }
            }
            if (sick) {
                sim_proc(sim, 0, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            sim_expect(sim, sick ? "proven rank-finished 0" : "");
            sim_destroy(&sim);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_skips_an_exchange_of_empty_messages),
        cmocka_unit_test(test_empty_messages_on_both_sides_are_healthy),
        cmocka_unit_test(test_a_skip_that_shows_in_the_next_exchange),
        cmocka_unit_test(test_an_exchange_too_many),
        cmocka_unit_test(test_empty_messages_left_out_on_one_side),
        cmocka_unit_test(test_nothing_against_something_differs_in_bytes),
        cmocka_unit_test(test_a_refused_message_that_is_made_again_is_no_fault),
        cmocka_unit_test(test_news_that_come_after_the_retry),
        cmocka_unit_test(test_a_refused_collective_whose_news_is_late),
        cmocka_unit_test(test_a_group_of_messages_that_is_refused),
        cmocka_unit_test(test_a_difference_in_a_call_that_does_not_return_is_suspected),
        cmocka_unit_test(test_a_collective_before_an_exchange),
        cmocka_unit_test(test_one_message_against_a_collective_names_nobody),
        cmocka_unit_test(test_a_message_before_a_collective_that_all_have_made_names_nobody),
        cmocka_unit_test(test_a_partner_that_ended_early),
        cmocka_unit_test(test_messages_that_meet_an_alltoall),
        cmocka_unit_test(test_a_collective_of_messages_made_by_hand_is_no_fault),
        cmocka_unit_test(test_a_member_of_a_gather_waits_for_its_root_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
