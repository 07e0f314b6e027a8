/*
 * fuzz_control.c: arbitrary bytes as a control page, and as a list of changes to one.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/control.h"
#include "trace/err.h"

#include <string.h>

static void check_bytes(const uint8_t *data, size_t bytes)
{
    static struct roll_control page;
    if (bytes > sizeof(page)) {
        bytes = sizeof(page);
    }
    memset(&page, 0, sizeof(page));
    memcpy(&page, data, bytes);
    if (roll_control_check(&page, bytes) == ROLL_OK) {
        PROMISE(bytes == sizeof(page));
        for (uint32_t layer = 0; layer < 300; layer += 7) {
            roll_control_mask(&page, layer, layer, 0);
        }
    }
}

static void apply_changes(const uint8_t *data, size_t bytes)
{
    static struct roll_control page;
    memset(&page, 0, sizeof(page));
    memcpy(page.magic, ROLL_CONTROL_MAGIC, 8);
    page.version = ROLL_CONTROL_VERSION;
    page.oldest = ROLL_CONTROL_VERSION;
    page.bytes = ROLL_CONTROL_BYTES;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        /* Small numbers, so that levels, layers and keys meet again. */
        struct roll_control_change change = {.level = data[0] % 4,
                                             .action = data[1] % 5,
                                             .mask = data[2] % 8,
                                             .layer = (uint32_t)data[3] + data[4],
                                             .comm_key = data[5] % 64};
        uint64_t before = atomic_load(&page.generation);
        int err = roll_control_apply(&page, &change);
        PROMISE(atomic_load(&page.generation) == before + (err == ROLL_OK));
        PROMISE(err == ROLL_OK || err == ROLL_E_ARG || err == ROLL_E_LIMIT);
        PROMISE(roll_control_check(&page, sizeof(page)) == ROLL_OK);
        uint32_t layer = change.level == 2 ? change.layer : UINT32_MAX;
        uint64_t key = change.level == 1 ? change.comm_key : 0;
        uint32_t mask = roll_control_mask(&page, key, layer, 0);
        PROMISE(err != ROLL_OK || change.action != 1 || (mask & change.mask) == change.mask);
        PROMISE(err != ROLL_OK || change.action != 2 || (mask & change.mask) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    check_bytes(data, bytes);
    apply_changes(data, bytes);
    return 0;
}
