/*
 * node_facts.h: reads facts of this node that could stop a collective: GPUs, network ports, the kernel's log, pressure,
 * memory, full disks.
 *
 * Sources are only read, never changed; each is optional and bounded. They are read by `rollcalld --facts`, a process
 * of its own, because a driver that has lost its GPU may keep its caller for ever.
 */
#ifndef ROLL_DAEMON_AGENT_NODE_FACTS_H
#define ROLL_DAEMON_AGENT_NODE_FACTS_H

#include "trace/fact.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_NODE_TEXT 128u /* longest text of one fact, terminated */

/* Receives one fact; `text` is a part of a sentence, borrowed. */
typedef void roll_node_tell_t(void *ctx, enum roll_fact kind, const char *text);

struct roll_node {
    const char *root; /* prefix of /sys, /proc and /dev; "" except in tests */
    roll_node_tell_t *tell;
    void *ctx;
};

/* Tells a fact, printf-like. */
void roll_node_say(const struct roll_node *n, enum roll_fact kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads a small file under the root, without its newline. Returns its length, or -1. */
int roll_node_read(const struct roll_node *n, const char *path, char *out, size_t size);
/* Reads a small file as a number; -1 when there is none. */
int64_t roll_node_number(const struct roll_node *n, const char *path);

/* node_link.c: InfiniBand and Ethernet ports. Counters are read twice: only a counter that rises now is told, not one
 * that rose some day. */
typedef struct roll_links roll_links_t;
roll_links_t *roll_links_look(const struct roll_node *n); /* NULL without memory */
void roll_links_tell(const struct roll_node *n, const roll_links_t *before);
void roll_links_destroy(roll_links_t **links);

/* node_kernel.c: tells lines of the kernel's log that are not older than since_us (CLOCK_MONOTONIC). */
void roll_kernel_tell(const struct roll_node *n, uint64_t since_us);

/* node_gpu.c: tells facts of the GPUs by NVML, which is loaded here. */
void roll_gpu_tell(const struct roll_node *n);

/* Tells facts about pressure and memory of the node. */
void roll_pressure_tell(const struct roll_node *n);
/* Tells when the file system of a directory is full, or nearly. NULL and "" are skipped. */
void roll_disk_tell(const struct roll_node *n, const char *dir);
/* The use of a file system in percent, by its numbers; -1 when there is room. roll_disk_tell decides by it. */
int roll_disk_full(uint64_t blocks, uint64_t available, uint64_t files, uint64_t files_free);

/*
 * `rollcalld --facts WISH`, WISH JSON: {"root":…,"dir":…,"trace":…,"since_us":…,"interval_ms":…}. On standard output,
 * one JSON object a line: {"begin":TEXT} before each source, {"kind":…,"text":…} for each fact. Returns the exit code:
 * 0, 2 for a malformed wish.
 */
int roll_facts_helper(const char *wish);

#endif
