/*
 * proc.c: see proc.h. The interposer writes start time and boot id into its rings by trace/ring.c, which knows libc
 * alone; this is the other end.
 */
#include "daemon/base/proc.h"

#include "daemon/base/file.h"
#include "trace/err.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_FIELD 22 /* of stat, counted from 1; the state is the third */

bool roll_proc_stat_parse(const char *line, struct roll_proc_stat *out)
{
    *out = (struct roll_proc_stat){.state = '?'};
    const char *begin = strchr(line, '('), *end = strrchr(line, ')'); /* the name between them may hold both */
    if (!begin || !end || end < begin || end[1] != ' ' || end[2] == '\0') {
        return false;
    }
    snprintf(out->name, sizeof(out->name), "%.*s", (int)(end - begin - 1), begin + 1);
    out->state = end[2];
    const char *at = end + 1;
    for (int field = 3; field < START_FIELD && at; field++) {
        at = strchr(at + 1, ' ');
    }
    out->start_ticks = at ? strtoull(at, NULL, 10) : 0;
    return true;
}

int roll_proc_stat(pid_t pid, pid_t tid, struct roll_proc_stat *out)
{
    char path[64], text[1024];
    if (tid) {
        snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    } else {
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    }
    int n = roll_read_text(path, text, sizeof(text));
    return n < 0 ? n : roll_proc_stat_parse(text, out) ? 0 : ROLL_E_NOTFOUND;
}

const char *roll_proc_word(const char *text, const char *line, const char *word)
{
    size_t n = strlen(line);
    for (const char *at = text; at && *at; at = (at = strchr(at, '\n')) ? at + 1 : NULL) {
        if (strncmp(at, line, n) == 0) {
            const char *found = memmem(at + n, strcspn(at + n, "\n"), word, strlen(word));
            return found ? found + strlen(word) : NULL;
        }
    }
    return NULL;
}

static uint8_t boot_id[16];

static void read_boot_id(void)
{
    char text[64], *at = text;
    roll_read_text("/proc/sys/kernel/random/boot_id", text, sizeof(text));
    for (size_t n = 0; n < sizeof(boot_id); n++) {
        unsigned byte;
        at += *at == '-';
        if (sscanf(at, "%2x", &byte) != 1) {
            break;
        }
        boot_id[n] = (uint8_t)byte;
        at += 2;
    }
}

const uint8_t *roll_proc_boot_id(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_boot_id);
    return boot_id;
}
