/* cmd_keygen.c: rollcall keygen DIRECTORY: the CURVE keys of a root and its clients. Never overwrites keys. */
#include "daemon/console/console.h"
#include "daemon/wire/curve.h"
#include "trace/err.h"

#include <stdio.h>

int cmd_keygen(const struct roll_command *self, int argc, char **argv);

int cmd_keygen(const struct roll_command *self, int argc, char **argv)
{
    const struct roll_option options[] = {{0}};
    char why[512] = "";
    int code;
    int first = roll_options_read(self, options, false, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    if (argc - first != 1) {
        return roll_usage(self, argc == first ? "name the directory for the keys" : "one directory at a time");
    }
    int err = roll_curve_keygen(argv[first], why, sizeof(why));
    if (err != 0) {
        roll_say("%s", why[0] != '\0' ? why : roll_strerror(err));
        return ROLL_EXIT_UNREACHABLE;
    }
    printf("keys made in %s\n"
           "  root:   rollcalld --listen tcp://ADDRESS:PORT --curve-dir %s   (needs server.key, server.pub, allowed/)\n"
           "  nodes:  ROLLCALL_CURVE_DIR=...   with a copy of client.key, client.pub and server.pub\n"
           "  allow another client by putting its public key into allowed/NAME.pub\n",
           argv[first], argv[first]);
    return ROLL_EXIT_CLEAN;
}
