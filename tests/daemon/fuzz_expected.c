/*
 * fuzz_expected.c: arbitrary text as the file of `rollcall rehearse --save`. What is taken is compared with itself,
 * which goes through all of it, and differs in nothing.
 */
#include "daemon/expect/expect.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roll_expected *x = NULL;
    char why[256];
    if (roll_expected_parse((const char *)data, size, &x, why, sizeof(why)) == 0) {
        json_t *difference = roll_expected_differ(x, x);
        if (json_integer_value(json_object_get(difference, "count")) != 0) {
            abort();
        }
        json_decref(difference);
    }
    roll_expected_destroy(&x);
    return 0;
}
