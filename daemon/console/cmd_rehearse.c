/*
 * cmd_rehearse.c: rollcall rehearse: a CUDA job with all its ranks on a machine without a GPU.
 *
 * `rollcall run` with the stand-ins preloaded, kernels and payloads left out, and a report at the end. What the report
 * tells is read from a trace, which is kept in a folder of ours where the user names none.
 */
#include "daemon/base/json.h"
#include "daemon/base/units.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/console/run/program.h"
#include "daemon/console/run/run.h"
#include "daemon/console/text.h"

#include "trace/err.h"

#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cmd_rehearse(const struct roll_command *self, int argc, char **argv);

#define RANKS_MAX    4096
#define PRELOAD_SIZE (64 * 1024)
#define MEMORY_LEAST (64u << 20) /* a device of less could not hold the context that CUDA makes on it */
#define START_S      120         /* how much longer than --timeout nothing may move while frameworks are imported */

struct rehearsal {
    struct roll_run_options o;
    struct roll_place place;
    struct roll_steering steering;
    const char *json, *memory, *save, *against, *zygote, *python, *represent;
    struct roll_rankset run;    /* owned; of --represent: the ranks that run; empty = all */
    char interpreter[PATH_MAX]; /* of the job, as far as the command tells */
    bool has_wheel;
    bool force, fail_on_difference;
    char preload[PRELOAD_SIZE];
    char folder[PATH_MAX]; /* ours: the notes of the devices, and the trace where the user names no place; "" = none */
    FILE *out;             /* of --json; NULL = none */
    struct roll_expected *before; /* of --against; owned; NULL = none */
};

static volatile sig_atomic_t asked; /* the signal that asks this program to end; 0 = none */

static void on_signal(int number)
{
    asked = number;
}

/* A signal must not leave our folder behind, so it is noted where nobody else takes it: before the job and after it. A
 * second one ends the program at once. The ranks have their own handling, because exec takes handlers away. */
static void note_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            sigaction(numbers[i], &act, NULL);
        }
    }
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
static int check_represent(const struct roll_command *self, struct rehearsal *r)
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

/* The ranks that are started. */
static uint32_t started(const struct rehearsal *r)
{
    return r->o.run != NULL ? (uint32_t)roll_rankset_count(r->o.run) : r->o.ranks;
}

/* Options that contradict each other. 0, or the exit code. */
static int check_options(const struct roll_command *self, struct rehearsal *r)
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

/* Reads what is compared with, and sees whether the file of --save can be written, before the job runs for nothing. 0,
 * or the exit code. */
static int check_files(struct rehearsal *r)
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

/* Finds the interpreter of the job, and whether it has a CUDA wheel of PyTorch. 0, or the exit code. */
static int find_python(struct rehearsal *r)
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
    return 0;
}

/* Says what a job that has failed may have lacked. A program that is started as it is needs no wheel; a script does, as
 * far as anybody knows. */
static void say_no_wheel(const struct rehearsal *r)
{
    char path[PATH_MAX];
    struct roll_program program;
    bool is_script = fnmatch("*python*", r->interpreter, 0) == 0 || fnmatch("*sh", r->o.command[0], 0) == 0 ||
                     (roll_program_find(r->o.command[0], path, sizeof(path)) &&
                      roll_program_inspect(path, &program) == 0 && program.script);
    if (!r->has_wheel && is_script) {
        roll_say("no PyTorch for CUDA was found for this command (looked at %s), so nothing stood in for cuBLAS, cuDNN "
                 "and the like: if the job wanted one of them, name its interpreter with --python",
                 r->interpreter);
    }
}

/* Picks what the ranks import once for all of them: what the user says, else PyTorch where it is there. */
static void pick_zygote(struct rehearsal *r)
{
    bool is_python = started(r) > 1 && roll_python_script(r->o.command) >= 0 && r->place.zygote[0] != '\0';
    if (r->zygote != NULL) {
        r->o.zygote = strcmp(r->zygote, "none") != 0 && r->place.zygote[0] != '\0' ? r->zygote : NULL;
    } else if (is_python && r->has_wheel) {
        r->o.zygote = "torch";
    }
}

/* The rings of the ranks, without which there is no report. */
static int check_room(const struct rehearsal *r)
{
    char dir[PATH_MAX], room[32], want[32];
    uint32_t ranks = started(r) > 0 ? started(r) : 1;
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

static int check_memory(const struct rehearsal *r)
{
    uint32_t ranks = started(r) > 0 ? started(r) : 1;
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

/* What keeps the rehearsal from starting, one line each. 0, or the exit code. */
static int check_machine(struct rehearsal *r)
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

/* Makes our folder, with stand-ins for a wheel, and opens the file of --json before the job starts. 0, or the exit
 * code. */
static int prepare(struct rehearsal *r)
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
    if (r->json != NULL && asked == 0) {
        r->out = strcmp(r->json, "-") == 0 ? fdopen(dup(STDOUT_FILENO), "w") : fopen(r->json, "we");
        if (r->out == NULL && asked == 0) {
            roll_say("--json: cannot write %s: %s", r->json, strerror(errno));
            return ROLL_EXIT_UNREACHABLE;
        }
    }
    return 0;
}

/* What the stand-ins read. A variable that the user has set stays. */
static void set_environment(const struct rehearsal *r)
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
    if (started(r) > 1) {
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

/* Keeps what a live job is expected to do, if the rehearsal went well. 0, or the exit code. */
static int save(const struct rehearsal *r, const json_t *report, const struct roll_expected *expected, int code)
{
    const char *why = roll_json_int(report, "findings_count", 0) > 0 ? "there was a finding"
                      : code != 0                                    ? "the job did not end well"
                      : roll_json_int(report, "lost", 0) > 0         ? "records were lost"
                      : expected == NULL                             ? "there were too many calls for it"
                                                                     : NULL;
    if (why != NULL) {
        roll_say("--save: %s is not written, because %s", r->save, why);
        return ROLL_EXIT_UNREACHABLE;
    }
    int err = roll_expected_write(expected, r->save);
    if (err != 0) {
        roll_say("--save: cannot write %s: %s", r->save,
                 err == ROLL_E_SIZE    ? "it would be larger than 16 MiB: rehearse fewer steps"
                 : err == ROLL_E_NOMEM ? "not enough memory"
                                       : strerror(errno));
        return ROLL_EXIT_UNREACHABLE;
    }
    struct stat st;
    char size[32];
    if (!r->o.quiet && stat(r->save, &st) == 0) {
        roll_say("saved %s: %s, %u ranks, %" PRIu64 " calls", r->save,
                 roll_units_bytes_text((double)st.st_size, size, sizeof(size)), expected->ranks,
                 (uint64_t)roll_json_int(report, "calls", 0));
    }
    if (!r->o.quiet && !expected->repeats) {
        roll_say("--save: nothing repeats in these calls, so a live job is compared up to their end only: rehearse "
                 "more steps (six are enough for most jobs; DDP rearranges its buckets in the second)");
    }
    return 0;
}

/* Why there is no report. */
static void say_nothing(const json_t *report, const struct roll_rehearse_rank *rank, uint32_t ranks)
{
    uint32_t i = 0;
    while (rank != NULL && i < ranks && (!rank[i].has_ended || rank[i].status == 0)) {
        i++;
    }
    if (report == NULL) {
        roll_say("not enough memory for the report");
    } else if (rank != NULL && i < ranks) {
        roll_say("no rank recorded a call of NCCL, so there is nothing to report; rank %u ended with code %d", i,
                 roll_run_code(rank[i].status));
    } else {
        roll_say("no rank recorded a call of NCCL, so there is nothing to report");
    }
}

/* Reports, keeps and compares. Returns the exit code, which was `code` so far: the job's own comes first. */
static int report(struct rehearsal *r, const uint64_t *peak, uint32_t ranks, int code)
{
    struct roll_rehearse_rank *rank = calloc((size_t)ranks + 1, sizeof(*rank));
    struct roll_expected *expected = NULL;
    bool wants = r->save != NULL || r->before != NULL;
    int own = 0;
    for (uint32_t i = 0; rank != NULL && i < ranks; i++) {
        rank[i].peak_bytes = peak[i];
        rank[i].has_ended = r->o.status[i] != ROLL_EXIT_UNKNOWN;
        rank[i].status = r->o.status[i];
    }
    json_t *out =
        rank != NULL ? roll_rehearse_report(r->o.trace, r->folder, rank, ranks, wants ? &expected : NULL) : NULL;
    bool has_ranks = out != NULL && roll_json_int(out, "ranks", 0) > 0;
    if (!has_ranks && !r->o.quiet) {
        say_nothing(out, rank, ranks);
        if (code != 0) {
            say_no_wheel(r);
        }
    }
    if (out != NULL) {
        json_object_set_new(out, "code", json_integer(code));
    }
    json_t *steered = out != NULL ? roll_steered_json(r->folder) : NULL;
    if (steered != NULL) {
        json_object_set_new(out, "steered", steered);
    }
    if (out != NULL && r->o.run != NULL) {
        json_object_set_new(out, "represent",
                            json_pack("{s:o,s:i}", "ranks", roll_ranks_text_json(r->o.run), "of", (int)r->o.ranks));
    }
    if (out != NULL && r->before != NULL && expected != NULL) {
        json_t *difference = roll_expected_differ(r->before, expected);
        own = r->fail_on_difference && roll_json_int(difference, "count", 0) > 0 ? ROLL_EXIT_FINDING : own;
        json_object_set_new(out, "difference", difference);
    } else if (r->before != NULL) {
        roll_say("--against: there were too many calls, or too little memory, to compare with %s", r->against);
        own = ROLL_EXIT_UNREACHABLE;
    }
    if (out != NULL) {
        if (r->out != NULL && roll_json_line(out, r->out) != 0) {
            roll_say("--json: cannot write %s", r->json);
        }
        if (has_ranks && !r->o.quiet) {
            roll_rehearse_print(out, stderr);
            fflush(stderr);
        }
    }
    if (r->save != NULL) {
        int saved = out != NULL && has_ranks ? save(r, out, expected, code) : ROLL_EXIT_UNREACHABLE;
        own = own != 0 ? own : saved;
    }
    roll_expected_destroy(&expected);
    json_decref(out);
    free(rank);
    return code != 0 ? code : own;
}

int cmd_rehearse(const struct roll_command *self, int argc, char **argv)
{
    static struct rehearsal r; /* large */
    r = (struct rehearsal){.o = {.grace_s = 5,
                                 .start_s = START_S,
                                 .hostnccl = true,
                                 .rehearses = true,
                                 .python_stacks = true,
                                 .brief = true, /* the report tells it */
                                 .bind = ROLL_BIND_PRELOAD,
                                 .behind = r.preload}};
    const struct roll_option options[] = {
        {"ranks", 'n', ROLL_OPT_COUNT, "N", "start N ranks here (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_*)", &r.o.ranks},
        {"nodes", 0, ROLL_OPT_COUNT, "N", "the ranks believe that they are spread over N nodes", &r.o.nodes},
        {"represent", 0, ROLL_OPT_TEXT, "RANKS:N",
         "of N ranks only these run (8:64, or a set like 0,8,16:64), the others are stood in for", &r.represent},
        {"memory", 0, ROLL_OPT_TEXT, "SIZE", "memory of each device (K, M, G; see docs/HOSTCUDA.md)", &r.memory},
        {"steps", 0, ROLL_OPT_COUNT, "K", "end a PyTorch job when K training steps are over", &r.steering.steps},
        {"compute", 0, ROLL_OPT_TEXT, "SIZE", "PyTorch's operations on tensors up to SIZE are computed; 64K, off",
         &r.steering.compute},
        {"values", 0, ROLL_OPT_TEXT, "WHAT", "what nobody computed reads as: zero, random:SEED[,same|,different]",
         &r.steering.values},
        {"python", 0, ROLL_OPT_TEXT, "FILE", "the interpreter of the job, where the command does not tell", &r.python},
        {"zygote", 0, ROLL_OPT_TEXT, "MODULES",
         "import these once for all ranks of a Python job; none: in each rank (default: torch, where it is there)",
         &r.zygote},
        {"json", 0, ROLL_OPT_TEXT, "FILE", "the report as one rollcall.rehearsal/1 object; - is standard output",
         &r.json},
        {"trace", 0, ROLL_OPT_TEXT, "DIR", "keep everything recorded, for `rollcall analyze`", &r.o.trace},
        {"timeout", 0, ROLL_OPT_SECONDS, "S", "end a job in which nothing has moved for S seconds (code 124)",
         &r.o.timeout_s},
        {"grace", 0, ROLL_OPT_SECONDS, "S", "between SIGTERM and SIGKILL; 5 when not given", &r.o.grace_s},
        {"fail-on-finding", 0, ROLL_OPT_FLAG, NULL,
         "where the job ends with 0: code 1 when there was a finding, 3 when nobody watched", &r.o.fail_on_finding},
        {"save", 0, ROLL_OPT_TEXT, "FILE", "keep what each rank does, for `rollcall run --expect` and --against",
         &r.save},
        {"against", 0, ROLL_OPT_TEXT, "FILE", "report what differs from the rehearsal that was saved there",
         &r.against},
        {"fail-on-difference", 0, ROLL_OPT_FLAG, NULL, "code 1 when something differs and the job itself ended with 0",
         &r.fail_on_difference},
        {"nvtx", 0, ROLL_OPT_FLAG, NULL,
         "steps are read from the job's NVTX ranges and marks, where no profiler reads them", &r.o.nvtx},
        {"force", 0, ROLL_OPT_FLAG, NULL,
         "also with a GPU, a PyTorch that is unknown or without CUDA, or too little memory", &r.force},
        {"prefix", 0, ROLL_OPT_FLAG, NULL, "the rank in front of each line that it prints", &r.o.prefix},
        {"verbose", 'v', ROLL_OPT_FLAG, NULL, "every frame of a call in a verdict: libraries and native code as well",
         &r.o.frames},
        {"quiet", 'q', ROLL_OPT_FLAG, NULL, "print neither verdicts nor the report", &r.o.quiet},
        {0},
    };
    int code;
    int first = roll_options_read(self, options, true, argc, argv, &code);
    if (first < 0) {
        return code;
    }
    r.o.command = argv + first;
    roll_place_find(&r.place);
    code = check_options(self, &r);
    const char *script = code == 0 ? roll_missing_script(r.o.command) : NULL;
    if (script != NULL) {
        roll_say("%s: no such script; nothing was started", script);
        code = 127;
    }
    code = code != 0 ? code : check_files(&r);
    code = code != 0 ? code : find_python(&r);
    pick_zygote(&r);
    code = code != 0 ? code : check_machine(&r);
    uint64_t *peak = code == 0 ? calloc((size_t)r.o.ranks + 1, sizeof(*peak)) : NULL;
    r.o.status = code == 0 ? calloc((size_t)r.o.ranks + 1, sizeof(*r.o.status)) : NULL;
    for (uint32_t i = 0; r.o.status != NULL && i < r.o.ranks; i++) {
        r.o.status[i] = ROLL_EXIT_UNKNOWN;
    }
    if (code == 0) {
        note_signals();
        code = prepare(&r);
        code = asked != 0 ? 128 + (int)asked : code;
    }
    if (code == 0 && peak != NULL && r.o.status != NULL) {
        r.o.scratch = r.folder;
        r.o.trace = r.o.trace != NULL ? r.o.trace : r.folder;
        set_environment(&r);
        code = roll_run_launch(&r.o, &r.place, NULL, peak);
        if (code != 126 && code != 127) {
            code = report(&r, peak, r.o.ranks, code);
        }
        code = asked != 0 ? 128 + (int)asked : code; /* while the report was made */
    }
    if (r.out != NULL && fclose(r.out) != 0) {
        roll_say("--json: cannot write %s: %s", r.json, strerror(errno));
    }
    if (r.folder[0] != '\0') {
        roll_directory_remove(r.folder);
    }
    roll_expected_destroy(&r.before);
    roll_rankset_fini(&r.run);
    free(peak);
    free(r.o.status);
    return code;
}
