/*
 * scenes.h: pieces of programs that several tests of the engine share, beside the calls themselves (sim.h).
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_SCENES_H
#define ROLL_TESTS_DAEMON_ENGINE_SCENES_H

#include "moe_core/include/moe/observe.h"
#include "tests/daemon/engine/sim.h"

/* A report of moe_core. */
struct roll_record *scene_moe(struct sim *sim, uint32_t rank, uint32_t comm, enum roll_op op, uint16_t layer,
                              uint8_t phase);
/* The rank reports a number of layer 2 that all members must have alike. */
void scene_uniform(struct sim *sim, uint32_t rank, uint32_t comm, enum moe_uniform what, uint64_t count);
/* The rank reports the splits of layer 1: an all-to-all of a buffer of so many rows, `each` to every rank. Ranks with
 * an odd number recompute one row more for rank 0. */
void scene_splits(struct sim *sim, uint32_t rank, uint32_t ep, uint32_t buffer, uint32_t ranks, uint32_t each,
                  uint8_t phase, uint16_t microbatch);
/* The rank reports a fact about a tensor of layer 3. */
void scene_tensor(struct sim *sim, uint32_t rank, uint32_t comm, enum moe_tensor what, enum moe_tensor_fact fact,
                  uint64_t count, uint32_t count2);
uint64_t scene_bits(double value);
uint32_t scene_bits_float(float value);

/* How the engine hears of a refused call: refused when first read; as entered, then refused. */
enum news { AT_ONCE, LATER, NEWS };
#define SCENE_BAD 4 /* ncclInvalidArgument */

/*
 * The findings are `what` of `rank` (SCENE_NOBODY: of nobody) or none (NULL), and their texts have `said` and lack
 * `unsaid` (NULL: anything), in every order in which records may come. Fails the test otherwise.
 */
void scene_tells(struct sim *sim, const char *what, uint32_t rank, const char *said, const char *unsaid);

/* An AllReduce that NCCL refuses gives its number back. */
void scene_refused(struct sim *sim, uint32_t rank, uint32_t comm, uint64_t count, enum news news);

/* Only so many of the `size` members of a communicator, the first ones, have entered its creation, and sit there.
 * Returns its number. */
uint32_t scene_creation(struct sim *sim, const uint32_t *ranks, uint32_t joined, uint32_t size);

/* Every rank makes `n` calls; then each host waits, and comes back. */
void scene_calls(struct sim *sim, uint32_t comm, uint32_t n);
/* Every rank makes `n` calls, and its host comes back from a wait behind each: how far it has got is known. */
void scene_waited_calls(struct sim *sim, uint32_t comm, uint32_t n);
/* Each host waits for its stream, and comes back. */
void scene_sync_all(struct sim *sim);
/* Every rank makes one more call, and its host waits for that and does not come back. */
void scene_all_stuck(struct sim *sim, uint32_t comm);
/* An all-to-all-v as PyTorch makes it: every message, empty ones too. The rank `starved` has no tokens and gets none.
 * The rank `omit` leaves its empty messages out. SCENE_NOBODY: no such rank. */
#define SCENE_NOBODY UINT32_MAX
void scene_exchange(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t starved, uint32_t omit);
/* sim_expect when so much time passes behind the last event. */
void scene_expect_after(struct sim *sim, uint64_t seconds, const char *findings);
/* Fails where this part is in nothing that is said, notes included. */
void scene_expect_text(const struct sim *sim, const char *part);
/* Three ranks, the last of which does not come; *w: their communicator. Returns owned. */
struct sim *scene_two_wait(uint32_t *w);

#endif
