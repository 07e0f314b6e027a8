/* test_abi.c: our nccl.h against the vendor's: sizes, offsets, values; the prototypes were compared when abi_vendor.c
 * was compiled.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct abi_row {
    const char *name;
    long long value;
};
size_t abi_ours(struct abi_row *out);
size_t abi_vendor(struct abi_row *out);

static void our_header_is_the_vendors_abi(void **state)
{
    static struct abi_row ours[256], vendors[256];
    size_t n = abi_ours(ours), bad = 0;

    (void)state;
    assert_int_equal(n, abi_vendor(vendors));
    assert_true(n > 80);
    for (size_t i = 0; i < n; i++) {
        /* Names can differ where they expand macros; places do not. */
        if (ours[i].value != vendors[i].value) {
            print_error("%s: ours %lld, the vendor's %lld\n", vendors[i].name, ours[i].value, vendors[i].value);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(our_header_is_the_vendors_abi)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
