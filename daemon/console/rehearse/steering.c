/*
 * steering.c: the settings of the Python package rollcall.rehearse, as the options of a rehearsal say them.
 */
#include "daemon/base/units.h"
#include "daemon/console/rehearse/steered.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COMPUTE_BYTES (64u * 1024u) /* rollcall.rehearse.settings.DEFAULT_BYTES */
#define SMALL_BYTES   4096u         /* what hostnccl moves in any case */

/* Whether a text is "random:" and a number, with ",same" or ",different" or nothing behind. */
static bool is_random(const char *text)
{
    if (strncmp(text, "random:", 7) != 0) {
        return false;
    }
    const char *rest = text + 7 + strspn(text + 7, "0123456789");
    return rest > text + 7 && (*rest == '\0' || strcmp(rest, ",same") == 0 || strcmp(rest, ",different") == 0);
}

int roll_steering_check(const struct roll_steering *s, char *why, size_t size)
{
    uint64_t bytes;
    if (s->compute != NULL && strcmp(s->compute, "off") != 0 && !roll_units_bytes(s->compute, &bytes)) {
        snprintf(why, size, "option '--compute %s': wants a size, like 64K, or off", s->compute);
        return ROLL_E_ARG;
    }
    if (s->values != NULL && strcmp(s->values, "zero") != 0 && !is_random(s->values)) {
        snprintf(why, size, "option '--values %s': wants zero, or random:SEED with ,same or ,different", s->values);
        return ROLL_E_ARG;
    }
    return 0;
}

void roll_steering_apply(const struct roll_steering *s)
{
    char text[64];
    uint64_t bytes = COMPUTE_BYTES;
    const char *compute = s->compute != NULL ? s->compute : getenv("ROLLCALL_REHEARSE_COMPUTE");
    setenv("ROLLCALL_REHEARSE", "1", 0);
    if (compute != NULL && (strcmp(compute, "off") == 0 || !roll_units_bytes(compute, &bytes))) {
        bytes = 0;
    }
    if (s->compute != NULL) {
        snprintf(text, sizeof(text), "%" PRIu64, bytes);
        setenv("ROLLCALL_REHEARSE_COMPUTE", strcmp(s->compute, "off") == 0 ? "off" : text, 1);
    }
    if (s->values != NULL) {
        setenv("ROLLCALL_REHEARSE_VALUES", s->values, 1);
    }
    if (s->steps > 0) {
        snprintf(text, sizeof(text), "%" PRIu32, s->steps);
        setenv("ROLLCALL_REHEARSE_STEPS", text, 1);
    }
    /* A count that was computed must reach its peers: else they would wait for other sizes than this rank sends. */
    bytes = bytes < SMALL_BYTES ? SMALL_BYTES : bytes > UINT32_MAX - 2 ? UINT32_MAX - 2 : bytes;
    snprintf(text, sizeof(text), "skip:%" PRIu64, bytes);
    setenv("HOSTNCCL_DATA", text, 0);
}
