/* main.c: the program `rollcall`. Everything else is in the library roll_console, so that tests can call it. */
#include "daemon/base/bus_guard.h"
#include "daemon/console/console.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    roll_guard();
    int code = roll_console_main(argc, argv);
    /* A listing that could not be written was not given: a full disk must not look like success. A reader that has
     * closed the pipe (EPIPE) wanted no more. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && errno != EPIPE) {
        roll_say("cannot write to standard output: %s", strerror(errno));
        code = code == ROLL_EXIT_CLEAN ? ROLL_EXIT_UNREACHABLE : code;
    }
    return code;
}
