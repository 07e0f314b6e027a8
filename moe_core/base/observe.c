/*
 * observe.c: the library's own, least versions of the tool interface.
 *
 * moe_observe and moe_remedies are ordinary exported symbols that the library calls through the PLT, so that the
 * definitions of a preloaded tool are the ones used. MOE_REMEDIES switches remedies without any tool; the variable is
 * read once: changing remedies in mid-run needs agreement between the ranks, which the environment cannot give.
 */
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/remedy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static uint32_t environment_mask;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

#define ROLL_REMEDY_ROW(name, bit, label, scope, text)                                                                 \
    _Static_assert(MOE_REMEDY_##name == 1u << (bit), "remedy bits are those of common/remedy.def");
#include "common/remedy.def"
#undef ROLL_REMEDY_ROW

static uint32_t remedy_by_label(const char *label, size_t bytes)
{
    static const struct {
        const char *label;
        uint32_t bit;
    } table[] = {
#define ROLL_REMEDY_ROW(name, bit, label, scope, text) {label, 1u << (bit)},
#include "common/remedy.def"
#undef ROLL_REMEDY_ROW
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strlen(table[i].label) == bytes && memcmp(table[i].label, label, bytes) == 0) {
            return table[i].bit;
        }
    }
    return 0;
}

static void read_environment(void)
{
    const char *at = getenv("MOE_REMEDIES");
    while (at != NULL && *at != '\0') {
        size_t bytes = strcspn(at, ",");
        environment_mask |= remedy_by_label(at, bytes);
        at += bytes + (at[bytes] == ',');
    }
}

void moe_observe(const struct moe_event *event)
{
    (void)event;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    (void)hazard;
    pthread_once(&environment_once, read_environment);
    return environment_mask;
}
