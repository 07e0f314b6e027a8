/*
 * node_facts.h: what this node knows that could stop a collective: GPUs, network ports, the kernel's log, pressure,
 * memory, full disks.
 *
 * Everything is read, nothing is changed; each source is optional and bounded. Used by `rollcalld --facts`, a process
 * of its own, because a driver that has lost its GPU may keep its caller for ever.
 */
#ifndef ROLL_DAEMON_NODE_FACTS_H
#define ROLL_DAEMON_NODE_FACTS_H

#include "trace/fact.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_NODE_TEXT 128u /* of one fact, terminated */

/* One fact: text is a part of a sentence, borrowed. */
typedef void roll_node_tell_t(void *ctx, enum roll_fact kind, const char *text);

struct roll_node {
    const char *root; /* before /sys, /proc and /dev; "" but in tests */
    roll_node_tell_t *tell;
    void *ctx;
};

/* Tells, printf-like. */
void roll_node_say(const struct roll_node *n, enum roll_fact kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads a small file under the root, without its newline: its length, or -1. */
int roll_node_read(const struct roll_node *n, const char *path, char *out, size_t size);
/* The same as a number; -1 when there is none. */
int64_t roll_node_number(const struct roll_node *n, const char *path);

/* node_link.c: InfiniBand and Ethernet ports. Counters are read twice: what rises now is told, what rose some day is
 * not. */
typedef struct roll_links roll_links_t;
roll_links_t *roll_links_look(const struct roll_node *n); /* NULL without memory */
void roll_links_tell(const struct roll_node *n, const roll_links_t *before);
void roll_links_destroy(roll_links_t **links);

/* node_kernel.c: lines of the kernel's log that are not older than since_us (CLOCK_MONOTONIC). */
void roll_kernel_tell(const struct roll_node *n, uint64_t since_us);

/* node_gpu.c: by NVML, which is loaded here. */
void roll_gpu_tell(const struct roll_node *n);

/* Pressure and memory of the node. */
void roll_pressure_tell(const struct roll_node *n);
/* A directory whose file system is full, or nearly. NULL and "" are skipped. */
void roll_disk_tell(const struct roll_node *n, const char *dir);
/* What roll_disk_tell makes of the numbers of a file system: its use in percent, or -1 when there is room. */
int roll_disk_full(uint64_t blocks, uint64_t available, uint64_t files, uint64_t files_free);

/*
 * `rollcalld --facts WISH`, WISH JSON: {"root":…,"dir":…,"trace":…,"since_us":…,"interval_ms":…}. On standard output,
 * one JSON object a line: {"begin":TEXT} before each source, {"kind":…,"text":…} for each fact. Returns the exit code:
 * 0, 2 for a malformed wish.
 */
int roll_facts_helper(const char *wish);

#endif
