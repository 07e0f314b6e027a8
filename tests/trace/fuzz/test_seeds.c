/*
 * test_seeds.c: every fuzz target over its seeds and over damaged copies of them, without libFuzzer.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/fuzz/seeds.h"

#include <stdlib.h>
#include <string.h>

typedef int target_function(const uint8_t *data, size_t bytes);
extern target_function fuzz_ring, fuzz_def, fuzz_frame, fuzz_control, fuzz_compare, fuzz_rankset;

static uint64_t dice_state = 7;

static size_t dice(size_t sides)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(dice_state >> 33) % sides;
}

static void damage(uint8_t *bytes, size_t *n)
{
    for (size_t i = 1 + dice(4); i > 0 && *n > 0; i--) {
        static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
        switch (dice(4)) {
        case 0:
            bytes[dice(*n)] ^= (uint8_t)(1u << dice(8));
            break;
        case 1:
            bytes[dice(*n)] = edges[dice(sizeof(edges))];
            break;
        case 2:
            *n = dice(8) == 0 ? dice(*n + 1) : *n;
            break;
        default:
            bytes[dice(*n)] = (uint8_t)dice(256);
        }
    }
}

static void run_target(const char *name, target_function *target)
{
    static uint8_t seed[65536];
    static uint8_t copy[65536];
    size_t n = 1;
    unsigned seeds = 0;
    for (; (n = seed_make(name, seeds, seed)) > 0; seeds++) {
        target(seed, n);
        for (unsigned i = 0; i < 2000; i++) {
            size_t left = n;
            memcpy(copy, seed, n);
            damage(copy, &left);
            target(copy, left);
        }
    }
    assert_true(seeds >= 2);
    target(seed, 0);
}

#define TARGET(name)                                                                                                   \
    static void name##_survives_damaged_seeds(void **state)                                                            \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run_target(#name, fuzz_##name);                                                                                \
    }
TARGET(ring)
TARGET(def)
TARGET(frame)
TARGET(control)
TARGET(compare)
TARGET(rankset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_survives_damaged_seeds),    cmocka_unit_test(def_survives_damaged_seeds),
        cmocka_unit_test(frame_survives_damaged_seeds),   cmocka_unit_test(control_survives_damaged_seeds),
        cmocka_unit_test(compare_survives_damaged_seeds), cmocka_unit_test(rankset_survives_damaged_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
