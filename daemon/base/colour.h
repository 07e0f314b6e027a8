/*
 * colour.h: what a terminal is told to change colours. For who knows that there is one (roll_colour_wanted).
 */
#ifndef ROLL_DAEMON_BASE_COLOUR_H
#define ROLL_DAEMON_BASE_COLOUR_H

#define ROLL_BOLD   "\033[1m"
#define ROLL_DIM    "\033[2m"
#define ROLL_RED    "\033[31m"
#define ROLL_YELLOW "\033[33m"
#define ROLL_GREEN  "\033[32m"
#define ROLL_CYAN   "\033[36m"
#define ROLL_PLAIN  "\033[0m"

#endif
