/*
 * op.c: labels and classes of operations, datatypes, reductions and phases, as tables over the wire numbers.
 *
 * Tables indexed by number, not switches: the engine asks for the class of every record.
 */
#include "trace/op.h"
#include "trace/record.h"

#include <string.h>

static const char *const op_labels[ROLL_OP_LIMIT] = {
#define ROLL_OP_ROW(name, id, label, class, traits) [id] = (label),
#include "trace/op.def"
#undef ROLL_OP_ROW
};

const uint8_t roll_op_classes[ROLL_OP_LIMIT] = {
#define ROLL_OP_ROW(name, id, label, class, traits) [id] = ROLL_CLASS_##class,
#include "trace/op.def"
#undef ROLL_OP_ROW
};

#define ROLL_OP_ROW(name, id, label, class, traits) _Static_assert((traits) == 0 || (id) < 64, label " has traits");
#include "trace/op.def"
#undef ROLL_OP_ROW

static const char *const dtype_labels[ROLL_DTYPE_LIMIT] = {
#define ROLL_DTYPE_ROW(name, number, label, bytes) [number] = (label),
#include "trace/dtype.def"
#undef ROLL_DTYPE_ROW
};

static const char *const redop_labels[ROLL_RED_LIMIT] = {"sum", "prod", "max", "min", "avg", "premulsum"};
static const char *const phase_labels[] = {"none", "forward", "backward", "recompute", "reduce", "optimizer"};

const char *roll_op_name(unsigned op)
{
    return op < ROLL_OP_LIMIT && op_labels[op] != NULL ? op_labels[op] : "?";
}

enum roll_op roll_op_by_name(const char *label)
{
    for (unsigned op = 1; op < ROLL_OP_LIMIT; op++) {
        if (op_labels[op] != NULL && strcmp(op_labels[op], label) == 0) {
            return (enum roll_op)op;
        }
    }
    return ROLL_OP_NONE;
}

const char *roll_dtype_name(unsigned dtype)
{
    if (dtype == ROLL_DTYPE_NONE) {
        return "none";
    }
    return dtype < ROLL_DTYPE_LIMIT ? dtype_labels[dtype] : "?";
}

const char *roll_redop_name(unsigned redop)
{
    if (redop == ROLL_RED_NONE) {
        return "none";
    }
    return redop < ROLL_RED_LIMIT ? redop_labels[redop] : "?";
}

const char *roll_result_name(unsigned result)
{
    static const char *const names[] = {
        "ncclSuccess",      "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
        "ncclInvalidUsage", "ncclRemoteError",        "ncclInProgress",  "ncclTimeout",
    };
    unsigned given = result & ~ROLL_RESULT_DECLINED; /* what the program was given, whoever refused the call */
    return given < sizeof(names) / sizeof(names[0]) ? names[given] : "?";
}

const char *roll_phase_name(unsigned phase)
{
    return phase < sizeof(phase_labels) / sizeof(phase_labels[0]) ? phase_labels[phase] : "?";
}
