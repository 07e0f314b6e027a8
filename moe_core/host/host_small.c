/*
 * host_small.c: products of few rows for every processor.
 */
#define SMALL_WIDTH 4
#define SMALL_NAME  "plain"
#define SMALL_TABLE moe_host_small_plain
#include "moe_core/host/host_small_body.h"
