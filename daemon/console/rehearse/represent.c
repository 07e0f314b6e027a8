/*
 * represent.c: which ranks of a rehearsed job run, where the others are stood in for (--represent). What stands in for
 * them is hostnccl's (docs/HOSTNCCL.md), and the package rollcall.rehearse makes PyTorch's groups so that it can.
 */
#include "daemon/console/rehearse/rehearse.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD_MAX 4096 /* ranks of a communicator of hostnccl */

static int refuse(char *why, size_t size, const char *text)
{
    snprintf(why, size, "%s", text);
    return ROLL_E_ARG;
}

/* A number of digits alone, up to WORLD_MAX; 0: it is none. */
static uint32_t number_of(const char *text)
{
    char *end = NULL;
    unsigned long n = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;
    return end != NULL && *end == '\0' && n <= WORLD_MAX ? (uint32_t)n : 0;
}

int roll_represent_read(const char *text, uint32_t ranks, struct roll_rankset *run, uint32_t *world, char *why,
                        size_t size)
{
    char set[1024];
    const char *colon = strchr(text, ':');
    size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
    *world = colon != NULL ? number_of(colon + 1) : ranks;
    if (length == 0 || length >= sizeof(set)) {
        return refuse(why, size, "wants how many ranks run, or which, and of how many: 8:64, 0,8,16:64");
    }
    memcpy(set, text, length);
    set[length] = '\0';
    if (*world == 0) {
        return refuse(why, size,
                      colon != NULL ? "wants the number of the job's ranks behind the colon, at most 4096"
                                    : "wants -n, or the number of the job's ranks: 8:64");
    }
    if (ranks > 0 && ranks != *world) {
        return refuse(why, size, "says another number of ranks than -n");
    }
    bool is_count = strspn(set, "0123456789") == length;
    uint32_t count = is_count ? number_of(set) : 0;
    int err = !is_count   ? roll_rankset_parse(set, run)
              : count > 0 ? roll_rankset_add_range(run, 0, count - 1)
                          : ROLL_E_ARG;
    if (err != 0 || roll_rankset_count(run) == 0) {
        return refuse(why, size, "wants how many ranks run, or which, like 0,8,16-19");
    }
    if (roll_rankset_at(run, roll_rankset_count(run) - 1) >= *world) {
        return refuse(why, size, "names ranks that the job does not have");
    }
    return 0;
}
