/*
 * fuzz_def.c: arbitrary bytes as a log of definitions, at every alignment; everything borrowed is read to its last
 * byte.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/def.h"
#include "trace/err.h"

#include <string.h>

static unsigned long sum;

static void touch(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++) {
        sum += p[i];
    }
}

static void touch_all(const struct roll_def *def)
{
    switch (def->type) {
    case ROLL_DEF_COMM:
        touch(def->comm.label, def->comm.info.label_bytes);
        PROMISE(def->comm.info.rank >= 0 && def->comm.info.rank < def->comm.info.nranks);
        break;
    case ROLL_DEF_CALLSITE:
        PROMISE(def->callsite.depth <= ROLL_CALLSITE_DEPTH);
        touch(def->callsite.pc, def->callsite.depth * sizeof(def->callsite.pc[0]));
        break;
    case ROLL_DEF_MODULE:
        touch(def->module.path, def->module.info.path_bytes);
        PROMISE(def->module.info.build_id_bytes <= 20);
        break;
    case ROLL_DEF_THREAD:
        touch(def->thread.name, def->thread.name_bytes);
        break;
    case ROLL_DEF_LAYER:
        touch(def->layer.name, def->layer.name_bytes);
        break;
    default:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t shift = bytes % 8;
    uint8_t *copy = malloc(bytes + shift + 1);
    PROMISE(copy != NULL);
    memcpy(copy + shift, data, bytes);
    size_t offset = 0;
    struct roll_def def;
    int err = ROLL_OK;
    while (err == ROLL_OK) {
        size_t before = offset;
        err = roll_def_decode(copy + shift, bytes, &offset, &def);
        PROMISE(offset <= bytes && (err == ROLL_OK) == (offset > before));
        if (err == ROLL_OK) {
            PROMISE(def.id >= 1 && def.id <= UINT16_MAX);
            touch_all(&def);
        }
    }
    PROMISE(err == ROLL_E_NOTFOUND || err == ROLL_E_SHORT || err == ROLL_E_SIZE || err == ROLL_E_CORRUPT);
    free(copy);
    return 0;
}
