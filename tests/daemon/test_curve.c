/*
 * test_curve.c: key files: made once, secret ones kept secret, the list of clients obeyed.
 */
#include "daemon/wire/curve.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* A disk that is full, as a file of so many bytes at most stands for it: nothing stays that a second try would find. */
static void test_keys_that_cannot_be_written_are_not_there(void **state)
{
    (void)state;
    static const char *const names[] = {"server.key",         "server.pub",      "client.key",     "client.pub",
                                        "allowed/client.pub", ".server.key.new", ".client.key.new"};
    char full[96], path[160];
    struct rlimit before, few;
    struct roll_curve_keys keys;
    snprintf(full, sizeof(full), "%s/full", dir);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    few = before;
    for (rlim_t bytes = 0; bytes < 30; bytes += 10) {
        few.rlim_cur = bytes;
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
        int err = roll_curve_keygen(full, why, sizeof(why));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        signal(SIGXFSZ, SIG_DFL);
        assert_int_equal(err, ROLL_E_IO);
        assert_non_null(strstr(why, "server.key"));
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            snprintf(path, sizeof(path), "%s/%s", full, names[i]);
            assert_int_not_equal(access(path, F_OK), 0);
        }
    }
    snprintf(path, sizeof(path), "%s/client.key", full); /* fails when the server's keys have been made */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(roll_curve_keygen(full, why, sizeof(why)), ROLL_E_BUSY);
    assert_int_equal(access(path, F_OK), 0); /* it was there before */
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/server.key", full);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(roll_curve_keygen(full, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_load(full, true, &keys, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_load(full, false, &keys, why, sizeof(why)), 0);
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
    struct roll_role role;
    char path[128];
    assert_int_equal(roll_curve_load(dir, false, &client, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_load(dir, true, &root, why, sizeof(why)), 0);
    assert_true(roll_curve_allowed(dir, client.public_key, &role));
    assert_int_equal(role.denied, 0); /* as the lists say that were made before there were roles */
    assert_false(roll_curve_allowed(dir, root.public_key, &role));
    in_dir(path, "allowed/client.pub");
    assert_int_equal(unlink(path), 0);
    assert_false(roll_curve_allowed(dir, client.public_key, &role));
}

static void test_a_client_has_the_roles_that_its_entry_names(void **state)
{
    (void)state;
    struct roll_curve_keys keys;
    struct roll_role role;
    char path[128];
    assert_int_equal(roll_curve_keygen_client(dir, "n1", "node", "n1", why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen_client(dir, "ops", "operator,node", NULL, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen_client(dir, "n1", "node", "n1", why, sizeof(why)), ROLL_E_BUSY);
    static const char *const bad[][2] = {{"../x", "node"}, {"", "node"}, {"allowed", "node"}, {"x", "king"}, {"x", ""}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(roll_curve_keygen_client(dir, bad[i][0], bad[i][1], NULL, why, sizeof(why)), ROLL_E_ARG);
    }
    in_dir(path, "n1");
    assert_int_equal(roll_curve_load(path, false, &keys, why, sizeof(why)), 0);
    assert_true(roll_curve_allowed(dir, keys.public_key, &role));
    assert_int_equal(role.denied, ROLL_DENY_ASK | ROLL_DENY_SWITCH);
    assert_string_equal(role.host, "n1");
    in_dir(path, "allowed/n1.pub");
    FILE *f = fopen(path, "a");
    fputs("right to rule\n", f);
    fclose(f);
    assert_false(roll_curve_allowed(dir, keys.public_key, &role)); /* what is not understood lets nobody in */
    in_dir(path, "ops");
    assert_int_equal(roll_curve_load(path, false, &keys, why, sizeof(why)), 0);
    assert_true(roll_curve_allowed(dir, keys.public_key, &role));
    assert_int_equal(role.denied, 0);
    roll_role_of_text("not a role", &role);
    assert_int_equal(role.denied, ROLL_DENY_ALL);
    roll_role_of_text(NULL, &role);
    assert_int_equal(role.denied, ROLL_DENY_ALL);
}

static void test_a_folder_that_others_can_write_is_refused(void **state)
{
    (void)state;
    struct roll_curve_keys keys;
    struct roll_role role;
    char path[128], link[128];
    assert_int_equal(roll_curve_load(dir, false, &keys, why, sizeof(why)), 0);
    in_dir(path, "allowed");
    assert_int_equal(chmod(path, 0777), 0);
    assert_false(roll_curve_allowed(dir, keys.public_key, &role));
    assert_int_equal(roll_curve_load(dir, true, &keys, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(chmod(dir, 0770), 0);
    assert_int_equal(roll_curve_load(dir, true, &keys, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(roll_curve_load(dir, false, &keys, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(roll_curve_keygen(dir, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(chmod(dir, 0700), 0);
    snprintf(link, sizeof(link), "%s.link", dir);
    assert_int_equal(symlink(dir, link), 0);
    assert_int_equal(roll_curve_load(link, true, &keys, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(roll_curve_keygen(link, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(unlink(link), 0);
}

static void test_a_cookie_is_made_once_and_is_of_its_user_alone(void **state)
{
    (void)state;
    struct roll_curve_keys one, two;
    struct stat st;
    char path[128];
    in_dir(path, "cookie");
    assert_int_equal(setenv("ROLLCALL_COOKIE", path, 1), 0);
    assert_int_equal(roll_curve_cookie(&one, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_cookie(&two, why, sizeof(why)), 0);
    assert_string_equal(one.secret_key, two.secret_key);
    assert_string_equal(one.public_key, two.server_key);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(roll_curve_cookie(&two, why, sizeof(why)), ROLL_E_DENIED);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    assert_int_not_equal(roll_curve_cookie(&two, why, sizeof(why)), 0);
    unsetenv("ROLLCALL_COOKIE");
}

static void test_an_endpoint_is_one_address(void **state)
{
    (void)state;
    static const char *const good[] = {"tcp://127.0.0.1:1",  "tcp://*:7777",           "tcp://[::1]:*",
                                       "tcp://node-1.x_y:2", "tcp://[fe80::1%eth0]:3", "ipc:///tmp/a b",
                                       "inproc://x"};
    static const char *const bad[] = {"tcp://127.0.0.1:1;0.0.0.0:2",
                                      "tcp://127.0.0.1:1,0.0.0.0:2",
                                      "tcp://a b:1",
                                      "tcp://127.0.0.1:1 ",
                                      "tcp://127.0.0.1/x:1",
                                      "ipc://@x",
                                      "tcp://:1",
                                      "pgm://x:1"};
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        assert_true(roll_net_endpoint_ok(good[i]));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_false(roll_net_endpoint_ok(bad[i]));
    }
}

static void test_what_was_bound_is_judged_and_not_what_was_asked_for(void **state)
{
    (void)state;
    void *context = zmq_ctx_new(), *socket = roll_net_router(context, NULL);
    assert_int_equal(roll_net_bind(socket, "tcp://127.0.0.1:*", false), 0);
    assert_int_equal(roll_net_bind(socket, "tcp://0.0.0.0:*", false), -1);
    assert_int_equal(errno, EPERM);
    /* The library itself takes lists, and binds what stands last. */
    assert_int_equal(roll_net_bind(socket, "tcp://127.0.0.1:1;0.0.0.0:*", false), -1);
    assert_int_equal(roll_net_bind(socket, "tcp://0.0.0.0:*", true), 0);
    zmq_close(socket);
    zmq_ctx_term(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys_load_for_root_and_client, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keys_are_never_overwritten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_keys_that_cannot_be_written_are_not_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_secret_that_others_can_read_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damaged_and_missing_keys_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_client_has_the_roles_that_its_entry_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_folder_that_others_can_write_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_cookie_is_made_once_and_is_of_its_user_alone, set_up, tear_down),
        cmocka_unit_test(test_an_endpoint_is_one_address),
        cmocka_unit_test(test_what_was_bound_is_judged_and_not_what_was_asked_for),
        cmocka_unit_test_setup_teardown(test_only_listed_clients_are_allowed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
