/*
 * metrics.h: the HTTP server of rollcalld: GET /metrics (Prometheus), GET /healthz, and the page (page.h).
 *
 * The daemon fills a plain snapshot at each scrape; this part has the names (docs/METRICS.md), types and formats.
 */
#ifndef ROLL_DAEMON_HTTP_METRICS_H
#define ROLL_DAEMON_HTTP_METRICS_H

#include "daemon/http/page.h"
#include "trace/frame.h"
#include "trace/ring.h"
#include "trace/verdict.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define ROLL_METRICS_VERDICTS 64 /* rows of verdict.def and room for more */

/* Who looks at the ranks, and may be late. */
enum roll_eye { ROLL_EYE_ROOT, ROLL_EYE_AGENT, ROLL_EYE_LINK, ROLL_EYE_RING, ROLL_EYE_BELOW, ROLL_EYES };

/* Who refuses frames and connections. */
enum roll_refuser { ROLL_REFUSER_ROOT, ROLL_REFUSER_RELAY, ROLL_REFUSERS };

/* The values of one moment. All totals count from the start of the daemon. Zero-initialised is valid. */
struct roll_metrics_snapshot {
    struct {
        enum roll_verdict_code code; /* NONE ends the list */
        uint64_t count[4];           /* by enum roll_certainty */
    } verdicts[ROLL_METRICS_VERDICTS];
    uint64_t ranks[ROLL_PROC_DEAD + 1]; /* by enum roll_proc_state; [0] unused */
    uint64_t calls;                     /* NCCL calls recorded */
    uint64_t records;                   /* records received */
    uint64_t lost[ROLL_LOSS_LIMIT];     /* by enum roll_loss */
    uint64_t findings;                  /* findings that stand now, of the runs watched now */
    uint64_t runs;                      /* runs watched now */
    uint64_t agents;                    /* agents connected now */
    uint64_t comms;                     /* communicators known now */
    uint64_t incomplete;                /* operations that some but not all members have issued */
    double oldest_pending_seconds;      /* age of the oldest incomplete operation; 0 = none */
    uint64_t batches;                   /* frames of records received */
    uint64_t bytes;                     /* bytes received from agents */
    double engine_seconds;              /* time spent in the engine */
    double start_time_seconds;          /* Unix time when the daemon started */
    double late_seconds[ROLL_EYES];     /* how late the worst of a kind was lately */
    double root_late_seconds;           /* how late the root was, in all */
    double missed_seconds;              /* left out of the patience, because it was not seen */
    uint64_t unwatched_runs;            /* runs for which this root has no place */
    uint64_t deaths;                    /* processes of the daemon that died and were replaced */
    uint64_t refused[ROLL_REFUSERS];    /* frames and connections that were refused */
};

/* Adds `n` verdicts of a code and certainty to a snapshot. LIMIT when the list is full. Pure. */
int roll_metrics_count_verdict(struct roll_metrics_snapshot *snapshot, enum roll_verdict_code code,
                               enum roll_certainty certainty, uint64_t n);

/* Fills a zeroed snapshot. Called on the HTTP thread, one call at a time: the owner locks what it reads. */
typedef void roll_metrics_fill(void *arg, struct roll_metrics_snapshot *snapshot);

typedef struct roll_metrics roll_metrics_t;

/*
 * Listens on `listen` ("127.0.0.1:9400", "[::1]:0", ":9400" or "9400" = loopback; port 0 = any) and serves from a
 * thread of its own. Only loopback addresses are accepted: DENIED for others. Borrows listen; fill, arg and the page
 * (NULL: none is shown) must live until roll_metrics_destroy returns. 0, ARG, DENIED, BUSY (port in use), NOMEM, IO.
 */
int roll_metrics_new(const char *listen, roll_metrics_fill *fill, void *arg, roll_page_t *page, roll_metrics_t **out);
/* Stops listening and waits for the thread. */
void roll_metrics_destroy(roll_metrics_t **metrics);
/* The port on which the endpoint listens. */
unsigned roll_metrics_port(const roll_metrics_t *metrics);

/* Writes the exposition to a stream: text format 0.0.4, or OpenMetrics 1.0. 0 or IO. */
int roll_metrics_write(FILE *out, const struct roll_metrics_snapshot *snapshot, bool openmetrics);

#endif
