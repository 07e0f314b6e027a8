/*
 * node_kernel.c: reads the kernel's log, where that is allowed, for Xid errors of the GPU driver, lines of network
 * adapters, and the out-of-memory killer.
 *
 * /dev/kmsg gives one record a read, from the oldest that the kernel still holds, and a read here never waits. A file
 * with the same lines works as well (tests). Of each kind the newest lines are told: the first Xid of a series may have
 * gone from the buffer already.
 */
#include "daemon/agent/node_facts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READS_MAX 200000 /* records */
#define KEPT      3u     /* newest lines of a kind that are kept */
#define LINE_MAX_ 8192u
#define SHOWN     96

static const struct {
    enum roll_fact kind;
    const char *word;
} words[] = {
    {ROLL_FACT_KERNEL_XID, "NVRM: Xid"},
    {ROLL_FACT_KERNEL_OOM, "Out of memory: Killed process"},
    {ROLL_FACT_KERNEL_OOM, "Memory cgroup out of memory"},
    {ROLL_FACT_KERNEL_NETWORK, "mlx5"},
    {ROLL_FACT_KERNEL_NETWORK, "mlx4"},
    {ROLL_FACT_KERNEL_NETWORK, "bnxt"},
    {ROLL_FACT_KERNEL_NETWORK, "Link is Down"},
    {ROLL_FACT_KERNEL_NETWORK, "Link is down"},
    {ROLL_FACT_KERNEL_NETWORK, "link down"},
};
#define KINDS 3u
static const enum roll_fact kinds[KINDS] = {ROLL_FACT_KERNEL_XID, ROLL_FACT_KERNEL_OOM, ROLL_FACT_KERNEL_NETWORK};

struct found {
    size_t count;
    char line[KEPT][SHOWN + 1]; /* newest at (count - 1) % KEPT */
};

static void take(struct found found[KINDS], const char *text, size_t bytes)
{
    char line[SHOWN + 1];
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const void *at = memmem(text, bytes, words[i].word, strlen(words[i].word));
        for (size_t k = 0; at && k < KINDS; k++) {
            if (kinds[k] == words[i].kind) {
                snprintf(line, sizeof(line), "%.*s", (int)(bytes < SHOWN ? bytes : SHOWN), text);
                memcpy(found[k].line[found[k].count++ % KEPT], line, sizeof(line));
                return;
            }
        }
    }
}

/* Takes one record: "6,1234,5678901,-;text", and lines of a dictionary that begin with a space. */
static void take_record(struct found found[KINDS], const char *line, size_t bytes, uint64_t since_us)
{
    char head[64];
    unsigned prio;
    unsigned long long seq, us;
    const char *text = memchr(line, ';', bytes < sizeof(head) ? bytes : sizeof(head) - 1);
    if (!text) {
        return;
    }
    snprintf(head, sizeof(head), "%.*s", (int)(text - line), line);
    if (sscanf(head, "%u,%llu,%llu", &prio, &seq, &us) == 3 && us >= since_us) {
        take(found, text + 1, bytes - (size_t)(text + 1 - line));
    }
}

/* Takes the bytes of one read: one record of the device, or many of a file. Returns the bytes of whole lines. */
static size_t take_lines(struct found found[KINDS], const char *data, size_t bytes, uint64_t since_us)
{
    size_t done = 0;
    const char *end;
    while ((end = memchr(data + done, '\n', bytes - done)) != NULL) {
        take_record(found, data + done, (size_t)(end - data) - done, since_us);
        done = (size_t)(end - data) + 1;
    }
    return done;
}

void roll_kernel_tell(const struct roll_node *n, uint64_t since_us)
{
    char path[PATH_MAX];
    static char data[LINE_MAX_];
    struct found found[KINDS] = {{.count = 0}};
    size_t used = 0;
    snprintf(path, sizeof(path), "%s/dev/kmsg", n->root);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        roll_node_say(n, ROLL_FACT_UNKNOWN, "the kernel's log cannot be read (%s)", strerror(errno));
        return;
    }
    for (int i = 0; i < READS_MAX; i++) {
        ssize_t got = read(fd, data + used, sizeof(data) - used);
        if (got < 0 && (errno == EPIPE || errno == EINTR)) {
            continue; /* the record was overwritten before it was read: go on with the next */
        }
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
        size_t done = take_lines(found, data, used, since_us);
        done = done == 0 && used == sizeof(data) ? used : done; /* drop a line that does not fit */
        memmove(data, data + done, used - done);
        used -= done;
    }
    close(fd);
    for (size_t k = 0; k < KINDS; k++) {
        size_t first = found[k].count > KEPT ? found[k].count - KEPT : 0;
        for (size_t i = found[k].count; i-- > first;) {
            roll_node_say(n, kinds[k], "kernel: %s", found[k].line[i % KEPT]);
        }
    }
}
