/*
 * failfast_say.h: the words of a refusal: which rank, which argument, both values, both places in the code.
 */
#ifndef ROLL_INTERPOSER_FAILFAST_FAILFAST_SAY_H
#define ROLL_INTERPOSER_FAILFAST_FAILFAST_SAY_H

#include "interposer/record/comms.h"
#include "trace/compare.h"
#include "trace/ident.h"

/* Remembers where the job's rings lie. Under roll_lock. */
void roll_failfast_say_start(const char *dir, const struct roll_ident *ident);

/* Says that `mine`, made at pc, is refused because `theirs` stands at its place: one line on standard error, and the
 * text that ncclGetLastError gives. Borrows all. Slow: opens the other rank's ring, asks the loader. Any thread. */
void roll_failfast_say(const struct roll_comm *comm, const struct roll_compare_call *mine, uintptr_t pc,
                       const struct roll_compare_call *theirs);

/* Says that `call` is refused because fail-fast has aborted its communicator. */
void roll_failfast_say_aborted(const struct roll_comm *comm, const struct roll_compare_call *call);

/* Notes NCCL's text of now as caused by ourselves, so that it does not replace our text. */
void roll_failfast_say_settled(void);

#endif
