/*
 * verdict.h: codes (verdict.def), certainties and families of verdicts.
 */
#ifndef ROLL_TRACE_VERDICT_H
#define ROLL_TRACE_VERDICT_H

enum roll_verdict_code {
    ROLL_VERDICT_NONE = 0,
#define ROLL_VERDICT_ROW(name, number, code, family, title) ROLL_VERDICT_##name = (number),
#include "trace/verdict.def"
#undef ROLL_VERDICT_ROW
};

/* How sure a verdict is. Only PROVEN, PREDICTED and SUSPECTED are findings (exit code 1); a NOTE is not. */
enum roll_certainty {
    ROLL_NOTE = 0,      /* worth knowing, nothing is wrong yet */
    ROLL_SUSPECTED = 1, /* a rule of thumb says so; the text says which */
    ROLL_PREDICTED = 2, /* it will block unless something changes */
    ROLL_PROVEN = 3,    /* the records alone prove it */
};

enum roll_family {
    ROLL_FAMILY_SEQUENCE = 1,
    ROLL_FAMILY_ALIGNMENT,
    ROLL_FAMILY_P2P,
    ROLL_FAMILY_ORDER,
    ROLL_FAMILY_LIFE,
    ROLL_FAMILY_PROCESS,
    ROLL_FAMILY_MOE,
    ROLL_FAMILY_TOOL,
    ROLL_FAMILY_NUMBERS,
};

/* "count-mismatch"; "?" for an unknown code. Any thread; static storage. This holds for the two functions below as
 * well. */
const char *roll_verdict_name(unsigned code);
const char *roll_verdict_title(unsigned code);
enum roll_family roll_verdict_family(unsigned code);
enum roll_verdict_code roll_verdict_by_name(const char *name);
const char *roll_certainty_name(unsigned certainty); /* "note", "suspected", "predicted", "proven" */
const char *roll_family_name(unsigned family);       /* "sequence", "alignment", ... */

#endif
