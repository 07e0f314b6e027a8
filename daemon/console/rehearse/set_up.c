/*
 * set_up.c: what a rehearsal makes before the job starts: its folder, the stand-ins of its wheel, and the variables by
 * which the stand-ins know what they are to do.
 */
#include "daemon/base/units.h"
#include "daemon/console/rehearse/rehearsal.h"
#include "daemon/console/run/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int roll_rehearsal_prepare(struct roll_rehearsal *r)
{
    const char *base = getenv("TMPDIR");
    char why[2 * PATH_MAX];
    snprintf(r->folder, sizeof(r->folder), "%s/rollcall-rehearsal-XXXXXX",
             base != NULL && base[0] != '\0' ? base : "/tmp");
    if (mkdtemp(r->folder) == NULL) {
        roll_say("cannot make a folder for the rehearsal (%s): %s", r->folder, strerror(errno));
        r->folder[0] = '\0';
        return ROLL_EXIT_UNREACHABLE;
    }
    if (roll_rehearse_write(r->place.hostnccl, r->interpreter, r->folder, r->preload, sizeof(r->preload), why,
                            sizeof(why)) != 0) {
        roll_say("%s%s", why, r->force ? "; the job runs without them" : "");
        if (!r->force) {
            return ROLL_EXIT_UNREACHABLE;
        }
    }
    if (r->json != NULL && *r->asked == 0) {
        r->out = strcmp(r->json, "-") == 0 ? fdopen(dup(STDOUT_FILENO), "w") : fopen(r->json, "we");
        if (r->out == NULL && *r->asked == 0) {
            roll_say("--json: cannot write %s: %s", r->json, strerror(errno));
            return ROLL_EXIT_UNREACHABLE;
        }
    }
    return 0;
}

void roll_rehearsal_set_environment(const struct roll_rehearsal *r)
{
    roll_steering_apply(&r->steering);
    setenv("HOSTCUDA_KERNELS", "skip", 0);
    /* PyTorch's cache hands out blocks that hold what their last user left, and no kernel writes them anew: counts that
     * the ranks read back would differ. Fresh memory reads as zero on all of them. */
    const char *off = getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    if (off != NULL && (off[0] == '\0' || strcmp(off, "0") == 0)) {
        unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING"); /* older releases of PyTorch take any value for a yes */
    } else {
        setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 0);
    }
    char path[PATH_MAX], release[32];
    if (roll_rehearse_nccl(r->interpreter, path, sizeof(path)) && roll_nccl_release(path, release, sizeof(release))) {
        setenv("HOSTNCCL_VERSION", release, 0);
    }
    setenv("HOSTCUDA_REPORT", r->folder, 1);
    char shared[PATH_MAX]; /* one device for all processes that use it */
    if (snprintf(shared, sizeof(shared), "%s/devices", r->folder) < (int)sizeof(shared)) {
        setenv("HOSTCUDA_SHARED", shared, 0);
    }
    if (r->o.run != NULL) {
        char run[1024], present[1088];
        roll_rankset_format(r->o.run, run, sizeof(run));
        snprintf(present, sizeof(present), "%s:%u", run, r->o.ranks);
        setenv("HOSTNCCL_PRESENT", present, 1);
        /* Else PyTorch collects ids of several ranks for a communicator of more than 128, and some of them do not run.
         */
        setenv("TORCH_NCCL_RANKS_PER_ROOT", "65536", 1);
    }
    if (roll_rehearsal_started(r) > 1) {
        /* As torchrun does: the ranks share the processors, and each would start a thread for every one of them. */
        setenv("OMP_NUM_THREADS", "1", 0);
    }
    uint64_t bytes;
    if (r->memory != NULL && roll_units_bytes(r->memory, &bytes)) {
        char text[32]; /* as a number: the stand-in knows fewer letters */
        snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
        setenv("HOSTCUDA_MEMORY", text, 1);
    }
    unsetenv("ROLLCALL_DAEMON"); /* the trace that the report needs is that of a daemon of our own */
}
