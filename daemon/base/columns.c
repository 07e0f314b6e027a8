/*
 * columns.c: how wide what is printed may be. Apart from text.c, which asks nothing of the system.
 */
#include "daemon/base/text.h"

#include <stdbool.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LEAST = 40, MOST = 100 }; /* longer lines of prose are hard to read */

unsigned roll_columns_terminal(int fd)
{
    struct winsize size = {0};
    bool known = isatty(fd) == 1 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return !known ? 0 : size.ws_col > MOST ? MOST : size.ws_col < LEAST ? LEAST : size.ws_col;
}

unsigned roll_columns_wanted(int fd)
{
    unsigned columns = roll_columns_terminal(fd);
    return columns > 0 ? columns : MOST;
}
