/*
 * test_auth.c: HTTP Digest: the example of RFC 7616, headers that are none, and nonces that are ours.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/http/auth_digest.h"

#include <stdio.h>
#include <string.h>

/* RFC 7616, 3.9.1, the answer by SHA-256. */
#define EXAMPLE                                                                                                        \
    "Digest username=\"Mufasa\", realm=\"http-auth@example.org\", uri=\"/dir/index.html\", algorithm=SHA-256, "        \
    "nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", nc=00000001, "                                            \
    "cnonce=\"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ\", qop=auth, "                                              \
    "response=\"753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1\", "                                  \
    "opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\""

static void the_example_of_the_standard_is_let_in(void **state)
{
    struct roll_auth auth;
    (void)state;
    assert_true(roll_auth_read(EXAMPLE, &auth));
    assert_string_equal(auth.username, "Mufasa");
    assert_string_equal(auth.uri, "/dir/index.html");
    assert_true(roll_auth_matches(&auth, "GET", "Circle of Life"));
    assert_false(roll_auth_matches(&auth, "GET", "Circle of Lif"));
    assert_false(roll_auth_matches(&auth, "POST", "Circle of Life"));
    auth.uri[1] = 'x';
    assert_false(roll_auth_matches(&auth, "GET", "Circle of Life"));
}

static void what_is_no_header_is_refused(void **state)
{
    (void)state;
    struct roll_auth auth;
    static const char *const headers[] = {
        "",
        "Digest",
        "Digest ",
        "Basic dmlld2VyOnB3",
        "Digest username",
        "Digest username=\"viewer",
        "Digest username=\"viewer\\",
        "Digest =\"viewer\"",
        "Digest username=\"viewer\"",
        EXAMPLE ", username=\"operator\"",
        EXAMPLE ", x",
    };
    for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
        assert_false(roll_auth_read(headers[i], &auth));
    }
    /* Each cut of one that is good is read within its bounds, and lacks something; the last fields are not needed. */
    for (size_t n = 0; n < strlen(EXAMPLE); n++) {
        char cut[sizeof(EXAMPLE)];
        memcpy(cut, EXAMPLE, n);
        cut[n] = '\0';
        bool read = roll_auth_read(cut, &auth);
        assert_true(!read || strstr(cut, "response=\"") != NULL);
    }
    char large[2048];
    snprintf(large, sizeof(large), "Digest username=\"%01024d\"", 0);
    assert_false(roll_auth_read(large, &auth));
}

static void a_nonce_is_ours_for_a_while(void **state)
{
    (void)state;
    struct roll_auth_nonces ours, others;
    char nonce[ROLL_AUTH_NONCE_BYTES];
    assert_int_equal(roll_auth_init(&ours), 0);
    assert_int_equal(roll_auth_init(&others), 0);
    roll_auth_nonce(&ours, 1000, nonce);
    assert_true(roll_auth_nonce_is_ours(&ours, 1000, nonce));
    assert_true(roll_auth_nonce_is_ours(&ours, 1000 + ROLL_AUTH_NONCE_S, nonce));
    assert_false(roll_auth_nonce_is_ours(&ours, 1001 + ROLL_AUTH_NONCE_S, nonce));
    assert_false(roll_auth_nonce_is_ours(&ours, 999, nonce));
    assert_false(roll_auth_nonce_is_ours(&others, 1000, nonce));
    nonce[15] ^= 1; /* another time */
    assert_false(roll_auth_nonce_is_ours(&ours, 1001, nonce));
    assert_false(roll_auth_nonce_is_ours(&ours, 1000, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_standard_is_let_in),
        cmocka_unit_test(what_is_no_header_is_refused),
        cmocka_unit_test(a_nonce_is_ours_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
