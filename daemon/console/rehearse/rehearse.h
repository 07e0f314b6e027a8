/*
 * rehearse.h: the parts of `rollcall rehearse`: what must hold before it starts, which libraries stand in, and the
 * report at its end. cmd_rehearse.c puts them together. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REHEARSE_REHEARSE_H
#define ROLL_DAEMON_CONSOLE_REHEARSE_REHEARSE_H

#include "daemon/console/place.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/expect/expect.h"
#include "daemon/feed/feed.h"
#include "trace/rankset.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* some of the ranks (represent.c) */

/* Reads the value of --represent: "8:64", of 64 ranks the first 8 run; "0,8,16-19:64", these; without ":64" of `ranks`
 * (0 = unknown). *run is to be empty, and owned by the caller; *world: the ranks that the job believes in. 0, or ARG
 * with what is wanted in `why`. */
int roll_represent_read(const char *text, uint32_t ranks, struct roll_rankset *run, uint32_t *world, char *why,
                        size_t size);

/* before the job (before.c): each refusal is one line in `why`, and a reason for exit code 3 */

/* Whether a folder of devices ("/dev") holds a GPU of NVIDIA; then `out` is its path. */
bool roll_rehearse_gpu(const char *devices, char *out, size_t size);

/* What a job takes at least: for all ranks together, and for each. A guess that refuses only what cannot end well. */
struct roll_rehearse_cost {
    uint64_t all_bytes, rank_bytes;
};
/* has_framework: the ranks are Python interpreters with a framework in them. is_shared: they are forked from
 * interpreters that have imported it; then as many ranks as there are processors end at one time. */
struct roll_rehearse_cost roll_rehearse_cost(bool has_framework, bool is_shared, unsigned processors);

/* Bytes that can be had on this machine, or in the control group (folder of memory.max and memory.current) if that is
 * less; UINT64_MAX when nothing tells. */
uint64_t roll_rehearse_free_bytes(const char *meminfo, const char *group);

/* the interpreter and its PyTorch (wheel.c) */

/* The file that the shell would start for this command; links are not followed. False where there is none. */
bool roll_program_find(const char *command, char *out, size_t size);

/*
 * The Python interpreter that a command comes to (ended by NULL): named, behind `env` and programs that start programs,
 * in the first line of a script, or, for a shell script, that of the environment which is active. A program that is no
 * interpreter is its own answer. False where nothing tells.
 */
bool roll_rehearse_interpreter(char *const command[], char *out, size_t size);

/*
 * The folder of an interpreter's packages, where a CUDA wheel of PyTorch is among them. Where it does not lie beside
 * the interpreter, the interpreter is run and asked, without PyTorch, and given 20 s. False: there is none.
 */
bool roll_rehearse_packages(const char *interpreter, char *out, size_t size);

/* Whether the interpreter's PyTorch is one without CUDA (a wheel for processors alone, or for another maker's GPUs),
 * and the folder of packages that it is in. */
bool roll_rehearse_without_cuda(const char *interpreter, char *out, size_t size);

/* Runs an interpreter with one line of Python and takes the first line that it prints, within 20 s. False: it prints
 * none. */
bool roll_rehearse_ask(const char *interpreter, const char *question, char *out, size_t size);

/* The library of that wheel (libtorch_cuda.so). False: there is none. */
bool roll_rehearse_wheel(const char *interpreter, char *out, size_t size);

/* Finds the NCCL that lies beside such a wheel, which the job uses on a machine with GPUs. */
bool roll_rehearse_nccl(const char *command, char *out, size_t size);

/* the libraries (standin.c) */

/*
 * The stand-ins as a list for LD_PRELOAD, in the order in which they have to be loaded: the runtime and the driver,
 * NCCL, then all others by name. `folder` is place.hostnccl. Of several runtimes the list has one: that of the release
 * of CUDA which the wheel beside `command`, or `command` itself, was made for, else the newest. 0; NOTFOUND: no
 * libnccl.so.2 there; SIZE; ARG: the path holds a blank or a colon, which LD_PRELOAD cannot.
 */
int roll_rehearse_preload(const char *folder, const char *command, char *out, size_t size);

/* The CUDA runtime that the wheel beside an interpreter was made for, "libcudart.so.12". False: no wheel, or it names
 * none. */
bool roll_rehearse_runtime(const char *command, char *out, size_t size);

/*
 * Compares what the libraries of the command's PyTorch wheel want with what the stand-ins of `preload` have. The wheel
 * is that of the interpreter `command`; nothing of it runs. Returns the number of functions that no stand-in
 * has (0 also where there is no wheel); then `out` names the library and the first of them.
 */
size_t roll_rehearse_lacking(const char *command, const char *preload, char *out, size_t size);

/*
 * Where a CUDA wheel of PyTorch lies beside the interpreter `command`: writes stand-ins for the mathematics libraries
 * that its packages want into the folder `into`, and adds them to `preload`, which has room for `size` bytes. 0, also
 * without a wheel; else an error, with one line in `why`.
 */
int roll_rehearse_write(const char *folder, const char *command, const char *into, char *preload, size_t size,
                        char *why, size_t why_size);

/* the report (report.c, report_text.c) */

/* What the launcher knows of one rank: the most host memory that its process had, 0 = unknown; and how it ended. */
struct roll_rehearse_rank {
    uint64_t peak_bytes;
    bool has_ended; /* by itself, and not because the job was ended */
    int status;     /* wait status */
};

/*
 * Reads the trace of the job in `trace` and what its processes noted about their devices in `notes` (a folder of
 * HOSTCUDA_REPORT). Returns one object "rollcall.rehearsal/1" (docs/REHEARSE.md), owned; without ranks where
 * the trace holds no run. NULL: out of memory. *expected (NULL: not wanted): what a live job is expected to do by this,
 * owned; NULL where a rank made too many calls for that, or memory was short.
 */
json_t *roll_rehearse_report(const char *trace, const char *notes, const struct roll_rehearse_rank *rank, size_t ranks,
                             struct roll_expected **expected);

/* the order of the calls (order.c), as the report reads them; `ring` numbers the rings from 0 */

typedef struct roll_rehearse_order roll_rehearse_order_t;

roll_rehearse_order_t *roll_rehearse_order_new(void); /* NULL: no memory */
void roll_rehearse_order_destroy(roll_rehearse_order_t **order);
/* A communicator as this ring defines it. 0, NOMEM. */
int roll_rehearse_order_comm(roll_rehearse_order_t *order, size_t ring, uint64_t stream, uint32_t id,
                             const struct roll_def_comm *def);
/* The next call of this ring; calls of other kinds are left out. 0, NOMEM. */
int roll_rehearse_order_call(roll_rehearse_order_t *order, size_t ring, const struct roll_record *rec);
/* Finds the step of each rank, behind the last call: as its process told, else what repeats in its calls (step.c). 0,
 * NOMEM. */
int roll_rehearse_order_learn(roll_rehearse_order_t *order, roll_feed_t *feed, const struct roll_steered_steps *told,
                              size_t tolds);
/* How many steps the processes told of; 0: none. */
uint64_t roll_rehearse_order_told(const roll_rehearse_order_t *order);
/* How often the step was found on the rank on which it was most often; 0: nothing repeats. */
uint32_t roll_rehearse_order_steps(const roll_rehearse_order_t *order);
/* The calls and bytes of one such step of a ring, with one operation on the communicator that it knows as `comm`: the
 * mean where steps are told. */
void roll_rehearse_order_step(const roll_rehearse_order_t *order, size_t ring, uint32_t comm, unsigned op,
                              double *calls, double *bytes);
/* The order of a step on one rank, and which communicators may have calls in flight together, owned; NULL: no step.
 * comms: of the report, which numbers them. */
json_t *roll_rehearse_order_json(const roll_rehearse_order_t *order, roll_feed_t *feed, const json_t *comms);
/* Makes what is expected of a live job; once, at the end. feed has been fed the same; report is that of
 * roll_rehearse_report. 0; LIMIT: a rank made too many calls; NOMEM. */
int roll_rehearse_order_expected(roll_rehearse_order_t *order, roll_feed_t *feed, const json_t *report,
                                 struct roll_expected **out);

/* The report's communicators, where a family of many is one row (report_fold.c), as an owned array: each with the
 * `number` of its first communicator, from 1. *numbers, owned: for each communicator of the report that of its row. */
json_t *roll_rehearse_fold(const json_t *report, json_t **numbers);
/* Prints it for people. */
void roll_rehearse_print(const json_t *report, FILE *out);

#endif
