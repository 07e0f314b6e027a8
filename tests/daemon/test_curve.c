/*
 * test_curve.c: key files: made once, secret ones kept secret, the list of clients obeyed.
 */
#include "daemon/wire/curve.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], why[512];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/rollcall-keys-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(roll_curve_keygen(dir, why, sizeof(why)), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", dir);
    return system(command);
}

static void in_dir(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", dir, name);
}

static void test_keys_load_for_root_and_client(void **state)
{
    (void)state;
    struct roll_curve_keys root, client;
    assert_int_equal(roll_curve_load(dir, true, &root, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_load(dir, false, &client, why, sizeof(why)), 0);
    assert_string_equal(root.public_key, client.server_key);
    assert_string_not_equal(root.secret_key, client.secret_key);
    struct stat st;
    char path[128];
    in_dir(path, "server.key");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_keys_are_never_overwritten(void **state)
{
    (void)state;
    struct roll_curve_keys before, after;
    assert_int_equal(roll_curve_load(dir, true, &before, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen(dir, why, sizeof(why)), ROLL_E_BUSY);
    assert_int_equal(roll_curve_load(dir, true, &after, why, sizeof(why)), 0);
    assert_string_equal(before.secret_key, after.secret_key);
}

static void test_a_secret_that_others_can_read_is_refused(void **state)
{
    (void)state;
    struct roll_curve_keys keys;
    char path[128];
    in_dir(path, "client.key");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(roll_curve_load(dir, false, &keys, why, sizeof(why)), ROLL_E_DENIED);
    assert_non_null(strstr(why, "chmod 600"));
}

static void test_damaged_and_missing_keys_are_named(void **state)
{
    (void)state;
    struct roll_curve_keys keys;
    char path[128];
    in_dir(path, "client.pub");
    FILE *f = fopen(path, "w");
    fputs("too short\n", f);
    fclose(f);
    assert_int_equal(roll_curve_load(dir, false, &keys, why, sizeof(why)), ROLL_E_CORRUPT);
    assert_non_null(strstr(why, "client.pub"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(roll_curve_load(dir, false, &keys, why, sizeof(why)), ROLL_E_NOTFOUND);
    assert_non_null(strstr(why, "keygen"));
}

static void test_only_listed_clients_are_allowed(void **state)
{
    (void)state;
    struct roll_curve_keys client, root;
    char path[128];
    assert_int_equal(roll_curve_load(dir, false, &client, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_load(dir, true, &root, why, sizeof(why)), 0);
    assert_true(roll_curve_allowed(dir, client.public_key));
    assert_false(roll_curve_allowed(dir, root.public_key));
    in_dir(path, "allowed/client.pub");
    assert_int_equal(unlink(path), 0);
    assert_false(roll_curve_allowed(dir, client.public_key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys_load_for_root_and_client, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keys_are_never_overwritten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_secret_that_others_can_read_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged_and_missing_keys_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_only_listed_clients_are_allowed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
