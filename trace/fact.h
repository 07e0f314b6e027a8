/*
 * fact.h: what can be known about a node when a collective does not complete (fact.def).
 */
#ifndef ROLL_TRACE_FACT_H
#define ROLL_TRACE_FACT_H

enum roll_fact {
    ROLL_FACT_NONE = 0,
#define ROLL_FACT_ROW(name, number, label, weight) ROLL_FACT_##name = (number),
#include "trace/fact.def"
#undef ROLL_FACT_ROW
};

enum roll_fact_weight {
    ROLL_FACT_PLAIN = 0,
    ROLL_FACT_ODD = 1,
    ROLL_FACT_FAULT = 2,
};

/* "gpu-xid"; "?" for an unknown one. Any thread; static storage. */
const char *roll_fact_name(unsigned fact);
/* The fact with this name; NONE when there is none. */
enum roll_fact roll_fact_by_name(const char *name);
enum roll_fact_weight roll_fact_weight(unsigned fact);

#endif
