/*
 * fact.c: see fact.h. A table of a dozen rows, searched from the front: it is read once per fact, when a job hangs.
 */
#include "trace/fact.h"

#include <stddef.h>
#include <string.h>

static const struct {
    enum roll_fact fact;
    enum roll_fact_weight weight;
    const char *name;
} rows[] = {
#define ROLL_FACT_ROW(name, number, label, weight) {ROLL_FACT_##name, ROLL_FACT_##weight, label},
#include "trace/fact.def"
#undef ROLL_FACT_ROW
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

const char *roll_fact_name(unsigned fact)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].fact == (enum roll_fact)fact) {
            return rows[i].name;
        }
    }
    return "?";
}

enum roll_fact roll_fact_by_name(const char *name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].fact;
        }
    }
    return ROLL_FACT_NONE;
}

enum roll_fact_weight roll_fact_weight(unsigned fact)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].fact == (enum roll_fact)fact) {
            return rows[i].weight;
        }
    }
    return ROLL_FACT_PLAIN;
}
