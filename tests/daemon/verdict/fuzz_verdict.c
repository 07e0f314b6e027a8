/*
 * fuzz_verdict.c: arbitrary JSON as verdicts of another process: consoles count and print what a daemon sent, and the
 * terminal must obey none of it.
 *
 * Input: one verdict, or an array of them.
 */
#include "daemon/verdict/verdict_tally.h"
#include "daemon/verdict/verdict_text.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Printed without colour, a verdict has no control character but the ends of its lines. */
static void check(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool c1 = c == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] >= 0x80 && (unsigned char)text[i + 1] < 0xa0;
        if ((c < 0x20 && c != '\n') || c == 0x7f || c1) {
            abort();
        }
    }
}

static void print_all(const json_t *list, bool color)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    for (size_t i = 0; out && i < json_array_size(list); i++) {
        const json_t *verdict = json_array_get(list, i);
        roll_verdict_print(out, verdict, color);
        roll_verdict_print_line(out, verdict, color);
        roll_verdict_print_line(out, verdict, color | ROLL_VERDICT_COLUMNS(50));
        roll_verdict_print_of(out, verdict, roll_verdict_json_retired_by(list, verdict), color);
    }
    if (out) {
        fclose(out);
    }
    if (!color) {
        check(text, bytes);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    json_t *list = json_is_array(json) ? json_incref(json) : json_array();
    struct roll_tally tally = {.row = NULL};
    if (!json_is_array(json)) {
        json_array_append(list, json);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        roll_tally_add_json(&tally, json_array_get(list, i));
    }
    if (roll_tally_findings(&tally) > json_array_size(list)) {
        abort();
    }
    roll_tally_fini(&tally);
    print_all(list, false);
    print_all(list, true);
    json_decref(list);
    json_decref(json);
    return 0;
}
