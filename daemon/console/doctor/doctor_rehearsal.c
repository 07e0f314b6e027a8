/*
 * doctor_rehearsal.c: what `rollcall rehearse` would use for a command: its interpreter, the release of CUDA that the
 * wheel was made for, the stand-ins, the machine's memory. It asks what the rehearsal asks before it starts, so that
 * both answer alike. A command that nobody means to rehearse must not fail for it: nothing here is worse than WARN.
 */
#include "daemon/base/units.h"
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/run/run.h"
#include "daemon/console/text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How many ranks the free memory holds. */
static uint64_t fitting(bool has_wheel, bool is_shared, uint64_t free_bytes)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct roll_rehearse_cost cost =
        roll_rehearse_cost(has_wheel, is_shared, processors > 0 ? (unsigned)processors : 1);
    return free_bytes > cost.all_bytes ? (free_bytes - cost.all_bytes) / cost.rank_bytes : 0;
}

/* roll_rehearse_cost() takes as many ranks that end at one time as there are processors; fewer ranks want less. A
 * Python job without a wheel is counted as one of PyTorch, which it would be rehearsed as: a rank of it takes 360 MiB,
 * and not the 4 MiB of a program without one. */
static void say_memory(struct roll_checkup *c, bool has_wheel, bool is_script, bool is_python)
{
    uint64_t most = roll_rehearse_free_bytes("/proc/meminfo", "/sys/fs/cgroup");
    if (most == UINT64_MAX) {
        return;
    }
    bool is_framework = has_wheel || is_python;
    uint64_t alone = fitting(is_framework, false, most), shared = fitting(is_framework, true, most);
    enum roll_health health = alone == 0                ? ROLL_HEALTH_WARN
                              : has_wheel || !is_python ? ROLL_HEALTH_OK
                                                        : ROLL_HEALTH_INFO;
    const char *of = has_wheel ? "" : is_python ? " of PyTorch" : " of 4 MiB each";
    char room[32], apart[32], together[32];
    roll_units_bytes_text((double)most, room, sizeof(room));
    roll_count_text(alone, apart, sizeof(apart));
    if (is_framework && is_script && shared > alone) {
        roll_checkup_say(c, "rehearse", health,
                         "%s are free: memory for about %s ranks%s that share what they import (-n), for %s that "
                         "import by themselves",
                         room, roll_count_text(shared, together, sizeof(together)), of, apart);
    } else {
        roll_checkup_say(c, "rehearse", health, "%s are free: memory for about %s ranks%s", room, apart, of);
    }
}

/* The stand-ins, and whether they have what the wheel wants. */
static void say_stand_ins(struct roll_checkup *c, const struct roll_place *place, const char *interpreter)
{
    static char preload[64 * 1024], what[1024]; /* large */
    if (place->hostnccl[0] == '\0' ||
        roll_rehearse_preload(place->hostnccl, interpreter, preload, sizeof(preload)) != 0) {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_WARN,
                         "no stand-ins for CUDA and NCCL beside this program, or in a folder with a blank or a colon "
                         "in its name: build or install hostnccl");
        return;
    }
    size_t lacking = roll_rehearse_lacking(interpreter, preload, what, sizeof(what));
    if (lacking > 0) {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_WARN,
                         "the stand-ins lack functions (%zu): %s; --force tries it all the same", lacking, what);
        return;
    }
    char wanted[64];
    if (roll_rehearse_runtime(interpreter, wanted, sizeof(wanted)) && strstr(preload, wanted) == NULL) {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_WARN, "PyTorch wants %s, and there is none in %s", wanted,
                         place->hostnccl);
        return;
    }
    const char *runtime = strstr(preload, "libcudart.so.");
    roll_checkup_say(c, "rehearse", ROLL_HEALTH_OK, "the stand-ins in %s, with %.*s", place->hostnccl,
                     runtime != NULL ? (int)strcspn(runtime, ":") : 0, runtime != NULL ? runtime : "");
}

void roll_checkup_rehearsal(struct roll_checkup *c, const struct roll_place *place, char *const command[])
{
    char interpreter[PATH_MAX], packages[PATH_MAX], gpu[PATH_MAX];
    if (!roll_rehearse_interpreter(command, interpreter, sizeof(interpreter))) {
        snprintf(interpreter, sizeof(interpreter), "%s", command[0]);
    }
    bool has_wheel = roll_rehearse_packages(interpreter, packages, sizeof(packages)), can = true;
    bool is_python = roll_is_python(interpreter);
    if (has_wheel) {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_OK, "%s, with PyTorch for CUDA in %s", interpreter, packages);
    } else if (roll_rehearse_without_cuda(interpreter, packages, sizeof(packages))) {
        can = false;
        roll_checkup_say(
            c, "rehearse", ROLL_HEALTH_WARN,
            "%s has a PyTorch without CUDA (in %s): a rehearsal takes the CUDA wheel; --python names another "
            "interpreter",
            interpreter, packages);
    } else {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_INFO,
                         "no PyTorch for CUDA behind this command (looked at %s): %s; --python names another "
                         "interpreter",
                         interpreter,
                         is_python ? "a PyTorch job is rehearsed with its CUDA wheel (on x86-64: pip install torch)"
                                   : "it is rehearsed as a program of the CUDA runtime");
    }
    say_stand_ins(c, place, interpreter);
    if (can) { /* else there is nothing to count ranks for */
        say_memory(c, has_wheel, roll_python_script(command) >= 0, is_python);
    }
    if (roll_rehearse_gpu("/dev", gpu, sizeof(gpu))) {
        roll_checkup_say(c, "rehearse", ROLL_HEALTH_INFO, "this machine has a GPU (%s): a rehearsal wants --force",
                         gpu);
    }
}
