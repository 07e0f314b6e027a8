/*
 * record.c: checks a record from outside, and writes one as a line for people.
 */
#include "trace/record.h"
#include "trace/err.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

int roll_record_check(const struct roll_record *rec)
{
    enum roll_state state = roll_seal_state(rec->seal);
    if (state < ROLL_STATE_ENTERED || state > ROLL_STATE_COMPLETE) {
        return ROLL_E_CORRUPT;
    }
    if (rec->op == ROLL_OP_NONE) { /* another unknown one may be of a newer writer */
        return ROLL_E_CORRUPT;
    }
    if (rec->dtype >= ROLL_DTYPE_LIMIT && rec->dtype != ROLL_DTYPE_NONE) {
        return ROLL_E_CORRUPT;
    }
    if (rec->redop >= ROLL_RED_LIMIT && rec->redop != ROLL_RED_NONE) {
        return ROLL_E_CORRUPT;
    }
    return rec->phase <= ROLL_PHASE_OPTIMIZER ? ROLL_OK : ROLL_E_CORRUPT;
}

struct line {
    char *out;
    size_t size;
    size_t used; /* length wanted so far */
};

static void __attribute__((format(printf, 2, 3))) add(struct line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t at = line->used < line->size ? line->used : line->size;
    int n = vsnprintf(line->size > at ? line->out + at : NULL, line->size - at, format, args);
    va_end(args);
    line->used += n > 0 ? (size_t)n : 0;
}

static void add_duration(struct line *line, uint32_t ns)
{
    if (ns < 10000) {
        add(line, " %" PRIu32 " ns", ns);
    } else if (ns < 10000000) {
        add(line, " %.1f us", ns / 1e3);
    } else {
        add(line, " %.1f ms", ns / 1e6);
    }
}

/* What the program was given, by NCCL or by rollcall; of a loop of polls, how it ended. What another library returned,
 * and a number without a name, stays a number. */
static void add_result(struct line *line, const struct roll_record *rec)
{
    static const char *const polls[] = {"ready", "left", "goes on"};
    enum roll_op_class class = roll_op_class(rec->op);
    bool nccl =
        class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_COMM || class == ROLL_CLASS_GROUP;
    bool named = nccl ? *roll_result_name(rec->result) != '?' : class == ROLL_CLASS_POLL && rec->result < 3;
    if (!named) {
        add(line, " result %u", rec->result);
    } else {
        add(line, " result %s", nccl ? roll_result_name(rec->result) : polls[rec->result]);
    }
    if (named && nccl && (rec->result & ROLL_RESULT_DECLINED) != 0) {
        add(line, " (refused by rollcall)");
    }
}

static void add_state(struct line *line, const struct roll_record *rec)
{
    static const char *const names[] = {"unwritten", "entered", "returned", "complete"};
    unsigned state = (unsigned)roll_seal_state(rec->seal);
    add(line, " %s", state < 4 ? names[state] : "?");
    if (state >= ROLL_STATE_RETURNED) {
        add_duration(line, rec->call_ns);
        if (rec->result != 0) {
            add_result(line, rec);
        }
    }
}

static void add_flags(struct line *line, const struct roll_record *rec)
{
    static const char *const names[] = {"captured", "in-group", "in-place", "nonblocking", "bytes"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if ((rec->flags & (1u << i)) != 0) {
            add(line, " %s", names[i]);
        }
    }
}

int roll_record_format(const struct roll_record *rec, char *out, size_t size)
{
    struct line line = {out, size, 0};
    add(&line, "#%" PRIu64 " %s comm %u seq %" PRIu32, roll_seal_ticket(rec->seal), roll_op_name(rec->op), rec->comm,
        rec->seq);
    add(&line, " count %" PRIu64, rec->count);
    if (rec->dtype != ROLL_DTYPE_NONE) {
        add(&line, " %s", roll_dtype_name(rec->dtype));
    }
    if (rec->redop != ROLL_RED_NONE) {
        add(&line, " %s", roll_redop_name(rec->redop));
    }
    if (rec->peer != ROLL_PEER_NONE) {
        add(&line, " %s %" PRId32, roll_op_class(rec->op) == ROLL_CLASS_COLL ? "root" : "peer", rec->peer);
    }
    add_state(&line, rec);
    if (rec->group != 0) {
        add(&line, " group %" PRIu32, rec->group);
    }
    if (rec->step != ROLL_STEP_NONE) {
        add(&line, " step %" PRIu32 " microbatch %u", rec->step, rec->microbatch);
    }
    if (rec->layer != ROLL_LAYER_NONE) {
        add(&line, " layer %u", rec->layer);
    }
    if (rec->phase != ROLL_PHASE_NONE) {
        add(&line, " %s", roll_phase_name(rec->phase));
    }
    if (rec->aux != 0) {
        add(&line, " aux %u", rec->aux);
    }
    add_flags(&line, rec);
    add(&line, " stream %u thread %u callsite %u at %" PRIu64 " ns", rec->stream, rec->thread, rec->callsite,
        rec->enter_ns);
    return (int)line.used;
}
