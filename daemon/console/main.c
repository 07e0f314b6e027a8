/* main.c: the program `rollcall`. Everything else is in the library roll_console, so that tests can call it. */
#include "daemon/console/console.h"

int main(int argc, char **argv)
{
    return roll_console_main(argc, argv);
}
