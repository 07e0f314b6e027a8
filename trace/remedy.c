/*
 * remedy.c: names of remedies and policies, as tables.
 */
#include "trace/remedy.h"
#include "trace/err.h"

#include <stddef.h>
#include <string.h>

enum remedy_scope { SCOPE_LOCAL, SCOPE_SYMMETRIC };

struct remedy_row {
    uint32_t bit;
    enum remedy_scope scope;
    const char *label;
    const char *text;
};

static const struct remedy_row remedy_rows[] = {
#define ROLL_REMEDY_ROW(name, bit, label, scope, text) {1u << (bit), SCOPE_##scope, label, text},
#include "common/remedy.def"
#undef ROLL_REMEDY_ROW
};
#define REMEDY_ROWS (sizeof(remedy_rows) / sizeof(remedy_rows[0]))

static const char *const policy_labels[] = {"observe", "advise", "auto"};
#define POLICY_ROWS (sizeof(policy_labels) / sizeof(policy_labels[0]))

static const struct remedy_row *find(uint32_t bit)
{
    for (size_t i = 0; i < REMEDY_ROWS; i++) {
        if (remedy_rows[i].bit == bit) {
            return &remedy_rows[i];
        }
    }
    return NULL;
}

const char *roll_remedy_name(uint32_t bit)
{
    const struct remedy_row *row = find(bit);
    return row != NULL ? row->label : "?";
}

const char *roll_remedy_text(uint32_t bit)
{
    const struct remedy_row *row = find(bit);
    return row != NULL ? row->text : "?";
}

uint32_t roll_remedy_by_name(const char *label)
{
    for (size_t i = 0; i < REMEDY_ROWS; i++) {
        if (strcmp(remedy_rows[i].label, label) == 0) {
            return remedy_rows[i].bit;
        }
    }
    return 0;
}

uint32_t roll_remedy_local(void)
{
    uint32_t mask = 0;
    for (size_t i = 0; i < REMEDY_ROWS; i++) {
        mask |= remedy_rows[i].scope == SCOPE_LOCAL ? remedy_rows[i].bit : 0;
    }
    return mask;
}

uint32_t roll_remedy_all(void)
{
    uint32_t mask = 0;
    for (size_t i = 0; i < REMEDY_ROWS; i++) {
        mask |= remedy_rows[i].bit;
    }
    return mask;
}

const char *roll_policy_name(unsigned policy)
{
    return policy < POLICY_ROWS ? policy_labels[policy] : "?";
}

int roll_policy_by_name(const char *name, enum roll_policy *policy)
{
    for (size_t i = 0; i < POLICY_ROWS; i++) {
        if (strcmp(policy_labels[i], name) == 0) {
            *policy = (enum roll_policy)i;
            return ROLL_OK;
        }
    }
    return ROLL_E_ARG;
}
