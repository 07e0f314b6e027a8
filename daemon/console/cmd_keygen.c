/* cmd_keygen.c: rollcall keygen DIRECTORY: the CURVE keys of a root and its clients. Never overwrites keys. */
#include "daemon/console/console.h"
#include "daemon/wire/curve.h"
#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

int cmd_keygen(const struct roll_command *self, int argc, char **argv);

static int add_client(const char *dir, const char *name, const char *role, const char *host)
{
    char why[512] = "";
    int err = roll_curve_keygen_client(dir, name, role, host, why, sizeof(why));
    if (err != 0) {
        roll_say("%s", why[0] != '\0' ? why : roll_strerror(err));
        return err == ROLL_E_ARG ? ROLL_EXIT_USAGE : ROLL_EXIT_UNREACHABLE;
    }
    bool node = strstr(role, "node") != NULL, asks = strstr(role, "viewer") != NULL || strstr(role, "operator") != NULL;
    printf("keys of %s made in %s/%s, for the role%s %s%s%s\n", name, dir, name, strchr(role, ',') != NULL ? "s" : "",
           role, host != NULL ? " of host " : "", host != NULL ? host : "");
    if (node) {
        printf("  ranks and agents: ROLLCALL_CURVE_DIR=%s/%s\n", dir, name);
    }
    if (asks) {
        printf("  to look:          ROLLCALL_CURVE_DIR=%s/%s rollcall top%s\n", dir, name,
               node ? "" : "   (not for ranks: this key may not report)");
    }
    printf("  to take it back:  rm %s/allowed/%s.pub\n", dir, name);
    return ROLL_EXIT_CLEAN;
}

int cmd_keygen(const struct roll_command *self, int argc, char **argv)
{
    const char *role = NULL, *name = NULL, *host = NULL;
    const struct roll_option options[] = {
        {"role", 0, ROLL_OPT_TEXT, "ROLES",
         "add a client: node (ranks, agents), viewer (looks), operator (stacks, bundles and remedies, too), or "
         "several with commas",
         &role},
        {"name", 0, ROLL_OPT_TEXT, "NAME", "with --role: its name, and that of its folder in DIRECTORY", &name},
        {"host", 0, ROLL_OPT_TEXT, "HOST", "with --role node: it may report of this host only", &host},
        {0},
    };
    char why[512] = "";
    int code;
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing, which undoes what was made */
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (argc - first != 1) {
        return roll_usage(self, argc == first ? "name the directory for the keys" : "one directory at a time");
    }
    if ((role == NULL) != (name == NULL) || (host != NULL && role == NULL)) {
        return roll_usage(self, "--role and --name go together, and --host with them");
    }
    if (role != NULL) {
        return add_client(argv[first], name, role, host);
    }
    int err = roll_curve_keygen(argv[first], why, sizeof(why));
    if (err != 0) {
        roll_say("%s", why[0] != '\0' ? why : roll_strerror(err));
        return ROLL_EXIT_UNREACHABLE;
    }
    printf("keys made in %s\n"
           "  root, relays: rollcalld --root --listen tcp://0.0.0.0:7777 --curve-dir %s\n"
           "                (client.key there may do everything: keep it with them)\n"
           "  then, for ranks and agents:  rollcall keygen --role node --name nodes %s\n"
           "        for who looks:         rollcall keygen --role viewer --name me %s\n",
           argv[first], argv[first], argv[first], argv[first]);
    return ROLL_EXIT_CLEAN;
}
