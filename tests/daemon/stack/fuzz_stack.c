/*
 * fuzz_stack.c: what comes out of foreign processes: dumps of CPython and py-spy, line tables, tables of offsets, and
 * the reader's answers on their way into the merged tree. The first byte chooses the decoder.
 */
#include "daemon/stack/python_dump.h"
#include "daemon/stack/stack_merge.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void dumps(const uint8_t *data, size_t size, bool spy)
{
    struct roll_text_pool pool = {0};
    struct roll_py_stacks stacks;
    if (spy) {
        roll_py_spy_parse((const char *)data, size, &pool, &stacks);
    } else {
        roll_py_dump_parse((const char *)data, size, &pool, &stacks);
    }
    for (size_t i = 0; i < stacks.threads; i++) {
        for (size_t k = 0; k < stacks.thread[i].frames; k++) {
            if (!stacks.thread[i].frame[k].function || !stacks.thread[i].frame[k].file) {
                abort();
            }
        }
    }
    roll_py_stacks_fini(&stacks);
    roll_text_pool_fini(&pool);
}

static void layouts(const uint8_t *data, size_t size)
{
    uint64_t words[ROLL_PY_OFFSET_WORDS] = {0};
    struct roll_py_layout layout;
    size_t bytes = size < sizeof(words) ? size : sizeof(words);
    memcpy(words, data, bytes);
    memcpy(words, "xdebugpy", 8);
    if (roll_py_layout_read(words, bytes / 8, &layout) == 0 && layout.frame_at > ROLL_PY_FRAME_BYTES - 8) {
        abort();
    }
}

static void trees(const uint8_t *data, size_t size)
{
    json_t *json = json_loadb((const char *)data, size, 0, NULL);
    struct roll_stack_tree tree = {0};
    for (int which = ROLL_STACK_ALL; json && which <= ROLL_STACK_OTHERS; which++) {
        roll_stack_tree_add(&tree, (uint32_t)which, json, (enum roll_stack_threads)which);
    }
    roll_stack_tree_sort(&tree);
    json_decref(roll_stack_tree_json(&tree));
    roll_stack_tree_fini(&tree);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) {
        return 0;
    }
    switch (data[0] % 5) {
    case 0:
    case 1:
        dumps(data + 1, size - 1, data[0] % 5 == 1);
        break;
    case 2:
        layouts(data + 1, size - 1);
        break;
    case 3:
        trees(data + 1, size - 1);
        break;
    default:
        roll_py_line((enum roll_py_lines)(data[1] % 3), data + 4, size - 4, data[2], data[3]);
        break;
    }
    return 0;
}
