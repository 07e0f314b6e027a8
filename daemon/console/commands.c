/*
 * commands.c: the command table and the dispatch to it, help and version.
 *
 * One binary with a table was chosen over one binary per command: one thing to install, one help, one set of shared
 * options. The table is the only place that knows all commands; help, completion checks and tests read it.
 */
#include "daemon/console/console.h"

#include "daemon/base/memory.h"
#include "daemon/base/nearest.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define ROLL_COMMAND_ROW(name, operands, brief) int cmd_##name(const struct roll_command *self, int argc, char **argv);
#include "daemon/console/commands.def"
#undef ROLL_COMMAND_ROW

const struct roll_command roll_commands[] = {
#define ROLL_COMMAND_ROW(name, operands, brief) {#name, operands, brief, cmd_##name},
#include "daemon/console/commands.def"
#undef ROLL_COMMAND_ROW
    {NULL, NULL, NULL, NULL},
};

const struct roll_command *roll_command_find(const char *name)
{
    for (const struct roll_command *c = roll_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

static void print_help(void)
{
    puts("usage: rollcall [COMMAND [OPTION...]]\n"
         "\n"
         "Says which rank of a training job did not answer a collective, or answered\n"
         "something else, and why.\n"
         "\n"
         "commands:");
    for (const struct roll_command *c = roll_commands; c->name != NULL; c++) {
        printf("  %-9s %s\n", c->name, c->brief);
    }
    puts("  help      this text, or the help of a command: rollcall help COMMAND\n"
         "\n"
         "options:\n"
         "  --version  print the version and exit\n"
         "  --help     this text\n"
         "\n"
         "exit codes:\n"
         "  0  asked and answered\n"
         "  1  a finding (verdicts, analyze, report), or a failed check (doctor)\n"
         "  2  usage\n"
         "  3  cannot reach or read\n"
         "  4  something is missing (analyze, report, digest, export, dump, stacks)\n"
         "of run, rehearse and replay: the job's own");
}

static int unknown_command(const char *name)
{
    struct roll_nearest search = {.typed = name};
    for (const struct roll_command *c = roll_commands; c->name != NULL; c++) {
        roll_nearest_offer(&search, c->name);
    }
    roll_nearest_offer(&search, "help");
    roll_say("unknown command '%s'%s%s%s; `rollcall help` lists them", name, search.found ? " (did you mean " : "",
             search.found ? search.found : "", search.found ? "?)" : "");
    return ROLL_EXIT_USAGE;
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        print_help();
        return ROLL_EXIT_CLEAN;
    }
    const struct roll_command *c = roll_command_find(argv[1]);
    if (c == NULL) {
        return unknown_command(argv[1]);
    }
    char option[] = "--help";
    char *args[] = {argv[1], option, NULL};
    return c->main(c, 2, args);
}

/* Where memory was refused something may be missing, or wrong, in what was shown: that is no answer. The exit code of
 * run and rehearse is the job's, whatever happens to rollcall. */
static int run_command(const struct roll_command *c, int argc, char **argv)
{
    int code = c->main(c, argc, argv);
    uint64_t failures = roll_memory_failures();
    if (failures > 0) {
        bool of_job = c->main == cmd_run || c->main == cmd_rehearse;
        roll_say("there was no memory (%" PRIu64 " times): something may be missing or wrong in what was shown or "
                 "written",
                 failures);
        code = of_job || code == ROLL_EXIT_USAGE ? code : ROLL_EXIT_UNREACHABLE;
    }
    return code;
}

int roll_console_main(int argc, char **argv)
{
    roll_memory_begin();
    if (argc < 2) {
        char jobs[] = "jobs";
        char *args[] = {jobs, NULL};
        return run_command(roll_command_find(jobs), 1, args);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return ROLL_EXIT_CLEAN;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        puts("rollcall " ROLL_VERSION);
        return ROLL_EXIT_CLEAN;
    }
    if (strcmp(argv[1], "help") == 0) {
        return help(argc - 1, argv + 1);
    }
    if (argv[1][0] == '-') {
        roll_say("unknown option '%s'; `rollcall help` lists commands and options", argv[1]);
        return ROLL_EXIT_USAGE;
    }
    const struct roll_command *c = roll_command_find(argv[1]);
    return c == NULL ? unknown_command(argv[1]) : run_command(c, argc - 1, argv + 1);
}
