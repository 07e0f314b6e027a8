/*
 * fuzz_digest.c: arbitrary bytes as a digest, into a level, and from there as bytes into the root: nothing grows beyond
 * its bound, and what a level passes on is always well formed.
 *
 * The tables of what was told first are small: one input fills them, so that what is new takes the place of what is
 * old, and a table of the usual size would be most of the time that an input takes.
 */
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/sum.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define COMMS_MOST 64u
#define LIKES      64u
#define SHARES     8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roll_sum_config config = {.stand_ns = 250000000, .most = COMMS_MOST, .likes = LIKES, .shares = SHARES};
    roll_sum_t *node = roll_sum_new(&config);
    config.is_root = true;
    roll_sum_t *root = roll_sum_new(&config);
    struct roll_digest d = {0}, up = {0}, came = {0};
    uint64_t now = 0;
    /* The first byte of each piece is the child, the second its length in units of 8 bytes. */
    while (node && root && size > 2) {
        size_t n = (size_t)data[1] * 8;
        n = n < size - 2 ? n : size - 2;
        now += 60000000;
        roll_digest_clear(&d);
        if (roll_digest_decode(data + 2, n, &d) == 0) {
            (void)roll_sum_take(node, data[0] % 4u, &d, now);
        }
        roll_digest_clear(&up);
        roll_sum_cut(node, now, &up);
        struct roll_digest_cursor cursor = {0};
        unsigned char bytes[4096];
        for (size_t used; (used = roll_digest_encode(&up, &cursor, bytes, sizeof(bytes))) != 0;) {
            roll_digest_clear(&came);
            if (roll_digest_decode(bytes, used, &came) != 0) {
                abort();
            }
            (void)roll_sum_take(root, 0, &came, now);
        }
        if (data[0] == 255) {
            roll_sum_again(node);
        }
        roll_digest_clear(&up);
        roll_sum_cut(root, now, &up);
        data += 2 + n;
        size -= 2 + n;
    }
    struct roll_sum_figures f = {0};
    if (root) {
        roll_sum_figures(root, &f);
    }
    if (f.comms > COMMS_MOST) {
        abort();
    }
    roll_digest_fini(&d);
    roll_digest_fini(&up);
    roll_digest_fini(&came);
    roll_sum_destroy(&node);
    roll_sum_destroy(&root);
    return 0;
}
