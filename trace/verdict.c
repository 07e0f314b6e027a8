/*
 * verdict.c: names of verdicts, certainties and families, as tables.
 */
#include "trace/verdict.h"

#include <stddef.h>
#include <string.h>

struct verdict_row {
    enum roll_verdict_code code;
    enum roll_family family;
    const char *name;
    const char *title;
};

static const struct verdict_row verdict_rows[] = {
#define ROLL_VERDICT_ROW(name, number, code, family, title) {ROLL_VERDICT_##name, ROLL_FAMILY_##family, code, title},
#include "trace/verdict.def"
#undef ROLL_VERDICT_ROW
};
#define VERDICT_ROWS (sizeof(verdict_rows) / sizeof(verdict_rows[0]))

static const char *const certainty_labels[] = {"note", "suspected", "predicted", "proven"};
static const char *const family_labels[] = {
    [ROLL_FAMILY_SEQUENCE] = "sequence", [ROLL_FAMILY_ALIGNMENT] = "alignment", [ROLL_FAMILY_P2P] = "p2p",
    [ROLL_FAMILY_ORDER] = "order",       [ROLL_FAMILY_LIFE] = "life",           [ROLL_FAMILY_PROCESS] = "process",
    [ROLL_FAMILY_MOE] = "moe",           [ROLL_FAMILY_TOOL] = "tool",           [ROLL_FAMILY_NUMBERS] = "numbers",
};

static const struct verdict_row *find(unsigned code)
{
    for (size_t i = 0; i < VERDICT_ROWS; i++) {
        if ((unsigned)verdict_rows[i].code == code) {
            return &verdict_rows[i];
        }
    }
    return NULL;
}

const char *roll_verdict_name(unsigned code)
{
    const struct verdict_row *row = find(code);
    return row != NULL ? row->name : "?";
}

const char *roll_verdict_title(unsigned code)
{
    const struct verdict_row *row = find(code);
    return row != NULL ? row->title : "?";
}

enum roll_family roll_verdict_family(unsigned code)
{
    const struct verdict_row *row = find(code);
    return row != NULL ? row->family : (enum roll_family)0;
}

enum roll_verdict_code roll_verdict_by_name(const char *name)
{
    for (size_t i = 0; i < VERDICT_ROWS; i++) {
        if (strcmp(verdict_rows[i].name, name) == 0) {
            return verdict_rows[i].code;
        }
    }
    return ROLL_VERDICT_NONE;
}

const char *roll_certainty_name(unsigned certainty)
{
    return certainty < sizeof(certainty_labels) / sizeof(certainty_labels[0]) ? certainty_labels[certainty] : "?";
}

const char *roll_family_name(unsigned family)
{
    return family >= 1 && family < sizeof(family_labels) / sizeof(family_labels[0]) ? family_labels[family] : "?";
}
