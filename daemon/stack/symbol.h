/*
 * symbol.h: names for call sites: function, file and line from the addresses that a rank recorded, and the lines of
 * Python that it recorded by name.
 *
 * It works without the process: modules are found by path and accepted only with the build id that the rank noted, so a
 * rebuilt program gives module and offset, never a wrong line. Nothing is fetched over a network. One thread per table.
 */
#ifndef ROLL_DAEMON_STACK_SYMBOL_H
#define ROLL_DAEMON_STACK_SYMBOL_H

#include "trace/def.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct roll_symbols roll_symbols_t;

#define ROLL_SYMBOL_FRAMES 24 /* frames kept per call site, inlined ones included */

/* One frame of a call site: those of Python, innermost first, those of Python where the main thread stood, likewise,
 * and then the native ones. Strings are owned by the table and live as long as it does. */
struct roll_symbol_frame {
    const char *function; /* demangled; qualified in Python; "" when unknown */
    const char *file;     /* as in the debug information; as Python names it; "" when unknown */
    unsigned line;        /* of the call; 0 when unknown */
    const char *module;   /* path of the program or library; "" when unknown */
    uint64_t offset;      /* address in the module's own numbering; the absolute address when the module is unknown */
    bool python, library; /* a line of Python, and one of a library's */
    bool stand;           /* of Python: where the main thread stood, while a thread without the user's lines called */
    uint32_t folded;      /* of Python: frames of libraries left out between the frame before and this one */
    const char *text;     /* of Python: what the line says in its file; "" when unknown */
};

/* NULL when out of memory. */
roll_symbols_t *roll_symbols_new(void);
void roll_symbols_destroy(roll_symbols_t **symbols);

/*
 * From now on reads the debug information of call sites as soon as they are defined, on a thread of its own, so that
 * the first verdict need not wait for it. The frames are the same with and without. Where no thread can be had, frames
 * are read when they are first shown. The same thread closes the files again when no call site has been defined for 5
 * s.
 */
void roll_symbols_warm(roll_symbols_t *symbols);

/* How many files are open at the moment. */
size_t roll_symbols_open(const roll_symbols_t *symbols);

/* Takes note of a definition (borrowed) of the ring with this epoch; only MODULE, CALLSITE, SOURCE, LINE, STAND and
 * TEXT matter. 0 or NOMEM. */
int roll_symbols_define(roll_symbols_t *symbols, uint64_t epoch, const struct roll_def *def);

/*
 * The frames of call site `id` of a ring, innermost first, frames inside rollcall's own preload library left out.
 * Symbolised on first use (a few ms per module), then remembered. Returns the number of frames written, at most max;
 * 0 for an unknown call site or when out of memory.
 */
int roll_symbols_callsite(roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out,
                          size_t max);

/* The same as far as it is known by now: native frames only where all of them have been looked up before, which
 * roll_symbols_warm sees to. No file is read and nobody waited for: as often and for as many ranks as anybody likes. */
int roll_symbols_known(roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out, size_t max);

/* The frames of Python alone, likewise. */
int roll_symbols_lines(const roll_symbols_t *symbols, uint64_t epoch, uint32_t id, struct roll_symbol_frame *out,
                       size_t max);

/*
 * Says in a few words where a call site is, by its frames of Python: "train.py:88 step", or, where the main thread
 * stood there, "in backward, started at train.py:88 step". *text becomes what the line says, "" when unknown. False:
 * no frame says it. What does not fit is cut.
 */
bool roll_symbols_place(const struct roll_symbol_frame *frame, size_t frames, char *out, size_t size,
                        const char **text);
/* The same by the native frames: the innermost one whose line is known, "train.c:88 step". False: none is. */
bool roll_symbols_native_place(const struct roll_symbol_frame *frame, size_t frames, char *out, size_t size);
/* The words in front of a place where the main thread stood. */
const char *roll_symbols_stand_words(bool backward);

#endif
