/*
 * cmd_rehearse.c: rollcall rehearse: a CUDA job with all its ranks on a machine without a GPU.
 *
 * `rollcall run` with the stand-ins preloaded, kernels and payloads left out, and a report at the end. What the report
 * tells is read from a trace, which is kept in a folder of ours where the user names none. The parts are those of
 * rehearse/rehearsal.h.
 */
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/console/rehearse/rehearsal.h"
#include "daemon/console/run/program.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int cmd_rehearse(const struct roll_command *self, int argc, char **argv);

#define START_S 120 /* how much longer than --timeout nothing may move while frameworks are imported */

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

int cmd_rehearse(const struct roll_command *self, int argc, char **argv)
{
    static struct roll_rehearsal r; /* large */
    r = (struct roll_rehearsal){.o = {.grace_s = 5,
                                      .start_s = START_S,
                                      .hostnccl = true,
                                      .rehearses = true,
                                      .python_stacks = true,
                                      .brief = true, /* the report tells it */
                                      .bind = ROLL_BIND_PRELOAD,
                                      .behind = r.preload},
                                .asked = &asked};
    const struct roll_option options[] = {
        {"ranks", 'n', ROLL_OPT_COUNT, "N", "start N ranks here (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_*)", &r.o.ranks},
        {"nodes", 0, ROLL_OPT_COUNT, "N", "the ranks believe that they are spread over N nodes", &r.o.nodes},
        {"represent", 0, ROLL_OPT_TEXT, "RANKS:N",
         "of N ranks only these run (8:64, or a set like 0,8,16:64), the others are stood in for", &r.represent},
        {"memory", 0, ROLL_OPT_TEXT, "SIZE", "memory of each device, from 64M (K, M, G)", &r.memory},
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
        {"grace", 0, ROLL_OPT_SECONDS, "S", "seconds between SIGTERM and SIGKILL (default 5)", &r.o.grace_s},
        {"fail-on-finding", 0, ROLL_OPT_FLAG, NULL,
         "where the job ends with 0: code 1 when there was a finding, 3 when nobody watched", &r.o.fail_on_finding},
        {"save", 0, ROLL_OPT_TEXT, "FILE", "keep what each rank does, for `rollcall run --expect` and --against",
         &r.save},
        {"against", 0, ROLL_OPT_TEXT, "FILE", "report what differs from the rehearsal that was saved there",
         &r.against},
        {"fail-on-difference", 0, ROLL_OPT_FLAG, NULL, "where the job ends with 0: code 1 when something differs",
         &r.fail_on_difference},
        {"nvtx", 0, ROLL_OPT_FLAG, NULL,
         "steps are read from the job's NVTX ranges and marks, where no profiler reads them", &r.o.nvtx},
        {"force", 0, ROLL_OPT_FLAG, NULL,
         "also with a GPU, a PyTorch that is unknown or without CUDA, or too little memory", &r.force},
        {"prefix", 0, ROLL_OPT_FLAG, NULL, "begin each line that a rank prints with the number of the rank",
         &r.o.prefix},
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
    code = roll_rehearsal_check_options(self, &r);
    const char *script = code == 0 ? roll_missing_script(r.o.command) : NULL;
    if (script != NULL) {
        roll_say("%s: no such script; nothing was started", script);
        code = 127;
    }
    code = code != 0 ? code : roll_rehearsal_check_files(&r);
    code = code != 0 ? code : roll_rehearsal_find_python(&r);
    code = code != 0 ? code : roll_rehearsal_check_machine(&r);
    uint64_t *peak = code == 0 ? calloc((size_t)r.o.ranks + 1, sizeof(*peak)) : NULL;
    r.o.status = code == 0 ? calloc((size_t)r.o.ranks + 1, sizeof(*r.o.status)) : NULL;
    for (uint32_t i = 0; r.o.status != NULL && i < r.o.ranks; i++) {
        r.o.status[i] = ROLL_EXIT_UNKNOWN;
    }
    if (code == 0) {
        note_signals();
        code = roll_rehearsal_prepare(&r);
        code = asked != 0 ? 128 + (int)asked : code;
    }
    if (code == 0 && peak != NULL && r.o.status != NULL) {
        r.o.scratch = r.folder;
        r.o.trace = r.o.trace != NULL ? r.o.trace : r.folder;
        roll_rehearsal_set_environment(&r);
        code = roll_run_launch(&r.o, &r.place, NULL, peak);
        if (code != 126 && code != 127) {
            code = roll_rehearsal_report(&r, peak, r.o.ranks, code);
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
