/*
 * console.h: what the subcommands of `rollcall` share: the command table, options, exit codes, and messages.
 *
 * One subcommand is one file cmd_NAME.c with one function cmd_NAME; commands.def lists them. The console has one thread
 * unless a header says otherwise.
 */
#ifndef ROLL_DAEMON_CONSOLE_CONSOLE_H
#define ROLL_DAEMON_CONSOLE_CONSOLE_H

#include "daemon/base/options.h"
#include "daemon/base/text.h" /* roll_columns_wanted, for all that is printed */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit codes of every subcommand but `run`, which returns the job's (docs/CONSOLE.md). */
enum roll_exit {
    ROLL_EXIT_CLEAN = 0,
    ROLL_EXIT_FINDING = 1,
    ROLL_EXIT_USAGE = 2,
    ROLL_EXIT_UNREACHABLE = 3, /* cannot reach the daemon, or cannot read a file */
    ROLL_EXIT_INCOMPLETE = 4,  /* data is truncated or was lost, and nothing was found in the rest */
    ROLL_EXIT_TIMEOUT = 124,   /* --timeout ended the job; as timeout(1) */
};

struct roll_command {
    const char *name;
    const char *operands;                                                /* names of the operands in the usage line */
    const char *brief;                                                   /* one line */
    int (*main)(const struct roll_command *self, int argc, char **argv); /* argv[0] is the command's name */
};

/* The table, ended by a row without a name; and one row by name (NULL when there is none). */
extern const struct roll_command roll_commands[];
const struct roll_command *roll_command_find(const char *name);

/* Runs the console: argv as main got it. Returns the exit code. */
int roll_console_main(int argc, char **argv);

/* options */

/*
 * Reads the options of a command. Operands end up at argv[result...argc-1]. With `leading` the first operand ends the
 * options (for commands that are followed by the user's own command line). Prints the help on --help.
 * Returns the index of the first operand; or -1 when the command is over with the exit code *code: the help was
 * printed, or one line about what is wrong. Borrows all.
 */
int roll_options_read(const struct roll_command *cmd, const struct roll_option *options, bool leading, int argc,
                      char **argv, int *code);

/* messages */

/* One line on standard error, beginning with "rollcall: "; on a terminal that is too narrow for it, broken between
 * words. Any thread. */
void roll_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* roll_say, and "see `rollcall help CMD`"; returns ROLL_EXIT_USAGE. */
int roll_usage(const struct roll_command *cmd, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Whether text for this descriptor may be coloured: it is a terminal, TERM is not dumb, and NO_COLOR is not set. */
bool roll_colour_wanted(int fd);

#endif
