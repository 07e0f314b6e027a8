/*
 * job_words.c: words for what an export writes: of a class of operations, of a call site, and of whatever another
 * process has named.
 */
#include "daemon/console/export/job.h"

#include "trace/op.h"
#include "trace/plain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *roll_job_class_name(unsigned class)
{
    static const char *const name[] = {
        [ROLL_CLASS_NONE] = "other",         [ROLL_CLASS_COLL] = "collective",
        [ROLL_CLASS_P2P] = "message",        [ROLL_CLASS_RMA] = "one-sided",
        [ROLL_CLASS_GROUP] = "group",        [ROLL_CLASS_COMM] = "communicator",
        [ROLL_CLASS_SYNC] = "wait",          [ROLL_CLASS_MOE] = "moe",
        [ROLL_CLASS_EXT] = "compute",        [ROLL_CLASS_POLL] = "poll",
        [ROLL_CLASS_ORDER] = "stream order",
    };
    return name[class];
}

/* How many bytes the character at the beginning of this text takes; 0: it is no UTF-8. */
static size_t utf8_bytes(const unsigned char *c)
{
    size_t n = c[0] < 0x80                    ? 1
               : c[0] >= 0xc2 && c[0] <= 0xdf ? 2
               : (c[0] & 0xf0) == 0xe0        ? 3
               : c[0] >= 0xf0 && c[0] <= 0xf4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80) { /* the end mark as well */
            return 0;
        }
    }
    bool overlong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xf0 && c[1] < 0x90);
    bool beyond = (c[0] == 0xed && c[1] >= 0xa0) || (c[0] == 0xf4 && c[1] >= 0x90);
    return overlong || beyond ? 0 : n;
}

void roll_job_plain(char *text, bool lines)
{
    size_t bytes = strlen(text);
    for (size_t i = 0, n, odd; i<bytes; i += n> 0 ? n : 1) {
        n = utf8_bytes((const unsigned char *)text + i);
        odd = lines && text[i] == '\n' ? 0 : roll_plain_odd(text + i, bytes - i);
        if (n == 0) {
            text[i] = '?';
        } else if (odd > 0) {
            memset(text + i, ' ', n);
        }
    }
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

void roll_job_place(const struct roll_symbol_frame *frame, int frames, char *out, size_t size, const char **source)
{
    *source = "";
    out[0] = '\0';
    if (frames <= 0 || roll_symbols_place(frame, (size_t)frames, out, size, source)) {
        roll_job_plain(out, false);
        return;
    }
    for (int i = 0; i < frames && out[0] == '\0'; i++) {
        const struct roll_symbol_frame *f = &frame[i];
        if (f->line > 0 && f->file[0] != '\0') {
            snprintf(out, size, "%s:%u %s", base_of(f->file), f->line, f->function);
        } else if (f->function[0] != '\0') {
            snprintf(out, size, "%s", f->function);
        } else if (f->module[0] != '\0') {
            snprintf(out, size, "%s+0x%" PRIx64, base_of(f->module), f->offset);
        }
    }
    roll_job_plain(out, false);
}
