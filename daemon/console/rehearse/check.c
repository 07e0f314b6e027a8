/*
 * check.c: what keeps a rehearsal from starting: its options, its files, and the machine.
 *
 * All of it is found out before anything is started, because a rehearsal that fails after minutes of imports has cost
 * its user these minutes. What --force goes on without is the machine's alone.
 */
#include "daemon/base/units.h"
#include "daemon/console/place.h"
#include "daemon/console/rehearse/rehearsal.h"
#include "daemon/console/run/program.h"

#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS_MAX    4096
#define MEMORY_LEAST (64u << 20) /* a device of less could not hold the context that CUDA makes on it */

uint32_t roll_rehearsal_started(const struct roll_rehearsal *r)
{
    return r->o.run != NULL ? (uint32_t)roll_rankset_count(r->o.run) : r->o.ranks;
}

static bool holds_trace(const char *folder)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    snprintf(pattern, sizeof(pattern), "%s/*.rtrc", folder);
    bool found = glob(pattern, 0, NULL, &files) == 0;
    globfree(&files);
    return found;
}

/* Which ranks run. 0, or the exit code. */
static int check_represent(const struct roll_command *self, struct roll_rehearsal *r)
{
    char why[128];
    if (roll_represent_read(r->represent, r->o.ranks, &r->run, &r->o.ranks, why, sizeof(why)) != 0) {
        return roll_usage(self, "option '--represent %s': %s", r->represent, why);
    }
    if (r->save != NULL || r->against != NULL) {
        return roll_usage(self, "--represent and %s: what is expected of all ranks cannot be learnt from some of them",
                          r->save != NULL ? "--save" : "--against");
    }
    r->o.run = &r->run;
    return 0;
}

int roll_rehearsal_check_options(const struct roll_command *self, struct roll_rehearsal *r)
{
    const struct roll_run_options *o = &r->o;
    uint64_t bytes;
    if (o->command[0] == NULL) {
        return roll_usage(self, "name the command: rollcall rehearse [OPTION...] -- COMMAND");
    }
    int code = r->represent != NULL ? check_represent(self, r) : 0;
    if (code != 0) {
        return code;
    }
    if (o->ranks > RANKS_MAX) {
        return roll_usage(self, "option '-n %u': at most %d ranks on one host", o->ranks, RANKS_MAX);
    }
    if (o->nodes > 0 && (o->ranks == 0 || o->ranks % o->nodes != 0)) {
        return roll_usage(self, "option '--nodes %u': wants -n with as many ranks on each node", o->nodes);
    }
    if (o->trace != NULL && holds_trace(o->trace)) {
        return roll_usage(self, "option '--trace %s': a trace is there already, and the report is made of one run",
                          o->trace);
    }
    if (r->memory != NULL && (!roll_units_bytes(r->memory, &bytes) || bytes < MEMORY_LEAST)) {
        return roll_usage(self, "option '--memory %s': wants the size of a device, from 64M, like 80G", r->memory);
    }
    if (r->fail_on_difference && r->against == NULL) {
        return roll_usage(self, "--fail-on-difference needs --against FILE");
    }
    if (r->zygote != NULL && strcmp(r->zygote, "none") != 0 && (o->ranks == 0 || roll_python_script(o->command) < 0)) {
        return roll_usage(self, "option '--zygote %s': wants -n and a command like python SCRIPT", r->zygote);
    }
    char why[256];
    return roll_steering_check(&r->steering, why, sizeof(why)) == 0 ? 0 : roll_usage(self, "%s", why);
}

int roll_rehearsal_check_files(struct roll_rehearsal *r)
{
    char why[256], folder[PATH_MAX];
    if (r->against != NULL && roll_expected_read(r->against, &r->before, why, sizeof(why)) != 0) {
        roll_say("--against %s%s", r->against, why);
        return ROLL_EXIT_UNREACHABLE;
    }
    struct stat st;
    const char *trace = r->o.trace;
    if (trace != NULL && stat(trace, &st) == 0 && (!S_ISDIR(st.st_mode) || access(trace, W_OK | X_OK) != 0)) {
        roll_say("--trace: cannot write in %s: %s", trace, S_ISDIR(st.st_mode) ? strerror(errno) : "it is no folder");
        return ROLL_EXIT_UNREACHABLE;
    }
    if (r->save != NULL) {
        snprintf(folder, sizeof(folder), "%s", r->save);
        if (stat(r->save, &st) == 0 && S_ISDIR(st.st_mode)) {
            roll_say("--save: cannot write %s: it is a folder; name a file in it", r->save);
            return ROLL_EXIT_UNREACHABLE;
        }
        char *slash = strrchr(folder, '/');
        snprintf(slash != NULL ? slash : folder, 2, "%s", slash == folder ? "/" : slash != NULL ? "" : ".");
        if (access(folder, W_OK | X_OK) != 0) {
            roll_say("--save: cannot write %s: %s", r->save, strerror(errno));
            return ROLL_EXIT_UNREACHABLE;
        }
    }
    return 0;
}

/* Picks what the ranks import once for all of them: what the user says, else PyTorch where it is there. */
static void pick_zygote(struct roll_rehearsal *r)
{
    bool is_python =
        roll_rehearsal_started(r) > 1 && roll_python_script(r->o.command) >= 0 && r->place.zygote[0] != '\0';
    if (r->zygote != NULL) {
        r->o.zygote = strcmp(r->zygote, "none") != 0 && r->place.zygote[0] != '\0' ? r->zygote : NULL;
    } else if (is_python && r->has_wheel) {
        r->o.zygote = "torch";
    }
}

int roll_rehearsal_find_python(struct roll_rehearsal *r)
{
    char packages[PATH_MAX];
    if (r->python != NULL) {
        snprintf(r->interpreter, sizeof(r->interpreter), "%s", r->python);
    } else if (!roll_rehearse_interpreter(r->o.command, r->interpreter, sizeof(r->interpreter))) {
        snprintf(r->interpreter, sizeof(r->interpreter), "%s", r->o.command[0]);
    }
    r->has_wheel = roll_rehearse_packages(r->interpreter, packages, sizeof(packages));
    if (r->python != NULL && !r->has_wheel) {
        roll_say("--python: %s has no PyTorch for CUDA", r->python);
        return ROLL_EXIT_UNREACHABLE;
    }
    pick_zygote(r);
    return 0;
}

/* The rings of the ranks, without which there is no report. 0, or the exit code. */
static int check_room(const struct roll_rehearsal *r)
{
    char dir[PATH_MAX], room[32], want[32];
    uint32_t ranks = roll_rehearsal_started(r) > 0 ? roll_rehearsal_started(r) : 1;
    uint64_t bytes = roll_place_ring_bytes() * ranks;
    uint64_t most = roll_place_rings(dir, sizeof(dir)) == 0 ? roll_place_free_bytes(dir) : UINT64_MAX;
    if (most < bytes) {
        roll_say("the records of %u rank%s take %s, and %s has %s free: free some, enlarge it (mount -o "
                 "remount,size=2G /dev/shm), name another folder with ROLLCALL_DIR, or --force",
                 ranks, ranks == 1 ? "" : "s", roll_units_bytes_text((double)bytes, want, sizeof(want)), dir,
                 roll_units_bytes_text((double)most, room, sizeof(room)));
        return ROLL_EXIT_UNREACHABLE;
    }
    return 0;
}

static int check_memory(const struct roll_rehearsal *r)
{
    uint32_t ranks = roll_rehearsal_started(r) > 0 ? roll_rehearsal_started(r) : 1;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned ending = processors < 1 ? 1 : processors < ranks ? (unsigned)processors : ranks;
    struct roll_rehearse_cost cost = roll_rehearse_cost(r->has_wheel, r->o.zygote != NULL, ending);
    uint64_t most = roll_rehearse_free_bytes("/proc/meminfo", "/sys/fs/cgroup");
    uint64_t fit = most > cost.all_bytes ? (most - cost.all_bytes) / cost.rank_bytes : 0;
    if (fit < ranks) {
        roll_say("%u ranks want %llu MiB at least, and %llu MiB are free: start at most %llu (-n), or --force", ranks,
                 (unsigned long long)((cost.all_bytes + cost.rank_bytes * ranks) >> 20),
                 (unsigned long long)(most >> 20), (unsigned long long)fit);
        return ROLL_EXIT_UNREACHABLE;
    }
    return 0;
}

int roll_rehearsal_check_machine(struct roll_rehearsal *r)
{
    char what[1024];
    if (r->place.hostnccl[0] == '\0' ||
        roll_rehearse_preload(r->place.hostnccl, r->interpreter, r->preload, sizeof(r->preload)) != 0) {
        roll_say(
            "the stand-in libraries were not found beside this program, or lie in a folder with a blank or a colon in "
            "its name; build or install hostnccl");
        return ROLL_EXIT_UNREACHABLE;
    }
    if (r->force) {
        return 0;
    }
    if (roll_rehearse_gpu("/dev", what, sizeof(what))) {
        roll_say("this machine has a GPU (%s): a rehearsal would keep the job from it; use `rollcall run`, or --force",
                 what);
        return ROLL_EXIT_UNREACHABLE;
    }
    if (!r->has_wheel && roll_rehearse_without_cuda(r->interpreter, what, sizeof(what))) {
        roll_say(
            "%s has a PyTorch without CUDA (in %s), and every rank would fail: a rehearsal takes the CUDA wheel that "
            "the job uses on GPUs, and needs none (`pip install torch` without an index for cpu; --python names "
            "another interpreter); --force goes on",
            r->interpreter, what);
        return ROLL_EXIT_UNREACHABLE;
    }
    size_t lacking = roll_rehearse_lacking(r->interpreter, r->preload, what, sizeof(what));
    if (lacking > 0) {
        roll_say("this release of PyTorch is not known here: %s%s, which no stand-in has (%zu in all); --force tries "
                 "it all the same",
                 what, lacking > 3 ? ", ..." : "", lacking);
        return ROLL_EXIT_UNREACHABLE;
    }
    int code = check_memory(r);
    return code != 0 ? code : check_room(r);
}
