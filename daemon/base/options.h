/*
 * options.h: options of a command line, by one table that gives getopt's list, the help text and what an option sets,
 * so that the three cannot drift apart. What is wrong is told to the caller, who has its own words for it.
 */
#ifndef ROLL_DAEMON_BASE_OPTIONS_H
#define ROLL_DAEMON_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum roll_option_kind {
    ROLL_OPT_FLAG,    /* bool * */
    ROLL_OPT_TEXT,    /* const char **, not empty */
    ROLL_OPT_ANY,     /* const char **, empty as well */
    ROLL_OPT_COUNT,   /* uint32_t *, from 1 */
    ROLL_OPT_NUMBER,  /* int64_t *, from 0 */
    ROLL_OPT_SECONDS, /* double *, above 0 */
    ROLL_OPT_OWN,     /* const struct roll_option_own *: the caller has a function for it */
    ROLL_OPT_HELP,    /* nothing is stored: the caller shows the help */
};

struct roll_option {
    const char *name; /* without dashes; NULL ends the table */
    char letter;      /* 0 = none */
    enum roll_option_kind kind;
    const char *arg;  /* name of the argument in the help; NULL when there is none */
    const char *help; /* one line */
    void *value;      /* where the argument is stored; unchanged when the option is not given */
};
#define ROLL_OPTIONS_MAX 48

#define ROLL_OPTION_GO_ON (-1) /* of a function for an option: it is taken */
#define ROLL_OPTION_BAD   (-2) /* of a function for an option: its argument is not what it wants */

struct roll_option_own {
    /* `text`: the argument, NULL without one. GO_ON; BAD; or an exit code, when the program is to end: the function has
     * said why. */
    int (*take)(const struct roll_option *option, const char *text, void *into);
    void *into;
    const char *wrong; /* what a bad argument is: "not a time, like 90s, 12h or 7d" */
};

enum roll_option_event {
    ROLL_OPTION_TAKEN,   /* `option`, and its value is stored */
    ROLL_OPTION_OVER,    /* there are no more: operands begin at argv[operand] */
    ROLL_OPTION_UNKNOWN, /* `word`, or an abbreviation of several */
    ROLL_OPTION_LETTER,  /* an unknown `letter` */
    ROLL_OPTION_LACKS,   /* `word` needs an argument */
    ROLL_OPTION_EXTRA,   /* `word` has an argument, and takes none */
    ROLL_OPTION_WRONG,   /* `option` does not take the argument `word` */
    ROLL_OPTION_EXIT,    /* a function of the caller's ends the program with `code` */
};

/* A command line that is being read; the caller fills the first four. One at a time in a process: getopt has one state.
 */
struct roll_option_reader {
    const struct roll_option *table; /* borrowed; at most ROLL_OPTIONS_MAX rows count */
    bool leading;                    /* the first operand ends the options: somebody else's command line follows */
    int argc;
    char **argv;
    bool begun;
    int at; /* argv[at] is where the search for this option began: the option, where no operands stand before it */
    int operand, code;
    char letter;
    const struct roll_option *option;
    const char *word;
};

/* The next option. */
enum roll_option_event roll_options_next(struct roll_option_reader *read);
/* What somebody may have meant who typed this option, which is none: " (did you mean --json?)", " (it is short for
 * --trace-age and --trace-limit)", or "". Returns out. */
const char *roll_options_meant(const struct roll_option *table, const char *word, char *out, size_t size);
/* The table on standard output, a line a row; where `columns` is not 0, what a row says is broken before them. With
 * `letters` there is room for these; the options take `width` columns. */
void roll_options_print(const struct roll_option *table, bool letters, int width, size_t columns);

#endif
