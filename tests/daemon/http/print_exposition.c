/*
 * print_exposition.c: prints the exposition of a busy daemon, for promtool: print_exposition [--openmetrics]
 */
#include "daemon/http/metrics.h"

#include <string.h>

int main(int argc, char **argv)
{
    struct roll_metrics_snapshot s = {.ranks = {0, 6, 1, 0, 1},
                                      .calls = 123456,
                                      .records = 130000,
                                      .lost = {3, 1},
                                      .runs = 1,
                                      .agents = 2,
                                      .comms = 8,
                                      .incomplete = 1,
                                      .oldest_pending_seconds = 0.25,
                                      .batches = 500,
                                      .bytes = 9000000,
                                      .engine_seconds = 1.5,
                                      .start_time_seconds = 1700000000.5};
    roll_metrics_count_verdict(&s, ROLL_VERDICT_COUNT_MISMATCH, ROLL_PROVEN, 2);
    return roll_metrics_write(stdout, &s, argc > 1 && strcmp(argv[1], "--openmetrics") == 0) == 0 ? 0 : 1;
}
